//! Who else reads from the devices that lists are fetched from (SPEC DR7): the fetcher yields to neighbours, and shares with other runs.

use outrider_sys::units::{DeviceId, PAGE};

use super::Fetcher;
use crate::engine::Request;
use crate::sharing::{DeviceSharing, Process};

impl Fetcher {
    /// To be called before `requests` go to a file system: begins to count on their device.
    pub(super) fn begin_sharing(&mut self, file_system: DeviceId, requests: &[Request]) {
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
        self.sharing.release(&self.engine);
        self.sharing = DeviceSharing::default();
        self.process.rooms.set(&[]);
        self.system.hide();
        self.process.shows(None);
    }

    fn readers(&mut self) -> (&mut DeviceSharing, Process<'_>) {
        let chunks = self.files.values().map(|own| own.chunk);
        let own = Process {
            engine: &self.engine,
            system: &self.system,
            chunk: chunks.fold(PAGE, u64::max),
        };
        (&mut self.sharing, own)
    }
}
