//! Signals: those that ask this command to end, and those that it sends to the process groups of ranks.
//!
//! Each rank leads a process group of its own, so that a signal to it reaches whatever it has started, too. A terminal's
//! Ctrl-C then reaches this command alone, which has to end the ranks: [`received`] says when. While no rank runs,
//! signals do what they do to any program.
//!
//! What a rank prints, and when ranks are to be ended, is decided elsewhere.

use std::io::{IsTerminal, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

pub(crate) use rustix::process::Signal;

use crate::Result;

/// What the handlers set and read.
struct Watch {
    /// The first signal that came while ranks ran; 0 for none.
    received: Arc<AtomicUsize>,
    /// Whether no rank runs.
    idle: Arc<AtomicBool>,
    /// How many run.
    running: Mutex<usize>,
}

/// The handlers, registered when the first rank is started.
static WATCH: LazyLock<Result<Watch>> = LazyLock::new(|| {
    let watch = Watch { received: Arc::default(), idle: Arc::new(AtomicBool::new(true)), running: Mutex::default() };
    let mut signals = vec![SIGINT, SIGTERM];
    // nohup(1) leaves no terminal, and whoever uses it wants the command to outlive one.
    if std::io::stdin().is_terminal() || std::io::stdout().is_terminal() || std::io::stderr().is_terminal() {
        signals.push(SIGHUP);
    }
    for signal in signals {
        let number = usize::try_from(signal).map_err(|e| e.to_string())?;
        flag::register_conditional_default(signal, Arc::clone(&watch.idle))
            .and_then(|_| flag::register_usize(signal, Arc::clone(&watch.received), number))
            .map_err(|e| format!("cannot watch for signal {signal}: {e}"))?;
    }
    Ok(watch)
});

/// The signal, if any, that asked this command to end while ranks ran.
pub(crate) fn received() -> Option<u8> {
    let watch = WATCH.as_ref().ok()?;
    u8::try_from(watch.received.load(Ordering::Relaxed)).ok().filter(|&signal| signal > 0)
}

/// What a command says that was asked to end by `signal`.
pub(crate) fn describe(signal: u8) -> String {
    let name = match i32::from(signal) {
        SIGINT => "SIGINT".into(),
        SIGTERM => "SIGTERM".into(),
        SIGHUP => "SIGHUP".into(),
        other => format!("signal {other}"),
    };
    format!("ended by {name}, and all ranks with it")
}

/// A child process that leads a process group of its own. Dropping it kills the group, whatever is left of it.
pub(crate) struct Leader {
    child: Child,
    /// The process's and the group's id. No other gets it while this lives: the process is not reaped until then.
    id: Pid,
    status: Option<ExitStatus>,
}

impl Leader {
    /// Starts a process. An error if this command was asked to end.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let watch = WATCH.as_ref().map_err(Clone::clone)?;
        if let Some(signal) = received() {
            return Err(describe(signal));
        }
        watch.count(|running| running + 1);
        let child = command.process_group(0).spawn();
        let child = child.inspect_err(|_| watch.count(|running| running - 1));
        let child = child.map_err(|e| format!("cannot start {}: {e}", command.get_program().display()))?;
        let id = Pid::from_child(&child);
        Ok(Self { child, id, status: None })
    }

    /// Its standard output and standard error, where they are piped: once.
    pub(crate) fn pipes(&mut self) -> impl Iterator<Item = Box<dyn Read + Send>> {
        let stdout = self.child.stdout.take().map(|pipe| Box::new(pipe) as _);
        let stderr = self.child.stderr.take().map(|pipe| Box::new(pipe) as _);
        [stdout, stderr].into_iter().flatten()
    }

    /// How the process ended; `None` while it runs.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let ended = waitid(WaitId::Pid(self.id), options).ok().flatten()?;
            // As wait(2) puts it: the exit code in the second byte, or the signal in the first.
            let raw = ended.exit_status().map(|code| code << 8).or(ended.terminating_signal());
            self.status = raw.map(ExitStatus::from_raw);
        }
        self.status
    }

    /// Sends a signal to the whole group. What has ended is left alone.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.id, signal);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        if let Ok(watch) = WATCH.as_ref() {
            watch.count(|running| running - 1);
        }
    }
}

impl Watch {
    /// Changes the number of running ranks.
    fn count(&self, change: impl Fn(usize) -> usize) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = change(*running);
        self.idle.store(*running == 0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use super::*;

    fn shell(script: &str) -> Leader {
        let mut command = Command::new("sh");
        Leader::start(command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped())).unwrap()
    }

    fn ended(leader: &mut Leader) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = leader.status() {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_status_is_that_of_wait() {
        let mut codes = ["exit 0", "exit 7", "exit 255"].map(shell);
        assert_eq!(codes.each_mut().map(|leader| ended(leader).code()), [Some(0), Some(7), Some(255)]);
        let mut killed = shell("kill -9 $$");
        assert_eq!(ended(&mut killed).signal(), Some(9));
        // Again: the same.
        assert_eq!(killed.status().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_signal_reaches_what_the_process_has_started_also_after_its_end() {
        for end in ["wait", "exit 0"] {
            let mut leader = shell(&format!("sleep 60 & echo started; {end}"));
            let mut pipe = leader.pipes().next().unwrap();
            let mut line = [0; 8];
            pipe.read_exact(&mut line).unwrap();
            assert_eq!(&line, b"started\n");
            if end == "exit 0" {
                ended(&mut leader);
            }
            leader.signal(Signal::TERM);
            // Ends once nobody holds the pipe: the grandchild is gone.
            assert_eq!(pipe.read(&mut line).unwrap(), 0);
        }
    }

    #[test]
    fn dropping_kills_the_group() {
        let mut leader = shell("trap '' TERM; (trap '' TERM; echo started; exec sleep 60) & wait");
        let mut pipe = leader.pipes().next().unwrap();
        pipe.read_exact(&mut [0; 8]).unwrap();
        drop(leader);
        assert_eq!(pipe.read(&mut [0; 8]).unwrap(), 0);
    }
}
