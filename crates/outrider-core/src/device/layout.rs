//! Which disk of a file system that lies on several holds which range of it (SPEC DR3, DR7).
//!
//! Only root may ask how a volume is put together. Everybody may read what each disk below it has read so far, and that is enough: while
//! a request is on its way, the disk that reads as much is the one on which it lies. What is learned holds for its
//! neighbourhood, because volumes are put together from large runs; where that is not so (striping, mirrors, caches of blocks) answers
//! contradict each other, and the file system counts as one device. A wrong answer costs a window of the wrong size.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outrider_sys::units::DeviceId;

/// Two places of one disk so close together have only that disk between them: 64 MiB. Longer than a LUN's or a logical volume's runs it
/// must not be; shorter would ask more often.
const NEAR: u64 = 64 << 20;
/// One in so many requests to a known place is looked at all the same; odd, so that it isn't in step with stripes.
const CHECKED: u32 = 31;
/// Runs that are remembered; more are no runs.
const MOST_RUNS: usize = 4096;

/// The disks below one file system, and what is known of who holds what. Addresses are bytes as FIEMAP tells them.
#[derive(Debug)]
pub struct Layout {
    /// Numbers of the disks, as in `st_rdev`.
    disks: Vec<DeviceId>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Begin of each run, its end, and the index of its disk. They don't overlap.
    runs: BTreeMap<u64, (u64, usize)>,
    /// Answers that agreed with what was known, and that did not.
    agreed: u32,
    contradicted: u32,
    /// Places that were asked for and known.
    sure: u32,
    /// A request is being watched.
    watching: bool,
    /// There are no runs.
    mixed: bool,
}

/// What the disks had read when a request went out.
#[derive(Debug)]
pub struct Watch {
    before: Vec<u64>,
}

impl Layout {
    /// A file system over these disks, of which nothing is known.
    pub fn new(disks: Vec<DeviceId>) -> Layout {
        Layout {
            disks,
            known: Mutex::default(),
        }
    }

    /// The disks.
    pub fn disks(&self) -> &[DeviceId] {
        &self.disks
    }

    /// The disk that holds the byte at `address`, or the nearest place that is known.
    pub fn disk_at(&self, address: u64) -> Option<DeviceId> {
        let known = self.lock();
        if known.mixed {
            return None;
        }
        let (disk, _) = known.nearest(address)?;
        self.disks.get(disk).copied()
    }

    /// Whether it was seen who holds the byte at `address`, and not only guessed by the nearest place that was.
    pub fn knows(&self, address: u64) -> bool {
        let known = self.lock();
        !known.mixed && known.nearest(address).is_some_and(|(_, away)| away == 0)
    }

    /// To be called when a request for `addresses` goes out; `counters` says what each disk has read. `None` if it is not to be watched.
    pub fn issued(
        &self,
        addresses: &Range<u64>,
        counters: impl FnOnce(&[DeviceId]) -> Option<Vec<u64>>,
    ) -> Option<Watch> {
        {
            let mut known = self.lock();
            if known.mixed || known.watching {
                return None;
            }
            if known
                .nearest(addresses.start)
                .is_some_and(|(_, away)| away == 0)
            {
                known.sure = known.sure.wrapping_add(1);
                if !known.sure.is_multiple_of(CHECKED) {
                    return None;
                }
            }
            known.watching = true;
        }
        let before = counters(&self.disks);
        if before.is_none() {
            self.lock().watching = false;
        }
        before.map(|before| Watch { before })
    }

    /// To be called when the watched request for `addresses` has arrived; returns the disk that is seen to hold it.
    pub fn arrived(
        &self,
        watch: Watch,
        addresses: Range<u64>,
        after: Option<Vec<u64>>,
    ) -> Option<DeviceId> {
        let bytes = addresses.end - addresses.start;
        let mut known = self.lock();
        known.watching = false;
        let read: Vec<u64> = after?
            .iter()
            .zip(&watch.before)
            .map(|(a, b)| a.saturating_sub(*b))
            .collect();
        // Others read too. Half of it may have been cached; and an eighth on other disks may be their metadata.
        let busy = |least: u64| -> Vec<usize> {
            let all = read.iter().enumerate();
            all.filter(|(_, r)| **r > least).map(|(i, _)| i).collect()
        };
        if let [disk] = busy(bytes / 2)[..]
            && busy(bytes / 8).len() == 1
        {
            known.learn(addresses, disk);
            return self.disks.get(disk).copied();
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The disk of the run nearest to `address`, and how far away that is; 0: within it.
    fn nearest(&self, address: u64) -> Option<(usize, u64)> {
        let below = self
            .runs
            .range(..=address)
            .next_back()
            .map(|(_, (end, disk))| (*disk, (address + 1).saturating_sub(*end)));
        let above = self
            .runs
            .range(address..)
            .next()
            .map(|(start, (_, disk))| (*disk, start - address));
        match (below, above) {
            (Some(b), Some(a)) => Some(if b.1 <= a.1 { b } else { a }),
            (b, a) => b.or(a),
        }
    }

    fn learn(&mut self, addresses: Range<u64>, disk: usize) {
        if let Some((was, 0)) = self.nearest(addresses.start) {
            if was == disk {
                self.agreed += 1;
                return;
            }
            self.contradicted += 1;
            self.mixed = self.contradicted > 4 + self.agreed / 8;
        }
        let Range { mut start, mut end } = addresses;
        // What was known of these addresses is no more; what lies around them stays.
        let touched: Vec<(u64, u64, usize)> = self
            .runs
            .range(..end)
            .rev()
            .take_while(|(_, (e, _))| *e > start)
            .map(|(s, (e, d))| (*s, *e, *d))
            .collect();
        for (s, e, d) in touched {
            self.runs.remove(&s);
            if s < start {
                self.runs.insert(s, (start, d));
            }
            if e > end {
                self.runs.insert(end, (e, d));
            }
        }
        // Near places of the same disk become one.
        if let Some((s, (e, d))) = self.runs.range(..start).next_back().map(|(s, r)| (*s, *r))
            && d == disk
            && start - e <= NEAR
        {
            self.runs.remove(&s);
            start = s;
        }
        if let Some((s, (e, d))) = self.runs.range(end..).next().map(|(s, r)| (*s, *r))
            && d == disk
            && s - end <= NEAR
        {
            self.runs.remove(&s);
            end = e;
        }
        self.runs.insert(start, (end, disk));
        self.mixed |= self.runs.len() > MOST_RUNS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    /// Requests of 1 MB at `places` (in MB), each seen at the disk that `holds` says.
    fn ask(
        layout: &Layout,
        places: impl Iterator<Item = u64>,
        holds: impl Fn(u64) -> usize,
    ) -> u32 {
        let mut watched = 0;
        for at in places {
            let addresses = at * MB..(at + 1) * MB;
            if let Some(watch) = layout.issued(&addresses, |disks| Some(vec![7; disks.len()])) {
                let mut after = vec![7; layout.disks().len()];
                after[holds(at)] += MB;
                layout.arrived(watch, addresses, Some(after));
                watched += 1;
            }
        }
        watched
    }

    /// DR3, DR7: two disks one behind the other are told apart from a request every 64 MB, and the boundary lies where it is.
    #[test]
    fn runs_are_learned() {
        let layout = Layout::new(vec![DeviceId(10), DeviceId(20)]);
        assert_eq!(layout.disk_at(0), None);
        let holds = |mb| usize::from(mb >= 700);
        // Far apart, in no order, then around the boundary.
        ask(&layout, [900, 0, 1400, 300, 650, 720].into_iter(), holds);
        ask(&layout, 640..740, holds);
        for (mb, disk) in [
            (0, 10),
            (200, 10),
            (699, 10),
            (700, 20),
            (1400, 20),
            (9000, 20),
        ] {
            assert_eq!(layout.disk_at(mb * MB), Some(DeviceId(disk)), "{mb} MB");
        }
        // What is known is not looked at again, but for a check now and then.
        ask(&layout, (0..1500).step_by(32), holds);
        assert!(ask(&layout, 0..1500, holds) < 1500 / 20);
    }

    /// DR7: where neighbours lie on different disks, or one request on several, nothing is said.
    #[test]
    fn a_patchwork_is_one_device() {
        let layout = Layout::new(vec![DeviceId(10), DeviceId(20)]);
        ask(&layout, (0..64).step_by(2), |_| 0);
        assert_eq!(layout.disk_at(10 * MB), Some(DeviceId(10)));
        ask(&layout, (0..64).cycle().take(5000), |mb| (mb % 2) as usize);
        assert_eq!(layout.disk_at(10 * MB), None);

        let striped = Layout::new(vec![DeviceId(10), DeviceId(20)]);
        for mb in 0..100 {
            let addresses = mb * MB..(mb + 1) * MB;
            if let Some(watch) = striped.issued(&addresses, |_| Some(vec![0, 0])) {
                striped.arrived(watch, addresses, Some(vec![MB / 2, MB / 2]));
            }
        }
        assert_eq!(striped.disk_at(10 * MB), None);
    }
}
