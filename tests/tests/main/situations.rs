//! What a rank does in the situations that users of such systems reported.

use std::process::Command;
use std::time::Duration;

use nuvec_distributed_tests::harness::{run_ring, start_ring};

use super::{PATIENCE, errors, host, ranks, words};

#[test]
fn ranks_in_different_calls_never_get_data() {
    let disagreements = [
        ("call all_sum 4", "call all_sum 8", ["4 float32", "8 float32"]),
        ("call all_sum 4", "call all_sum 4 int32", ["4 float32", "4 int32"]),
        ("call all_sum 4", "call all_max 4", ["all_sum", "all_max"]),
        ("call all_sum 4", "call all_gather 4", ["all_sum", "all_gather"]),
        ("call all_sum 100000", "call all_sum 100001", ["100000 float32", "100001 float32"]),
        ("call all_gather 0", "call all_sum 100000", ["all_gather", "100000 float32"]),
    ];
    for (odd, even, named) in disagreements {
        for n in [2, 3] {
            let finished = ranks(n, 2, |rank| words(if rank == 1 { odd } else { even }));
            for (rank, error) in errors(&finished).iter().enumerate() {
                assert!(named.iter().all(|n| error.contains(n)), "{odd}, {even}: rank {rank} of {n}: {error:?}");
            }
            // With two ranks both see the other's call in their own.
            assert!(n > 2 || finished.iter().all(|r| r.said("@succeeded").count() == 0), "{finished:?}");
        }
    }
}

#[test]
fn a_message_of_another_length_is_an_error_and_never_data() {
    let finished = ranks(2, 1, |rank| words(if rank == 0 { "call send:1 10" } else { "call recv:0 12" }));
    let errors = errors(&finished);
    assert!(errors[1].contains("another dtype or shape"), "{errors:?}");
    assert_eq!(finished[1].said("@succeeded").count(), 0);
}

#[test]
fn sigpipe_does_not_end_the_host_process() {
    let adjust = |_: usize, command: &mut Command| {
        command.arg("sigpipe").env("NUVEC_DISTRIBUTED_TIMEOUT", "10");
    };
    let (mut running, _hostfile) = start_ring(host(), 3, 1, PATIENCE, &adjust, "@joined");
    std::thread::sleep(Duration::from_millis(300));
    running.kill(1);
    let finished = running.finish(PATIENCE);
    for rank in [0, 2] {
        assert!(finished[rank].status.success(), "{finished:?}");
        assert!(finished[rank].said("@survived").any(|e| e.contains("rank 1 (")), "{finished:?}");
    }
}

#[test]
fn a_rank_that_finishes_and_exits_disturbs_nobody() {
    for n in [2, 3, 5] {
        for _ in 0..4 {
            for (rank, finished) in ranks(n, 2, |_| words("finish")).iter().enumerate() {
                assert!(
                    finished.status.success() && finished.said("@right").all(|r| r == "true"),
                    "{rank}: {finished:?}"
                );
            }
        }
    }
}

#[test]
fn waiting_for_a_late_rank_takes_no_processor_time() {
    let finished = ranks(2, 1, |_| words("late 3000"));
    let share: f64 = finished[0].said("@share").next().unwrap().parse().unwrap();
    assert!(share < 0.05, "waiting took {:.1} % of one processor", share * 100.0);
}

#[test]
fn all_send_and_then_receive_what_the_transport_holds() {
    for n in [2, 3] {
        for bytes in [1, 60_000] {
            let finished = ranks(n, 2, |_| words(&format!("around {bytes}")));
            assert!(finished.iter().all(|r| r.said("@right").any(|x| x == "true")), "{finished:?}");
        }
    }
}

#[test]
fn all_that_send_too_much_before_they_receive_time_out_and_are_told_why() {
    let finished = run_ring(host(), 2, 1, PATIENCE, &|_, command| {
        command.args(["around", "67108864"]).env("NUVEC_DISTRIBUTED_TIMEOUT", "4");
    });
    for error in errors(&finished) {
        // As the rank sees it that says so first.
        let circle = ["rank 0 in send, rank 1 in send", "rank 1 in send, rank 0 in send"];
        assert!(error.contains("deadlock") && circle.iter().any(|c| error.contains(c)), "{error}");
        assert!(error.contains("have one of them receive before it sends"), "{error}");
    }
}

#[test]
fn values_with_a_meaning_of_their_own_survive_equally_on_every_rank() {
    for n in [2, 3] {
        let finished = ranks(n, 1, |_| words("edges"));
        let said: Vec<Vec<&str>> = finished.iter().map(|r| r.said("@edge").collect()).collect();
        assert!(said.iter().all(|s| *s == said[0] && s.len() == 14), "{said:?}");
        let int8 = if n == 2 { "-56" } else { "44" };
        for len in [8, 20_000] {
            for line in [
                format!("{len} sum float32 NaN inf -inf -0.0"),
                format!("{len} max float32 NaN inf 1.0 -0.0"),
                format!("{len} min float32 NaN 1.0 -inf -0.0"),
                format!("{len} sum float16 inf"),
                format!("{len} sum int8 {int8}"),
                format!("{len} sum bool true"),
                format!("{len} min bool false"),
            ] {
                assert!(said[0].contains(&line.as_str()), "{n} ranks: no {line:?} in {:?}", said[0]);
            }
        }
    }
}
