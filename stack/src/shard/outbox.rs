//! The transmit side: frames on their way to the port, answers before requests, and empty frames to build packets in.
//!
//! Owns the port's queue and never waits for it: frames that a port does not take stay for the next turn, and count as lost on the link
//! when the link was down for too long. Each route of the port has backlogs of its own, so that a link which takes no frames delays only
//! the frames of that link.
//!
//! Whatever waits for a route is kept with its backlogs, and costs nothing until that route moves: queue pairs parked until the route
//! has room, and completions that may become visible when the frames up to a mark have left.

mod backlogs;
mod budget;

use self::backlogs::{Backlogs, OtherRoutes};
pub(super) use self::backlogs::{HeldBack, Leaving, Traffic};
pub(super) use self::budget::Budget;
use super::counters::{Counter, Counters};
use super::deferred::list::Mark;
use super::due::Due;
use super::qp::{Hop, INSIDE, Qp};
use super::shared::Shared;
use super::tx::writer::{Built, InPlace, Source, write_frames};
use crate::config::{TX_BURST, TX_STALL};
use crate::id::Mtu;
use crate::port::{Destination, Frame, NoRoute, PortQueue, Route, TxBurst};
use crate::time::Instant;

/// Why [`Outbox::write`] wrote no more packets.
pub(super) enum Ended<E> {
    /// All requested packets are written.
    Written,
    /// The source has no further packet, for this reason.
    Source(E),
    /// The port's memory has no room at the moment.
    Full,
    /// No empty frame is available.
    NoBuffer,
}

pub(super) struct Outbox {
    /// The port's queue; it is also the queue that frames are received from.
    pub queue: Box<dyn PortQueue>,
    /// The backlogs of a port's only route, or the first of several.
    first: Backlogs,
    others: OtherRoutes,
    /// Frames for shards of this device: handed over as soon as they are built, so they wait for no route.
    inside: Backlogs,
    /// Something waits besides the frames of the first route: frames of other routes, or queue pairs and completions that wait for a route.
    has_waiters: bool,
    /// The share of a turn in which a queue pair may build frames.
    budget: Budget,
    /// IPv4 identification of the last packet built.
    pub ip_id: u16,
    /// A spare empty frame.
    spare: Option<Frame>,
    /// Frames of this turn that left before its end: built in the port's own memory, or queued ahead of such frames.
    sent_early: usize,
    /// Whether the port has routes that may end, of which this shard may have used none.
    has_links: bool,
    /// Turns of such a port.
    turns: u32,
}

/// Turns between two queries of the port for routes that have ended.
const ENDED_EVERY: u32 = 16;

impl Outbox {
    pub fn new(mut queue: Box<dyn PortQueue>) -> Self {
        Self {
            has_links: queue.routes().is_some(),
            queue,
            first: Backlogs::default(),
            others: OtherRoutes::default(),
            inside: Backlogs::default(),
            has_waiters: false,
            budget: Budget::default(),
            ip_id: 0,
            spare: None,
            sent_early: 0,
            turns: 0,
        }
    }

    /// Sets that the port sends consecutive frames to one peer in messages of `bytes` bytes, on its only route or the first of several. On
    /// other routes frames leave one by one.
    pub fn send_in_messages(&mut self, bytes: usize) {
        self.budget = Budget::of_message(bytes);
    }

    /// What a queue pair may build in this turn, on a route with room for `room` frames.
    #[inline(always)]
    pub fn budget(&self, route: Route, room: usize) -> Budget {
        let whole = if route == Route::default() { self.budget } else { Budget::default() };
        whole.in_room(room)
    }

    /// The route to a peer. Creates its backlogs, unless they exist.
    ///
    /// # Errors
    /// As [`route_to`](crate::port::Routes::route_to) of the port.
    pub fn route_to(&mut self, to: Destination) -> Result<Route, NoRoute> {
        let Some(routes) = self.queue.routes() else { return Ok(Route::default()) };
        let route = routes.route_to(to)?;
        assert!(route != INSIDE, "the port has more routes than the {} that it may have", Route::COUNT);
        if route != Route::default() {
            let _ = self.on(route);
        }
        Ok(route)
    }

    /// The payload limit of packets on a route, if it differs from the path MTU.
    pub fn segment_on(&mut self, route: Route) -> Option<Mtu> {
        self.queue.routes()?.segment_on(route)
    }

    /// The largest payload limit of all routes.
    pub fn longest_segment(&mut self) -> Option<Mtu> {
        self.queue.routes()?.longest_segment()
    }

    /// Whether it is time to ask for [`next_ended`](Self::next_ended): every few turns, where there are several routes. Also if this shard
    /// has used none of them: what nobody asks for is kept, and the port does not let a thread sleep.
    #[inline]
    pub fn polls_ended_routes(&mut self) -> bool {
        if !self.has_links {
            return false;
        }
        self.turns = self.turns.wrapping_add(1);
        self.turns.is_multiple_of(ENDED_EVERY)
    }

    /// The next route whose destination has ended.
    pub fn next_ended(&mut self) -> Option<Route> {
        self.queue.routes()?.next_ended()
    }

    /// The next IPv4 identification.
    #[inline]
    pub fn next_ip_id(&mut self) -> u16 {
        self.ip_id = self.ip_id.wrapping_add(1);
        self.ip_id
    }

    /// Number of frames that wait for the port.
    #[inline]
    pub fn backlog(&self) -> usize {
        self.first.waiting() + if self.has_waiters { self.backlog_of_others() } else { 0 }
    }

    /// Whether [`flush`](Self::flush) has work.
    #[inline]
    pub fn needs_flush(&self) -> bool {
        self.first.waiting() > 0 || self.has_waiters
    }

    #[cold]
    fn backlog_of_others(&self) -> usize {
        self.others.iter().map(Backlogs::waiting).sum()
    }

    /// Whether frames wait for the port.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.backlog() > 0
    }

    /// When the waiting frames can leave; with the link down, when they are dropped.
    pub fn due(&self, now: Instant, has_link: bool) -> Due {
        match (self.has_more(), has_link) {
            (false, _) => Due::Never,
            (true, true) => Due::Now,
            (true, false) => Due::At(now.after(TX_STALL)),
        }
    }

    /// Whether the port has shown several routes so far: then each has its own backlog, and completions wait for the answers of their
    /// own route.
    #[inline]
    pub fn has_routes(&self) -> bool {
        !self.others.is_empty()
    }

    /// Whether no route has room for another frame of this kind.
    #[inline]
    pub fn is_full(&self, traffic: Traffic) -> bool {
        self.first.of(traffic).frames.is_full() && !self.has_routes()
    }

    /// Number of frames that a route has room for.
    #[inline(always)]
    pub fn room(&self, traffic: Traffic, route: Route) -> usize {
        if route == Route::default() {
            self.first.of(traffic).frames.remaining_capacity()
        } else {
            self.get_other(route).map_or(TX_BURST, |backlogs| backlogs.room(traffic))
        }
    }

    /// Number of datagrams that a route has room for. A link to a peer that has stopped has none: use [`send_now`](Self::send_now) for it.
    #[inline(always)]
    pub fn room_for_datagrams(&self, route: Route) -> usize {
        if route == Route::default() {
            self.first.requests.frames.remaining_capacity()
        } else {
            self.get_other(route).map_or(TX_BURST, Backlogs::room_for_datagrams)
        }
    }

    #[inline(always)]
    fn get(&self, route: Route) -> Option<&Backlogs> {
        if route == Route::default() { Some(&self.first) } else { self.get_other(route) }
    }

    #[inline]
    fn get_other(&self, route: Route) -> Option<&Backlogs> {
        if route == INSIDE { Some(&self.inside) } else { self.others.get(route) }
    }

    /// The backlogs of a route, for adding to them.
    #[inline(always)]
    fn on(&mut self, route: Route) -> &mut Backlogs {
        self.parts(route).1
    }

    /// The port's queue, and the backlogs of a route.
    #[inline(always)]
    fn parts(&mut self, route: Route) -> (&mut dyn PortQueue, &mut Backlogs) {
        let Self { queue, first, others, inside, has_waiters, .. } = self;
        let backlogs =
            if route == Route::default() { first } else { other(others, inside, has_waiters, route) };
        (&mut **queue, backlogs)
    }

    /// Queues a frame behind the waiting ones. The caller has checked that there is [`room`](Self::room).
    #[inline(always)]
    pub fn push(&mut self, traffic: Traffic, route: Route, frame: Frame) {
        self.on(route).of_mut(traffic).frames.push(frame);
    }

    /// Takes an empty frame to build a packet in.
    #[inline]
    pub fn take_frame(&mut self) -> Option<Frame> {
        match self.spare.take() {
            Some(frame) => Some(frame),
            None => self.queue.alloc(),
        }
    }

    /// Keeps an unused empty frame.
    #[inline]
    pub fn keep_frame(&mut self, frame: Frame) {
        self.spare = Some(frame); // an older spare returns to its pool
    }

    /// Allocates an empty frame in advance, so that a message that comes alone need not wait for the allocation.
    #[inline]
    pub fn prepare_spare(&mut self) {
        if self.spare.is_none() {
            self.spare = self.queue.alloc();
        }
    }

    /// Writes packets of a source. Up to `in_place` ([`Budget::next_in_place`]) are written in the port's own memory, if the port lends
    /// some and first takes all waiting frames of this route; otherwise up to `next` in frames, behind the waiting ones.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "each is passed on to one place")]
    pub fn write<S: Source>(
        &mut self,
        traffic: Traffic,
        route: Route,
        in_place: Option<usize>,
        next: usize,
        source: &mut S,
        now: Instant,
        counters: &Counters,
    ) -> (Built, Ended<S::End>) {
        if let Some(most) = in_place
            && self.is_flushed(route, now, counters)
            && let Some(written) = self.write_in_place(route, most, source, counters)
        {
            return written;
        }
        self.write_to_frames(traffic, route, next, source)
    }

    /// Whether the peer on one of several routes seems to have stopped: waiting frames were dropped because none was taken for too long,
    /// and none of the frames that wait now is taken either.
    #[cold]
    pub fn has_stopped(&mut self, route: Route, now: Instant, counters: &Counters) -> bool {
        if !self.get_other(route).is_some_and(|backlogs| backlogs.requests.has_stopped) {
            return false;
        }
        let (queue, backlogs) = self.parts(route);
        let sent = backlogs.flush(queue, route, now, counters);
        backlogs.requests.has_stopped = sent == 0;
        self.sent_early += sent;
        sent == 0
    }

    /// Sends a datagram on a route that [has stopped](Self::has_stopped), if the link takes it at once: nothing is queued for a peer that
    /// may be stopped for long.
    ///
    /// # Errors
    /// The link does not take it: the frame is returned.
    #[cold]
    pub fn send_now(&mut self, route: Route, frame: Frame, counters: &Counters) -> Result<(), Frame> {
        let (queue, backlogs) = self.parts(route);
        if backlogs.waiting() > 0 {
            return Err(frame);
        }
        let (len, mut alone) = (frame.len(), TxBurst::new());
        alone.push(frame);
        queue.tx_burst(route, &mut alone);
        if let Some(frame) = alone.pop() {
            return Err(frame);
        }
        backlogs.requests.has_stopped = false;
        counters.add(Counter::TxFrames, 1);
        counters.add(Counter::TxBytes, len as u64);
        self.sent_early += 1;
        Ok(())
    }

    /// Hands the waiting frames of a route to the port. Returns whether none is left.
    #[inline(always)]
    fn is_flushed(&mut self, route: Route, now: Instant, counters: &Counters) -> bool {
        // Only a read access here: backlogs that are accessed for writing are flushed at the end of the turn.
        if self.get(route).is_none_or(|backlogs| backlogs.waiting() == 0) {
            return true;
        }
        let (queue, backlogs) = self.parts(route);
        let sent = backlogs.flush(queue, route, now, counters);
        let empty = backlogs.waiting() == 0;
        self.sent_early += sent;
        empty
    }

    /// Writes packets in the port's own memory, each finished while it is in the nearest cache. They are then on their way. `None` if the
    /// port has no such memory.
    #[inline(never)]
    fn write_in_place<S: Source>(
        &mut self,
        route: Route,
        most: usize,
        source: &mut S,
        counters: &Counters,
    ) -> Option<(Built, Ended<S::End>)> {
        let mut writer = InPlace::new(source, &mut self.ip_id);
        let sent = self.queue.build_burst(route, most, &mut writer)?;
        let InPlace { built, end, .. } = writer;
        debug_assert_eq!(sent, built.frames, "what was built is on its way");
        counters.add(Counter::TxFrames, built.frames as u64);
        counters.add(Counter::TxBytes, built.bytes);
        self.sent_early += built.frames;
        let ended = match end {
            Some(end) => Ended::Source(end),
            None if built.frames < most => Ended::Full,
            None => Ended::Written,
        };
        Some((built, ended))
    }

    /// Writes packets to frames in the backlog, where they wait for the port.
    #[inline(always)]
    fn write_to_frames<S: Source>(
        &mut self,
        traffic: Traffic,
        route: Route,
        n: usize,
        source: &mut S,
    ) -> (Built, Ended<S::End>) {
        let Self { queue, first, others, inside, has_waiters, spare, ip_id, .. } = self;
        let backlogs =
            if route == Route::default() { first } else { other(others, inside, has_waiters, route) };
        let frames = &mut backlogs.of_mut(traffic).frames;
        let base = frames.len();
        debug_assert!(n <= frames.remaining_capacity(), "the caller has asked for room");
        if let Some(frame) = spare.take()
            && let Err(full) = frames.try_push(frame)
        {
            *spare = Some(full.element());
        }
        let missing = n - (frames.len() - base);
        if missing > 0 {
            queue.alloc_burst(frames, missing);
        }
        if frames.len() == base {
            return (Built::default(), Ended::NoBuffer);
        }
        let (built, end) = write_frames(source, ip_id, &mut frames[base..]);
        while frames.len() > base + built.frames
            && let Some(frame) = frames.pop()
        {
            *spare = Some(frame); // an older spare returns to its pool
        }
        (built, end.map_or(Ended::Written, Ended::Source))
    }

    /// Number of frames that left since the last call by other ways than [`flush`](Self::flush).
    #[inline]
    pub fn take_sent_early(&mut self) -> usize {
        core::mem::take(&mut self.sent_early)
    }

    /// Hands waiting frames to the port, answers first. Returns the number of frames that it took.
    #[inline]
    pub fn flush(&mut self, now: Instant, counters: &Counters) -> usize {
        let mut sent = self.first.flush(&mut *self.queue, Route::default(), now, counters);
        if self.has_waiters {
            sent += self.others.flush(&mut *self.queue, now, counters);
            self.recompute_waiting();
        }
        sent
    }

    /// Whether queue pairs may be parked, or completions may wait for frames to leave.
    #[inline]
    pub fn any_waiting(&self) -> bool {
        self.has_waiters
    }

    /// Recomputes the result of [`any_waiting`](Self::any_waiting).
    #[inline]
    pub fn recompute_waiting(&mut self) {
        self.has_waiters = self.others.any_in_use() || !self.first.has_no_waiters();
    }

    /// Parks the queue pair in this slot, which has more to send than this route has room for. [`unpark`](Self::unpark) returns it.
    #[cold]
    pub fn park(&mut self, traffic: Traffic, route: Route, slot: u32) {
        self.on(route).park(traffic, slot);
        self.has_waiters = true;
    }

    /// Returns parked queue pairs whose routes have room again: as many as there is room for frames, in the order in which they were
    /// parked.
    #[cold]
    pub fn unpark(&mut self, mut back: impl FnMut(Traffic, u32)) {
        for backlogs in core::iter::once(&mut self.first).chain(self.others.iter_mut()) {
            for traffic in [Traffic::Answers, Traffic::Requests] {
                backlogs.unpark(traffic, |slot| back(traffic, slot));
            }
        }
    }

    /// Whether a route currently takes no frames.
    pub fn refuses(&self, route: Route) -> bool {
        self.get(route).is_some_and(Backlogs::refuses)
    }

    /// Notes that unreliable work requests `from..seq` are complete when the frames that wait for this route now have left, and not before
    /// the requests ahead of them.
    #[inline]
    pub fn note_leaving(&mut self, qp: &Qp, route: Route, from: u32, seq: u32) {
        self.on(route).note_leaving(qp.slot, qp.epoch, from, seq);
        self.has_waiters = true;
    }

    /// Notes that work requests `from..seq` complete together with the requests ahead of them, whose frames wait for another route.
    #[cold]
    pub fn complete_with_earlier(&mut self, slot: u32, epoch: u32, from: u32, seq: u32) {
        let mut all = core::iter::once(&mut self.first).chain(self.others.iter_mut());
        all.any(|backlogs| backlogs.extend_leaving(slot, epoch, from, seq));
    }

    /// Hands the last `n` frames built over to a shard of this device, if `hop` leads there.
    #[inline(always)]
    pub fn send_inside(
        &mut self,
        traffic: Traffic,
        hop: Hop,
        n: usize,
        shared: &Shared,
        counters: &Counters,
    ) {
        if let Hop::Inside(shard) = hop {
            self.hand_over(traffic, n, shard.into(), shared, counters);
        }
    }

    #[cold]
    fn hand_over(&mut self, traffic: Traffic, n: usize, shard: usize, shared: &Shared, counters: &Counters) {
        let frames = &mut self.inside.of_mut(traffic).frames;
        for frame in frames.drain(frames.len() - n..) {
            counters.add(Counter::ToSelf, 1);
            shared.hand_over(shard, frame, counters);
        }
    }

    /// The next unreliable work requests whose frames have left; each is returned once, those of a route in order.
    pub fn next_sent(&mut self) -> Option<Leaving> {
        self.first.next_sent().or_else(|| self.others.iter_mut().find_map(Backlogs::next_sent))
    }

    /// Whether the IP host may send unsolicited frames: only while half of the requests' backlog is free.
    pub fn has_room_for_host(&self) -> bool {
        self.first.requests.frames.len() < TX_BURST / 2
    }

    /// Whether waiting answers block the publication of all completions.
    #[inline]
    pub fn holds_all_back(&self) -> bool {
        !self.first.answers.frames.is_empty() && !self.has_routes()
    }

    /// Whether answers wait for this route, of several.
    pub fn has_answers_for(&self, route: Route) -> bool {
        self.get(route).is_some_and(|backlogs| !backlogs.answers.frames.is_empty())
    }

    /// Makes receive completions of a queue pair wait until the answers that wait for the route now have left:
    /// [`next_released`](Self::next_released) returns the queue pair then.
    #[cold]
    pub fn hold_back(&mut self, route: Route, slot: u32, epoch: u32) -> Mark {
        let departed = self.on(route).hold_back(slot, epoch);
        self.has_waiters = true;
        Mark { route, departed }
    }

    /// Whether the answers up to a mark have left.
    pub fn has_departed(&self, mark: Mark) -> bool {
        self.get(mark.route).is_none_or(|backlogs| mark.departed <= backlogs.answers.departed())
    }

    /// The next queue pair whose completions waited for answers that have left, once for each [`hold_back`](Self::hold_back).
    #[cold]
    pub fn next_released(&mut self) -> Option<HeldBack> {
        let mut all = core::iter::once(&mut self.first).chain(self.others.iter_mut());
        all.find_map(Backlogs::next_released).or_else(|| self.inside.next_released())
    }
}

/// The backlogs of a route other than the first.
#[cold]
fn other<'a>(
    others: &'a mut OtherRoutes,
    inside: &'a mut Backlogs,
    has_waiters: &mut bool,
    route: Route,
) -> &'a mut Backlogs {
    if route == INSIDE {
        return inside;
    }
    *has_waiters = true;
    others.of(route)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{QP_TX_BUDGET, TX_REFUSED};
    use crate::port::limited::Limited;
    use crate::port::{QueueLayer, Routes};
    use crate::shard::tx::writer::source::Responses;
    use crate::wire::Discard;

    const ONE: Route = Route(0);

    fn outbox(takes: usize) -> Outbox {
        let mut outbox = Outbox::new(Box::new(Limited { takes, buffers: usize::MAX }));
        for _ in 0..2 {
            let (answer, request) = (outbox.take_frame(), outbox.take_frame());
            for (traffic, frame) in [(Traffic::Answers, answer), (Traffic::Requests, request)] {
                outbox.push(traffic, ONE, frame.expect("it has a buffer"));
            }
        }
        outbox
    }

    #[test]
    fn requests_leave_when_all_answers_have() {
        let (mut out, counters) = (outbox(1), Counters::default());
        assert_eq!(out.flush(Instant::ZERO, &counters), 1);
        assert_eq!(
            (out.first.answers.frames.len(), out.first.requests.frames.len(), out.backlog()),
            (1, 2, 3)
        );
        let mut out = outbox(3);
        assert_eq!(out.flush(Instant::ZERO, &counters), 3);
        assert_eq!((out.first.answers.frames.len(), out.first.requests.frames.len()), (0, 1));
    }

    // Goal: a link to a process of the host is written in place, although the sockets beside it gather frames into messages.
    #[test]
    fn one_route_gathers_messages_and_others_are_written_in_place() {
        let mut out = outbox(1);
        out.send_in_messages(65_000);
        let in_place = [ONE, Route(1), Route(7)].map(|route| out.budget(route, TX_BURST).next_in_place());
        assert_eq!(in_place, [None, Some(QP_TX_BUDGET), Some(QP_TX_BUDGET)]);
    }

    // A link that is down keeps its frames for a while; then they are dropped and counted.
    #[test]
    fn frames_that_no_port_takes_are_dropped_by_name() {
        let (mut out, counters) = (outbox(0), Counters::default());
        let after = |nanos| Instant::from_nanos(nanos);
        let stall = TX_STALL.as_nanos() as u64;
        for now in [5, 5 + stall - 1] {
            assert_eq!((out.flush(after(now), &counters), out.backlog()), (0, 4));
        }
        assert_eq!((out.flush(after(5 + stall), &counters), out.first.answers.frames.len()), (0, 0));
        assert_eq!(counters.snapshot().discarded(Discard::TxStalled), 2);
        assert_eq!(out.first.requests.frames.len(), 2, "their time begins when it is their turn");
    }

    // Packets are written behind the waiting frames; an unused empty frame is used next.
    #[test]
    fn packets_are_written_where_they_wait() {
        let mut out = outbox(0);
        let (built, ended) = out.write(
            Traffic::Answers,
            ONE,
            Some(4),
            3,
            &mut Responses::new(&[], &[0, 0]),
            Instant::ZERO,
            &Counters::default(),
        );
        assert_eq!(built.frames, 2);
        assert!(matches!(ended, Ended::Source(())));
        assert_eq!((out.first.answers.frames.len(), out.first.requests.frames.len(), out.ip_id), (4, 2, 2));
        assert!(out.spare.is_some());
        let (built, ended) = out.write(
            Traffic::Requests,
            ONE,
            None,
            1,
            &mut Responses::new(&[], &[0, 0]),
            Instant::ZERO,
            &Counters::default(),
        );
        assert_eq!(built.frames, 1);
        assert!(matches!(ended, Ended::Written) && out.spare.is_none());
        assert_eq!(out.first.requests.frames[2].len() as u64, built.bytes);
    }

    /// A port with several links; each takes the given number of frames.
    struct Several([usize; 3]);

    impl Routes for Several {
        fn route_to(&mut self, _: Destination) -> Result<Route, NoRoute> {
            Err(NoRoute::Pending)
        }
        fn segment_on(&mut self, _: Route) -> Option<Mtu> {
            None
        }
        fn longest_segment(&mut self) -> Option<Mtu> {
            None
        }
        fn next_ended(&mut self) -> Option<Route> {
            Some(Route(2))
        }
    }

    // A port keeps what it has to tell, and lets no thread sleep meanwhile: it is asked by shards that never used a route, too.
    #[test]
    fn a_port_with_links_is_asked_for_those_that_ended_whoever_used_them() {
        let asked = |out: &mut Outbox| (0..2 * ENDED_EVERY).filter(|_| out.polls_ended_routes()).count();
        let mut several = Outbox::new(Box::new(Several([9, 9, 9])));
        assert!(!several.has_routes());
        assert_eq!((asked(&mut several), several.next_ended()), (2, Some(Route(2))));
        assert_eq!(asked(&mut outbox(1)), 0, "it has one link");
    }

    impl QueueLayer for Several {
        fn inner(&mut self) -> &mut dyn PortQueue {
            unreachable!("nothing else is asked")
        }
        fn routes(&mut self) -> Option<&mut dyn Routes> {
            Some(self)
        }
        fn tx_burst(&mut self, Route(route): Route, frames: &mut TxBurst) -> usize {
            let takes = &mut self.0[usize::from(route)];
            let n = frames.len().min(*takes);
            *takes -= n;
            frames.drain(..n).count()
        }
    }

    fn push(out: &mut Outbox, traffic: Traffic, route: u8, frames: usize) {
        for _ in 0..frames {
            out.push(traffic, Route(route), Frame::from_vec(vec![0; 64]));
        }
    }

    // Goal: a link that takes no frames delays only its own frames, and the time limit runs only for them.
    #[test]
    fn a_link_that_takes_nothing_holds_up_what_leaves_by_it_alone() {
        let (mut out, counters) = (Outbox::new(Box::new(Several([9, 0, 9]))), Counters::default());
        assert_eq!(out.room(Traffic::Requests, Route(2)), TX_BURST, "one that was never used");
        for route in 0..3 {
            push(&mut out, Traffic::Answers, route, 1);
            push(&mut out, Traffic::Requests, route, 2);
        }
        assert_eq!((out.backlog(), out.flush(Instant::ZERO, &counters), out.backlog()), (9, 6, 3));
        assert_eq!([0, 1, 2].map(|route| out.refuses(Route(route))), [false, true, false]);
        let left = [0, 1, 2].map(|route| out.has_answers_for(Route(route)));
        assert_eq!((left, out.holds_all_back()), ([false, true, false], false));
        push(&mut out, Traffic::Requests, 1, TX_BURST - 2);
        let room = [Traffic::Requests, Traffic::Answers].map(|traffic| out.room(traffic, Route(1)));
        assert_eq!(room, [0, TX_REFUSED - 1], "less while it refuses");
        assert!(!out.is_full(Traffic::Requests), "others have room");
        push(&mut out, Traffic::Requests, 2, 1);
        let late = Instant::ZERO.after(TX_STALL);
        assert_eq!(out.flush(late, &counters), 1);
        assert_eq!(counters.snapshot().discarded(Discard::TxStalled), 1, "the answer");
        out.flush(late, &counters);
        out.flush(late.after(TX_STALL), &counters);
        assert_eq!(counters.snapshot().discarded(Discard::TxStalled), 1 + TX_BURST as u64);
        assert!(!out.has_more() && !out.others.any_in_use());
    }

    // Waiting for frames of a route ends when the frames that waited at that time have left, whichever call sent them, and whatever was
    // queued behind them.
    #[test]
    fn who_waits_for_a_route_is_told_when_its_frames_have_gone() {
        let (mut out, counters) = (Outbox::new(Box::new(Several([9, 4, 9]))), Counters::default());
        let told = |out: &mut Outbox| -> Vec<u32> {
            core::iter::from_fn(|| out.next_released()).map(|held| held.slot).collect()
        };
        out.hold_back(ONE, 5, 0);
        assert_eq!(told(&mut out), [5], "no answers waited there");
        push(&mut out, Traffic::Answers, 1, 3);
        let first = out.hold_back(Route(1), 6, 0);
        push(&mut out, Traffic::Answers, 1, 3);
        let second = out.hold_back(Route(1), 7, 0);
        assert!(told(&mut out).is_empty() && out.any_waiting());
        assert_eq!((out.flush(Instant::ZERO, &counters), told(&mut out)), (4, vec![6]));
        assert_eq!([first, second].map(|mark| out.has_departed(mark)), [true, false]);
        assert!(out.has_answers_for(Route(1)), "it is never empty meanwhile");
        out.flush(Instant::ZERO.after(TX_STALL), &counters);
        assert_eq!((out.flush(Instant::ZERO.after(2 * TX_STALL), &counters), out.backlog()), (0, 0));
        assert_eq!((told(&mut out), out.has_departed(second)), (vec![7], true));
        out.flush(Instant::ZERO, &counters);
        out.recompute_waiting();
        assert!(!out.others.any_in_use() && !out.any_waiting());
    }

    // Goal: a queue pair that waits for room costs nothing until its route has room, and as many resume as there is room for.
    #[test]
    fn queue_pairs_are_parked_until_their_route_has_room() {
        let (mut out, counters) = (Outbox::new(Box::new(Several([9, 2, 9]))), Counters::default());
        let unparked = |out: &mut Outbox| {
            let mut back = Vec::new();
            out.unpark(|traffic, slot| back.push((traffic, slot)));
            out.recompute_waiting();
            back
        };
        push(&mut out, Traffic::Answers, 1, TX_BURST);
        push(&mut out, Traffic::Requests, 1, TX_BURST);
        for slot in 0..5000 {
            out.park(Traffic::Answers, Route(1), slot);
        }
        out.park(Traffic::Requests, Route(1), 7);
        assert_eq!(unparked(&mut out), []);
        assert_eq!(out.flush(Instant::ZERO, &counters), 2);
        assert_eq!(unparked(&mut out), [0, 1].map(|slot| (Traffic::Answers, slot)));
        // Dropped frames make room, too. Every route with room returns its queue pairs.
        out.park(Traffic::Requests, ONE, 9);
        out.flush(Instant::ZERO, &counters);
        out.flush(Instant::ZERO.after(TX_STALL), &counters);
        let back = unparked(&mut out);
        let answers = back.iter().filter(|(traffic, _)| *traffic == Traffic::Answers).count();
        // The requests of that route are refused from now on.
        assert_eq!((answers, back[0]), (TX_REFUSED, (Traffic::Requests, 9)));
        assert!(out.needs_flush(), "the others wait");
    }

    // Goal: unreliable work requests of a queue pair complete in order, whichever of their routes is first.
    #[test]
    fn work_requests_leave_with_those_ahead() {
        let (mut out, counters) = (Outbox::new(Box::new(Several([0, 9, 9]))), Counters::default());
        let qp = crate::shard::agenda::tests::qp(3);
        let gone = |out: &mut Outbox| -> Vec<(u32, u32)> {
            core::iter::from_fn(|| out.next_sent()).map(|leaving| (leaving.from, leaving.seq)).collect()
        };
        for (route, from, seq) in [(0, 0, 4), (1, 4, 8), (2, 8, 9)] {
            push(&mut out, Traffic::Requests, route, 1);
            out.note_leaving(&qp, Route(route), from, seq);
        }
        assert_eq!(out.flush(Instant::ZERO, &counters), 2);
        let early = gone(&mut out);
        assert_eq!(early, [(4, 8), (8, 9)]);
        for (from, seq) in early {
            out.complete_with_earlier(qp.slot, qp.epoch, from, seq);
        }
        assert_eq!(gone(&mut out), []);
        out.flush(Instant::ZERO.after(TX_STALL), &counters);
        assert_eq!(gone(&mut out), [(0, 9)]);
    }

    // Frames for a shard of this device wait for no route.
    #[test]
    fn what_goes_inside_waits_for_no_route() {
        let mut out = Outbox::new(Box::new(Several([0, 0, 0])));
        push(&mut out, Traffic::Requests, 0, TX_BURST);
        let mut source = Responses::new(&[], &[0]);
        out.spare = Some(Frame::from_vec(vec![0; 256]));
        let room = out.room(Traffic::Requests, INSIDE);
        let (built, _) =
            out.write(Traffic::Requests, INSIDE, None, 1, &mut source, Instant::ZERO, &Counters::default());
        assert_eq!((room, built.frames, out.inside.waiting()), (TX_BURST, 1, 1));
        let (shared, counters) = (crate::shard::scale::shared(1, 4), Counters::default());
        out.send_inside(Traffic::Requests, Hop::Inside(0), 1, &shared, &counters);
        assert_eq!((out.inside.waiting(), out.backlog(), out.has_routes()), (0, TX_BURST, false));
    }
}
