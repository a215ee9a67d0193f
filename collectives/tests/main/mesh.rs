//! What is a mesh's own: the order of its sums, large broadcasts, no split. What it has in common with the ring is tested
//! with the ring.

use std::time::Duration;

use nuvec_collectives::{DType, Reduction};
use nuvec_transport::Kind;

use super::Shape;
use super::collectives::{bytes, floats};

/// The documented order of an all-reduce of `len` floats over a mesh, computed serially.
fn summed(n: usize, len: usize) -> Vec<u8> {
    let inputs: Vec<_> = (0..n).map(|r| floats(r, len)).collect();
    let block = if len * 4 <= 16 << 10 { usize::MAX } else { len.div_ceil(n) };
    let sum = |i: usize| {
        // Block r begins with rank r; one block is rank 0's.
        let first = i / block;
        (1..n).fold(inputs[first][i], |sum, distance| sum + inputs[(first + distance) % n][i])
    };
    bytes(&(0..len).map(sum).collect::<Vec<_>>())
}

#[test]
fn sums_are_in_the_documented_order_on_every_rank() {
    for n in 2..=5 {
        for len in [0, 1, n - 1, n, 17, 4096, 4097, 65_537, 300_001] {
            let results = Shape::mesh(n).run(move |group| {
                let mut whole = bytes(&floats(group.rank(), len));
                group.all_reduce(&mut whole, DType::F32, Reduction::Sum).unwrap();
                let mut blocks = bytes(&floats(group.rank(), len * group.size()));
                group.reduce_scatter(&mut blocks, DType::F32, Reduction::Sum).unwrap();
                let own = group.rank() * len * 4;
                (whole, blocks[own..own + len * 4].to_vec())
            });
            let expected = summed(n, len);
            let inputs: Vec<_> = (0..n).map(|r| floats(r, len * n)).collect();
            for (rank, (whole, block)) in results.iter().enumerate() {
                assert!(*whole == expected, "{n} ranks, {len} elements: rank {rank} differs");
                let of_all = |i| (1..n).fold(inputs[rank][i], |sum, d| sum + inputs[(rank + d) % n][i]);
                let sums: Vec<_> = (rank * len..(rank + 1) * len).map(of_all).collect();
                assert!(*block == bytes(&sums), "{n} ranks, {len} elements: rank {rank}'s block");
            }
        }
    }
}

#[test]
fn large_broadcasts_and_gathers_over_a_mesh_are_right() {
    for n in 2..=5 {
        Shape::mesh(n).run(|group| {
            let (n, me) = (group.size(), group.rank());
            for len in [64 << 10, (64 << 10) + 1, 1_000_003] {
                let input = |rank: usize| -> Vec<u8> { (0..len).map(|i| (i * 7 + rank * 31) as u8).collect() };
                for root in 0..n {
                    let mut data = input(me);
                    group.broadcast(root, &mut data).unwrap();
                    assert!(data == input(root), "{n} ranks, {len} bytes from rank {root}");
                }
                let mut all = vec![0; n * len];
                group.all_gather(&input(me), &mut all).unwrap();
                assert!(all == (0..n).flat_map(input).collect::<Vec<_>>(), "{n} ranks, {len} bytes");
            }
        });
    }
}

#[test]
fn a_split_is_refused_and_the_group_lives_on() {
    Shape::mesh(3).run(|all| {
        for color in [0, all.rank() as i32 / 2] {
            let error = all.split(color, 0).err().expect("a mesh has no rings");
            // A rank that would have been alone hears of it from the others.
            assert!(color == 1 || error.kind() == Kind::Unsupported, "{error}");
            assert!(error.to_string().contains("a mesh cannot be split"), "{error}");
            let mut data = [1];
            all.all_reduce(&mut data, DType::U8, Reduction::Sum).unwrap();
            assert_eq!(data, [3]);
        }
    });
}

#[test]
fn every_rank_blames_the_one_that_did_not_reach_the_call() {
    // At once: each takes the time-out.
    std::thread::scope(|scope| {
        for (n, late) in (2..=5).flat_map(|n| (0..n).map(move |late| (n, late))) {
            scope.spawn(move || {
                let errors = Shape { timeout: Duration::from_secs(1), ..Shape::mesh(n) }.run(move |group| {
                    group.barrier().unwrap();
                    if group.rank() == late {
                        // Silent for longer than the others wait.
                        std::thread::sleep(Duration::from_secs(4));
                        return None;
                    }
                    let failed = group.all_reduce(&mut [0; 4], DType::F32, Reduction::Sum);
                    Some(failed.expect_err("a rank is missing"))
                });
                for error in errors.into_iter().flatten() {
                    assert_eq!(error.peer().map(|p| p.rank), Some(late), "{n} ranks: {error}");
                    let line = error.to_string();
                    assert!(line.contains("is alive but has not reached all_sum #2: it is in no call"), "{line}");
                }
            });
        }
    });
}
