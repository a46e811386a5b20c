//! How much lies ahead where others read from the device.

// The library's own code must not: see clippy.toml.
#![allow(clippy::disallowed_methods)]

mod support;

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use outrider_graph::{Engine, Graph, Next, Op, ask_room};

use support::in_child;

const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 128;

/// Bytes that may be in flight; 0: nobody else is known to read.
static ROOM: AtomicU64 = AtomicU64::new(0);

/// The block that a function reads as its `i`-th: no kernel foresees them.
fn block(i: u64) -> u64 {
    i * 37 % BLOCKS
}

/// Reads that have been made ahead when a function of certain reads has made its first ones.
fn ahead(engine: Engine, fetches: bool) -> u64 {
    let file = tempfile::tempfile().unwrap();
    for i in 0..BLOCKS {
        let bytes = [i as u8; BLOCK];
        file.write_all_at(&bytes, i * BLOCK as u64).unwrap();
    }
    let fd = file.as_raw_fd();
    let mut graph = Graph::generator("blocks", move |_: &(), i| match i {
        BLOCKS => Next::End,
        i => Next::Call(Op::Pread {
            fd,
            len: BLOCK,
            offset: (block(i) * BLOCK as u64) as i64,
        }),
    })
    .pure()
    .engine(engine);
    if fetches {
        graph = graph.fetch();
    }
    let mut scope = graph.enter(&());
    for i in 0..2 {
        let at = (block(i) * BLOCK as u64) as i64;
        let read = scope.pread_block(&file, BLOCK, at).unwrap();
        assert!(read.iter().all(|b| *b == block(i) as u8));
    }
    drop(scope);
    graph.counts().ahead
}

/// DR7: beside others no more lies ahead than they leave.
#[test]
fn no_more_lies_ahead_than_others_leave() {
    const ROOMS: u64 = 4;
    in_child("no_more_lies_ahead_than_others_leave", || {
        ask_room(|_| match ROOM.load(Ordering::Relaxed) {
            0 => None,
            room => Some(room),
        });
        for (engine, fetches) in [
            (Engine::Threads, false),
            (Engine::Auto, false),
            (Engine::Auto, true),
        ] {
            ROOM.store(0, Ordering::Relaxed);
            let alone = ahead(engine, fetches);
            ROOM.store(ROOMS * BLOCK as u64, Ordering::Relaxed);
            let beside = ahead(engine, fetches);
            // A MiB lies ahead of what is certain.
            assert!(alone >= 15, "{engine:?}, {fetches}: {alone}");
            // Beside the two that the function makes.
            let most = ROOMS + 2;
            assert!(
                (2..=most).contains(&beside),
                "{engine:?}, {fetches}: {beside}"
            );
        }
    });
}
