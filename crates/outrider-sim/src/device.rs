//! The device in virtual time: when would it have finished each request?
//!
//! Nothing here reads a clock, sleeps or does I/O. The caller says what time it is, hands in requests and
//! takes out those that are done; [`Device::next_event`] says when to look again. So any number of
//! requests can be in the device at once, and tests drive it with made-up time.
//!
//! Lanes: a request takes the lane that is free first, holds it for its latency, then goes over the link
//! that all lanes share, in the order in which latencies end. Depth 1 sees latency plus transfer; depth
//! beyond the lanes, or big requests, see the link's bandwidth.
//!
//! Lanes may have buckets in front (a cloud's volume): one is refilled with requests, one with bytes, each up to what it
//! holds. A request is let in once both have what it takes, in order of arrival. A request that takes more than a bucket
//! holds is let in when that is full; the ones behind it then wait for all that it took.
//!
//! Lanes may have blocks whose first touch takes longer (a volume that was restored from a snapshot): the request holds its
//! lane until all its blocks are there, fetched side by side, and so does another that comes for them meanwhile.
//!
//! Head: requests wait until the head is free; the drive then chooses among the first `queue` of them.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use crate::model::{Kind, Model, Schedule};

/// Nanoseconds on the caller's clock.
pub type Nanos = u64;

/// A read or write of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it.
    pub tag: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// A write, or else a read.
    pub write: bool,
    /// When it came.
    pub arrived: Nanos,
}

/// A request that the device has served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// What was asked.
    pub request: Request,
    /// When the answer is to be sent.
    pub due: Nanos,
    /// The medium refused it.
    pub refused: bool,
}

impl Ord for Served {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due, self.request.tag).cmp(&(other.due, other.request.tag))
    }
}

impl PartialOrd for Served {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A request whose latency ends at `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ready {
    at: Nanos,
    number: u64,
    request: Request,
}

impl Ord for Ready {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A bucket that is refilled at an even rate, full at rest. What is in it is told by when it will be full.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    full_at: Nanos,
}

impl Bucket {
    /// When it has, at `at` or later, what takes `cost` to refill, of a bucket that takes `size` to fill (ns).
    fn has(self, at: Nanos, (cost, size): (Nanos, Nanos)) -> Nanos {
        at.max(self.full_at.saturating_sub(size.saturating_sub(cost)))
    }

    /// Takes out what takes `cost` to refill.
    fn take(&mut self, at: Nanos, (cost, _): (Nanos, Nanos)) {
        self.full_at = self.full_at.max(at) + cost;
    }
}

/// The emulated device.
#[derive(Debug)]
pub struct Device {
    model: Model,
    /// What lets requests in.
    requests: Bucket,
    /// What lets their bytes in.
    bytes: Bucket,
    /// When each block that was touched is there.
    touched: HashMap<u64, Nanos>,
    /// When each lane becomes free.
    lanes: BinaryHeap<Reverse<Nanos>>,
    /// When the link becomes free.
    link_free: Nanos,
    /// Requests that have not been on the link yet, by when their latency ends: where latencies differ, one that comes
    /// later may be ready earlier.
    ready: BinaryHeap<Reverse<Ready>>,
    /// Requests that were ever ready.
    readied: u64,
    /// Requests that no head has taken yet, in order of arrival.
    waiting: Vec<Request>,
    /// When the head becomes free.
    head_free: Nanos,
    /// The byte under the head.
    head_at: u64,
    /// Requests whose end is known.
    served: BinaryHeap<Reverse<Served>>,
    /// Nothing is answered before this.
    stalled_until: Nanos,
    random: u64,
    /// Seeks and the time they took, before scaling.
    seeks: u64,
    seek_us: f64,
}

impl Device {
    /// A device at rest.
    pub fn new(model: Model) -> Self {
        let mut device = Self {
            model: Model::default(),
            requests: Bucket::default(),
            bytes: Bucket::default(),
            touched: HashMap::new(),
            lanes: BinaryHeap::new(),
            link_free: 0,
            ready: BinaryHeap::new(),
            readied: 0,
            waiting: Vec::new(),
            head_free: 0,
            head_at: 0,
            served: BinaryHeap::new(),
            stalled_until: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            seeks: 0,
            seek_us: 0.0,
        };
        device.set_model(model, 0);
        device
    }

    /// The parameters in force.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Changes the parameters for requests that come from now on. What waits for a head is let go, buckets are full, and no
    /// block has been touched.
    pub fn set_model(&mut self, model: Model, now: Nanos) {
        for request in std::mem::take(&mut self.waiting) {
            self.finish(request, now);
        }
        while let Some(Reverse(ready)) = self.ready.pop() {
            self.link(ready.request, ready.at);
        }
        self.lanes = (0..model.parallel).map(|_| Reverse(0)).collect();
        self.link_free = 0;
        self.head_free = 0;
        (self.requests, self.bytes) = (Bucket::default(), Bucket::default());
        self.touched.clear();
        self.model = model;
    }

    /// Answers nothing until `until`; requests that come meanwhile start then.
    pub fn stall(&mut self, until: Nanos) {
        self.stalled_until = until;
    }

    /// Seeks so far and the µs they would take unscaled, counted from the last call of `forget_seeks`.
    pub fn seeks(&self) -> (u64, f64) {
        (self.seeks, self.seek_us)
    }

    /// Counts seeks from zero.
    pub fn forget_seeks(&mut self) {
        (self.seeks, self.seek_us) = (0, 0.0);
    }

    /// Takes a request in.
    pub fn submit(&mut self, request: Request) {
        let start = request.arrived.max(self.stalled_until);
        match self.model.kind {
            Kind::Off => self.finish(request, start),
            _ if request.write && self.model.write_cache => {
                let start = self.let_in(request.len, start);
                self.touch(&request, start);
                self.pass(request, start);
            }
            Kind::Lanes => {
                let start = self.let_in(request.len, start);
                let latency = self.latency_ns(request.len);
                let Reverse(free) = self.lanes.pop().expect("a device has a lane");
                let begun = start.max(free);
                let ready = (begun + latency).max(self.touch(&request, begun));
                self.lanes.push(Reverse(ready));
                self.pass(request, ready);
            }
            Kind::Head => self.waiting.push(request),
        }
    }

    /// Has a request on the link once its latency ends, at `at`.
    fn pass(&mut self, request: Request, at: Nanos) {
        if !self.model.latencies_differ() {
            // It is the next one, whatever comes.
            return self.link(request, at);
        }
        self.readied += 1;
        let number = self.readied;
        self.ready.push(Reverse(Ready {
            at,
            number,
            request,
        }));
    }

    /// Puts a request that is ready at `at` on the link.
    fn link(&mut self, request: Request, at: Nanos) {
        let done = at.max(self.link_free) + self.model.transfer_ns(request.len);
        if self.model.bandwidth_mbs > 0.0 {
            self.link_free = done;
        }
        self.finish(request, done);
    }

    /// When the first of the requests that are kept is looked at: its answer may go out before its latency has ended.
    fn next_ready(&self) -> Option<Nanos> {
        let Reverse(first) = self.ready.peek()?;
        Some(
            first
                .at
                .saturating_sub(self.early())
                .max(first.request.arrived),
        )
    }

    /// How much earlier answers go out, ns.
    fn early(&self) -> Nanos {
        (self.model.early_us * 1000.0) as Nanos
    }

    /// Lets the link and the head take what they would have taken by `now`.
    pub fn advance(&mut self, now: Nanos) {
        while self.next_ready().is_some_and(|at| at <= now) {
            if let Some(Reverse(ready)) = self.ready.pop() {
                self.link(ready.request, ready.at);
            }
        }
        while let Some(first) = self.waiting.first() {
            let at = first.arrived.max(self.head_free).max(self.stalled_until);
            if at > now {
                return;
            }
            let choice = self.choose(at);
            let request = self.waiting.remove(choice);
            let seek_us = self.model.seek_us(self.head_at, request.offset) * self.tail();
            if seek_us > 0.0 {
                self.seeks += 1;
                self.seek_us += seek_us;
            }
            self.head_free = at
                + (seek_us * 1000.0 * self.model.scale) as Nanos
                + self.model.transfer_ns(request.len);
            self.head_at = request.offset + u64::from(request.len);
            self.finish(request, self.head_free);
        }
    }

    /// Takes out a request whose answer is due by `now`, the earliest first.
    pub fn take_due(&mut self, now: Nanos) -> Option<Served> {
        if now < self.stalled_until {
            return None;
        }
        let next = self.served.peek_mut()?;
        if next.0.due > now {
            return None;
        }
        Some(std::collections::binary_heap::PeekMut::pop(next).0)
    }

    /// When something happens next if no request comes.
    pub fn next_event(&self) -> Option<Nanos> {
        let served = self.served.peek().map(|s| s.0.due);
        let head = self.waiting.first().map(|r| r.arrived.max(self.head_free));
        let next = [served, head, self.next_ready()]
            .into_iter()
            .flatten()
            .min();
        Some(next?.max(self.stalled_until))
    }

    /// When a request of `len` bytes that came by `at` is let in; takes that out of the buckets.
    fn let_in(&mut self, len: u32, at: Nanos) -> Nanos {
        if self.model.kind != Kind::Lanes {
            return at;
        }
        let (requests, bytes) = (self.model.requests_ns(len), self.model.bytes_ns(len));
        let at = self.bytes.has(self.requests.has(at, requests), bytes);
        self.requests.take(at, requests);
        self.bytes.take(at, bytes);
        at
    }

    /// When all blocks of a request that began at `at` are there.
    fn touch(&mut self, request: &Request, at: Nanos) -> Nanos {
        if self.model.kind != Kind::Lanes {
            return at;
        }
        let end = request.offset + u64::from(request.len);
        let first = at + (self.model.first_us * 1000.0 * self.model.scale) as Nanos;
        let blocks = self.model.first_blocks(request.offset, end);
        let there = blocks.map(|block| *self.touched.entry(block).or_insert(first));
        there.max().unwrap_or(at)
    }

    /// The answer goes out early by what the way back takes, but not before the question.
    fn finish(&mut self, request: Request, done: Nanos) {
        let early = self.early();
        self.served.push(Reverse(Served {
            request,
            due: done.saturating_sub(early).max(request.arrived),
            refused: self.model.refuses(
                request.write,
                request.offset,
                request.offset + u64::from(request.len),
            ),
        }));
    }

    /// Which of the waiting requests is served at `at`.
    fn choose(&self, at: Nanos) -> usize {
        if self.model.schedule == Schedule::Fifo {
            return 0;
        }
        self.waiting
            .iter()
            .take(self.model.queue as usize)
            .take_while(|r| r.arrived <= at)
            .enumerate()
            .min_by_key(|(_, r)| (r.offset < self.head_at, r.offset))
            .map_or(0, |(i, _)| i)
    }

    /// Time on a lane, ns.
    fn latency_ns(&mut self, len: u32) -> Nanos {
        let mut us = self.model.latency_us;
        if self.model.jitter > 0.0 {
            us *= 1.0 + self.model.jitter * (2.0 * self.random() - 1.0);
        }
        us *= self.tail();
        if self.model.lane_mbs > 0.0 {
            us += f64::from(len) / self.model.lane_mbs;
        }
        (us * 1000.0 * self.model.scale) as Nanos
    }

    /// How many times the usual latency the next request takes.
    fn tail(&mut self) -> f64 {
        if self.model.tail_p > 0.0 && self.random() < self.model.tail_p {
            self.model.tail_x
        } else {
            1.0
        }
    }

    /// Evenly from 0..1, the same sequence in every run (xorshift64).
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(words: &str) -> Device {
        let change = Model::default().change("early_us=0").unwrap();
        let change = change.model.unwrap().change(words).unwrap();
        Device::new(change.model.unwrap())
    }

    fn read(tag: u64, offset: u64, len: u32, arrived: Nanos) -> Request {
        Request {
            tag,
            offset,
            len,
            write: false,
            arrived,
        }
    }

    /// Runs the device until it is idle; when each request was done, in order.
    fn drain(device: &mut Device) -> Vec<(u64, Nanos)> {
        let mut done = Vec::new();
        while let Some(now) = device.next_event() {
            device.advance(now);
            while let Some(served) = device.take_due(now) {
                done.push((served.request.tag, now));
            }
        }
        done
    }

    #[test]
    fn lanes_work_in_parallel_and_share_a_link() {
        let mut nvme = device("nvme");
        // 33 requests at once: 32 lanes, then the link spaces them by 4096 / 1400 µs.
        for tag in 0..33 {
            nvme.submit(read(tag, tag << 20, 4096, 1000));
        }
        let done = drain(&mut nvme);
        assert_eq!(done.len(), 33);
        let transfer = 2925;
        assert_eq!(done[0], (0, 1000 + 80_000 + transfer));
        assert_eq!(done[31].1, 1000 + 80_000 + 32 * transfer);
        // The 33rd waits for a lane: two latencies.
        assert!(done[32].1 >= 1000 + 160_000, "{done:?}");
    }

    #[test]
    fn big_requests_get_the_bandwidth() {
        for (words, mbs) in [("nvme", 1400.0), ("objstore", 500.0), ("hdd", 100.0)] {
            let mut d = device(words);
            let mut last = 0;
            for tag in 0..256 {
                d.submit(read(tag, tag << 20, 1 << 20, 0));
            }
            for (_, t) in drain(&mut d) {
                last = last.max(t);
            }
            let got = 256.0 * f64::from(1 << 20) * 1000.0 / last as f64;
            assert!((got / mbs - 1.0).abs() < 0.15, "{words}: {got} MB/s");
        }
    }

    #[test]
    fn the_head_goes_round_in_one_direction() {
        for (schedule, order) in [("clook", [0, 2, 3, 1]), ("fifo", [0, 1, 2, 3])] {
            let mut hdd = device(&format!("hdd schedule={schedule}"));
            let places = [500u64, 100, 600, 900];
            for (tag, at) in places.iter().enumerate() {
                hdd.submit(read(tag as u64, at << 20, 4096, tag as u64));
            }
            let done: Vec<u64> = drain(&mut hdd).iter().map(|d| d.0).collect();
            assert_eq!(done, order, "{schedule}");
        }
    }

    #[test]
    fn a_stall_holds_everything_back() {
        let mut remote = device("remote");
        remote.submit(read(0, 0, 4096, 0));
        remote.stall(2_000_000_000);
        remote.submit(read(1, 0, 4096, 10));
        assert_eq!(remote.take_due(1_999_999_999), None);
        let done = drain(&mut remote);
        assert_eq!(done[0], (0, 2_000_000_000));
        assert!(done[1].1 > 2_000_500_000);
    }

    #[test]
    fn bad_ranges_fail_after_their_time() {
        let mut d = device("sata eio_read=1M-2M");
        d.submit(read(0, (1 << 20) - 4096, 8192, 0));
        d.submit(read(1, 2 << 20, 4096, 0));
        d.advance(1 << 40);
        let first = d.take_due(1 << 40).unwrap();
        assert!(first.refused && first.due > 150_000);
        assert!(!d.take_due(1 << 40).unwrap().refused);
    }

    #[test]
    fn slow_requests_come_as_often_as_asked() {
        let mut d = device("remote tail_p=0.1 tail_x=20 parallel=4096");
        let mut slow = 0;
        for tag in 0..4000 {
            let at = tag * 1_000_000_000;
            d.submit(read(tag, 0, 4096, at));
            let (_, now) = drain(&mut d)[0];
            slow += u32::from(now - at > 9_000_000);
        }
        assert!((300..500).contains(&slow), "{slow}");
    }

    /// When requests that come at 0, of so many bytes each, a megabyte apart, are done, µs.
    fn at_once(words: &str, lens: &[u32]) -> Vec<u64> {
        let mut d = device(words);
        for (tag, len) in lens.iter().enumerate() {
            d.submit(read(tag as u64, (tag as u64) << 20, *len, 0));
        }
        let mut done = drain(&mut d);
        done.sort_unstable();
        done.iter().map(|(_, at)| at / 1000).collect()
    }

    #[test]
    fn a_bucket_of_requests_lets_a_burst_in_and_then_the_rate() {
        // 1000/s: the fourth and later ones come 1 ms apart, however many lanes there are.
        let words = "cloud latency_us=100 iops=1000 iops_burst=3 rate_mbs=0 bandwidth_mbs=0";
        assert_eq!(
            at_once(words, &[4096; 6]),
            [100, 100, 100, 1100, 2100, 3100]
        );
        // 256 KiB count once: one more byte counts twice.
        let lens = [262_144, 262_145, 4096, 4096];
        assert_eq!(at_once(words, &lens), [100, 100, 1100, 2100]);
        // One that takes more than the bucket holds: let in when that is full, and its debt is paid before the next.
        let lens = [4096, 1 << 20, 4096];
        assert_eq!(at_once(words, &lens), [100, 1100, 3100]);
        let halved = format!("{words} scale=0.5");
        assert_eq!(at_once(&halved, &[4096; 5]), [50, 50, 50, 550, 1050]);
    }

    #[test]
    fn a_bucket_of_requests_fills_up_in_a_pause() {
        let mut d = device("cloud latency_us=0 iops=1000 iops_burst=2 rate_mbs=0 bandwidth_mbs=0");
        let ms = |ms: u64| ms * 1_000_000;
        // Two at once, one a millisecond later: it is empty at 2 ms. At 3 ms it has one, at 9 ms two and no more.
        for (tag, at) in [0, 0, 1, 3, 9, 9, 9].into_iter().enumerate() {
            d.submit(read(tag as u64, 0, 4096, ms(at)));
        }
        let done: Vec<u64> = drain(&mut d).iter().map(|d| d.1).collect();
        assert_eq!(done, [0, 0, 1, 3, 9, 9, 10].map(ms));
    }

    #[test]
    fn a_bucket_of_bytes_lets_a_burst_in_and_then_the_rate() {
        // 100 MB/s with 1 MB saved up: ten of 200,000 bytes, five at once and five 2 ms apart.
        let words = "cloud latency_us=100 iops=0 rate_mbs=100 rate_burst_mb=1 bandwidth_mbs=0";
        let done = at_once(words, &[200_000; 10]);
        let steady = (1..=5).map(|k| 100 + 2000 * k);
        let expected: Vec<u64> = [100; 5].into_iter().chain(steady).collect();
        assert_eq!(done, expected);
        // Nothing is saved up: each waits for what the one before took.
        let strict = format!("{words} rate_burst_mb=0");
        assert_eq!(at_once(&strict, &[200_000; 3]), [100, 2100, 4100]);
    }

    #[test]
    fn the_stricter_bucket_counts() {
        // 2000 requests/s, 100 MB/s: requests of 4 KB wait for their number, those of 200 KB for their bytes.
        let words = "cloud latency_us=100 iops=2000 iops_burst=1 rate_mbs=100 rate_burst_mb=0 bandwidth_mbs=0";
        assert_eq!(at_once(words, &[4000; 3]), [100, 600, 1100]);
        assert_eq!(at_once(words, &[200_000; 3]), [100, 2100, 4100]);
        // Cached writes are let in as reads are.
        let mut d = device(words);
        for tag in 0..2 {
            let write = true;
            d.submit(Request {
                write,
                ..read(tag, 0, 4000, 0)
            });
        }
        assert_eq!(drain(&mut d), [(0, 0), (1, 500_000)]);
    }

    #[test]
    fn presets_of_volumes_have_the_published_rates() {
        for (words, len, rate) in [
            ("gp3", 4096, 3000.0),
            ("gp3", 1 << 20, 125.0),
            ("pd-balanced", 4096, 3600.0),
            ("pd-balanced", 1 << 20, 168.0),
        ] {
            let last = at_once(words, &vec![len; 2000])[1999];
            let got = 2000.0 * 1e6 / last as f64;
            assert!(
                (got / rate - 1.0).abs() < 0.005,
                "{words}, {len} bytes: {got}/s"
            );
        }
        // A second's worth is saved up: with the link's 1250 MB/s and 64 lanes twice as many pass in the first second.
        let done = at_once("cloud", &vec![4096; 9000]);
        let first = done.iter().filter(|at| **at < 1_000_000).count();
        assert!((5950..=6000).contains(&first), "{first}");
        let steady = done[8999] - done[7999];
        assert!((333_000..334_000).contains(&steady), "{steady}");
    }

    #[test]
    fn the_first_touch_of_a_block_takes_longer() {
        let mut d = device("snapshot iops=0 rate_mbs=0 bandwidth_mbs=0");
        let us = |us: u64| us * 1000;
        let at = 100_000;
        let block = 512 << 10;
        d.submit(read(0, 0, 4096, 0));
        // While the block is fetched another comes for it, and one for two blocks that nobody has touched.
        d.submit(read(1, block - 4096, 4096, us(14_000)));
        d.submit(read(2, block, 2 * block as u32, us(14_500)));
        // Both are there later, to their last byte; the next block is not.
        d.submit(read(3, 3 * block - 4096, 4096, us(at)));
        d.submit(read(4, 3 * block, 4096, us(at)));
        // One that has part of its bytes waits for the rest. A write is a touch, too, that nobody waits for.
        d.submit(read(5, 4 * block - 4096, 8192, us(2 * at)));
        let write = true;
        d.submit(Request {
            write,
            ..read(6, 9 * block, 4096, us(3 * at))
        });
        d.submit(read(7, 9 * block, 4096, us(4 * at)));
        let mut done = drain(&mut d);
        done.sort_unstable();
        let done: Vec<u64> = done.iter().map(|d| d.1 / 1000).collect();
        let late = [15_000, 15_000, 29_500, at + 800, at + 15_000];
        assert_eq!(done[..5], late);
        assert_eq!(done[5..], [2 * at + 15_000, 3 * at, 4 * at + 800]);
        // The snapshot again.
        let model = d.model().clone();
        d.set_model(model, us(5 * at));
        d.submit(read(8, 0, 4096, us(5 * at)));
        assert_eq!(drain(&mut d), [(8, us(5 * at + 15_000))]);
    }

    #[test]
    fn the_link_is_held_up_by_nobody_who_is_not_ready() {
        // Two first touches of 1 MB each, 1 ms on the link, and between them a read of what is there.
        let mut d = device("snapshot iops=0 rate_mbs=0 bandwidth_mbs=1000 first_kb=1024");
        let ms = |ms: u64| ms * 1_000_000;
        d.submit(read(0, 0, 1_000_000, 0));
        d.submit(read(1, 0, 500_000, ms(100)));
        d.submit(read(2, 1 << 20, 1_000_000, ms(101)));
        d.submit(read(3, 0, 500_000, ms(102)));
        // Ready at 115.9 ms, a moment before the second first touch, which then waits for the link.
        d.submit(read(4, 0, 500_000, 115_100_000));
        let done = drain(&mut d);
        let us = |us: u64| us * 1000;
        let expected = [
            (0, us(16_000)),
            (1, us(101_300)),
            (3, us(103_300)),
            (4, us(116_400)),
            (2, us(117_400)),
        ];
        assert_eq!(done, expected);
        // A slow one of a tail doesn't hold others up either.
        let mut d = device("remote tail_p=0.1 tail_x=1000");
        for tag in 0..100 {
            d.submit(read(tag, 0, 4096, tag * 1_000_000));
        }
        let late = drain(&mut d)
            .iter()
            .filter(|(tag, at)| at - tag * 1_000_000 > 600_000)
            .count();
        assert!((3..25).contains(&late), "{late}");
    }

    #[test]
    fn blocks_that_are_fetched_hold_their_lanes() {
        // Two lanes: the third begins when the first is through, and its block is fetched from then on.
        let words = "snapshot parallel=2 iops=0 rate_mbs=0 bandwidth_mbs=0 first_kb=1024";
        assert_eq!(at_once(words, &[4096; 3]), [15_000, 15_000, 30_000]);
    }

    #[test]
    fn a_new_model_lets_waiting_requests_go() {
        let mut hdd = device("hdd");
        for tag in 0..4 {
            hdd.submit(read(tag, tag << 30, 4096, 0));
        }
        hdd.advance(0);
        hdd.set_model(Model::default(), 5);
        let done = drain(&mut hdd);
        assert_eq!(done.len(), 4);
        assert!(done[..3].iter().all(|d| d.1 == 5), "{done:?}");
    }
}
