//! Reading the hostfile of a ring over several machines. What else it must hold is the ranks' business.

use std::path::Path;

use serde_json::Value;

use crate::Result;

/// With `--hostfile`, the second group's ports are the file's plus this.
const SECOND_GROUP: u16 = 1000;

/// Reads MLX's hostfile: only as far as is needed here, the ranks themselves validate it.
pub(super) fn read_hostfile(path: &Path) -> Result<Vec<Vec<String>>> {
    const SHAPE: &str = r#"expected each rank's addresses, such as [["10.0.0.1:5000"], ["10.0.0.2:5000"]]"#;
    let text = std::fs::read_to_string(path).map_err(|e| format!("{e}; {SHAPE}"))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| format!("{e}; {SHAPE}"))?;
    let addresses = |rank: &Value| rank.as_array()?.iter().map(|a| a.as_str().map(String::from)).collect();
    let nodes = value.as_array().and_then(|ranks| ranks.iter().map(addresses).collect::<Option<Vec<Vec<String>>>>());
    nodes.filter(|n| !n.is_empty()).ok_or_else(|| SHAPE.into())
}

/// The same hosts with the second group's ports.
pub(super) fn shifted(nodes: &[Vec<String>]) -> Result<Vec<Vec<String>>> {
    let shift = |address: &String| {
        let (host, port) = address.rsplit_once(':')?;
        let port: u16 = port.parse().ok()?;
        Some(format!("{host}:{}", port.checked_add(SECOND_GROUP)?))
    };
    let wrong = |a: &String| format!("{a}: expected host:port with a port below {}", u16::MAX - SECOND_GROUP);
    nodes.iter().map(|rank| rank.iter().map(|a| shift(a).ok_or_else(|| wrong(a))).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Options;

    #[test]
    fn a_wrong_hostfile_is_named_with_the_shape_it_should_have() {
        let folder = tempfile::tempdir().unwrap();
        let hostfile = folder.path().join("hosts.json");
        let options = Options { hostfile: Some(hostfile.clone()), rank: Some(1), ..Options::quick(4, 1) };
        for text in [None, Some("10.0.0.1:5000"), Some("{}"), Some("[]"), Some("[[5000]]")] {
            text.inspect(|text| std::fs::write(&hostfile, text).unwrap());
            let error = options.validate().unwrap_err();
            assert!(error.starts_with(&format!("--hostfile {}: ", hostfile.display())), "{error}");
            assert!(error.contains(r#"[["10.0.0.1:5000"], "#) && !error.contains('\n'), "{error}");
        }
        std::fs::write(&hostfile, r#"[["10.0.0.1:5000"]]"#).unwrap();
        assert_eq!(options.validate().unwrap_err(), "--rank 1: the hostfile's ranks are 0 to 0");
        Options { rank: Some(0), ..options }.validate().unwrap();
    }
}
