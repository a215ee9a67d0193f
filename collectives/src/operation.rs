//! How an operation begins, runs and fails: its number, its lanes, and who is told when it goes wrong.

use std::sync::Arc;

use nuvec_transport::{Deadline, Error, Fabric, GroupId, Kind, Result, Wake, wait_any};
use parking_lot::{Mutex, MutexGuard};

use crate::call::{Algorithm, Call, Doing, Operation};
use crate::communicator::{Communicator, Inner};
use crate::control::GroupState;
use crate::drive::{Limits, Watch};
use crate::inquiry::{GRACE, Inquiry};
use crate::lane::lanes;
use crate::plan::{self, LanePlan, Place};
use crate::stream::Reducer;

/// A lane is worth its overhead from this many bytes on.
const LANE_BYTES: usize = 32 << 10;

impl<F: Fabric> Communicator<F> {
    pub(crate) fn watch<'a>(&'a self, wake: &'a Arc<Wake>) -> Watch<'a> {
        let timeout = self.fabric.timeout();
        let limits = Limits { spin: self.options.spin.min(timeout), timeout };
        Watch { group: &self.group, control: &self.control, wake, limits }
    }

    /// How many lanes carry `bytes`: values that all ranks share decide.
    pub(crate) fn lanes(&self, bytes: usize) -> usize {
        (bytes / self.place.size / LANE_BYTES).clamp(1, 2 * self.fabric.connections().max(1))
    }

    /// A call of this group; its sequence number is given when it begins.
    pub(crate) fn call(&self, operation: Operation, bytes: usize) -> Call {
        Call {
            caller: self.place.rank,
            group: self.id,
            sequence: 0,
            bytes: bytes as u64,
            operation,
            reduction: None,
            algorithm: Algorithm::Ring,
            root: 0,
        }
    }

    pub(crate) fn misuse(&self, name: &str, text: impl std::fmt::Display) -> Error {
        Error::new(Kind::Misuse, format!("{name}: {text}")).with_rank(self.place.rank)
    }

    pub(crate) fn whole_elements(&self, call: &Call, bytes: usize, unit: usize) -> Result<()> {
        if bytes.is_multiple_of(unit) {
            return Ok(());
        }
        Err(self.misuse(call.name(), format_args!("{bytes} bytes are not a multiple of {unit}")))
    }

    /// Begins an operation: the lock under which it runs, if the group lives and this is its process.
    pub(crate) fn begin(&self) -> Result<MutexGuard<'_, Inner<F>>> {
        begin(&self.inner, &self.group, self.process, self.place.rank)
    }

    /// Runs a collective: gives it its number, and has its failure poison the group.
    pub(crate) fn operate(&self, call: Call, run: impl FnOnce(&mut Inner<F>, &Call) -> Result<()>) -> Result<()> {
        self.operate_in(&mut *self.begin()?, call, run)
    }

    /// The same, for who has begun already.
    pub(crate) fn operate_in(
        &self,
        inner: &mut Inner<F>,
        mut call: Call,
        run: impl FnOnce(&mut Inner<F>, &Call) -> Result<()>,
    ) -> Result<()> {
        inner.sequence += 1;
        call.sequence = inner.sequence;
        self.watched(inner, call.doing(), call.sequence, call.bytes, |inner| run(inner, &call))
    }

    /// Runs a message to or from rank `peer` of this group; `run` is given the peer's rank among all.
    pub(crate) fn message(
        &self,
        doing: Doing,
        peer: usize,
        bytes: usize,
        run: impl FnOnce(&mut Inner<F>, usize) -> Result<()>,
    ) -> Result<()> {
        let Some(&of_all) = self.members.get(peer).filter(|_| peer != self.place.rank) else {
            let text = format!("rank {peer} is not another rank of a group of {}", self.place.size);
            return Err(self.misuse(doing.name(), text));
        };
        self.fabric.check_stream(of_all)?;
        let mut inner = self.begin()?;
        self.watched(&mut inner, doing, 0, bytes as u64, |inner| run(inner, of_all))
    }

    /// Runs a call that others can see in their status, and has its failure or panic poison the group.
    fn watched(
        &self,
        inner: &mut Inner<F>,
        doing: Doing,
        sequence: u64,
        bytes: u64,
        run: impl FnOnce(&mut Inner<F>) -> Result<()>,
    ) -> Result<()> {
        let _span =
            tracing::debug_span!("distributed", rank = self.place.rank, call = doing.name(), sequence, bytes).entered();
        self.group.enter(doing, sequence);
        let guard = PanicGuard { communicator: self, doing };
        let result = run(inner);
        std::mem::forget(guard);
        let result = match result {
            Ok(()) => {
                self.counters.ended(bytes);
                Ok(())
            }
            Err(error) => Err(self.failed(inner, error)),
        };
        self.group.exit();
        result
    }

    /// Moves the lanes of `plans` over `data`.
    pub(crate) fn run(
        &self,
        inner: &mut Inner<F>,
        call: &Call,
        plans: Vec<LanePlan>,
        data: &mut [u8],
        reducer: Option<Reducer>,
    ) -> Result<()> {
        let segments = plan::lend(data, &plans);
        self.run_lanes(inner, call, plans, segments, reducer)
    }

    /// Moves the lanes of `plans` over their segments: in this thread, or in several when that is worth it. A group of
    /// one has no lanes.
    fn run_lanes(
        &self,
        inner: &mut Inner<F>,
        call: &Call,
        plans: Vec<LanePlan>,
        segments: Vec<Vec<&mut [u8]>>,
        reducer: Option<Reducer>,
    ) -> Result<()> {
        let watch = self.watch(&inner.wake);
        let mut lanes = lanes(inner.lanes.iter_mut(), plans, segments, Some(*call), reducer);
        inner.workers.drive(&mut lanes, call.bytes, &watch)
    }

    /// Everybody's `own`, in rank order, in a part of `scratch`: each block goes both ways round the ring, half as far.
    pub(crate) fn gather_both_ways<'s>(
        &self,
        inner: &mut Inner<F>,
        call: &Call,
        own: &[u8],
        scratch: &'s mut Vec<u8>,
    ) -> Result<&'s [u8]> {
        let (b, Place { rank, size }) = (own.len(), self.place);
        scratch.resize((size + 1) * b, 0);
        // Both lanes send this rank's block, so the one to the left has a copy of its own.
        let (spare, blocks) = scratch.split_at_mut(b);
        spare.copy_from_slice(own);
        blocks[rank * b..][..b].copy_from_slice(own);
        let plans = plan::both_ways(self.place, b);
        let mut segments: Vec<Vec<&mut [u8]>> =
            plans.iter().map(|_| (0..size).map(|_| &mut [] as &mut [u8]).collect()).collect();
        if b > 0 {
            for (j, block) in blocks.chunks_exact_mut(b).enumerate() {
                let lane = usize::from((size + rank - j) % size > size / 2);
                segments[lane][j] = block;
            }
            if let [_, left] = &mut segments[..] {
                left[rank] = spare;
            }
        }
        self.run_lanes(inner, call, plans, segments, None)?;
        Ok(&scratch[b..])
    }

    /// A call failed: finds out who failed first, poisons the group, tells the others, and closes the connections.
    fn failed(&self, inner: &mut Inner<F>, error: Error) -> Error {
        let operation = self.group.current().map(|(doing, sequence, _)| (doing.name(), sequence));
        let named = |e: Error| operation.map_or(e.clone(), |(name, sequence)| e.with_operation(name, sequence));
        let inquiry = Inquiry::new(named(error), self.fabric.timeout(), self.epoch.elapsed(), &self.control);
        self.fabric.kick();
        let cause = self.answer(&inquiry, &inner.wake);
        let first = self.control.fail(self.id, &self.group, named(cause));
        self.fabric.flush_control(Deadline::after(GRACE));
        Self::drop_connections(inner);
        let first = if self.id == GroupId::ROOT {
            first
        } else {
            first.with_group_rank(|of_all| self.members.iter().position(|&m| m == of_all))
        };
        named(first).with_rank(self.place.rank)
    }

    /// Waits for what an inquiry comes to.
    fn answer(&self, inquiry: &Inquiry, wake: &Wake) -> Error {
        loop {
            let now = self.epoch.elapsed();
            if let Some(cause) = inquiry.step(now, self.id, &self.group, &self.control) {
                return cause;
            }
            let left = inquiry.until(now).saturating_sub(now);
            if wait_any(&[wake.park()], Deadline::after(left)).is_ok_and(|ready| ready) {
                wake.drain();
            }
        }
    }

    pub(crate) fn drop_connections(inner: &mut Inner<F>) {
        inner.lanes.clear();
        inner.streams.clear();
    }
}

/// The lock under which an operation of rank `rank` runs, if the group lives and this is its process.
pub(crate) fn begin<'a, T>(
    inner: &'a Mutex<T>,
    group: &GroupState,
    process: u32,
    rank: usize,
) -> Result<MutexGuard<'a, T>> {
    if std::process::id() != process {
        let text = format!("the group belongs to process {process}; a forked child cannot use it");
        return Err(Error::new(Kind::Misuse, text).with_rank(rank));
    }
    let inner = inner.lock();
    match group.check() {
        Ok(()) => Ok(inner),
        Err(e) if e.kind() == Kind::Closed => Err(e),
        Err(e) => Err(Error::poisoned(&e).with_rank(rank)),
    }
}

/// Poisons the group if a call unwinds: how much it had moved is unknown.
struct PanicGuard<'a, F: Fabric> {
    communicator: &'a Communicator<F>,
    doing: Doing,
}

impl<F: Fabric> Drop for PanicGuard<'_, F> {
    fn drop(&mut self) {
        let Self { communicator, doing } = self;
        let error = Error::new(Kind::Io, format!("panicked in the middle of {}", doing.name()));
        communicator.control.fail(communicator.id, &communicator.group, error);
        communicator.fabric.kick();
    }
}
