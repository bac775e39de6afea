//! `roce-relay`: forwards packets between two interfaces and limits the rate of each flow.

use apps::{out, stop};
use clap::Parser;
use std::process::ExitCode;
use tools::relay::{self, RelayCli};

fn main() -> ExitCode {
    let cli = RelayCli::parse();
    out::finish("roce-relay", stop::install().and_then(|()| relay::run(&cli)))
}
