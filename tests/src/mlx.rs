//! Rings of our ranks and unmodified ranks of MLX, from PyPI: who is in them, what they do, and MLX itself.
//!
//! A rank does the cases of a file and prints a checksum of each result: ours is the program `mlx_rank`, MLX's the
//! Python program `mlx_rank.py`. The checksums expected are those of a ring of MLX alone. `mixed` runs every ring.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::harness::{Finished, run_talking_ring};

/// The release whose ring ours follows. `cargo xtask bench` measures the same, in the same environment.
const MLX: &str = "0.32.4";
/// Where the data of the cases begin.
pub const SEED: u64 = 20_261_201;
/// Longer than any one thing takes on a busy machine. An operation of MLX may wait for ever.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// What rings with MLX ranks need: the Python that has MLX, and our rank.
#[derive(Debug, Clone)]
pub struct World {
    /// Python, in an environment with MLX.
    pub python: PathBuf,
    /// The program `mlx_rank`.
    pub ours: PathBuf,
    /// What is preloaded into MLX's ranks.
    calm: Option<PathBuf>,
}

/// Every rank's checksums, in the order of the cases.
pub type Sums = Vec<Vec<String>>;

impl World {
    /// A virtual environment with MLX in `folder`, made on first need, which takes the network; `ours` is our rank. An
    /// error says what is missing.
    pub fn new(folder: &Path, ours: &Path) -> Result<Self, String> {
        let (environment, package) = (folder.join(format!("mlx-{MLX}")), format!("mlx[cpu]=={MLX}"));
        let (python, whole) = (environment.join("bin/python"), environment.join("whole"));
        std::fs::create_dir_all(folder).map_err(|e| format!("a folder {} ({e})", folder.display()))?;
        let lock = std::fs::File::create(folder.join("mlx.lock")).map_err(|e| format!("a lock file ({e})"))?;
        lock.lock().map_err(|e| format!("a lock ({e})"))?;
        if !whole.exists() {
            run(Path::new("python3"), &["-m", "venv", "--clear", &environment.display().to_string()])
                .map_err(|e| format!("Python 3 with venv (Debian: python3-venv): {e}"))?;
            run(&python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &package])
                .map_err(|e| format!("{package} from PyPI: {e}"))?;
            run(&python, &["-c", "import mlx.core"]).map_err(|e| format!("an {package} that runs here: {e}"))?;
            std::fs::write(&whole, "").map_err(|e| format!("a file ({e})"))?;
        }
        Ok(Self { python, ours: ours.to_path_buf(), calm: None })
    }

    /// Has MLX's ranks, in rings of more than two, sleep for a moment where they would ask for bytes again at once, so that
    /// a ring takes a fraction of the time where there are fewer processors than connections. It takes Linux and a C
    /// compiler, and changes nothing that MLX sends; the library is made in `folder`.
    pub fn calm(mut self, folder: &Path) -> Result<Self, String> {
        let library = folder.join("calm.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/calm.c");
        let text = |path: &Path| path.display().to_string();
        run(Path::new("cc"), &["-shared", "-fPIC", "-O2", "-o", &text(&library), &text(&source), "-ldl"])?;
        self.calm = Some(library);
        Ok(self)
    }

    /// Runs `ring` with `connections` to each neighbour over `cases`: every rank's checksums. An error says where a rank
    /// stopped.
    pub fn run(&self, ring: &[Kind], connections: usize, cases: &[&Case]) -> Result<Sums, String> {
        self.run_late(ring, connections, cases, None)
    }

    /// As [`run`](Self::run), where one rank starts so much later than the others.
    pub fn run_late(
        &self,
        ring: &[Kind],
        connections: usize,
        cases: &[&Case],
        late: Option<(usize, Duration)>,
    ) -> Result<Sums, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
        let file = folder.path().join("cases.json");
        let list: Vec<_> = cases.iter().map(|c| json!([c.number, c.operation, c.dtype, c.elements])).collect();
        std::fs::write(&file, json!(list).to_string()).map_err(|e| format!("{}: {e}", file.display()))?;
        let finished = run_talking_ring(Path::new("sh"), ring.len(), connections, PATIENCE, &|rank, command| {
            let delay = late.filter(|late| late.0 == rank).map_or(Duration::ZERO, |late| late.1);
            command.args(["-c", "sleep $0; exec env \"$@\"", &delay.as_secs().to_string()]);
            if let Some(library) = self.calm.as_ref().filter(|_| ring[rank] == Kind::Mlx && ring.len() > 2) {
                command.arg(format!("LD_PRELOAD={}", library.display()));
            }
            match ring[rank] {
                Kind::Mlx => command.arg(&self.python).arg(script()),
                Kind::Ours => command.arg(&self.ours).arg("cases"),
                Kind::Facade => command.arg("NUVEC_DISTRIBUTED_WIRE=mlx").arg(&self.ours).arg("facade"),
            };
            command.arg(&file).arg(SEED.to_string());
        });
        let sums = |(rank, finished): (usize, &Finished)| {
            let sums: Vec<_> = finished.said("@sum").map(str::to_owned).collect();
            if finished.status.success() && finished.said("@done").count() == 1 && sums.len() == cases.len() {
                return Ok(sums);
            }
            let last = &finished.lines[finished.lines.len().saturating_sub(4)..];
            Err(format!("rank {rank} stopped at {:?}: {last:?}", cases.get(sums.len())))
        };
        finished.iter().enumerate().map(sums).collect()
    }
}

/// MLX's rank.
pub fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/mlx_rank.py")
}

/// Runs a program to its end; the last line of what it says if it fails.
fn run(program: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{}: {e}", program.display()))?;
    let last = |text: &[u8]| String::from_utf8_lossy(text).lines().last().map(str::to_owned);
    let text = || last(&output.stderr).or_else(|| last(&output.stdout)).unwrap_or_default();
    if output.status.success() { Ok(()) } else { Err(text()) }
}

/// Who a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Ours, on the bare transport.
    Ours,
    /// Ours, through the facade, with nuvec's arrays.
    Facade,
    /// MLX's.
    Mlx,
}

/// Every ring of `size` ranks with at least one of ours and one of MLX's.
pub fn arrangements(size: usize) -> Vec<Vec<Kind>> {
    let ring = |bits: usize| (0..size).map(|rank| if bits >> rank & 1 == 1 { Kind::Mlx } else { Kind::Ours }).collect();
    (1..(1 << size) - 1).map(ring).collect()
}

/// A ring in letters: `M` is a rank of MLX, `o` one of ours.
pub fn letters(ring: &[Kind]) -> String {
    ring.iter().map(|kind| if *kind == Kind::Mlx { 'M' } else { 'o' }).collect()
}

/// What a ring does once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// By which its data differ from others'; the same in every ring of as many ranks and connections.
    pub number: usize,
    /// A collective's name; or `right`, `left`: every rank sends to that neighbour.
    pub operation: &'static str,
    /// MLX's name of the type.
    pub dtype: &'static str,
    /// On each rank.
    pub elements: usize,
    /// Which operation, type and length it is in their lists; none for a message, of which all are due.
    place: Option<(usize, usize, usize)>,
}

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
const COLLECTIVES: [&str; 4] = ["all_sum", "all_max", "all_min", "all_gather"];
/// How many lengths come before those around thresholds.
const SHORT: usize = 6;
/// MLX's bound for a further lane, in bytes per segment or rank.
const LANE: usize = 262_144;
/// The longest array, in bytes.
const MOST: usize = 8 << 20;

/// The lengths around the threshold of every number of lanes, with `unit` bytes per lane.
fn thresholds(connections: usize, unit: usize, width: usize) -> Vec<usize> {
    let at = (1..=2 * connections + 1).map(|lanes| (lanes * unit).div_ceil(width));
    at.flat_map(|at| [at - 1, at, at + 1]).filter(|len| len * width <= MOST).collect()
}

/// Every case of a ring of `n` ranks: every collective × type × length, and messages between neighbours.
pub fn product(n: usize, connections: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |operation, dtype, elements, place| {
        cases.push(Case { number: cases.len(), operation, dtype, elements, place });
    };
    for (o, operation) in COLLECTIVES.into_iter().enumerate() {
        let unit = if operation == "all_gather" { LANE } else { n * LANE };
        for (d, (dtype, width)) in DTYPES.into_iter().enumerate() {
            let short: [usize; SHORT] = [0, 1, n - 1, n, n + 1, 1000];
            let all = short.into_iter().chain(thresholds(connections, unit, width)).enumerate();
            // Of two ranks, n − 1 is 1.
            all.filter(|(l, len)| !short[..*l.min(&SHORT)].contains(len)).for_each(|(l, len)| {
                add(operation, dtype, len, Some((o, d, l)));
            });
        }
    }
    for operation in ["right", "left"] {
        // A message's cut: at least 1024 bytes for each connection.
        for len in [0, 1, 1024, 1024 * connections + 1, MOST / 8] {
            add(operation, "uint8", len, None);
        }
        add(operation, "complex64", 1000, None);
        add(operation, "bfloat16", 7, None);
    }
    cases
}

/// Whether a pairwise choice has `case` in the `which`-th arrangement of `n` ranks with that many connections. All of them
/// together have every type with every length, and so on for each two of collective, type, length, arrangement and number
/// of connections. Each has every message.
pub fn is_due(case: &Case, n: usize, which: usize, connections: usize) -> bool {
    let Some((operation, d, l)) = case.place else { return true };
    let rings = (1 << n) - 2;
    // The fewest connections with so many lanes.
    let fewest = if l < SHORT { 1 } else { ((l - SHORT) / 3).div_ceil(2).max(1) };
    let choices = 4 - fewest;
    let further = (which + rings - (l + d + l / 4) % rings) % rings;
    // The short ones take no time in further rings.
    let its_ring = further.is_multiple_of(4) && (l < SHORT || further == 0);
    operation == (l + 3 * d) % COLLECTIVES.len() && connections == fewest + (2 * l + d) % choices && its_ring
}

/// How many of `got` differ from `expected`, as an error that shows the first.
pub fn compare(cases: &[&Case], got: &[Vec<String>], expected: &[Vec<&String>]) -> Result<(), String> {
    for (rank, (got, expected)) in got.iter().zip(expected).enumerate() {
        let wrong: Vec<_> = cases.iter().zip(got.iter().zip(expected)).filter(|(_, (g, e))| g != *e).collect();
        if let Some((case, (got, expected))) = wrong.first() {
            return Err(format!(
                "rank {rank} differs from MLX in {} of {} cases, first in {case:?}: {got}, MLX has {expected} (seed {SEED})",
                wrong.len(),
                cases.len(),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn arrangements_are_all_with_at_least_one_of_each_kind() {
        assert_eq!([2, 3, 4].map(|n| arrangements(n).len()), [2, 6, 14]);
        assert_eq!(arrangements(2).iter().map(|ring| letters(ring)).collect::<Vec<_>>(), ["Mo", "oM"]);
    }

    #[test]
    fn a_pairwise_choice_has_every_pair() {
        for n in 2..=4 {
            let rings = arrangements(n).len();
            let (mut all, mut chosen) = (BTreeSet::new(), BTreeSet::new());
            let mut count = 0;
            for (connections, which) in (1..=3).flat_map(|k| (0..rings).map(move |which| (k, which))) {
                for case in product(n, connections) {
                    let Some((o, d, l)) = case.place else { continue };
                    // Which factor has which value.
                    let values =
                        [("operation", o), ("type", d), ("length", l), ("ring", which), ("connections", connections)];
                    let due = is_due(&case, n, which, connections);
                    count += usize::from(due);
                    for (i, a) in values.into_iter().enumerate() {
                        for b in values.into_iter().skip(i + 1) {
                            all.insert((a, b));
                            if due {
                                chosen.insert((a, b));
                            }
                        }
                    }
                }
            }
            let missing: Vec<_> = all.difference(&chosen).collect();
            assert!(missing.is_empty(), "{n} ranks: {missing:?}");
            assert!(count < 800, "{count}");
        }
    }

    #[test]
    fn a_difference_is_told_with_its_case() {
        let case = Case { number: 3, operation: "all_sum", dtype: "int8", elements: 1, place: None };
        let (a, b) = ("a".to_owned(), "b".to_owned());
        compare(&[&case], &[vec![a.clone()]], &[vec![&a]]).unwrap();
        let e = compare(&[&case], &[vec![a.clone()], vec![b.clone()]], &[vec![&a], vec![&a]]).unwrap_err();
        assert!(e.starts_with("rank 1 differs from MLX in 1 of 1 cases, first in Case { number: 3"), "{e}");
    }
}
