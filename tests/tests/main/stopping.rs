//! R2: a rank that is stopped, and continues in time or too late.

use std::process::Command;
use std::time::{Duration, Instant};

use nuvec_distributed_tests::harness::start_ring;

use super::{PATIENCE, host, right};

/// The time-out of these rings.
const TIMEOUT: Duration = Duration::from_secs(3);

fn steady(milliseconds: &'static str) -> impl Fn(usize, &mut Command) {
    move |_, command| {
        command.args(["steady", milliseconds]).env("NUVEC_DISTRIBUTED_TIMEOUT", TIMEOUT.as_secs().to_string());
    }
}

#[test]
fn a_rank_that_is_stopped_for_half_the_time_out_costs_no_bit_and_no_error() {
    for stopped in [0, 2] {
        let (mut ranks, _hostfile) = start_ring(host(), 3, 2, PATIENCE, &steady("2500"), "@looping");
        ranks.signal(stopped, "STOP");
        std::thread::sleep(TIMEOUT / 2);
        ranks.signal(stopped, "CONT");
        let finished = ranks.finish(PATIENCE);
        assert!(finished.iter().all(|rank| right(rank, 1)), "rank {stopped} was stopped: {finished:?}");
    }
}

#[test]
fn a_rank_that_stays_stopped_is_named_by_every_other_rank() {
    for stopped in [1, 0] {
        let (mut ranks, _hostfile) = start_ring(host(), 4, 1, PATIENCE, &steady("60000"), "@looping");
        ranks.signal(stopped, "STOP");
        let start = Instant::now();
        for rank in (0..4).filter(|&rank| rank != stopped) {
            ranks.wait_for(rank, "@error", Duration::from_secs(20));
        }
        // The time-out, a second for the others' word, and what a busy machine takes.
        assert!(start.elapsed() < TIMEOUT + Duration::from_secs(6), "it took {:?}", start.elapsed());
        ranks.signal(stopped, "CONT");
        let finished = ranks.finish(PATIENCE);
        for (rank, finished) in finished.iter().enumerate().filter(|&(rank, _)| rank != stopped) {
            let error = finished.said("@error").next().unwrap_or_default();
            assert!(error.contains(&format!("rank {stopped} (")), "rank {rank} of 4: {error}");
            assert!(error.contains("no sign of life"), "rank {rank} of 4: {error}");
        }
        // It wakes up in a group that has failed.
        assert_eq!(finished[stopped].said("@error").count(), 1, "{:?}", finished[stopped]);
    }
}
