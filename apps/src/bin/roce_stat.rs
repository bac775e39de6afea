//! `roce-stat`: watches running stacks.

use apps::cli::stat::StatCli;
use apps::{error, stat, stop};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = StatCli::parse();
    error::finish("roce-stat", stop::install().and_then(|()| stat::run(&cli)))
}
