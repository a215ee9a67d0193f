//! Tensor parallelism: two layers of a model, whose weights are split over the ranks. Each rank holds and computes a part of
//! the hidden features, and one sum over the ranks makes the output; in training, another one makes the input's gradient.
//!
//! On this machine, with any number of ranks that divides 480, or alone without `cargo xtask launch -n 4 --`:
//!
//! ```sh
//! cargo build -p nuvec-distributed@0.6.0 --example tensor_parallel --ignore-rust-version
//! cargo xtask launch -n 4 -- target/debug/examples/tensor_parallel
//! ```

use std::process::ExitCode;

use nuvec_core::{Array, DType, eval, random, value_and_grad};
use nuvec_nn::sharded::{AllToShardedLinear, ShardedToAllLinear};
use nuvec_nn::{Linear, Module, silu};

/// Rows of the input, features of input and output, and hidden features.
const ROWS: i32 = 16;
const WIDTH: i32 = 64;
const HIDDEN: i32 = 480;

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
    let group = nuvec_distributed::init(false)?;
    let (rank, size) = (group.rank(), group.size());
    // The same seed, and so the same numbers, on every rank. A program that loads a model reads its part of each weight.
    random::seed(1);
    let (up, down) = (Linear::new(WIDTH, HIDDEN), Linear::new(HIDDEN, WIDTH));
    let x = random::normal([ROWS, WIDTH], DType::F32, 0.0, 1.0, None);

    // This rank's rows of the first weight and columns of the second.
    let my_up = AllToShardedLinear::from_linear(&up, &group)?;
    let my_down = ShardedToAllLinear::from_linear(&down, &group)?;
    let all = up.num_params() + down.num_params();
    println!("rank {rank} of {size}: {} of {all} parameters", my_up.num_params() + my_down.num_params());

    // A loss of the output, and its gradient with respect to the input.
    let split = |x: &Array| my_down.forward(&silu(&my_up.forward(x)));
    let whole = |x: &Array| down.forward(&silu(&up.forward(x)));
    let (y, expected) = (split(&x), whole(&x));
    let (_, gradient) = value_and_grad(|x: &Array| split(x).tanh().sum(..))(&x)?;
    let (_, expected_gradient) = value_and_grad(|x: &Array| whole(x).tanh().sum(..))(&x)?;
    // All sums over the ranks run here, in one order on every rank.
    eval(&(&y, &gradient))?;

    // What this example claims.
    for (what, got, expected) in [("output", &y, &expected), ("gradient", &gradient, &expected_gradient)] {
        let furthest = (got - expected).abs().max(..).item::<f32>()?;
        let equal = furthest < 1e-4;
        if !equal {
            return Err(format!("rank {rank}: the {what} is {furthest} from the unsharded layers'").into());
        }
        println!("rank {rank} of {size}: {what} of {:?} equals the unsharded layers'", got.shape());
    }
    Ok(())
}
