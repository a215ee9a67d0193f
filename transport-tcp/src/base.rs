//! What every service thread has, and the turns of its loop that are the same for each: a ring's and a star's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use nuvec_transport::{ControlHandler, Error, Park, Wake};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::admission::TurnedAway;
use crate::context::Context;
use crate::control::{ControlLinks, Targets};
use crate::listen::Listeners;
use crate::pending::Pending;
use crate::resolve::Resolver;
use crate::thread::{Command, Mailbox};

/// How long the last control messages may take to leave, when forming failed or the group is closed.
const LAST_WORDS: Duration = Duration::from_millis(800);

/// Why the loop ends, and when it must have ended.
struct End {
    error: Option<Error>,
    by: Instant,
}

/// What every service thread has; `C` is what its kind alone is asked.
pub(crate) struct Base<C> {
    pub(crate) context: Arc<Context>,
    pub(crate) listeners: Listeners,
    pub(crate) pending: Pending,
    pub(crate) resolver: Resolver,
    pub(crate) control: ControlLinks,
    pub(crate) away: TurnedAway,
    commands: Receiver<Command<C>>,
    wake: Arc<Wake>,
    kicked: Arc<AtomicBool>,
    flushes: Vec<(Targets, Sender<()>)>,
    end: Option<End>,
}

impl<C: Send + 'static> Base<C> {
    /// With room for that many control links.
    pub(crate) fn new(
        context: Arc<Context>,
        listeners: Listeners,
        links: usize,
        handler: Box<dyn ControlHandler>,
        mailbox: Mailbox<C>,
        commands: Receiver<Command<C>>,
    ) -> Self {
        let (wake, kicked) = (Arc::clone(&mailbox.wake), Arc::clone(&mailbox.kicked));
        let control = ControlLinks::new(links, handler, context.began);
        let resolver = Resolver::new(move |answer| {
            // A thread that has ended needs no answer.
            mailbox.send(Command::Resolved(answer));
        });
        Self {
            context,
            listeners,
            pending: Pending::default(),
            resolver,
            control,
            away: TurnedAway::default(),
            commands,
            wake,
            kicked,
            flushes: Vec::new(),
            end: None,
        }
    }

    /// Whether the loop goes on.
    pub(crate) fn goes_on(&self) -> bool {
        self.end.is_none()
    }

    /// Sleeps until something is ready or due; `timers` and `sources` are the owner's own. Returns which pending
    /// connections are ready.
    pub(crate) fn wait<'a>(
        &'a self,
        timers: impl IntoIterator<Item = Option<Instant>>,
        sources: impl IntoIterator<Item = PollFd<'a>>,
    ) -> Vec<bool> {
        let now = Instant::now();
        let timers = timers.into_iter().chain([self.listeners.timer(), self.pending.timer()]);
        let due = timers.flatten().fold(self.control.timer(), Instant::min);
        let left = due.saturating_duration_since(now);
        let mut all: Vec<PollFd<'_>> = self.pending.sources().collect();
        let pending = all.len();
        if let Park::Fd(fd, _) = self.wake.park() {
            all.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        all.extend(self.listeners.sources());
        all.extend(sources);
        all.extend(self.control.sources());
        match poll(&mut all, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) => all[..pending].iter().map(|source| !source.revents().is_empty()).collect(),
            Err(rustix::io::Errno::INTR) => vec![false; pending],
            Err(e) => {
                // Out of kernel memory, at worst: everything is tried again a little later.
                tracing::warn!("rank {}: poll: {e}", self.context.rank);
                std::thread::sleep(Duration::from_millis(10));
                vec![true; pending]
            }
        }
    }

    /// Does what the mailbox asks; the commands that are the owner's to obey.
    pub(crate) fn obey(&mut self, now: Instant) -> Vec<C> {
        self.wake.drain();
        let mut own = Vec::new();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Resolved(answer) => self.resolver.put(answer, now),
                Command::Flush(reply) => {
                    self.control.tick(now);
                    self.flushes.push((self.control.targets(), reply));
                }
                Command::Close(deadline) => {
                    self.end.get_or_insert(End { error: None, by: deadline.instant().min(now + LAST_WORDS) });
                }
                Command::Own(command) => own.push(command),
            }
        }
        own
    }

    /// Calls the handler's tick if it is due, or was asked for.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.kicked.swap(false, Ordering::AcqRel) || now >= self.control.timer() {
            self.control.tick(now);
        }
    }

    /// Writes what waits, and answers those who wait for that.
    pub(crate) fn write(&mut self) {
        self.control.write();
        let control = &self.control;
        self.flushes.retain(|(targets, reply)| {
            let done = control.reached(targets);
            if done {
                // Whoever asked may have given up.
                let _ = reply.send(());
            }
            !done
        });
    }

    /// The links that ended since the last call, once what waits has been written, with the handler told of each.
    pub(crate) fn take_ended(&mut self, now: Instant) -> Vec<(usize, Error)> {
        self.control.write();
        let ended = self.control.take_ended().into_iter();
        ended
            .map(|(link, why)| {
                self.context.step(format_args!("{why}"));
                let why = why.with_rank(self.context.rank);
                if why.kind() == nuvec_transport::Kind::Mismatch {
                    // Others only see that the connections break; this is why.
                    tracing::warn!("{why}");
                }
                self.control.tell_ended(link, &why, now);
                (link, why)
            })
            .collect()
    }

    /// Forming has failed: the loop ends once the others have been told.
    pub(crate) fn fail(&mut self, error: Error, now: Instant) {
        if self.end.is_none() {
            let error = self.tell_failed(error, now);
            self.give_up(error, now);
        }
    }

    /// Forming has failed: tells the others. The error that counts.
    pub(crate) fn tell_failed(&mut self, error: Error, now: Instant) -> Error {
        // What the handler reported first is the cause; then it has told the others already.
        match self.control.poisoned() {
            Some(poison) => poison.clone(),
            None => {
                self.control.tell_failed(&error, now);
                error
            }
        }
    }

    /// Ends the loop with the reason why forming failed.
    pub(crate) fn give_up(&mut self, error: Error, now: Instant) {
        self.end = Some(End { error: Some(error.with_rank(self.context.rank)), by: now + LAST_WORDS });
    }

    /// Ends the control links once the loop is over. Why forming failed, if it did.
    pub(crate) fn finish(&mut self) -> Option<Error> {
        let End { error, by } = self.end.take()?;
        self.listeners = Listeners::default();
        self.pending = Pending::default();
        self.control.close(by);
        self.write();
        self.context.step(format_args!("closed"));
        error
    }
}
