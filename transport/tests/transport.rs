//! The in-memory channels keep what every channel promises.

use nuvec_transport::{conformance, memory};

#[test]
fn memory_channels_conform_whatever_they_hold() {
    for capacity in [1, 2, 1000, 1 << 20] {
        conformance::suite(&mut || memory::pair(capacity));
    }
}
