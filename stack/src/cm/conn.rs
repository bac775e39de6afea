//! One connection: its state, and the parameters of REQ and REP.

use core::time::Duration;

use super::MAD_LEN;
use super::event::{Disconnect, ListenId, Path, QpParams};
use super::machine::Peer;
use super::mad::Mad;
use super::message::{Dreq, Rej, Req, Rtu, padded};
use super::reason::Reason;
use crate::time::Instant;

/// State of a connection (IBA 12.9.7). States that differ only in an MRA are one here: an MRA changes the timer alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Active: REQ sent.
    ReqSent,
    /// Active: REP received, the queue pair is being brought to RTS.
    RepRcvd,
    /// Passive: REQ received, the program decides.
    ReqRcvd,
    /// Passive: REP sent.
    RepSent,
    /// Established.
    Established,
    /// DREQ sent.
    DreqSent,
    /// Over; packets may still be under way.
    TimeWait,
}

impl State {
    /// The name in errors.
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
    /// Whether a stranger can bring a connection into this state.
    pub const fn half_open(self) -> bool {
        matches!(self, Self::ReqRcvd | Self::RepSent)
    }
    /// Whether a connection waits here for the peer or the program, and gives up at its deadline.
    pub const fn has_deadline(self) -> bool {
        self.half_open() || matches!(self, Self::ReqSent | Self::DreqSent)
    }
}

/// READs and ATOMICs that a side serves and wants to have under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depths {
    pub responder_resources: u8,
    pub initiator_depth: u8,
}

pub(super) struct Conn {
    pub state: State,
    /// The program gave it up: no event comes but TIMEWAIT exit.
    pub gone: bool,
    /// The listener whose backlog it counts in, while in `ReqRcvd`.
    pub listener: Option<ListenId>,
    pub local_id: u32,
    /// 0 until known.
    pub remote_id: u32,
    /// Transaction of the REQ, or of our DREQ.
    pub tid: u64,
    /// 0 until known.
    pub remote_guid: u64,
    /// Where MADs are sent.
    pub mad_path: Path,
    /// The queue pair's parameters, as far as known: `qpn` 0 before accept, `dest_qpn` 0 before the REP.
    pub params: QpParams,
    /// On the active side ours, on the passive side those of the REQ.
    pub depths: Depths,
    /// Time code of the path's packet lifetime; active side.
    pub packet_lifetime: u8,
    /// Between two sends of a request.
    pub interval: Duration,
    /// How often a request is repeated.
    pub retries: u8,
    /// Repetitions left.
    pub left: u8,
    /// How long a request waits for its answer, with all its repetitions. An MRA saves repetitions; the wait ends all the same.
    pub max_wait: Duration,
    /// Whether this wait has had its MRA: from the peer in states that wait for the peer, from us where the peer waits.
    pub mra: bool,
    /// When it is given up; counts only in a state with [`State::has_deadline`].
    pub deadline: Instant,
    /// When its timer fires; `FAR`: never.
    pub timer: Instant,
    /// The MAD that is kept: the timer repeats it, or a duplicate of what it answers does (the RTU, the DREP).
    pub mad: Option<Box<[u8; MAD_LEN]>>,
    /// It waits to be sent.
    pub queued: bool,
    /// It was sent once.
    pub sent: bool,
    /// Our process ends: the interval begins short, and grows.
    pub hurries: bool,
    /// How `DreqSent` ends when the peer agrees.
    pub ending: Disconnect,
    /// The peer is being asked whether it still has it; in `Established`.
    pub asked: Option<Asked>,
    /// How often the peer is asked where nobody doubts; `None`: never.
    pub keep_alive: Option<Duration>,
    /// How often it has answered nothing since it answered last.
    pub silences: u8,
}

/// Why a peer is asked whether it still has a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// Somebody says that it has not.
    Doubted,
    /// Nobody has asked for a while.
    ToKeepAlive,
}

impl Conn {
    /// A connection that begins: it has sent nothing, waits for nothing, and no timer runs.
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
    /// The peer, once its GUID is known.
    pub const fn peer(&self) -> Peer {
        (self.mad_path.dgid, self.remote_guid)
    }
    /// Whether a REQ repeats the one that began this connection.
    pub fn began_with(&self, tid: u64, req: &Req) -> bool {
        self.tid == tid && self.params.dest_qpn == req.local_qpn && self.state != State::TimeWait
    }
    /// Keeps a MAD, in place of the one before.
    pub fn keep(&mut self, mad: &Mad) {
        self.mad = Some(Box::new(mad.encode()));
        self.sent = false;
    }
    /// A REJ of this side's.
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
    /// A DREQ, of this transaction.
    pub fn dreq(&self, tid: u64, private_data: &[u8]) -> Mad {
        let dreq = Dreq {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            remote_qpn: self.params.dest_qpn,
            private_data: padded(private_data),
        };
        Mad::new(tid, dreq)
    }
    /// The RTU.
    pub fn rtu(&self, private_data: &[u8]) -> Mad {
        let rtu = Rtu {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            private_data: padded(private_data),
        };
        Mad::new(self.tid, rtu)
    }
}
