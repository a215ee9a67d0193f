//! The protocol of one queue pair: a full-duplex, ordered byte stream over messages of bounded length into receives
//! that were posted beforehand. A state machine without clock, I/O or verbs: time is an argument, memory is named by
//! slot, and the endpoint does what the machine says.
//!
//! ```text
//! endpoint                                   link
//! next_receive, post_recv, receive_posted    which receive slots to post: all before the queue pair is published
//! room, copy, wrote                          where the next bytes of our stream go
//! next_post, write header, post_send, posted what to send now: data first, else a control message if one is due
//! completion of a send: completed            the slot is the machine's again
//! completion of a receive: received          header checked; data ready, or the slot to be posted again
//! take, read where it lies, give_back        the peer's stream, one message at a time
//! next_timeout, tick                         when to ask a silent peer (UC only)
//! ```
//! After each `received`, `completed`, `wrote`, `give_back` and `tick` the endpoint runs its `next_receive` loop and
//! then its `next_post` loop. The order matters: a credit must never be announced before its receive is posted.
//!
//! **Messages.** A data message carries bytes of the stream and has a sequence number; a control message carries none
//! and takes none (its number says how many data messages were sent). Every message carries the absolute state of the
//! other direction: how many data messages came in order (acknowledgement), and how many may ever be sent (limit).
//! Both only grow, so the receiver takes the maximum, and a message that is lost, late or doubled costs nothing but
//! time. Numbers have 64 bits: they never wrap, and no comparison needs a window. (At 10⁸ messages a second they last
//! 5,000 years; 32 bits would save 12 bytes of a message, which has 4 KiB or more where speed counts.)
//!
//! **Credits.** Of the `depth` receives, [`CONTROL_RELIABLE`] or [`CONTROL_UNRELIABLE`] are kept for control
//! messages; the rest, N, are credits. A data message counts against the limit until its slot was given back *and*
//! posted again. Control messages need no credit, so the two directions cannot block each other. That the reserve
//! suffices: a control message announces at least ⌈N/2⌉ new credits over the message before it, and a peer that reads
//! nothing sends at most N messages, so at most two of them lie unread; "I receive no more" is said once. On UC there
//! is one question and one answer to a question beside them, and one to spare for a question that was asked again
//! because the answer was slow. If slower still, a message may be dropped, which UC's recovery mends like any loss;
//! RC has no questions, so there none is ever refused.
//!
//! **Loss (UC).** A receiver that sees a gap asks for a resend, once per gap; the sender goes back to the first
//! unacknowledged message (go-back-N). Everything else that may be lost (the last message, an acknowledgement, a
//! credit, a request) is the sender's care: while it has unacknowledged data, or data and no credit, and nothing
//! changes for a tenth of a second, it asks with a control message which the peer answers at once. Asking rather than
//! resending keeps a peer that is merely slow from being flooded with data that it has no receives for. `ask_limit`
//! questions without progress are an error. There is nothing to time on the receiving side, and an idle link is
//! silent. An endpoint must poll now and then even if none of its own time-outs is due, since its peer may ask; and
//! what it allows for questions in all must be more than the longest time for which a live process does not poll.
//!
//! **RC** uses the same frames. The device resends; a completed send frees its slot, and a gap is an error.

mod fault;
mod header;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use fault::Fault;
pub(crate) use header::HEADER;
pub(crate) use receiving::{Bytes, Take};
pub(crate) use sending::Room;

use header::{Header, flags};
use receiving::Receiving;
use sending::Sending;

/// Receives kept for control messages on a reliable connection.
pub(crate) const CONTROL_RELIABLE: usize = 3;

/// Receives kept for control messages on an unreliable connection.
pub(crate) const CONTROL_UNRELIABLE: usize = 6;

/// What both ends agreed on; the values must be the same at both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Config {
    /// Whether the queue pair delivers every message (RC) or may lose some (UC).
    pub(crate) reliable: bool,
    /// Receives posted at each end: the smaller of what the two offer.
    pub(crate) depth: usize,
    /// The longest message, in bytes and with its header: the smaller of what the two offer.
    pub(crate) message: usize,
    /// UC: how many questions, or resends of the same message, without progress are an error.
    pub(crate) ask_limit: u32,
}

impl Config {
    /// The smallest depth that works: the control messages' receives and one for data.
    pub(crate) fn least_depth(reliable: bool) -> usize {
        1 + if reliable { CONTROL_RELIABLE } else { CONTROL_UNRELIABLE }
    }

    /// How many data messages may be on their way at once: the receives that are not kept for control messages.
    pub(crate) fn credits(&self) -> usize {
        self.depth.saturating_sub(Self::least_depth(self.reliable) - 1)
    }

    /// Send slots, which is also the greatest number of sends that are posted at once: one for each credit, of
    /// `message` bytes, and a last one for control messages, of [`HEADER`] bytes.
    pub(crate) fn send_slots(&self) -> usize {
        self.credits() + 1
    }

    /// Receive slots, of `message` bytes each, which is also the greatest number of receives that are posted at once.
    pub(crate) fn receive_slots(&self) -> usize {
        self.depth
    }
}

/// A message to post now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Post {
    /// Its send slot, below [`Config::send_slots`].
    pub(crate) slot: usize,
    /// What the first [`HEADER`] bytes of the slot must be. The device does not own the slot now, so they may be
    /// written.
    pub(crate) header: [u8; HEADER],
    /// The message's length in bytes, header included.
    pub(crate) bytes: usize,
    /// The data message's number; `None` for a control message.
    sequence: Option<u64>,
    said: Header,
}

/// Both directions of one queue pair. See the module's documentation for who calls what.
#[derive(Debug)]
pub(crate) struct Link {
    config: Config,
    sending: Sending,
    receiving: Receiving,
}

impl Link {
    /// A link whose receives are all still to be posted. Errors: no room for data beside the control messages
    /// ([`Config::least_depth`]), or beside the header.
    pub(crate) fn new(config: Config) -> Result<Self, Fault> {
        let (depth, message) = (Config::least_depth(config.reliable), HEADER + 1);
        if config.depth < depth {
            return Err(Fault::TooSmall { what: "receives", offered: config.depth, least: depth });
        }
        if config.message < message {
            return Err(Fault::TooSmall { what: "bytes a message", offered: config.message, least: message });
        }
        Ok(Self { config, sending: Sending::new(&config), receiving: Receiving::new(&config) })
    }

    /// What both ends agreed on.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Where the next bytes of our stream go, if there is a place for them: the rest of a message that still waits
    /// for credit, or a free slot. The message is not posted before [`wrote`](Self::wrote), so the bytes may be
    /// copied without a lock on the link. `None`: no room now, or [`finish`](Self::finish) was called.
    pub(crate) fn room(&mut self) -> Option<Room> {
        self.sending.room()
    }

    /// Whether [`room`](Self::room) would name a place.
    pub(crate) fn has_room(&self) -> bool {
        self.sending.has_room()
    }

    /// Says that the first `bytes` of what [`room`](Self::room) named were written; 0 gives the room back.
    pub(crate) fn wrote(&mut self, bytes: usize, now: Duration) {
        self.sending.wrote(bytes, now);
    }

    /// Ends our stream: the end follows the bytes written so far.
    pub(crate) fn finish(&mut self, now: Duration) {
        self.sending.finish(now);
    }

    /// What to post next, if anything: data as long as there is credit, then a control message if one is due. Changes
    /// nothing: the endpoint posts it and calls [`posted`](Self::posted) before any other method, or, if the device
    /// refuses it, tries again later.
    pub(crate) fn next_post(&self) -> Option<Post> {
        if let Some(sequence) = self.sending.next_data() {
            let (slot, length, own) = self.sending.message(sequence);
            return Some(self.post(Some(sequence), slot, sequence, length, own));
        }
        let asking = self.sending.question_due();
        if self.sending.control_free() && (asking || self.receiving.control_due()) {
            let own = flags::CONTROL | if asking { flags::ASK } else { 0 };
            return Some(self.post(None, self.config.credits(), self.sending.sent(), 0, own));
        }
        None
    }

    fn post(&self, number: Option<u64>, slot: usize, sequence: u64, length: usize, own: u16) -> Post {
        let (acknowledged, limit, theirs) = self.receiving.state();
        // A message's length fits: devices count it in 32 bits.
        let length32 = u32::try_from(length).unwrap_or(u32::MAX);
        let said = Header { sequence, acknowledged, limit, length: length32, flags: own | theirs };
        Post { slot, header: said.encode(), bytes: HEADER + length, sequence: number, said }
    }

    /// Says that `post` was posted: the device owns its slot until [`completed`](Self::completed).
    pub(crate) fn posted(&mut self, post: &Post, now: Duration) {
        self.receiving.said(&post.said);
        self.sending.posted(post.sequence, &post.said, now);
    }

    /// Says that the send from `slot` completed. Errors: no send from that slot is posted.
    pub(crate) fn completed(&mut self, slot: usize, now: Duration) -> Result<(), Fault> {
        self.sending.completed(slot, now)
    }

    /// The next receive slot to post, if there is one. Changes nothing: see [`receive_posted`](Self::receive_posted).
    pub(crate) fn next_receive(&self) -> Option<usize> {
        self.receiving.next_receive()
    }

    /// Says that the slot which [`next_receive`](Self::next_receive) named was posted.
    pub(crate) fn receive_posted(&mut self) {
        self.receiving.posted();
    }

    /// Says that a message of `bytes` bytes, header included, lies in receive slot `slot`. `header` is a copy of the
    /// slot's first [`HEADER`] bytes (their rest is ignored where the message is shorter). Errors: the slot was not
    /// posted, or the message breaks the protocol; then nothing of it was used.
    pub(crate) fn received(
        &mut self,
        slot: usize,
        bytes: usize,
        header: &[u8; HEADER],
        now: Duration,
    ) -> Result<(), Fault> {
        self.receiving.arrived(slot)?;
        let header = Header::decode(header, bytes, &self.config)?;
        self.receiving.check(&header)?;
        self.sending.check(&header)?;
        self.receiving.accept(slot, &header);
        self.sending.heard(&header, now)
    }

    /// The next received message of the peer's stream. Its slot stays with the caller, who reads it where it lies, in
    /// as many pieces as it likes, and then calls [`give_back`](Self::give_back).
    pub(crate) fn take(&mut self) -> Take {
        self.receiving.take()
    }

    /// Whether a message waits for [`take`](Self::take).
    pub(crate) fn readable(&self) -> bool {
        self.receiving.readable()
    }

    /// Whether the peer's stream ended, and all of it was taken.
    pub(crate) fn ended(&self) -> bool {
        self.receiving.ended()
    }

    /// Returns a slot that [`take`](Self::take) gave out. Errors: it is not out.
    pub(crate) fn give_back(&mut self, slot: usize) -> Result<(), Fault> {
        self.receiving.give_back(slot)
    }

    /// Says that nobody reads the peer's stream any more: what comes is discarded, and the peer is told.
    pub(crate) fn stop_receiving(&mut self) {
        self.receiving.stop();
    }

    /// Whether the peer said that it reads our stream no more.
    pub(crate) fn peer_stopped(&self) -> bool {
        self.sending.peer_stopped()
    }

    /// Whether every byte written so far, and the end if [`finish`](Self::finish) was called, has been posted at
    /// least once.
    pub(crate) fn flushed(&self) -> bool {
        self.sending.flushed()
    }

    /// Whether nothing of ours is under way any more: all is posted, completed and, on UC, acknowledged, and nothing
    /// is due to be said. After both streams ended and both ends are drained, the queue pair may go. (The last
    /// acknowledgement may still be lost on UC: who waits for that asks in vain once the other is gone, so lingering
    /// needs a bound.)
    pub(crate) fn drained(&self) -> bool {
        self.sending.drained() && !self.receiving.control_due()
    }

    /// The first data message that was posted and is not done: not completed or, on UC, not acknowledged.
    pub(crate) fn unacknowledged(&self) -> Option<u64> {
        self.sending.unacknowledged()
    }

    /// When [`tick`](Self::tick) must be called at the latest, if nothing changes before. Always `None` on RC.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        self.sending.next_timeout()
    }

    /// Lets time pass; poll the completion queue first, so that what has arrived counts. Errors: the peer answers
    /// nothing, or acknowledges nothing, although it was asked [`Config::ask_limit`] times.
    pub(crate) fn tick(&mut self, now: Duration) -> Result<(), Fault> {
        self.sending.tick(now)
    }
}
