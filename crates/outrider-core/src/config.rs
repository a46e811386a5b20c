//! Every constant that a user may change, with where its default comes from.
//!
//! The command reads a TOML file into [`Config`] and hands it on; unknown keys are errors, so that a
//! misspelt one never passes for its default. [`Config::validate`] names the key as `section.key` in
//! front of its message, from which the reader finds the line.

use std::fmt;

use crate::exclude::Excluded;
use outrider_sys::size::parse as parse_size;
use outrider_sys::units::PAGE;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes, written as an integer or as a string with a binary unit: `"128K"`, `"2M"`, `"1G"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

impl Size {
    /// `n` KiB.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    /// The shortest form that [`outrider_sys::size::parse`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        parse_size(s).map(Self)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes or a string such as \"128K\", \"2M\" or \"1G\"")
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Size, E> {
                Ok(Size(n))
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Size, E> {
                u64::try_from(n)
                    .map(Size)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(n), &self))
            }
            fn visit_str<E: de::Error>(self, s: &str) -> Result<Size, E> {
                parse_size(s).map(Size).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

/// All settings. Every section and key may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How patterns are recognised.
    pub predict: Predict,
    /// How far and how much is prefetched.
    pub window: Window,
    /// When random reads, and files that are opened in no order, are answered by fetching all of it.
    pub dense: Dense,
    /// How much memory prefetched data may take.
    pub budget: Budget,
    /// What of the page cache is given back.
    pub reclaim: Reclaim,
    /// How requests are issued.
    pub engine: Engine,
    /// What is done to requests on their way, for seeing what a slow or failing engine does to a program.
    pub monitor: Monitor,
    /// What is known to be cached.
    pub view: View,
    /// Which files are followed.
    pub files: Files,
}

/// `[predict]`: the pattern detector of CrossPrefetch, section 4.5 (CP3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Predict {
    /// Bits of the saturating counter that tells random from sequential reads. The paper uses 3.
    pub counter_bits: u8,
    /// A jump farther than this, in bytes, is highly random; a nearer one is random. The paper: 128 KB.
    pub random_distance: Size,
    /// Whether fewer reads are looked at once a pattern is certain (the paper's way to cost nothing).
    pub skip_when_steady: bool,
    /// Interleaved streams followed on one descriptor. 16 covers what tables and merges read at once; each
    /// costs a few dozen bytes.
    pub max_streams: u32,
    /// Reads that skip blocks are answered by reading on in order, if the bytes from one read to the next
    /// arrive within this share of the time that a read takes as it is; 0 is never.
    pub sparse: f64,
}

impl Default for Predict {
    fn default() -> Self {
        Self {
            counter_bits: 3,
            random_distance: Size::kib(128),
            skip_when_steady: true,
            max_streams: 16,
            sparse: 0.7,
        }
    }
}

/// `[window]`: sizes of what is prefetched (CP3, CP9).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Window {
    /// First look-ahead window of a recognised stream, bytes: one readahead window of the stock kernel. It is no more
    /// than `share` pays for.
    pub initial: Size,
    /// Largest look-ahead window, bytes. The paper: 64 MB for a definitely sequential file.
    pub max: Size,
    /// What is fetched ahead and not used may cost this share of the time that the program has waited, beside 2 ms to
    /// begin with and all that it was saved.
    pub share: f64,
    /// Bytes fetched at open before any pattern is known, while memory is above the high watermark. The
    /// paper: 2 MB. As long as it is the default, it is no more than half of what `share` pays for. 0 turns it off.
    pub optimistic_open: Size,
    /// Mode `fetchall+opt` fetches this much of a file at open, bytes; 1 TiB is every file whole, as in the
    /// paper.
    pub whole_file_max: Size,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            initial: Size::kib(128),
            max: Size::mib(64),
            share: 0.05,
            optimistic_open: Size::mib(2),
            whole_file_max: Size::mib(1 << 20),
        }
    }
}

/// `[dense]`: random reads that cover much of a file are answered by streaming it in order, and files that are opened in no order by
/// fetching their directories (that takes `files.walk`, too).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dense {
    /// Whether it is done at all.
    pub enabled: bool,
    /// By what share of the time that a program has waited for random reads, or for files that it opens in
    /// no order, it may be delayed by fetching what they fall in. What has been of use earns more, and so
    /// does reading each block, or opening each file, once: 20 times the share, up to all of that time. 0 is
    /// never.
    pub share: f64,
}

impl Default for Dense {
    fn default() -> Self {
        Self {
            enabled: true,
            share: 0.05,
        }
    }
}

/// `[budget]`: memory (CP9). The watermarks are the paper's idea (section 4.6), its numbers are not published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Bytes that prefetched and not yet used data may take, though no less than `stream_minimum` for each stream, and 1 MiB for
    /// the declared lists of a program. With less than a page of 4 KiB, as with 0, nothing is prefetched. Where it is left out:
    /// `share` of what is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// Share of the memory available for cache that prefetched and not yet used data may take.
    pub share: f64,
    /// Fraction of the memory limit that must be available for prefetching to be aggressive.
    pub high_watermark: f64,
    /// Fraction of the memory limit that must be available for prefetching to go on at all; at most
    /// `high_watermark`.
    pub low_watermark: f64,
    /// Bytes guaranteed to each stream however many there are, unless `memory` allows nothing: two readahead windows.
    pub stream_minimum: Size,
    /// Per cent of the last ten seconds in which some task waited for memory (`/proc/pressure/memory`,
    /// some avg10) above which prefetching stops, unless half of the memory is available.
    pub psi_some_avg10_max: f64,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            memory: None,
            share: 0.5,
            high_watermark: 0.10,
            low_watermark: 0.05,
            stream_minimum: Size::kib(256),
            psi_some_avg10_max: 20.0,
        }
    }
}

/// `[reclaim]`: giving back (section 4.6 of the paper, CP10).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reclaim {
    /// Whether anything is dropped at all.
    pub enabled: bool,
    /// Seconds without access after which a file is inactive and may be dropped whole. The paper: 30.
    pub inactive_after_s: u32,
}

impl Default for Reclaim {
    fn default() -> Self {
        Self {
            enabled: true,
            inactive_after_s: 30,
        }
    }
}

/// I/O priority of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum IoPriority {
    /// The lowest of the ordinary class: behind the program's own reads, never starved.
    #[default]
    #[serde(rename = "best-effort-7")]
    BestEffort7,
    /// Only when nobody else reads.
    #[serde(rename = "idle")]
    Idle,
    /// As the program itself.
    #[serde(rename = "none")]
    None,
}

/// `[engine]`: how requests reach the kernel (CP6).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Engine {
    /// Threads of the service that issue requests.
    pub workers: u32,
    /// Bytes per request, a multiple of 4K. 128 KiB are never clipped by a stock kernel's readahead limit.
    pub chunk: Size,
    /// Bytes in flight that are always allowed where nobody else reads: enough for one stream to hide a fast disk's latency.
    pub in_flight_min: Size,
    /// Bytes in flight at most, however long the measured device's bandwidth x latency is. Between the two
    /// the device decides; 512 KB to 1 MB leave a foreign reader on a shared queue its latency.
    pub in_flight_max: Size,
    /// I/O priority of the workers, honoured by the bfq scheduler and partly by mq-deadline: the lowest of the
    /// ordinary class, only when nobody else reads, or as the program itself.
    pub io_priority: IoPriority,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            workers: 2,
            chunk: Size::kib(128),
            in_flight_min: Size::kib(256),
            in_flight_max: Size::mib(16),
            io_priority: IoPriority::default(),
        }
    }
}

/// `[monitor]`: delays and fails requests on their way to the engine, for seeing what that does to a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Monitor {
    /// Waited before each group of requests, µs.
    pub delay_us: u32,
    /// Of so many requests the last one fails; 0 for none.
    pub fail_every: u32,
}

/// Granularity of the record of what is cached (CP5, Table 5 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RangeTree {
    /// A bitmap with one bit a page in each node.
    #[default]
    Page,
    /// One bit per range.
    Coarse,
    /// None: a bitmap with one lock a file (Table 5, cache visibility alone).
    Off,
}

/// `[view]`: what is known to be cached (CP4, CP5).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct View {
    /// Whether the record of what is cached is asked before a prefetch.
    pub cache_visibility: bool,
    /// How finely it is kept: `page`, a bit for each page; `coarse`, a bit for each range; `off`, a bitmap with
    /// one lock a file.
    pub range_tree: RangeTree,
}

impl Default for View {
    fn default() -> Self {
        Self {
            cache_visibility: true,
            range_tree: RangeTree::default(),
        }
    }
}

/// `[files]`: which files are ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Files {
    /// Files smaller than this, bytes, are left alone: the kernel's first readahead window brings most of
    /// them in by itself.
    pub min_size: Size,
    /// Whether programs that open many small files one after the other, in an order that can be foreseen,
    /// find them fetched, and those that go through directories find these listed.
    pub walk: bool,
    /// What is done where a server keeps the files (NFS, CIFS, FUSE and the like): `auto`, trees are
    /// followed as on disks, as far as nothing happens there but what the program is about to do; `files`,
    /// only files that the program has open; `off`, nothing.
    pub network: Network,
    /// Patterns of absolute paths of which nothing is fetched, opened or listed ahead, nor of what lies
    /// below: `*` and `?` stop at a slash, `**` does not.
    pub exclude: Vec<String>,
}

/// What is done where a server keeps the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Trees are followed.
    #[default]
    Auto,
    /// Only files that the program has open are.
    Files,
    /// Nothing is.
    Off,
}

impl Files {
    /// [`Files::min_size`], where nothing else is set.
    pub const MIN_SIZE: Size = Size::kib(64);
}

impl Default for Files {
    fn default() -> Self {
        Self {
            min_size: Self::MIN_SIZE,
            walk: true,
            network: Network::default(),
            exclude: Vec::new(),
        }
    }
}

impl Config {
    /// Checks what the types cannot: ranges and orders. The error is one line that starts with
    /// `section.key: `.
    pub fn validate(&self) -> Result<(), String> {
        for (key, value, low, high) in self.numbers() {
            // A NaN is in no range.
            if !(low..=high).contains(&value) {
                return Err(format!(
                    "{key}: {value} is out of range; accepted is {low} to {high}"
                ));
            }
        }
        for (key, value, low, high) in self.sizes() {
            if !(low..=high).contains(&value.0) {
                let (low, high) = (Size(low), Size(high));
                return Err(format!(
                    "{key}: {value} is out of range; accepted is {low} to {high}"
                ));
            }
        }
        if !self.engine.chunk.0.is_multiple_of(PAGE) {
            let chunk = self.engine.chunk;
            return Err(format!("engine.chunk: {chunk} is not a multiple of 4K"));
        }
        Excluded::new(&self.files.exclude).map_err(|what| format!("files.exclude: {what}"))?;
        for (key, other, ordered) in self.orders() {
            if !ordered {
                return Err(format!("{key}: must not be larger than {other}"));
            }
        }
        Ok(())
    }

    /// Numbers, and the least and the most that each may be.
    fn numbers(&self) -> impl Iterator<Item = (&'static str, f64, f64, f64)> {
        let (predict, budget) = (&self.predict, &self.budget);
        let psi = budget.psi_some_avg10_max;
        let inactive = self.reclaim.inactive_after_s.into();
        [
            (
                "predict.counter_bits",
                predict.counter_bits.into(),
                1.0,
                8.0,
            ),
            (
                "predict.max_streams",
                predict.max_streams.into(),
                1.0,
                256.0,
            ),
            ("predict.sparse", predict.sparse, 0.0, 1.0),
            ("window.share", self.window.share, 0.0, 1.0),
            ("dense.share", self.dense.share, 0.0, 1.0),
            ("budget.share", budget.share, 0.01, 1.0),
            ("budget.high_watermark", budget.high_watermark, 0.0, 1.0),
            ("budget.low_watermark", budget.low_watermark, 0.0, 1.0),
            ("budget.psi_some_avg10_max", psi, 0.0, 100.0),
            ("reclaim.inactive_after_s", inactive, 1.0, 86_400.0),
            ("engine.workers", self.engine.workers.into(), 1.0, 4.0),
            ("monitor.delay_us", self.monitor.delay_us.into(), 0.0, 1e6),
        ]
        .into_iter()
    }

    /// Sizes, and the least and the most bytes that each may be.
    fn sizes(&self) -> impl Iterator<Item = (&'static str, Size, u64, u64)> {
        const GIB: u64 = 1 << 30;
        const TIB: u64 = 1 << 40;
        let (window, engine) = (&self.window, &self.engine);
        let memory = self.budget.memory.unwrap_or(Size(0));
        let distance = self.predict.random_distance;
        [
            ("predict.random_distance", distance, PAGE, GIB),
            ("window.initial", window.initial, PAGE, GIB),
            ("window.max", window.max, PAGE, 64 * GIB),
            ("window.optimistic_open", window.optimistic_open, 0, GIB),
            ("window.whole_file_max", window.whole_file_max, 0, TIB),
            ("budget.memory", memory, 0, 64 * TIB),
            (
                "budget.stream_minimum",
                self.budget.stream_minimum,
                PAGE,
                GIB,
            ),
            ("engine.chunk", engine.chunk, PAGE, 1 << 20),
            ("engine.in_flight_min", engine.in_flight_min, PAGE, GIB),
            ("engine.in_flight_max", engine.in_flight_max, PAGE, GIB),
            ("files.min_size", self.files.min_size, 0, TIB),
        ]
        .into_iter()
    }

    /// What must not be larger than what, and whether it isn't.
    fn orders(&self) -> [(&'static str, &'static str, bool); 4] {
        let (window, budget, engine) = (&self.window, &self.budget, &self.engine);
        let (least, most) = (engine.in_flight_min, engine.in_flight_max);
        [
            ("window.initial", "window.max", window.initial <= window.max),
            (
                "budget.low_watermark",
                "budget.high_watermark",
                budget.low_watermark <= budget.high_watermark,
            ),
            (
                "engine.in_flight_min",
                "engine.in_flight_max",
                least <= most,
            ),
            ("engine.chunk", "engine.in_flight_max", engine.chunk <= most),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_survive_printing() {
        for n in [0, 1, 1023, 1024, 1 << 20, (1 << 20) + 1, 3 << 30, u64::MAX] {
            assert_eq!(parse_size(&Size(n).to_string()), Ok(n));
        }
    }

    #[test]
    fn defaults_are_valid() {
        Config::default().validate().unwrap();
    }

    #[test]
    fn orders_and_ranges_are_checked() {
        type Spoil = fn(&mut Config);
        let broken: [(&str, Spoil); 6] = [
            ("budget.low_watermark: ", |c| c.budget.low_watermark = 0.2),
            ("dense.share: ", |c| c.dense.share = f64::NAN),
            ("engine.chunk: ", |c| c.engine.chunk = Size(5000)),
            ("engine.in_flight_min: ", |c| {
                c.engine.in_flight_min = Size::mib(32)
            }),
            ("predict.counter_bits: ", |c| c.predict.counter_bits = 0),
            ("window.initial: ", |c| c.window.initial = Size::mib(65)),
        ];
        for (prefix, spoil) in broken {
            let mut config = Config::default();
            spoil(&mut config);
            let error = config.validate().unwrap_err();
            assert!(error.starts_with(prefix), "{error}");
        }
    }
}
