//! `cargo xtask`: the workspace's commands.
//!
//! They build and start programs, and depend on none of the workspace's crates. What ranks do is the rank binary's
//! business (package `nuvec-distributed-tests`); here they are started, watched, ended, and their reports are shown.

mod bench;
mod cargo;
mod ci;
mod codegen;
mod console;
mod files;
mod launch;
mod namespaces;
mod ports;
mod ranks;
mod rdma_vm;
mod ring_test;
mod signals;
mod test;
mod tidy;
mod units;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// What a command returns: an error is one line for the user.
type Result<T, E = String> = std::result::Result<T, E>;

/// The commands of nuvec's distributed workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Debug, Subcommand)]
enum Commands {
    /// Start a ring of ranks on this machine, check every collective, and print latencies and bandwidths
    RingTest(Box<ring_test::Options>),
    /// Start N ranks of any program on this machine with MLX's launch environment
    Launch(launch::Options),
    /// Measure the collectives and the reduction kernels on this machine, beside MLX's ring and Open MPI if asked
    Bench(Box<bench::Options>),
    /// Run a command, or the RDMA tests, in a virtual machine that has Soft-RoCE devices
    RdmaVm(rdma_vm::Options),
    /// Run every test that passes on this machine, and say what the ones left out need
    Test(test::Options),
    /// Check the rules that the workspace's text must keep (ARCHITECTURE.md's invariants)
    Tidy(tidy::Options),
    /// Generate the bindings to rdma-core's verbs.h, or check that the committed ones fit this machine's
    Codegen(codegen::Options),
    /// Run what a change must pass: formatting, clippy, documentation, tidy, then `test --all`
    Ci,
}

fn main() -> ExitCode {
    let code = run();
    match signals::received() {
        Some(signal) => {
            eprintln!("{}", signals::describe(signal));
            // As a shell has it.
            ExitCode::from(128 + signal)
        }
        None => code,
    }
}

fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Commands::RingTest(options) => ring_test::main(&options),
        Commands::Launch(options) => return launch::main(&options),
        Commands::Bench(options) => bench::main(&options),
        Commands::RdmaVm(options) => return rdma_vm::main(&options),
        Commands::Test(options) => test::main(&options),
        Commands::Tidy(options) => tidy::main(&options),
        Commands::Codegen(options) => codegen::main(&options),
        Commands::Ci => ci::main(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The command line's grammar, for checking the commands that the documentation shows.
fn grammar() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_grammar_is_consistent() {
        super::grammar().debug_assert();
    }
}
