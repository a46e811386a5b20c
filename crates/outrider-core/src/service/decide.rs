//! What a read comes to: what is asked for, and what its hook need not tell next. Facts in, a decision out; nothing here asks the kernel or knows the time.
//!
//! There are two decisions, because what a hook may be silent about depends on what came of asking: [`decide`] says what is to be fetched, and
//! [`ReadFacts::silence`] what need not be told once that was asked for, and whether the service looks soon. `Service::read` gathers the facts, and
//! `Service::apply` and `Desc::agree` carry out what was decided.

use outrider_sys::units::{ByteRange, InodeKey};

use super::left_to_kernel::{DeviceFacts, Way};
use crate::engine::Class;
use crate::intent::Intent;
use crate::sharing::ANEW;
use crate::shm::Origin;

/// Reads that are not told after each that is, when a program is first found to read what is cached; it doubles [`DOUBLINGS`] times.
const RARELY_AT_FIRST: u16 = 16;
/// Random reads that are not told in a row after a sample has found the file cached; it doubles as often.
const RESIDENT_AT_FIRST: u32 = 16;
/// How often these double while nothing else is found.
const DOUBLINGS: u32 = 6;
/// Random reads that are not told while nothing is left of what was streamed for them.
const STREAMED: u32 = 64;

/// A read, and what its descriptor's recognisers made of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadFacts {
    /// Bytes.
    pub(super) len: u64,
    /// A source has claimed it, and has to hear the next, too.
    pub(super) claimed: bool,
    /// It belongs to a tile: where its lines begin has to be heard.
    pub(super) in_tile: bool,
    /// So many of the next ones need not be told, as far as it is for the recognisers to say, and for how often they were right lately.
    pub(super) silence: u32,
}

/// How a read fits what was read before.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// A stream's.
    Stream(StreamFacts),
    /// Nobody's.
    None(Disorder),
}

/// What is known of a read's stream.
#[derive(Clone, Debug)]
pub(super) struct StreamFacts {
    /// Bytes of the file.
    pub(super) size: u64,
    /// What will be read next, bytes, in the order of need.
    pub(super) ahead: Vec<ByteRange>,
    /// It goes forward and without gaps.
    pub(super) plain: bool,
    /// Up to which byte others have read files of this kind on from here.
    pub(super) reach: Option<u64>,
    /// Bytes that the kernel reads ahead at once on its descriptor.
    pub(super) window: u64,
}

/// What is known of a file's reads in no order.
#[derive(Clone, Debug, Default)]
pub(super) struct Disorder {
    /// Bytes beside the read that a source foresees and there is memory for, in the order of need.
    pub(super) around: Vec<ByteRange>,
    /// All that they fall in was streamed: so many pages of that are not read yet.
    pub(super) streamed: Option<u64>,
    /// Samples in succession that found the file cached.
    pub(super) resident: u32,
    /// It pays to stream these bytes now.
    pub(super) region: Option<ByteRange>,
    /// Reads after which that is considered again, if it is.
    pub(super) patience: Option<u64>,
}

/// What is to be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) origin: Origin,
    /// Bytes, in the order of need.
    pub(super) ranges: Vec<ByteRange>,
}

impl Want {
    /// What random reads fall in.
    pub(super) fn dense(region: ByteRange) -> Want {
        Want {
            origin: Origin::Dense,
            ranges: vec![region],
        }
    }

    /// The intent of a file's; who reads it is for others to say.
    pub(super) fn of(&self, key: InodeKey) -> Intent<'_> {
        let class = match self.origin {
            Origin::Dense => Class::Bulk,
            _ => Class::Window,
        };
        Intent {
            class,
            ..Intent::new(key, &self.ranges, self.origin)
        }
    }
}

/// What a read comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// What is asked for, in this order.
    pub(super) intents: Vec<Want>,
    /// Where that was cut, though the stream foresees more.
    pub(super) cut: Option<u64>,
    /// Whether all that the process reads is one stream forward without gaps, which the kernel brings in by requests of so many bytes on average; `None`: as
    /// before.
    pub(super) window: Option<Option<u64>>,
    /// So many of the next reads need not be told, if nothing is refused.
    pub(super) skip: u32,
}

impl Disorder {
    /// So many of the next reads need not be told, of which `silence` are no loss to the recognisers.
    fn skip(&self, silence: u32) -> u32 {
        match (self.streamed, self.resident, self.patience) {
            // Every read is told while the streamed bytes are being used, without waking anybody.
            (Some(0), ..) => STREAMED,
            (Some(_), ..) => 0,
            // Everything that is sampled is there: look ever more rarely, but keep looking.
            (_, 1.., _) => RESIDENT_AT_FIRST << self.resident.min(DOUBLINGS),
            // Silence ends in time for the decision.
            (_, _, Some(due)) => silence.min(u32::try_from(due).unwrap_or(u32::MAX)),
            _ => silence,
        }
    }
}

/// What is known of what comes next, once it was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// Of a stream, that it is cached, or that it is not.
    Stream(Option<Calm>),
    /// Of reads in no order: how many were not told after each that was, samples in succession that found the file cached, and whether one that was taken
    /// now did.
    Disorder {
        rarely: u16,
        resident: u32,
        cached: bool,
    },
}

/// What follows in a stream is cached, far ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Calm {
    /// Reads in succession, of those that were told, of which that was so.
    pub(super) times: u32,
    /// Reads of which it is known.
    pub(super) reads: u64,
}

impl Calm {
    /// Of a stream whose last read was at `offset` in a file of `size` bytes: it reads `len` bytes every `stride`, and everything up to `front` is cached.
    pub(super) fn new(
        times: u32,
        (stride, len, front): (i64, u64, u64),
        offset: u64,
        size: u64,
    ) -> Calm {
        let to_the_end = match stride > 0 {
            true => front >= size,
            false => front == 0,
        };
        let step = stride.unsigned_abs().max(len).max(1);
        let reads = match to_the_end {
            true => u64::MAX,
            false => front.abs_diff(offset) / step,
        };
        Calm { times, reads }
    }

    /// So many reads are not told after each that is: fewer than half of what is known to be cached, and the more the longer it was.
    fn rarely(self) -> u16 {
        let most = RARELY_AT_FIRST << self.times.min(DOUBLINGS);
        let rarely = (self.reads / 2).min(most.into()) as u16;
        if rarely < RARELY_AT_FIRST { 0 } else { rarely }
    }
}

/// What a hook need not tell.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Silence {
    /// Reads that begin in these bytes.
    pub(super) quiet: ByteRange,
    /// So many of the next reads.
    pub(super) skip: u32,
    /// So many after each that is told.
    pub(super) rarely: u16,
}

impl Silence {
    /// Whether the service looks soon whether more was told: what is told rarely can wait.
    pub(super) fn wakes(&self) -> bool {
        self.rarely == 0
    }
}

impl ReadFacts {
    /// Whether it depends on what comes next how rarely reads are told.
    pub(super) fn may_be_told_rarely(&self) -> bool {
        !self.in_tile && !self.claimed
    }

    /// Decides what need not be told after what a read came to was asked for, and nothing of it refused: `skip` reads, and those in `quiet`.
    /// SPEC CP3: in a `steady` state the next reads are not looked at.
    pub(super) fn silence(&self, skip: u32, quiet: ByteRange, next: Next, steady: bool) -> Silence {
        if !steady {
            return Silence::default();
        }
        let rarely = match next {
            _ if !self.may_be_told_rarely() => 0,
            Next::Stream(calm) => calm.map_or(0, Calm::rarely),
            Next::Disorder {
                rarely,
                resident: resident @ 2..,
                ..
            } => rarely.max(RARELY_AT_FIRST << resident.min(DOUBLINGS)),
            // Streams that begin anew look like that for a moment: a file that was calm stays so while samples of it are cached.
            Next::Disorder {
                rarely,
                cached: true,
                ..
            } => rarely,
            Next::Disorder { .. } => 0,
        };
        Silence {
            quiet,
            skip,
            rarely,
        }
    }
}

/// Decides what is asked for because of a read.
pub(super) fn decide(read: &ReadFacts, order: Order, device: &DeviceFacts) -> Decision {
    match order {
        Order::None(disorder) => of_no_stream(read, disorder),
        Order::Stream(stream) => of_a_stream(read, stream, device),
    }
}

fn of_no_stream(read: &ReadFacts, disorder: Disorder) -> Decision {
    let skip = match read.claimed {
        true => 0,
        false => disorder.skip(read.silence),
    };
    let dense = disorder.region.map(Want::dense);
    let around = (!disorder.around.is_empty()).then_some(Want {
        origin: Origin::Sources,
        ranges: disorder.around,
    });
    Decision {
        intents: dense.into_iter().chain(around).collect(),
        cut: None,
        window: Some(None),
        skip,
    }
}

fn of_a_stream(read: &ReadFacts, stream: StreamFacts, device: &DeviceFacts) -> Decision {
    let mut decision = Decision {
        skip: read.silence,
        ..Decision::default()
    };
    if stream.ahead.is_empty() {
        return decision;
    }
    decision.window = Some(stream.mean_window(read.len, device));
    let plain = stream.plain;
    if !device.leaves_to_kernel(Way::Stream { plain }) {
        let (ranges, cut) = cut(stream.ahead, stream.reach);
        decision.cut = cut;
        decision.intents.push(Want {
            origin: Origin::Streams,
            ranges,
        });
    }
    decision
}

/// What lies before a byte, and whether that is not all.
fn cut(mut ranges: Vec<ByteRange>, at: Option<u64>) -> (Vec<ByteRange>, Option<u64>) {
    let end = ranges.iter().map(|r| r.end).max();
    let cut = at.filter(|at| end.is_some_and(|end| *at < end));
    if let Some(at) = cut {
        ranges.retain_mut(|r| {
            r.end = r.end.min(at);
            r.start < r.end
        });
    }
    (ranges, cut)
}

impl StreamFacts {
    /// Bytes of one of the requests by which the kernel brings in the whole of a file, on average, in reads of `len` bytes. `None` where more than this
    /// stream is read.
    fn mean_window(&self, len: u64, device: &DeviceFacts) -> Option<u64> {
        if !self.plain || device.reading.files() != 1 {
            return None;
        }
        let clip = device.file_system.map_or(0, |p| p.clip);
        let window = self.window.max(len.min(clip));
        let begins = match len > window / 4 {
            true => 0,
            false => ANEW,
        };
        let requests = self.size.div_ceil(window).max(1) + begins;
        Some(self.size.div_ceil(requests))
    }
}

#[cfg(test)]
mod tests {
    use super::super::devices::FileSystem;
    use super::super::left_to_kernel::Reading;
    use super::*;
    use crate::device::{DeviceModel, READAHEAD, Sharing};

    const MIB: u64 = 1 << 20;

    /// Flash of which a file is read, and nobody else.
    fn device() -> DeviceFacts {
        DeviceFacts {
            model: DeviceModel::saved(100.0, 1000.0).unwrap(),
            file_system: Some(FileSystem {
                chunk: Some(128 << 10),
                clip: MIB,
                read_ahead: 128 << 10,
                shows_opens: false,
                caches: true,
            }),
            sharing: Sharing::Exclusive,
            trial: None,
            reading: Reading::new(),
        }
    }

    fn read() -> ReadFacts {
        ReadFacts {
            len: 4096,
            claimed: false,
            in_tile: false,
            silence: 100,
        }
    }

    fn stream() -> StreamFacts {
        StreamFacts {
            size: 64 * MIB,
            ahead: vec![MIB..2 * MIB, 3 * MIB..4 * MIB],
            plain: true,
            reach: None,
            window: READAHEAD,
        }
    }

    fn intents(decision: &Decision) -> Vec<(Origin, &[ByteRange])> {
        let intents = decision.intents.iter();
        intents.map(|w| (w.origin, &*w.ranges)).collect()
    }

    /// What comes next in a stream is asked for, up to where readers of such files stop, unless it is left to the kernel or there is nothing new.
    #[test]
    fn of_a_stream_what_comes_next_is_asked_for() {
        let all = [MIB..2 * MIB, 3 * MIB..4 * MIB];
        let many = DeviceFacts {
            trial: Some(true),
            ..device()
        };
        let strided = StreamFacts {
            plain: false,
            ..stream()
        };
        let short = |reach| StreamFacts {
            reach: Some(reach),
            ..stream()
        };
        let nothing = StreamFacts {
            ahead: Vec::new(),
            ..stream()
        };
        let half = [MIB..2 * MIB, 3 * MIB..3 * MIB + 4096];
        let cases: [(_, _, _, Option<&[ByteRange]>, _); 8] = [
            ("all", stream(), device(), Some(&all), None),
            ("many files", stream(), many, None, None),
            ("strided among many files", strided, many, Some(&all), None),
            ("beyond", short(4 * MIB), device(), Some(&all), None),
            (
                "a part",
                short(3 * MIB + 4096),
                device(),
                Some(&half),
                Some(3 * MIB + 4096),
            ),
            (
                "one of two",
                short(2 * MIB),
                device(),
                Some(&all[..1]),
                Some(2 * MIB),
            ),
            ("none", short(0), device(), Some(&[]), Some(0)),
            ("nothing new", nothing, device(), None, None),
        ];
        for (what, stream, device, ranges, cut) in cases {
            let decision = decide(&read(), Order::Stream(stream), &device);
            let asked: Vec<_> = ranges.map(|r| (Origin::Streams, r)).into_iter().collect();
            assert_eq!(intents(&decision), asked, "{what}");
            assert_eq!((decision.cut, decision.skip), (cut, 100), "{what}");
        }
    }

    /// What the kernel brings in at once is known of a plain stream that is alone: its windows, three of them smaller where reads are small, or the reads.
    #[test]
    fn the_kernels_requests_are_known_of_a_stream_alone() {
        let mut two = device();
        two.reading.opened();
        let strided = StreamFacts {
            plain: false,
            ..stream()
        };
        let nothing = StreamFacts {
            ahead: Vec::new(),
            ..stream()
        };
        let small = (64 * MIB).div_ceil(64 * MIB / READAHEAD + ANEW);
        for (what, len, stream, device, window) in [
            ("small reads", 4096, stream(), device(), Some(Some(small))),
            ("long reads", MIB, stream(), device(), Some(Some(MIB))),
            (
                "longer than a request",
                8 * MIB,
                stream(),
                device(),
                Some(Some(MIB)),
            ),
            ("strided", 4096, strided, device(), Some(None)),
            ("two files", 4096, stream(), two, Some(None)),
            ("nothing new", 4096, nothing, device(), None),
        ] {
            let read = ReadFacts { len, ..read() };
            let decision = decide(&read, Order::Stream(stream), &device);
            assert_eq!(decision.window, window, "{what}");
        }
    }

    /// Of reads in no order what pays is asked for, the region before the neighbourhood, and the more is known to be cached, the fewer need be told.
    #[test]
    fn of_no_stream_what_pays_is_asked_for() {
        let disorder = Disorder::default;
        let region = || Some(0..8 * MIB);
        let with = |change: fn(&mut Disorder)| {
            let mut disorder = disorder();
            change(&mut disorder);
            disorder
        };
        let around = || with(|d| d.around = vec![0..MIB]);
        let dense = Disorder {
            region: region(),
            patience: Some(0),
            ..disorder()
        };
        let both = Disorder {
            region: region(),
            ..around()
        };
        let all = 0..8 * MIB;
        let beside = 0..MIB;
        let of_region = (Origin::Dense, std::slice::from_ref(&all));
        let of_source = (Origin::Sources, std::slice::from_ref(&beside));
        let cases = [
            ("nothing", disorder(), vec![], 100),
            ("a neighbourhood", around(), vec![of_source], 100),
            ("a region", dense, vec![of_region], 0),
            ("both", both, vec![of_region, of_source], 100),
            ("soon", with(|d| d.patience = Some(7)), vec![], 7),
            ("late", with(|d| d.patience = Some(u64::MAX)), vec![], 100),
            ("streamed", with(|d| d.streamed = Some(1)), vec![], 0),
            ("used", with(|d| d.streamed = Some(0)), vec![], STREAMED),
            ("cached", with(|d| d.resident = 1), vec![], 32),
            ("long since", with(|d| d.resident = 99), vec![], 1024),
        ];
        for (what, disorder, asked, skip) in cases {
            for claimed in [false, true] {
                let read = ReadFacts { claimed, ..read() };
                let decision = decide(&read, Order::None(disorder.clone()), &device());
                assert_eq!(intents(&decision), asked, "{what}");
                // A source that has claimed it has to hear the next.
                let skip = if claimed { 0 } else { skip };
                assert_eq!(decision.skip, skip, "{what}");
                assert_eq!(decision.window, Some(None), "{what}");
            }
        }
    }

    /// Whole regions come behind what programs wait for.
    #[test]
    fn regions_are_less_urgent() {
        let key = InodeKey::new(1, 2);
        assert_eq!(Want::dense(0..MIB).of(key).class, Class::Bulk);
        let stream = decide(&read(), Order::Stream(stream()), &device());
        assert_eq!(stream.intents[0].of(key).class, Class::Window);
    }

    /// How rarely reads are told, by what is known of what comes next, and what wakes the service.
    #[test]
    fn what_is_cached_is_told_rarely() {
        let calm = |times, reads| Next::Stream(Some(Calm { times, reads }));
        let disorder = |rarely, resident, cached| Next::Disorder {
            rarely,
            resident,
            cached,
        };
        for (next, rarely) in [
            (Next::Stream(None), 0),
            (calm(1, u64::MAX), 32),
            (calm(6, u64::MAX), 1024),
            (calm(99, u64::MAX), 1024),
            // Less than half of what is known.
            (calm(6, 200), 100),
            (calm(6, 31), 0),
            (disorder(0, 0, true), 0),
            (disorder(64, 0, true), 64),
            (disorder(64, 0, false), 0),
            (disorder(64, 1, false), 0),
            (disorder(0, 2, false), 64),
            (disorder(256, 2, false), 256),
            (disorder(0, 99, false), 1024),
        ] {
            let silence = read().silence(7, 5..9, next, true);
            let expected = Silence {
                quiet: 5..9,
                skip: 7,
                rarely,
            };
            assert_eq!(silence, expected, "{next:?}");
            assert_eq!(silence.wakes(), rarely == 0, "{next:?}");
            assert_eq!(read().silence(7, 5..9, next, false), Silence::default());
            for heard in [
                ReadFacts {
                    in_tile: true,
                    ..read()
                },
                ReadFacts {
                    claimed: true,
                    ..read()
                },
            ] {
                assert_eq!(heard.silence(7, 5..9, next, true).rarely, 0, "{next:?}");
            }
        }
    }

    /// Reads of which it is known that they find everything cached: to the end of the file, or up to the front.
    #[test]
    fn calm_reaches_to_the_front() {
        for (stream, offset, reads) in [
            ((4096, 4096, 2 * MIB), MIB, 256),
            ((65536, 4096, 2 * MIB), MIB, 16),
            ((4096, 65536, 2 * MIB), MIB, 16),
            ((4096, 4096, 64 * MIB), MIB, u64::MAX),
            ((-4096, 4096, MIB), 2 * MIB, 256),
            ((-4096, 4096, 0), 2 * MIB, u64::MAX),
        ] {
            let calm = Calm::new(3, stream, offset, 64 * MIB);
            assert_eq!(calm, Calm { times: 3, reads }, "{stream:?}");
        }
    }
}
