//! What a channel promises, over every kind of queue pair and loss.

use std::num::NonZeroU64;
use std::time::Duration;

use nuvec_transport::{Kind, conformance};
use nuvec_transport_rdma::fake::{Device, Network};
use nuvec_transport_rdma::{Options, QueuePairs};

use crate::support::*;

/// Runs the suite over groups of two; `prepare` may change the devices, `options` the ranks'.
fn suite(prepare: &dyn Fn(&Network), events: bool, options: &(dyn Fn(usize, Options) -> Options + Sync)) {
    let mut groups = Vec::new();
    conformance::suite(&mut || {
        let devices = [0, 1].map(|i| {
            let mut device = Device::new(format!("fake{i}"), &format!("10.0.0.{}", i + 1));
            device.events = events;
            device
        });
        let network = Network::of(devices.into());
        let fabrics = form(&matrix(2, 1), nuvec_transport_rdma::Topology::Mesh, &|rank| {
            options(rank, network.options().timeout(Duration::from_secs(30)))
        });
        prepare(&network);
        let fabrics: Vec<_> = fabrics.into_iter().map(|fabric| fabric.unwrap()).collect();
        let channels = (channel(&fabrics[0]), channel(&fabrics[1]));
        groups.push((network, fabrics));
        channels
    });
    for (network, fabrics) in groups {
        drop(fabrics);
        nothing_is_left(&network);
    }
}

#[test]
fn channels_conform_over_reliable_queue_pairs() {
    suite(&|_| {}, true, &|_, options| options.queue_pairs(QueuePairs::Reliable));
}

#[test]
fn channels_conform_over_unreliable_queue_pairs() {
    suite(&|_| {}, true, &|_, options| options.queue_pairs(QueuePairs::Unreliable));
}

#[test]
fn channels_conform_without_completion_channels() {
    suite(&|_| {}, false, &|_, options| options.queue_pairs(QueuePairs::Reliable));
}

#[test]
fn channels_conform_with_the_smallest_queues_and_messages_that_either_end_offers() {
    suite(&|_| {}, true, &|rank, options| {
        let options = options.queue_pairs(QueuePairs::Unreliable);
        if rank == 0 { options.depth(8).message(4096) } else { options.depth(32).message(100) }
    });
}

#[test]
fn channels_conform_although_one_message_in_seven_is_lost() {
    let lose = |network: &Network| {
        network.faults("fake0").lose_one_in = NonZeroU64::new(7);
        network.faults("fake1").lose_one_in = NonZeroU64::new(7);
    };
    suite(&lose, true, &|_, options| options.queue_pairs(QueuePairs::Unreliable));
}

#[test]
fn any_one_message_may_be_lost_and_the_data_are_right() {
    for lost in 0..12 {
        let network = Network::new(2);
        let mut two = two(&|_| network.options().queue_pairs(QueuePairs::Unreliable).message(1000));
        network.faults("fake0").lose = vec![lost];
        network.faults("fake1").lose = vec![lost % 5];
        for round in 0..4 {
            let data = pattern(2500, round);
            conformance::send_all(&mut two.first.0, &data).unwrap();
            assert_eq!(conformance::recv_all(&mut two.second.1, data.len()).unwrap(), data, "message {lost} lost");
            conformance::send_all(&mut two.second.0, &data[..8]).unwrap();
            assert_eq!(conformance::recv_all(&mut two.first.1, 8).unwrap(), data[..8], "message {lost} lost");
        }
    }
}

#[test]
fn sizes_of_all_kinds_follow_each_other_without_a_barrier() {
    for queue_pairs in TYPES {
        let network = Network::new(2);
        let mut two = two(&|_| network.options().queue_pairs(queue_pairs));
        let sizes = [40, 4000, 4, 1, 100_000, 7, 32 << 10, 0, 3, 200_001, 4];
        for (i, size) in sizes.into_iter().enumerate() {
            let (out, back) = (pattern(size, i as u8), pattern(size, 100 + i as u8));
            let got = std::thread::scope(|scope| {
                let Two { first, second, .. } = &mut two;
                let sends = [(&mut first.0, &out), (&mut second.0, &back)];
                for (tx, data) in sends {
                    scope.spawn(move || conformance::send_all(tx, data).unwrap());
                }
                let other = scope.spawn(|| conformance::recv_all(&mut second.1, size).unwrap());
                let this = conformance::recv_all(&mut first.1, size).unwrap();
                (this, other.join().unwrap())
            });
            assert!(got == (back, out), "{queue_pairs:?}, {size} bytes");
        }
    }
}

#[test]
fn a_stream_that_nobody_reads_any_more_is_an_error_for_its_sender_alone() {
    for queue_pairs in TYPES {
        let network = Network::new(2);
        let Two { fabrics: _fabrics, mut first, second } = two(&|_| network.options().queue_pairs(queue_pairs));
        let (mut tx, rx) = second;
        conformance::send_all(&mut first.0, &pattern(100_000, 0)).unwrap_or_default();
        drop(rx);
        let e = error_of_sending(&mut first.0);
        assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::Reset, Some(1)), "{e}");
        conformance::send_all(&mut tx, b"still here").unwrap();
        assert_eq!(conformance::recv_all(&mut first.1, 10).unwrap(), b"still here");
    }
}
