//! Whole meshes in one thread: every plan over channels that hold one byte, its streams moved in any order.

use nuvec_transport::memory::mesh_channels;
use nuvec_transport::{Channel, GroupId};
use proptest::prelude::*;

use super::{Choices, Halves, play};
use crate::call::{Algorithm, Call, Operation};
use crate::mesh::Exchange;
use crate::plan::Place;
use crate::plan::mesh::{self, MeshPlan};
use crate::reduce::{NanRule, kernel};
use crate::stream::Reducer;
use crate::{DType, Reduction};

/// Each rank's channels, in the order of a plan's peers.
pub(super) fn halves_of(n: usize, capacity: usize) -> Vec<Vec<Halves>> {
    let split = |(rank, mut channels): (usize, Vec<_>)| {
        channels.rotate_left(rank);
        channels.into_iter().map(Channel::split).collect()
    };
    mesh_channels(n, capacity).into_iter().enumerate().map(split).collect()
}

/// A kind of collective, over `n` ranks with `len` elements or bytes.
struct Case {
    n: usize,
    len: usize,
    capacity: usize,
    seed: u64,
    /// The planted fault: see [`Exchange::lead`].
    lead: usize,
}

impl Case {
    /// Runs `plan` on every rank over `data`, moving streams in an order that the seed chooses.
    fn run(
        &self,
        name: &str,
        plan: impl Fn(Place) -> MeshPlan,
        data: &mut [Vec<u8>],
        reducer: Option<Reducer>,
    ) -> Result<(), String> {
        let Self { n, len, capacity, seed, lead } = *self;
        let call = Call {
            caller: 0,
            group: GroupId::ROOT,
            sequence: 1,
            bytes: len as u64,
            operation: Operation::AllReduce,
            reduction: None,
            algorithm: Algorithm::Blocks,
            root: 0,
        };
        let mut exchanges = Vec::new();
        for (rank, (halves, data)) in halves_of(n, capacity).into_iter().zip(data).enumerate() {
            let plan = plan(Place { rank, size: n });
            exchanges.push(Exchange::new(halves.into_iter(), plan, data, call, reducer).lead(lead));
        }
        let mut choices = Choices(seed);
        let played = play(&mut exchanges, |exchanges| {
            let pick = &mut exchanges[choices.below(n)];
            let mut moved = false;
            for _ in 0..=choices.below(8) {
                moved |= pick.step_with(choices.below(pick.peers()))?;
            }
            Ok(moved)
        });
        played.map_err(|e| self.fault(name, &e))
    }

    fn fault(&self, name: &str, what: &str) -> String {
        let Self { n, len, capacity, seed, .. } = self;
        format!("{name}: {n} ranks, {len} elements, capacity {capacity}, seed {seed}: {what}")
    }

    fn expect(&self, name: &str, right: bool) -> Result<(), String> {
        if right { Ok(()) } else { Err(self.fault(name, "wrong data")) }
    }

    /// Every kind of plan; what is wrong, if anything.
    fn check(&self) -> Result<(), String> {
        let Self { n, len, seed, .. } = *self;
        let reducer = Some(Reducer { kernel: kernel(DType::F32, Reduction::Sum, NanRule::Propagate), width: 4 });

        let inputs: Vec<_> = (0..n).map(|rank| floats(rank, len, seed)).collect();
        let mut data: Vec<_> = inputs.iter().map(|x| bytes(x)).collect();
        self.run("all-reduce", |place| mesh::all_reduce(place, len, 4), &mut data, reducer)?;
        let expected = sum(&inputs, len.div_ceil(n));
        self.expect("all-reduce", data.iter().all(|d| *d == expected))?;

        let inputs: Vec<_> = (0..n).map(|rank| floats(rank, len * n, seed)).collect();
        let mut data: Vec<_> = inputs.iter().map(|x| bytes(x)).collect();
        self.run("reduce-scatter", |place| mesh::reduce_scatter(place, 4 * len), &mut data, reducer)?;
        let expected = sum(&inputs, len);
        for (rank, (data, input)) in data.iter().zip(&inputs).enumerate() {
            let mut own = bytes(input);
            let block = rank * len * 4..(rank + 1) * len * 4;
            own[block.clone()].copy_from_slice(&expected[block]);
            self.expect("reduce-scatter", *data == own)?;
        }

        let blocks: Vec<_> = (0..n).map(|rank| bytes(&floats(rank, len, seed))[..len].to_vec()).collect();
        let mut data: Vec<_> = blocks
            .iter()
            .enumerate()
            .map(|(rank, block)| {
                let mut data = vec![0xee; n * len];
                data[rank * len..][..len].copy_from_slice(block);
                data
            })
            .collect();
        self.run("all-gather", |place| mesh::all_gather(place, len), &mut data, None)?;
        self.expect("all-gather", data.iter().all(|d| *d == blocks.concat()))?;

        let root = seed as usize % n;
        for (name, plan) in
            [("broadcast", mesh::broadcast as fn(_, _, _) -> _), ("scattered broadcast", mesh::scattered_broadcast)]
        {
            let mut data = blocks.clone();
            self.run(name, |place| plan(place, root, len), &mut data, None)?;
            self.expect(name, data.iter().all(|d| *d == blocks[root]))?;
        }
        Ok(())
    }
}

/// Rank `rank`'s `len` elements: their sum depends on the order.
fn floats(rank: usize, len: usize, seed: u64) -> Vec<f32> {
    let mut choices = Choices(seed ^ (rank as u64 + 1).wrapping_mul(0x9e37_79b9));
    (0..len).map(|_| (choices.below(1 << 20) as f32 - 5e5) * (choices.below(16) as f32 - 8.0).exp2()).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// The sum as documented: of block r (of `block` elements) beginning with rank r, then r + 1, …
fn sum(inputs: &[Vec<f32>], block: usize) -> Vec<u8> {
    let n = inputs.len();
    let of = |i: usize| (1..n).fold(inputs[i / block][i], |sum, d| sum + inputs[(i / block + d) % n][i]);
    bytes(&(0..inputs[0].len()).map(of).collect::<Vec<_>>())
}

#[test]
fn every_plan_is_right_and_free_of_deadlock_over_channels_that_hold_one_byte() {
    let mut seed = 0;
    for n in 1..=5 {
        for len in 0..=70 {
            for _ in 0..3 {
                seed += 1;
                Case { n, len, capacity: 1, seed, lead: 0 }.check().unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]
    #[test]
    fn random_meshes_are_right(n in 1_usize..=8, len in 0_usize..400, capacity in 1_usize..200, seed: u64) {
        Case { n, len, capacity, seed, lead: 0 }.check().map_err(TestCaseError::fail)?;
    }
}

#[test]
fn an_element_used_before_the_peers_before_were_is_found() {
    let found = (0..200).filter(|&seed| Case { n: 3, len: 40, capacity: 64, seed, lead: 4 }.check().is_err()).count();
    assert!(found > 100, "only {found} of 200 runs showed the planted fault");
}
