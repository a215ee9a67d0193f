//! Several threads for one group's large messages: lanes are shared out over a pool that is made on first need.

use std::sync::Arc;

use nuvec_transport::{Error, Kind, Result, Wake};
use parking_lot::Mutex;
use rayon_core::{ThreadPool, ThreadPoolBuilder};

use crate::control::GroupState;
use crate::drive::{Task, Team, Watch, drive};

/// A message is worth several threads from this many bytes on.
const THREADED: u64 = 4 << 20;

/// Up to `threads` threads, the caller's included.
pub(crate) struct Workers {
    threads: usize,
    pool: Option<Pool>,
}

/// The other threads, each with a doorbell of its own.
struct Pool {
    threads: ThreadPool,
    wakes: Vec<Arc<Wake>>,
}

impl Workers {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads: threads.max(1), pool: None }
    }

    /// Moves `tasks`, a call on `bytes`, to their end, as [`drive`] does: in this thread, or in as many as there are tasks
    /// and threads for when that is worth it.
    pub(crate) fn drive<T: Task + Send>(&mut self, tasks: &mut [T], bytes: u64, watch: &Watch<'_>) -> Result<()> {
        if bytes < THREADED || self.threads.min(tasks.len()) < 2 {
            return drive(tasks, watch, &Team::default());
        }
        let pool = match self.pool.take() {
            Some(pool) => Ok(pool),
            None => Pool::new(self.threads - 1, watch.group),
        };
        let Pool { threads, wakes } = match pool {
            Ok(pool) => self.pool.insert(pool),
            Err(e) => {
                tracing::warn!("one thread moves everything from now on: {e}");
                self.threads = 1;
                return drive(tasks, watch, &Team::default());
            }
        };
        let per = tasks.len().div_ceil(self.threads);
        let (mine, others) = tasks.split_at_mut(per);
        let (first, team) = (Mutex::new(None), Team::default());
        let fail = |e: Error| {
            first.lock().get_or_insert(e);
            team.halt();
            watch.wake.notify();
            wakes.iter().for_each(|w| w.notify());
        };
        threads.in_place_scope(|scope| {
            for (tasks, wake) in others.chunks_mut(per).zip(wakes.iter()) {
                let (team, fail) = (&team, &fail);
                let watch = Watch { wake, ..*watch };
                scope.spawn(move |_| {
                    if let Err(e) = drive(tasks, &watch, team) {
                        fail(e);
                    }
                });
            }
            if let Err(e) = drive(mine, watch, &team) {
                fail(e);
            }
        });
        first.into_inner().map_or(Ok(()), Err)
    }
}

impl Pool {
    fn new(threads: usize, group: &GroupState) -> Result<Self> {
        let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("nuvec-lane-{i}")).build();
        let pool = pool.map_err(|e| Error::new(Kind::Exhausted, format!("cannot start threads for the lanes: {e}")))?;
        let wakes = (0..threads).map(|_| Wake::new().map(Arc::new)).collect::<Result<Vec<_>>>()?;
        wakes.iter().for_each(|wake| group.watch(wake));
        Ok(Self { threads: pool, wakes })
    }
}
