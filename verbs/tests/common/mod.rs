//! Shared by the tests: devices, connected queue pairs, and polling with a timeout.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod hooked;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use verbs::{
    Access, Context, Cq, DeviceConfig, Drive, Mr, Pd, Qp, QpInitAttr, QpState, RcOptions, Wc, attr_to,
};

/// Limit of every wait of a test: far more than needed, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Options of every connection of the tests: the first configured address, and retries (0.5 s, seven times) that last longer than a
/// thread's wait for a core on a busy machine.
pub fn options() -> RcOptions {
    RcOptions::default().sgid_index(1).timeout(17)
}

/// Every right that these tests give a region.
pub fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// A device on a loopback port, driven only by `pump`.
pub fn embedded() -> Context {
    embedded_with(DeviceConfig::loopback())
}

/// A device driven only by `pump`.
pub fn embedded_with(config: DeviceConfig) -> Context {
    Context::open(config.drive(Drive::Embedded)).unwrap()
}

/// A device on a loopback port, driven by the threads that poll.
pub fn device() -> Context {
    Context::open(DeviceConfig::loopback()).unwrap()
}

/// Polls every shard once.
pub fn pump(context: &Context) {
    for shard in 0..context.shards() {
        context.reactor(shard).unwrap().poll_once();
    }
}

/// Stops the other threads of a scope when it is dropped, also when a check fails: a scope waits for its threads, and a failed test must
/// print its failure instead of waiting for ever.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Two queue pairs of one device, connected to each other.
pub struct Pair {
    pub a: Qp,
    pub b: Qp,
    pub mr: Mr,
    pub cq_a: Cq,
    pub cq_b: Cq,
    pub pd: Pd,
    pub context: Context,
}

impl Pair {
    pub fn new(context: Context) -> Self {
        Self::with(context, |init| init)
    }

    pub fn with(context: Context, change: impl Fn(QpInitAttr<'_>) -> QpInitAttr<'_>) -> Self {
        let pd = context.alloc_pd().unwrap();
        let (cq_a, cq_b) = (context.create_cq(4096).unwrap(), context.create_cq(4096).unwrap());
        let a = pd.create_qp(&change(QpInitAttr::rc(&cq_a, &cq_a))).unwrap();
        let b = pd.create_qp(&change(QpInitAttr::rc(&cq_b, &cq_b))).unwrap();
        a.connect_rc(&b.endpoint(1).unwrap(), &options()).unwrap();
        b.connect_rc(&a.endpoint(1).unwrap(), &options()).unwrap();
        let mr = pd.reg_mr(64 << 10, all_rights()).unwrap();
        Self { a, b, mr, cq_a, cq_b, pd, context }
    }

    /// The next `n` completions of A.
    pub fn done_a(&self, n: usize) -> Vec<Wc> {
        take(&self.context, &self.cq_a, n)
    }
    /// The next `n` completions of B.
    pub fn done_b(&self, n: usize) -> Vec<Wc> {
        take(&self.context, &self.cq_b, n)
    }
}

/// Drives the device and polls until `n` completions have arrived.
pub fn take(context: &Context, cq: &Cq, n: usize) -> Vec<Wc> {
    let mut done = Vec::new();
    let start = Instant::now();
    let mut wc = [Wc::default(); 16];
    while done.len() < n {
        assert!(start.elapsed() < PATIENCE, "{} of {n} completions: {done:?}", done.len());
        pump(context);
        let room = (n - done.len()).min(wc.len());
        let got = cq.poll(&mut wc[..room]).unwrap();
        done.extend_from_slice(&wc[..got]);
    }
    done
}

/// Drives the device for a while and checks that no completion appears.
pub fn assert_no_completion(context: &Context, cq: &Cq) {
    let mut wc = [Wc::default(); 1];
    for _ in 0..200 {
        pump(context);
        assert_eq!(cq.poll(&mut wc).unwrap(), 0, "{wc:?}");
    }
}

pub fn enter(qp: &Qp, state: QpState) {
    let (attr, mask) = attr_to(state);
    qp.modify(&attr, mask).unwrap();
    assert_eq!(qp.state().unwrap(), state);
}
