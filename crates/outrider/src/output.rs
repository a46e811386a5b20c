//! How the tools speak: one line per complaint on standard error, sizes in binary units, and file names
//! that cannot disturb a terminal or a line-oriented reader.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};

pub use outrider_cli::Failure;
use outrider_cli::shown;
pub use outrider_cli::size::show as bytes;
pub use outrider_cli::width::{columns, fitted};

/// What a subcommand returns: its exit code, or why it failed.
pub type Outcome = outrider_cli::Outcome<i32>;

/// Writes `outrider: message` to standard error.
pub fn complain(message: &str) {
    outrider_cli::complain("outrider", message);
}

/// A path, or any other text from outside, as it is shown to people: one line, and nothing that a terminal obeys or that can't be seen. See [`shown::text`].
pub fn show(text: impl AsRef<OsStr>) -> String {
    shown::text(text.as_ref().as_bytes())
}

/// A path in JSON: `path` as text, and where that is not exact (the name is not UTF-8) its bytes besides.
pub fn json_path(path: &OsStr) -> (Value, Option<Value>) {
    let bytes = path.to_str().is_none().then(|| json!(path.as_bytes()));
    (json!(path.to_string_lossy()), bytes)
}

/// A JSON object with a path in it, as `key`, and where need be its bytes as `key_bytes`: see [`json_path`].
pub fn with_path(mut object: Value, key: &str, path: impl AsRef<OsStr>) -> Value {
    let (text, bytes) = json_path(path.as_ref());
    object[key] = text;
    if let Some(bytes) = bytes {
        object[format!("{key}_bytes")] = bytes;
    }
    object
}

/// A JSON document as it is written. It may be looked at on a terminal: what that would obey is escaped, as JSON has it.
pub fn json_text(value: &Value) -> String {
    shown::json(&format!("{value:#}"))
}

/// Writes a JSON document to standard output.
pub fn print_json(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", json_text(value))?;
    out.flush()
}

/// Whether text is taken for UTF-8 by who sees it: by the variables of the locale, of which the first that says something holds.
pub fn is_utf8() -> bool {
    let values = ["LC_ALL", "LC_CTYPE", "LANG"].map(std::env::var_os);
    let value = values.into_iter().flatten().find(|value| !value.is_empty());
    value.is_some_and(|value| {
        let value = value.to_string_lossy().to_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    })
}

/// The unit of microseconds, as it can be shown.
pub fn micros() -> &'static str {
    if is_utf8() { "µs" } else { "us" }
}

/// A shown text in at most so many columns: what is too long loses its middle, since names begin and end with what tells them apart. One
/// character counts for one column, except wide ones.
pub fn shortened(text: &str, most: usize) -> String {
    let width = outrider_cli::width::of;
    if outrider_cli::width::of_text(text) <= most {
        return text.to_owned();
    }
    let gap = "...";
    let room = most.saturating_sub(gap.len());
    let take = |room: usize, chars: &mut dyn Iterator<Item = char>| {
        let mut left = room;
        let taken = chars.take_while(|c| {
            let fits = width(*c) <= left;
            left = left.saturating_sub(width(*c));
            fits
        });
        taken.collect::<String>()
    };
    let head = take(room / 3, &mut text.chars());
    let tail = take(room - room / 3, &mut text.chars().rev());
    let tail: String = tail.chars().rev().collect();
    format!("{head}{gap}{tail}")
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
    fn names_that_are_not_text_are_exact_in_json() {
        let (text, bytes) = json_path(OsStr::from_bytes(b"x\xff"));
        assert_eq!((text, bytes), (json!("x\u{fffd}"), Some(json!([120, 255]))));
        assert_eq!(json_path(OsStr::new("a\n")), (json!("a\n"), None));
        assert_eq!(show("a\n"), "a\\n");
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(
            shortened("/srv/data/events.log", 20),
            "/srv/data/events.log"
        );
        assert_eq!(
            shortened("/srv/data/of/events.log", 20),
            "/srv/...f/events.log"
        );
        let wide = "\u{6f22}".repeat(30);
        let short = shortened(&wide, 20);
        assert_eq!(short.chars().count(), 2 + 3 + 6, "{short}");
    }
}
