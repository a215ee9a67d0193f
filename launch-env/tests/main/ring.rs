//! `MLX_HOSTFILE` and `MLX_RANK` (cases L1 to L7).

use std::fs;

use nuvec_launch_env::{Error, ErrorKind, MAX_FILE_BYTES, Ring, parse_nodes, read};

use crate::Env;

const THREE: &str = r#"[["a:1"], ["b:1"], ["c:1"]]"#;

fn env(rank: &str, hostfile: impl AsRef<[u8]>) -> Env {
    Env::new(&[("MLX_RANK", rank)]).file("MLX_HOSTFILE", hostfile)
}

fn ring(rank: &str, hostfile: &str) -> Ring {
    env(rank, hostfile).read().expect("a good ring").ring.expect("a ring")
}

/// The line that a user reads for this rank and hostfile.
#[track_caller]
fn check_error(rank: &str, hostfile: impl AsRef<[u8]>, expected: &str) {
    assert_eq!(env(rank, hostfile).error().0, expected);
}

fn nodes(nodes: &[&[&str]]) -> Vec<Vec<String>> {
    nodes.iter().map(|node| node.iter().map(|&address| address.to_owned()).collect()).collect()
}

fn nodes_error(given: &[&[&str]], rank: usize) -> Error {
    parse_nodes(&nodes(given), rank).expect_err("an error")
}

#[test]
fn a_ring_has_its_rank_and_every_address() {
    let ring = ring("1", r#"[["a:1", "a:2"], ["[fe80::1%en5]:1", "10.0.0.1:2"], ["[::1]:1", "c:2"], ["d:1", "d:2"]]"#);
    assert_eq!((ring.rank, ring.size(), ring.connections()), (1, 4, 2));
    let texts: Vec<Vec<_>> = ring.nodes.iter().map(|node| node.iter().map(ToString::to_string).collect()).collect();
    assert_eq!(texts, [["a:1", "a:2"], ["[fe80::1%en5]:1", "10.0.0.1:2"], ["[::1]:1", "c:2"], ["d:1", "d:2"]]);
}

#[test]
fn blanks_around_a_rank_are_trimmed() {
    for rank in ["1", " 1 ", "\t1\n", "01"] {
        assert_eq!(ring(rank, THREE).rank, 1, "{rank:?}");
    }
}

#[test]
fn what_is_no_rank_is_shown_with_the_range() {
    for rank in ["abc", "-1", "+1", "99999999999", "99999999999999999999999", "3", "1x", "1 2", "0x1", "1.0", "٢"] {
        let line = format!("MLX_RANK: {rank:?} is no rank: expected a whole number from 0 to 2 (3 ranks)");
        check_error(rank, THREE, &line);
        assert!(matches!(env(rank, THREE).error().1, ErrorKind::BadRank { size: 3, .. }));
    }
    check_error("1", r#"[["a:1"]]"#, r#"MLX_RANK: "1" is no rank: expected a whole number from 0 to 0 (1 rank)"#);
    for rank in ["", " "] {
        check_error(rank, THREE, "MLX_RANK: is set but empty: expected a rank, a whole number from 0");
    }
    let error = nodes_error(&[&["a:1"], &["b:1"]], 2).to_string();
    assert_eq!(error, r#"rank: "2" is no rank: expected a whole number from 0 to 1 (2 ranks)"#);
}

const A_HOSTFILE: &str =
    r#"expected a JSON list with a list of addresses per rank, as in [["10.0.0.1:5000"], ["10.0.0.2:5000"]]"#;
const A_RANK: &str = r#"expected the rank's addresses, as in ["10.0.0.1:5000"]"#;

#[test]
fn a_hostfile_of_another_shape_says_where_and_what_was_expected() {
    let check =
        |hostfile: &str, what: &str| check_error("0", hostfile, &format!("/MLX_HOSTFILE (MLX_HOSTFILE): {what}"));
    check("[]", &format!("is an empty list: {A_HOSTFILE}"));
    check("[[]]", &format!("rank 0: has no address: {A_RANK}"));
    check(r#"[["a:1"], []]"#, &format!("rank 1: has no address: {A_RANK}"));
    check("{}", &format!("is an object: {A_HOSTFILE}"));
    check("null", &format!("is null: {A_HOSTFILE}"));
    check("\"a:1\"", &format!("is the text \"a:1\": {A_HOSTFILE}"));
    check("[1]", &format!("rank 0: is the number 1: {A_RANK}"));
    check("[{}]", &format!("rank 0: is an object: {A_RANK}"));
    check(r#"["a:1", "b:1"]"#, &format!("rank 0: is the text \"a:1\": {A_RANK}"));
    let an_address = r#"expected an address as text, as in "10.0.0.1:5000""#;
    check(r#"[["a:1"], [true]]"#, &format!("rank 1, entry 0: is true: {an_address}"));
    check(r#"[["a:1"], ["b:1", ["c:1"]]]"#, &format!("rank 1, entry 1: is a list: {an_address}"));
}

#[test]
fn text_that_is_no_json_says_line_and_column() {
    let check = |hostfile: &str, what: &str| {
        check_error("0", hostfile, &format!("/MLX_HOSTFILE (MLX_HOSTFILE): {what}: {A_HOSTFILE}"));
    };
    check("[[\"a:1\"],\n [\"b", "line 2, column 4: is no JSON (EOF while parsing a string)");
    check("[[\"a:1\"],", "line 1, column 9: is no JSON (EOF while parsing a value)");
    check("[[\"a:1\"]] x", "line 1, column 11: is no JSON (trailing characters)");
    check("a:1", "line 1, column 1: is no JSON (expected value)");
    check(&"[".repeat(10_000_000), "line 1, column 128: is no JSON (recursion limit exceeded)");
    check(&"{\"a\":".repeat(1_000_000), "line 1, column 636: is no JSON (recursion limit exceeded)");
    check_error("0", b"[[\"a:1\xff\"]]", &format!("/MLX_HOSTFILE (MLX_HOSTFILE): byte 6 is not UTF-8: {A_HOSTFILE}"));
}

#[test]
fn a_byte_order_mark_is_no_fault() {
    assert_eq!(ring("1", &format!("\u{feff}{THREE}")).size(), 3);
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_the_reason() {
    let mut env = Env::new(&[("MLX_RANK", "0")]);
    let check = |env: &Env, name: &str, what: &str| {
        let (line, kind) = env.error();
        assert_eq!(line, format!("/{name} (MLX_HOSTFILE): {what}"));
        kind
    };
    let name = |env: &mut Env, name: &str| {
        let path = env.path(name).to_str().unwrap().to_owned();
        env.vars.insert("MLX_HOSTFILE".to_owned(), path);
    };

    name(&mut env, "missing.json");
    let what = "cannot be read (No such file or directory (os error 2)): expected a readable file";
    let kind = check(&env, "missing.json", what);
    assert!(matches!(kind, ErrorKind::Unreadable { error: std::io::ErrorKind::NotFound, .. }));

    name(&mut env, "folder");
    fs::create_dir(env.path("folder")).unwrap();
    check(&env, "folder", "is a directory: expected a regular file");

    name(&mut env, "large.json");
    fs::File::create(env.path("large.json")).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    check(&env, "large.json", &format!("is larger than 16777216 bytes: {A_HOSTFILE}"));

    env.vars.insert("MLX_HOSTFILE".to_owned(), "/dev/zero".to_owned());
    assert_eq!(env.error().0, "/dev/zero (MLX_HOSTFILE): is a pipe, socket or device: expected a regular file");

    env.vars.insert("MLX_HOSTFILE".to_owned(), String::new());
    assert_eq!(env.error().0, "MLX_HOSTFILE: is set but empty: expected the path of a hostfile");

    for odd in ["a\0b", "\u{1b}[31m\n", &"x".repeat(100_000)] {
        env.vars.insert("MLX_HOSTFILE".to_owned(), odd.to_owned());
        assert!(matches!(env.error().1, ErrorKind::Unreadable { .. }));
    }
}

#[test]
fn a_bad_address_names_its_rank_and_entry() {
    let check = |address: &str, what: &str| {
        let hostfile = format!(r#"[["a:1", "a:2"], ["b:1", "b:2"], ["c:1", "{address}"], ["d:1", "d:2"]]"#);
        // Whoever's entry it is: rank 0 is no neighbour of rank 2 here.
        for rank in ["0", "2"] {
            check_error(rank, &hostfile, &format!("/MLX_HOSTFILE (MLX_HOSTFILE): rank 2, entry 1: {what}"));
        }
        let given: [&[&str]; 4] = [&["a:1", "a:2"], &["b:1", "b:2"], &["c:1", address], &["d:1", "d:2"]];
        assert_eq!(nodes_error(&given, 0).to_string(), format!("nodes[2][1]: {what}"), "the same words");
    };
    check("c:0", r#"the port of "c:0" is 0: expected a port from 1 to 65535"#);
    check("c:70000", r#"the port of "c:70000" is above 65535: expected a port from 1 to 65535"#);
    check("c", r#""c" has no port: expected "host:port", or "[IPv6]:port""#);
    check(
        "a:b:c",
        r#""a:b:c" has more than one ':': expected "host:port", or "[IPv6]:port" (IPv6 addresses need the brackets)"#,
    );
    check(":5000", r#"":5000" has no host: expected "host:port", or "[IPv6]:port""#);
    check("", r#"the address is empty: expected "host:port", or "[IPv6]:port""#);
}

#[test]
fn every_rank_has_equally_many_addresses() {
    let more = "[[\"a:1\"], [\"b:1\", \"b:2\"]]";
    let place = "/MLX_HOSTFILE (MLX_HOSTFILE): rank 1";
    let rule = "expected equally many for every rank";
    check_error("0", more, &format!("{place}: has 2 addresses where rank 0 has 1: {rule}"));
    let fewer = "[[\"a:1\", \"a:2\"], [\"b:1\"]]";
    check_error("0", fewer, &format!("{place}: has 1 address where rank 0 has 2: {rule}"));
    assert_eq!(
        nodes_error(&[&["a:1", "a:2"], &["b:1"]], 0).to_string(),
        format!("nodes[1]: has 1 address where rank 0 has 2: {rule}")
    );
}

#[test]
fn an_endpoint_stands_once_among_own_left_and_right() {
    // The later of the two entries is where it stands, the earlier is named.
    let check = |given: &[&[&str]], rank: usize, expected: Option<((usize, usize), (usize, usize))>| {
        let got = parse_nodes(&nodes(given), rank);
        match (got, expected) {
            (Ok(_), None) => {}
            (Err(error), Some(((rank, entry), (other, other_entry)))) => {
                let line = error.to_string();
                let value = given[rank][entry];
                assert_eq!(
                    line,
                    format!(
                        "nodes[{rank}][{entry}]: {value:?} is also rank {other}'s entry {other_entry}: expected every \
                         host:port once among those of a rank and its neighbours"
                    )
                );
            }
            (got, expected) => panic!("{given:?} for rank {rank}: got {got:?}, expected {expected:?}"),
        }
    };
    // Within one's own entries, and the left's, and the right's.
    let own: [&[&str]; 4] = [&["a:1", "a:1"], &["b:1", "b:2"], &["c:1", "c:2"], &["d:1", "d:2"]];
    check(&own, 0, Some(((0, 1), (0, 0))));
    check(&own, 1, Some(((0, 1), (0, 0))));
    check(&own, 3, Some(((0, 1), (0, 0))));
    check(&own, 2, None);
    // Between own and right, own and left, left and right.
    let pair: [&[&str]; 5] = [&["x:1"], &["x:1"], &["c:1"], &["d:1"], &["e:1"]];
    check(&pair, 0, Some(((1, 0), (0, 0))));
    check(&pair, 1, Some(((1, 0), (0, 0))));
    check(&pair, 2, None);
    check(&pair, 4, None);
    let around: [&[&str]; 4] = [&["a:1"], &["x:1"], &["c:1"], &["x:1"]];
    check(&around, 0, Some(((3, 0), (1, 0))));
    check(&around, 2, Some(((3, 0), (1, 0))));
    check(&around, 1, None);
    // With two ranks left is right, with one all three are one: no entry is compared with itself.
    check(&[&["a:1"], &["b:1"]], 0, None);
    check(&[&["a:1"], &["a:1"]], 0, Some(((1, 0), (0, 0))));
    check(&[&["a:1"]], 0, None);
    check(&[&["a:1", "a:1"]], 0, Some(((0, 1), (0, 0))));
    // By meaning, not by spelling.
    check(&[&["[::1]:5"], &["[0:0::1]:5"]], 0, Some(((1, 0), (0, 0))));
    check(&[&["Mac.local:5"], &["mac.LOCAL:5"]], 0, Some(((1, 0), (0, 0))));
    check(&[&["a:5"], &["a:05"]], 0, Some(((1, 0), (0, 0))));
    check(&[&["[fe80::1%en5]:5"], &["[fe80::1%en6]:5"]], 0, None);
    check(&[&["0.0.0.0:5"], &["10.0.0.1:5"]], 0, None);
}

#[test]
fn a_duplicate_in_a_hostfile_names_both_entries() {
    check_error(
        "1",
        r#"[["a:1", "x:9"], ["b:1", "b:2"], ["X:9", "c:2"]]"#,
        "/MLX_HOSTFILE (MLX_HOSTFILE): rank 2, entry 0: \"X:9\" is also rank 0's entry 1: expected every host:port \
         once among those of a rank and its neighbours",
    );
}

#[test]
fn placeholders_of_others_may_repeat() {
    let hostfile = r#"[["10.0.0.9:1"], ["0.0.0.0:1"], ["10.0.0.3:1"], ["198.51.100.1:1"], ["198.51.100.1:1"]]"#;
    assert_eq!(ring("1", hostfile).size(), 5);
    let (_, kind) = env("3", hostfile).error();
    assert!(matches!(kind, ErrorKind::Duplicate { rank: 3, entry: 0, .. }), "they are neighbours of rank 3: {kind:?}");
}

#[test]
fn a_hostfile_of_one_entry_is_a_ring_of_one() {
    let ring = ring("0", r#"[["10.0.0.1:5000", "10.0.0.1:5001"]]"#);
    assert_eq!((ring.rank, ring.size(), ring.connections()), (0, 1, 2));
}

#[test]
fn a_blank_hostfile_is_rank_0_alone() {
    for blank in ["\n", "", " \t\r\n ", "\u{feff}\n"] {
        let ring = ring("0", blank);
        assert_eq!((ring.rank, ring.size(), ring.connections()), (0, 1, 0), "{blank:?}");
        for rank in ["1", "-1", "abc"] {
            check_error(
                rank,
                blank,
                &format!(
                    "MLX_RANK: {rank:?} is no rank: expected 0, or a hostfile with addresses, since the one that \
                     MLX_HOSTFILE names is blank"
                ),
            );
        }
    }
}

#[test]
fn the_launchers_own_hostfile_is_told_from_the_one_that_it_writes() {
    for hostfile in [
        r#"[{"ssh": "mac-1", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en2"]}, {"ssh": "mac-2", "ips": []}]"#,
        r#"[{"ssh": "mac-1"}]"#,
        r#"[{"ips": ["10.0.0.1"]}]"#,
        r#"{"backend": "ring", "envs": [], "hosts": [{"ssh": "mac-1", "ips": ["10.0.0.1"], "rdma": []}]}"#,
        r#"{"hosts": []}"#,
    ] {
        let line = format!(
            "/MLX_HOSTFILE (MLX_HOSTFILE): is the launcher's hostfile (a list of \"ssh\", \"ips\" and \"rdma\"), which \
             mlx.launch --hostfile reads: expected the file that mlx.launch writes for each rank, {}",
            A_HOSTFILE.trim_start_matches("expected ")
        );
        check_error("0", hostfile, &line);
    }
}

#[test]
fn variables_come_from_maps_and_closures_alike() {
    let env = env("2", THREE);
    let closure = |name: &str| env.vars.get(name).map(Into::into);
    assert_eq!(read(&closure).unwrap().ring, env.read().unwrap().ring);
}
