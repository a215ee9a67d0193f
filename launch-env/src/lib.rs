//! MLX's launch environment: the variables, the hostfile and the device file that `mlx.launch` (or a user's own script)
//! gives to each rank, parsed and validated.
//!
//! This crate opens no socket, resolves no name and knows no transport: it turns text into values, or into an error
//! that says `file: where in it: what is wrong: what was expected`. It reads the environment only through [`Vars`], so
//! a test gives it a map and never changes the process's own variables. The only thing that it touches is the one file
//! that a variable names: a regular file of at most [`MAX_FILE_BYTES`].
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! # let folder = tempfile::tempdir()?;
//! # let hostfile = folder.path().join("hosts.json");
//! # let hostfile = hostfile.to_str().unwrap();
//! // Each rank's addresses, in the order of the ranks; the same number for every rank.
//! std::fs::write(hostfile, r#"[["10.0.0.1:5000"], ["mac-2.local:5000"], ["[fe80::1%en5]:5000"]]"#)?;
//!
//! // A program passes `ProcessEnv` in place of this map.
//! let vars = BTreeMap::from([("MLX_HOSTFILE", hostfile), ("MLX_RANK", "2"), ("NUVEC_DISTRIBUTED_TIMEOUT", "2.5")]);
//! let launch = nuvec_launch_env::read(&vars)?;
//!
//! let ring = launch.ring.expect("MLX_HOSTFILE and MLX_RANK are set");
//! assert_eq!((ring.rank, ring.size(), ring.connections()), (2, 3, 1));
//! assert_eq!(ring.nodes[2][0].host(), "fe80::1%en5");
//! assert_eq!(launch.settings.timeout, Some(std::time::Duration::from_millis(2500)));
//!
//! // What is wrong is said in one line that names the place and what was expected there.
//! std::fs::write(hostfile, r#"[["10.0.0.1:5000"], ["mac-2.local:0"], ["[fe80::1%en5]:5000"]]"#)?;
//! let error = nuvec_launch_env::read(&vars).unwrap_err().to_string();
//! assert!(error.ends_with(
//!     r#"(MLX_HOSTFILE): rank 1, entry 0: the port of "mac-2.local:0" is 0: expected a port from 1 to 65535"#
//! ));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The variables
//!
//! | variable | meaning | set but empty |
//! |---|---|---|
//! | `MLX_HOSTFILE` | path of the ring's hostfile ([`Ring`]) | error |
//! | `MLX_RANK` | this process's rank; blanks around it are ignored | error |
//! | `JACCL_IBV_DEVICES`, else `MLX_IBV_DEVICES` | path of JACCL's device file ([`Jaccl`]) | error |
//! | `JACCL_COORDINATOR`, else `MLX_JACCL_COORDINATOR` | `host:port` of rank 0 | error |
//! | `JACCL_RANK`, else `MLX_RANK` | the rank for JACCL | error |
//! | `JACCL_RING`, `MLX_JACCL_RING` | prefer JACCL's ring, whatever the value | counts as set |
//! | `NUVEC_DISTRIBUTED_TIMEOUT` | seconds, above 0, fractions allowed | error |
//! | `NUVEC_DISTRIBUTED_KEY` | the group's secret, these bytes as they stand, at least [`MIN_KEY_BYTES`] | error |
//! | `NUVEC_DISTRIBUTED_WIRE` | `native` or `mlx` | error |
//! | `NUVEC_DISTRIBUTED_NAME` | the group's name | the empty name, which is the default |
//! | `NUVEC_DISTRIBUTED_SPIN_US` | whole microseconds of retrying before a wait sleeps; 0: never | error |
//! | `NUVEC_DISTRIBUTED_QUEUE_PAIRS` | the type of JACCL's queue pairs: `rc` or `uc` | error |
//! | `NUVEC_DISTRIBUTED_GID_INDEX` | which entry of its devices' GID tables JACCL uses | error |
//! | `MLX_RING_VERBOSE` | log the steps of connecting, whatever the value | counts as set |
//!
//! An empty value is an error where it would otherwise mean something else than what was meant: a script whose
//! `$(cat key)` failed must not start a group without a key. The facts about MLX's own variables are those of MLX's
//! `mlx/distributed/ring/ring.cpp`, `mlx/distributed/jaccl/lib/jaccl/jaccl.cpp` and
//! `python/mlx/_distributed_utils/launch.py`; where MLX guesses (it takes `MLX_RANK=abc` for rank 0), this crate
//! does not.
//!
//! # Half a launch
//!
//! A launch that is begun must be whole: each of the ring's and JACCL's sets of variables is there or it is not, and a
//! part of one is an error even beside a whole one of the other, since somebody meant it. `MLX_RANK`, which both share,
//! belongs to a launch too: alone it is an error. Only when nothing of a launch is set are [`LaunchEnv::ring`] and
//! [`LaunchEnv::jaccl`] both `None`. (`MLX_JACCL_RING` is a preference and begins nothing.)

mod address;
mod error;
mod file;
mod jaccl;
mod rank;
mod ring;
mod settings;
mod vars;

pub use address::{Address, AddressError, AddressFault};
pub use error::{DeviceFault, Error, ErrorKind, Excerpt, Origin, Place, Shape, Spot};
pub use file::MAX_FILE_BYTES;
pub use jaccl::{Jaccl, Topology};
pub use ring::{Ring, parse_nodes};
pub use settings::{Key, MAX_SPIN, MAX_TIMEOUT, MIN_KEY_BYTES, QueuePairsName, Settings, WireName};
pub use vars::{ProcessEnv, Vars};

/// All that the environment says about the launch of this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LaunchEnv {
    /// The TCP ring, if `MLX_HOSTFILE` is set.
    pub ring: Option<Ring>,
    /// JACCL, if its device file and coordinator are set.
    pub jaccl: Option<Jaccl>,
    /// The settings, which may be there without a launch.
    pub settings: Settings,
}

impl LaunchEnv {
    /// Whether the environment describes a launch at all. If not, the process runs alone.
    pub fn is_launch(&self) -> bool {
        self.ring.is_some() || self.jaccl.is_some()
    }
}

/// Reads the whole launch environment: the ring, JACCL and the settings.
///
/// # Errors
///
/// Whatever is there and wrong, or half there, as the [crate's page](crate) says; the first fault found, in the order
/// ring, JACCL, rank without either, settings.
///
/// ```
/// use std::collections::BTreeMap;
///
/// let nothing = BTreeMap::<String, String>::new();
/// assert!(!nuvec_launch_env::read(&nothing)?.is_launch());
///
/// let half = BTreeMap::from([("MLX_RANK", "0")]);
/// assert!(nuvec_launch_env::read(&half).is_err());
/// # Ok::<(), nuvec_launch_env::Error>(())
/// ```
pub fn read(vars: &dyn Vars) -> Result<LaunchEnv, Error> {
    let ring = Ring::read(vars)?;
    let jaccl = Jaccl::read(vars)?;
    if ring.is_none() && jaccl.is_none() && vars.get(rank::MLX_RANK).is_some() {
        return Err(Error::new(Origin::Variable(rank::MLX_RANK), Spot::Whole, ErrorKind::RankAlone));
    }
    let settings = Settings::read(vars)?;
    Ok(LaunchEnv { ring, jaccl, settings })
}
