//! Changes of a running target: its namespaces, and the hosts that may use it.
//!
//! [`Control`] makes the changes. [`ControlSocket`] accepts requests from programs of the same user or root, and [`ask`] sends one: the
//! commands `roce-nvmf namespace`, `host` and `list` use it. A change lasts until the target ends, because the configuration file is not
//! written. The list, and the log when the target ends, show how the target differs from the file ([`differences`]).
//!
//! A request is one line of JSON ([`Request`]), and so is the answer ([`Answer`]). Then the connection ends.

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
