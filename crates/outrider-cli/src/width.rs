//! Text that fits a terminal.

use std::os::fd::AsFd;

/// Columns of a terminal, or what the variable COLUMNS says. `None` where nobody says how many there are.
pub fn columns(fd: impl AsFd) -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|n| n.parse().ok());
    let asked = || Some(usize::from(rustix::termios::tcgetwinsize(fd).ok()?.ws_col));
    said.or_else(asked).filter(|n| *n > 0)
}

/// Columns that a character takes: two if it is a wide one.
pub fn of(c: char) -> usize {
    match ('\u{1100}'..='\u{ffff}').contains(&c) || c > '\u{1f000}' {
        true => 2,
        false => 1,
    }
}

/// Columns that a text takes.
pub fn of_text(text: &str) -> usize {
    text.chars().map(of).sum()
}

/// A text, whose lines of more than so many columns are broken between words; words of more than a line are broken anywhere. What goes on is
/// indented as its line was.
pub fn fitted(text: &str, columns: usize) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches('\n');
        if of_text(bare) <= columns {
            out += line;
            continue;
        }
        let indent = bare.len() - bare.trim_start_matches(' ').len();
        let indent = " ".repeat(indent.min(columns / 2));
        out += &indent;
        let mut column = indent.len();
        let begin = |out: &mut String, column: &mut usize| {
            out.push('\n');
            *out += &indent;
            *column = indent.len();
        };
        for word in bare.split(' ').filter(|word| !word.is_empty()) {
            let begun = column > indent.len();
            if begun && column + 1 + of_text(word) > columns {
                begin(&mut out, &mut column);
            } else if begun {
                out.push(' ');
                column += 1;
            }
            for c in word.chars() {
                if column + of(c) > columns {
                    begin(&mut out, &mut column);
                }
                out.push(c);
                column += of(c);
            }
        }
        out += line.strip_prefix(bare).unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::fitted;

    #[test]
    fn only_long_lines_are_broken() {
        let text = "one  two\n  three four five\nabcdefghijklmno p\n";
        let fits = "one  two\n  three\n  four\n  five\nabcdefghij\nklmno p\n";
        assert_eq!(fitted(text, 10), fits);
        assert_eq!(fitted(text, 20), text);
        assert_eq!(fitted("", 10), "");
    }
}
