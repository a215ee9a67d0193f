//! A lane at work: a [`Cursor`] over a [`Stream`] and the segments lent to it.

use std::time::Duration;

use nuvec_transport::{Error, Kind, Park, Peer, Receiver, Result, Sender};

use crate::call::Call;
use crate::drive::{Awaited, SENT_NOTHING, TOOK_NOTHING, Task};
use crate::engine::Cursor;
use crate::plan::LanePlan;
use crate::stream::{Reducer, Stream};

/// One lane of one call.
pub(crate) struct Lane<'a, S, R> {
    index: usize,
    stream: Stream<S, R>,
    cursor: Cursor,
    segments: Vec<&'a mut [u8]>,
    reducer: Option<Reducer>,
}

/// The lanes of one call: of `plans`, over channel halves and segments in the same order. See [`Lane::new`].
pub(crate) fn lanes<'a, S: Sender, R: Receiver>(
    halves: impl Iterator<Item = &'a mut (S, R)>,
    plans: Vec<LanePlan>,
    segments: Vec<Vec<&'a mut [u8]>>,
    call: Option<Call>,
    reducer: Option<Reducer>,
) -> Vec<Lane<'a, &'a mut S, &'a mut R>> {
    halves
        .zip(plans)
        .zip(segments)
        .enumerate()
        .map(|(i, (((tx, rx), plan), segments))| Lane::new(i, (tx, rx), plan, segments, call, reducer))
        .collect()
}

impl<'a, S: Sender, R: Receiver> Lane<'a, S, R> {
    /// Lane `index` of a call: `segments` are the plan's, by index; `reducer` is there if the plan reduces. The stream begins
    /// with the header of `call`, if that is given.
    pub(crate) fn new(
        index: usize,
        halves: (S, R),
        plan: LanePlan,
        segments: Vec<&'a mut [u8]>,
        call: Option<Call>,
        reducer: Option<Reducer>,
    ) -> Self {
        Self { index, stream: Stream::new(halves, index, call), cursor: Cursor::new(plan), segments, reducer }
    }

    fn send(&mut self) -> Result<bool> {
        let Self { stream, cursor, segments, .. } = self;
        let data = match cursor.sendable() {
            Some(run) => &segments[run.segment][run.offset..][..run.len],
            None => &[],
        };
        let moved = stream.send(data)?;
        if moved.data > 0 {
            cursor.sent(moved.data);
        }
        let flushed = cursor.all_sent() && stream.flush()?;
        Ok(moved.any || flushed)
    }

    fn receive(&mut self) -> Result<bool> {
        let Self { stream, cursor, segments, reducer, .. } = self;
        let moved = match cursor.receivable() {
            Some((run, reduces)) => {
                let into = &mut segments[run.segment][run.offset..][..run.len];
                stream.receive(into, reducer.filter(|_| reduces))?
            }
            None => stream.receive(&mut [], None)?,
        };
        if moved.data > 0 {
            cursor.applied(moved.data);
        }
        Ok(moved.any)
    }
}

impl<S: Sender, R: Receiver> Task for Lane<'_, S, R> {
    fn step(&mut self) -> Result<bool> {
        let sent = self.send();
        // What the peer sent before it went is still received: it may be all that this rank needs.
        let received = self.receive().map_err(|e| self.place(e))?;
        let sent = sent.map_err(|e| self.place(e))?;
        Ok(sent || received)
    }

    fn done(&self) -> bool {
        self.stream.is_flushed() && self.cursor.all_applied()
    }

    fn parks<'a>(&'a self, parks: &mut Vec<Park<'a>>) {
        let cursor = &self.cursor;
        self.stream.parks(!cursor.all_applied(), cursor.sendable().is_some(), cursor.all_sent(), parks);
    }

    fn waits(&self, ranks: &mut Vec<usize>) {
        self.stream.waits(!self.cursor.all_applied(), self.cursor.sendable().is_some(), ranks);
    }

    fn unacknowledged<'a>(&'a self, peers: &mut Vec<(&'a Peer, Duration)>) {
        peers.push(self.stream.unacknowledged());
    }

    fn awaited(&self) -> Awaited<'_> {
        let Self { stream, cursor, .. } = self;
        let (peer, what) = if cursor.all_applied() && stream.has_header() {
            (stream.receiver(), TOOK_NOTHING)
        } else {
            (stream.sender(), SENT_NOTHING)
        };
        let progress = Some((cursor.bytes_applied(), cursor.plan().bytes_received()));
        Awaited { peer, what, lane: Some(self.index), progress }
    }
}

impl<S: Sender, R: Receiver> Lane<'_, S, R> {
    /// An error with the lane, how far it came, and the peer, if it names none.
    fn place(&self, e: Error) -> Error {
        let cursor = &self.cursor;
        let e = if e.peer().is_none() { e.with_peer(self.stream.sender()) } else { e };
        if e.kind() == Kind::Mismatch {
            return e;
        }
        e.with_lane(self.index).with_progress(cursor.bytes_applied() as u64, cursor.plan().bytes_received() as u64)
    }
}

#[cfg(test)]
impl<'a, S: Sender, R: Receiver> Lane<'a, S, R> {
    /// The channel halves and the segments again.
    pub(crate) fn into_parts(self) -> ((S, R), Vec<&'a mut [u8]>) {
        (self.stream.into_halves(), self.segments)
    }
}
