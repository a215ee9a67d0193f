//! The one rule that drives a ring, as a cursor over a [`LanePlan`]: no clock, no I/O, no data.
//!
//! In step *s* a lane sends the segment that it received in step *s−1*. So all that a lane sends is one stream: its own
//! first segment (the *head*), then exactly what it receives. Byte *B* of that stream may be sent once *B − head* bytes
//! have been received **and applied**: whole elements where they are reduced, bytes where they are copied. There is no
//! barrier between steps, nor between the reducing and the copying half, and no receive overwrites a range that is still
//! to be sent. Lengths are bytes.

use crate::plan::LanePlan;

/// Where a stream stands: a step, and an offset in that step's segment.
#[derive(Debug, Clone, Copy, Default)]
struct Position {
    step: usize,
    offset: usize,
    total: usize,
}

/// A lane's progress.
#[derive(Debug)]
pub(crate) struct Cursor {
    plan: LanePlan,
    sent: Position,
    applied: Position,
}

/// A run of bytes in one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The segment.
    pub(crate) segment: usize,
    /// Where in the segment it begins.
    pub(crate) offset: usize,
    /// How long it is, at least 1.
    pub(crate) len: usize,
}

impl Cursor {
    /// At the beginning of `plan`.
    pub(crate) fn new(plan: LanePlan) -> Self {
        let mut this = Self { plan, sent: Position::default(), applied: Position::default() };
        this.skip_empty();
        this
    }

    /// The plan.
    pub(crate) fn plan(&self) -> &LanePlan {
        &self.plan
    }

    /// The next bytes that may be sent now, if any.
    pub(crate) fn sendable(&self) -> Option<Run> {
        if self.sent.step == self.plan.sends {
            return None;
        }
        let allowed = self.plan.head + self.applied.total;
        let segment = self.plan.sent(self.sent.step);
        let len = (self.plan.len(segment) - self.sent.offset).min(allowed.saturating_sub(self.sent.total));
        (len > 0).then_some(Run { segment, offset: self.sent.offset, len })
    }

    /// `n` bytes of [`sendable`](Self::sendable) were sent.
    pub(crate) fn sent(&mut self, n: usize) {
        self.sent.offset += n;
        self.sent.total += n;
        self.skip_empty();
    }

    /// Where the next received bytes go, and whether they are reduced there; `None` when all have been received.
    pub(crate) fn receivable(&self) -> Option<(Run, bool)> {
        if self.applied.step == self.plan.receives {
            return None;
        }
        let segment = self.plan.received(self.applied.step);
        let len = self.plan.len(segment) - self.applied.offset;
        Some((Run { segment, offset: self.applied.offset, len }, self.applied.step < self.plan.reducing))
    }

    /// `n` bytes of [`receivable`](Self::receivable) were applied to the data.
    pub(crate) fn applied(&mut self, n: usize) {
        self.applied.offset += n;
        self.applied.total += n;
        self.skip_empty();
    }

    /// How many bytes it has received and applied.
    pub(crate) fn bytes_applied(&self) -> usize {
        self.applied.total
    }

    /// Whether all is sent.
    pub(crate) fn all_sent(&self) -> bool {
        self.sent.step == self.plan.sends
    }

    /// Whether all is received and applied.
    pub(crate) fn all_applied(&self) -> bool {
        self.applied.step == self.plan.receives
    }

    /// Steps over what is complete, and over segments without bytes.
    fn skip_empty(&mut self) {
        let plan = &self.plan;
        while self.sent.step < plan.sends && self.sent.offset == plan.len(plan.sent(self.sent.step)) {
            self.sent = Position { step: self.sent.step + 1, offset: 0, total: self.sent.total };
        }
        while self.applied.step < plan.receives && self.applied.offset == plan.len(plan.received(self.applied.step)) {
            self.applied = Position { step: self.applied.step + 1, offset: 0, total: self.applied.total };
        }
    }
}
