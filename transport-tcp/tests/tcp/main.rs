//! Groups of ranks over loopback, each rank a thread of this process: forming, streams, control, closing, and everything
//! that can go wrong with them. Ports are the system's choice, handed over as listeners.

mod support;

mod forming;
