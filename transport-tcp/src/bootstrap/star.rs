//! The service thread of a star.
//!
//! Until all ranks are ready, the end of any link is a failure of the group: it takes every rank to build what the cards
//! are for. From then on a link's end is the handler's business alone.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use nuvec_transport::{Deadline, Error, Kind, Peer, Result};

use super::door::Door;
use super::meeting::{Fault, Meeting};
use crate::base::Base;
use crate::cards::Summary;
use crate::context::{Context, NO_SESSION};
use crate::control::{ControlLinks, Events, Targets};
use crate::dial::Dial;
use crate::forming::with_notes;
use crate::hello::Role;
use crate::link::{Frame, FrameKind};
use crate::refusals::KEY_ADVICE;

/// The most that is queued for a link beyond the handler's messages, in bytes.
const MOST_AHEAD: usize = 64 << 10;

/// What is called whenever the thread wakes: see [`Bootstrap::attend`](super::Bootstrap::attend).
pub(super) type Work = Box<dyn FnMut() -> Duration + Send>;

/// What the service thread of a star is asked.
pub(super) enum StarCommand {
    /// This rank is ready: answer once every rank is, by the deadline.
    Ready(Deadline, Sender<Result<()>>),
    /// This rank cannot go on.
    Fail(Error),
    /// Call this whenever the thread wakes.
    Attend(Work),
}

/// What every rank knows once all have met.
pub(super) struct Met {
    pub(super) cards: Vec<Vec<u8>>,
    pub(super) peers: Vec<Peer>,
    pub(super) summary: Summary,
}

/// Where the group stands.
enum Phase {
    /// Cards are missing.
    Meeting { deadline: Instant, reply: Sender<Result<Met>> },
    /// Every rank builds what the cards are for, this one too.
    Met,
    /// This rank is ready, others are not.
    Ready { deadline: Instant, reply: Sender<Result<()>> },
    /// All are ready.
    Formed,
}

pub(super) struct Star {
    base: Base<StarCommand>,
    /// To rank 0, until it stands.
    dial: Option<Dial>,
    meeting: Meeting,
    phase: Phase,
    session: [u8; 16],
    /// How far the links must have written for the next phase: what the others still need of this rank.
    settling: Option<Targets>,
    /// Why the thread has ended.
    failure: Arc<OnceLock<Error>>,
    work: Option<Work>,
    work_due: Option<Instant>,
}

impl Star {
    pub(super) fn new(
        base: Base<StarCommand>,
        meeting: Meeting,
        deadline: Deadline,
        reply: Sender<Result<Met>>,
        failure: Arc<OnceLock<Error>>,
    ) -> Self {
        let context = &base.context;
        let dial = (context.rank != 0).then(|| {
            let open = context.open(Role::Bootstrap, 0, 0, NO_SESSION, 0);
            // A moment more than there is: the end of that tells the whole story.
            let until = deadline.instant() + Duration::from_secs(1);
            Dial::new(context.peer(0, 0), context.nodes[0][0].clone(), Some(open), Instant::now(), until)
        });
        let phase = Phase::Meeting { deadline: deadline.instant(), reply };
        let (session, settling, work, work_due) = (NO_SESSION, None, None, None);
        Self { base, dial, meeting, phase, session, settling, failure, work, work_due }
    }

    /// The thread's whole life.
    pub(super) fn run(mut self) {
        while self.base.goes_on() {
            let timers = [self.dial.as_ref().map(Dial::timer), self.deadline(), self.work_due];
            let ready = self.base.wait(timers, self.dial.iter().filter_map(Dial::source));
            let now = Instant::now();
            for command in self.base.obey(now) {
                self.obey(command, now);
            }
            self.take_connections(&ready, now);
            self.drive_dial(now);
            self.base.tick(now);
            self.attend();
            self.drive_control(now);
            self.advance(now);
            self.introduce();
            self.base.write();
        }
        self.dial = None;
        let closed = self.base.context.error(Kind::Closed, "the group was closed");
        let error = self.base.finish().unwrap_or(closed);
        // Whoever asks later gets it here; whoever asked may have given up.
        let _ = self.failure.set(error.clone());
        match self.phase {
            Phase::Meeting { reply, .. } => drop(reply.send(Err(error))),
            Phase::Ready { reply, .. } => drop(reply.send(Err(error))),
            Phase::Met | Phase::Formed => {}
        }
    }

    /// By when this phase must be over.
    fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Meeting { deadline, .. } | Phase::Ready { deadline, .. } => Some(*deadline),
            Phase::Met | Phase::Formed => None,
        }
    }

    fn obey(&mut self, command: StarCommand, now: Instant) {
        match command {
            StarCommand::Ready(deadline, reply) => {
                self.phase = Phase::Ready { deadline: deadline.instant(), reply };
                if let Some(word) = self.meeting.own_ready() {
                    self.base.control.indices().for_each(|link| self.base.control.send(link, FrameKind::Ready, &word));
                }
            }
            StarCommand::Fail(why) => self.base.fail(why, now),
            StarCommand::Attend(work) => self.work = Some(work),
        }
    }

    fn attend(&mut self) {
        if let Some(work) = &mut self.work {
            let pause = work();
            self.work_due = Instant::now().checked_add(pause);
        }
    }

    /// Goes on with the hellos of those who connected, and takes new ones.
    fn take_connections(&mut self, ready: &[bool], now: Instant) {
        let Base { context, listeners, pending, control, away, .. } = &mut self.base;
        let meets = matches!(self.phase, Phase::Meeting { .. });
        let mut door = Door { context, meets, session: self.session, control, away, now };
        pending.step(now, ready.iter().copied(), &mut door);
        listeners.accept(now, &context.identity, pending);
    }

    fn drive_dial(&mut self, now: Instant) {
        let (Some(dial), base) = (&mut self.dial, &mut self.base) else { return };
        let Some(result) = dial.step(now, &mut base.resolver, &base.context.identity, &mut base.pending) else {
            return;
        };
        match result {
            Ok(stream) => {
                let peer = base.context.peer(0, 0);
                base.context.step(format_args!("connected to {peer} (bootstrap)"));
                base.control.dialled(0, stream, peer, now);
            }
            Err(e) => base.fail(e, now),
        }
        self.dial = None;
    }

    /// Goes on with the links.
    fn drive_control(&mut self, now: Instant) {
        let Events { frames, .. } = self.base.control.read(now);
        for (link, frame) in frames {
            if let Err((rank, what)) = self.learn(link, &frame) {
                let error = Error::new(Kind::Mismatch, what).with_peer(&self.peer(rank));
                self.base.fail(error, now);
            }
        }
        // What the handler says to an end may end further links; there are only so many.
        loop {
            let ended = self.base.take_ended(now);
            if ended.is_empty() {
                return;
            }
            for (_, why) in ended {
                // One that needs nothing more of us may have worked and left already.
                if !self.meeting.cards.complete() {
                    let before = match self.phase {
                        Phase::Meeting { .. } => "every rank was there",
                        _ => "every rank was ready",
                    };
                    let what = format!("left before {before}: it {}", why.what());
                    self.base.fail(with_notes(why.with_what(what), self.refused()), now);
                }
            }
        }
    }

    /// Takes what came on a link.
    fn learn(&mut self, link: usize, (kind, payload): &Frame) -> Result<(), Fault> {
        match kind {
            FrameKind::Card => {
                let place = self.base.control.up(link).and_then(|(peer, _)| peer.address.parse().ok());
                self.meeting.take(link, place, payload)
            }
            FrameKind::Ready => {
                if self.meeting.take_ready(link, payload)? {
                    let control = &mut self.base.control;
                    let others = control.indices().filter(|other| *other != link);
                    others.for_each(|other| control.send(other, FrameKind::Ready, payload));
                }
                Ok(())
            }
            FrameKind::Message | FrameKind::Refusal => Ok(()),
        }
    }

    /// Tells the links of the ranks that they do not know, as fast as they take it.
    fn introduce(&mut self) {
        let control = &mut self.base.control;
        for link in control.indices() {
            loop {
                let has_room = |control: &ControlLinks| control.up(link).is_some_and(|(_, n)| n < MOST_AHEAD);
                if !has_room(control) {
                    control.write();
                    if !has_room(control) {
                        break;
                    }
                }
                match self.meeting.next_piece(link) {
                    Some(piece) => control.send(link, FrameKind::Card, piece),
                    None => break,
                }
            }
        }
    }

    /// Whether a phase is over, one way or the other.
    fn advance(&mut self, now: Instant) {
        if !self.base.goes_on() || matches!(self.phase, Phase::Formed) {
            return;
        }
        if let Some(poison) = self.base.control.poisoned() {
            let poison = poison.clone();
            return self.base.fail(poison, now);
        }
        let complete = match self.phase {
            Phase::Meeting { .. } => self.meeting.cards.missing().is_empty(),
            Phase::Ready { .. } => self.meeting.cards.complete(),
            Phase::Met | Phase::Formed => return,
        };
        if complete && self.settled() {
            return self.next_phase(now);
        }
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            let error = self.timed_out(complete, now);
            self.base.fail(with_notes(error, self.base.listeners.shortage()), now);
        }
    }

    /// Whether everything that the others need of this rank in this phase has been written.
    fn settled(&mut self) -> bool {
        self.introduce();
        self.base.control.write();
        if self.settling.is_none() {
            let own = self.base.context.rank;
            if !self.base.control.indices().all(|link| link == own || self.meeting.has_told_all(link)) {
                return false;
            }
            self.settling = Some(self.base.control.targets());
        }
        self.settling.as_ref().is_some_and(|targets| self.base.control.reached(targets))
    }

    fn next_phase(&mut self, now: Instant) {
        self.settling = None;
        let context = &self.base.context;
        let seconds = now.saturating_duration_since(context.began).as_secs_f64();
        // Whoever asked may have given up: then the bootstrap's end closes this thread too.
        match std::mem::replace(&mut self.phase, Phase::Formed) {
            Phase::Meeting { reply, .. } => {
                context.step(format_args!("the {} ranks have met in {seconds:.3} s", context.size));
                let summary = self.meeting.cards.summary();
                self.session = summary.session;
                let peers = (0..context.size).map(|rank| self.peer(rank)).collect();
                self.phase = Phase::Met;
                drop(reply.send(Ok(Met { cards: self.meeting.callers_cards(), peers, summary })));
            }
            Phase::Ready { reply, .. } => {
                context.step(format_args!("the group of {} is ready after {seconds:.3} s", context.size));
                drop(reply.send(Ok(())));
            }
            Phase::Met | Phase::Formed => {}
        }
    }

    /// A rank, with what is known of where it is.
    fn peer(&self, rank: usize) -> Peer {
        self.meeting.peer(rank, &self.base.context.peer(0, 0))
    }

    fn refused(&self) -> Option<String> {
        self.base.away.refusals.text(self.base.context.rank)
    }

    /// The error when the time is up. `complete`: all has come, but the others did not take what they need.
    fn timed_out(&self, complete: bool, now: Instant) -> Error {
        let Context { rank: own, nodes, began, .. } = &*self.base.context;
        let coordinator = &nodes[0][0];
        let seconds = now.saturating_duration_since(*began).as_secs_f64();
        let error = |rank: usize, what: String| Error::new(Kind::TimedOut, what).with_peer(&self.peer(rank));
        if complete {
            let slow = self.base.control.indices().find(|link| self.base.control.up(*link).is_some_and(|(_, n)| n > 0));
            return error(slow.unwrap_or(*own), "does not read its control link".into());
        }
        if let Phase::Ready { .. } = self.phase {
            let unready = self.meeting.cards.unready();
            let first = unready.first().copied().unwrap_or(*own);
            return error(first, format!("is there, but not ready in time{}", further(&unready, "ready")));
        }
        let missing = self.meeting.cards.missing();
        let first = missing.first().copied().unwrap_or(*own);
        if let Some(dial) = &self.dial {
            return dial.error(now);
        }
        let what = match () {
            () if *own != 0 => format!("is not there: it has not joined within {seconds:.1} s"),
            () if self.meeting.began(first) => format!("did not finish its card within {seconds:.1} s"),
            () if self.base.control.up(first).is_some() => format!("connected, but sent no card within {seconds:.1} s"),
            () => format!("is not there: it did not connect to rank 0 at {coordinator} within {seconds:.1} s"),
        };
        let advice = match self.base.away.refusals.of_key() {
            true => KEY_ADVICE.to_owned(),
            false => format!("is rank {first} started, with {coordinator} as coordinator?"),
        };
        let what = format!("{what}{}", further(&missing, "there"));
        with_notes(error(first, what), self.refused()).with_advice(advice)
    }
}

/// The ranks after the first, as part of a line.
fn further(ranks: &[usize], state: &str) -> String {
    match ranks.get(1..) {
        None | Some([]) => String::new(),
        Some([one]) => format!("; rank {one} is not {state} either"),
        Some(all) => {
            let all: Vec<String> = all.iter().map(usize::to_string).collect();
            format!("; ranks {} are not {state} either", all.join(", "))
        }
    }
}
