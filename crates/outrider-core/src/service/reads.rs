//! Reads: from an event to foreseen ranges, and what the hook need not tell next.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::cache::CacheStatError;
use outrider_sys::units::{ByteRange, InodeKey, PAGE};

use super::decide::{
    Calm, Decision, Disorder, Next, Order, ReadFacts, Silence, StreamFacts, Want, decide,
};
use super::descriptors::Untold;
use super::kernel::Kernel;
use super::left_to_kernel::DeviceFacts;
use super::random_reads::Unordered;
use super::still_cached::Counted;
use super::{Desc, Position, Service, credit};
use crate::asked::{Overtaken, When};
use crate::device::READAHEAD;
use crate::explain::Reason;
use crate::intent::Intent;
use crate::shm::{Event, FLAG_COPIES, FLAG_SEQUENTIAL, Figure, Origin, lost};
use crate::source::{Arrival, Foresight, Limits, Stream};
use crate::view::PageRange;

/// A read that was told, and what was made of it.
struct Heard {
    /// Entry of the process.
    i: usize,
    key: InodeKey,
    e: Event,
    arrival: Arrival,
    /// A part of it counts as missed.
    missed: bool,
    /// It is long, and nothing of it was there or on its way: it has only begun to be read.
    begins: bool,
    /// Of the file, bytes.
    size: u64,
    /// Reads that were not told before this one.
    untold: Untold,
    /// There is one stream on the descriptor.
    alone: bool,
    /// It belongs to a tile: a line of that which passes a place has not passed those of the lines beside it.
    in_tile: bool,
    /// The reader's position tells what it has passed.
    passes: bool,
    /// A source has claimed it, and has to hear the next, too.
    claimed: bool,
    /// What was known of the file's device before it.
    device: DeviceFacts,
    limits: Limits,
    foresight: Foresight,
    /// An epoch that had begun before any of the reads that were not told before it.
    since: u64,
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
            self.read_unseen(i, &e);
            return;
        };
        if let Some(remember) = &self.remember {
            remember.read(key, e.offset..e.offset.saturating_add(e.len));
        }
        if self.told_before(i, key, e) || self.is_read_directly(i, &e) {
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
        let (facts, order) = self.gather(&mut heard);
        // The read is one of those that are being read.
        let device = DeviceFacts {
            reading: self.reading,
            ..heard.device
        };
        let ordered = match &order {
            Order::Stream(stream) => Some(!stream.ahead.is_empty()),
            Order::None(_) => None,
        };
        let decision = decide(&facts, order, &device);
        if self.explain.is_wanted() && decision.intents.is_empty() {
            self.explain_nothing(&heard, ordered);
        }
        let silence = match self.apply(&heard, &decision) {
            true => {
                let next = self.look_on(&mut heard, &facts);
                let steady = self.config.predict.skip_when_steady;
                facts.silence(decision.skip, heard.foresight.quiet.clone(), next, steady)
            }
            // What was refused is asked for at the next read: keep listening.
            false => Silence::default(),
        };
        self.fall_silent(&heard, silence);
    }

    /// Takes a read in: what its descriptor's detector makes of it, and of the reads that were not told before.
    fn observe(&mut self, i: usize, key: InodeKey, e: Event) -> Option<Heard> {
        let shared = self.shared.clone();
        let slot = &shared.proc(i).slots[usize::from(e.fd)];
        let facts = self.device_facts(key);
        let mut limits = self.limits_on(&facts, key);
        self.reads_now(i, key);
        let begins = self.begins_from_nothing(key, &e);
        let when = self.asked_at(i, &e);
        let (arrival, missed) = self.seen(key, e.offset, e.len, &when);
        let device = self.device(key);
        let interarrival = self.desc(i, e.fd).map(|d| d.interarrival());
        limits.sparse =
            interarrival.map_or(0, |interarrival| self.sparse(&facts.model, &interarrival));
        self.may_have_grown(key, &e)?;
        self.stays_cached(key, &e);
        let size = self.files.get(&key)?.size();
        let state = self.processes.get_mut(i)?;
        let desc = state.desc_mut(e.fd)?;
        let since = desc.hears(when.epoch());
        let untold = desc.take_in(e.offset, slot.skip.load(Relaxed), shared.proc(i));
        let alike = untold.is_none() && !desc.detector.streams.skips();
        let beside = alike && self.engine.is_asked(device);
        desc.told(alike, beside, self.kernel.now());
        let foresight = desc
            .detector
            .access(e.offset, e.len, e.extra, arrival, size, &limits);
        let streams = &desc.detector.streams;
        let alone = streams.only().is_some();
        let in_tile = desc.detector.in_tile();
        let passes = streams.sole() && !desc.detector.in_band();
        let read = credit::Read {
            len: e.len,
            arrival,
            skipped: untold.skipped,
            plain_us: match foresight.random {
                true => None,
                false => credit::Read::plain_us(streams, e.len, e.len, &limits.funds),
            },
            funds: limits.funds,
            now: limits.now,
        };
        self.account_for_read(key, &read, &foresight);
        Some(Heard {
            i,
            key,
            e,
            arrival,
            missed: missed > 0,
            begins,
            size,
            untold,
            alone,
            in_tile,
            passes,
            claimed: false,
            device: facts,
            limits,
            foresight,
            since,
        })
    }

    /// Nothing is asked for because of a read, which is one of a stream that goes on (`Some(true)`), of one of which all is asked for, or of none (`None`).
    fn explain_nothing(&self, heard: &Heard, ordered: Option<bool>) {
        let file = self.files.get(&heard.key);
        let streamed = file.is_some_and(|f| f.random.is_begun() || f.random.resident() > 0);
        let ahead = file.is_some_and(|f| f.view.unused_pages() > 0);
        let desc = self.desc(heard.i, heard.e.fd);
        let stream = desc.and_then(|desc| desc.detector.streams.latest());
        let left = heard.missed && stream.is_some_and(Stream::is_left);
        match ordered {
            Some(true) => self.leaves(heard.key, Reason::Kernel),
            // Where something is ahead it is that for which the credit was spent.
            Some(false) if heard.limits.funds.left_us <= 0.0 && !ahead => {
                self.leaves(heard.key, Reason::NoCredit);
            }
            Some(false) if left && !ahead => self.leaves(heard.key, Reason::Kernel),
            None if heard.arrival == Arrival::Missing && !streamed => {
                self.leaves(heard.key, Reason::NoOrder);
            }
            _ => {}
        }
    }

    /// When the program asked for what it tells that it reads: where the kernel copies that for it, before the call.
    pub(super) fn asked_at(&self, i: usize, e: &Event) -> When {
        let desc = self.desc(i, e.fd);
        let copied = desc.filter(|desc| self.copies(i, e.fd, desc));
        copied.map_or(self.hearing, |desc| desc.copied(e.offset))
    }

    /// When a descriptor asked for what it has read since this epoch had begun without telling.
    pub(super) fn silent_since(&self, i: usize, fd: u16, epoch: u64) -> When {
        // Of copies the place is told when they are made.
        let desc = self.desc(i, fd).filter(|desc| !self.copies(i, fd, desc));
        let reader = desc.map(|desc| (i, fd, desc.generation));
        When::Since { epoch, reader }
    }

    /// Whether what a descriptor tells that it reads may have been copied within the kernel by then.
    pub(super) fn copies(&self, i: usize, fd: u16, desc: &Desc) -> bool {
        let slot = self.shared.proc(i).slots.get(usize::from(fd));
        desc.is_copied() || slot.is_some_and(|s| s.flags.load(Relaxed) & FLAG_COPIES != 0)
    }

    /// Whether a read is longer than the kernel's requests for it, and finds nothing of it there or on its way. Not one of more than may be on its way at once: what is sent to
    /// whom it takes long to get there is told of as a whole.
    fn begins_from_nothing(&self, key: InodeKey, e: &Event) -> bool {
        let clip = self.devices.clip(key.dev);
        let most = self.config.engine.in_flight_max.0;
        (clip + 1..=most).contains(&e.len)
            && self.files.get(&key).is_some_and(|file| {
                let known = file.view.count(PageRange::from_bytes(e.offset, e.len));
                known.present_pages + known.in_flight_pages == 0
            })
    }

    /// A read beyond the end that is known: the file may have grown. `None` where there is no such file.
    fn may_have_grown(&mut self, key: InodeKey, e: &Event) -> Option<()> {
        if e.offset >= self.files.get(&key)?.size() {
            let handle = self.handle(key);
            let size = handle.and_then(|h| self.kernel.size(&h));
            if let (Some(size), Some(file)) = (size, self.files.get_mut(&key)) {
                file.set_size(size);
            } else if self.files.get(&key).is_some_and(|f| f.size() == 0) {
                self.ask_server(key, false);
            }
        }
        Some(())
    }

    /// Counts a read, and those that were not told before it.
    fn account_for(&mut self, heard: &Heard) {
        let (i, key, f) = (heard.i, heard.key, &heard.foresight);
        // Of a stream that went on silently it is known what was read meanwhile; of random reads only how many.
        let counted = if f.random {
            1 + heard.untold.skipped
        } else {
            1
        };
        // Reads that were told rarely are of the kind of the one that was.
        let unheard = u64::from(heard.untold.rarely).saturating_mul(heard.e.len);
        let unheard = if f.random { unheard } else { 0 };
        self.has_read(i, counted, heard.len().saturating_mul(counted));
        // Those that were not told were found cached before that was agreed on, where anything stays so.
        let file = self.files.get(&key);
        let figure = match file.is_some_and(|f| f.served.never_caches()) {
            true => Figure::Miss,
            false => Figure::Cached,
        };
        self.count(key, figure, unheard);
        if let Some(p) = &f.passed {
            let when = self.silent_since(i, heard.e.fd, heard.since);
            self.pass(i, key, (p.span.clone(), p.stride, p.len), &when);
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
            let random = &f.random;
            random.is_to_be_streamed() || random.is_streamed() && f.view.unused_pages() > 0
        });
        let Some(state) = self.processes.get_mut(heard.i) else {
            return heard.foresight.skip;
        };
        let desc = state.desc(heard.e.fd);
        heard.claimed = desc.is_some_and(|d| d.detector.is_claimed());
        let ordered = !random || streams || heard.claimed;
        let silence = state.heard(heard.e.fd, ordered).unwrap_or(0);
        heard.foresight.skip.max(silence)
    }

    /// What there is to decide by.
    fn gather(&mut self, heard: &mut Heard) -> (ReadFacts, Order) {
        let silence = self.judge(heard);
        let order = match heard.foresight.random {
            true => Order::None(self.disorder(heard)),
            false => Order::Stream(self.stream_facts(heard)),
        };
        let facts = ReadFacts {
            len: heard.e.len,
            claimed: heard.claimed,
            in_tile: heard.in_tile,
            silence,
        };
        (facts, order)
    }

    /// A read in no order: it may add up to most of the file, or lie in a neighbourhood that is fetched as a whole.
    fn disorder(&mut self, heard: &mut Heard) -> Disorder {
        let read = Unordered {
            offset: heard.e.offset,
            len: heard.e.len,
            arrival: heard.arrival,
            skipped: heard.untold.skipped + heard.untold.overlooked,
            onward: heard.foresight.onward,
            unrepeated: false,
        };
        let mut disorder = self.take_in_random(heard.key, &read).unwrap_or_default();
        if self.memory.is_aggressive() {
            disorder.around = std::mem::take(&mut heard.foresight.around);
        }
        disorder
    }

    /// A read in order.
    fn stream_facts(&mut self, heard: &mut Heard) -> StreamFacts {
        let (i, key, e) = (heard.i, heard.key, heard.e);
        let ahead = std::mem::take(&mut heard.foresight.ranges);
        if let Some(file) = self.files.get_mut(&key).filter(|_| !ahead.is_empty()) {
            // It counts among those that are read, whoever fetches what comes next.
            file.hold.touch(self.kernel.now());
        }
        let stream = self.desc(i, e.fd).and_then(|d| d.detector.streams.latest());
        StreamFacts {
            size: heard.size,
            plain: stream.is_some_and(|s| s.plain()),
            reach: self.reach(key, e.offset + heard.len(), &ahead),
            window: self.window(i, e.fd),
            ahead,
        }
    }

    /// Carries out what was decided. `false` where what a stream needs was refused.
    fn apply(&mut self, heard: &Heard, decision: &Decision) -> bool {
        let (i, key) = (heard.i, heard.key);
        if let (Some(window), Some(state)) = (decision.window, self.processes.get_mut(i)) {
            state.reads_windows(window);
        }
        // The file may be held because of others.
        if !decision.intents.is_empty() && !self.stands(i) {
            return true;
        }
        let mut granted = true;
        for want in &decision.intents {
            match want.origin {
                Origin::Streams => granted = self.ask_for_stream(heard, want, decision.cut),
                Origin::Sources => self.ask_around(heard, want),
                _ => self.stream_region(key, want),
            }
        }
        granted
    }

    /// Has what a source foresees beside a read fetched.
    fn ask_around(&mut self, heard: &Heard, want: &Want) {
        // What is on its way or waits to be read was fetched for this.
        let ours: u64 = self.files.get(&heard.key).map_or(0, |f| {
            let pages = want.ranges.iter();
            let pages = pages.map(|r| PageRange::from_bytes(r.start, r.end - r.start));
            pages.map(|p| f.view.count(p).unused_pages).sum()
        });
        let plan = self.fetch(want.of(heard.key));
        let desc = self.desc_mut(heard.i, heard.e.fd);
        if let Some(desc) = desc.filter(|_| plan.refused_at.is_none()) {
            desc.detector.asked(plan.bytes + ours * PAGE);
        }
    }

    /// Has what comes next in a stream fetched, which was cut there. `false` where that, or more, was refused.
    fn ask_for_stream(&mut self, heard: &Heard, want: &Want, cut: Option<u64>) -> bool {
        let (i, key, e) = (heard.i, heard.key, heard.e);
        let first = want.ranges.first();
        // Ahead of what is read without gaps the kernel reads as much once more.
        let clip = self.devices.clip(key.dev);
        let streams = self.desc(i, e.fd).map(|d| &d.detector.streams);
        let plain = streams.and_then(|s| s.latest()).is_some_and(|s| s.plain());
        let stream = u64::from(e.fd) << 32 | streams.map_or(0, |s| s.which()) as u64;
        let in_flight = heard.len().min(clip) * if plain { 2 } else { 1 };
        if let Some(process) = self.processes.get_mut(i) {
            let now = self.kernel.now();
            process.reads_at_once(in_flight, now);
            if plain {
                process.streams(stream, now);
            }
        }
        let forward = first.is_none_or(|r| r.start >= e.offset);
        let is_long = heard.len() > heard.limits.funds.long;
        let long = if is_long { heard.len() } else { 0 };
        let reader = heard.passes.then(|| -> Arc<dyn Overtaken> {
            let slot = &self.shared.proc(i).slots[usize::from(e.fd)];
            Arc::new(Position {
                shared: self.shared.clone(),
                proc: i,
                fd: e.fd,
                generation: slot.generation.load(Relaxed),
                forward,
                len: heard.len(),
                long,
            })
        });
        let own = PageRange::from_bytes(e.offset, heard.len());
        let file = self.files.get(&key).filter(|_| heard.begins);
        let view = file.map(|file| file.view.clone());
        if let Some(view) = &view {
            // It counts as read, and most of it is not asked for yet.
            let _ = view.evicted(own);
        }
        let out = self.fetch(Intent {
            reader,
            descriptor: Some((i, e.fd)),
            ..want.of(key)
        });
        if view.is_some() {
            self.uses_own(key, own);
        }
        let refused_at = out.refused_at.or(cut);
        if plain && heard.missed && out.bytes == 0 && out.refused_at.is_none() {
            // Its readahead was there first.
            self.leaves(key, Reason::Kernel);
        }
        self.stake(i, e.fd, key, &heard.limits.funds, &out);
        if let Some(desc) = self.desc_mut(i, e.fd) {
            match refused_at {
                Some(at) => desc.detector.streams.retreat(at),
                None => desc.found_cached(out.bytes == 0),
            }
        }
        refused_at.is_none()
    }

    /// Looks what is known of what comes next.
    fn look_on(&mut self, heard: &mut Heard, facts: &ReadFacts) -> Next {
        let (i, key, e) = (heard.i, heard.key, heard.e);
        if heard.foresight.random {
            let rarely = self.desc(i, e.fd).map_or(0, Desc::rarely);
            let resident = self.files.get(&key).map_or(0, |f| f.random.resident());
            let asks = facts.may_be_told_rarely() && resident < 2 && rarely > 0;
            return Next::Disorder {
                rarely,
                resident,
                cached: asks && self.sample(key, e.offset) == Some(true),
            };
        }
        let was_cached = self.desc(i, e.fd).is_some_and(Desc::is_cached);
        let quiet = match was_cached {
            true => self.look_further(i, e, heard.size, &heard.limits),
            false => None,
        };
        let calm = quiet.is_some();
        if let Some(quiet) = quiet.filter(|_| heard.alone) {
            heard.foresight.quiet = quiet;
        }
        let desc = self.desc_mut(i, e.fd);
        let Some(desc) = desc.filter(|_| facts.may_be_told_rarely()) else {
            return Next::Stream(None);
        };
        let times = desc.calms(calm);
        let stream = desc.detector.streams.latest().filter(|_| calm);
        let stream = stream.map(|s| (s.stride, s.len, s.front));
        Next::Stream(stream.map(|stream| Calm::new(times, stream, e.offset, heard.size)))
    }

    /// Agrees with the hook on what need not be told next.
    fn fall_silent(&mut self, heard: &Heard, silence: Silence) {
        let (i, e) = (heard.i, heard.e);
        let shared = self.shared.clone();
        let proc = shared.proc(i);
        let slot = &proc.slots[usize::from(e.fd)];
        let desc = self.processes.get_mut(i).and_then(|p| p.desc_mut(e.fd));
        let Some(desc) = desc else { return };
        self.turns.stir(silence.wakes());
        if silence.rarely > 0 && !heard.foresight.random {
            desc.detector
                .streams
                .keep_following(heard.size, &heard.limits);
        }
        desc.agree(silence, heard.untold.given, slot, proc);
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
        let since = desc.as_ref().map_or(0, |desc| desc.heard_after());
        let Some(passed) = desc.and_then(|d| d.detector.streams.seek(e.offset, e.len)) else {
            return;
        };
        let when = self.silent_since(i, e.fd, since);
        self.pass(i, key, (passed.span, passed.stride, passed.len), &when);
        self.pass_over(key, &(e.offset..e.len));
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

    /// What a stream will read next was cached already: looks how far that goes on, so that a hot file costs next to
    /// nothing. Returns what is quiet then.
    pub(super) fn look_further(
        &mut self,
        i: usize,
        e: Event,
        size: u64,
        limits: &Limits,
    ) -> Option<ByteRange> {
        const LOOKS: [u64; 2] = [4 << 20, 60 << 20];
        const PLACES: u64 = 16;
        /// Pages looked at in one place.
        const PLACE: u64 = 32;
        let desc = self.desc(i, e.fd)?;
        let (key, rarely) = (desc.key, desc.rarely() > 0);
        let handle = self.handle(key)?;
        let stream = self
            .desc(i, e.fd)?
            .detector
            .streams
            .latest()
            .filter(|s| s.is_proven() || rarely)?;
        let (mut front, forward) = (stream.front, stream.stride > 0);
        let now = self.now_us();
        let file = self.files.get(&key)?;
        if file.is_blind() {
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
                file.looked(pages, self.kernel_reads_ahead(key));
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

    pub(super) fn no_cachestat(&mut self, key: InodeKey, e: CacheStatError) {
        // It was let go of just then.
        if let CacheStatError::Other(_) = e {
            return;
        }
        self.header().lose(lost::CACHESTAT);
        if let Some(f) = self.files.get_mut(&key) {
            f.set_blind();
        }
    }
}
