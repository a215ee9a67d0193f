//! Ranks as child processes: starting them, reading their output line by line, and ending them and nothing else.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::Result;
use crate::signals::{self, Leader, Signal};

/// The longest line that is passed on whole, in bytes; a longer one comes in pieces.
const MAX_LINE: u64 = 64 * 1024;
/// How long a rank's pipes may stay open after its end (a grandchild may hold them) before its end is told.
const PIPE_GRACE: Duration = Duration::from_millis(500);
/// How long ranks that were asked to end may take before they are killed.
const GRACE: Duration = Duration::from_secs(5);
/// How often ends are looked for.
const POLL: Duration = Duration::from_millis(5);

/// What happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A rank wrote a line to standard output or standard error; the newline is left out.
    Line {
        /// Which of them.
        rank: usize,
        /// The line's bytes.
        text: Vec<u8>,
    },
    /// A rank ended, after all of its lines.
    Exit {
        /// Which of them.
        rank: usize,
        /// How.
        status: ExitStatus,
    },
}

enum FromReader {
    Line(usize, Vec<u8>),
    End(usize),
}

struct Rank {
    process: Leader,
    open_pipes: usize,
    status: Option<(ExitStatus, Instant)>,
    told: bool,
}

/// Child processes, one per rank, numbered from 0 in the order of starting, each with a process group of its own. Dropping
/// them kills what still runs, and so does a signal that asks this command to end, after it has asked them.
pub(crate) struct Ranks {
    ranks: Vec<Rank>,
    /// When those that still run are killed.
    kill_at: Option<Instant>,
    sender: Sender<FromReader>,
    lines: Receiver<FromReader>,
}

impl Ranks {
    /// Starts a process per command, without standard input and with its output piped here.
    pub(crate) fn start(commands: impl IntoIterator<Item = Command>) -> Result<Self> {
        let (sender, lines) = channel();
        let mut this = Self { ranks: Vec::new(), kill_at: None, sender, lines };
        for command in commands {
            this.add(command)?;
        }
        Ok(this)
    }

    fn add(&mut self, mut command: Command) -> Result<()> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Leader::start(&mut command)?;
        let number = self.ranks.len();
        let mut open_pipes = 0;
        for pipe in process.pipes() {
            let sender = self.sender.clone();
            std::thread::spawn(move || read_lines(number, pipe, &sender));
            open_pipes += 1;
        }
        self.ranks.push(Rank { process, open_pipes, status: None, told: false });
        Ok(())
    }

    /// How many were started.
    pub(crate) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether the end of every rank has been told.
    pub(crate) fn all_ended(&self) -> bool {
        self.ranks.iter().all(|rank| rank.told)
    }

    /// The next thing that happens within `patience`.
    pub(crate) fn next(&mut self, patience: Duration) -> Option<Event> {
        let end = Instant::now() + patience;
        loop {
            if signals::received().is_some() && self.kill_at.is_none() {
                self.end_all();
            }
            if self.kill_at.is_some_and(|at| Instant::now() > at) {
                self.kill_all();
            }
            match self.lines.recv_timeout(POLL) {
                Ok(FromReader::Line(rank, text)) => return Some(Event::Line { rank, text }),
                Ok(FromReader::End(rank)) => self.ranks[rank].open_pipes -= 1,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            for (number, rank) in self.ranks.iter_mut().enumerate() {
                if rank.status.is_none() {
                    rank.status = rank.process.status().map(|status| (status, Instant::now()));
                }
                let Some((status, since)) = rank.status else { continue };
                if !rank.told && (rank.open_pipes == 0 || since.elapsed() > PIPE_GRACE) {
                    rank.told = true;
                    return Some(Event::Exit { rank: number, status });
                }
            }
            if Instant::now() >= end {
                return None;
            }
        }
    }

    /// Kills a rank, and what it has started (SIGKILL).
    pub(crate) fn kill(&mut self, rank: usize) {
        self.signal(rank, Signal::KILL);
    }

    /// Kills every rank that still runs.
    pub(crate) fn kill_all(&mut self) {
        for rank in &self.ranks {
            rank.process.signal(Signal::KILL);
        }
    }

    /// Sends a signal to a rank, and to what it has started. What has ended is left alone.
    pub(crate) fn signal(&mut self, rank: usize, signal: Signal) {
        self.ranks[rank].process.signal(signal);
    }

    /// Asks every rank that still runs to end (SIGTERM); [`Self::next`] kills those that do not within 5 s.
    pub(crate) fn end_all(&mut self) {
        for rank in &self.ranks {
            rank.process.signal(Signal::TERM);
            // A stopped one takes no other signal but SIGKILL.
            rank.process.signal(Signal::CONT);
        }
        self.kill_at = Some(Instant::now() + GRACE);
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        // All before the first is waited for.
        self.kill_all();
    }
}

/// Sends a pipe's lines until it ends.
fn read_lines(rank: usize, pipe: impl Read, sender: &Sender<FromReader>) {
    let mut pipe = BufReader::new(pipe);
    loop {
        let mut line = Vec::new();
        match pipe.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {
                if line.last() == Some(&b'\n') {
                    line.pop();
                }
                if sender.send(FromReader::Line(rank, line)).is_err() {
                    return;
                }
            }
        }
    }
    let _ = sender.send(FromReader::End(rank));
}

/// The exit code that a shell would show: the program's own, or 128 and the signal's number.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1)
}

/// How a process ended, in words.
pub(crate) fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `sh -c script` with `$RANK` set.
    pub(crate) fn shell(rank: usize, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("RANK", rank.to_string());
        command
    }

    /// Everything that happens until all have ended: lines by rank, and exit codes.
    fn run(mut ranks: Ranks) -> (Vec<Vec<String>>, Vec<i32>) {
        let mut lines = vec![Vec::new(); ranks.len()];
        let mut codes = vec![-1; ranks.len()];
        let start = Instant::now();
        while !ranks.all_ended() {
            assert!(start.elapsed() < Duration::from_secs(20), "ranks hang; so far {lines:?}, {codes:?}");
            match ranks.next(Duration::from_millis(100)) {
                Some(Event::Line { rank, text }) => lines[rank].push(String::from_utf8_lossy(&text).into_owned()),
                Some(Event::Exit { rank, status }) => codes[rank] = exit_code(status),
                None => {}
            }
        }
        (lines, codes)
    }

    #[test]
    fn every_line_of_a_rank_comes_before_its_end_and_keeps_its_order() {
        let script = "i=0; while [ $i -lt 50 ]; do echo $RANK:$i; i=$((i+1)); done; printf last; exit $RANK";
        let ranks = Ranks::start((0..3).map(|rank| shell(rank, script))).unwrap();
        let (lines, codes) = run(ranks);
        for (rank, lines) in lines.iter().enumerate() {
            let mut expected: Vec<String> = (0..50).map(|i| format!("{rank}:{i}")).collect();
            expected.push("last".into());
            assert_eq!(lines, &expected);
        }
        assert_eq!(codes, [0, 1, 2]);
    }

    #[test]
    fn a_killed_rank_ends_by_its_signal_and_the_others_live() {
        let mut ranks = Ranks::start([shell(0, "exec sleep 60"), shell(1, "sleep 0.2; echo alive")]).unwrap();
        ranks.kill(0);
        let (lines, codes) = run(ranks);
        assert_eq!(codes, [137, 0]);
        assert_eq!(lines[1], ["alive"]);
    }

    #[test]
    fn ranks_are_asked_to_end_before_they_are_killed() {
        let script = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
        let mut ranks = Ranks::start([shell(0, script)]).unwrap();
        assert!(matches!(ranks.next(Duration::from_secs(10)), Some(Event::Line { text, .. }) if text == b"ready"));
        ranks.end_all();
        let (lines, codes) = run(ranks);
        // The shell may say first that its `sleep` was ended, too.
        assert_eq!((lines[0].last().map(String::as_str), codes), (Some("bye"), vec![3]));
    }

    #[test]
    fn a_stopped_rank_says_nothing_until_it_continues() {
        let mut ranks = Ranks::start([shell(0, "while :; do echo here; sleep 0.02; done")]).unwrap();
        assert!(ranks.next(Duration::from_secs(10)).is_some());
        ranks.signal(0, Signal::STOP);
        let start = Instant::now();
        while ranks.next(Duration::from_millis(500)).is_some() {
            assert!(start.elapsed() < Duration::from_secs(20), "it goes on");
        }
        ranks.signal(0, Signal::CONT);
        assert!(ranks.next(Duration::from_secs(10)).is_some());
    }

    #[test]
    fn a_grandchild_that_holds_the_pipe_does_not_hold_up_the_end() {
        let start = Instant::now();
        let (_, codes) = run(Ranks::start([shell(0, "sleep 15 & exit 4")]).unwrap());
        assert_eq!(codes, [4]);
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn dropping_ends_what_was_started() {
        let mut ranks = Ranks::start([shell(0, "echo $$; exec sleep 60")]).unwrap();
        let Some(Event::Line { text, .. }) = ranks.next(Duration::from_secs(10)) else { panic!("no line") };
        let id = String::from_utf8(text).unwrap();
        drop(ranks);
        let alive = Command::new("sh").args(["-c", "kill -0 $0", &id]).stderr(Stdio::null()).status().unwrap();
        assert!(!alive.success(), "process {id} still runs");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let Err(e) = Ranks::start([Command::new("/no/such/program")]) else { panic!("started") };
        assert!(e.starts_with("cannot start /no/such/program: "), "{e}");
    }
}
