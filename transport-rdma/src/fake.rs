//! Devices in memory: a table of verbs for tests, with faults as fields.
//!
//! A [`Network`] is a number of devices that reach each other. [`Network::options`] makes [`connect`](crate::connect) use
//! them instead of the system's library; everything above the table runs as it does over real ones. [`Network::faults`]
//! says what goes wrong from now on, [`Network::live`] what was made and not destroyed.
//!
//! ```
//! use nuvec_transport_rdma::fake::Network;
//! let network = Network::new(2);
//! network.faults("fake1").port_down = true;
//! assert_eq!(network.live().queue_pairs, 0);
//! let options = network.options(); // for nuvec_transport_rdma::connect
//! # let _ = options;
//! ```
//!
//! The objects are what C sees: structures by pointer, the inline verbs in the context's operation table. Memory is read
//! and written at the moment of delivery, as a device would, so that what is freed too early shows under valgrind. What may
//! not live here: any knowledge of what messages say.
#![expect(unsafe_code, reason = "this is the C interface of devices that are not there")]

mod objects;
mod state;
mod table;

use std::num::NonZeroU64;
use std::ops::DerefMut;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::Options;
use state::State;

/// A device, as it is to be.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its table of GIDs: addresses as IPv6 text, and whether they are of RoCE version 1.
    pub gids: Vec<(String, bool)>,
    /// How many queue pairs it has.
    pub queue_pairs: usize,
    /// How many memory regions it registers.
    pub regions: usize,
    /// How many work requests each of a queue pair's two queues holds.
    pub work: usize,
    /// Whether it offers reliable queue pairs.
    pub reliable: bool,
    /// Whether it has completion channels.
    pub events: bool,
    /// The longest message, in bytes.
    pub message: u32,
}

impl Device {
    /// A device of that name with an IPv4-mapped GID, and the limits of Apple's: 10 queue pairs, 100 regions, 32 work
    /// requests a queue; but with reliable queue pairs too.
    pub fn new(name: impl Into<String>, address: &str) -> Self {
        Self {
            name: name.into(),
            gids: vec![("fe80::1".into(), false), (format!("::ffff:{address}"), false)],
            queue_pairs: 10,
            regions: 100,
            work: 32,
            reliable: true,
            events: true,
            message: 1 << 20,
        }
    }
}

/// What goes wrong at a device, until it is changed.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Faults {
    /// Its port is down for whoever asks.
    pub port_down: bool,
    /// The next completion that is polled has this status.
    pub status: Option<u32>,
    /// The next completion that is polled has this identifier.
    pub wr_id: Option<u64>,
    /// Polling returns −1.
    pub poll_fails: bool,
    /// Queue pairs lose the messages of these numbers, counted from 0 over all that the device sends. Reliable ones lose none.
    pub lose: Vec<u64>,
    /// Queue pairs lose one message in so many. Reliable ones lose none.
    pub lose_one_in: Option<NonZeroU64>,
    /// Nothing goes in or out any more: the cable is cut, or the process that used it was killed.
    pub cut: bool,
    /// Queue pairs are not destroyed.
    pub destroy_fails: bool,
}

/// What was made and not destroyed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Live {
    /// Devices that are open.
    pub contexts: usize,
    /// Protection domains.
    pub domains: usize,
    /// Memory regions.
    pub regions: usize,
    /// Completion channels, of a descriptor each.
    pub channels: usize,
    /// Completion queues.
    pub completion_queues: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
}

/// Devices that reach each other.
#[derive(Clone)]
pub struct Network {
    state: Arc<Shared>,
}

type Shared = Mutex<State>;

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Network({:?})", self.live())
    }
}

impl Network {
    /// `devices` devices as [`Device::new`] makes them, named fake0, fake1, ….
    pub fn new(devices: usize) -> Self {
        Self::of((0..devices).map(|i| Device::new(format!("fake{i}"), &format!("10.0.0.{}", i + 1))).collect())
    }

    /// These devices. Panics at an address that is no IPv6 address.
    pub fn of(devices: Vec<Device>) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(devices))) }
    }

    /// Options that use these devices, in a group that waits 10 s at most.
    pub fn options(&self) -> Options {
        let mut options = Options::default().timeout(std::time::Duration::from_secs(10));
        options.verbs = Some(Arc::new(table::verbs(&self.state)));
        options
    }

    /// The faults of the device of that name, to be read and changed. While the result is held, all devices stand still.
    /// Panics if there is no such device.
    pub fn faults(&self, device: &str) -> impl DerefMut<Target = Faults> + '_ {
        let state = self.state.lock();
        let index = state.devices.iter().position(|d| d.device.name == device).expect("a device of that name");
        MutexGuard::map(state, |state| &mut state.devices[index].faults)
    }

    /// What was made and not destroyed, of all devices.
    pub fn live(&self) -> Live {
        self.state.lock().live()
    }

    /// How many messages the device of that name has sent so far, lost ones too.
    pub fn sent(&self, device: &str) -> u64 {
        self.state.lock().devices.iter().find(|d| d.device.name == device).map_or(0, |d| d.sent)
    }
}
