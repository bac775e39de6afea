//! Keys that change by work requests, memory placement, and the peer's rights for both. The set-up is that of `rc_responder.rs`, with
//! rights to flush on the queue pair. An `r` and a number name the case.

use std::time::Duration;

use sim::node::{MrId, Node, NodeConfig, PD, QpConfig, SendWr, remote_rights};
use sim::peer::{PEER_QPN, Pkt, REMOTE_KEY, REMOTE_VA, Rig, ack, opcodes, pkt};
use sim::rng::Rng;
use sim::seen::Seen;
use stack::config::GAP_LONGEST;
use stack::id::QpState;
use stack::mem::{Access, Bind, KeyFault, MwType, inc_rkey};
use stack::proto::status::{SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};
use stack::proto::tables::NakCode;
use stack::time::Instant;
use stack::wire::{Ext, Feth, Opcode, Reth};

use NakCode::{InvalidRequest, RemoteAccessError};
use Opcode as O;
use WcStatus::{
    BadRespErr, LocLenErr, LocQpOpErr, MwBindErr, RemInvReqErr, RetryExcErr, Success, WrFlushErr,
};
use WrOpcode::{AtomicWrite, BindMw, Flush, LocalInv, RdmaRead, RdmaWrite, RegMr};

const E: u32 = 0x100;
const EMPTY: [Opcode; 1] = [O::RC_READ_RESPONSE_ONLY];

/// A rig whose peer may flush and never runs out of receives.
fn rig() -> Rig {
    let mut rig = Rig::with(|c| c.qp.access |= Access::FLUSH_GLOBAL);
    rig.unlimited();
    rig
}

fn write(va: u64, key: u32, psn: u32) -> Pkt {
    pkt(O::RC_WRITE_ONLY, psn).a().reth(va, key, 8).data(b"new data")
}

fn atomic_write(va: u64, key: u32, psn: u32) -> Pkt {
    pkt(O::RC_ATOMIC_WRITE, psn).a().reth(va, key, 8).data(b"new data")
}

fn flush(selectivity: u8, placement: u8, va: u64, key: u32, len: u32, psn: u32) -> Pkt {
    let ext = Ext::FlushReth(Feth { selectivity, placement }, Reth { va, rkey: key, len });
    pkt(O::RC_FLUSH, psn).a().ext(ext)
}

#[track_caller]
fn acknowledged(rig: &mut Rig, pkt: &Pkt) {
    let said = rig.send(pkt);
    assert!(said.len() == 1 && said[0].aeth().syndrome >> 5 == 0, "{pkt:?} is answered by {said:?}");
}

#[track_caller]
fn refused(rig: &mut Rig, pkt: &Pkt, psn: u32, code: NakCode) {
    let said = rig.send(pkt);
    assert!(said.len() == 1 && said[0].is_nak(psn, code), "{pkt:?} is answered by {said:?}");
    assert_eq!(rig.state(), QpState::Err);
}

fn answered_empty(said: &[Seen], psn: u32) -> bool {
    opcodes(said) == EMPTY && said[0].psn == psn && said[0].payload.is_empty()
}

fn reg_mr(rig: &Rig, mr: MrId, key: u32, len: usize, access: Access) -> SendWr {
    let operands = (u64::from(access.bits()) << 32, len as u64);
    SendWr::new(1, RegMr).remote(rig.node.mr(mr).addr(), key).operands(operands.0, operands.1)
}

fn bind(window: u32, region: u32, addr: u64, len: u64, access: Access) -> SendWr {
    let arg = u64::from(access.bits()) << 32 | u64::from(region);
    SendWr::new(1, BindMw).remote(addr, window).operands(arg, len)
}

fn local_inv(key: u32) -> SendWr {
    SendWr::new(2, LocalInv).remote(0, key)
}

/// Checks that the request completes at once, successfully.
#[track_caller]
fn succeeds(rig: &mut Rig, wr: &SendWr) {
    assert!(rig.post(wr).is_empty(), "a local operation says nothing");
    assert_eq!(rig.done(), [(wr.wr_id, Success)]);
}

/// Checks that the request fails and ends the queue pair.
#[track_caller]
fn fails(rig: &mut Rig, wr: &SendWr, status: WcStatus) {
    assert!(rig.post(wr).is_empty());
    assert_eq!(rig.done()[0], (wr.wr_id, status), "{wr:?}");
    assert_eq!(rig.state(), QpState::Err);
}

/// A region that windows may be bound to.
fn bindable(rig: &mut Rig) -> (u64, u32) {
    let mr = rig.node.register(4096, Access::LOCAL_WRITE | Access::MW_BIND);
    (rig.node.mr(mr).addr(), rig.node.mr(mr).key)
}

// Goal: duplicates of both are answered again, and executed only once.
#[test]
fn r15_duplicate_atomic_write_and_flush() {
    let mut rig = rig();
    let mr = rig.node.register(64, remote_rights() | Access::FLUSH_GLOBAL);
    let (va, key) = (rig.node.mr(mr).va(0), rig.node.mr(mr).key);
    let (store, flush) = (atomic_write(va, key, E), flush(0, 1, va, key, 64, E + 1));
    let said = rig.send_all(&[store.clone(), flush.clone()]);
    assert_eq!(said.iter().map(|s| (s.psn, s.aeth().msn)).collect::<Vec<_>>(), [(E, 2), (E + 1, 2)]);
    rig.node.mr(mr).set_word(0, 7);
    for (pkt, psn) in [(&store, E), (&flush, E + 1)] {
        let again = rig.send(pkt);
        assert!(answered_empty(&again, psn), "{again:?}");
        assert_eq!(again[0].aeth().msn, 2, "not counted again");
    }
    assert_eq!(rig.node.mr(mr).word(0), 7, "not stored again");
    // A different request with an old sequence number is dropped.
    for pkt in [atomic_write(va + 8, key, E), pkt(O::RC_ATOMIC_WRITE, E).reth(va, key, 8)] {
        assert!(rig.send(&pkt).is_empty());
    }
    assert_eq!(rig.state(), QpState::Rts);
}

#[test]
fn r46_send_with_invalidate_of_a_window() {
    let mut rig = rig();
    let (va, region) = bindable(&mut rig);
    let key = inc_rkey(rig.node.alloc_window(MwType::Two));
    succeeds(&mut rig, &bind(key, region, va, 64, Access::REMOTE_WRITE));
    acknowledged(&mut rig, &write(va, key, E));
    acknowledged(&mut rig, &pkt(O::RC_SEND_ONLY_INV, E + 1).a().inv(key).len(4));
    let cqe = rig.cqes()[0];
    assert_eq!((cqe.flags.bits(), cqe.imm), (WcFlags::WITH_INV.bits(), key));
    refused(&mut rig, &write(va, key, E + 2), E + 2, RemoteAccessError);
}

// Goal: a key that may not be invalidated stays valid.
#[test]
fn r47_send_with_invalidate_of_other_keys() {
    for case in 0..6 {
        let mut rig = rig();
        let (va, region) = bindable(&mut rig);
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
        let fast = rig.node.register_fast(64, all);
        let (fast_va, fast_key) = (rig.node.mr(fast).va(0), rig.node.mr(fast).key);
        let (one, two) = (rig.node.alloc_window(MwType::One), rig.node.alloc_window(MwType::Two));
        let unregistered = rig.node.alloc_fast(64);
        let unregistered = rig.node.mr(unregistered).key;
        let window = |key, qpn| Bind {
            window: key,
            qpn,
            pd: PD,
            region,
            addr: va,
            len: 64,
            access: Access::REMOTE_WRITE,
        };
        let (own, mrs) = (rig.node.qp(rig.qp).qpn, rig.node.shared.clone());
        let mrs = &mrs.mrs;
        let key = match case {
            0 => region,
            1 => fast_key ^ 1,
            2 => unregistered,
            3 => {
                mrs.bind(&window(one, own)).unwrap();
                one
            }
            4 => {
                mrs.bind(&window(two, PEER_QPN)).unwrap();
                two
            }
            _ => {
                mrs.bind(&Bind { region: fast_key, addr: fast_va, ..window(two, own) }).unwrap();
                fast_key
            }
        };
        rig.send(&pkt(O::RC_SEND_ONLY_INV, E).a().inv(key).len(4));
        assert_eq!(rig.state(), QpState::Err, "case {case}");
        assert_eq!(rig.done()[0], (0, RemInvReqErr), "case {case}");
        let alive = |key, va| mrs.check_remote(key, PD, own, Access::empty(), va, 1);
        assert!(alive(region, va).is_ok() && alive(fast_key, fast_va).is_ok(), "case {case}");
        assert_eq!(alive(one, va).is_ok(), case == 3);
    }
}

#[test]
fn r55_atomic_write() {
    let mut rig = rig();
    let va = rig.va(8);
    let said = rig.send(&atomic_write(va, rig.rkey(), E));
    assert!(answered_empty(&said, E), "{said:?}");
    assert_eq!(said[0].aeth().msn, 1);
    assert_eq!(rig.node.mr(rig.mr).read(0, 24), *b"\0\0\0\0\0\0\0\0new data\0\0\0\0\0\0\0\0");
    let zero = rig.node.register(64, remote_rights() | Access::ZERO_BASED);
    let p = atomic_write(56, rig.node.mr(zero).key, E + 1);
    acknowledged(&mut rig, &p);
    assert_eq!(rig.node.mr(zero).read(56, 8), b"new data");

    // Offset, key bits to flip, length in the header, bytes.
    for (offset, flip, len, bytes, code) in [
        (8, 0, 8, 4, InvalidRequest),
        (8, 0, 4, 8, InvalidRequest),
        (8, 0, 16, 16, InvalidRequest),
        (12, 0, 8, 8, InvalidRequest),
        (1 << 16, 0, 8, 8, RemoteAccessError),
        (8, 1, 8, 8, RemoteAccessError),
    ] {
        let mut rig = self::rig();
        let p = pkt(O::RC_ATOMIC_WRITE, E).a().len(bytes).reth(rig.va(offset), rig.rkey() ^ flip, len);
        refused(&mut rig, &p, E, code);
        assert_eq!(rig.node.mr(rig.mr).word(8), 0, "nothing is stored");
    }
    let mut rig = Rig::with(|c| c.qp.access = Access::REMOTE_READ);
    let p = atomic_write(rig.va(0), rig.rkey(), E);
    refused(&mut rig, &p, E, InvalidRequest);
}

#[test]
fn r56_flush() {
    let with = |access: Access| {
        let mut rig = rig();
        let mr = rig.node.register(64, remote_rights() | access);
        (rig.node.mr(mr).va(0), rig.node.mr(mr).key, rig)
    };
    let (va, key, mut rig) = with(Access::FLUSH_GLOBAL);
    let story =
        [(va, 64, 0), (va + 60, 4, 0), (va + 64, 0, 0), (0, 0, 1), (va - 1, 1 << 20, 1), (u64::MAX, 8, 1)];
    for (i, (va, len, level)) in story.into_iter().enumerate() {
        let psn = E + i as u32;
        let said = rig.send(&flush(level, 1, va, key, len, psn));
        assert!(answered_empty(&said, psn), "{va:#x} {len} {level}: {said:?}");
        assert_eq!(said[0].aeth().msn, i as u32 + 1);
    }
    // Data that was written before is placed when the flush is answered.
    let psn = E + story.len() as u32;
    let said = rig.send_all(&[write(va, key, psn), flush(0, 1, va, key, 8, psn + 1)]);
    assert!(said.last().is_some_and(|s| s.psn == psn + 1 && s.opcode == O::RC_READ_RESPONSE_ONLY));
    assert_eq!(rig.node.mr(MrId(rig.node.regions().len() - 1)).read(0, 8), b"new data");

    for level in [0, 1] {
        let (va, key, mut rig) = with(Access::empty());
        refused(&mut rig, &flush(level, 1, va, key, 8, E), E, RemoteAccessError);
        let (va, key, mut rig) = with(Access::FLUSH_GLOBAL);
        refused(&mut rig, &flush(level, 1, va, key ^ 1, 8, E), E, RemoteAccessError);
    }
    let (va, key, mut rig) = with(Access::FLUSH_GLOBAL);
    refused(&mut rig, &flush(0, 1, va, key, 65, E), E, RemoteAccessError);
    // The queue pair does not permit this scope of a flush, or the annex reserves the requested placement.
    for (level, placement) in [(0, 2), (0, 3), (1, 2), (0, 0), (0, 4), (0, 9), (2, 1), (3, 1)] {
        let (va, key, mut rig) = with(Access::FLUSH_GLOBAL);
        refused(&mut rig, &flush(level, placement, va, key, 8, E), E, InvalidRequest);
    }
    let mut rig = Rig::new();
    let p = flush(0, 1, rig.va(0), rig.rkey(), 8, E);
    refused(&mut rig, &p, E, InvalidRequest);
}

#[test]
fn r57_zero_based() {
    let mut rig = rig();
    let mr = rig.node.register(64, remote_rights() | Access::ZERO_BASED);
    let key = rig.node.mr(mr).key;
    let byte = |va, psn| pkt(O::RC_WRITE_ONLY, psn).a().reth(va, key, 1).data(b"x");
    acknowledged(&mut rig, &byte(0, E));
    acknowledged(&mut rig, &byte(63, E + 1));
    assert_eq!((rig.node.mr(mr).read(0, 2), rig.node.mr(mr).read(62, 2)), (b"x\0".into(), b"\0x".into()));
    refused(&mut rig, &byte(64, E + 2), E + 2, RemoteAccessError);
}

#[test]
fn r58_type_1_window() {
    // The offset that the peer addresses, and whether the peer may write there.
    let cases: [(u64, bool); 6] =
        [(1024, true), (2040, true), (1023, false), (2041, false), (0, false), (u64::MAX - 3, false)];
    for (offset, good) in cases {
        let mut rig = rig();
        let (va, region) = bindable(&mut rig);
        let key = inc_rkey(rig.node.alloc_window(MwType::One));
        let wr = bind(key, region, va + 1024, 1024, Access::REMOTE_WRITE);
        assert!(rig.post(&wr).is_empty());
        let cqe = rig.cqes()[0];
        assert_eq!((cqe.opcode, cqe.byte_len), (WcOpcode::BindMw, 0));
        let p = write(va.wrapping_add(offset), key, E);
        if good {
            acknowledged(&mut rig, &p);
        } else {
            refused(&mut rig, &p, E, RemoteAccessError);
        }
    }
    // A right that the window lacks, the region's own key, and a key of the window that is not the bound one.
    for case in 0..3 {
        let mut rig = rig();
        let (va, region) = bindable(&mut rig);
        let key = inc_rkey(rig.node.alloc_window(MwType::One));
        succeeds(&mut rig, &bind(key, region, va, 1024, Access::REMOTE_WRITE));
        let p = match case {
            0 => pkt(O::RC_READ_REQUEST, E).a().reth(va, key, 8),
            1 => write(va, region, E),
            _ => write(va, key ^ 1, E),
        };
        refused(&mut rig, &p, E, RemoteAccessError);
    }
    // After a bind to another place with the next key, the old key is invalid. After an unbind, so is the new one.
    for (rebinds, unbinds, old) in [(true, false, true), (true, false, false), (false, true, true)] {
        let mut rig = rig();
        let (va, region) = bindable(&mut rig);
        let first = inc_rkey(rig.node.alloc_window(MwType::One));
        let second = inc_rkey(first);
        succeeds(&mut rig, &bind(first, region, va, 64, Access::REMOTE_WRITE));
        acknowledged(&mut rig, &write(va, first, E));
        if rebinds {
            succeeds(&mut rig, &bind(second, region, va + 64, 64, Access::REMOTE_WRITE));
        }
        if unbinds {
            succeeds(&mut rig, &bind(second, 0, 0, 0, Access::empty()));
        }
        let (at, key) = if old { (va, first) } else { (va + 64, second) };
        if old {
            refused(&mut rig, &write(at, key, E + 1), E + 1, RemoteAccessError);
        } else {
            acknowledged(&mut rig, &write(at, key, E + 1));
        }
    }
}

#[test]
fn r59_type_2_window_from_another_queue_pair() {
    let mut rig = rig();
    let (va, region) = bindable(&mut rig);
    let other = rig.node.create_qp(0, QpConfig::default(), rig.cq, rig.cq);
    rig.node.to_init(rig.now, other);
    rig.node.to_rtr(rig.now, other, rig.peer_gid(), PEER_QPN);
    let (one, two) =
        (inc_rkey(rig.node.alloc_window(MwType::One)), inc_rkey(rig.node.alloc_window(MwType::Two)));
    succeeds(&mut rig, &bind(one, region, va, 64, Access::REMOTE_WRITE));
    succeeds(&mut rig, &bind(two, region, va, 64, Access::REMOTE_WRITE));
    acknowledged(&mut rig, &write(va, one, E));
    acknowledged(&mut rig, &write(va, two, E + 1));
    rig.flow.dqpn = rig.node.qp(other).qpn;
    acknowledged(&mut rig, &write(va, one, E));
    let said = rig.send(&write(va, two, E + 1));
    assert!(said.len() == 1 && said[0].is_nak(E + 1, RemoteAccessError), "{said:?}");
    assert_eq!((rig.node.state(other), rig.state()), (QpState::Err, QpState::Rts));
    // When its queue pair is destroyed, the window is unbound, and can be bound again.
    let mrs = &rig.node.shared.clone().mrs;
    let own = rig.node.qp(rig.qp).qpn;
    assert!(mrs.check_remote(two, PD, own, Access::REMOTE_WRITE, va, 8).is_ok());
    rig.node.destroy(rig.qp);
    let gone = mrs.check_remote(two, PD, own, Access::REMOTE_WRITE, va, 8);
    assert_eq!(gone, Err(KeyFault::UnknownKey));
    assert!(mrs.check_remote(one, PD, own, Access::REMOTE_WRITE, va, 8).is_ok());
}

#[test]
fn r60_fast_registration() {
    let all = remote_rights();
    let fresh = || {
        let mut rig = rig();
        let mr = rig.node.alloc_fast(4096);
        let (va, key) = (rig.node.mr(mr).addr(), rig.node.mr(mr).key);
        (mr, va, key, rig)
    };
    // Invalid until registered.
    let (_, va, key, mut rig) = fresh();
    refused(&mut rig, &write(va, key, E), E, RemoteAccessError);

    let (mr, va, key, mut rig) = fresh();
    let variant = key & !0xff | 0x5a;
    let wr = reg_mr(&rig, mr, variant, 64, all);
    rig.post(&wr);
    assert_eq!(rig.cqes()[0].opcode, WcOpcode::RegMr);
    acknowledged(&mut rig, &write(va, variant, E));
    assert_eq!(rig.node.mr(mr).read(0, 8), b"new data");
    succeeds(&mut rig, &local_inv(variant));
    // Registered again with other bytes and another key; the old key stays invalid.
    let next = inc_rkey(variant);
    let wr = reg_mr(&rig, mr, next, 4096, all);
    succeeds(&mut rig, &wr);
    acknowledged(&mut rig, &write(va + 4088, next, E + 1));
    refused(&mut rig, &write(va, variant, E + 2), E + 2, RemoteAccessError);

    // After LOCAL_INV; beyond the registered part; without the right.
    for case in 0..3 {
        let (mr, va, key, mut rig) = fresh();
        let access = if case == 2 { Access::REMOTE_READ } else { all };
        let wr = reg_mr(&rig, mr, key, 64, access);
        succeeds(&mut rig, &wr);
        if case == 0 {
            succeeds(&mut rig, &local_inv(key));
        }
        let at = if case == 1 { va + 57 } else { va };
        refused(&mut rig, &write(at, key, E), E, RemoteAccessError);
    }
}

// A key of a fast registration is also a local key; a key of a window is not.
#[test]
fn keys_of_requests_as_local_keys() {
    let mut rig = rig();
    let mr = rig.node.alloc_fast(64);
    let (key, region) = (rig.node.mr(mr).key, rig.node.mr(mr));
    region.write(0, b"local");
    let sge = region.sge(0, 5);
    let wr = reg_mr(&rig, mr, key, 64, Access::MW_BIND);
    succeeds(&mut rig, &wr);
    let said = rig.post(&SendWr::new(1, RdmaWrite).sges(&[sge]).remote(REMOTE_VA, REMOTE_KEY));
    assert_eq!(said[0].payload, b"local");
    rig.send(&ack(E, 1));
    assert_eq!(rig.done(), [(1, Success)]);
    let window = inc_rkey(rig.node.alloc_window(MwType::Two));
    succeeds(&mut rig, &bind(window, key, sge.addr, 64, Access::REMOTE_READ));
    rig.post(&SendWr::new(2, RdmaWrite).sges(&[stack::mem::Sge { lkey: window, ..sge }]));
    assert_eq!(rig.done()[0], (2, WcStatus::LocProtErr));
}

// Goal: violating any rule of a bind, a registration or an invalidation ends the queue pair with the rule's status.
#[test]
fn local_operations_that_are_refused() {
    let rights = Access::REMOTE_WRITE;
    type Case = fn(&mut Rig, u64, u32) -> SendWr;
    let cases: [(Case, WcStatus); 17] = [
        // Unknown window, unknown region, a region as window, a window as region.
        (|_, va, r| bind(0x4242_4242, r, va, 8, Access::REMOTE_READ), MwBindErr),
        (|rig, va, r| bind(rig.node.alloc_window(MwType::One), r ^ 1, va, 8, Access::REMOTE_READ), MwBindErr),
        (|_, va, r| bind(r, r, va, 8, Access::REMOTE_READ), MwBindErr),
        (
            |rig, va, r| {
                let (a, b) = (rig.node.alloc_window(MwType::One), rig.node.alloc_window(MwType::One));
                succeeds(rig, &bind(a, r, va, 64, Access::REMOTE_READ));
                bind(b, a, va, 8, Access::REMOTE_READ)
            },
            MwBindErr,
        ),
        // Out of range, at either end.
        (|rig, va, r| bind(rig.node.alloc_window(MwType::One), r, va, 4097, Access::REMOTE_READ), MwBindErr),
        (|rig, va, r| bind(rig.node.alloc_window(MwType::Two), r, va - 1, 8, Access::REMOTE_READ), MwBindErr),
        // Rights: to bind the region at all, and to write to it; a right that windows cannot have; zero-based windows and regions.
        (
            |rig, _, _| {
                let (va, key) = (rig.va(0), rig.rkey());
                bind(rig.node.alloc_window(MwType::One), key, va, 8, Access::REMOTE_READ)
            },
            MwBindErr,
        ),
        (
            |rig, _, _| {
                let mr = rig.node.register(64, Access::MW_BIND);
                let (va, key) = (rig.node.mr(mr).addr(), rig.node.mr(mr).key);
                bind(rig.node.alloc_window(MwType::One), key, va, 8, Access::REMOTE_ATOMIC)
            },
            MwBindErr,
        ),
        (|rig, va, r| bind(rig.node.alloc_window(MwType::One), r, va, 8, Access::MW_BIND), MwBindErr),
        (|rig, va, r| bind(rig.node.alloc_window(MwType::One), r, va, 8, Access::ZERO_BASED), MwBindErr),
        (
            |rig, _, _| {
                let mr = rig.node.register(64, Access::MW_BIND | Access::ZERO_BASED);
                let key = rig.node.mr(mr).key;
                bind(rig.node.alloc_window(MwType::Two), key, 0, 8, Access::REMOTE_READ)
            },
            MwBindErr,
        ),
        // A window of type 2 that is bound already, or would be bound to no memory.
        (
            |rig, va, r| {
                let key = rig.node.alloc_window(MwType::Two);
                succeeds(rig, &bind(key, r, va, 8, Access::REMOTE_READ));
                bind(inc_rkey(key), r, va, 8, Access::REMOTE_READ)
            },
            MwBindErr,
        ),
        (|rig, _, _| bind(rig.node.alloc_window(MwType::Two), 0, 0, 0, Access::empty()), MwBindErr),
        // Invalidations.
        (|_, _, r| local_inv(r), LocQpOpErr),
        (|_, _, _| local_inv(0x4242_4242), LocQpOpErr),
        // Registrations: of a region that is registered already, and beyond its memory.
        (
            |rig, _, _| {
                let mr = rig.node.register_fast(64, Access::empty());
                let key = rig.node.mr(mr).key;
                reg_mr(rig, mr, inc_rkey(key), 64, Access::empty())
            },
            LocQpOpErr,
        ),
        (
            |rig, _, _| {
                let mr = rig.node.alloc_fast(64);
                let key = rig.node.mr(mr).key;
                reg_mr(rig, mr, key, 65, Access::empty())
            },
            LocQpOpErr,
        ),
    ];
    let mut good = rig();
    let (va, region) = bindable(&mut good);
    let key = good.node.alloc_window(MwType::One);
    succeeds(&mut good, &bind(key, region, va, 4096, rights));
    for (i, (case, status)) in cases.into_iter().enumerate() {
        let mut rig = rig();
        let (va, region) = bindable(&mut rig);
        let wr = case(&mut rig, va, region);
        println!("case {i}: {wr:?}");
        fails(&mut rig, &wr, status);
    }
}

// Goal: a local invalidation waits for everything before it. A bind does not, but completes in its order.
#[test]
fn local_operations_in_the_order_of_the_queue() {
    let mut rig = rig();
    let (va, region) = bindable(&mut rig);
    let fast = rig.node.register_fast(64, Access::empty());
    let key = rig.node.mr(fast).key;
    let write = rig.wr(1, RdmaWrite, 8);
    let said = rig.post_all(&[write.clone(), local_inv(key), rig.wr(3, RdmaWrite, 8)]);
    assert_eq!(opcodes(&said), [O::RC_WRITE_ONLY], "what is behind it waits too");
    let mrs = &rig.node.shared.clone().mrs;
    let alive = |key, va| mrs.check_remote(key, PD, PEER_QPN, Access::empty(), va, 1).is_ok();
    let at = rig.node.mr(fast).addr();
    assert!(alive(key, at) && rig.done().is_empty());
    assert_eq!(opcodes(&rig.send(&ack(E, 1))), [O::RC_WRITE_ONLY]);
    assert!(!alive(key, at));
    assert_eq!(rig.done(), [(1, Success), (2, Success)]);
    rig.send(&ack(E + 1, 2));
    assert_eq!(rig.done(), [(3, Success)]);

    let window = rig.node.alloc_window(MwType::One);
    let bound = bind(window, region, va, 64, Access::REMOTE_READ);
    rig.post_all(&[rig.wr(4, RdmaRead, 8), bound.clone(), rig.wr(5, RdmaWrite, 8)]);
    assert!(alive(window, va) && rig.done().is_empty(), "done, not told");
    rig.send(&pkt(O::RC_READ_RESPONSE_ONLY, E + 2).aeth(0x1f, 3).len(8));
    assert_eq!(rig.done(), [(4, Success), (1, Success)]);
    rig.send(&ack(E + 3, 4));
    assert_eq!(rig.done(), [(5, Success)]);

    let unbind = bind(window, 0, 0, 0, Access::empty()).with(SendFlags::FENCE);
    rig.post_all(&[rig.wr(6, RdmaRead, 8), unbind]);
    assert!(alive(window, va), "it waits behind the fence");
    rig.send(&pkt(O::RC_READ_RESPONSE_ONLY, E + 4).aeth(0x1f, 5).len(8));
    assert!(!alive(window, va));
    assert_eq!(rig.done(), [(6, Success), (1, Success)]);
}

// No acknowledgement was requested that the invalidation could wait for: the invalidation requests it, without a timeout.
#[test]
fn local_invalidation_behind_an_unsignalled_write() {
    let mut rig = rig();
    let fast = rig.node.register_fast(64, Access::empty());
    let wrs = [rig.wr(1, RdmaWrite, 8).unsignaled(), local_inv(rig.node.mr(fast).key)];
    let said = rig.post_all(&wrs);
    assert!(said.last().is_some_and(|s| s.psn == E && s.ack_req), "{said:?}");
    rig.send(&ack(E, 1));
    assert_eq!(rig.done(), [(2, Success)]);
    assert!(rig.wait(Duration::from_secs(1)).is_empty());
}

#[test]
fn local_operations_when_the_queue_pair_ends_or_drains() {
    let mut rig = rig();
    let fast = rig.node.register_fast(64, Access::empty());
    let (key, at) = (rig.node.mr(fast).key, rig.node.mr(fast).addr());
    rig.post_all(&[rig.wr(1, RdmaWrite, 8), local_inv(key)]);
    rig.node.modify_state(rig.now, rig.qp, QpState::Err).unwrap();
    rig.run();
    assert_eq!(rig.done()[..2], [(1, WrFlushErr), (2, WrFlushErr)]);
    let alive = |rig: &Rig| rig.node.shared.mrs.check(key, PD, Access::empty(), at, 1).is_ok();
    assert!(alive(&rig));

    let mut rig = self::rig();
    let fast = rig.node.register_fast(64, Access::empty());
    let key = rig.node.mr(fast).key;
    rig.node.modify_state(rig.now, rig.qp, QpState::Sqd).unwrap();
    rig.post(&local_inv(key));
    assert!(rig.done().is_empty(), "nothing starts in SQD");
    rig.node.modify_state(rig.now, rig.qp, QpState::Rts).unwrap();
    rig.run();
    assert_eq!(rig.done(), [(2, Success)]);
}

fn store_wr(rig: &Rig, id: u64) -> SendWr {
    rig.wr(id, AtomicWrite, 8)
}

fn flush_wr(id: u64, level: u8, placement: u8, len: u64) -> SendWr {
    let arg = u64::from(level) << 8 | u64::from(placement);
    SendWr::new(id, Flush).remote(REMOTE_VA, REMOTE_KEY).operands(arg, len)
}

fn empty(psn: u32) -> Pkt {
    pkt(O::RC_READ_RESPONSE_ONLY, psn).aeth(0x1f, 1)
}

#[test]
fn atomic_write_and_flush_are_sent_and_answered() {
    let mut rig = rig();
    rig.node.mr(rig.buf).write(0, b"8 bytes!");
    let said = rig.post(&store_wr(&rig, 1));
    let reth = Reth { va: REMOTE_VA, rkey: REMOTE_KEY, len: 8 };
    assert_eq!((said[0].opcode, said[0].ext, said[0].ack_req), (O::RC_ATOMIC_WRITE, Ext::Reth(reth), true));
    assert_eq!(said[0].payload, b"8 bytes!");
    assert_eq!(opcodes(&rig.post(&store_wr(&rig, 2).inline(b"in line!"))), [O::RC_ATOMIC_WRITE]);
    let said = rig.post(&flush_wr(3, 1, 1, 1 << 20));
    let feth = Feth { selectivity: 1, placement: 1 };
    assert_eq!(said[0].ext, Ext::FlushReth(feth, Reth { len: 1 << 20, ..reth }));
    assert!(said[0].payload.is_empty() && said[0].opcode == O::RC_FLUSH);
    rig.send_all(&[empty(E), empty(E + 1), empty(E + 2)]);
    let opcode = |c: &stack::proto::wqe::Cqe| (c.wr_id, c.status, c.opcode);
    let (ok, store, flush) = (WcStatus::Success, WcOpcode::AtomicWrite, WcOpcode::Flush);
    assert_eq!(
        rig.cqes().iter().map(opcode).collect::<Vec<_>>(),
        [(1, ok, store), (2, ok, store), (3, ok, flush)]
    );
}

// Goal: both are outstanding like READs, wait for responses of their own, and are retransmitted unchanged.
#[test]
fn atomic_write_and_flush_as_outstanding_requests() {
    let mut rig = Rig::with(|c| c.qp.max_rd_atomic = 1);
    rig.unlimited();
    let wrs = [store_wr(&rig, 1), flush_wr(2, 0, 1, 8), rig.wr(3, RdmaWrite, 8)];
    assert_eq!(opcodes(&rig.post_all(&wrs)), [O::RC_ATOMIC_WRITE], "one at a time");
    assert_eq!(opcodes(&rig.send(&empty(E))), [O::RC_FLUSH, O::RC_WRITE_ONLY]);
    // An acknowledgement of the WRITE skips the FLUSH: unless its response is only late, the FLUSH and all requests after it are sent again.
    rig.inject(&ack(E + 2, 3));
    assert_eq!(opcodes(&rig.wait(2 * GAP_LONGEST)), [O::RC_FLUSH, O::RC_WRITE_ONLY]);
    assert_eq!(rig.done(), [(1, Success)]);
    rig.send_all(&[empty(E + 1), ack(E + 2, 3)]);
    assert_eq!(rig.done(), [(2, Success), (3, Success)]);

    let mut rig = Rig::with(|c| c.qp.retry_cnt = 2);
    rig.unlimited();
    let first = rig.post(&store_wr(&rig, 1));
    let again = rig.wait(Duration::from_secs(2));
    assert_eq!(again.len(), 2);
    assert!(again.iter().all(|s| (s.opcode, s.psn, s.ext) == (first[0].opcode, E, first[0].ext)));
    assert_eq!(rig.done()[0], (1, RetryExcErr));
}

#[test]
fn bad_answers_to_atomic_write_and_flush() {
    for (answer, status) in [
        (empty(E).len(8), LocLenErr),
        (pkt(O::RC_ATOMIC_ACKNOWLEDGE, E).atomic_ack(1, 0), BadRespErr),
        (pkt(O::RC_READ_RESPONSE_ONLY, E).aeth(0x62, 1), BadRespErr),
        (pkt(O::RC_READ_RESPONSE_LAST, E).aeth(0x1f, 1).len(4), BadRespErr),
    ] {
        for flushes in [false, true] {
            let mut rig = rig();
            let wr = if flushes { flush_wr(1, 0, 1, 8) } else { store_wr(&rig, 1) };
            rig.post(&wr);
            rig.send(&answer);
            assert_eq!(rig.done()[0], (1, status), "{answer:?}");
        }
    }
}

// Goal: once an invalidation has completed, no shard uses the key any more.
#[test]
fn completions_of_invalidations_wait_for_the_turns_of_other_shards() {
    let now = Instant::from_nanos(1_000_000);
    let mut node = Node::new(NodeConfig { shards: 2, ..NodeConfig::default() }, now, Rng::new(7));
    let cq = node.create_cq(64);
    let qp = node.create_qp(0, QpConfig::default(), cq, cq);
    let (gid, qpn) = (node.gid, node.qp(qp).qpn);
    node.to_init(now, qp);
    node.to_rtr(now, qp, gid, qpn);
    node.to_rts(now, qp);
    let turn = |node: &mut Node| {
        for _ in 0..4 {
            node.turn(0, now);
        }
        node.poll_cq(cq, 16).len()
    };
    let turning = |node: &Node| {
        let word = &node.shared.turn_counters[1];
        word.store(word.load(std::sync::atomic::Ordering::Relaxed) + 1, std::sync::atomic::Ordering::Release);
    };
    for by_peer in [false, true] {
        let mr = node.register_fast(64, remote_rights());
        let key = node.mr(mr).key;
        turning(&node); // the other shard is in a turn
        let wr = if by_peer {
            node.post_recv(qp, 1, &[]).unwrap();
            SendWr { inv: key, ..SendWr::new(2, WrOpcode::SendWithInv).unsignaled() }
        } else {
            local_inv(key)
        };
        node.post_send(qp, &wr).unwrap();
        assert_eq!(turn(&mut node), 0);
        let va = node.mr(mr).addr();
        assert!(node.shared.mrs.check(key, PD, Access::empty(), va, 1).is_err(), "dead at once");
        assert_eq!(node.next_deadline(), Some(now), "it has something to wait for");
        turning(&node); // the turn is over
        assert_eq!(turn(&mut node), 1, "by the peer: {by_peer}");
    }
    // If no shard is in a turn, the invalidation waits for none.
    let mr = node.register_fast(64, remote_rights());
    node.post_send(qp, &local_inv(node.mr(mr).key)).unwrap();
    assert_eq!(turn(&mut node), 1);
}
