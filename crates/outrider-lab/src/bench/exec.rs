//! Running commands: all at once, timed, what they print digested, and nothing of them left afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use super::group::{self, Group};
use crate::disk;
use crate::output::{Context, Failure, Outcome};
use crate::rows::FIGURES_PREFIX;

/// How much a command's pipe holds, bytes: what it prints shall not wait for who digests it.
const PIPE: i32 = 1 << 20;
/// How much of what a command complains is kept, bytes.
const COMPLAINT: usize = 2048;
/// How often an asked-for end and the time-out are looked at.
const STEP: Duration = Duration::from_millis(50);

/// What is to be run.
pub struct Job<'a> {
    /// First, alone, and timed (vmtouch).
    pub before: Option<Vec<String>>,
    /// At the same time, timed.
    pub commands: &'a [Vec<String>],
    /// Around them, not timed.
    pub beside: &'a [Vec<String>],
    /// Where they run.
    pub group: &'a Group,
    /// Their working directory, empty.
    pub out: &'a Path,
    /// Added to their environment.
    pub env: &'a [(&'static str, String)],
    /// The longest that they may take.
    pub limit: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Ended {
    /// From the start of the first to the end of the last, s.
    pub seconds: f64,
    /// CPU time of all processes that the commands waited for, s.
    pub cpu_seconds: f64,
    /// The first exit code that was not 0; 128 and the signal's number for one that was killed.
    pub exit: i32,
    /// A digest of each command's standard output.
    pub digests: Vec<String>,
    /// The end of what they wrote to standard error.
    pub said: String,
    /// Their own figures.
    pub figures: BTreeMap<String, f64>,
    /// They took too long.
    pub timed_out: bool,
}

/// How a process ended.
struct Exit {
    code: i32,
    cpu_seconds: f64,
    at: Instant,
}

/// Runs it. Fails only if something could not be started, or if this program was asked to end.
pub fn run(job: &Job) -> Outcome<Ended> {
    let result = started(job);
    // Neighbours, and whatever a command left behind.
    job.group.kill();
    result
}

fn started(job: &Job) -> Outcome<Ended> {
    let mut neighbours = Neighbours(Vec::new());
    for command in job.beside {
        let child = spawn(job, command, &job.group.beside_entries(), true)?;
        neighbours.0.push(child);
    }
    if !neighbours.0.is_empty() {
        // They shall be at work before the clock starts.
        pause(Duration::from_millis(200))?;
    }
    let entries = job.group.work_entries();
    let start = Instant::now();
    let mut ended = Ended::default();
    let mut last = start;
    if let Some(before) = &job.before {
        let child = spawn(job, before, &entries, true)?;
        let exits = wait(job, &[child], start, &mut ended)?;
        for exit in &exits {
            last = last.max(exit.at);
            ended.cpu_seconds += exit.cpu_seconds;
            if exit.code != 0 {
                ended.exit = exit.code;
                ended.said = format!("{} failed", before[0]);
            }
        }
    }
    if ended.exit == 0 && !ended.timed_out {
        let mut children = Vec::new();
        let mut readers = Vec::new();
        for command in job.commands {
            let mut child = spawn(job, command, &entries, false)?;
            let (out, err) = (child.stdout.take(), child.stderr.take());
            readers.push((
                thread::spawn(move || digest(out)),
                thread::spawn(move || listen(err)),
            ));
            children.push(child);
        }
        for exit in wait(job, &children, start, &mut ended)? {
            last = last.max(exit.at);
            ended.cpu_seconds += exit.cpu_seconds;
            if ended.exit == 0 {
                ended.exit = exit.code;
            }
        }
        let lost = neighbours.failed();
        // Who inherited a pipe from a command and outlived it would keep it open.
        drop(neighbours);
        job.group.kill();
        children.iter().for_each(kill_family);
        collect(readers, &mut ended)?;
        if let Some(code) = lost {
            ended.exit = if ended.exit == 0 { code } else { ended.exit };
            ended
                .said
                .push_str("\na neighbour ended before the commands did");
        }
    }
    ended.seconds = (last - start).as_secs_f64();
    Ok(ended)
}

/// Processes that are killed when the value goes.
struct Neighbours(Vec<Child>);

impl Neighbours {
    /// The exit code of one that has failed: without it, the row is not what it should be.
    fn failed(&mut self) -> Option<i32> {
        let ended = self
            .0
            .iter_mut()
            .filter_map(|child| child.try_wait().ok().flatten());
        ended
            .map(|status| status.code().unwrap_or(128))
            .find(|code| *code != 0)
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for child in &mut self.0 {
            kill_family(child);
            let _ = child.wait();
        }
    }
}

/// Kills a child and those of its descendants that stayed in its process group.
fn kill_family(child: &Child) {
    // SAFETY: a plain system call. A group that is gone is not found.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
}

/// Joins the threads that read what the commands print.
fn collect(readers: Vec<(JoinHandle<String>, JoinHandle<Listened>)>, ended: &mut Ended) -> Outcome {
    let died = || Failure::system("a thread died that read what a command prints");
    for (out, err) in readers {
        ended.digests.push(out.join().map_err(|_| died())?);
        let listened = err.join().map_err(|_| died())?;
        ended.said.push_str(&listened.said);
        for (name, value) in listened.figures {
            let old = ended.figures.entry(name.clone()).or_insert(0.0);
            // Of what no sum makes sense of, the worst.
            *old = if is_sum(&name) {
                *old + value
            } else {
                old.max(value)
            };
        }
    }
    Ok(())
}

/// Whether the figures of several commands add up.
fn is_sum(name: &str) -> bool {
    !(name.ends_with("_us") || name.ends_with("_ms") || name.ends_with("permille"))
}

/// Starts a command in the groups behind `entries`.
fn spawn(job: &Job, words: &[String], entries: &[RawFd], quiet: bool) -> Outcome<Child> {
    let entries = entries.to_vec();
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .current_dir(job.out)
        .env("LC_ALL", "C")
        .envs(job.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null())
        .process_group(0);
    if quiet {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    } else {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let parent = std::process::id() as i32;
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            // It shall not outlive this program, however that ends.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != parent {
                libc::_exit(127);
            }
            group::enter(&entries)
        });
    }
    let child = command.spawn().doing(&words[0])?;
    for pipe in [
        child.stdout.as_ref().map(AsRawFd::as_raw_fd),
        child.stderr.as_ref().map(AsRawFd::as_raw_fd),
    ]
    .into_iter()
    .flatten()
    {
        // SAFETY: a call with numbers on a descriptor of ours. A refusal costs nothing but speed.
        unsafe { libc::fcntl(pipe, libc::F_SETPIPE_SZ, PIPE) };
    }
    Ok(child)
}

/// Waits for all, at most until the time-out, after which they are killed.
fn wait(job: &Job, children: &[Child], start: Instant, ended: &mut Ended) -> Outcome<Vec<Exit>> {
    let (tell, hear) = mpsc::channel();
    for child in children {
        let (pid, tell) = (child.id() as i32, tell.clone());
        thread::spawn(move || {
            let _ = tell.send(wait4(pid));
        });
    }
    drop(tell);
    let mut exits = Vec::new();
    let mut stopped = false;
    while exits.len() < children.len() {
        match hear.recv_timeout(STEP) {
            Ok(exit) => exits.push(exit),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if stopped => {}
            Err(RecvTimeoutError::Timeout) => {
                ended.timed_out = start.elapsed() > job.limit;
                stopped = ended.timed_out || disk::interrupted();
                if stopped {
                    job.group.kill();
                    // Where there are no control groups: each leads a process group.
                    children.iter().for_each(kill_family);
                }
            }
        }
    }
    not_interrupted()?;
    Ok(exits)
}

fn wait4(pid: i32) -> Exit {
    let mut status = 0;
    // SAFETY: all zeros is a valid rusage, and both pointers are to live values.
    let (done, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        loop {
            let r = libc::wait4(pid, &raw mut status, 0, &raw mut usage);
            if r >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                break (r, usage);
            }
        }
    };
    let at = Instant::now();
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    Exit {
        code: match status {
            _ if done < 0 => 127,
            s if libc::WIFSIGNALED(s) => 128 + libc::WTERMSIG(s),
            s => libc::WEXITSTATUS(s),
        },
        cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        at,
    }
}

/// A digest of all that comes.
fn digest(from: Option<impl Read>) -> String {
    let mut hash = Xxh3::new();
    let mut buffer = vec![0; 256 * 1024];
    if let Some(mut from) = from {
        while let Ok(n) = from.read(&mut buffer) {
            if n == 0 {
                break;
            }
            hash.update(&buffer[..n]);
        }
    }
    format!("{:032x}", hash.digest128())
}

/// What a command wrote to standard error.
struct Listened {
    said: String,
    figures: BTreeMap<String, f64>,
}

fn listen(from: Option<impl Read>) -> Listened {
    let mut all = Vec::new();
    if let Some(from) = from {
        // Who floods standard error is not read for ever; the pipe is drained all the same.
        let mut from = from;
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(n) = from.read(&mut buffer) {
            if n == 0 {
                break;
            }
            all.extend_from_slice(&buffer[..n]);
            if all.len() > 4 << 20 {
                all.drain(..2 << 20);
            }
        }
    }
    let text = String::from_utf8_lossy(&all);
    let mut listened = Listened {
        said: String::new(),
        figures: BTreeMap::new(),
    };
    for line in text.lines() {
        let figures = line.strip_prefix(FIGURES_PREFIX);
        let figures =
            figures.and_then(|json| serde_json::from_str::<BTreeMap<String, f64>>(json).ok());
        match figures {
            Some(figures) => listened.figures.extend(figures),
            // Complaints of outrider-work begin in the same way.
            None => {
                listened.said.push_str(line);
                listened.said.push('\n');
            }
        }
    }
    let mut from = listened.said.len().saturating_sub(COMPLAINT);
    while !listened.said.is_char_boundary(from) {
        from += 1;
    }
    listened.said.drain(..from);
    listened
}

/// Fails once this program was asked to end.
pub fn not_interrupted() -> Outcome {
    if disk::interrupted() {
        return Err(Failure {
            message: "interrupted".to_owned(),
            code: 130,
        });
    }
    Ok(())
}

/// Sleeps, unless this program is asked to end.
pub fn pause(how_long: Duration) -> Outcome {
    let until = Instant::now() + how_long;
    loop {
        not_interrupted()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(STEP));
    }
}

/// An empty directory.
pub fn empty(dir: &Path) -> Outcome {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir).doing(dir.display())
}
