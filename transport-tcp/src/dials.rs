//! The dials of this rank, and what each is for.

use std::fmt;
use std::time::Instant;

use nuvec_transport::{Error, GroupId};
use rustix::event::PollFd;

use crate::dial::Dial;
use crate::hello::Identity;
use crate::pending::Pending;
use crate::resolve::Resolver;
use crate::socket::Stream;
use crate::streams::StreamId;

/// What a connection that is being dialled will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The control link to the right.
    Control,
    /// A ring connection to the right.
    Ring(usize),
    /// A connection to the right neighbour in the ring of a group of some of the ranks.
    ChildRing { group: GroupId, right: usize, index: usize },
    /// A stripe of a stream.
    Stripe(StreamId, usize),
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control => f.write_str("control"),
            Self::Ring(index) => write!(f, "ring {index}"),
            Self::ChildRing { index, .. } => write!(f, "ring {index} of a new group"),
            Self::Stripe(_, index) => write!(f, "stripe {index}"),
        }
    }
}

impl Purpose {
    /// Whether it is a connection to the right neighbour of all ranks.
    pub(crate) fn is_to_right(&self) -> bool {
        matches!(self, Self::Control | Self::Ring(_))
    }

    /// Whether it is a ring connection of that group of some of the ranks.
    pub(crate) fn is_ring_of(&self, of: GroupId) -> bool {
        matches!(self, Self::ChildRing { group, .. } if *group == of)
    }

    /// Whether it is a stripe of that stream.
    pub(crate) fn is_stripe_of(&self, of: StreamId) -> bool {
        matches!(self, Self::Stripe(key, _) if *key == of)
    }

    /// Whether it is for a stream of that group, or for its ring if it is not the root.
    pub(crate) fn is_of(&self, of: GroupId) -> bool {
        self.is_ring_of(of) || matches!(self, Self::Stripe((group, _), _) if *group == of)
    }
}

/// Every dial that is not over.
#[derive(Default)]
pub(crate) struct Dials {
    all: Vec<(Purpose, Dial)>,
}

impl Dials {
    /// Begins one.
    pub(crate) fn add(&mut self, purpose: Purpose, dial: Dial) {
        self.all.push((purpose, dial));
    }

    /// Goes on with every one, and returns those that are over.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        resolver: &mut Resolver,
        identity: &Identity,
        pending: &mut Pending,
    ) -> Vec<(Purpose, Result<Stream, Error>)> {
        let mut over = Vec::new();
        self.all.retain_mut(|(purpose, dial)| match dial.step(now, resolver, identity, pending) {
            None => true,
            Some(result) => {
                over.push((*purpose, result));
                false
            }
        });
        over
    }

    /// Gives up some of them.
    pub(crate) fn cancel(&mut self, which: impl Fn(&Purpose) -> bool) {
        self.all.retain(|(purpose, _)| !which(purpose));
    }

    /// Why the first of some of them does not stand.
    pub(crate) fn unreached(&self, which: impl Fn(&Purpose) -> bool, now: Instant) -> Option<Error> {
        self.all.iter().find(|(purpose, _)| which(purpose)).map(|(_, dial)| dial.error(now))
    }

    /// What the owner must wait for.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.all.iter().filter_map(|(_, dial)| dial.source())
    }

    /// When one must be stepped at the latest.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.all.iter().map(|(_, dial)| dial.timer()).min()
    }
}
