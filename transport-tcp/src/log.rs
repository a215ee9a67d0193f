//! Lines of the log that a flood of strangers must not multiply.

use std::time::{Duration, Instant};

/// A line that is logged at most once a second, with the number of those that were held back.
#[derive(Debug, Default)]
pub(crate) struct Warning {
    last: Option<Instant>,
    held: u64,
}

impl Warning {
    /// Logs `text`, or only counts it.
    pub(crate) fn say(&mut self, now: Instant, text: &str) {
        if let Some(line) = self.line(now, text) {
            tracing::warn!("{line}");
        }
    }

    /// What to log now of `text`, if anything.
    pub(crate) fn line(&mut self, now: Instant, text: &str) -> Option<String> {
        self.due(now).then(|| match std::mem::take(&mut self.held) {
            0 => text.to_owned(),
            held => format!("{text} (and {held} more like it)"),
        })
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
        let line = warning.line(start + Duration::from_secs(1), "x").unwrap();
        assert_eq!((line.as_str(), warning.held), ("x (and 199 more like it)", 0));
    }
}
