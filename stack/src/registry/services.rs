//! Connection management across the processes of a host: who is bound to a port, who listens, where a request went, and who keeps queue
//! pair 1.
//!
//! All processes of a host have one queue pair 1 towards its peers. The kernel gives each message to the process that it is for, as far as
//! that can be read from the message. What is for nobody in particular goes to the *keeper*: any process with a queue pair 1 of its own,
//! which says again and again that it serves. Who finds that the keeper has not said so for [`PATIENCE`] takes its place.

use core::net::IpAddr;
use core::sync::atomic::Ordering;
use core::time::Duration;

use super::binding::Binding;
use super::bindings::{Beside, Bindings, Claim, Clash};
use super::error::RegistryError;
use super::kernel::Kernel;
use super::member::{Holder, Member};
use super::requests::{RequestKey, Requests};
use super::run::Run;

/// How often a claim is tried again where another process has one under way.
const TRIES: u32 = 64;
/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_micros(200);
/// After this time without a word a process does not serve. It is longer than a process sleeps that has nothing to do.
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

    /// Listens at a port that it has bound.
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

    /// Gives a port up.
    pub fn release(&self, claim: Claim) {
        if self.first_run().is_ok() {
            Bindings(self.table()).release(claim);
        }
    }

    /// The run of the process that listens for a service at an address. `lives`: whether a living process has a run.
    pub fn listener(&self, service: u32, dst: IpAddr, lives: &dyn Fn(Run) -> bool) -> Option<Run> {
        Bindings(self.table()).listener(service, dst, lives)
    }

    /// The services for which processes are said to listen, at most so many, and the run of one of them each: hints.
    pub fn listeners(&self, most: usize) -> Vec<(u32, Run)> {
        Bindings(self.table()).listeners(most)
    }

    /// The process to which a request went.
    pub fn request(&self, key: RequestKey) -> Option<Run> {
        Requests(self.table()).find(key, self.kernel().now())
    }

    /// Notes that a request goes to a process.
    pub fn note_request(&self, key: RequestKey, run: Run) {
        Requests(self.table()).note(key, run, self.kernel().now());
    }

    /// This process has a queue pair 1 from now on, or has none any more.
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

    /// Says that this process still serves, if it does. Returns whether the host needs a keeper then.
    pub fn still_serves(&self) -> bool {
        if !self.serves_cm() {
            return false;
        }
        let Ok(run) = self.first_run() else { return false };
        let now = self.kernel().now();
        self.table().set_cm(run, Some(now));
        !self.table().keeper().is_some_and(|keeper| self.is_serving(keeper, now))
    }

    /// The keeper; chosen anew, if there is none that serves.
    pub fn keeper(&self) -> Option<Run> {
        let (table, now) = (self.table(), self.kernel().now());
        let before = table.keeper();
        if let Some(keeper) = before.filter(|keeper| self.is_serving(*keeper, now)) {
            return Some(keeper);
        }
        let own = self.first_run().ok();
        let next = own.into_iter().chain(Run::all()).find(|run| self.is_serving(*run, now))?;
        if table.set_keeper(before, next) {
            table.note_change();
        }
        table.keeper().filter(|keeper| self.is_serving(*keeper, now))
    }

    fn is_serving(&self, run: Run, now: u64) -> bool {
        self.table().cm(run).is_some_and(|at| now.abs_diff(at) < PATIENCE.as_nanos() as u64)
    }

    /// Whether a living process of this user has a run, or may have it.
    pub fn lives(&self, run: Run) -> bool {
        !matches!(self.holder_of(run), Ok(Holder::Nobody | Holder::Dead | Holder::Foreign(_)))
    }

    /// Fails in a fork.
    fn first_run(&self) -> Result<Run, RegistryError> {
        self.runs().first().copied().ok_or(RegistryError::Forked)
    }

    fn again(&self, mut attempt: impl FnMut(u64) -> Result<Claim, Clash>) -> Result<Claim, Clash> {
        for _ in 0..TRIES {
            let random = self.kernel().random().map_err(|_| Clash::Taken)?;
            match attempt(random) {
                Err(Clash::Busy) => {
                    // Of two, one is earlier next time.
                    let most = PAUSE_MAX.as_nanos() as u64;
                    self.kernel().sleep(Duration::from_nanos(random % most));
                }
                result => return result,
            }
        }
        // Somebody who has stopped in the middle of it.
        Err(Clash::Taken)
    }
}
