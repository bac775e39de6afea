//! One connection: its state, the parameters of REQ and REP, and the MADs that name it.

use core::time::Duration;

use super::MAD_LEN;
use super::event::{Disconnect, ListenId, Path, QpParams};
use super::machine::Peer;
use super::mad::Mad;
use super::message::{Dreq, Rej, Req, Rtu, padded};
use super::reason::Reason;
use crate::time::Instant;

/// State of a connection (IBA 12.9.7). The specification's separate states for a sent or received MRA are left out: an MRA changes only
/// the timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Active: REQ sent.
    ReqSent,
    /// Active: REP received. The program brings the queue pair to RTS.
    RepRcvd,
    /// Passive: REQ received. The program has to accept or reject it.
    ReqRcvd,
    /// Passive: REP sent.
    RepSent,
    /// Established.
    Established,
    /// DREQ sent.
    DreqSent,
    /// Ended; packets of the connection may still be in the network.
    TimeWait,
}

impl State {
    /// The name of the state in error messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReqSent => "REQ sent",
            Self::RepRcvd => "REP received",
            Self::ReqRcvd => "REQ received",
            Self::RepSent => "REP sent",
            Self::Established => "established",
            Self::DreqSent => "DREQ sent",
            Self::TimeWait => "TIMEWAIT",
        }
    }
    /// Whether a REQ from any host can bring a connection into this state.
    pub const fn half_open(self) -> bool {
        matches!(self, Self::ReqRcvd | Self::RepSent)
    }
    /// Whether a connection waits here for the peer or the program, and gives up at its deadline.
    pub const fn has_deadline(self) -> bool {
        self.half_open() || matches!(self, Self::ReqSent | Self::DreqSent)
    }
}

/// Outstanding READs and ATOMICs of one side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depths {
    /// Those that it can serve.
    pub responder_resources: u8,
    /// Those that it wants to issue.
    pub initiator_depth: u8,
}

/// A connection of the machine.
pub(super) struct Conn {
    pub state: State,
    /// The program destroyed it: its only further event is [`Event::TimeWaitExit`](super::Event::TimeWaitExit).
    pub gone: bool,
    /// The listener whose backlog it occupies, in `ReqRcvd`.
    pub listener: Option<ListenId>,
    /// Our communication ID.
    pub local_id: u32,
    /// The peer's communication ID; 0 until known.
    pub remote_id: u32,
    /// Transaction ID of the REQ, or of our DREQ.
    pub tid: u64,
    /// The peer's node GUID; 0 until known.
    pub remote_guid: u64,
    /// The path on which MADs are sent.
    pub mad_path: Path,
    /// The queue pair's parameters, as far as known: `qpn` is 0 before accept, `dest_qpn` is 0 before the REP.
    pub params: QpParams,
    /// On the active side our own, on the passive side those of the REQ.
    pub depths: Depths,
    /// Packet lifetime of the path, as a time code of the specification. Active side only.
    pub packet_lifetime: u8,
    /// Time between two transmissions of a request.
    pub interval: Duration,
    /// How often a request is retransmitted.
    pub retries: u8,
    /// Retransmissions left.
    pub left: u8,
    /// How long a request waits for its answer, over all retransmissions. An MRA delays retransmissions but does not prolong this.
    pub max_wait: Duration,
    /// Whether the MRA of this wait was sent or received: received where we wait for the peer, sent where the peer waits for us.
    pub mra: bool,
    /// When the connection attempt or its end times out. Used only in states with [`State::has_deadline`].
    pub deadline: Instant,
    /// When its timer fires; [`Instant::FAR`]: never.
    pub timer: Instant,
    /// The MAD that may be sent again: by the timer, or when a duplicate arrives of the MAD that it answers (an RTU or DREP).
    pub mad: Option<Box<[u8; MAD_LEN]>>,
    /// Whether `mad` waits to be sent.
    pub queued: bool,
    /// Whether `mad` was sent at least once.
    pub sent: bool,
    /// Whether its DREQ is urgent because our process ends: `interval` begins short and doubles.
    pub hurries: bool,
    /// What the program is told when `DreqSent` ends with an answer of the peer.
    pub ending: Disconnect,
    /// Why the peer is being asked whether it still has the connection; `None` if it is not being asked. In `Established`.
    pub asked: Option<Asked>,
    /// Interval at which the peer is asked whether it still has the connection; `None`: never.
    pub keep_alive: Option<Duration>,
    /// Keep-alive checks in a row that the peer has not answered.
    pub silences: u8,
}

/// Why a peer is asked whether it still has a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// A message indicates that it no longer has it.
    Doubted,
    /// It was not asked for the keep-alive interval.
    ToKeepAlive,
}

impl Conn {
    /// A new connection, which has sent nothing and whose timer is off.
    pub const fn new(
        state: State,
        local_id: u32,
        tid: u64,
        mad_path: Path,
        params: QpParams,
        depths: Depths,
    ) -> Self {
        Self {
            state,
            gone: false,
            listener: None,
            local_id,
            remote_id: 0,
            tid,
            remote_guid: 0,
            mad_path,
            params,
            depths,
            packet_lifetime: 0,
            interval: Duration::ZERO,
            retries: 0,
            left: 0,
            max_wait: Duration::ZERO,
            mra: false,
            deadline: Instant::FAR,
            timer: Instant::FAR,
            mad: None,
            queued: false,
            sent: false,
            hurries: false,
            ending: Disconnect::Agreed,
            asked: None,
            keep_alive: None,
            silences: 0,
        }
    }
    /// The peer: its address and node GUID (0 until known).
    pub const fn peer(&self) -> Peer {
        (self.mad_path.dgid, self.remote_guid)
    }
    /// Whether a REQ is a duplicate of the one that began this connection.
    pub fn began_with(&self, tid: u64, req: &Req) -> bool {
        self.tid == tid && self.params.dest_qpn == req.local_qpn && self.state != State::TimeWait
    }
    /// Stores a MAD for (re)transmission, in place of the previous one.
    pub fn keep(&mut self, mad: &Mad) {
        self.mad = Some(Box::new(mad.encode()));
        self.sent = false;
    }
    /// A REJ from this side, which rejects a message of type `message`.
    pub fn rej(&self, message: u8, reason: Reason, info: &[u8], private_data: &[u8]) -> Mad {
        let rej = Rej {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            message,
            info_length: info.len() as u8,
            reason,
            info: padded(info),
            private_data: padded(private_data),
        };
        Mad::new(self.tid, rej)
    }
    /// A DREQ with this transaction ID.
    pub fn dreq(&self, tid: u64, private_data: &[u8]) -> Mad {
        let dreq = Dreq {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            remote_qpn: self.params.dest_qpn,
            private_data: padded(private_data),
        };
        Mad::new(tid, dreq)
    }
    /// An RTU.
    pub fn rtu(&self, private_data: &[u8]) -> Mad {
        let rtu = Rtu {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            private_data: padded(private_data),
        };
        Mad::new(self.tid, rtu)
    }
}
