//! What a rank tells the others of its queue pairs, as bytes.

use nuvec_transport::{Error, Kind, Result};

use crate::plan::Role;
use crate::verbs::{Gid, QueuePairType};

/// The first bytes of every card, with the version of what follows.
const MAGIC: [u8; 8] = *b"nuvrdma1";

/// Bytes of an offer.
const OFFER: usize = 40;

/// One queue pair, as its owner offers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    /// For whom it is.
    pub(crate) peer: u16,
    pub(crate) role: Role,
    pub(crate) index: u16,
    pub(crate) kind: QueuePairType,
    /// The port's active MTU, as verbs count them.
    pub(crate) mtu: u8,
    pub(crate) lid: u16,
    /// The most messages in each queue, and the longest message in bytes.
    pub(crate) depth: u32,
    pub(crate) message: u32,
    pub(crate) number: u32,
    /// The first sequence number of the packets that it sends.
    pub(crate) sequence: u32,
    pub(crate) gid: Gid,
}

/// The card with these offers.
pub(crate) fn encode(offers: &[Offer]) -> Vec<u8> {
    let mut card = Vec::with_capacity(MAGIC.len() + offers.len() * OFFER);
    card.extend(MAGIC);
    for offer in offers {
        card.extend(offer.peer.to_le_bytes());
        card.extend(offer.index.to_le_bytes());
        card.extend(offer.lid.to_le_bytes());
        card.push(offer.role.code() << 1 | u8::from(offer.kind == QueuePairType::Uc));
        card.push(offer.mtu);
        for number in [offer.depth, offer.message, offer.number, offer.sequence] {
            card.extend(number.to_le_bytes());
        }
        card.extend(offer.gid.0);
    }
    card
}

/// The offers of a card that `from` sent. Errors: [`Kind::Mismatch`]: it is none of ours.
pub(crate) fn decode(card: &[u8], from: usize) -> Result<Vec<Offer>> {
    let offers = card.strip_prefix(&MAGIC).filter(|rest| rest.len() % OFFER == 0);
    let offers = offers.and_then(|rest| rest.chunks_exact(OFFER).map(offer).collect());
    offers.ok_or_else(|| {
        Error::new(Kind::Mismatch, format!("rank {from} announced itself in a form that is not known here"))
            .with_advice("run the same version on every rank")
    })
}

fn offer(bytes: &[u8]) -> Option<Offer> {
    let short = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let what = *bytes.get(6)?;
    Some(Offer {
        peer: short(0)?,
        index: short(2)?,
        lid: short(4)?,
        role: Role::from_code(what >> 1)?,
        kind: if what & 1 == 1 { QueuePairType::Uc } else { QueuePairType::Rc },
        mtu: *bytes.get(7)?,
        depth: long(8)?,
        message: long(12)?,
        number: long(16)?,
        sequence: long(20)?,
        gid: Gid(*bytes.get(24..)?.first_chunk()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_offer() -> impl Strategy<Value = Offer> {
        let role = prop_oneof![Just(Role::Right), Just(Role::Left), Just(Role::Mesh), Just(Role::Stream)];
        let kind = prop_oneof![Just(QueuePairType::Rc), Just(QueuePairType::Uc)];
        let shorts = (any::<u16>(), any::<u16>(), any::<u16>(), any::<u8>());
        (role, kind, shorts, any::<[u32; 4]>(), any::<[u8; 16]>()).prop_map(|(role, kind, shorts, longs, gid)| {
            let (peer, index, lid, mtu) = shorts;
            let [depth, message, number, sequence] = longs;
            Offer { peer, role, index, kind, mtu, lid, depth, message, number, sequence, gid: Gid(gid) }
        })
    }

    proptest! {
        #[test]
        fn a_card_says_what_it_was_made_of(offers in proptest::collection::vec(any_offer(), 0..20)) {
            prop_assert_eq!(decode(&encode(&offers), 1).unwrap(), offers);
        }

        #[test]
        fn any_other_bytes_are_refused_or_read_but_never_trusted(
            offers in proptest::collection::vec(any_offer(), 0..3),
            cut in 0_usize..200,
            noise in any::<(usize, u8)>(),
        ) {
            let mut card = encode(&offers);
            let length = card.len();
            card[noise.0 % length] ^= noise.1;
            card.truncate(cut);
            match decode(&card, 1) {
                Ok(read) => prop_assert!(read.len() <= offers.len()),
                Err(e) => prop_assert!(e.kind() == Kind::Mismatch && e.to_string().contains("rank 1")),
            }
        }
    }
}
