//! Changes of a running target: namespaces and hosts that come and go.
//!
//! [`Control`] makes the changes; [`ControlSocket`] takes the requests of `roce-nvmf namespace`, `host` and `list` for them,
//! from programs of the same user or root; [`ask`] sends one. A change lasts until the target ends, for nothing writes the
//! configuration file. The list, and the log at the end, say how the target differs from the file ([`differences`]).
//!
//! A request is one line of JSON ([`Request`]), and so is the answer ([`Answer`]); then the connection ends.

mod change;
mod client;
mod differ;
mod message;
mod socket;

pub use change::Control;
pub use client::{AskError, SERVICE, ask, find, socket_name};
pub use differ::differences;
pub use message::{Answer, List, ListedController, ListedNamespace, ListedSubsystem, Request};
pub use socket::{ControlSocket, SocketError};
