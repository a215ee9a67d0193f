//! `host:port` as text: taken apart and checked, never resolved.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::str::FromStr;

use crate::error::Excerpt;

/// The longest host in bytes: a domain name's limit (RFC 1035, 2.3.4), which no numeric address reaches.
const MAX_HOST_BYTES: usize = 255;

/// One `host:port`, kept as it was written.
///
/// The host is an IPv4 address, a name, or an IPv6 address in brackets, there with the interface's name or number after
/// `%` where the address needs one (link-local). Whether a name exists is for whoever resolves it.
///
/// Two addresses are `==` if they are written alike.
///
/// ```
/// use nuvec_launch_env::Address;
///
/// let address: Address = "[fe80::1%en5]:5000".parse()?;
/// assert_eq!((address.host(), address.port()), ("fe80::1%en5", 5000));
/// assert_eq!(address.to_string(), "[fe80::1%en5]:5000");
/// assert!("fe80::1:5000".parse::<Address>().is_err());
/// # Ok::<(), nuvec_launch_env::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    text: String,
    host: Range<usize>,
    port: u16,
}

impl Address {
    /// The host without brackets, with its scope: `10.0.0.1`, `mac-2.local`, `fe80::1%en5`.
    pub fn host(&self) -> &str {
        &self.text[self.host.clone()]
    }

    /// The port, 1 to 65535.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What the address means as far as that shows without resolving names: IP addresses are compared as addresses
    /// (`[::1]:5` is `[0:0::1]:5`, and an IPv4-mapped IPv6 address is the IPv4 one), names without regard to ASCII case.
    pub(crate) fn endpoint(&self) -> Endpoint {
        let (host, scope) = split_scope(self.host());
        let host = match host.parse::<IpAddr>() {
            Ok(ip) => Host::Ip(ip.to_canonical(), scope.map(str::to_owned)),
            Err(_) => Host::Name(self.host().to_ascii_lowercase()),
        };
        Endpoint(host, self.port)
    }
}

/// See [`Address::endpoint`]; hashable, so that many addresses are compared in one pass.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint(Host, u16);

#[derive(Debug, PartialEq, Eq, Hash)]
enum Host {
    Ip(IpAddr, Option<String>),
    Name(String),
}

impl fmt::Display for Address {
    /// As it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).map_err(|fault| AddressError { value: Excerpt::new(text), fault })
    }
}

fn parse(text: &str) -> Result<Address, AddressFault> {
    if text.is_empty() {
        return Err(AddressFault::Empty);
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']').ok_or(AddressFault::NoClosingBracket)?;
            let port = rest[end + 1..].strip_prefix(':').ok_or(AddressFault::NoPort)?;
            (1..1 + end, port)
        }
        None => {
            let end = text.find(':').ok_or(AddressFault::NoPort)?;
            let port = &text[end + 1..];
            if port.contains(':') {
                return Err(AddressFault::ManyColons);
            }
            (0..end, port)
        }
    };
    let bracketed = host.start == 1;
    if host.is_empty() {
        return Err(AddressFault::NoHost);
    }
    if host.len() > MAX_HOST_BYTES {
        return Err(AddressFault::LongHost);
    }
    match bracketed {
        true => check_v6(&text[host.clone()])?,
        false => check_v4_or_name(&text[host.clone()])?,
    }
    let port = parse_port(port)?;
    Ok(Address { text: text.to_owned(), host, port })
}

/// The host without its scope, and the scope: the interface after `%`, by name or by number.
fn split_scope(host: &str) -> (&str, Option<&str>) {
    host.split_once('%').map_or((host, None), |(ip, scope)| (ip, Some(scope)))
}

fn check_v6(host: &str) -> Result<(), AddressFault> {
    let (ip, scope) = split_scope(host);
    ip.parse::<Ipv6Addr>().map_err(|_| AddressFault::BadIpv6)?;
    if let Some(scope) = scope {
        // What Linux allows in an interface's name (dev_valid_name), less the characters that mean something here.
        let allowed = |c: char| !c.is_whitespace() && !c.is_control() && !"/%[]:".contains(c);
        if scope.is_empty() || !scope.chars().all(allowed) {
            return Err(AddressFault::BadScope);
        }
    }
    Ok(())
}

fn check_v4_or_name(host: &str) -> Result<(), AddressFault> {
    if host.parse::<Ipv4Addr>().is_ok() {
        return Ok(());
    }
    // Resolvers read "10.1" as 10.0.0.1 and "010.0.0.1" as 8.0.0.1: nobody means that in a hostfile.
    if host.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(AddressFault::BadIpv4);
    }
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    match host.chars().find(|c| !allowed(*c)) {
        Some(character) => Err(AddressFault::BadName { character }),
        None => Ok(()),
    }
}

fn parse_port(port: &str) -> Result<u16, AddressFault> {
    if port.is_empty() {
        return Err(AddressFault::NoPort);
    }
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return Err(AddressFault::BadPort);
    }
    match port.parse::<u16>() {
        Ok(0) => Err(AddressFault::PortZero),
        Ok(port) => Ok(port),
        Err(_) => Err(AddressFault::PortTooLarge),
    }
}

/// Text that is no `host:port`, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.fault.describe(&self.value))]
pub struct AddressError {
    value: Excerpt,
    fault: AddressFault,
}

impl AddressError {
    /// What is wrong.
    pub fn fault(&self) -> AddressFault {
        self.fault
    }
}

/// What is wrong with the text of an [`Address`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressFault {
    /// There is no text.
    Empty,
    /// Nothing stands before the `:`, or between the brackets.
    NoHost,
    /// No `:` with a port behind it follows the host.
    NoPort,
    /// More than one `:` outside of brackets.
    ManyColons,
    /// A `[` without its `]`.
    NoClosingBracket,
    /// The port is no decimal number.
    BadPort,
    /// The port is 0, which means "any" and so cannot be dialled.
    PortZero,
    /// The port is above 65535.
    PortTooLarge,
    /// Digits and dots that are no IPv4 address.
    BadIpv4,
    /// What is in brackets is no IPv6 address.
    BadIpv6,
    /// The scope after `%` is empty or no interface's name.
    BadScope,
    /// A character that no host's name has.
    BadName {
        /// The first such character.
        character: char,
    },
    /// The host is longer than 255 bytes.
    LongHost,
}

impl AddressFault {
    fn describe(self, value: &Excerpt) -> String {
        const FORM: &str = "expected \"host:port\", or \"[IPv6]:port\"";
        match self {
            Self::Empty => format!("the address is empty: {FORM}"),
            Self::NoHost => format!("{value} has no host: {FORM}"),
            Self::NoPort => format!("{value} has no port: {FORM}"),
            Self::ManyColons => format!("{value} has more than one ':': {FORM} (IPv6 addresses need the brackets)"),
            Self::NoClosingBracket => format!("{value} has '[' without ']': {FORM}"),
            Self::BadPort => format!("the port of {value} is no number: expected a port from 1 to 65535"),
            Self::PortZero => format!("the port of {value} is 0: expected a port from 1 to 65535"),
            Self::PortTooLarge => format!("the port of {value} is above 65535: expected a port from 1 to 65535"),
            Self::BadIpv4 => {
                format!(
                    "the host of {value} is no IPv4 address: expected four numbers from 0 to 255, as in 10.0.0.1:5000"
                )
            }
            Self::BadIpv6 => {
                format!(
                    "the host of {value} is no IPv6 address: expected one in the brackets, as in [fe80::1%en5]:5000"
                )
            }
            Self::BadScope => {
                format!("the scope of {value} is no interface: expected one after '%', as in [fe80::1%en5]:5000")
            }
            Self::BadName { character } => {
                format!("the host of {value} contains {character:?}: expected letters, digits, '-', '_' and '.'")
            }
            Self::LongHost => format!("the host of {value} is too long: expected at most {MAX_HOST_BYTES} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<(&str, u16), AddressFault>) {
        match (text.parse::<Address>(), expected) {
            (Ok(address), Ok(expected)) => {
                assert_eq!((address.host(), address.port()), expected, "{text:?}");
                assert_eq!(address.to_string(), text, "an address prints as it was written");
            }
            (Err(error), Err(expected)) => assert_eq!(error.fault(), expected, "{text:?}"),
            (got, expected) => panic!("{text:?}: got {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn every_form_of_host_is_taken_apart() {
        check("10.0.0.1:5000", Ok(("10.0.0.1", 5000)));
        check("0.0.0.0:1", Ok(("0.0.0.0", 1)));
        check("localhost:65535", Ok(("localhost", 65535)));
        check("Mac_2.local.:05000", Ok(("Mac_2.local.", 5000)));
        check("münchen.example:5000", Ok(("münchen.example", 5000)));
        check("1st:5000", Ok(("1st", 5000)));
        check("[::1]:5000", Ok(("::1", 5000)));
        check("[::ffff:10.0.0.1]:5000", Ok(("::ffff:10.0.0.1", 5000)));
        check("[fe80::1%eth0]:5000", Ok(("fe80::1%eth0", 5000)));
        check("[fe80::1%en5.20@x]:5000", Ok(("fe80::1%en5.20@x", 5000)));
        check("[FE80::1%12]:5000", Ok(("FE80::1%12", 5000)));
    }

    #[test]
    fn what_is_no_address_says_why() {
        check("", Err(AddressFault::Empty));
        check(":5000", Err(AddressFault::NoHost));
        check("[]:5000", Err(AddressFault::NoHost));
        check("a", Err(AddressFault::NoPort));
        check("a:", Err(AddressFault::NoPort));
        check("[::1]", Err(AddressFault::NoPort));
        check("[::1]5000", Err(AddressFault::NoPort));
        check("[::1]:", Err(AddressFault::NoPort));
        check("a:b:c", Err(AddressFault::ManyColons));
        check("fe80::1:5000", Err(AddressFault::ManyColons));
        check("::", Err(AddressFault::ManyColons));
        check("[::1:5000", Err(AddressFault::NoClosingBracket));
        check("a:b", Err(AddressFault::BadPort));
        check("a:-1", Err(AddressFault::BadPort));
        check("a:+1", Err(AddressFault::BadPort));
        check("a:5000 ", Err(AddressFault::BadPort));
        check("a:٥", Err(AddressFault::BadPort));
        check("[::1]:1:2", Err(AddressFault::BadPort));
        check("a:0", Err(AddressFault::PortZero));
        check("a:000", Err(AddressFault::PortZero));
        check("a:65536", Err(AddressFault::PortTooLarge));
        check("a:70000", Err(AddressFault::PortTooLarge));
        check("a:99999999999999999999999", Err(AddressFault::PortTooLarge));
        check("10.0.0.256:5000", Err(AddressFault::BadIpv4));
        check("10.1:5000", Err(AddressFault::BadIpv4));
        check("010.0.0.1:5000", Err(AddressFault::BadIpv4));
        check("[10.0.0.1]:5000", Err(AddressFault::BadIpv6));
        check("[localhost]:5000", Err(AddressFault::BadIpv6));
        check("[[::1]:5000", Err(AddressFault::BadIpv6));
        check("[fe80::1%]:5000", Err(AddressFault::BadScope));
        check("[fe80::1%a b]:5000", Err(AddressFault::BadScope));
        check("[fe80::1%a%b]:5000", Err(AddressFault::BadScope));
        check(" a:5000", Err(AddressFault::BadName { character: ' ' }));
        check("fe80%en5:5000", Err(AddressFault::BadName { character: '%' }));
        check("http//a:5000", Err(AddressFault::BadName { character: '/' }));
        check("a\0b:5000", Err(AddressFault::BadName { character: '\0' }));
        check("a]:5000", Err(AddressFault::BadName { character: ']' }));
        check(&format!("{}:5000", "a".repeat(256)), Err(AddressFault::LongHost));
    }

    #[test]
    fn a_fault_is_shown_escaped_and_cut() {
        let shown = format!("{}\u{1b}[31m:0", "a".repeat(10)).parse::<Address>().unwrap_err().to_string();
        assert!(shown.contains("\\u{1b}") && !shown.contains('\u{1b}'), "{shown}");
        let shown = "a".repeat(100_000).parse::<Address>().unwrap_err().to_string();
        assert!(shown.len() < 200, "{shown}");
    }

    #[test]
    fn endpoints_are_compared_by_meaning() {
        let check = |a: &str, b: &str, expected: bool| {
            let (a, b): (Address, Address) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!(a.endpoint() == b.endpoint(), expected, "{a} and {b}");
        };
        check("[::1]:5", "[0:0::1]:5", true);
        check("[fe80::A%en5]:5", "[fe80::a%en5]:05", true);
        check("[::ffff:10.0.0.1]:5", "10.0.0.1:5", true);
        check("Mac.Local:5", "mac.local:5", true);
        check("mac.local:5", "mac.local:6", false);
        check("mac.local:5", "mac:5", false);
        check("[fe80::1%en5]:5", "[fe80::1%EN5]:5", false);
        check("[fe80::1%en5]:5", "[fe80::1%en6]:5", false);
        check("[fe80::1%en5]:5", "[fe80::1]:5", false);
        check("0.0.0.0:5", "127.0.0.1:5", false);
    }
}
