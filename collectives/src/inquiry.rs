//! What a failed call waits for before it says who is to blame. No clock: time is an argument.

use std::time::Duration;

use nuvec_transport::{Error, GroupId, Kind};

use crate::control::{Control, GroupState};
use crate::drive::OUTPUT;

/// The longest that the others' word is waited for.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// A failed call's question to the other ranks. Dropping it asks no more.
#[derive(Debug)]
pub(crate) struct Inquiry {
    error: Error,
    /// When the answer is given without the others' word. Times are since the group was made.
    until: Duration,
    /// When it is given although it is a guess.
    guess: Duration,
    about: About,
}

#[derive(Debug)]
enum About {
    /// A connection of this rank's ended: was there an earlier failure that made it end?
    ///
    /// If none is told, a rank that the call waits for and that is missing (gone, or silent for `patience`) made the peer
    /// give up: it had no way to say so, because its word would have gone through that rank.
    Ended { peer: usize, patience: Duration },
    /// The time ran out: what does every rank do? Reports newer than `asked` (the handler's time) answer it.
    TimedOut { asked: Duration, patience: Duration },
    /// Nothing: the error says it all.
    Nothing,
}

impl Inquiry {
    /// What there is to ask about `error`. `timeout` is the group's; `now` is the time. The caller has the handler ticked.
    pub(crate) fn new(error: Error, timeout: Duration, now: Duration, control: &Control) -> Self {
        let (about, grace) = match (error.kind(), error.peer()) {
            (Kind::PeerClosed | Kind::Reset, Some(peer)) => {
                (About::Ended { peer: peer.rank, patience: timeout / 2 }, GRACE)
            }
            (Kind::TimedOut, _) => {
                (About::TimedOut { asked: control.ask(), patience: timeout / 2 }, GRACE.min(timeout / 4))
            }
            _ => (About::Nothing, Duration::ZERO),
        };
        Self { error, until: now + grace, guess: now + GRACE, about }
    }

    /// When to look again at the latest.
    pub(crate) fn until(&self, now: Duration) -> Duration {
        if now < self.until { self.until } else { self.guess }
    }

    /// The answer, once there is one.
    pub(crate) fn step(&self, now: Duration, id: GroupId, group: &GroupState, control: &Control) -> Option<Error> {
        if let Err(first) = group.check() {
            return Some(first);
        }
        let over = now >= self.until;
        match self.about {
            About::Nothing => Some(self.error.clone()),
            About::Ended { peer, .. } if control.is_gone(peer) => Some(match self.error.advice() {
                Some(_) => self.error.clone(),
                None => self.error.clone().with_advice(format!("it has ended: {OUTPUT}")),
            }),
            About::Ended { patience, .. } => over.then(|| {
                let waits = group.current().map_or(Vec::new(), |(_, _, waits)| waits);
                let waits: Vec<_> = waits.into_iter().map(|rank| rank as usize).collect();
                control.missing(&waits, patience).unwrap_or_else(|| self.error.clone())
            }),
            About::TimedOut { asked, patience } => {
                if !over && !control.all_heard_since(asked) {
                    return None;
                }
                // Where the reports do not tell, another rank may know from its own links, and say so.
                let (error, told) = control.blame(id, group, self.error.clone(), patience);
                (told || now >= self.guess).then_some(error)
            }
        }
    }
}
