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

mod door;
mod meeting;
mod star;

use std::fmt;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nuvec_transport::{ControlHandler, Deadline, Error, Kind, Peer, Result};

use crate::base::Base;
use crate::cards::Cards;
use crate::context::Context;
use crate::listen::Listeners;
use crate::thread::{CLOSE, Command, Mailbox, Remote};
use crate::{Address, Options};
use meeting::Meeting;
use star::{Met, Star, StarCommand};

/// The longest card, in bytes.
pub const MAX_CARD: usize = 64 << 10;

/// The most ranks that meet: rank 0 has a connection to each.
const MAX_RANKS: usize = 1 << 12;

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
    start(coordinator, rank, size, card, options, handler, Listeners::bind)
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
    start(coordinator, rank, size, card, options, handler, |context, _| Listeners::adopt(context, listeners))
}

fn start(
    coordinator: &Address,
    rank: usize,
    size: usize,
    card: &[u8],
    options: &Options,
    mut handler: Box<dyn ControlHandler>,
    listen: impl FnOnce(&Context, Deadline) -> Result<Listeners>,
) -> Result<Bootstrap> {
    let misuse = |what: String| Error::new(Kind::Misuse, what).with_rank(rank);
    if card.len() > MAX_CARD {
        return Err(misuse(format!("a card of {} bytes is too long: {MAX_CARD} is the most", card.len())));
    }
    if size > MAX_RANKS {
        return Err(misuse(format!("{size} ranks are too many: {MAX_RANKS} can meet")));
    }
    // To its own process every rank is where it meets the others: that is whom it dials, or where it listens.
    let mut context = Context::new(&vec![vec![coordinator.clone()]; size], rank, options)?;
    let first = context.peer(0, 0);
    let peers: Vec<_> = (0..size).map(|r| if r == 0 { first.clone() } else { meeting::absent(r, &first) }).collect();
    context.agreement = handler.begin(rank, &peers, options.timeout);
    let deadline = Deadline::after(options.timeout);
    let cards = Cards::own(&context)?;
    let bootstrap =
        |context, met: Met, failure, remote| Bootstrap { context, met, failure, spent: AtomicBool::new(false), remote };
    if size == 1 {
        let met = Met { cards: vec![card.to_vec()], peers, summary: cards.summary() };
        return Ok(bootstrap(Arc::new(context), met, Arc::default(), None));
    }
    let listeners = if rank == 0 { listen(&context, deadline)? } else { Listeners::default() };
    let context = Arc::new(context);
    let (mailbox, inbox) = Mailbox::new(&context)?;
    let (reply, result) = crossbeam_channel::bounded(1);
    let failure = Arc::new(OnceLock::new());
    // A link's index is the rank at its other end.
    let links = if rank == 0 { size } else { 1 };
    let base = Base::new(Arc::clone(&context), listeners, links, handler, mailbox.clone(), inbox);
    let star = Star::new(base, Meeting::new(rank, size, cards, card), deadline, reply, Arc::clone(&failure));
    let remote = Remote::start(&context, mailbox, move || star.run())?;
    let met = remote.answer(&context, &result, deadline)?;
    Ok(bootstrap(context, met, failure, Some(remote)))
}

/// Ranks that have met. See [`connect`].
///
/// Dropping it closes it, as [`close`](Bootstrap::close) does with a deadline of one second.
pub struct Bootstrap {
    context: Arc<Context>,
    met: Met,
    /// Why the service thread has ended.
    failure: Arc<OnceLock<Error>>,
    /// Whether this rank has said that it is ready, or that it cannot go on.
    spent: AtomicBool,
    /// `None` for a group of one rank.
    remote: Option<Remote<StarCommand>>,
}

impl Bootstrap {
    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.context.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.context.size
    }

    /// Every rank's card, by rank, this one's too.
    pub fn cards(&self) -> &[Vec<u8>] {
        &self.met.cards
    }

    /// A rank, with the address that rank 0 saw it come from; of rank 0, the coordinator's.
    pub fn peer(&self, rank: usize) -> Peer {
        self.met.peers.get(rank).cloned().unwrap_or_else(|| Peer::new(rank, "not in the group"))
    }

    /// The group's time-out: the largest that any rank was given.
    pub fn timeout(&self) -> Duration {
        self.met.summary.timeout
    }

    /// The smallest number of processors that any rank may use.
    pub fn min_cores(&self) -> usize {
        self.met.summary.min_cores
    }

    /// Waits until every rank has called this. To be called once.
    ///
    /// Errors: [`Kind::TimedOut`] at the deadline, naming every rank that has not; the reason of a rank that
    /// [failed](Bootstrap::fail) instead; [`Kind::PeerClosed`] or [`Kind::Reset`], naming a rank that left instead;
    /// [`Kind::Misuse`] the second time. After an error the links are closed.
    pub fn ready(&self, deadline: Deadline) -> Result<()> {
        let misuse = |what: &'static str| Err(self.context.error(Kind::Misuse, what));
        if self.remote.as_ref().is_some_and(Remote::in_another_process) {
            return misuse("a forked child cannot use its parent's group");
        }
        if self.spent.swap(true, Ordering::AcqRel) {
            return misuse("this rank has said before that it is ready, or that it is not");
        }
        let Some(remote) = &self.remote else { return Ok(()) };
        let (reply, answer) = crossbeam_channel::bounded(1);
        // A thread that has ended has left the reason.
        remote.mailbox.send(Command::Own(StarCommand::Ready(deadline, reply)));
        remote.answer(&self.context, &answer, deadline).map_err(|e| self.failure.get().cloned().unwrap_or(e))
    }

    /// Tells the others, through the handlers, that this rank cannot go on, and closes the links. Instead of
    /// [`ready`](Bootstrap::ready). Blocks for about a second at the longest.
    pub fn fail(&self, why: &Error) {
        let Some(remote) = &self.remote else { return };
        if remote.in_another_process() || self.spent.swap(true, Ordering::AcqRel) {
            return;
        }
        remote.mailbox.send(Command::Own(StarCommand::Fail(why.clone())));
        remote.join(Deadline::after(CLOSE));
    }

    /// Has the control handler's `tick`, and what was given to [`attend`](Bootstrap::attend), called soon.
    pub fn kick(&self) {
        if let Some(remote) = &self.remote {
            remote.mailbox.kick();
        }
    }

    /// As [`Fabric::flush_control`](nuvec_transport::Fabric::flush_control).
    pub fn flush_control(&self, deadline: Deadline) -> bool {
        self.remote.as_ref().is_none_or(|remote| remote.flush(deadline))
    }

    /// Ends the control links and the service thread, within the deadline and at most about a second. Calling it again does
    /// nothing.
    pub fn close(&self, deadline: Deadline) {
        if let Some(remote) = &self.remote {
            remote.close(deadline);
        }
    }

    /// From now on the service thread calls `work` whenever it wakes, and at the latest after the time that `work` returned
    /// the last time. It must not block. It is dropped when the links are closed, and at once in a group of one rank, which
    /// has no such thread. A second one takes the place of the first.
    pub fn attend(&self, work: Box<dyn FnMut() -> Duration + Send>) {
        if let Some(remote) = &self.remote {
            remote.mailbox.send(Command::Own(StarCommand::Attend(work)));
        }
    }
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bootstrap(rank {} of {})", self.context.rank, self.context.size)
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        if self.remote.as_ref().is_some_and(Remote::in_another_process) {
            // What the fork copied of the thread's may be locked for ever, and its handle joins or detaches nothing here.
            std::mem::forget(self.remote.take());
            return;
        }
        self.close(Deadline::after(CLOSE));
    }
}
