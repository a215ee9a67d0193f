//! One-way streams between any two ranks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuvec_transport::{Deadline, Fabric, GroupId, Kind, Receiver, Rejection, Result, Sender, Wake, wait_any};
use nuvec_transport_tcp::{TcpFabric, TcpReceiver, TcpSender};

use crate::support::*;

/// Opens a stream and waits for it.
fn open(fabric: &TcpFabric, group: GroupId, to: usize, deadline: Deadline) -> Result<Vec<TcpSender>> {
    let wake = Arc::new(Wake::new().unwrap());
    fabric.open(group, to, &wake, deadline);
    loop {
        if let Some(result) = fabric.opened(group, to) {
            return result;
        }
        assert!(wait_any(&[wake.park()], soon()).unwrap(), "no word of a stream to rank {to}");
        wake.drain();
    }
}

/// Waits for a stream that another rank opened.
fn accepted(fabric: &TcpFabric, group: GroupId, from: usize, wake: &Wake) -> Vec<TcpReceiver> {
    loop {
        if let Some(stripes) = fabric.accepted(group, from) {
            return stripes;
        }
        assert!(wait_any(&[wake.park()], soon()).unwrap(), "no stream from rank {from}");
        wake.drain();
    }
}

fn accepting(fabric: &TcpFabric, group: GroupId) -> Arc<Wake> {
    let wake = Arc::new(Wake::new().unwrap());
    fabric.accept(group, &wake);
    wake
}

#[test]
fn every_rank_reaches_every_other_on_every_stripe() {
    let (size, stripes) = (4, 2);
    let fabrics = Group::new("127.0.0.1", size, stripes).form();
    std::thread::scope(|scope| {
        for (rank, fabric) in fabrics.iter().enumerate() {
            scope.spawn(move || {
                let wake = accepting(fabric, GroupId::ROOT);
                let others = || (0..size).filter(move |other| *other != rank);
                for to in others() {
                    for (i, mut tx) in open(fabric, GroupId::ROOT, to, soon()).unwrap().into_iter().enumerate() {
                        assert_eq!(tx.peer().rank, to);
                        send_all(&mut tx, &[rank as u8, to as u8, i as u8]).unwrap();
                    }
                }
                for from in others() {
                    let receivers = accepted(fabric, GroupId::ROOT, from, &wake);
                    assert_eq!(receivers.len(), stripes);
                    for (i, mut rx) in receivers.into_iter().enumerate() {
                        assert_eq!(rx.peer().rank, from);
                        assert_eq!(recv_all(&mut rx, 3).unwrap(), [from as u8, rank as u8, i as u8]);
                        // Its sender has left: the end, and never before the last byte.
                        assert_eq!(recv_all(&mut rx, 1).unwrap_err().kind(), Kind::PeerClosed);
                    }
                    assert!(fabric.accepted(GroupId::ROOT, from).is_none(), "a stream is taken once");
                }
            });
        }
    });
}

#[test]
fn a_sender_that_leaves_at_once_has_sent_everything() {
    let mut fabrics = Group::new("127.0.0.1", 2, 1).form();
    let wake = accepting(&fabrics[1], GroupId::ROOT);
    let data: Vec<u8> = (0..2_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let expected = data.clone();
    let sender = fabrics.remove(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut tx = open(&sender, GroupId::ROOT, 1, soon()).unwrap().remove(0);
            send_all(&mut tx, &data).unwrap();
            drop(tx);
            drop(sender);
        });
        // Late, so that the sender has long gone when the last bytes are read.
        let mut rx = accepted(&fabrics[0], GroupId::ROOT, 0, &wake).remove(0);
        std::thread::sleep(Duration::from_millis(300));
        assert!(recv_all(&mut rx, expected.len()).unwrap() == expected, "bytes changed");
        assert_eq!(recv_all(&mut rx, 1).unwrap_err().kind(), Kind::PeerClosed);
    });
}

#[test]
fn a_stream_waits_until_its_group_is_known_there() {
    let fabrics = Group::new("127.0.0.1", 3, 1).form();
    let child = GroupId(0xC0FFEE);
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| open(&fabrics[0], child, 2, soon()).unwrap());
        std::thread::sleep(Duration::from_millis(200));
        assert!(!opener.is_finished());
        let wake = accepting(&fabrics[2], child);
        let mut rx = accepted(&fabrics[2], child, 0, &wake).remove(0);
        let mut tx = opener.join().unwrap().remove(0);
        send_all(&mut tx, b"hello").unwrap();
        assert_eq!(recv_all(&mut rx, 5).unwrap(), b"hello");
    });
}

#[test]
fn a_stream_that_does_not_come_about_ends_at_its_deadline_with_its_reason() {
    let mut fabrics = Group::new("127.0.0.1", 3, 2).form();
    let began = Instant::now();
    let e = open(&fabrics[0], GroupId(5), 2, Deadline::after(Duration::from_millis(300))).unwrap_err();
    assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::Rejected(Rejection::NotYet), Some(2)), "{e}");
    assert_eq!(e.rank(), Some(0));
    // A rank that has left does not answer.
    drop(fabrics.remove(2));
    let e = open(&fabrics[0], GroupId::ROOT, 2, Deadline::after(Duration::from_millis(300))).unwrap_err();
    assert_eq!(e.peer().map(|p| p.rank), Some(2));
    assert!(e.to_string().contains("did not answer: connection refused"), "{e}");
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[test]
fn streams_to_oneself_to_nobody_and_after_the_end_are_refused() {
    let fabrics = Group::new("127.0.0.1", 2, 1).form();
    assert_eq!(open(&fabrics[0], GroupId::ROOT, 0, soon()).unwrap_err().kind(), Kind::Misuse);
    assert_eq!(open(&fabrics[0], GroupId::ROOT, 2, soon()).unwrap_err().kind(), Kind::Misuse);
    fabrics[0].close(soon());
    assert_eq!(open(&fabrics[0], GroupId::ROOT, 1, soon()).unwrap_err().kind(), Kind::Closed);
    assert!(fabrics[0].opened(GroupId::ROOT, 1).is_none(), "a result is taken once");
}

#[test]
fn a_stream_that_is_being_opened_fails_when_the_fabric_closes() {
    let fabrics = Group::new("127.0.0.1", 2, 1).form();
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| open(&fabrics[0], GroupId(9), 1, soon()));
        std::thread::sleep(Duration::from_millis(100));
        fabrics[0].close(soon());
        assert_eq!(opener.join().unwrap().unwrap_err().kind(), Kind::Closed);
    });
}

#[test]
fn a_receiver_sees_a_stream_twice_when_it_was_opened_twice() {
    let fabrics = Group::new("127.0.0.1", 2, 2).form();
    let wake = accepting(&fabrics[1], GroupId::ROOT);
    for round in 0..3 {
        let mut senders = open(&fabrics[0], GroupId::ROOT, 1, soon()).unwrap();
        let mut receivers = accepted(&fabrics[1], GroupId::ROOT, 0, &wake);
        for (tx, rx) in senders.iter_mut().zip(&mut receivers) {
            send_all(tx, &[round]).unwrap();
            assert_eq!(recv_all(rx, 1).unwrap(), [round]);
        }
        // While one is open, another is refused.
        let e = open(&fabrics[0], GroupId::ROOT, 1, soon()).unwrap_err();
        assert_eq!(e.kind(), Kind::Rejected(Rejection::Taken), "{e}");
        drop(senders);
        for rx in &mut receivers {
            assert_eq!(recv_all(rx, 1).unwrap_err().kind(), Kind::PeerClosed);
        }
    }
}
