//! Texts from outside as they are shown: names of files and programs, what programs and configuration files say. Whoever chooses such a text must
//! neither reach the terminal (escape sequences) nor put a line of their own beside ours, nor hide or turn round what stands there.

use std::fmt::Write;

/// Whether a character does something else than to show itself: it moves, colours or clears (controls), ends a line, turns the direction of writing
/// round, or can't be seen.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Soft hyphen, grapheme joiner, marks of direction, fillers.
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{3164}' | '\u{ffa0}'
            // Signs that stand before others without a place of their own.
            | '\u{600}'..='\u{605}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{180b}'..='\u{180f}'
            // Zero width; ends of lines and paragraphs; embeddings, overrides and isolates of direction.
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            // Variations, byte order mark, annotations.
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
            | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// The text on one line: hidden characters, backslashes and bytes that are not UTF-8 are escaped (`\n`, `\u{1b}`, `\\`, `\xff`), so that different texts
/// stay different.
pub fn text(bytes: &[u8]) -> String {
    escaped(bytes, |c| is_hidden(c) || c == '\\')
}

/// A line that was put together of texts that are shown already: only what can't be in such is escaped.
pub fn line(bytes: &[u8]) -> String {
    escaped(bytes, is_hidden)
}

fn escaped(bytes: &[u8], is: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is(c) {
                shown.extend(c.escape_default());
            } else {
                shown.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

/// A JSON document in which hidden characters, which can only be in its strings, are escaped as JSON has it. What it says is the same.
pub fn json(document: &str) -> String {
    let mut shown = String::with_capacity(document.len());
    for c in document.chars() {
        // The ends of lines are the document's own: in strings they are escaped already.
        if is_hidden(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stay_on_one_line_and_apart() {
        assert_eq!(text(b"a\nb\x1b[2J\\"), "a\\nb\\u{1b}[2J\\\\");
        assert_eq!(text(b"x\xff\xc3\xa4\xe6\xbc\xa2"), "x\\xff\u{e4}\u{6f22}");
        assert_eq!(
            text("\u{9b}1m\u{7f}\u{202e}\u{200b}\u{2028}\u{feff}\u{e0041}".as_bytes()),
            "\\u{9b}1m\\u{7f}\\u{202e}\\u{200b}\\u{2028}\\u{feff}\\u{e0041}"
        );
        assert_eq!(line(b"a\\n\x07"), "a\\n\\u{7}");
    }

    #[test]
    fn json_says_the_same() {
        let document = "{\n  \"a\": \"\u{9b}\u{202e}\u{e0041}\u{e4}\"\n}";
        assert_eq!(
            json(document),
            "{\n  \"a\": \"\\u009b\\u202e\\udb40\\udc41\u{e4}\"\n}"
        );
    }
}
