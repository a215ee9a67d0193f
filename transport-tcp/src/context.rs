//! [`Context`]: what is fixed about this rank and its group from the first call on, with what it says and logs as this
//! rank. No state, no sockets.

use std::fmt;
use std::time::Instant;

use nuvec_transport::{Error, Kind, Peer, Result};

use crate::hello::{Identity, Open, Role};
use crate::{Address, Options};

/// The session of a hello while its sender forms.
pub(crate) const NO_SESSION: [u8; 16] = [0; 16];

/// This rank, its group and its options.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Connections per neighbour.
    pub(crate) connections: usize,
    pub(crate) nodes: Vec<Vec<Address>>,
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    /// What the control handler wants to be the same on every rank.
    pub(crate) agreement: u32,
    /// When the transport began; the control handler's clock starts here.
    pub(crate) began: Instant,
}

impl Context {
    /// Checks what the caller gave. Errors: [`Kind::Misuse`].
    pub(crate) fn new(nodes: &[Vec<Address>], rank: usize, options: &Options) -> Result<Self> {
        let misuse = |what: String| Error::new(Kind::Misuse, what).with_rank(rank);
        let size = nodes.len();
        if rank >= size {
            return Err(misuse(format!("there is no rank {rank} in a list of {size} ranks")));
        }
        if u32::try_from(size).is_err() {
            return Err(misuse(format!("{size} ranks are more than the protocol can count")));
        }
        let connections = nodes[rank].len();
        if let Some(empty) = nodes.iter().position(Vec::is_empty) {
            return Err(misuse(format!("rank {empty} has no address")));
        }
        if let Some(other) = nodes.iter().position(|all| all.len() != connections) {
            return Err(misuse(format!(
                "rank {other} has {} addresses and rank {rank} has {connections}; every rank needs equally many",
                nodes[other].len()
            )));
        }
        if u16::try_from(connections).is_err() {
            return Err(misuse(format!(
                "{connections} connections per neighbour are more than the protocol can count"
            )));
        }
        let identity = Identity { name: options.name.clone(), key: options.key.clone() };
        Ok(Self {
            rank,
            size,
            connections,
            nodes: nodes.to_vec(),
            identity,
            options: options.clone(),
            agreement: 0,
            began: Instant::now(),
        })
    }

    /// The neighbour that this rank dials.
    pub(crate) fn right(&self) -> usize {
        (self.rank + 1) % self.size
    }

    /// The neighbour that dials this rank.
    pub(crate) fn left(&self) -> usize {
        (self.rank + self.size - 1) % self.size
    }

    /// Rank `rank`, by its address `index`.
    pub(crate) fn peer(&self, rank: usize, index: usize) -> Peer {
        Peer::new(rank, self.nodes[rank][index].to_string())
    }

    /// What this rank asks of rank `to` in a hello.
    pub(crate) fn open(&self, role: Role, index: usize, to: usize, session: [u8; 16], group: u64) -> Open {
        Open {
            role,
            index: u16::try_from(index).unwrap_or(u16::MAX),
            connections: u16::try_from(self.connections).unwrap_or(u16::MAX),
            size: u32::try_from(self.size).unwrap_or(u32::MAX),
            from: u32::try_from(self.rank).unwrap_or(u32::MAX),
            to: u32::try_from(to).unwrap_or(u32::MAX),
            session,
            group,
        }
    }

    /// Logs a step of connecting: as `info` when the user asked for it, else as `debug`.
    pub(crate) fn step(&self, what: fmt::Arguments<'_>) {
        let rank = self.rank;
        if self.options.verbose {
            tracing::info!("rank {rank}: {what}")
        } else {
            tracing::debug!("rank {rank}: {what}")
        }
    }

    /// An error that this rank reports.
    pub(crate) fn error(&self, kind: Kind, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
        Error::new(kind, what).with_rank(self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_a_ring_is_misuse_that_says_why() {
        let a = || Address::new("127.0.0.1", 5000);
        let check = |nodes: &[Vec<Address>], rank, expected: &str| {
            let e = Context::new(nodes, rank, &Options::default()).unwrap_err();
            assert_eq!(e.kind(), Kind::Misuse);
            assert!(e.to_string().contains(expected), "{e}");
        };
        check(&[], 0, "no rank 0 in a list of 0");
        check(&[vec![a()]], 1, "no rank 1 in a list of 1");
        check(&[vec![a()], vec![]], 0, "rank 1 has no address");
        check(&[vec![]], 0, "rank 0 has no address");
        check(&[vec![a()], vec![a(), a()]], 0, "rank 1 has 2 addresses and rank 0 has 1");
    }
}
