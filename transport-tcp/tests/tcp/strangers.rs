//! What is no rank and connects all the same: it is dropped, and the group forms as if it had not been there.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nuvec_transport::Kind;
use nuvec_transport_tcp::{Options, connect_with_listeners};

use crate::support::*;

/// A stranger: what it does with its connection, which is held until the group has formed.
pub(crate) type Stranger = fn(SocketAddr) -> Option<TcpStream>;

/// Every kind of stranger.
pub(crate) const KINDS: [(&str, Stranger); 5] = [
    ("comes and goes", comes_and_goes),
    ("asks for a page", asks_for_a_page),
    ("says three bytes", says_three_bytes),
    ("says nothing", says_nothing),
    ("makes noise", makes_noise),
];

fn comes_and_goes(to: SocketAddr) -> Option<TcpStream> {
    TcpStream::connect(to).ok();
    None
}

fn asks_for_a_page(to: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(to).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: rank\r\n\r\n").ok()?;
    Some(stream)
}

fn says_three_bytes(to: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(to).ok()?;
    stream.write_all(b"nu\xA5").ok()?;
    Some(stream)
}

fn says_nothing(to: SocketAddr) -> Option<TcpStream> {
    TcpStream::connect(to).ok()
}

fn makes_noise(to: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(to).ok()?;
    let noise: Vec<u8> = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    // It is cut off soon.
    stream.write_all(&noise).ok();
    Some(stream)
}

#[test]
fn two_hundred_strangers_of_every_kind_do_not_hinder_a_group() {
    for (name, stranger) in KINDS {
        let mut group = Group::new("127.0.0.1", 4, 1);
        // The last rank starts once all strangers are at the first's door.
        let late = group.listeners[3].take().unwrap();
        let (nodes, target) = (group.nodes.clone(), &group.nodes[0][0]);
        let target = SocketAddr::new(target.host().parse().unwrap(), target.port());
        let (formed, took) = std::thread::scope(|scope| {
            let others = scope.spawn(move || group.connect());
            let threads: Vec<_> = (0..200).map(|_| scope.spawn(move || stranger(target))).collect();
            let held: Vec<_> = threads.into_iter().filter_map(|t| t.join().unwrap()).collect();
            let began = Instant::now();
            let options = Options::default().timeout(PATIENCE);
            let last = connect_with_listeners(late, &nodes, 3, &options, Box::new(Notes::default()));
            let took = began.elapsed();
            let mut formed: Vec<_> = others.join().unwrap().into_iter().flatten().map(|r| r.unwrap()).collect();
            formed.push(last.unwrap());
            drop(held);
            (formed, took)
        });
        check_ring(&formed);
        assert!(took < Duration::from_secs(2), "{name}: {took:?}");
    }
}

#[test]
fn more_silent_strangers_than_there_is_room_for_push_each_other_out_and_not_the_group() {
    let mut group = Group::new("127.0.0.1", 2, 1);
    let late = group.listeners[0].take().unwrap();
    let (nodes, target) = (group.nodes.clone(), group.nodes[1][0].port());
    std::thread::scope(|scope| {
        let other = scope.spawn(move || group.connect().swap_remove(1).unwrap().unwrap());
        let mut held: Vec<_> = (0..400).map(|_| TcpStream::connect(("127.0.0.1", target)).unwrap()).collect();
        // The oldest has been dropped.
        held[0].set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(held[0].read(&mut [0; 1]).unwrap(), 0);
        let began = Instant::now();
        let options = Options::default().timeout(PATIENCE);
        let first = connect_with_listeners(late, &nodes, 0, &options, Box::new(Notes::default())).unwrap();
        assert!(began.elapsed() < Duration::from_secs(2));
        check_ring(&[first, other.join().unwrap()]);
    });
}

#[test]
fn a_stranger_that_says_nothing_is_dropped_after_a_while() {
    let group = Group::new("127.0.0.1", 2, 1);
    let target = group.nodes[0][0].port();
    let fabrics = group.form();
    let mut stranger = TcpStream::connect(("127.0.0.1", target)).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    let began = Instant::now();
    assert_eq!(stranger.read(&mut [0; 1]).unwrap(), 0);
    let took = began.elapsed();
    assert!((Duration::from_secs(4)..Duration::from_secs(8)).contains(&took), "{took:?}");
    check_ring(&fabrics);
}

#[test]
fn a_process_without_descriptors_waits_for_some_without_spinning_and_forms_then() {
    alone("strangers::a_process_without_descriptors_waits_for_some_without_spinning_and_forms_then", || {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(200), maximum: limit.maximum }).unwrap();
        let mut group = Group::new("127.0.0.1", 2, 1);
        let late = group.listeners[0].take().unwrap();
        let (nodes, target, notes) = (group.nodes.clone(), group.nodes[1][0].port(), group.notes[1].clone());
        std::thread::scope(|scope| {
            let other = scope.spawn(move || group.connect().swap_remove(1).unwrap().unwrap());
            // It has begun: what it needs for itself, it has.
            notes.wait("no tick", |told| told.ticks > 0);
            // Strangers knock, and then there is no descriptor left to take them with.
            let knocking: Vec<_> = (0..20).map(|_| TcpStream::connect(("127.0.0.1", target)).unwrap()).collect();
            std::thread::sleep(Duration::from_millis(100));
            let mut all = Vec::new();
            while let Ok(file) = std::fs::File::open("/dev/null") {
                all.push(file);
            }
            assert!(all.len() > 20);
            all.pop();
            let more = TcpStream::connect(("127.0.0.1", target)).unwrap();
            let before = processor_time();
            std::thread::sleep(Duration::from_millis(500));
            let used = processor_time() - before;
            assert!(used < Duration::from_millis(100), "{used:?} of processor time in half a second");
            drop((all, more, knocking));
            let options = Options::default().timeout(PATIENCE);
            let first = connect_with_listeners(late, &nodes, 0, &options, Box::new(Notes::default())).unwrap();
            check_ring(&[first, other.join().unwrap()]);
        });
    });
}

/// Leaves this process no more than `count` descriptors beyond those that it has.
fn leave_descriptors(count: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next + count), maximum }).unwrap();
}

#[test]
fn strangers_give_descriptors_back_that_the_process_needs_for_its_group() {
    alone("strangers::strangers_give_descriptors_back_that_the_process_needs_for_its_group", || {
        let mut group = Group::new("127.0.0.1", 2, 1);
        let late = group.listeners[0].take().unwrap();
        let (nodes, target) = (group.nodes.clone(), group.nodes[1][0].port());
        let strangers: Vec<_> = (0..100).map(|_| TcpStream::connect(("127.0.0.1", target)).unwrap()).collect();
        leave_descriptors(26);
        std::thread::scope(|scope| {
            let other = scope.spawn(move || group.connect().swap_remove(1).unwrap().unwrap());
            let began = Instant::now();
            // Descriptors have run out, and the oldest have been dropped for that.
            strangers[5].set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!((&strangers[5]).read(&mut [0; 1]).unwrap(), 0);
            let options = Options::default().timeout(PATIENCE);
            let first = connect_with_listeners(late, &nodes, 0, &options, Box::new(Notes::default())).unwrap();
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
            check_ring(&[first, other.join().unwrap()]);
        });
        drop(strangers);
    });
}

#[test]
fn a_rank_without_descriptors_says_at_once_that_it_is_its_own_want() {
    alone("strangers::a_rank_without_descriptors_says_at_once_that_it_is_its_own_want", || {
        let absent = Reserved::new();
        let mut lines = Vec::new();
        for free in 0.. {
            let own = listeners("127.0.0.1", 1);
            let nodes = [addresses("127.0.0.1", &own), vec![absent.address()]];
            leave_descriptors(free);
            let began = Instant::now();
            let options = Options::default().timeout(Duration::from_millis(1500));
            let e = connect_with_listeners(own, &nodes, 0, &options, Box::new(Notes::default())).unwrap_err();
            leave_descriptors(100);
            if e.kind() == Kind::TimedOut {
                break;
            }
            assert_eq!((e.kind(), e.rank(), e.peer()), (Kind::Exhausted, Some(0), None), "{e}");
            assert!(began.elapsed() < Duration::from_secs(1) && e.to_string().contains("ulimit -n"), "{e}");
            lines.push(e.to_string());
        }
        assert!(lines.iter().any(|line| line.contains("no descriptor is left to connect to rank 1 (")), "{lines:?}");
    });
}

/// What this process has used of the processors.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
