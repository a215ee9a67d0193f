//! Messages between two ranks: those whose sender is gone, those that nobody sends, and those of another kind.

use std::time::Duration;

use nuvec_distributed_tests::harness::{run_ring, start_ring};

use super::{PATIENCE, errors, host, ranks, right, words};

#[test]
fn a_message_whose_sender_exits_at_once_arrives_whole() {
    for n in [2, 3] {
        let finished = ranks(n, 2, |_| words("parting 2000000"));
        assert!(right(&finished[1], 1), "{n} ranks: {finished:?}");
    }
}

#[test]
fn a_message_outlives_its_sender() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let (mut running, _hostfile) = start_ring(
        host(),
        2,
        1,
        PATIENCE,
        &|_, command| {
            command.args(["parting", "60000", "--go"]).arg(&go).env("NUVEC_DISTRIBUTED_TIMEOUT", "10");
        },
        "@joined",
    );
    running.wait_for(0, "@sent", Duration::from_secs(20));
    // It exits at once, and the receiver hears that it has.
    std::thread::sleep(Duration::from_millis(500));
    std::fs::write(&go, "").unwrap();
    let finished = running.finish(PATIENCE);
    assert!(right(&finished[1], 1), "{finished:?}");
}

#[test]
fn ranks_that_receive_in_a_circle_are_told_that_they_are_deadlocked() {
    let finished = run_ring(host(), 3, 1, PATIENCE, &|rank, command| {
        let from = format!("recv:{}", (rank + 1) % 3);
        command.args(["call", &from, "4"]).env("NUVEC_DISTRIBUTED_TIMEOUT", "4");
    });
    for (rank, error) in errors(&finished).iter().enumerate() {
        assert!(error.contains("deadlock"), "rank {rank}: {error:?}");
        // The circle may begin at any rank.
        let circle = (0..3).any(|first| {
            let at = |i: usize| format!("rank {} in recv", (first + i) % 3);
            error.contains(&format!("{}, {}, {}, back to rank {first}", at(0), at(1), at(2)))
        });
        assert!(circle, "rank {rank}: {error:?}");
    }
}

#[test]
fn a_small_message_of_another_kind_is_an_error_of_that_receive_alone() {
    for by in ["", " --shape"] {
        for bytes in [0, 1, 1 << 20] {
            let finished = ranks(2, 2, |_| words(&format!("mistaken {bytes}{by}")));
            let first = |rank: usize| finished[rank].said("@first").next().unwrap_or_default();
            assert_eq!(first(0), "succeeded", "{bytes}{by}: {finished:?}");
            assert!(first(1).contains("rank 0 sent another dtype or shape than"), "{bytes}{by}: {finished:?}");
            assert!(finished.iter().all(|r| r.said("@lives").eq(["true"])), "{bytes}{by}: {finished:?}");
        }
    }
}

#[test]
fn a_large_message_of_another_kind_ends_the_group_and_says_what_is_probably_wrong() {
    for by in ["", " --shape"] {
        let finished = ranks(2, 2, |_| words(&format!("mistaken {}{by}", (1 << 20) + 1)));
        let first = finished[1].said("@first").next().unwrap_or_default();
        assert!(first.contains("dtype or shape probably differ") && first.contains("rank 0 ("), "{by:?}: {finished:?}");
        assert!(finished.iter().all(|rank| rank.said("@lives").count() == 0), "{by:?}: {finished:?}");
        assert!(errors(&finished).iter().all(|e| e.contains("dtype or shape")), "{by:?}: {finished:?}");
    }
}
