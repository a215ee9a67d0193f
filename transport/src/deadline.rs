//! The end of a wait.

use std::time::{Duration, Instant};

/// The moment at which a wait ends. A duration too long for the clock counts as a hundred years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline `timeout` from now.
    pub fn after(timeout: Duration) -> Self {
        Self::from(Instant::now(), timeout)
    }

    /// The deadline `timeout` after `start`.
    pub fn from(start: Instant, timeout: Duration) -> Self {
        let century = Duration::from_secs(100 * 366 * 86_400);
        Self(start.checked_add(timeout.min(century)).unwrap_or(start))
    }

    /// The deadline at `instant`.
    pub fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// The moment itself.
    pub fn instant(self) -> Instant {
        self.0
    }

    /// How long until then; zero once it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn expired(self) -> bool {
        self.remaining().is_zero()
    }

    /// This deadline, or `timeout` from now if that is sooner.
    pub fn sooner(self, timeout: Duration) -> Self {
        self.min(Self::after(timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_duration_is_a_deadline_too() {
        assert!(!Deadline::after(Duration::MAX).expired());
        assert!(Deadline::after(Duration::ZERO).expired());
    }

    #[test]
    fn a_deadline_counts_from_where_it_is_told_to() {
        let start = Instant::now();
        assert_eq!(Deadline::from(start, Duration::from_secs(3)).instant(), start + Duration::from_secs(3));
    }
}
