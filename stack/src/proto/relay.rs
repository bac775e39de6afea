//! The packet sequence of an XRC target whose requests are carried out by several processes (IBA A14).
//!
//! If several processes share an XRC domain, one of them, the owner, has the targets of the domain. For each connection the owner only
//! keeps track of the sequence. It forwards each request packet to the *member*, the process that has the shared receive queue which the
//! packet names. A target in the member carries the request out, and its answer is forwarded to the requester. Requests and answers are
//! renumbered, because each member's connection has PSNs and MSNs of its own.
//!
//! To the requester this looks like a single responder. So one member at a time has its *turn*: packets are forwarded to another one only
//! when all packets before them are acknowledged. When a member refuses a packet, the sequence goes back to that packet. A duplicate goes
//! to the member in whose turn the original was.

use std::collections::VecDeque;

use super::tables::{NakCode, Syndrome};
use crate::id::{Mtu, Psn};
use crate::wire::{Discard, Kind, Packet};

/// How many PSNs back a packet is recognized as a duplicate: a quarter of the PSN space.
const BACK: u32 = 1 << 22;

/// Number of a member, chosen by the owner.
pub type Member = u32;

/// The properties of a request packet that the sequence depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// PSN of the packet.
    pub psn: Psn,
    /// How many PSNs it uses: for a READ, one for each response packet.
    pub packets: u32,
    /// Whether it is answered by responses (READ, atomics, FLUSH) and not only by an acknowledgement.
    pub responds: bool,
    /// Whether it requests an acknowledgement.
    pub ack_req: bool,
}

impl Request {
    /// From a received request packet, with this path MTU.
    pub fn of(pkt: &Packet<'_>, mtu: Mtu) -> Self {
        let responds = !matches!(pkt.row.kind, Kind::Send | Kind::Write);
        let packets = if pkt.row.kind == Kind::ReadRequest { mtu.packets(pkt.reth().len) } else { 1 };
        Self { psn: pkt.psn, packets, responds, ack_req: pkt.ack_req }
    }
}

/// How a request packet fits into the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrived {
    /// It is the next packet: forward it as [`Relay::decide`] says.
    Next,
    /// It is a duplicate: forward it to the member that carried it out, with this PSN.
    Again(Member, Psn),
    /// It is a duplicate of a SEND or WRITE that was carried out: acknowledge this PSN.
    Acknowledge(Psn),
    /// It is dropped for this reason. [`Relay::nak_due`] says whether to send a NAK.
    Drop(Discard),
}

/// What to do with the packet that is to be forwarded next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Forward it to this member, with this PSN, then call [`Relay::passed`].
    Pass(Member, Psn),
    /// It has to wait until all packets before it are acknowledged.
    Wait,
    /// No member has the shared receive queue that it names.
    Refuse,
}

/// The answer of a member, renumbered for the requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Its PSN.
    pub psn: Psn,
    /// MSN for its AETH, if it has one.
    pub msn: Psn,
    /// What it does to the sequence.
    pub effect: Effect,
}

/// What an answer does to the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing, except that packets may be acknowledged.
    None,
    /// The requester will send again from this PSN on: drop the packets that wait.
    Back,
    /// The connection ends, with this NAK.
    End(NakCode),
}

/// The time during which one member gets the packets.
#[derive(Clone, Copy, Debug)]
struct Turn {
    member: Member,
    /// PSN of the first packet of the turn, in the requester's sequence, or of a later one.
    from: Psn,
    /// The difference between the requester's and the member's PSNs.
    psns: u32,
    /// The difference between the requester's and the member's MSNs.
    msns: u32,
    /// Whether a request of this turn is answered by responses.
    responds: bool,
}

/// A turn that is over, and the PSN after its last packet.
#[derive(Clone, Copy, Debug)]
struct Past {
    turn: Turn,
    end: Psn,
}

/// The state of a member's own sequence while it has no turn.
#[derive(Clone, Copy, Debug)]
struct Place {
    member: Member,
    psn: Psn,
    msn: Psn,
}

/// Which NAK was or will be sent for the packet that is expected next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Nothing,
    /// An earlier packet is missing. The NAK is sent when all packets before the gap are acknowledged, because it acknowledges them, too.
    GapSoon,
    Gap,
    /// An RNR NAK: the requester waits and then sends everything again.
    NotReady,
}

/// The sequence of one connection.
#[derive(Debug)]
pub struct Relay {
    mtu: Mtu,
    /// The PSN expected next from the requester. Packets from `next` to before it have arrived and wait.
    expected: Psn,
    /// PSN of the packet to forward next.
    next: Psn,
    /// The oldest PSN that is not acknowledged.
    done: Psn,
    /// How many messages were acknowledged.
    msn: Psn,
    told: Told,
    turn: Option<Turn>,
    /// The newest past turns with requests that may be sent again to get their responses.
    past: VecDeque<Past>,
    /// How many past turns are kept: as many as there may be such requests.
    most: usize,
    members: Vec<Place>,
}

impl Relay {
    /// Expects `rq_psn` first. The requester has at most `max_dest_rd_atomic` READs and atomics outstanding.
    pub fn new(mtu: Mtu, rq_psn: Psn, max_dest_rd_atomic: u8) -> Self {
        Self {
            mtu,
            expected: rq_psn,
            next: rq_psn,
            done: rq_psn,
            msn: Psn::new(0),
            told: Told::Nothing,
            turn: None,
            past: VecDeque::new(),
            most: max_dest_rd_atomic.into(),
            members: Vec::new(),
        }
    }

    /// The path MTU.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// The attribute `rq_psn`: the PSN expected next.
    pub fn rq_psn(&self) -> Psn {
        self.expected
    }

    /// The MSN, for an answer that the owner itself sends.
    pub fn msn(&self) -> Psn {
        self.msn
    }

    /// Adds a member, whose connection begins with this PSN.
    pub fn join(&mut self, member: Member, psn: Psn) {
        self.leave(member);
        self.members.push(Place { member, psn, msn: Psn::new(0) });
    }

    /// Removes a member. Packets that it has not acknowledged count as lost, and those that arrived after them are to be dropped. Returns
    /// whether there are any.
    pub fn leave(&mut self, member: Member) -> bool {
        self.members.retain(|place| place.member != member);
        self.past.retain(|past| past.turn.member != member);
        if self.turn.is_none_or(|turn| turn.member != member) {
            return false;
        }
        self.turn = None;
        let lost = self.done != self.next;
        if lost {
            self.go_back(self.done, Told::Nothing);
        }
        lost
    }

    /// Handles a request packet that arrived.
    pub fn arrive(&mut self, request: &Request) -> Arrived {
        match request.psn.diff(self.expected) {
            0 => {
                self.told = Told::Nothing;
                self.expected = self.expected.add(request.packets);
                Arrived::Next
            }
            1.. => {
                if self.told == Told::Nothing {
                    self.told = Told::GapSoon;
                }
                Arrived::Drop(Discard::OutOfSequence)
            }
            _ => self.arrive_again(request),
        }
    }

    /// Counts the packet that arrived last as lost, because there is no room for it.
    pub fn take_back(&mut self, request: &Request) {
        self.expected = request.psn;
    }

    fn arrive_again(&self, request: &Request) -> Arrived {
        let psn = request.psn;
        if psn.diff(self.next) >= 0 {
            return Arrived::Drop(Discard::Duplicate); // the first copy is still waiting
        }
        let now = self.turn.filter(|turn| psn.diff(turn.from) >= 0);
        let before = || self.past.iter().find(|past| past.has(psn)).map(|past| past.turn);
        match now.or_else(before) {
            Some(turn) => Arrived::Again(turn.member, psn.sub(turn.psns)),
            None if request.responds || !request.ack_req => Arrived::Drop(Discard::Duplicate),
            None => Arrived::Acknowledge(psn),
        }
    }

    /// Decides what to do with the packet that is to be forwarded next. `member` has the shared receive queue that it names; `None` if no
    /// member has it.
    pub fn decide(&self, request: &Request, member: Option<Member>) -> Decision {
        debug_assert_eq!(request.psn, self.next);
        let place = member.and_then(|member| self.members.iter().find(|place| place.member == member));
        match (place, self.turn) {
            (Some(place), Some(turn)) if place.member == turn.member => {
                Decision::Pass(turn.member, self.next.sub(turn.psns))
            }
            _ if self.done != self.next => Decision::Wait,
            (Some(place), _) => Decision::Pass(place.member, place.psn),
            (None, _) => Decision::Refuse,
        }
    }

    /// Records that the packet was forwarded to this member.
    pub fn passed(&mut self, request: &Request, member: Member) {
        if self.turn.is_none_or(|turn| turn.member != member) {
            self.end_turn();
            self.begin_turn(member);
        }
        let next = request.psn.add(request.packets);
        self.next = next;
        if let Some(turn) = &mut self.turn {
            turn.responds |= request.responds;
            if next.sub(turn.from.get()).get() > BACK {
                turn.from = next.sub(BACK);
            }
        }
        self.past.retain(|past| next.sub(past.turn.from.get()).get() <= BACK);
    }

    fn begin_turn(&mut self, member: Member) {
        let Some(place) = self.members.iter().find(|place| place.member == member) else { return };
        let (psns, msns) = (self.next.sub(place.psn.get()).get(), self.msn.sub(place.msn.get()).get());
        self.turn = Some(Turn { member, from: self.next, psns, msns, responds: false });
    }

    /// Ends the turn. All of its packets are acknowledged.
    fn end_turn(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        if let Some(place) = self.members.iter_mut().find(|place| place.member == turn.member) {
            (place.psn, place.msn) = (self.next.sub(turn.psns), self.msn.sub(turn.msns));
        }
        if turn.responds {
            self.past.push_back(Past { turn, end: self.next });
            if self.past.len() > self.most {
                self.past.pop_front();
            }
        }
    }

    /// Renumbers the answer of a member for the requester. `aeth` is its syndrome and MSN, if it has an AETH. `None` if it answers nothing.
    pub fn answer(&mut self, member: Member, psn: Psn, aeth: Option<(u8, Psn)>) -> Option<Answer> {
        let msn = |turn: &Turn| aeth.map_or(Psn::new(0), |(_, msn)| msn.add(turn.msns));
        let of_member = |turn: &Turn| turn.member == member;
        if let Some(turn) = self.turn.filter(of_member) {
            let psn = psn.add(turn.psns);
            if psn.diff(turn.from) >= 0 && psn.diff(self.next) < 0 {
                return self.answer_of_turn(psn, msn(&turn), aeth.map(|(syndrome, _)| syndrome));
            }
        }
        // A repeated answer of a past turn. All of its packets were accepted, so it cannot refuse one.
        if aeth.is_some_and(|(syndrome, _)| !Syndrome::is_ack(syndrome)) {
            return None;
        }
        let past =
            self.past.iter().find(|past| of_member(&past.turn) && past.has(psn.add(past.turn.psns)))?;
        Some(Answer { psn: psn.add(past.turn.psns), msn: msn(&past.turn), effect: Effect::None })
    }

    fn answer_of_turn(&mut self, psn: Psn, msn: Psn, syndrome: Option<u8>) -> Option<Answer> {
        let is_new = psn.diff(self.done) >= 0;
        let effect = match syndrome.map(Syndrome::decode) {
            None | Some(Syndrome::Ack { .. }) => {
                if is_new {
                    self.done = psn.add(1);
                    self.msn = if syndrome.is_some() { msn } else { self.msn };
                }
                return Some(Answer { psn, msn, effect: Effect::None });
            }
            // It refuses a packet that was already carried out.
            Some(_) if !is_new => return None,
            Some(Syndrome::Reserved) => return None,
            Some(Syndrome::RnrNak { .. }) => (Told::NotReady, Effect::Back),
            Some(Syndrome::Nak(NakCode::PsnSequenceError)) => (Told::Gap, Effect::Back),
            Some(Syndrome::Nak(code)) => (Told::Gap, Effect::End(code)),
        };
        self.msn = msn;
        self.go_back(psn, effect.0);
        Some(Answer { psn, msn, effect: effect.1 })
    }

    /// Expects the packet with this PSN next. All packets before it have been carried out.
    fn go_back(&mut self, psn: Psn, told: Told) {
        (self.expected, self.next, self.done) = (psn, psn, psn);
        self.told = told;
    }

    /// The PSN of the NAK for a gap, if it is to be sent now.
    pub fn nak_due(&mut self) -> Option<Psn> {
        if self.told != Told::GapSoon || self.done != self.expected {
            return None;
        }
        self.told = Told::Gap;
        Some(self.expected)
    }
}

impl Past {
    fn has(&self, psn: Psn) -> bool {
        psn.diff(self.turn.from) >= 0 && psn.diff(self.end) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK: u8 = 0x1f;
    const RNR: u8 = 0x20;
    const GAP: u8 = NakCode::PsnSequenceError as u8;

    /// A relay near the end of the circle, with two members.
    fn relay() -> Relay {
        let mut relay = Relay::new(Mtu::Mtu1024, Psn::new(0xff_fffe), 2);
        relay.join(7, Psn::new(100));
        relay.join(8, Psn::new(0xff_ffff));
        relay
    }

    fn message(psn: u32) -> Request {
        Request { psn: Psn::new(psn), packets: 1, responds: false, ack_req: true }
    }

    fn read(psn: u32, packets: u32) -> Request {
        Request { packets, responds: true, ..message(psn) }
    }

    /// The request arrives and is passed on at once: the number that the member sees.
    fn pass(relay: &mut Relay, request: Request, member: Member) -> u32 {
        assert_eq!(relay.arrive(&request), Arrived::Next);
        let Decision::Pass(to, psn) = relay.decide(&request, Some(member)) else {
            panic!("{request:?} waits");
        };
        assert_eq!(to, member);
        relay.passed(&request, member);
        psn.get()
    }

    /// The member acknowledges: what the requester sees, number and message number.
    fn ack(relay: &mut Relay, member: Member, psn: u32, msn: u32) -> Option<(u32, u32)> {
        let answer = relay.answer(member, Psn::new(psn), Some((ACK, Psn::new(msn))))?;
        assert_eq!(answer.effect, Effect::None);
        Some((answer.psn.get(), answer.msn.get()))
    }

    #[test]
    fn each_member_has_a_sequence_of_its_own() {
        let mut r = relay();
        assert_eq!(pass(&mut r, message(0xff_fffe), 7), 100);
        assert_eq!(pass(&mut r, message(0xff_ffff), 7), 101);
        // The other one waits until both are acknowledged.
        assert_eq!(r.arrive(&message(0)), Arrived::Next);
        assert_eq!(r.decide(&message(0), Some(8)), Decision::Wait);
        assert_eq!(ack(&mut r, 7, 100, 1), Some((0xff_fffe, 1)));
        assert_eq!(r.decide(&message(0), Some(8)), Decision::Wait);
        assert_eq!(r.decide(&message(0), None), Decision::Wait, "a NAK would acknowledge it");
        assert_eq!(ack(&mut r, 7, 101, 2), Some((0xff_ffff, 2)));
        assert_eq!(r.decide(&message(0), None), Decision::Refuse);
        assert_eq!(r.decide(&message(0), Some(8)), Decision::Pass(8, Psn::new(0xff_ffff)));
        r.passed(&message(0), 8);
        assert_eq!(ack(&mut r, 8, 0xff_ffff, 1), Some((0, 3)));
        assert_eq!(pass(&mut r, message(1), 7), 102);
        assert_eq!(ack(&mut r, 7, 102, 3), Some((1, 4)));
        assert_eq!(pass(&mut r, message(2), 8), 0);
        assert_eq!((r.rq_psn(), r.msn()), (Psn::new(3), Psn::new(4)));
    }

    #[test]
    fn a_member_says_nothing_of_what_is_not_its_own() {
        let mut r = relay();
        pass(&mut r, message(0xff_fffe), 7);
        for psn in [99, 101, 0, 0xff_fffe] {
            assert_eq!(ack(&mut r, 7, psn, 1), None);
        }
        assert_eq!(ack(&mut r, 8, 0xff_ffff, 1), None);
        assert_eq!(ack(&mut r, 9, 100, 1), None);
        assert_eq!(ack(&mut r, 7, 100, 1), Some((0xff_fffe, 1)));
        // It has accepted this, and cannot refuse it any more.
        for syndrome in [RNR, GAP, NakCode::InvalidRequest as u8, 0xff] {
            assert_eq!(r.answer(7, Psn::new(100), Some((syndrome, Psn::new(1)))), None);
        }
    }

    #[test]
    fn a_gap_is_told_once_and_when_all_before_it_is_acknowledged() {
        let mut r = relay();
        pass(&mut r, message(0xff_fffe), 7);
        assert_eq!(r.arrive(&message(1)), Arrived::Drop(Discard::OutOfSequence));
        assert_eq!(r.nak_due(), None);
        ack(&mut r, 7, 100, 1);
        assert_eq!((r.nak_due(), r.nak_due()), (Some(Psn::new(0xff_ffff)), None));
        assert_eq!(r.arrive(&message(2)), Arrived::Drop(Discard::OutOfSequence));
        assert_eq!(r.nak_due(), None);
        pass(&mut r, message(0xff_ffff), 7);
        assert_eq!(r.arrive(&message(1)), Arrived::Drop(Discard::OutOfSequence));
        ack(&mut r, 7, 101, 2);
        assert_eq!(r.nak_due(), Some(Psn::new(0)));
    }

    #[test]
    fn a_refusal_moves_the_sequence_back() {
        for (syndrome, tells) in [(RNR, false), (GAP, false)] {
            let mut r = relay();
            (0..3).for_each(|i| _ = pass(&mut r, message((0xff_fffe + i) & 0xff_ffff), 7));
            let answer = r.answer(7, Psn::new(101), Some((syndrome, Psn::new(1)))).expect("it is its own");
            assert_eq!((answer.psn, answer.effect), (Psn::new(0xff_ffff), Effect::Back));
            assert_eq!(r.arrive(&message(1)), Arrived::Drop(Discard::OutOfSequence));
            assert_eq!(r.nak_due().is_some(), tells, "the requester knows");
            assert_eq!(pass(&mut r, message(0xff_ffff), 7), 101);
            assert_eq!(pass(&mut r, message(0), 7), 102);
        }
        let mut r = relay();
        pass(&mut r, message(0xff_fffe), 7);
        let refused = r.answer(7, Psn::new(100), Some((NakCode::RemoteAccessError as u8, Psn::new(0))));
        assert_eq!(refused.map(|answer| answer.effect), Some(Effect::End(NakCode::RemoteAccessError)));
    }

    #[test]
    fn duplicates_go_to_who_has_carried_them_out() {
        let mut r = relay();
        assert_eq!(pass(&mut r, read(0xff_fffe, 3), 7), 100);
        for (i, psn) in [100, 101, 102].into_iter().enumerate() {
            let aeth = (i != 1).then_some((ACK, Psn::new(1)));
            let answer = r.answer(7, Psn::new(psn), aeth).expect("it is its own");
            assert_eq!(answer.psn, Psn::new(0xff_fffe + i as u32));
        }
        pass(&mut r, message(1), 8);
        ack(&mut r, 8, 0xff_ffff, 1);
        pass(&mut r, message(2), 7);
        // A READ whose turn is over, from its middle on; a message; and what is under way.
        assert_eq!(r.arrive(&read(0xff_ffff, 2)), Arrived::Again(7, Psn::new(101)));
        assert_eq!(r.arrive(&message(1)), Arrived::Acknowledge(Psn::new(1)));
        assert_eq!(r.arrive(&message(2)), Arrived::Again(7, Psn::new(103)));
        assert_eq!(r.answer(7, Psn::new(102), None).map(|answer| answer.psn), Some(Psn::new(0)));
        // Two such turns are remembered.
        ack(&mut r, 7, 103, 2);
        for (psn, member, theirs) in [(3, 8, 0), (4, 7, 104), (5, 8, 1)] {
            assert_eq!(pass(&mut r, read(psn, 1), member), theirs);
            assert!(ack(&mut r, member, theirs, 3).is_some());
        }
        assert_eq!(r.arrive(&read(0xff_ffff, 2)), Arrived::Drop(Discard::Duplicate));
        assert_eq!(r.arrive(&read(3, 1)), Arrived::Again(8, Psn::new(0)));
        assert_eq!(r.arrive(&Request { ack_req: false, ..message(1) }), Arrived::Drop(Discard::Duplicate));
        // What waits is not passed on twice.
        assert_eq!(r.arrive(&message(6)), Arrived::Next);
        assert_eq!(r.arrive(&message(6)), Arrived::Drop(Discard::Duplicate));
        r.take_back(&message(6));
        assert_eq!(pass(&mut r, message(6), 8), 2);
    }

    #[test]
    fn who_leaves_loses_what_it_has_not_acknowledged() {
        let mut r = relay();
        pass(&mut r, message(0xff_fffe), 7);
        ack(&mut r, 7, 100, 1);
        assert!(!r.leave(8) && !r.leave(8));
        pass(&mut r, message(0xff_ffff), 7);
        r.join(8, Psn::new(5));
        assert!(r.leave(7));
        assert_eq!(r.rq_psn(), Psn::new(0xff_ffff));
        assert_eq!(ack(&mut r, 7, 101, 2), None);
        assert_eq!(pass(&mut r, message(0xff_ffff), 8), 5);
        assert_eq!(ack(&mut r, 8, 5, 1), Some((0xff_ffff, 2)));
    }

    // A turn may last for any number of packets: half of the circle later its first ones are no duplicates.
    #[test]
    fn a_long_turn_forgets_its_beginning() {
        let mut r = relay();
        let (mut psn, mut theirs) = (0xff_fffe_u32, 100_u32);
        for _ in 0..20 {
            let request = read(psn & 0xff_ffff, 1 << 20);
            assert_eq!(pass(&mut r, request, 7), theirs & 0xff_ffff);
            (psn, theirs) = (psn + (1 << 20), theirs + (1 << 20));
            assert!(ack(&mut r, 7, theirs.wrapping_sub(1) & 0xff_ffff, 1).is_some());
        }
        assert_eq!(pass(&mut r, message(psn & 0xff_ffff), 8), 0xff_ffff);
    }
}
