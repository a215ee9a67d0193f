//! A ring of processes that sum, gather, send and receive bytes, without nuvec.
//!
//! One process per rank, each with its rank and every rank's address:
//!
//! ```text
//! cargo run -p nuvec-collectives --example ring -- 0 127.0.0.1:29500 127.0.0.1:29501
//! cargo run -p nuvec-collectives --example ring -- 1 127.0.0.1:29500 127.0.0.1:29501
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use nuvec_collectives::{Communicator, DType, Options, Reduction};
use nuvec_transport_tcp::{Address, connect};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // In one piece, since several ranks may share a terminal.
            let line = format!("error: {e}\n");
            eprint!("{line}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let rank = arguments.next().ok_or("usage: ring RANK HOST:PORT HOST:PORT…")?;
    let rank: usize = rank.parse().map_err(|e| format!("the rank {rank:?}: {e}"))?;
    let addresses = arguments.map(|a| {
        let (host, port) = a.rsplit_once(':').ok_or_else(|| format!("the address {a:?} is no HOST:PORT"))?;
        let port = port.parse().map_err(|e| format!("the port of {a:?}: {e}"))?;
        Ok(Address::new(host, port))
    });
    let addresses = addresses.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    // One connection to each neighbour; more addresses per rank are more connections.
    let nodes: Vec<Vec<Address>> = addresses.into_iter().map(|address| vec![address]).collect();

    let tcp = nuvec_transport_tcp::Options::default().timeout(Duration::from_secs(30));
    let group = Communicator::form(Options::default(), |handler| connect(&nodes, rank, &tcp, handler))?;

    let mut values: Vec<u8> = [1.5_f32, rank as f32].iter().flat_map(|v| v.to_ne_bytes()).collect();
    group.all_reduce(&mut values, DType::F32, Reduction::Sum)?;
    let sums: Vec<f32> = values.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();

    let mut ranks = vec![0; group.size()];
    group.all_gather(&[rank as u8], &mut ranks)?;
    println!("rank {rank} of {}: the sums are {sums:?}, the ranks are {ranks:?}", group.size());

    if group.size() > 1 {
        // Round the ring: the first sends before it receives, the others the other way round.
        let (next, previous) = ((rank + 1) % group.size(), (rank + group.size() - 1) % group.size());
        let mut token = [0];
        if rank > 0 {
            group.recv(previous, &mut token)?;
        }
        group.send(next, &[token[0] + 1])?;
        if rank == 0 {
            group.recv(previous, &mut token)?;
            println!("the token went through {} ranks", token[0]);
        }
    }
    group.close();
    Ok(())
}
