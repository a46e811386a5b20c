//! Sizes in bytes as people write and read them: on command lines, in configurations and in messages.

/// Reads a number of bytes with an optional binary unit: `4096`, `128K`, `128KiB`, `1.5G`. Units are K, M, G
/// and T in either case, with or without `B` or `iB`; all are powers of 1024. A fraction needs a unit and is
/// rounded down to bytes. The error says what is accepted.
pub fn parse(text: &str) -> Result<u64, String> {
    const ACCEPTED: &str =
        "accepted are bytes or a number with K, M, G or T, such as 4096, 128K or 1.5G";
    let bad = || format!("{text:?} is not a size; {ACCEPTED}");
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(bad()),
    };
    let too_large = || format!("{text:?} is too large; {ACCEPTED}, at most 16777215T");
    if let Some((whole, fraction)) = number.split_once('.') {
        let digits_only = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if shift == 0 || !digits_only(whole) || !digits_only(fraction) {
            return Err(bad());
        }
        let value: f64 = number.parse().map_err(|_| bad())?;
        let bytes = value * (1u64 << shift) as f64;
        return if bytes < u64::MAX as f64 {
            Ok(bytes as u64)
        } else {
            Err(too_large())
        };
    }
    if number.is_empty() {
        return Err(bad());
    }
    let value: u64 = number.parse().map_err(|_| too_large())?;
    value.checked_mul(1 << shift).ok_or_else(too_large)
}

/// A number of bytes for people: `0 B`, `512 B`, `12.0 KiB`, `1.5 GiB`.
pub fn show(n: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("128K", 128 << 10),
            ("128 KiB", 128 << 10),
            ("2m", 2 << 20),
            ("1.5G", 3 << 29),
            ("3TB", 3 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "-1",
            "1.5",
            "1.G",
            ".5G",
            "1..5K",
            "12Q",
            "1e3",
            "99999999999999999999",
            "17179869184G",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(1 << 20), "1.0 MiB");
        assert_eq!(show((1 << 20) - 1), "1.0 MiB");
        assert_eq!(show(3 << 29), "1.5 GiB");
    }
}
