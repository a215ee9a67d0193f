//! `cargo xtask ring-test`: a ring of ranks on this machine, checked and measured through the facade.
//!
//! This module holds the options and how ranks are started; [`checks`] watches them check, [`faults`] kills or
//! stops one of them, [`hostfile`] says where the ranks are, [`jaccl`] has what a launch over RDMA needs, [`report`]
//! understands their reports and prints tables. What is checked is in the rank binary.

mod checks;
mod faults;
mod hostfile;
mod jaccl;
mod report;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use self::faults::Fault;
pub(crate) use self::hostfile::{local_nodes, write_hostfile};
use self::hostfile::{read_hostfile, shifted};
use crate::ranks::Ranks;
use crate::{Result, cargo, files, ports, units};
use clap::{Args, ValueEnum};

/// How often a ring is started again because a port was taken.
const ATTEMPTS: usize = 5;
/// The rank binary's exit code when a port of its own was taken (EADDRINUSE's number on Linux).
const PORT_TAKEN: i32 = 98;
/// The rank binary's exit code when another rank checks other cases, which it has said.
const OTHER_CASES: i32 = 78;
/// The variables of launches other than a ring's, which an inherited environment might carry.
pub(crate) const OTHER_LAUNCHES: [&str; 11] = [
    "MLX_IBV_DEVICES",
    "MLX_JACCL_COORDINATOR",
    "MLX_JACCL_RING",
    "JACCL_IBV_DEVICES",
    "JACCL_COORDINATOR",
    "JACCL_RANK",
    "JACCL_RING",
    "NUVEC_DISTRIBUTED_GID_INDEX",
    "NUVEC_DISTRIBUTED_NAME",
    "NUVEC_DISTRIBUTED_QUEUE_PAIRS",
    "NUVEC_DISTRIBUTED_WIRE",
];

/// Options of `ring-test`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// How many ranks
    #[arg(long, short = 'n', value_name = "N", default_value = "4", value_parser = count)]
    pub(crate) ranks: usize,
    /// How many connections to each neighbour
    #[arg(long, value_name = "K", default_value = "2", value_parser = count)]
    pub(crate) connections: usize,
    /// What the ranks are joined by; with rdma, rank N uses the device rxeN
    #[arg(long, value_enum, default_value = "tcp")]
    pub(crate) transport: Transport,
    /// With --transport rdma: how the ranks are joined; a ring is asked for by MLX_JACCL_RING
    #[arg(long, value_enum, default_value = "mesh")]
    pub(crate) topology: Topology,
    /// With --transport rdma: the type of queue pairs [default: rc where the device has it]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) queue_pairs: Option<QueuePairs>,
    /// What is spoken on the ring: our own protocol, or MLX's
    #[arg(long, value_enum, default_value = "native")]
    pub(crate) wire: Wire,
    /// Admit only ranks that have this key, of at least 16 bytes; without a value: a random one of 32 bytes. With
    /// --hostfile: NUVEC_DISTRIBUTED_KEY's, if this is left out
    #[arg(long, value_name = "KEY", num_args = 0..=1, default_missing_value = "")]
    pub(crate) key: Option<String>,
    /// Fewer checks and sizes: a few seconds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Check and measure these sizes in bytes (such as 8,64K,1M) in place of the built-in ones
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = units::bytes)]
    pub(crate) sizes: Vec<u64>,
    /// Print the result as JSON; everything else goes to standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Where the data's random numbers begin [default: random, and printed]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Kill this rank in the middle of a loop of 16 MiB all-reduces: every survivor must name it within 2 seconds (on
    /// MLX's wire: a neighbour that it lost)
    #[arg(long, value_name = "RANK", conflicts_with_all = ["stop", "pause", "hostfile", "only", "spoil", "sizes"])]
    pub(crate) kill: Option<usize>,
    /// Stop this rank (SIGSTOP) in the middle of such a loop: every survivor must name it within the time-out and 2
    /// seconds (on MLX's wire: a neighbour)
    #[arg(long, value_name = "RANK", conflicts_with_all = ["pause", "hostfile", "only", "spoil", "sizes"])]
    pub(crate) stop: Option<usize>,
    /// Stop this rank in the middle of such a loop, and let it go on after half the time-out: so must the loop, and
    /// every sum must be right
    #[arg(long, value_name = "RANK", conflicts_with_all = ["hostfile", "only", "spoil", "sizes"])]
    pub(crate) pause: Option<usize>,
    /// With --transport rdma, in rdma-vm: pull this rank's cable in the middle of such a loop; every rank must fail within
    /// the time-out and 2 seconds, and name it; itself it may name another
    #[arg(long, value_name = "RANK", conflicts_with_all = ["kill", "stop", "pause", "hostfile", "only", "spoil", "sizes"])]
    pub(crate) cut: Option<usize>,
    /// Run one rank of a ring over several machines: MLX's hostfile, the same on each. The checks that use a second
    /// group take the file's ports plus 1000 for it
    #[arg(long, value_name = "FILE", requires = "rank", conflicts_with_all = ["ranks", "connections"])]
    pub(crate) hostfile: Option<PathBuf>,
    /// Which rank of the hostfile this machine runs. Needs --seed: every machine the same, and so --key, --sizes, --only
    /// and --quick
    #[arg(long, value_name = "RANK", requires = "hostfile", requires = "seed")]
    pub(crate) rank: Option<usize>,
    /// How long a rank waits for a peer without progress before it fails: the ranks' NUVEC_DISTRIBUTED_TIMEOUT, which
    /// their errors name [default: 30; with --stop, --pause or --cut: 3]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
    /// End with an error, saying where each rank stands, if it takes longer than this in all
    #[arg(long, value_name = "SECONDS", default_value = "1200", value_parser = seconds)]
    pub(crate) deadline: Duration,
    /// Run only the checks of this name, or whose name begins with it and a slash: all_sum, all_sum/float32 or
    /// all_sum/float32/1000 (an operation, a dtype, a length in elements)
    #[arg(long, value_name = "CHECK")]
    pub(crate) only: Option<String>,
    /// Fault switch: change one element of this check's result on the last rank, so that the check must fail. Needs a
    /// full name, such as all_sum/float32/1000
    #[arg(long, value_name = "CHECK")]
    pub(crate) spoil: Option<String>,
    /// The rank binary, built before: where there is no compiler
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) program: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    Tcp,
    Rdma,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Topology {
    Mesh,
    Ring,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueuePairs {
    Rc,
    Uc,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wire {
    Native,
    Mlx,
}

/// A number from 1 to 64.
pub(crate) fn count(text: &str) -> Result<usize> {
    text.parse().ok().filter(|n| (1..=64).contains(n)).ok_or_else(|| "expected a number from 1 to 64".into())
}

/// Seconds above 0, fractions allowed.
fn seconds(text: &str) -> Result<Duration> {
    let seconds = text.parse().ok().filter(|&s: &f64| s > 0.0);
    seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).ok_or_else(|| "expected seconds above 0".into())
}

impl Options {
    /// A quick run of `ranks` ranks with `connections` connections, for [`crate::test`].
    pub(crate) fn quick(ranks: usize, connections: usize) -> Self {
        Self {
            ranks,
            connections,
            transport: Transport::Tcp,
            topology: Topology::Mesh,
            queue_pairs: None,
            wire: Wire::Native,
            key: None,
            quick: true,
            sizes: Vec::new(),
            json: false,
            seed: None,
            kill: None,
            stop: None,
            pause: None,
            cut: None,
            hostfile: None,
            rank: None,
            timeout: None,
            deadline: Duration::from_secs(600),
            only: None,
            spoil: None,
            program: None,
        }
    }

    /// Over several machines, the key that the environment has counts unless another is given.
    fn with_key_of(mut self, variable: Option<OsString>) -> Result<Self> {
        if let (Some(_), None, Some(key)) = (&self.hostfile, &self.key, variable) {
            self.key = Some(key.into_string().map_err(|_| "NUVEC_DISTRIBUTED_KEY: expected UTF-8")?);
        }
        Ok(self)
    }

    /// What cannot be had, or makes no sense.
    fn validate(&self) -> Result<()> {
        jaccl::validate(self)?;
        if self.wire == Wire::Mlx && self.key.is_some() {
            return Err(
                "--key, NUVEC_DISTRIBUTED_KEY: MLX's wire has no key; leave it out, or take --wire native".into()
            );
        }
        match self.key.as_deref() {
            Some("") if self.hostfile.is_some() => {
                return Err("--key needs a value with --hostfile: the same on every machine".into());
            }
            Some(key) if !key.is_empty() && key.len() < 16 => {
                return Err(format!("the key's {} bytes are too short: at least 16, better 32 random ones", key.len()));
            }
            _ => {}
        }
        if let Some(file) = &self.hostfile {
            let wrong = |why| format!("--hostfile {}: {why}", file.display());
            let nodes = read_hostfile(file).map_err(wrong)?;
            shifted(&nodes).map_err(wrong)?;
            if let Some(rank) = self.rank.filter(|rank| *rank >= nodes.len()) {
                return Err(format!("--rank {rank}: the hostfile's ranks are 0 to {}", nodes.len() - 1));
            }
        }
        match self.fault() {
            Some((fault, _)) if self.ranks < 2 => Err(format!("{} needs at least 2 ranks", fault.flag())),
            Some((fault, rank)) if rank >= self.ranks => {
                Err(format!("{} {rank}: with {} ranks they are 0 to {}", fault.flag(), self.ranks, self.ranks - 1))
            }
            _ => Ok(()),
        }
    }

    /// What is to happen to which rank.
    fn fault(&self) -> Option<(Fault, usize)> {
        let faults =
            [(Fault::Kill, self.kill), (Fault::Stop, self.stop), (Fault::Pause, self.pause), (Fault::Cut, self.cut)];
        faults.into_iter().find_map(|(fault, rank)| Some((fault, rank?)))
    }

    /// The ranks' time-out.
    fn timeout(&self) -> Duration {
        let waited_for = self.stop.or(self.pause).or(self.cut).is_some();
        self.timeout.unwrap_or(Duration::from_secs(if waited_for { 3 } else { 30 }))
    }

    /// What ring it is, in words.
    fn shape(&self, size: usize) -> String {
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        let mut text = format!("{size} rank{}", plural(size));
        if self.hostfile.is_none() {
            text += &format!(", {} connection{} to each neighbour", self.connections, plural(self.connections));
        }
        text += &jaccl::shape(self);
        text += if self.key.is_some() { ", with a key" } else { "" };
        text + if self.wire == Wire::Mlx { ", on MLX's wire" } else { "" }
    }

    /// The command, without the data's seed and what selects or spoils checks.
    pub(crate) fn command(&self) -> String {
        let mut words = vec!["cargo xtask ring-test".to_string()];
        match (&self.hostfile, self.rank) {
            (Some(file), Some(rank)) => {
                words.push(format!("--hostfile {} --rank {rank}", quoted(&file.to_string_lossy())))
            }
            _ => words.push(format!("--ranks {} --connections {}", self.ranks, self.connections)),
        }
        words.extend(jaccl::words(self));
        words.extend((self.wire == Wire::Mlx).then(|| "--wire mlx".to_string()));
        // Never the key itself: lines like this one end up in logs. Several machines must have the same one.
        let key = if self.hostfile.is_some() { "--key \"$NUVEC_DISTRIBUTED_KEY\"" } else { "--key" };
        words.extend(self.key.as_ref().map(|_| key.to_string()));
        words.extend(self.quick.then(|| "--quick".to_string()));
        if !self.sizes.is_empty() {
            let sizes: Vec<_> = self.sizes.iter().map(u64::to_string).collect();
            words.push(format!("--sizes {}", sizes.join(",")));
        }
        words.extend(self.timeout.map(|timeout| format!("--timeout {}", timeout.as_secs_f64())));
        words.extend(self.fault().map(|(fault, rank)| format!("{} {rank}", fault.flag())));
        words.join(" ")
    }

    /// The command that repeats this run, with `case` alone if it is given.
    fn reproduction(&self, seed: u64, case: Option<&str>) -> String {
        let mut text = format!("{} --seed {seed}", self.command());
        text += &self.spoil.as_ref().map(|case| format!(" --spoil {}", quoted(case))).unwrap_or_default();
        text + &case.or(self.only.as_deref()).map(|case| format!(" --only {}", quoted(case))).unwrap_or_default()
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// The command itself.
pub(crate) fn main(options: &Options) -> Result<bool> {
    let options = &options.clone().with_key_of(std::env::var_os("NUVEC_DISTRIBUTED_KEY"))?;
    options.validate()?;
    let program = options.program.clone().map_or_else(cargo::build_rank, Ok)?;
    if options.json {
        run(options, &program, None, &mut std::io::stderr())
    } else {
        run(options, &program, None, &mut std::io::stdout())
    }
}

/// Where ranks run, if not on loopback addresses of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Placement {
    /// Each rank's addresses.
    pub(crate) nodes: Vec<Vec<String>>,
    /// Each rank's addresses for the second group.
    pub(crate) second: Vec<Vec<String>>,
    /// Each rank's words before the program's name, which bring it there.
    pub(crate) enter: Vec<Vec<String>>,
}

/// Runs `options` with the rank binary `program`, at `placement` if there is one; what is for people goes to `out`, JSON
/// to standard output. Starts again with other ports when one was taken.
pub(crate) fn run(
    options: &Options,
    program: &Path,
    placement: Option<&Placement>,
    out: &mut (dyn Write + Send),
) -> Result<bool> {
    options.validate()?;
    let seed = options.seed.map_or_else(ports::random_u64, Ok)?;
    let key = match options.key.as_deref() {
        Some("") => Some(random_key()?),
        key => key.map(String::from),
    };
    let mut run = Run { options, program, placement, seed, key, folder: None, numbers: Vec::new(), size: 0 };
    for _ in 0..ATTEMPTS {
        let ranks = run.start()?;
        let watch = if options.fault().is_some() { faults::watch } else { checks::watch };
        let end = watch(&run, ranks, out)?;
        match end {
            End::Passed => return Ok(true),
            End::Failed => return Ok(false),
            End::PortTaken if options.hostfile.is_some() => {
                return Err("a port of this rank is taken: end what holds it, or change the hostfile".into());
            }
            End::PortTaken => drop(writeln!(out, "a port was taken: starting again with others")),
        }
    }
    Err(format!("{ATTEMPTS} times in a row a port was taken"))
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    PortTaken,
}

/// 32 random bytes in hexadecimal.
fn random_key() -> Result<String> {
    let parts: Result<Vec<String>> = (0..4).map(|_| Ok(format!("{:016x}", ports::random_u64()?))).collect();
    Ok(parts?.concat())
}

/// One run of the command: what all its attempts share.
struct Run<'a> {
    options: &'a Options,
    program: &'a Path,
    placement: Option<&'a Placement>,
    seed: u64,
    key: Option<String>,
    /// Where the hostfiles of the present attempt lie.
    folder: Option<tempfile::TempDir>,
    /// The ranks that run here, in the order of their processes.
    numbers: Vec<usize>,
    /// The number of ranks of the ring.
    size: usize,
}

impl Run<'_> {
    /// Starts the ranks, with ports of their own.
    fn start(&mut self) -> Result<Ranks> {
        let (nodes, second) = match (self.placement, &self.options.hostfile) {
            (Some(placement), _) => (placement.nodes.clone(), placement.second.clone()),
            (None, Some(file)) => {
                let nodes = read_hostfile(file)?;
                let second = shifted(&nodes)?;
                (nodes, second)
            }
            (None, None) if self.options.transport == Transport::Rdma => return self.start_jaccl(),
            (None, None) => {
                // Drawn at once, so that the two groups share no port.
                let mut all = local_nodes(2 * self.options.ranks, self.options.connections, &mut ports::draw)?;
                let second = all.split_off(self.options.ranks);
                (all, second)
            }
        };
        self.size = nodes.len();
        self.numbers = match self.options.rank {
            Some(rank) => vec![rank],
            None => (0..self.size).collect(),
        };
        let folder = files::folder()?;
        let hostfile = write_hostfile(folder.path(), "hosts.json", &nodes)?;
        let second = write_hostfile(folder.path(), "hosts-of-second-group.json", &second)?;
        let ring = |rank: usize| {
            let mut command = self.command(rank);
            command.env("MLX_HOSTFILE", &hostfile).env("MLX_RANK", rank.to_string());
            if self.options.wire == Wire::Mlx {
                command.env("NUVEC_DISTRIBUTED_WIRE", "mlx");
            } else {
                // The operations that nuvec does not have are checked there; MLX's wire has none of them.
                command.env("NUVEC_RING_TEST_HOSTFILE", &second);
            }
            command
        };
        let commands: Vec<_> = self.numbers.iter().map(|&rank| ring(rank)).collect();
        if self.options.only.is_some() {
            self.dry_run(ring(self.numbers[0]))?;
        }
        self.folder = Some(folder);
        Ranks::start(commands)
    }

    /// Whether there is a check to run, before all ranks say that there is none. `command` runs a rank.
    fn dry_run(&self, mut command: Command) -> Result<()> {
        let output = command.arg("--dry-run").output().map_err(|e| format!("{}: {e}", self.program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().last().unwrap_or_default();
        if output.status.success() { Ok(()) } else { Err(said.strip_prefix("error: ").unwrap_or(said).into()) }
    }

    /// The command that runs a rank, but for the variables that say where the ranks are.
    fn command(&self, rank: usize) -> Command {
        let options = self.options;
        let mut words = self.placement.map(|p| p.enter[rank].clone()).unwrap_or_default().into_iter();
        let mut command = match words.next() {
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(self.program);
                command
            }
            None => Command::new(self.program),
        };
        for variable in OTHER_LAUNCHES {
            command.env_remove(variable);
        }
        for variable in ["MLX_HOSTFILE", "NUVEC_RING_TEST_HOSTFILE", "NUVEC_RING_TEST_COORDINATOR"] {
            command.env_remove(variable);
        }
        command.env("NUVEC_DISTRIBUTED_TIMEOUT", options.timeout().as_secs_f64().to_string());
        match &self.key {
            Some(key) => command.env("NUVEC_DISTRIBUTED_KEY", key),
            None => command.env_remove("NUVEC_DISTRIBUTED_KEY"),
        };
        if options.fault().is_some() {
            command.args(["loop", "--seed", &self.seed.to_string()]);
            if options.transport == Transport::Rdma {
                // Emulated devices take long.
                command.args(["--elements", "65536"]);
            }
            return command;
        }
        command.args(["check", "--seed", &self.seed.to_string()]);
        if options.quick {
            command.arg("--quick");
        }
        if !options.sizes.is_empty() {
            let sizes: Vec<_> = options.sizes.iter().map(u64::to_string).collect();
            command.args(["--sizes", &sizes.join(",")]);
        }
        if let Some(only) = &options.only {
            command.args(["--only", only]);
        }
        if let Some(spoil) = &options.spoil
            && rank + 1 == self.size
        {
            command.args(["--spoil", spoil]);
        }
        if options.hostfile.is_none() {
            command.arg("--one-machine");
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::tests::shell;

    /// A run of `size` ranks that are no programs yet.
    pub(super) fn run_of(options: &Options, size: usize) -> Run<'_> {
        Run {
            options,
            program: Path::new("sh"),
            placement: None,
            seed: 7,
            key: None,
            folder: None,
            numbers: (0..size).collect(),
            size,
        }
    }

    /// Has `watch` watch ranks that are shell scripts; how that ended, and what was printed.
    pub(super) fn watched(
        watch: fn(&Run<'_>, Ranks, &mut (dyn Write + Send)) -> Result<End>,
        options: &Options,
        scripts: &[&str],
    ) -> (End, String) {
        let run = run_of(options, scripts.len());
        let ranks = Ranks::start(scripts.iter().enumerate().map(|(rank, script)| shell(rank, script))).unwrap();
        let mut out = Vec::new();
        let end = watch(&run, ranks, &mut out).unwrap();
        (end, String::from_utf8(out).unwrap())
    }

    #[test]
    fn what_this_version_has_not_is_said() {
        let mut options = Options::quick(4, 1);
        options.wire = Wire::Mlx;
        options.validate().unwrap();
        options.key = Some(String::new());
        assert!(options.validate().unwrap_err().contains("MLX's wire has no key"));
        (options.wire, options.key) = (Wire::Native, None);
        options.kill = Some(4);
        assert!(options.validate().unwrap_err().contains("--kill 4: with 4 ranks they are 0 to 3"));
        options.kill = Some(3);
        options.validate().unwrap();
        let alone = Options { stop: Some(0), ..Options::quick(1, 1) };
        assert!(alone.validate().unwrap_err().contains("--stop needs at least 2 ranks"));
        options.key = Some("too short".into());
        assert!(options.validate().unwrap_err().contains("9 bytes are too short"));
        options.key = Some(String::new());
        options.validate().unwrap();
        options.hostfile = Some("hosts.json".into());
        assert!(options.validate().unwrap_err().contains("--key needs a value"));
    }

    #[test]
    fn a_reproduction_repeats_every_choice_but_never_shows_the_key() {
        let mut options = Options::quick(3, 2);
        options.key = Some("sixteen secret bytes".into());
        options.sizes = vec![8, 65536];
        options.spoil = Some("all_sum/float32/1000".into());
        assert_eq!(
            options.reproduction(7, Some("all_sum/float32/1000")),
            "cargo xtask ring-test --ranks 3 --connections 2 --key --quick --sizes 8,65536 --seed 7 \
             --spoil all_sum/float32/1000 --only all_sum/float32/1000"
        );
        let paused = Options { pause: Some(1), timeout: Some(Duration::from_millis(1500)), ..Options::quick(3, 2) };
        assert!(paused.reproduction(7, None).ends_with("--quick --timeout 1.5 --pause 1 --seed 7"));
        let mlx = Options { wire: Wire::Mlx, ..Options::quick(3, 2) };
        assert!(mlx.reproduction(7, None).ends_with("--connections 2 --wire mlx --quick --seed 7"));
        options.hostfile = Some("my hosts.json".into());
        options.rank = Some(1);
        let text = options.reproduction(7, None);
        assert!(text.contains("--hostfile 'my hosts.json' --rank 1 --key \"$NUVEC_DISTRIBUTED_KEY\""), "{text}");
    }

    #[test]
    fn the_environments_key_counts_over_several_machines_alone() {
        let variable = || Some(OsString::from("the environment's key"));
        let local = Options::quick(2, 1);
        assert_eq!(local.clone().with_key_of(variable()).unwrap().key, None);
        let over = Options { hostfile: Some("hosts.json".into()), ..local };
        assert_eq!(over.clone().with_key_of(None).unwrap().key, None);
        assert_eq!(over.clone().with_key_of(variable()).unwrap().key.as_deref(), Some("the environment's key"));
        let given = Options { key: Some("another key of its own".into()), ..over };
        assert_eq!(given.with_key_of(variable()).unwrap().key.as_deref(), Some("another key of its own"));
    }

    #[test]
    fn a_random_key_has_32_bytes_and_is_never_the_same() {
        let key = random_key().unwrap();
        assert_eq!(key.len(), 64);
        assert_ne!(key, random_key().unwrap());
    }
}
