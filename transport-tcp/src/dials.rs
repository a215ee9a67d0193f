//! The dials of this rank, and what each is for.

use std::time::Instant;

use nuvec_transport::Error;
use rustix::event::PollFd;

use crate::dial::Dial;
use crate::hello::Identity;
use crate::resolve::Resolver;
use crate::socket::Stream;
use crate::streams::Key;

/// What a connection that is being dialled will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The control link to the right.
    Control,
    /// A ring connection to the right.
    Ring(usize),
    /// A stripe of a stream.
    Stripe(Key, usize),
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
    ) -> Vec<(Purpose, Result<Stream, Error>)> {
        let mut over = Vec::new();
        self.all.retain_mut(|(purpose, dial)| match dial.step(now, resolver, identity) {
            None => true,
            Some(result) => {
                over.push((*purpose, result));
                false
            }
        });
        over
    }

    /// Gives up the stripes of one stream.
    pub(crate) fn cancel(&mut self, key: Key) {
        self.all.retain(|(purpose, _)| !matches!(purpose, Purpose::Stripe(of, _) if *of == key));
    }

    /// Why the first dial to the right that is not over does not stand.
    pub(crate) fn unreached(&self, now: Instant) -> Option<Error> {
        let to_right = |purpose: &Purpose| matches!(purpose, Purpose::Control | Purpose::Ring(_));
        self.all.iter().find(|(purpose, _)| to_right(purpose)).map(|(_, dial)| dial.error(now))
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
