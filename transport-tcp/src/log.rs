//! Warnings that a flood of strangers must not multiply.

use std::time::{Duration, Instant};

/// A warning that is logged at most once a second, with the number of those that were held back.
#[derive(Debug, Default)]
pub(crate) struct Warning {
    last: Option<Instant>,
    held: u64,
}

impl Warning {
    /// Logs `text`, or only counts it.
    pub(crate) fn say(&mut self, now: Instant, text: &str) {
        if self.due(now) {
            match std::mem::take(&mut self.held) {
                0 => tracing::warn!("{text}"),
                held => tracing::warn!("{text} (and {held} more like it)"),
            }
        }
    }

    fn due(&mut self, now: Instant) -> bool {
        let due = self.last.is_none_or(|last| now.duration_since(last) >= Duration::from_secs(1));
        if due {
            self.last = Some(now);
        } else {
            self.held += 1;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_warning_a_second_with_a_count() {
        let (mut warning, start) = (Warning::default(), Instant::now());
        assert!(warning.due(start));
        for ms in 1..200 {
            assert!(!warning.due(start + Duration::from_millis(ms)));
        }
        assert_eq!(warning.held, 199);
        assert!(warning.due(start + Duration::from_secs(1)));
    }
}
