//! What rows of plain reads share: their data, and their commands.

use std::process::{Command, Stdio};

use super::{Data, Maker, Memory, Row, Workload};
use crate::output::{Context, Failure, Outcome};
use crate::size;

/// Files `0`, `1`, … of bytes that don't compress: `files("4x128M")` makes four.
pub fn files(words: &str) -> Data {
    let (count, size) = parsed(words).expect("rows name sizes that can be read");
    Data {
        key: format!("files:{words}"),
        bytes: count * size,
        make,
    }
}

fn parsed(words: &str) -> Option<(u64, u64)> {
    let (count, each) = words.split_once('x')?;
    Some((count.parse().ok()?, size::parse(each).ok()?))
}

fn make(maker: &Maker) -> Outcome {
    let (count, size) = parsed(maker.words)
        .ok_or_else(|| Failure::system(format!("'{}' names no files", maker.words)))?;
    for i in 0..count {
        let program = maker.tools.bin.join("outrider-work");
        let done = Command::new(&program)
            .arg("make")
            .arg(maker.dir.join(i.to_string()))
            .args(["--size", &size.to_string(), "--seed", &(i + 1).to_string()])
            .stdin(Stdio::null())
            .output()
            .doing(program.display())?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            return Err(Failure::system(said));
        }
    }
    Ok(())
}

/// A command `outrider-work read` of `count` files with the flags in `words`.
pub fn read(count: u64, words: &str) -> Vec<String> {
    let mut command = vec!["{bin}/outrider-work".to_owned(), "read".to_owned()];
    command.extend((0..count).map(|i| format!("{{data}}/{i}")));
    command.extend(words.split_whitespace().map(str::to_owned));
    command
}

/// A row of one such command, which hints its pattern to the kernel in the column `app-only`.
pub fn row(
    name: &str,
    about: &str,
    files_: &str,
    words: &str,
    devices: &'static [&'static str],
) -> Row {
    let (count, _) = parsed(files_).unwrap_or((1, 0));
    Row {
        name: name.to_owned(),
        about: about.to_owned(),
        point: None,
        data: files(files_),
        memory: Memory::Free,
        work: Workload {
            commands: vec![read(count, words)],
            hinted: Some(vec![read(count, &format!("{words} --hints pattern"))]),
            ..Workload::default()
        },
        short: &[],
        devices,
    }
}
