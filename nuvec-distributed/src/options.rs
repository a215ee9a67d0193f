//! [`Options`]: how a group forms and waits.

use std::fmt;
use std::time::Duration;

use nuvec_launch_env::Settings;
use zeroize::Zeroizing;

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
    pub(crate) key: Option<Secret>,
    pub(crate) name: String,
    pub(crate) spin: Option<Duration>,
    pub(crate) verbose: bool,
}

/// A key's bytes: wiped on drop, shown nowhere.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) Zeroizing<Vec<u8>>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a key)")
    }
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
        self.key = Some(Secret(Zeroizing::new(key.as_ref().to_vec())));
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
        let mut options = Self::default().verbose(settings.verbose);
        options.timeout = settings.timeout.unwrap_or(options.timeout);
        options.spin = settings.spin;
        options.name = settings.name.unwrap_or_default();
        match settings.key {
            Some(key) => options.key(key.as_bytes()),
            None => options,
        }
    }
}
