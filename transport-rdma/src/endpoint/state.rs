//! What an [`Endpoint`](super::Endpoint) locks: the queue pair, the slots that it does not have, and the link; and how
//! completions and what is to be posted go between them.
//!
//! What may not live here: waiting, the bell, and what the halves are told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuvec_transport::{Error, Kind, Peer, Result};

use super::{Half, Message};
use crate::link::{Config, Fault, HEADER, Link, Post};
use crate::verbs::{Completion, Connected, ProtectionDomain, Slab, Slot, Work};

/// The most that one call polls, in batches: then others have their turn.
const MOST_POLLS: usize = 64;

/// In teardown order: the queue pair first, which keeps what is posted; then the slots that are held.
pub(super) struct State {
    pub(super) queue_pair: Connected,
    pub(super) sends: Vec<Option<Slot>>,
    pub(super) receives: Vec<Option<Slot>>,
    pub(super) link: Link,
    pub(super) failure: Option<Error>,
    pub(super) waiting: Waiting,
    /// Which halves were dropped, and when both were.
    pub(super) sender_gone: bool,
    pub(super) receiver_gone: bool,
    pub(super) gone: Option<Duration>,
    /// When the peer's process was seen to end, and how that shows.
    pub(super) ended: Option<(Duration, Error)>,
    /// Something has arrived since the service thread last came by.
    pub(super) arrived: bool,
    /// A message that the other end has not acknowledged, and since when the service thread has seen so.
    pub(super) unacknowledged: Option<(u64, Duration)>,
    pub(super) done: Vec<Completion>,
    pub(super) peer: Peer,
    pub(super) reliable: bool,
    pub(super) began: Instant,
    /// The link's time: when something last happened. A reliable queue pair has no use for it.
    pub(super) clock: Duration,
}

/// Whether a half waits for the bell, and what the sending half waits for.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) sender: bool,
    pub(super) receiver: bool,
    /// The sending half asked last whether everything was posted, not for room.
    pub(super) flush: bool,
}

impl Waiting {
    pub(super) fn of(&mut self, half: Half) -> &mut bool {
        match half {
            Half::Sender => &mut self.sender,
            Half::Receiver => &mut self.receiver,
        }
    }
}

impl State {
    /// Brings the link's time up to date: when something happens, before a half sleeps, and when the service thread comes
    /// by. A half that polls in vain does not, since there are machines where reading a clock takes microseconds.
    pub(super) fn look_at_clock(&mut self) {
        if !self.reliable {
            self.clock = self.began.elapsed();
        }
    }

    pub(super) fn has_more_to_say(&self) -> bool {
        self.failure.is_none() && !self.link.drained()
    }

    pub(super) fn error(&self, kind: Kind, what: &'static str) -> Error {
        Error::new(kind, what).with_peer(&self.peer)
    }

    /// The first failure stays. What is posted is flushed, which wakes whoever waits.
    pub(super) fn fail(&mut self, error: Error) {
        if self.failure.is_none() {
            tracing::debug!("channel to {} failed: {error}", self.peer);
            self.failure = Some(if error.peer().is_some() { error } else { error.with_peer(&self.peer) });
            self.queue_pair.abort();
        }
    }

    /// Takes in all that the device has done, and gives it what there is to do.
    pub(super) fn progress(&mut self) {
        for _ in 0..MOST_POLLS {
            let mut done = std::mem::take(&mut self.done);
            let polled = self.queue_pair.poll(&mut done);
            if !done.is_empty() {
                self.look_at_clock();
            }
            for completion in done.drain(..) {
                if let Err(e) = self.completed(completion) {
                    self.fail(e);
                }
            }
            self.done = done;
            match polled {
                Ok(true) => self.post(),
                Ok(false) => break,
                Err(e) => {
                    self.fail(e);
                    break;
                }
            }
        }
        if self.failure.is_none()
            && let Err(fault) = self.link.tick(self.clock)
        {
            self.fail(fault.into());
        }
        self.post();
    }

    fn completed(&mut self, completion: Completion) -> Result<()> {
        let (now, index) = (self.clock, completion.slot.index());
        match completion.work {
            Work::Send => {
                *self.sends.get_mut(index).ok_or_else(|| astray(index))? = Some(completion.slot);
                self.link.completed(index, now).map_err(Error::from)
            }
            Work::Receive => {
                self.arrived = true;
                let index = index.checked_sub(self.sends.len()).ok_or_else(|| astray(index))?;
                let place = self.receives.get_mut(index).ok_or_else(|| astray(index))?;
                let slot = place.insert(completion.slot);
                let mut header = [0; HEADER];
                // A message that is shorter than a header is refused for its length.
                if let Some(bytes) = slot.bytes().get(..HEADER) {
                    header.copy_from_slice(bytes);
                }
                self.link.received(index, completion.bytes, &header, now).map_err(Error::from)
            }
        }
    }

    /// Posts receives, then sends: a credit is announced only for a receive that is posted.
    pub(super) fn post(&mut self) {
        for work in [Self::post_receive, Self::post_send] {
            while self.failure.is_none() {
                match work(self) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(e) => self.fail(e),
                }
            }
        }
    }

    /// Posts the next receive; `false` if there is none, or no place for it.
    fn post_receive(&mut self) -> Result<bool> {
        let Some(index) = self.link.next_receive() else { return Ok(false) };
        let slot = self.receives.get_mut(index).and_then(Option::take).ok_or_else(|| astray(index))?;
        match self.queue_pair.post_receive(slot)? {
            Ok(()) => {
                self.link.receive_posted();
                Ok(true)
            }
            Err(slot) => {
                self.receives[index] = Some(slot);
                Ok(false)
            }
        }
    }

    /// Posts the next send; `false` if there is none, or no place for it.
    fn post_send(&mut self) -> Result<bool> {
        let Some(post) = self.link.next_post() else { return Ok(false) };
        let Post { slot: index, bytes, .. } = post;
        let mut slot = self.sends.get_mut(index).and_then(Option::take).ok_or_else(|| astray(index))?;
        if let Some(header) = slot.bytes_mut().get_mut(..HEADER) {
            header.copy_from_slice(&post.header);
        }
        match self.queue_pair.post_send(slot, bytes)? {
            Ok(()) => {
                self.link.posted(&post, self.clock);
                Ok(true)
            }
            Err(slot) => {
                self.sends[index] = Some(slot);
                Ok(false)
            }
        }
    }

    pub(super) fn give_back(&mut self, message: Message) {
        let index = message.bytes.slot;
        if let Some(place) = self.receives.get_mut(index) {
            *place = Some(message.slot);
        }
        if let Err(fault) = self.link.give_back(index) {
            self.fail(fault.into());
        }
    }

    /// Whether a half has something to do.
    pub(super) fn is_ready(&self, half: Half) -> bool {
        let something = match half {
            Half::Sender if self.waiting.flush => self.link.flushed() || self.link.peer_stopped(),
            Half::Sender => self.link.has_room() || self.link.peer_stopped(),
            Half::Receiver => self.link.readable() || self.link.ended(),
        };
        something || self.failure.is_some()
    }
}

/// The memory of one end: a slot for every send and receive, in one region.
pub(crate) struct Slots {
    pub(super) sends: Vec<Option<Slot>>,
    pub(super) receives: Vec<Option<Slot>>,
}

impl Slots {
    /// Registers what `config` needs. Errors: those of [`Slab::register`].
    pub(crate) fn new(domain: &Arc<ProtectionDomain>, config: &Config) -> Result<Self> {
        let (sends, receives) = (config.send_slots(), config.receive_slots());
        let mut slots = Slab::register(domain, sends + receives, config.message)?.into_iter().map(Some);
        Ok(Self { sends: slots.by_ref().take(sends).collect(), receives: slots.collect() })
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let kind = match fault {
            Fault::Silent { .. } => Kind::Unreachable,
            Fault::Lossy { .. } => Kind::Reset,
            Fault::TooSmall { .. } | Fault::Broken { .. } => Kind::Mismatch,
            Fault::Slot { .. } => Kind::Device,
        };
        Self::new(kind, fault.to_string())
    }
}

/// The error of a slot that is not where it must be.
pub(super) fn astray(index: usize) -> Error {
    Error::new(Kind::Device, format!("has a queue pair whose slot {index} was lost"))
}
