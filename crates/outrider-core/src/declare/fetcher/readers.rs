//! Who else reads from the devices that lists are fetched from (SPEC DR7): the fetcher yields to neighbours, and shares with other runs.

use outrider_sys::units::PAGE;

use super::Fetcher;
use crate::engine::{Engine, Load, Request};
use crate::sharing::{Counters, DeviceSharing, Program, Readers, System};

/// The process in which the fetcher is: what it reads itself it reads beside the engine.
struct Own<'a> {
    engine: &'a Engine,
    system: &'a System,
    /// Bytes of the longest requests.
    chunk: u64,
    /// Pages that were fetched one by one.
    pages: u64,
}

impl Readers for Own<'_> {
    fn processes(&self) -> usize {
        0
    }

    fn programs(&self, _longest: u64) -> Option<Vec<Program>> {
        Some(Vec::new())
    }

    fn least_beside(&self) -> u64 {
        let all = self.fetched();
        pages(all, self.engine.fetched())
    }

    fn most_beside(&self) -> u64 {
        let engine = self.engine.fetched();
        pages(self.fetched(), engine)
    }

    fn threads_beside(&self) -> usize {
        0
    }

    fn reads_beside(&self, _load: &Load, _entered: u64) -> bool {
        true
    }

    fn chunk(&self) -> u64 {
        self.chunk
    }

    fn walks(&self) -> bool {
        false
    }

    fn hinted(&self) -> u64 {
        0
    }

    fn holes(&self) -> Option<u64> {
        Some(self.pages)
    }

    fn is_streaming(&self, _device: u64) -> bool {
        true
    }
}

impl Own<'_> {
    /// Bytes that all threads of the process have fetched.
    fn fetched(&self) -> u64 {
        let own = self.system.own_pid();
        self.system.bytes_fetched(own).unwrap_or(0)
    }
}

/// Requests that a process has made of which it is only known how many bytes they brought, `engine` less than `all`: each page counts as one.
fn pages(all: u64, engine: u64) -> u64 {
    all.saturating_sub(engine) / PAGE
}

impl Fetcher {
    /// To be called before `requests` go to a file system: begins to count on their device.
    pub(super) fn begin_sharing(&mut self, file_system: u64, requests: &[Request]) {
        let Some(first) = requests.first() else {
            return;
        };
        let device = self
            .engine
            .device_of(file_system, &first.handle, first.range.start);
        // It may not have been looked for long.
        self.look_at_sharing();
        if !self.sharing.knows(device) {
            let (sharing, own) = self.readers();
            sharing.begin(device, own.system, own.engine, &own);
            self.process.shows(self.system.shown());
        }
    }

    /// Looks, if it is time to. While nothing is on its way nobody looks, and nothing runs.
    pub(super) fn look_at_sharing(&mut self) {
        let (sharing, own) = self.readers();
        sharing.look(own.system, own.engine, &own);
        self.process.rooms.set(self.sharing.rooms());
        self.process.shows(self.system.shown());
    }

    /// Others are shown nothing any more.
    pub(super) fn hide(&mut self) {
        self.sharing = DeviceSharing::default();
        self.process.rooms.set(&[]);
        self.system.hide();
        self.process.shows(None);
    }

    fn readers(&mut self) -> (&mut DeviceSharing, Own<'_>) {
        let chunks = self.files.values().map(|own| own.chunk);
        let own = Own {
            engine: &self.engine,
            system: &self.system,
            chunk: chunks.fold(PAGE, u64::max),
            pages: self.pages.get(),
        };
        (&mut self.sharing, own)
    }
}
