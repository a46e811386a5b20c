//! What programs that no library sees find of ours, when they come from one that is followed, and what of them the service finds out by itself (SPEC B11).

mod support;

use std::fs;

use support::{
    Mounted, compile, fresh, is_root, make_cold, program, script, skip, skip_unprivileged,
};

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

/// SPEC B11: what comes to be read past the page cache (O_DIRECT) without any hook seeing it, from its beginning or later, is not fetched any more: it would be fetched twice.
#[test]
fn reads_that_turn_to_go_past_the_cache() {
    const NAME: &str = "reads_that_turn_to_go_past_the_cache";
    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 96 * MIB;
    let dir = fresh(NAME);
    fs::write(dir.join("file"), vec![7; SIZE as usize]).unwrap();
    let program = program("turns_direct").display().to_string();
    for (how, before) in [
        ("dup", 0),
        ("call", 0),
        ("child", 0),
        ("dup", 16),
        ("call", 16),
        ("child", 16),
    ] {
        let text = format!("{program} file {how} {before}");
        make_cold(&dir);
        let (plain, _) = script(&dir, false, &text);
        if plain.status.code() == Some(77) {
            return skip(NAME, "no O_DIRECT on this file system");
        }
        make_cold(&dir);
        let (ours, report) = script(&dir, true, &text);
        assert!(plain.status.success(), "{plain:?}");
        assert_eq!((plain.status, plain.stdout), (ours.status, ours.stdout));
        let prefetched = report["totals"]["prefetched_bytes"].as_u64().unwrap();
        // What was ahead at that moment, and what is fetched until it shows.
        assert!(
            prefetched <= before * MIB + SIZE / 3,
            "{text}: {prefetched} bytes: {report:#}"
        );
    }
}

/// SPEC B11: a program that watches what it reads itself sees its own opens and closes, and none of ours, by whatever name it calls the C library.
#[test]
fn watchers_by_a_handle_see_only_the_program() {
    const NAME: &str = "watchers_by_a_handle_see_only_the_program";
    let dir = fresh(NAME);
    fs::create_dir(dir.join("watched")).unwrap();
    fs::write(dir.join("watched/file"), vec![7; 32 << 20]).unwrap();
    let number = libc::SYS_inotify_add_watch;
    for watch in [
        "ctypes.CDLL('libc.so.6').inotify_add_watch(fd, b'watched', 0x30)".to_owned(),
        "ctypes.CDLL(None).inotify_add_watch(fd, b'watched', 0x30)".to_owned(),
        format!("ctypes.CDLL('libc.so.6').syscall({number}, fd, b'watched', 0x30)"),
    ] {
        let text = format!(
            "python3 -IS -c \"
import ctypes, os
fd = ctypes.CDLL(None).inotify_init1(os.O_NONBLOCK)
first = os.open('watched/file', os.O_RDONLY)
print(len(os.read(first, 65536)))
os.close(first)
assert {watch} > 0
for k in range(3):
    file = os.open('watched/file', os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    for at in reversed(range(0, 24 << 20, 65536)): os.pread(file, 65536, at)
    os.close(file)
events = []
try:
    while True:
        data = os.read(fd, 1 << 16)
        while data:
            events.append(int.from_bytes(data[4:8], 'little') & 0x30)
            data = data[16 + int.from_bytes(data[12:16], 'little'):]
except BlockingIOError:
    print(events)
\""
        );
        make_cold(&dir);
        let (plain, _) = script(&dir, false, &text);
        assert!(plain.status.success(), "{plain:?}");
        for _ in 0..3 {
            make_cold(&dir);
            let (ours, report) = script(&dir, true, &text);
            assert_eq!(
                (plain.status, String::from_utf8_lossy(&plain.stdout)),
                (ours.status, String::from_utf8_lossy(&ours.stdout)),
                "{watch}: {report:#}"
            );
        }
    }
}

/// SPEC B11: one that watches directories by fcntl(2) gets no signal because of files that are opened ahead of it.
#[test]
fn watchers_by_a_signal_see_only_the_program() {
    const NAME: &str = "watchers_by_a_signal_see_only_the_program";
    let dir = fresh(NAME);
    let Some(disk) = support::Disk::of(NAME, &dir) else {
        return;
    };
    for i in 0..60 {
        let below = disk.dir.join(format!("tree/d{i:02}"));
        fs::create_dir_all(&below).unwrap();
        for k in 0..20 {
            fs::write(below.join(format!("f{k:02}")), vec![7; 6000]).unwrap();
        }
    }
    let text = "python3 -IS -c \"
import fcntl, os, signal, time
signals = []
signal.signal(signal.SIGIO, lambda *_: signals.append(1))
names = ['disk/tree/' + name for name in sorted(os.listdir('disk/tree'))]
watches = [os.open(name, os.O_RDONLY) for name in names[36:]]
for fd in watches: fcntl.fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT)
for name in names[:24]:
    for file in sorted(os.listdir(name)): open(name + '/' + file, 'rb').read()
    time.sleep(0.002)
time.sleep(0.3)
print(len(signals))
\"";
    disk.does("model", &["remote"]);
    for _ in 0..3 {
        disk.does("cold", &[]);
        let (ours, report) = script(&dir, true, text);
        assert_eq!(
            String::from_utf8_lossy(&ours.stdout),
            "0\n",
            "{ours:?} {report:#}"
        );
    }
}
