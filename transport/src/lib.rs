//! What nuvec's distributed transports have in common, and nothing else.
//!
//! - [`Channel`]: one reliable, ordered, full-duplex byte stream to one peer, which never blocks and splits into a
//!   [`Sender`] and a [`Receiver`].
//! - [`Fabric`]: what a group of ranks needs beside its ring: streams between any two ranks, and control messages, which
//!   a [`ControlHandler`] reads.
//! - [`Error`]: one structured error, whose one line names the rank, its address and what to do.
//! - [`Deadline`], [`Park`], [`wait_any`], [`Wake`]: how a thread waits; there is no wait without a deadline.
//!
//! Transports (`nuvec-transport-tcp`, …) implement the traits; `nuvec-collectives` runs over them. What may *not* live
//! here: sockets, queue pairs, data types, reductions, environment variables. The only system calls are poll(2) and the
//! wake pipe's.
//!
//! With the feature `testing` there are also in-memory channels and fabrics (`memory`) and the suite that every channel
//! kind must pass (`conformance`).
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use nuvec_transport::{Channel, Receiver, Sender, memory};
//! use std::io::IoSlice;
//!
//! let (a, b) = memory::pair(4);
//! let ((mut tx, _), (_, mut rx)) = (a.split(), b.split());
//! // The channel holds four bytes: it takes what it has room for, and never blocks.
//! assert_eq!(tx.try_send(&[IoSlice::new(b"hello")]).unwrap(), 4);
//! let mut into = [0; 8];
//! assert_eq!(rx.try_recv(&mut into).unwrap(), 4);
//! assert_eq!(rx.try_recv(&mut into).unwrap(), 0); // nothing yet; the end of the stream would be an error
//! # }
//! ```

mod channel;
mod deadline;
mod error;
mod fabric;
mod wait;

#[cfg(feature = "testing")]
pub mod conformance;
#[cfg(feature = "testing")]
pub mod memory;

pub use channel::{Channel, Peer, Receiver, Sender};
pub use deadline::Deadline;
pub use error::{Error, Kind, Rejection, Result, printable, system_text};
pub use fabric::{ControlHandler, Fabric, GroupId, LinkId, Links, MAX_CONTROL_MESSAGE, Outbox, RingLinks, Silent};
pub use wait::{Interest, Park, Wake, wait_any};
