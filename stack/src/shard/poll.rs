//! One turn of the loop: doorbells, requests, receive, timers, answers, publish. Every part of it is bounded. With very many queue
//! pairs receiving comes before requests: what these need is on its way then.

use super::counters::Counter;
use super::env::Env;
use super::lookahead::{Lookahead, Part};
use super::qp::Qp;
use super::{Shard, Turn};
use crate::config::{READY_BUDGET, RX_BURST, RX_BURST_BYTES, RX_BURSTS, WATCH_AFTER, WATCH_GAP, WATCH_IDLE};
use crate::proto::completer::{Response, RetryCause};
use crate::proto::requester::SendRing;
use crate::proto::status::WcStatus;
use crate::sync::asymmetric::heavy;
use crate::sync::prefetch;
use crate::time::Instant;
use crate::wire::{Ingress, locate};

/// Queue pairs whose doorbells were rung.
type Rung = arrayvec::ArrayVec<u32, READY_BUDGET>;

impl Shard {
    /// Turns the crank once. `now` must not go back by much; the caller holds the claim on this shard.
    pub fn poll_once(&mut self, now: Instant) -> Turn {
        self.env.keys.begin_turn(&self.env.shared.turning, self.env.id);
        let turn = self.turn(now);
        self.env.keys.end_turn(&self.env.shared.turning, self.env.id);
        turn
    }

    #[inline]
    fn turn(&mut self, now: Instant) -> Turn {
        self.begin_at(now);
        let (mut rx, mut tx) = (0, 0);
        // Before anything is sent: an address that was removed between two turns is nobody's source any more.
        self.update_peers();
        self.run_watched();
        // What was posted since the last turn goes first: nothing that arrives could make it go sooner. Only where it has to be
        // waited for, with very many queue pairs, what was received is handled meanwhile.
        let many = self.lookahead.is_on();
        if many {
            rx += self.hear_and_receive();
        } else {
            self.run_doorbells();
        }
        if !self.env.agenda.ready.is_empty() {
            self.send_requests();
        }
        if self.env.outbox.backlog() > 0 {
            tx += self.env.flush();
        }
        if !many {
            rx += self.receive();
        }
        rx += self.receive_inbox();
        if !self.env.agenda.answered.is_empty() {
            self.env.run_answered(&mut self.qps);
        }
        self.run_timers();
        self.run_net();
        // What must be with the port before a completion may be seen.
        if !self.env.agenda.answering.is_empty() {
            self.send_answers();
            if !self.env.agenda.answering.is_empty() {
                self.defer_receives();
            }
        }
        if self.env.outbox.backlog() > 0 {
            tx += self.env.flush();
        }
        if self.env.outbox.any_leaving() {
            self.complete_gone();
        }
        self.publish_if_due();
        // For a message that comes alone, which has to wait for it otherwise.
        self.env.outbox.prepare_spare();
        tx += self.env.outbox.take_in_place();
        // What the next turn begins with; a program that turns the shard itself has something to do before.
        if many && self.lookahead.is_empty() {
            self.receive_ahead(1);
        }
        let more = self.env.keys.settling()
            || self.env.peers.hops.any_due()
            || !self.env.agenda.corrections.waits.is_empty()
            || !self.lookahead.is_empty()
            || self.env.agenda.any_to_send()
            || self.env.outbox.backlog() > 0;
        Turn::new(rx, tx, more)
    }

    /// Handles what was received. Returns how many frames.
    #[inline(always)]
    fn receive(&mut self) -> usize {
        let mut rx = 0;
        for _ in 0..RX_BURSTS {
            let (n, bytes) = self.receive_burst();
            rx += n;
            // A burst that is neither full nor long was all there is. Responses are often followed by what the program waits
            // for; a request is answered first.
            if n < RX_BURST && bytes < RX_BURST_BYTES || !self.env.agenda.answering.is_empty() {
                break;
            }
        }
        rx
    }

    /// Makes completions visible, unless an answer that belongs to one is still here.
    #[inline]
    pub(super) fn publish_if_due(&mut self) {
        let env = &mut self.env;
        let nothing = env.completions.is_empty()
            && env.shared.overruns() == env.completions.overruns_seen
            && !env.keys.settling();
        if !nothing
            && env.outbox.answers.frames.is_empty()
            && (!env.keys.settling() || env.keys.settle(&env.shared.turning, env.id))
        {
            self.publish();
        }
    }

    /// Handles a burst. Returns its frames and its bytes.
    #[inline(always)]
    fn receive_burst(&mut self) -> (usize, u64) {
        // The buffers of the burst before. Not at its end: what it brought may have been waited for, and be answered first.
        if !self.rx.is_empty() {
            self.env.outbox.queue.recycle(&mut self.rx);
        }
        if self.lookahead.is_on() && self.lookahead.is_empty() {
            self.receive_ahead(1);
        }
        if !self.lookahead.is_empty() {
            self.lookahead.take(&mut self.rx, &self.qps, &self.env);
            // With very many queue pairs what the next ones need is asked for while this burst is worked on.
            if self.lookahead.is_on() && self.lookahead.is_empty() && self.rx.is_full() {
                self.receive_ahead(RX_BURSTS);
            }
        } else if self.lookahead.is_on() || self.env.outbox.queue.rx_burst(&mut self.rx) == 0 {
            return (0, 0);
        }
        let n = self.rx.len();
        let (mut foreign, mut bytes) = (0u64, 0);
        let many = self.lookahead.is_on();
        for i in 0..n {
            // It was received a while ago, and much was asked for since: it has left the nearest cache.
            if many && let Some(soon) = self.rx.get(i + Lookahead::AGAIN) {
                prefetch::near(soon.data().as_ptr());
            }
            let Some(frame) = self.rx.get_mut(i) else { break };
            bytes += frame.len() as u64;
            if self.env.receive(&mut self.qps, frame).is_err() {
                foreign |= 1 << i;
            }
            if (i + 1).is_multiple_of(Lookahead::EVERY) {
                self.lookahead.step_if_any(&self.qps, &self.env);
            }
        }
        self.env.counters.add(Counter::RxFrames, n as u64);
        self.env.counters.add(Counter::RxBytes, bytes);
        if foreign != 0 {
            self.hand_over(foreign);
        }
        (n, bytes)
    }

    /// Receives up to so many bursts for later, while none waits.
    #[inline]
    fn receive_ahead(&mut self, most: usize) {
        self.lookahead.receive(&mut *self.env.outbox.queue, &self.qps, most);
    }

    /// The frames marked in `foreign` go to the shards that own their queue pairs, in order.
    #[cold]
    fn hand_over(&mut self, foreign: u64) {
        for (i, frame) in self.rx.drain(..).enumerate() {
            if foreign >> i & 1 == 0 {
                continue;
            }
            if let Ok(Ingress::Roce(layout)) = locate(frame.data()) {
                self.env.count(Counter::HandedOver);
                self.env.hand_over(self.env.shared.shard_of(layout.dqpn), frame);
            }
        }
    }

    /// Frames handed over by other shards, and those we sent to ourselves.
    #[inline]
    fn receive_inbox(&mut self) -> usize {
        // Two loads; popping an empty queue is a full fence, which waits for every store to the port's memory.
        if self.env.shared.inboxes[self.env.id].is_empty() {
            return 0;
        }
        self.drain_inbox()
    }

    #[inline(never)]
    fn drain_inbox(&mut self) -> usize {
        let mut n = 0;
        self.env.from_inside = true;
        while n < RX_BURST {
            let Some(mut frame) = self.env.shared.inboxes[self.env.id].pop() else { break };
            // Whoever put it here looked at the queue pair number: it is ours.
            let _ = self.env.receive(&mut self.qps, &mut frame);
            n += 1;
        }
        self.env.from_inside = false;
        n
    }

    #[inline]
    fn run_timers(&mut self) {
        if !self.env.agenda.wheel.pass(self.env.now) {
            self.run_due();
        }
    }

    /// Queue pairs whose time has come.
    #[inline(never)]
    fn run_due(&mut self) {
        let (env, qps) = (&mut self.env, &mut self.qps);
        let mut due = arrayvec::ArrayVec::<u32, READY_BUDGET>::new();
        env.agenda.wheel.expire(env.now, READY_BUDGET, |slot| due.push(slot));
        if self.lookahead.is_on() {
            qps.prefetch_each(&due, Part::Timer);
        }
        for &slot in &due {
            let Some(qp) = qps.get(slot) else { continue };
            qp.wakes_at = Instant::FAR;
            if qp.requester.deadline() > env.now {
                env.agenda.arm(qp);
            } else if qp.is_reachable() || qp.requester.waits_for_receive() {
                let response = qp.requester.handle_timeout(env.now);
                if let Response::Retry(RetryCause::Timeout) | Response::Failed(WcStatus::RetryExcErr) =
                    response
                {
                    env.count_of(qp, Counter::Timeouts);
                    env.doubt_next_hop(slot);
                }
                env.after_requester(qp, response);
            } else {
                env.agenda.mark_ready(qp); // it looks for its next hop, and times nothing meanwhile
            }
        }
    }

    /// The IP host: requests that are due, and routes that changed.
    #[inline]
    fn run_net(&mut self) {
        self.env.run_host();
        self.update_peers();
        if self.env.peers.hops.any_due() {
            self.visit_moved();
        }
    }

    #[inline]
    fn run_doorbells(&mut self) {
        if self.env.shared.doorbells[self.env.id].any() {
            self.run_rung();
        }
    }

    #[inline(never)]
    fn run_rung(&mut self) {
        let mut rung = Rung::new();
        self.hear(&mut rung);
        self.mark_rung(&rung);
    }

    /// With very many queue pairs: handles what was received, while that comes which those need whose doorbells were rung.
    #[inline(never)]
    fn hear_and_receive(&mut self) -> usize {
        let mut rung = Rung::new();
        if self.env.shared.doorbells[self.env.id].any() {
            self.hear(&mut rung);
            self.prefetch_rung(&rung);
        }
        self.lookahead.step_if_any(&self.qps, &self.env);
        let rx = self.receive();
        self.mark_rung(&rung);
        rx
    }

    /// Takes the doorbells that were rung.
    #[inline(always)]
    fn hear(&self, rung: &mut Rung) {
        self.env.shared.doorbells[self.env.id].drain(READY_BUDGET as u32, |slot| rung.push(slot));
    }

    /// Queue pairs whose doorbells were rung have something to send.
    #[inline(always)]
    fn mark_rung(&mut self, rung: &[u32]) {
        for &slot in rung {
            let Some(qp) = self.qps.get(slot) else { continue };
            self.env.agenda.mark_ready(qp);
            let soon = self.env.now.nanos_since(qp.posted_at) <= WATCH_GAP.as_nanos() as u64;
            qp.posted_at = self.env.now;
            qp.rings = if soon { qp.rings.saturating_add(1) } else { 0 };
            if qp.rings >= WATCH_AFTER && !qp.watched && !self.env.agenda.watched.is_full() {
                qp.watched = true;
                qp.sq_seen = qp.sq.published();
                self.env.agenda.watched.push(slot);
                self.env.publish_word(qp);
            }
        }
    }

    /// Queue pairs that are posted to all the time are looked at instead of waiting for their doorbells.
    #[inline]
    fn run_watched(&mut self) {
        let mut i = 0;
        while let Some(&slot) = self.env.agenda.watched.get(i) {
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.watched) else {
                self.env.agenda.watched.swap_remove(i);
                continue;
            };
            let published = qp.sq.published();
            if published != qp.sq_seen {
                qp.sq_seen = published;
                qp.posted_at = self.env.now;
                self.env.agenda.mark_ready(qp);
            } else if self.env.now.nanos_since(qp.posted_at) > WATCH_IDLE.as_nanos() as u64 {
                self.env.unwatch(qp);
                continue; // the next look takes it off the list
            }
            i += 1;
        }
    }

    /// Whether something was posted to a watched queue pair since the last look.
    pub(super) fn watched_posts(&self) -> bool {
        let posted = |slot: &u32| self.qps.peek(*slot).is_some_and(|qp| qp.sq.0.published() != qp.sq_seen);
        self.env.agenda.watched.iter().any(posted)
    }

    /// Gives the ring slots of this turn's completions back to the posters, then makes the completions visible: who
    /// polled a completion finds room for another request.
    #[inline(never)]
    fn publish(&mut self) {
        while let Some(slot) = self.env.completions.finished.pop() {
            if let Some(qp) = self.qps.get(slot) {
                if core::mem::take(&mut qp.sends_finished) {
                    qp.sq.0.release_to(qp.sq_done);
                }
                if core::mem::take(&mut qp.receives_finished) && qp.deferred.is_none() {
                    qp.rq.release(qp.responder.holds_receive());
                }
            }
        }
        self.env.completions.publish();
        let overruns = self.env.shared.overruns();
        if overruns != self.env.completions.overruns_seen {
            self.env.completions.overruns_seen = overruns;
            self.end_overrun();
        }
    }

    /// A completion queue overran, here or elsewhere: its lanes take no more, and the queue pairs that use it end in
    /// ERR. Once a queue, so it may take a look at every queue pair. What was pushed before is published.
    #[cold]
    fn end_overrun(&mut self) {
        let mut overran = Vec::new();
        for (id, lane) in self.env.completions.iter_mut().filter(|(_, lane)| lane.cq.overran()) {
            lane.writer.poison();
            if lane.lost {
                lane.cq.set_failed();
            }
            overran.push(id);
        }
        for qp in self.qps.iter_mut() {
            if overran.contains(&qp.send_lane) || overran.contains(&qp.recv_lane) {
                self.env.end_by_overrun(qp);
            }
        }
    }
}

impl Env {
    /// From here on posters ring again. Whoever posted without ringing, because it saw the promise, is noticed.
    #[cold]
    pub(super) fn unwatch(&mut self, qp: &mut Qp) {
        qp.watched = false;
        qp.rings = 0;
        self.publish_word(qp);
        heavy();
        if qp.sq.published() != qp.sq_seen {
            self.agenda.mark_ready(qp);
        }
    }
}
