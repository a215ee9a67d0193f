//! Whatever bytes are in the environment, the answer is a value that holds to its rules or one line; never a panic.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use nuvec_launch_env::{Address, Error, Jaccl, Ring, Topology, parse_nodes, read};
use proptest::collection::vec;
use proptest::prelude::*;

fn is_one_line(error: &Error) {
    let line = error.to_string();
    assert!(!line.contains(char::is_control) && line.len() < 1500, "{line:?}");
}

/// Bytes that are sometimes close to right: a mixture of the parts that files and variables are made of.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => prop::sample::select(vec![
            "[", "]", "{", "}", ",", ":", "\"", "null", "true", "1", "0", "-", "1e999", " ", "\n", "\\u0000",
            "\\", "[[", "]]",
            "\"a:1\"", "\"b:2\"", "\"[::1]:3\"", "\"[fe80::1%en5]:4\"", "\"a:0\"", "\"rdma_en2\"",
            "\"ssh\":1", "[\"a:1\"]", "native", "mlx", "inf", "NaN", "\u{feff}", "\u{202e}",
        ]).prop_map(|part| part.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..4),
    ];
    vec(part, 0..12).prop_map(|parts| parts.concat())
}

/// Without NUL, which no environment holds.
fn value() -> impl Strategy<Value = OsString> {
    bytes().prop_map(|bytes| OsString::from_vec(bytes.into_iter().filter(|b| *b != 0).collect()))
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z0-9_.-]{1,12}",
        any::<std::net::Ipv4Addr>().prop_map(|ip| ip.to_string()),
        any::<std::net::Ipv6Addr>().prop_map(|ip| format!("[{ip}]")),
        (any::<std::net::Ipv6Addr>(), "[a-z]{1,3}[0-9]").prop_map(|(ip, scope)| format!("[{ip}%{scope}]")),
    ]
}

/// Nodes that are mostly right.
fn nodes() -> impl Strategy<Value = (Vec<Vec<String>>, usize)> {
    let address = || (host(), 0_u32..70_000).prop_map(|(host, port)| format!("{host}:{port}"));
    (1_usize..4, 1_usize..9).prop_flat_map(move |(connections, size)| (vec(vec(address(), connections), size), 0..size))
}

fn holds_to_the_rules(ring: &Ring) {
    assert!(ring.rank < ring.size());
    assert!(ring.nodes.iter().all(|node| node.len() == ring.connections()));
    assert!(ring.nodes.iter().flatten().all(|address| address.port() > 0 && !address.host().is_empty()));
}

/// An accepted matrix is a mesh or a ring.
fn is_of_its_topology(jaccl: &Jaccl) {
    let size = jaccl.size();
    let count = |row: usize, column: usize| jaccl.devices[row][column].len();
    match jaccl.topology() {
        Topology::Mesh => {
            assert!((0..size).all(|row| (0..size).all(|column| (count(row, column) > 0) == (row != column))));
        }
        Topology::Ring => {
            let neighbours = |row: usize| [(row + 1) % size, (row + size - 1) % size];
            let connections = count(0, 1);
            assert!(connections > 0);
            assert!((0..size).all(|row| neighbours(row).iter().all(|column| count(row, *column) == connections)));
        }
    }
}

fn texts(ring: &Ring) -> Vec<Vec<String>> {
    ring.nodes.iter().map(|node| node.iter().map(ToString::to_string).collect()).collect()
}

/// Reads these files and variables, and checks whatever comes of it.
fn check(hostfile: &[u8], devices: &[u8], rank: OsString) {
    let folder = tempfile::tempdir().unwrap();
    let (hosts, matrix) = (folder.path().join("hosts"), folder.path().join("matrix"));
    fs::write(&hosts, hostfile).unwrap();
    fs::write(&matrix, devices).unwrap();
    match read(&BTreeMap::from([("MLX_HOSTFILE", hosts.into_os_string()), ("MLX_RANK", rank.clone())])) {
        Ok(launch) => {
            let ring = launch.ring.expect("its variables are set");
            holds_to_the_rules(&ring);
            if ring.connections() > 0 {
                assert_eq!(parse_nodes(&texts(&ring), ring.rank).unwrap(), ring, "an accepted ring round-trips");
            }
        }
        Err(error) => is_one_line(&error),
    }
    let vars = BTreeMap::from([
        ("MLX_IBV_DEVICES", matrix.into_os_string()),
        ("MLX_JACCL_COORDINATOR", "10.0.0.1:5000".into()),
        ("MLX_RANK", rank),
    ]);
    match read(&vars) {
        Ok(launch) => {
            let jaccl = launch.jaccl.expect("its variables are set");
            assert!(jaccl.rank < jaccl.size() && jaccl.devices.iter().all(|row| row.len() == jaccl.size()));
            is_of_its_topology(&jaccl);
        }
        Err(error) => is_one_line(&error),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_file_is_read_or_refused_in_one_line(hostfile in bytes(), devices in bytes(), rank in value()) {
        check(&hostfile, &devices, rank);
    }

    #[test]
    fn any_file_of_bytes_is_read_or_refused_in_one_line(file in vec(any::<u8>(), 0..200)) {
        check(&file, &file, "0".into());
    }

    #[test]
    fn any_variables_are_read_or_refused_in_one_line(values in vec(prop::option::of(value()), 14)) {
        let names = [
            "MLX_HOSTFILE", "MLX_RANK", "MLX_IBV_DEVICES", "JACCL_IBV_DEVICES", "MLX_JACCL_COORDINATOR",
            "JACCL_COORDINATOR", "JACCL_RANK", "JACCL_RING", "NUVEC_DISTRIBUTED_TIMEOUT", "NUVEC_DISTRIBUTED_KEY",
            "NUVEC_DISTRIBUTED_WIRE",
            "NUVEC_DISTRIBUTED_NAME", "NUVEC_DISTRIBUTED_SPIN_US", "MLX_RING_VERBOSE",
        ];
        let set = names.into_iter().zip(values).filter_map(|(name, value)| Some((name, value?)));
        let all: BTreeMap<_, _> = set.collect();
        let but = |left_out: &[&str]| {
            let left_out = |name: &&str| left_out.iter().any(|beginning| name.starts_with(beginning));
            all.iter().filter(|(name, _)| !left_out(name)).map(|(name, value)| (*name, value)).collect::<BTreeMap<_, _>>()
        };
        // A fault of the ring would hide JACCL's, and both those of the settings.
        for vars in [but(&[]), but(&["MLX_HOSTFILE"]), but(&["MLX_HOSTFILE", "MLX_IBV", "MLX_JACCL", "JACCL", "MLX_RANK"])] {
            if let Err(error) = read(&vars) {
                is_one_line(&error);
            }
        }
    }

    #[test]
    fn nodes_are_the_same_from_a_program_and_from_a_hostfile((nodes, rank) in nodes()) {
        let json: Vec<String> = nodes.iter().map(|node| format!("[\"{}\"]", node.join("\",\""))).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        fs::write(&path, format!("[{}]", json.join(",\n "))).unwrap();
        let vars = BTreeMap::from([("MLX_HOSTFILE", path.into_os_string()), ("MLX_RANK", rank.to_string().into())]);
        match (parse_nodes(&nodes, rank), read(&vars)) {
            (Ok(ring), Ok(read)) => {
                holds_to_the_rules(&ring);
                prop_assert_eq!(texts(&ring), nodes);
                prop_assert_eq!(Some(ring), read.ring);
            }
            (Err(error), Err(read)) => prop_assert_eq!(error.kind(), read.kind()),
            (given, read) => prop_assert!(false, "{given:?} and {read:?}"),
        }
    }

    #[test]
    fn an_accepted_address_prints_as_it_was_written(
        text in prop_oneof![".{0,20}", (host(), ":[0-9]{1,5}").prop_map(|(host, port)| host + &port)],
    ) {
        if let Ok(address) = text.parse::<Address>() {
            prop_assert_eq!(address.to_string(), &*text);
            let brackets = if text.starts_with('[') { ("[", "]") } else { ("", "") };
            let start = format!("{}{}{}:", brackets.0, address.host(), brackets.1);
            let port = text.strip_prefix(&start).map(str::parse::<u16>);
            prop_assert_eq!(port, Some(Ok(address.port())));
        }
    }
}
