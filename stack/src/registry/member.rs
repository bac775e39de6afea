//! A process that has joined: its runs, and its view of other processes.

use super::addresses::Addresses;
use super::error::RegistryError;
use super::join::{Joined, join};
use super::kernel::{Found, Kernel};
use super::lease::{self, Lease, Terms};
use super::name::Name;
use super::patience::Patience;
use super::run::Run;
use super::table::{RunInfo, Table};
use crate::config::RUNS_PER_PROCESS;
use crate::sync::lock::lock;
use core::sync::atomic::AtomicBool;
use core::time::Duration;
use std::sync::Mutex;

/// The holder of a run, as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// No process.
    Nobody,
    /// This process.
    Ourselves,
    /// A living process of the host; 0: it is not visible from here.
    Process(u32),
    /// A process that has ended, while another process has a copy of its descriptor.
    Dead,
    /// A process of a user who is not admitted.
    Foreign(u32),
    /// A process whose queue of connections is full: it may be any.
    Unknown,
}

/// Whose process has a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resident {
    /// Nobody's that is known to live.
    Nobody,
    /// One of the host's owner, or one that may be.
    Owner,
    /// A guest's.
    Guest,
}

/// A process that has joined. When it is dropped its runs are free, and rest.
#[derive(Debug)]
pub struct Member<K: Kernel> {
    kernel: K,
    table: Table<K::Memory>,
    birth: u128,
    terms: Terms,
    /// The first lease is kept as long as the process is a member: see `join`.
    leases: Mutex<Vec<Lease<K::Held>>>,
    /// Whether the process has a queue pair 1.
    serves: AtomicBool,
}

impl<K: Kernel> Member<K> {
    /// Joins the registry of the host, or creates it.
    ///
    /// # Errors
    /// No member answers, versions differ, no run is left, or a system call failed.
    pub fn join(kernel: K, terms: Terms, patience: Duration) -> Result<Self, RegistryError> {
        let Joined { table, birth, lease } = join(&kernel, &terms, &mut Patience::new(patience))?;
        let leases = Mutex::new(vec![lease]);
        Ok(Self { kernel, table, birth, terms, leases, serves: AtomicBool::new(false) })
    }

    /// Leases one more run.
    ///
    /// # Errors
    /// No run is left, or the process has as many as it may have.
    pub fn lease_run(&self) -> Result<Run, RegistryError> {
        self.check()?;
        let mut leases = lock(&self.leases);
        if leases.len() >= RUNS_PER_PROCESS {
            return Err(RegistryError::TooMany(leases.len()));
        }
        let mut lease = lease::take(&self.kernel, &self.table, &self.terms)?;
        lease::begin(&self.kernel, &self.table, &mut lease);
        let run = lease.run;
        leases.push(lease);
        Ok(run)
    }

    /// Fails in a forked child of the process that has joined.
    fn check(&self) -> Result<(), RegistryError> {
        if self.kernel.is_ours() { Ok(()) } else { Err(RegistryError::Forked) }
    }

    /// Its runs in the order of their leases. A forked child has none.
    pub fn runs(&self) -> Vec<Run> {
        if !self.kernel.is_ours() {
            return Vec::new();
        }
        lock(&self.leases).iter().map(|lease| lease.run).collect()
    }

    /// Its runs, and the sockets that hold their names.
    pub fn held(&self) -> Vec<(Run, K::Held)> {
        lock(&self.leases).iter().map(|lease| (lease.run, lease.held.clone())).collect()
    }

    /// The holder of a run.
    ///
    /// # Errors
    /// Those of socket(2), or this process is a forked child.
    pub fn holder_of(&self, run: Run) -> Result<Holder, RegistryError> {
        Ok(match self.find(run)? {
            Ok(process) => Holder::Process(self.kernel.pid_of(&process)),
            Err(other) => other,
        })
    }

    /// The living process of the host that has a run, and is another one; or who has it else.
    ///
    /// # Errors
    /// As [`holder_of`](Self::holder_of).
    pub fn find(&self, run: Run) -> Result<Result<K::Process, Holder>, RegistryError> {
        self.check()?;
        if self.runs().contains(&run) {
            return Ok(Err(Holder::Ourselves));
        }
        Ok(match self.kernel.find(Name::Run(run))? {
            Found::Living(process) => Ok(process),
            Found::Nobody => Err(Holder::Nobody),
            Found::Dead => Err(Holder::Dead),
            Found::Foreign(uid) => Err(Holder::Foreign(uid)),
            Found::Full => Err(Holder::Unknown),
        })
    }

    /// Information about a run, as the memory says: a process may have written anything there.
    pub fn info(&self, run: Run) -> RunInfo {
        self.table.info(run)
    }

    /// The addresses of the host that its processes use.
    pub fn addresses(&self) -> Addresses {
        self.table.addresses()
    }

    /// Notes the socket that receives packets for a run of this process on the `of`th address: its index in the reuseport group.
    pub fn set_socket(&self, run: Run, of: usize, index: u16) {
        if self.runs().contains(&run) {
            self.table.set_socket(run, of, index);
        }
    }

    /// The runs that are held, as the memory says, with the indices of their sockets on the `of`th address, where known.
    pub fn sockets(&self, of: usize) -> Vec<(Run, u16)> {
        Run::all().filter_map(|run| Some((run, self.table.socket(run, of)?))).collect()
    }

    /// The UDP port on which the processes receive, once a process has chosen it.
    pub fn udp_port(&self) -> Option<u16> {
        self.table.udp_port()
    }

    /// Chooses the UDP port, if `before` is still the current choice. Returns the current choice.
    pub fn choose_udp_port(&self, before: Option<u16>, port: u16) -> Option<u16> {
        self.table.choose_udp_port(before, port)
    }

    /// The change counter of packet steering.
    pub fn changes(&self) -> u64 {
        self.table.changes()
    }

    pub(super) fn table(&self) -> &Table<K::Memory> {
        &self.table
    }

    pub(super) fn serves(&self) -> &AtomicBool {
        &self.serves
    }

    /// Whether the header of the memory is intact.
    pub fn is_sound(&self) -> bool {
        self.table.is_sound(self.birth)
    }

    /// The memory.
    pub fn memory(&self) -> &K::Memory {
        self.table.memory()
    }

    /// The number of the registry's birth: the same for all members, and for no other registry.
    pub fn birth(&self) -> u128 {
        self.birth
    }

    /// The system.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }
}

impl<K: Kernel> Drop for Member<K> {
    fn drop(&mut self) {
        // A forked child holds none of the names, and its parent goes on.
        if !self.kernel.is_ours() {
            return;
        }
        // The first lease ends last: until then this process is a member.
        for lease in lock(&self.leases).drain(..).rev() {
            lease::end(&self.kernel, &self.table, lease);
        }
    }
}
