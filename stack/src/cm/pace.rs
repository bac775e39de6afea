//! How many requests may be under way to a host: REQ, REP, DREQ and SIDR_REQ, which are repeated until they are answered.
//!
//! A host takes as many MADs as its queue pair 1 has receives (512 in Linux, for all its peers), and loses the others; a lost one
//! costs a whole interval of its timer. So no more than [`Limits::under_way`](super::Limits::under_way) requests wait for a host's
//! answers at a time, and the others wait here, in order, until one is answered. An answer may be up to a program that takes its
//! time: after [`Limits::under_way_time`](super::Limits::under_way_time) a request counts as taken.

use std::collections::{BTreeMap, BTreeSet};

use super::config::Limits;
use super::machine::Timed;
use crate::id::Gid;
use crate::time::Instant;

#[derive(Default)]
pub(super) struct Pace {
    lanes: BTreeMap<Gid, Lane>,
    states: BTreeMap<Timed, (Gid, RequestState)>,
    /// Hosts for which requests wait, and when the first of those under way counts as taken.
    blocked: BTreeSet<(Instant, Gid)>,
    /// Requests that began to wait, ever.
    turns: u64,
}

/// Requests to one host; there is at least one.
#[derive(Default)]
struct Lane {
    /// With the time from which it counts as taken.
    under_way: BTreeSet<(Instant, Timed)>,
    waiting: BTreeMap<u64, Timed>,
}

#[derive(Clone, Copy)]
enum RequestState {
    UnderWay(Instant),
    Waiting(u64),
}

impl Pace {
    /// When [`Pace::poll_taken`] is due.
    pub fn next(&self) -> Option<Instant> {
        self.blocked.first().map(|(at, _)| *at)
    }

    /// A request is to be sent, for the first time or again: returns whether it may be sent now. Else it waits until
    /// [`Pace::admit`] returns it, and what it had before is over.
    pub fn begin(&mut self, now: Instant, host: Gid, request: Timed, limits: &Limits) -> bool {
        self.end(request);
        self.change(host, |lane, states, turns| {
            lane.forget_taken(now, states);
            if lane.waiting.is_empty() && lane.under_way.len() < limits.under_way {
                lane.start(now, host, request, states, limits);
                return true;
            }
            *turns += 1;
            lane.waiting.insert(*turns, request);
            states.insert(request, (host, RequestState::Waiting(*turns)));
            false
        })
    }

    /// A request is answered, or given up. Returns the host to which another one may be sent now.
    pub fn end(&mut self, request: Timed) -> Option<Gid> {
        let (host, state) = self.states.remove(&request)?;
        self.change(host, |lane, _, _| match state {
            RequestState::UnderWay(until) => {
                lane.under_way.remove(&(until, request));
            }
            RequestState::Waiting(turn) => {
                lane.waiting.remove(&turn);
            }
        });
        Some(host)
    }

    /// The next request that waited for a host and may be sent now.
    pub fn admit(&mut self, now: Instant, host: Gid, limits: &Limits) -> Option<Timed> {
        self.lanes.get(&host)?;
        self.change(host, |lane, states, _| {
            if lane.under_way.len() >= limits.under_way {
                return None;
            }
            let (_, request) = lane.waiting.pop_first()?;
            lane.start(now, host, request, states, limits);
            Some(request)
        })
    }

    /// A host for which requests wait, and whose first ones count as taken by now.
    pub fn poll_taken(&mut self, now: Instant) -> Option<Gid> {
        let &(_, host) = self.blocked.first().filter(|(at, _)| *at <= now)?;
        self.change(host, |lane, states, _| lane.forget_taken(now, states));
        Some(host)
    }

    fn change<R>(
        &mut self,
        host: Gid,
        change: impl FnOnce(&mut Lane, &mut BTreeMap<Timed, (Gid, RequestState)>, &mut u64) -> R,
    ) -> R {
        let lane = self.lanes.entry(host).or_default();
        if let Some(at) = lane.blocked_until() {
            self.blocked.remove(&(at, host));
        }
        let result = change(lane, &mut self.states, &mut self.turns);
        if let Some(at) = lane.blocked_until() {
            self.blocked.insert((at, host));
        }
        if lane.under_way.is_empty() && lane.waiting.is_empty() {
            self.lanes.remove(&host);
        }
        result
    }
}

impl Lane {
    fn blocked_until(&self) -> Option<Instant> {
        if self.waiting.is_empty() { None } else { self.under_way.first().map(|(at, _)| *at) }
    }

    fn start(
        &mut self,
        now: Instant,
        host: Gid,
        request: Timed,
        states: &mut BTreeMap<Timed, (Gid, RequestState)>,
        limits: &Limits,
    ) {
        let until = now.after(limits.under_way_time);
        self.under_way.insert((until, request));
        states.insert(request, (host, RequestState::UnderWay(until)));
    }

    fn forget_taken(&mut self, now: Instant, states: &mut BTreeMap<Timed, (Gid, RequestState)>) {
        while let Some(&(at, request)) = self.under_way.first().filter(|(at, _)| *at <= now) {
            self.under_way.remove(&(at, request));
            states.remove(&request);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::super::event::ConnId;
    use super::*;

    #[test]
    fn requests_wait_in_order_until_one_is_answered_or_taken() {
        let (a, b) = (Gid::v4([10, 0, 0, 1]), Gid::v4([10, 0, 0, 2]));
        let ms = |n| Instant::ZERO.after(Duration::from_millis(n));
        let limits = Limits { under_way: 2, under_way_time: Duration::from_millis(10), ..Limits::default() };
        let conn = |n| Timed::Conn(ConnId(n));
        let mut pace = Pace::default();
        let began: Vec<_> = (1..=6).map(|n| pace.begin(ms(n), a, conn(n), &limits)).collect();
        assert_eq!(began, [true, true, false, false, false, false]);
        assert!(pace.begin(ms(3), b, conn(9), &limits), "another host");
        assert_eq!(pace.admit(ms(3), a, &limits), None);
        // Answered: the next one goes. Given up: it never does.
        assert_eq!((pace.end(conn(1)), pace.end(conn(4))), (Some(a), Some(a)));
        assert_eq!(pace.admit(ms(4), a, &limits), Some(conn(3)));
        assert_eq!(pace.admit(ms(4), a, &limits), None);
        // A repetition goes to the end.
        assert!(!pace.begin(ms(5), a, conn(3), &limits));
        assert_eq!(pace.admit(ms(5), a, &limits), Some(conn(5)));
        // Nobody answers: they count as taken.
        assert_eq!((pace.next(), pace.poll_taken(ms(11))), (Some(ms(12)), None));
        assert_eq!(pace.poll_taken(ms(12)), Some(a));
        assert_eq!(pace.admit(ms(12), a, &limits), Some(conn(6)));
        assert_eq!(pace.admit(ms(12), a, &limits), None);
        assert_eq!(pace.poll_taken(ms(15)), Some(a));
        assert_eq!(pace.admit(ms(15), a, &limits), Some(conn(3)));
        assert_eq!((pace.next(), pace.poll_taken(ms(99))), (None, None));
        for n in [3, 6, 9] {
            pace.end(conn(n));
        }
        assert!(pace.lanes.is_empty() && pace.states.is_empty() && pace.blocked.is_empty());
    }
}
