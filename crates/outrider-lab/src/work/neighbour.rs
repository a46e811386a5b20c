//! Neighbours that take what a measured program wants: the processor, memory. libprefetch, section 5.6.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::{Result, Wrong, size};

/// `outrider-work hog`.
///
/// Keeps processors busy until it is killed, or whoever started it is gone.
#[derive(Debug, clap::Args)]
pub struct HogArgs {
    /// Processors.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// End after so many seconds.
    #[arg(long)]
    seconds: Option<f64>,
}

/// `outrider-work walk-memory`.
///
/// Takes memory and reads each of its pages in turn, over and over, until it is killed, or whoever started it is gone.
#[derive(Debug, clap::Args)]
pub struct WalkArgs {
    /// Bytes.
    #[arg(value_parser = size::parse)]
    memory: u64,
    /// End after so many rounds over all pages.
    #[arg(long)]
    rounds: Option<u64>,
}

/// Tells, a few times a second and cheaply between, whether to go on.
struct Life {
    parent: i32,
    end: Option<Instant>,
    looked: Instant,
}

impl Life {
    fn new(seconds: Option<f64>) -> Result<Self> {
        let now = Instant::now();
        let end = match seconds {
            None => None,
            Some(s) => Some(
                Duration::try_from_secs_f64(s)
                    .ok()
                    .and_then(|d| now.checked_add(d))
                    .ok_or_else(|| Wrong::usage(format!("--seconds {s} is not a time")))?,
            ),
        };
        Ok(Self {
            parent: parent(),
            end,
            looked: now,
        })
    }

    fn goes_on(&mut self) -> bool {
        let now = Instant::now();
        if now - self.looked > Duration::from_millis(100) {
            self.looked = now;
            if parent() != self.parent {
                return false;
            }
        }
        self.end.is_none_or(|end| now < end)
    }
}

fn parent() -> i32 {
    // SAFETY: takes and returns numbers only.
    unsafe { libc::getppid() }
}

/// Runs the hog.
pub fn hog(args: &HogArgs) -> Result {
    let mut lives = Vec::new();
    for _ in 0..args.threads {
        lives.push(Life::new(args.seconds)?);
    }
    std::thread::scope(|scope| {
        for life in &mut lives {
            scope.spawn(move || {
                let mut x = 1u64;
                while life.goes_on() {
                    for _ in 0..10_000 {
                        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                    }
                }
            });
        }
    });
    Ok(())
}

/// Runs the walk.
pub fn walk(args: &WalkArgs) -> Result {
    const PAGE: usize = outrider_sys::units::PAGE as usize;
    let length = usize::try_from(args.memory)
        .ok()
        .filter(|n| *n >= PAGE)
        .ok_or_else(|| Wrong::usage("at least a page of 4096 bytes is walked"))?;
    let mut memory = Vec::<u8>::new();
    memory
        .try_reserve_exact(length)
        .map_err(|e| Wrong::system(format!("{length} bytes of memory"), e))?;
    memory.resize(length, 1);
    let mut life = Life::new(None)?;
    let mut sum = 0u64;
    let mut rounds = 0;
    while args.rounds.is_none_or(|wanted| rounds < wanted) {
        // A look at the clock per 256 pages: 1 MiB.
        for part in memory.chunks(256 * PAGE) {
            if !life.goes_on() {
                return Ok(());
            }
            for page in part.chunks(PAGE) {
                sum = sum.wrapping_add(u64::from(black_box(page[0])));
            }
        }
        rounds += 1;
    }
    println!("{rounds} rounds, {sum} pages");
    Ok(())
}
