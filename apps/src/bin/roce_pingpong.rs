//! `roce-pingpong`: bounces a message over one RC, UC or UD queue pair; its peer may be the stock `ibv_*_pingpong`.

use apps::cli::pingpong::PingpongCli;
use apps::{out, pingpong, stop, warnings};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = PingpongCli::parse();
    warnings::show();
    out::finish("roce-pingpong", stop::install().and_then(|()| pingpong::run(&cli)))
}
