//! `outrider-lab regret`: how much slower than stock any program can be made, in simulated time.
//!
//! Programs are drawn at random, and the worst of them are changed a little again and again for as long as that makes them worse: an adversary that searches.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use clap::Args;
use outrider_cli::shown;
use outrider_core::config::Config;
use outrider_core::shm;
use outrider_sim::ours::Ours;
use outrider_sim::phases::Phases;
use outrider_sim::random::Random;
use outrider_sim::system::Machine;
use outrider_sim::{DEVICES, Nothing, run};

use crate::output::{Context, Failure, Outcome as Done};
use crate::simulate;

/// A run that takes less, ns, counts as if it took this: 5 % of it are 1 ms, which nobody notices.
const SHORT: f64 = 20e6;

/// `outrider-lab regret`.
#[derive(Debug, Args)]
pub struct RegretArgs {
    /// Programs that are drawn, for each device.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    programs: u64,
    /// The seed of the first; the others follow.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A device: a model of `outrider-lab disk up`, with words. Without it, eleven.
    #[arg(long = "device", value_name = "MODEL")]
    devices: Vec<String>,
    /// Bytes of the page cache.
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = outrider_cli::size::parse)]
    memory: u64,
    /// How often the search changes a program.
    #[arg(long, value_name = "N", default_value_t = 0)]
    climb: u64,
    /// How many of the worst are shown, and searched from.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    worst: u64,
    /// Settings of the service, in TOML.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Threads that simulate.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1024))]
    jobs: u64,
}

/// What became of a program.
#[derive(Clone)]
struct Tried {
    program: Phases,
    /// ns that it takes on stock Linux, and with Outrider.
    stock: f64,
    ours: f64,
}

impl Tried {
    fn new(program: Phases, machine: &Machine, config: &Config) -> Result<Tried, Failure> {
        let trace = program.trace();
        let mut ahead =
            Ours::new(config.clone(), shm::MODE_PREDICT_OPT).doing("simulating the service")?;
        let ours = run(&trace, machine, &mut ahead).elapsed as f64;
        let stock = run(&trace, machine, &mut Nothing).elapsed as f64;
        Ok(Tried {
            program,
            stock,
            ours,
        })
    }

    /// How many times as long it takes with Outrider.
    fn ratio(&self) -> f64 {
        1.0 + (self.ours - self.stock) / self.stock.max(SHORT)
    }

    fn show(&self) {
        println!(
            "  {:.3}  {:.6} -> {:.6}  gen:phases?{}",
            self.ratio(),
            self.stock / 1e9,
            self.ours / 1e9,
            self.program.text()
        );
    }
}

/// Does `work` for 0..n on several threads; results in that order.
fn each<T: Send>(
    jobs: u64,
    n: u64,
    work: impl Fn(u64) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let next = AtomicU64::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Relaxed);
                    if i >= n {
                        break;
                    }
                    let result = work(i);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Changes a program for as long as that makes it worse, some times.
fn climb(
    from: &Tried,
    machine: &Machine,
    config: &Config,
    steps: u64,
    seed: u64,
) -> Result<Tried, Failure> {
    let mut random = Random::new(seed);
    let mut worst = from.clone();
    for _ in 0..steps {
        let other = Tried::new(worst.program.mutate(&mut random), machine, config)?;
        if other.ratio() >= worst.ratio() {
            worst = other;
        }
    }
    Ok(worst)
}

/// Draws programs, tries them on each device, and shows the worst.
pub fn regret(args: &RegretArgs) -> Done {
    let names: Vec<&str> = match &args.devices[..] {
        [] => DEVICES.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let mut machines = Vec::new();
    for name in names {
        let machine = Machine::of(name, args.memory).map_err(|why| {
            Failure::usage(format!("--device {}: {why}", shown::line(name.as_bytes())))
        })?;
        machines.push((name, machine));
    }
    let config = simulate::config(args.config.as_deref())?;
    for (name, machine) in &machines {
        let mut all = each(args.jobs, args.programs, |i| {
            let program = Phases::draw(args.seed.wrapping_add(i));
            Tried::new(program, machine, &config)
        })?;
        let (stock, ours) = all
            .iter()
            .fold((0.0, 0.0), |(s, o), t| (s + t.stock, o + t.ours));
        all.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        let share = |share: f64| all[((all.len() - 1) as f64 * share) as usize].ratio();
        println!(
            "{name}: {} programs, {:.3} -> {:.3} s; half {:.3}, 99 % {:.3}, 99.9 % {:.3}, worst {:.3}",
            all.len(),
            stock / 1e9,
            ours / 1e9,
            share(0.5),
            share(0.99),
            share(0.999),
            share(1.0)
        );
        let worst: Vec<&Tried> = all.iter().rev().take(args.worst as usize).collect();
        worst.iter().for_each(|t| t.show());
        if args.climb > 0 {
            let mut found = each(args.jobs, worst.len() as u64, |i| {
                let seed = args.seed ^ i << 32;
                climb(worst[i as usize], machine, &config, args.climb, seed)
            })?;
            found.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
            println!(" after {} changes each:", args.climb);
            found.iter().for_each(Tried::show);
        }
    }
    Ok(())
}
