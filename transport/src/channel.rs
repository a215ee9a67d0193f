//! [`Channel`]: one byte stream to one peer.
//!
//! Why this shape. A call never blocks and keeps no borrow of the caller's memory, so that safe code can drive many
//! streams from one thread: a borrowed buffer in flight would be unsound, because leaking its ticket frees the borrow
//! while the device still writes. The halves are values of their own, so that a lane (send to one neighbour, receive from
//! the other) is self-contained and can move to another thread.

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use crate::{Park, Result};

/// Who is at the other end: a rank, and the address or device that it was reached by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The peer's rank in the root group.
    pub rank: usize,
    /// Its rank in the group that an error is about, where that differs.
    pub group_rank: Option<usize>,
    /// Its address as the user wrote it, or its device.
    pub address: Arc<str>,
}

impl Peer {
    /// The peer of this rank at this address.
    pub fn new(rank: usize, address: impl Into<Arc<str>>) -> Self {
        Self { rank, group_rank: None, address: address.into() }
    }

    /// The same peer as a group knows it in which it has rank `group_rank`.
    pub fn in_group(mut self, group_rank: usize) -> Self {
        self.group_rank = Some(group_rank).filter(|&r| r != self.rank);
        self
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group_rank {
            Some(rank) => write!(f, "rank {rank} (rank {} of all, {})", self.rank, self.address),
            None => write!(f, "rank {} ({})", self.rank, self.address),
        }
    }
}

/// One reliable, ordered, full-duplex byte stream to one peer. Dropping a half ends its direction.
pub trait Channel: Send {
    /// The half that sends.
    type Sender: Sender;
    /// The half that receives.
    type Receiver: Receiver;

    /// Splits the channel into its halves, which may go to different threads.
    fn split(self) -> (Self::Sender, Self::Receiver);
}

/// The sending half of a [`Channel`].
pub trait Sender: Send {
    /// Takes as many bytes of `parts`, in order, as there is room for, and returns how many: 0 means no room now, which
    /// is never an error. Never blocks. Errors: the peer closed or reset the connection.
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize>;

    /// Moves on what an earlier [`try_send`](Sender::try_send) staged; `true` once nothing of ours is staged any more.
    /// Never blocks. Transports whose kernel keeps the bytes have nothing staged.
    fn try_flush(&mut self) -> Result<bool> {
        Ok(true)
    }

    /// For how long the other end has acknowledged nothing, although there is something to acknowledge: its machine or the
    /// link to it is down, whatever its process does. Zero where the transport does not know.
    fn unacknowledged(&self) -> Duration {
        Duration::ZERO
    }

    /// How to wait for room.
    fn park(&self) -> Park<'_>;

    /// The peer.
    fn peer(&self) -> &Peer;
}

impl<S: Sender + ?Sized> Sender for &mut S {
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        (**self).try_send(parts)
    }

    fn try_flush(&mut self) -> Result<bool> {
        (**self).try_flush()
    }

    fn unacknowledged(&self) -> Duration {
        (**self).unacknowledged()
    }

    fn park(&self) -> Park<'_> {
        (**self).park()
    }

    fn peer(&self) -> &Peer {
        (**self).peer()
    }
}

/// The receiving half of a [`Channel`].
pub trait Receiver: Send {
    /// Receives up to `into.len()` bytes; 0 means nothing yet (or an empty `into`). Never blocks. Errors: the stream
    /// ended ([`Kind::PeerClosed`](crate::Kind::PeerClosed), after everything that was sent has been received), or the
    /// connection broke.
    fn try_recv(&mut self, into: &mut [u8]) -> Result<usize>;

    /// Hands up to `max` received bytes to `sink` where they lie (an RDMA slot, or the transport's scratch), in one or
    /// more pieces, and returns how many: 0 means nothing yet. The sink takes all of what it is given; an error of the
    /// sink ends the call and is returned. Never blocks.
    fn try_recv_with(&mut self, max: usize, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<usize>;

    /// How to wait for bytes.
    fn park(&self) -> Park<'_>;

    /// The peer.
    fn peer(&self) -> &Peer;
}

impl<R: Receiver + ?Sized> Receiver for &mut R {
    fn try_recv(&mut self, into: &mut [u8]) -> Result<usize> {
        (**self).try_recv(into)
    }

    fn try_recv_with(&mut self, max: usize, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<usize> {
        (**self).try_recv_with(max, sink)
    }

    fn park(&self) -> Park<'_> {
        (**self).park()
    }

    fn peer(&self) -> &Peer {
        (**self).peer()
    }
}
