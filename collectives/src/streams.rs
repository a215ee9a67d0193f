//! The point-to-point streams of one group: opened at the first message between two ranks, kept for the next ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuvec_transport::{Deadline, Fabric, GroupId, Kind, Result};

use crate::drive::{Watch, has_left};

/// How long a stream that a rank opened before it left may still be on its way.
const IN_FLIGHT: Duration = Duration::from_secs(1);

/// How long a rank is cut off before it asks whether the one that it waits for is there: ranks that have done their work
/// leave one after the other.
const CUT_OFF: Duration = Duration::from_secs(1);

/// The streams of one group, by peer.
pub(crate) struct Streams<F: Fabric> {
    fabric: Arc<F>,
    group: GroupId,
    out: HashMap<usize, (u64, Vec<F::Sender>)>,
    into: HashMap<usize, (u64, Vec<F::Receiver>)>,
}

impl<F: Fabric> Streams<F> {
    pub(crate) fn new(fabric: Arc<F>, group: GroupId) -> Self {
        Self { fabric, group, out: HashMap::new(), into: HashMap::new() }
    }

    /// The number of the next message to `to`, counted from 1.
    pub(crate) fn next_sent(&mut self, to: usize) -> u64 {
        next(&mut self.out.entry(to).or_default().0)
    }

    /// The number of the next message from `from`, counted from 1.
    pub(crate) fn next_received(&mut self, from: usize) -> u64 {
        next(&mut self.into.entry(from).or_default().0)
    }

    /// The stripes to `to`, opened if need be. Blocks for the time-out at the longest.
    pub(crate) fn senders(&mut self, to: usize, watch: &Watch<'_>) -> Result<&mut [F::Sender]> {
        let Self { fabric, group, out, .. } = self;
        let (_, txs) = out.entry(to).or_default();
        // The kernel still takes bytes on a stream whose receiver has gone, and nobody would ever get them.
        if watch.control.is_gone(to) {
            return Err(has_left(&fabric.peer(to)));
        }
        if txs.is_empty() {
            let peer = fabric.peer(to);
            // A little less than the wait lasts: the transport knows better why nothing came of it.
            fabric.open(*group, to, watch.wake, Deadline::after(watch.limits.timeout / 8 * 7));
            let late = "did not answer the connection for a message";
            *txs = watch.until(&peer, late, Duration::ZERO, || fabric.opened(*group, to)).inspect_err(|e| {
                if e.kind() == Kind::PeerClosed {
                    watch.control.has_left(to);
                }
            })?;
        }
        Ok(txs)
    }

    /// The stripes from `from`, which that rank opens with its first message. Blocks for the time-out at the longest.
    ///
    /// A rank without control links hears of no other that it has left. So it opens its own stream to `from`: that fails
    /// soon if nobody is there, and does no harm else.
    pub(crate) fn receivers(&mut self, from: usize, watch: &Watch<'_>) -> Result<&mut [F::Receiver]> {
        let Self { fabric, group, into, out } = self;
        let (_, rxs) = into.entry(from).or_default();
        if rxs.is_empty() {
            let peer = fabric.peer(from);
            let (_, txs) = out.entry(from).or_default();
            let (mut cut_off, mut asked) = (None, false);
            *rxs = watch.until(&peer, "sent no message", IN_FLIGHT, || {
                if !asked && txs.is_empty() && watch.control.is_cut_off() {
                    asked = cut_off.get_or_insert_with(Instant::now).elapsed() >= CUT_OFF;
                    if asked {
                        fabric.open(*group, from, watch.wake, Deadline::after(watch.limits.timeout / 8 * 7));
                    }
                }
                let opened = if asked { fabric.opened(*group, from) } else { None };
                match opened {
                    Some(Ok(opened)) => *txs = opened,
                    Some(Err(e)) if e.kind() == Kind::PeerClosed => watch.control.has_left(from),
                    _ => {}
                }
                fabric.accepted(*group, from).map(Ok)
            })?;
        }
        Ok(rxs)
    }

    /// Closes every stream.
    pub(crate) fn clear(&mut self) {
        self.out.clear();
        self.into.clear();
    }
}

fn next(counter: &mut u64) -> u64 {
    *counter += 1;
    *counter
}
