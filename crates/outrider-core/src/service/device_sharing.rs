//! Whether somebody else reads from a disk that is being prefetched from: what the service knows of its own programs' reads.

use std::time::Duration;

use outrider_sys::units::{DeviceId, PAGE};

use super::processes::ProcState;
use super::{InodeKey, Kernel, Service};
use crate::device::{READAHEAD, Sharing};
use crate::engine::LEAST_BLOCK;
use crate::profile::Remember;
use crate::sharing::{MOST, Program, Readers};

/// A program that went through directories so recently reads names and inodes block by block, and few of its requests are as long as its reads.
const WALKED: Duration = Duration::from_secs(1);
/// Threads that read a block each at the same time.
const THREADS: u64 = 4;
/// Of streams that were not read for so long nothing is in flight.
const STREAMS: Duration = Duration::from_secs(1);

/// Bytes that a process has fetched by one request, by the bytes and numbers of its reads and of the hints that it has given the kernel: whatever more comes by.
fn at_once(read: (u64, u64), hinted: (u64, u64)) -> u64 {
    match hinted.0 > read.0 {
        true => hinted.0 / hinted.1.max(1),
        false => (read.0 / read.1.max(1)).clamp(PAGE, READAHEAD),
    }
}

/// The programs of a service, and its walks.
struct Followed<'a, K: Kernel>(&'a Service<K>);

impl<K: Kernel> Followed<'_, K> {
    /// While a profile is fetched: processes of the run that have told nothing yet. They are loaded and map files, block by block, before they read what is told.
    fn add_running(&self, programs: &mut Vec<Program>) {
        let remember = self.0.remembering();
        for pid in remember.map_or_else(Vec::new, |r| r.running(MOST)) {
            let known = programs.iter().any(|p| p.pid == pid);
            let Some(fetched) = (!known).then(|| self.0.kernel.bytes_fetched(pid)).flatten() else {
                continue;
            };
            programs.push(Program {
                pid,
                fetched,
                at_once: LEAST_BLOCK,
                window: None,
                in_flight: 0,
                streaming: 0,
                way: u64::MAX,
                streams: 0,
            });
        }
    }
}

impl<K: Kernel> Readers for Followed<'_, K> {
    fn programs(&self, longest: u64) -> Option<Vec<Program>> {
        let service = self.0;
        let few = service.processes.len() <= MOST;
        let program = |(i, p): (usize, &ProcState)| {
            // No less than a page, and no more than the kernel reads ahead.
            let at_once = service
                .moving_at_once(i)
                .unwrap_or_else(|| at_once(p.read(), p.hinted()));
            let walks = service.has_walked(p);
            // Beside what is fetched of a profile it reads what is left: names, inodes, and what is mapped around the pages that are there.
            let by_blocks = walks || service.remembering().is_some();
            let at_window = p.window().filter(|_| !by_blocks);
            let late = |at| service.kernel.since(at) < STREAMS;
            let (in_flight, at) = p.in_flight();
            let in_flight = if late(at) { in_flight } else { 0 };
            let in_flight = in_flight.min(2 * longest);
            // Windows are whole: what they have on average is less, and the second one would not fit.
            let window = p.window().unwrap_or(READAHEAD);
            let each = in_flight.max(2 * window.next_multiple_of(READAHEAD));
            let streams = p.streaming(late) as u64;
            let way = streams * each;
            // The burst of a hint is on its way half of the time.
            let (hint, at) = p.hint();
            let hint = if late(at) { hint / 2 } else { 0 };
            let streaming = way.max(hint);
            let at_once = if by_blocks { LEAST_BLOCK } else { at_once };
            let fetched = few
                .then(|| service.kernel.bytes_fetched(p.pid()))
                .flatten()?;
            Some(Program {
                pid: p.pid(),
                fetched,
                at_once: at_once.min(longest),
                window: at_window.map(|window| window.min(longest)),
                in_flight,
                streaming,
                way: match way {
                    0 if p.read().1 == 0 || by_blocks => u64::MAX,
                    0 => THREADS * at_once.max(in_flight),
                    bytes => bytes,
                },
                streams: match by_blocks {
                    true => 0,
                    false => streams + u64::from(hint > 0),
                },
            })
        };
        let mut programs: Option<Vec<Program>> = service.processes.iter().map(program).collect();
        if let Some(programs) = &mut programs {
            self.add_running(programs);
        }
        programs
    }

    fn least_beside(&self) -> u64 {
        self.0.engine.lane_requests()
    }

    fn most_beside(&self) -> u64 {
        self.least_beside()
    }

    fn chunk(&self) -> u64 {
        let chunks = self.0.files.values().map(|f| f.chunk());
        chunks.fold(self.0.config.engine.chunk.0, u64::max)
    }

    fn walks(&self) -> bool {
        let mut processes = self.0.processes.iter();
        processes.any(|(_, p)| self.0.has_walked(p))
    }

    fn hinted(&self) -> u64 {
        let processes = self.0.processes.iter();
        let hinted = processes.map(|(_, p)| p.hinted().0);
        hinted.fold(0, u64::saturating_add)
    }
}

impl<K: Kernel> Service<K> {
    /// Whether a process went through directories lately.
    fn has_walked(&self, process: &ProcState) -> bool {
        let walked = process.walked();
        walked.is_some_and(|at| self.kernel.since(at) < WALKED)
    }

    /// The job, while what its profile has is being fetched.
    fn remembering(&self) -> Option<&Remember> {
        self.remember.as_ref().filter(|job| job.is_fetching())
    }

    /// Looks from time to time who reads from the disks that are being fetched from, and tells the engine.
    pub(super) fn look_at_sharing(&mut self) {
        let mut sharing = std::mem::take(&mut self.device_sharing);
        sharing.look(&self.kernel, &self.engine, &Followed(self));
        self.device_sharing = sharing;
        let rooms = self.device_sharing.rooms();
        if !rooms.is_empty() || self.bounds_graphs {
            for i in self.processes.active() {
                self.shared.proc(*i).rooms.set(rooms);
            }
            self.bounds_graphs = !self.device_sharing.rooms().is_empty();
        }
    }

    /// Whether anybody else reads from the device that a file lies on, as far as is known.
    pub(super) fn sharing(&self, key: InodeKey) -> Sharing {
        self.device_sharing.of(self.device(key))
    }

    /// To be called before something is asked of a device: begins to count there.
    pub(super) fn begin_sharing(&mut self, device: DeviceId) {
        if !self.device_sharing.knows(device) {
            let mut sharing = std::mem::take(&mut self.device_sharing);
            sharing.begin(device, &self.kernel, &self.engine, &Followed(self));
            self.device_sharing = sharing;
        }
    }

    /// A process was taken in, which is about to read: other runs of this user know of it before it does.
    pub(super) fn show_process(&mut self, pid: u32) {
        let at_once = at_once((0, 0), (0, 0));
        self.device_sharing.show_process(pid, at_once, &self.kernel);
    }
}
