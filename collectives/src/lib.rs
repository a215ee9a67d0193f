//! Collectives over any nuvec transport: all-reduce, all-gather, reduce-scatter, broadcast, barrier, send and receive.
//!
//! [`Communicator`] is the door: a group of ranks over a [`Fabric`](nuvec_transport::Fabric), whose control messages a
//! [`Control`] handles. Below it, each its own room:
//!
//! - [`plan`]: which bytes a lane moves in which step; pure arithmetic.
//! - [`engine`]: the one rule that says what may be sent now; cursors only.
//! - `drive`: runs lanes over channel halves, waits, gives up at a deadline.
//! - [`reduce`]: the reductions of the fourteen [`DType`]s, on bytes.
//! - `control`: who failed first, told to every rank; a state machine without clock and I/O.
//!
//! What may not live here: sockets, descriptors, queue pairs, environment variables, nuvec's arrays.

mod call;
mod communicator;
mod control;
mod drive;
pub mod dtype;
pub mod engine;
mod lane;
mod p2p;
pub mod plan;
pub mod reduce;
mod streams;
mod workers;

#[cfg(test)]
mod simulation;

pub use communicator::{AGREEMENT, Communicator, Options};
pub use control::Control;
pub use dtype::DType;
pub use reduce::Reduction;
