//! Which queue pairs a rank has: from the matrix of devices to a plan. Nothing is opened here.

use nuvec_transport::{Error, Kind, Result};

use crate::Topology;

/// What a queue pair is for, as seen from its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// One of a ring's channels to the right neighbour.
    Right,
    /// One of a ring's channels to the left neighbour.
    Left,
    /// A mesh's channel.
    Mesh,
    /// The streams between two ranks, one each way.
    Stream,
}

impl Role {
    /// Its number in a card.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Right, Self::Left, Self::Mesh, Self::Stream].into_iter().find(|role| role.code() == code)
    }

    /// What the same queue pair is at the peer.
    pub(crate) fn counterpart(self) -> Self {
        match self {
            Self::Right => Self::Left,
            Self::Left => Self::Right,
            Self::Mesh | Self::Stream => self,
        }
    }
}

/// A queue pair to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) peer: usize,
    pub(crate) role: Role,
    /// Which of several of the same role to the same peer.
    pub(crate) index: usize,
    pub(crate) device: String,
}

/// The queue pairs of `rank`. Errors: [`Kind::Misuse`]: the matrix is not one of this topology, naming row and column.
pub(crate) fn plan(devices: &[Vec<Vec<String>>], rank: usize, topology: Topology) -> Result<Vec<Planned>> {
    let size = devices.len();
    let misuse = |what: String| Err(Error::new(Kind::Misuse, what).with_rank(rank));
    if rank >= size {
        return misuse(format!("there is no rank {rank} in a matrix of {size} rows"));
    }
    if let Some((row, columns)) = devices.iter().enumerate().find(|(_, columns)| columns.len() != size) {
        return misuse(format!("row {row} of the matrix of devices has {} columns, not {size}", columns.len()));
    }
    let right = (rank + 1) % size;
    let left = (rank + size - 1) % size;
    let planned = |peer, role, index, device: &String| Planned { peer, role, index, device: device.clone() };
    let mut plan = Vec::new();
    match topology {
        _ if size == 1 => {}
        Topology::Mesh => {
            for peer in (0..size).filter(|peer| *peer != rank) {
                let Some(device) = devices[rank][peer].first() else {
                    return misuse(format!("a mesh needs a device at row {rank}, column {peer} of the matrix"));
                };
                plan.push(planned(peer, Role::Mesh, 0, device));
                plan.push(planned(peer, Role::Stream, 0, device));
            }
        }
        Topology::Ring => {
            let connections = devices[0][1].len();
            for (row, columns) in devices.iter().enumerate() {
                for column in [(row + 1) % size, (row + size - 1) % size] {
                    let found = columns[column].len();
                    if found == 0 || found != connections {
                        return misuse(format!(
                            "a ring needs equally many devices to every neighbour, at least one: row 0, column 1 of the \
                             matrix has {connections}, row {row}, column {column} has {found}"
                        ));
                    }
                }
            }
            for (peer, role) in [(right, Role::Right), (left, Role::Left)] {
                let lanes = devices[rank][peer].iter().enumerate();
                plan.extend(lanes.map(|(index, device)| planned(peer, role, index, device)));
            }
            // With two ranks, both neighbours are one.
            let neighbours = if left == right { vec![right] } else { vec![right, left] };
            for peer in neighbours {
                plan.extend(devices[rank][peer].first().map(|device| planned(peer, Role::Stream, 0, device)));
            }
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A matrix of `size` rows with `count` devices wherever `joined` says so.
    fn matrix(size: usize, count: usize, joined: impl Fn(usize, usize) -> bool) -> Vec<Vec<Vec<String>>> {
        let cell = |row, column| {
            let names = (0..count).map(|i| format!("d{row}{column}{i}"));
            if joined(row, column) { names.collect() } else { Vec::new() }
        };
        (0..size).map(|row| (0..size).map(|column| cell(row, column)).collect()).collect()
    }

    #[test]
    fn every_queue_pair_has_its_counterpart_at_the_peer() {
        for topology in [Topology::Mesh, Topology::Ring] {
            for size in 1..6 {
                for count in 1..4 {
                    let devices = matrix(size, count, |row, column| row != column);
                    let all: Vec<_> = (0..size).map(|rank| plan(&devices, rank, topology).unwrap()).collect();
                    for (rank, of_rank) in all.iter().enumerate() {
                        for planned in of_rank {
                            let other = |other: &&Planned| {
                                (other.peer, other.role, other.index)
                                    == (rank, planned.role.counterpart(), planned.index)
                            };
                            assert_eq!(
                                all[planned.peer].iter().filter(other).count(),
                                1,
                                "{topology:?} {size} {planned:?}"
                            );
                        }
                    }
                    let links = all[0].iter().filter(|planned| planned.role != Role::Stream).count();
                    let expected = match topology {
                        _ if size == 1 => 0,
                        Topology::Mesh => size - 1,
                        Topology::Ring => 2 * count,
                    };
                    assert_eq!(links, expected);
                }
            }
        }
    }

    #[test]
    fn a_matrix_that_does_not_fit_is_an_error_with_row_and_column() {
        let line = |devices: &[Vec<Vec<String>>], rank, topology| {
            let e = plan(devices, rank, topology).unwrap_err();
            assert_eq!(e.kind(), Kind::Misuse);
            e.to_string()
        };
        let holey = matrix(3, 1, |row, column| row != column && (row, column) != (0, 2));
        assert!(line(&holey, 0, Topology::Mesh).contains("row 0, column 2"));
        assert!(line(&holey, 1, Topology::Ring).contains("row 0, column 2"));
        let mut uneven = matrix(3, 2, |row, column| row != column);
        uneven[2][1].pop();
        assert!(line(&uneven, 0, Topology::Ring).contains("row 2, column 1 has 1"));
        let mut ragged = matrix(3, 1, |row, column| row != column);
        ragged[1].pop();
        assert!(line(&ragged, 0, Topology::Mesh).contains("row 1"));
        assert!(line(&ragged, 3, Topology::Mesh).contains("no rank 3"));
        assert!(line(&[], 0, Topology::Mesh).contains("no rank 0"));
    }
}
