//! Groups: meshes, rings, streams between ranks, and building many of them.

use std::sync::Arc;
use std::time::Duration;

use nuvec_transport::{Channel, Deadline, Fabric, GroupId, Kind, Links, Wake, conformance};
use nuvec_transport_rdma::fake::Network;
use nuvec_transport_rdma::{QueuePairs, RdmaFabric, Topology};

use crate::support::*;

/// Has every rank, on a thread of its own, check its links.
fn exchange(fabrics: &[RdmaFabric], check: &(dyn Fn(usize, Links<nuvec_transport_rdma::RdmaChannel>) + Sync)) {
    std::thread::scope(|scope| {
        for fabric in fabrics {
            scope.spawn(move || check(fabric.rank(), fabric.links().unwrap()));
        }
    });
}

#[test]
fn a_mesh_has_a_channel_to_every_other_rank_in_rank_order() {
    for size in 2..=4 {
        let network = Network::new(size);
        let fabrics = group(&network, size, Topology::Mesh, QueuePairs::Any);
        exchange(&fabrics, &|rank, links| {
            let Links::Mesh(channels) = links else { panic!("no mesh") };
            assert_eq!(channels.len(), size - 1);
            let mut halves: Vec<_> = channels.into_iter().map(Channel::split).collect();
            for (tx, _) in &mut halves {
                conformance::send_all(tx, &[rank as u8]).unwrap();
            }
            let others = (0..size).filter(|other| *other != rank);
            for ((_, rx), other) in halves.iter_mut().zip(others) {
                assert_eq!(conformance::recv_all(rx, 1).unwrap(), [other as u8]);
            }
        });
        assert_eq!(fabrics[0].links().unwrap_err().kind(), Kind::Misuse);
        drop(fabrics);
        nothing_is_left(&network);
    }
}

#[test]
fn a_rings_connections_are_numbered_alike_at_both_ends() {
    for (size, connections) in [(2, 1), (2, 2), (3, 2), (4, 1)] {
        let network = Network::new(size);
        let formed = form(&matrix(size, connections), Topology::Ring, &|_| network.options());
        let fabrics: Vec<_> = formed.into_iter().map(|fabric| fabric.unwrap()).collect();
        assert!(fabrics.iter().all(|fabric| fabric.connections() == connections));
        exchange(&fabrics, &|rank, links| {
            let ring = links.into_ring().expect("a ring");
            assert_eq!((ring.right.len(), ring.left.len()), (connections, connections));
            let mut right: Vec<_> = ring.right.into_iter().map(Channel::split).collect();
            let mut left: Vec<_> = ring.left.into_iter().map(Channel::split).collect();
            for (i, (tx, _)) in right.iter_mut().enumerate() {
                conformance::send_all(tx, &[rank as u8, i as u8, b'r']).unwrap();
            }
            for (i, (tx, _)) in left.iter_mut().enumerate() {
                conformance::send_all(tx, &[rank as u8, i as u8, b'l']).unwrap();
            }
            for (i, (_, rx)) in left.iter_mut().enumerate() {
                let from = ((rank + size - 1) % size) as u8;
                assert_eq!(conformance::recv_all(rx, 3).unwrap(), [from, i as u8, b'r']);
            }
            for (i, (_, rx)) in right.iter_mut().enumerate() {
                let from = ((rank + 1) % size) as u8;
                assert_eq!(conformance::recv_all(rx, 3).unwrap(), [from, i as u8, b'l']);
            }
        });
    }
}

#[test]
fn streams_join_linked_ranks_both_ways_and_others_are_told_that_they_are_not_linked() {
    for (topology, size) in [(Topology::Mesh, 3), (Topology::Ring, 4), (Topology::Ring, 2)] {
        let network = Network::new(size);
        let fabrics = group(&network, size, topology, QueuePairs::Any);
        let wake = Arc::new(Wake::new().unwrap());
        let deadline = Deadline::after(PATIENCE);
        for from in 0..size {
            for to in 0..size {
                fabrics[from].open(GroupId::ROOT, to, &wake, deadline);
                let opened = fabrics[from].opened(GroupId::ROOT, to).expect("an answer at once");
                let apart = (from + size - to) % size;
                let linked = from != to && (topology == Topology::Mesh || [1, size - 1].contains(&apart));
                assert_eq!(fabrics[from].check_stream(to).is_ok(), linked, "{topology:?}: {from} to {to}");
                match opened {
                    Ok(mut senders) => {
                        assert!(linked, "{topology:?}: {from} to {to}");
                        let data = [from as u8, to as u8];
                        conformance::send_all(&mut senders[0], &data).unwrap();
                        let mut receivers = fabrics[to].accepted(GroupId::ROOT, from).expect("the stream is there");
                        assert_eq!(conformance::recv_all(&mut receivers[0], 2).unwrap(), data);
                    }
                    Err(e) => {
                        assert!(!linked, "{topology:?}: {from} to {to}: {e}");
                        let kind = if from == to { Kind::Misuse } else { Kind::Unsupported };
                        assert_eq!((e.kind(), e.rank()), (kind, Some(from)), "{e}");
                    }
                }
            }
        }
    }
}

#[test]
fn further_rings_are_not_offered() {
    let network = Network::new(2);
    let fabrics = group(&network, 2, Topology::Mesh, QueuePairs::Any);
    let wake = Arc::new(Wake::new().unwrap());
    fabrics[0].open_ring(GroupId(7), 1, 1, &wake, Deadline::after(PATIENCE));
    let refused = fabrics[0].ring_opened(GroupId(7)).expect("an answer at once").expect_err("a ring");
    assert_eq!(refused.kind(), Kind::Unsupported);
    assert!(refused.to_string().contains("no split on JACCL"), "{refused}");
    assert!(nuvec_transport::wait_any(&[wake.park()], Deadline::after(Duration::ZERO)).unwrap(), "the wake rings");
}

#[test]
fn a_group_of_one_opens_no_device() {
    let network = Network::new(0);
    let formed = form(&[vec![vec![]]], Topology::Mesh, &|_| network.options());
    let fabric = formed.into_iter().next().unwrap().unwrap();
    assert_eq!((fabric.size(), network.live().contexts), (1, 0));
}

#[test]
fn a_thousand_groups_leave_nothing() {
    let network = Network::new(2);
    for round in 0..1000 {
        let queue_pairs = TYPES[round % 2];
        let fabrics = group(&network, 2, Topology::Mesh, queue_pairs);
        let (mut tx, _rx) = channel(&fabrics[0]).split();
        let (_tx, mut rx) = channel(&fabrics[1]).split();
        conformance::send_all(&mut tx, &[round as u8]).unwrap();
        assert_eq!(conformance::recv_all(&mut rx, 1).unwrap(), [round as u8]);
    }
    nothing_is_left(&network);
}
