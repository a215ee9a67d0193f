//! One channel in one call: the header both ways, then bytes that are copied or reduced into their place.
//!
//! What a lane of a ring and a peer of a mesh have in common. It knows no plan: whoever holds it says what may be sent
//! now, and where the next received bytes go.

use std::io::IoSlice;
use std::time::Duration;

use nuvec_transport::{Error, Kind, Park, Peer, Receiver, Result, Sender};

use crate::call::{Call, HEADER, describe};
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

impl Reducer {
    /// Every rank's data, `blocks` of `data.len()` bytes each, reduced in rank order into `data`.
    pub(crate) fn fold(self, blocks: &[u8], data: &mut [u8]) {
        let (first, others) = blocks.split_at(data.len());
        data.copy_from_slice(first);
        if !data.is_empty() {
            others.chunks_exact(data.len()).for_each(|block| (self.kernel)(data, block));
        }
    }
}

/// What one try moved.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moved {
    /// Whether it moved anything, of the header or of the data.
    pub(crate) any: bool,
    /// Bytes of data that were taken by the channel, or applied: of a reduction, whole elements.
    pub(crate) data: usize,
}

/// A channel's halves in one call.
pub(crate) struct Stream<S, R> {
    tx: S,
    rx: R,
    header_out: [u8; HEADER],
    header_sent: usize,
    flushed: bool,
    incoming: Incoming,
}

/// What arrives: the part of a stream that a channel's sink changes.
struct Incoming {
    /// The call that the headers are about, where there are headers.
    call: Option<Call>,
    expected: [u8; HEADER],
    header: [u8; HEADER],
    header_got: usize,
    /// The beginning of an element whose end has not come yet.
    carry: [u8; MAX_WIDTH],
    carried: usize,
}

impl<S: Sender, R: Receiver> Stream<S, R> {
    /// Lane `lane` of a call. The stream begins with the header of `call`, if that is given.
    pub(crate) fn new((tx, rx): (S, R), lane: usize, call: Option<Call>) -> Self {
        let header = call.map_or([0; HEADER], |call| call.header(lane));
        let headerless = if call.is_none() { HEADER } else { 0 };
        let incoming = Incoming {
            call,
            expected: header,
            header: [0; HEADER],
            header_got: headerless,
            carry: [0; MAX_WIDTH],
            carried: 0,
        };
        Self { tx, rx, header_out: header, header_sent: headerless, flushed: false, incoming }
    }

    /// Sends what is left of the header, then of `data`, as much as there is room for.
    pub(crate) fn send(&mut self, data: &[u8]) -> Result<Moved> {
        let header = &self.header_out[self.header_sent..];
        let data = &data[..data.len().min(MAX_IO)];
        let sent = match (header.is_empty(), data.is_empty()) {
            (true, true) => return Ok(Moved::default()),
            (true, false) => self.tx.try_send(&[IoSlice::new(data)])?,
            (false, _) => self.tx.try_send(&[IoSlice::new(header), IoSlice::new(data)])?,
        };
        let of_header = sent.min(header.len());
        self.header_sent += of_header;
        Ok(Moved { any: sent > 0, data: sent - of_header })
    }

    /// Once all data are sent: moves on what the channel has staged. Whether that is over now, and was not before.
    pub(crate) fn flush(&mut self) -> Result<bool> {
        if self.header_sent < HEADER || self.flushed {
            return Ok(false);
        }
        self.flushed = self.tx.try_flush()?;
        Ok(self.flushed)
    }

    /// Receives what is left of the header, then of what goes into `into`: copied, or reduced by `reducer`, to which
    /// `into` is whole elements. Errors: those of the channel; [`Kind::Mismatch`] if the header is not this call's, before
    /// any data are used.
    pub(crate) fn receive(&mut self, into: &mut [u8], reducer: Option<Reducer>) -> Result<Moved> {
        let Self { rx, incoming, .. } = self;
        let header_left = HEADER - incoming.header_got;
        if header_left == 0 {
            if into.is_empty() {
                return Ok(Moved::default());
            }
            // A copy goes straight to its place.
            if reducer.is_none() {
                let end = into.len().min(MAX_IO);
                let data = rx.try_recv(&mut into[..end])?;
                return Ok(Moved { any: data > 0, data });
            }
        }
        let mut data = 0;
        let any = rx.try_recv_with(header_left + into.len() - incoming.carried, &mut |piece| {
            let piece = incoming.take(piece)?;
            data += incoming.apply(piece, &mut into[data..], reducer);
            Ok(())
        })? > 0;
        Ok(Moved { any, data })
    }

    /// Whether both headers are through and nothing of ours is staged any more.
    pub(crate) fn is_flushed(&self) -> bool {
        self.flushed && self.has_header()
    }

    /// Whether the peer's header has come, and was this call's.
    pub(crate) fn has_header(&self) -> bool {
        self.incoming.header_got == HEADER
    }

    /// How to wait for it: `receives` and `sends` say whether it has data to receive, and to send now; `all_sent` whether
    /// it has sent all.
    pub(crate) fn parks<'a>(&'a self, receives: bool, sends: bool, all_sent: bool, parks: &mut Vec<Park<'a>>) {
        if receives || !self.has_header() {
            parks.push(self.rx.park());
        }
        if sends || self.header_sent < HEADER || (all_sent && !self.flushed) {
            parks.push(self.tx.park());
        }
    }

    /// The ranks that it waits for.
    pub(crate) fn waits(&self, receives: bool, sends: bool, ranks: &mut Vec<usize>) {
        if receives || !self.has_header() {
            ranks.push(self.rx.peer().rank);
        }
        if sends || self.header_sent < HEADER {
            ranks.push(self.tx.peer().rank);
        }
    }

    /// Who receives what it sends, and for how long they have acknowledged nothing.
    pub(crate) fn unacknowledged(&self) -> (&Peer, Duration) {
        (self.tx.peer(), self.tx.unacknowledged())
    }

    /// Who receives what it sends.
    pub(crate) fn receiver(&self) -> &Peer {
        self.tx.peer()
    }

    /// Who sends what it receives.
    pub(crate) fn sender(&self) -> &Peer {
        self.rx.peer()
    }

    /// The channel halves again.
    #[cfg(test)]
    pub(crate) fn into_halves(self) -> (S, R) {
        (self.tx, self.rx)
    }
}

impl Incoming {
    /// Takes the rest of the header where it lies; what follows it.
    fn take<'p>(&mut self, piece: &'p [u8]) -> Result<&'p [u8]> {
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
        Ok(data)
    }

    /// Puts bytes into their place, or reduces them into it; how many are applied.
    fn apply(&mut self, mut data: &[u8], into: &mut [u8], reducer: Option<Reducer>) -> usize {
        let Some(Reducer { kernel, width }) = reducer else {
            into[..data.len()].copy_from_slice(data);
            return data.len();
        };
        let mut applied = 0;
        while !data.is_empty() {
            if self.carried > 0 || data.len() < width {
                let n = (width - self.carried).min(data.len());
                self.carry[self.carried..][..n].copy_from_slice(&data[..n]);
                self.carried += n;
                data = &data[n..];
                if self.carried == width {
                    kernel(&mut into[applied..][..width], &self.carry[..width]);
                    self.carried = 0;
                    applied += width;
                }
            } else {
                let n = data.len() / width * width;
                kernel(&mut into[applied..][..n], &data[..n]);
                applied += n;
                data = &data[n..];
            }
        }
        applied
    }
}
