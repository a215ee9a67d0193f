//! Which bytes a lane sends and receives, step by step. Pure arithmetic: no data, no channel, no clock.
//!
//! A *lane* is one byte stream to one neighbour and one from the other, on one connection. Its part of the data is cut
//! into *segments*. A ring collective is a rotation: in step *s* a lane sends the segment that it received in step
//! *s−1* (see `engine`). Everything here follows from values that all ranks share, so all ranks make the same
//! plan. What there is of this where every two ranks have a channel is in [`mesh`].

pub mod mesh;

use std::ops::Range;

/// Where a lane sends to. Its segments rotate the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Sends to rank + 1, receives from rank − 1 (MLX's direction −1: segment indices fall).
    Right,
    /// Sends to rank − 1, receives from rank + 1 (MLX's direction +1: segment indices rise).
    Left,
}

/// A rank's place in its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The rank, below `size`.
    pub rank: usize,
    /// The number of ranks, at least 1.
    pub size: usize,
}

impl Place {
    /// The rank `distance` places to the right.
    pub fn right(self, distance: usize) -> usize {
        (self.rank + distance) % self.size
    }

    /// The rank `distance` places to the left.
    pub fn left(self, distance: usize) -> usize {
        (self.rank + self.size - distance % self.size) % self.size
    }
}

/// One lane of a collective: where its segments lie, and in which order they move. Lengths and offsets
/// are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanePlan {
    /// Where it sends to.
    pub direction: Direction,
    /// The number of segments.
    pub segments: usize,
    /// The segment sent in the first step.
    pub first_sent: usize,
    /// The segment received in the first step.
    pub first_received: usize,
    /// How many segments it sends.
    pub sends: usize,
    /// How many segments it receives.
    pub receives: usize,
    /// How many of the received ones, the first, are reduced into the data; the others replace it.
    pub reducing: usize,
    /// Bytes that it may send before it has received any: the first segment sent, or none where the lane only relays.
    pub head: usize,
    /// Where segment 0 begins in the data.
    base: usize,
    /// From one segment's beginning to the next one's.
    stride: usize,
    /// A segment's length, unless `total` ends before it does.
    each: usize,
    /// The length of all segments together.
    total: usize,
}

impl LanePlan {
    /// The length of segment `j`, in bytes.
    pub fn len(&self, j: usize) -> usize {
        ((j + 1) * self.each).min(self.total) - (j * self.each).min(self.total)
    }

    /// Where segment `j` lies in the data.
    pub fn range(&self, j: usize) -> Range<usize> {
        let len = self.len(j);
        let start = if len == 0 { self.base } else { self.base + j * self.stride };
        start..start + len
    }

    /// The segment sent in step `s`.
    pub fn sent(&self, s: usize) -> usize {
        self.turn(self.first_sent, s)
    }

    /// The segment received in step `s`.
    pub fn received(&self, s: usize) -> usize {
        self.turn(self.first_received, s)
    }

    /// How many bytes it receives.
    pub fn bytes_received(&self) -> usize {
        (0..self.receives).map(|s| self.len(self.received(s))).sum()
    }

    fn turn(&self, first: usize, s: usize) -> usize {
        let place = Place { rank: first, size: self.segments };
        match self.direction {
            Direction::Right => place.left(s),
            Direction::Left => place.right(s),
        }
    }

    /// A rotation of `place.size` segments that starts with sending segment `first`.
    fn rotation(
        place: Place,
        direction: Direction,
        first: impl Fn(Direction) -> usize,
        cut: Cut,
        steps: Moves,
    ) -> Self {
        let mut plan = Self {
            direction,
            segments: place.size,
            first_sent: first(direction),
            first_received: 0,
            sends: steps.sends,
            receives: steps.receives,
            reducing: steps.reducing,
            head: 0,
            base: cut.base,
            stride: cut.stride,
            each: cut.each,
            total: cut.total,
        };
        plan.first_received = plan.turn(plan.first_sent, 1);
        plan.head = if plan.sends > 0 { plan.len(plan.first_sent) } else { 0 };
        plan
    }
}

/// Where a lane's segments lie: the fields of [`LanePlan`].
struct Cut {
    base: usize,
    stride: usize,
    each: usize,
    total: usize,
}

/// How many segments a lane moves.
struct Moves {
    sends: usize,
    receives: usize,
    reducing: usize,
}

/// The direction of lane `i`: there are two lanes to a connection, the first of which sends to the right.
fn direction_of(i: usize) -> Direction {
    if i.is_multiple_of(2) { Direction::Right } else { Direction::Left }
}

/// The direction of MLX's lane `i`: there, the first of a connection's two lanes sends to the left.
fn mlx_direction_of(i: usize) -> Direction {
    if i.is_multiple_of(2) { Direction::Left } else { Direction::Right }
}

/// Up to how many bytes per segment (all-reduce) or per rank (all-gather) MLX adds no further lane.
const MLX_LANE_BYTES: usize = 262_144;

/// All-reduce of `elements` of `width` bytes: lane i works on the i-th of `lanes` equal parts, in `size` segments of
/// which each is reduced once round the ring and then copied once round it. Segment j starts at rank j and is reduced as
/// ((x_j + x_{j+1}) + x_{j+2}) + … by a lane to the right, with falling indices by one to the left.
pub fn all_reduce(place: Place, elements: usize, width: usize, lanes: usize) -> Vec<LanePlan> {
    reducing_rings(place, elements, width, (0..lanes.max(1)).map(direction_of))
}

/// MLX's all-reduce of `elements` of `width` bytes over `connections` connections per neighbour
/// (`mlx/distributed/ring/ring.cpp`): [`all_reduce`] with other lanes. Lane i is on connection ⌊i/2⌋; even ones send to
/// the left, odd ones to the right. Of fewer elements than ranks, also of none, it is an all-reduce of `size` elements,
/// padded with zeros, on one lane to the right on connection 0.
pub fn mlx_all_reduce(place: Place, elements: usize, width: usize, connections: usize) -> Vec<LanePlan> {
    if elements < place.size {
        return reducing_rings(place, place.size, width, std::iter::once(Direction::Right));
    }
    let lanes = (elements * width / (place.size * MLX_LANE_BYTES)).clamp(1, 2 * connections.max(1));
    reducing_rings(place, elements, width, (0..lanes).map(mlx_direction_of))
}

/// As [`all_reduce`], with the directions of the lanes.
fn reducing_rings(
    place: Place,
    elements: usize,
    width: usize,
    lanes: impl ExactSizeIterator<Item = Direction>,
) -> Vec<LanePlan> {
    let step = elements.div_ceil(lanes.len());
    let turns = place.size - 1;
    let lane = |(i, direction): (usize, Direction)| {
        let (start, end) = ((i * step).min(elements), ((i + 1) * step).min(elements));
        let each = (end - start).div_ceil(place.size) * width;
        let cut = Cut { base: start * width, stride: each, each, total: (end - start) * width };
        let moves = Moves { sends: 2 * turns, receives: 2 * turns, reducing: turns };
        LanePlan::rotation(place, direction, |_| place.rank, cut, moves)
    };
    lanes.enumerate().map(lane).collect()
}

/// Reduce-scatter of `size` blocks of `elements` of `width` bytes each: rank r ends with block r reduced, the other
/// blocks with partial results. Block r is reduced in the ring's order, ending with rank r's own part.
pub fn reduce_scatter(place: Place, elements: usize, width: usize, lanes: usize) -> Vec<LanePlan> {
    let turns = place.size - 1;
    let first = |direction| match direction {
        Direction::Right => place.left(1),
        Direction::Left => place.right(1),
    };
    let moves = |_| Moves { sends: turns, receives: turns, reducing: turns };
    blocks(place, elements * width, width, (0..lanes.max(1)).map(direction_of), first, moves)
}

/// All-gather of `bytes` per rank: every rank's block goes once round the ring, lane i moving the i-th of `lanes` equal
/// parts of every block.
pub fn all_gather(place: Place, bytes: usize, lanes: usize) -> Vec<LanePlan> {
    gathering_rings(place, bytes, (0..lanes.max(1)).map(direction_of))
}

/// MLX's all-gather of `bytes` per rank over `connections` connections per neighbour (`mlx/distributed/ring/ring.cpp`):
/// [`all_gather`] with lanes as [`mlx_all_reduce`] has them.
pub fn mlx_all_gather(place: Place, bytes: usize, connections: usize) -> Vec<LanePlan> {
    let lanes = (bytes / MLX_LANE_BYTES).clamp(1, 2 * connections.max(1));
    gathering_rings(place, bytes, (0..lanes).map(mlx_direction_of))
}

/// As [`all_gather`], with the directions of the lanes.
fn gathering_rings(place: Place, bytes: usize, lanes: impl ExactSizeIterator<Item = Direction>) -> Vec<LanePlan> {
    let turns = place.size - 1;
    blocks(place, bytes, 1, lanes, |_| place.rank, |_| Moves { sends: turns, receives: turns, reducing: 0 })
}

/// All-gather of `bytes` per rank in ⌊size/2⌋ hops: every block goes both ways round, half as far. Where the two ways
/// would meet in the same block (an even size), only the way to the right brings it. Two lanes on connection 0, or one.
pub fn both_ways(place: Place, bytes: usize) -> Vec<LanePlan> {
    let hops = |direction| match direction {
        Direction::Right => place.size / 2,
        Direction::Left => (place.size - 1) / 2,
    };
    let moves = |direction| Moves { sends: hops(direction), receives: hops(direction), reducing: 0 };
    let cut = || Cut { base: 0, stride: bytes, each: bytes, total: bytes * place.size };
    let lane = |i| LanePlan::rotation(place, direction_of(i), |_| place.rank, cut(), moves(direction_of(i)));
    (0..if hops(Direction::Left) > 0 { 2 } else { 1 }).map(lane).collect()
}

/// Broadcast of `bytes` from rank `root`: lane i carries the i-th of `lanes` equal parts along the chain from the root to
/// its other neighbour.
pub fn broadcast(place: Place, root: usize, bytes: usize, lanes: usize) -> Vec<LanePlan> {
    let step = bytes.div_ceil(lanes.max(1));
    let lane = |i: usize| {
        let direction = direction_of(i);
        let (start, end) = ((i * step).min(bytes), ((i + 1) * step).min(bytes));
        let distance = match direction {
            Direction::Right => place.left(root),
            Direction::Left => (root + place.size - place.rank) % place.size,
        };
        LanePlan {
            direction,
            segments: 1,
            first_sent: 0,
            first_received: 0,
            sends: usize::from(distance + 1 < place.size),
            receives: usize::from(distance > 0),
            reducing: 0,
            head: if distance == 0 && place.size > 1 { end - start } else { 0 },
            base: start,
            stride: 0,
            each: end - start,
            total: end - start,
        }
    };
    (0..lanes.max(1)).map(lane).collect()
}

/// A rotation of one block of `bytes` per rank, of which each lane moves an equal part, cut at multiples of `width`.
fn blocks(
    place: Place,
    bytes: usize,
    width: usize,
    lanes: impl ExactSizeIterator<Item = Direction>,
    first: impl Fn(Direction) -> usize,
    moves: impl Fn(Direction) -> Moves,
) -> Vec<LanePlan> {
    let per = (bytes / width).div_ceil(lanes.len()) * width;
    let lane = |(i, direction): (usize, Direction)| {
        let (start, end) = ((i * per).min(bytes), ((i + 1) * per).min(bytes));
        let each = end - start;
        let cut = Cut { base: start, stride: bytes, each, total: each * place.size };
        LanePlan::rotation(place, direction, &first, cut, moves(direction))
    };
    lanes.enumerate().map(lane).collect()
}

/// Lends each lane its segments of `data`, lane by lane in the order of `plans`, each by segment index.
///
/// No two lanes of a plan share a byte, so this cuts `data` once from front to back.
pub fn lend<'d>(data: &'d mut [u8], plans: &[LanePlan]) -> Vec<Vec<&'d mut [u8]>> {
    let mut pieces: Vec<(Range<usize>, usize, usize)> = Vec::with_capacity(plans.len() * plans[0].segments);
    for (lane, plan) in plans.iter().enumerate() {
        pieces.extend((0..plan.segments).map(|j| (plan.range(j), lane, j)).filter(|p| !p.0.is_empty()));
    }
    pieces.sort_unstable_by_key(|p| p.0.start);
    let mut lanes: Vec<Vec<&mut [u8]>> =
        plans.iter().map(|p| (0..p.segments).map(|_| &mut [] as &mut [u8]).collect()).collect();
    let (mut rest, mut at) = (data, 0);
    for (range, lane, j) in pieces {
        let (_, from) = rest.split_at_mut(range.start - at);
        let (piece, after) = from.split_at_mut(range.len());
        lanes[lane][j] = piece;
        (rest, at) = (after, range.end);
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> impl Iterator<Item = Place> {
        (1..=6).flat_map(|size| (0..size).map(move |rank| Place { rank, size }))
    }

    #[test]
    fn what_a_rank_sends_is_what_its_neighbour_receives() {
        for size in 1..=6 {
            for lanes in 1..=6 {
                for len in [0, 1, 3, 17, 64] {
                    let plans = |rank| {
                        let place = Place { rank, size };
                        [
                            all_reduce(place, len, 4, lanes),
                            reduce_scatter(place, len, 4, lanes),
                            all_gather(place, len, lanes),
                            both_ways(place, len),
                            broadcast(place, size / 2, len, lanes),
                            mlx_all_reduce(place, len, 4, lanes),
                            mlx_all_reduce(place, len << 17, 4, lanes),
                            mlx_all_gather(place, len << 14, lanes),
                        ]
                    };
                    let all: Vec<_> = (0..size).map(plans).collect();
                    for rank in 0..size {
                        for (kind, mine) in all[rank].iter().enumerate() {
                            for (i, lane) in mine.iter().enumerate() {
                                let to = match lane.direction {
                                    Direction::Right => (rank + 1) % size,
                                    Direction::Left => (rank + size - 1) % size,
                                };
                                let theirs = &all[to][kind][i];
                                assert_eq!(lane.direction, theirs.direction);
                                if size > 1 {
                                    let sent: Vec<_> = (0..lane.sends).map(|s| lane.range(lane.sent(s))).collect();
                                    let got: Vec<_> =
                                        (0..theirs.receives).map(|s| theirs.range(theirs.received(s))).collect();
                                    assert_eq!(sent, got, "kind {kind}, lane {i}, rank {rank} of {size}, {len}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_rank_sends_what_it_received_one_step_before() {
        for place in places() {
            for plan in all_reduce(place, 23, 2, 4).iter().chain(&reduce_scatter(place, 5, 2, 3)) {
                for s in 1..plan.sends {
                    assert_eq!(plan.sent(s), plan.received(s - 1));
                }
                assert_eq!(plan.head, if place.size > 1 { plan.len(plan.first_sent) } else { 0 });
            }
        }
    }

    #[test]
    fn lanes_cover_the_data_once() {
        for place in places() {
            for len in 0..50 {
                for lanes in 1..=6 {
                    let mut data = vec![0_u8; len * 4];
                    for part in lend(&mut data, &all_reduce(place, len, 4, lanes)).into_iter().flatten() {
                        part.iter_mut().for_each(|b| *b += 1);
                    }
                    assert!(data.iter().all(|&b| b == 1));
                    let mut data = vec![0_u8; len * place.size];
                    for part in lend(&mut data, &all_gather(place, len, lanes)).into_iter().flatten() {
                        part.iter_mut().for_each(|b| *b += 1);
                    }
                    assert!(data.iter().all(|&b| b == 1));
                }
            }
        }
    }

    #[test]
    fn both_ways_brings_every_block_once_in_half_the_hops() {
        for place in places() {
            let mut seen = vec![0; place.size];
            seen[place.rank] += 1;
            for plan in both_ways(place, 8) {
                assert!(plan.receives <= place.size / 2);
                (0..plan.receives).for_each(|s| seen[plan.received(s)] += 1);
            }
            assert!(seen.iter().all(|&n| n == 1), "{place:?}: {seen:?}");
        }
    }

    #[test]
    fn mlxs_lanes_are_two_to_a_connection_and_the_first_sends_to_the_left() {
        use Direction::{Left, Right};
        let place = Place { rank: 1, size: 3 };
        let directions = |plans: Vec<LanePlan>| plans.iter().map(|p| p.direction).collect::<Vec<_>>();
        let threshold = |lanes: usize| lanes * 3 * MLX_LANE_BYTES / 4;
        for len in [3, 4, threshold(1), threshold(2) - 1] {
            assert_eq!(directions(mlx_all_reduce(place, len, 4, 2)), [Left]);
        }
        assert_eq!(directions(mlx_all_reduce(place, threshold(2), 4, 2)), [Left, Right]);
        assert_eq!(directions(mlx_all_reduce(place, threshold(4) - 1, 4, 2)), [Left, Right, Left]);
        for lanes in [4, 5, 100] {
            assert_eq!(directions(mlx_all_reduce(place, threshold(lanes), 4, 2)), [Left, Right, Left, Right]);
        }
        // Fewer elements than ranks go another way, as one element for each rank.
        for len in 0..3 {
            let plans = mlx_all_reduce(place, len, 4, 2);
            assert!(plans.iter().all(|p| p.range(2) == (8..12)));
            assert_eq!(directions(plans), [Right]);
        }
        assert_eq!(directions(mlx_all_gather(place, 0, 2)), [Left]);
        assert_eq!(directions(mlx_all_gather(place, 2 * MLX_LANE_BYTES - 1, 2)), [Left]);
        assert_eq!(directions(mlx_all_gather(place, 3 * MLX_LANE_BYTES, 2)), [Left, Right, Left]);
        assert_eq!(directions(mlx_all_gather(place, 9 * MLX_LANE_BYTES, 1)), [Left, Right]);
    }
}
