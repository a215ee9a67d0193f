//! Which of a port's addresses to use.

use std::fmt;
use std::net::Ipv6Addr;

/// What carries a GID's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GidKind {
    /// InfiniBand, RoCE version 2 (UDP), or a library that does not say.
    Routable,
    /// RoCE version 1: Ethernet frames of its own.
    RoceV1,
}

/// A global identifier: a port's address, in the form of an IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An entry of a port's table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// As a queue pair's address has it.
    pub(crate) index: u8,
    pub(crate) gid: Gid,
    pub(crate) kind: GidKind,
}

/// How good a GID is, smaller being better; `None` for one that is no address.
fn class(gid: Gid) -> Option<u8> {
    let address = Ipv6Addr::from(gid.0);
    match () {
        () if address.is_unspecified() => None,
        () if address.to_ipv4_mapped().is_some() => Some(0),
        () if address.is_unicast_link_local() => Some(2),
        () => Some(1),
    }
}

/// The entry to announce and to send from: RoCE version 2 before 1; then IPv4-mapped before global IPv6 before link-local;
/// then the lower index. Entries of zeros are no addresses.
pub(crate) fn choose(entries: &[Entry]) -> Option<Entry> {
    let usable = entries.iter().filter_map(|entry| class(entry.gid).map(|class| (class, entry)));
    let best = usable.min_by_key(|(class, entry)| (entry.kind == GidKind::RoceV1, *class, entry.index));
    best.map(|(_, entry)| *entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK_LOCAL: &str = "fe80::1";
    const ZERO: &str = "::";
    const MAPPED: &str = "::ffff:10.0.0.1";
    const GLOBAL: &str = "2001:db8::1";

    fn chosen(table: &[(&str, GidKind)]) -> Option<u8> {
        let entry = |(index, (text, kind)): (usize, &(&str, GidKind))| {
            let gid = Gid(text.parse::<Ipv6Addr>().unwrap().octets());
            Entry { index: index as u8, gid, kind: *kind }
        };
        let entries: Vec<_> = table.iter().enumerate().map(entry).collect();
        choose(&entries).map(|entry| entry.index)
    }

    #[test]
    fn an_ipv4_mapped_gid_is_preferred_then_a_global_one_then_a_link_local_one_and_zeros_are_none() {
        use GidKind::{RoceV1, Routable};
        let routable = |table: &[&'static str]| {
            let table: Vec<_> = table.iter().map(|text| (*text, Routable)).collect();
            chosen(&table)
        };
        assert_eq!(routable(&[LINK_LOCAL, ZERO, MAPPED]), Some(2));
        assert_eq!(routable(&[LINK_LOCAL, GLOBAL]), Some(1));
        assert_eq!(routable(&[ZERO, LINK_LOCAL]), Some(1));
        assert_eq!(routable(&[MAPPED, MAPPED]), Some(0));
        assert_eq!(routable(&[ZERO, ZERO]), None);
        assert_eq!(routable(&[]), None);
        let versions = [(LINK_LOCAL, RoceV1), (LINK_LOCAL, Routable), (MAPPED, RoceV1), (MAPPED, Routable)];
        assert_eq!(chosen(&versions), Some(3));
        assert_eq!(chosen(&versions[..3]), Some(1));
        assert_eq!(chosen(&[(LINK_LOCAL, RoceV1), (MAPPED, RoceV1)]), Some(1));
    }
}
