//! Event descriptors in epoll(7) wake a sleeping program on completions and events, in each drive.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use crate::common::{self, PATIENCE, options, pump};
use verbs::{
    AsyncEvent, AttrMask, Context, CqInitAttr, DeviceConfig, Drive, QpInitAttr, QpState, RecvWr, SendWr, Wc,
    attr_to,
};

struct Epoll(OwnedFd);

impl Epoll {
    /// Waits for these descriptors, level-triggered or edge-triggered.
    fn new(fds: &[RawFd], edge: bool) -> Self {
        // SAFETY: takes a number; the descriptor that it creates has no other owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        for fd in fds {
            let events = (libc::EPOLLIN | if edge { libc::EPOLLET } else { 0 }) as u32;
            let mut event = libc::epoll_event { events, u64: *fd as u64 };
            // SAFETY: both descriptors are open, and the event is read during the call only.
            let r = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, *fd, &mut event) };
            assert_eq!(r, 0);
        }
        Self(epoll)
    }

    /// The descriptor that became readable; `None` after this many milliseconds.
    fn wait(&self, timeout_ms: i32) -> Option<RawFd> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: there is room for one event, which only this call writes.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, timeout_ms) };
        (n == 1).then_some(event.u64 as RawFd)
    }
}

fn set_nonblocking(fd: RawFd, on: bool) {
    // SAFETY: numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }, 0);
}

// Only the threads of the drive poll the shards: the dedicated ones, the helper in the caller drive, and this loop in the embedded drive.
#[test]
fn a_sleeping_program_is_woken_in_each_drive() {
    for drive in [Drive::Caller, Drive::Embedded, Drive::Dedicated { cores: vec![] }] {
        for edge in [false, true] {
            let config = DeviceConfig::loopback().shards(2).drive(drive.clone());
            let context = Context::open(config).unwrap();
            let channel = context.create_comp_channel().unwrap();
            let pd = context.alloc_pd().unwrap();
            let cq = context.create_cq_ex(&CqInitAttr::new(64).channel(&channel)).unwrap();
            let silent = context.create_cq(64).unwrap();
            let a = pd.create_qp(&QpInitAttr::rc(&silent, &silent).on_shard(0)).unwrap();
            let b = pd.create_qp(&QpInitAttr::rc(&cq, &cq).on_shard(1)).unwrap();
            a.connect_rc(&b.endpoint(1).unwrap(), &options()).unwrap();
            b.connect_rc(&a.endpoint(1).unwrap(), &options()).unwrap();
            let (completions, events) = (channel.as_raw_fd(), context.async_fd().unwrap().as_raw_fd());
            let epoll = Epoll::new(&[completions, events], edge);
            let sleep = || {
                let start = Instant::now();
                if drive != Drive::Embedded {
                    return epoll.wait(PATIENCE.as_millis() as i32);
                }
                loop {
                    pump(&context);
                    let ready = epoll.wait(0);
                    if ready.is_some() || start.elapsed() > PATIENCE {
                        return ready;
                    }
                }
            };
            let mut wc = [Wc::default(); 4];
            for id in 0..10 {
                set_nonblocking(completions, id % 2 == 0);
                cq.req_notify(false).unwrap();
                b.post_recv(&[RecvWr::new(id, &[])]).unwrap();
                a.post_send(&[SendWr::send(id, &[])]).unwrap();
                assert_eq!(sleep(), Some(completions), "message {id} in {drive:?}");
                let event = channel.try_get_cq_event().unwrap();
                assert!(event.is_of(&cq));
                cq.ack_events(1).unwrap();
                assert_eq!(channel.try_get_cq_event(), None);
                assert_eq!(epoll.wait(0), None, "fetched, so not readable");
                assert_eq!((cq.poll(&mut wc).unwrap(), wc[0].wr_id), (1, id));
            }
            let (mut attr, mask) = attr_to(QpState::Sqd);
            attr.en_sqd_async_notify = true;
            a.modify(&attr, mask | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
            assert_eq!(sleep(), Some(events), "{drive:?}");
            let event = context.try_get_async_event().unwrap();
            // B was in RTS, so the first message raised no COMM_EST, and this is the first event.
            assert_eq!(event.event, AsyncEvent::SqDrained);
            assert_eq!(epoll.wait(0), None);
        }
    }
}

// Two events are fetched one by one: the descriptor stays readable until the last one is fetched. An event that disappears with its
// object leaves the descriptor unreadable.
#[test]
fn readable_while_something_waits() {
    let context = Context::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
    let channel = context.create_comp_channel().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cqs = [0, 1].map(|_| context.create_cq_ex(&CqInitAttr::new(64).channel(&channel)).unwrap());
    let qps: Vec<_> = cqs.iter().map(|cq| pd.create_qp(&QpInitAttr::rc(cq, cq)).unwrap()).collect();
    let epoll = Epoll::new(&[channel.as_raw_fd()], false);
    let readable = || epoll.wait(0).is_some();
    for (qp, cq) in qps.iter().zip(&cqs) {
        qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
        cq.req_notify(false).unwrap();
        qp.post_send(&[SendWr::write(1, &[], 0, 0).signaled()]).unwrap();
    }
    for cq in &cqs {
        common::take(&context, cq, 1);
    }
    assert!(readable() && readable());
    let first = channel.try_get_cq_event().unwrap();
    assert!(readable());
    let (fetched, other) = if first.is_of(&cqs[0]) { (0, 1) } else { (1, 0) };
    cqs[fetched].ack_events(1).unwrap();
    drop(qps);
    let mut cqs = cqs.map(Some);
    cqs[other].take().unwrap().destroy().unwrap();
    assert!(!readable());
    assert_eq!(channel.try_get_cq_event(), None);
}

// A connection event wakes a program that sleeps on its event channel. The descriptor is readable while an event waits.
#[test]
fn connection_events_wake_a_sleeping_program() {
    use verbs::rdma_cm::{CmEventType, ConnParam, PortSpace};
    for drive in [Drive::Caller, Drive::Dedicated { cores: vec![] }] {
        let context = Context::open(DeviceConfig::loopback().drive(drive.clone())).unwrap();
        let channel = verbs::rdma_cm::EventChannel::new().unwrap();
        let epoll = Epoll::new(&[channel.as_raw_fd()], false);
        let next = |what| {
            assert_eq!(epoll.wait(PATIENCE.as_millis() as i32), Some(channel.as_raw_fd()), "{drive:?}");
            let event = channel.try_get_event().expect("the descriptor said so");
            assert_eq!(event.event(), what);
            event
        };
        let id = || context.create_id(Some(&channel), PortSpace::Tcp).unwrap();
        let (listener, client) = (id(), id());
        listener.listen(0).unwrap();
        assert_eq!(epoll.wait(0), None);
        client.resolve_addr(None, ([192, 0, 2, 1], listener.src_port()), PATIENCE).unwrap();
        next(CmEventType::AddrResolved).ack();
        client.resolve_route(PATIENCE).unwrap();
        next(CmEventType::RouteResolved).ack();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        client.create_qp(&pd, &QpInitAttr::rc(&cq, &cq)).unwrap();
        client.connect(&ConnParam::default()).unwrap();
        let server = next(CmEventType::ConnectRequest).take_id().unwrap();
        server.create_qp(&pd, &QpInitAttr::rc(&cq, &cq)).unwrap();
        server.accept(&ConnParam::default()).unwrap();
        next(CmEventType::Established).ack();
        next(CmEventType::Established).ack();
        assert_eq!(epoll.wait(0), None, "fetched, so not readable");
        client.disconnect().unwrap();
        next(CmEventType::Disconnected).ack();
        // Waiting events disappear with their identifier.
        assert!(epoll.wait(PATIENCE.as_millis() as i32).is_some());
        drop((client, server));
        assert_eq!(epoll.wait(0), None);
    }
}
