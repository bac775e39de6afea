//! Handling of received MADs, except REQ (in `request`) and SIDR messages (in `sidr`).

use super::code;
use super::conn::{Depths, State};
use super::counter::Counter;
use super::event::{ConnId, Disconnect, Event, Path, QpParams, Response};
use super::machine::{Machine, REJ_REP, Timed, from_peer, is_host};
use super::mad::Mad;
use super::message::{Drep, Dreq, Message, Mra, Rej, Rep, Rtu};
use super::reason::Reason;
use crate::id::Qpn;
use crate::time::Instant;

/// Which message an MRA answers.
pub(super) const MRA_REQ: u8 = 0;
const MRA_REP: u8 = 1;

/// Whether a connection can have a queue pair with this number.
pub(super) fn is_qp(qpn: Qpn) -> bool {
    qpn > Qpn::GSI && qpn != Qpn::MULTICAST
}

/// Received MADs.
impl Machine {
    /// Handles a datagram that arrived at queue pair 1. In `path`, `sgid` is the address at which it arrived and `dgid` its source; the hop
    /// limit is not used. `mad` is the payload of the datagram, without the 40 bytes of the GRH.
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

    /// Finds the connection with our communication ID `local`, if the MAD comes from its peer.
    fn find(&self, path: &Path, local: u32) -> Result<ConnId, Counter> {
        let id = *self.local_ids.get(&local).ok_or(Counter::UnknownId)?;
        from_peer(&self.conns[&id].mad_path, path)?;
        Ok(id)
    }

    /// Finds the connection with the communication IDs of both sides, if the MAD comes from its peer.
    fn find_both(&self, path: &Path, local: u32, remote: u32) -> Result<ConnId, Counter> {
        let id = self.find(path, local)?;
        if self.conns[&id].remote_id == remote && remote != 0 { Ok(id) } else { Err(Counter::UnknownId) }
    }

    /// Sends an MRA, if it is configured. Only one is sent for each wait: a program that never decides must not keep its peer waiting for
    /// ever.
    pub(super) fn send_mra(&mut self, id: ConnId, message: u8) {
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

    /// Ends a connection that the peer no longer has.
    pub(super) fn forgotten(&mut self, now: Instant, id: ConnId) {
        match self.conns[&id].state {
            State::Established => self.send_dreq(now, id, Disconnect::Stale, &[]),
            State::ReqRcvd => self.rejected(now, id, Reason::STALE_CONNECTION, &[], &[], false),
            State::RepSent | State::RepRcvd => {
                self.rejected(now, id, Reason::STALE_CONNECTION, &[], &[], true)
            }
            // In `ReqSent` the peer's ID is not known yet; the other two end by themselves.
            State::ReqSent | State::DreqSent | State::TimeWait => {}
        }
    }

    /// Ends a connection that was not established, because it was rejected.
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
        // Only one MRA counts for each wait. It never moves the deadline.
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
        // A peer that gave up before it received our answer does not know our ID, and identifies itself by its GUID.
        let guid = info.first_chunk().filter(|_| rej.reason == Reason::TIMEOUT && rej.remote_comm_id == 0);
        let id = match guid {
            Some(guid) => {
                let peer = (path.dgid, u64::from_be_bytes(*guid));
                *self.remote_ids.get(&(peer, rej.local_comm_id)).ok_or(Counter::UnknownId)?
            }
            None => self.find(path, rej.remote_comm_id)?,
        };
        let conn = &self.conns[&id];
        // In an established connection the peer has received our answer, and with it our ID.
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
            // Two connections cannot lead to the same queue pair of the peer.
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
            // The RTU was lost: send it again. (The passive side sent none, so this does nothing there.)
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
            // The sender must be able to end its connection even if we no longer have it. The answer does not reveal whether we do.
            self.answer(self.reply_path(path), &answer);
            return Err(Counter::DreqMirrored);
        };
        let conn = &self.conns[&id];
        if conn.params.qpn != dreq.remote_qpn {
            return Err(Counter::WrongQpn);
        }
        match conn.state {
            State::RepSent => {
                // The peer disconnects, so it was established there: the RTU was lost.
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
