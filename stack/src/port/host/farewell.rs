//! The end of all links of a process that is about to end. The system would tell the others once it has taken the process's memory apart,
//! which takes as long as there is memory, and longer where a dump of it is written.

use crate::port::farewell::{Farewells, Ready};
use crate::port::traits::Farewell;
use crate::registry::{Connection, LastWord};

/// Links of a process that end so; those of more end with the process.
const MOST: usize = 1024;

static LINKS: Farewells<MOST> = Farewells::none();

/// The word that a link ends, ready while this lives.
pub type Word = Ready<MOST>;

impl Farewell for LastWord {
    fn send(&self) {
        self.say();
    }
}

/// Has a link ready to end. Drop this before the connection is closed.
pub fn keep(connection: &Connection) -> Option<Word> {
    LINKS.keep(Box::new(connection.last_word()?) as Box<dyn Farewell>)
}

/// Ends all links of this process: the others hear that at once, while this one may still run. For the end of the process, also in handlers
/// of signals (signal-safety(7)): what is sent on a link from then on is lost. It takes no lock, allocates nothing, and does nothing in a
/// fork.
pub fn end_links() {
    LINKS.send();
}
