//! Verbs that safe code can call.
//!
//! Objects hold their parents by `Arc`, so nothing is torn down under what uses it: a queue pair its completion queue and
//! its protection domain, a region of memory its domain, all of them the device. Memory that the device may write is never
//! referred to: a [`Slot`] is a value, which posting takes and a completion gives back. Errnos that say one thing and mean
//! another are translated here, where they arise. What may not live here: messages, flow control, peers.
#![expect(unsafe_code, reason = "this is where the C interface is made safe")]

mod completion;
mod device;
mod gid;
mod memory;
mod queue_pair;

use completion::CompletionQueue;
pub(crate) use completion::{Completion, CompletionChannel, Work};
pub(crate) use device::{Device, DeviceList, Port};
pub(crate) use gid::Gid;
pub(crate) use memory::{ProtectionDomain, Slab, Slot};
pub(crate) use queue_pair::{Connected, Connection, Prepared, QueuePairType};
