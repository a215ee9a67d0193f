//! Runs streams to their end: tries, waits, and gives up at a deadline. The only place where a collective waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nuvec_transport::{Deadline, Error, Kind, Park, Peer, Result, Wake, wait_any};

use crate::control::GroupState;

/// A stream that is moved on by tries that never block.
pub(crate) trait Task {
    /// Moves what can be moved now; whether anything was.
    fn step(&mut self) -> Result<bool>;
    /// Whether it is at its end.
    fn done(&self) -> bool;
    /// What it waits for.
    fn parks<'a>(&'a self, parks: &mut Vec<Park<'a>>);
    /// Whom it waits for, and with how many of how many bytes moved.
    fn awaited(&self) -> Awaited<'_>;
    /// Every rank that it waits for now.
    fn waits(&self, ranks: &mut Vec<usize>);
}

/// What an unfinished task waits for.
pub(crate) struct Awaited<'a> {
    pub(crate) peer: &'a Peer,
    /// What the peer does not do: "sent nothing", "took nothing".
    pub(crate) what: &'static str,
    pub(crate) lane: usize,
    pub(crate) done: u64,
    pub(crate) total: u64,
}

/// How long to try before sleeping, and how long to wait without progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) spin: Duration,
    pub(crate) timeout: Duration,
}

/// Waits between tries that moved nothing: first by giving way to other threads, then by sleeping in poll(2).
#[derive(Debug)]
pub(crate) struct Patience {
    limits: Limits,
    last_progress: Option<Instant>,
}

impl Patience {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, last_progress: None }
    }

    /// Something moved.
    pub(crate) fn progress(&mut self) {
        self.last_progress = None;
    }

    /// Nothing moved: whether it is time to sleep rather than to try again.
    pub(crate) fn is_over(&mut self) -> bool {
        let now = Instant::now();
        now.duration_since(*self.last_progress.get_or_insert(now)) >= self.limits.spin
    }

    /// Waits until one of `parks` may be ready. `false`: the time-out is over.
    pub(crate) fn sleep<'a>(&mut self, wake: &'a Wake, parks: impl FnOnce(&mut Vec<Park<'a>>)) -> Result<bool> {
        let since = *self.last_progress.get_or_insert_with(Instant::now);
        let deadline = since.checked_add(self.limits.timeout).map_or(Deadline::after(Duration::MAX), Deadline::at);
        let mut all = vec![wake.park()];
        parks(&mut all);
        let ready = wait_any(&all, deadline)?;
        if ready {
            wake.drain();
        }
        Ok(ready && !deadline.expired())
    }
}

/// Who else must stop when one thread's streams fail.
#[derive(Debug, Default)]
pub(crate) struct Halt(AtomicBool);

impl Halt {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Moves all `tasks` to their end in this thread. Errors: a task's own; the group's, if it is poisoned meanwhile; a
/// time-out that names whom the first unfinished task waits for.
pub(crate) fn drive<T: Task>(
    tasks: &mut [T],
    limits: Limits,
    group: &GroupState,
    wake: &Wake,
    halt: &Halt,
) -> Result<()> {
    let mut patience = Patience::new(limits);
    let mut waits_told = false;
    loop {
        let (mut progress, mut done) = (false, true);
        for task in tasks.iter_mut() {
            if !task.done() {
                progress |= task.step()?;
                done &= task.done();
            }
        }
        if done {
            return Ok(());
        }
        if progress {
            patience.progress();
            if std::mem::take(&mut waits_told) {
                group.wait_for(&[]);
            }
            continue;
        }
        group.check()?;
        if halt.0.load(Ordering::Acquire) {
            return Ok(());
        }
        if !patience.is_over() {
            std::thread::yield_now();
            continue;
        }
        let unfinished = || tasks.iter().filter(|t| !t.done());
        if !std::mem::replace(&mut waits_told, true) {
            let mut ranks = Vec::new();
            unfinished().for_each(|task| task.waits(&mut ranks));
            group.wait_for(&ranks);
        }
        if !patience.sleep(wake, |parks| unfinished().for_each(|task| task.parks(parks)))? {
            // A last look: what came at the deadline counts.
            let late = tasks.iter_mut().find(|t| !t.done());
            if let Some(task) = late
                && !task.step()?
            {
                return Err(timed_out(&task.awaited(), limits.timeout));
            }
            patience.progress();
        }
    }
}

fn timed_out(awaited: &Awaited<'_>, timeout: Duration) -> Error {
    Error::new(Kind::TimedOut, format!("{} for {:.1} s", awaited.what, timeout.as_secs_f64()))
        .with_peer(awaited.peer)
        .with_lane(awaited.lane)
        .with_progress(awaited.done, awaited.total)
        .with_advice("raise NUVEC_DISTRIBUTED_TIMEOUT if it is only slow")
}
