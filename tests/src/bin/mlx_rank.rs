//! A rank of ours in a ring of MLX's, for the tests of the `mlx` wire: it does what the tests' `mlx_rank.py` does.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use nuvec_collectives::{DType, MlxRing, Reduction};
use nuvec_core::distributed;
use nuvec_core::{Array, Complex64, bf16, f16};
use nuvec_distributed_tests::report::{PORT_TAKEN, is_port_taken};
use nuvec_distributed_tests::sample::{Sample, hash};
use nuvec_transport_tcp::{self as tcp, Address, TcpChannel};

/// A rank of ours in a ring of MLX's.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Does each case of a file on the bare transport
    Cases {
        /// A JSON list of [number, operation, dtype, elements]
        file: std::path::PathBuf,
        /// Of the data
        seed: u64,
    },
    /// Does each case of a file through the facade, with nuvec's arrays
    Facade {
        /// A JSON list of [number, operation, dtype, elements]
        file: std::path::PathBuf,
        /// Of the data
        seed: u64,
    },
    /// Sums 4 MiB until it fails, then once more
    Loop,
    /// Joins through the facade and reports what the wire's limits say
    Limits,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Cases { file, seed } => {
            ring().and_then(|ring| cases(&file, seed, |case, data| bare(&ring, case, data)))
        }
        Command::Facade { file, seed } => facade(&file, seed),
        Command::Loop => endless(),
        Command::Limits => limits(),
    };
    let Err(e) = result else { return ExitCode::SUCCESS };
    println!("@error {e}");
    ExitCode::from(if is_port_taken(&e.to_string()) { PORT_TAKEN } else { 1 })
}

/// Every rank's addresses and this rank's number, as MLX's environment has them.
fn place() -> Result<(Vec<Vec<String>>, usize), Failure> {
    let nodes = serde_json::from_slice(&std::fs::read(std::env::var("MLX_HOSTFILE")?)?)?;
    Ok((nodes, std::env::var("MLX_RANK")?.parse()?))
}

/// Joins the ring of MLX's environment on the bare transport.
fn ring() -> Result<MlxRing<TcpChannel>, Failure> {
    let (nodes, rank) = place()?;
    let address = |text: &String| {
        let (host, port) = text.rsplit_once(':').ok_or("an address has a port")?;
        Ok::<_, Failure>(Address::new(host, port.parse()?))
    };
    let nodes: Vec<Vec<_>> =
        nodes.iter().map(|node| node.iter().map(address).collect()).collect::<Result<_, Failure>>()?;
    // Longer than a rank may be late, on a machine with much else to do.
    let timeout = Duration::from_secs(60);
    let links = tcp::mlx::connect(&nodes, rank, &tcp::Options::default().timeout(timeout))?;
    Ok(MlxRing::new(links, rank, nodes.len(), timeout, nuvec_collectives::Options::default())?)
}

/// What a case does, on which type.
struct Case {
    operation: String,
    dtype: DType,
    rank: usize,
    size: usize,
}

/// Does every case of `file` with `work`, which returns the result's bytes, and prints their checksums.
fn cases(
    file: &std::path::Path,
    seed: u64,
    mut work: impl FnMut(&Case, &[u8]) -> Result<Vec<u8>, Failure>,
) -> Result<(), Failure> {
    println!("@joined");
    let all: Vec<(usize, String, String, usize)> = serde_json::from_slice(&std::fs::read(file)?)?;
    let (nodes, rank) = place()?;
    let mut data = Data { block: block(seed, rank), runs: HashMap::new() };
    for (number, operation, dtype, elements) in all {
        let dtype = DType::ALL.into_iter().find(|d| d.name() == dtype).ok_or("no such dtype")?;
        let own = data.of(number, &operation, dtype, elements * dtype.size()).ok_or("too many bytes")?;
        let case = Case { operation, dtype, rank, size: nodes.len() };
        println!("@sum {number} {:08x}", crc32fast::hash(&work(&case, own)?));
    }
    println!("@done");
    Ok(())
}

/// The period of the data: a prime, so no two segments are alike.
const BLOCK: usize = 65_521;
/// How many bytes there are to cut a case's data from.
const MOST: usize = (8 << 20) + 8 * BLOCK;

fn block(seed: u64, rank: usize) -> Vec<u8> {
    let mut block: Vec<u8> = (0..BLOCK / 8 + 1).flat_map(|i| hash(seed, rank, i).to_le_bytes()).collect();
    block.truncate(BLOCK);
    block
}

/// What is done to the data of a kind of case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Treatment {
    Raw,
    Bool,
    /// Sums of floats whose components have so many bytes.
    Finite(usize),
}

/// A rank's data: one long run of bytes for each kind of case, from which every case is cut.
struct Data {
    block: Vec<u8>,
    runs: HashMap<Treatment, Vec<u8>>,
}

impl Data {
    /// The bytes of a case; none if there are not so many.
    fn of(&mut self, number: usize, operation: &str, dtype: DType, bytes: usize) -> Option<&[u8]> {
        let kind = match dtype {
            DType::Bool => Treatment::Bool,
            _ if operation != "all_sum" => Treatment::Raw,
            DType::F16 | DType::BF16 => Treatment::Finite(2),
            DType::F32 | DType::Complex64 => Treatment::Finite(4),
            DType::F64 => Treatment::Finite(8),
            _ => Treatment::Raw,
        };
        let block = &self.block;
        let run = self.runs.entry(kind).or_insert_with(|| {
            let mut run = block.repeat(MOST / BLOCK + 1);
            match kind {
                Treatment::Raw => {}
                Treatment::Bool => run.iter_mut().for_each(|b| *b &= 1),
                // Without the highest bit of the exponent nothing becomes infinite or NaN.
                Treatment::Finite(width) => run.iter_mut().skip(width - 1).step_by(width).for_each(|b| *b &= !0x40),
            }
            run
        });
        run.get(number * 7919 % BLOCK * 8..)?.get(..bytes)
    }
}

fn bare(ring: &MlxRing<TcpChannel>, case: &Case, data: &[u8]) -> Result<Vec<u8>, Failure> {
    let Case { rank, size, dtype, .. } = *case;
    let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
    let around = |to: usize, from: usize| {
        let mut got = vec![0; data.len()];
        // Ranks that all send first would wait for each other.
        if rank.is_multiple_of(2) {
            ring.send(to, data)?;
            ring.recv(from, &mut got)?;
        } else {
            ring.recv(from, &mut got)?;
            ring.send(to, data)?;
        }
        Ok(got)
    };
    let reduction = match case.operation.as_str() {
        "right" => return around(right, left),
        "left" => return around(left, right),
        "all_gather" => {
            let mut output = vec![0; size * data.len()];
            ring.all_gather(data, &mut output)?;
            return Ok(output);
        }
        "all_max" => Reduction::Max,
        "all_min" => Reduction::Min,
        _ => Reduction::Sum,
    };
    let mut result = data.to_vec();
    ring.all_reduce(&mut result, dtype, reduction)?;
    Ok(result)
}

fn facade(file: &std::path::Path, seed: u64) -> Result<(), Failure> {
    nuvec_distributed::init(true)?;
    cases(file, seed, |case, data| match case.dtype {
        DType::Bool => arrays::<bool>(case, data),
        DType::U8 => arrays::<u8>(case, data),
        DType::U16 => arrays::<u16>(case, data),
        DType::U32 => arrays::<u32>(case, data),
        DType::U64 => arrays::<u64>(case, data),
        DType::I8 => arrays::<i8>(case, data),
        DType::I16 => arrays::<i16>(case, data),
        DType::I32 => arrays::<i32>(case, data),
        DType::I64 => arrays::<i64>(case, data),
        DType::F16 => arrays::<f16>(case, data),
        DType::BF16 => arrays::<bf16>(case, data),
        DType::F32 => arrays::<f32>(case, data),
        DType::F64 => arrays::<f64>(case, data),
        DType::Complex64 => arrays::<Complex64>(case, data),
    })
}

fn arrays<T: Sample>(case: &Case, data: &[u8]) -> Result<Vec<u8>, Failure> {
    let values = T::from_bytes(data);
    let x = Array::from_slice(&values, [values.len() as i32]);
    let y = match case.operation.as_str() {
        "all_sum" => distributed::all_sum(&x, None),
        "all_max" => distributed::all_max(&x, None),
        "all_min" => distributed::all_min(&x, None),
        "all_gather" => distributed::all_gather(&x, None),
        other => return Err(format!("{other} is not for the facade").into()),
    };
    Ok(T::to_bytes(&y.to_vec::<T>()?))
}

fn endless() -> Result<(), Failure> {
    let group = nuvec_distributed::init(true)?;
    println!("@joined");
    let x = Array::from(vec![1_f32; 1 << 20]);
    let sum = || distributed::all_sum(&x, Some(&group)).to_vec::<f32>();
    let mut first = true;
    let error = loop {
        match sum() {
            Ok(_) if std::mem::take(&mut first) => println!("@looping"),
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    println!("@first {error}");
    println!("@again {}", sum().map(drop).map_or_else(|e| e.to_string(), |()| "it succeeded".into()));
    Ok(())
}

fn limits() -> Result<(), Failure> {
    let (nodes, rank) = place()?;
    let options = nuvec_distributed::Options::default().wire(nuvec_distributed::Wire::Mlx);
    let e = nuvec_distributed::connect(&nodes, rank, &options.clone().key([7; 32])).map(drop).err();
    println!("@key {}", e.map(|e| e.to_string()).unwrap_or_default());
    let session = nuvec_distributed::connect(&nodes, rank, &options.timeout(Duration::from_secs(20)))?;
    println!("@joined");
    let group = session.group();
    let x = Array::from(vec![1_f32; 8]);
    let tell = |what: &str, result: nuvec_core::Result<()>| {
        println!("@{what} {}", result.err().map(|e| e.to_string()).unwrap_or_default());
    };
    tell("split", group.split(0, 0).map(drop));
    tell("barrier", session.barrier());
    let across = (rank + 2) % nodes.len();
    tell("across", distributed::send(&x, across, Some(&group)).to_vec::<f32>().map(drop));
    println!("@total {:?}", distributed::all_sum(&x, Some(&group)).to_vec::<f32>()?[0]);
    let status = session.status()?;
    println!("@status {} ranks, {:?} operations", status.ranks.len(), status.counters.map(|c| c.operations));
    session.close();
    tell("closed", session.status().map(drop));
    Ok(())
}
