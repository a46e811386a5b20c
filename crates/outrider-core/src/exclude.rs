//! Names of files of which nothing is fetched ahead: `files.exclude`.
//!
//! Patterns are as in a shell, by the byte. A crate for them would bring regular expressions into the library that programs load, and make it two thirds larger.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// Patterns at most: each path is held against all of them.
const MOST: usize = 1024;

/// What is excluded, and all that lies below it.
#[derive(Clone, Debug, Default)]
pub struct Excluded(Vec<Vec<Segment>>);

/// What stands between two slashes.
#[derive(Clone, Debug)]
enum Segment {
    /// `**`: any names, or none.
    Any,
    /// A name.
    Name(Vec<Token>),
}

#[derive(Clone, Debug)]
enum Token {
    Byte(u8),
    /// `?`.
    One,
    /// `*`.
    Many,
    /// `[a-z]`: first and last of each range; or none of them (`[!a-z]`).
    Class(Vec<(u8, u8)>, bool),
}

impl Excluded {
    /// Patterns as in a shell: `*` and `?` stop at a slash, `**` does not. What is wrong with one, in a line without the key.
    pub fn new(patterns: &[String]) -> Result<Excluded, String> {
        if patterns.len() > MOST {
            return Err(format!("{} patterns; accepted are {MOST}", patterns.len()));
        }
        let parsed = patterns.iter().map(|pattern| {
            let bad = |why| {
                format!(
                    "{pattern:?} {why}; accepted are patterns of absolute paths such as \"/mnt/s3/**\""
                )
            };
            if !pattern.starts_with('/') {
                return Err(bad("is no absolute path"));
            }
            let segments = pattern.split('/').filter(|s| !s.is_empty());
            let parsed: Option<Vec<Segment>> = segments.map(Segment::parse).collect();
            parsed.ok_or_else(|| bad("has a bracket that is not closed, or ends in a backslash"))
        });
        parsed.collect::<Result<_, _>>().map(Excluded)
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a path is, or something above it.
    pub fn holds(&self, path: &Path) -> bool {
        if self.is_empty() {
            return false;
        }
        let names = path.components().filter_map(|c| match c {
            Component::Normal(name) => Some(name.as_bytes()),
            _ => None,
        });
        let names: Vec<&[u8]> = names.collect();
        self.0.iter().any(|pattern| begins(pattern, &names))
    }
}

impl Segment {
    /// `None`: it makes no sense.
    fn parse(text: &str) -> Option<Segment> {
        if text == "**" {
            return Some(Segment::Any);
        }
        let mut bytes = text.bytes();
        let mut tokens = Vec::new();
        while let Some(byte) = bytes.next() {
            tokens.push(match byte {
                b'*' => Token::Many,
                b'?' => Token::One,
                b'\\' => Token::Byte(bytes.next()?),
                b'[' => class(&mut bytes)?,
                byte => Token::Byte(byte),
            });
        }
        Some(Segment::Name(tokens))
    }

    fn is(&self, name: &[u8]) -> bool {
        match self {
            Segment::Any => true,
            Segment::Name(tokens) => matches(tokens, name),
        }
    }
}

/// What stands in brackets, behind the first.
fn class(bytes: &mut impl Iterator<Item = u8>) -> Option<Token> {
    let (mut ranges, mut first) = (Vec::new(), bytes.next()?);
    let none = matches!(first, b'!' | b'^');
    if none {
        first = bytes.next()?;
    }
    let mut next = first;
    loop {
        let from = if next == b'\\' { bytes.next()? } else { next };
        next = bytes.next()?;
        let mut to = from;
        if next == b'-' {
            next = bytes.next()?;
            if next == b']' {
                ranges.push((b'-', b'-'));
            } else {
                to = if next == b'\\' { bytes.next()? } else { next };
                next = bytes.next()?;
            }
        }
        ranges.push((from, to));
        if next == b']' {
            return Some(Token::Class(ranges, none));
        }
    }
}

impl Token {
    fn is(&self, byte: u8) -> bool {
        match self {
            Token::Byte(own) => *own == byte,
            Token::One | Token::Many => true,
            Token::Class(ranges, none) => {
                ranges
                    .iter()
                    .any(|(from, to)| (*from..=*to).contains(&byte))
                    != *none
            }
        }
    }
}

/// Whether a pattern stands for the first of these names, or for all. Of several `**` only the last one can have taken too few.
fn begins(pattern: &[Segment], names: &[&[u8]]) -> bool {
    let (mut p, mut n, mut again) = (0, 0, None);
    loop {
        match pattern.get(p) {
            None => return true,
            Some(Segment::Any) => {
                p += 1;
                again = Some((p, n));
            }
            Some(segment) if names.get(n).is_some_and(|name| segment.is(name)) => {
                (p, n) = (p + 1, n + 1);
            }
            Some(_) => match again {
                Some((from, taken)) if taken < names.len() => {
                    again = Some((from, taken + 1));
                    (p, n) = (from, taken + 1);
                }
                _ => return false,
            },
        }
    }
}

/// Whether the whole name is as the tokens say.
fn matches(tokens: &[Token], name: &[u8]) -> bool {
    let (mut t, mut n, mut again) = (0, 0, None);
    loop {
        match (tokens.get(t), name.get(n)) {
            (None, None) => return true,
            (Some(Token::Many), _) => {
                t += 1;
                again = Some((t, n));
            }
            (Some(token), Some(byte)) if token.is(*byte) => (t, n) = (t + 1, n + 1),
            _ => match again {
                Some((from, taken)) if taken < name.len() => {
                    again = Some((from, taken + 1));
                    (t, n) = (from, taken + 1);
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_exclude_what_lies_below() {
        let patterns = [
            "/mnt/s3/**",
            "/home/*/cold",
            "/data/[ab]?",
            "/x/**/y*z",
            "/q/[!a-c-]",
            "/r/a\\*",
        ];
        let patterns = patterns.map(str::to_owned);
        let excluded = Excluded::new(&patterns).unwrap();
        for (path, out) in [
            ("/mnt/s3", true),
            ("/mnt/s3/a/b", true),
            ("/mnt/s3b/a", false),
            ("/mnt", false),
            ("/home/me/cold", true),
            ("/home/me/cold/x/y", true),
            ("/home/me/x/cold", false),
            ("/data/a1/x", true),
            ("/data/c1", false),
            ("/data/a", false),
            ("/x/yz", true),
            ("/x/1/2/yyzz/deep", true),
            ("/x/1/2/yyzy", false),
            ("/x/1/y/yaz", true),
            ("/q/b", false),
            ("/q/-", false),
            ("/q/d", true),
            ("/r/a*", true),
            ("/r/ab", false),
        ] {
            assert_eq!(excluded.holds(Path::new(path)), out, "{path}");
        }
        assert!(!Excluded::default().holds(Path::new("/")));
        for bad in ["mnt/**", "", "/mnt/[a", "/mnt/a\\"] {
            let told = Excluded::new(&[bad.to_owned()]).unwrap_err();
            assert!(
                told.contains("; accepted are patterns") && !told.contains('\n'),
                "{told}"
            );
        }
    }
}
