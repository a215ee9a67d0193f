//! One call of a simulated rank, over a ring or a mesh: what [`super`] moves, and what comes of it.

use nuvec_transport::memory::{MemoryReceiver, MemorySender};
use nuvec_transport::{GroupId, Result};

use super::super::{Choices, Halves, u32_sum};
use crate::call::{Algorithm, Call, Operation};
use crate::drive::{Awaited, Task};
use crate::lane::Lane;
use crate::mesh::Exchange;
use crate::plan::{self, Place};
use crate::{DType, Reduction};

/// Elements of each call.
const LEN: usize = 50;

/// How the ranks are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Net {
    Ring,
    Mesh,
}

/// A call under way, which owns its channel halves. Its data are leaked: a few bytes a call, in a test.
pub(super) enum Work {
    Lanes(Vec<Lane<'static, MemorySender, MemoryReceiver>>),
    Exchange(Exchange<'static, MemorySender, MemoryReceiver>),
}

/// Call number `sequence` of a rank, which is an all-reduce.
pub(super) fn call(rank: usize, sequence: u64) -> Call {
    Call {
        caller: rank,
        group: GroupId::ROOT,
        sequence,
        bytes: 4 * LEN as u64,
        operation: Operation::AllReduce,
        reduction: Some((Reduction::Sum, DType::U32)),
        algorithm: Algorithm::Ring,
        root: 0,
    }
}

impl Work {
    /// Begins `call`: over a mesh in blocks if it has an odd number, else directly.
    pub(super) fn new(net: Net, place: Place, call: Call, halves: Vec<Halves>) -> Self {
        let data = |blocks: usize| -> &'static mut [u8] { vec![1_u8; 4 * LEN * blocks].leak() };
        match net {
            Net::Ring => {
                let plans = plan::all_reduce(place, LEN, 4, 2);
                let segments = plan::lend(data(1), &plans);
                let lanes = halves.into_iter().zip(plans).zip(segments).enumerate();
                let lane =
                    |(i, ((half, plan), segments))| Lane::new(i, half, plan, segments, Some(call), Some(u32_sum()));
                Self::Lanes(lanes.map(lane).collect())
            }
            Net::Mesh if call.sequence % 2 == 1 => {
                let plan = plan::mesh::all_reduce(place, LEN, 4);
                Self::Exchange(Exchange::new(halves.into_iter(), plan, data(1), call, Some(u32_sum())))
            }
            Net::Mesh => {
                let plan = plan::mesh::all_gather(place, 4 * LEN);
                Self::Exchange(Exchange::new(halves.into_iter(), plan, data(place.size), call, None))
            }
        }
    }

    /// Tries to move one stream.
    pub(super) fn step(&mut self, choices: &mut Choices) -> Result<bool> {
        match self {
            Self::Lanes(lanes) => {
                let lane = choices.below(lanes.len());
                if lanes[lane].done() { Ok(false) } else { lanes[lane].step() }
            }
            Self::Exchange(exchange) => exchange.step_with(choices.below(exchange.peers())),
        }
    }

    pub(super) fn done(&self) -> bool {
        match self {
            Self::Lanes(lanes) => lanes.iter().all(Task::done),
            Self::Exchange(exchange) => exchange.done(),
        }
    }

    pub(super) fn waits(&self) -> Vec<usize> {
        let mut ranks = Vec::new();
        match self {
            Self::Lanes(lanes) => lanes.iter().filter(|l| !l.done()).for_each(|l| l.waits(&mut ranks)),
            Self::Exchange(exchange) => exchange.waits(&mut ranks),
        }
        ranks
    }

    pub(super) fn awaited(&self) -> Option<Awaited<'_>> {
        match self {
            Self::Lanes(lanes) => lanes.iter().find(|l| !l.done()).map(Task::awaited),
            Self::Exchange(exchange) => (!exchange.done()).then(|| exchange.awaited()),
        }
    }

    /// The channel halves of a call of `n` ranks that has ended. Panics if a result is wrong.
    pub(super) fn end(self, n: usize) -> Vec<Halves> {
        let right = |data: &[u8], each: usize| data.iter().all(|&b| usize::from(b) == each);
        match self {
            Self::Lanes(lanes) => {
                let end = |lane: Lane<'static, _, _>| {
                    let (halves, segments) = lane.into_parts();
                    assert!(segments.iter().all(|s| right(s, n)), "a wrong sum");
                    halves
                };
                lanes.into_iter().map(end).collect()
            }
            Self::Exchange(exchange) => {
                let (halves, data) = exchange.into_parts();
                assert!(right(data, if data.len() > 4 * LEN { 1 } else { n }), "a wrong result");
                halves
            }
        }
    }
}
