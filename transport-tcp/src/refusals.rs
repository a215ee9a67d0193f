//! What was refused while the group formed: kept for the error if it does not, and told to the other ranks, so that
//! whichever of them speaks first knows why another is missing.
//!
//! Anybody can be refused, strangers too. So what is kept and told is little, and no refusal ends anything by itself: it
//! only explains, once the time is up, why a rank has not joined.

use nuvec_transport::{Rejection, printable};

/// What to do about keys that differ. How a key is given is not known here.
pub const KEY_ADVICE: &str = "give every rank the same key";

/// The most different refusals that are kept, of those that proved that they have the key, and of others.
const MOST_REFUSALS: usize = 8;

/// A connection that was refused.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    /// Who, and why.
    pub(crate) text: String,
    /// Whether that one has the group's key, as far as there is one.
    pub(crate) proved: bool,
    pub(crate) rejection: Rejection,
}

/// What was refused while the group formed, for the error if it does not.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Of ranks that have the key, if there is one.
    proved: Vec<(String, u64)>,
    /// Of anybody.
    others: Vec<(String, u64)>,
    further: u64,
    /// Whether a key was a reason.
    key: bool,
}

impl Refusals {
    /// Notes a refusal. Strangers cannot take the place of those that have proved that they have the key.
    pub(crate) fn add(&mut self, refusal: Refusal) {
        let Refusal { text, proved, rejection } = refusal;
        self.key |= rejection == Rejection::Key;
        let kept = if proved { &mut self.proved } else { &mut self.others };
        if let Some((_, count)) = kept.iter_mut().find(|(known, _)| *known == text) {
            *count += 1;
        } else if kept.len() < MOST_REFUSALS {
            kept.push((text, 1));
        } else {
            self.further += 1;
        }
    }

    /// Whether a key was a reason.
    pub(crate) fn of_key(&self) -> bool {
        self.key
    }

    /// Whether nothing was refused.
    pub(crate) fn is_empty(&self) -> bool {
        self.proved.is_empty() && self.others.is_empty()
    }

    /// All that rank `by` refused in one line, if there is anything.
    pub(crate) fn text(&self, by: usize) -> Option<String> {
        let mut all: Vec<String> = Vec::new();
        for (text, count) in self.proved.iter().chain(&self.others) {
            all.push(if *count == 1 { text.clone() } else { format!("{text} ({count} times)") });
        }
        if all.is_empty() {
            return None;
        }
        if self.further > 0 {
            all.push(format!("{} others", self.further));
        }
        Some(format!("refused by rank {by}: {}", all.join(", ")))
    }
}

/// The most refusals of one rank that the others are told, and of all ranks: what waits for a link is bounded.
const MOST_TOLD: (usize, usize) = (4, 64);
/// The longest text that is told, in bytes.
const LONGEST: usize = 200;

/// A refusal, as the rank that refused tells it to the others: the rank u32, little-endian, whether a key was the reason
/// u8, and the text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Telling {
    by: usize,
    key: bool,
    text: String,
}

impl Telling {
    fn write(&self) -> Vec<u8> {
        let mut bytes = u32::try_from(self.by).unwrap_or(u32::MAX).to_le_bytes().to_vec();
        bytes.push(self.key.into());
        bytes.extend_from_slice(self.text.as_bytes());
        bytes
    }

    /// Text from another process is made a part of a line.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (by, rest) = bytes.split_first_chunk()?;
        let (key, text) = rest.split_first()?;
        let text = String::from_utf8_lossy(text.get(..LONGEST).unwrap_or(text));
        Some(Self { by: u32::from_le_bytes(*by) as usize, key: *key != 0, text: printable(&text) })
    }
}

/// What ranks have told each other of those that they refused.
#[derive(Debug, Default)]
pub(crate) struct Told {
    all: Vec<Telling>,
}

impl Told {
    /// Notes what rank `by`, this one, refused: the bytes to tell the others, if it is new and not too much.
    pub(crate) fn refused(&mut self, by: usize, refusal: &Refusal) -> Option<Vec<u8>> {
        let Refusal { text, rejection, .. } = refusal;
        let mut end = text.len().min(LONGEST);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let telling = Telling { by, key: *rejection == Rejection::Key, text: text[..end].to_owned() };
        let bytes = telling.write();
        self.keep(telling).then_some(bytes)
    }

    /// Takes what came from a rank of a group of `size`: whether it is to be passed on.
    pub(crate) fn learn(&mut self, bytes: &[u8], size: usize) -> bool {
        Telling::read(bytes).is_some_and(|telling| telling.by < size && self.keep(telling))
    }

    fn keep(&mut self, telling: Telling) -> bool {
        let of_its = self.all.iter().filter(|other| other.by == telling.by).count();
        let new = !self.all.contains(&telling) && of_its < MOST_TOLD.0 && self.all.len() < MOST_TOLD.1;
        if new {
            self.all.push(telling);
        }
        new
    }

    /// Everything, as bytes, for a link that comes up.
    pub(crate) fn known(&self) -> impl Iterator<Item = Vec<u8>> {
        self.all.iter().map(Telling::write)
    }

    /// What rank `by` refused in one line, if it told of anything; and whether a key was a reason.
    pub(crate) fn text(&self, by: usize) -> Option<(String, bool)> {
        let of_its = || self.all.iter().filter(|telling| telling.by == by);
        let texts: Vec<&str> = of_its().map(|telling| telling.text.as_str()).collect();
        let line = format!("refused by rank {by}: {}", texts.join(", "));
        (!texts.is_empty()).then(|| (line, of_its().any(|telling| telling.key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: impl Into<String>, proved: bool) -> Refusal {
        Refusal { text: text.into(), proved, rejection: if proved { Rejection::Size } else { Rejection::Key } }
    }

    #[test]
    fn strangers_refusals_do_not_hide_those_of_ranks() {
        let mut refusals = Refusals::default();
        (0..100).for_each(|i| refusals.add(refusal(format!("10.0.0.{i} has another key, or none"), false)));
        refusals.add(refusal("10.0.1.1 (as rank 0) counts 3 ranks", true));
        let text = refusals.text(1).unwrap();
        assert!(text.starts_with("refused by rank 1: 10.0.1.1 (as rank 0) counts 3 ranks, 10.0.0.0 has"), "{text}");
    }

    #[test]
    fn refusals_are_counted_and_bounded() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.text(3), None);
        for i in 0..1000 {
            refusals.add(refusal(format!("10.0.0.{} has another key, or none", i % 20), false));
        }
        assert_eq!((refusals.others.len(), refusals.further), (MOST_REFUSALS, 600));
        let text = refusals.text(3).unwrap();
        assert!(
            text.starts_with("refused by rank 3: 10.0.0.0 has another key, or none (50 times), 10.0.0.1"),
            "{text}"
        );
        assert!(text.ends_with("600 others"), "{text}");
    }

    #[test]
    fn what_a_rank_refused_is_told_once_in_bounds_and_as_part_of_one_line() {
        let (mut here, mut there) = (Told::default(), Told::default());
        let refused = refusal("10.0.0.2 has another key,\nor none", false);
        let told = here.refused(3, &refused).unwrap();
        assert!(here.refused(3, &refused).is_none());
        assert!(there.learn(&told, 4) && !there.learn(&told, 4));
        assert!(!Told::default().learn(&told, 3), "there is no rank 3 of 3");
        assert_eq!(there.text(3), Some(("refused by rank 3: 10.0.0.2 has another key, or none".into(), true)));
        assert_eq!((there.text(2), there.known().count()), (None, 1));
        for noise in [&[][..], &[0; 4]] {
            assert!(!there.learn(noise, 4));
        }
        let flood = (0..1000).filter(|i| here.refused(i % 100, &refusal(format!("{i}").repeat(100), true)).is_some());
        assert_eq!(flood.count(), MOST_TOLD.1 - 1);
        assert!(here.known().all(|bytes| bytes.len() <= 5 + LONGEST));
    }
}
