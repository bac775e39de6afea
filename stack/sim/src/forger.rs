//! A third host that observes all messages between connection managers, and forges messages about their connections.

use std::collections::{BTreeMap, VecDeque};

use super::liar::{LIAR, Liar};
use super::node::net_config;
use super::peer::{frame, pkt};
use super::rng::Rng;
use super::world::World;
use stack::cm::mad::Mad;
use stack::cm::message::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu, SidrRep};
use stack::cm::{GSI_QKEY, Reason};
use stack::id::{Gid, Qpn};
use stack::wire::{Deth, Ext, Flow, Opcode};

/// Observed messages that it keeps.
const MEMORY: usize = 256;

/// Index of the node whose address it would have in a [`World`], where it is not a node.
const INDEX: u8 = 0x65;

/// One end of a connection, as its messages show it.
#[derive(Clone, Copy)]
struct ObservedEnd {
    guid: u64,
    qpn: Qpn,
    tid: u64,
}

/// The forging host. Its messages are well-formed, name ids that exist, and are such that one of the two ends could send them.
pub struct Forger {
    rng: Rng,
    /// Observed messages: from, to.
    observed: VecDeque<(usize, usize, Mad)>,
    /// Ends of connections, by node and comm id.
    known: BTreeMap<(usize, u32), ObservedEnd>,
    /// Number of messages forged.
    pub lies: u64,
}

/// The ids of a connection that a message names: its sender's, and its receiver's.
fn ids(message: &Message) -> Option<(u32, u32)> {
    Some(match message {
        Message::Rep(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Mra(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Rej(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Rtu(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Dreq(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Drep(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Req(_) | Message::SidrReq(_) | Message::SidrRep(_) => return None,
    })
}

/// A forged message.
#[derive(Clone, Debug)]
pub struct Lie {
    /// The node to which it goes.
    pub to: usize,
    /// The node that could have sent it.
    pub peer: usize,
    /// The message.
    pub mad: Mad,
}

impl Forger {
    /// A host that has observed nothing.
    pub fn new(seed: u64) -> Self {
        let rng = Rng::new(seed ^ 0x4c49_4553);
        Self { rng, observed: VecDeque::new(), known: BTreeMap::new(), lies: 0 }
    }

    /// Observes a message from one node to another. Returns whether it is about a connection of these two.
    pub fn observe(&mut self, from: usize, to: usize, mad: Mad) -> bool {
        let end = match &mad.message {
            Message::Req(m) => Some((m.local_comm_id, m.local_ca_guid, m.local_qpn)),
            Message::Rep(m) => Some((m.local_comm_id, m.local_ca_guid, m.local_qpn)),
            _ => None,
        };
        if let Some((id, guid, qpn)) = end {
            self.known.insert((from, id), ObservedEnd { guid, qpn, tid: mad.tid });
        }
        // An answer to a forged message names ends other than its own sender and receiver: forging from it would imitate the true
        // peer.
        let between = ids(&mad.message).is_none_or(|(own, about)| {
            self.known.contains_key(&(from, own)) && self.known.contains_key(&(to, about))
        });
        if between {
            self.observed.push_front((from, to, mad));
            self.observed.truncate(MEMORY);
        }
        between
    }

    /// Its address in a [`World`] of this IP version.
    pub fn gid(ipv6: bool) -> Gid {
        Gid::from_ip(net_config(INDEX, ipv6).addrs[0].0)
    }

    /// Joins a world of two nodes: observes their packets, and answers when its address is resolved.
    pub fn join(&self, world: &mut World) {
        world.tap = Some(Vec::new());
        world.liar = Some(Liar::new(&[Self::gid(world.nodes[0].config.ipv6)]));
    }

    /// Observes what the two nodes of a world that it [joined](Self::join) have sent since the last call, and forges `lies` MADs for
    /// each MAD, in frames that come from its own address.
    pub fn forge(&mut self, world: &mut World, lies: u32) {
        for (from, seen) in world.tap.as_mut().map(core::mem::take).unwrap_or_default() {
            let deth = Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI };
            let Some(mad) = (seen.dqpn == Qpn::GSI).then(|| Mad::decode(&seen.payload).ok()).flatten() else {
                continue;
            };
            // Does not forge from the answers to forged messages.
            let lies = if self.observe(from, 1 - from, mad) { lies } else { 0 };
            for _ in 0..lies {
                if let Some(Lie { to, mad, .. }) = self.lie() {
                    let node = &world.nodes[to];
                    let flow = Flow {
                        src_mac: LIAR,
                        dst_mac: node.mac,
                        vlan: node.config.vlan,
                        src: Self::gid(node.config.ipv6),
                        dst: node.gid,
                        src_port: 0xc000,
                        dqpn: Qpn::GSI,
                        ..Flow::default()
                    };
                    let packet = pkt(Opcode::UD_SEND_ONLY, 0).ext(Ext::Deth(deth)).data(&mad.encode());
                    world.inject(to, frame(&flow, &packet));
                }
            }
        }
    }

    /// Forges a message about an observed one.
    pub fn lie(&mut self) -> Option<Lie> {
        if self.observed.is_empty() {
            return None;
        }
        let recent = self.observed.len().min(if self.rng.one_in(2) { 8 } else { MEMORY });
        let (from, to, mad) = self.observed[self.rng.below(recent as u64) as usize].clone();
        self.lies += 1;
        if self.rng.one_in(8) {
            return Some(Lie { to, peer: from, mad });
        }
        let (own, about) = match (&mad.message, ids(&mad.message)) {
            (_, Some(ids)) => ids,
            (Message::Req(m), None) => return Some(self.about_request(from, to, mad.tid, m)),
            (Message::SidrReq(m), None) => {
                let rep = SidrRep { request_id: m.request_id, qpn: Qpn::new(0x66), ..SidrRep::default() };
                return Some(Lie { to: from, peer: to, mad: Mad::new(mad.tid, rep) });
            }
            (_, None) => return Some(Lie { to, peer: from, mad }),
        };
        // To either end, as if from the other.
        let ((to, ours), (peer, theirs)) =
            if self.rng.one_in(2) { ((to, about), (from, own)) } else { ((from, own), (to, about)) };
        Some(self.about_connection(to, ours, peer, theirs, mad.tid))
    }

    /// Forges from an observed REQ: a REQ with another comm id, another queue pair, or only another transaction id; or a REJ of the REQ.
    fn about_request(&mut self, from: usize, to: usize, tid: u64, req: &Req) -> Lie {
        let mut req = *req;
        let mut tid = tid ^ 1;
        match self.rng.below(4) {
            0 => req.local_comm_id ^= 1,
            1 => req.local_qpn = Qpn::new(req.local_qpn.get() ^ 0x800),
            2 => {}
            _ => {
                // The REJ of a node that does not know the other's id.
                tid ^= 1;
                let rej = Self::rej(req.local_comm_id, 0, 2, Reason::TIMEOUT, req.local_ca_guid);
                return Lie { to, peer: from, mad: Mad::new(tid, rej) };
            }
        }
        Lie { to, peer: from, mad: Mad::new(tid, req) }
    }

    /// A message that could advance a connection, or end it.
    fn about_connection(&mut self, to: usize, ours: u32, peer: usize, theirs: u32, seen_tid: u64) -> Lie {
        let none = ObservedEnd { guid: 0, qpn: Qpn::new(2), tid: seen_tid };
        let far = self.known.get(&(peer, theirs)).copied().unwrap_or(none);
        let near = self.known.get(&(to, ours)).copied().unwrap_or(none);
        let tid = self.rng.pick(&[seen_tid, near.tid, far.tid]);
        let (local_comm_id, remote_comm_id) = (theirs, ours);
        let message = self.rng.below(3) as u8;
        let lie: Message = match self.rng.below(9) {
            0 | 1 => Dreq { local_comm_id, remote_comm_id, remote_qpn: near.qpn, ..Dreq::default() }.into(),
            2 => Drep { local_comm_id, remote_comm_id, ..Drep::default() }.into(),
            3 => Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }.into(),
            4 => {
                let service_timeout = self.rng.pick(&[0, 20, 31]);
                Mra { local_comm_id, remote_comm_id, message, service_timeout, ..Mra::default() }.into()
            }
            5 => Rep {
                local_comm_id,
                remote_comm_id,
                local_qpn: if self.rng.one_in(2) { far.qpn } else { Qpn::new(0x99) },
                local_ca_guid: far.guid,
                ..Rep::default()
            }
            .into(),
            6 => Self::rej(theirs, 0, message, Reason::TIMEOUT, far.guid).into(),
            _ => {
                let reasons = [Reason::TIMEOUT, Reason::STALE_CONNECTION, Reason::CONSUMER_DEFINED];
                let reason = self.rng.pick(&reasons);
                Self::rej(theirs, ours, message, reason, far.guid).into()
            }
        };
        Lie { to, peer, mad: Mad::new(tid, lie) }
    }

    fn rej(local_comm_id: u32, remote_comm_id: u32, message: u8, reason: Reason, guid: u64) -> Rej {
        let mut info = [0; 72];
        info[..8].copy_from_slice(&guid.to_be_bytes());
        Rej { local_comm_id, remote_comm_id, message, info_length: 8, reason, info, private_data: [0; 148] }
    }
}
