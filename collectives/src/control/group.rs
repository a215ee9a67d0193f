//! Whether a group lives and what this rank does in it, for those who wait in one of its calls.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nuvec_transport::{Error, Result, Wake};
use parking_lot::Mutex;

use crate::call::Doing;

/// One group of this process.
#[derive(Debug, Default)]
pub(crate) struct GroupState {
    failure: OnceLock<Error>,
    wakes: Mutex<Vec<Arc<Wake>>>,
    calls: Mutex<Calls>,
}

/// What this rank does in the group.
#[derive(Debug, Default)]
struct Calls {
    current: Option<Current>,
    /// How often a call slept because it waited for each rank (among all).
    waits: BTreeMap<u32, u64>,
}

/// The call that is in progress.
#[derive(Debug)]
struct Current {
    doing: Doing,
    sequence: u64,
    waits: Vec<u32>,
    since: Instant,
}

impl GroupState {
    /// The failure, if the group has failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |e| Err(e.clone()))
    }

    /// Has `wake` rung when the group fails, or a rank leaves or reports what was asked for.
    pub(crate) fn watch(&self, wake: &Arc<Wake>) {
        self.wakes.lock().push(wake.clone());
        if self.failure.get().is_some() {
            wake.notify();
        }
    }

    /// Poisons the group unless it is; the failure that counts.
    pub(crate) fn poison(&self, error: Error) -> Error {
        let first = self.failure.get_or_init(|| error).clone();
        self.ring();
        first
    }

    /// Wakes whoever waits in a call of the group.
    pub(crate) fn ring(&self) {
        self.wakes.lock().iter().for_each(|w| w.notify());
    }

    /// A call begins.
    pub(crate) fn enter(&self, doing: Doing, sequence: u64) {
        self.enter_at(doing, sequence, Instant::now());
    }

    /// A call has begun at that time.
    pub(crate) fn enter_at(&self, doing: Doing, sequence: u64, since: Instant) {
        self.calls.lock().current = Some(Current { doing, sequence, waits: Vec::new(), since });
    }

    /// The call has ended.
    pub(crate) fn exit(&self) {
        self.calls.lock().current = None;
    }

    /// The call goes to sleep, waiting for these ranks (among all).
    pub(crate) fn wait_for(&self, ranks: &[usize]) {
        let Calls { current, waits } = &mut *self.calls.lock();
        if let Some(current) = current {
            current.waits.clear();
            for rank in ranks.iter().map(|&r| r as u32) {
                if !current.waits.contains(&rank) {
                    current.waits.push(rank);
                    *waits.entry(rank).or_default() += 1;
                }
            }
        }
    }

    /// The call in progress, its number, and the ranks that it waits for.
    pub(crate) fn current(&self) -> Option<(Doing, u64, Vec<u32>)> {
        self.calls.lock().current.as_ref().map(|c| (c.doing, c.sequence, c.waits.clone()))
    }

    /// The same, and when it began.
    pub(crate) fn current_since(&self) -> Option<(Doing, u64, Vec<u32>, Instant)> {
        self.calls.lock().current.as_ref().map(|c| (c.doing, c.sequence, c.waits.clone(), c.since))
    }

    /// How often a call slept because it waited for `rank` (among all).
    pub(crate) fn waits(&self, rank: usize) -> u64 {
        self.calls.lock().waits.get(&(rank as u32)).copied().unwrap_or(0)
    }
}
