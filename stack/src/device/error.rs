//! The errors of a device.

use crate::id::{Gid, QpType};
use crate::mem::MemError;
use crate::net::NetConfigError;
use crate::port::PortError;
use crate::proto::address::AvError;
use crate::proto::state::{ModifyError, type_name};

/// Why a device could not be opened. The message says in one sentence what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// An address, a prefix, a gateway or the VLAN is not valid.
    #[error("address configuration: {0}")]
    Net(#[from] NetConfigError),
    /// The port uses the addresses of the host, which the host's kernel manages.
    #[error(
        "port {port} has the addresses and routes of the host; it takes no others ({what}): leave that out, name some of \
         the host's addresses (udp:ADDR), or take a port with addresses of its own (memif, tap:IFACE)"
    )]
    Host {
        /// The port.
        port: String,
        /// The rejected setting.
        what: &'static str,
    },
    /// A number in the configuration is out of range.
    #[error("{what} is {given}; allowed are {min} to {max}")]
    Range {
        /// The field.
        what: &'static str,
        /// The given value.
        given: usize,
        /// Smallest value.
        min: usize,
        /// Largest value.
        max: usize,
    },
    /// Fewer cores than shards.
    #[error(
        "{shards} shards, but {cores} cores for their threads; name one core for each shard, or none at all"
    )]
    Cores {
        /// Number of shards.
        shards: usize,
        /// Number of cores given.
        cores: usize,
    },
    /// A core that does not exist, or that this process may not use.
    #[error("core {core} cannot be used by this process; choose from {available:?}")]
    NoSuchCore {
        /// The core that was given.
        core: usize,
        /// Usable cores.
        available: Vec<usize>,
    },
    /// The port has fewer queues than the device has shards.
    #[error(
        "port {port} has {queues} queues for {shards} shards; open it with a queue for each, or use fewer shards"
    )]
    Queues {
        /// The port.
        port: String,
        /// Number of its queues.
        queues: usize,
        /// Number of shards requested.
        shards: usize,
    },
    /// The port's packets are too short for the smallest path MTU.
    #[error(
        "port {port} carries packets of up to {mtu} bytes, and the smallest path MTU, 256, takes {}; raise its MTU",
        crate::id::Mtu::Mtu256.of_packet()
    )]
    PortMtu {
        /// The port.
        port: String,
        /// Its largest L3 packet.
        mtu: usize,
    },
    /// A queue of the port was taken by another user.
    #[error(
        "queue {queue} of port {port} was taken by somebody else; a device needs all of its port's queues"
    )]
    QueueTaken {
        /// The port.
        port: String,
        /// The queue.
        queue: usize,
    },
    /// A thread could not be started.
    #[error("the thread {name} could not be started: {source}")]
    Thread {
        /// Its name.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The statistics socket could not be created.
    #[error("the statistics socket {}: {reason}", path.display())]
    Stats {
        /// Its path.
        path: std::path::PathBuf,
        /// The reason, and what to do.
        reason: String,
    },
    /// The operating system gave no random numbers.
    #[error("the operating system gave no random numbers, which keys and queue pair numbers need")]
    Random,
}

/// Why a control call was refused. Nothing has changed then, except as the variant says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Other objects refer to the object.
    #[error("the {object} is still in use by {users} other object(s) or handle(s); destroy those first")]
    Busy {
        /// The object.
        object: &'static str,
        /// Number of objects that refer to it.
        users: usize,
    },
    /// Events of the object were fetched and not acknowledged.
    #[error("{events} event(s) of the {object} were fetched and not acknowledged; acknowledge them first")]
    Unacked {
        /// The object.
        object: &'static str,
        /// Number of events.
        events: u32,
    },
    /// More events were acknowledged than were fetched.
    #[error("{given} events acknowledged, but {fetched} were fetched and not acknowledged yet")]
    NotFetched {
        /// Number of events in the call.
        given: u32,
        /// Number of events that could be acknowledged.
        fetched: u32,
    },
    /// An event was requested of a completion queue without a channel.
    #[error(
        "the completion queue was made without a completion channel, so it has no events; make it with one"
    )]
    NoChannel,
    /// A completion was lost because the completion queue was full.
    #[error(
        "the completion queue overran and is unusable; destroy it and its queue pairs, and make a larger one"
    )]
    CqOverrun,
    /// The operating system gave no file descriptor.
    #[error("no file descriptor for events: {why}", why = no_descriptor(*.0))]
    Descriptor(std::io::ErrorKind),
    /// A number is out of range.
    #[error("{what} is {given}; this device allows {min} to {max}")]
    Range {
        /// The attribute.
        what: &'static str,
        /// The given value.
        given: u64,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// All objects or numbers of a kind are in use.
    #[error(
        "no {what} is left: all {limit} are in use or not free again yet; destroy some, or open the device with more"
    )]
    Exhausted {
        /// The kind.
        what: &'static str,
        /// The number available in total.
        limit: usize,
    },
    /// Only one such object can exist, and it does.
    #[error("the {what} exists already, and there is only one")]
    Exists {
        /// The object.
        what: &'static str,
    },
    /// The port uses the addresses of the host, so they can be changed only there.
    #[error("the port has the addresses of the host: change them there (ip address), and the port follows")]
    HostAddress,
    /// Not a valid address for a host.
    #[error(transparent)]
    Address(#[from] NetConfigError),
    /// The port does not have this address, or it is the link-local address, which cannot be removed.
    #[error(
        "{addr} cannot be removed: the port does not have it, or it is the link-local address, which stays; see gid_table()"
    )]
    NoSuchAddress {
        /// The address.
        addr: core::net::IpAddr,
    },
    /// A queue pair of this type cannot be created on this domain, or with this shared receive queue.
    #[error("create_qp: {0}")]
    Unsuitable(&'static str),
    /// No XRC domain has this name.
    #[error("there is no XRC domain {name:?}; open it with `create`")]
    NoSuchDomain {
        /// The name; empty for a domain without a name.
        name: String,
    },
    /// An XRC domain has this name already.
    #[error("the XRC domain {name:?} exists already; open it without `exclusive`, or choose another name")]
    DomainExists {
        /// The name.
        name: String,
    },
    /// The XRC domain has no such queue pair, or this open of the domain is not registered with the queue pair.
    #[error(
        "the XRC domain has no queue pair {qpn:#08x}, or this open of the domain is not registered with the queue pair"
    )]
    NoSuchTarget {
        /// The queue pair number.
        qpn: u32,
    },
    /// An object of another device was passed in.
    #[error("the {what} belongs to another device; all objects of a call must come from the same one")]
    Foreign {
        /// The object.
        what: &'static str,
    },
    /// Not a UD queue pair, so it cannot receive multicast.
    #[error("the queue pair is of type {}; only UD queue pairs are attached to multicast groups", type_name(*.qp_type))]
    McastQp {
        /// Its type.
        qp_type: QpType,
    },
    /// Not a multicast GID.
    #[error("{gid} is no multicast GID; IPv4 groups are ::ffff:224.0.0.0/4, IPv6 groups ff00::/8")]
    McastGid {
        /// The address.
        gid: Gid,
    },
    /// The queue pair is not attached to the group.
    #[error("the queue pair is not attached to the multicast group {group}")]
    NotAttached {
        /// The group.
        group: Gid,
    },
    /// The operation that the call waits for did not end in time.
    #[error(
        "the {what} did not end within {after:?}; what was started goes on and can be waited for again, with more time"
    )]
    TimedOut {
        /// The operation.
        what: &'static str,
        /// The time limit.
        after: core::time::Duration,
    },
    /// The call was made from inside a turn of a shard, on the thread that makes the turn (by a port or a `tracing` subscriber): a control
    /// call would wait for itself, and a turn would run inside the first one.
    #[error(
        "the call was made from inside a turn of a shard, on the thread that turns it, and would wait for itself; make it \
         after the turn"
    )]
    InsideTurn,
    /// An unfinished call of the same thread uses the object: this call was made from an iterator of a list that is being posted, from a
    /// closure that receives completions, or before a list or a poll was ended (`ibv_wr_start`, `ibv_start_poll`).
    #[error(
        "the {object} is in use by an unfinished call of this thread; make this call when that one has ended"
    )]
    InsideCall {
        /// The object.
        object: &'static str,
    },
    /// The port, a `tracing` subscriber or the stack panicked in a turn of the shard. The shard's work is half done, so no thread turns it
    /// any more.
    #[error(
        "shard {shard} of the device died of a panic (of its port, of a tracing subscriber, or of the stack); its queue \
         pairs do nothing any more: destroy what there is and open the device again"
    )]
    ShardDied {
        /// The shard.
        shard: usize,
    },
    /// Connection management panicked: its work is half done.
    #[error(
        "connection management of the device died of a panic; destroy its identifiers and channels to begin anew"
    )]
    ServiceDied,
    /// The call was made in a forked child of the process that opened the device.
    #[error("this process is a forked child, and the device is its parent's; open a device after the fork")]
    Forked,
    /// The port is opened on first use, and could not be opened; or its host could not join a multicast group.
    #[error(transparent)]
    Port(Box<PortError>),
    /// Access rights that this device cannot grant for any memory.
    #[error("reg_mr: {what} is not supported by this device; leave it out")]
    Access {
        /// The rights, by name.
        what: String,
    },
    /// The address vector cannot be used to send.
    #[error("create_ah: {0}")]
    Ah(#[from] AvError),
    /// The call is for another kind of object.
    #[error("{call} needs a {wanted}; this is none")]
    WrongKind {
        /// The call.
        call: &'static str,
        /// The required kind.
        wanted: &'static str,
    },
    /// The operating system gave no random numbers.
    #[error("the operating system gave no random numbers, which keys and queue pair numbers need")]
    Random,
    /// A Modify QP call was refused.
    #[error("modify_qp: {0}")]
    Modify(#[from] ModifyError),
    /// A registration was refused.
    #[error("reg_mr: {0}")]
    Memory(#[from] MemError),
}

/// Why eventfd(2) or epoll_create(2) failed, and what to do.
fn no_descriptor(kind: std::io::ErrorKind) -> &'static str {
    use std::io::ErrorKind::{PermissionDenied, Unsupported};
    match kind {
        PermissionDenied | Unsupported => {
            "a filter of system calls, as containers and sandboxes have, refuses eventfd(2) or epoll_create(2); allow them"
        }
        _ => "none is left; close some, or allow the process more (ulimit -n)",
    }
}
