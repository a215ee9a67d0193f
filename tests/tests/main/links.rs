//! R3: a link that is cut, between two hosts that are network namespaces of this machine.
//!
//! Needs Linux, root and `ip` (Debian: iproute2); elsewhere each test says so in one line and checks nothing. Nothing
//! outside the namespaces made here is changed, and they are removed at the end.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nuvec_distributed_tests::harness::{Hostfile, Ranks};

use super::{PATIENCE, errors, host};

/// The time-out of these rings.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How much later an error may come: a second for the others' word, and what a busy machine takes.
const GRACE: Duration = Duration::from_secs(6);

/// Two namespaces joined by a cable: `eth0` in both. Dropping it removes them.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// `None`, after a line that says what is missing, where there can be none.
    fn new() -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |which: usize| format!("nuvec-cut-{}-{count}-{which}", std::process::id());
        let this = Self { names: [name(0), name(1)] };
        match this.connect() {
            Ok(()) => Some(this),
            Err(why) => {
                // Not captured, as what a test prints is.
                let _ = writeln!(std::io::stderr(), "left out: cutting a link needs Linux, root and `ip` ({why})");
                None
            }
        }
    }

    fn connect(&self) -> Result<(), String> {
        let [a, b] = [self.names[0].as_str(), self.names[1].as_str()];
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["-n", a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b])?;
        for (host, address) in [(a, "10.78.0.1/24"), (b, "10.78.0.2/24")] {
            ip(&["-n", host, "link", "set", "lo", "up"])?;
            ip(&["-n", host, "link", "set", "eth0", "up"])?;
            ip(&["-n", host, "address", "add", address, "dev", "eth0"])?;
        }
        Ok(())
    }

    /// Starts a ring of two with a rank on each host, in the situation that `arguments` say.
    fn start(&self, folder: &Path, arguments: &[&str]) -> Ranks {
        let hostfile = folder.join("hosts.json");
        std::fs::write(&hostfile, r#"[["10.78.0.1:5000", "10.78.0.1:5001"], ["10.78.0.2:5000", "10.78.0.2:5001"]]"#)
            .unwrap();
        let loopback = Hostfile::new(2, 2);
        let command = |rank: usize| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.names[rank]]).arg(host()).args(arguments);
            // For the rest of the environment; the addresses are those of the hosts.
            loopback.apply(&mut command, rank);
            command.env("MLX_HOSTFILE", &hostfile).env("NUVEC_DISTRIBUTED_TIMEOUT", TIMEOUT.as_secs().to_string());
            command
        };
        Ranks::start([command(0), command(1)])
    }

    /// Cuts the link: the second host's device goes down, and the first host's loses its carrier.
    fn cut(&self) {
        ip(&["-n", &self.names[1], "link", "set", "eth0", "down"]).unwrap();
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// Runs `ip`; an error carries what it said.
fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

/// Asserts that both ranks end with an error that names the other.
fn assert_both_name_the_other(ranks: Ranks, what: &str) {
    for (rank, error) in errors(&ranks.finish(PATIENCE)).iter().enumerate() {
        assert!(error.contains(&format!("rank {} (", 1 - rank)), "{what}: rank {rank}: {error:?}");
    }
}

#[test]
fn a_link_that_is_cut_while_sending_is_an_error_within_the_time_out() {
    let Some(hosts) = Hosts::new() else { return };
    for situation in [&["steady", "60000"][..], &["stream"]] {
        let folder = tempfile::tempdir().unwrap();
        let mut ranks = hosts.start(folder.path(), situation);
        (0..2).for_each(|rank| ranks.wait_for(rank, "@looping", Duration::from_secs(20)));
        hosts.cut();
        let start = Instant::now();
        (0..2).for_each(|rank| ranks.wait_for(rank, "@error", Duration::from_secs(20)));
        assert!(start.elapsed() < TIMEOUT + GRACE, "{situation:?}: it took {:?}", start.elapsed());
        assert_both_name_the_other(ranks, situation[0]);
        ip(&["-n", &hosts.names[1], "link", "set", "eth0", "up"]).unwrap();
    }
}

#[test]
fn the_first_call_after_a_link_was_cut_is_an_error_within_the_time_out() {
    let Some(hosts) = Hosts::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let mut ranks = hosts.start(folder.path(), &["idle", go.to_str().unwrap()]);
    (0..2).for_each(|rank| ranks.wait_for(rank, "@idle", Duration::from_secs(20)));
    hosts.cut();
    // Long enough that each rank has missed the other's reports.
    std::thread::sleep(TIMEOUT);
    std::fs::write(&go, "").unwrap();
    let start = Instant::now();
    (0..2).for_each(|rank| ranks.wait_for(rank, "@error", Duration::from_secs(20)));
    assert!(start.elapsed() < TIMEOUT + GRACE, "it took {:?}", start.elapsed());
    assert_both_name_the_other(ranks, "idle");
}
