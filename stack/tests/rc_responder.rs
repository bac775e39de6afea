//! The responder of a reliable connection against a scripted peer. Unless noted otherwise: PMTU 1024, expected PSN 0x100, 4 READs and
//! atomics kept, all remote rights, one region of 64 KiB with all rights, 16 receives of 4096 bytes. An `r` and a number name the case.

use std::time::Duration;

use sim::node::remote_rights;
use sim::peer::{Pkt, Rig, RigConfig, opcodes, pkt, psns};
use sim::seen::Seen;
use stack::config::{GAP_LONGEST, RD_ATOMIC_MAX};
use stack::id::{PdId, QpState};
use stack::mem::{Access, Sge};
use stack::proto::status::{AsyncEvent, WcFlags, WcOpcode, WcStatus};
use stack::proto::tables::NakCode;
use stack::wire::{Discard, Kind, Opcode};

use NakCode::{InvalidRequest, PsnSequenceError, RemoteAccessError, RemoteOperationalError};
use Opcode as O;

const E: u32 = 0x100;

/// A time after which the peer has been sent a NAK for a gap: a timer fires up to a tick late.
const TOLD: Duration = GAP_LONGEST.saturating_add(Duration::from_micros(5));

fn no_receives(c: &mut RigConfig) {
    c.receives = 0;
}

fn send_only(psn: u32, len: usize) -> Pkt {
    pkt(O::RC_SEND_ONLY, psn).a().len(len)
}

/// A WRITE ONLY of `len` bytes to the start of the region.
fn write_only(rig: &Rig, psn: u32, len: usize) -> Pkt {
    pkt(O::RC_WRITE_ONLY, psn).a().reth(rig.va(0), rig.rkey(), len as u32).len(len)
}

fn read(rig: &Rig, psn: u32, offset: usize, len: usize) -> Pkt {
    pkt(O::RC_READ_REQUEST, psn).a().reth(rig.va(offset), rig.rkey(), len as u32)
}

fn add(rig: &Rig, psn: u32, n: u64) -> Pkt {
    pkt(O::RC_FETCH_ADD, psn).a().atomic(rig.va(0), rig.rkey(), n, 0)
}

/// Checks that the packet is refused with this NAK, and that the queue pair is in ERR.
#[track_caller]
fn refused(rig: &mut Rig, pkt: &Pkt, psn: u32, code: NakCode) {
    let said = rig.send(pkt);
    assert!(said.len() == 1 && said[0].is_nak(psn, code), "{pkt:?} is answered by {said:?}");
    assert_eq!(rig.state(), QpState::Err);
}

fn msn(said: &[Seen]) -> u32 {
    said.last().expect("an answer").aeth().msn
}

#[test]
fn r01_first_send() {
    let mut rig = Rig::new();
    let said = rig.send(&pkt(O::RC_SEND_ONLY, E).a().data(b"hello"));
    assert!(said.len() == 1 && said[0].is_ack(E), "{said:?}");
    assert_eq!(msn(&said), 1);
    let cqes = rig.cqes();
    assert_eq!((cqes.len(), cqes[0].byte_len, cqes[0].wr_id), (1, 5, 0));
    assert_eq!(rig.received(0, 6), b"hello\0");
}

#[test]
fn r02_r03_gap() {
    let mut rig = Rig::new();
    assert!(rig.send(&send_only(E + 1, 4)).is_empty(), "what is missing may only be late");
    let said = rig.wait(TOLD);
    assert!(said.len() == 1 && said[0].is_nak(E, PsnSequenceError), "{said:?}");
    assert!(rig.send_all(&[send_only(E + 2, 4), send_only(E + 3, 4)]).is_empty());
    assert!(rig.wait(TOLD).is_empty(), "one NAK is enough");
    assert!(rig.send(&send_only(E, 4))[0].is_ack(E + 3));
    assert_eq!(rig.done().len(), 4);
    assert!(rig.send(&send_only(E + 6, 4)).is_empty());
    assert!(rig.wait(TOLD)[0].is_nak(E + 4, PsnSequenceError), "a new gap, a new NAK");
}

#[test]
fn r04_half_a_circle() {
    let mut rig = Rig::new();
    assert!(rig.send(&send_only(E + (1 << 23) - 1, 4)).is_empty());
    assert_eq!(rig.node.discarded(Discard::OutOfSequence), 1, "too far to be held");
    assert!(rig.wait(TOLD)[0].is_nak(E, PsnSequenceError));
    let mut rig = Rig::new();
    let said = rig.send(&send_only(E + (1 << 23), 4));
    assert!(said.iter().all(|s| s.is_ack(E - 1)), "a duplicate is answered as such: {said:?}");
    assert!(rig.done().is_empty());
}

#[test]
fn r05_psn_wraps() {
    let mut rig = Rig::with(|c| c.qp.rq_psn = 0xff_ffff);
    assert!(rig.send(&send_only(0xff_ffff, 4))[0].is_ack(0xff_ffff));
    assert!(rig.send(&send_only(0, 4))[0].is_ack(0));
    assert_eq!(rig.done().len(), 2);
}

#[test]
fn r06_duplicate_send() {
    let mut rig = Rig::new();
    rig.send(&send_only(E, 4));
    rig.send(&send_only(E + 1, 4));
    let said = rig.send(&send_only(E, 4));
    assert!(said.len() == 1 && said[0].is_ack(E + 1), "{said:?}");
    assert_eq!(msn(&said), 2);
    assert_eq!(rig.done().len(), 2, "no receive is taken for it");
}

#[test]
fn r07_duplicate_write() {
    let mut rig = Rig::new();
    let write = write_only(&rig, E, 8);
    rig.send(&write);
    rig.node.mr(rig.mr).fill(0, 8, 0xee);
    assert!(rig.send(&write)[0].is_ack(E));
    assert_eq!(rig.node.mr(rig.mr).read(0, 8), [0xee; 8]);
}

#[test]
fn r08_duplicate_inside_a_message() {
    let mut rig = Rig::new();
    let first = pkt(O::RC_SEND_FIRST, E).len(1024);
    rig.send_all(&[first.clone(), pkt(O::RC_SEND_MIDDLE, E + 1).len(1024)]);
    assert!(rig.send(&first).iter().all(|s| s.is_ack(E + 1)));
    assert!(rig.send(&pkt(O::RC_SEND_LAST, E + 2).a().len(10))[0].is_ack(E + 2));
    assert_eq!(rig.cqes()[0].byte_len, 2058);
}

#[test]
fn r09_r10_duplicate_read() {
    let mut rig = Rig::new();
    rig.node.mr(rig.mr).write(0, &(0..4096).map(|i| (i / 16) as u8).collect::<Vec<_>>());
    let first = rig.send(&read(&rig, E, 0, 4096));
    assert_eq!(psns(&first), [E, E + 1, E + 2, E + 3]);
    rig.node.mr(rig.mr).fill(100, 4, 0xee);
    let again = rig.send(&read(&rig, E, 0, 4096));
    assert_eq!(opcodes(&again), opcodes(&first));
    assert_eq!(again[0].payload[100], 0xee, "from current memory");
    // Only the tail.
    let tail = rig.send(&read(&rig, E + 2, 2048, 2048));
    assert_eq!(opcodes(&tail), [O::RC_READ_RESPONSE_FIRST, O::RC_READ_RESPONSE_LAST]);
    assert_eq!(psns(&tail), [E + 2, E + 3]);
    assert_eq!(tail[0].payload, first[2].payload);
    let last = rig.send(&read(&rig, E + 3, 3072, 1024));
    assert_eq!(opcodes(&last), [O::RC_READ_RESPONSE_ONLY]);
    assert_eq!(last[0].payload, first[3].payload);
    assert!(rig.send(&send_only(E + 4, 4))[0].is_ack(E + 4), "the expected PSN did not move");
}

#[test]
fn r11_duplicate_read_that_differs() {
    let mut rig = Rig::new();
    rig.send(&read(&rig, E, 0, 4096));
    let other = rig.node.register(1 << 16, remote_rights());
    let foreign = rig.node.mr(other);
    let wrong = [
        read(&rig, E, 0, 5000),
        read(&rig, E, 8, 4096),
        read(&rig, E + 1, 0, 3072),
        pkt(O::RC_READ_REQUEST, E).a().reth(foreign.va(0), foreign.key, 4096),
    ];
    for pkt in wrong {
        assert!(rig.send(&pkt).is_empty(), "{pkt:?}");
    }
    assert_eq!(rig.node.discarded(Discard::Duplicate), 4);
    assert_eq!(rig.state(), QpState::Rts);
}

#[test]
fn r12_duplicate_read_of_an_invalidated_key() {
    let mut rig = Rig::new();
    let read = read(&rig, E, 0, 100);
    assert_eq!(rig.send(&read).len(), 1);
    rig.node.deregister(rig.mr);
    assert!(rig.send(&read).iter().all(|s| s.payload.is_empty()), "no data");
}

#[test]
fn r13_duplicate_atomic() {
    let mut rig = Rig::new();
    rig.node.mr(rig.mr).set_word(0, 40);
    let add = add(&rig, E, 2);
    let said = rig.send(&add);
    assert_eq!((said[0].opcode, said[0].psn, said[0].original()), (O::RC_ATOMIC_ACKNOWLEDGE, E, 40));
    let again = rig.send(&add);
    assert_eq!((again[0].psn, again[0].original()), (E, 40));
    assert_eq!(rig.node.mr(rig.mr).word(0), 42);
    assert_eq!(msn(&again), 1);
}

#[test]
fn r14_duplicate_atomic_that_is_forgotten() {
    for depth in [2, RD_ATOMIC_MAX] {
        let mut rig = Rig::with(|c| c.qp.max_dest_rd_atomic = depth);
        let n = u32::from(depth);
        let adds: Vec<Pkt> = (0..=n).map(|i| add(&rig, E + i, 1)).collect();
        adds.iter().for_each(|a| assert_eq!(rig.send(a).len(), 1));
        assert!(rig.send(&adds[0]).is_empty());
        for (i, add) in adds.iter().enumerate().skip(1) {
            assert_eq!(rig.send(add)[0].original(), i as u64, "of {depth}");
        }
        assert_eq!(rig.node.mr(rig.mr).word(0), u64::from(n) + 1);
    }
}

#[test]
fn r16_duplicates_are_never_refused() {
    let mut rig = Rig::new();
    rig.send(&send_only(E, 4));
    rig.send(&read(&rig, E + 1, 0, 8));
    let bad = [
        pkt(O::RC_SEND_FIRST, E).a().len(100),
        pkt(O::RC_WRITE_ONLY, E).a().reth(0, 0xbad, 8).len(4),
        pkt(O::RC_SEND_MIDDLE, E).a().len(8),
        pkt(O::RC_READ_REQUEST, E + 1).a().reth(0, 0xbad, u32::MAX),
        pkt(O::RC_FETCH_ADD, E + 1).a().atomic(3, 0xbad, 0, 0),
    ];
    for pkt in bad {
        let said = rig.send(&pkt);
        assert!(said.iter().all(|s| s.is_ack(E)), "{pkt:?}: {said:?}");
        assert_eq!(rig.state(), QpState::Rts);
    }
}

#[test]
fn r17_illegal_successors() {
    let first = |kind: Kind, rig: &Rig| match kind {
        Kind::Send => pkt(O::RC_SEND_FIRST, E).len(1024),
        _ => pkt(O::RC_WRITE_FIRST, E).reth(rig.va(0), rig.rkey(), 4096).len(1024),
    };
    let second = |opcode: Opcode, psn: u32, rig: &Rig| {
        let p = pkt(opcode, psn).a();
        match opcode {
            O::RC_WRITE_FIRST => p.reth(rig.va(0), rig.rkey(), 4096).len(1024),
            O::RC_READ_REQUEST => p.reth(rig.va(0), rig.rkey(), 8),
            O::RC_FETCH_ADD => p.atomic(rig.va(0), rig.rkey(), 1, 0),
            O::RC_SEND_FIRST | O::RC_SEND_MIDDLE | O::RC_WRITE_MIDDLE => p.len(1024),
            _ => p.len(8),
        }
    };
    for (before, opcode) in [
        (None, O::RC_SEND_MIDDLE),
        (None, O::RC_SEND_LAST),
        (None, O::RC_WRITE_MIDDLE),
        (None, O::RC_WRITE_LAST),
        (Some(Kind::Write), O::RC_SEND_LAST),
        (Some(Kind::Send), O::RC_WRITE_FIRST),
        (Some(Kind::Write), O::RC_READ_REQUEST),
        (Some(Kind::Send), O::RC_FETCH_ADD),
        (Some(Kind::Send), O::RC_SEND_ONLY),
        (Some(Kind::Send), O::RC_SEND_FIRST),
        (Some(Kind::Write), O::RC_WRITE_FIRST),
    ] {
        let mut rig = Rig::new();
        let mut psn = E;
        if let Some(kind) = before {
            rig.send(&first(kind, &rig));
            psn += 1;
        }
        let offender = second(opcode, psn, &rig);
        refused(&mut rig, &offender, psn, InvalidRequest);
        let done = rig.done();
        let held = before == Some(Kind::Send);
        let want = if held { WcStatus::RemInvReqErr } else { WcStatus::WrFlushErr };
        assert_eq!(done[0], (0, want), "{before:?} {opcode:?}");
        assert_eq!(done.len(), 16, "the rest is flushed");
        let event = rig.events().contains(&AsyncEvent::QpReqErr);
        assert_eq!(event, !held, "{before:?} {opcode:?}");
        assert!(rig.send(&send_only(psn, 4)).is_empty(), "and silence");
    }
}

#[test]
fn r18_legal_successors() {
    let mut rig = Rig::new();
    let key = rig.node.register_fast(8, Access::empty());
    let inv = rig.node.mr(key).key;
    let key = rig.node.register_fast(8, Access::empty());
    let inv2 = rig.node.mr(key).key;
    let write = |p: Pkt, len| p.reth(rig.va(0), rig.rkey(), len);
    let story = [
        pkt(O::RC_SEND_FIRST, 0).len(1024),
        pkt(O::RC_SEND_MIDDLE, 0).len(1024),
        pkt(O::RC_SEND_LAST, 0).len(1),
        pkt(O::RC_SEND_FIRST, 0).len(1024),
        pkt(O::RC_SEND_LAST_IMM, 0).imm([1, 2, 3, 4]).len(1),
        pkt(O::RC_SEND_FIRST, 0).len(1024),
        pkt(O::RC_SEND_LAST_INV, 0).inv(inv).len(1),
        pkt(O::RC_SEND_ONLY_INV, 0).inv(inv2).len(1),
        pkt(O::RC_SEND_ONLY_IMM, 0).imm([1, 2, 3, 4]),
        write(pkt(O::RC_WRITE_FIRST, 0), 3000).len(1024),
        pkt(O::RC_WRITE_MIDDLE, 0).len(1024),
        pkt(O::RC_WRITE_LAST, 0).len(952),
        write(pkt(O::RC_WRITE_FIRST, 0), 2000).len(1024),
        pkt(O::RC_WRITE_LAST_IMM, 0).imm([1, 2, 3, 4]).len(976),
        write(pkt(O::RC_WRITE_ONLY, 0), 5).len(5),
        write(pkt(O::RC_WRITE_ONLY_IMM, 0).imm([1, 2, 3, 4]), 5).len(5),
        write(pkt(O::RC_READ_REQUEST, 0), 8),
        pkt(O::RC_FETCH_ADD, 0).atomic(rig.va(0), rig.rkey(), 1, 0),
        pkt(O::RC_CMP_SWAP, 0).atomic(rig.va(0), rig.rkey(), 1, 0),
        pkt(O::RC_SEND_ONLY, 0),
    ];
    for (i, p) in story.into_iter().enumerate() {
        let said = rig.send(&p.clone().a().at(E + i as u32));
        assert_eq!(said.len(), 1, "{p:?}");
        assert_eq!(said[0].psn, E + i as u32);
    }
    assert_eq!(rig.state(), QpState::Rts);
    assert_eq!(rig.done().len(), 8);
}

#[test]
fn r19_r20_r21_r22_packet_lengths() {
    for (opcode, len, good) in [
        (O::RC_SEND_FIRST, 1020, false),
        (O::RC_SEND_FIRST, 1023, false), // with a pad byte
        (O::RC_SEND_FIRST, 1028, false),
        (O::RC_SEND_FIRST, 2048, false), // the sender's PMTU is larger
        (O::RC_SEND_ONLY, 0, true),
        (O::RC_SEND_ONLY, 1024, true),
        (O::RC_SEND_ONLY, 1028, false),
    ] {
        let mut rig = Rig::new();
        let p = pkt(opcode, E).a().len(len);
        if good {
            assert!(rig.send(&p)[0].is_ack(E), "{opcode:?} {len}");
        } else {
            refused(&mut rig, &p, E, InvalidRequest);
        }
    }
    for (opcode, len) in [
        (O::RC_SEND_MIDDLE, 1020),
        (O::RC_SEND_MIDDLE, 1023),
        (O::RC_SEND_MIDDLE, 1028),
        (O::RC_SEND_LAST, 0),
        (O::RC_SEND_LAST, 1028),
    ] {
        let mut rig = Rig::new();
        rig.send(&pkt(O::RC_SEND_FIRST, E).len(1024));
        refused(&mut rig, &pkt(opcode, E + 1).a().len(len), E + 1, InvalidRequest);
    }
    // A pad count that does not match the length.
    let mut rig = Rig::new();
    rig.send(&pkt(O::RC_WRITE_FIRST, E).reth(rig.va(0), rig.rkey(), 1028).len(1024));
    let mut frame = rig.frame(&pkt(O::RC_WRITE_LAST, E + 1).a().len(4));
    let bth = sim::peer::bth_of(&frame);
    frame[bth + 1] |= 0x10;
    sim::peer::reseal(&mut frame);
    let said = rig.send_frame(&frame);
    assert!(said[0].is_nak(E + 1, InvalidRequest), "{said:?}");
}

#[test]
fn r23_r24_write_lengths() {
    for len in [996, 1004] {
        let mut rig = Rig::new();
        let p = pkt(O::RC_WRITE_ONLY, E).a().reth(rig.va(0), rig.rkey(), 1000).len(len);
        refused(&mut rig, &p, E, InvalidRequest);
        assert_eq!(rig.node.mr(rig.mr).read(0, 2000), [0; 2000]);
    }
    let first = |rig: &Rig| pkt(O::RC_WRITE_FIRST, E).reth(rig.va(0), rig.rkey(), 3000).len(1024);
    let mut rig = Rig::new();
    rig.send(&first(&rig));
    refused(&mut rig, &pkt(O::RC_WRITE_LAST, E + 1).a().len(1024), E + 1, InvalidRequest);
    let mut rig = Rig::new();
    rig.send_all(&[first(&rig), pkt(O::RC_WRITE_MIDDLE, E + 1).len(1024)]);
    refused(&mut rig, &pkt(O::RC_WRITE_MIDDLE, E + 2).a().len(1024), E + 2, InvalidRequest);
    assert_eq!(rig.node.mr(rig.mr).read(3000, 1000), [0; 1000], "nothing beyond the range");
}

#[test]
fn r25_message_too_long() {
    for opcode in [O::RC_WRITE_FIRST, O::RC_READ_REQUEST] {
        let mut rig = Rig::new();
        let p = pkt(opcode, E).a().reth(rig.va(0), rig.rkey(), 0x8000_0001);
        let p = if opcode == O::RC_WRITE_FIRST { p.len(1024) } else { p };
        refused(&mut rig, &p, E, InvalidRequest);
    }
}

#[test]
fn r26_r27_send_longer_than_the_receive() {
    let mut rig = Rig::with(no_receives);
    rig.node.mr(rig.buf).fill(0, 4096, 0xa5);
    rig.post_recv_of(7, &[rig.sge(0, 64)]);
    refused(&mut rig, &send_only(E, 100), E, InvalidRequest);
    assert_eq!(rig.done(), [(7, WcStatus::LocLenErr)]);
    assert_eq!(rig.node.mr(rig.buf).read(64, 1000), [0xa5; 1000]);
    let mut rig = Rig::with(no_receives);
    rig.node.mr(rig.buf).fill(0, 4096, 0xa5);
    rig.post_recv_of(7, &[rig.sge(0, 2048)]);
    rig.send_all(&[pkt(O::RC_SEND_FIRST, E).len(1024), pkt(O::RC_SEND_MIDDLE, E + 1).len(1024)]);
    refused(&mut rig, &pkt(O::RC_SEND_LAST, E + 2).a().len(4), E + 2, InvalidRequest);
    assert_eq!(rig.done(), [(7, WcStatus::LocLenErr)]);
    assert_eq!(rig.node.mr(rig.buf).read(2048, 1000), [0xa5; 1000]);
}

/// WRITE, READ and ATOMIC of eight bytes.
fn verbs(va: u64, key: u32) -> [Pkt; 3] {
    [
        pkt(O::RC_WRITE_ONLY, E).a().reth(va, key, 8).len(8),
        pkt(O::RC_READ_REQUEST, E).a().reth(va, key, 8),
        pkt(O::RC_CMP_SWAP, E).a().atomic(va, key, 1, 0),
    ]
}

#[test]
fn r28_bad_keys() {
    for verb in 0..3 {
        for case in 0..4 {
            let mut rig = Rig::new();
            let other = rig.node.register_in(PdId(9), 64, remote_rights());
            let (va, key) = match case {
                0 => (rig.va(0), 0x4242_4242),
                1 => (rig.va(0), rig.rkey() ^ 1),
                2 => (rig.node.mr(other).va(0), rig.node.mr(other).key),
                _ => {
                    rig.node.deregister(rig.mr);
                    (rig.va(0), rig.rkey())
                }
            };
            refused(&mut rig, &verbs(va, key)[verb], E, RemoteAccessError);
            assert_eq!(rig.node.mr(rig.mr).read(0, 8), [0; 8]);
            assert!(rig.events().contains(&AsyncEvent::QpAccessErr));
        }
    }
}

#[test]
fn r29_region_lacks_the_right() {
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    for (verb, right) in rights.into_iter().enumerate() {
        let mut rig = Rig::new();
        let mr = rig.node.register(64, remote_rights() - right);
        let (va, key) = (rig.node.mr(mr).va(0), rig.node.mr(mr).key);
        refused(&mut rig, &verbs(va, key)[verb], E, RemoteAccessError);
    }
}

#[test]
fn r30_queue_pair_lacks_the_right() {
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    for (verb, right) in rights.into_iter().enumerate() {
        let mut rig = Rig::with(|c| c.qp.access = remote_rights() - right);
        let p = verbs(rig.va(0), rig.rkey())[verb].clone();
        refused(&mut rig, &p, E, InvalidRequest);
    }
}

#[test]
fn r31_r32_r33_ranges() {
    let size = 1 << 16;
    let write = |rig: &Rig, va: u64, len: usize| {
        pkt(O::RC_WRITE_ONLY, E).a().reth(va, rig.rkey(), len as u32).len(len)
    };
    for (offset, good) in [(u64::MAX, false), (size - 7, false), (size - 8, true), (size, false)] {
        let mut rig = Rig::new();
        let p = write(&rig, rig.va(0).wrapping_add(offset), 8);
        if good {
            assert!(rig.send(&p)[0].is_ack(E));
        } else {
            refused(&mut rig, &p, E, RemoteAccessError);
        }
        assert!(rig.node.mr(rig.mr).guards_intact());
    }
    for verb in 0..2 {
        let mut rig = Rig::new();
        let p = verbs(0xffff_ffff_ffff_fffc, rig.rkey())[verb].clone();
        refused(&mut rig, &p, E, RemoteAccessError);
    }
    let mut rig = Rig::new();
    let p = pkt(O::RC_WRITE_FIRST, E).a().reth(rig.va((1 << 16) - 3000), rig.rkey(), 3001).len(1024);
    refused(&mut rig, &p, E, RemoteAccessError);
    assert_eq!(rig.node.mr(rig.mr).read((1 << 16) - 3000, 3000), [0; 3000], "nothing was written");
}

#[test]
fn r34_nothing_needs_no_key() {
    let mut rig = Rig::new();
    assert!(rig.send(&pkt(O::RC_WRITE_ONLY, E).a().reth(0, 0, 0))[0].is_ack(E));
    let said = rig.send(&pkt(O::RC_READ_REQUEST, E + 1).a().reth(0, 0, 0));
    assert_eq!((said[0].opcode, said[0].psn, said[0].payload.len()), (O::RC_READ_RESPONSE_ONLY, E + 1, 0));
}

#[test]
fn r35_misaligned_atomic() {
    let mut rig = Rig::new();
    let p = pkt(O::RC_FETCH_ADD, E).a().atomic(rig.va(4), rig.rkey(), 1, 0);
    refused(&mut rig, &p, E, InvalidRequest);
    assert_eq!(rig.node.mr(rig.mr).read(0, 16), [0; 16]);
}

#[test]
fn r36_r37_too_many_reads() {
    let mut rig = Rig::with(|c| c.qp.max_dest_rd_atomic = 0);
    let p = read(&rig, E, 0, 8);
    refused(&mut rig, &p, E, InvalidRequest);
    let mut rig = Rig::with(|c| c.qp.max_dest_rd_atomic = 2);
    let reads: Vec<Pkt> = (0..3).map(|i| read(&rig, E + i, 0, 8)).collect();
    let said = rig.send_all(&reads);
    assert_eq!(psns(&said), [E, E + 1, E + 2]);
    assert!(said[2].is_nak(E + 2, InvalidRequest), "the first two are answered before it");
}

#[test]
fn r38_r39_r40_receiver_not_ready() {
    let mut rig = Rig::with(no_receives);
    let said = rig.send(&send_only(E, 8));
    assert!(said.len() == 1 && said[0].is_rnr(E, 12), "{said:?}");
    assert_eq!((said[0].aeth().syndrome, msn(&said)), (0x2c, 0));
    assert!(rig.send_all(&[send_only(E + 1, 8), send_only(E + 2, 8)]).is_empty(), "no sequence NAK");
    rig.post_recv_of(5, &[rig.sge(0, 8)]);
    assert!(rig.send(&send_only(E, 8))[0].is_ack(E));
    assert_eq!(rig.done(), [(5, WcStatus::Success)]);
    assert!(rig.send(&send_only(E + 1, 8))[0].is_rnr(E + 1, 12));
}

#[test]
fn r41_write_with_immediate_without_receive() {
    let mut rig = Rig::with(no_receives);
    let last = pkt(O::RC_WRITE_LAST_IMM, E + 2).a().imm([9, 8, 7, 6]).len(52);
    rig.send_all(&[
        pkt(O::RC_WRITE_FIRST, E).reth(rig.va(0), rig.rkey(), 2100).len(1024),
        pkt(O::RC_WRITE_MIDDLE, E + 1).len(1024),
    ]);
    let said = rig.send(&last);
    assert!(said[0].is_rnr(E + 2, 12), "{said:?}");
    let there = rig.node.mr(rig.mr).read(0, 2100);
    assert_eq!((there[1023], there[1025], &there[2048..]), (0xff, 1, &[0; 52][..]));
    rig.post_recv_of(3, &[]);
    assert!(rig.send(&last)[0].is_ack(E + 2));
    let cqe = rig.cqes()[0];
    assert_eq!((cqe.wr_id, cqe.byte_len, cqe.opcode), (3, 2100, WcOpcode::RecvRdmaWithImm));
    assert_eq!(rig.node.mr(rig.mr).read(2048, 3), [0, 1, 2]);
}

#[test]
fn r42_r43_write_with_immediate() {
    let mut rig = Rig::with(no_receives);
    rig.post_recv_of(1, &[]);
    rig.post_recv_of(2, &[]);
    let p = pkt(O::RC_WRITE_ONLY_IMM, E).a().imm([0xde, 0xad, 0xbe, 0xef]);
    rig.send(&p.clone().reth(rig.va(0), rig.rkey(), 4).len(4));
    rig.send(&p.at(E + 1).reth(0, 0, 0));
    let cqes = rig.cqes();
    assert_eq!(cqes.len(), 2);
    for (cqe, len) in cqes.iter().zip([4, 0]) {
        assert_eq!((cqe.opcode, cqe.byte_len), (WcOpcode::RecvRdmaWithImm, len));
        assert_eq!(cqe.flags.bits(), WcFlags::WITH_IMM.bits());
        assert_eq!(cqe.imm.to_ne_bytes(), [0xde, 0xad, 0xbe, 0xef]);
    }
}

#[test]
fn r44_scattered_receive() {
    let mut rig = Rig::with(no_receives);
    rig.node.mr(rig.buf).fill(0, 4096, 0xa5);
    let pieces = [(1, 700), (900, 3), (1001, 0), (1100, 801)];
    rig.post_recv_of(1, &pieces.map(|(at, len)| rig.sge(at, len)));
    rig.send_all(&[pkt(O::RC_SEND_FIRST, E).len(1024), pkt(O::RC_SEND_LAST, E + 1).a().len(456)]);
    assert_eq!(rig.cqes()[0].byte_len, 1480);
    let stream: Vec<u8> = (0..1024).chain(0..456).map(|i| i as u8).collect();
    let mut want = vec![0xa5; 4096];
    let mut from = 0;
    for (at, len) in pieces {
        let len = len.min(stream.len() - from);
        want[at..at + len].copy_from_slice(&stream[from..from + len]);
        from += len;
    }
    assert_eq!(rig.node.mr(rig.buf).read(0, 4096), want);
}

#[test]
fn r45_receive_with_a_bad_key() {
    let mut rig = Rig::with(no_receives);
    rig.post_recv_of(1, &[Sge { lkey: 0xbad, ..rig.sge(0, 64) }]);
    refused(&mut rig, &send_only(E, 8), E, RemoteOperationalError);
    assert_eq!(rig.done(), [(1, WcStatus::LocProtErr)]);
}

// Goal: key 0 is invalid for every receive, also right after another key was used, and when that key is gone.
#[test]
fn r45_receive_with_key_0() {
    for gone in [false, true] {
        let mut rig = Rig::with(no_receives);
        let mr = rig.node.register(64, Access::LOCAL_WRITE);
        let sge = rig.node.mr(mr).sge(0, 64);
        rig.post_recv_of(1, &[sge]);
        assert_eq!(rig.send(&send_only(E, 8)).len(), 1);
        if gone {
            rig.node.deregister(mr);
        }
        rig.post_recv_of(2, &[Sge { lkey: 0, ..sge }]);
        refused(&mut rig, &send_only(E + 1, 8), E + 1, RemoteOperationalError);
        assert_eq!(rig.done(), [(1, WcStatus::Success), (2, WcStatus::LocProtErr)]);
    }
}

#[test]
fn r46_send_with_invalidate() {
    let mut rig = Rig::new();
    let mr = rig.node.register_fast(64, remote_rights());
    let (va, key) = (rig.node.mr(mr).va(0), rig.node.mr(mr).key);
    let write = |psn| pkt(O::RC_WRITE_ONLY, psn).a().reth(va, key, 8).len(8);
    assert!(rig.send(&write(E))[0].is_ack(E));
    assert!(rig.send(&pkt(O::RC_SEND_ONLY_INV, E + 1).a().inv(key).len(4))[0].is_ack(E + 1));
    let cqe = rig.cqes()[0];
    assert_eq!((cqe.flags.bits(), cqe.imm), (WcFlags::WITH_INV.bits(), key));
    refused(&mut rig, &write(E + 2), E + 2, RemoteAccessError);
}

#[test]
fn r47_send_with_invalidate_of_a_bad_key() {
    for unknown in [false, true] {
        let mut rig = Rig::new();
        let key = if unknown { 0x4242_4242 } else { rig.rkey() };
        rig.send(&pkt(O::RC_SEND_ONLY_INV, E).a().inv(key).len(4));
        assert_eq!(rig.state(), QpState::Err);
        assert_eq!(rig.done()[0], (0, WcStatus::RemInvReqErr));
        if !unknown {
            assert!(rig.node.shared.mrs.check(key, sim::node::PD, Access::empty(), rig.va(0), 1).is_ok());
        }
    }
}

#[test]
fn r48_coalesced_acknowledgement() {
    let mut rig = Rig::new();
    let quiet = |psn| pkt(O::RC_SEND_ONLY, psn).len(4);
    let said = rig.send_all(&[quiet(E), quiet(E + 1), quiet(E + 2), send_only(E + 3, 4)]);
    assert!(said.last().unwrap().is_ack(E + 3));
    assert_eq!(msn(&said), 4);
}

#[test]
fn r49_acknowledgement_behind_read_responses() {
    let mut rig = Rig::new();
    let story = [read(&rig, E, 0, 8192), write_only(&rig, E + 8, 8)];
    let said = rig.send_all(&story);
    assert_eq!(psns(&said), (E..=E + 8).collect::<Vec<_>>());
    assert!(said[8].is_ack(E + 8));
}

#[test]
fn r50_write_then_read() {
    let mut rig = Rig::new();
    let write = pkt(O::RC_WRITE_ONLY, E).reth(rig.va(0), rig.rkey(), 8).data(b"new data");
    let story = [write, read(&rig, E + 1, 0, 8)];
    assert_eq!(rig.send_all(&story)[0].payload, b"new data");
}

#[test]
fn r51_message_sequence_number() {
    let mut rig = Rig::new();
    assert_eq!(msn(&rig.send(&send_only(E, 4))), 1);
    let first = pkt(O::RC_WRITE_FIRST, E + 1).a().reth(rig.va(0), rig.rkey(), 2100).len(1024);
    assert_eq!(msn(&rig.send(&first)), 1);
    assert_eq!(msn(&rig.send(&pkt(O::RC_WRITE_MIDDLE, E + 2).a().len(1024))), 1);
    assert_eq!(msn(&rig.send(&pkt(O::RC_WRITE_LAST, E + 3).a().len(52))), 2);
    assert_eq!(msn(&rig.send(&read(&rig, E + 4, 0, 8))), 3);
    assert_eq!(msn(&rig.send(&add(&rig, E + 5, 1))), 4);
    assert_eq!(msn(&rig.send(&send_only(E, 4))), 4, "a duplicate");
    rig.send(&send_only(E + 9, 4));
    assert_eq!(msn(&rig.wait(TOLD)), 4, "a NAK");
}

#[test]
fn r52_key_invalidated_while_a_read_is_answered() {
    let mut rig = Rig::new();
    rig.inject(&read(&rig, E, 0, 32 * 1024));
    let sent = rig.turn();
    assert!(!sent.is_empty() && sent.len() < 32);
    rig.node.deregister(rig.mr);
    let said = rig.run();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].is_nak(E + sent.len() as u32, RemoteAccessError));
    assert_eq!(rig.state(), QpState::Err);
}

#[test]
fn r53_nak_lost() {
    let mut rig = Rig::new();
    let p = pkt(O::RC_WRITE_ONLY, E).a().reth(rig.va(0), 0xbad, 8).len(8);
    refused(&mut rig, &p, E, RemoteAccessError);
    assert!(rig.send(&p).is_empty());
    assert_eq!(rig.node.discarded(Discard::BadState), 1);
    assert!(rig.wait(Duration::from_secs(1)).is_empty());
}
