//! Rows by which the lab checks itself on a machine; they are small, and run by name only: `outrider-lab run 'self-*'`.

use super::plain::{read, row};
use super::{Memory, Row};

const NVME: &[&str] = &["nvme"];

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut whole = row(
        "self-read",
        "Self-check: every block of 16 MB once",
        "2x8M",
        "--threads 2",
        NVME,
    );
    whole.work.declared = Some(vec![read(2, "--threads 2 --declare")]);
    // Twice through twice as much as fits: the second time, hardly anything is there any more.
    let mut limited = row(
        "self-limited",
        "Self-check: 64 MB, twice, in memory for half",
        "1x64M",
        "--ops 8192",
        NVME,
    );
    limited.memory = Memory::Bytes(32 << 20);
    let mut twice = row(
        "self-twice",
        "Self-check: 64 MB, twice",
        "1x64M",
        "--ops 8192",
        NVME,
    );
    twice.work.hinted = None;
    let mut broken = row(
        "self-broken",
        "Self-check: a command that fails",
        "2x8M",
        "--block 0",
        NVME,
    );
    broken.work.hinted = None;
    let mut unsteady = row(
        "self-unsteady",
        "Self-check: a command that never prints the same",
        "2x8M",
        "",
        NVME,
    );
    unsteady.work.hinted = None;
    unsteady.work.commands = vec![
        ["sh", "-c", "cat /proc/sys/kernel/random/uuid; cat {data}/*"]
            .map(str::to_owned)
            .into(),
    ];
    let mut endless = row(
        "self-endless",
        "Self-check: a command that does not end",
        "2x8M",
        "",
        NVME,
    );
    endless.work.commands = vec![
        ["sh", "-c", "sleep 86401 & sleep 86402"]
            .map(str::to_owned)
            .into(),
    ];
    endless.work.beside = vec![["sleep", "86403"].map(str::to_owned).into()];
    let mut all = vec![whole, limited, twice, broken, unsteady, endless];
    for row in &mut all {
        row.short = &[];
    }
    all
}
