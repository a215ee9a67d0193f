//! Distributed transports for nuvec (MLX for Rust): a program on several machines sums its arrays across them.
//!
//! [`init`] reads MLX's launch environment, connects the ranks and makes their group the default one of
//! [`nuvec_core::distributed`]'s collectives. Every rank runs the same program.
//!
//! ```no_run
//! use nuvec_core::{array, distributed};
//!
//! # fn main() -> nuvec_core::Result<()> {
//! let group = nuvec_distributed::init(false)?; // size 1 without a launch environment
//! let x = array![1.0, 2.0];
//! let total = distributed::all_sum(&x, None); // the sum over every rank
//! println!("rank {} of {}: {:?}", group.rank(), group.size(), total.to_vec::<f32>()?);
//! # Ok(())
//! # }
//! ```
//!
//! # The launch environment
//!
//! `MLX_HOSTFILE` names a JSON file with one entry per rank, each a list of `"host:port"`, one per connection; `MLX_RANK`
//! is this process's rank. For RDMA, with the feature `jaccl`, there are JACCL's variables, as `mlx.launch --backend jaccl`
//! sets them: `MLX_IBV_DEVICES` names a JSON file with a matrix of devices, row `r` and column `c` having those by which
//! rank `r` reaches rank `c` (`null`, a name, or a list of names); `MLX_JACCL_COORDINATOR` is the `host:port` of rank 0;
//! `MLX_RANK`; and `MLX_JACCL_RING`, whatever its value, asks for a ring where the devices allow a mesh too. Each is also
//! read with `JACCL_` first (`JACCL_IBV_DEVICES`, `JACCL_COORDINATOR`, `JACCL_RANK`, `JACCL_RING`), which wins. In a build
//! without the feature a JACCL launch is an error. Beside them, all optional, with the default in parentheses:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `NUVEC_DISTRIBUTED_TIMEOUT` | seconds, above 0, that connecting, or an operation without progress, waits (30) |
//! | `NUVEC_DISTRIBUTED_KEY` | a secret of at least 16 bytes that every rank must have (none) |
//! | `NUVEC_DISTRIBUTED_NAME` | the group's name; groups of different names refuse each other (empty) |
//! | `NUVEC_DISTRIBUTED_SPIN_US` | whole microseconds, up to a second, that an operation tries before it sleeps; 0: never (50) |
//! | `NUVEC_DISTRIBUTED_WIRE` | `native`, or `mlx` to join a ring of MLX programs, see [`Wire`] (`native`) |
//! | `NUVEC_DISTRIBUTED_QUEUE_PAIRS` | JACCL's queue pairs: `rc` or `uc` (`rc` where the device has it) |
//! | `NUVEC_DISTRIBUTED_GID_INDEX` | which entry of every device's GID table JACCL uses (the best) |
//! | `MLX_RING_VERBOSE` | set, whatever the value: the steps of connecting are logged at level `info` (`debug`) |
//!
//! They are [`init`]'s alone: [`init_with`] and [`connect`] read none and take [`Options`]. A value that is wrong, and an
//! empty one (but for the name and `MLX_RING_VERBOSE`), is an error.
//!
//! # Groups and threads
//!
//! Every rank calls the same collectives of a group in the same order, and with the same lengths.
//! [`Group::split`](nuvec_core::distributed::Group::split) makes a group of the ranks that give the same color, ordered
//! by key, then by rank (a negative key counts as the rank); it is a collective of the group that is split. A group has
//! connections of its own, so groups work at the same time and fail apart: give each thread its own. Threads may also
//! share one, and their operations never mix, but then it is for the program to have them in one order on every rank.
//! [`init_with`] and [`connect`] make further groups of all ranks, each with addresses of its own.
//!
//! # Failures
//!
//! A failure on the way is an [`Error::Io`], a call that broke a rule (before any byte was moved) an
//! [`Error::InvalidArgument`]: both in one line, from the evaluation of the array. The first failure ends the group on
//! every rank with an error that names the rank that failed first, and later calls fail at once and repeat it; a broken
//! rule leaves the group as it was. A group does not recover: start the ranks again.
//!
//! A forked child cannot use its parent's groups: each call, [`Session::status`] too, is an
//! [`Error::InvalidArgument`], [`Session::close`] and [`shutdown`] leave them alone, and the parent goes on. Fork before
//! [`init`], or not at all.
//!
//! # What a key does
//!
//! With a key, every connection proves that both sides have it, and nobody without it gets in. The traffic itself is
//! neither encrypted nor authenticated after that, and a short key can be guessed offline by a fake listener: use 32
//! random bytes.
//!
//! What may not live here: sockets, wire formats, algorithms. This crate is the only one of the workspace that knows
//! nuvec.

#![forbid(unsafe_code)]

mod convert;
#[cfg(feature = "jaccl")]
pub mod jaccl;
mod options;
mod ring;
mod session;
mod wire;

use nuvec_core::distributed::{Group, set_default_group};
use nuvec_core::{Error, Result};
use nuvec_launch_env as launch_env;
use parking_lot::Mutex;

pub use nuvec_collectives::{CallStatus, Counts, RankState, RankStatus};
pub use nuvec_transport::GroupId;
pub use options::{Options, Wire};
pub use session::{Session, Status, connect};

/// A kind of transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Backend {
    /// The ring if its launch environment is there, else JACCL.
    #[default]
    Any,
    /// A ring over TCP (`MLX_HOSTFILE`, `MLX_RANK`), also where JACCL's environment is there too.
    Ring,
    /// JACCL: RDMA queue pairs (`MLX_IBV_DEVICES`, `MLX_JACCL_COORDINATOR`, `MLX_RANK`), with the feature `jaccl`.
    Jaccl,
}

/// What `init` connected, and the backend that it runs on.
static INITIALISED: Mutex<Option<(Backend, Session)>> = Mutex::new(None);

/// [`init_backend`] with [`Backend::Any`], as `mx.distributed.init()`.
pub fn init(strict: bool) -> Result<Group> {
    init_backend(strict, Backend::Any)
}

/// Connects this process as its launch environment says, and makes the group nuvec's default one.
///
/// Blocks until every rank is there, at the longest for the time-out. A second call returns the same group, also after
/// [`shutdown`]. Without a launch environment: an error if `strict`, else the group of this process alone, which is not
/// remembered. [`session`] is a handle to what was connected.
///
/// Errors: the environment is there but wrong, half there, or for another backend ([`Error::InvalidArgument`]; a file
/// that cannot be read is [`Error::Io`]), `strict` or not; a rank cannot be reached or refuses ([`Error::Io`]), with its
/// name, its address and the reason; an earlier call made the group with another backend.
pub fn init_backend(strict: bool, backend: Backend) -> Result<Group> {
    let mut initialised = INITIALISED.lock();
    if let Some((made, session)) = &*initialised {
        if backend == Backend::Any || *made == backend {
            return Ok(session.group());
        }
        return Err(invalid(format!("the default group was made with backend {made:?} before, not {backend:?}")));
    }
    let Some((made, session)) = connect_environment(&launch_env::ProcessEnv, backend)? else {
        if strict {
            return Err(invalid(match backend {
                Backend::Jaccl => {
                    "nothing of a JACCL launch is in the environment: set MLX_IBV_DEVICES, MLX_JACCL_COORDINATOR and MLX_RANK"
                }
                _ => "nothing of a launch is in the environment: set MLX_HOSTFILE and MLX_RANK",
            }));
        }
        return Ok(Group::single());
    };
    let group = session.group();
    set_default_group(group.clone());
    *initialised = Some((made, session));
    Ok(group)
}

/// A handle to the group that [`init`] made: what every rank is doing ([`Session::status`]), a barrier, and closing it.
/// `None` before, and without a launch environment. Waits while `init` is at work on another thread.
///
/// ```no_run
/// # fn main() -> nuvec_core::Result<()> {
/// nuvec_distributed::init(false)?;
/// std::thread::spawn(|| {
///     let Some(session) = nuvec_distributed::session() else { return };
///     while let Ok(status) = session.status() {
///         print!("{status}");
///         std::thread::sleep(std::time::Duration::from_secs(10));
///     }
/// });
/// # Ok(())
/// # }
/// ```
pub fn session() -> Option<Session> {
    INITIALISED.lock().as_ref().map(|(_, session)| session.clone())
}

/// What the environment describes, connected, and the backend that it runs on; `None` only if it describes no launch at
/// all: a process that was launched never runs alone because it asked for another backend.
fn connect_environment(vars: &dyn launch_env::Vars, backend: Backend) -> Result<Option<(Backend, Session)>> {
    let env = launch_env::read(vars).map_err(convert::environment)?;
    match (env.ring, env.jaccl, backend) {
        (None, None, _) => Ok(None),
        (Some(ring), _, Backend::Any | Backend::Ring) => {
            Ok(Some((Backend::Ring, Session::connect(&ring, &Options::from(env.settings))?)))
        }
        (None, Some(_), Backend::Ring) => Err(invalid(
            "the environment describes a JACCL launch, and the ring was asked for: set MLX_HOSTFILE, or ask for any backend",
        )),
        (Some(_), None, Backend::Jaccl) => Err(invalid(
            "the environment describes a ring launch (MLX_HOSTFILE), and JACCL was asked for: ask for the ring",
        )),
        (_, Some(jaccl), _) => Ok(Some((Backend::Jaccl, connect_jaccl(jaccl, env.settings)?))),
    }
}

#[cfg(feature = "jaccl")]
fn connect_jaccl(launch: launch_env::Jaccl, settings: launch_env::Settings) -> Result<Session> {
    jaccl::connect(&jaccl::Config::of_launch(launch, settings))
}

#[cfg(not(feature = "jaccl"))]
fn connect_jaccl(_: launch_env::Jaccl, _: launch_env::Settings) -> Result<Session> {
    Err(invalid(
        "the environment describes a JACCL launch, and this build has no JACCL: build it with the feature jaccl, or launch \
         with the ring backend (MLX_HOSTFILE)",
    ))
}

/// Whether this build and machine can use `backend` ([`Backend::Any`]: some backend; [`Backend::Jaccl`]: the feature, a
/// verbs library and a device are there). No launch environment is needed.
pub fn is_available(backend: Backend) -> bool {
    match backend {
        Backend::Any | Backend::Ring => true,
        #[cfg(feature = "jaccl")]
        Backend::Jaccl => jaccl::is_available(),
        #[cfg(not(feature = "jaccl"))]
        Backend::Jaccl => false,
    }
}

/// Connects rank `rank` of the ring over `nodes`: per rank its addresses, one connection per address, as in MLX's
/// hostfile. The group is not made the default. One rank alone is the group of this process, without a socket. Every call
/// makes another group.
///
/// Blocks until every rank is there, at the longest for the time-out. Errors: the nodes, the rank or the key are wrong
/// ([`Error::InvalidArgument`]); a rank cannot be reached or refuses ([`Error::Io`]), as for [`init_backend`].
pub fn init_with(nodes: &[Vec<String>], rank: usize, options: &Options) -> Result<Group> {
    connect(nodes, rank, options).map(|session| session.group())
}

/// Closes every group of this process, with those split from it: connections, threads and memory go, within about a
/// second per group of all ranks (JACCL: up to five, while something that was sent has not arrived). Calls in progress and later ones fail with "closed", and [`init`] still returns the
/// group that it made. Ranks that still need this one's bytes fail and name it. In a forked child it leaves the parent's
/// groups alone. A process may also just exit.
pub fn shutdown() {
    ring::close_all();
}

fn invalid(text: impl Into<String>) -> Error {
    Error::InvalidArgument(format!("distributed: {}", text.into()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn environment(vars: &[(&str, &str)]) -> BTreeMap<String, String> {
        vars.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    /// No test of this process has a launch environment.
    #[test]
    fn there_is_a_session_only_of_what_init_connected() {
        assert_eq!(init(false).unwrap().size(), 1);
        assert!(session().is_none());
    }

    #[test]
    fn nothing_of_a_launch_is_no_group_for_every_backend() {
        for backend in [Backend::Any, Backend::Ring, Backend::Jaccl] {
            assert!(connect_environment(&environment(&[]), backend).unwrap().is_none());
        }
    }

    #[test]
    fn half_a_launch_is_an_error_that_names_what_is_missing() {
        for (vars, missing) in [
            (&[("MLX_RANK", "0")][..], "MLX_HOSTFILE"),
            (&[("MLX_HOSTFILE", "/nowhere")][..], "MLX_RANK"),
            (&[("MLX_JACCL_COORDINATOR", "a:1"), ("MLX_RANK", "0")][..], "MLX_IBV_DEVICES"),
        ] {
            for backend in [Backend::Any, Backend::Ring, Backend::Jaccl] {
                let e = connect_environment(&environment(vars), backend).expect_err("half a launch");
                assert!(matches!(&e, Error::InvalidArgument(text) if text.contains(missing)), "{backend:?}: {e}");
            }
        }
    }

    #[test]
    fn a_launch_for_another_backend_than_the_one_asked_for_is_never_size_1() {
        let (hosts, devices) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(&hosts, r#"[["127.0.0.1:5000"]]"#).unwrap();
        std::fs::write(&devices, "[[null]]").unwrap();
        let ring = [("MLX_HOSTFILE", hosts.path().to_str().unwrap()), ("MLX_RANK", "0")];
        let jaccl = [
            ("MLX_IBV_DEVICES", devices.path().to_str().unwrap()),
            ("MLX_JACCL_COORDINATOR", "127.0.0.1:5000"),
            ("MLX_RANK", "0"),
        ];
        let (made, session) = connect_environment(&environment(&ring), Backend::Ring).unwrap().unwrap();
        assert_eq!((made, session.group().size()), (Backend::Ring, 1));
        for (vars, backend, what) in
            [(&ring[..], Backend::Jaccl, "a ring launch"), (&jaccl[..], Backend::Ring, "a JACCL launch")]
        {
            let e = connect_environment(&environment(vars), backend).expect_err("another launch");
            assert!(matches!(&e, Error::InvalidArgument(text) if text.contains(what)), "{e}");
        }
        // With both there, each is what was asked for.
        let both = [&ring[..], &jaccl[..]].concat();
        for backend in [Backend::Any, Backend::Ring] {
            assert_eq!(connect_environment(&environment(&both), backend).unwrap().unwrap().0, Backend::Ring);
        }
        let jaccl = connect_environment(&environment(&both), Backend::Jaccl);
        if cfg!(feature = "jaccl") {
            let (made, session) = jaccl.unwrap().unwrap();
            assert_eq!((made, session.group().size()), (Backend::Jaccl, 1));
        } else {
            let e = jaccl.expect_err("no JACCL here");
            assert!(e.to_string().contains("no JACCL"), "{e}");
        }
    }

    #[test]
    fn a_setting_that_is_wrong_is_an_error_without_a_launch_too() {
        let vars = [("NUVEC_DISTRIBUTED_TIMEOUT", "soon")];
        let e = connect_environment(&environment(&vars), Backend::Any).expect_err("no number");
        assert!(e.to_string().contains("NUVEC_DISTRIBUTED_TIMEOUT") && e.to_string().contains("soon"), "{e}");
    }

    #[test]
    fn a_jaccl_launch_that_cannot_be_had_is_an_error_that_says_why_and_never_size_1() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, r#"[[null, "nuvec_none0"], ["nuvec_none0", null]]"#).unwrap();
        let path = file.path().to_str().unwrap();
        let vars = [("MLX_IBV_DEVICES", path), ("MLX_JACCL_COORDINATOR", "127.0.0.1:5000"), ("MLX_RANK", "0")];
        for backend in [Backend::Any, Backend::Jaccl] {
            let e = connect_environment(&environment(&vars), backend).expect_err("no such device").to_string();
            let whys = ["no verbs library can be opened; tried lib", "there is no RDMA device"];
            let expected = if cfg!(feature = "jaccl") { &whys[..] } else { &["this build has no JACCL"] };
            assert!(expected.iter().any(|why| e.contains(why)), "{e}");
        }
        assert!(is_available(Backend::Ring) && (cfg!(feature = "jaccl") || !is_available(Backend::Jaccl)));
    }

    #[test]
    fn the_wire_is_the_environments_and_mlxs_has_no_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, r#"[["127.0.0.1:5000"], ["127.0.0.1:5001"]]"#).unwrap();
        let vars = [
            ("MLX_HOSTFILE", file.path().to_str().unwrap()),
            ("MLX_RANK", "0"),
            ("NUVEC_DISTRIBUTED_WIRE", "mlx"),
            ("NUVEC_DISTRIBUTED_KEY", "a key of more than sixteen bytes"),
        ];
        let e = connect_environment(&environment(&vars), Backend::Any).expect_err("a key");
        assert!(matches!(&e, Error::InvalidArgument(text) if text.contains("MLX's wire has no key")), "{e}");
    }

    #[test]
    fn one_rank_needs_no_socket() {
        let nodes = [vec!["192.0.2.1:1".to_owned()]];
        assert_eq!(init_with(&nodes, 0, &Options::default()).unwrap().size(), 1);
        assert!(init_with(&nodes, 1, &Options::default()).is_err());
        assert!(init_with(&[], 0, &Options::default()).is_err());
    }
}
