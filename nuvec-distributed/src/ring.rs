//! The TCP ring as nuvec's transport.

use std::sync::Arc;

use nuvec_collectives as collectives;
use nuvec_core::Result;
use nuvec_core::distributed::{AllReduce, Communicator, Group};
use nuvec_launch_env::Ring;
use nuvec_transport::Peer;
use nuvec_transport_tcp as tcp;

use crate::{Options, convert};

/// Connects this rank of `ring`.
pub(crate) fn connect(ring: &Ring, options: &Options) -> Result<Group> {
    if ring.size() <= 1 {
        return Ok(Group::single());
    }
    let peer = |(rank, node): (usize, &Vec<nuvec_launch_env::Address>)| {
        Peer::new(rank, node.first().map(ToString::to_string).unwrap_or_default())
    };
    let peers: Vec<_> = ring.nodes.iter().enumerate().map(peer).collect();
    let address = |a: &nuvec_launch_env::Address| tcp::Address::new(a.host(), a.port());
    let nodes: Vec<Vec<_>> = ring.nodes.iter().map(|node| node.iter().map(address).collect()).collect();
    let control = collectives::Control::new(ring.rank(), peers, options.timeout);
    let communicator = tcp_options(options)
        .and_then(|tcp_options| tcp::connect(&nodes, ring.rank(), &tcp_options, control.handler()))
        .and_then(|fabric| {
            let mut settings = collectives::Options::default();
            settings.spin = options.spin.unwrap_or(settings.spin);
            collectives::Communicator::new(fabric, control, settings)
        });
    Ok(Group::new(Arc::new(TcpRing(communicator.map_err(convert::transport)?))))
}

fn tcp_options(options: &Options) -> nuvec_transport::Result<tcp::Options> {
    let tcp_options = tcp::Options::default()
        .timeout(options.timeout)
        .name(options.name.as_str())
        .agreement(collectives::AGREEMENT)
        .verbose(options.verbose);
    Ok(match &options.key {
        Some(secret) => tcp_options.key(tcp::Key::new(&secret.0)?),
        None => tcp_options,
    })
}

/// A communicator as nuvec knows it.
struct TcpRing(collectives::Communicator<tcp::TcpFabric>);

impl Communicator for TcpRing {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn all_reduce(&self, op: AllReduce, dtype: nuvec_core::DType, data: &mut [u8]) -> Result<()> {
        self.0.all_reduce(data, convert::dtype(dtype)?, convert::reduction(op)?).map_err(convert::transport)
    }

    fn all_gather(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.0.all_gather(input, output).map_err(convert::transport)
    }

    fn send(&self, dst: usize, data: &[u8]) -> Result<()> {
        self.0.send(dst, data).map_err(convert::transport)
    }

    fn recv(&self, src: usize, data: &mut [u8]) -> Result<()> {
        self.0.recv(src, data).map_err(convert::transport)
    }
}
