//! NVMe over Fabrics controllers, without I/O.
//!
//! A [`Target`] holds the configuration: ports, subsystems, namespaces, hosts. [`Queue::accept`] makes a [`Queue`] for each connection of a
//! host. The program passes command capsules to the queue, which returns a [`Step`] for each: fetch bytes from the host, do I/O on the
//! storage of a namespace, write bytes to the host, or send the response. The crate does not read the clock, start threads or move data,
//! and it allocates nothing per command. A queue may be used on any thread.
//!
//! ```
//! use nvmf::{BackendError, End, Instant, Queue, Remote, Request, Response, Source, Step};
//!
//! # trait Program {
//! #     fn fetch(&mut self, capsule: &[u8], from: Source) -> Vec<u8>;
//! #     fn write(&mut self, to: Remote, data: &[u8]);
//! #     fn run(&mut self, capsule: &[u8], request: Request<'_>) -> Result<(), BackendError>;
//! # }
//! /// Serves one command, from its capsule to its response. This simple program serves one command at a time.
//! fn serve(queue: &mut Queue, now: Instant, capsule: &[u8], program: &mut impl Program) -> Result<Option<Response>, End> {
//!     let data;
//!     let sqe = &capsule[..capsule.len().min(64)];
//!     let step = match queue.handle_capsule(now, sqe, capsule.len())? {
//!         Step::Fetch(ticket, from) => {
//!             data = program.fetch(capsule, from);
//!             queue.handle_data(now, ticket, &data)?
//!         }
//!         step => step,
//!     };
//!     Ok(Some(match step {
//!         Step::Respond(response) => response,
//!         Step::Run(ticket, request) => {
//!             let done = program.run(capsule, request);
//!             queue.handle_done(ticket, done)?
//!         }
//!         Step::Give(ticket, to) => {
//!             let mut page = vec![0; to.len as usize];
//!             let response = queue.poll_data(ticket, &mut page)?;
//!             program.write(to, &page);
//!             response
//!         }
//!         Step::Wait => return Ok(None),
//!         Step::Fetch(..) => unreachable!("data are fetched once"),
//!     }))
//! }
//! ```
//!
//! A program also calls [`Queue::poll_response`], which returns responses to asynchronous event requests and to a Connect that had to wait;
//! [`Queue::handle_timeout`], which ends the queues of silent hosts; and [`Queue::poll_end`], because another queue or a change of the
//! target may end a queue. Dropping a queue frees its resources. The storage may still be working on its commands then: while the program
//! keeps the token of [`Queue::in_flight`], a new Connect of the same host waits, so its new commands cannot overtake the old ones.
//!
//! The crate implements the admin commands of I/O controllers and discovery controllers; the I/O commands Read, Write, Flush, Compare,
//! Verify, Write Zeroes and Dataset Management (deallocate); in-capsule data, keyed SGL descriptors and remote invalidation. It neither
//! announces nor accepts fused commands, metadata, ANA, reservations and authentication.
//!
//! No host can make the crate panic. A step never refers to bytes outside of the command's capsule, the namespace, and the host memory that
//! the command's SGL descriptor describes.

#![forbid(unsafe_code)]

mod admin;
mod association;
mod commands;
pub mod config;
mod counters;
mod data;
pub mod fair;
mod in_flight;
mod io;
pub mod limits;
mod live;
mod nqn;
mod queue;
pub mod status;
pub mod sync;
mod target;
mod time;
mod window;
pub mod wire;

pub use counters::Totals;
pub use data::{Remote, Source};
pub use in_flight::InFlight;
pub use io::{BackendError, Op, Ranges, Request};
pub use nqn::{Nqn, NqnError};
pub use queue::{Accepted, End, Queue, Response, Step, Ticket};
pub use target::{Arrival, Connected, Target};
pub use time::Instant;
