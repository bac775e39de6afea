//! What the owner knows of a target: who uses it, and the legs to members.

use std::collections::{HashMap, HashSet};

use super::members::MemberId;
use super::refusal::{Reason, Refusal};
use crate::device::{DeviceError, Qpn};

/// Opens of one member that may be registered with a target.
const OPENS_MAX: usize = 4096;

/// A target and its users.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub target: T,
    pub users: Users,
    /// The legs, each with the number of the order to make its shadow.
    pub legs: HashMap<MemberId, u32>,
    /// Its shadows were told that it has failed.
    pub is_stopped: bool,
}

/// Who keeps a target.
#[derive(Debug)]
pub(super) enum Users {
    /// So many handles of each member.
    Handles(HashMap<MemberId, u32>),
    /// The opens of each member that have registered with it: it is receive-only.
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

    /// One more handle for a member; `None`: it is receive-only.
    pub(super) fn open(&mut self, member: MemberId) -> Option<()> {
        let Self::Handles(handles) = self else { return None };
        let handles = handles.entry(member).or_default();
        *handles = handles.saturating_add(1);
        Some(())
    }

    /// A handle of a member less. Returns whether it was the last one; `None`: the member has none.
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

    /// Ends a registration. Returns whether it was the last one; `None`: there is no such registration.
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

    /// A member has gone, which does not end the target: only who says so does.
    pub(super) fn forget(&mut self, member: MemberId) {
        match self {
            Self::Handles(handles) => drop(handles.remove(&member)),
            Self::Opens(opens) => drop(opens.remove(&member)),
        }
    }
}
