//! The TCP ring as nuvec's transport, and what keeps its groups.

use std::sync::{Arc, Weak};

use nuvec_collectives as collectives;
use nuvec_core::distributed::{AllReduce, Communicator, Group};
use nuvec_core::{Error, Result};
use nuvec_launch_env as launch_env;
use nuvec_transport::Peer;
use nuvec_transport_tcp as tcp;
use parking_lot::{Mutex, RwLock};

use crate::{Options, convert};

type Collectives = collectives::Communicator<tcp::TcpFabric>;

/// Every tree of groups that this process has open, for [`crate::shutdown`]. nuvec keeps groups for ever, and so they
/// outlive any handle.
static TREES: Mutex<Vec<Arc<Tree>>> = Mutex::new(Vec::new());

/// A group of all ranks and the groups split from it, which close together.
#[derive(Default)]
struct Tree {
    groups: Mutex<Vec<Arc<Member>>>,
}

/// One group as nuvec knows it. nuvec keeps it for ever, so what it holds goes when it closes.
pub(crate) struct Member {
    rank: usize,
    size: usize,
    live: RwLock<Option<Live>>,
}

struct Live {
    collectives: Arc<Collectives>,
    tree: Weak<Tree>,
}

/// A connected group of all ranks, and the tree that grows from it.
pub(crate) struct Root {
    pub(crate) member: Arc<Member>,
    tree: Arc<Tree>,
}

impl Root {
    /// Connects this rank of `ring`, which has at least two ranks.
    pub(crate) fn connect(ring: &launch_env::Ring, options: &Options) -> Result<Self> {
        let peer = |(rank, node): (usize, &Vec<launch_env::Address>)| {
            Peer::new(rank, node.first().map(ToString::to_string).unwrap_or_default())
        };
        let peers: Vec<_> = ring.nodes.iter().enumerate().map(peer).collect();
        let address = |a: &launch_env::Address| tcp::Address::new(a.host(), a.port());
        let nodes: Vec<Vec<_>> = ring.nodes.iter().map(|node| node.iter().map(address).collect()).collect();
        let control = collectives::Control::new(ring.rank, peers, options.timeout);
        let collectives = tcp_options(options)
            .and_then(|tcp_options| tcp::connect(&nodes, ring.rank, &tcp_options, control.handler()))
            .and_then(|fabric| {
                let mut settings = collectives::Options::default();
                settings.spin = options.spin.unwrap_or(settings.spin);
                Collectives::new(fabric, control, settings)
            });
        let tree = Arc::new(Tree::default());
        let member = tree.grow(collectives.map_err(convert::transport)?);
        TREES.lock().push(tree.clone());
        Ok(Self { member, tree })
    }

    /// Closes the group and every group that was split from it.
    pub(crate) fn close(&self) {
        TREES.lock().retain(|tree| !Arc::ptr_eq(tree, &self.tree));
        self.tree.close();
    }
}

/// Closes every tree of this process.
pub(crate) fn close_all() {
    let trees = std::mem::take(&mut *TREES.lock());
    trees.iter().for_each(|tree| tree.close());
}

impl Tree {
    fn grow(self: &Arc<Self>, collectives: Collectives) -> Arc<Member> {
        let (rank, size) = (collectives.rank(), collectives.size());
        let live = Live { collectives: Arc::new(collectives), tree: Arc::downgrade(self) };
        let member = Arc::new(Member { rank, size, live: RwLock::new(Some(live)) });
        self.groups.lock().push(member.clone());
        member
    }

    /// Closes the group of all, which ends calls in progress in every group, then lets go of all.
    fn close(&self) {
        for member in std::mem::take(&mut *self.groups.lock()) {
            if let Ok(collectives) = member.collectives() {
                collectives.close();
            }
            *member.live.write() = None;
        }
    }
}

impl Member {
    /// The group, while it is open.
    pub(crate) fn collectives(&self) -> Result<Arc<Collectives>> {
        match &*self.live.read() {
            Some(live) => Ok(live.collectives.clone()),
            None => Err(Error::InvalidArgument(format!(
                "distributed: rank {}: the group was closed by this process",
                self.rank
            ))),
        }
    }
}

impl Communicator for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&self, op: AllReduce, dtype: nuvec_core::DType, data: &mut [u8]) -> Result<()> {
        let (dtype, reduction) = (convert::dtype(dtype)?, convert::reduction(op)?);
        self.collectives()?.all_reduce(data, dtype, reduction).map_err(convert::transport)
    }

    fn all_gather(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.collectives()?.all_gather(input, output).map_err(convert::transport)
    }

    fn send(&self, dst: usize, data: &[u8]) -> Result<()> {
        self.collectives()?.send(dst, data).map_err(convert::transport)
    }

    fn recv(&self, src: usize, data: &mut [u8]) -> Result<()> {
        self.collectives()?.recv(src, data).map_err(convert::transport)
    }

    fn split(&self, color: i32, key: i32) -> Result<Arc<dyn Communicator>> {
        let closed = || Error::InvalidArgument("distributed: the group was closed by this process".into());
        let tree = self.live.read().as_ref().and_then(|live| live.tree.upgrade()).ok_or_else(closed)?;
        let child = self.collectives()?.split(color, key).map_err(convert::transport)?;
        Ok(tree.grow(child))
    }
}

fn tcp_options(options: &Options) -> nuvec_transport::Result<tcp::Options> {
    let tcp_options = tcp::Options::default()
        .timeout(options.timeout)
        .name(options.name.as_str())
        .agreement(collectives::AGREEMENT)
        .verbose(options.verbose);
    Ok(match &options.key {
        Some(key) => tcp_options.key(tcp::Key::new(key.as_bytes())?),
        None => tcp_options,
    })
}

/// nuvec's group of a member.
pub(crate) fn group(member: &Arc<Member>) -> Group {
    Group::new(member.clone())
}
