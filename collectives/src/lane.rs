//! A lane at work: a [`Cursor`] over channel halves and the segments lent to it.

use std::io::IoSlice;

use nuvec_transport::{Error, Kind, Park, Receiver, Result, Sender};

use crate::call::{Call, HEADER, describe};
use crate::drive::{Awaited, SENT_NOTHING, TOOK_NOTHING, Task};
use crate::engine::Cursor;
use crate::plan::LanePlan;
use crate::reduce::Kernel;

/// The most bytes handed to a channel at once.
pub(crate) const MAX_IO: usize = 1 << 20;
/// The longest element, in bytes.
const MAX_WIDTH: usize = 8;

/// A kernel and its elements' width in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reducer {
    pub(crate) kernel: Kernel,
    pub(crate) width: usize,
}

/// One lane of one call.
pub(crate) struct Lane<'a, S, R> {
    index: usize,
    tx: S,
    rx: R,
    header_out: [u8; HEADER],
    header_sent: usize,
    flushed: bool,
    state: Incoming<'a>,
}

/// What arrives: the part of a lane that a channel's sink changes.
struct Incoming<'a> {
    cursor: Cursor,
    segments: Vec<&'a mut [u8]>,
    /// The call that the headers are about, where there are headers.
    call: Option<Call>,
    reducer: Option<Reducer>,
    expected: [u8; HEADER],
    header: [u8; HEADER],
    header_got: usize,
    /// The beginning of an element whose end has not come yet.
    carry: [u8; MAX_WIDTH],
    carried: usize,
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
        (tx, rx): (S, R),
        plan: LanePlan,
        segments: Vec<&'a mut [u8]>,
        call: Option<Call>,
        reducer: Option<Reducer>,
    ) -> Self {
        let header = call.map_or([0; HEADER], |call| call.header(index));
        let headerless = if call.is_none() { HEADER } else { 0 };
        Self {
            index,
            tx,
            rx,
            header_out: header,
            header_sent: headerless,
            flushed: false,
            state: Incoming {
                cursor: Cursor::new(plan),
                segments,
                call,
                reducer,
                expected: header,
                header: [0; HEADER],
                header_got: headerless,
                carry: [0; MAX_WIDTH],
                carried: 0,
            },
        }
    }

    fn send(&mut self) -> Result<bool> {
        let Incoming { cursor, segments, .. } = &mut self.state;
        let run = cursor.sendable();
        let data = match run {
            Some(run) => &segments[run.segment][run.offset..][..run.len.min(MAX_IO)],
            None => &[],
        };
        let header = &self.header_out[self.header_sent..];
        let sent = if !header.is_empty() {
            self.tx.try_send(&[IoSlice::new(header), IoSlice::new(data)])?
        } else if !data.is_empty() {
            self.tx.try_send(&[IoSlice::new(data)])?
        } else {
            if cursor.all_sent() && !self.flushed {
                self.flushed = self.tx.try_flush()?;
                return Ok(self.flushed);
            }
            return Ok(false);
        };
        let of_header = sent.min(header.len());
        self.header_sent += of_header;
        if sent > of_header {
            cursor.sent(sent - of_header);
        }
        if self.header_sent == HEADER && cursor.all_sent() {
            self.flushed = self.tx.try_flush()?;
        }
        Ok(sent > 0)
    }

    fn receive(&mut self) -> Result<bool> {
        let state = &mut self.state;
        let header_left = HEADER - state.header_got;
        let n = match state.cursor.receivable() {
            None if header_left == 0 => return Ok(false),
            // A copy goes straight to its place.
            Some((run, false)) if header_left == 0 => {
                let into = &mut state.segments[run.segment][run.offset..][..run.len.min(MAX_IO)];
                let n = self.rx.try_recv(into)?;
                if n > 0 {
                    state.cursor.applied(n);
                }
                n
            }
            next => {
                let max = header_left + next.map_or(0, |(run, _)| run.len - state.carried);
                self.rx.try_recv_with(max, &mut |piece| state.take(piece))?
            }
        };
        Ok(n > 0)
    }
}

impl Incoming<'_> {
    /// Takes bytes of the stream where they lie: the rest of the header, then data.
    fn take(&mut self, piece: &[u8]) -> Result<()> {
        let of_header = piece.len().min(HEADER - self.header_got);
        let (header, data) = piece.split_at(of_header);
        self.header[self.header_got..][..of_header].copy_from_slice(header);
        self.header_got += of_header;
        if let Some(call) = self.call
            && self.header_got == HEADER
            && self.header != self.expected
        {
            let text = format!("is in {} while rank {} is in {call}", describe(&self.header), call.caller);
            return Err(Error::new(Kind::Mismatch, text));
        }
        self.apply(data);
        Ok(())
    }

    /// Puts bytes into their place, or reduces them into it.
    fn apply(&mut self, mut data: &[u8]) {
        while let (false, Some((run, reduces))) = (data.is_empty(), self.cursor.receivable()) {
            let into = &mut self.segments[run.segment][run.offset..][..run.len];
            let Some(Reducer { kernel, width }) = self.reducer.filter(|_| reduces) else {
                let n = data.len().min(into.len());
                into[..n].copy_from_slice(&data[..n]);
                self.cursor.applied(n);
                data = &data[n..];
                continue;
            };
            if self.carried > 0 || data.len() < width {
                let n = (width - self.carried).min(data.len());
                self.carry[self.carried..][..n].copy_from_slice(&data[..n]);
                self.carried += n;
                data = &data[n..];
                if self.carried == width {
                    kernel(&mut into[..width], &self.carry[..width]);
                    self.carried = 0;
                    self.cursor.applied(width);
                }
            } else {
                let n = data.len().min(into.len()) / width * width;
                kernel(&mut into[..n], &data[..n]);
                self.cursor.applied(n);
                data = &data[n..];
            }
        }
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
        let Incoming { cursor, header_got, .. } = &self.state;
        self.flushed && *header_got == HEADER && cursor.all_applied()
    }

    fn parks<'a>(&'a self, parks: &mut Vec<Park<'a>>) {
        let Incoming { cursor, header_got, .. } = &self.state;
        if *header_got < HEADER || !cursor.all_applied() {
            parks.push(self.rx.park());
        }
        if self.header_sent < HEADER || cursor.sendable().is_some() || (cursor.all_sent() && !self.flushed) {
            parks.push(self.tx.park());
        }
    }

    fn waits(&self, ranks: &mut Vec<usize>) {
        let Incoming { cursor, header_got, .. } = &self.state;
        if *header_got < HEADER || !cursor.all_applied() {
            ranks.push(self.rx.peer().rank);
        }
        if self.header_sent < HEADER || cursor.sendable().is_some() {
            ranks.push(self.tx.peer().rank);
        }
    }

    fn awaited(&self) -> Awaited<'_> {
        let cursor = &self.state.cursor;
        let (peer, what) = if cursor.all_applied() && self.state.header_got == HEADER {
            (self.tx.peer(), TOOK_NOTHING)
        } else {
            (self.rx.peer(), SENT_NOTHING)
        };
        let progress = Some((cursor.bytes_applied(), cursor.plan().bytes_received()));
        Awaited { peer, what, lane: Some(self.index), progress }
    }
}

impl<S: Sender, R: Receiver> Lane<'_, S, R> {
    /// An error with the lane, how far it came, and the peer, if it names none.
    fn place(&self, e: Error) -> Error {
        let cursor = &self.state.cursor;
        let e = if e.peer().is_none() { e.with_peer(self.rx.peer()) } else { e };
        if e.kind() == Kind::Mismatch {
            return e;
        }
        e.with_lane(self.index).with_progress(cursor.bytes_applied() as u64, cursor.plan().bytes_received() as u64)
    }
}

#[cfg(test)]
impl<'a, S, R> Lane<'a, S, R> {
    /// The channel halves and the segments again.
    pub(crate) fn into_parts(self) -> ((S, R), Vec<&'a mut [u8]>) {
        ((self.tx, self.rx), self.state.segments)
    }
}
