//! What is left to the kernel's own readahead, by what is known of a device and of who reads.
//!
//! The kernel brings a stream in large folios for a third of the processor's time. So where its readahead gets as much from the device as we would, or where
//! somebody else reads and there is no more to be had than it gets, it is not disturbed.

use super::FileSystem;
use crate::device::{DeviceModel, READAHEAD, Seeks, Sharing};

/// From so many bytes that the kernel reads ahead on it is worth leaving a whole file to it: eight times its usual readahead.
const FAR: u64 = 1 << 20;
/// Files that are read at once, and times that what they have in flight keeps the device busy, from which on they are many.
const TIMES: u64 = 4;

/// What all programs together are reading at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Files that were read within the last moments: they share the budget.
    files: u64,
    /// Streams in these files, each of which has its guaranteed minimum.
    streams: u64,
    /// Bytes of a read in order, on average of the last few.
    bytes: u64,
}

impl Reading {
    pub(super) fn new() -> Reading {
        Reading {
            files: 1,
            streams: 1,
            bytes: 0,
        }
    }

    /// Files that are read at once, at least one.
    pub(super) fn files(&self) -> u64 {
        self.files
    }

    /// Those who read, of whom each has its guaranteed minimum.
    pub(super) fn readers(&self) -> u64 {
        self.streams.max(self.files)
    }

    /// So many were counted.
    pub(super) fn counted(&mut self, files: usize, streams: u64) {
        (self.files, self.streams) = (files.max(1) as u64, streams);
    }

    /// A file was opened; it counts until it is counted.
    pub(super) fn opened(&mut self) {
        self.files += 1;
    }

    /// The last who had a file open has closed it.
    pub(super) fn closed(&mut self) {
        self.files = self.files.saturating_sub(1).max(1);
    }

    /// A read in order of so many bytes was told.
    pub(super) fn read(&mut self, bytes: u64) {
        self.bytes = (self.bytes * 7 + bytes) / 8;
    }
}

/// How a program comes to a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It opens the file; nothing has been read.
    Opens,
    /// It begins to read the file from its beginning, or a call to copy it within the kernel.
    Begins,
    /// A stream goes on; `plain`: forward and without gaps, of which alone the kernel reads ahead.
    Stream { plain: bool },
    /// A call goes on that copies bytes within the kernel.
    Copies,
}

/// What is known of the device that a file lies on, and of who reads from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceFacts {
    /// How it was measured.
    pub(super) model: DeviceModel,
    /// What is known without measuring.
    pub(super) file_system: Option<FileSystem>,
    /// Whether somebody else reads from it.
    pub(super) sharing: Sharing,
    /// What came out where it was tried whether this many readers are better left alone.
    pub(super) trial: Option<bool>,
    /// What the programs read.
    pub(super) reading: Reading,
}

/// Answers after which it is believed of a device that it has a head of which nothing else is known.
const ANSWERS: u32 = 4;

impl DeviceFacts {
    /// Whether what a program reads this way is left to the kernel.
    pub(super) fn leaves_to_kernel(&self, way: Way) -> bool {
        match way {
            Way::Opens => self.reads_many(),
            Way::Begins => self.kernel_reads_far(),
            Way::Stream { plain } => {
                plain && (self.reads_many() || self.is_shared_flash() || self.is_shared_busy())
            }
            // A disk with a head is kept busy by the kernel's windows. The first answers may have waited for what the copy itself has asked for.
            Way::Copies => {
                let known = self.model.is_measured() || self.model.samples() >= ANSWERS;
                known && self.model.seeks() == Seeks::Yes || self.reads_many()
            }
        }
    }

    /// Whether a stream may soon be left to the kernel, as far as is known of the device.
    pub(super) fn may_leave_streams(&self) -> bool {
        self.model.seeks() != Seeks::Yes && self.sharing != Sharing::Exclusive
    }

    /// Whether so many files are in use that one request of the kernel's readahead for each, or one read where reads are longer, keeps
    /// the device several times busy. Where heads move that is not so, however many there are: there every request should be long.
    ///
    /// Once that was tried the outcome counts.
    fn reads_many(&self) -> bool {
        if let Some(quiet) = self.trial {
            return quiet;
        }
        let chunk = self.file_system.and_then(|p| p.chunk);
        let window = chunk.map_or(0, |chunk| chunk.max(self.reading.bytes));
        // A long read keeps the device busy only as long as it lasts: there must be others meanwhile.
        self.model.is_measured()
            && self.model.seeks() == Seeks::No
            && self.reading.files >= TIMES
            && self.reading.files * window >= TIMES * self.model.bandwidth_delay()
    }

    /// Whether the kernel's own readahead begins with more than any request of ours and keeps the device busy: what is read whole from its beginning is
    /// left to it. It brings that in large folios, where what is asked for comes in single pages, at up to twice the processor's time.
    fn kernel_reads_far(&self) -> bool {
        let ahead = self.file_system.map_or(0, |p| p.read_ahead);
        ahead >= FAR && ahead >= 2 * self.model.bandwidth_delay()
    }

    /// Whether somebody else was seen to read from a device that the kernel's windows for all streams keep busy: one of each stream's two is on its way at any time.
    fn is_shared_busy(&self) -> bool {
        let on_way = self.reading.readers() * READAHEAD;
        self.sharing == Sharing::Shared
            && self.model.seeks() != Seeks::Yes
            && on_way >= self.model.bandwidth_delay()
    }

    /// Whether somebody else was seen to read from a flash device.
    fn is_shared_flash(&self) -> bool {
        self.sharing == Sharing::Shared && self.model.seeks() == Seeks::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLASH: (f64, f64) = (100.0, 1000.0);
    const NETWORK: (f64, f64) = (1000.0, 1000.0);
    const HEAD: (f64, f64) = (9000.0, 150.0);

    /// A device of this latency and bandwidth, of which so many files are read in reads of so many bytes.
    fn facts((latency, bandwidth): (f64, f64), files: usize, bytes: u64) -> DeviceFacts {
        let mut reading = Reading::new();
        reading.counted(files, files as u64);
        for _ in 0..100 {
            reading.read(bytes);
        }
        DeviceFacts {
            model: DeviceModel::saved(latency, bandwidth).unwrap(),
            file_system: Some(FileSystem {
                chunk: Some(128 << 10),
                clip: 0,
                read_ahead: 128 << 10,
                shows_opens: false,
                caches: true,
            }),
            sharing: Sharing::Exclusive,
            trial: None,
            reading,
        }
    }

    const PLAIN: Way = Way::Stream { plain: true };
    const OTHER: Way = Way::Stream { plain: false };

    /// Design, "off is a decision too": whom the kernel serves as well is left to it, of all that matters one at a time.
    #[test]
    fn what_the_kernel_does_as_well_is_left_to_it() {
        let with = |change: fn(&mut DeviceFacts), facts: DeviceFacts| {
            let mut facts = facts;
            change(&mut facts);
            facts
        };
        let few = facts(FLASH, 3, 4096);
        let many = facts(FLASH, 4, 4096);
        let cases = [
            ("few readers", few, vec![]),
            ("many files", many, vec![Way::Opens, PLAIN, Way::Copies]),
            ("many files far away", facts(NETWORK, 4, 4096), vec![]),
            (
                "many files behind a head",
                facts(HEAD, 64, 4096),
                vec![Way::Copies],
            ),
            (
                "nothing is measured",
                with(|f| f.model = DeviceModel::default(), facts(FLASH, 64, 4096)),
                vec![],
            ),
            (
                "files in memory",
                with(|f| f.file_system = None, many),
                vec![],
            ),
            (
                "few files, but long reads",
                facts((250.0, 4000.0), 4, 2 << 20),
                vec![Way::Opens, PLAIN, Way::Copies],
            ),
            (
                "the same with short ones",
                facts((250.0, 4000.0), 4, 4096),
                vec![],
            ),
            (
                "it was tried, and prefetching pays",
                with(|f| f.trial = Some(false), many),
                vec![],
            ),
            (
                "it was tried, and does not",
                with(|f| f.trial = Some(true), few),
                vec![Way::Opens, PLAIN, Way::Copies],
            ),
            (
                "somebody else reads from flash",
                with(|f| f.sharing = Sharing::Shared, few),
                vec![PLAIN],
            ),
            (
                "somebody else reads behind a head",
                with(|f| f.sharing = Sharing::Shared, facts(HEAD, 3, 4096)),
                vec![Way::Copies],
            ),
            (
                "somebody else reads from a network that all streams' windows keep busy",
                with(|f| f.sharing = Sharing::Shared, facts(NETWORK, 8, 4096)),
                vec![PLAIN],
            ),
            (
                "the same where they don't",
                with(|f| f.sharing = Sharing::Shared, facts(NETWORK, 7, 4096)),
                vec![],
            ),
            (
                "the kernel reads far",
                with(|f| f.file_system.as_mut().unwrap().read_ahead = FAR, few),
                vec![Way::Begins],
            ),
            (
                "but not far enough",
                with(
                    |f| f.file_system.as_mut().unwrap().read_ahead = FAR,
                    facts(NETWORK, 3, 4096),
                ),
                vec![],
            ),
        ];
        for (what, facts, left) in cases {
            for way in [Way::Opens, Way::Begins, PLAIN, OTHER, Way::Copies] {
                let is_left = facts.leaves_to_kernel(way);
                assert_eq!(is_left, left.contains(&way), "{what}: {way:?}");
            }
        }
    }

    /// Nothing far ahead is asked for of a stream that may be left to the kernel before it comes there.
    #[test]
    fn streams_may_be_left_until_it_is_known_who_reads() {
        for (device, sharing, may) in [
            (FLASH, Sharing::Unknown, true),
            (FLASH, Sharing::Shared, true),
            (FLASH, Sharing::Exclusive, false),
            (NETWORK, Sharing::Unknown, true),
            (HEAD, Sharing::Unknown, false),
            (HEAD, Sharing::Shared, false),
        ] {
            let facts = DeviceFacts {
                sharing,
                ..facts(device, 1, 4096)
            };
            assert_eq!(facts.may_leave_streams(), may, "{device:?} {sharing:?}");
        }
    }
}
