//! How commands talk to a running server: one JSON line each way over a unix socket.
//!
//! The socket is served by a thread of ordinary priority, so that what a command asks for (writing a
//! trace to a file that may lie on the emulated disk itself, remounting it) never holds up a request.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::{Deserialize, Serialize};

use super::blockdev::{self, Loop};
use super::model::Model;
use super::server::{Counters, Handle, Server, Traced};
use super::state::Place;
use crate::output::{Context, Failure, Outcome};

/// What a command asks.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Change the model.
    Model(String),
    /// Tell the model and the counters, and then, perhaps, count from zero.
    Stats { reset: bool },
    /// Record requests; the file gets them when the recording is stopped.
    TraceStart(PathBuf),
    /// Write what was recorded.
    TraceStop,
    /// Remount the file system.
    Cold,
}

/// What the server answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// The model and the counters.
    Stats(Box<(Model, Counters)>),
    /// So many requests were written.
    Traced(usize),
    /// Not done: why, and the exit code.
    No(String, i32),
}

/// Asks the server of a disk.
pub fn ask(place: &Place, question: &Ask) -> Outcome<Answer> {
    let silent = "the disk's server does not answer";
    let mut line = serde_json::to_string(question).doing("cannot ask")?;
    line.push('\n');
    let mut stream = UnixStream::connect(place.control()).doing(silent)?;
    let limit = Some(Duration::from_secs(120));
    stream.set_read_timeout(limit).doing(silent)?;
    stream.set_write_timeout(limit).doing(silent)?;
    stream.write_all(line.as_bytes()).doing(silent)?;
    let mut said = String::new();
    BufReader::new(stream).read_line(&mut said).doing(silent)?;
    match serde_json::from_str(&said).doing(silent)? {
        Answer::No(message, code) => Err(Failure { message, code }),
        answer => Ok(answer),
    }
}

/// The server's end.
#[derive(Clone, Debug)]
pub struct Control {
    place: Place,
    server: Handle,
    /// Where the recording under way will go.
    trace: Arc<Mutex<Option<PathBuf>>>,
}

impl Control {
    /// Answers for the server of the disk at `place`.
    pub fn new(place: Place, server: Handle) -> Self {
        Self {
            place,
            server,
            trace: Arc::default(),
        }
    }

    /// Answers one command after the other, for ever.
    pub fn serve(&self, socket: &UnixListener) {
        for stream in socket.incoming().flatten() {
            if let Err(e) = self.converse(stream) {
                eprintln!("a command left before it was answered: {e}");
            }
        }
    }

    fn converse(&self, stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        let answer = match serde_json::from_str(&line) {
            Ok(question) => self
                .answer(question)
                .unwrap_or_else(|f| Answer::No(f.message, f.code)),
            Err(e) => Answer::No(format!("not understood: {e}"), 2),
        };
        let mut line = serde_json::to_string(&answer)?;
        line.push('\n');
        (&stream).write_all(line.as_bytes())
    }

    fn answer(&self, question: Ask) -> Outcome<Answer> {
        match question {
            Ask::Model(words) => self.change(words).map(|()| Answer::Done),
            Ask::Stats { reset } => {
                let report = self.server.ask(move |server| {
                    let report = (server.model().clone(), server.counters());
                    if reset {
                        server.reset();
                    }
                    report
                });
                Ok(Answer::Stats(Box::new(report.ok_or_else(ended)?)))
            }
            Ask::TraceStart(path) => {
                let mut trace = self.trace.lock().expect("no thread panicked");
                if let Some(other) = &*trace {
                    return Err(Failure::system(format!(
                        "a trace to {} is being recorded",
                        other.display()
                    )));
                }
                // Complain now if it cannot be written.
                File::create(&path).doing(path.display())?;
                self.server
                    .ask(|server| server.start_trace())
                    .ok_or_else(ended)?;
                *trace = Some(path);
                Ok(Answer::Done)
            }
            Ask::TraceStop => match self.stop_trace()? {
                Some(lines) => Ok(Answer::Traced(lines)),
                None => Err(Failure::system("no trace is being recorded")),
            },
            Ask::Cold => self.cold().map(|()| Answer::Done),
        }
    }

    /// Lets everything through, so that the disk can be taken down.
    pub fn full_speed(&self) -> Outcome {
        self.change(super::model::FULL_SPEED.to_owned())
    }

    fn change(&self, words: String) -> Outcome {
        let change = move |server: &mut Server| {
            let change = server.model().change(&words)?;
            if let Some(model) = change.model {
                server.set_model(model);
            }
            if let Some(seconds) = change.stall_seconds {
                server.stall(seconds);
            }
            Ok::<_, String>(())
        };
        let done = self.server.ask(change).ok_or_else(ended)?;
        done.map_err(Failure::usage)
    }

    /// Writes the recording under way, if there is one; how many requests.
    pub fn stop_trace(&self) -> Outcome<Option<usize>> {
        let lines = self.server.ask(|server| server.stop_trace());
        self.finish_trace(lines.flatten())
    }

    /// Writes what was recorded to where it was to go.
    pub fn finish_trace(&self, lines: Option<Vec<Traced>>) -> Outcome<Option<usize>> {
        let path = self.trace.lock().expect("no thread panicked").take();
        match (path, lines) {
            (Some(path), Some(lines)) => write_trace(&path, lines).doing(path.display()).map(Some),
            _ => Ok(None),
        }
    }

    /// Remounts at full speed and counts from zero. The loop device is held open meanwhile: it would
    /// go away with its last user.
    fn cold(&self) -> Outcome {
        let unknown = || Failure::system("the disk is not up yet");
        let state = self.place.load().ok_or_else(unknown)?;
        let device = Loop(state.device.ok_or_else(unknown)?);
        let node = device.open().doing(device.path().display())?;
        let before = self.server.ask(|server| {
            let before = server.model().clone();
            let off = before.change("off").expect("off is a preset");
            if let Some(off) = off.model {
                server.set_model(off);
            }
            before
        });
        let remounted = self.remount(&state.dir, &state.fs, device, &node);
        if let Some(before) = before {
            self.server.ask(move |server| {
                server.set_model(before);
                server.reset();
            });
        }
        remounted
    }

    fn remount(&self, dir: &Path, fs: &str, device: Loop, node: &File) -> Outcome {
        let flush = || blockdev::flush_buffers(node).doing(device.path().display());
        if fs == "none" {
            return flush();
        }
        match unmount(dir, UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) => {
                return Err(Failure::system(format!(
                    "{} is in use; end the programs that work in it",
                    dir.display()
                )));
            }
            done => done.doing(format!("cannot unmount {}", dir.display()))?,
        }
        flush()?;
        mount_disk(dir, fs, device)
    }
}

fn ended() -> Failure {
    Failure::system("the disk is going away")
}

/// Mounts the device. Not even reading the disk shall write to it: no access times.
pub fn mount_disk(dir: &Path, fs: &str, device: Loop) -> Outcome {
    mount(device.path(), dir, fs, MountFlags::NOATIME, None).doing(format!(
        "cannot mount {} on {}",
        device.path().display(),
        dir.display()
    ))
}

/// A line per request in order of arrival: start µs, done µs, R or W, offset, length.
fn write_trace(path: &Path, mut lines: Vec<Traced>) -> io::Result<usize> {
    lines.sort_by_key(|l| l.start);
    let mut out = BufWriter::new(File::create(path)?);
    for l in &lines {
        let us = |ns: u64| ns as f64 / 1e3;
        let op = if l.write { 'W' } else { 'R' };
        let (start, done) = (us(l.start), us(l.done));
        writeln!(out, "{start:.1} {done:.1} {op} {} {}", l.offset, l.len)?;
    }
    out.flush()?;
    Ok(lines.len())
}
