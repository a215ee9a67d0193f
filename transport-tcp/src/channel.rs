//! [`TcpChannel`]: one TCP connection as a [`Channel`].
//!
//! The halves share the socket. Dropping the sending half ends its direction (the peer receives everything that was
//! sent, then the end); dropping both closes the connection. Nothing is buffered here: what a call takes is the
//! kernel's.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use nuvec_transport::{Channel, Error, Interest, Kind, Park, Peer, Receiver, Result, Sender};

use crate::hello::MAGIC;
use crate::socket::Stream;

/// The scratch that [`TcpReceiver::try_recv_with`] receives into.
const SCRATCH: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    peer: Peer,
    /// Whether nothing has come yet on MLX's wire, where what comes first is looked at.
    unheard: AtomicBool,
}

impl Connection {
    fn new(stream: Stream, peer: Peer) -> Arc<Self> {
        Arc::new(Self { stream, peer, unheard: AtomicBool::new(false) })
    }

    /// Whether the peer still holds it, as far as is known here.
    pub(crate) fn is_open(&self) -> bool {
        self.stream.is_open()
    }

    /// The error of a call on this connection that failed.
    fn failed(&self, call: &'static str, e: &io::Error) -> Error {
        self.ended(Error::from_io(call, "broke the connection", e))
    }

    /// An error of a connection that ended, with what else is known. A rank of the native wire takes the connection of one
    /// that speaks MLX's, waits for a hello, and closes it without a word.
    fn ended(&self, e: Error) -> Error {
        let e = e.with_peer(&self.peer);
        if self.unheard.load(Ordering::Relaxed) && matches!(e.kind(), Kind::PeerClosed | Kind::Reset) {
            e.with_advice("nothing ever came from it here; if it speaks nuvec's native wire, give all ranks the same")
        } else {
            e
        }
    }
}

/// One connection to one peer.
#[derive(Debug)]
pub struct TcpChannel {
    sender: TcpSender,
    receiver: TcpReceiver,
}

impl TcpChannel {
    pub(crate) fn new(stream: Stream, peer: Peer) -> Self {
        let connection = Connection::new(stream, peer);
        Self { sender: TcpSender { connection: Arc::clone(&connection) }, receiver: TcpReceiver::new(connection) }
    }

    /// A connection of MLX's wire: what comes first must not be the native wire's hello.
    pub(crate) fn of_mlx(stream: Stream, peer: Peer) -> Self {
        let this = Self::new(stream, peer);
        this.receiver.connection.unheard.store(true, Ordering::Relaxed);
        this
    }

    /// Whether the peer still holds it, as far as is known here.
    pub(crate) fn is_open(&self) -> bool {
        self.sender.connection.is_open()
    }
}

/// Whether `stream` begins as the native wire does; `None` while nothing has come, or if it ended before.
pub(crate) fn begins_native(stream: &Stream) -> io::Result<Option<bool>> {
    let mut first = [0; MAGIC.len()];
    Ok(stream.peek(&mut first)?.filter(|&n| n > 0).map(|n| first[..n] == MAGIC))
}

/// Refuses a peer that speaks the native wire on `stream` to a rank that speaks MLX's: tells it, and is the error.
pub(crate) fn refuse_native(stream: &Stream, peer: &Peer) -> Error {
    // What is not read would reset the connection, and the answer might be lost. A rank of ours waits for one before it
    // sends more; a stranger might never end.
    let mut rest = [0; 1024];
    let _ = (0..16).all(|_| matches!(stream.recv(&mut rest), Ok(Some(1..))));
    // To a dialler of the native wire, anything but its own magic means that. It may have gone.
    let _ = stream.send(&[IoSlice::new(NOT_NATIVE)]);
    Error::new(Kind::Mismatch, "speaks nuvec's native wire, not MLX's")
        .with_peer(peer)
        .with_advice("give every rank of the ring the same wire")
}

/// What a dialler of the native wire gets in place of an answer to its hello.
const NOT_NATIVE: &[u8] = b"this rank speaks MLX's wire";

impl Channel for TcpChannel {
    type Sender = TcpSender;
    type Receiver = TcpReceiver;

    fn split(self) -> (TcpSender, TcpReceiver) {
        (self.sender, self.receiver)
    }
}

/// The sending half of a [`TcpChannel`], or a stripe of a stream to a rank.
#[derive(Debug)]
pub struct TcpSender {
    connection: Arc<Connection>,
}

impl TcpSender {
    /// The sender of a connection that is only sent on.
    pub(crate) fn alone(stream: Stream, peer: Peer) -> Self {
        Self { connection: Connection::new(stream, peer) }
    }
}

impl Drop for TcpSender {
    fn drop(&mut self) {
        self.connection.stream.shutdown_write();
    }
}

impl Sender for TcpSender {
    /// One sendmsg(2) of at most 1 MiB and 16 parts.
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        self.connection.stream.send(parts).map_err(|e| self.connection.failed("sendmsg", &e))
    }

    fn park(&self) -> Park<'_> {
        Park::Fd(self.connection.stream.as_fd(), Interest::Writable)
    }

    fn peer(&self) -> &Peer {
        &self.connection.peer
    }
}

/// The receiving half of a [`TcpChannel`], or a stripe of a stream from a rank.
#[derive(Debug)]
pub struct TcpReceiver {
    connection: Arc<Connection>,
    /// Empty until it is needed: a half that receives in place never needs it.
    scratch: Vec<u8>,
}

impl TcpReceiver {
    fn new(connection: Arc<Connection>) -> Self {
        Self { connection, scratch: Vec::new() }
    }

    /// The receiver of a connection that is only received on: its other direction is neither used nor ended.
    pub(crate) fn alone(stream: Stream, peer: Peer) -> Self {
        Self::new(Connection::new(stream, peer))
    }

    /// Refuses a stream of the native wire before anything of it is taken for data.
    fn look_at_first(&mut self) -> Result<()> {
        let Connection { stream, peer, unheard } = &*self.connection;
        if !unheard.load(Ordering::Relaxed) {
            return Ok(());
        }
        match begins_native(stream) {
            Ok(Some(true)) => Err(refuse_native(stream, peer)),
            Ok(Some(false)) => {
                unheard.store(false, Ordering::Relaxed);
                Ok(())
            }
            // An error shows in the receive that follows.
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// The connection, for as long as a half of it lives.
    pub(crate) fn watch(&self) -> Weak<Connection> {
        Arc::downgrade(&self.connection)
    }
}

fn receive(connection: &Connection, into: &mut [u8]) -> Result<usize> {
    match connection.stream.recv(into) {
        Ok(Some(0)) => Err(connection.ended(Error::new(Kind::PeerClosed, "closed the connection"))),
        Ok(n) => Ok(n.unwrap_or(0)),
        Err(e) => Err(connection.failed("recv", &e)),
    }
}

impl Receiver for TcpReceiver {
    /// One recv(2).
    fn try_recv(&mut self, into: &mut [u8]) -> Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        self.look_at_first()?;
        receive(&self.connection, into)
    }

    /// One recv(2) of at most 256 KiB.
    fn try_recv_with(&mut self, max: usize, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<usize> {
        if max == 0 {
            return Ok(0);
        }
        self.look_at_first()?;
        if self.scratch.is_empty() {
            self.scratch = vec![0; SCRATCH];
        }
        let into = &mut self.scratch[..max.min(SCRATCH)];
        let n = receive(&self.connection, into)?;
        if n > 0 {
            sink(&into[..n])?;
        }
        Ok(n)
    }

    fn park(&self) -> Park<'_> {
        Park::Fd(self.connection.stream.as_fd(), Interest::Readable)
    }

    fn peer(&self) -> &Peer {
        &self.connection.peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::pair;

    fn channels(address: &str) -> (TcpChannel, TcpChannel) {
        let (a, b) = pair(address);
        (TcpChannel::new(a, Peer::new(1, "b:1")), TcpChannel::new(b, Peer::new(0, "a:1")))
    }

    #[test]
    fn a_tcp_channel_passes_the_suite_over_ipv4() {
        nuvec_transport::conformance::suite(&mut || channels("127.0.0.1:0"));
    }

    #[test]
    fn a_tcp_channel_passes_the_suite_over_ipv6() {
        nuvec_transport::conformance::suite(&mut || channels("[::1]:0"));
    }

    #[test]
    fn a_forked_child_that_drops_its_copies_leaves_the_parents_connection_as_it_is() {
        let (a, b) = pair("127.0.0.1:0");
        let mut parent = TcpChannel::new(a.copy_in(std::process::id()), Peer::new(1, "b:1"));
        drop(TcpChannel::new(a.copy_in(std::process::id() + 1), Peer::new(1, "b:1")));
        assert!(b.is_open());
        assert_eq!(parent.sender.try_send(&[IoSlice::new(b"x")]).unwrap(), 1);
        // The parent itself ends its direction, whoever else has a copy.
        drop(parent);
        let (deadline, mut got) = (std::time::Instant::now() + std::time::Duration::from_secs(10), Vec::new());
        while got.last() != Some(&0) {
            assert!(std::time::Instant::now() < deadline, "the end does not arrive");
            got.extend(b.recv(&mut [0; 8]).unwrap());
        }
        assert_eq!(got, [1, 0]);
    }

    #[test]
    fn a_watch_ends_with_the_connection() {
        let (a, _b) = channels("127.0.0.1:0");
        let (tx, rx) = a.split();
        let watch = rx.watch();
        drop(rx);
        assert!(watch.upgrade().is_some_and(|c| c.is_open()));
        drop(tx);
        assert!(watch.upgrade().is_none());
    }
}
