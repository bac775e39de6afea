//! Messages prepared for the case that a signal ends the process. They tell peers that the connections end.

use stack::port::{self, Farewell, Farewells};

/// The number of connections whose peers are told when a signal ends the process.
const MOST: usize = 4096;

static CONNECTIONS: Farewells<MOST> = Farewells::none();

/// A prepared message; dropping it removes the message.
pub(super) type Ready = port::Ready<MOST>;

/// Stores a prepared message. `None` if there are [`MOST`] already.
pub(super) fn keep(message: Box<dyn Farewell>) -> Option<Ready> {
    CONNECTIONS.keep(message)
}

/// Tells the peers of all connections of this process (by a DREQ), and the other processes of the host that have links with it, that these
/// end, as far as that is possible immediately. For the handler of a signal that ends the process, which must not call anything else of
/// this crate. Takes no lock, allocates nothing and does not wait (signal-safety(7)). Only ports of the host itself can send these
/// messages, for up to 4096 connections. A forked child does not send those of its parent.
pub fn send_farewells() {
    CONNECTIONS.send();
    port::host::end_links();
}
