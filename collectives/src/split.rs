//! Groups within groups.

use std::sync::Arc;

use nuvec_transport::{Deadline, Error, Fabric, GroupId, Kind, Links, Result, RingLinks, Wake, wait_any};

use crate::call::Operation;
use crate::communicator::{Communicator, Inner};
use crate::drive::has_left;

/// The longest reason, in bytes, that a rank gives the others for not being able to join.
const REASON: usize = 254;

impl<F: Fabric> Communicator<F> {
    /// The group of the ranks that give the same `color`, ordered by `key`, then by rank; a negative key counts as this
    /// rank. Every rank of this group calls it, as any collective. The new group's operations and this one's may follow
    /// each other in any order; a failure of one does not touch the other.
    ///
    /// Blocks until all ranks of this group have their part. Errors: see [`Communicator`]; and if one rank cannot connect
    /// its part, every rank's call fails with that rank's reason, and this group lives on; [`Kind::Unsupported`] if the
    /// transport connects no further groups, which a mesh's does not.
    pub fn split(&self, color: i32, key: i32) -> Result<Self> {
        let mut inner = self.begin()?;
        let mine = [color.to_le_bytes(), key.to_le_bytes()].concat();
        let mut all = vec![0; mine.len() * self.size()];
        self.gather_in(&mut inner, Operation::Split, &mine, &mut all)?;
        let half = |bytes: &[u8], at: usize| i32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let mut ordered: Vec<(i64, usize)> = all
            .chunks_exact(mine.len())
            .enumerate()
            .filter(|(_, bytes)| half(bytes, 0) == color)
            .map(|(rank, bytes)| (i64::from(half(bytes, 4)), rank))
            .map(|(key, rank)| (if key < 0 { rank as i64 } else { key }, rank))
            .collect();
        ordered.sort_unstable();
        let members: Vec<usize> = ordered.iter().map(|&(_, rank)| self.members[rank]).collect();
        let id = child(self.id, inner.sequence, color);
        let wake = Wake::new().map(Arc::new);
        let ring = wake.as_ref().map_err(Error::clone).and_then(|wake| self.open_ring(&inner, id, &members, wake));
        let agreed = self.agree(&mut inner, &ring);
        if let Err(e) = agreed.and(ring.as_ref().map(drop).map_err(Error::clone)) {
            self.fabric.leave(id);
            // What a transport cannot do, no rank can: its own words say more than the first rank's.
            return Err(ring.err().filter(|own| own.kind() == Kind::Unsupported).unwrap_or(e));
        }
        let (fabric, control) = (self.fabric.clone(), self.control.clone());
        Ok(Self::join(fabric, control, id, members, ring?.map(Links::Ring), wake?, self.options))
    }

    /// Connects the new group's ring; a group of one has none.
    fn open_ring(
        &self,
        inner: &Inner<F>,
        id: GroupId,
        members: &[usize],
        wake: &Arc<Wake>,
    ) -> Result<Option<RingLinks<F::Channel>>> {
        let n = members.len();
        if n == 1 {
            return Ok(None);
        }
        let me = members.iter().position(|&m| m == self.fabric.rank()).unwrap_or_default();
        let (right, left) = (members[(me + 1) % n], members[(me + n - 1) % n]);
        // Half the time-out, so that ranks which are done do not lose patience with one that tries to the end.
        let deadline = Deadline::after(self.fabric.timeout() / 2);
        self.fabric.open_ring(id, right, left, wake, deadline);
        loop {
            if let Some(opened) = self.fabric.ring_opened(id) {
                return opened.map(Some);
            }
            self.group.check()?;
            if let Some(gone) = [right, left].into_iter().find(|&neighbour| self.control.is_gone(neighbour)) {
                return Err(has_left(&self.fabric.peer(gone)));
            }
            if !wait_any(&[wake.park(), inner.wake.park()], deadline)? {
                let text = format!("the ring of a new group with ranks {right} and {left} did not connect in time");
                return Err(Error::new(Kind::TimedOut, text));
            }
            wake.drain();
            inner.wake.drain();
        }
    }

    /// Tells every rank of this group whether this rank has its part, and hears the same of them. Errors: one has not.
    fn agree(&self, inner: &mut Inner<F>, ring: &Result<Option<RingLinks<F::Channel>>>) -> Result<()> {
        let mut mine = [0; REASON + 2];
        if let Err(e) = ring {
            let text = e.to_string();
            let n = text.floor_char_boundary(REASON);
            mine[..2].copy_from_slice(&(n.max(1) as u16).to_le_bytes());
            mine[2..][..n].copy_from_slice(&text.as_bytes()[..n]);
        }
        let mut all = vec![0; mine.len() * self.size()];
        self.gather_in(inner, Operation::Split, &mine, &mut all)?;
        for (rank, part) in all.chunks_exact(mine.len()).enumerate() {
            let n = usize::from(u16::from_le_bytes([part[0], part[1]])).min(REASON);
            if n > 0 {
                let text =
                    format!("could not join its part of the split: {}", String::from_utf8_lossy(&part[2..][..n]));
                let peer = self.fabric.peer(self.members[rank]).in_group(rank);
                return Err(Error::new(Kind::Io, text).with_peer(&peer).with_rank(self.rank()));
            }
        }
        Ok(())
    }
}

/// The id of the group that is split from `parent` after its collective number `sequence`, for `color`: the same on all
/// its ranks, and no other group's. (The session that its connections carry sets runs apart.)
fn child(parent: GroupId, sequence: u64, color: i32) -> GroupId {
    // SplitMix64's finaliser over the three in turn.
    let mix = |state: u64, value: u64| {
        let mut x = state.wrapping_add(value).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    GroupId([sequence, u64::from(color as u32)].into_iter().fold(mix(0, parent.0), mix).max(1))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nuvec_transport::memory;

    use super::*;
    use crate::{Control, Options};

    #[test]
    fn a_rank_that_dies_while_the_new_ring_connects_is_named_at_once() {
        const TIMEOUT: Duration = Duration::from_secs(60);
        let controls = [Control::new(), Control::new()];
        let fabrics = memory::network(controls.iter().map(Control::handler).collect(), 1, 1 << 16, TIMEOUT);
        let formed =
            fabrics.into_iter().zip(controls).map(|(f, c)| Communicator::new(f, c, Options::default()).unwrap());
        let groups: Vec<_> = formed.collect();
        let start = Instant::now();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                groups[1].gather_in(&mut groups[1].begin().unwrap(), Operation::Split, &[0; 8], &mut [0; 16]).unwrap();
                groups[1].close();
            });
            groups[0].split(0, 0).err().expect("the other rank has died")
        });
        assert_eq!(error.peer().map(|p| p.rank), Some(1), "{error}");
        assert!(start.elapsed() < TIMEOUT / 2, "after {:?}: {error}", start.elapsed());
    }

    #[test]
    fn no_two_groups_of_a_run_share_an_id() {
        let mut ids = std::collections::BTreeSet::from([GroupId::ROOT]);
        let mut parents = vec![GroupId::ROOT];
        let mut count = 1;
        for depth in 0..2 {
            for parent in std::mem::take(&mut parents) {
                for sequence in 1..20 {
                    for color in [-1, 0, 1, 2, 1 << 30] {
                        let id = child(parent, sequence, color);
                        parents.push(id);
                        assert!(ids.insert(id), "depth {depth}");
                        count += 1;
                    }
                }
            }
        }
        assert_eq!(ids.len(), count);
    }
}
