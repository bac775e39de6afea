//! The owner's state of a target: its users, and its legs to members.

use std::collections::{HashMap, HashSet};

use super::members::MemberId;
use super::refusal::{Reason, Refusal};
use crate::device::{DeviceError, Qpn};

/// Most opens of one member that may be registered with a target.
const OPENS_MAX: usize = 4096;

/// A target and its users.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub target: T,
    pub users: Users,
    /// The legs, each with the number of the order to make its shadow.
    pub legs: HashMap<MemberId, u32>,
    /// Its shadows were ordered into ERR.
    pub is_stopped: bool,
}

/// The users that keep a target alive.
#[derive(Debug)]
pub(super) enum Users {
    /// Number of handles of each member.
    Handles(HashMap<MemberId, u32>),
    /// For a receive-only target: the opens of each member that are registered with it.
    Opens(HashMap<MemberId, HashSet<u32>>),
}

/// The refusal of a number that no target of the kind has, or that this member does not use.
pub(super) fn unknown(qpn: Qpn) -> Refusal {
    DeviceError::NoSuchTarget { qpn: qpn.get() }.into()
}

impl Users {
    pub(super) fn with_handle(member: MemberId) -> Self {
        Self::Handles(HashMap::from([(member, 1)]))
    }

    pub(super) fn with_open(member: MemberId, open: u32) -> Self {
        Self::Opens(HashMap::from([(member, HashSet::from([open]))]))
    }

    pub(super) fn is_receiver(&self) -> bool {
        matches!(self, Self::Opens(_))
    }

    /// Whether a member has a handle.
    pub(super) fn has_handle(&self, member: MemberId) -> bool {
        matches!(self, Self::Handles(handles) if handles.contains_key(&member))
    }

    /// The members that have a handle.
    pub(super) fn holders(&self) -> Vec<MemberId> {
        match self {
            Self::Handles(handles) => handles.keys().copied().collect(),
            Self::Opens(_) => Vec::new(),
        }
    }

    /// Adds a handle for a member; `None` if the target is receive-only.
    pub(super) fn open(&mut self, member: MemberId) -> Option<()> {
        let Self::Handles(handles) = self else { return None };
        let handles = handles.entry(member).or_default();
        *handles = handles.saturating_add(1);
        Some(())
    }

    /// Removes a handle of a member. Returns whether it was the last of all members; `None` if the member has none.
    pub(super) fn close(&mut self, member: MemberId) -> Option<bool> {
        let Self::Handles(handles) = self else { return None };
        let own = handles.get_mut(&member)?;
        *own -= 1;
        if *own == 0 {
            handles.remove(&member);
        }
        Some(handles.is_empty())
    }

    /// Registers an open.
    pub(super) fn register(&mut self, member: MemberId, open: u32, qpn: Qpn) -> Result<(), Refusal> {
        let Self::Opens(opens) = self else { return Err(unknown(qpn)) };
        let own = opens.entry(member).or_default();
        if own.len() >= OPENS_MAX && !own.contains(&open) {
            let text = format!("{OPENS_MAX} opens of this process are registered with the target; end some");
            return Err(Refusal::new(Reason::NoRoom, text));
        }
        own.insert(open);
        Ok(())
    }

    /// Ends a registration. Returns whether it was the last one; `None` if it does not exist.
    pub(super) fn unregister(&mut self, member: MemberId, open: u32) -> Option<bool> {
        let Self::Opens(opens) = self else { return None };
        let own = opens.get_mut(&member)?;
        if !own.remove(&open) {
            return None;
        }
        if own.is_empty() {
            opens.remove(&member);
        }
        Some(opens.is_empty())
    }

    /// Removes a member that has ended. This does not destroy the target: only an explicit call does.
    pub(super) fn forget(&mut self, member: MemberId) {
        match self {
            Self::Handles(handles) => drop(handles.remove(&member)),
            Self::Opens(opens) => drop(opens.remove(&member)),
        }
    }
}
