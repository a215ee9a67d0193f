//! The checks of what nuvec's `Communicator` does not have: reduce-scatter, broadcast and barrier, on a second group
//! that is formed with the transport and the collectives themselves.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nuvec_collectives::{Communicator, DType, Options as CollectiveOptions, Reduction};
use nuvec_launch_env::{Ring, Settings};
use nuvec_transport_tcp::{Address, Key, Options, TcpFabric};

use crate::cases::{self, Case, Failure, Selection};
use crate::for_each_dtype;
use crate::sample::{Sample, hash};

/// The variable that names the second group's hostfile, of the same form as `MLX_HOSTFILE`.
pub const HOSTFILE: &str = "NUVEC_RING_TEST_HOSTFILE";

/// The second group.
pub type Second = Communicator<TcpFabric>;

/// What the environment says of this group: as of the facade's, but for the hostfile, which [`HOSTFILE`] names. None if
/// that is not set.
pub fn launch() -> Result<Option<(Ring, Settings)>, nuvec_launch_env::Error> {
    if std::env::var_os(HOSTFILE).is_none() {
        return Ok(None);
    }
    let of_second = |name: &str| std::env::var_os(if name == "MLX_HOSTFILE" { HOSTFILE } else { name });
    let env = nuvec_launch_env::read(&of_second)?;
    Ok(env.ring.map(|ring| (ring, env.settings)))
}

/// Forms the group.
pub fn form(ring: &Ring, settings: &Settings) -> nuvec_transport::Result<Second> {
    let mut options = Options::default();
    if let Some(timeout) = settings.timeout {
        options = options.timeout(timeout);
    }
    if let Some(key) = &settings.key {
        options = options.key(Key::new(key.as_bytes())?);
    }
    let address = |a: &nuvec_launch_env::Address| Address::new(a.host(), a.port());
    let nodes: Vec<Vec<Address>> = ring.nodes.iter().map(|node| node.iter().map(address).collect()).collect();
    Communicator::form(CollectiveOptions::default(), |handler| {
        nuvec_transport_tcp::connect(&nodes, ring.rank, &options, handler)
    })
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
        for reduction in Reduction::ALL {
            cases.push(reduce_scatter::<T>(group.clone(), reduction, length));
        }
    }
}

/// Every rank gives a block of `length` elements for each rank, and gets its own block reduced over all ranks.
fn reduce_scatter<T: Sample>(group: Arc<Second>, reduction: Reduction, length: usize) -> Case {
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == T::DTYPE.name());
    Case::new(format!("reduce_scatter/{}/{}/{length}", reduction.name(), T::DTYPE.name()), move |ring, name| {
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
            .map(|i| (1..size).fold(value(0, i), |result, of| cases::reduce(reduction, result, value(of, i))))
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
