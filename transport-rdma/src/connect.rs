//! [`connect`]: from a matrix of devices to a group whose queue pairs are connected.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use nuvec_transport::{ControlHandler, Deadline, Error, Kind, Links, Peer, Result, RingLinks};
use nuvec_transport_tcp::{Address, bootstrap};

use crate::card::{self, Offer};
use crate::channel::RdmaChannel;
use crate::endpoint::{Endpoint, Slots};
use crate::fabric::RdmaFabric;
use crate::link::{Config, Link};
use crate::options::{Options, QueuePairs, Topology};
use crate::plan::{Planned, Role, plan};
use crate::registry::{Registry, Watch};
use crate::sys::Verbs;
use crate::verbs::{Connection, DeviceList, Port, Prepared, ProtectionDomain, QueuePairType};

/// Packets are numbered with 24 bits.
const SEQUENCE_MASK: u32 = (1 << 24) - 1;

/// Forms a group of `devices.len()` ranks, and returns once every queue pair of every rank is connected.
///
/// `coordinator` is where rank 0 listens (over TCP); the others dial it. `devices[r][p]` names the devices by which rank `r`
/// reaches rank `p`: in a [`Topology::Mesh`] the first one is used, in a [`Topology::Ring`] each is a connection of its own,
/// equally many between any two neighbours. `handler` is given the control messages, from now on until the fabric is closed.
///
/// Blocks for the time-out at the longest for each of two steps, meeting and connecting (and about a second more to
/// tell the others, when it fails). A group of one rank opens neither a device nor a socket.
///
/// Errors: [`Kind::Misuse`]: the matrix is not of this topology; [`Kind::Unsupported`]: there is no verbs library, with the
/// names that were tried; [`Kind::Device`]: no device, none of that name, its port is down or has no address, or the peer's
/// cannot be reached from it; [`Kind::Exhausted`]: out of queue pairs, or of memory that may be locked;
/// [`Kind::Mismatch`]: ranks do not fit together; and those of the meeting: [`Kind::TimedOut`], naming who is missing,
/// [`Kind::Rejected`], [`Kind::PeerClosed`], [`Kind::Reset`].
pub fn connect(
    coordinator: &Address,
    devices: &[Vec<Vec<String>>],
    rank: usize,
    topology: Topology,
    options: &Options,
    handler: Box<dyn ControlHandler>,
) -> Result<RdmaFabric> {
    let meet =
        |card: &[u8], handler| bootstrap::connect(coordinator, rank, devices.len(), card, &options.bootstrap, handler);
    form(devices, rank, topology, options, handler, meet)
}

/// As [`connect`], with sockets that listen already: from socket activation, or bound to a port that the system chose.
/// Rank 0 needs at least one; the other ranks use none.
pub fn connect_with_listeners(
    listeners: Vec<std::net::TcpListener>,
    coordinator: &Address,
    devices: &[Vec<Vec<String>>],
    rank: usize,
    topology: Topology,
    options: &Options,
    handler: Box<dyn ControlHandler>,
) -> Result<RdmaFabric> {
    let size = devices.len();
    let meet = |card: &[u8], handler| {
        bootstrap::connect_with_listeners(listeners, coordinator, rank, size, card, &options.bootstrap, handler)
    };
    form(devices, rank, topology, options, handler, meet)
}

fn form(
    devices: &[Vec<Vec<String>>],
    rank: usize,
    topology: Topology,
    options: &Options,
    handler: Box<dyn ControlHandler>,
    meet: impl FnOnce(&[u8], Box<dyn ControlHandler>) -> Result<bootstrap::Bootstrap>,
) -> Result<RdmaFabric> {
    let plan = plan(devices, rank, topology)?;
    let unconnected = prepare(plan, options).map_err(|e| e.with_rank(rank))?;
    let offers: Vec<_> = unconnected.iter().map(|queue_pair| queue_pair.offer).collect();
    let registry = Registry::new();
    let watch = Watch { inner: handler, registry: Arc::clone(&registry) };
    let bootstrap = meet(&card::encode(&offers), Box::new(watch))?;

    let deadline = Deadline::after(options.bootstrap.timeout);
    let joined = join(unconnected, &bootstrap).and_then(|endpoints| {
        // Only now does every queue pair of every rank have its receives posted.
        bootstrap.ready(deadline).map(|()| endpoints)
    });
    let endpoints = match joined {
        Ok(endpoints) => endpoints,
        Err(e) => {
            let e = e.with_rank(rank);
            bootstrap.fail(&e);
            return Err(e);
        }
    };
    endpoints.iter().for_each(|(_, endpoint)| registry.add(endpoint));
    let looked_after = Arc::clone(&registry);
    bootstrap.attend(Box::new(move || looked_after.attend()));

    let (mut links, mut streams) = (Vec::new(), Vec::new());
    for (planned, endpoint) in endpoints {
        let channel = RdmaChannel::new(endpoint);
        if planned.role == Role::Stream {
            streams.push((planned.peer, channel))
        } else {
            links.push((planned, channel))
        }
    }
    Ok(RdmaFabric::new(bootstrap, registry, assemble(links, topology), streams))
}

/// Puts the channels where the topology has them; they come in the plan's order.
fn assemble(channels: Vec<(Planned, RdmaChannel)>, topology: Topology) -> Links<RdmaChannel> {
    match topology {
        Topology::Mesh => Links::Mesh(channels.into_iter().map(|(_, channel)| channel).collect()),
        Topology::Ring => {
            let (right, left): (Vec<_>, Vec<_>) =
                channels.into_iter().partition(|(planned, _)| planned.role == Role::Right);
            let channels = |side: Vec<(Planned, RdmaChannel)>| side.into_iter().map(|(_, channel)| channel).collect();
            Links::Ring(RingLinks { right: channels(right), left: channels(left) })
        }
    }
}

/// A queue pair that waits for its peer's offer.
struct Unconnected {
    planned: Planned,
    offer: Offer,
    prepared: Prepared,
}

/// A device that was opened.
struct Opened {
    domain: Arc<ProtectionDomain>,
    port: Port,
}

/// Makes the queue pairs of a plan.
fn prepare(plan: Vec<Planned>, options: &Options) -> Result<Vec<Unconnected>> {
    if plan.is_empty() {
        return Ok(Vec::new());
    }
    let verbs = match &options.verbs {
        Some(verbs) => Arc::clone(verbs),
        None => Verbs::open()?,
    };
    let list = DeviceList::new(&verbs)?;
    let mut devices = HashMap::new();
    // `None`: reliable ones, unless the device has none; what the first one turns out to be, all are.
    let mut kind = match options.queue_pairs {
        QueuePairs::Any if cfg!(target_os = "macos") => Some(QueuePairType::Uc),
        QueuePairs::Any => None,
        QueuePairs::Reliable => Some(QueuePairType::Rc),
        QueuePairs::Unreliable => Some(QueuePairType::Uc),
    };
    let mut made = Vec::new();
    for planned in plan {
        let opened = match devices.entry(planned.device.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                let device = list.open(&planned.device)?;
                let port = device.port(options.gid_index)?;
                free.insert(Opened { domain: ProtectionDomain::new(&device)?, port })
            }
        };
        let unconnected = make(planned, opened, kind, options)?;
        kind = Some(unconnected.offer.kind);
        made.push(unconnected);
    }
    Ok(made)
}

fn make(planned: Planned, opened: &Opened, kind: Option<QueuePairType>, options: &Options) -> Result<Unconnected> {
    let device = opened.domain.device();
    let depth = device.limits().map_or(options.depth, |limits| options.depth.min(limits.work.max(1)));
    let message = options.message.min(usize::try_from(opened.port.longest_message).unwrap_or(usize::MAX));
    let prepare = |kind| Prepared::new(&opened.domain, kind, depth, opened.port);
    let prepared = match kind {
        Some(kind) => prepare(kind)?,
        None => match prepare(QueuePairType::Rc) {
            Err(e) if e.kind() != Kind::Exhausted => prepare(QueuePairType::Uc).map_err(|_| e)?,
            done => done?,
        },
    };
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let short = |number: usize| u16::try_from(number).map_err(|_| Error::new(Kind::Misuse, "there are too many ranks"));
    let offer = Offer {
        peer: short(planned.peer)?,
        role: planned.role,
        index: short(planned.index)?,
        kind: prepared.kind(),
        mtu: u8::try_from(opened.port.mtu).unwrap_or(1),
        lid: opened.port.lid,
        depth: small(depth),
        message: small(message),
        number: prepared.number(),
        sequence: random()? & SEQUENCE_MASK,
        gid: opened.port.gid,
    };
    Ok(Unconnected { planned, offer, prepared })
}

fn random() -> Result<u32> {
    getrandom::u32().map_err(|e| Error::new(Kind::Io, format!("the system gives no random numbers: {e}")))
}

/// What the link over a queue pair is, given what both ends offer, and how long it may be silent.
fn config(kind: QueuePairType, depth: usize, message: usize, timeout: Duration) -> Config {
    // Questions come every 0.8 s at the most; the group's own time-out should come first.
    let ask_limit = u32::try_from(timeout.as_millis() / 800).unwrap_or(u32::MAX).saturating_add(4);
    Config { reliable: kind == QueuePairType::Rc, depth, message, ask_limit }
}

/// Connects each queue pair to its counterpart on the others' cards.
fn join(unconnected: Vec<Unconnected>, bootstrap: &bootstrap::Bootstrap) -> Result<Vec<(Planned, Arc<Endpoint>)>> {
    let mut cards = HashMap::new();
    let mut joined = Vec::new();
    for queue_pair in unconnected {
        let peer = queue_pair.planned.peer;
        let offers = match cards.entry(peer) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                let card = bootstrap.cards().get(peer).map(Vec::as_slice).unwrap_or_default();
                free.insert(card::decode(card, peer)?)
            }
        };
        let address = format!("{} by {}", bootstrap.peer(peer).address, queue_pair.planned.device);
        let peer = Peer::new(peer, address);
        joined.push(join_one(queue_pair, bootstrap.rank(), offers, peer, bootstrap.timeout())?);
    }
    Ok(joined)
}

/// Connects a queue pair to its counterpart among the peer's offers.
fn join_one(
    unconnected: Unconnected,
    rank: usize,
    offers: &[Offer],
    peer: Peer,
    timeout: Duration,
) -> Result<(Planned, Arc<Endpoint>)> {
    let Unconnected { planned, offer: own, prepared } = unconnected;
    let is_counterpart = |theirs: &&Offer| {
        usize::from(theirs.peer) == rank && theirs.role == planned.role.counterpart() && theirs.index == own.index
    };
    let mismatch = |what: String| Error::new(Kind::Mismatch, what).with_peer(&peer);
    let theirs = offers.iter().find(is_counterpart).ok_or_else(|| {
        mismatch("has no queue pair for this rank: its matrix of devices, or its topology, is another".into())
            .with_advice("start every rank with the same matrix")
    })?;
    if theirs.kind != own.kind {
        let what = format!("uses {} queue pairs, and this rank {}", theirs.kind.name(), own.kind.name());
        return Err(mismatch(what).with_advice("choose one type for all ranks"));
    }
    let smaller = |own: u32, theirs: u32| usize::try_from(own.min(theirs)).unwrap_or(usize::MAX);
    let agreed = config(own.kind, smaller(own.depth, theirs.depth), smaller(own.message, theirs.message), timeout);
    let connection = Connection {
        number: theirs.number,
        peer_sequence: theirs.sequence & SEQUENCE_MASK,
        own_sequence: own.sequence,
        lid: theirs.lid,
        gid: theirs.gid,
        mtu: u32::from(own.mtu.min(theirs.mtu)),
    };
    let named = |e: Error| if e.peer().is_some() { e } else { e.with_peer(&peer) };
    let link = Link::new(agreed).map_err(|fault| named(fault.into()))?;
    let slots = Slots::new(prepared.domain(), &agreed)?;
    let endpoint = Endpoint::new(prepared, slots, link, &connection, peer.clone()).map_err(named)?;
    Ok((planned, endpoint))
}

/// Whether RDMA can be used here. Errors, which say what is missing: [`Kind::Unsupported`]: no verbs library, with the
/// names that were tried; [`Kind::Device`]: no device. Opens no device.
pub fn check() -> Result<()> {
    devices().map(drop)
}

/// The names of the RDMA devices of this machine. Errors: those of [`check`].
pub fn devices() -> Result<Vec<String>> {
    let verbs = Verbs::open()?;
    Ok(DeviceList::new(&verbs)?.names())
}
