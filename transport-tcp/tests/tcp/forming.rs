//! Groups that form.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use nuvec_transport::{Fabric, Kind, LinkId};
use nuvec_transport_tcp::{Address, Key, Options, connect, connect_with_listeners};

use crate::support::*;

#[test]
fn every_connection_of_every_size_of_group_leads_where_it_should() {
    for size in [2, 3, 4, 5, 8] {
        for connections in [1, 3] {
            let group = Group::new("127.0.0.1", size, connections);
            let notes = group.notes.clone();
            let fabrics = group.form();
            check_ring(&fabrics);
            assert_eq!(fabrics.iter().map(|f| f.session()).collect::<HashSet<_>>().len(), 1);
            for (rank, notes) in notes.iter().enumerate() {
                let told = notes.told.lock().unwrap();
                let mut up = told.up.clone();
                up.sort();
                let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
                assert_eq!(up, [(LinkId(0), right), (LinkId(1), left)]);
                assert!(told.failed.is_empty());
            }
        }
    }
}

#[test]
fn a_group_forms_over_ipv6() {
    check_ring(&Group::new("::1", 3, 2).form());
}

#[test]
fn a_group_forms_over_names() {
    check_ring(&Group::new("localhost", 3, 1).form());
}

#[test]
fn ranks_with_one_key_form() {
    let key = Key::new(b"0123456789abcdef0123456789abcdef").unwrap();
    let options = Options::default().timeout(PATIENCE).key(key).name("desk");
    check_ring(&Group::new("127.0.0.1", 4, 2).options(options).form());
}

#[test]
fn a_group_of_one_is_there_at_once_and_has_no_peers() {
    let nodes = [vec![Address::new("192.0.2.1", 5000), Address::new("no such host", 5001)]];
    let fabric = connect(&nodes, 0, &Options::default(), Box::new(Notes::default())).unwrap();
    assert_eq!((fabric.rank(), fabric.size(), fabric.connections()), (0, 1, 2));
    assert!(fabric.min_cores() >= 1 && fabric.flush_control(soon()));
    let ring = fabric.links().unwrap().into_ring().unwrap();
    assert!(ring.right.is_empty() && ring.left.is_empty());
    assert_eq!(fabric.links().unwrap_err().kind(), Kind::Misuse);
}

#[test]
fn the_group_waits_as_long_as_its_most_patient_rank() {
    let mut group = Group::new("127.0.0.1", 3, 1);
    group.options[1].timeout = Duration::from_secs(77);
    for fabric in group.form() {
        assert_eq!((fabric.group_timeout(), fabric.timeout()), (Duration::from_secs(77), Duration::from_secs(77)));
    }
}

#[test]
fn a_neighbour_that_starts_late_is_connected_to_as_soon_as_it_is_there() {
    let (own, late) = (listeners("127.0.0.1", 1), Reserved::new());
    let nodes = [addresses("127.0.0.1", &own), vec![late.address()]];
    let start = |rank: usize, listeners| {
        let nodes = nodes.clone();
        std::thread::spawn(move || {
            let options = Options::default().timeout(PATIENCE);
            connect_with_listeners(listeners, &nodes, rank, &options, Box::new(Notes::default()))
        })
    };
    let early = start(0, own);
    std::thread::sleep(Duration::from_millis(1500));
    let began = Instant::now();
    let late = start(1, vec![late.listen()]).join().unwrap().unwrap();
    let early = early.join().unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    check_ring(&[early, late]);
}

#[test]
fn a_group_restarts_at_once_on_the_same_ports() {
    let (mut fabrics, nodes) = connect_all(2, |_, nodes| nodes);
    for round in 0..50 {
        check_ring(&fabrics);
        drop(fabrics);
        let began = Instant::now();
        fabrics = connect_on(2, |_| nodes.clone()).unwrap();
        assert!(began.elapsed() < Duration::from_secs(3), "round {round}: {:?}", began.elapsed());
    }
}

#[test]
fn a_wildcard_of_ones_own_and_unroutable_ranks_that_are_no_neighbours_do_no_harm() {
    let began = Instant::now();
    let (fabrics, _) = connect_all(4, |rank, mut nodes| {
        nodes[rank] = vec![Address::new("0.0.0.0", nodes[rank][0].port())];
        nodes[(rank + 2) % 4] = vec![Address::new("198.51.100.1", 5000)];
        nodes
    });
    check_ring(&fabrics);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn a_port_that_is_taken_is_named_with_its_reason() {
    let taken = listeners("127.0.0.1", 1);
    let nodes = [addresses("127.0.0.1", &taken), vec![Address::new("127.0.0.1", 1)]];
    let e = connect(&nodes, 0, &Options::default(), Box::new(Notes::default())).unwrap_err();
    let line = e.to_string();
    assert_eq!((e.kind(), e.rank()), (Kind::Io, Some(0)), "{line}");
    assert!(line.contains(&nodes[0][0].to_string()) && line.contains("Address already in use"), "{line}");
    assert!(line.ends_with("; is another process of rank 0, or another program, using it?"), "{line}");
}

#[test]
fn an_address_of_another_machine_cannot_be_listened_on() {
    let nodes = [vec![Address::new("192.0.2.77", 5000)], vec![Address::new("127.0.0.1", 5000)]];
    let e = connect(&nodes, 0, &Options::default(), Box::new(Notes::default())).unwrap_err();
    assert!(e.to_string().contains("cannot listen on 192.0.2.77:5000"), "{e}");
    assert!(e.to_string().ends_with("use one of its own, or 0.0.0.0:5000; is it rank 0?"), "{e}");
    assert_eq!(e.kind(), Kind::Io);
}

#[test]
fn a_group_without_a_listener_is_misuse() {
    let nodes = [vec![Address::new("127.0.0.1", 1)], vec![Address::new("127.0.0.1", 2)]];
    let e = connect_with_listeners(vec![], &nodes, 0, &Options::default(), Box::new(Notes::default())).unwrap_err();
    assert_eq!(e.kind(), Kind::Misuse, "{e}");
    let e = connect(
        &[vec![Address::new("127.0.0.1", 0)], nodes[1].clone()],
        0,
        &Options::default(),
        Box::new(Notes::default()),
    )
    .unwrap_err();
    assert_eq!(e.kind(), Kind::Misuse, "{e}");
}
