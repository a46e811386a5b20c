//! What the fetcher was told by the environment, and what it tells about its decisions.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Range;

use outrider_sys::raw::{self, Fd};
use rustix::fs::{CWD, Mode, OFlags};

use crate::view::{PAGE_BYTES, PageRange};
use outrider_sys::size::parse as parse_size;

/// Wishes of the user, from the environment.
#[derive(Default)]
pub(super) struct Wishes {
    /// `OUTRIDER_ORDER`: rounds or a stream, whatever the device is like.
    pub rounds: Option<bool>,
    /// `OUTRIDER_INFILL`: gaps up to so many bytes are read through.
    pub infill: Option<u64>,
    /// `OUTRIDER_EXPLAIN`: the file that decisions are written to.
    pub explain: Option<OsString>,
}

impl Wishes {
    /// What can't be understood is left alone: a library has nobody to tell.
    pub fn of_environment() -> Wishes {
        let text = |name| std::env::var(name).unwrap_or_default();
        Wishes {
            rounds: match text("OUTRIDER_ORDER").as_str() {
                "rounds" => Some(true),
                "stream" => Some(false),
                _ => None,
            },
            infill: parse_size(&text("OUTRIDER_INFILL")).ok(),
            explain: std::env::var_os("OUTRIDER_EXPLAIN"),
        }
    }
}

/// What a round asks the device for.
#[derive(Default)]
pub(super) struct Totals {
    pub requests: u64,
    /// Those that are read through included.
    pub bytes: u64,
    /// Bytes that are read through.
    pub infill: u64,
}

/// Lines are written in pieces of about this many bytes, each with one call.
const PIECE: usize = 32 << 10;

/// Writes what was decided, a line each, behind what others write to the same file. Each begins with the process's number.
pub(super) struct Explain {
    file: Option<Fd>,
    pid: u32,
    text: Vec<u8>,
}

impl Explain {
    pub fn new(path: Option<OsString>) -> Explain {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = path
            .filter(|p| !p.is_empty())
            .and_then(|p| rustix::fs::openat(CWD, p, flags, Mode::empty()).ok())
            .map(Fd::from);
        Explain {
            file,
            pid: raw::getpid(),
            text: Vec::new(),
        }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        if self.file.is_some() {
            let _ = writeln!(self.text, "{} {text}", self.pid);
            if self.text.len() >= PIECE {
                self.flush();
            }
        }
    }

    /// Writes what is waiting.
    pub fn flush(&mut self) {
        if let Some(file) = &self.file
            && !self.text.is_empty()
        {
            // One call: O_APPEND keeps the lines of several processes apart. A full disk costs the explanation.
            let _ = rustix::io::write(file, &self.text);
            self.text.clear();
        }
    }

    /// How a device was found to behave.
    pub fn device(&mut self, dev: u64, latency_us: f64, together_us: f64, load: f64, rounds: bool) {
        let id = outrider_sys::device::DeviceId::from_dev(dev);
        let order = if rounds { "rounds" } else { "stream" };
        self.line(format_args!(
            "device {id}: one request {latency_us:.0} us, 16 at once {together_us:.0} us, load {load:.1} times as high: {order}"
        ));
    }

    /// A round begins.
    pub fn round(
        &mut self,
        entries: Range<u64>,
        asked: u64,
        cached: u64,
        fetch: &Totals,
        room: u64,
    ) {
        self.line(format_args!(
            "round of entries {}..{}: asked {asked}, cached {cached}, to fetch {} in {} requests, infill {}, memory {room}",
            entries.start,
            entries.end,
            fetch.bytes, fetch.requests, fetch.infill,
        ));
    }

    /// From here on a list that doesn't fit in `room` bytes is streamed, `lead` of them ahead of the program.
    pub fn stream(&mut self, entries: Range<u64>, room: u64, lead: u64) {
        self.line(format_args!(
            "stream of entries {}..{}: memory {room}, of which lead {lead}",
            entries.start, entries.end
        ));
    }

    /// Pages were asked for.
    pub fn issued(&mut self, ino: u64, pages: &PageRange, place: Option<u64>) {
        let (at, len) = (pages.start * PAGE_BYTES, pages.len() * PAGE_BYTES);
        match place {
            Some(place) => self.line(format_args!(
                "fetch inode {ino} at {at} length {len} physical {}",
                place * PAGE_BYTES
            )),
            None => self.line(format_args!("fetch inode {ino} at {at} length {len}")),
        }
    }

    /// Pages were given up.
    pub fn dropped(&mut self, ino: u64, bytes: &Range<u64>, why: &str) {
        self.line(format_args!(
            "evict inode {ino} at {} length {}: {why}",
            bytes.start,
            bytes.end - bytes.start
        ));
    }

    /// Writing back of so many bytes has begun.
    pub fn written_back(&mut self, ino: u64, bytes: u64) {
        self.line(format_args!("write back inode {ino} length {bytes}"));
    }

    /// Pages were lost before they were used. If memory is short, `limit` is what the buffer may take from now on.
    pub fn lost(&mut self, gone: u64, held: u64, limit: Result<u64, &str>) {
        let (gone, held) = (gone * PAGE_BYTES, held * PAGE_BYTES);
        match limit {
            Ok(limit) => self.line(format_args!(
                "lost {gone} of {held} held: memory is short, from now on {limit}"
            )),
            Err(why) => self.line(format_args!(
                "lost {gone} of {held} held: {why}, fetched again"
            )),
        }
    }
}
