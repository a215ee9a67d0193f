//! The figures as text: a table per operation, one of what the sides use, and in one line per peer whether ours is slower
//! anywhere.

use std::fmt::Write;

use super::figures::Figures;
use super::plan::{Operation, Shape};
use super::sides::Side;
use crate::units::{rate_text, size_text, time_text};

/// A side's two columns.
const COLUMNS: usize = 24;

/// What there is to say about `shape`.
pub(crate) fn of_shape(figures: &Figures, sides: &[Side], shape: Shape) -> String {
    let mut text = format!("\n{}: the slowest rank's median, bus bandwidth as nccl-tests counts it\n", shape.text());
    for operation in [Operation::AllReduce, Operation::AllGather, Operation::SendRecv] {
        if figures.of(operation).next().is_some() {
            text += &times(figures, sides, shape, operation);
        }
    }
    text += &usage(figures, sides, shape);
    for (side, name) in sides.iter().map(Side::name).enumerate().skip(1) {
        text += &verdict(figures, shape, side, name);
    }
    text.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// The table of an operation: a line per size.
fn times(figures: &Figures, sides: &[Side], shape: Shape, operation: Operation) -> String {
    let ours = sides.first().map_or("", Side::name);
    let mut text = format!("\n{}\n{:>9}", operation.title(), "size");
    for (side, name) in sides.iter().map(Side::name).enumerate() {
        let _ = write!(text, "{name:>COLUMNS$}");
        if side > 0 {
            let _ = write!(text, "{:>14}", format!("{ours}:{name}"));
        }
    }
    for (i, measurement) in figures.of(operation) {
        let _ = write!(text, "\n{:>9}", size_text(measurement.size));
        for side in 0..sides.len() {
            let cell = figures.time(shape, side, i).map_or_else(
                || "-".to_string(),
                |us| {
                    let bandwidth = measurement.bus_bandwidth(shape.ranks, us);
                    format!("{} {:>12}", time_text(us), rate_text(bandwidth))
                },
            );
            let _ = write!(text, "{cell:>COLUMNS$}");
            if side > 0 {
                let ratio = figures.ratio(shape, side, i).map_or_else(|| "-".to_string(), ratio_text);
                let _ = write!(text, "{ratio:>14}");
            }
        }
    }
    text + "\n"
}

/// What each side uses.
fn usage(figures: &Figures, sides: &[Side], shape: Shape) -> String {
    let mut text = format!(
        "\n{:>9}{:>16}{:>16}{:>18}{:>28}\n",
        "", "CPU, all ranks", "peak memory", "before forming", "CPU while waiting 1 s"
    );
    for (side, name) in sides.iter().map(Side::name).enumerate() {
        let Some(cpu) = figures.median(shape, side, |turn| turn.cpu_seconds) else { continue };
        let memory = |bytes: Option<f64>| format!("{:.1} MiB", bytes.unwrap_or_default() / f64::from(1 << 20));
        let peak = memory(figures.median(shape, side, |turn| turn.peak as f64));
        let start = memory(figures.median(shape, side, |turn| turn.start as f64));
        let waiting = figures.waiting(shape, side);
        let waiting = waiting.map_or_else(|| "-".to_string(), |part| format!("{:.1} % of a processor", part * 100.0));
        let _ = writeln!(text, "{name:>9}{:>16}{peak:>16}{start:>18}{waiting:>28}", format!("{cpu:.2} s"));
    }
    text
}

/// Whether ours takes longer than a peer anywhere, by more than the table shows.
fn verdict(figures: &Figures, shape: Shape, side: usize, name: &str) -> String {
    let ratios: Vec<_> = figures
        .plan
        .iter()
        .enumerate()
        .filter(|(_, m)| m.operation != Operation::Wait)
        .filter_map(|(i, m)| Some((m, figures.ratio(shape, side, i)?)))
        .collect();
    let best = ratios.iter().map(|r| r.1).fold(f64::INFINITY, f64::min);
    let worst = ratios.iter().map(|r| r.1).fold(0.0, f64::max);
    if ratios.is_empty() {
        return String::new();
    }
    let slower: Vec<_> = ratios
        .iter()
        .filter(|(_, ratio)| *ratio > 1.0)
        .map(|(m, ratio)| format!("{} {} ({})", m.operation.name(), size_text(m.size), ratio_text(*ratio)))
        .collect();
    let slower = if slower.is_empty() { "nowhere".into() } else { format!("at {}", slower.join(", ")) };
    let (best, worst) = (ratio_text(best), ratio_text(worst));
    format!("\nours takes {best} to {worst} of {name}'s time; longer than {name}: {slower}\n")
}

/// A ratio with two digits that say something.
fn ratio_text(ratio: f64) -> String {
    if ratio < 0.095 { format!("{ratio:.3}") } else { format!("{ratio:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::tests::{TWO, figures};

    #[test]
    fn a_person_sees_times_bandwidths_ratios_and_where_ours_is_slower() {
        let (figures, sides) = figures();
        let text = of_shape(&figures, &sides, TWO);
        let expected = "
2 ranks, 1 connection: the slowest rank's median, bus bandwidth as nccl-tests counts it

all-reduce of float32, in place
     size                    ours                     mlx      ours:mlx
      8 B    5.50 µs    1.45 MB/s    55.0 µs     145 kB/s          0.10
    1 MiB     660 µs    1.59 GB/s     550 µs    1.91 GB/s          1.20

           CPU, all ranks     peak memory    before forming       CPU while waiting 1 s
     ours          1.50 s         3.0 MiB           2.0 MiB        0.1 % of a processor
      mlx          1.50 s         3.0 MiB           2.0 MiB        0.1 % of a processor

ours takes 0.10 to 1.20 of mlx's time; longer than mlx: at all_reduce 1 MiB (1.20)
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_side_without_figures_has_dashes() {
        let (figures, mut sides) = figures();
        sides.push(Side::OpenMpi { program: "c".into(), version: "v".into() });
        let text = of_shape(&figures, &sides, TWO);
        assert!(text.contains("     1.20                       -             -\n"), "{text}");
        assert!(!text.contains("openmpi's time"), "{text}");
    }
}
