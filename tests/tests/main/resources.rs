//! What a process uses stays as it was, whatever it has done. Only Linux tells what that is.

use super::{PATIENCE, host, ranks, words};
use nuvec_distributed_tests::harness::{Finished, run_ring};

/// By how much memory may differ, in KiB: what the allocator keeps at one time and not at another.
const SLACK: usize = 2 << 10;
/// What nuvec keeps of every group for ever, in KiB.
const ENTRY: usize = 1;

/// Asserts that `rank` uses no more at the end of its work than in the first half, apart from `groups` groups that
/// nuvec keeps.
fn assert_flat(rank: &Finished, groups: usize) {
    assert!(rank.status.success() && rank.said("@done").count() == 1, "{rank:?}");
    if !cfg!(target_os = "linux") {
        return;
    }
    let sample = |line: &str| line.split(' ').map(|number| number.parse().unwrap()).collect();
    let samples: Vec<Vec<usize>> = rank.said("@usage").map(sample).collect();
    assert_eq!(samples.len(), 10, "{rank:?}");
    // A large array that lives at the moment, or a thread that just ends, counts in some samples, and a busy machine is
    // late to give memory back; what leaks counts in all that follow, and grows.
    let (early, late) = (&samples[1..5], &samples[7..]);
    let grown = |what: usize| {
        let early = early.iter().map(|sample| sample[what]).max().unwrap();
        late.iter().map(|sample| sample[what]).min().unwrap().saturating_sub(early)
    };
    // What leaks with every operation is more in every sample. An allocator that begins to keep what it once gave back takes
    // one step, and no further.
    let before = |i: usize| samples[..i].iter().map(|sample| sample[0]).max().unwrap();
    let steps = (5..samples.len()).filter(|&i| samples[i][0] > before(i) + SLACK / 8).count();
    assert!(grown(0) <= SLACK + groups * ENTRY || steps < 2, "memory grew: {samples:?}");
    assert!(grown(1) == 0 && grown(2) == 0, "descriptors or threads: {samples:?}");
}

fn mixed(n: usize, operations: usize) {
    let finished = ranks(n, 2, |_| words(&format!("mixed {operations}")));
    for rank in &finished {
        assert_eq!(rank.said("@wrong").count(), 0, "{rank:?}");
        assert_flat(rank, 0);
    }
}

#[test]
fn mixed_operations_leave_nothing_behind() {
    mixed(2, 20_000);
}

#[test]
#[ignore = "takes a minute: cargo xtask test --exhaustive"]
fn a_hundred_thousand_mixed_operations_leave_nothing_behind() {
    mixed(3, 100_000);
}

fn churn(rounds: usize, more: &str) {
    // One rank's two addresses: the ring's two ranks are in its process.
    let finished = run_ring(host(), 1, 2, PATIENCE, &|_, command| {
        command.args(words(&format!("churn {rounds}{more}")));
    });
    assert_flat(&finished[0], rounds);
}

#[test]
fn connecting_and_closing_leaves_nothing_behind() {
    churn(200, "");
}

#[test]
fn connecting_in_vain_leaves_nothing_behind() {
    churn(200, " --in-vain");
}

#[test]
#[ignore = "takes a minute: cargo xtask test --exhaustive"]
fn connecting_a_thousand_times_leaves_nothing_behind() {
    churn(1_000, "");
    churn(1_000, " --in-vain");
}
