//! Devices over UDP sockets, on addresses of the loopback interface that no other test uses.

use crate::common::{PATIENCE, all_rights, options, pump};
use std::time::Instant;
use verbs::port::PortSpec;
use verbs::{Context, Cq, DeviceConfig, Drive, Mr, Qp, QpInitAttr, RcOptions, SendWr, Wc, WcStatus};

const QUEUE_PAIRS: usize = 8;
const LEN: usize = 64 << 10;

/// A device with queue pairs.
struct End {
    context: Context,
    cq: Cq,
    mr: Mr,
    qps: Vec<Qp>,
    done: usize,
}

impl End {
    fn new(spec: &str) -> Self {
        let spec: PortSpec = spec.parse().unwrap();
        let context = Context::open(DeviceConfig::new(spec).drive(Drive::Embedded)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(4096).unwrap();
        let qps = (0..QUEUE_PAIRS).map(|_| pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap()).collect();
        let mr = pd.reg_mr(LEN, all_rights()).unwrap();
        Self { context, cq, mr, qps, done: 0 }
    }

    fn connect(&self, other: &Self) {
        // Without an ACK timer nothing is sent twice, however long this process waits for a core.
        let options = RcOptions { sgid_index: 0, timeout: 0, ..options() };
        for (own, other) in self.qps.iter().zip(&other.qps) {
            own.connect_rc(&other.endpoint(0).unwrap(), &options).unwrap();
        }
    }

    /// Posts a WRITE and a READ of all of the other end's memory to each queue pair.
    fn post(&self, other: &Self) {
        for qp in &self.qps {
            let (sges, va, rkey) = ([self.mr.sge(0..LEN).unwrap()], other.mr.addr(), other.mr.rkey());
            let write = SendWr::write(1, &sges, va, rkey).signaled();
            let read = SendWr::read(2, &sges, va, rkey).signaled();
            qp.post_send(&[write, read]).unwrap();
        }
    }

    /// Turns the device until it has nothing more to do without the other one.
    fn turn(&mut self) {
        for _ in 0..200 {
            pump(&self.context);
        }
        let mut wc = [Wc::default(); 64];
        let n = self.cq.poll(&mut wc).unwrap();
        assert!(wc[..n].iter().all(|wc| wc.status == WcStatus::Success), "{wc:?}");
        self.done += n;
    }
}

#[test]
fn what_is_in_flight_fits_a_socket_whose_owner_does_not_run() {
    // Goal: each end sends all that it may before the other one looks at its socket, and the kernel drops none of it.
    let spec = |addr: &str| format!("udp:{addr},buffer=131072");
    let (mut a, mut b) = (End::new(&spec("127.47.93.1")), End::new(&spec("127.47.93.2")));
    a.connect(&b);
    b.connect(&a);
    const ROUNDS: usize = 4;
    for round in 1..=ROUNDS {
        a.post(&b);
        b.post(&a);
        let began = Instant::now();
        while a.done.min(b.done) < 2 * QUEUE_PAIRS * round {
            assert!(began.elapsed() < PATIENCE, "{} and {} completions", a.done, b.done);
            a.turn();
            b.turn();
        }
    }
    for end in [&a, &b] {
        let port = end.context.port_stats();
        assert_eq!((port.rx_dropped, port.tx_dropped), (0, 0), "{port:?}");
    }
}
