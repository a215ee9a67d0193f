//! Measures the reduction kernels: one table row per dtype, one column per reduction and rule.
//!
//! `cargo run --release -p nuvec-collectives --example kernels -- [KiB per block (256)]`
//!
//! A figure is the length of one operand divided by the time: 10 GB/s reads 20 GB/s and writes 10 GB/s. Both blocks lie
//! one byte off alignment, since received data may begin anywhere, and are small enough by default to stay in a level 2
//! cache, as the scratch does that a collective reduces from. Each figure is the best of several batches. With `lines` after the
//! number, each is a line `@kernel DTYPE GB/s REDUCTION`, for `cargo xtask bench`.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nuvec_collectives::DType;
use nuvec_collectives::reduce::{Kernel, NanRule, Reduction, kernel};

const BATCHES: usize = 7;
const BATCH: Duration = Duration::from_millis(6);

const COLUMNS: [(&str, Reduction, NanRule); 5] = [
    ("sum", Reduction::Sum, NanRule::Propagate),
    ("max", Reduction::Max, NanRule::Propagate),
    ("min", Reduction::Min, NanRule::Propagate),
    ("max mlx", Reduction::Max, NanRule::Mlx),
    ("min mlx", Reduction::Min, NanRule::Mlx),
];

fn main() -> ExitCode {
    let kib = match std::env::args().nth(1).map(|argument| argument.parse::<usize>()) {
        None => 256,
        Some(Ok(kib)) if (1..=1 << 20).contains(&kib) => kib,
        Some(_) => {
            eprintln!("usage: kernels [KiB per block, 1 to 1048576 [lines]]");
            return ExitCode::FAILURE;
        }
    };
    if std::env::args().nth(2).is_some_and(|argument| argument == "lines") {
        for dtype in DType::ALL {
            for (title, reduction, rule) in COLUMNS {
                println!("@kernel {dtype} {:.3} {title}", measure(kernel(dtype, reduction, rule), kib << 10));
            }
        }
        return ExitCode::SUCCESS;
    }
    println!("GB/s of one operand, blocks of {kib} KiB (in brackets: 10^9 elements/s)");
    print!("{:<10}", "dtype");
    for (title, ..) in COLUMNS {
        print!("{title:>16}");
    }
    println!();
    for dtype in DType::ALL {
        print!("{dtype:<10}");
        for (_, reduction, rule) in COLUMNS {
            let rate = measure(kernel(dtype, reduction, rule), kib << 10);
            print!("{:>8.1} ({:>5.2})", rate, rate / dtype.size() as f64);
        }
        println!();
    }
    ExitCode::SUCCESS
}

/// Bytes per nanosecond, which is GB/s.
fn measure(kernel: Kernel, bytes: usize) -> f64 {
    // 0x3c in every byte is a normal number in every float dtype, and so is any sum of it.
    let mut mine = vec![0x3c_u8; bytes + 1];
    let received = vec![0x3c_u8; bytes + 1];
    let mut best = Duration::MAX;
    for _ in 0..BATCHES {
        let begin = Instant::now();
        let mut calls = 0;
        while begin.elapsed() < BATCH {
            for _ in 0..4 {
                kernel(black_box(&mut mine[1..]), black_box(&received[1..]));
            }
            calls += 4;
        }
        best = best.min(begin.elapsed() / calls);
    }
    bytes as f64 / best.as_nanos().max(1) as f64
}
