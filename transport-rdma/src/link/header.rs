//! The header of every message.
//!
//! ```text
//! sequence u64, acknowledged u64, limit u64, length u32, flags u16, mark u16      little-endian, 32 bytes
//! ```
//! What may not live here: what the numbers mean for a link's state.

use super::{Config, Fault};

/// Bytes of a header.
pub(crate) const HEADER: usize = 32;

/// The last two bytes of every header, so that another program's frames are told apart.
const MARK: u16 = u16::from_le_bytes(*b"n\xAC");

/// Bits of [`Header::flags`].
pub(super) mod flags {
    /// Carries no data and takes no number.
    pub(crate) const CONTROL: u16 = 1;
    /// Data are missing from `acknowledged` on: send again from there.
    pub(crate) const RESEND: u16 = 2;
    /// Answer at once.
    pub(crate) const ASK: u16 = 4;
    /// The stream ends with this data message.
    pub(crate) const END: u16 = 8;
    /// Whoever sends this reads no more.
    pub(crate) const STOPPED: u16 = 16;

    /// All of them.
    pub(super) const KNOWN: u16 = CONTROL | RESEND | ASK | END | STOPPED;
    /// Those that only make sense where messages may be lost.
    pub(super) const LOSS: u16 = RESEND | ASK;
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The number of this data message; of a control message, how many data messages were sent.
    pub(super) sequence: u64,
    /// How many data messages arrived in order.
    pub(super) acknowledged: u64,
    /// How many data messages the peer may ever send.
    pub(super) limit: u64,
    /// Bytes after the header.
    pub(super) length: u32,
    /// See [`flags`].
    pub(super) flags: u16,
}

impl Header {
    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.limit.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.flags.to_le_bytes());
        bytes[30..32].copy_from_slice(&MARK.to_le_bytes());
        bytes
    }

    /// Reads the header of a message that has `bytes` bytes in all. Errors: it does not hold together by itself.
    pub(super) fn decode(header: &[u8; HEADER], bytes: usize, config: &Config) -> Result<Self, Fault> {
        let broken = |what, found: u64, expected: u64| Err(Fault::Broken { what, found, expected });
        if bytes < HEADER {
            return broken("a message's length", bytes as u64, HEADER as u64);
        }
        if bytes > config.message {
            return broken("a message's length", bytes as u64, config.message as u64);
        }
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let this = Self {
            sequence: long(0),
            acknowledged: long(8),
            limit: long(16),
            length: u32::from_le_bytes(std::array::from_fn(|i| header[24 + i])),
            flags: short(28),
        };
        if short(30) != MARK {
            return broken("a header's mark", short(30).into(), MARK.into());
        }
        if usize::try_from(this.length) != Ok(bytes - HEADER) {
            return broken("the length in a header", this.length.into(), (bytes - HEADER) as u64);
        }
        let known = flags::KNOWN & if config.reliable { !flags::LOSS } else { !0 };
        if this.flags & !known != 0 {
            return broken("the flags in a header", this.flags.into(), (this.flags & known).into());
        }
        if this.has(flags::CONTROL) && (this.length != 0 || this.has(flags::END)) {
            return broken("the data's length in a control message", this.length.into(), 0);
        }
        if !this.has(flags::CONTROL) && !this.has(flags::END) && this.length == 0 {
            return broken("the data's length in a data message", 0, 1);
        }
        Ok(this)
    }
}
