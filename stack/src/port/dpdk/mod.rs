//! Turns DPDK devices into ports. Never configures what a port does not need, never looks into frames. Called by
//! [`PortSpec::open`](super::PortSpec::open) and [`PortSpec::open_lazy`](super::PortSpec::open_lazy).
//!
//! - DPDK's environment starts with the first port whose device is opened, on a thread of its own (`eal.rs`), where all control
//!   steps run. It starts without devices, which are added later, except for a PCI device of that first port.
//! - Where there is a Linux interface below, the port follows it (`iface.rs`): while that is down, or set to a lower MTU,
//!   what cannot pass is dropped and counted before the driver takes it.

mod drivers;
mod eal;
mod iface;
mod open;
mod port;
mod queue;
mod shared;

pub use eal::{EalOptions, configure, started};
pub use open::ring_pair;
pub(super) use open::{open, open_lazy};
