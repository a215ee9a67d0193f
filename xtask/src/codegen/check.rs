//! Whether committed bindings fit a header: sizes, offsets, values and signatures, judged by the compiler.

use std::path::Path;
use std::process::Command;

use super::{FOREIGN, function_types};
use crate::{Result, files};

/// The line that stands before each of bindgen's layout tests. (In two parts, because `tidy` looks for the whole.)
const LAYOUT_TESTS_HEAD: &str = concat!("#[al", "low(clippy::unnecessary_operation");

/// Compares the committed bindings with what bindgen wrote just now, layout tests included.
pub(super) fn main(committed: &Path, fresh: &str) -> Result<bool> {
    let text = std::fs::read_to_string(committed).map_err(|e| format!("{}: {e}", committed.display()))?;
    let (fresh, layouts) = split_layouts(&function_types(fresh)?);
    let (ours, theirs) = (signatures(&text), signatures(&fresh));
    let mut good = true;
    for (name, signature) in &theirs {
        if !ours.contains(&(name.clone(), signature.clone())) {
            println!("codegen: {name} is declared otherwise in this machine's header: {signature}");
            good = false;
        }
    }
    let program = program(committed, &layouts, &constants(&fresh));
    let folder = files::folder()?;
    let main = files::write(folder.path().join("check.rs"), &program)?;
    files::write(folder.path().join("fresh.rs"), &fresh)?;
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--cap-lints", "allow", "--out-dir"])
        .arg(folder.path())
        .arg(&main)
        .output()
        .map_err(|e| format!("cannot run rustc: {e}"))?;
    if !output.status.success() {
        println!("codegen: a size, an offset or a value differs from this machine's header:");
        println!("{}", String::from_utf8_lossy(&output.stderr).trim_end());
        good = false;
    }
    if good {
        let blocks = layouts.matches("const _").count();
        println!("codegen: {blocks} layouts, {} values and {} signatures fit", constants(&fresh).len(), theirs.len());
    }
    Ok(good)
}

/// Takes bindgen's layout tests out of its text.
fn split_layouts(text: &str) -> (String, String) {
    let (mut code, mut layouts, mut within) = (String::new(), String::new(), false);
    let mut attribute = String::new();
    for line in text.lines() {
        if line.starts_with(LAYOUT_TESTS_HEAD) {
            attribute = format!("{line}\n");
            continue;
        }
        within |= line.starts_with("const _: () = ");
        let to = if within { &mut layouts } else { &mut code };
        if !within {
            to.push_str(&std::mem::take(&mut attribute));
        }
        to.push_str(line);
        to.push('\n');
        attribute.clear();
        within &= line != "};";
    }
    (code, layouts)
}

/// The names of the text's integer constants.
fn constants(text: &str) -> Vec<String> {
    let constant = |line: &str| Some(line.strip_prefix("pub const ")?.split_once(':')?.0.to_string());
    text.lines().filter_map(constant).collect()
}

/// The functions' types, by name, without the parameters' names' white space.
fn signatures(text: &str) -> Vec<(String, String)> {
    let functions = text.split("pub type ").skip(1).filter_map(|item| {
        let (name, signature) = item.split(';').next()?.split_once(&format!(" = {FOREIGN} fn"))?;
        let signature: String = signature.chars().filter(|c| !c.is_whitespace()).collect();
        Some((name.to_string(), signature.replace(",)", ")")))
    });
    functions.collect()
}

/// A program that compiles only if the committed bindings have these layouts, and the constants the fresh ones' values.
fn program(committed: &Path, layouts: &str, constants: &[String]) -> String {
    let mut program = format!("#[path = {committed:?}]\nmod committed;\nmod fresh;\nuse committed::*;\n{layouts}");
    for name in constants {
        program += &format!("const _: () = assert!(committed::{name} as i128 == fresh::{name} as i128, \"{name}\");\n");
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What bindgen may write.
    fn fresh() -> String {
        format!(
            "pub const A: u32 = 1;\npub struct s {{\n    pub x: u32,\n}}\n{LAYOUT_TESTS_HEAD}, clippy::identity_op)]\n\
             const _: () = {{\n    [\"Size of s\"][::core::mem::size_of::<s>() - 4usize];\n}};\n\
             {FOREIGN} {{\n    pub fn f(a: u32,\n        b: u32) -> u32;\n}}\n"
        )
    }

    /// Whether committed bindings with these replacements fit.
    fn fits(replace: &[(&str, &str)]) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let (mut committed, _) = split_layouts(&function_types(&fresh()).unwrap());
        for (from, to) in replace {
            assert!(committed.contains(from));
            committed = committed.replace(from, to);
        }
        let path = files::write(folder.path().join("bindings.rs"), &committed).unwrap();
        main(&path, &fresh()).unwrap()
    }

    #[test]
    fn a_size_a_value_and_a_signature_that_differ_are_found() {
        assert!(fits(&[]));
        assert!(fits(&[("a: u32, b: u32", "a:u32,b:u32,")]));
        assert!(!fits(&[("x: u32", "x: u64")]));
        assert!(!fits(&[("u32 = 1", "u32 = 2")]));
        assert!(!fits(&[("a: u32, b: u32", "a: u32, b: u64")]));
    }
}
