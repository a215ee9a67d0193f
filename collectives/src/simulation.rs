//! Whole rings in one thread: every plan over channels that hold one byte, its lanes moved in any order.

mod faults;
mod mesh;

use nuvec_transport::memory::{MemoryReceiver, MemorySender, pair_of};
use nuvec_transport::{Channel, GroupId};
use proptest::prelude::*;

use crate::call::{Algorithm, Call, Operation};
use crate::drive::Task;
use crate::lane::Lane;
use crate::plan::{self, LanePlan, Place};
use crate::reduce::{NanRule, kernel};
use crate::stream::Reducer;
use crate::{DType, Reduction};

/// A small reproducible source of choices (a linear congruential generator's upper bits).
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }
}

type Halves = (MemorySender, MemoryReceiver);

/// One rank's lanes: for each connection the lane to the right, then the one to the left.
fn lanes_of(n: usize, connections: usize, capacity: usize) -> Vec<Vec<Halves>> {
    let mut ranks: Vec<Vec<Vec<Option<MemorySender>>>> = vec![];
    let mut rxs: Vec<Vec<Vec<Option<MemoryReceiver>>>> = vec![];
    for _ in 0..n {
        ranks.push((0..connections).map(|_| vec![None, None]).collect());
        rxs.push((0..connections).map(|_| vec![None, None]).collect());
    }
    for rank in 0..n {
        for c in 0..connections {
            let right = (rank + 1) % n;
            let (mine, theirs) = pair_of(capacity, rank, right);
            let ((tx, rx), (their_tx, their_rx)) = (mine.split(), theirs.split());
            (ranks[rank][c][0], rxs[rank][c][1]) = (Some(tx), Some(rx));
            (ranks[right][c][1], rxs[right][c][0]) = (Some(their_tx), Some(their_rx));
        }
    }
    ranks
        .into_iter()
        .zip(rxs)
        .map(|(tx, rx)| {
            tx.into_iter().flatten().zip(rx.into_iter().flatten()).map(|(t, r)| (t.unwrap(), r.unwrap())).collect()
        })
        .collect()
}

/// Runs one call on every rank over channels that hold `capacity` bytes, moving lanes in an order that `seed` chooses.
/// `lead` plants a fault: so many bytes are sent before the rule allows. An error says who still waits when nothing moves.
fn run(
    plans: &[Vec<LanePlan>],
    data: &mut [Vec<u8>],
    reducer: Option<Reducer>,
    capacity: usize,
    seed: u64,
    lead: usize,
) -> Result<(), String> {
    let n = plans.len();
    let call = Call {
        caller: 0,
        group: GroupId::ROOT,
        sequence: 1,
        bytes: data[0].len() as u64,
        operation: Operation::AllReduce,
        reduction: None,
        algorithm: Algorithm::Ring,
        root: 0,
    };
    let mut halves = lanes_of(n, plans[0].len().div_ceil(2), capacity);
    let mut lanes = Vec::new();
    for ((data, plans), halves) in data.iter_mut().zip(plans).zip(&mut halves) {
        let segments = plan::lend(data, plans);
        for (i, ((plan, segments), (tx, rx))) in plans.iter().zip(segments).zip(halves).enumerate() {
            let mut plan = plan.clone();
            plan.head += lead;
            lanes.push(Lane::new(i, (tx, rx), plan, segments, Some(call), reducer));
        }
    }
    let mut choices = Choices(seed);
    play(&mut lanes, |lanes| {
        let pick = choices.below(lanes.len());
        let mut moved = false;
        // Some lanes are moved several times in a row, so that ranks drift apart.
        for _ in 0..=choices.below(8) {
            moved |= !lanes[pick].done() && lanes[pick].step()?;
        }
        Ok(moved)
    })
}

/// Has `some` move some of `tasks` until all are at their end. An error says so when nothing moves any more.
fn play<T: Task>(
    tasks: &mut [T],
    mut some: impl FnMut(&mut [T]) -> nuvec_transport::Result<bool>,
) -> Result<(), String> {
    let mut idle = 0;
    while tasks.iter().any(|t| !t.done()) {
        idle = if some(tasks).map_err(|e| e.to_string())? { 0 } else { idle + 1 };
        if idle > 50 * tasks.len() {
            let moved: Vec<_> = tasks.iter_mut().map(|t| t.step()).collect();
            if moved.iter().all(|m| matches!(m, Ok(false))) {
                return Err("deadlock".into());
            }
            idle = 0;
        }
    }
    Ok(())
}

/// Rank `rank`'s `len` elements.
fn input(rank: usize, len: usize, seed: u64) -> Vec<u32> {
    let mut choices = Choices(seed ^ (rank as u64 + 1).wrapping_mul(0x9e37_79b9));
    (0..len).map(|_| choices.below(1 << 31) as u32).collect()
}

fn bytes(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn sum_of(inputs: &[Vec<u32>]) -> Vec<u32> {
    (0..inputs[0].len()).map(|i| inputs.iter().fold(0_u32, |a, x| a.wrapping_add(x[i]))).collect()
}

fn u32_sum() -> Reducer {
    Reducer { kernel: kernel(DType::U32, Reduction::Sum, NanRule::Propagate), width: 4 }
}

/// Every collective's plan on `n` ranks with `len` elements (or bytes) and `lanes` lanes; what is wrong, if anything.
fn check_all(n: usize, len: usize, lanes: usize, capacity: usize, seed: u64, lead: usize) -> Result<(), String> {
    let places: Vec<_> = (0..n).map(|rank| Place { rank, size: n }).collect();
    let inputs: Vec<_> = (0..n).map(|r| input(r, len, seed)).collect();
    let named = |what: &str, e: String| format!("{what}: {n} ranks, {len} elements, {lanes} lanes, seed {seed}: {e}");

    let plans: Vec<_> = places.iter().map(|&p| plan::all_reduce(p, len, 4, lanes)).collect();
    let mut data: Vec<_> = inputs.iter().map(|x| bytes(x)).collect();
    run(&plans, &mut data, Some(u32_sum()), capacity, seed, lead).map_err(|e| named("all-reduce", e))?;
    let expected = bytes(&sum_of(&inputs));
    if data.iter().any(|d| *d != expected) {
        return Err(named("all-reduce", "wrong sums".into()));
    }

    // Blocks of `len` elements per rank.
    let inputs: Vec<_> = (0..n).map(|r| input(r, len * n, seed)).collect();
    let plans: Vec<_> = places.iter().map(|&p| plan::reduce_scatter(p, len, 4, lanes)).collect();
    let mut data: Vec<_> = inputs.iter().map(|x| bytes(x)).collect();
    run(&plans, &mut data, Some(u32_sum()), capacity, seed, lead).map_err(|e| named("reduce-scatter", e))?;
    let expected = bytes(&sum_of(&inputs));
    for (rank, d) in data.iter().enumerate() {
        let block = rank * len * 4..(rank + 1) * len * 4;
        if d[block.clone()] != expected[block] {
            return Err(named("reduce-scatter", format!("wrong block on rank {rank}")));
        }
    }

    let blocks: Vec<Vec<u8>> = (0..n).map(|r| bytes(&input(r, len, seed))[..len].to_vec()).collect();
    let gather = |place: &Place| plan::all_gather(*place, len, lanes);
    let plans: Vec<_> = places.iter().map(gather).collect();
    let mut data: Vec<_> = (0..n)
        .map(|r| {
            let mut d = vec![0xee; n * len];
            d[r * len..][..len].copy_from_slice(&blocks[r]);
            d
        })
        .collect();
    run(&plans, &mut data, None, capacity, seed, lead).map_err(|e| named("all-gather", e))?;
    if data.iter().any(|d| *d != blocks.concat()) {
        return Err(named("all-gather", "wrong blocks".into()));
    }

    let root = seed as usize % n;
    let plans: Vec<_> = places.iter().map(|&p| plan::broadcast(p, root, len, lanes)).collect();
    let mut data = blocks.clone();
    run(&plans, &mut data, None, capacity, seed, lead).map_err(|e| named("broadcast", e))?;
    if data.iter().any(|d| *d != blocks[root]) {
        return Err(named("broadcast", format!("not rank {root}'s bytes")));
    }
    Ok(())
}

#[test]
fn every_plan_is_right_and_free_of_deadlock_over_channels_that_hold_one_byte() {
    let mut seed = 0;
    for n in 1..=5 {
        for len in 0..=70 {
            for lanes in [1, 2, 3, 6] {
                seed += 1;
                check_all(n, len, lanes, 1, seed, 0).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]
    #[test]
    fn random_rings_are_right(n in 1_usize..=8, len in 0_usize..400, lanes in 1_usize..=8, capacity in 1_usize..200, seed: u64) {
        check_all(n, len, lanes, capacity, seed, 0).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn a_byte_sent_one_step_too_early_is_found() {
    // Byte B sent once B − len(first) bytes were received, instead of B + 1 − len(first): one byte too early.
    let found = (0..200).filter(|&seed| check_all(3, 40, 2, 64, seed, 1).is_err()).count();
    assert!(found > 100, "only {found} of 200 runs showed the planted fault");
}
