//! Tests of whole rings: processes that join through the facade.

mod checks;
mod death;
mod examples;
mod jaccl;
mod links;
mod messages;
mod mlx;
mod resources;
mod sessions;
mod sharing;
mod situations;
mod stopping;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nuvec_distributed_tests::harness::{Finished, run_ring};

/// The rank binary.
fn rank() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_rank"))
}

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program that hosts a rank.
fn host() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_host"))
}

/// Runs `ranks` ranks, each in the situation that `arguments` gives it, with a time-out of 10 s.
fn ranks(ranks: usize, connections: usize, arguments: impl Fn(usize) -> Vec<String>) -> Vec<Finished> {
    run_ring(host(), ranks, connections, PATIENCE, &|rank, command: &mut Command| {
        command.args(arguments(rank)).env("NUVEC_DISTRIBUTED_TIMEOUT", "10");
    })
}

/// The words of an argument list.
fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// What each rank's error says; empty for one without.
fn errors(finished: &[Finished]) -> Vec<String> {
    finished.iter().map(|rank| rank.said("@error").next().map(str::to_owned).unwrap_or_default()).collect()
}

/// Whether a rank says `@right true` exactly `times` times, nothing else of that kind, and ends well.
fn right(rank: &Finished, times: usize) -> bool {
    rank.status.success() && rank.said("@right").eq(std::iter::repeat_n("true", times))
}
