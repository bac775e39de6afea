//! The operating system as the registry sees it: names, clocks, other processes, and memory that they share.
//!
//! The decisions (`draw`, `lease`, `birth`, `join`) use only this trait. The real system is `linux`; the simulator has one whose processes
//! die and stop at every step.

use super::error::RegistryError;
use super::name::Name;
use super::table::Words;
use core::fmt::Debug;
use core::time::Duration;

/// The process at a name.
#[derive(Debug)]
pub enum Found<P> {
    /// No process listens there. A process that does not listen yet may hold the name.
    Nobody,
    /// A living process of a user who is part of this host (`admission`).
    Living(P),
    /// A process that has ended, while another process has a copy of its descriptor.
    Dead,
    /// A process of a user who is not.
    Foreign(u32),
    /// A process whose queue of connections is full: it may be any.
    Full,
}

/// The answer of a process to a request to join.
#[derive(Debug)]
pub enum Answer<M> {
    /// Accepted: the memory, and the number of the registry's birth.
    Welcome(M, u128),
    /// Its layout has another version.
    Unlike(u32),
    /// An invalid answer.
    Nonsense,
    /// It has closed the connection.
    Gone,
}

/// The operating system, as one process sees it.
pub trait Kernel {
    /// A name that this process holds until the last clone is dropped or the process ends.
    type Held: Clone + Debug;
    /// Another process, found at a name that it held then.
    type Process;
    /// Memory that processes share.
    type Memory: Words + Debug;

    /// Whether the caller is the process for which this was made, and not a forked child.
    fn is_ours(&self) -> bool;
    /// The owner of the host, if this process is a guest there.
    fn guest_of(&self) -> Option<u32> {
        None
    }
    /// The number of this process.
    fn pid(&self) -> u32;
    /// Nanoseconds since boot, the same for all processes.
    fn now(&self) -> u64;
    /// A random number that cannot be guessed.
    ///
    /// # Errors
    /// The system has no random numbers.
    fn random(&self) -> Result<u64, RegistryError>;
    /// Sleeps.
    fn sleep(&self, time: Duration);

    /// Takes a name; `None` if another socket has it. Other processes cannot find this process there yet.
    ///
    /// # Errors
    /// Those of socket(2).
    fn hold(&self, name: Name) -> Result<Option<Self::Held>, RegistryError>;
    /// Lets other processes find this process at a name.
    ///
    /// # Errors
    /// Those of listen(2).
    fn listen(&self, held: &Self::Held) -> Result<(), RegistryError>;
    /// Finds the process at a name.
    ///
    /// # Errors
    /// Those of socket(2).
    fn find(&self, name: Name) -> Result<Found<Self::Process>, RegistryError>;

    /// The PID of a process; 0 if it is not visible from this PID namespace.
    fn pid_of(&self, process: &Self::Process) -> u32;
    /// Whether a process is a guest.
    fn is_guest(&self, _process: &Self::Process) -> bool {
        false
    }
    /// Whether a process that was found now is one that was found before, and has lived ever since.
    fn is_same(&self, now: &Self::Process, before: &Self::Process) -> bool;
    /// Waits until a process has ended or has released the name at which it was found. Returns whether it has.
    fn wait_for_end(&self, of: &Self::Process, at_most: Duration) -> bool;
    /// Sends a process a request to join.
    fn ask(&self, process: &Self::Process);
    /// Waits for an answer of one of the processes to which requests were sent. Returns its index and the answer.
    ///
    /// # Errors
    /// This process has no descriptor left for the memory.
    #[expect(clippy::type_complexity, reason = "two alternatives in one result")]
    fn answer(
        &self,
        asked: &[&Self::Process],
        at_most: Duration,
    ) -> Result<Option<(usize, Answer<Self::Memory>)>, RegistryError>;

    /// Creates memory of [`WORDS`](super::layout::WORDS) words, filled with zeros.
    ///
    /// # Errors
    /// Those of memfd_create(2) and mmap(2).
    fn make(&self) -> Result<Self::Memory, RegistryError>;
}
