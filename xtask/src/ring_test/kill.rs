//! `--kill`: one rank is killed in the middle of a loop of all-reduces, and every survivor must say so in time.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::report::{self, LoopError, Message};
use super::{End, PORT_TAKEN, Run};
use crate::console::Console;
use crate::ranks::{Event, Ranks, describe};
use crate::{Result, ports};

/// How soon after the death a survivor must have its error.
const IN_TIME: Duration = Duration::from_secs(2);
/// How long the call after the first error may take.
const AT_ONCE: Duration = Duration::from_millis(500);
/// How much longer survivors are waited for, so that a late one is told from one that hangs.
const PATIENCE: Duration = Duration::from_secs(8);

/// Waits until all ranks loop, kills `victim`, and judges what the others say.
pub(super) fn watch(run: &Run<'_>, mut ranks: Ranks, victim: usize, out: &mut (dyn Write + Send)) -> Result<End> {
    let size = ranks.len();
    let mut console = Console::new(out, false);
    let key = if run.key.is_some() { ", with a key" } else { "" };
    let connections = run.options.connections;
    console.line(&format!(
        "ring-test: {size} ranks, {connections} connections to each neighbour{key}, killing rank {victim}"
    ));

    let mut looping = vec![false; size];
    let mut errors: Vec<Option<LoopError>> = vec![None; size];
    let mut ended = vec![None; size];
    let mut killed_at = None;
    let mut end = Instant::now() + run.options.deadline.min(run.options.timeout + Duration::from_secs(30));
    // Somewhere inside an all-reduce, not always at the same place.
    let moment = Duration::from_millis(50 + ports::random_u64()? % 300);
    let mut kill_at = None;
    while !ranks.all_ended() && Instant::now() < end {
        match ranks.next(Duration::from_millis(5)) {
            Some(Event::Line { rank, text }) => match report::parse(&text) {
                Some(Message::Looping) => looping[rank] = true,
                Some(Message::Error(error)) => errors[rank] = Some(error),
                _ => console.rank_line(rank, size, &text),
            },
            Some(Event::Exit { rank, status }) => {
                if status.code() == Some(PORT_TAKEN) {
                    return Ok(End::PortTaken);
                }
                ended[rank] = Some(describe(status));
                if killed_at.is_none() {
                    // A ring that failed before anybody was killed: the others say why, then it is over.
                    end = end.min(Instant::now() + IN_TIME);
                }
            }
            None => {}
        }
        if kill_at.is_none() && looping.iter().all(|l| *l) {
            kill_at = Some(Instant::now() + moment);
        }
        if killed_at.is_none() && kill_at.is_some_and(|at| Instant::now() >= at) {
            killed_at = Some(now_us());
            ranks.kill(victim);
            end = Instant::now() + IN_TIME + PATIENCE;
        }
        let all_said = (0..size).all(|rank| rank == victim || (errors[rank].is_some() && ended[rank].is_some()));
        if killed_at.is_some() && all_said {
            break;
        }
    }
    drop(ranks);

    let verdicts: Vec<(usize, Verdict)> = (0..size)
        .filter(|&rank| rank != victim)
        .map(|rank| (rank, judge(victim, killed_at, errors[rank].as_ref())))
        .collect();
    if killed_at.is_none() {
        console.line("not every rank came to loop, so none was killed:");
        for rank in 0..size {
            let where_ = if looping[rank] { "looping" } else { "not yet looping" };
            let error = errors[rank].as_ref().map(|e| format!(": {}", e.text)).unwrap_or_default();
            let line = format!("{where_}, {}{error}", ended[rank].as_deref().unwrap_or("still running"));
            console.rank_line(rank, size, line.as_bytes());
        }
    }
    if killed_at.is_some() {
        console.line("survivor   after kill   judgement and error");
    }
    for (rank, verdict) in verdicts.iter().filter(|_| killed_at.is_some()) {
        let after = verdict.after.map_or_else(|| "-".to_string(), |t| format!("{:.1} ms", t.as_secs_f64() * 1000.0));
        let said = errors[*rank].as_ref().map_or("no error", |e| &e.text);
        console.line(&format!("rank {rank:<5} {after:>11}   {}: {said}", verdict.wrong.as_deref().unwrap_or("good")));
    }
    let passed = killed_at.is_some() && verdicts.iter().all(|(_, verdict)| verdict.wrong.is_none());
    if passed {
        console.line(&format!("every survivor named rank {victim} in time"));
    } else {
        console.line(&format!("reproduce: {}", run.options.reproduction(run.seed, None)));
    }
    if run.options.json {
        let survivors: Vec<_> = verdicts
            .iter()
            .map(|(rank, verdict)| {
                let error = errors[*rank].as_ref();
                json!({
                    "rank": rank,
                    "milliseconds": verdict.after.map(|t| t.as_secs_f64() * 1000.0),
                    "wrong": verdict.wrong,
                    "error": error.map(|e| &e.text),
                    "next_call": error.map(|e| &e.again),
                    "next_call_us": error.map(|e| e.again_us),
                })
            })
            .collect();
        println!("{}", json!({ "passed": passed, "ranks": size, "killed": victim, "survivors": survivors }));
    }
    Ok(if passed { End::Passed } else { End::Failed })
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// How a survivor did.
#[derive(Debug, PartialEq)]
struct Verdict {
    /// From the kill to its error.
    after: Option<Duration>,
    /// What is wrong with it.
    wrong: Option<String>,
}

/// Judges a survivor's report.
fn judge(victim: usize, killed_at: Option<u64>, error: Option<&LoopError>) -> Verdict {
    let (Some(killed_at), Some(error)) = (killed_at, error) else {
        return Verdict { after: None, wrong: Some("HANGS".into()) };
    };
    let after = Duration::from_micros(error.at_us.saturating_sub(killed_at));
    let name = format!("rank {victim} (");
    let wrong = if error.at_us < killed_at {
        Some("FAILED BEFORE THE KILL".to_string())
    } else if !error.text.contains(&name) {
        Some("NAMES ANOTHER".to_string())
    } else if after > IN_TIME {
        Some("LATE".to_string())
    } else if error.again.is_empty() {
        Some("THE NEXT CALL SUCCEEDED".to_string())
    } else if Duration::from_micros(error.again_us) > AT_ONCE {
        Some(format!("THE NEXT CALL TOOK {} ms", error.again_us / 1000))
    } else if !repeats(&error.text, &error.again) {
        Some(format!("THE NEXT CALL SAID OTHERWISE ({})", error.again))
    } else {
        None
    };
    Verdict { after: Some(after), wrong }
}

/// Whether the second error says that the group failed earlier, with the first one's text as the cause.
fn repeats(first: &str, again: &str) -> bool {
    again
        .split_once("the group failed earlier: ")
        .is_some_and(|(_, cause)| first.contains(cause) || cause.contains(first))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::super::Options;
    use super::*;

    const FIRST: &str = "I/O error: rank 0: all_sum #9: rank 2 (127.0.0.1:1) closed the connection";
    const AGAIN: &str =
        "I/O error: rank 0: all_sum #10: the group failed earlier: rank 2 (127.0.0.1:1) closed the connection";

    #[test]
    fn a_survivor_must_name_the_rank_in_time_and_repeat_it_at_once() {
        let good = LoopError { at_us: 1_500_000, text: FIRST.into(), again_us: 20, again: AGAIN.into() };
        let wrong = |change: fn(&mut LoopError)| {
            let mut error = good.clone();
            change(&mut error);
            judge(2, Some(1_000_000), Some(&error)).wrong.unwrap_or_default()
        };
        let verdict = judge(2, Some(1_000_000), Some(&good));
        assert_eq!(verdict, Verdict { after: Some(Duration::from_millis(500)), wrong: None });
        assert_eq!(wrong(|e| e.at_us = 3_000_001), "LATE");
        assert_eq!(wrong(|e| e.at_us = 999_999), "FAILED BEFORE THE KILL");
        assert_eq!(wrong(|e| e.text = FIRST.replace("rank 2", "rank 1")), "NAMES ANOTHER");
        assert_eq!(wrong(|e| e.text = FIRST.replace("rank 2", "rank 12")), "NAMES ANOTHER");
        assert_eq!(wrong(|e| e.again.clear()), "THE NEXT CALL SUCCEEDED");
        assert_eq!(wrong(|e| e.again_us = 600_000), "THE NEXT CALL TOOK 600 ms");
        assert!(wrong(|e| e.again = "timed out".into()).starts_with("THE NEXT CALL SAID OTHERWISE"));
        assert!(wrong(|e| e.again = AGAIN.replace("rank 2", "rank 1")).starts_with("THE NEXT CALL SAID OTHERWISE"));
        assert_eq!(judge(2, Some(1), None).wrong.as_deref(), Some("HANGS"));
    }

    /// Three ranks that are shell scripts; rank 2 is killed. Each survivor runs `script` once rank 2 is dead.
    fn check(script: &str) -> (End, String) {
        let options = Options { kill: Some(2), ..Options::quick(3, 1) };
        let folder = tempfile::tempdir().unwrap();
        let id = folder.path().join("id").display().to_string();
        let wait = format!("until [ -s {id} ]; do sleep 0.02; done; while kill -0 $(cat {id}); do sleep 0.02; done");
        let survivor = format!("echo @looping; {wait} 2> /dev/null; {script}");
        watched(&options, &[&survivor, &survivor, &format!("echo $$ > {id}; echo @looping; exec sleep 60")])
    }

    fn watched(options: &Options, scripts: &[&str]) -> (End, String) {
        let commands = scripts.iter().map(|script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        });
        let run = Run {
            options,
            program: Path::new("sh"),
            placement: None,
            seed: 7,
            key: None,
            folder: None,
            numbers: (0..scripts.len()).collect(),
            size: scripts.len(),
        };
        let mut out = Vec::new();
        let end = watch(&run, Ranks::start(commands).unwrap(), options.kill.unwrap(), &mut out).unwrap();
        (end, String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_table_shows_every_survivor() {
        // `date` knows whole seconds everywhere: the end of this one lies after the death, and less than a second.
        let report = format!(
            r#"echo "@error {{\"at_us\":$(date +%s)999999,\"text\":\"{FIRST}\",\"again_us\":5,\"again\":\"{AGAIN}\"}}"; exit 1"#
        );
        let (end, text) = check(&report);
        assert_eq!(end, End::Passed, "{text}");
        assert!(text.contains("rank 0") && text.contains("rank 1") && text.contains("good: I/O error"), "{text}");
        assert!(text.ends_with("every survivor named rank 2 in time\n"), "{text}");
    }

    #[test]
    fn a_ring_that_never_loops_fails_and_says_where_each_rank_stands() {
        let options = Options { kill: Some(1), ..Options::quick(2, 1) };
        let (end, text) = watched(&options, &["echo @looping; exec sleep 60", "exit 3"]);
        assert_eq!(end, End::Failed);
        assert!(text.contains("rank 0 | looping, still running\n"), "{text}");
        assert!(text.contains("rank 1 | not yet looping, ended with exit code 3\n"), "{text}");
    }

    #[test]
    fn a_survivor_that_says_nothing_fails() {
        let (end, text) = check("exit 0");
        assert_eq!(end, End::Failed);
        assert!(text.contains("HANGS: no error"), "{text}");
        assert!(text.contains("reproduce: cargo xtask ring-test --ranks 3 --connections 1 --quick --kill 2 --seed 7"));
    }
}
