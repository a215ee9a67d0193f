//! [`Options`]: how the ranks of a group are connected, beside where they are.

use std::sync::Arc;
use std::time::Duration;

use nuvec_transport_tcp as tcp;

use crate::sys::Verbs;

/// What joins two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Every two ranks, by one device each.
    Mesh,
    /// Each rank and its two neighbours, by equally many devices.
    Ring,
}

/// Which type of queue pair to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum QueuePairs {
    /// Reliable ones where the device offers them, else unreliable ones (Thunderbolt).
    #[default]
    Any,
    /// Reliable ones (RC): the device resends what is lost.
    Reliable,
    /// Unreliable ones (UC): this crate resends what is lost.
    Unreliable,
}

/// How a group forms: how its ranks meet over TCP, and what then joins them. Of `depth` and `message`, what the two ends of
/// a channel use is the smaller.
///
/// A time-out, a key and a name are options of the meeting. The key is proved to rank 0; it does not protect what goes over
/// RDMA.
///
/// ```
/// use nuvec_transport_rdma::Options;
/// use nuvec_transport_tcp as tcp;
/// use std::time::Duration;
/// let meeting = tcp::Options::default().timeout(Duration::from_secs(60)).name("experiment 7");
/// let options = Options::from(meeting).gid_index(3);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    pub(crate) bootstrap: tcp::Options,
    pub(crate) queue_pairs: QueuePairs,
    pub(crate) gid_index: Option<u32>,
    pub(crate) depth: usize,
    pub(crate) message: usize,
    /// What stands in for the system's library.
    pub(crate) verbs: Option<Arc<Verbs>>,
}

/// Apple's devices hold 32 work requests a queue.
const DEPTH: usize = 32;

/// Apple's devices take messages of 4 KiB before macOS 26.3.
const MESSAGE: usize = if cfg!(target_os = "macos") { 4 << 10 } else { 32 << 10 };

impl Default for Options {
    /// A time-out of 30 s, no key, an empty name, and the rest as [`Options::from`] has it.
    fn default() -> Self {
        Self::from(tcp::Options::default())
    }
}

impl From<tcp::Options> for Options {
    /// Meeting by these options: reliable queue pairs where there are any, the best GID, 32 messages in flight, of 32 KiB (on
    /// macOS 4 KiB).
    fn from(bootstrap: tcp::Options) -> Self {
        Self { bootstrap, queue_pairs: QueuePairs::Any, gid_index: None, depth: DEPTH, message: MESSAGE, verbs: None }
    }
}

impl Options {
    /// The longest that meeting, and then connecting, may take, and that an operation waits without progress: of a group, the
    /// largest that any rank has.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.bootstrap.timeout = timeout;
        self
    }

    /// The type of queue pair. Both ends of a channel must use the same.
    pub fn queue_pairs(mut self, queue_pairs: QueuePairs) -> Self {
        self.queue_pairs = queue_pairs;
        self
    }

    /// The index of the GID to use, of every device, instead of the best one (`None`).
    pub fn gid_index(mut self, index: impl Into<Option<u32>>) -> Self {
        self.gid_index = index.into();
        self
    }

    /// How many messages a queue pair holds in each direction. Memory for twice as many is locked for each channel.
    pub fn depth(mut self, messages: usize) -> Self {
        self.depth = messages;
        self
    }

    /// The longest message, in bytes, headers included.
    pub fn message(mut self, bytes: usize) -> Self {
        self.message = bytes;
        self
    }
}
