//! A group on a virtual clock, in one thread: ranks that stop, die or come late, and what the others say of it.
//!
//! The same seed plays the same run, message by message.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nuvec_transport::memory::{MemoryReceiver, MemorySender};
use nuvec_transport::{ControlHandler, Error, GroupId, Kind, LinkId, Outbox, Peer};

use super::{Choices, Halves, lanes_of, u32_sum};
use crate::call::{Algorithm, Call, Operation};
use crate::control::{Control, GroupState};
use crate::drive::Task;
use crate::inquiry::Inquiry;
use crate::lane::Lane;
use crate::plan::{self, Place};
use crate::{DType, Reduction};

const RIGHT: LinkId = LinkId(0);
const LEFT: LinkId = LinkId(1);
/// How far the clock goes at a time.
const STEP: Duration = Duration::from_millis(10);
/// The group's time-out.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Elements of each call.
const LEN: usize = 50;

/// What happens to one rank.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    /// It dies.
    Dies {
        at: Duration,
    },
    /// It stands still for a while: neither its calls nor its transport run.
    Stops {
        from: Duration,
        until: Duration,
    },
    /// It begins its call number `call` so long after it could.
    Late {
        call: u64,
        by: Duration,
    },
}

/// A lane that owns its halves. Its data are leaked: a few bytes a call, in a test.
type SimulatedLane = Lane<'static, MemorySender, MemoryReceiver>;

/// What a rank is doing.
enum Doing {
    /// Nothing, until then.
    Idle {
        until: Duration,
    },
    /// Bytes; none since then.
    Moving {
        lanes: Vec<SimulatedLane>,
        since: Duration,
    },
    /// Waiting for others' word of a failure; the connections stay open meanwhile.
    Asking(Inquiry, Vec<SimulatedLane>),
    Done,
    Failed {
        error: Error,
        at: Duration,
    },
}

struct Rank {
    control: Control,
    handler: Box<dyn ControlHandler>,
    group: Arc<GroupState>,
    halves: Vec<Halves>,
    doing: Doing,
    calls: u64,
    fault: Fault,
    next_tick: Duration,
    dead: bool,
}

/// A letter on its way.
struct Letter {
    due: Duration,
    to: usize,
    link: LinkId,
    /// `None`: the link ended.
    message: Option<Vec<u8>>,
}

struct World {
    now: Duration,
    ranks: Vec<Rank>,
    mail: VecDeque<Letter>,
    choices: Choices,
}

impl World {
    fn new(n: usize, victim: usize, fault: Fault, seed: u64) -> Self {
        let halves = lanes_of(n, 1, 64);
        let rank = |(rank, halves): (usize, Vec<Halves>)| {
            let peers: Vec<_> = (0..n).map(|r| Peer::new(r, "simulated")).collect();
            let control = Control::new();
            let mut handler = control.handler();
            handler.begin(rank, &peers, TIMEOUT);
            let group = control.join(GroupId::ROOT);
            let fault = if rank == victim { fault } else { Fault::None };
            let doing = Doing::Idle { until: Duration::ZERO };
            Rank { control, handler, group, halves, doing, calls: 0, fault, next_tick: Duration::ZERO, dead: false }
        };
        let ranks = halves.into_iter().enumerate().map(rank).collect();
        let mut world = Self { now: Duration::ZERO, ranks, mail: VecDeque::new(), choices: Choices(seed) };
        for r in 0..n {
            world.handle(r, |handler, now, out| {
                handler.link_up(RIGHT, &Peer::new((r + 1) % n, "simulated"), now, out);
                handler.link_up(LEFT, &Peer::new((r + n - 1) % n, "simulated"), now, out);
            });
        }
        world
    }

    /// Calls a rank's handler and posts what it sends.
    fn handle(&mut self, rank: usize, f: impl FnOnce(&mut dyn ControlHandler, Duration, &mut Outbox)) {
        let mut out = Outbox::default();
        f(self.ranks[rank].handler.as_mut(), self.now, &mut out);
        for (link, message) in out.messages {
            self.post(rank, link, Some(message));
        }
    }

    fn post(&mut self, from: usize, link: LinkId, message: Option<Vec<u8>>) {
        let n = self.ranks.len();
        let (to, link) = if link == RIGHT { ((from + 1) % n, LEFT) } else { ((from + n - 1) % n, RIGHT) };
        // A stream: no letter overtakes one before it on the same link.
        let delay = STEP * self.choices.below(3) as u32;
        let last = self.mail.iter().filter(|l| l.to == to && l.link == link).map(|l| l.due).max();
        let due = (self.now + delay).max(last.unwrap_or_default());
        self.mail.push_back(Letter { due, to, link, message });
    }

    fn stands_still(&self, rank: usize) -> bool {
        matches!(self.ranks[rank].fault, Fault::Stops { from, until } if (from..until).contains(&self.now))
    }

    /// Plays until every rank is done or has failed, at most for `limit`; where each stands.
    fn play(mut self, calls: u64, limit: Duration) -> Vec<Result<(), (Error, Duration)>> {
        while self.now < limit {
            self.deliver();
            for rank in 0..self.ranks.len() {
                if !self.stands_still(rank) && !self.ranks[rank].dead {
                    self.turn(rank, calls);
                }
            }
            if self.ranks.iter().all(|r| r.dead || matches!(r.doing, Doing::Done | Doing::Failed { .. })) {
                break;
            }
            self.now += STEP;
        }
        let outcome = |rank: Rank| match rank.doing {
            Doing::Failed { error, at } => Err((error, at)),
            Doing::Done => Ok(()),
            _ if rank.dead => Ok(()),
            _ => panic!("a rank hangs after {limit:?} in call {}: {:?}", rank.calls, rank.control.status()),
        };
        self.ranks.into_iter().map(outcome).collect()
    }

    fn deliver(&mut self) {
        // What comes for a rank that stands still waits for it; the rest stays in order of posting.
        let due = |world: &Self| world.mail.iter().position(|l| l.due <= world.now && !world.stands_still(l.to));
        while let Some(letter) = due(self).and_then(|at| self.mail.remove(at)) {
            let Letter { to, link, message, .. } = letter;
            if self.ranks[to].dead {
                continue;
            }
            let ended = Error::new(Kind::PeerClosed, "closed the connection");
            self.handle(to, |handler, now, out| match &message {
                Some(message) => handler.message(link, message, now, out),
                None => handler.link_ended(link, &ended, now, out),
            });
        }
    }

    /// One rank's share of the time: its transport, then its call.
    fn turn(&mut self, r: usize, calls: u64) {
        let (now, n) = (self.now, self.ranks.len());
        if matches!(self.ranks[r].fault, Fault::Dies { at } if now >= at) {
            self.ranks[r].dead = true;
            self.ranks[r].halves.clear();
            self.ranks[r].doing = Doing::Done;
            self.post(r, RIGHT, None);
            self.post(r, LEFT, None);
            return;
        }
        if now >= self.ranks[r].next_tick {
            self.ranks[r].next_tick = now + self.ranks[r].handler.tick_interval();
            self.handle(r, |handler, now, out| handler.tick(now, out));
        }
        let rank = &mut self.ranks[r];
        match std::mem::replace(&mut rank.doing, Doing::Done) {
            Doing::Idle { until } if now < until => rank.doing = Doing::Idle { until },
            Doing::Idle { .. } if rank.calls == calls => {}
            Doing::Idle { .. } => rank.begin(r, n, now),
            Doing::Moving { lanes, since } => {
                rank.doing = rank.go_on(lanes, since, now, &mut self.choices, n);
                if matches!(rank.doing, Doing::Asking(..)) {
                    self.handle(r, |handler, now, out| handler.tick(now, out));
                }
            }
            Doing::Asking(inquiry, lanes) => match inquiry.step(now, GroupId::ROOT, &rank.group, &rank.control) {
                None => rank.doing = Doing::Asking(inquiry, lanes),
                Some(cause) => {
                    // As a communicator does: poison, tell, close.
                    let error = rank.control.fail(GroupId::ROOT, &rank.group, cause);
                    rank.group.exit();
                    rank.doing = Doing::Failed { error, at: now };
                    self.handle(r, |handler, now, out| handler.tick(now, out));
                    drop(lanes);
                }
            },
            over @ (Doing::Done | Doing::Failed { .. }) => rank.doing = over,
        }
    }
}

impl Rank {
    /// Begins the next call, unless it comes late.
    fn begin(&mut self, rank: usize, n: usize, now: Duration) {
        if let Fault::Late { call, by } = self.fault
            && call == self.calls + 1
        {
            self.fault = Fault::None;
            self.doing = Doing::Idle { until: now + by };
            return;
        }
        if let Err(poisoned) = self.group.check() {
            self.doing = Doing::Failed { error: poisoned, at: now };
            return;
        }
        self.calls += 1;
        let call = Call {
            caller: rank,
            group: GroupId::ROOT,
            sequence: self.calls,
            bytes: 4 * LEN as u64,
            operation: Operation::AllReduce,
            reduction: Some((Reduction::Sum, DType::U32)),
            algorithm: Algorithm::Ring,
            root: 0,
        };
        self.group.enter(call.doing(), call.sequence);
        let plans = plan::all_reduce(Place { rank, size: n }, LEN, 4, 2);
        let data: &'static mut [u8] = vec![1_u8; 4 * LEN].leak();
        let segments = plan::lend(data, &plans);
        let halves = std::mem::take(&mut self.halves).into_iter();
        let lanes = halves.zip(plans).zip(segments).enumerate();
        let lanes =
            lanes.map(|(i, ((half, plan), segments))| Lane::new(i, half, plan, segments, Some(call), Some(u32_sum())));
        self.doing = Doing::Moving { lanes: lanes.collect(), since: now };
    }

    /// Moves the call on by a few tries; what the rank does then.
    fn go_on(
        &mut self,
        mut lanes: Vec<SimulatedLane>,
        since: Duration,
        now: Duration,
        choices: &mut Choices,
        n: usize,
    ) -> Doing {
        let mut moved = false;
        for _ in 0..choices.below(20) {
            let lane = choices.below(lanes.len());
            if lanes[lane].done() {
                continue;
            }
            match lanes[lane].step() {
                Ok(progress) => moved |= progress,
                Err(e) => return Doing::Asking(Inquiry::new(e, TIMEOUT, now, &self.control), lanes),
            }
        }
        if lanes.iter().all(Task::done) {
            self.group.exit();
            for lane in lanes {
                let (halves, segments) = lane.into_parts();
                self.halves.push(halves);
                assert!(segments.iter().all(|s| s.iter().all(|&b| usize::from(b) == n)), "a wrong sum");
            }
            return Doing::Idle { until: now };
        }
        if moved {
            self.group.wait_for(&[]);
            return Doing::Moving { lanes, since: now };
        }
        if let Err(first) = self.group.check() {
            self.group.exit();
            return Doing::Failed { error: first, at: now };
        }
        let mut waits = Vec::new();
        lanes.iter().filter(|l| !l.done()).for_each(|l| l.waits(&mut waits));
        self.group.wait_for(&waits);
        match lanes.iter().find(|l| !l.done()) {
            Some(lane) if now - since >= TIMEOUT => {
                let awaited = lane.awaited();
                let error = Error::new(Kind::TimedOut, awaited.what).with_peer(awaited.peer);
                Doing::Asking(Inquiry::new(error, TIMEOUT, now, &self.control), lanes)
            }
            _ => Doing::Moving { lanes, since },
        }
    }
}

/// Plays `fault` on every rank of 2 to 5 and asserts `expect` of every other rank's outcome.
fn every_victim(fault: impl Fn(u64) -> Fault, expect: impl Fn(usize, usize, Result<(), (Error, Duration)>)) {
    for n in 2..=5 {
        for victim in 0..n {
            for seed in 0..12 {
                let world = World::new(n, victim, fault(seed), seed.wrapping_mul(977) + n as u64);
                let outcomes = world.play(40, Duration::from_secs(60));
                for (rank, outcome) in outcomes.into_iter().enumerate().filter(|(rank, _)| *rank != victim) {
                    expect(n, victim, outcome.map_err(|e| (e.0.with_rank(rank), e.1)));
                }
            }
        }
    }
}

/// When in a run of 40 calls a fault comes: at a time that the seed chooses.
fn moment(seed: u64) -> Duration {
    STEP * (seed as u32 * 7 % 50)
}

fn named(error: &Error) -> Option<usize> {
    error.peer().or_else(|| error.cause()?.peer()).map(|p| p.rank)
}

#[test]
fn without_a_fault_every_call_ends_well() {
    every_victim(|_| Fault::None, |n, _, outcome| assert!(outcome.is_ok(), "{n} ranks: {outcome:?}"));
}

#[test]
fn a_rank_that_dies_is_named_by_every_survivor_at_once() {
    every_victim(
        |seed| Fault::Dies { at: moment(seed) },
        |n, victim, outcome| {
            let (error, at) = outcome.expect_err("a rank died");
            assert_eq!(named(&error), Some(victim), "{n} ranks: {error}");
            assert!(at < Duration::from_secs(3), "{n} ranks: after {at:?}: {error}");
        },
    );
}

#[test]
fn a_rank_that_stops_for_less_than_the_time_out_is_waited_for() {
    every_victim(
        |seed| Fault::Stops { from: moment(seed), until: moment(seed) + TIMEOUT * 3 / 4 },
        |n, _, outcome| assert!(outcome.is_ok(), "{n} ranks: {outcome:?}"),
    );
}

#[test]
fn a_rank_that_stops_for_longer_is_named_by_every_other() {
    every_victim(
        |seed| Fault::Stops { from: moment(seed), until: Duration::from_secs(50) },
        |n, victim, outcome| {
            let (error, at) = outcome.expect_err("a rank stands still");
            assert_eq!(named(&error), Some(victim), "{n} ranks: {error}");
            assert!(at < TIMEOUT + Duration::from_secs(4), "{n} ranks: after {at:?}: {error}");
        },
    );
}

#[test]
fn a_rank_that_comes_too_late_is_named_with_the_call_that_it_did_not_reach() {
    every_victim(
        |seed| Fault::Late { call: 1 + seed * 3, by: TIMEOUT * 2 },
        |n, victim, outcome| {
            let (error, _) = outcome.expect_err("a rank is late");
            assert_eq!(named(&error), Some(victim), "{n} ranks: {error}");
            assert!(error.to_string().contains("has not reached all_sum #"), "{error}");
        },
    );
}
