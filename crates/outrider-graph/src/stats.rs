//! What became of the calls that a graph foresaw.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A diverging graph is switched off once it has diverged more often than this …
const DIVERGENCES: u64 = 8;
/// … and more often than once in so many calls.
const CALLS_PER_DIVERGENCE: u64 = 16;
/// Problems that are kept in words.
const PROBLEMS: usize = 64;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a graph, over all its runs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        /// The same, shared by threads.
        #[derive(Default)]
        pub(crate) struct Counters { $(pub $name: AtomicU64,)* }

        impl Counters {
            fn get(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }

            pub fn add(&self, c: &Counts) {
                $(if c.$name != 0 { self.$name.fetch_add(c.$name, Relaxed); })*
            }
        }
    };
}

counters! {
    /// Runs of the function.
    scopes,
    /// Calls that the function made through its scope.
    calls,
    /// Calls given to an engine before the function made them.
    ahead,
    /// Calls answered with what an engine had done.
    hits,
    /// Of these, how many were waited for.
    waits,
    /// Results that nobody asked for.
    unused,
    /// Foreseen calls that the function left out.
    skipped,
    /// Calls that the graph did not foresee.
    divergences,
    /// Calls with effects that were made ahead and that the function then did not make: the graph is wrong.
    unclaimed_effects,
}

/// What all runs of a graph share.
#[derive(Default)]
pub struct Shared {
    pub(crate) counters: Counters,
    /// Why the graph is no longer followed.
    off: AtomicBool,
    why: Mutex<Vec<String>>,
    /// Depth that the last run ended with; 0: none yet.
    pub(crate) depth: AtomicU32,
    /// Calls, in a row, that would have been quick anyway.
    pub(crate) quick: AtomicU32,
    /// Calls still to be let pass before it is tried again whether looking ahead brings anything.
    pub(crate) rest: AtomicU64,
    /// How long the next rest will be, in calls.
    pub(crate) next_rest: AtomicU64,
}

impl Shared {
    pub(crate) fn is_off(&self) -> bool {
        self.off.load(Relaxed)
    }

    pub(crate) fn switch_off(&self, why: &str) {
        if !self.off.swap(true, Relaxed) {
            self.note(why.into());
        }
    }

    pub(crate) fn note(&self, problem: String) {
        let mut list = self.why.lock().unwrap_or_else(|e| e.into_inner());
        if list.len() < PROBLEMS && !list.contains(&problem) {
            list.push(problem);
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

impl<C: ?Sized> crate::Graph<C> {
    /// What became of its calls so far, of the runs that have ended.
    pub fn counts(&self) -> Counts {
        self.shared.counters.get()
    }

    /// Whether it has been switched off: it diverged too often, or contradicted itself.
    pub fn is_off(&self) -> bool {
        self.shared.is_off()
    }

    /// What was found wrong with it: why it was switched off, and with [`crate::Engine::Check`] every prediction that
    /// did not come true.
    pub fn problems(&self) -> Vec<String> {
        self.shared
            .why
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone()
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
