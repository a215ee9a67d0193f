//! Who holds everybody up: read from the table when an operation has run out of time.
//!
//! The ranks that a rank waits for wait for others in turn. The search goes through them, nearest first, for one that is
//! gone or silent, else for one that is idle or in another call: that one is to blame. If there is none and the waits are
//! for messages, the ranks wait for each other: a deadlock.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use nuvec_transport::GroupId;

use super::status::{InCall, Table};
use crate::call::Doing;

/// A rank's own call that ran out of time.
#[derive(Debug, Clone)]
pub(super) struct Stuck {
    pub(super) rank: u32,
    pub(super) group: GroupId,
    pub(super) doing: Doing,
    pub(super) sequence: u64,
    pub(super) waits: Vec<u32>,
}

/// Who is to blame. Texts follow the rank's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This rank, for this.
    Rank { rank: u32, text: String },
    /// These wait for each other, each for the next and the last for the first.
    Deadlock { cycle: Vec<u32>, text: String },
    /// The table does not tell.
    Unknown,
}

/// How the search came to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It has a part in the collective that is stuck.
    Collective,
    /// A message is to come from it, or to go to it.
    Message,
    /// A stream to it is being opened, for which it need not be in a call.
    Connection,
    /// A rank on the way waits for it in another call than the one that is stuck.
    Elsewhere,
}

/// Who is to blame for `stuck`, by what the ranks last said: the nearest rank that is gone or silent, whatever the calls
/// that wait for it; else the nearest that is in no call or in another one. A rank is silent if nothing was heard of it
/// for `patience`.
pub(super) fn find(table: &Table, stuck: &Stuck, now: Duration, patience: Duration) -> Verdict {
    let mut seen = vec![stuck.rank];
    let mut suspect = None;
    let way = match stuck.doing {
        Doing::CONNECT => Way::Connection,
        doing if doing.is_message() => Way::Message,
        _ => Way::Collective,
    };
    let mut queue: VecDeque<(Way, u32)> = stuck.waits.iter().map(|&w| (way, w)).collect();
    while let Some((way, rank)) = queue.pop_front() {
        if seen.contains(&rank) {
            continue;
        }
        seen.push(rank);
        let blame = |text: String| Verdict::Rank { rank, text };
        let Some(report) = table.get(rank) else {
            // It may have worked all along, and left where no control link tells of it.
            return blame(
                "has given no sign of life lately: it is stopped, has ended, or its machine or link is down".into(),
            );
        };
        if report.gone {
            return blame("has left".into());
        }
        let silent = now.saturating_sub(report.heard);
        if silent > patience {
            return blame(format!(
                "has given no sign of life for {:.1} s: it is stopped, or its machine or link is down",
                silent.as_secs_f64()
            ));
        }
        let (name, sequence) = (stuck.doing.name(), stuck.sequence);
        let here = report.calls.iter().find(|c| c.group == stuck.group);
        let text = match (way, here) {
            (Way::Connection, _) => continue,
            (Way::Message, Some(call)) if call.doing.is_message() => {
                queue.extend(call.waits.iter().map(|&w| (way, w)));
                continue;
            }
            (Way::Collective, Some(call)) if (call.doing, call.sequence) == (stuck.doing, stuck.sequence) => {
                queue.extend(call.waits.iter().map(|&w| (way, w)));
                continue;
            }
            // A rank that is further on has done its part of this call.
            (Way::Collective, Some(call)) if !call.doing.is_message() && call.sequence > stuck.sequence => continue,
            (_, Some(call)) => {
                format!(
                    "is alive but has not reached {name} #{sequence}: it is in {} #{}",
                    call.doing.name(),
                    call.sequence
                )
            }
            (_, None) => {
                let elsewhere = match report.calls.first() {
                    Some(call) => format!("it is in {} #{} of another group", call.doing.name(), call.sequence),
                    None => "it is in no call".into(),
                };
                let counterpart = if way == Way::Message { "'s counterpart" } else { "" };
                format!("is alive but has not reached {name} #{sequence}{counterpart}: {elsewhere}")
            }
        };
        // It may be held up itself, by a rank that is not there.
        queue.extend(report.calls.iter().flat_map(|call| &call.waits).map(|&w| (Way::Elsewhere, w)));
        if way != Way::Elsewhere {
            suspect.get_or_insert(blame(text));
        }
    }
    suspect.or_else(|| deadlock(table, stuck)).unwrap_or(Verdict::Unknown)
}

/// The cycle of waits for messages that begins at this rank, if it comes back to it, or the one that it leads into. A rank
/// that connects is in none: its peer need not be in a call for that. Nor is a rank that receives what its peer sends it:
/// there the bytes do not come through.
fn deadlock(table: &Table, stuck: &Stuck) -> Option<Verdict> {
    if !stuck.doing.is_message() {
        return None;
    }
    let mut path = vec![(stuck.rank, stuck.doing)];
    let mut next = *stuck.waits.first()?;
    let start = loop {
        if let Some(at) = path.iter().position(|&(rank, _)| rank == next) {
            break at;
        }
        let call = table.get(next)?.calls.iter().find(|c| c.group == stuck.group && c.doing.is_message())?;
        path.push((next, call.doing));
        next = *call.waits.first()?;
    };
    let cycle = &path[start..];
    if cycle.iter().any(|&(_, doing)| doing == Doing::CONNECT) {
        return None;
    }
    if let [(_, one), (_, other)] = cycle
        && one != other
    {
        return None;
    }
    let mut text = String::from("deadlock, every rank waits for the next: ");
    let of_all = if stuck.group == GroupId::ROOT { "" } else { " of all" };
    for (rank, doing) in cycle {
        let _ = write!(text, "rank {rank}{of_all} in {}, ", doing.name());
    }
    let _ = write!(text, "back to rank {}{of_all}", cycle[0].0);
    Some(Verdict::Deadlock { cycle: cycle.iter().map(|&(rank, _)| rank).collect(), text })
}

/// Where each of `size` ranks stands, in one line: in which call of `group`, or else of another.
pub(super) fn standing(table: &Table, size: usize, group: GroupId, now: Duration) -> String {
    /// More would make the line unreadable.
    const SHOWN: usize = 16;
    let mut text = String::new();
    for rank in 0..size.min(SHOWN) as u32 {
        let _ = write!(text, "{}rank {rank} ", if rank > 0 { ", " } else { "" });
        let _ = match table.get(rank) {
            None => write!(text, "silent"),
            Some(report) if report.gone => write!(text, "gone"),
            Some(report) => match report.calls.iter().find(|c| c.group == group).or(report.calls.first()) {
                None => write!(text, "idle"),
                Some(call) => write!(text, "in {}", describe(call, now.saturating_sub(report.heard))),
            },
        };
    }
    if size > SHOWN {
        text.push_str(", …");
    }
    text
}

/// A call that was in progress when it was reported `ago`.
fn describe(call: &InCall, ago: Duration) -> String {
    let mut text = format!("{} #{}", call.doing.name(), call.sequence);
    if let Some((first, rest)) = call.waits.split_first() {
        let _ = write!(text, " waiting for {first}");
        for rank in rest {
            let _ = write!(text, " and {rank}");
        }
    }
    let _ = write!(text, " for {:.1} s", (call.age + ago).as_secs_f64());
    text
}

#[cfg(test)]
mod tests {
    use super::super::status::{Entry, State, entries};
    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const PATIENCE: Duration = Duration::from_secs(15);

    fn call(doing: Doing, sequence: u64, waits: &[u32]) -> Vec<InCall> {
        vec![InCall { group: GroupId::ROOT, doing, sequence, waits: waits.to_vec(), age: Duration::from_secs(30) }]
    }

    fn table(reports: &[(u32, u64, Vec<InCall>)]) -> Table {
        let mut table = Table::default();
        for (rank, heard, calls) in reports {
            table.take(entries(*rank, 1, calls.clone()), Duration::from_secs(*heard));
        }
        table
    }

    fn stuck(doing: Doing, waits: &[u32]) -> Stuck {
        Stuck { rank: 0, group: GroupId::ROOT, doing, sequence: 7, waits: waits.to_vec() }
    }

    fn blamed(verdict: Verdict) -> (u32, String) {
        match verdict {
            Verdict::Rank { rank, text } => (rank, text),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_chain_of_waits_leads_to_the_silent_rank() {
        let sum = Doing::ALL_SUM;
        let t = table(&[(1, 99, call(sum, 7, &[2])), (2, 80, call(sum, 7, &[1])), (3, 99, call(sum, 7, &[2]))]);
        let (rank, text) = blamed(find(&t, &stuck(sum, &[3, 1]), NOW, PATIENCE));
        assert!(rank == 2 && text.contains("no sign of life for 20.0 s"), "{text}");
    }

    #[test]
    fn a_rank_that_is_idle_or_in_another_call_is_named_with_it() {
        let sum = Doing::ALL_SUM;
        let (rank, text) = blamed(find(&table(&[(1, 99, vec![])]), &stuck(sum, &[1]), NOW, PATIENCE));
        assert!(rank == 1 && text.contains("has not reached all_sum #7") && text.contains("in no call"), "{text}");
        let other = table(&[(1, 99, call(Doing::ALL_SUM, 6, &[]))]);
        let (_, text) = blamed(find(&other, &stuck(sum, &[1]), NOW, PATIENCE));
        assert!(text.contains("it is in all_sum #6"), "{text}");
        let other = table(&[(1, 99, call(Doing::RECV, 2, &[2])), (2, 99, vec![])]);
        let (_, text) = blamed(find(&other, &stuck(sum, &[1]), NOW, PATIENCE));
        assert!(text.contains("it is in recv #2"), "{text}");
    }

    #[test]
    fn a_rank_that_left_or_was_never_heard_of_is_named() {
        let mut t = table(&[]);
        let (rank, text) = blamed(find(&t, &stuck(Doing::RECV, &[1]), NOW, PATIENCE));
        assert!(rank == 1 && text.starts_with("has given no sign of life lately: "), "{text}");
        t.take(vec![Entry { rank: 1, counter: 0, state: State::Gone }], NOW);
        assert_eq!(blamed(find(&t, &stuck(Doing::RECV, &[1]), NOW, PATIENCE)).1, "has left");
    }

    #[test]
    fn messages_that_wait_for_each_other_are_a_deadlock_and_the_cycle_is_shown() {
        let t = table(&[(1, 99, call(Doing::RECV, 1, &[2])), (2, 99, call(Doing::RECV, 4, &[0]))]);
        let Verdict::Deadlock { cycle, text } = find(&t, &stuck(Doing::RECV, &[1]), NOW, PATIENCE) else { panic!() };
        assert_eq!(cycle, [0, 1, 2]);
        assert!(text.ends_with("rank 0 in recv, rank 1 in recv, rank 2 in recv, back to rank 0"), "{text}");
    }

    #[test]
    fn a_stream_that_does_not_connect_is_no_deadlock() {
        let t = table(&[(1, 99, call(Doing::SEND, 1, &[0]))]);
        assert_eq!(find(&t, &stuck(Doing::CONNECT, &[1]), NOW, PATIENCE), Verdict::Unknown);
    }

    #[test]
    fn an_idle_peer_is_not_to_blame_for_a_stream_that_does_not_connect_and_a_silent_one_is() {
        let connecting = stuck(Doing::CONNECT, &[1]);
        let elsewhere = [vec![], call(Doing::ALL_SUM, 7, &[2]), call(Doing::RECV, 1, &[2])];
        for calls in elsewhere {
            let t = table(&[(1, 99, calls), (2, 50, vec![])]);
            assert_eq!(find(&t, &connecting, NOW, PATIENCE), Verdict::Unknown);
        }
        assert_eq!(blamed(find(&table(&[(1, 50, vec![])]), &connecting, NOW, PATIENCE)).0, 1);
    }

    #[test]
    fn a_rank_that_is_held_up_in_another_call_is_not_blamed_for_the_silent_one() {
        let (sum, child) = (Doing::ALL_SUM, GroupId(7));
        let in_child = vec![InCall { group: child, ..call(sum, 3, &[2])[0].clone() }];
        for (way, calls) in [(sum, call(Doing::RECV, 1, &[2])), (sum, in_child), (Doing::RECV, call(sum, 3, &[2]))] {
            let t = table(&[(1, 99, calls.clone()), (2, 50, vec![])]);
            assert_eq!(blamed(find(&t, &stuck(way, &[1]), NOW, PATIENCE)).0, 2, "{way:?} {calls:?}");
            // A rank that is there is not to blame for what another call is about.
            let t = table(&[(1, 99, calls.clone()), (2, 99, vec![])]);
            assert_eq!(blamed(find(&t, &stuck(way, &[1]), NOW, PATIENCE)).0, 1, "{way:?} {calls:?}");
        }
    }

    #[test]
    fn a_message_that_does_not_come_through_is_no_deadlock() {
        for (own, theirs) in [(Doing::RECV, Doing::SEND), (Doing::SEND, Doing::RECV)] {
            let t = table(&[(1, 99, call(theirs, 1, &[0]))]);
            assert_eq!(find(&t, &stuck(own, &[1]), NOW, PATIENCE), Verdict::Unknown);
        }
    }

    #[test]
    fn a_wait_that_leads_into_a_cycle_of_others_shows_that_cycle() {
        let t = table(&[(1, 99, call(Doing::RECV, 1, &[2])), (2, 99, call(Doing::RECV, 4, &[1]))]);
        let Verdict::Deadlock { cycle, .. } = find(&t, &stuck(Doing::RECV, &[1]), NOW, PATIENCE) else { panic!() };
        assert_eq!(cycle, [1, 2]);
    }

    #[test]
    fn a_rank_that_is_further_on_is_not_to_blame() {
        let sum = Doing::ALL_SUM;
        let t = table(&[(1, 99, call(sum, 8, &[])), (2, 99, vec![])]);
        assert_eq!(blamed(find(&t, &stuck(sum, &[1, 2]), NOW, PATIENCE)).0, 2);
        assert_eq!(find(&t, &stuck(sum, &[1]), NOW, PATIENCE), Verdict::Unknown);
    }

    #[test]
    fn the_standing_is_one_line_with_every_rank() {
        let t = table(&[(0, 100, call(Doing::ALL_SUM, 7, &[1, 3])), (1, 100, vec![])]);
        let line = standing(&t, 3, GroupId::ROOT, NOW);
        assert_eq!(line, "rank 0 in all_sum #7 waiting for 1 and 3 for 30.0 s, rank 1 idle, rank 2 silent");
    }
}
