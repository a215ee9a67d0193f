//! A group on a virtual clock, in one thread: ranks that stop, die or come late, and what the others say of it. A ring
//! has control links between neighbours, a mesh has them between rank 0 and each other rank.
//!
//! The same seed plays the same run, message by message.

mod work;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nuvec_transport::{ControlHandler, Error, GroupId, Kind, LinkId, Outbox, Peer};

use super::mesh::halves_of;
use super::{Choices, Halves, lanes_of};
use crate::control::{Control, GroupState};
use crate::drive::STRAGGLING;
use crate::inquiry::Inquiry;
use crate::plan::Place;
use work::{Net, Work, call};

/// How far the clock goes at a time.
const STEP: Duration = Duration::from_millis(10);
/// The group's time-out.
const TIMEOUT: Duration = Duration::from_secs(4);

/// What happens to one rank.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    /// It dies. Its channels end with it, or `quietly` do not: only its control links tell.
    Dies {
        at: Duration,
        quietly: bool,
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

/// What a rank is doing.
enum Doing {
    /// Nothing, until then.
    Idle {
        until: Duration,
    },
    /// Bytes; none since then.
    Moving {
        work: Work,
        since: Duration,
        /// When a rank that it waits for was found to have left.
        left: Option<Duration>,
    },
    /// Waiting for others' word of a failure; the connections stay open meanwhile.
    Asking(Inquiry, Work),
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
    /// What outlives a quiet death.
    remains: Option<Doing>,
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
    net: Net,
    ranks: Vec<Rank>,
    /// Of each rank, by its control link's number: the rank at the other end, and that rank's link.
    routes: Vec<Vec<(usize, LinkId)>>,
    mail: VecDeque<Letter>,
    choices: Choices,
}

impl World {
    fn new(net: Net, n: usize, victim: usize, fault: Fault, seed: u64) -> Self {
        let halves = match net {
            Net::Ring => lanes_of(n, 1, 64),
            Net::Mesh => halves_of(n, 64),
        };
        let routes = |rank: usize| match (net, rank) {
            (Net::Ring, _) => vec![((rank + 1) % n, LinkId(1)), ((rank + n - 1) % n, LinkId(0))],
            (Net::Mesh, 0) => (1..n).map(|to| (to, LinkId(0))).collect(),
            (Net::Mesh, _) => vec![(0, LinkId(rank as u32 - 1))],
        };
        let rank = |(rank, halves): (usize, Vec<Halves>)| {
            let peers: Vec<_> = (0..n).map(|r| Peer::new(r, "simulated")).collect();
            let control = Control::new();
            let mut handler = control.handler();
            handler.begin(rank, &peers, TIMEOUT);
            let group = control.join(GroupId::ROOT);
            let fault = if rank == victim { fault } else { Fault::None };
            let doing = Doing::Idle { until: Duration::ZERO };
            let (next_tick, dead) = (Duration::ZERO, false);
            Rank { control, handler, group, halves, doing, calls: 0, fault, next_tick, dead, remains: None }
        };
        let ranks = halves.into_iter().enumerate().map(rank).collect();
        let routes = (0..n).map(routes).collect();
        let mut world = Self { now: Duration::ZERO, net, ranks, routes, mail: VecDeque::new(), choices: Choices(seed) };
        for r in 0..n {
            for (link, (to, _)) in world.routes[r].clone().into_iter().enumerate() {
                let link = LinkId(link as u32);
                world.handle(r, |handler, now, out| handler.link_up(link, &Peer::new(to, "simulated"), now, out));
            }
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
        let (to, link) = self.routes[from][link.0 as usize];
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
        if let Fault::Dies { at, quietly } = self.ranks[r].fault
            && now >= at
        {
            let rank = &mut self.ranks[r];
            rank.dead = true;
            let doing = std::mem::replace(&mut rank.doing, Doing::Done);
            if quietly {
                rank.remains = Some(doing);
            } else {
                rank.halves.clear();
            }
            for link in 0..self.routes[r].len() {
                self.post(r, LinkId(link as u32), None);
            }
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
            Doing::Idle { .. } => rank.begin(self.net, Place { rank: r, size: n }, now),
            Doing::Moving { work, since, left } => {
                rank.doing = rank.go_on(work, (since, left), now, &mut self.choices, n);
                if matches!(rank.doing, Doing::Asking(..)) {
                    self.handle(r, |handler, now, out| handler.tick(now, out));
                }
            }
            Doing::Asking(inquiry, work) => match inquiry.step(now, GroupId::ROOT, &rank.group, &rank.control) {
                None => rank.doing = Doing::Asking(inquiry, work),
                Some(cause) => {
                    // As a communicator does: poison, tell, close.
                    let error = rank.control.fail(GroupId::ROOT, &rank.group, cause);
                    rank.group.exit();
                    rank.doing = Doing::Failed { error, at: now };
                    self.handle(r, |handler, now, out| handler.tick(now, out));
                    drop(work);
                }
            },
            over @ (Doing::Done | Doing::Failed { .. }) => rank.doing = over,
        }
    }
}

impl Rank {
    /// Begins the next call, unless it comes late.
    fn begin(&mut self, net: Net, place: Place, now: Duration) {
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
        let call = call(place.rank, self.calls);
        self.group.enter_at(call.doing(), call.sequence, self.control.at(now));
        let work = Work::new(net, place, call, std::mem::take(&mut self.halves));
        self.doing = Doing::Moving { work, since: now, left: None };
    }

    /// Moves the call on by a few tries; what the rank does then. As `drive` does, it gives up when nothing has moved for
    /// the time-out, or for as long as the bytes of a rank that has left may take.
    fn go_on(
        &mut self,
        mut work: Work,
        (since, left): (Duration, Option<Duration>),
        now: Duration,
        choices: &mut Choices,
        n: usize,
    ) -> Doing {
        let mut moved = false;
        for _ in 0..choices.below(20) {
            match work.step(choices) {
                Ok(progress) => moved |= progress,
                Err(e) => {
                    self.group.wait_for(&work.waits());
                    return Doing::Asking(Inquiry::new(e, TIMEOUT, now, &self.control), work);
                }
            }
        }
        if work.done() {
            self.group.exit();
            self.halves = work.end(n);
            return Doing::Idle { until: now };
        }
        if moved {
            self.group.wait_for(&[]);
            return Doing::Moving { work, since: now, left: None };
        }
        if let Err(first) = self.group.check() {
            self.group.exit();
            return Doing::Failed { error: first, at: now };
        }
        let waits = work.waits();
        self.group.wait_for(&waits);
        let gone = self.control.left(&waits);
        let left = gone.as_ref().map(|_| left.unwrap_or(now));
        let late = work.awaited().filter(|_| now - since >= TIMEOUT);
        let late = late.map(|awaited| Error::new(Kind::TimedOut, awaited.what).with_peer(awaited.peer));
        match gone.filter(|_| left.is_some_and(|left| now - left >= STRAGGLING)).or(late) {
            Some(error) => Doing::Asking(Inquiry::new(error, TIMEOUT, now, &self.control), work),
            None => Doing::Moving { work, since, left },
        }
    }
}

/// Plays `fault` on every rank of rings and meshes of 2 to 5 and asserts `expect` of every other rank's outcome.
fn every_victim(fault: impl Fn(u64) -> Fault, expect: impl Fn(&str, usize, Result<(), (Error, Duration)>)) {
    for (net, n) in (2..=5).flat_map(|n| [(Net::Ring, n), (Net::Mesh, n)]) {
        for victim in 0..n {
            for seed in 0..12 {
                let world = World::new(net, n, victim, fault(seed), seed.wrapping_mul(977) + n as u64);
                let outcomes = world.play(40, Duration::from_secs(60));
                for (rank, outcome) in outcomes.into_iter().enumerate().filter(|(rank, _)| *rank != victim) {
                    let outcome = outcome.map_err(|e| (e.0.with_rank(rank), e.1));
                    expect(&format!("{net:?} of {n}, rank {victim}, seed {seed}"), victim, outcome);
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
    every_victim(|_| Fault::None, |n, _, outcome| assert!(outcome.is_ok(), "{n}: {outcome:?}"));
}

#[test]
fn a_rank_that_dies_is_named_by_every_survivor_at_once() {
    every_victim(
        |seed| Fault::Dies { at: moment(seed), quietly: false },
        |n, victim, outcome| {
            let (error, at) = outcome.expect_err("a rank died");
            assert_eq!(named(&error), Some(victim), "{n}: {error}");
            assert!(at < Duration::from_secs(3), "{n}: after {at:?}: {error}");
        },
    );
}

#[test]
fn a_rank_whose_channels_do_not_end_with_it_is_named_by_every_survivor_before_the_time_out() {
    every_victim(
        |seed| Fault::Dies { at: moment(seed), quietly: true },
        |n, victim, outcome| {
            let (error, at) = outcome.expect_err("a rank died");
            assert_eq!(named(&error), Some(victim), "{n}: {error}");
            assert!(at < Duration::from_secs(5), "{n}: after {at:?}: {error}");
        },
    );
}

#[test]
fn a_rank_that_stops_for_less_than_the_time_out_is_waited_for() {
    every_victim(
        |seed| Fault::Stops { from: moment(seed), until: moment(seed) + TIMEOUT * 3 / 4 },
        |n, _, outcome| assert!(outcome.is_ok(), "{n}: {outcome:?}"),
    );
}

#[test]
fn a_rank_that_stops_for_longer_is_named_by_every_other() {
    every_victim(
        |seed| Fault::Stops { from: moment(seed), until: Duration::from_secs(50) },
        |n, victim, outcome| {
            let (error, at) = outcome.expect_err("a rank stands still");
            assert_eq!(named(&error), Some(victim), "{n}: {error}");
            assert!(at < TIMEOUT + Duration::from_secs(4), "{n}: after {at:?}: {error}");
        },
    );
}

#[test]
fn a_rank_that_comes_too_late_is_named_with_the_call_that_it_did_not_reach() {
    every_victim(
        |seed| Fault::Late { call: 1 + seed * 3, by: TIMEOUT * 2 },
        |n, victim, outcome| {
            let (error, _) = outcome.expect_err("a rank is late");
            assert_eq!(named(&error), Some(victim), "{n}: {error}");
            assert!(error.to_string().contains("has not reached all_sum #"), "{error}");
        },
    );
}
