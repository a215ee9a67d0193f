//! [`Registry`]: the ends that the service thread looks after, and that closing, and the exit of the process, wait for.

use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use nuvec_transport::{ControlHandler, Deadline, Error, LinkId, Outbox, Peer};
use parking_lot::Mutex;

use crate::endpoint::{Endpoint, LINGER};
use crate::sys::at_exit;

/// How soon the service thread looks again when there is nothing to look after.
const IDLE: Duration = Duration::from_secs(1);

/// Every registry of the process that may have something to say.
static ALL: Mutex<Vec<Weak<Registry>>> = Mutex::new(Vec::new());

/// Every end of a group, until its halves are gone and there is nothing left to say.
pub(crate) struct Registry {
    ends: Mutex<Vec<Arc<Endpoint>>>,
    /// The process that it is of: in a forked child its locks may be held for ever.
    process: u32,
}

/// A process may exit once its last call has returned. What that call sent is with the device then, which resends what is
/// lost, and on unreliable queue pairs with us: both end with the process, where a kernel's sockets would go on. So the
/// exit waits for what is under way.
extern "C" fn linger_at_exit() {
    // A panic must not go on into C.
    let lingered = std::panic::catch_unwind(|| {
        let Some(mut all) = ALL.try_lock_for(LINGER) else { return };
        let open: Vec<_> = all.drain(..).filter_map(|registry| registry.upgrade()).collect();
        drop(all);
        let deadline = Deadline::after(LINGER);
        open.iter()
            .filter(|registry| registry.process == std::process::id())
            .for_each(|r| r.attend_while(Endpoint::has_more_to_say, deadline));
    });
    drop(lingered);
}

impl Registry {
    pub(crate) fn new() -> Arc<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            if !at_exit(linger_at_exit) {
                tracing::warn!("atexit: the process will not wait for what it has sent when it exits");
            }
        });
        let this = Arc::new(Self { ends: Mutex::default(), process: std::process::id() });
        let mut all = ALL.lock();
        all.retain(|registry| registry.strong_count() > 0);
        all.push(Arc::downgrade(&this));
        this
    }

    /// Looks after every end as long as that is so of one, until the deadline.
    fn attend_while(&self, holds: fn(&Endpoint) -> bool, deadline: Deadline) {
        while !deadline.expired() {
            self.attend();
            if !self.ends.lock().iter().any(|end| holds(end)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

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
        self.attend_while(Endpoint::is_abandoned, deadline);
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
