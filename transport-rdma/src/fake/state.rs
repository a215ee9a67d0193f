//! What the devices know: queue pairs, queues and regions by number, and how a message travels.

use std::collections::{HashMap, VecDeque};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::ptr;

use super::{Device, Faults, Live};
use crate::sys::bindings as b;

/// Sizes of tables that begin with a device's GIDs.
pub(super) const GIDS: usize = 16;

pub(super) struct DeviceState {
    pub(super) device: Device,
    pub(super) gids: Vec<([u8; 16], bool)>,
    pub(super) faults: Faults,
    /// Messages sent so far.
    pub(super) sent: u64,
}

/// Memory that a work request names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Element {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) key: u32,
}

/// A posted work request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) element: Element,
}

pub(super) struct QueuePair {
    pub(super) device: usize,
    pub(super) domain: u32,
    pub(super) queue: u32,
    pub(super) kind: b::ibv_qp_type,
    pub(super) state: b::ibv_qp_state,
    pub(super) most: (usize, usize),
    /// The peer's GID and number.
    pub(super) to: Option<([u8; 16], u32)>,
    pub(super) receives: VecDeque<Request>,
    /// Reliable sends that wait for a receive at the peer.
    pub(super) waiting: VecDeque<Request>,
    /// Sends whose completions were not polled yet.
    pub(super) unpolled: usize,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) device: usize,
    pub(super) entries: VecDeque<b::ibv_wc>,
    pub(super) capacity: usize,
    pub(super) armed: bool,
    pub(super) channel: Option<u32>,
    /// Events that were taken and not acknowledged.
    pub(super) unacknowledged: u32,
    pub(super) overrun: bool,
}

pub(super) struct Channel {
    read: PipeReader,
    write: PipeWriter,
    /// The queues that rang.
    rang: VecDeque<u32>,
}

pub(super) struct Region {
    pub(super) domain: u32,
    address: u64,
    length: u64,
}

pub(super) struct State {
    pub(super) devices: Vec<DeviceState>,
    pub(super) contexts: usize,
    pub(super) domains: HashMap<u32, usize>,
    pub(super) regions: HashMap<u32, Region>,
    pub(super) channels: HashMap<u32, Channel>,
    pub(super) queues: HashMap<u32, Queue>,
    pub(super) queue_pairs: HashMap<u32, QueuePair>,
    next: u32,
}

/// Why a verb fails.
pub(super) type Refusal = i32;

impl State {
    pub(super) fn new(devices: Vec<Device>) -> Self {
        let parse = |(text, v1): &(String, bool)| (text.parse::<Ipv6Addr>().expect("an address").octets(), *v1);
        let state = |device: Device| DeviceState {
            gids: device.gids.iter().map(parse).collect(),
            device,
            faults: Faults::default(),
            sent: 0,
        };
        Self {
            devices: devices.into_iter().map(state).collect(),
            contexts: 0,
            domains: HashMap::new(),
            regions: HashMap::new(),
            channels: HashMap::new(),
            queues: HashMap::new(),
            queue_pairs: HashMap::new(),
            next: 0,
        }
    }

    pub(super) fn live(&self) -> Live {
        Live {
            contexts: self.contexts,
            domains: self.domains.len(),
            regions: self.regions.len(),
            channels: self.channels.len(),
            completion_queues: self.queues.len(),
            queue_pairs: self.queue_pairs.len(),
        }
    }

    /// A number that nothing else has.
    pub(super) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn add_region(&mut self, domain: u32, address: u64, length: u64) -> Result<u32, Refusal> {
        let device = self.domains[&domain];
        let regions = self.regions.values().filter(|region| self.domains[&region.domain] == device).count();
        if regions >= self.devices[device].device.regions {
            return Err(libc::ENOMEM);
        }
        let key = self.number();
        self.regions.insert(key, Region { domain, address, length });
        Ok(key)
    }

    /// A channel, and its descriptor.
    pub(super) fn add_channel(&mut self, device: usize) -> Result<(u32, i32), Refusal> {
        if !self.devices[device].device.events {
            return Err(libc::EOPNOTSUPP);
        }
        let (read, write) = std::io::pipe().map_err(|e| e.raw_os_error().unwrap_or(libc::EMFILE))?;
        let (number, descriptor) = (self.number(), read.as_raw_fd());
        self.channels.insert(number, Channel { read, write, rang: VecDeque::new() });
        Ok((number, descriptor))
    }

    /// Takes what a channel rang: the queue's number.
    pub(super) fn take_event(&mut self, channel: u32) -> Result<u32, Refusal> {
        let channel = self.channels.get_mut(&channel).ok_or(libc::EINVAL)?;
        channel.read.read_exact(&mut [0]).map_err(|e| e.raw_os_error().unwrap_or(libc::EAGAIN))?;
        let queue = channel.rang.pop_front().ok_or(libc::EINVAL)?;
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.unacknowledged += 1;
        }
        Ok(queue)
    }

    pub(super) fn add_queue_pair(&mut self, pair: QueuePair) -> Result<u32, Refusal> {
        let device = &self.devices[pair.device].device;
        let (most, reliable) = (device.queue_pairs, device.reliable);
        if pair.kind == b::IBV_QPT_RC && !reliable {
            return Err(libc::EOPNOTSUPP);
        }
        if pair.most.0.max(pair.most.1) > device.work {
            return Err(libc::EINVAL);
        }
        if self.queue_pairs.values().filter(|other| other.device == pair.device).count() >= most {
            return Err(libc::EBUSY);
        }
        let number = self.number();
        self.queue_pairs.insert(number, pair);
        Ok(number)
    }

    /// Whether a GID is one that a device announces.
    pub(super) fn device_of(&self, gid: [u8; 16]) -> Option<usize> {
        self.devices.iter().position(|device| device.gids.iter().any(|(of, _)| *of == gid))
    }

    /// Changes a queue pair's state, as far as that may be.
    pub(super) fn modify(&mut self, number: u32, to: b::ibv_qp_state) -> Result<(), Refusal> {
        let pair = self.queue_pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        match (pair.state, to) {
            (b::IBV_QPS_RESET, b::IBV_QPS_INIT)
            | (b::IBV_QPS_INIT, b::IBV_QPS_RTR)
            | (b::IBV_QPS_RTR, b::IBV_QPS_RTS) => pair.state = to,
            (_, b::IBV_QPS_ERR) => self.break_pair(number),
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    /// Puts a queue pair into the error state: all its work is flushed.
    fn break_pair(&mut self, number: u32) {
        let Some(pair) = self.queue_pairs.get_mut(&number) else { return };
        pair.state = b::IBV_QPS_ERR;
        let (receives, sends) = (std::mem::take(&mut pair.receives), std::mem::take(&mut pair.waiting));
        for (requests, opcode) in [(receives, b::IBV_WC_RECV), (sends, b::IBV_WC_SEND)] {
            for request in requests {
                self.complete(number, request.id, b::IBV_WC_WR_FLUSH_ERR, opcode, 0);
            }
        }
    }

    /// Adds a completion to a queue pair's queue, and rings its channel if it is armed.
    fn complete(&mut self, number: u32, id: u64, status: b::ibv_wc_status, opcode: b::ibv_wc_opcode, bytes: u32) {
        let Some(pair) = self.queue_pairs.get(&number) else { return };
        let number_of_queue = pair.queue;
        let Some(queue) = self.queues.get_mut(&number_of_queue) else { return };
        if queue.entries.len() >= queue.capacity {
            queue.overrun = true;
            return;
        }
        let vendor_err = if status == b::IBV_WC_SUCCESS { 0 } else { 0x81 };
        let entry =
            b::ibv_wc { wr_id: id, status, opcode, byte_len: bytes, qp_num: number, vendor_err, ..Default::default() };
        queue.entries.push_back(entry);
        if std::mem::take(&mut queue.armed)
            && let Some(channel) = queue.channel.and_then(|channel| self.channels.get_mut(&channel))
        {
            channel.rang.push_back(number_of_queue);
            // The pipe holds thousands of bytes, and a queue that rang is not armed.
            let _ = channel.write.write(&[1]);
        }
    }

    pub(super) fn post_receive(&mut self, number: u32, request: Request) -> Result<(), Refusal> {
        let pair = self.queue_pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        if pair.state == b::IBV_QPS_RESET {
            return Err(libc::EINVAL);
        }
        if pair.receives.len() >= pair.most.1 {
            return Err(libc::ENOMEM);
        }
        if pair.state == b::IBV_QPS_ERR {
            self.complete(number, request.id, b::IBV_WC_WR_FLUSH_ERR, b::IBV_WC_RECV, 0);
            return Ok(());
        }
        pair.receives.push_back(request);
        // Whoever waited for a receive here goes on.
        let waits = |pair: &QueuePair| !pair.waiting.is_empty() && pair.to.is_some_and(|(_, to)| to == number);
        let waiting: Vec<_> = self.queue_pairs.iter().filter(|(_, pair)| waits(pair)).map(|(from, _)| *from).collect();
        for from in waiting {
            let next = self.queue_pairs.get_mut(&from).and_then(|pair| pair.waiting.pop_front());
            if let Some(request) = next {
                self.travel(from, request, false);
            }
        }
        Ok(())
    }

    pub(super) fn post_send(&mut self, number: u32, request: Request) -> Result<(), Refusal> {
        let pair = self.queue_pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        match pair.state {
            b::IBV_QPS_RTS => {}
            b::IBV_QPS_ERR => {
                self.complete(number, request.id, b::IBV_WC_WR_FLUSH_ERR, b::IBV_WC_SEND, 0);
                return Ok(());
            }
            _ => return Err(libc::EINVAL),
        }
        if pair.unpolled >= pair.most.0 {
            return Err(libc::ENOMEM);
        }
        pair.unpolled += 1;
        if !pair.waiting.is_empty() {
            pair.waiting.push_back(request);
            self.devices[pair.device].sent += 1;
            return Ok(());
        }
        let (reliable, sender) = (pair.kind == b::IBV_QPT_RC, &mut self.devices[pair.device]);
        let sequence = sender.sent;
        sender.sent += 1;
        let one_in = sender.faults.lose_one_in.is_some_and(|n| sequence % n == n.get() - 1);
        let lost = !reliable && (one_in || sender.faults.lose.contains(&sequence));
        self.travel(number, request, lost);
        Ok(())
    }

    /// A message leaves a queue pair, and arrives, waits or vanishes.
    fn travel(&mut self, from: u32, request: Request, lost: bool) {
        let Some(pair) = self.queue_pairs.get(&from) else { return };
        let (device, reliable, domain, to) = (pair.device, pair.kind == b::IBV_QPT_RC, pair.domain, pair.to);
        let lost = lost || self.devices[device].faults.cut;
        if !self.is_valid(&request.element, domain) {
            self.complete(from, request.id, b::IBV_WC_LOC_PROT_ERR, b::IBV_WC_SEND, 0);
            return self.break_pair(from);
        }
        let reached = to.filter(|_| !lost).and_then(|(gid, number)| {
            let there = self.device_of(gid)?;
            let pair = self.queue_pairs.get(&number)?;
            let ready = [b::IBV_QPS_RTR, b::IBV_QPS_RTS].contains(&pair.state);
            (pair.device == there && ready && !self.devices[there].faults.cut).then_some(number)
        });
        match reached {
            Some(number) if self.queue_pairs[&number].receives.is_empty() && reliable => {
                if let Some(pair) = self.queue_pairs.get_mut(&from) {
                    pair.waiting.push_front(request);
                }
            }
            Some(number) => {
                if self.arrive(number, &request.element) {
                    self.complete(from, request.id, b::IBV_WC_SUCCESS, b::IBV_WC_SEND, 0);
                } else {
                    self.complete(from, request.id, b::IBV_WC_REM_INV_REQ_ERR, b::IBV_WC_SEND, 0);
                    self.break_pair(from);
                }
            }
            None if reliable => {
                self.complete(from, request.id, b::IBV_WC_RETRY_EXC_ERR, b::IBV_WC_SEND, 0);
                self.break_pair(from);
            }
            None => self.complete(from, request.id, b::IBV_WC_SUCCESS, b::IBV_WC_SEND, 0),
        }
    }

    /// A message arrives: into the oldest receive, or, without one, nowhere. `false`: the receive is too short.
    fn arrive(&mut self, number: u32, from: &Element) -> bool {
        let Some(pair) = self.queue_pairs.get_mut(&number) else { return true };
        let domain = pair.domain;
        let Some(receive) = pair.receives.pop_front() else { return true };
        let to = receive.element;
        if from.length > to.length || !self.is_valid(&to, domain) {
            let status = if from.length > to.length { b::IBV_WC_LOC_LEN_ERR } else { b::IBV_WC_LOC_PROT_ERR };
            self.complete(number, receive.id, status, b::IBV_WC_RECV, 0);
            self.break_pair(number);
            return false;
        }
        let (source, target) = (
            ptr::with_exposed_provenance::<u8>(from.address as usize),
            ptr::with_exposed_provenance_mut::<u8>(to.address as usize),
        );
        // SAFETY: both lie within regions that are registered, whose memory their owners keep allocated, and leave to the
        // device as long as the requests are posted, which both are. `copy` allows for one region being both.
        unsafe { ptr::copy(source, target, from.length as usize) };
        self.complete(number, receive.id, b::IBV_WC_SUCCESS, b::IBV_WC_RECV, from.length);
        true
    }

    /// Whether memory lies within a region of that domain.
    fn is_valid(&self, element: &Element, domain: u32) -> bool {
        self.regions.get(&element.key).is_some_and(|region| {
            let end = element.address.checked_add(u64::from(element.length));
            let within =
                element.address >= region.address && end.is_some_and(|end| end <= region.address + region.length);
            region.domain == domain && within
        })
    }

    /// Takes up to `most` completions; `None` for a poll that fails.
    pub(super) fn poll(&mut self, number: u32, most: usize) -> Option<Vec<b::ibv_wc>> {
        let queue = self.queues.get_mut(&number)?;
        let faults = &mut self.devices[queue.device].faults;
        if faults.poll_fails || queue.overrun {
            return None;
        }
        let count = queue.entries.len().min(most);
        let mut taken: Vec<_> = queue.entries.drain(..count).collect();
        for entry in &taken {
            if entry.opcode == b::IBV_WC_SEND
                && let Some(pair) = self.queue_pairs.get_mut(&entry.qp_num)
            {
                pair.unpolled = pair.unpolled.saturating_sub(1);
            }
        }
        let mut strayed = None;
        if let Some(first) = taken.first_mut() {
            if let Some(status) = faults.status.take() {
                (first.status, first.vendor_err) = (status, 0x99);
            }
            if let Some(id) = faults.wr_id.take() {
                first.wr_id = id;
                strayed = Some(first.qp_num);
            }
        }
        // A completion of work that is still posted gives memory back that a message may yet be written to: none may.
        strayed.into_iter().for_each(|number| self.break_pair(number));
        Some(taken)
    }
}
