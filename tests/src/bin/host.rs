//! A program that hosts a rank in a certain situation, for this package's tests: other people's processes do what they
//! like around a library. The only binary here that may contain unsafe code, for what only C can ask for.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use nuvec_core::distributed::{self, Group};
use nuvec_core::{Array, DType, Element, Result, eval};

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
}

fn main() -> ExitCode {
    match run(Cli::parse().situation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("@error {e}");
            // The errno's text is all that is left of it in an error that came through nuvec.
            let taken = e.to_string().contains("Address already in use");
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
    let group = nuvec_distributed::init(true)?;
    println!("@joined");
    match situation {
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
    }
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
