//! A group that forms: what is there of it, and what to say when something stays missing.

use std::time::{Duration, Instant};

use nuvec_transport::{Error, Kind, RingLinks};

use crate::cards::Cards;
use crate::channel::TcpChannel;
use crate::context::Context;
use crate::control::{ControlLinks, FROM_LEFT, TO_RIGHT};

/// The most that a rank waits beyond its time for a word of one that knows more, and of its time-out at most that part.
const PATIENCE: (Duration, u32) = (Duration::from_secs(1), 6);

/// What is there of a group that forms.
pub(crate) struct Forming {
    pub(crate) deadline: Instant,
    /// When a rank gives up that does not know why another is missing.
    pub(crate) patience: Instant,
    pub(crate) cards: Cards,
    right: Vec<Option<TcpChannel>>,
    left: Vec<Option<TcpChannel>>,
}

impl Forming {
    pub(crate) fn new(context: &Context, cards: Cards, deadline: Instant) -> Self {
        let none = || (0..context.connections).map(|_| None).collect();
        let patience = deadline + PATIENCE.0.min(context.options.timeout / PATIENCE.1);
        Self { deadline, patience, cards, right: none(), left: none() }
    }

    /// Takes a ring connection that this rank dialled.
    pub(crate) fn dialled(&mut self, index: usize, channel: TcpChannel) {
        self.right[index] = Some(channel);
    }

    /// Takes a ring connection that the left neighbour dialled.
    pub(crate) fn granted(&mut self, index: usize, channel: TcpChannel) {
        if let Some(slot) = self.left.get_mut(index) {
            *slot = Some(channel);
        }
    }

    /// Whether the left neighbour holds its ring connection `index` already.
    pub(crate) fn is_taken(&self, index: usize) -> bool {
        self.left.get(index).and_then(Option::as_ref).is_some_and(TcpChannel::is_open)
    }

    /// Whether this rank has all its connections.
    pub(crate) fn connected(&self, control: &ControlLinks) -> bool {
        let there = |ring: &[Option<TcpChannel>]| ring.iter().all(Option::is_some);
        control.is_up(TO_RIGHT) && control.is_up(FROM_LEFT) && there(&self.right) && there(&self.left)
    }

    /// Whether everybody is there with all connections: from then on a neighbour may leave.
    pub(crate) fn complete(&self) -> bool {
        self.cards.complete()
    }

    /// The ring, once it is complete.
    pub(crate) fn ring(&mut self) -> RingLinks<TcpChannel> {
        RingLinks { right: self.right.drain(..).flatten().collect(), left: self.left.drain(..).flatten().collect() }
    }

    /// What the left neighbour has not done, if anything; the text follows its name.
    fn left_owes(&self, context: &Context, control: &ControlLinks) -> Option<String> {
        // By its number: other ranks are told the text, too.
        let rank = context.rank;
        let there = self.left.iter().flatten().count();
        if !control.is_up(FROM_LEFT) && !control.has_ended(FROM_LEFT) {
            Some(format!("did not connect to rank {rank}"))
        } else if there < self.left.len() {
            Some(format!("made {there} of {} ring connections to rank {rank}", self.left.len()))
        } else {
            None
        }
    }

    /// The error when the time is up. `unreached` is why a dial to the right does not stand, if one does not; `refused`
    /// is what was refused meanwhile.
    pub(crate) fn timed_out(
        &self,
        context: &Context,
        control: &ControlLinks,
        unreached: Option<Error>,
        refused: &Refusals,
    ) -> Error {
        let seconds = context.options.timeout.as_secs_f64();
        let mut missing = self.cards.missing();
        let owes = self.left_owes(context, control).map(|owes| {
            let (rank, left) = (context.rank, context.left());
            let owes =
                Error::new(Kind::TimedOut, format!("{owes} within {seconds:.1} s")).with_peer(&context.peer(left, 0));
            match control.is_up(FROM_LEFT) {
                true => owes,
                false => owes.with_advice(format!(
                    "is rank {left} started, and does the firewall of rank {rank} let the port in?"
                )),
            }
        });
        let (first, mut notes) = in_order(unreached, owes, refused.text(context.rank));
        let first = first.unwrap_or_else(|| match missing.first() {
            Some(&rank) => {
                let advice = format!("is rank {rank} started, and does its firewall let the port in?");
                Error::new(Kind::TimedOut, format!("has not joined within {seconds:.1} s"))
                    .with_peer(&context.peer(rank, 0))
                    .with_advice(advice)
            }
            None => {
                let rank = self.cards.unready().first().copied().unwrap_or(context.rank);
                let what = format!("is there, but did not get all its connections within {seconds:.1} s");
                Error::new(Kind::TimedOut, what).with_peer(&context.peer(rank, 0))
            }
        });
        missing.retain(|&rank| first.peer().is_none_or(|peer| peer.rank != rank));
        if !missing.is_empty() {
            let (plural, have) = if missing.len() == 1 { ("", "has") } else { ("s", "have") };
            let missing: Vec<String> = missing.iter().map(usize::to_string).collect();
            notes.push(format!("rank{plural} {} {have} not joined", missing.join(", ")));
        }
        with_notes(first, notes).with_rank(context.rank)
    }
}

/// What is known of connections that are missing, the cause first, as an error and notes on it: why a dial does not stand,
/// what a neighbour owes, and what was refused, which is why a neighbour owes something.
pub(crate) fn in_order(
    unreached: Option<Error>,
    owes: Option<Error>,
    refused: Option<String>,
) -> (Option<Error>, Vec<String>) {
    let (first, second) = match (unreached, owes) {
        (Some(unreached), Some(owes)) if refused.is_some() => (Some(owes), Some(unreached)),
        (None, owes) => (owes, None),
        both => both,
    };
    // The advice of the first is enough, and the line ends with it.
    let second = second.map(|e| match e.peer() {
        Some(peer) => format!("{peer} {}", e.what()),
        None => e.what().to_owned(),
    });
    (first, refused.into_iter().chain(second).collect())
}

/// `error` with more that is known about it in its line.
pub(crate) fn with_notes(error: Error, notes: impl IntoIterator<Item = String>) -> Error {
    let what = std::iter::once(error.what().to_owned()).chain(notes).collect::<Vec<_>>().join("; ");
    error.with_what(what)
}

/// The most different refusals that are kept, of those that proved that they have the key, and of others.
const MOST_REFUSALS: usize = 8;

/// What was refused while the group formed, for the error if it does not.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Of ranks that have the key, if there is one.
    proved: Vec<(String, u64)>,
    /// Of anybody.
    others: Vec<(String, u64)>,
    further: u64,
}

impl Refusals {
    /// Notes a refusal; the text begins with who was refused. `proved` says whether that one has the group's key, as far
    /// as there is one: strangers cannot take the place of those.
    pub(crate) fn add(&mut self, text: String, proved: bool) {
        let kept = if proved { &mut self.proved } else { &mut self.others };
        if let Some((_, count)) = kept.iter_mut().find(|(known, _)| *known == text) {
            *count += 1;
        } else if kept.len() < MOST_REFUSALS {
            kept.push((text, 1));
        } else {
            self.further += 1;
        }
    }

    /// Whether nothing was refused.
    pub(crate) fn is_empty(&self) -> bool {
        self.proved.is_empty() && self.others.is_empty()
    }

    /// All that rank `by` refused in one line, if there is anything.
    pub(crate) fn text(&self, by: usize) -> Option<String> {
        let mut all: Vec<String> = Vec::new();
        for (text, count) in self.proved.iter().chain(&self.others) {
            all.push(if *count == 1 { text.clone() } else { format!("{text} ({count} times)") });
        }
        if all.is_empty() {
            return None;
        }
        if self.further > 0 {
            all.push(format!("{} others", self.further));
        }
        Some(format!("refused by rank {by}: {}", all.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_refusals_do_not_hide_those_of_ranks() {
        let mut refusals = Refusals::default();
        (0..100).for_each(|i| refusals.add(format!("10.0.0.{i} has another key, or none"), false));
        refusals.add("10.0.1.1 (as rank 0) counts 3 ranks".into(), true);
        let text = refusals.text(1).unwrap();
        assert!(text.starts_with("refused by rank 1: 10.0.1.1 (as rank 0) counts 3 ranks, 10.0.0.0 has"), "{text}");
    }

    #[test]
    fn refusals_are_counted_and_bounded() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.text(3), None);
        for i in 0..1000 {
            refusals.add(format!("10.0.0.{} has another key, or none", i % 20), false);
        }
        assert_eq!((refusals.others.len(), refusals.further), (MOST_REFUSALS, 600));
        let text = refusals.text(3).unwrap();
        assert!(
            text.starts_with("refused by rank 3: 10.0.0.0 has another key, or none (50 times), 10.0.0.1"),
            "{text}"
        );
        assert!(text.ends_with("600 others"), "{text}");
    }
}
