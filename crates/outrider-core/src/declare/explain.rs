//! What the fetcher was told by the environment, and what it tells about its decisions.

use std::ffi::{CStr, OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use outrider_sys::environment::variable;
use outrider_sys::units::{ByteRange, DeviceId, PAGE};

use crate::explain::Lines;
use crate::view::PageRange;
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
        // SAFETY: copied at once. Who changes the environment beside other threads can't be helped.
        let value = |name| unsafe { variable(name) }.map(CStr::to_bytes);
        Wishes {
            rounds: match value(c"OUTRIDER_ORDER") {
                Some(b"rounds") => Some(true),
                Some(b"stream") => Some(false),
                _ => None,
            },
            infill: value(c"OUTRIDER_INFILL")
                .and_then(|text| parse_size(std::str::from_utf8(text).ok()?).ok()),
            explain: value(c"OUTRIDER_EXPLAIN").map(|path| OsStr::from_bytes(path).to_owned()),
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

/// Writes what was decided, a line each.
pub(super) struct Explain(Lines);

impl Explain {
    pub fn new(path: Option<OsString>) -> Explain {
        Explain(Lines::into(path.as_deref()))
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.line(text);
    }

    /// Writes what is waiting.
    pub fn flush(&mut self) {
        self.0.flush();
    }

    /// How a device was found to behave.
    pub fn device(
        &mut self,
        dev: DeviceId,
        latency_us: f64,
        together_us: f64,
        load: f64,
        rounds: bool,
    ) {
        let order = if rounds { "rounds" } else { "stream" };
        self.line(format_args!(
            "device {dev}: one request {latency_us:.0} us, 16 at once {together_us:.0} us, load {load:.1} times as high: {order}"
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

    /// The program has come to an entry and used up a buffer; `skipped` bytes of what was looked at meanwhile were cached or on their way.
    pub fn window(&mut self, entry: u64, skipped: u64) {
        self.line(format_args!("window until entry {entry}: cached {skipped}"));
    }

    /// Pages were asked for.
    pub fn issued(&mut self, ino: u64, pages: &PageRange, place: Option<u64>) {
        let (at, len) = (pages.start * PAGE, pages.len() * PAGE);
        match place {
            Some(place) => self.line(format_args!(
                "fetch inode {ino} at {at} length {len} physical {}",
                place * PAGE
            )),
            None => self.line(format_args!("fetch inode {ino} at {at} length {len}")),
        }
    }

    /// Pages were given up.
    pub fn dropped(&mut self, ino: u64, bytes: &ByteRange, why: &str) {
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
        let (gone, held) = (gone * PAGE, held * PAGE);
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
