//! `cargo xtask ci`: what a change must pass.

use std::time::Instant;

use crate::{Result, cargo, test, tidy};

/// The command itself. Every step runs, whatever the others came to, so that one run shows all there is to mend.
pub(crate) fn main() -> Result<bool> {
    let flag = cargo::rust_version_flag()?;
    if let Some((_, line)) = &flag {
        eprintln!("{line}");
    }
    let flag = flag.map(|(flag, _)| flag);
    let mut failed = Vec::new();
    let mut step = |name: &'static str, work: &mut dyn FnMut() -> Result<bool>| {
        println!("=== {name}");
        let start = Instant::now();
        let good = work().unwrap_or_else(|e| {
            eprintln!("error: {e}");
            false
        });
        println!("=== {name}: {} ({:.1} s)", if good { "passed" } else { "FAILED" }, start.elapsed().as_secs_f64());
        if !good {
            failed.push(name);
        }
    };
    step("formatting", &mut || cargo::run(&mut cargo::cargo(&["fmt", "--all", "--check"])));
    step("tidy", &mut || tidy::main(&tidy::Options::default()));
    step("clippy", &mut || {
        let mut clippy = cargo::cargo(&["clippy", "--profile", "ci", "--workspace", "--all-targets"]);
        cargo::run(clippy.args(flag).args(["--", "-D", "warnings"]))
    });
    // With every feature, so that what is behind one is checked too.
    step("documentation", &mut || {
        let mut doc = cargo::cargo(&["doc", "--profile", "ci", "--workspace", "--no-deps", "--all-features"]);
        cargo::run(doc.args(flag).env("RUSTDOCFLAGS", "-D warnings"))
    });
    // Nothing else builds what is behind this feature.
    step("bench --plot", &mut || {
        cargo::run(&mut cargo::cargo(&["test", "--profile", "ci", "-p", "xtask", "--features", "plot", "bench::plot"]))
    });
    // The rest of the workspace turns the feature on.
    step("the facade without JACCL", &mut || {
        let mut test = cargo::cargo(&["test", "--profile", "ci", "-p", "nuvec-distributed@0.6.0", "--lib"]);
        cargo::run(test.args(flag))
    });
    // What a user types first, without any flag of ours.
    step("plain cargo build", &mut || cargo::run(&mut cargo::cargo(&["build"])));
    step("test --all", &mut || test::main(&test::Options { all: true, exhaustive: false }));
    if !failed.is_empty() {
        println!("ci: failed: {}", failed.join(", "));
    }
    Ok(failed.is_empty())
}
