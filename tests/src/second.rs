//! The checks of what nuvec's `Communicator` does not have: reduce-scatter, broadcast and barrier, on a second group
//! that is formed with the transport and the collectives themselves.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nuvec_collectives::{AGREEMENT, Communicator, Control, DType, Options as CollectiveOptions, Reduction};
use nuvec_transport::Peer;
use nuvec_transport_tcp::{Address, Key, Options, TcpFabric};
use serde_json::Value;

use crate::cases::{Case, Failure, Selection};
use crate::for_each_dtype;
use crate::sample::{Sample, hash};

/// The variable that names the second group's hostfile, of the same form as `MLX_HOSTFILE`.
pub const HOSTFILE: &str = "NUVEC_RING_TEST_HOSTFILE";

/// The second group.
pub type Second = Communicator<TcpFabric>;

/// Each rank's addresses, from the hostfile that [`HOSTFILE`] names; none if it is not set.
pub fn nodes() -> Result<Option<Vec<Vec<Address>>>, String> {
    let Some(path) = std::env::var_os(HOSTFILE) else { return Ok(None) };
    let wrong = |why: String| format!("{} ({HOSTFILE}): {why}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    let ranks = value.as_array().ok_or_else(|| wrong("expected a list".into()))?;
    let nodes: Option<Vec<Vec<Address>>> =
        ranks.iter().map(|rank| rank.as_array()?.iter().map(|a| address(a.as_str()?)).collect()).collect();
    nodes.map(Some).ok_or_else(|| wrong("expected a list of \"host:port\" per rank".into()))
}

fn address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    Some(Address::new(host, port.parse().ok()?))
}

/// Forms the group, with the key and the time-out of the facade's variables.
pub fn form(nodes: &[Vec<Address>], rank: usize) -> nuvec_transport::Result<Second> {
    let mut options = Options::default().agreement(AGREEMENT);
    if let Some(timeout) = std::env::var("NUVEC_DISTRIBUTED_TIMEOUT").ok().and_then(|t| t.parse().ok()) {
        let usual = options.timeout;
        options = options.timeout(Duration::try_from_secs_f64(timeout).unwrap_or(usual));
    }
    if let Ok(key) = std::env::var("NUVEC_DISTRIBUTED_KEY") {
        options = options.key(Key::new(key.as_bytes())?);
    }
    let first = |node: &Vec<Address>| node.first().map(Address::to_string).unwrap_or_default();
    let peers = nodes.iter().enumerate().map(|(rank, node)| Peer::new(rank, first(node))).collect();
    let control = Control::new(rank, peers, options.timeout);
    let fabric = nuvec_transport_tcp::connect(nodes, rank, &options, control.handler())?;
    Communicator::new(fabric, control, CollectiveOptions::default())
}

impl From<nuvec_transport::Error> for Failure {
    fn from(error: nuvec_transport::Error) -> Self {
        Self::Call(error.to_string())
    }
}

/// Every wanted check. `one_machine`: all ranks share this machine's clock, so times of theirs can be compared.
pub fn cases(group: &Arc<Second>, one_machine: bool, selection: &Selection) -> Vec<Case> {
    let mut cases = Vec::new();
    for_each_dtype!(reduce_scatters(group, selection, &mut cases));
    for root in 0..group.size() {
        for length in selection.lengths(group.size(), 1) {
            cases.push(broadcast(group.clone(), root, length));
        }
    }
    for round in 0..if selection.quick { 3 } else { 10 } {
        cases.push(barrier(group.clone(), one_machine, round));
    }
    cases.retain(|case| selection.wants(&case.name));
    cases
}

fn reduce_scatters<T: Sample>(group: &Arc<Second>, selection: &Selection, cases: &mut Vec<Case>) {
    for length in selection.lengths(group.size(), T::DTYPE.size()) {
        for reduction in [Reduction::Sum, Reduction::Max, Reduction::Min] {
            cases.push(reduce_scatter::<T>(group.clone(), reduction, length));
        }
    }
}

/// Every rank gives a block of `length` elements for each rank, and gets its own block reduced over all ranks.
fn reduce_scatter<T: Sample>(group: Arc<Second>, reduction: Reduction, length: usize) -> Case {
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == T::DTYPE.name());
    let (label, apply): (_, fn(T, T) -> T) = match reduction {
        Reduction::Max => ("max", T::max),
        Reduction::Min => ("min", T::min),
        _ => ("sum", T::sum),
    };
    Case::new(format!("reduce_scatter/{label}/{}/{length}", T::DTYPE.name()), move |ring, name| {
        let seed = ring.seed_of(name);
        let (rank, size) = (group.rank(), group.size());
        let value = |of: usize, i: usize| T::exact(hash(seed, of, i), size);
        let own: Vec<T> = (0..size * length).map(|i| value(rank, i)).collect();
        let mut bytes = T::to_bytes(&own);
        let dtype = dtype.ok_or_else(|| Failure::Wrong(format!("no dtype {}", T::DTYPE.name())))?;
        group.reduce_scatter(&mut bytes, dtype, reduction)?;
        let block = length * T::DTYPE.size();
        let mut got = T::from_bytes(&bytes[rank * block..][..block]);
        let expected: Vec<T> = (rank * length..(rank + 1) * length)
            .map(|i| (1..size).fold(value(0, i), |sum, of| apply(sum, value(of, i))))
            .collect();
        ring.compare(name, &mut got, &expected)
    })
}

/// All ranks get the root's bytes, whatever they had.
fn broadcast(group: Arc<Second>, root: usize, length: usize) -> Case {
    Case::new(format!("broadcast/{root}/{length}"), move |ring, name| {
        let seed = ring.seed_of(name);
        let data = |rank| (0..length).map(|i| hash(seed, rank, i) as u8).collect::<Vec<_>>();
        let mut got = data(group.rank());
        group.broadcast(root, &mut got)?;
        ring.compare(name, &mut got, &data(root))
    })
}

/// No rank leaves before the last has come. Each comes at another time.
fn barrier(group: Arc<Second>, one_machine: bool, round: usize) -> Case {
    Case::new(format!("barrier/{round}"), move |ring, name| {
        let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let delay = hash(ring.seed_of(name), group.rank(), 0) % 20_000;
        std::thread::sleep(Duration::from_micros(delay));
        let came = now();
        group.barrier()?;
        let left = now();
        let mut all = vec![0; 8 * group.size()];
        group.all_gather(&came.to_le_bytes(), &mut all)?;
        let last = u64::from_bytes(&all).into_iter().max().unwrap_or_default();
        let early = one_machine && left < last;
        let mut verdict = [!early];
        if early {
            return Err(Failure::Wrong(format!("left {} µs before the last rank came", last - left)));
        }
        ring.compare(name, &mut verdict, &[true])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_cut_at_the_last_colon_and_lose_their_brackets() {
        let shown = |text| address(text).map(|a| (a.host().to_string(), a.port()));
        assert_eq!(shown("127.0.0.1:5000"), Some(("127.0.0.1".into(), 5000)));
        assert_eq!(shown("[fe80::1%en5]:5000"), Some(("fe80::1%en5".into(), 5000)));
        assert_eq!(shown("nothing"), None);
    }
}
