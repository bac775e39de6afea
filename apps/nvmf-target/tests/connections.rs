//! Connections: refused, ended, given back.

use nvmf::wire::cm::{RejectReason, RequestData};
use nvmf_target::host::{Controller, Host, HostError, HostQueue, Options};
use zerocopy::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

use crate::common::{SUBSYSTEM, Setup, nqn, with_target};

fn request(qid: u16, entries: u16) -> RequestData {
    RequestData {
        qid: U16::new(qid),
        host_receives: U16::new(entries),
        host_sends: U16::new(entries - 1),
        ..RequestData::new_zeroed()
    }
}

#[test]
fn requests_that_are_wrong_are_refused_with_the_transports_status() {
    with_target(&Setup::default(), |view| {
        let host = view.host(1);
        let connect = |data: &[u8]| {
            HostQueue::connect_as(&view.context, host.pd(), view.at, 32, data).map(|_| ()).unwrap_err()
        };
        let wrong = |change: fn(&mut RequestData)| {
            let mut data = request(0, 32);
            change(&mut data);
            match connect(data.as_bytes()) {
                HostError::Refused(status) => status,
                e => panic!("{e}"),
            }
        };
        assert_eq!(wrong(|r| r.format = U16::new(1)), RejectReason::Format as u16);
        assert_eq!(wrong(|r| r.qid = U16::new(65)), RejectReason::QueueId as u16);
        assert_eq!(wrong(|r| r.host_sends = U16::new(32)), RejectReason::HostSends as u16);
        assert_eq!(wrong(|r| r.host_receives = U16::new(0)), RejectReason::HostReceives as u16);
        assert_eq!(
            wrong(|r| (r.qid, r.cntlid) = (U16::new(1), U16::new(9))),
            RejectReason::ControllerId as u16
        );
        assert_eq!(view.count("refused"), 5);
        assert_eq!(view.usage().connections, 0);
    });
}

#[test]
fn more_connections_than_there_may_be_are_refused() {
    let mut setup = Setup::default();
    setup.config.connections = 2;
    with_target(&setup, |view| {
        let mut host = view.host(1);
        let connect = |host: &Host<'_>| HostQueue::connect(&view.context, host.pd(), view.at, 0, 32);
        let both = [connect(&host).unwrap(), connect(&host).unwrap()];
        match connect(&host) {
            Err(HostError::Refused(status)) => assert_eq!(status, RejectReason::Resources as u16),
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("a third connection"),
        }
        drop(both);
        view.until_nothing_is_left(&mut host);
        connect(&host).unwrap();
    });
}

// Goal: whatever a host has done when it goes, everything comes back.
#[test]
fn hosts_that_go_at_every_step_leave_nothing() {
    with_target(&Setup::default(), |view| {
        for round in 0..40 {
            let mut host = view.host(round);
            match round % 4 {
                0 => drop(HostQueue::connect(&view.context, host.pd(), view.at, 0, 32).unwrap()),
                1 => {
                    // A capsule that is none ends the connection.
                    let mut queue = HostQueue::connect(&view.context, host.pd(), view.at, 0, 32).unwrap();
                    queue.send_raw(&[0; 63]).unwrap();
                    view.until(&mut host, "the target disconnects", || queue.is_disconnected().unwrap());
                }
                2 => {
                    drop(
                        Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap(),
                    );
                }
                _ => {
                    let connect =
                        Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default());
                    let mut controller = connect.unwrap();
                    let queue = controller.io_queue(&mut host, 1, 16).unwrap();
                    drop(controller);
                    view.until(&mut host, "the queue goes with its controller", || {
                        queue.is_disconnected().unwrap()
                    });
                }
            }
            if round % 8 == 7 {
                view.until_nothing_is_left(&mut host);
            }
        }
    });
}
