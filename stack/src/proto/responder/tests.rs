use super::*;
use crate::mem::UserMemory;
use crate::proto::tables::CREDIT_UNLIMITED;
use crate::wire::{Aeth, AtomicEth, Ext, Flow, HEADERS_MAX, Header, Ingress, Opcode, Template, locate};

/// Receives without end.
struct Plenty;

impl ReceiveSource for Plenty {
    fn take(&mut self) -> Option<u64> {
        Some(4096)
    }
}

/// Takes an empty SEND at `psn` and returns the acknowledgement.
fn send(responder: &mut Responder, psn: Psn) -> Option<Answered> {
    let template = Template::new(&Flow { dst: crate::id::Gid::v4([10, 0, 0, 1]), ..Flow::default() });
    let mut frame = [0; HEADERS_MAX];
    let at = template.begin(&mut frame, &Header { psn, ack_req: true, ..Header::default() });
    let len = template.seal(&mut frame, at, 0);
    let Ok(Ingress::Roce(layout)) = locate(&frame[..len]) else { panic!("a SEND is a packet") };
    let pkt = layout.packet(&frame[..len]);
    let verdict = responder.handle_request(&pkt, PdId(1), &mut Plenty, &MrTable::new());
    assert_eq!(verdict, Ok(Verdict::Accept));
    responder.accept(&pkt);
    responder.poll_transmit(None)
}

fn ready(rq_psn: u32) -> Responder {
    let mut responder = Responder::default();
    let config = ResponderConfig { mtu: Mtu::Mtu1024, access: Access::all(), min_rnr_timer: 0 };
    responder.start(&config, Psn::new(rq_psn), 4);
    responder
}

// Goal: offset 0 of a region that does not start on a word is no word, however round the offset is.
#[test]
fn r35_r57_words_of_a_zero_based_region_are_words_of_memory() {
    let keys = MrTable::new();
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::ZERO_BASED;
    let verdict = |addr: u64| {
        let rkey = keys.register(PdId(1), UserMemory::nowhere(addr, 64), access, 1).unwrap();
        let ext = Ext::Atomic(AtomicEth { va: 8, rkey, swap_add: 1, compare: 0 });
        let header = Header { opcode: Opcode::RC_FETCH_ADD, ext, psn: Psn::new(7), ..Header::default() };
        let template = Template::new(&Flow { dst: crate::id::Gid::v4([10, 0, 0, 1]), ..Flow::default() });
        let mut frame = [0; HEADERS_MAX];
        let at = template.begin(&mut frame, &header);
        let len = template.seal(&mut frame, at, 0);
        let Ok(Ingress::Roce(layout)) = locate(&frame[..len]) else { panic!("a request is a packet") };
        ready(7).handle_request(&layout.packet(&frame[..len]), PdId(1), &mut Plenty, &keys)
    };
    let Ok(Verdict::Atomic { place, swap: false }) = verdict(0x1000) else { panic!("it is a word") };
    assert_eq!((place.addr(), place.len()), (0x1008, 8));
    assert_eq!(verdict(0x1004), Err(Ok(Fault::Misaligned)));
}

#[test]
fn r51_message_sequence_number_wraps() {
    let mut responder = ready(0x100);
    responder.msn = Psn::new(0xff_ffff);
    let aeth = Aeth { syndrome: CREDIT_UNLIMITED, msn: 0 };
    let answer = Answered::Ack { psn: Psn::new(0x100), aeth, fatal: None };
    assert_eq!(send(&mut responder, Psn::new(0x100)), Some(answer));
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
    let mut responder = ready(0);
    responder.keep(Resource {
        kind: Kind::ReadRequest,
        last: Psn::new(9),
        next: Psn::new(10),
        ..Resource::FREE
    });
    let mut psn = 10;
    while psn < (1 << 23) {
        psn += 0x10_0000;
        responder.epsn = Psn::new(psn - 0x10_0000);
        responder.advance(0x10_0000);
    }
    assert!(responder.replay.iter().all(|r| r.kind == Kind::Ack));
}
