//! A program that hosts a rank in a certain situation, for this package's tests: other people's processes do what they
//! like around a library. The only binary here that may contain unsafe code, for what only C can ask for.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use nuvec_core::distributed::{self, Group};
use nuvec_core::{Array, DType, Element, Error, Result, eval};
use nuvec_distributed::{Options, RankState, Session, connect};

/// A rank in a certain situation.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    situation: Situation,
}

#[derive(Debug, Subcommand)]
enum Situation {
    /// Makes one call, then sums until something fails
    Call {
        /// all_sum, all_max, all_gather (of so many elements), send:RANK, recv:RANK
        operation: String,
        /// How many elements
        elements: usize,
        /// float32 or int32
        #[arg(default_value = "float32")]
        dtype: String,
    },
    /// Sums until it fails, with SIGPIPE as a C program has it: deadly
    Sigpipe,
    /// Sums 8 MiB once and exits at once
    Finish,
    /// Waits for a rank that comes late, and tells how much processor time that took
    Late {
        /// How many milliseconds rank 1 comes late
        milliseconds: u64,
    },
    /// Sends so many bytes to the next rank, then receives as many from the previous one
    Around {
        /// How many bytes
        bytes: usize,
    },
    /// Reduces values with a meaning of their own, and prints the bits of the results
    Edges,
    /// Sums small and large arrays over and over, and checks every bit
    Steady {
        /// For so many milliseconds by rank 0's clock
        milliseconds: u64,
    },
    /// Rank 0 sends 8 MiB to rank 1, over and over
    Stream,
    /// Sums once, does nothing until a file is there, then sums again
    Idle {
        /// The file
        go: PathBuf,
    },
    /// Rank 0 sends so many bytes to rank 1 and exits at once; rank 1 receives a second later
    Parting {
        /// How many bytes
        bytes: usize,
        /// Rank 1 receives once this file is there
        #[arg(long)]
        go: Option<PathBuf>,
    },
    /// The last rank is done and exits without a word; then the others exchange messages, then use it once more
    Leave,
    /// Two ranks run small and large operations of every kind, and tell what they use at every tenth
    Mixed {
        /// How many operations
        operations: usize,
    },
    /// Two threads use groups at once
    Threads {
        /// Each a group of its own: one of them all ranks', one split from it
        #[arg(long)]
        own: bool,
    },
    /// Forks; the child tries to sum, then ends its part; the parent goes on
    Fork {
        /// How the child ends its part
        end: End,
    },
    /// Rank 0 sends so many bytes, rank 1 receives as many of another dtype; then all sum
    Mistaken {
        /// How many bytes
        bytes: usize,
        /// Another shape, not another dtype
        #[arg(long)]
        shape: bool,
    },
    /// Both ranks of a ring in this process connect and close, so many times; tells what it uses at every tenth
    Churn {
        /// How many times
        rounds: usize,
        /// Fail to connect each time
        #[arg(long)]
        in_vain: bool,
    },
    /// Rank 1 comes late into a sum; another thread of rank 0 prints what every rank does. Then shuts down
    Watch,
    /// Four ranks in two groups of two; the second group's ranks disagree; then everybody sums
    Siblings,
}

/// How a forked child ends its part.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum End {
    Exit,
    Drop,
    Close,
    Shutdown,
}

fn main() -> ExitCode {
    match run(Cli::parse().situation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("@error {e}");
            let taken = nuvec_distributed_tests::report::is_port_taken(&e.to_string());
            ExitCode::from(if taken { nuvec_distributed_tests::report::PORT_TAKEN } else { 1 })
        }
    }
}

fn run(situation: Situation) -> Result<()> {
    if matches!(situation, Situation::Sigpipe) {
        #[expect(unsafe_code, reason = "a disposition is per process, and only C can set it")]
        // SAFETY: SIG_DFL is a valid disposition for SIGPIPE, and no other thread runs yet that could race with it.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        }
    }
    match situation {
        Situation::Fork { end } => return fork(join()?, end),
        Situation::Watch => return watch(&join()?),
        Situation::Churn { rounds, in_vain } => return churn(rounds, in_vain),
        _ => {}
    }
    let group = nuvec_distributed::init(true)?;
    println!("@joined");
    match situation {
        Situation::Fork { .. } | Situation::Watch | Situation::Churn { .. } => Ok(()),
        Situation::Call { operation, elements, dtype } => {
            let result = match dtype.as_str() {
                "int32" => call(&group, &operation, &vec![1_i32; elements]),
                _ => call(&group, &operation, &vec![1_f32; elements]),
            };
            result?;
            println!("@succeeded");
            (0..3).try_for_each(|_| sum(&[1_i32]).map(drop))
        }
        Situation::Sigpipe => {
            let x = vec![1_f32; 4 << 20];
            loop {
                if let Err(e) = sum(&x) {
                    println!("@survived {e}");
                    return Ok(());
                }
            }
        }
        Situation::Finish => {
            let total = sum(&vec![1_f32; 2 << 20])?;
            let right = total.iter().all(|&x| x == group.size() as f32);
            println!("@right {right}");
            // No clean-up: as a process that is done.
            std::process::exit(if right { 0 } else { 1 })
        }
        Situation::Late { milliseconds } => {
            sum(&[1_f32])?;
            if group.rank() == 1 {
                std::thread::sleep(Duration::from_millis(milliseconds));
            }
            let before = processor_time();
            let start = std::time::Instant::now();
            sum(&[1_f32])?;
            let share = (processor_time() - before).as_secs_f64() / start.elapsed().as_secs_f64();
            println!("@share {share}");
            Ok(())
        }
        Situation::Around { bytes } => {
            let (rank, size) = (group.rank(), group.size());
            let x = Array::from_slice(&vec![rank as u8; bytes], [bytes as i32]);
            let sent = distributed::send(&x, (rank + 1) % size, None);
            eval(&[sent])?;
            let left = (rank + size - 1) % size;
            let got = distributed::recv([bytes as i32], DType::U8, left, None).to_vec::<u8>()?;
            println!("@right {}", got.iter().all(|&b| usize::from(b) == left));
            Ok(())
        }
        Situation::Edges => edges(&group),
        Situation::Steady { milliseconds } => steady(&group, Duration::from_millis(milliseconds)),
        Situation::Stream => {
            let x = vec![1_u8; 8 << 20];
            loop {
                if group.rank() == 0 {
                    send(&x, 1, None)?
                } else {
                    drop(recv::<u8>(x.len(), 0, None)?)
                };
                println!("@looping");
            }
        }
        Situation::Idle { go } => {
            sum(&[1_f32])?;
            println!("@idle");
            wait_for(&go);
            let start = Instant::now();
            let result = sum(&[1_f32]);
            println!("@took {}", start.elapsed().as_secs_f64());
            result.map(drop)
        }
        Situation::Parting { bytes, go } => {
            let x: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
            if group.rank() == 0 {
                send(&x, 1, None)?;
                println!("@sent");
                std::process::exit(0)
            }
            match go {
                Some(go) => wait_for(&go),
                None => std::thread::sleep(Duration::from_secs(1)),
            }
            println!("@right {}", recv::<u8>(bytes, 0, None)? == x);
            Ok(())
        }
        Situation::Leave => {
            let last = group.size() - 1;
            sum(&[1_f32])?;
            if group.rank() == last {
                std::process::exit(0)
            }
            std::thread::sleep(Duration::from_millis(500));
            let right = round(group.rank(), last, 100_000)?;
            println!("@right {right}");
            std::thread::sleep(Duration::from_millis(500));
            sum(&[1_f32]).map(drop)
        }
        Situation::Mixed { operations } => mixed(&group, operations),
        Situation::Threads { own } => threads(&group, own),
        Situation::Mistaken { bytes, shape } => mistaken(&group, bytes, shape),
        Situation::Siblings => siblings(&group),
    }
}

/// Joins the ring of the environment, with a handle. (`init` gives none.)
fn join() -> Result<Session> {
    let timeout = std::env::var("NUVEC_DISTRIBUTED_TIMEOUT").ok().and_then(|t| t.parse().ok()).unwrap_or(30.0);
    let rank = std::env::var("MLX_RANK").ok().and_then(|r| r.parse().ok()).unwrap_or(0);
    let session = connect(&nodes()?, rank, &Options::default().timeout(Duration::from_secs_f64(timeout)))?;
    println!("@joined");
    Ok(session)
}

/// The ring's addresses.
fn nodes() -> Result<Vec<Vec<String>>> {
    let path = std::env::var("MLX_HOSTFILE").unwrap_or_default();
    let text = std::fs::read_to_string(&path).map_err(|e| Error::Io(format!("{path}: {e}")))?;
    serde_json::from_str(&text).map_err(|e| Error::Io(format!("{path}: {e}")))
}

/// Waits for a file, not for ever.
fn wait_for(file: &Path) {
    let start = Instant::now();
    while !file.exists() && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A value with few bits, whose sums are exact in any order.
fn value(rank: usize, round: usize, i: usize) -> f32 {
    ((i * 7 + rank * 13 + round * 31) % 1024) as f32 / 1024.0
}

/// Sums `elements` values of round `round` over `group`; whether every bit is right. Element 0 is `first`'s sum.
fn exact(group: &Group, round: usize, elements: usize, first: f32) -> Result<(bool, f32)> {
    let mut x: Vec<f32> = (0..elements).map(|i| value(group.rank(), round, i)).collect();
    x[0] = first;
    let total = distributed::all_sum(&array(&x), Some(group)).to_vec::<f32>()?;
    let expected = |i: usize| (0..group.size()).map(|rank| value(rank, round, i)).sum::<f32>();
    Ok((total.iter().enumerate().skip(1).all(|(i, x)| x.to_bits() == expected(i).to_bits()), total[0]))
}

fn steady(group: &Group, time: Duration) -> Result<()> {
    let start = Instant::now();
    let mut round = 0;
    loop {
        for elements in [2, 3_000, 1 << 20] {
            // Every rank sees the same sum, and so all end after the same operation.
            let stop = group.rank() == 0 && start.elapsed() > time;
            let (right, stopped) = exact(group, round, elements, f32::from(stop))?;
            if !right || stopped > 0.0 {
                println!("@right {right}");
                return Ok(());
            }
        }
        if round == 0 {
            println!("@looping");
        }
        round += 1;
    }
}

fn send<T: Element>(values: &[T], to: usize, group: Option<&Group>) -> Result<()> {
    eval(&[distributed::send(&array(values), to, group)])
}

fn recv<T: Element>(elements: usize, from: usize, group: Option<&Group>) -> Result<Vec<T>> {
    distributed::recv([elements as i32], T::DTYPE, from, group).to_vec()
}

/// A message goes round the first `size` ranks, each of which puts its own in its place. Whether what came is right.
fn round(rank: usize, size: usize, bytes: usize) -> Result<bool> {
    let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
    let send = || send(&vec![rank as u8; bytes], right, None);
    if rank == 0 {
        send()?;
    }
    let got = recv::<u8>(bytes, left, None)?;
    if rank > 0 {
        send()?;
    }
    Ok(got.iter().all(|&b| usize::from(b) == left))
}

/// Before part `done` of `all`, each tenth of them: what this process uses, memory in KiB, descriptors and threads. Only
/// Linux tells.
fn usage(done: usize, all: usize) {
    if !done.is_multiple_of(all.div_ceil(10)) {
        return;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<usize>().ok()
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    if let (Some(memory), Some(threads), Ok(descriptors)) = (field("VmRSS:"), field("Threads:"), descriptors) {
        println!("@usage {memory} {descriptors} {threads}");
    }
}

fn mixed(group: &Group, operations: usize) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    for i in 0..operations {
        usage(i, operations);
        let right = match i {
            _ if i % 500 == 77 => round(rank, size, 3 << 20)?,
            _ if i % 7 == 3 => round(rank, size, i % 5_000)?,
            _ if i % 100 == 50 => {
                let all = distributed::all_gather(&array(&vec![rank as i32; 50_000]), None).to_vec::<i32>()?;
                all.iter().enumerate().all(|(at, &x)| x as usize == at / 50_000)
            }
            _ if i % 100 == 0 => exact(group, i, 1 << 18, 0.0)?.0,
            _ => exact(group, i, 1 + i % 2_000, 0.0)?.0,
        };
        if !right {
            println!("@wrong operation {i}");
        }
    }
    println!("@done");
    // No rank leaves while another still counts.
    exact(group, 0, 1, 0.0).map(drop)
}

fn threads(group: &Group, own: bool) -> Result<()> {
    // In the other order of ranks, so that a mix-up shows.
    let child = if own { Some(group.split(0, (group.size() - group.rank()) as i32)?) } else { None };
    let work = |group: &Group, elements: usize| {
        (0..60).try_fold(true, |right, _| Ok::<_, Error>(right & exact(group, 0, elements, 0.0)?.0))
    };
    for elements in [1, 2_000, 200_000] {
        // Of one group both threads ask the same: which of their calls meet another rank's first is not said.
        let others = if own { elements + 1 } else { elements };
        let right = std::thread::scope(|scope| {
            let other = scope.spawn(|| work(child.as_ref().unwrap_or(group), others));
            let mine = work(group, elements)?;
            Ok::<_, Error>(mine & other.join().unwrap_or(Ok(false))?)
        })?;
        println!("@right {right}");
    }
    Ok(())
}

fn fork(session: Session, end: End) -> Result<()> {
    let group = session.group();
    exact(&group, 0, 100_000, 0.0)?;
    #[expect(unsafe_code, reason = "only C forks")]
    // SAFETY: the child of a process with threads may rely on async-signal-safe functions alone; beyond them it
    // allocates and prints, which the libraries of Linux and macOS keep usable after fork, and no other thread of this
    // program holds the lock of standard output. That user programs do so is why this is tested.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(Error::Io(format!("fork: {}", std::io::Error::last_os_error())));
    }
    if child == 0 {
        #[expect(unsafe_code, reason = "the child must not outlive a call that hangs")]
        // SAFETY: alarm(2) is async-signal-safe and takes a number; SIGALRM's disposition is the default one.
        unsafe {
            libc::alarm(15);
        }
        match exact(&group, 1, 1_000, 0.0) {
            Ok(_) => println!("@child summed"),
            Err(e @ Error::InvalidArgument(_)) => println!("@child misuse {e}"),
            Err(e) => println!("@child {e}"),
        }
        match end {
            End::Exit => {}
            End::Drop => drop(session),
            End::Close => session.close(),
            End::Shutdown => nuvec_distributed::shutdown(),
        }
        std::process::exit(0)
    }
    let start = Instant::now();
    let mut status = 0;
    #[expect(unsafe_code, reason = "the child is not one of std's")]
    // SAFETY: `status` lives and may be written to for the length of each call, and WNOHANG keeps no pointer to it.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 && start.elapsed() < Duration::from_secs(20)
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("@ended {status}");
    for round in 0..20 {
        for elements in [2, 100_000] {
            println!("@right {}", exact(&group, round, elements, 0.0)?.0);
        }
    }
    session.barrier()
}

fn mistaken(group: &Group, bytes: usize, shape: bool) -> Result<()> {
    let result = match group.rank() {
        0 => send(&vec![7_u8; bytes], 1, None),
        1 if shape => distributed::recv([1, bytes as i32], DType::U8, 0, None).eval(),
        1 => recv::<i8>(bytes, 0, None).map(drop),
        _ => Ok(()),
    };
    match result {
        Ok(()) => println!("@first succeeded"),
        Err(e) => println!("@first {e}"),
    }
    println!("@lives {}", exact(group, 0, 1_000, 0.0)?.0);
    Ok(())
}

/// Both ranks are threads of this process, so that one number tells what is left behind.
fn churn(rounds: usize, in_vain: bool) -> Result<()> {
    let addresses = nodes()?.concat();
    let nodes: Vec<_> = addresses.into_iter().map(|address| vec![address]).collect();
    let rank = |rank: usize, round: usize| {
        let options = Options::default();
        // Most often in vain: who is refused first ends at once, and is missed by the other until its time is over.
        let impatient = options.clone().timeout(Duration::from_millis(30)).name(format!("of rank {rank}"));
        let session = match in_vain {
            true if rank == 1 && round.is_multiple_of(10) => return Err(Error::Io("does not come".into())),
            true => connect(&nodes, rank, &impatient)?,
            false => connect(&nodes, rank, &options)?,
        };
        session.barrier()?;
        session.close();
        Ok::<_, Error>(())
    };
    let mut unlike = None;
    for round in 0..rounds {
        usage(round, rounds);
        let ends = std::thread::scope(|scope| {
            let other = scope.spawn(|| rank(1, round));
            [rank(0, round), other.join().unwrap_or_else(|_| Err(Error::Io("a panic".into())))]
        });
        unlike = ends.into_iter().find(|end| end.is_ok() == in_vain).or(unlike);
    }
    match unlike {
        Some(Err(e)) => return Err(e),
        Some(Ok(())) => println!("@connected"),
        None => println!("@done"),
    }
    Ok(())
}

fn watch(session: &Session) -> Result<()> {
    let group = session.group();
    let total = |values: &[f32]| distributed::all_sum(&array(values), Some(&group)).to_vec::<f32>();
    total(&[1.0])?;
    println!("@summed");
    if group.rank() == 1 {
        std::thread::sleep(Duration::from_secs(4));
    }
    std::thread::scope(|scope| {
        let sum = scope.spawn(|| total(&vec![1.0; 100_000]));
        if group.rank() == 0 {
            std::thread::sleep(Duration::from_millis(2_800));
            let before = Instant::now();
            let status = session.status()?;
            println!("@asked {}", before.elapsed().as_secs_f64());
            for rank in &status.ranks {
                let alive = matches!(rank.state, RankState::Alive { .. });
                println!("@stands {} {alive} {:?}", rank.rank, rank.calls);
            }
            status.to_string().lines().for_each(|line| println!("@table {line}"));
        }
        sum.join().unwrap_or_else(|_| Err(Error::Io("a panic".into()))).map(drop)
    })?;
    session.barrier()?;
    nuvec_distributed::shutdown();
    for result in [total(&[1.0]).map(drop), group.split(0, 0).map(drop), session.barrier(), session.status().map(drop)]
    {
        match result {
            Ok(()) => println!("@later succeeded"),
            Err(e) => println!("@later {e}"),
        }
    }
    Ok(())
}

fn siblings(group: &Group) -> Result<()> {
    let rank = group.rank();
    let mine = group.split((rank / 2) as i32, -1)?;
    println!("@child {} of {}", mine.rank(), mine.size());
    let disagrees = rank == 3;
    for call in 0..2 {
        match exact(&mine, call, if disagrees { 8 } else { 4 }, 0.0) {
            Ok((right, _)) => println!("@first {right}"),
            Err(e) => println!("@first {e}"),
        }
    }
    for round in 0..10 {
        let mut right = exact(group, round, 50_000, 0.0)?.0;
        if rank < 2 {
            right &= exact(&mine, round, 50_000, 0.0)?.0;
        }
        println!("@right {right}");
    }
    let again = group.split((rank / 2) as i32, -1)?;
    println!("@right {}", exact(&again, 0, 4, 0.0)?.0);
    Ok(())
}

fn sum<T: Element>(values: &[T]) -> Result<Vec<T>> {
    distributed::all_sum(&array(values), None).to_vec()
}

fn array<T: Element>(values: &[T]) -> Array {
    Array::from_slice(values, [values.len() as i32])
}

/// One call of the default group. A result that came of another rank's other call would be a wrong number.
fn call<T: Element + PartialEq>(group: &Group, operation: &str, values: &[T]) -> Result<()> {
    let x = array(values);
    let y = match operation.split_once(':') {
        Some(("send", to)) => distributed::send(&x, to.parse().unwrap_or(usize::MAX), None),
        Some(("recv", from)) => {
            distributed::recv([values.len() as i32], T::DTYPE, from.parse().unwrap_or(usize::MAX), None)
        }
        _ if operation == "all_max" => distributed::all_max(&x, None),
        _ if operation == "all_gather" => distributed::all_gather(&x, None),
        _ => distributed::all_sum(&x, None),
    };
    let result = y.to_vec::<T>()?;
    println!("@elements {} of {} ranks", result.len(), group.size());
    Ok(())
}

/// The processor time of this process, all its threads together.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Every rank contributes what no order of reduction may lose, in a short array and in one that goes round the ring.
fn edges(group: &Group) -> Result<()> {
    let (rank, last) = (group.rank(), group.size() - 1);
    for len in [8, 20_000] {
        // NaN in the last rank's data alone, infinities of both signs, a zero of either sign.
        let mut x = vec![rank as f32; len];
        x[0] = if rank == last { f32::NAN } else { 1.0 };
        x[1] = if rank == 0 { f32::INFINITY } else { 1.0 };
        x[2] = if rank == 0 { f32::NEG_INFINITY } else { 1.0 };
        x[3] = -0.0;
        let reductions = [distributed::all_sum, distributed::all_max, distributed::all_min];
        for (name, reduce) in ["sum", "max", "min"].iter().zip(reductions) {
            let y = reduce(&array(&x), None).to_vec::<f32>()?;
            let shown: Vec<_> =
                y[..4].iter().map(|v| if v.is_nan() { "NaN".into() } else { format!("{v:?}") }).collect();
            println!("@edge {len} {name} float32 {}", shown.join(" "));
        }
        let half = |x: f32| nuvec_core::f16::from_f32(x);
        let y = distributed::all_sum(&array(&vec![half(60_000.0); len]), None).to_vec::<nuvec_core::f16>()?;
        println!("@edge {len} sum float16 {:?}", y[len - 1]);
        let y = distributed::all_sum(&array(&vec![100_i8; len]), None).to_vec::<i8>()?;
        println!("@edge {len} sum int8 {}", y[len - 1]);
        let y = distributed::all_sum(&array(&vec![rank == 0; len]), None).to_vec::<bool>()?;
        println!("@edge {len} sum bool {}", y[len - 1]);
        let y = distributed::all_min(&array(&vec![rank == 0; len]), None).to_vec::<bool>()?;
        println!("@edge {len} min bool {}", y[len - 1]);
    }
    Ok(())
}
