//! The Rust library (SPEC LP1, LP2, LP8): what is declared is followed, what is read stays what it was, and misuse is an error.

mod support;

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outrider::{Client, Declared, Entry, File, Position, Update, settle, stats};
use support::{Random, fresh, make_cold};

const PAGE: u64 = 4096;

/// The figures are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|e| e.into_inner())
}

/// A cold file of noise, and what is in it.
fn data(name: &str, pages: u64) -> (PathBuf, Vec<u8>) {
    let dir = fresh(name);
    let bytes = Random(pages).bytes((pages * PAGE) as usize);
    fs::write(dir.join("data"), &bytes).unwrap();
    make_cold(&dir);
    (dir.join("data"), bytes)
}

fn page(i: u64, pages: u64) -> Range<u64> {
    let at = i * 37 % pages * PAGE;
    at..at + PAGE
}

fn within(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

#[test]
fn a_list_is_followed() {
    let _alone = alone();
    let (path, bytes) = data("plain", 512);
    let file = File::open(&path).unwrap();
    let before = stats();
    let order: Vec<_> = (0..512).map(|i| page(i, 512)).collect();
    let declared = Declared::ranges(&file, order.iter().cloned()).unwrap();
    assert_eq!(declared.taken(), 512);
    assert_eq!(stats().declared_bytes - before.declared_bytes, 512 * PAGE);
    let mut buffer = [0; PAGE as usize];
    for (i, range) in order.iter().enumerate() {
        // Both ways to read tell of it.
        if i % 2 == 0 {
            file.read_exact_at(&mut buffer, range.start).unwrap();
        } else {
            (&file).seek(SeekFrom::Start(range.start)).unwrap();
            (&file).read_exact(&mut buffer).unwrap();
        }
        assert!(buffer == bytes[within(range)]);
    }
    settle(Duration::from_secs(60)).unwrap();
    assert_eq!(stats().diverged_reads, before.diverged_reads);
    // Another list for the same file takes its place.
    let again = Declared::ranges(&file, [0..PAGE, 7..9]).unwrap();
    assert_eq!(again.taken(), 2);
    file.read_exact_at(&mut buffer, 100 * PAGE).unwrap();
    assert_eq!(stats().diverged_reads, before.diverged_reads + 1);
    drop(again);
    drop(declared);
    // Nothing is declared any more.
    file.read_exact_at(&mut buffer, 100 * PAGE).unwrap();
    assert_eq!(stats().diverged_reads, before.diverged_reads + 1);
}

/// A list longer than what is drawn at once is drawn as it is read.
#[test]
fn an_iterator_is_drawn_from_as_far_as_is_useful() {
    let _alone = alone();
    let (path, bytes) = data("pull", 512);
    let file = File::open(&path).unwrap();
    let drawn = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&drawn);
    let total = 300_000;
    let declared = Declared::pull_ranges(
        &file,
        (0..total).map(move |i| {
            counter.fetch_add(1, Ordering::Relaxed);
            page(i, 512)
        }),
    )
    .unwrap();
    let first = drawn.load(Ordering::Relaxed);
    assert!((1..total).contains(&first), "{first}");
    let diverged = stats().diverged_reads;
    let mut buffer = [0; PAGE as usize];
    for i in 0..total {
        file.read_exact_at(&mut buffer, page(i, 512).start).unwrap();
        if i % 1000 == 0 {
            assert!(buffer == bytes[within(&page(i, 512))]);
        }
    }
    assert_eq!(drawn.load(Ordering::Relaxed), total);
    assert_eq!(stats().diverged_reads, diverged);
    drop(declared);
}

#[test]
fn a_callback_extends_the_list() {
    let _alone = alone();
    let (path, bytes) = data("callback", 256);
    let file = Arc::new(File::open(&path).unwrap());
    let seen: Arc<Mutex<Vec<Position>>> = Arc::default();
    let (callbacks_file, callbacks_seen) = (Arc::clone(&file), Arc::clone(&seen));
    let next = AtomicU64::new(0);
    let client = Client::with_callback(move |list, at| {
        callbacks_seen.lock().unwrap().push(at);
        let from = next.fetch_add(16, Ordering::Relaxed);
        let entries = (from..(from + 16).min(256)).map(|i| {
            let entry = Entry::new(&*callbacks_file, page(i, 256).start, PAGE);
            if i % 16 == 0 { entry.marked() } else { entry }
        });
        // Only its own list is its business.
        assert_eq!(
            Client::new().unwrap_err().raw_os_error(),
            Some(libc::EDEADLK)
        );
        list.request(Update::Append, entries, true).unwrap();
    })
    .unwrap();
    client.add_region(&*file, 0..u64::MAX).unwrap();
    let mut buffer = [0; PAGE as usize];
    for i in 0..256 {
        file.read_exact_at(&mut buffer, page(i, 256).start).unwrap();
        assert!(buffer == bytes[within(&page(i, 256))]);
    }
    {
        let seen = seen.lock().unwrap();
        assert!(seen.len() >= 16);
        assert_eq!(seen[0].mark, None);
        assert_eq!(seen[0].read, Some((file.as_raw_fd(), 0)));
        let (fd, offset) = seen.last().unwrap().mark.unwrap();
        assert_eq!((fd, offset % PAGE), (file.as_raw_fd(), 0));
    }
    // Ignored reads don't leave the list.
    client
        .request(Update::Set, [Entry::new(&*file, 0, PAGE)], true)
        .unwrap();
    let diverged = stats().diverged_reads;
    {
        let _ignoring = client.ignore().unwrap();
        file.read_exact_at(&mut buffer, 99 * PAGE).unwrap();
    }
    assert_eq!(stats().diverged_reads, diverged);
    drop(client);
}

/// A panic goes on in the read that made the call, and nothing stays behind.
#[test]
fn panics_pass_through_reads() {
    let _alone = alone();
    let (path, bytes) = data("panic", 64);
    let file = File::open(&path).unwrap();
    let client = Client::with_callback(|_, _| panic!("a callback's own")).unwrap();
    client.add_region(&file, 0..u64::MAX).unwrap();
    let mut buffer = [0; PAGE as usize];
    for _ in 0..2 {
        let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            file.read_exact_at(&mut [0; 10], 5)
        }));
        assert_eq!(read.unwrap_err().downcast_ref(), Some(&"a callback's own"));
    }
    drop(client);
    let declared = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Declared::pull_ranges(
            &file,
            (0..3).map(|_| -> Range<u64> { panic!("an iterator's own") }),
        )
    }));
    assert!(declared.is_err());
    let _declared = Declared::ranges(&file, [0..PAGE]).unwrap();
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == bytes[..PAGE as usize]);
}

/// Errors are those of the C interface, and a descriptor's number says nothing about its file.
#[test]
fn misuse_and_reused_numbers() {
    let _alone = alone();
    let (path, _) = data("misuse", 64);
    let errno = |e: std::io::Error| e.raw_os_error().unwrap();
    let file = File::open(&path).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    assert_eq!(
        errno(Declared::ranges(&reader, [0..1]).unwrap_err()),
        libc::ESPIPE
    );
    assert_eq!(
        errno(Declared::ranges(&writer, [0..1]).unwrap_err()),
        libc::EBADF
    );
    let client = Client::new().unwrap();
    client.add_region(&file, 0..8192).unwrap();
    assert_eq!(
        errno(client.add_region(&file, 4096..9000).unwrap_err()),
        libc::EEXIST
    );
    assert_eq!(
        errno(client.add_region(&file, 9..9).unwrap_err()),
        libc::EINVAL
    );
    assert_eq!(
        errno(client.remove_region(&file, 1).unwrap_err()),
        libc::ENOENT
    );
    assert_eq!(
        errno(Declared::ranges(&file, [0..1]).unwrap_err()),
        libc::EBUSY
    );
    // Hostile entries are taken and left out.
    let hostile = [(u64::MAX, 1), (1 << 63, 1 << 63), (0, u64::MAX), (8191, 0)];
    let entries = hostile.map(|(offset, length)| Entry::new(&file, offset, length));
    assert_eq!(client.request(Update::Set, entries, true).unwrap(), 4);
    drop(client);

    // A plain file that is closed unseen, and another one under its number.
    let plain = fs::File::open(&path).unwrap();
    let number = plain.as_raw_fd();
    let client = Client::new().unwrap();
    client.add_region(&plain, 0..u64::MAX).unwrap();
    drop(plain);
    let (other, bytes) = data("misuse-other", 32);
    let opened = fs::File::open(&other).unwrap();
    // SAFETY: nothing else has the number; `file` owns it from here on.
    let file = unsafe {
        if opened.as_raw_fd() != number {
            assert_eq!(libc::dup2(opened.as_raw_fd(), number), number);
        } else {
            std::mem::forget(opened);
        }
        File::from(fs::File::from_raw_fd(number))
    };
    client.add_region(&file, 0..u64::MAX).unwrap();
    let mut buffer = vec![0; bytes.len()];
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == bytes);
}
