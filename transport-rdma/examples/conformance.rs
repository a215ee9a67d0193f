//! Runs the suite that every channel kind must pass over this machine's RDMA devices.
//!
//! `conformance [DEVICE DEVICE]`: two ranks, in this process, by these devices (two that reach each other; or one, twice).
//! Without names the first two devices are taken. Soft-RoCE will do: `rdma link add rxe0 type rxe netdev INTERFACE`.

mod pair;

use std::error::Error;

use nuvec_transport::conformance;
use nuvec_transport_rdma::QueuePairs;

fn main() -> Result<(), Box<dyn Error>> {
    let names = pair::names(std::env::args().skip(1).collect())?;
    for queue_pairs in [QueuePairs::Reliable, QueuePairs::Unreliable] {
        println!("{queue_pairs:?} queue pairs between {} and {}", names[0], names[1]);
        // A group lives as long as its channels are in use.
        let mut groups = Vec::new();
        conformance::suite(&mut || {
            let group = pair::pair(&names, queue_pairs).expect("the ranks are joined");
            let channels = group.each_ref().map(|fabric| pair::channel(fabric).expect("a channel"));
            groups.push(group);
            channels.into()
        });
        println!("{queue_pairs:?}: the suite passed");
    }
    Ok(())
}
