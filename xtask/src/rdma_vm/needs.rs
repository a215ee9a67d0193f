//! What this machine must have to run the virtual one: the programs and packages that the others here start or copy.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{image, target};

/// What this machine lacks to run the virtual one, if anything.
pub(crate) fn missing() -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("Linux on x86-64".into());
    }
    let packages = [
        ("qemu-system-x86", find("qemu-system-x86_64").is_some()),
        ("busybox-static", find("busybox").is_some_and(|busybox| is_static(&busybox))),
        ("kmod", find("modprobe").is_some() && find("depmod").is_some()),
        ("iproute2", ["ip", "tc", "rdma"].iter().all(|program| find(program).is_some())),
        ("ibverbs-utils", find("ibv_devices").is_some()),
        ("perftest", find("ib_send_lat").is_some()),
        ("ibverbs-providers", Path::new("/etc/libibverbs.d/rxe.driver").exists()),
        ("util-linux", find("setpriv").is_some()),
    ];
    let lacking: Vec<_> = packages.iter().filter(|(_, there)| !there).map(|(package, _)| *package).collect();
    if !lacking.is_empty() {
        let lacking = lacking.join(" ");
        return Some(format!("more packages (Debian: apt-get install -y --no-install-recommends {lacking})"));
    }
    let kept = target().is_ok_and(|target| image::kept(&target).is_some());
    let known = || {
        let mut show = Command::new("apt-cache");
        let show = show.args(["show", "--quiet", image::META_PACKAGE]).stdin(Stdio::null()).output();
        show.is_ok_and(|output| output.status.success())
    };
    (!kept && !known())
        .then(|| format!("Debian's package {}, to take a kernel from (try: apt-get update)", image::META_PACKAGE))
}

/// Whether a program needs no shared library.
fn is_static(program: &Path) -> bool {
    let ldd = Command::new("ldd").arg(program).stdin(Stdio::null()).output();
    ldd.is_ok_and(|output| !output.status.success())
}

/// The folders that programs are looked for in: an ordinary user's path may lack the administrator's.
pub(super) fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    path.push(":/usr/sbin:/sbin");
    path
}

/// Where a program lies.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&path()).map(|folder| folder.join(program)).find(|file| file.is_file())
}
