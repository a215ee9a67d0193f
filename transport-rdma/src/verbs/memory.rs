//! Memory that a device reads and writes.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use nuvec_transport::{Error, Kind, Result};
use rustix::io::Errno;

use super::Device;
use crate::sys::{bindings as b, check};

/// What a device's objects belong to: a queue pair reaches the memory of its own domain only.
pub(crate) struct ProtectionDomain {
    raw: NonNull<b::ibv_pd>,
    device: Arc<Device>,
}

// SAFETY: a domain is bound to no thread: any may use it, or free it (see `Device`). The other field is `Send`.
unsafe impl Send for ProtectionDomain {}
// SAFETY: `&ProtectionDomain` leads only to verbs that make objects of it, which lock what they share (see `Device`);
// nothing here reads or writes its fields. The other field is `Sync`.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A new domain of this device. Errors: the device refuses.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        // SAFETY: the context is open as long as `device` is.
        let raw = unsafe { (device.verbs().alloc_pd)(device.raw().as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            let e = io::Error::last_os_error();
            let what = format!("{} gives no protection domain", device.name());
            return Err(Error::from_io("ibv_alloc_pd", what, &e));
        };
        Ok(Arc::new(Self { raw, device: Arc::clone(device) }))
    }

    pub(super) fn raw(&self) -> NonNull<b::ibv_pd> {
        self.raw
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: the domain came from ibv_alloc_pd and is freed once, here; its queue pairs and regions hold an `Arc` of
        // this value, so none is left.
        let code = unsafe { (self.device.verbs().dealloc_pd)(self.raw.as_ptr()) };
        if let Err(e) = check(code) {
            tracing::warn!("ibv_dealloc_pd({}): {e}", self.device.name());
        }
    }
}

/// One page-aligned region of memory, registered once, cut into slots.
///
/// It lives as long as any of its [`Slot`]s, so a slot that is leaked, because its queue pair would not go away, keeps
/// the memory from being freed under the device.
pub(crate) struct Slab {
    region: NonNull<b::ibv_mr>,
    memory: NonNull<u8>,
    layout: Layout,
    stride: usize,
    size: usize,
    domain: Arc<ProtectionDomain>,
    /// The process that registered it: a forked child may have no such memory, and the region is not its to give back.
    process: u32,
}

// SAFETY: the memory is the allocator's and the region the library's; both may be given back from any thread (see
// `Device`). The other fields are `Send`.
unsafe impl Send for Slab {}
// SAFETY: `&Slab` leads to reads of the region's key, which nobody writes after it was registered, and to the memory
// only through slots: each part through one `Slot` alone, which borrows as a `Vec` would. The other fields are `Sync`.
unsafe impl Sync for Slab {}

impl Slab {
    /// Registers memory for `slots` slots of `size` bytes each, zeroed, and returns the slots in order. Errors:
    /// [`Kind::Exhausted`]: the limit on locked memory, or the device's on regions; the device refuses otherwise.
    pub(crate) fn register(domain: &Arc<ProtectionDomain>, slots: usize, size: usize) -> Result<Vec<Slot>> {
        const CACHE_LINE: usize = 128;
        let device = &domain.device;
        let page = rustix::param::page_size();
        let stride = size.next_multiple_of(CACHE_LINE);
        let misuse = || Error::new(Kind::Misuse, format!("{slots} slots of {size} bytes are no region of memory"));
        let bytes = slots.checked_mul(stride).filter(|bytes| *bytes > 0).ok_or_else(misuse)?;
        // Work requests have 32 bits for a slot's number.
        u32::try_from(slots).map_err(|_| misuse())?;
        let layout = Layout::from_size_align(bytes, page).map_err(|_| misuse())?.pad_to_align();
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let memory = NonNull::new(memory).ok_or_else(|| {
            Error::new(Kind::Exhausted, format!("there is no memory for {slots} slots of {size} bytes"))
        })?;
        // SAFETY: the domain is alive as long as `domain` is. The memory is allocated, of this length, and stays so until
        // after ibv_dereg_mr, because only `Slab::drop`, or the failure below, frees it.
        let region = unsafe {
            (device.verbs().reg_mr)(
                domain.raw.as_ptr(),
                memory.as_ptr().cast(),
                layout.size(),
                b::IBV_ACCESS_LOCAL_WRITE as i32,
            )
        };
        let Some(region) = NonNull::new(region) else {
            let e = io::Error::last_os_error();
            // SAFETY: allocated above with this layout; it was not registered, so the device does not know it.
            unsafe { dealloc(memory.as_ptr(), layout) };
            return Err(refused(device, layout.size(), &e));
        };
        let (domain, process) = (Arc::clone(domain), std::process::id());
        let slab = Arc::new(Self { region, memory, layout, stride, size, domain, process });
        Ok((0..slots).map(|index| Slot { index, slab: Arc::clone(&slab) }).collect())
    }

    /// The key by which the device finds the region.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the region lives until `self` is dropped, and nobody writes it after it was registered.
        unsafe { (*self.region.as_ptr()).lkey }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        let device = &self.domain.device;
        // SAFETY: the region came from ibv_reg_mr and is deregistered once, here. No slot of it is left, and posted slots
        // are kept until their queue pair is gone, so no work request refers to it.
        let code = unsafe { (device.verbs().dereg_mr)(self.region.as_ptr()) };
        match check(code) {
            // SAFETY: allocated in `register` with this layout, freed once, and the device does not know it any more.
            Ok(()) => unsafe { dealloc(self.memory.as_ptr(), self.layout) },
            Err(e) => {
                let (name, bytes) = (device.name(), self.layout.size());
                tracing::warn!("ibv_dereg_mr({name}): {e}; {bytes} bytes are left to the device");
            }
        }
    }
}

/// Why a region was not registered: ENOMEM means the limit on locked memory as a rule, or the device's on regions.
fn refused(device: &Device, need: usize, e: &io::Error) -> Error {
    let name = device.name();
    let what = format!("{name} does not register {need} bytes of memory");
    if e.raw_os_error() != Some(Errno::NOMEM.raw_os_error()) {
        return Error::from_io("ibv_reg_mr", what, e);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or("unlimited".to_string(), |bytes| format!("{bytes} bytes"));
    let regions =
        device.limits().map_or(String::new(), |limits| format!(", and the device's {} regions", limits.regions));
    let what = format!("{what}: the process's limit on locked memory is {limit}{regions}");
    Error::from_io("ibv_reg_mr", what, e)
        .with_advice("raise it with `ulimit -l unlimited`, or memlock in /etc/security/limits.conf")
}

/// A part of a [`Slab`], owned: by whoever holds it, or, between posting and completion, by the device.
pub(crate) struct Slot {
    index: usize,
    slab: Arc<Slab>,
}

impl Slot {
    /// Its number in its slab.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn slab(&self) -> &Slab {
        &self.slab
    }

    pub(super) fn is_of(&self, domain: &Arc<ProtectionDomain>) -> bool {
        Arc::ptr_eq(&self.slab.domain, domain)
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        // SAFETY: `register` numbers the slots from 0 and makes as many as the memory holds, so the offset lies within it.
        unsafe { self.slab.memory.add(self.index * self.slab.stride) }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `size` bytes from the slot's address lie within the slab's memory, which was zeroed and lives as long
        // as `self`. There is one `Slot` of each index, and while it is held it is not posted: no other code writes the
        // bytes while they are borrowed, nor does the device, for whose word it is taken that it is done with what it
        // completes.
        unsafe { std::slice::from_raw_parts(self.address().as_ptr(), self.slab.size) }
    }

    /// Its bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: these are initialised bytes of the slab's memory, which lives as long as `self` (see `bytes`).
        // `self`, the only slot of its index, is borrowed alone and not posted, so neither other code nor the device
        // reads or writes them meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.address().as_ptr(), self.slab.size) }
    }
}
