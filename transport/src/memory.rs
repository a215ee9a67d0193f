//! In-memory channels and fabrics, for tests: of a group without sockets, and of what a channel promises.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{
    Channel, ControlHandler, Deadline, Error, Fabric, GroupId, Kind, LinkId, Links, Outbox, Park, Peer, Receiver,
    Result, RingLinks, Sender, Wake,
};

/// One direction: bytes in flight, at most `capacity`.
#[derive(Debug)]
struct Pipe {
    bytes: Mutex<PipeState>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct PipeState {
    queue: VecDeque<u8>,
    sender_gone: bool,
    receiver_gone: bool,
}

impl Pipe {
    fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::default(), capacity: capacity.max(1) })
    }
}

/// An in-memory [`Channel`] that holds a settable number of bytes per direction.
#[derive(Debug)]
pub struct MemoryChannel {
    tx: MemorySender,
    rx: MemoryReceiver,
}

/// The sending half of a [`MemoryChannel`]. Dropping it ends the stream.
#[derive(Debug)]
pub struct MemorySender {
    pipe: Arc<Pipe>,
    peer: Peer,
}

/// The receiving half of a [`MemoryChannel`]. Dropping it resets the stream.
#[derive(Debug)]
pub struct MemoryReceiver {
    pipe: Arc<Pipe>,
    peer: Peer,
}

/// Two connected channels of ranks 0 and 1, each direction holding `capacity` bytes (at least one).
pub fn pair(capacity: usize) -> (MemoryChannel, MemoryChannel) {
    pair_of(capacity, 0, 1)
}

/// Two connected channels: the first is rank `a`'s, the second rank `b`'s.
pub fn pair_of(capacity: usize, a: usize, b: usize) -> (MemoryChannel, MemoryChannel) {
    let (ab, ba) = (stream(capacity, a, b), stream(capacity, b, a));
    (MemoryChannel { tx: ab.0, rx: ba.1 }, MemoryChannel { tx: ba.0, rx: ab.1 })
}

/// A one-way stream from rank `from` to rank `to`.
fn stream(capacity: usize, from: usize, to: usize) -> (MemorySender, MemoryReceiver) {
    let pipe = Pipe::new(capacity);
    (MemorySender { pipe: pipe.clone(), peer: peer_of(to) }, MemoryReceiver { pipe, peer: peer_of(from) })
}

fn peer_of(rank: usize) -> Peer {
    Peer::new(rank, "memory")
}

impl Channel for MemoryChannel {
    type Sender = MemorySender;
    type Receiver = MemoryReceiver;

    fn split(self) -> (MemorySender, MemoryReceiver) {
        (self.tx, self.rx)
    }
}

impl Sender for MemorySender {
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        let mut state = self.pipe.bytes.lock();
        if state.receiver_gone {
            return Err(Error::new(Kind::Reset, "reset the connection").with_peer(&self.peer));
        }
        let mut taken = 0;
        for part in parts {
            let room = self.pipe.capacity - state.queue.len();
            let n = room.min(part.len());
            state.queue.extend(&part[..n]);
            taken += n;
            if n < part.len() {
                break;
            }
        }
        Ok(taken)
    }

    fn park(&self) -> Park<'_> {
        Park::Backoff
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Receiver for MemoryReceiver {
    fn try_recv(&mut self, into: &mut [u8]) -> Result<usize> {
        let mut state = self.pipe.bytes.lock();
        if state.queue.is_empty() && state.sender_gone && !into.is_empty() {
            return Err(Error::new(Kind::PeerClosed, "closed the connection").with_peer(&self.peer));
        }
        let n = state.queue.len().min(into.len());
        for (slot, byte) in into.iter_mut().zip(state.queue.drain(..n)) {
            *slot = byte;
        }
        Ok(n)
    }

    fn try_recv_with(&mut self, max: usize, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<usize> {
        let mut scratch = vec![0; max.min(self.pipe.capacity)];
        let n = self.try_recv(&mut scratch)?;
        // In two pieces, as a transport may hand them over.
        let (head, tail) = scratch[..n].split_at(n / 2);
        for piece in [head, tail] {
            if !piece.is_empty() {
                sink(piece)?;
            }
        }
        Ok(n)
    }

    fn park(&self) -> Park<'_> {
        Park::Backoff
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Drop for MemorySender {
    fn drop(&mut self) {
        self.pipe.bytes.lock().sender_gone = true;
    }
}

impl Drop for MemoryReceiver {
    fn drop(&mut self) {
        self.pipe.bytes.lock().receiver_gone = true;
    }
}

/// A network of ranks in one process.
struct Network {
    ranks: Vec<Mutex<Rank>>,
    /// Of each rank, by its link's number: the rank at the other end, and that rank's link.
    routes: Vec<Vec<(usize, LinkId)>>,
    /// Whether every two ranks have a channel.
    mesh: bool,
    capacity: usize,
    connections: usize,
    timeout: Duration,
    start: Instant,
    /// Control messages and link ends that are under way, so that no handler is called from within another.
    mail: Mutex<VecDeque<(usize, LinkId, Letter)>>,
    /// Held by the thread that delivers.
    delivering: Mutex<()>,
}

enum Letter {
    Message(Vec<u8>),
    Ended,
    Tick,
}

struct Rank {
    handler: Option<Box<dyn ControlHandler>>,
    links: Option<Links<MemoryChannel>>,
    streams: HashMap<(GroupId, usize), Vec<MemoryReceiver>>,
    opened: HashMap<(GroupId, usize), Vec<MemorySender>>,
    wakes: HashMap<GroupId, Arc<Wake>>,
    rings: HashMap<GroupId, PartRing>,
}

/// A ring of some ranks that is opening: the sides that are there, and who waits for them.
struct PartRing {
    right: Option<Vec<MemoryChannel>>,
    left: Option<Vec<MemoryChannel>>,
    wake: Option<Arc<Wake>>,
}

/// A [`Fabric`] in memory: every rank lives in this process. Control messages are delivered at once.
pub struct MemoryFabric {
    network: Arc<Network>,
    rank: usize,
}

/// Forms a group of `handlers.len()` ranks (at least two) with `connections` channels per neighbour, each direction
/// holding `capacity` bytes, and operations that wait for `timeout` without progress.
pub fn network(
    handlers: Vec<Box<dyn ControlHandler>>,
    connections: usize,
    capacity: usize,
    timeout: Duration,
) -> Vec<MemoryFabric> {
    let n = handlers.len();
    let mut lefts: Vec<Vec<MemoryChannel>> = (0..n).map(|_| Vec::new()).collect();
    let mut rights: Vec<Vec<MemoryChannel>> = (0..n).map(|_| Vec::new()).collect();
    for (rank, right) in rights.iter_mut().enumerate() {
        let next = (rank + 1) % n;
        for _ in 0..connections {
            let (a, b) = pair_of(capacity, rank, next);
            right.push(a);
            lefts[next].push(b);
        }
    }
    let links = rights.into_iter().zip(lefts).map(|(right, left)| Links::Ring(RingLinks { right, left })).collect();
    // To the right, then to the left.
    let routes = (0..n).map(|rank| vec![((rank + 1) % n, LinkId(1)), ((rank + n - 1) % n, LinkId(0))]).collect();
    form(handlers, links, routes, Shape { mesh: false, connections, capacity, timeout })
}

/// Forms a group of `handlers.len()` ranks (at least two) with a channel between every two, each direction holding
/// `capacity` bytes, and operations that wait for `timeout` without progress. The control links are rank 0's with each
/// other rank. It opens no further groups.
pub fn mesh(handlers: Vec<Box<dyn ControlHandler>>, capacity: usize, timeout: Duration) -> Vec<MemoryFabric> {
    let n = handlers.len();
    let links = mesh_channels(n, capacity).into_iter().map(Links::Mesh).collect();
    let route = |rank: usize| match rank {
        0 => (1..n).map(|to| (to, LinkId(0))).collect(),
        _ => vec![(0, LinkId(rank as u32 - 1))],
    };
    form(handlers, links, (0..n).map(route).collect(), Shape { mesh: true, connections: 1, capacity, timeout })
}

/// Every rank's channels to each of the others of `n`, in rank order.
pub fn mesh_channels(n: usize, capacity: usize) -> Vec<Vec<MemoryChannel>> {
    let mut channels: Vec<Vec<MemoryChannel>> = (0..n).map(|_| Vec::new()).collect();
    // Each rank's first with the ranks below it, then with those above.
    for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
        let (mine, theirs) = pair_of(capacity, a, b);
        channels[a].push(mine);
        channels[b].push(theirs);
    }
    channels
}

/// What all ranks of a network have in common.
struct Shape {
    mesh: bool,
    connections: usize,
    capacity: usize,
    timeout: Duration,
}

fn form(
    handlers: Vec<Box<dyn ControlHandler>>,
    links: Vec<Links<MemoryChannel>>,
    routes: Vec<Vec<(usize, LinkId)>>,
    Shape { mesh, connections, capacity, timeout }: Shape,
) -> Vec<MemoryFabric> {
    let n = handlers.len();
    let peers: Vec<_> = (0..n).map(peer_of).collect();
    let ranks = handlers.into_iter().zip(links).enumerate().map(|(rank, (mut handler, links))| {
        handler.begin(rank, &peers, timeout);
        Mutex::new(Rank {
            handler: Some(handler),
            links: Some(links),
            streams: HashMap::new(),
            opened: HashMap::new(),
            wakes: HashMap::new(),
            rings: HashMap::new(),
        })
    });
    let network = Arc::new(Network {
        ranks: ranks.collect(),
        routes,
        mesh,
        capacity,
        connections,
        timeout,
        start: Instant::now(),
        mail: Mutex::default(),
        delivering: Mutex::default(),
    });
    for rank in 0..n {
        network.call(rank, |handler, now, out| {
            for (link, &(to, _)) in network.routes[rank].iter().enumerate() {
                handler.link_up(LinkId(link as u32), &peer_of(to), now, out);
            }
        });
    }
    (0..n).map(|rank| MemoryFabric { network: network.clone(), rank }).collect()
}

impl Network {
    /// Calls a rank's handler and delivers what it sends, and what that brings about.
    fn call(&self, rank: usize, f: impl FnOnce(&mut dyn ControlHandler, Duration, &mut Outbox)) {
        let mut out = Outbox::default();
        if let Some(handler) = self.ranks[rank].lock().handler.as_deref_mut() {
            f(handler, self.start.elapsed(), &mut out);
        }
        let mut mail = self.mail.lock();
        for (link, message) in out.messages {
            let (to, at) = self.routes[rank][link.0 as usize];
            mail.push_back((to, at, Letter::Message(message)));
        }
    }

    /// Delivers until nothing is under way. One thread delivers at a time: who waits for it finds its letters delivered.
    fn deliver(&self) {
        let _one = self.delivering.lock();
        loop {
            let Some((to, link, letter)) = self.mail.lock().pop_front() else { return };
            let ended = Error::new(Kind::PeerClosed, "closed its control link");
            self.call(to, |handler, now, out| match letter {
                Letter::Message(bytes) => handler.message(link, &bytes, now, out),
                Letter::Ended => handler.link_ended(link, &ended, now, out),
                Letter::Tick => handler.tick(now, out),
            });
        }
    }
}

impl Fabric for MemoryFabric {
    type Channel = MemoryChannel;
    type Sender = MemorySender;
    type Receiver = MemoryReceiver;

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.network.ranks.len()
    }

    fn connections(&self) -> usize {
        self.network.connections
    }

    fn peer(&self, rank: usize) -> Peer {
        peer_of(rank)
    }

    fn timeout(&self) -> Duration {
        self.network.timeout
    }

    fn min_cores(&self) -> usize {
        1
    }

    fn links(&self) -> Result<Links<MemoryChannel>> {
        let taken = || Error::new(Kind::Misuse, "the channels were taken before").with_rank(self.rank);
        self.network.ranks[self.rank].lock().links.take().ok_or_else(taken)
    }

    fn open_ring(&self, group: GroupId, right: usize, _left: usize, wake: &Arc<Wake>, _deadline: Deadline) {
        let Network { ranks, capacity, connections, mesh, .. } = &*self.network;
        if *mesh {
            return wake.notify();
        }
        let pairs = (0..*connections).map(|_| pair_of(*capacity, self.rank, right));
        let (mine, theirs): (Vec<_>, Vec<_>) = pairs.unzip();
        let empty = || PartRing { right: None, left: None, wake: None };
        {
            let mut rank = ranks[self.rank].lock();
            let ring = rank.rings.entry(group).or_insert_with(empty);
            (ring.right, ring.wake) = (Some(mine), Some(wake.clone()));
        }
        wake.notify();
        let mut rank = ranks[right].lock();
        let ring = rank.rings.entry(group).or_insert_with(empty);
        ring.left = Some(theirs);
        if let Some(wake) = &ring.wake {
            wake.notify();
        }
    }

    fn ring_opened(&self, group: GroupId) -> Option<Result<RingLinks<MemoryChannel>>> {
        if self.network.mesh {
            let what = "a mesh cannot be split";
            return Some(Err(Error::new(Kind::Unsupported, what).with_rank(self.rank)));
        }
        let mut rank = self.network.ranks[self.rank].lock();
        let ring = rank.rings.get_mut(&group).filter(|ring| ring.right.is_some() && ring.left.is_some())?;
        let links = ring.right.take().zip(ring.left.take()).map(|(right, left)| Ok(RingLinks { right, left }));
        rank.rings.remove(&group);
        links
    }

    fn open(&self, group: GroupId, to: usize, wake: &Arc<Wake>, _deadline: Deadline) {
        let stripes = (0..self.network.connections).map(|_| stream(self.network.capacity, self.rank, to));
        let (senders, receivers) = stripes.unzip();
        self.network.ranks[self.rank].lock().opened.insert((group, to), senders);
        wake.notify();
        let mut peer = self.network.ranks[to].lock();
        peer.streams.insert((group, self.rank), receivers);
        if let Some(wake) = peer.wakes.get(&group) {
            wake.notify();
        }
    }

    fn opened(&self, group: GroupId, to: usize) -> Option<Result<Vec<MemorySender>>> {
        self.network.ranks[self.rank].lock().opened.remove(&(group, to)).map(Ok)
    }

    fn accept(&self, group: GroupId, wake: &Arc<Wake>) {
        self.network.ranks[self.rank].lock().wakes.insert(group, wake.clone());
    }

    fn accepted(&self, group: GroupId, from: usize) -> Option<Vec<MemoryReceiver>> {
        self.network.ranks[self.rank].lock().streams.remove(&(group, from))
    }

    fn kick(&self) {
        self.network.mail.lock().push_back((self.rank, LinkId(0), Letter::Tick));
        self.network.deliver();
    }

    fn flush_control(&self, _deadline: Deadline) -> bool {
        self.kick();
        true
    }

    fn close(&self, _deadline: Deadline) {
        let was_open = self.network.ranks[self.rank].lock().handler.take().is_some();
        if was_open {
            let ended = self.network.routes[self.rank].iter().map(|&(to, link)| (to, link, Letter::Ended));
            self.network.mail.lock().extend(ended);
            self.network.deliver();
        }
    }
}

impl Drop for MemoryFabric {
    fn drop(&mut self) {
        self.close(Deadline::after(Duration::ZERO));
    }
}
