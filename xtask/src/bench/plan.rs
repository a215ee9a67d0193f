//! What is measured: operations, sizes and how many calls of each; and how bandwidths are counted.

/// What a call does. What a rank does for each stands in `collectives/examples/bench_rank/measure.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    AllReduce,
    AllGather,
    SendRecv,
    Wait,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Measurement {
    pub(crate) operation: Operation,
    /// The size as nccl-tests counts it: the array's in bytes, or for an all-gather the whole result's. For
    /// [`Operation::Wait`]: by how many milliseconds the last rank is late.
    pub(crate) size: u64,
    warm_ups: u64,
    calls: u64,
}

/// How many ranks, and how many connections from each to its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) ranks: usize,
    pub(crate) connections: usize,
}

/// By how many milliseconds the last rank is late.
const LATE: u64 = 1000;
/// How many bytes a measurement's calls move at the most. A slow side's ranks agree on fewer calls.
const BUDGET: u64 = 256 << 20;

/// Every operation at every size, in order of operations, then sizes.
pub(crate) fn measurements(operations: &[Operation], sizes: &[u64]) -> Vec<Measurement> {
    let mut plan = Vec::new();
    for &operation in operations {
        if operation == Operation::Wait {
            plan.push(Measurement { operation, size: LATE, warm_ups: 1, calls: 1 });
            continue;
        }
        for &size in sizes {
            let calls = (BUDGET / size.max(1)).clamp(3, 2000);
            plan.push(Measurement { operation, size, warm_ups: (calls / 50).max(2), calls });
        }
    }
    plan
}

/// Every number of ranks with every number of connections.
pub(crate) fn shapes(ranks: &[usize], connections: &[usize]) -> Vec<Shape> {
    ranks.iter().flat_map(|&ranks| connections.iter().map(move |&connections| Shape { ranks, connections })).collect()
}

impl Measurement {
    /// As the rank programs read it.
    pub(crate) fn argument(&self, ranks: usize) -> String {
        let Self { operation, size, warm_ups, calls } = self;
        let bytes = match operation {
            Operation::AllGather => (size / ranks as u64).max(1),
            _ => *size,
        };
        format!("{}:{bytes}:{warm_ups}:{calls}", operation.name())
    }

    /// The bus bandwidth of a call that takes `us` microseconds, in gigabytes (10⁹) a second: the size by the time, times
    /// what of it every connection carries at least, as nccl-tests counts it. So it can be compared with what a
    /// connection can carry, whatever the number of ranks.
    pub(crate) fn bus_bandwidth(&self, ranks: usize, us: f64) -> f64 {
        let others = (ranks - 1) as f64 / ranks as f64;
        let factor = match self.operation {
            Operation::AllReduce => 2.0 * others,
            Operation::AllGather => others,
            Operation::SendRecv => 1.0,
            Operation::Wait => 0.0,
        };
        if us > 0.0 { factor * self.size as f64 / us / 1000.0 } else { 0.0 }
    }
}

impl Operation {
    /// Its name in a measurement's argument and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::SendRecv => "send_recv",
            Self::Wait => "wait",
        }
    }

    /// Its name for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce of float32, in place",
            Self::AllGather => "all-gather, by the size of the result",
            Self::SendRecv => "send and receive in pairs, half of a round trip",
            Self::Wait => "waiting for a late rank",
        }
    }
}

impl Shape {
    /// In words.
    pub(crate) fn text(self) -> String {
        let plural = if self.connections == 1 { "" } else { "s" };
        format!("{} ranks, {} connection{plural}", self.ranks, self.connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_measured_at_every_size_and_waiting_once() {
        let plan = measurements(&[Operation::AllReduce, Operation::AllGather, Operation::Wait], &[8, 1 << 30]);
        let arguments: Vec<_> = plan.iter().map(|m| m.argument(4)).collect();
        assert_eq!(
            arguments,
            [
                "all_reduce:8:40:2000",
                "all_reduce:1073741824:2:3",
                "all_gather:2:40:2000",
                "all_gather:268435456:2:3",
                "wait:1000:1:1"
            ]
        );
        assert_eq!(measurements(&[Operation::AllGather], &[2])[0].argument(4), "all_gather:1:40:2000");
    }

    #[test]
    fn bus_bandwidth_counts_what_a_connection_carries() {
        let plan = measurements(&[Operation::AllReduce, Operation::AllGather, Operation::SendRecv], &[1 << 20]);
        let at = |ranks| plan.iter().map(|m| m.bus_bandwidth(ranks, 1048.576)).collect::<Vec<_>>();
        assert_eq!(at(2), [1.0, 0.5, 1.0]);
        assert_eq!(at(4), [1.5, 0.75, 1.0]);
        assert_eq!(plan[0].bus_bandwidth(2, 0.0), 0.0);
    }

    #[test]
    fn shapes_are_the_product() {
        let shapes = shapes(&[2, 4], &[1, 3]);
        assert_eq!(shapes.len(), 4);
        assert_eq!(shapes[1].text(), "2 ranks, 3 connections");
        assert_eq!(shapes[2].text(), "4 ranks, 1 connection");
    }
}
