//! `roce-interop`: this stack against Linux soft-RoCE in a guest; see `scripts/interop/run`.

use apps::{out, stop};
use clap::Parser;
use std::process::ExitCode;
use tools::interop;
use tools::interop::cli::InteropCli;

fn main() -> ExitCode {
    let cli = InteropCli::parse();
    out::finish("roce-interop", stop::install().and_then(|()| interop::main(&cli)))
}
