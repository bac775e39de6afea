//! Safe code cannot cause undefined behaviour, whatever it does: the program's own port panics or calls back in the middle of a turn, and
//! threads use one region at once. `scripts/deep miri` runs this file under Miri, so the devices here are small, with a manual clock and
//! a seed.
#![forbid(unsafe_code)]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::hooked::{Burst, Hooked};
use common::{PATIENCE, all_rights};
use verbs::errno::{EDEADLK, EIO};
use verbs::port::{
    Armed, Build, Frame, Host, Numbers, Port, PortError, PortInfo, PortOptions, PortQueue, PortSpec,
    PortStats, Route, RxBurst, TxBurst,
};
use verbs::{
    Access, AsyncEvent, Clock, Context, CqInitAttr, DeviceConfig, DeviceError, Drive, Gid, Mr, MwBind,
    MwBindInfo, MwType, Pd, PostErrorKind, Qp, QpInitAttr, QpState, Reactor, RecvWr, Rereg, SendFlags,
    SendWr, VerbsError, Wc, attr_to,
};

type Hook = Box<dyn Fn(&Burst<'_>) + Send>;

/// A hook that the port of a device runs before each operation.
#[derive(Clone, Default)]
struct HookedDevice(Arc<Mutex<Option<Hook>>>);

impl HookedDevice {
    fn set(&self, hook: impl Fn(&Burst<'_>) + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(hook));
    }
    fn clear(&self) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = None;
    }
    /// Opens a device on such a port, with this many shards.
    fn open(&self, shards: usize, drive: Drive) -> Context {
        let options = PortOptions { frames: 256, queues: shards, ..PortOptions::default() };
        let port = PortSpec::Loopback.open(&options).unwrap();
        let hook = self.0.clone();
        let port = Hooked::around(port, move |burst| {
            // Not locked during the call, which may call back, or panic.
            let run = hook.lock().unwrap().take();
            if let Some(run) = run {
                run(&burst);
                hook.lock().unwrap().get_or_insert(run);
            }
            true
        });
        let mut config = DeviceConfig::loopback().port(port).shards(shards).drive(drive);
        config.clock = Clock::Manual(Arc::new(AtomicU64::new(1)));
        config.seed = Some(1);
        config.qps_per_shard = 16;
        Context::open(config).unwrap()
    }
}

fn config(seed: u64) -> DeviceConfig {
    let mut config = DeviceConfig::loopback().drive(Drive::Embedded);
    config.clock = Clock::Manual(Arc::new(AtomicU64::new(1)));
    config.seed = Some(seed);
    config.qps_per_shard = 16;
    config
}

/// A queue pair that is connected to itself.
fn to_itself(pd: &Pd, init: &QpInitAttr<'_>) -> Qp {
    let qp = pd.create_qp(init).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &common::options()).unwrap();
    qp
}

fn dead<T: std::fmt::Debug>(result: Result<T, VerbsError>) {
    let e = result.expect_err("the shard is dead");
    assert!(matches!(e, VerbsError::Device(DeviceError::ShardDied { shard: 0 })), "{e}");
    assert_eq!(e.errno(), EIO);
    assert!(e.to_string().contains("died of a panic"), "{e}");
}

/// Makes a turn in which the port may panic; returns whether it did.
fn panics(reactor: &mut Reactor) -> bool {
    catch_unwind(AssertUnwindSafe(|| reactor.poll_once())).is_err()
}

/// Checks a device whose port panics at operation number `allowed`. `false` if there were fewer operations.
fn ends_after(allowed: u32) -> bool {
    let hooked = HookedDevice::default();
    let context = hooked.open(1, Drive::Embedded);
    let pd = context.alloc_pd().unwrap();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq_ex(&CqInitAttr::new(16).channel(&channel)).unwrap();
    let qp = to_itself(&pd, &QpInitAttr::rc(&cq, &cq));
    let mr = pd.reg_mr(4096, all_rights() | Access::MW_BIND).unwrap();
    let mw = pd.alloc_mw(MwType::One).unwrap();
    let sge = [mr.sge(0..64).unwrap()];
    qp.post_recv(&[RecvWr::new(0, &sge), RecvWr::new(1, &sge), RecvWr::new(2, &sge)]).unwrap();
    let mut reactor = context.reactor(0).unwrap();
    let bind_info = MwBindInfo::new(&mr, 0..64, Access::REMOTE_READ).unwrap();
    qp.bind_mw(&mw, &MwBind { wr_id: 9, send_flags: SendFlags::empty(), bind_info }).unwrap();
    qp.post_send(&[SendWr::send(10, &[]).inline(b"zero.").signaled()]).unwrap();
    (0..10).for_each(|_| assert!(reactor.poll_once().is_some()));
    qp.post_send(&[SendWr::send(11, &[]).inline(b"first").signaled()]).unwrap();
    let left = AtomicU32::new(allowed);
    hooked.set(move |_| assert!(left.fetch_sub(1, Ordering::Relaxed) != 0, "the port panics"));
    if !(0..8).any(|_| panics(&mut reactor)) {
        return false;
    }
    hooked.clear();

    // No turn can be made any more, so memory that a turn could have accessed is free, and keeps its contents.
    let keep = mr.to_vec(0..4096).unwrap();
    assert_eq!(reactor.poll_once(), None);
    dead(reactor.try_poll_once());
    for wr in [SendWr::send(12, &sge), SendWr::write(13, &sge, mr.addr(), mr.rkey())] {
        let e = qp.post_send(&[wr]).unwrap_err();
        assert_eq!((e.kind, e.errno()), (PostErrorKind::ShardDied(0), EIO), "{e}");
    }
    let e = qp.post_recv(&[RecvWr::new(3, &sge)]).unwrap_err();
    assert_eq!((e.kind, e.errno()), (PostErrorKind::ShardDied(0), EIO), "{e}");
    dead(qp.state());
    dead(qp.query());
    let (attr, mask) = attr_to(QpState::Err);
    dead(qp.modify(&attr, mask));
    dead(qp.drain_qp(PATIENCE));
    dead(pd.create_qp(&QpInitAttr::rc(&cq, &cq)));

    // Completions published before the panic can be polled; after them comes the error.
    let mut wc = [Wc::default(); 8];
    let n = cq.poll(&mut wc).unwrap();
    let done: Vec<u64> = wc[..n].iter().map(|wc| wc.wr_id).collect();
    assert!(done.contains(&0) && done.contains(&10) && wc[..n].iter().all(Wc::is_ok), "{done:?}");
    dead(cq.poll(&mut wc));
    dead(cq.poller().unwrap().poll(&mut wc));
    dead(cq.start_poll().map(|_| ()));
    while channel.try_get_cq_event().is_some() {
        cq.ack_events(1).unwrap();
    }
    dead(channel.get_cq_event(Duration::MAX).map(|_| ()));

    // The event is raised once, and a thread that waits for more events gets an error.
    let mut fatal = 0;
    while let Some(event) = context.try_get_async_event() {
        fatal += u32::from(event.event == AsyncEvent::DeviceFatal);
    }
    assert_eq!(fatal, 1);
    dead(context.get_async_event(Duration::MAX));
    assert!(context.stats().shards[0].dead);

    // All objects can be destroyed, in the usual order.
    let lkey = mr.lkey();
    mw.dealloc().map_err(|(e, _)| e).unwrap();
    assert_eq!(mr.to_vec(0..4096).unwrap(), keep);
    mr.dereg().map_err(|(e, _)| e).unwrap();
    let others: Vec<Mr> = (0..4).map(|_| pd.reg_mr(4096, Access::empty()).unwrap()).collect();
    (0..10).for_each(|_| assert_eq!(reactor.poll_once(), None));
    assert!(others.iter().all(|mr| mr.to_vec(0..4096).unwrap() == [0; 4096] && mr.lkey() != lkey));
    drop(others);
    qp.destroy().map_err(|(e, _)| e).unwrap();
    dead(cq.poll(&mut wc));
    cq.destroy().map_err(|(e, _)| e).unwrap();
    channel.destroy().map_err(|(e, _)| e).unwrap();
    pd.dealloc().map_err(|(e, _)| e).unwrap();
    drop(reactor);
    context.close().map_err(|(e, _)| e).unwrap();
    true
}

#[test]
fn a_panic_anywhere_in_a_turn_is_the_end_of_the_shard() {
    // Each run opens a device, which takes Miri half a minute.
    let (step, least) = if cfg!(miri) { (5, 1) } else { (1, 3) };
    let ends = (0..100).step_by(step).take_while(|allowed| ends_after(*allowed)).count();
    assert!((least..100).contains(&ends), "{ends} places");
}

// Goal: a panic releases the claim and the mark of the thread as inside a turn: other devices still work.
#[test]
fn a_panic_in_a_turn_leaves_the_thread_as_it_was() {
    let hooked = HookedDevice::default();
    let context = hooked.open(1, Drive::Embedded);
    context.start().unwrap();
    hooked.set(|_| panic!("the port panics"));
    assert!(panics(&mut context.reactor(0).unwrap()));
    let other = Context::open(config(2)).unwrap();
    let (pd, cq) = (other.alloc_pd().unwrap(), other.create_cq(4).unwrap());
    let qp = to_itself(&pd, &QpInitAttr::rc(&cq, &cq));
    qp.query().unwrap();
    assert!(other.reactor(0).unwrap().try_poll_once().unwrap().is_some());
}

// Goal: a panic in a control call, which holds the shard like a turn, ends the shard as well.
#[test]
fn a_panic_in_a_control_call_is_the_end_of_the_shard() {
    let hooked = HookedDevice::default();
    let context = hooked.open(1, Drive::Embedded);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let mr = pd.reg_mr(4096, all_rights()).unwrap();
    let options = common::options();
    qp.init_rc(&options).unwrap();
    hooked.set(|_| panic!("the port panics"));
    // The Ethernet address of this peer has to be resolved, which sends a frame through the port.
    let peer = verbs::RcEndpoint { gid: Gid::v4([192, 0, 2, 77]), ..qp.endpoint(1).unwrap() };
    assert!(catch_unwind(AssertUnwindSafe(|| qp.connect_rc(&peer, &options))).is_err());
    hooked.clear();
    dead(qp.query());
    dead(context.reactor(0).unwrap().try_poll_once());
    mr.dereg().map_err(|(e, _)| e).unwrap();
    qp.destroy().map_err(|(e, _)| e).unwrap();
}

// Goal: the other shards of a device continue, and so do calls that need no shard.
#[test]
fn the_other_shards_go_on() {
    let hooked = HookedDevice::default();
    let context = hooked.open(2, Drive::Embedded);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let dying = to_itself(&pd, &QpInitAttr::rc(&cq, &cq).on_shard(0));
    let other_cq = context.create_cq(64).unwrap();
    let living = to_itself(&pd, &QpInitAttr::rc(&other_cq, &other_cq).on_shard(1));
    let mr = pd.reg_mr(4096, all_rights()).unwrap();
    hooked.set(|_| panic!("the port panics"));
    assert!(panics(&mut context.reactor(0).unwrap()));
    hooked.clear();
    dead(dying.query());
    let mut reactor = context.reactor(1).unwrap();
    for round in 0..3 {
        let target = pd.reg_mr(4096, all_rights()).unwrap();
        mr.write(0, &[round + 1; 64]).unwrap();
        let sge = [mr.sge(0..64).unwrap()];
        living.post_send(&[SendWr::write(1, &sge, target.addr(), target.rkey()).signaled()]).unwrap();
        let mut wc = [Wc::default(); 4];
        let n = (0..20).find_map(|_| {
            reactor.try_poll_once().unwrap();
            Some(other_cq.poll(&mut wc).unwrap()).filter(|n| *n > 0)
        });
        assert!(n == Some(1) && wc[0].is_ok(), "{n:?} {:?}", wc[0]);
        assert_eq!(target.to_vec(0..64).unwrap(), [round + 1; 64]);
        // Waits for a turn boundary of each shard; the dead shard counts as past its last.
        target.dereg().map_err(|(e, _)| e).unwrap();
    }
    let shards = context.stats().shards;
    assert!(shards[0].dead && !shards[1].dead);
    dying.destroy().map_err(|(e, _)| e).unwrap();
    living.destroy().map_err(|(e, _)| e).unwrap();
}

// Goal: threads of the device end with their shards, no call is left waiting, and the device can be closed.
#[test]
#[cfg_attr(miri, ignore = "threads that spin: too slow under Miri")]
fn a_panic_on_a_thread_of_the_device_ends_its_shard_alone() {
    for drive in [Drive::Caller, Drive::Dedicated { cores: vec![] }] {
        let hooked = HookedDevice::default();
        let context = hooked.open(2, drive.clone());
        let (pd, channel) = (context.alloc_pd().unwrap(), context.create_comp_channel().unwrap());
        let cq = context.create_cq_ex(&CqInitAttr::new(16).channel(&channel)).unwrap();
        let qps = [0, 1].map(|shard| to_itself(&pd, &QpInitAttr::rc(&cq, &cq).on_shard(shard)));
        let panicked = AtomicBool::new(false);
        hooked.set(move |_| assert!(panicked.swap(true, Ordering::Relaxed), "the port panics, once"));
        if drive == Drive::Caller {
            // A thread has to drive the shard to meet the panic: a caller, to which the panic propagates, or the helper.
            let poll = || cq.poll(&mut [Wc::default()]).is_ok();
            while matches!(catch_unwind(AssertUnwindSafe(poll)), Ok(true)) {}
        }
        let waited = channel.get_cq_event(Duration::MAX).map(|_| ());
        assert_eq!(waited.unwrap_err().errno(), EIO, "{drive:?}");
        let dead = [0, 1].map(|shard| qps[shard].query().is_err());
        assert_eq!(dead.iter().filter(|dead| **dead).count(), 1, "{drive:?}: {dead:?}");
        let shards = context.stats().shards;
        assert_eq!([shards[0].dead, shards[1].dead], dead);
        let [a, b] = qps;
        a.destroy().map_err(|(e, _)| e).unwrap();
        b.destroy().map_err(|(e, _)| e).unwrap();
        cq.destroy().map_err(|(e, _)| e).unwrap();
        drop((channel, pd));
        context.close().map_err(|(e, _)| e).unwrap();
    }
}

/// A port that panics in one of its methods, once set. It is no `PortLayer`, so that the compiler finds a missing method of the trait.
struct PanickingPort {
    port: Box<dyn Port>,
    breaks: Arc<Mutex<Option<&'static str>>>,
}

/// Methods of a port and its queues that a device calls once it is open.
const METHODS: [&str; 19] = [
    "info",
    "start",
    "mtu",
    "link_up",
    "host",
    "window",
    "maintain",
    "stats",
    "rx_burst",
    "routes",
    "tx_burst",
    "alloc",
    "alloc_burst",
    "build_burst",
    "arm",
    "recycle",
    "take_source_port",
    "release_source_port",
    "steer",
];

fn step(breaks: &Mutex<Option<&'static str>>, method: &str) {
    assert!(METHODS.contains(&method), "{method} is missing in the list");
    let breaks = *breaks.lock().unwrap_or_else(|e| e.into_inner());
    assert!(breaks != Some(method), "the port panics");
}

impl Port for PanickingPort {
    fn info(&self) -> &PortInfo {
        step(&self.breaks, "info");
        self.port.info()
    }
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        Some(Box::new(PanickingQueue { queue: self.port.take_queue(index)?, breaks: self.breaks.clone() }))
    }
    fn start(&self) -> Result<(), PortError> {
        step(&self.breaks, "start");
        self.port.start()
    }
    fn mtu(&self) -> usize {
        step(&self.breaks, "mtu");
        self.port.mtu()
    }
    fn link_up(&self) -> bool {
        step(&self.breaks, "link_up");
        self.port.link_up()
    }
    fn host(&self) -> Option<&dyn Host> {
        step(&self.breaks, "host");
        self.port.host()
    }
    fn window(&self) -> Option<usize> {
        step(&self.breaks, "window");
        self.port.window()
    }
    fn steer(&self, numbers: &[(std::ops::RangeInclusive<stack::id::Qpn>, usize)]) {
        step(&self.breaks, "steer");
        self.port.steer(numbers);
    }
    fn numbers(&self) -> Option<&dyn Numbers> {
        None
    }
    fn maintain(&self) {
        step(&self.breaks, "maintain");
        self.port.maintain();
    }
    fn stats(&self) -> PortStats {
        step(&self.breaks, "stats");
        self.port.stats()
    }
}

struct PanickingQueue {
    queue: Box<dyn PortQueue>,
    breaks: Arc<Mutex<Option<&'static str>>>,
}

impl PortQueue for PanickingQueue {
    fn stalled(&mut self, route: Route, now: stack::time::Instant) -> stack::port::Stalled {
        step(&self.breaks, "stalled");
        self.queue.stalled(route, now)
    }
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        step(&self.breaks, "rx_burst");
        self.queue.rx_burst(out)
    }
    fn routes(&mut self) -> Option<&mut dyn stack::port::Routes> {
        step(&self.breaks, "routes");
        self.queue.routes()
    }
    fn take_source_port(&mut self, hint: u16, kind: stack::port::FlowKind) -> u16 {
        step(&self.breaks, "take_source_port");
        self.queue.take_source_port(hint, kind)
    }
    fn release_source_port(&mut self, port: u16) {
        step(&self.breaks, "release_source_port");
        self.queue.release_source_port(port);
    }
    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize {
        step(&self.breaks, "tx_burst");
        self.queue.tx_burst(route, frames)
    }
    fn alloc(&mut self) -> Option<Frame> {
        step(&self.breaks, "alloc");
        self.queue.alloc()
    }
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        step(&self.breaks, "alloc_burst");
        self.queue.alloc_burst(out, n);
    }
    fn build_burst(&mut self, route: Route, most: usize, builder: &mut dyn Build) -> Option<usize> {
        step(&self.breaks, "build_burst");
        self.queue.build_burst(route, most, builder)
    }
    fn arm(&mut self) -> Armed {
        step(&self.breaks, "arm");
        self.queue.arm()
    }
    fn recycle(&mut self, frames: &mut RxBurst) {
        step(&self.breaks, "recycle");
        self.queue.recycle(frames);
    }
}

// Goal: work that is done once for all shards is done by the first living shard: the port is maintained without shard 0, too.
#[test]
fn the_first_shard_that_lives_maintains_the_port() {
    let (breaks, ns) = (Arc::new(Mutex::new(None)), Arc::new(AtomicU64::new(1)));
    let options = PortOptions { frames: 256, queues: 2, ..PortOptions::default() };
    let port = PortSpec::Loopback.open(&options).unwrap();
    let port: Box<dyn Port> = Box::new(PanickingPort { port, breaks: breaks.clone() });
    let mut config = DeviceConfig::loopback().port(port).shards(2);
    config.clock = Clock::Manual(ns.clone());
    let context = Context::open(config.drive(Drive::Embedded).qps_per_shard(16)).unwrap();
    // Whether this shard maintains the port when that is due.
    let maintains = |shard| {
        ns.fetch_add(1_000_000_000, Ordering::Relaxed);
        *breaks.lock().unwrap() = Some("maintain");
        let does = panics(&mut context.reactor(shard).unwrap());
        *breaks.lock().unwrap() = None;
        does
    };
    assert!(!maintains(1), "shard 0 lives");
    assert!(maintains(0) && context.stats().shards[0].dead);
    assert!(maintains(1));
}

/// Bytes of a message whose packets are built in the port's own memory, if the message before was as long.
const LONG: usize = 2048;

/// Uses the rest of a device for a while in every way that calls its port, whatever panics.
fn use_all(context: &Context, pd: &Pd, qp: &Qp, cq: &verbs::Cq, channel: &verbs::CompChannel, mr: &Mr) {
    let sge = [mr.sge(0..LONG).unwrap()];
    let calls: [&dyn Fn(); 12] = [
        &|| {
            let _ = context.start();
        },
        &|| {
            let _ = context.query_port(1);
        },
        &|| {
            let _ = context.query_device();
        },
        &|| {
            let _ = context.stats();
        },
        &|| {
            let _ = context.port_stats();
        },
        &|| {
            let _ = format!("{context:?}");
        },
        &|| {
            let _ = context.add_address([192, 0, 2, 7], 24);
        },
        &|| {
            let _ = context.remove_address([192, 0, 2, 7]);
        },
        &|| {
            let _ = qp.post_send(&[SendWr::write(77, &sge, mr.addr(), mr.rkey()).signaled()]);
        },
        &|| {
            let _ = pd.create_qp(&QpInitAttr::rc(cq, cq));
        },
        &|| {
            let _ = cq.poll(&mut [Wc::default(); 4]);
        },
        &|| {
            let _ = channel.get_cq_event(Duration::from_millis(30));
        },
    ];
    for call in calls {
        let _ = catch_unwind(AssertUnwindSafe(call));
    }
    for _ in 0..3 {
        let _ = catch_unwind(AssertUnwindSafe(|| context.reactor(0).map(|mut reactor| reactor.poll_once())));
        let _ = catch_unwind(AssertUnwindSafe(|| cq.poll(&mut [Wc::default(); 4])));
        std::thread::sleep(Duration::from_millis(10));
    }
}

// Goal: after a panic in any method of a port, wherever it was called, a device either works on as if nothing had happened, or is dead and
// reports that; and it can be closed.
#[test]
#[cfg_attr(miri, ignore = "waits: too slow under Miri")]
fn a_panic_in_any_method_of_a_port_ends_its_shard_or_nothing() {
    for (method, drive) in METHODS.iter().flat_map(|method| {
        [Drive::Embedded, Drive::Caller, Drive::Dedicated { cores: vec![] }].map(|drive| (*method, drive))
    }) {
        let case = format!("{method}, {drive:?}");
        let breaks = Arc::new(Mutex::new(None));
        let port = PortSpec::Loopback.open(&PortOptions { frames: 256, ..PortOptions::default() }).unwrap();
        let port: Box<dyn Port> = Box::new(PanickingPort { port, breaks: breaks.clone() });
        let config = DeviceConfig::loopback().port(port).drive(drive);
        let context = Context::open(config.qps_per_shard(16)).unwrap();
        let (pd, channel) = (context.alloc_pd().unwrap(), context.create_comp_channel().unwrap());
        let cq = context.create_cq_ex(&CqInitAttr::new(64).channel(&channel)).unwrap();
        let qp = to_itself(&pd, &QpInitAttr::rc(&cq, &cq));
        let mr = pd.reg_mr(4096, all_rights()).unwrap();
        let write = |id, len| {
            let sge = [mr.sge(0..len).unwrap()];
            qp.post_send(&[SendWr::write(id, &sge, mr.addr(), mr.rkey()).signaled()]).expect(&case);
            let (mut wc, since) = ([Wc::default()], std::time::Instant::now());
            while !(cq.poll(&mut wc).expect(&case) == 1 && wc[0].wr_id == id) {
                assert!(since.elapsed() < PATIENCE, "{case}: the device does not go on");
                let _ = context.reactor(0).map(|mut reactor| reactor.poll_once());
            }
            assert!(wc[0].is_ok(), "{case}: {:?}", wc[0]);
        };
        write(4, LONG);
        *breaks.lock().unwrap() = Some(method);
        use_all(&context, &pd, &qp, &cq, &channel, &mr);
        *breaks.lock().unwrap_or_else(|e| e.into_inner()) = None;
        if qp.query().is_ok() {
            assert!(!context.stats().shards[0].dead, "{case}");
            write(5, 8);
        } else {
            dead(qp.query());
            assert!(context.stats().shards[0].dead, "{case}");
            let events = std::iter::from_fn(|| context.try_get_async_event());
            assert_eq!(events.filter(|event| event.event == AsyncEvent::DeviceFatal).count(), 1, "{case}");
        }
        mr.dereg().map_err(|(e, _)| e).expect(&case);
        qp.destroy().map_err(|(e, _)| e).expect(&case);
        while channel.try_get_cq_event().is_some() {
            cq.ack_events(1).unwrap();
        }
        drop((cq, channel, pd));
        context.close().map_err(|(e, _)| e).expect(&case);
    }
}

// Goal: users of connection management also get an event when the device dies, and their calls return the error.
#[test]
fn connection_management_reports_a_dead_shard() {
    use verbs::rdma_cm::{CmEventType, PortSpace};
    let hooked = HookedDevice::default();
    let context = hooked.open(1, Drive::Embedded);
    let channel = verbs::rdma_cm::EventChannel::new().unwrap();
    let [listener, client] = [(); 2].map(|()| context.create_id(Some(&channel), PortSpace::Tcp).unwrap());
    listener.listen(0).unwrap();
    let alone = context.create_id(None, PortSpace::Tcp).unwrap();
    hooked.set(|_| panic!("the port panics"));
    assert!(panics(&mut context.reactor(0).unwrap()));
    for _ in 0..2 {
        let event = channel.get_event(Duration::MAX).unwrap().expect("an identifier's last event");
        assert_eq!(event.event(), CmEventType::DeviceRemoval);
        event.ack();
    }
    dead(channel.get_event(Duration::MAX).map(|_| ()));
    dead(client.resolve_addr(None, ([192, 0, 2, 1], 7), PATIENCE));
    assert_eq!(alone.get_event(PATIENCE).unwrap().unwrap().event(), CmEventType::DeviceRemoval);
    drop((listener, client, alone, channel));
    context.close().map_err(|(e, _)| e).unwrap();
}

/// Makes a call from inside a turn of a device, at the first, second, ... operation of its port.
fn inside_turns(context: &Context, hooked: &HookedDevice, call: impl Fn() + Send + Sync + 'static) {
    let call = Arc::new(call);
    let mut reactor = context.reactor(0).unwrap();
    for nth in 0..3 {
        let (call, ran) = (call.clone(), Arc::new(AtomicU32::new(0)));
        let counted = ran.clone();
        hooked.set(move |_| {
            if counted.fetch_add(1, Ordering::Relaxed) == nth {
                call();
            }
        });
        for _ in 0..3 {
            assert!(reactor.poll_once().is_some(), "the outer turn is as any other");
        }
        assert!(ran.load(Ordering::Relaxed) > nth);
        hooked.clear();
    }
}

fn inside<T: std::fmt::Debug>(result: Result<T, VerbsError>) {
    let e = result.expect_err("this is inside of a turn");
    assert!(matches!(e, VerbsError::Device(DeviceError::InsideTurn)), "{e}");
    assert_eq!(e.errno(), EDEADLK);
}

// Goal: no turn, of the same device or another, begins inside a turn, whichever call would make it. The rest of the API works there or
// returns an error, and nothing blocks.
#[test]
fn a_turn_inside_of_a_turn_is_refused() {
    let hooked = HookedDevice::default();
    // With and without the claim biased to this thread.
    for turns in if cfg!(miri) { &[70][..] } else { &[0, 70] } {
        let context = Arc::new(hooked.open(1, Drive::Embedded));
        context.start().unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
        let qp = to_itself(&pd, &QpInitAttr::rc(&cq, &cq));
        let mr = pd.reg_mr(64, all_rights()).unwrap();
        let mut reactor = context.reactor(0).unwrap();
        (0..*turns).for_each(|_| assert!(reactor.poll_once().is_some()));
        let mut by_callers = config(3).drive(Drive::Caller);
        by_callers.clock = Clock::Monotonic;
        let other = if cfg!(miri) { config(3) } else { by_callers };
        let other = Context::open(other).unwrap();
        let (other_pd, other_cq) = (other.alloc_pd().unwrap(), other.create_cq(4).unwrap());
        let other_qp = to_itself(&other_pd, &QpInitAttr::rc(&other_cq, &other_cq));
        let calls = Arc::new(AtomicU32::new(0));
        let (counted, own, qps) = (calls.clone(), Arc::downgrade(&context), (qp, other_qp));
        let call = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let own = own.upgrade().unwrap();
            for context in [&*own, &other] {
                let mut reactor = context.reactor(0).unwrap();
                assert_eq!(reactor.poll_once(), None);
                inside(reactor.try_poll_once());
                inside(context.get_async_event(PATIENCE).map(|_| ()));
                inside(context.start());
                assert!(context.net_counters().is_empty());
                drop((
                    context.counters(),
                    context.stats(),
                    context.try_get_async_event(),
                    reactor.next_deadline(),
                ));
            }
            inside(qps.0.query());
            inside(qps.1.query());
            // Posting never waits.
            qps.0.post_recv(&[RecvWr::new(1, &[mr.sge(0..8).unwrap()])]).unwrap();
            if !cfg!(miri) {
                inside(other_cq.poll(&mut [Wc::default()]));
                inside(other_cq.poller().unwrap().poll(&mut [Wc::default()]));
                inside(other_cq.start_poll().map(|_| ()));
            }
            // Inside the turn a device is opened, and closing it is refused.
            let third = Context::open(config(4)).unwrap();
            let (e, third) = third.close().unwrap_err();
            inside(Err::<(), _>(e));
            drop(third);
        };
        inside_turns(&context, &hooked, call);
        assert_eq!(calls.load(Ordering::Relaxed), 3);
    }
}

// Goal: a thread of the device drops its last handle inside its turn, and does not wait for itself.
#[test]
#[cfg_attr(miri, ignore = "threads that spin: too slow under Miri")]
fn the_last_handle_is_dropped_inside_of_a_turn() {
    for drive in [Drive::Caller, Drive::Dedicated { cores: vec![] }] {
        let hooked = HookedDevice::default();
        let context = hooked.open(1, drive);
        context.start().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let place = Mutex::new(Some((context, tell)));
        hooked.set(move |_| {
            if let Some((context, tell)) = place.lock().unwrap().take() {
                drop(context);
                tell.send(()).unwrap();
            }
        });
        told.recv_timeout(PATIENCE).expect("the drop returned");
    }
}

/// A region for several threads, and for a peer that accesses it through its queue pair.
fn connected() -> (Context, Pd, Mr) {
    let context = Context::open(config(1)).unwrap();
    let pd = context.alloc_pd().unwrap();
    let mr = pd.reg_mr(4096, all_rights() | Access::MW_BIND).unwrap();
    (context, pd, mr)
}

// Goal: no access of the safe API to registered memory is a data race in the sense of the language, whatever the sizes of the accesses;
// words are read and written whole.
#[test]
fn one_region_and_many_threads() {
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    let (_context, _pd, mr) = connected();
    let word = u64::from_ne_bytes([0x5a; 8]);
    std::thread::scope(|scope| {
        scope
            .spawn(|| (0..rounds).for_each(|i| mr.write_u64(64, if i % 2 == 0 { word } else { 0 }).unwrap()));
        scope.spawn(|| (0..rounds).for_each(|i| mr.write(61 + i % 3, &[i as u8; 9]).unwrap()));
        scope.spawn(|| (0..rounds).for_each(|i| mr.fill(128..137, i as u8).unwrap()));
        scope.spawn(|| {
            let counter = mr.atomic_u64(256).unwrap();
            (0..rounds as u64).for_each(|i| assert_eq!(counter.fetch_add(1, Ordering::AcqRel), i));
        });
        for i in 0..rounds {
            let mut bytes = [0; 32];
            mr.read(60, &mut bytes).unwrap();
            mr.read(250, &mut bytes).unwrap();
            let _ = (mr.read_u8(64 + i % 8).unwrap(), mr.read_u64(64).unwrap(), mr.read_u64(128).unwrap());
        }
    });
    assert_eq!(mr.read_u64(256).unwrap(), rounds as u64);
}

// Goal: pinned bytes outlive their region and its key, and are freed once, with the last of their pins, on any thread.
#[test]
fn pins_outlive_their_region() {
    let (_context, _pd, mr) = connected();
    let pins: Vec<_> = (0..3).map(|i| mr.pin(i * 64..i * 64 + 64).unwrap()).collect();
    let places: Vec<_> = pins.iter().map(|pin| pin.as_ptr() as u64 - mr.addr()).collect();
    assert_eq!(places, [0, 64, 128]);
    let (_, mr) = mr.dereg().expect_err("it is pinned");
    std::thread::scope(|scope| {
        for pin in pins {
            scope.spawn(move || assert_eq!(pin.len(), 64));
        }
        drop(mr);
    });
}

// Goal: the same for accesses of a peer, of any size, concurrent with those of the program on another thread.
#[test]
fn a_peer_against_the_program() {
    let rounds: u64 = if cfg!(miri) { 6 } else { 500 };
    let (context, pd, mr) = connected();
    let cq = context.create_cq(256).unwrap();
    let qp = to_itself(&pd, &QpInitAttr::rc(&cq, &cq));
    let local = pd.reg_mr(4096, all_rights()).unwrap();
    local.fill(0..4096, 7).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let mut bytes = [0; 200];
                mr.read(3, &mut bytes).unwrap();
                mr.write(500, &bytes[..9]).unwrap();
                let _ = mr.read_u64(8).unwrap();
                mr.write_u64(512, 1).unwrap();
                mr.atomic_u64(2048).unwrap().fetch_add(1, Ordering::Relaxed);
                local.write(600, &bytes[..40]).unwrap();
                std::thread::yield_now();
            }
        });
        let mut reactor = context.reactor(0).unwrap();
        let mut wc = [Wc::default(); 16];
        for _ in 0..rounds {
            let (to, key) = (mr.addr(), mr.rkey());
            let sge = |range| [local.sge(range).unwrap()];
            let (short, long, odd, word) = (sge(600..640), sge(590..1690), sge(0..13), sge(8..16));
            qp.post_send(&[
                SendWr::write(1, &short, to + 5, key),
                SendWr::write(2, &long, to + 100, key),
                SendWr::write(3, &odd, to + 511, key),
                SendWr::read(4, &odd, to + 505, key),
                SendWr::read(5, &long, to + 3, key),
                SendWr::fetch_and_add(6, &word, to + 2048, key, 1),
                SendWr::cmp_and_swp(7, &word, to + 8, key, 0, 1).signaled(),
            ])
            .unwrap();
            let mut turns = 0;
            while cq.poll(&mut wc).unwrap() == 0 {
                reactor.poll_once();
                turns += 1;
                assert!(turns < 1000);
            }
            assert!(wc[0].is_ok() && wc[0].wr_id == 7, "{:?}", wc[0]);
        }
        done.store(true, Ordering::Release);
    });
    assert!(mr.read_u64(2048).unwrap() >= rounds);
}

// Goal: keys are revoked while a peer and windows use them, by two threads. The memory can be freed at once, and requests that still name it
// fail.
#[test]
fn keys_come_and_go_from_two_threads() {
    let rounds = if cfg!(miri) { 5 } else { 300 };
    let (context, pd, local) = connected();
    let cq = context.create_cq(256).unwrap();
    let mut reactor = context.reactor(0).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let _stop = common::Stop(&stop);
            for round in 0..rounds {
                let mut mr = pd.reg_mr(256, all_rights()).unwrap();
                mr.fill(0..256, round as u8).unwrap();
                mr.rereg(&Rereg { len: Some(128), ..Rereg::default() }).unwrap();
                let mw = pd.alloc_mw(MwType::One).unwrap();
                mw.dealloc().map_err(|(e, _)| e).unwrap();
                mr.dereg().map_err(|(e, _)| e).unwrap();
            }
        });
        let sge = [local.sge(0..64).unwrap()];
        let mut wc = [Wc::default(); 16];
        while !stop.load(Ordering::Acquire) {
            let qp = to_itself(&pd, &QpInitAttr::rc(&cq, &cq));
            let victim = pd.reg_mr(64, all_rights()).unwrap();
            qp.post_send(&[SendWr::write(1, &sge, victim.addr(), victim.rkey()).signaled()]).unwrap();
            reactor.poll_once();
            victim.dereg().map_err(|(e, _)| e).unwrap();
            qp.post_send(&[SendWr::write(2, &sge, local.addr() + 64, local.rkey()).signaled()]).unwrap();
            let (mut polled, mut turns) = (0, 0);
            while polled < 2 {
                // `None` while the owner's calls hold the shard.
                match reactor.poll_once() {
                    Some(_) => turns += 1,
                    None => std::thread::yield_now(),
                }
                polled += cq.poll(&mut wc).unwrap();
                assert!(turns < 1000, "{polled} completions");
            }
        }
        owner.join().unwrap();
    });
}

#[test]
fn posting_from_two_threads() {
    let rounds: u64 = if cfg!(miri) { 10 } else { 2_000 };
    let (context, pd, mr) = connected();
    let cq = context.create_cq(256).unwrap();
    let qp = to_itself(&pd, &QpInitAttr::rc(&cq, &cq));
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (qp, mr, sent) = (&qp, &mr, &sent);
            scope.spawn(move || {
                let at = 1024 * thread;
                let sge = [mr.sge(at..at + 64).unwrap()];
                let mut posted = 0;
                while posted < rounds {
                    let wr = SendWr::write(posted, &sge, mr.addr() + at as u64 + 512, mr.rkey()).signaled();
                    match qp.post_send(&[wr]) {
                        Ok(()) => posted += 1,
                        Err(e) => assert!(matches!(e.kind, PostErrorKind::Full { .. }), "{e}"),
                    }
                    std::thread::yield_now();
                }
                sent.fetch_add(posted, Ordering::Relaxed);
            });
        }
        let mut reactor = context.reactor(0).unwrap();
        let (mut wc, mut done) = ([Wc::default(); 16], 0);
        while done < 2 * rounds {
            reactor.poll_once();
            let n = cq.poll(&mut wc).unwrap();
            assert!(wc[..n].iter().all(Wc::is_ok));
            done += n as u64;
            std::thread::yield_now();
        }
    });
    assert_eq!(sent.load(Ordering::Relaxed), 2 * rounds);
}
