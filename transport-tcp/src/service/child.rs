//! The service thread's part in rings of groups of some of the ranks.

use std::time::{Duration, Instant};

use nuvec_transport::{GroupId, Result};

use super::Service;
use crate::channel::TcpChannel;
use crate::dial::Dial;
use crate::dials::Purpose;
use crate::hello::Role;
use crate::rings::Side;
use crate::socket::Stream;

impl Service {
    /// Begins to dial the right neighbour of a ring. Its left dials this rank.
    pub(super) fn open_ring(&mut self, group: GroupId, right: usize, deadline: Instant, now: Instant) {
        for index in 0..self.base.context.connections {
            let open = self.base.context.open(Role::Ring, index, right, self.session, group.0);
            let address = self.base.context.nodes[right][index].clone();
            // A moment more than the ring has: its own end tells the whole story.
            let until = deadline + Duration::from_secs(1);
            let dial = Dial::new(self.base.context.peer(right, index), address, Some(open), now, until);
            self.dials.add(Purpose::ChildRing { group, right, index }, dial);
        }
    }

    /// A dial to the right neighbour of a ring is over.
    pub(super) fn child_reached(&mut self, group: GroupId, right: usize, index: usize, result: Result<Stream>) {
        match result {
            Ok(stream) => {
                let peer = self.base.context.peer(right, index);
                self.base.context.step(format_args!("connected to {peer} (ring {index} of a new group)"));
                self.rings.connected(group, Side::Right, index, TcpChannel::new(stream, peer));
            }
            Err(e) => {
                self.dials.cancel(|purpose| purpose.is_ring_of(group));
                self.rings.fail(group, e.with_rank(self.base.context.rank));
            }
        }
    }

    /// Ends the rings whose time is up.
    pub(super) fn check_rings(&mut self, now: Instant) {
        for group in self.rings.expired(now) {
            let unreached = self.dials.unreached(|purpose| purpose.is_ring_of(group), now);
            self.dials.cancel(|purpose| purpose.is_ring_of(group));
            self.rings.time_out(group, &self.base.context, unreached, self.base.listeners.shortage(), now);
        }
    }
}
