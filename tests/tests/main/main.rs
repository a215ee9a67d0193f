//! Tests of whole rings: processes that join through the facade.

mod checks;
mod death;
mod mlx;
mod situations;

use std::path::Path;
use std::time::Duration;

/// The rank binary.
fn rank() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_rank"))
}

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
