//! `roce-interop`: this stack against Linux soft-RoCE in a guest; see `scripts/interop/run`.

use apps::cli::interop::InteropCli;
use apps::{error, interop, stop};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = InteropCli::parse();
    error::finish("roce-interop", stop::install().and_then(|()| interop::main(&cli)))
}
