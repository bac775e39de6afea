//! The device on the link to the guest.

use super::cli::LinkArgs;
use apps::error::{AppError, Result};
use verbs::port::fault::Plan;
use verbs::port::{self, PortOptions};
use verbs::{Context, DeviceConfig, Drive, PortSource};

/// Opens the port, with the given faults in both directions and their seed, and on it a device that has the address of this network.
///
/// # Errors
/// Errors of the port and the device.
pub(super) fn open_port(link: &LinkArgs, faults: Option<(Plan, u64)>, seed: Option<u64>) -> Result<Context> {
    let options =
        PortOptions { mtu: usize::from(link.link_mtu), mac: Some(link.mac), ..PortOptions::default() };
    let mut port = link.port.open(&options).map_err(|e| AppError::Setup(e.to_string()))?;
    if let Some(path) = &link.pcap {
        port = port::capture(port, path).map_err(|e| AppError::Setup(format!("--pcap: {e}")))?;
    }
    if let Some((plan, seed)) = faults {
        port = port::fault(port, plan, plan, seed);
    }
    let (ours, _, vlan) = link.net.addresses();
    let config = DeviceConfig::new(PortSource::Opened(port))
        .addrs(vec![ours])
        .vlan(vlan)
        .drive(Drive::Caller)
        .seed(seed);
    let context = Context::open(config)?;
    context.start()?;
    Ok(context)
}
