//! The configuration of a machine, and its limits.

use core::ops::RangeInclusive;
use core::time::Duration;

use crate::id::Mtu;

/// Configuration of a [`Machine`](super::Machine).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Our node's identity, unique among nodes: with it peers tell duplicates from new connections. The EUI-64 of
    /// the port's Ethernet address will do.
    pub ca_guid: u64,
    /// Seed of ids, sequence numbers and transaction ids. Random; equal seeds give equal runs.
    pub seed: u64,
    /// Our communication and request ids are of these: where several machines have one address, by its id a peer's message is known to be
    /// for one of them.
    pub ids: RangeInclusive<u32>,
    /// The largest path MTU of the port: a REQ with a larger one is rejected (reason 26).
    pub mtu: Mtu,
    /// Time code of our ACK delay, `0 ..= 31` (`local_ca_ack_delay` of `struct ibv_device_attr`).
    pub ack_delay: u8,
    /// Hop limit of MADs that answer, and of paths learnt from a REQ; 0 counts as 64.
    pub hop_limit: u8,
    /// Time code of the MRA that answers the first repetition of a REQ or REP while the program decides; `None`: no MRA, as in
    /// Linux today. Without an MRA a peer waits as long as its own program chose.
    pub mra: Option<u8>,
    /// Bounds of memory and time.
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

/// Bounds of a machine: on entries that strangers could fill, and on times that they could stretch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections in any state, those in TIMEWAIT too. One above that ends the oldest TIMEWAIT of the host with most of them;
    /// where no other host has more, connect fails, and a REQ is rejected (reason 3).
    pub connections: usize,
    /// Connections that a REQ began and that are not established. A REQ above that ends the oldest one of the host with most of
    /// them; where no other host has more than its own, it is rejected (reason 3).
    pub half_open: usize,
    /// Established connections whose peer is being asked whether it still has them ([`Event::CheckPeer`](super::Event::CheckPeer)),
    /// of one peer's address: a message that says that it has not ends none above that.
    pub checks_of_peer: usize,
    /// Of all peers.
    pub checks: usize,
    /// Listeners.
    pub listeners: usize,
    /// SIDR exchanges, in either direction. One above that ends the oldest answered one; where there is none, the oldest request
    /// of the host with most of them that wait for the program.
    pub sidr: usize,
    /// Events that wait for [`poll_event`](super::Machine::poll_event); a REQ above that is rejected (reason 3),
    /// a SIDR_REQ dropped.
    pub events: usize,
    /// MADs that wait for [`poll_send`](super::Machine::poll_send) and are sent once: so many of connections, and as many answers to
    /// strangers. One above that is dropped, as if lost, at the cost of the host for which most wait. Others have room with
    /// their connection.
    pub sends: usize,
    /// Requests that may wait for the answers of one host's connection management. Others are sent as these are answered.
    pub under_way: usize,
    /// After this time a request counts among `under_way` no more: its answer may be up to a program.
    pub under_way_time: Duration,
    /// How long a connection that a REQ began may take to be established, and its DREQ to be answered, whatever times the
    /// REQ and MRAs name.
    pub half_open_time: Duration,
    /// The longest wait that one time code of a peer can cause, those of its MRAs included.
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

/// Times and retries of one exchange. The default is what Linux' `rdma_cm` uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Timing {
    /// Time code of the path's packet lifetime, `0 ..= 31`.
    pub packet_lifetime: u8,
    /// Time code of how long the peer's connection manager may take to answer, `0 ..= 31`.
    pub remote_response: u8,
    /// Time code of how long we take to answer, `0 ..= 31`: the peer's interval between REPs.
    pub local_response: u8,
    /// How often a request is repeated, `0 ..= 15`.
    pub max_cm_retries: u8,
}

impl Default for Timing {
    fn default() -> Self {
        Self { packet_lifetime: 16, remote_response: 20, local_response: 20, max_cm_retries: 15 }
    }
}
