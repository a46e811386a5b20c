//! Where the settings of a run come from: the command line, the environment, the program's section of the configuration, and the rest of that.
//! Each takes precedence over those behind it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use outrider_core::config::Config;

use crate::cli::RunArgs;
use crate::config;
use crate::elf;
use crate::output::{Failure, show};

/// What is the matter with the settings of a run: they hold, or the program is to run as if this weren't there.
pub enum Settled {
    /// With what was wrong with a file that nobody named.
    Run(Box<Config>, Option<String>),
    /// Its section says `enabled = false`.
    Off,
}

/// The value of a variable; an empty one says nothing.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The value of a variable as `read` takes it, or that it is none that is accepted.
fn read<T>(
    name: &str,
    accepted: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Failure> {
    let Some(value) = variable(name) else {
        return Ok(None);
    };
    match value.to_str().and_then(read) {
        Some(read) => Ok(Some(read)),
        None => Err(Failure::usage(format!(
            "{name}={} is not accepted; accepted {accepted}",
            show(value)
        ))),
    }
}

/// The flag before the program, if that is one whose value takes `=` and the program is the file that somebody has meant by it: there is no such program.
pub fn meant_as_value(command: &[OsString]) -> Option<&'static str> {
    // The program's words are the last ones. It may be called like any before them, also like this command.
    let words = std::env::args_os().len();
    let before = words.checked_sub(command.len() + 1)?;
    let word = std::env::args_os().nth(before)?;
    let flags = ["--report", "--remember"];
    let flag = flags.into_iter().find(|flag| word == *flag)?;
    elf::look_up(&command[0])
        .is_none_or(|path| !is_executable(&path))
        .then_some(flag)
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

fn one_of<T: ValueEnum>(name: &str) -> Result<Option<T>, Failure> {
    let accepted = format!("are {}", config::names::<T>());
    read(name, &accepted, |text| T::from_str(text, false).ok())
}

/// Completes what the command line says.
pub fn settle(args: &mut RunArgs) -> Result<Settled, Failure> {
    let mode = one_of("OUTRIDER_MODE")?;
    let engine = one_of("OUTRIDER_ENGINE")?;
    let budget = "are bytes or a number with K, M, G or T, such as 4096, 128K or 1.5G";
    let budget = read("OUTRIDER_BUDGET", budget, |text| {
        outrider_cli::size::parse(text).ok()
    })?;
    let every = "is a number of seconds from 1 to 86400";
    let every = read("OUTRIDER_REPORT_EVERY", every, |text| {
        text.parse().ok().filter(|n| (1..=86_400).contains(n))
    })?;
    args.config = args
        .config
        .take()
        .or_else(|| variable("OUTRIDER_CONFIG").map(PathBuf::from));
    let report = || variable("OUTRIDER_REPORT").map(|path| (path != "-").then(|| path.into()));
    args.report = args.report.take().or_else(report);
    // As in the variable, it is the table.
    if args.report == Some(Some(PathBuf::from("-"))) {
        args.report = Some(None);
    }
    // Variables are inherited, also by runs that have no file for a report: without one it says nothing.
    let (by, every) = match (args.report_every, &args.report) {
        (Some(every), _) => ("--report-every", Some(every)),
        (None, Some(Some(_))) => ("OUTRIDER_REPORT_EVERY", every),
        (None, _) => ("OUTRIDER_REPORT_EVERY", None),
    };
    args.report_every = every;
    let file = config::load(args.config.as_deref(), Some(&args.command[0]))?;
    args.mode = args.mode.or(mode).or(file.program.mode);
    args.engine = args.engine.or(engine).or(file.program.engine);
    args.budget = args.budget.or(budget).or(file.program.budget);
    if file.program.enabled == Some(false) {
        return Ok(Settled::Off);
    }
    match (&args.report, args.report_every) {
        (None | Some(None), Some(_)) => Err(Failure::usage(
            "--report-every: there is no file to be written; accepted is --report=FILE beside it",
        )),
        (Some(Some(path)), Some(_)) if Path::new(path).exists() && !Path::new(path).is_file() => {
            Err(Failure::usage(format!(
                "{by}: {} is no regular file; accepted is one, since each report takes the place of the one before",
                show(path)
            )))
        }
        _ => Ok(Settled::Run(Box::new(file.config), file.lost)),
    }
}
