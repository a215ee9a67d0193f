//! [`Communicator`]: a group's collectives over a [`Fabric`]. What may not live here: sockets, and how bytes are moved
//! ([`crate::drive`]), cut ([`crate::plan`]), or who is to blame (`crate::operation`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuvec_transport::{Channel, ControlHandler, Deadline, Error, Fabric, GroupId, Kind, Links, Result, Wake};
use parking_lot::Mutex;

use crate::call::{Algorithm, Call, Doing, Operation};
use crate::control::{Control, GroupState, RankStatus};
use crate::counters::{Counters, Counts};
use crate::drive::{Team, drive};
use crate::inquiry::GRACE;
use crate::p2p;
use crate::plan::{self, Place};
use crate::reduce::{NanRule, kernel};
use crate::stream::Reducer;
use crate::streams::Streams;
use crate::workers::Workers;
use crate::{DType, Reduction};

/// Up to how many bytes of each rank go both ways round the ring, in ⌊n/2⌋ hops; beyond, they are cut up for the ring.
///
/// Measured with the example `all_reduce` (f32, one connection, over loopback on two cores; both ways against ring in µs,
/// medians of three rounds): 2 ranks: 8 KiB 7 to 10, 32 KiB 14 to 15, 64 KiB 28 to 21; 4 ranks: 8 KiB 32 to 73, 32 KiB 64
/// to 92, 64 KiB 131 to 131, 128 KiB 244 to 169.
const SHORT: usize = 32 << 10;

/// The longest that closing lets a transport wait for what was sent to arrive. Where a kernel sees to that, it takes no time.
const CLOSE: Duration = Duration::from_secs(5);

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

/// A group of ranks and its collectives.
///
/// Every rank calls the same operations in the same order with the same lengths; where they differ, the calls fail with
/// [`Kind::Mismatch`] on the rank that sees it and, by its word, on the others in their current or next call. A call
/// blocks until this rank's part is done, and at the longest for the time-out since the last byte moved. Threads may
/// share a communicator: their operations never interleave on the wire, but that all ranks use the same order is the
/// caller's duty.
///
/// The first failure poisons the group: every rank's call fails with an error that names the rank that failed first, and
/// later calls fail at once and repeat it. Errors of [`Kind::Misuse`] and [`Kind::Unsupported`] are found before any data is
/// moved and leave the group as it was.
///
/// The transport's [`Links`] decide how the ranks work together: round a ring, or over a mesh, where every two ranks have
/// a channel. Which it is shows in the order in which sums are made, and in that a mesh does not [`split`](Self::split).
///
/// ```
/// use std::time::{Duration, Instant};
/// use nuvec_collectives::{Communicator, Control, DType, Options, Reduction};
/// use nuvec_transport::memory;
///
/// // Two ranks in one process, over channels in memory; `nuvec-transport-tcp` connects processes.
/// let controls = [Control::new(), Control::new()];
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
    pub(crate) fabric: Arc<F>,
    pub(crate) control: Control,
    pub(crate) id: GroupId,
    pub(crate) group: Arc<GroupState>,
    pub(crate) place: Place,
    /// Whether every two ranks have a channel; otherwise they stand in a ring.
    pub(crate) mesh: bool,
    /// Every member's rank among all, by its rank in this group.
    pub(crate) members: Vec<usize>,
    pub(crate) options: Options,
    pub(crate) process: u32,
    pub(crate) epoch: Instant,
    pub(crate) counters: Counters,
    pub(crate) inner: Mutex<Inner<F>>,
}

/// What an operation uses, under the group's lock.
pub(crate) struct Inner<F: Fabric> {
    /// The halves of each lane of a ring: of each connection the lane that sends to the right, then the one to the left.
    /// Of a mesh the channels to rank + 1, rank + 2, … modulo size.
    pub(crate) lanes: Vec<(F::Sender, F::Receiver)>,
    pub(crate) streams: Streams<F>,
    /// The last collective's number.
    pub(crate) sequence: u64,
    pub(crate) wake: Arc<Wake>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) workers: Workers,
}

impl<F: Fabric> Communicator<F> {
    /// Connects the group of all ranks: `connect` is given the handler of its control messages, and returns the transport
    /// that it connects, such as `nuvec_transport_tcp::connect`.
    ///
    /// Blocks as `connect` does. Errors: what `connect` returns; no descriptors are left.
    ///
    /// ```no_run
    /// use nuvec_collectives::{Communicator, Options};
    /// use nuvec_transport_tcp::{Address, connect};
    ///
    /// let nodes = [vec![Address::new("10.0.0.1", 29500)], vec![Address::new("10.0.0.2", 29500)]];
    /// let group =
    ///     Communicator::form(Options::default(), |handler| connect(&nodes, 0, &Default::default(), handler))?;
    /// group.barrier()?;
    /// # Ok::<(), nuvec_transport::Error>(())
    /// ```
    pub fn form(options: Options, connect: impl FnOnce(Box<dyn ControlHandler>) -> Result<F>) -> Result<Self> {
        let control = Control::new();
        Self::new(connect(control.handler())?, control, options)
    }

    /// The group of all ranks of `fabric`, which stands already and whose control messages `control` handles. Takes the
    /// fabric's channels. Errors: they were taken before; no descriptors are left.
    pub fn new(fabric: F, control: Control, options: Options) -> Result<Self> {
        let members = (0..fabric.size()).collect();
        let links = if fabric.size() > 1 { Some(fabric.links()?) } else { None };
        let wake = Wake::new().map_err(|e| {
            // The others have formed with this rank: they are told why it is not there.
            let e = control.fail(GroupId::ROOT, &control.join(GroupId::ROOT), e.with_rank(fabric.rank()));
            fabric.flush_control(Deadline::after(GRACE));
            e
        })?;
        let wake = Arc::new(wake);
        Ok(Self::join(Arc::new(fabric), control, GroupId::ROOT, members, links, wake, options))
    }

    /// This rank's part of a group whose connections stand.
    pub(crate) fn join(
        fabric: Arc<F>,
        control: Control,
        id: GroupId,
        members: Vec<usize>,
        links: Option<Links<F::Channel>>,
        wake: Arc<Wake>,
        options: Options,
    ) -> Self {
        let rank = members.iter().position(|&m| m == fabric.rank()).unwrap_or_default();
        let place = Place { rank, size: members.len() };
        let mesh = matches!(links, Some(Links::Mesh(_)));
        let lanes = match links {
            Some(Links::Ring(ring)) => {
                let lanes = |(right, left): (F::Channel, F::Channel)| {
                    let ((tx_right, rx_right), (tx_left, rx_left)) = (right.split(), left.split());
                    [(tx_right, rx_left), (tx_left, rx_right)]
                };
                ring.right.into_iter().zip(ring.left).flat_map(lanes).collect()
            }
            Some(Links::Mesh(mut channels)) => {
                channels.rotate_left(rank);
                channels.into_iter().map(Channel::split).collect()
            }
            None => Vec::new(),
        };
        let group = control.join(id);
        group.watch(&wake);
        fabric.accept(id, &wake);
        let threads = match options.threads {
            0 => (fabric.min_cores() / fabric.size()).max(1),
            n => n,
        };
        let inner = Inner {
            lanes,
            streams: Streams::new(fabric.clone(), id),
            sequence: 0,
            wake,
            scratch: Vec::new(),
            workers: Workers::new(threads),
        };
        let (process, epoch) = (std::process::id(), Instant::now());
        let counters = Counters::default();
        let inner = Mutex::new(inner);
        Self { fabric, control, id, group, place, mesh, members, options, process, epoch, counters, inner }
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
    /// Up to 32 KiB the ranks' data are reduced in rank order, ((x_0 + x_1) + x_2) + …; beyond, each part of the data in
    /// the order of the ring, beginning at the rank where that part starts ([`plan::all_reduce`]). Over a mesh, up to 16
    /// KiB in rank order too; beyond, block r of `size` equal ones ([`plan::mesh::all_reduce`]) beginning with rank r,
    /// ((x_r + x_{r+1}) + x_{r+2}) + … modulo `size`. Errors: see [`Communicator`]; [`Kind::Misuse`] if `data` is not
    /// whole elements.
    pub fn all_reduce(&self, data: &mut [u8], dtype: DType, reduction: Reduction) -> Result<()> {
        let width = dtype.size();
        let short = data.len() <= SHORT;
        let algorithm = if short { Algorithm::BothWays } else { Algorithm::Ring };
        let call =
            Call { reduction: Some((reduction, dtype)), algorithm, ..self.call(Operation::AllReduce, data.len()) };
        self.whole_elements(&call, data.len(), width)?;
        let reducer = Reducer { kernel: kernel(dtype, reduction, NanRule::Propagate), width };
        if self.mesh {
            return self.all_reduce_in_mesh(call, data, reducer);
        }
        self.operate(call, |inner, call| {
            if !short {
                let plans = plan::all_reduce(self.place, data.len() / width, width, self.lanes(data.len()));
                return self.run(inner, call, plans, data, Some(reducer));
            }
            let mut scratch = std::mem::take(&mut inner.scratch);
            let blocks = self.gather_both_ways(inner, call, data, &mut scratch)?;
            reducer.fold(blocks, data);
            inner.scratch = scratch;
            Ok(())
        })
    }

    /// Every rank's `input` (equally many bytes on each), concatenated in rank order into `output`, of `size` times as
    /// many bytes. Errors: see [`Communicator`]; [`Kind::Misuse`] if the lengths do not fit.
    pub fn all_gather(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        let (b, n) = (input.len(), self.place.size);
        if Some(output.len()) != b.checked_mul(n) {
            let text = format_args!("the output must hold {n} times the input's {b} bytes, not {}", output.len());
            return Err(self.misuse("all_gather", text));
        }
        self.gather_in(&mut *self.begin()?, Operation::AllGather, input, output)
    }

    /// The same, as `operation`, for who has begun already, with lengths that fit.
    pub(crate) fn gather_in(
        &self,
        inner: &mut Inner<F>,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<()> {
        let b = input.len();
        let short = b <= SHORT;
        let algorithm = if short { Algorithm::BothWays } else { Algorithm::Ring };
        let call = Call { algorithm, ..self.call(operation, b) };
        if self.mesh {
            return self.gather_in_mesh(inner, call, input, output);
        }
        self.operate_in(inner, call, |inner, call| {
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
    /// its own rank's part; over a mesh, beginning with it, ((x_r + x_{r+1}) + x_{r+2}) + … modulo `size`. Errors: see
    /// [`Communicator`]; [`Kind::Misuse`] if `data` is not whole elements or blocks.
    pub fn reduce_scatter(&self, data: &mut [u8], dtype: DType, reduction: Reduction) -> Result<()> {
        let width = dtype.size();
        let call = Call { reduction: Some((reduction, dtype)), ..self.call(Operation::ReduceScatter, data.len()) };
        self.whole_elements(&call, data.len(), width * self.place.size)?;
        let reducer = Reducer { kernel: kernel(dtype, reduction, NanRule::Propagate), width };
        if self.mesh {
            return self.reduce_scatter_in_mesh(call, data, reducer);
        }
        let elements = data.len() / width / self.place.size;
        self.operate(call, |inner, call| {
            let plans = plan::reduce_scatter(self.place, elements, width, self.lanes(data.len()));
            self.run(inner, call, plans, data, Some(reducer))
        })
    }

    /// Replaces every rank's `data` (equally many bytes on each) with rank `root`'s. Nothing is reduced. Errors: see [`Communicator`];
    /// [`Kind::Misuse`] if there is no such rank.
    pub fn broadcast(&self, root: usize, data: &mut [u8]) -> Result<()> {
        let call = Call { root: root as u16, ..self.call(Operation::Broadcast, data.len()) };
        if root >= self.place.size {
            return Err(self.misuse(call.name(), format!("there is no rank {root} in a group of {}", self.place.size)));
        }
        if self.mesh {
            return self.broadcast_in_mesh(call, root, data);
        }
        self.operate(call, |inner, call| {
            let plans = plan::broadcast(self.place, root, data.len(), self.lanes(data.len()));
            self.run(inner, call, plans, data, None)
        })
    }

    /// Returns once every rank has called it. Errors: see [`Communicator`].
    pub fn barrier(&self) -> Result<()> {
        let call = Call { algorithm: Algorithm::BothWays, ..self.call(Operation::Barrier, 1) };
        if self.mesh {
            return self.barrier_in_mesh(call);
        }
        self.operate(call, |inner, call| {
            let mut scratch = std::mem::take(&mut inner.scratch);
            self.gather_both_ways(inner, call, &[1], &mut scratch)?;
            inner.scratch = scratch;
            Ok(())
        })
    }

    /// Sends `data` to rank `to`, any rank but this one. Returns once the transport has taken all bytes: what it does not
    /// hold waits for the receiver's [`recv`](Self::recv), so ranks that all send much before any of them receives wait
    /// for each other, until the time-out says so. Errors: see [`Communicator`]; [`Kind::Unsupported`] if the transport joins
    /// the two ranks by nothing (a ring over RDMA joins neighbours alone).
    pub fn send(&self, to: usize, data: &[u8]) -> Result<()> {
        self.message(Doing::SEND, to, data.len(), |Inner { streams, wake, .. }, peer| {
            let (watch, sequence) = (self.watch(wake), streams.next_sent(peer));
            self.group.enter(Doing::CONNECT, sequence);
            let txs = streams.senders(peer, &watch)?;
            self.group.enter(Doing::SEND, sequence);
            drive(&mut p2p::send(txs.iter_mut(), Some(sequence), data), &watch, &Team::default())
        })
    }

    /// Receives exactly `data.len()` bytes that rank `from`, any rank but this one, sends with [`send`](Self::send).
    /// Errors: as [`send`](Self::send); [`Kind::Mismatch`] if it sent another number of bytes.
    pub fn recv(&self, from: usize, data: &mut [u8]) -> Result<()> {
        self.message(Doing::RECV, from, data.len(), |Inner { streams, wake, .. }, peer| {
            let (watch, sequence) = (self.watch(wake), streams.next_received(peer));
            self.group.enter(Doing::RECV, sequence);
            let rxs = streams.receivers(peer, &watch)?;
            let stripes = rxs.len();
            let mut head = [p2p::RecvHeader::new(&mut rxs[0], stripes, self.place.rank, sequence, data)];
            drive(&mut head, &watch, &Team::default())?;
            let taken = head[0].taken();
            drive(&mut p2p::receive(rxs.iter_mut(), data, taken), &watch, &Team::default())
        })
    }

    /// What every rank of all does: this one as it is now, the others as they last reported, at most about a second ago.
    /// Never blocks, so another thread may ask while a call waits.
    pub fn status(&self) -> Vec<RankStatus> {
        self.control.status()
    }

    /// How much this group has done so far on this rank. Never blocks.
    pub fn counters(&self) -> Counts {
        self.counters.read(self.members.iter().map(|&rank| self.group.waits(rank)).collect())
    }

    /// The rank among all of this group's rank `rank`, below [`size`](Self::size).
    pub fn rank_of_all(&self, rank: usize) -> Option<usize> {
        self.members.get(rank).copied()
    }

    /// Ends the group on this rank: closes its connections and, of the group of all ranks, the control links, within about a
    /// second; over a transport that must see to it itself that what was sent arrives, such as RDMA, up to five. Later calls fail with [`Kind::Closed`]; so do those of the groups that were split from the group of all.
    /// Ranks that still need this one's bytes fail with an error that names it.
    pub fn close(&self) {
        let closed = Error::new(Kind::Closed, "the group was closed by this process").with_rank(self.fabric.rank());
        if self.id == GroupId::ROOT {
            self.control.end(&closed);
        }
        self.group.poison(closed);
        Self::drop_connections(&mut self.inner.lock());
        if self.id == GroupId::ROOT {
            self.fabric.close(Deadline::after(CLOSE));
        }
    }
}

impl<F: Fabric> Drop for Communicator<F> {
    /// A group that nobody holds any more is forgotten; its connections end.
    fn drop(&mut self) {
        self.control.leave(self.id);
        self.fabric.leave(self.id);
    }
}
