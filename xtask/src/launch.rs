//! `cargo xtask launch`: N ranks of any program on this machine, with MLX's launch environment.

use std::io::Write;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Args;

use crate::console::prefixed;
use crate::ranks::{Event, Ranks, describe, exit_code};
use crate::ring_test::{OTHER_LAUNCHES, count, local_nodes, write_hostfile};
use crate::{Result, files, ports, signals};

/// Options of `launch`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "\
Every rank runs on this machine. Ports that are free now are chosen; the hostfile (MLX_HOSTFILE) is temporary and goes \
when the ranks have ended. Variables NUVEC_DISTRIBUTED_* that are set here hold for every rank. When a rank fails the \
others are ended, after 2 seconds in which they may say what that was to them, and the exit code is the worst of the \
ranks'.")]
pub(crate) struct Options {
    /// How many ranks
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = count)]
    pub(crate) ranks: usize,
    /// How many connections to each neighbour
    #[arg(long, value_name = "K", default_value = "1", value_parser = count)]
    pub(crate) connections: usize,
    /// The program, and its arguments; `--` may stand before it
    #[arg(trailing_var_arg = true, required = true, num_args = 1.., value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
}

/// How long the others go on once a rank has failed: what they say of it often tells more.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The command itself: the exit code is the worst of the ranks'.
pub(crate) fn main(options: &Options) -> ExitCode {
    match run(options, &mut std::io::stdout()) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the ranks, passes on their lines, ends all soon after one has failed, and returns the worst exit code of those that
/// ended by themselves.
pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<i32> {
    let size = options.ranks;
    // Any program can run here, so there is no starting again: only ports that are free now.
    let nodes = local_nodes(size, options.connections, &mut ports::draw_free)?;
    let folder = files::folder()?;
    let hostfile = write_hostfile(folder.path(), "hosts.json", &nodes)?;
    let commands = (0..size).map(|rank| {
        let mut command = Command::new(&options.program[0]);
        command.args(&options.program[1..]);
        // The user's NUVEC_DISTRIBUTED_* settings hold; another launch's variables would contradict this one.
        for variable in OTHER_LAUNCHES.iter().filter(|v| !v.starts_with("NUVEC_")) {
            command.env_remove(variable);
        }
        command.env("MLX_HOSTFILE", &hostfile).env("MLX_RANK", rank.to_string());
        command
    });
    let mut ranks = Ranks::start(commands)?;
    let mut worst = 0;
    // When the others are to end, once a rank has failed; and whether they were told to.
    let mut end_at = None;
    let mut ending = false;
    while !ranks.all_ended() {
        if !ending && end_at.is_some_and(|at| Instant::now() >= at) {
            ranks.end_all();
            ending = true;
        }
        match ranks.next(Duration::from_millis(100)) {
            Some(Event::Line { rank, text }) => {
                // Without a reader the ranks still run to their end.
                let _ = out.write_all(&prefixed(rank, size, &text)).and_then(|()| out.flush());
            }
            Some(Event::Exit { rank, status }) if !status.success() && !ending && signals::received().is_none() => {
                worst = worst.max(exit_code(status));
                let first = end_at.is_none();
                end_at.get_or_insert_with(|| Instant::now() + LAST_WORDS);
                let others = if first && !ranks.all_ended() { ": the others end in 2 s" } else { "" };
                let line = format!("{}{others}", describe(status));
                let _ = out.write_all(&prefixed(rank, size, line.as_bytes()));
            }
            // The others' codes count unless they come of our ending them.
            Some(Event::Exit { status, .. }) if status.code().is_some() => worst = worst.max(exit_code(status)),
            Some(Event::Exit { .. }) | None => {}
        }
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use clap::FromArgMatches;

    use super::*;

    fn launch(ranks: usize, connections: usize, script: &str) -> (i32, String) {
        let program = ["sh", "-c", script].map(String::from).to_vec();
        let mut out = Vec::new();
        let code = run(&Options { ranks, connections, program }, &mut out).unwrap();
        (code, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_program_keeps_its_arguments_with_and_without_dashes_before_it() {
        let parsed = |words: &[&str]| {
            let matches = Options::augment_args(clap::Command::new("launch")).try_get_matches_from(words);
            Options::from_arg_matches(&matches.unwrap()).unwrap().program
        };
        let program = ["true", "-n", "3", "--", "--help"];
        assert_eq!(parsed(&[&["launch", "-n", "2"], &program[..]].concat()), program);
        assert_eq!(parsed(&[&["launch", "-n", "2", "--"], &program[..]].concat()), program);
    }

    #[test]
    fn every_rank_has_its_number_and_the_same_hostfile() {
        let (code, text) = launch(3, 2, r#"echo "$MLX_RANK $(cat $MLX_HOSTFILE)""#);
        assert_eq!(code, 0, "{text}");
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        let hosts: Vec<_> = lines.iter().map(|line| line.splitn(5, ' ').nth(4).unwrap()).collect();
        assert!(hosts.iter().all(|h| *h == hosts[0]), "{text}");
        let nodes: Vec<Vec<String>> = serde_json::from_str(hosts[0]).unwrap();
        assert_eq!((nodes.len(), nodes[2].len()), (3, 2));
        for (rank, line) in lines.iter().enumerate() {
            assert!(line.starts_with(&format!("rank {rank} | {rank} [[")), "{line}");
        }
    }

    #[test]
    fn when_one_fails_all_end_and_the_worst_code_is_returned() {
        let start = Instant::now();
        let (code, text) = launch(3, 1, "if [ $MLX_RANK = 1 ]; then exit 7; fi; exec sleep 60");
        assert_eq!(code, 7);
        assert_eq!(text, "rank 1 | ended with exit code 7: the others end in 2 s\n");
        assert!(start.elapsed() < Duration::from_secs(30));
        let (code, _) = launch(2, 1, "if [ $MLX_RANK = 1 ]; then kill -9 $$; fi; exec sleep 60");
        assert_eq!(code, 137);
    }

    #[test]
    fn the_others_may_still_say_what_a_failure_was_to_them() {
        let script = "if [ $MLX_RANK = 1 ]; then exit 7; fi; sleep 0.5; echo why; exit 3";
        let (code, text) = launch(2, 1, script);
        assert_eq!(code, 7);
        assert!(text.ends_with("rank 0 | why\nrank 0 | ended with exit code 3\n"), "{text}");
    }

    #[test]
    fn a_rank_that_ignores_the_request_to_end_is_killed() {
        let script = "if [ $MLX_RANK = 0 ]; then sleep 0.3; exit 1; fi; trap '' TERM; while :; do sleep 0.1; done";
        assert_eq!(launch(2, 1, script).0, 1);
    }
}
