//! What runs inside the machine: the script that makes the network and the devices, then runs the parts one after the
//! other. Pure text; starting the machine is [`machine`](super::machine)'s business.
//!
//! Packets between two local addresses would take the loopback device, where Soft-RoCE does not listen. Rules of
//! routing send them out through a virtual Ethernet pair per device instead, so that `tc` and `ip link` act on them.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Part;

/// The first process: it is in the initial file system, the same for every run.
pub(super) const INIT: &str = include_str!("init.sh");
/// The helper by which a command inside loses packets or cuts a link.
const LINK: &str = include_str!("link.sh");
/// What a mark on the output begins with, before the run's nonce.
pub(super) const MARK: u8 = 0x1e;

/// The script of a run: `parts` on `devices` devices, in `folder`, with `environment`, each beginning and end marked
/// on the output by [`MARK`], `nonce`, a space and words, to the end of the line.
pub(super) fn script<'a>(
    nonce: &str,
    devices: usize,
    folder: &Path,
    environment: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>,
    parts: &[Part],
) -> Vec<u8> {
    let mut script = Vec::new();
    let mut line = |line: &[u8]| {
        script.extend_from_slice(line);
        script.push(b'\n');
    };
    line(b"# Descriptor 3 is the port to the host. It can be opened once only, so all that is printed goes through a pipe.");
    line(b"mkfifo /run/rdma-vm/output && { cat /run/rdma-vm/output >&3 & } && exec 4>/run/rdma-vm/output 3>&- || exit");
    line(format!("mark() {{ printf '\\036{nonce} %s\\n' \"$*\" >&4; }}").as_bytes());
    for (name, value) in environment {
        line(&[b"export ", name.as_bytes(), b"=", &quoted(value)[..]].concat());
    }
    line(b"export PATH=\"/run/rdma-vm:${PATH:-/usr/bin:/bin}:/usr/sbin:/sbin\"");
    line(SETTINGS.as_bytes());
    line(format!("cat >/run/rdma-vm/rdma-vm-link <<'END-OF-LINK'\n{LINK}END-OF-LINK").as_bytes());
    line(b"chmod +x /run/rdma-vm/rdma-vm-link");
    line(
        format!("ip -batch - <<'END' || {{ echo 'the network could not be made'; exit; }}\n{}END", network(devices))
            .as_bytes(),
    );
    for i in 0..devices {
        line(
            format!("rdma link add rxe{i} type rxe netdev r{i} || {{ echo 'rxe{i} could not be made'; exit; }}")
                .as_bytes(),
        );
    }
    line(
        &[b"cd ", &quoted(folder.as_os_str())[..], b" || { echo 'the current folder is not visible'; exit; }"].concat(),
    );
    line(b"mark ready");
    for (i, part) in parts.iter().enumerate() {
        line(format!("rdma-vm-link reset {}", part.loss).as_bytes());
        line(format!("mark begin {i}").as_bytes());
        // It ends the command's whole process group, if it still runs then.
        let mut command = format!("timeout -k 5 {}", part.limit.as_secs().max(1)).into_bytes();
        for word in &part.command {
            command.push(b' ');
            command.extend(quoted(OsStr::new(word)));
        }
        command.extend(b" </dev/null >&4 2>&1 4>&-");
        line(&command);
        line(format!("mark end {i} $?").as_bytes());
    }
    // The host ends the machine when it has read the last mark; the first process must not return before.
    line(b"sleep 600");
    script
}

/// What holds for every command inside.
const SETTINGS: &str = "\
ulimit -l unlimited
for place in all default; do
    echo 0 >/proc/sys/net/ipv4/conf/$place/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$place/accept_local
done";

/// The address of a device.
fn address(device: usize) -> String {
    format!("10.99.0.{}", device + 1)
}

/// The links, addresses, rules and neighbours of `devices` devices, for `ip -batch`.
fn network(devices: usize) -> String {
    let mut text = String::from("link set lo up\nlink add br0 type bridge\nlink set br0 up\n");
    let mac = |device: usize| format!("02:00:00:00:00:{:02x}", device + 1);
    for i in 0..devices {
        let (address, mac, table) = (address(i), mac(i), 100 + i);
        let _ = writeln!(text, "link add r{i} address {mac} type veth peer name p{i}");
        let _ = writeln!(text, "link set p{i} master br0 up\nlink set r{i} up\naddress add {address}/32 dev r{i}");
        // What comes in on r{i} is ours; what goes out to another device leaves by r{i}, and not by the loopback.
        let _ = writeln!(text, "rule add pref 10 iif r{i} lookup local");
        let _ = writeln!(text, "route add 10.99.0.0/24 dev r{i} src {address} table {table}");
    }
    for (i, j) in (0..devices).flat_map(|i| (0..devices).map(move |j| (i, j))).filter(|(i, j)| i != j) {
        let _ = writeln!(text, "rule add pref 20 from {} to {} lookup {}", address(i), address(j), 100 + i);
        let _ = writeln!(text, "neighbor replace {} lladdr {} dev r{i}", address(j), mac(j));
    }
    text += "rule add pref 30 lookup local\nrule del pref 0\n";
    text
}

/// A word as a shell reads it back, whatever is in it.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    fn part(command: &[&str]) -> Part {
        Part {
            name: "a".into(),
            command: command.iter().map(|w| w.to_string()).collect(),
            devices: 2,
            loss: 1.5,
            limit: Duration::from_secs(7),
            ..Part::default()
        }
    }

    #[test]
    fn a_quoted_word_is_one_word_to_the_shell_whatever_is_in_it() {
        for word in ["", "a b", "it's", "$HOME `id` \\ \" * \n ;", "''"] {
            let script = [b"printf %s ".as_slice(), &quoted(OsStr::new(word))].concat();
            let output = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script)).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }

    #[test]
    fn every_script_is_one_that_the_shell_can_parse() {
        let name = OsStr::new("NUVEC_X");
        let value = OsStr::from_bytes(b"\xff ' \n");
        let script = script("n", 3, Path::new("/a 'b'"), [(name, value)], &[part(&["echo", "'"])]);
        for script in [&script[..], INIT.as_bytes(), LINK.as_bytes()] {
            let mut shell = Command::new("sh").args(["-n"]).stdin(Stdio::piped()).spawn().unwrap();
            std::io::Write::write_all(&mut shell.stdin.take().unwrap(), script).unwrap();
            assert!(shell.wait().unwrap().success(), "{}", String::from_utf8_lossy(script));
        }
    }

    #[test]
    fn a_part_runs_under_its_own_limit_and_loss_between_its_marks() {
        let script = script("n", 2, Path::new("/"), [], &[part(&["x", "y z", "it's"]), part(&["w"])]);
        let script = String::from_utf8(script).unwrap();
        let expected = "rdma-vm-link reset 1.5\nmark begin 0\n\
            timeout -k 5 7 'x' 'y z' 'it'\\''s' </dev/null >&4 2>&1 4>&-\nmark end 0 $?\n\
            rdma-vm-link reset 1.5\nmark begin 1\n";
        let (head, _) = script.split_once(expected).unwrap_or_else(|| panic!("{script}"));
        assert!(head.ends_with("mark ready\n"));
    }

    #[test]
    fn every_ordered_pair_of_devices_has_a_rule_and_a_neighbour() {
        for devices in 1..=4 {
            let text = network(devices);
            let mut count = HashMap::new();
            for line in text.lines() {
                *count.entry(line.split(' ').take(2).collect::<Vec<_>>().join(" ")).or_insert(0) += 1;
            }
            let pairs = devices * (devices - 1);
            assert_eq!(count.get("neighbor replace").copied().unwrap_or(0), pairs);
            // A rule for what comes in per device, one per pair, and the local table's, which moves behind them.
            assert_eq!(count["rule add"], devices + pairs + 1);
            let last = text.lines().rev().take(2).collect::<Vec<_>>();
            assert_eq!(last, ["rule del pref 0", "rule add pref 30 lookup local"]);
        }
    }
}
