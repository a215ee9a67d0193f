//! Which bytes a rank and each of its peers send each other where every two ranks have a channel.
//!
//! Every rank has a *block*, a range of the data. Whatever the collective, the stream to a peer is: what this rank
//! *gives* for the peer's block, then this rank's own block, *passed* on as it is completed. So a stream from a peer is
//! what it gives for this rank's block, then its own block, complete. Nothing that is given depends on anything that is
//! received; what is passed depends on what was given alone.
//!
//! A block is completed in the order of the ring: rank r begins with its own part, to which it adds what rank r + 1
//! gives, then r + 2, … (modulo the number of ranks). That is the same order whoever is fast, so a rerun repeats every
//! bit, and one rank alone completes a block, so all ranks have the same bits. Rank order from 0 on would need room for
//! another block: the sum of the ranks below r has to be kept apart from r's own part, which lies where the sum goes.

use std::ops::Range;

use super::Place;

/// One rank's part of a collective. Ranges are bytes of its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshPlan {
    /// This rank's block. It is complete from the start where no peer gives anything for it.
    pub own: Range<usize>,
    /// Whether what is given is reduced into the block; otherwise it replaces it, and one peer gives it.
    pub reduces: bool,
    /// Every other rank's part, in the order in which what they give is applied: rank + 1, rank + 2, … modulo size.
    pub peers: Vec<PeerPlan>,
}

/// What a rank and one peer send each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerPlan {
    /// The peer.
    pub rank: usize,
    /// Sent to it first: this rank's bytes for the peer's block, as they are at the start.
    pub gives: Range<usize>,
    /// Whether this rank's block is sent to it then, as it is completed.
    pub passes: bool,
    /// Whether the peer first sends its bytes for this rank's block.
    pub takes: bool,
    /// The peer's block, if it comes from it, complete, to replace these bytes.
    pub gets: Range<usize>,
}

impl MeshPlan {
    /// A plan of what `part` says of each peer.
    fn new(place: Place, own: Range<usize>, reduces: bool, part: impl Fn(usize) -> PeerPlan) -> Self {
        Self { own, reduces, peers: (1..place.size).map(|distance| part(place.right(distance))).collect() }
    }

    /// How many bytes it sends to `peer`.
    pub fn sends_to(&self, peer: &PeerPlan) -> usize {
        peer.gives.len() + if peer.passes { self.own.len() } else { 0 }
    }

    /// How many bytes it receives from `peer`.
    pub fn receives_from(&self, peer: &PeerPlan) -> usize {
        peer.gets.len() + if peer.takes { self.own.len() } else { 0 }
    }
}

/// Block `j` of `total` bytes cut into `parts` equal ones at multiples of `width`: the last ones are shorter, or empty.
fn block(j: usize, parts: usize, total: usize, width: usize) -> Range<usize> {
    let each = (total / width).div_ceil(parts) * width;
    (j * each).min(total)..((j + 1) * each).min(total)
}

/// All-reduce of `elements` of `width` bytes in `size` blocks: everybody gives each rank its part of that rank's block,
/// and gets all blocks back.
pub fn all_reduce(place: Place, elements: usize, width: usize) -> MeshPlan {
    let range = |rank| block(rank, place.size, elements * width, width);
    MeshPlan::new(place, range(place.rank), true, |rank| PeerPlan {
        rank,
        gives: range(rank),
        passes: true,
        takes: true,
        gets: range(rank),
    })
}

/// Reduce-scatter of `size` blocks of `bytes` each: rank r ends with block r reduced, the others as they were.
pub fn reduce_scatter(place: Place, bytes: usize) -> MeshPlan {
    let range = |rank| rank * bytes..(rank + 1) * bytes;
    MeshPlan::new(place, range(place.rank), true, |rank| PeerPlan {
        rank,
        gives: range(rank),
        passes: false,
        takes: true,
        gets: 0..0,
    })
}

/// All-gather of `bytes` per rank: everybody's block goes to everybody at once.
pub fn all_gather(place: Place, bytes: usize) -> MeshPlan {
    let range = |rank| rank * bytes..(rank + 1) * bytes;
    MeshPlan::new(place, range(place.rank), false, |rank| PeerPlan {
        rank,
        gives: 0..0,
        passes: true,
        takes: false,
        gets: range(rank),
    })
}

/// Broadcast of `bytes` from rank `root` to each of the others at once.
pub fn broadcast(place: Place, root: usize, bytes: usize) -> MeshPlan {
    let from = |rank| if rank == root { 0..bytes } else { 0..0 };
    MeshPlan::new(place, from(place.rank), false, |rank| PeerPlan {
        rank,
        gives: 0..0,
        passes: place.rank == root,
        takes: false,
        gets: from(rank),
    })
}

/// Broadcast of `bytes` from rank `root` in one block for each of the others, which passes it on to the rest: the root
/// sends every byte once.
pub fn scattered_broadcast(place: Place, root: usize, bytes: usize) -> MeshPlan {
    let range = |rank| match (Place { rank, ..place }).left(root) {
        0 => 0..0,
        distance => block(distance - 1, place.size - 1, bytes, 1),
    };
    let is_root = place.rank == root;
    MeshPlan::new(place, range(place.rank), false, |rank| PeerPlan {
        rank,
        gives: if is_root { range(rank) } else { 0..0 },
        passes: !is_root && rank != root,
        takes: rank == root,
        gets: if is_root { 0..0 } else { range(rank) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind of plan, for data of `len` elements of 2 bytes, or so many bytes.
    fn plans(place: Place, len: usize) -> Vec<(&'static str, MeshPlan)> {
        let root = len % place.size;
        vec![
            ("all-reduce", all_reduce(place, len, 2)),
            ("reduce-scatter", reduce_scatter(place, 2 * len)),
            ("all-gather", all_gather(place, len)),
            ("broadcast", broadcast(place, root, len)),
            ("scattered broadcast", scattered_broadcast(place, root, len)),
        ]
    }

    #[test]
    fn what_a_rank_sends_is_what_its_peer_receives() {
        for size in 1..=6 {
            for len in [0, 1, 2, 3, 17, 64] {
                let all: Vec<_> = (0..size).map(|rank| plans(Place { rank, size }, len)).collect();
                for (rank, mine) in all.iter().enumerate() {
                    for (kind, (name, plan)) in mine.iter().enumerate() {
                        let ranks: Vec<_> = plan.peers.iter().map(|p| p.rank).collect();
                        assert_eq!(ranks, (1..size).map(|d| (rank + d) % size).collect::<Vec<_>>());
                        for to in &plan.peers {
                            let theirs = &all[to.rank][kind].1;
                            let from = theirs.peers.iter().find(|p| p.rank == rank).unwrap();
                            let taken = if from.takes { theirs.own.clone() } else { 0..0 };
                            let passed = if to.passes { plan.own.clone() } else { 0..0 };
                            let same = |a: &Range<usize>, b: &Range<usize>| a == b || (a.is_empty() && b.is_empty());
                            assert!(same(&to.gives, &taken), "{name} of {len}: {rank} gives {to:?}, {theirs:?}");
                            assert!(same(&passed, &from.gets), "{name} of {len}: {rank} passes {to:?}, {theirs:?}");
                            assert_eq!(plan.sends_to(to), theirs.receives_from(from));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_cover_the_data_once() {
        for parts in 1..=6 {
            for elements in 0..50 {
                let blocks: Vec<_> = (0..parts).flat_map(|j| block(j, parts, elements * 4, 4)).collect();
                assert_eq!(blocks, (0..elements * 4).collect::<Vec<_>>());
            }
        }
    }
}
