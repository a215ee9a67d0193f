//! The link over a virtual network: whatever goes wrong, every byte arrives once and in order, or the link says why
//! not.

mod network;

use std::time::Duration;

use super::header::{Header, flags};
use super::{CONTROL_RELIABLE, CONTROL_UNRELIABLE, Config, Fault, HEADER, Link, Take};
use network::{Failure, Faults, Network, Random};

/// A deliberate error in what the receiving direction says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Planted {
    /// None.
    #[default]
    Nothing,
    /// A request to resend acknowledges the missing message too.
    EarlyAcknowledgement,
    /// A slot that is not posted again yet counts as a credit.
    ExtraCredit,
}

const PAYLOAD: usize = 8;
/// More than any run takes that does not hang.
const MOST_STEPS: usize = 400_000;

fn config(reliable: bool, credits: usize) -> Config {
    let kept = if reliable { CONTROL_RELIABLE } else { CONTROL_UNRELIABLE };
    Config { reliable, depth: credits + kept, message: HEADER + PAYLOAD, ask_limit: 20 }
}

/// Runs one network per seed; sizes and credits are drawn from the seed.
fn run_all(seeds: u64, reliable: bool, faults: &Faults) {
    for seed in 0..seeds {
        let mut draw = Random(seed);
        let credits = 1 + draw.below(9);
        let bytes = [draw.below(600), draw.below(600)];
        let ran = Network::new(config(reliable, credits), faults.clone(), seed, bytes)
            .and_then(|mut network| network.run(MOST_STEPS));
        if let Err(failure) = ran {
            panic!("seed {seed}, {credits} credits, {bytes:?} bytes, reliable: {reliable}, {faults:?}: {failure:?}");
        }
    }
}

#[test]
fn without_loss_nothing_is_sent_again_and_every_message_finds_a_receive() {
    for reliable in [true, false] {
        run_all(300, reliable, &Faults::default());
        run_all(100, reliable, &Faults { reluctant: true, ..Faults::default() });
        for bytes in 0..100 {
            run_all(3, reliable, &Faults { stops: Some(bytes), ..Faults::default() });
        }
        // Nor does anybody ever wait for a time-out.
        run_all(300, reliable, &Faults { frozen: true, ..Faults::default() });
        run_all(100, reliable, &Faults { frozen: true, reluctant: true, ..Faults::default() });
    }
    run_all(300, true, &Faults { late: true, stalls: 5, ..Faults::default() });
}

#[test]
fn every_byte_arrives_once_and_in_order_whatever_the_wire_does() {
    let base = Faults { until: 30_000, ..Faults::default() };
    for (loss, doubled, early) in [(10, 0, 0), (200, 0, 0), (0, 100, 0), (0, 0, 100), (100, 100, 100)] {
        for (late, stalls) in [(false, 0), (true, 0), (true, 10)] {
            run_all(60, false, &Faults { loss, doubled, early, late, stalls, ..base.clone() });
        }
    }
    run_all(60, false, &Faults { loss: 100, reluctant: true, ..base.clone() });
    run_all(60, false, &Faults { loss: 100, stops: Some(50), ..base.clone() });
    run_all(60, false, &Faults { late: true, stalls: 20, ..base });
}

#[test]
fn the_loss_of_any_single_message_is_mended() {
    for (seed, credits, bytes) in [(1, 1, [40, 40]), (2, 4, [300, 0]), (3, 3, [200, 150]), (4, 8, [0, 0])] {
        let network = |lose| {
            let faults = Faults { lose, ..Faults::default() };
            let mut network = Network::new(config(false, credits), faults, seed, bytes).expect("a valid configuration");
            let ran = network.run(MOST_STEPS);
            (network, ran)
        };
        let (whole, ran) = network(None);
        ran.expect("nothing is lost");
        for from in [0, 1] {
            for k in 0..whole.ends[from].messages {
                let (_, ran) = network(Some((from, k)));
                if let Err(failure) = ran {
                    panic!("seed {seed}, {credits} credits, message {k} from end {from} lost: {failure:?}");
                }
            }
        }
    }
}

#[test]
fn a_wire_that_is_dead_for_ever_ends_in_an_error_that_says_how_long_it_was_waited() {
    for seed in 0..100 {
        let faults = Faults { cut_after: Some(20 + seed as usize * 3), ..Faults::default() };
        let mut network = Network::new(config(false, 4), faults, seed, [5_000, 5_000]).expect("a valid configuration");
        match network.run(MOST_STEPS) {
            Err(Failure::Fault(Fault::Silent { questions, waited, .. })) => {
                assert_eq!(questions, 20, "seed {seed}");
                // 100, 200, 400 and then 800 ms, seventeen times and once more until it gives up.
                assert_eq!(waited, Duration::from_millis(700 + 18 * 800), "seed {seed}");
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
}

#[test]
fn a_message_that_never_gets_through_is_an_error_although_the_peer_answers() {
    for seed in 0..50 {
        let faults = Faults { swallow: Some(seed % 10), ..Faults::default() };
        let mut network = Network::new(config(false, 4), faults, seed, [400, 400]).expect("a valid configuration");
        match network.run(MOST_STEPS) {
            Err(Failure::Fault(Fault::Lossy { resends: 20, sequence })) => {
                assert_eq!(sequence, seed % 10, "seed {seed}")
            }
            Err(Failure::Fault(Fault::Silent { questions: 20, unacknowledged, .. })) => assert!(unacknowledged > 0),
            other => panic!("seed {seed}: {other:?}"),
        }
    }
}

#[test]
fn a_peer_that_lives_but_reads_nothing_is_no_error() {
    let (mut a, mut b) = pair(false, 2);
    let mut now = Duration::ZERO;
    write(&mut a, 5 * PAYLOAD, now);
    for _ in 0..200 {
        exchange(&mut a, &mut b, now);
        write(&mut a, 5 * PAYLOAD, now);
        now = a.next_timeout().expect("it waits for credit");
        a.tick(now).expect("the peer answers");
        b.tick(now).expect("it has nothing to wait for");
    }
    assert!(now > Duration::from_secs(100), "the questions come less and less often: {now:?}");
}

#[test]
fn planted_errors_are_found() {
    let found = |planted, reliable, faults: &Faults| {
        (0..50).any(|seed| {
            let made = Network::new(config(reliable, 4), faults.clone(), seed, [400, 400]);
            let mut network = made.expect("a valid configuration");
            network.ends[1].link.receiving.planted = planted;
            network.run(MOST_STEPS).is_err()
        })
    };
    let lossy = Faults { loss: 50, until: 5_000, ..Faults::default() };
    assert!(!found(Planted::Nothing, false, &lossy));
    assert!(found(Planted::EarlyAcknowledgement, false, &lossy));
    for reliable in [true, false] {
        assert!(!found(Planted::Nothing, reliable, &Faults::default()));
        assert!(found(Planted::ExtraCredit, reliable, &Faults::default()));
    }
}

#[test]
fn credits_are_announced_in_batches() {
    for (reliable, credits) in [(true, 8), (false, 8), (true, 1), (false, 5)] {
        let faults = Faults { frozen: true, ..Faults::default() };
        let mut network =
            Network::new(config(reliable, credits), faults, 7, [4_000, 0]).expect("a valid configuration");
        network.run(MOST_STEPS).expect("nothing is lost");
        let [from, to] = &network.ends;
        // One more on UC answers the end of the stream.
        let most = from.data as usize / credits.div_ceil(2) + 1;
        assert!(to.control <= most, "{} control messages for {} of data", to.control, from.data);
    }
}

/// Two links whose receives are posted.
fn pair(reliable: bool, credits: usize) -> (Link, Link) {
    let link = || Link::new(config(reliable, credits)).expect("a valid configuration");
    let (mut a, mut b) = (link(), link());
    for link in [&mut a, &mut b] {
        while link.next_receive().is_some() {
            link.receive_posted();
        }
    }
    (a, b)
}

/// Writes up to `bytes` bytes; returns how many found room.
fn write(link: &mut Link, bytes: usize, now: Duration) -> usize {
    let mut left = bytes;
    while left > 0
        && let Some(room) = link.room()
    {
        let n = room.len.min(left);
        link.wrote(n, now);
        left -= n;
    }
    bytes - left
}

/// Posts, completes and delivers one message, if one is to be sent. Receives are filled in the order of their slots,
/// which is the order in which they were posted as long as they are posted again at once.
fn send(from: &mut Link, to: &mut Link, slot: usize, now: Duration) -> Option<Header> {
    let post = from.next_post()?;
    from.posted(&post, now);
    from.completed(post.slot, now).expect("it was posted");
    to.received(slot, post.bytes, &post.header, now).expect("a good message");
    while to.next_receive().is_some() {
        to.receive_posted();
    }
    Some(post.said)
}

/// Delivers everything, both ways. What carries data goes to slots that nothing is read from.
fn exchange(a: &mut Link, b: &mut Link, now: Duration) {
    let free = |link: &Link| (0..).find(|&slot| link.receiving.arrived(slot).is_ok()).expect("a posted receive");
    loop {
        let (to_a, to_b) = (free(a), free(b));
        if send(a, b, to_b, now).is_none() & send(b, a, to_a, now).is_none() {
            break;
        }
    }
}

#[test]
fn a_small_write_is_sent_at_once_and_writes_without_credit_share_messages() {
    let now = Duration::ZERO;
    for reliable in [true, false] {
        let (mut a, mut b) = pair(reliable, 2);
        for slot in 0..2 {
            assert_eq!(write(&mut a, 1, now), 1);
            let said = send(&mut a, &mut b, slot, now).expect("there is credit");
            assert_eq!((said.sequence, said.length), (slot as u64, 1));
        }
        // Without credit (RC) or slots (UC: nothing is acknowledged) a byte waits for company.
        let staged = (0..40).map(|_| write(&mut a, 1, now)).sum::<usize>();
        assert_eq!(staged, if reliable { 2 * PAYLOAD } else { 0 });
        assert!(a.next_post().is_none());
        assert_eq!(a.flushed(), !reliable);
    }
}

#[test]
fn who_stops_reading_is_noticed_by_the_sender() {
    let now = Duration::ZERO;
    for reliable in [true, false] {
        let (mut a, mut b) = pair(reliable, 2);
        write(&mut a, 2 * PAYLOAD, now);
        exchange(&mut a, &mut b, now);
        b.stop_receiving();
        while b.next_receive().is_some() {
            b.receive_posted();
        }
        exchange(&mut a, &mut b, now);
        assert!(a.peer_stopped() && !b.peer_stopped());
        assert_eq!(b.take(), Take::Nothing);
        // What comes then is discarded, and so the sender can still end its stream.
        assert_eq!(write(&mut a, 2 * PAYLOAD, now), 2 * PAYLOAD);
        a.finish(now);
        exchange(&mut a, &mut b, now);
        assert!(a.drained() && b.drained());
        assert_eq!(b.take(), Take::End);
    }
}

#[test]
fn messages_that_no_correct_peer_sends_are_errors_and_never_panics() {
    let now = Duration::ZERO;
    for reliable in [true, false] {
        let (mut a, mut b) = pair(reliable, 4);
        write(&mut a, 3 * PAYLOAD, now);
        for slot in 0..2 {
            send(&mut a, &mut b, slot, now).expect("there is credit");
        }
        // Something to be acknowledged, and to be asked for again.
        write(&mut b, 2 * PAYLOAD, now);
        while let Some(post) = b.next_post() {
            b.posted(&post, now);
            b.completed(post.slot, now).expect("it was posted");
        }
        let good = a.next_post().expect("there is credit");
        let length = HEADER + PAYLOAD;
        let altered = |change: &dyn Fn(&mut Header)| {
            let mut header = good.said;
            change(&mut header);
            header.encode()
        };
        let bad: [(&str, usize, [u8; HEADER]); 9] = [
            ("shorter than a header", HEADER - 1, good.header),
            ("longer than what was agreed on", length + 1, altered(&|h| h.length += 1)),
            ("another length than it says", length - 1, good.header),
            ("a length near the greatest", length, altered(&|h| h.length = u32::MAX)),
            ("beyond its credit", length, altered(&|h| h.sequence = 4)),
            ("the greatest number", length, altered(&|h| h.sequence = u64::MAX)),
            ("acknowledges what was not sent", length, altered(&|h| h.acknowledged = 3)),
            ("gives more credit than it has", length, altered(&|h| h.limit += 1)),
            ("an unknown flag", length, altered(&|h| h.flags |= 1 << 15)),
        ];
        for (what, bytes, header) in bad {
            let refused = b.received(2, bytes, &header, now);
            assert!(matches!(refused, Err(Fault::Broken { .. })), "{what}: {refused:?}");
        }
        let unknown =
            [b.received(99, length, &good.header, now), b.completed(99, now), b.completed(0, now), b.give_back(5)];
        assert!(unknown.iter().all(|r| matches!(r, Err(Fault::Slot { .. }))), "{unknown:?}");
        // What was refused has changed nothing.
        b.received(2, length, &good.header, now).expect("a good message");

        let mut random = Random(if reliable { 1 } else { 2 });
        for _ in 0..20_000 {
            let mut header = good.header;
            for _ in 0..=random.below(3) {
                header[random.below(HEADER)] = random.next() as u8;
            }
            let slot = (0..).find(|&slot| b.receiving.arrived(slot).is_ok()).expect("a posted receive");
            let _ = b.received(slot, length, &header, now);
            if let Take::Bytes(bytes) = b.take() {
                b.give_back(bytes.slot).expect("it is out");
            }
            while b.next_receive().is_some() {
                b.receive_posted();
            }
        }
    }
}

#[test]
fn headers_say_the_same_after_encoding() {
    let config = config(false, 4);
    let header = Header {
        sequence: u64::MAX - 1,
        acknowledged: 0x0102_0304_0506_0708,
        limit: u64::MAX,
        length: PAYLOAD as u32,
        flags: flags::END | flags::RESEND,
    };
    assert_eq!(Header::decode(&header.encode(), HEADER + PAYLOAD, &config), Ok(header));
    assert_eq!(header.encode()[..2], [0xFE, 0xFF]);
}

#[test]
fn too_little_is_refused_with_the_need() {
    for reliable in [true, false] {
        let good = config(reliable, 1);
        assert!(Link::new(good).is_ok());
        for bad in [Config { depth: good.depth - 1, ..good }, Config { message: HEADER, ..good }] {
            let refused = Link::new(bad).expect_err("nothing fits").to_string();
            assert!(refused.contains("the protocol needs"), "{refused}");
        }
    }
}
