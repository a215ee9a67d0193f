//! Channels over RDMA queue pairs.

mod link;
