//! A process that has an engine for itself alone, without a service: what it reads it reads by the engine, or beside it.

use outrider_sys::units::PAGE;

use super::{Counters, Program, Readers, System};
use crate::engine::{Engine, Load};

/// The process.
pub struct Process<'a> {
    /// Its engine.
    pub engine: &'a Engine,
    /// What the system counts.
    pub system: &'a System,
    /// Bytes of the longest requests.
    pub chunk: u64,
}

impl Process<'_> {
    /// Bytes that all threads of the process have fetched.
    fn fetched(&self) -> u64 {
        let own = self.system.own_pid();
        self.system.bytes_fetched(own).unwrap_or(0)
    }
}

impl Readers for Process<'_> {
    fn programs(&self, _longest: u64) -> Option<Vec<Program>> {
        Some(Vec::new())
    }

    fn least_beside(&self) -> u64 {
        let all = self.fetched();
        pages(all, self.engine.fetched())
    }

    fn most_beside(&self) -> u64 {
        let engine = self.engine.fetched();
        pages(self.fetched(), engine)
    }

    fn reads_beside(&self, _load: &Load, _entered: u64) -> bool {
        true
    }

    fn chunk(&self) -> u64 {
        self.chunk
    }

    fn walks(&self) -> bool {
        false
    }

    fn hinted(&self) -> u64 {
        0
    }
}

/// Requests that a process has made of which it is only known how many bytes they brought, `engine` less than `all`: each page counts as one.
fn pages(all: u64, engine: u64) -> u64 {
    all.saturating_sub(engine) / PAGE
}
