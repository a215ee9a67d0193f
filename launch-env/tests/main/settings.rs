//! `NUVEC_DISTRIBUTED_*` and `MLX_RING_VERBOSE`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use nuvec_launch_env::{ErrorKind, Key, QueuePairsName, WireName};

use crate::settings as read;

/// The line that a user reads for this value.
#[track_caller]
fn check_error(name: &str, value: &str, what: &str) {
    let error = read(&[(name, value)]).expect_err("an error");
    assert_eq!(error.to_string(), format!("{name}: {what}"));
}

#[test]
fn what_is_not_set_is_none() {
    let settings = read(&[]).unwrap();
    assert!(settings.timeout.is_none() && settings.key.is_none() && settings.wire.is_none());
    assert!(settings.name.is_none() && settings.spin.is_none() && !settings.verbose);
}

#[test]
fn a_time_out_is_any_number_of_seconds_above_0() {
    let check = |value: &str, expected: Duration| {
        assert_eq!(read(&[("NUVEC_DISTRIBUTED_TIMEOUT", value)]).unwrap().timeout, Some(expected), "{value:?}");
    };
    check("30", Duration::from_secs(30));
    check(" 2.5 ", Duration::from_millis(2500));
    check(".25", Duration::from_millis(250));
    check("1e3", Duration::from_secs(1000));
    check("1e-30", Duration::from_nanos(1));
    check("1000000000", Duration::from_secs(1_000_000_000));

    let overflowing = "9".repeat(400);
    for value in ["0", "-0", "-1", "NaN", "inf", "-inf", "1e30", "1000000000.5", "1e400", "abc", "30s", "1,5", "0x10"] {
        let what = format!("{value:?} is no time-out: expected seconds, more than 0 and at most 1000000000");
        check_error("NUVEC_DISTRIBUTED_TIMEOUT", value, &what);
    }
    let error = read(&[("NUVEC_DISTRIBUTED_TIMEOUT", &overflowing)]).unwrap_err().to_string();
    assert!(error.contains("… (400 bytes) is no time-out") && error.len() < 200, "{error}");
    check_error("NUVEC_DISTRIBUTED_TIMEOUT", " ", "is set but empty: expected seconds, more than 0");
}

#[test]
fn a_time_to_spin_is_whole_microseconds() {
    let check = |value: &str, expected: u64| {
        let spin = read(&[("NUVEC_DISTRIBUTED_SPIN_US", value)]).unwrap().spin;
        assert_eq!(spin, Some(Duration::from_micros(expected)), "{value:?}");
    };
    check("0", 0);
    check(" 50 ", 50);
    check("1000000", 1_000_000);
    for value in ["-1", "+1", "0.5", "1000001", "99999999999999999999999", "50us", "NaN"] {
        let what = format!("{value:?} is no time to spin: expected whole microseconds from 0 (never) to 1000000");
        check_error("NUVEC_DISTRIBUTED_SPIN_US", value, &what);
    }
    check_error("NUVEC_DISTRIBUTED_SPIN_US", "", "is set but empty: expected whole microseconds, or 0 for never");
}

#[test]
fn a_wire_is_native_or_mlx() {
    for (value, expected) in [("native", WireName::Native), ("mlx", WireName::Mlx), (" mlx\n", WireName::Mlx)] {
        let wire = read(&[("NUVEC_DISTRIBUTED_WIRE", value)]).unwrap().wire;
        assert_eq!(wire, Some(expected), "{value:?}");
    }
    for value in ["MLX", "tcp", "native,mlx"] {
        let what = format!("{value:?} is no wire: expected \"native\" or \"mlx\"");
        check_error("NUVEC_DISTRIBUTED_WIRE", value, &what);
    }
    check_error("NUVEC_DISTRIBUTED_WIRE", "", "is set but empty: expected \"native\" or \"mlx\"");
}

#[test]
fn queue_pairs_are_rc_or_uc() {
    for (value, expected) in [("rc", QueuePairsName::Reliable), (" uc ", QueuePairsName::Unreliable)] {
        let queue_pairs = read(&[("NUVEC_DISTRIBUTED_QUEUE_PAIRS", value)]).unwrap().queue_pairs;
        assert_eq!(queue_pairs, Some(expected), "{value:?}");
    }
    for value in ["RC", "ud", "rc,uc"] {
        let what = format!("{value:?} is no type of queue pairs: expected \"rc\" (reliable) or \"uc\" (unreliable)");
        check_error("NUVEC_DISTRIBUTED_QUEUE_PAIRS", value, &what);
    }
    check_error("NUVEC_DISTRIBUTED_QUEUE_PAIRS", "", "is set but empty: expected \"rc\" or \"uc\"");
}

#[test]
fn a_gid_index_is_a_whole_number() {
    for (value, expected) in [("0", 0), (" 3 ", 3), ("4294967295", u32::MAX)] {
        let index = read(&[("NUVEC_DISTRIBUTED_GID_INDEX", value)]).unwrap().gid_index;
        assert_eq!(index, Some(expected), "{value:?}");
    }
    for value in ["-1", "+1", "1.0", "4294967296", "one"] {
        let what = format!("{value:?} is no index of a GID: expected a whole number from 0 to 4294967295");
        check_error("NUVEC_DISTRIBUTED_GID_INDEX", value, &what);
    }
    check_error("NUVEC_DISTRIBUTED_GID_INDEX", "", "is set but empty: expected a whole number");
}

#[test]
fn a_name_is_kept_as_it_is_and_the_empty_one_is_the_default() {
    let name = |value: &str| read(&[("NUVEC_DISTRIBUTED_NAME", value)]).unwrap().name;
    assert_eq!(name(" my group "), Some(" my group ".to_owned()));
    assert_eq!(name(""), None);
}

#[test]
fn verbose_is_any_value() {
    for value in ["1", "0", ""] {
        assert!(read(&[("MLX_RING_VERBOSE", value)]).unwrap().verbose);
    }
}

#[test]
fn a_key_is_the_variables_bytes_as_they_stand() {
    let bytes = b" \xff\xfe sixteen bytes and more\n";
    let vars = |name: &str| (name == "NUVEC_DISTRIBUTED_KEY").then(|| OsString::from_vec(bytes.to_vec()));
    let key = nuvec_launch_env::read(&vars).unwrap().settings.key.unwrap();
    assert_eq!(key.as_bytes(), bytes);
    assert_eq!(key.clone().as_bytes(), bytes);
    assert_eq!(Key::new(*bytes).as_bytes(), bytes, "a program's key is the same");
}

#[test]
fn a_key_is_never_shown() {
    let secret = "hunter2-hunter2-hunter2";
    let settings = read(&[("NUVEC_DISTRIBUTED_KEY", secret)]).unwrap();
    let shown = format!("{settings:?} {settings:#?}");
    assert!(shown.contains("Key(..)") && !shown.contains("hunter2") && !shown.contains("104"), "{shown}");

    let shown = format!("{:?}", Key::new(secret));
    assert_eq!(shown, "Key(..)");

    let error = read(&[("NUVEC_DISTRIBUTED_KEY", "hunter2")]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::ShortKey);
    let shown = format!("{error} {error:?}");
    assert!(shown.contains("at least 16 bytes") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_key_has_at_least_16_bytes() {
    assert!(read(&[("NUVEC_DISTRIBUTED_KEY", &"k".repeat(16))]).is_ok());
    let what = "the key is too short: expected at least 16 bytes (use 32 random ones)";
    check_error("NUVEC_DISTRIBUTED_KEY", &"k".repeat(15), what);
    let what = "is set but empty: expected a key of at least 16 bytes (use 32 random ones)";
    check_error("NUVEC_DISTRIBUTED_KEY", "", what);
}

#[test]
fn only_a_key_may_be_no_text() {
    for name in ["NUVEC_DISTRIBUTED_TIMEOUT", "NUVEC_DISTRIBUTED_WIRE", "NUVEC_DISTRIBUTED_NAME"] {
        let vars = |asked: &str| (asked == name).then(|| OsString::from_vec(b"a\xffb".to_vec()));
        let error = nuvec_launch_env::read(&vars).unwrap_err().to_string();
        assert_eq!(error, format!("{name}: \"a\u{fffd}b\" is not UTF-8: expected text"));
    }
}
