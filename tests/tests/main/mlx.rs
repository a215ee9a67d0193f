//! Rings of our ranks and unmodified ranks of MLX, from PyPI. The bits expected are those of a ring of MLX alone.
//!
//! Where there is no MLX and it cannot be had, these tests say so in one line and check nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use nuvec_distributed_tests::harness::{Finished, run_ring, start_ring};
use serde_json::json;

/// The release whose ring ours follows.
const MLX: &str = "mlx[cpu]==0.32.4";
/// Longer than any ring here takes on a busy machine. An operation of MLX may wait for ever.
const PATIENCE: Duration = Duration::from_secs(120);
const SEED: &str = "20261201";

/// Our rank.
fn ours() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_mlx_rank"))
}

/// MLX's rank: a Python program.
fn theirs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/main/mlx_rank.py")
}

/// The Python that has MLX, made on first need; `None`, said once, where that is not possible.
fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PYTHON.get_or_init(|| match environment() {
        Ok(python) => Some(python),
        Err(needs) => {
            println!("left out: rings with MLX ranks need {needs}");
            None
        }
    });
    found.as_deref()
}

/// A virtual environment with MLX in the target directory. An error says what is missing.
fn environment() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mlx-0.32.4");
    let (python, whole) = (folder.join("bin/python"), folder.join("whole"));
    std::fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).map_err(|e| format!("a target directory: {e}"))?;
    let lock = std::fs::File::create(folder.with_extension("lock")).map_err(|e| format!("a lock file: {e}"))?;
    lock.lock().map_err(|e| format!("a lock: {e}"))?;
    if whole.exists() {
        return Ok(python);
    }
    let run = |program: &Path, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()),
            Err(e) => Err(e.to_string()),
        }
    };
    run(Path::new("python3"), &["-m", "venv", "--clear", &folder.display().to_string()])
        .map_err(|e| format!("python3 with venv ({e})"))?;
    run(&python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", MLX])
        .map_err(|e| format!("{MLX} from PyPI ({e})"))?;
    std::fs::write(&whole, "").map_err(|e| format!("a file: {e}"))?;
    Ok(python)
}

/// Who a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ours,
    Facade,
    Mlx,
}

/// Every ring of `size` ranks with at least one of each kind.
fn arrangements(size: usize) -> impl Iterator<Item = Vec<Kind>> {
    (1..(1 << size) - 1).map(move |bits: usize| {
        (0..size).map(|rank| if bits >> rank & 1 == 1 { Kind::Mlx } else { Kind::Ours }).collect()
    })
}

type Case = (&'static str, &'static str, usize);

const DTYPES: [(&str, usize); 14] = [
    ("bool", 1),
    ("uint8", 1),
    ("uint16", 2),
    ("uint32", 4),
    ("uint64", 8),
    ("int8", 1),
    ("int16", 2),
    ("int32", 4),
    ("int64", 8),
    ("float16", 2),
    ("bfloat16", 2),
    ("float32", 4),
    ("float64", 8),
    ("complex64", 8),
];
const REDUCTIONS: [&str; 3] = ["all_sum", "all_max", "all_min"];
/// MLX's bound for a further lane, in bytes per segment or rank.
const LANE: usize = 262_144;
const MOST: usize = 8 << 20;

/// The lengths at which something changes: the short ones, and those around each lane's threshold, with `unit` bytes per
/// lane, up to 8 MiB.
fn lengths(n: usize, connections: usize, unit: usize, width: usize) -> (Vec<usize>, Vec<usize>) {
    let mut short = vec![0, 1, n - 1, n, n + 1, 1000];
    short.dedup();
    let thresholds = (1..=2 * connections + 1).map(|lanes| (lanes * unit).div_ceil(width));
    let long = thresholds.flat_map(|at| [at - 1, at, at + 1]).filter(|len| len * width <= MOST);
    (short, long.collect())
}

/// The cases of a ring: all of them, or every pair of operation and type with every short length, and every threshold,
/// where types and reductions take turns.
fn cases(n: usize, connections: usize, exhaustive: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut turn = 0;
    for (operation, unit) in REDUCTIONS.map(|o| (o, n * LANE)).into_iter().chain([("all_gather", LANE)]) {
        let (short, _) = lengths(n, connections, unit, 1);
        cases.extend(DTYPES.iter().flat_map(|&(dtype, _)| short.iter().map(move |&len| (operation, dtype, len))));
        for i in 0..3 * (2 * connections + 1) {
            for (k, &(dtype, width)) in DTYPES.iter().enumerate() {
                let (_, long) = lengths(n, connections, unit, width);
                // Of the reductions one has its turn at each length.
                let due = k == turn % DTYPES.len() && (operation == "all_gather" || operation == REDUCTIONS[i % 3]);
                if let Some(&len) = long.get(i).filter(|_| exhaustive || due) {
                    cases.push((operation, dtype, len));
                }
            }
            turn += 1;
        }
    }
    for operation in ["right", "left"] {
        // A message's cut: at least 1024 bytes for each connection.
        for len in [0, 1, 1023, 1024, 1025, 1024 * connections, 1024 * connections + 1, 100_003] {
            cases.push((operation, "uint8", len));
        }
        cases.extend([(operation, "complex64", 1000), (operation, "bfloat16", 7)]);
    }
    cases
}

/// Runs a ring over `cases`; every rank's checksums.
fn run(python: &Path, ring: &[Kind], connections: usize, cases: &[Case]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("cases.json");
    std::fs::write(&file, json!(cases).to_string()).expect("a file of cases");
    let patience = if cases.len() > 2000 { 10 * PATIENCE } else { PATIENCE };
    let finished = run_ring(Path::new("env"), ring.len(), connections, patience, &|rank, command: &mut Command| {
        match ring[rank] {
            Kind::Mlx => command.arg(python).arg(theirs()),
            Kind::Ours => command.arg(ours()).arg("cases"),
            Kind::Facade => command.arg("NUVEC_DISTRIBUTED_WIRE=mlx").arg(ours()).arg("facade"),
        };
        command.arg(&file).arg(SEED);
    });
    let sums = |(rank, finished): (usize, &Finished)| {
        let done = finished.status.success() && finished.said("@done").count() == 1;
        let sums: Vec<_> = finished.said("@sum").map(str::to_owned).collect();
        let last = &finished.lines[finished.lines.len().saturating_sub(4)..];
        assert!(
            done && sums.len() == cases.len(),
            "{ring:?}, {connections} connections: rank {rank} stopped at case {:?}: {last:?}",
            cases.get(sums.len())
        );
        sums
    };
    finished.iter().enumerate().map(sums).collect()
}

/// Compares a ring's results with MLX's own.
fn compare(ring: &[Kind], connections: usize, cases: &[Case], got: &[Vec<String>], expected: &[Vec<String>]) {
    for (rank, (got, expected)) in got.iter().zip(expected).enumerate() {
        let wrong: Vec<_> = cases.iter().zip(got.iter().zip(expected)).filter(|(_, (g, e))| g != e).collect();
        assert!(
            wrong.is_empty(),
            "{ring:?}, {connections} connections, seed {SEED}: rank {rank} differs from MLX in {} of {} cases, first {:?}",
            wrong.len(),
            cases.len(),
            wrong[0]
        );
    }
}

/// Does `work` with every item, two at a time: ranks of MLX mostly sleep while they connect.
fn in_pairs<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}

/// Every arrangement of 2 to 4 ranks, each with the connections that `connections` gives the i-th.
fn mixed_rings(exhaustive: bool, connections: impl Fn(usize) -> Vec<usize>) {
    let Some(python) = python() else { return };
    let start = Instant::now();
    let all: Vec<_> = (2..=4).flat_map(arrangements).enumerate().collect();
    let rings: Vec<_> = all.iter().flat_map(|(i, ring)| connections(*i).into_iter().map(move |k| (ring, k))).collect();
    let mut shapes: Vec<_> = rings.iter().map(|(ring, k)| (ring.len(), *k)).collect();
    shapes.sort_unstable();
    shapes.dedup();
    let expected = Mutex::new(BTreeMap::new());
    in_pairs(&shapes, |&(n, k)| {
        let cases = cases(n, k, exhaustive);
        let sums = run(python, &vec![Kind::Mlx; n], k, &cases);
        expected.lock().unwrap_or_else(|e| e.into_inner()).insert((n, k), (cases, sums));
    });
    let expected = expected.into_inner().unwrap_or_else(|e| e.into_inner());
    in_pairs(&rings, |&(ring, k)| {
        let (cases, expected) = &expected[&(ring.len(), k)];
        compare(ring, k, cases, &run(python, ring, k, cases), expected);
    });
    let compared: usize = rings.iter().map(|(ring, k)| expected[&(ring.len(), *k)].0.len()).sum();
    println!("{} mixed rings, {compared} cases: MLX's bits; {:.0} s", rings.len(), start.elapsed().as_secs_f64());
}

#[test]
#[ignore = "takes minutes: 22 rings, each beside one of MLX alone; `cargo xtask test --exhaustive` runs it"]
fn every_arrangement_with_mlx_ranks_has_the_bits_of_mlx_alone() {
    mixed_rings(false, |i| vec![i % 3 + 1]);
}

#[test]
#[ignore = "takes about an hour: every arrangement × connections × operation × type × length"]
fn the_full_product_with_mlx_ranks_has_the_bits_of_mlx_alone() {
    mixed_rings(true, |_| vec![1, 2, 3]);
}

#[test]
fn nuvecs_arrays_have_the_bits_of_mlx_in_a_ring_with_it() {
    let Some(python) = python() else { return };
    let ring = [Kind::Facade, Kind::Mlx];
    let mut cases = cases(2, 2, false);
    cases.retain(|(operation, ..)| operation.starts_with("all_"));
    let expected = run(python, &[Kind::Mlx; 2], 2, &cases);
    compare(&ring, 2, &cases, &run(python, &ring, 2, &cases), &expected);
}

#[test]
fn an_mlx_rank_that_is_killed_ends_our_ranks_in_time_and_each_names_a_neighbour() {
    let Some(python) = python() else { return };
    // Sums as our ranks do, until it is killed.
    let script = "import mlx.core as mx\nmx.set_default_device(mx.cpu)\nmx.distributed.init(strict=True, backend='ring')\n\
                  print('@looping', flush=True)\n\
                  while True: mx.eval(mx.distributed.all_sum(mx.ones((1 << 20,))))";
    let adjust = |rank: usize, command: &mut Command| {
        match rank {
            1 => command.arg(python).args(["-c", script]),
            _ => command.arg("NUVEC_DISTRIBUTED_WIRE=mlx").arg(ours()).arg("loop"),
        };
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
        let neighbours = [(rank + 1) % 3, (rank + 2) % 3].map(|n| format!(": rank {n} (127.0.0.1:"));
        assert!(neighbours.iter().any(|n| first.contains(n)), "{first}");
        assert!(again.contains("the group failed earlier"), "{again}");
    }
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

#[test]
fn a_rank_of_the_native_wire_is_refused_by_name() {
    let finished = run_ring(ours(), 2, 1, PATIENCE, &|rank, command| {
        let wire = if rank == 0 { "mlx" } else { "native" };
        command.arg("loop").env("NUVEC_DISTRIBUTED_WIRE", wire).env("NUVEC_DISTRIBUTED_TIMEOUT", "3");
    });
    let error = |rank: usize| finished[rank].said("@error").next().unwrap_or_default().to_owned();
    assert!(error(0).contains("rank 1 (127.0.0.1:") && error(0).contains("speaks nuvec's native wire"), "{}", error(0));
    assert!(error(1).contains("rank 0 (127.0.0.1:"), "{}", error(1));
}
