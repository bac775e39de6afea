//! One queue of a memif port: the receive and the send ring of the current connection.

use super::connection::Connection;
use super::link::Wait;
use super::queue_end::{Left, TxEnd};
use super::rx::Rx;
use super::shared::Shared;
use super::slots::Impossible;
use super::tx::Tx;
use super::wake::Waker;
use crate::crc::copy_function;
use crate::port::frame::{Frame, RxBurst, TxBurst};
use crate::port::stall::Stall;
use crate::port::stock::Stock;
use crate::port::traits::{Armed, Build, FlowKind, PortQueue, Route, Routes, Stalled};
use crate::time;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// How often a queue without a link tries to get one.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Longest sleep of a queue without a link: another queue may get the link.
const LOOK_AT_MOST: Duration = Duration::from_secs(1);
/// Longest sleep of a queue during a handshake: another peer may connect.
const LOOK_WHILE_MEETING: Duration = Duration::from_millis(10);

/// A queue.
pub struct MemifQueue {
    ends: Option<Box<Ends>>,
    /// Number of the connection to which `ends` belongs.
    number: u64,
    index: usize,
    stock: Stock,
    waker: Option<Waker>,
    looked_at: Option<Instant>,
    /// The receive ring of a peer that has disconnected, until its frames are received.
    left: Option<Left>,
    /// Detects that the peer takes no frames.
    stall: Stall,
    shared: Arc<Shared>,
}

/// The ends of both rings.
struct Ends {
    rx: Rx,
    tx: TxEnd,
    /// The eventfd that wakes the peer, and the one that wakes this end.
    their_event: Arc<OwnedFd>,
    our_event: Arc<OwnedFd>,
}

impl Ends {
    fn new(connection: &Connection, queue: usize, max_frame: usize) -> Result<Self, String> {
        let (rx, rx_buffers) = connection.receiving(queue)?;
        let (tx, tx_buffers) = connection.sending(queue)?;
        let [theirs, ours] = &connection.events;
        Ok(Self {
            rx: Rx::new(rx, rx_buffers, copy_function(), max_frame),
            tx: TxEnd::new(Tx::new(tx, tx_buffers, max_frame)),
            their_event: Arc::clone(&theirs[queue]),
            our_event: Arc::clone(&ours[queue]),
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
            waker: None,
            looked_at: None,
            left: None,
            stall: Stall::new(shared.stall),
            shared,
        }
    }

    /// Takes the rings of a new connection, if there is one, and releases those of the old one.
    #[inline(always)]
    fn follow(&mut self) {
        if self.shared.state.number.load(Ordering::Acquire) != self.number {
            self.change();
        }
    }

    #[cold]
    fn change(&mut self) {
        // The frames of a peer that has disconnected are received first. Until then the number stays, so this is called again.
        if let Some(ends) = self.ends.take() {
            self.left = Left::of(ends.rx);
        }
        if self.left.is_some() {
            return;
        }
        let connection = self.shared.state.current();
        self.number = connection.as_ref().map_or(0, |connection| connection.number);
        let max_frame = self.shared.max_frame;
        self.ends = connection
            .and_then(|connection| Ends::new(&connection, self.index, max_frame).ok())
            .map(Box::new);
    }

    /// Receives frames that a peer sent before it disconnected.
    #[cold]
    fn receive_from_left(&mut self, left: &mut Left, out: &mut RxBurst) -> usize {
        let got = left.receive(out, &mut self.stock);
        let counters = &self.shared.counters[self.index];
        counters.rx(got.frames, got.bytes);
        counters.rx_dropped.add(got.dropped as u64);
        got.frames
    }

    /// Tries to get a link. Without a link there is no other work, so the time does not matter.
    #[cold]
    fn look_for_link(&mut self) {
        let now = Instant::now();
        if self.looked_at.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY) {
            self.looked_at = Some(now);
            self.shared.state.serve();
        }
    }

    /// Prepares a sleep without a link, until a peer may have come.
    #[cold]
    fn arm_for_link(&self) -> Armed {
        let state = &self.shared.state;
        state.serve();
        if state.number.load(Ordering::Acquire) != self.number {
            return Armed::Pending;
        }
        match state.wait() {
            // The sleeping thread needs the descriptor only once, so only the first queue returns it.
            Wait::Peer(fd) => Armed::Down(LOOK_AT_MOST, (self.index == 0).then_some(fd)),
            Wait::Meeting(fd) => Armed::Down(LOOK_WHILE_MEETING, (self.index == 0).then_some(fd)),
            Wait::Until(at) => Armed::Down(at.saturating_duration_since(Instant::now()), None),
            Wait::Soon => Armed::Unable,
        }
    }

    /// The peer violates the protocol: its rings are not read any more.
    #[cold]
    fn give_up(&mut self) {
        self.ends = None;
        self.shared.state.is_broken(self.number);
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
        // Fails only if the descriptor is not an eventfd, which was checked when the peer connected.
        let _ = waker.wake(ends.their_event.as_fd());
    }
}

impl PortQueue for MemifQueue {
    #[inline]
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        self.follow();
        let Some(ends) = &mut self.ends else {
            if let Some(mut left) = self.left.take() {
                let frames = self.receive_from_left(&mut left, out);
                self.left = (!left.is_over()).then_some(left);
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
            if ends.tx.look_again() {
                self.wake();
            }
            return 0;
        }
        // Received packets are likely to be answered.
        ends.tx.prefetch();
        let counters = &self.shared.counters[self.index];
        counters.rx(got.frames, got.bytes);
        if got.dropped > 0 {
            counters.rx_dropped.add(got.dropped as u64);
            self.shared.note_dropped(false);
        }
        got.frames
    }

    fn routes(&mut self) -> Option<&mut dyn Routes> {
        None
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
        let wakes = ends.tx.has_sent();
        let counters = &self.shared.counters[self.index];
        counters.tx(done.taken - done.dropped, done.bytes);
        if done.dropped > 0 {
            counters.tx_dropped.add(done.dropped as u64);
            self.shared.note_dropped(true);
        }
        if wakes {
            self.wake();
        }
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
                    if ends.tx.has_sent() {
                        self.wake();
                    }
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
        if self.ends.as_mut().is_some_and(|ends| ends.tx.look_now()) {
            self.wake();
        }
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
