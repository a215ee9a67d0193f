//! What the ranks tell each other beside the data, and what it means: a state machine without clock and I/O.
//!
//! A [`Control`] is shared by the transport, which calls its [`ControlHandler`], and by the groups of this process, which
//! ask whether they still live. It knows control links and groups, no socket and no data.
//!
//! A group fails stop. The first failure that a rank sees poisons its group and goes as an *Abort* to every rank, each of
//! which passes it on once: so every rank's error names the rank that failed first, whatever it saw itself. Every rank
//! also reports regularly what it does (*Status*), so that a time-out can be blamed on the rank that holds the others up.

mod abort;
mod blame;
mod group;
mod handler;
mod status;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nuvec_transport::{ControlHandler, Error, GroupId, Kind, LinkId, Outbox, Peer};
use parking_lot::Mutex;

use crate::drive::{OUTPUT, has_left};
use abort::Abort;
use blame::{Stuck, Verdict};
use status::{InCall, State as Said, Table};

pub(crate) use group::GroupState;

/// The most failures that are kept, and passed on, of groups that this rank is not in.
const MAX_ABORTS: usize = 256;

/// What all ranks must have in common beside their calls: the version of the thresholds by which an algorithm is chosen.
const AGREEMENT: u32 = 1;

/// The shared state of one rank: which groups live, what every rank does, which are gone. Cheap to clone.
#[derive(Clone, Default)]
pub struct Control {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Set when the transport begins.
    me: OnceLock<Me>,
    state: Mutex<State>,
}

/// Who this rank is.
struct Me {
    rank: usize,
    peers: Vec<Peer>,
    /// How often it reports.
    tick: Duration,
}

#[derive(Default)]
struct State {
    links: BTreeMap<LinkId, usize>,
    groups: BTreeMap<GroupId, Arc<GroupState>>,
    /// The first failure of each failed group.
    aborts: BTreeMap<GroupId, Abort>,
    /// Aborts of this rank's own that the links have not been given yet.
    unsent: Vec<Abort>,
    table: Table,
    /// The time of the handler's last call.
    now: Duration,
    /// When the handler's clock began.
    zero: Option<Instant>,
    /// When this rank's next report is due.
    next_report: Duration,
    /// The number of this rank's last report.
    counter: u64,
    /// The last request of each rank, so that each is passed on once.
    requests: BTreeMap<u32, u64>,
    /// Whether this rank wants a report of every rank.
    asking: bool,
    /// Whether a call waits for those reports.
    inquiring: bool,
}

/// What one rank does, as far as this rank has heard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankStatus {
    /// The rank, among all.
    pub rank: usize,
    /// How it is.
    pub state: RankState,
    /// The calls that it is in: at most one per group.
    pub calls: Vec<CallStatus>,
}

/// How a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RankState {
    /// It reported this long ago. A report is due at least once a second.
    Alive {
        /// How long ago.
        heard: Duration,
    },
    /// Nothing has been heard of it yet.
    Silent,
    /// It has left, and does not come back.
    Gone,
}

/// A call that a rank is in.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallStatus {
    /// The group.
    pub group: GroupId,
    /// The operation's name, as MLX says it.
    pub operation: &'static str,
    /// The operation's number in its group; of a message, its number between the two ranks.
    pub sequence: u64,
    /// The ranks (among all) that it waits for; none while it moves bytes.
    pub waits_for: Vec<usize>,
    /// For how long it has been in the call; of another rank's, if it is in it still.
    pub since: Duration,
}

impl Control {
    /// The control of one rank; which one, it learns from the transport.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the transport calls with this rank's control messages. Make one.
    pub fn handler(&self) -> Box<dyn ControlHandler> {
        Box::new(handler::Handler { shared: self.shared.clone() })
    }

    /// What every rank does, by rank: of this one as it is now, of the others as they last reported.
    pub fn status(&self) -> Vec<RankStatus> {
        let state = self.shared.state.lock();
        let (table, now) = (&state.table, state.real_now());
        let status = |rank: usize| {
            if rank == self.shared.rank() {
                let calls = state.own_calls(now).iter().map(|c| call_status(c, Duration::ZERO)).collect();
                return RankStatus { rank, state: RankState::Alive { heard: Duration::ZERO }, calls };
            }
            match table.get(rank as u32) {
                None => RankStatus { rank, state: RankState::Silent, calls: Vec::new() },
                Some(report) if report.gone => RankStatus { rank, state: RankState::Gone, calls: Vec::new() },
                Some(report) => {
                    let heard = now.saturating_sub(report.heard);
                    let calls = report.calls.iter().map(|c| call_status(c, heard)).collect();
                    RankStatus { rank, state: RankState::Alive { heard }, calls }
                }
            }
        };
        (0..self.shared.size()).map(status).collect()
    }

    /// The moment that is `now` on the handler's clock.
    #[cfg(test)]
    pub(crate) fn at(&self, now: Duration) -> Instant {
        self.shared.state.lock().zero.map_or_else(Instant::now, |zero| zero + now)
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

    /// Forgets a group that this rank is no longer in.
    pub(crate) fn leave(&self, id: GroupId) {
        self.shared.state.lock().groups.remove(&id);
    }

    /// Ends every group of this rank with `error`, without a word to the others.
    pub(crate) fn end(&self, error: &Error) {
        let state = self.shared.state.lock();
        state.groups.values().for_each(|group| drop(group.poison(error.clone())));
    }

    /// This rank's call on group `id` failed: poisons the group and leaves an Abort for every link, sent at the next tick.
    /// The failure that counts, which may have come before.
    pub(crate) fn fail(&self, id: GroupId, group: &GroupState, error: Error) -> Error {
        let first = group.poison(error);
        let mut state = self.shared.state.lock();
        let State { aborts, unsent, .. } = &mut *state;
        if let Entry::Vacant(entry) = aborts.entry(id)
            && first.kind() != Kind::Closed
        {
            unsent.push(entry.insert(Abort::new(id, self.shared.rank(), &first)).clone());
        }
        first
    }

    /// Whether `rank` is known to have left.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        self.shared.state.lock().table.is_gone(rank as u32)
    }

    /// Whether there is no control link any more, so that nothing is heard of any rank.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.shared.state.lock().links.is_empty()
    }

    /// Notes that `rank` has left, which no control link told.
    pub(crate) fn has_left(&self, rank: usize) {
        let mut state = self.shared.state.lock();
        let now = state.now;
        state.table.take(vec![status::Entry { rank: rank as u32, counter: 0, state: Said::Gone }], now);
    }

    /// The first of `ranks` that has left, as an error.
    pub(crate) fn left(&self, ranks: &[usize]) -> Option<Error> {
        let state = self.shared.state.lock();
        let gone = ranks.iter().find(|&&rank| state.table.is_gone(rank as u32))?;
        Some(has_left(&self.shared.peer(*gone)))
    }

    /// The first of `ranks` that has left or, if none has, of which nothing was heard for `patience`, as an error. Where
    /// there is no control link any more, any rank that has left is why nothing is heard.
    pub(crate) fn missing(&self, ranks: &[usize], patience: Duration) -> Option<Error> {
        let all: Vec<_> = (0..self.shared.size()).collect();
        let cut_off = self.is_cut_off();
        self.left(ranks).or_else(|| self.left(&all).filter(|_| cut_off)).or_else(|| {
            let state = self.shared.state.lock();
            let (rank, silence) = ranks.iter().find_map(|&rank| Some((rank, state.silence(rank, patience)?)))?;
            let what = format!("has given no sign of life for {:.1} s", silence.as_secs_f64());
            Some(Error::new(Kind::TimedOut, what).with_peer(&self.shared.peer(rank)))
        })
    }

    /// Asks every rank for a report, at the handler's next tick. The time by which an answer is newer.
    pub(crate) fn ask(&self) -> Duration {
        let mut state = self.shared.state.lock();
        (state.asking, state.inquiring) = (true, true);
        state.now
    }

    /// Whether every rank that has not left has reported after `since`.
    pub(crate) fn all_heard_since(&self, since: Duration) -> bool {
        let state = self.shared.state.lock();
        let others = (0..self.shared.size()).filter(|&rank| rank != self.shared.rank());
        let mut reports = others.map(|rank| state.table.get(rank as u32));
        reports.all(|report| report.is_some_and(|r| r.gone || r.heard > since))
    }

    /// What `error`, a time-out of this rank's call on group `id`, comes to: the rank that holds everybody up, by what
    /// the ranks last said, and where each stands; and whether they told, or it is only whom this rank waits for. A rank is
    /// silent if nothing was heard of it for `patience`.
    pub(crate) fn blame(&self, id: GroupId, group: &GroupState, error: Error, patience: Duration) -> (Error, bool) {
        let mut state = self.shared.state.lock();
        state.inquiring = false;
        let Some((doing, sequence, waits)) = group.current() else { return (error, true) };
        let rank = self.shared.rank() as u32;
        let mut stuck = Stuck { rank, group: id, doing, sequence, waits };
        // If those who pass on every word are all silent, so is everybody else, and that says nothing about them.
        let relays: Vec<_> = state.links.values().copied().collect();
        if relays.iter().all(|&relay| state.silence(relay, patience).is_some()) {
            stuck.waits.splice(0..0, relays.iter().map(|&relay| relay as u32));
        }
        let mut table = state.table.clone();
        table.take(status::entries(rank, u64::MAX, state.own_calls(state.now)), state.now);
        let standing = blame::standing(&table, self.shared.size(), id, state.now);
        let advice = error.advice().map(str::to_owned);
        let mut verdict = blame::find(&table, &stuck, state.now, patience);
        // A rank that is still in an earlier collective may be held up there itself.
        while let Verdict::Rank { rank, .. } = verdict
            && state.silence(rank as usize, patience).is_none()
            && let Some(earlier) = held_up(&table, rank, &stuck)
        {
            match blame::find(&table, &earlier, state.now, patience) {
                Verdict::Rank { rank, text } => (verdict, stuck) = (Verdict::Rank { rank, text }, earlier),
                _ => break,
            }
        }
        let told = verdict != Verdict::Unknown;
        let (rank, text, advice) = match verdict {
            Verdict::Rank { rank, text } if table.is_gone(rank) => (rank, text, Some(OUTPUT.to_owned())),
            Verdict::Rank { rank, text } => (rank, text, advice),
            Verdict::Deadlock { text, .. } => {
                let advice = "have one of them receive before it sends, or send what the others wait for";
                (rank, format!("is in a {text}"), Some(advice.to_owned()))
            }
            Verdict::Unknown => (error.peer().map_or(rank, |p| p.rank as u32), error.what().to_owned(), advice),
        };
        let standing_of = if id == GroupId::ROOT { "where the ranks stand" } else { "where the ranks of all stand" };
        let blamed = Error::new(error.kind(), format!("{text} ({standing_of}: {standing})"))
            .with_peer(&self.shared.peer(rank as usize));
        let blamed = match advice {
            Some(advice) => blamed.with_advice(advice),
            None => blamed,
        };
        (blamed, told)
    }
}

/// The collective that `rank` is in and waits in, if it comes before that of `stuck` in the same group.
fn held_up(table: &Table, rank: u32, stuck: &Stuck) -> Option<Stuck> {
    let report = table.get(rank).filter(|report| !report.gone)?;
    let earlier =
        |call: &&InCall| call.group == stuck.group && call.sequence < stuck.sequence && !call.waits.is_empty();
    let call = report.calls.iter().find(earlier)?;
    let (doing, sequence, waits) = (call.doing, call.sequence, call.waits.clone());
    let messages = doing.is_message() || stuck.doing.is_message();
    (!messages).then_some(Stuck { rank, group: stuck.group, doing, sequence, waits })
}

fn call_status(call: &InCall, ago: Duration) -> CallStatus {
    CallStatus {
        group: call.group,
        operation: call.doing.name(),
        sequence: call.sequence,
        waits_for: call.waits.iter().map(|&w| w as usize).collect(),
        since: call.age + ago,
    }
}

impl Shared {
    fn rank(&self) -> usize {
        self.me.get().map_or(0, |me| me.rank)
    }

    fn peers(&self) -> &[Peer] {
        self.me.get().map_or(&[], |me| &me.peers)
    }

    fn size(&self) -> usize {
        self.peers().len()
    }

    fn tick(&self) -> Duration {
        self.me.get().map_or(Duration::from_secs(1), |me| me.tick)
    }

    fn peer(&self, rank: usize) -> Peer {
        self.peers().get(rank).cloned().unwrap_or_else(|| Peer::new(rank, "address unknown"))
    }

    /// The error that an Abort becomes on this rank.
    fn error_of(&self, abort: &Abort) -> Error {
        let (first, reporter) = (abort.first as usize, abort.reporter as usize);
        if first == self.rank() && reporter != self.rank() {
            let what = format!("reports that rank {first} {}", abort.text);
            return Error::new(abort.kind, what).with_peer(&self.peer(reporter));
        }
        let what = match abort.sequence {
            _ if first == reporter => format!("{} (it says so itself)", abort.text),
            Some(sequence) => format!("{} (reported by rank {reporter} in its operation #{sequence})", abort.text),
            None => format!("{} (reported by rank {reporter})", abort.text),
        };
        Error::new(abort.kind, what).with_peer(&self.peer(first))
    }

    /// Whether there is such a rank, and it is not this one.
    fn is_other(&self, rank: u32) -> bool {
        (rank as usize) < self.size() && rank as usize != self.rank()
    }

    /// Takes an Abort: unless the group has failed before, poisons it and passes the Abort on to every link but `from`.
    fn take(&self, state: &mut State, abort: Abort, from: Option<LinkId>, out: &mut Outbox) {
        let strange = !state.groups.contains_key(&abort.group) && state.aborts.len() >= MAX_ABORTS;
        if strange || state.aborts.contains_key(&abort.group) {
            return;
        }
        let error = self.error_of(&abort);
        if let Some(group) = state.groups.get(&abort.group) {
            group.poison(error.clone());
        }
        out.poisoned.push((abort.group, error));
        state.send(&abort.encode(), from, out);
        state.aborts.insert(abort.group, abort);
    }
}

impl State {
    /// Sends a message to every link but one.
    fn send(&self, message: &[u8], except: Option<LinkId>, out: &mut Outbox) {
        let links = self.links.keys().filter(|&&link| Some(link) != except);
        out.messages.extend(links.map(|&link| (link, message.to_vec())));
    }

    /// For how long nothing was heard of a rank that once reported and has not left, if that is longer than `patience`.
    fn silence(&self, rank: usize, patience: Duration) -> Option<Duration> {
        let report = self.table.get(rank as u32).filter(|report| !report.gone)?;
        Some(self.now.saturating_sub(report.heard)).filter(|&silence| silence > patience)
    }

    /// The handler is called at `now`.
    fn called(&mut self, now: Duration) {
        self.now = now;
        if self.zero.is_none() {
            self.zero = Instant::now().checked_sub(now);
        }
    }

    /// The time on the handler's clock, which is called now and then only.
    fn real_now(&self) -> Duration {
        self.zero.map_or(self.now, |zero| zero.elapsed().max(self.now))
    }

    /// The calls that this rank is in at `now`.
    fn own_calls(&self, now: Duration) -> Vec<InCall> {
        let at = self.zero.map(|zero| zero + now);
        let call = |(&group, state): (&GroupId, &Arc<GroupState>)| {
            let (doing, sequence, waits, since) = state.current_since()?;
            let age = at.map_or(Duration::ZERO, |at| at.saturating_duration_since(since));
            Some(InCall { group, doing, sequence, waits, age })
        };
        self.groups.iter().filter_map(call).collect()
    }
}

#[cfg(test)]
mod tests;
