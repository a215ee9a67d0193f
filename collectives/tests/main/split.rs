//! Groups within groups.

use std::collections::BTreeMap;
use std::time::Duration;

use nuvec_collectives::{DType, Reduction};
use nuvec_transport::Kind;

use super::{Group, Shape};

/// The ranks among all of a group's members, by an all-gather of the group itself.
fn members(group: &Group, me: usize) -> Vec<usize> {
    let mut all = vec![0; group.size()];
    group.all_gather(&[me as u8], &mut all).unwrap();
    all.iter().map(|&r| usize::from(r)).collect()
}

fn sum(group: &Group, value: u8) -> u8 {
    let mut data = [value];
    group.all_reduce(&mut data, DType::U8, Reduction::Sum).unwrap();
    data[0]
}

#[test]
fn ranks_of_one_colour_form_a_group_in_the_order_of_their_keys() {
    // (rank, size) → (color, key), and the groups that come of it.
    type Choose = fn(usize) -> (i32, i32);
    let cases: [(usize, Choose, &[&[usize]]); 6] = [
        (6, |r| ((r / 3) as i32, 0), &[&[0, 1, 2], &[3, 4, 5]]),
        (6, |r| ((r % 2) as i32, 10 - r as i32), &[&[4, 2, 0], &[5, 3, 1]]),
        (4, |r| (7, -(r as i32)), &[&[0, 1, 2, 3]]),
        (4, |r| (r as i32 - 2, 5), &[&[0], &[1], &[2], &[3]]),
        (5, |_| (-3, i32::MAX), &[&[0, 1, 2, 3, 4]]),
        (3, |r| ((r > 0) as i32, if r == 1 { i32::MIN } else { 0 }), &[&[0], &[2, 1]]),
    ];
    for (n, choose, expected) in cases {
        for k in [1, 2] {
            let found = Shape::new(n, k).run(move |group| {
                let (color, key) = choose(group.rank());
                let part = group.split(color, key).unwrap();
                let members = members(&part, group.rank());
                assert_eq!(members[part.rank()], group.rank());
                assert_eq!((0..part.size()).map(|r| part.rank_of_all(r).unwrap()).collect::<Vec<_>>(), members);
                (color, members)
            });
            let groups: BTreeMap<i32, Vec<usize>> = found.into_iter().collect();
            let mut groups: Vec<_> = groups.into_values().collect();
            groups.sort_by_key(|g| *g.iter().min().unwrap());
            assert_eq!(groups, expected, "{n} ranks");
        }
    }
}

#[test]
fn children_of_children_and_their_parents_take_turns() {
    Shape::new(6, 2).run(|all| {
        let r = all.rank();
        let half = all.split((r / 3) as i32, 0).unwrap();
        let part = half.split((half.rank() / 2) as i32, 0).unwrap();
        assert_eq!((half.size(), part.size()), (3, if r % 3 == 2 { 1 } else { 2 }));
        for i in 0..50 {
            assert_eq!(sum(all, 1), 6);
            assert_eq!(sum(&half, r as u8), if r < 3 { 3 } else { 12 });
            assert_eq!(usize::from(sum(&part, 1)), part.size());
            if half.rank() == 0 {
                half.send(2, &[i]).unwrap();
            } else if half.rank() == 2 {
                let mut got = [0];
                half.recv(0, &mut got).unwrap();
                assert_eq!(got, [i]);
            }
        }
        // Split again, after operations on every level.
        let again = half.split(0, -1).unwrap();
        assert_eq!(usize::from(sum(&again, 1)), 3);
    });
}

#[test]
fn a_parent_and_its_child_work_in_two_threads_at_once() {
    Shape::new(2, 1).run(|all| {
        let child = all.split(0, 0).unwrap();
        std::thread::scope(|scope| {
            for group in [all, &child] {
                scope.spawn(move || (0..200).for_each(|_| assert_eq!(sum(group, 1), 2)));
            }
        });
    });
}

#[test]
fn a_child_that_fails_leaves_its_parent_and_its_sibling_working() {
    let errors = Shape::new(4, 1).run(|all| {
        let r = all.rank();
        let child = all.split((r % 2) as i32, 0).unwrap();
        let mut failed = None;
        if r % 2 == 1 {
            // Ranks 1 and 3, which are ranks 0 and 1 of their group, disagree.
            let mut data = vec![0; 8 * r];
            let result = child.all_reduce(&mut data, DType::F64, Reduction::Sum).and_then(|()| child.barrier());
            let error = result.expect_err("a mismatch");
            assert_eq!(child.barrier().expect_err("poisoned").kind(), Kind::Poisoned);
            failed = Some(error.to_string());
        } else {
            assert_eq!(sum(&child, 1), 2);
        }
        assert_eq!(sum(all, 1), 4);
        if r % 2 == 0 {
            assert_eq!(sum(&child, 1), 2);
        }
        failed
    });
    let error = errors[1].as_ref().unwrap();
    assert!(error.contains("rank 1 (rank 3 of all, memory)"), "a child's ranks and all's are told apart: {error}");
}

#[test]
fn a_poisoned_parent_does_not_poison_its_children_but_splits_no_more() {
    Shape { timeout: Duration::from_millis(400), ..Shape::new(2, 1) }.run(|all| {
        let child = all.split(0, 0).unwrap();
        let mut data = vec![0; 4 + 4 * all.rank()];
        let failed = all.all_reduce(&mut data, DType::F32, Reduction::Sum).and_then(|()| all.barrier());
        assert_eq!(failed.expect_err("a mismatch").kind(), Kind::Mismatch);
        assert_eq!(sum(&child, 1), 2);
        assert_eq!(all.split(0, 0).err().map(|e| e.kind()), Some(Kind::Poisoned));
    });
}

#[test]
fn closing_the_group_of_all_closes_its_children() {
    Shape::new(2, 1).run(|all| {
        let child = all.split(0, 0).unwrap();
        all.close();
        assert_eq!(child.barrier().expect_err("closed").kind(), Kind::Closed);
    });
}

#[test]
fn a_split_is_never_taken_for_an_operation_of_the_program() {
    // Of as many bytes as a split's own two words.
    type Other = fn(&Group) -> Result<(), nuvec_transport::Error>;
    let others: [(&str, Other); 2] = [
        ("all_gather", |group| group.all_gather(&[9; 8], &mut vec![0; 8 * group.size()])),
        ("all_sum", |group| group.all_reduce(&mut [9; 8], DType::U64, Reduction::Sum)),
    ];
    for (n, (name, other)) in [2, 3].into_iter().flat_map(|n| others.map(|other| (n, other))) {
        let errors = Shape::new(n, 1).run(move |group| {
            if group.rank() == 0 { other(group) } else { group.split(0, 0).map(drop) }.expect_err("two calls")
        });
        for error in errors {
            let line = error.to_string();
            // One that had not begun when the others failed finds the group poisoned.
            assert_eq!(error.cause().unwrap_or(&error).kind(), Kind::Mismatch, "{line}");
            assert!(line.contains("split #1") && line.contains(&format!("{name} #1")), "{n} ranks: {line}");
        }
    }
}
