//! Control messages between neighbours.

use std::time::{Duration, Instant};

use nuvec_transport::{Deadline, Fabric, LinkId, MAX_CONTROL_MESSAGE};

use crate::support::*;

const RIGHT: LinkId = LinkId(0);
const LEFT: LinkId = LinkId(1);

/// Has a rank's handler send messages at its next tick.
fn say(notes: &Notes, messages: impl IntoIterator<Item = (LinkId, Vec<u8>)>) {
    notes.told.lock().unwrap().outbox.extend(messages);
}

#[test]
fn messages_arrive_in_order_on_the_link_that_they_were_sent_on() {
    let group = Group::new("127.0.0.1", 3, 1);
    let notes = group.notes.clone();
    let fabrics = group.form();
    for (rank, notes) in notes.iter().enumerate() {
        let numbered = (0..100_u8).map(|i| (RIGHT, vec![rank as u8, i]));
        say(notes, numbered.chain([(LEFT, vec![7; MAX_CONTROL_MESSAGE]), (LEFT, vec![])]));
    }
    for fabric in &fabrics {
        assert!(fabric.flush_control(soon()));
    }
    for (rank, notes) in notes.iter().enumerate() {
        notes.wait("messages are missing", |told| told.messages.len() == 102);
        let told = notes.told.lock().unwrap();
        let on = |link| told.messages.iter().filter(|m| m.0 == link).map(|m| m.1.clone()).collect::<Vec<_>>();
        let left = (rank + 2) % 3;
        assert_eq!(on(LEFT), (0..100).map(|i| vec![left as u8, i]).collect::<Vec<_>>());
        assert_eq!(on(RIGHT), [vec![7; MAX_CONTROL_MESSAGE], vec![]]);
    }
}

#[test]
fn two_ranks_have_two_links_to_each_other() {
    let group = Group::new("127.0.0.1", 2, 1);
    let notes = group.notes.clone();
    let fabrics = group.form();
    say(&notes[0], [(RIGHT, b"clockwise".to_vec()), (LEFT, b"back".to_vec())]);
    fabrics[0].kick();
    notes[1].wait("messages are missing", |told| told.messages.len() == 2);
    let mut messages = notes[1].told.lock().unwrap().messages.clone();
    messages.sort();
    assert_eq!(messages, [(RIGHT, b"back".to_vec()), (LEFT, b"clockwise".to_vec())]);
}

#[test]
fn a_kick_calls_the_tick_soon_and_many_kicks_are_few_ticks() {
    let group = Group::new("127.0.0.1", 2, 1);
    let notes = group.notes.clone();
    let fabrics = group.form();
    let before = notes[0].told.lock().unwrap().ticks;
    let began = Instant::now();
    (0..10_000).for_each(|_| fabrics[0].kick());
    notes[0].wait("no tick came", |told| told.ticks > before);
    assert!(began.elapsed() < Duration::from_millis(900), "before the interval's own tick");
}

#[test]
fn ticks_come_without_being_asked_for() {
    let group = Group::new("127.0.0.1", 2, 1);
    let notes = group.notes.clone();
    let _fabrics = group.form();
    let before = notes[0].told.lock().unwrap().ticks;
    notes[0].wait("no ticks came", |told| told.ticks >= before + 2);
}

#[test]
fn a_flood_of_messages_ends_the_link_that_cannot_take_them_and_says_why() {
    let group = Group::new("127.0.0.1", 2, 1);
    let notes = group.notes.clone();
    let fabrics = group.form();
    // More in one call than a link may keep, so that however fast the other side reads does not matter.
    say(&notes[0], (0..400).map(|_| (RIGHT, vec![1; MAX_CONTROL_MESSAGE])));
    fabrics[0].kick();
    notes[0].wait("the link does not end", |told| !told.ended.is_empty());
    let ended = notes[0].told.lock().unwrap().ended.clone();
    assert_eq!(ended.len(), 1);
    assert!(ended[0].0 == RIGHT && ended[0].1.contains("takes no control messages"), "{ended:?}");
    // The other link goes on.
    say(&notes[0], [(LEFT, b"still here".to_vec())]);
    assert!(fabrics[0].flush_control(soon()));
    notes[1].wait("the message is missing", |told| told.messages.contains(&(RIGHT, b"still here".to_vec())));
}

#[test]
fn a_flood_that_is_read_is_no_failure() {
    let group = Group::new("127.0.0.1", 2, 1);
    let notes = group.notes.clone();
    let fabrics = group.form();
    for _ in 0..200 {
        say(&notes[0], (0..100).map(|_| (RIGHT, vec![1; MAX_CONTROL_MESSAGE])));
        assert!(fabrics[0].flush_control(soon()));
    }
    notes[1].wait("messages are missing", |told| told.messages.len() == 20_000);
    assert!(notes.iter().all(|notes| notes.told.lock().unwrap().ended.is_empty()));
}

#[test]
fn a_flush_to_a_rank_that_does_not_read_ends_at_its_deadline_and_says_so() {
    let group = Group::new("127.0.0.1", 2, 1);
    let notes = group.notes.clone();
    let fabrics = group.form();
    // Rank 1's handler waits for this, and its links with it.
    let held = notes[1].told.lock().unwrap();
    let began = Instant::now();
    loop {
        // Less than a link may keep, until the kernel takes no more of it.
        say(&notes[0], (0..100).map(|_| (RIGHT, vec![1; MAX_CONTROL_MESSAGE])));
        let (flush, patience) = (Instant::now(), Duration::from_millis(200));
        if !fabrics[0].flush_control(Deadline::after(patience)) {
            assert!((patience..PATIENCE / 2).contains(&flush.elapsed()), "{:?}", flush.elapsed());
            break;
        }
        assert!(began.elapsed() < PATIENCE, "the kernel takes everything");
    }
    drop(held);
    assert!(fabrics[0].flush_control(soon()), "once it reads again, all arrives");
    assert!(notes[0].told.lock().unwrap().ended.is_empty());
}

#[test]
fn a_flush_ends_at_once_when_the_fabric_is_closed() {
    let fabrics = Group::new("127.0.0.1", 2, 1).form();
    assert!(fabrics[0].flush_control(soon()));
    fabrics[0].close(soon());
    assert!(fabrics[0].flush_control(Deadline::after(Duration::from_millis(1))));
}

#[test]
fn the_end_of_a_rank_is_told_to_its_neighbours_with_its_name() {
    let group = Group::new("127.0.0.1", 4, 1);
    let notes = group.notes.clone();
    let mut fabrics = group.form();
    drop(fabrics.remove(1));
    for (rank, link) in [(0, RIGHT), (2, LEFT)] {
        notes[rank].wait("no end is told", |told| !told.ended.is_empty());
        let told = notes[rank].told.lock().unwrap();
        assert_eq!((told.ended.len(), told.ended[0].0), (1, link));
        assert!(told.ended[0].1.contains("rank 1 (127.0.0.1:"), "{:?}", told.ended);
    }
    assert!(notes[3].told.lock().unwrap().ended.is_empty());
}
