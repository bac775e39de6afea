//! Makes ports of DPDK devices. Configures only what a port needs, and never looks into frames. Called by
//! [`PortSpec::open`](super::PortSpec::open) and [`PortSpec::open_lazy`](super::PortSpec::open_lazy).
//!
//! - DPDK's environment (EAL) starts with the first port whose device is opened, on a thread of its own (`eal.rs`), where all control steps
//!   run. It starts without devices, except for a PCI device of that first port; the others are hot-plugged.
//! - If there is a Linux interface below, the port follows it (`iface.rs`): while it is down, or its MTU is lower, frames that cannot pass
//!   are dropped and counted before the driver gets them.

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
