//! [`Options`]: how a group forms and waits.

use std::time::Duration;

use nuvec_launch_env::{Key, Settings, WireName};

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
    /// rank that it waited for. Default 30 s. A group uses the largest of its ranks'; on
    /// MLX's wire every rank its own.
    pub timeout: Duration,
    pub(crate) wire: Wire,
    pub(crate) key: Option<Key>,
    pub(crate) name: String,
    pub(crate) spin: Option<Duration>,
    pub(crate) verbose: bool,
}

/// What the ranks of a ring speak to each other: the same on every rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wire {
    /// This project's own protocol: there may be a key, calls that differ are found, a failure names the rank that failed
    /// first, groups split, and every operation works between any ranks.
    #[default]
    Native,
    /// MLX's protocol, byte for byte (MLX 0.32): the other ranks may be unmodified MLX programs, in Python or C++.
    ///
    /// It has less: no key (one is an error), no name, no split, no barrier, and no status of other ranks. Ranks in
    /// different calls get wrong data or wait until the time-out. A rank that loses a neighbour names that one, which is
    /// not always the rank that failed first. In `all_max` and `all_min` a rank's own NaN stays and one that it receives
    /// is dropped, as MLX has it. `send` and `recv` work between neighbours in the ring only; and nuvec's put a header
    /// before the data, which MLX's do not, so they do not join a rank of nuvec and one of MLX. The other collectives do.
    Mlx,
}

impl From<WireName> for Wire {
    fn from(name: WireName) -> Self {
        match name {
            WireName::Native => Self::Native,
            WireName::Mlx => Self::Mlx,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            wire: Wire::Native,
            key: None,
            name: String::new(),
            spin: None,
            verbose: false,
        }
    }
}

impl Options {
    /// Sets the time-out.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets what the ranks speak to each other. Default [`Wire::Native`].
    pub fn wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
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
            wire: settings.wire.map_or(Wire::Native, Wire::from),
            key: settings.key,
            name: settings.name.unwrap_or_default(),
            spin: settings.spin,
            verbose: settings.verbose,
        }
    }
}
