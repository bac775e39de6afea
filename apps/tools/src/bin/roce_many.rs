//! `roce-many`: many processes of one host, and what they cost each other.

use apps::out;
use clap::Parser;
use std::process::ExitCode;
use tools::many;
use tools::many::cli::ManyCli;

fn main() -> ExitCode {
    let cli = ManyCli::parse();
    out::finish("roce-many", many::run(&cli))
}
