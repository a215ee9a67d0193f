//! Running cargo, with the flags that this workspace needs.
//!
//! Everything builds with the profile `ci`, so that nuvec-core is compiled once for all of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Result;

/// The workspace's folder.
pub(crate) fn root() -> PathBuf {
    // Cargo sets the variable at run time; a binary started by hand falls back to where it was built.
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    manifest.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// `cargo`, to be run in the workspace's folder.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args(arguments).stdin(Stdio::null());
    cargo
}

/// Runs a command that prints for itself; `Ok(false)` if it failed.
pub(crate) fn run(command: &mut Command) -> Result<bool> {
    let status = command.status().map_err(|e| format!("cannot run {}: {e}", command.get_program().display()))?;
    Ok(status.success())
}

/// The flag that cargo needs to build the facade with a compiler older than the one that it declares, and the line
/// that says so.
pub(crate) fn rust_version_flag() -> Result<Option<(&'static str, String)>> {
    let manifest = root().join("nuvec-distributed/Cargo.toml");
    let text = std::fs::read_to_string(&manifest).map_err(|e| format!("{}: {e}", manifest.display()))?;
    let Some(needed) = declared_version(&text) else { return Ok(None) };
    let rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .arg("--version")
        .current_dir(root())
        .output()
        .map_err(|e| format!("cannot run rustc: {e}"))?;
    let rustc = String::from_utf8_lossy(&rustc.stdout).trim().to_string();
    let Some(found) = rustc.split(' ').nth(1).and_then(version) else {
        return Err(format!("rustc says {rustc:?}, which is no version"));
    };
    let older = found < needed;
    let line = format!(
        "note: nuvec-core asks for Rust {}.{}, this is {}.{}: building with --ignore-rust-version",
        needed.0, needed.1, found.0, found.1
    );
    Ok(older.then_some(("--ignore-rust-version", line)))
}

/// The `rust-version` of a manifest, as major and minor.
fn declared_version(manifest: &str) -> Option<(u32, u32)> {
    let value = manifest.lines().find_map(|line| line.strip_prefix("rust-version")?.trim_start().strip_prefix('='))?;
    version(value.split('"').nth(1)?)
}

/// `1.95.0-nightly` as (1, 95).
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Runs a cargo command that builds the facade, and returns the executables that it made, by target name. The build's
/// own messages go to standard error.
pub(crate) fn build(arguments: &[&str]) -> Result<Vec<Executable>> {
    let mut command = cargo(arguments);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    if let Some((flag, line)) = rust_version_flag()? {
        eprintln!("{line}");
        command.arg(flag);
    }
    let output = command.output().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo {} failed", arguments.join(" ")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(executable).collect())
}

/// A program that cargo built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Executable {
    /// The target's name.
    pub(crate) name: String,
    /// Whether it is a test harness.
    pub(crate) test: bool,
    /// Where it lies.
    pub(crate) path: PathBuf,
}

/// The executable that a line of cargo's JSON messages tells of.
fn executable(line: &str) -> Option<Executable> {
    let message: Value = serde_json::from_str(line).ok()?;
    Some(Executable {
        name: message["target"]["name"].as_str()?.to_string(),
        test: message["profile"]["test"].as_bool()?,
        path: message["executable"].as_str()?.into(),
    })
}

/// The program `name` among `executables`.
pub(crate) fn program(executables: &[Executable], name: &str) -> Result<PathBuf> {
    let program = executables.iter().find(|e| e.name == name && !e.test);
    program.map(|e| e.path.clone()).ok_or_else(|| format!("cargo built no program {name:?}"))
}

/// Builds the rank binary alone, and returns where it is.
pub(crate) fn build_rank() -> Result<PathBuf> {
    program(&build(&["build", "--profile", "ci", "-p", "nuvec-distributed-tests", "--bin", "rank"])?, "rank")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_declared_version_is_read_and_compared_by_number() {
        assert_eq!(declared_version("[package]\nrust-version = \"1.99\" # why\n"), Some((1, 99)));
        assert_eq!(declared_version("rust-version.workspace = true\n"), None);
        assert!(version("1.100.0") > version("1.99"));
        assert_eq!(version("nightly"), None);
    }

    #[test]
    fn executables_are_found_among_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"rank"},"profile":{"test":false},"executable":"/t/rank"}"#;
        let rank = Executable { name: "rank".into(), test: false, path: "/t/rank".into() };
        assert_eq!(executable(line), Some(rank.clone()));
        assert_eq!(executable(&line.replace("\"/t/rank\"", "null")), None);
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#), None);
        let harness = Executable { test: true, path: "/t/rank-tests".into(), ..rank.clone() };
        assert_eq!(program(&[harness.clone(), rank], "rank"), Ok("/t/rank".into()));
        assert!(program(&[harness], "rank").is_err());
    }
}
