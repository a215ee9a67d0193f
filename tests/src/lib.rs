//! What the rank binary checks and measures, and how tests start ranks.
//!
//! The rank binary (`src/bin/rank.rs`) is one process of a ring: `cargo xtask ring-test` and this package's tests start
//! several and read what they report ([`report`]). [`cases`] are the checks through the facade with nuvec arrays, on
//! data that [`sample`] makes, those between any two ranks and in split groups among them (`groups`), those of MLX's wire
//! (`mlx_wire`) and those of JACCL (`jaccl`); [`second`] those of operations that nuvec does not have, on a group of its own;
//! [`measure`] the table's figures. [`harness`] is for the tests that start ranks, [`mlx`] for those with MLX's.

pub mod cases;
mod groups;
pub mod harness;
mod jaccl;
pub mod measure;
pub mod mlx;
mod mlx_wire;
pub mod report;
pub mod sample;
pub mod second;
