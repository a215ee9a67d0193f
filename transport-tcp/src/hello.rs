//! The hello: how two processes find out whether a new connection between them is the one that both want, and prove to
//! each other that they share a key.
//!
//! ```text
//! 1 D→L Open     header ‖ keyed u8, role u8, index u16, k u16, size u32, from u32, to u32, name tag[32],
//!                session[16], group u64, nonce[32]
//! 2 L→D Reply    header ‖ code u8, keyed u8, nonce[32]
//! 3 D→L Proof    keyed_hash(K, "dialler" ‖ Open ‖ Reply)                              with a key only
//! 4 L→D Verdict  code u8, size u32, k u16, rank u32 ‖ keyed_hash(K, "listener" ‖ Open ‖ Reply ‖ Verdict)
//! header         magic[16], version u16, length u16 (of what follows, at most 512)
//! ```
//! Integers are little-endian. The header and the place of Reply's code stay the same in every version, so that
//! processes of different versions understand each other's refusal. The group's data follow on the same connection, so
//! neither side ever asks for a byte more than its next message has ([`Dialler::needs`], [`Listener::needs`]).
//!
//! A listener is silent until it has a whole Open. One with a key says nothing but Reply until the dialler's Proof is
//! good; to a wrong one it answers a Verdict of code `key` whose hash is zeros. (A real hash there would let a dialler
//! without the key guess at it offline.) A dialler with a key believes no Verdict without the right hash. Both nonces are
//! in both hashes, so a recorded hello is worth nothing; the words "dialler" and "listener" are, so one played back at
//! its sender is worth nothing; and Open is, so one relayed to another rank, role or group is worth nothing.
//!
//! What may not live here: sockets, clocks, threads, and the state of the group, which the service thread lends as a
//! [`Judge`].

mod dialler;
mod inbox;
mod listener;
mod message;

pub(crate) use dialler::{Dialler, Refused};
pub(crate) use listener::{Answer, Dropped, Judge, Listener, Place};
pub(crate) use message::{Open, Role};

use nuvec_transport::{Error, Kind, Result};

use crate::key::Key;

/// The first bytes of either side in every version of the protocol.
///
/// A stream of MLX's ring begins with an array's elements, so this is not what elements look like: every four bytes are
/// a signalling NaN as `f32` and every second two as `bf16` (no arithmetic gives one), no byte is a `bool`, and as
/// integers they are large. Text protocols do not send 0xA5 0x7F.
pub(crate) const MAGIC: [u8; 16] = *b"nu\xA5\x7Fve\xA5\x7Fc!\xA5\x7Fhi\xA5\x7F";

/// What this process is to both sides of a hello.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// The group's name; empty by default.
    pub(crate) name: String,
    /// The group's key, if it has one.
    pub(crate) key: Option<Key>,
}

/// Fresh random bytes. Errors: the system has none to give.
pub(crate) fn nonce() -> Result<[u8; 32]> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|e| Error::new(Kind::Io, format!("the system gave no random bytes: {e}")))?;
    Ok(nonce)
}

/// What both sides say of a peer that does not begin with the magic.
const NOT_NUVEC: &str = "does not speak nuvec's protocol; is it MLX? or another program at that port?";
/// What both sides say of a peer that begins as nuvec does and goes on as it does not.
const MALFORMED: &str = "sent a hello that nuvec's protocol does not allow";
/// What an owner of a connection that read more than it was asked for is told.
const TOO_MUCH: &str = "sent more than the hello asked for";

/// Why the keys do not fit, seen from a side that has one or has none.
fn key_text(own: Option<&Key>) -> &'static str {
    match own {
        Some(_) => "has another key, or none",
        None => "has a key, and none was given here",
    }
}

fn version_text(theirs: u16) -> String {
    format!("speaks version {theirs} of nuvec's protocol, not version {}", message::VERSION)
}

fn size_text(theirs: u32, own: u32) -> String {
    format!("counts {theirs} ranks, not {own}; both need the same host list")
}

fn connections_text(theirs: u16, own: u16) -> String {
    format!("counts {theirs} connections per neighbour, not {own}; both need the same host list")
}

/// A group's name for a line of text: quoted, on one line and not endless.
fn quoted(name: &str) -> String {
    let mut chars = name.chars();
    let start: String = chars.by_ref().take(64).collect();
    format!("{start:?}{}", if chars.next().is_some() { "…" } else { "" })
}

#[cfg(test)]
mod tests;
