//! Peers that are not of this group: each is refused, told why, and reported by the rank that refused it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nuvec_transport::{ControlHandler, Error, Fabric, Kind, Rejection};
use nuvec_transport_tcp::{Address, Key, Options, TcpFabric, connect_with_listeners};

use crate::support::*;

const SECRET: &[u8] = b"correct horse battery staple 123";
const OTHER_SECRET: &[u8] = b"another secret of the same size!";

fn options() -> Options {
    Options::default().timeout(PATIENCE)
}

fn keyed(secret: &[u8]) -> Options {
    options().key(Key::new(secret).unwrap())
}

fn handler() -> Box<dyn ControlHandler> {
    Box::new(Notes::default())
}

/// Rank 1 of two waits for its left, and an intruder that claims to be rank 0 dials it: what each ends with. The address
/// that rank 1 has of rank 0 answers nothing.
fn intrude(victim: Options, intruder: Options, change: impl FnOnce(&mut Vec<Vec<Address>>)) -> (Error, Error) {
    let (own, theirs, absent) = (listeners("127.0.0.1", 1), listeners("127.0.0.1", 1), Reserved::new());
    let nodes = [vec![absent.address()], addresses("127.0.0.1", &own)];
    let mut their_nodes = vec![addresses("127.0.0.1", &theirs), nodes[1].clone()];
    change(&mut their_nodes);
    let victim = victim.timeout(Duration::from_millis(2400));
    std::thread::scope(|scope| {
        let victim = scope.spawn(|| connect_with_listeners(own, &nodes, 1, &victim, handler()).map(drop).unwrap_err());
        let began = Instant::now();
        let theirs = connect_with_listeners(theirs, &their_nodes, 0, &intruder, handler()).map(drop).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(2), "the dialler fails at once: {theirs}");
        (victim.join().unwrap(), theirs)
    })
}

/// Both ends say why.
fn check(ends: &(Error, Error), rejection: Rejection, dialler: &str, listener: &str) {
    let (victim, intruder) = (ends.0.to_string(), ends.1.to_string());
    assert_eq!(ends.1.kind(), Kind::Rejected(rejection), "{intruder}");
    assert_eq!((ends.1.rank(), ends.1.peer().map(|p| p.rank)), (Some(0), Some(1)));
    assert!(intruder.contains(dialler), "{intruder}");
    assert_eq!((ends.0.kind(), ends.0.peer().map(|p| p.rank)), (Kind::TimedOut, Some(0)), "{victim}");
    assert!(victim.contains("refused by rank 1: 127.0.0.1") && victim.contains(listener), "{victim}");
    // The cause comes before what follows from it.
    assert!(victim.find("refused by") < victim.find("did not answer"), "{victim}");
    for line in [victim, intruder] {
        assert!(!line.contains("correct horse") && !line.contains('\n'), "{line}");
    }
}

#[test]
fn another_number_of_ranks_is_refused() {
    let ends = intrude(options(), options(), |nodes| nodes.push(vec![Address::new("127.0.0.1", 9)]));
    check(&ends, Rejection::Size, "counts 2 ranks, not 3", "counts 3 ranks, not 2");
}

#[test]
fn another_number_of_connections_is_refused() {
    let ends = intrude(options(), options(), |nodes| nodes.iter_mut().for_each(|all| all.push(all[0].clone())));
    check(&ends, Rejection::Connections, "connections per neighbour, not 2", "counts 2 connections");
}

#[test]
fn another_name_is_refused() {
    let ends = intrude(options().name("a"), options().name("b"), |_| {});
    check(&ends, Rejection::Name, "another name", "another name");
}

#[test]
fn a_rank_that_takes_another_for_its_right_is_refused() {
    // It is rank 0 of two; the victim is rank 0 of two as well, by its own list.
    let (own, theirs, absent) = (listeners("127.0.0.1", 1), listeners("127.0.0.1", 1), Reserved::new());
    let nodes = [addresses("127.0.0.1", &own), vec![absent.address()]];
    let their_nodes = [addresses("127.0.0.1", &theirs), nodes[0].clone()];
    let short = options().timeout(Duration::from_millis(1200));
    std::thread::scope(|scope| {
        let victim = scope.spawn(|| connect_with_listeners(own, &nodes, 0, &short, handler()).map(drop).unwrap_err());
        let e = connect_with_listeners(theirs, &their_nodes, 0, &options(), handler()).map(drop).unwrap_err();
        assert_eq!(e.kind(), Kind::Rejected(Rejection::NotMe), "{e}");
        assert!(e.to_string().contains("is rank 0 of 2 there, not rank 1 of 2"), "{e}");
        let victim = victim.join().unwrap().to_string();
        assert!(victim.contains("refused by rank 0") && victim.contains("is rank 0 of 2 there"), "{victim}");
    });
}

#[test]
fn a_key_here_and_none_there_or_another_is_refused_with_key_and_nothing_more() {
    for (victim, intruder) in
        [(keyed(SECRET), options()), (options(), keyed(SECRET)), (keyed(SECRET), keyed(OTHER_SECRET))]
    {
        let ends = intrude(victim, intruder, |_| {});
        check(&ends, Rejection::Key, "key", "key");
        for line in [ends.0.to_string(), ends.1.to_string()] {
            assert!(line.ends_with("; give every rank the same key"), "{line}");
        }
    }
}

#[test]
fn strangers_without_the_key_are_one_line_whatever_rank_they_claim_and_come_after_a_rank_that_has_it() {
    let (own, absent) = (listeners("127.0.0.1", 1), Reserved::new());
    let nodes = [vec![absent.address()], addresses("127.0.0.1", &own)];
    let short = keyed(SECRET).timeout(Duration::from_secs(5));
    let intrude = |rank: usize, size: usize, options: &Options| {
        let theirs = listeners("127.0.0.1", 1);
        let mut their_nodes = vec![vec![absent.address()]; size];
        their_nodes[rank] = addresses("127.0.0.1", &theirs);
        their_nodes[rank + 1] = nodes[1].clone();
        connect_with_listeners(theirs, &their_nodes, rank, options, handler()).map(drop).unwrap_err()
    };
    std::thread::scope(|scope| {
        let victim = scope.spawn(|| connect_with_listeners(own, &nodes, 1, &short, handler()).map(drop).unwrap_err());
        // At once: each stays a moment, for a left of its own that never comes.
        std::thread::scope(|scope| {
            for rank in 0..10 {
                scope.spawn(move || assert_eq!(intrude(rank, 12, &options()).kind(), Kind::Rejected(Rejection::Key)));
            }
        });
        assert_eq!(intrude(0, 3, &keyed(SECRET)).kind(), Kind::Rejected(Rejection::Size));
        let line = victim.join().unwrap().to_string();
        assert!(line.contains("refused by rank 1: 127.0.0.1 (as rank 0) counts 3 ranks, "), "{line}");
        assert!(line.contains(", 127.0.0.1 has another key, or none (10 times)"), "{line}");
    });
}

/// Connects four ranks, of which rank 2 has another key and the ranks `late` come so much later, if it has left by then;
/// what each ends with.
fn with_another_key(late: &[usize], by: Duration, timeout: Duration) -> Vec<Error> {
    let mut group = Group::new("127.0.0.1", 4, 1).options(keyed(SECRET).timeout(timeout));
    group.options[2] = keyed(OTHER_SECRET).timeout(timeout);
    group.notes.iter_mut().for_each(|notes| notes.outspoken = true);
    // A listener that nobody has begun to serve would keep those who come early.
    let mut held: Vec<_> = (0..4).map(|_| None).collect();
    for rank in late {
        held[*rank] = Some(group.hold(*rank));
    }
    let Group { nodes, listeners, notes, options, .. } = &mut group;
    std::thread::scope(|scope| {
        let start = |(rank, held): (usize, Option<Reserved>)| {
            let (nodes, options, notes, own) = (&*nodes, &options[rank], notes[rank].clone(), listeners[rank].take());
            scope.spawn(move || {
                let own = match held {
                    None => own.unwrap(),
                    Some(held) => {
                        std::thread::sleep(by);
                        vec![held.listen()]
                    }
                };
                connect_with_listeners(own, nodes, rank, options, Box::new(notes)).map(drop).unwrap_err()
            })
        };
        let ranks: Vec<_> = held.into_iter().enumerate().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_rank_with_another_key_is_named_with_it_at_once_by_every_rank_whoever_comes_first() {
    let round = |late: &[usize]| {
        let began = Instant::now();
        let errors = with_another_key(late, Duration::from_millis(400), PATIENCE);
        assert!(began.elapsed() < Duration::from_secs(8), "{late:?} late: {:?}", began.elapsed());
        for (rank, e) in errors.iter().enumerate() {
            let line = e.to_string();
            // Rank 1 dials it, and tells the others.
            let said = rank == 0 || rank == 3;
            assert!(
                said && line.contains("said that it failed") || line.contains("has another key, or none"),
                "{line}"
            );
            assert!(said || e.kind() == Kind::Rejected(Rejection::Key), "{line}");
            assert!(said || line.ends_with("; give every rank the same key"), "{line}");
        }
        assert_eq!(errors[1].peer().map(|p| p.rank), Some(2));
    };
    std::thread::scope(|scope| {
        for late in 0..16_usize {
            let late: Vec<usize> = (0..4).filter(|rank| late & 1 << rank != 0).collect();
            scope.spawn(move || round(&late));
        }
    });
}

#[test]
fn a_rank_that_left_because_of_its_key_before_the_others_came_is_explained_by_who_refused_it() {
    // Rank 1 comes when rank 2 has left, so that nobody is there whom it could dial.
    let errors = with_another_key(&[1], Duration::from_millis(2500), Duration::from_secs(5));
    let mut explained = 0;
    for rank in [0, 1, 3] {
        let (e, line) = (&errors[rank], errors[rank].to_string());
        if line.contains("said that it failed") {
            continue;
        }
        explained += 1;
        assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::TimedOut, Some(2)), "{line}");
        assert!(line.contains("refused by rank 3: 127.0.0.1 has another key, or none"), "{line}");
        assert!(line.ends_with("; give every rank the same key") && !line.contains("is rank 2 started"), "{line}");
    }
    assert!(explained > 0);
}

#[test]
fn a_stranger_that_is_refused_fails_no_group() {
    let mut group = Group::new("127.0.0.1", 3, 1).options(keyed(SECRET));
    let late = group.listeners[1].take().unwrap();
    let (nodes, target) = (group.nodes.clone(), group.nodes[2].clone());
    std::thread::scope(|scope| {
        let others = scope.spawn(move || group.connect());
        let theirs = listeners("127.0.0.1", 1);
        let their_nodes = [vec![Reserved::new().address()], addresses("127.0.0.1", &theirs), target];
        let e = connect_with_listeners(theirs, &their_nodes, 1, &keyed(OTHER_SECRET), handler()).map(drop).unwrap_err();
        assert_eq!(e.kind(), Kind::Rejected(Rejection::Key), "{e}");
        let second = connect_with_listeners(late, &nodes, 1, &keyed(SECRET), handler()).unwrap();
        let mut all: Vec<_> = others.join().unwrap().into_iter().map(|rank| rank.map(Result::unwrap)).collect();
        all[1] = Some(second);
        check_ring(&all.into_iter().flatten().collect::<Vec<_>>());
    });
}

#[test]
fn the_second_of_two_processes_with_one_rank_is_refused() {
    // Ranks 0, 0 again, and 1; rank 2 never comes, so that the first two stay.
    let mut group = Group::new("127.0.0.1", 3, 1).without(2).options(options().timeout(Duration::from_millis(1500)));
    let twin = listeners("127.0.0.1", 1);
    let mut nodes = group.nodes.clone();
    nodes[0] = addresses("127.0.0.1", &twin);
    std::thread::scope(|scope| {
        let twin = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            connect_with_listeners(twin, &nodes, 0, &options(), handler()).map(drop).unwrap_err()
        });
        let errors = group.connect();
        let twin = twin.join().unwrap();
        assert_eq!(twin.kind(), Kind::Rejected(Rejection::Taken), "{twin}");
        assert!(twin.to_string().contains("another process"), "{twin}");
        let told = errors.into_iter().flatten().map(|e| e.map(drop).unwrap_err().to_string());
        assert!(told.into_iter().any(|line| line.contains("refused by rank 1: 127.0.0.1 (as rank 0)")));
    });
}

/// An earlier run of two whose ports a new rank 0 dials.
fn earlier_run() -> (Vec<TcpFabric>, Vec<Vec<Address>>) {
    let group = Group::new("127.0.0.1", 2, 1);
    let nodes = group.nodes.clone();
    (group.form(), nodes)
}

#[test]
fn a_new_run_waits_for_an_earlier_one_until_its_time_is_up_and_says_so() {
    let (earlier, mut nodes) = earlier_run();
    let own = listeners("127.0.0.1", 1);
    nodes[0] = addresses("127.0.0.1", &own);
    let began = Instant::now();
    let short = options().timeout(Duration::from_millis(700));
    let e = connect_with_listeners(own, &nodes, 0, &short, handler()).map(drop).unwrap_err();
    assert_eq!(e.kind(), Kind::Rejected(Rejection::Session), "{e}");
    assert!(began.elapsed() >= Duration::from_millis(700));
    assert!(e.to_string().contains("still in an earlier run") && e.to_string().contains("times in 0.7 s"), "{e}");
    check_ring(&earlier);
}

#[test]
fn a_new_run_forms_once_the_earlier_one_has_ended() {
    let (mut earlier, mut nodes) = earlier_run();
    let port = nodes[1][0].port();
    let own = listeners("127.0.0.1", 1);
    nodes[0] = addresses("127.0.0.1", &own);
    let again = nodes.clone();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || connect_with_listeners(own, &nodes, 0, &options(), handler()));
        std::thread::sleep(Duration::from_millis(200));
        earlier.clear();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let second = connect_with_listeners(vec![listener], &again, 1, &options(), handler()).unwrap();
        check_ring(&[first.join().unwrap().unwrap(), second]);
    });
}

/// Stands between a dialler and a listener, passes everything on and keeps what the dialler said.
struct Middle {
    port: u16,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Middle {
    fn new(to: Address) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&heard);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect((to.host(), to.port())) else { continue };
                let (mut from, mut into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let record = Arc::clone(&record);
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = from.read(&mut buffer) {
                        record.lock().unwrap().extend_from_slice(&buffer[..n]);
                        if into.write_all(&buffer[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = into.shutdown(Shutdown::Write);
                });
                let (mut from, mut into) = (server, client);
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut into);
                    let _ = into.shutdown(Shutdown::Write);
                });
            }
        });
        Self { port, heard }
    }
}

#[test]
fn a_hello_led_to_another_rank_is_refused_on_both_ends() {
    // Rank 0 of three means to dial rank 1 and is led to rank 2.
    let mut group = Group::new("127.0.0.1", 3, 1).options(keyed(SECRET).timeout(Duration::from_millis(1500)));
    let middle = Middle::new(group.nodes[2][0].clone());
    let own = group.listeners[0].take().unwrap();
    let mut nodes = group.nodes.clone();
    nodes[1] = vec![Address::new("127.0.0.1", middle.port)];
    std::thread::scope(|scope| {
        let dialler = scope.spawn(move || connect_with_listeners(own, &nodes, 0, &keyed(SECRET), handler()));
        let errors = group.connect();
        let e = dialler.join().unwrap().map(drop).unwrap_err();
        assert_eq!(e.kind(), Kind::Rejected(Rejection::NotMe), "{e}");
        // Its neighbours do not form without it, though they all have each other's cards.
        assert!(errors.into_iter().flatten().all(|result| result.is_err()));
    });
    assert!(!middle.heard.lock().unwrap().is_empty());
}

#[test]
fn a_recorded_hello_played_again_gets_key_and_the_group_forms() {
    // A first run of two, through a listener in the middle that records what rank 0 says.
    let group = Group::new("127.0.0.1", 2, 1);
    let middle = Middle::new(group.nodes[1][0].clone());
    let mut group = group.options(keyed(SECRET));
    let own = group.listeners[0].take().unwrap();
    let mut nodes = group.nodes.clone();
    nodes[1] = vec![Address::new("127.0.0.1", middle.port)];
    std::thread::scope(|scope| {
        let dialler = scope.spawn(move || connect_with_listeners(own, &nodes, 0, &keyed(SECRET), handler()).unwrap());
        let other = group.connect().swap_remove(1).unwrap().unwrap();
        drop((dialler.join().unwrap(), other));
    });
    let recorded = middle.heard.lock().unwrap().clone();
    // The header and Open, 126 bytes, then the proof, 32.
    assert!(recorded.len() > 158);

    // A second run of the same ranks with the same key, while the recording is played at it again and again.
    let mut group = Group::new("127.0.0.1", 2, 1).options(keyed(SECRET));
    let target = group.nodes[1][0].port();
    let late = group.listeners[0].take().unwrap();
    let nodes = group.nodes.clone();
    std::thread::scope(|scope| {
        let victim = scope.spawn(move || group.connect().swap_remove(1).unwrap());
        for _ in 0..20 {
            let mut thief = TcpStream::connect(("127.0.0.1", target)).unwrap();
            thief.set_read_timeout(Some(PATIENCE)).unwrap();
            thief.write_all(&recorded[..126]).unwrap();
            let mut reply = [0; 54];
            thief.read_exact(&mut reply).unwrap();
            thief.write_all(&recorded[126..158]).unwrap();
            let mut verdict = Vec::new();
            thief.read_to_end(&mut verdict).unwrap();
            assert!(verdict.len() == 43 && verdict[11..].iter().all(|byte| *byte == 0), "{verdict:?}");
        }
        let other = connect_with_listeners(late, &nodes, 0, &keyed(SECRET), handler()).unwrap();
        check_ring(&[other, victim.join().unwrap().unwrap()]);
    });
}

#[test]
fn what_a_dialler_sends_reflected_at_it_is_refused() {
    let mirror = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = mirror.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in mirror.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut back = stream.try_clone().unwrap();
            std::thread::spawn(move || drop(std::io::copy(&mut stream, &mut back)));
        }
    });
    let own = listeners("127.0.0.1", 1);
    let nodes = [addresses("127.0.0.1", &own), vec![Address::new("127.0.0.1", port)]];
    let e = connect_with_listeners(own, &nodes, 0, &keyed(SECRET), handler()).map(drop).unwrap_err();
    assert!(matches!(e.kind(), Kind::Rejected(_)), "{e}");
    assert!(!e.to_string().contains("correct"), "{e}");
}

#[test]
fn ranks_that_would_choose_different_algorithms_do_not_form_and_each_says_why() {
    // The other two are connected when it comes.
    let mut group = Group::new("127.0.0.1", 3, 1);
    let late = group.listeners[2].take().unwrap();
    let nodes = group.nodes.clone();
    let notes = group.notes.clone();
    let errors = std::thread::scope(|scope| {
        let late = scope.spawn(move || {
            notes[0].wait("not connected", |told| !told.up.is_empty());
            let handler = Box::new(Notes { agreement: 7, ..Notes::default() });
            connect_with_listeners(late, &nodes, 2, &options(), handler).map(drop)
        });
        let mut errors: Vec<_> = group.connect().into_iter().flatten().map(|result| result.map(drop)).collect();
        errors.push(late.join().unwrap());
        errors
    });
    for (rank, e) in errors.into_iter().enumerate() {
        let e = e.unwrap_err();
        let line = e.to_string();
        assert_eq!((e.kind(), e.rank()), (Kind::Mismatch, Some(rank)), "{line}");
        assert!(line.contains("would run other algorithms") && line.contains('7') && line.contains("rank 2"), "{line}");
    }
}

#[test]
fn a_hello_of_another_version_is_answered_and_reported() {
    let own = listeners("127.0.0.1", 1);
    let (absent, target) = (Reserved::new(), own[0].local_addr().unwrap());
    let nodes = [vec![absent.address()], addresses("127.0.0.1", &own)];
    let short = options().timeout(Duration::from_millis(800));
    std::thread::scope(|scope| {
        let victim = scope.spawn(|| connect_with_listeners(own, &nodes, 1, &short, handler()).map(drop).unwrap_err());
        let mut other = TcpStream::connect(target).unwrap();
        other.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut hello = b"nu\xA5\x7Fve\xA5\x7Fc!\xA5\x7Fhi\xA5\x7F".to_vec();
        hello.extend([9, 0, 3, 0, 1, 2, 3]);
        other.write_all(&hello).unwrap();
        let mut reply = Vec::new();
        other.read_to_end(&mut reply).unwrap();
        assert_eq!((&reply[..16], reply.len()), (&hello[..16], 54));
        let e = victim.join().unwrap();
        assert!(e.to_string().contains("refused by rank 1: 127.0.0.1 speaks version 9"), "{e}");
    });
}

#[test]
fn no_debug_output_shows_a_key() {
    let shown = format!("{:?}", keyed(SECRET));
    assert!(!shown.contains("correct") && !shown.contains("99, 111, 114"), "{shown}");
    let (fabrics, _) = earlier_run();
    assert_eq!(format!("{:?}", fabrics[1]), "TcpFabric(rank 1 of 2, 1 connections)");
    assert_eq!(fabrics[0].peer(7).to_string(), "rank 7 (not in the group)");
}
