//! Looks at a registry from outside: which processes are its members, what its memory says of them, and what they say themselves.
//!
//! Who looks is no member: it leases nothing and writes nothing. Which process is at a name is the kernel's word; all else is a hint, of
//! processes that are admitted and never believed. All are asked at once, and who has not answered in time is not waited for again: the
//! question stays open, so that a process which is stopped for hours has one connection of this reader's in its queue, and not one for
//! each look.

use super::binding::Binding;
use super::bindings::Bindings;
use super::call::Call;
use super::error::RegistryError;
use super::kernel::{Answer, Found, Kernel};
use super::linux::{Linux, Neighbour};
use super::memory::Memory;
use super::message::{REPLY, Reply};
use super::name::Name;
use super::run::Run;
use super::socket::Lies;
use super::table::{Mark, Table};
use crate::sync::eventfd::wait_readable;
use core::time::Duration;
use rustix::event::{PollFd, PollFlags};
use std::time::Instant;

/// Bytes that a process may say.
const SAID_MAX: usize = 1 << 20;
/// Bytes that are taken at a time.
const PIECE: usize = 64 << 10;
/// How often a process is asked that closes the connection.
const TRIES: u32 = 3;
/// Listeners that are read from the memory.
const LISTENERS_MAX: usize = 4096;
/// Members that are asked for the memory in one look, and how long each may take.
const ASKED_FOR_MEMORY: usize = 3;
const MEMORY_PATIENCE: Duration = Duration::from_millis(200);

/// What a process says when it is asked for statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// This text, whatever it may be.
    Text(Vec<u8>),
    /// Nothing, yet.
    Nothing,
    /// Nothing, as it accepts no more connections.
    Full,
    /// That it answers no such question: of another release, or without a device.
    Unknown,
    /// That it is of a release whose registry has this version.
    Unlike(u32),
    /// Something else.
    Nonsense,
}

/// A member of the registry.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The process, as the kernel says; 0: it is not visible from here.
    pub pid: u32,
    /// Its runs: one at least.
    pub runs: Vec<Run>,
    /// What it says.
    pub said: Said,
    /// How long it has the first run; `None`: the memory is not known, or does not say it.
    pub age: Option<Duration>,
    /// Where it listens for connections, as the memory says.
    pub listens: Vec<Binding>,
    /// Whether the memory says that it is the keeper of queue pair 1.
    pub is_keeper: bool,
}

/// What a look has found.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The members.
    pub seen: Vec<Seen>,
    /// Whether one of them gave the memory. Without it nobody is known to listen, or to be the keeper.
    pub has_memory: bool,
    /// Names that another user has taken.
    pub foreign: usize,
}

/// Looks at the registry of the host.
#[derive(Debug)]
pub struct Reader {
    kernel: Linux,
    runs: usize,
    memory: Option<Known>,
    /// Questions that are open since an earlier look.
    open: Vec<Asked>,
}

/// The registry's memory, and the member that gave it. As long as that is a member, the memory is the registry's.
#[derive(Debug)]
struct Known {
    at: Run,
    member: Neighbour,
    table: Table<Memory>,
}

/// A process that was asked.
#[derive(Debug)]
struct Asked {
    at: Run,
    call: Call,
    came: Vec<u8>,
    tries: u32,
    /// Nobody waits for it.
    is_old: bool,
}

/// What is at the name of a run.
struct At {
    run: Run,
    pid: u32,
    said: Said,
    /// It is not the first run of its process, but this one is.
    first: Option<Run>,
}

/// The end of an answer.
enum End {
    Said(Said),
    /// It is a run of the process that has this one first.
    Beside(Run),
    /// There was none.
    Gone,
}

impl Reader {
    /// Looks at the names that begin with `space`, of so many runs: for programs those of
    /// [`RegistryConfig`](super::RegistryConfig)'s default.
    ///
    /// # Errors
    /// The user of this process is not the only one of that number.
    pub fn new(space: &str, runs: usize) -> Result<Self, RegistryError> {
        Ok(Self { kernel: Linux::new(space)?, runs, memory: None, open: Vec::new() })
    }

    /// Looks, and waits so long for those who have not been asked before.
    ///
    /// # Errors
    /// This process has no descriptor left.
    pub fn look(&mut self, patience: Duration) -> Result<Look, RegistryError> {
        let (mut look, mut here) = (Look::default(), Vec::new());
        let mut asked = self.find(&mut look, &mut here)?;
        let until = Instant::now() + patience;
        loop {
            self.hear(&mut asked, &mut here)?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || asked.iter().all(|asked| asked.is_old) {
                break;
            }
            let connections = asked.iter().map(|asked| &asked.call.connection);
            let mut fds: Vec<PollFd<'_>> = connections.map(|one| PollFd::new(one, PollFlags::IN)).collect();
            wait_readable(&mut fds, left);
        }
        let silent = |asked: &Asked| At::new(asked.at, asked.call.pid, Said::Nothing);
        here.extend(asked.iter().map(silent));
        asked.iter_mut().for_each(|asked| asked.is_old = true);
        self.open = asked;
        self.get_memory(&here)?;
        look.seen = together(here);
        look.has_memory = self.memory.is_some();
        if let Some(known) = &self.memory {
            tell(&known.table, self.kernel.now(), &mut look.seen);
        }
        Ok(look)
    }

    /// Finds who is at the names, and asks those who have not been asked.
    fn find(&mut self, look: &mut Look, here: &mut Vec<At>) -> Result<Vec<Asked>, RegistryError> {
        let mut open = core::mem::take(&mut self.open);
        let (mut asked, mut is_known) = (Vec::new(), false);
        for run in Run::all().take(self.runs) {
            let gave = self.memory.as_ref().filter(|known| known.at == run);
            if let Some(at) = open.iter().position(|asked| asked.at == run) {
                // If its process has ended, the connection has, too.
                is_known |= gave.is_some_and(|known| known.member.lives());
                asked.push(open.swap_remove(at));
                continue;
            }
            match self.kernel.find(Name::Run(run))? {
                Found::Living(process) => {
                    is_known |= gave.is_some_and(|known| self.kernel.is_same(&process, &known.member));
                    asked.extend(self.ask(run, process, 1));
                }
                Found::Full => here.push(At::new(run, 0, Said::Full)),
                Found::Foreign(_) => look.foreign += 1,
                Found::Nobody | Found::Dead => {}
            }
        }
        if !is_known {
            self.memory = None;
        }
        Ok(asked)
    }

    fn ask(&self, at: Run, process: Neighbour, tries: u32) -> Option<Asked> {
        let call = self.kernel.call_for_stats(process)?;
        Some(Asked { at, call, came: Vec::new(), tries, is_old: false })
    }

    /// Takes what has come, and those who have said everything out of the list.
    fn hear(&self, asked: &mut Vec<Asked>, here: &mut Vec<At>) -> Result<(), RegistryError> {
        for mut one in core::mem::take(asked) {
            let Some(end) = one.hear() else {
                asked.push(one);
                continue;
            };
            let (run, pid) = (one.at, one.call.pid);
            match end {
                End::Said(said) => here.push(At::new(run, pid, said)),
                End::Beside(first) => {
                    here.push(At { first: Some(first), ..At::new(run, pid, Said::Nonsense) })
                }
                // It has ended, or had too many: then it is asked again.
                End::Gone => match self.kernel.find(Name::Run(run))? {
                    Found::Living(process) if one.tries < TRIES => {
                        asked.extend(self.ask(run, process, one.tries + 1))
                    }
                    Found::Living(_) | Found::Full => here.push(At::new(run, pid, Said::Nothing)),
                    Found::Nobody | Found::Dead | Found::Foreign(_) => {}
                },
            }
        }
        Ok(())
    }

    /// Gets the memory from one of those who answer, if it is not known.
    fn get_memory(&mut self, here: &[At]) -> Result<(), RegistryError> {
        let answers = |at: &&At| at.first.is_none() && matches!(at.said, Said::Text(_) | Said::Unknown);
        for at in here.iter().filter(answers).take(ASKED_FOR_MEMORY) {
            if self.memory.is_some() {
                break;
            }
            let Found::Living(member) = self.kernel.find(Name::Run(at.run))? else { continue };
            self.kernel.ask(&member);
            if let Some((_, Answer::Welcome(memory, _))) = self.kernel.answer(&[&member], MEMORY_PATIENCE)? {
                self.memory = Some(Known { at: at.run, member, table: Table::of(memory) });
            }
        }
        Ok(())
    }
}

impl At {
    fn new(run: Run, pid: u32, said: Said) -> Self {
        Self { run, pid, said, first: None }
    }
}

impl Asked {
    /// Takes what has come; `None`: it may say more.
    fn hear(&mut self) -> Option<End> {
        let mut bytes = [0; PIECE];
        loop {
            match self.call.connection.peek(&mut bytes) {
                Lies::Nothing => return None,
                Lies::End => return Some(self.end()),
                Lies::Descriptors => return Some(End::Said(Said::Nonsense)),
                Lies::Bytes(len) if self.came.len() + len > SAID_MAX => {
                    return Some(End::Said(Said::Nonsense));
                }
                Lies::Bytes(len) => {
                    let piece = &mut bytes[..len];
                    self.call.connection.take(piece);
                    self.came.extend_from_slice(piece);
                }
            }
        }
    }

    /// What all of it is.
    fn end(&mut self) -> End {
        let rest = self.came.split_off(self.came.len().min(REPLY));
        match Reply::parse(&self.came) {
            None if self.came.is_empty() => End::Gone,
            Some(Reply::Counted([Some(first), ..])) if first != self.at => End::Beside(first),
            // It took the question, and had no time for it.
            Some(Reply::Counted([Some(_), ..])) if rest.is_empty() => End::Gone,
            Some(Reply::Counted([Some(_), ..])) => End::Said(Said::Text(rest)),
            Some(Reply::Unknown) => End::Said(Said::Unknown),
            Some(Reply::Unlike(theirs)) => End::Said(Said::Unlike(theirs)),
            Some(Reply::Counted(_) | Reply::Welcome(_)) | None => End::Said(Said::Nonsense),
        }
    }
}

/// The members, each with all of its runs. A process that answers may have several, one for each device.
fn together(here: Vec<At>) -> Vec<Seen> {
    let (firsts, others): (Vec<At>, Vec<At>) = here.into_iter().partition(|at| at.first.is_none());
    let mut seen: Vec<Seen> = Vec::new();
    for at in firsts {
        let is_silent = |said: &Said| *said == Said::Nothing;
        let same = seen
            .iter_mut()
            .find(|seen| is_silent(&at.said) && is_silent(&seen.said) && at.pid != 0 && seen.pid == at.pid);
        match same {
            Some(same) => same.runs.push(at.run),
            None => seen.push(Seen::new(at)),
        }
    }
    for at in others {
        // Nobody can say that it is another process's.
        let of = seen
            .iter_mut()
            .find(|seen| seen.pid == at.pid && at.first.is_some_and(|first| seen.runs.contains(&first)));
        match of {
            Some(of) => of.runs.push(at.run),
            None => seen.push(Seen::new(at)),
        }
    }
    seen.sort_by_key(|seen| (seen.pid, seen.runs[0]));
    seen
}

impl Seen {
    fn new(at: At) -> Self {
        let (runs, listens) = (vec![at.run], Vec::new());
        Self { pid: at.pid, runs, said: at.said, age: None, listens, is_keeper: false }
    }
}

/// Adds what the memory says.
fn tell(table: &Table<Memory>, now: u64, seen: &mut [Seen]) {
    let (listening, keeper) = (Bindings(table).listening(LISTENERS_MAX), table.keeper());
    for seen in seen {
        let info = table.info(seen.runs[0]);
        let is_held = matches!(info.mark, Mark::Held(_));
        seen.age = is_held.then(|| Duration::from_nanos(now.saturating_sub(info.began)));
        if seen.said == Said::Full {
            seen.pid = u32::try_from(info.pid).ok().filter(|_| is_held).unwrap_or_default();
        }
        let its = listening.iter().filter(|(_, run)| seen.runs.contains(run));
        seen.listens = its.map(|(binding, _)| *binding).collect();
        seen.is_keeper = keeper.is_some_and(|keeper| seen.runs.contains(&keeper));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(run: usize, pid: u32, said: Said, first: Option<usize>) -> At {
        At { run: Run::at(run).unwrap(), pid, said, first: first.and_then(Run::at) }
    }

    fn rows(here: Vec<At>) -> Vec<(u32, Vec<usize>)> {
        let runs = |seen: &Seen| seen.runs.iter().map(|run| run.index()).collect();
        together(here).iter().map(|seen| (seen.pid, runs(seen))).collect()
    }

    #[test]
    fn runs_of_one_member_stand_together_and_devices_of_one_process_do_not() {
        let text = || Said::Text(b"{}".to_vec());
        let here = vec![
            at(1, 7, Said::Nonsense, Some(4)),
            at(2, 9, text(), None),
            at(4, 7, text(), None),
            at(5, 7, text(), None),
        ];
        assert_eq!(rows(here), [(7, vec![4, 1]), (7, vec![5]), (9, vec![2])]);
    }

    #[test]
    fn those_who_say_nothing_are_one_by_their_process() {
        let silent = |run, pid| at(run, pid, Said::Nothing, None);
        let here =
            vec![silent(1, 7), silent(2, 7), silent(3, 0), silent(4, 0), at(5, 7, Said::Nonsense, Some(2))];
        assert_eq!(rows(here), [(0, vec![3]), (0, vec![4]), (7, vec![1, 2, 5])]);
    }

    // Goal: whatever runs a process names, no other one is hidden, and neither is it.
    #[test]
    fn who_names_the_run_of_another_process_stands_alone() {
        let beside = |run, pid, first| at(run, pid, Said::Nonsense, Some(first));
        let here = vec![
            at(1, 7, Said::Text(Vec::new()), None),
            beside(2, 8, 1),
            beside(3, 9, 4),
            beside(4, 9, 3),
            beside(5, 9, 300),
        ];
        assert_eq!(rows(here), [(7, vec![1]), (8, vec![2]), (9, vec![3, 4]), (9, vec![5])]);
    }
}
