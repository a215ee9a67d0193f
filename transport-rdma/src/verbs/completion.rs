//! Completions: what a device says of the work that it was given.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use nuvec_transport::{Error, Kind, Result};

use super::{Device, Slot};
use crate::sys::{Events, bindings as b, check};

/// What a slot was posted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Send,
    Receive,
}

impl Work {
    /// The work request's identifier, which its completion carries.
    pub(super) fn id(self, index: usize) -> u64 {
        let kind: u64 = match self {
            Self::Send => 1,
            Self::Receive => 2,
        };
        (kind << 32) | index as u64
    }

    /// What an identifier stands for, if it can be one of ours.
    pub(super) fn of(id: u64) -> Option<(Self, usize)> {
        let index = usize::try_from(id & u64::from(u32::MAX)).ok()?;
        match id >> 32 {
            1 => Some((Self::Send, index)),
            2 => Some((Self::Receive, index)),
            _ => None,
        }
    }
}

/// Work that was done: the slot is the caller's again.
pub(crate) struct Completion {
    pub(crate) work: Work,
    pub(crate) slot: Slot,
    /// Of a receive, the bytes that arrived: at most the slot's.
    pub(crate) bytes: usize,
}

/// A descriptor that becomes readable when a completion queue that was armed has something.
pub(crate) struct CompletionChannel {
    raw: NonNull<b::ibv_comp_channel>,
    events: Events,
    device: Arc<Device>,
}

// SAFETY: a channel is bound to no thread: verbs on it may be called from any (see `Device`). The other fields are
// `Send`.
unsafe impl Send for CompletionChannel {}
// SAFETY: `&CompletionChannel` leads to reads of the descriptor, which nobody writes after the channel was made, and to
// verbs, which lock what they share (see `Device`). The other fields are `Sync`.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// A new channel whose descriptor does not block, or `None` where the library or the device has none.
    fn new(device: &Arc<Device>) -> Option<Arc<Self>> {
        let events = device.verbs().events?;
        // SAFETY: the context is open as long as `device` is.
        let raw = unsafe { (events.create_comp_channel)(device.raw().as_ptr()) };
        let this = Arc::new(Self { raw: NonNull::new(raw)?, events, device: Arc::clone(device) });
        let descriptor = this.as_fd();
        rustix::io::ioctl_fionbio(descriptor, true).ok()?;
        rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC).ok()?;
        Some(this)
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives until `self` is dropped. Of its fields the library writes only the count of its
        // queues after it was made, and only the descriptor is read.
        let descriptor = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor is open until ibv_destroy_comp_channel, which only `drop` calls, and it is not −1: the
        // channel was made.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: the channel came from ibv_create_comp_channel and is destroyed once, here. Its queue holds an `Arc`
        // of it, so that is gone, or was not destroyed; then the call refuses, and nobody uses either.
        let code = unsafe { (self.events.destroy_comp_channel)(self.raw.as_ptr()) };
        if let Err(e) = check(code) {
            tracing::warn!("ibv_destroy_comp_channel({}): {e}", self.device.name());
        }
    }
}

/// A completion queue, of one queue pair.
pub(crate) struct CompletionQueue {
    raw: NonNull<b::ibv_cq>,
    channel: Option<Arc<CompletionChannel>>,
    device: Arc<Device>,
}

// SAFETY: a queue is bound to no thread: verbs on it may be called from any (see `Device`), and those that change it
// take `&mut self`. The other fields are `Send`.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// A queue for `entries` completions, with a channel of its own where the device has any. Errors: the device refuses.
    pub(super) fn new(device: &Arc<Device>, entries: usize) -> Result<Self> {
        let channel = CompletionChannel::new(device);
        let length = i32::try_from(entries).unwrap_or(i32::MAX);
        let bell = channel.as_ref().map_or(ptr::null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: the context is open as long as `device` is; the channel is null, or one of this context, which has no
        // other queue and lives as long as this one, which holds it. The context pointer is ours to choose, the vector 0 exists always.
        let raw =
            unsafe { (device.verbs().create_cq)(device.raw().as_ptr(), length, ptr::null_mut::<c_void>(), bell, 0) };
        let Some(raw) = NonNull::new(raw) else {
            let e = io::Error::last_os_error();
            let what = format!("{} gives no completion queue for {entries} entries", device.name());
            return Err(Error::from_io("ibv_create_cq", what, &e));
        };
        Ok(Self { raw, channel, device: Arc::clone(device) })
    }

    pub(super) fn raw(&self) -> NonNull<b::ibv_cq> {
        self.raw
    }

    /// What rings when the queue was armed and has something.
    pub(super) fn bell(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref()
    }

    /// Fills `into` with completions, and returns how many there were. Errors: the device cannot be polled.
    pub(super) fn poll(&mut self, into: &mut [b::ibv_wc]) -> Result<usize> {
        let capacity = i32::try_from(into.len()).unwrap_or(i32::MAX);
        // SAFETY: the context is open as long as the device, which `self` holds, and its operations are set by then.
        let poll = unsafe { (*self.device.raw().as_ptr()).ops.poll_cq };
        let Some(poll) = poll else { return Err(self.broken("it has no poll_cq")) };
        // SAFETY: the queue is alive; `into` is valid for that many entries; the queue is polled by one thread at a time,
        // since `self` is borrowed alone.
        let polled = unsafe { poll(self.raw.as_ptr(), capacity, into.as_mut_ptr()) };
        match usize::try_from(polled) {
            Ok(polled) if polled <= into.len() => Ok(polled),
            _ => Err(self.broken(&format!("ibv_poll_cq returned {polled}"))),
        }
    }

    fn broken(&self, why: &str) -> Error {
        Error::new(Kind::Device, format!("the completion queue of {} is broken: {why}", self.device.name()))
    }

    /// Has the channel ring at the next completion. What came before does not ring, so poll afterwards. `false` without a
    /// channel. Errors: the device refuses.
    pub(crate) fn arm(&mut self) -> Result<bool> {
        if self.channel.is_none() {
            return Ok(false);
        }
        // SAFETY: the context is open as long as the device, which `self` holds, and its operations are set by then.
        let notify = unsafe { (*self.device.raw().as_ptr()).ops.req_notify_cq };
        let Some(notify) = notify else { return Err(self.broken("it has no req_notify_cq")) };
        // SAFETY: the queue is alive and was made with a channel.
        let code = unsafe { notify(self.raw.as_ptr(), 0) };
        let refused = |e| Error::from_io("ibv_req_notify_cq", format!("{} rings no more", self.device.name()), &e);
        check(code).map(|()| true).map_err(refused)
    }

    /// Takes what the channel rang, so that it rings again only once armed. Never blocks.
    pub(crate) fn silence(&mut self) {
        let Some(channel) = &self.channel else { return };
        loop {
            let (mut queue, mut context) = (ptr::null_mut::<b::ibv_cq>(), ptr::null_mut::<c_void>());
            // SAFETY: the channel is alive and its descriptor does not block; both pointers are live locals.
            let code = unsafe { (channel.events.get_cq_event)(channel.raw.as_ptr(), &raw mut queue, &raw mut context) };
            if code != 0 {
                return;
            }
            // SAFETY: the event is of the only queue that was made with this channel, which is alive, and is
            // acknowledged once: ibv_destroy_cq(3) waits for all acknowledgements.
            unsafe { (channel.events.ack_cq_events)(self.raw.as_ptr(), 1) };
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: the queue came from ibv_create_cq and is destroyed once, here. Its queue pair was never made, or is
        // gone: it holds this value and drops it afterwards. Every event that was taken was acknowledged, so the call
        // does not wait.
        let code = unsafe { (self.device.verbs().destroy_cq)(self.raw.as_ptr()) };
        if let Err(e) = check(code) {
            tracing::warn!("ibv_destroy_cq({}): {e}", self.device.name());
        }
    }
}

/// What a status other than success means, and its usual cause. The number is the device's; it may be one that no header
/// has.
pub(super) fn failure(work: Option<Work>, status: b::ibv_wc_status, vendor: u32) -> Error {
    let (kind, text, cause) = match status {
        b::IBV_WC_RETRY_EXC_ERR => (
            Kind::Unreachable,
            "transport retries exceeded",
            "did not acknowledge: it ended, or the link to it is down",
        ),
        b::IBV_WC_RNR_RETRY_EXC_ERR => (Kind::Reset, "receiver not ready", "had no receive posted"),
        b::IBV_WC_WR_FLUSH_ERR => {
            (Kind::Reset, "flushed", "broke the connection: the queue pair was in the error state")
        }
        b::IBV_WC_RESP_TIMEOUT_ERR => (Kind::Reset, "response time-out", "did not answer"),
        b::IBV_WC_REM_ABORT_ERR => (Kind::Reset, "remote abort", "aborted the operation"),
        b::IBV_WC_LOC_LEN_ERR => (Kind::Device, "local length", "sent a message that is longer than was agreed"),
        b::IBV_WC_LOC_PROT_ERR | b::IBV_WC_LOC_ACCESS_ERR => {
            (Kind::Device, "local protection", "was to be sent memory that is not registered")
        }
        b::IBV_WC_LOC_QP_OP_ERR => {
            (Kind::Device, "local queue pair operation", "cannot be reached: the queue pair is broken")
        }
        b::IBV_WC_REM_INV_REQ_ERR => {
            (Kind::Device, "remote invalid request", "refused a message: it is longer than its receive")
        }
        b::IBV_WC_REM_ACCESS_ERR => (Kind::Device, "remote access", "refused access to its memory"),
        b::IBV_WC_REM_OP_ERR => (Kind::Device, "remote operation", "could not complete the operation"),
        b::IBV_WC_FATAL_ERR => (Kind::Device, "fatal", "cannot be reached: the device failed"),
        b::IBV_WC_GENERAL_ERR => (Kind::Device, "general", "cannot be reached: the device failed"),
        _ => (Kind::Device, "unknown", "cannot be reached: the device reports an error that is not known here"),
    };
    let work = match work {
        Some(Work::Send) => "send",
        Some(Work::Receive) => "receive",
        None => "work",
    };
    Error::new(kind, format!("{cause} ({work} completed with status {status}, {text}; vendor error {vendor:#x})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_come_back_as_what_they_were_made_of_and_others_are_none() {
        for work in [Work::Send, Work::Receive] {
            for index in [0, 1, 63, 4_000_000_000] {
                assert_eq!(Work::of(work.id(index)), Some((work, index)));
            }
        }
        for id in [0, 63, 3 << 32, u64::MAX] {
            assert_eq!(Work::of(id), None);
        }
    }

    #[test]
    fn every_status_says_its_number_and_a_cause_even_one_that_no_header_has() {
        for status in 1..40 {
            let e = failure(Some(Work::Send), status, 7);
            assert!(e.to_string().contains(&format!("status {status}, ")), "{e}");
        }
        assert_eq!(failure(None, 12, 0).kind(), Kind::Unreachable);
        assert_eq!(failure(None, 250, 0).kind(), Kind::Device);
    }
}
