//! `outrider-lab simulate`: programs in simulated time, without and with Outrider, and the bound.

use std::path::{Path, PathBuf};

use clap::Args;
use outrider_cli::{shown, size};
use outrider_core::config::Config;
use outrider_core::shm::{self, SOURCE_FIGURES};
use outrider_sim::device::Nanos;
use outrider_sim::ours::Ours;
use outrider_sim::remembered::{Recorder, Remembered};
use outrider_sim::system::{Machine, Neighbour, Waits};
use outrider_sim::trace::Trace;
use outrider_sim::{Nothing, Outcome, bound, generate, run};
use std::os::unix::ffi::OsStrExt;

use crate::output::{Context, Failure, Outcome as Done};

/// `outrider-lab simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Programs: files with traces, or `gen:NAME?key=value&…`, which `--list` shows.
    #[arg(value_name = "TRACE", required_unless_present = "list")]
    traces: Vec<String>,
    /// The device: a model of `outrider-lab disk up`, with words.
    #[arg(long, value_name = "MODEL", default_value = "remote")]
    device: String,
    /// Bytes of the page cache.
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = size::parse)]
    memory: u64,
    /// The kernel's read-ahead, KiB.
    #[arg(long, value_name = "KB", default_value_t = 128, value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    readahead_kb: u64,
    /// The longest request that the device is given, KiB.
    #[arg(long, value_name = "KB", default_value_t = 1280, value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    longest_kb: u64,
    /// A foreign reader of 4 KiB blocks: requests at once, and microseconds between an answer and the next.
    #[arg(long, value_name = "DEPTH[,US]", value_parser = neighbour)]
    neighbour: Option<Neighbour>,
    /// Remember each program's run with Outrider, and show a second one, cold, that has its profile.
    #[arg(long)]
    remember: bool,
    /// Show what became of what each source of foresight has asked for.
    #[arg(long, conflicts_with = "remember")]
    sources: bool,
    /// Settings of the service, in TOML.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the trace instead.
    #[arg(long)]
    print: bool,
    /// Show which programs can be made.
    #[arg(long, conflicts_with_all = ["traces", "print"])]
    list: bool,
}

/// `DEPTH` or `DEPTH,MICROSECONDS`.
fn neighbour(words: &str) -> Result<Neighbour, String> {
    let (depth, pause) = words.split_once(',').unwrap_or((words, "0"));
    let number = |word: &str, most: u64| word.parse::<u64>().ok().filter(|n| *n <= most);
    match (number(depth, 1024), number(pause, 60_000_000)) {
        (Some(depth), Some(pause)) if depth > 0 => Ok(Neighbour {
            depth: depth as u32,
            pause: pause * 1000,
        }),
        _ => Err("accepted is a number of requests from 1 to 1024, and microseconds up to 60000000 after a comma".to_owned()),
    }
}

/// A trace from a file, or made.
fn trace(name: &str) -> Result<Trace, Failure> {
    let bad = |why: String| Failure::usage(format!("{}: {why}", shown::line(name.as_bytes())));
    match name.strip_prefix("gen:") {
        Some(spec) => generate::generate(spec).map_err(bad),
        None => {
            let text = std::fs::read_to_string(name).map_err(|e| bad(e.to_string()))?;
            Trace::read(&text).map_err(bad)
        }
    }
}

/// The service's settings.
pub fn config(file: Option<&Path>) -> Result<Config, Failure> {
    let Some(file) = file else {
        return Ok(Config::default());
    };
    let bad = |why: String| {
        Failure::usage(format!(
            "{}: {why}",
            shown::line(file.as_os_str().as_bytes())
        ))
    };
    let text = std::fs::read_to_string(file).map_err(|e| bad(e.to_string()))?;
    let config: Config = toml::from_str(&text).map_err(|e| bad(e.message().to_owned()))?;
    config.validate().map_err(bad)?;
    Ok(config)
}

/// Simulates all programs, and prints a line for each.
pub fn simulate(args: &SimulateArgs) -> Done {
    if args.list {
        for (name, what) in generate::NAMES {
            println!("gen:{name:12} {what}");
        }
        println!(
            "keys: size=64M block=16K stride=64K threads=1 files=100 ops=0 (all) think=0 (ns) seed=1"
        );
        return Ok(());
    }
    let traces: Vec<Trace> = args
        .traces
        .iter()
        .map(|name| trace(name))
        .collect::<Result<_, _>>()?;
    if args.print {
        traces.iter().for_each(|trace| print!("{}", trace.text()));
        return Ok(());
    }
    let machine = Machine::of(&args.device, args.memory).map_err(|why| {
        Failure::usage(format!(
            "--device {}: {why}",
            shown::line(args.device.as_bytes())
        ))
    })?;
    let machine = Machine {
        read_ahead: args.readahead_kb << 10,
        longest: args.longest_kb << 10,
        neighbour: args.neighbour,
        ..machine
    };
    let config = config(args.config.as_deref())?;
    let width = args
        .traces
        .iter()
        .map(String::len)
        .max()
        .unwrap_or(0)
        .max(7);
    if args.remember {
        return remember(args, &traces, &machine, &config, width);
    }
    println!(
        "{:width$}  {:>13} {:>13} {:>13}  {:>7} {:>7}  {:>9} {:>9}  {:>8}",
        "program", "stock", "outrider", "bound", "gain", "of best", "MiB", "wasted", "service"
    );
    for (name, trace) in args.traces.iter().zip(&traces) {
        let stock = run(trace, &machine, &mut Nothing);
        let mut ahead =
            Ours::new(config.clone(), shm::MODE_PREDICT_OPT).doing("simulating the service")?;
        let ours = run(trace, &machine, &mut ahead);
        let bound = bound(trace, &machine);
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        let read = |o: &Outcome| o.program.bytes + o.ahead.bytes;
        println!(
            "{:width$}  {:>13.9} {:>13.9} {:>13.9}  {:>7.3} {:>6.1}%  {:>9.2} {:>9.2}  {:>8.6}",
            name,
            stock.elapsed as f64 / 1e9,
            ours.elapsed as f64 / 1e9,
            bound.elapsed as f64 / 1e9,
            stock.elapsed as f64 / ours.elapsed as f64,
            bound.elapsed as f64 / ours.elapsed as f64 * 100.0,
            mib(read(&ours)),
            mib(read(&ours).saturating_sub(read(&stock)).max(ours.wasted)),
            ahead.busy() as f64 / 1e9,
        );
        if args.neighbour.is_some() {
            println!(
                "  the neighbour waits, µs: stock {}; outrider {}",
                waits(&stock.neighbour),
                waits(&ours.neighbour)
            );
        }
        if args.sources {
            for (source, figures) in ahead.figures() {
                let each = SOURCE_FIGURES.iter().zip(figures);
                let each: Vec<String> = each.map(|(name, n)| format!("{name} {n}")).collect();
                println!("  {source}: {}", each.join(", "));
            }
        }
    }
    Ok(())
}

/// In µs: half of them, 99 %, and all.
fn waits(waits: &Waits) -> String {
    let us = |ns: Nanos| format!("{:.1}", ns as f64 / 1e3);
    let (half, hundredth, longest) = (us(waits.half), us(waits.hundredth), us(waits.longest));
    format!(
        "50 % {half}, 99 % {hundredth}, longest {longest} of {}",
        waits.count
    )
}

/// The same with a second run that has the profile of the first.
fn remember(
    args: &SimulateArgs,
    traces: &[Trace],
    machine: &Machine,
    config: &Config,
    width: usize,
) -> Done {
    println!(
        "{:width$}  {:>13} {:>13} {:>13} {:>13}  {:>7} {:>7}  {:>9} {:>9}",
        "program", "stock", "first", "second", "bound", "gain", "of best", "MiB", "unneeded"
    );
    let ours = || Ours::new(config.clone(), shm::MODE_PREDICT_OPT).doing("simulating the service");
    for (name, trace) in args.traces.iter().zip(traces) {
        let stock = run(trace, machine, &mut Nothing);
        let mut recorder = Recorder::new(ours()?);
        let first = run(trace, machine, &mut recorder);
        // As of what is available: the service takes half of it, and a profile half of that.
        let allowance = machine.memory / 4;
        let mut ahead = Remembered::new(ours()?, recorder.profile(), allowance);
        let second = run(trace, machine, &mut ahead);
        let bound = bound(trace, machine);
        let (asked, needed) = ahead.sum().fetched;
        let seconds = |o: &Outcome| o.elapsed as f64 / 1e9;
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        println!(
            "{:width$}  {:>13.9} {:>13.9} {:>13.9} {:>13.9}  {:>7.3} {:>6.1}%  {:>9.2} {:>9.2}",
            name,
            seconds(&stock),
            seconds(&first),
            seconds(&second),
            seconds(&bound),
            seconds(&stock) / seconds(&second),
            seconds(&bound) / seconds(&second) * 100.0,
            mib(second.program.bytes + second.ahead.bytes),
            mib(asked - needed),
        );
    }
    Ok(())
}
