//! Each value of query_device and query_port that is no limit on objects is true. The limits are in `limits.rs`.

use core::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Pair, Stop, all_rights, embedded, options, pump, take};
use crate::link::Link;
use crate::wire::{Wire, datagram};
use stack::device::Device;
use verbs::errno::{EINVAL, ENOMEM};
use verbs::{
    Access, AtomicCap, Context, Counter, DeviceCapFlags, DeviceConfig, DeviceError, Drive, Mtu, MwType,
    PortCapFlags, PostErrorKind, QpInitAttr, RecvWr, SendWr, Sge, SrqInitAttr, VerbsError, Wc, XrcdInitAttr,
    ah_attr_to,
};

/// Checks that a structure, which may grow, has exactly these fields; each is listed next to its test.
fn has_fields(shown: &impl Debug, tested: &[(&str, &str)]) {
    let text = format!("{shown:#?}");
    let fields = text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(':'));
    let fields = fields.map(|(name, _)| name).filter(|name| !name.starts_with(' '));
    assert_eq!(fields.collect::<Vec<_>>(), tested.iter().map(|(name, _)| *name).collect::<Vec<_>>());
}

// A new field fails here until it is listed, next to its test.
#[test]
#[rustfmt::skip] // a field a line
fn every_field_is_known() {
    let context = embedded();
    let device = context.query_device();
    has_fields(&device, &[
        ("fw_ver", "here"),
        ("node_guid", "limits: names_numbers_and_clock"),
        ("sys_image_guid", "the same"),
        ("vendor_id", "the same"),
        ("vendor_part_id", "the same"),
        ("hw_ver", "the same"),
        ("device_cap_flags", "every_flag_is_true"),
        ("max_mr_size", "limits: max_mr_and_max_mr_size"),
        ("on_demand", "in on_demand"),
        ("page_size_cap", "page_size_cap"),
        ("max_qp", "limits: max_qp_and_qps_per_shard"),
        ("qps_per_shard", "the same"),
        ("max_qp_wr", "limits: max_qp_wr"),
        ("max_sge", "limits: max_sge_and_max_sge_rd"),
        ("max_sge_rd", "the same"),
        ("max_inline_data", "limits: max_inline_data"),
        ("max_cq", "limits: max_cq"),
        ("max_cqe", "limits: max_cqe"),
        ("max_srq", "bad_input: Pd::create_srq -> Exhausted"),
        ("max_srq_wr", "max_srq_wr_and_max_srq_sge"),
        ("max_srq_sge", "the same"),
        ("max_mr", "limits: max_mr_and_max_mr_size"),
        ("max_mw", "max_mw"),
        ("max_pd", "limits: max_pd"),
        ("max_qp_rd_atom", "limits: max_qp_rd_atom_and_max_qp_init_rd_atom"),
        ("max_res_rd_atom", "max_res_rd_atom"),
        ("max_qp_init_rd_atom", "limits: max_qp_rd_atom_and_max_qp_init_rd_atom"),
        ("atomic_cap", "atomic_cap"),
        ("max_mcast_grp", "multicast: limits_are_those_announced"),
        ("max_mcast_qp_attach", "the same"),
        ("max_total_mcast_qp_attach", "the same"),
        ("phys_port_cnt", "here"),
        ("max_pkeys", "limits: max_pkeys_and_the_pkey_table"),
        ("local_ca_ack_delay", "local_ca_ack_delay"),
        ("completion_timestamp_mask", "limits: names_numbers_and_clock"),
        ("hca_core_clock", "the same"),
        ("shards", "limits: max_qp_and_qps_per_shard"),
        ("max_ah", "max_ah"),
    ]);
    let numbers: Vec<u32> = device.fw_ver.split('.').map(|part| part.parse().unwrap()).collect();
    assert_eq!((device.fw_ver, numbers.len()), (env!("CARGO_PKG_VERSION"), 3));
    assert!(context.query_port(device.phys_port_cnt).is_ok());
    assert_eq!(context.query_port(device.phys_port_cnt + 1).unwrap_err().errno(), EINVAL);

    let port = context.query_port(1).unwrap();
    has_fields(&port, &[
        ("state", "events: s38_the_link_goes_down_and_up"),
        ("phys_state", "limits: the_port"),
        ("max_mtu", "every_mtu"),
        ("active_mtu", "the same"),
        ("link_mtu", "the same"),
        ("mac", "limits: names_numbers_and_clock"),
        ("gid_tbl_len", "limits: the_gid_table; events: s39_addresses_come_and_go"),
        ("pkey_tbl_len", "limits: max_pkeys_and_the_pkey_table"),
        ("max_msg_sz", "limits: max_msg_sz"),
        ("port_cap_flags", "every_flag_is_true"),
        ("bad_pkey_cntr", "violations_are_counted"),
        ("qkey_viol_cntr", "the same"),
        ("max_vl_num", "limits: the_port"),
        ("active_width", "nominal"),
        ("active_speed", "nominal"),
        ("flags", "limits: the_port; bad_input: Pd::create_ah -> NoGrh"),
        ("link_layer", "limits: the_port"),
        ("queues", "here"),
    ]);
    assert_eq!(port.queues, 1);
}

// Each set flag stands for a feature that works, which has its own test; the device lacks the features whose flags are not
// set.
#[test]
fn every_flag_is_true() {
    use DeviceCapFlags as F;
    let context = embedded();
    let flags = context.query_device().device_cap_flags;
    let tests = [
        (F::BAD_PKEY_CNTR, "violations_are_counted"),
        (F::BAD_QKEY_CNTR, "violations_are_counted"),
        (F::CURR_QP_STATE_MOD, "limits: capabilities"),
        (F::PORT_ACTIVE_EVENT, "events: s38_the_link_goes_down_and_up"),
        (F::SYS_IMAGE_GUID, "limits: names_numbers_and_clock"),
        (F::RC_RNR_NAK_GEN, "srq: l02_an_empty_queue_is_not_ready"),
        (F::SRQ_RESIZE, "srq: l06_a_resize_keeps_the_order"),
        (F::MEM_WINDOW, "windows: c01_r58_type_1_window"),
        (F::XRC, "here, and xrc: x01_a_send_goes_to_the_queue_that_it_names"),
        (F::MEM_MGT_EXTENSIONS, "registration: r60_fast_registration"),
        (F::MEM_WINDOW_TYPE_2B, "windows: r59_type_2_window_from_another_queue_pair"),
        (F::FLUSH_GLOBAL, "placement: c01_r56_flush"),
        (F::ATOMIC_WRITE, "placement: c01_r55_atomic_write"),
    ];
    assert_eq!(tests.iter().map(|(flag, _)| *flag).fold(F::empty(), F::union), flags);

    // Programs check the flag before they open a domain.
    let xrcd = context.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
    pd.create_xrc_srq(&SrqInitAttr::new(1, 1), &xrcd, &cq).unwrap();
    pd.create_qp(&QpInitAttr::xrc_ini(&cq)).unwrap();
    // The same for connection management.
    let caps = context.query_port(1).unwrap().port_cap_flags;
    assert_eq!(caps, PortCapFlags::CM_SUP | PortCapFlags::IP_BASED_GIDS);
    context.create_id(None, verbs::rdma_cm::PortSpace::Tcp).unwrap();
}

// 4 KiB is the smallest page size and every larger power of two is one: the library's buffers are aligned to such pages.
#[test]
fn page_size_cap() {
    let context = embedded();
    let cap = context.query_device().page_size_cap;
    assert_eq!((cap.trailing_zeros(), cap.count_ones()), (12, 52), "{cap:#x}");
    let pd = context.alloc_pd().unwrap();
    for (len, page) in [(1, 12), (8192, 12), ((2 << 20) - 1, 12), (2 << 20, 21), (5 << 20, 21)] {
        let mr = pd.reg_mr(len, Access::empty()).unwrap();
        assert_eq!((mr.addr() % (1 << page), cap >> page & 1), (0, 1), "{len} bytes at {:#x}", mr.addr());
    }
}

// The peer's atomics are atomic with respect to the CPU.
#[test]
fn atomic_cap() {
    let context = Context::open(DeviceConfig::loopback().drive(Drive::Dedicated { cores: vec![] })).unwrap();
    assert_eq!(context.query_device().atomic_cap, AtomicCap::Glob);
    let p = Pair::new(context);
    let (rounds, word) = (200, p.mr.atomic_u64(0).unwrap());
    let stop = AtomicBool::new(false);
    let ours = std::thread::scope(|scope| {
        let ours = scope.spawn(|| {
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) || n == 0 {
                word.fetch_add(1, Ordering::Relaxed);
                n += 1;
            }
            n
        });
        let stopped = Stop(&stop);
        let sge = [p.mr.sge(64..72).unwrap()];
        for _ in 0..rounds {
            let add = SendWr::fetch_and_add(1, &sge, p.mr.addr(), p.mr.rkey(), 1 << 40).signaled();
            p.a.post_send(&[add; 16]).unwrap();
            let mut n = 0;
            let mut wc = [Wc::default(); 16];
            while n < 16 {
                n += p.cq_a.poll(&mut wc).unwrap();
                std::thread::yield_now();
            }
        }
        drop(stopped);
        ours.join().unwrap()
    });
    assert_eq!(word.load(Ordering::Relaxed), ((16 * rounds) << 40) + ours, "none of either is lost");
}

// The time from a request to its acknowledgement is one turn of the shard, however long that takes: the announced delay covers the time
// for which a thread may be kept from making that turn.
#[test]
fn local_ca_ack_delay() {
    let link = Link::new();
    let delay = link.a.context.query_device().local_ca_ack_delay;
    assert!((1..=31).contains(&delay), "an exponent of 4.096 us, {delay}");
    link.b.qp.post_recv(&[RecvWr::new(1, &[]); 8]).unwrap();
    for _ in 0..8 {
        link.a.qp.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
        pump(&link.a.context);
        assert_eq!(link.a.done(), []);
        pump(&link.b.context);
        pump(&link.a.context);
        assert_eq!(link.a.done().len(), 1);
    }
}

// The limit is memory: here 100 000, each of which works.
#[test]
fn max_ah() {
    const AHS: usize = 100_000;
    let context = embedded();
    assert!(context.query_device().max_ah >= AHS);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
    let qp = pd.create_qp(&QpInitAttr::ud(&cq, &cq)).unwrap();
    qp.activate_ud(5).unwrap();
    let attr = ah_attr_to(context.query_gid(1, 1).unwrap(), 1);
    let ahs: Vec<_> = (0..AHS).map(|_| pd.create_ah(&attr).unwrap()).collect();
    for ah in [&ahs[0], &ahs[AHS / 2], &ahs[AHS - 1]] {
        qp.post_send(&[SendWr::send(1, &[]).to(ah, qp.qp_num(), 5).signaled()]).unwrap();
        assert!(take(&context, &cq, 1)[0].is_ok());
    }
}

#[test]
fn max_srq_wr_and_max_srq_sge() {
    let context = embedded();
    let (max, sges) = (context.query_device().max_srq_wr, context.query_device().max_srq_sge);
    let pd = context.alloc_pd().unwrap();
    let srq = pd.create_srq(&SrqInitAttr::new(max, sges)).unwrap();
    let (cq_a, cq_b) = (context.create_cq(64).unwrap(), context.create_cq(64).unwrap());
    let a = pd.create_qp(&QpInitAttr::rc(&cq_a, &cq_a)).unwrap();
    let b = pd.create_qp(&QpInitAttr::rc(&cq_b, &cq_b).srq(&srq)).unwrap();
    a.connect_rc(&b.endpoint(1).unwrap(), &options()).unwrap();
    b.connect_rc(&a.endpoint(1).unwrap(), &options()).unwrap();
    let mr = pd.reg_mr(4096, all_rights()).unwrap();
    // The first request has the largest number of elements, from last to first; then requests until the queue is full.
    let list: Vec<Sge> =
        (0..sges as usize).rev().map(|i| mr.sge(1024 + 2 * i..1026 + 2 * i).unwrap()).collect();
    srq.post_recv(&[RecvWr::new(0, &list)]).unwrap();
    let more = [list.as_slice(), &list[..1]].concat();
    let e = srq.post_recv(&[RecvWr::new(1, &more)]).unwrap_err();
    assert_eq!((e.kind, e.errno()), (PostErrorKind::TooManySge { given: more.len(), max: sges }, EINVAL));
    let rest: Vec<_> = (1..u64::from(max)).map(|id| RecvWr::new(id, &[])).collect();
    srq.post_recv(&rest).unwrap();
    let e = srq.post_recv(&[RecvWr::new(9, &[])]).unwrap_err();
    assert_eq!((e.kind, e.bad_wr, e.errno()), (PostErrorKind::Full { depth: max }, 0, ENOMEM));
    assert_eq!(srq.waiting().unwrap(), max);
    let text: Vec<u8> = (0..2 * sges as u8).collect();
    a.post_send(&[SendWr::send(1, &[]).inline(&text).signaled()]).unwrap();
    assert_eq!(take(&context, &cq_b, 1)[0].byte_len as usize, text.len());
    for (i, piece) in text.chunks(2).enumerate() {
        let at = 1024 + 2 * (sges as usize - 1 - i);
        assert_eq!(mr.to_vec(at..at + 2).unwrap(), piece);
    }
    for id in 1..u64::from(max) {
        a.post_send(&[SendWr::send(id, &[])]).unwrap();
        assert_eq!(take(&context, &cq_b, 1)[0].wr_id, id);
    }
    assert_eq!(srq.waiting().unwrap(), 0);
}

// On the device API, as in the test of regions: 65 536 keys.
#[test]
fn max_mw() {
    let device = Device::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
    let (pd, max) = (device.alloc_pd().unwrap(), device.attr().max_mw);
    let kind = |n: usize| if n.is_multiple_of(2) { MwType::One } else { MwType::Two };
    let mut mws: Vec<_> = (0..max).map(|n| pd.alloc_mw(kind(n)).unwrap()).collect();
    let keys: std::collections::HashSet<_> = mws.iter().map(|mw| mw.rkey() >> 8).collect();
    assert_eq!(keys.len(), max, "every window has keys of its own");
    let e = VerbsError::from(pd.alloc_mw(MwType::Two).unwrap_err());
    assert_eq!(e.errno(), ENOMEM, "{e}");
    mws.pop();
    mws.push(pd.alloc_mw(MwType::Two).unwrap());
    assert!(pd.alloc_mw(MwType::One).is_err());
}

// Every queue pair of the device at once, each with all the READs that it may have.
#[test]
fn max_res_rd_atom() {
    let config = DeviceConfig::loopback().qps_per_shard(4);
    let context = Context::open(config.drive(Drive::Embedded)).unwrap();
    let attr = context.query_device();
    let each = usize::from(attr.max_qp_rd_atom);
    assert_eq!(attr.max_res_rd_atom, attr.max_qp * each);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(128).unwrap());
    let mr = pd.reg_mr(4096, all_rights()).unwrap();
    let init = QpInitAttr::rc(&cq, &cq);
    let qps: Vec<_> = (0..attr.max_qp).map(|_| pd.create_qp(&init).unwrap()).collect();
    for pair in qps.chunks(2) {
        pair[0].connect_rc(&pair[1].endpoint(1).unwrap(), &options()).unwrap();
        pair[1].connect_rc(&pair[0].endpoint(1).unwrap(), &options()).unwrap();
    }
    for (i, qp) in qps.iter().enumerate() {
        let sge = [mr.sge(8 * i..8 * i + 8).unwrap()];
        let add = SendWr::fetch_and_add(1, &sge, mr.addr() + 2048, mr.rkey(), 1).signaled();
        qp.post_send(&vec![add; each]).unwrap();
    }
    assert!(take(&context, &cq, attr.max_res_rd_atom).iter().all(Wc::is_ok));
    assert_eq!(mr.read_u64(2048).unwrap(), attr.max_res_rd_atom as u64);
    let e = pd.create_qp(&init).unwrap_err();
    assert!(matches!(e, VerbsError::Device(DeviceError::Exhausted { .. })), "{e}");
}

// A port's attributes match the packets that its MTU can carry, and a larger path MTU is refused.
#[test]
fn every_mtu() {
    for (mtu, active) in [
        (576, Mtu::Mtu256),
        (1279, Mtu::Mtu1024),
        (1500, Mtu::Mtu1024),
        (2200, Mtu::Mtu2048),
        (4200, Mtu::Mtu4096),
        (9600, Mtu::Mtu4096),
    ] {
        let config = DeviceConfig::loopback().mtu(mtu);
        let p = Context::open(config.drive(Drive::Embedded)).unwrap();
        let port = p.query_port(1).unwrap();
        assert_eq!((port.link_mtu, port.active_mtu, port.max_mtu), (mtu, active, Mtu::Mtu4096), "{mtu}");
        let p = Pair::new(p); // with the active MTU
        assert_eq!(p.a.query().unwrap().0.path_mtu, active as u8);
        p.a.post_send(&[SendWr::write(
            1,
            &[p.mr.sge(0..10_000).unwrap()],
            p.mr.addr() + 20_000,
            p.mr.rkey(),
        )
        .signaled()])
            .unwrap();
        assert!(p.done_a(1)[0].is_ok(), "{mtu}");
        let packets = 10_000u64.div_ceil(active.bytes() as u64);
        assert_eq!(p.a.counters().get(Counter::TxFrames), packets, "{mtu}");
        if active < Mtu::Mtu4096 {
            let qp = p.pd.create_qp(&QpInitAttr::rc(&p.cq_a, &p.cq_a)).unwrap();
            let above = Mtu::from_enum(active as u8 + 1);
            let e = qp.connect_rc(&p.b.endpoint(1).unwrap(), &options().path_mtu(above));
            assert_eq!(e.unwrap_err().errno(), EINVAL, "{mtu}");
        }
    }
}

#[test]
fn violations_are_counted() {
    let mut w = Wire::new(false);
    let qp = w.pd.create_qp(&QpInitAttr::ud(&w.cq, &w.cq)).unwrap();
    qp.activate_ud(5).unwrap();
    let counted = |w: &Wire| {
        let port = w.context.query_port(1).unwrap();
        (port.bad_pkey_cntr, port.qkey_viol_cntr)
    };
    assert_eq!(counted(&w), (0, 0));
    w.send(&qp, &[datagram(1, 6, b"wrong Q_Key"), datagram(2, 6, b"again")]);
    assert_eq!(counted(&w), (0, 2));
    let mut flow = w.flow(&qp);
    flow.pkey = 0x8001;
    w.send_on(&flow, &[datagram(3, 5, b"wrong P_Key")]);
    assert_eq!(counted(&w), (1, 2));
    w.post_recvs(&qp, 0..1, 100);
    w.send(&qp, &[datagram(4, 5, b"right")]);
    assert!(w.done()[0].is_ok());
    assert_eq!(counted(&w), (1, 2));
}
