//! Rings of our ranks and unmodified ranks of MLX, from PyPI: what `mixed`, which compares their bits, leaves out.
//!
//! Where there is no MLX and it cannot be had, these tests say so in one line and check nothing.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use nuvec_distributed_tests::harness::{Finished, Hostfile, Ranks, run_ring, start_ring};
use nuvec_distributed_tests::mlx::{self, Case, Kind, PATIENCE, World};
use nuvec_distributed_tests::report::is_port_taken;

/// Our rank.
fn ours() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_mlx_rank"))
}

/// MLX and our rank; `None`, said once, where there is no MLX.
fn world() -> Option<&'static World> {
    static WORLD: OnceLock<Option<World>> = OnceLock::new();
    let world = WORLD.get_or_init(|| {
        let world = World::new(Path::new(env!("CARGO_TARGET_TMPDIR")), ours());
        world.map_err(|needs| println!("left out: rings with MLX ranks need {needs}")).ok()
    });
    world.as_ref()
}

/// A rank of MLX that sums for ever, once it has joined.
fn endless(python: &Path, command: &mut Command) {
    let script = "import mlx.core as mx\nmx.set_default_device(mx.cpu)\nmx.distributed.init(strict=True, backend='ring')\n\
                  print('@looping', flush=True)\n\
                  while True: mx.eval(mx.distributed.all_sum(mx.ones((1 << 20,))))";
    command.arg(python).args(["-c", script]);
}

/// A rank of ours on MLX's wire that does so until it fails.
fn ours_endless(command: &mut Command) {
    command.arg("NUVEC_DISTRIBUTED_WIRE=mlx").arg(ours()).arg("loop");
}

#[test]
fn nuvecs_arrays_have_the_bits_of_mlx_in_a_ring_with_it() {
    let Some(world) = world() else { return };
    let all = mlx::product(2, 2);
    let mut due: Vec<&Case> = all.iter().filter(|case| (0..2).any(|which| mlx::is_due(case, 2, which, 2))).collect();
    due.retain(|case| case.operation.starts_with("all_"));
    let expected = world.run(&[Kind::Mlx; 2], 2, &due).unwrap();
    let expected: Vec<Vec<_>> = expected.iter().map(|sums| sums.iter().collect()).collect();
    mlx::compare(&due, &world.run(&[Kind::Facade, Kind::Mlx], 2, &due).unwrap(), &expected).unwrap();
}

#[test]
fn a_rank_that_comes_ten_seconds_late_is_waited_for() {
    let Some(world) = world() else { return };
    let all = mlx::product(2, 1);
    let case: Vec<_> =
        all.iter().filter(|c| (c.operation, c.dtype, c.elements) == ("all_sum", "float32", 1000)).collect();
    assert_eq!(case.len(), 1);
    // Of each kind, both the rank that accepts first and the one that dials first.
    thread::scope(|scope| {
        for (ring, late) in
            [[Kind::Ours, Kind::Mlx], [Kind::Mlx, Kind::Ours]].into_iter().flat_map(|r| [(r, 0), (r, 1)])
        {
            let case = &case;
            scope.spawn(move || {
                let start = Instant::now();
                let sums = world.run_late(&ring, 1, case, Some((late, Duration::from_secs(10))));
                let sums = sums.unwrap_or_else(|e| panic!("{ring:?}, rank {late} late: {e}"));
                assert_eq!(sums[0], sums[1]);
                assert!(start.elapsed() >= Duration::from_secs(10));
            });
        }
    });
}

#[test]
fn an_mlx_rank_that_is_killed_ends_our_ranks_in_time_and_each_names_a_neighbour() {
    let Some(world) = world() else { return };
    let adjust = |rank: usize, command: &mut Command| match rank {
        // Sums as our ranks do, until it is killed.
        1 => endless(&world.python, command),
        _ => ours_endless(command),
    };
    let (mut running, _hostfile) = start_ring(Path::new("env"), 3, 1, PATIENCE, &adjust, "@looping");
    running.kill(1);
    let killed = Instant::now();
    for rank in [0, 2] {
        running.wait_for(rank, "@again", Duration::from_secs(20));
    }
    assert!(killed.elapsed() < Duration::from_secs(20));
    for (rank, finished) in running.finish(PATIENCE).iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let (first, again) = (finished.said("@first").next().unwrap(), finished.said("@again").next().unwrap());
        assert!(names_a_neighbour(first, rank, 3), "{first}");
        assert!(again.contains("the group failed earlier"), "{again}");
    }
}

/// Whether an error of `rank` names one of its neighbours in a ring of `n`, with its address.
fn names_a_neighbour(error: &str, rank: usize, n: usize) -> bool {
    [(rank + 1) % n, (rank + n - 1) % n].iter().any(|of| error.contains(&format!(": rank {of} (127.0.0.1:")))
}

#[test]
fn the_wires_limits_are_errors_that_say_so_and_leave_the_ring_alive() {
    let finished = run_ring(ours(), 4, 1, PATIENCE, &|_, command| {
        command.arg("limits");
    });
    for rank in &finished {
        let said = |word: &str| rank.said(word).next().unwrap_or_default().to_owned();
        assert!(rank.status.success(), "{rank:?}");
        assert!(said("@key").contains("MLX's wire has no key"), "{rank:?}");
        assert!(said("@split").contains("does not split groups (as MLX's ring)"), "{rank:?}");
        assert!(said("@barrier").contains("MLX's wire has none"), "{rank:?}");
        assert!(said("@across").contains("is no neighbour of rank"), "{rank:?}");
        assert_eq!((said("@total"), said("@status")), ("4.0".into(), "1 ranks, Some(1) operations".into()));
        assert!(said("@closed").contains("closed by this process"), "{rank:?}");
    }
}

/// What a rank speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Native,
    MlxWire,
    Mlx,
}

/// The errors of our ranks in a ring whose ranks do not all speak the same; a rank of MLX has none here, and is ended. What
/// no rank of ours survives, it need not find out while forming.
fn errors_of_a_ring_that_cannot_be(ring: &[Speaks]) -> Vec<String> {
    let python = || &world().expect("looked for before").python;
    let adjust = |rank: usize, command: &mut Command| match ring[rank] {
        Speaks::Mlx => endless(python(), command),
        Speaks::MlxWire => ours_endless(command),
        Speaks::Native => {
            command.arg(ours()).arg("loop");
        }
    };
    for _ in 0..5 {
        let hostfile = Hostfile::new(ring.len(), 1);
        let mut running = Ranks::start((0..ring.len()).map(|rank| {
            let mut command = Command::new("env");
            hostfile.apply(&mut command, rank);
            // Longer than Python takes to load MLX, several times at once on a busy machine.
            command.arg("NUVEC_DISTRIBUTED_TIMEOUT=20");
            adjust(rank, &mut command);
            command
        }));
        // An error while forming, or of the first sum.
        let ended = |lines: &[String]| {
            lines.iter().find_map(|l| l.strip_prefix("@error ").or(l.strip_prefix("@first ")).map(str::to_owned))
        };
        let end = Instant::now() + PATIENCE;
        let errors: Vec<String> = (0..ring.len())
            .map(|rank| {
                loop {
                    match ended(running.lines(rank)) {
                        _ if ring[rank] == Speaks::Mlx => break String::new(),
                        Some(error) => break error,
                        None => assert!(Instant::now() < end, "{ring:?}: rank {rank} hangs: {:?}", running.lines(rank)),
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            })
            .collect();
        (0..ring.len()).for_each(|rank| running.kill(rank));
        if !errors.iter().any(|e| is_port_taken(e)) {
            return errors;
        }
    }
    panic!("5 times in a row a port was taken");
}

#[test]
fn ranks_of_the_native_wire_and_of_mlxs_end_with_an_error_that_says_so() {
    use Speaks::{Mlx, MlxWire, Native};
    let kinds = if world().is_some() { vec![Native, MlxWire, Mlx] } else { vec![Native, MlxWire] };
    let mut rings: Vec<Vec<Speaks>> = vec![Vec::new()];
    for n in 1..=3 {
        let shorter: Vec<_> = rings.iter().filter(|ring| ring.len() == n - 1).cloned().collect();
        rings.extend(shorter.iter().flat_map(|ring| kinds.iter().map(|kind| [&ring[..], &[*kind]].concat())));
    }
    // A native rank among others, at every place.
    rings.retain(|ring| ring.contains(&Native) && ring.iter().any(|speaks| *speaks != Native));
    assert_eq!(rings.len(), if kinds.len() == 3 { 4 + 18 } else { 2 + 6 });
    let next = std::sync::Mutex::new(rings.into_iter());
    thread::scope(|scope| {
        // They mostly wait for their time-outs.
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some(ring) = { next.lock().unwrap_or_else(|e| e.into_inner()).next() } {
                    judge(&ring, &errors_of_a_ring_that_cannot_be(&ring));
                }
            });
        }
    });
}

/// Every rank of ours has failed and named a neighbour, and who meets another wire at first hand says so.
fn judge(ring: &[Speaks], errors: &[String]) {
    use Speaks::{Mlx, MlxWire, Native};
    let n = ring.len();
    for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| ring[*rank] != Mlx) {
        let (right, left) = (ring[(rank + 1) % n], ring[(rank + n - 1) % n]);
        let says: &[&str] = match ring[rank] {
            MlxWire if left == Native => &["speaks nuvec's native wire"],
            // It took the connection, and nobody on this wire can tell why it ended it, or another rank did; or it was gone
            // before this rank came.
            MlxWire if right == Native => {
                &["native wire", "closed the connection", "broke the connection", "sent nothing", "connection refused"]
            }
            Native if right != Native => &["is it MLX?"],
            _ => &[""],
        };
        assert!(says.iter().any(|says| error.contains(says)), "{ring:?}: {error}");
        assert!(names_a_neighbour(error, rank, n), "{ring:?}: {error}");
    }
}

/// Runs `mlx.launch` from PyPI with a program of ours.
fn launch(world: &World, n: usize, program: &str) -> Finished {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for _ in 0..5 {
        let hostfile = Hostfile::new(n, 1);
        let nodes: Vec<Vec<String>> =
            serde_json::from_slice(&std::fs::read(hostfile.path()).expect("a hostfile")).expect("a list");
        // It counts up from there; what it puts into files is not removed by it.
        let port = nodes[0][0].rsplit(':').next().expect("a port");
        let mut command = Command::new(world.python.with_file_name("mlx.launch"));
        hostfile.apply(&mut command, 0);
        for variable in ["MLX_HOSTFILE", "MLX_RANK"] {
            command.env_remove(variable);
        }
        command.env("TMPDIR", folder.path());
        command.args(["--backend", "ring", "-n", &n.to_string(), "-p", port, "--", program]);
        let finished = Ranks::start([command]).finish(PATIENCE).remove(0);
        if !finished.lines.iter().any(|line| is_port_taken(line)) {
            return finished;
        }
    }
    panic!("5 times in a row a port was taken");
}

#[test]
fn mlx_launch_starts_our_example_as_it_is() {
    let Some(world) = world() else { return };
    for (n, total) in [(1, "[1.0, 0.0]"), (2, "[2.0, 1.0]"), (3, "[3.0, 3.0]")] {
        let finished = launch(world, n, env!("CARGO_BIN_EXE_all_sum"));
        for rank in 0..n {
            let begin = format!("rank {rank} of {n}: ");
            assert!(finished.said(&begin).any(|line| line.ends_with(&format!("is {total}"))), "{finished:?}");
        }
        assert!(finished.status.success(), "{finished:?}");
    }
}
