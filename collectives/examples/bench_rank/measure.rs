//! What a rank of `cargo xtask bench` measures: the plan, the calls, and the lines that it prints.
//!
//! A measurement is `OPERATION:BYTES:WARM-UPS:CALLS`, the same on every rank: so many calls, or as many (at least 3) as the
//! ranks agree to do in [`ENOUGH`] after the warm-ups. Each rank prints one line,
//! `@row RANK MEASUREMENT MICROSECONDS CPU-MICROSECONDS`: the median time of a call, and this process's CPU time for an
//! average one. At the end comes `@usage RANK CPU-SECONDS PEAK START`: the whole process's CPU time, its peak memory in
//! bytes, and what that was before the group formed.
//!
//! The peers' programs (`xtask/src/bench`) do the same in the same order: change all of them or none.

use std::error::Error;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::Group;

/// How long a measurement lasts, about.
const ENOUGH: Duration = Duration::from_millis(300);

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// The sum of float32, in place; `bytes` is the array's length.
    AllReduce,
    /// `bytes` is the length of each rank's part.
    AllGather,
    /// Pairs of ranks (0 and 1, 2 and 3, …) send an array to and fro; the time is half of a round trip.
    SendRecv,
    /// An all-reduce of 8 bytes to which the last rank comes late, by `bytes` milliseconds: what the others' waiting costs.
    Wait,
}

/// One measurement.
pub(crate) struct Measurement {
    operation: Operation,
    bytes: usize,
    warm_ups: usize,
    calls: usize,
}

/// The measurements of a command line.
pub(crate) fn plan(arguments: impl Iterator<Item = String>) -> Result<Vec<Measurement>, Box<dyn Error>> {
    arguments.map(|text| measurement(&text).ok_or_else(|| format!("{text}: no measurement").into())).collect()
}

fn measurement(text: &str) -> Option<Measurement> {
    let mut parts = text.split(':');
    let operation = match parts.next()? {
        "all_reduce" => Operation::AllReduce,
        "all_gather" => Operation::AllGather,
        "send_recv" => Operation::SendRecv,
        "wait" => Operation::Wait,
        _ => return None,
    };
    let mut number = || parts.next()?.parse().ok();
    Some(Measurement { operation, bytes: number()?, warm_ups: number()?, calls: number()? })
}

/// Forms a group, makes every measurement with it, and prints the lines.
pub(crate) fn run(
    plan: &[Measurement],
    form: impl FnOnce() -> Result<Group, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let start = getrusage(UsageWho::RUSAGE_SELF)?;
    let mut group = form()?;
    let rank = group.rank();
    for (i, measurement) in plan.iter().enumerate() {
        let (median, cpu) = measure(&mut group, measurement)?;
        println!("@row {rank} {i} {:.3} {:.3}", median.as_secs_f64() * 1e6, cpu.as_secs_f64() * 1e6);
    }
    let end = getrusage(UsageWho::RUSAGE_SELF)?;
    println!("@usage {rank} {:.6} {} {}", cpu(&end).as_secs_f64(), peak(&end), peak(&start));
    Ok(())
}

/// The median time of a call, and the CPU time of an average one.
fn measure(group: &mut Group, measurement: &Measurement) -> Result<(Duration, Duration), Box<dyn Error>> {
    let &Measurement { operation, bytes, warm_ups, calls } = measurement;
    let late = operation == Operation::Wait && group.rank() + 1 == group.size();
    group.prepare(operation, if operation == Operation::Wait { 8 } else { bytes });
    // One call of many warm-ups that took long, since the other rank was not there yet, does not count.
    let usual = median(&mut times(group, operation, warm_ups, Duration::ZERO)?);
    let calls = agree(group, usual, calls)?;
    let before = getrusage(UsageWho::RUSAGE_SELF)?;
    let mut times =
        times(group, operation, calls, if late { Duration::from_millis(bytes as u64) } else { Duration::ZERO })?;
    let cpu_time = cpu(&getrusage(UsageWho::RUSAGE_SELF)?).saturating_sub(cpu(&before));
    let median = median(&mut times);
    let (median, cpu_time) = (median, cpu_time / calls.max(1) as u32);
    Ok(if operation == Operation::SendRecv { (median / 2, cpu_time / 2) } else { (median, cpu_time) })
}

/// The times of `calls` calls, each begun `late`.
fn times(
    group: &mut Group,
    operation: Operation,
    calls: usize,
    late: Duration,
) -> Result<Vec<Duration>, Box<dyn Error>> {
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        if !late.is_zero() {
            sleep(late);
        }
        let start = Instant::now();
        call(group, operation)?;
        times.push(start.elapsed());
    }
    Ok(times)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// How many calls to make when one takes about `once` here and at most `most` are wanted: the same on every rank.
fn agree(group: &mut Group, once: Duration, most: usize) -> Result<usize, Box<dyn Error>> {
    let mine = (ENOUGH.as_secs_f32() / once.as_secs_f32().max(1e-9)).clamp(3.0, 1e4).round();
    Ok(most.min(group.least(mine)? as usize))
}

fn call(group: &mut Group, operation: Operation) -> Result<(), Box<dyn Error>> {
    match operation {
        Operation::AllReduce | Operation::Wait => group.all_reduce(),
        Operation::AllGather => group.all_gather(),
        Operation::SendRecv => {
            let (rank, peer) = (group.rank(), group.rank() ^ 1);
            if peer >= group.size() {
                // The last of an odd number of ranks has no partner.
                return Ok(());
            }
            if rank < peer {
                group.send(peer)?;
                group.recv(peer)
            } else {
                group.recv(peer)?;
                group.send(peer)
            }
        }
    }
}

/// The CPU time of all threads of this process, in the system's part too.
fn cpu(usage: &Usage) -> Duration {
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}

/// The most memory that this process ever had, in bytes. getrusage(2) counts kibibytes on Linux and bytes on macOS.
fn peak(usage: &Usage) -> u64 {
    usage.max_rss().unsigned_abs() * if cfg!(target_os = "macos") { 1 } else { 1024 }
}
