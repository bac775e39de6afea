//! Two devices joined by a link that can be shut towards one of them, on a clock that the test moves.

#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use verbs::port::{Frame, Port, PortError, PortInfo, PortQueue, PortStats, RxBurst, TxBurst, pair};
use verbs::{
    Access, AsyncEvent, AttrMask, Clock, Context, Counter, Cq, DeviceConfig, Drive, EventElement, Mr, Pd, Qp,
    QpAttr, QpInitAttr, QpState, QpType, RcOptions, Wc, WcStatus,
};

/// Shut, it keeps everything from arriving; what was sent waits on the link.
#[derive(Clone, Default)]
pub struct Valve(Arc<AtomicBool>);

impl Valve {
    pub fn shut(&self) {
        self.0.store(true, Ordering::Release);
    }
    pub fn open(&self) {
        self.0.store(false, Ordering::Release);
    }
}

struct ValvePort(Box<dyn Port>, Valve);

impl Port for ValvePort {
    fn info(&self) -> &PortInfo {
        self.0.info()
    }
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        Some(Box::new(ValveQueue(self.0.take_queue(index)?, self.1.clone())))
    }
    fn start(&self) -> Result<(), PortError> {
        self.0.start()
    }
    fn link_up(&self) -> bool {
        self.0.link_up()
    }
    fn maintain(&self) {
        self.0.maintain();
    }
    fn stats(&self) -> PortStats {
        self.0.stats()
    }
}

struct ValveQueue(Box<dyn PortQueue>, Valve);

impl PortQueue for ValveQueue {
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        if self.1.0.load(Ordering::Acquire) { 0 } else { self.0.rx_burst(out) }
    }
    fn tx_burst(&mut self, frames: &mut TxBurst) -> usize {
        self.0.tx_burst(frames)
    }
    fn alloc(&mut self) -> Option<Frame> {
        self.0.alloc()
    }
    fn recycle(&mut self, frames: &mut RxBurst) {
        self.0.recycle(frames);
    }
}

/// A device with one queue pair.
pub struct End {
    pub qp: Qp,
    pub mr: Mr,
    pub cq: Cq,
    pub pd: Pd,
    pub context: Context,
}

impl End {
    pub fn count(&self, counter: Counter) -> u64 {
        self.context.counters().get(counter)
    }

    /// The completions that are there.
    pub fn done(&self) -> Vec<(u64, WcStatus)> {
        let mut wc = [Wc::default(); 64];
        let n = self.cq.poll(&mut wc).unwrap();
        wc[..n].iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// The events that are there.
    pub fn events(&self) -> Vec<(AsyncEvent, EventElement)> {
        let next = || self.context.try_get_async_event();
        std::iter::from_fn(next).map(|event| (event.event, event.element)).collect()
    }

    /// SQ_DRAINED events that are there.
    pub fn drained_events(&self) -> usize {
        let is = |e: &&(AsyncEvent, EventElement)| {
            **e == (AsyncEvent::SqDrained, EventElement::Qp(self.qp.qp_num()))
        };
        self.events().iter().filter(is).count()
    }

    pub fn to(&self, qp_state: QpState) {
        self.qp.modify(&QpAttr { qp_state, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    }

    /// RTS to SQD, with the event asked for.
    pub fn to_sqd(&self) {
        let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
        self.qp.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    }

    pub fn is_draining(&self) -> bool {
        self.qp.query().unwrap().0.sq_draining
    }
}

/// A and B, connected; the valve is in front of A.
pub struct Link {
    pub a: End,
    pub b: End,
    pub valve: Valve,
    clock: Arc<AtomicU64>,
}

/// Bytes of each end's memory.
pub const MEMORY: usize = 256 << 10;

impl Link {
    pub fn new() -> Self {
        Self::with(&RcOptions::default(), |init| init)
    }

    /// With these options (address and path MTU 1024 are given) and these queue pairs.
    pub fn with(options: &RcOptions, init: impl Fn(QpInitAttr<'_>) -> QpInitAttr<'_>) -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let valve = Valve::default();
        let (a, b) = pair(1);
        let end = |port: Box<dyn Port>, last: u8| {
            let mut config =
                DeviceConfig::new(port).addr([192, 0, 2, last], 24).addr([192, 0, 2, 100 + last], 24);
            config = config.drive(Drive::Embedded);
            config.clock = Clock::Manual(clock.clone());
            let context = Context::open(config).unwrap();
            let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1024).unwrap());
            let qp = pd.create_qp(&init(QpInitAttr::rc(&cq, &cq))).unwrap();
            let rights =
                Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let mr = pd.reg_mr(MEMORY, rights).unwrap();
            End { qp, mr, cq, pd, context }
        };
        let (a, b) = (end(Box::new(ValvePort(a, valve.clone())), 1), end(b, 2));
        let options = RcOptions { sgid_index: 1, path_mtu: Some(verbs::Mtu::Mtu1024), ..*options };
        for (from, to) in [(&a.qp, &b.qp), (&b.qp, &a.qp)] {
            let peer = to.endpoint(1).unwrap();
            match from.qp_type() {
                QpType::Uc => from.connect_uc(&peer, &options).unwrap(),
                _ => from.connect_rc(&peer, &options).unwrap(),
            }
        }
        let link = Self { a, b, valve, clock };
        // Neighbours find each other.
        link.turns(20);
        link
    }

    /// One turn of both ends, a microsecond each.
    pub fn turn(&self) {
        self.clock.fetch_add(1000, Ordering::AcqRel);
        super::common::pump(&self.a.context);
        super::common::pump(&self.b.context);
    }
    pub fn turns(&self, n: usize) {
        for _ in 0..n {
            self.turn();
        }
    }
    /// Lets time pass in steps of 100 microseconds.
    pub fn wait(&self, time: Duration) {
        for _ in 0..time.as_micros().div_ceil(100) {
            self.clock.fetch_add(99_000, Ordering::AcqRel);
            self.turn();
        }
    }
}
