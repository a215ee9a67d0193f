//! Both sides of the hello, played against each other without a socket. What outsiders try is in [`attacks`].

mod attacks;

use nuvec_transport::Rejection;
use proptest::prelude::*;

use super::inbox::Inbox;
use super::message::{self, HASH, HEADER, LONGEST, OPEN, REPLY, ReplyCode, VERDICT, Verdict, VerdictCode};
use super::*;

const SECRET: &[u8] = b"correct horse battery staple 123";
const ROLES: [Role; 4] = [Role::Control, Role::Ring, Role::P2p, Role::Bootstrap];
const RUN: [u8; 16] = [0x52; 16];

fn key() -> Option<Key> {
    Some(Key::new(SECRET).unwrap())
}

fn identity(key: Option<Key>) -> Identity {
    Identity { name: "desk".into(), key }
}

/// Rank 0 of 4 dials rank 1, forming, two connections per neighbour.
fn open(role: Role) -> Open {
    Open { role, index: 0, connections: 2, size: 4, from: 0, to: 1, session: [0; 16], group: 0 }
}

/// Rank 1 of 4 listens, and sees what [`open`] asks for.
fn place() -> Place {
    Place { rank: 1, left: 0, size: 4, connections: 2, session: [0; 16], taken: false }
}

/// A judge who answers the same to everything, and counts how often it was asked for a verdict.
struct Fixed {
    admission: Answer,
    place: Place,
    verdicts: usize,
}

impl Fixed {
    fn new(place: Place) -> Self {
        Self { admission: Answer::Go, place, verdicts: 0 }
    }
}

impl Judge for Fixed {
    fn admit(&mut self, _: &Open) -> Answer {
        self.admission
    }

    fn place(&mut self, _: &Open) -> Place {
        self.verdicts += 1;
        self.place.clone()
    }
}

/// A dialler, a listener, and everything that each wrote. The wires can hold more than the hello: what a side does not
/// ask for stays there.
struct Pair {
    dialler: Dialler,
    listener: Listener,
    judge: Fixed,
    refused: Option<Refused>,
    dropped: Option<Dropped>,
    to_listener: Vec<u8>,
    to_dialler: Vec<u8>,
    read_by_listener: usize,
    read_by_dialler: usize,
}

impl Pair {
    fn new(dialler: &Identity, open: Open, listener: &Identity, place: Place) -> Self {
        Self {
            dialler: Dialler::new(dialler, open).unwrap(),
            listener: Listener::new(listener),
            judge: Fixed::new(place),
            refused: None,
            dropped: None,
            to_listener: Vec::new(),
            to_dialler: Vec::new(),
            read_by_listener: 0,
            read_by_dialler: 0,
        }
    }

    /// Carries bytes both ways, in pieces of at most `chunk()`, until nothing moves.
    fn drive(&mut self, mut chunk: impl FnMut() -> usize) {
        loop {
            self.to_listener.extend(self.dialler.take_output());
            self.to_dialler.extend(self.listener.take_output());
            let up = chunk().min(self.listener.needs()).min(self.to_listener.len() - self.read_by_listener);
            if up > 0 {
                let bytes = &self.to_listener[self.read_by_listener..][..up];
                self.read_by_listener += up;
                self.dropped = self.listener.feed(bytes, &mut self.judge).err();
            }
            let down = chunk().min(self.dialler.needs()).min(self.to_dialler.len() - self.read_by_dialler);
            if down > 0 {
                let bytes = &self.to_dialler[self.read_by_dialler..][..down];
                self.read_by_dialler += down;
                self.refused = self.dialler.feed(bytes).err();
            }
            let pending = self.to_listener.len() - self.read_by_listener + self.to_dialler.len() - self.read_by_dialler;
            if up + down == 0 && (pending == 0 || self.listener.needs().max(self.dialler.needs()) == 0) {
                return;
            }
            assert!(up + down > 0, "both sides wait for each other");
        }
    }

    fn both_accepted(&self) -> bool {
        self.dialler.accepted() && self.listener.accepted().is_some()
    }

    fn neither_accepted(&self) -> bool {
        !self.dialler.accepted() && self.listener.accepted().is_none()
    }
}

/// Plays a whole hello that ends in a refusal, and returns what each side says.
fn refusal(dialler: &Identity, open: Open, listener: &Identity, place: Place) -> (Refused, Dropped) {
    let mut pair = Pair::new(dialler, open.clone(), listener, place);
    pair.drive(|| usize::MAX);
    assert!(pair.neither_accepted());
    assert_eq!((pair.dialler.needs(), pair.listener.needs()), (0, 0), "a refused side wants nothing more");
    let (refused, dropped) = (pair.refused.expect("refused"), pair.dropped.expect("dropped"));
    assert_eq!(dropped.rejection, Some(refused.rejection), "both sides give the same reason");
    assert_eq!(dropped.open, Some(open), "the listener can name whom it refused");
    (refused, dropped)
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    assert!(!text.contains('\n'), "{text}");
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

fn good_hello(role: Role, keyed: bool, group: u64, chunk: impl FnMut() -> usize) {
    let identity = identity(if keyed { key() } else { None });
    let mut open = Open { session: RUN, group, ..open(role) };
    if matches!(role, Role::Ring | Role::P2p) {
        open.index = 1;
    }
    let mut pair = Pair::new(&identity, open.clone(), &identity, Place { session: RUN, ..place() });
    pair.drive(chunk);
    assert!(pair.both_accepted(), "{role:?} {:?} {:?}", pair.refused, pair.dropped);
    assert_eq!(pair.listener.accepted(), Some(&open));
    assert_eq!((pair.refused, pair.dropped, pair.judge.verdicts), (None, None, 1));
}

#[test]
fn a_connection_that_both_want_is_accepted_by_both_in_every_role_with_and_without_a_key() {
    for role in ROLES {
        for keyed in [false, true] {
            good_hello(role, keyed, 0, || 1);
            good_hello(role, keyed, 77, || usize::MAX);
        }
    }
}

proptest! {
    #[test]
    fn it_does_not_matter_how_the_bytes_are_cut(
        role in 0..4usize, keyed: bool, group: u64, chunks in prop::collection::vec(1..90usize, 1..40)
    ) {
        let mut chunks = chunks.into_iter().cycle();
        good_hello(ROLES[role], keyed, group, || chunks.next().unwrap());
    }

    #[test]
    fn what_follows_the_hello_is_left_on_the_connection(keyed: bool, chunk in 1..200usize) {
        let identity = identity(if keyed { key() } else { None });
        let mut pair = Pair::new(&identity, open(Role::Ring), &identity, place());
        pair.drive(|| chunk);
        prop_assert!(pair.both_accepted());
        pair.to_listener.extend(b"the ring's data");
        pair.to_dialler.extend(b"the ring's data");
        pair.drive(|| chunk);
        prop_assert_eq!(&pair.to_listener[pair.read_by_listener..], b"the ring's data");
        prop_assert_eq!(&pair.to_dialler[pair.read_by_dialler..], b"the ring's data");
    }

    #[test]
    fn an_open_reads_as_it_was_written(
        role in 0..4usize, index: u16, connections: u16, size: u32, from: u32, to: u32, session: [u8; 16], group: u64, keyed: bool
    ) {
        let open = Open { role: ROLES[role], index, connections, size, from, to, session, group };
        let bytes = message::write_open(&open, keyed, &[3; 32], &[4; 32]);
        prop_assert_eq!(bytes.len(), HEADER + OPEN);
        let read = message::read_open(&bytes[HEADER..]).unwrap();
        prop_assert_eq!((read.open, read.keyed, read.name_tag), (open, keyed, [3; 32]));
    }
}

#[test]
fn the_messages_have_the_documented_layout() {
    let open = Open { index: 0x0102, group: 0x0A, ..open(Role::P2p) };
    let bytes = message::write_open(&open, true, &[0xAA; 32], &[0xBB; 32]);
    let mut expected = MAGIC.to_vec();
    expected.extend([1, 0, 106, 0, 1, 3, 2, 1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    expected.extend([0xAA; 32]);
    expected.extend([0; 16]);
    expected.extend([0x0A, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([0xBB; 32]);
    assert_eq!(bytes, expected);

    let bytes = message::write_reply(ReplyCode::Busy, true, &[0xCC; 32]);
    assert_eq!(bytes.len(), HEADER + REPLY);
    assert_eq!((&bytes[..16], &bytes[16..22], &bytes[22..]), (&MAGIC[..], &[1, 0, 34, 0, 5, 1][..], &[0xCC; 32][..]));

    let verdict = Verdict { code: VerdictCode::Size, size: 8, connections: 3, rank: 7 }.write();
    assert_eq!(verdict, [2, 8, 0, 0, 0, 3, 0, 7, 0, 0, 0]);
    assert_eq!(verdict.len(), VERDICT);
}

#[test]
fn magic_is_nothing_that_an_array_begins_with() {
    for word in MAGIC.as_chunks::<4>().0 {
        let bits = u32::from_le_bytes(*word);
        assert!(f32::from_bits(bits).is_nan() && bits & 0x0040_0000 == 0, "a signalling NaN");
        assert!(word.iter().all(|b| *b > 1), "no bool");
    }
}

#[test]
fn every_refusal_names_both_views() {
    let id = identity(None);
    let ask = || open(Role::Ring);

    let (r, d) = refusal(&id, ask(), &id, Place { rank: 2, left: 1, ..place() });
    assert_eq!((r.rejection, r.retry), (Rejection::NotMe, false));
    says(&r.text, &["is rank 2 of 4 there, not rank 1 of 4"]);
    says(&d.text, &["is rank 0 of 4", "to rank 1", "here is rank 2 of 4"]);

    let (r, d) = refusal(&id, ask(), &id, Place { left: 3, ..place() });
    assert_eq!((r.rejection, r.retry), (Rejection::NotMe, false));
    says(&r.text, &["is rank 1 of 4 there", "no ring connection from rank 0 of 4"]);
    says(&d.text, &["is rank 0 of 4", "whose left is rank 3"]);

    let other = Identity { name: "attic\nof Mary".into(), ..id.clone() };
    let (r, d) = refusal(&id, ask(), &other, place());
    assert_eq!((r.rejection, r.retry), (Rejection::Name, false));
    says(&r.text, &["another name than \"desk\""]);
    says(&d.text, &["another name than \"attic\\nof Mary\""]);

    let (r, d) = refusal(&id, ask(), &id, Place { size: 2, ..place() });
    assert_eq!((r.rejection, r.retry), (Rejection::Size, false));
    says(&r.text, &["counts 2 ranks, not 4"]);
    says(&d.text, &["counts 4 ranks, not 2"]);

    let (r, d) = refusal(&id, ask(), &id, Place { connections: 3, ..place() });
    assert_eq!((r.rejection, r.retry), (Rejection::Connections, false));
    says(&r.text, &["counts 3 connections per neighbour, not 2"]);
    says(&d.text, &["counts 2 connections per neighbour, not 3"]);

    let (r, d) = refusal(&id, ask(), &id, Place { taken: true, ..place() });
    assert_eq!((r.rejection, r.retry), (Rejection::Taken, false));
    says(&r.text, &["already", "another process run as rank 0?"]);
    says(&d.text, &["already", "another process run as rank 0?"]);
}

#[test]
fn an_earlier_run_is_retried_by_a_dialler_that_forms_and_final_for_one_that_has_formed() {
    for id in [identity(None), identity(key())] {
        let (r, d) = refusal(&id, open(Role::Control), &id, Place { session: RUN, ..place() });
        assert_eq!((r.rejection, r.retry), (Rejection::Session, true));
        says(&r.text, &["still in an earlier run than the one that begins"]);
        says(&d.text, &["begins a new run while an earlier one still ends"]);

        for session in [[0; 16], [9; 16]] {
            let asked = Open { session: RUN, ..open(Role::Control) };
            let (r, d) = refusal(&id, asked, &id, Place { session, ..place() });
            assert_eq!((r.rejection, r.retry), (Rejection::Session, false));
            says(&r.text, &["belongs to another run"]);
            says(&d.text, &["belongs to another run"]);
        }
    }
}

#[test]
fn not_yet_and_busy_are_retried_and_ask_for_no_verdict() {
    for id in [identity(None), identity(key())] {
        for (admission, rejection, says_so) in [
            (Answer::NotYet, Rejection::NotYet, "does not know this group yet"),
            (Answer::Busy, Rejection::Busy, "no room"),
        ] {
            let mut pair = Pair::new(&id, open(Role::P2p), &id, place());
            pair.judge.admission = admission;
            pair.drive(|| 7);
            let refused = pair.refused.clone().unwrap();
            assert_eq!((refused.rejection, refused.retry), (rejection, true));
            says(&refused.text, &[says_so]);
            assert_eq!(pair.dropped.as_ref().unwrap().rejection, Some(rejection));
            assert_eq!((pair.judge.verdicts, pair.to_dialler.len()), (0, HEADER + REPLY));
            assert!(pair.neither_accepted());
        }
    }
}

#[test]
fn of_several_reasons_the_first_in_the_protocols_order_is_given() {
    for id in [identity(None), identity(key())] {
        let mut asked = open(Role::Ring);
        let mut name = "other";
        let mut wrong = Place { rank: 2, left: 1, size: 5, connections: 9, session: RUN, taken: true };
        let mut reasons = Vec::new();
        for step in 0..6 {
            let listener = Identity { name: name.into(), ..id.clone() };
            reasons.push(refusal(&id, asked.clone(), &listener, wrong.clone()).0.rejection);
            match step {
                0 => (wrong.rank, wrong.left) = (1, 0),
                1 => name = "desk",
                2 => wrong.size = 4,
                3 => wrong.connections = 2,
                _ => asked.session = RUN,
            }
        }
        use Rejection::{Connections, Name, NotMe, Session, Size, Taken};
        assert_eq!(reasons, [NotMe, Name, Size, Connections, Session, Taken]);
    }
}

#[test]
fn only_the_left_neighbour_may_dial_the_ring_and_any_other_rank_point_to_point() {
    let id = identity(None);
    for role in ROLES {
        for from in 0..6 {
            let mut pair = Pair::new(&id, Open { from, ..open(role) }, &id, place());
            pair.drive(|| usize::MAX);
            let may = match role {
                Role::Control | Role::Ring => from == 0,
                Role::P2p | Role::Bootstrap => from < 4 && from != 1,
            };
            assert_eq!(pair.both_accepted(), may, "{role:?} from {from}");
            assert_eq!(pair.refused.map(|r| r.rejection), (!may).then_some(Rejection::NotMe), "{role:?} from {from}");
        }
    }
}

#[test]
fn an_index_beyond_the_connections_is_refused() {
    let id = identity(None);
    for (role, index) in [(Role::Ring, 2), (Role::P2p, u16::MAX), (Role::Control, 1), (Role::Bootstrap, 1)] {
        let (r, d) = refusal(&id, Open { index, ..open(role) }, &id, place());
        assert_eq!((r.rejection, r.retry), (Rejection::Connections, false));
        says(&d.text, &[&format!("connection {index}")]);
    }
}

#[test]
fn a_listener_that_agrees_with_another_view_is_not_believed() {
    let id = identity(None);
    for (verdict, rejection) in [
        (Verdict { code: VerdictCode::Ok, size: 4, connections: 2, rank: 3 }, Rejection::NotMe),
        (Verdict { code: VerdictCode::Ok, size: 5, connections: 2, rank: 1 }, Rejection::Size),
        (Verdict { code: VerdictCode::Ok, size: 4, connections: 1, rank: 1 }, Rejection::Connections),
    ] {
        let mut dialler = Dialler::new(&id, open(Role::Ring)).unwrap();
        let reply = message::write_reply(ReplyCode::Go, false, &[1; 32]);
        dialler.feed(&reply[..HEADER]).unwrap();
        dialler.feed(&reply[HEADER..]).unwrap();
        assert_eq!(dialler.feed(&verdict.write()).unwrap_err().rejection, rejection);
        assert!(!dialler.accepted());
    }
}

/// Feeds what the dialler asks for from `bytes`.
fn feed_dialler(dialler: &mut Dialler, mut bytes: &[u8]) -> Result<(), Refused> {
    while !bytes.is_empty() && dialler.needs() > 0 {
        let (now, rest) = bytes.split_at(dialler.needs().min(bytes.len()));
        dialler.feed(now)?;
        bytes = rest;
    }
    Ok(())
}

/// Feeds what the listener asks for from `bytes`.
fn feed_listener(listener: &mut Listener, judge: &mut dyn Judge, mut bytes: &[u8]) -> Result<(), Dropped> {
    while !bytes.is_empty() && listener.needs() > 0 {
        let (now, rest) = bytes.split_at(listener.needs().min(bytes.len()));
        listener.feed(now, judge)?;
        bytes = rest;
    }
    Ok(())
}

fn other_version(version: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(u16::try_from(body.len()).unwrap().to_le_bytes());
    bytes.extend(body);
    bytes
}

#[test]
fn a_listener_reads_an_open_of_another_version_to_its_end_and_answers_version() {
    for id in [identity(None), identity(key())] {
        for length in [0, 1, OPEN, LONGEST] {
            let mut listener = Listener::new(&id);
            let mut judge = Fixed::new(place());
            let bytes = other_version(9, &vec![0xEE; length]);
            let (last, before) = bytes.split_last().unwrap();
            feed_listener(&mut listener, &mut judge, before).unwrap();
            assert!(listener.take_output().is_empty(), "silent until it has the whole of it");
            let dropped = listener.feed(&[*last], &mut judge).unwrap_err();
            assert_eq!((dropped.rejection, dropped.open), (Some(Rejection::Version), None));
            says(&dropped.text, &["version 9", "not version 1"]);
            let reply = listener.take_output();
            assert_eq!((&reply[..16], reply[16], reply[20]), (&MAGIC[..], 1, 2));
            assert_eq!(reply.len(), HEADER + REPLY);
            assert_eq!(judge.verdicts, 0);
        }
    }
}

#[test]
fn a_dialler_understands_the_refusal_of_another_version() {
    for id in [identity(None), identity(key())] {
        for length in [1, REPLY, LONGEST] {
            for (code, rejection, retry) in [
                (1, Rejection::Version, false),
                (2, Rejection::Version, false),
                (3, Rejection::Key, false),
                (4, Rejection::NotYet, true),
                (5, Rejection::Busy, true),
                (99, Rejection::Version, false),
            ] {
                let mut body = vec![0xEE; length];
                body[0] = code;
                let mut dialler = Dialler::new(&id, open(Role::Control)).unwrap();
                let refused = feed_dialler(&mut dialler, &other_version(2, &body)).unwrap_err();
                assert_eq!((refused.rejection, refused.retry), (rejection, retry), "code {code}");
                if rejection == Rejection::Version {
                    says(&refused.text, &["version 2", "not version 1"]);
                }
            }
        }
    }
}

#[test]
fn a_dialler_is_told_by_a_listener_of_its_own_version_that_it_is_not_taken() {
    let mut dialler = Dialler::new(&identity(None), open(Role::Control)).unwrap();
    let reply = message::write_reply(ReplyCode::Version, false, &[0; 32]);
    assert_eq!(feed_dialler(&mut dialler, &reply).unwrap_err().rejection, Rejection::Version);
}

#[test]
fn a_dialler_says_what_a_silent_peer_has_not_done() {
    let mut dialler = Dialler::new(&identity(key()), open(Role::Control)).unwrap();
    says(dialler.unanswered(), &["is it MLX?"]);
    dialler.feed(&MAGIC[..3]).unwrap();
    says(dialler.unanswered(), &["did not finish"]);
    let mut dialler = Dialler::new(&identity(key()), open(Role::Control)).unwrap();
    feed_dialler(&mut dialler, &message::write_reply(ReplyCode::Go, true, &[1; 32])).unwrap();
    says(dialler.unanswered(), &["did not finish"]);
}

#[test]
fn a_key_here_and_none_there_is_refused_with_key_and_nothing_more() {
    for (dialler, listener) in [(None, key()), (key(), None)] {
        let (dialler, listener) = (identity(dialler), identity(listener));
        let mut pair = Pair::new(&dialler, open(Role::Control), &listener, place());
        pair.judge.admission = Answer::NotYet;
        pair.drive(|| usize::MAX);
        let (refused, dropped) = (pair.refused.clone().unwrap(), pair.dropped.clone().unwrap());
        assert_eq!((refused.rejection, refused.retry), (Rejection::Key, false), "key comes before not yet");
        assert_eq!(dropped.rejection, Some(Rejection::Key));
        assert_eq!(pair.to_dialler.len(), HEADER + REPLY, "a Reply and no Verdict");
        assert_eq!(pair.to_dialler[HEADER + 2..], [0; 32], "and nothing to hash");
        assert_eq!((pair.to_listener.len(), pair.judge.verdicts), (HEADER + OPEN, 0));
        let (keyed, keyless) = match dialler.key {
            Some(_) => (&refused.text, &dropped.text),
            None => (&dropped.text, &refused.text),
        };
        assert_eq!(
            (keyed.as_str(), keyless.as_str()),
            ("has another key, or none", "has a key, and none was given here")
        );
    }
}

#[test]
fn a_wrong_proof_learns_nothing_but_key() {
    let other = identity(Some(Key::new(&[9; 32]).unwrap()));
    let mut pair = Pair::new(&other, open(Role::Control), &identity(key()), Place { size: 99, ..place() });
    pair.drive(|| usize::MAX);
    assert_eq!(pair.judge.verdicts, 0);
    assert!(pair.neither_accepted());
    let answer = &pair.to_dialler[HEADER + REPLY..];
    let mut nothing = vec![8];
    nothing.resize(VERDICT + HASH, 0);
    assert_eq!(answer, nothing, "no view of the listener's, and no hash under its key");
    let (refused, dropped) = (pair.refused.unwrap(), pair.dropped.unwrap());
    assert_eq!((refused.rejection, refused.retry), (Rejection::Key, false));
    assert_eq!(
        (refused.text.as_str(), dropped.text.as_str()),
        ("has another key, or none", "has another key, or none")
    );
    assert_eq!((dropped.rejection, dropped.open), (Some(Rejection::Key), Some(open(Role::Control))));
}

#[test]
fn a_key_is_in_no_text_and_no_debug_output() {
    let secret = "correct horse battery staple 123";
    let derived = blake3::derive_key("nuvec-distributed hello 1", SECRET);
    let hex: String = derived.iter().map(|b| format!("{b:02x}")).collect();
    let id = identity(key());
    let other = identity(Some(Key::new(&[9; 32]).unwrap()));
    let mut shown = vec![format!("{id:?} {id:#?} {:?}", id.key)];
    for (dialler, listener) in [(&id, &other), (&other, &id), (&id, &identity(None)), (&identity(None), &id)] {
        let (r, d) = refusal(dialler, open(Role::Control), listener, place());
        shown.push(format!("{r:?} {d:?} {} {}", r.text, d.text));
    }
    for text in shown {
        for forbidden in [secret, &hex, &format!("{derived:?}"), &format!("{SECRET:?}")] {
            assert!(!text.contains(forbidden), "{text}");
        }
    }
}
