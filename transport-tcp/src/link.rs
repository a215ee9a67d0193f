//! One control link: frames in, frames out, over one connection that never blocks.
//!
//! A frame is the length of what follows (u16, little-endian, 1 to 1025), a kind byte, and up to 1024 bytes. What the
//! frames mean is not known here.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use nuvec_transport::{Error, Kind, MAX_CONTROL_MESSAGE, Peer};
use rustix::event::{PollFd, PollFlags};

use crate::socket::Stream;

/// The most that waits for a link to take it, in bytes.
const MOST_QUEUED: usize = 256 << 10;
/// The most that is read from a link before the thread looks after the rest of its work, in bytes.
const MOST_READ: usize = 64 << 10;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// A rank's card, while the group forms.
    Card = 1,
    /// A control handler's message.
    Message = 2,
    /// The word that a rank has all its connections, while the group forms.
    Ready = 3,
    /// What a rank refused while the group forms.
    Refusal = 4,
}

impl FrameKind {
    fn from_code(code: u8) -> Option<Self> {
        [Self::Card, Self::Message, Self::Ready, Self::Refusal].into_iter().find(|kind| *kind as u8 == code)
    }
}

/// A frame that arrived.
pub(crate) type Frame = (FrameKind, Vec<u8>);

/// One control link.
#[derive(Debug)]
pub(crate) struct Link {
    stream: Stream,
    peer: Peer,
    /// What arrived and is no whole frame yet.
    inbox: Vec<u8>,
    /// What is to be written, from `start` on.
    queue: Vec<u8>,
    start: usize,
    written: u64,
}

impl Link {
    pub(crate) fn new(stream: Stream, peer: Peer) -> Self {
        Self { stream, peer, inbox: Vec::new(), queue: Vec::new(), start: 0, written: 0 }
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether the peer still holds it, as far as is known here.
    pub(crate) fn is_open(&self) -> bool {
        self.stream.is_open()
    }

    /// What the owner must wait for.
    pub(crate) fn source(&self) -> PollFd<'_> {
        let flags = if self.waiting() == 0 { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        PollFd::from_borrowed_fd(self.stream.as_fd(), flags)
    }

    /// Bytes that were queued and are not written yet.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len() - self.start
    }

    /// Bytes written so far, and what that number will be once all that is queued now is written.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.written, self.written + self.waiting() as u64)
    }

    /// Queues a frame. Errors: the link is unusable, because its peer takes nothing.
    pub(crate) fn push(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), Error> {
        let Ok(length) = u16::try_from(1 + payload.len()) else { return Err(self.too_long(payload.len())) };
        if payload.len() > MAX_CONTROL_MESSAGE {
            return Err(self.too_long(payload.len()));
        }
        if self.waiting() + 3 + payload.len() > MOST_QUEUED {
            let what = format!("takes no control messages: {} bytes wait for it", self.waiting());
            return Err(Error::new(Kind::Exhausted, what).with_peer(&self.peer));
        }
        if self.start > MOST_QUEUED / 2 {
            self.queue.drain(..self.start);
            self.start = 0;
        }
        self.queue.extend_from_slice(&length.to_le_bytes());
        self.queue.push(kind as u8);
        self.queue.extend_from_slice(payload);
        Ok(())
    }

    fn too_long(&self, length: usize) -> Error {
        let what = format!("was to be sent a control message of {length} bytes; {MAX_CONTROL_MESSAGE} is the most");
        Error::new(Kind::Misuse, what).with_peer(&self.peer)
    }

    /// Writes what the connection takes now.
    pub(crate) fn write(&mut self) -> Result<(), Error> {
        while self.waiting() > 0 {
            match self.stream.send(&[IoSlice::new(&self.queue[self.start..])]) {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    self.start += n;
                    self.written += n as u64;
                }
                Err(e) => return Err(self.broke("sendmsg", &e)),
            }
        }
        self.queue.clear();
        self.start = 0;
        Ok(())
    }

    /// Reads what is there, up to a bound, into `frames`. An error comes after the frames before it.
    pub(crate) fn read(&mut self, frames: &mut Vec<Frame>) -> Result<(), Error> {
        let mut chunk = [0; 4096];
        let mut total = 0;
        while total < MOST_READ {
            match self.stream.recv(&mut chunk) {
                Ok(None) => break,
                Ok(Some(0)) => {
                    return Err(Error::new(Kind::PeerClosed, "closed its control link").with_peer(&self.peer));
                }
                Ok(Some(n)) => {
                    total += n;
                    self.inbox.extend_from_slice(&chunk[..n]);
                    self.cut(frames)?;
                }
                Err(e) => return Err(self.broke("recv", &e)),
            }
        }
        Ok(())
    }

    /// Cuts whole frames off the inbox, which keeps less than one.
    fn cut(&mut self, frames: &mut Vec<Frame>) -> Result<(), Error> {
        let mut at = 0;
        while let Some(header) = self.inbox.get(at..at + 2) {
            let length = usize::from(u16::from_le_bytes([header[0], header[1]]));
            if !(1..=MAX_CONTROL_MESSAGE + 1).contains(&length) {
                return Err(self.malformed(format!("sent a control frame of {length} bytes")));
            }
            let Some(body) = self.inbox.get(at + 2..at + 2 + length) else { break };
            let Some(kind) = FrameKind::from_code(body[0]) else {
                return Err(self.malformed(format!("sent a control frame of unknown kind {}", body[0])));
            };
            frames.push((kind, body[1..].to_vec()));
            at += 2 + length;
        }
        self.inbox.drain(..at);
        Ok(())
    }

    fn malformed(&self, what: String) -> Error {
        Error::new(Kind::Mismatch, what).with_peer(&self.peer)
    }

    fn broke(&self, call: &'static str, e: &io::Error) -> Error {
        Error::from_io(call, "broke its control link", e).with_peer(&self.peer)
    }

    /// Ends the sending direction, after everything that was written.
    pub(crate) fn shutdown(&self) {
        self.stream.shutdown_write();
    }

    /// Reads and forgets what is there; whether the peer has ended its direction too.
    pub(crate) fn drain(&self) -> bool {
        let mut chunk = [0; 4096];
        for _ in 0..64 {
            match self.stream.recv(&mut chunk) {
                Ok(None) => return false,
                Ok(Some(0)) | Err(_) => return true,
                Ok(Some(_)) => {}
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::pair;
    use std::time::{Duration, Instant};

    fn links() -> (Link, Link) {
        let (a, b) = pair("127.0.0.1:0");
        (Link::new(a, Peer::new(1, "b:1")), Link::new(b, Peer::new(0, "a:1")))
    }

    /// Reads until there are `count` frames, or an error.
    fn read(link: &mut Link, count: usize) -> Result<Vec<Frame>, Error> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut frames = Vec::new();
        while frames.len() < count {
            link.read(&mut frames)?;
            assert!(Instant::now() < deadline, "{} of {count} frames came", frames.len());
        }
        Ok(frames)
    }

    #[test]
    fn frames_arrive_as_they_were_queued() {
        let (mut a, mut b) = links();
        let sizes = [0, 1, 53, 1023, MAX_CONTROL_MESSAGE];
        for (i, &size) in sizes.iter().enumerate() {
            let kind = if i % 2 == 0 { FrameKind::Card } else { FrameKind::Message };
            a.push(kind, &vec![i as u8; size]).unwrap();
        }
        let (before, target) = a.progress();
        a.write().unwrap();
        assert_eq!((before, a.progress().0, a.waiting()), (0, target, 0));
        for (i, (kind, payload)) in read(&mut b, sizes.len()).unwrap().into_iter().enumerate() {
            assert_eq!(kind, if i % 2 == 0 { FrameKind::Card } else { FrameKind::Message });
            assert_eq!(payload, vec![i as u8; sizes[i]]);
        }
    }

    #[test]
    fn frames_before_the_end_arrive_before_it() {
        let (mut a, mut b) = links();
        a.push(FrameKind::Message, b"last words").unwrap();
        a.write().unwrap();
        drop(a);
        let mut frames = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        let end = loop {
            if let Err(e) = b.read(&mut frames) {
                break e;
            }
            assert!(Instant::now() < deadline);
        };
        assert_eq!(end.kind(), Kind::PeerClosed);
        assert_eq!(frames, [(FrameKind::Message, b"last words".to_vec())]);
    }

    #[test]
    fn noise_ends_the_link_and_takes_no_memory() {
        for noise in [&[0, 0, 1][..], &[0xFF, 0xFF, 2], &[2, 0, 9, 0], &[2, 4, 2]] {
            let (a, mut b) = links();
            a.stream.send(&[IoSlice::new(noise)]).unwrap();
            let e = read(&mut b, 1).unwrap_err();
            assert_eq!((e.kind(), e.peer().map(|p| p.rank)), (Kind::Mismatch, Some(0)), "{e}");
            assert!(b.inbox.len() < 8);
        }
    }

    #[test]
    fn a_link_whose_peer_reads_nothing_fails_at_its_bound() {
        let (mut a, _b) = links();
        let message = [7; MAX_CONTROL_MESSAGE];
        let full = loop {
            match a.push(FrameKind::Message, &message) {
                Ok(()) => a.write().unwrap(),
                Err(e) => break e,
            }
            assert!(a.queue.len() <= 2 * MOST_QUEUED);
        };
        assert!(full.to_string().contains("takes no control messages"), "{full}");
        assert!(a.push(FrameKind::Message, &[0; MAX_CONTROL_MESSAGE + 1]).is_err());
    }
}
