//! B15: programs that are remembered, in simulated time: what their second run asks for, to the byte, and what a wrong profile costs.

use outrider_core::config::Config;
use outrider_core::profile::credit::FIRST;
use outrider_core::shm::MODE_PREDICT_OPT;
use outrider_sim::generate::generate;
use outrider_sim::ours::Ours;
use outrider_sim::remembered::{Recorder, Remembered, wrong};
use outrider_sim::system::Machine;
use outrider_sim::trace::{Op, Trace};
use outrider_sim::{Nothing, Outcome, run};
use outrider_sys::units::PAGE;

const MEMORY: u64 = 4 << 30;

fn machine(device: &str) -> Machine {
    Machine::of(device, MEMORY).unwrap()
}

fn ours() -> Ours {
    Ours::new(Config::default(), MODE_PREDICT_OPT).unwrap()
}

/// Reads of `count` files of 64 KiB, of each the first half, in no order and with something to do in between: nothing foresees them.
fn job(count: usize) -> Trace {
    let mut ops = Vec::new();
    for i in 0..count {
        let file = i * 7919 % count;
        ops.push(Op::Open { fd: 0, file });
        for offset in [0, 16 << 10] {
            let len = 16 << 10;
            ops.extend([Op::Read { fd: 0, offset, len }, Op::Think(100_000)]);
        }
        ops.push(Op::Close { fd: 0 });
    }
    Trace {
        files: vec![64 << 10; count],
        threads: vec![ops],
    }
}

/// The first run and the second, and what the second fetched of its profile, bytes, and needed.
fn twice(trace: &Trace, device: &str) -> (Outcome, Outcome, (u64, u64)) {
    let machine = machine(device);
    let mut recorder = Recorder::new(ours());
    let first = run(trace, &machine, &mut recorder);
    let profile = recorder.profile();
    let mut ahead = Remembered::new(ours(), profile, MEMORY / 4);
    let second = run(trace, &machine, &mut ahead);
    (first, second, ahead.sum().fetched)
}

/// The same on stock Linux, where nobody else runs ahead.
fn twice_alone(trace: &Trace, device: &str) -> (Outcome, Outcome, (u64, u64)) {
    let machine = machine(device);
    let mut recorder = Recorder::new(Nothing);
    let first = run(trace, &machine, &mut recorder);
    let mut ahead = Remembered::new(Nothing, recorder.profile(), MEMORY / 4);
    let second = run(trace, &machine, &mut ahead);
    (first, second, ahead.sum().fetched)
}

/// The second run fetches what the first has read, each byte once; what is left to the program is what it reads before that is on its way.
#[test]
fn a_second_run_fetches_what_the_first_has_read() {
    let trace = job(500);
    for device in ["remote", "nvme", "gp3", "hdd scale=0.1"] {
        let (first, second, (fetched, needed)) = twice_alone(&trace, device);
        assert_eq!(fetched, needed, "{device}");
        assert_eq!(fetched, second.ahead.bytes, "{device}");
        // Of the first files the program reads some itself, with what the kernel reads ahead of it.
        let own = second.program.bytes;
        assert!(
            fetched + own >= 500 * (32 << 10),
            "{device}: {fetched} and {own}"
        );
        assert!(own <= 16 * (64 << 10), "{device}: {own}");
        // A head reads all of it in one sweep, and the others many at a time.
        let part = if device.starts_with("hdd") { 1 } else { 5 };
        assert!(
            second.waited * part < first.waited,
            "{device}: {second:?} {first:?}"
        );
        assert_eq!((first, second), {
            let (first, second, _) = twice_alone(&trace, device);
            (first, second)
        });
        // What Outrider fetches besides is never fetched twice.
        let (_, beside, (fetched, needed)) = twice(&trace, device);
        assert_eq!(fetched, needed, "{device}");
        let all = beside.ahead.bytes + beside.program.bytes;
        assert!(all <= 500 * (64 << 10), "{device}: {beside:?}");
    }
}

/// A wrong profile costs its first slice, and the program no more than the device needs for that.
#[test]
fn a_wrong_profile_costs_a_slice() {
    let own = job(200);
    let mut trace = own.clone();
    // Files that the profile has and the program doesn't read.
    trace.files.extend([8 << 20; 64]);
    let mut others = vec![0; 200];
    others.extend([8u64 << 20; 64]);
    let mut profile = wrong(&others);
    profile.entries.retain(|e| e.size > 0);
    let machine = machine("remote");
    let stock = run(&trace, &machine, &mut Nothing);
    let mut ahead = Remembered::new(ours(), profile, MEMORY / 4);
    let with = run(&trace, &machine, &mut ahead);
    assert_eq!(ahead.sum().fetched, (FIRST, 0));
    assert_eq!(ahead.sum().counted, (FIRST, 0));
    // 1 GB/s.
    assert!(
        with.elapsed < stock.elapsed + FIRST + 1_000_000,
        "{with:?} {stock:?}"
    );
}

/// Of a program that knows no order, and of one file, the profile has all that was read and no more.
#[test]
fn generated_programs_are_remembered() {
    for spec in [
        "perm?size=64M",
        "stride?size=64M&stride=256K&block=4K",
        "skip?size=64M",
    ] {
        let trace = generate(spec).unwrap();
        let (first, second, (fetched, needed)) = twice(&trace, "remote");
        assert_eq!(fetched, needed, "{spec}");
        assert!(
            second.elapsed <= first.elapsed,
            "{spec}: {second:?} {first:?}"
        );
        assert!(second.ahead.bytes <= 64 << 20, "{spec}");
        assert_eq!(second.wasted % PAGE, 0);
    }
}
