//! Choosing ports for ranks on this machine.
//!
//! Drawn at random below the system's ephemeral range, so that no outgoing connection takes one between choosing and
//! binding. Whoever can start again with others does so when one was taken; who cannot asks for ports that are free now.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::process::Command;

use crate::Result;

/// How many ports the range to draw from has.
const WIDTH: u16 = 12_768;
/// The first ephemeral port where the system does not say.
const USUAL_FIRST: u16 = 32_768;

/// `count` different ports below the ephemeral range, in no order.
pub(crate) fn draw(count: usize) -> Result<Vec<u16>> {
    draw_where(count, &mut |_| true)
}

/// As [`draw`], leaving out ports on which something listens now.
pub(crate) fn draw_free(count: usize) -> Result<Vec<u16>> {
    draw_where(count, &mut |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
}

fn draw_where(count: usize, good: &mut dyn FnMut(u16) -> bool) -> Result<Vec<u16>> {
    let range = below(first_ephemeral());
    let mut seen = BTreeSet::new();
    let mut ports = Vec::new();
    while ports.len() < count {
        if seen.len() == usize::from(range.end - range.start) {
            return Err(format!("no {count} free ports from {} to {}", range.start, range.end - 1));
        }
        let random = random_u64()?;
        let port = range.start + (random % u64::from(range.end - range.start)) as u16;
        if seen.insert(port) && good(port) {
            ports.push(port);
        }
    }
    Ok(ports)
}

/// The ports to draw from when the ephemeral ones begin at `first`. Where they begin so low that there is no room below,
/// the usual range serves: a collision is then possible, and met by starting again.
fn below(first: u16) -> Range<u16> {
    let end = if first < 2 * WIDTH { USUAL_FIRST } else { first.min(USUAL_FIRST) };
    end - WIDTH..end
}

/// Where the system's ephemeral ports begin: ip(7) `ip_local_port_range` on Linux, `net.inet.ip.portrange.first` on
/// macOS.
fn first_ephemeral() -> u16 {
    let said = if cfg!(target_os = "linux") {
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()
    } else {
        let sysctl = Command::new("sysctl").args(["-n", "net.inet.ip.portrange.first"]).output();
        sysctl.ok().map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    said.as_deref().and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(USUAL_FIRST)
}

/// A random number from the system.
pub(crate) fn random_u64() -> Result<u64> {
    getrandom::u64().map_err(|e| format!("the system gives no random bytes: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_different_and_below_the_ephemeral_range() {
        let ports = draw(200).unwrap();
        let range = below(first_ephemeral());
        assert!(ports.iter().all(|port| range.contains(port)), "{ports:?} outside {range:?}");
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 200);
    }

    #[test]
    fn the_range_has_room_wherever_the_ephemeral_one_begins() {
        assert_eq!(below(32_768), 20_000..32_768);
        assert_eq!(below(49_152), 20_000..32_768);
        assert_eq!(below(30_000), 17_232..30_000);
        assert_eq!(below(1024), 20_000..32_768);
        assert_eq!(below(0), 20_000..32_768);
    }

    #[test]
    fn a_port_on_which_something_listens_is_not_free() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let range = below(first_ephemeral());
        let mut asked = 0;
        // Only the taken port and one other pass the first test, so the second decides.
        let found = draw_where(1, &mut |candidate| {
            asked += 1;
            let candidate = if asked == 1 { port } else { candidate };
            TcpListener::bind((Ipv4Addr::LOCALHOST, candidate)).is_ok()
        });
        assert!(asked > 1 && range.contains(&found.unwrap()[0]));
        assert!(draw_where(1, &mut |_| false).unwrap_err().contains("no 1 free ports"));
    }
}
