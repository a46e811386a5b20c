//! Which rows are meant: names and patterns.

use crate::output::{Failure, Outcome};
use crate::rows::Row;

/// The rows that one of `patterns` names, in their own order; all if there are none.
pub fn rows(all: Vec<Row>, patterns: &[String]) -> Outcome<Vec<Row>> {
    for pattern in patterns {
        if !all.iter().any(|r| matches(pattern, &r.name)) {
            return Err(Failure::usage(format!(
                "no row is called '{pattern}'; `outrider-lab list` shows all"
            )));
        }
    }
    Ok(all
        .into_iter()
        .filter(|r| patterns.is_empty() || patterns.iter().any(|p| matches(p, &r.name)))
        .collect())
}

/// Whether `name` is what `pattern` says: `*` stands for any text, `?` for one character.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    // Where the latest star stands, and how much of the name it has taken.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", ""),
            ("cp-*-seq", "cp-fig5-private-seq"),
            ("a*b*c", "a-b-b-c"),
            ("?b*", "ab"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "ab"), ("", "a"), ("a*b", "a-b-c"), ("?", "")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
