//! Room in flight for what the lane reads.
//!
//! It is on its way to the same devices, and whoever else reads there waits behind it no less than behind what the queues ask for. So each call has room on its
//! device before it asks that for anything.

use outrider_sys::units::DeviceId;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::device::Sharing;
use crate::engine::Shared;
use crate::engine::queue::{Device, State};

/// How often whoever waits for room looks whether it is wanted no more.
const LOOK: Duration = Duration::from_millis(5);

/// Bytes on their way, until this is dropped.
pub(super) struct Way {
    shared: Arc<Shared>,
    device: DeviceId,
    bytes: u64,
}

impl Way {
    /// Room for `bytes` on their way from a device, by `st_dev` or the number of a disk: at once where nobody else reads from it, and otherwise as soon as they
    /// fit its bound. `None` once `unwanted` says so.
    pub(super) fn enter(
        shared: &Arc<Shared>,
        device: DeviceId,
        bytes: u64,
        left: &mut Left,
        unwanted: impl Fn() -> bool,
    ) -> Option<Way> {
        let mut way = Way::none(shared, device);
        way.grow(bytes, left, unwanted).then_some(way)
    }

    /// The same, if they fit at once.
    pub(super) fn enter_now(shared: &Arc<Shared>, device: DeviceId, bytes: u64) -> Option<Way> {
        let mut way = Way::none(shared, device);
        way.try_grow(bytes).then_some(way)
    }

    fn none(shared: &Arc<Shared>, device: DeviceId) -> Way {
        Way {
            shared: shared.clone(),
            device,
            bytes: 0,
        }
    }

    /// So many bytes more, if they fit at once.
    pub(super) fn try_grow(&mut self, bytes: u64) -> bool {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        let d = state.device(self.device, bounds);
        let fits = d.lane_bytes.saturating_add(bytes) <= d.bound_of_lane();
        if fits {
            d.lane_bytes += bytes;
            self.bytes += bytes;
        }
        fits
    }

    /// What was on its way is there.
    pub(super) fn arrived(&mut self) {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        let d = state.device(self.device, bounds);
        d.lane_bytes = d.lane_bytes.saturating_sub(std::mem::take(&mut self.bytes));
        self.shared.has_room(&state, self.device);
    }

    /// Waits until so many bytes more fit; `false` if they are `unwanted` before.
    pub(super) fn grow(
        &mut self,
        bytes: u64,
        left: &mut Left,
        unwanted: impl Fn() -> bool,
    ) -> bool {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        if state.devices.iter().all(|d| d.id != self.device) {
            // Somebody will look who else is there.
            state.device(self.device, bounds).sharing = Sharing::Unknown;
        }
        // Who waits has nothing on its way: it keeps nobody else waiting.
        let had = std::mem::take(&mut self.bytes);
        let bytes = had + bytes;
        let d = state.device(self.device, bounds);
        d.lane_bytes = d.lane_bytes.saturating_sub(had);
        let mut waits = false;
        loop {
            let d = state.device(self.device, bounds);
            if d.lane_bytes == 0 || d.lane_bytes + bytes <= d.bound_of_lane() {
                d.lane_bytes += bytes;
                d.entered += 1;
                self.bytes = bytes;
                // Whoever was woken has the others woken in turn, each when there is something for it.
                self.shared.has_room(&state, self.device);
                return true;
            }
            if left.due().is_some() {
                drop(state);
                left.wait();
                state = self.shared.lock();
                continue;
            }
            d.wait_for_room += 1;
            if !std::mem::replace(&mut waits, true) && had > 0 {
                self.shared.has_room(&state, self.device);
            }
            let waited = self.shared.room.wait_timeout(state, LOOK);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.device(self.device, bounds).wait_for_room -= 1;
            if state.stop || unwanted() {
                return false;
            }
        }
    }

    /// What is on its way by this counts for `left` from now on, one file or `most` bytes; `false`, and nothing changes, where somebody else may wait for it. `sure`: unless it
    /// is known that nobody does.
    pub(super) fn leave(
        &mut self,
        left: &mut Left,
        after: Duration,
        (most, sure): (u64, bool),
    ) -> bool {
        let bounds = self.shared.settings.in_flight;
        let alone = match self.shared.lock().device(self.device, bounds).sharing {
            Sharing::Exclusive => true,
            Sharing::Unknown => !sure,
            Sharing::Suspected | Sharing::Shared => false,
        };
        let fits = left.bytes == 0 || left.bytes + self.bytes <= most;
        if alone && fits {
            left.bytes += self.bytes;
            left.due = Some(Instant::now() + after);
            let mut way = Way::none(&self.shared, self.device);
            way.bytes = std::mem::take(&mut self.bytes);
            left.ways.push(way);
        }
        alone && fits
    }
}

/// Room of what a thread has asked for and has not waited for. To wait costs more of a processor than to ask for a small file.
#[derive(Default)]
pub(super) struct Left {
    ways: Vec<Way>,
    bytes: u64,
    /// When all of it will have come, as far as is known.
    due: Option<Instant>,
}

impl Left {
    /// All of it is there: what was asked for later is.
    pub(super) fn arrived(&mut self) {
        *self = Left::default();
    }

    /// How long until all of it will be there, if there is any.
    pub(super) fn due(&self) -> Option<Duration> {
        let due = self.due?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Waits for that long.
    pub(super) fn wait(&mut self) {
        if let Some(due) = self.due() {
            std::thread::sleep(due);
            self.arrived();
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        let d = state.device(self.device, bounds);
        d.lane_bytes = d.lane_bytes.saturating_sub(self.bytes);
        self.shared.has_room(&state, self.device);
    }
}

impl Shared {
    /// There may be room again on a device: wakes one of those who wait there. Where some wait for other devices, all are woken, and the wrong ones wait on.
    pub(in crate::engine) fn has_room(&self, state: &State, device: DeviceId) {
        let waiting = |d: &Device| d.wait_for_room > 0;
        let here = |d: &Device| d.id == device;
        if !state.devices.iter().any(|d| here(d) && waiting(d)) {
            return;
        }
        match state.devices.iter().any(|d| !here(d) && waiting(d)) {
            true => self.room.notify_all(),
            false => self.room.notify_one(),
        }
    }
}
