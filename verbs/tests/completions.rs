//! Completions: their contents, their events, and overruns.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::hooked::{Burst, Hooked};
use crate::common::{
    self, PATIENCE, Pair, all_rights, assert_no_completion, embedded, enter, options, pump, take,
};
use verbs::errno;
use verbs::port::{PortSpec, pair};
use verbs::{
    Access, AsyncEvent, CompChannel, Context, Cq, CqEvent, CqInitAttr, CqWcFlags, DeviceConfig, DeviceError,
    Drive, EventElement, Gid, Mr, Pd, Qp, QpCap, QpInitAttr, QpState, Qpn, RecvWr, SendWr, VendorErr,
    VerbsError, Wc, WcOpcode, WcStatus, ah_attr_to,
};

fn drives() -> [Drive; 3] {
    [Drive::Embedded, Drive::Caller, Drive::Dedicated { cores: vec![] }]
}

/// Two queue pairs of one device, whose completion queues have an event channel each.
struct Armed {
    a: Qp,
    b: Qp,
    cq_a: Cq,
    cq_b: Cq,
    channel: CompChannel,
    context: Context,
    _pd: Pd,
}

impl Armed {
    fn new(context: Context) -> Self {
        let channel = context.create_comp_channel().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = |n| context.create_cq_ex(&CqInitAttr::new(256).channel(&channel).context(n)).unwrap();
        let (cq_a, cq_b) = (cq(10), cq(11));
        let a = pd.create_qp(&QpInitAttr::rc(&cq_a, &cq_a)).unwrap();
        let b = pd.create_qp(&QpInitAttr::rc(&cq_b, &cq_b)).unwrap();
        a.connect_rc(&b.endpoint(1).unwrap(), &options()).unwrap();
        b.connect_rc(&a.endpoint(1).unwrap(), &options()).unwrap();
        Self { a, b, cq_a, cq_b, channel, context, _pd: pd }
    }

    /// Sends an empty message from A to B, and polls both completions.
    fn message(&self, wr: SendWr<'_>) {
        self.b.post_recv(&[RecvWr::new(1, &[])]).unwrap();
        self.a.post_send(&[wr.signaled()]).unwrap();
        assert!(take(&self.context, &self.cq_a, 1)[0].is_ok());
        assert!(take(&self.context, &self.cq_b, 1)[0].is_ok());
    }

    fn events(&self) -> Vec<CqEvent> {
        let events: Vec<_> = std::iter::from_fn(|| self.channel.try_get_cq_event()).collect();
        for event in &events {
            let cq = if event.is_of(&self.cq_a) { &self.cq_a } else { &self.cq_b };
            assert_eq!((event.cq, event.cq_context), (cq.number(), cq.cq_context()));
            cq.ack_events(1).unwrap();
        }
        events
    }
}

#[test]
fn c01_every_opcode_has_its_completion() {
    let p = Pair::new(embedded());
    let sge = [p.mr.sge(0..8).unwrap()];
    let at = |offset: u64| p.mr.addr() + offset;
    let key = p.mr.rkey();
    let receive = |id: u64| p.b.post_recv(&[RecvWr::new(id, &[p.mr.sge(64..128).unwrap()])]).unwrap();
    let check = |wr: SendWr<'_>, opcode: WcOpcode, recv: Option<(WcOpcode, Option<u32>)>| {
        if recv.is_some() {
            receive(wr.wr_id() + 100);
        }
        p.a.post_send(&[wr.signaled()]).unwrap();
        let wc = p.done_a(1)[0];
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr.wr_id(), WcStatus::Success, opcode), "{wr:?}");
        assert_eq!((wc.qp_num, wc.vendor_err), (p.a.qp_num(), 0));
        if let Some((opcode, imm)) = recv {
            let wc = p.done_b(1)[0];
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr.wr_id() + 100, WcStatus::Success, opcode));
            assert_eq!((wc.qp_num, wc.imm_data(), wc.byte_len), (p.b.qp_num(), imm, 8));
            assert!(wc.opcode.is_recv());
        }
        assert_eq!(p.cq_b.poll(&mut [Wc::default()]).unwrap(), 0);
    };
    use WcOpcode::{CompSwap, FetchAdd, RdmaRead, RdmaWrite, Recv, RecvRdmaWithImm, Send};
    check(SendWr::send(1, &sge), Send, Some((Recv, None)));
    check(SendWr::send_with_imm(2, &sge, 0x1234), Send, Some((Recv, Some(0x1234))));
    check(SendWr::write(3, &sge, at(16), key), RdmaWrite, None);
    check(SendWr::write_with_imm(4, &sge, at(16), key, 7), RdmaWrite, Some((RecvRdmaWithImm, Some(7))));
    check(SendWr::read(5, &sge, at(16), key), RdmaRead, None);
    check(SendWr::cmp_and_swp(6, &sge, at(16), key, 0, 1), CompSwap, None);
    check(SendWr::fetch_and_add(7, &sge, at(16), key, 1), FetchAdd, None);
}

/// A connected pair whose B holds one receive request of 8 bytes; A's queue pair does not retry.
fn fragile() -> Pair {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    let (cq_a, cq_b) = (context.create_cq(64).unwrap(), context.create_cq(64).unwrap());
    let a = pd.create_qp(&QpInitAttr::rc(&cq_a, &cq_a)).unwrap();
    let b = pd.create_qp(&QpInitAttr::rc(&cq_b, &cq_b)).unwrap();
    let options = options().timeout(8).retry_cnt(1).rnr_retry(1).min_rnr_timer(1);
    a.connect_rc(&b.endpoint(1).unwrap(), &options).unwrap();
    b.connect_rc(&a.endpoint(1).unwrap(), &options).unwrap();
    let mr = pd.reg_mr(4096, all_rights()).unwrap();
    Pair { a, b, mr, cq_a, cq_b, pd, context }
}

// Each error status of RC that can be provoked, at the side that reports it, with its vendor error.
#[test]
fn c02_every_error_status() {
    let is = |p: &Pair, wc: Wc, id: u64, qp: &Qp, status: WcStatus, vendor: u32| {
        assert_eq!((wc.wr_id, wc.status, wc.qp_num), (id, status, qp.qp_num()));
        assert_eq!(wc.vendor_err, vendor, "{status:?}: {}", VendorErr(wc.vendor_err));
        assert_eq!(qp.state().unwrap(), QpState::Err);
        drop(p.context.try_get_async_event());
    };
    // A message longer than the receive request.
    let p = fragile();
    p.b.post_recv(&[RecvWr::new(1, &[p.mr.sge(0..4).unwrap()])]).unwrap();
    p.a.post_send(&[SendWr::send(2, &[p.mr.sge(8..16).unwrap()]), SendWr::send(3, &[])]).unwrap();
    let (a, b) = (p.done_a(2), p.done_b(1)[0]);
    is(&p, a[0], 2, &p.a, WcStatus::RemInvReqErr, 0x361);
    is(&p, a[1], 3, &p.a, WcStatus::WrFlushErr, 0x100);
    is(&p, b, 1, &p.b, WcStatus::LocLenErr, 0x608);
    // Invalid local keys: of the sender, and of the receiver.
    let bad = |p: &Pair| {
        let gone = p.pd.reg_mr(64, all_rights()).unwrap();
        let sge = gone.sge(0..8).unwrap();
        gone.dereg().unwrap();
        sge
    };
    let p = fragile();
    p.a.post_send(&[SendWr::send(1, &[bad(&p)])]).unwrap();
    is(&p, p.done_a(1)[0], 1, &p.a, WcStatus::LocProtErr, 0x204);
    let p = fragile();
    p.b.post_recv(&[RecvWr::new(1, &[bad(&p)])]).unwrap();
    p.a.post_send(&[SendWr::send(2, &[p.mr.sge(0..8).unwrap()])]).unwrap();
    let (a, b) = (p.done_a(1)[0], p.done_b(1)[0]);
    is(&p, a, 2, &p.a, WcStatus::RemOpErr, 0x363);
    is(&p, b, 1, &p.b, WcStatus::LocProtErr, 0x60b);
    // A remote key that does not exist.
    let p = fragile();
    p.a.post_send(&[SendWr::write(1, &[p.mr.sge(0..8).unwrap()], p.mr.addr(), p.mr.rkey() ^ 1)]).unwrap();
    is(&p, p.done_a(1)[0], 1, &p.a, WcStatus::RemAccessErr, 0x362);
    // No receive request; then no peer.
    let p = fragile();
    p.a.post_send(&[SendWr::send(1, &[])]).unwrap();
    is(&p, p.done_a(1)[0], 1, &p.a, WcStatus::RnrRetryExcErr, 0x404);
    let p = fragile();
    enter(&p.b, QpState::Reset);
    p.a.post_send(&[SendWr::send(1, &[])]).unwrap();
    is(&p, p.done_a(1)[0], 1, &p.a, WcStatus::RetryExcErr, 0x401);
    // An operation that the peer's access flags do not allow. No message is in progress at either side.
    let p = fragile();
    let (attr, mask) = (
        verbs::QpAttr { qp_access_flags: Access::empty().bits(), ..Default::default() },
        verbs::AttrMask::ACCESS_FLAGS,
    );
    p.b.modify(&attr, mask).unwrap();
    p.b.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    p.a.post_send(&[SendWr::write(2, &[], p.mr.addr(), p.mr.rkey())]).unwrap();
    let (a, b) = (p.done_a(1)[0], p.done_b(1)[0]);
    is(&p, a, 2, &p.a, WcStatus::RemInvReqErr, 0x361);
    is(&p, b, 1, &p.b, WcStatus::WrFlushErr, 0x100);
}

/// Fetches and acknowledges the waiting events.
fn events(context: &Context) -> Vec<(AsyncEvent, EventElement)> {
    std::iter::from_fn(|| context.try_get_async_event()).map(|e| (e.event, e.element)).collect()
}

fn depth(n: u32) -> QpCap {
    QpCap { max_send_wr: n, max_recv_wr: n, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 }
}

// One completion too many: CQ_ERR once, every queue pair that uses the queue goes to ERR, on any shard; the queue returns the
// completions that it holds, then an error.
#[test]
fn c03_overflow() {
    for shards in [1, 2] {
        let context = Context::open(DeviceConfig::loopback().shards(shards).drive(Drive::Embedded)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let (small, other) = (context.create_cq(4).unwrap(), context.create_cq(256).unwrap());
        let on = |cq: &Cq, shard: usize| {
            pd.create_qp(&QpInitAttr::rc(cq, cq).cap(depth(64)).on_shard(shard)).unwrap()
        };
        let sends = on(&small, 0);
        let bystander = on(&small, shards - 1);
        let [peer, unaffected] = [0, 1].map(|_| on(&other, 0));
        for (a, b) in [(&sends, &peer), (&bystander, &unaffected)] {
            a.connect_rc(&b.endpoint(1).unwrap(), &options()).unwrap();
            b.connect_rc(&a.endpoint(1).unwrap(), &options()).unwrap();
        }
        bystander.post_recv(&[RecvWr::new(1000, &[])]).unwrap();
        let most = if shards == 1 { 4 } else { 4 + 2 * 16 };
        for id in 0..60 {
            sends.post_send(&[SendWr::write(id, &[], 0, 0).signaled()]).unwrap();
        }
        let start = Instant::now();
        while bystander.state().unwrap() != QpState::Err || sends.state().unwrap() != QpState::Err {
            assert!(start.elapsed() < PATIENCE);
            pump(&context);
        }
        let mut raised = events(&context);
        raised.sort_by_key(|(event, _)| event.number());
        let fatal = |qp: &Qp| (AsyncEvent::QpFatal, EventElement::Qp(qp.qp_num()));
        assert_eq!(raised[0], (AsyncEvent::CqErr, EventElement::Cq(small.number())));
        assert_eq!(raised.len(), 3, "{raised:?}");
        assert!(raised.contains(&fatal(&sends)) && raised.contains(&fatal(&bystander)), "{raised:?}");
        assert_eq!((peer.state().unwrap(), unaffected.state().unwrap()), (QpState::Rts, QpState::Rts));

        let e = small.resize(128).unwrap_err();
        assert_eq!(e.errno(), errno::EIO, "{e}");
        let e = pd.create_qp(&QpInitAttr::rc(&small, &other)).unwrap_err();
        assert_eq!(e.errno(), errno::EIO, "{e}");
        let mut wc = [Wc::default(); 7];
        let mut ids = Vec::new();
        let e = loop {
            match small.poll(&mut wc) {
                Ok(n) => ids.extend(wc[..n].iter().map(|wc| wc.wr_id)),
                Err(e) => break e,
            }
            assert!(ids.len() <= 60);
        };
        assert!(matches!(e, VerbsError::Device(DeviceError::CqOverrun)), "{e}");
        assert_eq!(e.errno(), errno::EIO);
        assert!((4..=most).contains(&ids.len()), "{} completions", ids.len());
        assert!(ids.iter().copied().eq(0..ids.len() as u64), "in order, none missing: {ids:?}");
        assert!(small.start_poll().is_err() && small.poll(&mut []).is_ok());
        // The queue stays in error, and no event is repeated.
        enter(&sends, QpState::Reset);
        for _ in 0..50 {
            pump(&context);
        }
        assert!(small.poll(&mut wc).is_err());
        assert_eq!(events(&context), []);
        // The program recovers by destroying both.
        sends.destroy().unwrap();
        bystander.destroy().unwrap();
        small.destroy().unwrap();
        peer.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    }
}

// A receive that overflows ends its queue pair as well; so does a flush.
#[test]
fn c03_overflow_by_receives_and_by_flushes() {
    for flush in [false, true] {
        let context = embedded();
        let pd = context.alloc_pd().unwrap();
        let (small, other) = (context.create_cq(2).unwrap(), context.create_cq(256).unwrap());
        let b = pd.create_qp(&QpInitAttr::rc(&other, &small)).unwrap();
        let a = pd.create_qp(&QpInitAttr::rc(&other, &other)).unwrap();
        a.connect_rc(&b.endpoint(1).unwrap(), &options()).unwrap();
        b.connect_rc(&a.endpoint(1).unwrap(), &options()).unwrap();
        for id in 0..5 {
            b.post_recv(&[RecvWr::new(id, &[])]).unwrap();
        }
        if flush {
            enter(&b, QpState::Err);
        } else {
            (0..5).for_each(|id| a.post_send(&[SendWr::send(id, &[])]).unwrap());
        }
        let start = Instant::now();
        let mut raised = Vec::new();
        while raised.len() < 2 {
            assert!(start.elapsed() < PATIENCE, "{raised:?}");
            pump(&context);
            raised.extend(events(&context));
        }
        raised.sort_by_key(|(event, _)| event.number());
        assert_eq!(raised[0], (AsyncEvent::CqErr, EventElement::Cq(small.number())));
        assert_eq!(raised[1], (AsyncEvent::QpFatal, EventElement::Qp(b.qp_num())));
        assert_eq!(b.state().unwrap(), QpState::Err);
        assert_eq!(take(&context, &small, 2).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(small.poll(&mut [Wc::default()]).unwrap_err().errno(), errno::EIO);
        assert_eq!(events(&context), []);
    }
}

// The flush of requests that were posted in SQE overflows the queue: the queue pair goes to ERR instead of RTS.
#[test]
fn c03_overflow_on_the_way_from_sqe_to_rts() {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    let (small, other) = (context.create_cq(2).unwrap(), context.create_cq(256).unwrap());
    let qp = pd.create_qp(&QpInitAttr::uc(&small, &other)).unwrap();
    qp.connect_uc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    let bad = verbs::Sge { addr: 0, length: 8, lkey: 0x55 };
    qp.post_send(&[SendWr::send(1, &[bad])]).unwrap();
    assert_eq!(take(&context, &small, 1)[0].status, WcStatus::LocProtErr);
    assert_eq!(qp.state().unwrap(), QpState::Sqe);
    qp.post_send(&[2, 3, 4].map(|id| SendWr::send(id, &[]))).unwrap();
    let (attr, mask) = verbs::attr_to(QpState::Rts);
    qp.modify(&attr, mask).unwrap();
    assert_eq!(qp.state().unwrap(), QpState::Err);
    assert_eq!(take(&context, &small, 2).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2, 3]);
}

// An overrun moves the queue pairs that use the queue to ERR. Their flushes into other queues appear in the same turn, because nothing
// would cause a later one.
#[test]
fn c03_what_an_overrun_flushes_comes_in_the_same_turn() {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    let (small, other) = (context.create_cq(1).unwrap(), context.create_cq(256).unwrap());
    let [a, b] = [0, 1].map(|_| pd.create_qp(&QpInitAttr::rc(&small, &other)).unwrap());
    a.connect_rc(&b.endpoint(1).unwrap(), &options()).unwrap();
    b.connect_rc(&a.endpoint(1).unwrap(), &options()).unwrap();
    b.post_recv(&[RecvWr::new(9, &[])]).unwrap();
    a.post_send(&[1, 2].map(|id| SendWr::write(id, &[], 0, 0).signaled())).unwrap();
    let start = Instant::now();
    while b.state().unwrap() != QpState::Err {
        assert!(start.elapsed() < PATIENCE);
        pump(&context);
    }
    let mut wc = [Wc::default(); 2];
    assert_eq!(other.poll(&mut wc).unwrap(), 1);
    assert_eq!((wc[0].wr_id, wc[0].status), (9, WcStatus::WrFlushErr));
}

#[test]
fn c04_one_event_an_arming() {
    let p = Armed::new(embedded());
    p.cq_a.req_notify(false).unwrap();
    p.message(SendWr::send(1, &[]));
    p.message(SendWr::send(2, &[]));
    assert_eq!(p.events().len(), 1);
    p.message(SendWr::send(3, &[]));
    assert_eq!(p.events().len(), 0, "not armed");
    p.cq_a.req_notify(false).unwrap();
    p.cq_b.req_notify(false).unwrap();
    p.message(SendWr::send(4, &[]));
    let both = p.events();
    assert_eq!(both.len(), 2);
    assert_ne!(both[0], both[1]);
}

#[test]
fn c05_solicited_only() {
    let p = Armed::new(embedded());
    p.cq_a.req_notify(true).unwrap();
    p.cq_b.req_notify(true).unwrap();
    p.message(SendWr::send(1, &[]));
    assert_eq!(p.events(), [], "SEND without SE");
    p.message(SendWr::send(2, &[]).solicited());
    let got = p.events();
    assert!(
        got.len() == 1 && got[0].is_of(&p.cq_b),
        "SEND with SE, and not the send's own completion: {got:?}"
    );
    p.cq_b.req_notify(true).unwrap();
    p.message(SendWr::write_with_imm(3, &[], 0, 0, 1).solicited());
    assert_eq!(p.events().len(), 1, "WRITE with immediate and SE");
    // A flushed request is an error; A's queue is still armed.
    enter(&p.a, QpState::Err);
    p.a.post_send(&[SendWr::send(4, &[])]).unwrap();
    assert_eq!(take(&p.context, &p.cq_a, 1)[0].status, WcStatus::WrFlushErr);
    let got = p.events();
    assert!(got.len() == 1 && got[0].is_of(&p.cq_a), "a flush is an error: {got:?}");
}

#[test]
fn c06_any_wins_over_solicited() {
    let p = Armed::new(embedded());
    for order in [[true, false], [false, true]] {
        for solicited_only in order {
            p.cq_b.req_notify(solicited_only).unwrap();
        }
        p.message(SendWr::send(1, &[]));
        assert_eq!(p.events().len(), 1, "{order:?}");
    }
}

#[test]
fn c07_what_is_there_makes_no_event() {
    let p = Armed::new(embedded());
    p.a.post_send(&[SendWr::write(1, &[], 0, 0).signaled()]).unwrap();
    // Until the completion is in the queue: then its slot is free again.
    let start = Instant::now();
    let mut poll = loop {
        pump(&p.context);
        assert!(start.elapsed() < PATIENCE);
        match p.cq_a.start_poll().unwrap() {
            Some(poll) => break poll,
            None => continue,
        }
    };
    assert!(!poll.next_poll().unwrap());
    poll.end_poll();
    p.a.post_send(&[SendWr::write(2, &[], 0, 0).signaled()]).unwrap();
    for _ in 0..100 {
        pump(&p.context);
    }
    p.cq_a.req_notify(false).unwrap();
    for _ in 0..10 {
        pump(&p.context);
    }
    assert_eq!(p.events(), []);
    let mut wc = [Wc::default(); 2];
    assert_eq!((p.cq_a.poll(&mut wc).unwrap(), wc[0].wr_id), (1, 2), "the poll after finds it");
    p.message(SendWr::send(3, &[]));
    assert_eq!(p.events().len(), 1, "and the arming is not used up");
}

// A queue cannot be destroyed until its events are acknowledged: EBUSY at once, or after waiting for the thread that holds
// them.
#[test]
fn c08_unacknowledged_events_keep_the_queue() {
    let Armed { a, b, cq_a, cq_b, channel, context, _pd } = Armed::new(embedded());
    cq_a.req_notify(false).unwrap();
    a.post_send(&[SendWr::write(1, &[], 0, 0).signaled()]).unwrap();
    let event = channel.get_cq_event(PATIENCE).unwrap().unwrap();
    assert!(event.is_of(&cq_a));
    drop((a, b));
    let (e, cq_a) = cq_a.destroy().unwrap_err();
    assert!(matches!(e, VerbsError::Device(DeviceError::Unacked { events: 1, .. })), "{e}");
    assert_eq!(e.errno(), errno::EBUSY);
    let (e, cq_a) = cq_a.destroy_wait(Duration::from_millis(1)).unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    let e = cq_a.ack_events(2).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "{e}");
    cq_a.ack_events(1).unwrap();
    assert_eq!(cq_a.ack_events(1).unwrap_err().errno(), errno::EINVAL);
    cq_a.destroy().unwrap();
    cq_b.destroy_wait(PATIENCE).unwrap();
    channel.destroy().unwrap();
    drop(context);
}

// A destroy that is refused because of one kind of event discards no event of the other kind.
#[test]
fn c08_a_refused_destroy_keeps_completion_events() {
    let context = embedded();
    let channel = context.create_comp_channel().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq_ex(&CqInitAttr::new(1).channel(&channel)).unwrap();
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    cq.req_notify(false).unwrap();
    qp.post_recv(&[1, 2].map(|id| RecvWr::new(id, &[]))).unwrap();
    enter(&qp, QpState::Err);
    qp.destroy().unwrap();
    let event = context.get_async_event(PATIENCE).unwrap().unwrap();
    assert_eq!(event.event, AsyncEvent::CqErr);
    let (e, cq) = cq.destroy().unwrap_err();
    assert!(matches!(e, VerbsError::Device(DeviceError::Unacked { events: 1, .. })), "{e}");
    event.ack();
    assert!(channel.try_get_cq_event().is_some_and(|event| event.is_of(&cq)), "it waits as before");
    assert!(cq.destroy().is_err(), "and keeps the queue in its turn");
}

// The waiting form returns when the other thread has acknowledged the event, and not before.
#[test]
fn s35_destroy_waits_for_the_acknowledgement() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    let (mut attr, mask) = verbs::attr_to(QpState::Sqd);
    attr.en_sqd_async_notify = true;
    qp.modify(&attr, mask | verbs::AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    let event = context.get_async_event(PATIENCE).unwrap().unwrap();
    assert_eq!((event.event, event.element), (AsyncEvent::SqDrained, EventElement::Qp(qp.qp_num())));
    let (e, qp) = qp.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    let (e, qp) = qp.destroy_wait(Duration::from_millis(1)).unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    assert_eq!(qp.state().unwrap(), QpState::Sqd, "nothing has changed");
    let acknowledged = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            acknowledged.store(true, std::sync::atomic::Ordering::SeqCst);
            assert_eq!(event.ack().event, AsyncEvent::SqDrained);
        });
        qp.destroy_wait(PATIENCE).unwrap();
        assert!(acknowledged.load(std::sync::atomic::Ordering::SeqCst));
    });
}

// Events of a queue pair, and of a completion queue, that were not fetched disappear with the object.
#[test]
fn s35_events_of_what_is_gone_are_gone() {
    let p = Armed::new(embedded());
    let qp = p._pd.create_qp(&QpInitAttr::rc(&p.cq_a, &p.cq_a)).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    let (mut attr, mask) = verbs::attr_to(QpState::Sqd);
    attr.en_sqd_async_notify = true;
    qp.modify(&attr, mask | verbs::AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    qp.destroy().unwrap();
    assert_eq!(p.context.try_get_async_event(), None);
    p.cq_a.req_notify(false).unwrap();
    p.cq_b.req_notify(false).unwrap();
    p.message(SendWr::send(1, &[]));
    let Armed { a, b, cq_a, cq_b, channel, .. } = p;
    drop((a, b));
    cq_a.destroy().unwrap();
    let event = channel.try_get_cq_event().unwrap();
    assert!(event.is_of(&cq_b), "what is left is of the queue that is left");
    assert_eq!(channel.try_get_cq_event(), None);
    // Dropping never waits and never fails, acknowledged or not.
    drop(cq_b);
    channel.destroy().unwrap();
}

#[test]
fn c09_a_channel_in_use_is_busy() {
    let context = embedded();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq_ex(&CqInitAttr::new(1).channel(&channel)).unwrap();
    let (e, channel) = channel.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    cq.req_notify(false).unwrap();
    cq.destroy().unwrap();
    channel.destroy().unwrap();
    context.close().unwrap();
}

#[test]
fn c10_resize() {
    let p = Pair::new(embedded());
    let write = |ids: std::ops::Range<u64>| {
        for id in ids {
            p.a.post_send(&[SendWr::write(id, &[], 0, 0).signaled()]).unwrap();
        }
        for _ in 0..200 {
            pump(&p.context);
        }
    };
    write(0..10);
    for below in [0, 9] {
        let e = p.cq_a.resize(below).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL, "{below}: {e}");
        assert_eq!(p.cq_a.cqe(), 4096, "nothing has changed");
    }
    assert_eq!(p.cq_a.resize(verbs::limits::CQE_MAX + 1).unwrap_err().errno(), errno::EINVAL);
    p.cq_a.resize(10).unwrap();
    assert_eq!(p.cq_a.cqe(), 10);
    p.cq_a.resize(64).unwrap();
    write(10..40);
    p.cq_a.resize(128).unwrap();
    write(40..60);
    let ids: Vec<u64> = p.done_a(60).iter().map(|wc| wc.wr_id).collect();
    assert!(ids.iter().copied().eq(0..60), "{ids:?}");
    assert_no_completion(&p.context, &p.cq_a);
    assert_eq!(p.context.try_get_async_event(), None);
    let mut poller = p.cq_a.poller().unwrap();
    assert_eq!(p.cq_a.resize(256).unwrap_err().errno(), errno::EBUSY);
    poller.resize(256).unwrap();
    assert_eq!(p.cq_a.cqe(), 256);
}

/// Completions that another thread's turn has made but not yet published count as waiting.
#[test]
fn c10_resize_waits_for_a_turn_that_is_under_way() {
    for drive in [Drive::Embedded, Drive::Caller] {
        let [armed, inside, resizing] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        // The next turn that sends stops before its end, until the queue is being resized.
        let hook = {
            let (armed, inside, resizing) = (armed.clone(), inside.clone(), resizing.clone());
            move |burst: Burst<'_>| {
                if matches!(burst, Burst::Tx(_)) && armed.swap(false, Ordering::Relaxed) {
                    inside.store(true, Ordering::Release);
                    while !resizing.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    // Time in which a call that does not wait would return.
                    std::thread::sleep(Duration::from_millis(50));
                }
                true
            }
        };
        let port = Hooked::around(PortSpec::Loopback.open(&Default::default()).unwrap(), hook);
        let context = Context::open(DeviceConfig::new(port).addr([192, 0, 2, 1], 24).drive(drive)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        let qp = pd.create_qp(&QpInitAttr::ud(&cq, &cq)).unwrap();
        qp.activate_ud(1).unwrap();
        let group = Gid::from_ip("239.1.2.3".parse().unwrap());
        let ah = pd.create_ah(&ah_attr_to(group, 1)).unwrap();
        armed.store(true, Ordering::Relaxed);
        for id in 0..3 {
            let send = SendWr::send(id, &[]).inline(b"three").signaled();
            qp.post_send(&[send.to(&ah, Qpn::MULTICAST, 1)]).unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !inside.load(Ordering::Acquire) {
                    pump(&context);
                }
            });
            while !inside.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            resizing.store(true, Ordering::Release);
            assert_eq!(cq.resize(2).unwrap_err().errno(), errno::EINVAL);
        });
        cq.resize(3).unwrap();
        assert_eq!(take(&context, &cq, 3).len(), 3);
    }
}

// A queue is resized all the time, while queue pairs on two shards complete into it: each completion appears once, in order.
#[test]
fn c10_resize_under_load() {
    const EACH: u64 = 3000;
    for drive in [Drive::Caller, Drive::Dedicated { cores: vec![] }] {
        let context = Context::open(DeviceConfig::loopback().shards(2).drive(drive)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(512).unwrap();
        let qps: Vec<Qp> = (0..2)
            .map(|shard| pd.create_qp(&QpInitAttr::rc(&cq, &cq).cap(depth(64)).on_shard(shard)).unwrap())
            .collect();
        for (qp, peer) in [(0, 1), (1, 0)] {
            qps[qp].connect_rc(&qps[peer].endpoint(1).unwrap(), &options()).unwrap();
        }
        let (mut posted, mut next) = ([0; 2], [0; 2]);
        let mut sizes = [256, 512, 300, 1024].into_iter().cycle();
        let mut wc = [Wc::default(); 16];
        let start = Instant::now();
        while next != [EACH; 2] {
            assert!(start.elapsed() < 3 * PATIENCE, "{next:?} of {posted:?}");
            for ((qp, posted), next) in qps.iter().zip(&mut posted).zip(next) {
                while *posted < EACH.min(next + 100)
                    && qp.post_send(&[SendWr::write(*posted, &[], 0, 0).signaled()]).is_ok()
                {
                    *posted += 1;
                }
            }
            cq.resize(sizes.next().unwrap()).unwrap();
            let n = cq.poll(&mut wc).unwrap();
            for wc in &wc[..n] {
                let which = usize::from(wc.qp_num == qps[1].qp_num());
                assert_eq!((wc.wr_id, wc.status), (next[which], WcStatus::Success));
                next[which] += 1;
            }
        }
        assert_eq!(context.try_get_async_event(), None);
    }
}

// One queue for both ends of two connections, on two shards, polled by two threads: each completion once, and the
// completions of each work queue in order.
#[test]
fn c11_two_threads_poll_one_queue() {
    const EACH: u64 = 1000;
    let context = Context::open(DeviceConfig::loopback().shards(2)).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(4096).unwrap();
    let qps: Vec<Qp> = (0..2).map(|n| pd.create_qp(&QpInitAttr::rc(&cq, &cq).on_shard(n)).unwrap()).collect();
    for (qp, peer) in [(0, 1), (1, 0)] {
        qps[qp].connect_rc(&qps[peer].endpoint(1).unwrap(), &options()).unwrap();
    }
    // The last polled completion of each work queue. The lock makes the order of polls the order of the entries.
    let seen: Mutex<HashMap<(u32, bool), u64>> = Mutex::default();
    let done = |seen: &HashMap<(u32, bool), u64>| seen.values().sum::<u64>() == 4 * EACH;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (start, mut wc) = (Instant::now(), [Wc::default(); 7]);
                loop {
                    let mut seen = seen.lock().unwrap();
                    if done(&seen) {
                        return;
                    }
                    assert!(start.elapsed() < 3 * PATIENCE, "{seen:?}");
                    let n = cq.poll(&mut wc).unwrap();
                    for wc in &wc[..n] {
                        assert!(wc.is_ok(), "{wc:?}");
                        let next = seen.entry((wc.qp_num.get(), wc.opcode.is_recv())).or_default();
                        assert_eq!(wc.wr_id, *next);
                        *next += 1;
                    }
                }
            });
        }
        // A third thread posts; it waits only for room in the queues.
        let start = Instant::now();
        for id in 0..EACH {
            for qp in &qps {
                while qp.post_recv(&[RecvWr::new(id, &[])]).is_err() {
                    assert!(start.elapsed() < 3 * PATIENCE);
                    std::thread::yield_now();
                }
            }
            for qp in &qps {
                while qp.post_send(&[SendWr::send(id, &[]).signaled()]).is_err() {
                    assert!(start.elapsed() < 3 * PATIENCE);
                    std::thread::yield_now();
                }
            }
        }
    });
}

#[test]
fn c12_a_destroyed_queue_pair_leaves_no_completions() {
    let p = Pair::new(embedded());
    for id in 0..4 {
        p.a.post_send(&[SendWr::write(id, &[], 0, 0).signaled()]).unwrap();
    }
    for _ in 0..100 {
        pump(&p.context);
    }
    let gone = p.a.qp_num();
    let other = p.pd.create_qp(&QpInitAttr::rc(&p.cq_a, &p.cq_a)).unwrap();
    other.connect_rc(&other.endpoint(1).unwrap(), &options()).unwrap();
    other.post_send(&[SendWr::write(9, &[], 0, 0).signaled()]).unwrap();
    for _ in 0..100 {
        pump(&p.context);
    }
    // The completions are in the queue: the first is polled, the others wait after it.
    let mut wc = [Wc::default()];
    assert_eq!((p.cq_a.poll(&mut wc).unwrap(), wc[0].qp_num), (1, gone));
    p.a.destroy().unwrap();
    let done = take(&p.context, &p.cq_a, 1);
    assert_eq!((done[0].wr_id, done[0].qp_num), (9, other.qp_num()));
    assert_no_completion(&p.context, &p.cq_a);
}

#[test]
fn c13_sizes_out_of_range() {
    let context = embedded();
    let max = context.query_device().max_cqe;
    for cqe in [0, max + 1, u32::MAX] {
        let e = context.create_cq(cqe).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL, "{e}");
        assert!(e.to_string().contains(&cqe.to_string()), "{e}");
    }
    context.create_cq(1).unwrap();
    // Other attributes of a queue that are refused.
    let e = context.create_cq_ex(&CqInitAttr { comp_vector: 1, ..CqInitAttr::new(1) }).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "{e}");
    let e = context.create_cq_ex(&CqInitAttr { wc_flags: CqWcFlags::TM_INFO, ..CqInitAttr::new(1) });
    assert_eq!(e.unwrap_err().errno(), errno::EOPNOTSUPP);
    context.create_cq_ex(&CqInitAttr { wc_flags: CqWcFlags::SUPPORTED, ..CqInitAttr::new(1) }).unwrap();
    let other = embedded();
    let foreign = other.create_comp_channel().unwrap();
    let e = context.create_cq_ex(&CqInitAttr::new(1).channel(&foreign)).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "{e}");
    let e = context.create_cq(1).unwrap().req_notify(false).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "{e}");
}

// The blocking call, with a single thread, in each drive.
#[test]
fn waiting_for_an_event_returns_in_each_drive() {
    for drive in drives() {
        let config = DeviceConfig::loopback().shards(2).drive(drive.clone());
        let p = Armed::new(Context::open(config).unwrap());
        assert_eq!(p.channel.get_cq_event(Duration::from_millis(2)).unwrap(), None);
        for id in 0..20 {
            p.cq_b.req_notify(false).unwrap();
            p.b.post_recv(&[RecvWr::new(id, &[])]).unwrap();
            p.a.post_send(&[SendWr::send(id, &[])]).unwrap();
            let event = p.channel.get_cq_event(PATIENCE).unwrap();
            let event = event.unwrap_or_else(|| panic!("message {id} in {drive:?}"));
            assert!(event.is_of(&p.cq_b));
            p.cq_b.ack_events(1).unwrap();
            let mut wc = [Wc::default(); 2];
            assert_eq!((p.cq_b.poll(&mut wc).unwrap(), wc[0].wr_id), (1, id));
        }
    }
}

// The extended poll: every field of each completion, and increasing times.
#[test]
fn extended_poll_reads_each_field() {
    let p = Pair::new(embedded());
    assert!(p.cq_b.start_poll().unwrap().is_none());
    let before = (p.context.now(), unix_ns());
    for id in 0..3 {
        p.b.post_recv(&[RecvWr::new(id, &[p.mr.sge(0..64).unwrap()])]).unwrap();
    }
    p.a.post_send(&[SendWr::send(1, &[p.mr.sge(64..76).unwrap()]), SendWr::send_with_imm(2, &[], 5)])
        .unwrap();
    let sent_to = |mr: &Mr| mr.rkey();
    p.a.post_send(&[SendWr::write_with_imm(3, &[], p.mr.addr(), sent_to(&p.mr), 6)]).unwrap();
    for _ in 0..200 {
        pump(&p.context);
    }
    let after = (p.context.now(), unix_ns());
    let mut poll = p.cq_b.start_poll().unwrap().expect("three completions");
    let mut last = (before.0, 0);
    for (id, len, imm) in [(0, 12, None), (1, 0, Some(5)), (2, 0, Some(6))] {
        if id > 0 {
            assert!(poll.next_poll().unwrap());
        }
        assert_eq!((poll.wr_id(), poll.status(), poll.read_byte_len()), (id, WcStatus::Success, len));
        assert_eq!((poll.read_imm_data(), poll.read_invalidated_rkey()), (imm, None));
        assert_eq!((poll.read_qp_num(), poll.read_vendor_err()), (p.b.qp_num(), 0));
        assert_eq!(poll.read_opcode(), if id == 2 { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv });
        assert_eq!((poll.read_slid(), poll.read_sl(), poll.read_dlid_path_bits()), (0, 0, 0));
        let now = (poll.read_completion_ts(), poll.read_completion_wallclock_ns());
        assert!((last.0..=after.0).contains(&now.0), "{now:?} after {last:?}");
        // The two clocks are not read at the same moment: they differ by far less than a second.
        let slack = 1_000_000_000;
        assert!((before.1 - slack..=after.1 + slack).contains(&now.1), "{now:?} in {before:?} to {after:?}");
        last = now;
    }
    assert!(!poll.next_poll().unwrap());
    assert_eq!(poll.wr_id(), 2, "it stays where it was");
    // Another thread may end the poll, and a third waits for that.
    std::thread::scope(|s| {
        s.spawn(|| assert_eq!(p.cq_b.poll(&mut [Wc::default()]).unwrap(), 0));
        s.spawn(move || poll.end_poll());
    });
    let poller = p.cq_b.poller().unwrap();
    assert_eq!(p.cq_b.start_poll().unwrap_err().errno(), errno::EBUSY);
    drop(poller);
    assert!(p.cq_b.start_poll().unwrap().is_none());
}

#[test]
fn completions_go_to_a_closure() {
    let p = Pair::new(embedded());
    let write = |id| SendWr::write(id, &[], p.mr.addr(), p.mr.rkey()).signaled();
    assert_eq!(p.cq_a.poll_with(4, |wc| panic!("{wc:?}")).unwrap(), 0);
    p.a.post_send((0..40).map(write)).unwrap();
    let mut ids = Vec::new();
    let mut until = |n: usize, max: usize| {
        while ids.len() < n {
            pump(&p.context);
            let got = p.cq_a.poll_with(max.min(n - ids.len()), |wc| {
                assert!(wc.is_ok(), "{wc:?}");
                ids.push(wc.wr_id);
                // The callback may post, and make control calls.
                if wc.wr_id == 0 {
                    p.a.post_send([write(40)]).unwrap();
                    assert_eq!(p.a.query().unwrap().0.qp_state, verbs::QpState::Rts);
                }
            });
            assert!(got.unwrap() <= max);
        }
    };
    until(10, 3);
    until(41, 64);
    assert!(ids.iter().copied().eq(0..41), "{ids:?}");
    // A panic loses at most the completions that were passed before it.
    p.a.post_send((50..53).map(write)).unwrap();
    pump(&p.context);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        while p.cq_a.poll_with(8, |_| panic!("at the first")).unwrap() == 0 {
            pump(&p.context);
        }
    }));
    assert!(panicked.is_err());
    let mut poller = p.cq_a.poller().unwrap();
    let mut last = 0;
    while last != 52 {
        pump(&p.context);
        poller.poll_with(8, |wc| last = wc.wr_id).unwrap();
    }
}

fn unix_ns() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
}

// A regression found by threads that cycle a queue pair through its states: completions of a flush waited for a turn, and
// those of many cycles together overran a queue that never held more than those of one.
#[test]
fn state_cycles_without_a_turn_do_not_overrun_the_queue() {
    let context = common::embedded();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(300).unwrap();
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    for _ in 0..10 {
        qp.connect_rc(&qp.endpoint(1).unwrap(), &common::options()).unwrap();
        for id in 0..128 {
            qp.post_send(&[SendWr::send(id, &[])]).unwrap();
            qp.post_recv(&[RecvWr::new(id, &[])]).unwrap();
        }
        common::enter(&qp, QpState::Err);
        common::enter(&qp, QpState::Reset);
    }
    assert_eq!(context.try_get_async_event().map(|e| e.event), None);
    qp.connect_rc(&qp.endpoint(1).unwrap(), &common::options()).unwrap();
    common::enter(&qp, QpState::Err);
    qp.post_send(&[SendWr::send(7, &[])]).unwrap();
    assert_eq!(common::take(&context, &cq, 1)[0].wr_id, 7);
}

/// Two linked devices, which the test drives.
fn two_devices() -> (Context, Context) {
    let (a, b) = pair(1);
    let open = |port, last| {
        let config = DeviceConfig::new(port).addr([192, 0, 2, last], 24).drive(Drive::Embedded);
        Context::open(config).unwrap()
    };
    (open(a, 1), open(b, 2))
}

/// A server answers, and its client sends the next request after the answer: the answer's acknowledgement and the request are received in
/// the same turn of the server. `cqs` creates the server's queues: one for sends and one for receives, or one for both. `look` polls them
/// before that turn and after each later one, and notes what it finds: 1 for the completion of the answer, 10 for the request.
fn answer_and_next_request(cqs: impl Fn(&Context) -> Vec<Cq>, mut look: impl FnMut(&[Cq], &mut Vec<u64>)) {
    let (a, b) = two_devices();
    let (cqs, cq_b) = (cqs(&a), b.create_cq(16).unwrap());
    let (pd_a, pd_b) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
    let server = pd_a.create_qp(&QpInitAttr::rc(cqs.first().unwrap(), cqs.last().unwrap())).unwrap();
    let client = pd_b.create_qp(&QpInitAttr::rc(&cq_b, &cq_b)).unwrap();
    server.connect_rc(&client.endpoint(1).unwrap(), &options()).unwrap();
    client.connect_rc(&server.endpoint(1).unwrap(), &options()).unwrap();
    let mut wc = [Wc::default(); 4];
    // In the first round the devices resolve each other's Ethernet addresses.
    for round in 0..3 {
        let mut found = Vec::new();
        look(&cqs, &mut found);
        server.post_recv(&[RecvWr::new(10, &[])]).unwrap();
        client.post_recv(&[RecvWr::new(20, &[])]).unwrap();
        server.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
        let start = Instant::now();
        pump(&a);
        while cq_b.poll(&mut wc).unwrap() == 0 {
            assert!(start.elapsed() < PATIENCE, "the answer of round {round}");
            pump(&b);
            if round == 0 {
                pump(&a);
            }
        }
        client.post_send(&[SendWr::send(2, &[])]).unwrap();
        // The acknowledgement and the request wait for the server's turn.
        (0..4).for_each(|_| pump(&b));
        while found.len() < 2 {
            assert!(start.elapsed() < PATIENCE, "{found:?} of round {round}");
            pump(&a);
            look(&cqs, &mut found);
            pump(&b);
        }
        assert_eq!(found, [1, 10], "round {round}");
    }
}

// Some servers (tgt) treat a request that they receive before the completion of their answer as a protocol error.
#[test]
fn a_send_completes_before_the_message_that_came_behind_its_acknowledgement() {
    let one = |context: &Context| vec![context.create_cq(16).unwrap()];
    answer_and_next_request(one, |cqs, found| {
        let mut wc = [Wc::default(); 4];
        let n = cqs[0].poll(&mut wc).unwrap();
        assert!(wc[..n].iter().all(Wc::is_ok));
        found.extend(wc[..n].iter().map(|wc| wc.wr_id));
    });
}

// Some programs (ib_send_lat -e) wait on one channel for the completion of their latest call, and do not check which queue an event is of.
#[test]
fn events_come_in_the_order_of_the_completions_that_raise_them() {
    let channel = std::cell::OnceCell::new();
    let two = |context: &Context| {
        let channel = channel.get_or_init(|| context.create_comp_channel().unwrap());
        let cq = |n| context.create_cq_ex(&CqInitAttr::new(16).channel(channel).context(n)).unwrap();
        vec![cq(1), cq(10)]
    };
    answer_and_next_request(two, |cqs, found| {
        while let Some(event) = channel.get().unwrap().try_get_cq_event() {
            found.push(event.cq_context);
            cqs.iter().find(|cq| event.is_of(cq)).unwrap().ack_events(1).unwrap();
        }
        for cq in cqs {
            cq.req_notify(false).unwrap();
            cq.poll(&mut [Wc::default(); 4]).unwrap();
        }
    });
}

// The request that was acknowledged first completes first, whatever else was acknowledged in the turn.
#[test]
fn sends_of_several_queue_pairs_complete_in_the_order_of_their_acknowledgements() {
    let (a, b) = two_devices();
    let (cq_a, cq_b) = (a.create_cq(16).unwrap(), b.create_cq(16).unwrap());
    let (pd_a, pd_b) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
    let qps = [1, 2, 3].map(|n| {
        let from = pd_a.create_qp(&QpInitAttr::rc(&cq_a, &cq_a)).unwrap();
        let to = pd_b.create_qp(&QpInitAttr::rc(&cq_b, &cq_b)).unwrap();
        from.connect_rc(&to.endpoint(1).unwrap(), &options()).unwrap();
        to.connect_rc(&from.endpoint(1).unwrap(), &options()).unwrap();
        (n, from, to)
    });
    let mut wc = [Wc::default(); 4];
    // In the first round the devices resolve each other's Ethernet addresses.
    for round in 0..3 {
        for (n, from, to) in &qps {
            to.post_recv(&[RecvWr::new(0, &[])]).unwrap();
            from.post_send(&[SendWr::send(*n, &[]).signaled()]).unwrap();
            pump(&a);
        }
        let (start, mut done) = (Instant::now(), Vec::new());
        while done.len() < qps.len() {
            assert!(start.elapsed() < PATIENCE, "{done:?} of round {round}");
            // The acknowledgements are received in one turn.
            (0..4).for_each(|_| pump(&b));
            pump(&a);
            let n = cq_a.poll(&mut wc).unwrap();
            done.extend(wc[..n].iter().map(|wc| wc.wr_id));
        }
        if round > 0 {
            assert_eq!(done, [1, 2, 3], "round {round}");
        }
        cq_b.poll(&mut wc).unwrap();
    }
}
