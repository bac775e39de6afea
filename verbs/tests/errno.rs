//! The error number of every refusal; its text names what was wrong.

use std::sync::{Arc, Mutex, Weak};

use crate::common::{self, hooked::Inside};
use crate::common::{Pair, all_rights, device, embedded, options};
use verbs::errno::{EBUSY, EDEADLK, EINVAL, ENODEV, EOPNOTSUPP};
use verbs::port::PortSpec;
use verbs::{
    Access, AttrMask, Context, DeviceConfig, DeviceError, Drive, QpAttr, QpCap, QpInitAttr, QpState, QpType,
    VerbsError, attr_to, limits,
};

/// Checks that a call is refused with this number, and with a text that contains these words.
#[track_caller]
fn refused<T>(result: Result<T, VerbsError>, errno: i32, words: &[&str]) {
    let Err(e) = result else { panic!("accepted, where {words:?} was to be refused") };
    assert_eq!(e.errno(), errno, "{e}");
    for word in words {
        assert!(e.to_string().contains(word), "{word:?} is not in {e}");
    }
}

#[test]
fn open() {
    let open = Context::open;
    refused(open(DeviceConfig::loopback().shards(0)), EINVAL, &["shards is 0", "1 to 16"]);
    refused(open(DeviceConfig::loopback().shards(17)), EINVAL, &["shards is 17"]);
    refused(open(DeviceConfig::loopback().qps_per_shard(0)), EINVAL, &["qps_per_shard is 0"]);
    refused(open(DeviceConfig::loopback().vlan(4095)), EINVAL, &["4095"]);
    refused(open(DeviceConfig::default().addr([10, 0, 0, 1], 33)), EINVAL, &["/33", "10.0.0.1"]);
    refused(open(DeviceConfig::default().addr([127, 0, 0, 1], 8)), EINVAL, &["127.0.0.1"]);
    let dedicated = |cores: &[usize]| Drive::Dedicated { cores: cores.to_vec() };
    let two = || DeviceConfig::loopback().shards(2);
    refused(open(two().drive(dedicated(&[0]))), EINVAL, &["2 shards", "1 cores"]);
    refused(open(two().drive(dedicated(&[0, 9999]))), EINVAL, &["core 9999", "choose from"]);
    let port = PortSpec::Loopback.open(&Default::default()).unwrap();
    refused(open(DeviceConfig::new(port).shards(2)), EINVAL, &["1 queues for 2 shards"]);
    let port = PortSpec::Loopback.open(&Default::default()).unwrap();
    let _queue = port.take_queue(0);
    refused(open(DeviceConfig::new(port)), EINVAL, &["taken by somebody else"]);
    let nowhere: PortSpec = "unix:/nowhere/at/all,peer=/nowhere/else".parse().unwrap();
    refused(open(DeviceConfig::new(nowhere)), ENODEV, &["/nowhere/at/all"]);
}

#[test]
fn queries() {
    let context = embedded();
    refused(context.query_port(0), EINVAL, &["port 0", "from 1"]);
    refused(context.query_port(2), EINVAL, &["port 2"]);
    refused(context.query_gid(1, 2), EINVAL, &["GID index 2", "there are 2"]);
    refused(context.query_gid(2, 0), EINVAL, &["port 2"]);
    refused(context.reactor(1), EINVAL, &["shard 1"]);
    refused(context.shard_counters(1), EINVAL, &["shard 1"]);
    refused(context.query_pkey(1, 1), EINVAL, &["P_Key index 1"]);
    refused(context.get_pkey_index(2, 0xffff), EINVAL, &["port 2"]);
    refused(context.get_pkey_index(1, 0x7fff), EINVAL, &["P_Key 0x7fff"]);
    assert_eq!(context.get_pkey_index(1, context.query_pkey(1, 0).unwrap()).unwrap(), 0);
    let device = context.query_device();
    assert_eq!((device.max_qp, device.shards, device.phys_port_cnt), (4096, 1, 1));
    let port = context.query_port(1).unwrap();
    assert_eq!((port.gid_tbl_len, port.active_mtu), (2, verbs::Mtu::Mtu4096));
    assert_eq!(context.query_gid(1, 1).unwrap().to_string(), "::ffff:192.0.2.1");
    assert_eq!(context.query_gid(1, 0).unwrap(), verbs::Gid::link_local(port.mac));
    assert_eq!(context.gid_table().len(), 2);
}

#[test]
fn create_cq() {
    let context = embedded();
    refused(context.create_cq(0), EINVAL, &["cqe is 0"]);
    refused(context.create_cq(limits::CQE_MAX + 1), EINVAL, &["cqe is 4194305", "4194304"]);
}

#[test]
fn create_qp() {
    let (context, other) = (embedded(), embedded());
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let foreign = other.create_cq(1).unwrap();
    let max = QpCap {
        max_send_wr: limits::QUEUE_DEPTH_MAX,
        max_recv_wr: limits::QUEUE_DEPTH_MAX,
        max_send_sge: limits::SGE_MAX as u32,
        max_recv_sge: limits::SGE_MAX as u32,
        max_inline_data: limits::INLINE_MAX,
    };
    let rc = || QpInitAttr::rc(&cq, &cq);
    assert_eq!(pd.create_qp(&rc().cap(max)).unwrap().cap(), max);
    for (name, cap) in [
        ("max_send_wr", QpCap { max_send_wr: max.max_send_wr + 1, ..max }),
        ("max_recv_wr", QpCap { max_recv_wr: u32::MAX, ..max }),
        ("max_send_sge", QpCap { max_send_sge: max.max_send_sge + 1, ..max }),
        ("max_recv_sge", QpCap { max_recv_sge: max.max_recv_sge + 1, ..max }),
        ("max_inline_data", QpCap { max_inline_data: max.max_inline_data + 1, ..max }),
    ] {
        refused(pd.create_qp(&rc().cap(cap)), EINVAL, &[name]);
    }
    assert!(pd.create_qp(&rc().cap(QpCap::default())).is_ok(), "sizes of 0 are rounded up");
    refused(pd.create_qp(&rc().on_shard(1)), EINVAL, &["shard is 1"]);
    refused(pd.create_qp(&QpInitAttr::rc(&foreign, &cq)), EINVAL, &["send completion queue"]);
    refused(pd.create_qp(&QpInitAttr::rc(&cq, &foreign)), EINVAL, &["receive completion queue"]);
}

#[test]
fn too_many_queue_pairs() {
    let config = DeviceConfig::loopback().qps_per_shard(2).drive(Drive::Embedded);
    let context = Context::open(config).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let create = || pd.create_qp(&QpInitAttr::rc(&cq, &cq));
    let first = create().unwrap();
    let _second = create().unwrap();
    refused(create(), verbs::errno::ENOMEM, &["2 are in use"]);
    drop(first);
    create().unwrap();
}

#[test]
fn modify_qp() {
    let p = Pair::new(embedded());
    let (attr, _) = attr_to(QpState::Init);
    refused(p.a.modify(&attr, AttrMask::STATE), EINVAL, &["RTS -> INIT"]);
    refused(p.a.modify(&attr, AttrMask::CAP), EINVAL, &["CAP"]);
    refused(p.a.modify(&attr, AttrMask::from_bits_retain(1 << 30)), EOPNOTSUPP, &["0x40000000"]);
    refused(p.a.connect_rc(&p.b.endpoint(1).unwrap(), &options()), EINVAL, &["in RTS", "RESET"]);
    refused(p.a.endpoint(9), EINVAL, &["GID index 9"]);
    let fresh = p.pd.create_qp(&QpInitAttr::rc(&p.cq_a, &p.cq_a)).unwrap();
    let peer = p.b.endpoint(1).unwrap();
    let wrong = options().sgid_index(7);
    refused(fresh.connect_rc(&peer, &wrong), EINVAL, &["sgid_index", "7"]);
    assert_eq!(fresh.state().unwrap(), QpState::Init, "as far as it went");
    let wrong = options().timeout(32);
    refused(fresh.connect_rc(&peer, &wrong), EINVAL, &["timeout is 32"]);
    let ud = p.pd.create_qp(&QpInitAttr::new(QpType::Ud, &p.cq_a, &p.cq_a)).unwrap();
    let attr = QpAttr { qp_state: QpState::Init, port_num: 1, qkey: 0x8000_0001, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::PORT | AttrMask::PKEY_INDEX | AttrMask::QKEY;
    refused(ud.modify(&attr, mask), verbs::errno::EPERM, &["0x80000001"]);
}

#[test]
fn reg_mr() {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    refused(pd.reg_mr(64, Access::REMOTE_WRITE), EINVAL, &["local write"]);
    refused(pd.reg_mr(64, Access::REMOTE_ATOMIC), EINVAL, &["local write"]);
    refused(pd.reg_mr(64, Access::from_bits_retain(1 << 29)), EINVAL, &["access flags"]);
    refused(pd.reg_mr(64, Access::UNSUPPORTED), EOPNOTSUPP, &["FLUSH_PERSISTENT"]);
    refused(pd.reg_mr(usize::MAX / 2, Access::empty()), verbs::errno::ENOMEM, &["no memory"]);
    assert!(pd.reg_mr(0, Access::empty()).unwrap().is_empty());
    assert!(pd.reg_mr(64, Access::REMOTE_READ).is_ok());
}

#[test]
fn busy() {
    let Pair { a, b, mr, cq_a, cq_b, pd, context } = Pair::new(device());
    refused(context.close().map_err(|(e, c)| (drop(c), e).1), EBUSY, &["context"]);
    refused(cq_a.destroy().map_err(|(e, c)| (drop(c), e).1), EBUSY, &["completion queue"]);
    let handles = a.split().unwrap();
    refused(a.destroy().map_err(|(e, c)| (drop(c), e).1), EBUSY, &["queue pair"]);
    refused(pd.dealloc().map_err(|(e, c)| (drop(c), e).1), EBUSY, &["protection domain"]);
    drop((handles, b, mr, cq_b));
}

#[test]
fn control_calls_from_inside_a_turn() {
    let inside = Inside::default();
    let context = Arc::new(Context::open(DeviceConfig::new(inside.port()).drive(Drive::Embedded)).unwrap());
    let pd = Arc::new(context.alloc_pd().unwrap());
    let cq = context.create_cq(1).unwrap();
    let qp = Arc::new(pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap());
    let mr = Mutex::new(Some(pd.reg_mr(64, all_rights()).unwrap()));
    let (weak_context, weak_pd, weak_qp) =
        (Arc::downgrade(&context), Arc::downgrade(&pd), Arc::downgrade(&qp));
    let ran = Arc::new(Mutex::new(false));
    let flag = ran.clone();
    let call = move || {
        let up = |w: &Weak<verbs::Qp>| w.upgrade().unwrap();
        let (attr, mask) = attr_to(QpState::Err);
        refused(up(&weak_qp).modify(&attr, mask), EDEADLK, &["inside a turn"]);
        refused(up(&weak_qp).query().map(drop), EDEADLK, &["inside a turn"]);
        refused(up(&weak_qp).drain_qp(common::PATIENCE), EDEADLK, &["inside a turn"]);
        refused(up(&weak_qp).drain_by_sqd(common::PATIENCE), EDEADLK, &["inside a turn"]);
        refused(up(&weak_qp).begin_drain(verbs::DrainKind::Sq).map(drop), EDEADLK, &["inside a turn"]);
        refused(
            weak_context.upgrade().unwrap().get_async_event(common::PATIENCE),
            EDEADLK,
            &["inside a turn"],
        );
        let context = weak_context.upgrade().unwrap();
        let channel = context.create_comp_channel().unwrap();
        refused(channel.get_cq_event(common::PATIENCE), EDEADLK, &["inside a turn"]);
        refused(context.create_cq(1).unwrap().resize(2), EDEADLK, &["inside a turn"]);
        refused(context.add_address([192, 0, 2, 77], 24), EDEADLK, &["inside a turn"]);
        refused(context.remove_address([192, 0, 2, 77]), EDEADLK, &["inside a turn"]);
        let mr = mr.lock().unwrap().take().unwrap();
        let (e, mr) = mr.dereg().unwrap_err();
        assert!(matches!(e, VerbsError::Device(DeviceError::InsideTurn)));
        // Dropped inside a turn the region cannot be deregistered, so its memory must not be freed.
        drop(mr);
        let cq = weak_context.upgrade().unwrap().create_cq(1).unwrap();
        refused(weak_pd.upgrade().unwrap().create_qp(&QpInitAttr::rc(&cq, &cq)), EDEADLK, &["inside a turn"]);
        *flag.lock().unwrap() = true;
    };
    inside.next(call);
    context.reactor(0).unwrap().poll_once();
    assert!(*ran.lock().unwrap());
    let (attr, mask) = attr_to(QpState::Err);
    qp.modify(&attr, mask).unwrap();
}
