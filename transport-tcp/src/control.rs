//! The control links of this rank and the handler that reads them.
//!
//! A link is known by its index: in a ring [`TO_RIGHT`] and [`FROM_LEFT`], in a star the rank at its other end.
//!
//! Calls the handler, moves its messages, and reports what the transport itself must know: cards, ended links, and that
//! the root group failed. Understands none of the handler's messages.

use std::time::{Duration, Instant};

use nuvec_transport::{ControlHandler, Error, GroupId, Kind, LinkId, Outbox, Peer};
use rustix::event::{PollFd, Timespec, poll};

use crate::link::{Frame, FrameKind, Link};
use crate::socket::Stream;

/// The link that this rank of a ring dialled.
pub(crate) const TO_RIGHT: usize = 0;
/// The link that it accepted.
pub(crate) const FROM_LEFT: usize = 1;
/// The number of links of a rank of a ring.
pub(crate) const RING: usize = 2;

/// How far each link must have written; `None` for links that were not up.
pub(crate) type Targets = Vec<Option<u64>>;

/// How long an ended link's peer may take to end its direction too: closing over unread bytes would reset the
/// connection, and what it has not read yet might be lost.
const LINGER: Duration = Duration::from_millis(300);
/// The shortest time between two ticks.
const SHORTEST_TICK: Duration = Duration::from_millis(1);

#[derive(Debug)]
enum Slot {
    Empty,
    /// Granted, but the dialler has not shown yet that it knows: its own first frame does.
    Silent(Link),
    Up(Link),
    Ended,
}

/// What came on the links.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Links that are up now.
    pub(crate) up: Vec<usize>,
    /// What is the transport's own, with the link that it came on.
    pub(crate) frames: Vec<(usize, Frame)>,
}

/// The control links and their handler.
pub(crate) struct ControlLinks {
    handler: Box<dyn ControlHandler>,
    slots: Vec<Slot>,
    began: Instant,
    ticked: Instant,
    poisoned: Option<Error>,
    /// Ended links that no caller has been told of.
    ended: Vec<(usize, Error)>,
}

impl ControlLinks {
    /// Room for `count` links, none of which is up.
    pub(crate) fn new(count: usize, handler: Box<dyn ControlHandler>, began: Instant) -> Self {
        let slots = (0..count).map(|_| Slot::Empty).collect();
        Self { handler, slots, began, ticked: began, poisoned: None, ended: Vec::new() }
    }

    /// Every link's index.
    pub(crate) fn indices(&self) -> std::ops::Range<usize> {
        0..self.slots.len()
    }

    /// The root group's first failure, as the handler reported it.
    pub(crate) fn poisoned(&self) -> Option<&Error> {
        self.poisoned.as_ref()
    }

    /// Whether the link is up.
    pub(crate) fn is_up(&self, index: usize) -> bool {
        matches!(self.slots[index], Slot::Up(_))
    }

    /// Whether the link has ended.
    pub(crate) fn has_ended(&self, index: usize) -> bool {
        matches!(self.slots[index], Slot::Ended)
    }

    /// Whether another connection may become that link: there is none yet, or one that ended before its dialler used it.
    pub(crate) fn is_free(&self, index: usize) -> bool {
        match &self.slots[index] {
            Slot::Empty => true,
            Slot::Silent(link) => !link.is_open(),
            Slot::Up(_) | Slot::Ended => false,
        }
    }

    /// The rank at the other end of a link that is up, and how many bytes wait for it.
    pub(crate) fn up(&self, index: usize) -> Option<(&Peer, usize)> {
        match &self.slots[index] {
            Slot::Up(link) => Some((link.peer(), link.waiting())),
            _ => None,
        }
    }

    /// Takes a link that this rank dialled: it is up.
    pub(crate) fn dialled(&mut self, index: usize, stream: Stream, peer: Peer, now: Instant) {
        self.slots[index] = Slot::Up(Link::new(stream, peer));
        self.tell_up(index, now);
    }

    /// Takes a link that was granted to its dialler: it is up at its first frame.
    pub(crate) fn granted(&mut self, index: usize, stream: Stream, peer: Peer) {
        self.slots[index] = Slot::Silent(Link::new(stream, peer));
    }

    fn tell_up(&mut self, index: usize, now: Instant) {
        if let Slot::Up(link) = &self.slots[index] {
            let peer = link.peer().clone();
            self.call(now, |handler, now, out| handler.link_up(link_id(index), &peer, now, out));
        }
    }

    /// Tells the handler that a link ended.
    pub(crate) fn tell_ended(&mut self, index: usize, why: &Error, now: Instant) {
        self.call(now, |handler, now, out| handler.link_ended(link_id(index), why, now, out));
    }

    /// Tells the handler that forming failed.
    pub(crate) fn tell_failed(&mut self, why: &Error, now: Instant) {
        self.call(now, |handler, now, out| handler.forming_failed(why, now, out));
    }

    /// Calls the handler's tick.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.ticked = now;
        self.call(now, |handler, now, out| handler.tick(now, out));
    }

    /// When the next tick is due.
    pub(crate) fn timer(&self) -> Instant {
        let interval = self.handler.tick_interval().max(SHORTEST_TICK).min(Duration::from_secs(3600));
        self.ticked + interval
    }

    /// Calls the handler and queues what it wants sent.
    fn call(&mut self, now: Instant, call: impl FnOnce(&mut dyn ControlHandler, Duration, &mut Outbox)) {
        let mut out = Outbox::default();
        call(&mut *self.handler, now.saturating_duration_since(self.began), &mut out);
        for (group, error) in out.poisoned {
            if group == GroupId::ROOT {
                self.poisoned.get_or_insert(error);
            }
        }
        for (link, message) in out.messages {
            self.send(link.0 as usize, FrameKind::Message, &message);
        }
    }

    /// Queues a frame; dropped if the link is not up.
    pub(crate) fn send(&mut self, index: usize, kind: FrameKind, payload: &[u8]) {
        let Some(Slot::Up(link)) = self.slots.get_mut(index) else { return };
        match link.push(kind, payload) {
            Ok(()) => {}
            Err(e) if e.kind() == Kind::Misuse => tracing::error!("{e}"),
            Err(e) => self.end(index, e),
        }
    }

    fn end(&mut self, index: usize, why: Error) {
        self.slots[index] = Slot::Ended;
        self.ended.push((index, why));
    }

    /// What the owner must wait for.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.links().map(Link::source)
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Silent(link) | Slot::Up(link) => Some(link),
            Slot::Empty | Slot::Ended => None,
        })
    }

    /// Reads what came, with the handler called for each message.
    pub(crate) fn read(&mut self, now: Instant) -> Events {
        let mut events = Events::default();
        for index in self.indices() {
            self.read_link(index, now, &mut events);
        }
        events
    }

    /// The links that ended since the last call. The handler has not been told: see [`ControlLinks::tell_ended`].
    pub(crate) fn take_ended(&mut self) -> Vec<(usize, Error)> {
        std::mem::take(&mut self.ended)
    }

    /// Writes what waits, as far as the links take it.
    pub(crate) fn write(&mut self) {
        for index in self.indices() {
            if let Slot::Up(link) = &mut self.slots[index]
                && let Err(e) = link.write()
            {
                self.end(index, e);
            }
        }
    }

    fn read_link(&mut self, index: usize, now: Instant, events: &mut Events) {
        let mut frames: Vec<Frame> = Vec::new();
        let end = match &mut self.slots[index] {
            Slot::Silent(link) | Slot::Up(link) => link.read(&mut frames).err(),
            Slot::Empty | Slot::Ended => return,
        };
        if matches!(self.slots[index], Slot::Silent(_)) {
            if frames.is_empty() {
                // A dialler that left before it knew that it was granted: it comes again.
                if end.is_some() {
                    self.slots[index] = Slot::Empty;
                }
                return;
            }
            if let Slot::Silent(link) = std::mem::replace(&mut self.slots[index], Slot::Empty) {
                self.slots[index] = Slot::Up(link);
            }
            events.up.push(index);
            self.tell_up(index, now);
        }
        for (kind, payload) in frames {
            match kind {
                FrameKind::Card | FrameKind::Ready | FrameKind::Refusal => events.frames.push((index, (kind, payload))),
                FrameKind::Message => {
                    self.call(now, |handler, now, out| handler.message(link_id(index), &payload, now, out));
                }
            }
        }
        if let Some(why) = end
            && self.is_up(index)
        {
            self.end(index, why);
        }
    }

    /// How far each link must have written for all that is queued now to be written.
    pub(crate) fn targets(&self) -> Targets {
        let target = |slot: &Slot| match slot {
            Slot::Up(link) => Some(link.progress().1),
            _ => None,
        };
        self.slots.iter().map(target).collect()
    }

    /// Whether the links have written that far, or ended.
    pub(crate) fn reached(&self, targets: &[Option<u64>]) -> bool {
        self.slots.iter().zip(targets).all(|(slot, target)| match (slot, target) {
            (Slot::Up(link), Some(target)) => link.progress().0 >= *target,
            _ => true,
        })
    }

    /// Ends the links in an orderly way: writes what waits, ends this direction, and gives the peers a moment to read it
    /// all. Blocks until the deadline at the longest.
    pub(crate) fn close(&mut self, deadline: Instant) {
        loop {
            self.write();
            if self.reached(&self.targets()) || !self.wait(deadline) {
                break;
            }
            self.drain();
        }
        self.links().for_each(Link::shutdown);
        let deadline = deadline.min(Instant::now() + LINGER);
        loop {
            self.drain();
            if self.links().next().is_none() || !self.wait(deadline) {
                break;
            }
        }
        self.slots.fill_with(|| Slot::Ended);
    }

    /// Reads and forgets what came. A peer that has ended its direction reads no more words of this rank.
    fn drain(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot, Slot::Silent(link) | Slot::Up(link) if link.drain()) {
                *slot = Slot::Ended;
            }
        }
    }

    /// Waits for the links; `false` once the deadline has passed.
    fn wait(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut sources: Vec<PollFd<'_>> = self.sources().collect();
        // A failure (a signal) is no reason to give up before the deadline.
        let _ = poll(&mut sources, Timespec::try_from(left).ok().as_ref());
        !left.is_zero()
    }
}

fn link_id(index: usize) -> LinkId {
    LinkId(index as u32)
}
