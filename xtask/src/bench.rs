//! `cargo xtask bench`: how fast the collectives are on this machine, beside other programs that do the same.
//!
//! This module holds the options and the order of things: rounds in which every side has its turn, so that a machine whose
//! speed drifts slows all of them. [`plan`] says what is measured, [`sides`] starts each side's ranks, [`run`] watches them,
//! [`figures`] makes medians and ratios of what they report, [`tables`] prints them, [`kernels`] measures the reductions.
//!
//! What a rank does stands in `collectives/examples/bench_rank`; the peers' programs (`mlx_rank.py`, `openmpi_rank.c`) do
//! the same in the same order.

mod figures;
mod kernels;
mod plan;
#[cfg(feature = "plot")]
mod plot;
mod run;
mod sides;
mod tables;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;

use self::figures::Figures;
use self::plan::Operation;
use self::sides::Side;
use crate::console::Console;
use crate::{Result, cargo, files, units};

/// Options of `bench`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// Measure these too, in turn with ours: MLX's ring (from PyPI), Open MPI over TCP
    #[arg(long, value_enum, value_name = "PEER", value_delimiter = ',')]
    pub(crate) against: Vec<Peer>,
    /// How many ranks, all on this machine
    #[arg(long, short = 'n', value_name = "LIST", value_delimiter = ',', default_value = "2,4", value_parser = ranks)]
    pub(crate) ranks: Vec<usize>,
    /// How many connections to each neighbour
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = crate::ring_test::count)]
    pub(crate) connections: Vec<usize>,
    /// Which sizes, in bytes (such as 8,64K,1M)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "8,64,512,4K,32K,256K,2M,16M,128M",
        value_parser = units::bytes
    )]
    pub(crate) sizes: Vec<u64>,
    /// What is measured
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_values_t = Part::ALL)]
    pub(crate) only: Vec<Part>,
    /// How often each side has its turn
    #[arg(long, value_name = "N", default_value = "5", value_parser = crate::ring_test::count)]
    pub(crate) rounds: usize,
    /// Write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the figures into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// A side whose turn takes more seconds than this has failed
    #[arg(long, value_name = "SECONDS", default_value = "600")]
    pub(crate) deadline: u64,
}

/// A program to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// MLX's ring, from PyPI
    Mlx,
    /// Open MPI over TCP
    #[value(name = "openmpi")]
    OpenMpi,
}

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    AllReduce,
    AllGather,
    SendRecv,
    /// What waiting for a late rank costs
    Waiting,
    /// The reductions, without any communication
    Kernels,
}

impl Part {
    const ALL: [Self; 5] = [Self::AllReduce, Self::AllGather, Self::SendRecv, Self::Waiting, Self::Kernels];
}

/// A number of ranks from 2 to 64.
fn ranks(text: &str) -> Result<usize> {
    crate::ring_test::count(text).ok().filter(|&n| n > 1).ok_or_else(|| "expected a number from 2 to 64".into())
}

/// The command itself.
pub(crate) fn main(options: &Options) -> Result<bool> {
    for file in [&options.json, &options.plot].into_iter().flatten() {
        // Said now and not after minutes.
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        if folder.is_some_and(|folder| !folder.is_dir()) {
            return Err(format!("{}: there is no such folder", file.display()));
        }
    }
    if options.plot.is_some() && cfg!(not(feature = "plot")) {
        return again_with_plots();
    }
    // The profile of a program that somebody uses; it needs neither nuvec nor what the tests have built.
    let examples = ["--example", "bench_rank", "--example", "kernels"];
    let built = cargo::build(&[&["build", "--release", "-p", "nuvec-collectives"][..], &examples].concat())?;
    let ours = cargo::program(&built, "bench_rank")?;
    let target = target_directory(&ours).to_path_buf();
    let mut sides = vec![Side::Ours { program: ours }];
    let mut left_out = Vec::new();
    for peer in &options.against {
        match sides::prepare(*peer, &target) {
            Ok(side) => sides.push(side),
            Err(needs) => {
                println!("left out {}: it needs {needs}", peer.name());
                left_out.push(json!({ "side": peer.name(), "needs": needs }));
            }
        }
    }
    let mut out = std::io::stdout();
    let (figures, mut good) = measure(options, &sides, &mut out)?;
    let mut document = figures.json(&sides);
    document["left_out"] = json!(left_out);
    if options.only.contains(&Part::Kernels) {
        match kernels::measure(&cargo::program(&built, "kernels")?) {
            Ok((kernels, table)) => {
                println!("{table}");
                document["kernels"] = kernels;
            }
            Err(e) => {
                println!("FAILED   reduction kernels: {e}");
                good = false;
            }
        }
    }
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&document).map_err(|e| e.to_string())? + "\n";
        files::write(file, &text)?;
    }
    #[cfg(feature = "plot")]
    if let Some(file) = &options.plot {
        plot::draw(&figures, &sides, file)?;
    }
    Ok(good)
}

/// This command again, in an xtask that can draw.
fn again_with_plots() -> Result<bool> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let manifest = cargo::root().join("Cargo.toml");
    cargo.arg("run").arg("--quiet").arg("--manifest-path").arg(manifest);
    cargo.args(["--package", "xtask", "--features", "plot", "--"]).args(std::env::args_os().skip(1));
    eprintln!("note: --plot starts xtask again with its feature \"plot\"");
    cargo::run(&mut cargo)
}

/// Two ranks and two sizes, without peers or with MLX if its environment is there already: for [`crate::test`], which wants
/// to know that this command works and not how fast anything is. `program` is `bench_rank`, built with any profile.
pub(crate) fn check(program: PathBuf, out: &mut (dyn Write + Send)) -> Result<bool> {
    let options = Options {
        against: Vec::new(),
        ranks: vec![2],
        connections: vec![1],
        sizes: vec![8, 64 << 10],
        only: Part::ALL.to_vec(),
        rounds: 2,
        json: None,
        plot: None,
        deadline: 300,
    };
    let mlx = sides::mlx_if_there(target_directory(&program));
    let sides: Vec<_> = [Side::Ours { program }].into_iter().chain(mlx).collect();
    let (figures, good) = measure(&options, &sides, out)?;
    // Three operations at two sizes, and the waiting.
    let complete = figures.count() == sides.len() * 7;
    if !complete {
        let _ = writeln!(out, "some of the figures are missing: {}", figures.json(&sides));
    }
    Ok(good && complete)
}

/// Cargo's target directory, from the path of an example in it: `target/release/examples/x`.
fn target_directory(example: &Path) -> &Path {
    example.ancestors().nth(3).unwrap_or_else(|| Path::new("target"))
}

/// All rounds with all sides; the tables go to `out`. Whether no side failed.
fn measure(options: &Options, sides: &[Side], out: &mut (dyn Write + Send)) -> Result<(Figures, bool)> {
    let operations: Vec<_> = options.only.iter().filter_map(|part| part.operation()).collect();
    let plan = plan::measurements(&operations, &options.sizes);
    let shapes = plan::shapes(&options.ranks, &options.connections);
    let mut console = Console::new(out, true);
    let mut figures = Figures::new(plan.clone());
    let mut good = true;
    if plan.is_empty() {
        return Ok((figures, good));
    }
    let turns = (shapes.len() * options.rounds * sides.len()) as u64;
    let mut done = 0;
    for shape in shapes {
        let mut failed = vec![false; sides.len()];
        for round in 0..options.rounds {
            for (i, side) in sides.iter().enumerate() {
                if !failed[i] {
                    let what = |at: &str| {
                        format!("{}, round {} of {}, {}: {at}", shape.text(), round + 1, options.rounds, side.name())
                    };
                    let progress = |at: &str| console.progress(done, turns, what(at));
                    let deadline = Duration::from_secs(options.deadline);
                    match run::run(side, shape, &plan, deadline, &progress) {
                        Ok(turn) => figures.add(shape, i, round, turn),
                        Err(e) if crate::signals::received().is_some() => return Err(e),
                        Err(e) => {
                            (good, failed[i]) = (false, true);
                            console.line(&format!("FAILED   {} with {}: {e}", side.name(), shape.text()));
                        }
                    }
                }
                done += 1;
            }
        }
        tables::of_shape(&figures, sides, shape).lines().for_each(|line| console.line(line));
    }
    Ok((figures, good))
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Mlx => "mlx",
            Self::OpenMpi => "openmpi",
        }
    }
}

impl Part {
    fn operation(self) -> Option<Operation> {
        match self {
            Self::AllReduce => Some(Operation::AllReduce),
            Self::AllGather => Some(Operation::AllGather),
            Self::SendRecv => Some(Operation::SendRecv),
            Self::Waiting => Some(Operation::Wait),
            Self::Kernels => None,
        }
    }
}
