//! What programs that no library sees find of ours, when they come from one that is followed (SPEC B11).

mod support;

use std::fs;

use support::{Mounted, compile, fresh, is_root, make_cold, program, script, skip_unprivileged};

/// SPEC B11: a program that has closed what it read can have it unmounted by another that it starts, in whatever way, which no library sees: ten times of ten, as
/// without us.
#[test]
fn what_was_closed_can_be_unmounted_by_who_is_started_next() {
    const NAME: &str = "what_was_closed_can_be_unmounted_by_who_is_started_next";
    if !is_root() {
        skip_unprivileged(NAME, "mounts file systems");
        return;
    }
    let dir = fresh(NAME);
    let (from, unmount) = support::to_unmount(&dir, 10, 8);
    let spawner = compile("pidfd_spawn", "pidfd_spawn.so", &["-shared", "-fPIC"]);
    let linked = format!("-Wl,--no-as-needed,{}", spawner.display());
    let starts = compile("starts", "starts_with", &["-O1", "-pthread", &linked]);
    let _mounted = Mounted(dir.join("mnt"));
    for way in [
        "fork", "call", "vfork", "clone", "copy", "_fork", "spawn", "pidfd", "pidfdp", "system",
        "popen",
    ] {
        let text = format!(
            "for i in 0 1 2 3 4 5 6 7 8 9; do mount --bind from mnt && {} mnt/f$i 3 {way} {} mnt || {{ [ $? != 77 ] || echo absent; umount mnt; }}; done",
            starts.display(),
            unmount.display()
        );
        make_cold(&from);
        let (plain, _) = script(&dir, false, &text);
        if way == "_fork" && plain.stdout.starts_with(b"absent\n") {
            continue;
        }
        make_cold(&from);
        let (ours, report) = script(&dir, true, &text);
        let lines = String::from_utf8_lossy(&ours.stdout);
        assert_eq!(lines.matches("unmounted").count(), 10, "{way}: {ours:?}");
        assert_eq!(
            (plain.status, &plain.stdout, &plain.stderr),
            (ours.status, &ours.stdout, &ours.stderr),
            "{way}"
        );
        let prefetched = report["totals"]["prefetched_bytes"].as_u64();
        assert!(prefetched > Some(0), "{way}: {report:#}");
    }
}

/// SPEC B11: arguments and environments that can't be read are errors of the calls that start programs, as without us, and kill nobody.
#[test]
fn strings_that_cannot_be_read() {
    let dir = fresh("strings_that_cannot_be_read");
    let text = program("bad_strings").display().to_string();
    let (plain, _) = script(&dir, false, &text);
    let (ours, _) = script(&dir, true, &text);
    assert!(plain.status.success(), "{plain:?}");
    assert_eq!(
        (
            plain.status,
            String::from_utf8_lossy(&plain.stdout),
            String::from_utf8_lossy(&plain.stderr)
        ),
        (
            ours.status,
            String::from_utf8_lossy(&ours.stdout),
            String::from_utf8_lossy(&ours.stderr)
        )
    );
}

/// What a program reads so that it doesn't stay in the page cache (RWF_DONTCACHE) is not brought there by us: of what others have fetched the kernel leaves it there.
#[test]
fn reads_that_leave_nothing_cached() {
    let dir = fresh("reads_that_leave_nothing_cached");
    fs::write(dir.join("file"), vec![7; 48 << 20]).unwrap();
    let text = format!("{} file", program("uncached").display());
    make_cold(&dir);
    let (plain, _) = script(&dir, false, &text);
    make_cold(&dir);
    let (ours, report) = script(&dir, true, &text);
    assert!(plain.status.success(), "{plain:?}");
    assert_eq!(
        (plain.status, String::from_utf8_lossy(&plain.stdout)),
        (ours.status, String::from_utf8_lossy(&ours.stdout)),
        "{report:#}"
    );
}
