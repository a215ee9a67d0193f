//! A ring of ranks over TCP: nuvec's native wire, and in [`mlx`] MLX's.
//!
//! [`connect`] forms a group: it listens, dials the right neighbour, is dialled by the left one, and returns a
//! [`TcpFabric`] once every rank is there, or an error that names who is not. The fabric hands out the ring's
//! [`TcpChannel`]s, opens one-way streams between any two ranks and rings of groups of some of the ranks, and carries
//! control messages between neighbours for the [`ControlHandler`](nuvec_transport::ControlHandler) that it was given.
//! Collectives run on top, in `nuvec-collectives`.
//!
//! Transports of another kind, such as RDMA, have their ranks meet by [`bootstrap`]: a star around rank 0.
//!
//! - Every connection begins with a *hello* that makes sure that both ends mean the same group, rank and connection, and
//!   with a [`Key`] proves that both have it. What connects and is no rank of the group (a scanner, an HTTP client) is
//!   dropped and hinders nobody.
//! - One *service thread* per group owns everything but the data channels. It sleeps in poll(2) when there is nothing
//!   to do, and ends within about a second of [`close`](nuvec_transport::Fabric::close).
//! - IPv4, IPv6, scoped link-local addresses (`fe80::1%en5`) and names. Names are resolved on threads of their own, under
//!   the deadline, again and again until the peer is there.
//!
//! What may not live here: data types, operations, environment variables.
//!
//! Two ranks in one process, each of which sends a byte to its right:
//!
//! ```
//! use nuvec_transport::{Channel, Deadline, Fabric, Receiver, Sender, Silent, wait_any};
//! use nuvec_transport_tcp::{Address, Options, connect_with_listeners};
//! use std::{io::IoSlice, net::TcpListener, time::Duration};
//!
//! // Ports that the system chooses; on several machines, every rank calls `connect` with one list of addresses.
//! let listeners: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
//! let nodes: Vec<_> =
//!     listeners.iter().map(|l| vec![Address::new("127.0.0.1", l.local_addr().unwrap().port())]).collect();
//!
//! std::thread::scope(|scope| {
//!     for (rank, listener) in listeners.into_iter().enumerate() {
//!         let nodes = &nodes;
//!         scope.spawn(move || {
//!             let options = Options::default().timeout(Duration::from_secs(10));
//!             // `nuvec_collectives::Control` is a handler that says something.
//!             let fabric =
//!                 connect_with_listeners(vec![listener], nodes, rank, &options, Box::new(Silent)).unwrap();
//!
//!             let mut ring = fabric.links().unwrap().into_ring().unwrap();
//!             let (mut to_right, _) = ring.right.remove(0).split();
//!             let (_, mut from_left) = ring.left.remove(0).split();
//!             // A channel without room takes 0 bytes; a new one has room for one.
//!             assert_eq!(to_right.try_send(&[IoSlice::new(&[rank as u8])]).unwrap(), 1);
//!             let mut byte = [0];
//!             while from_left.try_recv(&mut byte).unwrap() == 0 {
//!                 assert!(wait_any(&[from_left.park()], Deadline::after(Duration::from_secs(10))).unwrap());
//!             }
//!             assert_eq!(usize::from(byte[0]), 1 - rank);
//!         });
//!     }
//! });
//! ```

mod address;
mod admission;
mod base;
pub mod bootstrap;
mod cards;
mod channel;
mod connect;
mod context;
mod control;
mod dial;
mod dials;
mod fabric;
mod forming;
mod hello;
mod key;
mod link;
mod listen;
mod log;
pub mod mlx;
mod options;
mod pending;
mod refusals;
mod resolve;
mod rings;
mod service;
mod socket;
mod streams;
mod thread;

pub use address::Address;
pub use channel::{TcpChannel, TcpReceiver, TcpSender};
pub use connect::{connect, connect_with_listeners};
pub use fabric::TcpFabric;
pub use key::Key;
pub use options::Options;
pub use refusals::KEY_ADVICE;
