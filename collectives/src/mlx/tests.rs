//! Rings of our own ranks in memory, against a step-by-step reference of what MLX does.

use std::thread;

use nuvec_transport::memory::{MemoryChannel, pair_of};

use super::*;
use crate::reduce::reduce;

const TIMEOUT: Duration = Duration::from_secs(30);
/// MLX's bound for a further lane, in bytes per segment or rank.
const LANE: usize = 262_144;

/// A ring of `n` ranks over channels that hold `capacity` bytes.
fn ring(n: usize, connections: usize, capacity: usize, timeout: Duration) -> Vec<MlxRing<MemoryChannel>> {
    let (mut rights, mut lefts) = (vec![], vec![]);
    for rank in 0..n {
        let pairs = (0..connections).map(|_| pair_of(capacity, rank, (rank + 1) % n));
        let (right, left): (Vec<_>, Vec<_>) = pairs.unzip();
        rights.push(right);
        lefts.push(left);
    }
    lefts.rotate_right(1);
    let links = rights.into_iter().zip(lefts).map(|(right, left)| RingLinks { right, left });
    links.enumerate().map(|(rank, links)| MlxRing::new(links, rank, n, timeout, Options::default()).unwrap()).collect()
}

/// Does `work` on every rank at once.
fn all<T: Send>(ranks: &[MlxRing<MemoryChannel>], work: impl Fn(&MlxRing<MemoryChannel>) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| work(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Bytes that depend on the rank and on everything else; of floats, every pattern comes.
fn bytes(rank: usize, len: usize, salt: usize) -> Vec<u8> {
    let mut x = (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt as u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Elements whose sums have no NaN, whose bits nobody promises: exponents in the middle, so that sums round.
fn finite(dtype: DType, rank: usize, elements: usize, salt: usize) -> Vec<u8> {
    let mut data = bytes(rank, elements * dtype.size(), salt);
    let (width, mask) = match dtype {
        DType::F16 => (2, 0x40),
        DType::BF16 => (2, 0x40),
        DType::F32 | DType::Complex64 => (4, 0x40),
        DType::F64 => (8, 0x40),
        _ => return data,
    };
    // The highest exponent bit cleared: nothing overflows.
    data.chunks_exact_mut(width).for_each(|element| element[width - 1] &= !mask);
    data
}

/// MLX's algorithm as `ring.cpp` has it, one step of all ranks after the other, on all ranks' data at once.
fn mlx_all_reduce(data: &mut [Vec<u8>], connections: usize, dtype: DType, reduction: Reduction) {
    let (n, w) = (data.len(), dtype.size());
    let size = data[0].len() / w;
    if size < n {
        let mut padded: Vec<_> = data.iter().map(|d| [&d[..], &vec![0; (n - size) * w]].concat()).collect();
        one_lane(&mut padded, 0..n, -1, dtype, reduction);
        data.iter_mut().zip(padded).for_each(|(d, p)| d.copy_from_slice(&p[..size * w]));
        return;
    }
    let lanes = (2 * connections).min(size * w / (n * LANE)).max(1);
    let step = size.div_ceil(lanes);
    for i in 0..lanes {
        let direction = if i % 2 == 1 { -1 } else { 1 };
        one_lane(data, i * step..size.min((i + 1) * step), direction, dtype, reduction);
    }
}

fn one_lane(
    data: &mut [Vec<u8>],
    elements: std::ops::Range<usize>,
    direction: i64,
    dtype: DType,
    reduction: Reduction,
) {
    let (n, w) = (data.len() as i64, dtype.size());
    let each = elements.len().div_ceil(data.len());
    let segment = |j: i64| {
        let at = |j: usize| (elements.start + (j * each).min(elements.len())) * w;
        let j = j.rem_euclid(n) as usize;
        at(j)..at(j + 1)
    };
    for step in 0..2 * (n - 1) {
        let sent: Vec<Vec<u8>> =
            (0..n).map(|rank| data[rank as usize][segment(rank + step * direction)].to_vec()).collect();
        for rank in 0..n {
            // What a rank receives is what its neighbour against the lane's direction sends in the same step.
            let received = &sent[(rank + direction).rem_euclid(n) as usize];
            let mine = &mut data[rank as usize][segment(rank + (step + 1) * direction)];
            if step < n - 1 {
                reduce(dtype, reduction, NanRule::Mlx, mine, received);
            } else {
                mine.copy_from_slice(received);
            }
        }
    }
}

#[test]
fn all_reduce_has_the_bits_of_mlxs_algorithm() {
    let mut salt = 0;
    for (n, connections) in [(2, 1), (2, 3), (3, 1), (3, 2), (4, 1), (4, 3), (5, 2)] {
        let ranks = ring(n, connections, 1 << 14, TIMEOUT);
        for dtype in DType::ALL {
            for reduction in Reduction::ALL {
                for elements in [0, 1, n - 1, n, n + 1, 5 * n - 1, 1000] {
                    salt += 1;
                    let input = |rank| match reduction {
                        Reduction::Sum => finite(dtype, rank, elements, salt),
                        _ => bytes(rank, elements * dtype.size(), salt),
                    };
                    let mut expected: Vec<_> = (0..n).map(input).collect();
                    mlx_all_reduce(&mut expected, connections, dtype, reduction);
                    let got = all(&ranks, |ring| {
                        let mut data = input(ring.rank());
                        ring.all_reduce(&mut data, dtype, reduction).unwrap();
                        data
                    });
                    assert_eq!(
                        got, expected,
                        "{dtype} {reduction} of {elements}, {n} ranks, {connections} connections"
                    );
                }
            }
        }
    }
}

#[test]
fn around_every_threshold_all_reduce_has_the_bits_of_mlxs_algorithm() {
    let mut dtypes = DType::ALL.iter().cycle();
    for (n, connections) in [(2, 1), (2, 2), (3, 2), (3, 3), (4, 1)] {
        let ranks = ring(n, connections, 1 << 18, TIMEOUT);
        for lanes in 2..=2 * connections + 1 {
            for (k, offset) in [0, 1, 2].into_iter().enumerate() {
                let (dtype, reduction) = (*dtypes.next().unwrap(), Reduction::ALL[(lanes + k) % 3]);
                let elements = (lanes * n * LANE).div_ceil(dtype.size()) + offset - 1;
                let input = |rank| finite(dtype, rank, elements, lanes + k);
                let mut expected: Vec<_> = (0..n).map(input).collect();
                mlx_all_reduce(&mut expected, connections, dtype, reduction);
                let got = all(&ranks, |ring| {
                    let mut data = input(ring.rank());
                    ring.all_reduce(&mut data, dtype, reduction).unwrap();
                    data
                });
                assert!(got == expected, "{dtype} {reduction} of {elements}, {n} ranks, {connections} connections");
            }
        }
    }
}

#[test]
fn all_gather_brings_every_block_whatever_its_length() {
    for (n, connections) in [(2, 1), (2, 2), (3, 2), (4, 1)] {
        let ranks = ring(n, connections, 1 << 18, TIMEOUT);
        let around = (2..=2 * connections + 1).flat_map(|lanes| (lanes * LANE - 1)..=(lanes * LANE + 1));
        for b in [0, 1, n - 1, n, n + 1, 1000, LANE].into_iter().chain(around) {
            let expected: Vec<u8> = (0..n).flat_map(|rank| bytes(rank, b, b)).collect();
            let got = all(&ranks, |ring| {
                let mut output = vec![0; n * b];
                ring.all_gather(&bytes(ring.rank(), b, b), &mut output).unwrap();
                output
            });
            assert!(got.iter().all(|output| *output == expected), "{b} bytes, {n} ranks, {connections} connections");
        }
    }
}

#[test]
fn messages_between_neighbours_arrive_in_both_directions_and_in_pairs_of_two() {
    for (n, connections) in [(2, 1), (2, 3), (3, 2), (4, 1)] {
        let ranks = ring(n, connections, 1 << 18, TIMEOUT);
        for b in [0, 1, 1023, 1024, 1025, 2048, 2049, 100_000] {
            for leftwards in [false, true] {
                all(&ranks, |ring| {
                    let (right, left) = (ring.place.right(1), ring.place.left(1));
                    let (to, from) = if leftwards { (left, right) } else { (right, left) };
                    let mut got = vec![0; b];
                    ring.send(to, &bytes(ring.rank(), b, b)).unwrap();
                    ring.recv(from, &mut got).unwrap();
                    assert!(got == bytes(from, b, b), "{b} bytes, {n} ranks, {connections} connections");
                });
            }
        }
    }
}

#[test]
fn only_neighbours_send_to_each_other_and_an_error_leaves_the_ring_as_it_was() {
    let ranks = ring(4, 1, 1 << 10, TIMEOUT);
    for e in [ranks[0].send(2, &[1]).unwrap_err(), ranks[3].recv(1, &mut [1]).unwrap_err()] {
        assert_eq!(e.kind(), Kind::Unsupported);
        assert!(e.to_string().contains("no neighbour of rank") && e.to_string().contains("MLX"), "{e}");
    }
    for (e, text) in [
        (ranks[0].send(0, &[1]).unwrap_err(), "not another rank"),
        (ranks[0].recv(4, &mut [1]).unwrap_err(), "not another rank"),
        (ranks[0].all_reduce(&mut [0; 3], DType::F32, Reduction::Sum).unwrap_err(), "3 bytes are not a multiple of 4"),
        (ranks[0].all_gather(&[0; 3], &mut [0; 11]).unwrap_err(), "4 times the input's 3 bytes, not 11"),
    ] {
        assert!(e.kind() == Kind::Misuse && e.to_string().contains(text), "{e}");
    }
    let got = all(&ranks, |ring| {
        let mut data = [1];
        ring.all_reduce(&mut data, DType::U8, Reduction::Sum).map(|()| data)
    });
    assert!(got.iter().all(|data| *data.as_ref().unwrap() == [4]));
    assert_eq!(ranks[0].counters().operations, 1);
}

#[test]
fn where_mlx_cannot_pad_an_array_it_is_an_error() {
    let (n, links) = (200, |_| RingLinks { right: vec![pair_of(1, 0, 1).0], left: vec![pair_of(1, 0, 1).1] });
    let ring = MlxRing::new(links(0), 0, n, TIMEOUT, Options::default()).unwrap();
    let e = ring.all_reduce(&mut [0; 8], DType::F64, Reduction::Sum).unwrap_err();
    assert!(e.kind() == Kind::Unsupported && e.to_string().contains("fewer elements (1) than ranks (200)"), "{e}");
}

#[test]
fn links_that_make_no_ring_are_misuse() {
    let links = |right: usize, left: usize| {
        let of = |n: usize| (0..n).map(|_| pair_of(1, 0, 1).0).collect();
        RingLinks { right: of(right), left: of(left) }
    };
    for (right, left, rank, size) in [(1, 2, 0, 2), (0, 0, 0, 2), (1, 1, 2, 2), (1, 1, 0, 1), (0, 0, 0, 0)] {
        let e = MlxRing::new(links(right, left), rank, size, TIMEOUT, Options::default()).map(drop).unwrap_err();
        assert_eq!(e.kind(), Kind::Misuse, "{e}");
    }
    let alone = MlxRing::new(links(0, 0), 0, 1, TIMEOUT, Options::default()).unwrap();
    let mut data = [7, 0];
    alone.all_reduce(&mut data, DType::I16, Reduction::Sum).unwrap();
    alone.all_gather(&data.clone(), &mut data).unwrap();
    assert_eq!(data, [7, 0]);
}

#[test]
fn a_rank_that_ends_is_named_by_its_neighbours_whose_end_the_others_see() {
    let mut ranks = ring(4, 2, 1 << 10, TIMEOUT);
    ranks.remove(1);
    let got = all(&ranks, |ring| {
        let mut data = vec![0; 1 << 16];
        let first = ring.all_reduce(&mut data, DType::U8, Reduction::Sum).unwrap_err();
        (first, ring.all_reduce(&mut data, DType::U8, Reduction::Sum).unwrap_err())
    });
    for (ring, (first, again)) in ranks.iter().zip(got) {
        let peer = first.peer().unwrap().rank;
        assert!([ring.place.right(1), ring.place.left(1)].contains(&peer), "{first}");
        assert!([Kind::PeerClosed, Kind::Reset].contains(&first.kind()), "{first}");
        assert!(
            first.to_string().starts_with(&format!("rank {}: all_sum #1: rank {peer} (memory)", ring.rank())),
            "{first}"
        );
        assert_eq!(again.kind(), Kind::Poisoned);
        assert!(again.to_string().contains(&first.to_string()), "{again}");
        assert!(ring.status().calls.is_empty());
    }
}

#[test]
fn a_time_out_names_the_neighbour_and_status_shows_the_call_meanwhile() {
    let ranks = ring(3, 1, 1 << 10, Duration::from_millis(400));
    let e = thread::scope(|scope| {
        let call = scope.spawn(|| ranks[0].all_reduce(&mut [0; 8], DType::F64, Reduction::Min).unwrap_err());
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let calls = ranks[0].status().calls;
            if let [call] = &calls[..]
                && !call.waits_for.is_empty()
            {
                assert_eq!((call.operation, call.sequence, &call.waits_for[..]), ("all_min", 1, &[2][..]));
                break;
            }
            assert!(Instant::now() < end && !call.is_finished(), "{calls:?}");
        }
        call.join().unwrap()
    });
    assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::TimedOut, Some(2)), "{e}");
    assert!(e.to_string().contains("sent nothing for 0.4 s"), "{e}");
}

#[test]
fn a_closed_ring_says_so_and_a_call_that_waits_ends() {
    let ranks = ring(2, 1, 1 << 10, TIMEOUT);
    thread::scope(|scope| {
        let call = scope.spawn(|| ranks[0].recv(1, &mut [0]).unwrap_err());
        while ranks[0].status().calls.is_empty() {
            thread::yield_now();
        }
        ranks[0].close();
        assert_eq!(call.join().unwrap().kind(), Kind::Closed);
    });
    assert_eq!(ranks[0].send(1, &[0]).unwrap_err().kind(), Kind::Closed);
    let e = ranks[1].recv(0, &mut [0]).unwrap_err();
    assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::PeerClosed, Some(0)), "{e}");
}

#[test]
fn operations_of_several_threads_never_interleave() {
    let ranks = ring(2, 2, 64, TIMEOUT);
    all(&ranks, |ring| {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mut data = vec![1; 1000];
                        ring.all_reduce(&mut data, DType::U8, Reduction::Sum).unwrap();
                        assert!(data.iter().all(|&b| b == 2));
                    }
                });
            }
        });
    });
}
