//! What a shard works with beside its queue pairs: the port's queue, the frames of this turn, the timers, the
//! completion lanes and the lists of queue pairs with something to do.

use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::copy::{LocalProtection, Memory};
use super::counters::{Counter, Counters};
use super::cq::Lane;
use super::held::HeldReceives;
use super::hops::Hops;
use super::late::Late;
use super::paths::Paths;
use super::qp::{Qp, Route};
use super::rq::XrcSrq;
use super::wheel::Wheel;
use super::{LaneId, McastTable, Shared};
use crate::config::{PREFETCH_FROM, SHARDS_MAX, TX_BURST, TX_STALL, WATCHED_MAX};
use crate::id::{Gid, PdId};
use crate::mem::{Access, KnownKey, Sge};
use crate::net::{FRAME_MAX, Resolution};
use crate::port::{Frame, PortQueue, TxBurst};
use crate::time::Instant;
use crate::wire::Discard;

/// Frames of one kind on their way to the port.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub frames: TxBurst,
    /// Since when the port has refused every frame; `None` while it takes some.
    refused_since: Option<Instant>,
    /// Frames that went, ever: the port took them, or they were lost on a link that was down too long.
    pub gone: u64,
}

/// Unreliable work requests that are complete when frames of the request backlog have gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    /// [`Backlog::gone`] when their last frame has.
    pub mark: u64,
    pub slot: u32,
    pub epoch: u32,
    /// Behind the last of them.
    pub seq: u32,
}

pub(super) struct Env {
    pub id: usize,
    pub now: Instant,
    pub shared: Arc<Shared>,
    /// This shard's of the shared ones.
    counters: Arc<Counters>,
    pub queue: Box<dyn PortQueue>,
    /// Acknowledgements and responses: completions wait for these.
    pub answers: Backlog,
    /// Requests, and what the IP host sends.
    pub requests: Backlog,
    /// Address behind the bytes that were placed last: a hint of where the next ones go.
    pub placed_to: u64,
    /// Frames of this turn that were built in the port's own memory.
    pub in_place: usize,
    /// An empty frame that was not needed.
    pub spare: Option<Frame>,
    pub wheel: Wheel,
    pub lanes: Vec<Option<Lane>>,
    /// Lanes with something staged.
    pub dirty: Vec<LaneId>,
    /// Unreliable work requests whose frames wait for the port, oldest first.
    pub leaving: VecDeque<Leaving>,
    /// Ways to the peers of datagrams.
    pub paths: Paths,
    /// Neighbours that queue pairs send to, or wait for.
    pub hops: Hops,
    /// What the next turn may have to correct.
    pub late: Late,
    /// Queue pairs with requests to send.
    pub ready: VecDeque<u32>,
    /// Queue pairs with answers to send.
    pub answering: VecDeque<u32>,
    /// Queue pairs whose requests were answered in this turn.
    pub answered: Vec<u32>,
    /// Queue pairs whose send queues are looked at every turn: posting to them costs no doorbell.
    pub watched: ArrayVec<u32, WATCHED_MAX>,
    /// Lists for receive completions that wait, not in use.
    #[allow(clippy::vec_box, reason = "the boxes move to queue pairs and back")]
    pub spare_held: Vec<Box<HeldReceives>>,
    /// Queue pairs whose ring slots are freed when completions are published.
    pub finished: Vec<u32>,
    /// Completions wait for other shards: see [`Env::settle`].
    pub settling: bool,
    /// What is known of the key that was scattered to last in this turn.
    pub known_key: KnownKey,
    /// A key was taken away since the last look at the other shards.
    pub revoked: bool,
    /// Other shards that were in a turn when a key was taken away, and which turn it was.
    pub unsettled: ArrayVec<(usize, u32), SHARDS_MAX>,
    /// IPv4 identification of the next packet.
    pub ip_id: u16,
    /// Generation of the neighbour table that the queue pairs' routes are from.
    pub net_seen: u64,
    /// [`Shared::overruns`] as of the last look at the lanes.
    pub overruns_seen: u32,
    /// So many queue pairs that each is likely to be in no cache: `many_from` or more.
    pub many: bool,
    pub many_from: usize,
    /// Queue pairs in RTR or above.
    pub connected: usize,
    /// The frame being received comes from a shard of this device: it has seen to the other shards' copies.
    pub from_inside: bool,
    /// Multicast groups with their queue pairs, of the whole device.
    pub mcast: Arc<McastTable>,
    /// XRC shared receive queues, by number.
    pub xrc_srqs: Vec<XrcSrq>,
}

impl Env {
    pub fn new(id: usize, shared: Arc<Shared>, queue: Box<dyn PortQueue>, now: Instant) -> Self {
        Self {
            id,
            now,
            counters: shared.counters[id].clone(),
            shared,
            queue,
            answers: Backlog::default(),
            requests: Backlog::default(),
            placed_to: 0,
            in_place: 0,
            spare: None,
            wheel: Wheel::new(now),
            lanes: Vec::new(),
            dirty: Vec::new(),
            leaving: VecDeque::new(),
            paths: Paths::default(),
            hops: Hops::default(),
            late: Late::default(),
            ready: VecDeque::new(),
            answering: VecDeque::new(),
            answered: Vec::new(),
            watched: ArrayVec::new(),
            spare_held: Vec::new(),
            finished: Vec::new(),
            settling: false,
            known_key: KnownKey::new(Access::LOCAL_WRITE),
            revoked: false,
            unsettled: ArrayVec::new(),
            ip_id: 0,
            net_seen: 0,
            overruns_seen: 0,
            many: false,
            many_from: PREFETCH_FROM,
            connected: 0,
            from_inside: false,
            mcast: Arc::default(),
            xrc_srqs: Vec::new(),
        }
    }

    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
    #[inline]
    pub fn count(&self, counter: Counter) {
        self.counters().add(counter, 1);
    }
    /// Counts something rare that a queue pair counts, too.
    pub fn count_of(&self, qp: &Qp, counter: Counter) {
        self.count(counter);
        qp.counters.count(counter);
    }
    /// Counts a drop that is a queue pair's, too.
    #[cold]
    pub fn discard_of(&self, qp: &Qp, reason: Discard) {
        self.discard(reason);
        qp.counters.discard(reason);
    }
    #[inline]
    pub fn discard(&self, reason: Discard) {
        self.counters().discard(reason, 1);
    }
    #[inline]
    pub fn memory(&self, pd: PdId) -> Memory<'_> {
        Memory { keys: &self.shared.mrs, pd }
    }
    /// [`Memory::scatter`], with what is known of this turn's keys.
    #[inline(always)]
    pub fn scatter(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        from: &[u8],
        last: bool,
    ) -> Result<u64, LocalProtection> {
        Memory { keys: &self.shared.mrs, pd }.scatter(&mut self.known_key, sges, offset, from, last)
    }

    #[inline]
    pub fn next_ip_id(&mut self) -> u16 {
        self.ip_id = self.ip_id.wrapping_add(1);
        self.ip_id
    }

    /// An empty frame to build a packet in.
    #[inline]
    pub fn take_frame(&mut self) -> Option<Frame> {
        match self.spare.take() {
            Some(frame) => Some(frame),
            None => self.queue.alloc(),
        }
    }

    /// A frame that was not needed after all.
    #[inline]
    pub fn keep_frame(&mut self, frame: Frame) {
        self.spare = Some(frame); // an older one goes back to its pool
    }

    /// Marks a queue pair as having requests to send.
    #[inline]
    pub fn mark_ready(&mut self, qp: &mut Qp) {
        if !qp.in_ready {
            qp.in_ready = true;
            self.ready.push_back(qp.slot);
        }
    }

    /// Marks a queue pair as having answers to send.
    #[inline]
    pub fn mark_answering(&mut self, qp: &mut Qp) {
        if !qp.in_answers {
            qp.in_answers = true;
            self.answering.push_back(qp.slot);
        }
    }

    /// Sees to it that the queue pair is woken at its deadline. Later deadlines are found when an earlier one
    /// fires, so this is seldom more than a comparison.
    ///
    /// Among many queue pairs, one that has no deadline any more leaves the wheel at once: both its neighbours there were
    /// scheduled a moment ago, like itself, while a timer that fires for nothing finds none of them in a cache.
    #[inline]
    pub fn arm(&mut self, qp: &mut Qp) {
        let deadline = qp.requester.deadline();
        if deadline < qp.wakes_at {
            qp.wakes_at = deadline;
            self.wheel.schedule(qp.slot, deadline);
        } else if self.many && deadline == Instant::FAR && qp.wakes_at != Instant::FAR {
            qp.wakes_at = Instant::FAR;
            self.wheel.cancel(qp.slot);
        }
    }

    /// Sends a finished frame on the queue pair's way.
    #[inline]
    pub fn send(&mut self, route: Route, dest_shard: usize, frame: Frame, answer: bool) {
        if route == Route::Inside {
            self.count(Counter::ToSelf);
            self.hand_over(dest_shard, frame);
        } else if answer {
            self.answers.frames.push(frame);
        } else {
            self.requests.frames.push(frame);
        }
    }

    /// Puts a frame into a shard's inbox.
    pub fn hand_over(&self, shard: usize, frame: Frame) {
        let full = match self.shared.inboxes.get(shard) {
            Some(inbox) => inbox.push(frame).is_err(),
            None => return self.discard(Discard::UnknownQpn),
        };
        if full {
            self.discard(Discard::InboxFull);
        }
        self.shared.sleeper.wake();
    }

    /// Hands waiting frames to the port, answers first. Returns how many it took.
    #[inline]
    pub fn flush(&mut self) -> usize {
        let mut sent = 0;
        if !self.answers.frames.is_empty() {
            sent += flush(&mut *self.queue, &mut self.answers, self.now, &self.counters);
        }
        if self.answers.frames.is_empty() && !self.requests.frames.is_empty() {
            sent += flush(&mut *self.queue, &mut self.requests, self.now, &self.counters);
        }
        sent
    }

    /// Frames that wait for the port.
    pub fn backlog(&self) -> usize {
        self.answers.frames.len() + self.requests.frames.len()
    }

    /// Looks the queue pair's next hop up, and asks for it if nobody knows it. `true`: it cannot be reached. A queue pair
    /// that has an address keeps it until there is another one: that nobody answers for it does not make it wrong.
    pub fn resolve(&mut self, qp: &mut Qp) -> bool {
        if qp.route == Route::Inside {
            self.let_go(qp.slot);
            return false;
        }
        match self.hold_next_hop(qp.slot, &qp.template.dst()) {
            Resolution::Known(mac) => {
                qp.template.set_dst_mac(mac);
                qp.route = Route::Known;
                false
            }
            Resolution::Pending => false,
            Resolution::Failed => qp.route == Route::Pending,
        }
    }

    /// Looks up where frames to an address go. The queue pair in this slot holds that neighbour from now on, and is
    /// visited when it changes.
    pub fn hold_next_hop(&mut self, slot: u32, dst: &Gid) -> Resolution {
        let (shared, before) = (self.shared.clone(), self.hops.of(slot));
        let (hop, found) = shared.with_net(|net| {
            let held = net.hold(self.now, dst, before);
            self.net_transmit(net);
            held
        });
        self.hops.set(slot, hop);
        found
    }

    /// The queue pair in this slot sends to no neighbour any more.
    pub fn let_go(&mut self, slot: u32) {
        if let Some(hop) = self.hops.of(slot) {
            self.hops.set(slot, None);
            self.shared.with_net(|net| net.release(hop));
        }
    }

    /// The queue pair's peer did not answer: perhaps the next hop is at another station now.
    #[cold]
    pub fn doubt_next_hop(&mut self, slot: u32) {
        if let Some(hop) = self.hops.of(slot) {
            self.shared.with_net(|net| net.doubt(self.now, hop));
        }
    }

    /// Sends what the IP host has to send. What finds no frame is lost as on the wire: it counts as one of the requests
    /// after which a neighbour is unreachable.
    pub fn net_transmit(&mut self, net: &mut crate::net::Net) {
        while self.requests.frames.len() < TX_BURST / 2 {
            let Some(mut frame) = self.take_frame() else {
                if net.poll_transmit(self.now, &mut [0; FRAME_MAX]).is_none() {
                    return;
                }
                self.discard(Discard::NoBuffer);
                continue;
            };
            match net.poll_transmit(self.now, frame.buffer_mut()) {
                Some(len) => {
                    frame.set_len(len);
                    self.requests.frames.push(frame);
                }
                None => return self.keep_frame(frame),
            }
        }
    }
}

#[inline]
fn flush(queue: &mut dyn PortQueue, backlog: &mut Backlog, now: Instant, counters: &Counters) -> usize {
    let bytes: usize = backlog.frames.iter().map(Frame::len).sum();
    let sent = queue.tx_burst(&mut backlog.frames);
    let left: usize = backlog.frames.iter().map(Frame::len).sum();
    backlog.gone += sent as u64;
    if sent > 0 {
        counters.add(Counter::TxFrames, sent as u64);
        counters.add(Counter::TxBytes, (bytes - left) as u64);
        backlog.refused_since = None;
    } else {
        // A link that is down keeps its frames for a moment; then they count as lost on it.
        let since = *backlog.refused_since.get_or_insert(now);
        if now.nanos_since(since) >= TX_STALL.as_nanos() as u64 {
            counters.discard(Discard::TxStalled, backlog.frames.len() as u64);
            backlog.gone += backlog.frames.len() as u64;
            backlog.frames.clear();
            backlog.refused_since = None;
        }
    }
    sent
}
