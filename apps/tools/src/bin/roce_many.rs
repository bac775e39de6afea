//! `roce-many`: measures what many processes of a host cost each other.

use apps::out;
use clap::Parser;
use std::process::ExitCode;
use tools::many;
use tools::many::cli::ManyCli;

fn main() -> ExitCode {
    let cli = ManyCli::parse();
    out::finish("roce-many", many::run(&cli))
}
