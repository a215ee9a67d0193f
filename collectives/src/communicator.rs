//! [`Communicator`]: a group's collectives over a [`Fabric`]. What may not live here: sockets, and how bytes are moved
//! ([`crate::drive`]) or cut ([`crate::plan`]).

use std::sync::Arc;
use std::time::Duration;

use nuvec_transport::{Channel, Deadline, Error, Fabric, GroupId, Kind, Result, Wake, wait_any};
use parking_lot::{Mutex, MutexGuard};

use crate::call::{Algorithm, Call, Operation};
use crate::control::{Control, GroupState};
use crate::drive::{Halt, Limits, drive};
use crate::lane::{Lane, Reducer};
use crate::p2p;
use crate::plan::{self, LanePlan, Place};
use crate::reduce::{NanRule, kernel};
use crate::streams::{StreamWait, Streams};
use crate::workers::Workers;
use crate::{DType, Reduction};

/// How long telling the others of a failure may take, and waiting for their word about it.
const GRACE: Duration = Duration::from_secs(1);

/// Up to how many bytes per rank a short all-reduce carries: beyond, the ring is faster. Measured at 2 and 4 ranks.
const SHORT: usize = 16 << 10;
/// A lane is worth its overhead from this many bytes on.
const LANE_BYTES: usize = 32 << 10;
/// A message is worth several threads from this many bytes on.
const THREADED: usize = 4 << 20;

/// What all ranks of a group must have in common beside their calls: the version of the thresholds by which an algorithm
/// is chosen. Transports exchange it while forming.
pub const AGREEMENT: u32 = 1;

/// How a [`Communicator`] waits and works.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Options {
    /// How long it tries without sleeping after the last progress; zero is never. Default 50 µs.
    pub spin: Duration,
    /// How many threads move a large message's lanes, the caller's included; 0 is as many as the ranks' processors
    /// allow. Default 0.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { spin: Duration::from_micros(50), threads: 0 }
    }
}

impl Options {
    /// Sets how long it tries without sleeping.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Sets how many threads move a large message's lanes.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }
}

/// A connection's lanes: the one that sends to the right, the one that sends to the left.
pub(crate) struct Pair<S, R> {
    right: (S, R),
    left: (S, R),
}

/// A group of ranks and its collectives.
///
/// Every rank calls the same operations in the same order with the same lengths; where they differ, the calls fail with
/// [`Kind::Mismatch`] on the rank that sees it and, by its word, on the others in their current or next call. A call
/// blocks until this rank's part is done, and at the longest for the time-out since the last byte moved. Threads may
/// share a communicator: their operations never interleave on the wire, but that all ranks use the same order is the
/// caller's duty.
///
/// The first failure poisons the group: every rank's call fails with an error that names the rank that failed first, and
/// later calls fail at once and repeat it. Errors of [`Kind::Misuse`] are found before any byte is moved and leave the
/// group as it was.
///
/// ```
/// use std::time::Duration;
/// use nuvec_collectives::{Communicator, Control, DType, Options, Reduction};
/// use nuvec_transport::{Peer, memory};
///
/// // Two ranks in one process, over channels in memory; `nuvec-transport-tcp` connects processes.
/// let peers = || (0..2).map(|rank| Peer::new(rank, "memory")).collect();
/// let controls: Vec<_> = (0..2).map(|rank| Control::new(rank, peers(), Duration::from_secs(30))).collect();
/// let fabrics = memory::network(controls.iter().map(Control::handler).collect(), 1, 1 << 16, Duration::from_secs(30));
/// let ranks: Vec<_> = fabrics
///     .into_iter()
///     .zip(controls)
///     .map(|(fabric, control)| {
///         std::thread::spawn(move || {
///             let group = Communicator::new(fabric, control, Options::default()).unwrap();
///             let mut data = [1_i32.to_ne_bytes(), (group.rank() as i32).to_ne_bytes()].concat();
///             group.all_reduce(&mut data, DType::I32, Reduction::Sum).unwrap();
///             data
///         })
///     })
///     .collect();
/// for rank in ranks {
///     assert_eq!(rank.join().unwrap(), [2_i32.to_ne_bytes(), 1_i32.to_ne_bytes()].concat());
/// }
/// ```
pub struct Communicator<F: Fabric> {
    fabric: Arc<F>,
    control: Control,
    id: GroupId,
    group: Arc<GroupState>,
    place: Place,
    options: Options,
    process: u32,
    inner: Mutex<Inner<F>>,
}

struct Inner<F: Fabric> {
    pairs: Vec<Pair<F::Sender, F::Receiver>>,
    streams: Streams<F>,
    sequence: u64,
    wake: Arc<Wake>,
    scratch: Vec<u8>,
    workers: Workers,
}

impl<F: Fabric> Communicator<F> {
    /// The group of all ranks of `fabric`, whose control messages `control` handles. Takes the fabric's ring.
    /// Errors: the ring was taken before; no descriptors are left.
    pub fn new(fabric: F, control: Control, options: Options) -> Result<Self> {
        let place = Place { rank: fabric.rank(), size: fabric.size() };
        let mut pairs = Vec::new();
        if place.size > 1 {
            let ring = fabric.ring()?;
            for (right, left) in ring.right.into_iter().zip(ring.left) {
                let ((tx_right, rx_right), (tx_left, rx_left)) = (right.split(), left.split());
                pairs.push(Pair { right: (tx_right, rx_left), left: (tx_left, rx_right) });
            }
        }
        let wake = Arc::new(Wake::new()?);
        let id = GroupId::ROOT;
        let group = control.join(id);
        group.watch(&wake);
        fabric.accept(id, &wake);
        let threads = match options.threads {
            0 => (fabric.min_cores() / place.size).max(1),
            n => n,
        };
        let fabric = Arc::new(fabric);
        let inner = Inner {
            pairs,
            streams: Streams::new(fabric.clone(), id),
            sequence: 0,
            wake,
            scratch: Vec::new(),
            workers: Workers::new(threads),
        };
        let process = std::process::id();
        Ok(Self { fabric, control, id, group, place, options, process, inner: Mutex::new(inner) })
    }

    /// This process's rank, below [`size`](Self::size).
    pub fn rank(&self) -> usize {
        self.place.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.place.size
    }

    /// Reduces `data` (elements of `dtype`, equally many on every rank) with every rank's, in place. Every rank gets the
    /// same bits, and a rerun repeats them.
    ///
    /// Up to 16 KiB the ranks' data are reduced in rank order, ((x_0 + x_1) + x_2) + …; beyond, each part of the data in
    /// the order of the ring, beginning at the rank where that part starts ([`plan::all_reduce`]). Errors: see
    /// [`Communicator`]; [`Kind::Misuse`] if `data` is not whole elements.
    pub fn all_reduce(&self, data: &mut [u8], dtype: DType, reduction: Reduction) -> Result<()> {
        let width = dtype.size();
        let short = data.len() <= SHORT;
        let algorithm = if short { Algorithm::BothWays } else { Algorithm::Ring };
        let call =
            Call { reduction: Some((reduction, dtype)), algorithm, ..self.call(Operation::AllReduce, data.len()) };
        self.whole_elements(&call, data.len(), width)?;
        let reducer = Reducer { kernel: kernel(dtype, reduction, NanRule::Propagate), width };
        self.operate(call, |inner, call| {
            if !short {
                let plans = plan::all_reduce(self.place, data.len() / width, width, self.lanes(data.len()));
                return self.run(inner, call, plans, data, Some(reducer));
            }
            let mut scratch = std::mem::take(&mut inner.scratch);
            let blocks = self.gather_both_ways(inner, call, data, &mut scratch)?;
            let (first, others) = blocks.split_at(data.len());
            data.copy_from_slice(first);
            if !data.is_empty() {
                others.chunks_exact(data.len()).for_each(|block| (reducer.kernel)(data, block));
            }
            inner.scratch = scratch;
            Ok(())
        })
    }

    /// Every rank's `input` (equally many bytes on each), concatenated in rank order into `output`, of `size` times as
    /// many bytes. Errors: see [`Communicator`]; [`Kind::Misuse`] if the lengths do not fit.
    pub fn all_gather(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        let b = input.len();
        let short = b <= SHORT;
        let algorithm = if short { Algorithm::BothWays } else { Algorithm::Ring };
        let call = Call { algorithm, ..self.call(Operation::AllGather, b) };
        if Some(output.len()) != b.checked_mul(self.place.size) {
            let text =
                format!("the output must hold {} times the input's {b} bytes, not {}", self.place.size, output.len());
            return Err(self.misuse(&call, text));
        }
        self.operate(call, |inner, call| {
            if short {
                let mut scratch = std::mem::take(&mut inner.scratch);
                output.copy_from_slice(self.gather_both_ways(inner, call, input, &mut scratch)?);
                inner.scratch = scratch;
                return Ok(());
            }
            output[self.place.rank * b..][..b].copy_from_slice(input);
            let plans = plan::all_gather(self.place, b, self.lanes(b));
            self.run(inner, call, plans, output, None)
        })
    }

    /// Reduces `data`, `size` blocks of equally many elements of `dtype`, with every rank's: on return block `rank` holds
    /// the result, and the other blocks hold partial results. Each block is reduced in the order of the ring, ending with
    /// its own rank's part. Errors: see [`Communicator`]; [`Kind::Misuse`] if `data` is not whole elements or blocks.
    pub fn reduce_scatter(&self, data: &mut [u8], dtype: DType, reduction: Reduction) -> Result<()> {
        let width = dtype.size();
        let call = Call { reduction: Some((reduction, dtype)), ..self.call(Operation::ReduceScatter, data.len()) };
        self.whole_elements(&call, data.len(), width * self.place.size)?;
        let reducer = Reducer { kernel: kernel(dtype, reduction, NanRule::Propagate), width };
        let elements = data.len() / width / self.place.size;
        self.operate(call, |inner, call| {
            let plans = plan::reduce_scatter(self.place, elements, width, self.lanes(data.len()));
            self.run(inner, call, plans, data, Some(reducer))
        })
    }

    /// Replaces every rank's `data` (equally many bytes on each) with rank `root`'s. Errors: see [`Communicator`];
    /// [`Kind::Misuse`] if there is no such rank.
    pub fn broadcast(&self, root: usize, data: &mut [u8]) -> Result<()> {
        let call = Call { root: root as u16, ..self.call(Operation::Broadcast, data.len()) };
        if root >= self.place.size {
            return Err(self.misuse(&call, format!("there is no rank {root} in a group of {}", self.place.size)));
        }
        self.operate(call, |inner, call| {
            let plans = plan::broadcast(self.place, root, data.len(), self.lanes(data.len()));
            self.run(inner, call, plans, data, None)
        })
    }

    /// Returns once every rank has called it. Errors: see [`Communicator`].
    pub fn barrier(&self) -> Result<()> {
        let call = Call { algorithm: Algorithm::BothWays, ..self.call(Operation::Barrier, 1) };
        self.operate(call, |inner, call| {
            let mut scratch = std::mem::take(&mut inner.scratch);
            self.gather_both_ways(inner, call, &[1], &mut scratch)?;
            inner.scratch = scratch;
            Ok(())
        })
    }

    /// Sends `data` to rank `to`, any rank but this one. Returns once the transport has taken all bytes: what it does not
    /// hold waits for the receiver's [`recv`](Self::recv), so ranks that all send much before any of them receives wait
    /// for each other, until the time-out says so. Errors: see [`Communicator`].
    pub fn send(&self, to: usize, data: &[u8]) -> Result<()> {
        self.point_to_point("send", to, |inner, limits, sequence| {
            let Inner { streams, wake, .. } = inner;
            *sequence = streams.next_sent(to);
            let txs = streams.senders(to, &Wait { communicator: self, wake, limits })?;
            drive(&mut p2p::send(txs, *sequence, data), limits, &self.group, wake, &Halt::default())
        })
    }

    /// Receives exactly `data.len()` bytes that rank `from`, any rank but this one, sends with [`send`](Self::send).
    /// Errors: see [`Communicator`]; [`Kind::Mismatch`] if it sent another number of bytes.
    pub fn recv(&self, from: usize, data: &mut [u8]) -> Result<()> {
        self.point_to_point("recv", from, |inner, limits, sequence| {
            let Inner { streams, wake, .. } = inner;
            *sequence = streams.next_received(from);
            let rxs = streams.receivers(from, &Wait { communicator: self, wake, limits })?;
            let mut header = [p2p::RecvHeader::new(&mut rxs[0], *sequence, data.len())];
            drive(&mut header, limits, &self.group, wake, &Halt::default())?;
            drive(&mut p2p::receive(rxs, data), limits, &self.group, wake, &Halt::default())
        })
    }

    /// Ends the group on this rank: closes its connections, then its control links, within a second. Later calls fail
    /// with [`Kind::Closed`]. Ranks that still need this one's bytes fail with an error that names it.
    pub fn close(&self) {
        let closed = Error::new(Kind::Closed, "the group was closed by this process").with_rank(self.place.rank);
        self.group.poison(closed);
        let mut inner = self.inner.lock();
        Self::drop_connections(&mut inner);
        self.fabric.close(Deadline::after(GRACE));
    }
}

/// How an operation begins, runs and fails.
impl<F: Fabric> Communicator<F> {
    fn limits(&self) -> Limits {
        Limits { spin: self.options.spin, timeout: self.fabric.timeout() }
    }

    /// How many lanes carry `bytes`: values that all ranks share decide.
    fn lanes(&self, bytes: usize) -> usize {
        (bytes / self.place.size / LANE_BYTES).clamp(1, 2 * self.fabric.connections().max(1))
    }

    /// A call of this group; its sequence number is given when it begins.
    fn call(&self, operation: Operation, bytes: usize) -> Call {
        Call {
            group: self.id,
            sequence: 0,
            bytes: bytes as u64,
            operation,
            reduction: None,
            algorithm: Algorithm::Ring,
            root: 0,
        }
    }

    fn misuse(&self, call: &Call, text: String) -> Error {
        Error::new(Kind::Misuse, format!("{}: {text}", call.name())).with_rank(self.place.rank)
    }

    fn whole_elements(&self, call: &Call, bytes: usize, unit: usize) -> Result<()> {
        if bytes.is_multiple_of(unit) {
            return Ok(());
        }
        Err(self.misuse(call, format!("{bytes} bytes are not a multiple of {unit}")))
    }

    /// Begins an operation: the lock under which it runs, if the group lives and this is its process.
    fn begin(&self) -> Result<MutexGuard<'_, Inner<F>>> {
        if std::process::id() != self.process {
            let text = format!("the group belongs to process {}; a forked child cannot use it", self.process);
            return Err(Error::new(Kind::Misuse, text).with_rank(self.place.rank));
        }
        let inner = self.inner.lock();
        match self.group.check() {
            Ok(()) => Ok(inner),
            Err(e) if e.kind() == Kind::Closed => Err(e),
            Err(e) => Err(Error::poisoned(&e).with_rank(self.place.rank)),
        }
    }

    /// Runs a collective: gives it its number, and has its failure poison the group.
    fn operate(&self, mut call: Call, run: impl FnOnce(&mut Inner<F>, &Call) -> Result<()>) -> Result<()> {
        let mut inner = self.begin()?;
        inner.sequence += 1;
        call.sequence = inner.sequence;
        if self.place.size == 1 {
            // One rank: every collective leaves its data as it is, but gathers still copy.
            return run(&mut inner, &call);
        }
        let guard = PanicGuard { communicator: self, call: (call.name(), call.sequence) };
        let result = run(&mut inner, &call);
        std::mem::forget(guard);
        result.map_err(|e| self.failed(&mut inner, e.with_operation(call.name(), call.sequence)))
    }

    fn point_to_point(
        &self,
        name: &'static str,
        peer: usize,
        run: impl FnOnce(&mut Inner<F>, Limits, &mut u64) -> Result<()>,
    ) -> Result<()> {
        if peer >= self.place.size || peer == self.place.rank {
            let text = format!("{name}: rank {peer} is not another rank of a group of {}", self.place.size);
            return Err(Error::new(Kind::Misuse, text).with_rank(self.place.rank));
        }
        let mut inner = self.begin()?;
        let mut sequence = 0;
        let guard = PanicGuard { communicator: self, call: (name, sequence) };
        let result = run(&mut inner, self.limits(), &mut sequence);
        std::mem::forget(guard);
        result.map_err(|e| self.failed(&mut inner, e.with_operation(name, sequence)))
    }

    /// Moves the lanes of `plans` over `data`.
    fn run(
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

    /// Moves the lanes of `plans` over their segments: in this thread, or in several when that is worth it.
    fn run_lanes(
        &self,
        inner: &mut Inner<F>,
        call: &Call,
        plans: Vec<LanePlan>,
        segments: Vec<Vec<&mut [u8]>>,
        reducer: Option<Reducer>,
    ) -> Result<()> {
        let halves = inner.pairs.iter_mut().flat_map(|Pair { right, left }| [right, left]);
        let mut lanes: Vec<_> = halves
            .zip(plans)
            .zip(segments)
            .enumerate()
            .map(|(i, (((tx, rx), plan), segments))| Lane::new(i, (tx, rx), plan, segments, call, reducer))
            .collect();
        if call.bytes < THREADED as u64 {
            return drive(&mut lanes, self.limits(), &self.group, &inner.wake, &Halt::default());
        }
        inner.workers.drive(&mut lanes, self.limits(), &self.group, &inner.wake)
    }

    /// Everybody's `own`, in rank order, in a part of `scratch`: each block goes both ways round the ring, half as far.
    fn gather_both_ways<'s>(
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
        let operation = error.operation();
        if matches!(error.kind(), Kind::PeerClosed | Kind::Reset)
            && let Some(peer) = error.peer()
        {
            self.await_cause(&inner.wake, peer.rank);
        }
        let first = self.control.fail(self.id, &self.group, error);
        self.fabric.flush_control(Deadline::after(GRACE));
        Self::drop_connections(inner);
        let first = operation.map_or(first.clone(), |(name, sequence)| first.with_operation(name, sequence));
        first.with_rank(self.place.rank)
    }

    /// After a connection to `peer` ended: a moment for word of an earlier failure that made it end, unless the peer
    /// itself is known to be gone.
    fn await_cause(&self, wake: &Wake, peer: usize) {
        let deadline = Deadline::after(GRACE);
        while self.group.check().is_ok() && !self.control.is_gone(peer) {
            match wait_any(&[wake.park()], deadline) {
                Ok(true) => wake.drain(),
                Ok(false) | Err(_) => return,
            }
        }
    }

    fn drop_connections(inner: &mut Inner<F>) {
        inner.pairs.clear();
        inner.streams.clear();
    }
}

/// Waits for a stream that opens.
struct Wait<'a, F: Fabric> {
    communicator: &'a Communicator<F>,
    wake: &'a Arc<Wake>,
    limits: Limits,
}

impl<F: Fabric> StreamWait for Wait<'_, F> {
    fn wake(&self) -> &Arc<Wake> {
        self.wake
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.limits.timeout)
    }

    fn check(&self) -> Result<()> {
        self.communicator.group.check()
    }

    fn is_gone(&self, rank: usize) -> bool {
        self.communicator.control.is_gone(rank)
    }
}

/// Poisons the group if a call unwinds: how much it had moved is unknown.
struct PanicGuard<'a, F: Fabric> {
    communicator: &'a Communicator<F>,
    call: (&'static str, u64),
}

impl<F: Fabric> Drop for PanicGuard<'_, F> {
    fn drop(&mut self) {
        let Self { communicator, call } = self;
        let error = Error::new(Kind::Io, "panicked in the middle of an operation").with_operation(call.0, call.1);
        communicator.control.fail(communicator.id, &communicator.group, error);
        communicator.fabric.kick();
    }
}
