//! The table's figures: latencies of all-reduce, all-gather and send/recv through the facade, measured by rank 0.

use std::time::{Duration, Instant};

use nuvec_core::distributed::{self, Group};
use nuvec_core::{Array, DType, Result};

use crate::cases::Selection;
use crate::report;

/// About how many bytes of results a measurement makes on one rank.
const BUDGET: usize = 64 << 20;
/// Calls before measuring begins.
const WARM_UP: usize = 2;

/// What is measured: every operation at every size in bytes. Nothing for a rank alone or for a single check.
pub fn sizes(ranks: usize, selection: &Selection) -> Vec<usize> {
    if ranks == 1 || selection.only.is_some() {
        return Vec::new();
    }
    match (&selection.sizes[..], selection.quick) {
        // Where it is run in an emulated machine, more would take long.
        ([], true) if selection.jaccl.is_some() => vec![8, 64 << 10],
        ([], true) => vec![8, 64 << 10, 1 << 20],
        ([], false) => vec![8, 1 << 10, 32 << 10, 1 << 20, 16 << 20],
        (sizes, _) => sizes.iter().map(|bytes| bytes / 4 * 4).collect(),
    }
}

/// The operations, in the table's order.
pub const OPERATIONS: [&str; 3] = ["all_sum float32", "all_gather", "send/recv"];

/// How often each is measured at the most.
pub fn most_calls(selection: &Selection) -> usize {
    // As above.
    if selection.quick && selection.jaccl.is_some() { 20 } else { 200 }
}

/// Measures `operation` with arrays of `bytes` bytes (whole float32) and at most `most` calls, and reports it if this is
/// rank 0. Every rank calls it.
pub fn measure(group: &Group, operation: &str, bytes: usize, most: usize) -> Result<()> {
    let x = Array::from(vec![1.0f32; bytes / 4]);
    // The same on every rank, whatever its speed.
    let moved = if operation == "all_gather" { bytes * group.size() } else { bytes };
    let calls = (BUDGET / moved.max(1)).clamp(5, most.max(5));
    let mut times = Vec::new();
    for call in 0..calls + WARM_UP {
        let start = Instant::now();
        let took = match operation {
            "all_gather" => {
                distributed::all_gather(&x, Some(group)).eval()?;
                start.elapsed()
            }
            "send/recv" => ping_pong(&x, group)?,
            _ => {
                distributed::all_sum(&x, Some(group)).eval()?;
                start.elapsed()
            }
        };
        if call >= WARM_UP {
            times.push(took);
        }
    }
    if group.rank() == 0 {
        report::row(operation, bytes, median(&mut times));
    }
    Ok(())
}

/// Half of the time that an array takes from rank 0 to rank 1 and back; the other ranks do nothing.
fn ping_pong(x: &Array, group: &Group) -> Result<Duration> {
    let start = Instant::now();
    let receive = |from| distributed::recv([x.size()], DType::F32, from, Some(group));
    match group.rank() {
        0 => {
            distributed::send(x, 1, Some(group)).eval()?;
            receive(1).eval()?;
        }
        1 => {
            receive(0).eval()?;
            distributed::send(x, 0, Some(group)).eval()?;
        }
        _ => {}
    }
    Ok(start.elapsed() / 2)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        let mut times = [5, 1, 9].map(Duration::from_millis);
        assert_eq!(median(&mut times), Duration::from_millis(5));
        assert_eq!(median(&mut []), Duration::ZERO);
    }

    #[test]
    fn sizes_given_are_measured_and_a_rank_alone_is_not() {
        let selection = |sizes: &[usize]| Selection { sizes: sizes.to_vec(), ..Selection::default() };
        assert_eq!(sizes(2, &selection(&[8, 1022])), [8, 1020]);
        assert_eq!(sizes(1, &selection(&[])), [] as [usize; 0]);
        assert!(sizes(4, &selection(&[])).contains(&(16 << 20)));
    }
}
