//! `roce-bench`: runs the table of marks until its figures are reliable.

use apps::{out, stop};
use clap::Parser;
use std::process::ExitCode;
use tools::bench;
use tools::bench::cli::BenchCli;

fn main() -> ExitCode {
    let cli = BenchCli::parse();
    out::finish("roce-bench", stop::install().and_then(|()| bench::run(&cli)))
}
