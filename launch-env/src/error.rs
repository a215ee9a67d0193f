//! The one error type: where something stands, and what is wrong with it. Every text that a user reads is written here
//! or in [`AddressFault`](crate::AddressFault), so that a hostfile's fault and a program's have the same words.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::address::AddressError;
use crate::file::MAX_FILE_BYTES;
use crate::settings::{MAX_SPIN, MAX_TIMEOUT, MIN_KEY_BYTES};

/// Something in the launch environment that is wrong.
///
/// It prints as one line, `file (VARIABLE): where in it: what is wrong: what was expected`, or
/// `VARIABLE: what is wrong: what was expected`. Values are shown cut to a sane length and with control characters
/// escaped; the key is never shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", self.0.place, self.0.kind)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    place: Place,
    kind: ErrorKind,
}

impl Error {
    pub(crate) fn new(origin: Origin, spot: Spot, kind: ErrorKind) -> Self {
        Self(Box::new(Inner { place: Place { origin, spot }, kind }))
    }

    /// Where the wrong thing stands.
    pub fn place(&self) -> &Place {
        &self.0.place
    }

    /// What is wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }
}

/// Where something stands: in what, and where in that.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The file, variable or argument.
    pub origin: Origin,
    /// The spot in it.
    pub spot: Spot,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Variable(name) => f.write_str(name),
            Origin::Argument(name) => match self.spot {
                Spot::Rank(rank) | Spot::Row(rank) => write!(f, "{name}[{rank}]"),
                Spot::Entry { rank: i, entry: j } | Spot::Cell { row: i, column: j } => write!(f, "{name}[{i}][{j}]"),
                Spot::Whole | Spot::Text { .. } => f.write_str(name),
            },
            Origin::File { variable, path } => {
                write!(f, "{} ({variable})", ShownPath(path))?;
                match self.spot {
                    Spot::Whole => Ok(()),
                    Spot::Text { line, column } => write!(f, ": line {line}, column {column}"),
                    Spot::Rank(rank) => write!(f, ": rank {rank}"),
                    Spot::Entry { rank, entry } => write!(f, ": rank {rank}, entry {entry}"),
                    Spot::Row(row) => write!(f, ": row {row}"),
                    Spot::Cell { row, column } => write!(f, ": row {row}, column {column}"),
                }
            }
        }
    }
}

/// What holds a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// An environment variable.
    Variable(&'static str),
    /// A file, and the variable that names it.
    File {
        /// The variable that names the file.
        variable: &'static str,
        /// The path as the variable has it.
        path: PathBuf,
    },
    /// An argument that a program passed, as in [`parse_nodes`](crate::parse_nodes).
    Argument(&'static str),
}

/// A spot in a file or argument. Ranks, entries, rows and columns count from 0, lines and columns of text from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spot {
    /// The whole of it.
    Whole,
    /// A place in text that is no JSON.
    Text {
        /// The line.
        line: usize,
        /// The column, in bytes.
        column: usize,
    },
    /// All that a hostfile has for one rank.
    Rank(usize),
    /// One address in a hostfile.
    Entry {
        /// The rank.
        rank: usize,
        /// Which of the rank's addresses.
        entry: usize,
    },
    /// A row of the device matrix.
    Row(usize),
    /// A cell of the device matrix.
    Cell {
        /// The row: the rank whose devices these are.
        row: usize,
        /// The column: the rank that they lead to.
        column: usize,
    },
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Part of a launch is set and the rest is not.
    #[error("is set, but {} not: expected all of them, or none", are_names(.missing))]
    Incomplete {
        /// The variables that are not set, each by MLX's name for it.
        missing: Vec<&'static str>,
    },
    /// `MLX_RANK` is set, and neither `MLX_HOSTFILE` nor any of JACCL's variables.
    #[error(
        "is set, but neither MLX_HOSTFILE (for the TCP ring) nor MLX_IBV_DEVICES and MLX_JACCL_COORDINATOR (for JACCL) \
         are: expected all of a launch, or nothing of one"
    )]
    RankAlone,
    /// The variable is set to nothing.
    #[error("is set but empty: expected {expected}")]
    EmptyVariable {
        /// What should be there.
        expected: &'static str,
    },
    /// The variable's value is not UTF-8.
    #[error("{value} is not UTF-8: expected text")]
    NotUnicode {
        /// The value, with replacement characters.
        value: Excerpt,
    },
    /// The rank is no number from 0 to `size` − 1.
    #[error("{value} is no rank: expected a whole number from 0 to {}{}", size.saturating_sub(1), of_how_many(*size))]
    BadRank {
        /// The value.
        value: Excerpt,
        /// How many ranks there are.
        size: usize,
    },
    /// The hostfile is blank, which is a ring of rank 0 alone, and the rank is another.
    #[error(
        "{value} is no rank: expected 0, or a hostfile with addresses, since the one that MLX_HOSTFILE names is blank"
    )]
    BlankHostfile {
        /// The value of `MLX_RANK`.
        value: Excerpt,
    },
    /// The time-out is no number of seconds in range.
    #[error("{value} is no time-out: expected seconds, more than 0 and at most {}", MAX_TIMEOUT.as_secs())]
    BadTimeout {
        /// The value.
        value: Excerpt,
    },
    /// The time to spin is no number of microseconds in range.
    #[error("{value} is no time to spin: expected whole microseconds from 0 (never) to {}", MAX_SPIN.as_micros())]
    BadSpin {
        /// The value.
        value: Excerpt,
    },
    /// No wire has this name.
    #[error("{value} is no wire: expected \"native\" or \"mlx\"")]
    BadWire {
        /// The value.
        value: Excerpt,
    },
    /// No type of queue pairs has this name.
    #[error("{value} is no type of queue pairs: expected \"rc\" (reliable) or \"uc\" (unreliable)")]
    BadQueuePairs {
        /// The value.
        value: Excerpt,
    },
    /// The index is no number.
    #[error("{value} is no index of a GID: expected a whole number from 0 to {}", u32::MAX)]
    BadGidIndex {
        /// The value.
        value: Excerpt,
    },
    /// The key has too few bytes. Neither it nor its length is told.
    #[error("the key is too short: expected at least {MIN_KEY_BYTES} bytes (use 32 random ones)")]
    ShortKey,

    /// The file cannot be read.
    #[error("cannot be read ({reason}): expected a readable file")]
    Unreadable {
        /// The kind of failure.
        error: io::ErrorKind,
        /// Its text, with the errno.
        reason: String,
    },
    /// The path names something else than a regular file. (A pipe can be read only once, and one without a writer
    /// blocks.)
    #[error("is {found}: expected a regular file")]
    NotAFile {
        /// What it is.
        found: &'static str,
    },
    /// The file is larger than [`MAX_FILE_BYTES`].
    #[error("is larger than {MAX_FILE_BYTES} bytes: expected {0}")]
    TooLarge(Shape),
    /// The file's bytes are no UTF-8.
    #[error("byte {offset} is not UTF-8: expected {expected}")]
    NotUtf8 {
        /// The first byte that is not.
        offset: usize,
        /// What the file should hold.
        expected: Shape,
    },
    /// The file is no JSON.
    #[error("is no JSON ({reason}): expected {expected}")]
    NotJson {
        /// The parser's word for it.
        reason: String,
        /// What the file should hold.
        expected: Shape,
    },
    /// The file is empty or white space alone, where that means nothing.
    #[error("is blank: expected {0}")]
    Blank(Shape),
    /// The file is the one that `mlx.launch --hostfile` reads, not the one that it writes for each rank.
    #[error(
        "is the launcher's hostfile (a list of \"ssh\", \"ips\" and \"rdma\"), which mlx.launch --hostfile reads: \
         expected the file that mlx.launch writes for each rank, {0}"
    )]
    LaunchersFile(Shape),
    /// A JSON value of another type.
    #[error("is {found}: expected {expected}")]
    WrongType {
        /// What is there.
        found: String,
        /// What should be there.
        expected: Shape,
    },

    /// There are no ranks at all.
    #[error("is an empty list: expected {0}")]
    NoRanks(Shape),
    /// A rank has no address.
    #[error("has no address: expected {}", Shape::Rank)]
    NoAddresses,
    /// A rank has another number of addresses than rank 0.
    #[error(
        "has {} where rank 0 has {first}: expected equally many for every rank",
        count(*here, "address", "addresses")
    )]
    UnequalAddresses {
        /// How many this rank has.
        here: usize,
        /// How many rank 0 has.
        first: usize,
    },
    /// Text that is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The same endpoint stands at another entry, and this rank, its left or its right has each of both.
    #[error(
        "{value} is also rank {rank}'s entry {entry}: expected every host:port once among those of a rank and its \
         neighbours"
    )]
    Duplicate {
        /// The address.
        value: Excerpt,
        /// The rank of the earlier entry.
        rank: usize,
        /// The earlier entry.
        entry: usize,
    },

    /// A row of the device matrix has another number of columns than the matrix has rows.
    #[error(
        "has {} where the matrix has {}: expected a cell for every rank",
        count(*columns, "column", "columns"),
        count(*rows, "row", "rows")
    )]
    NotSquare {
        /// Columns in this row.
        columns: usize,
        /// Rows in the matrix.
        rows: usize,
    },
    /// A device's name is empty.
    #[error("has an empty name: expected {}", Shape::Device)]
    EmptyDevice,
    /// The devices form neither a mesh nor a ring.
    #[error(
        "is no mesh, since row {}, column {} {mesh}; and no ring, since row {}, column {} {ring}",
        .mesh_at.0, .mesh_at.1, .ring_at.0, .ring_at.1
    )]
    NoTopology {
        /// Row and column of what a mesh forbids.
        mesh_at: (usize, usize),
        /// What a mesh forbids.
        mesh: DeviceFault,
        /// Row and column of what a ring forbids.
        ring_at: (usize, usize),
        /// What a ring forbids.
        ring: DeviceFault,
    },
}

/// What is wrong with a cell of the device matrix, for a mesh or a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceFault {
    /// A rank has devices to itself.
    #[error("has devices from a rank to itself: expected null")]
    OnDiagonal,
    /// There is no device where one is needed.
    #[error("has no device: expected at least one")]
    NoDevice,
    /// The neighbours are connected by unequally many devices.
    #[error(
        "has {} where row 0, column 1 has {first}: expected equally many between all neighbours",
        count(*here, "device", "devices")
    )]
    Unequal {
        /// Devices in this cell.
        here: usize,
        /// Devices from rank 0 to rank 1.
        first: usize,
    },
}

/// What was expected in a file, as its JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// A hostfile.
    Hostfile,
    /// What a hostfile has for one rank.
    Rank,
    /// One address.
    HostPort,
    /// A device file.
    Matrix,
    /// A row of it.
    Row,
    /// A cell of it.
    Cell,
    /// A device's name.
    Device,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hostfile => {
                r#"a JSON list with a list of addresses per rank, as in [["10.0.0.1:5000"], ["10.0.0.2:5000"]]"#
            }
            Self::Rank => r#"the rank's addresses, as in ["10.0.0.1:5000"]"#,
            Self::HostPort => r#"an address as text, as in "10.0.0.1:5000""#,
            Self::Matrix => {
                r#"a JSON matrix of devices from each rank to each, as in [[null, "rdma_en2"], ["rdma_en2", null]]"#
            }
            Self::Row => r#"the rank's devices to each rank, as in [null, "rdma_en2"]"#,
            Self::Cell => r#"null, a device's name, or a list of names"#,
            Self::Device => r#"a device's name, as in "rdma_en2""#,
        })
    }
}

/// Part of a value for a message: quoted, escaped, and cut where it is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    text: String,
    /// The length of the whole in bytes.
    whole: usize,
}

impl Excerpt {
    const MAX_CHARS: usize = 60;

    pub(crate) fn new(text: &str) -> Self {
        let end = text.char_indices().nth(Self::MAX_CHARS).map_or(text.len(), |(at, _)| at);
        Self { text: text[..end].to_owned(), whole: text.len() }
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)?;
        if self.text.len() < self.whole {
            write!(f, "… ({} bytes)", self.whole)?;
        }
        Ok(())
    }
}

/// A path as a user would type it, but with control characters escaped, and only its end where it is very long.
struct ShownPath<'a>(&'a Path);

impl fmt::Display for ShownPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_CHARS: usize = 300;
        let text = self.0.to_string_lossy();
        let skip = text.chars().count().saturating_sub(MAX_CHARS);
        if skip > 0 {
            f.write_str("…")?;
        }
        text.chars().skip(skip).try_for_each(|c| match c {
            '"' | '\'' | '\\' => write!(f, "{c}"),
            _ => write!(f, "{}", c.escape_debug()),
        })
    }
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn of_how_many(size: usize) -> String {
    format!(" ({})", count(size, "rank", "ranks"))
}

/// "A is", "A and B are", "A, B and C are".
fn are_names(names: &[&str]) -> String {
    match names {
        [] => "nothing is".to_owned(),
        [one] => format!("{one} is"),
        [first @ .., last] => format!("{} and {last} are", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_cut_and_its_length_told() {
        let excerpt = Excerpt::new(&"ä".repeat(1000));
        assert_eq!(excerpt.to_string(), format!("\"{}\"… (2000 bytes)", "ä".repeat(60)));
        assert_eq!(Excerpt::new(&"a".repeat(60)).to_string(), format!("\"{}\"", "a".repeat(60)));
    }

    #[test]
    fn control_characters_reach_no_terminal() {
        assert_eq!(Excerpt::new("a\n\"\u{1b}\u{202e}").to_string(), r#""a\n\"\u{1b}\u{202e}""#);
        let path = PathBuf::from("/tmp/it's\u{1b}\n.json");
        assert_eq!(ShownPath(&path).to_string(), "/tmp/it's\\u{1b}\\n.json");
        let shown = ShownPath(Path::new(&"x".repeat(5000))).to_string();
        assert_eq!(shown.chars().count(), 301);
    }
}
