//! One connection: its state, and what REQ and REP said.

use core::time::Duration;

use super::MAD_LEN;
use super::event::{Disconnect, ListenId, Path, QpParams};
use super::machine::Peer;
use super::mad::Mad;
use super::message::{Rej, Req, Rtu, padded};
use super::reason::Reason;
use crate::time::Instant;

/// State of a connection (IBA 12.9.7), as far as its timer or an event tells it from others. MRAs change the timer alone.
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
    /// Whether a stranger can bring a connection here.
    pub const fn half_open(self) -> bool {
        matches!(self, Self::ReqRcvd | Self::RepSent)
    }
    /// Whether a connection waits here for somebody, and gives up at its deadline.
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
    /// The program gave it up: no events but the last.
    pub gone: bool,
    /// Whose backlog it counts in, while in `ReqRcvd`.
    pub listener: Option<ListenId>,
    pub local_id: u32,
    /// 0 until known.
    pub remote_id: u32,
    /// Transaction of the REQ, or of our DREQ.
    pub tid: u64,
    /// 0 until known.
    pub remote_guid: u64,
    /// Where MADs go.
    pub mad_path: Path,
    /// What the queue pair needs, as far as known: `qpn` 0 before accept, `dest_qpn` 0 before the REP.
    pub params: QpParams,
    /// Ours on the active side, the REQ's on the passive side.
    pub depths: Depths,
    /// Time code of the path's packet lifetime; active side.
    pub packet_lifetime: u8,
    /// Between two sends of a request.
    pub interval: Duration,
    /// Requests are sent again so many times.
    pub retries: u8,
    /// So many times from now.
    pub left: u8,
    /// How long a request is waited for with all its repetitions. An MRA spares repetitions; the wait ends all the same.
    pub patience: Duration,
    /// An MRA belongs to this wait: the peer's in states that wait for the peer, ours where it waits for us.
    pub mra: bool,
    /// When it is given up, in a state that [`State::has_deadline`] names.
    pub deadline: Instant,
    /// When its timer fires; `FAR`: never.
    pub timer: Instant,
    /// What the timer sends again; in `Established` on the active side, the RTU.
    pub mad: Option<Box<[u8; MAD_LEN]>>,
    /// How `DreqSent` ends when the peer agrees.
    pub ending: Disconnect,
}

impl Conn {
    /// Who is at the other end, once its GUID is known.
    pub const fn peer(&self) -> Peer {
        (self.mad_path.dgid, self.remote_guid)
    }
    /// Whether a REQ is the one that began this connection, once more.
    pub fn began_with(&self, tid: u64, req: &Req) -> bool {
        self.tid == tid && self.params.dest_qpn == req.local_qpn && self.state != State::TimeWait
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
