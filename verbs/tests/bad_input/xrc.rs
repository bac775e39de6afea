//! Calls of XRC domains and targets.

use verbs::errno::{EBUSY, EEXIST, EINVAL, ENOENT, EOPNOTSUPP};
use verbs::limits::RD_ATOMIC_MAX;
use verbs::{
    Access, DomainFile, Mtu, QpAttr, QpState, Qpn, SrqInitAttr, XrcTarget, Xrcd, XrcdInitAttr, XrcdOflags,
    XrcdOwner, attr_init, attr_rtr, attr_to,
};

use super::bench::{Bench, Case, back, case, err};
use crate::common::options;

fn domain(b: &Bench) -> Xrcd {
    b.context.open_xrcd(&XrcdInitAttr::anonymous()).unwrap()
}

/// Attributes of a receive-only target.
fn receiver(b: &Bench) -> QpAttr {
    let (attr, _) = attr_rtr(b.gid(), 1, b.a.qp_num(), b.a.first_psn(), Mtu::Mtu1024);
    QpAttr { port_num: 1, qp_access_flags: Access::REMOTE_WRITE.bits(), ..attr }
}

/// Makes a call on a receive-only target with numbers that it must refuse: unused, of an ordinary queue pair, of a target of another domain.
fn strangers(b: &Bench, call: impl Fn(&Xrcd, Qpn) -> super::bench::Refusal) -> super::bench::Refusal {
    let (xrcd, other) = (domain(b), domain(b));
    let theirs = other.alloc_xrc_rcv_qp(&receiver(b)).unwrap();
    let handle = xrcd.create_qp(None).unwrap();
    let refusals = [Qpn::new(0), b.a.qp_num(), theirs, handle.qp_num()].map(|qpn| call(&xrcd, qpn));
    for refusal in &refusals {
        assert_eq!(refusal.variant, "DeviceError::NoSuchTarget");
    }
    assert_eq!(other.query_xrc_rcv_qp(theirs).unwrap().qp_state, QpState::Rtr);
    handle.destroy().unwrap();
    for xrcd in [xrcd, other] {
        xrcd.close().unwrap();
    }
    refusals[0].clone()
}

fn target(b: &Bench) -> (Xrcd, XrcTarget) {
    let xrcd = domain(b);
    let target = xrcd.create_qp(None).unwrap();
    (xrcd, target)
}

pub const CASES: &[Case] = &[
    case("Context::open_xrcd", "DeviceError::NoSuchDomain", ENOENT, |b| {
        let init = XrcdInitAttr { create: false, ..XrcdInitAttr::named("nobody") };
        let refusal = err(b.context.open_xrcd(&init));
        err(b.context.open_xrcd(&XrcdInitAttr { create: false, ..XrcdInitAttr::anonymous() }));
        // Names of domains are local to a device.
        let _theirs = b.other.context.open_xrcd(&XrcdInitAttr::named("nobody")).unwrap();
        err(b.context.open_xrcd(&init));
        refusal
    }),
    case("Context::open_xrcd", "DeviceError::DomainExists", EEXIST, |b| {
        let first = b.context.open_xrcd(&XrcdInitAttr::named("one")).unwrap();
        let init = XrcdInitAttr { exclusive: true, ..XrcdInitAttr::named("one") };
        let refusal = err(b.context.open_xrcd(&init));
        first.close().unwrap();
        b.context.open_xrcd(&init).unwrap().close().unwrap();
        refusal
    }),
    // This port does not join processes.
    case("Context::open_xrcd_of", "VerbsError::Xrc", EOPNOTSUPP, |b| {
        let file = std::fs::File::open("/dev/null").unwrap();
        err(b.context.open_xrcd_of(&file, XrcdOflags::CREAT))
    }),
    case("XrcdOwner::serve", "VerbsError::Xrc", EOPNOTSUPP, |b| {
        let file: DomainFile = format!("1:{}", std::process::id()).parse().unwrap();
        let owner = XrcdOwner::new(&file).unwrap().expect("nobody else has this number");
        err(owner.serve(&b.context, std::time::Duration::from_secs(600)))
    }),
    case("Xrcd::close", "DeviceError::Busy", EBUSY, |b| {
        let (xrcd, target) = target(b);
        let (refusal, xrcd) = back(xrcd.close());
        target.destroy().unwrap();
        let srq = b.pd.create_xrc_srq(&SrqInitAttr::new(4, 1), &xrcd, &b.cq).unwrap();
        let (_, xrcd) = back(xrcd.close());
        srq.destroy().unwrap();
        xrcd.close().unwrap();
        refusal
    }),
    case("Xrcd::create_qp", "DeviceError::Range", EINVAL, |b| {
        let xrcd = domain(b);
        let refusal = err(xrcd.create_qp(Some(1)));
        xrcd.close().unwrap();
        refusal
    }),
    case("Xrcd::open_qp", "DeviceError::NoSuchTarget", EINVAL, |b| {
        let (xrcd, target) = target(b);
        let number = target.qp_num();
        let elsewhere = domain(b);
        let refusal = err(elsewhere.open_qp(number));
        err(xrcd.open_qp(b.a.qp_num()));
        target.destroy().unwrap();
        err(xrcd.open_qp(number));
        for xrcd in [xrcd, elsewhere] {
            xrcd.close().unwrap();
        }
        refusal
    }),
    case("Xrcd::alloc_xrc_rcv_qp", "ModifyError::OutOfRange", EINVAL, |b| {
        let xrcd = domain(b);
        let before = b.context.stats().qps_total;
        let refusal = err(xrcd.alloc_xrc_rcv_qp(&QpAttr { min_rnr_timer: 32, ..receiver(b) }));
        assert_eq!(b.context.stats().qps_total, before, "nothing is left of it");
        xrcd.close().unwrap();
        refusal
    }),
    case("Xrcd::accept_xrc", "ModifyError::OutOfRange", EINVAL, |b| {
        let xrcd = domain(b);
        let wrong = options().max_dest_rd_atomic(RD_ATOMIC_MAX + 1);
        let refusal = err(xrcd.accept_xrc(&b.a.endpoint(1).unwrap(), &wrong));
        xrcd.close().unwrap();
        refusal
    }),
    case("Xrcd::modify_xrc_rcv_qp", "DeviceError::NoSuchTarget", EINVAL, |b| {
        let (attr, mask) = attr_to(QpState::Err);
        strangers(b, |xrcd, qpn| err(xrcd.modify_xrc_rcv_qp(qpn, &attr, mask)))
    }),
    case("Xrcd::modify_xrc_rcv_qp", "ModifyError::Illegal", EINVAL, |b| {
        let xrcd = domain(b);
        let qpn = xrcd.alloc_xrc_rcv_qp(&receiver(b)).unwrap();
        let (attr, mask) = attr_init(Access::empty());
        let refusal = err(xrcd.modify_xrc_rcv_qp(qpn, &attr, mask));
        assert_eq!(xrcd.query_xrc_rcv_qp(qpn).unwrap().qp_state, QpState::Rtr);
        xrcd.close().unwrap();
        refusal
    }),
    case("Xrcd::query_xrc_rcv_qp", "DeviceError::NoSuchTarget", EINVAL, |b| {
        strangers(b, |xrcd, qpn| err(xrcd.query_xrc_rcv_qp(qpn)))
    }),
    case("Xrcd::reg_xrc_rcv_qp", "DeviceError::NoSuchTarget", EINVAL, |b| {
        strangers(b, |xrcd, qpn| err(xrcd.reg_xrc_rcv_qp(qpn)))
    }),
    case("Xrcd::unreg_xrc_rcv_qp", "DeviceError::NoSuchTarget", EINVAL, |b| {
        strangers(b, |xrcd, qpn| err(xrcd.unreg_xrc_rcv_qp(qpn)));
        // Through another open of the same domain that is not registered; and after the last one is closed.
        let xrcd = domain(b);
        let again = xrcd.open_again();
        let qpn = xrcd.alloc_xrc_rcv_qp(&receiver(b)).unwrap();
        let refusal = err(again.unreg_xrc_rcv_qp(qpn));
        assert_eq!(again.query_xrc_rcv_qp(qpn).unwrap().qp_state, QpState::Rtr);
        xrcd.unreg_xrc_rcv_qp(qpn).unwrap();
        err(xrcd.unreg_xrc_rcv_qp(qpn));
        for xrcd in [xrcd, again] {
            xrcd.close().unwrap();
        }
        refusal
    }),
    case("XrcTarget::endpoint", "VerbsError::NoSuchIndex", EINVAL, |b| err(target(b).1.endpoint(2))),
    case("XrcTarget::modify", "ModifyError::Illegal", EINVAL, |b| {
        let (_xrcd, target) = target(b);
        let (attr, mask) = attr_to(QpState::Rtr);
        let refusal = err(target.modify(&attr, mask));
        assert_eq!(target.state(), QpState::Reset);
        refusal
    }),
    case("XrcTarget::connect", "AvError::OutOfRange", EINVAL, |b| {
        let (_xrcd, target) = target(b);
        let wrong = options().sgid_index(2);
        err(target.connect(&b.a.endpoint(1).unwrap(), &wrong))
    }),
];

#[test]
fn calls_of_xrc() {
    super::bench::run(CASES);
}
