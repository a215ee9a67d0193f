//! [`TcpFabric`]: a formed group over TCP, as its callers see it.

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use nuvec_transport::{Deadline, Error, Fabric, GroupId, Kind, Peer, Result, RingLinks, Wake};
use parking_lot::Mutex;

use crate::cards::Summary;
use crate::channel::{TcpChannel, TcpReceiver, TcpSender};
use crate::context::Context;
use crate::service::{Command, Mailbox};
use crate::streams::Streams;

/// The longest that the service thread is waited for when the group closes.
const CLOSE: Duration = Duration::from_secs(1);

/// How long a thread that has nothing more to write may take to end.
const NOTICE: Duration = Duration::from_millis(200);

/// The service thread of a group with peers.
pub(crate) struct Remote {
    pub(crate) mailbox: Mailbox,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
    /// Ends with the thread.
    pub(crate) alive: Receiver<std::convert::Infallible>,
}

impl Remote {
    /// Waits for the thread to end, until the deadline at the longest.
    pub(crate) fn join(&self, deadline: Deadline) {
        if let Err(RecvTimeoutError::Timeout) = self.alive.recv_deadline(deadline.instant()) {
            tracing::warn!("the service thread did not end in time and is left behind: its control handler blocks");
            return;
        }
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the service thread panicked");
        }
    }
}

/// A formed group of ranks over TCP. See [`connect`](crate::connect).
///
/// Dropping it closes it, as [`close`](Fabric::close) does with a deadline of one second.
pub struct TcpFabric {
    pub(crate) context: Arc<Context>,
    pub(crate) summary: Summary,
    pub(crate) ring: Mutex<Option<RingLinks<TcpChannel>>>,
    pub(crate) streams: Arc<Streams>,
    /// `None` for a group of one rank.
    pub(crate) remote: Option<Remote>,
}

impl TcpFabric {
    /// The group's time-out: the largest that any rank was given.
    pub fn group_timeout(&self) -> Duration {
        self.summary.timeout
    }

    /// The run: 16 bytes that all ranks of this group have in common and no other group has.
    pub fn session(&self) -> [u8; 16] {
        self.summary.session
    }
}

impl fmt::Debug for TcpFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Context { rank, size, connections, .. } = &*self.context;
        write!(f, "TcpFabric(rank {rank} of {size}, {connections} connections)")
    }
}

impl Drop for TcpFabric {
    fn drop(&mut self) {
        self.close(Deadline::after(CLOSE));
    }
}

impl Fabric for TcpFabric {
    type Channel = TcpChannel;
    type Sender = TcpSender;
    type Receiver = TcpReceiver;

    fn rank(&self) -> usize {
        self.context.rank
    }

    fn size(&self) -> usize {
        self.context.size
    }

    fn connections(&self) -> usize {
        self.context.connections
    }

    /// The address is the first of its list, as the user wrote it. A rank that is not in the group has none.
    fn peer(&self, rank: usize) -> Peer {
        match self.context.nodes.get(rank) {
            Some(_) => self.context.peer(rank, 0),
            None => Peer::new(rank, "not in the group"),
        }
    }

    fn timeout(&self) -> Duration {
        self.group_timeout()
    }

    fn min_cores(&self) -> usize {
        self.summary.min_cores
    }

    fn ring(&self) -> Result<RingLinks<TcpChannel>> {
        self.ring.lock().take().ok_or_else(|| self.context.error(Kind::Misuse, "the ring was taken before"))
    }

    fn open(&self, group: GroupId, to: usize, wake: &Arc<Wake>, deadline: Deadline) {
        let key = (group, to);
        if !self.streams.begin(key, wake) {
            return;
        }
        let refuse = |kind, what: String| self.streams.open_failed(key, self.context.error(kind, what));
        match &self.remote {
            _ if to >= self.context.size => refuse(Kind::Misuse, format!("there is no rank {to} to send to")),
            _ if to == self.context.rank => refuse(Kind::Misuse, "a rank opens no stream to itself".into()),
            Some(remote) if remote.mailbox.send(Command::Open(key, deadline)) => {}
            _ => refuse(Kind::Closed, "the group was closed".into()),
        }
    }

    fn opened(&self, group: GroupId, to: usize) -> Option<Result<Vec<TcpSender>>> {
        self.streams.opened((group, to))
    }

    fn accept(&self, group: GroupId, wake: &Arc<Wake>) {
        self.streams.accept(group, wake);
    }

    fn accepted(&self, group: GroupId, from: usize) -> Option<Vec<TcpReceiver>> {
        self.streams.accepted((group, from))
    }

    fn kick(&self) {
        if let Some(remote) = &self.remote {
            remote.mailbox.kick();
        }
    }

    fn flush_control(&self, deadline: Deadline) -> bool {
        let Some(remote) = &self.remote else { return true };
        let (reply, flushed) = crossbeam_channel::bounded(1);
        if !remote.mailbox.send(Command::Flush(reply)) {
            return true;
        }
        // A thread that has ended has no live link left.
        !matches!(flushed.recv_deadline(deadline.instant()), Err(RecvTimeoutError::Timeout))
    }

    /// Waits at most until the deadline, but always for as long as the thread needs to notice, and at most about a second.
    fn close(&self, deadline: Deadline) {
        if let Some(remote) = &self.remote {
            remote.mailbox.send(Command::Close(deadline));
            let notice = Deadline::after(NOTICE);
            remote.join(deadline.sooner(CLOSE).max(notice));
        }
        self.streams.end();
    }
}

/// The error of a call that found the service thread gone.
pub(crate) fn thread_lost(context: &Context) -> Error {
    context.error(Kind::Io, "the service thread ended without a word: its control handler panicked")
}
