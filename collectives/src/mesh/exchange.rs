//! A mesh's collective at work: a [`MeshCursor`] over the streams to all peers and one rank's data.

use std::time::Duration;

use nuvec_transport::{Error, Kind, Park, Peer, Receiver, Result, Sender};

use super::engine::MeshCursor;
use crate::call::Call;
use crate::drive::{Awaited, SENT_NOTHING, TOOK_NOTHING, Task};
use crate::plan::mesh::MeshPlan;
use crate::stream::{Reducer, Stream};

/// One rank's part of one call. One task for all peers, since they all write and read this rank's block.
pub(crate) struct Exchange<'a, S, R> {
    cursor: MeshCursor,
    streams: Vec<Stream<S, R>>,
    data: &'a mut [u8],
    reducer: Option<Reducer>,
}

impl<'a, S: Sender, R: Receiver> Exchange<'a, S, R> {
    /// The call's `plan` over `data`; `halves` are those of the channels to the plan's peers, in the same order. `reducer`
    /// is there if the plan reduces.
    pub(crate) fn new(
        halves: impl Iterator<Item = (S, R)>,
        plan: MeshPlan,
        data: &'a mut [u8],
        call: Call,
        reducer: Option<Reducer>,
    ) -> Self {
        let streams = halves.map(|halves| Stream::new(halves, 0, Some(call))).collect();
        Self { cursor: MeshCursor::new(plan), streams, data, reducer }
    }

    fn send(&mut self, i: usize) -> Result<bool> {
        let Self { cursor, streams, data, .. } = self;
        let moved = streams[i].send(&data[cursor.sendable(i)])?;
        cursor.sent(i, moved.data);
        let flushed = cursor.all_sent(i) && streams[i].flush()?;
        Ok(moved.any || flushed)
    }

    fn receive(&mut self, i: usize) -> Result<bool> {
        let Self { cursor, streams, data, reducer } = self;
        let (range, reduces) = cursor.receivable(i);
        let moved = streams[i].receive(&mut data[range], reducer.filter(|_| reduces))?;
        cursor.applied(i, moved.data);
        Ok(moved.any)
    }

    /// Moves what can be moved to and from peer `i` now; whether anything was.
    pub(crate) fn step_with(&mut self, i: usize) -> Result<bool> {
        if self.done_with(i) {
            return Ok(false);
        }
        let sent = self.send(i);
        // What the peer sent before it went is still received: it may be all that this rank needs.
        let received = self.receive(i).map_err(|e| self.place(i, e))?;
        Ok(sent.map_err(|e| self.place(i, e))? || received)
    }

    fn done_with(&self, i: usize) -> bool {
        self.streams[i].is_flushed() && self.cursor.all_applied(i)
    }

    fn unfinished(&self) -> impl Iterator<Item = usize> {
        (0..self.streams.len()).filter(|&i| !self.done_with(i))
    }

    /// Whether it could receive from peer `i` now: its header, or data that no other peer's must precede.
    fn awaits(&self, i: usize) -> bool {
        !self.streams[i].has_header() || !self.cursor.receivable(i).0.is_empty()
    }

    /// An error with the peer, if it names none, and how far the call came.
    fn place(&self, i: usize, e: Error) -> Error {
        let e = if e.peer().is_none() { e.with_peer(self.streams[i].sender()) } else { e };
        if e.kind() == Kind::Mismatch {
            return e;
        }
        let (done, total) = self.cursor.progress();
        e.with_progress(done as u64, total as u64)
    }
}

impl<S: Sender, R: Receiver> Task for Exchange<'_, S, R> {
    fn step(&mut self) -> Result<bool> {
        let mut moved = false;
        for i in 0..self.streams.len() {
            moved |= self.step_with(i)?;
        }
        Ok(moved)
    }

    fn done(&self) -> bool {
        self.unfinished().next().is_none()
    }

    fn parks<'a>(&'a self, parks: &mut Vec<Park<'a>>) {
        for i in self.unfinished() {
            let sends = !self.cursor.sendable(i).is_empty();
            self.streams[i].parks(self.awaits(i), sends, self.cursor.all_sent(i), parks);
        }
    }

    fn waits(&self, ranks: &mut Vec<usize>) {
        // Those first who wait for nobody: what the others pass on may itself wait for one of these.
        let mut order: Vec<_> = self.unfinished().collect();
        order.sort_by_key(|&i| self.streams[i].has_header() && !self.cursor.is_given(i));
        for i in order {
            self.streams[i].waits(self.awaits(i), !self.cursor.sendable(i).is_empty(), ranks);
        }
    }

    fn unacknowledged<'a>(&'a self, peers: &mut Vec<(&'a Peer, Duration)>) {
        peers.extend(self.streams.iter().map(Stream::unacknowledged));
    }

    fn awaited(&self) -> Awaited<'_> {
        let progress = Some(self.cursor.progress());
        let given = |&i: &usize| self.awaits(i) && (!self.streams[i].has_header() || self.cursor.is_given(i));
        let awaited = self.unfinished().find(given).or_else(|| self.unfinished().find(|&i| self.awaits(i)));
        let (peer, what) = match awaited {
            Some(i) => (self.streams[i].sender(), SENT_NOTHING),
            None => (self.streams[self.unfinished().next().unwrap_or_default()].receiver(), TOOK_NOTHING),
        };
        Awaited { peer, what, lane: None, progress }
    }
}

#[cfg(test)]
impl<'a, S: Sender, R: Receiver> Exchange<'a, S, R> {
    /// Plants a fault: bytes of a block count as complete so many before they are.
    pub(crate) fn lead(mut self, lead: usize) -> Self {
        self.cursor.lead = lead;
        self
    }

    /// How many peers there are.
    pub(crate) fn peers(&self) -> usize {
        self.streams.len()
    }

    /// The channel halves again, in the order of the plan's peers, and the data.
    pub(crate) fn into_parts(self) -> (Vec<(S, R)>, &'a mut [u8]) {
        (self.streams.into_iter().map(Stream::into_halves).collect(), self.data)
    }
}
