//! Calls of queue pairs that post nothing, and drains.

use std::time::Duration;

use verbs::errno::{EBUSY, EINVAL, EIO, ENODEV, ENOMEM, EOPNOTSUPP, EPERM, ETIMEDOUT};
use verbs::limits::RD_ATOMIC_MAX;
use verbs::port::PortSpec;
use verbs::{
    Access, AttrMask, Context, DeviceConfig, DrainKind, Gid, PathMigState, Qp, QpAttr, QpCap, QpInitAttr,
    QpState, QpType, SendOpsFlags, SendWr, SrqInitAttr, XrcdInitAttr, attr_init, attr_init_ud, attr_rtr,
    attr_rts, attr_to,
};

use super::bench::{Bench, CAP, Case, Refusal, back, case, err};
use crate::common::{options, pump};

fn create(b: &Bench, change: impl FnOnce(&mut QpInitAttr<'_>)) -> Refusal {
    let mut init = QpInitAttr::rc(&b.cq, &b.cq).cap(CAP);
    change(&mut init);
    err(b.pd.create_qp(&init))
}

fn cap(b: &Bench, change: impl FnOnce(&mut QpCap)) -> Refusal {
    create(b, |init| change(&mut init.cap))
}

/// A call on a new queue pair in `from`, whose state must not change.
fn modify(b: &Bench, from: QpState, change: impl FnOnce(&mut QpAttr, &mut AttrMask)) -> Refusal {
    let qp = b.qp(QpType::Rc);
    let gid = b.gid();
    let steps = [
        attr_init(Access::REMOTE_WRITE),
        attr_rtr(gid, 1, b.a.qp_num(), b.a.first_psn(), verbs::Mtu::Mtu1024),
        attr_rts(qp.first_psn()),
        attr_to(QpState::Sqd),
    ];
    let done = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts]
        .iter()
        .position(|s| *s == from)
        .expect("a state on the way up");
    for (attr, mask) in &steps[..done] {
        qp.modify(attr, *mask).unwrap();
    }
    let (mut attr, mut mask) = steps[done];
    change(&mut attr, &mut mask);
    refused(&qp, &attr, mask)
}

fn refused(qp: &Qp, attr: &QpAttr, mask: AttrMask) -> Refusal {
    let before = qp.query().unwrap().0;
    let refusal = err(qp.modify(attr, mask));
    assert_eq!(qp.query().unwrap().0, before, "{}", refusal.text);
    refusal
}

/// A send on the second device that is retried for ever, and its queue pair.
fn endless(b: &Bench) -> Qp {
    let (pd, cq) = (&b.other.pd, &b.other.cq);
    let qp = pd.create_qp(&QpInitAttr::rc(cq, cq)).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    qp.post_send(&[SendWr::send(1, &[])]).unwrap(); // there is no receive
    (0..20).for_each(|_| pump(&b.other.context));
    qp
}

fn group(n: u8) -> Gid {
    Gid::v4([239, 1, 1, n])
}

pub const CASES: &[Case] = &[
    case("Pd::create_qp", "DeviceError::Range", EINVAL, |b| {
        let device = b.context.query_device();
        cap(b, |cap| cap.max_send_wr = device.max_qp_wr + 1);
        cap(b, |cap| cap.max_recv_wr = device.max_qp_wr + 1);
        cap(b, |cap| cap.max_send_sge = device.max_sge + 1);
        cap(b, |cap| cap.max_recv_sge = device.max_sge + 1);
        cap(b, |cap| cap.max_inline_data = device.max_inline_data + 1);
        create(b, |init| init.shard = Some(1))
    }),
    case("Pd::create_qp", "DeviceError::Foreign", EINVAL, |b| {
        err(b.pd.create_qp(&QpInitAttr::rc(&b.other.cq, &b.cq)));
        err(b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.other.cq)));
        let srq = b.other.pd.create_srq(&SrqInitAttr::new(1, 1)).unwrap();
        err(b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq).srq(&srq)));
        err(b.other.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq)))
    }),
    case("Pd::create_qp", "DeviceError::Unsuitable", EINVAL, |b| {
        let srq = b.pd.create_srq(&SrqInitAttr::new(1, 1)).unwrap();
        err(b.pd.create_qp(&QpInitAttr::xrc_ini(&b.cq).srq(&srq)));
        let xrcd = b.context.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
        let xrc = b.pd.create_xrc_srq(&SrqInitAttr::new(1, 1), &xrcd, &b.cq).unwrap();
        err(b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq).srq(&xrc)));
        let refusal = err(b.pd.create_qp(&QpInitAttr::new(QpType::XrcTgt, &b.cq, &b.cq)));
        xrc.destroy().unwrap();
        xrcd.close().unwrap();
        srq.destroy().unwrap();
        refusal
    }),
    case("Pd::create_qp", "DeviceError::CqOverrun", EIO, |b| {
        let (context, pd) = (&b.other.context, &b.other.pd);
        let cq = context.create_cq(1).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
        qp.post_send(&[SendWr::write(1, &[], 0, 0).signaled(); 40]).unwrap();
        while qp.state().unwrap() != QpState::Err {
            pump(context);
        }
        let refusal = err(pd.create_qp(&QpInitAttr::rc(&cq, &b.other.cq)));
        err(pd.create_qp(&QpInitAttr::rc(&b.other.cq, &cq)));
        qp.destroy().unwrap();
        cq.destroy().unwrap();
        refusal
    }),
    case("Pd::create_qp", "DeviceError::Exists", EINVAL, |b| {
        let init = QpInitAttr::new(QpType::Gsi, &b.cq, &b.cq);
        let gsi = b.pd.create_qp(&init).unwrap();
        let refusal = err(b.pd.create_qp(&init));
        gsi.destroy().unwrap();
        b.pd.create_qp(&init).unwrap().destroy().unwrap();
        refusal
    }),
    case("Pd::create_qp", "DeviceError::Exhausted", ENOMEM, |_| {
        let config = verbs::DeviceConfig::loopback().qps_per_shard(1);
        let context = verbs::Context::open(config).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
        let init = QpInitAttr::rc(&cq, &cq);
        let qp = pd.create_qp(&init).unwrap();
        let refusal = err(pd.create_qp(&init));
        qp.destroy().unwrap();
        pd.create_qp(&init).unwrap();
        refusal
    }),
    case("Pd::create_qp", "VerbsError::SendOps", EOPNOTSUPP, |b| {
        create(b, |init| init.send_ops_flags = Some(SendOpsFlags::from_bits_retain(1 << 63)));
        create(b, |init| (init.qp_type, init.send_ops_flags) = (QpType::Ud, Some(SendOpsFlags::RDMA_READ)));
        create(b, |init| init.send_ops_flags = Some(SendOpsFlags::SEND | SendOpsFlags::TSO))
    }),
    case("Qp::endpoint", "VerbsError::NoSuchIndex", EINVAL, |b| {
        err(b.a.endpoint(2));
        err(b.a.endpoint(255))
    }),
    case("Qp::connect_rc", "VerbsError::WrongState", EINVAL, |b| {
        err(b.a.connect_rc(&b.b.endpoint(1).unwrap(), &options()))
    }),
    case("Qp::connect_rc", "ModifyError::OutOfRange", EINVAL, |b| {
        let qp = b.qp(QpType::Rc);
        qp.init_rc(&options()).unwrap();
        let before = qp.query().unwrap().0;
        let refusal = err(qp.connect_rc(&b.a.endpoint(1).unwrap(), &options().min_rnr_timer(32)));
        assert_eq!(qp.query().unwrap().0, before);
        refusal
    }),
    case("Qp::connect_uc", "VerbsError::WrongState", EINVAL, |b| {
        let qp = b.uc();
        err(qp.connect_uc(&qp.endpoint(1).unwrap(), &options()))
    }),
    case("Qp::activate_ud", "VerbsError::WrongState", EINVAL, |b| err(b.ud().activate_ud(5))),
    case("Qp::activate_ud", "ModifyError::PrivilegedQkey", EPERM, |b| {
        let qp = b.qp(QpType::Ud);
        let refusal = err(qp.activate_ud(0x8000_0000));
        assert_eq!(qp.state().unwrap(), QpState::Reset);
        refusal
    }),
    case("Qp::init_rc", "ModifyError::Illegal", EINVAL, |b| err(b.a.init_rc(&options()))),
    case("Qp::modify", "ModifyError::UnknownAttributes", EOPNOTSUPP, |b| {
        modify(b, QpState::Reset, |_, mask| *mask |= AttrMask::from_bits_retain(1 << 31))
    }),
    case("Qp::modify", "ModifyError::Illegal", EINVAL, |b| {
        modify(b, QpState::Init, |attr, _| attr.qp_state = QpState::Sqd)
    }),
    case("Qp::modify", "ModifyError::Missing", EINVAL, |b| {
        modify(b, QpState::Rtr, |_, mask| mask.remove(AttrMask::TIMEOUT))
    }),
    case("Qp::modify", "ModifyError::Unexpected", EINVAL, |b| {
        modify(b, QpState::Reset, |_, mask| mask.insert(AttrMask::QKEY))
    }),
    case("Qp::modify", "ModifyError::CurState", EINVAL, |b| {
        modify(b, QpState::Rtr, |attr, mask| {
            attr.cur_qp_state = QpState::Sqe;
            mask.insert(AttrMask::CUR_STATE);
        })
    }),
    case("Qp::modify", "AvError::NoSuchGid", EINVAL, |b| {
        // The index of a removed address, between two that exist.
        let (context, pd, cq) = (&b.other.context, &b.other.pd, &b.other.cq);
        context.add_address([192, 0, 2, 50], 24).unwrap();
        context.add_address([192, 0, 2, 51], 24).unwrap();
        context.remove_address([192, 0, 2, 50]).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(cq, cq)).unwrap();
        qp.init_rc(&options()).unwrap();
        let gid = context.query_gid(1, 1).unwrap();
        let (attr, mask) = attr_rtr(gid, 2, qp.qp_num(), qp.first_psn(), verbs::Mtu::Mtu1024);
        refused(&qp, &attr, mask)
    }),
    case("Qp::modify", "ModifyError::Draining", EINVAL, |b| {
        let qp = endless(b);
        let (attr, mask) = attr_to(QpState::Sqd);
        qp.modify(&attr, mask).unwrap();
        let (attr, mask) = attr_to(QpState::Rts);
        refused(&qp, &attr, mask)
    }),
    case("Qp::modify", "ModifyError::OutOfRange", EINVAL, |b| {
        let rtr = |change: fn(&mut QpAttr)| modify(b, QpState::Init, |attr, _| change(attr));
        let rts = |change: fn(&mut QpAttr)| modify(b, QpState::Rtr, |attr, _| change(attr));
        let refusals = [
            modify(b, QpState::Reset, |attr, _| attr.port_num = 2),
            modify(b, QpState::Reset, |attr, _| attr.pkey_index = 1),
            rtr(|attr| attr.path_mtu = 0),
            rtr(|attr| attr.path_mtu = 6),
            rtr(|attr| attr.dest_qp_num = 1 << 24),
            rtr(|attr| attr.max_dest_rd_atomic = RD_ATOMIC_MAX + 1),
            rtr(|attr| attr.min_rnr_timer = 32),
            rts(|attr| attr.timeout = 32),
            rts(|attr| attr.retry_cnt = 8),
            rts(|attr| attr.rnr_retry = 8),
            rts(|attr| attr.max_rd_atomic = RD_ATOMIC_MAX + 1),
        ];
        for refusal in &refusals {
            assert_eq!(refusal.variant, "ModifyError::OutOfRange", "{}", refusal.text);
        }
        refusals[0].clone()
    }),
    case("Qp::modify", "AvError::OutOfRange", EINVAL, |b| {
        let rtr = |change: fn(&mut QpAttr)| modify(b, QpState::Init, |attr, _| change(attr));
        let refusals = [
            rtr(|attr| attr.ah_attr.sl = 8),
            rtr(|attr| attr.ah_attr.port_num = 0),
            rtr(|attr| attr.ah_attr.grh.as_mut().unwrap().flow_label = 1 << 20),
            rtr(|attr| attr.ah_attr.grh.as_mut().unwrap().sgid_index = 2),
        ];
        for refusal in &refusals {
            assert_eq!(refusal.variant, "AvError::OutOfRange", "{}", refusal.text);
        }
        refusals[0].clone()
    }),
    case("Qp::modify", "AvError::NoGrh", EINVAL, |b| {
        modify(b, QpState::Init, |attr, _| attr.ah_attr.grh = None)
    }),
    case("Qp::modify", "AvError::NoDestination", EINVAL, |b| {
        modify(b, QpState::Init, |attr, _| attr.ah_attr.grh.as_mut().unwrap().dgid = Gid::default())
    }),
    case("Qp::modify", "AvError::Family", EINVAL, |b| {
        modify(b, QpState::Init, |attr, _| attr.ah_attr.grh.as_mut().unwrap().sgid_index = 0)
    }),
    case("Qp::modify", "ModifyError::Dgid", EINVAL, |b| {
        modify(b, QpState::Init, |attr, _| attr.ah_attr.grh.as_mut().unwrap().dgid = group(1))
    }),
    case("Qp::modify", "ModifyError::AccessFlags", EINVAL, |b| {
        modify(b, QpState::Reset, |attr, _| attr.qp_access_flags = 1 << 31)
    }),
    case("Qp::modify", "ModifyError::PrivilegedQkey", EPERM, |b| {
        let qp = b.qp(QpType::Ud);
        let (attr, mask) = attr_init_ud(0x8000_0000);
        refused(&qp, &attr, mask)
    }),
    case("Qp::modify", "ModifyError::AltPath", EINVAL, |b| {
        modify(b, QpState::Rtr, |_, mask| mask.insert(AttrMask::ALT_PATH))
    }),
    case("Qp::modify", "ModifyError::PathMigration", EINVAL, |b| {
        modify(b, QpState::Rtr, |attr, mask| {
            attr.path_mig_state = PathMigState::Armed;
            mask.insert(AttrMask::PATH_MIG_STATE);
        })
    }),
    case("Qp::modify", "ModifyError::Cap", EINVAL, |b| {
        modify(b, QpState::Reset, |_, mask| mask.insert(AttrMask::CAP))
    }),
    case("Qp::modify", "ModifyError::PathMtu", EINVAL, |_| {
        // A port whose largest path MTU is 1024.
        let config = verbs::DeviceConfig::loopback().mtu(1500);
        let context = verbs::Context::open(config).unwrap();
        assert_eq!(context.query_port(1).unwrap().active_mtu, verbs::Mtu::Mtu1024);
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        qp.init_rc(&options()).unwrap();
        let gid = context.query_gid(1, 1).unwrap();
        let to = |mtu| attr_rtr(gid, 1, qp.qp_num(), qp.first_psn(), mtu);
        let (attr, mask) = to(verbs::Mtu::Mtu2048);
        let refusal = refused(&qp, &attr, mask);
        let (attr, mask) = to(verbs::Mtu::Mtu1024);
        qp.modify(&attr, mask).unwrap();
        refusal
    }),
    case("Qp::split", "VerbsError::Split", EBUSY, |b| {
        let (_send, recv) = b.a.split().unwrap();
        let refusal = err(b.a.split());
        drop(recv);
        err(b.a.split()); // one half still exists
        refusal
    }),
    case("Qp::destroy", "DeviceError::Busy", EBUSY, |b| {
        let qp = b.other_ud();
        let (send, recv) = qp.split().unwrap();
        let (_, qp) = back(qp.destroy());
        drop(recv);
        let (refusal, qp) = back(qp.destroy());
        drop(send);
        qp.attach_mcast(group(1), 0).unwrap();
        let (_, qp) = back(qp.destroy());
        assert_eq!(qp.state().unwrap(), QpState::Rts);
        qp.detach_mcast(group(1), 0).unwrap();
        qp.destroy().unwrap();
        refusal
    }),
    case("Qp::destroy", "DeviceError::Unacked", EBUSY, |b| {
        let qp = endless(b);
        qp.modify(
            &QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() },
            AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
        )
        .unwrap();
        qp.post_recv(&[verbs::RecvWr::new(1, &[])]).unwrap();
        let event = loop {
            (0..10).for_each(|_| pump(&b.other.context));
            match b.other.context.try_get_async_event() {
                Some(event) if event.event == verbs::AsyncEvent::SqDrained => break event,
                _ => continue,
            }
        };
        let (refusal, qp) = back(qp.destroy());
        let (_, qp) = back(qp.destroy_wait(Duration::from_millis(2)));
        event.ack();
        qp.destroy().unwrap();
        refusal
    }),
    case("Qp::destroy_wait", "DeviceError::Busy", EBUSY, |b| {
        let qp = b.qp(QpType::Rc);
        let handles = qp.split().unwrap();
        let (refusal, qp) = back(qp.destroy_wait(Duration::from_secs(5)));
        drop(handles);
        qp.destroy().unwrap();
        refusal
    }),
    case("Qp::attach_mcast", "DeviceError::McastQp", EINVAL, |b| {
        err(b.a.attach_mcast(group(1), 0));
        err(b.uc().attach_mcast(group(1), 0))
    }),
    case("Qp::attach_mcast", "DeviceError::McastGid", EINVAL, |b| {
        let qp = b.ud();
        err(qp.attach_mcast(Gid::default(), 0));
        err(qp.attach_mcast(b.gid(), 0))
    }),
    case("Qp::attach_mcast", "PortError::Group", ENODEV, |_| {
        let port: PortSpec = "udp:127.47.93.4".parse().unwrap();
        let context = Context::open(DeviceConfig::new(port)).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
        let group = Gid::from_ip("ff05::1:3".parse().unwrap());
        err(pd.create_qp(&QpInitAttr::new(QpType::Ud, &cq, &cq)).unwrap().attach_mcast(group, 0))
    }),
    case("Qp::attach_mcast", "DeviceError::Exhausted", ENOMEM, |b| {
        let max = b.other.context.query_device().max_mcast_grp;
        let qp = b.other_ud();
        let group = |n: usize| Gid::v4([239, 2, (n >> 8) as u8, n as u8]);
        for n in 0..max {
            qp.attach_mcast(group(n), 0).unwrap();
        }
        let refusal = err(qp.attach_mcast(group(max), 0));
        qp.attach_mcast(group(max - 1), 0).expect("it is attached already");
        qp.detach_mcast(group(0), 0).unwrap();
        qp.attach_mcast(group(max), 0).unwrap();
        refusal
    }),
    case("Qp::detach_mcast", "DeviceError::NotAttached", EINVAL, |b| {
        let (qp, other) = (b.other_ud(), b.other_ud());
        qp.attach_mcast(group(9), 0).unwrap();
        let refusal = err(other.detach_mcast(group(9), 0));
        err(qp.detach_mcast(group(8), 0));
        qp.detach_mcast(group(9), 0).unwrap();
        err(qp.detach_mcast(group(9), 0));
        refusal
    }),
    case("Qp::detach_mcast", "DeviceError::McastQp", EINVAL, |b| err(b.a.detach_mcast(group(1), 0))),
    case("Qp::detach_mcast", "DeviceError::McastGid", EINVAL, |b| err(b.ud().detach_mcast(b.gid(), 0))),
    case("Qp::begin_drain", "ModifyError::Illegal", EINVAL, |b| {
        let qp = b.qp(QpType::Rc);
        let refusal = err(qp.begin_drain(DrainKind::Sqd).map(drop));
        qp.init_rc(&options()).unwrap();
        err(qp.begin_drain(DrainKind::Sqd).map(drop));
        assert_eq!(qp.state().unwrap(), QpState::Init);
        refusal
    }),
    case("Qp::drain_by_sqd", "ModifyError::Illegal", EINVAL, |b| {
        let qp = b.qp(QpType::Rc);
        let refusal = err(qp.drain_by_sqd(Duration::from_secs(5)));
        assert_eq!(qp.state().unwrap(), QpState::Reset);
        refusal
    }),
    case("Qp::drain_by_sqd", "DeviceError::TimedOut", ETIMEDOUT, |b| {
        let qp = endless(b);
        let refusal = err(qp.drain_by_sqd(Duration::from_millis(2)));
        assert_eq!(qp.state().unwrap(), QpState::Sqd, "as said");
        refusal
    }),
    case("Drain::wait", "DeviceError::TimedOut", ETIMEDOUT, |b| {
        let qp = endless(b);
        let mut drain = qp.begin_drain(DrainKind::Sqd).unwrap();
        let refusal = err(drain.wait(Duration::ZERO));
        assert!(!drain.try_finish().unwrap());
        qp.post_recv(&[verbs::RecvWr::new(1, &[])]).unwrap();
        drain.wait(crate::common::PATIENCE).expect("it can be waited for again");
        refusal
    }),
];

#[test]
fn calls_of_queue_pairs() {
    super::bench::run(CASES);
}

// ibv_create_qp(3): the receive sizes of a queue pair that has no receive queue are ignored, whatever they are.
#[test]
fn sizes_of_a_queue_that_does_not_exist_are_ignored() {
    let b = Bench::new();
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let sizes = QpCap { max_recv_wr: u32::MAX, max_recv_sge: u32::MAX, ..CAP };
    for init in [QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), QpInitAttr::xrc_ini(&b.cq)] {
        let qp = b.pd.create_qp(&init.cap(sizes)).unwrap();
        assert_eq!((qp.cap().max_recv_wr, qp.cap().max_recv_sge), (0, 0));
        assert_eq!(qp.cap().max_send_wr, CAP.max_send_wr);
    }
}
