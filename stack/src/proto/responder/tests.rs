use super::*;
use crate::mem::UserMemory;
use crate::proto::tables::CREDIT_UNLIMITED;
use crate::wire::{
    Aeth, AtomicEth, Discard, Ext, Flow, HEADERS_MAX, Header, Ingress, Opcode, Reth, Template, locate,
};

/// Receives without end.
struct Plenty;

impl ReceiveSource for Plenty {
    fn take(&mut self) -> Option<u64> {
        Some(4096)
    }
}

/// A packet without payload.
fn with_packet<R>(header: &Header, f: impl FnOnce(&Packet<'_>) -> R) -> R {
    let template = Template::new(&Flow { dst: crate::id::Gid::v4([10, 0, 0, 1]), ..Flow::default() });
    let mut frame = [0; HEADERS_MAX];
    let at = template.begin(&mut frame, header);
    let len = template.seal(&mut frame, at, 0);
    let Ok(Ingress::Roce(layout)) = locate(&frame[..len]) else { panic!("it is a packet") };
    f(&layout.packet(&frame[..len]))
}

/// Takes an empty SEND.
fn take_send(responder: &mut Responder, ack_req: bool) {
    with_packet(&Header { psn: responder.rq_psn(), ack_req, ..Header::default() }, |pkt| {
        let effect = responder.handle_expected(pkt, PdId(1), &mut Plenty, &MrTable::new());
        assert_eq!(effect, Ok(Effect::Nothing));
        responder.accept(pkt);
    });
}

/// Takes an empty SEND and returns the acknowledgement.
fn send(responder: &mut Responder) -> Option<Answer> {
    take_send(responder, true);
    responder.poll_transmit(None)
}

/// Takes a READ of so many responses of 256 bytes, whose key is good.
fn take_read(responder: &mut Responder, packets: u32) {
    let ext = Ext::Reth(Reth { va: 0, rkey: 1, len: packets << 8 });
    let header =
        Header { opcode: Opcode::RC_READ_REQUEST, ext, psn: responder.rq_psn(), ..Header::default() };
    with_packet(&header, |pkt| responder.accept(pkt));
}

/// Answers the READ that is next, but for its last packets. Those in the middle are passed over.
fn answer_read(responder: &mut Responder, left: u32) {
    let next = responder.replay.first_of_newest(responder.pending);
    let r = &mut responder.replay.slots[next];
    r.next = r.last.sub(left);
    assert!(responder.poll_transmit(None).is_some());
}

fn fetch_add(psn: Psn) -> Header {
    let ext = Ext::Atomic(AtomicEth { va: 0, rkey: 1, swap_add: 1, compare: 0 });
    Header { opcode: Opcode::RC_FETCH_ADD, ext, psn, ..Header::default() }
}

/// Takes a FETCH&ADD, whose key is good, and answers it.
fn take_fetch_add(responder: &mut Responder, original: u64) {
    with_packet(&fetch_add(responder.rq_psn()), |pkt| responder.accept_atomic(pkt, original));
    assert!(matches!(responder.poll_transmit(None), Some(Answer::Atomic { .. })));
}

/// Takes a packet that was taken before. Returns the answer.
fn take_again(responder: &mut Responder, header: &Header) -> Result<Option<Answer>, Discard> {
    match with_packet(header, |pkt| responder.handle_unexpected(*pkt)) {
        Unexpected::Duplicate => Ok(responder.poll_transmit(None)),
        Unexpected::Drop(reason) => Err(reason),
        other => panic!("{other:?}, not a duplicate"),
    }
}

/// Moves on as so many packets of messages do. Nothing happens but at every quarter of the circle.
fn pass_messages(responder: &mut Responder, packets: u32) {
    let mut left = packets;
    while left > 0 {
        let plain = (0x3f_ffff - (responder.epsn.get() & 0x3f_ffff)).min(left);
        responder.epsn = responder.epsn.add(plain);
        left -= plain;
        if left > 0 {
            responder.advance(1);
            left -= 1;
        }
    }
}

fn ready(rq_psn: u32) -> Responder {
    let mut responder = Responder::default();
    let config = ResponderConfig { mtu: Mtu::Mtu1024, access: Access::all(), min_rnr_timer: 0 };
    responder.start(&config, Psn::new(rq_psn), 4);
    responder
}

fn ready_for_short_packets(rq_psn: u32) -> Responder {
    let mut responder = ready(rq_psn);
    responder.configure(&ResponderConfig { mtu: Mtu::Mtu256, access: Access::all(), min_rnr_timer: 0 });
    responder
}

// Goal: offset 0 of a region that does not start on a word is no word, however round the offset is.
#[test]
fn r35_r57_words_of_a_zero_based_region_are_words_of_memory() {
    let keys = MrTable::new();
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::ZERO_BASED;
    let effect = |addr: u64| {
        let rkey = keys.register(PdId(1), UserMemory::nowhere(addr, 64), access, 1).unwrap();
        let ext = Ext::Atomic(AtomicEth { va: 8, rkey, swap_add: 1, compare: 0 });
        let header = Header { opcode: Opcode::RC_FETCH_ADD, ext, psn: Psn::new(7), ..Header::default() };
        with_packet(&header, |pkt| ready(7).handle_expected(pkt, PdId(1), &mut Plenty, &keys))
    };
    let Ok(Effect::Atomic { place, swap: false }) = effect(0x1000) else { panic!("it is a word") };
    assert_eq!((place.addr(), place.len()), (0x1008, 8));
    assert_eq!(effect(0x1004), Err(Fault::Misaligned));
}

#[test]
fn r51_message_sequence_number_wraps() {
    let mut responder = ready(0x100);
    responder.msn = Psn::new(0xff_ffff);
    let aeth = Aeth { syndrome: CREDIT_UNLIMITED, msn: 0 };
    let answer = Answer::Ack { psn: Psn::new(0x100), aeth, fatal: None };
    assert_eq!(send(&mut responder), Some(answer));
}

// Goal: what is being answered, and what may be asked again, survives another number of resources.
#[test]
fn s31_resources_are_kept_when_their_number_changes() {
    let mut responder = ready(0);
    let read = |n: u32, pending| Resource {
        kind: Kind::ReadRequest,
        pending,
        replay: false,
        first: Psn::new(n),
        last: Psn::new(n),
        start: Psn::new(n),
        next: Psn::new(n),
        pd: PdId(0),
        rkey: 0,
        len: 0,
        va: 0,
        operands: [0; 2],
        original: 0,
    };
    for n in 0..6 {
        responder.keep(read(n, n == 5));
    }
    responder.pending = 1;
    let kept = |r: &Responder| {
        let known = r.replay.iter().filter(|r| r.kind == Kind::ReadRequest);
        known.map(|r| r.first.get()).collect::<Vec<_>>()
    };
    assert_eq!(kept(&responder), [2, 3, 4, 5]);
    responder.resize_resources(6);
    assert_eq!((kept(&responder), responder.pending), (vec![2, 3, 4, 5], 1));
    responder.keep(read(6, true));
    responder.keep(read(7, true));
    assert_eq!(kept(&responder), [2, 3, 4, 5, 6, 7], "the new slots are used before an old one gives way");
    responder.pending = 3;
    responder.resize_resources(2);
    assert_eq!((kept(&responder), responder.pending), (vec![6, 7], 2));
    responder.resize_resources(0);
    assert_eq!((kept(&responder), responder.pending), (vec![], 0));
}

// Goal: a READ kept for replay is forgotten before its numbers come round and would match a new request.
#[test]
fn old_resources_are_forgotten_before_the_circle_closes() {
    let mut responder = ready_for_short_packets(0);
    take_read(&mut responder, 10);
    answer_read(&mut responder, 0);
    let known = |responder: &Responder| responder.replay.iter().any(|r| r.kind != Kind::Ack);
    pass_messages(&mut responder, 1 << 23);
    assert!(known(&responder), "it may still be asked for again");
    pass_messages(&mut responder, 1 << 22);
    assert!(!known(&responder));
}

// Goal: receive completions are not held back behind READs for an acknowledgement that nobody waits for, however long
// ago somebody did.
#[test]
fn nothing_is_owed_while_only_reads_are_answered() {
    for packets in [1 << 21, (1 << 22) - 1, (1 << 22) + 1, (1 << 23) - 1] {
        for first in [0, 1, 0x3f_ffff, 0x7f_ffff, 0xff_ffff] {
            let mut responder = ready_for_short_packets(first);
            assert!(send(&mut responder).is_some());
            take_read(&mut responder, 1 << 23);
            for n in 0..20 {
                answer_read(&mut responder, 1);
                take_read(&mut responder, packets);
                assert!(responder.poll_transmit(None).is_some());
                assert!(responder.has_answer() && !responder.owes_acknowledgement(), "{n}: {responder:?}");
            }
            answer_read(&mut responder, 1);
            take_send(&mut responder, true);
            assert!(responder.owes_acknowledgement());
            take_read(&mut responder, 1);
            assert!(responder.owes_acknowledgement());
            assert!(responder.poll_transmit(None).is_some(), "the last of the READ before");
            assert!(responder.owes_acknowledgement());
            assert!(responder.poll_transmit(None).is_some());
            assert!(!responder.owes_acknowledgement());
        }
    }
}

// Goal: a NAK that has not left yet says nothing new once the packet that it asks for is here.
#[test]
fn a_nak_is_withdrawn_when_the_packet_comes() {
    let mut responder = ready(7);
    responder.refuse(Psn::new(7), Fault::PsnGap, crate::id::QpType::Rc);
    assert!(responder.has_sent_gap_nak() && !responder.has_sent_rnr_nak());
    take_send(&mut responder, false);
    assert!(!responder.has_sent_gap_nak() && responder.poll_transmit(None).is_none());
}

// Goal: an acknowledgement that a NAK stood for is sent when the NAK is withdrawn.
#[test]
fn a_nak_that_is_withdrawn_leaves_what_was_owed_before() {
    let mut responder = ready(7);
    take_send(&mut responder, true);
    responder.refuse(Psn::new(8), Fault::PsnGap, crate::id::QpType::Rc);
    take_send(&mut responder, false);
    assert!(matches!(responder.poll_transmit(None), Some(Answer::Ack { psn, .. }) if psn == Psn::new(8)));
    assert!(responder.poll_transmit(None).is_none());
}

// Goal: a NAK leaves the packet that it asks for to be acknowledged.
#[test]
fn what_follows_a_nak_is_owed_an_acknowledgement() {
    for fault in [Fault::PsnGap, Fault::NoReceive] {
        let mut responder = ready(7);
        responder.refuse(Psn::new(7), fault, crate::id::QpType::Rc);
        assert!(responder.poll_transmit(None).is_some());
        assert!(!responder.owes_acknowledgement());
        take_send(&mut responder, true);
        assert!(responder.owes_acknowledgement());
        assert!(responder.poll_transmit(None).is_some());
        assert!(!responder.owes_acknowledgement());
    }
}

// Goal: a READ may step over any number of the circle, and an atomic behind it has the number of one before it.
#[test]
fn an_atomic_of_an_earlier_lap_does_not_answer_for_a_new_one() {
    let mut responder = ready_for_short_packets(0);
    take_fetch_add(&mut responder, 1);
    take_read(&mut responder, 1 << 23);
    answer_read(&mut responder, 0);
    pass_messages(&mut responder, (1 << 23) - 1);
    take_fetch_add(&mut responder, 77);
    let answer = take_again(&mut responder, &fetch_add(Psn::new(0)));
    assert!(matches!(answer, Ok(Some(Answer::Atomic { original: 77, .. }))), "{answer:?}");
}

// Goal: a remembered READ, some numbers of which are new again, is not taken for the one that is refused.
#[test]
fn a_read_that_is_refused_is_not_taken_for_one_of_an_earlier_lap() {
    let mut responder = ready_for_short_packets(1);
    take_read(&mut responder, 1 << 23);
    answer_read(&mut responder, 0);
    responder.replay.slots[0].replay = true;
    pass_messages(&mut responder, (1 << 23) + 4);
    take_read(&mut responder, 1);
    answer_read(&mut responder, 0);
    assert!(responder.refuse_read(Psn::new(5)));
}

// Goal: a request is answered again while it is in the half of the circle behind, where its requester may not have the
// answer yet, and never for one that has its number later. Everything against places that do not go round.
#[test]
fn requests_are_remembered_for_half_of_the_circle() {
    const HALF: u64 = 1 << 23;
    const STEPS: [u32; 5] = [1, 1 << 21, 1 << 22, (1 << 22) + 1, 1 << 23];
    let kinds = 2 * STEPS.len();
    for case in 0..kinds.pow(4) {
        let mut responder = ready_for_short_packets(0);
        responder.resize_resources(16);
        // Where READs and atomics are, and what the latter found.
        let (mut at, mut taken) = (0, vec![]);
        for digit in 0..4 {
            let step = case / kinds.pow(digit) % kinds;
            let (packets, is_read) = (STEPS[step / 2], step % 2 == 1);
            if is_read {
                taken.push((at, None));
                take_read(&mut responder, packets);
                answer_read(&mut responder, 0);
            } else {
                pass_messages(&mut responder, packets);
            }
            at += u64::from(packets);
            taken.push((at, Some(at)));
            take_fetch_add(&mut responder, at);
            at += 1;
            assert_eq!(responder.epsn, Psn::new(at as u32));

            for behind in [1, 2, HALF / 2 + 1, HALF - 1, HALF].into_iter().filter(|&behind| behind <= at) {
                let place = at - behind;
                let psn = Psn::new(place as u32);
                let held_back = taken.iter().find(|&&(first, _)| first > place);
                let until = Psn::new(held_back.map_or(at, |&(first, _)| first) as u32).sub(1);
                let answer = take_again(&mut responder, &Header { psn, ..Header::default() });
                assert!(matches!(answer, Ok(Some(Answer::Ack { psn, .. })) if psn == until), "{answer:?}");
            }
            for psn in taken.iter().map(|&(first, _)| Psn::new(first as u32)) {
                // The newest place behind with this number.
                let place = at.checked_sub((at - u64::from(psn.get())) % (2 * HALF));
                let Some(place) = place.filter(|place| (1..=HALF).contains(&(at - place))) else { continue };
                let known = taken.iter().find(|&&(first, original)| first == place && original.is_some());
                match (take_again(&mut responder, &fetch_add(psn)), known) {
                    (Err(Discard::Duplicate), None) => {}
                    (Ok(Some(Answer::Atomic { original, .. })), Some(_)) => assert_eq!(original, place),
                    (answer, _) => panic!("case {case}: {place} at {at}: {answer:?}"),
                }
            }
        }
    }
}
