//! `cargo xtask rdma-vm`: a small virtual machine whose kernel has Soft-RoCE, so that RDMA code meets a real verbs stack
//! on a machine that has none.
//!
//! The kernel is the distribution's ([`image`]), emulated by QEMU ([`machine`]); inside are this machine's files,
//! read-only below a scratch layer, devices rxe0, rxe1 … joined by virtual cables, and a command, or the RDMA tests one
//! after the other ([`guest`]). What those tests are is in [`parts`], what this machine must have for all that in
//! [`needs`].

mod guest;
mod image;
mod machine;
mod needs;
mod parts;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use crate::{Result, cargo};
use machine::Event;
pub(crate) use needs::missing;
pub(crate) use parts::Programs;

/// Options of `rdma-vm`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// How many devices: rxe0, rxe1 … with addresses 10.99.0.1, 10.99.0.2 …
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u8).range(1..=16), requires = "command")]
    pub(crate) devices: u8,
    /// How much of what every device sends is lost, in percent
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = percent, requires = "command")]
    pub(crate) loss: f64,
    /// How long the command, or each of the tests, may run, in seconds [default: 300, or the test's own]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) timeout: Option<u32>,
    /// The command to run inside, in the current folder, as root; without one, the RDMA tests run
    ///
    /// It sees this machine's files (what it writes is lost), the variables NUVEC_*, MLX_* and JACCL_*, the devices,
    /// and the loopback. `rdma-vm-link cut 1` there pulls rxe1's cable, `rdma-vm-link join 1` plugs it in again,
    /// `rdma-vm-link loss 1` loses 1 % of every device's packets.
    #[arg(last = true, num_args = 1.., value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Something that runs in the machine.
#[derive(Debug, Clone, PartialEq, Default)]
struct Part {
    /// What it shows.
    name: String,
    /// The program and its arguments.
    command: Vec<String>,
    /// How many devices must be there; there may be more.
    devices: usize,
    /// How much of what every device sends is lost, in percent.
    loss: f64,
    /// How long it may take.
    limit: Duration,
    /// What it prints is a result, shown when it passes too.
    measures: bool,
}

/// The command itself: its exit code is the command's.
pub(crate) fn main(options: &Options) -> ExitCode {
    let done = match missing() {
        Some(needs) => Err(format!("rdma-vm needs {needs}")),
        None if options.command.is_empty() => {
            let good = Programs::build().and_then(|programs| test(&programs, options.timeout, &mut std::io::stdout()));
            good.map(|good| i32::from(!good))
        }
        None => command(options),
    };
    match done {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command, whose output is shown as it comes, and returns its exit status.
fn command(options: &Options) -> Result<i32> {
    let part = Part {
        name: options.command.join(" "),
        command: options.command.clone(),
        devices: options.devices.into(),
        loss: options.loss,
        limit: Duration::from_secs(options.timeout.unwrap_or(300).into()),
        ..Part::default()
    };
    let image = image::get(&target()?)?;
    let mut out = std::io::stdout();
    let mut status = 1;
    let mut start = Instant::now();
    machine::run(&image, part.devices, std::slice::from_ref(&part), &mut |event| match event {
        Event::Ready => start = Instant::now(),
        // Without a reader the command still runs to its end.
        Event::Output(bytes) => drop(out.write_all(bytes).and_then(|()| out.flush())),
        Event::End(code) => status = code,
    })?;
    if timed_out(status, start.elapsed(), part.limit) {
        eprintln!("error: the command was ended after {} s: --timeout allows it more", part.limit.as_secs());
    }
    Ok(status)
}

/// Runs the RDMA tests in one machine; `out` gets a line for each, and what one that failed printed.
pub(crate) fn tests(programs: &Programs, out: &mut (dyn Write + Send)) -> Result<bool> {
    test(programs, None, out)
}

fn test(programs: &Programs, timeout: Option<u32>, out: &mut (dyn Write + Send)) -> Result<bool> {
    let mut parts = parts::all(programs);
    for part in &mut parts {
        part.limit = timeout.map_or(part.limit, |seconds| Duration::from_secs(seconds.into()));
    }
    let devices = parts.iter().map(|part| part.devices).max().unwrap_or(1);
    let image = image::get(&target()?)?;
    let mut report = Report { parts: &parts, passed: 0, ended: 0, output: Vec::new(), since: Instant::now(), out };
    let ran = machine::run(&image, devices, &parts, &mut |event| report.take(event));
    if ran.is_err() {
        // Whatever the part that did not end has printed.
        let _ = report.out.write_all(&report.output);
    }
    ran.map(|()| report.passed == parts.len())
}

/// What is said about parts as they end.
struct Report<'a> {
    parts: &'a [Part],
    passed: usize,
    ended: usize,
    output: Vec<u8>,
    since: Instant,
    out: &'a mut (dyn Write + Send),
}

impl Report<'_> {
    fn take(&mut self, event: Event<'_>) {
        let elapsed = self.since.elapsed();
        let seconds = elapsed.as_secs_f64();
        // An output that is gone is no reason to stop.
        let _ = match event {
            Event::Output(bytes) => {
                self.output.extend_from_slice(bytes);
                return;
            }
            Event::Ready => writeln!(self.out, "the machine is up ({seconds:.1} s)"),
            Event::End(status) => {
                let part = &self.parts[self.ended];
                self.ended += 1;
                let output = std::mem::take(&mut self.output);
                if status == 0 {
                    self.passed += 1;
                    if part.measures {
                        let _ = self.out.write_all(&output);
                    }
                    writeln!(self.out, "passed   {} ({seconds:.1} s)", part.name)
                } else {
                    let how = if timed_out(status, elapsed, part.limit) {
                        "out of time".into()
                    } else {
                        format!("exit code {status}")
                    };
                    let newline = if output.last().is_none_or(|b| *b == b'\n') { "" } else { "\n" };
                    let _ = self.out.write_all(&output);
                    writeln!(self.out, "{newline}FAILED   {} ({seconds:.1} s): {how}", part.name)
                }
            }
        };
        let _ = self.out.flush();
        self.since = Instant::now();
    }
}

/// Whether a status comes of the limit: 124 is timeout(1)'s, 137 when it had to kill.
fn timed_out(status: i32, elapsed: Duration, limit: Duration) -> bool {
    [124, 137].contains(&status) && elapsed >= limit
}

/// Cargo's target directory.
fn target() -> Result<PathBuf> {
    let mut metadata = cargo::cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = metadata.output().map_err(|e| format!("cannot run cargo: {e}"))?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let target = metadata["target_directory"].as_str().ok_or("cargo metadata names no target directory")?;
    Ok(target.into())
}

fn percent(text: &str) -> Result<f64> {
    let percent = text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "a percentage is a number from 0 to 100".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_shows_its_output_if_it_fails_or_measures() {
        let part = |name: &str| Part { name: name.into(), limit: Duration::from_secs(9), ..Part::default() };
        let parts = [part("a"), part("b"), Part { measures: true, ..part("c") }];
        let mut out = Vec::new();
        let since = Instant::now();
        let mut report = Report { parts: &parts, passed: 0, ended: 0, output: Vec::new(), since, out: &mut out };
        for event in [
            Event::Output(b"x\n"),
            Event::End(0),
            Event::Output(b"why"),
            Event::End(3),
            Event::Output(b"7 s\n"),
            Event::End(0),
        ] {
            report.take(event);
        }
        assert_eq!((report.passed, report.ended), (2, 3));
        let expected = "passed   a (0.0 s)\nwhy\nFAILED   b (0.0 s): exit code 3\n7 s\npassed   c (0.0 s)\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn a_status_is_the_limits_only_if_the_limit_has_passed() {
        let limit = Duration::from_secs(5);
        assert!(timed_out(124, limit, limit) && timed_out(137, limit, limit));
        assert!(!timed_out(124, Duration::from_secs(4), limit) && !timed_out(1, limit, limit));
    }

    #[test]
    fn a_loss_is_a_percentage() {
        assert_eq!((percent("0"), percent("1.5")), (Ok(0.0), Ok(1.5)));
        for text in ["", "-1", "101", "1 %", "NaN", "inf"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }
}
