//! The effects of MADs of peers.

use super::code;
use super::config::Timing;
use super::conn::{Conn, Depths, State};
use super::counter::Counter;
use super::event::{ConnId, Disconnect, Event, Path, QpParams, Request, Response, Transport};
use super::machine::{Machine, REJ_REP, Timed, from_peer, is_host};
use super::mad::Mad;
use super::message::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu};
use super::reason::Reason;
use super::service::{IpHeader, ServiceId};
use crate::config::RD_ATOMIC_MAX;
use crate::id::{Gid, Mtu, Psn, Qpn};
use crate::time::Instant;

/// The message that an MRA is about.
const MRA_REQ: u8 = 0;
const MRA_REP: u8 = 1;

/// Whether this can be a peer's queue pair.
fn is_qp(qpn: Qpn) -> bool {
    qpn > Qpn::GSI && qpn != Qpn::MULTICAST
}

/// The header of a service of `rdma_cm`, and the private data behind it.
pub(super) fn split_header(
    service_id: ServiceId,
    private_data: &[u8],
) -> Result<(Option<IpHeader>, &[u8]), Counter> {
    if service_id.port_space().is_none() {
        return Ok((None, private_data));
    }
    let (header, rest) = private_data.split_first_chunk().ok_or(Counter::BadIpHeader)?;
    let header = IpHeader::read(header).map_err(|_| Counter::BadIpHeader)?;
    Ok((Some(header), rest))
}

/// Why a REQ begins no connection.
struct Refusal {
    counter: Counter,
    reason: Reason,
    info: Vec<u8>,
    /// A connection that the peer no longer has, by what it says.
    forgotten: Option<ConnId>,
}

impl Refusal {
    fn new(counter: Counter, reason: Reason) -> Self {
        Self { counter, reason, info: Vec::new(), forgotten: None }
    }
}

/// Received MADs.
impl Machine {
    /// A datagram that arrived at queue pair 1. `path` is as seen from here: `sgid` the address it came to, `dgid` its
    /// source; its hop limit does not matter. `mad` is the datagram's payload (without the 40 bytes of the GRH).
    pub fn handle_mad(&mut self, now: Instant, path: &Path, mad: &[u8]) {
        self.counters.count(Counter::Received);
        if let Err(counter) = self.receive(now, path, mad) {
            self.counters.count(counter);
        }
    }

    fn receive(&mut self, now: Instant, path: &Path, mad: &[u8]) -> Result<(), Counter> {
        if !is_host(&path.sgid) || !is_host(&path.dgid) {
            return Err(Counter::BadAddress);
        }
        let Mad { tid, message, .. } = Mad::decode(mad)?;
        match message {
            Message::Req(req) => self.handle_req(now, path, tid, &req),
            Message::Mra(mra) => self.handle_mra(now, path, tid, &mra),
            Message::Rej(rej) => self.handle_rej(now, path, tid, &rej),
            Message::Rep(rep) => self.handle_rep(now, path, tid, &rep),
            Message::Rtu(rtu) => self.handle_rtu(now, path, &rtu),
            Message::Dreq(dreq) => self.handle_dreq(now, path, tid, &dreq),
            Message::Drep(drep) => self.handle_drep(now, path, &drep),
            Message::SidrReq(req) => self.handle_sidr_req(now, path, tid, &req),
            Message::SidrRep(rep) => self.handle_sidr_rep(now, path, tid, &rep),
        }
    }

    /// The connection that a MAD from its peer names by our id. (A MAD that names a connection by the peer's GUID instead finds
    /// only connections with the address from which it comes.)
    fn find(&self, path: &Path, local: u32) -> Result<ConnId, Counter> {
        let id = *self.local_ids.get(&local).ok_or(Counter::UnknownId)?;
        from_peer(&self.conns[&id].mad_path, path)?;
        Ok(id)
    }

    /// The connection that a MAD from its peer names by the ids of both sides.
    fn find_both(&self, path: &Path, local: u32, remote: u32) -> Result<ConnId, Counter> {
        let id = self.find(path, local)?;
        if self.conns[&id].remote_id == remote && remote != 0 { Ok(id) } else { Err(Counter::UnknownId) }
    }

    fn handle_req(&mut self, now: Instant, path: &Path, tid: u64, req: &Req) -> Result<(), Counter> {
        if req.local_comm_id == 0 || !is_qp(req.local_qpn) || !is_host(&req.primary.local_gid) {
            return Err(Counter::BadField);
        }
        let peer = (path.dgid, req.local_ca_guid);
        if let Some(&id) = self.remote_ids.get(&(peer, req.local_comm_id))
            && self.conns[&id].began_with(tid, req)
        {
            return self.duplicate_req(id);
        }
        if let Err(refusal) = self.begin(now, path, tid, req) {
            self.refuse(path, tid, req.local_comm_id, refusal.reason, &refusal.info);
            if let Some(old) = refusal.forgotten {
                self.doubt(now, old);
            }
            return Err(refusal.counter);
        }
        Ok(())
    }

    /// Checks a new REQ, and begins a connection.
    fn begin(&mut self, now: Instant, path: &Path, tid: u64, req: &Req) -> Result<(), Refusal> {
        let transport = match (req.transport, req.extended_transport) {
            (0, 0) => Transport::Rc,
            (1, 0) => Transport::Uc,
            _ => return Err(Refusal::new(Counter::BadTransport, Reason::INVALID_TRANSPORT)),
        };
        if req.pkey & 0x7fff != 0x7fff {
            return Err(Refusal::new(Counter::BadPkey, Reason::UNSUPPORTED));
        }
        let address = req.primary.remote_gid;
        if address != path.sgid && !self.gids.contains(&address) {
            let info = path.sgid.0.to_vec();
            return Err(Refusal { info, ..Refusal::new(Counter::BadGid, Reason::INVALID_GID) });
        }
        // Nobody connects in another's name: our queue pair will send to this address.
        if req.primary.local_gid != path.dgid {
            return Err(Refusal::new(Counter::BadGid, Reason::UNSUPPORTED));
        }
        let ours = self.config.mtu;
        let Some(mtu) = Mtu::from_enum(req.path_mtu).filter(|m| *m <= ours) else {
            let info = vec![ours as u8];
            return Err(Refusal { info, ..Refusal::new(Counter::BadMtu, Reason::INVALID_MTU) });
        };
        let (ip, private_data) = split_header(req.service_id, &req.private_data)
            .map_err(|counter| Refusal::new(counter, Reason::CONSUMER_DEFINED))?;
        let asked = ip.map_or(address, |ip| Gid::from_ip(ip.dst));
        let Some(listener) = self.listeners.find(req.service_id, asked) else {
            return Err(Refusal::new(Counter::NoListener, Reason::INVALID_SERVICE_ID));
        };
        let limits = &self.config.limits;
        let no_room = || Refusal::new(Counter::NoResources, Reason::NO_RESOURCES);
        let pushed_out = self.half_open.room(limits.half_open, path.dgid).map_err(|_| no_room())?;
        if self.events_full() {
            return Err(no_room());
        }
        // The id or queue pair belongs to another connection of this peer: the peer no longer has that connection, or did not let
        // them rest long enough. Checked only for a REQ that would be accepted, so that each wrong guess of an attacker who forges
        // the peer's address takes an entry of a bounded table.
        let peer = (path.dgid, req.local_ca_guid);
        let old = self.remote_ids.get(&(peer, req.local_comm_id));
        if let Some(&old) = old.or_else(|| self.remote_qpns.get(&(peer, req.local_qpn))) {
            let refusal = Refusal::new(Counter::Stale, Reason::STALE_CONNECTION);
            return Err(Refusal { forgotten: Some(old), ..refusal });
        }
        let backlog = self.listeners.room(listener, path.dgid);
        let backlog = backlog.map_err(|_| Refusal::new(Counter::BacklogFull, Reason::NO_RESOURCES))?;
        self.make_room(now, path.dgid).map_err(|_| no_room())?;
        // One that leaves the backlog leaves the half-open ones too.
        if let Some(id) = backlog.or(pushed_out) {
            self.push_out(now, id);
        }

        let local_id = self.random.id(|id| self.local_ids.contains_key(&id));
        let deadline = now.after(self.config.limits.half_open_time);
        let qp_path = self.reply_path(&Path {
            sgid: address,
            dgid: req.primary.local_gid,
            flow_label: req.primary.flow_label,
            traffic_class: req.primary.traffic_class,
            hop_limit: 0,
            sl: req.primary.sl & 7,
        });
        let params = QpParams {
            transport,
            qpn: Qpn::default(),
            dest_qpn: req.local_qpn,
            rq_psn: Psn::new(self.random_psn()),
            sq_psn: req.starting_psn,
            path_mtu: mtu,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            timeout: match req.primary.local_ack_timeout {
                // For a queue pair 0 means no timeout at all: a lost packet, or a peer that is gone, would never be noticed. No
                // peer intends that by the smallest code of a REQ.
                0 => code::ack_timeout(Timing::default().packet_lifetime, self.config.ack_delay),
                t => t,
            },
            retry_cnt: req.retry_count,
            rnr_retry: req.rnr_retry_count,
            min_rnr_timer: 0,
            path: qp_path,
        };
        let depths = Depths {
            responder_resources: req.responder_resources.min(RD_ATOMIC_MAX),
            initiator_depth: req.initiator_depth.min(RD_ATOMIC_MAX),
        };
        let interval = code::time(req.local_response_timeout).min(self.config.limits.peer_time);
        let id = self.insert(Conn {
            state: State::ReqRcvd,
            gone: false,
            listener: Some(listener),
            local_id,
            remote_id: req.local_comm_id,
            tid,
            remote_guid: req.local_ca_guid,
            mad_path: self.reply_path(path),
            params,
            depths,
            packet_lifetime: 0,
            interval,
            retries: req.max_cm_retries,
            left: 0,
            max_wait: self.max_wait(interval, req.max_cm_retries),
            mra: false,
            deadline,
            timer: Instant::FAR,
            mad: None,
            queued: false,
            sent: false,
            hurries: false,
            ending: Disconnect::Agreed,
            doubted: false,
        });
        self.remote_ids.insert((peer, req.local_comm_id), id);
        self.remote_qpns.insert((peer, req.local_qpn), id);
        self.arm(id, deadline);
        let request = Request {
            service_id: req.service_id,
            path: qp_path,
            ip,
            private_data: private_data.to_vec(),
            transport,
            remote_qpn: req.local_qpn,
            remote_guid: req.local_ca_guid,
            responder_resources: depths.responder_resources,
            initiator_depth: depths.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            mtu,
            flow_control: req.flow_control,
            srq: req.srq,
        };
        self.event(id, Event::ConnectRequest { listener, id, request });
        Ok(())
    }

    /// The same REQ again. Before our program has decided, the peer gets an MRA; afterwards our answer has its own timer.
    fn duplicate_req(&mut self, id: ConnId) -> Result<(), Counter> {
        if self.conns[&id].state == State::ReqRcvd {
            self.send_mra(id, MRA_REQ);
        }
        Err(Counter::DuplicateReq)
    }

    /// Sends an MRA, one for each wait: a program that never decides must not keep its peer waiting for ever.
    fn send_mra(&mut self, id: ConnId, message: u8) {
        let Some(service_timeout) = self.config.mra else { return };
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| !conn.mra) else { return };
        conn.mra = true;
        let mra = Mra {
            local_comm_id: conn.local_id,
            remote_comm_id: conn.remote_id,
            message,
            service_timeout: service_timeout.min(31),
            private_data: [0; 222],
        };
        let mra = Mad::new(conn.tid, mra);
        self.send_once(id, &mra);
    }

    /// The peer no longer has this connection.
    pub(super) fn forgotten(&mut self, now: Instant, id: ConnId) {
        match self.conns[&id].state {
            State::Established => self.send_dreq(now, id, Disconnect::Stale, &[]),
            State::ReqRcvd => self.rejected(now, id, Reason::STALE_CONNECTION, &[], &[], false),
            State::RepSent | State::RepRcvd => {
                self.rejected(now, id, Reason::STALE_CONNECTION, &[], &[], true)
            }
            // In REQ sent the peer is not known yet; the others end by themselves.
            State::ReqSent | State::DreqSent | State::TimeWait => {}
        }
    }

    /// Ends a connection that was not established.
    fn rejected(
        &mut self,
        now: Instant,
        id: ConnId,
        reason: Reason,
        info: &[u8],
        private_data: &[u8],
        timewait: bool,
    ) {
        let (info, private_data) = (info.to_vec(), private_data.to_vec());
        self.event(id, Event::Rejected { id, reason, info, private_data, timewait });
        if timewait { self.time_wait(now, id) } else { self.remove(now, id) }
    }

    fn handle_mra(&mut self, now: Instant, path: &Path, tid: u64, mra: &Mra) -> Result<(), Counter> {
        let id = self.find(path, mra.remote_comm_id)?;
        let limit = self.config.limits.peer_time;
        let conn = self.conns.get_mut(&id).expect("the index names connections");
        if conn.remote_id != 0 && conn.remote_id != mra.local_comm_id {
            return Err(Counter::UnknownId);
        }
        if conn.tid != tid {
            return Err(Counter::WrongTransaction);
        }
        let expected = match conn.state {
            State::ReqSent => MRA_REQ,
            State::RepSent => MRA_REP,
            _ => return Err(Counter::WrongState),
        };
        // One MRA for each wait, within the deadline: an MRA never makes the whole wait longer.
        if mra.message != expected || conn.mra {
            return Err(Counter::WrongState);
        }
        conn.mra = true;
        let wait = code::time(mra.service_timeout).min(limit) + code::time(conn.packet_lifetime);
        let at = now.after(wait).max(conn.timer);
        self.answered(now, Timed::Conn(id));
        self.arm(id, at);
        Ok(())
    }

    fn handle_rej(&mut self, now: Instant, path: &Path, tid: u64, rej: &Rej) -> Result<(), Counter> {
        let info = rej.info.get(..usize::from(rej.info_length)).ok_or(Counter::BadField)?;
        // A peer that gave up before our answer came does not know our id, and identifies itself by its GUID.
        let guid = info.first_chunk().filter(|_| rej.reason == Reason::TIMEOUT && rej.remote_comm_id == 0);
        let id = match guid {
            Some(guid) => {
                let peer = (path.dgid, u64::from_be_bytes(*guid));
                *self.remote_ids.get(&(peer, rej.local_comm_id)).ok_or(Counter::UnknownId)?
            }
            None => self.find(path, rej.remote_comm_id)?,
        };
        let conn = &self.conns[&id];
        // Once the connection is established, the peer has our answer, and our id with it.
        if guid.is_some() && !conn.state.half_open() {
            return Err(Counter::WrongState);
        }
        let first = conn.state == State::ReqSent;
        if !first && conn.remote_id != rej.local_comm_id {
            return Err(Counter::UnknownId);
        }
        if first && conn.tid != tid {
            return Err(Counter::WrongTransaction);
        }
        let reason = rej.reason;
        let timewait = match conn.state {
            State::ReqSent => reason == Reason::STALE_CONNECTION,
            State::ReqRcvd => false,
            State::RepRcvd | State::RepSent => true,
            State::Established => {
                self.disconnected(now, id, Disconnect::Rejected(reason), Vec::new());
                return Ok(());
            }
            State::DreqSent => {
                let how = conn.ending;
                self.disconnected(now, id, how, Vec::new());
                return Ok(());
            }
            State::TimeWait => return Err(Counter::WrongState),
        };
        self.counters.count(Counter::RejectedByPeer);
        self.rejected(now, id, reason, info, &rej.private_data, timewait);
        Ok(())
    }

    fn handle_rep(&mut self, now: Instant, path: &Path, tid: u64, rep: &Rep) -> Result<(), Counter> {
        let id = self.find(path, rep.remote_comm_id)?;
        let conn = &self.conns[&id];
        if conn.state != State::ReqSent {
            return self.duplicate_rep(id, rep);
        }
        if conn.tid != tid {
            return Err(Counter::WrongTransaction);
        }
        if rep.local_comm_id == 0 || !is_qp(rep.local_qpn) {
            return Err(Counter::BadField);
        }
        let far_end = ((path.dgid, rep.local_ca_guid), rep.local_qpn);
        if let Some(&old) = self.remote_qpns.get(&far_end) {
            // Two connections cannot have one queue pair at their other end.
            let conn = self.conns.get_mut(&id).expect("it was found");
            conn.remote_id = rep.local_comm_id;
            let rej = conn.rej(REJ_REP, Reason::STALE_CONNECTION, &[], &[]);
            self.send_once(id, &rej);
            self.doubt(now, old);
            self.rejected(now, id, Reason::STALE_CONNECTION, &[], &[], true);
            return Err(Counter::Stale);
        }
        let ack_delay = rep.target_ack_delay;
        let conn = self.conns.get_mut(&id).expect("it was found");
        conn.remote_id = rep.local_comm_id;
        conn.remote_guid = rep.local_ca_guid;
        conn.mad = None;
        let Depths { responder_resources, initiator_depth } = conn.depths;
        conn.params = QpParams {
            dest_qpn: rep.local_qpn,
            sq_psn: rep.starting_psn,
            max_rd_atomic: rep.responder_resources.min(initiator_depth),
            max_dest_rd_atomic: rep.initiator_depth.min(responder_resources),
            timeout: code::ack_timeout(conn.packet_lifetime, ack_delay),
            rnr_retry: rep.rnr_retry_count,
            ..conn.params
        };
        let params = conn.params;
        conn.mra = false;
        self.remote_qpns.insert(far_end, id);
        self.enter(now, id, State::RepRcvd);
        self.arm(id, now.after(self.config.limits.half_open_time));
        let response = Response {
            params,
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            rnr_retry_count: rep.rnr_retry_count,
            flow_control: rep.flow_control,
            srq: rep.srq,
            private_data: rep.private_data.to_vec(),
        };
        self.event(id, Event::ConnectResponse { id, response });
        Ok(())
    }

    fn duplicate_rep(&mut self, id: ConnId, rep: &Rep) -> Result<(), Counter> {
        let conn = &self.conns[&id];
        if conn.remote_id != rep.local_comm_id {
            return Err(Counter::UnknownId);
        }
        match conn.state {
            State::RepRcvd => self.send_mra(id, MRA_REP),
            // The RTU was lost: sends it again. The passive side has none.
            State::Established => self.send_kept(Timed::Conn(id)),
            _ => return Err(Counter::WrongState),
        }
        Err(Counter::DuplicateRep)
    }

    fn handle_rtu(&mut self, now: Instant, path: &Path, rtu: &Rtu) -> Result<(), Counter> {
        let id = self.find_both(path, rtu.remote_comm_id, rtu.local_comm_id)?;
        match self.conns[&id].state {
            State::RepSent => {
                self.accepted(now, id, rtu.private_data.to_vec());
                Ok(())
            }
            State::Established => Err(Counter::DuplicateRtu),
            _ => Err(Counter::WrongState),
        }
    }

    fn handle_dreq(&mut self, now: Instant, path: &Path, tid: u64, dreq: &Dreq) -> Result<(), Counter> {
        let answer = Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: [0; 224],
        };
        let answer = Mad::new(tid, answer);
        let Ok(id) = self.find_both(path, dreq.remote_comm_id, dreq.local_comm_id) else {
            // The sender must be able to end its connection, whether or not we have ours; the answer does not reveal which.
            self.answer(self.reply_path(path), &answer);
            return Err(Counter::DreqMirrored);
        };
        let conn = &self.conns[&id];
        if conn.params.qpn != dreq.remote_qpn {
            return Err(Counter::WrongQpn);
        }
        match conn.state {
            State::RepSent => {
                // Only an established side disconnects: the RTU was lost.
                self.accepted(now, id, Vec::new());
            }
            State::Established | State::DreqSent => {}
            State::TimeWait => {
                self.keep_and_send(id, &answer);
                return Err(Counter::DuplicateDreq);
            }
            State::ReqSent | State::RepRcvd | State::ReqRcvd => return Err(Counter::WrongState),
        }
        self.disconnected(now, id, Disconnect::ByPeer, dreq.private_data.to_vec());
        self.keep_and_send(id, &answer);
        Ok(())
    }

    fn handle_drep(&mut self, now: Instant, path: &Path, drep: &Drep) -> Result<(), Counter> {
        let id = self.find_both(path, drep.remote_comm_id, drep.local_comm_id)?;
        let conn = &self.conns[&id];
        if conn.state != State::DreqSent {
            return Err(Counter::WrongState);
        }
        let how = conn.ending;
        self.disconnected(now, id, how, drep.private_data.to_vec());
        Ok(())
    }
}
