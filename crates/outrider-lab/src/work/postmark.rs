//! Many short-lived small files, as a mail server has them: PostMark (Katcher, 1997).
//!
//! A pool of files is made; then each transaction reads or appends to a file, and makes or deletes one; at the end all are
//! deleted.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use xxhash_rust::xxh3::Xxh3;

use crate::figures::Figures;
use crate::{Result, Wrong, size};
use outrider_sim::random::Random;

/// `outrider-work postmark`.
///
/// Makes, reads, appends to and deletes small files.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory; made, and removed at the end.
    dir: PathBuf,
    /// Files at the beginning.
    #[arg(long, default_value_t = 500)]
    files: u64,
    /// Transactions.
    #[arg(long, default_value_t = 500)]
    transactions: u64,
    /// Bytes of the smallest file.
    #[arg(long, value_parser = size::parse, default_value = "500")]
    min: u64,
    /// Bytes of the largest file, before anything is appended.
    #[arg(long, value_parser = size::parse, default_value = "10000")]
    max: u64,
    /// Directories below.
    #[arg(long, default_value_t = 10)]
    directories: u64,
    /// How many of a hundred transactions append, and don't read.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=100))]
    appends: u64,
    /// Of everything.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

struct Pool<'a> {
    args: &'a Args,
    random: Random,
    /// Numbers of the files that are there.
    files: Vec<u64>,
    made: u64,
    noise: Vec<u8>,
}

/// Runs it.
pub fn run(args: &Args) -> Result {
    if args.min == 0 || args.min > args.max || args.max > 1 << 30 || args.directories == 0 {
        return Err(Wrong::usage(
            "--min must be at least 1 and at most --max, --max at most 1G, --directories at least 1",
        ));
    }
    fs::create_dir(&args.dir).map_err(|e| Wrong::system(args.dir.display(), e))?;
    for n in 0..args.directories {
        let dir = args.dir.join(format!("s{n}"));
        fs::create_dir(&dir).map_err(|e| Wrong::system(dir.display(), e))?;
    }
    let mut pool = Pool {
        args,
        random: Random::new(args.seed),
        files: Vec::new(),
        made: 0,
        noise: vec![0; args.max as usize],
    };
    let begun = Instant::now();
    for _ in 0..args.files {
        pool.make()?;
    }
    let mut figures = Figures::with_room(args.transactions as usize);
    let mut digest = Xxh3::new();
    let (mut read, mut appended, mut deleted) = (0, 0, 0);
    for _ in 0..args.transactions {
        if !pool.files.is_empty() {
            let file = pool.files[pool.random.below(pool.files.len() as u64) as usize];
            let path = pool.path(file);
            if pool.random.below(100) < args.appends {
                pool.append(&path)?;
                appended += 1;
            } else {
                let since = Instant::now();
                let bytes = fs::read(&path).map_err(|e| Wrong::system(path.display(), e))?;
                figures.done(since, bytes.len() as u64);
                digest.update(&bytes);
                read += 1;
            }
        }
        if pool.random.below(2) == 0 || pool.files.is_empty() {
            pool.make()?;
        } else {
            let place = pool.random.below(pool.files.len() as u64) as usize;
            let file = pool.files.swap_remove(place);
            pool.remove(file)?;
            deleted += 1;
        }
    }
    for file in std::mem::take(&mut pool.files) {
        pool.remove(file)?;
        deleted += 1;
    }
    fs::remove_dir_all(&args.dir).map_err(|e| Wrong::system(args.dir.display(), e))?;
    println!(
        "{} made, {read} read, {appended} appended to, {deleted} deleted {:016x}",
        pool.made,
        digest.digest()
    );
    figures.tell(begun.elapsed(), &[]);
    Ok(())
}

impl Pool<'_> {
    fn path(&self, file: u64) -> PathBuf {
        let dir = format!("s{}", file % self.args.directories);
        self.args.dir.join(dir).join(file.to_string())
    }

    fn make(&mut self) -> Result {
        let file = self.made;
        self.made += 1;
        let path = self.path(file);
        let length = self.random.within(self.args.min, self.args.max) as usize;
        let mut random = Random::part(self.args.seed, file);
        random.fill(&mut self.noise[..length]);
        fs::write(&path, &self.noise[..length]).map_err(|e| Wrong::system(path.display(), e))?;
        self.files.push(file);
        Ok(())
    }

    fn append(&mut self, path: &Path) -> Result {
        let length = self.random.within(1, self.args.max) as usize;
        self.random.fill(&mut self.noise[..length]);
        OpenOptions::new()
            .append(true)
            .open(path)
            .and_then(|mut file| file.write_all(&self.noise[..length]))
            .map_err(|e| Wrong::system(path.display(), e))
    }

    fn remove(&self, file: u64) -> Result {
        let path = self.path(file);
        fs::remove_file(&path).map_err(|e| Wrong::system(path.display(), e))
    }
}
