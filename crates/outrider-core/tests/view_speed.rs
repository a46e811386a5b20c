//! What a call of the view costs, in nanoseconds. A measurement, not a test, so ignored by default:
//!
//! `cargo test --release -p outrider-core --test view_speed -- --ignored --nocapture`

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use outrider_core::view::{FileView, Granularity, PageRange};

const FILE_PAGES: u64 = 1 << 20; // 4 GiB
const CALLS: u64 = 1_000_000;

/// Best of five rounds, as other builders share the machine.
fn measure(what: &str, mut round: impl FnMut() -> u64) {
    let best = (0..5)
        .map(|_| {
            let begin = Instant::now();
            let calls = round();
            begin.elapsed().as_nanos() as f64 / calls as f64
        })
        .fold(f64::INFINITY, f64::min);
    println!("{what:60} {best:8.1} ns");
}

/// A file of which every `of`-th page is missing (0: none).
fn view_with_holes(of: u64) -> FileView {
    let view = FileView::new(Granularity::Page, 64 << 20);
    view.present(PageRange::new(0, FILE_PAGES), 0);
    if of > 0 {
        for page in (0..FILE_PAGES).step_by(of as usize) {
            let _ = view.evicted(PageRange::new(page, page + 1));
        }
    }
    view
}

fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44
}

/// SPEC CP5 (threads on different ranges do not contend), CP4 (a look-up costs less than the call it
/// saves).
#[test]
#[ignore = "a measurement"]
fn nanoseconds_per_call() {
    let alike = view_with_holes(0);
    let holes = view_with_holes(40);
    for (name, view) in [("alike", &alike), ("bitmap", &holes)] {
        println!(
            "{name}: {} nodes, {} bytes",
            view.nodes(),
            view.memory_bytes()
        );
        measure(&format!("missing, 512 pages, {name}, scattered"), || {
            let mut out = Vec::new();
            for n in 0..CALLS {
                out.clear();
                let at = scattered(n);
                black_box(view.missing(PageRange::new(at, at + 512), 64, &mut out));
            }
            CALLS
        });
        measure(&format!("is_cached, 4 pages, {name}, scattered"), || {
            (0..CALLS).for_each(|n| {
                let at = scattered(n);
                black_box(view.is_cached(PageRange::new(at, at + 4)));
            });
            CALLS
        });
        measure(&format!("access, 4 pages, {name}, sequential hits"), || {
            (0..CALLS).for_each(|n| {
                let at = n * 4 % (FILE_PAGES - 4);
                let _ = black_box(view.access(PageRange::new(at, at + 4), n));
            });
            CALLS
        });
        measure(&format!("access, 4 pages, {name}, scattered hits"), || {
            (0..CALLS).for_each(|n| {
                let at = scattered(n);
                let _ = black_box(view.access(PageRange::new(at, at + 4), n));
            });
            CALLS
        });
    }
    let empty = FileView::new(Granularity::Page, 1 << 20);
    measure("missing, 512 pages, nothing known", || {
        let mut out = Vec::new();
        for n in 0..CALLS {
            out.clear();
            let at = scattered(n);
            black_box(empty.missing(PageRange::new(at, at + 512), 64, &mut out));
        }
        CALLS
    });
    for backward in [false, true] {
        measure(
            &format!("access, 4 pages, sequential misses, backward: {backward}"),
            || {
                let view = FileView::new(Granularity::Page, 1 << 20);
                let calls = FILE_PAGES / 4;
                for n in 0..calls {
                    let at = 4 * if backward { calls - 1 - n } else { n };
                    let _ = black_box(view.access(PageRange::new(at, at + 4), n));
                }
                calls
            },
        );
    }
    measure("access, 4 pages, scattered misses, 1 MiB cap", || {
        let view = FileView::new(Granularity::Page, 1 << 20);
        for n in 0..CALLS / 4 {
            let at = scattered(n);
            let _ = black_box(view.access(PageRange::new(at, at + 4), n));
        }
        CALLS / 4
    });
    measure(
        "begin + complete 512 pages, then 128 accesses: per access",
        || {
            let view = FileView::new(Granularity::Page, 1 << 20);
            let calls = FILE_PAGES / 4;
            for n in 0..calls {
                if n % 128 == 0 {
                    let ahead = PageRange::new(n * 4, n * 4 + 512);
                    black_box(view.begin(ahead, n));
                    view.complete(ahead, n);
                }
                let _ = black_box(view.access(PageRange::new(n * 4, n * 4 + 4), n));
            }
            calls
        },
    );
    // Two views, as a yardstick of what the machine gives two threads that share nothing at all.
    let other = view_with_holes(40);
    let same = [&holes, &holes];
    for (name, views, stride) in [
        ("different files", [&holes, &other], FILE_PAGES / 2),
        ("different nodes", same, FILE_PAGES / 2),
        ("one node", same, 4096),
    ] {
        measure(
            &format!("access, 4 pages, two threads, {name}: per call and thread"),
            || {
                thread::scope(|scope| {
                    for (thread, view) in views.into_iter().enumerate() {
                        scope.spawn(move || {
                            for n in 0..CALLS {
                                let at = thread as u64 * stride + scattered(n) % 4096;
                                let _ = black_box(view.access(PageRange::new(at, at + 4), n));
                            }
                        });
                    }
                });
                CALLS
            },
        );
    }
}
