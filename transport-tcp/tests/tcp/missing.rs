//! Ranks that are not there: who is named, and how soon.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use nuvec_transport::{Kind, Rejection};
use nuvec_transport_tcp::{Address, Options, connect_with_listeners};

use crate::support::*;

fn short() -> Options {
    Options::default().timeout(Duration::from_millis(1200))
}

#[test]
fn a_right_neighbour_that_never_starts_is_named_with_what_was_tried() {
    let began = Instant::now();
    let group = Group::new("127.0.0.1", 3, 1).options(short()).without(1).without(2);
    let address = group.nodes[1][0].to_string();
    let e = group.fail().swap_remove(0).unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    let line = e.to_string();
    assert_eq!((e.kind(), e.rank(), e.peer().map(|p| p.rank)), (Kind::TimedOut, Some(0), Some(1)), "{line}");
    assert!(
        line.starts_with(&format!("rank 0: rank 1 ({address}) did not answer: connection refused (tried ")),
        "{line}"
    );
    assert!(line.contains(" times in 1.2 s)"), "{line}");
    assert!(line.ends_with("; is rank 1 started, and does its firewall let the port in?"), "{line}");
    // Nor did the left one come.
    assert!(line.contains("rank 2 (") && line.contains("did not connect to rank 0 within 1.2 s"), "{line}");
}

#[test]
fn a_left_neighbour_that_alone_is_missing_is_the_one_that_is_named() {
    // The rank under test is 1 of 3; its time is the shortest, so that it tells its own story.
    let mut group =
        Group::new("127.0.0.1", 3, 1).options(Options::default().timeout(Duration::from_secs(4))).without(0);
    group.options[1].timeout = Duration::from_millis(800);
    let e = group.connect().swap_remove(1).unwrap().map(drop).unwrap_err();
    assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::TimedOut, Some(0)), "{e}");
    assert!(e.to_string().contains("did not connect to rank 1 within 0.8 s"), "{e}");
    let advice = "; is rank 0 started, and does the firewall of rank 1 let the port in?";
    assert!(e.to_string().ends_with(advice), "{e}");
}

#[test]
fn each_survivor_of_several_names_a_rank_that_is_missing() {
    let began = Instant::now();
    let mut group = Group::new("127.0.0.1", 5, 1).options(short()).without(2).without(3);
    // As collectives do: the first to fail tells the others, and they fail with that.
    for notes in &mut group.notes {
        notes.outspoken = true;
    }
    let errors = group.fail();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let mut named = 0;
    for (rank, e) in errors.iter().enumerate() {
        let Some(e) = e else { continue };
        let line = e.to_string();
        if e.kind() == Kind::Mismatch {
            assert!(line.contains("said that it failed"), "{line}");
            continue;
        }
        named += 1;
        assert_eq!(e.kind(), Kind::TimedOut, "{line}");
        let missing = e.peer().unwrap().rank;
        assert!(missing == 2 || missing == 3, "rank {rank}: {line}");
        assert!(line.contains("rank 2") && line.contains('3') || rank == 1, "{line}");
    }
    assert!(named >= 1);
}

#[test]
fn ranks_beyond_the_neighbours_are_named_when_their_word_does_not_come() {
    // A line 0 - 1 - 2 - 3 whose rank 4 is missing; 1 has the shortest time and both its neighbours.
    let mut group = Group::new("127.0.0.1", 5, 1).without(4);
    group.options[1].timeout = Duration::from_millis(800);
    let e = group.connect().swap_remove(1).unwrap().map(drop).unwrap_err();
    assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::TimedOut, Some(4)), "{e}");
    assert!(e.to_string().contains("has not joined within 0.8 s"), "{e}");
    assert!(e.to_string().ends_with("; is rank 4 started, and does its firewall let the port in?"), "{e}");
}

#[test]
fn of_a_rank_that_never_starts_the_one_that_dials_it_speaks_first() {
    let round = |size: usize, missing: usize| {
        let mut group = Group::new("127.0.0.1", size, 1)
            .options(Options::default().timeout(Duration::from_secs(3)))
            .without(missing);
        group.notes.iter_mut().for_each(|notes| notes.outspoken = true);
        let dialler = (missing + size - 1) % size;
        for (rank, e) in group.fail().into_iter().enumerate().filter_map(|(rank, e)| Some((rank, e?))) {
            let line = e.to_string();
            if rank != dialler {
                assert!(line.contains("said that it failed"), "rank {missing} of {size}: {line}");
                continue;
            }
            assert_eq!(e.peer().map(|p| p.rank), Some(missing), "{line}");
            assert!(line.contains("did not answer: connection refused (tried "), "rank {missing} of {size}: {line}");
            let advice = format!("; is rank {missing} started, and does its firewall let the port in?");
            assert!(line.ends_with(&advice), "{line}");
        }
    };
    std::thread::scope(|scope| {
        for (size, missing) in (3..=5).flat_map(|size| (0..size).map(move |missing| (size, missing))) {
            scope.spawn(move || round(size, missing));
        }
    });
}

#[test]
fn a_neighbour_that_gives_up_while_forming_fails_the_others_promptly_and_is_named() {
    let mut group = Group::new("127.0.0.1", 4, 1).without(3);
    group.options[1].timeout = Duration::from_millis(600);
    let notes = group.notes.clone();
    let began = Instant::now();
    let errors = group.fail();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    for rank in [0, 2] {
        let e = errors[rank].as_ref().unwrap();
        assert_eq!(e.peer().map(|p| p.rank), Some(1), "{e}");
        assert!(e.to_string().contains("left before the group had formed"), "{e}");
        let told = notes[rank].told.lock().unwrap();
        assert_eq!((told.ended.len(), told.failed.len()), (1, 1), "{told:?}");
    }
}

#[test]
fn the_first_ranks_reason_reaches_the_others_through_their_handlers() {
    let mut group = Group::new("127.0.0.1", 4, 1).without(3);
    group.options[1].timeout = Duration::from_millis(600);
    for notes in &mut group.notes {
        notes.outspoken = true;
    }
    let notes = group.notes.clone();
    let errors = group.fail();
    for rank in [0, 2] {
        let e = errors[rank].as_ref().unwrap();
        assert_eq!((e.kind(), e.rank()), (Kind::Mismatch, Some(rank)), "{e}");
        assert!(e.to_string().contains("said that it failed"), "{e}");
        // The handler found it, so it is not told of it.
        assert!(notes[rank].told.lock().unwrap().failed.is_empty());
    }
}

#[test]
fn a_peer_that_takes_connections_and_says_nothing_may_be_mlx() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listeners("127.0.0.1", 1);
    let nodes = [addresses("127.0.0.1", &own), vec![Address::new("127.0.0.1", silent.local_addr().unwrap().port())]];
    let e = connect_with_listeners(own, &nodes, 0, &short(), Box::new(Notes::default())).unwrap_err();
    assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::TimedOut, Some(1)), "{e}");
    assert!(e.to_string().contains("is it MLX?"), "{e}");
}

#[test]
fn a_peer_that_speaks_something_else_is_refused_at_once() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    std::thread::spawn(move || {
        use std::io::Write;
        for stream in other.incoming() {
            let _ = stream.unwrap().write_all(b"SSH-2.0-OpenSSH_9.9\r\n");
        }
    });
    let own = listeners("127.0.0.1", 1);
    let nodes = [addresses("127.0.0.1", &own), vec![Address::new("127.0.0.1", port)]];
    let began = Instant::now();
    let options = Options::default().timeout(PATIENCE);
    let e = connect_with_listeners(own, &nodes, 0, &options, Box::new(Notes::default())).unwrap_err();
    assert_eq!(e.kind(), Kind::Rejected(Rejection::NotNuvec), "{e}");
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_name_that_does_not_resolve_is_said_to() {
    // A label that is too long for a question to the network.
    let host = "x".repeat(64);
    let own = listeners("127.0.0.1", 1);
    let nodes = [addresses("127.0.0.1", &own), vec![Address::new(&host, 5000)]];
    let e = connect_with_listeners(own, &nodes, 0, &short(), Box::new(Notes::default())).unwrap_err();
    assert_eq!(e.kind(), Kind::TimedOut, "{e}");
    let line = e.to_string();
    assert!(line.contains(&format!("rank 1 ({host}:5000) could not be resolved: ")), "{line}");
    // No address was ever tried, so none is counted.
    assert!(!line.contains("tried") && line.contains("(for 1.2 s)"), "{line}");
    assert!(line.ends_with("; check the name, or use the address"), "{line}");
}
