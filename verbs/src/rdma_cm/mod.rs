//! Connecting by address and port, as `librdmacm` does it (rdma_cm(7)): identifiers, event channels, and a connection manager
//! that uses queue pair 1 as every RoCE host does (IBA chapter 12, annex A11).
//!
//! | object | meaning |
//! | --- | --- |
//! | [`CmId`] (`rdma_cm_id`) | one end of a connection, or a listener: what a socket is to TCP. Owns a queue pair |
//! | [`EventChannel`] (`rdma_event_channel`) | receives the events of identifiers, with a descriptor for epoll(7) |
//! | [`CmEvent`] (`rdma_cm_event`) | an event; dropping it acknowledges it |
//!
//! A client creates an identifier, resolves address and route, creates a queue pair and connects. A server binds, listens,
//! and for each request creates a queue pair on the new identifier and accepts. With an event channel every call returns at
//! once and an event reports the result; without one, calls wait:
//!
//! ```
//! use std::time::Duration;
//! use verbs::rdma_cm::{CmId, ConnParam, PortSpace};
//! use verbs::{Access, Context, DeviceConfig, QpInitAttr, RecvWr, SendWr, VerbsError, Wc};
//!
//! const PATIENCE: Duration = Duration::from_secs(10);
//!
//! /// Takes one connection, and one message on it.
//! fn serve(context: &Context, listener: &CmId) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
//!     let id = listener.get_request(PATIENCE)?.ok_or("nobody came")?;
//!     assert_eq!(&id.event().unwrap().private_data()[..7], b"a greet");
//!     let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
//!     let mr = pd.reg_mr(4096, Access::LOCAL_WRITE)?;
//!     let qp = id.create_qp(&pd, &QpInitAttr::rc(&cq, &cq))?;
//!     qp.post_recv(&[RecvWr::new(1, &[mr.sge(0..64)?])])?; // before the client knows that it may send
//!     id.accept(&ConnParam::default())?;
//!     let len = complete(&cq)?.byte_len as usize;
//!     let mut message = vec![0; len];
//!     mr.read(0, &mut message)?;
//!     id.disconnect()?;
//!     Ok(message)
//! }
//!
//! /// Connects, and sends a message.
//! fn client(context: &Context, port: u16) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let id = context.create_id(None, PortSpace::Tcp)?;
//!     id.resolve_addr(None, ([192, 0, 2, 1], port), PATIENCE)?;
//!     id.resolve_route(PATIENCE)?;
//!     let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
//!     let qp = id.create_qp(&pd, &QpInitAttr::rc(&cq, &cq))?;
//!     id.connect(&ConnParam::with_data(b"a greeting"))?;
//!     qp.post_send(&[SendWr::send(2, &[]).inline(b"hello").signaled()])?;
//!     complete(&cq)?;
//!     id.disconnect()?;
//!     Ok(())
//! }
//!
//! /// The next completion.
//! fn complete(cq: &verbs::Cq) -> Result<Wc, VerbsError> {
//!     let mut wc = [Wc::default()];
//!     while cq.poll(&mut wc)? == 0 {
//!         std::thread::yield_now();
//!     }
//!     assert!(wc[0].is_ok(), "{}", wc[0].status);
//!     Ok(wc[0])
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! // Both ends on one device, which talks to itself.
//! let context = Context::open(DeviceConfig::loopback())?;
//! let listener = context.create_id(None, PortSpace::Tcp)?;
//! listener.listen(1)?;
//! let port = listener.src_port();
//! let message = std::thread::scope(|s| {
//!     let server = s.spawn(|| serve(&context, &listener));
//!     client(&context, port)?;
//!     server.join().unwrap()
//! })?;
//! assert_eq!(message, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # What differs from C
//!
//! - Identifiers belong to a [`Context`](crate::Context) from the start. Channels belong to none: one may serve identifiers of
//!   several devices.
//! - The new identifier of a request is taken from its event ([`CmEvent::take_id`]); a request that is not taken is refused.
//!   Dropping an identifier is `rdma_destroy_id` with its queue pair; the peer gets a message.
//! - When the peer disconnects, the local queue pair goes to ERR at once, not at [`CmId::disconnect`].
//! - Data that arrives before the peer's last message establishes the connection without [`CmId::notify`], for queue pairs of
//!   identifiers.
//! - The type of an identifier's queue pairs is set with the identifier
//!   ([`create_id_of_type`](crate::Context::create_id_of_type)), and a queue pair of another type is refused; in C it would
//!   be connected to a peer that expects the identifier's type.
//! - A queue pair from [`CmId::create_qp`] has a number that no ended connection still reserves; one of the program's own,
//!   from [`Pd::create_qp`](crate::Pd::create_qp), may have drawn such a number, and is then refused by `connect` and
//!   `accept` with `EBUSY`: create another one.
//! - Requests beyond a listener's backlog are refused, where Linux ignores them. A request whose peer gave up before it was
//!   fetched is not fetched any more.
//! - No call waits longer than the program's own timeouts ([`CmOption::CmResponseTimeout`], [`CmOption::MaxCmRetries`]; by
//!   default 74 s), even if the peer sends an MRA; this side sends none.
//! - RNR NAKs ask for 0.64 ms, as everywhere in this crate, where Linux asks for 655 ms.
//!
//! # Threads
//!
//! Connection management has no thread. It runs after the turns of the shards, on the thread that made the turn
//! ([`Drive`](crate::Drive)), and takes no lock that a data path takes. It owns the device's queue pair 1, starts with the
//! first identifier, and ends when the last identifier and the last channel that was used with the device are gone, and the
//! peers that it disconnects have answered: it asks them again as long as the context is open. Before the context is closed it
//! waits for answers, and until its last messages have left, at most 200 ms for each; a process that ends may give peers more
//! time: [`take_leave`](crate::Context::take_leave).
//!
//! A peer that goes without a word is noticed by keep-alive ([`CmOption::KeepAlive`]). So that peers need not wait for that when this
//! process is ended by a signal, a handler of it may call [`send_farewells`].
//!
//! No more than 128 requests wait for the answers of one host at a time, so that a burst of connections finds room there.

mod channel;
mod cm_event;
mod connect;
pub(crate) mod error;
mod event;
mod farewell;
mod gsi;
mod handle;
mod id;
mod inbox;
mod leave;
mod param;
mod path_mtu;
mod ports;
mod queue;
mod record;
mod refusal;
mod service;
mod state;

pub use channel::EventChannel;
pub use cm_event::CmEvent;
pub use error::CmError;
pub use event::CmEventType;
pub use farewell::send_farewells;
pub use id::CmId;
pub use param::{
    CmOption, CmOptions, ConnParam, MAX_INIT_DEPTH, MAX_RESP_RES, PeerParam, PortSpace, UDP_QKEY, UdParam,
};
pub use refusal::Refusal;
pub use state::IdState;
