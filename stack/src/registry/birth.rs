//! Who may make a registry: one process of a host at a time.
//!
//! The right is a name, like a lease. If a descriptor of a dead process still has the name, or another user has taken it, the
//! next one of a few serves. So that only one process has the right all the same, it takes a name, listens at it, and then
//! looks at all the others: of two that do so, the one that listens last sees the other. The one with the higher number gives
//! way, the one with the lower number waits for that.
//!
//! A right that lasts long (its process is stopped) keeps others waiting as long as they have patience, and no longer: they fail.

use super::error::RegistryError;
use super::kernel::{Found, Kernel};
use super::name::Name;
use super::patience::Patience;
use core::time::Duration;

/// Time between two looks.
pub const STEP: Duration = Duration::from_millis(20);

/// A process that has, or wants, the right; `None`: it cannot be seen who.
pub type Other<K> = Option<<K as Kernel>::Process>;

/// Takes the right; `None`: another process had it, and has it no longer. Then there may be a registry.
///
/// # Errors
/// The other one does not get on, other users hold all names, or a system call failed.
pub fn take<K: Kernel>(kernel: &K, patience: &mut Patience) -> Result<Option<K::Held>, RegistryError> {
    let (mut foreign, mut squatter) = (0, None);
    for name in Name::births() {
        if let Some(held) = kernel.hold(name)? {
            kernel.listen(&held)?;
            return alone(kernel, held, name, patience);
        }
        match kernel.find(name)? {
            Found::Living(other) => return wait(kernel, Some(other), patience).map(|()| None),
            Found::Foreign(uid) => {
                foreign += 1;
                squatter = Some(uid);
            }
            // The last one does not listen yet, or is dead, or nobody knows: the next name serves as well.
            Found::Nobody | Found::Dead | Found::Full => {}
        }
    }
    let names = Name::births().count();
    match squatter {
        Some(uid) if foreign == names => Err(RegistryError::Squatted { uid, foreign, own: 0 }),
        _ => wait(kernel, None, patience).map(|()| None),
    }
}

/// A process that has the right or wants it, at another name than `mine`.
///
/// # Errors
/// A system call failed.
pub fn other<K: Kernel>(kernel: &K, mine: Option<Name>) -> Result<Option<(Name, Other<K>)>, RegistryError> {
    for name in Name::births().filter(|name| Some(*name) != mine) {
        match kernel.find(name)? {
            Found::Living(other) => return Ok(Some((name, Some(other)))),
            Found::Full => return Ok(Some((name, None))),
            Found::Nobody | Found::Dead | Found::Foreign(_) => {}
        }
    }
    Ok(None)
}

/// Sees to it that nobody else has the right: waits for those with a higher number, and gives way to one with a lower one.
fn alone<K: Kernel>(
    kernel: &K,
    held: K::Held,
    mine: Name,
    patience: &mut Patience,
) -> Result<Option<K::Held>, RegistryError> {
    while let Some((name, other)) = other(kernel, Some(mine))? {
        if name < mine {
            drop(held);
            return wait(kernel, other, patience).map(|()| None);
        }
        wait(kernel, other, patience)?;
    }
    Ok(Some(held))
}

/// Waits until another one has the right no longer; for a while, where it cannot be seen who that is.
fn wait<K: Kernel>(kernel: &K, other: Other<K>, patience: &mut Patience) -> Result<(), RegistryError> {
    let pid = other.as_ref().map_or(0, |other| kernel.pid_of(other));
    loop {
        let Some(slice) = patience.take(STEP) else { return Err(RegistryError::Unfinished { pid }) };
        match &other {
            Some(other) if !kernel.wait_for_end(other, slice) => {}
            Some(_) => return Ok(()),
            None => {
                kernel.sleep(slice);
                return Ok(());
            }
        }
    }
}
