//! What every rank says of itself: alive, in which call, waiting for whom. The messages, and the table that they fill.
//!
//! A rank numbers its reports; a newer report replaces an older one of the same rank wherever it arrives, and is passed
//! on once. *Gone* is final and beats every report.
//!
//! ```text
//! Status:  type u8 = 2 · entries
//! entry:   rank u32 · counter u64 · state u8 (0 idle, 1 in a call, 2 gone) · if in a call:
//!          group u64 · sequence u64 · operation u8 · age u32 (ms) · number of waits u8 · waits u32 each
//! Request: type u8 = 3 · asking rank u32 · number u64
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use nuvec_transport::{GroupId, MAX_CONTROL_MESSAGE};

use crate::call::Doing;

/// The type of a Status message.
const STATUS: u8 = 2;
/// The type of a Request message.
const REQUEST: u8 = 3;
/// The most ranks that an entry says it waits for. A rank waits for two in a collective, for one in a message.
const MAX_WAITS: usize = 8;
/// The most calls of one rank that are told of, or believed.
const MAX_CALLS: usize = 16;

/// A call that a rank is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InCall {
    pub(super) group: GroupId,
    pub(super) doing: Doing,
    pub(super) sequence: u64,
    /// Ranks that it waits for, empty while it moves bytes.
    pub(super) waits: Vec<u32>,
    /// For how long it has been in the call, when it said so.
    pub(super) age: Duration,
}

/// What one rank last said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) counter: u64,
    /// When it was heard.
    pub(super) heard: Duration,
    pub(super) calls: Vec<InCall>,
    pub(super) gone: bool,
}

/// One entry of a Status message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) rank: u32,
    pub(super) counter: u64,
    pub(super) state: State,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    InCall(InCall),
    Gone,
}

/// What a message of this module is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Status(Vec<Entry>),
    Request { asking: u32, number: u64 },
}

/// What every rank last said of itself, as far as this rank has heard.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    reports: BTreeMap<u32, Report>,
}

impl Table {
    /// Takes what another rank said; the entries that were news.
    pub(super) fn take(&mut self, entries: Vec<Entry>, now: Duration) -> Vec<Entry> {
        entries.into_iter().filter(|entry| self.take_one(entry, now)).collect()
    }

    fn take_one(&mut self, entry: &Entry, now: Duration) -> bool {
        let report = self.reports.entry(entry.rank).or_default();
        if report.gone || (entry.counter < report.counter && entry.state != State::Gone) {
            return false;
        }
        if entry.state == State::Gone {
            *report = Report { gone: true, heard: now, counter: entry.counter, calls: Vec::new() };
            return true;
        }
        let newer = entry.counter > report.counter;
        if newer {
            *report = Report { counter: entry.counter, heard: now, calls: Vec::new(), gone: false };
        }
        match &entry.state {
            State::InCall(call) => {
                let news = report.calls.len() < MAX_CALLS && !report.calls.iter().any(|c| c.group == call.group);
                if news {
                    report.calls.push(call.clone());
                }
                news
            }
            _ => newer,
        }
    }

    /// What `rank` last said.
    pub(super) fn get(&self, rank: u32) -> Option<&Report> {
        self.reports.get(&rank)
    }

    /// Whether `rank` has left.
    pub(super) fn is_gone(&self, rank: u32) -> bool {
        self.get(rank).is_some_and(|r| r.gone)
    }
}

/// The entries of one report: one per call, or an idle one.
pub(super) fn entries(rank: u32, counter: u64, calls: Vec<InCall>) -> Vec<Entry> {
    if calls.is_empty() {
        return vec![Entry { rank, counter, state: State::Idle }];
    }
    calls.into_iter().take(MAX_CALLS).map(|call| Entry { rank, counter, state: State::InCall(call) }).collect()
}

/// The messages that carry `entries`, as many to a message as fit.
pub(super) fn encode(entries: &[Entry]) -> Vec<Vec<u8>> {
    let mut messages: Vec<Vec<u8>> = Vec::new();
    for entry in entries {
        let bytes = entry.encode();
        match messages.last_mut().filter(|m| m.len() + bytes.len() <= MAX_CONTROL_MESSAGE) {
            Some(message) => message.extend(bytes),
            None => messages.push([vec![STATUS], bytes].concat()),
        }
    }
    messages
}

/// The message that asks every rank for a report.
pub(super) fn encode_request(asking: u32, number: u64) -> Vec<u8> {
    let mut m = vec![REQUEST];
    m.extend(asking.to_le_bytes());
    m.extend(number.to_le_bytes());
    m
}

/// A message of this module, unless it is none or malformed.
pub(super) fn decode(message: &[u8]) -> Option<Message> {
    let (&kind, mut rest) = message.split_first()?;
    match kind {
        REQUEST => Some(Message::Request { asking: u32_of(&mut rest)?, number: u64_of(&mut rest)? }),
        STATUS => {
            let mut entries = Vec::new();
            while !rest.is_empty() {
                entries.push(Entry::decode(&mut rest)?);
            }
            Some(Message::Status(entries))
        }
        _ => None,
    }
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        let mut m = Vec::new();
        m.extend(self.rank.to_le_bytes());
        m.extend(self.counter.to_le_bytes());
        match &self.state {
            State::Idle => m.push(0),
            State::Gone => m.push(2),
            State::InCall(call) => {
                m.push(1);
                m.extend(call.group.0.to_le_bytes());
                m.extend(call.sequence.to_le_bytes());
                m.push(call.doing.code());
                m.extend(u32::try_from(call.age.as_millis()).unwrap_or(u32::MAX).to_le_bytes());
                let waits = &call.waits[..call.waits.len().min(MAX_WAITS)];
                m.push(waits.len() as u8);
                waits.iter().for_each(|w| m.extend(w.to_le_bytes()));
            }
        }
        m
    }

    fn decode(rest: &mut &[u8]) -> Option<Self> {
        let (rank, counter) = (u32_of(rest)?, u64_of(rest)?);
        let state = match u8_of(rest)? {
            0 => State::Idle,
            1 => {
                let (group, sequence) = (GroupId(u64_of(rest)?), u64_of(rest)?);
                let doing = Doing::from_code(u8_of(rest)?);
                let age = Duration::from_millis(u32_of(rest)?.into());
                let count = usize::from(u8_of(rest)?);
                let waits = (0..count).map(|_| u32_of(rest)).collect::<Option<Vec<_>>>()?;
                State::InCall(InCall { group, doing, sequence, waits, age })
            }
            2 => State::Gone,
            _ => return None,
        };
        Some(Self { rank, counter, state })
    }
}

fn u8_of(rest: &mut &[u8]) -> Option<u8> {
    let (&first, after) = rest.split_first()?;
    *rest = after;
    Some(first)
}

fn u32_of(rest: &mut &[u8]) -> Option<u32> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u32::from_le_bytes(*first))
}

fn u64_of(rest: &mut &[u8]) -> Option<u64> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(group: u64) -> InCall {
        InCall {
            group: GroupId(group),
            doing: Doing::from_code(1),
            sequence: 9,
            waits: vec![1, 3],
            age: Duration::from_millis(1500),
        }
    }

    #[test]
    fn reports_survive_the_wire_in_messages_that_fit() {
        let all: Vec<_> = (0..100).flat_map(|rank| entries(rank, 5, vec![call(0), call(7)])).collect();
        let messages = encode(&all);
        assert!(messages.len() > 1 && messages.iter().all(|m| m.len() <= MAX_CONTROL_MESSAGE));
        let back: Vec<_> = messages
            .iter()
            .flat_map(|m| match decode(m) {
                Some(Message::Status(entries)) => entries,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(back, all);
        assert_eq!(decode(&encode_request(3, 4)), Some(Message::Request { asking: 3, number: 4 }));
    }

    #[test]
    fn a_newer_report_replaces_an_older_one_and_is_news_once() {
        let mut table = Table::default();
        let now = Duration::from_secs(1);
        assert_eq!(table.take(entries(1, 2, vec![call(0), call(7)]), now).len(), 2);
        assert_eq!(table.take(entries(1, 2, vec![call(0), call(7)]), now).len(), 0);
        assert_eq!(table.take(entries(1, 1, vec![]), now).len(), 0, "an older one");
        assert_eq!(table.get(1).unwrap().calls.len(), 2);
        assert_eq!(table.take(entries(1, 3, vec![]), now).len(), 1);
        assert!(table.get(1).unwrap().calls.is_empty());
    }

    #[test]
    fn a_report_without_end_is_neither_kept_nor_passed_on() {
        let mut table = Table::default();
        let flood = (0..10_000).map(|group| Entry { rank: 1, counter: 2, state: State::InCall(call(group)) });
        assert_eq!(table.take(flood.collect(), Duration::ZERO).len(), MAX_CALLS);
        assert_eq!(table.get(1).unwrap().calls.len(), MAX_CALLS);
    }

    #[test]
    fn gone_is_final_and_beats_every_counter() {
        let mut table = Table::default();
        table.take(entries(1, 9, vec![call(0)]), Duration::ZERO);
        let gone = Entry { rank: 1, counter: 0, state: State::Gone };
        assert_eq!(table.take(vec![gone.clone()], Duration::ZERO).len(), 1);
        assert_eq!(table.take(vec![gone], Duration::ZERO).len(), 0);
        assert_eq!(table.take(entries(1, 10, vec![]), Duration::ZERO).len(), 0);
        assert!(table.is_gone(1));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(bytes: Vec<u8>, kind in 2_u8..4) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if let Some(Message::Status(entries)) = decode(&bytes) {
                Table::default().take(entries, Duration::ZERO);
            }
        }
    }
}
