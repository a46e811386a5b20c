//! Who used the processors: the run, its neighbours, the emulator, this program, or others.
//!
//! Others' work makes a run slower than it is. It is what remains of the machine's busy time when that of known
//! processes is taken off, and that of kernel threads, which work for the run's I/O; so are interrupts.

use std::fs;

/// PF_KTHREAD of a process's flags (linux/sched.h).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// CPU seconds since the machine started.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// All processes', and what the hypervisor gave to others.
    busy: f64,
    /// Of these, kernel threads', the emulator's and this process's.
    known: f64,
}

impl Sample {
    /// Now; `server` is the emulator's process.
    pub fn take(server: u32) -> Self {
        let tick = rustix::param::clock_ticks_per_second() as f64;
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let first = stat.lines().next().unwrap_or_default();
        let of: Vec<f64> = first
            .split_whitespace()
            .skip(1)
            .filter_map(|w| w.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal …
        let busy = [0, 1, 2, 7].iter().filter_map(|i| of.get(*i)).sum::<f64>() / tick;
        let mut known = 0.0;
        let own = std::process::id();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|n| n.parse::<u32>().ok())
            else {
                continue;
            };
            let Some((flags, ticks)) = process(pid) else {
                continue;
            };
            if flags & KERNEL_THREAD != 0 || pid == server || pid == own {
                known += ticks / tick;
            }
        }
        Self { busy, known }
    }

    /// Processors that others used between `self` and `later`, `seconds` apart, in which the run and its neighbours
    /// used `ours` seconds of CPU time.
    pub fn foreign(&self, later: &Self, seconds: f64, ours: f64) -> f64 {
        let others = (later.busy - self.busy) - (later.known - self.known) - ours;
        (others / seconds.max(1e-3)).max(0.0)
    }
}

/// A process's flags and CPU time in ticks.
fn process(pid: u32) -> Option<(u64, f64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything; state follows it.
    let rest = &stat[stat.rfind(')')? + 2..];
    let of: Vec<&str> = rest.split(' ').collect();
    let number = |i: usize| of.get(i)?.parse::<u64>().ok();
    Some((number(6)?, (number(11)? + number(12)?) as f64))
}
