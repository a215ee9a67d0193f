//! The turns of all sides, and what is made of them: medians over rounds, and ratios of what ran in the same round.

use serde_json::{Value, json};

use super::plan::{Measurement, Operation, Shape};
use super::run::Turn;
use super::sides::Side;

/// Everything that was measured.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) plan: Vec<Measurement>,
    turns: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    shape: Shape,
    side: usize,
    round: usize,
    turn: Turn,
}

impl Figures {
    pub(crate) fn new(plan: Vec<Measurement>) -> Self {
        Self { plan, turns: Vec::new() }
    }

    /// Side number `side`'s turn in a round.
    pub(crate) fn add(&mut self, shape: Shape, side: usize, round: usize, turn: Turn) {
        self.turns.push(Entry { shape, side, round, turn });
    }

    /// The shapes that there are turns of, in order.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        let mut shapes: Vec<_> = self.turns.iter().map(|e| e.shape).collect();
        shapes.dedup();
        shapes
    }

    /// The plan's measurements of an operation, with their numbers.
    pub(crate) fn of(&self, operation: Operation) -> impl Iterator<Item = (usize, &Measurement)> {
        self.plan.iter().enumerate().filter(move |(_, m)| m.operation == operation)
    }

    fn turns(&self, shape: Shape, side: usize) -> impl Iterator<Item = &Entry> {
        self.turns.iter().filter(move |e| e.shape == shape && e.side == side)
    }

    /// The median over a side's rounds of what `get` takes from each.
    pub(crate) fn median(&self, shape: Shape, side: usize, get: impl Fn(&Turn) -> f64) -> Option<f64> {
        median(self.turns(shape, side).map(|e| get(&e.turn)).collect())
    }

    /// A side's median time of a measurement, in microseconds.
    pub(crate) fn time(&self, shape: Shape, side: usize, measurement: usize) -> Option<f64> {
        self.median(shape, side, |turn| turn.times[measurement])
    }

    /// The time of side 0 by that of side `other`: the median of the rounds' ratios, since both ran within the same
    /// minute. Below 1, side 0 is faster.
    pub(crate) fn ratio(&self, shape: Shape, other: usize, measurement: usize) -> Option<f64> {
        let theirs = |round| self.turns(shape, other).find(|e| e.round == round);
        let ratios = self.turns(shape, 0).filter_map(|ours| {
            let theirs = theirs(ours.round)?.turn.times[measurement];
            (theirs > 0.0).then(|| ours.turn.times[measurement] / theirs)
        });
        median(ratios.collect())
    }

    /// How many measurements of how many sides have a time.
    pub(crate) fn count(&self) -> usize {
        let timed = |&(shape, side, i): &(Shape, usize, usize)| self.time(shape, side, i).is_some_and(|us| us > 0.0);
        let sides = self.turns.iter().map(|e| e.side + 1).max().unwrap_or_default();
        let all = self
            .shapes()
            .into_iter()
            .flat_map(|shape| (0..sides).flat_map(move |side| (0..self.plan.len()).map(move |i| (shape, side, i))));
        all.filter(timed).count()
    }

    /// As JSON; `sides` by their numbers.
    pub(crate) fn json(&self, sides: &[Side]) -> Value {
        let (mut measurements, mut usage) = (Vec::new(), Vec::new());
        for shape in self.shapes() {
            for (side, name) in sides.iter().map(Side::name).enumerate() {
                for (i, measurement) in self.plan.iter().enumerate() {
                    let Some(us) = self.time(shape, side, i) else { continue };
                    if measurement.operation == Operation::Wait {
                        continue;
                    }
                    measurements.push(json!({
                        "ranks": shape.ranks,
                        "connections": shape.connections,
                        "operation": measurement.operation.name(),
                        "bytes": measurement.size,
                        "side": name,
                        "median_us": us,
                        "rounds_us": self.turns(shape, side).map(|e| e.turn.times[i]).collect::<Vec<_>>(),
                        "bus_gigabytes_per_second": measurement.bus_bandwidth(shape.ranks, us),
                        "cpu_us": self.median(shape, side, |turn| turn.cpu[i]),
                        "ours_to_this": if side > 0 { self.ratio(shape, side, i) } else { None },
                    }));
                }
                let Some(cpu_seconds) = self.median(shape, side, |turn| turn.cpu_seconds) else { continue };
                usage.push(json!({
                    "ranks": shape.ranks,
                    "connections": shape.connections,
                    "side": name,
                    "cpu_seconds": cpu_seconds,
                    "peak_bytes": self.median(shape, side, |turn| turn.peak as f64),
                    "start_bytes": self.median(shape, side, |turn| turn.start as f64),
                    "waiting_cpu": self.waiting(shape, side),
                }));
            }
        }
        json!({
            "processors": std::thread::available_parallelism().map_or(1, |n| n.get()),
            "system": [std::env::consts::OS, std::env::consts::ARCH],
            "sides": sides.iter().map(|s| json!({ "name": s.name(), "is": s.description() })).collect::<Vec<_>>(),
            "measurements": measurements,
            "usage": usage,
        })
    }

    /// What part of a processor a waiting rank uses, if that was measured.
    pub(crate) fn waiting(&self, shape: Shape, side: usize) -> Option<f64> {
        median(self.turns(shape, side).filter_map(|e| e.turn.waiting).collect())
    }
}

/// The middle one, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::plan::measurements;

    pub(crate) const TWO: Shape = Shape { ranks: 2, connections: 1 };

    pub(crate) fn turn(times: &[f64]) -> Turn {
        Turn {
            times: times.to_vec(),
            cpu: times.iter().map(|us| us * 2.0).collect(),
            waiting: Some(0.001),
            cpu_seconds: 1.5,
            peak: 3 << 20,
            start: 2 << 20,
        }
    }

    /// Ours and MLX's, in three rounds of which the last is slow; 8 B and 1 MiB.
    pub(crate) fn figures() -> (Figures, Vec<Side>) {
        let mut figures = Figures::new(measurements(&[Operation::AllReduce, Operation::Wait], &[8, 1 << 20]));
        for (round, slow) in [1.0, 1.1, 8.0].into_iter().enumerate() {
            figures.add(TWO, 0, round, turn(&[5.0 * slow, 600.0 * slow, 1000.0]));
            figures.add(TWO, 1, round, turn(&[50.0 * slow, 500.0 * slow, 1000.0]));
        }
        (figures, vec![Side::Ours { program: "a".into() }, Side::Mlx { python: "b".into() }])
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![5.0, 1.0, 9.0]), Some(5.0));
        assert_eq!(median(vec![2.0, 1.0]), Some(1.5));
        assert_eq!(median(vec![]), None);
    }

    #[test]
    fn ratios_are_of_the_same_round_and_a_slow_round_does_not_move_them() {
        let (figures, sides) = figures();
        assert_eq!(figures.time(TWO, 0, 0), Some(5.5));
        assert_eq!(figures.ratio(TWO, 1, 0), Some(0.1));
        assert_eq!(figures.ratio(TWO, 1, 1), Some(1.2));
        assert_eq!(figures.ratio(TWO, 2, 0), None);
        assert_eq!(figures.count(), 6);
        let json = figures.json(&sides);
        assert_eq!(json["measurements"].as_array().unwrap().len(), 4);
        assert_eq!(json["measurements"][3]["ours_to_this"], 1.2);
        assert_eq!(json["measurements"][1]["cpu_us"], 1320.0);
        assert_eq!(json["usage"][1]["waiting_cpu"], 0.001);
    }

    #[test]
    fn a_round_that_one_side_lacks_gives_no_ratio() {
        let mut figures = Figures::new(measurements(&[Operation::SendRecv], &[8]));
        figures.add(TWO, 0, 0, turn(&[5.0]));
        figures.add(TWO, 0, 1, turn(&[8.0]));
        figures.add(TWO, 1, 1, turn(&[2.0]));
        assert_eq!(figures.ratio(TWO, 1, 0), Some(4.0));
    }
}
