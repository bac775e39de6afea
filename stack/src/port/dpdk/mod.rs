//! Turns DPDK devices into ports. Never configures what a port does not need, never looks into frames. Called by
//! [`PortSpec::open`](super::PortSpec::open) and [`PortSpec::open_lazy`](super::PortSpec::open_lazy).
//!
//! - DPDK's environment starts with the first port whose device is opened, on a thread of its own (`eal.rs`) and with
//!   no device (but a PCI one where that comes first); devices are added later. Control steps run there.
//! - Each queue has a *gate*: a burst goes through it, and whoever stops the device closes it first. A
//!   burst through a closed gate moves nothing. So a device can be restarted under running shards, and the
//!   unmapping of a memif whose peer died waits for the burst that runs.
//! - Where there is a Linux interface below, the port follows it (`iface.rs`): while that is down, or set to a lower MTU,
//!   what cannot pass is dropped and counted before the driver takes it.
//! - Stopping and starting a memif happens on DPDK's interrupt thread, where its driver's own handlers run: the
//!   driver does not lock them against each other.

mod eal;
mod iface;
mod open;
mod port;
mod queue;

pub use eal::{EalOptions, configure, started};
pub(super) use open::{open, open_lazy};
