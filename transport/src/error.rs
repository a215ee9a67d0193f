//! The one error of every transport and collective.
//!
//! A [`Kind`] that code matches on, and a context that the one line of its `Display` is made from. Texts are for
//! people: no code parses them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::Peer;

/// `Result` with [`Error`] as the error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for code to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The peer ended the stream in an orderly way while more was expected.
    PeerClosed,
    /// The connection broke: reset, no route any more, keep-alive failed.
    Reset,
    /// The other end acknowledges nothing: its machine, or the link to it, is down.
    Unreachable,
    /// A deadline passed.
    TimedOut,
    /// A peer, or this rank, refused a connection in the hello.
    Rejected(Rejection),
    /// Two ranks are in different calls.
    Mismatch,
    /// A resource ran out: descriptors, queue pairs, locked memory.
    Exhausted,
    /// A device is missing, down or failing.
    Device,
    /// What was asked for exists nowhere in this build or on this wire.
    Unsupported,
    /// The caller broke a rule of the API; nothing was sent.
    Misuse,
    /// The group failed earlier; the error's [`cause`](Error::cause) is that first failure.
    Poisoned,
    /// The group was closed by this process.
    Closed,
    /// Any other failure of a system call.
    Io,
}

/// Why a connection was refused in the hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rejection {
    /// The peer speaks another version of the protocol.
    Version,
    /// One side has a key and the other has not, or the keys differ.
    Key,
    /// The ranks disagree about the number of ranks.
    Size,
    /// The ranks disagree about the number of connections.
    Connections,
    /// The dialler wanted another rank than the one that listens there, or may not dial it.
    NotMe,
    /// The ranks belong to groups of different names.
    Name,
    /// The connection belongs to another run.
    Session,
    /// Another process already holds that rank's place.
    Taken,
    /// The listener does not know that group yet.
    NotYet,
    /// The listener has no room.
    Busy,
    /// What answers does not speak this protocol.
    NotNuvec,
}

/// The system's text of an I/O error, without its number: "Connection refused".
pub fn system_text(error: &std::io::Error) -> String {
    let mut text = error.to_string();
    if let Some(number) = text.find(" (os error") {
        text.truncate(number);
    }
    text
}

/// Text of another process as a part of a line: what breaks it, turns it round, or cannot be seen is a blank.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { ' ' }).collect()
}

/// Whether a character takes its place in a line: none that breaks it, turns it round, or cannot be seen.
fn is_printable(c: char) -> bool {
    let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !c.is_control() && !hidden
}

/// An error of a transport or a collective: a [`Kind`] and a context. Cheap to clone.
///
/// Its `Display` is one line: who, in which call, which peer at which address, what happened, and what to do about it
/// where that is known.
///
/// ```
/// use nuvec_transport::{Error, Kind, Peer};
/// let e = Error::new(Kind::TimedOut, "sent nothing for 30 s")
///     .with_peer(&Peer::new(1, "10.0.0.2:5000"))
///     .with_operation("all_sum", 57)
///     .with_rank(0)
///     .with_advice("raise NUVEC_DISTRIBUTED_TIMEOUT if it is only slow");
/// assert_eq!(
///     e.to_string(),
///     "rank 0: all_sum #57: rank 1 (10.0.0.2:5000) sent nothing for 30 s; raise NUVEC_DISTRIBUTED_TIMEOUT if it is only slow"
/// );
/// ```
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Debug, Clone)]
struct Inner {
    kind: Kind,
    what: Cow<'static, str>,
    rank: Option<usize>,
    peer: Option<Peer>,
    operation: Option<(&'static str, u64)>,
    lane: Option<usize>,
    progress: Option<(u64, u64)>,
    call: Option<(&'static str, Option<i32>, String)>,
    advice: Option<Cow<'static, str>>,
    cause: Option<Error>,
}

impl Error {
    /// An error of `kind`; `what` says what happened. Where a peer is added, `what` follows its name: "closed the
    /// connection", "refused: …".
    pub fn new(kind: Kind, what: impl Into<Cow<'static, str>>) -> Self {
        Self {
            inner: Arc::new(Inner {
                kind,
                what: what.into(),
                rank: None,
                peer: None,
                operation: None,
                lane: None,
                progress: None,
                call: None,
                advice: None,
                cause: None,
            }),
        }
    }

    /// The failure of the system call or verb `call`, with the system's text; the kind follows from the errno.
    pub fn from_io(call: &'static str, what: impl Into<Cow<'static, str>>, error: &std::io::Error) -> Self {
        use rustix::io::Errno;
        use std::io::ErrorKind as E;
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        let kind = match (error.kind(), errno) {
            (E::ConnectionReset | E::ConnectionAborted | E::BrokenPipe | E::NotConnected, _) => Kind::Reset,
            (E::HostUnreachable | E::NetworkUnreachable | E::NetworkDown, _) => Kind::Reset,
            // Of a connection, keep-alive or retransmission gave up: no deadline of ours passed.
            (E::TimedOut, _) => Kind::Reset,
            // What Apple's kernels answer to a send on a connection that is being torn down at that moment.
            (_, Some(Errno::PROTOTYPE)) => Kind::Reset,
            (E::OutOfMemory, _) | (_, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                Kind::Exhausted
            }
            _ => Kind::Io,
        };
        let mut this = Self::new(kind, what);
        this.edit().call = Some((call, error.raw_os_error(), system_text(error)));
        match errno {
            Some(Errno::MFILE | Errno::NFILE) => this.with_advice("raise the limit on open files (ulimit -n)"),
            _ => this,
        }
    }

    /// What later calls on a failed group return: it carries `first`, and its line repeats it.
    pub fn poisoned(first: &Error) -> Self {
        let first = first.cause().unwrap_or(first);
        let mut this = Self::new(Kind::Poisoned, "the group failed earlier");
        let inner = this.edit();
        inner.peer = first.inner.peer.clone();
        inner.cause = Some(first.clone());
        this
    }

    fn edit(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.inner)
    }

    /// Says what happened in other words, and keeps the rest.
    pub fn with_what(mut self, what: impl Into<Cow<'static, str>>) -> Self {
        self.edit().what = what.into();
        self
    }

    /// Adds the rank that reports the error.
    pub fn with_rank(mut self, rank: usize) -> Self {
        self.edit().rank = Some(rank);
        self
    }

    /// Adds the peer that the error is about.
    pub fn with_peer(mut self, peer: &Peer) -> Self {
        self.edit().peer = Some(peer.clone());
        self
    }

    /// Adds how the group that it is about numbers its peer.
    pub fn with_group_rank(mut self, group_rank: impl Fn(usize) -> Option<usize>) -> Self {
        if let Some(peer) = &self.inner.peer
            && let Some(rank) = group_rank(peer.rank)
        {
            let peer = peer.clone().in_group(rank);
            self.edit().peer = Some(peer);
        }
        self
    }

    /// Adds the operation and its number in its group, unless one is there already.
    pub fn with_operation(mut self, name: &'static str, sequence: u64) -> Self {
        self.edit().operation.get_or_insert((name, sequence));
        self
    }

    /// Adds the lane, counted from 0.
    pub fn with_lane(mut self, lane: usize) -> Self {
        self.edit().lane = Some(lane);
        self
    }

    /// Adds how many of how many bytes had been moved.
    pub fn with_progress(mut self, done: u64, total: u64) -> Self {
        self.edit().progress = Some((done, total));
        self
    }

    /// Adds what to do about it.
    pub fn with_advice(mut self, advice: impl Into<Cow<'static, str>>) -> Self {
        self.edit().advice = Some(advice.into());
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// What happened, without the context.
    pub fn what(&self) -> &str {
        &self.inner.what
    }

    /// The line without who reports it, the call and the peer's name: what this rank tells the others, who add theirs.
    pub fn phrase(&self) -> String {
        let Inner { what, lane, progress, call, advice, .. } = &*self.inner;
        let mut details = Vec::new();
        details.extend(lane.map(|lane| format!("lane {lane}")));
        details.extend(progress.map(|(done, total)| format!("{done} of {total} bytes done")));
        details.extend(call.as_ref().map(|(call, _, text)| format!("{call}: {text}")));
        let mut phrase = what.to_string();
        if !details.is_empty() {
            phrase += &format!(" ({})", details.join(", "));
        }
        if let Some(advice) = advice {
            phrase += &format!("; {advice}");
        }
        phrase
    }

    /// What to do about it, where that is known.
    pub fn advice(&self) -> Option<&str> {
        self.inner.advice.as_deref()
    }

    /// The rank that reports the error.
    pub fn rank(&self) -> Option<usize> {
        self.inner.rank
    }

    /// The peer that the error is about: of a group that failed, the rank that failed first.
    pub fn peer(&self) -> Option<&Peer> {
        self.inner.peer.as_ref()
    }

    /// The operation, and its number in its group.
    pub fn operation(&self) -> Option<(&'static str, u64)> {
        self.inner.operation
    }

    /// The lane, counted from 0.
    pub fn lane(&self) -> Option<usize> {
        self.inner.lane
    }

    /// Bytes done and bytes in all.
    pub fn progress(&self) -> Option<(u64, u64)> {
        self.inner.progress
    }

    /// The system call or verb that failed.
    pub fn call(&self) -> Option<&'static str> {
        self.inner.call.as_ref().map(|c| c.0)
    }

    /// The errno of the call that failed.
    pub fn errno(&self) -> Option<i32> {
        self.inner.call.as_ref().and_then(|c| c.1)
    }

    /// Of a [`Kind::Poisoned`] error, the failure that came first.
    pub fn cause(&self) -> Option<&Error> {
        self.inner.cause.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { what, rank, peer, operation, cause, .. } = &*self.inner;
        if let Some(rank) = rank {
            write!(f, "rank {rank}: ")?;
        }
        if let Some((name, sequence)) = operation {
            write!(f, "{name} #{sequence}: ")?;
        }
        if let Some(cause) = cause {
            return write!(f, "{what}: {cause}");
        }
        if let Some(peer) = peer {
            write!(f, "{peer} ")?;
        }
        f.write_str(&self.phrase())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.inner.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.cause.as_ref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_who_where_what_and_what_to_do() {
        let io = std::io::Error::from_raw_os_error(rustix::io::Errno::CONNRESET.raw_os_error());
        let e = Error::from_io("recv", "broke the connection", &io)
            .with_peer(&Peer::new(2, "10.0.0.3:5000"))
            .with_operation("all_sum", 3)
            .with_rank(1)
            .with_lane(0)
            .with_progress(10, 20);
        assert_eq!(e.kind(), Kind::Reset);
        let line = e.to_string();
        assert!(line.starts_with("rank 1: all_sum #3: rank 2 (10.0.0.3:5000) broke the connection (lane 0, 10 of 20"));
        assert!(line.ends_with("bytes done, recv: Connection reset by peer)") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn the_kind_of_a_system_calls_failure_follows_from_its_errno() {
        use rustix::io::Errno;
        for (errno, kind) in [
            (Errno::PIPE, Kind::Reset),
            (Errno::TIMEDOUT, Kind::Reset),
            (Errno::PROTOTYPE, Kind::Reset),
            (Errno::HOSTUNREACH, Kind::Reset),
            (Errno::MFILE, Kind::Exhausted),
            (Errno::NFILE, Kind::Exhausted),
            (Errno::NOBUFS, Kind::Exhausted),
            (Errno::NOMEM, Kind::Exhausted),
            (Errno::ADDRINUSE, Kind::Io),
        ] {
            let e = Error::from_io("x", "failed", &errno.into());
            assert_eq!((e.kind(), e.errno()), (kind, Some(errno.raw_os_error())), "{e}");
            let files = matches!(errno, Errno::MFILE | Errno::NFILE);
            assert_eq!(e.advice().is_some_and(|advice| advice.contains("ulimit -n")), files, "{e}");
        }
    }

    #[test]
    fn other_words_keep_the_call_the_errno_and_the_advice() {
        let io = std::io::Error::from(rustix::io::Errno::MFILE);
        let e = Error::from_io("accept", "failed", &io).with_peer(&Peer::new(2, "a:1"));
        let (line, errno) = (e.to_string(), e.errno());
        let e = e.with_what("was let down");
        assert_eq!((e.to_string(), e.errno()), (line.replace("failed", "was let down"), errno));
    }

    #[test]
    fn a_poisoned_group_repeats_its_first_cause_however_often_it_is_asked() {
        let first = Error::new(Kind::PeerClosed, "closed the connection").with_peer(&Peer::new(2, "a:1"));
        let again = Error::poisoned(&Error::poisoned(&first));
        assert_eq!(again.to_string(), "the group failed earlier: rank 2 (a:1) closed the connection");
        assert_eq!(again.peer().map(|p| p.rank), Some(2));
        assert_eq!(again.cause().map(Error::kind), Some(Kind::PeerClosed));
    }

    #[test]
    fn the_first_operation_that_is_named_stays() {
        let e = Error::new(Kind::Io, "x").with_operation("send", 1).with_operation("all_sum", 2);
        assert_eq!(e.operation(), Some(("send", 1)));
    }
}
