//! Who else reads from the devices that lists are fetched from (SPEC DR7): the fetcher yields to neighbours, and shares with other runs.

use std::sync::atomic::Ordering::SeqCst;

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

    fn beside(&self) -> (u64, u64) {
        let before = self.engine.fetched();
        let all = self.system.bytes_fetched(self.system.own_pid());
        let after = self.engine.fetched();
        // Of what the program reads itself it is only known how much, so that each page counts as a request.
        let requests = |engine: u64| all.map_or(0, |all| all.saturating_sub(engine) / PAGE);
        (requests(after), requests(before))
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
            let shown = self.system.shown();
            let shown = shown.map_or(0, |(user, pid)| u64::from(user) << 32 | u64::from(pid));
            self.process.shown.store(shown, SeqCst);
        }
    }

    /// Looks, if it is time to. While nothing is on its way nobody looks, and nothing runs.
    pub(super) fn look_at_sharing(&mut self) {
        let (sharing, own) = self.readers();
        sharing.look(own.system, own.engine, &own);
    }

    /// Others are shown nothing any more.
    pub(super) fn hide(&mut self) {
        self.sharing = DeviceSharing::default();
        self.system.hide();
        self.process.shown.store(0, SeqCst);
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
