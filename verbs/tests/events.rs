//! Asynchronous events of the port.

mod common;

use common::PATIENCE;
use verbs::port::PortSpec;
use verbs::{AsyncEvent, Context, DeviceConfig, Drive, EventElement, PortState};

fn drives() -> [Drive; 3] {
    [Drive::Caller, Drive::Embedded, Drive::Dedicated { cores: vec![] }]
}

// The peer of a link over sockets comes, goes and comes back.
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
        let hears = |what: AsyncEvent, state: PortState| {
            let event = a.get_async_event(PATIENCE).unwrap().expect("an event in time");
            assert_eq!((event.event, event.element), (what, EventElement::Port), "{drive:?}");
            assert_eq!(a.query_port(1).unwrap().state, state);
        };
        let b = open("b", "a", 2);
        hears(AsyncEvent::PortActive, PortState::Active);
        b.close().unwrap();
        hears(AsyncEvent::PortErr, PortState::Down);
        let _b = open("b", "a", 2);
        hears(AsyncEvent::PortActive, PortState::Active);
        assert_eq!(a.try_get_async_event(), None);
        drop((a, _b));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
