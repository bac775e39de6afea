//! The machine: the connections of a device, its timers and its queues of events.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::code;
use super::config::Config;
use super::conn::{Conn, State};
use super::counter::{Counter, Counters};
use super::doubt::Questions;
use super::error::Error;
use super::event::{ConnId, Disconnect, Event, Path, SidrId};
use super::leave;
use super::listen::Listeners;
use super::mad::Mad;
use super::message;
use super::message::padded;
use super::random::Random;
use super::reason::Reason;
use super::send::Sends;
use super::share::{Full, Shares};
use super::sidr::Sidrs;
use crate::id::{Gid, Mtu, Qpn};
use crate::time::Instant;

/// How many timers one call of [`Machine::poll_timers`] serves at most, and how many hosts with waiting requests.
const TIMER_BUDGET: usize = 256;

/// Which message a REJ rejects.
pub(super) const REJ_REQ: u8 = 0;
pub(super) const REJ_REP: u8 = 1;
pub(super) const REJ_OTHER: u8 = 2;

/// A peer's identity: the source address of its MADs and the node GUID that it claims. A host that claims the GUID of another host can
/// reach only connections of its own address, never those of the other host.
pub(super) type Peer = (Gid, u64);

/// What a timer belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timed {
    Conn(ConnId),
    Sidr(SidrId),
}

/// A deadline or timer that was set during a call, and counts from its `now`. The MADs of the call may leave later, and
/// [`Machine::left_by`] then postpones it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Begun {
    /// The deadline for an answer over all retransmissions. Comes first in the order, since it bounds the timer.
    Wait(ConnId),
    Timer(Timed),
}

/// The connection manager of a device.
pub struct Machine {
    pub(super) config: Config,
    pub(super) gids: Vec<Gid>,
    pub(super) random: Random,
    pub(super) counters: Counters,
    /// How many IDs were given out, of every kind.
    pub(super) ids: u64,
    pub(super) listeners: Listeners,
    pub(super) conns: BTreeMap<ConnId, Conn>,
    /// Connections by our communication ID.
    pub(super) local_ids: BTreeMap<u32, ConnId>,
    /// Connections that a REQ began, by peer and the peer's communication ID.
    pub(super) remote_ids: BTreeMap<(Peer, u32), ConnId>,
    /// Connections by peer and the peer's queue pair.
    pub(super) remote_qpns: BTreeMap<(Peer, Qpn), ConnId>,
    /// Connections by our queue pair.
    pub(super) local_qpns: BTreeMap<Qpn, ConnId>,
    /// Connections in a state where [`State::half_open`] is true, by peer.
    pub(super) half_open: Shares<ConnId>,
    /// Connections whose DREQ is not answered yet.
    pub(super) dreqs: BTreeSet<ConnId>,
    /// Connections in TIMEWAIT, by peer.
    pub(super) resting: Shares<ConnId>,
    pub(super) questions: Questions,
    pub(super) sidrs: Sidrs,
    pub(super) timers: BTreeSet<(Instant, Timed)>,
    /// Deadlines and timers that were set since the last [`Machine::left_by`].
    begun: Vec<Begun>,
    pub(super) sends: Sends,
    events: VecDeque<Event>,
}

/// Input, output and timers.
impl Machine {
    /// A machine without listeners or connections.
    pub fn new(config: Config) -> Self {
        Self {
            random: Random::new(config.seed),
            config,
            gids: Vec::new(),
            counters: Counters::default(),
            ids: 0,
            listeners: Listeners::default(),
            conns: BTreeMap::new(),
            local_ids: BTreeMap::new(),
            remote_ids: BTreeMap::new(),
            remote_qpns: BTreeMap::new(),
            local_qpns: BTreeMap::new(),
            half_open: Shares::default(),
            dreqs: BTreeSet::new(),
            resting: Shares::default(),
            questions: Questions::default(),
            sidrs: Sidrs::default(),
            timers: BTreeSet::new(),
            begun: Vec::new(),
            sends: Sends::default(),
            events: VecDeque::new(),
        }
    }

    /// Sets our addresses: a REQ must name one of them, or the address at which it arrived. Call this at the start and after each change.
    pub fn set_gids(&mut self, gids: &[Gid]) {
        self.gids = gids.to_vec();
    }

    /// Sets the largest path MTU of the port, if it changed since [`Config::mtu`] was set.
    pub fn set_mtu(&mut self, mtu: Mtu) {
        self.config.mtu = mtu;
    }

    /// The counters of the machine.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The configuration of the machine.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// How many connections there are in any state, TIMEWAIT included.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// How many connections a REQ began that are not established yet.
    pub const fn half_open(&self) -> usize {
        self.half_open.len()
    }

    /// How many SIDR exchanges there are, including those whose answer is kept for a retransmitted request.
    pub fn sidr_exchanges(&self) -> usize {
        self.sidrs.len()
    }

    /// Whether a queue pair belongs to a connection, or is in TIMEWAIT after one: its number must not be used for another one yet.
    pub fn qp_busy(&self, qpn: Qpn) -> bool {
        self.local_qpns.contains_key(&qpn)
    }

    /// When to call [`Machine::poll_timers`] next; `None` if no timer runs.
    pub fn next_timer(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.sends.pace.next()).min()
    }

    /// Serves a bounded number of the timers that have expired by `now`. Afterwards [`Machine::next_timer`] shows whether more have.
    pub fn poll_timers(&mut self, now: Instant) {
        for _ in 0..TIMER_BUDGET {
            match self.timers.first() {
                Some((at, timed)) if *at <= now => match *timed {
                    Timed::Conn(id) => self.conn_timer(now, id),
                    Timed::Sidr(id) => self.sidr_timer(now, id),
                },
                _ => break,
            }
        }
        for _ in 0..TIMER_BUDGET {
            let Some(host) = self.sends.pace.poll_taken(now) else { break };
            self.admit(now, host);
        }
    }

    /// For callers that can be preempted: says that the calls since the last `left_by` were given `now`, but that their events were handled
    /// and their MADs sent only at `by`. Deadlines and timers that those calls set are postponed by the difference, so that none is too
    /// short.
    pub fn left_by(&mut self, now: Instant, by: Instant) {
        let late = by.nanos_since(now);
        let mut begun = core::mem::take(&mut self.begun);
        begun.sort_unstable();
        begun.dedup();
        for begun in begun.drain(..).filter(|_| late > 0) {
            match begun {
                Begun::Wait(id) => {
                    // A deadline that a peer's REQ set is not postponed.
                    if let Some(conn) = self.conns.get_mut(&id).filter(|conn| !conn.state.half_open()) {
                        conn.deadline = conn.deadline.after_nanos(late);
                    }
                }
                Begun::Timer(Timed::Conn(id)) => {
                    if let Some(timer) = self.conns.get(&id).map(|conn| conn.timer) {
                        self.arm(id, timer.after_nanos(late));
                    }
                }
                Begun::Timer(Timed::Sidr(id)) => self.sidr_left_late(id, late),
            }
        }
        self.begun.clear();
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// Used by the other files of this module.
impl Machine {
    pub(super) fn new_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Whether there is no room for an event caused by a request of a remote host.
    pub(super) fn events_full(&self) -> bool {
        self.events.len() >= self.config.limits.events
    }

    /// Queues an event, even if the program destroyed its connection.
    pub(super) fn push_event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Queues an event of a connection, unless the program destroyed the connection.
    pub(super) fn event(&mut self, id: ConnId, event: Event) {
        if self.conns.get(&id).is_some_and(|c| !c.gone) {
            self.events.push_back(event);
        }
    }

    /// Remembers a deadline or timer for `left_by`. The number is bounded, because a caller need not call `left_by`.
    pub(super) fn began(&mut self, begun: Begun) {
        if self.begun.len() < self.config.limits.sends {
            self.begun.push(begun);
        }
    }

    /// How long our request waits for its answer over all retransmissions, on a connection that a peer's REQ began. At most the configured
    /// limit.
    pub(super) fn max_wait(&self, interval: Duration, retries: u8) -> Duration {
        (interval * (u32::from(retries) + 1)).min(self.config.limits.half_open_time)
    }

    /// Sets a connection's timer to `at`, or to its deadline if that is earlier. [`Instant::FAR`] stops the timer.
    pub(super) fn arm(&mut self, id: ConnId, at: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let at = if conn.state.has_deadline() { at.min(conn.deadline) } else { at };
        self.timers.remove(&(conn.timer, Timed::Conn(id)));
        conn.timer = at;
        if at != Instant::FAR {
            self.timers.insert((at, Timed::Conn(id)));
            self.began(Begun::Timer(Timed::Conn(id)));
        }
    }

    pub(super) fn conn(&self, id: ConnId) -> Result<&Conn, Error> {
        self.conns.get(&id).filter(|c| !c.gone).ok_or(Error::NoConnection(id))
    }

    /// Adds a connection.
    pub(super) fn insert(&mut self, conn: Conn) -> ConnId {
        let id = ConnId(self.new_id());
        self.local_ids.insert(conn.local_id, id);
        if conn.state.half_open() {
            self.half_open.insert(conn.mad_path.dgid, id);
        }
        if let Some(listener) = conn.listener {
            self.listeners.wait(listener, conn.mad_path.dgid, id);
        }
        self.conns.insert(id, conn);
        id
    }

    /// Changes the state of a connection and updates the indexes.
    pub(super) fn enter(&mut self, now: Instant, id: ConnId, state: State) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let was = core::mem::replace(&mut conn.state, state);
        let host = conn.mad_path.dgid;
        if conn.asked.take().is_some() {
            self.questions.end(&host); // it was established until now
        }
        if let Some(listener) = conn.listener.take_if(|_| state != State::ReqRcvd) {
            self.listeners.decided(listener, host, id);
        }
        if was.half_open() && !state.half_open() {
            self.half_open.remove(host, id);
        }
        if state == State::TimeWait {
            self.resting.insert(host, id);
        }
        if state == State::DreqSent {
            self.dreqs.insert(id);
        } else {
            self.dreqs.remove(&id);
        }
        self.answered(now, Timed::Conn(id));
    }

    /// Removes a connection. Its queue pair can be reused at once.
    pub(super) fn remove(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.remove(&id) else { return };
        let host = conn.mad_path.dgid;
        self.timers.remove(&(conn.timer, Timed::Conn(id)));
        self.half_open.remove(host, id);
        self.resting.remove(host, id);
        self.dreqs.remove(&id);
        if conn.asked.is_some() {
            self.questions.end(&host);
        }
        if let Some(listener) = conn.listener {
            self.listeners.decided(listener, host, id);
        }
        self.local_ids.remove(&conn.local_id);
        remove_if(&mut self.remote_ids, &(conn.peer(), conn.remote_id), id);
        remove_if(&mut self.remote_qpns, &(conn.peer(), conn.params.dest_qpn), id);
        remove_if(&mut self.local_qpns, &conn.params.qpn, id);
        self.answered(now, Timed::Conn(id));
    }

    /// Moves a connection into TIMEWAIT: its IDs and its queue pair are not reused until its last packets have left the network.
    pub(super) fn time_wait(&mut self, now: Instant, id: ConnId) {
        self.enter(now, id, State::TimeWait);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.mad = None;
        let rest = code::time(conn.params.timeout).min(self.config.limits.peer_time);
        self.arm(id, now.after(rest));
    }

    /// Ends an established connection: reports it and enters TIMEWAIT.
    pub(super) fn disconnected(&mut self, now: Instant, id: ConnId, how: Disconnect, private_data: Vec<u8>) {
        self.counters.count(Counter::Disconnected);
        self.event(id, Event::Disconnected { id, how, private_data });
        self.time_wait(now, id);
    }

    /// Makes a connection established.
    pub(super) fn establish(&mut self, now: Instant, id: ConnId) {
        self.counters.count(Counter::Established);
        self.enter(now, id, State::Established);
        self.ask_later(now, id);
    }

    /// Gives up a connection, because the peer does not answer or the program does not decide. Sends a REJ nevertheless: possibly only the
    /// path from the peer to us is broken.
    pub(super) fn unreachable(&mut self, now: Instant, id: ConnId, message: u8, timewait: bool) {
        let guid = self.config.ca_guid.to_be_bytes();
        let rej = self.conns[&id].rej(message, Reason::TIMEOUT, &guid, &[]);
        self.send_once(id, &rej);
        // The REJ rejects the peer's REQ or REP: it was our program that did not decide.
        let ours = matches!(message, REJ_REQ | REJ_REP);
        self.counters.count(if ours { Counter::Undecided } else { Counter::Unreachable });
        self.event(id, Event::Unreachable { id, timewait });
        if timewait { self.time_wait(now, id) } else { self.remove(now, id) }
    }

    /// Sends a DREQ, with retransmissions.
    pub(super) fn send_dreq(&mut self, now: Instant, id: ConnId, ending: Disconnect, private_data: &[u8]) {
        let tid = self.random.next();
        self.enter(now, id, State::DreqSent);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.ending = ending;
        conn.tid = tid;
        let mad = conn.dreq(tid, private_data);
        self.send_request(now, id, &mad);
    }

    /// Handles the expiry of a connection's timer.
    fn conn_timer(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let repeats = matches!(conn.state, State::ReqSent | State::RepSent | State::DreqSent);
        if repeats && conn.left > 0 && now < conn.deadline {
            conn.left -= 1;
            conn.mra = false;
            if conn.hurries {
                conn.interval = (conn.interval * 2).min(leave::LONGEST);
            }
            return self.request(now, Timed::Conn(id));
        }
        match conn.state {
            State::ReqSent => self.unreachable(now, id, REJ_OTHER, false),
            State::ReqRcvd => self.unreachable(now, id, REJ_REQ, false),
            State::RepSent => self.unreachable(now, id, REJ_OTHER, true),
            State::RepRcvd => self.unreachable(now, id, REJ_REP, true),
            State::DreqSent => {
                let how = if conn.ending == Disconnect::Agreed { Disconnect::TimedOut } else { conn.ending };
                self.disconnected(now, id, how, Vec::new());
            }
            State::TimeWait => self.rested(now, id),
            State::Established => self.keep_alive(now, id),
        }
    }

    /// Ends TIMEWAIT.
    fn rested(&mut self, now: Instant, id: ConnId) {
        let qpn = self.conns[&id].params.qpn;
        self.remove(now, id);
        self.push_event(Event::TimeWaitExit { id, qpn });
    }

    /// Makes room for one more connection in any state.
    ///
    /// # Errors
    /// [`Full`] if there is no such connection.
    pub(super) fn make_room(&mut self, now: Instant, host: Gid) -> Result<(), Full> {
        if self.conns.len() < self.config.limits.connections {
            return Ok(());
        }
        // Only connections in TIMEWAIT can go: the oldest of the host with most of them.
        let oldest = self.resting.room(0, host)?.ok_or(Full)?;
        self.counters.count(Counter::RestCut);
        self.rested(now, oldest);
        Ok(())
    }

    /// Gives up a connection to make room for one of another host, as if its time were over.
    pub(super) fn push_out(&mut self, now: Instant, id: ConnId) {
        self.counters.count(Counter::PushedOut);
        match self.conns[&id].state {
            State::ReqRcvd => self.unreachable(now, id, REJ_REQ, false),
            _ => self.unreachable(now, id, REJ_OTHER, true),
        }
    }

    /// Completes the path of a received datagram, or of a REQ, with our hop limit.
    pub(super) fn reply_path(&self, path: &Path) -> Path {
        let hop_limit = if self.config.hop_limit == 0 { 64 } else { self.config.hop_limit };
        Path { hop_limit, ..*path }
    }

    /// Sends a REJ for a REQ that begins no connection.
    pub(super) fn refuse(&mut self, path: &Path, tid: u64, remote_comm_id: u32, reason: Reason, info: &[u8]) {
        let rej = message::Rej {
            local_comm_id: 0,
            remote_comm_id,
            message: REJ_REQ,
            info_length: info.len() as u8,
            reason,
            info: padded(info),
            private_data: [0; 148],
        };
        let path = self.reply_path(path);
        self.answer(path, &Mad::new(tid, rej));
    }
}

/// Fails unless a MAD comes from the address to which the MADs of this exchange go: no other host may act on it.
pub(super) fn from_peer(exchange: &Path, seen: &Path) -> Result<(), Counter> {
    if seen.dgid == exchange.dgid { Ok(()) } else { Err(Counter::NotThePeer) }
}

/// Whether this can be the address of a host: neither zero nor multicast.
pub(super) fn is_host(gid: &Gid) -> bool {
    !gid.is_zero() && !gid.is_multicast() && gid.as_v4() != Some([0; 4])
}

/// Removes an entry if it belongs to `id`: the key may belong to a newer connection now.
fn remove_if<K: Ord>(map: &mut BTreeMap<K, ConnId>, key: &K, id: ConnId) {
    if map.get(key) == Some(&id) {
        map.remove(key);
    }
}
