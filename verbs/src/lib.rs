//! RDMA verbs in Rust, over a userspace RoCEv2 stack.
//!
//! The objects and names are those of libibverbs, one object per file: `ibv_post_send` is [`Qp::post_send`]. A program opens
//! a [`Context`], allocates a [`Pd`], registers memory as [`Mr`], creates a [`Cq`] and a [`Qp`], connects the queue pair
//! ([`Qp::connect_rc`], [`Qp::connect_uc`]), posts [`SendWr`] and [`RecvWr`], and polls [`Wc`]. Datagrams need no connection
//! ([`Qp::activate_ud`]), but an address handle ([`Ah`]) for each peer.
//!
//! - Every object is `Send + Sync`, and its methods take `&self`. Each queue has a lock, which costs only a few plain loads and stores if
//!   one thread alone uses the queue. To use a queue without a lock, split a handle off it once: [`SendQueue`], [`RecvQueue`],
//!   [`CqPoller`].
//! - Objects keep their parents alive, so they may be dropped in any order. Explicit destruction of an object that is still in use fails
//!   with `EBUSY` and gives the object back.
//! - A destroyed object cannot be named any more: its use is a compile error instead of `EINVAL` at run time.
//!
//!   ```compile_fail,E0382
//!   # use verbs::{Context, DeviceConfig, QpInitAttr, SendWr, VerbsError};
//!   # fn main() -> Result<(), VerbsError> {
//!   # let context = Context::open(DeviceConfig::loopback())?;
//!   # let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
//!   let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq))?;
//!   qp.destroy().map_err(|(e, _)| e)?;
//!   qp.post_send([SendWr::send(1, &[])]).ok();
//!   # Ok(())
//!   # }
//!   ```
//! - Registered memory is never lent as a slice, because a peer may write to it at any moment. [`Mr::read`] and [`Mr::write`] copy instead.
//! - The device's work is done by *shards*, which are polled. [`Drive`], chosen at [`Context::open`], determines which threads poll them.
//!   One poll of a shard is a *turn*. Control calls from inside a turn, such as from a port or a `tracing` subscriber, fail with `EDEADLK`.
//!
//! ```
//! use verbs::{Access, Context, DeviceConfig, QpInitAttr, RcOptions, RecvWr, SendWr, Wc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A queue pair that is connected to itself, over the loopback port.
//! let context = Context::open(DeviceConfig::loopback())?;
//! let pd = context.alloc_pd()?;
//! let mr = pd.reg_mr(4096, Access::LOCAL_WRITE)?;
//! let cq = context.create_cq(16)?;
//! let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq))?;
//! qp.connect_rc(&qp.endpoint(1)?, &RcOptions::default())?;
//!
//! mr.write(0, b"hello")?;
//! qp.post_recv(&[RecvWr::new(1, &[mr.sge(1024..2048)?])])?;
//! qp.post_send(&[SendWr::send(2, &[mr.sge(0..5)?]).signaled()])?;
//! let mut done = [Wc::default(); 2];
//! let mut n = 0;
//! while n < 2 {
//!     n += cq.poll(&mut done[n..])?;
//! }
//! let mut text = [0; 5];
//! mr.read(1024, &mut text)?;
//! assert_eq!(&text, b"hello");
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod ah;
mod async_event;
mod attr;
mod comp_channel;
mod connect;
mod context;
mod cq;
mod cq_ex;
mod device_info;
mod drain;
pub mod errno;
mod error;
mod flags;
mod hint;
mod local_bytes;
pub mod log;
mod mcast;
mod memory;
mod mr;
mod mr_file;
mod mw;
mod parent_domain;
mod pd;
mod peer_check;
mod populate;
mod post;
mod qp;
pub mod rdma_cm;
mod reactor;
mod srq;
mod wc;
mod wr;
mod wr_ex;
mod xrcd;
mod xrcd_owner;

pub use ah::{Ah, GRH_LEN, ah_attr_to};
pub use async_event::AsyncEventGuard;
pub use attr::{attr_init, attr_init_ud, attr_rtr, attr_rtr_uc, attr_rts, attr_rts_uc, attr_rts_ud, attr_to};
pub use comp_channel::{CompChannel, CqEvent};
pub use connect::{ParseEndpointError, RcEndpoint, RcOptions};
pub use context::Context;
pub use cq::{Cq, CqPoller};
pub use cq_ex::{CqExPoll, CqInitAttr};
pub use device_info::DeviceInfo;
pub use drain::Drain;
pub use error::{BindError, PostError, PostErrorKind, VerbsError};
pub use flags::{CqWcFlags, FlushLevel, FlushPlacement, SendOpsFlags, XrcdOflags};
pub use hint::{huge_pages, prefetch};
pub use local_bytes::LocalBytes;
pub use mr::{AtomicWord, Mr, NullMr, Rereg};
pub use mr_file::MrPin;
pub use mw::{Mw, MwBind, MwBindInfo};
pub use parent_domain::{ParentDomainInitAttr, Td};
pub use pd::Pd;
pub use qp::{Qp, QpInitAttr, RecvQueue, SendQueue};
pub use reactor::Reactor;
pub use srq::{Srq, SrqInitAttr};
pub use wc::Wc;
pub use wr::{RecvWr, SendWr};
pub use wr_ex::WrPost;
pub use xrcd::{XrcTarget, Xrcd, XrcdInitAttr};
pub use xrcd_owner::XrcdOwner;

pub use stack::device::{
    Access, AhAttr, AsyncEvent, AtomicCap, AttrMask, AvError, Clock, Counter, CounterSnapshot, DeviceAttr,
    DeviceCapFlags, DeviceConfig, DeviceError, Discard, DrainKind, Drive, Event, EventElement, GSI_QKEY, Gid,
    GidEntry, GidType, GlobalRoute, LINK_LAYER_ETHERNET, Mac, ModifyError, Mtu, MwType, NetConfigError,
    NoHost, OpenError, PathMigState, PeerCheck, PeerState, PortAttr, PortCapFlags, PortPhysState, PortSource,
    PortState, Psn, QPF_GRH_REQUIRED, QpAttr, QpCap, QpState, QpType, Qpn, SendFlags, Sge, SrqAttr,
    SrqAttrMask, Turn, VendorErr, WcFlags, WcOpcode, WcStatus, WrOpcode, inc_rkey, state_name, type_name,
};

/// Limits of the stack that programs may rely on. [`Context::query_device`] returns the limits of a device.
pub mod limits {
    pub use stack::device::limit::{
        CQ_MAX, CQE_MAX, INLINE_MAX, MCAST_GRP_MAX, MCAST_QP_ATTACH_MAX, MESSAGE_MAX, MR_MAX, MR_SIZE_MAX,
        PD_MAX, QPS_PER_SHARD_MAX, QUEUE_DEPTH_MAX, RD_ATOMIC_MAX, SGE_MAX, SHARDS_MAX, SRQ_MAX,
    };
}
/// Ports, which receive and send frames. For programs that choose a port ([`PortSpec`](port::PortSpec)) or use one without the stack.
pub use stack::device::port;
/// What a running stack is doing: statistics for the program itself and for other processes.
pub use stack::device::stats;
/// XRC domains shared by processes: the file that identifies a domain, and the errors of calls on one.
pub use stack::xrc::{DomainFile, Reason as XrcReason, Refusal as XrcRefusal, XrcError};
