//! The server process: it outlives the command that started it, and takes the disk down when it is
//! asked to end.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio, exit};
use std::thread;
use std::time::Duration;

use super::blockdev::wait_until;
use super::control::{Control, write_trace};
use super::image::Image;
use super::server::{Server, Traced};
use super::state::{LOCK_PATIENCE, Place};
use crate::output::{Context, Outcome};

/// Priority among real-time threads: low, but above everything that measures.
const PRIORITY: i32 = 10;
/// linux/prctl.h.
const PR_SET_IO_FLUSHER: libc::c_int = 57;
/// How long programs that use the disk get to leave after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// How long unmounting may take: another command ends first, and then the disk goes at full speed.
const RELEASE: Duration = LOCK_PATIENCE.saturating_mul(2);

/// What the command that brings the disk up hands over.
#[derive(Debug)]
pub struct Task {
    /// The disk.
    pub place: Place,
    /// Its bytes.
    pub size: u64,
    /// The image's file, if it has one.
    pub image: Option<PathBuf>,
    /// A non-blocking `/dev/fuse`.
    pub fuse: OwnedFd,
    /// Says by a byte that the disk is up, or by its end that it will never be.
    pub starter: File,
}

/// Serves until the disk is gone. Does not return unless it could not start.
pub fn run(task: Task) -> Outcome {
    let place = task.place;
    let _ = rustix::process::setsid();
    let signals = block_signals();
    let _alive = place.claim().doing("cannot claim the disk")?;
    // Text and heap stay in memory, or a squeeze on memory would be measured as a slow disk.
    // SAFETY: locks what is mapped now; failure costs accuracy only.
    unsafe { libc::mlockall(libc::MCL_CURRENT) };
    if let Err(e) = protect() {
        eprintln!("PR_SET_IO_FLUSHER: {e}");
    }
    let image = match &task.image {
        Some(path) => Image::in_file(path, task.size).doing(path.display())?,
        None => Image::in_memory(task.size).doing("cannot map the image")?,
    };
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    let (mut server, handle) =
        Server::new(task.fuse, &place.file_name(), image).doing("cannot start the server")?;
    let socket = UnixListener::bind(place.control()).doing("cannot listen")?;
    let control = Control::new(handle.clone());

    let ending = (place.clone(), control.clone());
    let event_loop = thread::Builder::new().name("disk".to_owned());
    event_loop
        .spawn(move || {
            // A panic must not leave the kernel waiting for answers: the process ends, and with it the
            // connection.
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _ = protect();
                hurry();
                server.run()
            }));
            match ended {
                Ok(Ok(())) => {
                    let (place, control) = ending;
                    keep_trace(control.finish_trace(server.stop_trace()));
                    place.forget_at_end();
                    exit(0);
                }
                Ok(Err(e)) => eprintln!("the disk failed: {e}"),
                Err(_) => eprintln!("the disk failed"),
            }
            exit(1);
        })
        .doing("cannot start a thread")?;
    let answering = control.clone();
    spawn("control", move || {
        answering.serve(&socket);
    })?;
    let mut starter = task.starter;
    spawn("starter", move || {
        if !matches!(starter.read(&mut [0]), Ok(1)) {
            // SAFETY: a signal to this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
        }
    })?;

    wait_for(&signals);
    if let Err(f) = control.full_speed() {
        eprintln!("{}", f.message);
    }
    if let Err(e) = release_from_outside(&place) {
        eprintln!("cannot unmount the disk: {e}");
    }
    // The event loop ends the process when the last user is gone.
    thread::sleep(GRACE);
    keep_trace(control.stop_trace());
    place.forget_at_end();
    exit(0);
}

/// Has another process unmount the disk. This one must not: killed while it waits for answers of its own, it
/// would keep `/dev/fuse` open, and the kernel would never tell the waiting call that nobody will answer.
fn release_from_outside(place: &Place) -> io::Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .args(["disk", "release", place.key()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    wait_until(RELEASE, || !matches!(child.try_wait(), Ok(None)));
    Ok(())
}

/// Writes what was recorded for a file, once the disk is no longer mounted.
fn keep_trace(trace: Option<(PathBuf, Vec<Traced>)>) {
    if let Some((path, lines)) = trace
        && let Err(f) = write_trace(&path, lines)
    {
        eprintln!("{}", f.message);
    }
}

fn spawn(name: &str, what: impl FnOnce() + Send + 'static) -> Outcome {
    let thread = thread::Builder::new().name(name.to_owned());
    thread
        .spawn(move || {
            let _ = protect();
            what();
        })
        .doing("cannot start a thread")?;
    Ok(())
}

/// Below a loop device, memory must not be reclaimed by writing to that device: the kernel would wait for
/// this process, and this process for the kernel. Concerns the calling thread. Needs CAP_SYS_RESOURCE and
/// Linux 5.6.
fn protect() -> io::Result<()> {
    // SAFETY: the call takes numbers and concerns this thread only.
    if unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Answers on time: no timer slack, and before ordinary threads where that is permitted.
fn hurry() {
    let priority = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the calls take numbers and a structure that outlives them; they concern this thread only.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
        if libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) != 0 {
            eprintln!("SCHED_FIFO: {}", io::Error::last_os_error());
        }
    }
}

/// Keeps the signals that ask for an end from every thread, so that one can wait for them.
pub fn block_signals() -> libc::sigset_t {
    // SAFETY: the set is initialised by sigemptyset before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    }
}

/// Waits for one of them.
pub fn wait_for(signals: &libc::sigset_t) {
    let mut got = 0;
    // SAFETY: both pointers are to live values.
    while unsafe { libc::sigwait(signals, &mut got) } != 0 {}
}
