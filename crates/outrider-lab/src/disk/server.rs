//! The event loop: takes the kernel's requests in, asks the device when each is done, and answers then.
//!
//! One thread does everything, so a request costs one read and one write of `/dev/fuse` and no handing
//! over. It sleeps in ppoll until the next answer is due or the next request comes. Other threads reach
//! the state only by sending it a [`Job`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::image::Image;
use crate::fuse::{self, Attributes, Call};
use outrider_sim::device::{Device, Nanos, Request, Served};
use outrider_sim::model::Model;

/// The loop does not go to sleep for less than this: on a virtual machine, falling asleep and waking up
/// takes about as long, and the CPU all the same.
const SPIN: Nanos = 10_000;

/// Attributes and names stay valid for this long, s: nothing here ever changes.
const VALID_SECONDS: u64 = 1 << 20;
/// What is asked of the kernel.
const FLAGS: u32 = fuse::ASYNC_READ | fuse::BIG_WRITES | fuse::ASYNC_DIO | fuse::MAX_PAGES;
/// More than the loop device ever has under way (its queue is 128 deep), so that only the model bounds depth.
const BACKGROUND: (u16, u16) = (1024, 1024);

/// The attributes of the disk of `size` bytes, or of the directory that it is in.
fn attributes(node: u64, size: u64) -> Attributes {
    let (mode, links, size) = if node == fuse::ROOT {
        (libc::S_IFDIR | 0o700, 2, 0)
    } else {
        (libc::S_IFREG | 0o600, 1, size)
    };
    Attributes {
        inode: node,
        size,
        blocks: size / 512,
        mode,
        links,
        block_size: 4096,
        ..Attributes::default()
    }
}

/// Something to be done by the event loop's thread between two requests.
pub type Job = Box<dyn FnOnce(&mut Server) + Send>;

/// The way to the event loop from other threads.
#[derive(Clone, Debug)]
pub struct Handle {
    jobs: Sender<Job>,
    wake: Arc<OwnedFd>,
}

impl Handle {
    /// Runs `job` in the event loop and returns what it returned; `None` if the loop has ended.
    pub fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Server) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, hear) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |server| {
            let _ = tell.send(job(server));
        });
        self.jobs.send(job).ok()?;
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).ok()?;
        hear.recv().ok()
    }
}

/// What the device has done since the counters were last reset.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Read requests that came in.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Write requests that came in.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Ranges given back.
    pub discards: u64,
    /// Requests to put what was written on the medium.
    pub flushes: u64,
    /// Requests answered with EIO.
    pub errors: u64,
    /// Movements of the head.
    pub seeks: u64,
    /// Their time, ms, unscaled.
    pub seek_ms: f64,
    /// Time since the reset, ms.
    pub elapsed_ms: f64,
    /// Time with a request under way, ms.
    pub busy_ms: f64,
    /// Mean number of requests under way while there was one.
    pub mean_depth: f64,
    /// The most requests under way at once.
    pub max_depth: u64,
    /// Requests under way now.
    pub in_flight: u64,
    /// How much later than due answers were sent, mean, µs.
    pub late_mean_us: f64,
    /// The worst of them, µs.
    pub late_max_us: f64,
    /// How many answers were late by less than 1, 2, 4, … µs.
    pub late_log2_us: Vec<u64>,
}

/// The sums behind the counters.
#[derive(Debug)]
struct Sums {
    counters: Counters,
    since: Nanos,
    last: Nanos,
    busy: Nanos,
    /// Requests under way, integrated over time.
    depth_ns: u128,
    answers: u64,
    late: Nanos,
    late_max: Nanos,
    late_log2: [u64; 24],
}

impl Sums {
    fn new(now: Nanos, in_flight: u64) -> Self {
        Self {
            counters: Counters {
                in_flight,
                max_depth: in_flight,
                ..Counters::default()
            },
            since: now,
            last: now,
            busy: 0,
            depth_ns: 0,
            answers: 0,
            late: 0,
            late_max: 0,
            late_log2: [0; 24],
        }
    }

    fn tick(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.last);
        self.last = self.last.max(now);
        if self.counters.in_flight > 0 {
            self.busy += passed;
            self.depth_ns += u128::from(self.counters.in_flight) * u128::from(passed);
        }
    }

    fn came(&mut self, request: &Request) {
        self.tick(request.arrived);
        let c = &mut self.counters;
        c.in_flight += 1;
        c.max_depth = c.max_depth.max(c.in_flight);
        let (requests, bytes) = if request.write {
            (&mut c.writes, &mut c.write_bytes)
        } else {
            (&mut c.reads, &mut c.read_bytes)
        };
        *requests += 1;
        *bytes += u64::from(request.len);
    }

    fn went(&mut self, served: &Served, now: Nanos) {
        self.tick(now);
        self.counters.in_flight -= 1;
        self.counters.errors += u64::from(served.refused);
        let late = now.saturating_sub(served.due);
        self.answers += 1;
        self.late += late;
        self.late_max = self.late_max.max(late);
        let power = (u64::BITS - (late / 1000).leading_zeros()) as usize;
        self.late_log2[power.min(self.late_log2.len() - 1)] += 1;
    }

    fn report(&mut self, now: Nanos, (seeks, seek_us): (u64, f64)) -> Counters {
        self.tick(now);
        let ms = |ns: Nanos| ns as f64 / 1e6;
        Counters {
            seeks,
            seek_ms: seek_us / 1e3,
            elapsed_ms: ms(now - self.since),
            busy_ms: ms(self.busy),
            mean_depth: self.depth_ns as f64 / self.busy.max(1) as f64,
            late_mean_us: self.late as f64 / 1e3 / self.answers.max(1) as f64,
            late_max_us: self.late_max as f64 / 1e3,
            late_log2_us: self.late_log2.to_vec(),
            ..self.counters.clone()
        }
    }
}

/// A request in a trace; times in ns since the trace began.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Traced {
    /// When it came.
    pub start: Nanos,
    /// When it was answered.
    pub done: Nanos,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// A write, or else a read.
    pub write: bool,
}

/// The state of the event loop.
#[derive(Debug)]
pub struct Server {
    fuse: OwnedFd,
    wake: Arc<OwnedFd>,
    jobs: Receiver<Job>,
    /// The disk's file name, by which its loop device can be recognised.
    name: Vec<u8>,
    image: Image,
    device: Device,
    sums: Sums,
    trace: Option<(Nanos, Vec<Traced>)>,
}

/// CLOCK_MONOTONIC.
pub fn now() -> Nanos {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl Server {
    /// A server of `image` under the file name `name`, on a non-blocking `/dev/fuse`.
    pub fn new(fuse: OwnedFd, name: &str, image: Image) -> io::Result<(Self, Handle)> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (send, jobs) = mpsc::channel();
        let handle = Handle {
            jobs: send,
            wake: wake.clone(),
        };
        let server = Self {
            fuse,
            wake,
            jobs,
            name: name.as_bytes().to_vec(),
            image,
            device: Device::new(Model::default()),
            sums: Sums::new(now(), 0),
            trace: None,
        };
        Ok((server, handle))
    }

    /// The model in force.
    pub fn model(&self) -> &Model {
        self.device.model()
    }

    /// Changes the model.
    pub fn set_model(&mut self, model: Model) {
        self.device.set_model(model, now());
    }

    /// Answers nothing for `seconds` from now.
    pub fn stall(&mut self, seconds: f64) {
        self.device.stall(now() + (seconds * 1e9) as Nanos);
    }

    /// The counters.
    pub fn counters(&mut self) -> Counters {
        self.sums.report(now(), self.device.seeks())
    }

    /// Counts from zero.
    pub fn reset(&mut self) {
        self.sums = Sums::new(now(), self.sums.counters.in_flight);
        self.device.forget_seeks();
    }

    /// Records requests that come from now on.
    pub fn start_trace(&mut self) {
        self.trace = Some((now(), Vec::new()));
    }

    /// Ends the recording and returns it, if there was one.
    pub fn stop_trace(&mut self) -> Option<Vec<Traced>> {
        self.trace.take().map(|(_, lines)| lines)
    }

    /// Serves until the file system goes away.
    pub fn run(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; fuse::BUFFER];
        let mut readable = true;
        loop {
            let time = now();
            self.device.advance(time);
            while let Some(served) = self.device.take_due(time) {
                self.answer(served)?;
            }
            if readable {
                match rustix::io::read(&self.fuse, &mut buffer) {
                    Ok(len) => {
                        if !self.handle(&buffer[..len])? {
                            return Ok(());
                        }
                        continue;
                    }
                    Err(Errno::AGAIN) => readable = false,
                    // Interrupted, or the request was taken back before it could be read.
                    Err(Errno::INTR | Errno::NOENT) => continue,
                    // CONNABORTED: it went while a request was being handed over.
                    Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                    Err(e) => return Err(e.into()),
                }
            }
            let wait = match self.device.next_event() {
                None => None,
                Some(at) => match at.saturating_sub(now()) {
                    0 => continue,
                    // See whether something came instead.
                    ns if ns < SPIN => {
                        readable = true;
                        continue;
                    }
                    ns => Some(Timespec {
                        tv_sec: (ns / 1_000_000_000) as i64,
                        tv_nsec: (ns % 1_000_000_000) as _,
                    }),
                },
            };
            let mut watched = [
                PollFd::new(&self.fuse, PollFlags::IN),
                PollFd::new(&*self.wake, PollFlags::IN),
            ];
            match poll(&mut watched, wait.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            readable = !watched[0].revents().is_empty();
            if !watched[1].revents().is_empty() {
                let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                while let Ok(job) = self.jobs.try_recv() {
                    job(self);
                }
            }
        }
    }

    fn answer(&mut self, served: Served) -> io::Result<()> {
        let time = now();
        self.sums.went(&served, time);
        let request = served.request;
        if let Some((began, lines)) = &mut self.trace
            && request.arrived >= *began
        {
            lines.push(Traced {
                start: request.arrived - *began,
                done: time - *began,
                offset: request.offset,
                len: request.len,
                write: request.write,
            });
        }
        if served.refused {
            return self.reply(request.tag, libc::EIO, &[]);
        }
        if request.write {
            return self.reply(request.tag, 0, &fuse::written(request.len));
        }
        let len = request.len as usize;
        // SAFETY: `bytes` checks that the range lies in the image.
        unsafe {
            let data = self.image.bytes(request.offset, len);
            fuse::reply(self.fuse.as_fd(), request.tag, 0, data, len)
        }
    }

    fn reply(&self, unique: u64, errno: i32, body: &[u8]) -> io::Result<()> {
        // SAFETY: the body is a slice.
        unsafe { fuse::reply(self.fuse.as_fd(), unique, errno, body.as_ptr(), body.len()) }
    }

    /// Takes one message in; false when the file system goes away.
    fn handle(&mut self, message: &[u8]) -> io::Result<bool> {
        let arrived = now();
        let Some((unique, node, call)) = fuse::parse(message) else {
            return Err(io::Error::other(
                "the kernel sent a FUSE message that is cut short",
            ));
        };
        let size = self.image.len();
        let inside = |offset: u64, len: u64| len <= size && offset <= size - len;
        match call {
            Call::Read { offset, len, .. } if node == fuse::DISK && offset < size => {
                let request = Request {
                    tag: unique,
                    offset,
                    len: u64::from(len).min(size - offset) as u32,
                    write: false,
                    arrived,
                };
                self.sums.came(&request);
                self.device.submit(request);
            }
            Call::Write { offset, data } if node == fuse::DISK => {
                let len = data.len() as u64;
                if !inside(offset, len) {
                    self.reply(unique, libc::ENOSPC, &[])?;
                    return Ok(true);
                }
                // What a request that will fail leaves behind is undefined on a real disk too; here the
                // old bytes stay.
                if !self.device.model().refuses(true, offset, offset + len)
                    && let Err(e) = self.image.write(offset, data)
                {
                    self.sums.counters.errors += 1;
                    self.reply(unique, e.raw_os_error().unwrap_or(libc::EIO), &[])?;
                    return Ok(true);
                }
                let request = Request {
                    tag: unique,
                    offset,
                    len: len as u32,
                    write: true,
                    arrived,
                };
                self.sums.came(&request);
                self.device.submit(request);
            }
            Call::Read { .. } => self.reply(unique, 0, &[])?,
            Call::Init {
                minor,
                readahead,
                flags,
            } => {
                let flags = flags & FLAGS;
                let answer = fuse::init(minor, readahead, flags, BACKGROUND, fuse::MAX_IO);
                self.reply(unique, 0, answer.bytes())?;
            }
            Call::Lookup { parent, name } => {
                if parent == fuse::ROOT && name == self.name {
                    let disk = attributes(fuse::DISK, size);
                    self.reply(
                        unique,
                        0,
                        fuse::entry(fuse::DISK, &disk, VALID_SECONDS).bytes(),
                    )?;
                } else {
                    self.reply(unique, libc::ENOENT, &[])?;
                }
            }
            Call::Attributes => {
                let answer = fuse::attributes(&attributes(node, size), VALID_SECONDS);
                self.reply(unique, 0, answer.bytes())?;
            }
            Call::Open | Call::OpenList => {
                let flags = fuse::OPEN_DIRECT_IO | fuse::OPEN_PARALLEL_DIRECT_WRITES;
                self.reply(unique, 0, fuse::open(0, flags).bytes())?;
            }
            Call::Allocate { offset, len, mode } => {
                let gives_back =
                    mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) as u32;
                let errno = if node != fuse::DISK || gives_back == 0 {
                    libc::EOPNOTSUPP
                } else if !inside(offset, len) {
                    libc::ENOSPC
                } else {
                    self.sums.counters.discards += 1;
                    let done = self.image.discard(offset, len);
                    done.map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |()| 0)
                };
                self.reply(unique, errno, &[])?;
            }
            Call::Sync => {
                self.sums.counters.flushes += 1;
                self.reply(unique, 0, &[])?;
            }
            Call::Nothing | Call::Release { .. } => self.reply(unique, 0, &[])?,
            Call::Silent | Call::Forget(_) => {}
            Call::Write { .. } => self.reply(unique, libc::EISDIR, &[])?,
            Call::Destroy => {
                self.reply(unique, 0, &[])?;
                return Ok(false);
            }
            Call::Link | Call::List { .. } | Call::Space | Call::Unknown => {
                self.reply(unique, libc::ENOSYS, &[])?
            }
        }
        Ok(true)
    }
}
