//! The Abort message: a group has failed, and which rank failed first.
//!
//! ```text
//! type u8 = 1 · group u64 · first u32 · reporter u32 · kind u8 · sequence u64 (all ones: none) · text, at most 512 bytes
//! ```

use nuvec_transport::{Error, GroupId, Kind, Rejection, printable};

/// The message type.
const TYPE: u8 = 1;
/// The length of what precedes the text.
const FIXED: usize = 26;
/// The longest text, in bytes.
const MAX_TEXT: usize = 512;

/// A group's first failure, as one rank reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Abort {
    pub(super) group: GroupId,
    /// The rank that failed first.
    pub(super) first: u32,
    /// The rank that saw it.
    pub(super) reporter: u32,
    pub(super) kind: Kind,
    /// The reporter's operation.
    pub(super) sequence: Option<u64>,
    /// What happened; follows the name of the first rank.
    pub(super) text: String,
}

impl Abort {
    /// `error`, as `reporter` saw it. An error that names no peer is the reporter's own failure.
    pub(super) fn new(group: GroupId, reporter: usize, error: &Error) -> Self {
        let mut text = error.phrase();
        let mut end = text.len().min(MAX_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Self {
            group,
            first: error.peer().map_or(reporter, |p| p.rank) as u32,
            reporter: reporter as u32,
            kind: error.kind(),
            sequence: error.operation().map(|o| o.1),
            text,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut m = vec![TYPE];
        m.extend(self.group.0.to_le_bytes());
        m.extend(self.first.to_le_bytes());
        m.extend(self.reporter.to_le_bytes());
        m.push(code(self.kind));
        m.extend(self.sequence.unwrap_or(u64::MAX).to_le_bytes());
        m.extend(self.text.as_bytes());
        m
    }

    /// The Abort in `message`, if it is one. Text from another process is made printable.
    pub(super) fn decode(message: &[u8]) -> Option<Self> {
        let (fixed, text) = message.split_at_checked(FIXED)?;
        if fixed[0] != TYPE {
            return None;
        }
        let text = String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]);
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| fixed[at + i]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| fixed[at + i]));
        Some(Self {
            group: GroupId(word(1)),
            first: half(9),
            reporter: half(13),
            kind: KINDS.get(usize::from(fixed[17])).copied().unwrap_or(Kind::Io),
            sequence: Some(word(18)).filter(|&s| s != u64::MAX),
            text: printable(&text),
        })
    }
}

/// Every kind, by its code on the wire.
const KINDS: [Kind; 23] = [
    Kind::Io,
    Kind::PeerClosed,
    Kind::Reset,
    Kind::TimedOut,
    Kind::Mismatch,
    Kind::Exhausted,
    Kind::Device,
    Kind::Unsupported,
    Kind::Misuse,
    Kind::Poisoned,
    Kind::Closed,
    Kind::Rejected(Rejection::Version),
    Kind::Rejected(Rejection::Key),
    Kind::Rejected(Rejection::Size),
    Kind::Rejected(Rejection::Connections),
    Kind::Rejected(Rejection::NotMe),
    Kind::Rejected(Rejection::Name),
    Kind::Rejected(Rejection::Session),
    Kind::Rejected(Rejection::Taken),
    Kind::Rejected(Rejection::NotYet),
    Kind::Rejected(Rejection::Busy),
    Kind::Rejected(Rejection::NotNuvec),
    Kind::Unreachable,
];

fn code(kind: Kind) -> u8 {
    KINDS.iter().position(|&k| k == kind).unwrap_or(0) as u8
}

#[cfg(test)]
mod tests {
    use nuvec_transport::{MAX_CONTROL_MESSAGE, Peer};

    use super::*;

    #[test]
    fn an_abort_survives_the_wire() {
        for kind in KINDS {
            let e =
                Error::new(kind, "closed the connection").with_peer(&Peer::new(3, "a")).with_operation("all_sum", 9);
            let abort = Abort::new(GroupId(5), 1, &e);
            assert_eq!(Abort::decode(&abort.encode()), Some(abort));
        }
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_and_the_message_fits() {
        let e = Error::new(Kind::Io, "ä".repeat(2000));
        let abort = Abort::new(GroupId(0), 2, &e);
        assert_eq!(abort.first, 2);
        assert!(abort.text.len() <= MAX_TEXT && abort.encode().len() <= MAX_CONTROL_MESSAGE);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_an_abort_or_not_and_its_text_is_one_line(bytes: Vec<u8>, typed: bool) {
            let mut bytes = bytes;
            if let (true, Some(first)) = (typed, bytes.first_mut()) {
                *first = TYPE;
            }
            if let Some(abort) = Abort::decode(&bytes) {
                proptest::prop_assert_eq!(printable(&abort.text), abort.text);
            }
        }
    }
}
