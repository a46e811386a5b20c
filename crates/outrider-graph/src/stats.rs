//! What became of the calls that a graph foresaw.

use std::fmt;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::device;
use crate::payback::Payback;

/// A diverging graph is switched off once it has diverged more often than this …
const DIVERGENCES: u64 = 8;
/// … and more often than once in so many calls.
const CALLS_PER_DIVERGENCE: u64 = 16;
/// Bytes of problems that are kept in words, and of one.
const PROBLEMS: usize = 16 << 10;
const LONGEST_PROBLEM: usize = 512;
/// A graph that stands for some of a function's calls is switched off once so many results were not asked for …
const UNUSED: u64 = 256;
/// … and so many times as many as were used.
const UNUSED_PER_HIT: u64 = 4;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a graph, over all its runs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counts {
            /// The names of the counts, in the order of [`Counts::values`].
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// From counts in this order; zero for those that are missing.
            pub fn from_values(values: &[u64]) -> Counts {
                let mut values = values.iter().copied();
                Counts { $($name: values.next().unwrap_or(0),)* }
            }

            /// The counts.
            pub fn values(&self) -> impl Iterator<Item = u64> {
                [$(self.$name),*].into_iter()
            }
        }

        /// The same, shared by threads.
        #[derive(Default)]
        pub(crate) struct Counters { $(pub $name: AtomicU64,)* }

        impl Counters {
            pub fn get(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }

            pub fn add(&self, c: &Counts) {
                $(if c.$name != 0 { self.$name.fetch_add(c.$name, Relaxed); })*
            }
        }
    };
}

counters! {
    /// Runs of the function, but for those that were passed by while looking ahead rested.
    scopes,
    /// Calls that the function made through its scope.
    calls,
    /// Calls given to an engine before the function made them.
    ahead,
    /// Calls answered with what an engine had done.
    hits,
    /// Of these, how many were waited for.
    waits,
    /// Calls that the function made as they were foreseen.
    foreseen,
    /// Results that nobody asked for.
    unused,
    /// Foreseen calls that the function left out.
    skipped,
    /// Calls that the graph did not foresee.
    divergences,
    /// Calls with effects that were made ahead and that the function then did not make: the graph is wrong.
    unclaimed_effects,
}

/// Who else is told what becomes of a graph's calls. Called within the calls of the function: it must neither allocate nor wait.
pub trait Sink: Send + Sync {
    /// Counts of a run that has ended.
    fn add(&self, counts: &Counts);
    /// A problem, as [`crate::Graph::problems`] has it. `off`: for this reason the graph is not followed any more.
    fn note(&self, problem: &str, off: bool);
}

/// A line that is written without allocating.
pub(crate) struct Line {
    bytes: [u8; LONGEST_PROBLEM],
    len: usize,
}

impl Line {
    pub fn new(text: fmt::Arguments<'_>) -> Line {
        let mut line = Line {
            bytes: [0; LONGEST_PROBLEM],
            len: 0,
        };
        // What doesn't fit is cut off.
        let _ = line.write_fmt(text);
        line
    }

    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..self.len];
        std::str::from_utf8(bytes).unwrap_or_else(|e| {
            // Cut within a character.
            std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or("")
        })
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let n = s.len().min(LONGEST_PROBLEM - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        if n == s.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

/// What all runs of a graph share.
pub struct Shared {
    pub(crate) counters: Counters,
    /// Why the graph is no longer followed.
    off: AtomicBool,
    /// Problems, a line each.
    why: Mutex<String>,
    pub(crate) sink: Option<&'static dyn Sink>,
    /// The last run that made calls ahead gave none to the pool; before any has, whether that is to be expected.
    pub(crate) without_pool: AtomicBool,
    /// Depths that the last runs ended with, by device; 0: none yet.
    pub(crate) depths: [AtomicU32; device::DEVICES],
    /// The device of the last run's last read.
    pub(crate) device: AtomicU32,
    /// What looking ahead is worth now.
    pub(crate) payback: Payback,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared {
            counters: Counters::default(),
            off: AtomicBool::new(false),
            why: Mutex::new(String::with_capacity(PROBLEMS)),
            sink: None,
            without_pool: AtomicBool::new(false),
            depths: Default::default(),
            device: AtomicU32::new(0),
            payback: Payback::default(),
        }
    }
}

impl Shared {
    /// What was found wrong, a line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let why = self.why.lock().unwrap_or_else(|e| e.into_inner());
        why.lines().map(str::to_owned).collect()
    }

    pub(crate) fn is_off(&self) -> bool {
        self.off.load(Relaxed)
    }

    pub(crate) fn switch_off(&self, why: &str) {
        if !self.off.swap(true, Relaxed) {
            self.keep(why, true);
        }
    }

    pub(crate) fn note(&self, problem: fmt::Arguments<'_>) {
        self.keep(Line::new(problem).as_str(), false);
    }

    /// Neither allocates nor waits: what comes while another thread notes something is lost.
    fn keep(&self, problem: &str, off: bool) {
        let Ok(mut list) = self.why.try_lock() else {
            return;
        };
        let known = list.lines().any(|l| l == problem);
        if known && !off {
            return;
        }
        if !known && list.len() + problem.len() < PROBLEMS {
            list.push_str(problem);
            list.push('\n');
        }
        drop(list);
        if let Some(sink) = self.sink {
            sink.note(problem, off);
        }
    }

    /// The counts of a run that has ended.
    pub(crate) fn ended(&self, counts: &Counts, among: bool) {
        self.counters.add(counts);
        if let Some(sink) = self.sink {
            sink.add(counts);
        }
        let (unused, hits) = (
            self.counters.unused.load(Relaxed),
            self.counters.hits.load(Relaxed),
        );
        if among && unused > UNUSED && unused > hits * UNUSED_PER_HIT {
            self.switch_off("the function does not make most of the calls that the graph foresees");
        }
    }

    /// A call that was not foreseen. `local` are the counts of the run that are not in `counters` yet.
    pub(crate) fn diverged(&self, local: &Counts) {
        let n = self.counters.divergences.load(Relaxed) + local.divergences;
        let calls = self.counters.calls.load(Relaxed) + local.calls;
        if n > DIVERGENCES && n * CALLS_PER_DIVERGENCE > calls {
            self.switch_off("the function makes other calls than the graph foresees");
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls in {} runs, {} ahead, {} used ({} waited for), {} unused, {} left out, {} not foreseen",
            self.calls,
            self.scopes,
            self.ahead,
            self.hits,
            self.waits,
            self.unused,
            self.skipped,
            self.divergences
        )?;
        if self.unclaimed_effects != 0 {
            write!(f, ", {} EFFECTS NOT CALLED", self.unclaimed_effects)?;
        }
        Ok(())
    }
}
