//! What keeps a group from forming, and how it says so (D1 to D3).

use std::time::{Duration, Instant};

use nuvec_transport::{Error, Fabric, Kind, Silent};
use nuvec_transport_rdma::fake::{Device, Network};
use nuvec_transport_rdma::{Options, QueuePairs, Topology};

use crate::support::*;

/// Why this rank fails before it meets any other.
fn refusal(network: &Network, device: &str) -> Error {
    let matrix = [vec![vec![], vec![device.to_string()]], vec![vec!["other".to_string()], vec![]]];
    let coordinator = nuvec_transport_tcp::Address::new("127.0.0.1", 1);
    let began = Instant::now();
    let options = network.options().timeout(Duration::from_secs(120));
    let formed = nuvec_transport_rdma::connect(&coordinator, &matrix, 0, Topology::Mesh, &options, Box::new(Silent));
    assert!(began.elapsed() < Duration::from_secs(60), "it waited for others");
    let e = formed.expect_err("a group of one that is there");
    assert_eq!(e.rank(), Some(0));
    e
}

#[test]
fn no_device_an_unknown_one_and_a_port_that_is_down_are_told_apart() {
    let e = refusal(&Network::new(0), "fake0");
    assert!(e.kind() == Kind::Device && e.to_string().contains("there is no RDMA device"), "{e}");
    assert!(e.advice().is_some());

    let network = Network::new(2);
    let e = refusal(&network, "rdma_en5");
    let line = e.to_string();
    assert!(e.kind() == Kind::Device && line.contains("\"rdma_en5\"") && line.contains("fake0, fake1"), "{line}");

    network.faults("fake0").port_down = true;
    let e = refusal(&network, "fake0");
    assert!(e.kind() == Kind::Device && e.to_string().contains("the port of fake0 is not active: it is down"), "{e}");
    nothing_is_left(&network);
}

#[test]
fn a_device_that_runs_out_of_queue_pairs_says_so_with_its_limit() {
    let mut device = Device::new("fake0", "10.0.0.1");
    device.queue_pairs = 1;
    let network = Network::of(vec![device]);
    let e = refusal(&network, "fake0");
    assert_eq!(e.kind(), Kind::Exhausted);
    assert!(e.to_string().contains("out of queue pairs on device fake0 (limit 1)"), "{e}");
    nothing_is_left(&network);
}

#[test]
fn memory_that_cannot_be_locked_is_an_error_with_limit_need_and_remedy_and_the_others_learn_it() {
    let mut devices = vec![Device::new("fake0", "10.0.0.1"), Device::new("fake1", "10.0.0.2")];
    devices[1].regions = 1;
    let network = Network::of(devices);
    let began = Instant::now();
    let formed = form(&matrix(2, 1), Topology::Mesh, &|_| network.options().timeout(Duration::from_secs(120)));
    assert!(began.elapsed() < Duration::from_secs(60), "they waited for each other");
    let e = formed[1].as_ref().expect_err("memory that is not there");
    let line = e.to_string();
    assert_eq!(e.kind(), Kind::Exhausted, "{line}");
    for part in ["fake1", "bytes", "limit on locked memory", "1 regions", "ulimit -l"] {
        assert!(line.contains(part), "{part} is missing in: {line}");
    }
    let other = formed[0].as_ref().expect_err("a group of one");
    assert_ne!(other.kind(), Kind::TimedOut, "{other}");
    drop(formed);
    nothing_is_left(&network);
}

#[test]
fn a_rank_that_offers_too_little_for_the_protocol_is_named_with_the_need() {
    for (queue_pairs, least) in TYPES.into_iter().zip([4, 7]) {
        let receives = (3, 4096, format!("only 3 receives, and the protocol needs {least}"));
        let bytes = (32, 0, "only 0 bytes a message, and the protocol needs 33".to_string());
        for (depth, message, need) in [receives, bytes] {
            let network = Network::new(2);
            let options = |rank| {
                let options = network.options().queue_pairs(queue_pairs);
                if rank == 1 { options.depth(depth).message(message) } else { options }
            };
            let formed = form(&matrix(2, 1), Topology::Mesh, &options);
            let errors: Vec<_> = formed.into_iter().map(|formed| formed.expect_err("a group over nothing")).collect();
            // Both find it, unless one hears first that the other has failed.
            let of_need = |(rank, e): (usize, &Error)| {
                (e.kind(), e.peer().map(|peer| peer.rank)) == (Kind::Mismatch, Some(1 - rank))
                    && e.to_string().contains(&need)
            };
            assert!(errors.iter().enumerate().any(of_need), "{errors:?}");
            nothing_is_left(&network);
        }
    }
}

#[test]
fn the_best_gid_of_any_table_is_used_and_an_empty_table_is_an_error_with_a_remedy() {
    let tables: [(&[&str], bool); 5] = [
        (&["fe80::1", "::", "::ffff:10.0.0.1"], true),
        (&["::", "2001:db8::1"], true),
        (&["fe80::7"], true),
        (&[], false),
        (&["::", "::"], false),
    ];
    for (table, works) in tables {
        let mut devices = vec![Device::new("fake0", "10.0.0.1"), Device::new("fake1", "10.0.0.2")];
        devices[0].gids = table.iter().map(|text| (text.to_string(), false)).collect();
        devices[1].gids = vec![("fe80::2".into(), false), ("::ffff:10.0.0.2".into(), true)];
        let network = Network::of(devices);
        if works {
            let formed = form(&matrix(2, 1), Topology::Mesh, &|_| network.options());
            assert!(formed.iter().all(Result::is_ok), "{table:?}: {formed:?}");
        } else {
            let e = refusal(&network, "fake0");
            assert!(e.kind() == Kind::Device && e.to_string().contains("GID table of fake0 is empty"), "{e}");
            assert!(e.advice().is_some_and(|advice| advice.contains("ip addr add")), "{e}");
        }
    }
    let network = Network::new(1);
    let matrix = [vec![vec![], vec!["fake0".to_string()]], vec![vec!["x".to_string()], vec![]]];
    let coordinator = nuvec_transport_tcp::Address::new("127.0.0.1", 1);
    // 257 is entry 1 to whoever looks at 8 bits of it.
    for index in [7, 257] {
        let options = network.options().gid_index(index);
        let e = nuvec_transport_rdma::connect(&coordinator, &matrix, 0, Topology::Mesh, &options, Box::new(Silent));
        let line = e.expect_err("an index that has no entry").to_string();
        assert!(line.contains(&format!("no entry {index};")) && line.contains("::ffff:10.0.0.1"), "{line}");
    }
}

#[test]
fn a_gid_that_cannot_be_reached_names_the_peer_and_both_gids() {
    // Two networks: what the one announces, the other does not know.
    let networks = [Network::new(2), Network::of(vec![Device::new("x", "10.9.9.8"), Device::new("fake1", "10.9.9.9")])];
    let formed = form(&matrix(2, 1), Topology::Mesh, &|rank| networks[rank].options());
    for (rank, formed) in formed.iter().enumerate() {
        let e = formed.as_ref().expect_err("a GID that nobody has");
        assert_eq!(e.rank(), Some(rank));
        let line = e.to_string();
        assert!(line.contains(&format!("rank {}", 1 - rank)), "{line}");
    }
    let lines: Vec<_> = formed.iter().map(|formed| formed.as_ref().expect_err("").to_string()).collect();
    assert!(lines.iter().any(|line| line.contains("::ffff:10.0.0.1") && line.contains("::ffff:10.9.9.9")), "{lines:?}");
}

#[test]
fn ranks_that_do_not_fit_together_say_what_differs() {
    let network = Network::new(2);
    let types = |rank| {
        let options: Options = network.options();
        options.queue_pairs(TYPES[rank])
    };
    let formed = form(&matrix(2, 1), Topology::Mesh, &types);
    let lines: Vec<_> = formed.iter().map(|formed| formed.as_ref().expect_err("two types").to_string()).collect();
    assert!(lines.iter().any(|line| line.contains("UC") && line.contains("RC")), "{lines:?}");
    drop(formed);
    nothing_is_left(&network);
}

#[test]
fn where_a_device_has_no_reliable_queue_pairs_unreliable_ones_are_used() {
    let mut devices = vec![Device::new("fake0", "10.0.0.1"), Device::new("fake1", "10.0.0.2")];
    devices.iter_mut().for_each(|device| device.reliable = false);
    let network = Network::of(devices);
    let e = {
        let options = network.options().queue_pairs(QueuePairs::Reliable);
        let matrix = matrix(2, 1);
        let coordinator = nuvec_transport_tcp::Address::new("127.0.0.1", 1);
        nuvec_transport_rdma::connect(&coordinator, &matrix, 0, Topology::Mesh, &options, Box::new(Silent))
            .expect_err("reliable queue pairs that are not offered")
    };
    assert!(e.to_string().contains("gives no RC queue pair"), "{e}");
    let formed = form(&matrix(2, 1), Topology::Mesh, &|_| network.options());
    assert!(formed.iter().all(Result::is_ok), "{formed:?}");
    assert_eq!(formed[0].as_ref().unwrap().size(), 2);
}
