//! Channels over RDMA queue pairs.

mod card;
mod channel;
mod connect;
mod endpoint;
mod fabric;
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
