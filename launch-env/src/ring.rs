//! The TCP ring: MLX's hostfile and rank, or nodes that a program has.

use std::collections::HashMap;

use crate::address::Address;
use crate::error::{Error, ErrorKind, Excerpt, Origin, Shape, Spot};
use crate::file::{self, Content};
use crate::rank::{self, MLX_RANK};
use crate::vars::{self, Vars};

const MLX_HOSTFILE: &str = "MLX_HOSTFILE";

/// A ring of ranks, each with the addresses that it listens on.
///
/// `MLX_HOSTFILE` names a file with a JSON list: for every rank a list of `"host:port"`, equally many for each. Rank
/// `r`'s left is `r − 1` and its right `r + 1`, modulo the size.
///
/// Ring and nodes hold to the rules when they come from this crate: at least one rank, `rank` below [`Ring::size`],
/// equally many addresses for each, and no endpoint twice among those of this rank, its left and its right. (Those of
/// others may repeat: a user who knows only their own neighbours fills in placeholders.)
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ring {
    /// This process's rank, from 0.
    pub rank: usize,
    /// For each rank the addresses that it listens on. One rank without any if the hostfile was blank.
    pub nodes: Vec<Vec<Address>>,
}

impl Ring {
    /// Reads the ring's environment: `MLX_HOSTFILE` and `MLX_RANK`. `None` if `MLX_HOSTFILE` is not set.
    ///
    /// A hostfile of white space alone is what `mlx.launch` writes for a single host: with rank 0 it is a ring of one
    /// rank that has no address, with another rank an error.
    ///
    /// # Errors
    ///
    /// `MLX_RANK` is missing or no rank of the ring, the file cannot be read, or what it holds breaks a rule.
    pub(crate) fn read(vars: &dyn Vars) -> Result<Option<Self>, Error> {
        let Some(path) = vars.get(MLX_HOSTFILE) else { return Ok(None) };
        let Some(rank) = vars.get(MLX_RANK) else {
            let kind = ErrorKind::Incomplete { missing: vec![MLX_RANK] };
            return Err(Error::new(Origin::Variable(MLX_HOSTFILE), Spot::Whole, kind));
        };
        let path = file::path(MLX_HOSTFILE, path, "the path of a hostfile")?;
        let origin = Origin::File { variable: MLX_HOSTFILE, path: path.clone() };
        let rank = vars::trimmed(MLX_RANK, rank, rank::EXPECTED)?;
        let bad_rank = |kind| Error::new(Origin::Variable(MLX_RANK), Spot::Whole, kind);
        let nodes = match file::read(&origin, &path, Shape::Hostfile)? {
            Content::Blank => {
                let value = Excerpt::new(&rank);
                let rank = rank::parse(&rank, 1).map_err(|_| bad_rank(ErrorKind::BlankHostfile { value }))?;
                return Ok(Some(Self { rank, nodes: vec![Vec::new()] }));
            }
            Content::Json(value) => texts(&origin, value)?,
        };
        let nodes = parse_addresses(&origin, &nodes)?;
        let rank = rank::parse(&rank, nodes.len()).map_err(bad_rank)?;
        Self::new(&origin, nodes, rank).map(Some)
    }

    fn new(origin: &Origin, nodes: Vec<Vec<Address>>, rank: usize) -> Result<Self, Error> {
        let ring = Self { rank, nodes };
        ring.refuse_duplicates(origin)?;
        Ok(ring)
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// The number of connections to each neighbour, which is the number of addresses of each rank. 0 only for a blank
    /// hostfile.
    pub fn connections(&self) -> usize {
        self.nodes.first().map_or(0, Vec::len)
    }

    fn refuse_duplicates(&self, origin: &Origin) -> Result<(), Error> {
        let (rank, size) = (self.rank, self.size());
        let mut ranks = vec![(rank + size - 1) % size, rank, (rank + 1) % size];
        ranks.sort_unstable();
        ranks.dedup();
        let mut seen = HashMap::new();
        for rank in ranks {
            for (entry, address) in self.nodes[rank].iter().enumerate() {
                if let Some((other, other_entry)) = seen.insert(address.endpoint(), (rank, entry)) {
                    let value = Excerpt::new(&address.to_string());
                    let kind = ErrorKind::Duplicate { value, rank: other, entry: other_entry };
                    return Err(Error::new(origin.clone(), Spot::Entry { rank, entry }, kind));
                }
            }
        }
        Ok(())
    }
}

/// Parses and validates nodes that a program has in place of a hostfile, by the same rules and with the same words; an
/// error's place is `nodes[2][0]` in place of a file.
///
/// # Errors
///
/// The nodes or the rank break a rule of [`Ring`]. There is no blank hostfile here: a rank needs an address.
///
/// ```
/// let nodes = [vec!["10.0.0.1:5000".to_owned()], vec!["10.0.0.2:0".to_owned()]];
/// let error = nuvec_launch_env::parse_nodes(&nodes, 0).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     r#"nodes[1][0]: the port of "10.0.0.2:0" is 0: expected a port from 1 to 65535"#
/// );
/// ```
pub fn parse_nodes(nodes: &[Vec<String>], rank: usize) -> Result<Ring, Error> {
    let origin = Origin::Argument("nodes");
    let nodes = parse_addresses(&origin, nodes)?;
    if rank >= nodes.len() {
        let kind = ErrorKind::BadRank { value: Excerpt::new(&rank.to_string()), size: nodes.len() };
        return Err(Error::new(Origin::Argument("rank"), Spot::Whole, kind));
    }
    Ring::new(&origin, nodes, rank)
}

/// The texts of a hostfile's JSON.
fn texts(origin: &Origin, value: serde_json::Value) -> Result<Vec<Vec<String>>, Error> {
    let at = |spot| move |kind| Error::new(origin.clone(), spot, kind);
    let ranks = file::list(value, Shape::Hostfile).map_err(at(Spot::Whole))?;
    let of_rank = |(rank, entries)| {
        let entries = file::list(entries, Shape::Rank).map_err(at(Spot::Rank(rank)))?;
        let text = |(entry, value)| file::string(value, Shape::HostPort).map_err(at(Spot::Entry { rank, entry }));
        entries.into_iter().enumerate().map(text).collect()
    };
    ranks.into_iter().enumerate().map(of_rank).collect()
}

fn parse_addresses(origin: &Origin, nodes: &[Vec<String>]) -> Result<Vec<Vec<Address>>, Error> {
    let at = |spot, kind| Error::new(origin.clone(), spot, kind);
    let Some(first) = nodes.first() else { return Err(at(Spot::Whole, ErrorKind::NoRanks(Shape::Hostfile))) };
    let of_rank = |(rank, entries): (usize, &Vec<String>)| {
        if entries.is_empty() {
            return Err(at(Spot::Rank(rank), ErrorKind::NoAddresses));
        }
        if entries.len() != first.len() {
            let kind = ErrorKind::UnequalAddresses { here: entries.len(), first: first.len() };
            return Err(at(Spot::Rank(rank), kind));
        }
        let address = |(entry, text): (usize, &String)| {
            text.parse().map_err(|error| at(Spot::Entry { rank, entry }, ErrorKind::Address(error)))
        };
        entries.iter().enumerate().map(address).collect()
    };
    nodes.iter().enumerate().map(of_rank).collect()
}
