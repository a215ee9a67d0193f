//! [`Options`]: how a group forms and waits.

use std::time::Duration;

use nuvec_launch_env::{Key, Settings};

/// Options of [`init_with`](crate::init_with). [`init`](crate::init) takes them from the environment.
///
/// ```
/// use std::time::Duration;
/// let options = nuvec_distributed::Options::default().timeout(Duration::from_secs(60)).key([7; 32]);
/// assert!(!format!("{options:?}").contains('7'));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The longest that connecting, or an operation without progress, waits before it fails with an error that names the
    /// rank that it waited for. Default 30 s. A group uses the largest of its ranks'.
    pub timeout: Duration,
    pub(crate) key: Option<Key>,
    pub(crate) name: String,
    pub(crate) spin: Option<Duration>,
    pub(crate) verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), key: None, name: String::new(), spin: None, verbose: false }
    }
}

impl Options {
    /// Sets the time-out.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the secret that every rank must have: at least 16 bytes, better 32 random ones. Connecting fails with a
    /// shorter one.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.key = Some(Key::new(key.as_ref()));
        self
    }

    /// Sets the group's name: groups of different names refuse each other. Default empty.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets how long an operation tries after the last progress before it sleeps; zero is never. Default 50 µs.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Logs the steps of connecting at level `info` rather than `debug`.
    pub fn verbose(mut self, verbose: bool) -> Self {
        self.verbose = verbose;
        self
    }
}

impl From<Settings> for Options {
    fn from(settings: Settings) -> Self {
        Self {
            timeout: settings.timeout.unwrap_or(Self::default().timeout),
            key: settings.key,
            name: settings.name.unwrap_or_default(),
            spin: settings.spin,
            verbose: settings.verbose,
        }
    }
}
