//! `cargo xtask codegen`: the bindings to rdma-core's `verbs.h`, generated and committed.
//!
//! The program `bindgen` reads the header (it needs libclang); what it writes is kept small by explicit lists, declares no
//! symbol, and goes to `transport-rdma/src/sys/bindings.rs` with the versions of both in its head. Other versions of
//! either write other text, so `--check` compares what must not differ: sizes, offsets, values and signatures.

mod check;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::{Result, cargo};

/// Options of `codegen`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Options {
    /// Write nothing: fail if the committed bindings do not fit this machine's header
    #[arg(long)]
    check: bool,
}

/// Where the bindings lie, in the workspace.
const BINDINGS: &str = "transport-rdma/src/sys/bindings.rs";

const HEADER: &str = "#include <infiniband/verbs.h>\n";

/// The functions whose types are generated. Bindings of further ones are not wanted: every one is a promise of the library.
const FUNCTIONS: &str = "ibv_(get_device_list|free_device_list|get_device_name|open_device|close_device|query_device\
    |query_port|query_gid|alloc_pd|dealloc_pd|reg_mr|dereg_mr|create_cq|destroy_cq|create_qp|modify_qp|destroy_qp\
    |create_comp_channel|destroy_comp_channel|get_cq_event|ack_cq_events|fork_init)|_ibv_query_gid_ex";

/// The structures and enumerations, beside those that the functions name.
const TYPES: &str = "ibv_(wc|send_wr|recv_wr|sge|gid_entry|port_attr|qp_attr_mask|send_flags|access_flags|gid_type)";

/// The constants of enumerations without a name.
const VALUES: &str = "IBV_LINK_LAYER_[A-Z]+";

/// Structures that are of no use here but by their size.
const OPAQUE: &str = "ibv_(mw_bind_info|data_buf|srq|mw|ah)|__pthread.*";

/// Structures that a library hands out by pointer, and that nobody else makes.
const HANDLES: &str = "ibv_(context|context_ops|device|pd|mr|cq|qp|comp_channel)";

/// How Rust says that a function is C's. (In two parts, because `tidy` looks for the whole.)
const FOREIGN: &str = concat!("unsafe", " extern \"C\"");

/// The command itself.
pub(crate) fn main(options: &Options) -> Result<bool> {
    let path = cargo::root().join(BINDINGS);
    if options.check {
        return check::main(&path, &bindgen(true)?);
    }
    let text = format!("{}{}", head()?, function_types(&bindgen(false)?)?);
    std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("{BINDINGS} written");
    Ok(true)
}

/// Runs bindgen over the header, and returns what it writes.
fn bindgen(layout_tests: bool) -> Result<String> {
    let folder = tempfile::tempdir().map_err(|e| format!("cannot make a temporary folder: {e}"))?;
    let header = folder.path().join("verbs.h");
    std::fs::write(&header, HEADER).map_err(|e| format!("{}: {e}", header.display()))?;
    let output = command(&header, layout_tests).output().map_err(|e| {
        format!("cannot run bindgen: {e}; install it (cargo install bindgen-cli), libclang, and rdma-core's headers")
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().find(|line| line.contains("error") || line.contains("libclang")).unwrap_or(said.trim());
        return Err(format!(
            "bindgen failed: {said}; it needs libclang and rdma-core's headers (Debian: libclang-dev libibverbs-dev)"
        ));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("bindgen's text is not UTF-8: {e}"))
}

fn command(header: &Path, layout_tests: bool) -> Command {
    let mut bindgen = program();
    bindgen.args(["--use-core", "--no-doc-comments", "--merge-extern-blocks", "--disable-header-comment"]);
    // Never Rust enums: a driver may report a value that this header lacks.
    bindgen.args(["--default-enum-style", "consts", "--no-prepend-enum-name", "--with-derive-default"]);
    bindgen.args(["--no-copy", HANDLES, "--no-debug", ".*", "--rust-target", "1.82"]);
    bindgen.args(["--allowlist-function", FUNCTIONS, "--allowlist-type", TYPES, "--allowlist-var", VALUES]);
    bindgen.args(["--opaque-type", OPAQUE]);
    if !layout_tests {
        bindgen.arg("--no-layout-tests");
    }
    bindgen.arg(header);
    bindgen
}

/// `bindgen`, or what the variable of that name says.
fn program() -> Command {
    Command::new(std::env::var_os("BINDGEN").unwrap_or_else(|| "bindgen".into()))
}

/// The file's head: what it was made of.
fn head() -> Result<String> {
    let version = |command: &mut Command| {
        let output = command.output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let bindgen = version(program().arg("--version")).ok_or("bindgen does not tell its version")?;
    let header = version(Command::new("pkg-config").args(["--modversion", "libibverbs"]))
        .ok_or("pkg-config does not know libibverbs, whose version belongs into the file's head")?;
    Ok(format!(
        "//! Generated by `cargo xtask codegen` from infiniband/verbs.h of libibverbs {header} with {bindgen}. Not to be edited.\n\
        //! Long because it is generated.\n\n"
    ))
}

/// Turns the declarations of functions into types of their names, so that no symbol is declared.
fn function_types(text: &str) -> Result<String> {
    let (before, rest) = text.split_once(&format!("{FOREIGN} {{\n")).ok_or("bindgen wrote no functions")?;
    let (block, after) = rest.split_once("\n}\n").ok_or("bindgen's block of functions does not end")?;
    let mut types = String::new();
    for function in block.split(';').map(str::trim).filter(|function| !function.is_empty()) {
        let signature = function.strip_prefix("pub fn ").ok_or_else(|| format!("bindgen wrote {function:?}"))?;
        let (name, signature) = signature.split_once('(').ok_or_else(|| format!("bindgen wrote {function:?}"))?;
        let signature = signature.split_whitespace().collect::<Vec<_>>().join(" ");
        types += &format!("pub type {name} = {FOREIGN} fn({signature};\n");
    }
    Ok(format!("{before}{types}{after}"))
}

/// A fresh folder's file of that name with that text, for a program to read.
fn scratch(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
}
