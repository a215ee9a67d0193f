//! One rank of a ring, joined through the facade as MLX's environment says: started by `cargo xtask ring-test` and by
//! this package's tests, which read its report (`nuvec_distributed_tests::report`).

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, Parser, Subcommand};
use nuvec_core::Array;
use nuvec_core::distributed::{self, Group};
use nuvec_distributed::Backend;
use nuvec_distributed_tests::cases::{self, Case, Failure, Ring, Selection};
use nuvec_distributed_tests::sample::{Sample, hash};
use nuvec_distributed_tests::{measure, report, second};
use nuvec_launch_env::{LaunchEnv, WireName};

/// One rank of a ring.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check every collective and measure some
    Check(Check),
    /// All-reduce 16 MiB over and over, comparing every sum, until a call fails; then call once more and report both
    /// errors
    Loop {
        /// How many float32, in place of 16 MiB of them
        #[arg(long, default_value_t = 4 << 20)]
        elements: usize,
        /// Where the data's random numbers begin; the same on every rank
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Give up after so many seconds
        #[arg(long, default_value_t = 300)]
        limit: u64,
    },
}

#[derive(Debug, Args)]
struct Check {
    /// Where the data's random numbers begin; the same on every rank
    #[arg(long)]
    seed: u64,
    /// Fewer lengths
    #[arg(long)]
    quick: bool,
    /// Sizes in bytes in place of the built-in lengths
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Only the check of this name, or those whose name begins with it and a slash
    #[arg(long)]
    only: Option<String>,
    /// Change one element of this check's result, so that it must fail
    #[arg(long)]
    spoil: Option<String>,
    /// All ranks share this machine's clock
    #[arg(long)]
    one_machine: bool,
    /// Join no ring: end after it is known whether there is a check to run
    #[arg(long)]
    dry_run: bool,
}

/// The exit code when another rank checks other cases: that line says all. (BSD's EX_CONFIG.)
const OTHER_CASES: u8 = 78;

/// Why the rank ends, other than with its work done.
enum End {
    /// A port of its own is taken.
    PortTaken(String),
    /// Another rank checks other cases.
    OtherCases(String),
    /// Anything else, told on standard error.
    Error(String),
    /// A failure that was reported.
    Reported,
}

impl From<String> for End {
    fn from(text: String) -> Self {
        if report::is_port_taken(&text) { Self::PortTaken(text) } else { Self::Error(text) }
    }
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let end = match Cli::parse().command {
        Command::Check(options) => check(&options),
        Command::Loop { elements, seed, limit } => endless(elements, seed, Duration::from_secs(limit)),
    };
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(End::Reported) => ExitCode::FAILURE,
        Err(End::Error(text)) => {
            eprintln!("error: {text}");
            ExitCode::FAILURE
        }
        Err(End::PortTaken(text)) => {
            eprintln!("error: {text}");
            ExitCode::from(report::PORT_TAKEN)
        }
        Err(End::OtherCases(text)) => {
            eprintln!("error: {text}");
            ExitCode::from(OTHER_CASES)
        }
    }
}

/// What the environment says.
fn environment() -> Result<LaunchEnv, End> {
    nuvec_launch_env::read(&|name: &str| std::env::var_os(name)).map_err(|e| End::Error(e.to_string()))
}

/// Joins the group that the environment describes: JACCL's by its name, so that no other is taken in its place.
fn join(environment: &LaunchEnv) -> Result<Group, End> {
    let backend = if environment.jaccl.is_some() { Backend::Jaccl } else { Backend::Ring };
    nuvec_distributed::init_backend(true, backend).map_err(|e| End::from(e.to_string()))
}

/// Runs every wanted check, then the measurements.
fn check(options: &Check) -> Result<(), End> {
    let environment = environment()?;
    let jaccl = environment.jaccl.as_ref();
    let selection = Selection {
        quick: options.quick,
        sizes: options.sizes.clone(),
        only: options.only.clone(),
        mlx_wire: environment.settings.wire == Some(WireName::Mlx),
        jaccl: jaccl.map(|jaccl| jaccl.topology()),
    };
    let of_jaccl = jaccl.and_then(|jaccl| Some((jaccl.devices.len(), jaccl.devices.first()?.get(1)?.len())));
    let of_ring = environment.ring.as_ref().map(|ring| (ring.nodes.len(), ring.connections().max(1)));
    let (ranks, connections) = of_ring.or(of_jaccl).unwrap_or((1, 1));
    selection.validate(ranks, connections).map_err(End::Error)?;
    if options.dry_run {
        return Ok(());
    }
    let group = join(&environment)?;
    let mut ring = Ring { group, seed: options.seed, spoil: options.spoil.clone(), spoiled: false };
    ring.same_cases(&selection).map_err(|failure| match failure {
        Failure::Wrong(text) => End::OtherCases(text),
        Failure::Call(text) => End::from(text),
    })?;
    let mut all = cases::cases(ring.group.size(), connections, &selection);
    all.extend(second::cases(options.one_machine, &selection)?);
    let sizes = measure::sizes(ring.group.size(), &selection);
    if all.is_empty() {
        return Err(End::Error("there is no such check".into()));
    }
    report::plan(all.len(), sizes.len() * measure::OPERATIONS.len());
    let mut good = run(&all, &mut ring)?;
    if let Some(spoil) = &ring.spoil
        && !ring.spoiled
    {
        report::fail(spoil, "there was nothing to spoil: no such check ran, or its result is empty");
        good = false;
    }
    for bytes in sizes {
        for operation in measure::OPERATIONS {
            let name = format!("measuring {operation} of {bytes} bytes");
            report::case(&name);
            if let Err(e) = measure::measure(&ring.group, operation, bytes, measure::most_calls(&selection)) {
                report::fail(&name, &e.to_string());
                return Err(End::Reported);
            }
        }
    }
    report::done();
    if good { Ok(()) } else { Err(End::Reported) }
}

/// Runs the checks; whether all were good. An error of a call ends it: the group has failed.
fn run(all: &[Case], ring: &mut Ring) -> Result<bool, End> {
    let mut good = true;
    for case in all {
        report::case(&case.name);
        match case.run(ring) {
            Ok(()) => {}
            Err(Failure::Wrong(text)) => {
                report::fail(&case.name, &text);
                good = false;
            }
            Err(Failure::Call(text)) => {
                report::fail(&case.name, &text);
                return Err(End::Reported);
            }
        }
    }
    Ok(good)
}

/// How many values are repeated to make the loop's data: a prime, so that no two blocks of a ring are alike.
const PERIOD: usize = 65_537;

/// A rank's values of a round, the loop's data being these over and over. Rounds alternate, so that the result of the
/// one before is not taken for the present one's.
fn values(seed: u64, round: u64, rank: usize, size: usize) -> Vec<f32> {
    (0..PERIOD).map(|i| f32::exact(hash(seed.wrapping_add(round % 2), rank, i), size)).collect()
}

/// All-reduces until a call fails, and reports that error and the next call's. A wrong sum ends it too.
fn endless(elements: usize, seed: u64, limit: Duration) -> Result<(), End> {
    let group = join(&environment()?)?;
    let (rank, size) = (group.rank(), group.size());
    let rounds = [0, 1].map(|round| {
        let own = values(seed, round, rank, size);
        let data: Vec<f32> = own.iter().copied().cycle().take(elements).collect();
        let mut sums = vec![0.0; PERIOD];
        for rank in 0..size {
            sums.iter_mut().zip(values(seed, round, rank, size)).for_each(|(sum, value)| *sum += value);
        }
        (Array::from(data), sums)
    });
    let call = |x| distributed::all_sum(x, Some(&group)).to_vec::<f32>();
    let start = Instant::now();
    let mut round = 0;
    let error = loop {
        let (x, expected) = &rounds[round % 2];
        let got = match call(x) {
            Ok(got) => got,
            Err(e) => break e,
        };
        if let Some(block) = got.chunks(PERIOD).position(|block| *block != expected[..block.len()]) {
            report::fail("loop", &format!("round {round}: a sum from element {} on is wrong", block * PERIOD));
            return Err(End::Reported);
        }
        if round == 0 {
            report::looping();
        }
        round += 1;
        report::round(round);
        if start.elapsed() > limit {
            return Err(End::Error(format!("nothing failed for {} s", limit.as_secs())));
        }
    };
    let at = SystemTime::now();
    let next = Instant::now();
    let again = call(&rounds[0].0).err().map(|e| e.to_string()).unwrap_or_default();
    report::error(at, &error.to_string(), &again, next.elapsed());
    Err(End::Reported)
}
