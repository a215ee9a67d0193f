//! A ring over network namespaces: each rank on a host of its own, joined by a bridge, all of it inside this machine.
//!
//! What loopback cannot show: addresses of one's own, and IPv6 link-local ones with a scope. Nothing outside the
//! namespaces made here is changed, and they are removed at the end.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Result;
use crate::ring_test::{self, Placement};

/// How many hosts.
const HOSTS: usize = 3;
/// The port that every host listens on.
const PORT: u16 = 5000;

/// What this machine lacks to make namespaces, if anything.
pub(crate) fn missing() -> Option<String> {
    let needs = || Some("Linux with IPv6, root and `ip` (Debian: iproute2), to make network namespaces".to_string());
    if !cfg!(target_os = "linux") || !Path::new("/proc/net/if_inet6").exists() {
        return needs();
    }
    let name = format!("nuvec-probe-{}", std::process::id());
    if ip(&["netns", "add", &name]).is_err() {
        return needs();
    }
    let _ = ip(&["netns", "del", &name]);
    None
}

/// Runs a quick `ring-test` with a rank per host, one connection over IPv4 and one over scoped IPv6.
pub(crate) fn ring_test(program: &Path, out: &mut (dyn Write + Send)) -> Result<bool> {
    let network = Network::new()?;
    let nodes = |port| (0..HOSTS).map(|host| vec![ipv4(host, port), ipv6(host, port)]).collect();
    let placement = Placement {
        nodes: nodes(PORT),
        second: nodes(PORT + 1),
        enter: network.hosts.iter().map(|host| ["ip", "netns", "exec", host].map(String::from).to_vec()).collect(),
    };
    ring_test::run(&ring_test::Options::quick(HOSTS, 2), program, Some(&placement), out)
}

fn ipv4(host: usize, port: u16) -> String {
    format!("10.77.0.{}:{port}", host + 1)
}

fn ipv6(host: usize, port: u16) -> String {
    format!("[fe80::{}%eth0]:{port}", host + 1)
}

/// Namespaces for the hosts and for the bridge between them. Dropping it removes them, and their devices with them.
struct Network {
    hosts: Vec<String>,
    bridge: String,
}

impl Network {
    fn new() -> Result<Self> {
        let name = |what: String| format!("nuvec-{}-{what}", std::process::id());
        let this =
            Self { hosts: (0..HOSTS).map(|i| name(i.to_string())).collect(), bridge: name("bridge".to_string()) };
        let bridge = this.bridge.as_str();
        ip(&["netns", "add", bridge])?;
        ip(&["-n", bridge, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", bridge, "link", "set", "br0", "up"])?;
        for (i, host) in this.hosts.iter().enumerate() {
            let port = format!("port{i}");
            ip(&["netns", "add", host])?;
            ip(&["-n", bridge, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", host])?;
            ip(&["-n", bridge, "link", "set", &port, "master", "br0", "up"])?;
            // An address of our choice in place of the automatic one, usable at once (nodad).
            ip(&["-n", host, "link", "set", "eth0", "addrgenmode", "none"])?;
            ip(&["-n", host, "link", "set", "lo", "up"])?;
            ip(&["-n", host, "link", "set", "eth0", "up"])?;
            ip(&["-n", host, "address", "add", &format!("10.77.0.{}/24", i + 1), "dev", "eth0"])?;
            ip(&["-n", host, "address", "add", &format!("fe80::{}/64", i + 1), "dev", "eth0", "nodad"])?;
        }
        Ok(this)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.hosts.iter().chain([&self.bridge]) {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// Runs `ip`; an error carries what it said.
fn ip(arguments: &[&str]) -> Result<()> {
    let output =
        Command::new("ip").args(arguments).stdin(Stdio::null()).output().map_err(|e| format!("cannot run ip: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
