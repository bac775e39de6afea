//! Parameters of the machine's operations, its events, and the parameters with which a queue pair is connected.

use core::time::Duration;

use crate::id::{Gid, Mtu, Psn, Qpn};

use super::config::Timing;
use super::reason::{Reason, SidrStatus};
use super::service::{IpHeader, ServiceId};

/// Identifies a listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ListenId(pub(super) u64);

/// Identifies a connection, from `connect` or [`Event::ConnectRequest`] to its end. A machine never reuses one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ConnId(pub(super) u64);

/// Identifies a SIDR exchange, from request to reply. A machine never reuses one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SidrId(pub(super) u64);

/// The path to a peer and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Path {
    /// Our address.
    pub sgid: Gid,
    /// The peer's address.
    pub dgid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// DSCP (upper six bits) and ECN.
    pub traffic_class: u8,
    /// Time to live; 0 counts as 64 on the wire.
    pub hop_limit: u8,
    /// Service level, `0 ..= 7`: the VLAN priority.
    pub sl: u8,
}

/// A MAD to send to queue pair 1 of a peer, with Q_Key 0x80010000 and P_Key index 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Send {
    /// The datagram's payload.
    pub mad: [u8; super::MAD_LEN],
    /// Where it goes: `path.dgid`, from `path.sgid`.
    pub path: Path,
}

/// Service type of a connection (IBA 12.7.12).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
}

/// Parameters of [`listen`](super::Machine::listen).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Listen {
    /// The service that peers request.
    pub service_id: ServiceId,
    /// Only requests to this address of ours: the destination in the [`IpHeader`], or the GID if there is none. `None`: any address.
    pub address: Option<Gid>,
    /// How many requests may wait to be accepted or rejected. Further ones are rejected (reason 3). 0 counts as 1.
    pub backlog: u32,
}

/// Parameters of [`connect`](super::Machine::connect) (`struct rdma_conn_param` and the route).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// The requested service.
    pub service_id: ServiceId,
    /// The path to the peer.
    pub path: Path,
    /// Path MTU; at most that of the port.
    pub mtu: Mtu,
    /// Service type.
    pub transport: Transport,
    /// Our queue pair, which must be neither in another connection nor in TIMEWAIT.
    pub qpn: Qpn,
    /// Whether our queue pair does end-to-end flow control.
    pub flow_control: bool,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// The first PSN of the packets that the peer sends; `None`: random.
    pub psn: Option<Psn>,
    /// READs and ATOMICs that we can serve at once.
    pub responder_resources: u8,
    /// READs and ATOMICs that we want to have outstanding at once.
    pub initiator_depth: u8,
    /// Transport retries, `0 ..= 7`, of both queue pairs.
    pub retry_count: u8,
    /// RNR retries of the peer's queue pair, `0 ..= 7`.
    pub rnr_retry_count: u8,
    /// RNR timer code of our RNR NAKs, `0 ..= 31`; copied to [`QpParams`].
    pub min_rnr_timer: u8,
    /// Timeouts and retries of the exchange.
    pub timing: Timing,
    /// Interval at which the peer of an established connection is asked whether it still has the connection; `None`: never. See
    /// [`Event::CheckPeer`].
    pub keep_alive: Option<Duration>,
    /// The IP header of `rdma_cm`. Required if the service ID is one of a [`PortSpace`](super::PortSpace), else not allowed.
    pub ip: Option<IpHeader>,
    /// Up to 92 bytes, or up to 56 after an `ip` header.
    pub private_data: Vec<u8>,
}

impl Connect {
    /// A reliable connection to `service_id`, with default values: MTU 1024, one outstanding READ or ATOMIC each way, seven
    /// transport and RNR retries.
    pub fn new(service_id: ServiceId, path: Path, qpn: Qpn) -> Self {
        Self {
            service_id,
            path,
            mtu: Mtu::Mtu1024,
            transport: Transport::Rc,
            qpn,
            flow_control: false,
            srq: false,
            psn: None,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 0,
            timing: Timing::default(),
            keep_alive: None,
            ip: None,
            private_data: Vec::new(),
        }
    }
}

/// Parameters of [`accept`](super::Machine::accept) (`struct rdma_conn_param`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accept {
    /// Our queue pair, which must be neither in another connection nor in TIMEWAIT.
    pub qpn: Qpn,
    /// Whether our queue pair does end-to-end flow control.
    pub flow_control: bool,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// READs and ATOMICs that we can serve at once; reduced to what the peer wants to issue.
    pub responder_resources: u8,
    /// READs and ATOMICs that we want to have outstanding at once; reduced to what the peer can serve.
    pub initiator_depth: u8,
    /// RNR retries of the peer's queue pair, `0 ..= 7`.
    pub rnr_retry_count: u8,
    /// RNR timer code of our RNR NAKs, `0 ..= 31`; copied to [`QpParams`].
    pub min_rnr_timer: u8,
    /// Interval at which REP and DREQ are retransmitted, as a time code, `0 ..= 31`; `None`: as in the REQ.
    pub response_timeout: Option<u8>,
    /// How often REP and DREQ are retransmitted, `0 ..= 15`; `None`: as in the REQ.
    pub max_cm_retries: Option<u8>,
    /// Same as [`Connect::keep_alive`].
    pub keep_alive: Option<Duration>,
    /// Up to 196 bytes.
    pub private_data: Vec<u8>,
}

impl Accept {
    /// Accepts with this queue pair: as many READs and ATOMICs each way as the peer agrees to, seven RNR retries.
    pub fn new(qpn: Qpn) -> Self {
        let most = crate::config::RD_ATOMIC_MAX;
        Self {
            qpn,
            flow_control: false,
            srq: false,
            responder_resources: most,
            initiator_depth: most,
            rnr_retry_count: 7,
            min_rnr_timer: 0,
            response_timeout: None,
            max_cm_retries: None,
            keep_alive: None,
            private_data: Vec::new(),
        }
    }
}

/// Parameters of [`reject`](super::Machine::reject).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reject {
    /// The reason.
    pub reason: Reason,
    /// Additional reject information, up to 72 bytes.
    pub info: Vec<u8>,
    /// Up to 148 bytes.
    pub private_data: Vec<u8>,
}

impl Reject {
    /// A rejection as by `rdma_reject`: reason 28 with private data.
    pub fn consumer(private_data: impl Into<Vec<u8>>) -> Self {
        Self { reason: Reason::CONSUMER_DEFINED, info: Vec::new(), private_data: private_data.into() }
    }
}

/// The parameters to connect a queue pair: every value that REQ and REP agreed on, from our side's view.
///
/// INIT needs none of them. RTR needs `dest_qpn`, `rq_psn`, `path` and `path_mtu`; for RC also `max_dest_rd_atomic` and `min_rnr_timer`.
/// RTS needs `sq_psn`; for RC also `timeout`, `retry_cnt`, `rnr_retry` and `max_rd_atomic`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct QpParams {
    /// Service type.
    pub transport: Transport,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN that we expect.
    pub rq_psn: Psn,
    /// First PSN that we send.
    pub sq_psn: Psn,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// READs and ATOMICs that we may have outstanding, `0 ..= 16`.
    pub max_rd_atomic: u8,
    /// READs and ATOMICs that we serve at once, `0 ..= 16`. With 0 the peer gets no right to READ or ATOMIC.
    pub max_dest_rd_atomic: u8,
    /// Time code of the local ACK timeout, `0 ..= 31`.
    pub timeout: u8,
    /// Transport retries, `0 ..= 7`.
    pub retry_cnt: u8,
    /// RNR retries, `0 ..= 7`.
    pub rnr_retry: u8,
    /// RNR timer code of our RNR NAKs, `0 ..= 31`.
    pub min_rnr_timer: u8,
    /// The path to the peer.
    pub path: Path,
}

impl QpParams {
    /// Whether the peer gets the rights to READ and ATOMIC: it does if we serve any. It always gets the right to WRITE.
    pub const fn remote_read(&self) -> bool {
        self.max_dest_rd_atomic != 0
    }
}

/// A connection request that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The requested service.
    pub service_id: ServiceId,
    /// The path to the peer; `sgid` is our address.
    pub path: Path,
    /// The IP header of `rdma_cm`, if the service ID is one of a [`PortSpace`](super::PortSpace).
    pub ip: Option<IpHeader>,
    /// 92 bytes, or 56 after an `ip` header.
    pub private_data: Vec<u8>,
    /// Service type.
    pub transport: Transport,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The peer's node GUID.
    pub remote_guid: u64,
    /// READs and ATOMICs that the peer can serve at once: the most that we can have outstanding.
    pub responder_resources: u8,
    /// READs and ATOMICs that the peer wants to have outstanding.
    pub initiator_depth: u8,
    /// Transport retries that our queue pair should use.
    pub retry_count: u8,
    /// RNR retries that our queue pair should use.
    pub rnr_retry_count: u8,
    /// Path MTU.
    pub mtu: Mtu,
    /// Whether the peer's queue pair does end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
}

/// The peer's acceptance of our request, on the active side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// Our queue pair's parameters. Bring it to RTS, then call [`confirm`](super::Machine::confirm).
    pub params: QpParams,
    /// READs and ATOMICs that the peer serves at once.
    pub responder_resources: u8,
    /// READs and ATOMICs that the peer may have outstanding.
    pub initiator_depth: u8,
    /// RNR retries of the REP.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair does end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// 196 bytes.
    pub private_data: Vec<u8>,
}

/// Result of an [`Event::CheckPeer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PeerAnswer {
    /// The peer's queue pair answered.
    Answered,
    /// The peer's queue pair did not answer, although it was asked several times.
    Silent,
    /// The peer could not be asked: our queue pair is not connected, or its type has no acknowledged requests.
    NotAsked,
}

/// How an established connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Disconnect {
    /// The peer requested it.
    ByPeer,
    /// We requested it and the peer agreed.
    Agreed,
    /// We requested it and the peer never answered; or the peer did not answer keep-alive checks ([`Connect::keep_alive`]).
    TimedOut,
    /// The peer rejected it (REJ), because our RTU never reached it.
    Rejected(Reason),
    /// A message indicated that the peer no longer has this connection, and the peer's queue pair did not answer a check or could not be
    /// checked.
    Stale,
    /// The peer's process, on the same host, has ended.
    PeerEnded,
}

/// Events of the machine. Events of one connection come in order. The documentation says which events end an ID; no event follows then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A REQ arrived for a listener. Call `accept`, `reject` or `destroy`.
    ConnectRequest {
        /// The listener.
        listener: ListenId,
        /// The new connection.
        id: ConnId,
        /// The request.
        request: Request,
    },
    /// The peer accepted our request. Bring the queue pair to RTS and call `confirm`, or call `reject`.
    ConnectResponse {
        /// The connection.
        id: ConnId,
        /// The peer's answer.
        response: Response,
    },
    /// Passive side: the connection is established, by the peer's RTU or by [`established`](super::Machine::established). On the
    /// active side `confirm` establishes the connection, without an event.
    Established {
        /// The connection.
        id: ConnId,
        /// The RTU's private data, 224 bytes; empty if there was no RTU.
        private_data: Vec<u8>,
    },
    /// The peer rejected the connection. Ends the ID, unless `timewait` is set: then [`Event::TimeWaitExit`] ends it.
    Rejected {
        /// The connection.
        id: ConnId,
        /// The reason.
        reason: Reason,
        /// Additional information, up to 72 bytes.
        info: Vec<u8>,
        /// 148 bytes.
        private_data: Vec<u8>,
        /// Whether the connection is in TIMEWAIT now.
        timewait: bool,
    },
    /// The peer did not answer our REQ or REP; or the program did not act on the peer's REQ or REP within
    /// [`Limits::half_open_time`](super::Limits::half_open_time). Ends the ID, unless `timewait` is set: then [`Event::TimeWaitExit`]
    /// ends it.
    Unreachable {
        /// The connection.
        id: ConnId,
        /// Whether the connection is in TIMEWAIT now.
        timewait: bool,
    },
    /// An established connection ended. The connection is in TIMEWAIT now.
    Disconnected {
        /// The connection.
        id: ConnId,
        /// How it ended.
        how: Disconnect,
        /// Private data of the peer's DREQ (220 bytes) or DREP (224 bytes); empty if there was neither.
        private_data: Vec<u8>,
    },
    /// Check whether the peer still has this established connection, by a request to its queue pair, then call
    /// [`peer_checked`](super::Machine::peer_checked) with the result. Either a message from the peer's address indicates that it does
    /// not, which may be forged, or the keep-alive interval is over ([`Connect::keep_alive`]). The connection stays usable meanwhile.
    CheckPeer {
        /// The connection.
        id: ConnId,
        /// The path to the peer. Only simulations without queue pairs need it.
        path: Path,
        /// Our queue pair, which sends the request.
        qpn: Qpn,
        /// The peer's queue pair. Needed only where `path` is.
        remote_qpn: Qpn,
    },
    /// TIMEWAIT is over: no packets of the connection are left in the network, and its queue pair number may be reused. Ends the ID.
    /// Comes even after `destroy`, so that callers know when to reuse the number.
    TimeWaitExit {
        /// The connection.
        id: ConnId,
        /// Our queue pair.
        qpn: Qpn,
    },
    /// A SIDR_REQ arrived for a listener. Call `sidr_reply`.
    SidrRequest {
        /// The listener.
        listener: ListenId,
        /// The new exchange.
        id: SidrId,
        /// The requested service.
        service_id: ServiceId,
        /// The path to the peer; `sgid` is our address.
        path: Path,
        /// The IP header of `rdma_cm`, if the service ID is one of a [`PortSpace`](super::PortSpace).
        ip: Option<IpHeader>,
        /// 216 bytes, or 180 after an `ip` header.
        private_data: Vec<u8>,
    },
    /// The answer to our SIDR_REQ. Ends the ID.
    SidrReply {
        /// The exchange.
        id: SidrId,
        /// The peer's decision.
        status: SidrStatus,
        /// The service's queue pair.
        qpn: Qpn,
        /// Its Q_Key.
        qkey: u32,
        /// The path to it.
        path: Path,
        /// Additional information, up to 72 bytes.
        info: Vec<u8>,
        /// 136 bytes.
        private_data: Vec<u8>,
    },
    /// Our SIDR_REQ was not answered; or the program did not answer the peer's within
    /// [`Limits::half_open_time`](super::Limits::half_open_time). Ends the ID.
    SidrUnreachable {
        /// The exchange.
        id: SidrId,
    },
}

/// Parameters of [`sidr_request`](super::Machine::sidr_request).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRequest {
    /// The requested service.
    pub service_id: ServiceId,
    /// The path to the peer.
    pub path: Path,
    /// Timeouts and retries of the exchange.
    pub timing: Timing,
    /// The IP header of `rdma_cm`. Required if the service ID is one of a [`PortSpace`](super::PortSpace), else not allowed.
    pub ip: Option<IpHeader>,
    /// Up to 216 bytes, or up to 180 after an `ip` header.
    pub private_data: Vec<u8>,
}

/// Parameters of [`sidr_reply`](super::Machine::sidr_reply).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReply {
    /// Whether the service is granted, or why not.
    pub status: SidrStatus,
    /// The service's queue pair, if granted.
    pub qpn: Qpn,
    /// Its Q_Key, if granted ([`RDMA_UDP_QKEY`](super::RDMA_UDP_QKEY) in `rdma_cm`).
    pub qkey: u32,
    /// Additional information, up to 72 bytes.
    pub info: Vec<u8>,
    /// Up to 136 bytes.
    pub private_data: Vec<u8>,
}
