//! What a program does, as far as it matters here.

use std::fmt::Write;

use crate::device::Nanos;

/// Something that a thread does. Descriptors are numbers of the program's own, below 1024; times are ns, places bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Opens a file under a number.
    Open {
        /// The number.
        fd: usize,
        /// The file, an index.
        file: usize,
    },
    /// Reads.
    Read {
        /// The number.
        fd: usize,
        /// From here …
        offset: u64,
        /// … so many bytes.
        len: u64,
    },
    /// Touches a byte of the file as it is mapped.
    Touch {
        /// The number under which it was opened.
        fd: usize,
        /// The byte.
        offset: u64,
    },
    /// Computes for so long.
    Think(Nanos),
    /// Asks for what it will read (POSIX_FADV_WILLNEED).
    WillNeed {
        /// The number.
        fd: usize,
        /// From here …
        offset: u64,
        /// … so many bytes.
        len: u64,
    },
    /// Says that it reads a file in order, or not (POSIX_FADV_SEQUENTIAL, POSIX_FADV_RANDOM).
    Advise {
        /// The number.
        fd: usize,
        /// In order.
        sequential: bool,
    },
    /// Closes.
    Close {
        /// The number.
        fd: usize,
    },
}

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Its files, bytes.
    pub files: Vec<u64>,
    /// What each of its threads does. The first opens what the others use as well.
    pub threads: Vec<Vec<Op>>,
}

/// Numbers of descriptors lie below this.
pub const MOST_FDS: usize = 1024;

impl Trace {
    /// Reads one: see [the README](https://docs.rs/outrider-sim) for the format. The error tells which line is wrong, and why.
    pub fn read(text: &str) -> Result<Trace, String> {
        let mut trace = Trace::default();
        let mut thread = 0;
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |why: String| format!("line {}: {why}", number + 1);
            let words: Vec<&str> = line.split_whitespace().collect();
            let numbers: Option<Vec<u64>> = words[1..].iter().map(|w| size(w)).collect();
            let numbers = numbers.ok_or_else(|| {
                wrong(format!(
                    "`{line}`; accepted are whole numbers, with K, M and G for sizes"
                ))
            })?;
            match (words[0], &numbers[..]) {
                ("file", [size]) => trace.files.push(*size),
                ("thread", [number]) => thread = *number as usize,
                _ => {
                    let op = op(words[0], &numbers).ok_or_else(|| {
                        wrong(format!(
                            "`{line}`; accepted are file SIZE, thread N, open FD FILE, read FD OFFSET LENGTH, touch FD OFFSET, \
                             think NANOSECONDS, sequential FD, random FD, willneed FD OFFSET LENGTH and close FD"
                        ))
                    })?;
                    trace.check(op).map_err(wrong)?;
                    if thread > 1023 {
                        return Err(wrong("threads are numbered from 0 to 1023".to_owned()));
                    }
                    let least = trace.threads.len().max(thread + 1);
                    trace.threads.resize(least, Vec::new());
                    trace.threads[thread].push(op);
                }
            }
        }
        trace.check_descriptors()?;
        Ok(trace)
    }

    fn check(&self, op: Op) -> Result<(), String> {
        match op {
            Op::Open { file, .. } if file >= self.files.len() => Err(format!(
                "file {file}; there are {}, numbered from 0 on",
                self.files.len()
            )),
            Op::Open { fd, .. } if fd >= MOST_FDS => Err(format!(
                "descriptor {fd}; accepted are those below {MOST_FDS}"
            )),
            _ => Ok(()),
        }
    }

    /// What is read or closed was opened somewhere.
    fn check_descriptors(&self) -> Result<(), String> {
        if self.files.is_empty() || self.threads.iter().all(Vec::is_empty) {
            return Err(
                "it opens no file; a trace has a line `file SIZE` and one `open 3 0` at least"
                    .to_owned(),
            );
        }
        let opened = |op: &Op| match op {
            Op::Open { fd, .. } => Some(*fd),
            _ => None,
        };
        let opened: Vec<usize> = self.threads.iter().flatten().filter_map(opened).collect();
        let used = self.threads.iter().flatten().find_map(|op| match op {
            Op::Read { fd, .. }
            | Op::Touch { fd, .. }
            | Op::WillNeed { fd, .. }
            | Op::Advise { fd, .. }
            | Op::Close { fd } => (!opened.contains(fd)).then_some(*fd),
            _ => None,
        });
        match used {
            Some(fd) => Err(format!("descriptor {fd} is opened nowhere")),
            None => Ok(()),
        }
    }

    /// As text that [`read`](Trace::read) reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments| writeln!(text, "{words}").unwrap_or_default();
        self.files
            .iter()
            .for_each(|size| line(format_args!("file {size}")));
        for (number, ops) in self.threads.iter().enumerate() {
            line(format_args!("thread {number}"));
            for op in ops {
                match op {
                    Op::Open { fd, file } => line(format_args!("open {fd} {file}")),
                    Op::Read { fd, offset, len } => line(format_args!("read {fd} {offset} {len}")),
                    Op::Touch { fd, offset } => line(format_args!("touch {fd} {offset}")),
                    Op::Think(ns) => line(format_args!("think {ns}")),
                    Op::WillNeed { fd, offset, len } => {
                        line(format_args!("willneed {fd} {offset} {len}"))
                    }
                    Op::Advise { fd, sequential } => {
                        let word = if *sequential { "sequential" } else { "random" };
                        line(format_args!("{word} {fd}"));
                    }
                    Op::Close { fd } => line(format_args!("close {fd}")),
                }
            }
        }
        text
    }
}

fn op(word: &str, numbers: &[u64]) -> Option<Op> {
    Some(match (word, numbers) {
        ("open", [fd, file]) => Op::Open {
            fd: *fd as usize,
            file: *file as usize,
        },
        ("read", [fd, offset, len]) => Op::Read {
            fd: *fd as usize,
            offset: *offset,
            len: *len,
        },
        ("touch", [fd, offset]) => Op::Touch {
            fd: *fd as usize,
            offset: *offset,
        },
        ("think", [ns]) => Op::Think(*ns),
        ("willneed", [fd, offset, len]) => Op::WillNeed {
            fd: *fd as usize,
            offset: *offset,
            len: *len,
        },
        ("sequential" | "random", [fd]) => Op::Advise {
            fd: *fd as usize,
            sequential: word == "sequential",
        },
        ("close", [fd]) => Op::Close { fd: *fd as usize },
        _ => return None,
    })
}

/// A whole number, with a binary unit or without, up to 2⁴⁰.
fn size(word: &str) -> Option<u64> {
    let size = outrider_cli::size::parse(word).ok()?;
    (size <= 1 << 40).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_as_it_was_written() {
        let text = "file 1M # all\nfile 4096\n\nopen 3 1\nthink 500\nread 3 0 4K\nthread 1\nopen 4 0\ntouch 4 8192\nwillneed 4 0 64K\nrandom 4\nclose 4\n";
        let trace = Trace::read(text).unwrap();
        assert_eq!(trace.files, [1 << 20, 4096]);
        assert_eq!(
            trace.threads[0][2],
            Op::Read {
                fd: 3,
                offset: 0,
                len: 4096
            }
        );
        assert_eq!(trace.threads[1].len(), 5);
        assert_eq!(Trace::read(&trace.text()), Ok(trace));
    }

    #[test]
    fn what_is_wrong_is_told_by_line() {
        let cases = [
            (
                "file 1M\nopen 3 1",
                "line 2: file 1; there are 1, numbered from 0 on",
            ),
            (
                "file 1M\nopen 3",
                "line 2: `open 3`; accepted are file SIZE, ",
            ),
            ("file x", "line 1: `file x`; accepted are whole numbers"),
            (
                "file 1M\nopen 1024 0",
                "line 2: descriptor 1024; accepted are those below 1024",
            ),
            (
                "file 1M\nopen 3 0\nread 4 0 1",
                "descriptor 4 is opened nowhere",
            ),
            (
                "file 1M\nthread 5000\nopen 3 0",
                "line 3: threads are numbered from 0 to 1023",
            ),
            ("", "it opens no file; "),
        ];
        for (text, why) in cases {
            let told = Trace::read(text).unwrap_err();
            assert!(told.starts_with(why), "{text:?}: {told}");
        }
    }
}
