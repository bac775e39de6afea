//! How a queue begins: the connection request, then Connect.

use core::net::SocketAddr;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros};

use crate::admin::Controller;
use crate::data::{Need, from_host};
use crate::limits;
use crate::status::{Fault, Status};
use crate::target::{Joined, Place, Target};
use crate::time::Instant;
use crate::wire::Sqe;
use crate::wire::cm::{RejectReason, ReplyData, RequestData};
use crate::wire::fabrics::{self, ConnectCommand, ConnectData, ConnectField, fctype};

use super::slots::{Connecting, Slots, Stage};
use super::{IoQueue, Queue, Role, Step};

/// A connection that is to be accepted.
#[derive(Debug)]
pub struct Accepted {
    /// Its queue.
    pub queue: Queue,
    /// Private data of the reply.
    pub reply: ReplyData,
    /// Receives that must be posted before the reply is sent, and be kept posted: as many commands may come.
    pub receives: u16,
    /// Responses that may be on their way at a time: the host has posted as many receives, and posts one anew when it has
    /// taken a response. With fewer than `receives`, responses wait for acknowledgements.
    pub sends: u16,
}

impl Queue {
    /// Judges a connection request of a host that arrived at `port` of `target`, on address `local`, by its private data.
    /// Anyone may connect: the program bounds how many connections there are.
    ///
    /// # Errors
    /// The reason to refuse it, which goes into the private data of the reject.
    pub fn accept(
        target: &Target,
        now: Instant,
        port: u16,
        local: SocketAddr,
        private: &[u8],
    ) -> Result<Accepted, RejectReason> {
        let (request, _) = RequestData::read_from_prefix(private).map_err(|_| RejectReason::Length)?;
        if request.format.get() != 0 {
            return Err(RejectReason::Format);
        }
        let (qid, entries) = (request.qid.get(), request.host_sends.get().saturating_add(1));
        if qid > target.settings().io_queues {
            return Err(RejectReason::QueueId);
        }
        let most = if qid == 0 { limits::ADMIN_ENTRIES } else { target.settings().queue_entries };
        if entries < 2 || entries > most {
            return Err(RejectReason::HostSends);
        }
        let sends = request.host_receives.get();
        if sends == 0 {
            return Err(RejectReason::HostReceives);
        }
        // Older hosts leave the number of the controller 0, which none has.
        let cntlid = request.cntlid.get();
        if qid != 0 && cntlid != 0 && !target.has_controller(cntlid) {
            return Err(RejectReason::ControllerId);
        }
        // Requests for events wait long, and come on top of the commands that the host has entries for.
        let receives = if qid == 0 { entries + limits::EVENT_REQUESTS as u16 } else { entries };
        let queue = Self {
            target: target.clone(),
            place: Place { port, local },
            qid,
            entries,
            sq_head: 0,
            no_flow_control: false,
            slots: Slots::new(receives),
            role: Role::New { since: now },
            end: None,
        };
        let reply = ReplyData { receives: U16::new(receives), ..ReplyData::new_zeroed() };
        Ok(Accepted { queue, reply, receives, sends })
    }

    /// The first command, which must be Connect.
    pub(super) fn connect_command(
        &mut self,
        sqe: &Sqe,
        len: usize,
        slot: u16,
    ) -> Result<Step<'static>, Fault> {
        let command = ConnectCommand::of(sqe);
        if sqe.opcode != fabrics::OPCODE || command.fctype != fctype::CONNECT {
            return Err(Status::CommandSequenceError.into());
        }
        if command.format.get() != 0 {
            return Err(Status::ConnectFormat.into());
        }
        // The connection request has said both.
        if command.qid.get() != self.qid {
            return Err(ConnectField::QueueId.into());
        }
        let size = command.sqsize.get();
        if size == 0 || size >= self.entries {
            return Err(ConnectField::QueueSize.into());
        }
        let in_capsule = if self.qid == 0 { 0 } else { self.target.settings().in_capsule };
        let from = from_host(&sqe.sgl, Need::Exactly(ConnectData::LEN as u32), len, in_capsule)?;
        let connecting = Connecting {
            entries: size + 1,
            no_flow_control: command.attributes & ConnectCommand::NO_FLOW_CONTROL != 0,
            kato_ms: command.kato_ms.get(),
        };
        Ok(Step::Fetch(self.slots.wait(slot, Stage::Connect(connecting)), from))
    }

    /// The data of Connect have come. The result is the controller's number.
    pub(super) fn connect(&mut self, now: Instant, command: Connecting, data: &[u8]) -> Result<u64, Fault> {
        let (data, _) = ConnectData::ref_from_prefix(data).map_err(|_| Status::InternalError)?;
        // A second Connect may have been under way.
        if !matches!(self.role, Role::New { .. }) {
            return Err(Status::CommandSequenceError.into());
        }
        let (role, cntlid) = if self.qid == 0 {
            let association = self.target.connect_admin(self.place, data)?;
            let cntlid = association.cntlid;
            let target = self.target.clone();
            let controller = Controller::new(now, target, association, self.place, command.kato_ms);
            (Role::Admin(Box::new(controller)), cntlid)
        } else {
            let Joined { association, live, life } = self.target.connect_io(self.qid, data)?;
            let cntlid = association.cntlid;
            let (snapshot, counters) = (live.snapshot(), live.counters.join());
            association.note_traffic();
            (Role::Io(IoQueue { qid: self.qid, association, life, live, snapshot, counters }), cntlid)
        };
        self.role = role;
        // Connect may have fewer entries than the connection request.
        self.entries = command.entries;
        self.sq_head %= self.entries;
        self.no_flow_control = command.no_flow_control;
        Ok(cntlid as u64)
    }
}
