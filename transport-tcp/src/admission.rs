//! Who may come in: the service thread's answers to a hello, and where a connection goes that was granted.

use std::net::SocketAddr;
use std::time::Instant;

use nuvec_transport::{GroupId, Rejection};

use crate::channel::TcpChannel;
use crate::context::{Context, NO_SESSION};
use crate::control::{ControlLinks, FROM_LEFT};
use crate::forming::Forming;
use crate::hello::{Answer, Dropped, Judge, Open, Place, Role};
use crate::link::FrameKind;
use crate::log::Warning;
use crate::pending::Door;
use crate::refusals::{Refusal, Refusals};
use crate::rings::{Rings, Side};
use crate::socket::Stream;
use crate::streams::Streams;

/// The parts of the service that a new connection concerns, for one round of its loop.
pub(crate) struct Admission<'a> {
    pub(crate) context: &'a Context,
    /// The group, while it forms.
    pub(crate) forming: Option<&'a mut Forming>,
    /// The run, once the group has formed.
    pub(crate) session: [u8; 16],
    pub(crate) control: &'a mut ControlLinks,
    pub(crate) streams: &'a Streams,
    pub(crate) rings: &'a Rings,
    pub(crate) away: &'a mut TurnedAway,
    pub(crate) now: Instant,
}

/// A stream's key and stripe, as its sender names them.
fn stripe(open: &Open) -> ((GroupId, usize), usize) {
    ((GroupId(open.group), open.from as usize), open.index.into())
}

/// Whether it is about a group of some of the ranks.
fn is_child(open: &Open) -> bool {
    GroupId(open.group) != GroupId::ROOT
}

impl Judge for Admission<'_> {
    fn admit(&mut self, open: &Open) -> Answer {
        let known = match open.role {
            Role::P2p => self.forming.is_none() && self.streams.accepts(GroupId(open.group)),
            Role::Ring if is_child(open) => self.forming.is_none() && self.rings.left(GroupId(open.group)).is_some(),
            Role::Control | Role::Ring => GroupId(open.group) == GroupId::ROOT,
            Role::Bootstrap => false,
        };
        match known {
            false => Answer::NotYet,
            true if open.role == Role::P2p && !self.streams.has_room(stripe(open).0) => Answer::Busy,
            true => Answer::Go,
        }
    }

    fn place(&mut self, open: &Open) -> Place {
        let taken = match (open.role, &self.forming) {
            (Role::P2p, _) => {
                let (key, index) = stripe(open);
                self.streams.is_taken(key, index)
            }
            (Role::Ring, _) if is_child(open) => self.rings.is_taken(GroupId(open.group), open.index.into()),
            (Role::Control, Some(_)) => !self.control.is_free(FROM_LEFT),
            (Role::Ring, Some(forming)) => forming.is_taken(open.index.into()),
            // A ring that has formed takes no other connection, even once one has ended.
            _ => true,
        };
        let left = match open.role {
            // A ring that was given up meanwhile refuses whoever comes.
            Role::Ring if is_child(open) => self.rings.left(GroupId(open.group)).unwrap_or(open.from as usize),
            _ => self.context.left(),
        };
        Place {
            rank: u32::try_from(self.context.rank).unwrap_or(u32::MAX),
            left: u32::try_from(left).unwrap_or(u32::MAX),
            size: u32::try_from(self.context.size).unwrap_or(u32::MAX),
            connections: u16::try_from(self.context.connections).unwrap_or(u16::MAX),
            session: if self.forming.is_some() { NO_SESSION } else { self.session },
            taken,
        }
    }
}

impl Door for Admission<'_> {
    fn enter(&mut self, stream: Stream, open: Open) {
        let (from, index) = (open.from as usize, usize::from(open.index));
        // The hello has checked both; anything else would be dropped here.
        if from >= self.context.size || index >= self.context.connections {
            return;
        }
        let peer = self.context.peer(from, index);
        self.context.step(format_args!("{peer} connected ({} {index})", open.role.name()));
        match (open.role, &mut self.forming) {
            (Role::Ring, _) if is_child(&open) => {
                self.rings.connected(GroupId(open.group), Side::Left, index, TcpChannel::new(stream, peer));
            }
            (Role::Control, Some(_)) => self.control.granted(FROM_LEFT, stream, peer),
            (Role::Ring, Some(forming)) => forming.granted(index, TcpChannel::new(stream, peer)),
            (Role::P2p, _) => self.streams.arrived((GroupId(open.group), from), index, stream, peer),
            _ => {}
        }
    }

    fn turned_away(&mut self, from: SocketAddr, dropped: Dropped) {
        let Some(refusal) = self.away.say(self.context, from, &dropped, self.now) else { return };
        match (dropped.open, &mut self.forming) {
            (Some(open), _) if open.role == Role::Ring && is_child(&open) => {
                self.rings.refused(GroupId(open.group), refusal);
            }
            (_, Some(forming)) => {
                if let Some(told) = forming.told.refused(self.context.rank, &refusal) {
                    self.control.indices().for_each(|link| self.control.send(link, FrameKind::Refusal, &told));
                }
                self.away.refusals.add(refusal);
            }
            _ => {}
        }
    }
}

/// What this rank says of the connections that it did not take.
#[derive(Debug, Default)]
pub(crate) struct TurnedAway {
    /// Those while the group formed.
    pub(crate) refusals: Refusals,
    strangers: Warning,
    refused: Warning,
}

impl TurnedAway {
    /// Logs one. What to keep of it for the error if the group does not form; nothing of strangers, and of those that come
    /// again.
    pub(crate) fn say(
        &mut self,
        context: &Context,
        from: SocketAddr,
        dropped: &Dropped,
        now: Instant,
    ) -> Option<Refusal> {
        let Dropped { text, open, rejection } = dropped;
        let rejection = match rejection {
            None => {
                self.strangers.say(now, &format!("rank {}: dropped a connection: {from} {text}", context.rank));
                return None;
            }
            Some(Rejection::NotYet | Rejection::Busy) => return None,
            Some(rejection) => *rejection,
        };
        let proved = !matches!(rejection, Rejection::Key | Rejection::Version);
        let who = match open {
            // What it says of itself is worth nothing before it has shown the key.
            Some(open) if proved => format!("{} (as rank {})", from.ip(), open.from),
            _ => from.ip().to_string(),
        };
        if let Some(line) = self.refused.line(now, &format!("refused: {who} {text}")) {
            context.step(format_args!("{line}"));
        }
        Some(Refusal { text: format!("{who} {text}"), proved, rejection })
    }
}
