//! The rank, which the ring and JACCL share.

use std::ffi::OsString;

use crate::error::{Error, ErrorKind, Excerpt, Origin, Spot};
use crate::vars;

/// The variable that both kinds of launch set.
pub(crate) const MLX_RANK: &str = "MLX_RANK";

/// The text of a rank's variable without the blanks around it; empty is an error.
pub(crate) fn text(name: &'static str, value: OsString) -> Result<String, Error> {
    let text = vars::text(name, value)?;
    match text.trim_ascii() {
        "" => {
            let kind = ErrorKind::EmptyVariable { expected: "a rank, a whole number from 0" };
            Err(Error::new(Origin::Variable(name), Spot::Whole, kind))
        }
        text => Ok(text.to_owned()),
    }
}

/// A number below `size`, in decimal digits alone. Text beside a number, which C's atoi would ignore, is an error.
pub(crate) fn parse(text: &str, size: usize) -> Result<usize, ErrorKind> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<usize>() {
        Ok(rank) if digits && rank < size => Ok(rank),
        _ => Err(ErrorKind::BadRank { value: Excerpt::new(text), size }),
    }
}
