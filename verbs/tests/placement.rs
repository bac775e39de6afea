//! Memory placement (IBA A19): ATOMIC WRITE and FLUSH through the whole stack.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{Pair, Stop, all_rights, embedded, options, take};
use verbs::{
    Access, FlushLevel, FlushPlacement, Mr, PostErrorKind, QpInitAttr, QpState, SendWr, Wc, WcOpcode,
    WcStatus,
};

/// A pair of queue pairs with the right to FLUSH, and a region that grants it.
fn pair() -> (Pair, Mr) {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    let (cq_a, cq_b) = (context.create_cq(64).unwrap(), context.create_cq(64).unwrap());
    let a = pd.create_qp(&QpInitAttr::rc(&cq_a, &cq_a)).unwrap();
    let b = pd.create_qp(&QpInitAttr::rc(&cq_b, &cq_b)).unwrap();
    let options = options().access(options().access | Access::FLUSH_GLOBAL);
    a.connect_rc(&b.endpoint(1).unwrap(), &options).unwrap();
    b.connect_rc(&a.endpoint(1).unwrap(), &options).unwrap();
    let mr = pd.reg_mr(4096, all_rights()).unwrap();
    let target = pd.reg_mr(4096, all_rights() | Access::FLUSH_GLOBAL).unwrap();
    (Pair { a, b, mr, cq_a, cq_b, pd, context }, target)
}

fn done(p: &Pair, n: usize) -> Vec<Wc> {
    take(&p.context, &p.cq_a, n)
}

#[test]
fn c01_r55_atomic_write() {
    let (p, target) = pair();
    p.mr.write(0, b"from mem").unwrap();
    let (at, key) = (target.addr(), target.rkey());
    p.a.post_send(&[
        SendWr::atomic_write(1, &[p.mr.sge(0..8).unwrap()], at + 8, key).signaled(),
        SendWr::atomic_write(2, &[], at + 16, key).inline(b"in line!").signaled(),
    ])
    .unwrap();
    for (i, wc) in done(&p, 2).iter().enumerate() {
        let want = (WcStatus::Success, WcOpcode::AtomicWrite, i as u64 + 1, p.a.qp_num());
        assert_eq!((wc.status, wc.opcode, wc.wr_id, wc.qp_num), want);
    }
    assert_eq!(target.to_vec(0..32).unwrap(), *b"\0\0\0\0\0\0\0\0from memin line!\0\0\0\0\0\0\0\0");
    // A write that is not 8 aligned bytes is refused when it is posted.
    let kind = |wr: SendWr<'_>| p.a.post_send(&[wr]).unwrap_err().kind;
    assert_eq!(
        kind(SendWr::atomic_write(3, &[], at, key).inline(b"seven b")),
        PostErrorKind::AtomicLength(7)
    );
    let long = [p.mr.sge(0..16).unwrap()];
    assert_eq!(kind(SendWr::atomic_write(3, &long, at, key)), PostErrorKind::AtomicLength(16));
    let odd = at + 4;
    assert_eq!(
        kind(SendWr::atomic_write(3, &[], odd, key).inline(b"8 bytes!")),
        PostErrorKind::AtomicAddress(odd)
    );
    // An aligned address in a region without write access.
    let closed = p.pd.reg_mr(64, Access::REMOTE_READ).unwrap();
    p.a.post_send(&[SendWr::atomic_write(4, &[], closed.addr(), closed.rkey()).inline(b"8 bytes!")]).unwrap();
    assert_eq!(done(&p, 1)[0].status, WcStatus::RemAccessErr);
}

// Goal: a concurrent reader of the word sees one value or the other, never a mix.
#[test]
fn atomic_writes_are_seen_whole() {
    let (p, target) = pair();
    let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let bytes = target.read_u64(8).unwrap().to_ne_bytes();
                looks.fetch_add(1, Ordering::Relaxed);
                assert!(bytes.iter().all(|b| *b == bytes[0]), "{bytes:?}");
            }
        });
        let _stop = Stop(&stop);
        for i in (0u64..).take_while(|i| *i < 2000 || looks.load(Ordering::Relaxed) == 0) {
            let data = [i as u8; 8];
            p.a.post_send(&[SendWr::atomic_write(i, &[], target.addr() + 8, target.rkey())
                .inline(&data)
                .signaled()])
                .unwrap();
            assert!(done(&p, 1)[0].is_ok());
        }
    });
}

#[test]
fn c01_r56_flush() {
    let (p, target) = pair();
    let (at, key) = (target.addr(), target.rkey());
    p.mr.fill(0..4096, 0x5a).unwrap();
    let global = FlushPlacement::GLOBAL;
    p.a.post_send(&[
        SendWr::write(1, &[p.mr.sge(0..4096).unwrap()], at, key),
        SendWr::flush(2, at, 4096, key, global, FlushLevel::Range).signaled(),
        SendWr::flush(3, 0, 0, key, global, FlushLevel::Mr).signaled(),
        SendWr::atomic_write(4, &[], at, key).inline(b"the flag").signaled(),
    ])
    .unwrap();
    let ends: Vec<_> = done(&p, 3).iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
    let ok = WcStatus::Success;
    assert_eq!(ends, [(2, ok, WcOpcode::Flush), (3, ok, WcOpcode::Flush), (4, ok, WcOpcode::AtomicWrite)]);
    assert_eq!(target.to_vec(4088..4096).unwrap(), [0x5a; 8]);
    let wr = SendWr::flush(5, at, 8, key, FlushPlacement::empty(), FlushLevel::Range);
    assert_eq!(p.a.post_send(&[wr]).unwrap_err().kind, PostErrorKind::NoPlacement);
    let wr = SendWr::flush(5, at, u32::MAX, key, global, FlushLevel::Range);
    assert_eq!(p.a.post_send(&[wr]).unwrap_err().kind, PostErrorKind::TooLong(u32::MAX.into()));
}

#[test]
fn r56_flush_without_the_right() {
    // A FLUSH that the region does not grant; one that the queue pair does not; and a placement that no memory of this stack has.
    for case in 0..3 {
        let (p, target) = pair();
        let placement = if case == 2 { FlushPlacement::PERSISTENT } else { FlushPlacement::GLOBAL };
        let mr = if case == 0 { &p.mr } else { &target };
        let end = if case == 1 {
            let p = Pair::new(embedded());
            let mr = p.pd.reg_mr(64, all_rights() | Access::FLUSH_GLOBAL).unwrap();
            p.a.post_send(&[SendWr::flush(1, mr.addr(), 8, mr.rkey(), placement, FlushLevel::Range)])
                .unwrap();
            p.done_a(1)[0].status
        } else {
            p.a.post_send(&[SendWr::flush(1, mr.addr(), 8, mr.rkey(), placement, FlushLevel::Range)])
                .unwrap();
            let end = done(&p, 1)[0].status;
            assert_eq!(p.a.state().unwrap(), QpState::Err);
            end
        };
        let want = if case == 0 { WcStatus::RemAccessErr } else { WcStatus::RemInvReqErr };
        assert_eq!(end, want, "case {case}");
    }
    let (p, _) = pair();
    assert!(p.pd.reg_mr(64, Access::FLUSH_PERSISTENT).is_err(), "ordinary memory is not persistent");
}
