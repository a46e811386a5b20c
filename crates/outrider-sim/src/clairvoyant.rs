//! Somebody who knows the whole program: a bound for everybody who runs ahead.

use std::ops::Range;

use crate::device::Nanos;
use crate::model::Kind;
use crate::readahead::Window;
use crate::run::{Ahead, Nothing, Outcome, Shared, run};
use crate::system::{By, Event, Machine, PAGE};
use crate::trace::{MOST_FDS, Op, Trace};

/// In which order what will be needed is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As it is needed.
    Need,
    /// In the order of its places on the device, as much at a time as half of the memory holds: what saves a head its seeks.
    Place,
}

/// Pages of a file that are needed together.
struct Need {
    file: usize,
    pages: Range<u64>,
    /// Counts the bytes that are needed up to its begin, in the program's order.
    before: u64,
}

struct Clairvoyant {
    order: Order,
    needs: Vec<Need>,
    next: usize,
    /// Bytes that the program has come to.
    used: u64,
    /// Bytes that may be there before they are needed.
    room: u64,
    flying: u64,
}

impl Clairvoyant {
    fn new(order: Order) -> Clairvoyant {
        Clairvoyant {
            order,
            needs: Vec::new(),
            next: 0,
            used: 0,
            room: 0,
            flying: 0,
        }
    }

    /// Asks for what is due. It takes no time: nobody can be quicker.
    fn ask(&mut self, system: &Shared) {
        let mut system = system.borrow_mut();
        let most = 2 * system.parallel();
        while self.flying < most
            && let Some(need) = self.needs.get(self.next)
            && need.before < self.used + self.room
        {
            self.next += 1;
            let absent = |k: &u64| !system.is_present(need.file, *k);
            let Some(last) = need.pages.clone().filter(absent).last() else {
                continue;
            };
            let window = Window {
                pages: need.pages.clone(),
                marked: None,
            };
            system.read(need.file, &window, By::Ahead);
            let page = system.page(need.file, last);
            system.when_there(page, Event::Ahead(0));
            self.flying += 1;
        }
    }

    /// All that the program will read, its threads side by side, what lies together in one piece as long as the device takes it at once.
    fn foresee(&mut self, trace: &Trace, machine: &Machine) {
        let longest = (machine.longest / PAGE).max(1);
        let mut files = [usize::MAX; MOST_FDS];
        let mut before = 0;
        let steps = trace.threads.iter().map(Vec::len).max().unwrap_or(0);
        for op in (0..steps).flat_map(|i| trace.threads.iter().filter_map(move |ops| ops.get(i))) {
            let (fd, bytes) = match *op {
                Op::Open { fd, file } => {
                    files[fd] = file;
                    continue;
                }
                Op::Read { fd, offset, len } => (fd, offset..offset + len),
                Op::Touch { fd, offset } => (fd, offset..offset + 1),
                _ => continue,
            };
            let Some(size) = trace.files.get(files[fd]) else {
                continue;
            };
            let mut pages = bytes.start / PAGE..bytes.end.min(*size).div_ceil(PAGE);
            if let Some(last) = self.needs.last_mut().filter(|last| last.file == files[fd]) {
                let room = longest.saturating_sub(last.pages.end - last.pages.start);
                if last.pages.contains(&pages.start) {
                    pages.start = last.pages.end.min(pages.end);
                }
                if last.pages.end == pages.start && room >= pages.end - pages.start {
                    last.pages.end = pages.end;
                    before += (pages.end - pages.start) * PAGE;
                    continue;
                }
            }
            if pages.start < pages.end {
                self.needs.push(Need {
                    file: files[fd],
                    pages: pages.clone(),
                    before,
                });
                before += (pages.end - pages.start) * PAGE;
            }
        }
        if self.order == Order::Place {
            let batch = self.room.max(PAGE) / 2;
            self.needs
                .sort_by_key(|need| (need.before / batch.max(1), need.file, need.pages.start));
        }
    }
}

impl Ahead for Clairvoyant {
    fn begins(&mut self, system: &Shared, trace: &Trace) {
        let machine = system.borrow().machine().clone();
        self.room = machine.memory / 10 * 8;
        self.foresee(trace, &machine);
        self.ask(system);
    }

    fn reads(
        &mut self,
        system: &Shared,
        _thread: usize,
        _fd: usize,
        _offset: u64,
        len: u64,
    ) -> Nanos {
        self.used += len;
        self.ask(system);
        0
    }

    fn touches(&mut self, system: &Shared, _thread: usize, _fd: usize, _offset: u64) -> Nanos {
        self.used += PAGE;
        self.ask(system);
        0
    }

    fn wakes(&mut self, system: &Shared, _what: u64) {
        self.flying -= 1;
        self.ask(system);
    }
}

/// The best that anybody could do who knows the program: the quicker of both orders, or the kernel alone.
pub fn bound(trace: &Trace, machine: &Machine) -> Outcome {
    let mut all = vec![
        run(trace, machine, &mut Nothing),
        run(trace, machine, &mut Clairvoyant::new(Order::Need)),
    ];
    if machine.device.kind == Kind::Head {
        all.push(run(trace, machine, &mut Clairvoyant::new(Order::Place)));
    }
    all.into_iter()
        .min_by_key(|outcome| outcome.elapsed)
        .unwrap_or_else(|| unreachable!("there are two"))
}
