//! Connection management (IBA chapter 12): turns received MADs and the calls of a program into MADs to send and events.
//!
//! One [`Machine`] serves all connections, listeners and SIDR exchanges of a device. It reads no clock, does no I/O and touches no queue
//! pair: `now` is passed in, MADs to send are fetched with [`Machine::poll_send`], and the parameters of a queue pair are returned as
//! [`QpParams`]. It belongs to the control plane and may allocate; [`Limits`] bound the memory that remote hosts can make it use. Called by
//! the `rdma_cm` layer of `verbs`, by the simulator and by tests.
//!
//! The state of a connection is in `conn`, the program's calls are in `calls`, received MADs in `receive` and `request`, timers in
//! `machine`, MADs that wait to be sent in `send`, message formats in [`message`].
//!
//! ```
//! use stack::cm::{Accept, Config, Connect, Event, Listen, Machine, Path, ServiceId};
//! use stack::id::{Gid, Qpn};
//! use stack::time::Instant;
//!
//! let now = Instant::ZERO;
//! let [mut a, mut b] = [1, 2].map(|guid| Machine::new(Config { ca_guid: guid, seed: guid, ..Config::default() }));
//! let path = Path { sgid: Gid::v4([10, 0, 0, 1]), dgid: Gid::v4([10, 0, 0, 2]), ..Path::default() };
//! let back = Path { sgid: path.dgid, dgid: path.sgid, ..path };
//! let service = ServiceId(7);
//! b.listen(&Listen { service_id: service, address: None, backlog: 1 })?;
//!
//! let active = a.connect(now, &Connect::new(service, path, Qpn::new(0x11)))?;
//! b.handle_mad(now, &back, &a.poll_send().expect("a REQ").mad);
//! let Some(Event::ConnectRequest { id: passive, .. }) = b.poll_event() else { panic!() };
//! let accept = Accept::new(Qpn::new(0x22));
//! let params = b.plan_accept(passive, &accept)?; // b's queue pair goes to RTS with these
//! b.accept(now, passive, &accept)?;
//! a.handle_mad(now, &path, &b.poll_send().expect("a REP").mad);
//! let Some(Event::ConnectResponse { response, .. }) = a.poll_event() else { panic!() };
//! assert_eq!(response.params.rq_psn, params.sq_psn); // and a's with those
//! a.confirm(now, active, b"")?;
//! b.handle_mad(now, &back, &a.poll_send().expect("an RTU").mad);
//! assert!(matches!(b.poll_event(), Some(Event::Established { .. })));
//! # Ok::<(), stack::cm::Error>(())
//! ```

#![forbid(unsafe_code)]

mod calls;
pub mod code;
mod config;
mod conn;
mod counter;
mod doubt;
mod error;
mod event;
mod fair;
mod field;
mod leave;
mod listen;
mod machine;
pub mod mad;
pub mod message;
mod pace;
mod random;
mod reason;
mod receive;
mod request;
mod send;
mod service;
mod share;
mod sidr;

pub use config::{Config, Limits, Timing};
pub use counter::{Counter, Counters};
pub use error::Error;
pub use event::{
    Accept, ConnId, Connect, Disconnect, Event, Listen, ListenId, Path, PeerAnswer, QpParams, Reject,
    Request, Response, Send, SidrId, SidrReply, SidrRequest, Transport,
};
pub use fair::Fair;
pub use machine::Machine;
pub use reason::{Reason, SidrStatus};
pub use service::{IpHeader, IpHeaderError, PortSpace, ServiceId};
pub use share::{Full, Shares};

/// Length of a MAD in bytes (IBA 13.4.2).
pub const MAD_LEN: usize = 256;
/// The Q_Key of every queue pair 1 (IBA 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;
/// The Q_Key of the datagram services of `rdma_cm`.
pub const RDMA_UDP_QKEY: u32 = 0x0123_4567;
