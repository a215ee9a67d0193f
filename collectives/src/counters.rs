//! What a group has done so far, counted without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// The running counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    operations: AtomicU64,
    bytes: AtomicU64,
}

/// How much a group has done on this rank.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Calls that ended well: collectives and messages.
    pub operations: u64,
    /// The bytes of this rank's data in those calls (of a gather: of its input).
    pub bytes: u64,
    /// How often a call slept because it waited for each rank of the group.
    pub waits: Vec<u64>,
}

impl Counters {
    /// A call on `bytes` ended well.
    pub(crate) fn ended(&self, bytes: u64) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The counts, with how often a call waited for each rank.
    pub(crate) fn read(&self, waits: Vec<u64>) -> Counts {
        let load = |a: &AtomicU64| a.load(Ordering::Relaxed);
        Counts { operations: load(&self.operations), bytes: load(&self.bytes), waits }
    }
}
