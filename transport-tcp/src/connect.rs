//! [`connect`]: from a list of addresses to a formed group.

use std::net::TcpListener;
use std::sync::Arc;

use nuvec_transport::{ControlHandler, Deadline, Result, RingLinks};
use parking_lot::Mutex;

use crate::base::Base;
use crate::cards::Cards;
use crate::context::Context;
use crate::control::RING;
use crate::fabric::TcpFabric;
use crate::forming::Forming;
use crate::listen::Listeners;
use crate::rings::Rings;
use crate::service::Service;
use crate::streams::Streams;
use crate::thread::{Mailbox, Remote};
use crate::{Address, Options};

/// Forms a group: listens on this rank's addresses, connects to its neighbours, and returns once every rank is there.
///
/// `nodes` holds the addresses of each rank, equally many for every rank: that many connections join two neighbours.
/// `handler` is given the control messages, from now on until the fabric is closed; in a group of one rank there are none.
///
/// Blocks for `options.timeout` at the longest (and, when it fails, about two seconds more to hear the reason from a rank
/// that knows it and to tell the others). Only the
/// neighbours' addresses are dialled or resolved; others are once a stream to them is opened. A group of one rank opens
/// no socket.
///
/// Errors, by their [kind](nuvec_transport::Kind): `Misuse` for a list that can be no ring; `Io` or `Exhausted` when this rank cannot
/// listen; `Rejected` when a neighbour refuses this rank for good; `Mismatch` when ranks do not fit
/// together; `TimedOut`, naming who is missing and what was tried; `PeerClosed` or `Reset` when a
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
    let cards = Cards::own(&context)?;
    Ok(TcpFabric {
        streams: Arc::new(Streams::new(context.connections)),
        rings: Arc::new(Rings::new(context.connections)),
        context: Arc::new(context),
        summary: cards.summary(),
        ring: Mutex::new(Some(RingLinks { right: Vec::new(), left: Vec::new() })),
        remote: None,
    })
}

fn form(
    context: Context,
    listeners: Listeners,
    deadline: Deadline,
    handler: Box<dyn ControlHandler>,
) -> Result<TcpFabric> {
    let context = Arc::new(context);
    let cards = Cards::own(&context)?;
    let (mailbox, inbox) = Mailbox::new(&context)?;
    let (reply, result) = crossbeam_channel::bounded(1);
    let streams = Arc::new(Streams::new(context.connections));
    let rings = Arc::new(Rings::new(context.connections));
    let base = Base::new(Arc::clone(&context), listeners, RING, handler, mailbox.clone(), inbox);
    let forming = Forming::new(&context, cards, deadline.instant());
    let service = Service::new(base, forming, Arc::clone(&streams), Arc::clone(&rings), reply);
    let remote = Remote::start(&context, mailbox, move || service.run())?;
    let formed = remote.answer(&context, &result, deadline)?;
    Ok(TcpFabric {
        context,
        summary: formed.summary,
        ring: Mutex::new(Some(formed.ring)),
        streams,
        rings,
        remote: Some(remote),
    })
}
