//! That the rank binary's checks pass, and that they can fail.

use nuvec_distributed_tests::harness::run_ring;

use super::{PATIENCE, rank};

const CASE: &str = "all_sum/float32/1000";

#[test]
fn a_ring_passes_a_check_of_every_kind() {
    for case in
        [CASE, "all_gather/bool/251", "send_left/int64/1000", "reduce_scatter/sum/bfloat16/1", "broadcast/1", "barrier"]
    {
        let finished = run_ring(rank(), 3, 2, PATIENCE, &|_, command| {
            command.args(["check", "--seed", "7", "--quick", "--one-machine", "--only", case]);
        });
        for (number, rank) in finished.iter().enumerate() {
            assert!(rank.status.success() && rank.said("@done").count() == 1, "{case}: rank {number}: {rank:?}");
            assert!(rank.said("@case").all(|name| name.starts_with(case)), "{rank:?}");
        }
    }
}

#[test]
fn a_spoiled_element_fails_its_check_on_that_rank_and_leaves_the_ring_alive() {
    let finished = run_ring(rank(), 2, 1, PATIENCE, &|number, command| {
        command.args(["check", "--seed", "7", "--quick", "--only", "all_sum/float32"]);
        if number == 1 {
            command.args(["--spoil", CASE]);
        }
    });
    let failed: Vec<_> = finished[1].said("@fail").collect();
    assert_eq!(finished[1].status.code(), Some(1));
    assert!(failed.iter().all(|text| text.contains(CASE)), "{failed:?}");
    assert!(
        failed.iter().any(|text| text.contains("element 500 of 1000") || text.contains("different bits")),
        "{failed:?}"
    );
    // All checks ran on both: a wrong result does not end the group.
    assert!(finished.iter().all(|rank| rank.said("@done").count() == 1), "{finished:?}");
}

#[test]
fn spoiling_a_check_that_does_not_run_is_a_failure_too() {
    let finished = run_ring(rank(), 1, 1, PATIENCE, &|_, command| {
        command.args(["check", "--seed", "7", "--quick", "--only", CASE, "--spoil", "no/such/check"]);
    });
    assert_eq!(finished[0].status.code(), Some(1));
    assert!(finished[0].said("@fail").any(|text| text.contains("nothing to spoil")), "{finished:?}");
}
