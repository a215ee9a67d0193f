//! The verbs library's C interface: types, constants, and the table of its functions.
//!
//! [`bindings`] is generated from rdma-core's header (`cargo xtask codegen`) and declares no symbol: the library is opened
//! at run time into a [`Verbs`], so that programs start where there is none. Everything here is as unsafe as C; the safe
//! wrappers are `crate::verbs`'s. Beside it there is atexit(3). What may not live here: any decision.
#![expect(unsafe_code, reason = "this is the C interface of the verbs library")]

#[expect(
    unreachable_pub,
    non_camel_case_types,
    dead_code,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "generated, with C's names and without documentation"
)]
#[rustfmt::skip]
pub(crate) mod bindings;
mod exit;
mod load;

use std::ffi::c_int;
use std::{fmt, io};

use bindings as b;
pub(crate) use exit::at_exit;

/// The functions of a verbs library, or of the fake that stands in for one.
///
/// The verbs that rdma-core defines inline (posting and polling) are not here: they go through the operation table of the
/// context, where a provider puts them, and a fake too.
pub(crate) struct Verbs {
    pub(crate) get_device_name: b::ibv_get_device_name,
    pub(crate) open_device: b::ibv_open_device,
    pub(crate) close_device: b::ibv_close_device,
    pub(crate) query_port: b::ibv_query_port,
    pub(crate) query_gid: b::ibv_query_gid,
    pub(crate) alloc_pd: b::ibv_alloc_pd,
    pub(crate) dealloc_pd: b::ibv_dealloc_pd,
    pub(crate) reg_mr: b::ibv_reg_mr,
    pub(crate) dereg_mr: b::ibv_dereg_mr,
    pub(crate) create_cq: b::ibv_create_cq,
    pub(crate) destroy_cq: b::ibv_destroy_cq,
    pub(crate) create_qp: b::ibv_create_qp,
    pub(crate) modify_qp: b::ibv_modify_qp,
    pub(crate) destroy_qp: b::ibv_destroy_qp,
    /// What Apple's library may lack.
    pub(crate) query_device: Option<b::ibv_query_device>,
    pub(crate) query_gid_ex: Option<b::_ibv_query_gid_ex>,
    pub(crate) events: Option<Events>,
    /// Lists the devices. Last, because a library must outlive its functions.
    pub(crate) devices: Box<dyn DeviceSource>,
}

/// The functions of completion channels, which a library has all of or is used without.
#[derive(Clone, Copy)]
pub(crate) struct Events {
    pub(crate) create_comp_channel: b::ibv_create_comp_channel,
    pub(crate) destroy_comp_channel: b::ibv_destroy_comp_channel,
    pub(crate) get_cq_event: b::ibv_get_cq_event,
    pub(crate) ack_cq_events: b::ibv_ack_cq_events,
}

/// Where the list of devices comes from: the only verbs without a handle that leads to whoever implements them.
pub(crate) trait DeviceSource: Send + Sync {
    /// ibv_get_device_list(3).
    ///
    /// # Safety
    /// `count` is null or valid for a write.
    unsafe fn list(&self, count: *mut c_int) -> *mut *mut b::ibv_device;

    /// ibv_free_device_list(3).
    ///
    /// # Safety
    /// `list` came from [`list`](DeviceSource::list) of the same source and was not freed; no device of it that was not
    /// opened is used afterwards.
    unsafe fn free(&self, list: *mut *mut b::ibv_device);
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verbs")
    }
}

/// The result of a verb that returns 0 or an errno; some providers return −1 and leave the errno where C has it.
pub(crate) fn check(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        1.. => Err(io::Error::from_raw_os_error(code)),
        _ => Err(io::Error::last_os_error()),
    }
}
