//! The structures that C sees, and the way from them to the state.

use std::ffi::c_char;
use std::sync::Arc;

use super::Shared;
use crate::sys::bindings as b;

/// A device of a list. The library's structure comes first, so that a pointer to one is a pointer to the other.
#[repr(C)]
pub(super) struct Device {
    pub(super) ibv: b::ibv_device,
    pub(super) shared: Arc<Shared>,
    pub(super) index: usize,
}

/// An open device. See [`Device`] for the order.
#[repr(C)]
pub(super) struct Context {
    pub(super) ibv: b::ibv_context,
    pub(super) shared: Arc<Shared>,
    pub(super) index: usize,
}

impl Device {
    /// A device of a list, by pointer, until [`Device::free`].
    pub(super) fn make(shared: &Arc<Shared>, index: usize) -> *mut b::ibv_device {
        let mut ibv = b::ibv_device::default();
        let name = shared.lock().devices[index].device.name.clone();
        // The last byte stays zero.
        let places = ibv.name.len() - 1;
        for (to, from) in ibv.name[..places].iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        Box::into_raw(Box::new(Self { ibv, shared: Arc::clone(shared), index })).cast()
    }

    /// # Safety
    /// `device` came from [`Device::make`], was not freed, and is not used afterwards.
    pub(super) unsafe fn free(device: *mut b::ibv_device) {
        // SAFETY: `make` leaked a box of this type, of which the library's structure is the first field.
        drop(unsafe { Box::from_raw(device.cast::<Self>()) });
    }

    /// # Safety
    /// `device` came from [`Device::make`] and is not freed while the result is used.
    pub(super) unsafe fn of<'a>(device: *mut b::ibv_device) -> &'a Self {
        // SAFETY: `make` leaked a box of this type, of which the library's structure is the first field; the caller
        // sees to it that the box is there, and nobody writes it after it was made.
        unsafe { &*device.cast::<Self>() }
    }
}

impl Context {
    pub(super) fn make(device: &Device, ops: b::ibv_context_ops) -> *mut b::ibv_context {
        device.shared.lock().contexts += 1;
        let ibv = b::ibv_context { ops, ..Default::default() };
        Box::into_raw(Box::new(Self { ibv, shared: Arc::clone(&device.shared), index: device.index })).cast()
    }

    /// # Safety
    /// `context` came from [`Context::make`], was not freed, and is not used afterwards.
    pub(super) unsafe fn free(context: *mut b::ibv_context) {
        // SAFETY: `make` leaked a box of this type, of which the library's structure is the first field.
        let this = unsafe { Box::from_raw(context.cast::<Self>()) };
        this.shared.lock().contexts -= 1;
    }

    /// # Safety
    /// `context` came from [`Context::make`] and is not freed while the result is used.
    pub(super) unsafe fn of<'a>(context: *mut b::ibv_context) -> &'a Self {
        // SAFETY: `make` leaked a box of this type, of which the library's structure is the first field; the caller
        // sees to it that the box is there, and nobody writes it after it was made.
        unsafe { &*context.cast::<Self>() }
    }
}
