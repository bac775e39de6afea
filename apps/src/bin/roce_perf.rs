//! `roce-perf`: measures RDMA, and the port below it.

use apps::cli::perf::{PerfCli, PerfCommand, RawCommand};
use apps::{check, out, session, stop, warnings};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = PerfCli::parse();
    warnings::show();
    let result = stop::install().and_then(|()| match &cli.command {
        None => check::run(cli.check.as_deref().unwrap_or_default(), cli.json),
        Some(PerfCommand::Server(args) | PerfCommand::Raw { command: RawCommand::Server(args) }) => {
            session::server::serve(args)
        }
        Some(PerfCommand::Client(args)) => session::client::run_client(args),
        Some(PerfCommand::Raw { command: RawCommand::Client(args) }) => session::client::run_raw(args),
    });
    out::finish("roce-perf", result)
}
