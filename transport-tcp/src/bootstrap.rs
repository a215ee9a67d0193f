//! How the ranks of a group meet that have no ring of sockets: a star around rank 0, for transports of another kind.
//!
//! Rank 0 listens on the coordinator's address, the others dial it. Each brings a *card*, bytes that this module does not
//! understand (an RDMA transport writes its queue pairs there); [`connect`] returns once every rank has every card.
//! Whoever has then built what the cards are for calls [`Bootstrap::ready`], a barrier, or [`Bootstrap::fail`].
//!
//! The connections stay open for the [`ControlHandler`]'s messages: rank 0 has a link to every other rank, whose
//! [`LinkId`](nuvec_transport::LinkId) is that rank; the others have one, to rank 0, whose is 0. Once rank 0 has left, the
//! others have no control any more, and go on without.
//!
//! What may not live here: what the cards say, and data.

use std::fmt;
use std::net::TcpListener;
use std::time::Duration;

use nuvec_transport::{ControlHandler, Deadline, Error, Kind, Peer, Result};

use crate::{Address, Options};

/// The longest card, in bytes.
pub const MAX_CARD: usize = 64 << 10;

/// Meets the other ranks: gives every rank this one's `card`, of at most [`MAX_CARD`] bytes, and gets theirs.
///
/// Rank 0 listens on `coordinator`, on everything local that it resolves to; the others dial it. Returns once every rank's
/// card is here; blocks for `options.timeout` at the longest (and about a second more to tell the others, when it fails).
/// `handler` is given the control messages, from now on until the bootstrap is closed. A group of one rank opens no socket.
///
/// Errors: [`Kind::Misuse`] for a rank, size or card that cannot be; [`Kind::Io`] or [`Kind::Exhausted`] when rank 0 cannot
/// listen; [`Kind::Rejected`] when rank 0 refuses this rank for good; [`Kind::Mismatch`] when ranks do not fit together;
/// [`Kind::TimedOut`], naming every rank that is missing; [`Kind::PeerClosed`] or [`Kind::Reset`] when a rank leaves
/// meanwhile; and whatever the handler reports about the root group: by it the others learn why one rank failed.
pub fn connect(
    coordinator: &Address,
    rank: usize,
    size: usize,
    card: &[u8],
    options: &Options,
    handler: Box<dyn ControlHandler>,
) -> Result<Bootstrap> {
    let _ = (coordinator, size, card, options, handler);
    Err(Error::new(Kind::Unsupported, "ranks cannot meet yet").with_rank(rank))
}

/// As [`connect`], with sockets that listen already: from socket activation, or bound to a port that the system chose.
/// Rank 0 needs at least one; the other ranks use none.
pub fn connect_with_listeners(
    listeners: Vec<TcpListener>,
    coordinator: &Address,
    rank: usize,
    size: usize,
    card: &[u8],
    options: &Options,
    handler: Box<dyn ControlHandler>,
) -> Result<Bootstrap> {
    drop(listeners);
    connect(coordinator, rank, size, card, options, handler)
}

/// Ranks that have met. See [`connect`].
///
/// Dropping it closes it, as [`close`](Bootstrap::close) does with a deadline of one second.
pub struct Bootstrap {
    rank: usize,
    cards: Vec<Vec<u8>>,
    peers: Vec<Peer>,
    timeout: Duration,
    min_cores: usize,
}

impl Bootstrap {
    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.cards.len()
    }

    /// Every rank's card, by rank, this one's too.
    pub fn cards(&self) -> &[Vec<u8>] {
        &self.cards
    }

    /// A rank, with the address that rank 0 saw it come from; of rank 0, the coordinator's.
    pub fn peer(&self, rank: usize) -> Peer {
        self.peers.get(rank).cloned().unwrap_or_else(|| Peer::new(rank, "not in the group"))
    }

    /// The group's time-out: the largest that any rank was given.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The smallest number of processors that any rank may use.
    pub fn min_cores(&self) -> usize {
        self.min_cores
    }

    /// Waits until every rank has called this. To be called once.
    ///
    /// Errors: [`Kind::TimedOut`] at the deadline, naming every rank that has not; the reason of a rank that
    /// [failed](Bootstrap::fail) instead; [`Kind::PeerClosed`] or [`Kind::Reset`], naming a rank that left instead;
    /// [`Kind::Misuse`] the second time. After an error the links are closed.
    pub fn ready(&self, deadline: Deadline) -> Result<()> {
        let _ = deadline;
        Err(Error::new(Kind::Unsupported, "ranks cannot meet yet").with_rank(self.rank))
    }

    /// Tells the others, through the handlers, that this rank cannot go on, and closes the links. Instead of
    /// [`ready`](Bootstrap::ready). Blocks for about a second at the longest.
    pub fn fail(&self, why: &Error) {
        let _ = why;
    }

    /// Has the control handler's `tick`, and what was given to [`attend`](Bootstrap::attend), called soon.
    pub fn kick(&self) {}

    /// As [`Fabric::flush_control`](nuvec_transport::Fabric::flush_control).
    pub fn flush_control(&self, deadline: Deadline) -> bool {
        !deadline.expired()
    }

    /// Ends the control links and the service thread, within the deadline and at most about a second. Calling it again does
    /// nothing.
    pub fn close(&self, deadline: Deadline) {
        let _ = deadline;
    }

    /// From now on the service thread calls `work` whenever it wakes, and at the latest after the time that `work` returned
    /// the last time. It must not block. It is dropped when the links are closed, and at once in a group of one rank, which
    /// has no such thread. A second one takes the place of the first.
    pub fn attend(&self, work: Box<dyn FnMut() -> Option<Duration> + Send>) {
        drop(work);
    }
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bootstrap(rank {} of {})", self.rank, self.cards.len())
    }
}
