//! Messages that are ready to leave when the process is ended by a signal: that its connections end.

use stack::port::{self, Farewell, Farewells};

/// Connections of a process that are told of its end by a signal.
const MOST: usize = 4096;

static CONNECTIONS: Farewells<MOST> = Farewells::none();

/// A message that is ready while this lives.
pub(super) type Ready = port::Ready<MOST>;

/// Keeps a message ready. `None`: there are [`MOST`].
pub(super) fn keep(message: Box<dyn Farewell>) -> Option<Ready> {
    CONNECTIONS.keep(message)
}

/// Tells the peers of all connections of this process that they end (DREQ), and the other processes of the host that their links with this
/// one do, as far as that can be done at once: for a handler of a signal that ends the process, which calls nothing else of this crate. It
/// takes no lock, allocates nothing and waits for nothing (signal-safety(7)). Peers behind ports that are not the host's own, and those of
/// more than 4096 connections, are not told; nor does a forked child tell its parent's.
pub fn send_farewells() {
    CONNECTIONS.send();
    port::host::end_links();
}
