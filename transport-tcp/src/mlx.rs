//! MLX's ring over TCP: the connections alone, on which nothing is exchanged (`mlx/distributed/ring/ring.cpp`).
//!
//! MLX's ranks accept one connection on each of their addresses, one address after the other, and dial each of their right
//! neighbour's, in order too; they listen on one address at a time and try a dial five times in 31 s. A rank of ours opens
//! all its listeners first, so that no dial of theirs is refused, and tries its own again every 50 to 100 ms.
//!
//! What may not live here: data, which is `nuvec-collectives`' `MlxRing`'s matter.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuvec_transport::{Deadline, Error, Interest, Kind, Park, Result, RingLinks, Wake, wait_any};

use crate::channel::{begins_native, refuse_native};
use crate::context::Context;
use crate::dial::Dial;
use crate::listen::listen;
use crate::pending::Pending;
use crate::resolve::Resolver;
use crate::socket::{Listening, Stream};
use crate::{Address, Options, TcpChannel};

/// How long a neighbour that has just connected may take to betray that it speaks the native wire, whose dialler speaks
/// first. What it says later is found when it is received.
const HELLO: Duration = Duration::from_millis(50);
/// How long accepting pauses when there is no descriptor for another connection, and dialling when one has ended.
const PAUSE: Duration = Duration::from_millis(100);

/// Joins a ring of MLX ranks (0.32), or of ranks that form as they do: accepts one connection on each of this rank's
/// addresses and dials each of its right neighbour's.
///
/// `nodes` holds the addresses of each rank, equally many for every rank: that many connections join two neighbours. Only
/// the neighbours are known to be there on return, and nothing but the addresses tells who they are: there is no key, and
/// `options`' name is not exchanged. Blocks for `options.timeout` at the longest. A ring of one rank opens
/// no socket. The listeners are closed on return.
///
/// Errors: [`Kind::Misuse`] for a list that can be no ring; [`Kind::Unsupported`] for a key; [`Kind::Io`] or
/// [`Kind::Exhausted`] when this rank cannot listen; [`Kind::TimedOut`], naming the neighbour that is missing and what was
/// tried; [`Kind::Mismatch`] if the left neighbour speaks the native wire.
pub fn connect(nodes: &[Vec<Address>], rank: usize, options: &Options) -> Result<RingLinks<TcpChannel>> {
    let context = Context::new(nodes, rank, options)?;
    let deadline = Deadline::after(options.timeout);
    if options.key.is_some() {
        let what = "MLX's wire has no key: nothing would check it; leave the key out, or use the native wire";
        return Err(context.error(Kind::Unsupported, what));
    }
    if context.size == 1 {
        return Ok(RingLinks { right: Vec::new(), left: Vec::new() });
    }
    let own = nodes[rank].iter().map(|own| listen(&context, own, deadline));
    form(&context, own.collect::<Result<_>>()?, deadline).map_err(|e| e.with_rank(rank))
}

/// Forms the ring's connections with the listeners of each of this rank's addresses.
fn form(context: &Context, listeners: Vec<Vec<Listening>>, deadline: Deadline) -> Result<RingLinks<TcpChannel>> {
    let wake = Arc::new(Wake::new()?);
    let (answers, inbox) = crossbeam_channel::unbounded();
    let bell = Arc::clone(&wake);
    let mut resolver = Resolver::new(move |answer| {
        // The asker may be gone.
        let _ = answers.send(answer);
        bell.notify();
    });
    let mut left = Left::new(context, listeners);
    let mut right = Right::new(context, deadline);
    loop {
        let now = Instant::now();
        inbox.try_iter().for_each(|answer| resolver.put(answer, now));
        left.step(now)?;
        right.step(now, &mut resolver)?;
        if right.is_there() && left.is_there(now) {
            return Ok(RingLinks { right: right.into_channels(), left: left.into_channels() });
        }
        if deadline.expired() {
            return Err(missing(context, &left, &right, now));
        }
        let mut parks = vec![wake.park()];
        left.parks(&mut parks);
        right.parks(&mut parks);
        let timer = [left.timer(), right.timer()].into_iter().flatten().min();
        if wait_any(&parks, timer.map_or(deadline, |timer| deadline.min(Deadline::at(timer))))? {
            wake.drain();
        }
    }
}

/// Who was not there in time.
fn missing(context: &Context, left: &Left<'_>, right: &Right<'_>, now: Instant) -> Error {
    let seconds = context.options.timeout.as_secs_f64();
    let absent = left.slots.iter().position(|slot| slot.accepted.is_none());
    let absent = absent.map(|i| (context.peer(context.left(), i), &context.nodes[context.rank][i]));
    let to_right = right.dial.as_ref().map(|dial| match right.has_ended {
        false => dial.error(now),
        true => Error::new(Kind::TimedOut, format!("did not stay connected for {seconds:.1} s"))
            .with_peer(&context.peer(context.right(), right.made.len())),
    });
    let from_left = if left.has_ended { "stayed connected" } else { "connected" };
    let error = match (to_right, absent) {
        (Some(error), Some((peer, own))) => {
            let what = format!("{}; nor has {peer} {from_left} to {own}", error.what());
            error.with_what(what)
        }
        (Some(error), None) => error,
        (None, Some((peer, own))) => {
            Error::new(Kind::TimedOut, format!("has not {from_left} to {own} for {seconds:.1} s")).with_peer(&peer)
        }
        (None, None) => context.error(Kind::TimedOut, format!("the ring did not form in {seconds:.1} s")),
    };
    if !left.has_ended && !right.has_ended {
        return error;
    }
    error.with_advice(
        "connections ended before the ring had formed: its own error says why; if it speaks nuvec's native wire, give all \
         ranks the same",
    )
}

/// The connections that the left neighbour makes.
struct Left<'a> {
    context: &'a Context,
    slots: Vec<Slot>,
    paused: Option<Instant>,
    /// Whether a connection ended before the ring had formed.
    has_ended: bool,
}

/// One of this rank's addresses.
struct Slot {
    listeners: Vec<Listening>,
    accepted: Option<Accepted>,
}

/// A connection that was taken.
struct Accepted {
    stream: Stream,
    at: Instant,
    /// Whether it has sent something: elements, then.
    heard: bool,
}

impl<'a> Left<'a> {
    fn new(context: &'a Context, listeners: Vec<Vec<Listening>>) -> Self {
        let slots = listeners.into_iter().map(|listeners| Slot { listeners, accepted: None });
        Self { context, slots: slots.collect(), paused: None, has_ended: false }
    }

    /// Takes one connection per address: the first that does not end at once.
    fn step(&mut self, now: Instant) -> Result<()> {
        self.paused = self.paused.filter(|until| now < *until);
        for (i, slot) in self.slots.iter_mut().enumerate() {
            if slot.accepted.as_ref().is_some_and(|a| !a.stream.is_open()) {
                self.context.step(format_args!("connection {i} from the left ended"));
                slot.accepted = None;
                self.has_ended = true;
            }
            if slot.accepted.is_none() && self.paused.is_none() {
                match slot.accept() {
                    Ok(None) => {}
                    Ok(Some((stream, from))) => {
                        self.context.step(format_args!("connection {i} from {from}"));
                        slot.accepted = Some(Accepted { stream, at: now, heard: false });
                    }
                    Err(e) if Error::from_io("accept", "", &e).kind() == Kind::Exhausted => {
                        self.paused = Some(now + PAUSE)
                    }
                    // The connection was gone before it was taken: the socket is as good as before.
                    Err(e) => tracing::debug!("rank {}: accepting failed: {e}", self.context.rank),
                }
            }
            if let Some(accepted) = &mut slot.accepted
                && !accepted.heard
                && let Ok(Some(native)) = begins_native(&accepted.stream)
            {
                accepted.heard = true;
                if native {
                    return Err(refuse_native(&accepted.stream, &self.context.peer(self.context.left(), i)));
                }
            }
        }
        Ok(())
    }

    /// Whether every connection is there and none of them will turn out to be native.
    fn is_there(&self, now: Instant) -> bool {
        self.slots.iter().all(|slot| slot.accepted.as_ref().is_some_and(|a| a.heard || now >= a.at + HELLO))
    }

    fn parks<'p>(&'p self, parks: &mut Vec<Park<'p>>) {
        for slot in &self.slots {
            match &slot.accepted {
                Some(accepted) if accepted.heard => {}
                Some(accepted) => parks.push(Park::Fd(accepted.stream.as_fd(), Interest::Readable)),
                None if self.paused.is_some() => {}
                None => parks.extend(slot.listeners.iter().map(|l| Park::Fd(l.as_fd(), Interest::Readable))),
            }
        }
    }

    /// When it must be stepped at the latest.
    fn timer(&self) -> Option<Instant> {
        let hellos =
            self.slots.iter().filter_map(|slot| slot.accepted.as_ref()).filter(|a| !a.heard).map(|a| a.at + HELLO);
        hellos.chain(self.paused).filter(|&at| at > Instant::now()).min()
    }

    fn into_channels(self) -> Vec<TcpChannel> {
        let Self { context, slots, .. } = self;
        let streams = slots.into_iter().filter_map(|slot| slot.accepted).map(|a| a.stream);
        streams.enumerate().map(|(i, stream)| TcpChannel::of_mlx(stream, context.peer(context.left(), i))).collect()
    }
}

impl Slot {
    fn accept(&self) -> std::io::Result<Option<(Stream, std::net::SocketAddr)>> {
        for listener in &self.listeners {
            if let Some(accepted) = listener.accept()? {
                return Ok(Some(accepted));
            }
        }
        Ok(None)
    }
}

/// The connections that this rank makes to the right neighbour, one after the other.
struct Right<'a> {
    context: &'a Context,
    deadline: Deadline,
    dial: Option<Dial>,
    made: Vec<Stream>,
    /// Until when it does not dial, after a connection that ended: who takes connections and drops them is not besieged.
    paused: Option<Instant>,
    /// Whether a connection ended before the ring had formed.
    has_ended: bool,
}

impl<'a> Right<'a> {
    fn new(context: &'a Context, deadline: Deadline) -> Self {
        Self { context, deadline, dial: None, made: Vec::new(), paused: None, has_ended: false }
    }

    fn step(&mut self, now: Instant, resolver: &mut Resolver) -> Result<()> {
        let Self { context, deadline, dial, made, paused, has_ended } = self;
        let (right, all) = (context.right(), &context.nodes[context.right()]);
        if made.iter().any(|stream| !stream.is_open()) {
            // A neighbour that began again begins with its first address.
            context.step(format_args!("a connection to the right ended"));
            (*made, *dial) = (Vec::new(), None);
            *paused = Some(now + PAUSE);
            *has_ended = true;
        }
        *paused = paused.filter(|until| now < *until);
        while made.len() < all.len() && paused.is_none() {
            let i = made.len();
            let new = || Dial::new(context.peer(right, i), all[i].clone(), None, now, deadline.instant());
            match dial.get_or_insert_with(new).step(now, resolver, &context.identity, &mut Pending::default()) {
                None => return Ok(()),
                Some(Ok(stream)) => {
                    context.step(format_args!("connection {i} to {}", all[i]));
                    made.push(stream);
                    *dial = None;
                }
                // Its time is up, which is said together with who else is missing.
                Some(Err(_)) if deadline.expired() => return Ok(()),
                Some(Err(e)) => return Err(e),
            }
        }
        Ok(())
    }

    fn is_there(&self) -> bool {
        self.made.len() == self.context.connections
    }

    fn parks<'p>(&'p self, parks: &mut Vec<Park<'p>>) {
        parks.extend(self.dial.as_ref().and_then(Dial::park));
    }

    fn timer(&self) -> Option<Instant> {
        self.paused.or_else(|| self.dial.as_ref().map(Dial::timer))
    }

    fn into_channels(self) -> Vec<TcpChannel> {
        let Self { context, made, .. } = self;
        let channels = made.into_iter().enumerate();
        channels.map(|(i, stream)| TcpChannel::of_mlx(stream, context.peer(context.right(), i))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::net::TcpStream;
    use std::thread;

    use nuvec_transport::{Channel, Peer, Receiver, Sender};

    use super::*;
    use crate::Key;
    use crate::hello::MAGIC;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// The addresses of `n` ranks with `connections` each, and the sockets that listen there.
    fn addresses(n: usize, connections: usize) -> (Vec<Vec<Address>>, Vec<Vec<Vec<Listening>>>) {
        let listening = || vec![Listening::bind("127.0.0.1:0".parse().unwrap()).unwrap()];
        let all: Vec<Vec<_>> = (0..n).map(|_| (0..connections).map(|_| listening()).collect()).collect();
        let address = |l: &Vec<Listening>| Address::new("127.0.0.1", l[0].address().unwrap().port());
        (all.iter().map(|of_rank| of_rank.iter().map(address).collect()).collect(), all)
    }

    fn context(nodes: &[Vec<Address>], rank: usize, timeout: Duration) -> Context {
        Context::new(nodes, rank, &Options::default().timeout(timeout)).unwrap()
    }

    /// Receives `count` bytes.
    fn receive(rx: &mut impl Receiver, count: usize) -> Result<Vec<u8>> {
        let (mut into, mut got, end) = (vec![0; count], 0, Deadline::after(TIMEOUT));
        while got < count {
            got += rx.try_recv(&mut into[got..])?;
            assert!(!end.expired(), "{got} of {count} bytes came");
        }
        Ok(into)
    }

    #[test]
    fn every_connection_joins_the_same_index_of_two_neighbours() {
        for (n, connections) in [(2, 1), (2, 3), (3, 2), (4, 1)] {
            let (nodes, listeners) = addresses(n, connections);
            thread::scope(|scope| {
                for (rank, listeners) in listeners.into_iter().enumerate() {
                    let nodes = &nodes;
                    scope.spawn(move || {
                        let links = form(&context(nodes, rank, TIMEOUT), listeners, Deadline::after(TIMEOUT)).unwrap();
                        assert_eq!((links.right.len(), links.left.len()), (connections, connections));
                        let mut left: Vec<_> = links.left.into_iter().map(Channel::split).collect();
                        let mut right: Vec<_> = links.right.into_iter().map(Channel::split).collect();
                        for (i, (tx, rx)) in right.iter_mut().enumerate() {
                            assert_eq!(rx.peer(), &Peer::new((rank + 1) % n, nodes[(rank + 1) % n][i].to_string()));
                            assert_eq!(tx.try_send(&[IoSlice::new(&[rank as u8, i as u8])]).unwrap(), 2);
                        }
                        for (i, (_, rx)) in left.iter_mut().enumerate() {
                            assert_eq!(receive(rx, 2).unwrap(), [((rank + n - 1) % n) as u8, i as u8]);
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_neighbour_that_comes_late_is_waited_for() {
        let (nodes, mut listeners) = addresses(2, 2);
        // Nobody listens on the port of one that has not begun.
        drop(listeners.pop());
        thread::scope(|scope| {
            let (nodes, first) = (&nodes, listeners.pop().unwrap());
            let zero = scope.spawn(move || form(&context(nodes, 0, TIMEOUT), first, Deadline::after(TIMEOUT)).unwrap());
            thread::sleep(Duration::from_millis(400));
            let one = connect(nodes, 1, &Options::default().timeout(TIMEOUT)).unwrap();
            assert_eq!((one.right.len(), zero.join().unwrap().right.len()), (2, 2));
        });
    }

    #[test]
    fn who_is_missing_is_named_with_what_was_tried() {
        let timeout = Duration::from_millis(300);
        let (nodes, mut listeners) = addresses(3, 1);
        let own = listeners.swap_remove(0);
        let right = std::mem::take(&mut listeners);
        drop(right);
        let e = form(&context(&nodes, 0, timeout), own, Deadline::after(timeout)).map(drop).unwrap_err();
        assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::TimedOut, Some(1)), "{e}");
        let text = e.to_string();
        assert!(text.contains("did not answer") && text.contains("tried"), "{text}");
        assert!(text.contains(&format!("nor has rank 2 ({}) connected", nodes[2][0])), "{text}");
        // With the right one there, the left one alone is missing.
        let (nodes, mut listeners) = addresses(3, 1);
        let (_left, _right) = (listeners.pop().unwrap(), listeners.pop().unwrap());
        let own = listeners.pop().unwrap();
        let e = form(&context(&nodes, 0, timeout), own, Deadline::after(timeout)).map(drop).unwrap_err();
        assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::TimedOut, Some(2)), "{e}");
    }

    #[test]
    fn a_neighbour_that_takes_the_connection_and_ends_it_may_be_native_and_the_error_says_so() {
        let timeout = Duration::from_secs(3);
        let (nodes, mut listeners) = addresses(3, 1);
        let own = listeners.swap_remove(0);
        let right = &listeners[1][0][0];
        // As a rank of the native wire, and as one that failed.
        let left = TcpStream::connect(("127.0.0.1", nodes[0][0].port())).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        let e = thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(right.accept());
                    thread::sleep(Duration::from_millis(10));
                }
            });
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(30));
                drop(left);
            });
            let e = form(&context(&nodes, 0, timeout), own, Deadline::after(timeout)).map(drop).unwrap_err();
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            e
        });
        // Which of them is named depends on whether the right one had just taken the last connection.
        assert_eq!(e.kind(), Kind::TimedOut, "{e}");
        let text = e.to_string();
        assert!(text.contains("stay") && text.contains("native wire"), "{text}");
        // Once formed, too; but not of a neighbour that has spoken.
        for spoken in [false, true] {
            let (a, b) = crate::socket::pair("127.0.0.1:0");
            let (_tx, mut rx) = TcpChannel::of_mlx(a, Peer::new(1, "b:1")).split();
            if spoken {
                b.send(&[IoSlice::new(b"x")]).unwrap();
                receive(&mut rx, 1).unwrap();
            }
            drop(b);
            let e = receive(&mut rx, 1).unwrap_err();
            assert_eq!(e.to_string().contains("native wire"), !spoken, "{e}");
        }
    }

    #[test]
    fn a_stranger_that_goes_again_takes_nobodys_place() {
        let (nodes, mut listeners) = addresses(2, 1);
        drop(TcpStream::connect(("127.0.0.1", nodes[0][0].port())).unwrap());
        let (second, first) = (listeners.pop().unwrap(), listeners.pop().unwrap());
        thread::scope(|scope| {
            let nodes = &nodes;
            let zero = scope.spawn(move || form(&context(nodes, 0, TIMEOUT), first, Deadline::after(TIMEOUT)).unwrap());
            let one = form(&context(nodes, 1, TIMEOUT), second, Deadline::after(TIMEOUT)).unwrap();
            let (mut tx, _) = one.right.into_iter().next().unwrap().split();
            tx.try_send(&[IoSlice::new(b"x")]).unwrap();
            let (_, mut rx) = zero.join().unwrap().left.into_iter().next().unwrap().split();
            assert_eq!(receive(&mut rx, 1).unwrap(), b"x");
        });
    }

    #[test]
    fn a_neighbour_that_begins_as_the_native_wire_does_is_refused_while_forming_and_later() {
        use std::io::Write;
        let (nodes, mut listeners) = addresses(2, 1);
        let mut native = TcpStream::connect(("127.0.0.1", nodes[0][0].port())).unwrap();
        native.set_read_timeout(Some(TIMEOUT)).unwrap();
        native.write_all(&[&MAGIC[..], &[0; 100]].concat()).unwrap();
        let e = form(&context(&nodes, 0, TIMEOUT), listeners.swap_remove(0), Deadline::after(TIMEOUT));
        let e = e.map(drop).unwrap_err();
        assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::Mismatch, Some(1)));
        assert!(e.to_string().contains("speaks nuvec's native wire"), "{e}");
        // Its dialler gets an answer that is none of the native wire's.
        let mut answer = Vec::new();
        std::io::Read::read_to_end(&mut native, &mut answer).unwrap();
        assert!(!answer.is_empty() && answer[..1] != MAGIC[..1], "{answer:?}");
        // Later: no byte of it becomes data.
        for in_place in [true, false] {
            let (a, b) = crate::socket::pair("127.0.0.1:0");
            let (_, mut rx) = TcpChannel::of_mlx(a, Peer::new(1, "b:1")).split();
            b.send(&[IoSlice::new(&MAGIC), IoSlice::new(&[0; 100])]).unwrap();
            let end = Deadline::after(TIMEOUT);
            let e = loop {
                let mut sink = |_: &[u8]| panic!("taken for data");
                let got = if in_place { rx.try_recv(&mut [0; 8]) } else { rx.try_recv_with(8, &mut sink) };
                match got {
                    Err(e) => break e,
                    Ok(n) => assert!(n == 0 && !end.expired()),
                }
            };
            assert_eq!(e.kind(), Kind::Mismatch, "{e}");
        }
        // What only resembles it is data.
        let (a, b) = crate::socket::pair("127.0.0.1:0");
        let (_, mut rx) = TcpChannel::of_mlx(a, Peer::new(1, "b:1")).split();
        b.send(&[IoSlice::new(&MAGIC[..3])]).unwrap();
        assert_eq!(receive(&mut rx, 3).unwrap(), MAGIC[..3]);
        b.send(&[IoSlice::new(&MAGIC)]).unwrap();
        assert_eq!(receive(&mut rx, 16).unwrap(), MAGIC);
    }

    #[test]
    fn a_key_is_refused_and_a_ring_of_one_needs_nothing() {
        let nodes = vec![vec![Address::new("127.0.0.1", 1)]];
        let links = connect(&nodes, 0, &Options::default()).unwrap();
        assert!(links.right.is_empty() && links.left.is_empty());
        let options = Options::default().key(Key::new(&[7; 32]).unwrap());
        let e = connect(&nodes, 0, &options).map(drop).unwrap_err();
        assert!(e.kind() == Kind::Unsupported && e.to_string().contains("no key"), "{e}");
    }
}
