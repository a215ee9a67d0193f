//! A group that forms: what is there of it, and what to say when something stays missing.

use std::time::{Duration, Instant};

use nuvec_transport::{Error, Kind, RingLinks};

use crate::cards::Cards;
use crate::channel::TcpChannel;
use crate::context::Context;
use crate::control::{ControlLinks, FROM_LEFT, TO_RIGHT};
use crate::refusals::{KEY_ADVICE, Refusals, Told};

/// The most that a rank waits beyond its time for a word of one that knows more, and of its time-out at most that part.
const PATIENCE: (Duration, u32) = (Duration::from_secs(1), 6);

/// What is there of a group that forms.
pub(crate) struct Forming {
    pub(crate) deadline: Instant,
    /// When a rank gives up that does not know why another is missing.
    pub(crate) patience: Instant,
    pub(crate) cards: Cards,
    /// What all ranks refused.
    pub(crate) told: Told,
    right: Vec<Option<TcpChannel>>,
    left: Vec<Option<TcpChannel>>,
}

impl Forming {
    pub(crate) fn new(context: &Context, cards: Cards, deadline: Instant) -> Self {
        let none = || (0..context.connections).map(|_| None).collect();
        let patience = deadline + PATIENCE.0.min(context.options.timeout / PATIENCE.1);
        Self { deadline, patience, cards, told: Told::default(), right: none(), left: none() }
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
    /// is what was refused here meanwhile. What was refused anywhere explains why a rank has not joined, before what was
    /// seen of that rank.
    pub(crate) fn timed_out(
        &self,
        context: &Context,
        control: &ControlLinks,
        unreached: Option<Error>,
        refused: &Refusals,
    ) -> Error {
        let seconds = context.options.timeout.as_secs_f64();
        let late = |rank: usize, what: String| {
            Error::new(Kind::TimedOut, format!("{what} within {seconds:.1} s")).with_peer(&context.peer(rank, 0))
        };
        let mut missing = self.cards.missing();
        // A rank is refused by the one that it dials first, its right.
        let told = |&rank: &usize| self.told.text((rank + 1) % context.size);
        let elsewhere: Vec<_> = missing
            .iter()
            .filter(|&&rank| rank != context.left())
            .filter_map(|rank| Some((*rank, told(rank)?)))
            .collect();
        let texts = refused.text(context.rank).into_iter().chain(elsewhere.iter().map(|(_, (text, _))| text.clone()));
        let texts = Some(texts.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty());
        let left = self.left_owes(context, control).map(|owes| late(context.left(), owes));
        // Whoever was refused has been started: what to do then is another thing.
        let explains_left = left.is_some() && !refused.is_empty();
        let explained = explains_left || !elsewhere.is_empty();
        let of_key = explains_left && refused.of_key() || elsewhere.iter().any(|(_, (_, key))| *key);
        let owes = match (left, elsewhere.first()) {
            (Some(left), _) if explains_left => Some(left),
            (_, Some((rank, _))) => Some(late(*rank, "has not joined".into())),
            (Some(left), None) if !control.is_up(FROM_LEFT) => {
                let (left_rank, rank) = (context.left(), context.rank);
                let advice =
                    format!("is rank {left_rank} started, and does the firewall of rank {rank} let the port in?");
                Some(left.with_advice(advice))
            }
            (left, None) => left,
        };
        let (first, mut notes) = in_order(unreached, owes, texts);
        let first = first.unwrap_or_else(|| match missing.first() {
            Some(&rank) => late(rank, "has not joined".into())
                .with_advice(format!("is rank {rank} started, and does its firewall let the port in?")),
            None => {
                let rank = self.cards.unready().first().copied().unwrap_or(context.rank);
                late(rank, "is there, but did not get all its connections".into())
            }
        });
        missing.retain(|&rank| first.peer().is_none_or(|peer| peer.rank != rank));
        if !missing.is_empty() {
            let (plural, have) = if missing.len() == 1 { ("", "has") } else { ("s", "have") };
            let missing: Vec<String> = missing.iter().map(usize::to_string).collect();
            notes.push(format!("rank{plural} {} {have} not joined", missing.join(", ")));
        }
        let error = with_notes(first, notes).with_rank(context.rank);
        if explained && of_key { error.with_advice(KEY_ADVICE) } else { error }
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
