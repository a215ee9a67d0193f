//! Runs the suite that every channel kind must pass over this machine's RDMA devices, then measures latency and bandwidth.
//!
//! `conformance [DEVICE DEVICE]`: two ranks, in this process, by these devices (two that reach each other; or one, twice).
//! Without names the first two devices are taken. Soft-RoCE will do: `rdma link add rxe0 type rxe netdev INTERFACE`.

use std::error::Error;
use std::io::IoSlice;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use nuvec_transport::{Channel, ControlHandler, Fabric, LinkId, Outbox, Peer, Receiver, Sender, conformance};
use nuvec_transport_rdma::{Options, QueuePairs, RdmaChannel, RdmaFabric, Topology, connect_with_listeners, devices};
use nuvec_transport_tcp::Address;

/// A handler that says nothing.
struct Silent;

impl ControlHandler for Silent {
    fn link_up(&mut self, _: LinkId, _: &Peer, _: Duration, _: &mut Outbox) {}
    fn message(&mut self, _: LinkId, _: &[u8], _: Duration, _: &mut Outbox) {}
    fn link_ended(&mut self, _: LinkId, _: &nuvec_transport::Error, _: Duration, _: &mut Outbox) {}
    fn forming_failed(&mut self, _: &nuvec_transport::Error, _: Duration, _: &mut Outbox) {}
    fn tick(&mut self, _: Duration, _: &mut Outbox) {}
}

/// Two ranks that are joined by these devices.
fn pair(names: &[String; 2], queue_pairs: QueuePairs) -> Result<[RdmaFabric; 2], Box<dyn Error>> {
    let [first, second] = names.clone();
    let matrix = [vec![vec![], vec![first]], vec![vec![second], vec![]]];
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let coordinator = Address::new("127.0.0.1", listener.local_addr()?.port());
    let options = Options::default().timeout(Duration::from_secs(60)).queue_pairs(queue_pairs);
    let form = |rank: usize, listeners: Vec<TcpListener>| {
        connect_with_listeners(listeners, &coordinator, &matrix, rank, Topology::Mesh, &options, Box::new(Silent))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| form(1, Vec::new()));
        let this = form(0, vec![listener]);
        let other = other.join().map_err(|_| "the other rank panicked")?;
        Ok([this?, other?])
    })
}

/// The channel between two ranks.
fn channel(fabric: &RdmaFabric) -> Result<RdmaChannel, Box<dyn Error>> {
    match fabric.links()? {
        nuvec_transport::Links::Mesh(mut channels) => channels.pop().ok_or_else(|| "no channel".into()),
        nuvec_transport::Links::Ring(_) => Err("a mesh was asked for".into()),
    }
}

/// Half the median time that 8 bytes take there and back, and the megabytes a second of 1 MiB messages one way.
fn measure(channels: [RdmaChannel; 2]) -> Result<(Duration, f64), Box<dyn Error>> {
    const ROUNDS: u32 = 200;
    const LARGE: usize = 1 << 20;
    const LARGE_ROUNDS: usize = 8;
    let [(mut tx, mut rx), (mut other_tx, mut other_rx)] = channels.map(Channel::split);
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            for _ in 0..ROUNDS {
                let got = recv(&mut other_rx, 8)?;
                send(&mut other_tx, &got)?;
            }
            for _ in 0..LARGE_ROUNDS {
                recv(&mut other_rx, LARGE)?;
            }
            send(&mut other_tx, b"received")?;
            Ok::<_, nuvec_transport::Error>((other_tx, other_rx))
        });
        let mut times = Vec::new();
        for round in 0..u64::from(ROUNDS) {
            let began = Instant::now();
            send(&mut tx, &round.to_le_bytes())?;
            if recv(&mut rx, 8)? != round.to_le_bytes() {
                return Err("another number came back".into());
            }
            times.push(began.elapsed());
        }
        times.sort();
        let latency = times[times.len() / 2] / 2;
        let (began, data) = (Instant::now(), vec![7; LARGE]);
        for _ in 0..LARGE_ROUNDS {
            send(&mut tx, &data)?;
        }
        recv(&mut rx, 8)?;
        let bandwidth = (LARGE * LARGE_ROUNDS) as f64 / began.elapsed().as_secs_f64() / 1e6;
        other.join().map_err(|_| "the other rank panicked")??;
        Ok((latency, bandwidth))
    })
}

/// Sends all of `data`, polling all the while, as collectives do at first; the yields let the kernel's part of Soft-RoCE run.
fn send(tx: &mut impl Sender, data: &[u8]) -> nuvec_transport::Result<()> {
    let mut sent = 0;
    while sent < data.len() {
        sent += tx.try_send(&[IoSlice::new(&data[sent..])])?;
        std::thread::yield_now();
    }
    while !tx.try_flush()? {
        std::thread::yield_now();
    }
    Ok(())
}

/// Receives `len` bytes, polling all the while.
fn recv(rx: &mut impl Receiver, len: usize) -> nuvec_transport::Result<Vec<u8>> {
    let mut data = vec![0; len];
    let mut got = 0;
    while got < len {
        got += rx.try_recv(&mut data[got..])?;
        std::thread::yield_now();
    }
    Ok(data)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names = devices()?.into_iter().take(2).collect();
    }
    let names = match &names[..] {
        [both] => [both.clone(), both.clone()],
        [first, second] => [first.clone(), second.clone()],
        _ => return Err("name two devices, or one".into()),
    };
    for queue_pairs in [QueuePairs::Reliable, QueuePairs::Unreliable] {
        println!("{queue_pairs:?} queue pairs between {} and {}", names[0], names[1]);
        // A group lives as long as its channels are in use.
        let mut groups = Vec::new();
        conformance::suite(&mut || {
            let group = pair(&names, queue_pairs).expect("the ranks are joined");
            let channels = group.each_ref().map(|fabric| channel(fabric).expect("a channel"));
            groups.push(group);
            channels.into()
        });
        drop(groups);
        let group = pair(&names, queue_pairs)?;
        let channels = [channel(&group[0])?, channel(&group[1])?];
        let (latency, bandwidth) = measure(channels)?;
        println!("{queue_pairs:?}: the suite passed; 8 B in {latency:?}, 1 MiB at {bandwidth:.1} MB/s");
    }
    Ok(())
}
