//! How far a measurement has come: a line with the time left on a terminal, plain lines otherwise.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps of the bar; each row on a device takes so many.
const STEPS: u64 = 1000;

/// The progress of all rows on all devices.
pub struct Progress {
    bar: Option<ProgressBar>,
    pairs: usize,
    done: usize,
    start: Instant,
}

impl Progress {
    /// Of `pairs` rows on devices.
    pub fn new(pairs: usize) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(
                Some(pairs as u64 * STEPS),
                ProgressDrawTarget::stderr_with_hz(4),
            );
            let style =
                ProgressStyle::with_template("{wide_msg} {bar:20} {percent:>3} %, {prefix}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self {
            bar,
            pairs,
            done: 0,
            start: Instant::now(),
        }
    }

    /// What is being done; `part` of the current row on its device is done (0..=1).
    pub fn at(&self, what: &str, part: f64) {
        let Some(bar) = &self.bar else { return };
        let done = self.done as f64 + part.clamp(0.0, 1.0);
        bar.set_position((done * STEPS as f64) as u64);
        bar.set_message(what.to_owned());
        bar.set_prefix(match self.left(done) {
            Some(left) => format!("{} left", span(left)),
            None => "time left unknown".to_owned(),
        });
    }

    /// A row on a device is done.
    pub fn next(&mut self) {
        self.done += 1;
    }

    /// Rows on devices that are still to come, the current one included.
    pub fn pairs_left(&self) -> usize {
        self.pairs.saturating_sub(self.done).max(1)
    }

    /// Says a line for good.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| println!("{line}")),
            None => println!("{line}"),
        }
    }

    /// Complains for good.
    pub fn complain(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| crate::output::complain(line)),
            None => crate::output::complain(line),
        }
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn left(&self, done: f64) -> Option<Duration> {
        let rest = (self.pairs as f64 - done) / done;
        // A guess from next to nothing is none.
        (done >= 0.02).then(|| self.start.elapsed().mul_f64(rest.max(0.0)))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn span(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s => format!("{} min", s.div_ceil(60)),
    }
}
