//! Every collective, on every length and dtype; disagreements; ranks that leave.

use std::time::{Duration, Instant};

use nuvec_collectives::plan::{self, Direction, Place};
use nuvec_collectives::reduce::{NanRule, reduce};
use nuvec_collectives::{DType, Reduction};
use nuvec_transport::{Error, Kind};

use super::{Group, Shape};

/// Rank `rank`'s `len` floats: values whose sum depends on the order.
pub(super) fn floats(rank: usize, len: usize) -> Vec<f32> {
    let mut state = (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let exponent = ((state >> 60) as i32 - 8) as f32;
            ((state >> 33) as f32 / (1_u64 << 31) as f32 - 0.5) * exponent.exp2()
        })
        .collect()
}

pub(super) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// The documented order of an all-reduce of `len` floats, computed serially.
fn summed(n: usize, k: usize, len: usize) -> Vec<u8> {
    let inputs: Vec<_> = (0..n).map(|r| floats(r, len)).collect();
    if len * 4 <= 32 << 10 {
        let sum = |i: usize| inputs[1..].iter().fold(inputs[0][i], |a, x| a + x[i]);
        return bytes(&(0..len).map(sum).collect::<Vec<_>>());
    }
    let lanes = (len * 4 / n / (32 << 10)).clamp(1, 2 * k);
    let mut sum = vec![0.0; len];
    for lane in plan::all_reduce(Place { rank: 0, size: n }, len, 4, lanes) {
        for j in 0..n {
            let next = |rank: usize| match lane.direction {
                Direction::Right => (rank + 1) % n,
                Direction::Left => (rank + n - 1) % n,
            };
            for i in lane.range(j).step_by(4).map(|byte| byte / 4) {
                let mut rank = j;
                sum[i] = inputs[j][i];
                for _ in 1..n {
                    rank = next(rank);
                    // Each rank adds what it receives to its own.
                    sum[i] += inputs[rank][i];
                }
            }
        }
    }
    bytes(&sum)
}

#[test]
fn all_reduce_sums_in_the_documented_order_on_every_rank() {
    for n in 2..=5 {
        for k in [1, 3] {
            for len in [0, 1, n - 1, n, 17, 8192, 8193, 65_537, 300_001] {
                let results = Shape::new(n, k).run(move |group| {
                    let mut data = bytes(&floats(group.rank(), len));
                    group.all_reduce(&mut data, DType::F32, Reduction::Sum).unwrap();
                    data
                });
                let expected = summed(n, k, len);
                for (rank, data) in results.iter().enumerate() {
                    assert!(*data == expected, "{n} ranks, {k} connections, {len} elements: rank {rank} differs");
                }
            }
        }
    }
}

#[test]
fn every_length_is_right_for_every_dtype_and_collective() {
    for n in 1..=5 {
        for shape in [Shape::new(n, 1), Shape::new(n, 2), Shape::new(n, 3), Shape::mesh(n)] {
            let results = shape.run(move |group| {
                let (n, me) = (group.size(), group.rank());
                let input =
                    |rank: usize, len: usize| -> Vec<u8> { (0..len).map(|i| (i * 7 + rank * 31) as u8).collect() };
                for len in 0..=70 {
                    let dtype = DType::ALL[len % DType::ALL.len()];
                    let reduction = Reduction::ALL[len % 3];
                    let size = len * dtype.size();
                    // Integers, whose result no order changes; floats have a test of their own.
                    let dtype =
                        if matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Complex64) {
                            DType::U8
                        } else {
                            dtype
                        };
                    let serial = |bytes: usize| {
                        let mut all = input(0, bytes);
                        if n == 1 {
                            return all;
                        }
                        (1..n).for_each(|r| reduce(dtype, reduction, NanRule::Propagate, &mut all, &input(r, bytes)));
                        all
                    };
                    let mut data = input(me, size);
                    group.all_reduce(&mut data, dtype, reduction).unwrap();
                    assert_eq!(data, serial(size), "all-reduce of {len} {dtype}");

                    let mut data = input(me, size * n);
                    group.reduce_scatter(&mut data, dtype, reduction).unwrap();
                    let block = me * size..(me + 1) * size;
                    assert_eq!(data[block.clone()], serial(size * n)[block], "reduce-scatter of {len} {dtype}");

                    let mut all = vec![0; size * n];
                    group.all_gather(&input(me, size), &mut all).unwrap();
                    let blocks: Vec<u8> = (0..n).flat_map(|r| input(r, size)).collect();
                    assert_eq!(all, blocks, "all-gather of {size}");

                    for root in 0..n {
                        let mut data = input(me, size);
                        group.broadcast(root, &mut data).unwrap();
                        assert_eq!(data, input(root, size), "broadcast of {size} from {root}");
                    }
                    group.barrier().unwrap();
                }
            });
            assert_eq!(results.len(), n);
        }
    }
}

#[test]
fn several_threads_move_the_lanes_of_a_large_message() {
    let shape = Shape { threads: 3, ..Shape::new(2, 3) };
    let len = 5 << 20 >> 2;
    let results = shape.run(move |group| {
        let mut data = bytes(&floats(group.rank(), len));
        group.all_reduce(&mut data, DType::F32, Reduction::Sum).unwrap();
        let mut all = vec![0; data.len() * 2];
        group.all_gather(&data, &mut all).unwrap();
        assert!(all[..data.len()] == data && all[data.len()..] == data);
        data
    });
    let expected = summed(2, 3, len);
    assert!(results.iter().all(|data| *data == expected));
}

#[test]
fn messages_of_every_size_go_between_all_pairs() {
    let messages = |group: &Group| {
        let (n, me) = (group.size(), group.rank());
        let message = |from: usize, len: usize| -> Vec<u8> { (0..len).map(|i| (i ^ (from * 77)) as u8).collect() };
        for len in [0, 1, 1023, 1024, 2049, 100_000] {
            for (from, to) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|(a, b)| a != b) {
                if me == from {
                    group.send(to, &message(from, len)).unwrap();
                } else if me == to {
                    let mut data = vec![0; len];
                    group.recv(from, &mut data).unwrap();
                    assert!(data == message(from, len), "{len} bytes from {from} to {to}");
                }
            }
        }
    };
    Shape::new(4, 2).run(messages);
    Shape::mesh(4).run(messages);
}

#[test]
fn two_threads_of_one_group_never_interleave() {
    let threads = |group: &Group| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mut data = bytes(&[1.5; 3000]);
                        group.all_reduce(&mut data, DType::F32, Reduction::Sum).unwrap();
                        assert!(data == bytes(&[3.0; 3000]));
                    }
                });
            }
        });
    };
    Shape::both(2).into_iter().for_each(|shape| drop(shape.run(threads)));
}

/// What each rank of a pair that disagrees says, in its call or the next one.
fn disagree(shape: Shape, odd: fn(&Group) -> Result<(), Error>, even: fn(&Group) -> Result<(), Error>) -> Vec<String> {
    let start = Instant::now();
    let errors = shape.run(move |group| {
        let call = if group.rank() == 1 { odd(group) } else { even(group) };
        let error = call.and_then(|()| group.barrier()).and_then(|()| group.barrier()).expect_err("a mismatch");
        let later = group.barrier().expect_err("poisoned");
        assert_eq!(later.kind(), Kind::Poisoned);
        assert!(later.to_string().contains("the group failed earlier"), "{later}");
        // A call that began after the failure says so too.
        let first = error.cause().unwrap_or(&error);
        assert_eq!(first.kind(), Kind::Mismatch, "{error}");
        error.to_string()
    });
    assert!(start.elapsed() < Duration::from_secs(15));
    errors
}

#[test]
fn ranks_in_different_calls_get_an_error_that_names_both_and_never_data() {
    fn sum(group: &Group, len: usize, dtype: DType) -> Result<(), Error> {
        let mut data = vec![1; len * dtype.size()];
        let result = group.all_reduce(&mut data, dtype, Reduction::Sum);
        // With two ranks both meet the other's header first, so no element was touched.
        assert!(group.size() > 2 || (result.is_err() && data.iter().all(|&b| b == 1)), "data changed");
        result
    }
    for n in [2, 3, 4].into_iter().flat_map(|n| [Shape::new(n, 2), Shape::mesh(n)]) {
        for error in disagree(n, |g| sum(g, 4, DType::F32), |g| sum(g, 8, DType::F32)) {
            assert!(error.contains("4 float32") && error.contains("8 float32"), "{error}");
        }
        for error in disagree(n, |g| sum(g, 4, DType::F32), |g| sum(g, 4, DType::I32)) {
            assert!(error.contains("4 float32") && error.contains("4 int32"), "{error}");
        }
        for error in disagree(n, |g| sum(g, 0, DType::F32), |g| sum(g, 1 << 16, DType::F32)) {
            assert!(error.contains("0 float32") && error.contains("65536 float32"), "{error}");
        }
        for error in disagree(n, |g| sum(g, 16, DType::U8), |g| g.all_reduce(&mut [0; 16], DType::U8, Reduction::Max)) {
            assert!(error.contains("all_sum") && error.contains("all_max"), "{error}");
        }
        for error in disagree(n, |g| sum(g, 16, DType::U8), |g| g.all_gather(&[0; 16], &mut vec![0; 16 * g.size()])) {
            assert!(error.contains("all_sum") && error.contains("all_gather"), "{error}");
        }
        for error in disagree(n, |g| g.broadcast(0, &mut [0; 9]), |g| g.broadcast(1, &mut [0; 9])) {
            assert!(error.contains("from rank 0") && error.contains("from rank 1"), "{error}");
        }
        for error in disagree(n, |g| g.broadcast(0, &mut []), Group::barrier) {
            assert!(error.contains("broadcast") && error.contains("barrier"), "{error}");
        }
    }
}

#[test]
fn a_message_of_another_length_is_an_error_that_names_both_calls_on_both_ranks() {
    let errors = Shape::new(2, 2).run(|group| {
        let call = match group.rank() {
            0 => group.send(1, &[1; 10]),
            _ => group.recv(0, &mut [0; 12]),
        };
        call.and_then(|()| group.barrier()).expect_err("a mismatch").to_string()
    });
    for error in errors {
        assert!(error.contains("of 10 bytes") && error.contains("of 12 bytes"), "{error}");
    }
}

#[test]
fn a_rank_that_leaves_is_named_by_every_survivor() {
    for (n, shape) in (2..=5).flat_map(|n| Shape::both(n).map(|shape| (n, shape))) {
        for gone in 0..n {
            let errors = Shape { capacity: 1000, ..shape }.run(move |group| {
                let mut data = vec![1; 100_000];
                let first = group.all_reduce(&mut data, DType::U8, Reduction::Sum);
                if group.rank() == gone {
                    first.unwrap();
                    group.close();
                    return None;
                }
                let start = Instant::now();
                // A rank that is still in the first call may hear of the failure there.
                let second = first.and_then(|()| group.all_reduce(&mut data, DType::U8, Reduction::Sum));
                let error = second.expect_err("a rank is gone");
                assert!(start.elapsed() < Duration::from_secs(5), "{error}");
                let later = group.barrier().expect_err("poisoned");
                assert!(later.to_string().contains("the group failed earlier: "), "{later}");
                assert_eq!(later.peer(), error.peer());
                Some(error)
            });
            for error in errors.into_iter().flatten() {
                assert_eq!(error.peer().map(|p| p.rank), Some(gone), "{n} ranks: {error}");
            }
        }
    }
}

#[test]
fn misuse_moves_nothing_and_leaves_the_group_as_it_was() {
    Shape::new(2, 1).run(|group| {
        let peer = 1 - group.rank();
        let misuses = [
            group.all_reduce(&mut [0; 7], DType::F32, Reduction::Sum),
            group.reduce_scatter(&mut [0; 12], DType::F64, Reduction::Sum),
            group.all_gather(&[0; 3], &mut [0; 5]),
            group.broadcast(2, &mut [0; 3]),
            group.send(group.rank(), &[0]),
            group.recv(2, &mut [0]),
        ];
        for misuse in misuses {
            assert_eq!(misuse.expect_err("misuse").kind(), Kind::Misuse);
        }
        let mut data = [peer as u8];
        group.all_reduce(&mut data, DType::U8, Reduction::Max).unwrap();
        assert_eq!(data, [1]);
    });
}

#[test]
fn a_closed_group_says_so() {
    let groups = Shape::new(2, 1).form();
    groups[0].close();
    let error = groups[0].barrier().expect_err("closed");
    assert_eq!(error.kind(), Kind::Closed, "{error}");
    groups[0].close();
}

#[test]
fn one_rank_alone_keeps_its_data() {
    // A network needs two ranks; a group of one needs none of it, but the same calls work.
    Shape::new(1, 1).run(|group| {
        let mut data = [1, 2, 3, 4];
        group.all_reduce(&mut data, DType::U8, Reduction::Sum).unwrap();
        group.reduce_scatter(&mut data, DType::U8, Reduction::Sum).unwrap();
        group.broadcast(0, &mut data).unwrap();
        group.barrier().unwrap();
        let mut all = [0; 4];
        group.all_gather(&data, &mut all).unwrap();
        assert_eq!(all, [1, 2, 3, 4]);
    });
}
