//! What the rank binary checks and measures, and how tests start ranks.
//!
//! The rank binary (`src/bin/rank.rs`) is one process of a ring: `cargo xtask ring-test` and this package's tests start
//! several and read what they report ([`report`]). [`cases`] are the checks through the facade with nuvec arrays, on
//! data that [`sample`] makes, those between any two ranks and in split groups among them (`groups`); [`second`] those of operations that nuvec does not have, on a group of its own;
//! [`measure`] the table's figures. [`harness`] is for the tests that start ranks.

pub mod cases;
mod groups;
pub mod harness;
pub mod measure;
pub mod report;
pub mod sample;
pub mod second;
