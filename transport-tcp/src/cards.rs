//! Cards: what every rank tells every other while the group forms, and how cards go round. No I/O.
//!
//! A link that comes up is given every card that is known; a card that is new is passed on to the other link. So all
//! cards reach all ranks over any set of links that connects them. The hash of all cards is the session: two runs never
//! share one, because each rank puts fresh random bytes on its card.
//!
//! A card says that its rank is there, not that it has all its connections: cards go round a ring that has a gap. So a
//! rank that has them all says so too, and that word goes round as cards do. A group has formed once both are complete;
//! else one rank could return from forming while another is still being refused by its neighbour.

use std::time::Duration;

use nuvec_transport::Result;

use crate::context::Context;
use crate::hello::nonce;

/// Bytes of a card: rank u32, connections u16, agreement u32, cores u32, time-out in ms u64, nonce[32], little-endian.
pub(crate) const CARD: usize = 54;

/// The longest time-out that counts, in ms: some thirty years. Clocks cannot count on from a moment that is much later.
const LONGEST_MS: u64 = 1_000_000_000_000;

/// Bytes of the word that a rank has all its connections: its rank u32.
pub(crate) const READY: usize = 4;

fn ready_word(rank: usize) -> [u8; READY] {
    u32::try_from(rank).unwrap_or(u32::MAX).to_le_bytes()
}

/// What one rank says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) rank: u32,
    pub(crate) connections: u16,
    pub(crate) agreement: u32,
    pub(crate) cores: u32,
    pub(crate) timeout_ms: u64,
    pub(crate) nonce: [u8; 32],
}

impl Card {
    /// This rank's own card.
    pub(crate) fn own(context: &Context, nonce: [u8; 32]) -> Self {
        let millis = context.options.timeout.as_nanos().div_ceil(1_000_000);
        Self {
            rank: u32::try_from(context.rank).unwrap_or(u32::MAX),
            connections: u16::try_from(context.connections).unwrap_or(u16::MAX),
            agreement: context.agreement,
            cores: own_cores(),
            timeout_ms: u64::try_from(millis).unwrap_or(u64::MAX),
            nonce,
        }
    }

    fn write(&self) -> [u8; CARD] {
        let mut bytes = [0; CARD];
        bytes[0..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.connections.to_le_bytes());
        bytes[6..10].copy_from_slice(&self.agreement.to_le_bytes());
        bytes[10..14].copy_from_slice(&self.cores.to_le_bytes());
        bytes[14..22].copy_from_slice(&self.timeout_ms.to_le_bytes());
        bytes[22..54].copy_from_slice(&self.nonce);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CARD] = bytes.try_into().ok()?;
        Some(Self {
            rank: u32::from_le_bytes(bytes[0..4].try_into().ok()?),
            connections: u16::from_le_bytes(bytes[4..6].try_into().ok()?),
            agreement: u32::from_le_bytes(bytes[6..10].try_into().ok()?),
            cores: u32::from_le_bytes(bytes[10..14].try_into().ok()?),
            timeout_ms: u64::from_le_bytes(bytes[14..22].try_into().ok()?),
            nonce: bytes[22..54].try_into().ok()?,
        })
    }
}

/// The number of processors that this process may use.
pub(crate) fn own_cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
}

/// What a card, or a word, that arrived was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// New: to be passed on to the other link.
    New,
    /// Known already.
    Known,
    /// No card that a rank of this group could have sent; the text follows the sender's name.
    Malformed(String),
    /// A card that cannot be part of this group; the rank at fault, and a text that follows its name.
    Unfit(usize, String),
}

/// The cards that are known here.
#[derive(Debug)]
pub(crate) struct Cards {
    own: usize,
    all: Vec<Option<Card>>,
    ready: Vec<bool>,
}

impl Cards {
    /// Knows this rank's own card alone. Errors: the system has no random bytes to give.
    pub(crate) fn own(context: &Context) -> Result<Self> {
        let nonce = nonce().map_err(|e| e.with_rank(context.rank))?;
        Ok(Self::new(context.size, Card::own(context, nonce)))
    }

    /// Knows its own card alone.
    fn new(size: usize, own: Card) -> Self {
        let mut all = vec![None; size];
        let rank = own.rank as usize;
        all[rank] = Some(own);
        Self { own: rank, all, ready: vec![false; size] }
    }

    /// The rank that a card, or a word, names, whether there is one or not.
    pub(crate) fn rank_of(bytes: &[u8]) -> usize {
        bytes.first_chunk().map_or(usize::MAX, |rank| u32::from_le_bytes(*rank) as usize)
    }

    /// Takes a card that arrived.
    pub(crate) fn learn(&mut self, bytes: &[u8]) -> Learned {
        let Some(card) = Card::read(bytes) else {
            return Learned::Malformed(format!("sent a card of {} bytes, not {CARD}", bytes.len()));
        };
        let rank = card.rank as usize;
        let Some(known) = self.all.get(rank) else {
            return Learned::Malformed(format!("sent the card of a rank {rank} that is not in the group"));
        };
        if let Some(known) = known {
            if *known == card {
                return Learned::Known;
            }
            return Learned::Unfit(rank, "is there twice: two processes claim that rank".into());
        }
        let Some(own) = &self.all[self.own] else { return Learned::Known };
        if card.connections != own.connections {
            let what = format!(
                "has {} connections per neighbour, rank {} has {}; all ranks need the same host list",
                card.connections, self.own, own.connections
            );
            return Learned::Unfit(rank, what);
        }
        if card.agreement != own.agreement {
            let what = format!(
                "would run other algorithms (version {}, rank {} has version {}); all ranks need the same version of \
                 the program",
                card.agreement, self.own, own.agreement
            );
            return Learned::Unfit(rank, what);
        }
        self.all[rank] = Some(card);
        Learned::New
    }

    /// This rank has all its connections now: the word to send on both links, once.
    pub(crate) fn own_ready(&mut self) -> Option<[u8; READY]> {
        let first = !std::mem::replace(&mut self.ready[self.own], true);
        first.then(|| ready_word(self.own))
    }

    /// Takes the word of a rank that has all its connections.
    pub(crate) fn learn_ready(&mut self, bytes: &[u8]) -> Learned {
        let rank = bytes.try_into().map(u32::from_le_bytes).ok();
        match rank.and_then(|rank| self.ready.get_mut(rank as usize)) {
            None => Learned::Malformed("sent word of a rank that is not in the group".into()),
            Some(true) => Learned::Known,
            Some(ready) => {
                *ready = true;
                Learned::New
            }
        }
    }

    /// The words of all ranks that are known to have all their connections.
    pub(crate) fn ready(&self) -> impl Iterator<Item = [u8; READY]> {
        self.ready.iter().enumerate().filter(|(_, ready)| **ready).map(|(rank, _)| ready_word(rank))
    }

    /// The ranks whose connections are not known to be all there.
    pub(crate) fn unready(&self) -> Vec<usize> {
        self.ready.iter().enumerate().filter(|(_, ready)| !**ready).map(|(rank, _)| rank).collect()
    }

    /// Every card that is known, as bytes.
    pub(crate) fn known(&self) -> impl Iterator<Item = [u8; CARD]> {
        self.all.iter().flatten().map(Card::write)
    }

    /// The ranks whose cards are missing.
    pub(crate) fn missing(&self) -> Vec<usize> {
        self.all.iter().enumerate().filter(|(_, card)| card.is_none()).map(|(rank, _)| rank).collect()
    }

    /// Whether every card is known, and every rank has all its connections.
    pub(crate) fn complete(&self) -> bool {
        self.all.iter().all(Option::is_some) && self.ready.iter().all(|ready| *ready)
    }

    /// What all cards together say.
    pub(crate) fn summary(&self) -> Summary {
        let cards = || self.all.iter().flatten();
        let mut hasher = blake3::Hasher::new();
        for card in self.known() {
            hasher.update(&card);
        }
        let mut session = [0; 16];
        session.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Summary {
            session,
            timeout: Duration::from_millis(cards().map(|card| card.timeout_ms).max().unwrap_or(0).min(LONGEST_MS)),
            min_cores: cards().map(|card| card.cores).min().unwrap_or(1).max(1) as usize,
        }
    }
}

/// What all cards together say: the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    /// The run: the first 16 bytes of BLAKE3 over the cards in rank order.
    pub(crate) session: [u8; 16],
    /// The largest time-out of any rank.
    pub(crate) timeout: Duration,
    /// The smallest number of processors of any rank.
    pub(crate) min_cores: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn card(rank: u32) -> Card {
        Card {
            rank,
            connections: 2,
            agreement: 7,
            cores: 4 + rank,
            timeout_ms: 30_000 + u64::from(rank),
            nonce: [rank as u8 + 1; 32],
        }
    }

    #[test]
    fn a_card_reads_as_it_was_written() {
        let card = card(3);
        assert_eq!(Card::read(&card.write()), Some(card.clone()));
        assert_eq!(Card::read(&card.write()[1..]), None);
    }

    /// Ranks on a ring, or on a line where one link never comes up; messages in any order that a seed gives.
    fn flood(size: usize, ring: bool, mut seed: u64) -> Vec<Cards> {
        let mut ranks: Vec<_> = (0..size).map(|r| Cards::new(size, card(r as u32))).collect();
        // (to, whether it came from the left, bytes), one queue per direction of each link.
        let links = if ring { size } else { size - 1 };
        let mut queues: Vec<VecDeque<(usize, bool, Vec<u8>)>> = vec![VecDeque::new(); 2 * size];
        for r in 0..links {
            let right = (r + 1) % size;
            queues[2 * r].extend(ranks[r].known().map(|c| (right, true, c.to_vec())));
            queues[2 * r + 1].extend(ranks[right].known().map(|c| (r, false, c.to_vec())));
        }
        let mut messages = 0;
        while queues.iter().any(|q| !q.is_empty()) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let index = (seed >> 33) as usize % queues.len();
            let Some((to, from_left, bytes)) = queues[index].pop_front() else { continue };
            messages += 1;
            assert!(messages <= 4 * size * size, "cards go round for ever");
            if ranks[to].learn(&bytes) == Learned::New {
                let left = (to + size - 1) % size;
                if from_left && (ring || to + 1 < size) {
                    queues[2 * to].push_back(((to + 1) % size, true, bytes));
                } else if !from_left && (ring || to > 0) {
                    queues[2 * left + 1].push_back((left, false, bytes));
                }
            }
        }
        ranks
    }

    #[test]
    fn every_card_reaches_every_rank_and_all_agree_on_the_session() {
        for size in 2..=8 {
            for seed in 0..50 {
                for ring in [true, false] {
                    let ranks = flood(size, ring, seed);
                    assert!(
                        ranks.iter().all(|cards| cards.missing().is_empty()),
                        "size {size} ring {ring} seed {seed}"
                    );
                    let first = ranks[0].summary();
                    assert!(ranks.iter().all(|r| r.summary() == first));
                    assert_eq!(first.min_cores, 4);
                    assert_eq!(first.timeout, Duration::from_millis(30_000 + size as u64 - 1));
                }
            }
        }
    }

    #[test]
    fn one_other_nonce_is_another_session() {
        let mut a = Cards::new(2, card(0));
        let mut b = Cards::new(2, card(0));
        let mut other = card(1);
        assert_eq!(a.learn(&other.write()), Learned::New);
        other.nonce[31] ^= 1;
        assert_eq!(b.learn(&other.write()), Learned::New);
        assert_ne!(a.summary().session, b.summary().session);
    }

    #[test]
    fn an_enormous_time_out_on_one_card_leaves_everybody_one_that_a_clock_can_count() {
        let mut cards = Cards::new(2, card(0));
        let enormous = Card { timeout_ms: u64::MAX, ..card(1) };
        assert_eq!(cards.learn(&enormous.write()), Learned::New);
        assert_eq!(cards.summary().timeout, Duration::from_secs(1_000_000_000));
        assert!(std::time::Instant::now().checked_add(cards.summary().timeout).is_some());
    }

    #[test]
    fn a_card_that_does_not_fit_names_both_ranks_and_values() {
        let check = |change: &dyn Fn(&mut Card), expected: &[&str]| {
            let mut cards = Cards::new(3, card(0));
            let mut other = card(2);
            change(&mut other);
            let Learned::Unfit(rank, text) = cards.learn(&other.write()) else { panic!("it fits") };
            assert_eq!(rank, 2);
            assert!(expected.iter().all(|e| text.contains(e)), "{text}");
        };
        check(&|c| c.connections = 3, &["3 connections", "rank 0 has 2"]);
        check(&|c| c.agreement = 8, &["other algorithms (version 8", "rank 0 has version 7"]);
    }

    #[test]
    fn a_group_is_complete_once_every_rank_is_there_and_has_its_connections() {
        let mut cards = Cards::new(2, card(0));
        assert_eq!(cards.learn(&card(1).write()), Learned::New);
        let word = cards.own_ready().unwrap();
        assert!(cards.own_ready().is_none() && !cards.complete());
        assert_eq!(cards.learn_ready(&word), Learned::Known);
        assert_eq!(cards.unready(), [1]);
        assert_eq!(cards.learn_ready(&ready_word(1)), Learned::New);
        assert!(cards.complete() && cards.ready().count() == 2);
        for noise in [&[][..], &[2, 0, 0, 0], &[0, 0, 0]] {
            assert!(matches!(cards.learn_ready(noise), Learned::Malformed(_)));
        }
    }

    #[test]
    fn two_processes_of_one_rank_are_found_and_noise_is_no_card() {
        let mut cards = Cards::new(3, card(0));
        assert_eq!(cards.learn(&card(0).write()), Learned::Known);
        let mut twin = card(0);
        twin.nonce[0] = 99;
        assert!(matches!(cards.learn(&twin.write()), Learned::Unfit(0, text) if text.contains("twice")));
        assert!(matches!(cards.learn(&card(3).write()), Learned::Malformed(_)));
        assert!(matches!(cards.learn(b""), Learned::Malformed(_)));
        assert_eq!(cards.missing(), [1, 2]);
    }
}
