//! A call as it stands on the wire: the 32-byte header before each lane's stream, by which two ranks in different calls
//! find out before any data is used.
//!
//! ```text
//! group u64 · sequence u64 · bytes u64 · operation u8 · reduction u8 · dtype u8 · algorithm u8 · lane u16 · root u16
//! ```
//! All little-endian. `reduction` and `dtype` are 0 where the operation has none.

use std::fmt;

use nuvec_transport::GroupId;

use crate::{DType, Reduction};

/// The header's length in bytes.
pub(crate) const HEADER: usize = 32;

/// A collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    AllReduce = 1,
    AllGather = 2,
    ReduceScatter = 3,
    Broadcast = 4,
    Barrier = 5,
    /// What the ranks of a group tell each other when it is split: an all-gather, and never the program's own.
    Split = 6,
}

/// How an operation is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Algorithm {
    /// Round the ring.
    Ring = 1,
    /// Everybody's data both ways round the ring.
    BothWays = 2,
    /// Over a mesh, each rank's data to every other.
    Direct = 3,
    /// Over a mesh, to each rank its block, or from it, or both.
    Blocks = 4,
}

/// One call of a collective: what all ranks must agree about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// The rank in the group that makes it; not on the wire.
    pub(crate) caller: usize,
    pub(crate) group: GroupId,
    pub(crate) sequence: u64,
    /// The bytes of one rank's input.
    pub(crate) bytes: u64,
    pub(crate) operation: Operation,
    pub(crate) reduction: Option<(Reduction, DType)>,
    pub(crate) algorithm: Algorithm,
    pub(crate) root: u16,
}

impl Call {
    /// The header of this call's lane `lane`.
    pub(crate) fn header(&self, lane: usize) -> [u8; HEADER] {
        let mut h = [0; HEADER];
        h[..8].copy_from_slice(&self.group.0.to_le_bytes());
        h[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        h[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        h[24] = self.operation as u8;
        (h[25], h[26]) = self.reduction.map_or((0, 0), |(r, d)| (r.code(), d.code()));
        h[27] = self.algorithm as u8;
        h[28..30].copy_from_slice(&(lane as u16).to_le_bytes());
        h[30..].copy_from_slice(&self.root.to_le_bytes());
        h
    }

    /// What a rank does that is in this call.
    pub(crate) fn doing(&self) -> Doing {
        Doing::collective(self.operation, self.reduction.map(|r| r.0))
    }

    /// The operation's name.
    pub(crate) fn name(&self) -> &'static str {
        self.doing().name()
    }
}

/// What a rank does: the operation of a call, collective or not, as its name and its code in Status messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doing(u8);

/// Every operation's name as MLX says it, by its code; 0 is what this version does not know.
const NAMES: [&str; 14] = [
    "an operation of another version",
    "all_sum",
    "all_max",
    "all_min",
    "all_gather",
    "sum_scatter",
    "max_scatter",
    "min_scatter",
    "broadcast",
    "barrier",
    "send",
    "recv",
    "send (connecting)",
    "split",
];

impl Doing {
    pub(crate) const SEND: Self = Self(10);
    pub(crate) const RECV: Self = Self(11);
    /// A send whose stream does not stand yet.
    pub(crate) const CONNECT: Self = Self(12);
    #[cfg(test)]
    pub(crate) const ALL_SUM: Self = Self(1);

    pub(crate) fn collective(operation: Operation, reduction: Option<Reduction>) -> Self {
        let of_three = match reduction {
            Some(Reduction::Max) => 1,
            Some(Reduction::Min) => 2,
            _ => 0,
        };
        Self(match operation {
            Operation::AllReduce => 1 + of_three,
            Operation::AllGather => 4,
            Operation::ReduceScatter => 5 + of_three,
            Operation::Broadcast => 8,
            Operation::Barrier => 9,
            Operation::Split => 13,
        })
    }

    pub(crate) fn code(self) -> u8 {
        self.0
    }

    pub(crate) fn from_code(code: u8) -> Self {
        Self(if usize::from(code) < NAMES.len() { code } else { 0 })
    }

    pub(crate) fn name(self) -> &'static str {
        NAMES[usize::from(self.0)]
    }

    /// Whether it is point-to-point.
    pub(crate) fn is_message(self) -> bool {
        [Self::SEND, Self::RECV, Self::CONNECT].contains(&self)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.name(), self.sequence)?;
        match (self.operation, self.reduction) {
            (Operation::Barrier | Operation::Split, _) => Ok(()),
            (Operation::Broadcast, _) => write!(f, " of {} bytes from rank {}", self.bytes, self.root),
            (_, Some((_, dtype))) => write!(f, " of {} {dtype}", self.bytes / dtype.size() as u64),
            (_, None) => write!(f, " of {} bytes", self.bytes),
        }
    }
}

/// What a peer's header says, for people: it may come from anything, so every value is possible.
pub(crate) fn describe(header: &[u8; HEADER]) -> String {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let operation = match header[24] {
        1 => Operation::AllReduce,
        2 => Operation::AllGather,
        3 => Operation::ReduceScatter,
        4 => Operation::Broadcast,
        5 => Operation::Barrier,
        6 => Operation::Split,
        _ => return "no call that this version knows".into(),
    };
    let call = Call {
        caller: 0,
        group: GroupId(word(0)),
        sequence: word(8),
        bytes: word(16),
        operation,
        reduction: Reduction::from_code(header[25]).zip(DType::from_code(header[26])),
        algorithm: Algorithm::Ring,
        root: u16::from_le_bytes([header[30], header[31]]),
    };
    call.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_code_of_its_own_and_a_name() {
        let operations = [
            Operation::AllReduce,
            Operation::AllGather,
            Operation::ReduceScatter,
            Operation::Broadcast,
            Operation::Barrier,
            Operation::Split,
        ];
        let mut codes = vec![Doing::SEND.code(), Doing::RECV.code(), Doing::CONNECT.code()];
        for operation in operations {
            for reduction in [None, Some(Reduction::Max), Some(Reduction::Min)] {
                let doing = Doing::collective(operation, reduction);
                assert_eq!(Doing::from_code(doing.code()), doing);
                codes.push(doing.code());
            }
        }
        codes.sort_unstable();
        codes.dedup();
        assert!(codes.iter().all(|&c| c > 0));
        assert_eq!(Doing::collective(Operation::ReduceScatter, Some(Reduction::Min)).name(), "min_scatter");
        assert_eq!(Doing::SEND.name(), "send");
        assert_eq!(Doing::from_code(200).name(), "an operation of another version");
    }

    #[test]
    fn every_difference_between_two_calls_shows_in_the_header() {
        let call = Call {
            caller: 0,
            group: GroupId(0),
            sequence: 5,
            bytes: 16,
            operation: Operation::AllReduce,
            reduction: Some((Reduction::Sum, DType::F32)),
            algorithm: Algorithm::Ring,
            root: 0,
        };
        let others = [
            Call { group: GroupId(1), ..call },
            Call { sequence: 6, ..call },
            Call { bytes: 32, ..call },
            Call { operation: Operation::ReduceScatter, ..call },
            Call { reduction: Some((Reduction::Max, DType::F32)), ..call },
            Call { reduction: Some((Reduction::Sum, DType::I32)), ..call },
            Call { reduction: None, ..call },
            Call { algorithm: Algorithm::BothWays, ..call },
            Call { algorithm: Algorithm::Direct, ..call },
            Call { algorithm: Algorithm::Blocks, ..call },
            Call { root: 1, ..call },
        ];
        for other in others {
            assert_ne!(call.header(0), other.header(0), "{other}");
        }
        assert_ne!(call.header(0), call.header(1));
        assert_eq!(describe(&call.header(0)), "all_sum #5 of 4 float32");
        assert_eq!(describe(&[0xff; HEADER]), "no call that this version knows");
    }
}
