//! A service thread as others see it: its mailbox, and the handle by which it is waited for and ended.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use nuvec_transport::{Deadline, Error, Kind, Result, Wake};
use parking_lot::Mutex;

use crate::context::Context;
use crate::resolve::Resolution;

/// The longest that the service thread is waited for when the group closes.
pub(crate) const CLOSE: Duration = Duration::from_secs(1);

/// How long a thread that has nothing more to write may take to end.
pub(crate) const NOTICE: Duration = Duration::from_millis(200);

/// How much longer than its deadline the thread's answer is awaited: it needs a moment to tell the others why it failed.
const GRACE: Duration = Duration::from_secs(3);

/// What a service thread is asked; `C` is what one kind of it is asked alone.
pub(crate) enum Command<C> {
    /// The resolver has answered.
    Resolved(Resolution),
    /// Answer once all control messages so far are written.
    Flush(Sender<()>),
    /// End, by that moment.
    Close(Deadline),
    /// Something of its own.
    Own(C),
}

/// How others reach the service thread.
pub(crate) struct Mailbox<C> {
    commands: Sender<Command<C>>,
    pub(crate) wake: Arc<Wake>,
    pub(crate) kicked: Arc<AtomicBool>,
}

impl<C> Clone for Mailbox<C> {
    fn clone(&self) -> Self {
        let (wake, kicked) = (Arc::clone(&self.wake), Arc::clone(&self.kicked));
        Self { commands: self.commands.clone(), wake, kicked }
    }
}

impl<C> Mailbox<C> {
    /// A mailbox, and the end that the thread reads. Errors: there is no descriptor for it.
    pub(crate) fn new(context: &Context) -> Result<(Self, Receiver<Command<C>>)> {
        let (commands, inbox) = crossbeam_channel::unbounded();
        let wake = Arc::new(Wake::new().map_err(|e| e.with_rank(context.rank))?);
        Ok((Self { commands, wake, kicked: Arc::new(AtomicBool::new(false)) }, inbox))
    }

    /// Sends a command; `false` if the thread has ended.
    pub(crate) fn send(&self, command: Command<C>) -> bool {
        let sent = self.commands.send(command).is_ok();
        self.wake.notify();
        sent
    }

    /// Has the handler's tick called soon. Many kicks before the thread wakes are one.
    pub(crate) fn kick(&self) {
        if !self.kicked.swap(true, Ordering::AcqRel) {
            self.wake.notify();
        }
    }
}

/// The service thread of a group with peers.
pub(crate) struct Remote<C> {
    /// The process that the thread runs in.
    pub(crate) process: u32,
    pub(crate) mailbox: Mailbox<C>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Ends with the thread.
    pub(crate) alive: Receiver<Infallible>,
}

impl<C> Remote<C> {
    /// Starts it.
    pub(crate) fn start(context: &Context, mailbox: Mailbox<C>, work: impl FnOnce() + Send + 'static) -> Result<Self> {
        let (life, alive) = crossbeam_channel::bounded(0);
        let thread = std::thread::Builder::new()
            .name(format!("nuvec-tcp-{}", context.rank))
            .spawn(move || {
                // Dropped last, when nothing of the thread is left.
                let _life = life;
                work();
            })
            .map_err(|e| {
                Error::from_io("pthread_create", "cannot start the service thread", &e).with_rank(context.rank)
            })?;
        Ok(Self { process: std::process::id(), mailbox, thread: Mutex::new(Some(thread)), alive })
    }

    /// What the thread answers by the deadline. After an error it has ended, or has been left behind.
    pub(crate) fn answer<T>(&self, context: &Context, answer: &Receiver<Result<T>>, deadline: Deadline) -> Result<T> {
        let failed = match answer.recv_deadline(deadline.instant() + GRACE) {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(e)) => e,
            Err(RecvTimeoutError::Disconnected) => thread_lost(context),
            Err(RecvTimeoutError::Timeout) => {
                self.mailbox.send(Command::Close(Deadline::at(Instant::now())));
                context.error(Kind::TimedOut, "the control handler blocks the service thread")
            }
        };
        self.join(Deadline::after(CLOSE));
        Err(failed)
    }

    /// Whether this is a forked child of the process that has the thread.
    pub(crate) fn in_another_process(&self) -> bool {
        self.process != std::process::id()
    }

    /// As [`Fabric::flush_control`](nuvec_transport::Fabric::flush_control).
    pub(crate) fn flush(&self, deadline: Deadline) -> bool {
        if self.in_another_process() {
            return true;
        }
        let (reply, flushed) = crossbeam_channel::bounded(1);
        if !self.mailbox.send(Command::Flush(reply)) {
            return true;
        }
        // A thread that has ended has no live link left.
        !matches!(flushed.recv_deadline(deadline.instant()), Err(RecvTimeoutError::Timeout))
    }

    /// Ends the thread. Waits at most until the deadline, but always for as long as the thread needs to notice, and at most
    /// about a second.
    pub(crate) fn close(&self, deadline: Deadline) {
        if self.in_another_process() {
            return;
        }
        self.mailbox.send(Command::Close(deadline));
        let notice = Deadline::after(NOTICE);
        self.join(deadline.sooner(CLOSE).max(notice));
    }

    /// Waits for the thread to end, until the deadline at the longest.
    pub(crate) fn join(&self, deadline: Deadline) {
        if let Err(RecvTimeoutError::Timeout) = self.alive.recv_deadline(deadline.instant()) {
            tracing::warn!("the service thread did not end in time and is left behind: its control handler blocks");
            return;
        }
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the service thread panicked");
        }
    }
}

/// The error of a call that found the service thread gone.
fn thread_lost(context: &Context) -> Error {
    context.error(Kind::Io, "the service thread ended without a word: its control handler panicked")
}
