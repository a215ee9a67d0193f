//! The [`ControlHandler`] of a [`Control`](super::Control): what each message means, and when this rank reports.

use std::sync::Arc;
use std::time::Duration;

use nuvec_transport::{ControlHandler, Error, GroupId, LinkId, Outbox, Peer};

use super::abort::Abort;
use super::status::{self, Entry, Message, State as Said};
use super::{AGREEMENT, Me, Shared, State};

pub(super) struct Handler {
    pub(super) shared: Arc<Shared>,
}

impl ControlHandler for Handler {
    fn begin(&mut self, rank: usize, peers: &[Peer], timeout: Duration) -> u32 {
        let tick = (timeout / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        // A handler of a second transport would be a second rank in one place: the first stays.
        let _ = self.shared.me.set(Me { rank, peers: peers.to_vec(), tick });
        AGREEMENT
    }

    fn link_up(&mut self, link: LinkId, peer: &Peer, now: Duration, out: &mut Outbox) {
        let mut state = self.shared.state.lock();
        state.called(now);
        state.links.insert(link, peer.rank);
        // A failure from before this link was up has reached nobody over it.
        out.messages.extend(state.aborts.values().map(|abort| (link, abort.encode())));
    }

    fn message(&mut self, link: LinkId, message: &[u8], now: Duration, out: &mut Outbox) {
        let mut state = self.shared.state.lock();
        state.called(now);
        if let Some(abort) = Abort::decode(message) {
            if abort.first.max(abort.reporter) < self.shared.size() as u32 {
                self.shared.take(&mut state, abort, Some(link), out);
            }
            return;
        }
        // Messages of kinds that this version does not know are a newer peer's business.
        match status::decode(message) {
            Some(Message::Status(entries)) => self.learn(&mut state, entries, Some(link), out),
            Some(Message::Request { asking, number }) if self.shared.is_other(asking) => {
                let last = state.requests.entry(asking).or_default();
                if number > *last {
                    *last = number;
                    state.send(message, Some(link), out);
                    self.report(&mut state, out);
                }
            }
            _ => {}
        }
    }

    fn link_ended(&mut self, link: LinkId, _why: &Error, now: Duration, out: &mut Outbox) {
        let mut state = self.shared.state.lock();
        state.called(now);
        let Some(rank) = state.links.remove(&link) else { return };
        let gone = Entry { rank: rank as u32, counter: 0, state: Said::Gone };
        self.learn(&mut state, vec![gone], None, out);
    }

    fn forming_failed(&mut self, why: &Error, now: Duration, out: &mut Outbox) {
        let mut state = self.shared.state.lock();
        state.called(now);
        self.shared.take(&mut state, Abort::new(GroupId::ROOT, self.shared.rank(), why), None, out);
    }

    fn tick(&mut self, now: Duration, out: &mut Outbox) {
        let mut state = self.shared.state.lock();
        state.called(now);
        for abort in std::mem::take(&mut state.unsent) {
            state.send(&abort.encode(), None, out);
        }
        if std::mem::take(&mut state.asking) {
            let (rank, number) = (self.shared.rank() as u32, state.counter + 1);
            state.send(&status::encode_request(rank, number), None, out);
            self.report(&mut state, out);
        }
        if now >= state.next_report {
            self.report(&mut state, out);
        }
    }

    fn tick_interval(&self) -> Duration {
        self.shared.tick()
    }
}

impl Handler {
    /// Tells every link what this rank does.
    fn report(&self, state: &mut State, out: &mut Outbox) {
        let now = state.now;
        state.counter += 1;
        state.next_report = now + self.shared.tick();
        let entries = status::entries(self.shared.rank() as u32, state.counter, state.own_calls(now));
        for message in status::encode(&entries) {
            state.send(&message, None, out);
        }
    }

    /// Takes what another rank said, and passes on what was news. A rank is believed about itself by no one but itself.
    fn learn(&self, state: &mut State, mut entries: Vec<Entry>, from: Option<LinkId>, out: &mut Outbox) {
        entries.retain(|e| self.shared.is_other(e.rank));
        for entry in &mut entries {
            if let Said::InCall(call) = &mut entry.state {
                call.waits.retain(|&rank| (rank as usize) < self.shared.size());
            }
        }
        let now = state.now;
        let news = state.table.take(entries, now);
        for message in status::encode(&news) {
            state.send(&message, from, out);
        }
        // Whoever waits looks whether this changes anything for it.
        if from.is_none() || news.iter().any(|e| e.state == Said::Gone) || state.inquiring {
            state.groups.values().for_each(|group| group.ring());
        }
    }
}
