//! Groups of ranks in this process, and waiting with a bound.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use nuvec_transport::{Channel, Deadline, Error, Fabric, Links, Receiver, Result, Sender, Silent, wait_any};
use nuvec_transport_rdma::fake::{Live, Network};
use nuvec_transport_rdma::{
    Options, QueuePairs, RdmaChannel, RdmaFabric, RdmaReceiver, RdmaSender, Topology, connect_with_listeners,
};
use nuvec_transport_tcp::Address;

/// The longest that any wait of a test lasts.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Both types of queue pair.
pub(crate) const TYPES: [QueuePairs; 2] = [QueuePairs::Reliable, QueuePairs::Unreliable];

/// The matrix in which rank `r` reaches every other by `connections` times the device fake`r`.
pub(crate) fn matrix(size: usize, connections: usize) -> Vec<Vec<Vec<String>>> {
    let cell = |row: usize, column: usize| {
        let count = if row == column { 0 } else { connections };
        vec![format!("fake{row}"); count]
    };
    (0..size).map(|row| (0..size).map(|column| cell(row, column)).collect()).collect()
}

/// What forming a group comes to on every rank; `options` of a rank by its number.
pub(crate) fn form(
    matrix: &[Vec<Vec<String>>],
    topology: Topology,
    options: &(dyn Fn(usize) -> Options + Sync),
) -> Vec<Result<RdmaFabric>> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let coordinator = Address::new("127.0.0.1", listener.local_addr().unwrap().port());
    let mut listener = Some(listener);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..matrix.len())
            .map(|rank| {
                let (coordinator, listeners) = (&coordinator, listener.take().into_iter().collect());
                scope.spawn(move || {
                    let options = options(rank);
                    connect_with_listeners(listeners, coordinator, matrix, rank, topology, &options, Box::new(Silent))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A group in which all goes well.
pub(crate) fn group(network: &Network, size: usize, topology: Topology, queue_pairs: QueuePairs) -> Vec<RdmaFabric> {
    let options = |_| network.options().queue_pairs(queue_pairs);
    form(&matrix(size, 1), topology, &options).into_iter().map(|fabric| fabric.unwrap()).collect()
}

/// Two ranks, and the halves of the channel between them.
pub(crate) struct Two {
    pub(crate) fabrics: [RdmaFabric; 2],
    pub(crate) first: (RdmaSender, RdmaReceiver),
    pub(crate) second: (RdmaSender, RdmaReceiver),
}

pub(crate) fn two(options: &(dyn Fn(usize) -> Options + Sync)) -> Two {
    let fabrics: Vec<_> = form(&matrix(2, 1), Topology::Mesh, options).into_iter().map(|f| f.unwrap()).collect();
    let fabrics: [RdmaFabric; 2] = fabrics.try_into().unwrap();
    let [first, second] = fabrics.each_ref().map(|fabric| channel(fabric).split());
    Two { fabrics, first, second }
}

/// The only channel of a rank in a mesh of two.
pub(crate) fn channel(fabric: &RdmaFabric) -> RdmaChannel {
    match fabric.links().unwrap() {
        Links::Mesh(mut channels) if channels.len() == 1 => channels.remove(0),
        other => panic!("{other:?}"),
    }
}

/// Receives until there is an error, and returns it with the bytes that came before. Panics if there is none in time.
pub(crate) fn error_of_receiving(rx: &mut RdmaReceiver) -> (Error, Vec<u8>) {
    let deadline = Deadline::after(PATIENCE);
    let mut got = Vec::new();
    loop {
        let mut into = [0; 4096];
        match rx.try_recv(&mut into) {
            Ok(n) => got.extend_from_slice(&into[..n]),
            Err(e) => return (e, got),
        }
        assert!(wait_any(&[rx.park()], deadline).unwrap(), "no error after {PATIENCE:?}");
    }
}

/// Sends until there is an error, and returns it. Panics if there is none in time.
pub(crate) fn error_of_sending(tx: &mut RdmaSender) -> Error {
    let deadline = Deadline::after(PATIENCE);
    loop {
        match tx.try_send(&[std::io::IoSlice::new(&[0; 4096])]) {
            Ok(0) => assert!(wait_any(&[tx.park()], deadline).unwrap(), "no error after {PATIENCE:?}"),
            Ok(_) => assert!(!deadline.expired(), "no error after {PATIENCE:?}"),
            Err(e) => return e,
        }
    }
}

/// Waits until nothing is left of what the devices made. Panics with what there is if it stays.
pub(crate) fn nothing_is_left(network: &Network) {
    let began = Instant::now();
    while network.live() != Live::default() {
        assert!(began.elapsed() < PATIENCE, "left: {:?}", network.live());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that depend on where they are, and on `seed`.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| ((i.wrapping_mul(2_654_435_761) >> 13) as u8).wrapping_add(seed)).collect()
}
