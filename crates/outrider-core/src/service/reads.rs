//! Reads: from an event to foreseen ranges, and what the hook need not tell next.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outrider_sys::cache::CacheStatError;
use outrider_sys::units::{InodeKey, PAGE};

use super::kernel::Kernel;
use super::left_to_kernel::Way;
use super::still_cached::Counted;
use super::{FileState, Position, Service, bounds};
use crate::device::READAHEAD;
use crate::engine::{Class, Overtaken};
use crate::intent::Intent;
use crate::sharing::ANEW;
use crate::shm::{self, Event, FLAG_SEQUENTIAL, Figure, Origin, Slot, lost};
use crate::source::dense::{self, Case, Draws, Held, Price, Verdict};
use crate::source::mapped::Mapped;
use crate::source::{Arrival, Foresight, Limits};
use crate::view::PageRange;

/// Reads that are not told after each that is, when a program is first found to read what is cached; it doubles up to 64 times
/// as much.
const RARELY_AT_FIRST: u16 = 16;

/// A read that was told, and what was made of it.
struct Heard {
    /// Entry of the process.
    i: usize,
    key: InodeKey,
    e: Event,
    arrival: Arrival,
    /// Of the file, bytes.
    size: u64,
    /// Reads that were agreed on not to be told.
    given: u32,
    /// Reads that were not told before this one: as agreed on, in all, and those that came too fast to be looked at.
    unheard: u16,
    skipped: u64,
    overlooked: u64,
    /// There is one stream on the descriptor.
    alone: bool,
    /// It belongs to a tile: a line of that which passes a place has not passed those of the lines beside it.
    in_tile: bool,
    /// The reader's position tells what it has passed.
    passes: bool,
    /// A source has claimed it, and has to hear the next, too.
    claimed: bool,
    limits: Limits,
    foresight: Foresight,
}

impl Heard {
    /// Bytes that were read.
    fn len(&self) -> u64 {
        self.e.len.min(self.size.saturating_sub(self.e.offset))
    }
}

impl<K: Kernel> Service<K> {
    /// A process has told of a read.
    pub(super) fn read(&mut self, i: usize, e: Event) {
        self.header().events.fetch_add(1, Relaxed);
        self.has_moved(i, e.fd, Some(e.offset));
        let Some(key) = self.known(i, &e) else {
            return;
        };
        if self.told_before(i, key, e) {
            return;
        }
        let Some(mut heard) = self.observe(i, key, e) else {
            return;
        };
        self.account_for(&heard);
        if self.leave_to_hooks(key, e.offset) {
            return;
        }
        self.narrow_line(&mut heard);
        let silence = self.judge(&mut heard);
        let skip = match heard.foresight.random {
            true => self.follow_random(&mut heard, silence),
            false => silence,
        };
        let shared = self.shared.clone();
        let slot = &shared.proc(i).slots[usize::from(e.fd)];
        if !heard.foresight.random && !self.follow_stream(&mut heard, slot) {
            // What was refused is asked for at the next read: keep listening.
            self.listen(i, e.fd, slot, 0);
            self.hush(slot, i, e.fd, Foresight::default(), (0, heard.given));
            return;
        }
        self.fall_silent(heard, slot, skip);
    }

    /// Takes a read in: what its descriptor's detector makes of it, and of the reads that were not told before.
    fn observe(&mut self, i: usize, key: InodeKey, e: Event) -> Option<Heard> {
        let shared = self.shared.clone();
        let slot = &shared.proc(i).slots[usize::from(e.fd)];
        let mut limits = self.limits(key);
        self.reads_now(i, key);
        let arrival = self.seen(key, e.offset, e.len);
        let device = self.device(key);
        let interarrival = self.desc(i, e.fd).map(|d| d.interarrival);
        limits.sparse = interarrival.map_or(0, |interarrival| self.sparse(key, &interarrival));
        self.may_have_grown(key, &e)?;
        self.stays_cached(key, &e);
        let size = self.files.get(&key)?.size;
        let state = self.procs[i].as_mut()?;
        let desc = state.descs.get_mut(&e.fd)?;
        // Events that were on their way when the silence was agreed on come first; only what was used of it counts.
        let given = std::mem::take(&mut desc.skip_given);
        let left = slot.skip.load(Relaxed);
        let unheard = desc.catch_up(e.offset, shared.proc(i));
        let skipped = match unheard {
            0 if left == 0 => u64::from(given),
            rarely => u64::from(rarely),
        };
        let overlooked = std::mem::take(&mut desc.overlooked);
        let alike = skipped + overlooked == 0 && !desc.detector.streams.skips();
        let beside = alike && self.engine.is_asked(device);
        desc.interarrival.told(alike, beside, self.kernel.now());
        let foresight = desc
            .detector
            .access(e.offset, e.len, e.extra, arrival, size, &limits);
        Some(Heard {
            i,
            key,
            e,
            arrival,
            size,
            given,
            unheard,
            skipped,
            overlooked,
            alone: desc.detector.streams.only().is_some(),
            in_tile: desc.detector.in_tile(),
            passes: desc.detector.streams.sole() && !desc.detector.in_band(),
            claimed: false,
            limits,
            foresight,
        })
    }

    /// A read beyond the end that is known: the file may have grown. `None` where there is no such file.
    fn may_have_grown(&mut self, key: InodeKey, e: &Event) -> Option<()> {
        if e.offset >= self.files.get(&key)?.size {
            let handle = self.handle(key);
            let size = handle.and_then(|h| self.kernel.size(&h));
            if let (Some(size), Some(file)) = (size, self.files.get_mut(&key)) {
                file.size = size;
            } else if self.files.get(&key).is_some_and(|f| f.size == 0) {
                self.ask_server(key, false);
            }
        }
        Some(())
    }

    /// Counts a read, and those that were not told before it.
    fn account_for(&mut self, heard: &Heard) {
        let (i, key, f) = (heard.i, heard.key, &heard.foresight);
        // Of a stream that went on silently it is known what was read meanwhile; of random reads only how many.
        let counted = if f.random { 1 + heard.skipped } else { 1 };
        // Reads that were told rarely are of the kind of the one that was.
        let unheard = u64::from(heard.unheard).saturating_mul(heard.e.len);
        let unheard = if f.random { unheard } else { 0 };
        self.has_read(i, counted, heard.len().saturating_mul(counted));
        self.count(key, Figure::Hit, unheard);
        if let Some(p) = &f.passed {
            self.pass(i, key, p.span.clone(), p.stride, p.len);
        }
        self.pass_over(key, &f.skipped);
    }

    /// Of a line of tiles that was fetched and is gone again less is asked for from now on.
    fn narrow_line(&mut self, heard: &mut Heard) {
        let e = heard.e;
        if heard.foresight.line && self.line_is_lost(heard.key, &heard.foresight.ranges, e.len) {
            let (size, limits) = (heard.size, heard.limits);
            let desc = self.desc_mut(heard.i, e.fd);
            let ranges = desc.and_then(|d| d.detector.narrow(e.offset, size, &limits));
            if let Some(ranges) = ranges {
                heard.foresight.ranges = ranges;
            }
        }
    }

    /// Whether the read is of a kind that is worth hearing: so many of the next ones need not be told.
    fn judge(&mut self, heard: &mut Heard) -> u32 {
        let random = heard.foresight.random;
        // Only what shows no pattern can wait until the service looks by itself.
        if !random {
            self.reading.read(heard.len());
        }
        // What is streamed, or will be when there is room, has no order either, and is worth hearing.
        let streams = self.files.get(&heard.key).is_some_and(|f| {
            f.verdict == Verdict::Later || f.streamed && f.view.unused_pages() > 0
        });
        let Some(state) = self.procs[heard.i].as_mut() else {
            return heard.foresight.skip;
        };
        let desc = state.descs.get(&heard.e.fd);
        heard.claimed = desc.is_some_and(|d| d.detector.is_claimed());
        let ordered = !random || streams || heard.claimed;
        // Many descriptors with few reads each are judged together.
        let together = state.sampling.heard(ordered);
        let Some(desc) = state.descs.get_mut(&heard.e.fd) else {
            return heard.foresight.skip;
        };
        let silence = desc.sampling.heard(ordered);
        let silence = if ordered { 0 } else { silence.max(together) };
        heard.foresight.skip.max(silence)
    }

    /// A read in no order: it may add up to most of the file, or lie in a neighbourhood that is fetched as a whole. So many of the next reads need not be told.
    fn follow_random(&mut self, heard: &mut Heard, silence: u32) -> u32 {
        let (i, key, e) = (heard.i, heard.key, heard.e);
        self.reads_windows(i, None);
        let skipped = heard.skipped + heard.overlooked;
        let onward = heard.foresight.onward;
        let skip = self.random_read(
            key,
            e.offset,
            e.len,
            heard.arrival,
            skipped,
            silence,
            onward,
        );
        let around = std::mem::take(&mut heard.foresight.around);
        if !around.is_empty() && self.memory.is_aggressive() {
            // What is on its way or waits to be read was fetched for this.
            let ours = self.files.get(&key).map_or(0, |f| {
                let pages = around
                    .iter()
                    .map(|r| PageRange::from_bytes(r.start, r.end - r.start));
                pages.map(|p| f.view.count(p).unused_pages).sum()
            });
            let plan = self.fetch(Intent::new(key, &around, Origin::Sources));
            let desc = self.desc_mut(i, e.fd);
            if let Some(desc) = desc.filter(|_| plan.refused_at.is_none()) {
                desc.detector.asked(plan.bytes + ours * PAGE);
            }
        }
        if heard.claimed { 0 } else { skip }
    }

    /// A read in order: has what comes next fetched. `false` where that was refused.
    fn follow_stream(&mut self, heard: &mut Heard, slot: &Slot) -> bool {
        let (i, key, e) = (heard.i, heard.key, heard.e);
        if heard.foresight.ranges.is_empty() {
            return true;
        }
        if self.kernel_keeps_up(i, &e, key) {
            heard.foresight.ranges.clear();
            return true;
        }
        let end = e.offset + heard.len();
        let ranges = &mut heard.foresight.ranges;
        let forward = ranges.first().is_none_or(|r| r.start >= e.offset);
        let reader = heard.passes.then(|| -> Arc<dyn Overtaken> {
            Arc::new(Position {
                shared: self.shared.clone(),
                proc: i,
                fd: e.fd,
                generation: slot.generation.load(Relaxed),
                forward,
            })
        });
        let cut = self.cut(key, end, ranges);
        let out = self.fetch(Intent {
            reader,
            descriptor: Some((i, e.fd)),
            ..Intent::new(key, ranges, Origin::Streams)
        });
        let refused_at = out.refused_at.or(cut);
        if let Some(desc) = self.desc_mut(i, e.fd) {
            match refused_at {
                Some(at) => desc.detector.streams.retreat(at),
                None => desc.cached = out.bytes == 0,
            }
        }
        refused_at.is_none()
    }

    /// Agrees with the hook on what need not be told next: `skip` reads, and what the streams have asked for.
    fn fall_silent(&mut self, heard: Heard, slot: &Slot, skip: u32) {
        let Heard {
            i,
            key,
            e,
            size,
            limits,
            given,
            alone,
            in_tile,
            claimed,
            mut foresight,
            ..
        } = heard;
        let mut calm = None;
        if !foresight.random && self.desc(i, e.fd).is_some_and(|d| d.cached) {
            calm = self.look_further(i, e, size, &limits);
            if let Some(quiet) = calm.clone().filter(|_| alone) {
                foresight.quiet = quiet;
            }
        }
        let rarely = if in_tile || claimed {
            // Where lines begin has to be heard, and where neighbourhoods do.
            0
        } else if foresight.random {
            self.rarely_at_random(i, key, e)
        } else {
            self.rarely_in_order(i, e, calm.is_some(), size, &limits)
        };
        // SPEC CP3: in a steady state the next reads are not looked at.
        let (rarely, skip) = match self.config.predict.skip_when_steady {
            true => (rarely, skip),
            false => {
                foresight.quiet = 0..0;
                (0, 0)
            }
        };
        self.listen(i, e.fd, slot, rarely);
        self.hush(slot, i, e.fd, foresight, (skip, given));
    }

    /// The position was moved on over what a stream would have read.
    pub(super) fn sought(&mut self, i: usize, e: &Event) {
        let Some(key) = self.known(i, e) else {
            return;
        };
        // What costs less than a request's way may as well be read through.
        if e.len.saturating_sub(e.offset) <= self.model(self.device(key)).bandwidth_delay() {
            return;
        }
        let desc = self.desc_mut(i, e.fd);
        let Some(passed) = desc.and_then(|d| d.detector.streams.seek(e.offset, e.len)) else {
            return;
        };
        self.pass(i, key, passed.span, passed.stride, passed.len);
        self.pass_over(key, &(e.offset..e.len));
    }

    /// Whether the kernel's own readahead of the files that are being read at once keeps the device busy, or somebody else reads from a flash device. Then a
    /// stream that reads forward without gaps is left to it: it brings in large folios for a third of the processor's time, and beside others there is no more to be
    /// had than it gets.
    fn kernel_keeps_up(&mut self, i: usize, e: &Event, key: InodeKey) -> bool {
        let plain = self
            .desc(i, e.fd)
            .and_then(|d| d.detector.streams.latest())
            .is_some_and(|s| s.plain());
        if let Some(file) = self.files.get_mut(&key) {
            // It counts among those that are read.
            file.handle_used = self.kernel.now();
        }
        let left = self
            .device_facts(key)
            .leaves_to_kernel(Way::Stream { plain });
        let window = (plain && self.reading.files() == 1).then(|| self.mean_window(i, e, key));
        self.reads_windows(i, window);
        left
    }

    /// All that a process reads is one stream forward without gaps, ahead of which the kernel reads so many bytes at once; `None`: it is not.
    fn reads_windows(&mut self, i: usize, window: Option<u64>) {
        if let Some(state) = self.procs[i].as_mut() {
            state.window = window;
        }
    }

    /// Bytes of one of the requests by which the kernel brings in the whole of a file, on average.
    fn mean_window(&self, i: usize, e: &Event, key: InodeKey) -> u64 {
        let clip = self.devices.clip(key.dev);
        let window = self.window(i, e.fd).max(e.len.min(clip));
        let begins = match e.len > window / 4 {
            true => 0,
            false => ANEW,
        };
        let size = self.files.get(&key).map_or(0, |f| f.size);
        size.div_ceil(size.div_ceil(window).max(1) + begins)
    }

    /// Bytes that the kernel reads ahead at once for a descriptor.
    pub(super) fn window(&self, i: usize, fd: u16) -> u64 {
        let slot = self.shared.proc(i).slots.get(usize::from(fd));
        let flags = slot.map_or(0, |s| s.flags.load(Relaxed));
        match flags & FLAG_SEQUENTIAL != 0 {
            true => 2 * READAHEAD,
            false => READAHEAD,
        }
    }

    /// How many reads need not be told after each that is, for streams of which everything is cached far ahead. Less than half
    /// of what is known to be cached is passed unheard.
    fn rarely_in_order(
        &mut self,
        i: usize,
        e: Event,
        calm: bool,
        size: u64,
        limits: &Limits,
    ) -> u16 {
        let Some(desc) = self.desc_mut(i, e.fd) else {
            return 0;
        };
        desc.calm = if calm { desc.calm + 1 } else { 0 };
        if !calm {
            return 0;
        }
        let Some(stream) = desc.detector.streams.latest() else {
            return 0;
        };
        let over = if stream.stride > 0 {
            stream.front >= size
        } else {
            stream.front == 0
        };
        let step = stream.stride.unsigned_abs().max(stream.len).max(1);
        let known = if over {
            u64::MAX
        } else {
            stream.front.abs_diff(e.offset) / step / 2
        };
        let rarely = RARELY_AT_FIRST << desc.calm.min(6);
        let rarely = known.min(rarely.into()) as u16;
        if rarely < RARELY_AT_FIRST {
            return 0;
        }
        desc.detector.streams.keep_following(size, limits);
        rarely
    }

    /// The same for reads in no order. Streams that begin anew look like that for a moment: a file that was calm stays so while
    /// samples of it are cached.
    fn rarely_at_random(&mut self, i: usize, key: InodeKey, e: Event) -> u16 {
        let was = self.desc(i, e.fd).map_or(0, |d| d.rarely);
        let resident = self.files.get(&key).map_or(0, |f| f.resident);
        if resident > 1 {
            return was.max(RARELY_AT_FIRST << resident.min(6));
        }
        if was > 0 && self.sample(key, e.offset) == Some(true) {
            was
        } else {
            0
        }
    }

    /// Tells the hook how rarely to tell.
    fn listen(&mut self, i: usize, fd: u16, slot: &Slot, rarely: u16) {
        let shared = self.shared.clone();
        let Some(desc) = self.procs[i].as_mut().and_then(|p| p.descs.get_mut(&fd)) else {
            return;
        };
        self.stirred |= rarely == 0;
        if rarely == 0 && desc.rarely > 0 {
            desc.calm = 0;
        }
        desc.hear_rarely(rarely, slot, shared.proc(i));
    }

    /// What a stream will read next was cached already: looks how far that goes on, so that a hot file costs next to
    /// nothing. Returns what is quiet then.
    pub(super) fn look_further(
        &mut self,
        i: usize,
        e: Event,
        size: u64,
        limits: &Limits,
    ) -> Option<std::ops::Range<u64>> {
        const LOOKS: [u64; 2] = [4 << 20, 60 << 20];
        const PLACES: u64 = 16;
        /// Pages looked at in one place.
        const PLACE: u64 = 32;
        let desc = self.desc(i, e.fd)?;
        let (key, rarely) = (desc.key, desc.rarely > 0);
        let handle = self.handle(key)?;
        let stream = self.procs[i]
            .as_ref()?
            .descs
            .get(&e.fd)?
            .detector
            .streams
            .latest()
            .filter(|s| s.is_proven() || rarely)?;
        let (mut front, forward) = (stream.front, stream.stride > 0);
        let now = self.now_us();
        let file = self.files.get(&key)?;
        if file.blind {
            return None;
        }
        // A look-ahead that is still long needs no new look.
        let near = front.abs_diff(e.offset) < LOOKS[1] / 2;
        for len in LOOKS.into_iter().filter(|_| near) {
            let range = if forward {
                front.min(size)..front.saturating_add(len).min(size)
            } else {
                front.saturating_sub(len)..front
            };
            let pages = PageRange::from_bytes(range.start, range.end - range.start);
            // The near part is looked at page by page, the far one in places: counting the pages of 60 MB takes as long as
            // reading a megabyte of them.
            let places = if len == LOOKS[0] { 1 } else { PLACES };
            let step = pages.len().div_ceil(places).max(1);
            let look = step.min(if places == 1 { u64::MAX } else { PLACE });
            let cached = (0..places).all(|k| {
                let start = (pages.start + k * step).min(pages.end);
                let end = (start + look).min(pages.end);
                let counted = self.count_cached(&handle, PageRange::new(start, end).bytes());
                counted.is_ok_and(Counted::is_whole)
            });
            if pages.is_empty() || !cached {
                break;
            }
            if places == 1 {
                file.view.present(pages, now);
            }
            front = if forward { range.end } else { range.start };
        }
        let desc = self.desc_mut(i, e.fd)?;
        Some(
            desc.detector
                .streams
                .cached_up_to(front, e.offset, size, limits),
        )
    }

    pub(super) fn hush(
        &mut self,
        slot: &Slot,
        i: usize,
        fd: u16,
        f: Foresight,
        (skip, given): (u32, u32),
    ) {
        let quiet = f.quiet;
        // While a silence is being used up only reads arrive that were told before it: they don't end it.
        let left = slot.skip.load(Relaxed);
        let skip = if left > 0 { left } else { skip };
        slot.hush(quiet.start, quiet.end.saturating_sub(quiet.start), skip);
        if let Some(desc) = self.desc_mut(i, fd) {
            desc.skip_given = if left > 0 { given } else { skip };
        }
    }

    /// A read that fits no pattern. Returns how many reads to skip.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn random_read(
        &mut self,
        key: InodeKey,
        offset: u64,
        len: u64,
        arrival: Arrival,
        skipped: u64,
        skip: u32,
        onward: bool,
    ) -> u32 {
        let Some(file) = self.files.get_mut(&key) else {
            return skip;
        };
        let size = file.size;
        file.random
            .count(offset, len, arrival == Arrival::Missing, skipped, size);
        if file.streamed {
            // Every read is told while the streamed bytes are being used, without waking anybody.
            return if file.view.unused_pages() == 0 { 64 } else { 0 };
        }
        let reads = file.random.reads;
        if reads >= 16 && (file.resident > 0 || file.random.sampled.is_multiple_of(16)) {
            // Is the file cached already? Looked for where the program has not just read.
            let resident = self.sample(key, offset);
            if let Some(file) = self.files.get_mut(&key) {
                file.resident = if resident == Some(true) {
                    file.resident + 1
                } else {
                    0
                };
                if file.resident > 0 {
                    // Everything that is sampled is there: look ever more rarely, but keep looking.
                    return 16 << file.resident.min(6);
                }
            }
        }
        if self.mode >= shm::MODE_PREDICT_OPT
            && self.config.dense.enabled
            && self.memory.is_aggressive()
        {
            if reads >= 16 && arrival == Arrival::Missing {
                self.probe(key, offset, len);
            }
            // What reads that go onward have fallen in is behind them. Silence ends in time for the decision.
            if onward {
                return skip;
            }
            if let Some(due) = self.consider_streaming(key) {
                return skip.min(due.min(u32::MAX.into()) as u32);
            }
        }
        skip
    }

    /// Random reads alone bring no request of ours from which the device's latency could be learned, and what streaming is weighed against
    /// would be a guess: fetches a few blocks of the region that they fall in, one at a time.
    fn probe(&mut self, key: InodeKey, seed: u64, len: u64) {
        const PROBES: u32 = 4;
        let device = self.device(key);
        if self.model(device).samples() >= PROBES || self.engine.is_busy() {
            return;
        }
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let hull = file.random.hull.clone();
        let x = (seed ^ file.random.reads).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = hull.start + (x >> 11) % (hull.end - hull.start).max(1);
        let end = (at + len.min(file.chunk)).min(file.size);
        self.fetch(Intent {
            class: Class::Background,
            ..Intent::new(key, &[at..end], Origin::Dense)
        });
    }

    /// Whether a few places of the file, chosen by `seed`, are all cached; `None` where it can't be known.
    pub(super) fn sample(&mut self, key: InodeKey, seed: u64) -> Option<bool> {
        let handle = self.handle(key)?;
        let file = self.files.get_mut(&key)?;
        if file.blind {
            return None;
        }
        let hull = file.random.hull.clone();
        let span = (hull.end - hull.start).max(1);
        let mut x = seed ^ (u64::from(file.samples) << 17) ^ 0x9e37_79b9_7f4a_7c15;
        file.samples = file.samples.wrapping_add(1);
        let size = file.size;
        for _ in 0..4 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let at = (hull.start + (x >> 11) % span) / PAGE * PAGE;
            // It may have become shorter.
            let end = (at + (64 << 10)).min(size).max(at);
            match self.count_cached(&handle, at..end) {
                Ok(counted) if !counted.is_whole() => return Some(false),
                Ok(_) => {}
                Err(e) => {
                    self.no_cachestat(key, e);
                    return None;
                }
            }
        }
        Some(true)
    }

    pub(super) fn no_cachestat(&mut self, key: InodeKey, e: CacheStatError) {
        // It was let go of just then.
        if let CacheStatError::Other(_) = e {
            return;
        }
        self.header().lose(lost::CACHESTAT);
        if let Some(f) = self.files.get_mut(&key) {
            f.blind = true;
        }
    }

    /// Streams what random reads fall in, if that pays. Returns after how many reads it should be asked again at the latest.
    pub(super) fn consider_streaming(&mut self, key: InodeKey) -> Option<u64> {
        let due = self.files.get(&key)?;
        if due.random.reads < due.consider_at {
            return due.patience();
        }
        let region = due.random.region(due.size);
        let held = self.held(key, &region);
        let model = self.model(self.device(key));
        let file = self.files.get(&key)?;
        let pages = PageRange::from_bytes(region.start, region.end - region.start).len();
        let there = file.view.present_pages() + file.view.in_flight_pages();
        let there = held.map_or(there, |held| held.cached);
        let missing = pages.saturating_sub(there) * PAGE;
        let price = Price {
            latency_us: model.latency_us
                + file.random.bytes as f64 / file.random.reads.max(1) as f64 / model.bandwidth,
            bandwidth: model.bandwidth,
        };
        let (mut others, mut draws) = (0, Draws::default());
        let alike = |f: &&FileState| {
            f.key != key
                && f.openers > 0
                && f.random.reads >= dense::FEWEST
                && self.kernel.since(f.last_access) < Duration::from_secs(1)
        };
        for f in self.files.values().filter(alike) {
            let hull =
                PageRange::from_bytes(f.random.hull.start, f.random.hull.end - f.random.hull.start);
            let there = f.view.present_pages() + f.view.in_flight_pages();
            others = u64::saturating_add(others, hull.len().saturating_sub(there) * PAGE);
            draws = draws + f.random.draws();
        }
        let case = Case {
            missing,
            others,
            room: self.room(),
            grant: self.memory.total(),
            draws,
            held,
        };
        let investment = self.config.dense.investment;
        let file = self.files.get_mut(&key)?;
        let verdict = file.random.decide(case, price, investment);
        file.verdict = verdict;
        if verdict == Verdict::Now {
            let plan = self.fetch(Intent {
                class: Class::Background,
                ..Intent::new(key, &[region], Origin::Dense)
            });
            // Of what was refused because there was no room, the rest is asked for later.
            let begun = plan.bytes > 0 || plan.refused_at.is_none();
            let streamed = begun && !self.quiesce.is_quiesced();
            if let Some(file) = self.files.get_mut(&key) {
                file.streamed = streamed;
            }
            return Some(0);
        }
        // The kernel counts the pages of a large file in milliseconds.
        let reads = file.random.reads;
        file.consider_at = reads.saturating_add(match verdict {
            Verdict::After(wait) => wait,
            Verdict::No => reads / 2 + 64,
            _ => (reads / 16).max(8),
        });
        file.patience()
    }

    /// What the kernel holds of a file's region.
    fn held(&mut self, key: InodeKey, region: &std::ops::Range<u64>) -> Option<Held> {
        if self.files.get(&key)?.blind {
            return None;
        }
        let handle = self.handle(key)?;
        match self.kernel.counted(&handle, region.clone()) {
            Ok(stat) => {
                let unused = self.files.get(&key)?.view.unused_pages();
                Some(Held {
                    cached: stat.cached,
                    brought: (stat.cached + stat.evicted).saturating_sub(unused),
                })
            }
            // What has left the cache only cachestat tells.
            Err(CacheStatError::Unsupported) => None,
            Err(e) => {
                self.no_cachestat(key, e);
                None
            }
        }
    }

    /// Looks what was touched of a mapping, and has what comes next fetched: whether anything was, and whether anything was asked for.
    fn look_at_map(&mut self, i: usize, pid: u32, m: &mut Mapped) -> (bool, bool) {
        let key = m.file();
        // Touches are seen too late for their neighbourhood.
        let limits = Limits {
            delay: 0,
            ..self.limits(key)
        };
        let Some(size) = self.files.get(&key).map(|f| f.size) else {
            return (false, false);
        };
        let touched = match self.kernel.touched(pid, m) {
            Ok(touched) => touched,
            Err(e) => {
                // A process that has just ended is no reason to complain.
                if e.kind() == std::io::ErrorKind::PermissionDenied {
                    self.header().lose(lost::PAGEMAP);
                }
                return (false, false);
            }
        };
        let touching = !touched.is_empty();
        let mut ranges = Vec::new();
        self.reads_now(i, key);
        for r in touched {
            let len = r.end - r.start;
            let arrival = self.seen(key, r.start, len);
            let f = m.detector.access(r.start, len, 0, arrival, size, &limits);
            ranges.extend(f.ranges);
            if f.random {
                if let Some(file) = self.files.get_mut(&key) {
                    file.random.unrepeated = true;
                }
                self.random_read(key, r.start, len, arrival, 0, 0, f.onward);
            }
        }
        if ranges.is_empty() {
            return (touching, false);
        }
        let out = self.fetch(Intent::new(key, &ranges, Origin::Mapped));
        if let Some(at) = out.refused_at {
            m.detector.streams.retreat(at);
        }
        (touching, true)
    }

    /// SPEC CP11: memory-mapped files.
    pub(super) fn look_at_maps(&mut self) {
        let begun = self.kernel.now();
        let (mut active, mut touching) = (false, false);
        for i in self.active.clone() {
            let Some(state) = &mut self.procs[i] else {
                continue;
            };
            if state.mapped.is_empty() {
                continue;
            }
            let pid = state.pid;
            let mut mapped = std::mem::take(&mut state.mapped);
            let turn = self.kernel.now();
            let mut looked = 0;
            for m in &mut mapped {
                if self.kernel.since(turn) > bounds::TURN {
                    break;
                }
                looked += 1;
                let (touched, asked) = self.look_at_map(i, pid, m);
                (touching, active) = (touching | touched, active | asked);
            }
            // Those that there was no time for come first the next time.
            mapped.rotate_left(looked);
            if let Some(state) = &mut self.procs[i] {
                mapped.append(&mut state.mapped);
                state.mapped = mapped;
                state.has_taken(self.kernel.since(turn));
            }
        }
        self.map_pause = if active {
            Duration::from_micros(500)
        } else {
            // Touches that show no pattern are looked at more rarely, but not so rarely that one which begins is missed.
            let rarest = if touching { 16 } else { 100 };
            (self.map_pause * 2).min(Duration::from_millis(rarest))
        };
        // Where there is much to look at, half of the time is left for what is told.
        self.map_pause = self.map_pause.max(self.kernel.since(begun));
        self.last_map_look = self.kernel.now();
    }
}
