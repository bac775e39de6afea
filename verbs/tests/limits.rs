//! What query_device and query_port announce is true: each limit can be reached, and one more is refused, with the typed error and without
//! a change.

use crate::common::{self, Pair, all_rights, device, embedded, enter};
use crate::nowhere::nowhere;
use stack::device::{Device, MemError};
use verbs::errno::{EINVAL, ENOMEM};
use verbs::{
    Access, AttrMask, Context, DeviceCapFlags, DeviceConfig, DeviceError, Drive, GidType,
    LINK_LAYER_ETHERNET, Mtu, PortCapFlags, PortPhysState, PortState, PostErrorKind, QPF_GRH_REQUIRED,
    QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, SendWr, Sge, VerbsError, attr_init,
};

const SMALL: QpCap =
    QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

#[track_caller]
fn out_of_range<T>(result: Result<T, VerbsError>, name: &str, beyond: u64) {
    let Err(error) = result else { panic!("{name} {beyond} was accepted") };
    let VerbsError::Device(DeviceError::Range { what, given, max, .. }) = &error else { panic!("{error:?}") };
    assert_eq!((*what, *given, *max), (name, beyond, beyond - 1));
    assert_eq!(error.errno(), EINVAL);
}

#[track_caller]
fn exhausted<T>(result: Result<T, VerbsError>, limit: usize) {
    let Err(error) = result else { panic!("one more than {limit} was accepted") };
    assert!(
        matches!(&error, VerbsError::Device(DeviceError::Exhausted { limit: l, .. }) if *l == limit),
        "{error:?}"
    );
    assert_eq!(error.errno(), ENOMEM);
}

fn sixteenth(p: &Pair, n: usize) -> Vec<Sge> {
    (0..n).map(|i| p.mr.sge(i * 4..i * 4 + 4).unwrap()).collect()
}

#[test]
fn max_qp_wr() {
    let context = embedded();
    let max = context.query_device().max_qp_wr;
    let p = Pair::with(context, |init| init.cap(QpCap { max_send_wr: max, max_recv_wr: max, ..SMALL }));
    let recvs: Vec<_> = (0..max).map(|n| RecvWr::new(u64::from(n), &[])).collect();
    p.b.post_recv(&recvs).unwrap();
    let full = p.b.post_recv(&[RecvWr::new(0, &[])]).unwrap_err();
    assert_eq!((full.errno(), full.bad_wr), (ENOMEM, 0));
    let sends: Vec<_> = (0..max).map(|n| SendWr::send(u64::from(n), &[])).collect();
    p.a.post_send(&sends).unwrap();
    let full = p.a.post_send(&[SendWr::send(0, &[])]).unwrap_err();
    assert_eq!((full.errno(), full.bad_wr), (ENOMEM, 0));
    // All messages arrive, in order.
    let mut next = 0;
    while next < u64::from(max) {
        for wc in p.done_b((u64::from(max) - next).min(1024) as usize) {
            assert!(wc.is_ok() && wc.wr_id == next, "{wc:?}");
            next += 1;
        }
    }
    let init = QpInitAttr::rc(&p.cq_a, &p.cq_a);
    let beyond = u64::from(max) + 1;
    out_of_range(p.pd.create_qp(&init.cap(QpCap { max_send_wr: max + 1, ..SMALL })), "max_send_wr", beyond);
    out_of_range(p.pd.create_qp(&init.cap(QpCap { max_recv_wr: max + 1, ..SMALL })), "max_recv_wr", beyond);
}

#[test]
fn max_sge_and_max_sge_rd() {
    let context = embedded();
    let attr = context.query_device();
    let max = attr.max_sge;
    assert_eq!(attr.max_sge_rd, max);
    let cap = QpCap { max_send_sge: max, max_recv_sge: max, max_send_wr: 4, max_recv_wr: 4, ..SMALL };
    let p = Pair::with(context, |init| init.cap(cap));
    let (sges, more) = (sixteenth(&p, max as usize), sixteenth(&p, max as usize + 1));
    let data: Vec<u8> = (0..max as usize * 4).map(|i| i as u8).collect();
    p.mr.write(0, &data).unwrap();
    // Scattered from last to first, so that the order of elements shows.
    let to: Vec<_> = (0..max as usize).map(|i| p.mr.sge(8192 - i * 4..8192 - i * 4 + 4).unwrap()).collect();
    p.b.post_recv(&[RecvWr::new(1, &to)]).unwrap();
    p.a.post_send(&[SendWr::send(1, &sges).signaled()]).unwrap();
    assert!(p.done_a(1)[0].is_ok() && p.done_b(1)[0].is_ok());
    for (i, piece) in data.chunks(4).enumerate() {
        assert_eq!(p.mr.to_vec(8192 - i * 4..8192 - i * 4 + 4).unwrap(), piece, "element {i}");
    }
    p.a.post_send(&[SendWr::read(2, &to, p.mr.addr(), p.mr.rkey()).signaled()]).unwrap();
    assert!(p.done_a(1)[0].is_ok());
    let refused = p.a.post_send(&[SendWr::send(1, &more)]).unwrap_err();
    assert!(
        matches!(refused.kind, PostErrorKind::TooManySge { .. }) && refused.errno() == EINVAL,
        "{refused:?}"
    );
    assert!(matches!(
        p.b.post_recv(&[RecvWr::new(1, &more)]).unwrap_err().kind,
        PostErrorKind::TooManySge { .. }
    ));
    let init = QpInitAttr::rc(&p.cq_a, &p.cq_a);
    let beyond = u64::from(max) + 1;
    out_of_range(p.pd.create_qp(&init.cap(QpCap { max_send_sge: max + 1, ..SMALL })), "max_send_sge", beyond);
    out_of_range(p.pd.create_qp(&init.cap(QpCap { max_recv_sge: max + 1, ..SMALL })), "max_recv_sge", beyond);
}

#[test]
fn max_inline_data() {
    let context = embedded();
    let max = context.query_device().max_inline_data;
    let p = Pair::with(context, |init| init.cap(QpCap { max_inline_data: max, ..SMALL }));
    let data: Vec<u8> = (0..=max).map(|i| i as u8).collect();
    let len = max as usize;
    p.b.post_recv(&[RecvWr::new(1, &[p.mr.sge(0..4096).unwrap()])]).unwrap();
    p.a.post_send(&[SendWr::send(1, &[]).inline(&data[..len]).signaled()]).unwrap();
    assert!(p.done_a(1)[0].is_ok());
    assert_eq!(p.done_b(1)[0].byte_len, max);
    assert_eq!(p.mr.to_vec(0..len).unwrap(), data[..len]);
    let refused = p.a.post_send(&[SendWr::send(1, &[]).inline(&data)]).unwrap_err();
    assert!(matches!(refused.kind, PostErrorKind::InlineTooLong { .. }) && refused.errno() == EINVAL);
    let init = QpInitAttr::rc(&p.cq_a, &p.cq_a).cap(QpCap { max_inline_data: max + 1, ..SMALL });
    out_of_range(p.pd.create_qp(&init), "max_inline_data", u64::from(max) + 1);
}

#[test]
fn max_cqe() {
    let context = device();
    let max = context.query_device().max_cqe;
    let cq = context.create_cq(max).unwrap();
    assert!(cq.cqe() >= max);
    assert_eq!(cq.poll(&mut [verbs::Wc::default()]).unwrap(), 0);
    drop(cq);
    out_of_range(context.create_cq(max + 1), "cqe", u64::from(max) + 1);
}

#[test]
fn max_cq() {
    let context = embedded();
    let max = context.query_device().max_cq;
    let mut cqs: Vec<_> = (0..max).map(|_| context.create_cq(1).unwrap()).collect();
    exhausted(context.create_cq(1), max);
    cqs.pop();
    cqs.push(context.create_cq(1).unwrap());
    exhausted(context.create_cq(1), max);
}

#[test]
fn max_pd() {
    let context = embedded();
    let max = context.query_device().max_pd;
    let mut pds: Vec<_> = (0..max).map(|_| context.alloc_pd().unwrap()).collect();
    exhausted(context.alloc_pd(), max);
    pds.pop();
    pds.push(context.alloc_pd().unwrap());
    exhausted(context.alloc_pd(), max);
}

// On the device API, where a region is only a range of addresses: this many buffers would take most of this machine's memory.
#[test]
fn max_mr_and_max_mr_size() {
    let device = Device::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
    let (max, size) = (device.attr().max_mr, device.attr().max_mr_size);
    let pd = device.alloc_pd().unwrap();
    let mut mrs: Vec<_> =
        (0..max as u64).map(|n| pd.reg_mr(nowhere(n << 12, 1), Access::LOCAL_WRITE).unwrap()).collect();
    let keys: std::collections::HashSet<_> = mrs.iter().map(|mr| mr.key()).collect();
    assert_eq!(keys.len(), max, "every region has a key of its own");
    let full = pd.reg_mr(nowhere(0, 1), Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(full, DeviceError::Memory(MemError::Full)), "{full:?}");
    mrs.pop();
    mrs.push(pd.reg_mr(nowhere(0, size), Access::LOCAL_WRITE).unwrap());
    mrs.pop();
    assert!(
        pd.reg_mr(nowhere(u64::MAX - size + 2, size), Access::LOCAL_WRITE).is_err(),
        "beyond the end of all addresses"
    );
    let beyond = pd.reg_mr(nowhere(0, size + 1), Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(beyond, DeviceError::Range { max, .. } if max == size), "{beyond:?}");
}

#[test]
fn max_qp_and_qps_per_shard() {
    let config = DeviceConfig::loopback().shards(2).drive(Drive::Embedded).qps_per_shard(8);
    let config = config.port(verbs::port::pair(2).0);
    let context = Context::open(config).unwrap();
    let attr = context.query_device();
    assert_eq!((attr.max_qp, attr.qps_per_shard, attr.shards), (16, 8, 2));
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let init = QpInitAttr::rc(&cq, &cq).cap(SMALL);
    let mut qps: Vec<_> = (0..attr.qps_per_shard).map(|_| pd.create_qp(&init.on_shard(1)).unwrap()).collect();
    exhausted(pd.create_qp(&init.on_shard(1)), attr.qps_per_shard);
    qps.extend((qps.len()..attr.max_qp).map(|_| pd.create_qp(&init).unwrap()));
    assert_eq!(qps.iter().filter(|qp| qp.shard() == 0).count(), attr.qps_per_shard);
    exhausted(pd.create_qp(&init), attr.qps_per_shard);
    let gsi = QpInitAttr::new(QpType::Gsi, &cq, &cq).cap(SMALL);
    exhausted(pd.create_qp(&gsi), attr.qps_per_shard);
    qps.pop();
    qps.push(pd.create_qp(&init).unwrap());
    assert_eq!(attr.max_res_rd_atom, attr.max_qp * usize::from(attr.max_qp_rd_atom));
}

#[test]
fn max_qp_rd_atom_and_max_qp_init_rd_atom() {
    let context = embedded();
    let attr = context.query_device();
    let (responder, requester) = (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom);
    let pd = context.alloc_pd().unwrap();
    let n = 2 * usize::from(requester);
    let cq = context.create_cq(n as u32).unwrap();
    let mr = pd.reg_mr(4096, all_rights()).unwrap();
    let cap = QpCap { max_send_wr: n as u32, ..SMALL };
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).cap(cap)).unwrap();
    let at_limit = common::options().max_rd_atomic(requester).max_dest_rd_atomic(responder);
    qp.connect_rc(&qp.endpoint(1).unwrap(), &at_limit).unwrap();
    let sges: Vec<_> = (0..n).map(|i| [mr.sge(i * 8..i * 8 + 8).unwrap()]).collect();
    let reads: Vec<_> = sges
        .iter()
        .enumerate()
        .map(|(i, sge)| SendWr::fetch_and_add(i as u64, sge, mr.addr() + 2048, mr.rkey(), 1).signaled())
        .collect();
    qp.post_send(&reads).unwrap();
    assert!(common::take(&context, &cq, n).iter().all(verbs::Wc::is_ok));
    assert_eq!(mr.read_u64(2048).unwrap(), n as u64);

    let other = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    for beyond in [at_limit.max_rd_atomic(requester + 1), at_limit.max_dest_rd_atomic(responder + 1)] {
        let error = other.connect_rc(&qp.endpoint(1).unwrap(), &beyond).unwrap_err();
        assert_eq!(error.errno(), EINVAL, "{error}");
        assert!(error.to_string().contains(&format!("{}", requester + 1)), "{error}");
        enter(&other, QpState::Reset);
    }
}

// 2 GiB from one buffer that is used sixteen times. How they arrive is tested packet by packet elsewhere (Q04).
#[test]
fn max_msg_sz() {
    let context = embedded();
    let max = context.query_port(1).unwrap().max_msg_sz;
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(4).unwrap();
    let cap = QpCap { max_send_sge: 16, ..SMALL };
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).cap(cap)).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &common::options()).unwrap();
    let piece = Sge { addr: 0x1000, length: max / 16, lkey: 1 };
    let mut sges = [piece; 16];
    sges[15].length += 1;
    let refused = qp.post_send(&[SendWr::write(1, &sges, 0, 0)]).unwrap_err();
    assert!(matches!(refused.kind, PostErrorKind::TooLong(n) if n == u64::from(max) + 1), "{refused:?}");
    assert_eq!((refused.errno(), refused.bad_wr), (EINVAL, 0));
    sges[15].length -= 1;
    // The post succeeds; the key is invalid, which shows only when the request executes.
    qp.post_send(&[SendWr::write(1, &sges, 0, 0)]).unwrap();
    assert_eq!(common::take(&context, &cq, 1)[0].status, verbs::WcStatus::LocProtErr);
}

#[test]
fn max_pkeys_and_the_pkey_table() {
    let context = embedded();
    let count = context.query_port(1).unwrap().pkey_tbl_len;
    assert_eq!(count, context.query_device().max_pkeys);
    assert_eq!(context.query_pkey(1, usize::from(count) - 1).unwrap(), 0xffff);
    let beyond = context.query_pkey(1, usize::from(count)).unwrap_err();
    assert_eq!(beyond.errno(), EINVAL);
    assert_eq!(context.query_pkey(2, 0).unwrap_err().errno(), EINVAL);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let (attr, mask) = attr_init(Access::empty());
    let beyond = QpAttr { pkey_index: count, ..attr };
    assert_eq!(qp.modify(&beyond, mask | AttrMask::PKEY_INDEX).unwrap_err().errno(), EINVAL);
    qp.modify(&QpAttr { pkey_index: count - 1, ..attr }, mask).unwrap();
}

#[test]
fn the_gid_table() {
    let config = DeviceConfig::loopback()
        .addr([192, 0, 2, 9], 24)
        .addr("2001:db8::1".parse::<std::net::IpAddr>().unwrap(), 64);
    let context = Context::open(config).unwrap();
    let len = context.query_port(1).unwrap().gid_tbl_len;
    let table = context.query_gid_table();
    assert_eq!((len, table.len()), (4, 4));
    for (index, entry) in table.iter().enumerate() {
        assert_eq!(*entry, context.query_gid_ex(1, index).unwrap());
        assert_eq!(entry.gid, context.query_gid(1, index).unwrap());
        assert_eq!(
            (entry.gid_index, entry.port_num, entry.gid_type, entry.ndev),
            (index, 1, GidType::RoceV2, "")
        );
    }
    assert_eq!(table[2].gid.to_string(), "::ffff:192.0.2.9");
    assert_eq!(context.query_gid_ex(1, len).unwrap_err().errno(), EINVAL);
    assert_eq!(context.query_gid_ex(0, 0).unwrap_err().errno(), EINVAL);
    // A connection can use every entry of the table, and no index beyond.
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
    for index in 1..=len {
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        let options = common::options().sgid_index(index as u8);
        let peer = qp.endpoint(if index < len { index as u8 } else { 1 }).unwrap();
        assert_eq!(qp.connect_rc(&peer, &options).is_ok(), index < len, "index {index} of {len}");
    }
}

#[test]
fn the_port() {
    let context = device();
    let port = context.query_port(1).unwrap();
    assert_eq!((port.state, port.phys_state), (PortState::Active, PortPhysState::LinkUp));
    assert_eq!((port.max_mtu, port.active_mtu), (Mtu::Mtu4096, Mtu::Mtu4096));
    assert_eq!((port.flags, port.link_layer, port.max_vl_num), (QPF_GRH_REQUIRED, LINK_LAYER_ETHERNET, 1));
    assert!(port.port_cap_flags.contains(PortCapFlags::IP_BASED_GIDS));
    assert_eq!((port.bad_pkey_cntr, port.qkey_viol_cntr), (0, 0));
    // The port is active because the link has another end.
    let (a, b) = verbs::port::pair(1);
    let context = Context::open(DeviceConfig::new(a)).unwrap();
    assert_eq!(context.query_port(1).unwrap().state, PortState::Active);
    drop(b);
}

#[test]
fn names_numbers_and_clock() {
    let (a, b) = (device(), device());
    assert_ne!(a.device_name(), b.device_name());
    assert!(a.device_name().starts_with("roce"));
    let attr = a.query_device();
    let mac = a.query_port(1).unwrap().mac.0;
    let guid = a.device_guid();
    assert_eq!((guid, attr.node_guid, attr.sys_image_guid), (attr.node_guid, guid, guid));
    assert_eq!(
        (guid[0] ^ 2, &guid[1..3], &guid[3..5], &guid[5..]),
        (mac[0], &mac[1..3], &[0xff, 0xfe][..], &mac[3..])
    );
    assert_eq!((attr.vendor_id, attr.vendor_part_id, attr.hw_ver), (0x52_6f43, 1, 0));
    // The clock advances at its announced frequency: in nanoseconds.
    assert_eq!((attr.hca_core_clock, attr.completion_timestamp_mask), (1_000_000, u64::MAX));
    // Read between two readings of another clock: a preemption in between affects both.
    let outer = std::time::Instant::now();
    let before = a.now();
    let inner = std::time::Instant::now();
    while inner.elapsed() < std::time::Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    let least = inner.elapsed().as_nanos() as u64;
    let ticks = a.now() - before;
    let most = outer.elapsed().as_nanos() as u64;
    assert!(ticks >= least - least / 10 && ticks <= most + most / 10, "{ticks} in {least} to {most} ns");
}

// Each set flag stands for a feature that works; the device lacks the features of the other flags.
#[test]
fn capabilities() {
    let context = embedded();
    let attr = context.query_device();
    let has = |flag| attr.device_cap_flags.contains(flag);
    assert!(has(DeviceCapFlags::RC_RNR_NAK_GEN) && has(DeviceCapFlags::SYS_IMAGE_GUID));
    assert!(has(DeviceCapFlags::CURR_QP_STATE_MOD));
    let p = Pair::new(context);
    let (attr, mask) = verbs::attr_to(QpState::Sqd);
    let wrong = QpAttr { cur_qp_state: QpState::Rtr, ..attr };
    assert_eq!(p.a.modify(&wrong, mask | AttrMask::CUR_STATE).unwrap_err().errno(), EINVAL);
    assert!(!has(DeviceCapFlags::AUTO_PATH_MIG) && !has(DeviceCapFlags::RESIZE_MAX_WR));
    let attr = p.context.query_device();
    for (flag, limit) in [
        (DeviceCapFlags::SRQ_RESIZE, attr.max_srq),
        (DeviceCapFlags::MEM_WINDOW, attr.max_mw),
        (DeviceCapFlags::MEM_WINDOW_TYPE_2B, attr.max_mw),
    ] {
        assert!(limit > 0 || !has(flag), "{flag:?} without an object");
    }
}

#[test]
fn a_device_in_words() {
    let context = device();
    let text = context.device_info().to_string();
    for part in [
        context.device_name(),
        "max_qp:",
        "4096",
        "0x80000000",
        "Active (4)",
        "LinkUp (5)",
        "GID[  1]:",
        "::ffff:192.0.2.1, RoCE v2",
        "RC_RNR_NAK_GEN",
        "1000000 kHz",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(text.lines().count() > 50 && text.lines().all(|line| line.starts_with('\t')), "{text}");
}
