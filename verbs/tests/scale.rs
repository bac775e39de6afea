//! As many queue pairs as a shard can have, through the verbs.

mod common;

use std::collections::HashSet;

use common::{embedded_with, options};
use verbs::error::errno::ENOMEM;
use verbs::limits::QPS_PER_SHARD_MAX;
use verbs::{DeviceConfig, QpCap, QpInitAttr, RcOptions, RecvWr, SendWr};

const SMALL: QpCap =
    QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

// Every number that a shard has is made, connected to another one, and used; one more is refused; all of them go, and as
// many come again.
#[test]
fn as_many_queue_pairs_as_a_shard_has() {
    let context =
        embedded_with(DeviceConfig { qps_per_shard: QPS_PER_SHARD_MAX, ..DeviceConfig::loopback() });
    let max = context.query_device().max_qp;
    assert_eq!(max, QPS_PER_SHARD_MAX);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
    let init = QpInitAttr::rc(&cq, &cq).cap(SMALL);
    let mut qps: Vec<_> = (0..max).map(|_| pd.create_qp(&init).unwrap()).collect();
    assert_eq!(pd.create_qp(&init).unwrap_err().errno(), ENOMEM);

    let options = RcOptions { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..options() };
    for (n, qp) in qps.iter().enumerate() {
        qp.connect_rc(&qps[n ^ 1].endpoint(1).unwrap(), &options).unwrap();
    }
    // A stride that is odd visits each of a power of two of queue pairs once.
    let mut order = (0..max).map(|n| n.wrapping_mul(0x9e37_79b1) % max);
    assert!(max.is_power_of_two());
    for _ in 0..max / 64 {
        let visited: Vec<usize> = order.by_ref().take(64).collect();
        for &n in &visited {
            qps[n ^ 1].post_recv(&[RecvWr::new(n as u64, &[])]).unwrap();
            qps[n].post_send(&[SendWr::send(n as u64, &[]).signaled()]).unwrap();
        }
        let mut done: Vec<_> =
            common::take(&context, &cq, 128).iter().map(|wc| (wc.is_ok(), wc.wr_id)).collect();
        done.sort_unstable();
        let mut want: Vec<_> = visited.iter().flat_map(|&n| [(true, n as u64); 2]).collect();
        want.sort_unstable();
        assert_eq!(done, want);
    }
    qps.clear();
    qps.extend((0..max).map(|_| pd.create_qp(&init).unwrap()));
    let numbers: HashSet<_> = qps.iter().map(|qp| qp.qp_num()).collect();
    assert_eq!(numbers.len(), max);
}
