//! A launch over RDMA: the devices of the ranks, and the variables by which `mlx.launch --backend jaccl` says so.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::{Value, json};

use super::{Options, QueuePairs, Run, Topology, Transport, Wire};
use crate::ranks::Ranks;
use crate::{Result, files, ports};

/// Where Linux has the RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// What makes no sense.
pub(super) fn validate(options: &Options) -> Result<()> {
    let rdma = options.transport == Transport::Rdma;
    let wrong = [
        (!rdma && options.topology == Topology::Ring, "--topology needs --transport rdma"),
        (!rdma && options.queue_pairs.is_some(), "--queue-pairs needs --transport rdma"),
        (!rdma && options.cut.is_some(), "--cut needs --transport rdma"),
        (rdma && options.wire == Wire::Mlx, "--wire mlx is the TCP ring's: leave out --transport rdma"),
        (rdma && options.hostfile.is_some(), "--transport rdma runs all ranks on this machine: leave out --hostfile"),
    ];
    wrong.iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |(_, text)| Err((*text).into()))
}

/// The topology and so on, in words; nothing without RDMA.
pub(super) fn shape(options: &Options) -> String {
    if options.transport != Transport::Rdma {
        return String::new();
    }
    let topology = if options.topology == Topology::Ring { "ring" } else { "mesh" };
    let queue_pairs = options.queue_pairs.map(|kind| format!(", {} queue pairs", name(kind))).unwrap_or_default();
    format!(", a {topology} over RDMA{queue_pairs}")
}

/// The options that ask for it.
pub(super) fn words(options: &Options) -> Vec<String> {
    if options.transport != Transport::Rdma {
        return Vec::new();
    }
    let topology = (options.topology == Topology::Ring).then(|| "--topology ring".to_string());
    let queue_pairs = options.queue_pairs.map(|kind| format!("--queue-pairs {}", name(kind).to_lowercase()));
    [Some("--transport rdma".to_string()), topology, queue_pairs].into_iter().flatten().collect()
}

fn name(queue_pairs: QueuePairs) -> &'static str {
    match queue_pairs {
        QueuePairs::Rc => "RC",
        QueuePairs::Uc => "UC",
    }
}

/// The device of a rank.
fn device(rank: usize) -> String {
    format!("rxe{rank}")
}

/// The matrix of devices: each rank reaches all others by its own device, as often as there are connections.
fn matrix(ranks: usize, connections: usize) -> Value {
    let cell = |rank: usize, to: usize| match connections {
        _ if rank == to => Value::Null,
        1 => json!(device(rank)),
        _ => json!(vec![device(rank); connections]),
    };
    (0..ranks).map(|rank| (0..ranks).map(|to| cell(rank, to)).collect::<Value>()).collect()
}

/// That the device of each of `ranks` ranks is in `folder`.
fn check_devices(folder: &Path, ranks: usize) -> Result<()> {
    let Some(missing) = (0..ranks).map(device).find(|device| !folder.join(device).exists()) else { return Ok(()) };
    let listed = std::fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.file_name()).collect());
    let mut there: Vec<_> = listed.unwrap_or_default();
    there.sort();
    let there = there.join(OsStr::new(", "));
    let there = if there.is_empty() { "none".into() } else { there.to_string_lossy() };
    Err(format!(
        "--transport rdma: there is no RDMA device {missing} (there is: {there}); run it in the virtual machine (cargo xtask \
         rdma-vm), or make one: rdma link add {missing} type rxe netdev INTERFACE"
    ))
}

impl Run<'_> {
    /// Starts the ranks on this machine's devices, to meet over the loopback.
    pub(super) fn start_jaccl(&mut self) -> Result<Ranks> {
        let options = self.options;
        check_devices(Path::new(DEVICES), options.ranks)?;
        self.size = options.ranks;
        self.numbers = (0..self.size).collect();
        let folder = files::folder()?;
        let matrix = matrix(self.size, options.connections).to_string();
        let devices = files::write(folder.path().join("devices.json"), &matrix)?;
        let ports = ports::draw(2)?;
        let commands = self.numbers.iter().map(|&rank| {
            let mut command = self.command(rank);
            // As launch_jaccl of python/mlx/_distributed_utils/launch.py sets them.
            command.env("MLX_IBV_DEVICES", &devices).env("MLX_RANK", rank.to_string());
            command.env("MLX_JACCL_COORDINATOR", format!("127.0.0.1:{}", ports[0]));
            if options.topology == Topology::Ring {
                command.env("MLX_JACCL_RING", "1");
            }
            if let Some(kind) = options.queue_pairs {
                command.env("NUVEC_DISTRIBUTED_QUEUE_PAIRS", name(kind).to_lowercase());
            }
            command.env("NUVEC_RING_TEST_COORDINATOR", format!("127.0.0.1:{}", ports[1]));
            command
        });
        let commands: Vec<_> = commands.collect();
        self.folder = Some(folder);
        Ranks::start(commands)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn every_rank_reaches_every_other_by_its_own_device() {
        assert_eq!(matrix(2, 1).to_string(), r#"[[null,"rxe0"],["rxe1",null]]"#);
        assert_eq!(matrix(2, 2)[1][0], json!(["rxe1", "rxe1"]));
    }

    #[test]
    fn a_device_that_is_missing_is_named_beside_those_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        for device in ["rxe0", "mlx5_0"] {
            std::fs::write(folder.path().join(device), "").unwrap();
        }
        check_devices(folder.path(), 1).unwrap();
        let e = check_devices(folder.path(), 2).unwrap_err();
        assert!(e.contains("no RDMA device rxe1 (there is: mlx5_0, rxe0)"), "{e}");
        let e = check_devices(Path::new("/no/such/folder"), 1).unwrap_err();
        assert!(e.contains("there is: none"), "{e}");
    }

    #[test]
    fn what_rdma_has_not_and_what_needs_it_is_said() {
        let rdma = Options { transport: Transport::Rdma, ..Options::quick(4, 1) };
        let wrong = |options: Options| options.validate().unwrap_err();
        rdma.validate().unwrap();
        assert!(wrong(Options { wire: Wire::Mlx, ..rdma.clone() }).contains("--wire mlx"));
        assert!(wrong(Options { hostfile: Some(PathBuf::from("a")), ..rdma.clone() }).contains("--hostfile"));
        assert!(wrong(Options { topology: Topology::Ring, ..Options::quick(4, 1) }).contains("--topology"));
        assert!(wrong(Options { queue_pairs: Some(QueuePairs::Uc), ..Options::quick(4, 1) }).contains("--queue-pairs"));
        assert!(wrong(Options { cut: Some(1), ..Options::quick(4, 1) }).contains("--cut"));
        let ring = Options { topology: Topology::Ring, queue_pairs: Some(QueuePairs::Uc), ..rdma };
        let command = ring.command();
        assert!(
            command.ends_with("--connections 1 --transport rdma --topology ring --queue-pairs uc --quick"),
            "{command}"
        );
        assert!(ring.shape(4).ends_with(", a ring over RDMA, UC queue pairs"));
    }
}
