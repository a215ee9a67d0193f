//! Listening: this rank's own sockets. Every one takes every kind of connection.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nuvec_transport::{Deadline, Error, Kind, Result};
use rustix::event::{PollFd, PollFlags};

use crate::Address;
use crate::context::Context;
use crate::hello::Identity;
use crate::log::Warning;
use crate::pending::Pending;
use crate::resolve;
use crate::socket::{Listening, no_descriptors};

/// How long accepting pauses when there is no descriptor for another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The sockets that this rank listens on; by default none.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    sockets: Vec<Listening>,
    paused: Option<Instant>,
    starved: bool,
    warning: Warning,
}

impl Listeners {
    /// Listens on each of this rank's addresses: on everything local that it resolves to, at least one each.
    pub(crate) fn bind(context: &Context, deadline: Deadline) -> Result<Self> {
        let mut sockets = Vec::new();
        for own in &context.nodes[context.rank] {
            sockets.extend(listen(context, own, deadline)?);
        }
        Ok(Self { sockets, ..Self::default() })
    }

    /// Takes over sockets that listen already.
    pub(crate) fn adopt(context: &Context, listeners: Vec<TcpListener>) -> Result<Self> {
        let failed = |e| Error::from_io("fcntl", "cannot use the listener", &e).with_rank(context.rank);
        let sockets: Vec<_> = listeners.into_iter().map(Listening::adopt).collect::<Result<_, _>>().map_err(failed)?;
        if sockets.is_empty() {
            return Err(context.error(Kind::Misuse, "a group of several ranks needs a listener"));
        }
        for socket in &sockets {
            let address = socket.address().map_err(failed)?;
            context.step(format_args!("listening on {address}"));
        }
        Ok(Self { sockets, ..Self::default() })
    }

    /// What the owner must wait for: none while accepting pauses.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let live = if self.paused.is_some() { &[] } else { &self.sockets[..] };
        live.iter().map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN))
    }

    /// When accepting goes on, if it pauses.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.paused
    }

    /// What to say of connections that are missing, if accepting has paused because the process had no descriptor left.
    pub(crate) fn shortage(&self) -> Option<String> {
        self.starved.then(|| "accepting was paused: no descriptors were left (ulimit -n)".into())
    }

    /// Takes connections that wait, as many as `pending` takes at once.
    pub(crate) fn accept(&mut self, now: Instant, identity: &Identity, pending: &mut Pending) {
        if self.paused.is_some_and(|until| now < until) {
            return;
        }
        self.paused = None;
        let batch = pending.batch().div_ceil(self.sockets.len().max(1));
        for socket in &self.sockets {
            let mut failed = 0;
            for _ in 0..batch {
                match socket.accept() {
                    Ok(Some((stream, from))) => pending.add(stream, from, identity, now),
                    Ok(None) => break,
                    Err(e) => {
                        let error = Error::from_io("accept", "cannot accept connections for the moment", &e);
                        // The connection was gone before it was taken: the socket is as good as before.
                        if error.kind() != Kind::Exhausted && failed < batch / 2 {
                            failed += 1;
                            continue;
                        }
                        if no_descriptors(&e) {
                            // The rest of the process, this rank's own dials among it, needs some before strangers do.
                            pending.give_way();
                            self.starved = true;
                        }
                        self.warning.say(now, &error.to_string());
                        self.paused = Some(now + PAUSE);
                        return;
                    }
                }
            }
        }
    }
}

/// Listens on one of this rank's addresses: on everything local that it resolves to, at least one.
pub(crate) fn listen(context: &Context, own: &Address, deadline: Deadline) -> Result<Vec<Listening>> {
    if own.port() == 0 {
        let what = format!("cannot listen on {own}: port 0 is no port that others can dial");
        return Err(context.error(Kind::Misuse, what));
    }
    let all = resolve::within(own, deadline)
        .map_err(|text| context.error(Kind::Io, format!("cannot listen on {own}: not resolved: {text}")))?;
    let (mut sockets, mut failed) = (Vec::new(), None);
    for address in all {
        match Listening::bind(address) {
            Ok(socket) => {
                context.step(format_args!("listening on {address}"));
                sockets.push(socket);
            }
            Err(e) => {
                context.step(format_args!("not listening on {address}: {e}"));
                failed = Some((address, e));
            }
        }
    }
    match failed {
        Some((address, e)) if sockets.is_empty() => {
            let resolved = if own.to_string() == address.to_string() { String::new() } else { format!(" ({address})") };
            let error = Error::from_io("bind", format!("cannot listen on {own}{resolved}"), &e);
            let error = match e.kind() {
                io::ErrorKind::AddrNotAvailable => error.with_advice(format!(
                    "this machine does not have that address: use one of its own, or 0.0.0.0:{}; is it rank {}?",
                    own.port(),
                    context.rank
                )),
                io::ErrorKind::AddrInUse => error
                    .with_advice(format!("is another process of rank {}, or another program, using it?", context.rank)),
                _ => error,
            };
            Err(error.with_rank(context.rank))
        }
        _ => Ok(sockets),
    }
}
