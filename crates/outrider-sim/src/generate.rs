//! Programs that are made from a few words: `seq?size=512M&block=16K`.

use outrider_sys::units::PAGE;

use crate::device::Nanos;
use crate::phases::Phases;
use crate::random::{Random, Zipf};
use crate::trace::{Op, Trace};

/// What a program is made from. Sizes are bytes.
#[derive(Clone, Debug)]
struct Words {
    /// Of each file.
    size: u64,
    /// Of a read.
    block: u64,
    /// From one block to the next, or of a neighbourhood.
    stride: u64,
    threads: u64,
    files: u64,
    /// Reads of each thread; 0: as many as there are blocks.
    ops: u64,
    /// ns after each read.
    think: Nanos,
    seed: u64,
}

/// The names, and what they read.
pub const NAMES: &[(&str, &str)] = &[
    ("seq", "from the begin to the end"),
    ("cat", "the same, advised to be in order"),
    ("stride", "a block each `stride` bytes"),
    ("skip", "onward, one block in `stride` bytes on average"),
    (
        "near",
        "eight random blocks in each neighbourhood of `stride` bytes, these in random order",
    ),
    ("reverse", "from the end to the begin"),
    ("perm", "each block once, in random order"),
    ("random", "`ops` blocks at random"),
    ("zipf", "`ops` blocks, some of them often"),
    (
        "streams",
        "`threads` streams in equal parts of one file, in turns, by one thread",
    ),
    (
        "parts",
        "`threads` threads, each a part of one file in order",
    ),
    (
        "files",
        "`files` files, one after the other from begin to end",
    ),
    ("heads", "the first block of each of `files` files"),
    ("mmap", "a map, touched in order"),
    ("mmap-stride", "a map, touched each `stride` bytes"),
    (
        "mmap-runs",
        "a map, touched page by page in blocks in random order, `ops` of them",
    ),
    ("tail", "the last block, then the first half"),
    (PHASES, "one way after another, with words of its own"),
];

/// The programs of [`Phases`].
const PHASES: &str = "phases";

impl Words {
    fn read(words: &str) -> Result<Words, String> {
        let mut all = Words {
            size: 64 << 20,
            block: 16 << 10,
            stride: 64 << 10,
            threads: 1,
            files: 100,
            ops: 0,
            think: 0,
            seed: 1,
        };
        for word in words.split('&').filter(|w| !w.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let (to, least, most) = match key {
                "size" => (&mut all.size, 1, 1 << 40),
                "block" => (&mut all.block, 1, 1 << 30),
                "stride" => (&mut all.stride, 1, 1 << 40),
                "threads" => (&mut all.threads, 1, 1000),
                "files" => (&mut all.files, 1, 1 << 20),
                "ops" => (&mut all.ops, 0, 1 << 30),
                "think" => (&mut all.think, 0, 1 << 40),
                "seed" => (&mut all.seed, 0, u64::MAX),
                _ => {
                    return Err(format!(
                        "`{key}`; accepted are size, block, stride, threads, files, ops, think (ns) and seed"
                    ));
                }
            };
            let number = outrider_cli::size::parse(value).ok();
            *to = number
                .filter(|n| (least..=most).contains(n))
                .ok_or_else(|| {
                    format!("{key}={value}; accepted is a whole number from {least} to {most}")
                })?;
        }
        Ok(all)
    }

    fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block)
    }

    /// A thread that reads these blocks of the file under number 3.
    fn reads(&self, blocks: impl IntoIterator<Item = u64>) -> Vec<Op> {
        let most = match self.ops {
            0 => usize::MAX,
            ops => ops as usize,
        };
        let read = |block| Op::Read {
            fd: 3,
            offset: block * self.block,
            len: self.block,
        };
        self.thoughtful(blocks.into_iter().take(most).map(read))
    }

    /// The same of touches of these bytes of the file as it is mapped.
    fn touches(&self, places: impl Iterator<Item = u64>) -> Vec<Op> {
        self.thoughtful(places.map(|offset| Op::Touch { fd: 3, offset }))
    }

    fn thoughtful(&self, ops: impl Iterator<Item = Op>) -> Vec<Op> {
        let think = (self.think > 0).then_some(Op::Think(self.think));
        ops.flat_map(|op| [op].into_iter().chain(think)).collect()
    }

    /// Blocks in which neighbourhoods are read.
    fn neighbourhoods(&self) -> Vec<u64> {
        let mut random = Random::new(self.seed);
        let each = (self.stride / self.block).max(4);
        let mut blocks = Vec::new();
        for place in random.permutation(self.blocks() / each) {
            let order = random.permutation(each).into_iter().take(each as usize / 4);
            blocks.extend(order.map(|k| place * each + k));
        }
        blocks
    }

    /// Blocks onward, most of them skipped.
    fn skips(&self) -> Vec<u64> {
        let mut random = Random::new(self.seed);
        let rare = (self.stride / self.block).max(1);
        (0..self.blocks())
            .filter(|_| random.below(rare) == 0)
            .collect()
    }

    /// `threads` parts of the file, each in blocks.
    fn parts(&self) -> Vec<std::ops::Range<u64>> {
        let each = (self.blocks() / self.threads).max(1);
        (0..self.threads.min(self.blocks()))
            .map(|t| t * each..(t + 1) * each)
            .collect()
    }

    /// Each file is opened, read as far as this many bytes, and closed.
    fn one_by_one(&self, bytes: u64) -> Vec<Op> {
        let of_file = |file| {
            let blocks = 0..bytes.min(self.size).div_ceil(self.block);
            let ends = [Op::Open { fd: 3, file }, Op::Close { fd: 3 }];
            let reads = self.reads(blocks);
            [ends[0]].into_iter().chain(reads).chain([ends[1]])
        };
        (0..self.files as usize).flat_map(of_file).collect()
    }
}

/// The program of this name with these words: `NAME?key=value&…`. The error says what is wrong and what is accepted.
pub fn generate(spec: &str) -> Result<Trace, String> {
    let (name, words) = spec.split_once('?').unwrap_or((spec, ""));
    if name == PHASES {
        return Ok(Phases::read(words)?.trace());
    }
    let w = Words::read(words)?;
    let n = w.blocks();
    let mut random = Random::new(w.seed);
    let ops = match w.ops {
        0 => n,
        ops => ops,
    };
    let all = match name {
        "seq" => w.reads(0..n),
        "cat" => {
            let advice = Op::Advise {
                fd: 3,
                sequential: true,
            };
            [advice].into_iter().chain(w.reads(0..n)).collect()
        }
        "stride" => w.reads(
            (0..w.size)
                .step_by(w.stride as usize)
                .map(|at| at / w.block),
        ),
        "skip" => w.reads(w.skips()),
        "near" => w.reads(w.neighbourhoods()),
        "reverse" => w.reads((0..n).rev()),
        "perm" => w.reads(random.permutation(n)),
        "random" => w.reads((0..ops).map(|_| random.below(n)).collect::<Vec<_>>()),
        "zipf" => {
            let zipf = Zipf::new(n, 0.99);
            let scattered = random.permutation(n);
            w.reads(
                (0..ops)
                    .map(|_| scattered[zipf.pick(&mut random) as usize])
                    .collect::<Vec<_>>(),
            )
        }
        "streams" => {
            let parts = w.parts();
            let each = parts.first().map_or(0, |p| p.end - p.start);
            w.reads((0..each).flat_map(|k| parts.iter().map(move |p| p.start + k)))
        }
        "mmap" => w.touches((0..w.size).step_by(PAGE as usize)),
        "mmap-stride" => w.touches((0..w.size).step_by(w.stride as usize)),
        "mmap-runs" => {
            let blocks = random.permutation(n).into_iter().take(ops as usize);
            w.touches(blocks.flat_map(|block| {
                let from = block * w.block;
                (from..(from + w.block).min(w.size)).step_by(PAGE as usize)
            }))
        }
        "tail" => w.reads([n - 1].into_iter().chain(0..n / 2)),
        "parts" => {
            let mut threads: Vec<Vec<Op>> =
                w.parts().into_iter().map(|part| w.reads(part)).collect();
            threads[0].insert(0, Op::Open { fd: 3, file: 0 });
            // The others wait until it is open.
            threads[1..]
                .iter_mut()
                .for_each(|ops| ops.insert(0, Op::Think(10_000)));
            return Ok(Trace {
                files: vec![w.size],
                threads,
            });
        }
        "files" | "heads" => {
            let bytes = if name == "files" { w.size } else { w.block };
            return Ok(Trace {
                files: vec![w.size; w.files as usize],
                threads: vec![w.one_by_one(bytes)],
            });
        }
        _ => {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            return Err(format!(
                "no program `{name}`; accepted are {}",
                names.join(", ")
            ));
        }
    };
    let open = Op::Open { fd: 3, file: 0 };
    Ok(Trace {
        files: vec![w.size],
        threads: vec![[open].into_iter().chain(all).collect()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(spec: &str) -> Vec<u64> {
        let trace = generate(spec).unwrap();
        let read = |op: &Op| match op {
            Op::Read { offset, .. } | Op::Touch { offset, .. } => Some(*offset >> 10),
            _ => None,
        };
        trace.threads.iter().flatten().filter_map(read).collect()
    }

    #[test]
    fn programs_read_what_their_names_say() {
        assert_eq!(offsets("seq?size=64K"), [0, 16, 32, 48]);
        assert_eq!(offsets("reverse?size=64K"), [48, 32, 16, 0]);
        assert_eq!(offsets("stride?size=200K"), [0, 64, 128, 192]);
        assert_eq!(offsets("streams?size=64K&threads=2"), [0, 32, 16, 48]);
        assert_eq!(offsets("parts?size=64K&threads=2"), [0, 16, 32, 48]);
        assert_eq!(offsets("tail?size=128K"), [112, 0, 16, 32, 48]);
        assert_eq!(offsets("mmap?size=16K"), [0, 4, 8, 12]);
        assert_eq!(offsets("heads?size=1M&files=3"), [0, 0, 0]);
        let mut all = offsets("perm?size=1M");
        assert_ne!(all, offsets("perm?size=1M&seed=2"));
        all.sort_unstable();
        assert_eq!(all, offsets("seq?size=1M"));
        assert_eq!(offsets("zipf?ops=77").len(), 77);
        let near = offsets("near?size=1M&block=4K&stride=128K");
        assert_eq!(near.len(), 64);
        assert!(
            near.chunks(8)
                .all(|c| c.iter().all(|at| at / 128 == c[0] / 128))
        );
    }

    #[test]
    fn what_is_wrong_is_told() {
        let cases = [
            (
                "sequential",
                "no program `sequential`; accepted are seq, cat, stride,",
            ),
            ("seq?sise=4", "`sise`; accepted are size, block,"),
            (
                "seq?size=much",
                "size=much; accepted is a whole number from 1 to",
            ),
            (
                "parts?threads=0",
                "threads=0; accepted is a whole number from 1 to 1000",
            ),
        ];
        for (spec, why) in cases {
            let told = generate(spec).unwrap_err();
            assert!(told.starts_with(why), "{spec}: {told}");
        }
        for (name, _) in NAMES.iter().filter(|n| n.0 != PHASES) {
            assert!(generate(name).is_ok(), "{name}");
        }
    }
}
