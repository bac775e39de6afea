//! `roce-run`: runs a program that was written for RDMA hardware on this stack.

use apps::cli::run::RunCli;
use apps::{out, run};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = RunCli::parse();
    out::finish("roce-run", run::run(&cli))
}
