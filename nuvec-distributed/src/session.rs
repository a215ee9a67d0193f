//! [`Session`]: a group with a handle, for programs that connect and close more than once.

use std::fmt;

use nuvec_collectives::{Counts, RankState, RankStatus};
use nuvec_core::Result;
use nuvec_core::distributed::Group;
use nuvec_launch_env as launch_env;

use crate::ring::{self, Root};
use crate::wire::Collectives;
use crate::{Options, convert};

/// A connected group, which can be looked at and closed, from any thread; clones are of the same group. Dropping it leaves the group open, since arrays
/// may still use it: nuvec keeps every group. A group of one rank has nothing to connect or to close.
///
/// ```
/// use nuvec_distributed::{Options, connect};
/// let nodes = vec![vec!["127.0.0.1:5000".to_owned()]];
/// let session = connect(&nodes, 0, &Options::default())?;
/// assert_eq!(session.group().size(), 1);
/// session.barrier()?;
/// session.close();
/// # Ok::<(), nuvec_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Session {
    group: Group,
    root: Option<Root>,
}

/// Connects as [`init_with`](crate::init_with) and returns a handle. The group is not made the default.
pub fn connect(nodes: &[Vec<String>], rank: usize, options: &Options) -> Result<Session> {
    Session::connect(&launch_env::parse_nodes(nodes, rank).map_err(convert::environment)?, options)
}

impl Session {
    pub(crate) fn connect(ring: &launch_env::Ring, options: &Options) -> Result<Self> {
        Self::of(ring.size(), || Collectives::connect(ring, options))
    }

    /// The session of `size` ranks that `connect` connects. One alone has nothing to connect.
    pub(crate) fn of(size: usize, connect: impl FnOnce() -> nuvec_transport::Result<Collectives>) -> Result<Self> {
        if size <= 1 {
            return Ok(Self { group: Group::single(), root: None });
        }
        let root = Root::new(connect())?;
        Ok(Self { group: ring::group(&root.member), root: Some(root) })
    }

    /// nuvec's group, to give to its collectives.
    pub fn group(&self) -> Group {
        self.group.clone()
    }

    /// What every rank does, as it last said at most about a second ago, in this group and those split from it; and how
    /// much this rank has done in this one. On MLX's wire no rank tells what it does, and this one alone is in it. Never
    /// blocks, so another thread may ask while a call waits. A group that has failed has a status still. Errors ([`Error::InvalidArgument`](nuvec_core::Error)): the group is closed; this is a
    /// forked child.
    pub fn status(&self) -> Result<Status> {
        let Some(root) = &self.root else { return Ok(Status { ranks: Vec::new(), counters: None }) };
        let collectives = root.member.collectives()?;
        Ok(Status { ranks: collectives.status(), counters: Some(collectives.counters()) })
    }

    /// Returns once every rank has called it. Blocks and fails as a collective. Errors: MLX's wire has no barrier.
    pub fn barrier(&self) -> Result<()> {
        match &self.root {
            Some(root) => root.member.collectives()?.barrier().map_err(convert::transport),
            None => Ok(()),
        }
    }

    /// Closes the group on this rank, and the groups that were split from it: their connections, threads and memory go,
    /// within about a second (JACCL: up to five, while something that was sent has not arrived). Calls in progress and later ones fail with "closed". Ranks that still need this one's bytes
    /// fail and name it. Calling it again, or in a forked child, does nothing.
    pub fn close(&self) {
        if let Some(root) = &self.root {
            root.close();
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session(rank {} of {})", self.group.rank(), self.group.size())
    }
}

/// What every rank does, and how much this rank has done in the group. Prints as a line for each rank:
///
/// ```text
/// rank 0: all_sum #57 waits for rank 1, for 2.4 s
/// rank 1: idle (heard 0.3 s ago)
/// 112 operations, 4096 bytes; waits by rank: [0, 7]
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Status {
    /// Every rank, by rank; empty for a group of one.
    pub ranks: Vec<RankStatus>,
    /// How much the group has done on this rank; `None` for a group of one.
    pub counters: Option<Counts>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rank in &self.ranks {
            write!(f, "rank {}: ", rank.rank)?;
            match (rank.state, &rank.calls[..]) {
                (RankState::Alive { .. }, []) => write!(f, "idle")?,
                (RankState::Alive { .. }, calls) => {
                    for (i, call) in calls.iter().enumerate() {
                        write!(f, "{}{} #{}", if i > 0 { "; " } else { "" }, call.operation, call.sequence)?;
                        for (i, rank) in call.waits_for.iter().enumerate() {
                            write!(f, " {} rank {rank}", if i > 0 { "and" } else { "waits for" })?;
                        }
                        write!(f, ", for {:.1} s", call.since.as_secs_f64())?;
                    }
                }
                (RankState::Gone, _) => write!(f, "gone")?,
                (_, _) => write!(f, "not heard of yet")?,
            }
            if let RankState::Alive { heard } = rank.state
                && !heard.is_zero()
            {
                write!(f, " (heard {:.1} s ago)", heard.as_secs_f64())?;
            }
            writeln!(f)?;
        }
        if let Some(Counts { operations, bytes, waits, .. }) = &self.counters {
            writeln!(f, "{operations} operations, {bytes} bytes; waits by rank: {waits:?}")?;
        }
        Ok(())
    }
}
