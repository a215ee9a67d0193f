//! What a group runs on: its collectives, whatever joins its ranks.

use nuvec_collectives as collectives;
use nuvec_collectives::{Counts, DType, MlxRing, RankStatus, Reduction};
use nuvec_launch_env as launch_env;
use nuvec_transport::{Error, Kind, Result};
#[cfg(feature = "jaccl")]
use nuvec_transport_rdma as rdma;
use nuvec_transport_tcp as tcp;

#[cfg(feature = "jaccl")]
use crate::jaccl;
use crate::{Options, Wire};

/// A group's collectives.
pub(crate) enum Collectives {
    Native(collectives::Communicator<tcp::TcpFabric>),
    Mlx(MlxRing<tcp::TcpChannel>),
    #[cfg(feature = "jaccl")]
    Jaccl(collectives::Communicator<rdma::RdmaFabric>),
}

/// The same call of whichever it is.
macro_rules! whichever {
    ($collectives:expr, $it:ident => $call:expr) => {
        match $collectives {
            Collectives::Native($it) => $call,
            Collectives::Mlx($it) => $call,
            #[cfg(feature = "jaccl")]
            Collectives::Jaccl($it) => $call,
        }
    };
}

impl Collectives {
    /// Connects this rank of `ring`, which has at least two ranks.
    pub(crate) fn connect(ring: &launch_env::Ring, options: &Options) -> Result<Self> {
        let address = |a: &launch_env::Address| tcp::Address::new(a.host(), a.port());
        let nodes: Vec<Vec<_>> = ring.nodes.iter().map(|node| node.iter().map(address).collect()).collect();
        let settings = settings(options);
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

    /// Connects this rank of `config`'s group, which has at least two ranks.
    #[cfg(feature = "jaccl")]
    pub(crate) fn connect_jaccl(config: &jaccl::Config) -> Result<Self> {
        let launch_env::Jaccl { rank, devices, coordinator, .. } = &config.launch;
        let coordinator = tcp::Address::new(coordinator.host(), coordinator.port());
        let topology = match config.launch.topology() {
            launch_env::Topology::Mesh => rdma::Topology::Mesh,
            launch_env::Topology::Ring => rdma::Topology::Ring,
        };
        let options = rdma_options(config)?;
        collectives::Communicator::form(settings(&config.options), |handler| {
            rdma::connect(&coordinator, devices, *rank, topology, &options, handler)
        })
        .map(Self::Jaccl)
    }

    pub(crate) fn rank(&self) -> usize {
        whichever!(self, it => it.rank())
    }

    pub(crate) fn size(&self) -> usize {
        whichever!(self, it => it.size())
    }

    pub(crate) fn all_reduce(&self, data: &mut [u8], dtype: DType, reduction: Reduction) -> Result<()> {
        whichever!(self, it => it.all_reduce(data, dtype, reduction))
    }

    pub(crate) fn all_gather(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        whichever!(self, it => it.all_gather(input, output))
    }

    pub(crate) fn send(&self, to: usize, data: &[u8]) -> Result<()> {
        whichever!(self, it => it.send(to, data))
    }

    pub(crate) fn recv(&self, from: usize, data: &mut [u8]) -> Result<()> {
        whichever!(self, it => it.recv(from, data))
    }

    pub(crate) fn barrier(&self) -> Result<()> {
        match self {
            Self::Native(native) => native.barrier(),
            #[cfg(feature = "jaccl")]
            Self::Jaccl(jaccl) => jaccl.barrier(),
            Self::Mlx(mlx) => {
                let what = "barrier: MLX's wire has none; sum an array of one element on every rank instead";
                Err(Error::new(Kind::Unsupported, what).with_rank(mlx.rank()))
            }
        }
    }

    /// The group of the ranks that give the same color.
    pub(crate) fn split(&self, color: i32, key: i32) -> Result<Self> {
        match self {
            Self::Native(native) => native.split(color, key).map(Self::Native),
            #[cfg(feature = "jaccl")]
            Self::Jaccl(jaccl) => jaccl.split(color, key).map(Self::Jaccl),
            // In nuvec's own words.
            Self::Mlx(_) => Err(Error::new(Kind::Unsupported, "this backend does not split groups (as MLX's ring)")),
        }
    }

    /// What the ranks do, as far as is known.
    pub(crate) fn status(&self) -> Vec<RankStatus> {
        match self {
            Self::Native(native) => native.status(),
            #[cfg(feature = "jaccl")]
            Self::Jaccl(jaccl) => jaccl.status(),
            Self::Mlx(mlx) => vec![mlx.status()],
        }
    }

    pub(crate) fn counters(&self) -> Counts {
        whichever!(self, it => it.counters())
    }

    pub(crate) fn close(&self) {
        whichever!(self, it => it.close());
    }
}

fn settings(options: &Options) -> collectives::Options {
    let settings = collectives::Options::default();
    settings.spin(options.spin.unwrap_or(settings.spin))
}

fn tcp_options(options: &Options) -> Result<tcp::Options> {
    let tcp_options =
        tcp::Options::default().timeout(options.timeout).name(options.name.as_str()).verbose(options.verbose);
    Ok(match &options.key {
        Some(key) => tcp_options.key(tcp::Key::new(key.as_bytes())?),
        None => tcp_options,
    })
}

#[cfg(feature = "jaccl")]
fn rdma_options(config: &jaccl::Config) -> Result<rdma::Options> {
    let options = rdma::Options::from(tcp_options(&config.options)?);
    Ok(options.queue_pairs(config.queue_pairs).gid_index(config.gid_index))
}
