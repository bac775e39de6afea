//! The connection manager of a device: identifiers, their events, and the protocol state machine ([`Machine`]).
//!
//! - [`State`]: identifiers, queues of events, and the machine. One lock guards all of it, and no data path takes that lock.
//! - [`Shared`]: that lock and the device. It is the device's service (`stack::device::Service`). The device calls its `step` between
//!   turns, on the thread that made the last turn, when the device's alarm rings: at a time that was set, or because something arrived.
//! - [`Running`]: connection management from its start to its end. It owns queue pair 1. Dropping it waits for the last answers of peers.
//! - [`Service`]: the handle that identifiers and event channels hold. Calls of programs go through it.
//! - [`ContextCm`]: what a context stores: the `Service` while it has users, and the `Running`.
//!
//! When the last identifier and event channel are dropped, the `Service` is dropped, and the `Running` with it. If peers have not answered
//! a DREQ by then, the `Running` stays and repeats the DREQs while the context is open.
//!
//! When a shard of the device dies, or connection management panics, connection management ends: each identifier gets DEVICE_REMOVAL, and
//! calls return the error.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::Duration;

use stack::device::cm::{
    Config, ConnId, ListenId, Machine, PeerAnswer, Reason, Reject, SidrId, SidrReply, SidrStatus,
};
use stack::device::{
    self, Device, DeviceError, Gid, Instant, PeerCheck, PeerPath, PeerState, Qpn, Registry, lock,
};

use super::event::{CmEventType, EventData};
use super::gsi::{Gsi, Outbox, sgid_index};
use super::inbox::Inbox;
use super::param::PortSpace;
use super::ports::Ports;
use super::queue::{Queued, Queues};
use super::record::Id;
use super::state::IdState;
use crate::context::{AddressPair, Context};
use crate::errno::{EADDRNOTAVAIL, ETIMEDOUT};
use crate::error::VerbsError;
use stack::device::{Counter, CounterSnapshot, Discard};

/// How often to check for conditions that do not ring the alarm: an address is resolved, a message that waited can be sent, data arrived
/// before the last message of a connection, or the check of a peer has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// How long the end of the service waits for the answers to its last messages, and then again for its messages to leave if the port is
/// busy. A process that exits may have waited longer before that: see [`Context::take_leave`].
const END_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a new service waits for the previous one to end.
const HANDOVER: Duration = Duration::from_secs(5);
/// How many accepted requests one call checks for data. The number of such requests is controlled by peers.
const LOOKS: usize = 64;
/// How many messages one call handles.
const MADS_MAX: usize = 256;
/// How many events of the machine one call handles.
const EVENTS_MAX: usize = 4096;

/// The handle of connection management that identifiers and channels share.
#[derive(Debug)]
pub(crate) struct Service {
    running: Arc<Running>,
    kept: Arc<ContextCm>,
}

/// What a context stores about its connection management.
#[derive(Debug, Default)]
struct ContextCm(Mutex<Entry>);

#[derive(Debug, Default)]
struct Entry {
    users: Weak<Service>,
    running: Option<Arc<Running>>,
}

impl ContextCm {
    fn lock(&self) -> MutexGuard<'_, Entry> {
        lock(&self.0)
    }
}

/// Connection management from its start to its end: while it has users, and then while DREQs to peers are unanswered.
#[derive(Debug)]
pub(super) struct Running {
    shared: Arc<Shared>,
}

/// The part that the device calls between turns.
struct Shared {
    device: Arc<Device>,
    inbox: Inbox,
    state: Mutex<State>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Shared {
    /// Checks that connection management still works.
    fn alive(&self) -> Result<(), DeviceError> {
        self.device.check_alive()?;
        if self.state.is_poisoned() { Err(DeviceError::ServiceDied) } else { Ok(()) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Takes the lock if it is free.
    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for the lock. Returns `None` inside a turn if the lock is taken, because the turn may have been made under the lock, and in a
    /// forked child.
    fn enter(&self) -> Option<MutexGuard<'_, State>> {
        if self.device.is_forked() {
            return None;
        }
        match self.device.check_outside_turn() {
            Ok(()) => Some(self.lock()),
            Err(_) => self.try_lock(),
        }
    }

    /// Reports to every identifier that connection management has ended, if it has. If another thread holds the lock, that thread reports
    /// it after its call, or otherwise the next call or fetch does.
    fn report_end(&self) {
        if self.alive().is_err()
            && let Some(mut state) = self.try_lock()
        {
            state.end();
        }
    }
}

impl device::Service for Shared {
    fn step(&self) {
        match self.try_lock() {
            Some(mut state) => {
                self.device.alarm().begin();
                if self.alive().is_ok() {
                    state.work(&self.device, &self.inbox);
                }
            }
            // Another thread holds the lock. The alarm keeps ringing for what that thread does not notice any more.
            None => self.inbox.collect(&self.device),
        }
        self.report_end();
    }

    fn holds(&self, qpn: Qpn) -> bool {
        self.lock().machine.qp_busy(qpn)
    }

    fn device_died(&self) {
        self.report_end();
    }
}

impl Running {
    fn start(device: Arc<Device>, address_pair: Option<AddressPair>) -> Result<Self, VerbsError> {
        let attr = device.attr();
        let seed = u64::from(device.random()?) << 32 | u64::from(device.random()?);
        let usual = Config::default();
        let machine = Machine::new(Config {
            ca_guid: u64::from_be_bytes(attr.node_guid),
            seed,
            mtu: device.active_mtu(),
            ack_delay: attr.local_ca_ack_delay,
            ids: device.communication_ids().unwrap_or(usual.ids),
            ..usual
        });
        let shared = Arc::new(Shared {
            device: device.clone(),
            inbox: Inbox::default(),
            state: Mutex::new(State { address_pair, ..State::new(machine, device.registry().cloned()) }),
        });
        let start = std::time::Instant::now();
        while let Err(e) = device.install(shared.clone()) {
            // The previous service is still ending on another thread.
            if start.elapsed() > HANDOVER {
                return Err(e.into());
            }
            std::thread::yield_now();
        }
        let running = Self { shared };
        let gsi = Arc::new(Gsi::open(&device)?);
        let mut state = running.lock();
        state.machine.set_gids(&device.gids());
        state.outbox = Some(Outbox::new(gsi.clone()));
        drop(state);
        running.shared.inbox.open(gsi);
        Ok(running)
    }

    /// The connection management of a context: `Some(None)` if it has none, `None` while a thread starts or ends it.
    pub(super) fn running_of(context: &Context) -> Option<Option<Arc<Self>>> {
        let attached = context.try_cm()?.clone();
        let Some(kept) = attached.and_then(|attached| attached.downcast::<ContextCm>().ok()) else {
            return Some(None);
        };
        match kept.0.try_lock() {
            Ok(entry) => Some(entry.running.clone()),
            Err(TryLockError::Poisoned(entry)) => Some(entry.into_inner().running.clone()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn device(&self) -> &Arc<Device> {
        &self.shared.device
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// Tells peers that their connections end. `tell` is [`State::take_leave`] or [`State::hurry`].
    ///
    /// Returns how many peers have not answered. `None` inside a turn, and while a thread holds the lock: it may be this thread,
    /// interrupted by a signal.
    pub(super) fn tell_peers(&self, tell: fn(&mut State, Instant)) -> Option<usize> {
        // A turn may hold the lock of the IP host.
        self.device().check_outside_turn().ok()?;
        let mut state = self.shared.try_lock()?;
        if self.shared.alive().is_err() {
            return Some(0);
        }
        let now = self.device().now();
        tell(&mut state, now);
        state.pump(self.device(), now);
        Some(state.machine.dreqs())
    }

    /// The number of unanswered DREQs.
    pub(super) fn dreqs(&self) -> usize {
        self.lock().machine.dreqs()
    }

    /// Waits for the answers of peers, then until the last messages have left, at most [`END_TIMEOUT`] for each.
    fn wait_for_the_end(&self) {
        // Waits for the DREP of a peer whose link goes down with this port (a guest behind vhost): queue pair 1 of soft-RoCE fails
        // permanently if the link goes down while it sends one.
        let answered = || (self.tell_peers(State::hurry) == Some(0)).then_some(());
        let flushed = || self.lock().outbox.as_mut().is_none_or(Outbox::is_flushed).then_some(());
        // The waits fail only inside a turn, where programs drop no handle.
        let _ = self.device().wait(END_TIMEOUT, None, answered);
        let _ = self.device().wait(END_TIMEOUT, None, flushed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.device().is_forked() {
            return;
        }
        self.wait_for_the_end();
        let outbox = self.lock().outbox.take();
        self.shared.inbox.close();
        drop(outbox);
        self.device().uninstall();
    }
}

impl Service {
    /// The connection management of a context. Starts it if necessary.
    pub(super) fn of(context: &Context) -> Result<Arc<Self>, VerbsError> {
        let mut attached = context.cm();
        let kept =
            attached.clone().and_then(|attached| attached.downcast::<ContextCm>().ok()).unwrap_or_default();
        *attached = Some(kept.clone());
        let mut entry = kept.lock();
        if let Some(service) = entry.users.upgrade() {
            return Ok(service);
        }
        let running = match entry.running.take().filter(|running| running.shared.alive().is_ok()) {
            Some(running) => running,
            None => Arc::new(Running::start(context.device().clone(), context.address_pair())?),
        };
        entry.running = Some(running.clone());
        let service = Arc::new(Self { running, kept: kept.clone() });
        entry.users = Arc::downgrade(&service);
        drop(entry);
        Ok(service)
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        self.running.device()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.running.lock()
    }

    /// Takes the lock for a call that may come from inside a turn, after reporting the end of connection management if that has come.
    /// `None` in a forked child too.
    pub(super) fn enter(&self) -> Option<MutexGuard<'_, State>> {
        self.running.shared.report_end();
        self.running.shared.enter()
    }

    /// Runs a call of the program, then sends the messages that the call gave to the machine.
    pub(super) fn call<R>(
        &self,
        f: impl FnOnce(&mut State, &Arc<Device>, Instant) -> Result<R, VerbsError>,
    ) -> Result<R, VerbsError> {
        let device = self.device();
        device.check_outside_turn()?;
        let mut state = self.lock();
        self.running.shared.alive()?;
        let now = device.now();
        let result = f(&mut state, device, now);
        state.pump(device, now);
        drop(state);
        self.running.shared.report_end();
        device.wake();
        result
    }

    /// Counters of messages and connections, by name.
    pub(super) fn counters(&self) -> Vec<(&'static str, u64)> {
        let state = self.lock();
        let sent = state.outbox.iter().flat_map(Outbox::lost);
        state.machine.counters().iter().chain(sent).chain(self.running.shared.inbox.lost()).collect()
    }

    /// Counts an event as acknowledged.
    pub(super) fn ack_event(&self, number: u64) {
        if let Some(id) = self.running.shared.enter().as_mut().and_then(|state| state.ids.get_mut(&number)) {
            id.unacked = id.unacked.saturating_sub(1);
        }
    }

    /// Removes the queue of a channel. Refuses the requests in it that were not fetched.
    pub(super) fn close_channel(&self, number: u64) {
        let Some(mut state) = self.running.shared.enter() else { return };
        let now = self.device().now();
        let events = state.queues.close(number);
        let gone = if self.running.shared.alive().is_ok() {
            let gone = state.drop_requests(now, events);
            state.pump(self.device(), now);
            gone
        } else {
            events.into_iter().filter_map(|e| state.ids.remove(&e.new?)).collect()
        };
        drop(state);
        drop(gone);
    }

    /// Removes an identifier with everything that it owns, and tells the peer.
    pub(super) fn remove(&self, number: u64) {
        let Some(mut state) = self.running.shared.enter() else { return };
        let now = self.device().now();
        let gone = if self.running.shared.alive().is_ok() {
            let gone = state.remove(now, number);
            state.pump(self.device(), now);
            gone
        } else {
            // No message to the peer: the machine may be in an inconsistent state.
            state.ids.remove(&number).into_iter().collect()
        };
        drop(state);
        self.running.shared.report_end();
        // Queue pairs are destroyed outside the lock.
        drop(gone);
        self.device().wake();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if self.device().is_forked() {
            return;
        }
        self.running.wait_for_the_end();
        let mut entry = self.kept.lock();
        // If another thread has begun to use it again, there is one more reference than this one and the context's.
        let used = Arc::strong_count(&self.running) > 2;
        let over = self.running.dreqs() == 0 || self.running.shared.alive().is_err();
        let last = if over && !used { entry.running.take() } else { None };
        drop(entry);
        drop(last);
    }
}

/// The data that the lock guards.
pub(super) struct State {
    pub machine: Machine,
    outbox: Option<Outbox>,
    pub ids: HashMap<u64, Id>,
    pub queues: Queues,
    /// The identifier of each connection of the machine.
    pub conns: HashMap<ConnId, u64>,
    /// The identifier of each SIDR exchange of the machine.
    pub sidrs: HashMap<SidrId, u64>,
    /// The port of each listener of the machine. The identifiers of a port share a listener.
    pub listens: HashMap<ListenId, (PortSpace, u16)>,
    /// The listening identifiers of each port, and the one listener of the machine that they share.
    pub listeners: HashMap<(PortSpace, u16), (ListenId, Vec<u64>)>,
    pub ports: Ports,
    /// Identifiers whose address resolution is in progress.
    pub resolving: BTreeSet<u64>,
    /// Identifiers that have accepted a request with a queue pair. Data may arrive before the peer's last message.
    pub accepting: BTreeSet<u64>,
    /// The last one of `accepting` that [`State::see_data`] has checked; the next call continues after it.
    looked_at: u64,
    /// Connections whose peers are being asked whether they still have them.
    pub checks: Vec<(ConnId, PeerCheck)>,
    /// The addresses of this process and of the other one, if they did not choose them: see [`Context::meet`].
    pub address_pair: Option<AddressPair>,
    /// Whether connection management has ended and every identifier was told.
    ended: bool,
}

impl State {
    pub(super) fn new(machine: Machine, host: Option<Arc<Registry>>) -> Self {
        Self {
            machine,
            outbox: None,
            ids: HashMap::new(),
            queues: Queues::default(),
            conns: HashMap::new(),
            sidrs: HashMap::new(),
            listens: HashMap::new(),
            listeners: HashMap::new(),
            ports: Ports::of(host),
            resolving: BTreeSet::new(),
            accepting: BTreeSet::new(),
            looked_at: 0,
            checks: Vec::new(),
            address_pair: None,
            ended: false,
        }
    }

    /// The number of identifiers whose events go to a channel.
    pub(super) fn users_of(&self, queue: u64) -> usize {
        self.ids.values().filter(|id| id.queue == queue).count()
    }

    /// Raises DEVICE_REMOVAL on every identifier, once. Does not wait, and does not use the machine.
    fn end(&mut self) {
        if !core::mem::replace(&mut self.ended, true) {
            let mut numbers: Vec<u64> = self.ids.keys().copied().collect();
            numbers.sort_unstable();
            for number in numbers {
                self.raise(number, EventData::new(CmEventType::DeviceRemoval));
            }
        }
    }

    /// Does the work between turns: received MADs, timers, address resolution.
    fn work(&mut self, device: &Arc<Device>, inbox: &Inbox) {
        let now = device.now();
        self.receive(device, now, inbox);
        if let Some(outbox) = &mut self.outbox {
            outbox.send_resolved(device);
        }
        for qpn in device.take_ended_peers() {
            self.machine.peer_ended(now, qpn);
        }
        self.machine.poll_timers(now);
        self.resolve(device, now);
        self.see_data(now);
        self.see_checks(now);
        self.pump(device, now);
    }

    /// Handles received messages, at most [`MADS_MAX`].
    fn receive(&mut self, device: &Device, now: Instant, inbox: &Inbox) {
        // Collects what arrived before the alarm was reset.
        inbox.collect(device);
        for n in 0..MADS_MAX {
            let Some(arrived) = inbox.pop() else { return };
            if n == 0 {
                self.machine.set_gids(&device.gids());
                self.machine.set_mtu(device.active_mtu());
            }
            self.machine.handle_mad(now, &arrived.path, &arrived.mad[..arrived.len]);
        }
        device.alarm().ring();
    }

    /// Handles the machine's events, sends its messages, and sets the alarm.
    pub(super) fn pump(&mut self, device: &Arc<Device>, now: Instant) {
        for _ in 0..EVENTS_MAX {
            let Some(event) = self.machine.poll_event() else { break };
            self.handle_event(device, now, event);
        }
        let Some(outbox) = &mut self.outbox else { return };
        let waiting = outbox.send(device, &mut self.machine);
        // The thread may have been interrupted since it read the clock.
        self.machine.left_by(now, device.now());
        let looks = !self.resolving.is_empty() || !self.accepting.is_empty() || !self.checks.is_empty();
        if waiting || looks {
            device.alarm().at_the_latest(now.after(CHECK_INTERVAL));
        }
        if let Some(at) = self.machine.next_timer() {
            device.alarm().at_the_latest(at);
        }
    }

    /// Checks which address resolutions have ended.
    pub(super) fn resolve(&mut self, device: &Device, now: Instant) {
        if self.resolving.is_empty() {
            return;
        }
        let mut known = HashMap::new();
        for number in self.resolving.clone() {
            let Some(meant) = self.ids.get(&number).map(|id| self.meant(id)) else { continue };
            let Some(id) = self.ids.get_mut(&number) else { continue };
            let path = *known.entry(meant).or_insert_with(|| device.path_to(&meant));
            let other_absent = meant != id.path.dgid && now >= id.deadline;
            let event = match path {
                // The local address may have been removed during the resolution.
                _ if sgid_index(device, &id.path.sgid).is_err() => {
                    id.state = IdState::Bound;
                    EventData::status(CmEventType::AddrError, -EADDRNOTAVAIL)
                }
                // Resolved; or the other process did not answer in time, so the address means this process, as the program gave it.
                _ if path == PeerPath::Known || other_absent => {
                    if path == PeerPath::Known && meant != id.path.dgid {
                        id.path.dgid = meant;
                        id.peer = id.peer.map(|peer| SocketAddr::new(meant.to_ip(), peer.port()));
                    }
                    let port = id.local.map_or(0, |local| local.port());
                    id.local = Some(SocketAddr::new(id.path.sgid.to_ip(), port));
                    id.state = IdState::AddrResolved;
                    EventData::new(CmEventType::AddrResolved)
                }
                _ if now >= id.deadline => {
                    id.state = IdState::Bound;
                    EventData::status(CmEventType::AddrError, -ETIMEDOUT)
                }
                _ => continue,
            };
            self.resolving.remove(&number);
            self.raise(number, event);
        }
    }

    /// The address that the destination of an identifier stands for: see [`Context::meet`].
    fn meant(&self, id: &Id) -> Gid {
        let (dst, port) = (id.path.dgid, id.peer.map_or(0, |peer| peer.port()));
        let here = |own: IpAddr| {
            let listeners = self.listeners.get(&(id.space, port)).map_or(&[][..], |(_, ids)| ids);
            listeners.iter().any(|n| self.ids.get(n).is_some_and(|listener| listener.serves(own) > 0))
        };
        match self.address_pair {
            Some((own, other)) if dst == Gid::from_ip(own) && !here(own) => Gid::from_ip(other),
            _ => dst,
        }
    }

    /// Establishes connections whose queue pair has received data, as the peer's RTU does (IBA 12.9.7.2).
    fn see_data(&mut self, now: Instant) {
        let mut seen = Vec::new();
        let (before, after) = (..=self.looked_at, (Bound::Excluded(self.looked_at), Bound::Unbounded));
        let looks: Vec<u64> =
            self.accepting.range(after).chain(self.accepting.range(before)).take(LOOKS).copied().collect();
        for number in &looks {
            self.looked_at = *number;
            let Some(Id { qp: Some(qp), conn: Some(conn), frames, .. }) = self.ids.get(number) else {
                continue;
            };
            if frames_taken(&qp.counters()) > *frames {
                seen.push(*conn);
            }
        }
        for conn in seen {
            // Fails if the connection has ended meanwhile, which an event reports.
            let _ = self.machine.established(now, conn);
        }
    }

    /// Tells the machine which of the checked peers have answered and which have not.
    fn see_checks(&mut self, now: Instant) {
        for (conn, check) in self.checks.extract_if(.., |(_, check)| check.state() != PeerState::Asked) {
            let answer = match check.state() {
                PeerState::Alive => PeerAnswer::Answered,
                PeerState::Silent => PeerAnswer::Silent,
                _ => PeerAnswer::NotAsked,
            };
            self.machine.peer_checked(now, conn, answer);
        }
    }

    /// Queues an event of an identifier.
    pub(super) fn raise(&mut self, number: u64, data: EventData) {
        if let Some(id) = self.ids.get(&number) {
            self.queues.push(id.queue, Queued { id: number, new: None, data });
        }
    }

    /// Removes the identifiers of requests that were not fetched.
    fn drop_requests(&mut self, now: Instant, events: Vec<Queued>) -> Vec<Id> {
        events.into_iter().filter_map(|e| e.new).flat_map(|new| self.remove(now, new)).collect()
    }

    /// Notes that the program has fetched a request, so that its listener has room for another one.
    pub(super) fn fetched(&mut self, number: u64) {
        let Some(id) = self.ids.get_mut(&number) else { return };
        let (host, listener) = (id.path.dgid, id.listener.take());
        // The listener may have been destroyed.
        if let Some(listener) = listener.and_then(|number| self.ids.get_mut(&number)) {
            listener.unfetched.remove(host, number);
        }
    }

    /// Refuses a request that was not fetched, to make room for one of another host.
    pub(super) fn push_out(&mut self, now: Instant, number: u64) {
        let Some(id) = self.ids.get_mut(&number) else { return };
        let (conn, sidr) = (id.conn.take(), id.sidr.take());
        // These calls fail only if the request has ended by itself.
        if let Some(conn) = conn {
            self.conns.remove(&conn);
            let full = Reject { reason: Reason::NO_RESOURCES, ..Reject::consumer([]) };
            let _ = self.machine.reject(now, conn, &full);
        }
        if let Some(sidr) = sidr {
            self.sidrs.remove(&sidr);
            let full = SidrReply { status: SidrStatus::NO_QP, ..super::record::refusal(Vec::new()) };
            let _ = self.machine.sidr_reply(now, sidr, &full);
        }
        drop(self.remove(now, number));
    }

    /// Removes an identifier, with its requests that were not fetched.
    pub(super) fn remove(&mut self, now: Instant, number: u64) -> Vec<Id> {
        self.end_exchange(now, number);
        self.fetched(number);
        let Some(mut id) = self.ids.remove(&number) else { return Vec::new() };
        let mut events = self.queues.take(id.queue, number);
        if id.queue == number {
            events.extend(self.queues.close(number));
        }
        events.retain(|e| e.new != Some(number));
        let mut gone = self.drop_requests(now, events);
        self.resolving.remove(&number);
        self.stop_listening(number, &id);
        if let Some(port) = id.port.take() {
            self.ports.release(number, id.space, port);
        }
        id.leave_groups();
        if id.had_connection() {
            id.qp_to_err();
        }
        gone.push(id);
        gone
    }

    /// For a process that exits without dropping its identifiers: disconnects the connected ones, and gives up requests of either side.
    /// Repeats the message to peers that have not answered.
    pub(super) fn take_leave(&mut self, now: Instant) {
        use IdState::{Accepting, Connected, Connecting, Requested, Responded};
        // The machine tells the peers, including those that it has accepted and whose last message may be lost.
        self.machine.leave(now);
        for number in self.ids.keys().copied().collect::<Vec<_>>() {
            let Some(id) = self.ids.get_mut(&number) else { continue };
            match id.state {
                Connected if id.conn.is_some() => id.state = IdState::Disconnecting,
                Requested | Connecting | Responded | Accepting => {
                    self.end_exchange(now, number);
                    // A thread may be waiting for the peer's answer.
                    let event = EventData::new(CmEventType::Disconnected);
                    self.over(now, number, IdState::Disconnected, event);
                }
                _ => {}
            }
        }
    }

    /// Repeats the message to peers whose connections have ended here and that have not answered.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.machine.hurry(now);
    }

    /// Ends the exchanges of an identifier in the machine.
    fn end_exchange(&mut self, now: Instant, number: u64) {
        self.accepting.remove(&number);
        let Some(id) = self.ids.get_mut(&number) else { return };
        if let Some(conn) = id.conn.take() {
            self.conns.remove(&conn);
            // Fails if the connection has ended by itself.
            let _ = self.machine.destroy(now, conn);
        }
        if let Some(sidr) = id.sidr.take() {
            self.sidrs.remove(&sidr);
            let _ = match id.state {
                IdState::Requested => self.machine.sidr_reply(now, sidr, &super::record::refusal(Vec::new())),
                _ => self.machine.sidr_destroy(now, sidr),
            };
        }
    }

    /// Removes an identifier from the listeners of its port, and closes the machine's listener if it was the last one.
    fn stop_listening(&mut self, number: u64, id: &Id) {
        let Some(port) = id.port.filter(|_| id.state == IdState::Listening) else { return };
        let key = (id.space, port);
        if let Some((listen, ids)) = self.listeners.get_mut(&key) {
            let listen = *listen;
            ids.retain(|n| *n != number);
            if ids.is_empty() {
                self.listeners.remove(&key);
                self.listens.remove(&listen);
                // Cannot fail, because the listener has existed until now.
                let _ = self.machine.close_listener(listen);
            }
        }
    }

    /// The identifier that a call uses.
    ///
    /// # Panics
    /// If it does not exist. The caller's handle keeps it alive.
    pub(super) fn id(&mut self, number: u64) -> &mut Id {
        self.ids.get_mut(&number).expect("an identifier lives as long as its handle")
    }
}

/// How many frames from its peer's address a queue pair accepted. Frames that it refused or dropped are not counted, because they do not
/// prove that the peer sent them.
pub(super) fn frames_taken(counters: &CounterSnapshot) -> u64 {
    let dropped: u64 = Discard::ALL.iter().map(|reason| counters.discarded(*reason)).sum();
    let refused = counters.get(Counter::RequestsRefused) + counters.get(Counter::DuplicatesAnswered);
    counters.get(Counter::RxFrames).saturating_sub(dropped + refused)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use stack::device::Service as _;

    use super::*;
    use crate::rdma_cm::{ConnParam, EventChannel};
    use crate::{Clock, Context, DeviceConfig, Drive, QpInitAttr};

    fn quiet<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
    }

    // Goal: after a panic in connection management, in a call or between turns, each identifier gets an event, calls return the error,
    // nothing waits, and the device continues. When all handles are dropped, connection management can start again.
    #[test]
    fn a_panic_in_connection_management_is_reported() {
        let context = Context::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
        for between_turns in [false, true] {
            let channel = EventChannel::new().unwrap();
            let service = Service::of(&context).unwrap();
            let ids = [(); 2].map(|()| context.create_id(Some(&channel), PortSpace::Tcp).unwrap());
            let broken = quiet(|| {
                if between_turns {
                    // As if the machine had an event for an unknown connection.
                    let _state = service.running.shared.state.lock().unwrap();
                    panic!("between two turns");
                }
                service.call(|_, _, _| -> Result<(), VerbsError> { panic!("in a call") })
            });
            assert!(broken.is_err());
            let mut told = 0;
            while let Some(event) = channel.get_event(Duration::from_secs(30)).unwrap() {
                assert_eq!(event.event(), CmEventType::DeviceRemoval);
                event.ack();
                told += 1;
                if told == ids.len() {
                    break;
                }
            }
            assert!(channel.try_get_event().is_none(), "once each");
            for id in &ids {
                let e = id.bind_addr(([192, 0, 2, 1], 0)).unwrap_err();
                assert!(matches!(e, VerbsError::Device(DeviceError::ServiceDied)), "{e}");
                assert_eq!(e.errno(), crate::errno::EIO);
            }
            let mut reactor = context.reactor(0).unwrap();
            assert!((0..50).all(|_| reactor.poll_once().is_some()), "the device goes on");
            drop((ids, channel, service));
            let anew = context.create_id(None, PortSpace::Tcp).unwrap();
            anew.bind_addr(([192, 0, 2, 1], 0)).unwrap();
        }
    }

    // Goal: if the thread is interrupted between reading the clock and sending the message, the peer still has its full time to answer.
    #[test]
    fn an_interrupted_call_leaves_the_peer_its_time() {
        use stack::device::cm::{Path, ServiceId, SidrRequest, Timing};
        let clock = Arc::new(AtomicU64::new(1));
        let mut config = DeviceConfig::loopback().drive(Drive::Embedded);
        config.clock = Clock::Manual(clock.clone());
        let context = Context::open(config).unwrap();
        let service = Service::of(&context).unwrap();
        let own = service.device().gids().iter().copied().find(|gid| gid.as_v4().is_some()).unwrap();
        let path = Path { sgid: own, dgid: own, ..Path::default() };
        const INTERRUPTION: Duration = Duration::from_secs(3600);
        let asked = service.call(|state, _, now| {
            let request = SidrRequest {
                path,
                service_id: ServiceId(7),
                ip: None,
                private_data: Vec::new(),
                timing: Timing::default(),
            };
            let id = state.machine.sidr_request(now, &request);
            let timer = state.machine.next_timer().unwrap();
            clock.fetch_add(INTERRUPTION.as_nanos() as u64, Ordering::AcqRel);
            Ok((id.unwrap(), timer))
        });
        let (_, timer) = asked.unwrap();
        assert_eq!(service.lock().machine.next_timer(), Some(timer.after(INTERRUPTION)));
    }

    // Goal: the number of a connection's queue pair is reserved until TIMEWAIT is over, even after queue pair and identifier are dropped.
    #[test]
    fn a_number_is_held_as_long_as_its_connection_rests() {
        const SOON: Duration = Duration::from_secs(30);
        let clock = Arc::new(AtomicU64::new(1));
        let mut config = DeviceConfig::loopback().drive(Drive::Embedded);
        config.clock = Clock::Manual(clock.clone());
        let context = Context::open(config).unwrap();
        let (service, channel) = (Service::of(&context).unwrap(), EventChannel::new().unwrap());
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let init = QpInitAttr::rc(&cq, &cq);
        let next = |what| {
            let event = channel.get_event(SOON).unwrap().expect("an event in time");
            assert_eq!(event.event(), what);
            event
        };
        let id = || context.create_id(Some(&channel), PortSpace::Tcp).unwrap();
        let (listener, client) = (id(), id());
        listener.listen(0).unwrap();
        client.resolve_addr(None, ([192, 0, 2, 1], listener.src_port()), SOON).unwrap();
        next(CmEventType::AddrResolved).ack();
        client.resolve_route(SOON).unwrap();
        next(CmEventType::RouteResolved).ack();
        let qpn = client.create_qp(&pd, &init).unwrap().qp_num();
        assert!(!service.running.shared.holds(qpn), "no connection has it yet");
        client.connect(&ConnParam::default()).unwrap();
        let server = next(CmEventType::ConnectRequest).take_id().unwrap();
        server.create_qp(&pd, &init).unwrap();
        server.accept(&ConnParam::default()).unwrap();
        next(CmEventType::Established).ack();
        next(CmEventType::Established).ack();
        assert!(service.running.shared.holds(qpn));
        client.disconnect().unwrap();
        next(CmEventType::Disconnected).ack();
        next(CmEventType::Disconnected).ack();
        client.destroy_qp().unwrap();
        client.destroy().unwrap();
        assert!(service.running.shared.holds(qpn), "it rests");
        clock.fetch_add(Duration::from_secs(1000).as_nanos() as u64, Ordering::AcqRel);
        assert!(next(CmEventType::TimewaitExit).is_of(&server));
        assert!(!service.running.shared.holds(qpn));
    }
}
