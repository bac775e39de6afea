//! Two devices on a cable, and what went over it.

#![allow(dead_code, reason = "each test file uses a part")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use stack::wire::{Ingress, Row, locate};
use verbs::port::pair;
use verbs::{
    Access, AsyncEvent, Context, Cq, DeviceConfig, Drive, EventElement, Mr, Pd, Qp, QpInitAttr, RcOptions, Wc,
};

/// No wait of a test lasts longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn options() -> RcOptions {
    RcOptions { sgid_index: 1, ..RcOptions::default() }
}

pub fn rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
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

/// A (10.0.0.1, one shard) and B (10.0.0.2, `shards`), turned by the test alone.
pub struct Link {
    pub a: Context,
    pub b: Context,
    pcap: PathBuf,
}

impl Link {
    pub fn new(name: &str, shards: usize) -> Self {
        let (port_a, port_b) = pair(shards);
        let pcap = std::env::temp_dir().join(format!("verbs-{name}-{}.pcap", std::process::id()));
        let mut config =
            DeviceConfig::new(port_a).addr([10, 0, 0, 1], 24).drive(Drive::Embedded).shards(shards);
        config.pcap = Some(pcap.clone());
        let a = Context::open(config).unwrap();
        let config = DeviceConfig::new(port_b).addr([10, 0, 0, 2], 24).drive(Drive::Embedded).shards(shards);
        Self { a, b: Context::open(config).unwrap(), pcap }
    }

    pub fn pump(&self) {
        for context in [&self.a, &self.b] {
            for shard in 0..context.shards() {
                context.reactor(shard).unwrap().poll_once();
            }
        }
    }

    /// Turns both until `done`.
    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < PATIENCE, "waited for {what}");
            self.pump();
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

    /// Many turns bring nothing.
    pub fn nothing(&self, cq: &Cq) {
        let mut wc = [Wc::default(); 1];
        for _ in 0..200 {
            self.pump();
            assert_eq!(cq.poll(&mut wc).unwrap(), 0, "{wc:?}");
        }
    }

    /// The next event of B that is no COMM_EST.
    pub fn event_of_b(&self) -> Option<(AsyncEvent, EventElement)> {
        loop {
            let event = self.b.try_get_async_event()?;
            if event.event != AsyncEvent::CommEst {
                return Some((event.event, event.element));
            }
        }
    }

    /// Ends both devices, which nothing may use any more, and reads the capture.
    pub fn close(self) -> Vec<Seen> {
        let Self { a, b, pcap } = self;
        a.close().unwrap();
        b.close().unwrap();
        let bytes = std::fs::read(&pcap).unwrap();
        let _ = std::fs::remove_file(&pcap);
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
                srqn: has(stack::wire::ExtHeader::Xrceth).then(|| packet.xrceth()),
                syndrome: has(stack::wire::ExtHeader::Aeth).then(|| packet.aeth().syndrome),
                psn: packet.psn.get(),
                dqpn: packet.dqpn.get(),
            });
        }
        seen
    }
}

/// One side of a test: a domain, a region, a completion queue.
pub struct Side {
    pub cq: Cq,
    pub mr: Mr,
    pub pd: Pd,
}

impl Side {
    pub fn new(context: &Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let mr = pd.reg_mr(256 << 10, rights()).unwrap();
        Self { cq: context.create_cq(1024).unwrap(), mr, pd }
    }
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read(at, &mut bytes).unwrap();
        bytes
    }
}

/// Connects two RC queue pairs of `a` and `b`.
pub fn connect(a: &Qp, b: &Qp, options: &RcOptions) {
    a.connect_rc(&b.endpoint(1).unwrap(), options).unwrap();
    b.connect_rc(&a.endpoint(1).unwrap(), options).unwrap();
}

/// An RC queue pair of `a`, connected to one of `b` that is made with `init`.
pub fn rc_to(a: &Side, b: &Side, init: &QpInitAttr<'_>, options: &RcOptions) -> (Qp, Qp) {
    let from = a.pd.create_qp(&QpInitAttr::rc(&a.cq, &a.cq)).unwrap();
    let to = b.pd.create_qp(init).unwrap();
    connect(&from, &to, options);
    (from, to)
}
