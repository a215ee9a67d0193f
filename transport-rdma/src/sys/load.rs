//! Opening the verbs library.

use std::ffi::c_int;
use std::sync::Arc;

use libloading::Library;
use nuvec_transport::{Error, Kind, Result};

use super::{DeviceSource, Events, Verbs, bindings as b, check};

/// The names that the library may have here, in the order in which they are tried.
const NAMES: &[&str] = if cfg!(target_os = "macos") {
    &["/usr/lib/librdma.dylib", "librdma.dylib"]
} else {
    &["libibverbs.so.1", "libibverbs.so"]
};

/// The lists of devices of an opened library, which it keeps open.
struct Opened {
    get_device_list: b::ibv_get_device_list,
    free_device_list: b::ibv_free_device_list,
    _library: Library,
}

impl DeviceSource for Opened {
    unsafe fn list(&self, count: *mut c_int) -> *mut *mut b::ibv_device {
        // SAFETY: the caller vouches for `count`, and the library is open as long as `self` is.
        unsafe { (self.get_device_list)(count) }
    }

    unsafe fn free(&self, list: *mut *mut b::ibv_device) {
        // SAFETY: the caller vouches for `list`, and the library is open as long as `self` is.
        unsafe { (self.free_device_list)(list) }
    }
}

impl Verbs {
    /// Opens the system's verbs library. Errors: [`Kind::Unsupported`], with every name that was tried and why it did not
    /// open; or with the function that it lacks.
    pub(crate) fn open() -> Result<Arc<Self>> {
        Self::open_one_of(NAMES)
    }

    fn open_one_of(names: &[&str]) -> Result<Arc<Self>> {
        let mut tried = Vec::new();
        for name in names {
            // SAFETY: opening runs the library's initialisers, and dropping its finalisers. These are names of
            // rdma-core's library (or Apple's, with the same interface), whose initialisers only set up its own state
            // and may run on any thread, as may its finalisers, once nobody has a function or an object of it.
            match unsafe { Library::new(name) } {
                Ok(library) => return Self::from_library(library, name).map(Arc::new),
                Err(e) => tried.push(format!("{name} ({e})")),
            }
        }
        let advice = if cfg!(target_os = "macos") {
            "RDMA over Thunderbolt needs macOS 26.2 or later"
        } else {
            "install rdma-core (Debian: libibverbs1 and ibverbs-providers)"
        };
        let what = format!("no verbs library can be opened; tried {}", tried.join(", "));
        Err(Error::new(Kind::Unsupported, what).with_advice(advice))
    }

    fn from_library(library: Library, name: &str) -> Result<Self> {
        /// Looks a function up by its C name, as the type of the same name in the bindings.
        macro_rules! function {
            ($symbol:ident) => {{
                // SAFETY: the type is generated from the declaration of the function of this name in rdma-core's header,
                // which libraries of this name keep stable; the pointer is kept no longer than the library.
                unsafe { library.get::<b::$symbol>(concat!(stringify!($symbol), "\0").as_bytes()) }.map(|symbol| *symbol)
            }};
        }
        let missing = |e: libloading::Error| {
            Error::new(Kind::Unsupported, format!("the verbs library {name} lacks a function: {e}"))
        };
        let events = match (
            function!(ibv_create_comp_channel),
            function!(ibv_destroy_comp_channel),
            function!(ibv_get_cq_event),
            function!(ibv_ack_cq_events),
        ) {
            (Ok(create_comp_channel), Ok(destroy_comp_channel), Ok(get_cq_event), Ok(ack_cq_events)) => {
                Some(Events { create_comp_channel, destroy_comp_channel, get_cq_event, ack_cq_events })
            }
            _ => None,
        };
        // Where the kernel does not copy registered memory on fork, a child of the process would otherwise leave the parent
        // with pages of which the device does not know.
        if let Ok(fork_init) = function!(ibv_fork_init) {
            // SAFETY: may be called at any time, and more than once; what was registered before stays as it was.
            let done = check(unsafe { fork_init() });
            tracing::debug!("ibv_fork_init: {done:?}");
        }
        Ok(Self {
            get_device_name: function!(ibv_get_device_name).map_err(missing)?,
            open_device: function!(ibv_open_device).map_err(missing)?,
            close_device: function!(ibv_close_device).map_err(missing)?,
            query_port: function!(ibv_query_port).map_err(missing)?,
            query_gid: function!(ibv_query_gid).map_err(missing)?,
            alloc_pd: function!(ibv_alloc_pd).map_err(missing)?,
            dealloc_pd: function!(ibv_dealloc_pd).map_err(missing)?,
            reg_mr: function!(ibv_reg_mr).map_err(missing)?,
            dereg_mr: function!(ibv_dereg_mr).map_err(missing)?,
            create_cq: function!(ibv_create_cq).map_err(missing)?,
            destroy_cq: function!(ibv_destroy_cq).map_err(missing)?,
            create_qp: function!(ibv_create_qp).map_err(missing)?,
            modify_qp: function!(ibv_modify_qp).map_err(missing)?,
            destroy_qp: function!(ibv_destroy_qp).map_err(missing)?,
            query_device: function!(ibv_query_device).ok(),
            query_gid_ex: function!(_ibv_query_gid_ex).ok(),
            events,
            devices: Box::new(Opened {
                get_device_list: function!(ibv_get_device_list).map_err(missing)?,
                free_device_list: function!(ibv_free_device_list).map_err(missing)?,
                _library: library,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_an_error_with_every_name_that_was_tried() {
        let e = Verbs::open_one_of(&["libnuvec-none.so.1", "libnuvec-none.so"]).unwrap_err();
        assert_eq!(e.kind(), Kind::Unsupported);
        let line = e.to_string();
        assert!(line.contains("libnuvec-none.so.1 (") && line.contains("libnuvec-none.so ("), "{line}");
        assert!(e.advice().is_some());
    }
}
