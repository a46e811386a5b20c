//! Emulated disks: `outrider-lab disk`.
//!
//! A disk is a stack: an image in memory; a server process that lends it to the kernel as a file through
//! FUSE and answers each request when a model of a device would ([`server`]); a loop device
//! with direct I/O over that file; a file system.
//!
//! The FUSE file system is never mounted anywhere: the file is opened through a detached mount (Linux
//! 5.2) and given to the loop device, which lets it go when the file system above is unmounted. So there
//! is one mount to clean up, and a plain `umount` takes the whole stack down; if the server dies, `disk
//! down` finds the rest by the name of the loop device's file.

mod args;
mod blockdev;
mod control;
mod daemon;
mod image;
mod lease;
mod remount;
mod server;
mod state;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use outrider_sim::model::{self, Model};
use outrider_sys::units::PAGE;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::json;

use crate::fuse;
use crate::output::{Context, Failure, Outcome};
use crate::size;
use args::{DiskCommand, TraceWhat, UpArgs};
use blockdev::Loop;
use control::{Answer, Ask};
use server::Counters;
use state::{Lock, Place, State};

pub use args::{DiskArgs, FileSystem};
pub use blockdev::mounted_on;
pub use daemon::{block_signals, wait_for};
pub use lease::{Lease, check_model, has_head, interrupted, promised, sweep};
pub use outrider_sim::model::FULL_SPEED;

/// The size of a disk unless one is asked for.
const DEFAULT_SIZE: u64 = 8 << 30;
/// The smallest disk, bytes.
const LEAST_SIZE: u64 = 1 << 20;

/// Runs a subcommand of `disk`.
pub fn command(command: DiskCommand) -> Outcome {
    match command {
        DiskCommand::Up(args) => up(&args),
        DiskCommand::Model { dir, words } => {
            let (place, _lock) = held(&dir)?;
            control::ask(&place, &Ask::Model(words.join(" "))).map(|_| ())
        }
        DiskCommand::Stats { dir, json, reset } => stats(&dir, json, reset),
        DiskCommand::Trace { dir, what, file } => trace(&dir, what, file.as_deref()),
        DiskCommand::Cold { dir } => cold(&dir),
        DiskCommand::Down { dir, keep, lazy } => down(&dir, keep, lazy),
        DiskCommand::List { json } => list(json),
        DiskCommand::Serve { key, size, image } => serve(&key, size, image),
        DiskCommand::Release { key } => {
            let place = Place::with_key(&key);
            // Who still works on the disk after so long has to bear that it goes.
            let _lock = place.lock_patiently().doing("cannot lock the disk")?;
            place.release(true)
        }
    }
}

/// Drops what the kernel has cached of the disk on `dir`, by remounting it at full speed; counts from zero.
pub fn cold(dir: &Path) -> Outcome {
    let (place, _lock) = held(dir)?;
    remount::cold(&place).map_err(|failure| {
        // Whatever failed then, failed for that.
        running(dir).err().unwrap_or(failure)
    })
}

/// The place of the disk on `dir`.
fn place_of(dir: &Path) -> Outcome<Place> {
    let dir =
        state::absolute(dir).map_err(|e| Failure::usage(format!("{}: {e}", dir.display())))?;
    Ok(Place::of(&dir))
}

/// The place of the running disk on `dir`.
fn running(dir: &Path) -> Outcome<Place> {
    let place = place_of(dir)?;
    need_root()?;
    if place.alive() {
        return Ok(place);
    }
    let shown = dir.display();
    Err(if place.exists() {
        Failure::system(format!(
            "the server of the disk on {shown} has died; take it down with `disk down`"
        ))
    } else {
        Failure::usage(format!(
            "no disk is on {shown}; `disk list` shows those that are up"
        ))
    })
}

/// The place of the running disk on `dir`, kept from other commands, and whole: what a command that died left
/// half done is finished first.
fn held(dir: &Path) -> Outcome<(Place, Lock)> {
    let place = running(dir)?;
    let lock = place.lock().doing("cannot lock the disk")?;
    running(dir)?;
    remount::recover(&place)?;
    Ok((place, lock))
}

fn need_root() -> Outcome {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::system("disks need root"))
}

// ---------------------------------------------------------------------------------------------
// up

/// Set by SIGINT, SIGTERM or SIGHUP while a disk is being brought up.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Turns the signals that ask for an end into a flag, so that a half-made disk is taken down again.
pub fn catch_signals() {
    // SAFETY: the handler only stores a flag; the structure is valid all zeros otherwise (no SA_RESTART:
    // calls that wait return).
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupt as extern "C" fn(libc::c_int) as usize;
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

fn not_interrupted() -> Outcome {
    if INTERRUPTED.load(Ordering::Relaxed) {
        return Err(Failure {
            message: "interrupted".to_owned(),
            code: 130,
        });
    }
    Ok(())
}

fn up(args: &UpArgs) -> Outcome {
    let state = bring_up(args)?;
    let device = Loop(state.device.unwrap_or_default()).path();
    let (device, dir) = (device.display(), state.dir.display());
    let size = size::show(state.size);
    match state.fs.as_str() {
        "none" => println!("{device}: {} of {size}, named {dir}", args.model),
        fs => println!("{device}: {} of {size}, {fs} on {dir}", args.model),
    }
    Ok(())
}

fn bring_up(args: &UpArgs) -> Outcome<State> {
    let mut words = args.model.clone();
    if let Some(scale) = args.scale {
        words.push_str(&format!(" scale={scale}"));
    }
    let change = Model::default().change(&words).map_err(Failure::usage)?;
    let rotational = change.model.is_some_and(|m| m.kind == model::Kind::Head);
    let (size, found) = image_size(args)?;
    let image = args.image.as_ref().map(std::path::absolute).transpose();
    let image = image.map_err(|e| Failure::usage(format!("--image: {e}")))?;
    let dir = state::absolute(&args.mount)
        .map_err(|e| Failure::usage(format!("{}: {e}", args.mount.display())))?;
    if dir.exists() && !dir.is_dir() {
        return Err(Failure::usage(format!(
            "{} is not a directory",
            dir.display()
        )));
    }
    need_root()?;
    catch_signals();

    let place = Place::of(&dir);
    let _lock = place.lock().doing("cannot lock the disk")?;
    if place.alive() {
        return Err(Failure::system(format!(
            "a disk is on {} already; take it down with `disk down`",
            dir.display()
        )));
    }
    if place.exists() {
        place.tear_down(true, false)?;
    }
    if blockdev::is_mount_point(&dir) {
        return Err(Failure::system(format!(
            "something is mounted on {} already",
            dir.display()
        )));
    }
    place.make().doing("cannot keep state under /run")?;
    let mut state = State {
        made_dir: fs::create_dir(&dir).is_ok(),
        dir,
        made_image: image.as_ref().is_some_and(|i| !i.exists()),
        image,
        size,
        fs: found.unwrap_or(args.fs.name()).to_owned(),
        pid: 0,
        device: None,
        readahead_kb: args.readahead_kb,
    };
    let mut server = None;
    let made = assemble(&place, &mut state, rotational, found.is_none(), &mut server).and_then(
        |starter| {
            control::ask(&place, &Ask::Model(words))?;
            control::ask(&place, &Ask::Stats { reset: true })?;
            not_interrupted()?;
            // From here on the server no longer watches over us.
            (&starter).write_all(&[1]).doing("the server is gone")
        },
    );
    if let Err(failure) = made {
        // Nothing is in use yet but by us.
        let _ = place.tear_down(false, true);
        if let Some(mut child) = server {
            let _ = child.wait();
        }
        return Err(failure);
    }
    Ok(state)
}

/// The disk's size and the file system found on its image.
fn image_size(args: &UpArgs) -> Outcome<(u64, Option<&'static str>)> {
    let mut size = args.size;
    let mut found = None;
    if let Some(path) = args.image.as_ref().filter(|p| p.exists()) {
        let bad = |e: &dyn std::fmt::Display| Failure::usage(format!("{}: {e}", path.display()));
        let mut file = File::open(path).map_err(|e| bad(&e))?;
        let meta = file.metadata().map_err(|e| bad(&e))?;
        if !meta.is_file() {
            return Err(bad(&"an image is a regular file"));
        }
        if meta.len() > size.unwrap_or(u64::MAX) {
            return Err(bad(&format!(
                "the image is larger than --size: {} bytes",
                meta.len()
            )));
        }
        if meta.len() > 0 {
            size = size.or(Some(meta.len()));
        }
        found = blockdev::file_system_on(&mut file).map_err(|e| bad(&e))?;
        if args.fs == FileSystem::None {
            found = None;
        } else if found.is_none() && meta.blocks() > 0 {
            // Whatever it is, it is not ours to overwrite.
            return Err(bad(
                &"no ext4, xfs or btrfs is on this image; accepted are one with, an empty one, and --fs none",
            ));
        }
    }
    let size = size.unwrap_or(DEFAULT_SIZE) / PAGE * PAGE;
    if size < LEAST_SIZE {
        return Err(Failure::usage(format!(
            "a disk of {size} bytes is too small; accepted are {LEAST_SIZE} and more"
        )));
    }
    Ok((size, found))
}

/// Builds the stack from the server up to the mount. Returns the pipe by which the server knows that
/// this command lives.
fn assemble(
    place: &Place,
    state: &mut State,
    rotational: bool,
    fresh: bool,
    server: &mut Option<Child>,
) -> Outcome<File> {
    let fuse = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/fuse")
        .doing("/dev/fuse")?;
    let context = fuse_context(&fuse).doing("cannot make a FUSE file system")?;
    let (watched, starter) = pipe_with(PipeFlags::CLOEXEC).doing("cannot make a pipe")?;
    let child = server.insert(start_server(place, state, fuse, watched)?);
    state.pid = child.id();
    place.save(state).doing("cannot keep state")?;

    let file = open_disk(place, context).map_err(|e| server_failure(place, &e))?;
    not_interrupted()?;
    let formatted = state.fs != "none";
    let (device, node) = blockdev::attach(file.as_fd(), formatted, &state.dir)
        .doing("cannot attach a loop device")?;
    drop(file);
    state.device = Some(device.0);
    place.save(state).doing("cannot keep state")?;
    if !device.is_direct() {
        return Err(Failure::system(format!(
            "{} does not do direct I/O over FUSE on this kernel",
            device.path().display()
        )));
    }
    let set = device
        .tune(rotational, state.readahead_kb)
        .doing("cannot set the queue up")?;
    if set != state.readahead_kb {
        return Err(Failure::usage(format!(
            "--readahead-kb {}: the kernel made it {set}",
            state.readahead_kb
        )));
    }
    if formatted {
        if fresh {
            make_file_system(&state.fs, device, state.image.is_none() || state.made_image)?;
        }
        not_interrupted()?;
        remount::mount_disk(&state.dir, &state.fs, device)?;
    }
    drop(node);
    not_interrupted()?;
    Ok(File::from(starter))
}

/// Starts the server, which gets `/dev/fuse` as standard input and the pipe as standard output. From then
/// on nobody else holds `/dev/fuse`: if the server dies, whoever waits for its answers is told.
fn start_server(place: &Place, state: &State, fuse: File, watched: OwnedFd) -> Outcome<Child> {
    let itself = std::env::current_exe().doing("cannot find this program")?;
    let log = File::create(place.log()).doing(place.log().display())?;
    let mut command = Command::new(itself);
    command.args(["disk", "serve", place.key(), &state.size.to_string()]);
    command.args(&state.image);
    command
        .current_dir("/")
        .stdin(fuse)
        .stdout(watched)
        .stderr(log);
    command.spawn().doing("cannot start the server")
}

/// Makes the file system that speaks through `fuse`. It must exist before the server reads from there.
fn fuse_context(fuse: &File) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [
        ("source", "outrider-lab".to_owned()),
        ("fd", fuse.as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", "0".to_owned()),
        ("group_id", "0".to_owned()),
        ("max_read", fuse::MAX_IO.to_string()),
    ] {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value.as_str())?;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    Ok(context)
}

/// Opens the server's file, through a mount that is attached nowhere.
fn open_disk(place: &Place, context: OwnedFd) -> io::Result<OwnedFd> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let tree = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(
        &tree,
        place.file_name(),
        flags,
        Mode::empty(),
    )?)
}

/// Why the server's file could not be opened: what the server said, if it did.
fn server_failure(place: &Place, error: &io::Error) -> Failure {
    // It may still be writing its last words.
    blockdev::wait_until(std::time::Duration::from_secs(1), || !place.alive());
    let log = fs::read_to_string(place.log()).unwrap_or_default();
    match log.lines().last() {
        Some(line) => Failure::system(line.strip_prefix("outrider-lab: ").unwrap_or(line)),
        None => Failure::system(format!("cannot open the disk: {error}")),
    }
}

/// Makes a file system. Nothing is left to be done in the background later, and nothing is discarded:
/// the image is sparse already. `zeros` says that the image is new.
fn make_file_system(fs: &str, device: Loop, zeros: bool) -> Outcome {
    let mut command = Command::new(format!("mkfs.{fs}"));
    match fs {
        "ext4" => {
            // Twice as few inodes as usual: their tables take memory.
            command.args(["-q", "-F", "-i", "32768", "-E"]);
            let prezeroed = if zeros {
                ",assume_storage_prezeroed=1"
            } else {
                ""
            };
            command.arg(format!(
                "lazy_itable_init=0,lazy_journal_init=0,nodiscard{prezeroed}"
            ));
        }
        "xfs" => {
            command.args(["-q", "-f", "-K"]);
        }
        _ => {
            command.args(["-q", "-f", "-K"]);
        }
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut path: Vec<PathBuf> = std::env::split_paths(&path).collect();
    path.extend(["/usr/sbin".into(), "/sbin".into()]);
    if let Ok(path) = std::env::join_paths(path) {
        command.env("PATH", path);
    }
    let done = command
        .arg(device.path())
        .stdin(Stdio::null())
        .output()
        .doing(format!("mkfs.{fs}"))?;
    not_interrupted()?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(Failure::system(format!("mkfs.{fs}: {}", said.trim())))
}

/// The server process.
fn serve(key: &str, size: u64, image: Option<PathBuf>) -> Outcome {
    let take = |fd: &dyn AsFd, replacement: &str| -> io::Result<OwnedFd> {
        let taken = fd.as_fd().try_clone_to_owned()?;
        let null = OpenOptions::new()
            .read(true)
            .write(true)
            .open(replacement)?;
        // SAFETY: puts an open file in the place of a standard stream, which nobody else owns.
        if unsafe { libc::dup2(null.as_raw_fd(), fd.as_fd().as_raw_fd()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(taken)
    };
    let fuse = take(&io::stdin(), "/dev/null").doing("standard input")?;
    let starter = take(&io::stdout(), "/dev/null").doing("standard output")?;
    daemon::run(daemon::Task {
        place: Place::with_key(key),
        size,
        image,
        fuse,
        starter: File::from(starter),
    })
}

// ---------------------------------------------------------------------------------------------
// The rest

fn down(dir: &Path, keep: bool, lazy: bool) -> Outcome {
    let place = place_of(dir)?;
    need_root()?;
    if !place.exists() {
        return Err(Failure::usage(format!(
            "no disk is on {}; `disk list` shows those that are up",
            dir.display()
        )));
    }
    let _lock = place.lock().doing("cannot lock the disk")?;
    let state = place.load();
    if keep && state.is_some_and(|s| s.image.is_none()) {
        return Err(Failure::usage(
            "--keep: the disk is in memory only; bring it up with --image to keep it",
        ));
    }
    if place.alive() {
        // What is still to be written shall not take the model's time.
        let _ = control::ask(&place, &Ask::Model(model::FULL_SPEED.to_owned()));
    }
    place.tear_down(keep, lazy)
}

fn trace(dir: &Path, what: TraceWhat, file: Option<&Path>) -> Outcome {
    let (place, _lock) = held(dir)?;
    match (what, file) {
        (TraceWhat::Start, Some(file)) => {
            let file = std::path::absolute(file).doing(file.display())?;
            control::ask(&place, &Ask::TraceStart(file.clone()))?;
            // Complain now if it cannot be written.
            let made = File::create(&file).doing(file.display());
            if made.is_err() {
                control::ask(&place, &Ask::TraceStop)?;
            }
            made.map(|_| ())
        }
        (TraceWhat::Start, None) => Err(Failure::usage("trace start needs a FILE to write to")),
        (TraceWhat::Stop, None) => {
            let requests = stop_trace(&place)?;
            println!("{requests} requests");
            Ok(())
        }
        (TraceWhat::Stop, Some(_)) => Err(Failure::usage(
            "trace stop takes no FILE; it was named at the start",
        )),
    }
}

/// Ends the recording and writes it to its file; how many requests.
fn stop_trace(place: &Place) -> Outcome<usize> {
    match control::ask(place, &Ask::TraceStop)? {
        Answer::Traced(path, lines) => control::write_trace(&path, lines),
        _ => Err(Failure::system("the disk's server does not understand")),
    }
}

fn stats(dir: &Path, json: bool, reset: bool) -> Outcome {
    let (place, _lock) = held(dir)?;
    let Answer::Stats(report) = control::ask(&place, &Ask::Stats { reset })? else {
        return Err(Failure::system("the disk's server does not understand"));
    };
    let (model, counters) = *report;
    let state = place.load();
    if json {
        let disk = state.map(|s| {
            json!({
                "dir": s.dir,
                "device": s.device.map(|d| Loop(d).path()),
                "fs": s.fs,
                "size": s.size,
                "readahead_kb": s.readahead_kb,
                "image": s.image,
                "pid": s.pid,
            })
        });
        let all = json!({ "disk": disk, "model": model, "counters": counters });
        println!("{all:#}");
        return Ok(());
    }
    print!("{}", told(&model, &counters));
    Ok(())
}

/// The model and the counters for people.
fn told(model: &Model, c: &Counters) -> String {
    let mut lines = vec![format!("model   {}, times x {}", model.name, model.scale)];
    match model.kind {
        model::Kind::Off => {}
        model::Kind::Lanes => {
            lines.push(format!(
                "        {} µs, {} parallel, {} MB/s",
                model.latency_us, model.parallel, model.bandwidth_mbs
            ));
            if model.iops > 0.0 {
                lines.push(format!(
                    "        {} requests/s, {} at once",
                    model.iops, model.iops_burst
                ));
            }
            if model.rate_mbs > 0.0 {
                lines.push(format!(
                    "        {} MB/s, {} MB at once",
                    model.rate_mbs, model.rate_burst_mb
                ));
            }
            if model.first_us > 0.0 {
                lines.push(format!(
                    "        {} µs at the first touch of each {} KiB",
                    model.first_us, model.first_kb
                ));
            }
        }
        model::Kind::Head => lines.push(format!(
            "        one head, {:?} over {}, {} MB/s; {} seeks, {:.1} ms",
            model.schedule, model.queue, model.bandwidth_mbs, c.seeks, c.seek_ms
        )),
    }
    for bad in &model.bad {
        lines.push(format!(
            "        EIO on {}..{} ({:?})",
            bad.start, bad.end, bad.refuses
        ));
    }
    lines.push(format!("reads   {}, {}", c.reads, size::show(c.read_bytes)));
    lines.push(format!(
        "writes  {}, {}",
        c.writes,
        size::show(c.write_bytes)
    ));
    lines.push(format!(
        "        {} flushes, {} discards, {} errors",
        c.flushes, c.discards, c.errors
    ));
    lines.push(format!(
        "time    {:.1} ms, busy {:.1} ms at depth {:.1} (most {})",
        c.elapsed_ms, c.busy_ms, c.mean_depth, c.max_depth
    ));
    lines.push(format!(
        "late    {:.1} µs on average, {:.1} µs at worst",
        c.late_mean_us, c.late_max_us
    ));
    lines.join("\n") + "\n"
}

fn list(json: bool) -> Outcome {
    let mut rows = Vec::new();
    for place in Place::all() {
        let state = place.load();
        let status = if !place.alive() {
            "dead"
        } else if state.as_ref().is_some_and(|s| s.device.is_some()) {
            "up"
        } else {
            "starting"
        };
        let model = (status == "up")
            .then(|| control::ask(&place, &Ask::Stats { reset: false }).ok())
            .flatten()
            .and_then(|a| match a {
                Answer::Stats(report) => Some(report.0.name),
                _ => None,
            });
        let device = place.loops().first().map(|d| d.path());
        rows.push((place, state, status, model, device));
    }
    if json {
        let all: Vec<_> = rows
            .iter()
            .map(|(place, state, status, model, device)| {
                json!({
                    "key": place.key(),
                    "dir": state.as_ref().map(|s| &s.dir),
                    "device": device,
                    "status": status,
                    "model": model,
                    "size": state.as_ref().map(|s| s.size),
                    "fs": state.as_ref().map(|s| &s.fs),
                    "pid": state.as_ref().map(|s| s.pid),
                })
            })
            .collect();
        println!("{:#}", json!(all));
        return Ok(());
    }
    for (place, state, status, model, device) in rows {
        let device = device.map_or("-".into(), |d| d.display().to_string());
        let model = model.unwrap_or_else(|| "-".to_owned());
        let (dir, fs, size) = match state {
            Some(s) => (s.dir.display().to_string(), s.fs, size::show(s.size)),
            None => (place.key().to_owned(), "-".to_owned(), "-".to_owned()),
        };
        println!("{dir}\t{device}\t{model}\t{size}\t{fs}\t{status}");
    }
    Ok(())
}
