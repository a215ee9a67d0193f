//! Who may come in at rank 0.

use std::net::SocketAddr;
use std::time::Instant;

use nuvec_transport::{GroupId, Peer};

use super::meeting::absent;
use crate::admission::TurnedAway;
use crate::context::{Context, NO_SESSION};
use crate::control::ControlLinks;
use crate::hello::{Answer, Dropped, Judge, Open, Place, Role};
use crate::pending;
use crate::socket::Stream;

/// The parts of the service that a new connection concerns, for one round of its loop.
pub(super) struct Door<'a> {
    pub(super) context: &'a Context,
    /// Whether ranks are still awaited.
    pub(super) meets: bool,
    /// The run, once all ranks have met.
    pub(super) session: [u8; 16],
    pub(super) control: &'a mut ControlLinks,
    pub(super) away: &'a mut TurnedAway,
    pub(super) now: Instant,
}

impl Judge for Door<'_> {
    fn admit(&mut self, open: &Open) -> Answer {
        let known = open.role == Role::Bootstrap && GroupId(open.group) == GroupId::ROOT;
        if known { Answer::Go } else { Answer::NotYet }
    }

    fn place(&mut self, open: &Open) -> Place {
        let from = open.from as usize;
        Place {
            rank: u32::try_from(self.context.rank).unwrap_or(u32::MAX),
            // A star has none, and nobody is asked for it.
            left: u32::MAX,
            size: u32::try_from(self.context.size).unwrap_or(u32::MAX),
            connections: u16::try_from(self.context.connections).unwrap_or(u16::MAX),
            session: if self.meets { NO_SESSION } else { self.session },
            taken: !self.meets || (from < self.context.size && !self.control.is_free(from)),
        }
    }
}

impl pending::Door for Door<'_> {
    fn enter(&mut self, stream: Stream, open: Open) {
        let from = open.from as usize;
        // The hello has checked it; anything else would be dropped here.
        if from >= self.context.size || !self.meets {
            return;
        }
        let peer = match stream.peer_host() {
            Some(host) => Peer::new(from, host.to_string()),
            None => absent(from, &self.context.peer(0, 0)),
        };
        self.context.step(format_args!("{peer} connected ({})", open.role.name()));
        self.control.granted(from, stream, peer);
    }

    fn turned_away(&mut self, from: SocketAddr, dropped: Dropped) {
        if let Some(refusal) = self.away.say(self.context, from, &dropped, self.now)
            && self.meets
        {
            self.away.refusals.add(refusal);
        }
    }
}
