//! [`Address`]: a host and a port as the user wrote them. Nothing is resolved here.

use std::fmt;

/// Where a rank listens: a host (IPv4, IPv6, scoped IPv6 such as `fe80::1%en5`, or a name) and a port.
///
/// ```
/// use nuvec_transport_tcp::Address;
/// assert_eq!(Address::new("10.0.0.2", 5000).to_string(), "10.0.0.2:5000");
/// assert_eq!(Address::new("fe80::1%en5", 5000).to_string(), "[fe80::1%en5]:5000");
/// assert_eq!(Address::new("[::1]", 5000).host(), "::1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// The address of `host`, with or without the brackets of an IPv6 address, at `port`.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).map(str::to_owned);
        Self { host: bare.unwrap_or(host), port }
    }

    /// The host, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}
