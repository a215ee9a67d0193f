//! This project's own settings in the environment, none of which is needed for a launch.

use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Excerpt, Origin, Spot};
use crate::vars::{self, Vars};

const TIMEOUT: &str = "NUVEC_DISTRIBUTED_TIMEOUT";
const KEY: &str = "NUVEC_DISTRIBUTED_KEY";
const WIRE: &str = "NUVEC_DISTRIBUTED_WIRE";
const NAME: &str = "NUVEC_DISTRIBUTED_NAME";
const SPIN: &str = "NUVEC_DISTRIBUTED_SPIN_US";
const QUEUE_PAIRS: &str = "NUVEC_DISTRIBUTED_QUEUE_PAIRS";
const GID_INDEX: &str = "NUVEC_DISTRIBUTED_GID_INDEX";
const VERBOSE: &str = "MLX_RING_VERBOSE";

/// The longest time-out: 10⁹ seconds, about 31 years, which no clock's arithmetic overflows with.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(1_000_000_000);

/// The longest time to spin: 1 second.
pub const MAX_SPIN: Duration = Duration::from_secs(1);

/// The fewest bytes of a key.
pub const MIN_KEY_BYTES: usize = 16;

/// Settings that the environment may have, with or without a launch. `None` is a variable that is not set: the default
/// is for whoever uses the setting.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// `NUVEC_DISTRIBUTED_TIMEOUT`: the longest that connecting, or an operation without progress, waits. More than 0
    /// and at most [`MAX_TIMEOUT`]; the variable has seconds.
    pub timeout: Option<Duration>,
    /// `NUVEC_DISTRIBUTED_KEY`: the group's secret.
    pub key: Option<Key>,
    /// `NUVEC_DISTRIBUTED_WIRE`: what the ranks speak to each other.
    pub wire: Option<WireName>,
    /// `NUVEC_DISTRIBUTED_NAME`: the group's name, never empty, blanks and all.
    pub name: Option<String>,
    /// `NUVEC_DISTRIBUTED_SPIN_US`: for how long after the last progress a wait retries before it sleeps. At most
    /// [`MAX_SPIN`]; 0 is never. The variable has microseconds.
    pub spin: Option<Duration>,
    /// `NUVEC_DISTRIBUTED_QUEUE_PAIRS`: the type of JACCL's queue pairs.
    pub queue_pairs: Option<QueuePairsName>,
    /// `NUVEC_DISTRIBUTED_GID_INDEX`: which entry of its devices' GID tables JACCL uses.
    pub gid_index: Option<u32>,
    /// `MLX_RING_VERBOSE` is set, to whatever: the steps of connecting are logged.
    pub verbose: bool,
}

impl Settings {
    /// Reads the settings, launch or not.
    ///
    /// # Errors
    ///
    /// A variable is set to what it cannot be; the error shows the value (the key's excepted) and what it can be.
    pub(crate) fn read(vars: &dyn Vars) -> Result<Self, Error> {
        Ok(Self {
            timeout: parse(vars, TIMEOUT, "seconds, more than 0", parse_timeout)?,
            key: read_key(vars)?,
            wire: parse(vars, WIRE, "\"native\" or \"mlx\"", parse_wire)?,
            name: vars.get(NAME).map(|name| vars::text(NAME, name)).transpose()?.filter(|name| !name.is_empty()),
            spin: parse(vars, SPIN, "whole microseconds, or 0 for never", parse_spin)?,
            queue_pairs: parse(vars, QUEUE_PAIRS, "\"rc\" or \"uc\"", parse_queue_pairs)?,
            gid_index: parse(vars, GID_INDEX, "a whole number", parse_gid_index)?,
            verbose: vars.get(VERBOSE).is_some(),
        })
    }
}

/// The value of `name`, without the blanks around it, as `parse` understands it.
fn parse<T>(
    vars: &dyn Vars,
    name: &'static str,
    expected: &'static str,
    parse: impl Fn(&str) -> Result<T, ErrorKind>,
) -> Result<Option<T>, Error> {
    let Some(value) = vars.get(name) else { return Ok(None) };
    let text = vars::trimmed(name, value, expected)?;
    parse(&text).map(Some).map_err(|kind| Error::new(Origin::Variable(name), Spot::Whole, kind))
}

fn parse_timeout(text: &str) -> Result<Duration, ErrorKind> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match timeout {
        // Less than half a nanosecond is more than 0 all the same.
        Some(timeout) if timeout <= MAX_TIMEOUT => Ok(timeout.max(Duration::from_nanos(1))),
        _ => Err(ErrorKind::BadTimeout { value: Excerpt::new(text) }),
    }
}

fn parse_spin(text: &str) -> Result<Duration, ErrorKind> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse().map(Duration::from_micros) {
        Ok(spin) if digits && spin <= MAX_SPIN => Ok(spin),
        _ => Err(ErrorKind::BadSpin { value: Excerpt::new(text) }),
    }
}

fn parse_wire(text: &str) -> Result<WireName, ErrorKind> {
    match text {
        "native" => Ok(WireName::Native),
        "mlx" => Ok(WireName::Mlx),
        _ => Err(ErrorKind::BadWire { value: Excerpt::new(text) }),
    }
}

fn parse_queue_pairs(text: &str) -> Result<QueuePairsName, ErrorKind> {
    match text {
        "rc" => Ok(QueuePairsName::Reliable),
        "uc" => Ok(QueuePairsName::Unreliable),
        _ => Err(ErrorKind::BadQueuePairs { value: Excerpt::new(text) }),
    }
}

fn parse_gid_index(text: &str) -> Result<u32, ErrorKind> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let index = text.parse().ok().filter(|_| digits);
    index.ok_or_else(|| ErrorKind::BadGidIndex { value: Excerpt::new(text) })
}

fn read_key(vars: &dyn Vars) -> Result<Option<Key>, Error> {
    let Some(value) = vars.get(KEY) else { return Ok(None) };
    let key = Key::new(value.into_vec());
    match key.as_bytes().len() {
        0 => Err(vars::empty(KEY, "a key of at least 16 bytes (use 32 random ones)")),
        1..MIN_KEY_BYTES => Err(Error::new(Origin::Variable(KEY), Spot::Whole, ErrorKind::ShortKey)),
        _ => Ok(Some(key)),
    }
}

/// A group's secret: of a variable, its bytes as they stand, blanks and line ends too, and at least [`MIN_KEY_BYTES`].
///
/// Every copy is wiped when it is dropped; `Debug` says only that there is a key. (The environment itself keeps its own
/// copy, which no library can wipe.)
#[derive(Clone)]
pub struct Key(Zeroizing<Vec<u8>>);

impl Key {
    /// A key of these bytes, however few: whoever uses it refuses a short one.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(bytes.into()))
    }

    /// The secret.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What the ranks of a ring speak to each other, by the name that `NUVEC_DISTRIBUTED_WIRE` has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireName {
    /// Our own protocol.
    Native,
    /// MLX's, byte for byte, for a ring with MLX programs in it.
    Mlx,
}

/// The type of JACCL's queue pairs, by the name that `NUVEC_DISTRIBUTED_QUEUE_PAIRS` has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairsName {
    /// `rc`: the device resends what is lost.
    Reliable,
    /// `uc`: all that Thunderbolt has.
    Unreliable,
}
