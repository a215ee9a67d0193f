//! What a kernel does with the bytes of a group's connections.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use nuvec_collectives::{Communicator, Options, RankState};
use nuvec_transport::Kind;
use nuvec_transport_tcp::{Address, TcpFabric, connect_with_listeners};

fn form(n: usize) -> Vec<Communicator<TcpFabric>> {
    let listeners: Vec<_> = (0..n).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let nodes: Vec<_> =
        listeners.iter().map(|l| vec![Address::new("127.0.0.1", l.local_addr().unwrap().port())]).collect();
    let options = nuvec_transport_tcp::Options::default().timeout(Duration::from_secs(60));
    std::thread::scope(|scope| {
        let form = |(rank, listener)| {
            let (nodes, options) = (&nodes, &options);
            scope.spawn(move || {
                let connect = |handler| connect_with_listeners(vec![listener], nodes, rank, options, handler);
                Communicator::form(Options::default(), connect).unwrap()
            })
        };
        let threads: Vec<_> = listeners.into_iter().enumerate().map(form).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Has rank 2 of four wait for a message of rank 0 while both its neighbours leave, and rank 0 do something then; what the
/// wait came to, and how long it lasted.
fn cut_off(then: impl FnOnce(&Communicator<TcpFabric>)) -> (nuvec_transport::Result<[u8; 5]>, Duration) {
    let groups = form(4);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let (start, mut data) = (Instant::now(), [0; 5]);
            (groups[2].recv(0, &mut data).map(|()| data), start.elapsed())
        });
        std::thread::sleep(Duration::from_millis(300));
        [1, 3].into_iter().for_each(|rank: usize| groups[rank].close());
        then(&groups[0]);
        waits.join().unwrap()
    })
}

#[test]
fn a_rank_whose_leaving_no_control_link_tells_is_named_by_who_waits_for_it_long_before_the_time_out() {
    let (outcome, lasted) = cut_off(|rank_0| rank_0.close());
    let error = outcome.expect_err("nobody sends");
    assert_eq!((error.kind(), error.peer().map(|p| p.rank)), (Kind::PeerClosed, Some(0)), "{error}");
    assert!(error.to_string().contains("has left; see its own output"), "{error}");
    assert!(lasted < Duration::from_secs(20), "{lasted:?}");
}

#[test]
fn a_message_of_a_rank_that_is_there_comes_also_to_a_rank_whose_neighbours_have_left() {
    for pause in [0, 4] {
        let (outcome, _) = cut_off(|rank_0| {
            std::thread::sleep(Duration::from_secs(pause));
            rank_0.send(2, b"hello").unwrap();
        });
        assert_eq!(&outcome.unwrap(), b"hello");
    }
}

#[test]
fn a_message_to_a_rank_whose_leaving_no_control_link_told_fails_long_before_the_time_out() {
    let groups = form(4);
    [1, 3].into_iter().for_each(|rank: usize| groups[rank].close());
    groups[0].close();
    let start = Instant::now();
    let error = groups[2].send(0, b"hello").expect_err("nobody is there");
    assert_eq!((error.kind(), error.peer().map(|p| p.rank)), (Kind::PeerClosed, Some(0)), "{error}");
    assert!(error.to_string().contains("has left"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_message_to_a_rank_that_has_left_is_an_error_on_a_stream_that_stands_too() {
    for n in [2, 3] {
        let groups = form(n);
        groups[0].send(1, b"first").unwrap();
        groups[1].recv(0, &mut [0; 5]).unwrap();
        groups[1].close();
        let start = Instant::now();
        while groups[0].status()[1].state != RankState::Gone {
            assert!(start.elapsed() < Duration::from_secs(30), "rank 1 is not missed");
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = groups[0].send(1, b"second").expect_err("nobody gets it");
        assert_eq!((error.kind(), error.peer().map(|p| p.rank)), (Kind::PeerClosed, Some(1)), "{error}");
    }
}

#[test]
fn for_how_long_a_call_waits_is_true_on_its_own_rank_and_on_others() {
    let groups = form(2);
    std::thread::scope(|scope| {
        let before = Instant::now();
        let hanging = scope.spawn(|| groups[0].barrier());
        while groups[0].status()[0].calls.is_empty() {
            assert!(before.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        let begun = Instant::now();
        // Reports come now and then; the times are right in between, too.
        for of in [0, 1].into_iter().cycle().take(30) {
            std::thread::sleep(Duration::from_millis(70));
            let least = begun.elapsed();
            let status = groups[of].status();
            let most = before.elapsed();
            let Some(call) = status[0].calls.first() else {
                assert_eq!(of, 1, "its own call");
                continue;
            };
            // A report takes a moment on its way.
            let late = if of == 0 { Duration::ZERO } else { Duration::from_millis(300) };
            assert!(call.since + late >= least && call.since <= most, "{least:?} {:?} {most:?}", call.since);
        }
        assert!(!groups[1].status()[0].calls.is_empty(), "no report has come");
        groups[1].barrier().unwrap();
        hanging.join().unwrap().unwrap();
    });
}
