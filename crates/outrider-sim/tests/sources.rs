//! A source of one file and one line, as `docs/contributing.md` shows it, in simulated time.

mod example;

use outrider_core::config::Config;
use outrider_core::shm;
use outrider_core::source::{New, SOURCES};
use outrider_sim::generate::generate;
use outrider_sim::ours::Ours;
use outrider_sim::system::Machine;
use outrider_sim::trace::{Op, Trace};
use outrider_sim::{Outcome, run};

/// The line.
const WITH: &[New] = &[|| Box::<example::HeapOrder>::default(), SOURCES[0]];

/// Searches from the root of a file of 2¹⁸ blocks, which take a microsecond between reads: left or right by a hash of where they are.
fn searches(count: u64) -> Trace {
    let blocks = 1 << 18;
    let mut ops = vec![Op::Open { fd: 0, file: 0 }];
    for search in 0..count {
        let mut block = 0u64;
        while block < blocks {
            let (offset, len) = (block * 4096, 4096);
            ops.extend([Op::Read { fd: 0, offset, len }, Op::Think(1000)]);
            let hash = (block + search * 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            block = 2 * block + 1 + (hash >> 63);
        }
    }
    Trace {
        files: vec![blocks * 4096],
        threads: vec![ops],
    }
}

/// What that takes on a network disk, with these sources.
fn with(sources: &'static [New], trace: &Trace) -> Outcome {
    let machine = Machine::of("remote", 4 << 30).unwrap();
    let ours = Ours::new(Config::default(), shm::MODE_PREDICT_OPT).unwrap();
    run(trace, &machine, &mut ours.with_sources(sources))
}

/// Searches that nothing else foresees take half as long with the source, and programs of other kinds as long as without it.
#[test]
fn a_source_is_a_file_and_a_line() {
    let searches = searches(100);
    let [before, after] = [SOURCES, WITH].map(|sources| with(sources, &searches).elapsed);
    assert!(after < before * 6 / 10, "{before} ns, then {after}");
    for other in ["seq?size=16M", "perm?size=16M", "near?size=64M"] {
        let trace = generate(other).unwrap();
        let [before, after] = [SOURCES, WITH].map(|sources| with(sources, &trace).elapsed);
        assert_eq!(before, after, "{other}");
    }
}

/// What is shown is what is compiled.
#[test]
fn the_example_is_the_one_that_is_shown() {
    let shown = include_str!("../../../docs/contributing.md");
    assert!(shown.contains(include_str!("example/mod.rs").trim()));
}
