//! Groups of ranks over loopback, each rank a thread of this process: forming, streams, rings, control, the star without a ring, closing, and what goes
//! wrong with them. Ports are mostly the system's choice, handed over as listeners.

mod bootstrap;
mod closing;
mod control;
mod forming;
mod missing;
mod refused;
mod rings;
mod strangers;
mod streams;
mod support;
