//! JACCL's launch on a machine without RDMA: what a process says, and that none runs alone for want of a device. What
//! needs devices runs in `cargo xtask rdma-vm`.

use std::path::Path;
use std::process::Command;

use nuvec_distributed_tests::harness::{Finished, Ranks};

use crate::{PATIENCE, rank, words};

/// Runs rank 0 of a JACCL launch over `devices`, with these variables more, in an environment without any other.
fn launch(folder: &Path, devices: &str, variables: &[(&str, &str)]) -> Finished {
    let file = folder.join("devices.json");
    std::fs::write(&file, devices).expect("a device file");
    let mut command = Command::new(rank());
    command.args(words("check --seed 1 --quick --only all_sum/float32")).env_clear();
    command.env("MLX_IBV_DEVICES", file).env("MLX_JACCL_COORDINATOR", "127.0.0.1:1").env("MLX_RANK", "0");
    command.env("NUVEC_DISTRIBUTED_TIMEOUT", "1").envs(variables.iter().copied());
    Ranks::start([command]).finish(PATIENCE).remove(0)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

const TWO: &str = r#"[[null, "nuvec_none0"], ["nuvec_none1", null]]"#;

#[test]
fn one_rank_without_a_device_is_a_group_of_one() {
    let folder = folder();
    let alone = launch(folder.path(), "[[null]]", &[]);
    assert!(alone.status.success() && alone.said("@done").count() == 1, "{:?}", alone.lines);
}

/// The loader finds files of the library's names that are no libraries, and looks no further.
#[cfg(target_os = "linux")]
#[test]
fn without_the_verbs_library_the_error_has_the_names_that_were_tried() {
    let folder = folder();
    let names = ["libibverbs.so.1", "libibverbs.so"];
    for name in names {
        std::fs::write(folder.path().join(name), "").expect("a file");
    }
    let path = folder.path().to_str().expect("a path of UTF-8");
    let process = launch(folder.path(), TWO, &[("LD_LIBRARY_PATH", path)]);
    assert!(!process.status.success() && process.said("@done").count() == 0);
    let tried = |line: &String| names.iter().all(|name| line.contains(&format!("{name} (")));
    assert!(process.lines.iter().any(|line| line.contains("no verbs library") && tried(line)), "{:?}", process.lines);
}

#[test]
fn without_the_device_the_error_says_so_and_mlxs_wire_is_refused_before() {
    let folder = folder();
    let process = launch(folder.path(), TWO, &[]);
    let says = |process: &Finished, text: &str| process.lines.iter().any(|line| line.contains(text));
    let why = says(&process, "there is no RDMA device") || says(&process, "no verbs library can be opened; tried lib");
    assert!(!process.status.success() && why, "{:?}", process.lines);
    let process = launch(folder.path(), TWO, &[("NUVEC_DISTRIBUTED_WIRE", "mlx")]);
    assert!(!process.status.success() && says(&process, "MLX's wire is the TCP ring's"), "{:?}", process.lines);
}
