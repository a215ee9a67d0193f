//! MLX's hostfile: made for ranks on this machine, and read as far as is needed here.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{Result, files};

/// With `--hostfile`, the second group's ports are the file's plus this.
const SECOND_GROUP: u16 = 1000;

/// Addresses on this machine for `ranks` ranks of `connections` connections, with ports from `draw`.
pub(crate) fn local_nodes(
    ranks: usize,
    connections: usize,
    draw: &mut dyn FnMut(usize) -> Result<Vec<u16>>,
) -> Result<Vec<Vec<String>>> {
    let ports = draw(ranks * connections)?;
    Ok(ports.chunks(connections).map(|of_rank| of_rank.iter().map(|p| format!("127.0.0.1:{p}")).collect()).collect())
}

/// Writes MLX's hostfile.
pub(crate) fn write_hostfile(folder: &Path, name: &str, nodes: &[Vec<String>]) -> Result<PathBuf> {
    files::write(folder.join(name), &json!(nodes).to_string())
}

/// Reads MLX's hostfile: only as far as is needed here, the ranks themselves validate it.
pub(super) fn read_hostfile(path: &Path) -> Result<Vec<Vec<String>>> {
    const SHAPE: &str = r#"expected each rank's addresses, such as [["10.0.0.1:29500"], ["10.0.0.2:29500"]]"#;
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
    use super::*;

    #[test]
    fn hostfiles_are_written_as_mlx_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let mut port = 6000;
        let nodes = local_nodes(2, 2, &mut |count| {
            port += 100;
            Ok((0..count as u16).map(|i| port + i).collect())
        });
        let path = write_hostfile(folder.path(), "hosts.json", &nodes.unwrap()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, r#"[["127.0.0.1:6100","127.0.0.1:6101"],["127.0.0.1:6102","127.0.0.1:6103"]]"#);
        assert_eq!(read_hostfile(&path).unwrap().len(), 2);
        let second = shifted(&[vec!["[fe80::1%en5]:5000".into()]]).unwrap();
        assert_eq!(second, [["[fe80::1%en5]:6000"]]);
        assert!(shifted(&[vec!["a:65000".into()]]).is_err());
        assert!(read_hostfile(folder.path()).is_err());
    }

    #[test]
    fn a_wrong_hostfile_is_named_with_the_shape_it_should_have() {
        let folder = tempfile::tempdir().unwrap();
        let hostfile = folder.path().join("hosts.json");
        let options = Options { hostfile: Some(hostfile.clone()), rank: Some(1), ..Options::quick(4, 1) };
        for text in [None, Some("10.0.0.1:29500"), Some("{}"), Some("[]"), Some("[[5000]]")] {
            text.inspect(|text| std::fs::write(&hostfile, text).unwrap());
            let error = options.validate().unwrap_err();
            assert!(error.starts_with(&format!("--hostfile {}: ", hostfile.display())), "{error}");
            assert!(error.contains(r#"[["10.0.0.1:29500"], "#) && !error.contains('\n'), "{error}");
        }
        std::fs::write(&hostfile, r#"[["10.0.0.1:29500"]]"#).unwrap();
        assert_eq!(options.validate().unwrap_err(), "--rank 1: the hostfile's ranks are 0 to 0");
        Options { rank: Some(0), ..options }.validate().unwrap();
    }
}
