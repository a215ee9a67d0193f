//! What is known of the ranks that meet: their cards, where they are, and who is ready. No I/O, no clock.
//!
//! A rank introduces itself to rank 0, which introduces it to all others. Introductions follow each other on a link as one
//! stream of bytes, cut into control frames:
//!
//! ```text
//! length u32 (of what follows) · the transport's card[54] · place[16] · the caller's card
//! ```
//! The transport's card is that of a ring ([`cards`](crate::cards)); the place is the IPv6 (or mapped IPv4) address at
//! which rank 0 sees the rank, and zeros where only its introducer could say it. Then each rank says that it is ready by
//! the word with which a ring's says that it has its connections; rank 0 passes it on.

use std::net::{IpAddr, Ipv6Addr};

use nuvec_transport::{MAX_CONTROL_MESSAGE, Peer};

use super::MAX_CARD;
use crate::cards::{CARD, Cards, Learned, READY};

/// Bytes of the length.
const LENGTH: usize = 4;
/// Bytes of the place.
const PLACE: usize = 16;
/// Bytes of an introduction before the caller's card.
const FIXED: usize = LENGTH + CARD + PLACE;

/// What is wrong with something that came: the rank at fault, and a text that follows its name.
pub(super) type Fault = (usize, String);

/// How far a link has been told of the ranks.
#[derive(Debug, Clone, Default)]
struct Told {
    /// Of how many of those that are to be passed on.
    ranks: usize,
    /// How much of the next one's introduction, in bytes.
    bytes: usize,
}

/// What is known of the ranks that meet.
#[derive(Debug)]
pub(super) struct Meeting {
    own: usize,
    pub(super) cards: Cards,
    /// The introduction of each rank that is known, with its length.
    introductions: Vec<Option<Vec<u8>>>,
    /// The ranks that are passed on, in the order in which they became known: all that rank 0 knows, elsewhere its own.
    order: Vec<usize>,
    told: Vec<Told>,
    /// Of each link, what came and is no whole introduction yet.
    inbox: Vec<Vec<u8>>,
}

impl Meeting {
    /// Knows this rank alone.
    pub(super) fn new(own: usize, size: usize, cards: Cards, card: &[u8]) -> Self {
        let mut introduction = u32::try_from(CARD + PLACE + card.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
        cards.known().for_each(|card| introduction.extend(card));
        introduction.extend([0; PLACE]);
        introduction.extend(card);
        let mut introductions = vec![None; size];
        introductions[own] = Some(introduction);
        Self {
            own,
            cards,
            introductions,
            order: vec![own],
            told: vec![Told::default(); size],
            inbox: vec![Vec::new(); size],
        }
    }

    /// Takes the next bytes for the rank at the other end of a link, at most one frame's: of ranks that it does not know.
    pub(super) fn next_piece(&mut self, link: usize) -> Option<&[u8]> {
        let told = &mut self.told[link];
        loop {
            let rank = *self.order.get(told.ranks)?;
            let whole = self.introductions[rank].as_ref()?;
            if rank == link || told.bytes == whole.len() {
                *told = Told { ranks: told.ranks + 1, bytes: 0 };
                continue;
            }
            let from = told.bytes;
            told.bytes = whole.len().min(from + MAX_CONTROL_MESSAGE);
            return Some(&whole[from..told.bytes]);
        }
    }

    /// Whether all that there is to tell has been taken for that link: [`next_piece`](Self::next_piece) has come to its end.
    pub(super) fn has_told_all(&self, link: usize) -> bool {
        self.told[link].ranks == self.order.len()
    }

    /// Takes bytes that came on a link from a rank that is seen at `place`. Errors: they are no introduction that may come
    /// there.
    pub(super) fn take(&mut self, link: usize, place: Option<IpAddr>, piece: &[u8]) -> Result<(), Fault> {
        self.inbox[link].extend_from_slice(piece);
        loop {
            let Some(length) = self.inbox[link].first_chunk().map(|length| u32::from_le_bytes(*length) as usize) else {
                return Ok(());
            };
            if !(CARD + PLACE..=CARD + PLACE + MAX_CARD).contains(&length) {
                return Err((link, format!("sent an introduction of {length} bytes")));
            }
            if self.inbox[link].len() < LENGTH + length {
                return Ok(());
            }
            let rest = self.inbox[link].split_off(LENGTH + length);
            let whole = std::mem::replace(&mut self.inbox[link], rest);
            self.meet(link, place, whole)?;
        }
    }

    fn meet(&mut self, link: usize, place: Option<IpAddr>, mut whole: Vec<u8>) -> Result<(), Fault> {
        let card = &whole[LENGTH..LENGTH + CARD];
        let rank = Cards::rank_of(card);
        // Rank 0 speaks for every rank, another one for itself alone.
        if self.own == 0 && rank != link {
            return Err((link, format!("introduced itself as rank {rank}")));
        }
        match self.cards.learn(card) {
            Learned::New => {}
            Learned::Known => return Ok(()),
            Learned::Malformed(what) => return Err((link, what)),
            Learned::Unfit(rank, what) => return Err((rank, what)),
        }
        if self.own == 0 {
            whole[FIXED - PLACE..FIXED].copy_from_slice(&place.map_or([0; PLACE], octets));
            self.order.push(rank);
        }
        self.introductions[rank] = Some(whole);
        Ok(())
    }

    /// This rank is ready: the word for every link, once.
    pub(super) fn own_ready(&mut self) -> Option<[u8; READY]> {
        self.cards.own_ready()
    }

    /// Takes the word of a rank that is ready; whether it is to be passed on.
    pub(super) fn take_ready(&mut self, link: usize, word: &[u8]) -> Result<bool, Fault> {
        if self.own == 0 && Cards::rank_of(word) != link {
            return Err((link, "sent another rank's word".into()));
        }
        match self.cards.learn_ready(word) {
            Learned::New => Ok(self.own == 0),
            Learned::Known => Ok(false),
            Learned::Malformed(what) | Learned::Unfit(_, what) => Err((link, what)),
        }
    }

    /// Whether a rank has begun to introduce itself and has not finished.
    pub(super) fn began(&self, rank: usize) -> bool {
        self.own == 0 && !self.inbox[rank].is_empty()
    }

    /// Every rank's card, once all are known, as its caller gave it.
    pub(super) fn callers_cards(&self) -> Vec<Vec<u8>> {
        self.introductions
            .iter()
            .map(|whole| whole.as_ref().map_or(Vec::new(), |whole| whole[FIXED..].to_vec()))
            .collect()
    }

    /// A rank, with what is known of where it is; `coordinator` is where rank 0 is.
    pub(super) fn peer(&self, rank: usize, coordinator: &Peer) -> Peer {
        if rank == coordinator.rank {
            return coordinator.clone();
        }
        let place: Option<[u8; PLACE]> = self
            .introductions
            .get(rank)
            .and_then(Option::as_ref)
            .and_then(|whole| whole[FIXED - PLACE..FIXED].try_into().ok())
            .filter(|place| *place != [0; PLACE]);
        match place {
            Some(place) => Peer::new(rank, Ipv6Addr::from(place).to_canonical().to_string()),
            None => absent(rank, coordinator),
        }
    }
}

/// A rank of which nothing is known but whom it dials.
pub(super) fn absent(rank: usize, coordinator: &Peer) -> Peer {
    Peer::new(rank, format!("via {}", coordinator.address))
}

fn octets(place: IpAddr) -> [u8; PLACE] {
    match place {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::{Address, Options};
    use nuvec_transport::Peer;

    fn meeting(own: usize, size: usize, card: &[u8]) -> Meeting {
        let nodes = vec![vec![Address::new("10.0.0.1", 5000)]; size];
        let context = Context::new(&nodes, own, &Options::default()).unwrap();
        Meeting::new(own, size, Cards::own(&context).unwrap(), card)
    }

    /// A rank's card of any length up to a few frames.
    fn card(rank: usize) -> Vec<u8> {
        vec![rank as u8; rank * 700]
    }

    fn place(rank: usize) -> IpAddr {
        IpAddr::from([10, 0, 0, rank as u8 + 1])
    }

    /// Moves all that one has for the other.
    fn tell(from: &mut Meeting, to: &mut Meeting) {
        let (seen, own, link) = (place(from.own), from.own, to.own);
        while let Some(piece) = from.next_piece(link) {
            assert!(piece.len() <= MAX_CONTROL_MESSAGE);
            to.take(own, Some(seen), piece).unwrap();
        }
    }

    #[test]
    fn every_rank_gets_every_card_and_place_whenever_the_ranks_come() {
        for size in 2..=5 {
            let mut all: Vec<_> = (0..size).map(|rank| meeting(rank, size, &card(rank))).collect();
            let (first, rest) = all.split_at_mut(1);
            for rank in 0..rest.len() {
                tell(&mut rest[rank], &mut first[0]);
                rest.iter_mut().for_each(|other| tell(&mut first[0], other));
            }
            let coordinator = Peer::new(0, "10.0.0.1:5000");
            for meeting in &all {
                assert!(meeting.cards.missing().is_empty());
                assert_eq!(meeting.callers_cards(), (0..size).map(card).collect::<Vec<_>>());
                assert_eq!(meeting.cards.summary(), all[0].cards.summary());
                for rank in (1..size).filter(|rank| *rank != meeting.own) {
                    assert_eq!(*meeting.peer(rank, &coordinator).address, place(rank).to_string());
                }
                assert_eq!(meeting.peer(0, &coordinator), coordinator);
            }
        }
    }

    #[test]
    fn a_rank_speaks_for_itself_alone_and_takes_no_memory_with_what_is_no_introduction() {
        let mut first = meeting(0, 3, b"");
        let mut second = meeting(1, 3, b"card");
        let piece = second.next_piece(0).unwrap().to_vec();
        let (rank, what) = first.take(2, None, &piece).unwrap_err();
        assert!(rank == 2 && what.contains("as rank 1"), "{what}");
        for length in [0, 69, 70 + MAX_CARD as u32 + 1, u32::MAX] {
            assert!(meeting(0, 3, b"").take(1, None, &length.to_le_bytes()).is_err(), "{length}");
        }
        // A second process of the rank, and one that runs something else.
        assert_eq!(first.take(1, None, &piece), Ok(()));
        let twin = meeting(1, 3, b"card").next_piece(0).unwrap().to_vec();
        assert!(matches!(first.take(1, None, &twin), Err((1, what)) if what.contains("twice")));
    }

    #[test]
    fn a_word_is_passed_on_once_by_rank_0_and_believed_of_its_own_rank_alone() {
        let (mut first, mut second, mut third) = (meeting(0, 3, b""), meeting(1, 3, b""), meeting(2, 3, b""));
        let word = second.own_ready().unwrap();
        assert!(second.own_ready().is_none());
        assert!(first.take_ready(2, &word).is_err());
        assert_eq!((first.take_ready(1, &word), first.take_ready(1, &word)), (Ok(true), Ok(false)));
        assert_eq!(third.take_ready(0, &word), Ok(false));
        assert_eq!(third.cards.unready(), [0, 2]);
        assert!(first.take_ready(1, b"noise").is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused_and_never_kept_beyond_one_introduction(pieces: Vec<Vec<u8>>, start: bool) {
            let mut meeting = meeting(0, 3, b"");
            if start {
                let _ = meeting.take(1, None, &71_u32.to_le_bytes());
            }
            for piece in pieces {
                if meeting.take(1, None, &piece).is_err() {
                    break;
                }
                proptest::prop_assert!(meeting.inbox[1].len() < FIXED + MAX_CARD);
            }
        }
    }
}
