//! What a device is: the parameters of a model, and the words that change them at run time.
//!
//! Every time here is what the device itself would take; `scale` multiplies them all, so that an
//! experiment with a slow device can be shortened (at 0.1 the fixed costs of the path weigh ten times as
//! much: results of I/O-bound work come out up to a fifth too long).

use serde::{Deserialize, Serialize};

use outrider_cli::size;

/// How the device spends time on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// No time at all: for filling the disk.
    Off,
    /// Independent lanes with a fixed latency, behind one link with a bandwidth.
    Lanes,
    /// One head that has to travel.
    Head,
}

/// In which order a head serves the requests that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// In order of arrival.
    Fifo,
    /// Ascending offsets, then from the lowest again (circular LOOK).
    Clook,
}

/// Which requests a bad range refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Refuses {
    /// Reads and writes.
    Both,
    /// Reads only.
    Reads,
    /// Writes only.
    Writes,
}

/// A range of the disk, `start..end` in bytes, on which requests fail with EIO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// What fails there.
    pub refuses: Refuses,
}

/// The parameters of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The preset that was chosen last.
    pub name: String,
    /// How time is spent.
    pub kind: Kind,
    /// Latency of one request on a lane, µs, without the transfer.
    pub latency_us: f64,
    /// Lanes that work at the same time.
    pub parallel: u32,
    /// Bandwidth of the link that all requests share, 10⁶ bytes/s; 0 is unlimited.
    pub bandwidth_mbs: f64,
    /// Bandwidth of one lane, 10⁶ bytes/s; 0 is unlimited.
    pub lane_mbs: f64,
    /// Requests that are let in per second in the long run; 0 is unlimited (lanes only, as the five below).
    pub iops: f64,
    /// Requests that are let in at once after a pause: what the bucket of `iops` holds, 1 or more.
    pub iops_burst: u32,
    /// A request counts once for each so many KiB of it that are begun; 0: once, however long it is.
    pub iops_kb: u32,
    /// 10⁶ bytes/s that are let in in the long run; 0 is unlimited.
    pub rate_mbs: f64,
    /// 10⁶ bytes that are let in at once after a pause: what the bucket of `rate_mbs` holds. A longer request is let in
    /// once the bucket is full.
    pub rate_burst_mb: f64,
    /// What the first touch of a block takes in place of the latency, where it is longer, µs; 0: nothing special.
    pub first_us: f64,
    /// The length of such a block, KiB (lanes only).
    pub first_kb: u32,
    /// Latency varies evenly by this fraction up and down, 0..=1.
    pub jitter: f64,
    /// Probability of a slow request, 0..=1.
    pub tail_p: f64,
    /// How many times the usual latency a slow request takes.
    pub tail_x: f64,
    /// All times are multiplied by this.
    pub scale: f64,
    /// Order of service (head only).
    pub schedule: Schedule,
    /// How many waiting requests the head chooses from: the queue of the drive (head only).
    pub queue: u32,
    /// The head's full travel in bytes, where seeks reach 10 ms: the size of the drive that is played, not
    /// of the image (head only).
    pub stroke: u64,
    /// Writes cost only their transfer, as behind a cache with a battery.
    pub write_cache: bool,
    /// Answers are sent this much early, µs: what the way through FUSE, the loop device and back to a
    /// sleeping program takes on its own.
    pub early_us: f64,
    /// Ranges that fail.
    pub bad: Vec<BadRange>,
}

/// The presets' names.
pub const PRESETS: &[&str] = &[
    "nvme",
    "sata",
    "remote",
    "objstore",
    "hdd",
    "cloud",
    "gp3",
    "pd-balanced",
    "snapshot",
    "off",
];

/// 10⁶ bytes in a MiB: cloud providers give bandwidths in MiB/s.
const MIB: f64 = 1.048576;
/// Bandwidth of the link between a cloud's machine and its volumes, 10⁶ bytes/s: 10 Gbit/s.
const CLOUD_LINK_MBS: f64 = 1250.0;

/// What takes a fault back: of `stall` and of each key of bytes that fail.
const NONE: &str = "none";

/// Words that let everything through: for taking a disk down.
pub const FULL_SPEED: &str = "off stall=0 eio=none";

/// What the path costs by itself on a virtual machine of 2025: a 4 KiB direct read takes 24 µs with the
/// model off.
const DEFAULT_EARLY_US: f64 = 25.0;

/// Blocks in which EBS fetches what a snapshot holds, KiB.
const FIRST_KB: u32 = 512;

/// What is asked of a running device in words such as `nvme scale=0.5 stall=2`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// The model after the change.
    pub model: Option<Model>,
    /// Nothing is answered for so many seconds from now.
    pub stall_seconds: Option<f64>,
}

impl Default for Model {
    fn default() -> Self {
        let mut model = Self {
            name: String::new(),
            kind: Kind::Off,
            latency_us: 0.0,
            parallel: 1,
            bandwidth_mbs: 0.0,
            lane_mbs: 0.0,
            iops: 0.0,
            iops_burst: 1,
            iops_kb: 0,
            rate_mbs: 0.0,
            rate_burst_mb: 0.0,
            first_us: 0.0,
            first_kb: FIRST_KB,
            jitter: 0.0,
            tail_p: 0.0,
            tail_x: 1.0,
            scale: 1.0,
            schedule: Schedule::Clook,
            queue: 32,
            stroke: 500_000_000_000,
            write_cache: true,
            early_us: DEFAULT_EARLY_US,
            bad: Vec::new(),
        };
        model.preset("off").expect("off is a preset");
        model
    }
}

impl Model {
    /// Takes over a preset's parameters. The time scale, the early answer and the bad ranges stay.
    fn preset(&mut self, name: &str) -> Result<(), String> {
        let (kind, latency_us, parallel, bandwidth_mbs) = match name {
            "nvme" => (Kind::Lanes, 80.0, 32, 1400.0),
            "sata" => (Kind::Lanes, 150.0, 8, 500.0),
            "remote" => (Kind::Lanes, 500.0, 64, 1000.0),
            "objstore" => (Kind::Lanes, 15_000.0, 64, 500.0),
            "hdd" => (Kind::Head, 0.0, 1, 100.0),
            // Providers promise no more than less than 10 ms (gp3) or 1 ms (pd-balanced).
            "cloud" | "gp3" | "snapshot" => (Kind::Lanes, 800.0, 64, CLOUD_LINK_MBS),
            "pd-balanced" => (Kind::Lanes, 700.0, 64, CLOUD_LINK_MBS),
            "off" => (Kind::Off, 0.0, 1, 0.0),
            _ => {
                return Err(format!(
                    "no model '{name}'; accepted are {}",
                    PRESETS.join(", ")
                ));
            }
        };
        let (iops, iops_burst, iops_kb, rate_mbs, rate_burst_mb) = match name {
            // What was not used for a second may be used at once.
            "cloud" => (3000.0, 3000, 256, 125.0, 125.0),
            // Published: 3,000 requests/s and 125 MiB/s, whatever the size; nothing is saved up; 256 KiB are one request.
            "gp3" | "snapshot" => (3000.0, 1, 256, 125.0 * MIB, 0.0),
            // Published: 3,000 requests/s and 6 for each GiB, 140 MiB/s and 0.28 for each GiB; here of 100 GiB.
            "pd-balanced" => (3600.0, 1, 0, 168.0 * MIB, 0.0),
            _ => (0.0, 1, 0, 0.0, 0.0),
        };
        *self = Self {
            name: name.to_owned(),
            kind,
            latency_us,
            parallel,
            bandwidth_mbs,
            lane_mbs: 0.0,
            iops,
            iops_burst,
            iops_kb,
            rate_mbs,
            rate_burst_mb,
            first_us: if name == "snapshot" { 15_000.0 } else { 0.0 },
            first_kb: FIRST_KB,
            jitter: 0.0,
            tail_p: 0.0,
            tail_x: 1.0,
            scale: self.scale,
            schedule: Schedule::Clook,
            queue: 32,
            stroke: self.stroke,
            write_cache: true,
            early_us: self.early_us,
            bad: std::mem::take(&mut self.bad),
        };
        Ok(())
    }

    /// Applies words: a preset's name, or `key=value`, separated by spaces or commas.
    pub fn change(&self, words: &str) -> Result<Change, String> {
        let mut model = self.clone();
        let mut stall_seconds = None;
        let mut any = false;
        for word in words
            .split([',', ' ', '\t', '\n'])
            .filter(|w| !w.is_empty())
        {
            any = true;
            match word.split_once('=') {
                None | Some(("model", _)) => {
                    model.preset(word.strip_prefix("model=").unwrap_or(word))?;
                }
                Some(("stall", NONE)) => stall_seconds = Some(0.0),
                Some(("stall", v)) => stall_seconds = Some(number("stall", v, 0.0, 3600.0)?),
                Some((key, v)) => model.set(key, v)?,
            }
        }
        if !any {
            return Err(format!(
                "no model given; accepted are {} and key=value",
                PRESETS.join(", ")
            ));
        }
        Ok(Change {
            model: (model != *self).then_some(model),
            stall_seconds,
        })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let n = |low, high| number(key, value, low, high);
        match key {
            "latency_us" => self.latency_us = n(0.0, 60e6)?,
            "parallel" => self.parallel = whole(key, value, 1, 4096)?,
            "bandwidth_mbs" => self.bandwidth_mbs = n(0.0, 1e6)?,
            "lane_mbs" => self.lane_mbs = n(0.0, 1e6)?,
            "iops" => self.iops = rate(key, value, 1.0, 1e9)?,
            "iops_burst" => self.iops_burst = whole(key, value, 1, 1_000_000_000)?,
            "iops_kb" => self.iops_kb = whole(key, value, 0, 1 << 20)?,
            "rate_mbs" => self.rate_mbs = rate(key, value, 0.001, 1e6)?,
            "rate_burst_mb" => self.rate_burst_mb = n(0.0, 1e6)?,
            "first_us" => self.first_us = n(0.0, 60e6)?,
            "first_kb" => self.first_kb = whole(key, value, 4, 1 << 20)?,
            "jitter" => self.jitter = n(0.0, 1.0)?,
            "tail_p" => self.tail_p = n(0.0, 1.0)?,
            "tail_x" => self.tail_x = n(1.0, 1e6)?,
            "scale" => self.scale = n(0.001, 1000.0)?,
            "queue" => self.queue = whole(key, value, 1, 4096)?,
            "early_us" => self.early_us = n(0.0, 1e6)?,
            "stroke" => {
                self.stroke = size::parse(value)?;
                if self.stroke < 10_000_000 {
                    return Err("stroke must be at least 10000000 bytes".to_owned());
                }
            }
            "schedule" => {
                self.schedule = match value {
                    "fifo" => Schedule::Fifo,
                    "clook" => Schedule::Clook,
                    _ => return Err(format!("schedule={value}; accepted are fifo and clook")),
                }
            }
            "write_cache" => {
                self.write_cache = match value {
                    "0" | "no" => false,
                    "1" | "yes" => true,
                    _ => return Err(format!("write_cache={value}; accepted are 0 and 1")),
                }
            }
            "eio" if value == NONE => self.bad.clear(),
            "eio_read" if value == NONE => self.accept(Refuses::Reads),
            "eio_write" if value == NONE => self.accept(Refuses::Writes),
            "eio" => self.bad.push(bad_range(value, Refuses::Both)?),
            "eio_read" => self.bad.push(bad_range(value, Refuses::Reads)?),
            "eio_write" => self.bad.push(bad_range(value, Refuses::Writes)?),
            _ => {
                return Err(format!(
                    "no parameter '{key}'; accepted are model, scale, latency_us, parallel, bandwidth_mbs, \
                     lane_mbs, iops, iops_burst, iops_kb, rate_mbs, rate_burst_mb, first_us, first_kb, jitter, tail_p, tail_x, schedule, queue, stroke, write_cache, early_us, eio, \
                     eio_read, eio_write and stall"
                ));
            }
        }
        Ok(())
    }

    /// From here on no request of this kind fails; the others go on as they did.
    fn accept(&mut self, kind: Refuses) {
        let others = match kind {
            Refuses::Reads => Refuses::Writes,
            Refuses::Writes => Refuses::Reads,
            Refuses::Both => return self.bad.clear(),
        };
        self.bad.retain(|bad| bad.refuses != kind);
        for bad in &mut self.bad {
            bad.refuses = others;
        }
    }

    /// Whether a request for `start..end` fails.
    pub fn refuses(&self, write: bool, start: u64, end: u64) -> bool {
        self.bad.iter().any(|bad| {
            bad.start < end
                && start < bad.end
                && match bad.refuses {
                    Refuses::Both => true,
                    Refuses::Reads => !write,
                    Refuses::Writes => write,
                }
        })
    }

    /// Time on the link for `len` bytes, ns.
    pub fn transfer_ns(&self, len: u32) -> u64 {
        if self.bandwidth_mbs > 0.0 {
            (f64::from(len) * 1000.0 / self.bandwidth_mbs * self.scale) as u64
        } else {
            0
        }
    }

    /// Time after which the bucket of requests has again what one of `len` bytes takes out of it, and after which it is
    /// full when it was empty, ns. 0 without a limit.
    pub fn requests_ns(&self, len: u32) -> (u64, u64) {
        if self.iops <= 0.0 {
            return (0, 0);
        }
        let one = (1e9 / self.iops * self.scale) as u64;
        let count = match self.iops_kb {
            0 => 1,
            kb => u64::from(len).div_ceil(u64::from(kb) << 10).max(1),
        };
        (count * one, u64::from(self.iops_burst) * one)
    }

    /// The same of the bucket of bytes.
    pub fn bytes_ns(&self, len: u32) -> (u64, u64) {
        if self.rate_mbs <= 0.0 {
            return (0, 0);
        }
        let ns = |bytes: f64| (bytes * 1000.0 / self.rate_mbs * self.scale) as u64;
        (ns(f64::from(len)), ns(self.rate_burst_mb * 1e6))
    }

    /// Whether a request may be ready before another that came earlier.
    pub fn latencies_differ(&self) -> bool {
        self.jitter > 0.0 || self.tail_p > 0.0 || self.lane_mbs > 0.0 || self.first_us > 0.0
    }

    /// Blocks that a request for `start..end` (bytes) touches, if their first touch takes longer than later ones.
    pub fn first_blocks(&self, start: u64, end: u64) -> std::ops::Range<u64> {
        if self.first_us <= 0.0 || start >= end {
            return 0..0;
        }
        let block = u64::from(self.first_kb) << 10;
        start / block..end.div_ceil(block)
    }

    /// Time for the head to get from the end of one request to the start of the next, µs before scaling,
    /// after libprefetch (USENIX ATC 2009), Figure 1 and section 3.1.
    ///
    /// A forward gap of up to 32 KiB passes under the head at the speed of reading. From there the cost
    /// grows to 1 ms at 112 KiB, then five-fold until 1 MB; it stays at 5 ms until 5 MB and doubles, slowly,
    /// over the rest of the stroke. A step back of less than 1 MB waits for the platter to come round
    /// again, so it costs 3 ms at least, where a step forward of the same distance may be cheap.
    pub fn seek_us(&self, from: u64, to: u64) -> f64 {
        const READ_THROUGH: f64 = 32.0 * 1024.0;
        const NEAR: f64 = 112.0 * 1024.0;
        const NEAR_US: f64 = 1000.0;
        const MEDIUM: f64 = 1e6;
        const MEDIUM_US: f64 = 5000.0;
        const FAR: f64 = 5e6;
        const FULL_US: f64 = 10_000.0;

        let distance = from.abs_diff(to) as f64;
        let read_us = |bytes: f64| {
            if self.bandwidth_mbs > 0.0 {
                bytes / self.bandwidth_mbs
            } else {
                0.0
            }
        };
        // Where `x` lies between `low` and `high`, 0..=1, on a logarithmic axis.
        // The logarithm is the library's own: the same to the digit on every machine.
        let between =
            |x: f64, low: f64, high: f64| (libm::log(x / low) / libm::log(high / low)).min(1.0);
        let forward = if distance <= READ_THROUGH {
            read_us(distance)
        } else if distance <= NEAR {
            let start = read_us(READ_THROUGH);
            start + (NEAR_US - start) * (distance - READ_THROUGH) / (NEAR - READ_THROUGH)
        } else if distance <= MEDIUM {
            NEAR_US * libm::pow(MEDIUM_US / NEAR_US, between(distance, NEAR, MEDIUM))
        } else if distance <= FAR {
            MEDIUM_US
        } else {
            MEDIUM_US + (FULL_US - MEDIUM_US) * between(distance, FAR, self.stroke as f64)
        };
        if to < from && distance < MEDIUM {
            forward.max(3000.0 + 2000.0 * distance / MEDIUM)
        } else {
            forward
        }
    }
}

fn number(key: &str, value: &str, low: f64, high: f64) -> Result<f64, String> {
    match value.parse::<f64>() {
        Ok(n) if n >= low && n <= high => Ok(n),
        _ => Err(format!(
            "{key}={value}; accepted is a number from {low} to {high}"
        )),
    }
}

/// A rate, which is 0 where there is no limit.
fn rate(key: &str, value: &str, low: f64, high: f64) -> Result<f64, String> {
    match value.parse::<f64>() {
        Ok(n) if n == 0.0 || (n >= low && n <= high) => Ok(n),
        _ => Err(format!(
            "{key}={value}; accepted are numbers from {low} to {high}, and 0 for no limit"
        )),
    }
}

fn whole(key: &str, value: &str, low: u32, high: u32) -> Result<u32, String> {
    match value.parse::<u32>() {
        Ok(n) if n >= low && n <= high => Ok(n),
        _ => Err(format!(
            "{key}={value}; accepted is a whole number from {low} to {high}"
        )),
    }
}

fn bad_range(value: &str, refuses: Refuses) -> Result<BadRange, String> {
    let wrong =
        || format!("'{value}' is not a range; accepted is START-END in bytes, such as 4M-5M");
    let (start, end) = value.split_once('-').ok_or_else(wrong)?;
    let (start, end) = (size::parse(start)?, size::parse(end)?);
    if start >= end {
        return Err(wrong());
    }
    Ok(BadRange {
        start,
        end,
        refuses,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(words: &str) -> Model {
        Model::default()
            .change(words)
            .unwrap()
            .model
            .unwrap_or_default()
    }

    #[test]
    fn words_change_what_they_name() {
        let m = model("nvme scale=0.5,latency_us=90 eio=4M-5M");
        assert_eq!((m.name.as_str(), m.parallel), ("nvme", 32));
        assert_eq!((m.scale, m.latency_us), (0.5, 90.0));
        assert!(m.refuses(false, (5 << 20) - 1, 6 << 20));
        assert!(!m.refuses(false, 5 << 20, 6 << 20));
        // A preset resets the device, not the scale and the faults.
        let m = m.change("sata").unwrap().model.unwrap();
        assert_eq!((m.latency_us, m.scale, m.bad.len()), (150.0, 0.5, 1));
        assert_eq!(m.change("sata stall=2").unwrap().stall_seconds, Some(2.0));
    }

    #[test]
    fn each_fault_is_taken_back_by_its_own_key() {
        let fails = |m: &Model, at: u64| [false, true].map(|write| m.refuses(write, at, at + 1));
        let m = model("off eio_read=1M-2M eio_write=2M-3M eio=3M-4M");
        let at = [1 << 20, 2 << 20, 3 << 20];
        let after = |words: &str| {
            let m = m.change(words).unwrap().model.unwrap();
            at.map(|at| fails(&m, at))
        };
        let [none, reads, writes] = [[false; 2], [true, false], [false, true]];
        assert_eq!(at.map(|at| fails(&m, at)), [reads, writes, [true; 2]]);
        assert_eq!(after("eio_read=none"), [none, writes, writes]);
        assert_eq!(after("eio_write=none"), [reads, none, reads]);
        assert_eq!(after("eio=none"), [none; 3]);
        let stall = Model::default().change("stall=none").unwrap().stall_seconds;
        assert_eq!(stall, Some(0.0));
    }

    #[test]
    fn wrong_words_say_what_is_accepted() {
        for bad in [
            "",
            "floppy",
            "scale=0",
            "scale=nan",
            "parallel=1.5",
            "eio=5M-4M",
            "eio=x",
            "speed=3",
            "schedule=scan",
            "stall=-1",
            "model=",
            "tail_p=2",
            "iops=0.5",
            "iops_burst=0",
            "rate_mbs=-1",
            "first_kb=0",
        ] {
            let said = Model::default().change(bad).unwrap_err();
            assert!(said.contains("accepted"), "{bad}: {said}");
        }
    }

    #[test]
    fn seeks_follow_the_figure() {
        let m = model("hdd");
        let forward = |d: u64| m.seek_us(1 << 40, (1 << 40) + d);
        let back = |d: u64| m.seek_us(1 << 40, (1 << 40) - d);
        assert_eq!(forward(0), 0.0);
        assert!((forward(32 << 10) - 327.68).abs() < 0.01);
        assert!((forward(112 << 10) - 1000.0).abs() < 0.01);
        assert!((forward(1_000_000) - 5000.0).abs() < 0.01);
        assert_eq!(forward(4_000_000), 5000.0);
        assert!((forward(500_000_000_000) - 10_000.0).abs() < 0.01);
        assert!(back(4096) >= 3000.0 && back(4096) > forward(4096));
        assert_eq!(back(64 << 20), forward(64 << 20));
        let mut last = 0.0;
        for step in 0..200 {
            let t = forward((1.15f64.powi(step)) as u64);
            assert!(t >= last);
            last = t;
        }
    }
}
