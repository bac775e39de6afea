//! UC and UD: sending without acknowledgements.
//!
//! A send request is complete when the port has taken its last frame. If the peer's Ethernet address cannot be resolved, or the local
//! source address is gone when the message should leave, the message is lost as it could be on the wire. So is a datagram to a peer whose
//! link has taken no frame for [`TX_STALL`](crate::config::TX_STALL), for as long as that lasts: datagrams behind it are for other peers.
//! While a link takes some frames, datagrams wait for it.

use super::Stop;
use super::requests::draft;
use crate::config::TX_BURST;
use crate::id::{QpType, Qpn};
use crate::port::{FlowKind, Frame, Route};
use crate::proto::address::UdAddress;
use crate::proto::requester::Idle;
use crate::proto::status::WcStatus;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::outbox::{Leaving, Traffic};
use crate::shard::paths::Path;
use crate::shard::peers::path_of_answer;
use crate::shard::qp::{Hop, Qp};
use crate::shard::state::Shard;
use crate::wire::{Discard, Flow, Template, udp_source_port};

impl Shard {
    /// Completes unreliable work requests whose frames have left.
    pub(in crate::shard) fn complete_gone(&mut self) {
        let env = &mut self.env;
        while let Some(Leaving { slot, epoch, from, seq, .. }) = env.outbox.next_sent() {
            // An epoch ends with a RESET and with the queue pair.
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.epoch == epoch) else { continue };
            if is_behind(from, qp.requester.head()) {
                env.outbox.complete_with_earlier(slot, epoch, from, seq);
            } else {
                env.complete_left(qp, seq);
            }
        }
    }
}

/// Whether work request `seq` comes behind work request `other`.
fn is_behind(seq: u32, other: u32) -> bool {
    (seq.wrapping_sub(other) as i32) > 0
}

impl Env {
    /// Builds packets of an unreliable queue pair.
    pub(super) fn request_unreliable(&mut self, qp: &mut Qp) -> Stop {
        let mut route = None;
        let stop = self.build_unreliable(qp, &mut route);
        self.note_leaving(qp, route);
        stop
    }

    /// Notes built work requests whose last frame leaves by this route; `None` if it went nowhere, or to one of the device's addresses.
    fn note_leaving(&mut self, qp: &mut Qp, route: Option<Route>) {
        let (built, head) = (qp.requester.built(), qp.requester.head());
        if built == head || built == qp.leaving {
            return;
        }
        let before = core::mem::replace(&mut qp.leaving, built);
        let waits = is_behind(before, head);
        let from = if waits { before } else { head };
        match route {
            Some(route) => self.outbox.note_leaving(qp, route, from, built),
            None if waits => self.outbox.complete_with_earlier(qp.slot, qp.epoch, from, built),
            None => self.complete_left(qp, built),
        }
    }

    /// Completes the work requests before `seq`: every frame of them has left.
    fn complete_left(&mut self, qp: &mut Qp, seq: u32) {
        qp.requester.left(seq);
        self.complete_sends(qp);
        if let Some(status) = qp.requester.local_failure() {
            self.fail_send(qp, status);
        }
        if qp.requester.drained() {
            self.agenda.mark_ready(qp); // an invalidation may have waited for this
        }
    }

    /// Builds packets; sets `route` to the route of the last frame.
    fn build_unreliable(&mut self, qp: &mut Qp, route: &mut Option<Route>) -> Stop {
        let mut budget = self.outbox.budget(Route::default(), TX_BURST); // each datagram may leave by another route
        while !budget.is_spent() {
            budget.spend_one();
            let seq = match qp.requester.peek_unreliable(qp.gates, qp.epoch, &qp.sq) {
                Ok(seq) => seq,
                Err(idle) => return self.rest(qp, idle),
            };
            let path = if qp.is_datagram() { self.datagram_path(qp, seq) } else { self.connection_path(qp) };
            if path == Path::Pending {
                return Stop::Done; // woken when the neighbour table changes, at the latest when resolution fails
            }
            let mut lost = match path {
                Path::Failed => Some(Discard::Unreachable),
                Path::NoSource => Some(Discard::NoSource),
                _ => None,
            };
            let mut stopped = None;
            if let Path::Known(_, by) = path {
                let room = if qp.is_datagram() {
                    self.outbox.room_for_datagrams(by)
                } else {
                    self.outbox.room(Traffic::Requests, by)
                };
                if room == 0 {
                    // As with an unresolved neighbour: a MAD must not wait for the link of another peer.
                    let others_wait = qp.ty == QpType::Gsi && self.outbox.has_routes();
                    if qp.is_datagram() && self.outbox.has_stopped(by, self.now, &self.counters) {
                        stopped = Some(by);
                    } else if others_wait && self.outbox.refuses(by) {
                        lost = Some(Discard::TxStalled);
                    } else {
                        return Stop::Full(by);
                    }
                } else if *route != Some(by) {
                    self.note_leaving(qp, *route);
                    *route = Some(by);
                }
            }
            let Some(mut frame) = self.outbox.take_frame() else {
                self.discard_of(qp, Discard::NoBuffer);
                return Stop::More;
            };
            let segment = if qp.is_datagram() {
                let (qpn, qkey) = (qp.qpn, qp.qkey());
                qp.requester.poll_datagram(qp.gates, qp.epoch, &qp.sq, qpn, qkey)
            } else {
                qp.requester.poll_message(qp.gates, qp.epoch, &qp.sq)
            };
            let segment = match segment {
                Ok(segment) => segment,
                Err(Idle::Local(seq)) => {
                    self.outbox.keep_frame(frame);
                    self.keys.execute_local(&self.shared.mrs, qp, seq);
                    continue;
                }
                Err(idle) => {
                    self.outbox.keep_frame(frame);
                    return self.rest(qp, idle);
                }
            };
            let ip_id = self.outbox.next_ip_id();
            let packet = draft(qp.class, &segment, self.memory(qp.pd), ip_id);
            if packet.write_frame(&qp.template, &mut frame).is_err() {
                let seq = segment.seq;
                self.outbox.keep_frame(frame);
                qp.requester.fail_local(seq, WcStatus::LocProtErr);
                continue; // the next poll decides whether older requests have to leave first
            }
            if let Some(by) = stopped {
                self.send_now(qp, by, frame);
                continue;
            }
            if let Some(lost) = lost {
                self.discard_of(qp, lost);
                self.outbox.keep_frame(frame);
                continue;
            }
            self.count(Counter::RequestsSent);
            let dqpn = qp.address.as_ref().map_or(Qpn::new(qp.attr.dest_qp_num), |a| a.remote_qpn());
            qp.counters.sent(1, frame.len() as u64);
            if dqpn == Qpn::MULTICAST {
                self.loop_back(&frame, &qp.template.dst());
            }
            match path {
                Path::Known(_, by) => self.outbox.push(Traffic::Requests, by, frame),
                _ => {
                    self.count(Counter::ToSelf);
                    self.hand_over(self.shared.shard_of(dqpn), frame);
                }
            }
        }
        Stop::More
    }

    /// Sends a datagram to a peer that seems to have stopped, or drops it: datagrams behind it do not wait for that peer.
    #[cold]
    fn send_now(&mut self, qp: &mut Qp, by: Route, frame: Frame) {
        let len = frame.len() as u64;
        match self.outbox.send_now(by, frame, &self.counters) {
            Ok(()) => {
                self.count(Counter::RequestsSent);
                qp.counters.sent(1, len);
            }
            Err(frame) => {
                self.discard_of(qp, Discard::TxStalled);
                self.outbox.keep_frame(frame);
            }
        }
    }

    /// Nothing to build: completes stale requests silently, and a locally failed request once it is the oldest.
    fn rest(&mut self, qp: &mut Qp, idle: Idle) -> Stop {
        self.complete_sends(qp);
        if idle == Idle::Failed
            && let Some(status) = qp.requester.local_failure()
        {
            self.fail_send(qp, status);
        }
        Stop::Done
    }

    /// The path of an unreliable connection; its template holds the next hop.
    fn connection_path(&mut self, qp: &mut Qp) -> Path {
        if qp.hop == Hop::Pending && self.resolve(qp).is_some() {
            return Path::Failed;
        }
        match qp.hop {
            Hop::Inside(_) => Path::Inside,
            Hop::Known(route) => Path::Known(self.shared.mac, route), // the address is unused: the template has it
            Hop::Pending => Path::Pending,
        }
    }

    /// Resolves the destination of a datagram and sets it in the template.
    fn datagram_path(&mut self, qp: &mut Qp, seq: u32) -> Path {
        let Some(address) = UdAddress::of(qp.sq.0.slot(seq)).copied() else {
            return Path::Inside; // no address: the requester refuses the request
        };
        let (source, dgid, remote) = (address.source, address.dgid(), address.remote_qpn());
        let (peers, mut host) = self.peers_and_host();
        let path = match qp.ty {
            // Queue pair 1 sends to any host, strangers included: no MAD waits for the resolution of another MAD's neighbour, and no
            // stranger is held as a neighbour in use. A lost MAD is retransmitted; by then the neighbour has answered.
            QpType::Gsi => match path_of_answer(&mut host, source, &dgid, remote) {
                Path::Pending => Path::Failed,
                path => path,
            },
            _ => peers.path_to(&mut host, source, &dgid, remote),
        };
        if path == Path::Pending {
            peers.hold_next_hop(&mut host, qp.slot, &dgid); // woken when the neighbour changes
        }
        let mac = match path {
            Path::Known(mac, _) => mac,
            Path::Inside => self.shared.mac,
            Path::Pending | Path::Failed | Path::NoSource => return path,
        };
        if !qp.address.as_ref().is_some_and(|before| before.same_path(&address)) {
            let Some(src) = self.shared.gids.of(address.source) else { return Path::NoSource };
            let priority = u16::from(address.sl()) << 13;
            qp.template = Template::new(&Flow {
                src_mac: self.shared.mac,
                vlan: self.shared.vlan.map(|vid| priority | vid),
                src,
                dst: address.dgid(),
                traffic_class: address.traffic_class(),
                hop_limit: if address.hop_limit() == 0 { 64 } else { address.hop_limit() },
                flow_label: address.flow_label(),
                ..Flow::default()
            });
        }
        if let Some(before) = &mut qp.address {
            **before = address;
        }
        qp.template.set_dst_mac(mac);
        qp.template.set_dqpn(remote);
        let hint = udp_source_port(address.flow_label(), qp.qpn, remote);
        qp.template.set_src_port(self.outbox.queue.take_source_port(hint, FlowKind::Shared));
        path
    }
}
