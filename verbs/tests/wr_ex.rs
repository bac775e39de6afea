//! The extended posting interface: every operation from end to end, and every refusal.

use std::io::IoSlice;

use crate::common::{Pair, all_rights, assert_no_completion, embedded, enter, options, take};
use crate::link::{Cable, Side};
use allocation_counter::measure;
use verbs::errno::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, EPERM};
use verbs::{
    Access, BindError, FlushLevel, FlushPlacement, GRH_LEN, Mr, MwBindInfo, MwType, PostErrorKind, Qp, QpCap,
    QpInitAttr, QpState, QpType, RecvWr, SendFlags, SendOpsFlags, SendWr, Sge, SrqInitAttr, VerbsError, Wc,
    WcOpcode, WcStatus, WrOpcode, WrPost, XrcdInitAttr, ah_attr_to, inc_rkey,
};

const DEPTH: u32 = 8;

/// A pair with small queues, and a region of B with all rights.
fn bench() -> (Pair, Mr) {
    let cap =
        QpCap { max_send_wr: DEPTH, max_recv_wr: 64, max_send_sge: 3, max_recv_sge: 3, max_inline_data: 60 };
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    let (cq_a, cq_b) = (context.create_cq(64).unwrap(), context.create_cq(64).unwrap());
    let a = pd.create_qp(&QpInitAttr::rc(&cq_a, &cq_a).cap(cap)).unwrap();
    let b = pd.create_qp(&QpInitAttr::rc(&cq_b, &cq_b).cap(cap)).unwrap();
    let options = options().access(options().access | Access::FLUSH_GLOBAL);
    a.connect_rc(&b.endpoint(1).unwrap(), &options).unwrap();
    b.connect_rc(&a.endpoint(1).unwrap(), &options).unwrap();
    let mr = pd.reg_mr(4096, all_rights()).unwrap();
    let target = pd.reg_mr(4096, all_rights() | Access::FLUSH_GLOBAL | Access::MW_BIND).unwrap();
    (Pair { a, b, mr, cq_a, cq_b, pd, context }, target)
}

fn opcodes(done: &[Wc]) -> Vec<WcOpcode> {
    assert!(done.iter().all(Wc::is_ok), "{done:?}");
    done.iter().map(|wc| wc.opcode).collect()
}

#[test]
fn messages_and_writes() {
    let (p, target) = bench();
    let (key, at) = (target.rkey(), target.addr());
    let window = p.pd.alloc_mr(64).unwrap();
    p.b.post_send(&[SendWr::reg_mr(0, &window, 0..64, all_rights()).unwrap()]).unwrap();
    p.mr.write(0, b"0123456789").unwrap();
    let rooms: Vec<[Sge; 1]> = (0..4).map(|i| [target.sge(1024 + 64 * i..1088 + 64 * i).unwrap()]).collect();
    let recvs: Vec<_> = rooms.iter().enumerate().map(|(i, room)| RecvWr::new(i as u64, room)).collect();
    p.b.post_recv(&recvs).unwrap();

    let mut wr = p.a.wr_start();
    (wr.wr_id, wr.wr_flags) = (10, SendFlags::SIGNALED);
    wr.send();
    wr.set_sge(p.mr.lkey(), p.mr.addr(), 4);
    wr.wr_id = 11;
    wr.send_imm(0xdead_beef);
    wr.set_sge_list(&[p.mr.sge(4..6).unwrap(), p.mr.sge(0..2).unwrap(), p.mr.sge(9..10).unwrap()]);
    wr.wr_id = 12;
    wr.wr_flags |= SendFlags::SOLICITED;
    wr.send_inv(window.rkey());
    let mut text = *b"inline";
    wr.set_inline_data_list(&[&text[..2], b"", &text[2..]].map(IoSlice::new));
    text.fill(0); // the request has copied it
    (wr.wr_id, wr.wr_flags) = (13, SendFlags::SIGNALED | SendFlags::FENCE);
    wr.rdma_write(key, at);
    wr.set_inline_data(b"written");
    wr.wr_flags = SendFlags::empty();
    wr.rdma_write_imm(key, at + 100, 7);
    wr.set_sge(p.mr.lkey(), p.mr.addr(), 10);
    assert_no_completion(&p.context, &p.cq_b);
    wr.complete().unwrap();

    let done = p.done_a(4);
    assert_eq!(done.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [10, 11, 12, 13]);
    assert_eq!(opcodes(&done), [WcOpcode::Send, WcOpcode::Send, WcOpcode::Send, WcOpcode::RdmaWrite]);
    let done = p.done_b(4);
    assert_eq!(opcodes(&done)[3], WcOpcode::RecvRdmaWithImm);
    assert_eq!((done[1].imm_data(), done[3].imm_data()), (Some(0xdead_beef), Some(7)));
    assert_eq!(done[2].invalidated_rkey(), Some(window.rkey()));
    assert_eq!(done.iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [4, 5, 6, 10]);
    for (i, text) in [&b"0123\0"[..], b"45019\0", b"inline\0"].into_iter().enumerate() {
        assert_eq!(target.to_vec(1024 + 64 * i..1024 + 64 * i + text.len()).unwrap(), text);
    }
    assert_eq!(target.to_vec(0..8).unwrap(), b"written\0");
    assert_eq!(target.to_vec(99..111).unwrap(), b"\x000123456789\0");
    assert_no_completion(&p.context, &p.cq_a);
}

#[test]
fn reads_and_atomics() {
    let (p, target) = bench();
    let (key, at) = (target.rkey(), target.addr());
    target.write(0, b"to be read").unwrap();
    target.write_u64(64, 5).unwrap();
    let mut wr = p.a.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.rdma_read(key, at);
    wr.set_sge_list(&[p.mr.sge(20..23).unwrap(), p.mr.sge(0..7).unwrap()]);
    wr.atomic_fetch_add(key, at + 64, 3);
    wr.set_sge(p.mr.lkey(), p.mr.addr() + 64, 8);
    wr.atomic_cmp_swp(key, at + 64, 8, 100);
    wr.set_sge(p.mr.lkey(), p.mr.addr() + 72, 8);
    wr.atomic_write(key, at + 80, b"8 bytes!");
    wr.flush(key, at + 80, 8, FlushPlacement::GLOBAL, FlushLevel::Range);
    wr.complete().unwrap();
    let want =
        [WcOpcode::RdmaRead, WcOpcode::FetchAdd, WcOpcode::CompSwap, WcOpcode::AtomicWrite, WcOpcode::Flush];
    assert_eq!(opcodes(&p.done_a(5)), want);
    assert_eq!(
        (p.mr.to_vec(20..23).unwrap(), p.mr.to_vec(0..7).unwrap()),
        (b"to ".into(), b"be read".into())
    );
    assert_eq!((p.mr.read_u64(64).unwrap(), p.mr.read_u64(72).unwrap()), (5, 8));
    assert_eq!((target.read_u64(64).unwrap(), target.to_vec(80..88).unwrap()), (100, b"8 bytes!".into()));
}

// A queue without room for inline data has room for the 8 bytes of an atomic write.
#[test]
fn an_atomic_write_needs_no_inline_room() {
    let p =
        Pair::with(embedded(), |init| init.cap(QpCap { max_inline_data: 0, max_send_sge: 1, ..init.cap }));
    let mut wr = p.a.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.atomic_write(p.mr.rkey(), p.mr.addr() + 8, b"8 bytes!");
    wr.complete().unwrap();
    assert_eq!(opcodes(&p.done_a(1)), [WcOpcode::AtomicWrite]);
    assert_eq!(p.mr.to_vec(8..16).unwrap(), b"8 bytes!");
}

#[test]
fn windows() {
    let (p, target) = bench();
    let mw = p.pd.alloc_mw(MwType::Two).unwrap();
    let info = MwBindInfo::new(&target, 0..64, Access::REMOTE_WRITE).unwrap();
    let key = inc_rkey(mw.rkey());
    let mut wr = p.b.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.bind_mw(&mw, key, &info);
    wr.complete().unwrap();
    assert_eq!(opcodes(&p.done_b(1)), [WcOpcode::BindMw]);
    let write = || {
        let mut wr = p.a.wr_start();
        wr.wr_flags = SendFlags::SIGNALED;
        wr.rdma_write(key, target.addr());
        wr.set_inline_data(b"windowed");
        wr.complete().unwrap();
        p.done_a(1)[0].status
    };
    assert_eq!(write(), WcStatus::Success);
    let mut wr = p.b.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.local_inv(key);
    wr.complete().unwrap();
    assert_eq!(opcodes(&p.done_b(1)), [WcOpcode::LocalInv]);
    assert_eq!(write(), WcStatus::RemAccessErr);
}

#[test]
fn datagrams_and_their_addresses() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let mr = pd.reg_mr(4096, Access::LOCAL_WRITE).unwrap();
    let qp = pd.create_qp(&QpInitAttr::ud(&cq, &cq)).unwrap();
    qp.activate_ud(0x77).unwrap();
    let ah = pd.create_ah(&ah_attr_to(context.query_gid(1, 1).unwrap(), 1)).unwrap();
    let rooms: Vec<[Sge; 1]> = (0..3).map(|i| [mr.sge(100 * i..100 * i + 100).unwrap()]).collect();
    qp.post_recv(&rooms.iter().map(|room| RecvWr::new(1, room)).collect::<Vec<_>>()).unwrap();
    mr.write(1000, b"gathered").unwrap();
    // The address is set before the data, and after it.
    let mut wr = qp.wr_start();
    wr.send();
    wr.set_ud_addr(&ah, qp.qp_num(), 0x77);
    wr.set_inline_data(b"before");
    wr.send_imm(5);
    wr.set_sge(mr.lkey(), mr.addr() + 1000, 8);
    wr.set_ud_addr(&ah, qp.qp_num(), 0x77);
    wr.send();
    wr.set_inline_data(b"behind");
    wr.set_ud_addr(&ah, qp.qp_num(), 0x77);
    wr.complete().unwrap();
    let done = take(&context, &cq, 3);
    assert_eq!(done[1].imm_data(), Some(5));
    for (i, text) in [&b"before"[..], b"gathered", b"behind"].into_iter().enumerate() {
        assert_eq!(done[i].byte_len as usize, GRH_LEN + text.len());
        let at = 100 * i + GRH_LEN;
        assert_eq!(mr.to_vec(at..at + text.len()).unwrap(), text);
    }
    // Invalid addresses.
    let pd = context.alloc_pd().unwrap();
    let foreign = pd.create_ah(&ah_attr_to(context.query_gid(1, 1).unwrap(), 1)).unwrap();
    let before = context.counters();
    let mut wr = qp.wr_start();
    wr.send();
    assert_eq!(wr.complete().unwrap_err().kind, PostErrorKind::NoAddress { qp_type: QpType::Ud });
    let mut wr = qp.wr_start();
    wr.send();
    wr.set_ud_addr(&foreign, qp.qp_num(), 0x77);
    assert_eq!(wr.complete().unwrap_err().kind, PostErrorKind::ForeignAh);
    assert_no_completion(&context, &cq);
    assert_eq!(context.counters(), before);
}

#[test]
fn xrc_names_its_queue() {
    let cable = Cable::new(1);
    let (a, b) = (Side::new(&cable.a), Side::new(&cable.b));
    let xrcd = cable.b.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
    let srq = b.pd.create_xrc_srq(&SrqInitAttr::new(8, 1), &xrcd, &b.cq).unwrap();
    let (ini, target) = (a.pd.create_qp(&QpInitAttr::xrc_ini(&a.cq)).unwrap(), xrcd.create_qp(None).unwrap());
    target.connect(&ini.endpoint(1).unwrap(), &options()).unwrap();
    ini.connect_rc(&target.endpoint(1).unwrap(), &options()).unwrap();
    srq.post_recv(&[RecvWr::new(1, &[b.mr.sge(0..64).unwrap()])]).unwrap();
    let mut wr = ini.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.send();
    wr.set_inline_data(b"to a queue");
    wr.set_xrc_srqn(srq.srq_num());
    wr.complete().unwrap();
    assert_eq!(cable.take(&b.cq, 1)[0].srq_num(), Some(srq.srq_num()));
    assert_eq!(b.bytes(0, 11), b"to a queue\0");
    assert!(cable.take(&a.cq, 1)[0].is_ok());
    for (number, kind) in [(None, PostErrorKind::NoSrqn), (Some(1 << 24), PostErrorKind::BadSrqn(1 << 24))] {
        let mut wr = ini.wr_start();
        wr.send();
        if let Some(number) = number {
            wr.set_xrc_srqn(number);
        }
        let e = wr.complete().unwrap_err();
        assert_eq!((e.kind, e.errno()), (kind, EINVAL));
    }
    cable.assert_no_completion(&a.cq);
}

// Local operations of an initiator name no remote receive queue (ibv_wr_post(3): they have no setters).
#[test]
fn local_operations_of_an_initiator_name_no_queue() {
    let cable = Cable::new(1);
    let (a, b) = (Side::new(&cable.a), Side::new(&cable.b));
    let xrcd = cable.b.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
    let (ini, target) = (a.pd.create_qp(&QpInitAttr::xrc_ini(&a.cq)).unwrap(), xrcd.create_qp(None).unwrap());
    target.connect(&ini.endpoint(1).unwrap(), &options()).unwrap();
    ini.connect_rc(&target.endpoint(1).unwrap(), &options()).unwrap();
    let mr = a.pd.alloc_mr(64).unwrap();
    ini.post_send(&[SendWr::reg_mr(1, &mr, 0..64, Access::LOCAL_WRITE).unwrap().signaled()]).unwrap();
    assert!(cable.take(&a.cq, 1)[0].is_ok());
    let mut wr = ini.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.local_inv(mr.rkey());
    wr.complete().unwrap();
    assert_eq!(cable.take(&a.cq, 1)[0].opcode, WcOpcode::LocalInv);
    drop(b);
}

#[test]
fn nothing_is_posted_without_complete() {
    let (p, target) = bench();
    let build = |wr: &mut WrPost<'_>| {
        wr.wr_flags = SendFlags::SIGNALED;
        for _ in 0..DEPTH {
            wr.rdma_write(target.rkey(), target.addr());
            wr.set_inline_data(b"never");
        }
    };
    let mut wr = p.a.wr_start();
    build(&mut wr);
    wr.abort();
    let mut wr = p.a.wr_start();
    build(&mut wr);
    drop(wr);
    p.a.wr_start().complete().unwrap();
    assert_no_completion(&p.context, &p.cq_a);
    assert_eq!(target.to_vec(0..5).unwrap(), [0; 5]);
    // All slots are still free.
    let mut wr = p.a.wr_start();
    build(&mut wr);
    wr.complete().unwrap();
    assert_eq!(p.done_a(DEPTH as usize).len(), DEPTH as usize);
    assert_eq!(target.to_vec(0..5).unwrap(), b"never");
}

/// Builds a valid request, the one in question, and a valid one. The whole list must be refused with this error, for the second request.
#[track_caller]
fn refused<'p>(
    p: &'p Pair,
    what: &str,
    kind: PostErrorKind,
    errno: i32,
    build: impl FnOnce(&mut WrPost<'p>),
) {
    let before = p.a.counters();
    let mut wr = p.a.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.rdma_write(0, 0);
    build(&mut wr);
    wr.wr_flags = SendFlags::SIGNALED;
    wr.rdma_write(0, 0);
    let e = wr.complete().unwrap_err();
    assert_eq!((e.kind, e.bad_wr, e.errno()), (kind, 1, errno), "{what}: {e}");
    assert_no_completion(&p.context, &p.cq_a);
    assert_eq!(p.a.counters(), before, "{what}");
    assert_eq!(p.a.state().unwrap(), QpState::Rts);
}

#[test]
fn a_list_with_a_bad_request_is_refused_whole() {
    use PostErrorKind as K;
    let (p, target) = bench();
    let (key, at, lkey) = (target.rkey(), target.addr(), p.mr.lkey());
    let sges = [p.mr.sge(0..8).unwrap(); 4];
    let long = [Sge { addr: at, length: 1 << 31, lkey }, p.mr.sge(0..1).unwrap()];
    let ah = p.pd.create_ah(&ah_attr_to(p.context.query_gid(1, 1).unwrap(), 1)).unwrap();
    let (one, two) = (p.pd.alloc_mw(MwType::One).unwrap(), p.pd.alloc_mw(MwType::Two).unwrap());
    let info = MwBindInfo::new(&target, 0..64, Access::REMOTE_WRITE).unwrap();
    let other = p.context.alloc_pd().unwrap();
    let foreign = other.reg_mr(64, Access::MW_BIND).unwrap();
    let next = inc_rkey(two.rkey());

    refused(&p, "sge", K::TooManySge { given: 4, max: 3 }, EINVAL, |wr| {
        wr.send();
        wr.set_sge_list(&sges);
    });
    refused(&p, "inline", K::InlineTooLong { given: 61, max: 60 }, EINVAL, |wr| {
        wr.send();
        wr.set_inline_data_list(&[&[0; 60][..], &[0; 1]].map(IoSlice::new));
    });
    refused(&p, "inline read", K::InlineNotAllowed(WrOpcode::RdmaRead), EINVAL, |wr| {
        wr.rdma_read(key, at);
        wr.set_inline_data(b"8 bytes!");
    });
    refused(&p, "long", K::TooLong((1 << 31) + 1), EINVAL, |wr| {
        wr.rdma_write(key, at);
        wr.set_sge_list(&long);
    });
    refused(&p, "atomic length", K::AtomicLength(4), EINVAL, |wr| {
        wr.atomic_fetch_add(key, at, 1);
        wr.set_sge(lkey, at, 4);
    });
    refused(&p, "no result", K::AtomicLength(0), EINVAL, |wr| wr.atomic_cmp_swp(key, at, 1, 2));
    refused(&p, "atomic address", K::AtomicAddress(at + 4), EINVAL, |wr| {
        wr.atomic_write(key, at + 4, b"8 bytes!");
    });
    refused(&p, "placement", K::NoPlacement, EINVAL, |wr| {
        wr.flush(key, at, 8, FlushPlacement::empty(), FlushLevel::Range);
    });
    refused(&p, "flush", K::TooLong((1 << 31) + 1), EINVAL, |wr| {
        wr.flush(key, at, (1 << 31) + 1, FlushPlacement::GLOBAL, FlushLevel::Range);
    });
    refused(&p, "address", K::UnexpectedAddress { qp_type: QpType::Rc }, EINVAL, |wr| {
        wr.send();
        wr.set_ud_addr(&ah, p.b.qp_num(), 1);
    });
    refused(&p, "srqn", K::BadSrqn(5), EINVAL, |wr| {
        wr.send();
        wr.set_xrc_srqn(5);
    });
    refused(&p, "data of a flush", K::NoData(WrOpcode::Flush), EINVAL, |wr| {
        wr.flush(key, at, 8, FlushPlacement::GLOBAL, FlushLevel::Range);
        wr.set_sge(lkey, at, 8);
    });
    refused(&p, "data of an invalidate", K::NoData(WrOpcode::LocalInv), EINVAL, |wr| {
        wr.local_inv(key);
        wr.set_inline_data(b"x");
    });
    for flags in [SendFlags::INLINE, SendFlags::IP_CSUM | SendFlags::SIGNALED] {
        refused(&p, "flags", K::Flags(flags), EINVAL, |wr| {
            wr.wr_flags = flags;
            wr.send();
        });
    }
    refused(
        &p,
        "type 1",
        K::Bind(BindError::WindowType { call: "a BIND_MW request", wanted: 2 }),
        EINVAL,
        |wr| {
            wr.bind_mw(&one, one.rkey(), &info);
        },
    );
    let own = two.rkey();
    refused(&p, "key", K::Bind(BindError::ForeignKey { given: own ^ 0x100, own }), EINVAL, |wr| {
        wr.bind_mw(&two, own ^ 0x100, &info);
    });
    refused(&p, "no region", K::Bind(BindError::NoRegion { addr: at, length: 64 }), EINVAL, |wr| {
        wr.bind_mw(&two, next, &MwBindInfo { mr: None, ..info });
    });
    refused(&p, "domain", K::Bind(BindError::OtherPd { what: "memory region" }), EPERM, |wr| {
        wr.bind_mw(&two, next, &MwBindInfo::new(&foreign, 0..8, Access::REMOTE_READ).unwrap());
    });

    // A setter without a request: at the start of the list.
    let mut wr = p.a.wr_start();
    wr.set_sge(lkey, at, 1);
    wr.send();
    let e = wr.complete().unwrap_err();
    assert_eq!((e.kind, e.bad_wr, e.errno()), (K::NoRequest("set_sge_list"), 0, EINVAL));
    let mut wr = p.a.wr_start();
    wr.set_xrc_srqn(5);
    assert_eq!(wr.complete().unwrap_err().kind, K::NoRequest("set_xrc_srqn"));
    assert_no_completion(&p.context, &p.cq_a);
    // After all of these the queue pair is unchanged.
    let mut wr = p.a.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.rdma_write(key, at);
    wr.set_inline_data(b"as ever");
    wr.complete().unwrap();
    assert!(p.done_a(1)[0].is_ok());
    assert_eq!(target.to_vec(0..7).unwrap(), b"as ever");
}

#[test]
fn a_full_queue_names_the_first_request_that_did_not_fit() {
    let (p, target) = bench();
    p.a.post_send(&[SendWr::write(1, &[], target.addr(), target.rkey()).inline(b"x").signaled(); 3]).unwrap();
    let list = |n: u32| {
        let mut wr = p.a.wr_start();
        (wr.wr_id, wr.wr_flags) = (2, SendFlags::SIGNALED);
        for _ in 0..n {
            wr.rdma_write(target.rkey(), target.addr());
            wr.set_inline_data(b"y");
        }
        wr.complete()
    };
    let e = list(DEPTH - 2).unwrap_err();
    assert_eq!(
        (e.kind, e.bad_wr, e.errno()),
        (PostErrorKind::Full { depth: DEPTH }, DEPTH as usize - 3, ENOMEM)
    );
    list(DEPTH - 3).unwrap();
    let ids: Vec<_> = p.done_a(DEPTH as usize).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 1, 1, 2, 2, 2, 2, 2], "of the list that was refused, none");
}

#[test]
fn below_rts_nothing_is_taken() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    for state in [QpState::Reset, QpState::Init] {
        if state == QpState::Init {
            qp.init_rc(&options()).unwrap();
        }
        let mut wr = qp.wr_start();
        wr.send();
        wr.send();
        let e = wr.complete().unwrap_err();
        assert_eq!((e.kind, e.bad_wr, e.errno()), (PostErrorKind::State(state), 0, EINVAL));
        qp.wr_start().complete().unwrap(); // an empty list is always accepted
    }
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    assert_no_completion(&context, &cq);
}

// A list that begins before a RESET and is posted after it belongs to the new epoch.
#[test]
fn a_list_outlives_a_reset() {
    let (p, target) = bench();
    let mut wr = p.a.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.rdma_write(target.rkey(), target.addr());
    wr.set_inline_data(b"next life");
    wr.rdma_write(target.rkey(), target.addr() + 16);
    for qp in [&p.a, &p.b] {
        enter(qp, QpState::Reset);
    }
    p.a.connect_rc(&p.b.endpoint(1).unwrap(), &options()).unwrap();
    p.b.connect_rc(&p.a.endpoint(1).unwrap(), &options()).unwrap();
    wr.set_inline_data(b"too");
    wr.complete().unwrap();
    assert_eq!(opcodes(&p.done_a(2)), [WcOpcode::RdmaWrite; 2]);
    assert_eq!(
        (target.to_vec(0..9).unwrap(), target.to_vec(16..19).unwrap()),
        (b"next life".into(), b"too".into())
    );
}

#[test]
fn split_handles_have_it_too() {
    let (p, target) = bench();
    let (mut sq, _rq) = p.a.split().unwrap();
    let mut wr = p.a.wr_start();
    wr.send();
    let e = wr.complete().unwrap_err();
    assert_eq!((e.kind, e.bad_wr, e.errno()), (PostErrorKind::Split, 0, EBUSY));
    let mut wr = sq.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.rdma_write(target.rkey(), target.addr());
    wr.set_inline_data(b"without a lock");
    wr.complete().unwrap();
    assert!(p.done_a(1)[0].is_ok());
    assert_eq!(target.to_vec(0..14).unwrap(), b"without a lock");
}

#[test]
fn send_ops_flags_are_those_of_the_type() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    for ty in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcIni] {
        let has = SendOpsFlags::of(ty);
        let init = QpInitAttr::new(ty, &cq, &cq);
        let qp = pd.create_qp(&init.send_ops_flags(has)).unwrap();
        assert_eq!(qp.query().unwrap().1.send_ops_flags, Some(has));
        for lacking in SendOpsFlags::all().difference(has).iter() {
            let e = pd.create_qp(&init.send_ops_flags(SendOpsFlags::SEND | lacking)).unwrap_err();
            assert!(matches!(e, VerbsError::SendOps { flags, qp_type } if (flags, qp_type) == (lacking, ty)));
            assert_eq!(e.errno(), EOPNOTSUPP, "{e}");
        }
    }
    let sends = SendOpsFlags::SEND | SendOpsFlags::SEND_WITH_IMM;
    assert_eq!(SendOpsFlags::of(QpType::Ud), sends);
    assert_eq!(SendOpsFlags::of(QpType::Rc), SendOpsFlags::all().difference(SendOpsFlags::TSO));

    // An operation that was not requested at creation is refused here, as it would not exist elsewhere; post_send is not
    // affected.
    let p = Pair::with(embedded(), |init| init.send_ops_flags(SendOpsFlags::RDMA_WRITE));
    let mut wr = p.a.wr_start();
    wr.rdma_write(p.mr.rkey(), p.mr.addr());
    wr.send();
    let e = wr.complete().unwrap_err();
    assert_eq!((e.kind, e.bad_wr, e.errno()), (PostErrorKind::NotAskedFor(WrOpcode::Send), 1, EINVAL));
    assert_no_completion(&p.context, &p.cq_a);
    p.b.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    p.a.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    assert!(p.done_a(1)[0].is_ok());
}

#[test]
fn nothing_is_allocated() {
    let (p, target) = bench();
    let sges = [p.mr.sge(0..8).unwrap(), p.mr.sge(64..80).unwrap()];
    let list = |qp: &Qp| {
        let mut wr = qp.wr_start();
        wr.rdma_write(target.rkey(), target.addr());
        wr.set_sge_list(&sges);
        wr.rdma_write(target.rkey(), target.addr());
        wr.set_inline_data_list(&[&b"two"[..], b"pieces"].map(IoSlice::new));
        wr.wr_flags = SendFlags::SIGNALED;
        wr.rdma_read(target.rkey(), target.addr());
        wr.set_sge(p.mr.lkey(), p.mr.addr(), 64);
        wr.complete().unwrap();
        let mut wc = [Wc::default()];
        while p.cq_a.poll(&mut wc).unwrap() == 0 {
            p.context.reactor(0).unwrap().poll_once();
        }
        assert!(wc[0].is_ok());
    };
    list(&p.a);
    let info = measure(|| (0..500).for_each(|_| list(&p.a)));
    assert_eq!((info.count_total, info.bytes_total), (0, 0), "{info:?}");
}

// A list holds no lock of a thread: another thread may complete it, and other threads wait for that.
#[test]
fn a_list_moves_between_threads_and_others_wait_for_it() {
    let (p, target) = bench();
    let write = |id| SendWr::write(id, &[], target.addr(), target.rkey()).signaled();
    let mut list = p.a.wr_start();
    (list.wr_id, list.wr_flags) = (1, SendFlags::SIGNALED);
    list.rdma_write(target.rkey(), target.addr());
    std::thread::scope(|s| {
        let other = s.spawn(|| p.a.post_send([write(2)]));
        s.spawn(move || list.complete().unwrap()).join().unwrap();
        other.join().unwrap().unwrap();
    });
    let ids: Vec<_> = p.done_a(2).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 2], "who came later waited");
    let list = p.a.wr_start();
    assert_eq!(p.a.post_send([write(3)]).unwrap_err().kind, PostErrorKind::InsideCall);
    list.abort();
    p.a.post_send([write(4)]).unwrap();
    assert_eq!(p.done_a(1)[0].wr_id, 4);
}
