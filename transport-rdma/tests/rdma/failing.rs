//! What goes wrong once a group has formed (D4 to D6, D8).

use std::time::{Duration, Instant};

use nuvec_transport::{Deadline, Fabric, Kind, Sender, conformance};
use nuvec_transport_rdma::QueuePairs;
use nuvec_transport_rdma::fake::{Faults, Network};

use crate::support::*;

/// What a rank that waits for bytes gets when its device does this as a message arrives.
fn fault_at_the_receiver(queue_pairs: QueuePairs, fault: &dyn Fn(&mut Faults)) -> nuvec_transport::Error {
    let network = Network::new(2);
    let mut two = two(&|_| network.options().queue_pairs(queue_pairs));
    fault(&mut network.faults("fake1"));
    conformance::send_all(&mut two.first.0, b"data that must not be believed").unwrap();
    let (e, got) = error_of_receiving(&mut two.second.1);
    assert!(got.is_empty(), "data came: {got:?}");
    assert_eq!(e.peer().map(|peer| peer.rank), Some(0), "{e}");
    let again = error_of_sending(&mut two.second.0);
    assert_eq!(again.to_string(), e.to_string(), "the first error stays");
    drop(two);
    nothing_is_left(&network);
    e
}

#[test]
fn every_error_status_ends_the_wait_and_names_the_peer_the_status_and_its_usual_cause() {
    for queue_pairs in TYPES {
        for status in (1..=22).chain([99, u32::MAX]) {
            let e = fault_at_the_receiver(queue_pairs, &|faults| faults.status = Some(status));
            let line = e.to_string();
            assert!(line.contains(&format!("status {status}, ")), "{line}");
            assert!(matches!(e.kind(), Kind::Reset | Kind::Unreachable | Kind::Device), "{e:?}");
        }
    }
}

#[test]
fn a_completion_of_no_work_that_was_posted_is_an_error() {
    for wr_id in [0, 1, u64::MAX, (1 << 32) | 5, (2 << 32) | 4000, (3 << 32) | 1] {
        let e = fault_at_the_receiver(QueuePairs::Reliable, &|faults| faults.wr_id = Some(wr_id));
        assert!(e.kind() == Kind::Device && e.to_string().contains(&format!("wr_id {wr_id:#x}")), "{e}");
    }
}

/// The work is done by the device's word alone: its memory holds no message, and none may be made of it.
#[test]
fn a_completion_of_work_that_is_still_posted_is_an_error() {
    for queue_pairs in TYPES {
        let posted = Some((2 << 32) | 40);
        let e = fault_at_the_receiver(queue_pairs, &|faults| faults.wr_id = posted);
        assert!(e.kind() == Kind::Mismatch && e.to_string().contains("a header's mark"), "{e}");
    }
}

#[test]
fn a_queue_that_cannot_be_polled_is_an_error() {
    let e = fault_at_the_receiver(QueuePairs::Unreliable, &|faults| faults.poll_fails = true);
    assert!(e.kind() == Kind::Device && e.to_string().contains("ibv_poll_cq returned -1"), "{e}");
}

#[test]
fn a_cable_that_is_cut_is_an_error_that_names_the_peer_for_whoever_sends() {
    for queue_pairs in TYPES {
        let network = Network::new(2);
        let mut two = two(&|_| network.options().queue_pairs(queue_pairs).timeout(Duration::from_secs(3)));
        network.faults("fake1").cut = true;
        let e = error_of_sending(&mut two.first.0);
        assert_eq!((e.kind(), e.peer().map(|peer| peer.rank)), (Kind::Unreachable, Some(1)), "{e}");
    }
}

#[test]
fn for_how_long_nothing_was_acknowledged_is_known_until_it_is() {
    let network = Network::new(2);
    let mut two = two(&|_| network.options().queue_pairs(QueuePairs::Unreliable));
    assert_eq!(two.first.0.unacknowledged(), Duration::ZERO, "nothing was sent");
    network.faults("fake1").cut = true;
    conformance::send_all(&mut two.first.0, b"lost").unwrap();
    let deadline = Deadline::after(PATIENCE);
    let within = |done: bool| done || deadline.expired();
    while !within(two.first.0.unacknowledged() > Duration::from_millis(500)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    network.faults("fake1").cut = false;
    assert_eq!(conformance::recv_all(&mut two.second.1, 4).unwrap(), b"lost");
    while !within(two.first.0.unacknowledged() == Duration::ZERO) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!deadline.expired());
}

#[test]
fn a_peer_whose_process_ends_is_noticed_through_the_bootstrap_by_who_only_waits() {
    for queue_pairs in TYPES {
        let network = Network::new(2);
        let mut two = two(&|_| network.options().queue_pairs(queue_pairs));
        conformance::send_all(&mut two.second.0, b"last words").unwrap();
        // Of the process that ends, nothing comes any more but the end of its connections.
        network.faults("fake1").cut = true;
        let began = Instant::now();
        two.fabrics[1].close(Deadline::after(Duration::ZERO));
        let (e, got) = error_of_receiving(&mut two.first.1);
        assert_eq!(got, b"last words");
        assert!(matches!(e.kind(), Kind::PeerClosed | Kind::Reset), "{e:?}");
        assert_eq!(e.peer().map(|peer| peer.rank), Some(1), "{e}");
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }
}

#[test]
fn dropping_returns_promptly_whatever_the_peer_does_and_leaves_nothing() {
    type Prepare<'a> = &'a dyn Fn(&mut Two, &Network);
    let states: [(&str, Prepare<'_>); 4] = [
        ("idle", &|_, _| {}),
        ("with messages that nobody reads", &|two, _| {
            for _ in 0..3 {
                let _ = nuvec_transport::Sender::try_send(&mut two.first.0, &[std::io::IoSlice::new(&[1; 200_000])]);
            }
        }),
        ("with the cable cut", &|_, network| network.faults("fake1").cut = true),
        ("with a broken queue", &|_, network| network.faults("fake0").poll_fails = true),
    ];
    for queue_pairs in TYPES {
        for (state, prepare) in &states {
            let network = Network::new(2);
            let mut two = two(&|_| network.options().queue_pairs(queue_pairs));
            prepare(&mut two, &network);
            let Two { fabrics: [first_fabric, second_fabric], first, second } = two;
            let began = Instant::now();
            drop(first);
            assert!(
                began.elapsed() < Duration::from_secs(1),
                "halves, {queue_pairs:?}, {state}: {:?}",
                began.elapsed()
            );
            drop(first_fabric);
            drop((second, second_fabric));
            assert!(began.elapsed() < Duration::from_secs(20), "{queue_pairs:?}, {state}: {:?}", began.elapsed());
            nothing_is_left(&network);
        }
    }
}

#[test]
fn memory_that_the_device_may_still_write_is_left_to_it() {
    let network = Network::new(2);
    let two = two(&|_| network.options());
    network.faults("fake0").destroy_fails = true;
    drop(two);
    let live = network.live();
    // One device's two queue pairs, and all that they need.
    assert_eq!((live.queue_pairs, live.regions, live.domains, live.contexts), (2, 2, 1, 1), "{live:?}");
}
