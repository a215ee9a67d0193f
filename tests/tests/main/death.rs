//! R1: a rank that dies is named by every survivor, at once and ever after.

use std::process::Command;
use std::time::{Duration, Instant};

use nuvec_distributed_tests::harness::start_ring;

use super::{PATIENCE, rank};

#[test]
fn a_rank_that_dies_is_named_by_every_survivor() {
    for victim in [2, 0] {
        let run = |_: usize, command: &mut Command| {
            command.arg("loop");
        };
        let (mut ranks, _hostfile) = start_ring(rank(), 4, 2, PATIENCE, &run, "@looping");
        let death = Instant::now();
        ranks.kill(victim);
        for number in (0..4).filter(|&n| n != victim) {
            ranks.wait_for(number, "@error", Duration::from_secs(20));
        }
        assert!(death.elapsed() < Duration::from_secs(5), "survivors took {:?}", death.elapsed());
        for (number, rank) in ranks.finish(PATIENCE).iter().enumerate().filter(|(n, _)| *n != victim) {
            let report: serde_json::Value =
                rank.said("@error").next().and_then(|e| serde_json::from_str(e).ok()).unwrap();
            for text in [&report["text"], &report["again"]] {
                let text = text.as_str().unwrap_or_default();
                assert!(text.contains(&format!("rank {victim} (")), "rank {number} says {text:?}");
            }
            let again = report["again"].as_str().unwrap_or_default();
            assert!(again.contains("the group failed earlier"), "rank {number} then says {again:?}");
        }
    }
}
