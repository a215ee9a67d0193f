//! The checks between any two ranks, and in groups that are split from the ring's and from one another.

use nuvec_core::distributed::{self, Group};
use nuvec_core::{Array, DType};

use crate::cases::{Case, Failure, Ring, Selection, both};
use crate::sample::hash;

/// Every check of a ring of `ranks` ranks.
pub(crate) fn cases(ranks: usize, selection: &Selection) -> Vec<Case> {
    let mut cases = all_pairs(ranks, selection);
    let rounds = if selection.quick { 2 } else { 8 };
    cases.extend([
        split("halves", rounds, &[HALVES]),
        split("reversed", rounds, &[REVERSED]),
        split("negative_keys", rounds, &[NEGATIVE]),
        split("child_of_child", rounds, &[HALVES, PARITY]),
        split("child_of_reversed", rounds, &[REVERSED, HALVES, REVERSED]),
    ]);
    cases
}

/// The checks between any two ranks. Alone, there is no pair.
pub(crate) fn all_pairs(ranks: usize, selection: &Selection) -> Vec<Case> {
    let lengths = if ranks > 1 { message_lengths(selection) } else { Vec::new() };
    lengths.into_iter().map(pairs).collect()
}

/// How long messages are, in bytes.
fn message_lengths(selection: &Selection) -> Vec<usize> {
    match (&selection.sizes[..], selection.quick) {
        ([], true) => vec![1, 1000, 65_537],
        ([], false) => vec![1, 7, 64, 1000, 8 << 10, 65_537, 256 << 10, 1 << 20, (1 << 20) + 1, 8 << 20],
        (sizes, _) => sizes.to_vec(),
    }
}

/// Every rank exchanges `length` bytes with every other one, both ways.
fn pairs(length: usize) -> Case {
    Case::new(format!("pairs/{length}"), move |ring, name| {
        let (own, size) = (ring.group.rank(), ring.group.size());
        let mut outcome = Ok(());
        // All take the pairs in the same order, so the first that is not done has both its ranks there.
        for (low, high) in (0..size).flat_map(|low| (low + 1..size).map(move |high| (low, high))) {
            if own != low && own != high {
                continue;
            }
            let other = low + high - own;
            let send = |ring: &Ring| {
                let data = message(ring.seed_of(name), own * size + other, length);
                distributed::send(&Array::from(data), other, Some(&ring.group)).eval()
            };
            if own == low {
                send(ring)?;
            }
            let mut got = distributed::recv([length], DType::U8, other, Some(&ring.group)).to_vec::<u8>()?;
            if own == high {
                send(ring)?;
            }
            let expected = message(ring.seed_of(name), other * size + own, length);
            let good = ring.compare(name, &mut got, &expected);
            outcome = both(outcome, good.map_err(|e| e.about(&format!("from rank {other} to rank {own}"))));
        }
        outcome
    })
}

/// A message's bytes, of the messages' number `which`.
fn message(seed: u64, which: usize, length: usize) -> Vec<u8> {
    (0..length.div_ceil(8)).flat_map(|i| hash(seed, which, i).to_le_bytes()).take(length).collect()
}

/// What a rank gives to a split: colour and key, from its rank and the group's size.
type Plan = fn(i32, i32) -> (i32, i32);

/// The lower half and the upper, each in its order.
const HALVES: Plan = |rank, size| (i32::from(2 * rank >= size), 0);
/// The ranks with even numbers and those with odd ones, each backwards.
const PARITY: Plan = |rank, size| (rank % 2, size - rank);
/// All, backwards.
const REVERSED: Plan = |rank, size| (-7, size - rank);
/// All: a negative key counts as the rank itself, and the others' put them elsewhere.
const NEGATIVE: Plan = |rank, size| (i32::MAX, if rank % 2 == 0 { -1 - rank } else { (size - rank) / 2 });

/// The ranks with `rank`'s colour in their new order, where `plan` tells what each of `size` ranks gives.
fn order(plan: Plan, rank: usize, size: usize) -> Vec<usize> {
    let given = |rank: usize| plan(rank as i32, size as i32);
    let mut ranks: Vec<usize> = (0..size).filter(|&other| given(other).0 == given(rank).0).collect();
    // A stable sort: of equal keys, the lower rank comes first.
    ranks.sort_by_key(|&rank| if given(rank).1 < 0 { rank as i32 } else { given(rank).1 });
    ranks
}

/// A group, and who should be in it.
struct Part {
    group: Group,
    /// By rank in the group, the rank in the ring.
    members: Vec<usize>,
}

impl Part {
    /// The part of this part that this rank comes to.
    fn split(&self, plan: Plan) -> Result<Self, Failure> {
        let (rank, size) = (self.group.rank(), self.group.size());
        let (color, key) = plan(rank as i32, size as i32);
        let group = self.group.split(color, key)?;
        Ok(Self { group, members: order(plan, rank, size).into_iter().map(|rank| self.members[rank]).collect() })
    }

    /// Gathers and sums in this group alone.
    fn check(&self, ring: &mut Ring, name: &str, length: usize) -> Result<(), Failure> {
        let (own, members) = (ring.group.rank(), &self.members);
        let position = members.iter().position(|member| *member == own);
        if (position, members.len()) != (Some(self.group.rank()), self.group.size()) {
            let text = format!("rank {own} of the ring is {:?}, expected the ranks {members:?}", self.group);
            return Err(Failure::Wrong(text));
        }
        let numbers = Array::from_slice(&[own as u64], [1]);
        let mut numbers = distributed::all_gather(&numbers, Some(&self.group)).to_vec::<u64>()?;
        let expected: Vec<u64> = members.iter().map(|&member| member as u64).collect();
        let gathered = ring.compare(name, &mut numbers, &expected);
        let x = Array::from(ring.data::<f32>(name, own, length));
        let mut sums = distributed::all_sum(&x, Some(&self.group)).to_vec::<f32>()?;
        let mut expected = vec![0.0; length];
        for &member in members {
            expected.iter_mut().zip(ring.data::<f32>(name, member, length)).for_each(|(sum, x)| *sum += x);
        }
        let summed = ring.compare(name, &mut sums, &expected);
        let about = |e: Failure| e.about(&format!("in the group of the ranks {members:?}"));
        both(gathered, summed).map_err(about)
    }
}

/// Splits one group from another, then uses all of them in turn.
fn split(what: &str, rounds: usize, plans: &'static [Plan]) -> Case {
    Case::new(format!("split/{what}"), move |ring, name| {
        let mut parts = vec![Part { group: ring.group.clone(), members: (0..ring.group.size()).collect() }];
        for plan in plans {
            parts.push(parts[parts.len() - 1].split(*plan)?);
        }
        let mut outcome = Ok(());
        for round in 0..rounds {
            for part in &parts {
                outcome = both(outcome, part.check(ring, name, 1 + 1000 * round * round));
            }
        }
        outcome
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_orders_by_key_and_then_by_rank() {
        assert_eq!(order(HALVES, 1, 6), [0, 1, 2]);
        assert_eq!(order(HALVES, 5, 6), [3, 4, 5]);
        assert_eq!(order(HALVES, 2, 5), [0, 1, 2]);
        assert_eq!(order(REVERSED, 0, 4), [3, 2, 1, 0]);
        assert_eq!(order(PARITY, 1, 6), [5, 3, 1]);
        // Keys, negative ones in brackets: (0) 2 (2) 1 (4) 0.
        assert_eq!(order(NEGATIVE, 0, 6), [0, 5, 3, 1, 2, 4]);
    }

    #[test]
    fn every_message_of_a_ring_is_another() {
        let all: std::collections::BTreeSet<_> = (0..16).map(|which| message(1, which, 9)).collect();
        assert!(all.len() == 16 && all.iter().all(|message| message.len() == 9));
    }
}
