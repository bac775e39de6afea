//! The entry point of the control plane: opens a port, gives its queues to shards, and polls the shards or lets the program do so.
//!
//! Creates the objects that `verbs` wraps: protection domains, memory regions, completion queues, queue pairs. Never touches packets or
//! user memory. Called by `verbs`. This file only exports what `verbs` and programs above it may use of the stack. `claim` is the core:
//! shards, turns, control calls. `handle` has the [`Device`] above it; some of its calls have files of their own. Each object is in a
//! file with its constructor.
//!
//! # Who owns a shard
//!
//! A claim ([`sync::claim`](crate::sync::claim)) protects each shard: the one thread that holds it owns the shard. A thread that polls the
//! shard takes the claim for one turn, or for many in a row, and never waits for it. A control call announces itself, which keeps polling
//! threads out, and waits for the current turn to end. No thread that holds a shard waits for another shard, so control calls cannot
//! deadlock, on whichever thread they are made.
//!
//! # Lifetime
//!
//! Objects keep their parents alive ([`QpCore`] its completion queues and domain, and each of those the [`Device`]), so handles can be
//! dropped in any order. Threads of the device keep the shards alive, not the device. When the last handle is dropped, they are stopped,
//! and remaining frames are sent for at most 100 ms.

#![deny(unsafe_code)] // except for one call in `claim`

mod addresses;
mod ah;
mod channel;
mod claim;
mod clock;
mod cm_attr;
mod config;
mod contention;
mod counters;
mod cq;
mod drain;
mod drive;
mod error;
mod events;
mod exit_message;
mod groups;
mod handle;
mod host;
mod idle_polls;
mod inside_turn;
mod inspect;
mod limits;
mod mcast;
mod mr;
mod mw;
mod numbers;
mod pace;
mod pd;
mod peer_check;
mod peer_paths;
mod poller;
mod posting;
mod qp;
mod qp_init;
mod qp_number;
mod quota;
mod random;
mod service;
mod sleep;
mod srq;
mod srq_numbers;
pub mod stats;
mod td;
mod upkeep;
mod wait;
mod xrc_domain;
mod xrc_qp;
mod xrc_relay;
mod xrcd;

pub use ah::AhCore;
pub use channel::ChannelCore;
pub use clock::Clock;
pub use cm_attr::{cm_init, cm_rtr, cm_rts};
pub use config::{DeviceConfig, Drive, PortSource};
pub use cq::{CqCore, CqInit, CqTap};
pub use error::{DeviceError, OpenError};
pub use handle::Device;
pub use inside_turn::not_inside_turn;
pub use limits::{
    AtomicCap, DEFAULT_PKEY, DeviceAttr, DeviceCapFlags, GidEntry, GidType, LINK_LAYER_ETHERNET, PortAttr,
    PortCapFlags, PortPhysState, PortState, QPF_GRH_REQUIRED,
};
pub use mr::MrCore;
pub use mw::MwCore;
pub use pd::PdCore;
pub use peer_check::PeerCheck;
pub use peer_paths::PeerPath;
pub use posting::{Batch, Full, GateClosed, Poster, RecvPoster, SendPoster, Side};
pub use qp::QpCore;
pub use qp_init::QpInit;
pub use service::Service;
pub use srq::{SrqAttr, SrqAttrMask, SrqBatch, SrqCore, SrqPoster, XrcSrqInit};
pub use td::TdCore;
pub use xrc_domain::XrcdInitAttr;
pub use xrc_relay::RelayedTarget;
pub use xrcd::XrcdCore;

/// Connection management (CM).
pub use crate::cm;
/// Limits of the stack.
pub use crate::config as limit;
pub use crate::id::{Gid, Mac, Mtu, PdId, Psn, QpState, QpType, Qpn};
pub use crate::mem::{Access, MemError, MwType, UserMemory, inc_rkey};
pub use crate::net::{NetConfigError, NoHost};
pub use crate::port;
pub use crate::proto::address::{self, AvError, GSI_QKEY, UdAddress};
pub use crate::proto::attr::{AhAttr, AttrMask, GlobalRoute, PathMigState, QpAttr, QpCap};
pub use crate::proto::congestion::Controller as CongestionController;
pub use crate::proto::recovery::Scheme as RecoveryScheme;
pub use crate::proto::requester::Policies;
pub use crate::proto::state::{ModifyError, required, state_name, type_name};
pub use crate::proto::status::{AsyncEvent, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};
pub use crate::proto::vendor::VendorErr;
pub use crate::proto::wqe::{self, Sge};
pub use crate::racy;
pub use crate::registry::{Beside, Binding, Claim, Clash, Family, Registry};
pub use crate::shard::counters::{Counter, CounterSnapshot};
pub use crate::shard::{CqState, DrainKind, DrainMark, Event, EventElement, PeerState, Turn};
pub use crate::sync::alarm::Alarm;
pub use crate::sync::eventfd::EventFd;
pub use crate::sync::exclusive::{Exclusive, Unavailable};
pub use crate::sync::huge::collapse_slice;
pub use crate::sync::lock::lock;
pub use crate::sync::prefetch::{bytes as prefetch_bytes, line as prefetch_line};
pub use crate::time::Instant;
pub use crate::wire::Discard;
