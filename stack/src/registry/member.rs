//! A process that has joined: its runs, and what it knows of others.

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

/// Who has a run, as the kernel says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// This process.
    Ourselves,
    /// A living process of this user; 0: it is not visible from here.
    Process(u32),
    /// A process that has ended, of which a descriptor is left elsewhere.
    Dead,
    /// A process of another user.
    Foreign(u32),
    /// A process that accepts no more connections.
    Unknown,
}

/// A process that has joined. When it is dropped its runs are free, and rest.
#[derive(Debug)]
pub struct Member<K: Kernel> {
    kernel: K,
    table: Table<K::Memory>,
    birth: u128,
    terms: Terms,
    /// The first one is kept as long as the process is a member: see `join`.
    leases: Mutex<Vec<Lease<K::Held>>>,
    /// It has a queue pair 1.
    serves: AtomicBool,
}

impl<K: Kernel> Member<K> {
    /// Joins the registry of the host, or gives birth to it.
    ///
    /// # Errors
    /// Nobody answers, versions differ, nothing is left, or a system call failed.
    pub fn join(kernel: K, terms: Terms, patience: Duration) -> Result<Self, RegistryError> {
        let Joined { table, birth, lease } = join(&kernel, &terms, &mut Patience::new(patience))?;
        let leases = Mutex::new(vec![lease]);
        Ok(Self { kernel, table, birth, terms, leases, serves: AtomicBool::new(false) })
    }

    /// Leases one more run.
    ///
    /// # Errors
    /// None is left, or the process has as many as it may have.
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

    /// Fails in a fork of the process that has joined.
    fn check(&self) -> Result<(), RegistryError> {
        if self.kernel.is_ours() { Ok(()) } else { Err(RegistryError::Forked) }
    }

    /// Its runs: the first one, and those that were leased later. A fork of the process has none.
    pub fn runs(&self) -> Vec<Run> {
        if !self.kernel.is_ours() {
            return Vec::new();
        }
        lock(&self.leases).iter().map(|lease| lease.run).collect()
    }

    /// Its runs, and the names that it holds for them.
    pub fn held(&self) -> Vec<(Run, K::Held)> {
        lock(&self.leases).iter().map(|lease| (lease.run, lease.held.clone())).collect()
    }

    /// Who has a run.
    ///
    /// # Errors
    /// Those of socket(2), or the process is a fork.
    pub fn holder_of(&self, run: Run) -> Result<Holder, RegistryError> {
        Ok(match self.find(run)? {
            Ok(process) => Holder::Process(self.kernel.pid_of(&process)),
            Err(other) => other,
        })
    }

    /// The living process of this user that has a run, and is another one; or who has it else.
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

    /// What the memory says of a run: whatever its processes wrote there.
    pub fn info(&self, run: Run) -> RunInfo {
        self.table.info(run)
    }

    /// The addresses of the host that its processes have.
    pub fn addresses(&self) -> Addresses {
        self.table.addresses()
    }

    /// Notes at which socket packets to a run of this process arrive: its index in the group of the host's sockets on an address.
    pub fn set_socket(&self, run: Run, of: usize, index: u16) {
        if self.runs().contains(&run) {
            self.table.set_socket(run, of, index);
        }
    }

    /// The runs that are said to be held, and the indices of their sockets on an address, where they are known.
    pub fn sockets(&self, of: usize) -> Vec<(Run, u16)> {
        Run::all().filter_map(|run| Some((run, self.table.socket(run, of)?))).collect()
    }

    /// The UDP port on which the processes receive, once one of them has chosen it.
    pub fn udp_port(&self) -> Option<u16> {
        self.table.udp_port()
    }

    /// Chooses that port, if `before` is still what was chosen; returns what is chosen now.
    pub fn choose_udp_port(&self, before: Option<u16>, port: u16) -> Option<u16> {
        self.table.choose_udp_port(before, port)
    }

    /// Changes with every change of what steers packets.
    pub fn changes(&self) -> u64 {
        self.table.changes()
    }

    pub(super) fn table(&self) -> &Table<K::Memory> {
        &self.table
    }

    pub(super) fn serves(&self) -> &AtomicBool {
        &self.serves
    }

    /// Whether the memory still begins as it was made.
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
        // A fork holds none of the names, and its parent goes on.
        if !self.kernel.is_ours() {
            return;
        }
        // The first one last: until then this process is a member.
        for lease in lock(&self.leases).drain(..).rev() {
            lease::end(&self.kernel, &self.table, lease);
        }
    }
}
