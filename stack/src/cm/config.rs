//! The configuration of a machine, and its limits.

use core::ops::RangeInclusive;
use core::time::Duration;

use crate::id::Mtu;

/// Configuration of a [`Machine`](super::Machine).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Our node GUID. Must be unique among nodes: peers use it to tell duplicates from new connections. The EUI-64 of the port's Ethernet
    /// address will do.
    pub ca_guid: u64,
    /// Seed for random IDs, PSNs and transaction IDs. Should be random; equal seeds give equal runs.
    pub seed: u64,
    /// Range of our communication IDs and SIDR request IDs. Where several machines share an address, give each its own range: the ID in a
    /// peer's message then tells which machine it is for.
    pub ids: RangeInclusive<u32>,
    /// Largest path MTU of the port. A REQ with a larger one is rejected (reason 26).
    pub mtu: Mtu,
    /// Time code of our ACK delay, `0 ..= 31` (`local_ca_ack_delay` of `struct ibv_device_attr`).
    pub ack_delay: u8,
    /// Hop limit of MADs sent in answer, and of paths learnt from a REQ; 0 counts as 64.
    pub hop_limit: u8,
    /// Service timeout (time code) of the MRA that answers the first retransmission of a REQ or REP while the program decides; `None`: no
    /// MRA, as in Linux today. Without an MRA a peer waits as long as its own program chose.
    pub mra: Option<u8>,
    /// Bounds on memory and time.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ca_guid: 0,
            seed: 0,
            ids: 1..=u32::MAX,
            mtu: Mtu::Mtu4096,
            ack_delay: 15,
            hop_limit: 64,
            mra: None,
            limits: Limits::default(),
        }
    }
}

/// Bounds of a machine: on the entries that remote hosts can create, and on the times that they can choose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections in any state, TIMEWAIT included. At the limit, a new connection ends the oldest TIMEWAIT of the host that has most of
    /// them. If no other host has more than the new peer, connect fails and a REQ is rejected (reason 3).
    pub connections: usize,
    /// Connections that a REQ began and that are not established yet. At the limit, a new REQ ends the oldest of them that belongs to the
    /// host with most. If no other host has more than the sender of the REQ, the REQ is rejected (reason 3).
    pub half_open: usize,
    /// Connections of one peer address that are checked at a time ([`Event::CheckPeer`](super::Event::CheckPeer)). At the limit, a message
    /// that indicates that the peer lost its connection has no effect on it.
    pub checks_of_peer: usize,
    /// Connections that are checked at a time, of all peers.
    pub checks: usize,
    /// Listeners.
    pub listeners: usize,
    /// SIDR exchanges, in either direction. At the limit, a new one ends the oldest answered one; if there is none, the oldest that waits
    /// for the program and belongs to the host with most of those.
    pub sidr: usize,
    /// Events that wait for [`poll_event`](super::Machine::poll_event). At the limit, a REQ is rejected (reason 3) and a SIDR_REQ is
    /// dropped.
    pub events: usize,
    /// MADs without retransmission that wait for [`poll_send`](super::Machine::poll_send): this many that belong to connections, and as
    /// many others. At the limit one is dropped, as if lost, from the host that has most in the queue. MADs with retransmission are stored
    /// with their connection and need no limit.
    pub sends: usize,
    /// Outstanding requests to the connection manager of one host. Further ones are sent as these are answered.
    pub under_way: usize,
    /// After this time a request no longer counts as outstanding in `under_way`: its answer may be up to a program.
    pub under_way_time: Duration,
    /// How long a connection that a REQ began may take to be established, and its DREQ to be answered, whatever timeouts the REQ and its
    /// MRAs name.
    pub half_open_time: Duration,
    /// The longest wait that a single time code from a peer can cause, those in MRAs included.
    pub peer_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1 << 17,
            half_open: 4096,
            checks_of_peer: 64,
            checks: 1024,
            listeners: 4096,
            sidr: 4096,
            events: 1 << 14,
            sends: 1024,
            under_way: 128,
            under_way_time: Duration::from_millis(200),
            half_open_time: Duration::from_secs(120),
            peer_time: Duration::from_secs(70),
        }
    }
}

/// Timeouts and retries of one exchange. The default is that of `rdma_cm` in Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Timing {
    /// Time code of the path's packet lifetime, `0 ..= 31`.
    pub packet_lifetime: u8,
    /// Time code: how long the peer's connection manager may take to answer, `0 ..= 31`.
    pub remote_response: u8,
    /// Time code: how long we may take to answer, `0 ..= 31`. The peer retransmits its REP at this interval.
    pub local_response: u8,
    /// How often a request is retransmitted, `0 ..= 15`.
    pub max_cm_retries: u8,
}

impl Default for Timing {
    fn default() -> Self {
        Self { packet_lifetime: 16, remote_response: 20, local_response: 20, max_cm_retries: 15 }
    }
}
