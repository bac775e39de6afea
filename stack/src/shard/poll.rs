//! One turn of the loop: posted requests, received frames, timers, answers, completions. Every step is bounded.
//!
//! A turn has one of two orders. With few queue pairs it sends what was posted before it receives. With very many, the state that
//! sending needs is in no cache: the turn prefetches that state, and handles received packets meanwhile.

use super::counters::Counter;
use super::outbox::Traffic;
use super::qp::{Part, SourcePort};
use super::state::Shard;
use crate::config::{NEIGHBOUR_VISITS, READY_BUDGET};
use crate::proto::completer::Response;
use crate::proto::recovery::RetryCause;
use crate::proto::status::WcStatus;
use crate::time::Instant;

/// What a turn did. The struct fits into a register. A copy in memory would be loaded with another width than it was stored with, which
/// rules out store forwarding: the load would wait until every earlier store has left the core, stores to a port's memory included.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Frames received; 65535 stands for that many or more.
    pub rx: u16,
    /// Frames sent; 65535 stands for that many or more.
    pub tx: u16,
    /// Work is left that did not fit into this turn.
    pub more: bool,
}

const _: () = assert!(size_of::<Option<Turn>>() <= size_of::<usize>());

impl Turn {
    fn new(rx: usize, tx: usize, more: bool) -> Self {
        let count = |n: usize| n.min(u16::MAX.into()) as u16;
        Self { rx: count(rx), tx: count(tx), more }
    }
    /// Whether the turn moved no frame and left no work.
    pub fn idle(&self) -> bool {
        self.rx == 0 && self.tx == 0 && !self.more
    }
}

impl Shard {
    /// Makes one turn. `now` must not go back by much. The caller holds the claim on this shard.
    pub fn poll_once(&mut self, now: Instant) -> Turn {
        self.env.keys.begin_turn(&self.env.shared.turn_counters, self.env.id);
        let turn = self.turn(now);
        self.env.keys.end_turn(&self.env.shared.turn_counters, self.env.id);
        turn
    }

    #[inline]
    fn turn(&mut self, now: Instant) -> Turn {
        self.env.now = now;
        self.env.agenda.corrections.begin_turn(now, &mut self.qps);
        // Before anything is sent: no queue pair may use a source address that was removed between two turns.
        self.env.peers.update(&self.env.shared);
        self.run_watched();
        let (rx, tx) =
            if self.lookahead.is_active() { self.receive_then_send() } else { self.send_then_receive() };
        let rx = rx + self.receive_inbox();
        let tx = tx + self.finish();
        // Received for the next turn: a program that drives the shard itself does something else in between, and the prefetches complete
        // meanwhile.
        self.receive_early();
        let more = self.has_more();
        debug_assert!(!more || self.next_deadline() == Some(now), "what a turn leaves is due");
        Turn::new(rx, tx + self.env.outbox.take_sent_early(), more)
    }

    /// With few queue pairs: sends what was posted since the last turn, then receives. Sending depends on nothing that is received in
    /// this turn, so requests leave as early as they can. Returns the frames received and sent.
    #[inline(always)]
    fn send_then_receive(&mut self) -> (usize, usize) {
        self.run_doorbells();
        let sent = self.send();
        (self.receive(), sent)
    }

    /// With very many queue pairs: prefetches the state of queue pairs with new requests while received frames are handled, then sends.
    /// Returns the frames received and sent.
    #[inline(never)]
    fn receive_then_send(&mut self) -> (usize, usize) {
        let posted = self.prefetch_posted();
        let received = self.receive_prefetched();
        self.mark_posted(&posted);
        (received, self.send())
    }

    /// Builds requests, and hands frames to the port. Returns the frames that the port took.
    #[inline(always)]
    fn send(&mut self) -> usize {
        if !self.env.agenda.ready.is_empty() {
            self.send_requests();
        }
        if self.env.outbox.needs_flush() { self.env.flush() } else { 0 }
    }

    /// The steps after frames were received: responses, timers, answers, and then completions. Returns the frames that the port took.
    #[inline(always)]
    fn finish(&mut self) -> usize {
        if !self.env.agenda.answered.is_empty() {
            self.env.run_answered(&mut self.qps);
        }
        self.run_timers();
        self.run_net();
        if self.env.outbox.polls_ended_routes() {
            self.end_routes();
        }
        // Answers must be with the port before the completions that depend on them are visible.
        if !self.env.agenda.answering.is_empty() {
            self.send_answers();
        }
        let sent = if self.env.outbox.needs_flush() { self.env.flush() } else { 0 };
        if self.env.outbox.any_waiting() {
            self.resume_waiting();
        }
        self.publish_if_due();
        // So that a message that comes alone need not wait for the allocation of a frame.
        self.env.outbox.prepare_spare();
        sent
    }

    /// Frames may have left: resumes the queue pairs that waited for those frames to leave, or for the room that they took.
    #[cold]
    fn resume_waiting(&mut self) {
        let Self { env, qps, .. } = self;
        let (outbox, agenda) = (&mut env.outbox, &mut env.agenda);
        outbox.unpark(|traffic, slot| match (traffic, qps.get(slot)) {
            (Traffic::Requests, Some(qp)) => agenda.unpark_ready(qp),
            (Traffic::Answers, Some(qp)) => agenda.unpark_answering(qp),
            (_, None) => {}
        });
        self.complete_gone();
        self.release_acknowledged();
        self.env.outbox.recompute_waiting();
    }

    #[inline]
    fn run_timers(&mut self) {
        if !self.env.agenda.wheel.pass(self.env.now) {
            self.run_due();
        }
    }

    /// Handles queue pairs whose timers have expired.
    #[inline(never)]
    fn run_due(&mut self) {
        let (env, qps) = (&mut self.env, &mut self.qps);
        let mut due = arrayvec::ArrayVec::<u32, READY_BUDGET>::new();
        env.agenda.wheel.expire(env.now, READY_BUDGET, |slot| due.push(slot));
        if self.lookahead.is_active() {
            qps.prefetch_each(&due, Part::Timer);
        }
        for &slot in &due {
            let Some(qp) = qps.get(slot) else { continue };
            qp.wakes_at = Instant::FAR;
            if qp.requester.deadline() > env.now {
                env.agenda.arm(qp);
            } else if qp.source_port == SourcePort::Tried && !qp.requester.may_retry() {
                env.repeat_from_well_known_port(qp);
            } else if env.wait_for_stalled_peer(qp) {
                env.agenda.arm(qp);
            } else if qp.is_reachable() || qp.requester.waits_for_receive() {
                let response = qp.requester.handle_timeout(env.now);
                if let Response::Retry(RetryCause::Timeout) | Response::Failed(WcStatus::RetryExcErr) =
                    response
                {
                    env.count_of(qp, Counter::Timeouts);
                    env.peers.recheck(&env.shared, env.now, slot);
                }
                env.after_requester(qp, response);
            } else {
                env.agenda.mark_ready(qp); // the queue pair looks up its next hop, and its ACK timer does not run meanwhile
            }
            if qp.checks_peer {
                env.go_on_checking(qp);
            }
            if qp.has_held {
                env.watch_gaps(qp);
            }
            if qp.source_port == SourcePort::Tried {
                env.watch_source_port(qp);
            }
        }
    }

    /// Runs the IP host: its requests that are due, and route changes.
    #[inline]
    fn run_net(&mut self) {
        let (peers, mut host) = self.env.peers_and_host();
        host.run();
        peers.update(host.shared);
        if self.env.peers.has_more() {
            self.visit_changed_neighbours();
        }
        if self.env.peers.unrouted.any() {
            self.find_routes();
        }
    }

    /// Visits queue pairs whose neighbour was resolved, has moved, or does not answer: as many as a turn may take.
    #[cold]
    fn visit_changed_neighbours(&mut self) {
        if self.env.outbox.has_routes() {
            self.hold_back_receives(); // by the routes over which their acknowledgements left
        }
        for _ in 0..NEIGHBOUR_VISITS {
            let Some(slot) = self.env.peers.hops.next_due() else { break };
            self.visit(slot);
        }
    }

    /// Looks up the next hop of a queue pair again.
    pub(super) fn visit(&mut self, slot: u32) {
        let Some(qp) = self.qps.get(slot) else { return };
        let env = &mut self.env;
        if qp.is_datagram() {
            env.peers.release(&env.shared, slot);
            return env.agenda.mark_ready(qp);
        }
        let waited = !qp.is_reachable();
        let fails = env.resolve(qp).is_some();
        env.agenda.unpark(qp);
        // One that waits on has nothing to do, and is visited again.
        if !qp.is_reachable() && !fails {
            return;
        }
        // Both directions resume, whether a request, an answer or a packet of the peer led to the next hop.
        if waited || qp.sq_done != qp.sq.0.published() {
            env.agenda.mark_ready(qp);
        }
        // Packets that left before the lookup get a new ACK timer.
        if qp.is_reachable() && !qp.is_unreliable() && qp.requester.packets_in_flight() > 0 {
            qp.requester.arm(env.now);
            env.agenda.arm(qp);
        }
        if qp.responder.has_answer() {
            env.agenda.mark_answering(qp);
        }
    }

    /// Makes completions visible, unless an answer that one of them depends on has not left yet.
    #[inline]
    pub(super) fn publish_if_due(&mut self) {
        let env = &mut self.env;
        let nothing = env.completions.is_empty()
            && !env.completions.missed_overrun(&env.shared)
            && !env.keys.in_grace_period();
        if !nothing
            && !env.outbox.holds_all_back()
            && (!env.keys.in_grace_period() || env.keys.poll_grace_period(&env.shared.turn_counters, env.id))
        {
            self.publish();
        }
    }

    /// Returns the ring slots of this turn's completions to the posters, then makes the completions visible: a program that polled a
    /// completion finds room for another request.
    #[inline(never)]
    fn publish(&mut self) {
        self.publish_staged();
        let overruns = self.env.shared.overruns();
        if overruns != self.env.completions.overruns_seen {
            self.env.completions.overruns_seen = overruns;
            self.end_overrun();
        }
    }

    /// [`publish`](Self::publish), except for completion queues that overran.
    #[inline(always)]
    fn publish_staged(&mut self) {
        if self.may_hold_back() {
            self.hold_back_receives();
        }
        while let Some(slot) = self.env.completions.finished.pop() {
            if let Some(qp) = self.qps.get(slot) {
                if core::mem::take(&mut qp.sends_finished) {
                    qp.sq.0.release_to(qp.sq_done);
                }
                if core::mem::take(&mut qp.receives_finished) {
                    let deferred = qp.deferred.as_ref().map_or(0, |list| list.len());
                    qp.rq.release(deferred + u32::from(qp.responder.holds_receive()));
                }
            }
        }
        self.env.completions.publish();
    }

    /// A completion queue overran, on this shard or another: its lanes accept no more completions, and the queue pairs that use it enter
    /// ERR. Completions staged before the overrun are published. A completion queue overruns once, so this may visit every queue pair.
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
        self.publish_staged(); // completions that this flushed into other queues: no later turn is due for them
    }
}
