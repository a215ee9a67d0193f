//! Several threads for one group's large messages: lanes are shared out over a pool that is made on first need.

use std::sync::Arc;

use nuvec_transport::{Error, Kind, Result, Wake};
use parking_lot::Mutex;
use rayon_core::{ThreadPool, ThreadPoolBuilder};

use crate::control::GroupState;
use crate::drive::{Halt, Limits, Task, drive};

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

    /// Moves `tasks` to their end, as [`drive`] does, in as many threads as there are tasks and threads for.
    pub(crate) fn drive<T: Task + Send>(
        &mut self,
        tasks: &mut [T],
        limits: Limits,
        group: &GroupState,
        wake: &Wake,
    ) -> Result<()> {
        let halt = Halt::default();
        if self.threads.min(tasks.len()) < 2 {
            return drive(tasks, limits, group, wake, &halt);
        }
        let Pool { threads, wakes } = match &mut self.pool {
            Some(pool) => pool,
            empty => empty.insert(Pool::new(self.threads - 1, group)?),
        };
        let per = tasks.len().div_ceil(self.threads);
        let (mine, others) = tasks.split_at_mut(per);
        let first = Mutex::new(None);
        let fail = |e: Error| {
            first.lock().get_or_insert(e);
            halt.set();
            wake.notify();
            wakes.iter().for_each(|w| w.notify());
        };
        threads.in_place_scope(|scope| {
            for (tasks, wake) in others.chunks_mut(per).zip(wakes.iter()) {
                let (halt, fail) = (&halt, &fail);
                scope.spawn(move |_| {
                    if let Err(e) = drive(tasks, limits, group, wake, halt) {
                        fail(e);
                    }
                });
            }
            if let Err(e) = drive(mine, limits, group, wake, &halt) {
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
