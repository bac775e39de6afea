//! Multicast groups of this host: their reports to the link's routers and switches (RFC 2236, RFC 2710).
//!
//! A group is reported [`GROUP_REPORTS`] times when it is joined, [`GROUP_REPORT_GAP`] apart, because a report may be lost; and once at a
//! random time after each query. When the last user leaves, a leave message goes to the routers. As in the later versions of both
//! protocols, reports of other hosts do not suppress ours: a snooping switch needs to see every member.

use core::time::Duration;

use crate::config::{GROUP_REPORT_GAP, GROUP_REPORTS, MCAST_GRP_MAX};
use crate::id::{Gid, Mac};
use crate::time::Instant;

/// Why a group cannot be joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JoinError {
    /// Not a multicast address.
    #[error("{0} is no multicast address; IPv4 groups are 224.0.0.0/4, IPv6 groups ff00::/8")]
    NotMulticast(Gid),
    /// Every entry is in use.
    #[error("this host is in {MCAST_GRP_MAX} groups, which is all it can be in; leave one first")]
    Full,
}

/// A message that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Membership {
    /// We are in the group.
    Report(Gid),
    /// We left the group.
    Leave(Gid),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    group: Gid,
    /// Reports that are left to send; a query raises this to one at least.
    left: u8,
    /// Whether the group has no user any more; then a leave message is due.
    leaving: bool,
    /// When the next message is due.
    next: Instant,
}

#[derive(Debug)]
pub(super) struct Groups {
    entries: Vec<Entry>, // capacity MCAST_GRP_MAX
    /// No entry is due earlier.
    deadline: Instant,
    /// State of the random sequence that spreads reports.
    random: u64,
}

/// Groups that are never reported: all nodes, and groups of scope 0 or 1, which do not leave the host (RFC 2236 6, RFC 2710 5).
fn unreported(group: &Gid) -> bool {
    match group.as_v4() {
        Some(v4) => v4 == [224, 0, 0, 1],
        None => group.0[1] & 0x0f <= 1 || group.0 == [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    }
}

impl Groups {
    pub(super) fn new(mac: Mac) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        Self {
            entries: Vec::with_capacity(MCAST_GRP_MAX),
            deadline: Instant::FAR,
            random: u64::from_be_bytes([0, 0, a, b, c, d, e, f]),
        }
    }

    /// [`Groups::poll`] returns nothing before this time. `None`: not until another call changes that.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.deadline != Instant::FAR).then_some(self.deadline)
    }

    pub(super) fn contains(&self, group: &Gid) -> bool {
        self.entries.iter().any(|e| e.group == *group && !e.leaving)
    }

    /// Joins a group; to join it again changes nothing.
    pub(super) fn join(&mut self, now: Instant, group: &Gid) -> Result<(), JoinError> {
        if !group.is_multicast() {
            return Err(JoinError::NotMulticast(*group));
        }
        let joined = Entry {
            group: *group,
            left: GROUP_REPORTS,
            leaving: false,
            next: if unreported(group) { Instant::FAR } else { now },
        };
        match self.entries.iter().position(|e| e.group == *group) {
            Some(i) if !self.entries[i].leaving => return Ok(()),
            Some(i) => self.entries[i] = joined, // the leave message is obsolete
            None if self.entries.len() < MCAST_GRP_MAX => self.entries.push(joined),
            None => {
                // A leave message is given up: routers find out by their queries.
                let leaving = self.entries.iter().position(|e| e.leaving).ok_or(JoinError::Full)?;
                self.entries[leaving] = joined;
            }
        }
        self.deadline = self.deadline.min(joined.next);
        Ok(())
    }

    /// Leaves a group; `false` if we are not in it.
    pub(super) fn leave(&mut self, now: Instant, group: &Gid) -> bool {
        let Some(i) = self.entries.iter().position(|e| e.group == *group && !e.leaving) else { return false };
        if unreported(group) {
            self.entries.swap_remove(i);
        } else {
            (self.entries[i].leaving, self.entries[i].next) = (true, now);
            self.deadline = self.deadline.min(now);
        }
        true
    }

    /// Schedules reports of all groups: the link came up, perhaps with other routers or switches at its end.
    pub(super) fn announce(&mut self, now: Instant) {
        for e in self.entries.iter_mut().filter(|e| !e.leaving && !unreported(&e.group)) {
            (e.left, e.next) = (GROUP_REPORTS, now);
            self.deadline = self.deadline.min(now);
        }
    }

    /// Handles a router's query for the members of one group, or of all groups of a family. Schedules reports within `max`. Returns whether
    /// we are a member.
    pub(super) fn query(&mut self, now: Instant, group: Option<&Gid>, ipv4: bool, max: Duration) -> bool {
        let mut any = false;
        for i in 0..self.entries.len() {
            let e = self.entries[i];
            let asked = group.map_or(e.group.as_v4().is_some() == ipv4, |g| *g == e.group);
            if !asked || e.leaving || unreported(&e.group) {
                continue;
            }
            any = true;
            let at = now.after(self.spread(max));
            let e = &mut self.entries[i];
            e.left = e.left.max(1);
            e.next = e.next.min(at);
            self.deadline = self.deadline.min(e.next);
        }
        any
    }

    /// Returns the next message that is due. Call it until it returns `None`.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Membership> {
        if now < self.deadline {
            return None;
        }
        let Some(i) = self.entries.iter().position(|e| e.next <= now) else {
            self.deadline = self.entries.iter().map(|e| e.next).min().unwrap_or(Instant::FAR);
            return None;
        };
        let e = &mut self.entries[i];
        if e.leaving {
            let gone = self.entries.swap_remove(i);
            return Some(Membership::Leave(gone.group));
        }
        e.left = e.left.saturating_sub(1);
        e.next = if e.left > 0 { now.after(GROUP_REPORT_GAP) } else { Instant::FAR };
        Some(Membership::Report(e.group))
    }

    /// A random time of up to `max` (SplitMix64).
    fn spread(&mut self, max: Duration) -> Duration {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        max.mul_f64((z >> 11) as f64 / (1u64 << 53) as f64)
    }
}

/// The largest delay of answers to an IGMP query: tenths of a second, or from 128 on a mantissa and an exponent (RFC 3376 4.1.1). Zero,
/// from routers of version 1, stands for 10 s (RFC 2236 4).
pub(super) fn igmp_delay(code: u8) -> Duration {
    let tenths = match code {
        0 => 100,
        1..128 => u32::from(code),
        _ => (u32::from(code & 0x0f) | 0x10) << (u32::from(code >> 4 & 7) + 3),
    };
    Duration::from_millis(u64::from(tenths) * 100)
}

/// The largest delay of answers to an MLD query: milliseconds, or from 32768 on a mantissa and an exponent (RFC 3810 5.1.3).
pub(super) fn mld_delay(code: u16) -> Duration {
    let ms = match code {
        0..0x8000 => u32::from(code),
        _ => (u32::from(code & 0x0fff) | 0x1000) << (u32::from(code >> 12 & 7) + 3),
    };
    Duration::from_millis(ms.into())
}
