//! What every [`Channel`] kind must do, as a suite that each transport's tests run, and the plain sending and receiving
//! that such tests need.
//!
//! ```
//! nuvec_transport::conformance::suite(&mut || nuvec_transport::memory::pair(1));
//! ```

use std::io::IoSlice;
use std::time::Duration;

use crate::{Channel, Deadline, Error, Kind, Park, Receiver, Result, Sender, wait_any};

/// The longest that any wait of the suite lasts.
const PATIENCE: Duration = Duration::from_secs(20);

/// A check's name, and the check.
type Check<C> = (&'static str, fn(C, C));

/// Runs every check over channels from `connect`, which returns two connected ends (of ranks 0 and 1) each time.
/// Panics with the check's name at the first that fails.
pub fn suite<C: Channel>(connect: &mut dyn FnMut() -> (C, C))
where
    C::Sender: 'static,
    C::Receiver: 'static,
{
    let checks: [Check<C>; 9] = [
        ("bytes arrive once, in order, over vectored parts", bytes_arrive_in_order),
        ("nothing to receive is 0, not an error and not the end", nothing_yet_is_zero),
        ("a full channel takes 0 and recovers", a_full_channel_recovers),
        ("an ended stream is an error after its last byte", the_end_comes_after_the_last_byte),
        ("a send to a peer that left becomes an error that names it", a_lost_peer_is_named),
        ("both directions run at once from two threads", both_directions_run_at_once),
        ("a sink is given every byte once, never more than asked", a_sink_takes_all),
        ("a sink's error is returned", a_sinks_error_is_returned),
        ("a wait ends when bytes come, and when the peer leaves", a_wait_ends),
    ];
    for (name, check) in checks {
        eprintln!("conformance: {name}");
        let (a, b) = connect();
        check(a, b);
    }
}

/// A byte that depends on its position in a stream.
fn byte(i: usize) -> u8 {
    (i.wrapping_mul(2_654_435_761) >> 13) as u8
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(byte).collect()
}

/// Waits for `park` after a try that moved nothing; fails once nothing has moved for [`PATIENCE`].
struct Patience {
    tries: u32,
    deadline: Deadline,
}

impl Patience {
    fn new() -> Self {
        Self { tries: 0, deadline: Deadline::after(PATIENCE) }
    }

    /// After a try that moved `n` bytes.
    fn after(&mut self, n: usize, park: Park<'_>, what: &str) {
        if n > 0 {
            *self = Self::new();
        } else if self.tries < 100 {
            self.tries += 1;
            std::thread::yield_now();
        } else {
            assert!(wait_any(&[park], self.deadline).unwrap() && !self.deadline.expired(), "{what} for {PATIENCE:?}");
        }
    }
}

/// Sends all of `data`, waiting for room. Errors: those of the sender. Panics if there is no room for 20 s.
pub fn send_all<S: Sender>(tx: &mut S, data: &[u8]) -> Result<()> {
    let mut patience = Patience::new();
    let mut sent = 0;
    while sent < data.len() {
        let n = tx.try_send(&[IoSlice::new(&data[sent..])])?;
        sent += n;
        patience.after(n, tx.park(), "no room");
    }
    while !tx.try_flush()? {
        patience.after(0, tx.park(), "not flushed");
    }
    Ok(())
}

/// Receives `len` bytes, waiting for them. Errors: those of the receiver. Panics if nothing comes for 20 s.
pub fn recv_all<R: Receiver>(rx: &mut R, len: usize) -> Result<Vec<u8>> {
    let mut patience = Patience::new();
    let mut data = vec![0; len];
    let mut got = 0;
    while got < len {
        let n = rx.try_recv(&mut data[got..])?;
        got += n;
        patience.after(n, rx.park(), "nothing came");
    }
    Ok(data)
}

fn bytes_arrive_in_order<C: Channel>(a: C, b: C) {
    let ((mut tx, _a_rx), (_b_tx, mut rx)) = (a.split(), b.split());
    assert_eq!((tx.peer().rank, rx.peer().rank), (1, 0));
    let data = pattern(1000);
    let mut got = Vec::new();
    let (mut sent, deadline) = (0, Deadline::after(PATIENCE));
    while got.len() < data.len() {
        // Three parts, one of them empty, from wherever the last call stopped.
        let rest = &data[sent..];
        let cut = rest.len() / 3;
        let parts = [IoSlice::new(&rest[..cut]), IoSlice::new(&[]), IoSlice::new(&rest[cut..])];
        sent += tx.try_send(&parts).unwrap();
        tx.try_flush().unwrap();
        let mut into = [0; 97];
        let n = rx.try_recv(&mut into).unwrap();
        got.extend_from_slice(&into[..n]);
        assert!(!deadline.expired(), "{} of {} bytes came", got.len(), data.len());
    }
    assert_eq!(got, data);
    assert_eq!(rx.try_recv(&mut [0; 8]).unwrap(), 0);
}

fn nothing_yet_is_zero<C: Channel>(a: C, b: C) {
    let (_a, (_tx, mut rx)) = (a.split(), b.split());
    assert_eq!(rx.try_recv(&mut [0; 8]).unwrap(), 0);
    assert_eq!(rx.try_recv(&mut []).unwrap(), 0);
    let mut never = |_: &[u8]| -> Result<()> { panic!("a sink was called with nothing to give") };
    assert_eq!(rx.try_recv_with(8, &mut never).unwrap(), 0);
}

fn a_full_channel_recovers<C: Channel>(a: C, b: C) {
    let ((mut tx, _a_rx), (_b_tx, mut rx)) = (a.split(), b.split());
    let chunk = pattern(1 << 16);
    let mut sent = 0;
    // A kernel may take some more after a first refusal, so: until it refuses for a while.
    let mut refusals = 0;
    while refusals < 20 {
        let from = sent % chunk.len();
        match tx.try_send(&[IoSlice::new(&chunk[from..])]).unwrap() {
            0 => {
                refusals += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            n => {
                sent += n;
                refusals = 0;
            }
        }
        assert!(sent < 1 << 30, "a channel without bound");
    }
    let got = recv_all(&mut rx, sent).unwrap();
    assert!(got.iter().enumerate().all(|(i, &b)| b == chunk[i % chunk.len()]), "bytes changed");
    send_all(&mut tx, b"x").unwrap();
    assert_eq!(recv_all(&mut rx, 1).unwrap(), b"x");
}

fn the_end_comes_after_the_last_byte<C: Channel>(a: C, b: C)
where
    C::Sender: 'static,
    C::Receiver: 'static,
{
    let (mut tx, a_rx) = a.split();
    let (b_tx, mut rx) = b.split();
    let data = pattern(100_000);
    let expected = data.clone();
    let sender = std::thread::spawn(move || {
        send_all(&mut tx, &data).unwrap();
        drop(tx);
        a_rx
    });
    assert_eq!(recv_all(&mut rx, expected.len()).unwrap(), expected);
    let end = recv_all(&mut rx, 1).expect_err("the stream must end");
    assert_eq!(end.kind(), Kind::PeerClosed, "{end}");
    assert_eq!(end.peer().map(|p| p.rank), Some(0), "{end}");
    let again = rx.try_recv_with(1, &mut |_| Ok(())).expect_err("it stays ended");
    assert_eq!(again.kind(), Kind::PeerClosed, "{again}");
    // Only that direction ended.
    let (mut b_tx, mut a_rx) = (b_tx, sender.join().unwrap());
    send_all(&mut b_tx, b"!").unwrap();
    assert_eq!(recv_all(&mut a_rx, 1).unwrap(), b"!");
}

fn a_lost_peer_is_named<C: Channel>(a: C, b: C) {
    let (mut tx, _a_rx) = a.split();
    drop(b);
    let deadline = Deadline::after(PATIENCE);
    let chunk = [0; 4096];
    let lost = loop {
        if let Err(e) = tx.try_send(&[IoSlice::new(&chunk)]).and_then(|_| tx.try_flush()) {
            break e;
        }
        assert!(!deadline.expired(), "a send to a peer that left goes on for ever");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(matches!(lost.kind(), Kind::Reset | Kind::PeerClosed | Kind::Unreachable), "{lost:?}");
    assert_eq!(lost.peer().map(|p| p.rank), Some(1), "{lost}");
}

fn both_directions_run_at_once<C: Channel>(a: C, b: C)
where
    C::Sender: 'static,
    C::Receiver: 'static,
{
    const LEN: usize = 300_000;
    let threads: Vec<_> = [a, b]
        .into_iter()
        .map(|c| {
            let (mut tx, mut rx) = c.split();
            let sender = std::thread::spawn(move || send_all(&mut tx, &pattern(LEN)).map(|()| tx));
            let receiver = std::thread::spawn(move || recv_all(&mut rx, LEN).map(|got| (got == pattern(LEN), rx)));
            (sender, receiver)
        })
        .collect();
    let mut alive = Vec::new();
    for (sender, receiver) in threads {
        let tx = sender.join().unwrap().unwrap();
        let (right, rx) = receiver.join().unwrap().unwrap();
        assert!(right, "bytes changed");
        alive.push((tx, rx));
    }
}

fn a_sink_takes_all<C: Channel>(a: C, b: C)
where
    C::Sender: 'static,
    C::Receiver: 'static,
{
    const LEN: usize = 200_003;
    let ((mut tx, _a_rx), (_b_tx, mut rx)) = (a.split(), b.split());
    let sender = std::thread::spawn(move || send_all(&mut tx, &pattern(LEN)).map(|()| tx));
    let mut got = Vec::new();
    let mut patience = Patience::new();
    let mut max = 1;
    while got.len() < LEN {
        max = (max * 7 + 1) % 70_000;
        let before = got.len();
        let mut sink = |piece: &[u8]| {
            assert!(!piece.is_empty(), "an empty piece");
            got.extend_from_slice(piece);
            Ok(())
        };
        let n = rx.try_recv_with(max, &mut sink).unwrap();
        assert_eq!(got.len() - before, n, "the count and the pieces differ");
        assert!(n <= max, "more than was asked for");
        patience.after(n, rx.park(), "nothing came");
    }
    sender.join().unwrap().unwrap();
    assert_eq!(got, pattern(LEN));
}

fn a_sinks_error_is_returned<C: Channel>(a: C, b: C) {
    let ((mut tx, _a_rx), (_b_tx, mut rx)) = (a.split(), b.split());
    assert!(tx.try_send(&[IoSlice::new(b"abc")]).unwrap() > 0);
    tx.try_flush().unwrap();
    let mut patience = Patience::new();
    let mut refuse = |_: &[u8]| -> Result<()> { Err(Error::new(Kind::Mismatch, "not what was expected")) };
    let refused = loop {
        match rx.try_recv_with(8, &mut refuse) {
            Ok(0) => patience.after(0, rx.park(), "nothing came"),
            Ok(n) => panic!("{n} bytes taken by a sink that refused them"),
            Err(e) => break e,
        }
    };
    assert_eq!(refused.kind(), Kind::Mismatch);
}

fn a_wait_ends<C: Channel>(a: C, b: C)
where
    C::Sender: 'static,
    C::Receiver: 'static,
{
    let ((mut tx, a_rx), (_b_tx, mut rx)) = (a.split(), b.split());
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        send_all(&mut tx, b"x").unwrap();
        std::thread::sleep(Duration::from_millis(30));
        drop((tx, a_rx));
    });
    assert_eq!(recv_all(&mut rx, 1).unwrap(), b"x");
    assert_eq!(recv_all(&mut rx, 1).expect_err("the peer left").kind(), Kind::PeerClosed);
    sender.join().unwrap();
}
