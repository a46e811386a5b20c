//! Other runs of the same user that read from the same disks: what they have asked for, by what each shows of itself.

use outrider_sys::units::{DeviceId, PAGE};

use super::runs::Run;
use super::{MOST, REST};
use crate::clock::Moment;
use crate::device::READAHEAD;

/// How many requests another run has made since it last showed that is known by the bytes, where they are as long as its last ones: of so many there may be one more.
const CERTAIN: u64 = 8;

/// What other runs have fetched since the first look.
#[derive(Clone, Copy)]
pub(super) struct Fetched {
    /// Requests, no fewer than these, and so many more that there may have been.
    pub(super) requests: u64,
    pub(super) uncertain: u64,
    pub(super) bytes: u64,
}

/// Other runs that read from the same disks.
#[derive(Default)]
pub(super) struct Others {
    /// What each of their processes had fetched, bytes, and by how many requests.
    members: Vec<(u32, (u64, u64))>,
    /// What all of them have fetched, since whenever: requests, and bytes.
    requests: u64,
    bytes: u64,
    /// By the processes that have their engines, when each was last seen to have fetched something.
    active: Vec<(u32, Moment)>,
}

impl Others {
    /// Counts what they have fetched until now. `None` where it isn't known what a run has fetched before, or one of its processes last, or they are too many.
    pub(super) fn look(
        &mut self,
        runs: &[Run],
        now: Moment,
        fetched: impl Fn(u32) -> Option<u64>,
    ) -> Option<Fetched> {
        let before = std::mem::take(&mut self.members);
        let known = |pid| before.iter().find(|m| m.0 == pid).map(|m| m.1);
        let (mut all_known, mut uncertain) = (true, 0);
        let few = runs.iter().map(|r| r.members.len()).sum::<usize>() <= MOST;
        for run in runs.iter().filter(|_| few) {
            let bytes = self.bytes;
            let is_new = run.leader().is_none_or(|pid| known(pid).is_none());
            all_known &= !is_new;
            for (i, (pid, at_once)) in run.members.iter().enumerate() {
                let Some(now) = fetched(*pid) else { continue };
                // A process that has just begun has fetched all of it since the last look.
                let (then, before) = known(*pid).unwrap_or(if is_new { (now, 0) } else { (0, 0) });
                let since = now.saturating_sub(then);
                // What its engine has asked for was counted when it showed that, all but the last of it.
                let made = match i {
                    0 => {
                        let since = now.saturating_sub(run.made.1);
                        let least = since / READAHEAD.max(*at_once);
                        let most = since.div_ceil(*at_once);
                        uncertain += most + most / CERTAIN - least;
                        run.made.0 + least
                    }
                    _ => before + since.div_ceil(*at_once),
                };
                let before = if is_new { made } else { before };
                self.requests += made.saturating_sub(before);
                self.bytes += since;
                self.members.push((*pid, (now, made)));
            }
            if let Some(leader) = run.leader().filter(|_| self.bytes > bytes) {
                self.active.retain(|a| a.0 != leader);
                self.active.push((leader, now));
            }
        }
        self.active.retain(|a| now - a.1 < REST);
        let is_there = |m: &(u32, (u64, u64))| self.members.iter().any(|n| n.0 == m.0);
        let known = all_known && few && before.iter().all(is_there);
        known.then_some(Fetched {
            requests: self.requests,
            uncertain,
            bytes: self.bytes,
        })
    }

    /// Those of them that have lately fetched something, perhaps from this device.
    pub(super) fn on<'a>(
        &self,
        runs: &'a [Run],
        device: DeviceId,
    ) -> impl Iterator<Item = &'a Run> {
        let is_active = |run: &&Run| self.active.iter().any(|a| Some(a.0) == run.leader());
        runs.iter()
            .filter(move |run| run.devices.contains(&device) && is_active(run))
    }
}

/// What this run asks for at once: shown to others.
#[derive(Default)]
pub(super) struct Own {
    /// Bytes that the service had fetched, and by how many requests.
    counted: (u64, u64),
    /// Bytes of its requests of late; 0: not known yet.
    at_once: u64,
}

impl Own {
    /// By so many `requests` the service has had `bytes` fetched so far. Bytes of one of the last of them.
    pub(super) fn at_once(&mut self, bytes: u64, requests: u64, longest: u64) -> u64 {
        /// Of fewer requests the mean says little.
        const SOME: u64 = 16;
        let (since, made) = (
            bytes.saturating_sub(self.counted.0),
            requests.saturating_sub(self.counted.1),
        );
        if made >= SOME {
            self.at_once = since / made;
            self.counted = (bytes, requests);
        }
        self.at_once.clamp(PAGE, longest.max(PAGE))
    }
}
