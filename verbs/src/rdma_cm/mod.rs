//! Connecting by address and port, as `librdmacm` does: identifiers, event channels, and the connection manager that
//! speaks over queue pair 1 (IBA chapter 12, annex A11).

mod channel;
mod connect;
mod error;
mod event;
mod gsi;
mod id;
mod param;
mod ports;
mod queue;
mod record;
mod service;
mod state;

pub use channel::EventChannel;
pub use error::CmError;
pub use event::{CmEvent, CmEventType};
pub use id::CmId;
pub use param::{
    CmOption, CmOptions, ConnParam, MAX_INIT_DEPTH, MAX_RESP_RES, PeerParam, PortSpace, UDP_QKEY, UdParam,
};
pub use state::IdState;

pub(crate) use service::Service;
