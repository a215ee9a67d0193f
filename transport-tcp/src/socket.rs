//! The sockets of this crate, with every socket option in one place.
//!
//! All are non-blocking and closed on exec. A write never raises SIGPIPE, whatever the process does with that signal:
//! `MSG_NOSIGNAL` with each sendmsg(2), or `SO_NOSIGPIPE` where there is no such flag (Apple). So nothing in this crate
//! may write with std's `Write`, whose writev(2) knows neither. There is no `TCP_USER_TIMEOUT`: it would end the
//! connection of a live peer that merely does not read.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// The most that one send takes.
pub(crate) const MAX_SEND: usize = 1 << 20;

/// The most parts that one send takes; a caller with more sends again.
const MAX_PARTS: usize = 16;

/// More than the strangers and neighbours that may come at once; the kernel lowers it to its own limit.
const BACKLOG: i32 = 1024;

#[cfg(not(target_vendor = "apple"))]
const SEND_FLAGS: i32 = rustix::net::SendFlags::NOSIGNAL.bits() as i32;
#[cfg(target_vendor = "apple")]
const SEND_FLAGS: i32 = 0;

/// Whether a call would have blocked.
fn would_block(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::WouldBlock
}

/// Whether a call failed because the process, or the system, has no descriptor left.
pub(crate) fn no_descriptors(e: &io::Error) -> bool {
    matches!(e.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::MFILE | Errno::NFILE))
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The system's text of an I/O error as part of a sentence: "connection refused".
pub(crate) fn errno_text(e: &io::Error) -> String {
    let text = nuvec_transport::system_text(e);
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

fn open(address: &SocketAddr) -> io::Result<Socket> {
    // socket2 sets CLOEXEC, and NOSIGPIPE where there is one.
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listening(Socket);

impl Listening {
    /// Listens on `address`. A port in use is an error (there is no `SO_REUSEPORT`); one whose last connections are still
    /// ending is not (`SO_REUSEADDR`).
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = open(&address)?;
        socket.set_reuse_address(true)?;
        if let SocketAddr::V6(v6) = address {
            socket.set_only_v6(!v6.ip().is_unspecified())?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self(socket))
    }

    /// Takes over a listener that exists.
    pub(crate) fn adopt(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let socket = Socket::from(listener);
        // A second listen(2) changes the backlog alone.
        socket.listen(BACKLOG)?;
        Ok(Self(socket))
    }

    /// The address that it listens on.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr().map(plain)?
    }

    /// Takes the next connection, if one waits.
    pub(crate) fn accept(&self) -> io::Result<Option<(Stream, SocketAddr)>> {
        match retry(|| self.0.accept()) {
            Ok((socket, from)) => {
                socket.set_nonblocking(true)?;
                #[cfg(target_vendor = "apple")]
                socket.set_nosigpipe(true)?;
                let stream = Stream::new(socket);
                stream.tune()?;
                Ok(Some((stream, plain(from)?)))
            }
            Err(e) if would_block(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn plain(address: SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::other("not an internet address"))
}

/// A connected, or connecting, socket.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    /// The process that made it.
    process: u32,
}

impl Stream {
    fn new(socket: Socket) -> Self {
        Self { socket, process: std::process::id() }
    }

    /// Another descriptor of the same connection, as if that process had made it.
    #[cfg(test)]
    pub(crate) fn copy_in(&self, process: u32) -> Self {
        Self { socket: self.socket.try_clone().unwrap(), process }
    }

    /// Begins to connect. [`connected`](Stream::connected) tells when it is done; wait for writability.
    pub(crate) fn dial(address: SocketAddr) -> io::Result<Self> {
        let socket = open(&address)?;
        let stream = Self::new(socket);
        stream.tune()?;
        match stream.socket.connect(&address.into()) {
            // A connect that a signal interrupts goes on by itself.
            Err(e) if e.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
            Err(e) if would_block(&e) || e.kind() == io::ErrorKind::Interrupted => {}
            result => result?,
        }
        Ok(stream)
    }

    fn tune(&self) -> io::Result<()> {
        self.socket.set_tcp_nodelay(true)?;
        self.socket.set_keepalive(true)
    }

    /// Whether the connection stands; an error if it failed.
    pub(crate) fn connected(&self) -> io::Result<bool> {
        if let Some(e) = self.socket.take_error()? {
            return Err(e);
        }
        match self.socket.peer_addr() {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Whether this connection met itself: dialling a closed local port can pick that very port as its own.
    pub(crate) fn is_self(&self) -> bool {
        matches!((self.socket.local_addr(), self.socket.peer_addr()), (Ok(a), Ok(b)) if a == b)
    }

    /// The host at the other end, as far as it is known.
    pub(crate) fn peer_host(&self) -> Option<IpAddr> {
        let address = self.socket.peer_addr().and_then(plain).ok()?;
        Some(address.ip().to_canonical())
    }

    /// One sendmsg(2) of at most [`MAX_SEND`] bytes; 0 when there is no room.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut list = [IoSlice::new(&[]); MAX_PARTS];
        let (mut used, mut left) = (0, MAX_SEND);
        for part in parts.iter().filter(|part| !part.is_empty()) {
            if used == MAX_PARTS || left == 0 {
                break;
            }
            let take = part.len().min(left);
            list[used] = IoSlice::new(&part[..take]);
            used += 1;
            left -= take;
        }
        if used == 0 {
            return Ok(0);
        }
        match retry(|| self.socket.send_vectored_with_flags(&list[..used], SEND_FLAGS)) {
            Err(e) if would_block(&e) => Ok(0),
            result => result,
        }
    }

    /// One recv(2): `None` when nothing is there, `Some(0)` at the end of the stream. `into` must not be empty.
    pub(crate) fn recv(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match retry(|| (&self.socket).read(into)) {
            Err(e) if would_block(&e) => Ok(None),
            result => result.map(Some),
        }
    }

    /// The first bytes that are there, without taking them: `None` when nothing is, `Some(0)` at the end of the stream.
    pub(crate) fn peek(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match retry(|| Ok(rustix::net::recv(&self.socket, &mut *into, rustix::net::RecvFlags::PEEK)?.1)) {
            Err(e) if would_block(&e) => Ok(None),
            result => result.map(Some),
        }
    }

    /// Ends the sending direction, after everything that was sent. A forked child of the process that made the
    /// connection ends nothing: close(2) concerns its own descriptor alone, but shutdown(2) would end the parent's
    /// connection.
    pub(crate) fn shutdown_write(&self) {
        if self.process != std::process::id() {
            return;
        }
        // It fails only on a connection that is gone, which has ended too.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    /// Whether the peer still holds the connection, as far as is known here, without taking bytes from it.
    pub(crate) fn is_open(&self) -> bool {
        match retry(|| self.socket.peek(&mut [MaybeUninit::uninit()])) {
            Ok(n) => n > 0,
            Err(e) => would_block(&e),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A connected pair over `listener`'s address, for tests.
#[cfg(test)]
pub(crate) fn pair(address: &str) -> (Stream, Stream) {
    let listener = Listening::bind(address.parse().unwrap()).unwrap();
    let dialled = Stream::dial(listener.address().unwrap()).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let accepted = loop {
        if let Some((stream, _)) = listener.accept().unwrap() {
            break stream;
        }
        assert!(std::time::Instant::now() < deadline, "a loopback connection did not come");
        std::thread::yield_now();
    };
    while !dialled.connected().unwrap() {
        assert!(std::time::Instant::now() < deadline, "a loopback connection did not stand");
        std::thread::yield_now();
    }
    (dialled, accepted)
}

/// A connection that met itself.
#[cfg(test)]
pub(crate) fn meets_itself() -> Stream {
    let socket = open(&"127.0.0.1:0".parse().unwrap()).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    let own = socket.local_addr().unwrap();
    match socket.connect(&own) {
        Err(e) if e.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => panic!("{e}"),
        _ => Stream::new(socket),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_is_closed_on_exec_and_never_blocks() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (a, b) = pair(address);
            for stream in [&a, &b] {
                let fd_flags = rustix::io::fcntl_getfd(stream).unwrap();
                assert!(fd_flags.contains(rustix::io::FdFlags::CLOEXEC));
                assert!(stream.socket.nonblocking().unwrap() && stream.socket.tcp_nodelay().unwrap());
                assert!(stream.socket.keepalive().unwrap());
                assert_eq!(stream.recv(&mut [0; 1]).unwrap(), None);
            }
            assert!(!a.is_self() && !b.is_self());
        }
    }

    #[test]
    fn a_port_belongs_to_one_listener_and_says_so() {
        let first = Listening::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let refused = Listening::bind(first.address().unwrap()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(errno_text(&refused), "address already in use");
    }

    #[test]
    fn a_port_whose_connections_are_ending_can_be_listened_on_again() {
        let mut address = "127.0.0.1:0".parse().unwrap();
        for _ in 0..50 {
            let listener = Listening::bind(address).unwrap();
            address = listener.address().unwrap();
            let dialled = Stream::dial(address).unwrap();
            let accepted = loop {
                if let Some((accepted, _)) = listener.accept().unwrap() {
                    break accepted;
                }
            };
            // The listener's side closes first, so its port is the one that lingers.
            drop(accepted);
            drop(dialled);
        }
    }

    #[test]
    fn one_send_takes_many_parts_and_at_most_a_mebibyte() {
        let (a, b) = pair("127.0.0.1:0");
        let part = [7; 10];
        let parts = [IoSlice::new(&part); 40];
        assert_eq!(a.send(&parts).unwrap(), MAX_PARTS * 10);
        let mut into = [0; 1000];
        let mut got = 0;
        while got < MAX_PARTS * 10 {
            got += b.recv(&mut into).unwrap().unwrap_or(0);
        }
        assert_eq!(a.send(&[IoSlice::new(&[]), IoSlice::new(&[])]).unwrap(), 0);
        let large = vec![0; 3 * MAX_SEND];
        assert!(a.send(&[IoSlice::new(&large)]).unwrap() <= MAX_SEND);
    }

    #[test]
    fn a_stream_that_meets_itself_is_recognised() {
        let stream = meets_itself();
        assert!(stream.connected().unwrap() && stream.is_self());
    }

    #[test]
    fn whether_the_peer_is_there_is_known_without_taking_bytes() {
        let (a, b) = pair("127.0.0.1:0");
        assert!(b.is_open());
        a.send(&[IoSlice::new(b"x")]).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        assert!(b.is_open());
        while b.recv(&mut [0; 1]).unwrap() != Some(1) {
            assert!(std::time::Instant::now() < deadline);
        }
        drop(a);
        while b.is_open() {
            assert!(std::time::Instant::now() < deadline);
        }
    }
}
