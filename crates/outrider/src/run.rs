//! `outrider run`: runs a program with its reads foreseen.
//!
//! Three processes. The *program* is a child, as under time(1) or env(1), with the library preloaded. The *runner*, this process, does
//! nothing but wait: it passes signals on, stops and goes on with the program, and ends as the program ended. The
//! *service* prefetches; the runner forks it when the first process of the tree has opened a file worth following. A crash
//! of the service costs the speed-up and nothing else.

pub mod mishap;
mod output_file;
mod report;
mod unhooked;

use std::cell::Cell;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use outrider_core::board;
use outrider_core::config::Config;
use outrider_core::engine;
use outrider_core::explain::{self, Explain};
use outrider_core::service::{Service, record};
use outrider_core::shared::Shared;
use outrider_core::shm::{self, lost};
use outrider_sys::program::Entry;
use outrider_sys::standing::{self, Watch};
use outrider_sys::{child, handover, raw, seccomp};

use crate::cli::{Engine, Mode, RunArgs};
use crate::output::{self, Failure};
use crate::remember::Remembered;
use crate::signals::{
    ASKED, CONTINUED, ENDED, GOING, IGNORED, OFFERED, OVER, PROGRAM, REPORT, STOPPED, STOPPING,
    child_changed, is_passed_on, pass_on,
};
use crate::{confined, elf, graph, kept, models, plugin, preload, refused};
use kept::Kept;
use output_file::{OutputFile, Way};
use report::Ran;
use unhooked::Unhooked;

/// The variable by which `outrider run` is told to become the program and do nothing else.
const OFF: &str = "OUTRIDER";

fn is_off(value: &[u8]) -> bool {
    [&b"off"[..], b"no", b"false", b"0"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

/// Whether a value says what holds anyway. Scripts keep the command's path in a variable of this name.
fn is_on(value: &[u8]) -> bool {
    value.is_empty()
        || value.contains(&b'/')
        || [&b"on"[..], b"yes", b"true", b"1", b"outrider"]
            .iter()
            .any(|word| value.eq_ignore_ascii_case(word))
}

/// What a run is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The program.
    Run,
    /// A verdict on its graphs; see [`graph::verdict`].
    Check,
}

/// Runs the program. Ends this process as the program ended: with its exit code or by its signal; with 127 where
/// it is not found and 126 where it can't be executed. `lost` says what went wrong before, for the report.
pub fn run(
    args: RunArgs,
    mut config: Config,
    purpose: Purpose,
    lost: Option<String>,
) -> Result<i32, Failure> {
    if purpose == Purpose::Run && confined::reason().is_some() {
        // What was left to be done here is only what `confined` couldn't: to find out why the program can't be executed, for instance.
        return Err(become_it(&args.command));
    }
    if let Some(budget) = args.budget {
        config.budget.memory = Some(outrider_core::config::Size(budget));
    }
    let mode = mode_of(&args);
    if args.record.is_some() && matches!(args.mode(), Mode::OsOnly | Mode::AppOnly) {
        return Err(Failure::usage(
            "--record: with --mode os-only and app-only there is no service that could be recorded; accepted are predict, predict+opt and fetchall+opt",
        ));
    }
    if args.remember.is_some() && matches!(args.mode(), Mode::OsOnly | Mode::AppOnly) {
        return Err(Failure::usage(
            "--remember: with --mode os-only and app-only there is no service that could remember; accepted are predict, predict+opt and fetchall+opt",
        ));
    }
    if args.remember.is_some() && args.record.is_some() {
        return Err(Failure::usage(
            "--remember: what a profile has fetched can't be recorded; accepted is one of --remember and --record",
        ));
    }
    let remembered = args
        .remember
        .as_ref()
        .map(|name| Remembered::new(name.as_deref(), &args.command));
    let (mut remembered, unremembered) = match remembered.transpose()? {
        Some(Ok(remembered)) => (Some(remembered), None),
        Some(Err(why)) => (None, Some(format!("profile: {why}; nothing is remembered"))),
        None => (None, None),
    };
    let plugins = plugin::check(&args.plugin)?;
    let mut notes = Vec::from_iter(lost);
    if let Some(value) = std::env::var_os(OFF).filter(|_| purpose == Purpose::Run) {
        if is_off(value.as_bytes()) {
            return Err(become_it(&args.command));
        }
        if !is_on(value.as_bytes()) {
            notes.push(format!(
                "{OFF}={} is not understood; accepted are off, no, false, 0 and on, yes, true, 1",
                output::show(value)
            ));
        }
    }
    let graphs = !plugins.is_empty() || purpose == Purpose::Check;
    let filters = seccomp::filters().unwrap_or(seccomp::UNKNOWN);
    // Before any child is made, which would be the first in its namespace; and no file is made for a report, of which this process might have itself told.
    if let Some(reason) = kept::obstacle() {
        let nowhere = report::Target::None;
        return Err(bare_with(&args, notes, reason, purpose, nowhere));
    }
    if filters != 0 || args.report.is_some() {
        let found = refused::ask(filters != 0, graphs);
        if let Some(reason) = found.obstacle {
            return Err(bare(&args, notes, &reason, purpose));
        }
        notes.extend(found.notes);
    }
    let library = preload::library().and_then(|library| match preload::unloadable(&library) {
        Some(why) => Err(Failure::usage(why)),
        None => Ok(library),
    });
    let library = match library {
        Ok(library) => Some(library),
        Err(failure) if purpose == Purpose::Check || !plugins.is_empty() => return Err(failure),
        Err(failure) if args.report.is_none() => {
            return Err(bare(&args, notes, &failure.message, purpose));
        }
        Err(failure) => {
            notes.push(format!(
                "{}; the program ran without Outrider",
                failure.message
            ));
            None
        }
    };
    // One of another PID namespace has this process under another number, and the programs as well.
    let own = std::fs::read_link("/proc/self").ok();
    let proc = own.is_some_and(|name| name.as_os_str() == &*raw::getpid().to_string());
    if !proc {
        notes.push(
            "/proc: not mounted, or of another PID namespace; no program was followed".to_owned(),
        );
    }
    let told = args.report.is_some() || rustix::termios::isatty(stderr());
    let reason = told.then(|| unhookable(&args.command[0])).flatten();
    let explained = reason.is_some();
    if let Some(reason) = reason {
        notes.push(format!("{}: {reason}", output::show(&args.command[0])));
    }
    if told && args.report.is_none() {
        notes.iter().for_each(|note| output::complain(note));
    }
    // Whoever wants it remembered is told in any case, as of a damaged one.
    if args.report.is_none() {
        unremembered.iter().for_each(|note| output::complain(note));
    }
    notes.extend(unremembered);
    if filters == seccomp::UNKNOWN && (proc || Path::new("/proc/self/status").exists()) {
        notes.push(
            "seccomp: the filters of system calls in force can't be counted (before Linux 5.9, or without /proc/self/status); no program was followed"
                .to_owned(),
        );
    }
    let named = args.report.as_ref().and_then(Option::as_deref);
    let files = [
        ("--report", named, Way::Whole),
        ("--explain", args.explain.as_deref(), Way::Gradually),
        ("--record", args.record.as_deref(), Way::Gradually),
    ];
    let [file, explain, recording] = match output_file::open(files) {
        Ok(files) => files,
        Err(output_file::Refused::Named(failure)) => return Err(failure),
        Err(output_file::Refused::Short(reason)) => {
            let nowhere = report::Target::None;
            return Err(bare_with(&args, notes, &reason, purpose, nowhere));
        }
    };
    let mut report = match (purpose, file) {
        (Purpose::Check, _) => report::Target::Verdict(None),
        (Purpose::Run, Some(file)) => report::Target::File(file, None),
        (Purpose::Run, None) => report::Target::without_file(&args),
    };
    let shared = match Shared::create(mode, config.files.min_size.0) {
        Ok(s) => Some(Arc::new(s)),
        Err(e) => {
            notes.push(format!(
                "shared memory: could not be created ({e}); nothing was prefetched"
            ));
            None
        }
    };
    if shared.is_none() && purpose == Purpose::Check {
        return Err(Failure::system(notes.remove(notes.len() - 1)));
    }
    let environment = environment();
    let hooked = mode != shm::MODE_APP_ONLY
        && (shared.is_some() && proc || mode == shm::MODE_OS_ONLY)
        && library.is_some();
    let filter = library
        .as_deref()
        .filter(|_| hooked || graphs)
        .and_then(|library| preload::filter_for(library, &plugins));
    let entry = filter.as_ref().map_or(Entry::Library, |_| Entry::Filter);
    let fits = (hooked || graphs) && preload::fits(&args.command, entry);
    let library = library.filter(|_| fits);
    if let Some(library) = &library {
        // SAFETY: this process has one thread.
        unsafe { preload::set(library, filter.as_deref(), &plugins) };
    } else if (hooked || graphs) && !fits && !explained {
        notes.push(preload::UNFIT.to_owned());
    }
    if let (Some(remembered), Some(shared)) = (&mut remembered, &shared) {
        remembered.make_log(shared.header().secret.load(Relaxed));
    }
    // Programs that were linked with the library tell of what they declare, and keep within what is said here.
    let heeded =
        args.report.is_some() || shm::settings(&config) != shm::settings(&Config::default());
    let tells = graphs || mode == shm::MODE_APP_ONLY && proc && heeded;
    if hooked || tells && shared.is_some() {
        let reports = args.report.is_some() || recording.is_some() || purpose == Purpose::Check;
        let log = remembered.as_ref().and_then(Remembered::descriptor);
        let value = environment_of(shared.as_deref(), &config, mode, filters, reports, log);
        // SAFETY: this process has one thread.
        unsafe {
            std::env::set_var("OUTRIDER_SHM", value);
            if purpose == Purpose::Check {
                std::env::set_var("OUTRIDER_GRAPH", "check");
            }
            if let Some(explain) = &explain {
                match explain.path()? {
                    Some(path) => std::env::set_var("OUTRIDER_EXPLAIN", path),
                    None => std::env::remove_var("OUTRIDER_EXPLAIN"),
                }
            }
        }
    }
    let file = program_file(&args, || std::env::current_dir().unwrap_or_default());
    let (_arguments, pointers) = c_strings(&args.command)?;
    let old = block_signals();
    let child_action = handle(libc::SIGCHLD, child_changed);
    // What a profile has is fetched while the program is being started.
    let service = match (&remembered, &shared) {
        (Some(remembered), Some(shared)) => {
            let explained = explain.as_ref().and_then(OutputFile::path_within);
            let files = (None, explained.as_deref());
            start_service(
                shared,
                &config,
                mode,
                args.engine(),
                files,
                Some(remembered),
            )
        }
        _ => None,
    };
    let began = Instant::now();
    let program = match spawn(&pointers, &old, &child_action) {
        Ok(program) => program,
        Err(reason) => {
            service.inspect(|service| end_service(*service));
            // SAFETY: this process has one thread, and the array outlives its use.
            unsafe { environ = environment.as_ptr() };
            return Err(bare_with(&args, notes, &reason, purpose, report));
        }
    };
    PROGRAM.store(program, Release);
    forward_signals();
    let explained = explain.as_ref().and_then(OutputFile::path_within);
    let stream = explain.filter(OutputFile::stays_open);
    let files = [stream.as_ref(), recording.as_ref()];
    let log = remembered.as_ref().and_then(Remembered::descriptor);
    stand_aside(shared.as_deref(), &mut report, files, log);
    // Whatever the program has blocked, the runner hears.
    set_mask(&no_signals());
    finish(
        &args,
        &config,
        purpose,
        Started {
            program,
            file,
            library,
            recording,
            service,
            explained,
            began,
        },
        shared.as_ref(),
        report,
        notes,
    )
}

/// Goes on with a program that was started before the C library was (`fast_start`).
#[cfg(fast_start)]
pub fn carry_on(args: RunArgs) -> Result<i32, Failure> {
    mishap::outlive(&args.command);
    let (fd, base) = crate::fast_start::shared();
    // SAFETY: made for this, once.
    let shared = Arc::new(unsafe { Shared::adopt(fd, base) });
    let program = PROGRAM.load(Acquire);
    let report = report::Target::without_file(&args);
    let config = Config::default();
    // This process is elsewhere already, and the program where it was.
    let at = || std::fs::read_link(format!("/proc/{program}/cwd")).unwrap_or_default();
    let file = program_file(&args, at);
    finish(
        &args,
        &config,
        Purpose::Run,
        Started {
            program,
            file,
            library: None,
            recording: None,
            service: None,
            explained: None,
            // There is no report of it.
            began: Instant::now(),
        },
        Some(&shared),
        report,
        Vec::new(),
    )
}

/// The program that is waited for.
struct Started {
    program: i32,
    /// Its file, if there is to be a report.
    file: Option<PathBuf>,
    /// What it was given to preload, if anything, for a report.
    library: Option<PathBuf>,
    /// Where its service's run is recorded, if it is.
    recording: Option<OutputFile>,
    /// Its service, where that is there from the start on.
    service: Option<i32>,
    /// The file that decisions are written to, if they are.
    explained: Option<PathBuf>,
    began: Instant,
}

/// Waits for the program, reports, and ends as it ended.
fn finish(
    args: &RunArgs,
    config: &Config,
    purpose: Purpose,
    started: Started,
    shared: Option<&Arc<Shared>>,
    report: report::Target,
    mut notes: Vec<String>,
) -> Result<i32, Failure> {
    let mode = mode_of(args);
    let Started {
        program,
        file,
        library,
        recording,
        mut service,
        explained,
        began,
    } = started;
    let mut unhooked = None;
    if args.report.is_some() {
        unhooked = Unhooked::below(program, library);
    }
    let mut ran = Ran {
        began,
        ..Ran::not_yet(args)
    };
    let mut last = began;
    let every = args
        .report_every
        .map(|seconds| Duration::from_secs(seconds.into()));
    let meanwhile = || {
        let due = every.is_some_and(|every| last.elapsed() >= every);
        let asked = REPORT.load(Acquire) == ASKED;
        if let (true, Some(shared)) = (due || asked, shared) {
            last = Instant::now();
            if asked {
                REPORT.store(OFFERED, Release);
            }
            report.write_meanwhile(&ran, shared, &notes);
        }
    };
    if matches!(report, report::Target::File(..)) {
        REPORT.store(OFFERED, Release);
    }
    let (status, usage) = wait_for(
        program,
        shared,
        &mut service,
        &mut unhooked,
        meanwhile,
        || {
            let files = (recording.as_ref(), explained.as_deref());
            start_service(shared?, config, mode, args.engine(), files, None)
        },
        |i| {
            if let Some(shared) = shared {
                start_heir(shared, i, config, mode, args.engine());
            }
        },
    );
    ran.ended = Some((status, usage));
    notes.extend(unhooked.into_iter().flat_map(Unhooked::notes));
    if let Some(missed) = file.and_then(|file| may_miss(&file)) {
        notes.push(format!(
            "{}: {missed}; what it reads by them was not followed",
            output::show(&args.command[0])
        ));
    }
    // Who is to read the report may be gone, which must not change how this ends.
    // SAFETY: a constant disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    if let Some(shared) = shared {
        conclude(shared, service);
        if let Some(recording) = recording
            && shared.header().service_pid.load(Acquire) == 0
        {
            record_nothing(shared, config, mode, args.engine(), &recording);
        }
        if let Some(path) = &explained
            && shared.header().service_pid.load(Acquire) == 0
        {
            // No service was needed.
            let explain = Explain::into(Some(path));
            explain.say(
                program as u32,
                format_args!(
                    "nothing was told: what was read was cached, shorter than files.min_size, or passed no hook"
                ),
            );
            explain.flush();
        }
        take_signals();
        if purpose == Purpose::Check {
            let code = if libc::WIFSIGNALED(status) {
                128 + libc::WTERMSIG(status)
            } else {
                libc::WEXITSTATUS(status)
            };
            let (text, code) = graph::verdict(args, &board::told(shared.board()), code);
            report.say(&text);
            return Ok(code);
        }
        report.write(&ran, shared, notes);
    } else {
        take_signals();
        report.write_without(&ran, notes);
    }
    die_like(status)
}

/// What programs are told in their environment: see `attach::start` in the library.
fn environment_of(
    shared: Option<&Shared>,
    config: &Config,
    mode: u32,
    filters: u32,
    reports: bool,
    log: Option<i32>,
) -> String {
    let name = shared.and_then(|s| handover::name_of(s.socket()));
    let name = name.map_or("none".into(), |n| String::from_utf8_lossy(&n).into_owned());
    let strict = std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|v| v == b"2\n");
    let flags = [
        (config.view.cache_visibility, shm::ENVIRONMENT_LOOKS),
        (reports, shm::ENVIRONMENT_REPORTS),
        (strict, shm::ENVIRONMENT_STRICT),
    ];
    let mut flags: u64 = flags.iter().filter(|f| f.0).map(|f| f.1).sum();
    if let Some(log) = log {
        flags |= shm::ENVIRONMENT_REMEMBERS | (log as u64) << shm::ENVIRONMENT_LOG_SHIFT;
    }
    let user = rustix::process::geteuid().as_raw();
    let (size, runner) = (config.files.min_size.0, raw::getpid());
    let secret = shared.map_or(0, |s| s.header().secret.load(Relaxed));
    let mut value = format!("{name}:{mode}:{size}:{filters}:{flags}:{user}:{runner}:{secret}");
    let settings = shm::settings(config);
    if settings != shm::settings(&Config::default()) {
        value.extend(settings.iter().map(|n| format!(":{n}")));
    }
    value
}

fn mode_of(args: &RunArgs) -> u32 {
    match args.mode() {
        Mode::AppOnly => shm::MODE_APP_ONLY,
        Mode::OsOnly => shm::MODE_OS_ONLY,
        Mode::Predict => shm::MODE_PREDICT,
        Mode::PredictOpt => shm::MODE_PREDICT_OPT,
        Mode::FetchallOpt => shm::MODE_FETCHALL_OPT,
    }
}

/// Becomes the program, without anything of ours, for a reason that is told; a report is written before. Returns if that is not possible.
fn bare(args: &RunArgs, notes: Vec<String>, reason: &str, purpose: Purpose) -> Failure {
    let named = args.report.as_ref().map(Option::as_deref);
    let report = match named.map(|path| output_file::open([("--report", path, Way::Whole)])) {
        Some(Ok([Some(file)])) if purpose == Purpose::Run => report::Target::File(file, None),
        Some(Ok([None])) if purpose == Purpose::Run => report::Target::without_file(args),
        // What refuses the program its runner may refuse the report's file.
        Some(Err(
            output_file::Refused::Named(Failure { message, .. })
            | output_file::Refused::Short(message),
        )) => {
            output::complain(&message);
            report::Target::None
        }
        _ => report::Target::None,
    };
    bare_with(args, notes, reason, purpose, report)
}

/// The same, for where the report has been opened.
fn bare_with(
    args: &RunArgs,
    mut notes: Vec<String>,
    reason: &str,
    purpose: Purpose,
    mut report: report::Target,
) -> Failure {
    if purpose == Purpose::Check {
        return Failure::system(format!("{reason}: graphs can't be checked"));
    }
    output::complain(&format!("{reason}: the program runs without Outrider"));
    let (_arguments, pointers) = match c_strings(&args.command) {
        Ok(both) => both,
        Err(failure) => return failure,
    };
    notes.push(format!("{reason}; the program ran without Outrider"));
    // Who is to read the report may be gone; how the program takes that is its own affair.
    // SAFETY: a constant disposition, and the one that was there.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        let mut ignored: libc::sigaction = std::mem::zeroed();
        ignored.sa_sigaction = libc::SIG_IGN;
        let known = libc::sigaction(libc::SIGPIPE, &ignored, &mut old) == 0;
        report.keep();
        report.write_without(&Ran::not_yet(args), notes);
        if known {
            libc::sigaction(libc::SIGPIPE, &old, std::ptr::null_mut());
        }
    }
    execute(&args.command, &pointers)
}

/// Whether the environment says that the program is to run as if this weren't there.
pub fn is_switched_off() -> bool {
    std::env::var_os(OFF).is_some_and(|value| is_off(value.as_bytes()))
}

/// Becomes the program without a word.
pub fn become_it(command: &[OsString]) -> Failure {
    match c_strings(command) {
        Ok((_arguments, pointers)) => execute(command, &pointers),
        Err(failure) => failure,
    }
}

fn execute(command: &[OsString], pointers: &[*const libc::c_char]) -> ! {
    // SAFETY: a null-terminated array of C strings.
    unsafe { libc::execvp(pointers[0], pointers.as_ptr()) };
    let error = std::io::Error::last_os_error();
    output::complain(&format!("{}: {error}", output::show(&command[0])));
    std::process::exit(unstarted(&error))
}

unsafe extern "C" {
    static mut environ: *const *const libc::c_char;
}

/// The environment as it is, which changes to it don't touch: the C library puts other texts in their place.
fn environment() -> Vec<*const libc::c_char> {
    let mut texts = Vec::new();
    // SAFETY: this process has one thread; the array, where there is one, ends with a null pointer.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            texts.push(*entry);
            entry = entry.add(1);
        }
    }
    texts.push(std::ptr::null());
    texts
}

/// The exit code for a program that could not be executed: as env(1) has it.
fn unstarted(error: &std::io::Error) -> i32 {
    if error.kind() == std::io::ErrorKind::NotFound {
        127
    } else {
        126
    }
}

fn stderr() -> BorrowedFd<'static> {
    // SAFETY: only asked whether it is a terminal; a closed descriptor is not.
    unsafe { BorrowedFd::borrow_raw(2) }
}

/// Why the program will run as if we weren't there, if that can be told from its file.
fn unhookable(program: &OsStr) -> Option<String> {
    let path = elf::look_up(program)?;
    elf::obstacle(&path).ok()?
}

/// The program's file, if there is to be a report, as it was named in the directory `at`: the runner goes elsewhere (`stand_aside`).
fn program_file(args: &RunArgs, at: impl FnOnce() -> PathBuf) -> Option<PathBuf> {
    args.report.as_ref()?;
    let name = &args.command[0];
    match name.as_bytes().contains(&b'/') {
        true => Some(at().join(name)),
        false => Some(at().join(elf::look_up(name)?)),
    }
}

/// What hooks may miss in the program. A search through the whole file: for when the program is over.
fn may_miss(program: &Path) -> Option<String> {
    elf::classify(program).ok()?.may_miss()
}

fn no_signals() -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        set
    }
}

fn all_signals() -> libc::sigset_t {
    // SAFETY: sigfillset initialises the set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        set
    }
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are valid; `old` is written by the call.
    unsafe {
        let mut old = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, &all_signals(), &mut old);
        old
    }
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: a valid set.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// Bytes of the stack on which the program's process calls execvp(3), which joins names of PATH_MAX there, and for a script that
/// doesn't say what runs it copies the arguments' addresses, too.
const CHILD_STACK: usize = 64 << 10;

/// What the program's process does before it becomes the program.
struct Child<'a> {
    arguments: &'a [*const libc::c_char],
    timers: &'a [(libc::c_int, libc::itimerval)],
    kept: &'a Kept,
    /// Why it couldn't become the program, for the runner to try itself.
    failed: Cell<Option<&'static str>>,
    mask: &'a libc::sigset_t,
    action: &'a libc::sigaction,
    runner: u32,
    reaper: bool,
    /// Where the program's process id goes: see [`addressed`].
    numbers: &'a [*mut [u8; DIGITS]],
}

/// Runs in the program's process, which shares the runner's memory while the runner waits.
extern "C" fn become_program(child: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn` passes a Child that outlives this process's use of it.
    let child = unsafe { &*child.cast::<Child<'_>>() };
    // SAFETY: plain calls on the structures above, and a null-terminated array of C strings.
    unsafe {
        set_timers(child.timers);
        // First: a disposition by which a signal is ignored has those that wait forgotten.
        libc::sigaction(libc::SIGCHLD, child.action, std::ptr::null_mut());
        if let Err(why) = child.kept.hand_on() {
            child.failed.set(Some(why));
            libc::_exit(127);
        }
        for number in child.numbers {
            let mut text = [0; DIGITS];
            let _ = write!(&mut text[..], "{}", raw::getpid());
            **number = text;
        }
        if child.reaper {
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        }
        // Whoever kills the runner means the program.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != child.runner {
            libc::raise(libc::SIGKILL);
        }
        set_mask(child.mask);
        libc::execvp(child.arguments[0], child.arguments.as_ptr());
    }
    let error = std::io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::E2BIG) {
        // There may be room for what was there before.
        child.failed.set(Some(
            "arguments and environment leave no room for a variable",
        ));
        // SAFETY: ends the child without the runner's exit handlers.
        unsafe { libc::_exit(127) };
    }
    // SAFETY: the program's name, a C string.
    let name = unsafe { CStr::from_ptr(child.arguments[0]) };
    output::complain(&format!(
        "{}: {error}",
        output::show(OsStr::from_bytes(name.to_bytes()))
    ));
    // SAFETY: ends the child without the runner's exit handlers.
    unsafe { libc::_exit(unstarted(&error)) }
}

/// The program's arguments, and the array that execvp(3) wants, which is valid as long as they are.
fn c_strings(command: &[OsString]) -> Result<(Vec<CString>, Vec<*const libc::c_char>), Failure> {
    let arguments: Vec<CString> = command
        .iter()
        .map(|a| CString::new(a.as_bytes()))
        .collect::<Result<_, _>>()
        .map_err(|_| Failure::usage("an argument contains a zero byte"))?;
    let mut pointers: Vec<*const libc::c_char> = arguments.iter().map(|a| a.as_ptr()).collect();
    pointers.push(std::ptr::null());
    Ok((arguments, pointers))
}

/// Forks and executes the program. Where it can't be executed the child says so itself and exits with 127 or 126, as env(1)
/// does. Where there can be no child all is as it was, but for the environment.
fn spawn(
    arguments: &[*const libc::c_char],
    mask: &libc::sigset_t,
    child_action: &libc::sigaction,
) -> Result<i32, String> {
    let runner = raw::getpid();
    let put_back = |kept: Option<&Kept>, timers| {
        set_timers(timers);
        // SAFETY: what was there before.
        unsafe { libc::sigaction(libc::SIGCHLD, child_action, std::ptr::null_mut()) };
        kept.inspect(|k| k.put_back());
        set_mask(mask);
    };
    let kept = Kept::take().inspect_err(|_| put_back(None, &[]))?;
    let child = Child {
        arguments,
        timers: &take_timers(),
        kept: &kept,
        failed: Cell::new(None),
        mask,
        action: child_action,
        runner,
        reaper: runner == 1 || is_subreaper(),
        numbers: &addressed(runner),
    };
    // SAFETY: this process has one thread, which waits; `child` outlives its use.
    let pid = unsafe {
        child::vfork(
            become_program,
            (&raw const child).cast_mut().cast(),
            CHILD_STACK + size_of_val(arguments),
            // What is to be done with semaphores when the process ends (SEM_UNDO of semop(2)) …
            libc::SIGCHLD | libc::CLONE_SYSVSEM,
        )
    };
    if pid < 0 || child.failed.get().is_some() {
        let error = std::io::Error::last_os_error();
        if pid > 0 {
            // SAFETY: no status is wanted.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            kept::forget(libc::SIGCHLD);
        }
        put_back(Some(&kept), child.timers);
        return Err(match child.failed.get() {
            Some(why) => why.to_owned(),
            None => format!("cannot fork: {error}"),
        });
    }
    // … is the program's alone from now on.
    // SAFETY: takes a number.
    unsafe { libc::unshare(libc::CLONE_SYSVSEM) };
    kept.set_slack();
    Ok(pid)
}

/// Whether orphans below this process become its children, as those of a container become process 1's. They are to become the program's.
fn is_subreaper() -> bool {
    let mut answer: libc::c_int = 0;
    // SAFETY: the call writes the number.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut answer) == 0 && answer != 0 }
}

/// Room for a process id, and a zero.
const DIGITS: usize = 12;

/// The variables by which a service manager says that what it hands on is for this process (sd_listen_fds(3), sd_watchdog_enabled(3)): where they say
/// it, for the program's process to write its own number there.
fn addressed(runner: u32) -> Vec<*mut [u8; DIGITS]> {
    let own = runner.to_string();
    ["LISTEN_PID", "WATCHDOG_PID"]
        .into_iter()
        .filter(|name| std::env::var_os(name).is_some_and(|value| *value == *own))
        .map(|name| {
            // The same in another form, which may be left out.
            // SAFETY: this process has one thread.
            unsafe { std::env::remove_var(format!("{name}FDID")) };
            let text = format!("{name}={own:\0<DIGITS$}").into_bytes().leak();
            // SAFETY: this process has one thread; the text stays and ends with a zero.
            unsafe {
                libc::putenv(text.as_mut_ptr().cast());
                text.as_mut_ptr().add(name.len() + 1).cast()
            }
        })
        .collect()
}

fn set_timers(timers: &[(libc::c_int, libc::itimerval)]) {
    for (which, timer) in timers {
        // SAFETY: a valid timer.
        unsafe { libc::setitimer(*which, timer, std::ptr::null_mut()) };
    }
}

/// Timers survive exec, not fork: those that were set for the program are handed on to it.
fn take_timers() -> Vec<(libc::c_int, libc::itimerval)> {
    // SAFETY: zero is a valid itimerval (no timer); both structures outlive the calls.
    unsafe {
        let none: libc::itimerval = std::mem::zeroed();
        [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF]
            .into_iter()
            .filter_map(|which| {
                let mut old = none;
                (libc::setitimer(which, &none, &mut old) == 0
                    && (old.it_value.tv_sec, old.it_value.tv_usec) != (0, 0))
                    .then_some((which, old))
            })
            .collect()
    }
}

/// The program has descriptors and a directory of its own: the runner keeps none of them, so that a pipe ends when the program
/// closes it and a file system can be unmounted.
fn stand_aside(
    shared: Option<&Shared>,
    report: &mut report::Target,
    files: [Option<&OutputFile>; 2],
    log: Option<i32>,
) {
    let socket = shared.map(|s| s.socket().as_raw_fd());
    let files = files.into_iter().flatten();
    let files = files.filter_map(OutputFile::descriptor);
    close_all_but(
        socket
            .into_iter()
            .chain(report.keep())
            .chain(files)
            .chain(log),
    );
    // SAFETY: a constant name.
    unsafe { libc::chdir(c"/".as_ptr()) };
}

/// Closes all descriptors but these; nothing in this process may use the others from here on.
fn close_all_but(kept: impl Iterator<Item = i32>) {
    let mut kept: Vec<u32> = kept.map(|fd| fd as u32).collect();
    kept.sort_unstable();
    let mut first = 0;
    let close = |first: u32, last: u32| {
        // SAFETY: as promised.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0u32) };
    };
    for fd in kept {
        if fd > first {
            close(first, fd - 1);
        }
        first = fd + 1;
    }
    close(first, u32::MAX);
}

/// Installs a handler; returns what was there.
fn handle(
    signal: i32,
    handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void),
) -> libc::sigaction {
    // SAFETY: a handler that is async-signal-safe; the structures are fully initialised.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(signal, &action, &mut old);
        old
    }
}

fn forward_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        if is_passed_on(signal) && handle(signal, pass_on).sa_sigaction == libc::SIG_IGN {
            IGNORED.fetch_or(1 << (signal - 1), Relaxed);
        }
    }
}

/// What ends or stops programs does so to this one, whose program is over: whoever is to read what it writes may keep it for long. What was ignored stays so.
fn take_signals() {
    const TAKEN: [i32; 7] = [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ];
    for signal in TAKEN {
        let was_ignored = IGNORED.load(Relaxed) & 1 << (signal - 1) != 0;
        let action = if was_ignored {
            libc::SIG_IGN
        } else {
            libc::SIG_DFL
        };
        // SAFETY: a constant disposition.
        unsafe { libc::signal(signal, action) };
    }
}

/// Waits for the program; starts the service when the first process hands over its memory, and notices its end. How the program ended, and what it and its
/// children took of the processors, user and system, µs. `meanwhile` is called each time that something has happened, or a look is due.
fn wait_for(
    program: i32,
    shared: Option<&Arc<Shared>>,
    service: &mut Option<i32>,
    unhooked: &mut Option<Unhooked>,
    mut meanwhile: impl FnMut(),
    start: impl Fn() -> Option<i32>,
    start_heir: impl Fn(usize),
) -> (i32, [u64; 2]) {
    let mut started = service.is_some();
    loop {
        // Whatever comes from here on interrupts the wait.
        let old = block_signals();
        loop {
            let mut status = 0;
            // SAFETY: zero is a valid structure, which is written by the call, and so is the status.
            let (pid, usage) = unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                let how = libc::WUNTRACED | libc::WNOHANG;
                (libc::wait4(-1, &mut status, how, &mut usage), usage)
            };
            if pid == program {
                if libc::WIFSTOPPED(status) {
                    set_mask(&old);
                    stop_with(program, libc::WSTOPSIG(status));
                    block_signals();
                    continue;
                }
                // Nothing is passed on any more.
                ENDED.store(status, Release);
                PROGRAM.store(OVER, Release);
                set_mask(&old);
                let us = |t: libc::timeval| (t.tv_sec * 1_000_000 + t.tv_usec) as u64;
                return (status, [us(usage.ru_utime), us(usage.ru_stime)]);
            }
            if pid > 0 && !libc::WIFSTOPPED(status) {
                if Some(pid) == *service {
                    *service = None;
                    if let Some(s) = shared {
                        s.header().lose(lost::SERVICE_DIED);
                        s.header().closed.store(1, Release);
                    }
                } else if let Some(s) = shared {
                    heir_ended(s, pid);
                }
                continue;
            }
            if pid < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD) {
                // Somebody else has waited for it.
                set_mask(&old);
                return (0, [0, 0]);
            }
            if pid <= 0 {
                break;
            }
        }
        if let Some(shared) = shared.filter(|_| service.is_some()) {
            let wanted =
                |i: &usize| shared.heir_header(*i).heir.state.load(Acquire) == shm::HEIR_WANTED;
            (0..shm::HEIRS).filter(wanted).for_each(&start_heir);
        }
        let socket = shared.filter(|_| !started).map(|s| s.socket());
        let somebody = match unhooked {
            Some(unhooked) => unhooked.wait(&old, socket),
            None => wait_at(socket, &old),
        };
        set_mask(&old);
        if let (true, Some(shared)) = (somebody, shared) {
            started = true;
            *service = start();
            if service.is_none() {
                shared.header().lose(lost::SERVICE_START);
                shared.header().closed.store(1, Release);
            }
        }
        if let Some(unhooked) = unhooked {
            unhooked.look();
            if let (true, Some(shared)) = (unhooked.is_out_of_reach(), shared) {
                shared.header().lose(lost::NETWORK);
            }
        }
        meanwhile();
    }
}

/// Waits until a signal comes that `mask` lets through, or somebody comes to the socket: whether somebody did.
fn wait_at(socket: Option<BorrowedFd<'_>>, mask: &libc::sigset_t) -> bool {
    let mut poll = libc::pollfd {
        // A negative one is passed over.
        fd: socket.map_or(-1, |s| s.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: structures of this frame; no limit of time.
    let r = unsafe { libc::ppoll(&mut poll, 1, std::ptr::null(), mask) };
    r > 0 && poll.revents & libc::POLLIN != 0
}

/// A service of its own for processes that have other rights has ended.
fn heir_ended(shared: &Shared, pid: i32) {
    let header = shared.header();
    let mut heirs = (0..shm::HEIRS).map(|i| &shared.heir_header(i).heir);
    let Some(heir) = heirs.find(|h| h.pid.load(Relaxed) == pid as u32) else {
        return;
    };
    // Its number may become somebody else's. One that has failed said so itself, and its place may be wanted again by now.
    let _ = heir.pid.compare_exchange(pid as u32, 0, Relaxed, Relaxed);
    let becomes = |from, to| {
        heir.state
            .compare_exchange(from, to, Release, Relaxed)
            .is_ok()
    };
    becomes(shm::HEIR_LEAVES, shm::HEIR_NONE);
    becomes(shm::HEIR_BEGINS, shm::HEIR_FAILED);
    if becomes(shm::HEIR_LISTENS, shm::HEIR_FAILED) && header.finish.load(Relaxed) == 0 {
        header.lose(lost::SERVICE_DIED);
    }
}

/// Of a process that is stopped, by a signal or for whoever traces it, how often its first thread has run: as the kernel writes it.
fn stopped(pid: i32) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let state = status.split_once("\nState:\t")?.1;
    let runs = status.split_once("\nvoluntary_ctxt_switches:")?.1;
    state.starts_with(['T', 't']).then(|| runs.to_owned())
}

/// Stops this process as the program was stopped, so that who waits for it sees that, until somebody continues this process, and
/// with it the program, or the program alone.
fn stop_with(program: i32, signal: i32) {
    STOPPED.store(STOPPING, Release);
    let observer = observe(program, &stopped(program));
    if signal != libc::SIGSTOP && STOPPED.load(Acquire) == STOPPING {
        stop_like(signal);
    }
    // In a process group that nobody controls only SIGSTOP stops; and nothing may where nobody would see the program go on.
    if STOPPED.load(Acquire) == STOPPING && observer > 0 {
        stop_like(libc::SIGSTOP);
    }
    let continued = STOPPED.load(Acquire) == CONTINUED;
    if continued {
        // The rest of the group comes to its turn.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let mut alone = false;
    if observer > 0 {
        let mut status = 0;
        // SAFETY: our own child, not waited for yet; the status is written by the call.
        unsafe {
            libc::kill(observer, libc::SIGKILL);
            libc::waitpid(observer, &mut status, libc::__WALL);
        }
        alone = libc::WIFEXITED(status);
    }
    STOPPED.store(GOING, Release);
    if continued && !alone && stopped(program).is_some() {
        // SAFETY: our own child, not waited for yet.
        unsafe { libc::kill(program, libc::SIGCONT) };
    }
}

/// Forks a process that ends when the program has been continued or has ended, and the kernel sends SIGCONT to this one then. Only a parent is
/// told that a process goes on, and that parent will be stopped. `then` is what [`stopped`] says of the program: it may have been stopped again.
/// Negative where there can be none.
fn observe(program: i32, then: &Option<String>) -> i32 {
    let runner = raw::getpid();
    let old = block_signals();
    // SAFETY: a fork of a process that has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCONT, 0, 0, 0, 0) as i32 };
    if pid != 0 {
        set_mask(&old);
        return pid;
    }
    // SAFETY: plain calls on numbers and a structure of this frame.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != runner {
            libc::_exit(1);
        }
        // What is sent to the group is not for this one.
        libc::setsid();
        let mut end = libc::pollfd {
            fd: libc::syscall(libc::SYS_pidfd_open, program, 0) as i32,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut pause = 1;
        while then.is_some() && stopped(program) == *then || stopped(runner as i32).is_none() {
            // It ends at once when the program does.
            libc::poll(&mut end, 1, pause);
            pause = (2 * pause).min(250);
            if end.revents != 0 {
                (end.fd, pause) = (-1, 1);
            }
        }
        libc::_exit(0)
    }
}

/// Stops this process by a signal's default action.
fn stop_like(signal: i32) {
    // SAFETY: the default action of a stop signal, raised, and our handler put back afterwards.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
    }
    if signal != libc::SIGSTOP {
        handle(signal, pass_on);
    }
}

/// Forks the service, whose run is recorded if there is a file for that. `None` if that fails.
fn start_service(
    shared: &Arc<Shared>,
    config: &Config,
    mode: u32,
    engine: Engine,
    (recording, explained): (Option<&OutputFile>, Option<&Path>),
    remembered: Option<&Remembered>,
) -> Option<i32> {
    let old = block_signals();
    let runner = raw::getpid();
    // SAFETY: this process has one thread, so the child is whole.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let recorded = recording.and_then(OutputFile::descriptor);
        let told = explained.and_then(explain::inherited);
        begin_to_serve(shared, runner, recorded.into_iter().chain(told));
        shared.header().service_pid.store(raw::getpid(), Release);
        let (shared, config, kind) = (shared.clone(), config.clone(), engine_kind(engine));
        match recording.map(OutputFile::file) {
            None => {
                let service = Service::new(shared, config, mode, kind, models::load());
                let mut service = service.explaining(explained);
                if let Some(remembered) = remembered {
                    service = service.remember(remembered.job(runner));
                }
                service.run();
            }
            Some(file) => record(shared, config, mode, kind, file, explained),
        }
        // SAFETY: ends the process without running the runner's exit handlers.
        unsafe { libc::_exit(0) }
    }
    set_mask(&old);
    if pid > 0 {
        shared.header().service_pid.store(pid as u32, Release);
    }
    (pid > 0).then_some(pid)
}

/// Runs a service that records its run.
fn record(
    shared: Arc<Shared>,
    config: Config,
    mode: u32,
    kind: engine::Kind,
    file: std::io::Result<std::fs::File>,
    explained: Option<&Path>,
) {
    let service = file.and_then(|file| {
        let text = toml::to_string(&config).map_err(std::io::Error::other)?;
        record::record(shared.clone(), (config, &text), mode, kind, file)
    });
    match service {
        Ok(service) => service.explaining(explained).run(),
        Err(_) => shared.header().lose(shm::lost::RECORDING),
    }
}

/// The same where no service was needed: nothing was read that was not cached.
fn record_nothing(
    shared: &Shared,
    config: &Config,
    mode: u32,
    engine: Engine,
    recording: &OutputFile,
) {
    let written = recording.file().and_then(|file| {
        let text = toml::to_string(config).map_err(std::io::Error::other)?;
        record::record_nothing((config, &text), mode, engine_kind(engine), file)
    });
    if written.is_err() {
        shared.header().lose(shm::lost::RECORDING);
    }
}

/// Forks service number `i` of those that the first one has asked for: it takes on the rights of the process that is named there.
fn start_heir(shared: &Arc<Shared>, i: usize, config: &Config, mode: u32, engine: Engine) {
    let heir = &shared.heir_header(i).heir;
    let made = handover::listen().ok().and_then(|socket| {
        let name = handover::name_of(socket.as_fd())?;
        Some((Shared::heir(shared, i, socket), name, handover::random()?))
    });
    let Some((own, name, token)) = made else {
        heir.state.store(shm::HEIR_FAILED, Release);
        return;
    };
    heir.set_name(&name);
    heir.token.store(token, Relaxed);
    heir.state.store(shm::HEIR_BEGINS, Release);
    let old = block_signals();
    let runner = raw::getpid();
    // SAFETY: this process has one thread, so the child is whole.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        begin_to_serve(&own, runner, std::iter::empty());
        shared.keep_only_heir(i);
        if let Ok(level) = take_on(heir.of.load(Relaxed)) {
            let header = own.header();
            // Only the first service hands anything on to it, which it knows by the token.
            header.begin(mode, config.files.min_size.0, token);
            heir.level.store(level, Relaxed);
            // Who connects is to find that it is this process which listens.
            let _ = handover::listen_at(own.socket());
            let (own, mut config) = (Arc::new(own), config.clone());
            // Who goes through trees opens files by name.
            config.files.walk &= !standing::is_apart();
            let kind = engine_kind(engine);
            let service = Service::new(own.clone(), config, mode, kind, Default::default());
            own.header().heir.state.store(shm::HEIR_LISTENS, Release);
            service.inherit(token).run();
        } else {
            heir.state.store(shm::HEIR_FAILED, Release);
        }
        // SAFETY: ends the process without running the runner's exit handlers.
        unsafe { libc::_exit(0) }
    }
    set_mask(&old);
    match pid {
        1.. => heir.pid.store(pid as u32, Release),
        _ => heir.state.store(shm::HEIR_FAILED, Release),
    }
}

/// Becomes one that may do what process `of` may: see [`Watch::assume`].
fn take_on(of: u32) -> std::io::Result<u32> {
    let watch = Watch::of(of)?;
    let own = watch.enter()?;
    watch.assume(own)
}

/// Descriptors for which a service has room from the start, 8 bytes each: a few for each thread of its lanes, and a tree's worth of open files.
const DESCRIPTORS: i32 = 1023;

/// What a service's process does first. Of the runner's descriptors it has these and its socket. It ends when the program has; of the signals only SIGTERM
/// reaches it. Nobody but root may look into it, whoever has the same user: it knows the names of all programs' files.
fn begin_to_serve(shared: &Shared, runner: u32, kept: impl Iterator<Item = i32>) {
    let mut blocked = all_signals();
    // SAFETY: a valid set; the default action ends the service, which costs the speed-up only.
    unsafe {
        libc::signal(libc::SIGTERM, libc::SIG_DFL);
        libc::sigdelset(&mut blocked, libc::SIGTERM);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        // Its descriptors are its own.
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
        // Their table grows now: later all threads that open something would wait for that, for the kernel's grace periods.
        let high = libc::fcntl(
            shared.socket().as_raw_fd(),
            libc::F_DUPFD_CLOEXEC,
            DESCRIPTORS,
        );
        if high >= 0 {
            libc::close(high);
        }
        // Its sleeps are as long as it says.
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
    }
    set_mask(&blocked);
    // Stopped or not, it doesn't outlive a runner that is killed. Once the program is over it is on its own: see Service::finish.
    child::die_with_parent();
    if std::os::unix::process::parent_id() != runner {
        // SAFETY: ends the process without running the runner's exit handlers.
        unsafe { libc::_exit(1) };
    }
    detach([shared.socket().as_raw_fd()].into_iter().chain(kept));
}

fn engine_kind(engine: Engine) -> engine::Kind {
    match engine {
        Engine::Auto => engine::Kind::Auto,
        Engine::Uring => engine::Kind::Uring,
        Engine::Threads => engine::Kind::Threads,
        Engine::Readahead => engine::Kind::Readahead,
        Engine::Noop => engine::Kind::Noop,
    }
}

/// Holds nothing of the runner: no standard stream (a pipe's reader waits for all writers), no terminal, no directory.
fn detach(kept: impl Iterator<Item = i32>) {
    // SAFETY: takes no arguments; a constant name.
    unsafe {
        libc::setsid();
        libc::chdir(c"/".as_ptr());
    }
    close_all_but(kept);
    for _ in 0..3 {
        // SAFETY: a constant name, and a descriptor that was just opened.
        unsafe {
            let fd = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            if fd > 2 {
                libc::close(fd);
            }
        }
    }
}

/// Tells the services that the program is over, and waits until they have let go of the program's files and their figures are final.
fn conclude(shared: &Shared, service: Option<i32>) {
    let header = shared.header();
    let Some(pid) = service else {
        header.closed.store(1, Release);
        shared.settle_waiting();
        return;
    };
    let has_begun = |i: &usize| shared.heir_header(*i).heir.token.load(Relaxed) != 0;
    let heirs = (0..shm::HEIRS).filter(has_begun).filter_map(|i| {
        let socket = shared.socket().try_clone_to_owned().ok()?;
        Some(shared.heir(i, socket))
    });
    let is_there = |heir: &Shared| {
        let state = heir.header().heir.state.load(Acquire);
        matches!(state, shm::HEIR_LISTENS | shm::HEIR_LEAVES)
    };
    let (heirs, over): (Vec<Shared>, Vec<Shared>) = heirs.partition(is_there);
    for heir in &heirs {
        // Somebody may have stopped it.
        go_on(heir.header().heir.pid.load(Acquire) as i32);
        // One that is about to end has been told, and may have answered.
        let finish = &heir.header().finish;
        let _ = finish.compare_exchange(0, 1, Release, Relaxed);
        handover::knock_at(&heir.header().heir.name());
    }
    go_on(pid);
    header.finish.store(1, Release);
    shared.knock();
    // All of them have the same time: each may be kept from its end by somebody else.
    let until = Instant::now() + LETTING_GO;
    await_end(shared, shared, pid, until);
    for heir in &over {
        shared.gather(heir);
    }
    for heir in &heirs {
        let pid = heir.header().heir.pid.load(Acquire) as i32;
        await_end(shared, heir, pid, until);
        shared.gather(heir);
    }
    // A service's root directory and mounts may be those of a program: they can be unmounted once it has ended, which it has all but done. One that serves what
    // the program left behind stays.
    for heir in heirs
        .iter()
        .filter(|h| h.header().closed.load(Acquire) == 1)
    {
        await_exit(heir.header().heir.pid.load(Acquire) as i32);
    }
}

/// So long a service may take to let go of all at the end of a run.
const LETTING_GO: Duration = Duration::from_secs(2);

/// Waits until the figures that a service, process `pid`, keeps in `its` are final.
fn await_end(shared: &Shared, its: &Shared, pid: i32, until: Instant) {
    let (header, finish) = (shared.header(), &its.header().finish);
    while finish.load(Acquire) != 2 {
        if Instant::now() >= until {
            end_service(pid);
            header.lose(lost::SERVICE_SILENT);
            return;
        }
        raw::futex_wait(finish, 1, 20_000);
        // SAFETY: no status is wanted.
        if unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) } == pid
            && finish.load(Acquire) != 2
        {
            header.lose(lost::SERVICE_DIED);
            header.closed.store(1, Release);
            return;
        }
    }
}

/// Has a service go on that somebody has stopped.
fn go_on(service: i32) {
    // SAFETY: our own child, not waited for yet.
    unsafe { libc::kill(service, libc::SIGCONT) };
}

/// Ends a service that doesn't answer. One that waits for a disk which doesn't answer either ends when that does, and isn't waited for.
fn end_service(pid: i32) {
    // SAFETY: our own child, not waited for yet.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    await_exit(pid);
}

/// Waits half a second at most until a service has ended that is about to.
fn await_exit(pid: i32) {
    for _ in 0..500 {
        // SAFETY: our own child; no status is wanted.
        if unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) } != 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends this process as the program ended.
fn die_like(status: i32) -> ! {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        // SAFETY: restores the default action of a signal and raises it; the program has written its core file already.
        unsafe {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            // A core that goes to a pipe has no limit.
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
            libc::signal(signal, libc::SIG_DFL);
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
            libc::kill(libc::getpid(), signal);
            libc::_exit(128 + signal);
        }
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(libc::WEXITSTATUS(status)) }
}
