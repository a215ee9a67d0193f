//! A rank in Rust in a ring with ranks in Python, which run unmodified MLX and `mixed_ring.py` beside this file: both do
//! the same. Together they compute π, and tell each other in what they are written.
//!
//! `NUVEC_DISTRIBUTED_WIRE=mlx` makes a rank of ours speak what MLX speaks. Start every rank with the same hostfile, one
//! entry per rank (`[["127.0.0.1:5000"], ["127.0.0.1:5001"]]`), each in a terminal of its own:
//!
//! ```sh
//! cargo build -p nuvec-distributed@0.6.0 --example mixed_ring --ignore-rust-version
//! NUVEC_DISTRIBUTED_WIRE=mlx MLX_HOSTFILE=hosts.json MLX_RANK=0 target/debug/examples/mixed_ring
//! MLX_HOSTFILE=hosts.json MLX_RANK=1 python3 nuvec-distributed/examples/mixed_ring.py # with `pip install 'mlx[cpu]'`
//! ```
//!
//! README.md has the same with `cargo xtask launch`, in one command.

use std::process::ExitCode;

use nuvec_core::distributed::{all_gather, all_sum};
use nuvec_core::{Array, array};

const POINTS: usize = 100_000;
/// What the ranks tell each other; Python's is 1.
const RUST: i32 = 0;

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

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let group = nuvec_distributed::init(true)?;
    let (rank, size) = (group.rank(), group.size());

    // The area under 4 / (1 + x²) for x from 0 to 1, at every size-th point, beginning with the rank-th.
    let x: Vec<f32> = (rank..POINTS).step_by(size).map(|i| (i as f32 + 0.5) / POINTS as f32).collect();
    let x = Array::from_slice(&x, [x.len() as i32]);
    let mine = (4.0 / (1.0 + &x * &x)).sum(..) / POINTS as f32;
    let pi = all_sum(&mine, None).item::<f32>()?;

    let languages = all_gather(&array![RUST], None).to_vec::<i32>()?;
    let ring: Vec<_> = languages.iter().map(|&l| if l == RUST { "Rust" } else { "Python" }).collect();
    println!("rank {rank} of {size} (Rust): the ring is {}, and π is {pi:.4}", ring.join(", "));
    let right = (pi - std::f32::consts::PI).abs() < 1e-4;
    if !right {
        return Err(format!("rank {rank}: {pi} is not π").into());
    }
    Ok(())
}
