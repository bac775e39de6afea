//! `roce-bench`: runs the table of marks until its figures are reliable.

use apps::cli::bench::BenchCli;
use apps::{bench, error, stop};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = BenchCli::parse();
    error::finish("roce-bench", stop::install().and_then(|()| bench::run(&cli)))
}
