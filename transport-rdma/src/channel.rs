//! [`RdmaChannel`]: a channel over one queue pair.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use nuvec_transport::{Channel, Park, Peer, Receiver, Result, Sender};

use crate::endpoint::{Endpoint, Half, Message};

/// One reliable, ordered, full-duplex byte stream over a queue pair.
///
/// Bytes are copied into registered memory and sent from there; [`Receiver::try_recv_with`] hands them out where the device
/// put them. On a reliable connection the device resends what is lost, on an unreliable one this crate does.
#[derive(Debug)]
pub struct RdmaChannel {
    sender: RdmaSender,
    receiver: RdmaReceiver,
}

/// The sending half of an [`RdmaChannel`]. Dropping it ends the stream after what was sent; the fabric's service thread
/// sees to what is still under way.
pub struct RdmaSender {
    endpoint: Arc<Endpoint>,
}

/// The receiving half of an [`RdmaChannel`]. Dropping it tells the peer that nothing more is read.
pub struct RdmaReceiver {
    endpoint: Arc<Endpoint>,
    message: Option<Message>,
}

impl RdmaChannel {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        let receiver = RdmaReceiver { endpoint: Arc::clone(&endpoint), message: None };
        Self { sender: RdmaSender { endpoint }, receiver }
    }
}

impl std::fmt::Debug for RdmaSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RdmaSender(to {})", self.endpoint.peer())
    }
}

impl std::fmt::Debug for RdmaReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RdmaReceiver(from {})", self.endpoint.peer())
    }
}

impl Channel for RdmaChannel {
    type Sender = RdmaSender;
    type Receiver = RdmaReceiver;

    fn split(self) -> (RdmaSender, RdmaReceiver) {
        (self.sender, self.receiver)
    }
}

impl Sender for RdmaSender {
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        let mut parts = parts.iter().map(|part| &**part).filter(|part| !part.is_empty());
        let Some(mut part) = parts.next() else { return Ok(0) };
        self.endpoint.send(&mut |mut into| {
            let mut wrote = 0;
            while !part.is_empty() && !into.is_empty() {
                let n = part.len().min(into.len());
                let (here, rest) = into.split_at_mut(n);
                here.copy_from_slice(&part[..n]);
                (into, part) = (rest, &part[n..]);
                wrote += n;
                if part.is_empty() {
                    part = parts.next().unwrap_or_default();
                }
            }
            wrote
        })
    }

    fn try_flush(&mut self) -> Result<bool> {
        self.endpoint.flush()
    }

    fn unacknowledged(&self) -> Duration {
        self.endpoint.unacknowledged()
    }

    fn park(&self) -> Park<'_> {
        self.endpoint.park(Half::Sender)
    }

    fn peer(&self) -> &Peer {
        self.endpoint.peer()
    }
}

impl Drop for RdmaSender {
    fn drop(&mut self) {
        self.endpoint.end(Half::Sender, None);
    }
}

impl RdmaReceiver {
    /// The next message with something in it, if there is one.
    fn next(&mut self) -> Result<Option<&mut Message>> {
        self.endpoint.check_process()?;
        if self.message.as_ref().is_none_or(|message| message.rest().is_empty()) {
            self.message = self.endpoint.receive(self.message.take())?;
        }
        Ok(self.message.as_mut())
    }

    /// Gives a message that was read wholly back at once: its slot is a credit of the peer's.
    fn settle(&mut self) {
        if let Some(message) = self.message.take_if(|message| message.rest().is_empty()) {
            self.endpoint.give_back(message);
        }
    }
}

impl Receiver for RdmaReceiver {
    fn try_recv(&mut self, mut into: &mut [u8]) -> Result<usize> {
        self.try_recv_with(into.len(), &mut |bytes| {
            let (here, rest) = std::mem::take(&mut into).split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            into = rest;
            Ok(())
        })
    }

    fn try_recv_with(&mut self, max: usize, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<usize> {
        let mut received = 0;
        while received < max {
            let message = match self.next() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(_) if received > 0 => break,
                Err(e) => return Err(e),
            };
            let rest = message.rest();
            let n = rest.len().min(max - received);
            sink(&rest[..n])?;
            message.consume(n);
            received += n;
        }
        self.settle();
        Ok(received)
    }

    fn park(&self) -> Park<'_> {
        if self.message.as_ref().is_some_and(|message| !message.rest().is_empty()) {
            return Park::Ready;
        }
        self.endpoint.park(Half::Receiver)
    }

    fn peer(&self) -> &Peer {
        self.endpoint.peer()
    }
}

impl Drop for RdmaReceiver {
    fn drop(&mut self) {
        let unread = self.message.take();
        self.endpoint.end(Half::Receiver, unread);
    }
}
