//! The service thread of a ring: one per group of all ranks.
//!
//! It owns the listeners, the connections whose hello is not over, the dials and the control links, and sleeps in poll(2)
//! over all of them. It forms the group, then goes on to take streams, open them, and run the control links until it is
//! told to close. Data channels are not its business once they are handed out.

mod child;
mod phase;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use nuvec_transport::{Deadline, Error, GroupId, Result};

use crate::admission::Admission;
use crate::base::Base;
use crate::channel::{TcpChannel, TcpSender};
use crate::context::NO_SESSION;
use crate::control::{Events, TO_RIGHT};
use crate::dial::Dial;
use crate::dials::{Dials, Purpose};
use crate::forming::Forming;
use crate::hello::Role;
use crate::link::FrameKind;
use crate::rings::Rings;
use crate::socket::Stream;
use crate::streams::{StreamId, Streams};

pub(crate) use phase::Formed;
use phase::Phase;

/// What the service thread of a ring is asked.
pub(crate) enum RingCommand {
    /// Open a stream.
    Open(StreamId, Deadline),
    /// Open the ring of a group of some of the ranks.
    OpenRing { group: GroupId, right: usize, deadline: Deadline },
    /// Give up what is being dialled for that group.
    Leave(GroupId),
}

pub(crate) struct Service {
    base: Base<RingCommand>,
    dials: Dials,
    phase: Phase,
    /// Why forming failed, and until when this rank stays to tell its left.
    failed: Option<(Error, Instant)>,
    session: [u8; 16],
    streams: Arc<Streams>,
    rings: Arc<Rings>,
    /// Gets the result of forming, once.
    reply: Sender<Result<Formed>>,
}

impl Drop for Service {
    /// However the thread ends, nobody waits for it in vain.
    fn drop(&mut self) {
        self.streams.end();
        self.rings.end();
    }
}

impl Service {
    pub(crate) fn new(
        base: Base<RingCommand>,
        forming: Forming,
        streams: Arc<Streams>,
        rings: Arc<Rings>,
        reply: Sender<Result<Formed>>,
    ) -> Self {
        let phase = Phase::Forming(forming);
        Self { base, dials: Dials::default(), phase, failed: None, session: NO_SESSION, streams, rings, reply }
    }

    /// The thread's whole life.
    pub(crate) fn run(mut self) {
        self.dial_right(Purpose::Control, Instant::now());
        while self.base.goes_on() {
            let timers =
                [self.dials.timer(), self.rings.timer(), self.forming_timer(Instant::now()), self.failed_timer()];
            let ready = self.base.wait(timers, self.dials.sources());
            let now = Instant::now();
            for command in self.base.obey(now) {
                self.obey(command, now);
            }
            self.take_connections(&ready, now);
            self.drive_dials(now);
            self.check_rings(now);
            self.base.tick(now);
            self.drive_control(now);
            self.check_forming(now);
            self.base.write();
        }
        self.dials = Dials::default();
        if let Some(error) = self.base.finish() {
            let _ = self.reply.send(Err(error));
        }
    }

    fn obey(&mut self, command: RingCommand, now: Instant) {
        match command {
            RingCommand::Open(key, deadline) => self.open_stream(key, deadline, now),
            RingCommand::OpenRing { group, right, deadline } => {
                self.open_ring(group, right, deadline.instant(), now);
            }
            RingCommand::Leave(group) => self.dials.cancel(|purpose| purpose.is_of(group)),
        }
    }

    /// Goes on with the hellos of those who connected, and takes new ones.
    fn take_connections(&mut self, ready: &[bool], now: Instant) {
        let Base { context, listeners, pending, control, away, .. } = &mut self.base;
        let mut admission = Admission {
            context,
            forming: match &mut self.phase {
                Phase::Forming(forming) => Some(forming),
                _ => None,
            },
            session: self.session,
            control,
            streams: &self.streams,
            rings: &self.rings,
            away,
            now,
        };
        pending.step(now, ready.iter().copied(), &mut admission);
        listeners.accept(now, &context.identity, pending);
    }

    /// Begins a dial to the right neighbour. It goes on until the group has formed.
    fn dial_right(&mut self, purpose: Purpose, now: Instant) {
        let context = &self.base.context;
        let (role, index) = match purpose {
            Purpose::Ring(index) => (Role::Ring, index),
            _ => (Role::Control, 0),
        };
        let to = context.right();
        let open = context.open(role, index, to, NO_SESSION, 0);
        let address = context.nodes[to][index].clone();
        // A moment more than forming has: forming's own end tells the whole story.
        let forming = if let Phase::Forming(forming) = &self.phase { forming.patience } else { now };
        let deadline = forming + Duration::from_secs(1);
        self.dials.add(purpose, Dial::new(context.peer(to, index), address, Some(open), now, deadline));
    }

    /// Begins to dial a stream's stripes.
    fn open_stream(&mut self, key: StreamId, deadline: Deadline, now: Instant) {
        let (group, to) = key;
        for index in 0..self.base.context.connections {
            let open = self.base.context.open(Role::P2p, index, to, self.session, group.0);
            let address = self.base.context.nodes[to][index].clone();
            let dial = Dial::new(self.base.context.peer(to, index), address, Some(open), now, deadline.instant());
            self.dials.add(Purpose::Stripe(key, index), dial.of_known_peer());
        }
    }

    /// Goes on with the dials.
    fn drive_dials(&mut self, now: Instant) {
        // A dial that stands may begin others.
        loop {
            let base = &mut self.base;
            let over = self.dials.step(now, &mut base.resolver, &base.context.identity, &mut base.pending);
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
                let peer = self.base.context.peer(key.1, index);
                self.base.context.step(format_args!("stream to {peer} stands"));
                self.streams.stripe_opened(key, index, TcpSender::alone(stream, peer));
            }
            Err(e) => {
                self.dials.cancel(|purpose| purpose.is_stripe_of(key));
                self.streams.open_failed(key, e.with_rank(self.base.context.rank));
            }
        }
    }

    /// A connection to the right stands.
    fn reached(&mut self, purpose: Purpose, stream: Stream, now: Instant) {
        let right = self.base.context.right();
        let index = if let Purpose::Ring(index) = purpose { index } else { 0 };
        let peer = self.base.context.peer(right, index);
        self.base.context.step(format_args!("connected to {peer} ({purpose})"));
        match purpose {
            Purpose::Control => {
                self.base.control.dialled(TO_RIGHT, stream, peer, now);
                self.send_cards(TO_RIGHT);
                for index in 0..self.base.context.connections {
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
            forming.cards.known().for_each(|card| self.base.control.send(link, FrameKind::Card, &card));
            forming.cards.ready().for_each(|word| self.base.control.send(link, FrameKind::Ready, &word));
            forming.told.known().for_each(|told| self.base.control.send(link, FrameKind::Refusal, &told));
        }
    }

    /// Goes on with the control links.
    fn drive_control(&mut self, now: Instant) {
        let Events { up, frames } = self.base.control.read(now);
        up.into_iter().for_each(|link| self.send_cards(link));
        for (link, frame) in frames {
            self.learn(link, &frame, now);
        }
        // What the handler says to an end may end the other link too; there are two, so this ends.
        loop {
            let ended = self.base.take_ended(now);
            if ended.is_empty() {
                return;
            }
            self.links_ended(ended, now);
        }
    }
}
