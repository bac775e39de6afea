//! Takes a run.
//!
//! Who holds the name of a run has the run, whatever the memory says. The memory proposes an order; a candidate whose mark has
//! changed by the time its name is held was another process's meanwhile, and is not taken. If the memory proposes nothing,
//! every name is tried.

use super::addresses::Addresses;
use super::draw::{self, Candidate};
use super::error::RegistryError;
use super::kernel::{Found, Kernel};
use super::name::Name;
use super::run::Run;
use super::table::{Mark, Table};
use core::time::Duration;

/// How often the memory is asked before every name is tried.
const PASSES: usize = 3;

/// Which runs may be leased, and when again; and what the processes are to have.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The first so many. All of them, but in tests.
    pub runs: usize,
    /// How long a run rests.
    pub rest: Duration,
    /// The addresses that a process is to have.
    pub addresses: Addresses,
}

/// A run whose name this process holds, and at which it can be found.
#[derive(Clone, Debug)]
pub struct Lease<H> {
    /// The run.
    pub run: Run,
    /// Its name.
    pub held: H,
    /// The last mark that is known of it.
    pub mark: Mark,
}

/// Takes the name of a free run. Its mark is as it was: [`begin`] changes it.
///
/// # Errors
/// There is none, or a system call failed.
pub fn take<K: Kernel>(
    kernel: &K,
    table: &Table<K::Memory>,
    terms: &Terms,
) -> Result<Lease<K::Held>, RegistryError> {
    for _ in 0..PASSES {
        note_ends(kernel, table, terms)?;
        let candidates = Run::all().take(terms.runs).map(|run| Candidate { run, mark: table.mark(run) });
        let random = kernel.random()?;
        for Candidate { run, mark } in draw::order(candidates, kernel.now(), terms.rest, random) {
            let Some(held) = kernel.hold(Name::Run(run))? else {
                // Another process was quicker, or another user has it: the system counts those that it finds.
                kernel.find(Name::Run(run))?;
                continue;
            };
            if table.mark(run) == mark {
                kernel.listen(&held)?;
                return Ok(Lease { run, held, mark });
            }
            note_end(kernel, table, run);
        }
    }
    // Perhaps the memory says what is not so.
    for run in Run::all().take(terms.runs) {
        if let Some(held) = kernel.hold(Name::Run(run))? {
            kernel.listen(&held)?;
            return Ok(Lease { run, held, mark: table.mark(run) });
        }
    }
    Err(nothing_left(kernel, terms)?)
}

/// Notes that this process has the run from now on.
pub fn begin<K: Kernel>(kernel: &K, table: &Table<K::Memory>, lease: &mut Lease<K::Held>) {
    lease.mark = table.lease(lease.run, lease.mark, kernel.now(), kernel.pid());
}

/// Notes that this process has the run no longer. Only then its name is given up.
pub fn end<K: Kernel>(kernel: &K, table: &Table<K::Memory>, lease: Lease<K::Held>) {
    table.end(lease.run, lease.mark, kernel.now());
}

/// Looks whether runs that are said to be held are free, and notes it.
fn note_ends<K: Kernel>(kernel: &K, table: &Table<K::Memory>, terms: &Terms) -> Result<(), RegistryError> {
    for run in Run::all().take(terms.runs) {
        if draw::is_open(table.mark(run), kernel.now())
            && let Some(_held) = kernel.hold(Name::Run(run))?
        {
            note_end(kernel, table, run);
        }
    }
    Ok(())
}

/// Notes that a run is free, whose name the caller holds.
fn note_end<K: Kernel>(kernel: &K, table: &Table<K::Memory>, run: Run) {
    let (mark, now) = (table.mark(run), kernel.now());
    if draw::is_open(mark, now) {
        table.end(run, mark, now);
    }
}

/// Why there is no run.
fn nothing_left<K: Kernel>(kernel: &K, terms: &Terms) -> Result<RegistryError, RegistryError> {
    let (mut own, mut foreign, mut squatter) = (0, 0, None);
    for run in Run::all().take(terms.runs) {
        match kernel.find(Name::Run(run))? {
            Found::Foreign(uid) => {
                foreign += 1;
                squatter = Some(uid);
            }
            Found::Nobody | Found::Living(_) | Found::Dead | Found::Full => own += 1,
        }
    }
    Ok(match squatter {
        Some(uid) => RegistryError::Squatted { uid, foreign, own },
        None => RegistryError::Exhausted { own },
    })
}
