//! The state machine, played by hand.

use super::*;
use crate::call::Doing;

fn ring(n: usize) -> Vec<(Control, Box<dyn ControlHandler>)> {
    (0..n)
        .map(|rank| {
            let peers: Vec<_> = (0..n).map(|r| Peer::new(r, format!("host{r}:1"))).collect();
            let control = Control::new();
            let mut handler = control.handler();
            handler.begin(rank, &peers, Duration::from_secs(30));
            (control, handler)
        })
        .collect()
}

const RIGHT: LinkId = LinkId(0);
const LEFT: LinkId = LinkId(1);

/// Delivers what `from` sent, and all that follows from it; how many messages that were.
fn deliver(ranks: &mut [(Control, Box<dyn ControlHandler>)], from: usize, out: Outbox) -> usize {
    let n = ranks.len();
    let mut queue: Vec<_> = out.messages.into_iter().map(|(link, m)| (from, link, m)).collect();
    let mut count = 0;
    while let Some((from, link, message)) = queue.pop() {
        count += 1;
        assert!(count < 100, "an Abort goes round for ever");
        let (to, at) = if link == RIGHT { ((from + 1) % n, LEFT) } else { ((from + n - 1) % n, RIGHT) };
        let mut out = Outbox::default();
        ranks[to].1.message(at, &message, Duration::ZERO, &mut out);
        queue.extend(out.messages.into_iter().map(|(link, m)| (to, link, m)));
    }
    count
}

fn up(ranks: &mut [(Control, Box<dyn ControlHandler>)]) {
    let n = ranks.len();
    for (rank, (_, handler)) in ranks.iter_mut().enumerate() {
        let mut out = Outbox::default();
        handler.link_up(RIGHT, &Peer::new((rank + 1) % n, "x"), Duration::ZERO, &mut out);
        handler.link_up(LEFT, &Peer::new((rank + n - 1) % n, "x"), Duration::ZERO, &mut out);
        assert!(out.messages.is_empty());
    }
}

#[test]
fn an_abort_reaches_every_rank_once_and_names_the_first_to_fail() {
    for n in 2..7 {
        let mut ranks = ring(n);
        let groups: Vec<_> = ranks.iter().map(|(c, _)| c.join(GroupId::ROOT)).collect();
        up(&mut ranks);
        let first = Error::new(Kind::PeerClosed, "closed the connection").with_peer(&Peer::new(1, "host1:1"));
        ranks[0].0.fail(GroupId::ROOT, &groups[0], first);
        let mut out = Outbox::default();
        ranks[0].1.tick(Duration::ZERO, &mut out);
        deliver(&mut ranks, 0, out);
        for (rank, group) in groups.iter().enumerate() {
            let e = group.check().expect_err("poisoned");
            let named = if rank == 1 { 0 } else { 1 };
            assert_eq!(e.peer().map(|p| p.rank), Some(named), "rank {rank} of {n}: {e}");
            assert!(e.to_string().contains("closed the connection"), "{e}");
        }
    }
}

#[test]
fn the_first_failure_stands_whatever_comes_later() {
    let mut ranks = ring(4);
    let group = ranks[0].0.join(GroupId::ROOT);
    up(&mut ranks);
    let error = |rank| Error::new(Kind::Reset, "broke").with_peer(&Peer::new(rank, "x"));
    ranks[0].0.fail(GroupId::ROOT, &group, error(1));
    let winner = ranks[0].0.fail(GroupId::ROOT, &group, error(3));
    assert_eq!(winner.peer().map(|p| p.rank), Some(1));
    let mut out = Outbox::default();
    let late = Abort::new(GroupId::ROOT, 3, &error(2)).encode();
    ranks[0].1.message(LEFT, &late, Duration::ZERO, &mut out);
    assert!(out.messages.is_empty() && out.poisoned.is_empty(), "{out:?}");
    assert_eq!(group.check().expect_err("poisoned").peer().map(|p| p.rank), Some(1));
}

#[test]
fn an_abort_that_comes_before_its_group_is_joined_is_not_lost() {
    let mut ranks = ring(2);
    up(&mut ranks);
    let abort = Abort::new(GroupId(7), 1, &Error::new(Kind::Reset, "broke")).encode();
    ranks[0].1.message(LEFT, &abort, Duration::ZERO, &mut Outbox::default());
    assert!(ranks[0].0.join(GroupId(7)).check().is_err());
    assert!(ranks[0].0.join(GroupId::ROOT).check().is_ok());
}

#[test]
fn a_failure_to_form_reaches_every_rank_in_the_transports_words() {
    let mut ranks = ring(4);
    up(&mut ranks);
    let why = Error::new(Kind::PeerClosed, "left before the group had formed: it closed its control link")
        .with_peer(&Peer::new(1, "host1:1"));
    let mut out = Outbox::default();
    ranks[0].1.forming_failed(&why, Duration::ZERO, &mut out);
    deliver(&mut ranks, 0, out);
    for rank in [0, 2, 3] {
        let e = ranks[rank].0.join(GroupId::ROOT).check().expect_err("poisoned");
        assert_eq!(e.peer().map(|p| p.rank), Some(1), "rank {rank}: {e}");
        assert!(e.to_string().contains("left before the group had formed"), "{e}");
    }
}

#[test]
fn a_link_that_ends_is_the_end_of_its_rank_and_poisons_nothing() {
    let why = Error::new(Kind::PeerClosed, "closed the connection");
    let mut ranks = ring(3);
    let group = ranks[0].0.join(GroupId::ROOT);
    up(&mut ranks);
    let mut out = Outbox::default();
    ranks[0].1.link_ended(RIGHT, &why, Duration::ZERO, &mut out);
    assert!(out.poisoned.is_empty() && group.check().is_ok());
    assert!(ranks[0].0.is_gone(1) && !ranks[0].0.is_gone(2));
}

/// The ranks of a star, whose rank 0 has a link to every other; a link is known by the rank at its other end. With the
/// links up.
fn star(n: usize) -> Vec<(Control, Box<dyn ControlHandler>)> {
    let mut ranks = ring(n);
    for rank in 1..n {
        for (from, to) in [(0, rank), (rank, 0)] {
            let (link, peer) = (LinkId(to as u32), Peer::new(to, "x"));
            ranks[from].1.link_up(link, &peer, Duration::ZERO, &mut Outbox::default());
        }
    }
    ranks
}

/// Has one rank of a star do something, and delivers all that follows from it; how many messages that were.
fn in_star(
    ranks: &mut [(Control, Box<dyn ControlHandler>)],
    from: usize,
    act: impl FnOnce(&mut dyn ControlHandler, &mut Outbox),
) -> usize {
    let mut out = Outbox::default();
    act(&mut *ranks[from].1, &mut out);
    let mut queue: Vec<_> = out.messages.into_iter().map(|message| (from, message)).collect();
    let mut count = 0;
    while let Some((from, (link, message))) = queue.pop() {
        count += 1;
        let (to, mut out) = (link.0 as usize, Outbox::default());
        ranks[to].1.message(LinkId(from as u32), &message, Duration::from_secs(1), &mut out);
        queue.extend(out.messages.into_iter().map(|message| (to, message)));
    }
    count
}

#[test]
fn a_star_passes_on_aborts_reports_requests_and_ends_once_to_every_rank() {
    for n in 2..6 {
        for acting in 0..n {
            let mut ranks = star(n);
            let groups: Vec<_> = ranks.iter().map(|(c, _)| c.join(GroupId::ROOT)).collect();
            // A report of its own goes to every other rank, once.
            let tick = |handler: &mut dyn ControlHandler, out: &mut Outbox| handler.tick(Duration::from_secs(1), out);
            groups[acting].enter(Doing::ALL_SUM, 57);
            assert_eq!(in_star(&mut ranks, acting, tick), n - 1);
            assert!(ranks.iter().all(|(control, _)| control.status()[acting].calls[0].sequence == 57));
            // So does a request, and every rank answers it.
            ranks[acting].0.ask();
            in_star(&mut ranks, acting, tick);
            assert!(ranks[acting].0.all_heard_since(Duration::ZERO), "rank {acting} of {n}");
            // An end that rank 0 sees, of the last rank, is known to all.
            let (last, why) = (n - 1, Error::new(Kind::PeerClosed, "closed the connection"));
            let end = |handler: &mut dyn ControlHandler, out: &mut Outbox| {
                handler.link_ended(LinkId(last as u32), &why, Duration::from_secs(1), out);
            };
            assert_eq!(in_star(&mut ranks, 0, end), n - 2);
            assert!(ranks[..last].iter().all(|(control, _)| control.is_gone(last)));
            // An Abort reaches all that are left.
            if acting < last {
                let error = Error::new(Kind::Device, "broke").with_peer(&Peer::new(last, "x"));
                ranks[acting].0.fail(GroupId::ROOT, &groups[acting], error);
                in_star(&mut ranks, acting, tick);
                for group in &groups[..last] {
                    assert_eq!(group.check().expect_err("poisoned").peer().map(|p| p.rank), Some(last));
                }
            }
        }
    }
}

/// Calls every rank's tick at `now` and delivers what comes of it.
fn tick(ranks: &mut [(Control, Box<dyn ControlHandler>)], now: Duration, silent: &[usize]) {
    for rank in (0..ranks.len()).filter(|r| !silent.contains(r)) {
        let mut out = Outbox::default();
        ranks[rank].1.tick(now, &mut out);
        let n = ranks.len();
        let mut queue: Vec<_> = out.messages.into_iter().map(|(link, m)| (rank, link, m)).collect();
        let mut count = 0;
        while let Some((from, link, message)) = queue.pop() {
            count += 1;
            assert!(count < 1000, "a report goes round for ever");
            let (to, at) = if link == RIGHT { ((from + 1) % n, LEFT) } else { ((from + n - 1) % n, RIGHT) };
            if !silent.contains(&to) {
                let mut out = Outbox::default();
                ranks[to].1.message(at, &message, now, &mut out);
                queue.extend(out.messages.into_iter().map(|(link, m)| (to, link, m)));
            }
        }
    }
}

#[test]
fn every_rank_hears_what_every_other_does_and_since_when() {
    for n in 2..7 {
        let mut ranks = ring(n);
        let groups: Vec<_> = ranks.iter().map(|(c, _)| c.join(GroupId::ROOT)).collect();
        up(&mut ranks);
        // Between two reports, and well before the first.
        groups[1].enter_at(Doing::ALL_SUM, 57, ranks[1].0.at(Duration::from_millis(250)));
        groups[1].wait_for(&[0]);
        tick(&mut ranks, Duration::from_secs(1), &[]);
        tick(&mut ranks, Duration::from_secs(3), &[]);
        for (rank, (control, _)) in ranks.iter().enumerate() {
            let status = control.status();
            assert_eq!(status.len(), n);
            let call = &status[1].calls[0];
            assert_eq!((call.operation, call.sequence, &call.waits_for[..]), ("all_sum", 57, &[0][..]), "rank {rank}");
            assert_eq!(call.since, Duration::from_millis(2750), "rank {rank}");
            assert!(status.iter().all(|s| matches!(s.state, RankState::Alive { .. })), "{status:?}");
            assert!(status[0].calls.is_empty());
        }
    }
}

#[test]
fn a_time_out_is_blamed_on_the_rank_that_went_silent() {
    for n in 3..7 {
        for stopped in 1..n {
            let mut ranks = ring(n);
            let groups: Vec<_> = ranks.iter().map(|(c, _)| c.join(GroupId::ROOT)).collect();
            up(&mut ranks);
            for (rank, group) in groups.iter().enumerate() {
                group.enter(Doing::ALL_SUM, 5);
                group.wait_for(&[(rank + n - 1) % n, (rank + 1) % n]);
            }
            tick(&mut ranks, Duration::from_secs(1), &[]);
            for s in 2..32 {
                tick(&mut ranks, Duration::from_secs(s), &[stopped]);
            }
            let asked = ranks[0].0.ask();
            tick(&mut ranks, Duration::from_secs(32), &[stopped]);
            assert!(!ranks[0].0.all_heard_since(asked));
            let error = Error::new(Kind::TimedOut, "sent nothing").with_peer(&Peer::new(1, "host1:1"));
            let (blamed, told) = ranks[0].0.blame(GroupId::ROOT, &groups[0], error, Duration::from_secs(15));
            assert!(told);
            // The cut between the ring's two ways round may hide ranks behind the stopped one, never the stopped one.
            assert_eq!(blamed.peer().map(|p| p.rank), Some(stopped), "{n} ranks: {blamed}");
            assert!(blamed.to_string().contains("no sign of life for 31.0 s"), "{blamed}");
            assert!(blamed.to_string().contains("where the ranks stand: rank 0 in all_sum #5"), "{blamed}");
        }
    }
}

#[test]
fn a_request_is_answered_by_every_rank_at_once() {
    let mut ranks = ring(5);
    up(&mut ranks);
    tick(&mut ranks, Duration::from_secs(1), &[]);
    let asked = ranks[3].0.ask();
    assert!(!ranks[3].0.all_heard_since(asked));
    tick(&mut ranks, Duration::from_millis(1100), &[0, 1, 2, 4].map(|_| 9));
    assert!(ranks[3].0.all_heard_since(asked));
}

#[test]
fn a_rank_that_left_is_known_to_all_and_stays_gone() {
    let mut ranks = ring(5);
    up(&mut ranks);
    let why = Error::new(Kind::PeerClosed, "closed the connection");
    let mut out = Outbox::default();
    ranks[0].1.link_ended(RIGHT, &why, Duration::from_secs(1), &mut out);
    deliver(&mut ranks, 0, out);
    for rank in [0, 2, 3, 4] {
        assert!(ranks[rank].0.is_gone(1), "rank {rank} does not know");
        assert_eq!(ranks[rank].0.status()[1].state, RankState::Gone);
    }
}

#[test]
fn nobody_waits_for_a_rank_that_is_not_there() {
    let mut ranks = ring(3);
    up(&mut ranks);
    let waits = vec![2, 3, u32::MAX];
    let call = InCall { group: GroupId::ROOT, doing: Doing::ALL_SUM, sequence: 1, waits, age: Duration::ZERO };
    for message in status::encode(&status::entries(1, u64::MAX, vec![call])) {
        ranks[0].1.message(RIGHT, &message, Duration::ZERO, &mut Outbox::default());
    }
    assert_eq!(ranks[0].0.status()[1].calls[0].waits_for, [2]);
}
