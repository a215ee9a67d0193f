//! Connections that others made and whose hello is not over yet.
//!
//! Anybody can connect: a scanner, an HTTP client, something that says nothing at all. So these are few, short-lived,
//! and cost nothing but a descriptor each; what they send is judged byte by byte as it comes. Descriptors are the whole
//! process's, so whoever finds none left takes them from here ([`Pending::give_way`]).

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, getrlimit};

use crate::hello::{Dropped, Identity, Judge, Listener, Open};
use crate::socket::{Stream, errno_text};

/// The most of them at once, where the process may have enough descriptors.
const MOST: u64 = 256;
/// The share of the process's descriptors that they may have.
const SHARE: u64 = 4;
/// The most of them once descriptors have run out again and again.
const FEW: usize = 8;
/// How long each may take for its hello.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where connections go whose hello is over.
pub(crate) trait Door: Judge {
    /// Takes a connection that was granted.
    fn enter(&mut self, stream: Stream, open: Open);
    /// Is told of one that was not.
    fn turned_away(&mut self, from: SocketAddr, dropped: Dropped);
}

struct Entry {
    stream: Stream,
    from: SocketAddr,
    hello: Listener,
    /// Whether it has said anything.
    heard: bool,
    until: Instant,
}

/// The connections whose hello is not over, oldest first.
pub(crate) struct Pending {
    entries: VecDeque<Entry>,
    most: usize,
}

impl Default for Pending {
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self { entries: VecDeque::new(), most: ((limit / SHARE).min(MOST) as usize).max(FEW) }
    }
}

impl Pending {
    /// Takes a new connection; where there are too many, another goes.
    pub(crate) fn add(&mut self, stream: Stream, from: SocketAddr, identity: &Identity, now: Instant) {
        if self.entries.len() >= self.most {
            self.drop_one();
        }
        let (hello, until) = (Listener::new(identity), now + PATIENCE);
        self.entries.push_back(Entry { stream, from, hello, heard: false, until });
    }

    /// How many may be added before those that were added before are stepped: fewer than there is room for, so that a
    /// flood does not push out what had no time to say anything.
    pub(crate) fn batch(&self) -> usize {
        (self.most / 4).max(1)
    }

    /// Gives descriptors back because the process has none left: drops half of the connections, and holds no more than
    /// the rest from now on. `false` if there was none.
    pub(crate) fn give_way(&mut self) -> bool {
        let before = self.entries.len();
        while self.entries.len() > before / 2 {
            self.drop_one();
        }
        self.most = self.most.min((before / 2).max(FEW));
        before > 0
    }

    /// Drops the oldest of those that have said nothing yet: a rank speaks at once. Else the oldest.
    fn drop_one(&mut self) {
        let silent = self.entries.iter().position(|entry| !entry.heard);
        self.entries.remove(silent.unwrap_or(0));
    }

    /// What the owner must wait for, in order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.entries.iter().map(|entry| PollFd::from_borrowed_fd(entry.stream.as_fd(), PollFlags::IN))
    }

    /// When the oldest's patience ends.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.entries.front().map(|entry| entry.until)
    }

    /// Goes on with every hello whose connection has something to read; `ready` is in the order of
    /// [`sources`](Pending::sources), and nothing may have been added since.
    pub(crate) fn step(&mut self, now: Instant, ready: impl IntoIterator<Item = bool>, door: &mut dyn Door) {
        for ready in ready {
            let Some(mut entry) = self.entries.pop_front() else { return };
            match if ready { entry.step(door) } else { Step::Waits } {
                Step::Waits if now < entry.until => self.entries.push_back(entry),
                Step::Waits => {
                    let text = "did not finish its hello in time".into();
                    door.turned_away(entry.from, Dropped { text, open: None, rejection: None });
                }
                Step::Granted(open) => door.enter(entry.stream, open),
                Step::Over => {}
            }
        }
    }
}

enum Step {
    Waits,
    Granted(Open),
    Over,
}

impl Entry {
    fn step(&mut self, door: &mut dyn Door) -> Step {
        let stranger = |text: String| Dropped { text, open: None, rejection: None };
        let mut into = [0; 1024];
        loop {
            let want = self.hello.needs().min(into.len());
            let got = match self.stream.recv(&mut into[..want]) {
                Ok(None) => return Step::Waits,
                Ok(Some(0)) => {
                    door.turned_away(self.from, stranger("closed the connection in its hello".into()));
                    return Step::Over;
                }
                Ok(Some(n)) => n,
                Err(e) => {
                    door.turned_away(self.from, stranger(format!("broke the connection: {}", errno_text(&e))));
                    return Step::Over;
                }
            };
            self.heard = true;
            let result = self.hello.feed(&into[..got], door);
            // A new connection has room for a hello's few bytes; one that has not is of no use.
            let output = self.hello.take_output();
            let written =
                output.is_empty() || matches!(self.stream.send(&[IoSlice::new(&output)]), Ok(n) if n == output.len());
            match result {
                Err(dropped) => {
                    door.turned_away(self.from, dropped);
                    return Step::Over;
                }
                Ok(()) if !written => {
                    door.turned_away(self.from, stranger("does not take the answer to its hello".into()));
                    return Step::Over;
                }
                Ok(()) => {}
            }
            if let Some(open) = self.hello.accepted() {
                return Step::Granted(open.clone());
            }
        }
    }
}
