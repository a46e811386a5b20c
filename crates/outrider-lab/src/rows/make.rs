//! What data sets are made with: noise, lines of text, trees of files.
//!
//! Files are written by one thread in a fixed order, so that they lie on a fresh disk as they did the last time.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Maker;
use crate::output::{Context, Failure, Outcome};
use crate::size;
use outrider_sim::random::Random;

/// Bytes of a write.
const PIECE: usize = 4 << 20;

impl Maker<'_> {
    /// The `n`th of the words, which colons separate.
    pub fn word(&self, n: usize) -> Outcome<&str> {
        self.words
            .split(':')
            .nth(n)
            .filter(|w| !w.is_empty())
            .ok_or_else(|| {
                Failure::usage(format!(
                    "the data set's key has no word {n} in '{}'",
                    self.words
                ))
            })
    }

    /// The `n`th word as a count.
    pub fn count(&self, n: usize) -> Outcome<u64> {
        let word = self.word(n)?;
        word.parse()
            .map_err(|_| Failure::usage(format!("'{word}' is not a count")))
    }

    /// The `n`th word as a size in bytes.
    pub fn size(&self, n: usize) -> Outcome<u64> {
        size::parse(self.word(n)?).map_err(Failure::usage)
    }

    /// `name` in the data set's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs `outrider-work` with these arguments.
    pub fn work(&self, args: &[&std::ffi::OsStr]) -> Outcome {
        run(Command::new(self.tools.bin.join("outrider-work")).args(args))
    }
}

/// Runs a command that must succeed; what it says is kept for the complaint.
pub fn run(command: &mut Command) -> Outcome {
    fed(command, |_| Ok(()))
}

/// The same, with `input` written to its standard input.
pub fn fed(
    command: &mut Command,
    input: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Outcome {
    let name = command.get_program().to_string_lossy().into_owned();
    let said = tempfile(&name)?;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(said.try_clone().doing(&name)?)
        .spawn()
        .doing(&name)?;
    let mut pipe =
        std::io::BufWriter::with_capacity(1 << 20, child.stdin.take().expect("it is piped"));
    let written = input(&mut pipe).and_then(|()| pipe.flush());
    drop(pipe);
    let status = child.wait().doing(&name)?;
    if !status.success() {
        let mut text = vec![0; 400];
        let n = said.read_at(&mut text, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..n]).trim().to_owned();
        return Err(Failure::system(format!("{name}: {status}: {text}")));
    }
    written.doing(name)
}

/// A file without a name, in memory.
fn tempfile(what: &str) -> Outcome<File> {
    rustix::fs::memfd_create(c"said", rustix::fs::MemfdFlags::CLOEXEC)
        .map(File::from)
        .doing(what)
}

/// Writes `bytes` bytes of noise to a new file.
pub fn noise(path: &Path, bytes: u64, seed: u64) -> Outcome {
    written(path, bytes, &mut Noise(Random::new(seed)))
}

/// What fills files.
pub trait Source {
    /// Adds about `room` bytes to `piece`, but no more; nothing: that is all that fits.
    fn add(&mut self, piece: &mut Vec<u8>, room: usize);
}

struct Noise(Random);

impl Source for Noise {
    fn add(&mut self, piece: &mut Vec<u8>, room: usize) {
        let from = piece.len();
        piece.resize(from + room, 0);
        self.0.fill(&mut piece[from..]);
    }
}

/// Lines of 40 to 100 letters, digits and blanks in random words: six bits of every byte are noise.
pub struct Text(Random);

impl Text {
    /// The lines that belong to `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// The lines that these numbers give.
    pub fn from(random: Random) -> Self {
        Self(random)
    }

    /// Adds a line.
    pub fn line(&mut self, to: &mut Vec<u8>) {
        const LETTERS: &[u8; 64] =
            b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789  ";
        let length = self.0.within(40, 100);
        let (mut bits, mut left) = (0, 0);
        for _ in 0..length {
            if left == 0 {
                (bits, left) = (self.0.draw(), 10);
            }
            to.push(LETTERS[(bits & 63) as usize]);
            bits >>= 6;
            left -= 1;
        }
        to.push(b'\n');
    }
}

impl Source for Text {
    fn add(&mut self, piece: &mut Vec<u8>, room: usize) {
        let end = piece.len() + room;
        loop {
            let from = piece.len();
            self.line(piece);
            if piece.len() > end {
                piece.truncate(from);
                return;
            }
        }
    }
}

fn written(path: &Path, bytes: u64, source: &mut dyn Source) -> Outcome {
    let file = File::create(path).doing(path.display())?;
    let mut piece = Vec::with_capacity(PIECE);
    let mut at = 0;
    while at < bytes {
        piece.clear();
        source.add(&mut piece, (bytes - at).min(PIECE as u64) as usize);
        if piece.is_empty() {
            break;
        }
        file.write_all_at(&piece, at).doing(path.display())?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// A tree of small files.
pub struct Tree {
    /// Files.
    pub files: u64,
    /// About how many files there are in a directory.
    pub in_directory: u64,
    /// Bytes of a file: even between these.
    pub sizes: (u64, u64),
    /// Of names, sizes, contents and the order in which they are made.
    pub seed: u64,
}

impl Tree {
    /// Names of the files relative to the tree, two directories deep, in their own order.
    pub fn names(&self, suffix: &str) -> Vec<String> {
        let directories = self.files.div_ceil(self.in_directory);
        (0..self.files)
            .map(|n| {
                let d = n % directories;
                format!("{:02}/{:03}/f{n:06}{suffix}", d % 20, d / 20)
            })
            .collect()
    }

    /// Makes the directories, then the files in random order, so that neither inodes nor data lie as names do. `fill`
    /// writes a file's bytes (cleared before) given its number and size.
    pub fn make(
        &self,
        dir: &Path,
        suffix: &str,
        mut fill: impl FnMut(u64, usize, &mut Vec<u8>),
    ) -> Outcome {
        let names = self.names(suffix);
        for name in &names {
            let parent = dir
                .join(name)
                .parent()
                .expect("two directories deep")
                .to_owned();
            fs::create_dir_all(&parent).doing(parent.display())?;
        }
        let mut order: Vec<u64> = (0..self.files).collect();
        Random::part(self.seed, 0).shuffle(&mut order);
        let mut bytes = Vec::new();
        for n in order {
            let size = Random::part(self.seed, n + 1).within(self.sizes.0, self.sizes.1);
            bytes.clear();
            fill(n, size as usize, &mut bytes);
            let path = dir.join(&names[n as usize]);
            fs::write(&path, &bytes).doing(path.display())?;
        }
        Ok(())
    }

    /// A file's seed for its contents.
    pub fn content(&self, n: u64) -> Random {
        let mut random = Random::part(self.seed, n + 1);
        random.draw();
        random
    }

    /// Makes it of noise.
    pub fn noise(&self, dir: &Path) -> Outcome {
        self.make(dir, ".dat", |n, size, bytes| {
            bytes.resize(size, 0);
            self.content(n).fill(bytes);
        })
    }

    /// Makes it of text.
    pub fn text(&self, dir: &Path) -> Outcome {
        self.make(dir, ".txt", |n, size, bytes| {
            Text::from(self.content(n)).add(bytes, size);
        })
    }
}

/// Sets the times of last access and modification of a file: 2001-09-09 01:46:40 UTC.
pub fn old(path: &Path) -> Outcome {
    let name = CString::new(path.as_os_str().as_bytes()).doing(path.display())?;
    let time = libc::timespec {
        tv_sec: 1_000_000_000,
        tv_nsec: 0,
    };
    let times = [time, time];
    // SAFETY: `name` and `times` live through the call.
    if unsafe { libc::utimensat(libc::AT_FDCWD, name.as_ptr(), times.as_ptr(), 0) } != 0 {
        return Err(std::io::Error::last_os_error()).doing(path.display());
    }
    Ok(())
}

/// Makes a file of noise that lies in pieces of 12 to 16 KiB. Where the file system tells, pieces of more than `at_most`
/// bytes on average are an error.
pub fn fragmented(path: &Path, bytes: u64, seed: u64, at_most: u64) -> Outcome {
    // Allocators that see through three fillers hardly do through more.
    for fillers in [3, 6, 12] {
        let file = interleaved(path, bytes, seed, fillers)?;
        let Some(pieces) = pieces(&file) else {
            return Ok(());
        };
        if bytes / pieces.max(1) <= at_most {
            return Ok(());
        }
        if fillers == 12 {
            return Err(Failure::system(format!(
                "{}: lies in {pieces} pieces, of {} on average; wanted are pieces of at most {}",
                path.display(),
                size::show(bytes / pieces.max(1)),
                size::show(at_most)
            )));
        }
    }
    Ok(())
}

/// Makes a file of noise whose pieces were allocated in turns with those of so many fillers, which are removed.
///
/// One filler is not always enough: it may find a place of its own, and then the file lies in one piece.
fn interleaved(path: &Path, bytes: u64, seed: u64, fillers: usize) -> Outcome<File> {
    let names: Vec<PathBuf> = (0..fillers)
        .map(|n| path.with_extension(format!("filler{n}")))
        .collect();
    let mut files = Vec::new();
    for name in std::iter::once(path).chain(names.iter().map(PathBuf::as_path)) {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(name)
            .doing(name.display())?;
        files.push(file);
    }
    let mut random = Random::part(seed, 1);
    let mut at = 0;
    while at < bytes {
        let length = (random.within(3, 4) * 4096).min(bytes - at);
        for file in &files {
            allocate(file, at, length).doing(path.display())?;
        }
        at += length;
    }
    let file = files.swap_remove(0);
    drop(files);
    let mut noise = Noise(Random::new(seed));
    let mut piece = Vec::with_capacity(PIECE);
    let mut at = 0;
    while at < bytes {
        piece.clear();
        noise.add(&mut piece, (bytes - at).min(PIECE as u64) as usize);
        file.write_all_at(&piece, at).doing(path.display())?;
        at += piece.len() as u64;
    }
    file.sync_all().doing(path.display())?;
    for name in &names {
        fs::remove_file(name).doing(name.display())?;
    }
    Ok(file)
}

/// Allocates; a file system that can't is written to, and flushed, instead.
fn allocate(file: &File, offset: u64, length: u64) -> std::io::Result<()> {
    // SAFETY: the descriptor is open; no memory is involved.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as i64, length as i64) } == 0 {
        return Ok(());
    }
    file.write_all_at(&vec![1; length as usize], offset)?;
    file.sync_data()
}

/// In how many pieces a file lies on the disk: neighbouring extents count as one. None if the file system doesn't tell.
pub fn pieces(file: &File) -> Option<u64> {
    let map = outrider_sys::extent::extents(file.as_fd(), 0..u64::MAX, usize::MAX)?;
    let mut pieces = 0;
    let mut expected = None;
    for extent in map.extents {
        if expected != Some(extent.physical) {
            pieces += 1;
        }
        expected = Some(extent.physical + extent.len);
    }
    Some(pieces)
}
