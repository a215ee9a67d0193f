//! Ranks that meet at rank 0: how they come together, who is named when one does not, and what the links carry then.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use nuvec_transport::{
    ControlHandler, Deadline, Error, GroupId, Kind, LinkId, MAX_CONTROL_MESSAGE, Outbox, Peer, Rejection, Result,
};
use nuvec_transport_tcp::bootstrap::{Bootstrap, MAX_CARD, connect, connect_with_listeners};
use nuvec_transport_tcp::{Address, Key, Options};

use crate::strangers::KINDS;
use crate::support::*;

const SECRET: &[u8] = b"correct horse battery staple 123";

/// As collectives do: tells every link that forming failed, passes that on, and fails with it; with the transport's text.
#[derive(Default)]
struct Spokesman {
    notes: Notes,
    links: Vec<LinkId>,
}

impl ControlHandler for Spokesman {
    fn begin(&mut self, rank: usize, peers: &[Peer], timeout: Duration) -> u32 {
        self.notes.begin(rank, peers, timeout)
    }

    fn link_up(&mut self, link: LinkId, peer: &Peer, now: Duration, out: &mut Outbox) {
        self.links.push(link);
        self.notes.link_up(link, peer, now, out);
    }

    fn message(&mut self, link: LinkId, message: &[u8], now: Duration, out: &mut Outbox) {
        if let Some(text) = message.strip_prefix(b"failed: ") {
            let others = self.links.iter().filter(|other| **other != link);
            out.messages.extend(others.map(|other| (*other, message.to_vec())));
            let error = Error::new(Kind::Poisoned, format!("hears: {}", String::from_utf8_lossy(text)));
            out.poisoned.push((GroupId::ROOT, error));
        }
        self.notes.message(link, message, now, out);
    }

    fn link_ended(&mut self, link: LinkId, why: &Error, now: Duration, out: &mut Outbox) {
        self.notes.link_ended(link, why, now, out);
    }

    fn forming_failed(&mut self, why: &Error, now: Duration, out: &mut Outbox) {
        out.messages.extend(self.links.iter().map(|link| (*link, format!("failed: {why}").into_bytes())));
        self.notes.forming_failed(why, now, out);
    }

    fn tick(&mut self, now: Duration, out: &mut Outbox) {
        self.notes.tick(now, out);
    }
}

/// A group that is about to meet.
struct Star {
    coordinator: Address,
    listener: Option<TcpListener>,
    size: usize,
    options: Vec<Options>,
    notes: Vec<Notes>,
    cards: Vec<Vec<u8>>,
}

impl Star {
    fn new(host: &str, size: usize) -> Self {
        let listener = TcpListener::bind((host, 0)).unwrap();
        Self {
            coordinator: Address::new(host, listener.local_addr().unwrap().port()),
            listener: Some(listener),
            size,
            options: vec![Options::default().timeout(PATIENCE); size],
            notes: (0..size).map(|_| Notes::default()).collect(),
            cards: (0..size).map(|rank| vec![rank as u8; rank * 1000]).collect(),
        }
    }

    fn options(mut self, options: Options) -> Self {
        self.options.fill(options);
        self
    }

    /// The whole life of one rank until it has met the others.
    fn meet(&self, rank: usize, listener: Option<TcpListener>) -> Result<Bootstrap> {
        let handler = Box::new(Spokesman { notes: self.notes[rank].clone(), links: Vec::new() });
        let (to, card, options) = (&self.coordinator, &self.cards[rank], &self.options[rank]);
        match listener {
            Some(listener) => connect_with_listeners(vec![listener], to, rank, self.size, card, options, handler),
            None => connect(to, rank, self.size, card, options, handler),
        }
    }

    /// Has these ranks meet, each on a thread of its own that starts so many milliseconds late.
    fn start(&mut self, ranks: &[(usize, u64)]) -> Vec<Result<Bootstrap>> {
        let mut listener = self.listener.take();
        let this = &*self;
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .iter()
                .map(|&(rank, late)| {
                    let own = if rank == 0 { listener.take() } else { None };
                    scope.spawn(move || {
                        std::thread::sleep(Duration::from_millis(late));
                        this.meet(rank, own)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn all(&self) -> Vec<(usize, u64)> {
        (0..self.size).map(|rank| (rank, 0)).collect()
    }

    /// Has all meet, which must succeed.
    fn form(&mut self) -> Vec<Bootstrap> {
        let all = self.all();
        self.start(&all).into_iter().map(|rank| rank.unwrap()).collect()
    }

    /// Has all meet and get ready.
    fn get_ready(&mut self) -> Vec<Bootstrap> {
        let ranks = self.form();
        for result in ready(&ranks.iter().collect::<Vec<_>>(), soon()) {
            result.unwrap();
        }
        ranks
    }
}

/// Has these ranks say that they are ready.
fn ready(ranks: &[&Bootstrap], deadline: Deadline) -> Vec<Result<()>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || rank.ready(deadline))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Checks that everybody has everybody's card.
fn check(star: &Star, ranks: &[Bootstrap]) {
    for (rank, bootstrap) in ranks.iter().enumerate() {
        assert_eq!((bootstrap.rank(), bootstrap.size()), (rank, star.size));
        assert!(bootstrap.cards() == star.cards && bootstrap.min_cores() >= 1);
    }
}

fn error(result: &Result<impl Sized>) -> String {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn every_rank_of_every_size_of_group_gets_every_card_and_a_link_to_rank_0() {
    for size in [1, 2, 3, 8] {
        let mut star = Star::new("127.0.0.1", size);
        // Empty ones, and more than what a link may keep waiting.
        star.cards.iter_mut().skip(1).step_by(2).for_each(|card| card.resize(MAX_CARD, 7));
        star.options[size - 1].timeout = Duration::from_secs(77);
        let ranks = star.get_ready();
        check(&star, &ranks);
        for (rank, bootstrap) in ranks.iter().enumerate() {
            assert_eq!(bootstrap.timeout(), Duration::from_secs(77));
            assert_eq!(*bootstrap.peer(0).address, star.coordinator.to_string());
            let others = (1..size).filter(|other| *other != rank);
            others.for_each(|other| assert_eq!(*bootstrap.peer(other).address, *"127.0.0.1"));
            let mut up = star.notes[rank].told.lock().unwrap().up.clone();
            up.sort();
            let links = |rank| if rank == 0 { 1..size } else { 0..1 };
            assert_eq!(up, links(rank).map(|other| (LinkId(other as u32), other)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn ranks_meet_over_ipv6_and_names_with_a_key_and_a_name() {
    for host in ["::1", "localhost"] {
        let options = Options::default().timeout(PATIENCE).key(Key::new(SECRET).unwrap()).name("desk");
        let mut star = Star::new(host, 3).options(options);
        let ranks = star.get_ready();
        check(&star, &ranks);
    }
}

#[test]
fn ranks_come_in_any_order_and_however_late() {
    for late in 0..3 {
        let mut star = Star::new("127.0.0.1", 3);
        let mut ranks = star.all();
        ranks[late].1 = 700;
        let began = Instant::now();
        let ranks: Vec<_> = star.start(&ranks).into_iter().map(|rank| rank.unwrap()).collect();
        assert!(began.elapsed() < PATIENCE / 2);
        check(&star, &ranks);
    }
}

#[test]
fn rank_0_that_begins_to_listen_late_is_found() {
    let late = Reserved::new();
    let mut star = Star::new("127.0.0.1", 2);
    star.coordinator = late.address();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| star.meet(1, None));
        std::thread::sleep(Duration::from_millis(400));
        let first = star.meet(0, Some(late.listen())).unwrap();
        check(&star, &[first, second.join().unwrap().unwrap()]);
    });
}

#[test]
fn ranks_that_never_come_are_named_on_every_rank() {
    // Whoever has the shortest time tells the others.
    for impatient in [0, 1, 3] {
        let mut star = Star::new("127.0.0.1", 5);
        star.options[impatient].timeout = Duration::from_millis(900);
        let began = Instant::now();
        let results = star.start(&[(0, 0), (1, 0), (3, 0)]);
        assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
        for (result, rank) in results.iter().zip([0, 1, 3]) {
            let line = error(result);
            assert!(line.starts_with(&format!("rank {rank}: ")), "{line}");
            assert!(line.contains("rank 2 (via 127.0.0.1:") && line.contains("is not there: "), "{line}");
            assert!(line.contains("rank 4 is not there either") && line.contains("is rank 2 started"), "{line}");
            let kind = if rank == impatient { Kind::TimedOut } else { Kind::Poisoned };
            assert_eq!(result.as_ref().unwrap_err().kind(), kind, "{line}");
        }
    }
}

#[test]
fn a_coordinator_that_nobody_listens_on_is_named_with_what_was_tried() {
    let absent = Reserved::new();
    let options = Options::default().timeout(Duration::from_millis(600));
    let e = connect(&absent.address(), 2, 3, b"", &options, Box::new(Notes::default())).unwrap_err();
    assert_eq!((e.kind(), e.rank(), e.peer().map(|p| p.rank)), (Kind::TimedOut, Some(2), Some(0)), "{e}");
    let address = absent.address();
    assert!(e.to_string().contains(&format!("rank 0 ({address}) did not answer: connection refused (tried")), "{e}");
}

#[test]
fn who_does_not_belong_is_refused_at_once_and_named_by_rank_0() {
    type Change = fn(Options) -> Options;
    let cases: [(usize, Change, Rejection, &str); 4] = [
        (2, |o| o.key(Key::new(b"another secret of the same size!").unwrap()), Rejection::Key, "another key"),
        (2, |o| o, Rejection::Key, "another key, or none"),
        (2, |o| o.key(Key::new(SECRET).unwrap()).name("b"), Rejection::Name, "another name"),
        (3, |o| o.key(Key::new(SECRET).unwrap()).name("a"), Rejection::Size, "counts 3 ranks"),
    ];
    for (size, change, rejection, text) in cases {
        let options = Options::default().timeout(PATIENCE);
        let keyed = options.clone().key(Key::new(SECRET).unwrap()).name("a").timeout(Duration::from_millis(1500));
        let mut star = Star::new("127.0.0.1", 2).options(keyed);
        let listener = star.listener.take();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| star.meet(0, listener));
            let began = Instant::now();
            let handler = Box::new(Notes::default());
            let e = connect(&star.coordinator, 1, size, b"", &change(options), handler).unwrap_err();
            assert_eq!(e.kind(), Kind::Rejected(rejection), "{e}");
            assert!(began.elapsed() < Duration::from_millis(1400), "{:?}", began.elapsed());
            let line = error(&first.join().unwrap());
            assert!(line.contains("refused by rank 0: 127.0.0.1") && line.contains(text), "{line}");
            assert!(line.contains("rank 1 (via") && !line.contains("correct horse"), "{line}");
        });
    }
}

#[test]
fn another_version_is_answered_and_named_by_rank_0() {
    let mut star = Star::new("127.0.0.1", 2).options(Options::default().timeout(Duration::from_millis(900)));
    let listener = star.listener.take();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| star.meet(0, listener));
        let mut newer = TcpStream::connect(("127.0.0.1", star.coordinator.port())).unwrap();
        newer.set_read_timeout(Some(PATIENCE)).unwrap();
        // The header of a hello, and a byte that only a newer version understands.
        newer.write_all(b"nu\xA5\x7Fve\xA5\x7Fc!\xA5\x7Fhi\xA5\x7F\x02\x00\x01\x00?").unwrap();
        let mut reply = [0; 21];
        newer.read_exact(&mut reply).unwrap();
        assert_eq!((&reply[..4], reply[20]), (&b"nu\xA5\x7F"[..], 2), "its code is: version");
        let line = error(&first.join().unwrap());
        assert!(line.contains("refused by rank 0: 127.0.0.1 speaks version 2"), "{line}");
    });
}

#[test]
fn the_second_process_of_a_rank_is_refused() {
    let mut star = Star::new("127.0.0.1", 3);
    star.options[0].timeout = Duration::from_millis(1500);
    let twice = star.start(&[(0, 0), (1, 0), (1, 300)]);
    let e = twice[2].as_ref().unwrap_err();
    assert_eq!((e.kind(), e.rank()), (Kind::Rejected(Rejection::Taken), Some(1)), "{e}");
    assert!(e.to_string().contains("does another process run as rank 1?"), "{e}");
    let line = error(&twice[0]);
    assert!(line.contains("rank 2 (via") && line.contains("refused by rank 0: 127.0.0.1 (as rank 1)"), "{line}");
}

#[test]
fn ranks_that_would_choose_different_algorithms_do_not_meet() {
    let mut star = Star::new("127.0.0.1", 3);
    star.notes[2].agreement = 7;
    let all = star.all();
    let lines: Vec<_> = star.start(&all).iter().map(error).collect();
    for line in [&lines[0], &lines[2]] {
        assert!(line.contains("rank 2 (") && line.contains("other algorithms"), "{lines:?}");
    }
    // Rank 0 may be gone before it has passed rank 2's card on, and these handlers tell each other nothing.
    assert!(lines[1].contains("other algorithms") || lines[1].contains("rank 0 (127.0.0.1:"), "{lines:?}");
}

#[test]
fn strangers_of_every_kind_do_not_hinder_ranks_that_meet() {
    for (name, stranger) in KINDS {
        let mut star = Star::new("127.0.0.1", 3);
        let target = SocketAddr::from(([127, 0, 0, 1], star.coordinator.port()));
        let held: Vec<_> = (0..100).map(|_| std::thread::spawn(move || stranger(target))).collect();
        let began = Instant::now();
        let ranks = star.get_ready();
        assert!(began.elapsed() < PATIENCE / 4, "{name}: {:?}", began.elapsed());
        check(&star, &ranks);
        held.into_iter().for_each(|stranger| drop(stranger.join()));
    }
}

#[test]
fn a_rank_that_is_gone_before_all_are_ready_is_named_by_all() {
    for gone in 0..4 {
        let mut star = Star::new("127.0.0.1", 4);
        let mut ranks = star.form();
        drop(ranks.remove(gone));
        let began = Instant::now();
        for result in ready(&ranks.iter().collect::<Vec<_>>(), soon()) {
            let line = error(&result);
            let text = "left before every rank was ready: it ";
            assert!(line.contains(&format!("rank {gone} (127.0.0.1")) && line.contains(text), "{line}");
        }
        assert!(began.elapsed() < PATIENCE / 4);
    }
}

#[test]
fn a_rank_that_cannot_go_on_tells_all_why() {
    for failing in [0, 2] {
        let mut star = Star::new("127.0.0.1", 3);
        let mut ranks = star.form();
        let failing = ranks.remove(failing);
        let results = std::thread::scope(|scope| {
            let others = scope.spawn(|| ready(&ranks.iter().collect::<Vec<_>>(), soon()));
            let began = Instant::now();
            failing.fail(&Error::new(Kind::Device, "has no queue pair left"));
            assert!(began.elapsed() < Duration::from_secs(5));
            others.join().unwrap()
        });
        for result in results {
            assert!(error(&result).contains("hears: has no queue pair left"), "{}", error(&result));
        }
        // It has said its word.
        assert_eq!(failing.ready(soon()).unwrap_err().kind(), Kind::Misuse);
    }
}

#[test]
fn ranks_that_are_not_ready_in_time_are_named() {
    for waiting in [0, 1] {
        let mut star = Star::new("127.0.0.1", 4);
        let ranks = star.form();
        let began = Instant::now();
        let e = ranks[waiting].ready(Deadline::after(Duration::from_millis(300))).unwrap_err();
        assert!(began.elapsed() < PATIENCE / 4);
        let first = 1 - waiting;
        assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::TimedOut, Some(first)), "{e}");
        assert!(e.to_string().contains("not ready in time; ranks 2, 3 are not ready either"), "{e}");
        // Whoever comes too late hears of it.
        let line = error(&ranks[3].ready(soon()));
        assert!(line.contains("not ready in time"), "{line}");
    }
}

#[test]
fn nobody_is_ready_before_all_are() {
    let mut star = Star::new("127.0.0.1", 4);
    let ranks = star.form();
    let (called, barrier) = (AtomicUsize::new(0), Barrier::new(4));
    std::thread::scope(|scope| {
        for (rank, bootstrap) in ranks.iter().enumerate() {
            let (called, barrier) = (&called, &barrier);
            scope.spawn(move || {
                barrier.wait();
                std::thread::sleep(Duration::from_millis(100 * rank as u64));
                called.fetch_add(1, Ordering::SeqCst);
                bootstrap.ready(soon()).unwrap();
                assert_eq!(called.load(Ordering::SeqCst), 4, "rank {rank}");
            });
        }
    });
}

#[test]
fn ranks_that_leave_as_soon_as_all_are_ready_do_not_fail_the_others() {
    for _ in 0..40 {
        let mut star = Star::new("127.0.0.1", 4);
        let listener = star.listener.take();
        let star = &star;
        std::thread::scope(|scope| {
            scope.spawn(move || star.meet(0, listener).unwrap().ready(soon()).unwrap());
            for rank in 1..4 {
                scope.spawn(move || star.meet(rank, None).unwrap().ready(soon()).unwrap());
            }
        });
    }
}

#[test]
fn messages_arrive_in_order_both_ways() {
    let mut star = Star::new("127.0.0.1", 4);
    let ranks = star.get_ready();
    let numbered = |from: usize, link: u32| {
        let numbered = (0..100_u8).map(move |i| (LinkId(link), vec![from as u8, i]));
        numbered.chain([(LinkId(link), vec![9; MAX_CONTROL_MESSAGE])])
    };
    for rank in 1..4 {
        star.notes[0].told.lock().unwrap().outbox.extend(numbered(0, rank));
        star.notes[rank as usize].told.lock().unwrap().outbox.extend(numbered(rank as usize, 0));
    }
    assert!(ranks.iter().all(|rank| rank.flush_control(soon())));
    for (rank, notes) in star.notes.iter().enumerate() {
        let links = if rank == 0 { 1..4 } else { 0..1 };
        notes.wait("messages are missing", |told| told.messages.len() == 101 * links.len());
        let told = notes.told.lock().unwrap();
        for link in links {
            let came: Vec<_> = told.messages.iter().filter(|m| m.0 == LinkId(link)).map(|m| m.1.clone()).collect();
            assert_eq!(came, numbered(link as usize, link).map(|m| m.1).collect::<Vec<_>>());
        }
    }
}

#[test]
fn the_end_of_a_rank_is_told_to_rank_0_and_that_of_rank_0_to_all() {
    let mut star = Star::new("127.0.0.1", 4);
    let mut ranks = star.get_ready();
    drop(ranks.remove(2));
    star.notes[0].wait("no end is told", |told| !told.ended.is_empty());
    let ended = star.notes[0].told.lock().unwrap().ended.clone();
    assert!(ended.len() == 1 && ended[0].0 == LinkId(2) && ended[0].1.contains("rank 2 (127.0.0.1)"), "{ended:?}");
    // The others go on with rank 0.
    star.notes[3].told.lock().unwrap().outbox.push((LinkId(0), b"still here".to_vec()));
    ranks[2].kick();
    star.notes[0].wait("the message is missing", |told| told.messages.contains(&(LinkId(3), b"still here".to_vec())));
    drop(ranks.remove(0));
    for rank in [1, 3] {
        star.notes[rank].wait("no end is told", |told| !told.ended.is_empty());
        let told = star.notes[rank].told.lock().unwrap();
        assert!(told.ended[0].0 == LinkId(0) && told.ended[0].1.contains("rank 0 (127.0.0.1:"), "{told:?}");
        assert!(told.failed.is_empty());
    }
    assert!(ranks.iter().all(|rank| rank.flush_control(soon())));
}

#[test]
fn what_is_attended_is_called_at_its_time_and_at_a_kick_and_dropped_at_the_end() {
    let mut star = Star::new("127.0.0.1", 2);
    let ranks = star.get_ready();
    let calls = Arc::new(AtomicUsize::new(0));
    let wait = |more: usize| {
        let deadline = Instant::now() + PATIENCE;
        while calls.load(Ordering::SeqCst) < more {
            assert!(Instant::now() < deadline, "{more} calls did not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let count = Arc::clone(&calls);
    ranks[1].attend(Box::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
        Duration::from_millis(5)
    }));
    // More than the ticks of a second.
    let began = Instant::now();
    wait(50);
    assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
    let count = Arc::clone(&calls);
    ranks[1].attend(Box::new(move || {
        count.fetch_add(1000, Ordering::SeqCst);
        Duration::MAX
    }));
    wait(1000);
    ranks[1].kick();
    wait(2000);
    ranks[1].close(soon());
    assert_eq!(Arc::strong_count(&calls), 1);
}

#[test]
fn a_group_of_one_opens_nothing() {
    let nowhere = Address::new("no such host", 0);
    let alone = connect(&nowhere, 0, 1, b"card", &Options::default(), Box::new(Notes::default())).unwrap();
    assert_eq!((alone.rank(), alone.size(), alone.cards()), (0, 1, &[b"card".to_vec()][..]));
    assert!(alone.flush_control(soon()) && alone.ready(soon()).is_ok());
    alone.attend(Box::new(|| panic!("there is no thread to call it")));
    alone.kick();
    alone.close(soon());
}

#[test]
fn what_cannot_be_is_misuse_that_says_why() {
    let port = Address::new("127.0.0.1", 1);
    let refused = |rank, size, card: &[u8], to: &Address, text: &str| {
        let options = Options::default().timeout(Duration::from_millis(100));
        let e = connect(to, rank, size, card, &options, Box::new(Notes::default())).unwrap_err();
        assert!(e.kind() == Kind::Misuse && e.to_string().contains(text), "{e}");
    };
    refused(2, 2, b"", &port, "no rank 2 in a list of 2");
    refused(0, 0, b"", &port, "no rank 0");
    refused(0, usize::MAX, b"", &port, "too many");
    refused(0, 2, &vec![0; MAX_CARD + 1], &port, "too long");
    refused(0, 2, b"", &Address::new("127.0.0.1", 0), "port 0");
    let mut star = Star::new("127.0.0.1", 2);
    let ranks = star.get_ready();
    assert_eq!(ranks[0].ready(soon()).unwrap_err().kind(), Kind::Misuse);
    // Neither that nor this does harm.
    ranks[0].fail(&Error::new(Kind::Device, "is broken"));
    assert!(star.notes[1].told.lock().unwrap().ended.is_empty());
    ranks[0].close(soon());
    let mut star = Star::new("127.0.0.1", 2);
    let ranks = star.form();
    ranks[0].close(soon());
    assert_eq!(ranks[0].ready(soon()).unwrap_err().kind(), Kind::Closed);
}

#[test]
fn a_coordinators_port_that_is_taken_is_named_with_its_reason() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::new("127.0.0.1", taken.local_addr().unwrap().port());
    let e = connect(&address, 0, 2, b"", &Options::default(), Box::new(Notes::default())).unwrap_err();
    let line = e.to_string();
    assert_eq!((e.kind(), e.rank(), e.errno().is_some()), (Kind::Io, Some(0), true), "{line}");
    assert!(line.contains(&address.to_string()) && line.contains("Address already in use"), "{line}");
}

#[test]
fn two_hundred_groups_that_did_not_meet_or_did_leave_nothing_behind() {
    alone("bootstrap::two_hundred_groups_that_did_not_meet_or_did_leave_nothing_behind", || {
        let fail = |timeout| {
            let short = Options::default().timeout(Duration::from_millis(timeout));
            let mut star = Star::new("127.0.0.1", 3).options(short);
            // One is missing.
            for result in star.start(&[(0, 0), (1, 0)]) {
                assert!(result.is_err());
            }
        };
        fail(5);
        drop(Star::new("127.0.0.1", 3).get_ready());
        let before = (descriptors(), threads());
        for i in 0..200 {
            fail(i % 8);
        }
        for _ in 0..20 {
            drop(Star::new("127.0.0.1", 3).get_ready());
        }
        assert_eq!((descriptors(), threads()), before);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_that_have_nothing_to_do_sleep() {
    alone("bootstrap::ranks_that_have_nothing_to_do_sleep", || {
        let _ranks = Star::new("127.0.0.1", 3).get_ready();
        std::thread::sleep(Duration::from_millis(200));
        let before = switches();
        std::thread::sleep(Duration::from_secs(2));
        let woken = switches() - before;
        // Two or three ticks each.
        assert!((3..=20).contains(&woken), "{woken} times in two seconds");
    });
}
