//! How long an all-reduce of f32 takes on this machine, in place, over loopback: the median and the best time per size.
//!
//! `cargo run --release -p nuvec-collectives --example all_reduce -- [--mesh] [--broadcast] RANKS [CONNECTIONS] [BYTES…]`
//!
//! With `--mesh` every two ranks have a connection; without, they stand in a ring. With
//! `--broadcast` it is not an all-reduce that is timed but a broadcast, from each rank in turn.
//!
//! Starts the ranks itself, as processes; rank 0 prints. To compare with another program, run both in turn, several times,
//! and compare the medians' ratio: a machine's speed drifts.

mod mesh;

use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use nuvec_collectives::{Communicator, DType, Options, Reduction};
use nuvec_transport::Fabric;
use nuvec_transport_tcp::{Address, connect};

use mesh::Mesh;

/// Set for a rank that this program starts: its number, and the first of the ports.
const RANK: &str = "ALL_REDUCE_RANK";

/// Times a broadcast instead.
const BROADCAST: &str = "--broadcast";

/// Sizes without any given, in bytes.
const SIZES: [usize; 6] = [8, 1 << 10, 32 << 10, 1 << 20, 16 << 20, 128 << 20];

fn main() -> Result<(), Box<dyn Error>> {
    let flag = |name: &str| std::env::args().any(|a| a == name);
    let mut numbers = std::env::args().skip(1).filter(|a| !a.starts_with("--")).map(|a| a.parse::<usize>());
    let ranks = numbers.next().ok_or("how many ranks?")??;
    let connections = numbers.next().transpose()?.unwrap_or(1).max(1);
    let sizes = numbers.collect::<Result<Vec<_>, _>>()?;
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    if let Ok(me) = std::env::var(RANK) {
        let (rank, port) = me.split_once(' ').ok_or("a rank and a port")?;
        let (rank, port) = (rank.parse()?, port.parse()?);
        let options = Options::default();
        if flag("--mesh") {
            return measure(
                &Communicator::form(options, |h| Mesh::connect(ranks, rank, port, h))?,
                &sizes,
                flag(BROADCAST),
            );
        }
        let address = |i: usize| Address::new("127.0.0.1", port + i as u16);
        let nodes: Vec<Vec<_>> =
            (0..ranks).map(|r| (0..connections).map(|c| address(r * connections + c)).collect()).collect();
        return measure(
            &Communicator::form(options, |h| connect(&nodes, rank, &Default::default(), h))?,
            &sizes,
            flag(BROADCAST),
        );
    }
    // Below every usual ephemeral range, and another one each time.
    let port = 20_000 + (std::process::id() % 10_000) as u16;
    let start = |rank| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).env(RANK, format!("{rank} {port}")).spawn()
    };
    let children = (0..ranks).map(start).collect::<Result<Vec<_>, _>>()?;
    for mut child in children {
        if !child.wait()?.success() {
            return Err("a rank failed".into());
        }
    }
    Ok(())
}

/// Measures each size in `group`; its rank 0 prints.
fn measure<F: Fabric>(group: &Communicator<F>, sizes: &[usize], broadcast: bool) -> Result<(), Box<dyn Error>> {
    for &bytes in sizes {
        // Zeros: what is added does not change the time, and sums do not grow.
        let mut data = vec![0; bytes / 4 * 4];
        let mut once = || {
            let start = Instant::now();
            if broadcast {
                let n = group.size();
                return (0..n)
                    .try_for_each(|root| group.broadcast(root, &mut data))
                    .map(|()| start.elapsed() / n as u32);
            }
            group.all_reduce(&mut data, DType::F32, Reduction::Sum).map(|()| start.elapsed())
        };
        once()?;
        let runs = ((256 << 20) / bytes.max(1)).clamp(5, 3000);
        let mut times = (0..runs).map(|_| once()).collect::<Result<Vec<_>, _>>()?;
        times.sort_unstable();
        if group.rank() == 0 {
            let micros = |t: Duration| t.as_secs_f64() * 1e6;
            let median = times[runs / 2];
            println!(
                "{bytes:>9} B  median {:>10.1} µs  best {:>10.1} µs  {:.2} GB/s",
                micros(median),
                micros(times[0]),
                bytes as f64 / median.as_secs_f64() / 1e9
            );
        }
    }
    Ok(())
}
