//! [`Key`]: the secret that the ranks of a group share.
//!
//! What it is for: the hello proves, in both directions, that the other process has the same one. What it does not do:
//! what is sent after the hello is neither encrypted nor authenticated. Nothing here or elsewhere prints a key.

use std::fmt;
use std::sync::Arc;

use nuvec_transport::{Error, Kind, Result};
use zeroize::{Zeroize, Zeroizing};

/// The shortest secret that is taken, in bytes.
const SHORTEST: usize = 16;

/// What the hello's key is derived for. Another use of the same secret derives another key.
const CONTEXT: &str = "nuvec-distributed hello 1";

/// A secret that all ranks of a group share: a connection is used only once both ends have proved that they have it.
///
/// It keeps others out of the group. It does not protect what the ranks say to each other: after the hello the traffic
/// is neither encrypted nor authenticated. A short or guessable secret can be guessed offline by who makes a rank dial
/// him, so use 32 random bytes.
///
/// `Debug` shows only that there is a key; the memory that holds it is wiped when its last clone is dropped.
///
/// ```
/// use nuvec_transport_tcp::Key;
/// let key = Key::new(b"0123456789abcdef0123456789abcdef").unwrap();
/// assert_eq!(format!("{key:?}"), "Key(..)");
/// assert!(Key::new(b"too short").is_err());
/// ```
#[derive(Clone)]
pub struct Key {
    // Shared and not copied: a move of the bytes themselves would leave copies on stacks that nobody wipes.
    derived: Arc<Zeroizing<[u8; 32]>>,
}

impl Key {
    /// The key of this secret, which is not kept: only what is derived from it is. Errors: [`Kind::Misuse`] if it is
    /// shorter than 16 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() < SHORTEST {
            return Err(Error::new(Kind::Misuse, format!("the key is shorter than {SHORTEST} bytes"))
                .with_advice("use 32 random bytes"));
        }
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(bytes);
        let mut hash = hasher.finalize();
        hasher.zeroize();
        let mut derived = Arc::new(Zeroizing::new([0; 32]));
        Arc::make_mut(&mut derived).copy_from_slice(hash.as_bytes());
        hash.zeroize();
        Ok(Self { derived })
    }

    /// The keyed hash over `parts`, one after the other. `==` of the result takes the same time wherever two differ.
    pub(crate) fn authenticate(&self, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.derived);
        for part in parts {
            hasher.update(part);
        }
        let hash = hasher.finalize();
        hasher.zeroize();
        hash
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_under_sixteen_bytes_is_refused_and_not_printed() {
        for length in 0..16 {
            let e = Key::new(&b"Zs3cretZs3cretZ!"[..length]).unwrap_err();
            assert_eq!(e.kind(), Kind::Misuse);
            assert!(!e.to_string().contains("Zs3") && e.to_string().contains("16 bytes"), "{e}");
        }
        assert!(Key::new(b"Zs3cretZs3cretZ!").is_ok());
    }

    #[test]
    fn debug_says_only_that_there_is_a_key() {
        let key = Key::new(&[0x41; 32]).unwrap();
        assert_eq!(format!("{key:?} {:?} {key:#?}", Some(&key)), "Key(..) Some(Key(..)) Key(..)");
    }

    #[test]
    fn the_proof_is_the_keyed_hash_under_the_key_derived_for_the_hello() {
        let secret = [7; 32];
        let derived = blake3::derive_key("nuvec-distributed hello 1", &secret);
        let key = Key::new(&secret).unwrap();
        assert_eq!(key.authenticate(&[b"dial", b"ler"]), blake3::keyed_hash(&derived, b"dialler"));
        assert_ne!(key.authenticate(&[b"dialler"]), Key::new(&[8; 32]).unwrap().authenticate(&[b"dialler"]));
    }
}
