//! Data parallelism: every rank trains the same model on its share of the data, and the gradients are averaged over the
//! ranks before each step. So all ranks keep the same weights, and they are those of one process with all the data.
//!
//! On this machine, with any number of ranks that divides 240, or alone without `cargo xtask launch -n 4 --`:
//!
//! ```sh
//! cargo build -p nuvec-distributed@0.6.0 --example data_parallel --ignore-rust-version
//! cargo xtask launch -n 4 -- target/debug/examples/data_parallel
//! ```

use std::process::ExitCode;

use nuvec_core::distributed::{Group, all_sum};
use nuvec_core::{Array, Result, eval, ops, random, value_and_grad};
use nuvec_nn::optim::{Optimizer, Sgd};
use nuvec_nn::{Linear, Module, Tree};

const EXAMPLES: usize = 240;
const STEPS: usize = 100;

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

fn run() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let group = nuvec_distributed::init(false)?;
    if !EXAMPLES.is_multiple_of(group.size()) {
        // The average of the ranks' averages is the average of all only where the shares are equally large.
        return Err(format!("{EXAMPLES} examples do not divide into {} equal shares", group.size()).into());
    }
    let together = train(&group)?;
    let alone = train(&Group::single())?;
    let (first, last) = (together.losses[0], together.losses[STEPS - 1]);
    println!("rank {} of {}: the loss fell from {first:.5} to {last:.5}", group.rank(), group.size());

    // What this example claims. A comparison that must hold is one that no NaN passes.
    let falls = last < first / 10.0;
    if !falls {
        return Err(format!("the loss fell from {first} to {last} only").into());
    }
    for (what, together, alone, within) in [
        ("the loss of step", &together.losses, &alone.losses, 1e-4 * first),
        ("weight", &together.weights, &alone.weights, 1e-3),
    ] {
        for (i, (a, b)) in together.iter().zip(alone).enumerate() {
            let equal = (a - b).abs() < within;
            if !equal {
                return Err(format!("{what} {i} is {a}, and {b} in one process").into());
            }
        }
    }
    println!("rank {}: every loss and weight is that of one process", group.rank());
    Ok(())
}

/// A small network: a number in, a number out.
#[derive(Clone, Module)]
#[tree(crate = "nuvec_core")] // a program that depends on `nuvec` needs no such line
struct Model {
    hidden: Linear,
    out: Linear,
}

impl Model {
    fn forward(&self, x: &Array) -> Array {
        self.out.forward(&self.hidden.forward(x).tanh())
    }
}

/// What a training came to: the loss before each step, over all examples, and all weights in the end.
struct Trained {
    losses: Vec<f32>,
    weights: Vec<f32>,
}

/// Trains on the ranks of `group`.
fn train(group: &Group) -> Result<Trained> {
    // The same seed, and so the same weights, on every rank.
    random::seed(1);
    let mut model = Model { hidden: Linear::new(1, 32), out: Linear::new(32, 1) };
    let mut optimizer = Sgd::new(0.1).momentum(0.9);
    let (x, y) = share(group);
    let loss = |model: &Model| {
        let error = model.forward(&x) - &y;
        (&error * &error).mean(..)
    };
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let (loss, gradients) = value_and_grad(loss)(&model)?;
        let (loss, gradients) = average((loss, gradients), group)?;
        optimizer.update(&mut model, &gradients)?;
        eval(&model)?;
        losses.push(loss.item::<f32>()?);
    }
    Ok(Trained { losses, weights: flat(&model).to_vec::<f32>()? })
}

/// This rank's share of the examples of y = sin 3x, -1 <= x < 1: every size-th, beginning with the rank-th.
fn share(group: &Group) -> (Array, Array) {
    let mine = (group.rank()..EXAMPLES).step_by(group.size());
    let x: Vec<f32> = mine.map(|i| i as f32 / EXAMPLES as f32 * 2.0 - 1.0).collect();
    let x = Array::from_slice(&x, [x.len() as i32, 1]);
    let y = (&x * 3.0).sin();
    (x, y)
}

/// The average of the ranks' values, such as a model's gradients.
///
/// All arrays go in one sum: a ring moves one long array faster than many short ones. It is evaluated at once, so that
/// it comes at the same place in every rank's order of collectives.
fn average<T: Tree>(values: T, group: &Group) -> Result<T> {
    let mean = all_sum(&flat(&values), Some(group)) / group.size() as f32;
    mean.eval()?;
    let mut from = 0;
    let parts: Vec<_> = values
        .leaves()
        .iter()
        .map(|leaf| {
            let to = from + leaf.size() as i32;
            let part = mean.i(from..to).reshape(leaf.shape());
            from = to;
            part
        })
        .collect();
    values.unflatten(parts)
}

/// All arrays of a tree, one after the other.
fn flat(tree: &impl Tree) -> Array {
    let parts: Vec<_> = tree.leaves().iter().map(|leaf| leaf.reshape([-1])).collect();
    ops::concatenate(&parts, 0)
}
