//! The names by which processes of a host hold what they have.
//!
//! A name is that of a stream socket in the abstract space, which a network namespace has for itself. The kernel gives it to
//! one socket at a time, and frees it with the last descriptor. Sockets of different types do not see each other's names: every
//! version of the registry uses stream sockets.

use super::run::Run;

/// Names under which a birth may be held: as many leftovers of dead processes may hold one before nothing can be born.
pub const BIRTHS: u8 = 8;

/// What a process can hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Name {
    /// A lease.
    Run(Run),
    /// The right to make a registry; see `birth`.
    Birth(u8),
}

impl Name {
    /// The name of this user's, as it is bound. `space` keeps the registries of tests apart.
    pub fn text(self, space: &str, uid: u32) -> String {
        match self {
            Self::Run(run) => format!("{space}/{uid}/run/{run}"),
            Self::Birth(index) => format!("{space}/{uid}/birth/{index}"),
        }
    }

    /// Every name under which a birth may be held.
    pub fn births() -> impl Iterator<Item = Self> {
        (0..BIRTHS).map(Self::Birth)
    }
}
