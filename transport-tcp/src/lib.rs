//! To come.

mod address;
mod channel;
mod hello;
mod key;
mod log;
mod options;
mod resolve;
mod socket;

pub use address::Address;
pub use channel::{TcpChannel, TcpReceiver, TcpSender};
pub use key::Key;
pub use options::Options;
