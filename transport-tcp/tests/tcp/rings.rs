//! Rings of groups of some of the ranks.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuvec_transport::{
    Channel, Deadline, Error, Fabric, GroupId, Kind, Receiver, Rejection, Result, RingLinks, Sender, Wake, wait_any,
};
use nuvec_transport_tcp::{Address, TcpChannel, TcpFabric, connect_with_listeners};

use crate::support::*;

const GROUP: GroupId = GroupId(0xC0FFEE);

/// The neighbours of `rank` among these ranks, in their order: right, left.
fn neighbours(members: &[usize], rank: usize) -> (usize, usize) {
    let n = members.len();
    let at = members.iter().position(|member| *member == rank).unwrap();
    (members[(at + 1) % n], members[(at + n - 1) % n])
}

/// Opens a rank's part of a ring and waits for it.
fn open(fabric: &TcpFabric, group: GroupId, members: &[usize], deadline: Deadline) -> Result<RingLinks<TcpChannel>> {
    let wake = Arc::new(Wake::new().unwrap());
    let (right, left) = neighbours(members, fabric.rank());
    fabric.open_ring(group, right, left, &wake, deadline);
    opened(fabric, group, &wake)
}

/// Waits for a ring that was begun.
fn opened(fabric: &TcpFabric, group: GroupId, wake: &Wake) -> Result<RingLinks<TcpChannel>> {
    loop {
        if let Some(result) = fabric.ring_opened(group) {
            return result;
        }
        assert!(wait_any(&[wake.park()], soon()).unwrap(), "no word of a ring");
        wake.drain();
    }
}

fn halves(all: Vec<TcpChannel>) -> Vec<(impl Sender, impl Receiver)> {
    all.into_iter().map(Channel::split).collect()
}

/// Sends to both neighbours on every connection and checks what both sent.
fn talk(ring: RingLinks<TcpChannel>, fabric: &TcpFabric, group: GroupId, members: &[usize]) {
    let rank = fabric.rank();
    let (right, left) = neighbours(members, rank);
    let word = |from: usize, index: usize, to: u8| [from as u8, index as u8, group.0 as u8, to];
    assert_eq!((ring.right.len(), ring.left.len()), (fabric.connections(), fabric.connections()));
    let (mut to_right, mut to_left) = (halves(ring.right), halves(ring.left));
    for (i, (tx, _)) in to_right.iter_mut().enumerate() {
        assert_eq!(tx.peer().rank, right);
        send_all(tx, &word(rank, i, b'r')).unwrap();
    }
    for (i, (tx, _)) in to_left.iter_mut().enumerate() {
        assert_eq!(tx.peer().rank, left);
        send_all(tx, &word(rank, i, b'l')).unwrap();
    }
    for (i, (_, rx)) in to_right.iter_mut().enumerate() {
        assert_eq!(recv_all(rx, 4).unwrap(), word(right, i, b'l'));
    }
    for (i, (_, rx)) in to_left.iter_mut().enumerate() {
        assert_eq!(recv_all(rx, 4).unwrap(), word(left, i, b'r'));
    }
}

/// Opens the ring of each of these groups on all its members at once, and talks over it.
fn open_and_talk(fabrics: &[TcpFabric], groups: &[(GroupId, &[usize])]) {
    std::thread::scope(|scope| {
        for &(group, members) in groups {
            for &rank in members {
                let fabric = &fabrics[rank];
                scope.spawn(move || talk(open(fabric, group, members, soon()).unwrap(), fabric, group, members));
            }
        }
    });
}

#[test]
fn two_pairs_of_four_ranks_open_their_rings_at_the_same_time_and_the_roots_goes_on() {
    let fabrics = Group::new("127.0.0.1", 4, 2).form();
    open_and_talk(&fabrics, &[(GroupId(1), &[0, 2]), (GroupId(2), &[1, 3])]);
    check_ring(&fabrics);
}

#[test]
fn a_ring_follows_the_order_of_its_ranks() {
    let fabrics = Group::new("127.0.0.1", 3, 2).form();
    open_and_talk(&fabrics, &[(GROUP, &[2, 1, 0])]);
    open_and_talk(&fabrics, &[(GroupId(2), &[0, 2, 1])]);
    check_ring(&fabrics);
}

#[test]
fn a_rank_opens_many_rings_at_once_with_and_without_a_key() {
    for key in [false, true] {
        let mut group = Group::new("127.0.0.1", 4, 2);
        if key {
            let key = nuvec_transport_tcp::Key::new(b"0123456789abcdef0123456789abcdef").unwrap();
            group.options.iter_mut().for_each(|options| *options = options.clone().key(key.clone()));
        }
        let fabrics = group.form();
        let groups: [&[usize]; 5] = [&[0, 1, 2, 3], &[3, 2, 1, 0], &[0, 1], &[0, 3, 1], &[2, 0]];
        let groups: Vec<_> = groups.into_iter().enumerate().map(|(i, m)| (GroupId(i as u64 + 1), m)).collect();
        open_and_talk(&fabrics, &groups);
    }
}

#[test]
fn a_ring_opens_while_streams_do_and_both_carry_their_own() {
    let fabrics = Group::new("127.0.0.1", 3, 2).form();
    let wakes: Vec<_> = fabrics
        .iter()
        .map(|fabric| {
            let wake = Arc::new(Wake::new().unwrap());
            fabric.accept(GROUP, &wake);
            wake
        })
        .collect();
    std::thread::scope(|scope| {
        for (rank, fabric) in fabrics.iter().enumerate() {
            let (to, wake, from_wake) = ((rank + 1) % 3, Arc::new(Wake::new().unwrap()), &wakes[rank]);
            scope.spawn(move || {
                fabric.open(GROUP, to, &wake, soon());
                let ring = open(fabric, GROUP, &[0, 1, 2], soon()).unwrap();
                let mut senders = loop {
                    if let Some(opened) = fabric.opened(GROUP, to) {
                        break opened.unwrap();
                    }
                    assert!(wait_any(&[wake.park()], soon()).unwrap(), "no stream");
                    wake.drain();
                };
                senders.iter_mut().for_each(|tx| send_all(tx, &[rank as u8; 3]).unwrap());
                talk(ring, fabric, GROUP, &[0, 1, 2]);
                let from = (rank + 2) % 3;
                let mut receivers = loop {
                    if let Some(receivers) = fabric.accepted(GROUP, from) {
                        break receivers;
                    }
                    assert!(wait_any(&[from_wake.park()], soon()).unwrap(), "no stream came");
                    from_wake.drain();
                };
                receivers.iter_mut().for_each(|rx| assert_eq!(recv_all(rx, 3).unwrap(), [from as u8; 3]));
            });
        }
    });
}

#[test]
fn a_member_that_comes_late_is_waited_for() {
    let fabrics = Group::new("127.0.0.1", 3, 2).form();
    let members = [0, 1, 2];
    std::thread::scope(|scope| {
        let early = [0, 2].map(|rank| {
            let fabric = &fabrics[rank];
            scope.spawn(move || talk(open(fabric, GROUP, &members, soon()).unwrap(), fabric, GROUP, &members))
        });
        std::thread::sleep(Duration::from_millis(400));
        assert!(early.iter().all(|thread| !thread.is_finished()));
        let began = Instant::now();
        let ring = open(&fabrics[1], GROUP, &members, soon()).unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        talk(ring, &fabrics[1], GROUP, &members);
    });
}

#[test]
fn ranks_that_come_within_a_moment_of_each_other_do_not_wait_for_a_pause() {
    let fabrics = Group::new("127.0.0.1", 2, 1).form();
    let mut took = Vec::new();
    for round in 1..=20 {
        let began = Instant::now();
        open_and_talk(&fabrics, &[(GroupId(round), &[0, 1])]);
        took.push(began.elapsed());
    }
    took.sort();
    // A busy machine delays some of them; a pause would delay all.
    assert!(took[4] < Duration::from_millis(40), "{took:?}");
}

#[test]
fn a_member_that_never_comes_is_named_by_both_its_neighbours_at_the_deadline() {
    let fabrics = Group::new("127.0.0.1", 4, 2).form();
    let members = [0, 1, 3];
    let began = Instant::now();
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let open = |rank: usize| {
            let fabric = &fabrics[rank];
            scope.spawn(move || {
                open(fabric, GROUP, &members, Deadline::after(Duration::from_millis(500))).map(drop).unwrap_err()
            })
        };
        [open(0), open(1)].map(|thread| thread.join().unwrap()).into()
    });
    let took = began.elapsed();
    assert!((Duration::from_millis(500)..Duration::from_secs(2)).contains(&took), "{took:?}");
    let address = fabrics[0].peer(3).address;
    for (rank, e) in errors.iter().enumerate() {
        let line = e.to_string();
        assert_eq!((e.rank(), e.peer().map(|p| p.rank)), (Some(rank), Some(3)), "{line}");
        assert!(line.starts_with(&format!("rank {rank}: rank 3 ({address}) ")) && line.contains("0.5 s"), "{line}");
    }
    // Its left dialled it, its right waited for it.
    assert_eq!(errors[0].kind(), Kind::TimedOut);
    assert!(errors[0].to_string().contains("made 0 of 2 ring connections"), "{}", errors[0]);
    assert_eq!(errors[1].kind(), Kind::Rejected(Rejection::NotYet));
    assert!(errors[1].to_string().contains("does not know this group yet (tried "), "{}", errors[1]);
    // It comes too late: the group is unknown to the others now, as before.
    let e = open(&fabrics[3], GROUP, &members, Deadline::after(Duration::from_millis(200))).map(drop).unwrap_err();
    assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::Rejected(Rejection::NotYet), Some(0)), "{e}");
    assert!(e.to_string().contains("rank 1 (127.0.0.1:"), "the left one is named too: {e}");
    check_ring(&fabrics);
}

#[test]
fn a_member_whose_process_has_left_is_named_with_what_was_tried() {
    let mut fabrics = Group::new("127.0.0.1", 3, 1).form();
    drop(fabrics.remove(2));
    let e = open(&fabrics[0], GROUP, &[0, 2], Deadline::after(Duration::from_millis(400))).map(drop).unwrap_err();
    assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::TimedOut, Some(2)), "{e}");
    assert!(e.to_string().contains("did not answer: connection refused (tried "), "{e}");
    assert_eq!(e.to_string().matches("rank 2 (").count(), 1, "{e}");
}

#[test]
fn a_rank_that_is_not_the_left_is_refused_at_once_and_the_ring_opens_without_it() {
    let fabrics = Group::new("127.0.0.1", 4, 1).form();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| open(&fabrics[0], GROUP, &[0, 2], soon()).unwrap());
        // Until rank 0 knows the group, rank 1 waits; then it is refused. It has another list of the members.
        let began = Instant::now();
        let e = open(&fabrics[1], GROUP, &[1, 0], soon()).map(drop).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(10));
        assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::Rejected(Rejection::NotMe), Some(0)), "{e}");
        assert!(
            e.to_string().contains("takes no ring connection from rank 1 of 4") && !e.to_string().contains("host list"),
            "{e}"
        );
        let second = open(&fabrics[2], GROUP, &[0, 2], soon()).unwrap();
        scope.spawn(|| talk(second, &fabrics[2], GROUP, &[0, 2]));
        talk(first.join().unwrap(), &fabrics[0], GROUP, &[0, 2]);
    });
}

#[test]
fn whom_a_ring_refused_is_said_when_its_time_is_up() {
    let fabrics = Group::new("127.0.0.1", 4, 1).form();
    std::thread::scope(|scope| {
        let first =
            scope.spawn(|| open(&fabrics[0], GROUP, &[0, 2], Deadline::after(Duration::from_secs(1))).map(drop));
        let e = open(&fabrics[1], GROUP, &[1, 0], soon()).map(drop).unwrap_err();
        assert_eq!(e.kind(), Kind::Rejected(Rejection::NotMe), "{e}");
        let line = first.join().unwrap().unwrap_err().to_string();
        assert!(line.contains("refused by rank 0: 127.0.0.1 (as rank 1) "), "{line}");
        assert!(line.contains("whose left in that group is rank 2"), "{line}");
    });
}

#[test]
fn a_rank_of_another_run_is_refused_and_the_ring_opens_without_it() {
    let group = Group::new("127.0.0.1", 4, 1);
    let target = group.nodes[0][0].clone();
    let fabrics = group.form();
    // Its list leads it to the other run's rank 0, which is not its neighbour.
    let mut other = Group::new("127.0.0.1", 4, 1);
    let own = other.listeners[2].take().unwrap();
    let mut nodes = other.nodes.clone();
    nodes[0] = vec![target];
    let options = other.options[2].clone();
    std::thread::scope(|scope| {
        let intruder =
            scope.spawn(move || connect_with_listeners(own, &nodes, 2, &options, Box::new(Notes::default())));
        let others: Vec<_> = other.connect().into_iter().flatten().map(|rank| rank.unwrap()).collect();
        let intruder = intruder.join().unwrap().unwrap();
        let first = scope.spawn(|| open(&fabrics[0], GROUP, &[0, 2], soon()).unwrap());
        let e = open(&intruder, GROUP, &[2, 0], soon()).map(drop).unwrap_err();
        assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::Rejected(Rejection::Session), Some(0)), "{e}");
        let second = scope.spawn(|| open(&fabrics[2], GROUP, &[0, 2], soon()).unwrap());
        drop((first.join().unwrap(), second.join().unwrap(), others));
    });
}

/// Asks a rank's listener for a ring connection in a hello of one's own (see the crate's `hello`): Reply's code, the
/// verdict's if there is one, and the connection.
fn ask(
    at: &Address,
    fabric: &TcpFabric,
    from: u32,
    index: u16,
    session: [u8; 16],
) -> ((Answer, Option<Answer>), TcpStream) {
    let mut open = b"nu\xA5\x7Fve\xA5\x7Fc!\xA5\x7Fhi\xA5\x7F".to_vec();
    // Version 1, 106 bytes, no key, role Ring.
    open.extend([1, 0, 106, 0, 0, 2]);
    open.extend(index.to_le_bytes());
    open.extend((fabric.connections() as u16).to_le_bytes());
    for number in [fabric.size() as u32, from, fabric.rank() as u32] {
        open.extend(number.to_le_bytes());
    }
    open.extend(blake3::hash(b"name").as_bytes());
    open.extend(session);
    open.extend(GROUP.0.to_le_bytes());
    open.extend([7; 32]);
    let mut stream = TcpStream::connect((at.host(), at.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&open).unwrap();
    let (mut reply, mut verdict) = ([0; 54], [0; 11]);
    stream.read_exact(&mut reply).unwrap();
    if reply[20] == 4 {
        return ((Answer::NotYet, None), stream);
    }
    assert_eq!(reply[20], 1);
    stream.read_exact(&mut verdict).unwrap();
    let verdict = match verdict[0] {
        1 => Answer::Go,
        3 => Answer::Connections,
        4 => Answer::NotMe,
        5 => Answer::Taken,
        7 => Answer::Session,
        code => panic!("verdict {code}"),
    };
    ((Answer::Go, Some(verdict)), stream)
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Go,
    NotYet,
    Connections,
    NotMe,
    Taken,
    Session,
}

#[test]
fn only_the_left_of_this_run_may_dial_a_ring_each_index_once_and_only_while_it_is_known() {
    let group = Group::new("127.0.0.1", 4, 2);
    let target = group.nodes[0][0].clone();
    let fabrics = group.form();
    let session = fabrics[0].session();
    let ask = |from, index, session| ask(&target, &fabrics[0], from, index, session);
    let check = |from, index, session, verdict| {
        let (answers, stream) = ask(from, index, session);
        assert_eq!(answers, (Answer::Go, Some(verdict)));
        stream
    };
    let unknown = || assert_eq!(ask(2, 0, session).0, (Answer::NotYet, None));
    unknown();
    std::thread::scope(|scope| {
        let wake = Arc::new(Wake::new().unwrap());
        fabrics[0].open_ring(GROUP, 2, 2, &wake, soon());
        check(1, 0, session, Answer::NotMe);
        check(2, 2, session, Answer::Connections);
        check(2, 0, [0; 16], Answer::Session);
        check(2, 0, [9; 16], Answer::Session);
        let held = check(2, 0, session, Answer::Go);
        check(2, 0, session, Answer::Taken);
        drop(held);
        // Gone again, it holds its place no longer.
        let second = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            open(&fabrics[2], GROUP, &[0, 2], soon()).unwrap()
        });
        let first = opened(&fabrics[0], GROUP, &wake).unwrap();
        check(2, 0, session, Answer::Taken);
        check(1, 1, session, Answer::NotMe);
        scope.spawn(|| talk(second.join().unwrap(), &fabrics[2], GROUP, &[0, 2]));
        talk(first, &fabrics[0], GROUP, &[0, 2]);
        check(2, 0, session, Answer::Taken);
    });
    fabrics[0].leave(GROUP);
    unknown();
}

#[test]
fn rings_that_cannot_be_are_misuse_that_says_why() {
    let fabrics = Group::new("127.0.0.1", 3, 1).form();
    let wake = Arc::new(Wake::new().unwrap());
    let refused = |group, right, left, expected: &str| {
        fabrics[0].open_ring(group, right, left, &wake, soon());
        assert!(wait_any(&[wake.park()], soon()).unwrap());
        wake.drain();
        let e = fabrics[0].ring_opened(group).unwrap().map(drop).unwrap_err();
        assert_eq!((e.kind(), e.rank()), (Kind::Misuse, Some(0)));
        assert!(e.to_string().contains(expected), "{e}");
        assert!(fabrics[0].ring_opened(group).is_none(), "a result is taken once");
    };
    refused(GroupId::ROOT, 1, 2, "stands since the group formed");
    refused(GROUP, 3, 1, "no rank 3");
    refused(GROUP, 1, 3, "no rank 3");
    refused(GROUP, 0, 1, "no neighbour of itself");
}

#[test]
fn a_ring_that_is_being_opened_fails_when_the_fabric_closes_and_none_begins_after() {
    let fabrics = Group::new("127.0.0.1", 3, 1).form();
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| open(&fabrics[0], GROUP, &[0, 1, 2], soon()).map(drop));
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        fabrics[0].close(soon());
        assert_eq!(opener.join().unwrap().unwrap_err().kind(), Kind::Closed);
        let e = open(&fabrics[0], GroupId(2), &[0, 1], soon()).map(drop).unwrap_err();
        assert_eq!(e.kind(), Kind::Closed, "{e}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    });
}

#[test]
fn a_ring_that_opened_goes_on_after_its_fabric_has_closed() {
    let mut fabrics = Group::new("127.0.0.1", 2, 1).form();
    let (mut first, mut second) = std::thread::scope(|scope| {
        let [first, second] = [0, 1].map(|rank| {
            let fabric = &fabrics[rank];
            scope.spawn(move || open(fabric, GROUP, &[0, 1], soon()).unwrap())
        });
        (first.join().unwrap(), second.join().unwrap())
    });
    fabrics.clear();
    let ((mut tx, _rx), (_tx, mut rx)) = (first.right.remove(0).split(), second.left.remove(0).split());
    send_all(&mut tx, b"still").unwrap();
    assert_eq!(recv_all(&mut rx, 5).unwrap(), b"still");
}

#[test]
fn a_group_that_is_left_while_it_opens_is_forgotten_by_this_rank_and_waited_for_by_the_others() {
    let fabrics = Group::new("127.0.0.1", 2, 1).form();
    let wake = Arc::new(Wake::new().unwrap());
    fabrics[0].open_ring(GROUP, 1, 1, &wake, soon());
    fabrics[0].accept(GROUP, &wake);
    fabrics[0].leave(GROUP);
    assert_eq!(Arc::strong_count(&wake), 1, "the fabric holds nothing of it");
    let e = open(&fabrics[1], GROUP, &[0, 1], Deadline::after(Duration::from_millis(200))).map(drop).unwrap_err();
    assert_eq!(e.kind(), Kind::Rejected(Rejection::NotYet), "{e}");
    assert!(fabrics[0].ring_opened(GROUP).is_none());
    // Nor are its streams taken.
    fabrics[1].open(GROUP, 0, &wake, Deadline::after(Duration::from_millis(200)));
    let e = loop {
        if let Some(result) = fabrics[1].opened(GROUP, 0) {
            break result.map(drop).unwrap_err();
        }
        assert!(wait_any(&[wake.park()], soon()).unwrap());
        wake.drain();
    };
    assert_eq!(e.kind(), Kind::Rejected(Rejection::NotYet), "{e}");
}

#[test]
fn two_hundred_rings_that_opened_or_failed_leave_nothing_behind() {
    alone("rings::two_hundred_rings_that_opened_or_failed_leave_nothing_behind", || {
        let fabrics = Group::new("127.0.0.1", 3, 2).form();
        let round = |group: u64| {
            let group = GroupId(group);
            let members = [0, 1, 2];
            if group.0.is_multiple_of(2) {
                open_and_talk(&fabrics, &[(group, &members)]);
            } else {
                let e = open(&fabrics[0], group, &members, Deadline::after(Duration::from_millis(group.0 % 8)));
                e.map(drop).unwrap_err();
            }
            fabrics.iter().for_each(|fabric| fabric.leave(group));
        };
        // A connection that its dialler gave up goes when the other side sees its end.
        let settled = |expected: usize| {
            let deadline = Instant::now() + PATIENCE;
            while descriptors() != expected && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            descriptors()
        };
        let before = descriptors();
        (1..=200).for_each(round);
        assert_eq!(settled(before), before);
    });
}

#[test]
fn a_ring_fails_when_the_service_thread_ends_for_whatever_reason() {
    let group = Group::new("127.0.0.1", 2, 1);
    let told = group.notes[0].told.clone();
    let fabrics = group.form();
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| open(&fabrics[0], GROUP, &[0, 1], soon()).map(drop));
        // The handler panics on what it remembers by.
        let poisoned = std::thread::spawn(move || {
            let _told = told.lock();
            panic!("the handler's memory is poisoned on purpose");
        });
        assert!(poisoned.join().is_err());
        fabrics[0].kick();
        let began = Instant::now();
        assert_eq!(opener.join().unwrap().unwrap_err().kind(), Kind::Closed);
        let e = open(&fabrics[0], GroupId(2), &[0, 1], soon()).map(drop).unwrap_err();
        assert_eq!(e.kind(), Kind::Closed, "{e}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    });
}
