//! How well the emulator keeps to its models: read past the page cache on the bare device, beside what the model
//! itself would do with the same reads in virtual time.

use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::device::Device;
use super::direct;
use super::exec::not_interrupted;
use crate::disk::FileSystem;
use crate::disk::{self, Lease};
use crate::output::{Context, Outcome};
use crate::results::{Accuracy, median};

/// The bare disk, bytes. All of it is written first: memory that was never written reads faster than a disk's.
const SIZE: u64 = 512 << 20;
/// The disk is written in pieces of so much, bytes.
const PIECE: usize = 1 << 20;
/// Aimed at for a measure, s.
const AIM: f64 = 0.7;
/// A measure: its name, bytes of a read, depth.
const RANDOM: [(&str, u32, usize); 5] = [
    ("latency-4k-d1", 4096, 1),
    ("iops-4k-d4", 4096, 4),
    ("iops-4k-d16", 4096, 16),
    ("iops-4k-d64", 4096, 64),
    ("iops-16k-d64", 16384, 64),
];
/// Bytes of a sequential read, and depth.
const SEQUENTIAL: (u32, usize) = (256 << 10, 8);

/// Measures `devices` on a disk of its own on `dir`, each figure `rounds` times; `tell` gets it as soon as it is known.
pub fn measure(
    dir: &Path,
    devices: &[Device],
    rounds: u32,
    mut tell: impl FnMut(Accuracy) -> Outcome,
) -> Outcome {
    let disk = Lease::up(dir, SIZE, FileSystem::None)?;
    fill(&disk.device())?;
    for device in devices {
        disk.tune(&device.words, 128)?;
        disk.model(&device.words)?;
        for (name, len, depth) in RANDOM {
            let offsets = |n: usize| random(n, len);
            let (model, real) = both(&disk, device, len, depth, rounds, &offsets)?;
            let (modelled, measured) = if depth == 1 {
                (model.1 * 1e6, real.1 * 1e6)
            } else {
                (model.0, real.0)
            };
            tell(figure(device, name, modelled, measured))?;
        }
        let (len, depth) = SEQUENTIAL;
        let offsets = |n: usize| {
            let most = SIZE / u64::from(len);
            (0..n as u64).map(|i| i % most * u64::from(len)).collect()
        };
        let (model, real) = both(&disk, device, len, depth, rounds, &offsets)?;
        let mbs = |per_s: f64| per_s * f64::from(len) / 1e6;
        tell(figure(device, "sequential", mbs(model.0), mbs(real.0)))?;
    }
    Ok(())
}

fn figure(device: &Device, measure: &str, modelled: f64, measured: f64) -> Accuracy {
    Accuracy {
        device: device.label.clone(),
        measure: measure.to_owned(),
        modelled,
        measured,
    }
}

/// Reads per second and median duration of one, s: as modelled and as measured (the median of all rounds).
fn both(
    disk: &Lease,
    device: &Device,
    len: u32,
    depth: usize,
    rounds: u32,
    offsets: &dyn Fn(usize) -> Vec<u64>,
) -> Outcome<((f64, f64), (f64, f64))> {
    // As many as the model serves in the time aimed at.
    let promised = |offsets: &[u64]| disk::promised(&device.words, offsets, len, depth);
    let few = depth * 16;
    let last = promised(&offsets(few))?.pop().unwrap_or(1);
    let count = ((few as f64 * AIM * 1e9 / last as f64) as usize).clamp(depth * 4, 60_000);
    let at = offsets(count);
    let done = promised(&at)?;
    // One at a time: each begins when the one before is done.
    let gaps: Vec<f64> = (0..count)
        .map(|i| (done[i] - i.checked_sub(1).map_or(0, |i| done[i])) as f64 / 1e9)
        .collect();
    let model = (count as f64 * 1e9 / done[count - 1] as f64, middle(&gaps));
    let reads: Vec<direct::Read> = at.iter().map(|o| (*o, len)).collect();
    let (mut rates, mut latencies) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        not_interrupted()?;
        let took = direct::read(&disk.device(), &reads, depth)?;
        rates.push(count as f64 / took.seconds);
        latencies.push(middle(&took.each));
    }
    Ok((model, (middle(&rates), middle(&latencies))))
}

fn middle(values: &[f64]) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

/// Places of reads of `len` bytes all over the disk, the same in every run.
fn random(count: usize, len: u32) -> Vec<u64> {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    let places = SIZE / u64::from(len);
    (0..count)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 16) % places * u64::from(len)
        })
        .collect()
}

/// Writes all of the device.
fn fill(device: &Path) -> Outcome {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(device)
        .doing(device.display())?;
    // Direct I/O wants its memory aligned.
    let mut memory = vec![0u8; PIECE + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let piece = &mut memory[start..start + PIECE];
    for (i, byte) in piece.iter_mut().enumerate() {
        *byte = (i % 251) as u8 ^ (i / 4096) as u8;
    }
    for at in (0..SIZE).step_by(PIECE) {
        not_interrupted()?;
        file.write_all_at(piece, at).doing(device.display())?;
    }
    Ok(())
}
