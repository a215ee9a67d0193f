//! The service thread: one per group of all ranks.
//!
//! It owns the listeners, the connections whose hello is not over, the dials and the control links, and sleeps in poll(2)
//! over all of them. It forms the group, then goes on to take streams, open them, and run the control links until it is
//! told to close. Data channels are not its business once they are handed out.

mod child;
mod phase;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use nuvec_transport::{Deadline, Error, GroupId, Park, Result, Wake};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::admission::Admission;
use crate::channel::{TcpChannel, TcpSender};
use crate::context::{Context, NO_SESSION};
use crate::control::{ControlLinks, Events, TO_RIGHT};
use crate::dial::Dial;
use crate::dials::{Dials, Purpose};
use crate::forming::{Forming, Refusals};
use crate::hello::Role;
use crate::link::FrameKind;
use crate::listen::Listeners;
use crate::log::Warning;
use crate::pending::Pending;
use crate::resolve::{Resolution, Resolver};
use crate::rings::Rings;
use crate::socket::Stream;
use crate::streams::{StreamId, Streams};

pub(crate) use phase::Formed;
use phase::Phase;

/// How long the last control messages may take to leave, when forming failed or the group is closed.
const LAST_WORDS: Duration = Duration::from_millis(800);

/// What the service thread is asked.
pub(crate) enum Command {
    /// The resolver has answered.
    Resolved(Resolution),
    /// Open a stream.
    Open(StreamId, Deadline),
    /// Open the ring of a group of some of the ranks.
    OpenRing { group: GroupId, right: usize, deadline: Deadline },
    /// Give up what is being dialled for that group.
    Leave(GroupId),
    /// Answer once all control messages so far are written.
    Flush(Sender<()>),
    /// End, by that moment.
    Close(Deadline),
}

/// How others reach the service thread.
#[derive(Clone)]
pub(crate) struct Mailbox {
    pub(crate) commands: Sender<Command>,
    pub(crate) wake: Arc<Wake>,
    pub(crate) kicked: Arc<AtomicBool>,
}

impl Mailbox {
    /// Sends a command; `false` if the thread has ended.
    pub(crate) fn send(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        self.wake.notify();
        sent
    }

    /// Has the handler's tick called soon. Many kicks before the thread wakes are one.
    pub(crate) fn kick(&self) {
        if !self.kicked.swap(true, Ordering::AcqRel) {
            self.wake.notify();
        }
    }
}

/// Why the loop ends, and when it must have ended.
struct End {
    error: Option<Error>,
    by: Instant,
}

pub(crate) struct Service {
    context: Arc<Context>,
    listeners: Listeners,
    pending: Pending,
    dials: Dials,
    resolver: Resolver,
    control: ControlLinks,
    phase: Phase,
    session: [u8; 16],
    streams: Arc<Streams>,
    rings: Arc<Rings>,
    commands: Receiver<Command>,
    wake: Arc<Wake>,
    kicked: Arc<AtomicBool>,
    flushes: Vec<([Option<u64>; 2], Sender<()>)>,
    refusals: Refusals,
    strangers: Warning,
    refused: Warning,
    /// Gets the result of forming, once.
    reply: Sender<Result<Formed>>,
    end: Option<End>,
}

impl Drop for Service {
    /// However the thread ends, nobody waits for it in vain.
    fn drop(&mut self) {
        self.streams.end();
        self.rings.end();
    }
}

impl Service {
    #[expect(clippy::too_many_arguments, reason = "the parts of a service are made by its caller, once")]
    pub(crate) fn new(
        context: Arc<Context>,
        listeners: Listeners,
        control: ControlLinks,
        forming: Forming,
        streams: Arc<Streams>,
        rings: Arc<Rings>,
        mailbox: Mailbox,
        commands: Receiver<Command>,
        reply: Sender<Result<Formed>>,
    ) -> Self {
        let (wake, kicked) = (Arc::clone(&mailbox.wake), Arc::clone(&mailbox.kicked));
        let resolver = Resolver::new(move |answer| {
            // A thread that has ended needs no answer.
            let _ = mailbox.send(Command::Resolved(answer));
        });
        Self {
            context,
            listeners,
            pending: Pending::default(),
            dials: Dials::default(),
            resolver,
            control,
            phase: Phase::Forming(forming),
            session: NO_SESSION,
            streams,
            rings,
            commands,
            wake,
            kicked,
            flushes: Vec::new(),
            refusals: Refusals::default(),
            strangers: Warning::default(),
            refused: Warning::default(),
            reply,
            end: None,
        }
    }

    /// The thread's whole life.
    pub(crate) fn run(mut self) {
        self.dial_right(Purpose::Control, Instant::now());
        while self.end.is_none() {
            let ready = self.wait();
            let now = Instant::now();
            self.obey(now);
            self.take_connections(&ready, now);
            self.drive_dials(now);
            self.check_rings(now);
            if self.kicked.swap(false, Ordering::AcqRel) || now >= self.control.timer() {
                self.control.tick(now);
            }
            self.drive_control(now);
            self.check_forming(now);
            self.control.write();
            self.answer_flushes();
        }
        self.finish();
    }

    /// Sleeps until something is ready or due. Returns which pending connections are ready.
    fn wait(&self) -> Vec<bool> {
        let now = Instant::now();
        let timers = [
            self.listeners.timer(),
            self.pending.timer(),
            self.dials.timer(),
            self.rings.timer(),
            self.forming_timer(),
        ];
        let due = timers.into_iter().flatten().fold(self.control.timer(), Instant::min);
        let left = due.saturating_duration_since(now);
        let mut sources: Vec<PollFd<'_>> = self.pending.sources().collect();
        let pending = sources.len();
        if let Park::Fd(fd, _) = self.wake.park() {
            sources.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        sources.extend(self.listeners.sources());
        sources.extend(self.dials.sources());
        sources.extend(self.control.sources());
        match poll(&mut sources, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) => sources[..pending].iter().map(|source| !source.revents().is_empty()).collect(),
            Err(rustix::io::Errno::INTR) => vec![false; pending],
            Err(e) => {
                // Out of kernel memory, at worst: everything is tried again a little later.
                tracing::warn!("rank {}: poll: {e}", self.context.rank);
                std::thread::sleep(Duration::from_millis(10));
                vec![true; pending]
            }
        }
    }

    /// Does what the mailbox asks.
    fn obey(&mut self, now: Instant) {
        self.wake.drain();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Resolved(answer) => self.resolver.put(answer, now),
                Command::Open(key, deadline) => self.open_stream(key, deadline, now),
                Command::OpenRing { group, right, deadline } => {
                    self.open_ring(group, right, deadline.instant(), now);
                }
                Command::Leave(group) => self.dials.cancel(|purpose| purpose.is_of(group)),
                Command::Flush(reply) => {
                    self.control.tick(now);
                    self.flushes.push((self.control.targets(), reply));
                }
                Command::Close(deadline) => {
                    self.end.get_or_insert(End { error: None, by: deadline.instant().min(now + LAST_WORDS) });
                }
            }
        }
    }

    /// Goes on with the hellos of those who connected, and takes new ones.
    fn take_connections(&mut self, ready: &[bool], now: Instant) {
        let mut admission = Admission {
            context: &self.context,
            forming: match &mut self.phase {
                Phase::Forming(forming) => Some(forming),
                _ => None,
            },
            session: self.session,
            control: &mut self.control,
            streams: &self.streams,
            rings: &self.rings,
            refusals: &mut self.refusals,
            strangers: &mut self.strangers,
            refused: &mut self.refused,
            now,
        };
        self.pending.step(now, ready.iter().copied(), &mut admission);
        self.listeners.accept(now, &self.context.identity, &mut self.pending);
    }

    /// Begins a dial to the right neighbour. It goes on until the group has formed.
    fn dial_right(&mut self, purpose: Purpose, now: Instant) {
        let context = &self.context;
        let (role, index) = match purpose {
            Purpose::Ring(index) => (Role::Ring, index),
            _ => (Role::Control, 0),
        };
        let to = context.right();
        let open = context.open(role, index, to, NO_SESSION, 0);
        let address = context.nodes[to][index].clone();
        // A moment more than forming has: forming's own end tells the whole story.
        let deadline = self.forming_timer().unwrap_or(now) + Duration::from_secs(1);
        self.dials.add(purpose, Dial::new(context.peer(to, index), address, Some(open), now, deadline));
    }

    /// Begins to dial a stream's stripes.
    fn open_stream(&mut self, key: StreamId, deadline: Deadline, now: Instant) {
        let (group, to) = key;
        for index in 0..self.context.connections {
            let open = self.context.open(Role::P2p, index, to, self.session, group.0);
            let address = self.context.nodes[to][index].clone();
            let dial = Dial::new(self.context.peer(to, index), address, Some(open), now, deadline.instant());
            self.dials.add(Purpose::Stripe(key, index), dial);
        }
    }

    /// Goes on with the dials.
    fn drive_dials(&mut self, now: Instant) {
        // A dial that stands may begin others.
        loop {
            let over = self.dials.step(now, &mut self.resolver, &self.context.identity, &mut self.pending);
            if over.is_empty() {
                return;
            }
            for (purpose, result) in over {
                match (purpose, result) {
                    (Purpose::Stripe(key, index), result) => self.stripe(key, index, result),
                    (Purpose::ChildRing { group, right, index }, result) => {
                        self.child_reached(group, right, index, result);
                    }
                    (purpose, Ok(stream)) => self.reached(purpose, stream, now),
                    (_, Err(e)) => self.fail(e, now),
                }
            }
        }
    }

    fn stripe(&mut self, key: StreamId, index: usize, result: Result<Stream>) {
        match result {
            Ok(stream) => {
                let peer = self.context.peer(key.1, index);
                self.context.step(format_args!("stream to {peer} stands"));
                self.streams.stripe_opened(key, index, TcpSender::alone(stream, peer));
            }
            Err(e) => {
                self.dials.cancel(|purpose| purpose.is_stripe_of(key));
                self.streams.open_failed(key, e.with_rank(self.context.rank));
            }
        }
    }

    /// A connection to the right stands.
    fn reached(&mut self, purpose: Purpose, stream: Stream, now: Instant) {
        let right = self.context.right();
        let index = if let Purpose::Ring(index) = purpose { index } else { 0 };
        let peer = self.context.peer(right, index);
        self.context.step(format_args!("connected to {peer} ({purpose})"));
        match purpose {
            Purpose::Control => {
                self.control.dialled(stream, peer, now);
                self.send_cards(TO_RIGHT);
                for index in 0..self.context.connections {
                    self.dial_right(Purpose::Ring(index), now);
                }
            }
            Purpose::Ring(index) => {
                if let Phase::Forming(forming) = &mut self.phase {
                    forming.dialled(index, TcpChannel::new(stream, peer));
                }
            }
            Purpose::ChildRing { .. } | Purpose::Stripe(..) => {}
        }
    }

    /// Gives a link that has come up everything that is known.
    fn send_cards(&mut self, link: usize) {
        if let Phase::Forming(forming) = &self.phase {
            forming.cards.known().for_each(|card| self.control.send(link, FrameKind::Card, &card));
            forming.cards.ready().for_each(|word| self.control.send(link, FrameKind::Ready, &word));
        }
    }

    /// Goes on with the control links.
    fn drive_control(&mut self, now: Instant) {
        let Events { up, frames } = self.control.read(now);
        up.into_iter().for_each(|link| self.send_cards(link));
        for (link, frame) in frames {
            self.learn(link, &frame, now);
        }
        // What the handler says to an end may end the other link too; there are two, so this ends.
        loop {
            self.control.write();
            let ended = self.control.take_ended();
            if ended.is_empty() {
                return;
            }
            self.links_ended(ended, now);
        }
    }

    fn answer_flushes(&mut self) {
        let control = &self.control;
        self.flushes.retain(|(targets, reply)| {
            let done = control.reached(targets);
            if done {
                // Whoever asked may have given up.
                let _ = reply.send(());
            }
            !done
        });
    }

    /// Ends the control links, and reports why forming failed, if it did.
    fn finish(mut self) {
        let Some(End { error, by }) = self.end.take() else { return };
        self.listeners = Listeners::default();
        self.pending = Pending::default();
        self.dials = Dials::default();
        self.control.close(by);
        self.answer_flushes();
        self.context.step(format_args!("closed"));
        if let Some(error) = error {
            let _ = self.reply.send(Err(error));
        }
    }
}
