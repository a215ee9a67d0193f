//! The sending direction: slots, credits taken, acknowledgements, resends and questions.
//!
//! Data messages are numbered; message *s* lies in slot *s* mod N. In order of their numbers they are
//!
//! ```text
//! done: acknowledged (UC) and completed | unacknowledged | sent, to be sent again | staged     | free slots
//!                                     tail              cursor                  sent         staged      tail + N
//! ```
//! What may not live here: what the peer sends us, beyond what its headers say of our direction.

use std::time::Duration;

use super::header::{Header, flags};
use super::{Config, Fault, HEADER};

/// Where bytes to send go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// The send slot, below [`Config::send_slots`].
    pub(crate) slot: usize,
    /// Where in the slot they go, in bytes.
    pub(crate) offset: usize,
    /// For how many there is room; never 0.
    pub(crate) len: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Bytes of the stream in it.
    len: usize,
    /// The device owns it.
    posted: bool,
}

/// UC: how long we wait for an acknowledgement or a credit before we ask.
const ASK_AFTER: Duration = Duration::from_millis(100);

/// How often the interval between questions doubles, while nothing changes.
const DOUBLINGS: u32 = 3;

#[derive(Debug)]
pub(super) struct Sending {
    config: Config,
    slots: Vec<Slot>,
    /// All messages before are done, and their slots free.
    tail: u64,
    /// How many messages the peer has in order.
    acknowledged: u64,
    /// The next message to post: below `sent` while messages are sent again.
    cursor: u64,
    /// Messages that were posted at least once.
    sent: u64,
    /// Messages that have a slot.
    staged: u64,
    /// How many messages may ever be sent.
    pub(super) limit: u64,
    /// Room is given out: in a new message (`true`), or in the last staged one, which then must not be posted.
    writing: Option<bool>,
    finished: bool,
    /// The message that ends the stream.
    end: Option<u64>,
    control_posted: bool,
    peer_stopped: bool,
    question: bool,
    /// When to ask, while we wait for the peer.
    deadline: Option<Duration>,
    /// The last time that something changed.
    since: Duration,
    /// Questions and resends since then.
    questions: u32,
    resends: u32,
    doublings: u32,
}

impl Sending {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            config: *config,
            slots: vec![Slot::default(); config.credits()],
            tail: 0,
            acknowledged: 0,
            cursor: 0,
            sent: 0,
            staged: 0,
            limit: config.credits() as u64,
            writing: None,
            finished: false,
            end: None,
            control_posted: false,
            peer_stopped: false,
            question: false,
            deadline: None,
            since: Duration::ZERO,
            questions: 0,
            resends: 0,
            doublings: 0,
        }
    }

    fn index(&self, sequence: u64) -> usize {
        (sequence % self.slots.len() as u64) as usize
    }

    /// The last staged message, if it was never posted: more bytes may still go into it.
    fn open(&self) -> Option<u64> {
        (self.staged > self.sent).then(|| self.staged - 1)
    }

    fn has_free_slot(&self) -> bool {
        self.staged - self.tail < self.slots.len() as u64
    }

    /// Where the next bytes go, and whether that is a new message.
    fn place(&self) -> Option<(Room, bool)> {
        if self.finished {
            return None;
        }
        let payload = self.config.message - HEADER;
        if let Some(open) = self.open() {
            let (slot, len) = (self.index(open), self.slots[self.index(open)].len);
            if len < payload {
                return Some((Room { slot, offset: HEADER + len, len: payload - len }, false));
            }
        }
        let room = Room { slot: self.index(self.staged), offset: HEADER, len: payload };
        self.has_free_slot().then_some((room, true))
    }

    pub(super) fn has_room(&self) -> bool {
        self.place().is_some()
    }

    pub(super) fn room(&mut self) -> Option<Room> {
        let (room, new) = self.place()?;
        self.writing = Some(new);
        Some(room)
    }

    pub(super) fn wrote(&mut self, bytes: usize, now: Duration) {
        let Some(new) = self.writing.take() else { return };
        if bytes == 0 {
            return;
        }
        if new {
            self.stage();
        }
        let last = self.index(self.staged - 1);
        self.slots[last].len += bytes;
        self.arm(now);
    }

    fn stage(&mut self) {
        let slot = self.index(self.staged);
        self.slots[slot].len = 0;
        self.staged += 1;
    }

    pub(super) fn finish(&mut self, now: Duration) {
        self.writing = None;
        self.finished = true;
        self.place_end();
        self.arm(now);
    }

    /// Lets the end ride on bytes that were not posted yet, or gives it a message of its own once there is a slot.
    fn place_end(&mut self) {
        if !self.finished || self.end.is_some() {
            return;
        }
        if self.open().is_none() {
            if !self.has_free_slot() {
                return;
            }
            self.stage();
        }
        self.end = self.open();
    }

    /// The data message to post now.
    pub(super) fn next_data(&self) -> Option<u64> {
        let next = self.cursor;
        let being_written = self.writing == Some(false) && self.open() == Some(next);
        let allowed = next < self.staged && (next < self.sent || next < self.limit);
        // Sent again while the device still sends it for the first time: later, since its header changes.
        (allowed && !being_written && !self.slots[self.index(next)].posted).then_some(next)
    }

    /// Slot, bytes of the stream and flags of a data message.
    pub(super) fn message(&self, sequence: u64) -> (usize, usize, u16) {
        let slot = self.index(sequence);
        let own = match self.end {
            // The answer to an end saves who waits for it the time until he asks.
            Some(end) if end == sequence && !self.config.reliable => flags::END | flags::ASK,
            Some(end) if end == sequence => flags::END,
            _ => 0,
        };
        (slot, self.slots[slot].len, own)
    }

    pub(super) fn question_due(&self) -> bool {
        self.question
    }

    pub(super) fn control_free(&self) -> bool {
        !self.control_posted
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn posted(&mut self, sequence: Option<u64>, said: &Header, now: Duration) {
        match sequence {
            Some(sequence) => {
                let slot = self.index(sequence);
                self.slots[slot].posted = true;
                self.cursor = sequence + 1;
                self.sent = self.sent.max(self.cursor);
            }
            None => self.control_posted = true,
        }
        if said.has(flags::ASK) {
            self.question = false;
        }
        self.arm(now);
    }

    pub(super) fn completed(&mut self, slot: usize, now: Duration) -> Result<(), Fault> {
        let control = self.slots.len();
        let posted = match self.slots.get_mut(slot) {
            Some(data) => &mut data.posted,
            None if slot == control => &mut self.control_posted,
            None => return Err(Fault::Slot { what: "a send from", slot }),
        };
        if !std::mem::replace(posted, false) {
            return Err(Fault::Slot { what: "a send from", slot });
        }
        self.free();
        self.arm(now);
        Ok(())
    }

    /// Frees the slots of messages that are done.
    fn free(&mut self) {
        let done = if self.config.reliable { self.sent } else { self.acknowledged };
        while self.tail < done && !self.slots[self.index(self.tail)].posted {
            self.tail += 1;
        }
        self.place_end();
    }

    /// Whether a header speaks of our direction as a correct peer does.
    pub(super) fn check(&self, header: &Header) -> Result<(), Fault> {
        let broken = |what, found, expected| Err(Fault::Broken { what, found, expected });
        if header.acknowledged > self.sent {
            return broken("an acknowledgement", header.acknowledged, self.sent);
        }
        let most = header.acknowledged + self.slots.len() as u64;
        if header.limit > most {
            return broken("a credit limit", header.limit, most);
        }
        Ok(())
    }

    /// Takes in what a checked header says of our direction. Errors: the peer asked for the same message too often.
    pub(super) fn heard(&mut self, header: &Header, now: Duration) -> Result<(), Fault> {
        self.peer_stopped |= header.has(flags::STOPPED);
        if header.acknowledged > self.acknowledged || header.limit > self.limit {
            self.acknowledged = self.acknowledged.max(header.acknowledged);
            self.limit = self.limit.max(header.limit);
            self.cursor = self.cursor.max(self.acknowledged);
            (self.questions, self.resends, self.doublings) = (0, 0, 0);
            (self.deadline, self.question, self.since) = (None, false, now);
            self.free();
        } else if self.acknowledged == self.sent {
            // The peer lives and has all; that it gives no credit is its good right.
            self.questions = 0;
        }
        // An older request than what is acknowledged by now is settled.
        if header.has(flags::RESEND) && header.acknowledged == self.acknowledged && self.acknowledged < self.sent {
            if self.resends >= self.config.ask_limit {
                return Err(Fault::Lossy { resends: self.resends, sequence: self.acknowledged });
            }
            self.resends += 1;
            self.cursor = self.acknowledged;
            self.deadline = None;
        }
        self.arm(now);
        Ok(())
    }

    /// Whether only the peer can bring us on, and something that it sent for that may have been lost.
    fn waiting(&self) -> bool {
        let unacknowledged = self.acknowledged < self.sent;
        let starved = self.cursor == self.sent && self.sent < self.staged && self.sent >= self.limit;
        !self.config.reliable && (unacknowledged || starved)
    }

    /// Sets the deadline when a wait begins, and drops it when there is nothing to wait for.
    fn arm(&mut self, now: Duration) {
        if !self.waiting() {
            self.deadline = None;
            self.question = false;
            self.questions = 0;
        } else if self.deadline.is_none() {
            if self.questions == 0 && self.resends == 0 {
                self.since = now;
            }
            self.deadline = Some(now + self.interval());
        }
    }

    fn interval(&self) -> Duration {
        ASK_AFTER * (1 << self.doublings)
    }

    pub(super) fn next_timeout(&self) -> Option<Duration> {
        self.deadline
    }

    pub(super) fn tick(&mut self, now: Duration) -> Result<(), Fault> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        if self.questions >= self.config.ask_limit {
            return Err(Fault::Silent {
                questions: self.questions,
                waited: now.saturating_sub(self.since),
                unacknowledged: self.sent - self.acknowledged,
            });
        }
        self.question = true;
        self.questions += 1;
        self.doublings = (self.doublings + 1).min(DOUBLINGS);
        self.deadline = Some(now + self.interval());
        Ok(())
    }

    pub(super) fn peer_stopped(&self) -> bool {
        self.peer_stopped
    }

    pub(super) fn unacknowledged(&self) -> Option<u64> {
        (self.tail < self.sent).then_some(self.tail)
    }

    pub(super) fn flushed(&self) -> bool {
        self.sent == self.staged && self.finished == self.end.is_some()
    }

    pub(super) fn drained(&self) -> bool {
        self.flushed() && self.tail == self.staged && !self.control_posted
    }
}
