//! `outrider-lab mount` through the built command: everything that can be observed is as in the directory that is shown, requests are counted, and nothing is ever
//! left behind.
//!
//! The cases need root and FUSE; without them each prints why it was skipped.

mod support;

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, RawDir, SeekFrom as At, makedev, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use support::{installed, skip};
use tempfile::TempDir;

/// Why nothing can be mounted here.
fn no_mounts() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    fuse.err().map(|e| format!("/dev/fuse: {e}"))
}

/// Returns from a test where nothing can be mounted, and says so.
macro_rules! need_mounts {
    () => {
        if let Some(reason) = no_mounts() {
            let name = std::thread::current().name().unwrap_or("mount").to_owned();
            skip(&name, &reason);
            return;
        }
    };
}

fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_outrider-lab"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Directories for a test: what is shown, and where.
struct Place {
    _parent: TempDir,
    dir: PathBuf,
    mountpoint: PathBuf,
    count: PathBuf,
}

impl Place {
    fn new() -> Self {
        let parent = tempfile::Builder::new()
            .prefix("lab mount")
            .tempdir()
            .unwrap();
        let at = |name: &str| parent.path().join(name);
        let (dir, mountpoint, count) = (at("shown"), at("mount point"), at("counts"));
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&mountpoint).unwrap();
        // For other users.
        fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self {
            _parent: parent,
            dir,
            mountpoint,
            count,
        }
    }

    fn is_mounted(&self) -> bool {
        let escaped = self.mountpoint.to_str().unwrap().replace(' ', "\\040");
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        mounts.contains(&escaped)
    }

    fn gone(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        while self.is_mounted() && Instant::now() < until {
            sleep(Duration::from_millis(5));
        }
        self.nothing_left();
    }

    fn nothing_left(&self) {
        assert!(!self.is_mounted());
        assert_eq!(fs::read_dir(&self.mountpoint).unwrap().count(), 0);
    }

    /// Mounts it; requests take no time unless `more` says so.
    fn mount(&self, more: &[&str]) -> Mount<'_> {
        self.mount_by(lab(), more)
    }

    fn mount_by(&self, mut command: Command, more: &[&str]) -> Mount<'_> {
        command.arg("mount").arg(&self.dir).arg(&self.mountpoint);
        if !more.contains(&"--latency-us") {
            command.args(["--latency-us", "0"]);
        }
        command.args(more).arg("--count").arg(&self.count);
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(server.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        assert!(
            line.starts_with(self.mountpoint.to_str().unwrap()),
            "{line}"
        );
        Mount {
            place: self,
            server: Some(server),
        }
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        let told = fs::read_to_string(&self.count).unwrap();
        let words = told.lines().map(|line| line.split_whitespace());
        let pairs = words.map(|mut w| (w.next().unwrap().to_owned(), w.next().unwrap()));
        pairs.map(|(name, n)| (name, n.parse().unwrap())).collect()
    }
}

/// A running file system, which is ended however the test ends.
struct Mount<'a> {
    place: &'a Place,
    server: Option<Child>,
}

impl Mount<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.place.mountpoint.join(name)
    }

    fn signal(&self, signal: Signal) {
        let server = self.server.as_ref().unwrap();
        kill_process(Pid::from_child(server), signal).unwrap();
    }

    /// Waits for its end; the exit code.
    fn wait(mut self) -> Option<i32> {
        self.server.take().unwrap().wait().unwrap().code()
    }

    fn end(self) {
        let place = self.place;
        self.signal(Signal::TERM);
        assert_eq!(self.wait(), Some(0));
        place.nothing_left();
    }

    /// What was asked for while `what` ran: the kinds of which there were some.
    fn asked(&self, what: impl FnOnce()) -> BTreeMap<String, u64> {
        let before = self.place.counts();
        what();
        let mut after = self.place.counts();
        after.iter_mut().for_each(|(name, n)| *n -= before[name]);
        after.retain(|_, n| *n > 0);
        after
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = kill_process(Pid::from_child(&server), Signal::TERM);
            let _ = server.wait();
        }
    }
}

fn some(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs
        .iter()
        .map(|(name, n)| ((*name).to_owned(), *n))
        .collect()
}

/// Bytes that neither repeat nor compress.
fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend(x.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// A tree with everything that a tree can have.
fn grow(dir: &Path) {
    let at = |name: &str| dir.join(name);
    for nested in ["many", "a/b/c", "empty", "closed"] {
        fs::create_dir_all(at(nested)).unwrap();
    }
    for i in 0..3000 {
        let name = format!("many/{}{i}", "n".repeat(i % 200));
        fs::write(at(&name), i.to_string().repeat(i % 50)).unwrap();
    }
    fs::write(at("a/long"), noise(3_000_001)).unwrap();
    fs::write(at("a/nothing"), "").unwrap();
    fs::write(at("a/page"), noise(4096)).unwrap();
    let sparse = File::create(at("a/b/sparse")).unwrap();
    sparse.write_all_at(b"end", 5_000_000).unwrap();
    fs::write(
        dir.join(OsStr::from_bytes(b"a/b/not \xff\xfe UTF-8\n")),
        "x",
    )
    .unwrap();
    fs::hard_link(at("a/long"), at("a/b/c/same")).unwrap();
    symlink("../long", at("a/b/link")).unwrap();
    symlink("/nowhere/at all", at("a/b/dangling")).unwrap();
    symlink("b", at("a/to a directory")).unwrap();
    symlink("x".repeat(4000), at("a/a long way")).unwrap();
    let node = |name: &str, kind, device| {
        mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
    };
    node("a/fifo", FileType::Fifo, 0);
    node("a/socket", FileType::Socket, 0);
    node("a/device", FileType::CharacterDevice, makedev(300, 70_000));
    node("a/disk", FileType::BlockDevice, makedev(7, 300));
    for (name, mode) in [
        ("a/page", 0o4711),
        ("a/nothing", 0o000),
        ("closed", 0o700),
        ("a/b", 0o1777),
    ] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::chown(at("a/long"), Some(12_345), Some(54_321)).unwrap();
    std::os::unix::fs::lchown(at("a/b/link"), Some(7), None).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH;
    let file = File::options().write(true).open(at("a/page")).unwrap();
    file.set_modified(old - Duration::new(86_400, 5)).unwrap();
}

/// Number, type and name of the entries of a directory, as they are listed.
fn listing(dir: &Path) -> Vec<(u64, FileType, Vec<u8>)> {
    let directory = File::open(dir).unwrap();
    let mut buffer = Vec::with_capacity(3000);
    let mut raw = RawDir::new(directory.as_fd(), buffer.spare_capacity_mut());
    let mut all = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_bytes().to_vec();
        // Above the top there is another file system.
        if name != b".." {
            all.push((entry.ino(), entry.file_type(), name));
        }
    }
    all
}

/// A file's bytes: read at once, in odd pieces from the end on, and mapped.
fn content(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    let mut file = File::open(path).unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), bytes.len() as u64);
    let step = bytes.len() / 7 + 1;
    for start in (0..bytes.len()).step_by(step).rev() {
        let mut piece = vec![0; step];
        let got = file.read_at(&mut piece, start as u64).unwrap();
        assert!(piece[..got] == bytes[start..(start + step).min(bytes.len())]);
    }
    assert_eq!(file.read(&mut [0; 10]).unwrap(), 0);
    if !bytes.is_empty() {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        let len = bytes.len();
        // SAFETY: a new mapping of a file that nobody changes, which is unmapped after its last use.
        unsafe {
            let at = mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::PRIVATE,
                &file,
                0,
            );
            let at = at.unwrap();
            assert!(std::slice::from_raw_parts(at.cast::<u8>(), len) == bytes);
            munmap(at, len).unwrap();
        }
    }
    bytes
}

/// All that can be observed of a tree, by the names in it.
fn observed(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut to_do = vec![PathBuf::new()];
    while let Some(name) = to_do.pop() {
        let path = top.join(&name);
        let m = fs::symlink_metadata(&path).unwrap();
        let mut said = format!(
            "{:o} {} {} {} {:x} {} {} {} {} {:?} {:?} {:?}",
            m.mode(),
            m.nlink(),
            m.uid(),
            m.gid(),
            m.rdev(),
            m.size(),
            m.blocks(),
            m.blksize(),
            m.ino(),
            (m.atime(), m.atime_nsec()),
            (m.mtime(), m.mtime_nsec()),
            (m.ctime(), m.ctime_nsec())
        );
        if m.is_symlink() {
            let to = fs::read_link(&path).unwrap();
            said += &format!(" -> {to:?} {:?}", path.exists());
        } else if m.is_dir() {
            let entries = listing(&path);
            said += &format!(" {entries:?}");
            for (_, _, entry) in entries {
                if entry != b"." {
                    to_do.push(name.join(OsStr::from_bytes(&entry)));
                }
            }
        } else if m.is_file() {
            let bytes = content(&path);
            said += &format!(" {:x}", xxhash_rust::xxh3::xxh3_64(&bytes));
        }
        all.insert(name, said);
    }
    all
}

/// B10: a tree is the same to everybody who looks at it, in whatever way files are cached.
#[test]
fn everything_that_can_be_observed_is_the_same() {
    need_mounts!();
    let place = Place::new();
    grow(&place.dir);
    // Looking at it changes times of access, at first.
    observed(&place.dir);
    let expected = observed(&place.dir);
    assert!(expected.len() > 3000);
    let manners: [&[&str]; 5] = [
        &[],
        &["--keep-cache"],
        &["--direct-io"],
        &["--keep-cache", "--cache-lists"],
        &["--valid-s", "0", "--parallel", "1"],
    ];
    for manner in manners {
        let mount = place.mount(manner);
        for _ in 0..2 {
            let seen = observed(&place.mountpoint);
            assert_eq!(seen.len(), expected.len(), "{manner:?}");
            for (name, said) in &expected {
                assert!(
                    seen[name] == *said,
                    "{manner:?} {name:?}:\n{}\n{said}",
                    seen[name]
                );
            }
        }
        let space = |dir: &Path| {
            let s = rustix::fs::statfs(dir).unwrap();
            (s.f_blocks, s.f_files, s.f_bsize, s.f_namelen)
        };
        assert_eq!(space(&place.mountpoint), space(&place.dir));
        mount.end();
    }
    // Nor has all this changed what was shown.
    assert!(observed(&place.dir) == expected);
}

/// B10: what fails there fails here likewise, and nothing can be changed.
#[test]
fn errors_are_the_same_and_nothing_can_be_changed() {
    need_mounts!();
    let place = Place::new();
    grow(&place.dir);
    let mount = place.mount(&["--keep-cache"]);
    let errno = |e: std::io::Error| e.raw_os_error().unwrap();
    for name in [
        "nothing there",
        "a/page/below",
        "a/b/dangling",
        "a/b/c/../../../../shown/x",
    ] {
        let [here, there] = [&place.mountpoint, &place.dir]
            .map(|top| errno(File::open(top.join(name)).unwrap_err()));
        assert_eq!(here, there, "{name}");
    }
    let refused = [
        File::create(mount.at("new")).map(|_| ()),
        File::options()
            .append(true)
            .open(mount.at("a/page"))
            .map(|_| ()),
        fs::remove_file(mount.at("a/page")),
        fs::create_dir(mount.at("new")),
        fs::rename(mount.at("a/page"), mount.at("other")),
        fs::set_permissions(mount.at("a/page"), fs::Permissions::from_mode(0o600)),
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    }
    let said = rustix::fs::getxattr(mount.at("a/page"), "user.x", &mut [0u8; 8][..]);
    assert_eq!(said.unwrap_err(), rustix::io::Errno::OPNOTSUPP);
    // Rights are judged as they are there.
    for name in ["a/long", "a/page", "a/nothing", "closed", "many/0"] {
        let [here, there] = [&place.mountpoint, &place.dir].map(|top| {
            let mut cat = Command::new("cat");
            let out = cat
                .arg(top.join(name))
                .uid(65_534)
                .gid(65_534)
                .output()
                .unwrap();
            (out.status.success(), out.stdout)
        });
        assert!(here == there, "{name}");
    }
    mount.end();
}

/// B10: a place in a listing that was remembered is found again, also by another descriptor.
#[test]
fn a_listing_goes_on_where_it_was_left() {
    need_mounts!();
    let place = Place::new();
    grow(&place.dir);
    for manner in [&["--keep-cache"][..], &["--cache-lists"]] {
        let mount = place.mount(manner);
        let whole = listing(&mount.at("many"));
        for other in [false, true] {
            let directory = File::open(mount.at("many")).unwrap();
            let mut buffer = Vec::with_capacity(3000);
            let mut raw = RawDir::new(directory.as_fd(), buffer.spare_capacity_mut());
            let mut at = 0;
            for _ in 0..1000 {
                at = raw.next().unwrap().unwrap().next_entry_cookie();
            }
            let directory = match other {
                true => File::open(mount.at("many")).unwrap(),
                false => directory,
            };
            rustix::fs::seek(&directory, At::Start(at)).unwrap();
            let mut buffer = Vec::with_capacity(3000);
            let mut raw = RawDir::new(directory.as_fd(), buffer.spare_capacity_mut());
            let mut rest = Vec::new();
            while let Some(entry) = raw.next() {
                rest.push(entry.unwrap().file_name().to_bytes().to_vec());
            }
            let all = fs::read_dir(mount.at("many")).unwrap().count();
            assert_eq!(rest.len(), all + 2 - 1000, "{manner:?} {other}");
            let last = &whole.last().unwrap().2;
            assert!(rest.last() == Some(last) || rest.last().unwrap() == b"..");
        }
        mount.end();
    }
}

/// B10: many processes at once see the same.
#[test]
fn processes_at_once_see_the_same() {
    need_mounts!();
    if !installed("diff") {
        skip("processes_at_once_see_the_same", "no diff");
        return;
    }
    let place = Place::new();
    grow(&place.dir);
    for special in ["fifo", "socket", "device", "disk"] {
        fs::remove_file(place.dir.join("a").join(special)).unwrap();
    }
    for manner in [&[][..], &["--keep-cache", "--cache-lists"]] {
        let mount = place.mount(&[manner, &["--latency-us", "50", "--parallel", "4"]].concat());
        let all: Vec<Child> = (0..6)
            .map(|_| {
                let mut diff = Command::new("diff");
                diff.args(["-r", "--no-dereference"]);
                diff.arg(&place.dir).arg(&place.mountpoint);
                diff.stdout(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for diff in all {
            let out = diff.wait_with_output().unwrap();
            assert!(out.status.success(), "{}", text(&out.stdout));
        }
        mount.end();
    }
}

/// B10: each kind of request is counted, once it was answered at the latest, and what is cached is not asked for.
#[test]
fn requests_are_counted_by_kind() {
    need_mounts!();
    let place = Place::new();
    fs::create_dir_all(place.dir.join("a/b")).unwrap();
    for i in 0..10 {
        fs::write(place.dir.join(format!("a/b/{i}")), noise(5000)).unwrap();
    }
    symlink("b/0", place.dir.join("a/link")).unwrap();
    let read = |mount: &Mount, name: &str| drop(fs::read(mount.at(name)).unwrap());
    let list = |mount: &Mount| {
        let listed = listing(&mount.at("a/b"));
        assert_eq!(listed.len(), 11);
    };

    let mount = place.mount(&[]);
    let first = mount.asked(|| read(&mount, "a/b/0"));
    let once = [("open", 1), ("read", 1), ("read-bytes", 5000)];
    // The attributes are the top's.
    let way = [("attributes", 1), ("lookup", 3)];
    assert_eq!(first, some(&[&once[..], &way].concat()));
    // Names are known by now; what was cached of the file went at open(2).
    assert_eq!(mount.asked(|| read(&mount, "a/b/0")), some(&once));
    assert_eq!(
        mount.asked(|| drop(fs::metadata(mount.at("a/b/1")))),
        some(&[("lookup", 1)])
    );
    assert_eq!(
        mount.asked(|| drop(fs::metadata(mount.at("a/b/1")))),
        some(&[])
    );
    assert_eq!(
        mount.asked(|| drop(fs::metadata(mount.at("a/x")))),
        some(&[("lookup", 1)])
    );
    let link = || drop(fs::read_link(mount.at("a/link")).unwrap());
    assert_eq!(mount.asked(link), some(&[("link", 1), ("lookup", 1)]));
    for _ in 0..2 {
        let listed = mount.asked(|| list(&mount));
        assert_eq!(listed["list"], 1);
        // The last of them comes back empty.
        assert_eq!(listed, some(&[("list", 1), ("list-more", 1)]));
    }
    mount.end();

    let mount = place.mount(&["--keep-cache", "--cache-lists"]);
    mount.asked(|| read(&mount, "a/b/0"));
    assert_eq!(mount.asked(|| read(&mount, "a/b/0")), some(&[("open", 1)]));
    mount.asked(|| list(&mount));
    assert_eq!(mount.asked(|| list(&mount)), some(&[]));
    mount.end();

    let mount = place.mount(&["--direct-io"]);
    let mut buffer = [0; 1000];
    let file = File::open(mount.at("a/b/0")).unwrap();
    for _ in 0..2 {
        let at = |offset| file.read_exact_at(&mut buffer, offset).unwrap();
        let asked = mount.asked(|| [0, 1000, 3000].into_iter().for_each(at));
        assert_eq!(asked, some(&[("read", 3), ("read-bytes", 3000)]));
    }
    drop(file);
    mount.end();

    // Nothing is valid for longer than its answer.
    let mount = place.mount(&["--valid-s", "0"]);
    for _ in 0..2 {
        let asked = mount.asked(|| drop(fs::metadata(mount.at("a/b/1"))));
        assert_eq!(asked["lookup"], 3);
    }
    mount.end();
}

/// B10: what changes in the directory is seen once attributes are no longer valid, also where caches are kept.
#[test]
fn changes_are_seen_in_the_end() {
    need_mounts!();
    let place = Place::new();
    let file = place.dir.join("file");
    fs::write(&file, "before").unwrap();
    let mount = place.mount(&["--keep-cache", "--valid-s", "0"]);
    let shown = mount.at("file");
    assert_eq!(fs::read(&shown).unwrap(), b"before");
    File::options()
        .append(true)
        .open(&file)
        .unwrap()
        .write_all(b" and after")
        .unwrap();
    assert_eq!(fs::read(&shown).unwrap(), b"before and after");
    fs::rename(&file, place.dir.join("other")).unwrap();
    assert_eq!(fs::read(&shown).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs::read(mount.at("other")).unwrap(), b"before and after");
    fs::write(&file, "new").unwrap();
    assert_eq!(fs::read(&shown).unwrap(), b"new");
    mount.end();
}

/// B10: a request holds a lane for its time: with two of them another is answered meanwhile, with one it is answered after it.
#[test]
fn requests_wait_for_a_lane() {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    need_mounts!();
    let place = Place::new();
    fs::write(place.dir.join("file"), "x").unwrap();
    for (lanes, overtakes) in [("1", false), ("2", true)] {
        let manner = ["--keep-cache", "--read-us", "1500000", "--parallel", lanes];
        let mount = place.mount(&manner);
        let file = File::open(mount.at("file")).unwrap();
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping of a file that nobody changes.
        let page = unsafe { mmap(nowhere, 1, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
        let page = page.unwrap();
        let mut cat = Command::new("cat")
            .arg(mount.at("file"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while place.counts()["read"] == 0 {
            sleep(Duration::from_millis(1));
        }
        assert!(File::open(mount.at("not there")).is_err());
        let mut answered = [0];
        // SAFETY: the mapping is one page long, for which a byte is written.
        assert_eq!(unsafe { libc::mincore(page, 1, answered.as_mut_ptr()) }, 0);
        assert_eq!(answered[0] & 1 == 0, overtakes, "{lanes} lanes");
        assert!(cat.wait().unwrap().success());
        // SAFETY: nobody uses the mapping any more.
        unsafe { munmap(page, 1).unwrap() };
        drop(file);
        mount.end();
    }
}

/// B10: whatever ends it, nothing stays mounted, and who is still reading gets an error.
#[test]
fn nothing_stays_mounted() {
    need_mounts!();
    let place = Place::new();
    fs::write(place.dir.join("file"), noise(1 << 20)).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mount = place.mount(&[]);
        let file = File::open(mount.at("file")).unwrap();
        let cwd = Command::new("sleep")
            .arg("60")
            .current_dir(&place.mountpoint)
            .spawn();
        mount.signal(signal);
        assert_eq!(mount.wait(), Some(0));
        place.nothing_left();
        let gone = file.read_at(&mut [0; 10], 1 << 19).unwrap_err();
        assert!(
            matches!(
                gone.raw_os_error(),
                Some(libc::ENOTCONN | libc::EIO | libc::ECONNABORTED)
            ),
            "{gone}"
        );
        let mut cwd = cwd.unwrap();
        cwd.kill().unwrap();
        cwd.wait().unwrap();
    }
    // While requests are under way: those that wait get their answer or an error.
    let mount = place.mount(&["--latency-us", "100000", "--parallel", "2"]);
    let readers: Vec<Child> = (0..4)
        .map(|_| {
            let mut cat = Command::new("cat");
            cat.arg(mount.at("file"))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            cat.spawn().unwrap()
        })
        .collect();
    while place.counts()["read"] == 0 {
        sleep(Duration::from_millis(1));
    }
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait(), Some(0));
    place.nothing_left();
    for mut reader in readers {
        assert!(reader.wait().unwrap().code().is_some());
    }
    // Its guard was killed: it unmounts itself.
    let mount = place.mount(&[]);
    let children = format!(
        "/proc/{0}/task/{0}/children",
        mount.server.as_ref().unwrap().id()
    );
    let guard = fs::read_to_string(children).unwrap();
    let guard = Pid::from_raw(guard.trim().parse().unwrap()).unwrap();
    kill_process(guard, Signal::KILL).unwrap();
    mount.end();
    // Nobody hears that it is mounted.
    let mut command = lab();
    command.arg("mount").arg(&place.dir).arg(&place.mountpoint);
    let (hears, says) = std::io::pipe().unwrap();
    drop(hears);
    let out = command.stdout(says).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    place.nothing_left();
    // Killed: the guard notices.
    let mount = place.mount(&[]);
    mount.signal(Signal::KILL);
    assert_eq!(mount.wait(), None);
    place.gone();
    // Unmounted by somebody else.
    let mount = place.mount(&[]);
    rustix::mount::unmount(&place.mountpoint, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(mount.wait(), Some(0));
    place.nothing_left();
}

fn mount_output(args: &[&OsStr]) -> Output {
    lab().arg("mount").args(args).output().unwrap()
}

/// One line, exit code 2, and nothing is mounted or made.
#[test]
fn wrong_input_is_told_in_one_line() {
    let place = Place::new();
    let file = place.dir.join("file");
    fs::write(&file, "").unwrap();
    let inside = place.dir.join("inside");
    fs::create_dir(&inside).unwrap();
    let [dir, mp, file, inside] =
        [&place.dir, &place.mountpoint, &file, &inside].map(|p| p.as_os_str());
    let word = OsStr::new;
    let nowhere = word("/nowhere/at/all");
    let flag = |flag: &'static str, value: &'static str| vec![dir, mp, word(flag), word(value)];
    let cases: Vec<(Vec<&OsStr>, &str)> = vec![
        (vec![], "DIR"),
        (vec![dir], "MOUNTPOINT"),
        (vec![nowhere, mp], "DIR /nowhere/at/all: No such file"),
        (
            vec![dir, nowhere],
            "MOUNTPOINT /nowhere/at/all: No such file",
        ),
        (vec![file, mp], "not a directory; accepted is a directory"),
        (vec![dir, file], "not a directory; accepted is a directory"),
        (vec![dir, dir], "accepted is one outside"),
        (vec![dir, inside], "accepted is one outside"),
        (
            vec![dir, word("/proc")],
            "something is mounted on it already",
        ),
        (flag("--latency-us", "-1"), "--latency-us"),
        (flag("--latency-us", "60000001"), "0..=60000000"),
        (flag("--parallel", "0"), "1..=1024"),
        (flag("--background", "0"), "--background"),
        (flag("--bandwidth-mbs", "fast"), "accepted are numbers"),
        (flag("--speed", "9"), "accepts --latency-us"),
        (
            flag("--count", "/nowhere/at/all"),
            "--count /nowhere/at/all: No such file",
        ),
        (
            vec![dir, mp, word("--keep-cache"), word("--direct-io")],
            "--direct-io",
        ),
    ];
    for (case, why) in cases {
        let out = mount_output(&case);
        let said = text(&out.stderr);
        if said.contains("fusermount3") && !rustix::process::geteuid().is_root() {
            skip("a case of bad input", "not root, and no fusermount3");
            continue;
        }
        assert_eq!(out.status.code(), Some(2), "{case:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{case:?}: {said}");
        assert!(said.contains(why), "{case:?}: {said}");
        assert!(out.stdout.is_empty());
        assert!(!place.is_mounted());
    }
}

/// An ordinary user mounts by fusermount3, and is told where it is missing.
#[test]
fn ordinary_users_mount_by_fusermount() {
    need_mounts!();
    let place = Place::new();
    fs::write(place.dir.join("file"), "content").unwrap();
    // Where everybody may run it.
    let program = place._parent.path().join("outrider-lab");
    fs::copy(env!("CARGO_BIN_EXE_outrider-lab"), &program).unwrap();
    std::os::unix::fs::chown(&place.mountpoint, Some(65_534), Some(65_534)).unwrap();
    let as_nobody = |path: &OsStr| {
        let mut command = Command::new(&program);
        command.arg("mount").arg(&place.dir).arg(&place.mountpoint);
        command.uid(65_534).gid(65_534).env("PATH", path);
        command
    };
    let out = as_nobody(OsStr::new("/nowhere")).output().unwrap();
    let said = text(&out.stderr);
    assert_eq!(
        (out.status.code(), said.lines().count()),
        (Some(2), 1),
        "{said}"
    );
    assert!(said.contains("fusermount3"), "{said}");
    place.nothing_left();

    if !installed("fusermount3") {
        skip("ordinary_users_mount_by_fusermount", "no fusermount3");
        return;
    }
    // Where /dev/fuse is root's: once more in a mount namespace of its own, in which it is everybody's.
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o6 != 0o6 {
        let node = place._parent.path().join("fuse");
        let script = "mount --make-rprivate / && mknod -m 666 \"$0\" c 10 229 && mount --bind \"$0\" /dev/fuse && exec \"$@\"";
        let mut again = Command::new("unshare");
        again.args(["-m", "sh", "-c", script]).arg(node);
        again.arg(std::env::current_exe().unwrap());
        again.args(["--exact", "ordinary_users_mount_by_fusermount"]);
        let out = again.output().unwrap();
        let said = text(&out.stdout) + &text(&out.stderr);
        assert!(out.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let path = std::env::var_os("PATH").unwrap();
    let mut server = as_nobody(&path).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(server.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    assert!(line.contains("parallel"), "{line}");
    // Only who has mounted it may look.
    assert!(fs::read(place.mountpoint.join("file")).is_err());
    let mut cat = Command::new("cat");
    let out = cat
        .arg(place.mountpoint.join("file"))
        .uid(65_534)
        .gid(65_534)
        .output();
    assert_eq!(out.unwrap().stdout, b"content");
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
    place.nothing_left();
}

/// More files may be open than the usual limit of a process, 1024.
#[test]
fn many_files_may_be_open() {
    need_mounts!();
    let place = Place::new();
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 4096) {
        skip("many_files_may_be_open", "the limit is too low");
        return;
    }
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    fs::write(place.dir.join("file"), "content").unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 256; exec \"$@\"", "sh"]);
    command.arg(env!("CARGO_BIN_EXE_outrider-lab"));
    let mount = place.mount_by(command, &[]);
    let open = |_| File::open(mount.at("file")).unwrap();
    let files: Vec<File> = (0..2000).map(open).collect();
    let mut byte = [0];
    assert_eq!(files[1999].read_at(&mut byte, 6).unwrap(), 1);
    drop(files);
    mount.end();
}

/// A name with a NUL can't come, and one that is too long is refused by the kernel.
#[test]
fn long_names_are_refused() {
    need_mounts!();
    let place = Place::new();
    let mount = place.mount(&[]);
    let name = CString::new("n".repeat(256)).unwrap();
    let [here, there] = [&place.mountpoint, &place.dir].map(|top| {
        let path = top.join(OsStr::from_bytes(name.as_bytes()));
        File::open(path).unwrap_err().raw_os_error()
    });
    assert_eq!(here, there);
    mount.end();
}
