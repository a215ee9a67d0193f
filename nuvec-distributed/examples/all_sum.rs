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
            // In one piece, since several ranks may share a terminal.
            let line = format!("error: {e}\n");
            eprint!("{line}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> nuvec_core::Result<()> {
    let group = nuvec_distributed::init(false)?;
    let x = array![1.0, group.rank() as f32];
    let total = distributed::all_sum(&x, None).to_vec::<f32>()?;
    let x = x.to_vec::<f32>()?;
    println!("rank {} of {}: {x:?} summed over all ranks is {total:?}", group.rank(), group.size());
    Ok(())
}
