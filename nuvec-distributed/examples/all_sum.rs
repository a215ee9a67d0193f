//! Sums an array over every rank.
//!
//! On this machine, with any number of ranks, or alone without `cargo xtask launch -n 4 --`:
//!
//! ```sh
//! cargo build -p nuvec-distributed@0.6.0 --example all_sum --ignore-rust-version
//! cargo xtask launch -n 4 -- target/debug/examples/all_sum
//! ```

use std::process::ExitCode;

use nuvec_core::{array, distributed};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> nuvec_core::Result<()> {
    let group = nuvec_distributed::init(false)?;
    let rank = group.rank() as f32;
    let x = array![1.0, rank];
    let total = distributed::all_sum(&x, None).to_vec::<f32>()?;
    println!("rank {} of {}: {x:?} summed over all ranks is {total:?}", group.rank(), group.size());
    Ok(())
}
