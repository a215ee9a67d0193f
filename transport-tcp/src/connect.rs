//! [`connect`]: from a list of addresses to a formed group.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use nuvec_transport::{ControlHandler, Deadline, Error, Kind, Result, RingLinks, Wake};
use parking_lot::Mutex;

use crate::cards::{Card, Cards};
use crate::context::Context;
use crate::control::ControlLinks;
use crate::fabric::{Remote, TcpFabric, thread_lost};
use crate::forming::Forming;
use crate::hello::nonce;
use crate::listen::Listeners;
use crate::rings::Rings;
use crate::service::{Mailbox, Service};
use crate::streams::Streams;
use crate::{Address, Options};

/// How much longer than forming's time-out `connect` waits for the service thread, which needs a moment to tell the
/// others why it failed.
const GRACE: Duration = Duration::from_secs(3);

/// Forms a group: listens on this rank's addresses, connects to its neighbours, and returns once every rank is there.
///
/// `nodes` holds the addresses of each rank, equally many for every rank: that many connections join two neighbours.
/// `handler` is given the control messages, from now on until the fabric is closed; in a group of one rank there are none.
///
/// Blocks for `options.timeout` at the longest (and about a second more to tell the others, when it fails). Only the
/// neighbours' addresses are dialled or resolved; others are once a stream to them is opened. A group of one rank opens
/// no socket.
///
/// Errors: [`Kind::Misuse`] for a list that can be no ring; [`Kind::Io`] or [`Kind::Exhausted`] when this rank cannot
/// listen; [`Kind::Rejected`] when a neighbour refuses this rank for good; [`Kind::Mismatch`] when ranks do not fit
/// together; [`Kind::TimedOut`], naming who is missing and what was tried; [`Kind::PeerClosed`] or [`Kind::Reset`] when a
/// neighbour leaves meanwhile; and whatever the handler reports about the root group.
pub fn connect(
    nodes: &[Vec<Address>],
    rank: usize,
    options: &Options,
    handler: Box<dyn ControlHandler>,
) -> Result<TcpFabric> {
    start(nodes, rank, options, handler, Listeners::bind)
}

/// As [`connect`], with sockets that listen already: from socket activation, or bound to a port that the system chose.
///
/// `nodes[rank]` must still say by which addresses the others know this rank. Each listener takes every connection of
/// every kind, so there may be fewer or more of them than addresses, but at least one.
///
/// See the [crate's example](crate).
pub fn connect_with_listeners(
    listeners: Vec<TcpListener>,
    nodes: &[Vec<Address>],
    rank: usize,
    options: &Options,
    handler: Box<dyn ControlHandler>,
) -> Result<TcpFabric> {
    start(nodes, rank, options, handler, |context, _| Listeners::adopt(context, listeners))
}

fn start(
    nodes: &[Vec<Address>],
    rank: usize,
    options: &Options,
    mut handler: Box<dyn ControlHandler>,
    listen: impl FnOnce(&Context, Deadline) -> Result<Listeners>,
) -> Result<TcpFabric> {
    let mut context = Context::new(nodes, rank, options)?;
    let peers: Vec<_> = (0..context.size).map(|rank| context.peer(rank, 0)).collect();
    context.agreement = handler.begin(rank, &peers, options.timeout);
    let deadline = Deadline::after(options.timeout);
    if context.size == 1 {
        return alone(context);
    }
    let listeners = listen(&context, deadline)?;
    form(context, listeners, deadline, handler)
}

/// A group of one rank.
fn alone(context: Context) -> Result<TcpFabric> {
    let cards = own_card(&context)?;
    Ok(TcpFabric {
        streams: Arc::new(Streams::new(context.connections)),
        rings: Arc::new(Rings::new(context.connections)),
        context: Arc::new(context),
        summary: cards.summary(),
        ring: Mutex::new(Some(RingLinks { right: Vec::new(), left: Vec::new() })),
        remote: None,
    })
}

/// What this rank says of itself, as the first of the cards.
fn own_card(context: &Context) -> Result<Cards> {
    let nonce = nonce().map_err(|e| e.with_rank(context.rank))?;
    Ok(Cards::new(context.size, Card::own(context, nonce)))
}

fn form(
    context: Context,
    listeners: Listeners,
    deadline: Deadline,
    handler: Box<dyn ControlHandler>,
) -> Result<TcpFabric> {
    let context = Arc::new(context);
    let cards = own_card(&context)?;
    let (commands, inbox) = crossbeam_channel::unbounded();
    let (reply, result) = crossbeam_channel::bounded(1);
    let (life, alive) = crossbeam_channel::bounded(0);
    let wake = Arc::new(Wake::new().map_err(|e| e.with_rank(context.rank))?);
    let mailbox = Mailbox { commands, wake, kicked: Arc::new(AtomicBool::new(false)) };
    let streams = Arc::new(Streams::new(context.connections));
    let rings = Arc::new(Rings::new(context.connections));
    let service = Service::new(
        Arc::clone(&context),
        listeners,
        ControlLinks::new(handler, context.began),
        Forming::new(&context, cards, deadline.instant()),
        Arc::clone(&streams),
        Arc::clone(&rings),
        mailbox.clone(),
        inbox,
        reply,
    );
    let thread = std::thread::Builder::new()
        .name(format!("nuvec-tcp-{}", context.rank))
        .spawn(move || {
            // Dropped last, when nothing of the thread is left.
            let _life = life;
            service.run();
        })
        .map_err(|e| Error::from_io("pthread_create", "cannot start the service thread", &e).with_rank(context.rank))?;
    let remote = Remote { process: std::process::id(), mailbox, thread: Mutex::new(Some(thread)), alive };
    let failed = match result.recv_deadline(deadline.instant() + GRACE) {
        Ok(Ok(formed)) => {
            return Ok(TcpFabric {
                context,
                summary: formed.summary,
                ring: Mutex::new(Some(formed.ring)),
                streams,
                rings,
                remote: Some(remote),
            });
        }
        Ok(Err(e)) => e,
        Err(RecvTimeoutError::Disconnected) => thread_lost(&context),
        Err(RecvTimeoutError::Timeout) => {
            remote.mailbox.send(crate::service::Command::Close(Deadline::at(Instant::now())));
            context.error(Kind::TimedOut, "the control handler blocks the service thread")
        }
    };
    remote.join(Deadline::after(Duration::from_secs(1)));
    Err(failed)
}
