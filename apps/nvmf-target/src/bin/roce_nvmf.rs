//! `roce-nvmf`: an NVMe over Fabrics target over RDMA.

use std::process::ExitCode;

use apps::warnings::Log;
use apps::{out, stop, warnings};
use clap::Parser;
use nvmf_target::cli::{TargetCli, TargetCommand};
use nvmf_target::{manage, program};

fn main() -> ExitCode {
    let cli = TargetCli::parse();
    match &cli.command {
        TargetCommand::Serve(args) => warnings::log(Log { level: args.log, time: true, json: args.log_json }),
        _ => warnings::show(),
    }
    let result = match &cli.command {
        TargetCommand::Serve(args) => stop::install().and_then(|()| program::serve(args)),
        TargetCommand::Check(args) => program::check(args),
        TargetCommand::Namespace(command) => manage::namespace(command),
        TargetCommand::Host(command) => manage::host(command),
        TargetCommand::List(args) => manage::list(args),
    };
    out::finish("roce-nvmf", result)
}
