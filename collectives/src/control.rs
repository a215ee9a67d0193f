//! What the ranks tell each other beside the data, and what it means: a state machine without clock and I/O.
//!
//! A [`Control`] is shared by the transport, which calls its [`ControlHandler`], and by the groups of this process, which
//! ask whether they still live. It knows control links and groups, no socket and no data.
//!
//! A group fails stop. The first failure that a rank sees poisons its group and goes as an *Abort* to every rank, each of
//! which passes it on once: so every rank's error names the rank that failed first, whatever it saw itself.

mod abort;

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nuvec_transport::{ControlHandler, Error, GroupId, Kind, LinkId, Outbox, Peer, Result, Wake};
use parking_lot::Mutex;

use abort::Abort;

/// The shared state of one rank: which groups live, which ranks are gone. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

struct Shared {
    rank: usize,
    peers: Vec<Peer>,
    tick: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    formed: bool,
    links: BTreeMap<LinkId, usize>,
    gone: BTreeSet<usize>,
    groups: BTreeMap<GroupId, Arc<GroupState>>,
    /// The first failure of each failed group.
    aborts: BTreeMap<GroupId, Abort>,
    /// Aborts of this rank's own that the links have not been given yet.
    unsent: Vec<Abort>,
}

/// Whether a group lives, for those who wait in one of its calls.
#[derive(Debug, Default)]
pub(crate) struct GroupState {
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
    wakes: Mutex<Vec<Arc<Wake>>>,
}

impl GroupState {
    /// The failure, if the group has failed.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.error.lock().clone().map_or(Ok(()), Err)
    }

    /// Has `wake` rung when the group fails, or a rank leaves.
    pub(crate) fn watch(&self, wake: &Arc<Wake>) {
        self.wakes.lock().push(wake.clone());
        if self.failed.load(Ordering::Acquire) {
            wake.notify();
        }
    }

    /// Poisons the group unless it is; the failure that counts.
    pub(crate) fn poison(&self, error: Error) -> Error {
        let first = self.error.lock().get_or_insert(error).clone();
        self.failed.store(true, Ordering::Release);
        self.ring();
        first
    }

    pub(crate) fn ring(&self) {
        self.wakes.lock().iter().for_each(|w| w.notify());
    }
}

impl Control {
    /// The control of rank `rank` among `peers` (every rank, its own too, by index, with the address that errors show).
    /// `timeout` is the longest that an operation waits without progress.
    pub fn new(rank: usize, peers: Vec<Peer>, timeout: Duration) -> Self {
        let tick = (timeout / 4).clamp(Duration::from_millis(50), Duration::from_secs(1));
        Self { shared: Arc::new(Shared { rank, peers, tick, state: Mutex::default() }) }
    }

    /// What the transport calls with this rank's control messages. Make one.
    pub fn handler(&self) -> Box<dyn ControlHandler> {
        Box::new(Handler { shared: self.shared.clone() })
    }

    /// Joins a group: its state, already failed if an Abort came before.
    pub(crate) fn join(&self, id: GroupId) -> Arc<GroupState> {
        let mut state = self.shared.state.lock();
        let group = state.groups.entry(id).or_default().clone();
        if let Some(abort) = state.aborts.get(&id) {
            group.poison(self.shared.error_of(abort));
        }
        group
    }

    /// This rank's call on group `id` failed: poisons the group and leaves an Abort for every link, sent at the next tick.
    /// The failure that counts, which may have come before.
    pub(crate) fn fail(&self, id: GroupId, group: &GroupState, error: Error) -> Error {
        let first = group.poison(error);
        let mut state = self.shared.state.lock();
        let State { aborts, unsent, .. } = &mut *state;
        if let Entry::Vacant(entry) = aborts.entry(id) {
            unsent.push(entry.insert(Abort::new(id, self.shared.rank, &first)).clone());
        }
        first
    }

    /// Whether a control link to `rank` has ended.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        self.shared.state.lock().gone.contains(&rank)
    }
}

impl Shared {
    /// The error that an Abort becomes on this rank.
    fn error_of(&self, abort: &Abort) -> Error {
        let peer = |rank: usize| self.peers.get(rank).cloned().unwrap_or_else(|| Peer::new(rank, "address unknown"));
        let (first, reporter) = (abort.first as usize, abort.reporter as usize);
        if first == self.rank && reporter != self.rank {
            let what = format!("reports that rank {first} {}", abort.text);
            return Error::new(abort.kind, what).with_peer(&peer(reporter));
        }
        let what = match abort.sequence {
            _ if first == reporter => format!("{} (it says so itself)", abort.text),
            Some(sequence) => format!("{} (reported by rank {reporter} in its operation #{sequence})", abort.text),
            None => format!("{} (reported by rank {reporter})", abort.text),
        };
        Error::new(abort.kind, what).with_peer(&peer(first))
    }

    /// Takes an Abort: unless the group has failed before, poisons it and passes the Abort on to every link but `from`.
    fn take(&self, state: &mut State, abort: Abort, from: Option<LinkId>, out: &mut Outbox) {
        if state.aborts.contains_key(&abort.group) {
            return;
        }
        let error = self.error_of(&abort);
        if let Some(group) = state.groups.get(&abort.group) {
            group.poison(error.clone());
        }
        out.poisoned.push((abort.group, error));
        state.send(&abort, from, out);
        state.aborts.insert(abort.group, abort);
    }
}

impl State {
    fn send(&self, abort: &Abort, except: Option<LinkId>, out: &mut Outbox) {
        let links = self.links.keys().filter(|&&link| Some(link) != except);
        out.messages.extend(links.map(|&link| (link, abort.encode())));
    }
}

/// The [`ControlHandler`] of a [`Control`].
struct Handler {
    shared: Arc<Shared>,
}

impl ControlHandler for Handler {
    fn link_up(&mut self, link: LinkId, peer: &Peer, _now: Duration, out: &mut Outbox) {
        let mut state = self.shared.state.lock();
        state.links.insert(link, peer.rank);
        // A failure from before this link was up has reached nobody over it.
        out.messages.extend(state.aborts.values().map(|abort| (link, abort.encode())));
    }

    fn message(&mut self, link: LinkId, message: &[u8], _now: Duration, out: &mut Outbox) {
        let mut state = self.shared.state.lock();
        // Messages of kinds that this version does not know are a newer peer's business.
        if let Some(abort) = Abort::decode(message) {
            self.shared.take(&mut state, abort, Some(link), out);
        }
    }

    fn link_ended(&mut self, link: LinkId, why: &Error, _now: Duration, out: &mut Outbox) {
        let mut state = self.shared.state.lock();
        let Some(rank) = state.links.remove(&link) else { return };
        state.gone.insert(rank);
        if !state.formed {
            let text = format!("left while the ring was forming ({})", why.phrase());
            let error = Error::new(Kind::PeerClosed, text).with_peer(&self.shared.peers[rank]);
            self.shared.take(&mut state, Abort::new(GroupId::ROOT, self.shared.rank, &error), None, out);
        }
        state.groups.values().for_each(|group| group.ring());
    }

    fn formed(&mut self, _now: Duration, _out: &mut Outbox) {
        self.shared.state.lock().formed = true;
    }

    fn forming_failed(&mut self, why: &Error, _now: Duration, out: &mut Outbox) {
        let mut state = self.shared.state.lock();
        self.shared.take(&mut state, Abort::new(GroupId::ROOT, self.shared.rank, why), None, out);
    }

    fn tick(&mut self, _now: Duration, out: &mut Outbox) {
        let mut state = self.shared.state.lock();
        for abort in std::mem::take(&mut state.unsent) {
            state.send(&abort, None, out);
        }
    }

    fn tick_interval(&self) -> Duration {
        self.shared.tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(n: usize) -> Vec<(Control, Box<dyn ControlHandler>)> {
        (0..n)
            .map(|rank| {
                let peers = (0..n).map(|r| Peer::new(r, format!("host{r}:1"))).collect();
                let control = Control::new(rank, peers, Duration::from_secs(30));
                let handler = control.handler();
                (control, handler)
            })
            .collect()
    }

    const RIGHT: LinkId = LinkId(0);
    const LEFT: LinkId = LinkId(1);

    /// Delivers what `from` sent, and all that follows from it; how many messages that were.
    fn deliver(ranks: &mut [(Control, Box<dyn ControlHandler>)], from: usize, out: Outbox) -> usize {
        let n = ranks.len();
        let mut queue: Vec<_> = out.messages.into_iter().map(|(link, m)| (from, link, m)).collect();
        let mut count = 0;
        while let Some((from, link, message)) = queue.pop() {
            count += 1;
            assert!(count < 100, "an Abort goes round for ever");
            let (to, at) = if link == RIGHT { ((from + 1) % n, LEFT) } else { ((from + n - 1) % n, RIGHT) };
            let mut out = Outbox::default();
            ranks[to].1.message(at, &message, Duration::ZERO, &mut out);
            queue.extend(out.messages.into_iter().map(|(link, m)| (to, link, m)));
        }
        count
    }

    fn up(ranks: &mut [(Control, Box<dyn ControlHandler>)]) {
        let n = ranks.len();
        for (rank, (_, handler)) in ranks.iter_mut().enumerate() {
            let mut out = Outbox::default();
            handler.link_up(RIGHT, &Peer::new((rank + 1) % n, "x"), Duration::ZERO, &mut out);
            handler.link_up(LEFT, &Peer::new((rank + n - 1) % n, "x"), Duration::ZERO, &mut out);
            handler.formed(Duration::ZERO, &mut out);
            assert!(out.messages.is_empty());
        }
    }

    #[test]
    fn an_abort_reaches_every_rank_once_and_names_the_first_to_fail() {
        for n in 2..7 {
            let mut ranks = ring(n);
            let groups: Vec<_> = ranks.iter().map(|(c, _)| c.join(GroupId::ROOT)).collect();
            up(&mut ranks);
            let first = Error::new(Kind::PeerClosed, "closed the connection").with_peer(&Peer::new(1, "host1:1"));
            ranks[0].0.fail(GroupId::ROOT, &groups[0], first);
            let mut out = Outbox::default();
            ranks[0].1.tick(Duration::ZERO, &mut out);
            deliver(&mut ranks, 0, out);
            for (rank, group) in groups.iter().enumerate() {
                let e = group.check().expect_err("poisoned");
                let named = if rank == 1 { 0 } else { 1 };
                assert_eq!(e.peer().map(|p| p.rank), Some(named), "rank {rank} of {n}: {e}");
                assert!(e.to_string().contains("closed the connection"), "{e}");
            }
        }
    }

    #[test]
    fn the_first_failure_stands_whatever_comes_later() {
        let mut ranks = ring(4);
        let group = ranks[0].0.join(GroupId::ROOT);
        up(&mut ranks);
        let error = |rank| Error::new(Kind::Reset, "broke").with_peer(&Peer::new(rank, "x"));
        ranks[0].0.fail(GroupId::ROOT, &group, error(1));
        let winner = ranks[0].0.fail(GroupId::ROOT, &group, error(3));
        assert_eq!(winner.peer().map(|p| p.rank), Some(1));
        let mut out = Outbox::default();
        let late = Abort::new(GroupId::ROOT, 3, &error(2)).encode();
        ranks[0].1.message(LEFT, &late, Duration::ZERO, &mut out);
        assert!(out.messages.is_empty() && out.poisoned.is_empty(), "{out:?}");
        assert_eq!(group.check().expect_err("poisoned").peer().map(|p| p.rank), Some(1));
    }

    #[test]
    fn an_abort_that_comes_before_its_group_is_joined_is_not_lost() {
        let mut ranks = ring(2);
        up(&mut ranks);
        let abort = Abort::new(GroupId(7), 1, &Error::new(Kind::Reset, "broke")).encode();
        ranks[0].1.message(LEFT, &abort, Duration::ZERO, &mut Outbox::default());
        assert!(ranks[0].0.join(GroupId(7)).check().is_err());
        assert!(ranks[0].0.join(GroupId::ROOT).check().is_ok());
    }

    #[test]
    fn a_link_that_ends_is_poison_while_forming_and_not_after() {
        let why = Error::new(Kind::PeerClosed, "closed the connection");
        let mut ranks = ring(3);
        let mut out = Outbox::default();
        ranks[0].1.link_up(RIGHT, &Peer::new(1, "x"), Duration::ZERO, &mut out);
        ranks[0].1.link_up(LEFT, &Peer::new(2, "x"), Duration::ZERO, &mut out);
        ranks[0].1.link_ended(RIGHT, &why, Duration::ZERO, &mut out);
        assert_eq!(out.poisoned.len(), 1);
        assert_eq!(out.poisoned[0].1.peer().map(|p| p.rank), Some(1));
        assert!(matches!(&out.messages[..], [(LEFT, _)]), "the other neighbour is told: {out:?}");

        let mut ranks = ring(3);
        let group = ranks[0].0.join(GroupId::ROOT);
        up(&mut ranks);
        let mut out = Outbox::default();
        ranks[0].1.link_ended(RIGHT, &why, Duration::ZERO, &mut out);
        assert!(out.poisoned.is_empty() && group.check().is_ok());
        assert!(ranks[0].0.is_gone(1) && !ranks[0].0.is_gone(2));
    }
}
