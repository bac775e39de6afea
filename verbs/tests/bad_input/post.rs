//! Calls that post.

use verbs::errno::{EBUSY, EDEADLK, EINVAL, ENOMEM, EPERM};
use verbs::{
    Access, FlushLevel, FlushPlacement, MwBindInfo, MwType, Qp, QpInitAttr, QpState, QpType, RecvWr,
    SendFlags, SendOpsFlags, SendWr, Sge, SrqInitAttr, WrPost, ah_attr_to,
};

use super::bench::{Bench, CAP, Case, Refusal, at, case, err};
use crate::common::{enter, options};

/// Posts a request that must be refused, alone and after a valid one. Only the valid request may be posted, so the list goes to a queue
/// pair that does not matter.
fn sent(b: &Bench, qp: &Qp, wr: SendWr<'_>) -> Refusal {
    let refusal = at(0, qp.post_send(&[wr]));
    let (mut send, _recv) = qp.split().unwrap();
    assert_eq!(send.free(), 8);
    assert_eq!(at(0, send.post_send(&[wr, SendWr::send(1, &[])])), refusal, "split off, the same");
    assert_eq!(send.free(), 8);
    drop((send, _recv));
    let _ = b;
    refusal
}

/// Builds a list by calls: a valid request, then the one in question. Nothing may be posted.
fn built<'b>(b: &'b Bench, build: impl FnOnce(&mut WrPost<'b>)) -> Refusal {
    let mut wr = b.a.wr_start();
    wr.rdma_write(b.mr.rkey(), b.mr.addr());
    build(&mut wr);
    at(1, wr.complete())
}

pub const CASES: &[Case] = &[
    case("Qp::post_send", "PostErrorKind::State", EINVAL, |b| {
        let qp = b.qp(QpType::Rc);
        let refusal = at(0, qp.post_send(&[SendWr::send(1, &[]); 2]));
        qp.init_rc(&options()).unwrap();
        at(0, qp.post_send(&[SendWr::send(1, &[])]));
        qp.post_send(std::iter::empty::<SendWr<'_>>()).unwrap();
        qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
        assert_eq!(qp.split().unwrap().0.free(), 8);
        refusal
    }),
    case("Qp::post_send", "PostErrorKind::Full", ENOMEM, |b| {
        // Nothing drives the second device.
        let (pd, cq) = (&b.other.pd, &b.other.cq);
        let qp = pd.create_qp(&QpInitAttr::rc(cq, cq).cap(CAP)).unwrap();
        qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
        qp.post_send(&[SendWr::send(1, &[]); 3]).unwrap();
        let refusal = at(5, qp.post_send(&[SendWr::send(1, &[]); 8]));
        at(0, qp.post_send(&[SendWr::send(1, &[])]));
        let (mut send, _recv) = qp.split().unwrap();
        assert_eq!(send.free(), 0);
        at(0, send.post_send(&[SendWr::send(1, &[])]));
        refusal
    }),
    case("Qp::post_send", "PostErrorKind::TooManySge", EINVAL, |b| {
        sent(b, &b.a, SendWr::send(1, &[b.mr.sge(0..1).unwrap(); 4]))
    }),
    case("Qp::post_send", "PostErrorKind::InlineTooLong", EINVAL, |b| {
        sent(b, &b.a, SendWr::send(1, &[]).inline(&[0; 61]))
    }),
    case("Qp::post_send", "PostErrorKind::InlineNotAllowed", EINVAL, |b| {
        sent(b, &b.a, SendWr::local_inv(1, b.mr.rkey()).inline(b"x"));
        sent(b, &b.a, SendWr::read(1, &[], b.mr.addr(), b.mr.rkey()).inline(b"x"))
    }),
    case("Qp::post_send", "PostErrorKind::Opcode", EINVAL, |b| {
        let (uc, ud) = (b.uc(), b.ud());
        sent(b, &uc, SendWr::read(1, &[], 0, 0));
        sent(b, &uc, SendWr::send_with_inv(1, &[], 0));
        sent(b, &ud, SendWr::write(1, &[], 0, 0));
        sent(b, &ud, SendWr::local_inv(1, 0))
    }),
    case("Qp::post_send", "PostErrorKind::AtomicLength", EINVAL, |b| {
        sent(b, &b.a, SendWr::fetch_and_add(1, &[b.mr.sge(0..7).unwrap()], 0, 0, 1));
        sent(b, &b.a, SendWr::atomic_write(1, &[], 0, 0).inline(&[0; 9]));
        sent(b, &b.a, SendWr::cmp_and_swp(1, &[], 0, 0, 1, 2))
    }),
    case("Qp::post_send", "PostErrorKind::AtomicAddress", EINVAL, |b| {
        sent(b, &b.a, SendWr::atomic_write(1, &[], 4, 0).inline(&[0; 8]));
        sent(b, &b.a, SendWr::fetch_and_add(1, &[b.mr.sge(0..8).unwrap()], u64::MAX, 0, 1))
    }),
    case("Qp::post_send", "PostErrorKind::NoPlacement", EINVAL, |b| {
        sent(b, &b.a, SendWr::flush(1, 0, 8, 0, FlushPlacement::empty(), FlushLevel::Mr))
    }),
    case("Qp::post_send", "PostErrorKind::TooLong", EINVAL, |b| {
        let sge = Sge { addr: b.mr.addr(), length: u32::MAX, lkey: b.mr.lkey() };
        sent(b, &b.a, SendWr::write(1, &[sge; 3], 0, 0));
        sent(b, &b.a, SendWr::read(1, &[Sge { length: (1 << 31) + 1, ..sge }], 0, 0));
        sent(b, &b.a, SendWr::flush(1, 0, u32::MAX, 0, FlushPlacement::GLOBAL, FlushLevel::Range))
    }),
    case("Qp::post_send", "PostErrorKind::NoAddress", EINVAL, |b| sent(b, &b.ud(), SendWr::send(1, &[]))),
    case("Qp::post_send", "PostErrorKind::UnexpectedAddress", EINVAL, |b| {
        let ah = b.pd.create_ah(&ah_attr_to(b.gid(), 1)).unwrap();
        sent(b, &b.a, SendWr::send(1, &[]).to(&ah, b.b.qp_num(), 1));
        sent(b, &b.uc(), SendWr::send(1, &[]).to(&ah, b.b.qp_num(), 1))
    }),
    case("Qp::post_send", "PostErrorKind::ForeignAh", EINVAL, |b| {
        let pd = b.context.alloc_pd().unwrap();
        let (ud, attr) = (b.ud(), ah_attr_to(b.gid(), 1));
        for pd in [&pd, &b.other.pd] {
            sent(b, &ud, SendWr::send(1, &[]).to(&pd.create_ah(&attr).unwrap(), ud.qp_num(), 5));
        }
        let ah = pd.create_ah(&attr).unwrap();
        sent(b, &ud, SendWr::send(1, &[]).to(&ah, ud.qp_num(), 5))
    }),
    case("Qp::post_send", "PostErrorKind::NoSrqn", EINVAL, |b| {
        let qp = b.qp(QpType::XrcIni);
        qp.connect_rc(&b.a.endpoint(1).unwrap(), &options()).unwrap();
        at(0, qp.post_send(&[SendWr::send(1, &[])]))
    }),
    case("Qp::post_send", "PostErrorKind::BadSrqn", EINVAL, |b| {
        let qp = b.qp(QpType::XrcIni);
        qp.connect_rc(&b.a.endpoint(1).unwrap(), &options()).unwrap();
        at(0, qp.post_send(&[SendWr::send(1, &[]).remote_srqn(1 << 24)]));
        sent(b, &b.a, SendWr::send(1, &[]).remote_srqn(0))
    }),
    case("Qp::post_send", "PostErrorKind::Split", EBUSY, |b| {
        let _handles = b.a.split().unwrap();
        at(0, b.a.post_send(&[SendWr::send(1, &[])]))
    }),
    case("Qp::post_send", "PostErrorKind::InsideCall", EDEADLK, |b| {
        // From the iterator of a list, and within a list that is built by calls.
        let mut refusal = None;
        b.a.post_send((0..1).filter_map(|_| {
            refusal = Some(at(0, b.a.post_send([SendWr::send(1, &[])])));
            None::<SendWr<'_>>
        }))
        .unwrap();
        let list = b.a.wr_start();
        assert_eq!(Some(at(0, b.a.post_send([SendWr::send(1, &[])]))), refusal);
        list.abort();
        refusal.unwrap()
    }),
    case("Qp::split", "DeviceError::InsideCall", EDEADLK, |b| {
        let _list = b.a.wr_start();
        err(b.a.split())
    }),
    case("WrPost::complete", "PostErrorKind::InsideCall", EDEADLK, |b| {
        let _first = b.a.wr_start();
        let mut second = b.a.wr_start();
        second.send();
        at(0, second.complete())
    }),
    case("Qp::post_recv", "PostErrorKind::InsideCall", EDEADLK, |b| {
        let mut refusal = None;
        b.a.post_recv((0..1).filter_map(|_| {
            refusal = Some(at(0, b.a.post_recv([RecvWr::new(1, &[])])));
            None::<RecvWr<'_>>
        }))
        .unwrap();
        refusal.unwrap()
    }),
    case("SendQueue::post_send", "PostErrorKind::State", EINVAL, |b| {
        let qp = b.qp(QpType::Rc);
        let (mut send, _recv) = qp.split().unwrap();
        at(0, send.post_send(&[SendWr::send(1, &[])]))
    }),
    case("Qp::post_recv", "PostErrorKind::State", EINVAL, |b| {
        let qp = b.qp(QpType::Rc);
        let refusal = at(0, qp.post_recv(&[RecvWr::new(1, &[]); 2]));
        assert_eq!(qp.split().unwrap().1.free(), 8);
        // RESET after a connection is like RESET before it.
        let qp = b.uc();
        enter(&qp, QpState::Reset);
        at(0, qp.post_recv(&[RecvWr::new(1, &[])]));
        refusal
    }),
    case("Qp::post_recv", "PostErrorKind::Full", ENOMEM, |b| {
        let qp = b.uc();
        let refusal = at(8, qp.post_recv(&[RecvWr::new(1, &[]); 9]));
        at(0, qp.post_recv(&[RecvWr::new(1, &[])]));
        refusal
    }),
    case("Qp::post_recv", "PostErrorKind::TooManySge", EINVAL, |b| {
        at(0, b.a.post_recv(&[RecvWr::new(1, &[b.mr.sge(0..1).unwrap(); 3])]))
    }),
    case("Qp::post_recv", "PostErrorKind::SharedReceiveQueue", EINVAL, |b| {
        let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
        let qp = b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq).srq(&srq)).unwrap();
        let refusal = at(0, qp.post_recv(&[RecvWr::new(1, &[])]));
        assert_eq!(at(0, qp.split().unwrap().1.post_recv(&[RecvWr::new(1, &[])])), refusal);
        assert_eq!(srq.waiting().unwrap(), 0);
        refusal
    }),
    case("Qp::post_recv", "PostErrorKind::NoReceiveQueue", EINVAL, |b| {
        at(0, b.qp(QpType::XrcIni).post_recv(&[RecvWr::new(1, &[])]))
    }),
    case("Qp::post_recv", "PostErrorKind::Split", EBUSY, |b| {
        let _handles = b.a.split().unwrap();
        at(0, b.a.post_recv(&[RecvWr::new(1, &[])]))
    }),
    case("RecvQueue::post_recv", "PostErrorKind::TooManySge", EINVAL, |b| {
        let (_send, mut recv) = b.a.split().unwrap();
        let refusal = at(0, recv.post_recv(&[RecvWr::new(1, &[b.mr.sge(0..1).unwrap(); 3])]));
        assert_eq!(recv.free(), 8);
        refusal
    }),
    case("WrPost::complete", "PostErrorKind::NoData", EINVAL, |b| {
        built(b, |wr| {
            wr.local_inv(1);
            wr.set_sge(0, 0, 0);
        })
    }),
    case("WrPost::complete", "PostErrorKind::NoRequest", EINVAL, |b| {
        let mut wr = b.a.wr_start();
        wr.set_inline_data(b"x");
        wr.send();
        at(0, wr.complete())
    }),
    case("WrPost::complete", "PostErrorKind::Flags", EINVAL, |b| {
        built(b, |wr| {
            wr.wr_flags = SendFlags::from_bits_retain(1 << 30);
            wr.send();
        })
    }),
    case("WrPost::complete", "PostErrorKind::NotAskedFor", EINVAL, |b| {
        let init = QpInitAttr::rc(&b.cq, &b.cq).send_ops_flags(SendOpsFlags::empty());
        let qp = b.pd.create_qp(&init).unwrap();
        qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
        let mut wr = qp.wr_start();
        wr.send();
        at(0, wr.complete())
    }),
    case("WrPost::complete", "BindError::OtherPd", EPERM, |b| {
        let mw = b.other.pd.alloc_mw(MwType::Two).unwrap();
        let info = MwBindInfo::new(&b.mr, 0..8, Access::REMOTE_READ).unwrap();
        built(b, |wr| wr.bind_mw(&mw, verbs::inc_rkey(mw.rkey()), &info))
    }),
    case("WrPost::complete", "PostErrorKind::Full", ENOMEM, |b| {
        let mut wr = b.a.wr_start();
        for _ in 0..9 {
            wr.send();
        }
        at(8, wr.complete())
    }),
];

#[test]
fn calls_that_post() {
    super::bench::run(CASES);
}
