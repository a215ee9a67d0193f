//! Point-to-point: messages on one-way streams of their own, never on the ring's connections.
//!
//! A stream has `k` stripes. A message is a header `{ sequence u64, bytes u64 }` (little-endian) on stripe 0, then
//! `per = max(1024, ⌈bytes/k⌉)` bytes on each stripe, stripe i carrying bytes `[i·per, (i+1)·per)` of the data: MLX's cut
//! of `send` and `recv` (`mlx/distributed/ring/ring.cpp`).

use std::io::IoSlice;
use std::time::Duration;

use nuvec_transport::{Error, Kind, Park, Peer, Receiver, Result, Sender};

use crate::drive::{Awaited, SENT_NOTHING, TOOK_NOTHING, Task};
use crate::stream::MAX_IO;

/// The header's length in bytes.
const HEADER: usize = 16;
/// The least that a stripe carries, unless the message ends before.
const MIN_STRIPE: usize = 1024;
/// The most data, in bytes, that are received together with the header, and copied: what is short costs one call less.
const ALONG: usize = 4096;

/// How many bytes each of `stripes` carries of a message of `bytes`.
fn per_stripe(bytes: usize, stripes: usize) -> usize {
    bytes.div_ceil(stripes).max(MIN_STRIPE)
}

fn header(sequence: u64, bytes: usize) -> [u8; HEADER] {
    let mut h = [0; HEADER];
    h[..8].copy_from_slice(&sequence.to_le_bytes());
    h[8..].copy_from_slice(&(bytes as u64).to_le_bytes());
    h
}

/// One stripe of a message on its way out.
pub(crate) struct SendStripe<'a, S> {
    tx: &'a mut S,
    header: [u8; HEADER],
    /// How much of the header is sent: all of it on stripes that have none.
    header_sent: usize,
    data: &'a [u8],
    sent: usize,
    flushed: bool,
}

/// The stripes that carry `data`: as message `sequence`, or without a header.
pub(crate) fn send<'a, S: Sender>(
    txs: impl ExactSizeIterator<Item = &'a mut S>,
    sequence: Option<u64>,
    data: &'a [u8],
) -> Vec<SendStripe<'a, S>> {
    let per = per_stripe(data.len(), txs.len());
    let head = sequence.map_or([0; HEADER], |sequence| header(sequence, data.len()));
    let heads = |index: usize| index == 0 && sequence.is_some();
    let part = |i: usize| data.get(i * per..).map_or(&[] as &[u8], |rest| &rest[..rest.len().min(per)]);
    txs.enumerate()
        .map(|(index, tx)| SendStripe {
            tx,
            header: head,
            header_sent: if heads(index) { 0 } else { HEADER },
            data: part(index),
            sent: 0,
            flushed: !heads(index) && part(index).is_empty(),
        })
        .collect()
}

impl<S: Sender> Task for SendStripe<'_, S> {
    fn step(&mut self) -> Result<bool> {
        let header = &self.header[self.header_sent..];
        let data = &self.data[self.sent..];
        let data = &data[..data.len().min(MAX_IO)];
        let mut n = 0;
        if !header.is_empty() || !data.is_empty() {
            n = self.tx.try_send(&[IoSlice::new(header), IoSlice::new(data)])?;
            let of_header = n.min(header.len());
            self.header_sent += of_header;
            self.sent += n - of_header;
        }
        if self.header_sent == HEADER && self.sent == self.data.len() {
            self.flushed = self.tx.try_flush()?;
        }
        Ok(n > 0 || self.flushed)
    }

    fn done(&self) -> bool {
        self.flushed
    }

    fn parks<'a>(&'a self, parks: &mut Vec<Park<'a>>) {
        parks.push(self.tx.park());
    }

    fn waits(&self, ranks: &mut Vec<usize>) {
        ranks.push(self.tx.peer().rank);
    }

    fn unacknowledged<'a>(&'a self, peers: &mut Vec<(&'a Peer, Duration)>) {
        peers.push((self.tx.peer(), self.tx.unacknowledged()));
    }

    fn awaited(&self) -> Awaited<'_> {
        let progress = Some((self.sent, self.data.len()));
        Awaited { peer: self.tx.peer(), what: TOOK_NOTHING, lane: None, progress }
    }
}

/// A message's header on its way in, with the data that came along: nothing of another message is taken for data.
pub(crate) struct RecvHeader<'a, R> {
    rx: &'a mut R,
    caller: usize,
    expected: [u8; HEADER],
    header: [u8; HEADER],
    got: usize,
    first: &'a mut [u8],
    taken: usize,
}

impl<'a, R: Receiver> RecvHeader<'a, R> {
    /// The header of message `sequence` for `data`, on stripe 0 of `stripes`, for rank `caller` of the group.
    pub(crate) fn new(rx: &'a mut R, stripes: usize, caller: usize, sequence: u64, data: &'a mut [u8]) -> Self {
        let expected = header(sequence, data.len());
        let along = data.len().min(per_stripe(data.len(), stripes)).min(ALONG);
        Self { rx, caller, expected, header: [0; HEADER], got: 0, first: &mut data[..along], taken: 0 }
    }

    /// How many bytes of the data came along.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }
}

impl<R: Receiver> Task for RecvHeader<'_, R> {
    fn step(&mut self) -> Result<bool> {
        let Self { rx, expected, header, got, first, taken, .. } = self;
        let n = rx.try_recv_with(HEADER - *got + first.len(), &mut |piece| {
            let (of_header, data) = piece.split_at(piece.len().min(HEADER - *got));
            header[*got..][..of_header.len()].copy_from_slice(of_header);
            *got += of_header.len();
            if header == expected {
                first[*taken..][..data.len()].copy_from_slice(data);
                *taken += data.len();
            }
            Ok(())
        })?;
        if self.done() && self.header != self.expected {
            let word = |h: &[u8; HEADER], at: usize| u64::from_le_bytes(std::array::from_fn(|i| h[at + i]));
            let text = format!(
                "is in send #{} of {} bytes while rank {} is in recv #{} of {} bytes; the arrays' dtype or shape \
                 probably differ",
                word(&self.header, 0),
                word(&self.header, 8),
                self.caller,
                word(&self.expected, 0),
                word(&self.expected, 8),
            );
            return Err(Error::new(Kind::Mismatch, text).with_peer(self.rx.peer()));
        }
        Ok(n > 0)
    }

    fn done(&self) -> bool {
        self.got == HEADER
    }

    fn parks<'a>(&'a self, parks: &mut Vec<Park<'a>>) {
        parks.push(self.rx.park());
    }

    fn waits(&self, ranks: &mut Vec<usize>) {
        ranks.push(self.rx.peer().rank);
    }

    fn awaited(&self) -> Awaited<'_> {
        Awaited { peer: self.rx.peer(), what: SENT_NOTHING, lane: None, progress: None }
    }
}

/// One stripe of a message's data on its way in.
pub(crate) struct RecvStripe<'a, R> {
    rx: &'a mut R,
    into: &'a mut [u8],
    got: usize,
}

/// The stripes that bring a message's data, once its header, if it has one, has come, and with it the first `taken` bytes.
pub(crate) fn receive<'a, R: Receiver>(
    rxs: impl ExactSizeIterator<Item = &'a mut R>,
    data: &'a mut [u8],
    taken: usize,
) -> Vec<RecvStripe<'a, R>> {
    let per = per_stripe(data.len(), rxs.len());
    let mut rest = data;
    let mut stripes = Vec::with_capacity(rxs.len());
    for (index, rx) in rxs.enumerate() {
        let (into, after) = rest.split_at_mut(rest.len().min(per));
        rest = after;
        stripes.push(RecvStripe { rx, into, got: if index == 0 { taken } else { 0 } });
    }
    stripes
}

impl<R: Receiver> Task for RecvStripe<'_, R> {
    fn step(&mut self) -> Result<bool> {
        let end = self.into.len().min(self.got + MAX_IO);
        let n = self.rx.try_recv(&mut self.into[self.got..end])?;
        self.got += n;
        Ok(n > 0)
    }

    fn done(&self) -> bool {
        self.got == self.into.len()
    }

    fn parks<'a>(&'a self, parks: &mut Vec<Park<'a>>) {
        parks.push(self.rx.park());
    }

    fn waits(&self, ranks: &mut Vec<usize>) {
        ranks.push(self.rx.peer().rank);
    }

    fn awaited(&self) -> Awaited<'_> {
        let progress = Some((self.got, self.into.len()));
        Awaited { peer: self.rx.peer(), what: SENT_NOTHING, lane: None, progress }
    }
}

#[cfg(test)]
mod tests {
    use nuvec_transport::Channel;
    use nuvec_transport::memory::{MemoryReceiver, pair};

    use super::*;

    /// A stripe on which message `sequence` of these data has come whole.
    fn sent(sequence: u64, data: &[u8]) -> MemoryReceiver {
        let (a, b) = pair(1 << 16);
        let mut tx = a.split().0;
        let stripe = &mut send([&mut tx].into_iter(), Some(sequence), data)[0];
        while !stripe.done() {
            stripe.step().unwrap();
        }
        b.split().1
    }

    #[test]
    fn short_data_come_with_the_header_and_of_long_ones_the_beginning() {
        for bytes in [0, 1, 8, ALONG - 1, ALONG, ALONG + 1, 3 * ALONG] {
            let data: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
            let (mut rx, mut got) = (sent(7, &data), vec![0; bytes]);
            let mut head = RecvHeader::new(&mut rx, 1, 0, 7, &mut got);
            head.step().unwrap();
            assert!(head.done());
            let taken = head.taken();
            assert_eq!(taken, bytes.min(ALONG));
            let stripe = &mut receive([&mut rx].into_iter(), &mut got, taken)[0];
            while !stripe.done() {
                stripe.step().unwrap();
            }
            assert_eq!(got, data);
        }
    }

    #[test]
    fn nothing_of_another_message_comes_to_the_data() {
        for (sequence, bytes) in [(6, 8), (8, 8), (7, 7), (7, 9), (7, 0)] {
            let (mut rx, mut got) = (sent(sequence, &vec![1; bytes]), [0; 8]);
            let e = RecvHeader::new(&mut rx, 1, 0, 7, &mut got).step().unwrap_err();
            assert_eq!((e.kind(), got), (Kind::Mismatch, [0; 8]), "{e}");
        }
    }

    #[test]
    fn stripes_are_mlxs() {
        assert_eq!(per_stripe(0, 3), 1024);
        assert_eq!(per_stripe(2048, 2), 1024);
        assert_eq!(per_stripe(2049, 2), 1025);
        assert_eq!(per_stripe(10_000, 3), 3334);
    }
}
