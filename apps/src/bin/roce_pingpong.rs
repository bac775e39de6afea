//! `roce-pingpong`: bounces a message over one RC, UC or UD queue pair; its peer may be the stock `ibv_*_pingpong`.

use apps::cli::pingpong::PingpongCli;
use apps::{error, pingpong, stop, warnings};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = PingpongCli::parse();
    warnings::show();
    error::finish("roce-pingpong", stop::install().and_then(|()| pingpong::run(&cli)))
}
