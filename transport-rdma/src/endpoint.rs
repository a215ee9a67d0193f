//! One end of a channel: a queue pair, its memory, and the [`Link`] that says what they are used for.
//!
//! Both halves of the channel and the service thread share it, and each polls for all: whoever comes first hands out what
//! has arrived, so that no half's credits wait for the other half to run. What may not live here: what a message says.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuvec_transport::{Deadline, Error, Interest, Kind, Park, Peer, Result, wait_any};
use parking_lot::{Mutex, MutexGuard};

use crate::link::{Bytes, Config, Fault, HEADER, Link, Post, Take};
use crate::verbs::{
    Completion, CompletionChannel, Connected, Connection, Prepared, ProtectionDomain, Slab, Slot, Work,
};

/// The most that one call polls, in batches: then others have their turn.
const MOST_POLLS: usize = 64;

/// How soon the service thread looks again after an end that has something under way, and after one that has not.
const BUSY: Duration = Duration::from_millis(10);
const IDLE: Duration = Duration::from_millis(50);

/// How long an end whose halves are gone goes on, for what it has still to say.
const LINGER: Duration = Duration::from_secs(5);

/// How long what a peer sent before its process ended may take to arrive.
const DRAIN: Duration = Duration::from_millis(500);

/// One of a channel's halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Sender,
    Receiver,
}

impl Half {
    fn other(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }
}

/// One end of a channel.
pub(crate) struct Endpoint {
    state: Mutex<State>,
    bell: Option<Arc<CompletionChannel>>,
    peer: Peer,
    /// The process that the queue pair is of. In a forked child its memory is not there, and touching it would be fatal.
    process: u32,
}

/// Whether a half waits for the bell, and what the sending half waits for.
#[derive(Debug, Default)]
struct Waiting {
    sender: bool,
    receiver: bool,
    /// The sending half asked last whether everything was posted, not for room.
    flush: bool,
}

impl Waiting {
    fn of(&mut self, half: Half) -> &mut bool {
        match half {
            Half::Sender => &mut self.sender,
            Half::Receiver => &mut self.receiver,
        }
    }
}

/// In teardown order: the queue pair first, which keeps what is posted; then the slots that are held.
struct State {
    queue_pair: Connected,
    sends: Vec<Option<Slot>>,
    receives: Vec<Option<Slot>>,
    link: Link,
    failure: Option<Error>,
    waiting: Waiting,
    /// Which halves were dropped, and when both were.
    sender_gone: bool,
    receiver_gone: bool,
    gone: Option<Duration>,
    /// When the peer's process was seen to end, and how that shows.
    ended: Option<(Duration, Error)>,
    /// A message that the other end has not acknowledged, and since when the service thread has seen so.
    unacknowledged: Option<(u64, Duration)>,
    done: Vec<Completion>,
    peer: Peer,
    reliable: bool,
    began: Instant,
    /// The link's time: when something last happened. A reliable queue pair has no use for it.
    clock: Duration,
}

/// A received message, whose memory is the holder's until it is given back.
pub(crate) struct Message {
    slot: Slot,
    bytes: Bytes,
    read: usize,
}

impl Message {
    /// What was not read yet.
    pub(crate) fn rest(&self) -> &[u8] {
        self.slot.bytes().get(HEADER + self.read..HEADER + self.bytes.len).unwrap_or_default()
    }

    /// Says that the first `bytes` bytes of the rest were read.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.read += bytes;
    }
}

impl Endpoint {
    /// Connects a prepared queue pair to the peer's, with all the receives of `link`, for which `slots` were made, posted.
    /// Errors: the device takes fewer receives, or the peer cannot be reached. They do not name the peer.
    pub(crate) fn new(
        mut prepared: Prepared,
        slots: Slots,
        mut link: Link,
        connection: &Connection,
        peer: Peer,
    ) -> Result<Arc<Self>> {
        let bell = prepared.bell();
        let Slots { sends, mut receives } = slots;
        let config = *link.config();
        while let Some(index) = link.next_receive() {
            let slot = receives.get_mut(index).and_then(Option::take).ok_or_else(|| astray(index))?;
            prepared.post_receive(slot)?.map_err(|slot| {
                Error::new(Kind::Device, format!("takes only {} receives of {}", slot.index(), config.depth))
            })?;
            link.receive_posted();
        }
        let queue_pair = prepared.connect(connection)?;
        let state = State {
            queue_pair,
            sends,
            receives,
            link,
            failure: None,
            waiting: Waiting::default(),
            sender_gone: false,
            receiver_gone: false,
            gone: None,
            ended: None,
            unacknowledged: None,
            done: Vec::new(),
            peer: peer.clone(),
            reliable: config.reliable,
            began: Instant::now(),
            clock: Duration::ZERO,
        };
        Ok(Arc::new(Self { state: Mutex::new(state), bell, peer, process: std::process::id() }))
    }

    /// The peer.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Lets `write` put bytes into the next message, as often as there is room and `write`, which is given the room and
    /// returns how many bytes it wrote, fills it. Returns how many that were. Errors: the channel failed, or the peer reads
    /// no more.
    pub(crate) fn send(&self, write: &mut dyn FnMut(&mut [u8]) -> usize) -> Result<usize> {
        self.check_process()?;
        let mut state = self.enter(Half::Sender);
        state.waiting.flush = false;
        state.progress();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.link.peer_stopped() {
            return Err(state.error(Kind::Reset, "reads no more: it closed the connection"));
        }
        let mut sent = 0;
        while let Some(room) = state.link.room() {
            let Some(mut slot) = state.sends.get_mut(room.slot).and_then(Option::take) else {
                state.fail(astray(room.slot));
                break;
            };
            // The message is not posted before `wrote`, so others may use the endpoint meanwhile.
            let wrote = MutexGuard::unlocked(&mut state, || {
                let into = slot.bytes_mut().get_mut(room.offset..room.offset + room.len).unwrap_or_default();
                write(into).min(into.len())
            });
            state.sends[room.slot] = Some(slot);
            state.look_at_clock();
            let now = state.clock;
            state.link.wrote(wrote, now);
            state.post();
            sent += wrote;
            if wrote < room.len {
                break;
            }
        }
        Ok(sent)
    }

    /// Whether everything that was sent was posted to the device. Errors: it was not, and the channel failed.
    pub(crate) fn flush(&self) -> Result<bool> {
        self.check_process()?;
        let mut state = self.enter(Half::Sender);
        state.waiting.flush = true;
        state.progress();
        match (&state.failure, state.link.flushed()) {
            (_, true) => Ok(true),
            (Some(failure), false) => Err(failure.clone()),
            (None, false) if state.link.peer_stopped() => {
                Err(state.error(Kind::Reset, "reads no more: it closed the connection"))
            }
            (None, false) => Ok(false),
        }
    }

    /// Gives `read`, a message that was read, back, and returns the next one. Errors: the stream ended, or, once all that
    /// arrived was taken, the channel failed.
    pub(crate) fn receive(&self, read: Option<Message>) -> Result<Option<Message>> {
        self.check_process()?;
        let mut state = self.enter(Half::Receiver);
        if let Some(message) = read {
            state.give_back(message);
        }
        state.progress();
        match state.link.take() {
            Take::Bytes(bytes) => match state.receives.get_mut(bytes.slot).and_then(Option::take) {
                Some(slot) => Ok(Some(Message { slot, bytes, read: 0 })),
                None => {
                    state.fail(astray(bytes.slot));
                    Err(astray(bytes.slot).with_peer(&self.peer))
                }
            },
            Take::End => Err(state.error(Kind::PeerClosed, "closed the connection")),
            Take::Nothing => state.failure.clone().map_or(Ok(None), Err),
        }
    }

    /// Gives a message that was read back.
    pub(crate) fn give_back(&self, message: Message) {
        if self.check_process().is_err() {
            return;
        }
        let mut state = self.enter(Half::Receiver);
        state.give_back(message);
        state.progress();
    }

    /// How a half waits.
    ///
    /// The bell is one for both halves. Whoever silences it must know that the other is not asleep over it: as long as the
    /// other waits, it stays as it is, and a bell that rings meanwhile is the other's; then this half looks again by itself.
    pub(crate) fn park(&self, half: Half) -> Park<'_> {
        let Some(bell) = &self.bell else { return Park::Backoff };
        if self.check_process().is_err() {
            return Park::Ready;
        }
        let mut state = self.enter(half);
        state.look_at_clock();
        let other_waits = *state.waiting.of(half.other());
        if !other_waits {
            state.queue_pair.silence();
            if let Err(e) = state.queue_pair.arm() {
                state.fail(e);
            }
        }
        // What arrived before the bell was armed does not ring.
        state.progress();
        if state.is_ready(half) {
            return Park::Ready;
        }
        if other_waits && rings(bell) {
            return Park::Backoff;
        }
        *state.waiting.of(half) = true;
        Park::Fd(bell.as_fd(), Interest::Readable)
    }

    /// Ends a direction: our stream, after what was sent; or the peer's, of which nothing more is wanted.
    pub(crate) fn end(&self, half: Half, unread: Option<Message>) {
        if self.check_process().is_err() {
            return;
        }
        let mut state = self.enter(half);
        state.look_at_clock();
        let now = state.clock;
        match half {
            Half::Sender => {
                state.link.finish(now);
                state.sender_gone = true;
            }
            Half::Receiver => {
                if let Some(message) = unread {
                    state.give_back(message);
                }
                state.link.stop_receiving();
                state.receiver_gone = true;
            }
        }
        if state.sender_gone && state.receiver_gone {
            state.gone = Some(state.began.elapsed());
        }
        state.progress();
    }

    /// Lets time pass, and does what is due. Returns when to call it again; `None` once both halves are gone and there is
    /// nothing left to say, so that the end may go as well.
    pub(crate) fn attend(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        state.look_at_clock();
        state.progress();
        let now = state.began.elapsed();
        let since =
            |message| state.unacknowledged.filter(|(before, _)| *before == message).map_or(now, |(_, since)| since);
        state.unacknowledged = state.link.unacknowledged().map(|message| (message, since(message)));
        if let Some((ended, why)) = &state.ended
            && now > *ended + DRAIN
        {
            let why = why.clone();
            state.fail(why);
        }
        let said = state.link.drained();
        // A peer that neither reads nor sends any more waits for nothing.
        let unheard = state.gone.is_some() && state.link.peer_stopped() && state.link.ended();
        let quiet = state.failure.is_some() || said || unheard;
        if let Some(gone) = state.gone
            && (quiet || now > gone + LINGER)
        {
            return None;
        }
        let due = state.link.next_timeout().filter(|_| state.failure.is_none());
        let due = due.map_or(IDLE, |due| due.saturating_sub(now));
        let watched = state.ended.is_some() && state.failure.is_none();
        Some(due.min(if quiet && !watched { IDLE } else { BUSY }))
    }

    /// For how long the other end has acknowledged nothing, although there is something to acknowledge.
    pub(crate) fn unacknowledged(&self) -> Duration {
        if self.check_process().is_err() {
            return Duration::ZERO;
        }
        let state = self.state.lock();
        let message = state.link.unacknowledged();
        let seen = state.unacknowledged.filter(|(seen, _)| message == Some(*seen));
        seen.map_or(Duration::ZERO, |(_, since)| state.began.elapsed().saturating_sub(since))
    }

    /// Whether both halves are gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.state.lock().gone.is_some()
    }

    /// Says that the peer's process has ended: what it has sent before may still arrive for a moment; then the channel fails.
    pub(crate) fn peer_ended(&self, why: &Error) {
        let mut state = self.state.lock();
        let now = state.began.elapsed();
        state.ended.get_or_insert_with(|| (now, why.clone()));
    }

    /// Errors: this is a forked child of the process that the queue pair is of.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Error::new(Kind::Misuse, "a forked child cannot use its parent's group"))
    }

    fn enter(&self, half: Half) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        *state.waiting.of(half) = false;
        state
    }
}

impl State {
    /// Brings the link's time up to date: when something happens, before a half sleeps, and when the service thread comes
    /// by. A half that polls in vain does not, since there are machines where reading a clock takes microseconds.
    fn look_at_clock(&mut self) {
        if !self.reliable {
            self.clock = self.began.elapsed();
        }
    }

    fn error(&self, kind: Kind, what: &'static str) -> Error {
        Error::new(kind, what).with_peer(&self.peer)
    }

    /// The first failure stays. What is posted is flushed, which wakes whoever waits.
    fn fail(&mut self, error: Error) {
        if self.failure.is_none() {
            tracing::debug!("channel to {} failed: {error}", self.peer);
            self.failure = Some(if error.peer().is_some() { error } else { error.with_peer(&self.peer) });
            self.queue_pair.abort();
        }
    }

    /// Takes in all that the device has done, and gives it what there is to do.
    fn progress(&mut self) {
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
    fn post(&mut self) {
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

    fn give_back(&mut self, message: Message) {
        let index = message.bytes.slot;
        if let Some(place) = self.receives.get_mut(index) {
            *place = Some(message.slot);
        }
        if let Err(fault) = self.link.give_back(index) {
            self.fail(fault.into());
        }
    }

    /// Whether a half has something to do.
    fn is_ready(&self, half: Half) -> bool {
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
    sends: Vec<Option<Slot>>,
    receives: Vec<Option<Slot>>,
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
fn astray(index: usize) -> Error {
    Error::new(Kind::Device, format!("has a queue pair whose slot {index} was lost"))
}

/// Whether the bell rings now.
fn rings(bell: &CompletionChannel) -> bool {
    wait_any(&[Park::Fd(bell.as_fd(), Interest::Readable)], Deadline::after(Duration::ZERO)).unwrap_or(false)
}
