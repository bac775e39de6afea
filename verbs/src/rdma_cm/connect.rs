//! Connections: the queue pair of an identifier, connect, accept, reject and disconnect.

use std::net::IpAddr;
use std::sync::Arc;

use stack::device::cm::{
    self, Accept, Connect, IpHeader, Reason, Reject, ServiceId, SidrReply, SidrRequest, SidrStatus, Transport,
};
use stack::device::{
    AsyncEvent, AttrMask, DeviceError, Gid, QpAttr, QpState, QpType, Qpn, cm_init, cm_rts, limit,
};

use super::error::CmError;
use super::event::{CmEventType, EventData, UdPeer};
use super::gsi::{sgid_for, sgid_index};
use super::id::CmId;
use super::param::{ConnParam, MAX_INIT_DEPTH, UDP_QKEY};
use super::record::{Id, refusal};
use super::state::IdState;
use crate::attr::{attr_init_ud, attr_rts_ud, attr_to};
use crate::error::VerbsError;
use crate::pd::Pd;
use crate::qp::{Qp, QpInitAttr};

/// Code of the delay that RNR NAKs request from the peer: 0.64 ms, as everywhere in this crate.
const MIN_RNR_TIMER: u8 = 12;

/// Checks a READ and atomic depth, and resolves the value that stands for the maximum.
fn depth(what: &'static str, given: u8) -> Result<u8, CmError> {
    match given {
        MAX_INIT_DEPTH => Ok(limit::RD_ATOMIC_MAX),
        d if d <= limit::RD_ATOMIC_MAX => Ok(d),
        d => Err(CmError::Range { what, given: d.into(), min: 0, max: limit::RD_ATOMIC_MAX.into() }),
    }
}

/// Fails if a value is larger than its maximum.
fn at_most(what: &'static str, given: usize, max: usize) -> Result<(), CmError> {
    if given <= max {
        Ok(())
    } else {
        Err(CmError::Range { what, given: given as u64, min: 0, max: max as u64 })
    }
}

/// The results of the checks that connect and accept have in common.
struct Checked {
    qpn: Qpn,
    srq: bool,
    responder_resources: u8,
    initiator_depth: u8,
}

/// Makes the checks that connect and accept have in common.
fn check(call: &'static str, id: &Id, param: &ConnParam<'_>, data_max: usize) -> Result<Checked, CmError> {
    at_most("the length of private_data", param.private_data.len(), data_max)?;
    at_most("retry_count", param.retry_count.into(), 7)?;
    at_most("rnr_retry_count", param.rnr_retry_count.into(), 7)?;
    let qpn = match &id.qp {
        Some(qp) => qp.qp_num(),
        None if (2..0xff_ffff).contains(&param.qp_num) => Qpn::new(param.qp_num),
        None => {
            let why = "make a queue pair with create_qp, or give the number of one in qp_num";
            return Err(CmError::Unsuitable { call, why });
        }
    };
    // Datagrams and UC have neither READs nor atomics.
    let reads = |what, given| if id.qp_type == QpType::Rc { depth(what, given) } else { Ok(0) };
    Ok(Checked {
        qpn,
        srq: id.qp.as_ref().map_or(param.srq, |qp| qp.core().srq().is_some()),
        responder_resources: reads("responder_resources", param.responder_resources)?,
        initiator_depth: reads("initiator_depth", param.initiator_depth)?,
    })
}

impl CmId {
    /// Creates the identifier's queue pair, of the identifier's type ([`qp_type`](Self::qp_type)). A connected queue pair is then in INIT,
    /// so receives can be posted; a UD one is in RTS with the Q_Key [`UDP_QKEY`]. Connecting and disconnecting modify its state.
    ///
    /// # Errors
    /// `EINVAL` if it has one already, for another type, and for a protection domain of another device; those of [`Pd::create_qp`].
    #[doc(alias = "rdma_create_qp")]
    pub fn create_qp(&self, pd: &Pd, init: &QpInitAttr<'_>) -> Result<Arc<Qp>, VerbsError> {
        let qp_type = self.qp_type();
        if init.qp_type != qp_type {
            let why = match qp_type {
                QpType::Uc => "the identifier was made for UC queue pairs",
                QpType::Ud => "identifiers of datagrams have UD queue pairs",
                _ => {
                    "its connections are between RC queue pairs; create_id_of_type makes identifiers for others"
                }
            };
            return Err(CmError::Unsuitable { call: "create_qp", why }.into());
        }
        if !Arc::ptr_eq(pd.core().device(), self.service.device()) {
            return Err(DeviceError::Foreign { what: "protection domain" }.into());
        }
        self.with(|id| may_have_qp(id))?;
        let qp = Arc::new(pd.create_qp(init)?);
        if qp_type == QpType::Ud {
            qp.activate_ud(UDP_QKEY)?;
        } else {
            let (attr, mask) = cm_init();
            qp.modify(&attr, mask)?;
        }
        // Another thread may have created one meanwhile.
        self.with(|id| may_have_qp(id).map(|()| id.qp = Some(qp.clone())))?;
        Ok(qp)
    }

    /// Replaces the identifier's queue pair by one that it did not create, or by none. From now on the identifier's methods use the new
    /// queue pair, in whatever state it is. The old queue pair leaves its multicast groups. C programs do this by writing `rdma_cm_id.qp`,
    /// for example to move a queue pair to the identifier of a request.
    ///
    /// # Errors
    /// `EINVAL` for a queue pair of another type or device; the identifier then keeps the old one.
    pub fn set_qp(&self, qp: Option<Arc<Qp>>) -> Result<(), VerbsError> {
        if qp.as_ref().is_some_and(|qp| !Arc::ptr_eq(qp.core().device(), self.service.device())) {
            return Err(DeviceError::Foreign { what: "queue pair" }.into());
        }
        // If no other reference exists, the old queue pair is destroyed, outside the lock.
        let before = self.with(|id| {
            if id.qp.as_ref().map(Arc::as_ptr) == qp.as_ref().map(Arc::as_ptr) {
                return Ok(qp);
            }
            if qp.as_ref().is_some_and(|qp| qp.qp_type() != id.qp_type) {
                let why = "the queue pair is of another type than the identifier's connections need";
                return Err(CmError::Unsuitable { call: "set_qp", why });
            }
            id.leave_groups();
            Ok(core::mem::replace(&mut id.qp, qp))
        })?;
        drop(before);
        Ok(())
    }

    /// The identifier's queue pair.
    pub fn qp(&self) -> Option<Arc<Qp>> {
        self.with(|id| id.qp.clone())
    }

    /// The state of the identifier's queue pair; `None` if it has none. Unlike [`qp`](Self::qp) it takes no reference, which would keep the
    /// queue pair alive.
    pub fn qp_state(&self) -> Option<QpState> {
        self.with(|id| id.qp.as_ref()?.state().ok())
    }

    /// Destroys the identifier's queue pair.
    ///
    /// # Errors
    /// `EINVAL` if it has none; `EBUSY` while the connection exists, and while the program holds another reference to the queue pair.
    #[doc(alias = "rdma_destroy_qp")]
    pub fn destroy_qp(&self) -> Result<(), VerbsError> {
        let qp = self.with(|id| {
            let Some(qp) = id.qp.take() else {
                let why = "the identifier has no queue pair";
                return Err(CmError::Unsuitable { call: "destroy_qp", why });
            };
            use IdState::{Accepting, Connected, Connecting};
            if !id.is_ud() && matches!(id.state, Connecting | Accepting | Connected) {
                id.qp = Some(qp);
                return Err(CmError::Busy { object: "queue pair", why: "disconnect first" });
            }
            Ok(qp)
        })?;
        let give_back = |qp: Arc<Qp>| self.with(|id| id.qp = Some(qp));
        match Arc::try_unwrap(qp) {
            Ok(qp) => qp.destroy().map_err(|(e, qp)| {
                give_back(Arc::new(qp));
                e
            }),
            Err(qp) => {
                give_back(qp);
                let why = "drop what CmId::create_qp and CmId::qp returned";
                Err(CmError::Busy { object: "queue pair", why }.into())
            }
        }
    }

    /// Detaches the queue pair from the identifier, in any state of its connection. The queue pair leaves its multicast groups and enters
    /// ERR unless it is UD. It is destroyed with its last reference. The peer learns that the connection has ended when the identifier
    /// disconnects or is destroyed.
    ///
    /// # Errors
    /// `EINVAL` if it has none.
    #[doc(alias = "rdma_destroy_qp")]
    pub fn release_qp(&self) -> Result<Arc<Qp>, VerbsError> {
        self.service.call(|state, _, _| {
            let id = state.id(self.number);
            id.leave_groups();
            if !id.is_ud() {
                id.qp_to_err();
            }
            let why = "the identifier has no queue pair";
            id.qp.take().ok_or_else(|| CmError::Unsuitable { call: "release_qp", why }.into())
        })
    }

    /// Requests a connection from the peer, or the queue pair number of its datagram service. The result is an event:
    /// [`Established`](CmEventType::Established), with the queue pair in RTS; [`ConnectResponse`](CmEventType::ConnectResponse) if the
    /// identifier has no queue pair; or in case of failure [`Rejected`](CmEventType::Rejected), [`Unreachable`](CmEventType::Unreachable)
    /// or [`ConnectError`](CmEventType::ConnectError).
    ///
    /// # Errors
    /// `EINVAL` before the route is resolved, without a queue pair, and for values out of range; `EADDRNOTAVAIL` if the local address was
    /// removed from the port; for a synchronous identifier also `ECONNREFUSED` and `ETIMEDOUT`.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<(), VerbsError> {
        self.service.call(|state, device, now| {
            let id = state.id(self.number);
            id.expect(
                "connect",
                &[IdState::RouteResolved],
                "resolve address and route first, and connect once",
            )?;
            let (Some(local), Some(peer)) = (id.local, id.peer) else {
                return Err(CmError::NotConnected { call: "connect" }.into());
            };
            if peer.ip().is_multicast() {
                let why = "a group is joined, with join_multicast";
                return Err(CmError::Unsuitable { call: "connect", why }.into());
            }
            sgid_index(device, &id.path.sgid)?;
            let data_max = id.room().connect_data_max();
            let service_id = ServiceId::new(id.space.cm(), peer.port());
            let ip = Some(IpHeader { src_port: local.port(), src: local.ip(), dst: peer.ip() });
            if id.is_ud() {
                at_most("the length of private_data", param.private_data.len(), data_max)?;
                let request = SidrRequest {
                    service_id,
                    path: id.path,
                    timing: id.timing(),
                    ip,
                    private_data: param.private_data.into(),
                };
                let sidr = state.machine.sidr_request(now, &request).map_err(CmError::from)?;
                state.sidrs.insert(sidr, self.number);
                let id = state.id(self.number);
                (id.sidr, id.state) = (Some(sidr), IdState::Connecting);
                return Ok(());
            }
            let checked = check("connect", id, param, data_max)?;
            let connect = Connect {
                transport: if id.qp_type == QpType::Uc { Transport::Uc } else { Transport::Rc },
                mtu: id.mtu(device),
                flow_control: param.flow_control,
                srq: checked.srq,
                responder_resources: checked.responder_resources,
                initiator_depth: checked.initiator_depth,
                retry_count: param.retry_count,
                rnr_retry_count: param.rnr_retry_count,
                min_rnr_timer: MIN_RNR_TIMER,
                timing: id.timing(),
                keep_alive: id.keep_alive(),
                ip,
                private_data: param.private_data.into(),
                ..Connect::new(service_id, id.path, checked.qpn)
            };
            state.machine.set_mtu(device.active_mtu());
            let conn = state.machine.connect(now, &connect).map_err(CmError::from)?;
            state.conns.insert(conn, self.number);
            let id = state.id(self.number);
            (id.conn, id.state) = (Some(conn), IdState::Connecting);
            id.asked = Some(Box::new(connect));
            Ok(())
        })?;
        self.finish("connect", &[CmEventType::Established, CmEventType::ConnectResponse])
    }

    /// Accepts a request. Moves the identifier's queue pair to RTS first, so receives should be posted before. A program with its own queue
    /// pair has to bring it to RTS itself before, with [`init_qp_attr`](Self::init_qp_attr). The result is the event
    /// [`Established`](CmEventType::Established), for which a synchronous identifier waits. A datagram service has accepted when the call
    /// returns.
    ///
    /// # Errors
    /// `EINVAL` if the identifier is not a request or was answered already, without a queue pair, and for values out of range;
    /// `EADDRNOTAVAIL` if the address that the request was sent to was removed from the port; for a synchronous identifier also `ETIMEDOUT`
    /// and `ECONNREFUSED`.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, param: &ConnParam<'_>) -> Result<(), VerbsError> {
        let ud = self.qp_type() == QpType::Ud;
        self.service.call(|state, device, now| {
            let id = state.id(self.number);
            id.expect(
                "accept",
                &[IdState::Requested],
                "only a request that is not answered yet can be accepted",
            )?;
            sgid_index(device, &id.path.sgid)?;
            let checked = check("accept", id, param, id.room().accept_data_max())?;
            let private_data = param.private_data.to_vec();
            if ud {
                let sidr = id.sidr.ok_or(CmError::NotConnected { call: "accept" })?;
                let (status, qpn) = (SidrStatus::SUCCESS, checked.qpn);
                let reply = SidrReply { status, qpn, qkey: UDP_QKEY, info: Vec::new(), private_data };
                state.machine.sidr_reply(now, sidr, &reply).map_err(CmError::from)?;
                state.sidrs.remove(&sidr);
                state.id(self.number).sidr = None;
                state.id(self.number).state = IdState::Connected;
                return Ok(());
            }
            let accept = Accept {
                response_timeout: id.options.cm_response_timeout,
                max_cm_retries: id.options.max_cm_retries,
                keep_alive: id.keep_alive(),
                flow_control: param.flow_control,
                srq: checked.srq,
                responder_resources: checked.responder_resources,
                initiator_depth: checked.initiator_depth,
                rnr_retry_count: param.rnr_retry_count,
                min_rnr_timer: MIN_RNR_TIMER,
                private_data,
                ..Accept::new(checked.qpn)
            };
            state.accept_conn(device, now, self.number, &accept)
        })?;
        if ud { Ok(()) } else { self.finish("accept", &[CmEventType::Established]) }
    }

    /// Refuses a request, or the peer's response if the identifier has no queue pair, with up to
    /// [`PortSpace::reject_data_max`](super::PortSpace::reject_data_max) bytes of private data.
    ///
    /// # Errors
    /// `EINVAL` if there is nothing to refuse, and for more private data.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        self.refuse(Reason::CONSUMER_DEFINED, private_data)
    }

    /// As [`reject`](Self::reject), but gives the vendor data in the peer's request (enhanced connection establishment) as the reason: 35
    /// instead of 28. A datagram service has no such reason, and refuses as with `reject`.
    ///
    /// # Errors
    /// As `reject`.
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        self.refuse(Reason::VENDOR_OPTION_NOT_SUPPORTED, private_data)
    }

    fn refuse(&self, reason: Reason, private_data: &[u8]) -> Result<(), VerbsError> {
        self.service.call(|state, _, now| {
            let id = state.id(self.number);
            let wanted = "only a request or a response that is not answered yet can be refused";
            id.expect("reject", &[IdState::Requested, IdState::Responded], wanted)?;
            at_most("the length of private_data", private_data.len(), id.room().reject_data_max())?;
            if let Some(sidr) = id.sidr {
                state.machine.sidr_reply(now, sidr, &refusal(private_data.into())).map_err(CmError::from)?;
                state.sidrs.remove(&sidr);
                state.id(self.number).sidr = None;
            } else if let Some(conn) = id.conn {
                let keeps = id.state == IdState::Responded; // the connection goes through TIMEWAIT
                let reject = Reject { reason, ..Reject::consumer(private_data) };
                state.machine.reject(now, conn, &reject).map_err(CmError::from)?;
                if !keeps {
                    state.conns.remove(&conn);
                    state.id(self.number).conn = None;
                }
            }
            state.id(self.number).state = IdState::Disconnected;
            state.id(self.number).qp_to_err();
            Ok(())
        })
    }

    /// Ends the connection: moves the queue pair to ERR, which flushes its requests, and sends a DREQ to the peer. The result is the event
    /// [`Disconnected`](CmEventType::Disconnected), for which a synchronous identifier waits, and later
    /// [`TimewaitExit`](CmEventType::TimewaitExit). Does nothing if the peer has ended the connection already.
    ///
    /// # Errors
    /// `ENOTCONN` if it was never connected; `EINVAL` for datagrams.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), VerbsError> {
        let ended = self.service.call(|state, _, now| {
            let id = state.id(self.number);
            if id.is_ud() {
                let why = "datagrams have no connection; destroy the identifier";
                return Err(CmError::Unsuitable { call: "disconnect", why }.into());
            }
            let conn = match (id.state, id.conn) {
                (IdState::Connected, Some(conn)) => conn,
                (IdState::Accepting, Some(conn)) => {
                    // The peer may be connected already, so it gets a DREQ like a connected one.
                    state.machine.established(now, conn).map_err(CmError::from)?;
                    conn
                }
                (IdState::Disconnecting | IdState::Disconnected, _) => return Ok(true),
                _ => return Err(CmError::NotConnected { call: "disconnect" }.into()),
            };
            state.id(self.number).qp_to_err();
            match state.machine.disconnect(now, conn, &[]) {
                // The machine is already ending the connection, because the peer no longer has it. An event will follow.
                Ok(()) | Err(cm::Error::State { .. }) => {}
                Err(error) => return Err(CmError::from(error).into()),
            }
            state.accepting.remove(&self.number);
            state.id(self.number).state = IdState::Disconnecting;
            Ok(false)
        })?;
        if ended {
            return Ok(());
        }
        self.finish("disconnect", &[CmEventType::Disconnected, CmEventType::Rejected])
    }

    /// Confirms the connection to the peer, once the program has moved its own queue pair to RTS after
    /// [`ConnectResponse`](CmEventType::ConnectResponse). The connection is then established; no event reports it.
    ///
    /// # Errors
    /// `EINVAL` if there was no response.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<(), VerbsError> {
        self.service.call(|state, device, now| {
            let id = state.id(self.number);
            id.expect("establish", &[IdState::Responded], "there is no response to confirm")?;
            let conn = id.conn.ok_or(CmError::NotConnected { call: "establish" })?;
            state.machine.confirm(now, conn, &[]).map_err(CmError::from)?;
            state.id(self.number).state = IdState::Connected;
            state.make_farewell_ready(device, self.number, conn);
            Ok(())
        })
    }

    /// Reports an asynchronous event of the program's own queue pair. [`CommEst`](AsyncEvent::CommEst), which means that data arrived
    /// before the peer's RTU, establishes the connection; other events are ignored. Not needed for queue pairs that the identifier created.
    ///
    /// # Errors
    /// `ENOTCONN` if nothing was accepted.
    #[doc(alias = "rdma_notify")]
    pub fn notify(&self, event: AsyncEvent) -> Result<(), VerbsError> {
        if event != AsyncEvent::CommEst {
            return Ok(());
        }
        self.service.call(|state, _, now| {
            let conn = state.id(self.number).conn.ok_or(CmError::NotConnected { call: "notify" })?;
            Ok(state.machine.established(now, conn).map_err(CmError::from)?)
        })
    }

    /// Attributes for [`Qp::modify`] that move the program's own queue pair to INIT, RTR or RTS.
    ///
    /// # Errors
    /// `EINVAL` for other states, and for RTR and RTS before the peer's queue pair is known from a
    /// [`ConnectResponse`](CmEventType::ConnectResponse) or a [`ConnectRequest`](CmEventType::ConnectRequest).
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn init_qp_attr(&self, to: QpState) -> Result<(QpAttr, AttrMask), VerbsError> {
        let call = "init_qp_attr";
        self.service.call(|state, device, _| {
            let id = &state.ids[&self.number];
            if id.is_ud() {
                return match to {
                    QpState::Init => Ok(attr_init_ud(UDP_QKEY)),
                    QpState::Rtr => Ok(attr_to(to)),
                    QpState::Rts => Ok(attr_rts_ud(stack::device::Psn::new(0))),
                    _ => Err(CmError::Unsuitable { call, why: "it is for INIT, RTR and RTS" }.into()),
                };
            }
            if to == QpState::Init {
                return Ok(cm_init());
            }
            let params = match (id.params, id.conn) {
                (Some(params), _) => params,
                (None, Some(conn)) if id.state == IdState::Requested => {
                    let accept = Accept { min_rnr_timer: MIN_RNR_TIMER, ..Accept::new(Qpn::default()) };
                    id.tuned(state.machine.plan_for_any_qp(conn, &accept).map_err(CmError::from)?)
                }
                _ => {
                    let wanted = "the peer's queue pair is known from its request or response on";
                    return Err(CmError::State { call, found: id.state, wanted }.into());
                }
            };
            match to {
                QpState::Rtr => id.rtr(device, &params),
                QpState::Rts => Ok(cm_rts(&params)),
                _ => Err(CmError::Unsuitable { call, why: "it is for INIT, RTR and RTS" }.into()),
            }
        })
    }

    /// Attaches the queue pair of a datagram identifier to a multicast group. The result is the event
    /// [`MulticastJoin`](CmEventType::MulticastJoin), with the address vector of the group in [`CmEvent::ud`](super::CmEvent::ud).
    ///
    /// # Errors
    /// `EINVAL` if the identifier is not for datagrams, is not bound to an address or has no queue pair, and for an address that is not
    /// multicast; `EADDRNOTAVAIL` if its local address was removed from the port; those of [`Qp::attach_mcast`].
    #[doc(alias = "rdma_join_multicast")]
    pub fn join_multicast(&self, group: IpAddr) -> Result<(), VerbsError> {
        self.join(group, true)
    }

    /// Joins a group only for sending: as [`join_multicast`](Self::join_multicast), but the queue pair receives nothing.
    ///
    /// # Errors
    /// As `join_multicast`.
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast_to_send(&self, group: IpAddr) -> Result<(), VerbsError> {
        self.join(group, false)
    }

    fn join(&self, group: IpAddr, receive: bool) -> Result<(), VerbsError> {
        let (call, group) = ("join_multicast", group.to_canonical());
        self.service.call(|state, device, _| {
            let id = &state.ids[&self.number];
            let no = |why| VerbsError::from(CmError::Unsuitable { call, why });
            if !id.is_ud() {
                return Err(no("only datagrams go to groups"));
            }
            let qp = id.qp.clone().ok_or_else(|| no("make a queue pair with create_qp first"))?;
            let local = id.local.ok_or_else(|| no("bind the identifier to an address first"))?;
            let sgid = sgid_for(device, local.ip(), group);
            let sgid = sgid.ok_or_else(|| no("the device has no address of the group's IP version"))?;
            sgid_index(device, &sgid)?; // the identifier's own address may have been removed
            let gid = Gid::from_ip(group);
            if receive {
                qp.attach_mcast(gid, 0)?;
            } else if !group.is_multicast() {
                return Err(DeviceError::McastGid { gid }.into());
            }
            let path = stack::device::cm::Path {
                sgid,
                dgid: gid,
                traffic_class: id.options.tos,
                hop_limit: 1,
                ..Default::default()
            };
            let ud = UdPeer { path, qp_num: Qpn::MULTICAST.get(), qkey: UDP_QKEY };
            let id = state.id(self.number);
            // If a group is joined again only for sending, the queue pair stays attached until the group is left.
            let attached = receive || id.groups.contains(&(gid, true));
            id.groups.retain(|(known, _)| *known != gid);
            id.groups.push((gid, attached));
            let event = EventData { ud: Some(ud), ..EventData::new(CmEventType::MulticastJoin) };
            state.raise(self.number, event);
            Ok(())
        })?;
        self.finish(call, &[CmEventType::MulticastJoin])
    }

    /// Leaves a group that the identifier joined, and detaches the queue pair from it.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if it has not joined the group.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&self, group: IpAddr) -> Result<(), VerbsError> {
        let group = group.to_canonical();
        self.service.call(|state, _, _| {
            let id = state.id(self.number);
            let gid = Gid::from_ip(group);
            let at = id.groups.iter().position(|(g, _)| *g == gid).ok_or(CmError::NotJoined { group })?;
            if let (Some(qp), (_, true)) = (&id.qp, id.groups[at]) {
                qp.detach_mcast(gid, 0)?;
            }
            id.groups.remove(at);
            Ok(())
        })
    }
}

/// Refuses a second queue pair, and a queue pair for an identifier that will have no connection.
fn may_have_qp(id: &Id) -> Result<(), VerbsError> {
    let call = "create_qp";
    if id.qp.is_some() {
        return Err(CmError::Unsuitable { call, why: "the identifier has a queue pair already" }.into());
    }
    match id.state {
        IdState::Listening | IdState::Disconnecting | IdState::Disconnected => {
            let wanted = "it is for an identifier that will connect, or accept";
            Err(CmError::State { call, found: id.state, wanted }.into())
        }
        _ => Ok(()),
    }
}
