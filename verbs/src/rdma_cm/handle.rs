//! Handles events of the connection management machine: updates identifiers and their queue pairs, and queues events for the program.

use std::net::{IpAddr, SocketAddr};

use stack::device::cm::{
    Accept, ConnId, Disconnect, Event, Full, IpHeader, ListenId, Path, PeerAnswer, Reason, Reject, Request,
    Response, SidrId, SidrReply, SidrStatus, Transport,
};
use stack::device::{Device, Gid, Instant, QpType};

use super::error::CmError;
use super::event::{CmEventType, EventData, UdPeer};
use super::farewell;
use super::param::{CmOptions, PeerParam};
use super::path_mtu::fits_way_back;
use super::queue::{Queued, number};
use super::record::{Id, refusal};
use super::refusal::Refusal;
use super::service::{State, frames_taken};
use super::state::IdState;
use crate::errno::ETIMEDOUT;
use crate::error::VerbsError;

/// The parameters of a peer that accepted a connection.
fn of_response(r: &Response) -> PeerParam {
    PeerParam {
        responder_resources: r.initiator_depth,
        initiator_depth: r.responder_resources,
        flow_control: r.flow_control,
        retry_count: 0,
        rnr_retry_count: r.rnr_retry_count,
        srq: r.srq,
        qp_num: r.params.dest_qpn.get(),
    }
}

/// The parameters of a peer that requests a connection.
fn of_request(r: &Request) -> PeerParam {
    PeerParam {
        responder_resources: r.initiator_depth,
        initiator_depth: r.responder_resources,
        flow_control: r.flow_control,
        retry_count: r.retry_count,
        rnr_retry_count: r.rnr_retry_count,
        srq: r.srq,
        qp_num: r.remote_qpn.get(),
    }
}

impl State {
    /// Handles an event of the machine.
    pub(super) fn handle_event(&mut self, device: &Device, now: Instant, event: Event) {
        match event {
            Event::ConnectRequest { listener, id, request } => {
                self.request(device, now, listener, id, request)
            }
            Event::ConnectResponse { id, response } => self.response(device, now, id, response),
            Event::Established { id, private_data } => {
                let number = self.of(id);
                if let Some(number) = number
                    && let Some(record) = self.ids.get_mut(&number)
                    && record.state == IdState::Accepting
                {
                    record.state = IdState::Connected;
                    self.accepting.remove(&number);
                    self.make_farewell_ready(device, number, id);
                    self.raise(
                        number,
                        EventData { private_data, ..EventData::new(CmEventType::Established) },
                    );
                }
            }
            Event::Rejected { id, reason, info, private_data, timewait } => {
                let asked = self.of(id).and_then(|number| self.ids.get(&number)).map(|id| id.mtu(device));
                let refusal = Refusal::rej(reason, &info, asked);
                if !self.ask_again(now, id, &refusal) {
                    let event = EventData { private_data, ..EventData::refused(refusal) };
                    self.ended(now, id, event, !timewait);
                }
            }
            Event::Unreachable { id, timewait } => {
                self.ended(now, id, EventData::status(CmEventType::Unreachable, -ETIMEDOUT), !timewait);
            }
            Event::Disconnected { id, how, private_data } => {
                let event = match how {
                    Disconnect::TimedOut => EventData::status(CmEventType::Disconnected, -ETIMEDOUT),
                    Disconnect::Rejected(reason) => EventData::refused(Refusal::rej(reason, &[], None)),
                    Disconnect::ByPeer | Disconnect::Agreed | Disconnect::Stale | Disconnect::PeerEnded => {
                        EventData::new(CmEventType::Disconnected)
                    }
                };
                self.ended(now, id, EventData { private_data, ..event }, false);
            }
            Event::CheckPeer { id, qpn, .. } => match device.check_peer(qpn) {
                Ok(check) => self.checks.push((id, check)),
                // The peer cannot be asked. The connection continues as if it had answered.
                Err(_) => self.machine.peer_checked(now, id, PeerAnswer::Answered),
            },
            Event::TimeWaitExit { id, .. } => {
                if let Some(number) = self.conns.remove(&id) {
                    if let Some(record) = self.ids.get_mut(&number) {
                        record.conn = None;
                    }
                    self.raise(number, EventData::new(CmEventType::TimewaitExit));
                }
            }
            Event::SidrRequest { listener, id, path, ip, private_data, .. } => {
                self.sidr_request(now, listener, id, path, ip, private_data);
            }
            Event::SidrReply { id, status, qpn, qkey, path, private_data, .. } => {
                let Some(number) = self.sidrs.remove(&id) else { return };
                let event = if status == SidrStatus::SUCCESS {
                    let ud = UdPeer { path, qp_num: qpn.get(), qkey };
                    EventData { ud: Some(ud), ..EventData::new(CmEventType::Established) }
                } else {
                    EventData::refused(Refusal::sidr(status))
                };
                self.sidr_ended(now, number, EventData { private_data, ..event });
            }
            Event::SidrUnreachable { id } => {
                if let Some(number) = self.sidrs.remove(&id) {
                    self.sidr_ended(now, number, EventData::status(CmEventType::Unreachable, -ETIMEDOUT));
                }
            }
        }
    }

    /// Prepares the message that tells the peer of an established connection if a signal ends the process.
    pub(super) fn make_farewell_ready(&mut self, device: &Device, number: u64, conn: ConnId) {
        let message = self.machine.farewell(conn).and_then(|dreq| device.exit_message(&dreq.path, &dreq.mad));
        if let Some(id) = self.ids.get_mut(&number) {
            id.farewell = message.and_then(farewell::keep);
        }
    }

    /// The identifier of a connection.
    fn of(&self, conn: ConnId) -> Option<u64> {
        self.conns.get(&conn).copied()
    }

    /// Handles the end of a connection, or a failure to connect. `gone` says that the machine has forgotten the connection.
    fn ended(&mut self, now: Instant, conn: ConnId, event: EventData, gone: bool) {
        let Some(number) = self.of(conn) else { return };
        if let Some(id) = self.ids.get_mut(&number) {
            id.qp_to_err();
            id.asked = None;
            id.farewell = None;
            if gone {
                id.conn = None;
            }
        }
        if gone {
            self.conns.remove(&conn);
        }
        self.accepting.remove(&number);
        self.over(now, number, IdState::Disconnected, event);
    }

    /// Handles the end of a SIDR exchange: the peer's queue pair is known, or the request failed.
    fn sidr_ended(&mut self, now: Instant, number: u64, event: EventData) {
        if let Some(id) = self.ids.get_mut(&number) {
            id.sidr = None;
        }
        let found = event.what == CmEventType::Established;
        let state = if found { IdState::Connected } else { IdState::Disconnected };
        self.over(now, number, state, event);
    }

    /// Reports the end of an exchange to the program. If the exchange is a request that the program has not fetched, removes it instead.
    pub(super) fn over(&mut self, now: Instant, number: u64, state: IdState, event: EventData) {
        if self.ids.get(&number).is_some_and(|id| self.queues.holds_request(id.queue, number)) {
            drop(self.remove(now, number));
            return;
        }
        if let Some(id) = self.ids.get_mut(&number) {
            id.state = state;
        }
        self.raise(number, event);
    }

    /// Chooses the listening identifier for a request of a host. If its backlog is full, the oldest request of another host that has more
    /// requests there is refused instead.
    ///
    /// # Errors
    /// The reason to refuse the request.
    fn listener_for(
        &mut self,
        now: Instant,
        listen: ListenId,
        host: Gid,
        dst: IpAddr,
        qp_type: QpType,
    ) -> Result<u64, Reason> {
        let key = self.listens.get(&listen).ok_or(Reason::INVALID_SERVICE_ID)?;
        let ids = self.listeners.get(key).map_or(&[][..], |(_, ids)| ids);
        let fit = |n: &&u64| self.ids.get(n).map_or(0, |id| id.serves(dst));
        let best = ids.iter().max_by_key(fit).filter(|n| fit(n) > 0).ok_or(Reason::INVALID_SERVICE_ID)?;
        let (best, id) = (*best, &self.ids[best]);
        if id.qp_type != qp_type {
            return Err(Reason::INVALID_TRANSPORT);
        }
        if !self.queues.is_open(id.queue) {
            return Err(Reason::NO_RESOURCES);
        }
        let room = id.unfetched.room(id.backlog as usize, host).map_err(|Full| Reason::NO_RESOURCES)?;
        if let Some(oldest) = room {
            self.push_out(now, oldest);
        }
        Ok(best)
    }

    /// Creates an identifier for a request, and the event that passes it to the program.
    fn announce(
        &mut self,
        listener: u64,
        path: Path,
        ip: Option<IpHeader>,
        data: EventData,
        fill: impl FnOnce(&mut Id),
    ) -> u64 {
        let number = number();
        let of = &self.ids[&listener];
        let mut id = Id::new(of.space, of.qp_type, of.queue);
        let port = of.local.map_or(0, |l| l.port());
        let (src, src_port) = ip.map_or((path.dgid.to_ip(), 0), |ip| (ip.src, ip.src_port));
        id.state = IdState::Requested;
        id.context = of.context;
        id.options = CmOptions { tos: path.traffic_class, ..of.options };
        id.local = Some(SocketAddr::new(ip.map_or(path.sgid.to_ip(), |ip| ip.dst), port));
        id.peer = Some(SocketAddr::new(src, src_port));
        id.path = path;
        id.listener = Some(listener);
        fill(&mut id);
        let queue = id.queue;
        self.ids.insert(number, id);
        self.id(listener).unfetched.insert(path.dgid, number);
        self.queues.push(queue, Queued { id: listener, new: Some(number), data });
        number
    }

    /// Handles a connection request of a peer: creates an identifier, or refuses it.
    fn request(&mut self, device: &Device, now: Instant, listen: ListenId, conn: ConnId, request: Request) {
        let dst = request.ip.map_or(request.path.sgid.to_ip(), |ip| ip.dst);
        let qp_type = match request.transport {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
        };
        let listener = self
            .listener_for(now, listen, request.path.dgid, dst, qp_type)
            .map_err(|reason| Reject { reason, info: Vec::new(), private_data: Vec::new() })
            .and_then(|listener| fits_way_back(device, &request).map(|()| listener));
        match listener {
            Ok(listener) => {
                let data = EventData {
                    peer: Some(of_request(&request)),
                    private_data: request.private_data.clone(),
                    ..EventData::new(CmEventType::ConnectRequest)
                };
                let (path, ip) = (request.path, request.ip);
                let number = self.announce(listener, path, ip, data, |id| {
                    id.conn = Some(conn);
                    id.request = Some(request);
                });
                self.conns.insert(conn, number);
            }
            Err(reject) => {
                // Fails only if the connection has ended already.
                let _ = self.machine.reject(now, conn, &reject);
            }
        }
    }

    /// Handles a SIDR request of a peer: creates an identifier, or refuses it.
    fn sidr_request(
        &mut self,
        now: Instant,
        listen: ListenId,
        sidr: SidrId,
        path: Path,
        ip: Option<IpHeader>,
        private_data: Vec<u8>,
    ) {
        let dst = ip.map_or(path.sgid.to_ip(), |ip| ip.dst);
        match self.listener_for(now, listen, path.dgid, dst, QpType::Ud) {
            Ok(listener) => {
                let data = EventData { private_data, ..EventData::new(CmEventType::ConnectRequest) };
                let number = self.announce(listener, path, ip, data, |id| id.sidr = Some(sidr));
                self.sidrs.insert(sidr, number);
            }
            Err(reason) => {
                let status = match reason {
                    Reason::INVALID_SERVICE_ID | Reason::INVALID_TRANSPORT => SidrStatus::UNSUPPORTED,
                    _ => SidrStatus::NO_QP,
                };
                let _ = self.machine.sidr_reply(now, sidr, &SidrReply { status, ..refusal(Vec::new()) });
            }
        }
    }

    /// Handles the peer's acceptance.
    fn response(&mut self, device: &Device, now: Instant, conn: ConnId, response: Response) {
        let Some(number) = self.of(conn) else { return };
        let Some(id) = self.ids.get_mut(&number) else { return };
        let params = id.tuned(response.params);
        id.params = Some(params);
        id.asked = None;
        let data = EventData {
            peer: Some(of_response(&response)),
            private_data: response.private_data,
            ..EventData::new(CmEventType::ConnectResponse)
        };
        if id.qp.is_none() {
            id.state = IdState::Responded;
            return self.raise(number, data);
        }
        let up = id.qp_to_rts(device, &params);
        let event = match up.and_then(|()| Ok(self.machine.confirm(now, conn, &[]).map_err(CmError::from)?)) {
            Ok(()) => {
                self.id(number).state = IdState::Connected;
                self.make_farewell_ready(device, number, conn);
                EventData { what: CmEventType::Established, ..data }
            }
            Err(error) => {
                // Refuse the peer's reply. The machine reserves the queue pair's number as long as necessary.
                let _ = self.machine.reject(now, conn, &Reject::consumer([]));
                let id = self.id(number);
                id.state = IdState::Disconnected;
                id.qp_to_err();
                EventData::status(CmEventType::ConnectError, -error.errno())
            }
        };
        self.raise(number, event);
    }

    /// Accepts a request with a queue pair: computes the queue pair's attributes, moves it to RTS, and replies to the peer.
    pub(super) fn accept_conn(
        &mut self,
        device: &Device,
        now: Instant,
        number: u64,
        accept: &Accept,
    ) -> Result<(), VerbsError> {
        let id = &self.ids[&number];
        let conn = id.conn.ok_or(CmError::NotConnected { call: "accept" })?;
        let params = id.tuned(self.machine.plan_accept(conn, accept).map_err(CmError::from)?);
        id.qp_to_rts(device, &params)?;
        let frames = id.qp.as_ref().map_or(0, |qp| frames_taken(&qp.counters()));
        self.machine.accept(now, conn, accept).map_err(CmError::from)?;
        let has_qp = id.qp.is_some();
        let id = self.id(number);
        id.state = IdState::Accepting;
        id.params = Some(params);
        id.frames = frames;
        if has_qp {
            self.accepting.insert(number);
        }
        Ok(())
    }
}
