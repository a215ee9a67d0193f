//! One rank of `cargo xtask bench`, on bytes: `bench_rank RANK NODES MEASUREMENT…`.
//!
//! `NODES` has every rank's addresses, the ranks separated by semicolons and a rank's connections by commas:
//! `127.0.0.1:5000;127.0.0.1:5001`. The measurements and what is printed are [`measure`]'s. `cargo xtask bench` builds this
//! with the profile `release`, and starts as many as there are ranks.

mod measure;

use std::error::Error;

use nuvec_collectives::{Communicator, DType, Options, Reduction};
use nuvec_transport_tcp::{Address, TcpFabric, connect};

use measure::Operation;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let rank = arguments.next().ok_or("usage: bench_rank RANK NODES MEASUREMENT…")?.parse()?;
    let nodes = nodes(&arguments.next().ok_or("where are the ranks?")?)?;
    let plan = measure::plan(arguments)?;
    measure::run(&plan, || {
        let form = |handler| connect(&nodes, rank, &Default::default(), handler);
        Ok(Group { ranks: Communicator::form(Options::default(), form)?, data: Vec::new(), gathered: Vec::new() })
    })
}

/// Every rank's addresses.
fn nodes(text: &str) -> Result<Vec<Vec<Address>>, Box<dyn Error>> {
    let address = |a: &str| {
        let (host, port) = a.rsplit_once(':').ok_or("expected HOST:PORT")?;
        Ok(Address::new(host, port.parse()?))
    };
    text.split(';').map(|rank| rank.split(',').map(address).collect()).collect()
}

/// This rank and the others, with what their calls work on.
struct Group {
    ranks: Communicator<TcpFabric>,
    data: Vec<u8>,
    gathered: Vec<u8>,
}

impl Group {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn size(&self) -> usize {
        self.ranks.size()
    }

    /// Makes arrays of `bytes` bytes for calls of `operation`.
    fn prepare(&mut self, operation: Operation, bytes: usize) {
        // The last measurement's memory goes first.
        (self.data, self.gathered) = (Vec::new(), Vec::new());
        // Zeros: what is added does not change the time, and sums do not grow. Written, so that every page is there.
        self.data.resize(bytes, 0);
        self.data.fill(0);
        if operation == Operation::AllGather {
            self.gathered = vec![0; bytes * self.size()];
        }
    }

    fn all_reduce(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.ranks.all_reduce(&mut self.data, DType::F32, Reduction::Sum)?)
    }

    fn all_gather(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.ranks.all_gather(&self.data, &mut self.gathered)?)
    }

    fn send(&mut self, to: usize) -> Result<(), Box<dyn Error>> {
        Ok(self.ranks.send(to, &self.data)?)
    }

    fn recv(&mut self, from: usize) -> Result<(), Box<dyn Error>> {
        Ok(self.ranks.recv(from, &mut self.data)?)
    }

    /// The least of every rank's `x`.
    fn least(&mut self, x: f32) -> Result<f32, Box<dyn Error>> {
        let mut bytes = x.to_ne_bytes();
        self.ranks.all_reduce(&mut bytes, DType::F32, Reduction::Min)?;
        Ok(f32::from_ne_bytes(bytes))
    }
}
