//! The receiving direction: receives, sequence, credits given, and what the peer must be told.
//!
//! What may not live here: anything that waits. A receiver only ever answers.

use std::collections::VecDeque;

use super::header::{Header, flags};
use super::{Config, Fault};

/// Where the bytes of a received message lie: behind its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// The receive slot, below [`Config::receive_slots`].
    pub(crate) slot: usize,
    /// How many there are; never 0.
    pub(crate) len: usize,
}

/// What [`Link::take`](super::Link::take) finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    /// A message.
    Bytes(Bytes),
    /// Nothing yet.
    Nothing,
    /// The peer's stream ended, and all of it was taken.
    End,
}

/// Whose a receive slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// The device's.
    Posted,
    /// Ours, with a message that waits to be taken.
    Ready,
    /// The caller's.
    Taken,
    /// Ours, to be posted.
    Idle,
}

#[derive(Debug)]
pub(super) struct Receiving {
    reliable: bool,
    credits: u64,
    slots: Vec<Slot>,
    /// Slots to post, and whether that gives the peer a credit.
    idle: VecDeque<(usize, bool)>,
    ready: VecDeque<Bytes>,
    /// The number of the data message that comes next, which is how many came.
    expected: u64,
    /// Data messages whose slots were posted again.
    freed: u64,
    /// The limit that the peer was told.
    announced: u64,
    /// The message that a resend was asked for when a gap showed: once for each.
    asked: Option<u64>,
    /// The message that a resend is to be asked for.
    ask: Option<u64>,
    /// Something is to be said at once.
    answer: bool,
    ended: bool,
    stopped: bool,
    /// A deliberate error, for the tests to find.
    #[cfg(test)]
    pub(super) planted: super::tests::Planted,
}

impl Receiving {
    pub(super) fn new(config: &Config) -> Self {
        let credits = config.credits() as u64;
        Self {
            reliable: config.reliable,
            credits,
            slots: vec![Slot::Idle; config.depth],
            idle: (0..config.depth).map(|slot| (slot, false)).collect(),
            ready: VecDeque::with_capacity(config.depth),
            expected: 0,
            freed: 0,
            announced: credits,
            asked: None,
            ask: None,
            answer: false,
            ended: false,
            stopped: false,
            #[cfg(test)]
            planted: super::tests::Planted::Nothing,
        }
    }

    pub(super) fn next_receive(&self) -> Option<usize> {
        self.idle.front().map(|&(slot, _)| slot)
    }

    pub(super) fn posted(&mut self) {
        if let Some((slot, credit)) = self.idle.pop_front() {
            self.slots[slot] = Slot::Posted;
            self.freed += u64::from(credit);
        }
    }

    fn recycle(&mut self, slot: usize, credit: bool) {
        self.slots[slot] = Slot::Idle;
        self.idle.push_back((slot, credit));
    }

    /// The device gave a slot back.
    pub(super) fn arrived(&self, slot: usize) -> Result<(), Fault> {
        match self.slots.get(slot) {
            Some(Slot::Posted) => Ok(()),
            _ => Err(Fault::Slot { what: "a message in", slot }),
        }
    }

    /// Whether a message is one that a correct peer may send now.
    pub(super) fn check(&self, header: &Header) -> Result<(), Fault> {
        let broken = |what, expected| Err(Fault::Broken { what, found: header.sequence, expected });
        let control = header.has(flags::CONTROL);
        // Of a control message the number is one past the last data message.
        if header.sequence > self.announced - u64::from(!control) {
            return broken("the number of a message beyond its credit", self.announced);
        }
        if self.reliable && header.sequence != self.expected {
            return broken("the number of a message on a reliable connection", self.expected);
        }
        if self.ended && header.sequence > self.expected - u64::from(!control) {
            return broken("the number of a message after the end of the stream", self.expected);
        }
        Ok(())
    }

    /// Takes in a message that passed [`check`](Self::check).
    pub(super) fn accept(&mut self, slot: usize, header: &Header) {
        if !header.has(flags::CONTROL) && header.sequence == self.expected {
            self.expected += 1;
            self.ended = header.has(flags::END);
            if header.length == 0 || self.stopped {
                self.recycle(slot, true);
            } else {
                self.slots[slot] = Slot::Ready;
                self.ready.push_back(Bytes { slot, len: header.length as usize });
            }
        } else {
            self.recycle(slot, false);
        }
        let gap = header.sequence > self.expected;
        if gap && (self.asked != Some(self.expected) || header.has(flags::ASK)) {
            self.asked = Some(self.expected);
            self.ask = self.asked;
        }
        self.answer |= header.has(flags::ASK);
    }

    pub(super) fn take(&mut self) -> Take {
        match self.ready.pop_front() {
            Some(bytes) => {
                self.slots[bytes.slot] = Slot::Taken;
                Take::Bytes(bytes)
            }
            None if self.ended => Take::End,
            None => Take::Nothing,
        }
    }

    pub(super) fn readable(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn ended(&self) -> bool {
        self.ended && !self.readable()
    }

    pub(super) fn give_back(&mut self, slot: usize) -> Result<(), Fault> {
        if self.slots.get(slot) != Some(&Slot::Taken) {
            return Err(Fault::Slot { what: "the return of", slot });
        }
        self.recycle(slot, true);
        Ok(())
    }

    pub(super) fn stop(&mut self) {
        if !self.stopped {
            self.stopped = true;
            self.answer = true;
            while let Some(bytes) = self.ready.pop_front() {
                self.recycle(bytes.slot, true);
            }
        }
    }

    fn limit(&self) -> u64 {
        self.freed + self.credits
    }

    /// The message that a resend is wanted from, unless it has come meanwhile.
    fn wanted(&self) -> bool {
        self.ask == Some(self.expected)
    }

    /// What every message says of this direction: acknowledgement, limit, flags.
    pub(super) fn state(&self) -> (u64, u64, u16) {
        let mut flags = 0;
        if self.wanted() {
            flags |= flags::RESEND;
        }
        if self.stopped {
            flags |= flags::STOPPED;
        }
        #[cfg(test)]
        match self.planted {
            super::tests::Planted::EarlyAcknowledgement if self.wanted() => {
                return (self.expected + 1, self.limit(), flags);
            }
            super::tests::Planted::ExtraCredit if self.freed < self.expected => {
                return (self.expected, self.limit() + 1, flags);
            }
            _ => {}
        }
        (self.expected, self.limit(), flags)
    }

    /// A message that said `header` was posted.
    pub(super) fn said(&mut self, header: &Header) {
        self.announced = self.announced.max(header.limit);
        self.answer = false;
        self.ask = None;
    }

    /// Whether the peer must be told something, even if there are no data to send with it. Credits wait until there are
    /// many: half of all.
    pub(super) fn control_due(&self) -> bool {
        let batch = self.credits.div_ceil(2);
        self.answer || self.wanted() || (!self.ended && self.limit() >= self.announced + batch)
    }
}
