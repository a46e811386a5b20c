//! A workload's own figures: counted and timed operations, told in one line that `outrider-lab run` collects.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

/// How the line begins (`FIGURES_PREFIX` in the lab's rows).
const PREFIX: &str = "outrider-work: ";
/// An operation that takes longer than this has waited for the device: a cached read of 16 KiB takes 2 to 4 µs,
/// the fastest modelled device 80 µs.
const WAITED: Duration = Duration::from_micros(40);

/// Operations of one thread or of all.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Durations of the operations, µs.
    took: Vec<f32>,
    /// Bytes that they moved.
    bytes: u64,
}

impl Figures {
    /// None yet; room for `ops`.
    pub fn with_room(ops: usize) -> Self {
        Self {
            took: Vec::with_capacity(ops),
            bytes: 0,
        }
    }

    /// An operation that began at `since` and moved `bytes` has just ended.
    pub fn done(&mut self, since: Instant, bytes: u64) {
        self.took.push(since.elapsed().as_secs_f32() * 1e6);
        self.bytes += bytes;
    }

    /// Adds another thread's.
    pub fn add(&mut self, other: Self) {
        self.took.extend(other.took);
        self.bytes += other.bytes;
    }

    /// Writes the line: `ops`, `bytes`, `ops_per_s`, `p50_us`, `p99_us`, `waited_permille`, and `more`.
    pub fn tell(mut self, elapsed: Duration, more: &[(&str, f64)]) {
        self.took.sort_by(f32::total_cmp);
        let ops = self.took.len();
        let waited = WAITED.as_secs_f32() * 1e6;
        let mut line = Map::new();
        let mut put = |name: &str, value: f64| {
            // Three decimals are more than any of them means.
            let value = (value * 1e3).round() / 1e3;
            line.insert(name.to_owned(), Value::from(value));
        };
        put("ops", ops as f64);
        put("bytes", self.bytes as f64);
        if ops > 0 {
            let at = |share: f64| f64::from(self.took[((ops - 1) as f64 * share).round() as usize]);
            put("ops_per_s", ops as f64 / elapsed.as_secs_f64().max(1e-9));
            put("p50_us", at(0.5));
            put("p99_us", at(0.99));
            let over = ops - self.took.partition_point(|t| *t <= waited);
            put("waited_permille", 1e3 * over as f64 / ops as f64);
        }
        for (name, value) in more {
            put(name, *value);
        }
        // Standard error has no buffer: it would be some dozens of system calls, and more of them for a graph's figures.
        let line = format!("{PREFIX}{}\n", Value::Object(line));
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}
