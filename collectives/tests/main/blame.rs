//! Who is blamed for a time-out, and what can be seen of a group while a call hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nuvec_collectives::{DType, RankState, Reduction};
use nuvec_transport::Kind;

use super::{Group, Shape};

fn sum(group: &Group) -> Result<(), nuvec_transport::Error> {
    group.all_reduce(&mut [0; 4], DType::F32, Reduction::Sum)
}

fn short(n: usize) -> Shape {
    Shape { timeout: Duration::from_secs(3), ..Shape::new(n, 1) }
}

#[test]
fn every_rank_blames_the_one_that_did_not_reach_the_call() {
    let blamed = |n: usize, late: usize| {
        let failed = Arc::new(AtomicUsize::new(0));
        let errors = short(n).run(move |group| {
            sum(group).unwrap();
            if group.rank() != late {
                let error = sum(group).expect_err("a rank is missing");
                failed.fetch_add(1, Ordering::Relaxed);
                return Some(error);
            }
            let start = Instant::now();
            while failed.load(Ordering::Relaxed) < n - 1 && start.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(10));
            }
            None
        });
        for error in errors.into_iter().flatten() {
            assert_eq!(error.peer().map(|p| p.rank), Some(late), "{n} ranks: {error}");
            assert_eq!(error.kind(), Kind::TimedOut);
            let line = error.to_string();
            assert!(line.contains("is alive but has not reached all_sum #2: it is in no call"), "{line}");
            assert!(line.contains("raise the time-out"), "{line}");
            assert!(line.contains("where the ranks stand: ") && line.contains(&format!("rank {late} idle")), "{line}");
        }
    };
    // At once: each takes the time-out.
    std::thread::scope(|scope| {
        for (n, late) in (2..=5).flat_map(|n| (0..n).map(move |late| (n, late))) {
            scope.spawn(move || blamed(n, late));
        }
    });
}

#[test]
fn receives_that_wait_for_each_other_are_shown_as_a_cycle() {
    let shown = |n: usize| {
        let errors = short(n).run(move |group| {
            let left = (group.rank() + n - 1) % n;
            group.recv(left, &mut [0]).expect_err("nobody sends").to_string()
        });
        assert!(errors.iter().all(|e| e.contains("deadlock, every rank waits for the next: rank ")), "{errors:?}");
        assert!(errors.iter().all(|e| (0..n).all(|r| e.contains(&format!("rank {r} in recv")))), "{errors:?}");
    };
    std::thread::scope(|scope| (2..=4).for_each(|n| drop(scope.spawn(move || shown(n)))));
}

#[test]
fn a_receive_from_a_rank_in_a_collective_names_that_call() {
    let errors = short(2).run(|group| {
        if group.rank() == 0 { group.recv(1, &mut [0]).expect_err("no send") } else { sum(group).expect_err("no sum") }
            .to_string()
    });
    assert!(errors.iter().any(|e| e.contains("it is in all_sum #1") || e.contains("it is in recv #1")), "{errors:?}");
}

#[test]
fn another_thread_sees_in_which_call_a_rank_hangs_waiting_for_whom() {
    let groups = Shape::new(2, 1).form();
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| sum(&groups[0]));
        let start = Instant::now();
        let status = loop {
            let status = groups[0].status();
            if status[0].calls.first().is_some_and(|call| !call.waits_for.is_empty()) {
                break status;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{status:?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        let call = &status[0].calls[0];
        assert_eq!((call.operation, call.sequence, &call.waits_for[..]), ("all_sum", 1, &[1][..]));
        assert!(groups[0].counters().waits[1] > 0);
        assert_eq!(groups[0].counters().operations, 0);
        sum(&groups[1]).unwrap();
        hanging.join().unwrap().unwrap();
    });
    assert!(groups[0].status()[0].calls.is_empty());
    let counts = groups[0].counters();
    assert_eq!((counts.operations, counts.bytes), (1, 4));
}

#[test]
fn a_rank_that_ends_in_the_middle_is_named_with_where_to_look() {
    let errors = Shape::new(3, 1).run(|group| {
        if group.rank() == 1 {
            group.close();
            return None;
        }
        Some(sum(group).expect_err("rank 1 has left"))
    });
    for error in errors.into_iter().flatten() {
        assert_eq!(error.peer().map(|p| p.rank), Some(1), "{error}");
        assert!(error.to_string().contains("; it has ended: see its own output"), "{error}");
    }
}

#[test]
fn a_message_with_a_rank_that_left_fails_at_once() {
    let groups = Shape::new(3, 1).form();
    groups[1].close();
    let start = Instant::now();
    let status = groups[0].status();
    assert_eq!(status[1].state, RankState::Gone);
    let error = groups[0].send(1, &[0]).expect_err("rank 1 has left");
    assert_eq!((error.kind(), error.peer().map(|p| p.rank)), (Kind::PeerClosed, Some(1)), "{error}");
    let error = groups[2].recv(1, &mut [0]).expect_err("rank 1 has left");
    assert_eq!(error.peer().map(|p| p.rank), Some(1), "{error}");
    assert!(error.to_string().contains("has left; see its own output"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}
