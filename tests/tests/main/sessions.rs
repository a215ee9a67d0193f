//! What a session tells, and how it ends.

use std::process::Command;

use nuvec_distributed_tests::harness::run_ring;

use super::{PATIENCE, errors, host, ranks, words};

#[test]
fn another_thread_sees_where_every_rank_stands_and_a_closed_group_says_so() {
    let finished = run_ring(host(), 3, 1, PATIENCE, &|_, command: &mut Command| {
        command.arg("watch").env("NUVEC_DISTRIBUTED_TIMEOUT", "10");
    });
    assert!(finished.iter().all(|rank| rank.status.success()), "{finished:?}");

    // Ranks 0 and 2 are in their second collective and wait; rank 1 is in none.
    let stands: Vec<_> = finished[0].said("@stands").collect();
    assert!(stands.len() == 3 && stands[1] == "1 true []", "{stands:?}");
    for rank in [0, 2] {
        let text = stands[rank];
        assert!(text.starts_with(&format!("{rank} true [CallStatus {{")), "{text}");
        assert!(text.contains("operation: \"all_sum\", sequence: 2"), "{text}");
    }
    // Both neighbours of rank 1: the left one waits for nothing but its bytes, the right one may wait for either.
    assert!(stands.iter().any(|text| text.contains("waits_for: [1]") || text.contains("waits_for: [1,")), "{stands:?}");
    let table: Vec<_> = finished[0].said("@table").collect();
    assert!(table[0].starts_with("rank 0: all_sum #2 waits for"), "{table:?}");
    assert!(table[1].starts_with("rank 1: idle"), "{table:?}");
    assert!(table[2].starts_with("rank 2: all_sum #2 waits for"), "{table:?}");
    for line in [table[0], table[2]] {
        let age = line.split_once(", for ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok());
        // Rank 0 asked after 2.8 s.
        assert!(age.is_some_and(|age| age < 4.0), "{line}");
    }
    let asked: f64 = finished[0].said("@asked").next().unwrap().parse().unwrap();
    assert!(asked < 0.5, "asking took {asked} s");

    for rank in &finished {
        let later: Vec<_> = rank.said("@later").collect();
        assert!(later.len() == 4 && later.iter().all(|text| text.contains("closed")), "{later:?}");
    }
}

#[test]
fn a_rank_that_exits_without_closing_is_missed_only_by_who_needs_it() {
    let finished = ranks(4, 2, |_| words("leave"));
    assert!(finished[3].status.success() && finished[3].said("@error").count() == 0, "{finished:?}");
    for (rank, error) in errors(&finished).iter().enumerate().take(3) {
        assert!(finished[rank].said("@right").eq(["true"]), "rank {rank}: {finished:?}");
        assert!(error.contains("rank 3 ("), "rank {rank}: {error:?}");
    }
}
