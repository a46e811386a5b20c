//! Somebody who knows the whole program: a bound for everybody who runs ahead.

use std::collections::BTreeMap;
use std::ops::Range;

use outrider_sys::units::PAGE;

use crate::device::Nanos;
use crate::readahead::Window;
use crate::run::{Ahead, Nothing, Outcome, Shared, run};
use crate::system::{By, Event, Machine};
use crate::trace::{MOST_FDS, Op, Trace};

/// In which order what will be needed is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As it is needed.
    Need,
    /// In the order of its places on the device, so many bytes at a time, or as many as half of the memory holds: what saves a head its seeks.
    Place(u64),
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
            let Some(last) = need.pages.clone().rfind(absent) else {
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

    /// All that the program will read, its threads side by side. What lies together and is needed soon after is one request, as long as the device takes.
    fn foresee(&mut self, trace: &Trace, machine: &Machine) {
        let longest = (machine.longest / PAGE).max(1);
        // Of each file and page, the need that ends there.
        let mut ends: BTreeMap<(usize, u64), usize> = BTreeMap::new();
        let mut before = 0;
        for (file, pages) in reads(trace) {
            let bytes = (pages.end - pages.start) * PAGE;
            let near = |need: &Need| before - need.before <= SOON + longest * PAGE;
            let fits = |need: &Need| pages.end - need.pages.start <= longest;
            match ends.remove(&(file, pages.start)) {
                Some(i) if near(&self.needs[i]) && fits(&self.needs[i]) => {
                    self.needs[i].pages.end = pages.end;
                    ends.insert((file, pages.end), i);
                }
                _ => {
                    ends.insert((file, pages.end), self.needs.len());
                    self.needs.push(Need {
                        file,
                        pages,
                        before,
                    });
                }
            }
            before += bytes;
        }
        if let Order::Place(most) = self.order {
            let batch = (self.room / 2).min(most).max(PAGE);
            self.needs
                .sort_by_key(|need| (need.before / batch, need.file, need.pages.start));
            self.needs.dedup_by(|next, need| {
                let joins = next.file == need.file
                    && next.pages.start <= need.pages.end
                    && next.pages.end.max(need.pages.end) - need.pages.start <= longest
                    && next.before / batch == need.before / batch;
                if joins {
                    need.pages.end = need.pages.end.max(next.pages.end);
                    need.before = need.before.min(next.before);
                }
                joins
            });
        }
    }
}

/// Bytes of others' that may be needed between two parts of a request.
const SOON: u64 = 4 << 20;

/// What the threads of a program read, file and pages, if each is as quick as the others.
fn reads(trace: &Trace) -> impl Iterator<Item = (usize, Range<u64>)> {
    let mut files = [usize::MAX; MOST_FDS];
    let steps = trace.threads.iter().map(Vec::len).max().unwrap_or(0);
    let ops = (0..steps).flat_map(|i| trace.threads.iter().filter_map(move |ops| ops.get(i)));
    ops.filter_map(move |op| {
        let (fd, bytes) = match *op {
            Op::Open { fd, file } => {
                files[fd] = file;
                return None;
            }
            Op::Read { fd, offset, len } => (fd, offset..offset + len),
            Op::Touch { fd, offset } => (fd, offset..offset + 1),
            _ => return None,
        };
        let size = trace.files.get(files[fd])?;
        let pages = bytes.start / PAGE..bytes.end.min(*size).div_ceil(PAGE);
        (pages.start < pages.end).then_some((files[fd], pages))
    })
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

/// The best that was found for those who know the program: the quickest of these orders, or the kernel alone.
pub fn bound(trace: &Trace, machine: &Machine) -> Outcome {
    /// Sorting all saves most seeks, sorting a little has the first of it sooner.
    const ORDERS: [Order; 4] = [
        Order::Need,
        Order::Place(4 << 20),
        Order::Place(32 << 20),
        Order::Place(u64::MAX),
    ];
    let orders = ORDERS.map(|order| run(trace, machine, &mut Clairvoyant::new(order)));
    let alone = run(trace, machine, &mut Nothing);
    orders
        .into_iter()
        .fold(alone, |best, next| match next.elapsed < best.elapsed {
            true => next,
            false => best,
        })
}
