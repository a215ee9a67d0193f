//! The end of a group: orderly, within its time, and with nothing left behind.

use std::time::{Duration, Instant};

use nuvec_transport::{Channel, Deadline, Fabric, Kind, LinkId};
use nuvec_transport_tcp::{Options, connect_with_listeners};

use crate::support::*;

#[test]
fn two_hundred_failures_leave_nothing_behind() {
    alone("closing::two_hundred_failures_leave_nothing_behind", || {
        let absent = Reserved::new();
        let fail = |timeout| {
            let own = listeners("127.0.0.1", 1);
            let nodes = [addresses("127.0.0.1", &own), vec![absent.address()]];
            let options = Options::default().timeout(timeout);
            let e = connect_with_listeners(own, &nodes, 0, &options, Box::new(Notes::default())).unwrap_err();
            assert_eq!(e.kind(), Kind::TimedOut, "{e}");
        };
        fail(Duration::from_millis(5));
        let before = (descriptors(), threads());
        for i in 0..200 {
            fail(Duration::from_millis(i % 8));
        }
        assert_eq!((descriptors(), threads()), before);
    });
}

#[test]
fn two_hundred_groups_that_formed_leave_nothing_behind() {
    alone("closing::two_hundred_groups_that_formed_leave_nothing_behind", || {
        drop(Group::new("127.0.0.1", 3, 2).form());
        let before = (descriptors(), threads());
        for _ in 0..200 {
            drop(Group::new("127.0.0.1", 3, 2).form());
        }
        assert_eq!((descriptors(), threads()), before);
    });
}

#[test]
fn ranks_that_leave_as_soon_as_they_have_formed_do_not_fail_the_others() {
    for _ in 0..40 {
        let mut group = Group::new("127.0.0.1", 4, 2);
        let taken: Vec<_> = group.listeners.iter_mut().map(Option::take).collect();
        std::thread::scope(|scope| {
            for (rank, listeners) in taken.into_iter().enumerate() {
                let (nodes, options) = (&group.nodes, &group.options[rank]);
                scope.spawn(move || {
                    drop(
                        connect_with_listeners(listeners.unwrap(), nodes, rank, options, Box::new(Notes::default()))
                            .unwrap(),
                    );
                });
            }
        });
    }
}

#[test]
fn what_was_said_before_the_end_arrives_before_the_end() {
    for _ in 0..20 {
        let group = Group::new("127.0.0.1", 2, 1);
        let notes = group.notes.clone();
        let mut fabrics = group.form();
        // The other side talks too, so that there is something unread when this one closes.
        for notes in &notes {
            let mut told = notes.told.lock().unwrap();
            told.outbox.extend((0..100).map(|_| (LinkId(0), vec![3; 1000])));
        }
        fabrics[1].kick();
        fabrics[0].kick();
        let leaving = fabrics.remove(0);
        assert!(leaving.flush_control(soon()));
        drop(leaving);
        notes[1].wait("the end is missing", |told| told.ended.len() == 2);
        let told = notes[1].told.lock().unwrap();
        assert_eq!(told.messages.len(), 100);
    }
}

#[test]
fn closing_ends_within_its_time_and_twice_is_once() {
    let fabrics = Group::new("127.0.0.1", 3, 1).form();
    let began = Instant::now();
    fabrics[0].close(soon());
    fabrics[0].close(soon());
    fabrics[1].close(Deadline::after(Duration::ZERO));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // Its own calls go on to answer.
    assert_eq!(fabrics[0].peer(1).rank, 1);
    assert!(fabrics[0].opened(nuvec_transport::GroupId::ROOT, 1).is_none());
    fabrics[0].kick();
}

#[test]
fn a_neighbours_ring_goes_on_after_the_end_of_a_rank_that_is_done() {
    let mut fabrics = Group::new("127.0.0.1", 3, 1).form();
    let rings: Vec<_> = fabrics.iter().map(|fabric| fabric.links().unwrap().into_ring().unwrap()).collect();
    let mut rings = rings.into_iter().map(|mut ring| (ring.right.remove(0), ring.left.remove(0)));
    let (first, second, third) = (rings.next().unwrap(), rings.next().unwrap(), rings.next().unwrap());
    // Rank 0 sends its last bytes and leaves.
    let (mut tx, rx) = first.0.split();
    send_all(&mut tx, b"last").unwrap();
    drop((tx, rx, first.1));
    drop(fabrics.remove(0));
    // Rank 1 still gets them, and goes on with rank 2.
    let ((mut to_third, _from_third), (_tx, mut from_first)) = (second.0.split(), second.1.split());
    send_all(&mut to_third, b"more").unwrap();
    let (_tx, mut from_second) = third.1.split();
    assert_eq!(recv_all(&mut from_second, 4).unwrap(), b"more");
    assert_eq!(recv_all(&mut from_first, 4).unwrap(), b"last");
    let e = recv_all(&mut from_first, 1).unwrap_err();
    assert!(e.kind() == Kind::PeerClosed && e.to_string().contains("rank 0 (127.0.0.1:"), "{e}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_group_that_has_nothing_to_do_sleeps() {
    alone("closing::a_group_that_has_nothing_to_do_sleeps", || {
        let _fabrics = Group::new("127.0.0.1", 3, 2).form();
        std::thread::sleep(Duration::from_millis(200));
        let before = switches();
        std::thread::sleep(Duration::from_secs(2));
        let woken = switches() - before;
        // Two or three ticks each.
        assert!((3..=20).contains(&woken), "{woken} times in two seconds");
    });
}
