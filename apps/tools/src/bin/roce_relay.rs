//! `roce-relay`: a network that caps each flow, between two interfaces.

use apps::{out, stop};
use clap::Parser;
use std::process::ExitCode;
use tools::relay::{self, RelayCli};

fn main() -> ExitCode {
    let cli = RelayCli::parse();
    out::finish("roce-relay", stop::install().and_then(|()| relay::run(&cli)))
}
