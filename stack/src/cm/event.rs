//! Parameters of the operations, events of the machine, and the parameters for a queue pair.

use core::time::Duration;

use crate::id::{Gid, Mtu, Psn, Qpn};

use super::config::Timing;
use super::reason::{Reason, SidrStatus};
use super::service::{IpHeader, ServiceId};

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ListenId(pub(super) u64);

/// A connection, from connect or CONNECT_REQUEST to its end. Never reused within the life of a machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ConnId(pub(super) u64);

/// A SIDR exchange, from request to reply. Never reused within the life of a machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SidrId(pub(super) u64);

/// The way of packets to a peer, and back.
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

/// A MAD that is due: the bytes, for queue pair 1 of the peer with Q_Key 0x80010000 and P_Key index 0.
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
    /// Only this address of ours: the destination of the [`IpHeader`], or the GID where there is none. `None`: all.
    pub address: Option<Gid>,
    /// Requests that may wait to be accepted or rejected; more are rejected (reason 3). 0 counts as 1.
    pub backlog: u32,
}

/// Parameters of [`connect`](super::Machine::connect) (`struct rdma_conn_param` and the route).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// The requested service.
    pub service_id: ServiceId,
    /// The way to the peer.
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
    /// The sequence number the peer begins with; `None`: random.
    pub psn: Option<Psn>,
    /// READs and ATOMICs that we can serve at once.
    pub responder_resources: u8,
    /// READs and ATOMICs that we want to have under way at once.
    pub initiator_depth: u8,
    /// Transport retries, `0 ..= 7`, of both queue pairs.
    pub retry_count: u8,
    /// RNR retries of the peer's queue pair, `0 ..= 7`.
    pub rnr_retry_count: u8,
    /// Code of the delay of our RNR NAKs, `0 ..= 31`; passed on to [`QpParams`].
    pub min_rnr_timer: u8,
    /// Times and retries.
    pub timing: Timing,
    /// How often the peer is asked whether it still has the connection, once that is established; `None`: never. See
    /// [`Event::CheckPeer`].
    pub keep_alive: Option<Duration>,
    /// The header of `rdma_cm`; must be there exactly if the service id is one of [`PortSpace`](super::PortSpace).
    pub ip: Option<IpHeader>,
    /// Up to 92 bytes, up to 56 after an `ip` header.
    pub private_data: Vec<u8>,
}

impl Connect {
    /// A reliable connection to `service_id` with everything else at its usual value: MTU 1024, one READ each way,
    /// seven retries of each kind.
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
    /// READs and ATOMICs that we can serve at once; cut to what the peer wants to issue.
    pub responder_resources: u8,
    /// READs and ATOMICs that we want to have under way; cut to what the peer can serve.
    pub initiator_depth: u8,
    /// RNR retries of the peer's queue pair, `0 ..= 7`.
    pub rnr_retry_count: u8,
    /// Code of the delay of our RNR NAKs, `0 ..= 31`; passed on to [`QpParams`].
    pub min_rnr_timer: u8,
    /// Time code between two REPs, and between two DREQs, `0 ..= 31`; `None`: as in the REQ.
    pub response_timeout: Option<u8>,
    /// REP and DREQ are sent again so many times, `0 ..= 15`; `None`: as in the REQ.
    pub max_cm_retries: Option<u8>,
    /// As [`Connect::keep_alive`].
    pub keep_alive: Option<Duration>,
    /// Up to 196 bytes.
    pub private_data: Vec<u8>,
}

impl Accept {
    /// With this queue pair, as many READs each way as the peer can have, seven RNR retries.
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
    /// Why.
    pub reason: Reason,
    /// Additional information of the reason, up to 72 bytes.
    pub info: Vec<u8>,
    /// Up to 148 bytes.
    pub private_data: Vec<u8>,
}

impl Reject {
    /// `rdma_reject`: reason 28 with private data.
    pub fn consumer(private_data: impl Into<Vec<u8>>) -> Self {
        Self { reason: Reason::CONSUMER_DEFINED, info: Vec::new(), private_data: private_data.into() }
    }
}

/// The parameters to connect a queue pair: every value that REQ and REP agreed on, mapped to our side.
///
/// To INIT: nothing of this. To RTR: `dest_qpn`, `rq_psn`, `path`, `path_mtu`, `max_dest_rd_atomic`,
/// `min_rnr_timer` (the last two of RC alone). To RTS: `sq_psn`, and of RC `timeout`, `retry_cnt`, `rnr_retry`,
/// `max_rd_atomic`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct QpParams {
    /// Service type.
    pub transport: Transport,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First sequence number we expect.
    pub rq_psn: Psn,
    /// First sequence number we send.
    pub sq_psn: Psn,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// READs and ATOMICs that we may have under way, `0 ..= 16`.
    pub max_rd_atomic: u8,
    /// READs and ATOMICs that we serve, `0 ..= 16`. With 0 the peer gets no right to READ or ATOMIC.
    pub max_dest_rd_atomic: u8,
    /// Time code of the local ACK timeout, `0 ..= 31`.
    pub timeout: u8,
    /// Transport retries, `0 ..= 7`.
    pub retry_cnt: u8,
    /// RNR retries, `0 ..= 7`.
    pub rnr_retry: u8,
    /// Code of the delay of our RNR NAKs, `0 ..= 31`.
    pub min_rnr_timer: u8,
    /// The way to the peer.
    pub path: Path,
}

impl QpParams {
    /// Whether the peer gets the right to READ and to ATOMIC (WRITE it always gets): if we serve any.
    pub const fn remote_read(&self) -> bool {
        self.max_dest_rd_atomic != 0
    }
}

/// A connection request that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The requested service.
    pub service_id: ServiceId,
    /// The way to the peer: our address first.
    pub path: Path,
    /// The header of `rdma_cm`, where the service id is one of its own.
    pub ip: Option<IpHeader>,
    /// What follows: 92 bytes, or 56 after a header.
    pub private_data: Vec<u8>,
    /// Service type.
    pub transport: Transport,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The peer's node.
    pub remote_guid: u64,
    /// READs and ATOMICs that the peer can serve at once: the most we can have under way.
    pub responder_resources: u8,
    /// READs and ATOMICs that the peer wants to have under way.
    pub initiator_depth: u8,
    /// Transport retries our queue pair is to have.
    pub retry_count: u8,
    /// RNR retries our queue pair is to have.
    pub rnr_retry_count: u8,
    /// Path MTU.
    pub mtu: Mtu,
    /// Whether the peer's queue pair does end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
}

/// An accepted request, on the active side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// Our queue pair's parameters. Bring it to RTS, then [`confirm`](super::Machine::confirm).
    pub params: QpParams,
    /// READs and ATOMICs that the peer serves.
    pub responder_resources: u8,
    /// READs and ATOMICs that the peer has under way.
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

/// What came of [`Event::CheckPeer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PeerAnswer {
    /// The peer's queue pair answered.
    Answered,
    /// It did not, as often as it was asked.
    Silent,
    /// It could not be asked: our queue pair is not connected, or is of a type that asks nothing.
    NotAsked,
}

/// How a connection that was established came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Disconnect {
    /// The peer requested it.
    ByPeer,
    /// We requested it and the peer agreed.
    Agreed,
    /// We requested it and the peer never answered; or the peer answered nothing for a while ([`Connect::keep_alive`]).
    TimedOut,
    /// The peer's REJ ended it: it never learnt that we were connected.
    Rejected(Reason),
    /// The peer's queue pair appeared in another request, and did not answer: the peer no longer has this connection.
    Stale,
    /// The peer's process, one of this host, has ended.
    PeerEnded,
}

/// The events. Events of one connection come in order; an event whose text says so ends the id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A REQ for a listener. Answer with `accept`, `reject` or `destroy`.
    ConnectRequest {
        /// Of this listener.
        listener: ListenId,
        /// The new connection.
        id: ConnId,
        /// The request.
        request: Request,
    },
    /// The peer accepted: bring the queue pair to RTS and `confirm`, or `reject`.
    ConnectResponse {
        /// The connection.
        id: ConnId,
        /// The peer's answer.
        response: Response,
    },
    /// Passive side: the peer's RTU, or [`established`](super::Machine::established). The active side is established
    /// by `confirm` and gets no event.
    Established {
        /// The connection.
        id: ConnId,
        /// The RTU's private data, 224 bytes; empty where data came first.
        private_data: Vec<u8>,
    },
    /// The peer refused. Ends the id, unless `timewait`: then [`Event::TimeWaitExit`] does.
    Rejected {
        /// The connection.
        id: ConnId,
        /// Why.
        reason: Reason,
        /// Additional information, up to 72 bytes.
        info: Vec<u8>,
        /// 148 bytes.
        private_data: Vec<u8>,
        /// Whether the queue pair rests in TIMEWAIT now.
        timewait: bool,
    },
    /// The peer did not answer our REQ or REP; or the program did not decide on the peer's REQ or REP within
    /// [`Limits::half_open_time`](super::Limits::half_open_time). Ends the id, unless `timewait`: then [`Event::TimeWaitExit`]
    /// does.
    Unreachable {
        /// The connection.
        id: ConnId,
        /// Whether the queue pair rests in TIMEWAIT now.
        timewait: bool,
    },
    /// An established connection ended. The connection is in TIMEWAIT now.
    Disconnected {
        /// The connection.
        id: ConnId,
        /// How.
        how: Disconnect,
        /// Private data of the peer's DREQ (220 bytes) or DREP (224); empty where there was none.
        private_data: Vec<u8>,
    },
    /// A message from the peer's address says that the peer does not have this established connection any more, which need not be
    /// true; or nobody has asked for a while ([`Connect::keep_alive`]). To be asked of the peer's queue pair; then
    /// [`peer_checked`](super::Machine::peer_checked). The connection goes on meanwhile.
    CheckPeer {
        /// The connection.
        id: ConnId,
        /// The way to the peer, for worlds without queue pairs, as simulations are. A queue pair knows it.
        path: Path,
        /// Our queue pair, which asks.
        qpn: Qpn,
        /// The peer's, as `path`.
        remote_qpn: Qpn,
    },
    /// Packets of the connection have died out: its queue pair's number may be used again. Ends the id. Comes after `destroy`
    /// too, for callers that hold the number back.
    TimeWaitExit {
        /// The connection.
        id: ConnId,
        /// The queue pair.
        qpn: Qpn,
    },
    /// A SIDR_REQ for a listener. Answer with `sidr_reply`.
    SidrRequest {
        /// Of this listener.
        listener: ListenId,
        /// The new exchange.
        id: SidrId,
        /// The requested service.
        service_id: ServiceId,
        /// The way to the peer: our address first.
        path: Path,
        /// The header of `rdma_cm`, where the service id is one of its own.
        ip: Option<IpHeader>,
        /// What follows: 216 bytes, or 180 after a header.
        private_data: Vec<u8>,
    },
    /// The answer to our SIDR_REQ. Ends the id.
    SidrReply {
        /// The exchange.
        id: SidrId,
        /// The peer's decision.
        status: SidrStatus,
        /// The service's queue pair.
        qpn: Qpn,
        /// Its Q_Key.
        qkey: u32,
        /// The way to it.
        path: Path,
        /// Additional information, up to 72 bytes.
        info: Vec<u8>,
        /// 136 bytes.
        private_data: Vec<u8>,
    },
    /// No answer came to our SIDR_REQ; or the program did not answer the peer's within
    /// [`Limits::half_open_time`](super::Limits::half_open_time). Ends the id.
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
    /// The way to the peer.
    pub path: Path,
    /// Times and retries.
    pub timing: Timing,
    /// The header of `rdma_cm`; must be there exactly if the service id is one of [`PortSpace`](super::PortSpace).
    pub ip: Option<IpHeader>,
    /// Up to 216 bytes, up to 180 after an `ip` header.
    pub private_data: Vec<u8>,
}

/// Parameters of [`sidr_reply`](super::Machine::sidr_reply).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReply {
    /// The decision.
    pub status: SidrStatus,
    /// The service's queue pair, if successful.
    pub qpn: Qpn,
    /// Its Q_Key, if successful ([`RDMA_UDP_QKEY`](super::RDMA_UDP_QKEY) in `rdma_cm`).
    pub qkey: u32,
    /// Additional information, up to 72 bytes.
    pub info: Vec<u8>,
    /// Up to 136 bytes.
    pub private_data: Vec<u8>,
}
