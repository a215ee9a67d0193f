//! [`Fabric`]: what a group of ranks runs on, and [`ControlHandler`]: who reads its control messages.
//!
//! The seam between a transport and the group that runs on it. A transport carries control messages and understands
//! none; the handler decides what they mean and knows neither socket nor clock. So a simulation can stand in for either.

use std::sync::Arc;
use std::time::Duration;

use crate::{Channel, Deadline, Error, Peer, Receiver, Result, Sender, Wake};

/// The longest control message, in bytes.
pub const MAX_CONTROL_MESSAGE: usize = 1024;

/// A group of ranks: the root group, or one split off from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

impl GroupId {
    /// The group of all ranks.
    pub const ROOT: Self = Self(0);
}

/// A control link of this rank: with a ring, one to each neighbour (two to the same rank when there are two ranks).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// What a [`ControlHandler`] wants done.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Messages to send, each of at most [`MAX_CONTROL_MESSAGE`] bytes, in order. One to a link that has ended is
    /// dropped.
    pub messages: Vec<(LinkId, Vec<u8>)>,
    /// Groups that failed just now, with their first cause. A transport that is still forming fails with the root's.
    pub poisoned: Vec<(GroupId, Error)>,
}

/// Reads and writes the control messages of one rank. A transport calls it from one thread at a time, from before
/// forming until it is closed; `now` is the time since the transport began, and never goes back. It must not block.
pub trait ControlHandler: Send {
    /// The transport begins: this is rank `rank` of `peers` (every rank, its own too, by index, with the address that
    /// errors show), and its operations wait for `timeout` without progress. Returns a number that must be the same on
    /// every rank for the group to form: of the version of what runs on it.
    fn begin(&mut self, rank: usize, peers: &[Peer], timeout: Duration) -> u32 {
        let _ = (rank, peers, timeout);
        0
    }
    /// A control link to `peer` is up.
    fn link_up(&mut self, link: LinkId, peer: &Peer, now: Duration, out: &mut Outbox);
    /// A message arrived on a link. It comes from another process: any bytes are possible.
    fn message(&mut self, link: LinkId, message: &[u8], now: Duration, out: &mut Outbox);
    /// A link ended: closed, reset, or unusable. It does not come back. While the group forms, whether that is a failure
    /// is the transport's to say, with [`forming_failed`](ControlHandler::forming_failed).
    fn link_ended(&mut self, link: LinkId, why: &Error, now: Duration, out: &mut Outbox);
    /// Forming failed on this rank: tell the others why. (`why` names the rank to blame, where one is.)
    fn forming_failed(&mut self, why: &Error, now: Duration, out: &mut Outbox);
    /// Called after [`Fabric::kick`], and at least once per [`tick_interval`](ControlHandler::tick_interval).
    fn tick(&mut self, now: Duration, out: &mut Outbox);
    /// The longest time between two ticks.
    fn tick_interval(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// A handler that says nothing and minds nothing: for the channels of a fabric alone, as in tests and examples.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl ControlHandler for Silent {
    fn link_up(&mut self, _: LinkId, _: &Peer, _: Duration, _: &mut Outbox) {}
    fn message(&mut self, _: LinkId, _: &[u8], _: Duration, _: &mut Outbox) {}
    fn link_ended(&mut self, _: LinkId, _: &Error, _: Duration, _: &mut Outbox) {}
    fn forming_failed(&mut self, _: &Error, _: Duration, _: &mut Outbox) {}
    fn tick(&mut self, _: Duration, _: &mut Outbox) {}
}

/// The connections of a ring: one channel per connection to each neighbour, connection `i` of one rank's `right` being
/// connection `i` of its right neighbour's `left`.
#[derive(Debug)]
pub struct RingLinks<C> {
    /// To rank + 1 (modulo size).
    pub right: Vec<C>,
    /// To rank − 1 (modulo size).
    pub left: Vec<C>,
}

/// How the ranks of a group are connected. What a fabric gives decides which algorithms run over it, so every rank of a
/// group gets the same kind.
#[derive(Debug)]
pub enum Links<C> {
    /// Each rank with its two neighbours.
    Ring(RingLinks<C>),
    /// Each rank with every other: one channel to each, in rank order, this rank's own left out.
    Mesh(Vec<C>),
}

impl<C> Links<C> {
    /// The ring's channels; `None` of a mesh.
    pub fn into_ring(self) -> Option<RingLinks<C>> {
        match self {
            Self::Ring(ring) => Some(ring),
            Self::Mesh(_) => None,
        }
    }
}

/// A formed set of ranks that can talk: the channels of a ring or a mesh, one-way streams between any two ranks, and control.
///
/// Ranks here are the root group's. Nothing blocks except [`flush_control`](Fabric::flush_control) and
/// [`close`](Fabric::close), both within their deadline.
pub trait Fabric: Send + Sync + 'static {
    /// A ring's, or a mesh's, channel.
    type Channel: Channel<Sender = Self::Sender, Receiver = Self::Receiver> + 'static;
    /// The sending end of a stream, and of a channel.
    type Sender: Sender + 'static;
    /// The receiving end of a stream, and of a channel.
    type Receiver: Receiver + 'static;

    /// This process's rank.
    fn rank(&self) -> usize;
    /// The number of ranks.
    fn size(&self) -> usize;
    /// The number of connections per neighbour in a ring, and of stripes per stream.
    fn connections(&self) -> usize;
    /// A rank, with the address by which it is known here.
    fn peer(&self, rank: usize) -> Peer;
    /// The longest that an operation waits without progress: the largest that any rank asked for when the ring formed.
    fn timeout(&self) -> Duration;
    /// The smallest number of processors that any rank announced when the ring formed.
    fn min_cores(&self) -> usize;

    /// Takes the root group's channels. Errors: they were taken before.
    fn links(&self) -> Result<Links<Self::Channel>>;

    /// Begins to open the ring of `group`, a group of some of the ranks, in which `right` and `left` are this rank's
    /// neighbours (the same rank in a group of two). Both neighbours do the same. `wake` rings when
    /// [`ring_opened`](Fabric::ring_opened) has the result. The attempt ends by `deadline`. A fabric that connects
    /// no further groups has [`Kind::Unsupported`](crate::Kind::Unsupported) for a result.
    fn open_ring(&self, group: GroupId, right: usize, left: usize, wake: &Arc<Wake>, deadline: Deadline);
    /// The ring that [`open_ring`](Fabric::open_ring) began, once it is there or has failed.
    fn ring_opened(&self, group: GroupId) -> Option<Result<RingLinks<Self::Channel>>>;

    /// Whether this rank and rank `rank` can open streams to each other. Errors:
    /// [`Kind::Unsupported`](crate::Kind::Unsupported) if nothing joins the two.
    fn check_stream(&self, _rank: usize) -> Result<()> {
        Ok(())
    }
    /// Begins to open a one-way stream to rank `to` for `group`; `wake` rings when [`opened`](Fabric::opened) has the
    /// result. The attempt ends by `deadline`.
    fn open(&self, group: GroupId, to: usize, wake: &Arc<Wake>, deadline: Deadline);
    /// The stream that [`open`](Fabric::open) began, one sender per stripe, once it is there or has failed.
    fn opened(&self, group: GroupId, to: usize) -> Option<Result<Vec<Self::Sender>>>;
    /// From now on takes streams of `group`, and rings `wake` at each one that arrives.
    fn accept(&self, group: GroupId, wake: &Arc<Wake>);
    /// A stream that rank `from` opened for `group`, one receiver per stripe, once all its stripes are there.
    fn accepted(&self, group: GroupId, from: usize) -> Option<Vec<Self::Receiver>>;
    /// Forgets `group`, for good: what is being opened for it is given up, what nobody took is closed, and its streams are
    /// no longer taken. What was handed out lives on. To be called once a group has ended, or its ring did not come about;
    /// until then, or until the fabric is closed, a transport may hold the group's wakes and what arrived for it.
    fn leave(&self, _group: GroupId) {}

    /// Has the control handler's `tick` called soon.
    fn kick(&self);
    /// Calls the handler's `tick` and waits until every control message so far has been handed to every live link;
    /// `false` if the deadline came first.
    fn flush_control(&self, deadline: Deadline) -> bool;
    /// Ends the control links and the transport's threads. Streams and rings end when their halves are dropped. Calling
    /// it again does nothing.
    fn close(&self, deadline: Deadline);
}
