//! `cargo xtask test`: everything that passes on this machine, in parts; a part that cannot run here says what it needs.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use crate::ranks::{Event, Ranks};
use crate::{Result, bench, cargo, launch, namespaces, rdma_vm, ring_test};

/// Options of `test`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Options {
    /// Fail if a part is left out because this machine lacks something
    #[arg(long)]
    pub(crate) all: bool,
    /// Add the long products: ignored tests, every number of ranks and connections with every size, and with MLX's ranks
    /// every operation × type × length
    #[arg(long)]
    pub(crate) exhaustive: bool,
}

/// How a part ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// With what it printed, if that was not shown yet.
    Failed(String),
    /// With what it needs.
    Skipped(String),
}

/// Counts of parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    /// Counts an outcome and prints what there is to say about it.
    fn add(&mut self, name: &str, outcome: &Outcome, seconds: f64, out: &mut dyn Write) -> std::io::Result<()> {
        match outcome {
            Outcome::Passed => {
                self.passed += 1;
                writeln!(out, "passed   {name} ({seconds:.1} s)")
            }
            Outcome::Failed(text) => {
                self.failed += 1;
                write!(out, "{text}")?;
                writeln!(out, "FAILED   {name} ({seconds:.1} s)")
            }
            Outcome::Skipped(needs) => {
                self.skipped += 1;
                writeln!(out, "left out {name}: it needs {needs}")
            }
        }
    }

    /// Whether that is good enough.
    fn good(self, all: bool) -> bool {
        self.failed == 0 && !(all && self.skipped > 0)
    }
}

/// The command itself.
pub(crate) fn main(options: &Options) -> Result<bool> {
    let mut out = std::io::stdout();
    let mut tally = Tally::default();
    let start = Instant::now();
    let mut part = |name: &str, work: &mut dyn FnMut() -> Result<Outcome>| {
        let start = Instant::now();
        let outcome = work().unwrap_or_else(|e| Outcome::Failed(format!("error: {e}\n")));
        let _ = tally.add(name, &outcome, start.elapsed().as_secs_f64(), &mut out);
        outcome
    };

    let mut programs = None;
    part("build", &mut || {
        // The build of the tests makes the programs that they start too: nothing is built twice.
        let built = cargo::build(&["test", "--no-run", "--profile", "ci", "--workspace"])?;
        let program = |name| cargo::program(&built, name);
        let of_rdma = rdma_vm::Programs::among(&built)?;
        programs = Some((program("rank")?, program("mixed")?, program("bench_rank")?, of_rdma));
        Ok(Outcome::Passed)
    });
    part("unit, integration and documentation tests", &mut || workspace_tests(&[], &[]));
    if options.exhaustive {
        part("long tests", &mut || workspace_tests(&["--lib", "--bins", "--tests"], &["--ignored"]));
    }
    if let Some((rank, mixed, bench_rank, of_rdma)) = &programs {
        for (name, run, expected) in rings(options.exhaustive) {
            part(&name, &mut || ring(&run, rank, &expected));
        }
        part("launch -n 3 --connections 2", &mut || {
            let rank = rank.display().to_string();
            let words = [&rank, "check", "--seed", "7", "--quick", "--one-machine", "--only", "all_sum"];
            let program = words.map(String::from).to_vec();
            let options = launch::Options { ranks: 3, connections: 2, program };
            captured(|out| Ok(launch::run(&options, out)? == 0))
        });
        part("bench, two ranks and two sizes", &mut || captured(|out| bench::check(bench_rank.clone(), out)));
        part("ring-test in network namespaces, IPv4 and scoped IPv6", &mut || match namespaces::missing() {
            Some(needs) => Ok(Outcome::Skipped(needs)),
            None => captured(|out| namespaces::ring_test(rank, out)),
        });
        part("rings of our ranks and MLX's, every arrangement of 2 to 4, 1 to 3 connections", &mut || {
            let mut command = Command::new(mixed);
            command.args(options.exhaustive.then_some("--exhaustive"));
            streamed(command, &mut std::io::stdout())
        });
        part("RDMA in a virtual machine", &mut || match rdma_vm::missing() {
            Some(needs) => Ok(Outcome::Skipped(needs)),
            None if rdma_vm::tests(of_rdma, &mut std::io::stdout())? => Ok(Outcome::Passed),
            None => Ok(Outcome::Failed(String::new())),
        });
    }
    println!("took {:.0} s", start.elapsed().as_secs_f64());
    if options.all && tally.skipped > 0 {
        println!("--all: what was left out counts as a failure");
    }
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    Ok(tally.good(options.all))
}

/// `cargo test` over the workspace, whose output is shown as it comes.
fn workspace_tests(targets: &[&str], harness: &[&str]) -> Result<Outcome> {
    let mut test = cargo::cargo(&["test", "--profile", "ci", "--workspace", "--no-fail-fast"]);
    test.args(targets);
    // Said once, by the build.
    if let Some((flag, _)) = cargo::rust_version_flag()? {
        test.arg(flag);
    }
    test.arg("--").args(harness);
    Ok(if cargo::run(&mut test)? { Outcome::Passed } else { Outcome::Failed(String::new()) })
}

/// What a run of `ring-test` must come to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expected {
    Pass,
    /// To fail, with these words in what it prints.
    Failure(Vec<String>),
}

/// The runs of `ring-test`, with names.
fn rings(exhaustive: bool) -> Vec<(String, ring_test::Options, Expected)> {
    let mut runs = Vec::new();
    let mut add = |options: ring_test::Options, expected| {
        let mut name = options.command().replacen("cargo xtask ", "", 1);
        name += &options.spoil.as_ref().map(|case| format!(" --spoil {case}, which must fail")).unwrap_or_default();
        runs.push((name, options, expected));
    };
    for (ranks, connections, key) in [
        (1, 1, false),
        (2, 1, false),
        (2, 2, true),
        (3, 2, false),
        (4, 2, false),
        (4, 3, true),
        (5, 1, false),
        (8, 2, false),
    ] {
        let mut options = ring_test::Options::quick(ranks, connections);
        options.key = key.then(String::new);
        add(options, Expected::Pass);
    }
    for key in [false, true] {
        let options =
            ring_test::Options { kill: Some(2), key: key.then(String::new), ..ring_test::Options::quick(4, 2) };
        add(options, Expected::Pass);
    }
    // Whoever fails, all others must name it.
    for ranks in [2, 3, 5] {
        for rank in 0..ranks {
            let quick = ring_test::Options::quick(ranks, 1 + rank % 2);
            add(ring_test::Options { kill: Some(rank), ..quick.clone() }, Expected::Pass);
            add(ring_test::Options { stop: Some(rank), ..quick }, Expected::Pass);
        }
    }
    add(ring_test::Options { pause: Some(1), ..ring_test::Options::quick(3, 2) }, Expected::Pass);
    let on_mlxs_wire = |options| ring_test::Options { wire: ring_test::Wire::Mlx, ..options };
    for (ranks, connections) in [(2, 1), (3, 2), (4, 3)] {
        add(on_mlxs_wire(ring_test::Options::quick(ranks, connections)), Expected::Pass);
    }
    add(on_mlxs_wire(ring_test::Options { kill: Some(2), ..ring_test::Options::quick(4, 2) }), Expected::Pass);
    let mut spoiled = ring_test::Options::quick(2, 1);
    let case = "all_sum/float32/1000";
    spoiled.spoil = Some(case.into());
    spoiled.seed = Some(7);
    let again = spoiled_reproduction(case);
    add(spoiled, Expected::Failure(vec![format!("failed: {case} on rank "), again]));
    if exhaustive {
        for ranks in 1..=8 {
            for connections in 1..=3 {
                for key in [false, true] {
                    let mut options = ring_test::Options::quick(ranks, connections);
                    options.quick = false;
                    options.key = key.then(String::new);
                    add(options, Expected::Pass);
                }
            }
        }
    }
    runs
}

/// The line by which the spoiled run must say how to repeat it.
fn spoiled_reproduction(case: &str) -> String {
    format!("reproduce: cargo xtask ring-test --ranks 2 --connections 1 --quick --seed 7 --spoil {case} --only {case}")
}

/// Runs `ring-test`, whose output is shown only if it did not come to what is expected.
fn ring(options: &ring_test::Options, rank: &Path, expected: &Expected) -> Result<Outcome> {
    let mut text = Vec::new();
    let passed = ring_test::run(options, rank, None, &mut text)?;
    Ok(judge(passed, &String::from_utf8_lossy(&text), expected))
}

fn judge(passed: bool, text: &str, expected: &Expected) -> Outcome {
    let good = match expected {
        Expected::Pass => passed,
        Expected::Failure(words) => !passed && words.iter().all(|w| text.contains(w)),
    };
    if good { Outcome::Passed } else { Outcome::Failed(text.to_string()) }
}

/// Runs `work`, whose output is shown only if it fails.
fn captured(work: impl FnOnce(&mut (dyn Write + Send)) -> Result<bool>) -> Result<Outcome> {
    let mut text = Vec::new();
    let passed = work(&mut text)?;
    Ok(judge(passed, &String::from_utf8_lossy(&text), &Expected::Pass))
}

/// Runs a program whose lines are shown as they come: one that begins with `@needs` says what is missing to run it.
fn streamed(command: Command, out: &mut dyn Write) -> Result<Outcome> {
    let mut program = Ranks::start([command])?;
    let mut outcome = Outcome::Failed(String::new());
    while !program.all_ended() {
        match program.next(Duration::from_millis(200)) {
            Some(Event::Line { text, .. }) => match text.strip_prefix(b"@needs ") {
                Some(needs) => outcome = Outcome::Skipped(String::from_utf8_lossy(needs).into_owned()),
                None => {
                    // A reader that is gone is no reason to stop.
                    let _ = out.write_all(&[&text[..], b"\n"].concat()).and_then(|()| out.flush());
                }
            },
            Some(Event::Exit { status, .. }) if status.success() => outcome = Outcome::Passed,
            Some(Event::Exit { .. }) | None => {}
        }
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_fails_only_with_all_and_says_what_it_needs() {
        let mut tally = Tally::default();
        let mut out = Vec::new();
        tally.add("a", &Outcome::Passed, 1.25, &mut out).unwrap();
        tally.add("b", &Outcome::Skipped("root".into()), 0.0, &mut out).unwrap();
        assert!(tally.good(false) && !tally.good(true));
        tally.add("c", &Outcome::Failed("why\n".into()), 2.0, &mut out).unwrap();
        assert!(!tally.good(false));
        assert_eq!(tally, Tally { passed: 1, failed: 1, skipped: 1 });
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "passed   a (1.2 s)\nleft out b: it needs root\nwhy\nFAILED   c (2.0 s)\n");
    }

    #[test]
    fn a_run_that_must_fail_must_do_so_for_the_expected_reason() {
        let expected = Expected::Failure(vec!["x".into(), "y".into()]);
        assert_eq!(judge(false, "x y", &expected), Outcome::Passed);
        assert_eq!(judge(true, "x y", &expected), Outcome::Failed("x y".into()));
        assert_eq!(judge(false, "x", &expected), Outcome::Failed("x".into()));
        assert_eq!(judge(false, "", &Expected::Pass), Outcome::Failed(String::new()));
    }

    #[test]
    fn a_program_that_says_what_it_needs_is_left_out() {
        let run = |script: &str| {
            let mut out = Vec::new();
            let outcome = streamed(crate::ranks::tests::shell(0, script), &mut out).unwrap();
            (outcome, String::from_utf8(out).unwrap())
        };
        assert_eq!(run("echo 1 of 2; exit 0"), (Outcome::Passed, "1 of 2\n".into()));
        assert_eq!(run("echo why; exit 1"), (Outcome::Failed(String::new()), "why\n".into()));
        assert_eq!(run("echo @needs MLX; exit 1"), (Outcome::Skipped("MLX".into()), String::new()));
    }

    #[test]
    fn names_of_runs_are_commands_that_differ() {
        let runs = rings(true);
        let names: std::collections::BTreeSet<_> = runs.iter().map(|run| &run.0).collect();
        assert_eq!(names.len(), runs.len());
        assert!(names.contains(&"ring-test --ranks 4 --connections 2 --key --quick --kill 2".to_string()));
        assert!(names.contains(&"ring-test --ranks 4 --connections 2 --wire mlx --quick --kill 2".to_string()));
    }
}
