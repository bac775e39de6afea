//! The machine: all state of a device, its queues and its timers.

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

/// Timers served by one call of [`Machine::poll_timers`], and hosts for which requests waited.
const TIMER_BUDGET: usize = 256;

/// The message that a REJ is about.
pub(super) const REJ_REQ: u8 = 0;
pub(super) const REJ_REP: u8 = 1;
pub(super) const REJ_OTHER: u8 = 2;

/// A peer's identity: the address from which its MADs come, and the GUID that it claims. A host that claims the GUID of another
/// host reaches only connections of its own address, and never those of the other host.
pub(super) type Peer = (Gid, u64);

/// The owner of a timer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timed {
    Conn(ConnId),
    Sidr(SidrId),
}

/// A wait or timer that counts from the beginning of a call. It should count from when the call's MADs were sent and its events
/// were handled: see [`Machine::left_by`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Begun {
    /// The whole wait for an answer; first, as it bounds the timer.
    Wait(ConnId),
    Timer(Timed),
}

/// The connection manager of a device.
pub struct Machine {
    pub(super) config: Config,
    pub(super) gids: Vec<Gid>,
    pub(super) random: Random,
    pub(super) counters: Counters,
    /// Ids given out, of every kind.
    pub(super) ids: u64,
    pub(super) listeners: Listeners,
    pub(super) conns: BTreeMap<ConnId, Conn>,
    /// By our comm id.
    pub(super) local_ids: BTreeMap<u32, ConnId>,
    /// By the peer and its comm id: those that a REQ began.
    pub(super) remote_ids: BTreeMap<(Peer, u32), ConnId>,
    /// By the peer and its queue pair.
    pub(super) remote_qpns: BTreeMap<(Peer, Qpn), ConnId>,
    /// By our queue pair.
    pub(super) local_qpns: BTreeMap<Qpn, ConnId>,
    /// Connections in a state with [`State::half_open`], by peer.
    pub(super) half_open: Shares<ConnId>,
    /// Connections whose DREQ is not answered.
    pub(super) dreqs: BTreeSet<ConnId>,
    /// Connections in TIMEWAIT, by peer.
    pub(super) resting: Shares<ConnId>,
    pub(super) questions: Questions,
    pub(super) sidrs: Sidrs,
    pub(super) timers: BTreeSet<(Instant, Timed)>,
    /// Waits and timers that began since [`Machine::left_by`].
    begun: Vec<Begun>,
    pub(super) sends: Sends,
    events: VecDeque<Event>,
}

/// Input, output, time.
impl Machine {
    /// A machine without listeners and connections.
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

    /// Sets our addresses: a REQ must name one of them, or the one it came to. Call this at the start and at each change.
    pub fn set_gids(&mut self, gids: &[Gid]) {
        self.gids = gids.to_vec();
    }

    /// Sets the largest path MTU of the port, where it has changed since [`Config::mtu`].
    pub fn set_mtu(&mut self, mtu: Mtu) {
        self.config.mtu = mtu;
    }

    /// Counts of everything.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How the machine is configured.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Connections in any state, those in TIMEWAIT too.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Connections that a REQ began and that are not established.
    pub const fn half_open(&self) -> usize {
        self.half_open.len()
    }

    /// SIDR exchanges, including those whose answer is kept for a repeated request.
    pub fn sidr_exchanges(&self) -> usize {
        self.sidrs.len()
    }

    /// Whether a queue pair is in a connection, or rests in TIMEWAIT after one: its number must not be used again yet.
    pub fn qp_busy(&self, qpn: Qpn) -> bool {
        self.local_qpns.contains_key(&qpn)
    }

    /// When to call [`Machine::poll_timers`] next.
    pub fn next_timer(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.sends.pace.next()).min()
    }

    /// Does the work that is due at `now`, a bounded part of it: [`Machine::next_timer`] shows whether more is.
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

    /// For callers that can be preempted: the calls since the last `left_by` were given `now`, but their events were handled and
    /// their MADs sent only at `by`. Waits and timers that those calls began then count from `by`, so that none is too short.
    pub fn left_by(&mut self, now: Instant, by: Instant) {
        let late = by.nanos_since(now);
        let mut begun = core::mem::take(&mut self.begun);
        begun.sort_unstable();
        begun.dedup();
        for begun in begun.drain(..).filter(|_| late > 0) {
            match begun {
                Begun::Wait(id) => {
                    // A wait that a stranger began is not extended.
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

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// Shared by the parts.
impl Machine {
    pub(super) fn new_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Whether there is room for an event that a stranger causes.
    pub(super) fn events_full(&self) -> bool {
        self.events.len() >= self.config.limits.events
    }

    /// An event that belongs to no connection.
    pub(super) fn push_event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// An event of a connection, unless the program gave it up.
    pub(super) fn event(&mut self, id: ConnId, event: Event) {
        if self.conns.get(&id).is_some_and(|c| !c.gone) {
            self.events.push_back(event);
        }
    }

    /// Remembers a wait or timer that begins, for `left_by`; a bounded number, as a caller need not call that.
    pub(super) fn began(&mut self, begun: Begun) {
        if self.begun.len() < self.config.limits.sends {
            self.begun.push(begun);
        }
    }

    /// How long our request waits for its answer, on a connection that a peer's REQ began: by the intervals and repetitions of the
    /// REQ or `Accept`, within the limit.
    pub(super) fn max_wait(&self, interval: Duration, retries: u8) -> Duration {
        (interval * (u32::from(retries) + 1)).min(self.config.limits.half_open_time)
    }

    /// Sets a connection's timer.
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

    /// A new connection.
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

    /// Moves a connection on.
    pub(super) fn enter(&mut self, now: Instant, id: ConnId, state: State) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let was = core::mem::replace(&mut conn.state, state);
        let host = conn.mad_path.dgid;
        if conn.asked.take().is_some() {
            self.questions.end(&host); // it was established, and is over
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

    /// Ends a connection whose queue pair need not rest.
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

    /// Ends a connection whose packets may be under way: its ids and its queue pair rest until they have died out.
    pub(super) fn time_wait(&mut self, now: Instant, id: ConnId) {
        self.enter(now, id, State::TimeWait);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.mad = None;
        let rest = code::time(conn.params.timeout).min(self.config.limits.peer_time);
        self.arm(id, now.after(rest));
    }

    /// An established connection is over.
    pub(super) fn disconnected(&mut self, now: Instant, id: ConnId, how: Disconnect, private_data: Vec<u8>) {
        self.counters.count(Counter::Disconnected);
        self.event(id, Event::Disconnected { id, how, private_data });
        self.time_wait(now, id);
    }

    /// A connection is established.
    pub(super) fn establish(&mut self, now: Instant, id: ConnId) {
        self.counters.count(Counter::Established);
        self.enter(now, id, State::Established);
        self.ask_later(now, id);
    }

    /// The peer does not answer, or the program does not decide. Sends a REJ all the same, in case only the way here is broken.
    pub(super) fn unreachable(&mut self, now: Instant, id: ConnId, message: u8, timewait: bool) {
        let guid = self.config.ca_guid.to_be_bytes();
        let rej = self.conns[&id].rej(message, Reason::TIMEOUT, &guid, &[]);
        self.send_once(id, &rej);
        // A REJ of the peer's REQ or REP: the peer waited for our program.
        let ours = matches!(message, REJ_REQ | REJ_REP);
        self.counters.count(if ours { Counter::Undecided } else { Counter::Unreachable });
        self.event(id, Event::Unreachable { id, timewait });
        if timewait { self.time_wait(now, id) } else { self.remove(now, id) }
    }

    /// Sends a DREQ, and repeats it.
    pub(super) fn send_dreq(&mut self, now: Instant, id: ConnId, ending: Disconnect, private_data: &[u8]) {
        let tid = self.random.next();
        self.enter(now, id, State::DreqSent);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.ending = ending;
        conn.tid = tid;
        let mad = conn.dreq(tid, private_data);
        self.send_request(now, id, &mad);
    }

    /// A connection's timer fired.
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

    /// The rest of a connection is over.
    fn rested(&mut self, now: Instant, id: ConnId) {
        let qpn = self.conns[&id].params.qpn;
        self.remove(now, id);
        self.push_event(Event::TimeWaitExit { id, qpn });
    }

    /// Makes room for one more connection in any state.
    ///
    /// # Errors
    /// [`Full`].
    pub(super) fn make_room(&mut self, now: Instant, host: Gid) -> Result<(), Full> {
        if self.conns.len() < self.config.limits.connections {
            return Ok(());
        }
        // What rests is over: the oldest of the host with most of it rests less.
        let oldest = self.resting.room(0, host)?.ok_or(Full)?;
        self.counters.count(Counter::RestCut);
        self.rested(now, oldest);
        Ok(())
    }

    /// Gives up a connection that another host's has to have room for: as if its time were over.
    pub(super) fn push_out(&mut self, now: Instant, id: ConnId) {
        self.counters.count(Counter::PushedOut);
        match self.conns[&id].state {
            State::ReqRcvd => self.unreachable(now, id, REJ_REQ, false),
            _ => self.unreachable(now, id, REJ_OTHER, true),
        }
    }

    /// A complete path: for the answer to a datagram, or from a REQ.
    pub(super) fn reply_path(&self, path: &Path) -> Path {
        let hop_limit = if self.config.hop_limit == 0 { 64 } else { self.config.hop_limit };
        Path { hop_limit, ..*path }
    }

    /// A REJ to a REQ that begins no connection.
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

/// Fails unless a MAD comes from the address to which an exchange's own MADs go: no other host may act on the exchange.
pub(super) fn from_peer(exchange: &Path, seen: &Path) -> Result<(), Counter> {
    if seen.dgid == exchange.dgid { Ok(()) } else { Err(Counter::NotThePeer) }
}

/// Whether packets can go to this address.
pub(super) fn is_host(gid: &Gid) -> bool {
    !gid.is_zero() && !gid.is_multicast() && gid.as_v4() != Some([0; 4])
}

/// Removes an entry if it is of `id`: another connection may have taken its place.
fn remove_if<K: Ord>(map: &mut BTreeMap<K, ConnId>, key: &K, id: ConnId) {
    if map.get(key) == Some(&id) {
        map.remove(key);
    }
}
