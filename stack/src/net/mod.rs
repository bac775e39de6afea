//! The duties of an IP host on its link: turns frames that are not RoCE into answers and known neighbours.
//!
//! Answers ARP, neighbour discovery and echo requests for our addresses, resolves the Ethernet addresses of others, and keeps the GID
//! table. Joins multicast groups, reports them to the link's routers and answers their queries. Reads no clock, does no I/O, and allocates
//! nothing for *strangers*: hosts that this host did not resolve. Called by a shard, for frames that `wire` does not recognise as RoCE and
//! for destinations that the shard has to reach, and by tests.
//!
//! ```
//! use stack::id::{Gid, Mac};
//! use stack::net::{Net, NetConfig, Resolution};
//! use stack::time::Instant;
//!
//! let mut config = NetConfig::new(Mac([2, 0, 0, 0, 0, 1]));
//! config.addrs.push(("10.0.0.1".parse().unwrap(), 24));
//! let mut net = Net::new(&config);
//! let peer = Gid::v4([10, 0, 0, 2]);
//! assert_eq!(net.resolve(Instant::ZERO, &peer), Resolution::Pending);
//! let mut frame = [0; stack::net::FRAME_MAX];
//! let len = net.poll_transmit(Instant::ZERO, &mut frame).expect("an ARP request is due");
//! assert_eq!(&frame[..6], &[0xff; 6]);
//! assert_eq!(len, 42);
//! ```

#![forbid(unsafe_code)]

mod config;
mod counter;
mod frame;
mod groups;
mod neighbour;
mod reply_macs;

#[cfg(test)]
mod tests;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::VecDeque;

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv4Message, Icmpv4Packet, Icmpv4Repr,
    Icmpv6Message, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv6Packet, NdiscNeighborFlags,
    NdiscRepr, RawHardwareAddress,
};

use crate::id::{Gid, Mac};
use crate::time::Instant;

pub use config::{GIDS_MAX, GidTable, NetConfig, NetConfigError, NoHost, canonical, check_address};
pub use counter::NetCounter;
pub use groups::JoinError;
pub use neighbour::{NeighbourId, Resolution};

use config::{Routes, is_host, is_unicast};
use counter::COUNTERS;
use frame::{Ethernet, FrameHeader};
use groups::{Groups, Membership};
use neighbour::{Due, Initiator, Learned, Neighbours, Via};
use reply_macs::ReplyMacs;

/// Bytes that hold every frame of [`Net::poll_transmit`], and every answer except that to a longer echo request:
/// Ethernet with VLAN tag, IPv6, neighbour solicitation with one option.
pub const FRAME_MAX: usize = 18 + 40 + 24 + 8;

/// Kinds of IGMP messages (RFC 2236 2.1).
const IGMP_QUERY: u8 = 0x11;
const IGMP_REPORT: u8 = 0x16;
const IGMP_LEAVE: u8 = 0x17;
/// Kinds of MLD messages, which are ICMPv6 (RFC 2710 3.1).
const MLD_QUERY: u8 = 130;
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The IP host of one port.
#[derive(Debug)]
pub struct Net {
    mac: Mac,
    vlan: Option<u16>,
    next_hop: Option<Mac>,
    gids: GidTable,
    routes: Routes,
    neighbours: Neighbours,
    reply_macs: ReplyMacs,
    groups: Groups,
    /// Addresses that have yet to be announced on the link.
    announce: VecDeque<Gid>,
    counters: [u64; COUNTERS],
}

/// What became of a frame: answered with this many bytes, processed without an answer, or ignored for this reason.
type Handled = Result<Option<usize>, NetCounter>;

impl Net {
    /// A host with these addresses, which knows no neighbour.
    ///
    /// Accepts any configuration: a prefix longer than its address counts as the whole address, a VLAN id is cut to its 12 bits, and VLAN
    /// id 0 means untagged. [`NetConfig::check`] finds such mistakes.
    pub fn new(config: &NetConfig) -> Self {
        Self {
            mac: config.mac,
            vlan: config.vlan,
            next_hop: config.next_hop,
            gids: GidTable::new(config),
            routes: Routes::new(config),
            neighbours: Neighbours::new(&config.fixed_neighbours()),
            reply_macs: ReplyMacs::default(),
            groups: Groups::new(config.mac),
            announce: VecDeque::new(),
            counters: [0; COUNTERS],
        }
    }

    /// Our Ethernet address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Our GIDs.
    pub fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// Adds an address. [`Net::poll_transmit`] announces it on the link, once (RFC 5227 2.3, RFC 4861 7.2.6). Does not check whether
    /// another host has it.
    pub fn add_address(&mut self, addr: IpAddr, prefix: u8) {
        let gid = Gid::from_ip(addr);
        self.gids.add(gid);
        self.routes.add(addr, prefix);
        self.neighbours.routes_changed();
        self.announce.retain(|g| *g != gid);
        if self.next_hop.is_none() {
            self.announce.push_back(gid);
        }
    }

    /// Removes an address: requests for it are not answered any more.
    pub fn remove_address(&mut self, addr: IpAddr) {
        let gid = Gid::from_ip(addr);
        self.gids.remove(&gid);
        self.routes.remove(&gid);
        self.neighbours.routes_changed();
        self.announce.retain(|g| *g != gid);
    }

    /// Makes holders of an answer of [`Net::resolve`] resolve again: a removed address, from which a queue pair still sent, is now unused.
    pub fn source_gone(&mut self) {
        self.neighbours.routes_changed();
    }

    /// Writes the frame that announces to all hosts on the link that an address is at our Ethernet address.
    fn announcement(&self, gid: &Gid, out: &mut [u8]) -> Option<usize> {
        if let Some(ours) = gid.as_v4() {
            return frame::arp_request(out, self.header_to(Mac::BROADCAST), ours.into(), ours.into());
        }
        let (ours, all) = (Ipv6Addr::from(gid.0), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
        let lladdr = Some(EthernetAddress(self.mac.0).into());
        let flags = NdiscNeighborFlags::OVERRIDE;
        let advert = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr: ours, lladdr });
        frame::icmpv6(out, self.header_to(frame::group(all)), ours, all, &advert)
    }

    /// Whether a frame with this tag control information (`None`: untagged) is of our VLAN. A priority tag, VLAN
    /// id 0, counts as untagged.
    #[inline]
    pub fn accepts_vlan(&self, tci: Option<u16>) -> bool {
        frame::belongs(tci, self.vlan)
    }

    /// The value of a counter.
    pub fn counter(&self, which: NetCounter) -> u64 {
        self.counters[which as usize]
    }

    /// Every counter with its value.
    pub fn counters(&self) -> impl Iterator<Item = (NetCounter, u64)> {
        NetCounter::ALL.iter().map(|c| (*c, self.counter(*c)))
    }

    fn count(&mut self, which: NetCounter) {
        self.counters[which as usize] += 1;
    }

    /// The Ethernet address to which frames for `dst` go: that of the destination, or of its gateway. If a request is necessary,
    /// [`Net::poll_transmit`] returns it.
    ///
    /// Our own addresses are at our Ethernet address, multicast addresses at their Ethernet group. The answer is valid until
    /// [`Net::generation`] changes.
    pub fn resolve(&mut self, now: Instant, dst: &Gid) -> Resolution {
        match self.next_hop(dst) {
            Ok(next_hop) => self.resolve_neighbour(now, &next_hop, Initiator::Program),
            Err(answer) => answer,
        }
    }

    /// Same as [`Net::resolve`], for a queue pair that holds the neighbour from now on, in place of the neighbour `before`. A held
    /// neighbour is refreshed without further calls and is never evicted. [`Net::changes`] reports when its answer changes;
    /// [`Net::release`] ends the hold. The id is `None` if the destination has no neighbour.
    pub fn hold(
        &mut self,
        now: Instant,
        dst: &Gid,
        before: Option<NeighbourId>,
    ) -> (Option<NeighbourId>, Resolution) {
        match self.next_hop(dst) {
            Ok(next_hop) => {
                let (id, answer, evicted) = self.neighbours.hold(now, &next_hop, before);
                if evicted {
                    self.count(NetCounter::NeighbourEvicted);
                }
                (Some(id), answer)
            }
            Err(answer) => {
                if let Some(before) = before {
                    self.neighbours.release(before);
                }
                (None, answer)
            }
        }
    }

    /// Ends a hold of [`Net::hold`].
    pub fn release(&mut self, id: NeighbourId) {
        self.neighbours.release(id);
    }

    /// Checks whether a held neighbour, which did not answer, is still there; at most once a second.
    pub fn recheck(&mut self, now: Instant, id: NeighbourId) {
        self.neighbours.recheck(now, id);
    }

    /// Calls `each` for held neighbours whose answer changed after generation `since`; for all held ones if routes changed.
    pub fn changes(&self, since: u64, each: impl FnMut(NeighbourId)) {
        self.neighbours.changes(since, each);
    }

    /// Same as [`Net::resolve`], for an answer to a stranger. If the neighbour table does not have the stranger, the answer goes to the
    /// Ethernet address that [`Net::note_reply_mac`] recorded. That costs neither a request nor an entry.
    pub fn resolve_answer(&mut self, now: Instant, dst: &Gid) -> Resolution {
        match self.next_hop(dst) {
            Ok(next_hop) if next_hop == *dst && !self.neighbours.contains(dst) => {
                match self.reply_macs.mac(now, dst) {
                    Some(mac) => Resolution::Known(mac),
                    None => self.resolve_neighbour(now, dst, Initiator::Stranger),
                }
            }
            Ok(next_hop) => self.resolve_neighbour(now, &next_hop, Initiator::Stranger),
            Err(answer) => answer,
        }
    }

    /// Records the Ethernet address of a message that will be answered. It is used for the answer only.
    pub fn note_reply_mac(&mut self, now: Instant, src: &Gid, mac: Mac) {
        if is_unicast(mac) && mac != self.mac {
            self.reply_macs.note(now, src, mac);
        }
    }

    fn resolve_neighbour(&mut self, now: Instant, next_hop: &Gid, initiator: Initiator) -> Resolution {
        let (answer, evicted) = self.neighbours.resolve(now, next_hop, initiator);
        if evicted {
            self.count(NetCounter::NeighbourEvicted);
        }
        answer
    }

    /// The neighbour to which frames for a destination go. The error is the answer for a destination without a neighbour.
    fn next_hop(&self, dst: &Gid) -> Result<Gid, Resolution> {
        if dst.is_multicast() {
            return Err(Resolution::Known(Mac::multicast(dst)));
        }
        if self.gids.is_local(dst) {
            return Err(Resolution::Known(self.mac));
        }
        if let Some(next_hop) = self.next_hop {
            return Err(Resolution::Known(next_hop));
        }
        self.routes.next_hop(dst).filter(is_host).ok_or(Resolution::Failed)
    }

    /// Our address from which a destination is reached: one on its subnet, otherwise any of its family. `None` if there is no route to it,
    /// or no host can have that address. A multicast group needs no route.
    pub fn source_to(&self, dst: &Gid) -> Option<Gid> {
        if !dst.is_multicast() {
            self.routes.next_hop(dst).filter(is_host)?;
        }
        self.routes.source_for(dst)
    }

    /// A number that changes whenever an answer that [`Net::resolve`] or [`Net::hold`] gave may have changed; never 0. It also changes when
    /// an answer without a holder is old: to resolve again then refreshes it.
    pub fn generation(&self) -> u64 {
        self.neighbours.generation()
    }

    /// When to call [`Net::poll_transmit`] next. `None`: not until another call changes that.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.announce.is_empty() {
            return Some(Instant::ZERO);
        }
        let (a, b) = (self.neighbours.deadline(), self.groups.deadline());
        a.into_iter().chain(b).min()
    }

    /// Joins a multicast group: reports it to routers and switches, and answers queries. To join a group again changes nothing.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(&mut self, now: Instant, group: &Gid) -> Result<(), JoinError> {
        self.groups.join(now, group)
    }

    /// Leaves a multicast group; `false` if we are not in it.
    pub fn leave(&mut self, now: Instant, group: &Gid) -> bool {
        self.groups.leave(now, group)
    }

    /// Whether we have joined a multicast group by [`Net::join`].
    pub fn is_member(&self, group: &Gid) -> bool {
        self.groups.contains(group)
    }

    /// Reports all our groups again. Call it when the link came up: other routers and switches may be at its end.
    pub fn report_groups(&mut self, now: Instant) {
        self.groups.announce(now);
    }

    /// Writes the next frame that is due into `out` (at least [`FRAME_MAX`] bytes) and returns the frame's length in bytes. Call it until
    /// it returns `None`.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        if let Some(gid) = self.announce.pop_front() {
            let sent = self.announcement(&gid, out);
            self.count(if sent.is_some() { NetCounter::Announced } else { NetCounter::ReplyTooLong });
            return sent;
        }
        if let Some(membership) = self.groups.poll(now) {
            let sent = self.membership(membership, out);
            self.count(match (membership, sent) {
                (_, None) => NetCounter::ReplyTooLong,
                (Membership::Report(_), _) => NetCounter::GroupReported,
                (Membership::Leave(_), _) => NetCounter::GroupLeft,
            });
            return sent;
        }
        loop {
            let request = match self.neighbours.poll(now)? {
                Due::Send(request) => request,
                Due::Unreachable => {
                    self.count(NetCounter::NeighbourUnreachable);
                    continue;
                }
            };
            let Some(ours) = self.routes.source_for(&request.target) else { continue };
            let sent = match (ours.as_v4(), request.target.as_v4()) {
                (Some(ours), Some(target)) => {
                    let header = self.header_to(request.mac.unwrap_or(Mac::BROADCAST));
                    frame::arp_request(out, header, ours.into(), target.into())
                }
                _ => {
                    let (ours, target) = (Ipv6Addr::from(ours.0), Ipv6Addr::from(request.target.0));
                    let group = frame::group(frame::solicited_node(target));
                    let header = self.header_to(request.mac.unwrap_or(group));
                    frame::solicitation(out, header, ours, target, request.mac.is_some())
                }
            };
            self.count(if sent.is_some() { NetCounter::RequestSent } else { NetCounter::ReplyTooLong });
            return sent;
        }
    }

    /// Writes a report, to its group, or a leave message, to the routers of the link.
    fn membership(&self, membership: Membership, out: &mut [u8]) -> Option<usize> {
        let (group, leave) = match membership {
            Membership::Report(group) => (group, false),
            Membership::Leave(group) => (group, true),
        };
        if let Some(of) = group.as_v4() {
            let dst = if leave { [224, 0, 0, 2] } else { of };
            let kind = if leave { IGMP_LEAVE } else { IGMP_REPORT };
            // A host without an address of the family sends reports all the same (RFC 3376 4.2.13).
            let src = self.routes.source_for(&group).and_then(|g| g.as_v4()).unwrap_or_default();
            let header = self.header_to(Mac::multicast(&Gid::v4(dst)));
            frame::igmp(out, header, src.into(), dst.into(), kind, of.into())
        } else {
            const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
            let of = Ipv6Addr::from(group.0);
            let (dst, kind) = if leave { (ROUTERS, MLD_DONE) } else { (of, MLD_REPORT) };
            let src = Ipv6Addr::from(Gid::link_local(self.mac).0);
            frame::mld(out, self.header_to(frame::group(dst)), src, dst, kind, of)
        }
    }

    /// Handles a frame that is not RoCE. Writes the answer, if there is one, into `reply` and returns its length in bytes. If no answer can
    /// be sent, pass an empty `reply`.
    ///
    /// `frame` may be any bytes; ignored frames are counted. An answer is never longer than its request, except that the answer to a
    /// neighbour solicitation without a source address option has up to [`FRAME_MAX`] bytes.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8], reply: &mut [u8]) -> Option<usize> {
        let reason = match self.handle(now, frame, reply) {
            Ok(reply_len) => return reply_len,
            Err(NetCounter::ReplyTooLong) if reply.is_empty() => NetCounter::NoReplyBuffer,
            Err(reason) => reason,
        };
        self.count(reason);
        None
    }

    fn handle(&mut self, now: Instant, frame: &[u8], reply: &mut [u8]) -> Handled {
        let frame = Ethernet::parse(frame).ok_or(NetCounter::TooShort)?;
        if !is_unicast(frame.src) {
            return Err(NetCounter::BadSourceStation);
        }
        if frame.src == self.mac {
            return Err(NetCounter::OwnFrame);
        }
        if is_unicast(frame.dst) && frame.dst != self.mac {
            return Err(NetCounter::NotOurStation);
        }
        if !self.accepts_vlan(frame.tci) {
            return Err(NetCounter::WrongVlan);
        }
        match frame.ethertype {
            frame::ARP => self.handle_arp(now, &frame, reply),
            frame::IPV4 => self.handle_ipv4(now, &frame, reply),
            frame::IPV6 => self.handle_ipv6(now, &frame, reply),
            _ => Err(NetCounter::OtherEthertype),
        }
    }

    fn header_to(&self, dst: Mac) -> FrameHeader {
        FrameHeader { src: self.mac, dst, vlan: self.vlan }
    }

    /// Counts an answer that was written. An error if it did not fit.
    fn answered(&mut self, which: NetCounter, len: Option<usize>) -> Handled {
        let len = len.ok_or(NetCounter::ReplyTooLong)?;
        self.count(which);
        Ok(Some(len))
    }

    /// Learns a neighbour's Ethernet address, if the table allows it.
    fn learn(&mut self, now: Instant, gid: &Gid, mac: Mac, via: Via) -> Learned {
        let near = self.routes.on_link(gid);
        let learned = self.neighbours.learn(now, gid, mac, via, near);
        match learned {
            Learned::Yes => self.count(NetCounter::NeighbourLearned),
            Learned::Evicted => {
                self.count(NetCounter::NeighbourLearned);
                self.count(NetCounter::NeighbourEvicted);
            }
            Learned::Disputed => self.count(NetCounter::NeighbourDisputed),
            Learned::Unknown => {}
        }
        learned
    }

    /// Handles ARP (RFC 826, with the checks of RFC 5227): answers a request for us and remembers its sender; any other packet only updates
    /// a known sender.
    fn handle_arp(&mut self, now: Instant, frame: &Ethernet<'_>, reply: &mut [u8]) -> Handled {
        let packet = ArpPacket::new_checked(frame.payload).map_err(|_| NetCounter::BadArp)?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr: sender,
            target_protocol_addr: target,
            ..
        } = ArpRepr::parse(&packet).map_err(|_| NetCounter::BadArp)?
        else {
            return Err(NetCounter::BadArp);
        };
        let mac = Mac(source_hardware_addr.0);
        let sender_gid = Gid::v4(sender.octets());
        let probe = sender.is_unspecified(); // asks whether an address is free (RFC 5227)
        if !is_unicast(mac) || !(probe || is_host(&sender_gid)) {
            return Err(NetCounter::BadArp);
        }
        if mac != frame.src {
            return Err(NetCounter::StationMismatch);
        }
        if self.gids.is_local(&sender_gid) {
            return Err(NetCounter::AddressConflict);
        }
        let for_us = self.gids.is_local(&Gid::v4(target.octets()));
        match operation {
            ArpOperation::Request if for_us => {
                if !probe {
                    self.learn(now, &sender_gid, mac, Via::Question);
                }
                let len = frame::arp_reply(reply, self.header_to(mac), target, sender, mac);
                self.answered(NetCounter::ArpAnswered, len)
            }
            ArpOperation::Request | ArpOperation::Reply if !probe => {
                let answer = operation == ArpOperation::Reply && for_us && frame.dst == self.mac;
                let via = if answer { Via::Answer } else { Via::Other };
                match (self.learn(now, &sender_gid, mac, via), operation) {
                    (Learned::Unknown, ArpOperation::Reply) => Err(NetCounter::UnsolicitedAnswer),
                    (Learned::Unknown, _) => Err(NetCounter::NotForUs),
                    _ => Ok(None),
                }
            }
            ArpOperation::Request => Err(NetCounter::NotForUs),
            _ => Err(NetCounter::BadArp),
        }
    }

    /// Handles IPv4: echo requests to our address (RFC 792, RFC 1122 3.2.2.6) and IGMP. The answer goes to the Ethernet address of the
    /// request.
    fn handle_ipv4(&mut self, now: Instant, frame: &Ethernet<'_>, reply: &mut [u8]) -> Handled {
        let packet = Ipv4Packet::new_checked(frame.payload).map_err(|_| NetCounter::BadIp)?;
        if packet.version() != 4 || packet.header_len() < 20 || !packet.verify_checksum() {
            return Err(NetCounter::BadIp);
        }
        let (src, dst) = (packet.src_addr(), packet.dst_addr());
        let sender = Gid::v4(src.octets());
        if packet.next_header() == IpProtocol::Igmp && dst.is_multicast() {
            return self.handle_igmp(now, dst, packet.payload());
        }
        if frame.dst != self.mac || !self.gids.is_local(&Gid::v4(dst.octets())) {
            return Err(NetCounter::BadIpAddress);
        }
        if !is_host(&sender) || self.gids.is_local(&sender) {
            return Err(NetCounter::BadIpAddress);
        }
        if packet.more_frags() || packet.frag_offset() != 0 {
            return Err(NetCounter::Fragment);
        }
        if packet.next_header() != IpProtocol::Icmp {
            return Err(NetCounter::OtherProtocol);
        }
        let icmp = Icmpv4Packet::new_checked(packet.payload()).map_err(|_| NetCounter::BadIcmp)?;
        if !icmp.verify_checksum() {
            return Err(NetCounter::BadIcmp);
        }
        if icmp.msg_type() != Icmpv4Message::EchoRequest || icmp.msg_code() != 0 {
            return Err(NetCounter::OtherIcmp);
        }
        let echo =
            Icmpv4Repr::EchoReply { ident: icmp.echo_ident(), seq_no: icmp.echo_seq_no(), data: icmp.data() };
        let len = frame::icmpv4(reply, self.header_to(frame.src), dst, src, &echo);
        self.answered(NetCounter::EchoAnswered, len)
    }

    /// Handles IPv6: neighbour discovery, echo requests and MLD. Other packets with extension headers are ignored.
    fn handle_ipv6(&mut self, now: Instant, frame: &Ethernet<'_>, reply: &mut [u8]) -> Handled {
        let packet = Ipv6Packet::new_checked(frame.payload).map_err(|_| NetCounter::BadIp)?;
        if packet.version() != 6 {
            return Err(NetCounter::BadIp);
        }
        let (src, dst) = (packet.src_addr(), packet.dst_addr());
        let sender = Gid(src.octets());
        if packet.next_header() == IpProtocol::HopByHop && dst.is_multicast() {
            return self.handle_mld(now, &packet);
        }
        if !self.is_ours(&dst) && !self.is_our_group(&dst) {
            return Err(NetCounter::BadIpAddress);
        }
        if !(src.is_unspecified() || is_host(&sender)) || sender.as_v4().is_some() {
            return Err(NetCounter::BadIpAddress);
        }
        if self.gids.is_local(&sender) {
            return Err(NetCounter::AddressConflict);
        }
        if packet.next_header() != IpProtocol::Icmpv6 {
            return Err(NetCounter::OtherProtocol);
        }
        let kind = Icmpv6Message::from(*packet.payload().first().ok_or(NetCounter::BadIcmp)?);
        let is_nd = matches!(kind, Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert);
        if !is_nd && kind != Icmpv6Message::EchoRequest {
            return Err(NetCounter::OtherIcmp);
        }
        let icmp = Icmpv6Packet::new_checked(packet.payload()).map_err(|_| NetCounter::BadIcmp)?;
        if !icmp.verify_checksum(&src, &dst) {
            return Err(NetCounter::BadIcmp);
        }
        if icmp.msg_code() != 0 {
            return Err(if is_nd { NetCounter::BadNd } else { NetCounter::OtherIcmp });
        }
        if !is_nd {
            if frame.dst != self.mac || dst.is_multicast() || src.is_unspecified() {
                return Err(NetCounter::BadIpAddress);
            }
            let (ident, seq_no) = (icmp.echo_ident(), icmp.echo_seq_no());
            let echo = Icmpv6Repr::EchoReply { ident, seq_no, data: icmp.payload() };
            let len = frame::icmpv6(reply, self.header_to(frame.src), dst, src, &echo);
            return self.answered(NetCounter::EchoAnswered, len);
        }
        if packet.hop_limit() != frame::ND_HOP_LIMIT {
            return Err(NetCounter::BadHopLimit);
        }
        let mac_of = |option: RawHardwareAddress| match mac_of(option)? {
            mac if mac == frame.src => Ok(mac),
            _ => Err(NetCounter::StationMismatch),
        };
        match NdiscRepr::parse(&icmp).map_err(|_| NetCounter::BadNd)? {
            NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
                let mac = lladdr.map(mac_of).transpose()?;
                self.handle_solicitation(now, frame.src, src, dst, target_addr, mac, reply)
            }
            NdiscRepr::NeighborAdvert { flags, target_addr, lladdr } => {
                let mac = lladdr.map(mac_of).transpose()?;
                self.handle_advertisement(now, frame.src, dst, flags, target_addr, mac)
            }
            _ => Err(NetCounter::OtherIcmp),
        }
    }

    /// Handles a neighbour solicitation (RFC 4861 7.1.1, 7.2.3, 7.2.4).
    #[expect(clippy::too_many_arguments, reason = "the fields of one packet")]
    fn handle_solicitation(
        &mut self,
        now: Instant,
        frame_src: Mac,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        target: Ipv6Addr,
        mac: Option<Mac>,
        reply: &mut [u8],
    ) -> Handled {
        // An unspecified source probes whether the address is free, and has no Ethernet address to report.
        let probe = src.is_unspecified();
        if target.is_multicast() || (probe && (mac.is_some() || dst != frame::solicited_node(target))) {
            return Err(NetCounter::BadNd);
        }
        if !self.is_ours(&target) {
            return Err(NetCounter::NotForUs);
        }
        let (dst, mac, flags) = if probe {
            (ALL_NODES, frame::group(ALL_NODES), NdiscNeighborFlags::OVERRIDE)
        } else {
            if let Some(mac) = mac {
                self.learn(now, &Gid(src.octets()), mac, Via::Question);
            }
            (src, mac.unwrap_or(frame_src), NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE)
        };
        let lladdr = Some(EthernetAddress(self.mac.0).into());
        let advert = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr });
        let len = frame::icmpv6(reply, self.header_to(mac), target, dst, &advert);
        self.answered(NetCounter::SolicitationAnswered, len)
    }

    /// Handles a neighbour advertisement (RFC 4861 7.1.2, 7.2.5).
    fn handle_advertisement(
        &mut self,
        now: Instant,
        frame_src: Mac,
        dst: Ipv6Addr,
        flags: NdiscNeighborFlags,
        target: Ipv6Addr,
        mac: Option<Mac>,
    ) -> Handled {
        let solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
        if target.is_multicast() || (dst.is_multicast() && solicited) {
            return Err(NetCounter::BadNd);
        }
        if self.is_ours(&target) {
            return Err(NetCounter::AddressConflict);
        }
        let target = Gid(target.octets());
        let known = self.neighbours.mac(&target);
        // An answer to a unicast request may leave out the Ethernet address.
        let Some(mac) = mac.or(known.filter(|known| solicited && *known == frame_src)) else {
            return Err(if known.is_some() { NetCounter::BadNd } else { NetCounter::UnsolicitedAnswer });
        };
        if known.is_some_and(|k| k != mac) && !flags.contains(NdiscNeighborFlags::OVERRIDE) {
            return Err(NetCounter::NoOverride);
        }
        let via = if solicited { Via::Answer } else { Via::Other };
        match self.learn(now, &target, mac, via) {
            Learned::Unknown => Err(NetCounter::UnsolicitedAnswer),
            _ => Ok(None),
        }
    }

    /// Handles a query for members of IPv4 groups, of any version: what later versions add does not matter to a host that wants all sources
    /// of a group (RFC 3376 7.2.1).
    fn handle_igmp(&mut self, now: Instant, dst: Ipv4Addr, message: &[u8]) -> Handled {
        let Some(&[kind, code, _, _, a, b, c, d]) = message.first_chunk::<8>() else {
            return Err(NetCounter::BadGroupMessage);
        };
        if frame::checksum(&[message]) != 0 {
            return Err(NetCounter::BadGroupMessage);
        }
        if kind != IGMP_QUERY {
            return Err(NetCounter::OtherGroupMessage);
        }
        let general = [a, b, c, d] == [0; 4];
        let group = Gid::v4([a, b, c, d]);
        // A general query goes to all hosts, a specific one to its group.
        if dst.octets() != if general { [224, 0, 0, 1] } else { [a, b, c, d] } {
            return Err(NetCounter::BadGroupMessage);
        }
        self.queried(now, Some(group).filter(|_| !general), true, groups::igmp_delay(code))
    }

    /// Handles a query for members of IPv6 groups, of any version, with the checks of RFC 2710 5: from this link, with a router alert.
    fn handle_mld(&mut self, now: Instant, packet: &Ipv6Packet<&[u8]>) -> Handled {
        let (src, dst) = (packet.src_addr(), packet.dst_addr());
        let payload = packet.payload();
        let headers = payload.get(1).map_or(8, |len| 8 + 8 * usize::from(*len));
        let (Some(options), Some(message)) = (payload.get(2..headers), payload.get(headers..)) else {
            return Err(NetCounter::BadIp);
        };
        if payload[0] != frame::ICMPV6 {
            return Err(NetCounter::OtherProtocol);
        }
        let pseudo = frame::icmpv6_pseudo(src, dst, message.len());
        let from_here = config::is_link_local(&Gid(src.octets())) && packet.hop_limit() == 1;
        if !from_here || !frame::router_alert(options) || frame::checksum(&[&pseudo, message]) != 0 {
            return Err(NetCounter::BadGroupMessage);
        }
        let Some(query) = message.first_chunk::<24>() else { return Err(NetCounter::BadGroupMessage) };
        if query[0] != MLD_QUERY || query[1] != 0 {
            return Err(NetCounter::OtherGroupMessage);
        }
        let delay = groups::mld_delay(u16::from_be_bytes([query[4], query[5]]));
        let mut group = Gid::default();
        group.0.copy_from_slice(&query[8..]);
        let general = group.is_zero();
        if dst != if general { ALL_NODES } else { Ipv6Addr::from(group.0) } {
            return Err(NetCounter::BadGroupMessage);
        }
        self.queried(now, Some(group).filter(|_| !general), false, delay)
    }

    fn queried(
        &mut self,
        now: Instant,
        group: Option<Gid>,
        ipv4: bool,
        max: core::time::Duration,
    ) -> Handled {
        if !self.groups.query(now, group.as_ref(), ipv4, max) {
            return Err(NetCounter::OtherGroupMessage);
        }
        self.count(NetCounter::GroupQueried);
        Ok(None)
    }

    fn is_ours(&self, addr: &Ipv6Addr) -> bool {
        let gid = Gid(addr.octets());
        gid.as_v4().is_none() && self.gids.is_local(&gid)
    }

    /// Whether we are a member of an IPv6 group without having joined it: all nodes, and the solicited-node groups of our addresses.
    fn is_our_group(&self, addr: &Ipv6Addr) -> bool {
        let mut ours = self.gids.iter().filter(|g| g.as_v4().is_none());
        *addr == ALL_NODES || ours.any(|g| frame::solicited_node(Ipv6Addr::from(g.0)) == *addr)
    }
}

/// The Ethernet address in a neighbour discovery option.
fn mac_of(option: RawHardwareAddress) -> Result<Mac, NetCounter> {
    match <[u8; 6]>::try_from(option.as_bytes()) {
        Ok(bytes) if is_unicast(Mac(bytes)) => Ok(Mac(bytes)),
        _ => Err(NetCounter::BadNd),
    }
}
