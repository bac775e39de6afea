//! Inspects a registry from outside: which processes are its members, what its memory says of them, and their statistics.
//!
//! The reader is not a member: it leases nothing and writes nothing. The kernel says which process is at a name; all else comes from
//! processes that are not trusted, and is a hint. All members are asked at once. A member that has not answered in time is not waited for
//! again: its request stays open, so that a process which is stopped for hours has only one connection of this reader in its queue, and not
//! one for each look.

use super::admission::Admitted;
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

/// Most bytes of an answer.
const SAID_MAX: usize = 1 << 20;
/// Most bytes received at a time.
const PIECE: usize = 64 << 10;
/// Most requests to a process that closes the connection without an answer.
const TRIES: u32 = 3;
/// Most listeners that are read from the memory.
const LISTENERS_MAX: usize = 4096;
/// Most members that are asked for the memory in one look, and how long to wait for each.
const ASKED_FOR_MEMORY: usize = 3;
const MEMORY_PATIENCE: Duration = Duration::from_millis(200);

/// The answer of a process to a request for statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// This text, which is not validated.
    Text(Vec<u8>),
    /// No answer yet.
    Nothing,
    /// No answer, as its queue of connections is full.
    Full,
    /// It does not answer such requests: it is of another release, or has no device.
    Unknown,
    /// It is of a release whose registry has this version.
    Unlike(u32),
    /// An invalid answer.
    Nonsense,
}

/// A member of the registry.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its PID, as the kernel reports it; 0 if it is not visible from this PID namespace.
    pub pid: u32,
    /// Its user, as the kernel says; `None`: it accepts no connection.
    pub uid: Option<u32>,
    /// Its runs: one at least.
    pub runs: Vec<Run>,
    /// Its answer.
    pub said: Said,
    /// How long it has held its first run; `None` if the memory is not known or does not say.
    pub age: Option<Duration>,
    /// The bindings on which it listens for connections, as the memory says.
    pub listens: Vec<Binding>,
    /// Whether it is the keeper of queue pair 1, as the memory says.
    pub is_keeper: bool,
}

/// The result of a look.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The members.
    pub seen: Vec<Seen>,
    /// Whether the memory is known. Without it neither listeners nor the keeper are known.
    pub has_memory: bool,
    /// Names that a user has who is not known to be admitted.
    pub foreign: usize,
}

/// A reader of the registry of the host.
#[derive(Debug)]
pub struct Reader {
    kernel: Linux,
    runs: usize,
    memory: Option<Known>,
    /// Requests that are open since an earlier look.
    open: Vec<Asked>,
}

/// The registry's memory, and the member that passed it. While that process is a member, the memory is the registry's.
#[derive(Debug)]
struct Known {
    at: Run,
    member: Neighbour,
    table: Table<Memory>,
}

/// A process to which a request was sent.
#[derive(Debug)]
struct Asked {
    at: Run,
    call: Call,
    came: Vec<u8>,
    tries: u32,
    /// It is from an earlier look, and is not waited for.
    is_old: bool,
}

/// The process at the name of a run, and its answer.
struct At {
    run: Run,
    pid: u32,
    uid: Option<u32>,
    said: Said,
    /// The first run of its process, if this run is another one.
    first: Option<Run>,
}

/// The end of a request.
enum End {
    Said(Said),
    /// It is a run of a process whose first run is this one.
    Beside(Run),
    /// There was no answer.
    Gone,
}

impl Reader {
    /// Looks at the names that begin with `space`, of so many runs, on the host of these users: for programs those of
    /// [`RegistryConfig`](super::RegistryConfig)'s default.
    pub fn new(space: &str, runs: usize, admitted: Admitted) -> Self {
        Self { kernel: Linux::new(space, admitted), runs, memory: None, open: Vec::new() }
    }

    /// Makes a look. Waits up to `patience` for processes that were not asked before.
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
        let silent = |asked: &Asked| At::new(asked.at, asked.who(), Said::Nothing);
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

    /// Finds the processes at the names, and sends requests to those without an open one.
    fn find(&mut self, look: &mut Look, here: &mut Vec<At>) -> Result<Vec<Asked>, RegistryError> {
        let mut open = core::mem::take(&mut self.open);
        let (mut asked, mut is_known) = (Vec::new(), false);
        for run in Run::all().take(self.runs) {
            let gave = self.memory.as_ref().filter(|known| known.at == run);
            if let Some(at) = open.iter().position(|asked| asked.at == run) {
                // If its process has ended, so has the connection.
                is_known |= gave.is_some_and(|known| known.member.lives());
                asked.push(open.swap_remove(at));
                continue;
            }
            match self.kernel.find(Name::Run(run))? {
                Found::Living(process) => {
                    is_known |= gave.is_some_and(|known| self.kernel.is_same(&process, &known.member));
                    asked.extend(self.ask(run, process, 1));
                }
                Found::Full => here.push(At::new(run, (0, None), Said::Full)),
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

    /// Receives answers, and removes complete ones from the list.
    fn hear(&self, asked: &mut Vec<Asked>, here: &mut Vec<At>) -> Result<(), RegistryError> {
        for mut one in core::mem::take(asked) {
            let Some(end) = one.hear() else {
                asked.push(one);
                continue;
            };
            let (run, who) = (one.at, one.who());
            match end {
                End::Said(said) => here.push(At::new(run, who, said)),
                End::Beside(first) => {
                    here.push(At { first: Some(first), ..At::new(run, who, Said::Nonsense) })
                }
                // The process has ended, or had too many requests: if it lives, it is asked again.
                End::Gone => match self.kernel.find(Name::Run(run))? {
                    Found::Living(process) if one.tries < TRIES => {
                        asked.extend(self.ask(run, process, one.tries + 1))
                    }
                    Found::Living(_) | Found::Full => here.push(At::new(run, who, Said::Nothing)),
                    Found::Nobody | Found::Dead | Found::Foreign(_) => {}
                },
            }
        }
        Ok(())
    }

    /// Gets the memory from a process that answers, if the memory is not known.
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
    /// At a run, of a process with its user.
    fn new(run: Run, (pid, uid): (u32, Option<u32>), said: Said) -> Self {
        Self { run, pid, uid, said, first: None }
    }
}

impl Asked {
    /// The process, and its user.
    fn who(&self) -> (u32, Option<u32>) {
        (self.call.pid, Some(self.call.uid))
    }

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

    /// Parses the whole answer.
    fn end(&mut self) -> End {
        let rest = self.came.split_off(self.came.len().min(REPLY));
        match Reply::parse(&self.came) {
            None if self.came.is_empty() => End::Gone,
            Some(Reply::Counted([Some(first), ..])) if first != self.at => End::Beside(first),
            // The process accepted the request, but had no time for it.
            Some(Reply::Counted([Some(_), ..])) if rest.is_empty() => End::Gone,
            Some(Reply::Counted([Some(_), ..])) => End::Said(Said::Text(rest)),
            Some(Reply::Unknown) => End::Said(Said::Unknown),
            Some(Reply::Unlike(theirs)) => End::Said(Said::Unlike(theirs)),
            Some(Reply::Counted(_) | Reply::Welcome(_)) | None => End::Said(Said::Nonsense),
        }
    }
}

/// Groups the processes at names into members, each with all of its runs. A process that answers may be several members, one for each
/// device.
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
        // A process cannot claim to be another process.
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
        Self { pid: at.pid, uid: at.uid, runs, said: at.said, age: None, listens, is_keeper: false }
    }
}

/// Adds information from the memory.
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
        At { run: Run::at(run).unwrap(), pid, uid: Some(1000), said, first: first.and_then(Run::at) }
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

    // Goal: whatever runs a process names, neither it nor another process is hidden.
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
