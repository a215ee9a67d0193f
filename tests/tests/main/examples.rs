//! The facade's examples, started as a user starts them: by `cargo xtask launch`. And what `launch` and `ring-test` leave
//! behind when a rank fails or they are asked to end: nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nuvec_distributed_tests::harness::{Finished, Ranks};
use nuvec_distributed_tests::mlx::World;
use nuvec_distributed_tests::report::is_port_taken;
use serde_json::Value;

use super::PATIENCE;

const ALL_SUM: &str = env!("CARGO_BIN_EXE_all_sum");
const DATA_PARALLEL: &str = env!("CARGO_BIN_EXE_data_parallel");
const MIXED_RING: &str = env!("CARGO_BIN_EXE_mixed_ring");
const PIPELINE: &str = env!("CARGO_BIN_EXE_pipeline");
const TENSOR_PARALLEL: &str = env!("CARGO_BIN_EXE_tensor_parallel");

/// Longer than cargo takes to build what these tests start, which for the most part is there already.
const BUILD: Duration = Duration::from_secs(600);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace")
}

/// The program behind `cargo xtask`, built on first need.
fn xtask() -> &'static Path {
    static XTASK: OnceLock<PathBuf> = OnceLock::new();
    XTASK.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let arguments = ["build", "--profile", "ci", "--package", "xtask", "--message-format=json"];
        let built = Command::new(cargo).args(arguments).current_dir(root()).stdin(Stdio::null()).output();
        let built = built.expect("cargo runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let text = String::from_utf8_lossy(&built.stdout).into_owned();
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        messages.filter_map(|message| Some(message["executable"].as_str()?.into())).next_back().expect("a program")
    })
}

/// `cargo xtask` with `arguments`.
fn command<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(xtask());
    command.args(arguments).current_dir(root()).env("NUVEC_DISTRIBUTED_TIMEOUT", "20");
    for variable in ["NUVEC_DISTRIBUTED_KEY", "NUVEC_DISTRIBUTED_NAME", "NUVEC_DISTRIBUTED_WIRE"] {
        command.env_remove(variable);
    }
    command
}

/// `cargo xtask launch -n n -- program`.
fn launch_command(n: usize, program: &[&str]) -> Command {
    let n = n.to_string();
    command(["launch", "-n", &n, "--"].into_iter().chain(program.iter().copied()))
}

/// Runs `launch` to its end, with `adjust`ed environment; again if a port was taken, which an example does not tell by its
/// exit code.
fn launch_with(n: usize, program: &[&str], adjust: impl Fn(&mut Command)) -> Finished {
    for _ in 0..5 {
        let mut command = launch_command(n, program);
        adjust(&mut command);
        let finished = Ranks::start([command]).finish(PATIENCE).remove(0);
        if !finished.lines.iter().any(|line| is_port_taken(line)) {
            return finished;
        }
    }
    panic!("5 times in a row a port was taken");
}

fn launch(n: usize, program: &[&str]) -> Finished {
    launch_with(n, program, |_| {})
}

/// What each of `n` ranks wrote, without `rank N | ` before it.
fn by_rank(finished: &Finished, n: usize) -> Vec<Vec<&str>> {
    (0..n)
        .map(|rank| finished.lines.iter().filter_map(|line| line.strip_prefix(&format!("rank {rank} | "))).collect())
        .collect()
}

/// Whether a process runs. One that has ended does not, though the system may keep its id: an orphan's, for as long as
/// process 1 does not ask how it ended.
fn runs(id: &str) -> bool {
    let output = Command::new("ps").args(["-o", "stat=", "-p", id]).stdin(Stdio::null()).output();
    let state = output.expect("ps runs").stdout;
    state.trim_ascii().first().is_some_and(|&state| state != b'Z')
}

/// Waits until none of `ids` runs.
fn assert_gone(ids: &[&str]) {
    let start = Instant::now();
    while let Some(id) = ids.iter().find(|id| runs(id)) {
        assert!(start.elapsed() < Duration::from_secs(30), "process {id} still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn all_sum_prints_the_same_sum_on_every_rank() {
    for (n, total) in [(1, "[1.0, 0.0]"), (2, "[2.0, 1.0]"), (4, "[4.0, 6.0]")] {
        let finished = launch(n, &[ALL_SUM]);
        assert!(finished.status.success(), "{finished:?}");
        for (rank, lines) in by_rank(&finished, n).iter().enumerate() {
            let begin = format!("rank {rank} of {n}: ");
            let right = |line: &&str| line.starts_with(&begin) && line.ends_with(&format!("is {total}"));
            assert!(lines.iter().any(right), "{finished:?}");
        }
    }
}

#[test]
fn a_pipeline_computes_what_one_process_computes() {
    let mut outputs = Vec::new();
    // More ranks than stages, too: those have nothing to do.
    for n in [1, 2, 3, 4, 5] {
        let finished = launch(n, &[PIPELINE]);
        assert!(finished.status.success(), "{finished:?}");
        let ranks = by_rank(&finished, n);
        let said: Vec<_> = ranks[0].iter().filter(|line| line.starts_with("result")).collect();
        assert!(said.len() == 1 && said[0].ends_with("as one process computes it"), "{finished:?}");
        outputs.push((*said[0]).to_owned());
    }
    assert!(outputs.iter().all(|output| *output == outputs[0]), "{outputs:?}");
}

#[test]
fn training_and_sharded_layers_equal_one_process_on_every_rank() {
    for (program, said) in [
        (DATA_PARALLEL, ["the loss fell from", "every loss and weight is that of one process"]),
        (TENSOR_PARALLEL, ["output of [16, 64] equals", "gradient of [16, 64] equals"]),
    ] {
        for n in [1, 2, 4] {
            let finished = launch(n, &[program]);
            assert!(finished.status.success(), "{finished:?}");
            for lines in by_rank(&finished, n) {
                assert!(said.iter().all(|said| lines.iter().any(|line| line.contains(said))), "{finished:?}");
            }
        }
        // What does not divide is said in one line.
        let finished = launch(7, &[program]);
        assert_eq!(finished.status.code(), Some(1), "{finished:?}");
        let why = |line: &String| line.contains("error: ") && line.contains("into 7 ");
        assert!(finished.lines.iter().any(why), "{finished:?}");
    }
}

#[test]
fn rust_and_python_ranks_are_in_one_ring() {
    // The environment that the tests of MLX's wire use, too.
    let world = World::new(Path::new(env!("CARGO_TARGET_TMPDIR")), Path::new(env!("CARGO_BIN_EXE_mlx_rank")));
    let python = match world {
        Ok(world) => world.python.display().to_string(),
        Err(needs) => return println!("left out: a ring with ranks in Python needs {needs}"),
    };
    let source = root().join("nuvec-distributed/examples/mixed_ring.py").display().to_string();
    let script = format!("[ $((MLX_RANK % 2)) = 0 ] && exec {MIXED_RING}; exec {python} {source}");
    for n in [2, 4] {
        let finished = launch_with(n, &["sh", "-c", &script], |command| {
            command.env("NUVEC_DISTRIBUTED_WIRE", "mlx");
        });
        assert!(finished.status.success(), "{finished:?}");
        let ring = vec!["Rust, Python"; n / 2].join(", ");
        for (rank, lines) in by_rank(&finished, n).iter().enumerate() {
            let language = ["Rust", "Python"][rank % 2];
            let expected = format!("rank {rank} of {n} ({language}): the ring is {ring}, and π is 3.141");
            assert!(lines.iter().any(|line| line.starts_with(&expected)), "{finished:?}");
        }
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_with_all_that_they_started_and_gives_its_exit_code() {
    // Rank 0 waits for a rank that will not come; rank 2 does so in a process of its own.
    let script = format!(
        "case $MLX_RANK in 0) exec {PIPELINE};; 1) while ! [ -e \"$READY\" ]; do sleep 0.05; done; exit 7;; esac; \
         {PIPELINE} & echo @id $!; touch \"$READY\"; wait; sleep 60"
    );
    let folder = tempfile::tempdir().expect("a folder");
    xtask();
    let start = Instant::now();
    let finished = launch_with(3, &["sh", "-c", &script], |command| {
        command.env("READY", folder.path().join("ready")).env("NUVEC_DISTRIBUTED_TIMEOUT", "100");
    });
    // Long before the examples' time-out.
    assert!(start.elapsed() < Duration::from_secs(50), "{finished:?}");
    assert_eq!(finished.status.code(), Some(7), "{finished:?}");
    assert!(finished.lines.contains(&"rank 1 | ended with exit code 7: the others end in 2 s".into()), "{finished:?}");
    let ids: Vec<_> = finished.said("rank 2 | @id").collect();
    assert_eq!(ids.len(), 1, "{finished:?}");
    assert_gone(&ids);
}

#[test]
fn a_launch_that_is_asked_to_end_leaves_no_process_and_no_file_behind() {
    // Each rank starts a process of its own; rank 1's do not end when asked.
    let script = "[ $MLX_RANK = 1 ] && trap '' TERM; sleep 600 & echo @ids $$ $! $MLX_HOSTFILE; while :; do wait; done";
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let mut running = Ranks::start([launch_command(3, &["sh", "-c", script])]);
        for rank in 0..3 {
            running.wait_for(0, &format!("rank {rank} | @ids"), PATIENCE);
        }
        running.signal(0, signal);
        let finished = running.finish(PATIENCE).remove(0);
        assert_eq!(finished.status.code(), Some(code), "{finished:?}");
        let ended = format!("ended by SIG{signal}, and all ranks with it");
        assert!(finished.lines.contains(&ended), "{finished:?}");
        let said: Vec<_> = finished.lines.iter().filter_map(|line| line.split_once("@ids ")).collect();
        let words: Vec<Vec<_>> = said.iter().map(|(_, words)| words.split(' ').collect()).collect();
        assert_eq!(words.len(), 3, "{finished:?}");
        assert_gone(&words.iter().flat_map(|words| [words[0], words[1]]).collect::<Vec<_>>());
        assert!(!Path::new(words[0][2]).exists(), "{} is left", words[0][2]);
    }
}

/// The ids of the processes whose command line has `word`, but for those of `cargo xtask` itself.
fn processes_with(word: &str) -> Vec<String> {
    let output = Command::new("ps").args(["-A", "-o", "pid=", "-o", "args="]).stdin(Stdio::null()).output();
    let output = output.expect("ps runs").stdout;
    let text = String::from_utf8_lossy(&output);
    let lines = text.lines().map(str::trim_start).filter(|line| line.contains(word) && !line.contains("ring-test"));
    lines.filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
}

#[test]
fn a_ring_test_that_is_asked_to_end_leaves_no_rank_behind() {
    // The ranks are found by their seed.
    let seed = getrandom::u64().expect("random bytes").to_string();
    let mut running = Ranks::start([command(["ring-test", "--ranks", "3", "--seed", &seed])]);
    running.wait_for(0, &format!("seed {seed}"), BUILD);
    let start = Instant::now();
    while processes_with(&seed).len() < 3 {
        assert!(start.elapsed() < Duration::from_secs(30), "no ranks: {:?}", running.lines(0));
        std::thread::sleep(Duration::from_millis(20));
    }
    running.signal(0, "TERM");
    let finished = running.finish(PATIENCE).remove(0);
    assert_eq!(finished.status.code(), Some(143), "{finished:?}");
    assert_eq!(processes_with(&seed), [""; 0]);
}
