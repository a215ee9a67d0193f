//! The table: functions as the library has them, over the state.
//!
//! Every function is called as the one of its name in rdma-core is: with objects that this table made and did not destroy
//! yet, and pointers that are valid for what the manual page says. Callers vouch for that; each block below says which part
//! of it is needed.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use super::Shared;
use super::objects::{Context, Device};
use super::state::{Element, GIDS, Queue, QueuePair, Request};
use crate::sys::{DeviceSource, Events, Verbs, bindings as b};

/// The table of these devices.
pub(super) fn verbs(state: &Arc<Shared>) -> Verbs {
    Verbs {
        get_device_name,
        open_device,
        close_device,
        query_port,
        query_gid,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        dereg_mr,
        create_cq,
        destroy_cq,
        create_qp,
        modify_qp,
        destroy_qp,
        query_device: Some(query_device),
        query_gid_ex: Some(query_gid_ex),
        events: Some(Events { create_comp_channel, destroy_comp_channel, get_cq_event, ack_cq_events }),
        devices: Box::new(Source(Arc::clone(state))),
    }
}

struct Source(Arc<Shared>);

impl DeviceSource for Source {
    unsafe fn list(&self, count: *mut c_int) -> *mut *mut b::ibv_device {
        let devices = self.0.lock().devices.len();
        let mut list: Vec<_> = (0..devices).map(|index| Device::make(&self.0, index)).collect();
        list.push(ptr::null_mut());
        if !count.is_null() {
            // SAFETY: not null, so the caller says that it is valid for a write.
            unsafe { *count = devices as c_int };
        }
        Box::into_raw(list.into_boxed_slice()).cast()
    }

    unsafe fn free(&self, list: *mut *mut b::ibv_device) {
        let count = self.0.lock().devices.len();
        // SAFETY: `list` leaked a box of one entry per device and a null; the number of devices does not change.
        let list = unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, count + 1)) };
        for device in list.iter().filter(|device| !device.is_null()) {
            // SAFETY: the list's devices came from `Device::make`, and the caller uses none any more.
            unsafe { Device::free(*device) };
        }
    }
}

/// Sets errno.
fn set_errno(errno: c_int) {
    #[cfg(any(target_os = "macos", target_os = "ios"))]
    // SAFETY: has no precondition.
    let place = unsafe { libc::__error() };
    #[cfg(not(any(target_os = "macos", target_os = "ios")))]
    // SAFETY: has no precondition.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: C's errno of this thread, which is valid for a write by this thread.
    unsafe { *place = errno };
}

/// What a function returns that makes an object and could not.
fn none<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

unsafe extern "C" fn get_device_name(device: *mut b::ibv_device) -> *const c_char {
    // SAFETY: the device is one of a list that was not freed.
    let device = unsafe { Device::of(device) };
    device.ibv.name.as_ptr()
}

unsafe extern "C" fn open_device(device: *mut b::ibv_device) -> *mut b::ibv_context {
    // SAFETY: the device is one of a list that was not freed.
    let device = unsafe { Device::of(device) };
    let ops = b::ibv_context_ops {
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        ..Default::default()
    };
    Context::make(device, ops)
}

unsafe extern "C" fn close_device(context: *mut b::ibv_context) -> c_int {
    // SAFETY: the context is open, and not used afterwards.
    unsafe { Context::free(context) };
    0
}

unsafe extern "C" fn query_device(context: *mut b::ibv_context, attributes: *mut b::ibv_device_attr) -> c_int {
    // SAFETY: the context is open.
    let Context { shared, index, .. } = unsafe { Context::of(context) };
    let device = shared.lock().devices[*index].device.clone();
    let number = |number: usize| c_int::try_from(number).unwrap_or(c_int::MAX);
    let all = b::ibv_device_attr {
        max_qp: number(device.queue_pairs),
        max_mr: number(device.regions),
        max_qp_wr: number(device.work),
        max_sge: 1,
        ..Default::default()
    };
    // SAFETY: the caller's structure is valid for a write.
    unsafe { *attributes = all };
    0
}

/// Fills only what the older structure has, as the library's does for whoever finds it by name.
unsafe extern "C" fn query_port(
    context: *mut b::ibv_context,
    port: u8,
    attributes: *mut b::_compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the context is open.
    let Context { shared, index, .. } = unsafe { Context::of(context) };
    let state = shared.lock();
    let (device, down) = (&state.devices[*index].device, state.devices[*index].faults.port_down);
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's structure is the whole one, initialised, and begins as the older one does.
    let attributes = unsafe { &mut *attributes.cast::<b::ibv_port_attr>() };
    attributes.state = if down { b::IBV_PORT_DOWN } else { b::IBV_PORT_ACTIVE };
    attributes.active_mtu = b::IBV_MTU_1024;
    attributes.max_msg_sz = device.message;
    attributes.gid_tbl_len = GIDS as c_int;
    attributes.link_layer = b::IBV_LINK_LAYER_ETHERNET as u8;
    0
}

/// A GID, and whether it is of RoCE version 1; zeros where the table has none.
fn gid(context: &Context, index: usize) -> Result<([u8; 16], bool), c_int> {
    if index >= GIDS {
        return Err(libc::EINVAL);
    }
    let state = context.shared.lock();
    Ok(state.devices[context.index].gids.get(index).copied().unwrap_or_default())
}

unsafe extern "C" fn query_gid(context: *mut b::ibv_context, _port: u8, index: c_int, into: *mut b::ibv_gid) -> c_int {
    // SAFETY: the context is open.
    let context = unsafe { Context::of(context) };
    match gid(context, usize::try_from(index).unwrap_or(usize::MAX)) {
        Ok((raw, _)) => {
            // SAFETY: the caller's union is valid for a write.
            unsafe { *into = b::ibv_gid { raw } };
            0
        }
        Err(errno) => errno,
    }
}

unsafe extern "C" fn query_gid_ex(
    context: *mut b::ibv_context,
    _port: u32,
    index: u32,
    into: *mut b::ibv_gid_entry,
    _flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: the context is open.
    let context = unsafe { Context::of(context) };
    if size != size_of::<b::ibv_gid_entry>() {
        return libc::EINVAL;
    }
    match gid(context, index as usize) {
        Ok((raw, _)) if raw == [0; 16] => libc::ENODATA,
        Ok((raw, v1)) => {
            let gid_type = if v1 { b::IBV_GID_TYPE_ROCE_V1 } else { b::IBV_GID_TYPE_ROCE_V2 };
            let gid = b::ibv_gid { raw };
            let entry = b::ibv_gid_entry { gid, gid_index: index, port_num: 1, gid_type, ..Default::default() };
            // SAFETY: the caller's structure has this size and is valid for a write.
            unsafe { *into = entry };
            0
        }
        Err(errno) => errno,
    }
}

unsafe extern "C" fn alloc_pd(context: *mut b::ibv_context) -> *mut b::ibv_pd {
    // SAFETY: the context is open.
    let Context { shared, index, .. } = unsafe { Context::of(context) };
    let mut state = shared.lock();
    let handle = state.number();
    state.domains.insert(handle, *index);
    Box::into_raw(Box::new(b::ibv_pd { context, handle }))
}

unsafe extern "C" fn dealloc_pd(domain: *mut b::ibv_pd) -> c_int {
    // SAFETY: the domain is alive.
    let b::ibv_pd { context, handle } = unsafe { ptr::read(domain) };
    // SAFETY: a domain's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(context) };
    let mut state = shared.lock();
    let used = state.regions.values().any(|region| region.domain == handle)
        || state.queue_pairs.values().any(|pair| pair.domain == handle);
    if used {
        return libc::EBUSY;
    }
    state.domains.remove(&handle);
    // SAFETY: made by `alloc_pd`, and not used afterwards.
    drop(unsafe { Box::from_raw(domain) });
    0
}

unsafe extern "C" fn reg_mr(domain: *mut b::ibv_pd, address: *mut c_void, length: usize, _: c_int) -> *mut b::ibv_mr {
    // SAFETY: the domain is alive.
    let b::ibv_pd { context, handle } = unsafe { ptr::read(domain) };
    // SAFETY: a domain's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(context) };
    match shared.lock().add_region(handle, address.expose_provenance() as u64, length as u64) {
        Ok(key) => {
            let region = b::ibv_mr { context, pd: domain, addr: address, length, handle: key, lkey: key, rkey: key };
            Box::into_raw(Box::new(region))
        }
        Err(errno) => none(errno),
    }
}

unsafe extern "C" fn dereg_mr(region: *mut b::ibv_mr) -> c_int {
    // SAFETY: made by `reg_mr`, and not used afterwards.
    let region = unsafe { Box::from_raw(region) };
    // SAFETY: a region's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(region.context) };
    shared.lock().regions.remove(&region.handle);
    0
}

unsafe extern "C" fn create_comp_channel(context: *mut b::ibv_context) -> *mut b::ibv_comp_channel {
    // SAFETY: the context is open.
    let Context { shared, index, .. } = unsafe { Context::of(context) };
    match shared.lock().add_channel(*index) {
        // The last field, which the library counts uses in, keeps the channel's number.
        Ok((number, fd)) => Box::into_raw(Box::new(b::ibv_comp_channel { context, fd, refcnt: number.cast_signed() })),
        Err(errno) => none(errno),
    }
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut b::ibv_comp_channel) -> c_int {
    // SAFETY: the channel is alive.
    let b::ibv_comp_channel { context, refcnt, .. } = unsafe { ptr::read(channel) };
    // SAFETY: a channel's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(context) };
    let (mut state, number) = (shared.lock(), refcnt.cast_unsigned());
    if state.queues.values().any(|queue| queue.channel == Some(number)) {
        return libc::EBUSY;
    }
    state.channels.remove(&number);
    // SAFETY: made by `create_comp_channel`, and not used afterwards.
    drop(unsafe { Box::from_raw(channel) });
    0
}

/// Gives no queue, only that one rang: a channel has one.
unsafe extern "C" fn get_cq_event(
    channel: *mut b::ibv_comp_channel,
    _queue: *mut *mut b::ibv_cq,
    _context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the channel is alive.
    let b::ibv_comp_channel { context, refcnt, .. } = unsafe { ptr::read(channel) };
    // SAFETY: a channel's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(context) };
    match shared.lock().take_event(refcnt.cast_unsigned()) {
        Ok(_) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

unsafe extern "C" fn ack_cq_events(queue: *mut b::ibv_cq, count: c_uint) {
    // SAFETY: the queue is alive.
    let b::ibv_cq { context, handle, .. } = unsafe { ptr::read(queue) };
    // SAFETY: a queue's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(context) };
    if let Some(queue) = shared.lock().queues.get_mut(&handle) {
        queue.unacknowledged = queue.unacknowledged.saturating_sub(count);
    }
}

unsafe extern "C" fn create_cq(
    context: *mut b::ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut b::ibv_comp_channel,
    _vector: c_int,
) -> *mut b::ibv_cq {
    // SAFETY: the context is open.
    let Context { shared, index, .. } = unsafe { Context::of(context) };
    let capacity = match usize::try_from(entries) {
        Ok(capacity) if capacity > 0 => capacity,
        _ => return none(libc::EINVAL),
    };
    let number = if channel.is_null() {
        None
    } else {
        // SAFETY: not null, so it is a channel that is alive.
        Some(unsafe { (*channel).refcnt }.cast_unsigned())
    };
    let mut state = shared.lock();
    let handle = state.number();
    state.queues.insert(handle, Queue { device: *index, capacity, channel: number, ..Queue::default() });
    Box::into_raw(Box::new(b::ibv_cq { context, channel, cq_context, handle, cqe: entries, ..Default::default() }))
}

/// Refuses where the library would wait: a queue pair uses it, or an event was not acknowledged.
unsafe extern "C" fn destroy_cq(queue: *mut b::ibv_cq) -> c_int {
    // SAFETY: the queue is alive.
    let b::ibv_cq { context, handle, .. } = unsafe { ptr::read(queue) };
    // SAFETY: a queue's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(context) };
    let mut state = shared.lock();
    let unacknowledged = state.queues.get(&handle).is_some_and(|queue| queue.unacknowledged > 0);
    if unacknowledged || state.queue_pairs.values().any(|pair| pair.queue == handle) {
        return libc::EBUSY;
    }
    state.queues.remove(&handle);
    // SAFETY: made by `create_cq`, and not used afterwards.
    drop(unsafe { Box::from_raw(queue) });
    0
}

unsafe extern "C" fn poll_cq(queue: *mut b::ibv_cq, most: c_int, into: *mut b::ibv_wc) -> c_int {
    // SAFETY: the queue is alive.
    let b::ibv_cq { context, handle, .. } = unsafe { ptr::read(queue) };
    // SAFETY: a queue's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(context) };
    let Some(taken) = shared.lock().poll(handle, usize::try_from(most).unwrap_or(0)) else { return -1 };
    let count = taken.len();
    for (i, entry) in taken.into_iter().enumerate() {
        // SAFETY: the caller's array has `most` entries, and no more than these were taken.
        let place = unsafe { into.add(i) };
        // SAFETY: an entry of the caller's array, which is valid for a write.
        unsafe { place.write(entry) };
    }
    count as c_int
}

unsafe extern "C" fn req_notify_cq(queue: *mut b::ibv_cq, _solicited: c_int) -> c_int {
    // SAFETY: the queue is alive.
    let b::ibv_cq { context, handle, .. } = unsafe { ptr::read(queue) };
    // SAFETY: a queue's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(context) };
    match shared.lock().queues.get_mut(&handle) {
        Some(queue) => {
            queue.armed = true;
            0
        }
        None => libc::EINVAL,
    }
}

unsafe extern "C" fn create_qp(domain: *mut b::ibv_pd, attributes: *mut b::ibv_qp_init_attr) -> *mut b::ibv_qp {
    // SAFETY: the domain is alive.
    let b::ibv_pd { context, handle } = unsafe { ptr::read(domain) };
    // SAFETY: a domain's context is open as long as it is.
    let Context { shared, index, .. } = unsafe { Context::of(context) };
    // SAFETY: the caller's structure is initialised.
    let attributes = unsafe { ptr::read(attributes) };
    // SAFETY: the queue of the attributes is alive.
    let queue = unsafe { (*attributes.send_cq).handle };
    let pair = QueuePair {
        device: *index,
        domain: handle,
        queue,
        kind: attributes.qp_type,
        state: b::IBV_QPS_RESET,
        most: (attributes.cap.max_send_wr as usize, attributes.cap.max_recv_wr as usize),
        to: None,
        receives: VecDeque::new(),
        waiting: VecDeque::new(),
        unpolled: 0,
    };
    match shared.lock().add_queue_pair(pair) {
        Ok(qp_num) => Box::into_raw(Box::new(b::ibv_qp {
            context,
            pd: domain,
            send_cq: attributes.send_cq,
            recv_cq: attributes.recv_cq,
            qp_num,
            qp_type: attributes.qp_type,
            ..Default::default()
        })),
        Err(errno) => none(errno),
    }
}

unsafe extern "C" fn modify_qp(pair: *mut b::ibv_qp, attributes: *mut b::ibv_qp_attr, _mask: c_int) -> c_int {
    // SAFETY: the queue pair is alive, was made by `create_qp`, and is used by one thread at a time: its owner's.
    let pair = unsafe { &mut *pair };
    // SAFETY: the caller's structure is initialised.
    let attributes = unsafe { ptr::read(attributes) };
    // SAFETY: a queue pair's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(pair.context) };
    let mut state = shared.lock();
    if attributes.qp_state == b::IBV_QPS_RTR {
        // SAFETY: every bit pattern of the union is a valid array of bytes, and the caller's structure is initialised.
        let gid = unsafe { attributes.ah_attr.grh.dgid.raw };
        // As from a device that asks the network for the peer's address.
        if state.device_of(gid).is_none() {
            return libc::ETIMEDOUT;
        }
        if let Some(own) = state.queue_pairs.get_mut(&pair.qp_num) {
            own.to = Some((gid, attributes.dest_qp_num));
        }
    }
    let done = state.modify(pair.qp_num, attributes.qp_state);
    if done.is_ok() {
        pair.state = attributes.qp_state;
    }
    code(done)
}

unsafe extern "C" fn destroy_qp(pair: *mut b::ibv_qp) -> c_int {
    // SAFETY: the queue pair is alive.
    let b::ibv_qp { context, qp_num, .. } = unsafe { ptr::read(pair) };
    // SAFETY: a queue pair's context is open as long as it is.
    let Context { shared, index, .. } = unsafe { Context::of(context) };
    let mut state = shared.lock();
    if state.devices[*index].faults.destroy_fails {
        return libc::EIO;
    }
    state.queue_pairs.remove(&qp_num);
    // SAFETY: made by `create_qp`, and not used afterwards.
    drop(unsafe { Box::from_raw(pair) });
    0
}

/// What a work request with one element says.
///
/// # Safety
/// `list` is valid for a read.
unsafe fn request(id: u64, list: *mut b::ibv_sge) -> Request {
    // SAFETY: the caller vouches for it.
    let b::ibv_sge { addr, length, lkey } = unsafe { ptr::read(list) };
    Request { id, element: Element { address: addr, length, key: lkey } }
}

unsafe extern "C" fn post_send(
    pair: *mut b::ibv_qp,
    work: *mut b::ibv_send_wr,
    _bad: *mut *mut b::ibv_send_wr,
) -> c_int {
    // SAFETY: the queue pair is alive.
    let b::ibv_qp { context, qp_num, .. } = unsafe { ptr::read(pair) };
    // SAFETY: a queue pair's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(context) };
    // SAFETY: the caller's request is initialised.
    let work = unsafe { ptr::read(work) };
    if work.num_sge != 1 || !work.next.is_null() || work.opcode != b::IBV_WR_SEND {
        return libc::EINVAL;
    }
    // SAFETY: the request has one element.
    let request = unsafe { request(work.wr_id, work.sg_list) };
    code(shared.lock().post_send(qp_num, request))
}

unsafe extern "C" fn post_recv(
    pair: *mut b::ibv_qp,
    work: *mut b::ibv_recv_wr,
    _bad: *mut *mut b::ibv_recv_wr,
) -> c_int {
    // SAFETY: the queue pair is alive.
    let b::ibv_qp { context, qp_num, .. } = unsafe { ptr::read(pair) };
    // SAFETY: a queue pair's context is open as long as it is.
    let Context { shared, .. } = unsafe { Context::of(context) };
    // SAFETY: the caller's request is initialised.
    let work = unsafe { ptr::read(work) };
    if work.num_sge != 1 || !work.next.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: the request has one element.
    let request = unsafe { request(work.wr_id, work.sg_list) };
    code(shared.lock().post_receive(qp_num, request))
}
