//! What a group runs on: its collectives, whichever wire its ranks speak.

use nuvec_collectives as collectives;
use nuvec_collectives::{Counts, DType, MlxRing, RankStatus, Reduction};
use nuvec_launch_env as launch_env;
use nuvec_transport::{Error, Kind, Result};
use nuvec_transport_tcp as tcp;

use crate::{Options, Wire};

/// A group's collectives.
pub(crate) enum Collectives {
    Native(collectives::Communicator<tcp::TcpFabric>),
    Mlx(MlxRing<tcp::TcpChannel>),
}

impl Collectives {
    /// Connects this rank of `ring`, which has at least two ranks.
    pub(crate) fn connect(ring: &launch_env::Ring, options: &Options) -> Result<Self> {
        let address = |a: &launch_env::Address| tcp::Address::new(a.host(), a.port());
        let nodes: Vec<Vec<_>> = ring.nodes.iter().map(|node| node.iter().map(address).collect()).collect();
        let mut settings = collectives::Options::default();
        settings.spin = options.spin.unwrap_or(settings.spin);
        let tcp_options = tcp_options(options)?;
        match options.wire {
            Wire::Native => {
                let connect = |handler| tcp::connect(&nodes, ring.rank, &tcp_options, handler);
                collectives::Communicator::form(settings, connect).map(Self::Native)
            }
            Wire::Mlx => {
                let links = tcp::mlx::connect(&nodes, ring.rank, &tcp_options)?;
                MlxRing::new(links, ring.rank, ring.size(), options.timeout, settings).map(Self::Mlx)
            }
        }
    }

    pub(crate) fn rank(&self) -> usize {
        match self {
            Self::Native(native) => native.rank(),
            Self::Mlx(mlx) => mlx.rank(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Native(native) => native.size(),
            Self::Mlx(mlx) => mlx.size(),
        }
    }

    pub(crate) fn all_reduce(&self, data: &mut [u8], dtype: DType, reduction: Reduction) -> Result<()> {
        match self {
            Self::Native(native) => native.all_reduce(data, dtype, reduction),
            Self::Mlx(mlx) => mlx.all_reduce(data, dtype, reduction),
        }
    }

    pub(crate) fn all_gather(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        match self {
            Self::Native(native) => native.all_gather(input, output),
            Self::Mlx(mlx) => mlx.all_gather(input, output),
        }
    }

    pub(crate) fn send(&self, to: usize, data: &[u8]) -> Result<()> {
        match self {
            Self::Native(native) => native.send(to, data),
            Self::Mlx(mlx) => mlx.send(to, data),
        }
    }

    pub(crate) fn recv(&self, from: usize, data: &mut [u8]) -> Result<()> {
        match self {
            Self::Native(native) => native.recv(from, data),
            Self::Mlx(mlx) => mlx.recv(from, data),
        }
    }

    pub(crate) fn barrier(&self) -> Result<()> {
        match self {
            Self::Native(native) => native.barrier(),
            Self::Mlx(mlx) => {
                let what = "barrier: MLX's wire has none; sum an array of one element on every rank instead";
                Err(Error::new(Kind::Unsupported, what).with_rank(mlx.rank()))
            }
        }
    }

    /// What the ranks do, as far as is known.
    pub(crate) fn status(&self) -> Vec<RankStatus> {
        match self {
            Self::Native(native) => native.status(),
            Self::Mlx(mlx) => vec![mlx.status()],
        }
    }

    pub(crate) fn counters(&self) -> Counts {
        match self {
            Self::Native(native) => native.counters(),
            Self::Mlx(mlx) => mlx.counters(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Native(native) => native.close(),
            Self::Mlx(mlx) => mlx.close(),
        }
    }
}

fn tcp_options(options: &Options) -> Result<tcp::Options> {
    let tcp_options =
        tcp::Options::default().timeout(options.timeout).name(options.name.as_str()).verbose(options.verbose);
    Ok(match &options.key {
        Some(key) => tcp_options.key(tcp::Key::new(key.as_bytes())?),
        None => tcp_options,
    })
}
