//! The point-to-point streams of one group: opened at the first message between two ranks, kept for the next ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use nuvec_transport::{Deadline, Error, Fabric, GroupId, Kind, Result, Wake, wait_any};

/// How long a stream that a rank opened before it left may still be on its way.
const IN_FLIGHT: Duration = Duration::from_secs(1);

/// What a wait for a stream looks at meanwhile.
pub(crate) trait StreamWait {
    /// Rings when a stream is there, the group fails, or a rank leaves.
    fn wake(&self) -> &Arc<Wake>;
    /// The end of a wait that begins now.
    fn deadline(&self) -> Deadline;
    /// The group's failure, if it has failed.
    fn check(&self) -> Result<()>;
    /// Whether a rank is known to have left.
    fn is_gone(&self, rank: usize) -> bool;
    /// The call goes to sleep, waiting for this rank.
    fn wait_for(&self, rank: usize);
}

/// The streams of one group, by peer.
pub(crate) struct Streams<F: Fabric> {
    fabric: Arc<F>,
    group: GroupId,
    out: HashMap<usize, (u64, Vec<F::Sender>)>,
    into: HashMap<usize, (u64, Vec<F::Receiver>)>,
}

impl<F: Fabric> Streams<F> {
    pub(crate) fn new(fabric: Arc<F>, group: GroupId) -> Self {
        Self { fabric, group, out: HashMap::new(), into: HashMap::new() }
    }

    /// The number of the next message to `to`, counted from 1.
    pub(crate) fn next_sent(&mut self, to: usize) -> u64 {
        next(&mut self.out.entry(to).or_default().0)
    }

    /// The number of the next message from `from`, counted from 1.
    pub(crate) fn next_received(&mut self, from: usize) -> u64 {
        next(&mut self.into.entry(from).or_default().0)
    }

    /// The stripes to `to`, opened if need be. Blocks until the wait's deadline.
    pub(crate) fn senders(&mut self, to: usize, wait: &dyn StreamWait) -> Result<&mut [F::Sender]> {
        let Self { fabric, group, out, .. } = self;
        let (_, txs) = out.entry(to).or_default();
        if txs.is_empty() {
            let deadline = wait.deadline();
            let left = || Error::new(Kind::PeerClosed, "has left").with_peer(&fabric.peer(to));
            if wait.is_gone(to) {
                return Err(left());
            }
            fabric.open(*group, to, wait.wake(), deadline);
            wait.wait_for(to);
            *txs = loop {
                if let Some(opened) = fabric.opened(*group, to) {
                    break opened?;
                }
                wait.check()?;
                if wait.is_gone(to) {
                    return Err(left());
                }
                if !wait_any(&[wait.wake().park()], deadline)? {
                    let text = "did not answer the connection for a message";
                    return Err(Error::new(Kind::TimedOut, text).with_peer(&fabric.peer(to)));
                }
                wait.wake().drain();
            };
        }
        Ok(txs)
    }

    /// The stripes from `from`, which that rank opens with its first message. Blocks until the wait's deadline.
    pub(crate) fn receivers(&mut self, from: usize, wait: &dyn StreamWait) -> Result<&mut [F::Receiver]> {
        let Self { fabric, group, into, .. } = self;
        let (_, rxs) = into.entry(from).or_default();
        if rxs.is_empty() {
            let mut deadline = wait.deadline();
            let mut left = false;
            wait.wait_for(from);
            *rxs = loop {
                if let Some(accepted) = fabric.accepted(*group, from) {
                    break accepted;
                }
                wait.check()?;
                if !left && wait.is_gone(from) {
                    (left, deadline) = (true, deadline.sooner(IN_FLIGHT));
                }
                if !wait_any(&[wait.wake().park()], deadline)? {
                    let (kind, text) = match left {
                        true => (Kind::PeerClosed, "has left and sent nothing"),
                        false => (Kind::TimedOut, "sent no message"),
                    };
                    return Err(Error::new(kind, text).with_peer(&fabric.peer(from)));
                }
                wait.wake().drain();
            };
        }
        Ok(rxs)
    }

    /// Closes every stream.
    pub(crate) fn clear(&mut self) {
        self.out.clear();
        self.into.clear();
    }
}

fn next(counter: &mut u64) -> u64 {
    *counter += 1;
    *counter
}
