//! The RDMA tests: the programs that they run, and what each of them is. Running them is
//! [`rdma_vm`](super)'s business.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Part;
use crate::{Result, cargo};

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
        let rank = cargo::program(executables, "rank")?;
        Ok(Self {
            xtask: this_program(&rank)?,
            rank,
            conformance: cargo::program(executables, "conformance")?,
            build_ups: cargo::program(executables, "build_ups")?,
            perftest: cargo::program(executables, "perftest")?,
        })
    }

    pub(super) fn build() -> Result<Self> {
        let packages = ["-p", "nuvec-distributed-tests", "-p", "nuvec-transport-rdma"];
        let arguments = ["build", "--profile", "ci", "--bin", "rank", "--examples"];
        Self::among(&cargo::build(&[&arguments[..], &packages[..]].concat())?)
    }
}

/// Where this program is. One that was built anew since it began, as a continuous integration's is, is no longer there:
/// then it is a copy in the folder of `beside`.
fn this_program(beside: &Path) -> Result<PathBuf> {
    let failed = |e: std::io::Error| format!("cannot find this program: {e}");
    let program = std::env::current_exe().map_err(failed)?;
    if program.exists() {
        return Ok(program);
    }
    let copy = beside.with_file_name("xtask-of-rdma-vm");
    std::fs::copy("/proc/self/exe", &copy).map_err(failed)?;
    Ok(copy)
}

/// The RDMA tests. All share one machine, and each begins with all cables plugged in.
pub(super) fn all(programs: &Programs) -> Vec<Part> {
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
    parts.push(Part {
        name: "ranks that end right after their last sum, 5 % of the packets lost".into(),
        command: vec!["sh".into(), "-euc".into(), LAST_SUMS.into(), programs.rank.display().to_string()],
        devices: 3,
        loss: 5.0,
        limit: minutes(5),
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

/// Ranks that have nothing more to do after one sum, several times: $0 is their program.
const LAST_SUMS: &str = r#"
export MLX_IBV_DEVICES=/tmp/devices.json MLX_JACCL_COORDINATOR=127.0.0.1:29999
echo '[[null, "rxe0", "rxe0"], ["rxe1", null, "rxe1"], ["rxe2", "rxe2", null]]' >$MLX_IBV_DEVICES
for queue_pairs in rc uc rc uc rc uc rc uc rc uc; do
    export NUVEC_DISTRIBUTED_QUEUE_PAIRS=$queue_pairs
    ranks=
    for rank in 0 1 2; do
        MLX_RANK=$rank "$0" check --seed 1 --quick --sizes 40000 --only all_sum/float32 & ranks="$ranks $!"
    done
    for rank in $ranks; do wait $rank; done
done
"#;

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
    // Two ends of a ping-pong, which meet over the loopback; `kind` is the queue pair's, the rest are options.
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
        let parts = all(&programs);
        let names: std::collections::BTreeSet<_> = parts.iter().map(|part| &part.name).collect();
        assert_eq!(names.len(), parts.len());
        for part in &parts {
            assert!(!part.command.is_empty() && part.devices > 0 && !part.limit.is_zero(), "{part:?}");
        }
    }
}
