//! The calls of a program on connections: connect, accept, reject, confirm, disconnect and destroy.
//!
//! Each call first checks its arguments and the connection's state; a call that fails changes nothing. MADs to send are queued for
//! [`Machine::poll_send`](super::Machine::poll_send).

use super::code;
use super::config::Timing;
use super::conn::{Conn, Depths, State};
use super::counter::Counter;
use super::error::Error;
use super::event::{Accept, ConnId, Connect, Disconnect, Event, Path, QpParams, Reject};
use super::machine::{Machine, REJ_OTHER, REJ_REP, REJ_REQ, is_host};
use super::mad::Mad;
use super::message::{Rep, Req, ReqPath, padded};
use super::reason::Reason;
use super::service::{IpHeader, ServiceId};
use crate::config::RD_ATOMIC_MAX;
use crate::id::{Mtu, Psn, Qpn};
use crate::time::Instant;

/// The default partition key. RoCE has no other.
pub(super) const PKEY: u16 = 0xffff;

/// Fails if `given` is above `max`.
fn range(name: &'static str, given: impl Into<u32>, max: u32) -> Result<(), Error> {
    let given = given.into();
    if given > max { Err(Error::Range { name, given, max }) } else { Ok(()) }
}

/// Fails if the private data is longer than `max` bytes.
pub(super) fn fits(private_data: &[u8], max: usize) -> Result<(), Error> {
    let given = private_data.len();
    if given > max { Err(Error::PrivateData { given, max }) } else { Ok(()) }
}

/// Fails if the additional information is longer than 72 bytes.
pub(super) fn fits_info(info: &[u8]) -> Result<(), Error> {
    if info.len() > 72 { Err(Error::Info(info.len())) } else { Ok(()) }
}

pub(super) fn check_path(path: &Path) -> Result<(), Error> {
    if !is_host(&path.sgid) || !is_host(&path.dgid) {
        return Err(Error::Address);
    }
    range("flow label", path.flow_label, 0xf_ffff)?;
    range("service level", path.sl, 7)
}

pub(super) fn check_timing(timing: &Timing) -> Result<(), Error> {
    range("packet lifetime", timing.packet_lifetime, 31)?;
    range("remote response timeout", timing.remote_response, 31)?;
    range("local response timeout", timing.local_response, 31)?;
    range("CM retries", timing.max_cm_retries, 15)
}

/// The private data field of a REQ or SIDR_REQ, `N` bytes long. It begins with the IP header if the service ID requires one.
pub(super) fn with_header<const N: usize>(
    service_id: ServiceId,
    ip: Option<&IpHeader>,
    private_data: &[u8],
) -> Result<[u8; N], Error> {
    if service_id.port_space().is_some() != ip.is_some() {
        return Err(Error::IpHeader(service_id));
    }
    let mut out = [0; N];
    let header = if ip.is_some() { IpHeader::LEN } else { 0 };
    fits(private_data, N - header)?;
    if let (Some(ip), Some(bytes)) = (ip, out.first_chunk_mut()) {
        ip.write(bytes);
    }
    out[header..header + private_data.len()].copy_from_slice(private_data);
    Ok(out)
}

fn check_depths(responder_resources: u8, initiator_depth: u8) -> Result<(), Error> {
    range("responder resources", responder_resources, u32::from(RD_ATOMIC_MAX))?;
    range("initiator depth", initiator_depth, u32::from(RD_ATOMIC_MAX))
}

fn check_connect(connect: &Connect, mtu: Mtu) -> Result<(), Error> {
    check_path(&connect.path)?;
    check_timing(&connect.timing)?;
    check_depths(connect.responder_resources, connect.initiator_depth)?;
    range("retry count", connect.retry_count, 7)?;
    range("RNR retry count", connect.rnr_retry_count, 7)?;
    range("RNR timer", connect.min_rnr_timer, 31)?;
    if connect.mtu > mtu {
        return Err(Error::Mtu { given: connect.mtu, port: mtu });
    }
    Ok(())
}

/// The REQ for a connection, without its private data. `params` are the parameters of our queue pair.
fn req(connect: &Connect, local_comm_id: u32, local_ca_guid: u64, params: &QpParams) -> Req {
    let Connect { timing, path, .. } = connect;
    let on_link = path.hop_limit == 1;
    // RoCE has no LIDs. As in Linux: 0 for a peer on the same link, the permissive LID for one beyond a router.
    let lid = if on_link { 0 } else { 0xffff };
    Req {
        local_comm_id,
        service_id: connect.service_id,
        local_ca_guid,
        local_qpn: connect.qpn,
        responder_resources: connect.responder_resources,
        initiator_depth: connect.initiator_depth,
        remote_response_timeout: timing.remote_response,
        transport: connect.transport as u8,
        starting_psn: params.rq_psn,
        local_response_timeout: timing.local_response,
        retry_count: connect.retry_count,
        pkey: PKEY,
        path_mtu: connect.mtu as u8,
        rnr_retry_count: connect.rnr_retry_count,
        max_cm_retries: timing.max_cm_retries,
        flow_control: connect.flow_control,
        srq: connect.srq,
        primary: ReqPath {
            local_lid: lid,
            remote_lid: lid,
            local_gid: path.sgid,
            remote_gid: path.dgid,
            flow_label: path.flow_label,
            packet_rate: 0,
            traffic_class: path.traffic_class,
            hop_limit: if path.hop_limit == 0 { 64 } else { path.hop_limit },
            sl: path.sl,
            subnet_local: on_link,
            local_ack_timeout: params.timeout,
        },
        ..Req::default()
    }
}

/// Connections.
impl Machine {
    /// Sends a REQ. The result comes as [`Event::ConnectResponse`], [`Event::Rejected`] or [`Event::Unreachable`]. `Unreachable` comes
    /// after (`max_cm_retries` + 1) × (2 × packet lifetime + remote response timeout), with the values of [`Connect::timing`]; an MRA of
    /// the peer does not extend this.
    ///
    /// # Errors
    /// An error for each value in [`Connect`] that is out of range; [`Error::QpBusy`] if the queue pair is in use, [`Error::Limit`] if
    /// there are too many connections.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&mut self, now: Instant, connect: &Connect) -> Result<ConnId, Error> {
        let Connect { timing, path, .. } = connect;
        check_connect(connect, self.config.mtu)?;
        let private_data = with_header(connect.service_id, connect.ip.as_ref(), &connect.private_data)?;
        self.check_qpn(connect.qpn)?;
        self.make_room(now, path.sgid).map_err(|_| Error::Limit("connections"))?;

        let local_id = self.new_local_id();
        let tid = self.random.next();
        let psn = connect.psn.unwrap_or_else(|| self.random_psn());
        let timeout = code::ack_timeout(timing.packet_lifetime, self.config.ack_delay);
        let params = QpParams {
            transport: connect.transport,
            qpn: connect.qpn,
            dest_qpn: Qpn::default(),
            rq_psn: psn,
            sq_psn: Psn::default(),
            path_mtu: connect.mtu,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            timeout,
            retry_cnt: connect.retry_count,
            rnr_retry: 0,
            min_rnr_timer: connect.min_rnr_timer,
            path: *path,
        };
        let depths = Depths {
            responder_resources: connect.responder_resources,
            initiator_depth: connect.initiator_depth,
        };
        let interval = code::request_interval(timing.packet_lifetime, timing.remote_response);
        let id = self.insert(Conn {
            packet_lifetime: timing.packet_lifetime,
            interval,
            keep_alive: connect.keep_alive,
            retries: timing.max_cm_retries,
            max_wait: interval * (u32::from(timing.max_cm_retries) + 1),
            ..Conn::new(State::ReqSent, local_id, tid, *path, params, depths)
        });
        self.local_qpns.insert(connect.qpn, id);
        let req = Req { private_data, ..req(connect, local_id, self.config.ca_guid, &params) };
        self.send_request(now, id, &Mad::new(tid, req));
        Ok(id)
    }

    /// A communication ID that no connection uses.
    pub(super) fn new_local_id(&mut self) -> u32 {
        self.random.id(&self.config.ids, |id| self.local_ids.contains_key(&id))
    }

    /// A random PSN.
    pub(super) fn random_psn(&mut self) -> Psn {
        Psn::new(self.random.next() as u32)
    }

    fn check_qpn(&self, qpn: Qpn) -> Result<(), Error> {
        if qpn <= Qpn::GSI || qpn == Qpn::MULTICAST {
            return Err(Error::Qpn(qpn));
        }
        if self.qp_busy(qpn) { Err(Error::QpBusy(qpn)) } else { Ok(()) }
    }

    /// Returns the parameters that our queue pair would get from [`Machine::accept`] with these arguments. Changes nothing. Use it to post
    /// receive requests and bring the queue pair to RTS before `accept`: data can arrive with the RTU, or even before it.
    ///
    /// # Errors
    /// Those of [`Machine::accept`].
    pub fn plan_accept(&self, id: ConnId, accept: &Accept) -> Result<QpParams, Error> {
        let params = self.plan_for_any_qp(id, accept)?;
        self.check_qpn(accept.qpn)?;
        Ok(params)
    }

    /// Same as [`Machine::plan_accept`], for a queue pair that is not chosen yet: `accept.qpn` is not checked.
    ///
    /// # Errors
    /// Those of [`Machine::accept`], except those about the queue pair.
    pub fn plan_for_any_qp(&self, id: ConnId, accept: &Accept) -> Result<QpParams, Error> {
        let conn = self.conn(id)?;
        if conn.state != State::ReqRcvd {
            return Err(Error::State { operation: "accept", state: conn.state.name() });
        }
        check_depths(accept.responder_resources, accept.initiator_depth)?;
        range("response timeout", accept.response_timeout.unwrap_or(0), 31)?;
        range("CM retries", accept.max_cm_retries.unwrap_or(0), 15)?;
        range("RNR retry count", accept.rnr_retry_count, 7)?;
        range("RNR timer", accept.min_rnr_timer, 31)?;
        fits(&accept.private_data, 196)?;
        Ok(QpParams {
            qpn: accept.qpn,
            max_rd_atomic: accept.initiator_depth.min(conn.depths.responder_resources),
            max_dest_rd_atomic: accept.responder_resources.min(conn.depths.initiator_depth),
            min_rnr_timer: accept.min_rnr_timer,
            ..conn.params
        })
    }

    /// Sends a REP. The result comes as [`Event::Established`], [`Event::Rejected`] or [`Event::Unreachable`]. `Unreachable` comes once the
    /// timeout and retries of [`Accept`] (or of the REQ) are used up, at the latest
    /// [`Limits::half_open_time`](super::Limits::half_open_time) after the REQ. Returns the same parameters as [`Machine::plan_accept`].
    ///
    /// # Errors
    /// An error for each value in [`Accept`] that is out of range; [`Error::QpBusy`] if the queue pair is in use, [`Error::State`],
    /// [`Error::NoConnection`].
    #[doc(alias = "rdma_accept")]
    pub fn accept(&mut self, now: Instant, id: ConnId, accept: &Accept) -> Result<QpParams, Error> {
        let params = self.plan_accept(id, accept)?;
        self.enter(now, id, State::RepSent);
        self.local_qpns.insert(accept.qpn, id);
        let conn = &self.conns[&id];
        let interval = accept.response_timeout.map_or(conn.interval, code::time);
        let retries = accept.max_cm_retries.unwrap_or(conn.retries);
        let max_wait = self.max_wait(interval, retries);
        let conn = self.conns.get_mut(&id).expect("`plan_accept` found it");
        (conn.interval, conn.retries, conn.max_wait) = (interval, retries, max_wait);
        conn.params = params;
        conn.keep_alive = accept.keep_alive;
        let rep = Rep {
            local_comm_id: conn.local_id,
            remote_comm_id: conn.remote_id,
            local_qpn: params.qpn,
            starting_psn: params.rq_psn,
            responder_resources: params.max_dest_rd_atomic,
            initiator_depth: params.max_rd_atomic,
            target_ack_delay: self.config.ack_delay,
            rnr_retry_count: accept.rnr_retry_count,
            flow_control: accept.flow_control,
            srq: accept.srq,
            local_ca_guid: self.config.ca_guid,
            private_data: padded(&accept.private_data),
            ..Rep::default()
        };
        let mad = Mad::new(conn.tid, rep);
        self.send_request(now, id, &mad);
        Ok(params)
    }

    /// Rejects a REQ or a REP. After a REQ this ends the ID; after a REP the connection enters TIMEWAIT.
    ///
    /// # Errors
    /// [`Error::PrivateData`], [`Error::Info`], [`Error::State`], [`Error::NoConnection`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(&mut self, now: Instant, id: ConnId, reject: &Reject) -> Result<(), Error> {
        let conn = self.conn(id)?;
        fits_info(&reject.info)?;
        fits(&reject.private_data, 148)?;
        let message = match conn.state {
            State::ReqRcvd => REJ_REQ,
            State::RepRcvd => REJ_REP,
            other => return Err(Error::State { operation: "reject", state: other.name() }),
        };
        let rej = conn.rej(message, reject.reason, &reject.info, &reject.private_data);
        self.send_once(id, &rej);
        // A layer above may have rejected the request before the program saw it. Count it by its reason.
        self.counters.count(match reject.reason {
            Reason::NO_RESOURCES => Counter::BacklogFull,
            Reason::INVALID_SERVICE_ID => Counter::NoListener,
            Reason::INVALID_TRANSPORT => Counter::BadTransport,
            Reason::INVALID_MTU => Counter::BadMtu,
            _ => Counter::RejectedByUs,
        });
        if message == REJ_REQ {
            self.remove(now, id)
        } else {
            self.time_wait(now, id)
        }
        Ok(())
    }

    /// Active side, after [`Event::ConnectResponse`] and once the queue pair is in RTS: sends the RTU, with up to 224 bytes of private
    /// data. The connection is then established.
    ///
    /// # Errors
    /// [`Error::PrivateData`], [`Error::State`], [`Error::NoConnection`].
    #[doc(alias = "rdma_establish")]
    pub fn confirm(&mut self, now: Instant, id: ConnId, private_data: &[u8]) -> Result<(), Error> {
        let conn = self.conn(id)?;
        fits(private_data, 224)?;
        if conn.state != State::RepRcvd {
            return Err(Error::State { operation: "confirm", state: conn.state.name() });
        }
        let rtu = conn.rtu(private_data);
        self.establish(now, id);
        self.keep_and_send(id, &rtu);
        Ok(())
    }

    /// Passive side: reports that data arrived before the RTU (`IBV_EVENT_COMM_EST`). [`Event::Established`] follows. If the RTU has
    /// arrived meanwhile, this does nothing.
    ///
    /// # Errors
    /// [`Error::State`] if the connection is not accepted yet or has ended, [`Error::NoConnection`].
    #[doc(alias = "rdma_notify")]
    pub fn established(&mut self, now: Instant, id: ConnId) -> Result<(), Error> {
        match self.conn(id)?.state {
            State::RepSent => {
                self.accepted(now, id, Vec::new());
                Ok(())
            }
            State::Established => Ok(()),
            other => Err(Error::State { operation: "established", state: other.name() }),
        }
    }

    /// Ends an established connection: sends a DREQ, with up to 220 bytes of private data. The result comes as [`Event::Disconnected`].
    ///
    /// # Errors
    /// [`Error::PrivateData`], [`Error::State`] if the connection is not established, [`Error::NoConnection`].
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self, now: Instant, id: ConnId, private_data: &[u8]) -> Result<(), Error> {
        let conn = self.conn(id)?;
        fits(private_data, 220)?;
        if conn.state != State::Established {
            return Err(Error::State { operation: "disconnect", state: conn.state.name() });
        }
        self.send_dreq(now, id, Disconnect::Agreed, private_data);
        Ok(())
    }

    /// Gives up a connection in any state. A peer that knows of the connection is informed by a REJ, or by a DREQ with retries. No event of
    /// the connection follows, except [`Event::TimeWaitExit`] if it has to pass through TIMEWAIT.
    ///
    /// # Errors
    /// [`Error::NoConnection`].
    #[doc(alias = "rdma_destroy_id")]
    pub fn destroy(&mut self, now: Instant, id: ConnId) -> Result<(), Error> {
        let state = self.conn(id)?.state;
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.gone = true;
        }
        let guid = self.config.ca_guid.to_be_bytes();
        let mut rej = |message, reason, info: &[u8]| {
            let rej = self.conns[&id].rej(message, reason, info, &[]);
            self.send_once(id, &rej);
            self.counters.count(Counter::RejectedByUs);
        };
        match state {
            State::ReqSent => {
                rej(REJ_OTHER, Reason::TIMEOUT, &guid);
                self.remove(now, id);
            }
            State::ReqRcvd => {
                rej(REJ_REQ, Reason::CONSUMER_DEFINED, &[]);
                self.remove(now, id);
            }
            State::RepRcvd => {
                rej(REJ_REP, Reason::CONSUMER_DEFINED, &[]);
                self.time_wait(now, id);
            }
            State::RepSent => {
                rej(REJ_OTHER, Reason::CONSUMER_DEFINED, &[]);
                self.time_wait(now, id);
            }
            State::Established => self.send_dreq(now, id, Disconnect::Agreed, &[]),
            State::DreqSent | State::TimeWait => {}
        }
        Ok(())
    }

    /// Establishes a connection on the passive side and stops the retransmission of the REP: an RTU, data or a DREQ showed that the peer
    /// received it.
    pub(super) fn accepted(&mut self, now: Instant, id: ConnId, private_data: Vec<u8>) {
        self.establish(now, id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.mad = None;
        }
        self.event(id, Event::Established { id, private_data });
    }
}
