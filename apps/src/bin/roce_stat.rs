//! `roce-stat`: watches running stacks.

use apps::cli::stat::StatCli;
use apps::{out, stat, stop};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = StatCli::parse();
    out::finish("roce-stat", stop::install().and_then(|()| stat::run(&cli)))
}
