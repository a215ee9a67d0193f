//! Rings of groups of some of the ranks: what the service thread and the callers of the fabric share about them.
//!
//! As the root's ring, each is dialled to the right and taken from the left, but by the listeners and in the session that
//! stand already. The root's own ring is [`Forming`](crate::forming::Forming)'s business.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use nuvec_transport::{Deadline, Error, GroupId, Kind, Result, RingLinks, Wake};
use parking_lot::Mutex;

use crate::channel::TcpChannel;
use crate::context::Context;
use crate::forming::{in_order, with_notes};
use crate::refusals::{Refusal, Refusals};
use crate::streams::closed;

/// A neighbour in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Right,
    Left,
}

/// A ring that is being opened.
struct Opening {
    wake: Arc<Wake>,
    left: usize,
    began: Instant,
    deadline: Instant,
    to_right: Vec<Option<TcpChannel>>,
    from_left: Vec<Option<TcpChannel>>,
    refusals: Refusals,
}

enum Ring {
    Opening(Opening),
    /// Complete: it takes no other connection, even once one has ended.
    Complete {
        left: usize,
    },
}

#[derive(Default)]
struct State {
    ended: bool,
    /// A ring that failed is not among them: its group is as unknown as before.
    rings: HashMap<GroupId, Ring>,
    /// What nobody has taken.
    results: HashMap<GroupId, Result<RingLinks<TcpChannel>>>,
}

/// The rings of one fabric, except the root's.
pub(crate) struct Rings {
    connections: usize,
    state: Mutex<State>,
}

impl Rings {
    pub(crate) fn new(connections: usize) -> Self {
        Self { connections, state: Mutex::default() }
    }

    /// Notes that a ring is being opened, whose left neighbour is `left`; `false` if there is nothing to dial: it is
    /// being opened already, or it cannot be, and the result says why.
    pub(crate) fn begin(&self, group: GroupId, left: usize, wake: &Arc<Wake>, deadline: Deadline) -> bool {
        let mut state = self.state.lock();
        let State { ended, rings, results } = &mut *state;
        let refusal = match rings.get_mut(&group) {
            Some(Ring::Opening(opening)) => {
                opening.wake = Arc::clone(wake);
                return false;
            }
            Some(Ring::Complete { .. }) => Error::new(Kind::Misuse, "the ring of that group was opened before"),
            None if *ended => closed(),
            None => {
                let none = || (0..self.connections).map(|_| None).collect();
                let opening = Opening {
                    wake: Arc::clone(wake),
                    left,
                    began: Instant::now(),
                    deadline: deadline.instant(),
                    to_right: none(),
                    from_left: none(),
                    refusals: Refusals::default(),
                };
                rings.insert(group, Ring::Opening(opening));
                return true;
            }
        };
        // A ring that is complete and waits to be taken is not lost by asking twice.
        results.entry(group).or_insert(Err(refusal));
        wake.notify();
        false
    }

    /// Refuses to open a ring.
    pub(crate) fn refuse(&self, group: GroupId, wake: &Wake, error: Error) {
        self.state.lock().results.entry(group).or_insert(Err(error));
        wake.notify();
    }

    /// Takes a connection that stands; the last one completes the ring.
    pub(crate) fn connected(&self, group: GroupId, side: Side, index: usize, channel: TcpChannel) {
        let mut state = self.state.lock();
        let State { rings, results, .. } = &mut *state;
        let Some(ring) = rings.get_mut(&group) else { return };
        let Ring::Opening(opening) = ring else { return };
        let all = if side == Side::Right { &mut opening.to_right } else { &mut opening.from_left };
        let Some(slot) = all.get_mut(index) else { return };
        *slot = Some(channel);
        // One whose dialler left before it heard the answer: it comes again, and must find its place.
        for slot in &mut opening.from_left {
            slot.take_if(|channel| !channel.is_open());
        }
        if opening.to_right.iter().chain(&opening.from_left).any(Option::is_none) {
            return;
        }
        let take = |all: &mut Vec<Option<TcpChannel>>| all.drain(..).flatten().collect();
        let links = RingLinks { right: take(&mut opening.to_right), left: take(&mut opening.from_left) };
        results.insert(group, Ok(links));
        opening.wake.notify();
        *ring = Ring::Complete { left: opening.left };
    }

    /// Ends an opening with an error; its connections are closed.
    pub(crate) fn fail(&self, group: GroupId, error: Error) {
        self.state.lock().fail(group, error);
    }

    /// Takes the result of an opening, once there is one.
    pub(crate) fn opened(&self, group: GroupId) -> Option<Result<RingLinks<TcpChannel>>> {
        self.state.lock().results.remove(&group)
    }

    /// The rank whose connections the ring of that group takes; `None` for a group that is not known here.
    pub(crate) fn left(&self, group: GroupId) -> Option<usize> {
        match self.state.lock().rings.get(&group)? {
            Ring::Opening(Opening { left, .. }) | Ring::Complete { left } => Some(*left),
        }
    }

    /// Whether the left neighbour cannot have that connection: it holds it already, or the ring is complete, or gone.
    pub(crate) fn is_taken(&self, group: GroupId, index: usize) -> bool {
        match self.state.lock().rings.get(&group) {
            Some(Ring::Opening(Opening { from_left, .. })) => {
                from_left.get(index).and_then(Option::as_ref).is_some_and(TcpChannel::is_open)
            }
            Some(Ring::Complete { .. }) | None => true,
        }
    }

    /// Notes that a connection for a ring was refused.
    pub(crate) fn refused(&self, group: GroupId, refusal: Refusal) {
        if let Some(Ring::Opening(opening)) = self.state.lock().rings.get_mut(&group) {
            opening.refusals.add(refusal);
        }
    }

    /// When the first opening's time is up.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.state.lock().openings().map(|(_, opening)| opening.deadline).min()
    }

    /// The openings whose time is up.
    pub(crate) fn expired(&self, now: Instant) -> Vec<GroupId> {
        let state = self.state.lock();
        state.openings().filter(|(_, opening)| now >= opening.deadline).map(|(group, _)| group).collect()
    }

    /// Ends an opening whose time is up. `unreached` is why a dial to the right does not stand, if one does not.
    /// `shortage` is why connections could not be taken, if there is such a reason.
    pub(crate) fn time_out(
        &self,
        group: GroupId,
        context: &Context,
        unreached: Option<Error>,
        shortage: Option<String>,
        now: Instant,
    ) {
        let mut state = self.state.lock();
        let Some(Ring::Opening(opening)) = state.rings.get(&group) else { return };
        let error = with_notes(opening.timed_out(context, unreached, now), shortage);
        state.fail(group, error);
    }

    /// Forgets a group: gives up its opening, and closes what nobody took.
    pub(crate) fn leave(&self, group: GroupId) {
        let mut state = self.state.lock();
        state.rings.remove(&group);
        state.results.remove(&group);
    }

    /// The transport has ended: what is being opened fails, and waiters are woken.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let groups: Vec<GroupId> = state.rings.keys().copied().collect();
        groups.into_iter().for_each(|group| state.fail(group, closed()));
        state.rings.clear();
    }
}

impl State {
    fn openings(&self) -> impl Iterator<Item = (GroupId, &Opening)> {
        self.rings.iter().filter_map(|(group, ring)| match ring {
            Ring::Opening(opening) => Some((*group, opening)),
            Ring::Complete { .. } => None,
        })
    }

    fn fail(&mut self, group: GroupId, error: Error) {
        if let Some(Ring::Opening(opening)) = self.rings.get(&group) {
            self.results.insert(group, Err(error));
            opening.wake.notify();
            self.rings.remove(&group);
        }
    }
}

impl Opening {
    fn timed_out(&self, context: &Context, unreached: Option<Error>, now: Instant) -> Error {
        let there = self.from_left.iter().flatten().count();
        let owes = (there < self.from_left.len()).then(|| {
            let seconds = now.saturating_duration_since(self.began).as_secs_f64();
            let (all, rank) = (self.from_left.len(), context.rank);
            let what =
                format!("made {there} of {all} ring connections of a new group to rank {rank} within {seconds:.1} s");
            Error::new(Kind::TimedOut, what).with_peer(&context.peer(self.left, 0))
        });
        let refused = self.refusals.text(context.rank);
        // In a group of two it is the same rank, and the reason has been given.
        let same = |error: &Error| error.peer().is_some_and(|peer| peer.rank == self.left);
        let owes = owes.filter(|_| refused.is_some() || !unreached.as_ref().is_some_and(same));
        let (first, notes) = in_order(unreached, owes, refused);
        let first =
            first.unwrap_or_else(|| Error::new(Kind::TimedOut, "the ring of a new group had no time to connect"));
        with_notes(first, notes).with_rank(context.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::pair;
    use nuvec_transport::Peer;
    use std::time::Duration;

    const GROUP: GroupId = GroupId(7);

    fn begun(connections: usize) -> (Rings, Arc<Wake>) {
        let (rings, wake) = (Rings::new(connections), Arc::new(Wake::new().unwrap()));
        assert!(rings.begin(GROUP, 3, &wake, Deadline::after(Duration::from_secs(60))));
        (rings, wake)
    }

    /// A connection's ends: this rank's, and the neighbour's.
    fn ends() -> (TcpChannel, TcpChannel) {
        let (a, b) = pair("127.0.0.1:0");
        (TcpChannel::new(a, Peer::new(3, "a:1")), TcpChannel::new(b, Peer::new(0, "b:1")))
    }

    fn gone(channel: &TcpChannel) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        while channel.is_open() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        !channel.is_open()
    }

    #[test]
    fn a_connection_is_taken_while_the_earlier_one_is_open() {
        let (rings, _wake) = begun(2);
        assert_eq!((rings.left(GROUP), rings.left(GroupId(8))), (Some(3), None));
        assert!(!rings.is_taken(GROUP, 0) && !rings.is_taken(GROUP, 1) && rings.is_taken(GroupId(8), 0));
        let (own, theirs) = ends();
        rings.connected(GROUP, Side::Left, 0, own);
        assert!(rings.is_taken(GROUP, 0) && !rings.is_taken(GROUP, 1));
        drop(theirs);
        let deadline = Instant::now() + Duration::from_secs(10);
        while rings.is_taken(GROUP, 0) {
            assert!(Instant::now() < deadline, "the dialler has gone and cannot come again");
        }
    }

    #[test]
    fn a_connection_whose_dialler_has_gone_completes_no_ring() {
        let (rings, _wake) = begun(1);
        let ((right, _far_right), (gone, far_gone), (left, _far_left)) = (ends(), ends(), ends());
        rings.connected(GROUP, Side::Left, 0, gone);
        drop(far_gone);
        let deadline = Instant::now() + Duration::from_secs(10);
        while rings.is_taken(GROUP, 0) {
            assert!(Instant::now() < deadline, "the end does not arrive");
        }
        rings.connected(GROUP, Side::Right, 0, right);
        assert!(rings.opened(GROUP).is_none());
        rings.connected(GROUP, Side::Left, 0, left);
        assert!(rings.opened(GROUP).unwrap().is_ok());
    }

    #[test]
    fn a_complete_ring_is_given_once_and_takes_nothing_more() {
        let (rings, wake) = begun(1);
        let ((right, _far_right), (left, far_left)) = (ends(), ends());
        rings.connected(GROUP, Side::Right, 0, right);
        assert!(rings.opened(GROUP).is_none());
        rings.connected(GROUP, Side::Left, 0, left);
        assert!(!rings.begin(GROUP, 3, &wake, Deadline::after(Duration::ZERO)), "asking again begins nothing");
        let ring = rings.opened(GROUP).unwrap().unwrap();
        assert_eq!((ring.right.len(), ring.left.len()), (1, 1));
        assert!(rings.opened(GROUP).is_none() && rings.timer().is_none());
        drop(far_left);
        assert!(gone(&ring.left[0]) && rings.is_taken(GROUP, 0));
        assert!(!rings.begin(GROUP, 3, &wake, Deadline::after(Duration::ZERO)));
        assert_eq!(rings.opened(GROUP).unwrap().unwrap_err().kind(), Kind::Misuse);
        assert_eq!(rings.left(GROUP), Some(3));
        rings.leave(GROUP);
        assert!(rings.left(GROUP).is_none());
    }

    #[test]
    fn whatever_ends_an_opening_closes_its_connections_and_forgets_its_group() {
        type Ending = fn(&Rings);
        let endings: [(Ending, Option<Kind>); 3] = [
            (|rings| rings.fail(GROUP, Error::new(Kind::Reset, "x")), Some(Kind::Reset)),
            (Rings::end, Some(Kind::Closed)),
            (|rings| rings.leave(GROUP), None),
        ];
        for (ending, kind) in endings {
            let (rings, _wake) = begun(1);
            let (own, theirs) = ends();
            rings.connected(GROUP, Side::Left, 0, own);
            ending(&rings);
            assert!(gone(&theirs));
            assert_eq!(rings.left(GROUP), None);
            assert_eq!(rings.opened(GROUP).map(|result| result.unwrap_err().kind()), kind);
            assert!(rings.state.lock().rings.is_empty() && rings.state.lock().results.is_empty());
            // What still arrives for it is closed, too.
            let (own, theirs) = ends();
            rings.connected(GROUP, Side::Right, 0, own);
            assert!(gone(&theirs));
        }
    }

    #[test]
    fn a_ring_that_nobody_took_is_closed_when_its_group_is_left() {
        let (rings, _wake) = begun(1);
        let ((right, far_right), (left, far_left)) = (ends(), ends());
        rings.connected(GROUP, Side::Right, 0, right);
        rings.connected(GROUP, Side::Left, 0, left);
        assert!(far_right.is_open() && far_left.is_open());
        rings.leave(GROUP);
        assert!(gone(&far_right) && gone(&far_left) && rings.opened(GROUP).is_none());
    }
}
