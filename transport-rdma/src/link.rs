//! Framing, sequence, credits, acknowledgements and go-back-N of one channel, without clock or I/O.
