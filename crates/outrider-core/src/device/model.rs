//! What a device costs.
//!
//! sysfs lies about devices (virtio claims to be rotational), so the model is measured from our own completions:
//! a request takes latency + bytes / bandwidth. Both are tracked, and everything that depends on the device follows
//! from them: how many bytes must be in flight to keep it busy, from which gap on a second request is cheaper than
//! reading through, how long a run must be for a seek not to show, what a random miss costs.

use std::ops::Range;
use std::time::Duration;

use outrider_sys::units::PAGE;

use super::Bulk;
use super::bulk::ROOM;

/// Measured figures of one device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceModel {
    /// From the issue of a lone request to its arrival, less its transfer, in microseconds.
    pub latency_us: f64,
    /// Bytes per microsecond (MB/s) with enough in flight.
    pub bandwidth: f64,
    /// The most that was delivered so far, bytes per microsecond.
    fastest: f64,
    samples: u32,
    /// Samples before the first of them that others of ours shared the device with.
    shared: u32,
    spans: u32,
    answers: Answers,
    /// Those to the shortest requests.
    short: Answers,
    bulk: Bulk,
    /// What a request takes of the device's time where there are many, µs; 0: there were none.
    each_us: f64,
    /// The quickest answer to a request of no more than the kernel's window, µs; 0: there was none.
    short_us: f64,
    /// Many were on their way together, and took no longer than a few do one after the other.
    overlaps: bool,
    /// The quickest answer to several at once, µs, and the most bytes/µs that were seen of them; 0: there were none.
    group_us: f64,
    rate: f64,
    /// Whether requests that were made at once waited for one another as behind a head, where that was tried.
    serial: Option<bool>,
}

/// What the last requests took that had next to nothing of ours ahead of them, less their transfer.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    us: [f32; Answers::TELLING],
    count: usize,
    /// The quickest of all, in ascending order.
    least: [f32; Answers::TOO_SOON],
}

/// By how many times a head is quicker where it finds many requests to choose from.
const SORTED: f64 = 3.0;
/// Sooner than any device's: it was cached.
const CACHED_US: f64 = 60.0;

impl Answers {
    /// So many tell what kind of device it is.
    const TELLING: usize = 16;
    /// Of these, as many may have come too soon, because a part of what was asked for was on its way already.
    const TOO_SOON: usize = 3;

    fn note(&mut self, us: f64) {
        self.us[self.count % Self::TELLING] = us as f32;
        let last = self.count.min(Self::TOO_SOON - 1);
        if self.count < Self::TOO_SOON || (us as f32) < self.least[last] {
            self.least[last] = us as f32;
        }
        self.count += 1;
        let known = self.count.min(Self::TOO_SOON);
        self.least[..known].sort_unstable_by(f32::total_cmp);
    }

    /// Microseconds in which it has answered at the quickest, but for two that may have come too soon.
    fn quickest(&self) -> f64 {
        match self.count < Self::TOO_SOON {
            true => f64::MAX,
            false => f64::from(self.least[Self::TOO_SOON - 1]),
        }
    }

    /// Microseconds in which the device answers if nobody holds it up. Beside others, and on a busy machine, most answers take longer.
    fn undisturbed(&self) -> Option<f64> {
        let mut us = self.us;
        let (_, us, _) = us.select_nth_unstable_by(Self::TOO_SOON, f32::total_cmp);
        (self.count >= Self::TELLING).then_some(f64::from(*us))
    }
}

impl Default for DeviceModel {
    /// A fast network disk, until something is measured: wrong in either direction this costs a few requests.
    fn default() -> Self {
        DeviceModel {
            latency_us: 200.0,
            bandwidth: 1000.0,
            fastest: 0.0,
            samples: 0,
            shared: 0,
            spans: 0,
            answers: Answers::default(),
            short: Answers::default(),
            bulk: Bulk::default(),
            each_us: 0.0,
            short_us: 0.0,
            overlaps: false,
            group_us: 0.0,
            rate: 0.0,
            serial: None,
        }
    }
}

/// Whether a device has a head that has to move: one page more costs less there than one request more, and requests are the cheaper the better they
/// are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeks {
    /// It may be a network, or a disk that answers from its cache.
    Unknown,
    /// It has none: it is flash, or was seen to work on several requests at once.
    No,
    /// It has one, or a network behind it as slow as one.
    Yes,
}

impl Seeks {
    /// No device with a head answers in so many microseconds: flash takes 50 to 200, and a tenth of a disk's seek is 800.
    const FLASH_US: f64 = 300.0;
    /// No device without a head takes so many: 2 ms lies between the slowest flash and the fastest seek (libprefetch Figure 1).
    const SEEK_US: f64 = 2000.0;

    /// By how many microseconds a device takes to answer a request that has it to itself.
    pub fn of(latency_us: f64) -> Seeks {
        match latency_us {
            us if us < Seeks::FLASH_US => Seeks::No,
            us if us >= Seeks::SEEK_US => Seeks::Yes,
            _ => Seeks::Unknown,
        }
    }
}

/// A device that has delivered more has none, MB/s: the outermost tracks of the fastest disks give 300.
const TRACK: f64 = 350.0;
/// Gaps up to this many bytes are read through on a device with a head (libprefetch section 3.3, Figure 3, and section 4.3: infill to 32 KB).
const INFILL: u64 = 32 << 10;

/// Bytes of a window of the kernel's own readahead, unless it is told otherwise (`read_ahead_kb`) …
pub const READAHEAD: u64 = 128 << 10;
/// … of which it has two in flight.
pub const WINDOWS: u64 = 2 * READAHEAD;

/// See [`DeviceModel::at_once`].
const FAR_AT_ONCE: usize = 8;

/// Requests on their way together that show whether they overlap.
const MANY: f64 = 8.0;

/// Half an average seek of a disk, and more than the slowest of stores takes for one of sixteen requests at a time: what takes longer each may be a head's.
pub const HALF_SEEK: Duration = Duration::from_millis(3);
/// Microseconds that a worker may wait for a processor before it issues more.
pub const AWAY_US: f64 = 1500.0;

/// Samples of a lone request's latency that are not trusted to have been undisturbed.
const EARLY: u32 = 16;

impl DeviceModel {
    /// A model that was measured at another time: microseconds, and bytes per microsecond. It counts as one sample, so that the device's own answers
    /// soon replace it. `None` for numbers that no device has.
    pub fn saved(latency_us: f64, bandwidth: f64) -> Option<DeviceModel> {
        let is_one = (1.0..1e7).contains(&latency_us) && (0.1..=1e5).contains(&bandwidth);
        is_one.then_some(DeviceModel {
            latency_us,
            bandwidth,
            fastest: bandwidth,
            samples: 1,
            shared: 0,
            spans: 1,
            answers: Answers::default(),
            short: Answers::default(),
            bulk: Bulk::default(),
            each_us: 0.0,
            short_us: 0.0,
            overlaps: false,
            group_us: 0.0,
            rate: 0.0,
            serial: None,
        })
    }

    /// A request of `bytes` that had the device to itself when it was made, and did not continue where the last one ended, took `took_us`; `behind` bytes
    /// more were asked for before it had arrived.
    pub fn lone_request(&mut self, bytes: u64, behind: u64, took_us: f64) {
        if behind == 0 && bytes <= Bulk::SMALL {
            self.bulk.lone(took_us);
        }
        // A bandwidth that was measured while others had the device or the processor is too small, and would leave nothing for the latency.
        let without = |bytes: u64| took_us - bytes as f64 / self.bandwidth;
        let latency = without(bytes).max(took_us / 4.0);
        if behind == 0 || self.has_head() {
            // What was taken for the latency until now is no better than a guess, if others shared the device.
            let n = if self.shared > 0 { 0 } else { self.samples };
            (self.samples, self.shared) = (self.samples + 1, 0);
            self.learn(latency, n);
        } else if self.samples == 0 {
            self.learn(latency, self.shared);
            self.shared += 1;
        } else {
            // What was asked for behind it has shared the device with it, nobody knows for how long: only what lies beyond that says something. A head goes
            // on to the next when it has done with this.
            let latency = self.latency_us.max(without(bytes + behind)).min(latency);
            self.learn(latency, self.samples);
        }
    }

    /// A request of `bytes` that was made when `ahead` bytes of ours were on their way took `took_us`. Beside others hardly any has the device to itself; what kind
    /// of device it is shows in the quickest of them all the same.
    pub fn answered(&mut self, bytes: u64, ahead: u64, took_us: f64) {
        // Of more than one window the transfer takes as long as another device's latency.
        if ahead <= READAHEAD && took_us > CACHED_US {
            let transfer = bytes as f64 / self.bandwidth.max(self.fastest);
            self.answers.note(took_us - transfer);
            if bytes <= Bulk::SHORT {
                self.short.note(took_us - transfer);
                self.bulk.answers_in(self.short.quickest());
            }
            if bytes <= READAHEAD && (self.short_us == 0.0 || took_us - transfer < self.short_us) {
                self.short_us = took_us - transfer;
            }
        }
    }

    /// So many requests of so many bytes arrived from when the first of them was made on, with always some on their way, which took `took_us`.
    pub fn overlapped(&mut self, requests: u64, bytes: u64, took_us: f64) {
        if requests < 2 || took_us < CACHED_US {
            return;
        }
        if bytes >= 2 * WINDOWS {
            let way_us = self.answers_in().unwrap_or(0.0).min(took_us / 2.0);
            self.rate = self.rate.max(bytes as f64 / (took_us - way_us));
        }
        let requests = requests as f64;
        // One after the other each would have taken as long as the quickest of those that were as short, and its transfer besides.
        let together = took_us / requests < ROOM * self.short_us;
        self.overlaps |= requests >= MANY && together;
        // Whatever goes over the link goes one after the other. Most of what it is taken for may be no more than a guess.
        let each = (took_us - bytes as f64 / self.bandwidth).max(took_us / 4.0) / requests;
        if self.each_us == 0.0 || each < self.each_us {
            self.each_us = each;
        } else if requests * self.each_us > 2.0 * self.latency_us {
            // It had all that it can do at once.
            self.each_us += (each - self.each_us) * 0.1;
        }
    }

    /// By how much one request among many delays the next one, beside its transfer, µs.
    pub fn request_us(&self) -> f64 {
        let least = match self.may_seek() {
            // However well it sorts them.
            true => self.answers_in().unwrap_or(self.latency_us) / SORTED,
            false => 0.0,
        };
        let alone = self.answers_in().unwrap_or(self.latency_us);
        match self.each_us {
            0.0 => alone,
            each => each.max(least).min(alone),
        }
    }

    /// Whether several requests were made at once.
    pub fn has_overlapped(&self) -> bool {
        self.each_us > 0.0
    }

    /// Several requests of so many bytes together had the device to themselves, as far as it matters, and have taken so long.
    pub fn group_arrived(&mut self, bytes: u64, took_us: f64) {
        let us = (took_us - bytes as f64 / self.bandwidth).max(took_us / 4.0);
        if took_us > CACHED_US && (self.group_us == 0.0 || us < self.group_us) {
            self.group_us = us;
        }
    }

    /// In what time it answers, µs, if that was seen, be it of several requests only.
    pub fn answers_in(&self) -> Option<f64> {
        match self.has_latency() {
            true => Some(self.latency_us),
            false => (self.group_us > 0.0).then_some(self.group_us),
        }
    }

    /// Whether it has a head, as far as its answers tell, be it to several requests at once.
    pub fn may_seek(&self) -> bool {
        let far = |us| Seeks::of(us) == Seeks::Yes && self.fastest <= TRACK;
        self.serial
            .unwrap_or_else(|| self.answers_in().is_some_and(far))
    }

    /// Whether it was seen that it answers one request after the other.
    pub fn is_serial(&self) -> bool {
        self.serial == Some(true)
    }

    /// What a byte takes among many, µs.
    pub fn byte_us(&self) -> f64 {
        let rate = match (self.spans > 0, self.rate > 0.0) {
            (true, true) => self.rate.min(self.bandwidth),
            (false, true) => self.rate,
            _ => self.bandwidth,
        };
        1.0 / rate.max(f64::MIN_POSITIVE)
    }

    /// What a stream that reads forward without gaps waits for each window of the kernel's own readahead beside its transfer, µs: two are on their way at once.
    /// `beside`: others are read, too, and a head comes from there.
    pub fn window_us(&self, beside: bool) -> f64 {
        let latency_us = self.answers_in().unwrap_or(self.latency_us);
        let alone = latency_us + READAHEAD as f64 / self.bandwidth;
        match self.may_seek() {
            true if beside => latency_us,
            true => 0.0,
            false => (alone / 2.0 - READAHEAD as f64 * self.byte_us()).max(0.0),
        }
    }

    /// A piece of `bytes` of what may be read some time took `took_us`.
    pub fn piece_arrived(&mut self, bytes: u64, took_us: f64) {
        self.bulk = self.bulk();
        self.bulk.arrived(bytes, took_us, self.latency_us);
    }

    /// Several small requests were made at once, [`DeviceModel::at_once`] of them or two, and the last has arrived after `took_us`.
    pub fn several_arrived(&mut self, requests: usize, took_us: f64) {
        let Some(lone_us) = self.bulk.lone_us() else {
            return;
        };
        let telling = requests == FAR_AT_ONCE;
        // The last of so many takes no less than a lone one, unless a head had come from far for that.
        if telling && took_us < lone_us || self.bulk.was_disturbed(took_us) {
            self.try_room_again();
            return;
        }
        self.bulk.several(took_us, telling);
        if telling {
            self.serial = Some(!self.bulk().does_several());
        }
    }

    /// Whether there is room for a request beside those of the program is to be tried again, from a lone one on.
    pub fn try_room_again(&mut self) {
        self.bulk = Bulk::default();
    }

    /// Small requests that are made at once to see whether the device does them together: two, or so many that a head needs several times as long for them as for one,
    /// however well it sorts them.
    pub fn at_once(&self) -> usize {
        match Seeks::of(self.latency_us) {
            Seeks::Yes => FAR_AT_ONCE,
            _ => 2,
        }
    }

    /// How what may be read some time goes there.
    pub fn bulk(&self) -> Bulk {
        let overlaps = self.overlaps && !self.may_seek();
        let streams = overlaps.then_some((self.short_us, self.each_us));
        self.bulk.with(self.has_head(), streams)
    }

    /// Bytes of one of its pieces.
    pub fn piece(&self) -> u64 {
        self.bulk.piece(self.latency_us)
    }

    /// Several small requests were made at once and waited for one another, or did not; one that was made alone took `lone_us` before.
    pub fn tried(&mut self, serial: bool, lone_us: Option<f64>) {
        self.serial = Some(serial);
        if let Some(us) = lone_us {
            self.lone_request(PAGE, 0, us);
        }
    }

    /// What [`DeviceModel::tried`] has found.
    pub fn serial(&self) -> Option<bool> {
        self.serial
    }

    /// Takes a latency into account, after `n` others.
    fn learn(&mut self, latency: f64, n: u32) {
        // The first sample counts in full. Afterwards fast answers count more than slow ones: interference only ever
        // makes a request slower. The first ones most: sixteen threads that begin at once make a flash device look like a
        // network, and what was decided for that is paid for until it is corrected.
        let weight = match n {
            0 => 1.0,
            n if latency < self.latency_us && n < EARLY => 0.7,
            _ if latency < self.latency_us => 0.3,
            _ => 0.1,
        };
        self.latency_us += (latency - self.latency_us) * weight;
    }

    /// With the queue kept full, `bytes` arrived in `took_us`.
    pub fn full_span(&mut self, bytes: u64, took_us: f64) {
        if took_us <= 0.0 {
            return;
        }
        let sample = (bytes as f64 / took_us).clamp(0.1, 1e5);
        let weight = if self.spans == 0 || sample > self.bandwidth {
            0.7
        } else {
            0.2
        };
        self.bandwidth += (sample - self.bandwidth) * weight;
        self.delivers(sample);
        self.spans += 1;
    }

    /// Data arrived at `rate` bytes per µs, of which it may be able to give more.
    pub fn delivers(&mut self, rate: f64) {
        self.fastest = self.fastest.max(rate);
    }

    /// Bytes that are on their way when the device is just busy.
    pub fn bandwidth_delay(&self) -> u64 {
        (self.latency_us * self.bandwidth) as u64
    }

    /// Bytes that arrive while a worker waits for a processor, which it shares with the program: with less in flight the device would stand
    /// idle meanwhile. But no fewer than 4 MiB, if these arrive in 8 ms, or in 4 ms where a head moves: where requests are small each costs the less the more of them
    /// wait, so that the bandwidth that was measured with few is too small.
    pub fn reserve(&self) -> u64 {
        const LEAST: f64 = (4 << 20) as f64;
        let longest_us = if self.has_head() { 4000.0 } else { 8000.0 };
        let arrive = |us: f64| us * self.bandwidth;
        arrive(AWAY_US).max(LEAST.min(arrive(longest_us))) as u64
    }

    /// Bytes in flight with which a device begins that is nobody else's, if that is more than any begins with.
    pub fn deep(&self) -> Option<u64> {
        (!self.has_head()).then(|| self.reserve())
    }

    /// Bytes in flight at most while others read from the device: they wait for them a third of what their reads take anyway, or a quarter of a window of the kernel's own
    /// readahead, if that is more. Less would only be more requests.
    pub fn beside_others(&self) -> u64 {
        // Up to a window of what an undisturbed answer took was the window before it.
        let busy = |us: f64| ((us * self.bandwidth) as u64).saturating_sub(READAHEAD);
        // Where others' reads lie ahead of all of the last ones, as beside a program that hints much, even the quickest of these come late.
        let undisturbed = self.answers.undisturbed();
        let undisturbed = undisturbed.map(|us| us.min(self.answers.quickest()));
        let third = undisturbed.map_or(0, busy) / 3;
        third.next_multiple_of(PAGE).max(READAHEAD / 4)
    }

    /// Bytes in flight at most until it is known whether others read from the device: it is kept busy, and their reads wait behind ours for a
    /// tenth of a millisecond. One late answer makes no far device.
    pub fn unproven(&self) -> u64 {
        const WAIT_US: f64 = 100.0;
        let far = Some(self.latency_us).filter(|us| Seeks::of(*us) == Seeks::Yes);
        let us = far.or(self.answers.undisturbed()).unwrap_or(0.0);
        (((us + WAIT_US) * self.bandwidth) as u64).max(512 << 10)
    }

    /// Bytes of one refill of a window: a tenth of its time is then spent on the way to its first byte.
    pub fn quantum(&self) -> u64 {
        (8 * self.bandwidth_delay()).clamp(64 << 10, 8 << 20)
    }

    /// Gaps up to this many bytes are read through: as many as pass under a head while it would seek.
    pub fn merge_gap(&self) -> u64 {
        // A short seek costs about an eighth of a long one, most of it turning (libprefetch Figure 1).
        let even = self.bandwidth_delay() / 8;
        if self.has_head() { even.min(INFILL) } else { 0 }
    }

    /// Whether it seeks, by how it answers, and by what no head delivers.
    pub fn seeks(&self) -> Seeks {
        if self.has_head() {
            Seeks::Yes
        } else if self.serial == Some(false) || self.answers_as_flash() {
            Seeks::No
        } else {
            Seeks::Unknown
        }
    }

    fn has_head(&self) -> bool {
        let by_answers = || Seeks::of(self.latency_us) == Seeks::Yes && self.fastest <= TRACK;
        self.serial.unwrap_or_else(by_answers)
    }

    fn answers_as_flash(&self) -> bool {
        /// Between a flash device's answer behind another request, and the quickest network's.
        const QUICK_US: f64 = 420.0;
        let is_quick = self.has_latency() && Seeks::of(self.latency_us) == Seeks::No;
        match self.answers.undisturbed().map(|us| us < QUICK_US) {
            Some(true) => is_quick || self.fastest > TRACK,
            // A few requests of which a part was on its way already may have made it look quick.
            Some(false) => is_quick && self.samples >= EARLY,
            None => is_quick,
        }
    }

    /// Requests whose latency has been measured, with nothing behind them.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Whether the latency has been measured, perhaps beside others of ours.
    pub fn has_latency(&self) -> bool {
        self.samples + self.shared > 0
    }

    /// How long `bytes` take of which one request is answered at once, if the latency has been measured.
    pub fn takes(&self, bytes: u64) -> Option<Duration> {
        let took = self.latency_us + bytes as f64 / self.bandwidth.max(f64::MIN_POSITIVE);
        (self.has_latency() && took < 1e9).then(|| Duration::from_nanos((took * 1e3) as u64))
    }

    /// The bandwidth, bytes per microsecond, unless it is still what is assumed: a program may end before a queue was full for long enough.
    pub fn measured_bandwidth(&self) -> Option<f64> {
        (self.spans > 0).then_some(self.bandwidth)
    }

    /// Whether both have been measured.
    pub fn is_measured(&self) -> bool {
        self.has_latency() && self.spans > 0
    }
}

/// How many bytes to keep in flight: the fewest with which the device gives its best rate, and no fewer than the device's reserve.
///
/// Bandwidth x latency would be that number if both were known; but a latency measured alone leaves out what scheduling and
/// interrupts add under load, and a bandwidth measured with too little in flight is too small, so that the product confirms
/// itself. The bound is therefore moved and the rate watched: up as long as that brings more, down as long as that
/// costs nothing. More would only delay other readers.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    bound: f64,
    step: Step,
    /// Rate before the last move, bytes per µs.
    before: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// The first rate at this bound is awaited; then it goes up or down.
    Start(bool),
    Up,
    Down,
    /// So many epochs until the next try, which goes up or down.
    Hold(u32, bool),
}

impl InFlight {
    /// Begins with what a fast local disk needs; `bounds` in bytes.
    pub fn new(bounds: Range<u64>) -> InFlight {
        let bound = (512 << 10) as f64;
        InFlight {
            bound: bound.clamp(bounds.start as f64, bounds.end.max(bounds.start) as f64),
            step: Step::Start(true),
            before: 0.0,
        }
    }

    /// Goes on from `bytes`, if that is more, and down from there as long as that costs nothing: what more would bring is not seen from below, where each
    /// request finds the queue empty and costs more than it does behind others.
    pub fn fall_from(&mut self, bytes: u64, bounds: Range<u64>) {
        let bound = (bytes as f64).clamp(bounds.start as f64, bounds.end.max(bounds.start) as f64);
        if bound > self.bound {
            self.bound = bound;
            self.step = Step::Start(false);
        }
    }

    /// No less than `bytes` are allowed.
    pub fn rise_to(&mut self, bytes: u64) {
        self.bound = self.bound.max(bytes as f64);
    }

    /// Bytes allowed in flight.
    pub fn bound(&self) -> u64 {
        self.bound as u64
    }

    /// While the queue was kept at the bound, data arrived at `rate` bytes per µs.
    pub fn epoch(&mut self, rate: f64, bounds: Range<u64>) {
        const MOVE: f64 = 1.5;
        const REST: u32 = 8;
        let (low, high) = (bounds.start as f64, bounds.end.max(bounds.start) as f64);
        if self.bound < low {
            // The rate was that of fewer than are to be in flight.
            self.bound = low;
            return;
        }
        match self.step {
            Step::Start(true) => {
                self.before = rate;
                self.step = Step::Up;
                self.bound = (self.bound * MOVE).min(high);
            }
            Step::Start(false) => {
                self.before = rate;
                self.step = Step::Down;
                self.bound = (self.bound / MOVE).max(low);
            }
            Step::Up if rate > self.before * 1.1 && self.bound < high => {
                self.before = rate;
                self.bound = (self.bound * MOVE).min(high);
            }
            Step::Up => {
                self.bound = (self.bound / MOVE).max(low);
                self.step = Step::Hold(REST, false);
            }
            Step::Down if rate > self.before * 0.97 && self.bound > low => {
                self.before = rate;
                self.bound = (self.bound / MOVE).max(low);
            }
            // It lies at the least.
            Step::Down if rate > self.before * 0.97 => self.step = Step::Hold(REST, true),
            Step::Down => {
                self.bound = (self.bound * MOVE).min(high);
                self.step = Step::Hold(REST, true);
            }
            Step::Hold(0, up) => {
                self.step = if up { Step::Up } else { Step::Down };
                self.bound = if up {
                    (self.bound * MOVE).min(high)
                } else {
                    (self.bound / MOVE).max(low)
                };
            }
            Step::Hold(n, up) => {
                // One lucky rate must not stand in the way of the next try.
                self.before += (rate - self.before) * 0.3;
                self.step = Step::Hold(n - 1, up);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DR7: the bound settles near bandwidth x latency of very different devices, from above and from below.
    #[test]
    fn bound_settles() {
        for (latency, bandwidth) in [(174.0, 1400.0), (631.0, 1000.0), (15_300.0, 500.0)] {
            let bounds = (256 << 10)..(16 << 20);
            let mut f = InFlight::new(bounds.clone());
            let mut reached = Vec::new();
            for i in 0..200 {
                let rate = (f.bound() as f64 / latency).min(bandwidth);
                if i > 100 {
                    reached.push((f.bound() as f64, rate));
                }
                f.epoch(rate, bounds.clone());
            }
            let n = reached.len() as f64;
            let rate = reached.iter().map(|r| r.1).sum::<f64>() / n;
            let bound = reached.iter().map(|r| r.0).sum::<f64>() / n;
            assert!(
                rate > 0.9 * bandwidth,
                "{latency} µs: {rate} of {bandwidth}"
            );
            assert!(
                bound < (3.0 * latency * bandwidth).max((512 << 10) as f64),
                "{latency} µs: {bound}"
            );
        }
    }

    /// DR7: where each request costs less the more of them wait, so that a little more in flight brings nothing and much more does, the bound stays where
    /// the best rate is once it begins there, and on any other device it falls to what that needs.
    #[test]
    fn bound_falls_from_above_as_long_as_that_costs_nothing() {
        let settled = |rate: &dyn Fn(f64) -> f64| {
            let bounds = (256 << 10)..(16 << 20);
            let mut f = InFlight::new(bounds.clone());
            f.fall_from(4 << 20, bounds.clone());
            assert_eq!(f.bound(), 4 << 20);
            for _ in 0..8 {
                f.epoch(rate(f.bound() as f64), bounds.clone());
            }
            f.bound()
        };
        let batched = |bound: f64| if bound > 2.5e6 { 900.0 } else { 400.0 };
        assert!((2 << 20..5 << 20).contains(&settled(&batched)));
        let local = |bound: f64| (bound / 100.0).min(3000.0);
        assert!((256 << 10..1 << 20).contains(&settled(&local)));
    }

    /// DR7: a first request that waited behind the program's own is forgotten after a few more, and a head whose seeks are now and
    /// then short is still a head.
    #[test]
    fn a_disturbed_beginning_is_forgotten() {
        let mut flash = DeviceModel::default();
        for took in [900.0, 300.0, 250.0, 210.0] {
            flash.lone_request(131_072, 0, took);
        }
        assert!(flash.latency_us < 200.0, "{flash:?}");
        let mut head = DeviceModel::default();
        for k in 0..64 {
            head.lone_request(131_072, 0, if k % 8 == 1 { 2500.0 } else { 9000.0 });
        }
        assert!(Seeks::of(head.latency_us) == Seeks::Yes, "{head:?}");
    }

    /// DR7: what a device is shows in the quickest of its answers where others read from it from the beginning, and on a busy machine; nothing that comes sooner than
    /// devices answer, or behind much else, says anything, nor do a few of which a part was on its way already.
    #[test]
    fn the_quickest_answers_tell_what_it_is() {
        let told = |rate: f64, answer: fn(u32) -> f64| {
            let mut model = DeviceModel::default();
            model.lone_request(131_072, 131_072, 900.0);
            model.full_span(4 << 20, (4 << 20) as f64 / rate);
            for k in 0..32 {
                model.answered(131_072, 131_072, answer(k));
                model.answered(131_072, 393_216, 100.0);
                model.answered(131_072, 0, 20.0);
            }
            model
        };
        let flash = |rate, answer| told(rate, answer).seeks() == Seeks::No;
        assert!(flash(1400.0, |k| if k % 3 > 0 { 2000.0 } else { 350.0 }));
        let far: fn(u32) -> f64 = |k| if k % 8 == 0 { 200.0 } else { 1131.0 };
        assert!(!flash(1000.0, far));
        // What a disk's own cache answers.
        assert!(!flash(250.0, |_| 300.0));
        // A request of which a part was on its way already doesn't make a network flash.
        let mut network = told(1000.0, far);
        network.lone_request(4096, 0, 70.0);
        assert!(network.latency_us < 300.0 && network.seeks() != Seeks::No);
        // Beside others no more is in flight than a quarter of a window until that is told, however late the first answers come.
        let mut unknown = DeviceModel::default();
        unknown.lone_request(131_072, 131_072, 1131.0);
        let bounds = [0, 15, 1].map(|answers| {
            (0..answers).for_each(|_| unknown.answered(131_072, 131_072, 1131.0));
            unknown.beside_others()
        });
        assert_eq!(bounds[..2], [READAHEAD / 4; 2]);
        assert!(bounds[2] > 2 * READAHEAD);
    }

    /// DR7: how long a request took beside what was asked for behind it says of the latency only what that can't explain; whether it is found high, low or not at all.
    #[test]
    fn what_was_asked_for_behind_is_no_latency() {
        let mut flash = DeviceModel::default();
        // 80 µs and the transfer of 512 KiB.
        let shared = 80.0 + 524_288.0 / 1400.0;
        for _ in 0..8 {
            flash.lone_request(131_072, 393_216, shared);
            flash.full_span(4 << 20, (4 << 20) as f64 / 1400.0);
        }
        assert!(flash.latency_us > 300.0, "{flash:?}");
        flash.lone_request(12_288, 0, 90.0);
        assert!(flash.latency_us < 100.0, "{flash:?}");
        let before = flash.latency_us;
        for _ in 0..64 {
            flash.lone_request(131_072, 393_216, shared);
        }
        assert_eq!(flash.latency_us, before);
        let mut far = DeviceModel::default();
        for _ in 0..32 {
            far.lone_request(131_072, 393_216, 15_300.0 + 524_288.0 / 1000.0);
        }
        assert!(far.latency_us > 15_000.0, "{far:?}");
    }

    /// B11: where many requests of a stream were on their way together, it need not be tried whether there is room beside them; a head that sorts them has none.
    #[test]
    fn streams_show_whether_there_is_room() {
        for (latency, each, room) in [
            (500.0, 131.0, true),
            (500.0, 631.0, false),
            (8000.0, 2500.0, false),
        ] {
            let mut model = DeviceModel::default();
            assert!(!model.bulk().has_room());
            model.lone_request(READAHEAD, 0, latency + 131.0);
            model.answered(READAHEAD, 0, latency + 131.0);
            model.overlapped(8, 8 * READAHEAD, latency + 8.0 * each);
            assert_eq!(model.bulk().has_room(), room, "{latency} µs, {each} each");
        }
    }

    /// DR7: a network that answers late is no disk with a head once it has delivered more than one can; until then it is taken for one.
    #[test]
    fn what_delivers_more_than_a_track_has_no_head() {
        let mut far = DeviceModel::default();
        far.lone_request(131_072, 0, 15_300.0);
        assert!(far.has_head());
        for rate in [35.0, 100.0, 300.0, 500.0, 480.0, 500.0] {
            far.full_span(4 << 20, (4 << 20) as f64 / rate);
        }
        assert!(!far.has_head(), "{far:?}");
        let mut head = DeviceModel::default();
        for rate in [250.0, 280.0, 240.0] {
            head.lone_request(131_072, 0, 7_000.0);
            head.full_span(4 << 20, (4 << 20) as f64 / rate);
        }
        assert!(head.has_head(), "{head:?}");
    }

    /// DR7: figures converge to those of very different devices.
    #[test]
    fn converges() {
        for (latency, bandwidth) in [
            (80.0, 1400.0),
            (500.0, 1000.0),
            (15_000.0, 500.0),
            (7000.0, 100.0),
        ] {
            let mut m = DeviceModel::default();
            for _ in 0..20 {
                m.lone_request(131_072, 0, latency + 131_072.0 / bandwidth);
                m.full_span(4 << 20, (4 << 20) as f64 / bandwidth);
            }
            assert!((m.latency_us / latency - 1.0).abs() < 0.2, "{m:?}");
            assert!((m.bandwidth / bandwidth - 1.0).abs() < 0.1, "{m:?}");
        }
    }
}
