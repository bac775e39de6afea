//! Moves frames between memory and a link: DPDK devices, memory shared with another process, the host's UDP sockets, and links for tests.
//!
//! A port never blocks, and reads no more of a frame than its Ethernet addresses, except `udp`, whose headers the kernel adds and removes.
//! `device` opens ports; each shard owns one [`PortQueue`] and moves bursts through it. A port may consist of several links ([`Route`]).

mod capture;
mod counters;
#[cfg(feature = "dpdk")]
pub mod dpdk;
mod error;
mod farewell;
pub mod fault;
mod for_guests;
pub mod frame;
pub mod host;
mod info;
mod layer;
mod lazy;
#[cfg(test)]
pub(crate) mod limited;
mod loopback;
mod memif;
mod netdevice;
mod open;
mod pair;
mod peers;
mod share;
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
pub mod socket_file;
mod spec;
mod stall;
mod stock;
mod taken;
mod traits;
mod udp;
mod unix;

pub use capture::capture;
pub use error::PortError;
pub use farewell::{Farewells, Ready};
pub use fault::fault;
pub use frame::{Frame, HeapPool, RxBurst, TxBurst};
pub use info::{L2_OVERHEAD, PortInfo, PortOptions, PortStats};
pub use layer::{PortLayer, QueueLayer};
pub use netdevice::interface_feature;
pub use pair::{Steering, pair, pair_with};
pub use spec::{HostAddress, MemifRole, PortSpec};
pub use stall::Stall;
pub use traits::{
    Armed, AtOnce, Build, Destination, Farewell, FlowKind, Host, NoRoute, Numbers, Port, PortQueue, Route,
    Routes, Stalled,
};
pub use udp::sorting;
