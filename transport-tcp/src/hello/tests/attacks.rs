//! What outsiders try: strangers, and those who can read and write the wire but do not have the key.

use super::*;

/// The bytes of a good keyed hello, as an eavesdropper has them.
struct Recorded {
    open: Vec<u8>,
    reply: Vec<u8>,
    proof: Vec<u8>,
    verdict: Vec<u8>,
}

fn record() -> Recorded {
    let id = identity(key());
    let mut pair = Pair::new(&id, open(Role::Ring), &id, place());
    pair.drive(|| usize::MAX);
    assert!(pair.both_accepted());
    let (open, proof) = pair.to_listener.split_at(HEADER + OPEN);
    let (reply, verdict) = pair.to_dialler.split_at(HEADER + REPLY);
    assert_eq!((proof.len(), verdict.len()), (HASH, VERDICT + HASH));
    Recorded { open: open.into(), reply: reply.into(), proof: proof.into(), verdict: verdict.into() }
}

/// A keyed hello in which `meddle` may change every message on its way; returns the pair afterwards.
fn meddled(asked: Open, place: Place, mut meddle: impl FnMut(Message, &mut Vec<u8>)) -> Pair {
    let id = identity(key());
    let mut pair = Pair::new(&id, asked, &id, place);
    for (message, to_listener) in
        [(Message::Open, true), (Message::Reply, false), (Message::Proof, true), (Message::Verdict, false)]
    {
        let mut bytes = if to_listener { pair.dialler.take_output() } else { pair.listener.take_output() };
        meddle(message, &mut bytes);
        if to_listener {
            let result = feed_listener(&mut pair.listener, &mut pair.judge, &bytes).err();
            pair.dropped = pair.dropped.take().or(result);
        } else {
            let result = feed_dialler(&mut pair.dialler, &bytes).err();
            pair.refused = pair.refused.take().or(result);
        }
    }
    pair
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    Open,
    Reply,
    Proof,
    Verdict,
}

#[test]
fn the_hashes_are_over_what_was_on_the_wire_and_say_whose_they_are() {
    let Recorded { open, reply, proof, verdict } = record();
    let derived = blake3::derive_key("nuvec-distributed hello 1", SECRET);
    let (verdict, hash) = verdict.split_at(VERDICT);
    let dialler = blake3::keyed_hash(&derived, &[&b"dialler"[..], &open, &reply].concat());
    let listener = blake3::keyed_hash(&derived, &[&b"listener"[..], &open, &reply, verdict].concat());
    assert_eq!((&proof[..], hash), (&dialler.as_bytes()[..], &listener.as_bytes()[..]));
}

#[test]
fn a_recorded_hello_played_again_is_refused_by_a_new_listener() {
    let recorded = record();
    let mut listener = Listener::new(&identity(key()));
    let mut judge = Fixed::new(place());
    feed_listener(&mut listener, &mut judge, &recorded.open).unwrap();
    assert_ne!(listener.take_output(), recorded.reply, "every listener has a nonce of its own");
    let dropped = feed_listener(&mut listener, &mut judge, &recorded.proof).unwrap_err();
    assert_eq!(dropped.rejection, Some(Rejection::Key));
    assert!(listener.accepted().is_none() && judge.verdicts == 0);
}

#[test]
fn a_recorded_listener_played_again_is_refused_by_a_new_dialler() {
    let recorded = record();
    let mut dialler = Dialler::new(&identity(key()), open(Role::Ring)).unwrap();
    assert_ne!(dialler.take_output(), recorded.open, "every dialler has a nonce of its own");
    feed_dialler(&mut dialler, &recorded.reply).unwrap();
    assert_ne!(dialler.take_output(), recorded.proof);
    let refused = feed_dialler(&mut dialler, &recorded.verdict).unwrap_err();
    assert_eq!((refused.rejection, dialler.accepted()), (Rejection::Key, false));
}

#[test]
fn what_a_dialler_sends_played_back_at_it_is_refused() {
    let mut dialler = Dialler::new(&identity(key()), open(Role::Ring)).unwrap();
    let own = dialler.take_output();
    assert_eq!(feed_dialler(&mut dialler, &own).unwrap_err().rejection, Rejection::NotNuvec);

    // With a Reply of its own that it likes, and then its own proof instead of the listener's hash.
    let mut dialler = Dialler::new(&identity(key()), open(Role::Ring)).unwrap();
    feed_dialler(&mut dialler, &message::write_reply(ReplyCode::Go, true, &[1; 32])).unwrap();
    let proof = dialler.take_output().split_off(HEADER + OPEN);
    let mut verdict = Verdict { code: VerdictCode::Ok, size: 4, connections: 2, rank: 1 }.write();
    verdict.extend(proof);
    assert_eq!(feed_dialler(&mut dialler, &verdict).unwrap_err().rejection, Rejection::Key);
    assert!(!dialler.accepted());
}

#[test]
fn what_a_rank_dials_led_back_to_its_own_listener_is_refused_on_both_ends() {
    // Rank 0's dialler, which wants rank 1, and rank 0's own listener: same key, every byte passed on unchanged.
    let own = Place { rank: 0, left: 3, ..place() };
    let pair = meddled(open(Role::Ring), own, |_, _| {});
    assert!(pair.neither_accepted());
    assert_eq!(pair.dropped.unwrap().rejection, Some(Rejection::NotMe));
    assert_eq!(pair.refused.unwrap().rejection, Rejection::NotMe);
}

#[test]
fn what_a_listener_sends_played_back_at_it_is_refused() {
    let recorded = record();
    let mut judge = Fixed::new(place());
    let mut listener = Listener::new(&identity(key()));
    let dropped = feed_listener(&mut listener, &mut judge, &recorded.reply).unwrap_err();
    assert_eq!((dropped.rejection, dropped.open), (None, None));

    // The hash of a verdict instead of a proof.
    let mut listener = Listener::new(&identity(key()));
    feed_listener(&mut listener, &mut judge, &recorded.open).unwrap();
    let dropped = feed_listener(&mut listener, &mut judge, &recorded.verdict[VERDICT..]).unwrap_err();
    assert_eq!(dropped.rejection, Some(Rejection::Key));
    assert_eq!(judge.verdicts, 0);
}

#[test]
fn a_proof_for_one_listener_is_refused_by_another() {
    let id = identity(key());
    let mut judge = Fixed::new(place());
    let mut dialler = Dialler::new(&id, open(Role::Ring)).unwrap();
    let (mut a, mut b) = (Listener::new(&id), Listener::new(&id));
    let sent = dialler.take_output();
    feed_listener(&mut a, &mut judge, &sent).unwrap();
    feed_listener(&mut b, &mut judge, &sent).unwrap();
    feed_dialler(&mut dialler, &a.take_output()).unwrap();
    b.take_output();
    let proof = dialler.take_output();
    assert_eq!(feed_listener(&mut b, &mut judge, &proof).unwrap_err().rejection, Some(Rejection::Key));
    assert!(b.accepted().is_none());
    // Its answer does not help with the dialler either.
    assert_eq!(feed_dialler(&mut dialler, &b.take_output()).unwrap_err().rejection, Rejection::Key);
    // The one whom it was for takes it.
    feed_listener(&mut a, &mut judge, &proof).unwrap();
    assert!(a.accepted().is_some());
}

#[test]
fn a_hello_led_to_another_rank_unchanged_is_refused_on_both_ends() {
    for role in ROLES {
        let pair = meddled(open(role), Place { rank: 2, left: 0, ..place() }, |_, _| {});
        assert!(pair.neither_accepted());
        assert_eq!(pair.refused.unwrap().rejection, Rejection::NotMe);
    }
}

#[test]
fn a_hello_led_to_another_role_group_index_or_rank_is_refused_on_both_ends() {
    // Bytes of Open, and what a relay writes there; every changed Open is one that the listener would take.
    let body = HEADER;
    for (at, bytes, place) in [
        (body + 1, vec![3], place()),
        (body + 2, vec![1, 0], place()),
        (body + 4, vec![3, 0], Place { connections: 3, ..place() }),
        (body + 6, vec![5, 0, 0, 0], Place { size: 5, ..place() }),
        (body + 10, vec![3, 0, 0, 0], Place { left: 3, ..place() }),
        (body + 14, vec![2, 0, 0, 0], Place { rank: 2, ..place() }),
        (body + 18, message::name_tag("attic").to_vec(), place()),
        (body + 50, RUN.to_vec(), Place { session: RUN, ..place() }),
        (body + 66, vec![7, 0, 0, 0, 0, 0, 0, 0], place()),
    ] {
        let pair = meddled(open(Role::Ring), place, |message, sent| {
            if message == Message::Open {
                sent[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        });
        assert!(pair.neither_accepted(), "byte {at}");
        assert_eq!(pair.dropped.unwrap().rejection, Some(Rejection::Key), "byte {at}");
        assert_eq!(pair.refused.unwrap().rejection, Rejection::Key, "byte {at}");
        assert_eq!(pair.judge.verdicts, 0);
    }
}

#[test]
fn a_dialler_with_a_key_does_not_talk_to_a_listener_that_claims_to_have_none() {
    let mut dialler = Dialler::new(&identity(key()), open(Role::Ring)).unwrap();
    dialler.take_output();
    let refused = feed_dialler(&mut dialler, &message::write_reply(ReplyCode::Go, false, &[1; 32])).unwrap_err();
    assert_eq!(refused.rejection, Rejection::Key);
    assert!(dialler.take_output().is_empty());

    // Nor is the listener without one led on by a Proof.
    let mut pair = Pair::new(&identity(key()), open(Role::Ring), &identity(None), place());
    pair.drive(|| usize::MAX);
    assert!(pair.neither_accepted());
}

#[test]
fn every_message_passed_on_unchanged_is_accepted_by_both() {
    assert!(meddled(open(Role::Ring), place(), |_, _| {}).both_accepted());
}

/// Changes one byte of one message. Open, Reply or Proof changed: neither side accepts. Verdict changed: the dialler does
/// not; the listener had accepted before, rightly, since the dialler had proved itself over what both have seen.
fn one_byte_changed(target: Message, at: usize, change: u8) {
    let pair = meddled(open(Role::Ring), place(), |message, bytes| {
        if message == target {
            let length = bytes.len();
            bytes[at % length] ^= change;
        }
    });
    assert!(!pair.dialler.accepted(), "{target:?} byte {at} ^ {change}: the dialler accepted");
    let listener = pair.listener.accepted().is_some();
    assert_eq!(listener, target == Message::Verdict, "{target:?} byte {at} ^ {change}: the listener");
}

#[test]
fn no_flipped_byte_of_a_keyed_hello_goes_unnoticed() {
    for (message, length) in [
        (Message::Open, HEADER + OPEN),
        (Message::Reply, HEADER + REPLY),
        (Message::Proof, HASH),
        (Message::Verdict, VERDICT + HASH),
    ] {
        for at in 0..length {
            one_byte_changed(message, at, 0xFF);
            one_byte_changed(message, at, 1);
        }
    }
}

proptest! {
    #[test]
    fn no_changed_byte_of_a_keyed_hello_goes_unnoticed(message in 0..4usize, at in 0..1000usize, change in 1..=255u8) {
        let target = [Message::Open, Message::Reply, Message::Proof, Message::Verdict][message];
        one_byte_changed(target, at, change);
    }

    #[test]
    fn noise_is_dropped_by_a_listener_without_an_answer(noise in prop::collection::vec(any::<u8>(), 1..2000), keyed: bool) {
        prop_assume!(noise[0] != MAGIC[0]);
        let mut listener = Listener::new(&identity(if keyed { key() } else { None }));
        let mut judge = Fixed::new(place());
        let dropped = feed_listener(&mut listener, &mut judge, &noise).unwrap_err();
        prop_assert_eq!((dropped.open, dropped.rejection), (None, None));
        prop_assert!(listener.take_output().is_empty() && listener.accepted().is_none());
        prop_assert_eq!((listener.needs(), judge.verdicts), (0, 0));
    }

    #[test]
    fn noise_is_refused_by_a_dialler(noise in prop::collection::vec(any::<u8>(), 1..2000), keyed: bool) {
        prop_assume!(noise[0] != MAGIC[0]);
        let mut dialler = Dialler::new(&identity(if keyed { key() } else { None }), open(Role::Ring)).unwrap();
        let refused = feed_dialler(&mut dialler, &noise).unwrap_err();
        prop_assert_eq!((refused.rejection, refused.retry), (Rejection::NotNuvec, false));
        prop_assert!(!dialler.accepted() && dialler.needs() == 0);
    }

    #[test]
    fn a_hello_that_turns_into_noise_is_never_accepted_and_never_asks_for_more_than_the_cap(
        cut in 0..200usize, noise in prop::collection::vec(any::<u8>(), 700), chunk in 1..600usize
    ) {
        let recorded = record();
        let mut judge = Fixed::new(place());
        let mut listener = Listener::new(&identity(key()));
        let mut bytes = [&recorded.open[..], &recorded.proof].concat();
        bytes.truncate(cut);
        bytes.extend(&noise);
        let mut rest = &bytes[..];
        while !rest.is_empty() && listener.needs() > 0 {
            prop_assert!(listener.needs() <= LONGEST);
            let (now, later) = rest.split_at(chunk.min(listener.needs()).min(rest.len()));
            let _ = listener.feed(now, &mut judge);
            rest = later;
        }
        prop_assert!(listener.accepted().is_none() && listener.needs() == 0);

        let mut dialler = Dialler::new(&identity(key()), open(Role::Ring)).unwrap();
        let mut bytes = [&recorded.reply[..], &recorded.verdict].concat();
        bytes.truncate(cut);
        bytes.extend(&noise);
        let mut rest = &bytes[..];
        while !rest.is_empty() && dialler.needs() > 0 {
            prop_assert!(dialler.needs() <= LONGEST);
            let (now, later) = rest.split_at(chunk.min(dialler.needs()).min(rest.len()));
            let _ = dialler.feed(now);
            rest = later;
        }
        prop_assert!(!dialler.accepted() && dialler.needs() == 0);
    }

    #[test]
    fn more_bytes_than_were_asked_for_are_refused_and_not_lost_in_silence(more in 1..2000usize) {
        let mut listener = Listener::new(&identity(None));
        let dropped = listener.feed(&vec![MAGIC[0]; HEADER + more], &mut Fixed::new(place())).unwrap_err();
        says(&dropped.text, &["more than the hello asked for"]);
        let mut dialler = Dialler::new(&identity(None), open(Role::Ring)).unwrap();
        says(&dialler.feed(&vec![MAGIC[0]; HEADER + more]).unwrap_err().text, &["more than the hello asked for"]);
    }
}

#[test]
fn a_message_is_never_given_more_room_than_the_longest_has() {
    let mut inbox = Inbox::new();
    inbox.expect_further(usize::from(u16::MAX));
    assert_eq!(inbox.needs(), HEADER + LONGEST);
    assert!(inbox.bytes.capacity() <= 2 * (HEADER + LONGEST));
}

#[test]
fn a_stranger_is_told_apart_at_its_first_wrong_byte() {
    for stranger in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0, 0, 0x80, 0x3F], b"SSH-2.0-OpenSSH_9.9\r\n", b"nuv", &[1]] {
        let mut judge = Fixed::new(place());
        let mut listener = Listener::new(&identity(key()));
        let dropped = feed_listener(&mut listener, &mut judge, stranger).unwrap_err();
        assert_eq!((dropped.open, dropped.rejection), (None, None));
        says(&dropped.text, &["is it MLX?"]);
        assert!(listener.take_output().is_empty());

        let mut dialler = Dialler::new(&identity(key()), open(Role::Ring)).unwrap();
        let refused = feed_dialler(&mut dialler, stranger).unwrap_err();
        assert_eq!((refused.rejection, refused.retry), (Rejection::NotNuvec, false));
        assert_eq!(refused.text, "does not speak nuvec's protocol; is it MLX? or another program at that port?");
    }
}

#[test]
fn a_header_or_a_field_that_the_protocol_does_not_allow_is_dropped_without_an_answer() {
    let good = message::write_open(&open(Role::Ring), false, &message::name_tag("desk"), &[1; 32]);
    let body = HEADER;
    // The length of this version's Open; one above the cap in another version; the keyed flag; the role.
    for (changes, name) in [
        (&[(18, 105)][..], "length"),
        (&[(16, 2), (18, 1), (19, 2)], "cap"),
        (&[(body, 2)], "keyed"),
        (&[(body + 1, 0)], "role 0"),
        (&[(body + 1, 5)], "role 5"),
    ] {
        let mut bytes = good.clone();
        for &(at, value) in changes {
            bytes[at] = value;
        }
        bytes.resize(HEADER + 600, 0);
        let mut listener = Listener::new(&identity(None));
        let dropped = feed_listener(&mut listener, &mut Fixed::new(place()), &bytes).unwrap_err();
        assert_eq!((dropped.open, dropped.rejection), (None, None), "{name}");
        assert!(listener.take_output().is_empty(), "{name}");
    }

    let good = message::write_reply(ReplyCode::Go, false, &[1; 32]);
    for (changes, name) in [
        (&[(18, 33)][..], "length"),
        (&[(16, 2), (18, 1), (19, 2)], "cap"),
        (&[(16, 2), (18, 0)], "no code"),
        (&[(body, 0)], "code 0"),
        (&[(body, 6)], "code 6"),
        (&[(body + 1, 2)], "keyed"),
    ] {
        let mut bytes = good.clone();
        for &(at, value) in changes {
            bytes[at] = value;
        }
        bytes.resize(HEADER + 600, 0);
        let mut dialler = Dialler::new(&identity(None), open(Role::Ring)).unwrap();
        assert_eq!(feed_dialler(&mut dialler, &bytes).unwrap_err().rejection, Rejection::NotNuvec, "{name}");
    }
}
