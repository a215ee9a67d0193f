//! The checks of MLX's wire through the facade: the order in which it reduces, its rule for NaN, and what it has not.
//!
//! The reference follows the schedule of `mlx/distributed/ring/ring.cpp` with arithmetic of its own ([`Sample`]).

use nuvec_collectives::Reduction;
use nuvec_core::Array;
use nuvec_core::distributed::{self, Group};

use crate::cases::{self, Case, Failure, Ring, Selection};
use crate::for_each_dtype;
use crate::sample::{Sample, hash};

/// MLX's bound for a further lane, in bytes per segment.
const LANE: usize = 262_144;

/// Every check of a ring of `ranks` ranks with `connections` to each neighbour that only this wire needs.
pub(crate) fn cases(ranks: usize, connections: usize, selection: &Selection) -> Vec<Case> {
    let mut cases = Vec::new();
    for_each_dtype!(of_dtype(ranks, connections, selection, &mut cases));
    for length in thresholds(ranks, connections, 4, selection) {
        cases.extend(Reduction::ALL.map(|reduction| bits::<f32>(reduction, length, connections)));
    }
    cases.push(refused("split", "does not split groups", |ring, _| ring.group.split(0, 0).map(drop)));
    // Of two or three ranks, all others are neighbours.
    if ranks > 3 {
        cases.push(refused("send_across", "is no neighbour of rank", |ring, across| {
            distributed::send(&Array::from(vec![1.0_f32]), across, Some(&ring.group)).eval()
        }));
    }
    cases
}

fn of_dtype<T: Sample>(ranks: usize, connections: usize, selection: &Selection, cases: &mut Vec<Case>) {
    for length in selection.lengths(ranks, T::DTYPE.size()) {
        cases.extend(Reduction::ALL.map(|reduction| bits::<T>(reduction, length, connections)));
    }
}

/// The lengths around the thresholds of a second lane and of the last, in elements of `width` bytes.
fn thresholds(ranks: usize, connections: usize, width: usize, selection: &Selection) -> Vec<usize> {
    if !selection.sizes.is_empty() {
        return Vec::new();
    }
    let at = |lanes: usize| lanes * ranks * LANE / width;
    let lanes = if selection.quick { vec![2] } else { vec![2, 3, 2 * connections, 2 * connections + 1] };
    lanes.into_iter().flat_map(|lanes| [at(lanes) - 1, at(lanes), at(lanes) + 1]).collect()
}

/// Data whose result shows the order of a sum, and of a maximum or minimum which operand is kept: any bits at all, so
/// NaN, infinities and zeros of both signs among them.
fn value<T: Sample>(reduction: Reduction, random: u64) -> T {
    if reduction == Reduction::Sum {
        return T::rough(random);
    }
    // Of random bits, zero is too rare to meet another, and NaN rare in the wider types.
    match random >> 60 {
        0 => T::from_bits(0),
        1 => T::from_bits(1 << (8 * T::DTYPE.size() - 1)),
        2 => T::from_bits(u64::MAX),
        _ => T::from_bits(random.rotate_left(17)),
    }
}

/// Compares with the reference, bit by bit.
fn bits<T: Sample>(reduction: Reduction, length: usize, connections: usize) -> Case {
    let name = format!("mlx_bits/{}/{}/{length}", reduction.name(), T::DTYPE.name());
    Case::new(name, move |ring, name| {
        let (seed, rank, size) = (ring.seed_of(name), ring.group.rank(), ring.group.size());
        let data = |rank| (0..length).map(|i| value::<T>(reduction, hash(seed, rank, i))).collect::<Vec<_>>();
        let x = Array::from_slice(&data(rank), [length as i32]);
        let mut got = cases::call(reduction, &x, &ring.group).to_vec::<T>()?;
        let all: Vec<_> = (0..size).map(data).collect();
        let expected = reference(reduction, &all, connections);
        let good = ring.compare(name, &mut got, &expected);
        cases::both(good, ring.agree(&got))
    })
}

/// What MLX's ring makes of every rank's `data`.
fn reference<T: Sample>(reduction: Reduction, data: &[Vec<T>], connections: usize) -> Vec<T> {
    let (n, length) = (data.len(), data[0].len());
    let lanes = match length * T::DTYPE.size() / (n * LANE) {
        // Fewer elements than ranks go round one way, each a segment; one lane else goes round the other way.
        _ if length < n => return (0..length).map(|i| fold(reduction, data, i, i, -1)).collect(),
        lanes => lanes.clamp(1, 2 * connections),
    };
    let step = length.div_ceil(lanes);
    let of = |i: usize| {
        let lane = i / step;
        let segment = (step.min(length - lane * step)).div_ceil(n);
        fold(reduction, data, i, (i - lane * step) / segment, if lane.is_multiple_of(2) { 1 } else { -1 })
    };
    (0..length).map(of).collect()
}

/// Reduces every rank's element `i`, of a segment that starts at rank `first` and moves against `direction`. Each rank
/// compares what it has with what it received.
fn fold<T: Sample>(reduction: Reduction, data: &[Vec<T>], i: usize, first: usize, direction: isize) -> T {
    let n = data.len();
    let rank = |hop: usize| (first as isize - direction * hop as isize).rem_euclid(n as isize) as usize;
    (1..n).fold(data[rank(0)][i], |received, hop| cases::reduce(reduction, data[rank(hop)][i], received))
}

/// That something is an error which says so, and that the group lives.
pub(crate) fn refused(what: &str, says: &'static str, call: fn(&Ring, usize) -> nuvec_core::Result<()>) -> Case {
    Case::new(format!("refused/{what}"), move |ring, _| {
        let size = ring.group.size();
        let across = (ring.group.rank() + 2) % size;
        match call(ring, across) {
            Err(e) if e.to_string().contains(says) => {}
            Err(e) => return Err(Failure::Wrong(format!("the error does not say {says:?}: {e}"))),
            Ok(()) => return Err(Failure::Wrong("it succeeded".into())),
        }
        total(&ring.group)
    })
}

fn total(group: &Group) -> Result<(), Failure> {
    let got = distributed::all_sum(&Array::from(vec![1.0_f32]), Some(group)).to_vec::<f32>()?;
    if got == [group.size() as f32] {
        Ok(())
    } else {
        Err(Failure::Wrong(format!("ones of {group:?} add up to {got:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_reduced_from_its_rank_on_against_the_lanes_direction() {
        // Powers of two that a sum in another order would round otherwise.
        let data = [vec![1.0_f32; 3], vec![-1e8; 3], vec![1e8; 3]];
        // Segment 0 goes from rank 0 to 2 and to 1, segment 1 from 1 to 0 and to 2, segment 2 from 2 to 1 and to 0.
        assert_eq!(reference(Reduction::Sum, &data, 1), [(1.0_f32 + 1e8) - 1e8, (-1e8_f32 + 1.0) + 1e8, 1.0]);
        // Fewer elements than ranks: from 0 to 1 and to 2, from 1 to 2 and to 0.
        let two = data.map(|of_rank| of_rank[..2].to_vec());
        assert_eq!(reference(Reduction::Sum, &two, 1), [(1.0_f32 - 1e8) + 1e8, 1.0]);
    }

    #[test]
    fn a_received_nan_is_dropped_and_a_ranks_own_stays() {
        let at = |data: [f32; 2]| reference(Reduction::Max, &data.map(|x| vec![x]), 1)[0];
        assert_eq!(at([f32::NAN, 1.0]), 1.0);
        assert!(at([1.0, f32::NAN]).is_nan());
    }

    #[test]
    fn lanes_take_turns_in_their_direction() {
        let length = 2 * 2 * LANE / 4;
        let mut data = vec![vec![0.0_f32; length], vec![0.0; length]];
        // The NaN of rank 0 is kept where it is the last to reduce: segment 1 of each lane of two ranks.
        data[0].fill(f32::NAN);
        let got = reference(Reduction::Min, &data, 1);
        let nan: Vec<_> = (0..4).map(|quarter| got[quarter * length / 4].is_nan()).collect();
        assert_eq!(nan, [false, true, false, true]);
    }
}
