//! Programs that change their minds: a few phases, each of which reads in its own way.
//!
//! Such a program is drawn from a seed, or changed a little from another, and is always told by a line of text that makes it again:
//! `gen:phases?seed=7&file=64M&file=1G&phase=0,1,skip,16K,300,5000,256K,120`. So a search for bad cases can go over millions, and its findings can be kept.

use outrider_sys::units::PAGE;

use crate::device::Nanos;
use crate::random::{Random, Zipf};
use crate::trace::{Op, Trace};

/// How a phase reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In order.
    Seq,
    /// From the end on.
    Back,
    /// A block each `span` bytes.
    Stride,
    /// Onward, one block in `span` bytes on average.
    Skip,
    /// At random within `span` bytes.
    Random,
    /// Each block of `span` bytes at most once, at random.
    Perm,
    /// Some blocks often, within `span` bytes.
    Zipf,
    /// Four random blocks of each of random neighbourhoods of `span` bytes.
    Near,
    /// From random places on, `span` bytes in order: as columns are read.
    Hops,
}

const WAYS: [(&str, Way); 9] = [
    ("seq", Way::Seq),
    ("back", Way::Back),
    ("stride", Way::Stride),
    ("skip", Way::Skip),
    ("random", Way::Random),
    ("perm", Way::Perm),
    ("zipf", Way::Zipf),
    ("near", Way::Near),
    ("hops", Way::Hops),
];

/// Reads of one kind by one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The thread, from 0 on.
    pub thread: u64,
    /// The file, from 0 on.
    pub file: u64,
    /// How.
    pub way: Way,
    /// Bytes of a read.
    pub block: u64,
    /// Reads.
    pub ops: u64,
    /// ns after each read.
    pub think: Nanos,
    /// Bytes; what they are says the way.
    pub span: u64,
    /// Where it begins, thousandths of the file.
    pub start: u64,
}

/// A program in phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phases {
    /// Of its random numbers.
    pub seed: u64,
    /// Its files, bytes.
    pub files: Vec<u64>,
    /// What it does; those of a thread one after the other.
    pub phases: Vec<Phase>,
}

/// Bounds of what is drawn: threads, files and phases; bytes of a file, a block, a span; reads of a phase; ns between reads.
const THREADS: u64 = 4;
const FILES: u64 = 3;
const PHASES: u64 = 4;
const FILE: (u64, u64) = (1 << 20, 1 << 30);
const BLOCK: (u64, u64) = (4 << 10, 1 << 20);
const SPAN: (u64, u64) = (4 << 10, 256 << 20);
const OPS: (u64, u64) = (1, 2000);
const THINK: (u64, u64) = (1_000, 2_000_000);
/// Reads of a program together.
const MOST_BYTES: u64 = 512 << 20;

/// A number between two others, each magnitude as likely.
fn magnitude(random: &mut Random, (least, most): (u64, u64)) -> u64 {
    let exponent = random.unit() * libm::log(most as f64 / least as f64);
    ((least as f64 * libm::exp(exponent)) as u64).clamp(least, most)
}

fn pages(bytes: u64) -> u64 {
    (bytes / PAGE).max(1) * PAGE
}

impl Phase {
    fn draw(random: &mut Random) -> Phase {
        let thread = match random.below(4) {
            0 => random.below(THREADS),
            _ => 0,
        };
        Phase {
            thread,
            file: random.below(FILES),
            way: WAYS[random.below(WAYS.len() as u64) as usize].1,
            block: pages(magnitude(random, BLOCK)),
            ops: magnitude(random, OPS),
            think: match random.below(2) {
                0 => 0,
                _ => magnitude(random, THINK),
            },
            span: pages(magnitude(random, SPAN)),
            start: random.below(1000),
        }
    }

    /// One of its properties is another, or a little different.
    fn mutate(&mut self, random: &mut Random) {
        let other = Phase::draw(random);
        let near = |random: &mut Random, value: u64, (least, most): (u64, u64)| {
            let factor = libm::exp((random.unit() - 0.5) * 2.0);
            ((value.max(least) as f64 * factor) as u64).clamp(least, most)
        };
        match random.below(12) {
            0 => self.thread = other.thread,
            1 => self.file = other.file,
            2 => self.way = other.way,
            3 => self.block = other.block,
            4 => self.block = pages(near(random, self.block, BLOCK)),
            5 => self.ops = other.ops,
            6 | 7 => self.ops = near(random, self.ops, OPS),
            8 => self.think = other.think,
            9 => self.span = other.span,
            10 => self.span = pages(near(random, self.span, SPAN)),
            _ => self.start = other.start,
        }
    }

    /// Blocks of a file of `size` bytes, in the order in which they are read.
    fn blocks(&self, size: u64, seed: u64) -> Vec<u64> {
        let mut random = Random::new(seed);
        let n = (size / self.block).max(1);
        let first = n * self.start / 1000;
        let each = (self.span / self.block).max(1);
        let within = each.min(n);
        let ops = self.ops;
        let at = |k: u64| (first + k) % n;
        match self.way {
            Way::Seq => (0..ops).map(at).collect(),
            Way::Back => (0..ops).map(|k| (first + n - k % n) % n).collect(),
            Way::Stride => (0..ops).map(|k| at(k * each % n)).collect(),
            Way::Skip => {
                let mut to = 0;
                let next = |_| {
                    to += 1 + random.below(2 * each);
                    at(to % n)
                };
                (0..ops).map(next).collect()
            }
            Way::Random => (0..ops).map(|_| at(random.below(within))).collect(),
            Way::Perm => {
                let all = random.permutation(within);
                all.into_iter().take(ops as usize).map(at).collect()
            }
            Way::Zipf => {
                let zipf = Zipf::new(within.min(1 << 14), 0.99);
                let spread = (within >> 14).max(1);
                (0..ops)
                    .map(|_| at(zipf.pick(&mut random) * 7919 % within.min(1 << 14) * spread))
                    .collect()
            }
            Way::Near | Way::Hops => {
                let mut blocks = Vec::new();
                while (blocks.len() as u64) < ops {
                    let place = random.below((n / within).max(1)) * within;
                    match self.way {
                        Way::Near => {
                            blocks.extend((0..4).map(|_| (place + random.below(within)) % n))
                        }
                        _ => blocks.extend((0..within).map(|k| (place + k) % n)),
                    }
                }
                blocks.truncate(ops as usize);
                blocks
            }
        }
    }
}

impl Phases {
    /// The program of a seed.
    pub fn draw(seed: u64) -> Phases {
        let mut random = Random::new(seed);
        let files = (0..random.within(1, FILES)).map(|_| pages(magnitude(&mut random, FILE)));
        let files = files.collect();
        let phases = (0..random.within(1, PHASES)).map(|_| Phase::draw(&mut random));
        let phases = phases.collect();
        let mut drawn = Phases {
            seed,
            files,
            phases,
        };
        drawn.bound();
        drawn
    }

    /// One that differs from it in one or two things.
    pub fn mutate(&self, random: &mut Random) -> Phases {
        let mut other = self.clone();
        for _ in 0..random.within(1, 2) {
            let which = random.below(other.phases.len() as u64) as usize;
            match random.below(10) {
                0 if other.phases.len() < PHASES as usize => {
                    other.phases.insert(which, Phase::draw(random));
                }
                1 if other.phases.len() > 1 => {
                    other.phases.remove(which);
                }
                2 => {
                    let file = random.below(other.files.len() as u64) as usize;
                    other.files[file] = pages(magnitude(random, FILE));
                }
                3 => other.seed = random.draw() >> 32,
                _ => other.phases[which].mutate(random),
            }
        }
        other.bound();
        other
    }

    /// Files are those that there are, and no program reads without end.
    fn bound(&mut self) {
        let each = MOST_BYTES / self.phases.len() as u64;
        for phase in &mut self.phases {
            phase.file %= self.files.len() as u64;
            phase.ops = phase.ops.min(each / phase.block).max(1);
        }
    }

    /// The words after `phases?` that make it again.
    pub fn text(&self) -> String {
        let mut words = vec![format!("seed={}", self.seed)];
        words.extend(self.files.iter().map(|size| format!("file={size}")));
        words.extend(self.phases.iter().map(|p| {
            let way = WAYS.iter().find(|(_, w)| *w == p.way).map_or("", |w| w.0);
            format!(
                "phase={},{},{way},{},{},{},{},{}",
                p.thread, p.file, p.block, p.ops, p.think, p.span, p.start
            )
        }));
        words.join("&")
    }

    /// Reads such words. The error says what is wrong and what is accepted.
    pub fn read(words: &str) -> Result<Phases, String> {
        let mut all = Phases {
            seed: 1,
            files: Vec::new(),
            phases: Vec::new(),
        };
        for word in words.split('&').filter(|w| !w.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let number = outrider_cli::size::parse(value).ok();
            match (key, number) {
                ("seed", Some(seed)) => all.seed = seed,
                ("file", Some(size)) if (1..=1 << 40).contains(&size) => all.files.push(size),
                ("phase", _) => {
                    let phase = phase(value).ok_or_else(|| {
                        let ways: Vec<&str> = WAYS.iter().map(|w| w.0).collect();
                        format!(
                            "{word}; accepted are phase=THREAD,FILE,WAY,BLOCK,READS,THINK,SPAN,START: numbers, below 64 the thread, and of WAY {}",
                            ways.join(", ")
                        )
                    })?;
                    all.phases.push(phase);
                }
                _ => {
                    return Err(format!(
                        "`{word}`; accepted are seed=NUMBER, file=SIZE and phase=…"
                    ));
                }
            }
        }
        match all.phases.iter().find(|p| p.file >= all.files.len() as u64) {
            Some(p) => Err(format!("file {} has no file=SIZE", p.file)),
            None if all.phases.is_empty() => Err("it has no phase=…".to_owned()),
            None => Ok(all),
        }
    }

    /// What it does. Each phase has a number of its own under which it opens its file, as a program that is used by several has.
    pub fn trace(&self) -> Trace {
        let threads = self.phases.iter().map(|p| p.thread).max().unwrap_or(0) + 1;
        let mut trace = Trace {
            files: self.files.clone(),
            threads: vec![Vec::new(); threads as usize],
        };
        for (i, p) in self.phases.iter().enumerate() {
            let ops = &mut trace.threads[p.thread as usize];
            let (fd, size) = (i + 3, self.files[p.file as usize]);
            ops.push(Op::Open {
                fd,
                file: p.file as usize,
            });
            for block in p.blocks(size, self.seed ^ (i as u64) << 32) {
                ops.push(Op::Read {
                    fd,
                    offset: block * p.block,
                    len: p.block,
                });
                if p.think > 0 {
                    ops.push(Op::Think(p.think));
                }
            }
            ops.push(Op::Close { fd });
        }
        trace
    }
}

/// `THREAD,FILE,WAY,BLOCK,READS,THINK,SPAN,START`.
fn phase(words: &str) -> Option<Phase> {
    let words: Vec<&str> = words.split(',').collect();
    let &[thread, file, way, block, ops, think, span, start] = &words[..] else {
        return None;
    };
    let number = |word: &str, least: u64, most: u64| {
        let number = outrider_cli::size::parse(word).ok()?;
        (least..=most).contains(&number).then_some(number)
    };
    Some(Phase {
        thread: number(thread, 0, 63)?,
        file: number(file, 0, 1 << 20)?,
        way: WAYS.iter().find(|(name, _)| *name == way)?.1,
        block: number(block, 1, 1 << 30)?,
        ops: number(ops, 1, 1 << 30)?,
        think: number(think, 0, 1 << 40)?,
        span: number(span, 1, 1 << 40)?,
        start: number(start, 0, 999)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_made_again_from_its_text() {
        let mut random = Random::new(5);
        let mut program = Phases::draw(1);
        for seed in 0..500 {
            let drawn = Phases::draw(seed);
            for one in [&drawn, &program] {
                assert_eq!(Phases::read(&one.text()).as_ref(), Ok(one));
                let trace = one.trace();
                assert_eq!(Trace::read(&trace.text()), Ok(trace.clone()), "{one:?}");
                let bytes: u64 = trace.threads.iter().flatten().map(length).sum();
                assert!(bytes <= MOST_BYTES, "{one:?}");
            }
            program = program.mutate(&mut random);
        }
    }

    fn length(op: &Op) -> u64 {
        match op {
            Op::Read { len, .. } => *len,
            _ => 0,
        }
    }

    #[test]
    fn ways_are_what_they_say() {
        let blocks = |way: &str| {
            let words = format!("file=1M&phase=0,0,{way},4K,8,0,16K,500");
            let trace = Phases::read(&words).unwrap().trace();
            let at = |op: &Op| match op {
                Op::Read { offset, .. } => Some(*offset >> 12),
                _ => None,
            };
            trace.threads[0].iter().filter_map(at).collect::<Vec<_>>()
        };
        assert_eq!(blocks("seq"), [128, 129, 130, 131, 132, 133, 134, 135]);
        assert_eq!(blocks("back"), [128, 127, 126, 125, 124, 123, 122, 121]);
        assert_eq!(blocks("stride"), [128, 132, 136, 140, 144, 148, 152, 156]);
        assert!(blocks("skip").is_sorted_by(|a, b| a < b));
        let mut perm = blocks("perm");
        perm.sort_unstable();
        assert_eq!(perm, [128, 129, 130, 131]);
        assert!(blocks("random").iter().all(|at| (128..132).contains(at)));
        let hops = blocks("hops");
        assert!(hops.chunks(4).all(|c| c[0] % 4 == 0 && c[3] == c[0] + 3));
        let near = blocks("near");
        assert!(
            near.chunks(4)
                .all(|c| c.iter().all(|at| at / 4 == c[0] / 4))
        );
        assert_eq!(blocks("zipf").len(), 8);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let cases = [
            ("file=1M", "it has no phase=…"),
            ("phase=0,0,seq,4K,1,0,1,0", "file 0 has no file=SIZE"),
            ("file=1M&phase=0,0,sec,4K,1,0,1,0", "phase=0,0,sec,"),
            ("file=1M&phase=0,0,seq,4K,1,0,1", "phase=0,0,seq,"),
            ("size=1M", "`size=1M`; accepted are seed=NUMBER, file=SIZE"),
        ];
        for (words, why) in cases {
            let told = Phases::read(words).unwrap_err();
            assert!(told.starts_with(why), "{words}: {told}");
        }
    }
}
