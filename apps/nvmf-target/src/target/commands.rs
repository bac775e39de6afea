//! Commands under way that wait for something: a buffer, bytes of the host, the storage, or the end of the response.

use nvmf::config::Backend;
use nvmf::{Remote, Ticket};

use super::pool::Buffer;

/// What a command waits for, and what happens then.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// A buffer, to fetch bytes of the host.
    Fetch(Remote, Then),
    /// A buffer, to give bytes to the host.
    Give(Remote),
    /// A buffer, to read bytes of a file, which are then given to the host.
    Load {
        /// The namespace's storage.
        backend: Backend,
        /// Offset in it.
        offset: u64,
        /// The host's memory.
        to: Remote,
        /// FUA: the bytes that are read must be on stable storage.
        fua: bool,
    },
    /// A buffer, for so many bytes that came in the capsule and cannot go to the storage from there.
    Copy(u32, Then),
    /// The bytes of the host: an RDMA READ is under way.
    Fetched(u32, Then),
    /// The file; the data of a Read go to the host then.
    Storage(Option<Remote>),
    /// The end of the turn, where its data go into a namespace in memory.
    Place {
        /// The namespace's storage.
        backend: Backend,
        /// Offset in it.
        offset: u64,
        /// Where they are, in the region of its capsule or else of its buffer.
        at: usize,
        /// Bytes.
        len: u32,
    },
    /// Zeros are being written, a piece a turn.
    Zeroing,
    /// The response is out, and the buffer in use until the host has taken it.
    Answered,
}

/// What bytes of the host are for.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// The controller itself.
    Data,
    /// A Write.
    Write {
        /// The namespace's storage.
        backend: Backend,
        /// Offset in it.
        offset: u64,
        /// FUA: the command ends when the bytes are on stable storage.
        fua: bool,
    },
    /// A Compare.
    Compare {
        /// The namespace's storage.
        backend: Backend,
        /// Offset in it.
        offset: u64,
        /// FUA: the bytes that are compared must be on stable storage.
        fua: bool,
    },
}

/// Data that came in a capsule.
#[derive(Debug)]
pub enum Capsule {
    /// They are in this buffer, until the end of the turn.
    Now(u32),
    /// They are in this buffer, and at this place of its region. It counts as the host's.
    Kept(u32, usize),
    /// They were taken out: the host keeps as many capsules as it may.
    Copied(Box<[u8]>),
}

/// A command under way.
#[derive(Debug)]
pub struct Command {
    /// Its connection.
    pub connection: u32,
    /// The controller's name for it.
    pub ticket: Ticket,
    /// What it waits for.
    pub stage: Stage,
    /// The buffer that it has.
    pub buffer: Option<Buffer>,
    /// The capsule that its data are in.
    pub capsule: Option<Capsule>,
}

/// All commands under way of a core, by number.
#[derive(Debug, Default)]
pub struct Commands {
    entries: Vec<Option<Command>>,
    free: Vec<u32>,
}

impl Commands {
    /// Keeps a command; returns its number. Allocates only if more are under way than ever before.
    #[inline]
    pub fn insert(&mut self, command: Command) -> u32 {
        if let Some(n) = self.free.pop() {
            self.entries[n as usize] = Some(command);
            return n;
        }
        self.entries.push(Some(command));
        (self.entries.len() - 1) as u32
    }
    /// The command of a number.
    #[inline]
    pub fn get_mut(&mut self, n: u32) -> Option<&mut Command> {
        self.entries.get_mut(n as usize)?.as_mut()
    }
    /// Takes a command out.
    #[inline]
    pub fn remove(&mut self, n: u32) -> Option<Command> {
        let command = self.entries.get_mut(n as usize)?.take()?;
        self.free.push(n);
        Some(command)
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}
