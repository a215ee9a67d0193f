//! The checks of what nuvec's `Communicator` does not have: reduce-scatter, broadcast and barrier, on a second group
//! that is formed with the transport and the collectives themselves.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nuvec_collectives::{Communicator, DType, Options as CollectiveOptions, Reduction};
use nuvec_launch_env::{Jaccl, QueuePairsName, Ring, Settings, Topology};
use nuvec_transport::Fabric;
use nuvec_transport_rdma as rdma;
use nuvec_transport_tcp::{Address, Key, Options};

use crate::cases::{self, Case, Failure, Selection};
use crate::for_each_dtype;
use crate::sample::{Sample, hash};

/// The variable that names the second group's hostfile, of the same form as `MLX_HOSTFILE`.
pub const HOSTFILE: &str = "NUVEC_RING_TEST_HOSTFILE";
/// The variable that names the second group's coordinator, as `MLX_JACCL_COORDINATOR` does the first's.
pub const COORDINATOR: &str = "NUVEC_RING_TEST_COORDINATOR";

/// The second group's checks that are wanted, once it is formed: as the environment says of the facade's, but for the
/// hostfile, which [`HOSTFILE`] names, or the coordinator ([`COORDINATOR`]). None if neither is set.
///
/// `one_machine`: all ranks share this machine's clock, so times of theirs can be compared. Errors: the environment is
/// wrong, or the group does not form.
pub fn cases(one_machine: bool, selection: &Selection) -> Result<Vec<Case>, String> {
    let set = |name: &str| std::env::var_os(name);
    let of_second = |name: &str| match name {
        "MLX_HOSTFILE" => set(HOSTFILE),
        "MLX_JACCL_COORDINATOR" => set(COORDINATOR),
        _ => set(name),
    };
    if set(HOSTFILE).is_none() && set(COORDINATOR).is_none() {
        return Ok(Vec::new());
    }
    let env = nuvec_launch_env::read(&of_second).map_err(|e| e.to_string())?;
    let text = |e: nuvec_transport::Error| e.to_string();
    Ok(match (env.ring, env.jaccl) {
        (Some(ring), _) => of_group(&Arc::new(over_tcp(&ring, &env.settings).map_err(text)?), one_machine, selection),
        (_, Some(jaccl)) => {
            of_group(&Arc::new(over_rdma(&jaccl, &env.settings).map_err(text)?), one_machine, selection)
        }
        (None, None) => Vec::new(),
    })
}

/// Forms the group over RDMA.
fn over_rdma(jaccl: &Jaccl, settings: &Settings) -> nuvec_transport::Result<Communicator<rdma::RdmaFabric>> {
    let queue_pairs = match settings.queue_pairs {
        None => rdma::QueuePairs::Any,
        Some(QueuePairsName::Reliable) => rdma::QueuePairs::Reliable,
        Some(QueuePairsName::Unreliable) => rdma::QueuePairs::Unreliable,
    };
    let options = rdma::Options::from(tcp_options(settings)?).queue_pairs(queue_pairs).gid_index(settings.gid_index);
    let topology = match jaccl.topology() {
        Topology::Ring => rdma::Topology::Ring,
        Topology::Mesh => rdma::Topology::Mesh,
    };
    let coordinator = Address::new(jaccl.coordinator.host(), jaccl.coordinator.port());
    Communicator::form(CollectiveOptions::default(), |handler| {
        rdma::connect(&coordinator, &jaccl.devices, jaccl.rank, topology, &options, handler)
    })
}

/// Forms the group over TCP.
fn over_tcp(ring: &Ring, settings: &Settings) -> nuvec_transport::Result<Communicator<nuvec_transport_tcp::TcpFabric>> {
    let options = tcp_options(settings)?;
    let address = |a: &nuvec_launch_env::Address| Address::new(a.host(), a.port());
    let nodes: Vec<Vec<Address>> = ring.nodes.iter().map(|node| node.iter().map(address).collect()).collect();
    Communicator::form(CollectiveOptions::default(), |handler| {
        nuvec_transport_tcp::connect(&nodes, ring.rank, &options, handler)
    })
}

fn tcp_options(settings: &Settings) -> nuvec_transport::Result<Options> {
    let mut options = Options::default();
    if let Some(timeout) = settings.timeout {
        options = options.timeout(timeout);
    }
    if let Some(key) = &settings.key {
        options = options.key(Key::new(key.as_bytes())?);
    }
    Ok(options)
}

impl From<nuvec_transport::Error> for Failure {
    fn from(error: nuvec_transport::Error) -> Self {
        Self::Call(error.to_string())
    }
}

/// Every wanted check of a group.
fn of_group<F: Fabric + 'static>(group: &Arc<Communicator<F>>, one_machine: bool, selection: &Selection) -> Vec<Case> {
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

fn reduce_scatters<T: Sample>(
    group: &Arc<Communicator<impl Fabric + 'static>>,
    selection: &Selection,
    cases: &mut Vec<Case>,
) {
    for length in selection.lengths(group.size(), T::DTYPE.size()) {
        for reduction in Reduction::ALL {
            cases.push(reduce_scatter::<T>(group.clone(), reduction, length));
        }
    }
}

/// Every rank gives a block of `length` elements for each rank, and gets its own block reduced over all ranks.
fn reduce_scatter<T: Sample>(
    group: Arc<Communicator<impl Fabric + 'static>>,
    reduction: Reduction,
    length: usize,
) -> Case {
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
fn broadcast(group: Arc<Communicator<impl Fabric + 'static>>, root: usize, length: usize) -> Case {
    Case::new(format!("broadcast/{root}/{length}"), move |ring, name| {
        let seed = ring.seed_of(name);
        let data = |rank| (0..length).map(|i| hash(seed, rank, i) as u8).collect::<Vec<_>>();
        let mut got = data(group.rank());
        group.broadcast(root, &mut got)?;
        ring.compare(name, &mut got, &data(root))
    })
}

/// No rank leaves before the last has come. Each comes at another time.
fn barrier(group: Arc<Communicator<impl Fabric + 'static>>, one_machine: bool, round: usize) -> Case {
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
