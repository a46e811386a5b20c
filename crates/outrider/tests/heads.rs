//! SPEC CP9, CP6: what is fetched of a file before it is known how far it will be read is what readers of its kind have read. By an emulated disk's own record.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;
use support::{Disk, Random, eventually, fresh, outrider_run};

const FILES: usize = 96;
const SIZE: u64 = 2 << 20;
/// `window.optimistic_open`.
const AT_OPEN: u64 = 2 << 20;

/// Reads 4 KiB at the beginning of each file, and with `end` as much at its end; `keep` keeps them all open. With `whole` it reads every second file to its end.
const READER: &str = "
import os, sys
how = sys.argv[2:]
total = 0
for k, name in enumerate(sorted(os.listdir(sys.argv[1]))):
    fd = os.open(os.path.join(sys.argv[1], name), os.O_RDONLY)
    total += sum(os.read(fd, 4096))
    if 'end' in how:
        total += sum(os.pread(fd, 4096, os.fstat(fd).st_size - 4096))
    if 'whole' in how and name.endswith('.dat'):
        while True:
            got = os.read(fd, 65536)
            if not got: break
            total += sum(got[:4096])
    if 'keep' not in how: os.close(fd)
print(total)
";

struct Heads {
    dir: std::path::PathBuf,
    disk: Disk,
}

impl Heads {
    fn new(name: &str) -> Option<Heads> {
        let dir = fresh(name);
        let disk = Disk::of(name, &dir)?;
        fs::write(dir.join("reader.py"), READER).unwrap();
        fs::create_dir(disk.dir.join("files")).unwrap();
        let bytes = Random(5).bytes(SIZE as usize);
        for i in 0..FILES {
            let kind = ["bin", "dat"][i % 2];
            let file = File::create(disk.dir.join(format!("files/{i:03}.{kind}"))).unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            file.write_all_at(&(i as u64).to_ne_bytes(), 0).unwrap();
        }
        disk.does("model", &["remote"]);
        Some(Heads { dir, disk })
    }

    fn argv<'a>(&self, files: &'a Path, how: &[&'a str]) -> Vec<&'a str> {
        let mut argv = vec!["python3", "reader.py", files.to_str().unwrap()];
        argv.extend(how);
        argv
    }

    /// What the disk has read for a command, bytes, and what the command printed.
    fn read(&self, mut command: std::process::Command) -> (u64, Vec<u8>) {
        support::make_cold(&self.disk.dir);
        self.disk.does("cold", &[]);
        let trace = self.dir.join("trace");
        self.disk.does("trace", &["start", trace.to_str().unwrap()]);
        let output = command.output().unwrap();
        self.disk.does("trace", &["stop"]);
        assert!(output.status.success(), "{output:?}");
        let bytes = fs::read_to_string(&trace)
            .unwrap()
            .lines()
            .filter_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let [_, _, "R", _, length] = words[..] else {
                    return None;
                };
                length.parse::<u64>().ok()
            })
            .sum();
        (bytes, output.stdout)
    }

    /// Bytes read from the disk without us and with us, and our report's figures.
    fn compare(&self, how: &[&str]) -> (u64, u64, Value) {
        let files = self.disk.dir.join("files");
        let argv = self.argv(&files, how);
        let mut plain = std::process::Command::new(argv[0]);
        support::plain_environment(&mut plain, &self.dir);
        plain.args(&argv[1..]).current_dir(&self.dir);
        let (stock, expected) = self.read(plain);
        let report = format!("--report={}", self.dir.join("report").display());
        let (ours, got) = self.read(outrider_run(&self.dir, &[&report], &argv));
        assert_eq!(got, expected, "{how:?}");
        let report = fs::read(self.dir.join("report")).unwrap();
        let report: Value = serde_json::from_slice(&report).unwrap();
        (stock, ours, report["totals"].clone())
    }
}

/// Who reads headers has hardly more fetched than the kernel fetches by itself: two files' worth, from which it is learned.
#[test]
fn headers_are_all_that_is_fetched_of_files_of_which_no_more_is_read() {
    let Some(heads) = Heads::new("headers_are_all_that_is_fetched") else {
        return;
    };
    for how in [&[][..], &["end"], &["keep"]] {
        let (stock, ours, totals) = heads.compare(how);
        assert!(
            ours <= stock + 2 * AT_OPEN + (1 << 20),
            "{how:?}: {ours} bytes, {stock} without us: {totals}"
        );
    }
}

/// Between headers of one kind of file those of another kind are still fetched, since they are read to their ends.
#[test]
fn files_that_are_read_whole_are_fetched_beside_headers() {
    let Some(heads) = Heads::new("whole_beside_headers") else {
        return;
    };
    eventually(|| {
        let (stock, ours, totals) = heads.compare(&["whole"]);
        let fetched = totals["prefetched_bytes"].as_u64().unwrap();
        let whole = FILES as u64 / 2 * SIZE;
        // The beginning of each is read before anything is foreseen, and the kernel's own readahead has its part.
        match ours <= stock + 3 * AT_OPEN && fetched >= whole / 2 {
            true => Ok(()),
            false => Err(format!(
                "{ours} bytes, {stock} without us, {fetched} of {whole} fetched: {totals}"
            )),
        }
    });
}
