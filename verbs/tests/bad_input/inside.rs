//! Control calls inside a turn of a shard, on the thread that makes the turn: each would deadlock, so each must return an error and
//! change nothing. Calls that consume an object must return it.

use std::sync::Mutex;
use std::time::Duration;

use verbs::errno::EDEADLK;
use verbs::{
    Access, AttrMask, CompChannel, Cq, CqInitAttr, DrainKind, Gid, Mr, Mw, MwType, Qp, QpAttr, QpInitAttr,
    QpState, Qpn, Rereg, Srq, SrqAttr, SrqAttrMask, SrqInitAttr, VerbsError, XrcTarget, Xrcd, XrcdInitAttr,
    attr_rtr, attr_to,
};

use super::bench::{Bench, Case, Refusal, back, err};
use crate::common::{PATIENCE, options};

/// Objects to destroy, one of each kind, which a case can take.
pub struct Spare {
    pub qp: Place<Qp>,
    pub target: Place<XrcTarget>,
    pub srq: Place<Srq>,
    pub xrc_srq: Place<Srq>,
    pub cq: Place<Cq>,
    pub mw: Place<Mw>,
    pub mr: Place<Mr>,
    pub receiver: Qpn,
    pub xrcd: Place<Xrcd>,
    pub channel: CompChannel,
}

pub type Place<T> = Mutex<Option<T>>;

fn place<T>(object: T) -> Place<T> {
    Mutex::new(Some(object))
}

impl Spare {
    pub fn new(b: &Bench) -> Self {
        let xrcd = b.context.open_xrcd(&XrcdInitAttr::named("spare")).unwrap();
        let (attr, _) = attr_rtr(b.gid(), 1, b.a.qp_num(), b.a.first_psn(), verbs::Mtu::Mtu1024);
        let channel = b.context.create_comp_channel().unwrap();
        let init = SrqInitAttr::new(4, 1);
        Self {
            qp: place(b.ud()),
            target: place(xrcd.create_qp(None).unwrap()),
            srq: place(b.pd.create_srq(&init).unwrap()),
            xrc_srq: place(b.pd.create_xrc_srq(&init, &xrcd, &b.cq).unwrap()),
            cq: place(b.context.create_cq_ex(&CqInitAttr::new(4).channel(&channel)).unwrap()),
            mw: place(b.pd.alloc_mw(MwType::One).unwrap()),
            mr: place(b.pd.reg_mr(64, Access::empty()).unwrap()),
            receiver: xrcd.alloc_xrc_rcv_qp(&QpAttr { port_num: 1, ..attr }).unwrap(),
            xrcd: place(xrcd),
            channel,
        }
    }

    /// Checks that all of them are still there, and destroys them.
    pub fn close(self) {
        fn taken<T>(place: Place<T>) -> T {
            place.into_inner().unwrap().expect("it came back")
        }
        let ok = |result: Result<(), VerbsError>| result.unwrap();
        let qp = taken(self.qp);
        assert_eq!(qp.state().unwrap(), QpState::Rts);
        ok(qp.destroy().map_err(|(e, _)| e));
        ok(taken(self.target).destroy().map_err(|(e, _)| e));
        ok(taken(self.srq).destroy().map_err(|(e, _)| e));
        ok(taken(self.xrc_srq).destroy().map_err(|(e, _)| e));
        ok(taken(self.cq).destroy().map_err(|(e, _)| e));
        ok(taken(self.mw).dealloc().map_err(|(e, _)| e));
        ok(taken(self.mr).dereg().map_err(|(e, _)| e));
        let xrcd = taken(self.xrcd);
        assert_eq!(xrcd.query_xrc_rcv_qp(self.receiver).unwrap().qp_state, QpState::Rtr);
        ok(xrcd.close().map_err(|(e, _)| e));
        ok(self.channel.destroy().map_err(|(e, _)| e));
    }
}

/// A call that changes an object.
fn change<T>(place: &Place<T>, call: impl FnOnce(&mut T) -> Refusal) -> Refusal {
    call(place.lock().unwrap().as_mut().expect("it is there"))
}

/// A call that consumes an object, and must return it.
fn give_up<T>(place: &Place<T>, call: impl FnOnce(T) -> Result<(), (VerbsError, T)>) -> Refusal {
    let mut place = place.lock().unwrap();
    let (refusal, object) = back(call(place.take().expect("it is there")));
    *place = Some(object);
    refusal
}

const fn case(call: &'static str, run: fn(&Bench) -> Refusal) -> Case {
    Case { call, variant: "DeviceError::InsideTurn", errno: EDEADLK, run, inside: true }
}

fn to_err() -> (QpAttr, AttrMask) {
    attr_to(QpState::Err)
}

pub const CASES: &[Case] = &[
    case("Context::start", |b| err(b.context.start())),
    case("Context::add_address", |b| err(b.context.add_address([192, 0, 2, 77], 24))),
    case("Context::remove_address", |b| err(b.context.remove_address([192, 0, 2, 1]))),
    case("Reactor::try_poll_once", |b| {
        assert_eq!(b.context.reactor(0).unwrap().poll_once(), None);
        assert_eq!(b.other.context.reactor(0).unwrap().poll_once(), None);
        err(b.context.reactor(0).unwrap().try_poll_once())
    }),
    case("Context::get_async_event", |b| err(b.context.get_async_event(PATIENCE))),
    case("CompChannel::get_cq_event", |b| err(b.spare().channel.get_cq_event(PATIENCE))),
    case("Cq::resize", |b| err(b.cq.resize(128))),
    case("CqPoller::resize", |b| err(b.cq.poller().unwrap().resize(128))),
    case("Pd::create_qp", |b| err(b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq)))),
    case("Pd::create_xrc_srq", |b| {
        change(&b.spare().xrcd, |xrcd| err(b.pd.create_xrc_srq(&SrqInitAttr::new(1, 1), xrcd, &b.cq)))
    }),
    case("Qp::modify", |b| {
        let (attr, mask) = to_err();
        err(b.a.modify(&attr, mask))
    }),
    case("Qp::query", |b| err(b.a.query().map(drop))),
    case("Qp::check_peer", |b| err(b.a.check_peer().map(drop))),
    case("Qp::init_rc", |b| err(b.a.init_rc(&options()))),
    case("Qp::drain_qp", |b| err(b.a.drain_qp(PATIENCE))),
    case("Qp::drain_sq", |b| err(b.a.drain_sq(PATIENCE))),
    case("Qp::drain_rq", |b| err(b.a.drain_rq(PATIENCE))),
    case("Qp::drain_by_sqd", |b| err(b.a.drain_by_sqd(PATIENCE))),
    case("Qp::begin_drain", |b| err(b.a.begin_drain(DrainKind::Qp).map(drop))),
    case("Qp::attach_mcast", |b| {
        change(&b.spare().qp, |qp| err(qp.attach_mcast(Gid::v4([239, 1, 1, 1]), 0)))
    }),
    case("Qp::detach_mcast", |b| {
        change(&b.spare().qp, |qp| err(qp.detach_mcast(Gid::v4([239, 1, 1, 1]), 0)))
    }),
    case("Qp::destroy", |b| give_up(&b.spare().qp, Qp::destroy)),
    case("Qp::destroy_wait", |b| give_up(&b.spare().qp, |qp| qp.destroy_wait(Duration::from_secs(5)))),
    case("Srq::modify", |b| {
        let attr = SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 };
        change(&b.spare().srq, |srq| {
            let refusal = err(srq.modify(&attr, SrqAttrMask::MAX_WR));
            assert_eq!(srq.query().unwrap().max_wr, 4);
            refusal
        })
    }),
    case("Srq::destroy", |b| {
        give_up(&b.spare().xrc_srq, Srq::destroy);
        give_up(&b.spare().srq, Srq::destroy)
    }),
    case("Srq::destroy_wait", |b| give_up(&b.spare().srq, |srq| srq.destroy_wait(Duration::from_secs(5)))),
    case("Mr::rereg", |b| {
        change(&b.spare().mr, |mr| {
            let refusal = err(mr.rereg(&Rereg { len: Some(128), ..Rereg::default() }));
            assert_eq!(mr.len(), 64);
            refusal
        })
    }),
    case("Mr::dereg", |b| give_up(&b.spare().mr, Mr::dereg)),
    case("Mw::dealloc", |b| give_up(&b.spare().mw, Mw::dealloc)),
    case("Xrcd::create_qp", |b| change(&b.spare().xrcd, |xrcd| err(xrcd.create_qp(None)))),
    case("Xrcd::alloc_xrc_rcv_qp", |b| {
        change(&b.spare().xrcd, |xrcd| err(xrcd.alloc_xrc_rcv_qp(&QpAttr::default())))
    }),
    case("Xrcd::accept_xrc", |b| {
        let peer = b.a.endpoint(1).unwrap();
        change(&b.spare().xrcd, |xrcd| err(xrcd.accept_xrc(&peer, &options())))
    }),
    case("Xrcd::modify_xrc_rcv_qp", |b| {
        let ((attr, mask), qpn) = (to_err(), b.spare().receiver);
        change(&b.spare().xrcd, |xrcd| err(xrcd.modify_xrc_rcv_qp(qpn, &attr, mask)))
    }),
    case("Xrcd::query_xrc_rcv_qp", |b| {
        change(&b.spare().xrcd, |xrcd| err(xrcd.query_xrc_rcv_qp(b.spare().receiver)))
    }),
    case("Xrcd::unreg_xrc_rcv_qp", |b| {
        change(&b.spare().xrcd, |xrcd| err(xrcd.unreg_xrc_rcv_qp(b.spare().receiver)))
    }),
    case("Xrcd::close", |b| give_up(&b.spare().xrcd, Xrcd::close)),
    case("XrcTarget::modify", |b| {
        let (attr, mask) = to_err();
        change(&b.spare().target, |target| err(target.modify(&attr, mask)))
    }),
    case("XrcTarget::query", |b| change(&b.spare().target, |target| err(target.query()))),
    case("XrcTarget::connect", |b| {
        let peer = b.a.endpoint(1).unwrap();
        change(&b.spare().target, |target| err(target.connect(&peer, &options())))
    }),
    case("XrcTarget::destroy", |b| give_up(&b.spare().target, XrcTarget::destroy)),
];

#[test]
fn calls_from_inside_a_turn() {
    super::bench::run(CASES);
}
