//! The one rule that drives a mesh, as a cursor over a [`MeshPlan`]: no clock, no I/O, no data.
//!
//! What is given may be sent at once. Byte *b* that a peer gives may be applied to this rank's block once byte *b* of the
//! peer before it in the plan was applied, whole elements at a time; and byte *b* of the block may be passed on once the
//! last peer's was. Until then the bytes wait in their channel, whose backpressure holds the peer: so the order of the
//! reduction costs no memory.
//!
//! There is no deadlock, over channels that hold one byte too: what is given depends on nothing and comes first in its
//! stream, so what the first peer gives always arrives; once that is applied, the second's can be, and so on: every block
//! is completed. From then on nothing that is still to come depends on anything but room, which every rank makes. And no
//! receive overwrites bytes that are still to be sent: byte *b* of a peer's block replaces what this rank gave for it, and
//! the peer can have sent it only after it got that.

use std::ops::Range;

use crate::plan::mesh::{MeshPlan, PeerPlan};

/// How many bytes of a peer's two streams were moved.
#[derive(Debug, Clone, Copy, Default)]
struct Position {
    sent: usize,
    applied: usize,
}

/// A mesh operation's progress. Peers are counted as in the plan; ranges are bytes of the data.
#[derive(Debug)]
pub(super) struct MeshCursor {
    plan: MeshPlan,
    peers: Vec<Position>,
    /// A fault for tests to find.
    #[cfg(test)]
    pub(super) lead: usize,
}

impl MeshCursor {
    /// At the beginning of `plan`.
    pub(super) fn new(plan: MeshPlan) -> Self {
        let peers = vec![Position::default(); plan.peers.len()];
        Self {
            plan,
            peers,
            #[cfg(test)]
            lead: 0,
        }
    }

    /// The next bytes that may be sent to peer `i` now; an empty range if there are none.
    pub(super) fn sendable(&self, i: usize) -> Range<usize> {
        let PeerPlan { gives, passes, .. } = &self.plan.peers[i];
        let sent = self.peers[i].sent;
        if sent < gives.len() {
            return gives.start + sent..gives.end;
        }
        let own = self.plan.own.start;
        let passed = sent - gives.len();
        own + passed..own + if *passes { self.completed(self.peers.len()) } else { passed }
    }

    /// `n` bytes of [`sendable`](Self::sendable) were sent.
    pub(super) fn sent(&mut self, i: usize, n: usize) {
        self.peers[i].sent += n;
    }

    /// Where the next bytes from peer `i` may go now, and whether they are reduced there; an empty range if there are none,
    /// or others must come before.
    pub(super) fn receivable(&self, i: usize) -> (Range<usize>, bool) {
        let PeerPlan { takes, gets, .. } = &self.plan.peers[i];
        let MeshPlan { own, reduces, .. } = &self.plan;
        let applied = self.peers[i].applied;
        let taken = if *takes { own.len() } else { 0 };
        if applied < taken {
            return (own.start + applied..own.start + self.completed(i), *reduces);
        }
        (gets.start + applied - taken..gets.end, false)
    }

    /// `n` bytes of [`receivable`](Self::receivable) were applied to the data.
    pub(super) fn applied(&mut self, i: usize, n: usize) {
        self.peers[i].applied += n;
    }

    /// Whether what comes next from peer `i` is what it gives, which it can send whatever the other ranks do.
    pub(super) fn is_given(&self, i: usize) -> bool {
        !self.plan.peers[i].takes || self.peers[i].applied < self.plan.own.len()
    }

    /// Whether all is sent to peer `i`.
    pub(super) fn all_sent(&self, i: usize) -> bool {
        self.peers[i].sent == self.plan.sends_to(&self.plan.peers[i])
    }

    /// Whether all of peer `i` is received and applied.
    pub(super) fn all_applied(&self, i: usize) -> bool {
        self.peers[i].applied == self.plan.receives_from(&self.plan.peers[i])
    }

    /// Of how many bytes from all peers how many were received and applied.
    pub(super) fn progress(&self) -> (usize, usize) {
        let total = self.plan.peers.iter().map(|peer| self.plan.receives_from(peer)).sum();
        (self.peers.iter().map(|p| p.applied).sum(), total)
    }

    /// How many bytes of the block have what every peer before peer `i` gives for it.
    fn completed(&self, i: usize) -> usize {
        let len = self.plan.own.len();
        let before = self.plan.peers[..i].iter().rposition(|peer| peer.takes);
        let Some(before) = before else { return len };
        let applied = self.peers[before].applied;
        #[cfg(test)]
        let applied = applied + self.lead;
        applied.min(len)
    }
}
