//! Groups over devices in memory: what `fake` makes go wrong, and what must come of it (D1 to D8 of the cases that users
//! reported). Every wait is bounded; ports are the system's.

mod channels;
mod failing;
mod forming;
mod groups;
mod support;
