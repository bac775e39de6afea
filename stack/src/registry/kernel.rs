//! What a registry needs of the system: names, clocks, other processes, and memory that they share.
//!
//! What is decided (`draw`, `lease`, `birth`, `join`) is decided over this trait alone. The system itself is `linux`; the
//! simulator has one whose processes die and stop at every step.

use super::error::RegistryError;
use super::name::Name;
use super::table::Words;
use core::fmt::Debug;
use core::time::Duration;

/// Who is at a name.
#[derive(Debug)]
pub enum Found<P> {
    /// No process listens there. It may be held by one that does not listen yet.
    Nobody,
    /// A living process of our own user.
    Living(P),
    /// A process that has ended, of which a descriptor is left elsewhere.
    Dead,
    /// A process of another user.
    Foreign(u32),
    /// A process that accepts no more connections: it may be any.
    Full,
}

/// What a process says to one that asks to join.
#[derive(Debug)]
pub enum Answer<M> {
    /// It may: the memory, and the number of the birth.
    Welcome(M, u128),
    /// Its layout has another version.
    Unlike(u32),
    /// Something else.
    Nonsense,
    /// Nothing: it has closed the connection.
    Gone,
}

/// What a registry needs of the system, for one process.
pub trait Kernel {
    /// A name that this process holds, until the last clone is dropped or it ends.
    type Held: Clone + Debug;
    /// Another process, at a name that it held when it was found.
    type Process;
    /// Memory that processes share.
    type Memory: Words + Debug;

    /// Whether the caller is the process that this was made for, and not a fork of it.
    fn is_ours(&self) -> bool;
    /// The number of this process.
    fn pid(&self) -> u32;
    /// Nanoseconds since the start of the system, the same for all processes.
    fn now(&self) -> u64;
    /// A number that cannot be guessed.
    ///
    /// # Errors
    /// The system has none.
    fn random(&self) -> Result<u64, RegistryError>;
    /// Waits.
    fn sleep(&self, time: Duration);

    /// Takes a name; `None`: another socket has it. Nobody can find this process there yet.
    ///
    /// # Errors
    /// Those of socket(2).
    fn hold(&self, name: Name) -> Result<Option<Self::Held>, RegistryError>;
    /// Lets others find this process at a name.
    ///
    /// # Errors
    /// Those of listen(2).
    fn listen(&self, held: &Self::Held) -> Result<(), RegistryError>;
    /// Looks who is at a name.
    ///
    /// # Errors
    /// Those of socket(2).
    fn find(&self, name: Name) -> Result<Found<Self::Process>, RegistryError>;

    /// The number of a process; 0: it is not visible from here.
    fn pid_of(&self, process: &Self::Process) -> u32;
    /// Whether a process that was found now is one that was found before, and has lived ever since.
    fn is_same(&self, now: &Self::Process, before: &Self::Process) -> bool;
    /// Waits until a process has ended, or has given up the name that it was found at. Returns whether it has.
    fn wait_for_end(&self, of: &Self::Process, at_most: Duration) -> bool;
    /// Asks a process to let this one join.
    fn ask(&self, process: &Self::Process);
    /// Waits for an answer of one of those that were asked: which, and what it says.
    ///
    /// # Errors
    /// This process has no descriptor left for what it gets.
    #[expect(clippy::type_complexity, reason = "two alternatives in one result")]
    fn answer(
        &self,
        asked: &[&Self::Process],
        at_most: Duration,
    ) -> Result<Option<(usize, Answer<Self::Memory>)>, RegistryError>;

    /// Makes memory of [`WORDS`](super::layout::WORDS) words, all zero.
    ///
    /// # Errors
    /// Those of memfd_create(2) and mmap(2).
    fn make(&self) -> Result<Self::Memory, RegistryError>;
}
