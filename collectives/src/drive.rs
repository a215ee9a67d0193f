//! Runs streams to their end: tries, waits, and gives up at a deadline. The only place where a collective waits for bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuvec_transport::{Deadline, Error, Kind, Park, Peer, Result, Wake, wait_any};

use crate::control::{Control, GroupState};

/// A stream that is moved on by tries that never block.
pub(crate) trait Task {
    /// Moves what can be moved now; whether anything was.
    fn step(&mut self) -> Result<bool>;
    /// Whether it is at its end.
    fn done(&self) -> bool;
    /// What it waits for.
    fn parks<'a>(&'a self, parks: &mut Vec<Park<'a>>);
    /// Every rank that it waits for now.
    fn waits(&self, ranks: &mut Vec<usize>);
    /// Whom it sends to, each with for how long it has acknowledged nothing ([`Sender::unacknowledged`]).
    fn unacknowledged<'a>(&'a self, _peers: &mut Vec<(&'a Peer, Duration)>) {}
    /// Whom it waits for in the first place, and how far it came.
    fn awaited(&self) -> Awaited<'_>;
}

/// What an unfinished task waits for.
pub(crate) struct Awaited<'a> {
    pub(crate) peer: &'a Peer,
    /// What the peer does not do.
    pub(crate) what: &'static str,
    pub(crate) lane: Option<usize>,
    /// Of how many bytes how many were moved.
    pub(crate) progress: Option<(usize, usize)>,
}

/// The peer sends none of the bytes that are waited for.
pub(crate) const SENT_NOTHING: &str = "sent nothing";
/// The peer takes none of the bytes that wait for it.
pub(crate) const TOOK_NOTHING: &str = "took nothing";

/// How long bytes may still be on their way from a rank that has left. A stream that ends says so sooner; there are
/// transports whose streams do not end with the peer.
pub(crate) const STRAGGLING: Duration = Duration::from_secs(2);

/// A peer that has acknowledged nothing for so long cannot be reached, if a call fails then.
const UNREACHABLE: Duration = Duration::from_secs(3);

/// How often a wait looks again that no control link wakes.
const LOOK: Duration = Duration::from_millis(250);

/// How long to try before sleeping, and how long to wait without progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) spin: Duration,
    pub(crate) timeout: Duration,
}

/// What a wait in a group's call looks at, and how long it lasts.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    pub(crate) group: &'a GroupState,
    pub(crate) control: &'a Control,
    /// Rings when the group fails, a stream or a ring has opened, or a rank has left.
    pub(crate) wake: &'a Arc<Wake>,
    pub(crate) limits: Limits,
}

impl Watch<'_> {
    /// The end of a wait that begins at `since`.
    fn deadline(&self, since: Instant) -> Deadline {
        since.checked_add(self.limits.timeout).map_or(Deadline::after(Duration::MAX), Deadline::at)
    }

    /// Waits for something that `get` finds without blocking, which rank `peer` must bring about; `late` says what it did
    /// not do. Once the peer has left, what is on its way still counts for `grace`. Errors: the peer has left; the group
    /// fails; the time-out passes; what was found is an error.
    pub(crate) fn until<T>(
        &self,
        peer: &Peer,
        late: &'static str,
        grace: Duration,
        mut get: impl FnMut() -> Option<Result<T>>,
    ) -> Result<T> {
        self.group.wait_for(&[peer.rank]);
        let mut deadline = self.deadline(Instant::now());
        let mut gone = false;
        loop {
            if let Some(found) = get() {
                return found;
            }
            self.group.check()?;
            if !gone && self.control.is_gone(peer.rank) {
                (gone, deadline) = (true, deadline.sooner(grace));
            }
            let look = if self.control.is_cut_off() { deadline.sooner(LOOK) } else { deadline };
            if !wait_any(&[self.wake.park()], look)? {
                if !deadline.expired() {
                    continue;
                }
                return Err(if gone {
                    has_left(peer)
                } else {
                    self.timed_out(&Awaited { peer, what: late, lane: None, progress: None })
                });
            }
            self.wake.drain();
        }
    }

    fn timed_out(&self, awaited: &Awaited<'_>) -> Error {
        let what = format!("{} for {:.1} s", awaited.what, self.limits.timeout.as_secs_f64());
        let mut error = Error::new(Kind::TimedOut, what)
            .with_peer(awaited.peer)
            .with_advice("raise the time-out if it is only slow");
        if let Some(lane) = awaited.lane {
            error = error.with_lane(lane);
        }
        match awaited.progress {
            Some((done, total)) => error.with_progress(done as u64, total as u64),
            None => error,
        }
    }
}

/// What to do about a rank that is not there any more.
pub(crate) const OUTPUT: &str = "see its own output";

/// The peer is not there any more.
pub(crate) fn has_left(peer: &Peer) -> Error {
    Error::new(Kind::PeerClosed, "has left").with_peer(peer).with_advice(OUTPUT)
}

/// Several threads that move one call's tasks: they end together when one fails, and none loses patience while another
/// moves bytes.
#[derive(Debug, Default)]
pub(crate) struct Team {
    halted: AtomicBool,
    moved: AtomicU64,
}

impl Team {
    /// Ends the others.
    pub(crate) fn halt(&self) {
        self.halted.store(true, Ordering::Release);
    }
}

/// Moves all `tasks` to their end in this thread: while nothing moves, it gives way to other threads for as long as it may
/// spin, then sleeps in poll(2). Errors: a task's own; the group's, if it fails meanwhile; a rank that is waited for has
/// left, and nothing of it is on its way any more; a time-out that names whom the first unfinished task waits for. Returns
/// early if the `team` is halted.
pub(crate) fn drive<T: Task>(tasks: &mut [T], watch: &Watch<'_>, team: &Team) -> Result<()> {
    // Since when nothing has moved, and since when a rank that is waited for is known to have left.
    let (mut idle_since, mut left_since) = (None, None);
    let mut moved = 0;
    let mut waits_told = false;
    let mut last_look = false;
    loop {
        let (progress, done) = match try_all(tasks) {
            Ok(tried) => tried,
            Err(e) => {
                watch.group.wait_for(&waits(tasks));
                return Err(if e.kind() == Kind::Unreachable { unreachable(tasks, watch).unwrap_or(e) } else { e });
            }
        };
        if done {
            return Ok(());
        }
        if progress {
            team.moved.fetch_add(1, Ordering::Relaxed);
            (idle_since, left_since, last_look) = (None, None, false);
            if std::mem::take(&mut waits_told) {
                watch.group.wait_for(&[]);
            }
            continue;
        }
        watch.group.check()?;
        if team.halted.load(Ordering::Acquire) {
            return Ok(());
        }
        let unfinished = || tasks.iter().filter(|t| !t.done());
        let now = Instant::now();
        let since = *idle_since.get_or_insert(now);
        if last_look {
            let left = watch.control.left(&waits(tasks));
            if let (Some(error), Some(deadline)) = (left, left_since)
                && straggling(deadline).expired()
            {
                return Err(error);
            }
            let moved_by_all = team.moved.load(Ordering::Relaxed);
            if moved_by_all == moved
                && watch.deadline(since).expired()
                && let Some(task) = unfinished().next()
            {
                return Err(unreachable(tasks, watch).unwrap_or_else(|| watch.timed_out(&task.awaited())));
            }
            (idle_since, last_look, moved) = (None, false, moved_by_all);
            continue;
        }
        if now.duration_since(since) < watch.limits.spin {
            std::thread::yield_now();
            continue;
        }
        let ranks = waits(tasks);
        if !std::mem::replace(&mut waits_told, true) {
            watch.group.wait_for(&ranks);
            moved = team.moved.load(Ordering::Relaxed);
        }
        let mut deadline = watch.deadline(since);
        if watch.control.left(&ranks).is_some() {
            deadline = deadline.min(straggling(*left_since.get_or_insert(now)));
        }
        let mut parks = vec![watch.wake.park()];
        unfinished().for_each(|task| task.parks(&mut parks));
        if wait_any(&parks, deadline)? {
            watch.wake.drain();
        }
        // What came at the deadline counts.
        last_look = deadline.expired();
    }
}

/// Moves what can be moved now: whether anything was, and whether all tasks are at their end.
fn try_all<T: Task>(tasks: &mut [T]) -> Result<(bool, bool)> {
    let (mut progress, mut done) = (false, true);
    for task in tasks.iter_mut().filter(|task| !task.done()) {
        progress |= task.step()?;
        done &= task.done();
    }
    Ok((progress, done))
}

/// Every rank that the unfinished of `tasks` wait for.
fn waits<T: Task>(tasks: &[T]) -> Vec<usize> {
    let mut ranks = Vec::new();
    tasks.iter().filter(|task| !task.done()).for_each(|task| task.waits(&mut ranks));
    ranks
}

/// Whom the links of this rank do not reach, if that is why nothing moves: one peer; or, if there are several and none is
/// reached, this rank itself is cut off, and its error names no peer.
fn unreachable<T: Task>(tasks: &[T], watch: &Watch<'_>) -> Option<Error> {
    let mut peers = Vec::new();
    tasks.iter().for_each(|task| task.unacknowledged(&mut peers));
    let patience = UNREACHABLE.min(watch.limits.timeout / 2);
    let &(first, silence) = peers.iter().find(|(_, silence)| *silence >= patience)?;
    let silence = silence.as_secs_f64();
    let cut_off =
        peers.iter().all(|(_, silence)| *silence >= patience) && peers.iter().any(|(peer, _)| peer.rank != first.rank);
    Some(if cut_off {
        Error::new(
            Kind::Unreachable,
            format!("reaches no other rank: none has acknowledged anything for {silence:.1} s"),
        )
        .with_advice("check this machine's cable and interface")
    } else {
        Error::new(Kind::Unreachable, format!("has acknowledged nothing for {silence:.1} s"))
            .with_peer(first)
            .with_advice("its machine, or the link to it, is down: check the cable")
    })
}

/// Until when bytes of a rank may come that is known to have left since `left`.
fn straggling(left: Instant) -> Deadline {
    Deadline::from(left, STRAGGLING)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends to these peers, which have acknowledged nothing for so many seconds.
    struct Sends(Vec<(Peer, u64)>);

    impl Task for Sends {
        fn step(&mut self) -> Result<bool> {
            Ok(false)
        }

        fn done(&self) -> bool {
            false
        }

        fn parks<'a>(&'a self, _: &mut Vec<Park<'a>>) {}

        fn waits(&self, ranks: &mut Vec<usize>) {
            ranks.extend(self.0.iter().map(|(peer, _)| peer.rank));
        }

        fn unacknowledged<'a>(&'a self, peers: &mut Vec<(&'a Peer, Duration)>) {
            peers.extend(self.0.iter().map(|(peer, seconds)| (peer, Duration::from_secs(*seconds))));
        }

        fn awaited(&self) -> Awaited<'_> {
            Awaited { peer: &self.0[0].0, what: SENT_NOTHING, lane: None, progress: None }
        }
    }

    /// What a time-out of a quarter of a second comes to: the error's kind, and the peer that it names.
    fn time_out(silences: &[(usize, u64)]) -> (Kind, Option<usize>) {
        let (group, control, wake) = (GroupState::default(), Control::new(), Arc::new(Wake::new().unwrap()));
        let limits = Limits { spin: Duration::ZERO, timeout: Duration::from_millis(250) };
        let watch = Watch { group: &group, control: &control, wake: &wake, limits };
        let sends = silences.iter().map(|&(rank, seconds)| (Peer::new(rank, "a"), seconds)).collect();
        let e = drive(&mut [Sends(sends)], &watch, &Team::default()).unwrap_err();
        (e.kind(), e.peer().map(|peer| peer.rank))
    }

    #[test]
    fn a_time_out_names_the_peer_that_acknowledges_nothing_and_none_where_nobody_does() {
        assert_eq!(time_out(&[(1, 0), (2, 0)]), (Kind::TimedOut, Some(1)));
        assert_eq!(time_out(&[(1, 0), (2, 9)]), (Kind::Unreachable, Some(2)));
        assert_eq!(time_out(&[(1, 9), (2, 9)]), (Kind::Unreachable, None));
        // Of two ranks either may be cut off: each names the other, however many connections there are.
        assert_eq!(time_out(&[(1, 9), (1, 9)]), (Kind::Unreachable, Some(1)));
    }
}
