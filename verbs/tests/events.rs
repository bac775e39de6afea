//! Asynchronous events of the port, and of the device as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::hooked::{Burst, Hooked};
use crate::common::{self, PATIENCE};
use verbs::port::{Port, PortSpec, pair};
use verbs::{
    AsyncEvent, Context, DeviceConfig, Drive, EventElement, Gid, PortState, QpInitAttr, QpState, RcOptions,
    RecvWr, SendWr, Wc, errno,
};

fn drives() -> [Drive; 3] {
    [Drive::Caller, Drive::Embedded, Drive::Dedicated { cores: vec![] }]
}

// The peer of a link over sockets appears, disappears and reappears.
#[test]
fn s38_the_link_goes_down_and_up() {
    for (n, drive) in drives().into_iter().enumerate() {
        let dir = std::env::temp_dir().join(format!("roce-link-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let spec = |local: &str, peer: &str| -> PortSpec {
            format!("unix:{0}/{local},peer={0}/{peer}", dir.display()).parse().unwrap()
        };
        let open = |local, peer, last| {
            let config = DeviceConfig::new(spec(local, peer)).addr([192, 0, 2, last], 24);
            Context::open(config.drive(drive.clone())).unwrap()
        };
        let a = open("a", "b", 1);
        assert_eq!(a.query_port(1).unwrap().state, PortState::Down);
        let expect_event = |what: AsyncEvent, state: PortState| {
            let event = a.get_async_event(PATIENCE).unwrap().expect("an event in time");
            assert_eq!((event.event, event.element), (what, EventElement::Port), "{drive:?}");
            assert_eq!(a.query_port(1).unwrap().state, state);
        };
        let b = open("b", "a", 2);
        expect_event(AsyncEvent::PortActive, PortState::Active);
        b.close().unwrap();
        expect_event(AsyncEvent::PortErr, PortState::Down);
        let _b = open("b", "a", 2);
        expect_event(AsyncEvent::PortActive, PortState::Active);
        assert_eq!(a.try_get_async_event(), None);
        drop((a, _b));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

// A program may query the port before its peer exists.
#[test]
fn a_link_that_is_assumed_is_up_whatever_it_is() {
    let dir = std::env::temp_dir().join(format!("roce-assumed-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let open = |local: &str, peer: &str, last, assume_link| {
        let spec: PortSpec = format!("unix:{0}/{local},peer={0}/{peer}", dir.display()).parse().unwrap();
        let config = DeviceConfig::new(spec).addr([192, 0, 2, last], 24);
        Context::open(config.assume_link(assume_link)).unwrap()
    };
    let state = |context: &Context| context.query_port(1).unwrap().state;
    let a = open("a", "b", 1, true);
    assert_eq!(state(&a), PortState::Active);
    let b = open("b", "a", 2, false);
    // Both ends see that the link is up, but this end reports no change of state.
    while !a.stats().link_up || !b.stats().link_up {
        std::thread::yield_now();
    }
    b.close().unwrap();
    while a.stats().link_up {
        std::thread::yield_now();
    }
    assert_eq!((state(&a), a.try_get_async_event()), (PortState::Active, None));
    drop(a);
    std::fs::remove_dir_all(&dir).unwrap();
}

// Addresses are added and removed: events are raised, the peer can be reached at a new address at once, and a connection over a removed
// address continues with its index.
#[test]
fn s39_addresses_come_and_go() {
    for (v6, drive) in drives().into_iter().flat_map(|d| [(false, d.clone()), (true, d)]) {
        let (a, b) = pair(1);
        let open = |port, last| {
            let config = DeviceConfig::new(port).addr([192, 0, 2, last], 24).drive(drive.clone());
            Context::open(config).unwrap()
        };
        let (a, b) = (open(a, 1), open(b, 2));
        let ip = |net: u8, last: u8| -> std::net::IpAddr {
            if v6 { format!("2001:db8:{net}::{last}").parse().unwrap() } else { [198, 51, net, last].into() }
        };
        let prefix = if v6 { 64 } else { 24 };
        let changed = |context: &Context| {
            let event = context.try_get_async_event().expect("raised before the call returns");
            assert_eq!((event.event, event.element), (AsyncEvent::GidChange, EventElement::Port));
            assert_eq!(context.try_get_async_event(), None);
        };
        for (context, last) in [(&a, 1), (&b, 2)] {
            assert_eq!(context.add_address(ip(100, last), prefix).unwrap(), 2);
            changed(context);
            assert_eq!(context.query_gid(1, 2).unwrap(), Gid::from_ip(ip(100, last)));
            assert_eq!(context.query_port(1).unwrap().gid_tbl_len, 3);
        }
        for (addr, prefix) in [(ip(100, 1), prefix), (ip(100, 3), 129), ([127, 0, 0, 1].into(), 8)] {
            let e = a.add_address(addr, prefix).unwrap_err();
            assert_eq!(e.errno(), errno::EINVAL, "{e}");
        }
        // A connection over the new addresses.
        let over = RcOptions::default().sgid_index(2);
        let (pd_a, pd_b) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
        let (cq_a, cq_b) = (a.create_cq(64).unwrap(), b.create_cq(64).unwrap());
        let qp_a = pd_a.create_qp(&QpInitAttr::rc(&cq_a, &cq_a)).unwrap();
        let qp_b = pd_b.create_qp(&QpInitAttr::rc(&cq_b, &cq_b)).unwrap();
        qp_a.connect_rc(&qp_b.endpoint(2).unwrap(), &over).unwrap();
        qp_b.connect_rc(&qp_a.endpoint(2).unwrap(), &over).unwrap();
        let message = |id: u64| {
            qp_b.post_recv(&[RecvWr::new(id, &[])]).unwrap();
            qp_a.post_send(&[SendWr::send(id, &[]).signaled()]).unwrap();
            let (mut wc, start) = ([Wc::default(); 4], std::time::Instant::now());
            while cq_a.poll(&mut wc).unwrap() == 0 {
                assert!(start.elapsed() < PATIENCE, "message {id} in {drive:?}");
                [&a, &b].into_iter().for_each(common::pump);
                cq_b.poll(&mut []).unwrap();
            }
            assert_eq!((wc[0].wr_id, wc[0].status), (id, verbs::WcStatus::Success));
        };
        message(1);
        // The address is removed; the queue pair that uses it keeps the index, which is not reused.
        a.remove_address(ip(100, 1)).unwrap();
        changed(&a);
        let e = a.remove_address(ip(100, 1)).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL, "{e}");
        assert_eq!(a.query_gid(1, 2).unwrap_err().errno(), errno::EINVAL);
        assert_eq!(a.gid_table()[2], Gid::default());
        message(2);
        assert_eq!(qp_a.query().unwrap().0.ah_attr.grh.unwrap().sgid_index, 2);
        let late = pd_a.create_qp(&QpInitAttr::rc(&cq_a, &cq_a)).unwrap();
        let e = late.connect_rc(&qp_b.endpoint(2).unwrap(), &over).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL, "{e}");
        assert_eq!(late.state().unwrap(), QpState::Init, "nothing has changed");
        assert_eq!(a.add_address(ip(101, 1), prefix).unwrap(), 3);
        a.remove_address(ip(101, 1)).unwrap();
        // After RESET the index is free again.
        common::enter(&qp_a, QpState::Reset);
        assert_eq!(a.add_address(ip(102, 1), prefix).unwrap(), 2);
        assert_eq!(a.query_gid(1, 2).unwrap(), Gid::from_ip(ip(102, 1)));
        // The link-local address belongs to the Ethernet address.
        let e = a.remove_address(a.query_gid(1, 0).unwrap().to_ip()).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL, "{e}");
    }
}

/// A port whose next burst panics, once, after the flag is set, as a faulty driver might.
fn breakable(port: Box<dyn Port>, broken: &Arc<AtomicBool>) -> Box<dyn Port> {
    let broken = broken.clone();
    Hooked::around(port, move |burst| {
        assert!(!matches!(burst, Burst::Rx) || !broken.swap(false, Ordering::AcqRel), "the port broke");
        true
    })
}

// A device thread that dies raises an event: nothing drives its shards any more.
#[test]
fn s39_a_device_whose_thread_dies_says_so() {
    let (a, _b) = pair(1);
    let broken = Arc::new(AtomicBool::new(false));
    let port = breakable(a, &broken);
    let config = DeviceConfig::new(port).addr([192, 0, 2, 1], 24).drive(Drive::Dedicated { cores: vec![] });
    let context = Context::open(config).unwrap();
    context.start().unwrap();
    while let Some(event) = context.try_get_async_event() {
        assert_ne!(event.event, AsyncEvent::DeviceFatal);
    }
    broken.store(true, Ordering::Release);
    let fatal = loop {
        let event = context.get_async_event(PATIENCE).unwrap().expect("an event in time");
        if event.event == AsyncEvent::DeviceFatal {
            break event.element;
        }
    };
    assert_eq!(fatal, EventElement::Device);
}

// A port whose every call panics: the thread that drives the shard sees the panic, and closing the device does not panic a
// second time (which would abort the process where the device is dropped because of the first panic).
#[test]
fn a_device_whose_port_always_panics_can_be_closed() {
    for drive in drives() {
        let (a, _b) = pair(1);
        let broken = Arc::new(AtomicBool::new(false));
        let sane = broken.clone();
        let port = Hooked::around(a, move |_| {
            assert!(!sane.load(Ordering::Acquire), "the port is broken");
            true
        });
        let config = DeviceConfig::new(port).addr([192, 0, 2, 1], 24).drive(drive.clone());
        let context = Context::open(config).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        broken.store(true, Ordering::Release);
        if drive == Drive::Embedded {
            let mut reactor = context.reactor(0).unwrap();
            let turn = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reactor.poll_once()));
            assert!(turn.is_err(), "the panic is not hidden");
        } else {
            // A thread of the device meets the panic by itself, and an event is raised.
            let start = std::time::Instant::now();
            while context.try_get_async_event().is_none_or(|e| e.event != AsyncEvent::DeviceFatal) {
                assert!(start.elapsed() < PATIENCE, "{drive:?}");
                std::thread::yield_now();
            }
        }
        // The shard is dead, and holds no objects.
        assert_eq!(qp.query().unwrap_err().errno(), errno::EIO);
        qp.destroy().unwrap();
        drop((pd, cq, context));
    }
}
