//! What ranks report, and the tables made of it.
//!
//! A rank writes its report on lines of standard output that begin with `@`; every other line is shown as it is.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::units::{rate_text, size_text, time_text};

/// A line of a rank's report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Message {
    /// `@plan CHECKS MEASUREMENTS`: how many there will be.
    Plan { checks: u64, measurements: u64 },
    /// `@case NAME`: a check, or a measurement, begins.
    Case(String),
    /// `@fail {"case", "text"}`: a check failed.
    Fail { case: String, text: String },
    /// `@row {…}`: a measurement.
    Row(Row),
    /// `@looping`: the endless loop runs.
    Looping,
    /// `@round N`: so many of the endless loop's calls are done, and their results were right.
    Round(u64),
    /// `@error {…}`: the endless loop ended with an error, and so did the call after it.
    Error(LoopError),
    /// `@done`: all checks ran.
    Done,
}

/// A measurement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// The operation, such as `all_sum float32`.
    pub(crate) operation: String,
    /// Bytes of one rank's array.
    pub(crate) bytes: u64,
    /// The median time, in microseconds.
    pub(crate) latency_us: f64,
}

/// How a rank's endless loop ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LoopError {
    /// When, in microseconds since 1970.
    pub(crate) at_us: u64,
    /// The error's text.
    pub(crate) text: String,
    /// How long the next call took, in microseconds.
    pub(crate) again_us: u64,
    /// Its error's text, empty if it succeeded.
    pub(crate) again: String,
}

/// The message on a line, if it is one.
pub(crate) fn parse(line: &[u8]) -> Option<Message> {
    let line = std::str::from_utf8(line).ok()?.strip_prefix('@')?;
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let value = || serde_json::from_str::<Value>(rest).ok();
    let text = |value: &Value, name: &str| Some(value[name].as_str()?.to_string());
    Some(match word {
        "plan" => {
            let (checks, measurements) = rest.split_once(' ')?;
            Message::Plan { checks: checks.parse().ok()?, measurements: measurements.parse().ok()? }
        }
        "case" => Message::Case(rest.to_string()),
        "fail" => {
            let value = value()?;
            Message::Fail { case: text(&value, "case")?, text: text(&value, "text")? }
        }
        "row" => {
            let value = value()?;
            Message::Row(Row {
                operation: text(&value, "operation")?,
                bytes: value["bytes"].as_u64()?,
                latency_us: value["latency_us"].as_f64()?,
            })
        }
        "looping" => Message::Looping,
        "round" => Message::Round(rest.parse().ok()?),
        "error" => {
            let value = value()?;
            Message::Error(LoopError {
                at_us: value["at_us"].as_u64()?,
                text: text(&value, "text")?,
                again_us: value["again_us"].as_u64()?,
                again: text(&value, "again")?,
            })
        }
        "done" => Message::Done,
        _ => return None,
    })
}

impl Row {
    /// Bytes of one rank's array by the time, in gigabytes (10⁹) a second.
    fn gigabytes_per_second(&self) -> f64 {
        if self.latency_us > 0.0 { self.bytes as f64 / self.latency_us / 1000.0 } else { 0.0 }
    }

    /// As JSON.
    pub(crate) fn json(&self) -> Value {
        let Self { operation, bytes, latency_us } = self;
        json!({
            "operation": operation,
            "bytes": bytes,
            "latency_us": latency_us,
            "gigabytes_per_second": self.gigabytes_per_second(),
        })
    }
}

/// The table of measurements: a line per size, a pair of columns per operation. Empty without rows.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut operations: Vec<&str> = Vec::new();
    let mut sizes: Vec<u64> = Vec::new();
    for row in rows {
        if !operations.contains(&row.operation.as_str()) {
            operations.push(&row.operation);
        }
        if !sizes.contains(&row.bytes) {
            sizes.push(row.bytes);
        }
    }
    sizes.sort_unstable();
    if rows.is_empty() {
        return String::new();
    }
    let mut table = format!("{:>9}", "");
    for operation in &operations {
        let _ = write!(table, "   {operation:<23}");
    }
    let _ = write!(table, "\n{:>9}", "size");
    for _ in &operations {
        let _ = write!(table, "   {:>10} {:>12}", "median", "bandwidth");
    }
    for size in sizes {
        let _ = write!(table, "\n{:>9}", size_text(size));
        for operation in &operations {
            match rows.iter().find(|row| row.bytes == size && row.operation == *operation) {
                Some(row) => {
                    let bandwidth = rate_text(row.gigabytes_per_second());
                    let _ = write!(table, "   {:>10} {bandwidth:>12}", time_text(row.latency_us));
                }
                None => {
                    let _ = write!(table, "   {:>10} {:>12}", "-", "-");
                }
            }
        }
    }
    let lines: Vec<_> = table.lines().map(str::trim_end).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_lines_are_understood_and_others_left_alone() {
        assert_eq!(parse(b"@plan 12 3"), Some(Message::Plan { checks: 12, measurements: 3 }));
        assert_eq!(parse(b"@case all_sum/float32/7"), Some(Message::Case("all_sum/float32/7".into())));
        assert_eq!(parse(b"@done"), Some(Message::Done));
        assert_eq!(parse(b"@looping"), Some(Message::Looping));
        assert_eq!(parse(b"@round 12"), Some(Message::Round(12)));
        let fail = Message::Fail { case: "a/b".into(), text: "element 3: \"x\"".into() };
        assert_eq!(parse(br#"@fail {"case":"a/b","text":"element 3: \"x\""}"#), Some(fail));
        let row = Row { operation: "all_gather".into(), bytes: 8, latency_us: 2.5 };
        assert_eq!(parse(br#"@row {"operation":"all_gather","bytes":8,"latency_us":2.5}"#), Some(Message::Row(row)));
        let error = LoopError { at_us: 1, text: "t".into(), again_us: 2, again: "a".into() };
        let line = br#"@error {"at_us":1,"text":"t","again_us":2,"again":"a"}"#;
        assert_eq!(parse(line), Some(Message::Error(error)));
        for other in
            [&b"hello"[..], b"@", b"@plan 1", b"@error {", b"@rowing", b"@round", b"x @done", b"@\xff", b"@row {}"]
        {
            assert_eq!(parse(other), None, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn the_table_has_a_line_per_size_and_columns_per_operation() {
        let row = |operation: &str, bytes, latency_us| Row { operation: operation.into(), bytes, latency_us };
        let rows = [
            row("all_sum float32", 1 << 20, 500.0),
            row("all_sum float32", 8, 5.25),
            row("all_gather", 8, 1234.5),
            row("all_gather", 1000, 0.0),
        ];
        let expected = [
            "            all_sum float32           all_gather",
            "     size       median    bandwidth       median    bandwidth",
            "      8 B      5.25 µs    1.52 MB/s      1.23 ms    6.48 kB/s",
            "   1000 B            -            -      0.00 µs    0.00 kB/s",
            "    1 MiB       500 µs    2.10 GB/s            -            -",
        ];
        assert_eq!(table(&rows).lines().collect::<Vec<_>>(), expected);
        assert_eq!(table(&[]), "");
    }
}
