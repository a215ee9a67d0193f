//! One turn of one side: its ranks are started, watched until they end, and what they report is put together.

use std::time::{Duration, Instant};

use super::plan::{Measurement, Operation, Shape};
use super::sides::Side;
use crate::ranks::{Event, Ranks, describe};
use crate::units::size_text;
use crate::{Result, files};

/// How many of the last lines of a side that failed are shown.
const TAIL: usize = 12;

/// What a turn came to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    /// By measurement: the slowest rank's median time, in microseconds.
    pub(crate) times: Vec<f64>,
    /// By measurement: the CPU time that all ranks spend on a call, in microseconds.
    pub(crate) cpu: Vec<f64>,
    /// What part of a processor a rank uses while it waits for a late one, at the most; if that was measured.
    pub(crate) waiting: Option<f64>,
    /// All ranks' CPU time from beginning to end, in seconds.
    pub(crate) cpu_seconds: f64,
    /// The most memory that a rank had, in bytes.
    pub(crate) peak: u64,
    /// The same before the group formed.
    pub(crate) start: u64,
}

/// What a rank reports on a line.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Message {
    /// `@row RANK MEASUREMENT MICROSECONDS CPU-MICROSECONDS`
    Row { rank: usize, measurement: usize, us: f64, cpu_us: f64 },
    /// `@usage RANK CPU-SECONDS PEAK START`
    Usage { rank: usize, cpu: f64, peak: u64, start: u64 },
}

fn parse(line: &str) -> Option<Message> {
    let mut words = line.split_ascii_whitespace();
    let message = match words.next()? {
        "@row" => Message::Row {
            rank: words.next()?.parse().ok()?,
            measurement: words.next()?.parse().ok()?,
            us: words.next()?.parse().ok()?,
            cpu_us: words.next()?.parse().ok()?,
        },
        "@usage" => Message::Usage {
            rank: words.next()?.parse().ok()?,
            cpu: words.next()?.parse().ok()?,
            peak: words.next()?.parse().ok()?,
            start: words.next()?.parse().ok()?,
        },
        _ => return None,
    };
    words.next().is_none().then_some(message)
}

/// Has `side` make every measurement of `plan` once. `progress` is told where it is. An error says which rank failed, or
/// what was not there when `deadline` had passed, and what the ranks last said.
pub(crate) fn run(
    side: &Side,
    shape: Shape,
    plan: &[Measurement],
    deadline: Duration,
    progress: &dyn Fn(&str),
) -> Result<Turn> {
    let folder = files::folder()?;
    progress("starts");
    watch(Ranks::start(side.commands(shape, plan, folder.path())?)?, shape, plan, deadline, progress)
}

fn watch(
    mut ranks: Ranks,
    shape: Shape,
    plan: &[Measurement],
    deadline: Duration,
    progress: &dyn Fn(&str),
) -> Result<Turn> {
    let end = Instant::now() + deadline;
    let mut reports = Reports::new(shape.ranks, plan.len());
    let mut tail = Vec::new();
    while !ranks.all_ended() {
        match ranks.next(Duration::from_millis(200)) {
            Some(Event::Line { rank, text }) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                match parse(&text) {
                    Some(message) => {
                        reports.take(message)?;
                        if let Some(next) = plan.get(reports.complete()) {
                            progress(&format!("{} {}", next.operation.name(), size_text(next.size)));
                        }
                    }
                    None => {
                        tail.push(format!("  rank {rank} | {text}"));
                        tail.drain(..tail.len().saturating_sub(TAIL));
                    }
                }
            }
            Some(Event::Exit { rank, status }) if !status.success() => {
                // What the others say is their answer to this end: a moment for the lines that tell more.
                let patience = Instant::now() + Duration::from_millis(300);
                while let Some(event) = ranks.next(patience.saturating_duration_since(Instant::now())) {
                    if let Event::Line { rank, text } = event {
                        tail.push(format!("  rank {rank} | {}", String::from_utf8_lossy(&text)));
                    }
                }
                return Err(with_tail(format!("the process of rank {rank} {}", describe(status)), &tail));
            }
            Some(Event::Exit { .. }) | None => {}
        }
        if Instant::now() > end && !ranks.all_ended() {
            let at = plan.get(reports.complete()).map_or("the end".into(), |m| m.argument(shape.ranks));
            let text = format!("not at its end after {} s, but at {at}", deadline.as_secs());
            return Err(with_tail(text, &tail));
        }
    }
    reports.turn(plan).ok_or_else(|| with_tail("its ranks ended without all of their figures".into(), &tail))
}

fn with_tail(text: String, tail: &[String]) -> String {
    [&[text], tail].concat().join("\n")
}

/// What all ranks have reported so far.
struct Reports {
    /// By measurement and rank: median and CPU time of a call, in microseconds.
    rows: Vec<Vec<Option<(f64, f64)>>>,
    /// By rank: CPU seconds, peak, start.
    usage: Vec<Option<(f64, u64, u64)>>,
}

impl Reports {
    fn new(ranks: usize, measurements: usize) -> Self {
        Self { rows: vec![vec![None; ranks]; measurements], usage: vec![None; ranks] }
    }

    fn take(&mut self, message: Message) -> Result<()> {
        let known = match message {
            Message::Row { rank, measurement, us, cpu_us } => {
                let place = self.rows.get_mut(measurement).and_then(|ranks| ranks.get_mut(rank));
                place.map(|place| *place = Some((us, cpu_us)))
            }
            Message::Usage { rank, cpu, peak, start } => {
                self.usage.get_mut(rank).map(|place| *place = Some((cpu, peak, start)))
            }
        };
        known.ok_or_else(|| format!("it reports what was not asked for: {message:?}"))
    }

    /// How many measurements all ranks have made.
    fn complete(&self) -> usize {
        self.rows.iter().take_while(|ranks| ranks.iter().all(Option::is_some)).count()
    }

    /// The turn, if everything is there.
    fn turn(&self, plan: &[Measurement]) -> Option<Turn> {
        let rows: Vec<Vec<_>> = self.rows.iter().map(|ranks| ranks.iter().copied().collect()).collect::<Option<_>>()?;
        let usage: Vec<_> = self.usage.iter().copied().collect::<Option<_>>()?;
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let waiting = plan.iter().position(|m| m.operation == Operation::Wait).map(|i| {
            let (_late, others) = rows[i].split_last().unwrap_or((&(0.0, 0.0), &[]));
            most(&mut others.iter().map(|(us, cpu)| cpu / us.max(1.0)))
        });
        Some(Turn {
            times: rows.iter().map(|ranks| most(&mut ranks.iter().map(|row| row.0))).collect(),
            cpu: rows.iter().map(|ranks| ranks.iter().map(|row| row.1).sum()).collect(),
            waiting,
            cpu_seconds: usage.iter().map(|u| u.0).sum(),
            peak: usage.iter().map(|u| u.1).max()?,
            start: usage.iter().map(|u| u.2).max()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::measurements;
    use crate::ranks::tests::shell;

    const TWO: Shape = Shape { ranks: 2, connections: 1 };

    fn watched(scripts: &[&str], deadline: u64) -> Result<Turn> {
        let plan = measurements(&[Operation::AllReduce, Operation::Wait], &[8]);
        let ranks = Ranks::start(scripts.iter().enumerate().map(|(rank, script)| shell(rank, script))).unwrap();
        watch(ranks, TWO, &plan, Duration::from_secs(deadline), &|_| ())
    }

    #[test]
    fn the_slowest_rank_counts_and_all_cpu_and_the_late_rank_does_not_wait() {
        let zero = "echo @row 0 0 5.5 2; echo warning; echo @row 0 1 1000 250; echo @usage 0 1.5 100 10";
        let one = "echo @row 1 0 4.5 3; echo @row 1 1 10 9; echo @usage 1 0.5 200 20";
        let turn = watched(&[zero, one], 20).unwrap();
        let expected = Turn {
            times: vec![5.5, 1000.0],
            cpu: vec![5.0, 259.0],
            waiting: Some(0.25),
            cpu_seconds: 2.0,
            peak: 200,
            start: 20,
        };
        assert_eq!(turn, expected);
        // All ranks' lines may come from one process, as mpirun's do.
        assert_eq!(watched(&[&format!("{zero}; {one}")], 20).unwrap(), expected);
    }

    #[test]
    fn a_side_that_fails_hangs_or_says_too_little_is_an_error_that_shows_its_last_words() {
        let e = watched(&["echo why >&2; exit 3", "exec sleep 60"], 20).unwrap_err();
        assert_eq!(e, "the process of rank 0 ended with exit code 3\n  rank 0 | why");
        let e = watched(&["echo @row 0 0 1 1; exec sleep 60", "echo @row 1 0 1 1; exec sleep 60"], 5).unwrap_err();
        assert_eq!(e, "not at its end after 5 s, but at wait:1000:1:1");
        let e = watched(&["echo @row 0 0 1 1", "true"], 20).unwrap_err();
        assert!(e.starts_with("its ranks ended without"), "{e}");
        let e = watched(&["echo @row 2 0 1 1", "true"], 20).unwrap_err();
        assert!(e.contains("not asked for"), "{e}");
    }

    #[test]
    fn other_lines_are_no_reports() {
        for line in ["", "@row", "@row 0 0 1", "@row 0 0 1 1 1", "@row x 0 1 1", "row 0 0 1 1", "@usage 0 1 -5 1"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
