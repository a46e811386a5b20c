//! What a training loop does: reads samples in a new random order in every epoch. The same as `examples/loader.c`, with the same
//! checksums.
//!
//! ```text
//! loader [--plain] [--seed N] [--epochs N] DIRECTORY              each regular file in it is a sample
//! loader [--plain] [--seed N] [--epochs N] --record BYTES FILE    each record of the file is one
//! ```
//!
//! The order is known before the first read, so it is declared (not with `--plain`). Records of one file are drawn from an
//! iterator as far ahead as is useful. Files have to be open to be declared, so a client is given those that are opened, [`AHEAD`]
//! before their turn.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

use outrider::{Client, Declared, Entry, File, Update};

/// Files that are open before their turn.
const AHEAD: usize = 256;

/// splitmix64.
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            order.swap(i, (self.draw() % (i as u64 + 1)) as usize);
        }
        order
    }
}

/// Stands for the training step: every byte counts, and so does the order (FNV-1a).
struct Model(u64);

impl Model {
    fn train(&mut self, sample: &[u8]) {
        for byte in sample {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211);
        }
    }
}

struct Options {
    plain: bool,
    seed: u64,
    epochs: usize,
    record: Option<u64>,
    path: String,
}

fn records(options: &Options, record: u64) -> io::Result<String> {
    let file = File::open(&options.path)?;
    let count = (file.metadata()?.len() / record) as usize;
    let (mut random, mut model) = (Random(options.seed), Model(14_695_981_039_346_656_037));
    let mut sample = vec![0; record as usize];
    for _ in 0..options.epochs {
        let order = random.shuffled(count);
        // If it fails the samples still come, at the disk's pace.
        let _declared = (!options.plain).then(|| {
            let ahead = order.clone().into_iter().map(move |i| i as u64 * record);
            Declared::pull_ranges(&file, ahead.map(move |at| at..at + record))
        });
        for i in order {
            file.read_exact_at(&mut sample, i as u64 * record)?;
            model.train(&sample);
        }
    }
    Ok(format!("{count} records, checksum {:016x}", model.0))
}

fn files(options: &Options) -> io::Result<String> {
    let mut paths = Vec::new();
    for entry in Path::new(&options.path).read_dir()? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let client = if options.plain {
        None
    } else {
        Client::new().ok()
    };
    let (mut random, mut model) = (Random(options.seed), Model(14_695_981_039_346_656_037));
    let ahead = if options.plain { 1 } else { AHEAD };
    let mut sample = Vec::new();
    for _ in 0..options.epochs {
        let mut upcoming = random.shuffled(paths.len()).into_iter();
        let mut open = VecDeque::new();
        loop {
            while open.len() < ahead
                && let Some(i) = upcoming.next()
            {
                let file = File::open(&paths[i])?;
                if let Some(client) = &client
                    && client.add_region(&file, 0..u64::MAX).is_ok()
                {
                    let entry = Entry::new(&file, 0, file.metadata()?.len());
                    let _ = client.request(Update::Append, [entry], true);
                }
                open.push_back(file);
            }
            let Some(mut file) = open.pop_front() else {
                break;
            };
            sample.clear();
            file.read_to_end(&mut sample)?;
            model.train(&sample);
        }
    }
    Ok(format!("{} files, checksum {:016x}", paths.len(), model.0))
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        plain: false,
        seed: 0,
        epochs: 1,
        record: None,
        path: String::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = |what: &str, least: u64| {
            let given = arguments.next().unwrap_or_default();
            let number = given.parse().ok().filter(|n| *n >= least);
            number.ok_or(format!(
                "{argument} takes {what} from {least}, not {given:?}"
            ))
        };
        match argument.as_str() {
            "--plain" => options.plain = true,
            "--seed" => options.seed = number("a number", 0)?,
            "--epochs" => options.epochs = number("a number", 1)? as usize,
            "--record" => options.record = Some(number("bytes", 1)?),
            path if options.path.is_empty() && !path.starts_with('-') => options.path = path.into(),
            other => return Err(format!("{other:?} is not understood")),
        }
    }
    if options.path.is_empty() {
        return Err("DIRECTORY or FILE is missing".into());
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(wrong) => {
            eprintln!("loader: {wrong}");
            eprintln!(
                "usage: loader [--plain] [--seed N] [--epochs N] [--record BYTES] FILE-OR-DIRECTORY"
            );
            return ExitCode::from(2);
        }
    };
    let result = match options.record {
        Some(record) => records(&options, record),
        None => files(&options),
    };
    match result {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("loader: {}: {error}", options.path);
            ExitCode::FAILURE
        }
    }
}
