//! [`MlxRing`]: MLX's own ring over the channels of a ring, byte for byte as `mlx/distributed/ring/ring.cpp` of MLX 0.32
//! moves it. What may not live here: sockets, and how bytes are moved ([`crate::drive`]) and cut ([`crate::plan`]).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuvec_transport::{Channel, Error, GroupId, Kind, Result, RingLinks, Wake};
use parking_lot::Mutex;

use crate::call::{Doing, Operation};
use crate::control::{CallStatus, Control, GroupState, RankState, RankStatus};
use crate::counters::{Counters, Counts};
use crate::drive::{Limits, Team, Watch, drive};
use crate::lane;
use crate::operation;
use crate::p2p;
use crate::plan::{self, Direction, LanePlan, Place};
use crate::reduce::{NanRule, kernel};
use crate::stream::Reducer;
use crate::workers::Workers;
use crate::{DType, Options, Reduction};

/// The most bytes, of one element per rank, that MLX pads an array of fewer elements than ranks to.
const MOST_PADDED: usize = 1024;

/// A rank of a ring in which other ranks may be MLX programs (0.32), on the channels that join the neighbours.
///
/// On the wire it is a rank of MLX: there are no headers, no control links and no checks. So what MLX's ring lacks is
/// missing here too. There are all-reduce, all-gather, and messages between neighbours: no reduce-scatter, broadcast,
/// barrier or split. Ranks in different calls, or whose lengths or types differ, get wrong data or wait until the
/// time-out. A failure poisons the group and closes its connections, so it goes round the ring, and each rank names the
/// neighbour that it lost: not always the rank that failed first.
///
/// A call blocks until this rank's part is done, and at the longest for the time-out since the last byte moved. Threads may
/// share a ring: their operations never interleave on the wire, but that all ranks use the same order is the caller's duty.
/// Errors of [`Kind::Misuse`] and [`Kind::Unsupported`] are found before any byte is moved and leave the group as it was.
///
/// ```
/// use std::time::Duration;
/// use nuvec_collectives::{DType, MlxRing, Options, Reduction};
/// use nuvec_transport::{RingLinks, memory};
///
/// // Two ranks in one process; each is both neighbours of the other.
/// let ((a, b), (c, d)) = (memory::pair(1 << 16), memory::pair(1 << 16));
/// let ring = |right, left, rank| {
///     let links = RingLinks { right: vec![right], left: vec![left] };
///     MlxRing::new(links, rank, 2, Duration::from_secs(30), Options::default()).unwrap()
/// };
/// let (zero, one) = (ring(a, d, 0), ring(c, b, 1));
/// let other = std::thread::spawn(move || {
///     let mut data = 2_i32.to_ne_bytes();
///     one.all_reduce(&mut data, DType::I32, Reduction::Max).unwrap();
/// });
/// let mut data = 1_i32.to_ne_bytes();
/// zero.all_reduce(&mut data, DType::I32, Reduction::Max).unwrap();
/// assert_eq!(i32::from_ne_bytes(data), 2);
/// # other.join().unwrap();
/// ```
pub struct MlxRing<C: Channel> {
    place: Place,
    /// Connections per neighbour.
    connections: usize,
    limits: Limits,
    process: u32,
    /// Of no use but to wait as other groups do: nobody sends a control message on this wire.
    control: Control,
    group: Arc<GroupState>,
    counters: Counters,
    /// When the call in progress began.
    since: Mutex<Option<Instant>>,
    inner: Mutex<Inner<C>>,
}

/// What an operation uses, under the group's lock.
struct Inner<C: Channel> {
    /// The halves of each lane: of each connection the lane that sends to the left, then the one to the right.
    lanes: Vec<(C::Sender, C::Receiver)>,
    /// The last operation's number.
    sequence: u64,
    wake: Arc<Wake>,
    workers: Workers,
}

/// Which neighbour's connections a message uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Right,
    Left,
}

impl<C: Channel> MlxRing<C> {
    /// Rank `rank` of `size` on `links`. An operation fails when nothing has moved for `timeout`. Of `options`, `threads`
    /// of 0 is as many as this machine's processors allow if all ranks run on it.
    ///
    /// Errors: [`Kind::Misuse`] if there is no such rank, or not equally many connections, at least one, to the right and
    /// to the left; no descriptors are left.
    pub fn new(links: RingLinks<C>, rank: usize, size: usize, timeout: Duration, options: Options) -> Result<Self> {
        let misuse = |text: String| Err(Error::new(Kind::Misuse, text).with_rank(rank));
        if rank >= size {
            return misuse(format!("there is no rank {rank} in a ring of {size}"));
        }
        let RingLinks { right, left } = links;
        let connections = right.len();
        if left.len() != connections || (size > 1) != (connections > 0) {
            return misuse(format!(
                "a ring of {size} with {connections} connections to the right, {} to the left",
                left.len()
            ));
        }
        let lanes = right.into_iter().zip(left).flat_map(|(right, left)| {
            let ((tx_right, rx_right), (tx_left, rx_left)) = (right.split(), left.split());
            [(tx_left, rx_right), (tx_right, rx_left)]
        });
        let wake = Arc::new(Wake::new().map_err(|e| e.with_rank(rank))?);
        let control = Control::new();
        let group = control.join(GroupId::ROOT);
        group.watch(&wake);
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()) / size,
            n => n,
        };
        Ok(Self {
            place: Place { rank, size },
            connections,
            limits: Limits { spin: options.spin.min(timeout), timeout },
            process: std::process::id(),
            control,
            group,
            counters: Counters::default(),
            since: Mutex::new(None),
            inner: Mutex::new(Inner { lanes: lanes.collect(), sequence: 0, wake, workers: Workers::new(threads) }),
        })
    }

    /// This process's rank, below [`size`](Self::size).
    pub fn rank(&self) -> usize {
        self.place.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.place.size
    }

    /// Reduces `data` (elements of `dtype`, equally many on every rank) with every rank's, in place, in the order of
    /// [`plan::mlx_all_reduce`]. Every rank gets the same bits, those of a ring of MLX ranks alone.
    ///
    /// A NaN follows [`NanRule::Mlx`]. Errors: see [`MlxRing`]; [`Kind::Misuse`] if `data` is not whole elements;
    /// [`Kind::Unsupported`] where MLX fails too: fewer elements than ranks when one for each takes more than 1024 bytes.
    pub fn all_reduce(&self, data: &mut [u8], dtype: DType, reduction: Reduction) -> Result<()> {
        let Place { size, .. } = self.place;
        let (width, bytes) = (dtype.size(), data.len());
        let doing = Doing::collective(Operation::AllReduce, Some(reduction));
        if !bytes.is_multiple_of(width) {
            return Err(self.misuse(doing, format!("{bytes} bytes are not a multiple of {width}")));
        }
        let elements = bytes / width;
        if elements < size && size * width > MOST_PADDED {
            let text = format!("MLX reduces no array of fewer elements ({elements}) than ranks ({size}) of {dtype}");
            return Err(self.unsupported(doing, text));
        }
        let reducer = Reducer { kernel: kernel(dtype, reduction, NanRule::Mlx), width };
        let plans = plan::mlx_all_reduce(self.place, elements, width, self.connections);
        self.operate(doing, bytes, |inner| {
            if elements >= size {
                return self.run(inner, plans, data, Some(reducer));
            }
            let mut padded = vec![0; size * width];
            padded[..bytes].copy_from_slice(data);
            self.run(inner, plans, &mut padded, Some(reducer))?;
            data.copy_from_slice(&padded[..bytes]);
            Ok(())
        })
    }

    /// Every rank's `input` (equally many bytes on each), concatenated in rank order into `output`, of `size` times as
    /// many bytes. Errors: see [`MlxRing`]; [`Kind::Misuse`] if the lengths do not fit.
    pub fn all_gather(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        let (b, Place { rank, size }) = (input.len(), self.place);
        let doing = Doing::collective(Operation::AllGather, None);
        if Some(output.len()) != b.checked_mul(size) {
            let text = format!("the output must hold {size} times the input's {b} bytes, not {}", output.len());
            return Err(self.misuse(doing, text));
        }
        self.operate(doing, b, |inner| {
            output[rank * b..][..b].copy_from_slice(input);
            self.run(inner, plan::mlx_all_gather(self.place, b, self.connections), output, None)
        })
    }

    /// Sends `data` to rank `to`, a neighbour in the ring; of two ranks, to the right. Returns once the transport has taken
    /// all bytes: what it does not hold waits for the receiver, so ranks that all send much before any of them receives
    /// wait for each other, until the time-out says so. 0 bytes move nothing. Errors: see [`MlxRing`];
    /// [`Kind::Unsupported`] if that rank is not a neighbour; [`Kind::Misuse`] if it is no other rank.
    pub fn send(&self, to: usize, data: &[u8]) -> Result<()> {
        let side = self.side(Doing::SEND, to, Side::Right)?;
        self.operate(Doing::SEND, data.len(), |inner| {
            let Inner { lanes, wake, .. } = inner;
            let txs: Vec<_> =
                lanes.iter_mut().skip(usize::from(side == Side::Right)).step_by(2).map(|l| &mut l.0).collect();
            drive(&mut p2p::send(txs.into_iter(), None, data), &self.watch(wake), &Team::default())
        })
    }

    /// Receives exactly `data.len()` bytes that rank `from`, a neighbour in the ring, sends with [`send`](Self::send) or
    /// MLX's; of two ranks, from the left. 0 bytes wait for nothing. Errors: as [`send`](Self::send).
    pub fn recv(&self, from: usize, data: &mut [u8]) -> Result<()> {
        let side = self.side(Doing::RECV, from, Side::Left)?;
        self.operate(Doing::RECV, data.len(), |inner| {
            let Inner { lanes, wake, .. } = inner;
            let rxs: Vec<_> =
                lanes.iter_mut().skip(usize::from(side == Side::Left)).step_by(2).map(|l| &mut l.1).collect();
            drive(&mut p2p::receive(rxs.into_iter(), data, 0), &self.watch(wake), &Team::default())
        })
    }

    /// What this rank does. No other rank tells on this wire. Never blocks, so another thread may ask while a call waits.
    pub fn status(&self) -> RankStatus {
        let since = self.since.lock().map_or(Duration::ZERO, |since| since.elapsed());
        let call = self.group.current().map(|(doing, sequence, waits)| CallStatus {
            group: GroupId::ROOT,
            operation: doing.name(),
            sequence,
            waits_for: waits.iter().map(|&w| w as usize).collect(),
            since,
        });
        let state = RankState::Alive { heard: Duration::ZERO };
        RankStatus { rank: self.place.rank, state, calls: call.into_iter().collect() }
    }

    /// How much this group has done so far on this rank. Never blocks.
    pub fn counters(&self) -> Counts {
        self.counters.read((0..self.place.size).map(|rank| self.group.waits(rank)).collect())
    }

    /// Ends the group on this rank and closes its connections. Later calls fail with [`Kind::Closed`]; neighbours that
    /// still need this rank's bytes fail and name it.
    pub fn close(&self) {
        self.group.poison(Error::new(Kind::Closed, "the group was closed by this process").with_rank(self.place.rank));
        self.inner.lock().lanes.clear();
    }

    fn misuse(&self, doing: Doing, text: String) -> Error {
        Error::new(Kind::Misuse, format!("{}: {text}", doing.name())).with_rank(self.place.rank)
    }

    fn unsupported(&self, doing: Doing, text: String) -> Error {
        Error::new(Kind::Unsupported, format!("{}: {text}", doing.name())).with_rank(self.place.rank)
    }

    /// On which side of this rank `peer` is; `first` is looked at first, which matters where both are the same rank.
    fn side(&self, doing: Doing, peer: usize, first: Side) -> Result<Side> {
        let Place { rank, size } = self.place;
        let (right, left) = (self.place.right(1), self.place.left(1));
        match first {
            _ if peer >= size || peer == rank => {
                Err(self.misuse(doing, format!("rank {peer} is not another rank of a ring of {size}")))
            }
            Side::Right if peer == right => Ok(Side::Right),
            Side::Left if peer == left => Ok(Side::Left),
            _ if peer == right => Ok(Side::Right),
            _ if peer == left => Ok(Side::Left),
            _ => Err(self.unsupported(
                doing,
                format!("rank {peer} is no neighbour of rank {rank}; on MLX's wire only neighbours in the ring can send to each other"),
            )),
        }
    }

    fn watch<'a>(&'a self, wake: &'a Arc<Wake>) -> Watch<'a> {
        Watch { group: &self.group, control: &self.control, wake, limits: self.limits }
    }

    /// Runs an operation: gives it its number, and has its failure or panic poison the group and close its connections.
    fn operate(&self, doing: Doing, bytes: usize, run: impl FnOnce(&mut Inner<C>) -> Result<()>) -> Result<()> {
        let rank = self.place.rank;
        let mut inner = operation::begin(&self.inner, &self.group, self.process, rank)?;
        inner.sequence += 1;
        let sequence = inner.sequence;
        let _span = tracing::debug_span!("distributed", rank, call = doing.name(), sequence, bytes).entered();
        *self.since.lock() = Some(Instant::now());
        self.group.enter(doing, sequence);
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut inner)));
        self.group.exit();
        let fail = |inner: &mut Inner<C>, e: Error| {
            let first = self.group.poison(e.with_operation(doing.name(), sequence).with_rank(rank));
            inner.lanes.clear();
            first
        };
        match outcome {
            Ok(Ok(())) => {
                self.counters.ended(bytes as u64);
                Ok(())
            }
            Ok(Err(e)) => Err(fail(&mut inner, e)),
            Err(panic) => {
                fail(&mut inner, Error::new(Kind::Io, format!("panicked in the middle of {}", doing.name())));
                resume_unwind(panic)
            }
        }
    }

    /// Moves the lanes of `plans` over `data`.
    fn run(&self, inner: &mut Inner<C>, plans: Vec<LanePlan>, data: &mut [u8], reducer: Option<Reducer>) -> Result<()> {
        let Inner { lanes, wake, workers, .. } = inner;
        let (bytes, segments) = (data.len() as u64, plan::lend(data, &plans));
        // Every connection has a lane to the left, then one to the right; a plan may begin with the latter.
        let first = usize::from(plans.first().is_some_and(|plan| plan.direction == Direction::Right));
        let mut lanes = lane::lanes(lanes.iter_mut().skip(first), plans, segments, None, reducer);
        workers.drive(&mut lanes, bytes, &self.watch(wake))
    }
}

#[cfg(test)]
mod tests;
