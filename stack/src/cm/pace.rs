//! Limits the outstanding requests to each host. Requests are REQ, REP, DREQ and SIDR_REQ: they are retransmitted until they are answered.
//!
//! A host drops MADs when the receive queue of its queue pair 1 is full (512 in Linux, for all its peers), and each lost MAD costs a whole
//! retransmission interval. So at most [`Limits::under_way`](super::Limits::under_way) requests to a host are outstanding at a time; the
//! others wait here, in order, until one is answered. A program may take long to answer, so after
//! [`Limits::under_way_time`](super::Limits::under_way_time) a request is assumed to have left the receive queue and no longer counts.

use std::collections::{BTreeMap, BTreeSet};

use super::config::Limits;
use super::machine::Timed;
use crate::id::Gid;
use crate::time::Instant;

#[derive(Default)]
pub(super) struct Pace {
    lanes: BTreeMap<Gid, Lane>,
    states: BTreeMap<Timed, (Gid, RequestState)>,
    /// Hosts for which requests wait, with the time at which their oldest outstanding request stops counting.
    blocked: BTreeSet<(Instant, Gid)>,
    /// How many requests have ever waited. Gives them their order.
    turns: u64,
}

/// The requests to one host; at least one.
#[derive(Default)]
struct Lane {
    /// The outstanding requests, each with the time at which it stops counting.
    under_way: BTreeSet<(Instant, Timed)>,
    waiting: BTreeMap<u64, Timed>,
}

#[derive(Clone, Copy)]
enum RequestState {
    UnderWay(Instant),
    Waiting(u64),
}

impl Pace {
    /// When to call [`Pace::poll_taken`]; `None` if nothing waits.
    pub fn next(&self) -> Option<Instant> {
        self.blocked.first().map(|(at, _)| *at)
    }

    /// Registers a transmission or retransmission of a request. Returns whether it may be sent now. If not, it waits until [`Pace::admit`]
    /// returns it. An earlier registration of the same request ends.
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

    /// Removes a request that was answered or given up. Returns its host, to which another request may be sent now; `None` if it was not
    /// registered.
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

    /// Takes the next request that waits for a host and may be sent now.
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

    /// Returns a host for which requests wait and some outstanding ones stopped counting by `now`.
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
