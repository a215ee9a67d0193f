//! Reading one file that a variable names, as JSON: bounded in size and depth, and never waiting for a writer.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, ErrorKind, Excerpt, Origin, Shape, Spot};
use crate::vars;

/// The largest hostfile or device file that is read, in bytes (16 MiB). One for 10,000 ranks is a tenth of it.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// What a file held.
pub(crate) enum Content {
    /// White space alone, or nothing.
    Blank,
    /// A JSON value.
    Json(Value),
}

/// The path that `variable` has. An empty one is an error.
pub(crate) fn path(variable: &'static str, value: OsString, expected: &'static str) -> Result<PathBuf, Error> {
    if value.is_empty() {
        return Err(vars::empty(variable, expected));
    }
    Ok(PathBuf::from(value))
}

/// Reads and parses the file of `origin`, which should hold a `shape`. The launcher's own hostfile is told from it.
pub(crate) fn read(origin: &Origin, path: &Path, shape: Shape) -> Result<Content, Error> {
    let bytes = read_bytes(path, shape).map_err(|kind| Error::new(origin.clone(), Spot::Whole, kind))?;
    let text = str::from_utf8(&bytes).map_err(|error| {
        let kind = ErrorKind::NotUtf8 { offset: error.valid_up_to(), expected: shape };
        Error::new(origin.clone(), Spot::Whole, kind)
    })?;
    // MLX's JSON parser skips a byte order mark too.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.bytes().all(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')) {
        return Ok(Content::Blank);
    }
    let value = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let reason = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text).to_owned();
        Error::new(origin.clone(), Spot::Text { line, column }, ErrorKind::NotJson { reason, expected: shape })
    })?;
    if is_launchers_file(&value) {
        return Err(Error::new(origin.clone(), Spot::Whole, ErrorKind::LaunchersFile(shape)));
    }
    Ok(Content::Json(value))
}

fn read_bytes(path: &Path, shape: Shape) -> Result<Vec<u8>, ErrorKind> {
    let unreadable = |error: io::Error| ErrorKind::Unreadable { error: error.kind(), reason: error.to_string() };
    // Before opening: opening a pipe waits for its writer.
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(ErrorKind::NotAFile { found: "a directory" });
    }
    if !metadata.is_file() {
        return Err(ErrorKind::NotAFile { found: "a pipe, socket or device" });
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ErrorKind::TooLarge(shape));
    }
    Ok(bytes)
}

/// Whether this is what `mlx.launch --hostfile` reads (`Hostfile.from_file` in MLX's `_distributed_utils/common.py`): a
/// list of hosts, or an object that has one beside the backend and variables.
fn is_launchers_file(value: &Value) -> bool {
    let is_host = |host: &Value| {
        host.as_object().is_some_and(|host| ["ssh", "ips", "rdma"].iter().any(|key| host.contains_key(*key)))
    };
    match value {
        Value::Array(hosts) => hosts.iter().any(is_host),
        Value::Object(file) => file.get("hosts").is_some_and(Value::is_array),
        _ => false,
    }
}

/// What a JSON value is, for a message.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {}", Excerpt::new(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// The text of a JSON string, or `WrongType`.
pub(crate) fn string(value: Value, expected: Shape) -> Result<String, ErrorKind> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(ErrorKind::WrongType { found: describe(&other), expected }),
    }
}

/// The elements of a JSON list, or `WrongType`.
pub(crate) fn list(value: Value, expected: Shape) -> Result<Vec<Value>, ErrorKind> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(ErrorKind::WrongType { found: describe(&other), expected }),
    }
}
