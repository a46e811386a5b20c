//! How the tools speak: one line per complaint on standard error, sizes in binary units, and file names
//! that cannot disturb a terminal or a line-oriented reader.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Value, json};

/// Why a subcommand ends: one line for standard error and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// What was wrong and what is accepted.
    pub message: String,
    /// 2 for bad input, 1 for what the machine refused.
    pub code: i32,
}

impl Failure {
    /// Bad input: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: 2,
        }
    }

    /// The machine refused: exit code 1.
    pub fn system(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: 1,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::system(format!("standard output: {e}"))
    }
}

/// What a subcommand returns: its exit code, or why it failed.
pub type Outcome = Result<i32, Failure>;

/// Writes `outrider: message` to standard error.
pub fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "outrider: {message}");
}

/// A path as it is shown to people: control characters, backslashes and bytes that are not UTF-8 are
/// escaped as in a C string, so that one name is always one line.
pub fn show(path: &Path) -> String {
    let mut shown = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' {
                shown.extend(c.escape_default());
            } else {
                shown.push(c);
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

/// A path in JSON: `path` as text, and where that is not exact (the name is not UTF-8) its bytes besides.
pub fn json_path(path: &OsStr) -> (Value, Option<Value>) {
    let bytes = path.to_str().is_none().then(|| json!(path.as_bytes()));
    (json!(path.to_string_lossy()), bytes)
}

/// Writes a JSON document to standard output.
pub fn print_json(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}

/// A number of bytes for people: `0 B`, `512 B`, `12.0 KiB`, `1.5 GiB`.
pub fn bytes(n: u64) -> String {
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// `part` of `whole` in per cent; 100 for a whole of nothing.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        100.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

/// `n` and a noun, with an s where it is not one.
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_on_one_line() {
        assert_eq!(show(Path::new("a\nb\u{1b}[2J\\")), "a\\nb\\u{1b}[2J\\\\");
        assert_eq!(
            show(Path::new(OsStr::from_bytes(b"x\xff\xc3\xa4"))),
            "x\\xff\u{e4}"
        );
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1 << 20), "1.0 MiB");
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
    }
}
