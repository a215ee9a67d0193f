//! [`RdmaFabric`]: a formed group over RDMA, as its callers see it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nuvec_transport::{Channel, Deadline, Error, Fabric, GroupId, Kind, Links, Peer, Result, RingLinks, Wake};
use nuvec_transport_tcp::bootstrap::Bootstrap;
use parking_lot::Mutex;

use crate::channel::{RdmaChannel, RdmaReceiver, RdmaSender};
use crate::endpoint::LINGER;
use crate::registry::Registry;

/// A formed group of ranks over RDMA. See [`connect`](crate::connect).
///
/// It has no further groups ([`Fabric::open_ring`] is refused), and streams between ranks that queue pairs join: all of a
/// mesh, neighbours of a ring. Dropping it closes it, as [`close`](Fabric::close) does with a deadline of five seconds.
pub struct RdmaFabric {
    /// Channels first: their last words go out before the ends of the links to the others.
    links: Mutex<Option<Links<RdmaChannel>>>,
    streams: Mutex<Streams>,
    /// Whom streams join with this rank: all of a mesh, neighbours of a ring.
    joined: Vec<usize>,
    registry: Arc<Registry>,
    bootstrap: Bootstrap,
    connections: usize,
    /// The process that it is of: a forked child must touch nothing of it.
    process: u32,
}

/// The streams that nobody took yet.
#[derive(Default)]
struct Streams {
    out: HashMap<usize, RdmaSender>,
    back: HashMap<usize, RdmaReceiver>,
    closed: bool,
}

impl RdmaFabric {
    pub(crate) fn new(
        bootstrap: Bootstrap,
        registry: Arc<Registry>,
        links: Links<RdmaChannel>,
        streams: Vec<(usize, RdmaChannel)>,
    ) -> Self {
        let mut all = Streams::default();
        let connections = match &links {
            Links::Mesh(_) => 1,
            // A ring of one rank has none, and is asked for its stripes all the same.
            Links::Ring(ring) => ring.right.len().max(1),
        };
        let joined = streams.iter().map(|(peer, _)| *peer).collect();
        for (peer, channel) in streams {
            let (sender, receiver) = channel.split();
            all.out.insert(peer, sender);
            all.back.insert(peer, receiver);
        }
        Self {
            links: Mutex::new(Some(links)),
            streams: Mutex::new(all),
            joined,
            registry,
            bootstrap,
            connections,
            process: std::process::id(),
        }
    }

    fn error(&self, kind: Kind, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
        Error::new(kind, what).with_rank(self.bootstrap.rank())
    }

    fn take_stream(&self, group: GroupId, to: usize) -> Result<RdmaSender> {
        let mut streams = self.streams.lock();
        match () {
            () if to >= self.size() => Err(self.error(Kind::Misuse, format!("there is no rank {to} to send to"))),
            () if to == self.rank() => Err(self.error(Kind::Misuse, "a rank opens no stream to itself")),
            () if group != GroupId::ROOT => Err(self.error(Kind::Unsupported, "no split on JACCL")),
            () if streams.closed => Err(self.error(Kind::Closed, "the group was closed")),
            () => self.check_stream(to).and_then(|()| {
                let taken = || self.error(Kind::Misuse, format!("the stream to rank {to} was opened before"));
                streams.out.remove(&to).ok_or_else(taken)
            }),
        }
    }
}

impl fmt::Debug for RdmaFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RdmaFabric(rank {} of {})", self.rank(), self.size())
    }
}

impl Drop for RdmaFabric {
    fn drop(&mut self) {
        self.close(Deadline::after(LINGER));
    }
}

impl Fabric for RdmaFabric {
    type Channel = RdmaChannel;
    type Sender = RdmaSender;
    type Receiver = RdmaReceiver;

    fn rank(&self) -> usize {
        self.bootstrap.rank()
    }

    fn size(&self) -> usize {
        self.bootstrap.size()
    }

    fn connections(&self) -> usize {
        self.connections
    }

    fn peer(&self, rank: usize) -> Peer {
        self.bootstrap.peer(rank)
    }

    fn timeout(&self) -> Duration {
        self.bootstrap.timeout()
    }

    fn min_cores(&self) -> usize {
        self.bootstrap.min_cores()
    }

    fn links(&self) -> Result<Links<RdmaChannel>> {
        self.links.lock().take().ok_or_else(|| self.error(Kind::Misuse, "the channels were taken before"))
    }

    fn open_ring(&self, _group: GroupId, _right: usize, _left: usize, wake: &Arc<Wake>, _deadline: Deadline) {
        wake.notify();
    }

    fn ring_opened(&self, _group: GroupId) -> Option<Result<RingLinks<RdmaChannel>>> {
        let refusal = self.error(Kind::Unsupported, "no split on JACCL: RDMA connects the group of all ranks only");
        Some(Err(refusal.with_advice("split a group that runs over TCP")))
    }

    fn check_stream(&self, rank: usize) -> Result<()> {
        if self.joined.contains(&rank) {
            return Ok(());
        }
        let what = format!("rank {rank} is no neighbour in the ring, and only neighbours are connected");
        Err(self.error(Kind::Unsupported, what))
    }

    /// Every stream is there from the beginning: what there is to refuse, [`opened`](Fabric::opened) finds.
    fn open(&self, _group: GroupId, _to: usize, wake: &Arc<Wake>, _deadline: Deadline) {
        wake.notify();
    }

    fn opened(&self, group: GroupId, to: usize) -> Option<Result<Vec<RdmaSender>>> {
        Some(self.take_stream(group, to).map(|sender| vec![sender]))
    }

    fn accept(&self, _group: GroupId, wake: &Arc<Wake>) {
        wake.notify();
    }

    fn accepted(&self, group: GroupId, from: usize) -> Option<Vec<RdmaReceiver>> {
        if group != GroupId::ROOT {
            return None;
        }
        self.streams.lock().back.remove(&from).map(|receiver| vec![receiver])
    }

    fn kick(&self) {
        self.bootstrap.kick();
    }

    fn flush_control(&self, deadline: Deadline) -> bool {
        self.bootstrap.flush_control(deadline)
    }

    /// Before the links end, waits for what halves that are gone have still to send. Halves that are in use go on; what they
    /// send is no longer looked after between their calls.
    fn close(&self, deadline: Deadline) {
        if self.process != std::process::id() {
            return;
        }
        drop(self.links.lock().take());
        let untaken = {
            let mut streams = self.streams.lock();
            streams.closed = true;
            (std::mem::take(&mut streams.out), std::mem::take(&mut streams.back))
        };
        drop(untaken);
        self.registry.close(deadline);
        self.bootstrap.close(deadline);
    }
}
