//! The rank, which the ring and JACCL share.

use crate::error::{ErrorKind, Excerpt};

/// The variable that both kinds of launch set.
pub(crate) const MLX_RANK: &str = "MLX_RANK";

/// What an error says was expected of a rank's variable that is empty.
pub(crate) const EXPECTED: &str = "a rank, a whole number from 0";

/// A number below `size`, in decimal digits alone. Text beside a number, which C's atoi would ignore, is an error.
pub(crate) fn parse(text: &str, size: usize) -> Result<usize, ErrorKind> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<usize>() {
        Ok(rank) if digits && rank < size => Ok(rank),
        _ => Err(ErrorKind::BadRank { value: Excerpt::new(text), size }),
    }
}
