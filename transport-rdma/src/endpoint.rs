//! One end of a channel: a queue pair, its memory, and the [`Link`] that says what they are used for.
//!
//! Both halves of the channel and the service thread share it, and each polls for all: whoever comes first hands out what
//! has arrived, so that no half's credits wait for the other half to run. What may not live here: what a message says.

mod state;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuvec_transport::{Deadline, Error, Interest, Kind, Park, Peer, Result, wait_any};
use parking_lot::{Mutex, MutexGuard};

use crate::link::{Bytes, HEADER, Link, Take};
use crate::verbs::{CompletionChannel, Connection, Prepared, Slot};

pub(crate) use state::Slots;
use state::{State, Waiting, astray};

/// How soon the service thread looks again after an end that has something under way, and after one that has not.
const BUSY: Duration = Duration::from_millis(10);
const IDLE: Duration = Duration::from_millis(50);

/// How long an end whose halves are gone goes on, for what it has still to say.
pub(crate) const LINGER: Duration = Duration::from_secs(5);

/// How long what a peer sent before its process ended may take to arrive, or the next of it.
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
            arrived: false,
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
        if std::mem::take(&mut state.arrived)
            && let Some((ended, _)) = &mut state.ended
        {
            *ended = now;
        }
        if let Some((ended, why)) = &state.ended
            && now > *ended + DRAIN
        {
            let why = why.clone();
            state.fail(why);
        }
        // A peer that neither reads nor sends any more waits for nothing.
        let unheard = state.gone.is_some() && state.link.peer_stopped() && state.link.ended();
        let quiet = !state.has_more_to_say() || unheard;
        if let Some(gone) = state.gone
            && (quiet || now > gone + LINGER || state.unacknowledged.is_some_and(|(_, since)| now > since + LINGER))
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

    /// Whether something that was sent is still under way, and may arrive.
    pub(crate) fn has_more_to_say(&self) -> bool {
        let state = self.state.lock();
        state.has_more_to_say() && !state.link.peer_stopped()
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

/// Whether the bell rings now.
fn rings(bell: &CompletionChannel) -> bool {
    wait_any(&[Park::Fd(bell.as_fd(), Interest::Readable)], Deadline::after(Duration::ZERO)).unwrap_or(false)
}
