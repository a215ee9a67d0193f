//! The listener's side of a hello.

use nuvec_transport::Rejection;

use super::inbox::Inbox;
use super::message::{self, HASH, HEADER, Header, LONGEST, OPEN, Open, OpenMessage, ReplyCode, Role, VERSION};
use super::message::{Verdict, VerdictCode};
use super::{Identity, MALFORMED, connections_text, key_text, nonce, quoted, size_text, version_text};

/// Whether a hello may go on. Decided before the dialler has proved anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It may.
    Go,
    /// The session or the group that it names is not known yet.
    NotYet,
    /// There is no room for another connection.
    Busy,
}

/// What a verdict is made from: the listening rank's own view of the connection that is asked for. Ranks are the root
/// group's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// This rank.
    pub(crate) rank: u32,
    /// The rank whose control and ring connections this rank takes in that group: its left in the ring.
    pub(crate) left: u32,
    /// The number of ranks.
    pub(crate) size: u32,
    /// The number of connections per neighbour.
    pub(crate) connections: u16,
    /// This run. Zeros until this rank has *all* its links, even if it knows all cards: a left neighbour that still
    /// dials ring links says zeros too.
    pub(crate) session: [u8; 16],
    /// Whether a connection of that `from`, role, group and index is open.
    pub(crate) taken: bool,
}

/// Who knows the state of the group. What it is asked about comes from another process: any values are possible.
pub(crate) trait Judge {
    /// Asked once there is a whole Open of this version whose side has a key as this one has, or none as this one has.
    /// With a key, the dialler has proved nothing yet.
    fn admit(&mut self, open: &Open) -> Answer;
    /// Asked for the verdict; with a key, after the dialler's proof. The hello compares, in the protocol's order.
    fn place(&mut self, open: &Open) -> Place;
}

/// Why a listener's connection did not come about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// The reason, for people; it follows the dialler's address or name.
    pub(crate) text: String,
    /// What was asked for, if that much was understood. Not proved where the rejection is `Key`, `NotYet` or `Busy`.
    pub(crate) open: Option<Open>,
    /// The reason, for code; `None`: a stranger, who gets no answer.
    pub(crate) rejection: Option<Rejection>,
}

/// The listener's side of one hello. Bytes go in and out; the owner moves them.
pub(crate) struct Listener {
    identity: Identity,
    /// Open as it was received.
    open_bytes: Vec<u8>,
    /// Reply as it was sent.
    reply_bytes: Vec<u8>,
    message: Option<OpenMessage>,
    state: State,
    inbox: Inbox,
    output: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Open { version: u16 },
    Proof,
    Accepted,
    Dropped,
}

impl Listener {
    /// Waits for a hello.
    pub(crate) fn new(identity: &Identity) -> Self {
        Self {
            identity: identity.clone(),
            open_bytes: Vec::new(),
            reply_bytes: Vec::new(),
            message: None,
            state: State::Header,
            inbox: Inbox::new(),
            output: Vec::new(),
        }
    }

    /// Takes the bytes that are to be written now, all of them; often none. After a refusal this is the refusal itself:
    /// write it, then close.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// How many bytes it wants next; 0 once the hello is over. What follows on the connection is not the hello's, so
    /// never read more than this.
    pub(crate) fn needs(&self) -> usize {
        self.inbox.needs()
    }

    /// Takes bytes that were read, at most [`needs`](Self::needs) of them. Errors: the connection is of no use; write
    /// what [`take_output`](Self::take_output) still has and close it.
    pub(crate) fn feed(&mut self, bytes: &[u8], judge: &mut dyn Judge) -> Result<(), Dropped> {
        let result = self.read(bytes, judge);
        if result.is_err() {
            self.state = State::Dropped;
            self.inbox.expect(0);
        }
        result
    }

    /// What was asked for, once it is granted: the good verdict is part of the output, and once that is written the
    /// connection may be used.
    pub(crate) fn accepted(&self) -> Option<&Open> {
        match self.state {
            State::Accepted => self.message.as_ref().map(|m| &m.open),
            _ => None,
        }
    }

    fn read(&mut self, bytes: &[u8], judge: &mut dyn Judge) -> Result<(), Dropped> {
        if !self.inbox.take(bytes).map_err(stranger)? {
            return Ok(());
        }
        match self.state {
            State::Header => self.header(),
            State::Open { version } => self.open(version, judge),
            State::Proof => self.proof(judge),
            State::Accepted | State::Dropped => Ok(()),
        }
    }

    fn header(&mut self) -> Result<(), Dropped> {
        let header = Header::read(&self.inbox.bytes).ok_or_else(|| stranger(MALFORMED))?;
        let good = match header.version {
            VERSION => header.length == OPEN,
            _ => header.length <= LONGEST,
        };
        if !good {
            return Err(stranger(MALFORMED));
        }
        if header.length == 0 {
            return Err(self.other_version(header.version));
        }
        self.inbox.expect_further(header.length);
        self.state = State::Open { version: header.version };
        Ok(())
    }

    fn open(&mut self, version: u16, judge: &mut dyn Judge) -> Result<(), Dropped> {
        if version != VERSION {
            return Err(self.other_version(version));
        }
        let message = message::read_open(&self.inbox.bytes[HEADER..]).ok_or_else(|| stranger(MALFORMED))?;
        self.open_bytes = self.inbox.bytes.clone();
        let message = self.message.insert(message);
        if message.keyed != self.identity.key.is_some() {
            let text = key_text(self.identity.key.as_ref());
            return Err(self.refuse(ReplyCode::Key, Rejection::Key, text));
        }
        match judge.admit(&message.open) {
            Answer::Go => {}
            Answer::NotYet => {
                return Err(self.refuse(
                    ReplyCode::NotYet,
                    Rejection::NotYet,
                    "names a run or group not known here yet",
                ));
            }
            Answer::Busy => {
                return Err(self.refuse(ReplyCode::Busy, Rejection::Busy, "found no room for another connection"));
            }
        }
        let nonce = nonce().map_err(|e| {
            let text = format!("cannot be answered: {}", e.what());
            self.refuse(ReplyCode::Busy, Rejection::Busy, text)
        })?;
        self.reply_bytes = message::write_reply(ReplyCode::Go, self.identity.key.is_some(), &nonce);
        self.output.extend_from_slice(&self.reply_bytes);
        if self.identity.key.is_some() {
            self.inbox.expect(HASH);
            self.state = State::Proof;
            return Ok(());
        }
        self.verdict(judge)
    }

    fn proof(&mut self, judge: &mut dyn Judge) -> Result<(), Dropped> {
        let right =
            self.identity.key.as_ref().map(|key| key.authenticate(&[b"dialler", &self.open_bytes, &self.reply_bytes]));
        // Both are there in this state; two that are missing must not count as equal.
        match (right, message::read_hash(&self.inbox.bytes)) {
            (Some(right), Some(proof)) if right == proof => self.verdict(judge),
            _ => {
                let verdict = Verdict { code: VerdictCode::Key, size: 0, connections: 0, rank: 0 };
                self.output.extend_from_slice(&verdict.write());
                self.output.extend_from_slice(&[0; HASH]);
                Err(self.dropped(Rejection::Key, key_text(self.identity.key.as_ref())))
            }
        }
    }

    fn verdict(&mut self, judge: &mut dyn Judge) -> Result<(), Dropped> {
        let message = self.message.as_ref().ok_or_else(|| stranger(MALFORMED))?;
        let place = judge.place(&message.open);
        let (code, text) = self.check(message, &place).err().unwrap_or((VerdictCode::Ok, String::new()));
        let refusal = code.rejection().map(|rejection| self.dropped(rejection, text));
        let verdict = Verdict { code, size: place.size, connections: place.connections, rank: place.rank }.write();
        self.output.extend_from_slice(&verdict);
        if let Some(key) = &self.identity.key {
            let hash = key.authenticate(&[b"listener", &self.open_bytes, &self.reply_bytes, &verdict]);
            self.output.extend_from_slice(hash.as_bytes());
        }
        match refusal {
            Some(refusal) => Err(refusal),
            None => {
                self.state = State::Accepted;
                self.inbox.expect(0);
                Ok(())
            }
        }
    }

    /// The protocol's order: not me, name, size, k, session, taken.
    fn check(&self, message: &OpenMessage, place: &Place) -> Result<(), (VerdictCode, String)> {
        let open = &message.open;
        let wrong_left = matches!(open.role, Role::Control | Role::Ring) && open.from != place.left;
        if open.to != place.rank || open.from == open.to || wrong_left || open.from.max(open.to) >= place.size {
            let text = format!(
                "is rank {} of {} there and asks for a {} connection to rank {}; here is rank {} of {}, whose left{} is rank {}",
                open.from,
                open.size,
                open.role.name(),
                open.to,
                place.rank,
                place.size,
                if open.group == 0 { "" } else { " in that group" },
                place.left
            );
            return Err((VerdictCode::NotMe, text));
        }
        if message.name_tag != message::name_tag(&self.identity.name) {
            let text = format!("belongs to a group of another name than {}", quoted(&self.identity.name));
            return Err((VerdictCode::Name, text));
        }
        if open.size != place.size {
            return Err((VerdictCode::Size, size_text(open.size, place.size)));
        }
        let indices = match open.role {
            Role::Control | Role::Bootstrap => 1,
            Role::Ring | Role::P2p => place.connections,
        };
        if open.connections != place.connections {
            let text = connections_text(open.connections, place.connections);
            return Err((VerdictCode::Connections, text));
        }
        if open.index >= indices {
            let text = format!("asks for {} connection {} of {indices}", open.role.name(), open.index);
            return Err((VerdictCode::Connections, text));
        }
        if open.session != place.session {
            let text = match open.session == [0; 16] {
                true => "begins a new run while an earlier one still ends",
                false => "belongs to another run",
            };
            return Err((VerdictCode::Session, text.into()));
        }
        if place.taken {
            let text = format!(
                "asks for a connection that rank {0} already has; does another process run as rank {0}?",
                open.from
            );
            return Err((VerdictCode::Taken, text));
        }
        Ok(())
    }

    fn other_version(&mut self, version: u16) -> Dropped {
        self.refuse(ReplyCode::Version, Rejection::Version, version_text(version))
    }

    /// Answers with a Reply that refuses. Its nonce is zeros: nobody hashes it.
    fn refuse(&mut self, code: ReplyCode, rejection: Rejection, text: impl Into<String>) -> Dropped {
        self.output.extend_from_slice(&message::write_reply(code, self.identity.key.is_some(), &[0; 32]));
        self.dropped(rejection, text)
    }

    fn dropped(&self, rejection: Rejection, text: impl Into<String>) -> Dropped {
        Dropped { text: text.into(), open: self.message.as_ref().map(|m| m.open.clone()), rejection: Some(rejection) }
    }
}

fn stranger(text: &str) -> Dropped {
    Dropped { text: text.into(), open: None, rejection: None }
}
