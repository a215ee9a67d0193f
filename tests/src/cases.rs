//! The checks through the facade, with nuvec arrays: every collective × dtype × size class.
//!
//! Every rank runs the same cases in the same order. Each compares the result with a reference that is computed from the
//! same seed on this rank alone, then compares digests of all ranks' results. A wrong result does not stop a rank, so
//! that all stay in step; an error of a call does, for the group has failed.

use std::collections::BTreeSet;

use nuvec_collectives::Reduction;
use nuvec_core::Array;
use nuvec_core::distributed::{self, Group};
use nuvec_launch_env::Topology;

use crate::sample::{Sample, digest, hash};
use crate::{for_each_dtype, groups, jaccl, mlx_wire};

/// One rank's view of the ring while it checks.
pub struct Ring {
    /// The group, through the facade.
    pub group: Group,
    /// Where the data's random numbers begin; the same on every rank.
    pub seed: u64,
    /// The check whose result this rank spoils, if any.
    pub spoil: Option<String>,
    /// Whether it did.
    pub spoiled: bool,
}

/// Why a check failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A call returned an error: the group cannot go on.
    Call(String),
    /// A result is wrong; the group lives.
    Wrong(String),
}

impl Failure {
    /// The same of a part of a check.
    pub(crate) fn about(self, part: &str) -> Self {
        match self {
            Self::Call(text) => Self::Call(format!("{part}: {text}")),
            Self::Wrong(text) => Self::Wrong(format!("{part}: {text}")),
        }
    }
}

impl From<nuvec_core::Error> for Failure {
    fn from(error: nuvec_core::Error) -> Self {
        Self::Call(error.to_string())
    }
}

/// The operations of [`crate::second`].
const SECOND: [&str; 3] = ["barrier", "broadcast", "reduce_scatter"];

/// What a check runs.
type Work = Box<dyn Fn(&mut Ring, &str) -> Result<(), Failure>>;

/// A check.
pub struct Case {
    /// What is checked, such as `all_sum/float32/1000`.
    pub name: String,
    work: Work,
}

impl Case {
    /// The check `name`, which runs `work` with that name.
    pub fn new(name: String, work: impl Fn(&mut Ring, &str) -> Result<(), Failure> + 'static) -> Self {
        Self { name, work: Box::new(work) }
    }

    /// Runs it.
    pub fn run(&self, ring: &mut Ring) -> Result<(), Failure> {
        self.run_as(ring, &self.name)
    }

    /// Runs it with the data of another name.
    pub(crate) fn run_as(&self, ring: &mut Ring, name: &str) -> Result<(), Failure> {
        (self.work)(ring, name)
    }
}

/// Which checks.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Fewer lengths.
    pub quick: bool,
    /// These sizes in bytes in place of the built-in lengths, if there are any.
    pub sizes: Vec<usize>,
    /// Only the check of this name, or those whose name begins with it and a slash.
    pub only: Option<String>,
    /// What MLX's wire has, in place of what the native one has.
    pub mlx_wire: bool,
    /// What JACCL has in such a topology, in place of what a ring over TCP has.
    pub jaccl: Option<Topology>,
}

impl Selection {
    /// A number that ranks share if they check the same with the same data.
    pub fn fingerprint(&self, seed: u64) -> u64 {
        digest(format!("{seed} {self:?}").bytes().map(u64::from))
    }

    /// Whether a ring of `ranks` ranks with `connections` connections to each neighbour may have a wanted check: an error
    /// of one line if not. Of the operations of [`crate::second`] only the names are known before that group is formed.
    pub fn validate(&self, ranks: usize, connections: usize) -> Result<(), String> {
        let Some(only) = &self.only else { return Ok(()) };
        let all = cases(ranks, connections, &Self { only: None, ..self.clone() });
        let of_second: &[&str] = if self.mlx_wire { &[] } else { &SECOND };
        let operation = |name: &str| name.split('/').next().unwrap_or_default().to_string();
        if of_second.contains(&operation(only).as_str()) || all.iter().any(|case| self.wants(&case.name)) {
            return Ok(());
        }
        let mut operations: BTreeSet<_> = all.iter().map(|case| operation(&case.name)).collect();
        operations.extend(of_second.iter().map(ToString::to_string));
        let operations: Vec<_> = operations.into_iter().collect();
        Err(format!(
            "--only {only}: there is no such check; checks are named such as all_sum, all_sum/float32 or \
             all_sum/float32/1000; operations: {}",
            operations.join(", ")
        ))
    }

    /// Whether a check of this name is wanted.
    pub fn wants(&self, name: &str) -> bool {
        match &self.only {
            Some(only) => name.strip_prefix(only.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            None => true,
        }
    }

    /// The lengths, in elements of `width` bytes, that every operation is checked with.
    pub fn lengths(&self, ranks: usize, width: usize) -> BTreeSet<usize> {
        if !self.sizes.is_empty() {
            return self.sizes.iter().map(|bytes| bytes / width).collect();
        }
        let mut lengths = BTreeSet::from([0, 1, ranks - 1, ranks, ranks + 1, 251, 1000]);
        if !self.quick {
            lengths.extend([5, 4099, 65_537]);
        }
        lengths
    }

    /// Further lengths of float32: around the sizes at which an algorithm, or the number of lanes, changes, and long
    /// ones.
    pub fn long_lengths(&self, ranks: usize, connections: usize) -> BTreeSet<usize> {
        let mut lengths = BTreeSet::new();
        if !self.sizes.is_empty() {
            return lengths;
        }
        lengths.extend([65_537]);
        if self.quick {
            return lengths;
        }
        lengths.extend([1 << 20, (1 << 20) + 1]);
        // Powers of two from 1 KiB to 512 KiB, and MLX's rule: a lane more for every 256 KiB per rank, up to two per
        // connection.
        let mut edges: Vec<usize> = (10..20).map(|power| (1 << power) / 4).collect();
        edges.extend([2, 2 * connections].map(|lanes| lanes * ranks * (1 << 18) / 4));
        for edge in edges {
            lengths.extend([edge - 1, edge, edge + 1]);
        }
        lengths
    }
}

/// nuvec's call of a reduction.
pub(crate) fn call(reduction: Reduction, x: &Array, group: &Group) -> Array {
    let call = match reduction {
        Reduction::Max => distributed::all_max,
        Reduction::Min => distributed::all_min,
        _ => distributed::all_sum,
    };
    call(x, Some(group))
}

/// What a reduction makes of two values.
pub(crate) fn reduce<T: Sample>(reduction: Reduction, a: T, b: T) -> T {
    match reduction {
        Reduction::Max => a.max(b),
        Reduction::Min => a.min(b),
        _ => a.sum(b),
    }
}

/// Every wanted check of a ring of `ranks` ranks with `connections` connections to each neighbour.
pub fn cases(ranks: usize, connections: usize, selection: &Selection) -> Vec<Case> {
    let mut cases = Vec::new();
    for_each_dtype!(of_dtype(ranks, selection, &mut cases));
    for length in selection.long_lengths(ranks, connections) {
        for reduction in Reduction::ALL {
            cases.push(all_reduce::<f32>(reduction, length));
        }
        cases.push(gather::<f32>(length));
    }
    let rough = if selection.quick { vec![1000] } else { vec![7, 1000, 65_537, 1 << 18] };
    for length in rough {
        cases.push(agreement::<nuvec_core::f16>(length));
        cases.push(agreement::<nuvec_core::bf16>(length));
        cases.push(agreement::<f32>(length));
        cases.push(agreement::<f64>(length));
        cases.push(agreement::<nuvec_core::Complex64>(length));
    }
    cases.extend(match selection.jaccl {
        _ if selection.mlx_wire => mlx_wire::cases(ranks, connections, selection),
        Some(topology) => jaccl::cases(topology, ranks, connections, selection),
        None => groups::cases(ranks, selection),
    });
    let mut seen = BTreeSet::new();
    cases.retain(|case| selection.wants(&case.name) && seen.insert(case.name.clone()));
    cases
}

fn of_dtype<T: Sample>(ranks: usize, selection: &Selection, cases: &mut Vec<Case>) {
    cases.push(scalar::<T>());
    for length in selection.lengths(ranks, T::DTYPE.size()) {
        cases.extend(Reduction::ALL.map(|reduction| all_reduce::<T>(reduction, length)));
        cases.push(gather::<T>(length));
        // Alone, there is nobody to send to.
        if ranks > 1 {
            cases.push(neighbour::<T>(1, "send_right", length));
            cases.push(neighbour::<T>(ranks - 1, "send_left", length));
        }
    }
}

fn name<T: Sample>(operation: &str, length: impl std::fmt::Display) -> String {
    format!("{operation}/{}/{length}", T::DTYPE.name())
}

impl Ring {
    /// A rank's data for the check `name`.
    pub(crate) fn data<T: Sample>(&self, name: &str, rank: usize, length: usize) -> Vec<T> {
        let seed = self.seed_of(name);
        (0..length).map(|i| T::exact(hash(seed, rank, i), self.group.size())).collect()
    }

    /// Every check has its own numbers, whether it runs alone or among others.
    pub(crate) fn seed_of(&self, name: &str) -> u64 {
        digest(std::iter::once(self.seed).chain(name.bytes().map(u64::from)))
    }

    /// Compares a result with the reference, bit by bit. This is where `spoil` strikes.
    pub(crate) fn compare<T: Sample>(&mut self, name: &str, got: &mut [T], expected: &[T]) -> Result<(), Failure> {
        if self.spoil.as_deref() == Some(name) && !got.is_empty() {
            let at = got.len() / 2;
            got[at] = got[at].spoiled();
            self.spoiled = true;
        }
        if got.len() != expected.len() {
            let text = format!("the result has {} elements, expected {}", got.len(), expected.len());
            return Err(Failure::Wrong(text));
        }
        let mut wrong = got.iter().zip(expected).enumerate().filter(|(_, (g, e))| g.bits() != e.bits());
        let Some((at, (g, e))) = wrong.next() else { return Ok(()) };
        let more = wrong.count();
        let text = format!("element {at} of {} is {g:?}, expected {e:?} ({more} more are wrong)", got.len());
        Err(Failure::Wrong(text))
    }

    /// Compares all ranks' [fingerprints](Selection::fingerprint). Every rank must call it.
    pub fn same_cases(&self, selection: &Selection) -> Result<(), Failure> {
        let own = Array::from_slice(&[selection.fingerprint(self.seed)], [1]);
        let all = distributed::all_gather(&own, Some(&self.group)).to_vec::<u64>()?;
        match other_than(&all, self.group.rank()) {
            Some(rank) => Err(Failure::Wrong(format!(
                "rank {rank} checks other cases than this rank: give every machine the same --seed, --sizes, --only and \
                 --quick"
            ))),
            None => Ok(()),
        }
    }

    /// Compares all ranks' results by their digests. Every rank must call it.
    pub(crate) fn agree<T: Sample>(&self, got: &[T]) -> Result<(), Failure> {
        let own = digest(got.iter().map(|value| value.bits()));
        let all = distributed::all_gather(&Array::from_slice(&[own], [1]), Some(&self.group)).to_vec::<u64>()?;
        match all.iter().position(|digest| *digest != all[0]) {
            Some(rank) => Err(Failure::Wrong(format!("ranks 0 and {rank} have different bits (digests {all:x?})"))),
            None => Ok(()),
        }
    }
}

/// The first rank whose fingerprint is not that of rank `own`.
fn other_than(fingerprints: &[u64], own: usize) -> Option<usize> {
    fingerprints.iter().position(|other| fingerprints.get(own) != Some(other))
}

/// The outcome of two parts of a check: an error of a call first, for it ends the group.
pub(crate) fn both(first: Result<(), Failure>, second: Result<(), Failure>) -> Result<(), Failure> {
    if matches!(second, Err(Failure::Call(_))) { second } else { first.and(second) }
}

pub(crate) fn all_reduce<T: Sample>(reduction: Reduction, length: usize) -> Case {
    Case::new(name::<T>(&format!("all_{}", reduction.name()), length), move |ring, name| {
        let x = Array::from(ring.data::<T>(name, ring.group.rank(), length));
        let mut got = call(reduction, &x, &ring.group).to_vec::<T>()?;
        let mut expected = ring.data::<T>(name, 0, length);
        for rank in 1..ring.group.size() {
            for (e, x) in expected.iter_mut().zip(ring.data::<T>(name, rank, length)) {
                *e = reduce(reduction, *e, x);
            }
        }
        let good = ring.compare(name, &mut got, &expected);
        both(good, ring.agree(&got))
    })
}

/// A sum of scalars keeps the shape; gathered scalars make a vector.
fn scalar<T: Sample>() -> Case {
    Case::new(name::<T>("all_sum", "scalar"), |ring, name| {
        let size = ring.group.size();
        let x = Array::from(ring.data::<T>(name, ring.group.rank(), 1)[0]);
        let sum = distributed::all_sum(&x, Some(&ring.group));
        let gathered = distributed::all_gather(&x, Some(&ring.group));
        let mut got = sum.to_vec::<T>()?;
        let all: Vec<T> = (0..size).flat_map(|rank| ring.data::<T>(name, rank, 1)).collect();
        let parts = gathered.to_vec::<T>()?;
        let total = all.iter().copied().reduce(T::sum).into_iter().collect::<Vec<_>>();
        let good = ring.compare(name, &mut got, &total);
        let bits = |values: &[T]| values.iter().map(|v| v.bits()).collect::<Vec<_>>();
        if sum.ndim() != 0 || bits(&parts) != bits(&all) {
            return Err(Failure::Wrong(format!("scalars {all:?} gather to {parts:?}, sum to shape {:?}", sum.shape())));
        }
        good
    })
}

pub(crate) fn gather<T: Sample>(length: usize) -> Case {
    Case::new(name::<T>("all_gather", length), move |ring, name| {
        let x = Array::from(ring.data::<T>(name, ring.group.rank(), length));
        let mut got = distributed::all_gather(&x, Some(&ring.group)).to_vec::<T>()?;
        let expected: Vec<T> = (0..ring.group.size()).flat_map(|rank| ring.data::<T>(name, rank, length)).collect();
        let good = ring.compare(name, &mut got, &expected);
        both(good, ring.agree(&got))
    })
}

/// Every rank sends to the rank `distance` further on, and receives from the one that far back.
pub(crate) fn neighbour<T: Sample>(distance: usize, operation: &str, length: usize) -> Case {
    Case::new(name::<T>(operation, length), move |ring, name| {
        let (rank, size) = (ring.group.rank(), ring.group.size());
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        let x = Array::from(ring.data::<T>(name, rank, length));
        let sent = distributed::send(&x, to, Some(&ring.group));
        let received = distributed::recv([length], T::DTYPE, from, Some(&ring.group));
        // Large data waits for its receiver, so not all may send first.
        let mut got = if rank % 2 == 0 {
            sent.eval()?;
            received.to_vec::<T>()?
        } else {
            let got = received.to_vec::<T>()?;
            sent.eval()?;
            got
        };
        let expected = ring.data::<T>(name, from, length);
        ring.compare(name, &mut got, &expected)
    })
}

/// Sums whose bits depend on the order of addition: all ranks must have the same.
fn agreement<T: Sample>(length: usize) -> Case {
    Case::new(name::<T>("same_bits", length), move |ring, name| {
        let seed = ring.seed_of(name);
        let rank = ring.group.rank();
        let x: Array = (0..length).map(|i| T::rough(hash(seed, rank, i))).collect();
        let mut got = distributed::all_sum(&x, Some(&ring.group)).to_vec::<T>()?;
        // Spoils, if it is this check that is to be spoiled: the reference is the result itself.
        let expected = got.clone();
        let good = ring.compare(name, &mut got, &expected);
        both(good, ring.agree(&got))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(ranks: usize, selection: &Selection) -> Vec<String> {
        cases(ranks, 2, selection).into_iter().map(|case| case.name).collect()
    }

    #[test]
    fn every_collective_and_dtype_and_size_class_is_there() {
        let quick = names(4, &Selection { quick: true, ..Selection::default() });
        let full = names(4, &Selection::default());
        assert!(quick.iter().all(|name| full.contains(name)));
        for operation in ["all_sum", "all_max", "all_min", "all_gather", "send_right", "send_left"] {
            for dtype in nuvec_collectives::DType::ALL {
                for length in [0, 1, 3, 4, 5, 251, 1000, 65_537] {
                    let name = format!("{operation}/{dtype}/{length}");
                    assert!(full.contains(&name), "no {name}");
                }
            }
        }
        assert!(full.contains(&"all_sum/float32/1048576".into()));
        assert_eq!(full.iter().collect::<BTreeSet<_>>().len(), full.len());
    }

    #[test]
    fn a_selection_takes_a_name_or_what_is_below_it() {
        let only = |only: &str| Selection { only: Some(only.into()), ..Selection::default() };
        assert_eq!(names(2, &only("all_sum/int8/1")), ["all_sum/int8/1"]);
        assert!(names(2, &only("all_sum/int8")).len() > 5);
        assert!(names(2, &only("all_sum/int")).is_empty());
        let sizes = Selection { sizes: vec![8, 64], ..Selection::default() };
        assert!(names(2, &sizes).contains(&"all_max/float32/16".into()));
        assert!(!names(2, &sizes).contains(&"all_max/float32/1000".into()));
    }

    #[test]
    fn a_name_that_selects_nothing_is_an_error_that_lists_the_operations() {
        let only = |only: &str, mlx_wire| Selection { only: Some(only.into()), mlx_wire, ..Selection::default() };
        for name in ["all_sum", "all_sum/float32", "all_sum/float32/1000", "split/halves", "barrier"] {
            only(name, false).validate(2, 1).unwrap();
        }
        let error = only("all_sume", false).validate(2, 1).unwrap_err();
        assert!(error.starts_with("--only all_sume: there is no such check; "), "{error}");
        assert!(error.contains("operations: all_gather, all_max, ") && error.contains(", reduce_scatter, "), "{error}");
        let error = only("barrier", true).validate(2, 1).unwrap_err();
        assert!(error.contains(", refused, ") && !error.contains("reduce_scatter"), "{error}");
        Selection::default().validate(2, 1).unwrap();
    }

    #[test]
    fn ranks_with_another_seed_or_selection_are_told_apart() {
        let plain = Selection::default();
        let others = [
            Selection { quick: true, ..plain.clone() },
            Selection { sizes: vec![8], ..plain.clone() },
            Selection { only: Some("all_sum".into()), ..plain.clone() },
        ];
        let mut all: Vec<_> = others.iter().map(|other| other.fingerprint(1)).collect();
        all.extend([plain.fingerprint(1), plain.fingerprint(2)]);
        for (rank, own) in all.iter().enumerate() {
            assert_eq!(other_than(&all, rank), Some(usize::from(rank == 0)));
            assert_eq!(other_than(&[*own; 3], 1), None);
        }
        assert_eq!(plain.fingerprint(1), plain.clone().fingerprint(1));
        alone(None).same_cases(&plain).unwrap();
    }

    #[test]
    fn mlxs_wire_is_checked_for_its_bits_and_for_what_it_has_not() {
        let names = names(4, &Selection { mlx_wire: true, quick: true, ..Selection::default() });
        for name in ["mlx_bits/max/float16/1000", "mlx_bits/sum/float32/524289", "refused/split", "refused/send_across"]
        {
            assert!(names.contains(&name.into()), "no {name}");
        }
        assert!(!names.iter().any(|name| name.starts_with("split/") || name.starts_with("pairs/")));
    }

    #[test]
    fn jaccl_is_checked_for_what_its_topology_has_and_has_not() {
        let names = |topology| names(4, &Selection { jaccl: Some(topology), quick: true, ..Selection::default() });
        let (mesh, ring) = (names(Topology::Mesh), names(Topology::Ring));
        for name in
            ["order/float16/1000", "back_to_back/float32", "mixed/200", "refused/split", "all_sum/float32/1048576"]
        {
            assert!(mesh.contains(&name.into()) && ring.contains(&name.into()), "no {name}");
        }
        assert!(mesh.contains(&"pairs/1000".into()) && !mesh.contains(&"refused/send_across".into()));
        assert!(!ring.contains(&"pairs/1000".into()) && ring.contains(&"refused/send_across".into()));
    }

    fn alone(spoil: Option<&str>) -> Ring {
        Ring { group: Group::single(), seed: 3, spoil: spoil.map(String::from), spoiled: false }
    }

    #[test]
    fn a_rank_alone_passes_every_check_and_a_spoiled_one_fails() {
        let selection = Selection { quick: true, ..Selection::default() };
        for case in cases(1, 1, &selection) {
            case.run(&mut alone(None)).unwrap_or_else(|e| panic!("{}: {e:?}", case.name));
        }
        let case = cases(1, 1, &Selection { only: Some("all_sum/float32/1000".into()), ..selection }).remove(0);
        let mut ring = alone(Some("all_sum/float32/1000"));
        let Err(Failure::Wrong(text)) = case.run(&mut ring) else { panic!("the spoiled element was not found") };
        assert!(ring.spoiled && text.starts_with("element 500 of 1000 is "), "{text}");
    }

    #[test]
    fn a_check_has_its_own_data_wherever_it_runs() {
        let ring = alone(None);
        assert_ne!(ring.data::<u64>("a", 0, 4), ring.data::<u64>("b", 0, 4));
        assert_ne!(ring.data::<u64>("a", 0, 4), ring.data::<u64>("a", 1, 4));
        assert_eq!(ring.data::<u64>("a", 0, 4), ring.data::<u64>("a", 0, 4));
    }
}
