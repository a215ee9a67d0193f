//! The checks of JACCL through the facade: the order in which it sums, calls without a pause between them, many kinds
//! of calls in turn, and what it has not.
//!
//! The reference follows what the collectives document, with arithmetic of its own ([`Sample`]).

use nuvec_collectives::Reduction;
use nuvec_core::Array;
use nuvec_core::distributed;
use nuvec_launch_env::Topology;

use crate::cases::{self, Case, Failure, Selection};
use crate::sample::{Sample, hash};
use crate::{for_each_dtype, groups, mlx_wire};

/// Up to how many bytes sums are made in rank order.
const SHORT_IN_MESH: usize = 16 << 10;
const SHORT_IN_RING: usize = 32 << 10;
/// The ring's bound for a further lane, in bytes per rank.
const LANE: usize = 32 << 10;

/// How many calls of all kinds are made in turn.
const MIXED: usize = 200;

/// Every check that JACCL's groups have beside the common ones.
pub(crate) fn cases(topology: Topology, ranks: usize, connections: usize, selection: &Selection) -> Vec<Case> {
    let mut cases = Vec::new();
    for_each_dtype!(of_dtype(topology, connections, ranks, selection, &mut cases));
    if selection.sizes.is_empty() {
        // Around the lengths from which on data are cut up, and far beyond.
        for length in [4095, 4096, 4097, 8192, 8193, 65_537, 1 << 20] {
            cases.push(order::<f32>(topology, connections, length));
        }
        cases.push(cases::all_reduce::<f32>(Reduction::Sum, 1 << 20));
        cases.push(cases::gather::<f32>(1 << 18));
    }
    cases.push(back_to_back::<f32>());
    cases.push(back_to_back::<u8>());
    cases.push(mixed(ranks));
    // In a ring of two or three ranks, all others are neighbours.
    if topology == Topology::Mesh || ranks <= 3 {
        cases.extend(groups::all_pairs(ranks, selection));
    } else {
        cases.push(mlx_wire::refused("send_across", "is no neighbour in the ring", |ring, across| {
            distributed::send(&Array::from(vec![1.0_f32]), across, Some(&ring.group)).eval()
        }));
    }
    if ranks > 1 {
        cases.push(mlx_wire::refused("split", "no split on JACCL", |ring, _| ring.group.split(0, 0).map(drop)));
    }
    cases
}

fn of_dtype<T: Sample>(
    topology: Topology,
    connections: usize,
    ranks: usize,
    selection: &Selection,
    cases: &mut Vec<Case>,
) {
    for length in selection.lengths(ranks, T::DTYPE.size()) {
        cases.push(order::<T>(topology, connections, length));
    }
}

/// Sums whose bits depend on the order of addition, compared bit by bit.
fn order<T: Sample>(topology: Topology, connections: usize, length: usize) -> Case {
    Case::new(format!("order/{}/{length}", T::DTYPE.name()), move |ring, name| {
        let (seed, rank, size) = (ring.seed_of(name), ring.group.rank(), ring.group.size());
        let data = |rank| (0..length).map(|i| T::rough(hash(seed, rank, i))).collect::<Vec<_>>();
        let x = Array::from_slice(&data(rank), [length as i32]);
        let mut got = cases::call(Reduction::Sum, &x, &ring.group).to_vec::<T>()?;
        let all: Vec<_> = (0..size).map(data).collect();
        let good = ring.compare(name, &mut got, &reference(topology, &all, connections));
        cases::both(good, ring.agree(&got))
    })
}

/// The sum of every rank's `data`.
fn reference<T: Sample>(topology: Topology, data: &[Vec<T>], connections: usize) -> Vec<T> {
    let (n, length) = (data.len(), data[0].len());
    let bytes = length * T::DTYPE.size();
    let lanes = (bytes / n / LANE).clamp(1, 2 * connections);
    let step = length.div_ceil(lanes);
    // The rank that an element's sum begins with, and whether the next one is the rank after it, or before.
    let way = |i: usize| match topology {
        Topology::Mesh if bytes <= SHORT_IN_MESH => (0, true),
        Topology::Ring if bytes <= SHORT_IN_RING => (0, true),
        Topology::Mesh => (i / length.div_ceil(n), true),
        Topology::Ring => {
            let lane = i / step;
            let segment = step.min(length - lane * step).div_ceil(n);
            ((i - lane * step) / segment, lane.is_multiple_of(2))
        }
    };
    let sum = |i: usize| {
        let (first, up) = way(i);
        let rank = |hop: usize| if up { (first + hop) % n } else { (first + n - hop) % n };
        (1..n).fold(data[rank(0)][i], |sum, hop| sum.sum(data[rank(hop)][i]))
    };
    (0..length).map(sum).collect()
}

/// Sums of 0 B to 64 KiB, one right after the other, and compared once all are done.
fn back_to_back<T: Sample>() -> Case {
    Case::new(format!("back_to_back/{}", T::DTYPE.name()), |ring, name| {
        let most = (64 << 10) / T::DTYPE.size();
        let lengths = [10, 1000, 1, 0, most, 3, most / 4, most / 4 + 1, 0, most / 2, most / 2 + 1, 2, most - 1, 7];
        let rank = ring.group.rank();
        let call = |round: usize, length| (format!("{name}/{round}"), length);
        let calls: Vec<_> =
            lengths.iter().cycle().take(3 * lengths.len()).enumerate().map(|(i, &l)| call(i, l)).collect();
        let arrays: Vec<_> =
            calls.iter().map(|(name, length)| Array::from(ring.data::<T>(name, rank, *length))).collect();
        let sums: Result<Vec<_>, _> =
            arrays.iter().map(|x| cases::call(Reduction::Sum, x, &ring.group).to_vec::<T>()).collect();
        let mut outcome = Ok(());
        for ((part, length), mut got) in calls.iter().zip(sums?) {
            let mut expected = ring.data::<T>(part, 0, *length);
            for rank in 1..ring.group.size() {
                expected.iter_mut().zip(ring.data::<T>(part, rank, *length)).for_each(|(sum, x)| *sum = sum.sum(x));
            }
            let good = ring.compare(name, &mut got, &expected);
            outcome = cases::both(outcome, good.map_err(|e| e.about(&format!("call {part} of {length} elements"))));
        }
        outcome
    })
}

/// Calls of all kinds and of lengths up to 64 KiB in turn, as the seed has it.
fn mixed(ranks: usize) -> Case {
    Case::new(format!("mixed/{MIXED}"), move |ring, name| {
        let mut outcome = Ok(());
        for i in 0..MIXED {
            let random = hash(ring.seed_of(name), 0, i);
            // Mostly short ones.
            let length = (random >> 8) as usize % (1 << (random >> 40 & 7) << (random >> 48 & 7));
            let case = match random % 6 {
                0 => cases::gather::<f32>(length),
                1 if ranks > 1 => cases::neighbour::<f32>(1, "send_right", length),
                2 if ranks > 1 => cases::neighbour::<f32>(ranks - 1, "send_left", length),
                which => cases::all_reduce::<f32>(Reduction::ALL[which as usize % Reduction::ALL.len()], length),
            };
            let good = case.run_as(ring, &format!("{name}/{i}"));
            let about = |e: Failure| e.about(&format!("call {i}, {}", case.name));
            outcome = cases::both(outcome, good.map_err(about));
            if matches!(outcome, Err(Failure::Call(_))) {
                break;
            }
        }
        outcome
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks' numbers and a third's, whose sum is another in every order: ((1 − 1e8) + 1e8) is 0 in float32.
    fn three(length: usize) -> [Vec<f32>; 3] {
        [1.0, -1e8, 1e8].map(|x| vec![x; length])
    }

    #[test]
    fn short_sums_are_made_in_rank_order() {
        for topology in [Topology::Mesh, Topology::Ring] {
            assert_eq!(reference(topology, &three(5), 1), [(1.0_f32 - 1e8) + 1e8; 5]);
        }
    }

    #[test]
    fn a_long_ones_blocks_begin_with_the_rank_of_that_number() {
        let length = 3 * 4096;
        let mesh = reference(Topology::Mesh, &three(length), 1);
        let ring = reference(Topology::Ring, &three(length), 1);
        let up = [(1.0_f32 - 1e8) + 1e8, (-1e8_f32 + 1e8) + 1.0, (1e8_f32 + 1.0) - 1e8];
        let down = [(1.0_f32 + 1e8) - 1e8, (-1e8_f32 + 1.0) + 1e8, (1e8_f32 - 1e8) + 1.0];
        for (block, sum) in up.into_iter().enumerate() {
            assert!(mesh[block * 4096..(block + 1) * 4096].iter().all(|x| *x == sum));
            assert!(ring[block * 4096..(block + 1) * 4096].iter().all(|x| *x == sum));
        }
        // From twice the bound on, the second lane goes the other way.
        let ring = reference(Topology::Ring, &three(12 * 4096), 1);
        let segment = 2 * 4096;
        for (block, sum) in up.into_iter().chain(down).enumerate() {
            assert!(ring[block * segment..(block + 1) * segment].iter().all(|x| *x == sum), "segment {block}");
        }
    }
}
