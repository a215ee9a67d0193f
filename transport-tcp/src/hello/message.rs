//! The hello's messages as bytes. No state, no decisions.

use blake3::Hash;
use nuvec_transport::Rejection;

use super::MAGIC;

/// This version of the protocol.
pub(super) const VERSION: u16 = 1;

/// Bytes of the header that begins Open and Reply.
pub(super) const HEADER: usize = 20;
/// The longest that a message may be after its header, in bytes, in any version.
pub(super) const LONGEST: usize = 512;
/// Bytes of this version's Open after the header.
pub(super) const OPEN: usize = 106;
/// Bytes of this version's Reply after the header.
pub(super) const REPLY: usize = 34;
/// Bytes of a Verdict without its hash.
pub(super) const VERDICT: usize = 11;
/// Bytes of a Proof, and of a Verdict's hash.
pub(super) const HASH: usize = blake3::OUT_LEN;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Role {
    /// Control messages between ring neighbours.
    Control = 1,
    /// One of the ring's data connections.
    Ring = 2,
    /// One stripe of a one-way stream between any two ranks.
    P2p = 3,
    /// RDMA's exchange of endpoints with rank 0.
    Bootstrap = 4,
}

impl Role {
    fn from_code(code: u8) -> Option<Self> {
        [Self::Control, Self::Ring, Self::P2p, Self::Bootstrap].into_iter().find(|role| *role as u8 == code)
    }

    /// The role as texts name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Ring => "ring",
            Self::P2p => "point-to-point",
            Self::Bootstrap => "bootstrap",
        }
    }
}

/// What a dialler asks for. Ranks are the root group's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Open {
    /// What the connection is for.
    pub(crate) role: Role,
    /// Which of the ring's connections or the stream's stripes this is; 0 for the other roles.
    pub(crate) index: u16,
    /// How many connections per neighbour the dialler counts.
    pub(crate) connections: u16,
    /// How many ranks the dialler counts.
    pub(crate) size: u32,
    /// The dialler's rank.
    pub(crate) from: u32,
    /// The rank that the dialler means to reach.
    pub(crate) to: u32,
    /// The run that the connection belongs to; zeros while it forms.
    pub(crate) session: [u8; 16],
    /// The group that the connection belongs to; 0 is the root.
    pub(crate) group: u64,
}

/// An Open as it was read.
pub(super) struct OpenMessage {
    pub(super) open: Open,
    pub(super) keyed: bool,
    pub(super) name_tag: [u8; 32],
}

/// What a group's name is compared by: its length on the wire is the same for every name.
pub(super) fn name_tag(name: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"name").update(name.as_bytes());
    *hasher.finalize().as_bytes()
}

/// What begins Open and Reply in every version.
pub(super) struct Header {
    pub(super) version: u16,
    pub(super) length: usize,
}

impl Header {
    /// Reads a header whose magic has been checked.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut read = Read(bytes.get(MAGIC.len()..)?);
        Some(Self { version: read.u16()?, length: read.u16()?.into() })
    }

    fn write(length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + length);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes());
        bytes
    }
}

/// Open as bytes.
pub(super) fn write_open(open: &Open, keyed: bool, name_tag: &[u8; 32], nonce: &[u8; 32]) -> Vec<u8> {
    let mut bytes = Header::write(OPEN);
    bytes.push(u8::from(keyed));
    bytes.push(open.role as u8);
    bytes.extend_from_slice(&open.index.to_le_bytes());
    bytes.extend_from_slice(&open.connections.to_le_bytes());
    bytes.extend_from_slice(&open.size.to_le_bytes());
    bytes.extend_from_slice(&open.from.to_le_bytes());
    bytes.extend_from_slice(&open.to.to_le_bytes());
    bytes.extend_from_slice(name_tag);
    bytes.extend_from_slice(&open.session);
    bytes.extend_from_slice(&open.group.to_le_bytes());
    bytes.extend_from_slice(nonce);
    bytes
}

/// Reads this version's Open, without its header; `None` if a field has a value that the protocol does not give it.
pub(super) fn read_open(body: &[u8]) -> Option<OpenMessage> {
    let mut read = Read(body);
    let keyed = read.bool()?;
    let open = Open {
        role: Role::from_code(read.u8()?)?,
        index: read.u16()?,
        connections: read.u16()?,
        size: read.u32()?,
        from: read.u32()?,
        to: read.u32()?,
        session: [0; 16],
        group: 0,
    };
    let name_tag = read.array()?;
    let open = Open { session: read.array()?, group: u64::from_le_bytes(read.array()?), ..open };
    let _nonce: [u8; 32] = read.array()?;
    read.0.is_empty().then_some(OpenMessage { open, keyed, name_tag })
}

/// Reply's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ReplyCode {
    Go = 1,
    Version = 2,
    Key = 3,
    NotYet = 4,
    Busy = 5,
}

impl ReplyCode {
    const ALL: [Self; 5] = [Self::Go, Self::Version, Self::Key, Self::NotYet, Self::Busy];

    /// The code of a Reply of any version, without its header.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let code = *body.first()?;
        Self::ALL.into_iter().find(|c| *c as u8 == code)
    }
}

/// Reply as bytes.
pub(super) fn write_reply(code: ReplyCode, keyed: bool, nonce: &[u8; 32]) -> Vec<u8> {
    let mut bytes = Header::write(REPLY);
    bytes.push(code as u8);
    bytes.push(u8::from(keyed));
    bytes.extend_from_slice(nonce);
    bytes
}

/// Whether the sender of this version's Reply, without its header, has a key.
pub(super) fn reply_keyed(body: &[u8]) -> Option<bool> {
    Read(body.get(1..)?).bool()
}

/// Verdict's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum VerdictCode {
    Ok = 1,
    Size = 2,
    Connections = 3,
    NotMe = 4,
    Taken = 5,
    Name = 6,
    Session = 7,
    Key = 8,
}

impl VerdictCode {
    const ALL: [Self; 8] =
        [Self::Ok, Self::Size, Self::Connections, Self::NotMe, Self::Taken, Self::Name, Self::Session, Self::Key];

    /// The refusal that it is; `None` for none.
    pub(super) fn rejection(self) -> Option<Rejection> {
        match self {
            Self::Ok => None,
            Self::Size => Some(Rejection::Size),
            Self::Connections => Some(Rejection::Connections),
            Self::NotMe => Some(Rejection::NotMe),
            Self::Taken => Some(Rejection::Taken),
            Self::Name => Some(Rejection::Name),
            Self::Session => Some(Rejection::Session),
            Self::Key => Some(Rejection::Key),
        }
    }
}

/// A Verdict without its hash: the code, and the listener's own view.
pub(super) struct Verdict {
    pub(super) code: VerdictCode,
    pub(super) size: u32,
    pub(super) connections: u16,
    pub(super) rank: u32,
}

impl Verdict {
    /// The verdict as bytes.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(VERDICT + HASH);
        bytes.push(self.code as u8);
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes.extend_from_slice(&self.connections.to_le_bytes());
        bytes.extend_from_slice(&self.rank.to_le_bytes());
        bytes
    }

    /// Reads a verdict without its hash; `None` if it has no such code.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut read = Read(bytes);
        let code = read.u8()?;
        let code = VerdictCode::ALL.into_iter().find(|c| *c as u8 == code)?;
        Some(Self { code, size: read.u32()?, connections: read.u16()?, rank: read.u32()? })
    }
}

/// The 32 bytes at the start of `bytes` as a hash, whose `==` takes the same time wherever two differ.
pub(super) fn read_hash(bytes: &[u8]) -> Option<Hash> {
    Read(bytes).array().map(Hash::from_bytes)
}

/// Fields off the front of a message; `None` once it is too short.
struct Read<'a>(&'a [u8]);

impl Read<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
}
