//! Connecting by address and port, as `librdmacm` does (rdma_cm(7)): identifiers, event channels, and a connection manager that uses queue
//! pair 1 like every RoCE host (IBA chapter 12, annex A11).
//!
//! | object | meaning |
//! | --- | --- |
//! | [`CmId`] (`rdma_cm_id`) | one end of a connection, or a listener; the counterpart of a TCP socket. Owns a queue pair |
//! | [`EventChannel`] (`rdma_event_channel`) | receives the events of identifiers, with a descriptor for epoll(7) |
//! | [`CmEvent`] (`rdma_cm_event`) | an event; dropping it acknowledges it |
//!
//! A client creates an identifier, resolves address and route, creates a queue pair and connects. A server binds, listens, and for each
//! request creates a queue pair on the new identifier and accepts. With an event channel every call returns at once and an event reports
//! the result. Without one, calls wait:
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
//! - Identifiers belong to a [`Context`](crate::Context) from the start. Channels belong to none: one may serve identifiers of several
//!   devices.
//! - The new identifier of a request is taken from its event ([`CmEvent::take_id`]). If it is not taken, the request is refused. Dropping
//!   an identifier is `rdma_destroy_id` together with its queue pair; the peer gets a message.
//! - When the peer disconnects, the local queue pair enters ERR at once, not at [`CmId::disconnect`].
//! - If data arrives before the peer's RTU, the queue pair of an identifier is established without [`CmId::notify`].
//! - The type of an identifier's queue pair is set when the identifier is created
//!   ([`create_id_of_type`](crate::Context::create_id_of_type)), and a queue pair of another type is refused. In C it would be connected to
//!   a peer that expects the identifier's type.
//! - A queue pair from [`CmId::create_qp`] has a number that no ended connection still reserves. One that the program creates with
//!   [`Pd::create_qp`](crate::Pd::create_qp) may have such a number. `connect` and `accept` then fail with `EBUSY`: create another one.
//! - Requests beyond a listener's backlog are refused; Linux ignores them. A request that the peer gave up before it was fetched can no
//!   longer be fetched.
//! - No call waits longer than the program's own timeouts ([`CmOption::CmResponseTimeout`], [`CmOption::MaxCmRetries`]; by default 74 s),
//!   even if the peer sends an MRA. This side sends none.
//! - RNR NAKs request a delay of 0.64 ms, as everywhere in this crate; Linux requests 655 ms.
//!
//! # Threads
//!
//! Connection management has no thread. It runs after the turns of the shards, on the thread that made the turn ([`Drive`](crate::Drive)),
//! and takes no lock that a data path takes. It owns the device's queue pair 1. It starts with the first identifier. It ends when the last
//! identifier and the last channel that was used with the device are dropped and the disconnected peers have answered; it repeats its
//! messages to them while the context is open. Closing the context waits for the answers, and then until the last messages have left, at
//! most 200 ms for each. A process that exits may give peers more time: [`take_leave`](crate::Context::take_leave).
//!
//! A peer that fails without a message is detected by keep-alive ([`CmOption::KeepAlive`]). To spare peers that wait when a signal ends
//! this process, its signal handler may call [`send_farewells`].
//!
//! At most 128 requests to one host are outstanding at a time, so that a burst of connections does not overflow the receive queue there.

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
