//! The sequence of an XRC target whose requests others carry out (IBA A14).
//!
//! A domain that several processes share has its targets in a process of its own, the owner. It keeps nothing but the sequence of each
//! connection. A request packet is passed on to the *member* that has the shared receive queue which the packet names, and a target
//! there carries it out; what that one answers goes back to the requester. Both are renumbered: each member's connection has a
//! sequence of its own.
//!
//! The requester sees one responder. So one member at a time has its [`Turn`]: another one gets packets when everything before them
//! is acknowledged, and a member that refuses a packet moves the sequence back. Duplicates go to the member in whose turn they were.

use std::collections::VecDeque;

use super::tables::{NakCode, Syndrome};
use crate::id::{Mtu, Psn};
use crate::wire::{Discard, Kind, Packet};

/// Packets this far back are recognized as duplicates: a quarter of the circle.
const BACK: u32 = 1 << 22;

/// Number of a member, which its owner chose.
pub type Member = u32;

/// What the sequence depends on of a request packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its number.
    pub psn: Psn,
    /// Numbers that it takes: a READ has one for each packet of its response.
    pub packets: u32,
    /// Whether it is answered by responses (READ, atomics, FLUSH), and not by an acknowledgement alone.
    pub responds: bool,
    /// It requests an acknowledgement.
    pub ack_req: bool,
}

impl Request {
    /// Of a request packet that was received, at this path MTU.
    pub fn of(pkt: &Packet<'_>, mtu: Mtu) -> Self {
        let responds = !matches!(pkt.row.kind, Kind::Send | Kind::Write);
        let packets = if pkt.row.kind == Kind::ReadRequest { mtu.packets(pkt.reth().len) } else { 1 };
        Self { psn: pkt.psn, packets, responds, ack_req: pkt.ack_req }
    }
}

/// What a request packet is to the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrived {
    /// The next one: it is passed on as [`Relay::decide`] says.
    Next,
    /// A duplicate, for the member who has carried it out: with this number.
    Again(Member, Psn),
    /// A duplicate of a message that was carried out: this number is acknowledged.
    Acknowledge(Psn),
    /// Dropped under this name. What a NAK is to say of it: [`Relay::nak_due`].
    Drop(Discard),
}

/// What to do with the packet that is passed on next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It goes to this member, with this number. Then [`Relay::passed`].
    Pass(Member, Psn),
    /// It waits until what went before it is acknowledged.
    Wait,
    /// Nobody has the shared receive queue that it names.
    Refuse,
}

/// A response of a member, as it goes to the requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Its number.
    pub psn: Psn,
    /// What its AETH says, if it has one.
    pub msn: Psn,
    /// What it does to the sequence.
    pub effect: Effect,
}

/// What a response does to the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing but that something may be acknowledged.
    None,
    /// The requester sends everything again from there on: what waits is dropped.
    Back,
    /// The connection ends, for this reason.
    End(NakCode),
}

/// While one member gets the packets.
#[derive(Clone, Copy, Debug)]
struct Turn {
    member: Member,
    /// Its first packet, or one behind it, in the requester's sequence.
    from: Psn,
    /// What is added to the member's numbers.
    psns: u32,
    /// What is added to its message numbers.
    msns: u32,
    /// It had a request that is answered by responses.
    responds: bool,
}

/// A turn that is over, and the first packet behind it.
#[derive(Clone, Copy, Debug)]
struct Past {
    turn: Turn,
    end: Psn,
}

/// Where a member's own sequence is, while it has no turn.
#[derive(Clone, Copy, Debug)]
struct Place {
    member: Member,
    psn: Psn,
    msn: Psn,
}

/// What the requester was told, until the packet that is missing arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Nothing,
    /// It is to be told of a gap when everything before that is acknowledged: a NAK acknowledges it, too.
    GapSoon,
    Gap,
    /// There was no receive request: it waits, and sends everything again.
    NotReady,
}

/// The sequence of one connection.
#[derive(Debug)]
pub struct Relay {
    mtu: Mtu,
    /// The packet that is expected next. Those from `next` on have come, and wait.
    expected: Psn,
    /// The packet that is passed on next.
    next: Psn,
    /// The first one that is not acknowledged.
    done: Psn,
    /// Messages that were acknowledged.
    msn: Psn,
    told: Told,
    turn: Option<Turn>,
    /// Turns whose requests may be sent again for their responses: the newest.
    past: VecDeque<Past>,
    /// How many are remembered: as many as there may be such requests.
    most: usize,
    members: Vec<Place>,
}

impl Relay {
    /// Expects `rq_psn`; the requester has `max_dest_rd_atomic` READs and atomics outstanding, at most.
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

    /// The attribute `rq_psn`: the number expected next.
    pub fn rq_psn(&self) -> Psn {
        self.expected
    }

    /// Messages that were carried out, for an answer of the owner's own.
    pub fn msn(&self) -> Psn {
        self.msn
    }

    /// A member, whose connection begins with this number.
    pub fn join(&mut self, member: Member, psn: Psn) {
        self.leave(member);
        self.members.push(Place { member, psn, msn: Psn::new(0) });
    }

    /// A member is gone. What it had not acknowledged has not arrived, so what came behind it is to be dropped: whether that is so.
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

    /// A request packet has arrived.
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

    /// There is no room for the packet that arrived last: it counts as lost.
    pub fn take_back(&mut self, request: &Request) {
        self.expected = request.psn;
    }

    fn arrive_again(&self, request: &Request) -> Arrived {
        let psn = request.psn;
        if psn.diff(self.next) >= 0 {
            return Arrived::Drop(Discard::Duplicate); // the one that came first waits
        }
        let now = self.turn.filter(|turn| psn.diff(turn.from) >= 0);
        let before = || self.past.iter().find(|past| past.has(psn)).map(|past| past.turn);
        match now.or_else(before) {
            Some(turn) => Arrived::Again(turn.member, psn.sub(turn.psns)),
            None if request.responds || !request.ack_req => Arrived::Drop(Discard::Duplicate),
            None => Arrived::Acknowledge(psn),
        }
    }

    /// What to do with the packet that is passed on next, which names a shared receive queue of this member.
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

    /// The packet has gone to this member.
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

    /// Everything of the turn is acknowledged.
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

    /// A member answers with this number, and this syndrome and message number if there is an AETH; `None`: it answers nothing.
    pub fn answer(&mut self, member: Member, psn: Psn, aeth: Option<(u8, Psn)>) -> Option<Answer> {
        let msn = |turn: &Turn| aeth.map_or(Psn::new(0), |(_, msn)| msn.add(turn.msns));
        let of_member = |turn: &Turn| turn.member == member;
        if let Some(turn) = self.turn.filter(of_member) {
            let psn = psn.add(turn.psns);
            if psn.diff(turn.from) >= 0 && psn.diff(self.next) < 0 {
                return self.answer_of_turn(psn, msn(&turn), aeth.map(|(syndrome, _)| syndrome));
            }
        }
        // Once more what was answered before; a turn that is over has nothing to refuse.
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
            // It is said of a packet that was carried out.
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

    /// The packet with this number is expected next; all before it have arrived.
    fn go_back(&mut self, psn: Psn, told: Told) {
        (self.expected, self.next, self.done) = (psn, psn, psn);
        self.told = told;
    }

    /// The number of a NAK that tells of a gap, if one is due now.
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
