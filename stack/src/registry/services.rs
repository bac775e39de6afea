//! Connection management across the processes of a host: which process is bound to a port, which listens, where a request went, and which
//! keeps queue pair 1.
//!
//! The processes of a host share one queue pair 1 towards its peers. The kernel delivers each MAD to the process that it is for, as far as
//! the MAD names it. MADs that name no process go to the *keeper*: one of the processes with a queue pair 1 of its own. Each such process
//! renews a heartbeat in the shared memory. A process that finds the keeper's heartbeat older than [`PATIENCE`] takes the keeper's place,
//! or chooses another process that serves.

use core::net::IpAddr;
use core::sync::atomic::Ordering;
use core::time::Duration;

use super::binding::Binding;
use super::bindings::{Beside, Bindings, Claim, Clash};
use super::error::RegistryError;
use super::kernel::Kernel;
use super::member::{Holder, Member, Resident};
use super::requests::{RequestKey, Requests};
use super::run::Run;

/// Most attempts at a claim, while another process has a conflicting claim in progress.
const TRIES: u32 = 64;
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_micros(200);
/// A process whose heartbeat is older than this does not serve. It is longer than the longest sleep of an idle process.
const PATIENCE: Duration = Duration::from_millis(500);

impl<K: Kernel> Member<K> {
    /// Binds a port for this process.
    ///
    /// # Errors
    /// [`Clash::Taken`], [`Clash::Full`].
    pub fn bind(&self, binding: &Binding, beside: Beside) -> Result<Claim, Clash> {
        let (bindings, lives) = (Bindings(self.table()), |run| self.lives(run));
        let run = self.first_run().map_err(|_| Clash::Taken)?;
        let owner = bindings.owner(run);
        self.again(|random| bindings.claim(owner, binding, beside, random, &lives))
    }

    /// Listens on a port that this process has bound.
    ///
    /// # Errors
    /// [`Clash::Taken`].
    pub fn listen(&self, claim: Claim) -> Result<Claim, Clash> {
        let (bindings, lives) = (Bindings(self.table()), |run| self.lives(run));
        self.first_run().map_err(|_| Clash::Taken)?;
        let claim = self.again(|_| bindings.listen(claim, &lives))?;
        self.table().note_change();
        Ok(claim)
    }

    /// Releases a port.
    pub fn release(&self, claim: Claim) {
        if self.first_run().is_ok() {
            Bindings(self.table()).release(claim);
        }
    }

    /// The run of the process that listens for a service at an address. `lives` returns whether a living process holds a run.
    pub fn listener(&self, service: u32, dst: IpAddr, lives: &dyn Fn(Run) -> bool) -> Option<Run> {
        Bindings(self.table()).listener(service, dst, lives)
    }

    /// The services for which processes listen, at most `most`, each with the run of one of these processes. They are hints.
    pub fn listeners(&self, most: usize) -> Vec<(u32, Run)> {
        Bindings(self.table()).listeners(most)
    }

    /// The run of the process to which a request went, if known.
    pub fn request(&self, key: RequestKey) -> Option<Run> {
        Requests(self.table()).find(key, self.kernel().now())
    }

    /// Notes that a request goes to a process.
    pub fn note_request(&self, key: RequestKey, run: Run) {
        Requests(self.table()).note(key, run, self.kernel().now());
    }

    /// Notes whether this process has a queue pair 1 from now on.
    pub fn serve_cm(&self, serves: bool) {
        self.serves().store(serves, Ordering::Relaxed);
        if let Ok(run) = self.first_run() {
            self.table().set_cm(run, serves.then(|| self.kernel().now()));
            self.table().note_change();
        }
    }

    /// Whether this process has a queue pair 1.
    pub fn serves_cm(&self) -> bool {
        self.serves().load(Ordering::Relaxed)
    }

    /// Renews the heartbeat of this process, if it serves. Returns whether the host needs a keeper then.
    pub fn still_serves(&self) -> bool {
        if !self.serves_cm() {
            return false;
        }
        let Ok(run) = self.first_run() else { return false };
        let now = self.kernel().now();
        self.table().set_cm(run, Some(now));
        !self.table().keeper().is_some_and(|keeper| self.is_serving(keeper, now))
    }

    /// The run of the keeper. Chooses another one if the keeper does not serve; `None` if no process serves.
    pub fn keeper(&self) -> Option<Run> {
        let (table, now) = (self.table(), self.kernel().now());
        let before = table.keeper();
        if let Some(keeper) = before.filter(|keeper| self.is_serving(*keeper, now)) {
            return Some(keeper);
        }
        // A guest is it only if none of the owner's processes serves, which the network reaches at once.
        let own = self.first_run().ok().filter(|_| self.kernel().guest_of().is_none());
        let next = own.into_iter().chain(Run::all()).find(|run| self.is_serving(*run, now))?;
        if table.set_keeper(before, next) {
            table.note_change();
        }
        table.keeper().filter(|keeper| self.is_serving(*keeper, now))
    }

    fn is_serving(&self, run: Run, now: u64) -> bool {
        self.table().cm(run).is_some_and(|at| now.abs_diff(at) < PATIENCE.as_nanos() as u64)
    }

    /// Whether a living process of the host has a run, or may have it.
    pub fn lives(&self, run: Run) -> bool {
        self.resident(run) != Resident::Nobody
    }

    /// Whose process has a run.
    pub fn resident(&self, run: Run) -> Resident {
        match self.find(run) {
            Ok(Ok(process)) if self.kernel().is_guest(&process) => Resident::Guest,
            // A guest need not know the others.
            Ok(Err(Holder::Foreign(_))) if self.kernel().guest_of().is_some() => Resident::Guest,
            Ok(Err(Holder::Nobody | Holder::Dead | Holder::Foreign(_))) => Resident::Nobody,
            Ok(Ok(_) | Err(_)) | Err(_) => Resident::Owner,
        }
    }

    /// Fails in a forked child.
    fn first_run(&self) -> Result<Run, RegistryError> {
        self.runs().first().copied().ok_or(RegistryError::Forked)
    }

    fn again(&self, mut attempt: impl FnMut(u64) -> Result<Claim, Clash>) -> Result<Claim, Clash> {
        for _ in 0..TRIES {
            let random = self.kernel().random().map_err(|_| Clash::Taken)?;
            match attempt(random) {
                Err(Clash::Busy) => {
                    // A random pause, so that one of two claimers is first next time.
                    let most = PAUSE_MAX.as_nanos() as u64;
                    self.kernel().sleep(Duration::from_nanos(random % most));
                }
                result => return result,
            }
        }
        // Another process has stopped in the middle of a claim.
        Err(Clash::Taken)
    }
}
