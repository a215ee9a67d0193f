//! Groups that several share: threads of a process, a forked child, a group and those split from it.

use super::{errors, ranks, right, words};

#[test]
fn threads_that_use_one_group_at_once_get_right_results() {
    for n in [2, 3] {
        let finished = ranks(n, 2, |_| words("threads"));
        assert!(finished.iter().all(|rank| right(rank, 3)), "{finished:?}");
    }
}

#[test]
fn threads_that_use_a_group_each_get_right_results() {
    for n in [2, 3] {
        let finished = ranks(n, 2, |_| words("threads --own"));
        assert!(finished.iter().all(|rank| right(rank, 3)), "{finished:?}");
    }
}

#[test]
fn a_forked_child_is_refused_and_the_parents_group_lives() {
    for end in ["exit", "drop", "close", "shutdown"] {
        let finished = ranks(2, 2, |_| words(&format!("fork {end}")));
        for (number, rank) in finished.iter().enumerate() {
            let child: Vec<_> = rank.said("@child").collect();
            assert!(child.len() == 1 && child[0].starts_with("misuse"), "{end}: rank {number}: {rank:?}");
            assert!(child[0].contains("forked child"), "{end}: rank {number}: {rank:?}");
            // The child's exit status: 0, by exit.
            assert!(rank.said("@ended").eq(["0"]), "{end}: rank {number}: {rank:?}");
            assert!(right(rank, 40), "{end}: rank {number}: {rank:?}");
        }
    }
}

#[test]
fn a_group_that_fails_leaves_its_parent_and_its_sibling_working() {
    let finished = ranks(4, 2, |_| words("siblings"));
    assert_eq!(errors(&finished), ["", "", "", ""], "{finished:?}");
    for (number, rank) in finished.iter().enumerate() {
        let child = format!("{} of 2", number % 2);
        assert!(rank.said("@child").eq([child.as_str()]), "rank {number}: {rank:?}");
        let first: Vec<_> = rank.said("@first").collect();
        if number < 2 {
            assert_eq!(first, ["true", "true"], "rank {number}: {rank:?}");
        } else {
            assert!(first.len() == 2 && first.iter().all(|e| e.contains("4 float32")), "rank {number}: {rank:?}");
            assert!(first[1].contains("the group failed earlier"), "rank {number}: {rank:?}");
        }
        assert!(right(rank, 11), "rank {number}: {rank:?}");
    }
}
