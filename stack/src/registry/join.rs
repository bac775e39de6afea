//! Joins the registry of the host, or gives birth to it.
//!
//! A process asks a member (a living process of the host at the name of a run) for the memory, takes a run, and is a member
//! itself. If there is no member it makes the memory, under the right of `birth`; a guest (`admission`) fails then.
//!
//! Guests are asked only if none of the owner's processes is there: a process of the owner that does not admit them sees none of them, and
//! may have made another registry since.
//!
//! All living members have the same memory. The danger is a process that got the memory of a registry whose members then ended,
//! and takes its run after another one, which saw no member, has made a new one. So each does two things in this order, and the
//! other one sees at least one of them:
//!
//! - who makes a registry takes the right of birth, then looks at every run's name, and gives up the right when it is a member;
//! - who joins listens at the name of its run, then looks whether somebody has the right of birth, and then whether the member
//!   that let it join is still there. If not, it begins again. Before that it lets nobody join.
//!
//! Suppose that a registry was made though a process joined another one. Its run was looked at before it listened there, so the
//! right was given up before it looked for that; so the member that let it join lived longer than that, and was not seen
//! either: it had not listened when it was looked at. The same holds of the member that had let that one join, and so on to the
//! one that made the other registry; but that one had the right when it began to listen.

use super::birth::{self, STEP};
use super::error::RegistryError;
use super::kernel::{Answer, Found, Kernel};
use super::lease::{self, Lease, Terms};
use super::name::Name;
use super::patience::Patience;
use super::run::Run;
use super::table::Table;
use std::collections::VecDeque;

/// Members that are asked at the same time.
const ASKED: usize = 16;
/// How often a member that closes the connection is asked.
const TRIES: u32 = 8;
/// How often a process that joins looks whether the right of birth was given up, before it begins again.
const LOOKS: u32 = 5;

/// What a process has that has joined.
#[derive(Debug)]
pub struct Joined<K: Kernel> {
    /// The memory.
    pub table: Table<K::Memory>,
    /// The number of its birth.
    pub birth: u128,
    /// The first run of the process. It has to keep it as long as it lets others join.
    pub lease: Lease<K::Held>,
}

/// Joins.
///
/// # Errors
/// Nobody answers, versions differ, nothing is left, or a system call failed.
pub fn join<K: Kernel>(
    kernel: &K,
    terms: &Terms,
    patience: &mut Patience,
) -> Result<Joined<K>, RegistryError> {
    loop {
        let welcome = match find_member(kernel, terms, patience)? {
            Some(welcome) => welcome,
            None => {
                if let Some(owner) = kernel.guest_of() {
                    return Err(RegistryError::Absent { owner });
                }
                let Some(right) = birth::take(kernel, patience)? else { continue };
                // One that had the right before may be a member now.
                match find_member(kernel, terms, patience)? {
                    Some(welcome) => {
                        drop(right);
                        welcome
                    }
                    None => return give_birth(kernel, terms, right),
                }
            }
        };
        if let Some(joined) = settle(kernel, terms, welcome)? {
            return Ok(joined);
        }
        let Some(slice) = patience.take(STEP) else { return Err(RegistryError::Unsettled) };
        kernel.sleep(slice);
    }
}

/// A member that lets this process join, and what it gave.
struct Welcome<K: Kernel> {
    name: Name,
    member: K::Process,
    memory: K::Memory,
    birth: u128,
}

/// A member that was asked.
struct Asked<K: Kernel> {
    name: Name,
    member: K::Process,
    tries: u32,
}

/// What members say that do not let this process join.
#[derive(Default)]
struct Refused {
    unlike: Option<RegistryError>,
    /// Those that say nothing, or nonsense.
    pids: Vec<u32>,
    /// Those that close the connection.
    closed: Vec<u32>,
    full: bool,
}

/// Names at which members may be, and how often they were asked.
struct Names {
    left: VecDeque<(Name, u32)>,
    /// Those of guests, who are asked after all others.
    guests: VecDeque<(Name, u32)>,
    /// It is their turn.
    of_guests: bool,
}

/// Looks for members and asks them, one more with each step, until one lets this process join; `None`: there is no member.
fn find_member<K: Kernel>(
    kernel: &K,
    terms: &Terms,
    patience: &mut Patience,
) -> Result<Option<Welcome<K>>, RegistryError> {
    // Each begins elsewhere, so that not all ask the same one.
    let first = kernel.random()? as usize % terms.runs;
    let names = (0..terms.runs).filter_map(|n| Run::all().nth((first + n) % terms.runs)).map(Name::Run);
    let left = names.map(|name| (name, 0)).collect();
    let mut names = Names { left, guests: VecDeque::new(), of_guests: false };
    let mut asked: Vec<Asked<K>> = Vec::new();
    let mut refused = Refused::default();
    loop {
        let next = if asked.len() < ASKED { next_member(kernel, &mut names, &mut refused)? } else { None };
        // To ask another one for the first time needs no patience.
        let is_new = next.as_ref().is_some_and(|next| next.tries == 0);
        asked.extend(next);
        if asked.is_empty() {
            if names.guests.is_empty() || refused.any() {
                break;
            }
            (names.left, names.of_guests) = (core::mem::take(&mut names.guests), true);
            continue;
        }
        let Some(slice) = (if is_new { Some(STEP) } else { patience.take(STEP) }) else { break };
        let members: Vec<&K::Process> = asked.iter().map(|asked| &asked.member).collect();
        let Some((index, answer)) = kernel.answer(&members, slice)? else {
            if asked.len() == ASKED && !names.left.is_empty() {
                // Others get their turn, and this one another one after them.
                let slow = asked.remove(0);
                names.left.push_back((slow.name, slow.tries.max(1)));
            }
            continue;
        };
        let Asked { name, member, tries } = asked.remove(index);
        match answer {
            Answer::Welcome(memory, birth) => return Ok(Some(Welcome { name, member, memory, birth })),
            Answer::Unlike(theirs) => {
                let pid = kernel.pid_of(&member);
                refused.unlike = Some(RegistryError::Unlike { theirs, pid });
            }
            // One that closed the connection and is still there had too many.
            Answer::Gone if tries < TRIES => names.left.push_back((name, tries + 1)),
            // A guest need not know another one: only the owner can let both in.
            Answer::Gone if kernel.guest_of().is_some() && kernel.is_guest(&member) => {}
            Answer::Gone => refused.closed.push(kernel.pid_of(&member)),
            Answer::Nonsense => refused.pids.push(kernel.pid_of(&member)),
        }
    }
    refused.pids.extend(asked.iter().map(|asked| kernel.pid_of(&asked.member)));
    refused.end(kernel.guest_of())
}

impl Refused {
    fn any(&self) -> bool {
        self.unlike.is_some() || self.full || !self.pids.is_empty() || !self.closed.is_empty()
    }

    /// Why this process could not join, a guest of this user's; or that there is no member.
    fn end<T>(self, guest_of: Option<u32>) -> Result<Option<T>, RegistryError> {
        let is_any = self.any();
        let Self { unlike, mut pids, closed, full } = self;
        match (unlike, guest_of) {
            (Some(unlike), _) => Err(unlike),
            // Those who do not admit it close the connection.
            (None, Some(owner)) if pids.is_empty() && !full && !closed.is_empty() => {
                Err(RegistryError::NotAdmitted { owner, pids: closed })
            }
            _ if is_any => {
                pids.extend(closed);
                Err(RegistryError::NoAnswer { pids })
            }
            _ => Ok(None),
        }
    }
}

/// Asks the next member.
fn next_member<K: Kernel>(
    kernel: &K,
    names: &mut Names,
    refused: &mut Refused,
) -> Result<Option<Asked<K>>, RegistryError> {
    while let Some((name, tries)) = names.left.pop_front() {
        match kernel.find(name)? {
            Found::Living(member) if kernel.is_guest(&member) && !names.of_guests => {
                names.guests.push_back((name, tries));
            }
            Found::Living(member) => {
                kernel.ask(&member);
                return Ok(Some(Asked { name, member, tries }));
            }
            Found::Full => refused.full = true,
            Found::Nobody | Found::Dead | Found::Foreign(_) => {}
        }
    }
    Ok(None)
}

/// Takes a run of a registry that this process may join; `None`: that may be over.
fn settle<K: Kernel>(
    kernel: &K,
    terms: &Terms,
    welcome: Welcome<K>,
) -> Result<Option<Joined<K>>, RegistryError> {
    let table = Table::of(welcome.memory);
    let theirs = table.addresses();
    if !terms.addresses.suit(&theirs) {
        let [asked, theirs] = [terms.addresses, theirs].map(|addresses| addresses.to_string());
        return Err(RegistryError::Addresses { asked, theirs });
    }
    let mut lease = lease::take(kernel, &table, terms)?;
    if is_birth_under_way(kernel)? || !is_there(kernel, welcome.name, &welcome.member)? {
        return Ok(None);
    }
    lease::begin(kernel, &table, &mut lease);
    Ok(Some(Joined { table, birth: welcome.birth, lease }))
}

/// Whether a process has the right of birth, and has it for longer than it takes to see that it does not need it.
fn is_birth_under_way<K: Kernel>(kernel: &K) -> Result<bool, RegistryError> {
    for _ in 0..LOOKS {
        match birth::other(kernel, None)? {
            None => return Ok(false),
            Some((_, Some(other))) => drop(kernel.wait_for_end(&other, STEP)),
            Some((_, None)) => kernel.sleep(STEP),
        }
    }
    Ok(true)
}

/// Whether a member is still at its name.
fn is_there<K: Kernel>(kernel: &K, name: Name, member: &K::Process) -> Result<bool, RegistryError> {
    Ok(match kernel.find(name)? {
        Found::Living(now) => kernel.is_same(&now, member),
        _ => false,
    })
}

/// Makes a registry, and keeps the right to do so until this process is its first member.
fn give_birth<K: Kernel>(kernel: &K, terms: &Terms, right: K::Held) -> Result<Joined<K>, RegistryError> {
    let birth = u128::from(kernel.random()?) << 64 | u128::from(kernel.random()?);
    let table = Table::born(kernel.make()?, birth);
    table.set_addresses(&terms.addresses);
    let mut lease = lease::take(kernel, &table, terms)?;
    lease::begin(kernel, &table, &mut lease);
    drop(right);
    Ok(Joined { table, birth, lease })
}
