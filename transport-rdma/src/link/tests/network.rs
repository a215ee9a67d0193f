//! Two links, their devices and the wire between them, in one thread on a virtual clock. A run is decided by its seed;
//! faults are fields.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::header::{Header, flags};
use super::super::{Bytes, Config, Fault, HEADER, Link, Room, Take};

/// Pseudo-random numbers (splitmix64): a run is repeated from its seed.
#[derive(Debug, Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn chance(&mut self, per_mille: usize) -> bool {
        self.below(1000) < per_mille
    }
}

/// What goes wrong, and how the ends behave.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// Messages lost, doubled and put before others that were sent earlier, of a thousand each.
    pub(super) loss: usize,
    pub(super) doubled: usize,
    pub(super) early: usize,
    /// Of the direction from this end, lose exactly the message of this index.
    pub(super) lose: Option<(usize, usize)>,
    /// The data message of this number from end 0 never arrives.
    pub(super) swallow: Option<u64>,
    /// Losses, doubling and reordering end after so many steps.
    pub(super) until: usize,
    /// Nothing arrives after so many steps.
    pub(super) cut_after: Option<usize>,
    /// Time passes while messages are on their way, and an end may do nothing at all for a while (of a thousand steps).
    pub(super) late: bool,
    pub(super) stalls: usize,
    /// No time ever passes.
    pub(super) frozen: bool,
    /// End 1 stops reading once it has so many bytes.
    pub(super) stops: Option<usize>,
    /// Nobody reads while anything else can happen.
    pub(super) reluctant: bool,
}

impl Faults {
    /// Whether every message arrives, once, in order and at once.
    fn none(&self) -> bool {
        self.loss + self.doubled + self.early == 0
            && self.lose.is_none()
            && self.swallow.is_none()
            && self.cut_after.is_none()
            && !self.late
    }
}

/// Why a run failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// A link says so.
    Fault(Fault),
    /// A rule of the protocol, or of the test, is broken.
    #[expect(dead_code, reason = "shown by Debug, when a test fails")]
    Rule(String),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

fn rule<T>(what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Rule(what.into()))
}

/// The byte at `i` of the stream from end `from`.
fn byte(from: usize, i: usize) -> u8 {
    (i.wrapping_mul(31) ^ (i >> 8) ^ (from * 85)) as u8
}

/// One end: the link, its device, its memory and its user.
#[derive(Debug)]
pub(super) struct End {
    pub(super) link: Link,
    sends: Vec<Vec<u8>>,
    receives: Vec<Vec<u8>>,
    /// The device's receive queue, its sends that have not completed, and arrivals that were not polled.
    posted: VecDeque<usize>,
    in_flight: VecDeque<usize>,
    arrived: VecDeque<(usize, usize)>,
    /// Bytes to write and to read in all, and how many were.
    write: usize,
    written: usize,
    read: usize,
    readable: usize,
    room: Option<Room>,
    finished: bool,
    taken: Option<(Bytes, usize)>,
    ended: bool,
    stalled: usize,
    /// Messages sent: all, data for the first time, data again, control.
    pub(super) messages: usize,
    pub(super) data: u64,
    pub(super) again: usize,
    pub(super) control: usize,
    /// Data messages that entered the other's receive queue.
    delivered: u64,
}

impl End {
    fn new(config: Config, write: usize, readable: usize) -> Result<Self, Failure> {
        Ok(Self {
            link: Link::new(config)?,
            sends: vec![vec![0; config.message]; config.send_slots()],
            receives: vec![vec![0; config.message]; config.receive_slots()],
            posted: VecDeque::new(),
            in_flight: VecDeque::new(),
            arrived: VecDeque::new(),
            write,
            written: 0,
            read: 0,
            readable,
            room: None,
            finished: false,
            taken: None,
            ended: false,
            stalled: 0,
            messages: 0,
            data: 0,
            again: 0,
            control: 0,
            delivered: 0,
        })
    }

    fn done(&self) -> bool {
        self.finished && self.ended && self.link.drained() && self.in_flight.is_empty()
    }
}

/// The whole.
#[derive(Debug)]
pub(super) struct Network {
    config: Config,
    pub(super) faults: Faults,
    random: Random,
    now: Duration,
    step: usize,
    pub(super) ends: [End; 2],
    /// From each end: messages on their way.
    wires: [VecDeque<Vec<u8>>; 2],
}

impl Network {
    /// End 0 sends `bytes[0]` bytes, end 1 `bytes[1]`.
    pub(super) fn new(config: Config, faults: Faults, seed: u64, bytes: [usize; 2]) -> Result<Self, Failure> {
        let ends = [End::new(config, bytes[0], bytes[1])?, End::new(config, bytes[1], bytes[0])?];
        let mut this = Self {
            config,
            faults,
            random: Random(seed),
            now: Duration::ZERO,
            step: 0,
            ends,
            wires: [VecDeque::new(), VecDeque::new()],
        };
        this.pump(0)?;
        this.pump(1)?;
        Ok(this)
    }

    /// Runs until both streams have arrived, ended, and nothing is under way.
    pub(super) fn run(&mut self, most_steps: usize) -> Result<(), Failure> {
        while !(self.ends[0].done() && self.ends[1].done()) {
            if self.step >= most_steps {
                let [a, b] = &self.ends;
                return rule(format!("still not done after {most_steps} steps, at {:?}: {a:?}, {b:?}", self.now));
            }
            self.step += 1;
            let end = self.random.below(2);
            self.act(end)?;
            self.check()?;
        }
        for end in &self.ends {
            // The end of a stream was answered before, so nobody waits for the peer.
            if end.link.next_timeout().is_some() || end.link.next_post().is_some() {
                return rule(format!("an idle link is not silent: {:?}", end.link));
            }
        }
        Ok(())
    }

    fn act(&mut self, end: usize) -> Result<(), Failure> {
        if self.ends[end].stalled > 0 {
            self.ends[end].stalled -= 1;
            self.pass(30);
            return Ok(());
        }
        if self.random.chance(self.faults.stalls) {
            self.ends[end].stalled = self.random.below(60);
        }
        match self.random.below(7) {
            0 => self.write(end)?,
            1 if !self.faults.reluctant || !self.busy() => self.read(end)?,
            2 => self.complete(end)?,
            3 => self.deliver(end)?,
            4 => self.poll(end, 1)?,
            5 if self.faults.late => self.pass(10),
            6 if !self.faults.frozen => self.tick(end)?,
            _ => {}
        }
        self.pump(end)
    }

    fn pass(&mut self, milliseconds: usize) {
        self.now += Duration::from_millis(self.random.below(milliseconds + 1) as u64);
    }

    /// Whether a device or the wire has anything to do.
    fn busy(&self) -> bool {
        let busy = |end: &End| !end.in_flight.is_empty() || !end.arrived.is_empty();
        self.wires.iter().any(|wire| !wire.is_empty()) || self.ends.iter().any(busy)
    }

    fn write(&mut self, from: usize) -> Result<(), Failure> {
        let (now, end) = (self.now, &mut self.ends[from]);
        // The copy happens between the two calls; other things may, too.
        match end.room.take() {
            Some(room) if end.in_flight.contains(&room.slot) => {
                return rule("the room is in a slot that the device owns");
            }
            Some(room) => {
                let left = (end.write - end.written).min(room.len);
                let n = if self.random.chance(50) { 0 } else { (1 + self.random.below(room.len)).min(left) };
                for i in 0..n {
                    end.sends[room.slot][room.offset + i] = byte(from, end.written + i);
                }
                end.written += n;
                end.link.wrote(n, now);
            }
            None if end.written < end.write => end.room = end.link.room(),
            None if !end.finished => {
                end.finished = true;
                end.link.finish(now);
            }
            None => {}
        }
        Ok(())
    }

    fn read(&mut self, to: usize) -> Result<(), Failure> {
        let end = &mut self.ends[to];
        let stopped = to == 1 && end.taken.is_none() && self.faults.stops.is_some_and(|bytes| end.read >= bytes);
        if stopped {
            end.link.stop_receiving();
        }
        if end.taken.is_none() {
            match end.link.take() {
                Take::End if stopped => end.ended = true,
                Take::Bytes(bytes) => end.taken = Some((bytes, 0)),
                Take::End if end.read == end.readable => end.ended = true,
                Take::End => return rule(format!("the stream ends after {} of {} bytes", end.read, end.readable)),
                Take::Nothing => return Ok(()),
            }
        }
        let Some((bytes, mut used)) = end.taken.take() else { return Ok(()) };
        let n = 1 + self.random.below(bytes.len - used);
        for &found in &end.receives[bytes.slot][HEADER + used..][..n] {
            if end.read >= end.readable || found != byte(1 - to, end.read) {
                return rule(format!("byte {} of the stream is another one", end.read));
            }
            end.read += 1;
        }
        used += n;
        match used == bytes.len {
            true => end.link.give_back(bytes.slot)?,
            false => end.taken = Some((bytes, used)),
        }
        Ok(())
    }

    fn complete(&mut self, at: usize) -> Result<(), Failure> {
        let end = &mut self.ends[at];
        // A reliable device completes what arrived: in order, so what is on the wire is the tail of what is in flight.
        if self.config.reliable && end.in_flight.len() <= self.wires[at].len() {
            return Ok(());
        }
        match end.in_flight.pop_front() {
            Some(slot) => Ok(end.link.completed(slot, self.now)?),
            None => Ok(()),
        }
    }

    fn deliver(&mut self, from: usize) -> Result<(), Failure> {
        let Some(message) = self.wires[from].pop_front() else { return Ok(()) };
        if self.faults.cut_after.is_some_and(|step| self.step > step) {
            return Ok(());
        }
        let to = &mut self.ends[1 - from];
        let Some(slot) = to.posted.pop_front() else {
            if self.faults.none() || self.config.reliable {
                return rule("a message met an empty receive queue");
            }
            return Ok(());
        };
        to.receives[slot][..message.len()].copy_from_slice(&message);
        to.arrived.push_back((slot, message.len()));
        if !self.header(&message)?.has(flags::CONTROL) {
            self.ends[from].delivered += 1;
        }
        Ok(())
    }

    fn header(&self, message: &[u8]) -> Result<Header, Failure> {
        Ok(Header::decode(&std::array::from_fn(|i| message[i]), message.len(), &self.config)?)
    }

    fn poll(&mut self, at: usize, most: usize) -> Result<(), Failure> {
        let end = &mut self.ends[at];
        for _ in 0..most {
            let Some((slot, bytes)) = end.arrived.pop_front() else { break };
            let header = std::array::from_fn(|i| end.receives[slot][i]);
            end.link.received(slot, bytes, &header, self.now)?;
        }
        Ok(())
    }

    fn tick(&mut self, at: usize) -> Result<(), Failure> {
        if !self.faults.late && !self.busy() {
            // Nothing moves by itself: the next thing to happen is a time-out.
            let next = self.ends.iter().filter_map(|end| end.link.next_timeout()).min();
            self.now = self.now.max(next.unwrap_or_default());
        }
        if self.ends[at].link.next_timeout().is_some_and(|next| next <= self.now) {
            self.poll(at, usize::MAX)?;
            self.ends[at].link.tick(self.now)?;
        }
        Ok(())
    }

    /// What an endpoint does after everything: posts receives, then sends.
    fn pump(&mut self, at: usize) -> Result<(), Failure> {
        let end = &mut self.ends[at];
        while let Some(slot) = end.link.next_receive() {
            end.posted.push_back(slot);
            end.link.receive_posted();
        }
        while let Some(post) = self.ends[at].link.next_post() {
            let end = &mut self.ends[at];
            if end.in_flight.contains(&post.slot) {
                return rule(format!("slot {} is posted while the device owns it", post.slot));
            }
            end.link.posted(&post, self.now);
            end.sends[post.slot][..HEADER].copy_from_slice(&post.header);
            let message = end.sends[post.slot][..post.bytes].to_vec();
            let header = self.header(&message)?;
            let end = &mut self.ends[at];
            end.in_flight.push_back(post.slot);
            end.messages += 1;
            match header.has(flags::CONTROL) {
                true => end.control += 1,
                false if header.sequence < end.data => end.again += 1,
                false => end.data = header.sequence + 1,
            }
            let data = (at == 0 && !header.has(flags::CONTROL)).then_some(header.sequence);
            if data.is_none() || data != self.faults.swallow {
                self.transmit(at, message);
            }
        }
        Ok(())
    }

    fn transmit(&mut self, from: usize, message: Vec<u8>) {
        let active = self.step < self.faults.until;
        let lost = self.faults.lose == Some((from, self.ends[from].messages - 1))
            || (active && self.random.chance(self.faults.loss));
        if lost {
            return;
        }
        let wire = &mut self.wires[from];
        if active && self.random.chance(self.faults.doubled) {
            wire.push_back(message.clone());
        }
        match active && self.random.chance(self.faults.early) {
            true => wire.insert(self.random.below(wire.len() + 1), message),
            false => wire.push_back(message),
        }
    }

    /// What holds after every step where nothing goes wrong: an end may never send more than the other has receives
    /// for, beside those for control messages; and nothing is sent twice.
    fn check(&self) -> Result<(), Failure> {
        if !(self.faults.none() || self.config.reliable) {
            return Ok(());
        }
        let kept = self.config.depth - self.config.credits();
        for (from, to) in [(0, 1), (1, 0)] {
            let (from, to) = (&self.ends[from], &self.ends[to]);
            let unread = to.arrived.iter().filter(|&&(slot, _)| to.receives[slot][28] & flags::CONTROL as u8 != 0);
            let may_come = from.link.sending.limit - from.delivered;
            let room = to.posted.len() + unread.count();
            if may_come + kept as u64 > room as u64 {
                return rule(format!("{may_come} data messages may come, {room} receives are there, {kept} are kept"));
            }
            if from.again > 0 {
                return rule("a message was sent again although nothing was lost");
            }
        }
        Ok(())
    }
}
