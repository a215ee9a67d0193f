//! `--kill`, `--stop`, `--pause` and `--cut`: one rank fails in the middle of a loop of all-reduces, and what the others then do.
//!
//! [`observe`] brings the fault about and gathers what the ranks say; the rest judges it and makes the table.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::report::{self, LoopError, Message};
use super::{End, PORT_TAKEN, Run, Wire};
use crate::console::Console;
use crate::ranks::{Event, Ranks, describe};
use crate::signals::Signal;
use crate::{Result, ports};

/// How long after a rank's death, or after the time-out of a stopped one, a survivor may have its error.
const IN_TIME: Duration = Duration::from_secs(2);
/// How long the call after the first error may take.
const AT_ONCE: Duration = Duration::from_millis(500);
/// How much longer ranks are waited for, so that a late one is told from one that hangs.
const PATIENCE: Duration = Duration::from_secs(8);
/// How many rounds the loop must do after a pause. (One might have been under way.)
const ROUNDS_AFTER: u64 = 3;

/// What happens to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It dies (SIGKILL).
    Kill,
    /// It is stopped (SIGSTOP) for good.
    Stop,
    /// It is stopped for half the time-out.
    Pause,
    /// The cable of its RDMA device is pulled.
    Cut,
}

impl Fault {
    /// The option that asks for it.
    pub(super) fn flag(self) -> &'static str {
        match self {
            Self::Kill => "--kill",
            Self::Stop => "--stop",
            Self::Pause => "--pause",
            Self::Cut => "--cut",
        }
    }

    /// Whether the rank lives on.
    fn is_survived(self) -> bool {
        matches!(self, Self::Pause | Self::Cut)
    }

    /// When survivors must have their errors, counted from the fault.
    fn limit(self, timeout: Duration) -> Duration {
        match self {
            Self::Kill => IN_TIME,
            Self::Stop | Self::Pause | Self::Cut => timeout + IN_TIME,
        }
    }
}

/// What is known of a rank.
#[derive(Debug, Clone, Default)]
struct Seen {
    looping: bool,
    /// How many rounds of the loop it has done.
    rounds: u64,
    /// A wrong result.
    wrong: Option<String>,
    error: Option<LoopError>,
    /// How it ended.
    ended: Option<String>,
}

/// All that was observed.
struct Observed {
    ranks: Vec<Seen>,
    /// When the fault came, in microseconds since 1970.
    struck_at: Option<u64>,
    /// How many rounds at most a rank had done when the paused one continued.
    rounds_before: Option<u64>,
}

/// Waits until all ranks loop, lets one fail, and judges what the others do.
pub(super) fn watch(run: &Run<'_>, ranks: Ranks, out: &mut (dyn Write + Send)) -> Result<End> {
    let Some((fault, victim)) = run.options.fault() else { return Err("there is no fault to watch for".into()) };
    let mut console = Console::new(out, false);
    console.line(&format!("ring-test: {}, {} {victim}", run.options.shape(run.size), fault.flag()));
    let Some(observed) = observe(run, fault, victim, ranks, &mut console)? else { return Ok(End::PortTaken) };
    let verdicts: Vec<(usize, Verdict)> = (0..run.size)
        .filter(|&rank| rank != victim || fault.is_survived())
        .map(|rank| (rank, judge(fault, &run.blamed(rank, victim), run.options.timeout(), rank, &observed)))
        .collect();
    let passed = observed.struck_at.is_some() && verdicts.iter().all(|(_, verdict)| verdict.wrong.is_none());
    if observed.struck_at.is_none() {
        console.line("not every rank came to loop, so nothing was done to any:");
        for (rank, seen) in observed.ranks.iter().enumerate() {
            console.rank_line(rank, run.size, seen.standing().as_bytes());
        }
    } else {
        let first = if fault.is_survived() { "rank     " } else { "survivor " };
        console.line(&format!("{first}  after {:<6} judgement", fault.flag().trim_start_matches('-')));
        for (rank, verdict) in &verdicts {
            let wrong = verdict.wrong.as_deref().unwrap_or("good");
            let after = verdict.after.map_or_else(|| "-".into(), |t| format!("{:.1} ms", t.as_secs_f64() * 1000.0));
            console.line(&format!("rank {rank:<5} {after:>11}   {wrong}: {}", observed.ranks[*rank].said()));
        }
    }
    match (passed, fault) {
        (true, Fault::Pause) => console.line("every rank went on, and every sum was right"),
        (true, Fault::Cut) => console.line("every rank failed in time and named whom the cut took away"),
        (true, _) if run.options.wire == Wire::Mlx => {
            console.line("every survivor named a neighbour that it lost in time")
        }
        (true, _) => console.line(&format!("every survivor named rank {victim} in time")),
        (false, _) => console.line(&format!("reproduce: {}", run.options.reproduction(run.seed, None))),
    }
    if run.options.json {
        let ranks: Vec<_> =
            verdicts.iter().map(|(rank, verdict)| verdict.json(*rank, &observed.ranks[*rank])).collect();
        let fault = fault.flag().trim_start_matches('-');
        println!("{}", json!({ "passed": passed, "ranks": run.size, "fault": fault, "rank": victim, "others": ranks }));
    }
    Ok(if passed { End::Passed } else { End::Failed })
}

/// Sees the ranks through the fault, until all have said what they have to say or have had the time for it. None if a
/// port was taken.
fn observe(
    run: &Run<'_>,
    fault: Fault,
    victim: usize,
    mut ranks: Ranks,
    console: &mut Console<'_>,
) -> Result<Option<Observed>> {
    let timeout = run.options.timeout();
    let mut seen = Observed { ranks: vec![Seen::default(); run.size], struck_at: None, rounds_before: None };
    let mut end = Instant::now() + run.options.deadline.min(timeout + Duration::from_secs(30));
    // Somewhere inside an all-reduce, not always at the same place.
    let moment = Duration::from_millis(50 + ports::random_u64()? % 300);
    let (mut strike_at, mut continue_at) = (None, None);
    while !ranks.all_ended() && Instant::now() < end {
        match ranks.next(Duration::from_millis(5)) {
            Some(Event::Line { rank, text }) => match report::parse(&text) {
                Some(Message::Looping) => seen.ranks[rank].looping = true,
                Some(Message::Round(round)) => seen.ranks[rank].rounds = round,
                Some(Message::Fail { text, .. }) => seen.ranks[rank].wrong = Some(text),
                Some(Message::Error(error)) => seen.ranks[rank].error = Some(error),
                _ => console.rank_line(rank, run.size, &text),
            },
            Some(Event::Exit { rank, status }) => {
                if status.code() == Some(PORT_TAKEN) {
                    return Ok(None);
                }
                seen.ranks[rank].ended = Some(describe(status));
                if seen.struck_at.is_none() || fault == Fault::Pause {
                    // A ring that failed with no rank at fault: the others say why, then it is over.
                    end = end.min(Instant::now() + IN_TIME);
                }
            }
            None => {}
        }
        if strike_at.is_none() && seen.ranks.iter().all(|rank| rank.looping) {
            strike_at = Some(Instant::now() + moment);
        }
        if seen.struck_at.is_none() && strike_at.is_some_and(|at| Instant::now() >= at) {
            seen.struck_at = Some(now_us());
            match fault {
                Fault::Kill => ranks.kill(victim),
                Fault::Stop | Fault::Pause => ranks.signal(victim, Signal::STOP),
                Fault::Cut => cut(victim)?,
            }
            continue_at = (fault == Fault::Pause).then(|| Instant::now() + timeout / 2);
            end = Instant::now() + fault.limit(timeout) + PATIENCE;
        }
        if continue_at.is_some_and(|at| Instant::now() >= at) {
            continue_at = None;
            // Whatever the others did meanwhile has been read: they have waited since.
            seen.rounds_before = seen.ranks.iter().map(|rank| rank.rounds).max();
            ranks.signal(victim, Signal::CONT);
        }
        if seen.is_complete(fault, victim) {
            break;
        }
    }
    if fault == Fault::Stop {
        ranks.signal(victim, Signal::CONT);
        ranks.kill(victim);
    }
    Ok(Some(seen))
}

impl Run<'_> {
    /// Which ranks a survivor may name: the one that failed first. On MLX's wire nobody tells which that was, and a
    /// failure goes round the ring.
    fn blamed(&self, survivor: usize, victim: usize) -> Vec<usize> {
        match self.options.wire {
            // A rank whose own cable is cut may see the others behind it, or that it reaches nobody.
            Wire::Native if survivor == victim => (0..self.size).collect(),
            Wire::Native => vec![victim],
            Wire::Mlx => vec![(survivor + 1) % self.size, (survivor + self.size - 1) % self.size],
        }
    }
}

impl Observed {
    /// Whether nothing more is to come.
    fn is_complete(&self, fault: Fault, victim: usize) -> bool {
        if fault == Fault::Pause {
            return (0..self.ranks.len()).all(|rank| self.went_on(rank));
        }
        let mut survivors = self.ranks.iter().enumerate().filter(|(rank, _)| *rank != victim || fault.is_survived());
        self.struck_at.is_some() && survivors.all(|(_, seen)| seen.error.is_some() && seen.ended.is_some())
    }

    /// Whether a rank loops after the pause.
    fn went_on(&self, rank: usize) -> bool {
        self.rounds_before.is_some_and(|before| self.ranks[rank].rounds >= before + ROUNDS_AFTER)
    }
}

impl Seen {
    /// Where it stands.
    fn standing(&self) -> String {
        let looping = if self.looping { "looping" } else { "not yet looping" };
        let error = self.error.as_ref().map(|e| format!(": {}", e.text)).unwrap_or_default();
        format!("{looping}, {}{error}", self.ended.as_deref().unwrap_or("still running"))
    }

    /// What it said in the end.
    fn said(&self) -> String {
        match (&self.wrong, &self.error) {
            (Some(wrong), _) => wrong.clone(),
            (None, Some(error)) => error.text.clone(),
            (None, None) => format!("no error in {} rounds", self.rounds),
        }
    }
}

/// Pulls the cable of the device of a rank, by the program that [`rdma_vm`](crate::rdma_vm) has for it.
fn cut(rank: usize) -> Result<()> {
    let done = Command::new("rdma-vm-link").args(["cut", &rank.to_string()]).status();
    match done {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("rdma-vm-link cut {rank}: {}", describe(status))),
        Err(e) => Err(format!("rdma-vm-link, which only the virtual machine has (cargo xtask rdma-vm): {e}")),
    }
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// How a rank did.
#[derive(Debug, PartialEq)]
struct Verdict {
    /// From the fault to its error.
    after: Option<Duration>,
    /// What is wrong with it.
    wrong: Option<String>,
}

impl Verdict {
    fn json(&self, rank: usize, seen: &Seen) -> Value {
        let error = seen.error.as_ref();
        json!({
            "rank": rank,
            "milliseconds": self.after.map(|t| t.as_secs_f64() * 1000.0),
            "wrong": self.wrong,
            "rounds": seen.rounds,
            "error": error.map(|e| &e.text),
            "next_call": error.map(|e| &e.again),
            "next_call_us": error.map(|e| e.again_us),
        })
    }
}

/// Judges what a rank did, which may name one of the ranks `blamed`.
fn judge(fault: Fault, blamed: &[usize], timeout: Duration, rank: usize, observed: &Observed) -> Verdict {
    let seen = &observed.ranks[rank];
    let after = |error: &LoopError| Some(Duration::from_micros(error.at_us.saturating_sub(observed.struck_at?)));
    let (after, wrong) = match (&seen.wrong, &seen.error) {
        (Some(_), _) => (None, Some("A WRONG SUM".into())),
        (None, Some(error)) if fault == Fault::Pause => (after(error), Some("FAILED".into())),
        (None, Some(error)) => {
            let wrong = observed.struck_at.and_then(|at| wrong_with(error, rank, blamed, at, fault.limit(timeout)));
            (after(error), wrong)
        }
        (None, None) if fault == Fault::Pause && observed.went_on(rank) => (None, None),
        (None, None) => (None, Some("HANGS".into())),
    };
    Verdict { after, wrong }
}

/// What is wrong with the errors of rank `own`.
fn wrong_with(error: &LoopError, own: usize, blamed: &[usize], struck_at: u64, limit: Duration) -> Option<String> {
    let names = |rank: usize| match rank {
        rank if rank == own => error.text.contains("reaches no other rank"),
        rank => error.text.contains(&format!("rank {rank} (")),
    };
    if error.at_us < struck_at {
        Some("FAILED BEFORE THE FAULT".into())
    } else if !blamed.iter().any(|rank| names(*rank)) {
        Some("NAMES ANOTHER".into())
    } else if Duration::from_micros(error.at_us - struck_at) > limit {
        Some("LATE".into())
    } else if error.again.is_empty() {
        Some("THE NEXT CALL SUCCEEDED".into())
    } else if Duration::from_micros(error.again_us) > AT_ONCE {
        Some(format!("THE NEXT CALL TOOK {} ms", error.again_us / 1000))
    } else if !repeats(&error.text, &error.again) {
        Some(format!("THE NEXT CALL SAID OTHERWISE ({})", error.again))
    } else {
        None
    }
}

/// Whether the second error says that the group failed earlier, with the first one's text as the cause.
fn repeats(first: &str, again: &str) -> bool {
    again
        .split_once("the group failed earlier: ")
        .is_some_and(|(_, cause)| first.contains(cause) || cause.contains(first))
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::tests::{run_of, watched};
    use super::*;

    const FIRST: &str = "I/O error: rank 0: all_sum #9: rank 2 (127.0.0.1:1) closed the connection";
    const AGAIN: &str =
        "I/O error: rank 0: all_sum #10: the group failed earlier: rank 2 (127.0.0.1:1) closed the connection";

    /// The verdict on rank 0, which is as `seen` says, after something happened to rank 2 a second after 1970 began.
    fn verdict(fault: Fault, seen: Seen) -> Verdict {
        let observed = Observed { ranks: vec![seen], struck_at: Some(1_000_000), rounds_before: Some(10) };
        judge(fault, &[2], Duration::from_secs(3), 0, &observed)
    }

    #[test]
    fn a_survivor_must_name_the_rank_in_time_and_repeat_it_at_once() {
        let good = LoopError { at_us: 1_500_000, text: FIRST.into(), again_us: 20, again: AGAIN.into() };
        let of = |fault, error| verdict(fault, Seen { error: Some(error), ..Seen::default() });
        let wrong = |change: fn(&mut LoopError)| {
            let mut error = good.clone();
            change(&mut error);
            of(Fault::Kill, error).wrong.unwrap_or_default()
        };
        assert_eq!(of(Fault::Kill, good.clone()), Verdict { after: Some(Duration::from_millis(500)), wrong: None });
        assert_eq!(wrong(|e| e.at_us = 3_000_001), "LATE");
        assert_eq!(wrong(|e| e.at_us = 999_999), "FAILED BEFORE THE FAULT");
        assert_eq!(wrong(|e| e.text = FIRST.replace("rank 2", "rank 1")), "NAMES ANOTHER");
        assert_eq!(wrong(|e| e.text = FIRST.replace("rank 2", "rank 12")), "NAMES ANOTHER");
        assert_eq!(wrong(|e| e.again.clear()), "THE NEXT CALL SUCCEEDED");
        assert_eq!(wrong(|e| e.again_us = 600_000), "THE NEXT CALL TOOK 600 ms");
        assert!(wrong(|e| e.again = "timed out".into()).starts_with("THE NEXT CALL SAID OTHERWISE"));
        assert!(wrong(|e| e.again = AGAIN.replace("rank 2", "rank 1")).starts_with("THE NEXT CALL SAID OTHERWISE"));
        assert_eq!(verdict(Fault::Kill, Seen::default()).wrong.as_deref(), Some("HANGS"));
        let at = |at_us| of(Fault::Stop, LoopError { at_us, ..good.clone() }).wrong;
        assert_eq!((at(6_000_000), at(6_000_001).as_deref()), (None, Some("LATE")));
    }

    #[test]
    fn after_a_pause_a_rank_must_go_on_without_an_error_or_a_wrong_sum() {
        let error = LoopError { at_us: 1_500_000, text: FIRST.into(), again_us: 20, again: AGAIN.into() };
        let on = Seen { rounds: 13, ..Seen::default() };
        assert_eq!(verdict(Fault::Pause, on.clone()), Verdict { after: None, wrong: None });
        for (seen, wrong) in [
            (Seen { rounds: 12, ..on.clone() }, "HANGS"),
            (Seen { error: Some(error), ..on.clone() }, "FAILED"),
            (Seen { wrong: Some("element 3".into()), ..on }, "A WRONG SUM"),
        ] {
            assert_eq!(verdict(Fault::Pause, seen).wrong.as_deref(), Some(wrong));
        }
    }

    #[test]
    fn on_mlxs_wire_a_survivor_may_name_either_neighbour_and_no_other_rank() {
        let options = Options { wire: Wire::Mlx, ..Options::quick(5, 1) };
        let run = run_of(&options, 5);
        assert_eq!((run.blamed(0, 2), run.blamed(4, 2)), (vec![1, 4], vec![0, 3]));
        let error = LoopError { at_us: 1_500_000, text: FIRST.into(), again_us: 20, again: AGAIN.into() };
        let wrong = |blamed: &[usize]| wrong_with(&error, 0, blamed, 1_000_000, IN_TIME);
        assert_eq!((wrong(&[1, 2]), wrong(&[1, 4]).as_deref()), (None, Some("NAMES ANOTHER")));
    }

    #[test]
    fn a_rank_whose_cable_is_cut_may_say_that_it_reaches_nobody() {
        let options = Options { cut: Some(1), ..Options::quick(3, 1) };
        let run = run_of(&options, 3);
        assert_eq!((run.blamed(1, 1), run.blamed(0, 1)), (vec![0, 1, 2], vec![1]));
        let text = "I/O error: rank 1: all_sum #9: reaches no other rank: none has acknowledged anything for 1.5 s";
        let again = text.replace("#9: ", "#10: the group failed earlier: ");
        let error = LoopError { at_us: 1_500_000, text: text.into(), again_us: 20, again };
        assert_eq!(wrong_with(&error, 1, &run.blamed(1, 1), 1_000_000, IN_TIME), None);
        assert_eq!(wrong_with(&error, 0, &run.blamed(0, 1), 1_000_000, IN_TIME).as_deref(), Some("NAMES ANOTHER"));
    }

    /// Three ranks that are shell scripts; rank 2 is killed. Each survivor runs `script` once rank 2 is dead.
    fn killed(script: &str) -> (End, String) {
        let options = Options { kill: Some(2), ..Options::quick(3, 1) };
        let folder = tempfile::tempdir().unwrap();
        // Rank 2's end of the pipe closes with its death.
        let pipe = folder.path().join("pipe").display().to_string();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let survivor = format!("exec 3< {pipe}; echo @looping; cat <&3; {script}");
        watched(watch, &options, &[&survivor, &survivor, &format!("exec 3> {pipe}; echo @looping; exec sleep 60")])
    }

    #[test]
    fn the_table_shows_every_survivor() {
        // `date` knows whole seconds everywhere: the end of this one lies after the death, and less than a second.
        let report = format!(
            r#"echo "@error {{\"at_us\":$(date +%s)999999,\"text\":\"{FIRST}\",\"again_us\":5,\"again\":\"{AGAIN}\"}}"; exit 1"#
        );
        let (end, text) = killed(&report);
        assert_eq!(end, End::Passed, "{text}");
        assert!(text.contains("rank 0") && text.contains("rank 1") && text.contains("good: I/O error"), "{text}");
        assert!(text.ends_with("every survivor named rank 2 in time\n"), "{text}");
    }

    #[test]
    fn a_survivor_that_says_nothing_fails() {
        let (end, text) = killed("exit 0");
        assert_eq!(end, End::Failed);
        assert!(text.contains("HANGS: no error"), "{text}");
        assert!(text.contains("reproduce: cargo xtask ring-test --ranks 3 --connections 1 --quick --kill 2 --seed 7"));
    }

    #[test]
    fn a_ring_that_never_loops_fails_and_says_where_each_rank_stands() {
        let options = Options { stop: Some(1), ..Options::quick(2, 1) };
        let (end, text) = watched(watch, &options, &["echo @looping; exec sleep 60", "exit 3"]);
        assert_eq!(end, End::Failed);
        assert!(text.contains("rank 0 | looping, still running\n"), "{text}");
        assert!(text.contains("rank 1 | not yet looping, ended with exit code 3\n"), "{text}");
    }

    #[test]
    fn a_paused_rank_goes_on_and_one_that_sums_wrong_is_told() {
        let options = Options { pause: Some(0), timeout: Some(Duration::from_secs(1)), ..Options::quick(2, 1) };
        let looping = "echo @looping; i=0; while :; do i=$((i+1)); echo @round $i; sleep 0.05; done";
        let (end, text) = watched(watch, &options, &[looping, looping]);
        assert_eq!(end, End::Passed, "{text}");
        assert!(text.contains("good: no error in "), "{text}");
        let wrong = r#"echo @looping; sleep 1; echo '@fail {"case":"loop","text":"element 3"}'; exit 1"#;
        let (end, text) = watched(watch, &options, &[looping, wrong]);
        assert_eq!(end, End::Failed);
        assert!(text.contains("A WRONG SUM: element 3\n"), "{text}");
    }
}
