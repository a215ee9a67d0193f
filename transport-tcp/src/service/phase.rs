//! The service thread's part in forming: from what its links and dials say to a group that has formed, or failed.

use std::time::{Duration, Instant};

use nuvec_transport::{Error, Kind, RingLinks};

use super::Service;
use crate::cards::{Learned, Summary};
use crate::channel::TcpChannel;
use crate::control::{FROM_LEFT, TO_RIGHT, Targets};
use crate::dials::Purpose;
use crate::forming::{Forming, with_notes};
use crate::link::{Frame, FrameKind};

const _: () = assert!(TO_RIGHT + FROM_LEFT == 1, "the other link is found by subtraction");

/// How long a rank whose forming failed stays for its left to come: longer than that one's pauses.
const STAY: Duration = Duration::from_millis(1100);

/// What forming gave.
pub(crate) struct Formed {
    pub(crate) summary: Summary,
    pub(crate) ring: RingLinks<TcpChannel>,
}

/// Where the group stands.
pub(super) enum Phase {
    Forming(Forming),
    /// Everything is there; what the neighbours still need of this rank is being written.
    Settling {
        targets: Targets,
        deadline: Instant,
        formed: Box<Formed>,
    },
    Formed,
}

impl Service {
    /// When forming must be over, while it is not.
    pub(super) fn forming_timer(&self, now: Instant) -> Option<Instant> {
        match &self.phase {
            Phase::Forming(forming) if now < forming.deadline => Some(forming.deadline),
            Phase::Forming(forming) => Some(forming.patience),
            Phase::Settling { deadline, .. } => Some(*deadline),
            Phase::Formed => None,
        }
    }

    /// Takes a card, or a word, that arrived.
    pub(super) fn learn(&mut self, link: usize, (kind, payload): &Frame, now: Instant) {
        let Phase::Forming(forming) = &mut self.phase else { return };
        let learned = match kind {
            FrameKind::Card => forming.cards.learn(payload),
            FrameKind::Ready => forming.cards.learn_ready(payload),
            FrameKind::Refusal => match forming.told.learn(payload, self.base.context.size) {
                true => Learned::New,
                false => Learned::Known,
            },
            FrameKind::Message => return,
        };
        match learned {
            Learned::Known => {}
            Learned::New => self.base.control.send(1 - link, *kind, payload),
            Learned::Malformed(what) => {
                let from = if link == TO_RIGHT { self.base.context.right() } else { self.base.context.left() };
                let peer = self.base.context.peer(from, 0);
                self.fail(Error::new(Kind::Mismatch, what).with_peer(&peer), now);
            }
            Learned::Unfit(rank, what) => {
                // The other neighbour finds the same, and so need not ask why this rank left.
                self.base.control.send(1 - link, *kind, payload);
                let peer = self.base.context.peer(rank, 0);
                self.fail(Error::new(Kind::Mismatch, what).with_peer(&peer), now);
            }
        }
    }

    /// Forming has failed before its time was up. The others are told at once; where the left has not come yet, this rank
    /// stays a moment: the left then hears why, and passes it on, instead of finding nobody there.
    pub(super) fn fail(&mut self, why: Error, now: Instant) {
        if self.failed.is_none() && self.base.goes_on() {
            let why = self.base.tell_failed(why, now);
            // Without descriptors it could take no left that comes.
            let until = if why.kind() == Kind::Exhausted { now } else { now + STAY };
            self.failed = Some((why, until));
        }
    }

    /// When a rank whose forming failed leaves.
    pub(super) fn failed_timer(&self) -> Option<Instant> {
        self.failed.as_ref().map(|(_, until)| *until)
    }

    /// Whether a rank whose forming failed need stay no longer: its left has been told, or refused.
    fn check_failed(&mut self, now: Instant) {
        let Some((_, until)) = &self.failed else { return };
        let told = self.base.control.is_up(FROM_LEFT) || self.base.control.has_ended(FROM_LEFT);
        let over = now >= *until || self.forming_timer(now).is_none_or(|end| now >= end);
        if (told || over || !self.base.away.refusals.is_empty())
            && let Some((why, _)) = self.failed.take()
        {
            self.base.give_up(why, now);
        }
    }

    /// Links have ended.
    pub(super) fn links_ended(&mut self, ended: Vec<(usize, Error)>, now: Instant) {
        for (_, why) in ended {
            // A neighbour that needs nothing more of us may have formed, worked and left already.
            if let Phase::Forming(forming) = &self.phase
                && !forming.complete()
            {
                let what = format!("left before the group had formed: it {}", why.what());
                let why = why.with_what(what).with_advice("see its own output");
                let why = with_notes(why, self.base.away.refusals.text(self.base.context.rank));
                self.fail(why, now);
            }
        }
    }

    /// Whether forming is over, one way or the other.
    pub(super) fn check_forming(&mut self, now: Instant) {
        if !self.base.goes_on() || matches!(self.phase, Phase::Formed) {
            return;
        }
        if let Some(poison) = self.base.control.poisoned() {
            let poison = poison.clone();
            self.fail(poison, now);
        }
        if self.failed.is_some() {
            return self.check_failed(now);
        }
        if let Phase::Forming(forming) = &mut self.phase
            && forming.connected(&self.base.control)
            && let Some(word) = forming.cards.own_ready()
        {
            [TO_RIGHT, FROM_LEFT].into_iter().for_each(|link| self.base.control.send(link, FrameKind::Ready, &word));
        }
        match &mut self.phase {
            Phase::Forming(forming) if forming.complete() => self.settle(),
            Phase::Forming(forming) if now >= forming.deadline => {
                let unreached = self.dials.unreached(Purpose::is_to_right, now);
                // A rank that dialled the missing one, or refused it, says more: all fail with what is said first.
                let knows = unreached.is_some() || !self.base.away.refusals.is_empty();
                if !knows && now < forming.patience {
                    return;
                }
                let error =
                    forming.timed_out(&self.base.context, &self.base.control, unreached, &self.base.away.refusals);
                self.base.fail(with_notes(error, self.base.listeners.shortage()), now);
            }
            _ => {}
        }
        self.check_settled(now);
    }

    /// Everything is there.
    fn settle(&mut self) {
        let Phase::Forming(forming) = &mut self.phase else { return };
        let (summary, ring, deadline) = (forming.cards.summary(), forming.ring(), forming.patience);
        self.session = summary.session;
        let formed = Box::new(Formed { summary, ring });
        self.phase = Phase::Settling { targets: self.base.control.targets(), deadline, formed };
        self.base.control.write();
    }

    /// Whether what the neighbours need of this rank has been written.
    fn check_settled(&mut self, now: Instant) {
        let Phase::Settling { targets, deadline, .. } = &self.phase else { return };
        if !self.base.control.reached(targets) {
            if now >= *deadline {
                let error = self.base.context.error(Kind::TimedOut, "a neighbour does not read its control link");
                self.base.fail(error, now);
            }
            return;
        }
        if let Phase::Settling { formed, .. } = std::mem::replace(&mut self.phase, Phase::Formed) {
            let seconds = now.saturating_duration_since(self.base.context.began).as_secs_f64();
            self.base
                .context
                .step(format_args!("the group of {} has formed in {seconds:.3} s", self.base.context.size));
            // Whoever asked may have given up: then the fabric's end closes this thread too.
            let _ = self.reply.send(Ok(*formed));
        }
    }
}
