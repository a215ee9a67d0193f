//! Half a launch is an error that names what is missing; no launch is none (case L9).

use nuvec_launch_env::ErrorKind;

use crate::Env;

const HOSTFILE: &str = r#"[["a:1"], ["b:1"]]"#;
const DEVICES: &str = r#"[[null, "d"], ["d", null]]"#;

/// An environment with these of the variables, each good.
fn env(names: &[&str]) -> Env {
    names.iter().fold(Env::new(&[]), |mut env, name| {
        let value = match *name {
            "MLX_HOSTFILE" => return env.file(name, HOSTFILE),
            "MLX_IBV_DEVICES" | "JACCL_IBV_DEVICES" => return env.file(name, DEVICES),
            "MLX_JACCL_COORDINATOR" | "JACCL_COORDINATOR" => "10.0.0.1:5000",
            _ => "1",
        };
        env.vars.insert((*name).to_owned(), value.to_owned());
        env
    })
}

#[test]
fn nothing_of_a_launch_is_no_launch() {
    for names in [&[][..], &["MLX_JACCL_RING"], &["MLX_RING_VERBOSE"], &["MLX_WORLD_SIZE", "NCCL_PORT"]] {
        let launch = env(names).read().unwrap();
        assert!(!launch.is_launch() && launch.ring.is_none() && launch.jaccl.is_none(), "{names:?}");
    }
}

#[test]
fn a_rank_alone_is_half_a_launch() {
    let line = "MLX_RANK: is set, but neither MLX_HOSTFILE (for the TCP ring) nor MLX_IBV_DEVICES and \
                MLX_JACCL_COORDINATOR (for JACCL) are: expected all of a launch, or nothing of one";
    assert_eq!(env(&["MLX_RANK"]).error(), (line.to_owned(), ErrorKind::RankAlone));
    assert_eq!(env(&["MLX_RANK", "MLX_JACCL_RING"]).error().0, line);
}

#[test]
fn what_is_missing_is_named() {
    let check = |given: &[&str], line: &str| {
        assert_eq!(env(given).error().0, format!("{line} not: expected all of them, or none"), "{given:?}");
    };
    let (devices, coordinator, rank) = (
        "MLX_IBV_DEVICES (or JACCL_IBV_DEVICES)",
        "MLX_JACCL_COORDINATOR (or JACCL_COORDINATOR)",
        "MLX_RANK (or JACCL_RANK)",
    );
    check(&["MLX_HOSTFILE"], "MLX_HOSTFILE: is set, but MLX_RANK is");
    check(&["MLX_IBV_DEVICES"], &format!("MLX_IBV_DEVICES: is set, but {coordinator} and {rank} are"));
    check(&["MLX_IBV_DEVICES", "MLX_RANK"], &format!("MLX_IBV_DEVICES: is set, but {coordinator} is"));
    check(&["MLX_JACCL_COORDINATOR", "MLX_RANK"], &format!("MLX_JACCL_COORDINATOR: is set, but {devices} is"));
    check(&["JACCL_COORDINATOR"], &format!("JACCL_COORDINATOR: is set, but {devices} and {rank} are"));
    check(&["MLX_IBV_DEVICES", "JACCL_COORDINATOR"], &format!("MLX_IBV_DEVICES: is set, but {rank} is"));
    check(&["JACCL_RANK"], &format!("JACCL_RANK: is set, but {devices} and {coordinator} are"));
    // JACCL's own rank is none for the ring.
    check(&["MLX_HOSTFILE", "JACCL_RANK"], "MLX_HOSTFILE: is set, but MLX_RANK is");
}

#[test]
fn half_a_launch_beside_a_whole_one_is_an_error_too() {
    let (line, kind) = env(&["MLX_HOSTFILE", "MLX_RANK", "MLX_JACCL_COORDINATOR"]).error();
    assert!(line.starts_with("MLX_JACCL_COORDINATOR: is set, but MLX_IBV_DEVICES"), "{line}");
    assert!(matches!(kind, ErrorKind::Incomplete { .. }));
    let (line, _) = env(&["MLX_HOSTFILE", "MLX_IBV_DEVICES", "JACCL_COORDINATOR", "JACCL_RANK"]).error();
    assert!(line.starts_with("MLX_HOSTFILE: is set, but MLX_RANK"), "{line}");
}

#[test]
fn both_launches_may_be_there() {
    let env = env(&["MLX_HOSTFILE", "MLX_RANK", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR"]);
    let launch = env.read().unwrap();
    assert_eq!((launch.ring.unwrap().rank, launch.jaccl.unwrap().rank), (1, 1));
}
