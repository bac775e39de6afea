//! NVMe over Fabrics controllers, without I/O.
//!
//! A [`Target`] has the configuration: ports, subsystems, namespaces, hosts. For each connection of a host it makes a
//! [`Queue`]. Command capsules go into the queue, which returns for each a [`Step`] for the program to do: fetch bytes of the
//! host, ask a namespace's storage, write bytes to the host, or send the response. The crate reads no clock, starts no thread,
//! moves no data, and allocates nothing per command. A queue may be on any thread.
//!
//! ```
//! use nvmf::{BackendError, End, Instant, Queue, Remote, Request, Response, Source, Step};
//!
//! # trait Program {
//! #     fn fetch(&mut self, capsule: &[u8], from: Source) -> Vec<u8>;
//! #     fn write(&mut self, to: Remote, data: &[u8]);
//! #     fn run(&mut self, capsule: &[u8], request: Request<'_>) -> Result<(), BackendError>;
//! # }
//! /// Serves a command from its capsule to its response: the shortest way, one at a time.
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
//! A program also calls [`Queue::poll_response`] for asynchronous events and for a Connect that had to wait,
//! [`Queue::handle_timeout`] for silent hosts, and [`Queue::poll_end`], since another queue or a change of the target may end a
//! queue. Dropping a queue frees all that it had. The storage may still work on its commands; while the program keeps
//! [`Queue::in_flight`], the same host cannot connect again and overtake them.
//!
//! Served are the admin commands of an I/O controller and a discovery controller; Read, Write, Flush, Compare, Verify, Write
//! Zeroes and Dataset Management (deallocate); in-capsule data, keyed descriptors, remote invalidation. Fused commands,
//! metadata, ANA, reservations and authentication are neither announced nor accepted.
//!
//! No host can make the crate panic, or name a byte outside of its capsule, the namespace and the memory that it described.

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
