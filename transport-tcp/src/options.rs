//! [`Options`]: what the ranks of a group agree on beside their addresses.

use std::time::Duration;

use crate::Key;

/// How a group forms. Everything but `timeout` and `verbose` must be the same on every rank.
///
/// ```
/// use nuvec_transport_tcp::{Key, Options};
/// use std::time::Duration;
/// let key = Key::new(b"32 random bytes are a good key..").unwrap();
/// let options = Options::default().timeout(Duration::from_secs(60)).key(key).name("experiment 7");
/// assert_eq!(options.timeout, Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The longest that forming may take. The group's own time-out is the largest that any rank has
    /// ([`TcpFabric::group_timeout`](crate::TcpFabric::group_timeout)).
    pub timeout: Duration,
    pub(crate) key: Option<Key>,
    pub(crate) name: String,
    pub(crate) verbose: bool,
}

impl Default for Options {
    /// A time-out of 30 s, no key, an empty name.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), key: None, name: String::new(), verbose: false }
    }
}

impl Options {
    /// The longest that forming may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The secret that every rank must prove to have. See [`Key`] for what it does and what it does not.
    pub fn key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// The group's name: ranks of groups with different names refuse each other. Empty by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Logs the steps of connecting at level `info` rather than `debug`.
    pub fn verbose(mut self, verbose: bool) -> Self {
        self.verbose = verbose;
        self
    }
}
