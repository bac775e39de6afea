//! The port of a process: the sockets of its host, and its links.

use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::sync::{Arc, Mutex};

use arrayvec::ArrayVec;

use super::host::{Host as State, Pid, Shared};
use super::links::Reach;
use super::sockets::PASSES;
use stack::config::TX_BURST;
use stack::crc;
use stack::id::{Mac, Mtu, Qpn};
use stack::port::sorting::Outgoing;
use stack::port::{
    Armed, Build, Destination, Farewell, FlowKind, Frame, HeapPool, Host, L2_OVERHEAD, NoRoute, Numbers,
    Port, PortError, PortInfo, PortQueue, PortStats, Route, Routes, RxBurst, Stall, Stalled, TxBurst,
};
use stack::registry::{Registry, Run};
use stack::sync::lock::lock;
use stack::time::Instant;

/// How long a process may take nothing before it counts as silent.
const SILENT: Duration = Duration::from_secs(60);
/// The Ethernet address of every port: no frame of a host leaves with it.
const MAC: Mac = Mac([2, 0, 0, 0, 0, 0x10]);

/// A process's port.
pub struct HostPort {
    info: PortInfo,
    /// The network's.
    mtu: Mtu,
    host: Shared,
    pid: Pid,
    queues: Vec<Mutex<Option<HostQueue>>>,
}

impl HostPort {
    /// The port of a process, with so many queues of `buffers` frames. The network carries `mtu`, links carry the largest one.
    pub fn new(host: Shared, pid: Pid, queues: usize, buffers: usize, mtu: Mtu) -> Self {
        let info = PortInfo {
            name: format!("host:{pid}"),
            mac: MAC,
            mtu: Mtu::Mtu4096.of_packet(),
            queues,
            message: 0,
        };
        let queue = |index| {
            let pool = HeapPool::new(buffers, info.max_frame());
            Mutex::new(Some(HostQueue { host: host.clone(), pid, index, pool, max_frame: info.max_frame() }))
        };
        Self { queues: (0..queues).map(queue).collect(), info, mtu, host, pid }
    }
}

impl Port for HostPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let queue = lock(self.queues.get(index)?).take();
        queue.map(|queue| Box::new(queue) as Box<dyn PortQueue>)
    }
    fn start(&self) -> Result<(), PortError> {
        Ok(())
    }
    fn mtu(&self) -> usize {
        self.mtu.of_packet()
    }
    fn link_up(&self) -> bool {
        true
    }
    fn host(&self) -> Option<&dyn Host> {
        Some(self)
    }
    fn window(&self) -> Option<usize> {
        None
    }
    fn steer(&self, _: &[(RangeInclusive<Qpn>, usize)]) {}
    fn numbers(&self) -> Option<&dyn Numbers> {
        Some(self)
    }
    fn maintain(&self) {
        self.host.lock().maintain(self.pid);
    }
    fn stats(&self) -> PortStats {
        PortStats::default()
    }
}

impl Host for HostPort {
    fn addresses(&self) -> Vec<IpAddr> {
        self.host.lock().addresses.to_vec()
    }
    fn generation(&self) -> u64 {
        1
    }
    fn source_to(&self, _: IpAddr, _: u32) -> Option<IpAddr> {
        Some(self.host.lock().addresses[1])
    }
    fn mtu_to(&self, _: IpAddr) -> Option<usize> {
        Some(self.mtu.of_packet())
    }
    fn join(&self, _: IpAddr) -> Result<(), PortError> {
        Ok(())
    }
    fn leave(&self, _: IpAddr) {}
    fn farewell(&self, _: Frame) -> Option<Box<dyn Farewell>> {
        None
    }
}

impl Numbers for HostPort {
    fn lease(&self, queue: usize) -> Result<Run, PortError> {
        let leased = self.host.lock().lease(self.pid, queue);
        leased.map_err(|error| PortError::Open { port: self.info.name.clone(), reason: error.to_string() })
    }
    // That of the simulation has another system below.
    fn registry(&self) -> Option<&Arc<Registry>> {
        None
    }
    fn announce(&self) {}
    fn links(&self) -> u64 {
        0
    }
}

/// A shard's queue.
struct HostQueue {
    host: Shared,
    pid: Pid,
    index: usize,
    pool: HeapPool,
    max_frame: usize,
}

/// The link of a route; `None`: it is that of the sockets.
fn link_of(route: Route) -> Option<u8> {
    route.0.checked_sub(1)
}

impl HostQueue {
    fn frame_of(&self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.pool.alloc()?;
        let is_whole = frame.fill(bytes);
        assert!(is_whole, "a frame is as long as a buffer at most");
        frame.set_sum(crc::of(frame.data()));
        Some(frame)
    }

    /// Receives by links: from each in turn.
    fn receive_from_links(&self, host: &mut State, out: &mut RxBurst) {
        let Self { pid, index, .. } = *self;
        let count = host.processes[pid].ends.len();
        let first = host.processes[pid].queues[index].turn;
        for at in 0..count {
            let number = (first + at) % count;
            while !out.is_full() && self.pool.available() > 0 {
                let Some(bytes) = host.take_from(pid, index, number as u8) else { break };
                if let Some(packet) = Outgoing::of(&bytes) {
                    host.check_place(pid, &bytes[packet.payload]);
                }
                out.extend(self.frame_of(&bytes));
            }
        }
        host.processes[pid].queues[index].turn = first.wrapping_add(1);
        host.settle(pid, index);
    }
}

impl PortQueue for HostQueue {
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        let (before, mut host, mut passes) = (out.len(), self.host.lock(), PASSES);
        if !host.processes[self.pid].is_alive {
            return 0;
        }
        self.receive_from_links(&mut host, out);
        while !out.is_full()
            && self.pool.available() > 0
            && let Some(bytes) = host.receive(self.pid, self.index, &mut passes)
        {
            out.extend(self.frame_of(&bytes));
        }
        out.len() - before
    }

    fn routes(&mut self) -> Option<&mut dyn Routes> {
        Some(self)
    }

    fn take_source_port(&mut self, hint: u16, _: FlowKind) -> u16 {
        hint
    }
    fn release_source_port(&mut self, _: u16) {}

    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize {
        let mut host = self.host.lock();
        let all = frames.len();
        if !host.processes[self.pid].is_alive {
            frames.clear();
            return all;
        }
        let Some(number) = link_of(route) else {
            for frame in frames.drain(..) {
                host.send(frame.data());
            }
            return all;
        };
        let Some(ring) = host.ring(self.pid, self.index, number) else {
            frames.clear();
            return all;
        };
        let taken = host.room(ring).min(all);
        host.counts.full += u64::from(taken < all);
        for frame in frames.drain(..taken) {
            host.cross(ring, frame.data());
        }
        taken
    }

    fn alloc(&mut self) -> Option<Frame> {
        self.pool.alloc()
    }

    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.pool.alloc_burst(out, n);
    }

    fn build_burst(&mut self, route: Route, most: usize, builder: &mut dyn Build) -> Option<usize> {
        let number = link_of(route)?;
        let mut host = self.host.lock();
        if !host.processes[self.pid].is_alive {
            return None;
        }
        let ring = host.ring(self.pid, self.index, number)?;
        let room = most.min(host.room(ring)).min(TX_BURST);
        let mut frames = ArrayVec::<Vec<u8>, TX_BURST>::new();
        while frames.len() < room {
            let mut frame = vec![0xa5; self.max_frame];
            let Some(len) = builder.build(&mut frame) else { break };
            frame.truncate(len);
            frames.push(frame);
        }
        for (i, frame) in frames.iter_mut().enumerate() {
            builder.finish(i, frame);
        }
        frames.iter().for_each(|frame| host.cross(ring, frame));
        Some(frames.len())
    }

    fn stalled(&mut self, route: Route, now: Instant) -> Stalled {
        let mut host = self.host.lock();
        let Some(number) = link_of(route) else { return Stalled::No };
        let Some((link, side, ring)) = host.ring(self.pid, self.index, number) else { return Stalled::No };
        let half = &host.links[link].to[side];
        let waits = (!half.rings[ring].is_empty()).then_some(half.taken[ring]);
        let stalls = &mut host.processes[self.pid].queues[self.index].stalls;
        stalls.entry(number).or_insert_with(|| Stall::new(SILENT)).look(waits, now)
    }

    fn arm(&mut self) -> Armed {
        Armed::Unable
    }

    fn recycle(&mut self, frames: &mut RxBurst) {
        frames.clear();
    }
}

impl Routes for HostQueue {
    fn route_to(&mut self, to: Destination) -> Result<Route, NoRoute> {
        let Destination::Process(number) = to else { return Ok(Route::default()) };
        if number.block().is_reserved() {
            return Ok(Route::default());
        }
        let mut host = self.host.lock();
        if !host.processes[self.pid].is_alive {
            return Err(NoRoute::Nobody);
        }
        match host.reach(self.pid, number) {
            Reach::Link(link) => Ok(Route(link + 1)),
            Reach::Asked => Err(NoRoute::Pending),
            Reach::Vacant => Err(NoRoute::Nobody),
            Reach::Sockets => Ok(Route::default()),
        }
    }

    fn segment_on(&mut self, route: Route) -> Option<Mtu> {
        let host = self.host.lock();
        let end = host.processes[self.pid].ends.get(usize::from(link_of(route)?))?;
        end.as_ref().and_then(|_| Mtu::of_link(self.max_frame - L2_OVERHEAD))
    }

    fn longest_segment(&mut self) -> Option<Mtu> {
        Mtu::of_link(self.max_frame - L2_OVERHEAD)
    }

    fn next_ended(&mut self) -> Option<Route> {
        let mut host = self.host.lock();
        if !host.processes[self.pid].is_alive {
            return None;
        }
        host.settle(self.pid, self.index);
        host.next_ended(self.pid, self.index).map(|number| Route(number + 1))
    }
}
