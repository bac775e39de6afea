//! What the rest of the stack uses of a port: a [`Port`] hands out queues, and a [`PortQueue`] receives and sends bursts of frames.

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

/// Builds frames in a port's memory in two passes: first builds all frames of a burst, then finishes each.
pub trait Build {
    /// Builds a frame in a buffer that holds [`max_frame`](PortInfo::max_frame) bytes. Returns the frame's length in bytes, or `None` if
    /// there are no more frames. The contents may be left to [`finish`](Self::finish), in part or as a whole.
    fn build(&mut self, buffer: &mut [u8]) -> Option<usize>;

    /// Completes the `i`-th frame of the burst in its buffer; the length stays. Code that reads back what [`build`](Self::build) stored
    /// belongs here: by then the stores have left the store buffer of the CPU.
    fn finish(&mut self, i: usize, buffer: &mut [u8]);
}

/// Builds each frame by one function call and leaves nothing to [`finish`](Build::finish).
#[derive(Clone, Copy, Debug)]
pub struct AtOnce<F>(pub F);

impl<F: FnMut(&mut [u8]) -> Option<usize>> Build for AtOnce<F> {
    fn build(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.0(buffer)
    }
    fn finish(&mut self, _: usize, _: &mut [u8]) {}
}

/// One of the links of a port. Numbers are below [`Route::COUNT`]; only the port knows their meaning. The default is the route of a port
/// with one link, and of frames that are for no particular peer.
///
/// A link that accepts no frames for a while holds up only the frames of its own route. A port with several links has a [`Host`], which
/// resolves next hops; requests for neighbours (ARP, ND) leave by the default route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Hash)]
pub struct Route(pub u8);

impl Route {
    /// The most routes that a port can have.
    pub const COUNT: usize = u8::MAX as usize;
}

/// Where the remote queue pair of a flow is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// On another host: the address is not one of the port's own.
    Host(IpAddr),
    /// In another process that shares the port's addresses; the queue pair number tells in which.
    Process(Qpn),
}

/// Why there is no route to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRoute {
    /// The port is still finding it out.
    Pending,
    /// No process has this queue pair number, so nothing sent to it would arrive.
    Nobody,
}

/// Which UDP source port a flow of packets asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowKind {
    /// A source port of its own.
    Own,
    /// The source port for the flow label that the program chose: equal hints get equal source ports.
    Labelled,
    /// The common source port of the port.
    Shared,
}

/// Whether a peer whose process is alive has stopped taking frames from the link. Such a peer is stalled, not lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stalled {
    /// No frames wait, the peer takes them, it has taken none for longer than the port allows, or the port cannot tell.
    No,
    /// Frames wait, but it is too early to tell. Ask again after this time.
    Perhaps(Duration),
    /// The peer takes no frames. Ask again after this time.
    Yes(Duration),
}

/// One queue of a port: it receives and sends frames and provides buffers. One shard owns it and calls it from one thread at a time.
///
/// No method has a default. A queue around another one implements [`QueueLayer`](super::QueueLayer).
pub trait PortQueue: Send {
    /// Appends received frames to `out` until it is full or no more frames wait. Returns how many it appended. A port may end a burst after
    /// [`RX_BURST_BYTES`](crate::config::RX_BURST_BYTES), so that the burst is still in the L1 or L2 cache when the caller reads it.
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize;

    /// The links of a port that has several; `None` for a port with the default route only. Whether it is `None` never changes.
    fn routes(&mut self) -> Option<&mut dyn Routes>;

    /// Takes a UDP source port for a flow of packets. Networks choose a path by it (ECMP), hosts a receive queue (RSS). `hint` comes from
    /// the flow label or the queue pair numbers ([`udp_source_port`](crate::wire::udp_source_port)); a port that sends the frames' UDP
    /// headers as they are returns `hint`.
    fn take_source_port(&mut self, hint: u16, kind: FlowKind) -> u16;

    /// Gives back a source port that [`take_source_port`](Self::take_source_port) returned, when its flow has ended. Not to be called for a
    /// [shared](FlowKind::Shared) one.
    fn release_source_port(&mut self, port: u16);

    /// Removes frames from the front of `frames` and sends them while the link of this route accepts them. Returns how many it removed.
    ///
    /// The other frames stay in order, for the next turn. A frame that can never be sent (too long for the port) is removed as well and
    /// counted in [`PortStats::tx_dropped`].
    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize;

    /// Allocates an empty frame that holds at least the port's [`max_frame`](PortInfo::max_frame) bytes. Returns `None` while all buffers
    /// are in use. The frame may be sent by any route.
    fn alloc(&mut self) -> Option<Frame>;

    /// Appends up to `n` empty frames to `out`, each as from [`alloc`](Self::alloc). Appends fewer if buffers run out or `out` is full.
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize);

    /// Builds up to `most` frames, and [`TX_BURST`](crate::config::TX_BURST) at most, directly in the memory from which the link of this
    /// route sends (the rings of a memif), and sends them. Returns how many it built, 0 if there is no room. Returns `None` if the port has
    /// no such memory, or has none at the moment: the caller then has to use frames.
    ///
    /// The initial contents of a buffer are arbitrary, and a peer that shares it may change what was written: write to it only. Frames of
    /// one route are sent in the order of the calls of this method and of [`tx_burst`](Self::tx_burst).
    fn build_burst(&mut self, route: Route, most: usize, builder: &mut dyn Build) -> Option<usize>;

    /// Whether the peer at the end of this route takes no frames. The stack asks when an ACK timeout has expired.
    fn stalled(&mut self, route: Route, now: Instant) -> Stalled;

    /// Prepares the queue for a thread that will sleep. Until frames are received again, each arrival makes a descriptor readable. Returns
    /// [`Armed::Pending`] if frames wait already or arrive during this call, and [`Armed::Unable`] if the port cannot signal.
    fn arm(&mut self) -> Armed;

    /// Drops frames that are no longer needed and returns their slots in the port's rings to the sender. A port may keep the slots until
    /// this call or the next burst. To drop the frames one by one frees only the frames, and is slower for a whole burst.
    fn recycle(&mut self, frames: &mut RxBurst);
}

/// The links of a queue whose port has several.
pub trait Routes {
    /// Finds the route to a queue pair of a peer. After [`NoRoute::Pending`], a connection asks again in the next turns, and a sleeping
    /// thread is woken when the route is known; datagrams leave by the default route. After [`NoRoute::Nobody`], the requests of a
    /// connection fail.
    ///
    /// The stack calls this when the next hop of a destination has been resolved. It calls it again for a connection when its neighbour has
    /// changed, for datagrams to other hosts when neighbours or addresses have changed, and for datagrams to another process each time.
    /// Over a port with a [`Host`] the stack knows no neighbours, so a connection keeps the route that it had when it was made.
    ///
    /// # Errors
    /// When there is no route at present.
    fn route_to(&mut self, to: Destination) -> Result<Route, NoRoute>;

    /// Largest payload, in bytes, of a packet of a reliable connection on this route, if both ends are this stack and may exceed the path
    /// MTU that their programs chose. `None`: the path MTU is the limit.
    fn segment_on(&mut self, route: Route) -> Option<Mtu>;

    /// The largest value that [`segment_on`](Self::segment_on) returns for any route. The peer may have found its route already and send
    /// packets of this size while the port is still finding the route of this end.
    fn longest_segment(&mut self) -> Option<Mtu>;

    /// Returns a route that has ended: its peer is gone, and everything that it sent has been received. `None` if there is none. The next
    /// call may give its number to another link. Before that call, the caller stops using the route and hands over
    /// ([`tx_burst`](PortQueue::tx_burst)) the frames that wait for it. The stack calls this every few turns,
    /// for each queue, whether or not it has used a route.
    fn next_ended(&mut self) -> Option<Route>;
}

/// How a queue signals the arrival of frames to a thread that sleeps.
#[derive(Clone, Debug)]
pub enum Armed {
    /// Frames have arrived, or may have: receive them first.
    Pending,
    /// The descriptor becomes readable when frames arrive, and again whenever more of them do. Wait for it edge-triggered, and do not read
    /// it: the peer may share it.
    Event(Arc<OwnedFd>),
    /// The port cannot signal: poll again soon.
    Unable,
    /// There is no link, so nothing arrives. Poll the queue after this time, so that it looks for a link, or earlier if the descriptor
    /// becomes readable. Wait for the descriptor as for an [`Event`](Self::Event).
    Down(Duration, Option<Arc<OwnedFd>>),
}

/// A packet that is ready to be sent when the process ends.
pub trait Farewell: Send {
    /// Sends the packet if that needs no waiting, and only in the process that prepared it. Safe in signal handlers (signal-safety(7)): it
    /// takes no lock, allocates nothing and makes async-signal-safe system calls alone.
    fn send(&self);
}

/// The host below a port, which owns the port's addresses: its kernel finds routes and neighbours, and answers ARP and ND.
pub trait Host {
    /// The port's present addresses, which are its GIDs.
    fn addresses(&self) -> Vec<IpAddr>;

    /// A number that changes whenever the addresses may have changed.
    fn generation(&self) -> u64;

    /// The address of the port from which the host reaches a peer. `None` if there is no route to the peer. `scope` is the interface index
    /// of a link-local peer; 0 if it is unknown, which is enough if the port has one interface.
    fn source_to(&self, peer: IpAddr, scope: u32) -> Option<IpAddr>;

    /// Largest L3 packet, in bytes, that the path to a peer carries as far as the host knows: from the MTU of the route or of the
    /// interface, or from path MTU discovery. `None` if there is no route to the peer.
    fn mtu_to(&self, peer: IpAddr) -> Option<usize>;

    /// Joins a multicast group on the interfaces of the port's addresses, so that the port receives what is sent to it. To join again
    /// changes nothing.
    ///
    /// # Errors
    /// When the host cannot join the group.
    fn join(&self, group: IpAddr) -> Result<(), PortError>;

    /// Leaves a multicast group.
    fn leave(&self, group: IpAddr);

    /// Prepares a packet, given as a frame that the port could send, to be sent when the process ends. `None` if the port cannot do that.
    fn farewell(&self, packet: Frame) -> Option<Box<dyn Farewell>>;
}

/// Divides queue pair numbers among several processes that have the same addresses.
pub trait Numbers {
    /// Leases numbers whose packets arrive on this queue. The lease ends when the port is closed.
    ///
    /// # Errors
    /// When no numbers can be leased.
    fn lease(&self, queue: usize) -> Result<Run, PortError>;

    /// The registry in which the processes publish their queue pair numbers, the ports they are bound to, and their listeners for
    /// connections. `None`: the processes share the numbers only.
    fn registry(&self) -> Option<&Arc<Registry>>;

    /// Tells the port that this process has new entries in the registry, so that the packets they are for arrive here.
    fn announce(&self);

    /// Number of links to other such processes that are up.
    fn links(&self) -> u64;
}

/// One end of a link. It hands out queues and has what concerns all of them.
///
/// No method has a default. A port around another one implements [`PortLayer`](super::PortLayer).
pub trait Port: Send + Sync {
    /// The description of the port.
    fn info(&self) -> &PortInfo;

    /// Takes the queue of this number. `None` if it was taken before or does not exist.
    ///
    /// The queue keeps the port's device open.
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>>;

    /// Opens the port's device, if that was deferred ([`PortSpec::open_lazy`](super::PortSpec::open_lazy)). The stack calls this before it
    /// first uses the port. To start a port again changes nothing; after an error the caller may try again.
    ///
    /// # Errors
    /// When the port's device cannot be opened.
    fn start(&self) -> Result<(), PortError>;

    /// Largest L3 packet, in bytes, that passes now. It is smaller than when the port was opened if the MTU of a network interface below
    /// was lowered since, and larger if the started device carries more.
    fn mtu(&self) -> usize;

    /// Whether a frame that is sent now can arrive.
    fn link_up(&self) -> bool;

    /// The host that owns the port's addresses. `None`: `device` chooses the addresses and is an IP host of its own. Whether it is `None`
    /// never changes and is known before the start.
    fn host(&self) -> Option<&dyn Host>;

    /// How many bytes of requests and READ responses the reliable queue pairs of the device may have in flight together, so that neither
    /// end has to drop any. Each packet counts as its path MTU and 256 bytes. `None`: no bound. The value never changes and is known before
    /// the start. It is for the default route: the port's other links lose nothing.
    fn window(&self) -> Option<usize>;

    /// Asks that packets to these queue pair numbers, given as ascending ranges, arrive on these queues. A shard hands packets that arrive
    /// on another queue over to the right shard, so a port that cannot steer does nothing.
    fn steer(&self, numbers: &[(RangeInclusive<Qpn>, usize)]);

    /// The source of the device's queue pair numbers if other processes share the port's addresses. `None`: the device may use all numbers.
    /// Whether it is `None` never changes and is known before the start.
    fn numbers(&self) -> Option<&dyn Numbers>;

    /// Maintains the link: reconnects when a peer came back, flushes captures. The call is cheap; make it at least every 10 ms, from one
    /// thread or several.
    fn maintain(&self);

    /// The port's counters.
    fn stats(&self) -> PortStats;
}
