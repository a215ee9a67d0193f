//! What a rank reports, on lines of standard output that begin with `@`.
//!
//! `cargo xtask ring-test` and the tests read them (the former's `ring_test/report.rs` lists them too). A reader that is
//! gone is no reason to panic: the process ends soon anyway.

use std::io::Write;
use std::time::{Duration, SystemTime};

use serde_json::json;

/// The exit code when a port of this rank was taken: start again with others. (EADDRINUSE's number on Linux.)
pub const PORT_TAKEN: u8 = 98;

/// Whether an error says that a port of this rank was taken. The errno's text is all that is left of it in an error that
/// came through nuvec, so this reads it, as no product code may.
pub fn is_port_taken(error: &str) -> bool {
    error.contains("Address already in use")
}

fn line(text: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_fmt(format_args!("@{text}\n")).and_then(|()| out.flush());
}

/// There will be so many checks, then so many measurements.
pub fn plan(checks: usize, measurements: usize) {
    line(format_args!("plan {checks} {measurements}"));
}

/// The check, or measurement, `name` begins.
pub fn case(name: &str) {
    line(format_args!("case {name}"));
}

/// The check `case` failed; `text` says how.
pub fn fail(case: &str, text: &str) {
    line(format_args!("fail {}", json!({ "case": case, "text": text })));
}

/// An `operation` on arrays of `bytes` bytes per rank takes `latency`.
pub fn row(operation: &str, bytes: usize, latency: Duration) {
    let latency_us = latency.as_secs_f64() * 1e6;
    line(format_args!("row {}", json!({ "operation": operation, "bytes": bytes, "latency_us": latency_us })));
}

/// The endless loop runs.
pub fn looping() {
    line(format_args!("looping"));
}

/// So many calls of the endless loop are done, and their results were right.
pub fn round(done: usize) {
    line(format_args!("round {done}"));
}

/// The endless loop ended with the error `text` at `at`, and the call after it with the error `again`, which took
/// `again_took` (an empty text: it succeeded).
pub fn error(at: SystemTime, text: &str, again: &str, again_took: Duration) {
    let at_us = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
    let again_us = again_took.as_micros() as u64;
    line(format_args!("error {}", json!({ "at_us": at_us, "text": text, "again": again, "again_us": again_us })));
}

/// Every check ran.
pub fn done() {
    line(format_args!("done"));
}
