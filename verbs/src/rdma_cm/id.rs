//! Communication identifiers: binding, resolving, listening, and what all calls have in common.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stack::device::cm::{self, Listen, Path, ServiceId};
use stack::device::{Device, DeviceError, Gid, Mtu, QpType};

use super::channel::EventChannel;
use super::error::CmError;
use super::event::{CmEventType, EventData};
use super::gsi::{sgid_for, sgid_index};
use super::param::{CmOption, CmOptions, PortSpace};
use super::queue::number;
use super::record::Id;
use super::service::{Service, State};
use super::state::IdState;
use crate::context::Context;
use crate::errno::{EADDRNOTAVAIL, ETIMEDOUT};
use crate::error::VerbsError;

/// The maximum, and the default, of requests that wait at a listener; as in Linux (`ucma`).
const BACKLOG_MAX: u32 = 1024;
/// Hop limit of paths, as Linux's `rdma_cm` sets it on RoCE.
const HOP_LIMIT: u8 = 64;

/// A communication identifier (`struct rdma_cm_id`), from [`Context::create_id`]: what a socket is to TCP.
///
/// With an event channel its calls return at once, and events report their results. Without one it is *synchronous*: each call waits for
/// its event and returns the result. During the wait it drives shards that no other thread drives, so calls return in every
/// [`Drive`](crate::Drive).
///
/// Dropping it ends its connection, and destroys its queue pair unless the program holds another reference to the queue pair. This does not
/// wait, with one exception: dropping the last identifier or channel of a device waits for the last messages to leave and for the peers of
/// connections to answer, up to 200 ms for each. A peer that has not answered by then is asked again while the context is open.
#[derive(Debug)]
#[doc(alias = "rdma_cm_id")]
pub struct CmId {
    pub(super) number: u64,
    pub(super) service: Arc<Service>,
}

impl Context {
    /// Creates an identifier of this device, for queue pairs of the port space's default type. Its events go to `channel`; without a
    /// channel it is synchronous. The first identifier starts connection management, which owns queue pair 1. Connection management ends
    /// with the last identifier and the last channel that was used with the device, once the peers of connections have answered.
    ///
    /// # Errors
    /// `ENODEV` for [`PortSpace::IpoIb`], and if the call starts the port and its device cannot be opened; `EINVAL` if the program has
    /// created queue pair 1 itself; `EDEADLK` from inside a turn.
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self, channel: Option<&EventChannel>, space: PortSpace) -> Result<CmId, VerbsError> {
        self.create_id_of_type(channel, space, space.qp_type())
    }

    /// Creates an identifier for queue pairs of this type. [`PortSpace::Ib`] has a choice: RC, UC or UD. In C the type is part of the
    /// address information of `rdma_create_ep` (`ai_qp_type`).
    ///
    /// # Errors
    /// `EINVAL` for a type that the port space does not have; those of [`create_id`](Self::create_id).
    #[doc(alias = "rdma_create_ep")]
    pub fn create_id_of_type(
        &self,
        channel: Option<&EventChannel>,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<CmId, VerbsError> {
        space.check(qp_type)?;
        let service = Service::of(self)?;
        if let Some(channel) = channel {
            channel.attach(&service);
        }
        let number = {
            let mut state = service.lock();
            let number = number();
            let queue = channel.map_or(number, |c| c.number);
            if queue == number {
                state.queues.open(number, None);
            }
            state.ids.insert(number, Id::new(space, qp_type, queue));
            number
        };
        Ok(CmId { number, service })
    }
}

/// Converts an address to the form that the stack uses. An IPv4-mapped IPv6 address, as sockets of both IP versions report it, becomes its
/// IPv4 address. The scope is dropped, because a device has one port.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// The address that an identifier binds to: if the port does not have the given loopback address, the wildcard, as on Linux. libfabric
/// binds to a loopback address if its program names no address.
fn binding(device: &Device, addr: SocketAddr) -> SocketAddr {
    let any: IpAddr = match addr.ip() {
        ip if !ip.is_loopback() || device.gids().contains(&Gid::from_ip(ip)) => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, addr.port())
}

/// The address; `None` for the wildcard.
fn own(addr: IpAddr) -> Option<IpAddr> {
    (!addr.is_unspecified()).then_some(addr)
}

/// The index of the interface that an address names, as a link-local address does; 0 if it names none.
fn scope_of(addr: SocketAddr) -> u32 {
    if let SocketAddr::V6(addr) = addr { addr.scope_id() } else { 0 }
}

/// Whether a source address is compatible with the address that an identifier is bound to. The wildcard and port 0 are compatible with any.
fn leaves_open(src: SocketAddr, bound: SocketAddr) -> bool {
    let same_addr = own(src.ip()).is_none() || own(bound.ip()).is_none() || src.ip() == bound.ip();
    same_addr && (src.port() == 0 || src.port() == bound.port())
}

impl State {
    /// Binds an identifier to an address and a port.
    fn bind(
        &mut self,
        device: &stack::device::Device,
        number: u64,
        addr: SocketAddr,
    ) -> Result<(), VerbsError> {
        let id = &self.ids[&number];
        id.expect("bind_addr", &[IdState::Idle], "an identifier is bound once, before anything else")?;
        if let Some(ip) = own(addr.ip()) {
            sgid_index(device, &Gid::from_ip(ip))?;
        }
        let (space, reuse, family) = (id.space, id.options.reuse_addr, id.family(addr.ip()));
        let random = device.random()?;
        let port = self.ports.bind(number, space, (own(addr.ip()), family), addr.port(), reuse, random)?;
        let id = self.id(number);
        id.port = Some(port);
        id.local = Some(SocketAddr::new(addr.ip(), port));
        id.state = IdState::Bound;
        Ok(())
    }
}

impl CmId {
    /// The identifier's number, which is unique in the process and never reused. [`CmEvent::id`](crate::rdma_cm::CmEvent::id) returns it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The current state.
    pub fn state(&self) -> IdState {
        self.with(|id| id.state)
    }
    /// The port space.
    pub fn port_space(&self) -> PortSpace {
        self.with(|id| id.space)
    }
    /// The type of the identifier's queue pair.
    pub fn qp_type(&self) -> QpType {
        self.with(|id| id.qp_type)
    }
    /// Sets a number that the identifier's events contain. New identifiers inherit it from their listener.
    pub fn set_context(&self, context: u64) {
        self.with(|id| id.context = context);
    }
    /// The local address and port; `None` if it is not bound. The address is the wildcard if it is bound to all addresses.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.with(|id| id.local)
    }
    /// The peer's address and port; `None` if it has no peer yet.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.with(|id| id.peer)
    }
    /// The local port, or 0 if it is not bound.
    #[doc(alias = "rdma_get_src_port")]
    pub fn src_port(&self) -> u16 {
        self.local_addr().map_or(0, |a| a.port())
    }
    /// The peer's port, or 0 if it has no peer yet.
    #[doc(alias = "rdma_get_dst_port")]
    pub fn dst_port(&self) -> u16 {
        self.peer_addr().map_or(0, |a| a.port())
    }
    /// The path MTU of the connection, or the one that a request would contain.
    pub fn path_mtu(&self) -> Mtu {
        self.with(|id| id.path_mtu(self.service.device()))
    }
    /// Calls `f` with the record of the identifier, under the lock.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Id) -> R) -> R {
        f(self.service.lock().id(self.number))
    }

    /// Whether it is synchronous, and so has its own event queue.
    pub(super) fn is_synchronous(&self) -> bool {
        self.with(|id| id.queue == self.number)
    }

    /// Binds the identifier to a local address and port. The wildcard stands for all local addresses, and port 0 for any free port. An
    /// IPv4-mapped IPv6 address is treated as its IPv4 address, here and in the other calls. A loopback address that the port does not have
    /// stands for the wildcard. If [`Context::meet`] was called, the other process's address stands for this process's.
    ///
    /// # Errors
    /// `EADDRINUSE` if the port is in use; `EADDRNOTAVAIL` for an address that is not local, and if no port is free; `EINVAL` in another
    /// state.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind_addr(&self, addr: impl Into<SocketAddr>) -> Result<(), VerbsError> {
        let addr = canonical(addr.into());
        self.service.call(|state, device, _| {
            let ip = match state.address_pair {
                Some((own, other)) if addr.ip() == other => own,
                _ => addr.ip(),
            };
            state.bind(device, self.number, binding(device, SocketAddr::new(ip, addr.port())))
        })
    }

    /// Queues an event of the program itself for this identifier, with a number that [`CmEvent::arg`](super::CmEvent::arg) returns. With
    /// it, one thread can notify the thread that reads the channel. Each event takes memory until it is fetched.
    ///
    /// # Errors
    /// `EINVAL` for an event that only connection management raises.
    #[doc(alias = "rdma_write_cm_event")]
    pub fn write_event(&self, what: CmEventType, status: i32, arg: u64) -> Result<(), VerbsError> {
        if !matches!(what, CmEventType::User | CmEventType::AddrinfoResolved | CmEventType::AddrinfoError) {
            let why = "a program's own events are User, AddrinfoResolved and AddrinfoError";
            return Err(CmError::Unsuitable { call: "write_event", why }.into());
        }
        self.service.call(|state, _, _| {
            state.raise(self.number, EventData { arg, ..EventData::status(what, status) });
            Ok(())
        })
    }

    /// Resolves the destination's Ethernet address, and binds the identifier to `src` or else to the local address from which the
    /// destination is reached. The result is the event [`AddrResolved`](CmEventType::AddrResolved), or after `timeout`
    /// [`AddrError`](CmEventType::AddrError); then the call can be repeated, also with another destination.
    ///
    /// If [`Context::meet`] was called, this process's own address stands for the other process, unless an identifier of this process
    /// listens there. The other process may start later, within `timeout`.
    ///
    /// A bound identifier stays bound. Then `src` may leave the address or the port open (wildcard, 0), and may name an address if the
    /// identifier is bound to the wildcard.
    ///
    /// # Errors
    /// `ENETUNREACH` if there is no route; `EAFNOSUPPORT` for two IP versions; `EINVAL` in another state, if the destination is not a
    /// unicast address, and for a `src` that contradicts the identifier's binding; those of [`bind_addr`](Self::bind_addr); for a
    /// synchronous identifier also `ETIMEDOUT`.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: impl Into<SocketAddr>,
        timeout: Duration,
    ) -> Result<(), VerbsError> {
        let dst = dst.into();
        let (scope, src, dst) = (scope_of(dst), src.map(canonical), canonical(dst));
        self.service.call(|state, device, now| {
            let id = state.id(self.number);
            let wanted = "an address is resolved once, before the identifier listens or connects";
            id.expect("resolve_addr", &[IdState::Idle, IdState::Bound], wanted)?;
            let group = dst.ip().is_multicast();
            if dst.ip().is_unspecified() || group && !id.is_ud() {
                let why = "the destination must be the address of a host, or for datagrams of a group";
                return Err(CmError::Unsuitable { call: "resolve_addr", why }.into());
            }
            let bound = id.local.filter(|_| id.state == IdState::Bound);
            if let (Some(bound), Some(src)) = (bound, src)
                && !leaves_open(src, bound)
            {
                let why = "the identifier is bound to another address or port; leave the source address out";
                return Err(CmError::Unsuitable { call: "resolve_addr", why }.into());
            }
            for src in bound.into_iter().chain(src) {
                if !id.reaches(src.ip(), dst.ip()) {
                    return Err(CmError::Family { src: src.ip(), dst: dst.ip() }.into());
                }
            }
            let dgid = Gid::from_ip(dst.ip());
            let any = if dst.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let from = if group { sgid_for(device, any, dst.ip()) } else { device.source_to(&dgid, scope) };
            let from = from.ok_or(CmError::NoRoute { dst })?;
            let named = src.into_iter().chain(bound).find_map(|s| own(s.ip()));
            let sgid = named.map_or(from, Gid::from_ip);
            sgid_index(device, &sgid)?;
            if bound.is_none() {
                // As with Linux sockets: without an address it is bound to the wildcard until the destination is resolved.
                state.bind(device, self.number, src.unwrap_or(SocketAddr::new(any, 0)))?;
            }
            let id = state.id(self.number);
            id.peer = Some(dst);
            id.path =
                Path { sgid, dgid, hop_limit: HOP_LIMIT, traffic_class: id.options.tos, ..Path::default() };
            id.state = IdState::ResolvingAddr;
            id.deadline = now.after(timeout.min(Duration::from_secs(1 << 24)));
            state.resolving.insert(self.number);
            state.resolve(device, now);
            Ok(())
        })?;
        self.finish("resolve_addr", &[CmEventType::AddrResolved])
    }

    /// Determines the path to the destination, which on RoCE follows from the addresses. The result is the event
    /// [`RouteResolved`](CmEventType::RouteResolved).
    ///
    /// # Errors
    /// `EINVAL` before the address is resolved.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), VerbsError> {
        let _ = timeout; // no query is sent
        self.service.call(|state, _, _| {
            let id = state.id(self.number);
            id.expect("resolve_route", &[IdState::AddrResolved], "resolve the address first, and once")?;
            id.state = IdState::RouteResolved;
            state.raise(self.number, EventData::new(CmEventType::RouteResolved));
            Ok(())
        })?;
        self.finish("resolve_route", &[CmEventType::RouteResolved])
    }

    /// Accepts incoming requests for the port that the identifier is bound to, or for a free one. Each request is an event
    /// [`ConnectRequest`](CmEventType::ConnectRequest). Up to `backlog` requests may wait for the program to fetch them; the maximum is
    /// 1024, which 0 stands for too. If the backlog is full, the oldest request of the host with the most waiting requests is refused, or
    /// the new one if no other host has more. The reason is 3 (no resources), and the counter is `reject_backlog_full`. A request that its
    /// peer gives up, or that has waited for 120 s, is dropped from the backlog with its event. Up to 4096 requests of a device may wait
    /// for the program to accept or refuse them; that limit is shared among hosts in the same way.
    /// # Errors
    /// `EADDRINUSE` if another identifier is bound to the same address and port, even with [`CmOption::ReuseAddr`]; `EINVAL` in another
    /// state.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<(), VerbsError> {
        self.service.call(|state, device, _| {
            let wanted = "only one that is new or bound to an address can listen";
            state.id(self.number).expect("listen", &[IdState::Idle, IdState::Bound], wanted)?;
            if state.id(self.number).state == IdState::Idle {
                state.bind(device, self.number, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
            }
            let id = state.id(self.number);
            let (space, port) = (id.space, id.port.unwrap_or(0));
            state.ports.listen(self.number, space, port)?;
            if let Some((_, ids)) = state.listeners.get_mut(&(space, port)) {
                ids.push(self.number);
            } else {
                let service_id = ServiceId::new(space.cm(), port);
                // `listener_for` chooses the identifier for a request and limits the number of waiting requests, so the machine does
                // neither.
                let listen = Listen { service_id, address: None, backlog: u32::MAX };
                let listen = state.machine.listen(&listen).map_err(CmError::from)?;
                state.listens.insert(listen, (space, port));
                state.listeners.insert((space, port), (listen, vec![self.number]));
            }
            let id = state.id(self.number);
            id.backlog = if backlog == 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
            id.state = IdState::Listening;
            device.announce();
            Ok(())
        })
    }

    /// Waits up to `timeout` for the next request to a synchronous listener; `None` if none arrives. The request is an identifier, also
    /// synchronous, to be accepted or rejected. The peer's private data is in its [`event`](Self::event).
    ///
    /// # Errors
    /// `EINVAL` if the identifier does not listen or has an event channel; `EDEADLK` from inside a turn.
    #[doc(alias = "rdma_get_request")]
    pub fn get_request(&self, timeout: Duration) -> Result<Option<CmId>, VerbsError> {
        self.with(|id| id.expect("get_request", &[IdState::Listening], "listen first"))?;
        if !self.is_synchronous() {
            let why = "the requests of this listener come through its event channel";
            return Err(CmError::Unsuitable { call: "get_request", why }.into());
        }
        Ok(self.service.device().wait(timeout, None, || self.take_request())?)
    }

    /// Takes the oldest waiting request, with its events, and makes it synchronous.
    fn take_request(&self) -> Option<CmId> {
        let mut state = self.service.lock();
        let request = state.queues.pop_request(self.number)?;
        let number = request.new?;
        state.fetched(number);
        state.queues.open(number, None);
        for event in state.queues.take(self.number, number) {
            state.queues.push(number, event);
        }
        let id = state.id(number);
        id.queue = number;
        id.last = Some(request.data);
        Some(CmId { number, service: self.service.clone() })
    }

    /// Completes a call. A synchronous identifier waits for one of the `wanted` events, or for one that reports the failure.
    pub(super) fn finish(&self, call: &'static str, wanted: &[CmEventType]) -> Result<(), VerbsError> {
        if !self.is_synchronous() {
            return Ok(());
        }
        let look = || {
            let mut state = self.service.lock();
            let event = state.queues.pop(self.number)?;
            state.id(self.number).last = Some(event.data.clone());
            Some(event.data)
        };
        // Every wait ends, by the machine's timeouts.
        let event = self.service.device().wait(Duration::MAX, None, look)?;
        let event = event.ok_or(CmError::NotConnected { call })?;
        if wanted.contains(&event.what) {
            return Ok(());
        }
        let peer = self.peer_addr().unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        if let Some(refusal) = event.refusal {
            return Err(CmError::Rejected { peer, refusal }.into());
        }
        Err(match event.what {
            CmEventType::AddrError | CmEventType::Unreachable if event.status == -ETIMEDOUT => {
                CmError::TimedOut { call, peer }
            }
            CmEventType::AddrError if event.status == -EADDRNOTAVAIL => {
                CmError::AddrNotAvail { addr: self.with(|id| id.path.sgid.to_ip()) }
            }
            CmEventType::ConnectError => CmError::Qp { call, errno: -event.status },
            _ => CmError::NotConnected { call },
        }
        .into())
    }

    /// Moves the identifier and its waiting events to another channel, or with `None` makes it synchronous.
    ///
    /// # Errors
    /// `EBUSY` while an event of it was fetched and not acknowledged.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate_id(&self, channel: Option<&EventChannel>) -> Result<(), VerbsError> {
        if let Some(channel) = channel {
            channel.attach(&self.service);
        }
        self.service.call(|state, _, _| {
            let id = state.id(self.number);
            if id.unacked > 0 {
                return Err(DeviceError::Unacked { object: "identifier", events: id.unacked }.into());
            }
            let from = id.queue;
            let to = channel.map_or(self.number, |c| c.number);
            if from == to {
                return Ok(());
            }
            if to == self.number {
                state.queues.open(to, None);
            }
            for event in state.queues.take(from, self.number) {
                if let Some(new) = event.new {
                    state.id(new).queue = to;
                }
                state.queues.push(to, event);
            }
            if from == self.number {
                state.queues.close(from);
            }
            state.id(self.number).queue = to;
            Ok(())
        })
    }

    /// Sets an option.
    ///
    /// # Errors
    /// `EINVAL` for a value out of its range, and in a state in which the option can no longer be set.
    #[doc(alias = "rdma_set_option")]
    pub fn set_option(&self, option: CmOption) -> Result<(), VerbsError> {
        self.with(|id| {
            let range = |what, given: u8, max: u8| {
                if given <= max {
                    return Ok(());
                }
                Err(CmError::Range { what, given: given.into(), min: 0, max: max.into() })
            };
            let open = [
                IdState::Idle,
                IdState::Bound,
                IdState::ResolvingAddr,
                IdState::AddrResolved,
                IdState::RouteResolved,
                IdState::Listening,
                IdState::Requested,
            ];
            match option {
                CmOption::ReuseAddr(on) => {
                    id.expect(
                        "set_option",
                        &[IdState::Idle],
                        "REUSEADDR is set before the identifier is bound",
                    )?;
                    id.options.reuse_addr = on;
                }
                CmOption::AfOnly(on) => {
                    id.expect(
                        "set_option",
                        &[IdState::Idle],
                        "AFONLY is set before the identifier is bound",
                    )?;
                    id.options.af_only = on;
                }
                CmOption::Tos(tos) => {
                    id.expect(
                        "set_option",
                        &open,
                        "the type of service is set before the connection is made",
                    )?;
                    id.options.tos = tos;
                    id.path.traffic_class = tos;
                }
                CmOption::AckTimeout(timeout) => {
                    range("the ACK timeout", timeout, 31)?;
                    id.expect("set_option", &open, "the ACK timeout is set before the connection is made")?;
                    if id.qp_type != QpType::Rc {
                        return Err(CmError::Option("only reliable connections have an ACK timeout").into());
                    }
                    id.options.ack_timeout = Some(timeout);
                }
                CmOption::CmResponseTimeout(timeout) => {
                    range("the response timeout", timeout, 31)?;
                    id.expect("set_option", &open, "it is set before the connection is made")?;
                    id.options.cm_response_timeout = Some(timeout);
                }
                CmOption::MaxCmRetries(retries) => {
                    range("the number of retries", retries, 15)?;
                    id.expect("set_option", &open, "it is set before the connection is made")?;
                    id.options.max_cm_retries = Some(retries);
                }
                CmOption::PathMtu(mtu) => {
                    let max = self.service.device().active_mtu();
                    range("the path MTU (enum ibv_mtu)", mtu as u8, max as u8)?;
                    id.expect("set_option", &open, "it is set before the connection is made")?;
                    id.options.path_mtu = Some(mtu);
                }
                CmOption::KeepAlive(time) => {
                    id.expect("set_option", &open, "it is set before the connection is made")?;
                    id.options.keep_alive = Some(time);
                }
            }
            Ok(())
        })
    }

    /// The current options.
    pub fn options(&self) -> CmOptions {
        self.with(|id| id.options)
    }

    /// Ends the identifier with its connection, its queue pair and the requests that were not fetched. Sends a message to the peer, and
    /// does not wait.
    ///
    /// # Errors
    /// `EBUSY` while an event of it was fetched and not acknowledged. The identifier is returned with the error.
    #[doc(alias = "rdma_destroy_id")]
    #[doc(alias = "rdma_destroy_ep")]
    pub fn destroy(self) -> Result<(), (VerbsError, Self)> {
        match self.with(|id| id.unacked) {
            0 => Ok(()),
            events => Err((DeviceError::Unacked { object: "identifier", events }.into(), self)),
        }
    }

    /// As [`destroy`](Self::destroy), but waits up to `timeout` for other threads to acknowledge all events, as rdma_destroy_id(3) does.
    ///
    /// # Errors
    /// As `destroy`; `EDEADLK` from inside a turn.
    #[doc(alias = "rdma_destroy_id")]
    pub fn destroy_wait(self, timeout: Duration) -> Result<(), (VerbsError, Self)> {
        let start = Instant::now();
        let mut id = self;
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let acked = || (id.with(|id| id.unacked) == 0).then_some(());
            match id.service.device().wait(left, None, acked) {
                Ok(Some(())) => match id.destroy() {
                    Ok(()) => return Ok(()),
                    // Another thread has fetched an event in between, so wait for that one too.
                    Err((_, back)) => id = back,
                },
                Ok(None) => return id.destroy(),
                Err(e) => return Err((e.into(), id)),
            }
        }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.service.remove(self.number);
    }
}

impl PortSpace {
    /// Checks that the port space has this type of queue pair.
    pub(super) const fn check(self, qp_type: QpType) -> Result<(), CmError> {
        match (self, qp_type) {
            (Self::IpoIb, _) => Err(CmError::NoIpoIb),
            (Self::Tcp, QpType::Rc)
            | (Self::Udp, QpType::Ud)
            | (Self::Ib, QpType::Rc | QpType::Uc | QpType::Ud) => Ok(()),
            _ => Err(CmError::QpType { space: self, given: qp_type }),
        }
    }
    pub(super) const fn cm(self) -> cm::PortSpace {
        match self {
            Self::Tcp => cm::PortSpace::Tcp,
            Self::Udp => cm::PortSpace::Udp,
            Self::Ib => cm::PortSpace::Ib,
            Self::IpoIb => cm::PortSpace::IpoIb,
        }
    }
}
