//! Forwards the packets of relayed XRC targets, as [`Relay`](crate::proto::relay::Relay) decides.
//!
//! A request that arrives at the target is sent on the leg to the member that has the named shared receive queue. A response that arrives
//! on a leg is sent to the target's peer. The packet is built anew: addresses, destination queue pair, PSN and MSN are those of the other
//! connection; the rest is copied.

use super::burst::Arrival;
use super::holding::packet_of;
use super::{check_icrc, check_vlan_and_pkey};
use crate::id::Psn;
use crate::port::Frame;
use crate::proto::fault::Fault;
use crate::proto::relay::{Answer, Arrived, Decision, Effect, Member, Request};
use crate::proto::state::Gates;
use crate::proto::tables::{CREDIT_UNLIMITED, NakCode, Syndrome};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::listed::Listed;
use crate::shard::outbox::Traffic;
use crate::shard::qp::{Hop, Qp};
use crate::shard::qps::Qps;
use crate::shard::relays::{Leg, Target};
use crate::shard::state::Shard;
use crate::wire::{
    Aeth, Discard, Ext, ExtHeader, HEADERS_MAX, Header, ICRC_LEN, Kind, Layout, Opcode, Packet, Position,
    Tail, Transport,
};

/// The most requests of a target, and the most responses, that wait to be forwarded.
const WAITING: usize = 256;

const ACKNOWLEDGE: Opcode = Opcode::rc(Kind::Ack, Position::Only, Tail::None).in_class(Transport::Xrc);

/// Both directions use the backlog for requests: packets keep their order, and the queue pair is parked while the route has no room.
const RELAYED: Traffic = Traffic::Requests;

/// Why a packet is not sent now.
enum Unsent {
    /// Its route is not known yet, or has no room. The queue pair is visited when that changes.
    Later,
    /// It cannot be sent, and is lost for this reason.
    Lost(Discard),
}

impl Shard {
    /// Forwards what waits for the route of the queue pair in this slot, if that is a relayed target or a leg.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn resume_relaying(&mut self, slot: u32) {
        let Self { env, qps, .. } = self;
        env.with_target(slot, |env, target| qps.get(slot).map(|qp| env.send_answers(qp, target)));
        let Some(leg) = env.relays.legs.get(&slot).copied() else { return };
        env.with_target(leg.target, |env, target| env.forward_waiting(qps, leg.target, target));
    }
}

impl Env {
    /// Handles a frame that arrived for a relayed target or for a leg.
    #[cold]
    #[inline(never)]
    pub(super) fn relay(&mut self, qps: &mut Qps, arrival: Arrival<'_>, layout: Layout) {
        if let Err(reason) = self.relay_packet(qps, arrival, layout) {
            self.drop_packet(qps, layout.dqpn, reason);
        }
    }

    fn relay_packet(
        &mut self,
        qps: &mut Qps,
        mut arrival: Arrival<'_>,
        layout: Layout,
    ) -> Result<(), Discard> {
        let Some(qp) = qps.find(layout.dqpn) else { return Err(Discard::UnknownQpn) };
        if !super::admits_xrc(qp.ty, layout.row) {
            return self.receive_at(qp, arrival.frame_mut(), layout);
        }
        if !qp.gates.has(if layout.row.request { Gates::RX_REQ } else { Gates::RX_RESP }) {
            return Err(Discard::BadState);
        }
        check_icrc(arrival.frame_mut(), &layout)?;
        let pkt = layout.packet(arrival.frame().data());
        qp.check_addresses(&pkt)?;
        check_vlan_and_pkey(&layout, &pkt, self.shared.vlan)?;
        self.note_received(qp, &pkt, arrival.frame().len());
        let slot = qp.slot;
        if let Some(leg) = self.relays.legs.get(&slot).copied() {
            let answered = self.with_target(leg.target, |env, target| {
                env.handle_member_response(qps, leg, target, arrival, layout)
            });
            return answered.unwrap_or(Err(Discard::BadState));
        }
        if !qp.comm_est {
            qp.establish(&self.shared.events);
        }
        let arrived = self.with_target(slot, |env, target| env.arrive(qps, slot, target, arrival, layout));
        arrived.unwrap_or(Err(Discard::BadState))
    }

    /// Handles a request of the target's peer.
    fn arrive(
        &mut self,
        qps: &mut Qps,
        slot: u32,
        target: &mut Target,
        arrival: Arrival<'_>,
        layout: Layout,
    ) -> Result<(), Discard> {
        let pkt = layout.packet(arrival.frame().data());
        let (Some(relay), Some(qp)) = (&mut target.relay, qps.get(slot)) else {
            return Err(Discard::BadState);
        };
        let request = Request::of(&pkt, relay.mtu());
        match relay.arrive(&request) {
            Arrived::Next => {
                if target.waiting.len() == WAITING || !self.peers.hosts.may_hold(&qp.peer) {
                    relay.take_back(&request);
                    return Err(Discard::NoBuffer);
                }
                self.peers.hosts.note_held(&qp.peer, 1);
                target.waiting.push_back(arrival.take());
                self.forward_waiting(qps, slot, target);
            }
            Arrived::Again(member, psn) => {
                self.count_of(qp, Counter::DuplicatesAnswered);
                self.forward_to(qps, target, member, &pkt, psn).map_err(|unsent| match unsent {
                    Unsent::Later => Discard::NoBuffer,
                    Unsent::Lost(reason) => reason,
                })?;
            }
            Arrived::Acknowledge(psn) => {
                self.count_of(qp, Counter::DuplicatesAnswered);
                self.acknowledge(qp, target, psn, CREDIT_UNLIMITED);
            }
            Arrived::Drop(reason) => {
                self.tell_of_gap(qps, slot, target);
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Forwards the requests that wait at a target, in order, until one has to wait on.
    fn forward_waiting(&mut self, qps: &mut Qps, slot: u32, target: &mut Target) {
        while let Some(frame) = target.waiting.pop_front() {
            let (Some(pkt), Some(relay), Some(qp)) = (packet_of(&frame), &mut target.relay, qps.get(slot))
            else {
                target.waiting.push_front(frame);
                break;
            };
            let request = Request::of(&pkt, relay.mtu());
            let member = self.relays.member_of(qp.rq.xrcd(), pkt.xrceth());
            let (member, psn) = match relay.decide(&request, member) {
                Decision::Pass(member, psn) => (member, psn),
                Decision::Wait => {
                    target.waiting.push_front(frame);
                    break;
                }
                Decision::Refuse => {
                    target.waiting.push_front(frame);
                    self.count_of(qp, Counter::RequestsRefused);
                    let syndrome = Syndrome::Nak(NakCode::InvalidRequest).encode();
                    self.acknowledge(qp, target, request.psn, syndrome);
                    return self.end_relay(qps, slot, target, Fault::BadXrcSrq);
                }
            };
            let sent = self.forward_to(qps, target, member, &pkt, psn);
            if let Err(Unsent::Later) = sent {
                target.waiting.push_front(frame);
                break;
            }
            let (Some(relay), Some(qp)) = (&mut target.relay, qps.get(slot)) else { break };
            self.peers.hosts.note_held(&qp.peer, -1);
            // If it was lost, the member misses it and sends a NAK, as after a loss on the network.
            relay.passed(&request, member);
            match sent {
                Err(Unsent::Lost(reason)) => self.discard_of(qp, reason),
                _ => self.count(Counter::RequestsReceived),
            }
        }
        self.tell_of_gap(qps, slot, target);
    }

    /// Sends a request to a member, with this PSN.
    fn forward_to(
        &mut self,
        qps: &mut Qps,
        target: &Target,
        member: Member,
        pkt: &Packet<'_>,
        psn: Psn,
    ) -> Result<(), Unsent> {
        let leg = target.legs.get(&member).and_then(|slot| qps.get(*slot));
        let Some(leg) = leg else { return Err(Unsent::Lost(Discard::BadState)) };
        let header = pkt.to_header().ok_or(Unsent::Lost(Discard::UnknownOpcode))?;
        // The next message may be for another member, and then waits until this one is acknowledged.
        let ack_req = pkt.ack_req || pkt.row.position.ends();
        self.send_built(leg, &Header { psn, ack_req, ..header }, pkt.payload)
    }

    /// Handles a response of a member.
    fn handle_member_response(
        &mut self,
        qps: &mut Qps,
        leg: Leg,
        target: &mut Target,
        arrival: Arrival<'_>,
        layout: Layout,
    ) -> Result<(), Discard> {
        let pkt = layout.packet(arrival.frame().data());
        let (Some(relay), Some(qp)) = (&mut target.relay, qps.get(leg.target)) else {
            return Err(Discard::BadState);
        };
        let aeth = pkt.row.has(ExtHeader::Aeth).then(|| pkt.aeth());
        let said = aeth.map(|aeth| (aeth.syndrome, Psn::new(aeth.msn)));
        let answer = relay.answer(leg.member, pkt.psn, said).ok_or(Discard::GhostAck)?;
        let header = pkt.to_header().ok_or(Discard::UnknownOpcode)?;
        let header = Header { psn: answer.psn, ext: with_msn(header.ext, answer), ..header };
        let frame = if pkt.payload.is_empty() { None } else { Some(arrival.take()) };
        self.send_answer(qp, target, header, frame);
        match answer.effect {
            Effect::None => {}
            Effect::Back => self.drop_waiting(qp, target),
            Effect::End(code) => {
                self.end_relay(qps, leg.target, target, fault_of(code));
                return Ok(());
            }
        }
        self.forward_waiting(qps, leg.target, target);
        Ok(())
    }

    /// Sends the NAK for a gap, if it is due.
    fn tell_of_gap(&mut self, qps: &mut Qps, slot: u32, target: &mut Target) {
        let (Some(relay), Some(qp)) = (&mut target.relay, qps.get(slot)) else { return };
        if let Some(psn) = relay.nak_due() {
            self.acknowledge(qp, target, psn, Syndrome::Nak(NakCode::PsnSequenceError).encode());
        }
    }

    /// Takes the target to ERR after a fatal NAK was queued.
    fn end_relay(&mut self, qps: &mut Qps, slot: u32, target: &mut Target, fault: Fault) {
        let Some(qp) = qps.get(slot) else { return };
        self.disconnect(qp, target);
        self.end_by_fault(qp, fault);
    }

    /// Sends an acknowledgement or a NAK that the owner itself makes.
    fn acknowledge(&mut self, qp: &mut Qp, target: &mut Target, psn: Psn, syndrome: u8) {
        let Some(relay) = &target.relay else { return };
        let ext = Ext::Aeth(Aeth { syndrome, msn: relay.msn().get() });
        if Syndrome::is_ack(syndrome) {
            self.count(Counter::AcksSent);
        } else {
            self.count_of(qp, Counter::NaksSent);
        }
        self.send_answer(qp, target, Header { opcode: ACKNOWLEDGE, psn, ext, ..Header::default() }, None);
    }

    /// Sends a response to the peer, or queues it until its route is known and has room. The payload is that of the packet in `frame`.
    fn send_answer(&mut self, qp: &mut Qp, target: &mut Target, header: Header, frame: Option<Frame>) {
        if target.answers.len() == WAITING || frame.is_some() && !self.peers.hosts.may_hold(&qp.peer) {
            return self.discard_of(qp, Discard::NoBuffer); // as if lost on the network: the peer retransmits
        }
        self.peers.hosts.note_held(&qp.peer, i32::from(frame.is_some()));
        target.answers.push_back((header, frame));
        self.send_answers(qp, target);
    }

    /// Sends the queued responses, in order, until one has to wait on.
    fn send_answers(&mut self, qp: &mut Qp, target: &mut Target) {
        while let Some((header, frame)) = target.answers.front() {
            let payload = frame.as_ref().and_then(packet_of).map_or(&[][..], |pkt| pkt.payload);
            match self.send_built(qp, header, payload) {
                Err(Unsent::Later) => return,
                Err(Unsent::Lost(reason)) => self.discard_of(qp, reason),
                Ok(()) => {}
            }
            self.peers.hosts.note_held(&qp.peer, -i32::from(frame.is_some()));
            target.answers.pop_front();
        }
    }

    /// Builds a packet of this queue pair's connection, and puts it into the outbox.
    fn send_built(&mut self, qp: &mut Qp, header: &Header, payload: &[u8]) -> Result<(), Unsent> {
        if !qp.is_reachable() {
            let failed = self.resolve(qp);
            if !qp.is_reachable() {
                return Err(if failed.is_some() {
                    Unsent::Lost(Discard::Unreachable)
                } else {
                    Unsent::Later
                });
            }
        }
        let hop = qp.hop;
        let route = hop.route();
        if self.outbox.room(RELAYED, route) == 0 {
            self.flush();
        }
        let has_room = match hop {
            Hop::Inside(shard) => self.shared.takes_requests(shard.into()),
            _ => self.outbox.room(RELAYED, route) > 0,
        };
        if !has_room {
            if qp.in_ready == Listed::No {
                qp.in_ready = Listed::Parked;
                self.outbox.park(RELAYED, route, qp.slot);
            }
            return Err(Unsent::Later);
        }
        let mut frame = self.outbox.take_frame().ok_or(Unsent::Lost(Discard::NoBuffer))?;
        let buffer = frame.buffer_mut();
        if buffer.len() < HEADERS_MAX + payload.len() + 3 + ICRC_LEN {
            self.outbox.keep_frame(frame);
            return Err(Unsent::Lost(Discard::NoBuffer));
        }
        let ip_id = self.outbox.next_ip_id();
        let at = qp.template.begin(buffer, &Header { ip_id, ..*header });
        buffer[at..at + payload.len()].copy_from_slice(payload);
        let len = qp.template.seal(buffer, at, payload.len());
        frame.set_len(len);
        qp.counters.sent(1, len as u64);
        self.outbox.push(RELAYED, route, frame);
        self.outbox.send_inside(RELAYED, hop, 1, &self.shared, &self.counters);
        Ok(())
    }
}

/// The extension headers of a response, with the MSN that the requester expects.
fn with_msn(ext: Ext, answer: Answer) -> Ext {
    let msn = answer.msn.get();
    match ext {
        Ext::Aeth(aeth) => Ext::Aeth(Aeth { msn, ..aeth }),
        Ext::AtomicAck(aeth, original) => Ext::AtomicAck(Aeth { msn, ..aeth }, original),
        ext => ext,
    }
}

/// The fault with which a target ends after a member sent this NAK.
fn fault_of(code: NakCode) -> Fault {
    match code {
        NakCode::RemoteAccessError => Fault::RemoteAccess,
        NakCode::RemoteOperationalError => Fault::ReceiveProtection,
        _ => Fault::BadSequence,
    }
}
