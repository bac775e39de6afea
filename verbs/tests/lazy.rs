//! Opening and querying a device opens no port; the first queue pair does. A single test, because DPDK's environment belongs to the
//! process.

use std::io::Write as _;
use verbs::errno::{EINVAL, ENODEV};
use verbs::port::{PortError, PortSpec, dpdk};
use verbs::{
    Access, AsyncEvent, Context, DeviceConfig, DeviceError, Mac, OpenError, PortState, QpInitAttr, VerbsError,
};

fn config(port: &str) -> DeviceConfig {
    DeviceConfig::new(port.parse::<PortSpec>().unwrap()).addr([192, 0, 2, 1], 24)
}

#[test]
fn the_first_queue_pair_starts_the_port() {
    let dir = std::env::temp_dir().join(format!("roce-lazy-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let spec = |more: &str| format!("memif:{}/memif.sock,{more}", dir.display());

    // Errors in the text, and errors that can be found without DPDK, are still reported at once.
    for (text, part) in [
        (spec("colour=red"), "there is no option colour"),
        (spec("rsize=15"), "2^14"),
        ("memif:/no/such/directory/m.sock".into(), "/no/such/directory"),
        ("dpdk:ffff:ff:1f.7,mac=02:00:00:00:00:01".into(), "there is no PCI device"),
    ] {
        let error = Context::open(config(&text)).unwrap_err();
        assert!(matches!(error, VerbsError::Open(OpenError::Port(_))), "{error}");
        assert_eq!(error.errno(), ENODEV);
        assert!(error.to_string().contains(part), "{error}");
    }

    let context = Context::open(config(&spec("role=server"))).unwrap();
    let device = context.query_device();
    let port = context.query_port(1).unwrap();
    assert_eq!((port.state, port.link_mtu, port.queues), (PortState::Down, 4200, 1));
    assert_eq!(port.mac.0[0] & 3, 2, "an address of one station, chosen here: {}", port.mac);
    assert_eq!(device.node_guid[0], port.mac.0[0] ^ 2);
    assert_eq!(context.query_gid(1, 1).unwrap().to_string(), "::ffff:192.0.2.1");
    assert_eq!(context.port_stats(), Default::default());
    let pd = context.alloc_pd().unwrap();
    let mr = pd.reg_mr(4096, Access::LOCAL_WRITE).unwrap();
    let cq = context.create_cq(16).unwrap();
    assert_eq!(cq.poll(&mut [verbs::Wc::default()]).unwrap(), 0);
    assert_eq!(
        context.reactor(0).unwrap().next_deadline(),
        None,
        "nothing is due on a link that is not there"
    );
    let tap = Context::open(config("tap:rocelazy0"));
    match &tap {
        Ok(tap) => assert_eq!(tap.query_port(1).unwrap().link_mtu, 1500),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "SKIPPED taps of verbs/tests/lazy.rs: {error}");
        }
    }
    let unused = Context::open(config("dpdk:net_null0,mac=02:00:00:00:00:05")).unwrap();
    assert_eq!(unused.query_port(1).unwrap().mac.to_string(), "02:00:00:00:00:05");
    unused.close().unwrap();
    // A call that is refused for another reason starts nothing either.
    let mut wrong = QpInitAttr::rc(&cq, &cq);
    wrong.shard = Some(1);
    assert_eq!(pd.create_qp(&wrong).unwrap_err().errno(), EINVAL);
    assert!(!dir.join("memif.sock").exists());
    assert!(!dpdk::started(), "opening and querying need no DPDK");

    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    assert!(!dpdk::started(), "a memif needs no DPDK");
    assert!(dir.join("memif.sock").exists(), "the server listens");
    let after = context.query_port(1).unwrap();
    assert_eq!((after.mac, after.link_mtu), (port.mac, port.link_mtu));
    context.start().unwrap();

    // The peer's end is started early; the link comes up although this device's shard existed before.
    let peer = Context::open(config(&spec("role=client"))).unwrap();
    peer.start().unwrap();
    let event = context.get_async_event(std::time::Duration::from_secs(10)).unwrap().unwrap();
    assert_eq!(event.event, AsyncEvent::PortActive);
    assert_eq!(context.query_port(1).unwrap().state, PortState::Active);

    // Later failures are reported by the call that needs the port, and change nothing.
    let second = Context::open(config(&format!("memif:{}/second.sock,role=server", dir.display()))).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(dir.join("second.sock")).unwrap();
    let (second_pd, second_cq) = (second.alloc_pd().unwrap(), second.create_cq(1).unwrap());
    for error in [
        second_pd.create_qp(&QpInitAttr::rc(&second_cq, &second_cq)).map(drop).unwrap_err(),
        second.start().unwrap_err(),
    ] {
        let VerbsError::Device(DeviceError::Port(why)) = &error else { panic!("{error}") };
        assert!(matches!(**why, PortError::Open { .. }));
        assert_eq!(error.errno(), ENODEV);
        assert!(error.to_string().contains("another process listens on"), "{error}");
    }
    drop(_listener);
    second.start().expect("it may be tried again");

    let mac = Some(Mac([2, 0, 0, 0, 0, 6]));
    let null = Context::open(config("dpdk:net_null1").mac(mac)).unwrap();
    assert!(!dpdk::started());
    null.start().unwrap();
    assert!(dpdk::started());
    if let Ok(tap) = tap {
        tap.start().unwrap();
        assert_eq!(tap.query_port(1).unwrap().state, PortState::Active);
    }
    drop((qp, mr, pd, cq, context, peer, second_pd, second_cq, second, null));
    std::fs::remove_dir_all(&dir).unwrap();
}
