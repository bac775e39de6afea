//! When a shard has work to do, from what each of its parts reports; and how a shard is prepared for the sleep of its thread.
//!
//! A part that is left out loses wake-ups: the shard's thread would sleep while work is due. So [`Shard::due`] names every field
//! of the shard and of its [`Env`]: a new field does not compile until its author has decided whether it reports work.

use super::due::Due;
use super::env::Env;
use super::state::Shard;
use crate::port::Armed;
use crate::time::Instant;

impl Shard {
    /// When the next turn has work, if no frame arrives and no doorbell rings; `None` for never.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due(true)
    }

    /// As [`next_deadline`](Self::next_deadline), while the port's link is down: waiting frames are due when they are to be dropped.
    pub fn next_deadline_without_link(&self) -> Option<Instant> {
        self.due(false)
    }

    fn due(&self, has_link: bool) -> Option<Instant> {
        let Self { rx: _, lookahead, qps, env } = self;
        let Env {
            id,
            now,
            shared,
            counters: _,
            outbox,
            agenda,
            completions,
            keys,
            peers,
            in_flight: _,
            rtt_probe: _,
            mcast: _,
            xrc_srqs: _,
            relays: _, // waiting relayed messages resume with a response, or with room on the route of their leg
            connected: _,
            from_inside: _,
            tries: _, // the timer wheel wakes their queue pairs
        } = env;
        let due = [
            Due::now_if(lookahead.has_more()),
            outbox.due(*now, has_link),
            agenda.due(qps),
            Due::now_if(completions.missed_overrun(shared)),
            Due::now_if(keys.in_grace_period()),
            peers.due(shared),
            shared.due(*id),
        ];
        match due.into_iter().min()? {
            Due::Now => Some(*now),
            Due::At(time) => Some(time),
            Due::Never => None,
        }
    }

    /// Prepares for a sleep of the shard's thread: from here on posters ring doorbells, and a port that can do so signals frames.
    /// Afterwards [`next_deadline`](Self::next_deadline) covers all work that is due at once.
    pub fn arm(&mut self) -> Armed {
        self.unwatch_all();
        self.env.outbox.queue.arm()
    }

    /// Whether this turn left work that did not fit into it: the subset of [`next_deadline`](Self::next_deadline) that a turn itself
    /// leaves. Called in each turn, so it consists of loads and compares only.
    #[inline(always)]
    pub(super) fn has_more(&self) -> bool {
        let env = &self.env;
        env.keys.in_grace_period()
            || env.peers.has_more()
            || env.agenda.has_more()
            || self.lookahead.has_more()
            || env.outbox.has_more()
    }

    /// Whether nothing is left to send: no frame, no answer, no request that could be sent now.
    pub fn quiet(&self) -> bool {
        !self.env.outbox.has_more() && !self.env.agenda.any_to_send()
    }
}
