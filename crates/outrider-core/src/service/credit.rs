//! The accounts of what is fetched ahead of streams: one of each file, and one of its device, on which all files draw. A stream may spend what both have left, so that neither
//! a file in which nothing came of it nor many that have just been opened cost a program more than they may.

use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::InodeKey;

use super::Service;
use super::kernel::Kernel;
use crate::device::{DeviceModel, READAHEAD, Seeks};
use crate::plan::Plan;
use crate::source::credit::{Credit, Funds, Stake};
use crate::source::{Arrival, Foresight, Streams};

/// What no device takes for a small request, µs.
const SLOWEST_US: f64 = 20_000.0;

/// A window that takes so much of half an answer's time was asked for from afar: a disk reads 128 KiB in order in a sixth of its mean seek, a third of that half.
const AFAR: f64 = 0.7;

impl<K: Kernel> Service<K> {
    /// What looking ahead in a file may cost.
    pub(super) fn funds(&self, key: InodeKey, model: &DeviceModel, chunk: u64) -> Funds {
        let (now, share) = (self.now_us(), self.config.window.share);
        let file = self.files.get(&key);
        let own = file.map_or(Credit::default(), |f| f.credit);
        let all = self.devices.credit_of(self.device(key));
        let took_us = own.each_us();
        let answers_in = model.answers_in();
        let wait_us = match answers_in {
            Some(us) => us.min(took_us.unwrap_or(f64::MAX)),
            // A program that thinks takes longer.
            None => model.latency_us.max(took_us.unwrap_or(0.0).min(SLOWEST_US)),
        };
        // Who waits for each window as if it were asked for from afar, two at a time, may have no head before him.
        let unsure = model.may_seek() && model.serial().is_none();
        let far_us = answers_in.filter(|_| unsure).map(|us| AFAR * us / 2.0);
        let unsure = far_us.zip(own.window_us()).is_some_and(|(far, us)| {
            // Sooner than that it may be what a volume lets through.
            us > far && Seeks::of(us) == Seeks::Yes
        });
        Funds {
            left_us: own.left_us(now, share).min(all.left_us(now, share)),
            request_us: match answers_in {
                Some(_) => model.request_us(),
                None => wait_us,
            },
            window_us: [model.window_us(false), model.window_us(true)],
            unsure,
            overlapped: model.has_overlapped(),
            byte_us: model.byte_us(),
            wait_us,
            head: model.may_seek(),
            chunk,
            long: chunk,
        }
    }

    /// What may be spent on a file's device, µs, whichever file it is for.
    fn left_on_device_us(&self, key: InodeKey) -> f64 {
        let all = self.devices.credit_of(self.device(key));
        all.left_us(self.now_us(), self.config.window.share)
    }

    /// A program has waited for a file's device, staked on it, or come by what was.
    pub(super) fn book(&mut self, key: InodeKey, book: impl Fn(&mut Credit)) {
        let device = self.device(key);
        if let Some(file) = self.files.get_mut(&key) {
            book(&mut file.credit);
        }
        book(self.devices.credit(device));
    }

    /// What reads in a file have come to, of which the latest found the cache so: `skipped` more of no order were not told before it.
    pub(super) fn account_for_read(&mut self, key: InodeKey, read: &Read, foresight: &Foresight) {
        let (funds, returned) = (read.funds, foresight.returned);
        let reads = match foresight.random {
            true => 1.0 + read.skipped as f64,
            false => 1.0,
        };
        let transfer_us = read.len as f64 * funds.byte_us;
        let waits_us = read.plain_us.unwrap_or(funds.wait_us);
        let waited_us = match read.arrival {
            Arrival::Missing => {
                self.has_missed(key, read, foresight.random);
                reads * (waits_us + transfer_us)
            }
            _ => 0.0,
        };
        if waited_us > 0.0 {
            let ns = (waited_us * 1e3) as u64;
            self.header().waited_ns.fetch_add(ns, Relaxed);
        }
        self.book(key, |credit| {
            credit.waited(waited_us, read.len, read.plain_us.is_some(), read.now);
            credit.returned(returned);
        });
    }

    /// A read, `random` or not, has waited for what nobody had asked for: what that has us do with the device.
    fn has_missed(&mut self, key: InodeKey, read: &Read, random: bool) {
        if read.funds.unsure {
            self.probe(key, read.now);
        }
        if random && !self.files.get(&key).is_some_and(|f| f.random.is_hurried()) {
            self.engine.scatters(self.device(key));
        }
    }

    /// What comes next in the latest stream of a descriptor was asked for.
    pub(super) fn stake(&mut self, i: usize, fd: u16, key: InodeKey, funds: &Funds, plan: &Plan) {
        if let Some(desc) = self.desc_mut(i, fd)
            && let Some(stake) = staked(&mut desc.detector.streams, funds, plan)
        {
            self.book(key, |credit| credit.stake(stake));
        }
    }

    /// The same of a mapping's streams.
    pub(super) fn stake_mapped(
        &mut self,
        key: InodeKey,
        streams: &mut Streams,
        funds: &Funds,
        plan: &Plan,
    ) {
        if let Some(stake) = staked(streams, funds, plan) {
            self.book(key, |credit| credit.stake(stake));
        }
    }

    /// So many bytes from a file's beginning were asked for when it was opened: what that may come to. Nothing of the file is known yet, and it is the device's account
    /// that is drawn on.
    pub(super) fn stake_at_open(&mut self, key: InodeKey, bytes: u64) -> Stake {
        let stake = self.limits(key).funds.beginning(bytes);
        let device = self.device(key);
        self.devices.credit(device).stake(stake);
        stake
    }

    /// Of `bytes` from a file's beginning as many as may be asked for when it is opened: half of what its device's account has left is kept for what is seen to be read.
    pub(super) fn affords_at_open(&mut self, key: InodeKey, bytes: u64) -> u64 {
        let left_us = self.left_on_device_us(key);
        let share = left_us / 2.0 / self.limits(key).funds.beginning(bytes).cost_us;
        match share >= 1.0 {
            true => bytes,
            false => (bytes as f64 * share.max(0.0)) as u64 / READAHEAD * READAHEAD,
        }
    }
}

/// What comes next in the latest of these streams was asked for: what is set aside for it.
fn staked(streams: &mut Streams, funds: &Funds, plan: &Plan) -> Option<Stake> {
    if plan.bytes == 0 {
        return None;
    }
    let beside = streams.beside();
    let stake = funds.stake(streams.latest()?, plan.requests.len(), plan.bytes, beside);
    streams.staked(stake);
    Some(stake)
}

/// A read, as far as its account goes.
pub(super) struct Read {
    pub(super) len: u64,
    pub(super) arrival: Arrival,
    /// Reads that were not told before it.
    pub(super) skipped: u64,
    /// What it would wait for, beside its transfer, µs, if it is one of a stream that the kernel's own readahead serves.
    pub(super) plain_us: Option<f64>,
    /// What was known of the device.
    pub(super) funds: Funds,
    /// µs.
    pub(super) now: u64,
}

impl Read {
    /// What the latest of these streams would wait for of `bytes`, read `len` at a time, if the kernel's own readahead serves it.
    pub(super) fn plain_us(streams: &Streams, bytes: u64, len: u64, funds: &Funds) -> Option<f64> {
        let plain = streams.latest().is_some_and(|s| s.plain());
        plain.then(|| funds.plain_us(bytes, len, !streams.beside()))
    }
}
