//! `outrider try`: a program without and with its reads foreseen, in turn, on files that are made cold before each run.
//!
//! What it reads is found by a first run that is remembered (see `profile`). What can't be made cold would be no test: what waits to be written, what
//! running programs have mapped, what lies in memory and what the kernel doesn't tell of. Of these there may be a part, since the C library is always
//! among them; beyond that nothing is measured.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use outrider_cli::Context;
use outrider_core::explain::Reason;
use outrider_sys::device::{Device, LiesOn, lies_on};
use outrider_sys::units::PAGE;
use serde_json::Value;
use tempfile::TempDir;

use crate::cached::residency;
use crate::cli::{Mode, RunArgs, TryArgs};
use crate::evict;
use crate::output::{self, Failure, Outcome, bytes, show};
use crate::preload;
use crate::profile;
use crate::settings::{self, Settled};
use crate::tree::{self, Found};
use crate::{elf, run};

/// So much of what the program reads may stay cached, of all: it is alike in both ways, and makes the difference smaller than it is.
const MAY_STAY: f64 = 0.25;
/// Times that differ by less, as a share of the longer, are alike: what runs of one program differ by on a quiet machine.
const ALIKE: f64 = 0.05;
/// A program has waited for what nobody foresaw if that took so much of its time.
const WAITED: f64 = 0.2;
/// A part of what was missed of which nothing is said.
const LITTLE: f64 = 0.1;
/// What a run takes to start and end where it is measured: half a millisecond, up to eight where a service starts (README), and two for the report,
/// seconds. A program that takes no longer by itself shows nothing but that.
const START: f64 = 0.0105;
/// The processor is what a program waits for if it takes so much of the time.
const BUSY: f64 = 0.8;

/// Where what is measured is kept meanwhile: TMPDIR, unless somebody else may put another directory in the place of one there.
fn place() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let is_kept = |directory: &Path| {
        let found = std::fs::symlink_metadata(directory);
        found.is_ok_and(|m| {
            [0, user].contains(&m.uid()) && (m.mode() & 0o022 == 0 || m.mode() & 0o1000 != 0)
        })
    };
    let named = std::env::temp_dir().canonicalize();
    let kept = named.ok().filter(|path| path.ancestors().all(is_kept));
    kept.unwrap_or_else(|| PathBuf::from("/tmp"))
}

/// Runs the subcommand. Exit code 1 where nothing could be measured, and as of `outrider run` where the program can't be started.
pub fn command(args: &TryArgs) -> Outcome {
    if run::is_switched_off() {
        return Err(Failure::usage(
            "OUTRIDER is off in the environment, and both ways would be the same; accepted is an environment without it",
        ));
    }
    settle(&args.command)?;
    let name = show(&args.command[0]);
    let Some(path) = elf::look_up(&args.command[0]) else {
        output::complain(&format!("{name}: no such program"));
        return Ok(127);
    };
    let own = std::env::current_exe().doing("this command's own file")?;
    watch_signals();
    let made = tempfile::Builder::new()
        .prefix("outrider-try-")
        .tempdir_in(place());
    let made = made.doing("a directory for what is measured")?;
    let place = made.path().to_owned();
    let mut made = Some(made);

    // Its output is shown, once.
    let profile = place.join("reads.profile");
    let mut remember = OsString::from("--remember=");
    remember.push(&profile);
    let mut first = ours(&own, &[&remember], &args.command)
        .stdin(Stdio::null())
        .spawn()
        .doing(&name)?;
    let first = wait_for(&mut first).doing(&name)?;
    die_if_told(&mut made);
    let ended_well = |status: &ExitStatus| !matches!(status.code(), None | Some(126 | 127));
    if !ended_well(&first) {
        let what = match first.signal() {
            Some(signal) => format!("signal {signal} ended it"),
            None => "it could not be run".to_owned(),
        };
        output::complain(&format!("{name}: {what}; nothing was measured"));
        return Ok(first.code().unwrap_or(1));
    }
    let mut files = match profile.exists() {
        true => profile::listing(profile.as_os_str())?.files,
        false => Vec::new(),
    };
    // Whoever uses them has them cached.
    let library = preload::library().ok();
    files.retain(|found| found.path != own && Some(&found.path) != library.as_ref());
    let library = library.and_then(|path| path.canonicalize().ok());
    files.retain(|found| Some(&found.path) != library.as_ref());

    let cold = Cold::make(&files);
    if let Some(reason) = cold.refusal() {
        output::complain(&format!("{name}: {reason}; nothing was measured"));
        return Ok(1);
    }
    cold.describe(files.len());

    let report = place.join("report.json");
    let mut to_report = OsString::from("--report=");
    to_report.push(&report);
    let explained = place.join("explained");
    let mut to_explain = OsString::from("--explain=");
    to_explain.push(&explained);
    let (mut stock, mut with) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        // Who comes first changes, so that what drifts concerns both.
        for is_stock in [round % 2 == 0, round % 2 != 0] {
            Cold::make(&files);
            let mut command = match is_stock {
                true => {
                    let mut command = Command::new(&args.command[0]);
                    command.args(&args.command[1..]);
                    command
                }
                false => ours(&own, &[&to_report, &to_explain], &args.command),
            };
            let (took, status) = measured(&mut command)
                .or_else(|e| match e.raw_os_error() {
                    // A script that doesn't say what runs it: the shell, as execvp(3) has it.
                    Some(libc::ENOEXEC) => {
                        let words = &args.command[1..];
                        measured(Command::new("/bin/sh").arg(&path).args(words))
                    }
                    _ => Err(e),
                })
                .doing(&name)?;
            die_if_told(&mut made);
            match is_stock {
                true => stock.push((took, status)),
                false => with.push((took, status)),
            }
        }
    }
    let all = stock.iter().chain(&with);
    if let Some((_, other)) = all.clone().find(|(_, status)| *status != first) {
        output::complain(&format!(
            "{name}: it ended in different ways ({first}, {other}): the times say nothing"
        ));
        return Ok(1);
    }
    let times = |runs: &[(Duration, ExitStatus)]| Times::of(runs.iter().map(|(took, _)| *took));
    let (stock, with) = (times(&stock), times(&with));
    let report: Value = fs::read(&report)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    eprint!("{}", table(&stock, &with));
    let explained = fs::read(&explained).unwrap_or_default();
    let missed = Missed::of(&report, &String::from_utf8_lossy(&explained));
    let verdict = Verdict::of(&stock, &with, &report, missed, &path);
    let mut text = verdict.text(&stock, &with);
    if let Some(code) = first.code().filter(|code| *code != 0) {
        text += &format!("; it ended with exit code {code} each time");
    }
    output::complain(&text);
    if let Some(advice) = verdict.advice() {
        output::complain(&format!("to try: {advice}"));
    }
    Ok(0)
}

/// Looks at the settings that its runs will have: with bad ones, and those by which nothing is foreseen, none begins.
fn settle(command: &[OsString]) -> Result<(), Failure> {
    let mut args = RunArgs {
        mode: None,
        ..RunArgs::bare(Mode::PredictOpt, Vec::new(), command.to_vec())
    };
    match settings::settle(&mut args)? {
        Settled::Off => Err(Failure::usage(format!(
            "{}: the configuration says enabled = false for it, and both ways would be the same; accepted is a program that it leaves enabled",
            show(&command[0])
        ))),
        Settled::Run(..) if matches!(args.mode(), Mode::OsOnly | Mode::AppOnly) => {
            Err(Failure::usage(format!(
                "{}: by OUTRIDER_MODE or the configuration nothing is foreseen; accepted are predict, predict+opt and fetchall+opt",
                args.mode().name()
            )))
        }
        Settled::Run(_, lost) => {
            lost.iter().for_each(|lost| output::complain(lost));
            Ok(())
        }
    }
}

/// Signals that end this run once the program has ended that was running: it gets those that are for this process alone, as its group gets the others by itself.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// The process that is measured; 0: none is.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// The signal that was received, or 0.
static ENDED_BY: AtomicI32 = AtomicI32::new(0);

/// Has signals wait for this run to clean up, unless they were ignored before.
fn watch_signals() {
    // SAFETY: a set that lives as long as the calls, all zero is valid; programs that are started have an empty mask.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        for signal in ENDING {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut before);
            if before.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&raw mut set, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        set
    };
    std::thread::spawn(move || {
        loop {
            // SAFETY: as above.
            let (signal, code) = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                (
                    libc::sigwaitinfo(&raw const set, &raw mut info),
                    info.si_code,
                )
            };
            if signal <= 0 {
                continue;
            }
            ENDED_BY.store(signal, SeqCst);
            let child = CHILD.load(SeqCst);
            if child > 0 && code <= 0 {
                // SAFETY: numbers only.
                unsafe { libc::kill(child, signal) };
            }
        }
    });
}

/// Dies by the signal that was received, if one was, once `place` is removed.
fn die_if_told(place: &mut Option<TempDir>) {
    let signal = ENDED_BY.load(SeqCst);
    if signal == 0 {
        return;
    }
    drop(place.take());
    // SAFETY: numbers and a set that lives as long as the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// The program with its reads foreseen.
fn ours(own: &Path, flags: &[&OsStr], command: &[OsString]) -> Command {
    let mut ours = Command::new(own);
    ours.arg("run").args(flags).arg("--").args(command);
    // The report is of this run's own.
    ours.env_remove("OUTRIDER_REPORT")
        .env_remove("OUTRIDER_REPORT_EVERY");
    ours
}

/// How long a program takes, and how it ends. Its output is read and thrown away: into /dev/null some write less. What it leaves behind may hold the pipe open.
fn measured(command: &mut Command) -> io::Result<(Duration, ExitStatus)> {
    let began = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut output) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut part = vec![0; 1 << 16];
            while output.read(&mut part).is_ok_and(|n| n > 0) {}
        });
    }
    let status = wait_for(&mut child)?;
    Ok((began.elapsed(), status))
}

/// Waits for a child, which is told of signals meanwhile.
fn wait_for(child: &mut Child) -> io::Result<ExitStatus> {
    CHILD.store(child.id() as i32, SeqCst);
    let early = ENDED_BY.load(SeqCst);
    if early != 0 {
        // SAFETY: numbers only. It may have come before anybody knew of the child.
        unsafe { libc::kill(child.id() as i32, early) };
    }
    let status = child.wait();
    CHILD.store(0, SeqCst);
    status
}

/// What could be made cold, bytes, and why the rest could not.
#[derive(Default)]
struct Cold {
    cold: u64,
    /// Of this, what lies on servers.
    served: u64,
    /// By the reason, and one of the files.
    stays: BTreeMap<&'static str, (u64, PathBuf)>,
}

impl Cold {
    fn make(files: &[Found]) -> Cold {
        let mut cold = Cold::default();
        let looked = tree::parallel(files, tree::METADATA_THREADS, |found| {
            // As a file that is named, all of it.
            let found = Found {
                remembered: None,
                ..found.clone()
            };
            let open = tree::open(&found).ok()??;
            if Device::of_dev(open.key.device()).is_memory() {
                return Some((open.size, open.size, false, "lie in memory"));
            }
            let evicted = evict::evict(&open);
            let left = residency(&open);
            let stays = left.resident_bytes();
            let why = match (stays, evicted) {
                (None, _) => "can't be seen, being another user's",
                (_, Err(_)) => "can't be dropped",
                _ if evict::dirty_bytes(&left) >= PAGE => "wait to be written",
                _ => "are in use by running programs",
            };
            let device = open.key.device();
            let server = lies_on(open.file.as_fd(), device.0) == LiesOn::Server;
            Some((open.size, stays.unwrap_or(open.size), server, why))
        });
        for (found, looked) in files.iter().zip(looked) {
            let Some((size, stays, server, why)) = looked else {
                continue;
            };
            let made = size.saturating_sub(stays);
            cold.cold += made;
            cold.served += if server { made } else { 0 };
            if stays > 0 {
                let reason = cold.stays.entry(why).or_insert((0, found.path.clone()));
                reason.0 += stays;
            }
        }
        cold
    }

    fn reasons(&self) -> String {
        let reasons = self.stays.iter().map(|(why, (n, first))| {
            format!("{} {why} ({} is one of the files)", bytes(*n), show(first))
        });
        reasons.collect::<Vec<_>>().join(", ")
    }

    /// Why measuring would show nothing.
    fn refusal(&self) -> Option<String> {
        let stays: u64 = self.stays.values().map(|(n, _)| n).sum();
        let all = self.cold + stays;
        if all == 0 {
            return Some("it was not seen to read any file".to_owned());
        }
        if stays as f64 <= MAY_STAY * all as f64 {
            return None;
        }
        let dirty = self.stays.contains_key("wait to be written");
        Some(format!(
            "of the {} of the files that it reads {} can't be made cold: {}{}",
            bytes(all),
            bytes(stays),
            self.reasons(),
            if dirty {
                "; sync(1) has them written"
            } else {
                ""
            }
        ))
    }

    fn describe(&self, files: usize) {
        let mut said = format!(
            "{} of {} are made cold before each run",
            bytes(self.cold),
            output::count(files, "file")
        );
        if !self.stays.is_empty() {
            said += &format!("; {}", self.reasons());
        }
        if self.served > 0 {
            said += &format!(
                "; of the {} on servers these may have a part cached",
                bytes(self.served)
            );
        }
        output::complain(&said);
    }
}

/// What runs of one way took.
struct Times {
    fastest: Duration,
    median: Duration,
    slowest: Duration,
}

impl Times {
    /// Of one run at least.
    fn of(runs: impl Iterator<Item = Duration>) -> Times {
        let mut runs: Vec<Duration> = runs.collect();
        runs.sort();
        Times {
            fastest: runs[0],
            median: runs[runs.len() / 2],
            slowest: runs[runs.len() - 1],
        }
    }
}

/// Times below this are shown in milliseconds, seconds.
const SHORT: f64 = 0.1;

fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        time if time < SHORT => format!("{:.1} ms", time * 1e3),
        time => format!("{time:.3} s"),
    }
}

/// The same as a sentence has it.
fn roughly(time: f64) -> String {
    match time < SHORT {
        true => format!("{:.1} ms", time * 1e3),
        false => format!("{time:.2} s"),
    }
}

fn table(stock: &Times, with: &Times) -> String {
    let mut out = format!("{:>20} {:>11} {:>11}\n", "median", "fastest", "slowest");
    for (name, times) in [("stock", stock), ("Outrider", with)] {
        let cells = [times.median, times.fastest, times.slowest].map(seconds);
        out += &format!(
            "{name:<8} {:>11} {:>11} {:>11}\n",
            cells[0], cells[1], cells[2]
        );
    }
    out
}

/// Whether two ways take as long, as far as can be told.
fn are_alike(stock: &Times, with: &Times) -> bool {
    let (a, b) = (stock.median.as_secs_f64(), with.median.as_secs_f64());
    let overlap = stock.fastest <= with.slowest && with.fastest <= stock.slowest;
    (a - b).abs() <= ALIKE * a.max(b) || overlap
}

/// Bytes of which nothing was fetched ahead, by the reason that is told for their file; none is told of what nobody foresaw.
#[derive(Default)]
struct Missed(BTreeMap<Option<Reason>, u64>);

impl Missed {
    /// By a run's report, and what it explains.
    fn of(report: &Value, explained: &str) -> Missed {
        // Of each file, by how it is written there, how often which reason was noted.
        let mut reasons: BTreeMap<&str, Vec<(Reason, u64)>> = BTreeMap::new();
        for line in explained.lines() {
            let left = line.split_once(" left ").map(|(_, rest)| rest);
            let (reason, times) = match left.and_then(|left| left.rsplit_once(", noted ")) {
                Some(both) => both,
                None => continue,
            };
            let times = times.split(' ').next().and_then(|n| n.parse().ok());
            for known in Reason::ALL {
                if let (Some(of), Some(times)) = (reason.strip_suffix(known.text()), times)
                    && let Some(name) = of.strip_suffix(": ")
                {
                    reasons.entry(name).or_default().push((known, times));
                }
            }
        }
        let mut missed = Missed::default();
        for file in report["files"].as_array().into_iter().flatten() {
            let bytes = file["miss_bytes"].as_u64().unwrap_or(0);
            let path = file["path"].as_str().unwrap_or_default();
            let noted = reasons.get(format!("{path:?}").as_str());
            let most = noted.and_then(|noted| noted.iter().max_by_key(|(_, times)| times));
            *missed.0.entry(most.map(|(reason, _)| *reason)).or_default() += bytes;
        }
        // Of more files than have a row.
        let all = report["totals"]["miss_bytes"].as_u64().unwrap_or(0);
        let rest = all.saturating_sub(missed.0.values().sum());
        *missed.0.entry(None).or_default() += rest;
        missed
    }

    /// In words, without those that are next to nothing.
    fn text(&self) -> String {
        let all: u64 = self.0.values().sum();
        let mut parts: Vec<(&Option<Reason>, u64)> = self.0.iter().map(|(r, n)| (r, *n)).collect();
        parts.retain(|(_, n)| *n as f64 >= LITTLE * all as f64);
        parts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let said = parts.into_iter().map(|(reason, n)| match reason {
            Some(Reason::Kernel) => format!("{} were {}", bytes(n), Reason::Kernel.text()),
            Some(reason) => format!("{} were not fetched ahead ({})", bytes(n), reason.text()),
            None => format!("{} could not be foreseen", bytes(n)),
        });
        said.collect::<Vec<_>>().join(", and ")
    }

    /// Whether most of it was left to the kernel, which does as well.
    fn is_kernels(&self) -> bool {
        let all: u64 = self.0.values().sum();
        let kernels = self.0.get(&Some(Reason::Kernel)).copied().unwrap_or(0);
        kernels > all / 2
    }
}

/// What it came to, and why.
enum Why {
    /// The program can't be hooked.
    Unhooked(String),
    /// Bytes that were there in time.
    InTime(u64),
    /// The processor is what it waits for, seconds of it.
    Busy(f64),
    /// Bytes that came late: the device is what it waits for.
    Late(u64),
    /// What nothing was fetched of ahead, and whether the program has waited for it and something else could help.
    Missed(Missed, bool),
    /// Nothing that was read was told.
    Nothing,
    /// The program is over before anything can be told of it.
    Short,
}

struct Verdict(Why);

impl Verdict {
    /// `report` is that of a run of ours, and `reasons` why it has missed what it has.
    fn of(stock: &Times, with: &Times, report: &Value, reasons: Missed, program: &Path) -> Verdict {
        if let Ok(Some(reason)) = elf::obstacle(program) {
            return Verdict(Why::Unhooked(reason));
        }
        let total = |name: &str| report["totals"][name].as_u64().unwrap_or(0);
        let (hit, late, missed) = (total("hit_bytes"), total("late_bytes"), total("miss_bytes"));
        // Files of trees are in what was used alone.
        let in_time = hit.max(total("used_bytes").saturating_sub(late));
        if with.median < stock.median
            && (in_time > late + missed || !are_alike(stock, with) && in_time > 0)
        {
            return Verdict(Why::InTime(in_time));
        }
        let (a, b) = (stock.median.as_secs_f64(), with.median.as_secs_f64());
        if a < START && b < a + START {
            return Verdict(Why::Short);
        }
        let time = |name: &str| report[name].as_u64().unwrap_or(0) as f64 / 1e6;
        let busy = time("user_us") + time("system_us");
        if busy > BUSY * time("elapsed_us") {
            return Verdict(Why::Busy(busy));
        }
        Verdict(match (in_time, late, missed) {
            (0, 0, 0) => Why::Nothing,
            _ if missed > late && missed > in_time => {
                let waits = time("waited_us") > WAITED * time("elapsed_us");
                let helps = waits && !reasons.is_kernels();
                Why::Missed(reasons, helps)
            }
            _ if late > in_time => Why::Late(late),
            _ => Why::InTime(in_time),
        })
    }

    fn text(&self, stock: &Times, with: &Times) -> String {
        let (a, b) = (stock.median.as_secs_f64(), with.median.as_secs_f64());
        let (without, with_it) = (roughly(a), roughly(b));
        let alike = are_alike(stock, with);
        let came = if alike {
            let which = if (a - b).abs() <= ALIKE * a.max(b) {
                "no difference"
            } else {
                "no more than runs of one way differ by"
            };
            format!(
                "cold, it takes {with_it} with Outrider and {without} without, which is {which}"
            )
        } else if b < a {
            format!(
                "cold, it takes {with_it} with Outrider instead of {without}, {:.1} times as quick",
                a / b
            )
        } else {
            format!("cold, it takes {with_it} with Outrider instead of {without}, which is slower")
        };
        let why = match &self.0 {
            Why::Unhooked(reason) => format!("nothing is foreseen: {reason}"),
            Why::InTime(n) => format!("{} were there before it asked", bytes(*n)),
            Why::Busy(s) => format!("it works on the processor for {} of that", roughly(*s)),
            Why::Late(n) => format!("{} came late: the device delivers no faster", bytes(*n)),
            Why::Missed(reasons, _) => reasons.text(),
            Why::Nothing => {
                "no reads of large files were told, nor an order of small ones".to_owned()
            }
            Why::Short => {
                return format!(
                    "cold, it takes {without}, which is too short to be judged: beginning and ending a run that is measured takes up to {}",
                    roughly(START)
                );
            }
        };
        format!("{came}: {why}")
    }

    fn advice(&self) -> Option<&'static str> {
        match self.0 {
            Why::Unhooked(_) => Some("--remember, which fetches what an earlier run has read"),
            Why::Short => Some("what starts it, if it is started often"),
            Why::Missed(_, true) => Some(
                "--remember, for jobs that read the same again, or --mode fetchall+opt where memory holds the files",
            ),
            // Where the device, the processor or nothing is waited for, no flag helps.
            Why::InTime(_) | Why::Busy(_) | Why::Late(_) | Why::Missed(_, false) | Why::Nothing => {
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn times(ms: [u64; 3]) -> Times {
        Times::of(ms.into_iter().map(Duration::from_millis))
    }

    #[test]
    fn verdicts() {
        let program = Path::new("/proc/self/exe");
        let report = |hit: u64, late: u64, missed: u64, user_us: u64| {
            json!({
                "elapsed_us": 1_000_000, "user_us": user_us, "system_us": 0,
                "totals": {"hit_bytes": hit, "late_bytes": late, "miss_bytes": missed},
            })
        };
        let (slow, quick) = (times([990, 1000, 1010]), times([200, 210, 220]));
        for (stock, with, report, parts) in [
            (
                &slow,
                &quick,
                report(100, 1, 1, 0),
                ["4.8 times as quick", "100 B were there"],
            ),
            (
                &slow,
                &slow,
                report(0, 1, 100, 0),
                ["no difference", "not be foreseen"],
            ),
            (&quick, &slow, report(0, 100, 1, 0), ["slower", "came late"]),
            (
                &slow,
                &slow,
                report(0, 0, 0, 950_000),
                ["no difference", "processor for 0.95 s"],
            ),
            (
                &slow,
                &slow,
                report(0, 0, 0, 0),
                ["no difference", "no reads"],
            ),
        ] {
            let missed = Missed::of(&report, "");
            let text = Verdict::of(stock, with, &report, missed, program).text(stock, with);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
        // Where nobody has waited for what was missed, no flag would help; times that are short are in milliseconds.
        let short = times([50, 51, 52]);
        for (waited_us, helps) in [(10_000, false), (900_000, true)] {
            let mut report = report(0, 1, 100, 0);
            report["waited_us"] = json!(waited_us);
            let missed = Missed::of(&report, "");
            let verdict = Verdict::of(&short, &short, &report, missed, program);
            assert_eq!(verdict.advice().is_some(), helps);
            let text = verdict.text(&short, &short);
            assert!(
                text.contains("51.0 ms") && text.contains("100 B could not be foreseen"),
                "{text}"
            );
        }
        // Why it was missed is told of each file, and a flag doesn't help where the kernel does as well.
        let mut report = report(0, 1, 1100, 0);
        report["waited_us"] = json!(900_000);
        report["files"] = json!([
            {"path": "/a \"b\"", "miss_bytes": 800}, {"path": "/c", "miss_bytes": 200}, {"path": "/d", "miss_bytes": 5},
        ]);
        let [kernel, order] = [Reason::Kernel, Reason::NoOrder].map(Reason::text);
        let explained = format!(
            "1 left \"/a \\\"b\\\"\": {kernel}, noted 9 times\n1 left \"/a \\\"b\\\"\": {order}, noted 1 times\n2 left \"/c\": {order}, noted 3 times\n2 process \"x\": 1 reads\n"
        );
        let missed = Missed::of(&report, &explained);
        let verdict = Verdict::of(&short, &short, &report, missed, program);
        let text = verdict.text(&short, &short);
        let said = format!(": 800 B were {kernel}, and 200 B were not fetched ahead ({order})");
        assert!(text.ends_with(&said), "{text}");
        assert!(verdict.advice().is_none());
        // Of a program that is over at once the run's own start is all that can be seen.
        let (brief, longer) = (times([1, 2, 3]), times([4, 5, 12]));
        let told = report.clone();
        let verdict = Verdict::of(&brief, &longer, &told, Missed::of(&told, ""), program);
        let text = verdict.text(&brief, &longer);
        assert!(
            text.contains("too short") && !text.contains("slower"),
            "{text}"
        );
        assert!(verdict.advice().is_some());
        let text = Verdict::of(&brief, &slow, &told, Missed::of(&told, ""), program);
        assert!(text.text(&brief, &slow).contains("slower"));
        // Of two runs alike in the median those that differ much among each other say nothing.
        let wide = times([100, 500, 2000]);
        let text = Verdict(Why::Nothing).text(&slow, &wide);
        assert!(
            text.contains("no more than runs of one way differ by"),
            "{text}"
        );
    }
}
