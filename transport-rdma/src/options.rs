//! [`Options`]: how the ranks of a group are connected, beside where they are.

use std::sync::Arc;
use std::time::Duration;

use nuvec_transport_tcp::Key;

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

/// How a group forms. `key` and `name` must be the same on every rank; of `depth` and `message`, what the two ends of a
/// channel use is the smaller.
///
/// ```
/// use nuvec_transport_rdma::Options;
/// use std::time::Duration;
/// let options = Options::default().timeout(Duration::from_secs(60)).name("experiment 7").gid_index(3);
/// assert_eq!(options.timeout, Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The longest that forming may take, and that an operation waits without progress: of a group, the largest that any
    /// rank has.
    pub timeout: Duration,
    pub(crate) bootstrap: nuvec_transport_tcp::Options,
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
    /// A time-out of 30 s, no key, an empty name, reliable queue pairs where there are any, the best GID, 32 messages in
    /// flight, of 32 KiB (on macOS 4 KiB).
    fn default() -> Self {
        let bootstrap = nuvec_transport_tcp::Options::default();
        Self {
            timeout: bootstrap.timeout,
            bootstrap,
            queue_pairs: QueuePairs::Any,
            gid_index: None,
            depth: DEPTH,
            message: MESSAGE,
            verbs: None,
        }
    }
}

impl Options {
    /// The longest that forming may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self.bootstrap = self.bootstrap.timeout(timeout);
        self
    }

    /// The secret that every rank must prove to have, to rank 0. It does not protect what goes over RDMA.
    pub fn key(mut self, key: Key) -> Self {
        self.bootstrap = self.bootstrap.key(key);
        self
    }

    /// The group's name: ranks of groups with different names refuse each other. Empty by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.bootstrap = self.bootstrap.name(name);
        self
    }

    /// Logs the steps of connecting at level `info` rather than `debug`.
    pub fn verbose(mut self, verbose: bool) -> Self {
        self.bootstrap = self.bootstrap.verbose(verbose);
        self
    }

    /// The type of queue pair. Both ends of a channel must use the same.
    pub fn queue_pairs(mut self, queue_pairs: QueuePairs) -> Self {
        self.queue_pairs = queue_pairs;
        self
    }

    /// The index of the GID to use, of every device, instead of the best one.
    pub fn gid_index(mut self, index: u32) -> Self {
        self.gid_index = Some(index);
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
