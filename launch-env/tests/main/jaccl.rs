//! JACCL's variables and device matrix (case L8).

use nuvec_launch_env::{DeviceFault, Error, ErrorKind, Jaccl, Topology};

use crate::Env;

const TWO: &str = r#"[[null, "rdma_en2"], ["rdma_en3", null]]"#;

fn env(devices: &str) -> Env {
    Env::new(&[("MLX_RANK", "0"), ("MLX_JACCL_COORDINATOR", "10.0.0.1:5000")]).file("MLX_IBV_DEVICES", devices)
}

fn jaccl(devices: &str) -> Jaccl {
    env(devices).read().expect("a good device file").jaccl.expect("JACCL")
}

/// A matrix with these numbers of devices.
fn matrix(counts: &[&[usize]]) -> Vec<Vec<Vec<String>>> {
    let cell = |count: &usize| (0..*count).map(|device| format!("rdma_en{device}")).collect();
    counts.iter().map(|row| row.iter().map(cell).collect()).collect()
}

#[test]
fn a_matrix_of_null_names_and_lists_is_read() {
    let jaccl = jaccl(r#"[[null, "a", ["b", "c"]], ["d", [], "e"], ["f", "g", null]]"#);
    assert_eq!((jaccl.rank, jaccl.size(), jaccl.prefer_ring), (0, 3, false));
    assert_eq!(jaccl.coordinator.to_string(), "10.0.0.1:5000");
    assert_eq!(jaccl.devices[0], [vec![], vec!["a".to_owned()], vec!["b".to_owned(), "c".to_owned()]]);
    assert!(jaccl.devices[1][1].is_empty(), "a list of no names is null");
}

#[test]
fn jaccls_own_names_win_over_mlxs() {
    let mut env = env("not JSON").file("JACCL_IBV_DEVICES", TWO);
    for (name, value) in [("JACCL_RANK", "1"), ("JACCL_COORDINATOR", "[::1]:7"), ("JACCL_RING", "")] {
        env.vars.insert(name.to_owned(), value.to_owned());
    }
    env.vars.insert("MLX_RANK".to_owned(), "abc".to_owned());
    let jaccl = env.read().unwrap().jaccl.unwrap();
    assert_eq!((jaccl.rank, jaccl.coordinator.to_string().as_str(), jaccl.prefer_ring), (1, "[::1]:7", true));

    env.vars.insert("JACCL_RANK".to_owned(), "2".to_owned());
    let line = env.error().0;
    assert_eq!(line, r#"JACCL_RANK: "2" is no rank: expected a whole number from 0 to 1 (2 ranks)"#);
    env.vars.insert("JACCL_IBV_DEVICES".to_owned(), String::new());
    assert_eq!(env.error().0, "JACCL_IBV_DEVICES: is set but empty: expected the path of a device file");
}

#[test]
fn a_ring_is_preferred_by_any_value() {
    for value in ["1", "0", ""] {
        let mut env = env(TWO);
        env.vars.insert("MLX_JACCL_RING".to_owned(), value.to_owned());
        let jaccl = env.read().unwrap().jaccl.unwrap();
        assert_eq!((jaccl.prefer_ring, jaccl.topology()), (true, Topology::Ring), "{value:?}");
    }
    assert_eq!(jaccl(TWO).topology(), Topology::Mesh);
}

#[test]
fn a_bad_coordinator_is_shown() {
    let check = |value: &str, what: &str| {
        let mut env = env(TWO);
        env.vars.insert("MLX_JACCL_COORDINATOR".to_owned(), value.to_owned());
        assert_eq!(env.error().0, format!("MLX_JACCL_COORDINATOR: {what}"));
    };
    for empty in ["", " \n"] {
        check(empty, r#"is set but empty: expected the "host:port" of rank 0"#);
    }
    check("10.0.0.1", r#""10.0.0.1" has no port: expected "host:port", or "[IPv6]:port""#);
    check("10.0.0.1:0", r#"the port of "10.0.0.1:0" is 0: expected a port from 1 to 65535"#);
}

#[test]
fn a_device_file_of_another_shape_says_where_and_what_was_expected() {
    let check = |devices: &str, what: &str| {
        assert_eq!(env(devices).error().0, format!("/MLX_IBV_DEVICES (MLX_IBV_DEVICES): {what}"), "{devices}");
    };
    let file =
        r#"expected a JSON matrix of devices from each rank to each, as in [[null, "rdma_en2"], ["rdma_en2", null]]"#;
    let square = "expected a cell for every rank";
    let device = r#"expected a device's name, as in "rdma_en2""#;
    check("[]", &format!("is an empty list: {file}"));
    check("{}", &format!("is an object: {file}"));
    check("\n", &format!("is blank: {file}"));
    check("[[null", &format!("line 1, column 6: is no JSON (EOF while parsing a list): {file}"));
    check("[[]]", &format!("row 0: has 0 columns where the matrix has 1 row: {square}"));
    check(r#"[[null, "a"], ["a"]]"#, &format!("row 1: has 1 column where the matrix has 2 rows: {square}"));
    check(r#"[[null, "a", "b"], ["a", null]]"#, &format!("row 0: has 3 columns where the matrix has 2 rows: {square}"));
    check("[null]", r#"row 0: is null: expected the rank's devices to each rank, as in [null, "rdma_en2"]"#);
    check("[[7]]", "row 0, column 0: is the number 7: expected null, a device's name, or a list of names");
    check(r#"[[null, ["a", null]], ["a", null]]"#, &format!("row 0, column 1: is null: {device}"));
    check(r#"[[null, ""], ["a", null]]"#, &format!("row 0, column 1: has an empty name: {device}"));
    let launchers = env(r#"[{"ssh": "a", "ips": ["10.0.0.1"], "rdma": [null]}]"#).error();
    assert!(matches!(launchers.1, ErrorKind::LaunchersFile(_)));
}

#[test]
fn one_rank_without_devices_is_a_group_of_one() {
    let jaccl = jaccl("[[null]]");
    assert_eq!(jaccl.size(), 1);
    assert_eq!(jaccl.topology(), Topology::Mesh);
}

type Fault = Option<((usize, usize), DeviceFault)>;

/// What is invalid about these numbers of devices for a mesh and for a ring.
#[track_caller]
fn check(counts: &[&[usize]], mesh: Fault, ring: Fault) {
    let made = |prefer_ring| Jaccl::new(0, matrix(counts), "10.0.0.1:5000", prefer_ring).map(|jaccl| jaccl.topology());
    let expected = |of_both| match (mesh, ring) {
        (None, None) => Ok(of_both),
        (None, Some(_)) => Ok(Topology::Mesh),
        (Some(_), None) => Ok(Topology::Ring),
        (Some((mesh_at, mesh)), Some((ring_at, ring))) => Err(ErrorKind::NoTopology { mesh_at, mesh, ring_at, ring }),
    };
    let kind = |made: Result<Topology, Error>| made.map_err(|error| error.kind().clone());
    assert_eq!(kind(made(false)), expected(Topology::Mesh), "{counts:?}");
    assert_eq!(kind(made(true)), expected(Topology::Ring), "{counts:?}, preferring a ring");
}

#[test]
fn a_mesh_has_devices_exactly_off_the_diagonal_and_a_ring_equally_many_between_neighbours() {
    use DeviceFault::{NoDevice, OnDiagonal, Unequal};
    let (no, diagonal) = (|at| Some((at, NoDevice)), |at| Some((at, OnDiagonal)));
    let unequal = |at, here, first| Some((at, Unequal { here, first }));

    check(&[&[0, 1], &[1, 0]], None, None);
    check(&[&[0, 2], &[2, 0]], None, None);
    // One direction missing.
    check(&[&[0, 1], &[0, 0]], no((1, 0)), no((1, 0)));
    check(&[&[0, 0], &[1, 0]], no((0, 1)), no((0, 1)));
    check(&[&[0, 0], &[0, 0]], no((0, 1)), no((0, 1)));
    // Devices on the diagonal, which a ring does not look at.
    check(&[&[0, 1], &[1, 1]], diagonal((1, 1)), None);
    check(&[&[1]], diagonal((0, 0)), diagonal((0, 0)));
    // Unequally many, which a mesh does not count.
    check(&[&[0, 2], &[1, 0]], None, unequal((1, 0), 1, 2));
    check(&[&[0, 1, 1], &[1, 0, 1], &[3, 1, 0]], None, unequal((2, 0), 3, 1));
    // A ring of four needs no devices across.
    check(&[&[0, 2, 0, 2], &[2, 0, 2, 0], &[0, 2, 0, 2], &[2, 0, 2, 0]], no((0, 2)), None);
    check(&[&[0, 2, 0, 2], &[2, 0, 2, 0], &[0, 2, 0, 2], &[1, 0, 2, 0]], no((0, 2)), unequal((3, 0), 1, 2));
    check(&[&[0, 2, 0, 0], &[2, 0, 2, 0], &[0, 2, 0, 2], &[2, 0, 2, 0]], no((0, 2)), no((0, 3)));
}

#[test]
fn neither_mesh_nor_ring_says_what_is_wrong_with_each() {
    let line = env(r#"[["x", ["a", "b"]], ["a", null]]"#).error().0;
    assert_eq!(
        line,
        "/MLX_IBV_DEVICES (MLX_IBV_DEVICES): is no mesh, since row 0, column 0 has devices from a rank to itself: \
         expected null; and no ring, since row 1, column 0 has 1 device where row 0, column 1 has 2: expected equally \
         many between all neighbours"
    );
}

#[test]
fn a_program_has_the_same_rules() {
    let line = |rank, counts: &[&[usize]], coordinator: &str| {
        Jaccl::new(rank, matrix(counts), coordinator, false).unwrap_err().to_string()
    };
    assert!(line(0, &[&[0, 1], &[1]], "a:1").starts_with("devices[1]: has 1 column where the matrix has 2 rows"));
    assert!(line(0, &[], "a:1").starts_with("devices: is an empty list"));
    assert!(line(2, &[&[0, 1], &[1, 0]], "a:1").starts_with("rank: \"2\" is no rank"));
    assert!(line(0, &[&[0]], "a:0").starts_with("coordinator: the port of \"a:0\" is 0"));
    assert!(line(0, &[&[0]], "").starts_with("coordinator: the address is empty"));
    assert!(line(0, &[&[0, 0], &[1, 0]], "a:1").starts_with("devices: is no mesh, since row 0, column 1"));
}
