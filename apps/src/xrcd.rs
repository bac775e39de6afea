//! `roce-xrcd`: owns the targets of an XRC domain that processes share.

use crate::cli::xrcd::{LINGER, XrcdCli, linger};
use crate::error::{AppError, Result};
use std::time::Duration;
use verbs::port::PortSpec;
use verbs::{Context, DeviceConfig, Drive, XrcdOwner};

/// Default of `--linger`.
const USUAL_LINGER: Duration = Duration::from_secs(10);

/// Queue pairs of the device: a target takes one, and one more for each process that receives by it.
const QPS: usize = 65_536;

/// Owns the domain until no process has needed it for a while, or another process owns it already.
///
/// # Errors
/// The port is not one that processes share, or cannot be opened; the device fails.
pub fn run(cli: &XrcdCli) -> Result<()> {
    if !matches!(cli.port, PortSpec::Host { .. }) {
        return Err(AppError::Usage(format!(
            "port {} does not join processes: name host, or host:ADDR,...",
            cli.port
        )));
    }
    let linger = match (cli.linger, std::env::var(LINGER)) {
        (Some(given), _) => given,
        (None, Ok(text)) => linger(&text).map_err(|why| AppError::Usage(format!("{LINGER}: {why}")))?,
        (None, Err(_)) => USUAL_LINGER,
    };
    let failed = |error: verbs::VerbsError| AppError::Setup(error.to_string());
    // Before the device is opened: members wait for the owner, and a second owner must open no device.
    let Some(owner) = XrcdOwner::new(&cli.domain).map_err(failed)? else {
        crate::out::note!("roce-xrcd: another process owns the XRC domain {} already", cli.domain);
        return Ok(());
    };
    let config = DeviceConfig::new(cli.port.clone()).drive(Drive::Caller).qps_per_shard(QPS);
    let context = Context::open(config).map_err(failed)?;
    owner.serve(&context, linger).map_err(failed)
}
