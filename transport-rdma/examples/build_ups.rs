//! Connects and tears down a thousand groups of two ranks over this machine's RDMA devices, half of them by reliable and half
//! by unreliable queue pairs, and sees that no descriptor is left open. What the kernel still has of them afterwards,
//! `rdma resource show` says.
//!
//! `build_ups [DEVICE DEVICE]`: without names the first two devices are taken.

mod pair;

use std::error::Error;

use nuvec_transport::{Channel, conformance};
use nuvec_transport_rdma::QueuePairs;

const GROUPS: usize = 1000;

/// How many descriptors this process has open.
fn descriptors() -> std::io::Result<usize> {
    Ok(std::fs::read_dir("/dev/fd")?.count())
}

fn main() -> Result<(), Box<dyn Error>> {
    let names = pair::names(std::env::args().skip(1).collect())?;
    let group = |round: usize| -> Result<(), Box<dyn Error>> {
        let queue_pairs = if round.is_multiple_of(2) { QueuePairs::Reliable } else { QueuePairs::Unreliable };
        let fabrics = pair::pair(&names, queue_pairs)?;
        let (mut tx, _rx) = pair::channel(&fabrics[0])?.split();
        let (_tx, mut rx) = pair::channel(&fabrics[1])?.split();
        conformance::send_all(&mut tx, &round.to_le_bytes())?;
        let got = conformance::recv_all(&mut rx, size_of::<usize>())?;
        if got == round.to_le_bytes() { Ok(()) } else { Err(format!("group {round}: {got:?} came").into()) }
    };
    // What the first one opens for the whole process stays.
    group(0)?;
    let before = descriptors()?;
    for round in 1..=GROUPS {
        group(round).map_err(|e| format!("group {round}: {e}"))?;
        if round.is_multiple_of(100) {
            println!("{round} groups of {GROUPS}");
        }
    }
    let after = descriptors()?;
    if after != before {
        return Err(format!("{before} descriptors were open after the first group, {after} after the last").into());
    }
    println!("{GROUPS} groups came and went; {after} descriptors are open, as after the first");
    Ok(())
}
