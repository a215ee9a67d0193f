//! Queue pairs: prepared, then connected, by type.

use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use nuvec_transport::{Error, Kind, Result};
use rustix::io::Errno;

use super::completion::failure;
use super::{Completion, CompletionChannel, CompletionQueue, Gid, Port, ProtectionDomain, Slot, Work};
use crate::sys::{bindings as b, check};

/// How many completions one poll takes at most.
const BATCH: usize = 16;

/// What a queue pair promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueuePairType {
    /// Reliable: the device acknowledges and resends.
    Rc,
    /// Unreliable: a message that is lost, or comes before its receive was posted, vanishes.
    Uc,
}

impl QueuePairType {
    fn code(self) -> b::ibv_qp_type {
        match self {
            Self::Rc => b::IBV_QPT_RC,
            Self::Uc => b::IBV_QPT_UC,
        }
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
        }
    }
}

/// What is needed to reach a queue pair, and to receive from it: what its owner announces, and both ends agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connection {
    /// The peer's queue pair.
    pub(crate) number: u32,
    /// The first sequence number of packets that the peer sends.
    pub(crate) peer_sequence: u32,
    /// The first sequence number of packets that we send.
    pub(crate) own_sequence: u32,
    pub(crate) lid: u16,
    pub(crate) gid: Gid,
    /// The smaller active MTU, as verbs count them.
    pub(crate) mtu: u32,
}

/// A queue pair and what must outlive it.
struct QueuePair {
    raw: NonNull<b::ibv_qp>,
    parts: ManuallyDrop<Parts>,
    /// The process that made it: a forked child has neither its memory nor the right to destroy it.
    process: u32,
}

/// In teardown order, once the queue pair is gone: what the device was working on, the completions, the domain.
struct Parts {
    sends: Posted,
    receives: Posted,
    completions: CompletionQueue,
    domain: Arc<ProtectionDomain>,
}

/// The slots that the device has, by index in their slab.
#[derive(Default)]
struct Posted {
    slots: Vec<Option<Slot>>,
    count: usize,
    most: usize,
}

impl Posted {
    fn full(&self) -> bool {
        self.count >= self.most
    }

    fn keep(&mut self, slot: Slot) {
        let index = slot.index();
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        // Slots of one slab are unique, and one kind of work uses one slab: the place is free.
        let before = self.slots[index].replace(slot);
        debug_assert!(before.is_none(), "two slots of one index");
        self.count += 1;
    }

    fn take(&mut self, index: usize) -> Option<Slot> {
        let slot = self.slots.get_mut(index)?.take()?;
        self.count -= 1;
        Some(slot)
    }

    /// Whether this slot's place is free, and the slot is of the slab that those before it were of.
    fn fits(&self, slot: &Slot) -> bool {
        let other = self.slots.iter().flatten().next();
        other.is_none_or(|other| ptr::eq(other.slab(), slot.slab()))
            && self.slots.get(slot.index()).is_none_or(Option::is_none)
    }
}

// SAFETY: a queue pair is bound to no thread: verbs on it may be called from any (see `Device`); it is reached through
// `&mut self`, or for its number. The other fields are `Send`.
unsafe impl Send for QueuePair {}

impl QueuePair {
    fn new(domain: &Arc<ProtectionDomain>, kind: QueuePairType, depth: usize) -> Result<Self> {
        let device = domain.device();
        let completions = CompletionQueue::new(device, depth.saturating_mul(2))?;
        let most = u32::try_from(depth).unwrap_or(u32::MAX);
        // Every field that is not set is zero: a driver may read them all.
        let mut attributes = b::ibv_qp_init_attr {
            send_cq: completions.raw().as_ptr(),
            recv_cq: completions.raw().as_ptr(),
            cap: b::ibv_qp_cap {
                max_send_wr: most,
                max_recv_wr: most,
                max_send_sge: 1,
                max_recv_sge: 1,
                ..Default::default()
            },
            qp_type: kind.code(),
            ..Default::default()
        };
        // SAFETY: the domain and the completion queue are alive and of one device, and stay so: the value below holds both,
        // and drops them after the queue pair. The attributes are a live local, wholly initialised.
        let raw = unsafe { (device.verbs().create_qp)(domain.raw().as_ptr(), &raw mut attributes) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(refused(domain, kind, depth, &io::Error::last_os_error()));
        };
        let posted = || Posted { most: depth, ..Posted::default() };
        let (sends, receives) = (posted(), posted());
        let parts = Parts { sends, receives, completions, domain: Arc::clone(domain) };
        Ok(Self { raw, parts: ManuallyDrop::new(parts), process: std::process::id() })
    }

    fn number(&self) -> u32 {
        // SAFETY: the queue pair lives as long as `self`, and its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    fn modify(&mut self, mut attributes: b::ibv_qp_attr, mask: u32, what: &str) -> io::Result<()> {
        let verbs = self.parts.domain.device().verbs();
        // SAFETY: the queue pair is alive, `self` is borrowed alone, and the attributes are a live local, wholly initialised,
        // of which the mask names those that were set.
        let done = check(unsafe { (verbs.modify_qp)(self.raw.as_ptr(), &raw mut attributes, mask.cast_signed()) });
        tracing::trace!("queue pair {} to {what}: {done:?}", self.number());
        done
    }

    /// Posts a receive into `slot`. `Err(slot)`: the queue is full.
    fn post_receive(&mut self, slot: Slot) -> Result<Result<(), Slot>> {
        if self.parts.receives.full() {
            return Ok(Err(slot));
        }
        let length = self.admit(&slot, Work::Receive, slot.bytes().len())?;
        let mut element = element(&slot, length);
        let mut request = b::ibv_recv_wr {
            wr_id: Work::Receive.id(slot.index()),
            sg_list: &raw mut element,
            num_sge: 1,
            ..Default::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the context is open as long as the domain's device, which `self` holds; its operations are set by then.
        let post = unsafe { (*self.parts.domain.device().raw().as_ptr()).ops.post_recv };
        let Some(post) = post else { return Err(self.lacks("post_recv")) };
        // SAFETY: the queue pair is alive and used by one thread at a time. The request and its element are live locals,
        // which the call copies. The element lies within a region of the queue pair's domain, and its memory is the
        // device's from here on: the slot is kept, unreachable, until its completion or until the queue pair is gone.
        let code = unsafe { post(self.raw.as_ptr(), &raw mut request, &raw mut bad) };
        keep(&mut self.parts.receives, slot, code, "ibv_post_recv")
    }

    /// Posts a send of the first `bytes` bytes of `slot`. `Err(slot)`: the queue is full.
    fn post_send(&mut self, slot: Slot, bytes: usize) -> Result<Result<(), Slot>> {
        if self.parts.sends.full() {
            return Ok(Err(slot));
        }
        let length = self.admit(&slot, Work::Send, bytes)?;
        let mut element = element(&slot, length);
        let mut request = b::ibv_send_wr {
            wr_id: Work::Send.id(slot.index()),
            sg_list: &raw mut element,
            num_sge: 1,
            opcode: b::IBV_WR_SEND,
            send_flags: b::IBV_SEND_SIGNALED,
            ..Default::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the context is open as long as the domain's device, which `self` holds; its operations are set by then.
        let post = unsafe { (*self.parts.domain.device().raw().as_ptr()).ops.post_send };
        let Some(post) = post else { return Err(self.lacks("post_send")) };
        // SAFETY: the queue pair is alive and used by one thread at a time. The request and its element are live locals,
        // which the call copies. The element lies within a region of the queue pair's domain; the device reads its
        // memory from here on: the slot is kept, unreachable, until its completion or until the queue pair is gone.
        let code = unsafe { post(self.raw.as_ptr(), &raw mut request, &raw mut bad) };
        keep(&mut self.parts.sends, slot, code, "ibv_post_send")
    }

    /// Refuses a slot that may not be posted here; the length of its first `bytes` bytes, as a work request has it.
    fn admit(&self, slot: &Slot, work: Work, bytes: usize) -> Result<u32> {
        let posted = match work {
            Work::Send => &self.parts.sends,
            Work::Receive => &self.parts.receives,
        };
        let fits = slot.is_of(&self.parts.domain) && posted.fits(slot) && bytes <= slot.bytes().len();
        let misuse = || Error::new(Kind::Misuse, format!("slot {} does not belong to this queue pair", slot.index()));
        u32::try_from(bytes).ok().filter(|_| fits).ok_or_else(misuse)
    }

    fn lacks(&self, verb: &str) -> Error {
        Error::new(Kind::Device, format!("the device {} has no {verb}", self.parts.domain.device().name()))
    }

    /// Appends what was done to `done`; `false` if nothing was. Errors: work failed (the status, and its usual cause), or a
    /// completion is of no work that was posted; what else was done is in `done` all the same.
    fn poll(&mut self, done: &mut Vec<Completion>) -> Result<bool> {
        let mut batch: [b::ibv_wc; BATCH] = std::array::from_fn(|_| b::ibv_wc::default());
        let polled = self.parts.completions.poll(&mut batch)?;
        let mut first = Ok(polled > 0);
        for completion in &batch[..polled] {
            match self.settle(completion) {
                Ok(completion) => done.push(completion),
                Err(e) => first = first.and(Err(e)),
            }
        }
        first
    }

    /// Gives the slot of a completion back.
    fn settle(&mut self, completion: &b::ibv_wc) -> Result<Completion> {
        let work = Work::of(completion.wr_id);
        let slot = work.and_then(|(work, index)| Some((work, self.posted(work).take(index)?)));
        if completion.status != b::IBV_WC_SUCCESS {
            return Err(failure(work.map(|(work, _)| work), completion.status, completion.vendor_err));
        }
        let Some((work, slot)) = slot else {
            let what =
                format!("has a queue pair that completed work which nobody posted (wr_id {:#x})", completion.wr_id);
            return Err(Error::new(Kind::Device, what));
        };
        let bytes = if work == Work::Receive { completion.byte_len as usize } else { 0 };
        if bytes > slot.bytes().len() {
            let what = format!("has a queue pair that put {bytes} bytes into {}", slot.bytes().len());
            return Err(Error::new(Kind::Device, what));
        }
        Ok(Completion { work, slot, bytes })
    }

    fn posted(&mut self, work: Work) -> &mut Posted {
        match work {
            Work::Send => &mut self.parts.sends,
            Work::Receive => &mut self.parts.receives,
        }
    }
}

/// The part of the slot's memory that a work request names.
fn element(slot: &Slot, length: u32) -> b::ibv_sge {
    b::ibv_sge { addr: slot.address().as_ptr().expose_provenance() as u64, length, lkey: slot.slab().local_key() }
}

/// Keeps a slot that was posted. ENOMEM says that the queue is full, which is back-pressure. After any other error the slot
/// is kept too: the device may have it (Soft-RoCE queues a send before it rings for the kernel, which may then fail).
fn keep(posted: &mut Posted, slot: Slot, code: i32, call: &'static str) -> Result<Result<(), Slot>> {
    let refused = check(code).err();
    let full =
        |e: &io::Error| [Errno::NOMEM, Errno::AGAIN].map(Errno::raw_os_error).map(Some).contains(&e.raw_os_error());
    if refused.as_ref().is_some_and(full) {
        return Ok(Err(slot));
    }
    posted.keep(slot);
    match refused {
        None => Ok(Ok(())),
        Some(e) => Err(Error::from_io(call, "cannot be reached: its queue pair refuses work", &e)),
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        let device = self.parts.domain.device();
        // SAFETY: the queue pair came from ibv_create_qp, in this process, and is destroyed once, here; it is in no
        // multicast group, and no asynchronous event of it was taken, for which the call would wait.
        let code = unsafe { (device.verbs().destroy_qp)(self.raw.as_ptr()) };
        match check(code) {
            // SAFETY: dropped once, here, and not used afterwards. The queue pair is gone, so the device works on none of
            // the slots any more.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.parts) },
            // The device may still write to the slots: they, and all that they belong to, are left to it.
            Err(e) => tracing::warn!("ibv_destroy_qp({}): {e}; its memory is left to the device", device.name()),
        }
    }
}

/// Why a queue pair was not made. EBUSY means that there are none left; EOPNOTSUPP and, of some drivers, EINVAL or ENOSYS
/// that the type is not offered.
fn refused(domain: &ProtectionDomain, kind: QueuePairType, depth: usize, e: &io::Error) -> Error {
    let (name, kind) = (domain.device().name(), kind.name());
    let limit = domain.device().limits().map_or(String::new(), |limits| format!(" (limit {})", limits.queue_pairs));
    let is = |errno: Errno| e.raw_os_error() == Some(errno.raw_os_error());
    if is(Errno::BUSY) || is(Errno::NOMEM) || is(Errno::NOSPC) {
        return Error::new(Kind::Exhausted, format!("out of queue pairs on device {name}{limit}"))
            .with_advice("end other programs that use it, or use fewer connections");
    }
    let what = format!("{name} gives no {kind} queue pair for {depth} sends and as many receives");
    let error = Error::from_io("ibv_create_qp", what, e);
    if is(Errno::OPNOTSUPP) || is(Errno::NOTSUP) || is(Errno::NOSYS) || is(Errno::INVAL) {
        return error.with_advice("another type of queue pair, or a smaller depth, may be offered");
    }
    error
}

/// A queue pair that takes receives, and is not connected yet.
pub(crate) struct Prepared {
    pair: QueuePair,
    kind: QueuePairType,
    port: Port,
}

impl Prepared {
    /// A new queue pair of this type, which holds `depth` sends and as many receives, on that port of the domain's device.
    /// Errors: [`Kind::Exhausted`]: no queue pairs left; or the type or the depth is not offered.
    pub(crate) fn new(domain: &Arc<ProtectionDomain>, kind: QueuePairType, depth: usize, port: Port) -> Result<Self> {
        let mut pair = QueuePair::new(domain, kind, depth)?;
        let attributes = b::ibv_qp_attr { qp_state: b::IBV_QPS_INIT, port_num: port.number, ..Default::default() };
        let mask = b::IBV_QP_STATE | b::IBV_QP_PKEY_INDEX | b::IBV_QP_PORT | b::IBV_QP_ACCESS_FLAGS;
        let name = domain.device().name();
        pair.modify(attributes, mask, "INIT")
            .map_err(|e| Error::from_io("ibv_modify_qp", format!("{name} does not initialise its queue pair"), &e))?;
        Ok(Self { pair, kind, port })
    }

    /// The domain whose memory it reaches.
    pub(crate) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.pair.parts.domain
    }

    /// What rings when its completions were armed and there are some; `None` where the device has no such thing.
    pub(crate) fn bell(&self) -> Option<Arc<CompletionChannel>> {
        self.pair.parts.completions.bell().cloned()
    }

    /// What it promises.
    pub(crate) fn kind(&self) -> QueuePairType {
        self.kind
    }

    /// Its number, by which the peer reaches it.
    pub(crate) fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Posts a receive into `slot`. `Err(slot)`: the queue is full.
    pub(crate) fn post_receive(&mut self, slot: Slot) -> Result<Result<(), Slot>> {
        self.pair.post_receive(slot)
    }

    /// Connects to a peer's queue pair, which need not be connected yet itself. Errors: [`Kind::Device`]: the peer's address
    /// cannot be used from this port.
    pub(crate) fn connect(self, to: &Connection) -> Result<Connected> {
        let Self { mut pair, kind, port } = self;
        let reliable = kind == QueuePairType::Rc;
        let ready_to_receive = b::ibv_qp_attr {
            qp_state: b::IBV_QPS_RTR,
            path_mtu: to.mtu,
            dest_qp_num: to.number,
            rq_psn: to.peer_sequence,
            ah_attr: b::ibv_ah_attr {
                dlid: to.lid,
                port_num: port.number,
                is_global: u8::from(port.global),
                grh: b::ibv_global_route {
                    dgid: b::ibv_gid { raw: to.gid.0 },
                    sgid_index: port.gid_index,
                    hop_limit: 64,
                    ..Default::default()
                },
                ..Default::default()
            },
            max_dest_rd_atomic: u8::from(reliable),
            // 0.64 ms: flow control sees to it that receives are posted.
            min_rnr_timer: if reliable { 12 } else { 0 },
            ..Default::default()
        };
        let of_reliable = |mask| if reliable { mask } else { 0 };
        let mask = b::IBV_QP_STATE | b::IBV_QP_AV | b::IBV_QP_PATH_MTU | b::IBV_QP_DEST_QPN | b::IBV_QP_RQ_PSN;
        let mask = mask | of_reliable(b::IBV_QP_MAX_DEST_RD_ATOMIC | b::IBV_QP_MIN_RNR_TIMER);
        pair.modify(ready_to_receive, mask, "RTR").map_err(|e| unreachable(&port, to, &e))?;

        let ready_to_send = b::ibv_qp_attr {
            qp_state: b::IBV_QPS_RTS,
            sq_psn: to.own_sequence,
            max_rd_atomic: u8::from(reliable),
            // 4.096 µs · 2^18 = 1.1 s, or up to four times that, depending on the device, which sends seven times. That is for
            // what is lost: a peer that is dead is noticed by its bootstrap connection, one that is cut off by the call's
            // time-out, or after these 8 to 31 s. Shorter, and a device that is merely slow (Soft-RoCE on a busy machine: 0.3 s) sends again what is
            // under way. Soft-RoCE takes 7 retries for any number.
            timeout: if reliable { 18 } else { 0 },
            retry_cnt: if reliable { 6 } else { 0 },
            rnr_retry: if reliable { 7 } else { 0 },
            ..Default::default()
        };
        let mask = b::IBV_QP_STATE | b::IBV_QP_SQ_PSN;
        let rest = b::IBV_QP_TIMEOUT | b::IBV_QP_RETRY_CNT | b::IBV_QP_RNR_RETRY | b::IBV_QP_MAX_QP_RD_ATOMIC;
        let failed = |e| Error::from_io("ibv_modify_qp", "cannot be sent to: the queue pair refuses", &e);
        pair.modify(ready_to_send, mask | of_reliable(rest), "RTS").map_err(failed)?;
        Ok(Connected(pair))
    }
}

/// Why a queue pair does not connect. A time-out or an invalid argument means that the peer's GID cannot be reached from ours.
fn unreachable(port: &Port, to: &Connection, e: &io::Error) -> Error {
    let what = format!(
        "cannot be reached: there is no route from GID {} (index {}) to GID {}, or their MTUs do not fit",
        port.gid, port.gid_index, to.gid
    );
    Error::from_io("ibv_modify_qp", what, e)
        .with_advice("check that both interfaces have addresses of one network, and the GID index")
}

/// A queue pair that is connected to its peer's.
pub(crate) struct Connected(QueuePair);

impl Connected {
    /// Posts a receive into `slot`. `Err(slot)`: the queue is full.
    pub(crate) fn post_receive(&mut self, slot: Slot) -> Result<Result<(), Slot>> {
        self.0.post_receive(slot)
    }

    /// Posts a send of the first `bytes` bytes of `slot`. `Err(slot)`: the queue is full, which is back-pressure.
    pub(crate) fn post_send(&mut self, slot: Slot, bytes: usize) -> Result<Result<(), Slot>> {
        self.0.post_send(slot, bytes)
    }

    /// Appends what was done to `done`; `false` if nothing was. Errors: see the module; what was done before is in `done`.
    pub(crate) fn poll(&mut self, done: &mut Vec<Completion>) -> Result<bool> {
        self.0.poll(done)
    }

    /// Ends all work: what is posted is flushed, which rings the completion channel. The queue pair is good for nothing
    /// afterwards.
    pub(crate) fn abort(&mut self) {
        let attributes = b::ibv_qp_attr { qp_state: b::IBV_QPS_ERR, ..Default::default() };
        if let Err(e) = self.0.modify(attributes, b::IBV_QP_STATE, "ERR") {
            tracing::debug!("ibv_modify_qp to ERR: {e}");
        }
    }

    /// See [`CompletionQueue::arm`].
    pub(crate) fn arm(&mut self) -> Result<bool> {
        self.0.parts.completions.arm()
    }

    /// See [`CompletionQueue::silence`].
    pub(crate) fn silence(&mut self) {
        self.0.parts.completions.silence();
    }
}
