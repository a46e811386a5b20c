//! How the tools speak: one line per complaint on standard error, sizes in binary units, and file names
//! that cannot disturb a terminal or a line-oriented reader.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Value, json};

pub use outrider_cli::Failure;
pub use outrider_cli::size::show as bytes;

/// What a subcommand returns: its exit code, or why it failed.
pub type Outcome = outrider_cli::Outcome<i32>;

/// Writes `outrider: message` to standard error.
pub fn complain(message: &str) {
    outrider_cli::complain("outrider", message);
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
}
