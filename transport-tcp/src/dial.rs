//! Dialling: one connection from this rank to another, tried until it stands, is refused for good, or its time is up.
//!
//! Every address that the peer's name resolves to is tried in turn, then again after a pause that starts at 50 to
//! 100 ms and, once some seconds have passed, grows to a second; a peer that does not know the group *yet* is tried again
//! sooner at first. What a dial is for is its owner's business.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nuvec_transport::{Error, Interest, Kind, Park, Peer, Rejection};
use rustix::event::{PollFd, PollFlags};

use crate::Address;
use crate::hello::{Dialler, Identity, Open, Refused};
use crate::pending::Pending;
use crate::refusals::KEY_ADVICE;
use crate::resolve::Resolver;
use crate::socket::{Stream, errno_text, no_descriptors};

/// How long a connect may take at one of several addresses, and at the only one.
const CONNECT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));
/// How long a peer that takes the connection may leave the hello unanswered.
const HELLO: Duration = Duration::from_secs(5);
/// How long the pauses stay short.
const EAGER: Duration = Duration::from_secs(3);
const SHORT_PAUSE: Duration = Duration::from_millis(50);
/// The first pause after "not yet": the peer mostly comes to the same call a moment later. Each next one is twice as long.
const NOT_YET_PAUSE: Duration = Duration::from_millis(2);
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// A refusal that may change is a failure like others; so is something else that listens at one of several addresses of a
/// name: the peer may begin to listen at another.
fn refused(refused: Refused, at: &str, alone: bool) -> Hello {
    let Refused { rejection, retry, text } = refused;
    let mut failure =
        Error::new(Kind::Rejected(rejection), if at.is_empty() { text } else { format!("{text} ({at})") });
    if rejection == Rejection::Key {
        failure = failure.with_advice(KEY_ADVICE);
    }
    let elsewhere = rejection == Rejection::NotNuvec && !alone;
    if retry || elsewhere { Hello::Failed(failure) } else { Hello::Final(failure) }
}

/// A connect to `at` (empty where the peer's name says it already) that failed.
fn unreached(at: &str, peer: &Peer, e: &io::Error) -> Error {
    let error = Error::from_io("connect", format!("could not be dialled{at}"), e);
    match error.kind() {
        // This rank's own want, not the peer's silence.
        Kind::Exhausted => error,
        _ => silent(at, peer, &errno_text(e)),
    }
}

/// A peer that did not answer at `at`.
fn silent(at: &str, peer: &Peer, why: &str) -> Error {
    let advice = format!("is rank {} started, and does its firewall let the port in?", peer.rank);
    Error::new(Kind::TimedOut, format!("did not answer{at}: {why}")).with_advice(advice)
}

/// A peer whose name the resolver does not know, or not in time.
fn unresolved(why: &str) -> Error {
    Error::new(Kind::TimedOut, format!("could not be resolved: {why}"))
        .with_advice("check the name, or use the address")
}

/// How long a peer that listened before must refuse to be dialled to have left.
const LEFT: Duration = Duration::from_secs(1);

/// Where a dial went, unless that is what its peer is called.
fn at(name: &Address, address: SocketAddr) -> String {
    if name.to_string() == address.to_string() { String::new() } else { format!(" at {address}") }
}

enum State {
    /// Between two rounds.
    Resting {
        until: Instant,
    },
    /// Waiting for the resolver, whose answer wakes the owner.
    Resolving,
    Connecting {
        stream: Stream,
        address: SocketAddr,
        until: Instant,
    },
    Greeting {
        stream: Stream,
        address: SocketAddr,
        hello: Box<Dialler>,
        output: Vec<u8>,
        until: Instant,
    },
}

/// One connection that is being made.
pub(crate) struct Dial {
    peer: Peer,
    address: Address,
    /// What it asks of the peer in the hello; without one, a connection that stands is all that is wanted.
    open: Option<Open>,
    began: Instant,
    deadline: Instant,
    tries: u64,
    pause: Duration,
    not_yet_pause: Duration,
    /// The last thing that went wrong, without the peer; its text follows the peer's name.
    failure: Option<Error>,
    /// Whether the peer has listened before, and does until it leaves; and since when nobody listens there.
    known: bool,
    refused_since: Option<Instant>,
    /// Why it cannot go on: this process has no descriptor left.
    starved: Option<Error>,
    /// The addresses that are still to be tried in this round.
    rest: VecDeque<SocketAddr>,
    alone: bool,
    state: State,
}

impl Dial {
    /// A dial to `address`, where `peer` is expected; it begins at the next [`step`](Dial::step). Without `open` there is no
    /// hello.
    pub(crate) fn new(peer: Peer, address: Address, open: Option<Open>, now: Instant, deadline: Instant) -> Self {
        Self {
            peer,
            address,
            open,
            began: now,
            deadline,
            tries: 0,
            pause: SHORT_PAUSE,
            not_yet_pause: NOT_YET_PAUSE,
            failure: None,
            known: false,
            refused_since: None,
            starved: None,
            rest: VecDeque::new(),
            alone: true,
            state: State::Resting { until: now },
        }
    }

    /// The same, to a peer that is of the group already and listens until it leaves: where nobody has listened for a while,
    /// the dial ends with that.
    pub(crate) fn of_known_peer(self) -> Self {
        Self { known: true, ..self }
    }

    /// Goes on as far as it can without blocking. `Some` once it is over: the connection, its hello done, or why not.
    /// Where the process has no descriptor for it, one of `pending` is closed; if there is none, it is over at once.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        resolver: &mut Resolver,
        identity: &Identity,
        pending: &mut Pending,
    ) -> Option<Result<Stream, Error>> {
        loop {
            if let Some(starved) = self.starved.take() {
                return Some(Err(starved));
            }
            if now >= self.deadline {
                return Some(Err(self.error(now)));
            }
            if self.known && self.refused_since.is_some_and(|since| now.saturating_duration_since(since) >= LEFT) {
                self.failure = Some(Error::new(Kind::PeerClosed, "has left: connection refused"));
                return Some(Err(self.error(now)));
            }
            match &mut self.state {
                State::Resting { until } if now < *until => return None,
                State::Resting { .. } | State::Resolving => match resolver.get(&self.address, now) {
                    None => {
                        self.state = State::Resolving;
                        return None;
                    }
                    Some(Ok(all)) => {
                        self.alone = all.len() == 1;
                        self.rest = all.into();
                        self.next_address(now, pending);
                    }
                    Some(Err(text)) => {
                        self.failure = Some(unresolved(&text));
                        self.rest_awhile(now);
                    }
                },
                State::Connecting { stream, address, until } => match stream.connected() {
                    Ok(false) if now < *until => return None,
                    Ok(false) => {
                        let failure = silent(&at(&self.address, *address), &self.peer, "nothing came back");
                        self.failed(now, failure, pending);
                    }
                    Err(e) => {
                        let failure = unreached(&at(&self.address, *address), &self.peer, &e);
                        let refused_since = self.refused_since.unwrap_or(now);
                        self.failed(now, failure, pending);
                        self.refused_since =
                            Some(refused_since).filter(|_| e.kind() == io::ErrorKind::ConnectionRefused);
                    }
                    Ok(true) if stream.is_self() => {
                        let failure = silent(&at(&self.address, *address), &self.peer, "nothing listens");
                        self.failed(now, failure, pending);
                    }
                    Ok(true) if self.open.is_some() => self.greet(now, identity, pending),
                    Ok(true) => return self.take_stream().map(Ok),
                },
                State::Greeting { .. } => match self.hello(now) {
                    Hello::Waits => return None,
                    Hello::Stands(stream) => return Some(Ok(stream)),
                    Hello::Final(failure) => {
                        self.failure = Some(failure);
                        return Some(Err(self.error(now)));
                    }
                    Hello::Failed(failure) => self.failed(now, failure, pending),
                },
            }
        }
    }

    /// What the owner must wait for.
    pub(crate) fn source(&self) -> Option<PollFd<'_>> {
        match &self.state {
            State::Resting { .. } | State::Resolving => None,
            State::Connecting { stream, .. } => Some(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::OUT)),
            State::Greeting { stream, output, .. } => {
                let flags = if output.is_empty() { PollFlags::IN } else { PollFlags::OUT };
                Some(PollFd::from_borrowed_fd(stream.as_fd(), flags))
            }
        }
    }

    /// The same, of a dial without a hello.
    pub(crate) fn park(&self) -> Option<Park<'_>> {
        match &self.state {
            State::Connecting { stream, .. } => Some(Park::Fd(stream.as_fd(), Interest::Writable)),
            State::Resting { .. } | State::Resolving | State::Greeting { .. } => None,
        }
    }

    /// When it must be stepped at the latest.
    pub(crate) fn timer(&self) -> Instant {
        let own = match &self.state {
            State::Resting { until } => *until,
            State::Resolving => self.deadline,
            State::Connecting { until, .. } | State::Greeting { until, .. } => *until,
        };
        own.min(self.deadline)
    }

    /// Why it does not stand, with how often and how long it was tried.
    pub(crate) fn error(&self, now: Instant) -> Error {
        let failure = self.failure.clone().unwrap_or_else(|| self.under_way());
        let seconds = now.saturating_duration_since(self.began).as_secs_f64();
        let tried = match self.tries {
            0 | 1 if matches!(failure.kind(), Kind::Rejected(_)) => String::new(),
            // Without an address there was nothing to try.
            0 => format!(" (for {seconds:.1} s)"),
            tries => format!(" (tried {tries} time{} in {seconds:.1} s)", if tries == 1 { "" } else { "s" }),
        };
        let what = format!("{}{tried}", failure.what());
        failure.with_what(what).with_peer(&self.peer)
    }

    /// What a dial that has not failed yet waits for, as a failure.
    fn under_way(&self) -> Error {
        let what = match &self.state {
            State::Resolving => return unresolved("the resolver did not answer"),
            State::Connecting { address, .. } => {
                return silent(&at(&self.address, *address), &self.peer, "nothing came back");
            }
            State::Resting { .. } => "was not dialled",
            State::Greeting { hello, .. } => hello.unanswered(),
        };
        Error::new(Kind::TimedOut, what)
    }

    fn failed(&mut self, now: Instant, failure: Error, pending: &mut Pending) {
        (self.failure, self.refused_since) = (Some(failure), None);
        self.next_address(now, pending);
    }

    /// Tries the next address of this round, or ends the round.
    fn next_address(&mut self, now: Instant, pending: &mut Pending) {
        while let Some(address) = self.rest.pop_front() {
            self.tries += 1;
            let mut dialled = Stream::dial(address);
            if dialled.as_ref().is_err_and(no_descriptors) && pending.give_way() {
                dialled = Stream::dial(address);
            }
            match dialled {
                Ok(stream) => {
                    let patience = if self.alone { CONNECT.1 } else { CONNECT.0 };
                    self.state = State::Connecting { stream, address, until: now + patience };
                    return;
                }
                Err(e) if no_descriptors(&e) => {
                    // This rank's own want, not the peer's fault; other addresses would need a descriptor too.
                    let what = format!("no descriptor is left to connect to {}", self.peer);
                    self.starved = Some(Error::from_io("socket", what, &e));
                    break;
                }
                Err(e) => self.failure = Some(unreached(&at(&self.address, address), &self.peer, &e)),
            }
        }
        self.rest_awhile(now);
    }

    fn rest_awhile(&mut self, now: Instant) {
        // MLX listens for a moment only, so there the pauses stay short.
        if self.open.is_some() && now.saturating_duration_since(self.began) > EAGER {
            self.pause = (self.pause * 3 / 2).min(LONG_PAUSE);
        }
        // Ranks that dial each other's neighbours at the same pace would meet each other's bad moments for ever.
        let jitter = SHORT_PAUSE.mul_f64(
            (self.tries * 37 + u64::from(self.open.as_ref().map_or(0, |open| open.from)) * 13) as f64 % 50.0 / 50.0,
        );
        let mut pause = self.pause + jitter;
        if self.failure.as_ref().is_some_and(|failure| failure.kind() == Kind::Rejected(Rejection::NotYet)) {
            pause = pause.min(self.not_yet_pause);
            self.not_yet_pause = self.not_yet_pause.saturating_mul(2);
        }
        self.state = State::Resting { until: now + pause };
    }

    /// Begins the hello on the connection that stands now.
    fn greet(&mut self, now: Instant, identity: &Identity, pending: &mut Pending) {
        let resting = State::Resting { until: now };
        let Some(open) = self.open.clone() else { return };
        let State::Connecting { stream, address, .. } = std::mem::replace(&mut self.state, resting) else { return };
        match Dialler::new(identity, open) {
            Ok(mut hello) => {
                let output = hello.take_output();
                self.state = State::Greeting { stream, address, hello: Box::new(hello), output, until: now + HELLO };
            }
            Err(e) => {
                let what = format!("could not be greeted: {}", e.what());
                self.failed(now, e.with_what(what), pending);
            }
        }
    }

    /// The connection, once the dial is over.
    fn take_stream(&mut self) -> Option<Stream> {
        match std::mem::replace(&mut self.state, State::Resting { until: self.deadline }) {
            State::Connecting { stream, .. } | State::Greeting { stream, .. } => Some(stream),
            State::Resting { .. } | State::Resolving => None,
        }
    }

    fn hello(&mut self, now: Instant) -> Hello {
        let State::Greeting { stream, address, hello, output, until } = &mut self.state else { return Hello::Waits };
        let broke = |e: &io::Error| {
            Hello::Failed(Error::new(Kind::Reset, format!("broke the connection in the hello: {}", errno_text(e))))
        };
        let mut into = [0; 1024];
        loop {
            while !output.is_empty() {
                match stream.send(&[IoSlice::new(output)]) {
                    Ok(0) => break,
                    Ok(n) => {
                        output.drain(..n);
                    }
                    Err(e) => return broke(&e),
                }
            }
            if hello.accepted() && output.is_empty() {
                return self.take_stream().map_or(Hello::Waits, Hello::Stands);
            }
            let want = hello.needs().min(into.len());
            let got = match if want == 0 { Ok(None) } else { stream.recv(&mut into[..want]) } {
                Ok(None) if now >= *until => {
                    return Hello::Failed(Error::new(Kind::TimedOut, hello.unanswered()));
                }
                Ok(None) => return Hello::Waits,
                Ok(Some(0)) => {
                    let text = format!("closed the connection in the hello: it {}", hello.unanswered());
                    return Hello::Failed(Error::new(Kind::PeerClosed, text));
                }
                Ok(Some(n)) => n,
                Err(e) => return broke(&e),
            };
            if let Err(refusal) = hello.feed(&into[..got]) {
                return refused(refusal, at(&self.address, *address).trim_start(), self.alone);
            }
            output.extend(hello.take_output());
        }
    }
}

enum Hello {
    Waits,
    Stands(Stream),
    Failed(Error),
    Final(Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::Role;
    use crate::socket::{Listening, meets_itself};
    use nuvec_transport::Deadline;

    fn open() -> Open {
        Open { role: Role::Control, index: 0, connections: 1, size: 2, from: 0, to: 1, session: [0; 16], group: 0 }
    }

    fn dial(address: SocketAddr, now: Instant) -> Dial {
        let address = Address::new(address.ip().to_string(), address.port());
        Dial::new(Peer::new(1, address.to_string()), address, Some(open()), now, now + Duration::from_secs(10))
    }

    /// Names are not asked for here.
    fn resolver() -> Resolver {
        Resolver::new(|_| panic!("the resolver was asked"))
    }

    fn identity() -> Identity {
        Identity { name: String::new(), key: None }
    }

    /// An address where nobody listens, while the listener that had it is kept from others by its socket.
    fn refusing() -> (socket2::Socket, SocketAddr) {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        (socket, address)
    }

    /// Steps in real time until the dial rests, and returns for how long it will.
    fn rests(dial: &mut Dial, now: Instant) -> Duration {
        let deadline = Deadline::after(Duration::from_secs(10));
        loop {
            assert!(
                dial.step(now, &mut resolver(), &identity(), &mut Pending::default()).is_none(),
                "{}",
                dial.error(now)
            );
            if let State::Resting { until } = &dial.state {
                return until.saturating_duration_since(now);
            }
            assert!(!deadline.expired(), "the dial does not rest: {}", dial.error(now));
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_connection_that_meets_itself_is_closed_and_tried_again() {
        let now = Instant::now();
        let mut dial = dial("127.0.0.1:9".parse().unwrap(), now);
        let address = "127.0.0.1:9".parse().unwrap();
        dial.state = State::Connecting { stream: meets_itself(), address, until: now + Duration::from_secs(5) };
        assert!(!rests(&mut dial, now).is_zero());
        assert!(dial.error(now).to_string().contains("nothing listens"), "{}", dial.error(now));
    }

    #[test]
    fn pauses_are_short_at_first_and_grow_to_a_second() {
        let (_held, address) = refusing();
        let start = Instant::now();
        let mut dial = dial(address, start);
        dial.deadline = start + Duration::from_secs(1000);
        let (mut now, mut pauses) = (start, Vec::new());
        while now < start + Duration::from_secs(30) {
            let pause = rests(&mut dial, now);
            pauses.push((now - start, pause));
            now += pause;
        }
        for (at, pause) in &pauses {
            let most = if *at <= EAGER { 100 } else { 1050 };
            assert!((50..=most).contains(&pause.as_millis()), "{pause:?} after {at:?}");
        }
        assert!(pauses.last().unwrap().1 >= Duration::from_secs(1));
        let line = dial.error(now).to_string();
        assert!(line.contains(&format!("connection refused (tried {} times in 30.", pauses.len())), "{line}");
    }

    #[test]
    fn pauses_after_not_yet_begin_shorter_and_become_as_long() {
        let now = Instant::now();
        let mut dial = dial("127.0.0.1:9".parse().unwrap(), now);
        let pauses: Vec<u128> = (0..80)
            .map(|_| {
                dial.failure = Some(Error::new(Kind::Rejected(Rejection::NotYet), "does not know this group yet"));
                dial.rest_awhile(now);
                let State::Resting { until } = &dial.state else { panic!("it does not rest") };
                (*until - now).as_millis()
            })
            .collect();
        assert_eq!(pauses[..5], [2, 4, 8, 16, 32]);
        assert!(pauses[6..].iter().all(|pause| (50..=100).contains(pause)), "{pauses:?}");
    }

    #[test]
    fn every_address_of_a_name_is_tried_in_turn_within_one_round() {
        let ((_a, first), (_b, second)) = (refusing(), refusing());
        let listener = Listening::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let now = Instant::now();
        let mut dial = dial(first, now);
        dial.alone = false;
        dial.rest = [first, second, listener.address().unwrap()].into();
        dial.next_address(now, &mut Pending::default());
        let deadline = Deadline::after(Duration::from_secs(10));
        while !matches!(dial.state, State::Greeting { .. }) {
            assert!(dial.step(now, &mut resolver(), &identity(), &mut Pending::default()).is_none());
            assert!(!deadline.expired());
        }
        assert_eq!(dial.tries, 3);
        // The failure that is kept says which of the addresses it was, as that is not how the peer is called.
        assert!(dial.error(now).to_string().contains(&format!("did not answer at {second}: ")), "{}", dial.error(now));
    }

    /// Listens, and answers whoever connects with something else.
    fn other_service() -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            use std::io::Write;
            // It ends with the test's process.
            listener.incoming().for_each(|stream| drop(stream.unwrap().write_all(b"SSH-2.0-OpenSSH_9.9\r\n")));
        });
        address
    }

    #[test]
    fn something_else_at_any_of_several_addresses_does_not_end_a_dial_and_is_said_with_its_address() {
        let other = other_service();
        let (_held, silent) = refusing();
        for addresses in [[silent, other], [other, other]] {
            let now = Instant::now();
            let mut dial = dial(silent, now);
            dial.alone = false;
            dial.rest = addresses.into();
            dial.next_address(now, &mut Pending::default());
            rests(&mut dial, now);
            let e = dial.error(now);
            assert_eq!(e.kind(), Kind::Rejected(Rejection::NotNuvec), "{e}");
            assert!(e.to_string().contains(&format!("(at {other})")), "{e}");
        }
    }

    #[test]
    fn a_dial_ends_at_its_deadline() {
        let (_held, address) = refusing();
        let now = Instant::now();
        let mut dial = dial(address, now);
        rests(&mut dial, now);
        assert!(dial.timer() <= now + Duration::from_secs(10));
        let over = dial.step(now + Duration::from_secs(10), &mut resolver(), &identity(), &mut Pending::default());
        assert_eq!(over.unwrap().map(drop).unwrap_err().kind(), Kind::TimedOut);
    }
}
