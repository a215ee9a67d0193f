//! From an [`Address`] to socket addresses.
//!
//! Numeric and scoped addresses need no resolver. Names go to the system's resolver on a thread of their own, because
//! getaddrinfo(3) has no deadline: one that hangs costs its caller the deadline, and a thread until it gives up.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuvec_transport::Deadline;

use crate::Address;
use crate::socket::errno_text;

/// What a name resolved to, or why not.
pub(crate) type Resolved = Result<Vec<SocketAddr>, String>;

/// How long an answer serves before the name is asked for again (the machine may have got another address since).
const FRESH: Duration = Duration::from_secs(5);

/// How long a failure serves: a neighbour's name may appear with the neighbour.
const FAILED: Duration = Duration::from_millis(500);

/// The socket address of a numeric or scoped host; `None` for a name.
pub(crate) fn numeric(address: &Address) -> Option<Result<SocketAddr, String>> {
    let (host, port) = (address.host(), address.port());
    let Some((ip, scope)) = host.split_once('%') else {
        return host.parse::<IpAddr>().ok().map(|ip| Ok(SocketAddr::new(ip, port)));
    };
    let ip: Ipv6Addr = ip.parse().ok()?;
    if let Ok(index) = scope.parse() {
        return Some(Ok(SocketAddrV6::new(ip, port, 0, index).into()));
    }
    // The system's resolver translates the interface's name without asking anybody, as the address is numeric.
    let found = (host, port).to_socket_addrs().ok().and_then(|mut all| all.next());
    Some(found.ok_or_else(|| format!("{scope:?} is no interface of this machine, or {ip} no link-local address")))
}

/// Asks the system's resolver, on a thread of its own, and hands the answer to `done` there.
fn ask(host: &str, done: impl FnOnce(Resolved) + Send + 'static) -> Result<(), String> {
    let host = host.to_owned();
    let work = move || {
        let answer = match (host.as_str(), 0).to_socket_addrs() {
            Ok(all) => {
                let mut unique: Vec<SocketAddr> = Vec::new();
                for address in all {
                    if !unique.contains(&address) {
                        unique.push(address);
                    }
                }
                Ok(unique)
            }
            Err(e) => Err(errno_text(&e)),
        };
        done(answer.and_then(|all| if all.is_empty() { Err("the name has no address".into()) } else { Ok(all) }));
    };
    std::thread::Builder::new()
        .name("nuvec-resolve".into())
        .spawn(work)
        .map(drop)
        .map_err(|e| format!("no thread to resolve it on: {}", errno_text(&e)))
}

fn at_port(all: &[SocketAddr], port: u16) -> Vec<SocketAddr> {
    let mut all = all.to_vec();
    all.iter_mut().for_each(|address| address.set_port(port));
    all
}

/// Resolves `address`, waiting until `deadline` at the longest.
pub(crate) fn within(address: &Address, deadline: Deadline) -> Resolved {
    if let Some(numeric) = numeric(address) {
        return numeric.map(|one| vec![one]);
    }
    let (tx, rx) = crossbeam_channel::bounded(1);
    ask(address.host(), move |answer| {
        // The asker may have given up.
        let _ = tx.send(answer);
    })?;
    let answer = rx.recv_deadline(deadline.instant()).unwrap_or_else(|_| Err("the resolver did not answer".into()));
    answer.map(|all| at_port(&all, address.port()))
}

/// An answer of the resolver, on its way back.
#[derive(Debug)]
pub(crate) struct Resolution {
    host: String,
    result: Resolved,
}

/// What is known of a name.
#[derive(Debug, Default)]
struct Entry {
    asking: bool,
    known: Option<(Resolved, Instant)>,
}

/// Resolves names for a thread that must not block: ask again until the answer is there. One question at a time per name.
pub(crate) struct Resolver {
    entries: HashMap<String, Entry>,
    answer: Arc<dyn Fn(Resolution) + Send + Sync>,
}

impl Resolver {
    /// `answer` carries an answer to [`put`](Resolver::put), from any thread.
    pub(crate) fn new(answer: impl Fn(Resolution) + Send + Sync + 'static) -> Self {
        Self { entries: HashMap::new(), answer: Arc::new(answer) }
    }

    /// What `address` resolves to; `None` while the resolver is asked.
    pub(crate) fn get(&mut self, address: &Address, now: Instant) -> Option<Resolved> {
        if let Some(numeric) = numeric(address) {
            return Some(numeric.map(|one| vec![one]));
        }
        let entry = self.entries.entry(address.host().to_owned()).or_default();
        let stale = entry.known.as_ref().is_none_or(|(result, at)| {
            now.saturating_duration_since(*at) >= if result.is_ok() { FRESH } else { FAILED }
        });
        if stale && !entry.asking {
            let (answer, host) = (Arc::clone(&self.answer), address.host().to_owned());
            match ask(address.host(), move |result| answer(Resolution { host, result })) {
                Ok(()) => entry.asking = true,
                Err(text) => entry.known = Some((Err(text), now)),
            }
        }
        match &entry.known {
            // An old address serves until the new answer is there; an old failure does not.
            Some((Ok(all), _)) => Some(Ok(at_port(all, address.port()))),
            Some((Err(text), _)) if !entry.asking => Some(Err(text.clone())),
            _ => None,
        }
    }

    /// Takes an answer.
    pub(crate) fn put(&mut self, answer: Resolution, now: Instant) {
        let entry = self.entries.entry(answer.host).or_default();
        entry.asking = false;
        entry.known = Some((answer.result, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_and_scoped_addresses_need_no_resolver() {
        let of = |host: &str| numeric(&Address::new(host, 5000));
        assert_eq!(of("10.0.0.2").unwrap().unwrap(), "10.0.0.2:5000".parse().unwrap());
        assert_eq!(of("::1").unwrap().unwrap(), "[::1]:5000".parse().unwrap());
        assert_eq!(of("fe80::1%3").unwrap().unwrap(), "[fe80::1%3]:5000".parse().unwrap());
        assert!(of("fe80::1%no-such-interface").unwrap().unwrap_err().contains("no-such-interface"));
        assert!(of("localhost").is_none() && of("10.0.0").is_none() && of("a%b").is_none());
    }

    #[test]
    fn an_interface_name_becomes_its_index() {
        // Loopback is `lo` on Linux and `lo0` on macOS.
        let lo = if cfg!(target_vendor = "apple") { "lo0" } else { "lo" };
        match numeric(&Address::new(format!("fe80::1%{lo}"), 5000)).unwrap().unwrap() {
            SocketAddr::V6(v6) => assert_ne!(v6.scope_id(), 0),
            v4 => panic!("{v4}"),
        }
    }

    #[test]
    fn a_name_resolves_within_a_deadline() {
        let deadline = Deadline::after(Duration::from_secs(10));
        let all = within(&Address::new("localhost", 5000), deadline).unwrap();
        assert!(!all.is_empty() && all.iter().all(|a| a.ip().is_loopback() && a.port() == 5000), "{all:?}");
    }

    #[test]
    fn a_resolver_asks_once_and_answers_later() {
        let (tx, rx) = crossbeam_channel::unbounded();
        let mut resolver = Resolver::new(move |answer| tx.send(answer).unwrap());
        let (address, now) = (Address::new("localhost", 7), Instant::now());
        assert!(resolver.get(&address, now).is_none() && resolver.get(&address, now).is_none());
        resolver.put(rx.recv_timeout(Duration::from_secs(10)).unwrap(), now);
        assert!(resolver.get(&address, now).unwrap().unwrap().iter().all(|a| a.port() == 7));
        assert!(rx.try_recv().is_err());
        // A fresh answer serves; a stale one serves while it is asked for again.
        assert!(resolver.get(&address, now + FRESH).is_some());
        assert!(rx.recv_timeout(Duration::from_secs(10)).is_ok());
    }
}
