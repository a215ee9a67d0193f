//! Connected groups as nuvec's transport, and what keeps them.

use std::sync::{Arc, Weak};

use nuvec_core::distributed::{AllReduce, Communicator, Group};
use nuvec_core::{Error, Result};
use parking_lot::{Mutex, RwLock};

use crate::convert;
use crate::wire::Collectives;

/// Every tree of groups that this process has open, for [`crate::shutdown`]. nuvec keeps groups for ever, and so they
/// outlive any handle.
static TREES: Mutex<Vec<Arc<Tree>>> = Mutex::new(Vec::new());

/// A group of all ranks and the groups split from it, which close together.
struct Tree {
    /// The process that connected it. A fork may have copied locks as held, so a child takes none.
    process: u32,
    /// The open groups, the one of all ranks first; `None` once closed.
    groups: Mutex<Option<Vec<Arc<Member>>>>,
}

/// One group as nuvec knows it. nuvec keeps it for ever, so what it holds goes when it closes.
pub(crate) struct Member {
    rank: usize,
    size: usize,
    /// As [`Tree::process`].
    process: u32,
    live: RwLock<Option<Live>>,
}

struct Live {
    collectives: Arc<Collectives>,
    tree: Weak<Tree>,
}

/// A connected group of all ranks, and the tree that grows from it.
#[derive(Clone)]
pub(crate) struct Root {
    pub(crate) member: Arc<Member>,
    tree: Arc<Tree>,
}

impl Root {
    /// The tree of a group of all ranks, at least two, if they were connected.
    pub(crate) fn new(collectives: nuvec_transport::Result<Collectives>) -> Result<Self> {
        let tree = Arc::new(Tree { process: std::process::id(), groups: Mutex::new(Some(Vec::new())) });
        let member = tree.grow(collectives.map_err(convert::transport)?)?;
        TREES.lock().push(tree.clone());
        Ok(Self { member, tree })
    }

    /// Closes the group and every group that was split from it. In a forked child nothing: they are the parent's.
    pub(crate) fn close(&self) {
        if !self.tree.is_ours() {
            return;
        }
        TREES.lock().retain(|tree| !Arc::ptr_eq(tree, &self.tree));
        self.tree.close();
    }
}

/// Closes every tree of this process. What a fork copied of the parent's stays as it is.
pub(crate) fn close_all() {
    let trees: Vec<_> = TREES.lock().extract_if(.., |tree| tree.is_ours()).collect();
    trees.iter().for_each(|tree| tree.close());
}

impl Tree {
    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Adds a group. One of a single rank has no connections, and nuvec keeps none of it: it ends with its last user.
    /// Errors: the tree was closed meanwhile.
    fn grow(self: &Arc<Self>, collectives: Collectives) -> Result<Arc<Member>> {
        let (rank, size) = (collectives.rank(), collectives.size());
        let live = Live { collectives: Arc::new(collectives), tree: Arc::downgrade(self) };
        let member = Arc::new(Member { rank, size, process: self.process, live: RwLock::new(Some(live)) });
        match &mut *self.groups.lock() {
            Some(groups) if size > 1 => groups.push(member.clone()),
            Some(_) => {}
            None => return Err(closed(rank)),
        }
        Ok(member)
    }

    /// Closes the group of all, which ends calls in progress in every group, then lets go of all.
    fn close(&self) {
        for member in self.groups.lock().take().unwrap_or_default() {
            if let Ok(collectives) = member.collectives() {
                collectives.close();
            }
            *member.live.write() = None;
        }
    }
}

impl Member {
    /// The group, while it is open. Errors: it was closed; this is a forked child of its process.
    pub(crate) fn collectives(&self) -> Result<Arc<Collectives>> {
        self.live(|live| live.collectives.clone())
    }

    fn live<T>(&self, take: impl FnOnce(&Live) -> T) -> Result<T> {
        if self.process != std::process::id() {
            let Self { rank, process, .. } = self;
            let text = format!("rank {rank}: the group belongs to process {process}; a forked child cannot use it");
            return Err(crate::invalid(text));
        }
        self.live.read().as_ref().map(take).ok_or_else(|| closed(self.rank))
    }
}

fn closed(rank: usize) -> Error {
    crate::invalid(format!("rank {rank}: the group was closed by this process"))
}

impl Communicator for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&self, op: AllReduce, dtype: nuvec_core::DType, data: &mut [u8]) -> Result<()> {
        let (dtype, reduction) = (convert::dtype(dtype)?, convert::reduction(op)?);
        self.collectives()?.all_reduce(data, dtype, reduction).map_err(convert::transport)
    }

    fn all_gather(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.collectives()?.all_gather(input, output).map_err(convert::transport)
    }

    fn send(&self, dst: usize, data: &[u8]) -> Result<()> {
        self.collectives()?.send(dst, data).map_err(convert::transport)
    }

    fn recv(&self, src: usize, data: &mut [u8]) -> Result<()> {
        self.collectives()?.recv(src, data).map_err(convert::transport)
    }

    fn split(&self, color: i32, key: i32) -> Result<Arc<dyn Communicator>> {
        let (collectives, tree) = self.live(|live| (live.collectives.clone(), live.tree.upgrade()))?;
        let tree = tree.ok_or_else(|| closed(self.rank))?;
        Ok(tree.grow(collectives.split(color, key).map_err(convert::transport)?)?)
    }
}

/// nuvec's group of a member.
pub(crate) fn group(member: &Arc<Member>) -> Group {
    Group::new(member.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn member(process: u32) -> Arc<Member> {
        Arc::new(Member { rank: 3, size: 4, process, live: RwLock::new(None) })
    }

    #[test]
    fn a_forked_child_is_told_so_without_a_lock_that_the_fork_may_have_copied_as_held() {
        let member = member(std::process::id() + 1);
        let held = member.live.write();
        let (tx, rx) = mpsc::channel();
        let asked = member.clone();
        std::thread::spawn(move || {
            let calls = [asked.all_gather(&[], &mut []), asked.split(0, 0).map(drop), asked.collectives().map(drop)];
            let _ = tx.send(calls.map(|call| call.expect_err("another process").to_string()));
        });
        let errors = rx.recv_timeout(Duration::from_secs(10)).expect("no call waits for the lock");
        drop(held);
        for e in errors {
            assert!(e.contains("rank 3") && e.contains("forked child"), "{e}");
        }
    }

    #[test]
    fn a_closed_group_says_who_closed_it() {
        let e = member(std::process::id()).all_gather(&[], &mut []).expect_err("closed");
        assert!(
            matches!(&e, Error::InvalidArgument(text) if text.contains("rank 3: the group was closed by this process"))
        );
    }

    #[test]
    fn a_forked_child_closes_nothing_of_its_parents() {
        let tree = |process| Arc::new(Tree { process, groups: Mutex::new(Some(vec![member(process)])) });
        let (parents, own) = (tree(std::process::id() + 1), tree(std::process::id()));
        TREES.lock().extend([parents.clone(), own.clone()]);
        close_all();
        assert!(parents.groups.lock().is_some() && own.groups.lock().is_none());
        let root = Root { member: member(parents.process), tree: parents.clone() };
        root.close();
        assert!(parents.groups.lock().is_some());
        TREES.lock().retain(|tree| !Arc::ptr_eq(tree, &parents));
    }
}
