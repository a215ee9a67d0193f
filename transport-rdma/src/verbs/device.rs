//! Devices and their ports.

use std::ffi::{CStr, c_int};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use nuvec_transport::{Error, Kind, Result, system_text};

use super::gid::{Entry, Gid, GidKind, choose};
use crate::sys::{Verbs, bindings as b, check};

/// The most entries of a GID table that are looked at: as many as have an index of 8 bits, which is what an address takes.
const MOST_GIDS: i32 = 256;

/// How to give a port an address.
const NO_ADDRESS: &str =
    "give the network interface of that device an address, such as `ip addr add 10.0.0.1/24 dev INTERFACE`";

/// What usually keeps a device from being opened.
const OPEN_ADVICE: &str = "the user needs access to the device file (Linux: /dev/infiniband/uverbs*)";

/// The devices of this machine.
pub(crate) struct DeviceList {
    list: NonNull<*mut b::ibv_device>,
    count: usize,
    verbs: Arc<Verbs>,
}

impl DeviceList {
    /// Lists the devices. Errors: [`Kind::Device`] if there is none.
    pub(crate) fn new(verbs: &Arc<Verbs>) -> Result<Self> {
        let none = |why: String| {
            let advice = if cfg!(target_os = "macos") {
                "enable RDMA over Thunderbolt in macOS recovery: rdma_ctl enable"
            } else {
                "`ibv_devices` lists what the system knows; Soft-RoCE makes one of any network interface: \
                 `rdma link add rxe0 type rxe netdev INTERFACE`"
            };
            Error::new(Kind::Device, format!("there is no RDMA device{why}")).with_advice(advice)
        };
        let mut count: c_int = 0;
        // SAFETY: `list` wants a pointer that is valid for a write: `count` is a live local.
        let list = unsafe { verbs.devices.list(&raw mut count) };
        let why = || format!(" (ibv_get_device_list: {})", system_text(&io::Error::last_os_error()));
        let list = NonNull::new(list).ok_or_else(|| none(why()))?;
        // Dropped, and so freed, on every path from here on.
        let this = Self { list, count: usize::try_from(count).unwrap_or(0), verbs: Arc::clone(verbs) };
        if this.count == 0 { Err(none(String::new())) } else { Ok(this) }
    }

    fn devices(&self) -> impl Iterator<Item = *mut b::ibv_device> + '_ {
        (0..self.count).map(|i| {
            // SAFETY: the library said that the list has `count` entries, and it is freed only when `self` is dropped.
            let entry = unsafe { self.list.as_ptr().add(i) };
            // SAFETY: `i` is below `count`, so this is an initialised entry of the list, which nobody writes.
            unsafe { *entry }
        })
    }

    fn name(&self, device: *mut b::ibv_device) -> String {
        // SAFETY: the device is one of the list's, which is not freed yet.
        let name = unsafe { (self.verbs.get_device_name)(device) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: not null, so it is a string that ends, part of the device, which lives at least as long as the list;
        // it is copied at once.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// The devices' names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.devices().map(|device| self.name(device)).collect()
    }

    /// Opens the device of that name. Errors: [`Kind::Device`], listing the names that there are; or it cannot be opened.
    pub(crate) fn open(&self, name: &str) -> Result<Arc<Device>> {
        let Some(device) = self.devices().find(|device| self.name(*device) == name) else {
            let what = format!("there is no RDMA device {name:?}; there is {}", self.names().join(", "));
            return Err(Error::new(Kind::Device, what).with_advice("name one of these"));
        };
        // SAFETY: the device is one of the list's, which is not freed yet.
        let raw = unsafe { (self.verbs.open_device)(device) };
        let Some(raw) = NonNull::new(raw) else {
            let e = io::Error::last_os_error();
            let what = format!("the RDMA device {name} cannot be opened");
            return Err(Error::from_io("ibv_open_device", what, &e).with_advice(OPEN_ADVICE));
        };
        Ok(Arc::new(Device { raw, name: name.to_string(), verbs: Arc::clone(&self.verbs) }))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from this source and is freed once, here. Devices that were opened keep what they need
        // (ibv_get_device_list(3)); no other is used any more, since they are reached through `self` alone.
        unsafe { self.verbs.devices.free(self.list.as_ptr()) };
    }
}

/// An open device.
pub(crate) struct Device {
    raw: NonNull<b::ibv_context>,
    name: String,
    verbs: Arc<Verbs>,
}

// SAFETY: a context is bound to no thread: any may call verbs on it, or close it ("by default all verbs objects are
// safe for multi-threaded access", ibv_alloc_td(3), and no thread domain is made here). The other fields are `Send`.
unsafe impl Send for Device {}
// SAFETY: what `&Device` leads to is calls of verbs, which lock what they share (see above), and reads of the context's
// operations, which nobody writes after it was opened. The other fields are `Sync`.
unsafe impl Sync for Device {}

impl Device {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn raw(&self) -> NonNull<b::ibv_context> {
        self.raw
    }

    pub(super) fn verbs(&self) -> &Verbs {
        &self.verbs
    }

    /// What the device says that it has at most, where it says so.
    pub(crate) fn limits(&self) -> Option<Limits> {
        let query = self.verbs.query_device?;
        let mut attributes = b::ibv_device_attr::default();
        // SAFETY: the context is open as long as `self` is; the attributes are a live local of the type that is written.
        let code = unsafe { query(self.raw.as_ptr(), &raw mut attributes) };
        check(code).ok()?;
        let (queue_pairs, regions) = (attributes.max_qp, attributes.max_mr);
        Some(Limits { queue_pairs, regions, work: usize::try_from(attributes.max_qp_wr).unwrap_or(0) })
    }

    /// The device's first port, with the GID that `gid_index` names, or else the best one. Errors: [`Kind::Device`]: the
    /// port is not active, or has no usable GID.
    pub(crate) fn port(&self, gid_index: Option<u32>) -> Result<Port> {
        const NUMBER: u8 = 1;
        // rdma-core's function fills only an older, shorter structure (to `flags`): the rest stays zero. Another library's
        // may fill a newer, longer one, for which there is room.
        #[repr(C)]
        #[derive(Default)]
        struct Attributes {
            known: b::ibv_port_attr,
            room: [u64; 8],
        }
        let mut attributes = Attributes::default();
        // SAFETY: the context is open as long as `self` is. The function writes a structure that begins as the known one,
        // and grows by a number once in years: it ends within this live local.
        let code = unsafe { (self.verbs.query_port)(self.raw.as_ptr(), NUMBER, (&raw mut attributes).cast()) };
        let attributes = attributes.known;
        let name = &self.name;
        check(code).map_err(|e| Error::from_io("ibv_query_port", format!("the port of {name} cannot be read"), &e))?;
        if attributes.state != b::IBV_PORT_ACTIVE {
            let state = match attributes.state {
                b::IBV_PORT_DOWN => "down".to_string(),
                b::IBV_PORT_INIT => "initialising".to_string(),
                b::IBV_PORT_ARMED => "armed".to_string(),
                other => format!("in state {other}"),
            };
            let what = format!("the port of {name} is not active: it is {state}");
            return Err(Error::new(Kind::Device, what).with_advice("check the cable, and that its interface is up"));
        }
        let entries = self.gids(NUMBER, attributes.gid_tbl_len.min(MOST_GIDS));
        let infiniband = attributes.link_layer == b::IBV_LINK_LAYER_INFINIBAND as u8 && attributes.lid != 0;
        let gid = match gid_index {
            Some(index) => entries.iter().copied().find(|entry| u32::from(entry.index) == index).ok_or_else(|| {
                let known: Vec<_> = entries.iter().map(|entry| format!("{} ({})", entry.index, entry.gid)).collect();
                let what = format!("the GID table of {name} has no entry {index}; it has {}", known.join(", "));
                Error::new(Kind::Device, what).with_advice("choose another index, or none")
            })?,
            None => match choose(&entries) {
                Some(entry) => entry,
                // InfiniBand reaches a port of its subnet by its LID alone.
                None if infiniband => Entry { index: 0, gid: Gid([0; 16]), kind: GidKind::Routable },
                None => {
                    let what = format!("the GID table of {name} is empty");
                    return Err(Error::new(Kind::Device, what).with_advice(NO_ADDRESS));
                }
            },
        };
        Ok(Port {
            number: NUMBER,
            mtu: attributes.active_mtu,
            longest_message: attributes.max_msg_sz,
            lid: attributes.lid,
            global: !infiniband,
            gid_index: gid.index,
            gid: gid.gid,
        })
    }

    /// The GID table's entries that are no zeros.
    fn gids(&self, port: u8, length: i32) -> Vec<Entry> {
        let entries = (0..length).filter_map(|index| {
            let entry = match self.verbs.query_gid_ex {
                Some(query) => self.gid_with_kind(query, port, index),
                None => self.gid(port, index).map(|gid| (gid, GidKind::Routable)),
            };
            let (gid, kind) = entry.filter(|(gid, _)| gid.0 != [0; 16])?;
            Some(Entry { index: u8::try_from(index).ok()?, gid, kind })
        });
        entries.collect()
    }

    fn gid(&self, port: u8, index: c_int) -> Option<Gid> {
        let mut gid = b::ibv_gid::default();
        // SAFETY: the context is open as long as `self` is; the GID is a live local of the type that is written.
        let code = unsafe { (self.verbs.query_gid)(self.raw.as_ptr(), port, index, &raw mut gid) };
        // SAFETY: every bit pattern of the union is a valid array of bytes, and it was initialised with zeros.
        check(code).ok().map(|()| Gid(unsafe { gid.raw }))
    }

    fn gid_with_kind(&self, query: b::_ibv_query_gid_ex, port: u8, index: c_int) -> Option<(Gid, GidKind)> {
        let mut entry = b::ibv_gid_entry::default();
        let (size, index) = (size_of_val(&entry), u32::try_from(index).ok()?);
        // SAFETY: the context is open as long as `self` is; the entry is a live local of the type that is written, whose
        // size is given.
        let code = unsafe { query(self.raw.as_ptr(), u32::from(port), index, &raw mut entry, 0, size) };
        check(code).ok()?;
        let kind = if entry.gid_type == b::IBV_GID_TYPE_ROCE_V1 { GidKind::RoceV1 } else { GidKind::Routable };
        // SAFETY: every bit pattern of the union is a valid array of bytes, and it was initialised with zeros.
        Some((Gid(unsafe { entry.gid.raw }), kind))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the context came from ibv_open_device and is closed once, here. Whatever was made of it holds an `Arc` of
        // this value, so nobody uses any of it any more; what could not be destroyed may be left (ibv_close_device(3)).
        let code = unsafe { (self.verbs.close_device)(self.raw.as_ptr()) };
        if let Err(e) = check(code) {
            tracing::warn!("ibv_close_device({}): {e}", self.name);
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.name)
    }
}

/// What a device has at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) queue_pairs: i32,
    pub(crate) regions: i32,
    /// Work requests of each kind that a queue pair holds.
    pub(crate) work: usize,
}

/// A port, as it was when it was asked, and the GID that it is used with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Port {
    pub(crate) number: u8,
    /// The active MTU, as verbs count them: 1 is 256 bytes, each next one the double.
    pub(crate) mtu: u32,
    /// The longest message, in bytes.
    pub(crate) longest_message: u32,
    pub(crate) lid: u16,
    /// Whether packets carry GIDs (everything but an InfiniBand subnet).
    pub(crate) global: bool,
    pub(crate) gid_index: u8,
    pub(crate) gid: Gid,
}
