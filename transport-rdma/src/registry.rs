//! [`Registry`]: the ends that the service thread looks after.

use std::sync::Arc;
use std::time::Duration;

use nuvec_transport::{ControlHandler, Deadline, Error, LinkId, Outbox, Peer};
use parking_lot::Mutex;

use crate::endpoint::Endpoint;

/// How soon the service thread looks again when there is nothing to look after.
const IDLE: Duration = Duration::from_secs(1);

/// Every end of a group, until its halves are gone and there is nothing left to say.
#[derive(Default)]
pub(crate) struct Registry {
    ends: Mutex<Vec<Arc<Endpoint>>>,
}

impl Registry {
    pub(crate) fn add(&self, endpoint: &Arc<Endpoint>) {
        self.ends.lock().push(Arc::clone(endpoint));
    }

    /// Looks after every end once; returns when to do it again.
    pub(crate) fn attend(&self) -> Duration {
        let mut ends = self.ends.lock();
        let mut next = IDLE;
        ends.retain(|end| {
            let due = end.attend();
            next = next.min(due.unwrap_or(IDLE));
            due.is_some()
        });
        next
    }

    /// Waits until all ends whose halves are gone have said everything, or the deadline passes; then lets go of all.
    pub(crate) fn close(&self, deadline: Deadline) {
        while !deadline.expired() {
            self.attend();
            if !self.ends.lock().iter().any(|end| end.is_abandoned()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.ends.lock().clear();
    }

    /// Tells the ends of channels to `rank` that its process has ended.
    fn peer_ended(&self, rank: usize, why: &Error) {
        let ends = self.ends.lock();
        ends.iter().filter(|end| end.peer().rank == rank).for_each(|end| end.peer_ended(why));
    }
}

/// A control handler that also tells the ends when their peer's control link ends: over an unreliable connection nothing
/// else does.
pub(crate) struct Watch {
    pub(crate) inner: Box<dyn ControlHandler>,
    pub(crate) registry: Arc<Registry>,
}

impl ControlHandler for Watch {
    fn begin(&mut self, rank: usize, peers: &[Peer], timeout: Duration) -> u32 {
        self.inner.begin(rank, peers, timeout)
    }

    fn link_up(&mut self, link: LinkId, peer: &Peer, now: Duration, out: &mut Outbox) {
        self.inner.link_up(link, peer, now, out);
    }

    fn message(&mut self, link: LinkId, message: &[u8], now: Duration, out: &mut Outbox) {
        self.inner.message(link, message, now, out);
    }

    fn link_ended(&mut self, link: LinkId, why: &Error, now: Duration, out: &mut Outbox) {
        // The bootstrap's links are numbered by the rank at their other end.
        self.registry.peer_ended(link.0 as usize, why);
        self.inner.link_ended(link, why, now, out);
    }

    fn forming_failed(&mut self, why: &Error, now: Duration, out: &mut Outbox) {
        self.inner.forming_failed(why, now, out);
    }

    fn tick(&mut self, now: Duration, out: &mut Outbox) {
        self.inner.tick(now, out);
    }

    fn tick_interval(&self) -> Duration {
        self.inner.tick_interval()
    }
}
