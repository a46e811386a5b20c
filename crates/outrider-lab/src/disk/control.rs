//! How commands talk to a running server: one JSON line each way over a unix socket.
//!
//! The server never touches the file system that lies on its disk, for then the kernel would wait for the
//! server and the server for the kernel, for ever if it is killed meanwhile. Whatever does (remounting, writing
//! a trace to a file that may lie on the emulated disk itself) is the asking command's work.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::server::{Counters, Handle, Server, Traced};
use super::state::Place;
use crate::output::{Context, Failure, Outcome};
use outrider_sim::model::Model;

/// What a command asks.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Change the model.
    Model(String),
    /// Tell the model and the counters, and then, perhaps, count from zero.
    Stats { reset: bool },
    /// Record requests for this file.
    TraceStart(PathBuf),
    /// End the recording and tell it.
    TraceStop,
    /// Let everything through while the file system is remounted or unmounted.
    Hurry,
    /// The model is in force again; count from zero.
    Calm,
}

/// What the server answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// The model and the counters.
    Stats(Box<(Model, Counters)>),
    /// What was recorded, and the file that is to get it.
    Traced(PathBuf, Vec<Traced>),
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
    server: Handle,
    /// Where the recording under way will go.
    trace: Arc<Mutex<Option<PathBuf>>>,
    /// The model that is in force again once the hurry is over.
    hurried: Arc<Mutex<Option<Model>>>,
}

impl Control {
    /// Answers for a server.
    pub fn new(server: Handle) -> Self {
        Self {
            server,
            trace: Arc::default(),
            hurried: Arc::default(),
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
                self.server
                    .ask(|server| server.start_trace())
                    .ok_or_else(ended)?;
                *trace = Some(path);
                Ok(Answer::Done)
            }
            Ask::TraceStop => match self.stop_trace() {
                Some((path, lines)) => Ok(Answer::Traced(path, lines)),
                None => Err(Failure::system("no trace is being recorded")),
            },
            Ask::Hurry => self.hurry().map(|()| Answer::Done),
            Ask::Calm => self.calm().map(|()| Answer::Done),
        }
    }

    /// Lets everything through, so that the disk can be taken down.
    pub fn full_speed(&self) -> Outcome {
        self.change(outrider_sim::model::FULL_SPEED.to_owned())
    }

    /// Lets everything through for a while. Who hurries twice keeps the first model.
    fn hurry(&self) -> Outcome {
        let mut hurried = self.hurried.lock().expect("no thread panicked");
        let before = self.server.ask(|server| {
            let before = server.model().clone();
            let off = before.change("off").expect("off is a preset");
            if let Some(off) = off.model {
                server.set_model(off);
            }
            before
        });
        let before = before.ok_or_else(ended)?;
        hurried.get_or_insert(before);
        Ok(())
    }

    /// Ends the hurry.
    fn calm(&self) -> Outcome {
        let before = self.hurried.lock().expect("no thread panicked").take();
        let calm = move |server: &mut Server| {
            if let Some(before) = before {
                server.set_model(before);
            }
            server.reset();
        };
        self.server.ask(calm).ok_or_else(ended)
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

    /// Ends the recording under way, if there is one; what was recorded and the file that is to get it.
    pub fn stop_trace(&self) -> Option<(PathBuf, Vec<Traced>)> {
        let lines = self.server.ask(|server| server.stop_trace());
        self.finish_trace(lines.flatten())
    }

    /// What was recorded, with the file that is to get it.
    pub fn finish_trace(&self, lines: Option<Vec<Traced>>) -> Option<(PathBuf, Vec<Traced>)> {
        let path = self.trace.lock().expect("no thread panicked").take();
        path.zip(lines)
    }
}

fn ended() -> Failure {
    Failure::system("the disk is going away")
}

/// A line per request in order of arrival: start µs, done µs, R or W, offset, length.
pub fn write_trace(path: &Path, mut lines: Vec<Traced>) -> Outcome<usize> {
    lines.sort_by_key(|l| l.start);
    write_lines(path, &lines).doing(path.display())?;
    Ok(lines.len())
}

fn write_lines(path: &Path, lines: &[Traced]) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for l in lines {
        let us = |ns: u64| ns as f64 / 1e3;
        let op = if l.write { 'W' } else { 'R' };
        let (start, done) = (us(l.start), us(l.done));
        writeln!(out, "{start:.1} {done:.1} {op} {} {}", l.offset, l.len)?;
    }
    out.flush()
}
