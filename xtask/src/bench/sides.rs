//! The sides that take turns: what each needs on this machine, and how its ranks are started.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Peer;
use super::plan::{Measurement, Shape};
use crate::ring_test::{OTHER_LAUNCHES, local_nodes, write_hostfile};
use crate::{Result, cargo, ports};

/// The release of MLX that is measured: the one that the tests of the `mlx` wire follow.
const MLX: &str = "0.32.4";

/// Somebody who takes a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Side {
    /// Our collectives, on bytes.
    Ours { program: PathBuf },
    /// MLX's ring.
    Mlx { python: PathBuf },
    /// Open MPI over TCP.
    OpenMpi { program: PathBuf, version: String },
}

/// Makes what `peer` needs in the target directory. An error says, after "it needs", what to install.
pub(crate) fn prepare(peer: Peer, target: &Path) -> Result<Side> {
    match peer {
        Peer::Mlx => mlx(target),
        Peer::OpenMpi => openmpi(target),
    }
}

/// Where the virtual environment with MLX is, and what marks it as whole. The tests of the `mlx` wire make it too, at the
/// same place: whoever comes first.
fn mlx_environment(target: &Path) -> (PathBuf, PathBuf) {
    let folder = target.join("tmp").join(format!("mlx-{MLX}"));
    let whole = folder.join("whole");
    (folder, whole)
}

/// MLX, if the environment is there already.
pub(crate) fn mlx_if_there(target: &Path) -> Option<Side> {
    let (folder, whole) = mlx_environment(target);
    whole.exists().then(|| Side::Mlx { python: folder.join("bin/python") })
}

fn mlx(target: &Path) -> Result<Side> {
    let (folder, whole) = mlx_environment(target);
    let failed = |e: std::io::Error| format!("a folder to write to ({}: {e})", folder.display());
    std::fs::create_dir_all(target.join("tmp")).map_err(failed)?;
    let lock = File::create(target.join("tmp/mlx.lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    if let Some(side) = mlx_if_there(target) {
        return Ok(side);
    }
    eprintln!("note: installing MLX {MLX} from PyPI into {}", folder.display());
    let python = folder.join("bin/python");
    quietly(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))
        .map_err(|e| format!("python3 with venv (Debian: python3-venv; {e})"))?;
    let package = format!("mlx[cpu]=={MLX}");
    quietly(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &package]))
        .map_err(|e| format!("{package} from PyPI, for this Python and system ({e})"))?;
    quietly(Command::new(&python).args(["-c", "import mlx.core"]))
        .map_err(|e| format!("an {package} that runs here ({e})"))?;
    std::fs::write(&whole, "").map_err(failed)?;
    Ok(Side::Mlx { python })
}

fn openmpi(target: &Path) -> Result<Side> {
    const NEEDS: &str = "Open MPI and a C compiler (Debian: apt install openmpi-bin libopenmpi-dev gcc)";
    let said = quietly(Command::new("mpirun").arg("--version")).map_err(|e| format!("{NEEDS}; mpirun: {e}"))?;
    let version = said.lines().next().unwrap_or_default().to_string();
    if !version.contains("Open MPI") {
        return Err(format!("{NEEDS}; this machine's mpirun says {version:?}"));
    }
    let folder = target.join("bench");
    std::fs::create_dir_all(&folder).map_err(|e| format!("a folder to write to ({}: {e})", folder.display()))?;
    let program = folder.join("openmpi_rank");
    let source = cargo::root().join("xtask/src/bench/openmpi_rank.c");
    quietly(Command::new("mpicc").args(["-O2", "-o"]).arg(&program).arg(source))
        .map_err(|e| format!("{NEEDS}; mpicc: {e}"))?;
    Ok(Side::OpenMpi { program, version })
}

/// Runs a command without showing what it says, and returns that; an error is the last line of its complaint.
fn quietly(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it failed and said nothing").trim().to_string())
}

impl Side {
    /// Its name in tables.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Ours { .. } => "ours",
            Self::Mlx { .. } => Peer::Mlx.name(),
            Self::OpenMpi { .. } => Peer::OpenMpi.name(),
        }
    }

    /// What it is.
    pub(crate) fn description(&self) -> String {
        match self {
            Self::Ours { .. } => format!("nuvec-collectives {} over nuvec-transport-tcp", env!("CARGO_PKG_VERSION")),
            Self::Mlx { .. } => format!("MLX {MLX}, ring backend, from Python"),
            Self::OpenMpi { version, .. } => format!("{version}, TCP alone"),
        }
    }

    /// The processes of a turn, on loopback; hostfiles go to `folder`.
    pub(crate) fn commands(&self, shape: Shape, plan: &[Measurement], folder: &Path) -> Result<Vec<Command>> {
        let Shape { ranks, connections } = shape;
        let arguments = plan.iter().map(|m| m.argument(ranks));
        if let Self::OpenMpi { program, .. } = self {
            let mut command = Command::new("mpirun");
            command.args(openmpi_options(shape)).arg(program).args(arguments);
            return Ok(vec![command]);
        }
        let nodes = local_nodes(ranks, connections, &mut ports::draw_free)?;
        let hostfile = write_hostfile(folder, "hosts.json", &nodes)?;
        let command = |rank: usize| {
            let mut command = match self {
                Self::Mlx { python } => {
                    let mut command = Command::new(python);
                    command.arg(cargo::root().join("xtask/src/bench/mlx_rank.py"));
                    command
                }
                Self::Ours { program } | Self::OpenMpi { program, .. } => Command::new(program),
            };
            if let Self::Ours { .. } = self {
                let nodes: Vec<_> = nodes.iter().map(|addresses| addresses.join(",")).collect();
                command.arg(rank.to_string()).arg(nodes.join(";"));
            }
            for variable in OTHER_LAUNCHES.iter().chain(&["NUVEC_DISTRIBUTED_KEY", "NUVEC_DISTRIBUTED_SPIN_US"]) {
                command.env_remove(variable);
            }
            command.env("MLX_HOSTFILE", &hostfile).env("MLX_RANK", rank.to_string());
            command.args(arguments.clone());
            command
        };
        Ok((0..ranks).map(command).collect())
    }
}

/// TCP over loopback alone, as for the others: no shared memory, no binding to processors, and more ranks than processors
/// if need be.
fn openmpi_options(Shape { ranks, connections }: Shape) -> Vec<String> {
    let loopback = if cfg!(target_os = "macos") { "lo0" } else { "lo" };
    let links = connections.to_string();
    let mca =
        [("pml", "ob1"), ("btl", "tcp,self"), ("btl_tcp_if_include", loopback), ("btl_tcp_links", links.as_str())];
    let mut words = vec!["-n".to_string(), ranks.to_string()];
    words.extend(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"].map(String::from));
    words.extend(mca.iter().flat_map(|(name, value)| ["--mca", name, value].map(String::from)));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::{Operation, measurements};

    fn words(command: &Command) -> Vec<String> {
        command.get_args().map(|a| a.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn every_side_gets_the_same_plan() {
        let folder = tempfile::tempdir().unwrap();
        let plan = measurements(&[Operation::AllReduce], &[8]);
        let shape = Shape { ranks: 2, connections: 3 };
        let program = PathBuf::from("/p");
        let ours = Side::Ours { program: program.clone() }.commands(shape, &plan, folder.path()).unwrap();
        let mlx = Side::Mlx { python: program.clone() }.commands(shape, &plan, folder.path()).unwrap();
        let openmpi = Side::OpenMpi { program, version: String::new() }.commands(shape, &plan, folder.path()).unwrap();
        assert_eq!((ours.len(), mlx.len(), openmpi.len()), (2, 2, 1));
        for command in ours.iter().chain(&mlx).chain(&openmpi) {
            assert_eq!(words(command).last().unwrap(), "all_reduce:8:40:2000");
        }
        let nodes = &words(&ours[1])[1];
        assert_eq!((nodes.split(';').count(), nodes.split([';', ',']).count()), (2, 6), "{nodes}");
        assert!(words(&openmpi[0]).join(" ").starts_with("-n 2 "));
        assert!(words(&openmpi[0]).join(" ").contains("--mca btl_tcp_links 3 "));
    }

    #[test]
    fn what_fails_quietly_says_why_in_a_line() {
        assert_eq!(quietly(Command::new("sh").args(["-c", "echo good"])).unwrap(), "good\n");
        let e = quietly(Command::new("sh").args(["-c", "echo first >&2; echo ' why' >&2; echo >&2; exit 3"]));
        assert_eq!(e.unwrap_err(), "why");
        assert!(quietly(&mut Command::new("/no/such/program")).is_err());
    }

    #[test]
    fn what_is_measured_is_what_the_tests_follow() {
        let tests = cargo::root().join("tests/src/mlx.rs");
        let text = std::fs::read_to_string(tests).unwrap();
        assert!(text.contains(&format!("const MLX: &str = {MLX:?};")), "tests/src/mlx.rs has another release");
    }

    #[test]
    fn an_environment_that_is_not_whole_is_not_there() {
        let target = tempfile::tempdir().unwrap();
        let (folder, whole) = mlx_environment(target.path());
        std::fs::create_dir_all(folder).unwrap();
        assert_eq!(mlx_if_there(target.path()), None);
        std::fs::write(whole, "").unwrap();
        assert!(mlx_if_there(target.path()).is_some());
    }
}
