//! Measures a channel beside perftest's `ib_send_lat` and `ib_send_bw`, by turns: the latency of 8 bytes and the bandwidth
//! of 1 MiB, over the same devices and the same type of queue pair, all polling.
//!
//! `perftest [DEVICE DEVICE]`: ours are two ranks in this process, one thread each, perftest's two processes. Without names
//! the first two devices are taken. It needs the package perftest.

mod pair;

use std::error::Error;
use std::io::IoSlice;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nuvec_transport::{Channel, Receiver, Sender};
use nuvec_transport_rdma::QueuePairs;

/// How often the two take turns; the medians count.
const ROUNDS: usize = 5;
const SMALL: usize = 8;
const SMALL_MESSAGES: usize = 1000;
const LARGE: usize = 1 << 20;
const LARGE_MESSAGES: usize = 30;
/// The longest that one of perftest's programs may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The latency of 8 bytes, which is half the median time there and back, in microseconds, and the bandwidth of 1 MiB, in
/// MiB a second, which is what perftest calls MB/sec.
#[derive(Clone, Copy)]
struct Figures {
    latency: f64,
    bandwidth: f64,
}

fn ours(names: &[String; 2], queue_pairs: QueuePairs) -> Result<Figures, Box<dyn Error>> {
    let group = pair::pair(names, queue_pairs)?;
    let (mut tx, mut rx) = pair::channel(&group[0])?.split();
    let (mut other_tx, mut other_rx) = pair::channel(&group[1])?.split();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut data = vec![0; LARGE];
            for _ in 0..SMALL_MESSAGES {
                recv(&mut other_rx, &mut data[..SMALL])?;
                send(&mut other_tx, &data[..SMALL])?;
            }
            for _ in 0..LARGE_MESSAGES {
                recv(&mut other_rx, &mut data)?;
            }
            send(&mut other_tx, &[1])?;
            Ok::<_, nuvec_transport::Error>((other_tx, other_rx))
        });
        let mut times = Vec::new();
        for round in 0..SMALL_MESSAGES {
            let (began, mut got) = (Instant::now(), [0; SMALL]);
            send(&mut tx, &round.to_le_bytes())?;
            recv(&mut rx, &mut got)?;
            times.push(began.elapsed().as_secs_f64() * 1e6 / 2.0);
            if got != round.to_le_bytes() {
                return Err("another number came back".into());
            }
        }
        let (began, data) = (Instant::now(), vec![7; LARGE]);
        for _ in 0..LARGE_MESSAGES {
            send(&mut tx, &data)?;
        }
        recv(&mut rx, &mut [0])?;
        let bandwidth = LARGE_MESSAGES as f64 / began.elapsed().as_secs_f64();
        other.join().map_err(|_| "the other rank panicked")??;
        Ok(Figures { latency: median(times), bandwidth })
    })
}

/// Sends all of `data`, polling all the while.
fn send(tx: &mut impl Sender, data: &[u8]) -> nuvec_transport::Result<()> {
    let mut sent = 0;
    while sent < data.len() {
        sent += tx.try_send(&[IoSlice::new(&data[sent..])])?;
    }
    while !tx.try_flush()? {}
    Ok(())
}

/// Receives all of `data`, polling all the while.
fn recv(rx: &mut impl Receiver, data: &mut [u8]) -> nuvec_transport::Result<()> {
    let mut got = 0;
    while got < data.len() {
        got += rx.try_recv(&mut data[got..])?;
    }
    Ok(())
}

fn perftest(names: &[String; 2], queue_pairs: QueuePairs) -> Result<Figures, Box<dyn Error>> {
    let kind = if queue_pairs == QueuePairs::Unreliable { "UC" } else { "RC" };
    let row = |program: &str, size: usize, messages: usize| {
        let (size, messages) = (size.to_string(), messages.to_string());
        let arguments = ["-F", "-c", kind, "-s", &size, "-n", &messages];
        both_ends(program, names, &arguments)
    };
    // #bytes #iterations t_min t_max t_typical …, and #bytes #iterations BW-peak BW-average …
    let latency = row("ib_send_lat", SMALL, SMALL_MESSAGES)?;
    let bandwidth = row("ib_send_bw", LARGE, LARGE_MESSAGES)?;
    let column = |row: &[f64], i: usize| row.get(i).copied().ok_or("perftest's table is another one");
    Ok(Figures { latency: column(&latency, 4)?, bandwidth: column(&bandwidth, 3)? })
}

/// Runs a program of perftest's as server and as client; the numbers of the client's last row.
fn both_ends(program: &str, names: &[String; 2], arguments: &[&str]) -> Result<Vec<f64>, Box<dyn Error>> {
    let command = |device: &str| {
        let mut command = Command::new(program);
        command.args(["-d", device]).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut server = Ended(command(&names[0]).stdout(Stdio::null()).spawn().map_err(|e| format!("{program}: {e}"))?);
    let began = Instant::now();
    let text = loop {
        // Until the server listens.
        let client = command(&names[1]).arg("127.0.0.1").output()?;
        if client.status.success() {
            break String::from_utf8_lossy(&client.stdout).into_owned();
        }
        if began.elapsed() > PATIENCE || server.0.try_wait()?.is_some() {
            return Err(format!("{program} came to nothing: {}", String::from_utf8_lossy(&client.stdout)).into());
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let numbers = |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    let row = text.lines().filter_map(numbers).rfind(|row| row.len() > 3);
    row.ok_or_else(|| format!("{program} printed no row of numbers: {text}").into())
}

/// A process that ends with its owner.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let names = pair::names(std::env::args().skip(1).collect())?;
    for queue_pairs in [QueuePairs::Reliable, QueuePairs::Unreliable] {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push((ours(&names, queue_pairs)?, perftest(&names, queue_pairs)?));
        }
        let of = |figure: &dyn Fn(&(Figures, Figures)) -> f64| median(rounds.iter().map(figure).collect());
        println!(
            "{queue_pairs:?}: 8 B in {:.1} µs, perftest {:.1} µs, ratio {:.2}; 1 MiB at {:.1} MiB/s, perftest {:.1} MiB/s, ratio {:.2}",
            of(&|(ours, _)| ours.latency),
            of(&|(_, theirs)| theirs.latency),
            of(&|(ours, theirs)| ours.latency / theirs.latency),
            of(&|(ours, _)| ours.bandwidth),
            of(&|(_, theirs)| theirs.bandwidth),
            of(&|(ours, theirs)| ours.bandwidth / theirs.bandwidth),
        );
    }
    Ok(())
}
