//! Whether somebody else reads from a disk that is being prefetched from: what the service knows of its own programs' reads.

use std::time::Duration;

use outrider_sys::units::PAGE;

use super::{InodeKey, Kernel, Service};
use crate::device::{READAHEAD, Seeks, Sharing};
use crate::engine::LEAST_BLOCK;
use crate::sharing::{MOST, Program, Readers};

/// A program that went through directories so recently reads names and inodes block by block, and few of its requests are as long as its reads.
const WALKED: Duration = Duration::from_secs(1);

/// Bytes that a process has fetched by one request, by the bytes and numbers of its reads and of the hints that it has given the kernel: whatever more comes by.
fn at_once(read: (u64, u64), hinted: (u64, u64)) -> u64 {
    match hinted.0 > read.0 {
        true => hinted.0 / hinted.1.max(1),
        false => (read.0 / read.1.max(1)).clamp(PAGE, READAHEAD),
    }
}

/// The programs of a service, and its walks.
struct Followed<'a, K: Kernel>(&'a Service<K>);

impl<K: Kernel> Readers for Followed<'_, K> {
    fn processes(&self) -> usize {
        self.0.active.len()
    }

    fn programs(&self, longest: u64) -> Option<Vec<Program>> {
        let service = self.0;
        let few = service.active.len() <= MOST;
        let processes = service.active.iter();
        processes
            .filter_map(|i| Some((*i, service.procs[*i].as_ref()?)))
            .map(|(i, p)| {
                // No less than a page, and no more than the kernel reads ahead.
                let at_once = service
                    .moving_at_once(i)
                    .unwrap_or_else(|| at_once((p.bytes, p.reads), p.hinted));
                let walks = p.walked.is_some_and(|at| service.kernel.since(at) < WALKED);
                let at_once = if walks { LEAST_BLOCK } else { at_once };
                let window = p.window.filter(|_| !walks);
                let fetched = few.then(|| service.kernel.bytes_fetched(p.pid)).flatten()?;
                Some(Program {
                    pid: p.pid,
                    fetched,
                    at_once: at_once.min(longest),
                    window: window.map(|window| window.min(longest)),
                })
            })
            .collect()
    }

    fn least_beside(&self) -> u64 {
        self.0.engine.lane_requests()
    }

    fn most_beside(&self) -> u64 {
        self.least_beside()
    }

    fn threads_beside(&self) -> usize {
        self.0.engine.lane_threads()
    }

    fn chunk(&self) -> u64 {
        let chunks = self.0.files.values().map(|f| f.chunk);
        chunks.fold(self.0.config.engine.chunk.0, u64::max)
    }

    fn walks(&self) -> bool {
        let service = self.0;
        let walked = |at| service.kernel.since(at) < WALKED;
        let mut processes = service
            .active
            .iter()
            .filter_map(|i| service.procs[*i].as_ref());
        processes.any(|p| p.walked.is_some_and(walked))
    }

    fn hinted(&self) -> u64 {
        let processes = self.0.active.iter();
        let processes = processes.filter_map(|i| self.0.procs[*i].as_ref());
        processes.map(|p| p.hinted.0).fold(0, u64::saturating_add)
    }

    fn is_streaming(&self, device: u64) -> bool {
        let mut files = self.0.files.values();
        files.any(|f| f.streamed && f.device == device && f.view.in_flight_pages() > 0)
    }
}

impl<K: Kernel> Service<K> {
    /// Looks from time to time who reads from the disks that are being fetched from, and tells the engine.
    pub(super) fn look_at_sharing(&mut self) {
        let mut sharing = std::mem::take(&mut self.device_sharing);
        sharing.look(&self.kernel, &self.engine, &Followed(self));
        self.device_sharing = sharing;
        let rooms = self.device_sharing.rooms();
        if !rooms.is_empty() || self.bounds_graphs {
            for i in &self.active {
                self.shared.proc(*i).rooms.set(rooms);
            }
            self.bounds_graphs = !self.device_sharing.rooms().is_empty();
        }
    }

    /// Whether somebody else was seen to read from the flash device that a file lies on.
    pub(super) fn shared_with_others(&mut self, key: InodeKey) -> bool {
        self.sharing(key) == Sharing::Shared && self.model(self.device(key)).seeks() == Seeks::No
    }

    /// Whether anybody else reads from the device that a file lies on, as far as is known.
    pub(super) fn sharing(&self, key: InodeKey) -> Sharing {
        self.device_sharing.of(self.device(key))
    }

    /// To be called before something is asked of a device: begins to count there.
    pub(super) fn begin_sharing(&mut self, device: u64) {
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
