//! `roce-nvmf-perf`: an NVMe over Fabrics host that measures a target.

use std::process::ExitCode;

use apps::{out, stop, warnings};
use clap::Parser;
use nvmf_target::cli::{PerfCli, PerfCommand};
use nvmf_target::program;

fn main() -> ExitCode {
    let cli = PerfCli::parse();
    warnings::show();
    let result = stop::install().and_then(|()| match &cli.command {
        PerfCommand::Discover(args) => program::discover(args),
        PerfCommand::Identify(args) => program::identify(args),
        PerfCommand::Run(args) => program::run(args),
        PerfCommand::Overhead(args) => program::overhead(args),
    });
    out::finish("roce-nvmf-perf", result)
}
