//! A mesh over TCP, to measure with: a ring of all ranks for control, and a ring of two ranks for each channel.

use std::sync::Arc;
use std::time::Duration;

use nuvec_collectives::Control;
use nuvec_transport::{ControlHandler, Deadline, Error, Fabric, GroupId, Kind, Links, Peer, Result, RingLinks, Wake};
use nuvec_transport_tcp::{Address, Options, TcpChannel, TcpFabric, TcpReceiver, TcpSender, connect};

/// One rank's channels to all others, beside a ring.
pub(crate) struct Mesh {
    ring: TcpFabric,
    /// With each other rank, in rank order.
    pairs: Vec<TcpFabric>,
}

impl Mesh {
    /// Connects rank `rank` of `ranks`, all on this machine, on ports from `port` on.
    pub(crate) fn connect(ranks: usize, rank: usize, port: u16, handler: Box<dyn ControlHandler>) -> Result<Self> {
        let mut ports = (port..).map(|port| vec![Address::new("127.0.0.1", port)]);
        let mut nodes = |n: usize| ports.by_ref().take(n).collect::<Vec<_>>();
        let ring = connect(&nodes(ranks), rank, &Options::default(), handler)?;
        let mut pairs = Vec::new();
        // The same order on every rank, so that no two wait for each other.
        for (a, b) in (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b))) {
            let nodes = nodes(2);
            if rank == a || rank == b {
                let me = usize::from(rank == b);
                pairs.push(connect(&nodes, me, &Options::default(), Control::new().handler())?);
            }
        }
        Ok(Self { ring, pairs })
    }
}

impl Fabric for Mesh {
    type Channel = TcpChannel;
    type Sender = TcpSender;
    type Receiver = TcpReceiver;

    fn rank(&self) -> usize {
        self.ring.rank()
    }

    fn size(&self) -> usize {
        self.ring.size()
    }

    fn connections(&self) -> usize {
        self.ring.connections()
    }

    fn peer(&self, rank: usize) -> Peer {
        self.ring.peer(rank)
    }

    fn timeout(&self) -> Duration {
        self.ring.timeout()
    }

    fn min_cores(&self) -> usize {
        self.ring.min_cores()
    }

    fn links(&self) -> Result<Links<TcpChannel>> {
        let channel = |pair: &TcpFabric| {
            // Of the two connections between two ranks, rank a's to the right is rank b's to the left.
            let ring = pair.links()?.into_ring();
            let ends = ring.map(|RingLinks { mut right, mut left }| (right.pop(), left.pop()));
            let end = ends.and_then(|(right, left)| if pair.rank() == 0 { right } else { left });
            end.ok_or_else(|| Error::new(Kind::Io, "a pair of ranks has no channel"))
        };
        self.pairs.iter().map(channel).collect::<Result<_>>().map(Links::Mesh)
    }

    fn open_ring(&self, _group: GroupId, _right: usize, _left: usize, wake: &Arc<Wake>, _deadline: Deadline) {
        wake.notify();
    }

    fn ring_opened(&self, _group: GroupId) -> Option<Result<RingLinks<TcpChannel>>> {
        Some(Err(Error::new(Kind::Unsupported, "a mesh cannot be split")))
    }

    fn open(&self, group: GroupId, to: usize, wake: &Arc<Wake>, deadline: Deadline) {
        self.ring.open(group, to, wake, deadline);
    }

    fn opened(&self, group: GroupId, to: usize) -> Option<Result<Vec<TcpSender>>> {
        self.ring.opened(group, to)
    }

    fn accept(&self, group: GroupId, wake: &Arc<Wake>) {
        self.ring.accept(group, wake);
    }

    fn accepted(&self, group: GroupId, from: usize) -> Option<Vec<TcpReceiver>> {
        self.ring.accepted(group, from)
    }

    fn kick(&self) {
        self.ring.kick();
    }

    fn flush_control(&self, deadline: Deadline) -> bool {
        self.ring.flush_control(deadline)
    }

    fn close(&self, deadline: Deadline) {
        self.pairs.iter().chain([&self.ring]).for_each(|fabric| fabric.close(deadline));
    }
}
