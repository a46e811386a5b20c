//! Sizes in bytes on the command line and in messages.

/// Reads `4096`, `64K`, `8G`, `1.5GiB`: binary multiples, case does not matter. Fractions are allowed as
/// long as the result is a whole number of bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("'{text}' is not a size; accepted are bytes or a number with K, M, G or T");
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(wrong);
    }
    let value = number.parse::<f64>().map_err(|_| wrong())? * (1u64 << shift) as f64;
    if value.fract() == 0.0 && value < u64::MAX as f64 {
        Ok(value as u64)
    } else {
        Err(wrong())
    }
}

/// A number of bytes for people: `512 B`, `12.0 KiB`, `8.0 GiB`.
pub fn show(n: u64) -> String {
    let mut value = n as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" {
        format!("{n} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_exact() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("8G"), Ok(8 << 30));
        assert_eq!(parse("1.5MiB"), Ok(3 << 19));
        for bad in ["", "G", "1.0001K", "-1", "8X", "1e3", "99999999999T"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(show(512), "512 B");
        assert_eq!(show(8 << 30), "8.0 GiB");
    }
}
