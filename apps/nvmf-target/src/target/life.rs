//! Connections that come and go: requests that are refused, accepted or handed to another core, timeouts, and the end of a
//! connection, after which nothing of it is left.

use std::net::SocketAddr;

use nvmf::wire::cm::RejectReason;
use nvmf::{Accepted, Arrival, Queue};
use tracing::{debug, info};
use verbs::rdma_cm::{CmEvent, CmEventType, CmId, ConnParam};
use verbs::{DrainKind, QpCap, QpInitAttr, VerbsError};
use zerocopy::IntoBytes;

use super::connection::{Connection, Ending, INLINE, Outgoing};
use super::core::Core;
use super::meter::Gauge;
use super::party::{CONNECTIONS, Room};
use super::pool::CLASSES;

/// Room in a send queue besides that for the commands of the connection.
const SPARE: u32 = 16;

/// A request for a connection that was found right.
pub(super) struct Admitted {
    id: CmId,
    accepted: Accepted,
}

impl Core<'_> {
    pub(super) fn event(&mut self, mut event: CmEvent) {
        match event.event() {
            CmEventType::ConnectRequest => {
                let Some(id) = event.take_id() else { return };
                let listener = self.listeners.iter().find(|(listener, _)| event.is_of(listener));
                let Some(&(_, port)) = listener else { return };
                // A peer that grants no READ could never write.
                let reads = event.peer().is_none_or(|peer| peer.initiator_depth > 0);
                match self.judge(&id, port, event.private_data(), reads) {
                    Ok(accepted) => self.assign(Admitted { id, accepted }),
                    Err(reason) => {
                        debug!(peer = ?id.peer_addr(), %reason, "a connection is refused");
                        self.counters.refused.add(1);
                        // Fails if the peer has gone meanwhile.
                        let _ = id.reject(reason.data().as_bytes());
                    }
                }
            }
            CmEventType::Disconnected
            | CmEventType::ConnectError
            | CmEventType::Unreachable
            | CmEventType::Rejected
            | CmEventType::DeviceRemoval => {
                let c = event.context() as u32;
                let of = self.connections.get(c as usize).and_then(Option::as_ref);
                if of.is_some_and(|connection| event.is_of(&connection.id)) {
                    self.close(c, &event.event());
                }
            }
            _ => {}
        }
    }
    fn judge(&self, id: &CmId, port: u16, private: &[u8], reads: bool) -> Result<Accepted, RejectReason> {
        let nowhere = SocketAddr::from(([0; 4], 0));
        let local = id.local_addr().unwrap_or(nowhere);
        let arrival = Arrival { port, local, peer: id.peer_addr().unwrap_or(nowhere).ip() };
        let accepted = Queue::accept(&self.target, self.now, arrival, private)?;
        if !reads {
            return Err(RejectReason::Reads);
        }
        Ok(accepted)
    }
    /// Gives a connection to this core or to another one.
    fn assign(&mut self, admitted: Admitted) {
        let to = self.next;
        self.next = (self.next + 1) % (self.others.len() + 1);
        match to.checked_sub(1) {
            None => self.admit(admitted),
            // Where the core has ended, the request is refused as it is dropped.
            Some(other) => self.others[other].send(admitted),
        }
    }
    pub(super) fn admit(&mut self, Admitted { id, mut accepted }: Admitted) {
        let peer = id.peer_addr();
        let who = accepted.queue.who();
        match self.room(who, accepted.named) {
            Room::Free => {}
            Room::Kept => accepted.queue.keep_for_named(),
            Room::None => {
                self.counters.refused.add(1);
                self.say_refused(who);
                self.make_room(who);
                let _ = id.reject(RejectReason::Resources.data().as_bytes());
                return;
            }
        }
        match self.try_admit(id, accepted) {
            Ok(c) => {
                self.counters.accepted.add(1);
                debug!(?peer, connection = c, "a host connects");
            }
            // The identifier is gone, and the peer informed.
            Err(e) => {
                self.counters.refused.add(1);
                info!(?peer, error = %e, "a connection could not be accepted");
            }
        }
    }
    fn try_admit(&mut self, id: CmId, accepted: Accepted) -> Result<u32, VerbsError> {
        id.migrate_id(Some(&self.events))?;
        let receives = accepted.receives;
        let cap = QpCap {
            // A command takes two requests, and its slots are free when the host has acknowledged them: maybe after the
            // command that follows it.
            max_send_wr: 4 * receives as u32 + SPARE,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline_data: INLINE,
        };
        let init = QpInitAttr::rc(&self.cq, &self.cq).cap(cap).srq(self.receives.srq());
        let qp = id.create_qp(&self.pd, &init.on_shard(self.config.shard))?;
        // Every request of a queue pair that fails has a completion.
        let needed = self.cq_needed + qp.cap().max_send_wr;
        if needed > self.cq.cqe() {
            self.poller.resize(needed.next_power_of_two())?;
        }
        let c = match self.connections.iter().position(Option::is_none) {
            Some(c) => c,
            None => {
                self.connections.push(None);
                self.connections.len() - 1
            }
        };
        id.set_context(c as u64);
        let (sq, _) = qp.split()?;
        self.receives.add(receives);
        let ready = self.receives.refill();
        let reply = accepted.reply;
        let party = self.shares.join(accepted.queue.who());
        let mut connection = Connection::new(accepted, id, qp, sq, party);
        let meters = self.config.meters.as_ref();
        connection.gauge = meters.map(|meters| Gauge::new(meters, self.config.shard, receives));
        let accept = || connection.id.accept(&ConnParam::with_data(reply.as_bytes()));
        if let Err(e) = ready.and_then(|()| accept()) {
            self.receives.remove(receives);
            self.shares.leave(party);
            return Err(e);
        }
        self.cq_needed = needed;
        self.by_qpn.insert(connection.qp.qp_num().get(), c as u32);
        connection.number = self.counters.accepted.get();
        self.guests += usize::from(connection.guest);
        self.connections[c] = Some(Box::new(connection));
        self.took(c as u32, CONNECTIONS);
        Ok(c as u32)
    }

    /// Looks after connections: timeouts, events, ends.
    pub(super) fn tend(&mut self) {
        let now = self.now;
        for c in 0..self.connections.len() as u32 {
            let Some(queue) = self.queue(c) else { continue };
            let due = queue.poll_timeout().is_some_and(|due| now >= due);
            let end = if due { queue.handle_timeout(now).err() } else { queue.poll_end() };
            if let Some(end) = end {
                self.close(c, &end);
                continue;
            }
            self.announce(c);
            while let Some(response) = self.queue(c).and_then(|queue| queue.poll_response(now)) {
                self.note_who(c);
                self.answer(c, response, None, None);
            }
            let patience = self.config.patience.as_nanos() as u64;
            if self.is_open(c) && self.connection(c).is_stuck(now.as_nanos(), patience) {
                self.close(c, &"the host takes no responses");
            }
            let silence = self.config.silence.as_nanos() as u64;
            if self.is_open(c) && self.connection(c).is_gone(now.as_nanos(), silence) {
                self.close(c, &"the host does not answer");
            }
        }
        let mut ending = std::mem::take(&mut self.ending);
        ending.retain(|&c| !self.end(c));
        ending.append(&mut self.ending);
        self.ending = ending;
    }

    /// Logs who has connected, once that is known.
    fn announce(&mut self, c: u32) {
        let Some(connection) = self.connections[c as usize].as_mut() else { return };
        let Some(queue) = connection.queue.as_ref().filter(|_| !connection.announced) else { return };
        let Some(host) = queue.host() else { return };
        connection.announced = true;
        let (qid, controller) = (queue.qid(), queue.cntlid());
        let subsystem = queue.subsystem();
        let subsystem = subsystem.as_ref().map_or("discovery", |nqn| nqn.as_str());
        info!(%host, subsystem, controller, qid, connection = c, "a host's queue is connected");
    }

    /// Begins the end of a connection.
    #[cold]
    pub(super) fn close(&mut self, c: u32, why: &dyn std::fmt::Display) {
        let Some(connection) = self.connections[c as usize].as_mut() else { return };
        if connection.ending != Ending::No {
            return;
        }
        connection.ending = Ending::Flushing;
        let host = connection.queue.as_ref().and_then(Queue::host);
        match (&host, connection.announced) {
            (Some(host), true) => info!(%host, connection = c, %why, "a host's queue ends"),
            _ => debug!(connection = c, %why, "a connection ends"),
        }
        // What the controller had is free at once: the host may come back before the queue pair is flushed. But it is not served
        // before the storage has done with what it sent.
        connection.in_flight = connection.queue.as_ref().and_then(Queue::in_flight);
        connection.queue = None;
        // It fails where the connection was never established; then only the queue pair ends.
        if connection.id.disconnect().is_err() {
            let _ = connection.qp.begin_drain(DrainKind::Qp);
        }
        let unposted = std::mem::take(&mut connection.waiting);
        for outgoing in unposted {
            match outgoing {
                Outgoing::Fetch(n, ..) | Outgoing::Answer { command: Some(n), .. } => drop(self.finish(n)),
                Outgoing::Answer { .. } => {}
            }
        }
        for class in 0..CLASSES {
            self.waiting[class].retain(|&other| other != c);
            for n in std::mem::take(&mut self.connection(c).want[class]) {
                self.finish(n);
            }
        }
        if self.connection(c).commands == 0 {
            self.connection(c).in_flight = None;
        }
        self.ending.push(c);
        self.counters.ended.add(1);
    }
    /// Goes on with the end of a connection; returns whether it is gone.
    fn end(&mut self, c: u32) -> bool {
        let (turns, emptied) = (self.turns, self.emptied);
        let Some(connection) = self.connections[c as usize].as_mut() else { return true };
        match connection.ending {
            Ending::Flushing => {
                // A drain marks where the queues end now, and the next turn takes it there.
                let drained = connection.qp.begin_drain(DrainKind::Qp).and_then(|mut drain| {
                    self.reactor.poll_once();
                    drain.try_finish()
                });
                // An error: the shard is dead, and completes nothing any more.
                if drained.unwrap_or(true) {
                    connection.ending = Ending::Flushed(turns);
                }
                false
            }
            // Completions that were in the queue then have been handled.
            Ending::Flushed(since) if emptied > since && connection.commands == 0 => {
                let qpn = connection.qp.qp_num().get();
                self.cq_needed -= connection.qp.cap().max_send_wr;
                self.receives.remove(connection.receives);
                self.by_qpn.remove(&qpn);
                self.guests -= usize::from(connection.guest);
                let party = connection.party;
                self.gave(c, CONNECTIONS);
                self.shares.leave(party);
                self.connections[c as usize] = None;
                true
            }
            _ => false,
        }
    }
}
