//! Ranks joined by RDMA queue pairs: RoCE and InfiniBand on Linux, Thunderbolt on macOS.
//!
//! [`connect`] forms a group: every rank opens its devices, meets the others at rank 0 over TCP (an authenticated hello, as
//! in `nuvec-transport-tcp`), and returns an [`RdmaFabric`] once every queue pair is connected, or an error that says which
//! rank, which device, and what to do. The fabric hands out the [`RdmaChannel`]s of a [mesh or a ring](Topology). Collectives
//! run on top, in `nuvec-collectives`. All ranks must run this crate: the frames are not those of MLX's JACCL.
//!
//! - The verbs library (`libibverbs.so.1`, `librdma.dylib`) is opened when it is needed: programs start where there is none,
//!   and [`check`] says what is missing.
//! - Over reliable queue pairs (RC) the device resends what is lost; over unreliable ones (UC), all that Thunderbolt has,
//!   this crate does. Either way no message is sent before its receive is posted, every completion's status is read, and
//!   what is not right is an error, never data.
//! - Bytes are copied into registered memory on one side and handed out from it on the other. The memory is locked: for each
//!   channel, at most twice [`Options::depth`] messages.
//! - The bootstrap's service thread looks after the channels between their owners' calls. An idle channel is silent.
//!
//! With the feature `testing` there are devices in memory, `fake`, whose faults are fields.
//!
//! What may not live here: data types, operations, environment variables. Unsafe code is in `sys`, `verbs` and `fake` alone.
//!
//! Two ranks in one process, by devices in memory:
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use nuvec_transport::{Channel, Fabric, Links, Silent, conformance};
//! use nuvec_transport_rdma::{RdmaFabric, Topology, connect_with_listeners, fake::Network};
//! use nuvec_transport_tcp::Address;
//! use std::net::TcpListener;
//!
//! let network = Network::new(2);
//! let listener = TcpListener::bind("127.0.0.1:0").unwrap();
//! let coordinator = Address::new("127.0.0.1", listener.local_addr().unwrap().port());
//! // Row: from which rank; column: to which; the devices' names.
//! let devices = [vec![vec![], vec!["fake0".to_string()]], vec![vec!["fake1".to_string()], vec![]]];
//! // Over real devices, and on several machines, every rank calls `connect` with `Options::default()`.
//! let form = |rank, listeners| -> RdmaFabric {
//!     // `nuvec_collectives::Control` is a handler that says something.
//!     let options = network.options();
//!     connect_with_listeners(listeners, &coordinator, &devices, rank, Topology::Mesh, &options, Box::new(Silent)).unwrap()
//! };
//! let channel = |fabric: &RdmaFabric| match fabric.links().unwrap() {
//!     Links::Mesh(mut channels) => channels.remove(0),
//!     Links::Ring(_) => unreachable!(),
//! };
//! std::thread::scope(|scope| {
//!     scope.spawn(|| {
//!         let fabric = form(1, vec![]);
//!         let (mut tx, _rx) = channel(&fabric).split();
//!         conformance::send_all(&mut tx, b"hello").unwrap();
//!     });
//!     let fabric = form(0, vec![listener]);
//!     let (_tx, mut rx) = channel(&fabric).split();
//!     assert_eq!(conformance::recv_all(&mut rx, 5).unwrap(), b"hello");
//! });
//! # }
//! ```

mod card;
mod channel;
mod connect;
mod endpoint;
mod fabric;
#[cfg(feature = "testing")]
pub mod fake;
mod link;
mod options;
mod plan;
mod registry;
mod sys;
mod verbs;

pub use channel::{RdmaChannel, RdmaReceiver, RdmaSender};
pub use connect::{check, connect, connect_with_listeners, devices};
pub use fabric::RdmaFabric;
pub use options::{Options, QueuePairs, Topology};
