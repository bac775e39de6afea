//! What a port is for the rest of the stack: a factory of queues through which bursts of frames go.

use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::error::PortError;
use super::frame::{Frame, RxBurst, TxBurst};
use super::info::{PortInfo, PortStats};
use crate::id::{Mtu, Qpn};
use crate::registry::{Registry, Run};
use crate::time::Instant;

/// Builds frames in a port's memory: first builds all frames of a burst, then finishes each.
pub trait Build {
    /// Builds a frame in a buffer that holds [`max_frame`](PortInfo::max_frame) bytes. Returns its length, or `None` to end. Any
    /// or all of it may be left to [`finish`](Self::finish).
    fn build(&mut self, buffer: &mut [u8]) -> Option<usize>;

    /// Finishes the `i`-th frame of the burst, whose buffer this is; its length stays. Code that reads what was stored just
    /// before belongs here: by now the stores have left the core.
    fn finish(&mut self, i: usize, buffer: &mut [u8]);
}

/// Builds frames by a function, which leaves nothing to [`finish`](Build::finish).
#[derive(Clone, Copy, Debug)]
pub struct AtOnce<F>(pub F);

impl<F: FnMut(&mut [u8]) -> Option<usize>> Build for AtOnce<F> {
    fn build(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.0(buffer)
    }
    fn finish(&mut self, _: usize, _: &mut [u8]) {}
}

/// The link by which frames leave, of a port that consists of several: their numbers, below [`Route::COUNT`], are the port's business.
/// The default is that of a port with one link, and of frames that go to no peer in particular.
///
/// A link that takes no frames for a while holds up those of its own route alone. A port with several has a [`Host`], which finds the
/// next hops: requests for neighbours leave by the default route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Hash)]
pub struct Route(pub u8);

impl Route {
    /// Routes that a port may have.
    pub const COUNT: usize = u8::MAX as usize;
}

/// Where a queue pair is, to which frames are to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// At this address, which is not the port's own.
    Host(IpAddr),
    /// At an address of the port's own, in another process that has the same ones: its number says in which.
    Process(Qpn),
}

/// Why there is no route to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRoute {
    /// The port is finding it out.
    Pending,
    /// Nobody is there: no process has the number of the queue pair, so nothing that is sent would find it.
    Nobody,
}

/// What a flow of packets is, to which a port gives a source port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowKind {
    /// It is to have a source port of its own.
    Own,
    /// The program chose its source port by a flow label: the same hint gets the same one.
    Labelled,
    /// It leaves from the port's common source port.
    Shared,
}

/// Whether a peer that lives takes none of the frames that wait for it in the link: then it is stopped, and not silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stalled {
    /// Nothing waits, or the peer takes frames, or it has taken none for longer than the port allows, or the port cannot tell.
    No,
    /// Frames wait: after this time the port can tell.
    Perhaps(Duration),
    /// It takes none. Ask again after this time.
    Yes(Duration),
}

/// One queue of a port: frames in, frames out, buffers. One shard owns it and calls it from one thread at a time.
///
/// It has no default methods; a queue around another one is a [`QueueLayer`](super::QueueLayer).
pub trait PortQueue: Send {
    /// Appends received frames to `out` while it has room; returns how many. A port may end a burst behind
    /// [`RX_BURST_BYTES`](crate::config::RX_BURST_BYTES), so that it is still in L1 or L2 when the caller reads it.
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize;

    /// What a port of several links knows of them; `None`: it has one, the default route. Whether there are several does not change.
    fn routes(&mut self) -> Option<&mut dyn Routes>;

    /// The UDP source port for a flow of packets, by which networks choose a path and hosts a queue. `hint` is what the flow label or
    /// the queue pair numbers give ([`udp_source_port`](crate::wire::udp_source_port)): a port that writes no UDP headers itself
    /// returns that.
    fn take_source_port(&mut self, hint: u16, kind: FlowKind) -> u16;

    /// A flow that has this source port ends; it was not a [shared](FlowKind::Shared) one.
    fn release_source_port(&mut self, port: u16);

    /// Takes frames off the front of `frames` as long as the link of this route accepts them; returns how many.
    ///
    /// The rest stays in order, for the next turn. A frame that can never be sent (too long for the port) is
    /// taken as well and counted under [`PortStats::tx_dropped`].
    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize;

    /// An empty frame that holds at least the port's [`max_frame`](PortInfo::max_frame) bytes; `None` while
    /// all buffers are in use. It may leave by any route.
    fn alloc(&mut self) -> Option<Frame>;

    /// Appends up to `n` empty frames to `out`, as [`alloc`](Self::alloc) gives them: fewer while buffers are short,
    /// or `out` has no more room.
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize);

    /// Builds up to `most` frames, and [`TX_BURST`](crate::config::TX_BURST) at most, directly in the memory from which the
    /// link of this route sends (the rings of a memif). They are on their way when this returns. Returns how many were built, 0
    /// while there is no room; `None` where the port has no such memory, or none now: then the caller has to use frames.
    ///
    /// A buffer's contents are arbitrary at first, and a peer that shares it may change what was written: only write to it.
    /// Frames of one route leave in the order of the calls of this and of [`tx_burst`](Self::tx_burst).
    fn build_burst(&mut self, route: Route, most: usize, builder: &mut dyn Build) -> Option<usize>;

    /// Whether the peer at the end of this route takes no frames. Asked when an ACK timer has ended.
    fn stalled(&mut self, route: Route, now: Instant) -> Stalled;

    /// Prepares a sleep: from now on, until frames are received again, each arrival makes a descriptor readable. If frames wait
    /// already, or arrive during this call, it returns [`Armed::Pending`]; where the port cannot signal, [`Armed::Unable`].
    fn arm(&mut self) -> Armed;

    /// Gives back frames that are no longer needed, and their slots in the port's rings to the sender; a port may keep the slots
    /// until this call or the next burst. Dropping frames gives back only the frames, and is slower for a whole burst.
    fn recycle(&mut self, frames: &mut RxBurst);
}

/// The links of a queue whose port has several.
pub trait Routes {
    /// The route to a queue pair of a peer. While the port is finding it out a connection asks again in the next turns, and a thread that
    /// sleeps is woken when it is known; datagrams leave by the default route. Where nobody is there requests of a connection fail.
    ///
    /// Asked when the next hop of a destination is resolved: for datagrams again when neighbours or addresses have
    /// changed, to another process for each; and for a connection again when its neighbour has. Over a port with a [`Host`] the stack
    /// knows no neighbours, so there the route of a connection is that which it had when it was made.
    ///
    /// # Errors
    /// There is none now.
    fn route_to(&mut self, to: Destination) -> Result<Route, NoRoute>;

    /// Bytes that a packet of a reliable connection may carry on this route, if both of its ends are this stack and may use more than the
    /// path MTU that their programs chose: that of a network beside it.
    fn segment_on(&mut self, route: Route) -> Option<Mtu>;

    /// The most that [`segment_on`](Self::segment_on) says of any route. A peer may have found its route, and use that much, while the
    /// port is still finding out this end's.
    fn longest_segment(&mut self) -> Option<Mtu>;

    /// A route that leads nowhere any more: its peer is gone, and what it had sent was received before this. Its number may be given
    /// to another one by the next call of this, so by then the caller uses it for nothing, and has handed over
    /// ([`tx_burst`](PortQueue::tx_burst)) what waits for it. Asked every few turns, once the port has said another route than the default.
    fn next_ended(&mut self) -> Option<Route>;
}

/// Whether a queue signals that frames arrive.
#[derive(Clone, Debug)]
pub enum Armed {
    /// Frames have arrived, or may have: receive them first.
    Pending,
    /// Becomes readable when frames arrive, and again whenever more of them do: wait for it edge-triggered, and do not read it.
    /// The peer may share it.
    Event(Arc<OwnedFd>),
    /// It cannot signal: poll again soon.
    Unable,
    /// There is no link, so nothing arrives. Poll the queue after this time, so that it looks for a link, or earlier, when the
    /// descriptor becomes readable: wait for that as for an [`Event`](Self::Event).
    Down(Duration, Option<Arc<OwnedFd>>),
}

/// A packet that is ready to leave when the process ends.
pub trait Farewell: Send {
    /// Sends it, if that can be done at once, in the process that it was made in. For handlers of signals (signal-safety(7)): it takes no lock,
    /// allocates nothing and makes async-signal-safe system calls alone.
    fn send(&self);
}

/// The host below a port, which owns the port's addresses: its kernel finds routes and neighbours, and answers ARP and ND.
pub trait Host {
    /// The addresses that the port has now, which are its GIDs.
    fn addresses(&self) -> Vec<IpAddr>;

    /// Changes whenever the addresses may have changed.
    fn generation(&self) -> u64;

    /// The address of the port from which a peer is reached. `None`: there is no route to the peer. `scope` is the number of the
    /// interface behind which a link-local peer is; 0 where nobody says, which is enough if there is one.
    fn source_to(&self, peer: IpAddr, scope: u32) -> Option<IpAddr>;

    /// Largest L3 packet, in bytes, that the path to a peer carries as far as the host knows: by the MTU of the route or of the
    /// interface, or by what routers reported. `None`: there is no route to the peer.
    fn mtu_to(&self, peer: IpAddr) -> Option<usize>;

    /// Has the port receive what is sent to a multicast group, on the interfaces of its addresses. Joining again changes nothing.
    ///
    /// # Errors
    /// Why the host cannot join it.
    fn join(&self, group: IpAddr) -> Result<(), PortError>;

    /// The port receives no more of what is sent to the group.
    fn leave(&self, group: IpAddr);

    /// Makes a packet ready, which is a frame that the port could send: for the end of the process. `None`: it has no way.
    fn farewell(&self, packet: Frame) -> Option<Box<dyn Farewell>>;
}

/// Queue pair numbers of which each of several processes with the same addresses has its own.
pub trait Numbers {
    /// Leases numbers whose packets arrive on this queue, until the port is closed.
    ///
    /// # Errors
    /// Why there are no more.
    fn lease(&self, queue: usize) -> Result<Run, PortError>;

    /// Where the processes say who has which numbers, who is bound to which port, and who listens for connections; `None`: the device
    /// shares nothing but the numbers.
    fn registry(&self) -> Option<&Arc<Registry>>;

    /// The registry says something new of this process: what is for it has to arrive here.
    fn announce(&self);

    /// Links to other ones of these processes that are up.
    fn links(&self) -> u64;
}

/// A link's end: a factory of queues, and what concerns all of them.
///
/// It has no default methods; a port around another one is a [`PortLayer`](super::PortLayer).
pub trait Port: Send + Sync {
    /// What the port is.
    fn info(&self) -> &PortInfo;

    /// The queue with this number, once; `None` when it is taken or does not exist.
    ///
    /// The queue keeps the port's device open.
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>>;

    /// Opens the port's device, if that was put off ([`PortSpec::open_lazy`](super::PortSpec::open_lazy)); called before the
    /// port is used first. Starting it again changes nothing; after an error it may be tried again.
    ///
    /// # Errors
    /// Why the port's device cannot be opened.
    fn start(&self) -> Result<(), PortError>;

    /// Largest L3 packet, in bytes, that passes now: less than at the opening if the MTU of a network interface below was lowered
    /// since; more if the started device turned out to carry more.
    fn mtu(&self) -> usize;

    /// Whether a frame that is sent now has a chance to arrive.
    fn link_up(&self) -> bool;

    /// The host that owns the port's addresses; `None`: `device` chooses them, and is an IP host of its own. Whether there is one
    /// does not change, and is known before the start.
    fn host(&self) -> Option<&dyn Host>;

    /// Bytes of requests and of responses to READs that reliable queue pairs of the device may have in flight together, so that no
    /// end has to drop any; each packet counts as its path MTU and 256 bytes. `None`: no bound. It does not change, and is known
    /// before the start. It is for what leaves by the default route: a port's other links lose nothing.
    fn window(&self) -> Option<usize>;

    /// Packets to these queue pair numbers should arrive on these queues: ascending ranges. What arrives on another one is handed over,
    /// so a port that cannot steer does nothing.
    fn steer(&self, numbers: &[(RangeInclusive<Qpn>, usize)]);

    /// Where the device's queue pair numbers come from, if other processes have the port's addresses as well; `None`: all numbers are the
    /// device's. Whether there is one does not change, and is known before the start.
    fn numbers(&self) -> Option<&dyn Numbers>;

    /// Maintains the link: reconnects when a peer came back, flushes captures. Cheap; call it every 10 ms or more often, from one
    /// thread or several.
    fn maintain(&self);

    /// The counters.
    fn stats(&self) -> PortStats;
}
