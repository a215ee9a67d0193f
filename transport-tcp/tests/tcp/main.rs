//! Groups of ranks over loopback, each rank a thread of this process: forming, streams, rings, control, closing, and what goes
//! wrong with them. Ports are mostly the system's choice, handed over as listeners.

mod closing;
mod control;
mod forming;
mod missing;
mod refused;
mod rings;
mod strangers;
mod streams;
mod support;
