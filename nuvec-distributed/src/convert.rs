//! Between this workspace's types and nuvec's.

use nuvec_collectives::{DType, Reduction};
use nuvec_core::Error;
use nuvec_core::distributed::AllReduce;
use nuvec_launch_env as launch_env;
use nuvec_transport::Kind;

/// An error of the launch environment: a file that cannot be read is I/O, all else a wrong argument.
pub(crate) fn environment(e: launch_env::Error) -> Error {
    let text = format!("distributed: {e}");
    match e.kind() {
        launch_env::ErrorKind::Unreadable { .. } => Error::Io(text),
        _ => Error::InvalidArgument(text),
    }
}

/// An error of a transport or a collective. Neither knows a variable, so what sets the key or the time-out is said here,
/// also where a group repeats that it failed by one.
pub(crate) fn transport(e: nuvec_transport::Error) -> Error {
    let mut text = format!("distributed: {e}");
    // A time-out may come of a key, too; of what other ranks report, only the words are known.
    if text.contains(nuvec_transport_tcp::KEY_ADVICE) {
        text += " (the key is NUVEC_DISTRIBUTED_KEY, or Options::key)";
    } else if e.cause().unwrap_or(&e).kind() == Kind::TimedOut {
        text += " (the time-out is NUVEC_DISTRIBUTED_TIMEOUT, or Options::timeout)";
    }
    match e.kind() {
        Kind::Misuse | Kind::Unsupported | Kind::Closed => Error::InvalidArgument(text),
        _ => Error::Io(text),
    }
}

/// nuvec's element type as the collectives know it. Errors: one that is newer than they are.
pub(crate) fn dtype(dtype: nuvec_core::DType) -> nuvec_core::Result<DType> {
    use nuvec_core::DType as N;
    Ok(match dtype {
        N::Bool => DType::Bool,
        N::U8 => DType::U8,
        N::U16 => DType::U16,
        N::U32 => DType::U32,
        N::U64 => DType::U64,
        N::I8 => DType::I8,
        N::I16 => DType::I16,
        N::I32 => DType::I32,
        N::I64 => DType::I64,
        N::F16 => DType::F16,
        N::BF16 => DType::BF16,
        N::F32 => DType::F32,
        N::F64 => DType::F64,
        N::Complex64 => DType::Complex64,
        other => return Err(crate::invalid(format!("element type {other} cannot be reduced by this version"))),
    })
}

/// nuvec's reduction as the collectives know it. Errors: one that is newer than they are.
pub(crate) fn reduction(op: AllReduce) -> nuvec_core::Result<Reduction> {
    Ok(match op {
        AllReduce::Sum => Reduction::Sum,
        AllReduce::Max => Reduction::Max,
        AllReduce::Min => Reduction::Min,
        other => return Err(crate::invalid(format!("reduction {other:?} is unknown to this version"))),
    })
}

#[cfg(test)]
mod tests {
    use nuvec_transport::Peer;

    use super::*;

    #[test]
    fn a_time_out_says_in_its_one_line_what_sets_it_and_so_does_the_group_that_repeats_it() {
        let first = nuvec_transport::Error::new(Kind::TimedOut, "sent nothing for 30 s")
            .with_peer(&Peer::new(1, "10.0.0.2:5000"))
            .with_advice("raise the time-out if it is only slow");
        for e in [nuvec_transport::Error::poisoned(&first), first] {
            let e = transport(e);
            assert!(matches!(e, Error::Io(_)), "{e:?}");
            let line = e.to_string();
            let end = "raise the time-out if it is only slow (the time-out is NUVEC_DISTRIBUTED_TIMEOUT, or Options::timeout)";
            assert!(line.ends_with(end) && line.contains("rank 1 (10.0.0.2:5000)") && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn keys_that_differ_say_in_their_one_line_how_a_key_is_given_whoever_saw_it_and_never_what_sets_the_time_out() {
        let advice = nuvec_transport_tcp::KEY_ADVICE;
        let peer = nuvec_transport::Peer::new(2, "10.0.0.3:5000");
        for kind in [Kind::Rejected(nuvec_transport::Rejection::Key), Kind::TimedOut] {
            let seen = nuvec_transport::Error::new(kind, "has another key, or none").with_advice(advice);
            // As another rank hears it: the advice is part of the words.
            let heard = nuvec_transport::Error::new(kind, format!("{} (reported by rank 1)", seen.phrase()));
            let line = transport(seen.with_peer(&peer)).to_string();
            assert!(
                line.ends_with("; give every rank the same key (the key is NUVEC_DISTRIBUTED_KEY, or Options::key)")
            );
            for e in [nuvec_transport::Error::poisoned(&heard), heard] {
                let line = transport(e).to_string();
                assert!(line.ends_with(" (the key is NUVEC_DISTRIBUTED_KEY, or Options::key)"), "{line}");
                assert!(!line.contains("TIMEOUT"), "{line}");
            }
        }
    }

    #[test]
    fn no_other_failure_speaks_of_the_time_out() {
        for kind in [Kind::PeerClosed, Kind::Reset, Kind::Mismatch, Kind::Misuse, Kind::Closed, Kind::Io] {
            let first = nuvec_transport::Error::new(kind, "did it");
            for e in [nuvec_transport::Error::poisoned(&first), first] {
                assert!(!transport(e).to_string().contains("TIMEOUT"), "{kind:?}");
            }
        }
    }

    #[test]
    fn what_the_caller_did_wrong_is_a_wrong_argument_and_what_failed_is_io() {
        for kind in [Kind::Misuse, Kind::Unsupported, Kind::Closed] {
            assert!(matches!(transport(nuvec_transport::Error::new(kind, "x")), Error::InvalidArgument(_)), "{kind:?}");
        }
        for kind in [Kind::PeerClosed, Kind::Reset, Kind::TimedOut, Kind::Mismatch, Kind::Exhausted, Kind::Poisoned] {
            assert!(matches!(transport(nuvec_transport::Error::new(kind, "x")), Error::Io(_)), "{kind:?}");
        }
    }

    #[test]
    fn dtypes_keep_their_size_and_name() {
        use nuvec_core::DType as N;
        let all = [
            N::Bool,
            N::U8,
            N::U16,
            N::U32,
            N::U64,
            N::I8,
            N::I16,
            N::I32,
            N::I64,
            N::F16,
            N::BF16,
            N::F32,
            N::F64,
            N::Complex64,
        ];
        for theirs in all {
            let ours = dtype(theirs).unwrap();
            assert_eq!((ours.size(), ours.name()), (theirs.size(), theirs.name()));
        }
    }
}
