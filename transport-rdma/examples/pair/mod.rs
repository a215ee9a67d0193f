//! Two ranks in one process, for the examples that measure and check the channel between them.

use std::error::Error;
use std::net::TcpListener;
use std::time::Duration;

use nuvec_transport::{Fabric, Silent};
use nuvec_transport_rdma::{Options, QueuePairs, RdmaChannel, RdmaFabric, Topology, connect_with_listeners, devices};
use nuvec_transport_tcp::Address;

/// The two devices that `names` has; of one device, twice that one; without a name, the first two of this machine.
pub(crate) fn names(mut names: Vec<String>) -> Result<[String; 2], Box<dyn Error>> {
    if names.is_empty() {
        names = devices()?.into_iter().take(2).collect();
    }
    match &names[..] {
        [both] => Ok([both.clone(), both.clone()]),
        [first, second] => Ok([first.clone(), second.clone()]),
        _ => Err("name two devices, or one".into()),
    }
}

/// Two ranks, in this process, that are joined by these devices.
pub(crate) fn pair(names: &[String; 2], queue_pairs: QueuePairs) -> Result<[RdmaFabric; 2], Box<dyn Error>> {
    let [first, second] = names.clone();
    let matrix = [vec![vec![], vec![first]], vec![vec![second], vec![]]];
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let coordinator = Address::new("127.0.0.1", listener.local_addr()?.port());
    let options = Options::default().timeout(Duration::from_secs(60)).queue_pairs(queue_pairs);
    let form = |rank: usize, listeners: Vec<TcpListener>| {
        connect_with_listeners(listeners, &coordinator, &matrix, rank, Topology::Mesh, &options, Box::new(Silent))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| form(1, Vec::new()));
        let this = form(0, vec![listener]);
        let other = other.join().map_err(|_| "the other rank panicked")?;
        Ok([this?, other?])
    })
}

/// The channel between two ranks.
pub(crate) fn channel(fabric: &RdmaFabric) -> Result<RdmaChannel, Box<dyn Error>> {
    match fabric.links()? {
        nuvec_transport::Links::Mesh(mut channels) => channels.pop().ok_or_else(|| "no channel".into()),
        nuvec_transport::Links::Ring(_) => Err("a mesh was asked for".into()),
    }
}
