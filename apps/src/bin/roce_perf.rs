//! `roce-perf`: measures RDMA, and the port below it.

use apps::cli::perf::{PerfCli, PerfCommand, RawCommand};
use apps::{out, session, stop, warnings};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = PerfCli::parse();
    warnings::show();
    let result = stop::install().and_then(|()| match &cli.command {
        PerfCommand::Server(args) | PerfCommand::Raw { command: RawCommand::Server(args) } => {
            session::server::serve(args)
        }
        PerfCommand::Client(args) => session::client::run_client(args),
        PerfCommand::Raw { command: RawCommand::Client(args) } => session::client::run_raw(args),
    });
    out::finish("roce-perf", result)
}
