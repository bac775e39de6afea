//! One queue pair of a memif port: two rings of the current connection.

use super::connection::{Connection, Rings};
use super::link::Wait;
use super::rx::Rx;
use super::shared::Shared;
use super::slots::Impossible;
use super::tx::Tx;
use super::wake::Waker;
use crate::crc::copy_function;
use crate::port::frame::{Frame, RxBurst, TxBurst};
use crate::port::stall::Stall;
use crate::port::stock::Stock;
use crate::port::traits::{Armed, Build, FlowKind, PortQueue, Route, Stalled};
use crate::time;
use core::net::IpAddr;
use core::sync::atomic::{Ordering, compiler_fence};
use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// How often a queue without a link takes the steps that lead to one.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The longest sleep of a queue without a link, for that of another queue.
const LOOK_AT_MOST: Duration = Duration::from_secs(1);
/// The longest sleep of a queue while a peer is met: another one may come.
const LOOK_WHILE_MEETING: Duration = Duration::from_millis(10);
/// Polls without frames until the peer's flag is read again: by then the peer has seen what was sent, or its flag says that it
/// sleeps.
const LOOK_AGAIN: u32 = 64;

/// A queue pair.
pub struct MemifQueue {
    ends: Option<Box<Ends>>,
    /// Number of the connection that they belong to.
    number: u64,
    index: usize,
    stock: Stock,
    /// Polls until the peer's flag is read again; 0: not needed.
    look_again: u32,
    waker: Option<Waker>,
    looked_at: Option<Instant>,
    /// A peer that has left, until what it had sent is received.
    left: Option<Left>,
    /// Whether the peer takes what waits for it.
    stall: Stall,
    shared: Arc<Shared>,
}

/// The ends of a connection that is over.
struct Left {
    ends: Box<Ends>,
    /// Slots that were filled when the connection was found to be over. The peer, which still has the memory, may fill more: those
    /// are not received.
    slots: u16,
}

/// Both ends in use.
struct Ends {
    rx: Rx,
    tx: Tx,
    /// Wakes the peer.
    event: Arc<OwnedFd>,
    /// The peer wakes us with this.
    our_event: Arc<OwnedFd>,
}

impl Ends {
    fn new(connection: &Connection, queue: usize, max_frame: usize) -> Result<Self, String> {
        let Rings { rx: (rx, rx_buffers), tx: (tx, tx_buffers), event, our_event } =
            connection.rings(queue)?;
        Ok(Self {
            rx: Rx::new(rx, rx_buffers, copy_function(), max_frame),
            tx: Tx::new(tx, tx_buffers, max_frame),
            event,
            our_event,
        })
    }
}

impl MemifQueue {
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> Self {
        let stock = Stock::new(shared.pool.clone());
        Self {
            ends: None,
            number: 0,
            index,
            stock,
            look_again: 0,
            waker: None,
            looked_at: None,
            left: None,
            stall: Stall::new(shared.stall),
            shared,
        }
    }

    /// Takes the rings of a new connection, if there is one, and gives up those of the old one.
    #[inline(always)]
    fn follow(&mut self) {
        if self.shared.state.number.load(Ordering::Acquire) != self.number {
            self.change();
        }
    }

    #[cold]
    fn change(&mut self) {
        // What a peer sent before it left comes first; until then the number stays, and this is called again.
        if let Some(ends) = self.ends.take() {
            let slots = ends.rx.unread();
            self.left = (slots > 0).then_some(Left { ends, slots });
        }
        if self.left.is_some() {
            return;
        }
        let connection = self.shared.state.current();
        self.number = connection.as_ref().map_or(0, |connection| connection.number);
        self.look_again = 0;
        let max_frame = self.shared.max_frame;
        self.ends = connection
            .and_then(|connection| Ends::new(&connection, self.index, max_frame).ok())
            .map(Box::new);
    }

    /// Receives what a peer had sent before it left.
    #[cold]
    fn receive_from_left(&mut self, left: &mut Left, out: &mut RxBurst) -> usize {
        let Ok(got) = left.ends.rx.burst(out, &mut self.stock) else {
            left.slots = 0;
            return 0;
        };
        let slots = left.slots.saturating_sub((got.frames + got.dropped) as u16);
        left.slots = slots.min(left.ends.rx.unread());
        let counters = &self.shared.counters[self.index];
        counters.rx(got.frames, got.bytes);
        counters.rx_dropped.add(got.dropped as u64);
        got.frames
    }

    /// Takes steps towards a link: without one nothing is received, so there is time.
    #[cold]
    fn look_for_link(&mut self) {
        let now = Instant::now();
        if self.looked_at.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY) {
            self.looked_at = Some(now);
            self.shared.state.serve();
        }
    }

    /// Prepares a sleep without a link, until there may be a peer.
    #[cold]
    fn arm_for_link(&self) -> Armed {
        let state = &self.shared.state;
        state.serve();
        if state.number.load(Ordering::Acquire) != self.number {
            return Armed::Pending;
        }
        match state.wait() {
            // The sleeper needs the descriptor once, so only the first queue gives it.
            Wait::Peer(fd) => Armed::Down(LOOK_AT_MOST, (self.index == 0).then_some(fd)),
            Wait::Meeting(fd) => Armed::Down(LOOK_WHILE_MEETING, (self.index == 0).then_some(fd)),
            Wait::Until(at) => Armed::Down(at.saturating_duration_since(Instant::now()), None),
            Wait::Soon => Armed::Unable,
        }
    }

    /// The peer violates the protocol: nothing of it is read any more.
    #[cold]
    fn give_up(&mut self) {
        self.ends = None;
        self.shared.state.is_broken(self.number);
    }

    /// Frames were sent: wakes the peer, if it waits for an event.
    #[inline(always)]
    fn notify(&mut self) {
        self.look_again = LOOK_AGAIN;
        // The compiler must keep the load of the flag behind the store of the index: see `Rx::arm`.
        compiler_fence(Ordering::SeqCst);
        if self.ends.as_ref().is_some_and(|ends| !ends.tx.is_polled()) {
            self.wake();
        }
    }

    /// A peer that went to sleep while we sent may have missed that: the processor may load its flag before our store of the
    /// index is visible. So the flag is read again later.
    #[inline(always)]
    fn look_again(&mut self) {
        if self.look_again > 0 {
            self.look_again -= 1;
            if self.look_again == 0 && self.ends.as_ref().is_some_and(|ends| !ends.tx.is_polled()) {
                self.wake();
            }
        }
    }

    #[cold]
    fn wake(&mut self) {
        if self.waker.is_none() {
            match Waker::new() {
                Ok(waker) => self.waker = Some(waker),
                Err(error) => return self.shared.cannot_wake(&error),
            }
        }
        let (Some(waker), Some(ends)) = (&mut self.waker, &self.ends) else { return };
        // Fails only where the descriptor is no eventfd, which was checked when the peer connected.
        let _ = waker.wake(ends.event.as_fd());
    }
}

impl PortQueue for MemifQueue {
    #[inline]
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        self.follow();
        let Some(ends) = &mut self.ends else {
            if let Some(mut left) = self.left.take() {
                let frames = self.receive_from_left(&mut left, out);
                self.left = (left.slots > 0).then_some(left);
                return frames;
            }
            self.look_for_link();
            return 0;
        };
        let Ok(got) = ends.rx.burst(out, &mut self.stock) else {
            self.give_up();
            return 0;
        };
        if got.frames + got.dropped == 0 {
            self.look_again();
            return 0;
        }
        // What was received is likely to be answered.
        ends.tx.prefetch();
        let counters = &self.shared.counters[self.index];
        counters.rx(got.frames, got.bytes);
        if got.dropped > 0 {
            counters.rx_dropped.add(got.dropped as u64);
            self.shared.note_dropped(false);
        }
        got.frames
    }

    fn route_to(&mut self, _: IpAddr) -> Route {
        Route::default()
    }
    fn take_source_port(&mut self, hint: u16, _: FlowKind) -> u16 {
        hint
    }
    fn release_source_port(&mut self, _: u16) {}

    #[inline]
    fn tx_burst(&mut self, _: Route, frames: &mut TxBurst) -> usize {
        self.follow();
        let Some(ends) = &mut self.ends else { return 0 };
        let done = match ends.tx.burst(frames) {
            Ok(done) => done,
            Err(Impossible) => {
                self.give_up();
                return 0;
            }
        };
        if done.taken == 0 {
            return 0;
        }
        ends.rx.give_back();
        let counters = &self.shared.counters[self.index];
        counters.tx(done.taken - done.dropped, done.bytes);
        if done.dropped > 0 {
            counters.tx_dropped.add(done.dropped as u64);
            self.shared.note_dropped(true);
        }
        self.notify();
        for frame in frames.drain(..done.taken) {
            self.stock.put(frame);
        }
        done.taken
    }

    #[inline]
    fn alloc(&mut self) -> Option<Frame> {
        self.stock.take()
    }

    #[inline]
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.stock.take_burst(out, n);
    }

    fn build_burst(&mut self, _: Route, most: usize, builder: &mut dyn Build) -> Option<usize> {
        self.follow();
        let ends = self.ends.as_mut()?;
        match ends.tx.build(most, builder) {
            Ok(lens) => {
                let lens = lens?;
                if !lens.is_empty() {
                    let counters = &self.shared.counters[self.index];
                    counters.tx(lens.len(), lens.iter().sum::<u32>() as usize);
                    self.notify();
                }
                Some(lens.len())
            }
            Err(Impossible) => {
                self.give_up();
                None
            }
        }
    }

    fn stalled(&mut self, _: Route, now: time::Instant) -> Stalled {
        self.follow();
        let reached = self.ends.as_ref().and_then(|ends| ends.tx.reached());
        self.stall.look(reached.map(|slot| self.number << u16::BITS | u64::from(slot)), now)
    }

    fn arm(&mut self) -> Armed {
        self.follow();
        // The next poll may be far away: reads the peer's flag again now.
        self.look_again = self.look_again.min(1);
        self.look_again();
        let Some(ends) = &mut self.ends else { return self.arm_for_link() };
        match ends.rx.arm() {
            true => Armed::Event(Arc::clone(&ends.our_event)),
            false => Armed::Pending,
        }
    }

    #[inline]
    fn recycle(&mut self, frames: &mut RxBurst) {
        if let Some(ends) = &mut self.ends {
            ends.rx.give_back();
        }
        for frame in frames.drain(..) {
            self.stock.put(frame);
        }
    }
}
