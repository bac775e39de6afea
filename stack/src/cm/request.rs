//! Handling of a received REQ: it is rejected, is a duplicate, or begins a connection.

use super::code;
use super::config::Timing;
use super::conn::{Conn, Depths, State};
use super::counter::Counter;
use super::event::{ConnId, Event, ListenId, Path, QpParams, Request, Transport};
use super::machine::{Machine, Peer, is_host};
use super::message::Req;
use super::reason::Reason;
use super::receive::{MRA_REQ, is_qp};
use super::service::{IpHeader, ServiceId};
use crate::config::RD_ATOMIC_MAX;
use crate::id::{Gid, Mtu, Qpn};
use crate::time::Instant;

/// Splits private data into the IP header, if the service ID requires one, and the rest.
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

/// Why a REQ is rejected.
struct Refusal {
    counter: Counter,
    reason: Reason,
    info: Vec<u8>,
    /// The connection that the peer no longer has, as the REQ indicates.
    forgotten: Option<ConnId>,
}

impl Refusal {
    fn new(counter: Counter, reason: Reason) -> Self {
        Self { counter, reason, info: Vec::new(), forgotten: None }
    }
}

/// What a REQ that passed the checks asks for.
struct Offer<'a> {
    transport: Transport,
    mtu: Mtu,
    listener: ListenId,
    ip: Option<IpHeader>,
    private_data: &'a [u8],
}

/// The sender of a REQ.
const fn sender(path: &Path, req: &Req) -> Peer {
    (path.dgid, req.local_ca_guid)
}

impl Machine {
    pub(super) fn handle_req(
        &mut self,
        now: Instant,
        path: &Path,
        tid: u64,
        req: &Req,
    ) -> Result<(), Counter> {
        if req.local_comm_id == 0 || !is_qp(req.local_qpn) || !is_host(&req.primary.local_gid) {
            return Err(Counter::BadField);
        }
        if let Some(&id) = self.remote_ids.get(&(sender(path, req), req.local_comm_id))
            && self.conns[&id].began_with(tid, req)
        {
            return self.duplicate_req(id);
        }
        let checked = self.check_req(path, req);
        let admitted =
            checked.and_then(|offer| self.admit_req(now, path, req, offer.listener).map(|()| offer));
        match admitted {
            Ok(offer) => {
                self.begin(now, path, tid, req, &offer);
                Ok(())
            }
            Err(refusal) => {
                self.refuse(path, tid, req.local_comm_id, refusal.reason, &refusal.info);
                if let Some(old) = refusal.forgotten {
                    self.doubt(now, old);
                }
                Err(refusal.counter)
            }
        }
    }

    /// Handles a duplicate of the REQ that began this connection. The peer gets an MRA if our program has not decided yet. Afterwards our
    /// REP is retransmitted by its own timer.
    fn duplicate_req(&mut self, id: ConnId) -> Result<(), Counter> {
        if self.conns[&id].state == State::ReqRcvd {
            self.send_mra(id, MRA_REQ);
        }
        Err(Counter::DuplicateReq)
    }

    /// Checks the fields of a new REQ, and that there is a listener for it.
    fn check_req<'a>(&self, path: &Path, req: &'a Req) -> Result<Offer<'a>, Refusal> {
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
        // A host must not connect under another host's address, because our queue pair will send to it.
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
        match self.listeners.find(req.service_id, asked) {
            Some(listener) => Ok(Offer { transport, mtu, listener, ip, private_data }),
            None => Err(Refusal::new(Counter::NoListener, Reason::INVALID_SERVICE_ID)),
        }
    }

    /// Makes sure that there is room for one more connection of this listener. Other connections may be given up for it, if this peer has
    /// fewer than others.
    fn admit_req(&mut self, now: Instant, path: &Path, req: &Req, listener: ListenId) -> Result<(), Refusal> {
        let host = path.dgid;
        let no_room = || Refusal::new(Counter::NoResources, Reason::NO_RESOURCES);
        let pushed_out = self.half_open.room(self.config.limits.half_open, host).map_err(|_| no_room())?;
        if self.events_full() {
            return Err(no_room());
        }
        // The ID or queue pair belongs to another connection of this peer: the peer no longer has that connection, or reused them before
        // TIMEWAIT was over. This is checked only for a REQ that would otherwise be accepted. So an attacker who forges the peer's address
        // to guess an ID creates a half-open connection with each wrong guess, and their number is bounded.
        let peer = sender(path, req);
        let old = self.remote_ids.get(&(peer, req.local_comm_id));
        if let Some(&old) = old.or_else(|| self.remote_qpns.get(&(peer, req.local_qpn))) {
            let refusal = Refusal::new(Counter::Stale, Reason::STALE_CONNECTION);
            return Err(Refusal { forgotten: Some(old), ..refusal });
        }
        let backlog = self.listeners.room(listener, host);
        let backlog = backlog.map_err(|_| Refusal::new(Counter::BacklogFull, Reason::NO_RESOURCES))?;
        self.make_room(now, host).map_err(|_| no_room())?;
        // A connection that is dropped from the backlog is half-open too, so dropping that one is enough.
        if let Some(id) = backlog.or(pushed_out) {
            self.push_out(now, id);
        }
        Ok(())
    }

    /// Begins a connection and reports it to the program.
    fn begin(&mut self, now: Instant, path: &Path, tid: u64, req: &Req, offer: &Offer<'_>) {
        let local_id = self.new_local_id();
        let deadline = now.after(self.config.limits.half_open_time);
        let params = self.params_of(req, offer);
        let depths = Depths {
            responder_resources: req.responder_resources.min(RD_ATOMIC_MAX),
            initiator_depth: req.initiator_depth.min(RD_ATOMIC_MAX),
        };
        let interval = code::time(req.local_response_timeout).min(self.config.limits.peer_time);
        let id = self.insert(Conn {
            listener: Some(offer.listener),
            remote_id: req.local_comm_id,
            remote_guid: req.local_ca_guid,
            interval,
            retries: req.max_cm_retries,
            max_wait: self.max_wait(interval, req.max_cm_retries),
            deadline,
            ..Conn::new(State::ReqRcvd, local_id, tid, self.reply_path(path), params, depths)
        });
        let peer = sender(path, req);
        self.remote_ids.insert((peer, req.local_comm_id), id);
        self.remote_qpns.insert((peer, req.local_qpn), id);
        self.arm(id, deadline);
        let request = Request {
            service_id: req.service_id,
            path: params.path,
            ip: offer.ip,
            private_data: offer.private_data.to_vec(),
            transport: offer.transport,
            remote_qpn: req.local_qpn,
            remote_guid: req.local_ca_guid,
            responder_resources: depths.responder_resources,
            initiator_depth: depths.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            mtu: offer.mtu,
            flow_control: req.flow_control,
            srq: req.srq,
        };
        self.event(id, Event::ConnectRequest { listener: offer.listener, id, request });
    }

    /// The parameters of our queue pair, as far as the REQ determines them.
    fn params_of(&mut self, req: &Req, offer: &Offer<'_>) -> QpParams {
        let primary = &req.primary;
        let path = self.reply_path(&Path {
            sgid: primary.remote_gid,
            dgid: primary.local_gid,
            flow_label: primary.flow_label,
            traffic_class: primary.traffic_class,
            hop_limit: 0,
            sl: primary.sl & 7,
        });
        let timeout = match primary.local_ack_timeout {
            // 0 would mean no timeout at all: the queue pair would never notice a lost packet or a dead peer. A peer that sends the
            // smallest time code does not intend that.
            0 => code::ack_timeout(Timing::default().packet_lifetime, self.config.ack_delay),
            t => t,
        };
        QpParams {
            transport: offer.transport,
            qpn: Qpn::default(),
            dest_qpn: req.local_qpn,
            rq_psn: self.random_psn(),
            sq_psn: req.starting_psn,
            path_mtu: offer.mtu,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            timeout,
            retry_cnt: req.retry_count,
            rnr_retry: req.rnr_retry_count,
            min_rnr_timer: 0,
            path,
        }
    }
}
