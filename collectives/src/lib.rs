//! Collectives over any nuvec transport: all-reduce, all-gather, reduce-scatter, broadcast, barrier, send and receive.
//!
//! [`Communicator`] is the door: a group of ranks over a [`Fabric`](nuvec_transport::Fabric), whose control messages a
//! [`Control`] handles. [`MlxRing`] is the other one: a rank among MLX's own. Below them, each its own room:
//!
//! - [`plan`]: which bytes a lane moves in which step; pure arithmetic.
//! - `engine`: the one rule that says what may be sent now; cursors only. Of a mesh, `mesh::engine`.
//! - `stream`: one channel in one call: the header, then bytes copied or reduced into their place.
//! - `drive`: runs lanes, or a mesh's exchange, over channel halves, waits, gives up at a deadline.
//! - [`reduce`]: the reductions of the fourteen [`DType`]s, on bytes.
//! - `control`: who failed first, told to every rank; a state machine without clock and I/O.
//!
//! What may not live here: sockets, descriptors, queue pairs, environment variables, nuvec's arrays.

mod call;
mod communicator;
mod control;
mod counters;
mod drive;
mod dtype;
mod engine;
mod inquiry;
mod lane;
mod mesh;
mod mlx;
mod operation;
mod p2p;
pub mod plan;
pub mod reduce;
mod split;
mod stream;
mod streams;
mod workers;

#[cfg(test)]
mod simulation;

pub use communicator::{Communicator, Options};
pub use control::{CallStatus, Control, RankState, RankStatus};
pub use counters::Counts;
pub use dtype::DType;
pub use mlx::MlxRing;
pub use reduce::Reduction;
