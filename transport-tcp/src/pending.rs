//! Connections that others made and whose hello is not over yet.
//!
//! Anybody can connect: a scanner, an HTTP client, something that says nothing at all. So these are few, short-lived,
//! and cost nothing but a descriptor each; what they send is judged byte by byte as it comes.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::hello::{Dropped, Identity, Judge, Listener, Open};
use crate::socket::{Stream, errno_text};

/// The most of them at once; another one pushes out the oldest.
const MOST: usize = 256;
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
    until: Instant,
}

/// The connections whose hello is not over, oldest first.
#[derive(Default)]
pub(crate) struct Pending {
    entries: VecDeque<Entry>,
}

impl Pending {
    /// Takes a new connection.
    pub(crate) fn add(&mut self, stream: Stream, from: SocketAddr, identity: &Identity, now: Instant) {
        if self.entries.len() >= MOST {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { stream, from, hello: Listener::new(identity), until: now + PATIENCE });
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
