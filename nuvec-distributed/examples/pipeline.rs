//! A model in four stages, each on a rank of its own: a pipeline of micro-batches with messages between ranks.
//!
//! Stage 2 also takes what stage 0 computed (a skip connection), and the last stage sends its results to rank 0, so ranks
//! that are not neighbours in the ring talk, too. Rank 0 compares the results with those of one process.
//!
//! On this machine, with any number of ranks (2 have two stages each), or alone without `cargo xtask launch -n 4 --`:
//!
//! ```sh
//! cargo build -p nuvec-distributed@0.6.0 --example pipeline --ignore-rust-version
//! cargo xtask launch -n 4 -- target/debug/examples/pipeline
//! ```

use std::process::ExitCode;

use nuvec_core::distributed::{self, Group};
use nuvec_core::{Array, DType, Error, Result, eval, ops};

const STAGES: usize = 4;
const MICRO_BATCHES: usize = 4;
/// Rows of a micro-batch, and columns of every stage.
const ROWS: usize = 8;
const WIDTH: usize = 16;

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

fn run() -> Result<()> {
    let group = nuvec_distributed::init(false)?;
    let Some(outputs) = pipeline(&group)? else {
        println!("rank {} of {}: its stages are done", group.rank(), group.size());
        return Ok(());
    };
    let result = outputs.to_vec::<f32>()?;
    let alone: Vec<_> = (0..MICRO_BATCHES).map(forward).collect();
    let expected = ops::concatenate(&alone, 0).to_vec::<f32>()?;
    if let Some(i) = (0..expected.len()).find(|&i| (result[i] - expected[i]).abs() > 1e-5) {
        return Err(Error::Io(format!("element {i} is {}, and {} in one process", result[i], expected[i])));
    }
    println!("result {:.4?}.., {} values as one process computes it", &result[..4], result.len());
    Ok(())
}

/// The rank that computes stage `s`: the stages are spread over the ranks in order.
fn rank_of(s: usize, group: &Group) -> usize {
    s * group.size() / STAGES.max(group.size())
}

/// The stages whose results stage `s` takes; stage 0 takes the micro-batch.
fn sources(s: usize) -> &'static [usize] {
    [&[][..], &[0], &[1, 0], &[2]][s]
}

/// Runs this rank's stages. The model's outputs on rank 0, `None` on the others.
///
/// Every rank walks through the same list of steps and does its part of each. So messages between two ranks are received
/// in the order in which they are sent, and no two ranks wait for each other, whatever the messages' size: `send` may
/// have to wait until the receiver is there. While a stage computes one micro-batch, the stage before it computes the
/// next.
fn pipeline(group: &Group) -> Result<Option<Array>> {
    let me = group.rank();
    let mut outputs = Vec::new();
    for batch in 0..MICRO_BATCHES {
        let mut results: [Option<Array>; STAGES] = Default::default();
        for s in 0..STAGES {
            for &source in sources(s) {
                let (from, to) = (rank_of(source, group), rank_of(s, group));
                if let Some(moved) = pass(results[source].as_ref(), from, to, group)? {
                    results[source] = Some(moved);
                }
            }
            if rank_of(s, group) == me {
                let inputs: Vec<_> = sources(s).iter().filter_map(|&source| results[source].clone()).collect();
                let result = stage(s, batch, &inputs);
                result.eval()?;
                results[s] = Some(result);
            }
        }
        outputs.extend(results[STAGES - 1].take());
    }
    // All at the end: rank 0 is the first stage, and would not receive while it sends.
    let last = rank_of(STAGES - 1, group);
    let all = if me == last { Some(ops::concatenate(&outputs, 0)) } else { None };
    let moved = send_or_receive(all.as_ref(), [MICRO_BATCHES * ROWS, WIDTH], last, 0, group)?;
    Ok(if me == 0 { moved.or(all) } else { None })
}

/// Moves a stage's result from rank `from` to rank `to`. What was received, on rank `to` alone.
fn pass(result: Option<&Array>, from: usize, to: usize, group: &Group) -> Result<Option<Array>> {
    send_or_receive(result, [ROWS, WIDTH], from, to, group)
}

fn send_or_receive(
    array: Option<&Array>,
    shape: [usize; 2],
    from: usize,
    to: usize,
    group: &Group,
) -> Result<Option<Array>> {
    match array {
        // Operations are lazy: evaluating what `send` returns sends.
        Some(array) if group.rank() == from && from != to => {
            eval(&[distributed::send(array, to, Some(group))])?;
            Ok(None)
        }
        _ if group.rank() == to && from != to => {
            let received = distributed::recv(shape.map(|n| n as i32), DType::F32, from, Some(group));
            received.eval()?;
            Ok(Some(received))
        }
        _ => Ok(None),
    }
}

/// What stage `s` makes of its inputs: the stage before it, and the skip connection where there is one.
fn stage(s: usize, batch: usize, inputs: &[Array]) -> Array {
    let weights = waves([WIDTH, WIDTH], 0.37 + s as f32 * 0.11);
    let input = match inputs {
        [] => waves([ROWS, WIDTH], 0.05 + batch as f32 * 0.02),
        [before] => before.clone(),
        [before, skipped, ..] => before + skipped,
    };
    input.matmul(&weights).tanh()
}

/// The whole model in this process.
fn forward(batch: usize) -> Array {
    let mut results: Vec<Array> = Vec::new();
    for s in 0..STAGES {
        let inputs: Vec<_> = sources(s).iter().map(|&source| results[source].clone()).collect();
        results.push(stage(s, batch, &inputs));
    }
    results.swap_remove(STAGES - 1)
}

/// Numbers that stand for weights and inputs, the same on every rank.
fn waves(shape: [usize; 2], frequency: f32) -> Array {
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| ((i * i) as f32 * frequency).sin() * 0.5).collect();
    Array::from_slice(&values, shape.map(|n| n as i32))
}
