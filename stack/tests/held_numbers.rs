//! A queue pair number that an ended connection still reserves (TIMEWAIT) is not assigned to a new queue pair.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use stack::device::{
    CqInit, Device, DeviceConfig, DeviceError, Drive, Policies, QpCap, QpInit, QpType, Qpn, Service,
};

/// Reserves the first `refuse` numbers that it is called with.
struct Holder {
    refuse: usize,
    asked: Mutex<Vec<Qpn>>,
}

impl Service for Holder {
    fn step(&self) {}
    fn holds(&self, qpn: Qpn) -> bool {
        let mut asked = self.asked.lock().unwrap();
        asked.push(qpn);
        asked.len() <= self.refuse
    }
}

/// Creates a queue pair on a device with room for one. Returns its number, or the error; and the numbers with which the service was
/// called.
fn draw(refuse: usize) -> (Result<Qpn, DeviceError>, Vec<Qpn>) {
    let config = DeviceConfig::loopback().qps_per_shard(1);
    let device = Device::open(config.drive(Drive::Embedded)).unwrap();
    let holder = Arc::new(Holder { refuse, asked: Mutex::default() });
    device.install(holder.clone()).unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(&CqInit { cqe: 1, channel: None, context: 0, parent: None }).unwrap();
    let init = |qp_type| QpInit {
        qp_type,
        send_cq: Some(&cq),
        recv_cq: Some(&cq),
        srq: None,
        cap: QpCap::default(),
        sq_sig_all: false,
        shard: None,
        block_self_mcast_lb: false,
        number: None,
        policies: Policies::default(),
    };
    let made = pd.create_qp(&init(QpType::Rc));
    let asked = holder.asked.lock().unwrap().clone();
    let qpn = made.as_ref().map(|qp| qp.qpn()).map_err(Clone::clone);
    // In any case the only slot is still free.
    drop(made);
    device.uninstall();
    pd.create_qp(&init(QpType::Rc)).expect("no slot is lost");
    (qpn, asked)
}

#[test]
fn a_number_that_is_held_is_passed_over() {
    for refuse in [0, 1, 5] {
        let (qpn, asked) = draw(refuse);
        assert_eq!((asked.len(), asked.last().copied()), (refuse + 1, qpn.ok()));
        assert_eq!(asked.iter().collect::<HashSet<_>>().len(), asked.len(), "another one each time");
    }
}

#[test]
fn a_service_that_holds_everything_ends_the_search() {
    let (qpn, asked) = draw(usize::MAX);
    assert!(matches!(qpn, Err(DeviceError::Exhausted { limit: 64, .. })), "{qpn:?}");
    assert_eq!(asked.len(), 64);
}
