//! How a thread waits: for descriptors, for devices that have none, and for another thread's word.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Deadline, Error, Result};

/// How long a wait sleeps between two tries of something that has no descriptor.
const BACKOFF: Duration = Duration::from_micros(200);

/// What a descriptor is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Until there is something to read, or the peer ended.
    Readable,
    /// Until there is room to write, or the peer ended.
    Writable,
}

/// How to wait for a channel half.
#[derive(Debug, Clone, Copy)]
pub enum Park<'a> {
    /// With poll(2) on this descriptor.
    Fd(BorrowedFd<'a>, Interest),
    /// By trying again after a short sleep: there is no descriptor.
    Backoff,
    /// Not at all: it can go on now.
    Ready,
}

/// Waits until one of `parks` may be ready (`true`), or the deadline passes (`false`).
///
/// Blocks at the longest until the deadline. With a [`Park::Backoff`] among them it returns `true` after at most 200 µs,
/// with a [`Park::Ready`] at once.
/// Errors: poll(2) failed for another reason than a signal.
pub fn wait_any(parks: &[Park<'_>], deadline: Deadline) -> Result<bool> {
    let mut fds = Vec::with_capacity(parks.len());
    let mut wake = deadline.instant();
    for park in parks {
        match *park {
            Park::Fd(fd, Interest::Readable) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            Park::Fd(fd, Interest::Writable) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::OUT)),
            Park::Backoff => wake = wake.min(Instant::now() + BACKOFF),
            Park::Ready => return Ok(true),
        }
    }
    loop {
        let left = wake.saturating_duration_since(Instant::now());
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(0) if Instant::now() < wake => {}
            Ok(0) => return Ok(wake < deadline.instant()),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::from_io("poll", "waiting failed", &e.into())),
        }
    }
}

/// A thread's doorbell: others [`notify`](Wake::notify) it, and its owner, who waits with [`park`](Wake::park) among
/// its other parks, [`drain`](Wake::drain)s it. A notification that comes before the wait is not lost.
#[derive(Debug)]
pub struct Wake {
    read: PipeReader,
    write: PipeWriter,
}

impl Wake {
    /// A new doorbell: two descriptors, closed on exec. Errors: the process has no descriptors left.
    pub fn new() -> Result<Self> {
        let failed = |e: std::io::Error| Error::from_io("pipe", "cannot make a wake pipe", &e);
        let (read, write) = std::io::pipe().map_err(failed)?;
        rustix::io::ioctl_fionbio(&read, true).map_err(|e| failed(e.into()))?;
        rustix::io::ioctl_fionbio(&write, true).map_err(|e| failed(e.into()))?;
        Ok(Self { read, write })
    }

    /// Wakes the owner, now or at its next wait. Never blocks: a pipe that is full is a bell that already rings.
    pub fn notify(&self) {
        let _ = (&self.write).write(&[1]);
    }

    /// Takes every notification so far. Only the owner calls it.
    pub fn drain(&self) {
        let mut sink = [0; 64];
        while matches!((&self.read).read(&mut sink), Ok(n) if n == sink.len()) {}
    }

    /// What the owner waits for.
    pub fn park(&self) -> Park<'_> {
        Park::Fd(self.read.as_fd(), Interest::Readable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let wake = Wake::new().unwrap();
        let start = Instant::now();
        assert!(!wait_any(&[wake.park()], Deadline::after(Duration::from_millis(20))).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert!(!wait_any(&[], Deadline::after(Duration::ZERO)).unwrap());
    }

    #[test]
    fn a_notification_before_the_wait_is_not_lost_and_one_drain_takes_all() {
        let wake = Wake::new().unwrap();
        for _ in 0..1000 {
            wake.notify();
        }
        assert!(wait_any(&[wake.park()], Deadline::after(Duration::from_secs(5))).unwrap());
        wake.drain();
        assert!(!wait_any(&[wake.park()], Deadline::after(Duration::ZERO)).unwrap());
    }

    #[test]
    fn something_without_a_descriptor_is_tried_again_soon() {
        let start = Instant::now();
        assert!(wait_any(&[Park::Backoff], Deadline::after(Duration::from_secs(5))).unwrap());
        assert!(start.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn who_can_go_on_does_not_wait_even_beside_others_and_after_the_deadline() {
        let (start, wake) = (Instant::now(), Wake::new().unwrap());
        for deadline in [Duration::from_secs(5), Duration::ZERO] {
            assert!(wait_any(&[wake.park(), Park::Ready], Deadline::after(deadline)).unwrap());
        }
        assert!(start.elapsed() < Duration::from_secs(1));
    }
}
