//! Ends all links of a process that is about to exit. Otherwise peers notice the exit only when the kernel has torn down the process's
//! memory, which takes longer the more memory the process has, and longest if a core dump is written.

use crate::port::farewell::{Farewells, Ready};
use crate::port::traits::Farewell;
use crate::registry::{Connection, LastWord};

/// Most links of a process that are ended early; any others end when the process exits.
const MOST: usize = 1024;

static LINKS: Farewells<MOST> = Farewells::none();

/// A registration of a link to be ended early. It ends when this is dropped.
pub type Word = Ready<MOST>;

impl Farewell for LastWord {
    fn send(&self) {
        self.say();
    }
}

/// Registers a link to be ended early. Drop the result before the connection is closed.
pub fn keep(connection: &Connection) -> Option<Word> {
    LINKS.keep(Box::new(connection.last_word()?) as Box<dyn Farewell>)
}

/// Ends all links of this process: peers notice at once, while this process may still run. To be called at the end of the process, also in
/// signal handlers (signal-safety(7)): frames sent on a link from then on are lost. It takes no lock, allocates nothing, and does nothing
/// in a forked child.
pub fn end_links() {
    LINKS.send();
}
