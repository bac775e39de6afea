//! Calls of the device: opening, queries, addresses, domains.

use stack::net::{NetConfig, NetConfigError};
use verbs::errno::{EBUSY, EINVAL, ENODEV, ENOMEM};
use verbs::port::{PortOptions, PortSpec, pair, pair_with};
use verbs::{Context, DeviceConfig, Drive, Mac, MwType, ParentDomainInitAttr, PortState};

use super::bench::{Case, Refusal, back, case, err};

fn open(change: impl FnOnce(&mut DeviceConfig)) -> Refusal {
    let mut config = DeviceConfig::loopback();
    change(&mut config);
    err(Context::open(config))
}

/// A path of this process, for one case.
fn path(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("roce-bad-{name}-{}", std::process::id()))
}

/// A port on an address of the host.
fn udp(addr: &str) -> PortSpec {
    format!("udp:{addr}").parse().unwrap()
}

pub const CASES: &[Case] = &[
    case("Context::open", "OpenError::Range", EINVAL, |_| {
        open(|c| c.shards = 0);
        open(|c| c.qps_per_shard = 131_073);
        open(|c| c.shards = 17)
    }),
    case("Context::open", "OpenError::Cores", EINVAL, |_| {
        open(|c| (c.shards, c.drive) = (2, Drive::Dedicated { cores: vec![0] }))
    }),
    case("Context::open", "OpenError::NoSuchCore", EINVAL, |_| {
        open(|c| c.drive = Drive::Dedicated { cores: vec![99_999] })
    }),
    case("Context::open", "OpenError::Queues", EINVAL, |_| {
        open(|c| (c.shards, c.port) = (2, pair(1).0.into()))
    }),
    case("Context::open", "OpenError::PortMtu", EINVAL, |_| {
        let small = PortOptions { mtu: 351, ..PortOptions::default() };
        open(|c| c.port = pair_with(&small, &small, std::sync::Arc::new(|_, _, _| 0)).0.into())
    }),
    case("Context::open", "OpenError::Host", EINVAL, |_| {
        let of_host = |c: &mut DeviceConfig| c.port = udp("127.47.93.1").into();
        open(of_host);
        open(|c| {
            (c.addrs, c.gateway, c.port) = (vec![], Some([10, 0, 0, 1].into()), udp("127.47.93.1").into())
        });
        open(|c| (c.addrs, c.vlan, c.port) = (vec![], Some(7), udp("127.47.93.1").into()))
    }),
    case("Context::add_address", "DeviceError::HostAddress", EINVAL, |_| {
        let context = Context::open(DeviceConfig::new(udp("127.47.93.2"))).unwrap();
        let refusal = err(context.add_address([10, 0, 0, 1], 24));
        assert_eq!(context.gid_table().len(), 1);
        refusal
    }),
    case("Context::remove_address", "DeviceError::HostAddress", EINVAL, |_| {
        let context = Context::open(DeviceConfig::new(udp("127.47.93.3"))).unwrap();
        let refusal = err(context.remove_address([127, 47, 93, 3]));
        assert_eq!(context.gid_table().len(), 1);
        refusal
    }),
    case("Context::open", "OpenError::QueueTaken", EINVAL, |_| {
        let (a, _b) = pair(1);
        let _queue = a.take_queue(0);
        open(|c| c.port = a.into())
    }),
    case("Context::open", "OpenError::Stats", EINVAL, |_| {
        let file = path("stats");
        std::fs::write(&file, "mine").unwrap();
        let refusal = open(|c| c.stats = Some(file.clone()));
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
        std::fs::remove_file(file).unwrap();
        refusal
    }),
    case("Context::open", "NetConfigError::Vlan", EINVAL, |_| {
        open(|c| c.vlan = Some(0));
        open(|c| c.vlan = Some(4095))
    }),
    case("Context::open", "NetConfigError::Prefix", EINVAL, |_| {
        open(|c| c.addrs.push(([10, 0, 0, 1].into(), 33)))
    }),
    case("Context::open", "NetConfigError::Address", EINVAL, |_| {
        open(|c| c.addrs.push(([224, 0, 0, 1].into(), 24)));
        open(|c| c.addrs.push(([10, 0, 0, 0].into(), 24)));
        open(|c| c.gateway = Some([0, 0, 0, 0].into()))
    }),
    case("Context::open", "NetConfigError::Gateway6", EINVAL, |_| {
        open(|c| c.gateway6 = Some("::ffff:10.0.0.1".parse().unwrap()))
    }),
    case("Context::open", "NetConfigError::TooMany", EINVAL, |_| {
        let addr = |n: u16| ([10, 0, (n >> 8) as u8, n as u8].into(), 16);
        let most = DeviceConfig::default().addrs((1..=255).map(addr).collect());
        assert_eq!(Context::open(most).unwrap().gid_table().len(), 256, "at the limit");
        open(|c| c.addrs = (1..=256).map(addr).collect())
    }),
    case("Context::open", "PortError::Options", ENODEV, |_| {
        open(|c| c.mtu = 575);
        open(|c| c.mtu = 9601);
        open(|c| c.mac = Some(Mac([1, 0, 0, 0, 0, 1])))
    }),
    case("Context::open", "PortError::Open", ENODEV, |_| {
        let spec: PortSpec = "unix:/nowhere/at/all,peer=/nowhere/else".parse().unwrap();
        open(|c| c.port = spec.into())
    }),
    case("Context::query_port", "VerbsError::NoSuchIndex", EINVAL, |b| {
        err(b.context.query_port(0));
        assert_eq!(b.context.query_port(1).unwrap().state, PortState::Active);
        err(b.context.query_port(2))
    }),
    case("Context::query_gid", "VerbsError::NoSuchIndex", EINVAL, |b| {
        err(b.context.query_gid(2, 0));
        err(b.context.query_gid(1, 2))
    }),
    case("Context::query_gid_ex", "VerbsError::NoSuchIndex", EINVAL, |b| {
        err(b.context.query_gid_ex(0, 0));
        err(b.context.query_gid_ex(1, usize::MAX))
    }),
    case("Context::query_pkey", "VerbsError::NoSuchIndex", EINVAL, |b| {
        err(b.context.query_pkey(2, 0));
        err(b.context.query_pkey(1, 1))
    }),
    case("Context::get_pkey_index", "VerbsError::NoSuchPkey", EINVAL, |b| {
        err(b.context.get_pkey_index(1, 0x7fff))
    }),
    case("Context::get_pkey_index", "VerbsError::NoSuchIndex", EINVAL, |b| {
        err(b.context.get_pkey_index(0, 0xffff))
    }),
    case("Context::shard_counters", "VerbsError::NoSuchIndex", EINVAL, |b| err(b.context.shard_counters(1))),
    case("Context::reactor", "VerbsError::NoSuchIndex", EINVAL, |b| err(b.context.reactor(1))),
    case("Context::add_address", "NetConfigError::Address", EINVAL, |b| {
        err(b.context.add_address([255, 255, 255, 255], 8));
        err(b.context.add_address([127, 0, 0, 1], 8))
    }),
    case("Context::add_address", "NetConfigError::Prefix", EINVAL, |b| {
        err(b.context.add_address([10, 0, 0, 1], 33))
    }),
    case("Context::add_address", "DeviceError::Exists", EINVAL, |b| {
        err(b.context.add_address([192, 0, 2, 1], 24))
    }),
    case("Context::add_address", "DeviceError::Exhausted", ENOMEM, |b| {
        let other = &b.other.context; // its table is full then
        for n in 2..=255u8 {
            other.add_address([192, 0, 2, n], 16).unwrap();
        }
        assert_eq!(other.gid_table().len(), 256);
        let refusal = err(other.add_address([10, 0, 0, 1], 24));
        assert_eq!(other.gid_table().len(), 256);
        refusal
    }),
    case("Context::remove_address", "DeviceError::NoSuchAddress", EINVAL, |b| {
        err(b.context.remove_address(b.context.query_gid(1, 0).unwrap().to_ip()));
        err(b.context.remove_address([192, 0, 2, 2]))
    }),
    case("Context::alloc_pd", "DeviceError::Exhausted", ENOMEM, |b| {
        let max = b.context.query_device().max_pd;
        let pds: Vec<_> = (1..max).map(|_| b.context.alloc_pd().unwrap()).collect();
        let refusal = err(b.context.alloc_pd());
        drop(pds);
        drop(b.context.alloc_pd().unwrap());
        refusal
    }),
    case("Context::alloc_parent_domain", "DeviceError::Foreign", EINVAL, |b| {
        let td = b.other.context.alloc_td();
        err(b.context.alloc_parent_domain(&ParentDomainInitAttr { pd: &b.pd, td: Some(&td) }));
        err(b.context.alloc_parent_domain(&ParentDomainInitAttr { pd: &b.other.pd, td: None }))
    }),
    case("Td::dealloc", "DeviceError::Busy", EBUSY, |b| {
        let td = b.context.alloc_td();
        let init = ParentDomainInitAttr { pd: &b.pd, td: Some(&td) };
        let parent = b.context.alloc_parent_domain(&init).unwrap();
        let (refusal, td) = back(td.dealloc());
        parent.dealloc().unwrap();
        td.dealloc().unwrap();
        refusal
    }),
    case("Pd::dealloc", "DeviceError::Busy", EBUSY, |b| {
        let pd = b.context.alloc_pd().unwrap();
        let mw = pd.alloc_mw(MwType::One).unwrap();
        let (refusal, pd) = back(pd.dealloc());
        drop(mw);
        pd.dealloc().unwrap();
        refusal
    }),
    case("Context::close", "DeviceError::Busy", EBUSY, |_| {
        let context = Context::open(DeviceConfig::loopback()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let (refusal, context) = back(context.close());
        drop(pd);
        let reactor = context.reactor(0).unwrap();
        let (_, context) = back(context.close());
        drop(reactor);
        context.close().unwrap();
        refusal
    }),
];

#[test]
fn device_calls() {
    super::bench::run(CASES);
}

// The ports that a device can be opened on, and the IP host on them, have errors of their own.
#[test]
fn ports() {
    let group = Mac([1, 0, 0, 0, 0, 1]);
    for mac in [group, Mac::default()] {
        assert_eq!(NetConfig::new(mac).check(), Err(NetConfigError::Mac(mac)));
    }
    let e = "unix:".parse::<PortSpec>().unwrap_err();
    assert!(matches!(e, verbs::port::PortError::Spec { .. }), "{e}");
    let options = PortOptions { queues: 17, ..PortOptions::default() };
    assert!(matches!(PortSpec::Loopback.open(&options), Err(verbs::port::PortError::Options(_))));
    let options = PortOptions { frames: 255, ..PortOptions::default() };
    assert!(matches!(PortSpec::Loopback.open(&options), Err(verbs::port::PortError::Options(_))));
    #[cfg(not(feature = "dpdk"))]
    {
        let e = "tap:roce-bad".parse::<PortSpec>().unwrap().open(&PortOptions::default()).err().unwrap();
        assert!(matches!(e, verbs::port::PortError::NoDpdk(_)), "{e}");
    }
}
