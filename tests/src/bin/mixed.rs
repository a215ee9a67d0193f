//! Every ring of 2 to 4 ranks with at least one rank of ours and one of MLX's, each with 1 to 3 connections, beside rings
//! of MLX alone: all ranks must have MLX's bits. `cargo xtask test` runs it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use clap::Parser;
use nuvec_distributed_tests::mlx::{self, Case, Kind, Sums, World};

/// How often at most a line says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// Rings of our ranks and MLX's, compared with rings of MLX alone.
#[derive(Debug, Parser)]
struct Cli {
    /// Every operation × type × length in every ring, in place of a pairwise choice
    #[arg(long)]
    exhaustive: bool,
    /// Leave MLX's ranks spinning while they wait, in rings of more than two too, where otherwise a library is preloaded
    /// that has them sleep (Linux)
    #[arg(long)]
    spinning: bool,
    /// How many rings at once [default: one more than there are processors]
    #[arg(long)]
    at_once: Option<usize>,
    /// Where Python's environment with MLX is made, or was [default: `tmp` beside the folder of this program]
    #[arg(long)]
    folder: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}

/// A ring that runs once.
#[derive(Debug, Clone)]
struct Ring {
    kinds: Vec<Kind>,
    connections: usize,
    /// The cases by their numbers in the product of this number of ranks and connections.
    due: Vec<usize>,
}

impl Ring {
    fn is_reference(&self) -> bool {
        self.kinds.iter().all(|kind| *kind == Kind::Mlx)
    }

    /// The shape of rings that do the same cases.
    fn shape(&self) -> (usize, usize) {
        (self.kinds.len(), self.connections)
    }

    fn name(&self) -> String {
        format!("{} with {} connections", mlx::letters(&self.kinds), self.connections)
    }
}

/// What has been found of one shape.
#[derive(Debug, Default)]
struct Found {
    reference: Option<(Vec<usize>, Sums)>,
    /// Rings that came before the reference.
    waiting: Vec<(Ring, Sums)>,
}

struct Work<'a> {
    world: &'a World,
    products: BTreeMap<(usize, usize), Vec<Case>>,
    rings: Vec<Ring>,
    next: AtomicUsize,
    failed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    start: Instant,
    told: Instant,
    found: BTreeMap<(usize, usize), Found>,
    rings: usize,
    compared: usize,
    errors: Vec<String>,
}

fn run(cli: &Cli) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("where is this program? {e}"))?;
    let beside = program.parent().unwrap_or(Path::new("."));
    let folder = cli.folder.clone().unwrap_or_else(|| beside.parent().unwrap_or(beside).join("tmp"));
    let mut world = World::new(&folder, &beside.join("mlx_rank")).map_err(|needs| format!("@needs {needs}"))?;
    if !cli.spinning && cfg!(target_os = "linux") {
        world = world.calm(&folder).map_err(|e| format!("@needs a C compiler, cc: {e}"))?;
    }
    let work = Work::new(&world, cli.exhaustive);
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    // Ranks of MLX mostly sleep while they connect.
    let at_once = cli.at_once.unwrap_or(processors.clamp(2, 5) + 1);
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| work.take_turns());
        }
    });
    let state = work.state();
    if !state.errors.is_empty() {
        return Err(state.errors.join("\n"));
    }
    let mixed = work.rings.iter().filter(|ring| !ring.is_reference()).count();
    println!(
        "{mixed} mixed rings beside {} of MLX alone: MLX's bits in all {} cases; {} s",
        work.rings.len() - mixed,
        state.compared,
        state.start.elapsed().as_secs()
    );
    Ok(())
}

impl<'a> Work<'a> {
    fn new(world: &'a World, exhaustive: bool) -> Self {
        let shapes = || (2..=4).flat_map(|n| (1..=3).map(move |connections| (n, connections)));
        let products: BTreeMap<_, _> = shapes().map(|(n, k)| ((n, k), mlx::product(n, k))).collect();
        let mut rings = Vec::new();
        for (n, connections) in shapes() {
            let all = &products[&(n, connections)];
            let arrangements = mlx::arrangements(n);
            let mut asked = vec![false; all.len()];
            for (i, kinds) in arrangements.iter().enumerate() {
                let is_due = |case: &&Case| exhaustive || mlx::is_due(case, n, i, connections);
                let due: Vec<_> = all.iter().filter(is_due).map(|case| case.number).collect();
                due.iter().for_each(|number| asked[*number] = true);
                rings.push(Ring { kinds: kinds.clone(), connections, due });
            }
            let due = (0..all.len()).filter(|number| asked[*number]).collect();
            rings.push(Ring { kinds: vec![Kind::Mlx; n], connections, due });
        }
        // What the others are compared with comes first, and the longest of all ahead, so that nothing is waited for at
        // the end.
        rings.sort_by_key(|ring| (!ring.is_reference(), std::cmp::Reverse(ring.shape())));
        let now = Instant::now();
        let state = State { start: now, told: now, found: BTreeMap::new(), rings: 0, compared: 0, errors: Vec::new() };
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { world, products, rings, next, failed, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Runs one ring after another, until none is left or one has failed.
    fn take_turns(&self) {
        while !self.failed.load(Ordering::Relaxed)
            && let Some(ring) = self.rings.get(self.next.fetch_add(1, Ordering::Relaxed))
        {
            let cases = self.cases(ring);
            // A hang panics, and says where each rank stood.
            let run = || self.world.run(&ring.kinds, ring.connections, &cases);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
                .unwrap_or_else(|panic| Err(text_of(panic.as_ref())));
            let mut state = self.state();
            let judged = outcome.map_err(|e| format!("{}: {e}", ring.name()));
            if let Err(e) = judged.and_then(|sums| self.judge(&mut state, ring, sums)) {
                state.errors.push(e);
                self.failed.store(true, Ordering::Relaxed);
            }
            state.rings += 1;
            self.tell(&mut state);
        }
    }

    fn cases(&self, ring: &Ring) -> Vec<&Case> {
        ring.due.iter().map(|number| &self.products[&ring.shape()][*number]).collect()
    }

    /// Compares what can be compared now that `ring` has run.
    fn judge(&self, state: &mut State, ring: &Ring, sums: Sums) -> Result<(), String> {
        let found = state.found.entry(ring.shape()).or_default();
        if ring.is_reference() {
            found.reference = Some((ring.due.clone(), sums));
        } else {
            found.waiting.push((ring.clone(), sums));
        }
        let Some((due, reference)) = &found.reference else { return Ok(()) };
        for (ring, got) in found.waiting.drain(..) {
            let at: Vec<_> = ring.due.iter().filter_map(|number| due.binary_search(number).ok()).collect();
            let expected: Vec<Vec<_>> =
                reference.iter().map(|of_rank| at.iter().map(|i| &of_rank[*i]).collect()).collect();
            mlx::compare(&self.cases(&ring), &got, &expected).map_err(|e| format!("{}: {e}", ring.name()))?;
            state.compared += ring.due.len();
        }
        Ok(())
    }

    fn tell(&self, state: &mut State) {
        if state.told.elapsed() >= PROGRESS {
            state.told = Instant::now();
            let (seconds, all) = (state.start.elapsed().as_secs(), self.rings.len());
            println!("{} of {all} rings, {} cases compared; {seconds} s", state.rings, state.compared);
        }
    }
}

/// What a panic says.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (None, Some(text)) => (*text).to_owned(),
        (None, None) => "panicked".to_owned(),
    }
}
