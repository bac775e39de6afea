//! Connection management: turns MADs of queue pair 1 and the calls of a program into MADs and events (IBA chapter 12).
//!
//! One [`Machine`] serves all connections, listeners and SIDR exchanges of a device. It reads no clock, does no I/O and
//! touches no queue pair: `now` is passed in, MADs are fetched with [`Machine::poll_send`], what a queue pair needs
//! comes as [`QpParams`]. It is control plane and may allocate; what strangers can make it hold is bounded by
//! [`Limits`]. Called by the `rdma_cm` layer of `verbs`, by the simulator and by tests.

#![forbid(unsafe_code)]

mod calls;
pub mod code;
mod config;
mod conn;
mod counter;
mod error;
mod event;
mod field;
mod listen;
mod machine;
pub mod mad;
pub mod message;
mod random;
mod reason;
mod receive;
mod service;
mod sidr;

pub use config::{Config, Limits, Timing};
pub use counter::{Counter, Counters};
pub use error::Error;
pub use event::{
    Accept, ConnId, Connect, Disconnect, Event, Listen, ListenId, Path, QpParams, Reject, Request, Response,
    Send, SidrId, SidrReply, SidrRequest, Transport,
};
pub use machine::Machine;
pub use reason::{Reason, SidrStatus};
pub use service::{IpHeader, IpHeaderError, PortSpace, ServiceId};

/// Bytes of a MAD (IBA 13.4.2).
pub const MAD_LEN: usize = 256;
/// The Q_Key of every queue pair 1 (IBA 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;
/// The Q_Key of datagram services of `rdma_cm`.
pub const RDMA_UDP_QKEY: u32 = 0x0123_4567;
