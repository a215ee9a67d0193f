//! Starting ranks in tests: with ports of their own, with a deadline, and so that a hang says where each rank stood.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::report::PORT_TAKEN;
use crate::second::HOSTFILE;

/// Where ports are drawn from: below every usual ephemeral range, and apart from the one that `cargo xtask` draws from.
const PORTS: std::ops::Range<u16> = 12_000..20_000;
/// How many of them a process has for itself.
const BLOCK: u16 = 250;
/// How often a ring is started again because a port was taken.
const ATTEMPTS: usize = 5;
/// How often ends are looked for.
const POLL: Duration = Duration::from_millis(5);

/// A ring's hostfiles in a temporary folder, which lives as long as this.
#[derive(Debug)]
pub struct Hostfile {
    _folder: tempfile::TempDir,
    path: PathBuf,
    second: PathBuf,
    ports: Vec<u16>,
}

impl Hostfile {
    /// A hostfile of `ranks` ranks with `connections` addresses each on 127.0.0.1, with ports that no other living one
    /// has, in any process that asks here.
    pub fn new(ranks: usize, connections: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ports = draw(2 * ranks * connections);
        let (first, second) = ports.split_at(ranks * connections);
        let write = |name: &str, ports: &[u16]| {
            let nodes: Vec<Vec<String>> = ports
                .chunks(connections)
                .map(|of_rank| of_rank.iter().map(|port| format!("127.0.0.1:{port}")).collect())
                .collect();
            let path = folder.path().join(name);
            std::fs::write(&path, serde_json::json!(nodes).to_string()).expect("a hostfile");
            path
        };
        let (path, second) = (write("hosts.json", first), write("second.json", second));
        Self { _folder: folder, path, second, ports }
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the launch environment of rank `rank` in `command`, and removes what could contradict it.
    pub fn apply(&self, command: &mut Command, rank: usize) {
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if ["MLX_", "JACCL_", "NUVEC_DISTRIBUTED_"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(&*name);
            }
        }
        command.env("MLX_HOSTFILE", &self.path).env("MLX_RANK", rank.to_string()).env(HOSTFILE, &self.second);
    }
}

impl Drop for Hostfile {
    fn drop(&mut self) {
        lock_ports().used.retain(|port| !self.ports.contains(port));
    }
}

/// The ports of this process.
///
/// MLX's listeners have SO_REUSEPORT, so two rings of MLX ranks on one port would not fail but take each other's
/// connections: no two rings of tests may share one while either forms.
#[derive(Debug, Default)]
struct Ports {
    /// The first of the process's block, and the lock by which other processes know.
    block: Option<(u16, std::fs::File)>,
    used: Vec<u16>,
    /// Where to go on: a port that was just given back may have connections that still end.
    next: u16,
}

static ALL_PORTS: Mutex<Ports> = Mutex::new(Ports { block: None, used: Vec::new(), next: 0 });

fn lock_ports() -> MutexGuard<'static, Ports> {
    ALL_PORTS.lock().unwrap_or_else(|e| e.into_inner())
}

/// `count` ports of this process that are not in use.
fn draw(count: usize) -> Vec<u16> {
    let mut all = lock_ports();
    let first = all.block.get_or_insert_with(take_block).0;
    let mut ports = Vec::new();
    for _ in 0..BLOCK {
        let port = first + all.next;
        all.next = (all.next + 1) % BLOCK;
        // A program that asks nobody may be there.
        if !all.used.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            ports.push(port);
            all.used.push(port);
        }
        if ports.len() == count {
            return ports;
        }
    }
    panic!("no {count} free ports from {first} to {}", first + BLOCK - 1);
}

/// A block that no living process has, beginning the search at a random one.
fn take_block() -> (u16, std::fs::File) {
    let blocks = (PORTS.end - PORTS.start) / BLOCK;
    let random = getrandom::u64().expect("random bytes");
    for i in 0..u64::from(blocks) {
        let block = (random.wrapping_add(i) % u64::from(blocks)) as u16;
        let path = std::env::temp_dir().join(format!("nuvec-test-ports-{block}.lock"));
        // Another user's file cannot be opened: that block is theirs.
        let Ok(file) = std::fs::File::options().create(true).append(true).open(path) else { continue };
        if file.try_lock().is_ok() {
            return (PORTS.start + block * BLOCK, file);
        }
    }
    panic!("every block of ports is in use");
}

/// What a rank came to.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// The lines that it wrote to standard output and standard error, as they came.
    pub lines: Vec<String>,
}

impl Finished {
    /// The lines that begin with `word`, without it.
    pub fn said<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.iter().filter_map(move |line| line.strip_prefix(word)).map(str::trim)
    }
}

struct Running {
    child: Child,
    open_pipes: usize,
    lines: Vec<String>,
    status: Option<ExitStatus>,
}

/// Running ranks. Dropping this kills those that still run, and no others.
pub struct Ranks {
    ranks: Vec<Running>,
    sender: Sender<(usize, Option<String>)>,
    receiver: Receiver<(usize, Option<String>)>,
}

impl Ranks {
    /// Starts a process per command; the first is rank 0.
    pub fn start(commands: impl IntoIterator<Item = Command>) -> Self {
        let (sender, receiver) = channel();
        let mut this = Self { ranks: Vec::new(), sender, receiver };
        for command in commands {
            this.add(command);
        }
        this
    }

    /// Starts one more.
    pub fn add(&mut self, mut command: Command) {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|e| panic!("cannot start {}: {e}", command.get_program().display()));
        let rank = self.ranks.len();
        let stdout = child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        let stderr = child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        let mut open_pipes = 0;
        for pipe in [stdout, stderr].into_iter().flatten() {
            let sender = self.sender.clone();
            open_pipes += 1;
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).split(b'\n') {
                    let Ok(line) = line else { break };
                    let line = String::from_utf8_lossy(&line).into_owned();
                    if sender.send((rank, Some(line))).is_err() {
                        return;
                    }
                }
                let _ = sender.send((rank, None));
            });
        }
        self.ranks.push(Running { child, open_pipes, lines: Vec::new(), status: None });
    }

    /// The process id of a rank.
    pub fn id(&self, rank: usize) -> u32 {
        self.ranks[rank].child.id()
    }

    /// Kills a rank (SIGKILL).
    pub fn kill(&mut self, rank: usize) {
        self.ranks[rank].child.kill().expect("the rank can be killed");
    }

    /// Sends a signal, such as `STOP`, to a rank that still runs.
    pub fn signal(&mut self, rank: usize, signal: &str) {
        let running = &mut self.ranks[rank];
        assert!(matches!(running.child.try_wait(), Ok(None)), "rank {rank} has ended");
        // The shell's own kill: not every system has kill(1).
        let arguments = ["-c", "kill -s $0 $1", signal, &running.child.id().to_string()];
        let sent = Command::new("sh").args(arguments).status();
        assert!(sent.is_ok_and(|status| status.success()), "rank {rank} was sent no {signal}");
    }

    /// The lines of a rank so far.
    pub fn lines(&mut self, rank: usize) -> &[String] {
        self.step(Duration::ZERO);
        &self.ranks[rank].lines
    }

    /// Waits until a rank has written a line that contains `text`. Panics, saying where each rank stands, if it ends
    /// first or `patience` runs out.
    pub fn wait_for(&mut self, rank: usize, text: &str, patience: Duration) {
        let end = Instant::now() + patience;
        while !self.ranks[rank].lines.iter().any(|line| line.contains(text)) {
            let ended = self.ranks[rank].status.is_some() && self.ranks[rank].open_pipes == 0;
            if ended || Instant::now() > end {
                let why = if ended { "ended" } else { "ran out of time" };
                panic!("rank {rank} {why} before it said {text:?}\n{}", self.standings());
            }
            self.step(POLL);
        }
    }

    /// Waits until every rank has ended. Panics, saying where each rank stands, if `patience` runs out; then they are
    /// killed.
    pub fn finish(mut self, patience: Duration) -> Vec<Finished> {
        self.try_finish(patience, false, &|_| false).expect("nothing makes it give up")
    }

    /// As [`finish`](Self::finish), but `None` as soon as the ranks are such that it is of no use to wait; if `renewed`,
    /// patience begins anew with every line.
    fn try_finish(
        &mut self,
        patience: Duration,
        renewed: bool,
        of_no_use: &dyn Fn(&[Running]) -> bool,
    ) -> Option<Vec<Finished>> {
        let (mut end, mut heard) = (Instant::now() + patience, 0);
        while self.ranks.iter().any(|rank| rank.status.is_none() || rank.open_pipes > 0) {
            if Instant::now() > end {
                panic!("ranks still run after {patience:?}\n{}", self.standings());
            }
            self.step(POLL);
            if of_no_use(&self.ranks) {
                return None;
            }
            let lines = self.ranks.iter().map(|rank| rank.lines.len()).sum();
            if renewed && std::mem::replace(&mut heard, lines) != lines {
                end = Instant::now() + patience;
            }
        }
        if of_no_use(&self.ranks) {
            return None;
        }
        let done = self.ranks.iter_mut().map(|rank| Finished {
            status: rank.status.expect("every rank has ended"),
            lines: std::mem::take(&mut rank.lines),
        });
        Some(done.collect())
    }

    /// Takes what has come, waiting for at most `patience` if nothing has.
    fn step(&mut self, patience: Duration) {
        let mut next = self.receiver.recv_timeout(patience).ok();
        while let Some((rank, line)) = next {
            match line {
                Some(line) => self.ranks[rank].lines.push(line),
                None => self.ranks[rank].open_pipes -= 1,
            }
            next = self.receiver.try_recv().ok();
        }
        for rank in &mut self.ranks {
            if rank.status.is_none() {
                rank.status = rank.child.try_wait().ok().flatten();
            }
        }
    }

    /// Where each rank stands: whether it runs, and its last lines.
    fn standings(&self) -> String {
        let mut text = String::from("where each rank stands:\n");
        for (number, rank) in self.ranks.iter().enumerate() {
            let state = rank.status.map_or_else(|| "runs".to_string(), |status| format!("ended ({status})"));
            text += &format!("rank {number} {state}; its last lines:\n");
            for line in &rank.lines[rank.lines.len().saturating_sub(5)..] {
                text += &format!("    {line}\n");
            }
        }
        text
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

/// The commands of a ring's ranks, each finished by `adjust`.
fn commands(
    program: &Path,
    ranks: usize,
    hostfile: &Hostfile,
    adjust: &dyn Fn(usize, &mut Command),
) -> impl Iterator<Item = Command> {
    (0..ranks).map(move |rank| {
        let mut command = Command::new(program);
        hostfile.apply(&mut command, rank);
        adjust(rank, &mut command);
        command
    })
}

fn port_was_taken(status: Option<ExitStatus>) -> bool {
    status.and_then(|status| status.code()) == Some(i32::from(PORT_TAKEN))
}

/// Starts a ring as [`run_ring`] does, and waits until every rank has written a line that contains `ready`. Panics,
/// saying where each rank stands, if one ends first or `patience` runs out.
pub fn start_ring(
    program: &Path,
    ranks: usize,
    connections: usize,
    patience: Duration,
    adjust: &dyn Fn(usize, &mut Command),
    ready: &str,
) -> (Ranks, Hostfile) {
    for _ in 0..ATTEMPTS {
        let hostfile = Hostfile::new(ranks, connections);
        let mut running = Ranks::start(commands(program, ranks, &hostfile, adjust));
        let end = Instant::now() + patience;
        loop {
            running.step(POLL);
            if running.ranks.iter().any(|rank| port_was_taken(rank.status)) {
                break;
            }
            let waits = |rank: &Running| !rank.lines.iter().any(|line| line.contains(ready));
            let Some(late) = running.ranks.iter().position(waits) else { return (running, hostfile) };
            let ended = running.ranks[late].status.is_some() && running.ranks[late].open_pipes == 0;
            if ended || Instant::now() > end {
                let why = if ended { "ended" } else { "ran out of time" };
                panic!("rank {late} {why} before it said {ready:?}\n{}", running.standings());
            }
        }
    }
    panic!("{ATTEMPTS} times in a row a port was taken");
}

/// Starts a ring of `ranks` ranks of `program` with `connections` connections, each rank's command finished by `adjust`
/// (arguments, more variables), and waits for its end as [`Ranks::finish`] does. Starts again with other ports if a rank
/// says that one was taken.
pub fn run_ring(
    program: &Path,
    ranks: usize,
    connections: usize,
    patience: Duration,
    adjust: &dyn Fn(usize, &mut Command),
) -> Vec<Finished> {
    run(program, ranks, connections, patience, false, adjust)
}

/// As [`run_ring`], for ranks that tell of every little thing that they have done: it ends once none has said anything
/// for `silence`, however long all of it takes.
pub fn run_talking_ring(
    program: &Path,
    ranks: usize,
    connections: usize,
    silence: Duration,
    adjust: &dyn Fn(usize, &mut Command),
) -> Vec<Finished> {
    run(program, ranks, connections, silence, true, adjust)
}

fn run(
    program: &Path,
    ranks: usize,
    connections: usize,
    patience: Duration,
    renewed: bool,
    adjust: &dyn Fn(usize, &mut Command),
) -> Vec<Finished> {
    // The others might wait for that rank for ever.
    let again = |ranks: &[Running]| ranks.iter().any(|rank| port_was_taken(rank.status));
    for _ in 0..ATTEMPTS {
        let hostfile = Hostfile::new(ranks, connections);
        let mut running = Ranks::start(commands(program, ranks, &hostfile, adjust));
        if let Some(finished) = running.try_finish(patience, renewed, &again) {
            return finished;
        }
    }
    panic!("{ATTEMPTS} times in a row a port was taken");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_status_are_gathered_per_rank() {
        let ranks = Ranks::start([shell("echo @a 1; echo b >&2; exit 3"), shell("echo c")]);
        let finished = ranks.finish(Duration::from_secs(20));
        assert_eq!(finished[0].status.code(), Some(3));
        assert_eq!(finished[0].said("@a").collect::<Vec<_>>(), ["1"]);
        assert!(finished[0].lines.contains(&"b".to_string()));
        assert_eq!(finished[1].lines, ["c"]);
    }

    #[test]
    fn a_hang_says_where_each_rank_stood() {
        let caught = std::panic::catch_unwind(|| {
            let mut ranks = Ranks::start([shell("echo almost there; exec sleep 60"), shell("exit 2")]);
            ranks.wait_for(0, "almost", Duration::from_secs(20));
            ranks.finish(Duration::from_millis(300))
        });
        let text = *caught.expect_err("a hang must fail").downcast::<String>().expect("a message");
        assert!(text.contains("rank 0 runs; its last lines:\n    almost there"), "{text}");
        assert!(text.contains("rank 1 ended"), "{text}");
    }

    #[test]
    fn a_ring_that_talks_has_all_the_time_that_it_needs_and_one_that_falls_silent_has_not() {
        let run = |script: &'static str| {
            let adjust = |_: usize, command: &mut Command| {
                command.args(["-c", script]);
            };
            run_talking_ring(Path::new("sh"), 1, 1, Duration::from_millis(3000), &adjust)
        };
        let talks = run("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.6; done");
        assert_eq!(talks[0].lines.len(), 8);
        assert!(std::panic::catch_unwind(|| run("echo 1; exec sleep 60")).is_err());
    }

    #[test]
    fn waiting_for_a_rank_that_ended_fails_at_once() {
        let start = Instant::now();
        let caught = std::panic::catch_unwind(|| {
            Ranks::start([shell("echo x")]).wait_for(0, "y", Duration::from_secs(60));
        });
        assert!(caught.is_err() && start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn ranks_can_be_stopped_continued_and_killed() {
        let mut ranks = Ranks::start([shell("while :; do sleep 0.05; done")]);
        ranks.signal(0, "STOP");
        ranks.signal(0, "CONT");
        ranks.kill(0);
        assert_eq!(ranks.finish(Duration::from_secs(20))[0].status.code(), None);
    }

    #[test]
    fn a_ring_has_mlxs_environment_and_is_started_again_when_a_port_was_taken() {
        let count = tempfile::NamedTempFile::new().expect("a file");
        let path = count.path().to_path_buf();
        let script = r#"echo x >> "$COUNT"; [ $(wc -l < "$COUNT") -lt 2 ] && exit 98; cat "$MLX_HOSTFILE"; echo; echo "rank $MLX_RANK""#;
        let finished = run_ring(Path::new("sh"), 1, 2, Duration::from_secs(20), &move |_, command| {
            command.args(["-c", script]).env("COUNT", &path);
        });
        assert_eq!(finished[0].said("rank").collect::<Vec<_>>(), ["0"]);
        assert!(finished[0].lines[0].starts_with("[[\"127.0.0.1:1"), "{:?}", finished[0].lines);
    }

    #[test]
    fn a_ring_starts_again_though_the_others_would_wait_for_the_rank_whose_port_was_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        // Each rank counts its starts. Rank 1's first fails once rank 0 waits.
        let script = r#"[ "$MLX_RANK" = 0 ] || until [ -s 0 ]; do sleep 0.05; done
            echo x >> "$MLX_RANK"; [ $(wc -l < "$MLX_RANK") -lt 2 ] || exit 0
            [ "$MLX_RANK" = 1 ] && exit 98; exec sleep 60"#;
        let start = Instant::now();
        let finished = run_ring(Path::new("sh"), 2, 1, Duration::from_secs(120), &|_, command| {
            command.args(["-c", script]).current_dir(folder.path());
        });
        assert!(finished.iter().all(|rank| rank.status.success()) && start.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn no_two_rings_have_a_port_in_common() {
        let read = |file: &Hostfile| std::fs::read_to_string(file.path()).expect("a hostfile");
        let ports = |file: &Hostfile| {
            let nodes: Vec<Vec<String>> = serde_json::from_str(&read(file)).expect("a list");
            nodes.concat()
        };
        let files: Vec<_> = (0..6).map(|_| Hostfile::new(4, 3)).collect();
        let all: std::collections::BTreeSet<_> = files.iter().flat_map(ports).collect();
        assert_eq!(all.len(), 6 * 12);
        // Another process gets another block.
        let (block, _held) = take_block();
        assert_ne!(Some(block), lock_ports().block.as_ref().map(|block| block.0));
    }

    #[test]
    fn a_ring_is_started_once_every_rank_is_ready() {
        let adjust = |rank: usize, command: &mut Command| {
            command.args([
                "-c",
                if rank == 1 { "sleep 0.3; echo ready; exec sleep 60" } else { "echo ready; exec sleep 60" },
            ]);
        };
        let (mut ranks, _hostfile) = start_ring(Path::new("sh"), 2, 1, Duration::from_secs(20), &adjust, "ready");
        assert_eq!(ranks.lines(1), ["ready"]);
        let never = || start_ring(Path::new("sh"), 1, 1, Duration::from_millis(300), &adjust, "never").1;
        assert!(std::panic::catch_unwind(never).is_err());
    }
}
