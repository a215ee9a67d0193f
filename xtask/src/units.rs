//! Sizes, times and rates, as people write and read them.

use crate::Result;

/// A number of bytes: `8`, `64K`, `16M`, `1G`, in powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let wrong = || "expected bytes, such as 8, 64K or 1M, below 1024G".to_string();
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes < 1 << 40).ok_or_else(wrong)
}

/// A number of bytes in the largest unit that divides it.
pub(crate) fn size_text(bytes: u64) -> String {
    match bytes {
        b if b > 0 && b.is_multiple_of(1 << 30) => format!("{} GiB", b >> 30),
        b if b > 0 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b > 0 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// Microseconds with a unit and three significant digits.
pub(crate) fn time_text(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 1000.0 => (us, "µs"),
        us if us < 1e6 => (us / 1000.0, "ms"),
        us => (us / 1e6, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Gigabytes (10⁹ bytes) a second, below one in the unit that fits, with three significant digits.
pub(crate) fn rate_text(gigabytes: f64) -> String {
    let (value, unit) = match gigabytes {
        g if g >= 1.0 => (g, "GB/s"),
        g if g >= 1e-3 => (g * 1e3, "MB/s"),
        g => (g * 1e6, "kB/s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// A number from 0 to 1000 with three significant digits.
fn three_digits(value: f64) -> String {
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes_and_limits() {
        assert_eq!([bytes("8"), bytes("64K"), bytes("3m"), bytes("0")].map(Result::unwrap), [8, 65536, 3 << 20, 0]);
        for wrong in ["", "K", "-1", "1.5M", "8B", "99999999999G", "2048G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_rates_and_sizes_have_units() {
        assert_eq!(
            [5.0, 12.34, 123.4, 2500.0, 3e6].map(time_text),
            ["5.00 µs", "12.3 µs", "123 µs", "2.50 ms", "3.00 s"]
        );
        assert_eq!(
            [0.0, 12.5e-6, 0.0015, 0.12, 1.0, 23.45].map(rate_text),
            ["0.00 kB/s", "12.5 kB/s", "1.50 MB/s", "120 MB/s", "1.00 GB/s", "23.4 GB/s"]
        );
        assert_eq!([0, 1023, 1024, 3 << 20, 1 << 30].map(size_text), ["0 B", "1023 B", "1 KiB", "3 MiB", "1 GiB"]);
    }
}
