//! `cargo xtask rdma-vm`: a small virtual machine whose kernel has Soft-RoCE, so that RDMA code meets a real verbs stack
//! on a machine that has none.
//!
//! The kernel is the distribution's ([`image`]), emulated by QEMU ([`machine`]); inside are this machine's files,
//! read-only below a scratch layer, devices rxe0, rxe1 … joined by virtual cables, and a command, or the RDMA tests one
//! after the other ([`guest`]). What those tests are is the list [`parts`].

mod guest;
mod image;
mod machine;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use crate::{Result, cargo};
use machine::Event;

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

/// The programs that the RDMA tests run, built outside.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// This program.
    xtask: PathBuf,
    rank: PathBuf,
    /// Examples of `transport-rdma`.
    conformance: PathBuf,
    build_ups: PathBuf,
    perftest: PathBuf,
}

impl Programs {
    /// Those among `executables`.
    pub(crate) fn among(executables: &[cargo::Executable]) -> Result<Self> {
        Ok(Self {
            xtask: std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?,
            rank: cargo::program(executables, "rank")?,
            conformance: cargo::program(executables, "conformance")?,
            build_ups: cargo::program(executables, "build_ups")?,
            perftest: cargo::program(executables, "perftest")?,
        })
    }

    fn build() -> Result<Self> {
        let packages = ["-p", "nuvec-distributed-tests", "-p", "nuvec-transport-rdma"];
        let arguments = ["build", "--profile", "ci", "--bin", "rank", "--examples"];
        Self::among(&cargo::build(&[&arguments[..], &packages[..]].concat())?)
    }
}

/// The RDMA tests. All share one machine, and each begins with all cables plugged in.
fn parts(programs: &Programs) -> Vec<Part> {
    let mut parts = machine_parts();
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let mut example = |name: &str, program: &Path, measures: bool| {
        // What the kernel has of devices' objects, but for the queue pairs of its own: the same before and after.
        let script = "rdma resource show > /tmp/before; \"$0\" rxe0 rxe1; rdma resource show | diff /tmp/before -";
        parts.push(Part {
            name: name.into(),
            command: vec!["sh".into(), "-euc".into(), script.into(), program.display().to_string()],
            devices: 2,
            limit: minutes(5),
            measures,
            ..Part::default()
        });
    };
    example("the channels' suite, RC and UC", &programs.conformance, false);
    example("1000 groups come and go, and leave nothing", &programs.build_ups, false);
    example("latency and bandwidth beside perftest's", &programs.perftest, true);
    parts.push(Part {
        name: "errors: no such device, a port that is down, memory that may not be locked".into(),
        command: vec!["sh".into(), "-euc".into(), REFUSALS.into(), programs.rank.display().to_string()],
        devices: 2,
        limit: minutes(2),
        ..Part::default()
    });
    // Ranks on devices of their own.
    let mut ring_test = |ranks: usize, options: &str, loss: f64| {
        let program = ["--program".into(), programs.rank.display().to_string()];
        let all = words(&format!("ring-test --transport rdma --quick --ranks {ranks} {options}"));
        let lost = if loss > 0.0 { format!(", {loss} % of the packets lost") } else { String::new() };
        parts.push(Part {
            name: all.join(" ") + &lost,
            command: [vec![programs.xtask.display().to_string()], all, program.to_vec()].concat(),
            devices: ranks,
            loss,
            limit: minutes(10),
            ..Part::default()
        });
    };
    for ranks in [2, 3, 4] {
        ring_test(ranks, "--connections 1 --topology mesh", 0.0);
        ring_test(ranks, "--connections 2 --topology ring", 0.0);
    }
    ring_test(3, "--connections 1 --topology mesh --queue-pairs uc --key", 0.0);
    ring_test(4, "--connections 2 --topology ring --queue-pairs uc", 0.0);
    for kind in ["rc", "uc"] {
        let only = |what: &str| format!("--connections 1 --queue-pairs {kind} {what}");
        ring_test(3, &only("--topology mesh --only mixed"), 1.0);
        ring_test(3, &only("--topology ring --only mixed"), 1.0);
        ring_test(2, &only("--cut 1"), 0.0);
        ring_test(3, &only("--kill 1"), 0.0);
        ring_test(3, &only("--topology ring --kill 0"), 0.0);
    }
    parts
}

/// Launches that must fail, and for the right reason: $0 is the rank's program.
const REFUSALS: &str = r#"
export MLX_IBV_DEVICES=/tmp/devices.json MLX_JACCL_COORDINATOR=127.0.0.1:29999 NUVEC_DISTRIBUTED_TIMEOUT=20
check='check --seed 1 --quick --only all_sum'
says() {
    text=$1; shift
    if MLX_RANK=0 "$@" $check >/tmp/out 2>&1 || ! grep -F "$text" /tmp/out; then cat /tmp/out; exit 1; fi
}
echo '[[null, "rxe9"], ["rxe1", null]]' >$MLX_IBV_DEVICES
says 'there is no RDMA device "rxe9"; there is rxe0, rxe1' "$0"
echo '[[null, "rxe0"], ["rxe1", null]]' >$MLX_IBV_DEVICES
rdma-vm-link cut 0
says 'the port of rxe0 is not active: it is down' "$0"
rdma-vm-link join 0
MLX_RANK=1 "$0" $check >/tmp/other 2>&1 & other=$!
ulimit -l 64
says 'limit on locked memory is 65536 bytes' setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$0"
if wait $other || ! grep -F 'rank 0 (' /tmp/other; then cat /tmp/other; exit 1; fi
"#;

/// What shows that the machine is as the other tests need it.
fn machine_parts() -> Vec<Part> {
    let shell = |name: &str, loss: f64, script: &str| Part {
        name: name.into(),
        command: ["sh", "-euc", script].map(String::from).to_vec(),
        devices: 2,
        loss,
        limit: Duration::from_secs(300),
        ..Part::default()
    };
    // Two ends of a ping-pong, which meet over the loopback; $1 is the kind of queue pair, the rest are options.
    let pair = |kind: &str, options: &str| {
        format!(
            "ibv_{kind}_pingpong -d rxe0 -g 1 {options} & server=$!
            until ibv_{kind}_pingpong -d rxe1 -g 1 {options} 127.0.0.1; do kill -0 $server; sleep 0.2; done
            wait $server"
        )
    };
    vec![
        shell(
            "the machine: root, devices, locked memory, places to write",
            0.0,
            "test $(id -u) = 0; test $(ulimit -l) = unlimited
            for device in rxe0 rxe1; do ibv_devices | grep -w $device; done
            for place in /tmp /dev/shm \"$PWD\"; do touch $place/rdma-vm-probe; done
            test -d /dev/fd; test -d /sys/class/infiniband/rxe0",
        ),
        shell("ibv_rc_pingpong", 0.0, &pair("rc", "-n 100")),
        shell("ibv_uc_pingpong", 0.0, &pair("uc", "-n 100")),
        shell(
            "ibv_rc_pingpong with 5 % of the packets lost",
            5.0,
            &(pair("rc", "-n 100") + "\ntc -s qdisc show dev r0 | grep -E 'dropped [1-9]'"),
        ),
        // It asks for 7 retries, by which Soft-RoCE understands: for ever.
        shell(
            "a cut link holds ibv_rc_pingpong up, and a joined one lets it go on",
            0.0,
            &format!(
                "rdma-vm-link cut 1; grep DOWN /sys/class/infiniband/rxe1/ports/1/state
                (
                {}
                ) & pair=$!
                sleep 5; kill -0 $pair
                rdma-vm-link join 1; grep ACTIVE /sys/class/infiniband/rxe1/ports/1/state
                wait $pair",
                pair("rc", "-n 10")
            ),
        ),
    ]
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
    let mut parts = parts(programs);
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

/// What this machine lacks to run the virtual one, if anything.
pub(crate) fn missing() -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("Linux on x86-64".into());
    }
    let packages = [
        ("qemu-system-x86", find("qemu-system-x86_64").is_some()),
        ("busybox-static", find("busybox").is_some_and(|busybox| is_static(&busybox))),
        ("kmod", find("modprobe").is_some() && find("depmod").is_some()),
        ("iproute2", ["ip", "tc", "rdma"].iter().all(|program| find(program).is_some())),
        ("ibverbs-utils", find("ibv_devices").is_some()),
        ("perftest", find("ib_send_lat").is_some()),
        ("ibverbs-providers", Path::new("/etc/libibverbs.d/rxe.driver").exists()),
        ("util-linux", find("setpriv").is_some()),
    ];
    let lacking: Vec<_> = packages.iter().filter(|(_, there)| !there).map(|(package, _)| *package).collect();
    if !lacking.is_empty() {
        let lacking = lacking.join(" ");
        return Some(format!("more packages (Debian: apt-get install -y --no-install-recommends {lacking})"));
    }
    let kept = target().is_ok_and(|target| image::kept(&target).is_some());
    let known = || {
        let mut show = Command::new("apt-cache");
        let show = show.args(["show", "--quiet", image::META_PACKAGE]).stdin(Stdio::null()).output();
        show.is_ok_and(|output| output.status.success())
    };
    (!kept && !known())
        .then(|| format!("Debian's package {}, to take a kernel from (try: apt-get update)", image::META_PACKAGE))
}

/// Whether a program needs no shared library.
fn is_static(program: &Path) -> bool {
    let ldd = Command::new("ldd").arg(program).stdin(Stdio::null()).output();
    ldd.is_ok_and(|output| !output.status.success())
}

/// The folders that programs are looked for in: an ordinary user's path may lack the administrator's.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    path.push(":/usr/sbin:/sbin");
    path
}

fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&path()).map(|folder| folder.join(program)).find(|file| file.is_file())
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
    fn every_part_has_a_name_of_its_own_a_command_a_device_and_a_limit() {
        let program = |name: &str| PathBuf::from(name);
        let programs = Programs {
            xtask: program("xtask"),
            rank: program("rank"),
            conformance: program("conformance"),
            build_ups: program("build_ups"),
            perftest: program("perftest"),
        };
        let parts = parts(&programs);
        let names: std::collections::BTreeSet<_> = parts.iter().map(|part| &part.name).collect();
        assert_eq!(names.len(), parts.len());
        for part in &parts {
            assert!(!part.command.is_empty() && part.devices > 0 && !part.limit.is_zero(), "{part:?}");
        }
    }

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
