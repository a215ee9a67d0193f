//! [`TcpFabric`]: a formed group over TCP, as its callers see it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nuvec_transport::{Deadline, Fabric, GroupId, Kind, Links, Peer, Result, RingLinks, Wake};
use parking_lot::Mutex;

use crate::cards::Summary;
use crate::channel::{TcpChannel, TcpReceiver, TcpSender};
use crate::context::Context;
use crate::rings::Rings;
use crate::service::RingCommand;
use crate::streams::Streams;
use crate::thread::{CLOSE, Command, Remote};

/// A formed group of ranks over TCP. See [`connect`](crate::connect).
///
/// Dropping it closes it, as [`close`](Fabric::close) does with a deadline of one second. In a forked child of its process
/// it can be dropped, which leaves the parent's group as it is, and is good for nothing else: the thread that serves it is
/// the parent's.
pub struct TcpFabric {
    pub(crate) context: Arc<Context>,
    pub(crate) summary: Summary,
    pub(crate) ring: Mutex<Option<RingLinks<TcpChannel>>>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) rings: Arc<Rings>,
    /// `None` for a group of one rank.
    pub(crate) remote: Option<Remote<RingCommand>>,
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

impl TcpFabric {
    /// Whether this is a forked child of the process that has the service thread.
    fn in_another_process(&self) -> bool {
        self.remote.as_ref().is_some_and(Remote::in_another_process)
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
        if self.in_another_process() {
            // What the fork copied of the thread's may be locked for ever, and its handle joins or detaches nothing here.
            std::mem::forget(self.remote.take());
            return;
        }
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

    fn links(&self) -> Result<Links<TcpChannel>> {
        let taken = || self.context.error(Kind::Misuse, "the ring was taken before");
        self.ring.lock().take().map(Links::Ring).ok_or_else(taken)
    }

    fn open_ring(&self, group: GroupId, right: usize, left: usize, wake: &Arc<Wake>, deadline: Deadline) {
        let Context { rank, size, .. } = *self.context;
        let misuse = |what: String| self.rings.refuse(group, wake, self.context.error(Kind::Misuse, what));
        if group == GroupId::ROOT {
            return misuse("the ring of all ranks stands since the group formed".into());
        }
        if let Some(neighbour) = [right, left].into_iter().find(|neighbour| *neighbour >= size) {
            return misuse(format!("there is no rank {neighbour} to be a neighbour in a ring"));
        }
        if right == rank || left == rank {
            return misuse("a rank is no neighbour of itself in a ring".into());
        }
        if !self.rings.begin(group, left, wake, deadline) {
            return;
        }
        let dialled = self
            .remote
            .as_ref()
            .is_some_and(|remote| remote.mailbox.send(Command::Own(RingCommand::OpenRing { group, right, deadline })));
        if !dialled {
            self.rings.fail(group, self.context.error(Kind::Closed, "the group was closed"));
        }
    }

    fn ring_opened(&self, group: GroupId) -> Option<Result<RingLinks<TcpChannel>>> {
        self.rings.opened(group)
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
            Some(remote) if remote.mailbox.send(Command::Own(RingCommand::Open(key, deadline))) => {}
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

    fn leave(&self, group: GroupId) {
        self.streams.leave(group);
        self.rings.leave(group);
        if let Some(remote) = &self.remote {
            remote.mailbox.send(Command::Own(RingCommand::Leave(group)));
        }
    }

    fn kick(&self) {
        if let Some(remote) = &self.remote {
            remote.mailbox.kick();
        }
    }

    fn flush_control(&self, deadline: Deadline) -> bool {
        self.remote.as_ref().is_none_or(|remote| remote.flush(deadline))
    }

    /// Waits at most until the deadline, but always for as long as the thread needs to notice, and at most about a second.
    fn close(&self, deadline: Deadline) {
        if self.in_another_process() {
            return;
        }
        if let Some(remote) = &self.remote {
            remote.close(deadline);
        }
        self.streams.end();
        self.rings.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::NOTICE;
    use crate::{Address, Options, connect_with_listeners};
    use crossbeam_channel::RecvTimeoutError;
    use nuvec_transport::{ControlHandler, Error, LinkId, Outbox};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    /// Counts the links that ended.
    struct Ends(Arc<AtomicUsize>);

    impl ControlHandler for Ends {
        fn link_up(&mut self, _: LinkId, _: &Peer, _: Duration, _: &mut Outbox) {}
        fn message(&mut self, _: LinkId, _: &[u8], _: Duration, _: &mut Outbox) {}
        fn link_ended(&mut self, _: LinkId, _: &Error, _: Duration, _: &mut Outbox) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        fn forming_failed(&mut self, _: &Error, _: Duration, _: &mut Outbox) {}
        fn tick(&mut self, _: Duration, _: &mut Outbox) {}
    }

    #[test]
    fn a_forked_child_that_drops_its_copy_ends_neither_the_thread_nor_the_links() {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let nodes = listeners.each_ref().map(|l| vec![Address::new("127.0.0.1", l.local_addr().unwrap().port())]);
        let ended = Arc::new(AtomicUsize::new(0));
        let options = Options::default().timeout(Duration::from_secs(20));
        let [mut first, second] = std::thread::scope(|scope| {
            let mut rank = 0;
            let threads = listeners.map(|listener| {
                let (nodes, options, handler, own) = (&nodes, &options, Ends(Arc::clone(&ended)), rank);
                rank += 1;
                scope.spawn(move || {
                    connect_with_listeners(vec![listener], nodes, own, options, Box::new(handler)).unwrap()
                })
            });
            threads.map(|thread| thread.join().unwrap())
        });
        // What the parent keeps of its fabric: enough to see its thread, and to end it.
        let remote = first.remote.as_mut().unwrap();
        let (mailbox, alive) = (remote.mailbox.clone(), remote.alive.clone());
        remote.process = std::process::id() + 1;
        let began = Instant::now();
        first.close(Deadline::after(CLOSE));
        assert!(first.flush_control(Deadline::after(CLOSE)));
        drop(first);
        assert!(began.elapsed() < NOTICE, "it waits for a thread that is not there");
        assert_eq!(alive.recv_timeout(NOTICE), Err(RecvTimeoutError::Timeout), "the thread has ended");
        assert!(second.flush_control(Deadline::after(CLOSE)));
        assert_eq!(ended.load(Ordering::SeqCst), 0);
        // The parent itself ends it.
        mailbox.send(Command::Close(Deadline::after(CLOSE)));
        drop(second);
        assert_eq!(alive.recv_timeout(2 * CLOSE), Err(RecvTimeoutError::Disconnected));
    }
}
