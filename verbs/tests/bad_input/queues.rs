//! Calls of completion queues, completion channels and shared receive queues.

use std::time::Duration;

use stack::device::Device;
use verbs::errno::{EBUSY, EDEADLK, EINVAL, EIO, ENOMEM, EOPNOTSUPP};
use verbs::{
    Cq, CqInitAttr, CqWcFlags, DeviceConfig, Drive, QpInitAttr, RecvWr, SendWr, Srq, SrqAttr, SrqAttrMask,
    SrqInitAttr, Wc, XrcdInitAttr,
};

use super::bench::{Bench, Case, Refusal, at, back, case, err};
use crate::common::{options, pump, take};

/// Overruns a completion queue of the second device.
fn overrun(b: &Bench) -> (verbs::Qp, Cq) {
    let (context, pd) = (&b.other.context, &b.other.pd);
    let cq = context.create_cq(1).unwrap();
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    qp.post_send(&[SendWr::write(1, &[], 0, 0).signaled(); 40]).unwrap();
    let start = std::time::Instant::now();
    while qp.state().unwrap() != verbs::QpState::Err {
        assert!(start.elapsed() < crate::common::PATIENCE);
        pump(context);
    }
    let mut wc = [Wc::default(); 16];
    while cq.poll(&mut wc).is_ok_and(|n| n > 0) {}
    (qp, cq)
}

/// Destroys both; the device's events for them disappear with them.
fn gone((qp, cq): (verbs::Qp, Cq)) {
    qp.destroy().unwrap();
    cq.destroy().unwrap();
}

/// Two completions in the queue of the second device, and their queue pair.
fn completed(b: &Bench) -> verbs::Qp {
    let (context, cq) = (&b.other.context, &b.other.cq);
    let qp = b.other.pd.create_qp(&QpInitAttr::rc(cq, cq)).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    qp.post_send([SendWr::write(1, &[], 0, 0).signaled(); 3]).unwrap();
    take(context, cq, 1);
    (0..4).for_each(|_| pump(context));
    qp
}

/// Makes a call from the iterator of a list that is being posted to the queue.
fn inside_a_list(srq: &Srq, call: impl FnOnce() -> Refusal) -> Refusal {
    let (mut call, mut refusal) = (Some(call), None);
    srq.post_recv(std::iter::from_fn(|| {
        refusal = call.take().map(|call| call());
        None::<RecvWr<'_>>
    }))
    .unwrap();
    refusal.unwrap()
}

pub const CASES: &[Case] = &[
    case("Cq::poll_with", "DeviceError::InsideCall", EDEADLK, |b| {
        let (qp, mut refusal) = (completed(b), None);
        let cq = &b.other.cq;
        let n = cq.poll_with(1, |_| refusal = Some(err(cq.poll_with(1, |_| ())))).unwrap();
        assert_eq!(n, 1);
        qp.destroy().unwrap();
        refusal.unwrap()
    }),
    case("Cq::poll", "DeviceError::InsideCall", EDEADLK, |b| {
        let qp = completed(b);
        let poll = b.other.cq.start_poll().unwrap();
        assert_eq!(err(b.other.cq.start_poll().map(|_| ())), err(b.other.cq.poll(&mut [])));
        let refusal = err(b.other.cq.poll(&mut []));
        drop(poll);
        qp.destroy().unwrap();
        refusal
    }),
    case("Cq::poller", "DeviceError::InsideCall", EDEADLK, |b| {
        let qp = completed(b);
        let poll = b.other.cq.start_poll().unwrap();
        let refusal = err(b.other.cq.poller());
        drop(poll);
        qp.destroy().unwrap();
        refusal
    }),
    case("CqPoller::poll_with", "DeviceError::CqOverrun", EIO, |b| {
        let (qp, cq) = overrun(b);
        let refusal = err(cq.poller().unwrap().poll_with(1, |_| ()));
        gone((qp, cq));
        refusal
    }),
    case("Srq::query", "DeviceError::InsideCall", EDEADLK, |b| {
        let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
        inside_a_list(&srq, || err(srq.query()))
    }),
    case("Srq::waiting", "DeviceError::InsideCall", EDEADLK, |b| {
        let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
        inside_a_list(&srq, || err(srq.waiting()))
    }),
    case("Srq::post_recv", "PostErrorKind::InsideCall", EDEADLK, |b| {
        let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
        inside_a_list(&srq, || at(0, srq.post_recv([RecvWr::new(1, &[])])))
    }),
    case("Pd::create_qp", "DeviceError::InsideCall", EDEADLK, |b| {
        let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
        inside_a_list(&srq, || err(b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq).srq(&srq))))
    }),
    case("Context::create_cq", "DeviceError::Range", EINVAL, |b| {
        err(b.context.create_cq(0));
        err(b.context.create_cq(b.context.query_device().max_cqe + 1))
    }),
    case("Context::create_cq", "DeviceError::Exhausted", ENOMEM, |b| {
        let max = b.context.query_device().max_cq;
        let cqs: Vec<_> = (1..max).map(|_| b.context.create_cq(1).unwrap()).collect();
        let refusal = err(b.context.create_cq(1));
        drop(cqs);
        drop(b.context.create_cq(1).unwrap());
        refusal
    }),
    case("Context::create_cq_ex", "VerbsError::NoSuchIndex", EINVAL, |b| {
        err(b
            .context
            .create_cq_ex(&CqInitAttr { comp_vector: b.context.num_comp_vectors(), ..CqInitAttr::new(1) }))
    }),
    case("Context::create_cq_ex", "VerbsError::NoSuchField", EOPNOTSUPP, |b| {
        for wc_flags in [CqWcFlags::CVLAN, CqWcFlags::FLOW_TAG, CqWcFlags::from_bits_retain(1 << 40)] {
            err(b.context.create_cq_ex(&CqInitAttr { wc_flags, ..CqInitAttr::new(1) }));
        }
        err(b.context.create_cq_ex(&CqInitAttr { wc_flags: CqWcFlags::TM_INFO, ..CqInitAttr::new(1) }))
    }),
    case("Context::create_cq_ex", "DeviceError::Foreign", EINVAL, |b| {
        let channel = b.other.context.create_comp_channel().unwrap();
        let refusal = err(b.context.create_cq_ex(&CqInitAttr::new(1).channel(&channel)));
        channel.destroy().unwrap();
        refusal
    }),
    case("Context::create_cq_ex", "DeviceError::WrongKind", EINVAL, |b| {
        err(b.context.create_cq_ex(&CqInitAttr::new(1).parent_domain(&b.pd)))
    }),
    case("Cq::poll", "VerbsError::Split", EBUSY, |b| {
        let poller = b.cq.poller().unwrap();
        let refusal = err(b.cq.poll(&mut [Wc::default()]));
        drop(poller);
        refusal
    }),
    case("Cq::poll", "DeviceError::CqOverrun", EIO, |b| {
        let lost = overrun(b);
        let refusal = err(lost.1.poll(&mut [Wc::default()]));
        gone(lost);
        refusal
    }),
    case("Cq::start_poll", "VerbsError::Split", EBUSY, |b| {
        let poller = b.cq.poller().unwrap();
        let refusal = err(b.cq.start_poll().map(|_| ()));
        drop(poller);
        refusal
    }),
    case("Cq::start_poll", "DeviceError::CqOverrun", EIO, |b| {
        let lost = overrun(b);
        let refusal = err(lost.1.start_poll().map(|_| ()));
        gone(lost);
        refusal
    }),
    // Completions before the overrun are read first. Then the error is returned, and the reader stays at the last completion.
    case("CqExPoll::next_poll", "DeviceError::CqOverrun", EIO, |b| {
        let (context, pd) = (&b.other.context, &b.other.pd);
        let cq = context.create_cq(2).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
        qp.post_send(&[SendWr::write(7, &[], 0, 0).signaled(); 40]).unwrap();
        while qp.state().unwrap() != verbs::QpState::Err {
            pump(context);
        }
        let mut poll = cq.start_poll().unwrap().expect("one of those before the loss");
        let refusal = loop {
            match poll.next_poll() {
                Ok(more) => assert!(more),
                Err(e) => break e.into(),
            }
        };
        assert_eq!(poll.wr_id(), 7);
        poll.end_poll();
        gone((qp, cq));
        refusal
    }),
    case("CqPoller::poll", "DeviceError::CqOverrun", EIO, |b| {
        let lost = overrun(b);
        let mut poller = lost.1.poller().unwrap();
        let refusal = err(poller.poll(&mut [Wc::default()]));
        drop(poller);
        gone(lost);
        refusal
    }),
    case("Cq::poller", "VerbsError::Split", EBUSY, |b| {
        let _poller = b.cq.poller().unwrap();
        err(b.cq.poller())
    }),
    case("Cq::req_notify", "DeviceError::NoChannel", EINVAL, |b| {
        err(b.cq.req_notify(false));
        err(b.cq.req_notify(true))
    }),
    case("CqPoller::req_notify", "DeviceError::NoChannel", EINVAL, |b| {
        err(b.cq.poller().unwrap().req_notify(true))
    }),
    case("Cq::ack_events", "DeviceError::NotFetched", EINVAL, |b| {
        let channel = b.context.create_comp_channel().unwrap();
        let cq = b.context.create_cq_ex(&CqInitAttr::new(4).channel(&channel)).unwrap();
        err(cq.ack_events(1));
        cq.ack_events(0).unwrap();
        let refusal = err(b.cq.ack_events(1));
        cq.destroy().unwrap();
        channel.destroy().unwrap();
        refusal
    }),
    case("Cq::resize", "DeviceError::Range", EINVAL, |b| {
        err(b.cq.resize(0));
        err(b.cq.resize(b.context.query_device().max_cqe + 1));
        // Below the number of waiting requests.
        let (context, pd) = (&b.other.context, &b.other.pd);
        let cq = context.create_cq(8).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
        for id in 0..4 {
            qp.post_send(&[SendWr::write(id, &[], 0, 0).signaled()]).unwrap();
        }
        (0..50).for_each(|_| pump(context));
        let refusal = err(cq.resize(3));
        cq.resize(4).unwrap();
        let ids: Vec<_> = take(context, &cq, 4).iter().map(|wc| wc.wr_id).collect();
        assert_eq!((ids, b.cq.cqe()), (vec![0, 1, 2, 3], 64));
        gone((qp, cq));
        refusal
    }),
    case("Cq::resize", "VerbsError::Split", EBUSY, |b| {
        let mut poller = b.cq.poller().unwrap();
        let refusal = err(b.cq.resize(128));
        poller.resize(64).unwrap();
        refusal
    }),
    case("Cq::resize", "DeviceError::CqOverrun", EIO, |b| {
        let lost = overrun(b);
        let refusal = err(lost.1.resize(100));
        gone(lost);
        refusal
    }),
    case("CqPoller::resize", "DeviceError::Range", EINVAL, |b| err(b.cq.poller().unwrap().resize(0))),
    case("Cq::destroy", "DeviceError::Busy", EBUSY, |b| {
        let cq = b.context.create_cq(4).unwrap();
        let qp = b.pd.create_qp(&QpInitAttr::rc(&b.cq, &cq)).unwrap();
        let (_, cq) = back(cq.destroy());
        drop(qp);
        let poller = cq.poller().unwrap();
        let (refusal, cq) = back(cq.destroy());
        drop(poller);
        cq.destroy().unwrap();
        refusal
    }),
    case("Cq::destroy", "DeviceError::Unacked", EBUSY, |b| {
        let lost = overrun(b);
        let event = std::iter::from_fn(|| b.other.context.try_get_async_event())
            .find(|e| e.element == verbs::EventElement::Cq(lost.1.number()))
            .expect("CQ_ERR");
        lost.0.destroy().unwrap();
        let (refusal, cq) = back(lost.1.destroy());
        event.ack();
        cq.destroy().unwrap();
        refusal
    }),
    case("Cq::destroy_wait", "DeviceError::Busy", EBUSY, |b| {
        let cq = b.context.create_cq(4).unwrap();
        let qp = b.pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        let (refusal, cq) = back(cq.destroy_wait(Duration::from_secs(5)));
        gone((qp, cq));
        refusal
    }),
    case("CompChannel::destroy", "DeviceError::Busy", EBUSY, |b| {
        let channel = b.context.create_comp_channel().unwrap();
        let cq = b.context.create_cq_ex(&CqInitAttr::new(1).channel(&channel)).unwrap();
        let (refusal, channel) = back(channel.destroy());
        cq.destroy().unwrap();
        channel.destroy().unwrap();
        refusal
    }),
    case("Pd::create_srq", "DeviceError::Range", EINVAL, |b| {
        let device = b.context.query_device();
        for (max_wr, max_sge, srq_limit) in
            [(0, 1, 0), (device.max_srq_wr + 1, 1, 0), (4, device.max_srq_sge + 1, 0), (4, 1, 5)]
        {
            err(b.pd.create_srq(&SrqInitAttr { attr: SrqAttr { max_wr, max_sge, srq_limit } }));
        }
        err(b.pd.create_srq(&SrqInitAttr { attr: SrqAttr { max_wr: 4, max_sge: 0, srq_limit: u32::MAX } }))
    }),
    // Through the device API, without the rings, which would take another quarter of a gigabyte.
    case("Pd::create_srq", "DeviceError::Exhausted", ENOMEM, |_| {
        let device = Device::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
        let (pd, max) = (device.alloc_pd().unwrap(), device.attr().max_srq);
        let attr = SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 };
        let mut srqs: Vec<_> = (0..max).map(|_| pd.create_srq(&attr, None).unwrap()).collect();
        let refusal = err(pd.create_srq(&attr, None));
        srqs.pop();
        srqs.push(pd.create_srq(&attr, None).unwrap());
        err(pd.create_srq(&attr, None));
        refusal
    }),
    case("Pd::create_xrc_srq", "DeviceError::Foreign", EINVAL, |b| {
        let foreign = b.other.context.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
        let ours = b.context.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
        let init = SrqInitAttr::new(4, 1);
        err(b.pd.create_xrc_srq(&init, &foreign, &b.cq));
        let refusal = err(b.pd.create_xrc_srq(&init, &ours, &b.other.cq));
        ours.close().unwrap();
        foreign.close().unwrap();
        refusal
    }),
    case("Pd::create_xrc_srq", "DeviceError::Range", EINVAL, |b| {
        let xrcd = b.context.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
        let refusal = err(b.pd.create_xrc_srq(&SrqInitAttr::new(0, 1), &xrcd, &b.cq));
        xrcd.close().unwrap();
        refusal
    }),
    case("Srq::post_recv", "PostErrorKind::Full", ENOMEM, |b| {
        let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
        srq.post_recv(&[RecvWr::new(1, &[])]).unwrap();
        let refusal = at(3, srq.post_recv(&[RecvWr::new(1, &[]); 5]));
        assert_eq!(srq.waiting().unwrap(), 4, "those before it were taken");
        at(0, srq.post_recv(&[RecvWr::new(1, &[])]));
        srq.destroy().unwrap();
        refusal
    }),
    case("Srq::post_recv", "PostErrorKind::TooManySge", EINVAL, |b| {
        let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
        let sges = [b.mr.sge(0..1).unwrap(); 2];
        let refusal = at(1, srq.post_recv(&[RecvWr::new(1, &sges[..1]), RecvWr::new(2, &sges)]));
        assert_eq!(srq.waiting().unwrap(), 1);
        srq.destroy().unwrap();
        refusal
    }),
    case("Srq::modify", "DeviceError::Range", EINVAL, |b| {
        let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
        srq.post_recv(&[RecvWr::new(1, &[]); 3]).unwrap();
        let attr = |max_wr, srq_limit| SrqAttr { max_wr, srq_limit, max_sge: 1 };
        let before = srq.query().unwrap();
        for (attr, mask) in [
            (attr(0, 0), SrqAttrMask::MAX_WR),
            (attr(2, 0), SrqAttrMask::MAX_WR),
            (attr(b.context.query_device().max_srq_wr + 1, 0), SrqAttrMask::MAX_WR),
            (attr(4, 5), SrqAttrMask::LIMIT),
            (attr(8, 9), SrqAttrMask::MAX_WR | SrqAttrMask::LIMIT),
            (attr(8, 1), SrqAttrMask::from_bits_retain(4)),
        ] {
            err(srq.modify(&attr, mask));
            assert_eq!((srq.query().unwrap(), srq.waiting().unwrap()), (before, 3), "{attr:?} {mask:?}");
        }
        let refusal = err(srq.modify(&attr(4, u32::MAX), SrqAttrMask::LIMIT));
        srq.destroy().unwrap();
        refusal
    }),
    case("Srq::destroy", "DeviceError::Busy", EBUSY, |b| {
        let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
        let qp = b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq).srq(&srq)).unwrap();
        let (refusal, srq) = back(srq.destroy());
        srq.post_recv(&[RecvWr::new(1, &[])]).unwrap();
        qp.destroy().unwrap();
        srq.destroy().unwrap();
        refusal
    }),
    case("Srq::destroy_wait", "DeviceError::Busy", EBUSY, |b| {
        let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
        let qp = b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq).srq(&srq)).unwrap();
        let (refusal, srq) = back(srq.destroy_wait(Duration::from_secs(5)));
        drop(qp);
        srq.destroy().unwrap();
        refusal
    }),
    case("Srq::destroy", "DeviceError::Unacked", EBUSY, |b| {
        let (context, pd, cq) = (&b.other.context, &b.other.pd, &b.other.cq);
        let srq =
            pd.create_srq(&SrqInitAttr { attr: SrqAttr { max_wr: 2, max_sge: 1, srq_limit: 2 } }).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(cq, cq).srq(&srq)).unwrap();
        qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
        srq.post_recv(&[RecvWr::new(1, &[]); 2]).unwrap();
        qp.post_send(&[SendWr::send(1, &[])]).unwrap();
        take(context, cq, 1);
        let event = std::iter::from_fn(|| context.try_get_async_event())
            .find(|e| e.element == verbs::EventElement::Srq(srq.srq_num()))
            .expect("SRQ_LIMIT_REACHED");
        qp.destroy().unwrap();
        let (refusal, srq) = back(srq.destroy());
        event.ack();
        srq.destroy().unwrap();
        refusal
    }),
];

#[test]
fn calls_of_queues() {
    super::bench::run(CASES);
}
