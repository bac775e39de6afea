//! A port without a link: the simulated world holds the other ends of its queues.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use arrayvec::ArrayVec;

use stack::config::TX_BURST;
use stack::crc;
use stack::id::{Mac, Mtu};
use stack::port::{
    Armed, Build, FlowKind, Frame, HeapPool, Host, Numbers, Port, PortError, PortInfo, PortQueue, PortStats,
    Route, Routes, RxBurst, Stalled, TxBurst,
};
use stack::sync::lock::lock;
use stack::time::Instant;

/// State that the two ends of a queue share.
#[derive(Debug, Default)]
struct State {
    rx: VecDeque<Frame>,
    tx: VecDeque<Frame>,
    /// Capacity of the transmit ring in frames; `None` for no limit.
    tx_room: Option<usize>,
    /// Whether allocations of buffers fail.
    starved: bool,
    /// Whether the peers take frames, if the port detects that.
    stalled: Option<Stalled>,
    refused: u64,
    denied: u64,
    /// Calls until the port panics; `None` for never.
    calls_left: Option<u32>,
}

/// The payload of a port's planted panic.
#[derive(Debug)]
pub struct PortPanicked;

impl State {
    /// Frames for which the transmit ring has room.
    fn room(&self) -> usize {
        self.tx_room.map_or(usize::MAX, |room| room.saturating_sub(self.tx.len()))
    }
}

/// The device's end: a [`Port`].
#[derive(Debug)]
pub struct SimPort {
    info: PortInfo,
    window: Option<usize>,
    queues: Vec<Mutex<Option<SimQueue>>>,
}

impl SimPort {
    /// A port, and the world's ends of its queues, each with a pool of `buffers` frames. With `lends`, long frames are built in the port's
    /// memory, as on a memif.
    pub fn new(mac: Mac, mtu: Mtu, queues: usize, buffers: usize, lends: bool) -> (Self, Vec<SimWire>) {
        let info = PortInfo { name: "sim".into(), mac, mtu: mtu.of_packet(), queues, message: 0 };
        let made = (0..queues).map(|_| queue(buffers, info.max_frame()));
        let (queues, wires): (Vec<_>, _) =
            made.map(|(queue, wire)| (Mutex::new(Some(SimQueue { lends, ..queue })), wire)).unzip();
        (Self { info, window: None, queues }, wires)
    }

    /// If `on`, gives each flow its own source port and sends frames in messages, as over sockets.
    pub fn like_sockets(mut self, on: bool) -> Self {
        self.info.message = if on { 60_000 } else { 0 };
        for queue in &self.queues {
            lock(queue).as_mut().expect("nobody has it yet").source_ports = on.then_some(61_000);
        }
        self
    }

    /// Limits the bytes in flight.
    pub fn with_window(self, window: Option<usize>) -> Self {
        Self { window, ..self }
    }
}

impl Port for SimPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let mut queue = lock(self.queues.get(index)?);
        queue.take().map(|queue| Box::new(queue) as Box<dyn PortQueue>)
    }
    fn start(&self) -> Result<(), PortError> {
        Ok(())
    }
    fn mtu(&self) -> usize {
        self.info.mtu
    }
    fn link_up(&self) -> bool {
        true
    }
    fn host(&self) -> Option<&dyn Host> {
        None
    }
    fn window(&self) -> Option<usize> {
        self.window
    }
    fn steer(&self, _: &[(core::ops::RangeInclusive<stack::id::Qpn>, usize)]) {}
    fn numbers(&self) -> Option<&dyn Numbers> {
        None
    }
    fn maintain(&self) {}
    fn stats(&self) -> PortStats {
        PortStats::default()
    }
}

/// A shard's end: a [`PortQueue`].
#[derive(Debug)]
pub struct SimQueue {
    state: Arc<Mutex<State>>,
    pool: HeapPool,
    /// Whether frames may be built in the port's memory.
    lends: bool,
    /// The source port of the next flow; `None` if flows have no ports of their own.
    source_ports: Option<u16>,
}

/// The world's end.
#[derive(Clone, Debug)]
pub struct SimWire {
    state: Arc<Mutex<State>>,
    pool: HeapPool,
    buffers: usize,
}

/// A queue with a pool of `buffers` frames of `frame_len` bytes.
pub fn queue(buffers: usize, frame_len: usize) -> (SimQueue, SimWire) {
    let pool = HeapPool::new(buffers, frame_len);
    let state = Arc::new(Mutex::new(State::default()));
    (
        SimQueue { state: state.clone(), pool: pool.clone(), lends: false, source_ports: None },
        SimWire { state, pool, buffers },
    )
}

/// Locks the state, for a call of the shard. Panics if that was planted.
fn asked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    let mut state = lock(state);
    if let Some(left) = &mut state.calls_left {
        match left.checked_sub(1) {
            Some(less) => *left = less,
            // Prints no panic message, as the panic is intended.
            None => std::panic::resume_unwind(Box::new(PortPanicked)),
        }
    }
    state
}

impl PortQueue for SimQueue {
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        let mut state = asked(&self.state);
        let n = state.rx.len().min(out.remaining_capacity());
        out.extend(state.rx.drain(..n));
        n
    }

    fn routes(&mut self) -> Option<&mut dyn Routes> {
        None
    }
    fn take_source_port(&mut self, hint: u16, kind: FlowKind) -> u16 {
        match &mut self.source_ports {
            Some(next) if kind == FlowKind::Own => core::mem::replace(next, *next + 1),
            _ => hint,
        }
    }
    fn release_source_port(&mut self, _: u16) {}

    fn tx_burst(&mut self, _: Route, frames: &mut TxBurst) -> usize {
        let mut state = asked(&self.state);
        let n = frames.len().min(state.room());
        state.refused += (frames.len() - n) as u64;
        state.tx.extend(frames.drain(..n));
        n
    }

    fn alloc(&mut self) -> Option<Frame> {
        let mut state = asked(&self.state);
        let frame = if state.starved { None } else { self.pool.alloc() };
        state.denied += u64::from(frame.is_none());
        frame
    }

    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        let n = n.min(out.remaining_capacity());
        out.extend(core::iter::from_fn(|| self.alloc()).take(n));
    }

    fn build_burst(&mut self, _: Route, most: usize, builder: &mut dyn Build) -> Option<usize> {
        if !self.lends {
            return None;
        }
        let mut state = asked(&self.state);
        let room = if state.starved { 0 } else { most.min(state.room()) };
        let mut frames = ArrayVec::<Frame, TX_BURST>::new();
        while frames.len() < room.min(TX_BURST)
            && let Some(mut frame) = self.pool.alloc()
            && let Some(len) = builder.build(frame.buffer_mut())
        {
            frame.set_len(len);
            frames.push(frame);
        }
        for (i, frame) in frames.iter_mut().enumerate() {
            builder.finish(i, frame.data_mut());
        }
        let built = frames.len();
        state.tx.extend(frames);
        Some(built)
    }

    fn stalled(&mut self, _: Route, _: Instant) -> Stalled {
        asked(&self.state).stalled.unwrap_or(Stalled::No)
    }

    fn arm(&mut self) -> Armed {
        Armed::Unable
    }

    fn recycle(&mut self, frames: &mut RxBurst) {
        frames.clear();
    }
}

impl SimWire {
    /// Puts a frame into the receive ring, with its CRC, as a memif does. Returns `false` if the pool has no buffer for it, or the buffer
    /// is too short.
    pub fn deliver(&self, bytes: &[u8]) -> bool {
        let Some(mut frame) = self.pool.alloc() else { return false };
        let whole = frame.fill(bytes);
        frame.set_sum(crc::of(frame.data()));
        lock(&self.state).rx.push_back(frame);
        whole
    }

    /// Takes the oldest frame from the transmit ring.
    pub fn take(&self) -> Option<Frame> {
        lock(&self.state).tx.pop_front()
    }

    /// Limits the transmit ring to `room` frames; `None` for no limit.
    pub fn limit_tx(&self, room: Option<usize>) {
        lock(&self.state).tx_room = room;
    }

    /// Sets whether the port detects that the peers take no frames.
    pub fn stall(&self, stalled: Stalled) {
        lock(&self.state).stalled = Some(stalled);
    }

    /// Sets whether allocations of buffers fail.
    pub fn starve(&self, on: bool) {
        lock(&self.state).starved = on;
    }

    /// Makes the port panic after this many calls.
    pub fn panic_after(&self, asked: u32) {
        lock(&self.state).calls_left = Some(asked);
    }

    /// Frames waiting in the receive ring.
    pub fn waiting(&self) -> usize {
        lock(&self.state).rx.len()
    }

    /// How often the transmit ring was full for a frame.
    pub fn refused(&self) -> u64 {
        lock(&self.state).refused
    }

    /// How often an allocation failed.
    pub fn denied(&self) -> u64 {
        lock(&self.state).denied
    }

    /// Leaks a buffer, to test the checker.
    pub fn lose_a_buffer(&self) {
        core::mem::forget(self.pool.alloc());
    }

    /// Buffers that are out of the pool.
    pub fn buffers_out(&self) -> usize {
        self.buffers - self.pool.available()
    }
}
