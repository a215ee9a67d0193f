//! [`Inbox`]: the message that a side is reading. Both sides read by it; what a message means is theirs to say.

use super::message::{HEADER, LONGEST};
use super::{MAGIC, NOT_NUVEC, TOO_MUCH};

/// The bytes of the message that is being read, and how many it will have: never more than a header and [`LONGEST`].
pub(super) struct Inbox {
    pub(super) bytes: Vec<u8>,
    want: usize,
    /// Whether the message begins with magic.
    magic: bool,
}

impl Inbox {
    /// Expects a hello's first message, of which the header comes first.
    pub(super) fn new() -> Self {
        let mut inbox = Self { bytes: Vec::new(), want: 0, magic: true };
        inbox.expect_further(HEADER);
        inbox
    }

    /// Begins a new message of `length` bytes, without a header; 0 once there is nothing more to read.
    pub(super) fn expect(&mut self, length: usize) {
        self.bytes.clear();
        (self.want, self.magic) = (0, false);
        self.expect_further(length);
    }

    /// Goes on with the message for another `length` bytes.
    pub(super) fn expect_further(&mut self, length: usize) {
        self.want += length.min(LONGEST);
        self.bytes.reserve_exact(self.want - self.bytes.len());
    }

    /// How many bytes of it are missing.
    pub(super) fn needs(&self) -> usize {
        self.want - self.bytes.len()
    }

    /// Takes bytes that were read; whether they make what is expected whole. Errors: why they are no part of a hello.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<bool, &'static str> {
        if bytes.len() > self.needs() {
            return Err(TOO_MUCH);
        }
        self.bytes.extend_from_slice(bytes);
        // Asked at every byte, since a stranger may send fewer bytes than a header has and wait for an answer.
        if self.magic && self.bytes.iter().zip(&MAGIC).any(|(byte, magic)| byte != magic) {
            return Err(NOT_NUVEC);
        }
        Ok(!bytes.is_empty() && self.needs() == 0)
    }
}
