//! What runs as the process exits.

/// Has `hook` called when the process exits by exit(3), as when `main` returns, while its other threads still run. Returns
/// whether it will be.
pub(crate) fn at_exit(hook: extern "C" fn()) -> bool {
    // SAFETY: atexit(3) may be called by any thread at any time, and keeps only the address of a function that is safe to
    // call and, being compiled with this one, there as long as it is.
    unsafe { libc::atexit(hook) == 0 }
}
