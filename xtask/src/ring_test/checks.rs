//! Watching ranks check collectives: progress, failures and how to repeat them, hangs, and the table at the end.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::json;

use super::report::{self, Message, Row};
use super::{End, OTHER_CASES, PORT_TAKEN, Run};
use crate::Result;
use crate::console::Console;
use crate::ranks::{Event, Ranks, describe};

/// How long the other ranks may take to report, once one has failed.
const AFTER_FAILURE: Duration = Duration::from_secs(8);
/// How much longer than the ranks' own time-out nothing may happen before it counts as a hang.
const STALL: Duration = Duration::from_secs(30);
/// How many failures are shown in full.
const SHOWN: usize = 20;

/// A rank as its reports show it.
#[derive(Debug, Clone, Default)]
struct Standing {
    /// Checks announced, checks and measurements announced, and those begun.
    checks: u64,
    planned: u64,
    begun: u64,
    /// The check that it is in.
    case: Option<String>,
    /// Whether it said that it was done.
    done: bool,
    /// How it ended.
    end: Option<String>,
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.end, self.done, &self.case) {
            (Some(end), _, Some(case)) if !self.done => write!(f, "{end} in {case}"),
            (Some(end), ..) => f.write_str(end),
            (None, true, _) => f.write_str("all checks done, still running"),
            (None, false, Some(case)) => write!(f, "in {case} ({} of {})", self.begun, self.planned),
            (None, false, None) => f.write_str("starting: it has not joined the ring"),
        }
    }
}

/// What is known while the ranks run.
struct Watch<'a> {
    run: &'a Run<'a>,
    standings: Vec<Standing>,
    /// Rank (by process), check and text of each failure.
    failures: Vec<(usize, Option<String>, String)>,
    rows: Vec<Row>,
    port_taken: bool,
    /// A rank found that another machine's checks other cases.
    other_cases: bool,
}

/// Watches `ranks` until all have ended, one has failed and the others had time to say so, or nothing goes on.
pub(super) fn watch(run: &Run<'_>, mut ranks: Ranks, out: &mut (dyn Write + Send)) -> Result<End> {
    let standings = vec![Standing::default(); ranks.len()];
    let mut watch =
        Watch { run, standings, failures: Vec::new(), rows: Vec::new(), port_taken: false, other_cases: false };
    let mut console = Console::new(out, !run.options.json);
    console.line(&watch.heading());
    console.progress(0, 0, "joining the ring".into());
    let start = Instant::now();
    let stall = run.options.timeout() + STALL;
    let (mut last, mut leave) = (start, start + run.options.deadline);
    while !ranks.all_ended() && !watch.port_taken {
        if let Some(event) = ranks.next(Duration::from_millis(200)) {
            last = Instant::now();
            watch.event(event, &mut console);
            if watch.standings.iter().any(|s| s.end.is_some() && !s.done) {
                leave = leave.min(last + AFTER_FAILURE);
            }
        }
        let hang = last.elapsed() > stall;
        if (hang || Instant::now() > leave) && !ranks.all_ended() {
            let why = if hang { "nothing happened for" } else { "not done after" };
            let time = if hang { last.elapsed() } else { start.elapsed() };
            watch.give_up(&format!("{why} {:.1} s", time.as_secs_f64()), &mut console);
            ranks.kill_all();
            break;
        }
    }
    drop(ranks);
    if watch.port_taken {
        return Ok(End::PortTaken);
    }
    let passed = watch.failures.is_empty() && watch.standings.iter().all(|s| s.done);
    watch.summary(passed, start.elapsed(), &mut console);
    Ok(if passed { End::Passed } else { End::Failed })
}

impl Watch<'_> {
    fn heading(&self) -> String {
        let Run { options, size, seed, .. } = self.run;
        let rank =
            options.hostfile.as_ref().map(|_| format!(", rank {} here", self.run.numbers[0])).unwrap_or_default();
        format!("ring-test: {}{rank}, seed {seed}", options.shape(*size))
    }

    fn event(&mut self, event: Event, console: &mut Console<'_>) {
        let (rank, text) = match event {
            Event::Line { rank, text } => (rank, text),
            Event::Exit { rank, status } => {
                self.port_taken |= status.code() == Some(PORT_TAKEN);
                self.other_cases |= status.code() == Some(OTHER_CASES);
                let standing = &mut self.standings[rank];
                standing.end = Some(describe(status));
                let reported = self.failures.iter().any(|f| f.0 == rank);
                if (!status.success() || !standing.done) && !reported && !self.port_taken {
                    let said = if standing.done { "" } else { " before its checks were done" };
                    let text = format!("{}{said}", describe(status));
                    self.failures.push((rank, standing.case.clone(), text));
                }
                return;
            }
        };
        let number = self.run.numbers[rank];
        let standing = &mut self.standings[rank];
        match report::parse(&text) {
            Some(Message::Plan { checks, measurements }) => {
                (standing.checks, standing.planned) = (checks, checks.saturating_add(measurements));
            }
            Some(Message::Case(case)) => {
                standing.begun += 1;
                standing.case = Some(case);
                self.progress(console);
            }
            Some(Message::Fail { case, text }) => {
                if self.failures.len() < SHOWN {
                    console.rank_line(number, self.run.size, format!("FAILED {case}: {text}").as_bytes());
                }
                self.failures.push((rank, Some(case), text));
            }
            Some(Message::Row(row)) => self.rows.push(row),
            Some(Message::Done) => standing.done = true,
            Some(Message::Looping | Message::Round(_) | Message::Error(_)) | None => {
                console.rank_line(number, self.run.size, &text)
            }
        }
    }

    /// The bar shows the slowest rank.
    fn progress(&self, console: &Console<'_>) {
        if let Some(slowest) = self.standings.iter().min_by_key(|s| s.begun) {
            console.progress(slowest.begun, slowest.planned, slowest.case.clone().unwrap_or_default());
        }
    }

    /// Says where each rank stands.
    fn give_up(&mut self, why: &str, console: &mut Console<'_>) {
        console.line(&format!("giving up: {why}. Where each rank stands:"));
        for (number, standing) in self.run.numbers.iter().zip(&self.standings) {
            console.rank_line(*number, self.run.size, standing.to_string().as_bytes());
        }
        if self.failures.is_empty() {
            let slowest =
                self.standings.iter().enumerate().filter(|(_, s)| s.end.is_none()).min_by_key(|(_, s)| s.begun);
            if let Some((rank, standing)) = slowest {
                self.failures.push((rank, standing.case.clone(), why.to_string()));
            }
        }
    }

    fn summary(&self, passed: bool, took: Duration, console: &mut Console<'_>) {
        let Run { options, size, seed, numbers, .. } = self.run;
        let checks = self.standings.iter().map(|s| s.checks).max().unwrap_or(0);
        if passed {
            let table = report::table(&self.rows);
            if !table.is_empty() {
                console.line(&table);
                console.line("(medians over rank 0's calls; bandwidth is the bytes of one rank's array by that time; send/recv is half a round trip)");
            }
            let ranks = if options.hostfile.is_some() { "this rank" } else { "every rank" };
            console.line(&format!("all {checks} checks passed on {ranks} in {:.1} s", took.as_secs_f64()));
        } else if !self.other_cases {
            if self.failures.len() > SHOWN {
                console.line(&format!("and {} more failures", self.failures.len() - SHOWN));
            }
            // A check that failed says more than a rank that ended for that reason.
            for (rank, case, text) in self.failures.iter().take(1) {
                let case_text = case.as_deref().unwrap_or("starting");
                console.line(&format!("failed: {case_text} on rank {}: {text}", numbers[*rank]));
                console.line(&format!("reproduce: {}", options.reproduction(*seed, case.as_deref())));
            }
        }
        if options.json {
            let failures: Vec<_> = self
                .failures
                .iter()
                .map(|(rank, case, text)| json!({ "rank": numbers[*rank], "case": case, "text": text }))
                .collect();
            let result = json!({
                "passed": passed,
                "ranks": size,
                "connections": options.hostfile.is_none().then_some(options.connections),
                "key": options.key.is_some(),
                "seed": seed,
                "quick": options.quick,
                "checks": checks,
                "seconds": took.as_secs_f64(),
                "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
                "failures": failures,
            });
            println!("{result}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::tests::watched;
    use super::*;

    fn check(options: &Options, scripts: &[&str]) -> (End, String) {
        watched(watch, options, scripts)
    }

    const GOOD: &str = "echo @plan 1 2; echo @case a/b/1; echo hello; echo @done";

    #[test]
    fn ranks_that_are_done_pass_and_their_rows_make_the_table() {
        let rows = r#"echo '@row {"operation":"all_sum float32","bytes":8,"latency_us":5}'"#;
        let (end, text) = check(&Options::quick(2, 1), &[&format!("{rows}; {GOOD}"), GOOD]);
        assert_eq!(end, End::Passed, "{text}");
        assert!(text.starts_with("ring-test: 2 ranks, 1 connection to each neighbour, seed 7\n"), "{text}");
        for line in ["rank 1 | hello\n", "5.00 µs", "all 1 checks passed on every rank"] {
            assert!(text.contains(line), "no {line:?} in {text}");
        }
        assert!(!text.contains('@'), "{text}");
    }

    #[test]
    fn a_failed_check_is_shown_with_the_command_that_repeats_it() {
        let bad =
            r#"echo @plan 1 2; echo @case a/b/1; echo '@fail {"case":"a/b/1","text":"element 3"}'; echo @done; exit 1"#;
        let (end, text) = check(&Options::quick(2, 1), &[GOOD, bad]);
        assert_eq!(end, End::Failed);
        assert!(text.contains("rank 1 | FAILED a/b/1: element 3\n"), "{text}");
        assert!(text.contains("failed: a/b/1 on rank 1: element 3\n"), "{text}");
        let again = "reproduce: cargo xtask ring-test --ranks 2 --connections 1 --quick --seed 7 --only a/b/1\n";
        assert!(text.ends_with(again), "{text}");
    }

    #[test]
    fn a_rank_that_ends_early_fails_even_with_exit_code_0() {
        for script in ["echo @case a/b/1; exit 0", "echo @case a/b/1; exit 3", "echo @case a/b/1; kill -9 $$"] {
            let (end, text) = check(&Options::quick(2, 1), &[GOOD, script]);
            assert_eq!(end, End::Failed, "{script}");
            assert!(
                text.contains("failed: a/b/1 on rank 1: ") && text.contains("before its checks were done"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_taken_port_is_no_failure() {
        let (end, text) = check(&Options::quick(2, 1), &["exec sleep 60", "exit 98"]);
        assert_eq!(end, End::PortTaken);
        assert!(!text.contains("failed"), "{text}");
    }

    #[test]
    fn a_rank_that_finds_other_cases_elsewhere_has_the_last_word() {
        let (end, text) = check(&Options::quick(1, 1), &["echo error: rank 1 checks other cases >&2; exit 78"]);
        assert_eq!(end, End::Failed);
        assert!(text.ends_with("rank 0 | error: rank 1 checks other cases\n"), "{text}");
    }

    #[test]
    fn a_hang_ends_at_the_deadline_and_says_where_each_rank_stands() {
        let mut options = Options::quick(3, 1);
        options.deadline = Duration::from_millis(2500);
        let start = Instant::now();
        let hang = "echo @plan 9 0; echo @case all_sum/int8/0; exec sleep 60";
        let (end, text) = check(&options, &[GOOD, hang, "exec sleep 60"]);
        assert!(start.elapsed() < Duration::from_secs(20));
        assert_eq!(end, End::Failed);
        for line in [
            "giving up: not done after",
            "rank 0 | ended with exit code 0\n",
            "rank 1 | in all_sum/int8/0 (1 of 9)\n",
            "rank 2 | starting: it has not joined the ring\n",
            "reproduce: ",
        ] {
            assert!(text.contains(line), "no {line:?} in {text}");
        }
    }
}
