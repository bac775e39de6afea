//! Two devices joined by a cable that can be blocked towards one of them, on a manual clock: nothing here depends on the machine's
//! load.

#![allow(dead_code, reason = "each test file uses a part")]

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use stack::wire::{ExtHeader, Ingress, Row, locate};
use verbs::port::{Port, pair};
use verbs::{
    AsyncEvent, AttrMask, Clock, Context, Counter, Cq, DeviceConfig, Drive, EventElement, Mr, Pd, Qp, QpAttr,
    QpInitAttr, QpState, QpType, RcOptions, Wc, WcStatus,
};

use crate::common::hooked::{Burst, Hooked};
use crate::common::{all_rights, pump};

/// Bytes of the memory of each end, and of each side.
pub const MEMORY: usize = 256 << 10;

/// Blocks received frames while it is shut: sent frames then wait on the link.
#[derive(Clone, Default)]
pub struct Valve(Arc<AtomicBool>);

impl Valve {
    pub fn shut(&self) {
        self.0.store(true, Ordering::Release);
    }
    pub fn open(&self) {
        self.0.store(false, Ordering::Release);
    }
    /// A port behind the valve.
    fn before(&self, port: Box<dyn Port>) -> Box<dyn Port> {
        let shut = self.0.clone();
        Hooked::around(port, move |burst| !matches!(burst, Burst::Rx) || !shut.load(Ordering::Acquire))
    }
}

/// A packet of the capture.
#[derive(Clone, Debug)]
pub struct Seen {
    pub row: &'static Row,
    /// Shared receive queue of an XRC request.
    pub srqn: Option<u32>,
    pub syndrome: Option<u8>,
    pub psn: u32,
    pub dqpn: u32,
}

/// A capture file, removed when the test ends, whether or not it fails.
struct Capture(PathBuf);

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Two devices, A and B, driven only by the test; the valve is in front of A.
pub struct Cable {
    pub a: Arc<Context>,
    pub b: Arc<Context>,
    pub valve: Valve,
    clock: Arc<AtomicU64>,
    capture: Option<Capture>,
}

impl Cable {
    /// Devices with this many shards each.
    pub fn new(shards: usize) -> Self {
        Self::with(shards, None)
    }

    /// Devices with one shard each. The frames on the cable are captured, and [`close`](Self::close) reads the capture. Each test of a file
    /// needs its own name.
    pub fn recorded(name: &str) -> Self {
        let file = format!("verbs-{name}-{}.pcap", std::process::id());
        Self::with(1, Some(Capture(std::env::temp_dir().join(file))))
    }

    fn with(shards: usize, capture: Option<Capture>) -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let valve = Valve::default();
        let (a, b) = pair(shards);
        let open = |port: Box<dyn Port>, last: u8| {
            let config =
                DeviceConfig::new(port).addr([192, 0, 2, last], 24).addr([192, 0, 2, 100 + last], 24);
            let mut config = config.drive(Drive::Embedded).shards(shards);
            config.clock = Clock::Manual(clock.clone());
            if last == 1 {
                config.pcap = capture.as_ref().map(|c| c.0.clone());
            }
            Arc::new(Context::open(config).unwrap())
        };
        let (a, b) = (open(valve.before(a), 1), open(b, 2));
        Self { a, b, valve, clock, capture }
    }

    /// Makes one turn of both devices, and advances the clock by a microsecond for each.
    pub fn turn(&self) {
        self.clock.fetch_add(1000, Ordering::AcqRel);
        pump(&self.a);
        pump(&self.b);
    }
    pub fn turns(&self, n: usize) {
        for _ in 0..n {
            self.turn();
        }
    }
    /// Advances the clock in steps of 100 microseconds, and makes turns.
    pub fn wait(&self, time: Duration) {
        for _ in 0..time.as_micros().div_ceil(100) {
            self.clock.fetch_add(99_000, Ordering::AcqRel);
            self.turn();
        }
    }

    /// Drives both until `done`, in larger steps of the clock if it takes long; at most ten seconds of the clock.
    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        for turns in 0.. {
            if done() {
                return;
            }
            assert!(turns < 100_000, "waited for {what}");
            if turns < 2_000 { self.turn() } else { self.wait(Duration::from_micros(100)) }
        }
    }

    /// The next `n` completions.
    pub fn take(&self, cq: &Cq, n: usize) -> Vec<Wc> {
        let mut done = Vec::new();
        self.until("completions", || {
            let mut wc = [Wc::default(); 16];
            let room = (n - done.len()).min(wc.len());
            let got = cq.poll(&mut wc[..room]).unwrap();
            done.extend_from_slice(&wc[..got]);
            done.len() == n
        });
        done
    }

    /// Checks that many turns bring no completion.
    pub fn assert_no_completion(&self, cq: &Cq) {
        let mut wc = [Wc::default(); 1];
        for _ in 0..200 {
            self.turn();
            assert_eq!(cq.poll(&mut wc).unwrap(), 0, "{wc:?}");
        }
    }

    /// The next event of B other than COMM_EST.
    pub fn event_of_b(&self) -> Option<(AsyncEvent, EventElement)> {
        loop {
            let event = self.b.try_get_async_event()?;
            if event.event != AsyncEvent::CommEst {
                return Some((event.event, event.element));
            }
        }
    }

    /// Closes both devices, to which no reference may exist, and reads the capture, if any.
    pub fn close(self) -> Vec<Seen> {
        let Self { a, b, capture, .. } = self;
        for context in [a, b] {
            Arc::into_inner(context).expect("nothing holds the device").close().unwrap();
        }
        let Some(capture) = capture else { return Vec::new() };
        let bytes = std::fs::read(&capture.0).unwrap();
        let mut seen = Vec::new();
        let mut at = 24;
        while at < bytes.len() {
            let len = u32::from_be_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
            let frame = &bytes[at + 16..at + 16 + len];
            at += 16 + len;
            let Ok(Ingress::Roce(layout)) = locate(frame) else { continue };
            let packet = layout.packet(frame);
            let has = |h| packet.row.has(h);
            seen.push(Seen {
                row: packet.row,
                srqn: has(ExtHeader::Xrceth).then(|| packet.xrceth()),
                syndrome: has(ExtHeader::Aeth).then(|| packet.aeth().syndrome),
                psn: packet.psn.get(),
                dqpn: packet.dqpn().get(),
            });
        }
        seen
    }
}

/// The objects of one side of a test: a domain, a region, a completion queue.
pub struct Side {
    pub cq: Cq,
    pub mr: Mr,
    pub pd: Pd,
}

impl Side {
    pub fn new(context: &Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let mr = pd.reg_mr(MEMORY, all_rights()).unwrap();
        Self { cq: context.create_cq(1024).unwrap(), mr, pd }
    }
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read(at, &mut bytes).unwrap();
        bytes
    }
}

/// Connects two RC or UC queue pairs.
pub fn connect(a: &Qp, b: &Qp, options: &RcOptions) {
    for (from, to) in [(a, b), (b, a)] {
        let peer = to.endpoint(1).unwrap();
        match from.qp_type() {
            QpType::Uc => from.connect_uc(&peer, options).unwrap(),
            _ => from.connect_rc(&peer, options).unwrap(),
        }
    }
}

/// An RC queue pair of `a`, connected to a queue pair of `b` that is created with `init`.
pub fn rc_to(a: &Side, b: &Side, init: &QpInitAttr<'_>, options: &RcOptions) -> (Qp, Qp) {
    let from = a.pd.create_qp(&QpInitAttr::rc(&a.cq, &a.cq)).unwrap();
    let to = b.pd.create_qp(init).unwrap();
    connect(&from, &to, options);
    (from, to)
}

/// A device with one queue pair.
pub struct End {
    pub qp: Qp,
    pub mr: Mr,
    pub cq: Cq,
    pub pd: Pd,
    pub context: Arc<Context>,
}

impl End {
    pub fn count(&self, counter: Counter) -> u64 {
        self.context.counters().get(counter)
    }

    /// The waiting completions.
    pub fn done(&self) -> Vec<(u64, WcStatus)> {
        let mut wc = [Wc::default(); 64];
        let n = self.cq.poll(&mut wc).unwrap();
        wc[..n].iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// The waiting events.
    pub fn events(&self) -> Vec<(AsyncEvent, EventElement)> {
        let next = || self.context.try_get_async_event();
        std::iter::from_fn(next).map(|event| (event.event, event.element)).collect()
    }

    /// The number of waiting SQ_DRAINED events.
    pub fn drained_events(&self) -> usize {
        let is = |e: &&(AsyncEvent, EventElement)| {
            **e == (AsyncEvent::SqDrained, EventElement::Qp(self.qp.qp_num()))
        };
        self.events().iter().filter(is).count()
    }

    pub fn to(&self, qp_state: QpState) {
        self.qp.modify(&QpAttr { qp_state, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    }

    /// Changes RTS to SQD, and requests the event.
    pub fn to_sqd(&self) {
        let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
        self.qp.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    }

    pub fn is_draining(&self) -> bool {
        self.qp.query().unwrap().0.sq_draining
    }
}

/// A queue pair of A and one of B, connected over a cable.
pub struct Link {
    pub a: End,
    pub b: End,
    cable: Cable,
}

impl Deref for Link {
    type Target = Cable;
    fn deref(&self) -> &Cable {
        &self.cable
    }
}

impl Link {
    pub fn new() -> Self {
        Self::with(&RcOptions::default(), |init| init)
    }

    /// A link with these options and queue pairs; address and path MTU 1024 are fixed.
    pub fn with(options: &RcOptions, init: impl Fn(QpInitAttr<'_>) -> QpInitAttr<'_>) -> Self {
        let cable = Cable::new(1);
        let end = |context: &Arc<Context>| {
            let Side { cq, mr, pd } = Side::new(context);
            let qp = pd.create_qp(&init(QpInitAttr::rc(&cq, &cq))).unwrap();
            End { qp, mr, cq, pd, context: context.clone() }
        };
        let (a, b) = (end(&cable.a), end(&cable.b));
        let options = options.sgid_index(1).path_mtu(verbs::Mtu::Mtu1024);
        connect(&a.qp, &b.qp, &options);
        // Lets the neighbours resolve each other.
        cable.turns(20);
        Self { a, b, cable }
    }
}
