//! `roce-xrcd`: owns the targets of an XRC domain that processes share.

use apps::cli::xrcd::XrcdCli;
use apps::{out, xrcd};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    out::finish("roce-xrcd", xrcd::run(&XrcdCli::parse()))
}
