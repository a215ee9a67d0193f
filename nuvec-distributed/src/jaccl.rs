//! JACCL: ranks joined by RDMA queue pairs, over Thunderbolt on macOS and RoCE or InfiniBand on Linux.
//!
//! [`init`](crate::init) reads JACCL's launch environment; a program that has none of it says the same with a [`Config`]:
//!
//! ```no_run
//! use nuvec_core::{array, distributed};
//! use nuvec_distributed::jaccl::{self, Config};
//!
//! # fn main() -> nuvec_core::Result<()> {
//! // Row: from which rank; column: to which; the names of the devices. Rank 0 listens on the coordinator's address.
//! let devices = vec![vec![vec![], vec!["rdma_en2".to_owned()]], vec![vec!["rdma_en3".to_owned()], vec![]]];
//! let group = jaccl::init(&Config::new(0, devices, "10.0.0.1:5000")?)?;
//! let total = distributed::all_sum(&array![1.0, 2.0], Some(&group));
//! # Ok(())
//! # }
//! ```
//!
//! Every rank must be of this crate: the frames are not those of MLX's JACCL. A group of more than one rank does not
//! split. In a mesh every rank sends to every other; in a ring neighbours only.

use nuvec_core::Result;
use nuvec_core::distributed::Group;
use nuvec_launch_env as launch_env;

pub use nuvec_transport_rdma::QueuePairs;

use crate::wire::Collectives;
use crate::{Options, Session, Wire, convert};

/// A group of ranks that RDMA devices connect, and which of them this process is.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) launch: launch_env::Jaccl,
    pub(crate) options: Options,
    pub(crate) queue_pairs: QueuePairs,
    pub(crate) gid_index: Option<u32>,
}

impl Config {
    /// Rank `rank` of as many ranks as `devices` has rows. Row `r`, column `c` has the names of the devices by which rank
    /// `r` reaches rank `c`. `coordinator` is the `host:port` where rank 0 listens and the others dial.
    ///
    /// The ranks form a mesh if there is a device from each to every other, and none from one to itself; else a ring if
    /// there are equally many between all neighbours, each of which is a connection. Errors: they can form neither, or
    /// the rank or the coordinator is wrong ([`Error::InvalidArgument`](nuvec_core::Error)).
    pub fn new(rank: usize, devices: Vec<Vec<Vec<String>>>, coordinator: &str) -> Result<Self> {
        let launch = launch_env::Jaccl::new(rank, devices, coordinator, false).map_err(convert::environment)?;
        let (options, queue_pairs) = (Options::default(), QueuePairs::Any);
        Ok(Self { launch, options, queue_pairs, gid_index: None })
    }

    /// What the environment says ([`the crate's page`](crate#the-launch-environment) has the variables); `None` without a
    /// JACCL launch. Errors: as of [`init_backend`](crate::init_backend).
    pub fn from_env() -> Result<Option<Self>> {
        let env = launch_env::read(&launch_env::ProcessEnv).map_err(convert::environment)?;
        Ok(env.jaccl.map(|launch| Self::of_launch(launch, env.settings)))
    }

    pub(crate) fn of_launch(launch: launch_env::Jaccl, settings: launch_env::Settings) -> Self {
        let queue_pairs = match settings.queue_pairs {
            None => QueuePairs::Any,
            Some(launch_env::QueuePairsName::Reliable) => QueuePairs::Reliable,
            Some(launch_env::QueuePairsName::Unreliable) => QueuePairs::Unreliable,
        };
        let gid_index = settings.gid_index;
        Self { launch, options: Options::from(settings), queue_pairs, gid_index }
    }

    /// Sets whether to form a ring where the devices allow both a ring and a mesh. Default: the mesh.
    pub fn prefer_ring(mut self, prefer_ring: bool) -> Self {
        self.launch.prefer_ring = prefer_ring;
        self
    }

    /// Sets time-out, key, name and so on. The wire must be the native one.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the type of the queue pairs, the same on every rank. Default: reliable ones where the device has them.
    pub fn queue_pairs(mut self, queue_pairs: QueuePairs) -> Self {
        self.queue_pairs = queue_pairs;
        self
    }

    /// Sets which entry of every device's GID table is used. Default: the best one, which is a RoCE v2 one of an IPv4
    /// address where there is one.
    pub fn gid_index(mut self, index: u32) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.launch.size()
    }
}

/// Connects this rank of `config`'s group. The group is not made the default. One rank alone opens neither a device nor a
/// socket. Every call makes another group.
///
/// Blocks until every rank is there, at the longest for about twice the time-out. Errors: the wire is MLX's, the key is
/// too short, or there is no verbs library, with the names that were tried ([`Error::InvalidArgument`](nuvec_core::Error));
/// there is no device at all, none of that name (with the names that there are), its port is down or has no address, or a
/// rank cannot be reached or refuses ([`Error::Io`](nuvec_core::Error)).
pub fn init(config: &Config) -> Result<Group> {
    connect(config).map(|session| session.group())
}

/// Connects as [`init`] and returns a handle.
pub fn connect(config: &Config) -> Result<Session> {
    if config.options.wire != Wire::Native {
        let text = "MLX's wire is the TCP ring's, and JACCL was asked for: leave NUVEC_DISTRIBUTED_WIRE out, or set it to \
                    native (no rank of MLX's own JACCL can take part)";
        return Err(crate::invalid(text));
    }
    Session::of(config.size(), || Collectives::connect_jaccl(config))
}

/// Whether there is a verbs library and a device.
pub(crate) fn is_available() -> bool {
    nuvec_transport_rdma::check().is_ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn two(device: &str) -> Config {
        let cell = |device: &str| vec![device.to_owned()];
        let devices = vec![vec![vec![], cell(device)], vec![cell(device), vec![]]];
        Config::new(0, devices, "127.0.0.1:1").unwrap().options(Options::default().timeout(Duration::from_millis(200)))
    }

    #[test]
    fn one_rank_needs_no_device_and_no_socket() {
        let alone = Config::new(0, vec![vec![vec![]]], "192.0.2.1:1").unwrap();
        assert_eq!(init(&alone).unwrap().size(), 1);
    }

    #[test]
    fn mlxs_wire_is_an_error_that_says_so() {
        let config = two("a").options(Options::default().wire(Wire::Mlx));
        let e = init(&config).expect_err("MLX's wire");
        assert!(matches!(&e, nuvec_core::Error::InvalidArgument(text) if text.contains("MLX's wire")), "{e}");
    }

    #[test]
    fn a_matrix_of_neither_a_mesh_nor_a_ring_is_an_error() {
        let devices = vec![vec![vec![], vec!["a".to_owned()]], vec![vec![], vec![]]];
        let e = Config::new(0, devices, "127.0.0.1:1").expect_err("one direction is missing");
        assert!(e.to_string().contains("is no mesh") && e.to_string().contains("no ring"), "{e}");
    }

    /// Whatever this machine lacks: the library, a device, or one of that name.
    #[test]
    fn a_device_that_is_not_there_is_an_error_that_says_what_is_missing() {
        let e = init(&two("nuvec_none0")).expect_err("no such device").to_string();
        let expected = match nuvec_transport_rdma::devices() {
            Ok(_) => "there is no RDMA device \"nuvec_none0\"; there is ",
            Err(e) if e.kind() == nuvec_transport::Kind::Unsupported => "no verbs library can be opened; tried lib",
            Err(_) => "there is no RDMA device",
        };
        assert!(e.contains(expected), "{e}");
        assert_eq!(is_available(), nuvec_transport_rdma::devices().is_ok());
    }
}
