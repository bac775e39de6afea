//! Turns memory into frames on a link and back: DPDK devices, memory shared with another process, the host's UDP sockets, and
//! links for tests.
//!
//! A port never looks into a frame beyond the Ethernet addresses (but for `udp`, where the kernel has the headers), and never
//! blocks. `device` opens ports; each shard owns one [`PortQueue`] and moves bursts through it. A port may consist of several links
//! ([`Route`]).

use crate::config;
use crate::id::Mac;
use core::net::IpAddr;
use core::time::Duration;
use std::os::fd::OwnedFd;
use std::sync::Arc;

mod capture;
mod counters;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod fault;
pub mod frame;
mod layer;
mod lazy;
mod loopback;
mod memif;
mod netdevice;
mod pair;
mod peers;
mod share;
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
pub mod socket_file;
mod spec;
mod stock;
mod taken;
mod udp;
mod unix;

pub use capture::capture;
pub use fault::fault;
pub use frame::{Frame, HeapPool};
pub use layer::{PortLayer, QueueLayer};
pub use netdevice::interface_feature;
pub use pair::{Steering, pair, pair_with};
pub use spec::{HostAddress, MemifRole, PortSpec};

/// Frames that a queue received in one burst.
pub type RxBurst = arrayvec::ArrayVec<Frame, { config::RX_BURST }>;
/// Frames that wait to be sent, oldest first.
pub type TxBurst = arrayvec::ArrayVec<Frame, { config::TX_BURST }>;

/// Bytes of an Ethernet header with one VLAN tag: what a frame has beside its L3 packet.
pub const L2_OVERHEAD: usize = 18;

/// Builds frames in a port's memory: first builds all frames of a burst, then finishes each.
pub trait Build {
    /// Builds a frame in a buffer that holds [`max_frame`](PortInfo::max_frame) bytes. Returns its length, or `None` to end. Any
    /// or all of it may be left to [`finish`](Self::finish).
    fn build(&mut self, buffer: &mut [u8]) -> Option<usize>;

    /// Finishes the `i`-th frame of the burst, whose buffer this is; its length stays. Code that reads what was stored just
    /// before belongs here: by now the stores have left the core.
    fn finish(&mut self, i: usize, buffer: &mut [u8]) {
        let _ = (i, buffer);
    }
}

impl<F: FnMut(&mut [u8]) -> Option<usize>> Build for F {
    fn build(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self(buffer)
    }
}

/// The link by which frames leave, of a port that consists of several: their numbers are the port's business. The default is that of a
/// port with one link, and of frames that go to no peer in particular.
///
/// A link that takes no frames for a while holds up those of its own route alone. A port with several has a [`Host`], which finds the
/// next hops.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Hash)]
pub struct Route(pub u8);

/// One queue of a port: frames in, frames out, buffers. One shard owns it and calls it from one thread at a time.
///
/// It has no default methods; a queue around another one is a [`QueueLayer`].
pub trait PortQueue: Send {
    /// Appends received frames to `out` while it has room; returns how many. A port may end a burst behind
    /// [`RX_BURST_BYTES`](config::RX_BURST_BYTES), so that it is still in L1 or L2 when the caller reads it.
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize;

    /// The route to a peer. Asked when the next hop of a destination is resolved, and again when neighbours or addresses have changed.
    fn route_to(&mut self, peer: IpAddr) -> Route;

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

    /// Builds up to `most` frames, and [`TX_BURST`](config::TX_BURST) at most, directly in the memory from which the link of this route
    /// sends (the rings of a memif). They are on their way when this returns. Returns how many were built, 0 while there is no room;
    /// `None` where the port has no such memory, or none now: then the caller has to use frames.
    ///
    /// A buffer's contents are arbitrary at first, and a peer that shares it may change what was written: only write to it.
    /// Frames of one route leave in the order of the calls of this and of [`tx_burst`](Self::tx_burst).
    fn build_burst(&mut self, route: Route, most: usize, builder: &mut dyn Build) -> Option<usize>;

    /// Prepares a sleep: from now on, until frames are received again, each arrival makes a descriptor readable. If frames wait
    /// already, or arrive during this call, it returns [`Armed::Pending`]; where the port cannot signal, [`Armed::Unable`].
    fn arm(&mut self) -> Armed;

    /// Gives back frames that are no longer needed, and their slots in the port's rings to the sender; a port may keep the slots
    /// until this call or the next burst. Dropping frames gives back only the frames, and is slower for a whole burst.
    fn recycle(&mut self, frames: &mut RxBurst);
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

/// What a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The specification it was opened with, for messages.
    pub name: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Largest L3 packet that it was opened for, in bytes. What it carries now may differ: [`Port::mtu`].
    pub mtu: usize,
    /// Number of queues.
    pub queues: usize,
}

impl PortInfo {
    /// A port that is what the options ask for: with a random address where they name none.
    fn of(spec: &PortSpec, options: &PortOptions) -> Self {
        let mac = options.mac.unwrap_or_else(Mac::random);
        Self { name: spec.to_string(), mac, mtu: options.mtu, queues: options.queues }
    }

    /// Bytes of the longest frame: Ethernet header, VLAN tag and an L3 packet of [`mtu`](Self::mtu) bytes.
    pub fn max_frame(&self) -> usize {
        self.mtu + L2_OVERHEAD
    }
}

/// Counters of a port since it was opened, over all of its queues. A port of your own sets what it counts in the default.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames lost on the way in: no buffer, no room in a queue, too long.
    pub rx_dropped: u64,
    /// Frames that could not be sent: too long for the port, to a network interface that is down or gone, or to a peer that is not
    /// there or has no usable buffer for them.
    pub tx_dropped: u64,
    /// Times the link was lost because its peer went away.
    pub restarts: u64,
    /// Peers that were refused, or violated the protocol of the link (memif); datagrams from or to other users (unix); packets of
    /// ours that came back (UDP).
    pub refused: u64,
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
}

/// A link's end: a factory of queues, and what concerns all of them.
///
/// It has no default methods; a port around another one is a [`PortLayer`].
pub trait Port: Send + Sync {
    /// What the port is.
    fn info(&self) -> &PortInfo;

    /// The queue with this number, once; `None` when it is taken or does not exist.
    ///
    /// The queue keeps the port's device open.
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>>;

    /// Opens the port's device, if that was put off ([`PortSpec::open_lazy`]); called before the port is used first. Starting it
    /// again changes nothing; after an error it may be tried again.
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
    /// before the start.
    fn window(&self) -> Option<usize>;

    /// Maintains the link: reconnects when a peer came back, flushes captures. Cheap; call it every 10 ms or more often, from one
    /// thread or several.
    fn maintain(&self);

    /// The counters.
    fn stats(&self) -> PortStats;
}

/// How to open a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// Number of queues, at least 1: one for each shard.
    pub queues: usize,
    /// Largest L3 packet in bytes. The default, 4200, carries the path MTU 4096.
    pub mtu: usize,
    /// The Ethernet address; a random, locally administered one (or the device's own) where absent.
    pub mac: Option<Mac>,
    /// Buffers for each queue beyond those that sit in the device's own rings.
    pub frames: usize,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self { queues: 1, mtu: 4200, mac: None, frames: 4096 }
    }
}

impl PortOptions {
    /// Numbers that every kind of port takes.
    fn check(&self) -> Result<(), PortError> {
        let fail = |reason: String| Err(PortError::Options(reason));
        if !(1..=config::SHARDS_MAX).contains(&self.queues) {
            return fail(format!("a port has 1 to {} queues, not {}", config::SHARDS_MAX, self.queues));
        }
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return fail(format!("an MTU is {MTU_MIN} to {MTU_MAX} bytes, not {}", self.mtu));
        }
        if !(FRAMES_MIN..=FRAMES_MAX).contains(&self.frames) {
            return fail(format!("a queue has {FRAMES_MIN} to {FRAMES_MAX} buffers, not {}", self.frames));
        }
        match self.mac {
            Some(mac) if !mac.is_unicast() => {
                fail(format!("{mac} is no address of one station: use one like 02:00:00:00:00:01"))
            }
            _ => Ok(()),
        }
    }
}

/// Smallest and largest MTU of a port: IPv4's minimum, and jumbo frames.
const MTU_MIN: usize = 576;
const MTU_MAX: usize = 9600;
/// Least and most buffers of a queue.
const FRAMES_MIN: usize = 256;
const FRAMES_MAX: usize = 1 << 18;

impl Mac {
    /// Whether it can be the address of one host: unicast, and not zero.
    pub(crate) fn is_unicast(&self) -> bool {
        self.0[0] & 1 == 0 && *self != Self::default()
    }

    /// An address that differs from this one, and is unicast if this is.
    pub(crate) fn beside(mut self) -> Self {
        self.0[5] ^= 1;
        self
    }

    /// A random unicast address, locally administered.
    pub(crate) fn random() -> Self {
        let mut bytes = [0; 6];
        // Without randomness two ports could get the same address.
        getrandom::fill(&mut bytes).expect("the operating system has randomness");
        bytes[0] = bytes[0] & 0xfc | 0x02;
        Self(bytes)
    }
}

/// Why a port could not be opened: one sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The specification is not one of a port.
    #[error("port {spec:?}: {reason}")]
    Spec {
        /// The text.
        spec: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// The options do not fit the port.
    #[error("port options: {0}")]
    Options(String),
    /// The port needs DPDK, and this build has none.
    #[error("port {0:?} needs DPDK, which this build leaves out: build with the feature \"dpdk\"")]
    NoDpdk(String),
    /// DPDK's environment could not be started.
    #[error("DPDK: {0}")]
    Eal(String),
    /// The device could not be opened.
    #[error("port {port:?}: {reason}")]
    Open {
        /// The port's specification.
        port: String,
        /// What failed, and what to do about it.
        reason: String,
    },
}

#[cfg(test)]
pub(crate) mod limited;
