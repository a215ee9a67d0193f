//! What a link can complain about. Who the peer is, the endpoint adds.

use std::fmt;
use std::time::Duration;

/// Why a link cannot go on. `Display` continues a sentence that begins with the peer's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The device offers less than the protocol needs.
    TooSmall {
        /// What there is too little of.
        what: &'static str,
        /// How much there is.
        offered: usize,
        /// How much it takes.
        least: usize,
    },
    /// A message that no correct peer sends.
    Broken {
        /// What about the message is wrong.
        what: &'static str,
        /// The value in the message.
        found: u64,
        /// The value that was expected, or the greatest that is allowed.
        expected: u64,
    },
    /// UC: questions brought nothing on.
    Silent {
        /// How many questions were sent since the last progress.
        questions: u32,
        /// How long ago the last progress was.
        waited: Duration,
        /// Data messages that are not acknowledged.
        unacknowledged: u64,
    },
    /// UC: the same message was lost again and again.
    Lossy {
        /// How often it was resent.
        resends: u32,
        /// Its number.
        sequence: u64,
    },
    /// The device, or the endpoint, named a slot that is not where it should be.
    Slot {
        /// What was said of it: "a send from".
        what: &'static str,
        /// Its index.
        slot: usize,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall { what, offered, least } => {
                write!(f, "can be offered only {offered} {what}, and the protocol needs {least}")
            }
            Self::Broken { what, found, expected } => {
                write!(f, "broke the protocol: {what} is {found}, where {expected} was expected")
            }
            Self::Silent { questions, waited, unacknowledged } => {
                let waited = waited.as_secs_f64();
                write!(f, "gave no sign of progress for {waited:.1} s although asked {questions} times; ")?;
                write!(f, "{unacknowledged} messages to it are unacknowledged")
            }
            Self::Lossy { resends, sequence } => {
                write!(
                    f,
                    "did not get message {sequence} although it was sent again {resends} times: the link loses too much"
                )
            }
            Self::Slot { what, slot } => {
                write!(f, "has a queue pair for which {what} slot {slot} was reported, where none was under way")
            }
        }
    }
}
