//! The dialler's side of a hello.

use nuvec_transport::{Rejection, Result};

use super::inbox::Inbox;
use super::message::{self, HASH, HEADER, Header, LONGEST, Open, REPLY, ReplyCode, VERDICT, VERSION};
use super::message::{Verdict, VerdictCode};
use super::{Identity, MALFORMED, connections_text, key_text, nonce, quoted, size_text, version_text};

/// Why a dialler's connection did not come about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The reason, for code.
    pub(crate) rejection: Rejection,
    /// Whether another try, a moment later, may succeed.
    pub(crate) retry: bool,
    /// The reason, for people; it follows the peer's name.
    pub(crate) text: String,
}

/// The dialler's side of one hello. Bytes go in and out; the owner moves them.
pub(crate) struct Dialler {
    identity: Identity,
    open: Open,
    /// Open as it was sent.
    open_bytes: Vec<u8>,
    /// Reply as it was received.
    reply_bytes: Vec<u8>,
    state: State,
    inbox: Inbox,
    output: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Reply { version: u16 },
    Verdict,
    Accepted,
    Refused,
}

impl Dialler {
    /// Begins a hello that asks for `open`. Errors: the system has no random bytes to give.
    pub(crate) fn new(identity: &Identity, open: Open) -> Result<Self> {
        let tag = message::name_tag(&identity.name);
        let open_bytes = message::write_open(&open, identity.key.is_some(), &tag, &nonce()?);
        Ok(Self {
            identity: identity.clone(),
            open,
            output: open_bytes.clone(),
            open_bytes,
            reply_bytes: Vec::new(),
            state: State::Header,
            inbox: Inbox::new(),
        })
    }

    /// Takes the bytes that are to be written now, all of them; often none.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// How many bytes it wants next; 0 once the hello is over. What follows on the connection is not the hello's, so
    /// never read more than this.
    pub(crate) fn needs(&self) -> usize {
        self.inbox.needs()
    }

    /// Takes bytes that were read, at most [`needs`](Self::needs) of them. Errors: the connection is of no use; close it.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let result = self.read(bytes);
        if result.is_err() {
            self.state = State::Refused;
            self.inbox.expect(0);
            self.output.clear();
        }
        result
    }

    /// Whether the listener's good verdict is there and, with a key, proved: the connection may be used.
    pub(crate) fn accepted(&self) -> bool {
        self.state == State::Accepted
    }

    /// What a peer that ends the connection now, or stays silent, has failed to do; it follows the peer's name.
    pub(crate) fn unanswered(&self) -> &'static str {
        match self.state {
            State::Header if self.inbox.bytes.is_empty() => {
                "takes connections but does not answer nuvec's hello; is it MLX?"
            }
            _ => "began to answer the hello and did not finish",
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        if !self.inbox.take(bytes).map_err(|text| refused(Rejection::NotNuvec, text))? {
            return Ok(());
        }
        match self.state {
            State::Header => self.header(),
            State::Reply { version } => self.reply(version),
            State::Verdict => self.verdict(),
            State::Accepted | State::Refused => Ok(()),
        }
    }

    fn header(&mut self) -> Result<(), Refused> {
        let header = Header::read(&self.inbox.bytes).ok_or_else(malformed)?;
        let good = match header.version {
            VERSION => header.length == REPLY,
            _ => (1..=LONGEST).contains(&header.length),
        };
        if !good {
            return Err(malformed());
        }
        self.inbox.expect_further(header.length);
        self.state = State::Reply { version: header.version };
        Ok(())
    }

    fn reply(&mut self, version: u16) -> Result<(), Refused> {
        let body = &self.inbox.bytes[HEADER..];
        let code = ReplyCode::read(body);
        match code {
            Some(ReplyCode::Key) => return Err(self.wrong_key()),
            Some(ReplyCode::NotYet) => return Err(later(Rejection::NotYet, "does not know this group yet")),
            Some(ReplyCode::Busy) => return Err(later(Rejection::Busy, "has no room for another connection now")),
            _ if version != VERSION => return Err(refused(Rejection::Version, version_text(version))),
            Some(ReplyCode::Version) => {
                return Err(refused(
                    Rejection::Version,
                    format!("does not take version {VERSION} of nuvec's protocol"),
                ));
            }
            Some(ReplyCode::Go) => {}
            None => return Err(malformed()),
        }
        if message::reply_keyed(body).ok_or_else(malformed)? != self.identity.key.is_some() {
            return Err(self.wrong_key());
        }
        self.reply_bytes = self.inbox.bytes.clone();
        let mut length = VERDICT;
        if let Some(key) = &self.identity.key {
            let proof = key.authenticate(&[b"dialler", &self.open_bytes, &self.reply_bytes]);
            self.output.extend_from_slice(proof.as_bytes());
            length += HASH;
        }
        self.inbox.expect(length);
        self.state = State::Verdict;
        Ok(())
    }

    fn verdict(&mut self) -> Result<(), Refused> {
        let (verdict, hash) = self.inbox.bytes.split_at(VERDICT);
        if let Some(key) = &self.identity.key {
            let right = key.authenticate(&[b"listener", &self.open_bytes, &self.reply_bytes, verdict]);
            if message::read_hash(hash) != Some(right) {
                return Err(self.wrong_key());
            }
        }
        let verdict = Verdict::read(verdict).ok_or_else(malformed)?;
        self.judge(&verdict)?;
        self.state = State::Accepted;
        self.inbox.expect(0);
        Ok(())
    }

    fn judge(&self, verdict: &Verdict) -> Result<(), Refused> {
        let open = &self.open;
        // A listener that says "ok" and sees another rank, size or k than we asked for did not say "ok" to us.
        let code = match verdict.code {
            VerdictCode::Ok if verdict.rank != open.to => VerdictCode::NotMe,
            VerdictCode::Ok if verdict.size != open.size => VerdictCode::Size,
            VerdictCode::Ok if verdict.connections != open.connections => VerdictCode::Connections,
            code => code,
        };
        let forming = open.session == [0; 16];
        Err(match code {
            VerdictCode::Ok => return Ok(()),
            VerdictCode::NotMe if verdict.rank == open.to => refused(
                Rejection::NotMe,
                format!(
                    "is rank {} of {} there and takes no {} connection from rank {} of {}; {}",
                    verdict.rank,
                    verdict.size,
                    open.role.name(),
                    open.from,
                    open.size,
                    match open.group {
                        0 => "both need the same host list",
                        _ => "both need to split with the same ranks in the same order",
                    }
                ),
            ),
            VerdictCode::NotMe => refused(
                Rejection::NotMe,
                format!(
                    "is rank {} of {} there, not rank {} of {}; both need the same host list",
                    verdict.rank, verdict.size, open.to, open.size
                ),
            ),
            VerdictCode::Name => refused(
                Rejection::Name,
                format!("belongs to a group of another name than {}", quoted(&self.identity.name)),
            ),
            VerdictCode::Size => refused(Rejection::Size, size_text(verdict.size, open.size)),
            VerdictCode::Connections => {
                refused(Rejection::Connections, connections_text(verdict.connections, open.connections))
            }
            VerdictCode::Session if forming => {
                later(Rejection::Session, "is still in an earlier run than the one that begins")
            }
            VerdictCode::Session => refused(Rejection::Session, "belongs to another run"),
            VerdictCode::Taken => refused(
                Rejection::Taken,
                format!(
                    "already holds that connection from rank {0}; does another process run as rank {0}?",
                    open.from
                ),
            ),
            VerdictCode::Key => self.wrong_key(),
        })
    }

    fn wrong_key(&self) -> Refused {
        refused(Rejection::Key, key_text(self.identity.key.as_ref()))
    }
}

fn refused(rejection: Rejection, text: impl Into<String>) -> Refused {
    Refused { rejection, retry: false, text: text.into() }
}

fn later(rejection: Rejection, text: &str) -> Refused {
    Refused { rejection, retry: true, text: text.into() }
}

fn malformed() -> Refused {
    refused(Rejection::NotNuvec, MALFORMED)
}
