//! The facade's examples, as a user starts them.

use std::path::Path;

use nuvec_distributed_tests::harness::{Finished, run_ring};

use super::PATIENCE;

/// Runs an example on `n` ranks; again if a port was taken, which an example does not tell by its exit code.
fn run(program: &str, n: usize) -> Vec<Finished> {
    for _ in 0..5 {
        let finished = run_ring(Path::new(program), n, 2, PATIENCE, &|_, command| {
            command.env("NUVEC_DISTRIBUTED_TIMEOUT", "10");
        });
        if !finished.iter().flat_map(|rank| &rank.lines).any(|line| line.contains("Address already in use")) {
            return finished;
        }
    }
    panic!("5 times in a row a port was taken");
}

#[test]
fn all_sum_prints_the_same_sum_on_every_rank() {
    for (n, total) in [(1, "[1.0, 0.0]"), (2, "[2.0, 1.0]"), (4, "[4.0, 6.0]")] {
        let finished = run(env!("CARGO_BIN_EXE_all_sum"), n);
        for (number, rank) in finished.iter().enumerate() {
            let begin = format!("rank {number} of {n}: ");
            assert!(rank.status.success(), "{rank:?}");
            assert!(rank.said(&begin).any(|line| line.ends_with(&format!("is {total}"))), "{rank:?}");
        }
    }
}

#[test]
fn a_pipeline_computes_what_one_process_computes() {
    let mut outputs = Vec::new();
    // More ranks than stages, too: those have nothing to do.
    for n in [1, 2, 3, 4, 5] {
        let finished = run(env!("CARGO_BIN_EXE_pipeline"), n);
        assert!(finished.iter().all(|rank| rank.status.success()), "{finished:?}");
        let said: Vec<_> = finished[0].said("result").collect();
        assert!(said.len() == 1 && said[0].ends_with("as one process computes it"), "{finished:?}");
        outputs.push(said[0].to_owned());
    }
    assert!(outputs.iter().all(|output| *output == outputs[0]), "{outputs:?}");
}
