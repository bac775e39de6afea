//! No leaks: descriptors, threads, queue pairs and their numbers. A single test, because descriptors belong to the process.

mod cm;
mod common;

use std::net::SocketAddr;

use cm::{PATIENCE, SOON, World, addrs, any};
use verbs::Drive;
use verbs::rdma_cm::{CmEventType, ConnParam, PortSpace};

fn entries(dir: &str) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// Threads of both ends make and end connections, some of them before they are established.
fn round(drive: &Drive) {
    let w = World::with(|config| config.drive(drive.clone()).shards(1));
    std::thread::scope(|s| {
        let w = &w;
        for port in 1..=3 {
            let ready = std::sync::Arc::new(std::sync::Barrier::new(2));
            let there = ready.clone();
            s.spawn(move || {
                let listener = w.b.context.create_id(None, PortSpace::Tcp).unwrap();
                listener.bind_addr(any(port)).unwrap();
                listener.listen(4).unwrap();
                there.wait();
                for n in 0..8 {
                    let id = listener.get_request(PATIENCE).unwrap().expect("a request");
                    w.b.qp(&id);
                    match n % 4 {
                        0 => drop(id),
                        1 => id.reject(b"no").unwrap(),
                        _ => {
                            id.accept(&ConnParam::default()).unwrap();
                            let end = id.get_event(PATIENCE).unwrap().expect("its end");
                            assert_eq!(end.event(), CmEventType::Disconnected);
                        }
                    }
                }
            });
            s.spawn(move || {
                ready.wait();
                for n in 0..8 {
                    let id = w.a.context.create_id(None, PortSpace::Tcp).unwrap();
                    id.resolve_addr(None, SocketAddr::new(addrs(false)[1], port), SOON).unwrap();
                    id.resolve_route(SOON).unwrap();
                    w.a.qp(&id);
                    let up = id.connect(&ConnParam::default());
                    assert_eq!(up.is_ok(), n % 4 > 1, "{up:?}");
                    if n % 4 == 2 {
                        id.disconnect().unwrap();
                    } // else it is dropped, which rejects or disconnects
                }
            });
        }
    });
    w.close();
}

#[test]
fn nothing_stays_behind() {
    for drive in [Drive::Caller, Drive::Embedded, Drive::Dedicated { cores: vec![] }] {
        round(&drive);
        let before = (entries("/proc/self/fd"), entries("/proc/self/task"));
        round(&drive);
        let start = std::time::Instant::now();
        // A joined thread may stay in the list for a moment, here and when threads were counted before.
        while entries("/proc/self/fd") != before.0 || entries("/proc/self/task") > before.1 {
            assert!(start.elapsed() < PATIENCE, "{before:?} in {drive:?}");
            std::thread::yield_now();
        }
    }
}
