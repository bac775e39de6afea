//! When a shard has something to do: what each of its parts says, taken together; and how it is left alone until then.
//!
//! A part that is not asked loses wake-ups: whoever turns the shard sleeps while there is work. So [`Shard::due`] names every field
//! of the shard and of its [`Env`]: a new one does not compile before it is decided whether it is asked.

use super::due::Due;
use super::env::Env;
use super::state::Shard;
use crate::port::Armed;
use crate::time::Instant;

impl Shard {
    /// When the next turn has something to do if no frame and no doorbell comes; `None` for never.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due(true)
    }

    /// As [`next_deadline`](Self::next_deadline), while the port has no link: waiting frames are due when they are given up.
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
            stopwatch: _,
            mcast: _,
            xrc_srqs: _,
            relays: _, // what waits goes on with a response, or with room for its leg
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

    /// Prepares for a sleep of the thread that turns this shard: from here on posters ring, and a port that can signals frames.
    /// What is due at once is in [`next_deadline`](Self::next_deadline) after this.
    pub fn arm(&mut self) -> Armed {
        self.unwatch_all();
        self.env.outbox.queue.arm()
    }

    /// Whether there is work that did not fit into this turn: of what is due, that which the turn itself left. Each turn asks, so
    /// this is loads and compares alone.
    #[inline(always)]
    pub(super) fn has_more(&self) -> bool {
        let env = &self.env;
        env.keys.in_grace_period()
            || env.peers.has_more()
            || env.agenda.has_more()
            || self.lookahead.has_more()
            || env.outbox.has_more()
    }

    /// Whether nothing is left to send: no frame, no answer, no request that could go now.
    pub fn quiet(&self) -> bool {
        !self.env.outbox.has_more() && !self.env.agenda.any_to_send()
    }
}
