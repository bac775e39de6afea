//! Memory windows through the whole stack: binding, using, invalidating.

use crate::common::{Pair, all_rights, assert_no_completion, device, embedded, options, take};
use verbs::errno::{EBUSY, EINVAL, EPERM};
use verbs::{
    Access, Mr, MwBind, MwBindInfo, MwType, Qp, QpInitAttr, QpState, RecvWr, SendFlags, SendWr, VerbsError,
    Wc, WcOpcode, WcStatus, inc_rkey,
};

/// A region of B to which windows may be bound, filled with 0xb0.
fn region(p: &Pair) -> Mr {
    let mr = p.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    mr.fill(0..4096, 0xb0).unwrap();
    mr
}

fn bind_of<'a>(wr_id: u64, info: MwBindInfo<'a>) -> MwBind<'a> {
    MwBind { wr_id, send_flags: SendFlags::SIGNALED, bind_info: info }
}

/// Writes 8 bytes from A to B's memory at `addr`; returns the status.
fn write(p: &Pair, addr: u64, key: u32) -> WcStatus {
    p.a.post_send(&[SendWr::write(99, &[], addr, key).inline(b"windowed").signaled()]).unwrap();
    p.done_a(1)[0].status
}

#[track_caller]
fn refused<T: core::fmt::Debug>(result: Result<T, VerbsError>, errno: i32, word: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.errno(), errno, "{error}");
    assert!(error.to_string().contains(word), "{error}");
}

// C01 of BIND_MW: the number of the completion, its tag and its queue pair.
#[test]
fn c01_r58_type_1_window() {
    let p = Pair::new(embedded());
    let (mr, mw) = (region(&p), p.pd.alloc_mw(MwType::One).unwrap());
    let first = mw.rkey();
    let info = MwBindInfo::new(&mr, 1024..2048, Access::REMOTE_WRITE).unwrap();
    let key = p.b.bind_mw(&mw, &bind_of(7, info)).unwrap();
    assert_eq!((key, mw.rkey()), (inc_rkey(first), key));
    let wc = p.done_b(1)[0];
    assert_eq!(
        (wc.status, wc.opcode, wc.wr_id, wc.qp_num),
        (WcStatus::Success, WcOpcode::BindMw, 7, p.b.qp_num())
    );
    assert_eq!(write(&p, mr.addr() + 2040, key), WcStatus::Success);
    assert_eq!(mr.to_vec(2039..2049).unwrap(), b"\xb0windowed\xb0");
    // Bound again: the old key is invalid, and the new one valid through either queue pair of the domain.
    let info = MwBindInfo::new(&mr, 0..8, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
    let next = p.a.bind_mw(&mw, &bind_of(8, info)).unwrap();
    assert!(p.done_a(1)[0].is_ok());
    assert_eq!(write(&p, mr.addr(), next), WcStatus::Success);
    assert_eq!(write(&p, mr.addr(), key), WcStatus::RemAccessErr);
}

#[test]
fn r58_type_1_window_after_unbind() {
    for outside in [false, true] {
        let p = Pair::new(embedded());
        let (mr, mw) = (region(&p), p.pd.alloc_mw(MwType::One).unwrap());
        let info = MwBindInfo::new(&mr, 64..128, Access::REMOTE_WRITE).unwrap();
        let key = p.b.bind_mw(&mw, &bind_of(1, info)).unwrap();
        if outside {
            assert_eq!(write(&p, mr.addr() + 121, key), WcStatus::RemAccessErr);
            continue;
        }
        assert_eq!(write(&p, mr.addr() + 64, key), WcStatus::Success);
        p.b.bind_mw(&mw, &bind_of(2, MwBindInfo::unbind())).unwrap();
        assert!(p.done_b(2).iter().all(Wc::is_ok));
        mr.dereg().unwrap(); // nothing is bound to it any more
        let other = region(&p);
        assert_eq!(write(&p, other.addr(), key), WcStatus::RemAccessErr);
    }
}

// Goal: a bind, accesses through it and its invalidation are requests of one queue, and the next user needs another key.
#[test]
fn c01_r59_type_2_window() {
    let p = Pair::new(embedded());
    let (mr, mw) = (region(&p), p.pd.alloc_mw(MwType::Two).unwrap());
    let zero_based = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::ZERO_BASED;
    let info = MwBindInfo::new(&mr, 512..1024, zero_based).unwrap();
    let key = inc_rkey(mw.rkey());
    p.b.post_send(&[SendWr::bind_mw(1, &mw, key, &info).unwrap().signaled()]).unwrap();
    assert_eq!(p.done_b(1)[0].opcode, WcOpcode::BindMw);
    assert_eq!(write(&p, 0, key), WcStatus::Success, "addresses are offsets");
    assert_eq!(mr.to_vec(512..520).unwrap(), b"windowed");
    p.a.post_send(&[SendWr::read(2, &[p.mr.sge(0..8).unwrap()], 0, key).signaled()]).unwrap();
    assert!(p.done_a(1)[0].is_ok());
    assert_eq!(p.mr.to_vec(0..8).unwrap(), b"windowed");
    // Invalidated, and bound again under the next key.
    let next = inc_rkey(key);
    p.b.post_send(&[
        SendWr::local_inv(3, key).signaled(),
        SendWr::bind_mw(4, &mw, next, &info).unwrap().signaled(),
    ])
    .unwrap();
    let done = p.done_b(2);
    assert_eq!((done[0].opcode, done[0].wr_id, done[1].opcode), (WcOpcode::LocalInv, 3, WcOpcode::BindMw));
    assert_eq!(write(&p, 8, next), WcStatus::Success);
    // B's peer invalidates the window.
    p.b.post_recv(&[RecvWr::new(5, &[])]).unwrap();
    p.a.post_send(&[SendWr::send_with_inv(6, &[], next).signaled()]).unwrap();
    assert_eq!(p.done_b(1)[0].invalidated_rkey(), Some(next));
    assert!(p.done_a(1)[0].is_ok());
    assert_eq!(write(&p, 0, next), WcStatus::RemAccessErr);
}

#[test]
fn r59_type_2_window_from_another_queue_pair() {
    let p = Pair::new(embedded());
    let (mr, mw) = (region(&p), p.pd.alloc_mw(MwType::Two).unwrap());
    let connected = |to: Option<&Qp>| {
        let qp = p.pd.create_qp(&QpInitAttr::rc(&p.cq_a, &p.cq_a)).unwrap();
        if let Some(to) = to {
            qp.connect_rc(&to.endpoint(1).unwrap(), &options()).unwrap();
            to.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
        }
        qp
    };
    let target = connected(None);
    let source = connected(Some(&target));
    let info = MwBindInfo::new(&mr, 0..64, Access::REMOTE_WRITE).unwrap();
    let key = inc_rkey(mw.rkey());
    p.b.post_send(&[SendWr::bind_mw(1, &mw, key, &info).unwrap().signaled()]).unwrap();
    assert!(p.done_b(1)[0].is_ok());
    assert_eq!(write(&p, mr.addr(), key), WcStatus::Success);
    source.post_send(&[SendWr::write(2, &[], mr.addr(), key).inline(b"x").signaled()]).unwrap();
    assert_eq!(p.done_a(1)[0].status, WcStatus::RemAccessErr);
    assert_eq!(p.b.state().unwrap(), QpState::Rts);
    assert_eq!(write(&p, mr.addr(), key), WcStatus::Success, "the window is as it was");
}

#[test]
fn binds_that_are_not_possible() {
    let p = Pair::new(embedded());
    let (one, two) = (p.pd.alloc_mw(MwType::One).unwrap(), p.pd.alloc_mw(MwType::Two).unwrap());
    let (mr, before) = (region(&p), one.rkey());
    let info = MwBindInfo::new(&mr, 0..64, Access::REMOTE_READ).unwrap();
    refused(p.b.bind_mw(&two, &bind_of(1, info)), EINVAL, "type 1");
    refused(SendWr::bind_mw(1, &one, one.rkey(), &info), EINVAL, "type 2");
    refused(SendWr::bind_mw(1, &two, two.rkey() ^ 0x100, &info), EINVAL, "low 8 bits");
    refused(p.b.bind_mw(&one, &bind_of(1, MwBindInfo { mr: None, ..info })), EINVAL, "no memory region");
    refused(MwBindInfo::new(&mr, 4000..4097, Access::empty()), EINVAL, "not inside");
    let pd = p.context.alloc_pd().unwrap();
    let foreign = pd.reg_mr(64, Access::MW_BIND).unwrap();
    let wrong = MwBindInfo::new(&foreign, 0..64, Access::REMOTE_READ).unwrap();
    refused(p.b.bind_mw(&one, &bind_of(1, wrong)), EPERM, "another protection domain");
    let window = pd.alloc_mw(MwType::One).unwrap();
    refused(p.b.bind_mw(&window, &bind_of(1, MwBindInfo::unbind())), EPERM, "another protection domain");
    assert_eq!(one.rkey(), before, "a bind that is refused changes no key");
    assert_no_completion(&p.context, &p.cq_b);
    // An error that shows only when the request executes ends the queue pair: here, a region without MW_BIND.
    let info = MwBindInfo::new(&p.mr, 0..64, Access::REMOTE_READ).unwrap();
    p.b.bind_mw(&one, &bind_of(9, info)).unwrap();
    let wc = p.done_b(1)[0];
    assert_eq!((wc.wr_id, wc.status), (9, WcStatus::MwBindErr));
    assert_eq!(p.b.state().unwrap(), QpState::Err);
}

// Goal: a region with bound windows cannot be destroyed; a deallocated window releases it; dropping the region unbinds them.
#[test]
fn regions_with_windows() {
    let p = Pair::new(embedded());
    let (mr, mw) = (region(&p), p.pd.alloc_mw(MwType::One).unwrap());
    fn info(mr: &Mr) -> MwBindInfo<'_> {
        MwBindInfo::new(mr, 0..64, Access::REMOTE_WRITE).unwrap()
    }
    let key = p.b.bind_mw(&mw, &bind_of(1, info(&mr))).unwrap();
    p.done_b(1);
    let (error, mut mr) = mr.dereg().unwrap_err();
    assert_eq!(error.errno(), EBUSY, "{error}");
    let change = verbs::Rereg { access: Some(all_rights()), ..Default::default() };
    refused(mr.rereg(&change), EBUSY, "in use by 1");
    assert_eq!(write(&p, mr.addr(), key), WcStatus::Success, "nothing has changed");
    let (error, pd) = p.pd.dealloc().map(|()| unreachable!("it is in use")).unwrap_err();
    assert_eq!(error.errno(), EBUSY);
    let p = Pair { pd, ..p };
    mw.dealloc().unwrap();
    mr.dereg().unwrap();

    let (mr, mw) = (region(&p), p.pd.alloc_mw(MwType::One).unwrap());
    let key = p.b.bind_mw(&mw, &bind_of(1, info(&mr))).unwrap();
    p.done_b(1);
    let addr = mr.addr();
    drop(mr);
    assert_eq!(write(&p, addr, key), WcStatus::RemAccessErr);
    // The window object still exists, and can be deallocated.
    mw.dealloc().unwrap();
}

#[test]
fn many_windows_come_and_go() {
    let p = Pair::new(device());
    let mr = region(&p);
    for round in 0..300u64 {
        let mw = p.pd.alloc_mw(if round % 2 == 0 { MwType::One } else { MwType::Two }).unwrap();
        let info = MwBindInfo::new(&mr, 0..64, Access::REMOTE_WRITE).unwrap();
        let key = if round % 2 == 0 {
            p.b.bind_mw(&mw, &bind_of(round, info)).unwrap()
        } else {
            let key = inc_rkey(mw.rkey());
            p.b.post_send(&[SendWr::bind_mw(round, &mw, key, &info).unwrap().signaled()]).unwrap();
            key
        };
        assert_eq!(take(&p.context, &p.cq_b, 1)[0].wr_id, round);
        assert_eq!(write(&p, mr.addr(), key), WcStatus::Success);
        mw.dealloc().unwrap();
    }
    mr.dereg().unwrap();
}
