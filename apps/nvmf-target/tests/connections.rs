//! Connections: refused, ended, given back.

use std::time::Duration;

use nvmf::Nqn;
use nvmf::wire::Sgl;
use nvmf::wire::cm::{RejectReason, RequestData};
use nvmf_target::host::{Controller, Data, Host, HostError, HostQueue, Io, Options};
use nvmf_target::target::Config;
use verbs::port::fault::rng::Rng;
use verbs::{Access, AttrMask, Mr, QpAttr, QpState};
use zerocopy::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

use crate::common::{BLOCK, SUBSYSTEM, Scratch, Setup, nqn, with_target};

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
        let mut host = view.host(1);
        let mut connect =
            |data: &[u8]| HostQueue::connect_as(&mut host, view.at, 32, data).map(|_| ()).unwrap_err();
        let mut wrong = |change: fn(&mut RequestData)| {
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
    // A host has half of them at most.
    setup.config.connections = 4;
    with_target(&setup, |view| {
        let mut host = view.host(1);
        let connect = |host: &mut Host<'_>| HostQueue::connect(host, view.at, 0, 32);
        let both = [connect(&mut host).unwrap(), connect(&mut host).unwrap()];
        match connect(&mut host) {
            Err(HostError::Refused(status)) => assert_eq!(status, RejectReason::Resources as u16),
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("a third connection"),
        }
        drop(both);
        view.until_nothing_is_left(&mut host);
        connect(&mut host).unwrap();
    });
}

// Goal: whatever a host has done when it goes, everything comes back.
#[test]
fn hosts_that_go_at_every_step_leave_nothing() {
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    with_target(&Setup::default(), |view| {
        for round in 0..48 {
            let mut host = view.host(round);
            match round % 6 {
                0 => drop(HostQueue::connect(&mut host, view.at, 0, 32).unwrap()),
                1 => {
                    // A capsule that is shorter than a command ends the connection.
                    let mut queue = HostQueue::connect(&mut host, view.at, 0, 32).unwrap();
                    queue.send_raw(&[0; 63]).unwrap();
                    view.until(&mut host, "the target disconnects", || queue.is_disconnected());
                }
                2 => {
                    drop(
                        Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap(),
                    );
                }
                3 | 4 => {
                    // With writes that the target is fetching, or reads that it is answering; its memory goes too.
                    let options = Options { queues: 2, ..Options::default() };
                    let connect = Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), options);
                    let mut controller = connect.unwrap();
                    let mr = host.pd().reg_mr(8192, rights).unwrap();
                    let sgl = Sgl::keyed(mr.iova(), 8192, mr.rkey(), false);
                    for qid in [1, 2] {
                        let mut queue = controller.io_queue(&mut host, qid, 16).unwrap();
                        for n in 0..queue.depth() as u64 {
                            let io = Io::new(1, 16 * n, 16);
                            let sqe = if round % 6 == 3 { io.write(sgl) } else { io.read(sgl) };
                            queue.submit(&sqe, Data::Elsewhere).unwrap().unwrap();
                        }
                        for _ in 0..round {
                            host.turn();
                        }
                    }
                }
                _ => {
                    let connect =
                        Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default());
                    let mut controller = connect.unwrap();
                    let queue = controller.io_queue(&mut host, 1, 16).unwrap();
                    drop(controller);
                    view.until(&mut host, "the queue goes with its controller", || queue.is_disconnected());
                }
            }
            if round % 6 == 5 {
                view.until_nothing_is_left(&mut host);
            }
        }
    });
}

// Goal: thousands of connections cost nothing that stays.
#[test]
fn a_thousand_connections_leave_nothing() {
    with_target(&Setup::default(), |view| {
        let mut host = view.host(1);
        for _ in 0..125 {
            let mut connect = || HostQueue::connect(&mut host, view.at, 0, 8).unwrap();
            let eight: Vec<_> = (0..8).map(|_| connect()).collect();
            drop(eight);
        }
        view.until_nothing_is_left(&mut host);
        assert_eq!((view.count("accepted"), view.count("ended")), (1000, 1000));
        // Receives that were posted for them do not disturb the next host.
        let mut controller =
            Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
        controller.io_queue(&mut host, 1, 16).unwrap();
    });
}

// Goal: a host that takes no responses is not served for ever, and its buffers come back.
#[test]
fn a_host_that_takes_no_responses_is_disconnected() {
    with_target(&Setup::default(), |view| {
        let mut host = view.host(1);
        let mut controller =
            Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
        let mut deaf = controller.io_queue(&mut host, 1, 16).unwrap();
        let mr = host.pd().reg_mr(8192, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        // It has no receives any more; each response of the target is refused.
        deaf.stop_receiving();
        let sgl = Sgl::keyed(mr.iova(), 8192, mr.rkey(), false);
        for _ in 0..deaf.depth() {
            deaf.submit(&Io::new(1, 0, 16).write(sgl), Data::Elsewhere).unwrap().unwrap();
        }
        // The last of its receives are used up by the first responses, which it can still take.
        let mut taken = 0;
        while taken < deaf.depth() {
            host.turn();
            taken += deaf.poll(|_| {}).unwrap();
        }
        for _ in 0..deaf.depth() {
            deaf.submit(&Io::new(1, 0, 16).write(sgl), Data::Elsewhere).unwrap().unwrap();
        }
        view.impatient.store(true, std::sync::atomic::Ordering::Relaxed);
        view.until(&mut host, "the target disconnects", || deaf.is_disconnected());
        drop((deaf, controller));
        view.until_nothing_is_left(&mut host);
    });
}

// Goal: a host that is gone without a word is noticed on each of its connections, whatever these are for and whether they have a keep
// alive, and its places are free; one that has nothing to say stays.
#[test]
fn a_host_that_is_gone_is_noticed_on_every_connection() {
    let mut setup = Setup::default();
    setup.config.silence = Duration::from_millis(20);
    // Not what ends the one that stays: it has taken all that was sent to it.
    setup.config.patience = Duration::from_secs(3);
    with_target(&setup, |view| {
        let mut host = view.host(1);
        let connect = |host: &mut Host<'_>| {
            let options = Options { queues: 1, ..Options::default() };
            let mut idle = Controller::connect(host, view.at, &nqn(SUBSYSTEM), options).unwrap();
            let queue = idle.io_queue(host, 1, 16).unwrap();
            (idle, queue)
        };
        let (_idle, mut stays) = connect(&mut host);
        let (mut gone, mut queue) = connect(&mut host);
        // One for the discovery log, and one on which nothing was ever said.
        let name = nqn(Nqn::DISCOVERY);
        let mut discovery = Controller::connect(&mut host, view.at, &name, Options::default()).unwrap();
        let mut silent = HostQueue::connect(&mut host, view.at, 0, 32).unwrap();
        assert_eq!(view.usage().connections, 6);
        let reset = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
        for queue in [gone.admin(), &mut queue, discovery.admin(), &mut silent] {
            queue.qp().modify(&reset, AttrMask::STATE).unwrap();
        }
        view.until(&mut host, "the target notices", || view.usage().connections == 2);
        assert_eq!(view.target.controllers().0, 1);
        host.call(&mut stays, &Io::new(1, 0, 1).flush(), Data::Elsewhere).unwrap();
    });
}

// Goal: a host that takes responses again gets what it has to get, whoever else still takes none: here it is the second of three
// that the target waits for.
#[test]
fn a_host_between_two_that_take_nothing_is_served() {
    const SENT: usize = 11;
    with_target(&Setup::default(), |view| {
        let mut host = view.host(1);
        let few = RequestData { host_receives: U16::new(1), ..request(0, 8) };
        let mut queues =
            [(); 3].map(|()| HostQueue::connect_as(&mut host, view.at, 8, few.as_bytes()).unwrap());
        for (n, queue) in (1..).zip(&mut queues) {
            // Each is answered. The host has receives for eight responses, until it looks at them; the ninth is refused for now.
            for _ in 0..SENT {
                queue.send_raw(&[0; 64]).unwrap();
            }
            view.until(&mut host, "all have come", || view.count("responses") as usize == n * SENT);
        }
        let mut taken = 0;
        view.until(&mut host, "the responses that waited", || {
            taken += queues[1].poll(|_| {}).unwrap();
            taken == SENT
        });
        assert!(queues.iter().all(|queue| !queue.is_disconnected()));
    });
}

// Goal: a host that asks for more than there are buffers, and does not take what it gets, leaves some of them for others.
#[test]
fn a_slow_host_leaves_buffers_for_others() {
    const LEN: usize = 1 << 20;
    let file = Scratch::new("slow");
    let mut setup = Setup { file: Some(file.path()), ..Setup::default() };
    // Four of a mebibyte.
    setup.config.buffers = 16 << 20;
    with_target(&setup, |view| {
        let (mut host, mut other) = (view.host(1), view.host(2));
        let connect = |host: &mut Host<'_>| {
            let mut controller =
                Controller::connect(host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
            let queue = controller.io_queue(host, 1, 16).unwrap();
            let mr = host.pd().reg_mr(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
            (controller, queue, mr)
        };
        let (_slow, mut deaf, mr) = connect(&mut host);
        let large = |mr: &Mr| {
            Io::new(1, 0, (LEN / BLOCK) as u32).read(Sgl::keyed(mr.iova(), LEN as u32, mr.rkey(), false))
        };
        // The receives that are posted already are used up by these.
        deaf.stop_receiving();
        for _ in 0..16 {
            host.call(&mut deaf, &Io::new(1, 0, 1).flush(), Data::Elsewhere).unwrap();
        }
        for _ in 0..deaf.depth() {
            deaf.submit(&large(&mr), Data::Elsewhere).unwrap().unwrap();
        }
        view.until(&mut host, "it waits for buffers", || view.count("buffer_waits") > 10);
        let (_quick, mut queue, mr) = connect(&mut other);
        for _ in 0..8 {
            other.call(&mut queue, &large(&mr), Data::Elsewhere).unwrap();
        }
        assert!(!deaf.is_disconnected(), "it was not waited for");
    });
}

// Goal: a host that makes as many connections as it can, and says nothing on them, keeps nobody else out: neither a host at another
// address nor, when others have the rest, one that a subsystem names; it is refused by the transport's status.
#[test]
fn connections_are_shared_by_host_and_there_is_room_for_those_that_are_named() {
    let mut setup = Setup::default();
    setup.config.connections = 16;
    with_target(&setup, |view| {
        let theirs = nqn("nqn.2024-01.test:theirs");
        let subsystem = view.target.subsystems().remove(0);
        let hosts = nvmf::config::Hosts::Listed(vec![crate::common::host_name(3)]);
        let serial = "43".try_into().unwrap();
        let subsystem = nvmf::config::Subsystem {
            nqn: theirs.clone(),
            serial,
            hosts,
            namespaces: Vec::new(),
            ..subsystem
        };
        view.target.add_subsystem(subsystem).unwrap();
        let as_many_as_it_can = |host: &mut Host<'_>| {
            let mut queues = Vec::new();
            loop {
                match HostQueue::connect(host, view.at, 0, 8) {
                    Ok(queue) => queues.push(queue),
                    Err(HostError::Refused(status)) => {
                        assert_eq!(status, RejectReason::Resources as u16);
                        return queues;
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        };
        let mut greedy = view.host(1);
        let silent = as_many_as_it_can(&mut greedy);
        assert_eq!(silent.len(), 6, "half of the twelve that are not kept");
        // Another address is served, though those six stay.
        let mut other = view.host(2);
        other.connect_from(crate::common::OTHERS[0]);
        let mut controller =
            Controller::connect(&mut other, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
        controller.io_queue(&mut other, 1, 16).unwrap();
        let more = as_many_as_it_can(&mut other);
        assert!(view.usage().connections < 16, "{:?}", view.usage());
        // And so is one that is named, at a third address.
        let mut named = view.host(3);
        named.connect_from(crate::common::OTHERS[1]);
        let mut controller = Controller::connect(&mut named, view.at, &theirs, Options::default()).unwrap();
        controller.io_queue(&mut named, 1, 16).unwrap();
        assert!(!silent.is_empty() && !more.is_empty());
    });
}

// Goal: the party is the host. One that has many queues, and takes nothing of what it gets there, leaves buffers for a host with one.
#[test]
fn a_host_with_many_queues_has_no_more_buffers_than_one_with_a_single_queue() {
    const LEN: usize = 1 << 20;
    const QUEUES: u16 = 8;
    let file = Scratch::new("many-queues");
    let mut setup = Setup { file: Some(file.path()), ..Setup::default() };
    // Eight of a mebibyte: as many as the host has queues.
    setup.config.buffers = 32 << 20;
    with_target(&setup, |view| {
        let (mut host, mut other) = (view.host(1), view.host(2));
        let large = |mr: &Mr| {
            Io::new(1, 0, (LEN / BLOCK) as u32).read(Sgl::keyed(mr.iova(), LEN as u32, mr.rkey(), false))
        };
        let mr = host.pd().reg_mr(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let options = Options { queues: QUEUES, ..Options::default() };
        let mut controller = Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), options).unwrap();
        let mut queues: Vec<_> =
            (1..=QUEUES).map(|qid| controller.io_queue(&mut host, qid, 16).unwrap()).collect();
        for queue in &mut queues {
            queue.stop_receiving();
            // The receives that are posted already are used up by these.
            for _ in 0..16 {
                host.call(queue, &Io::new(1, 0, 1).flush(), Data::Elsewhere).unwrap();
            }
            for _ in 0..queue.depth() {
                queue.submit(&large(&mr), Data::Elsewhere).unwrap().unwrap();
            }
        }
        view.until(&mut host, "all its queues wait for buffers", || view.count("buffer_waits") > 100);
        let mut quick =
            Controller::connect(&mut other, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
        let mut queue = quick.io_queue(&mut other, 1, 16).unwrap();
        let mr = other.pd().reg_mr(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        for _ in 0..8 {
            other.call(&mut queue, &large(&mr), Data::Elsewhere).unwrap();
        }
        assert!(queues.iter().all(|queue| !queue.is_disconnected()), "they were not waited for");
    });
}

// Goal: zeros that two hosts order together are all written, and both are told. Whose turn it is `zeroing.rs` tests: which orders
// arrive together here is up to the scheduler.
#[test]
fn zeros_that_two_hosts_order_together_are_all_written() {
    const ORDERS: usize = 60;
    with_target(&Setup::default(), |view| {
        let (mut host, mut other) = (view.host(1), view.host(2));
        let connect = |host: &mut Host<'_>, entries: u16| {
            let mut controller =
                Controller::connect(host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
            let queue = controller.io_queue(host, 1, entries).unwrap();
            (controller, queue)
        };
        let (_greedy, mut many) = connect(&mut host, ORDERS as u16 + 1);
        let (_modest, mut one) = connect(&mut other, 2);
        let all = Io::new(1, 0, (Setup::default().bytes / BLOCK) as u32).write_zeroes();
        // All of them are sent together: nobody turns the device meanwhile.
        for _ in 0..ORDERS {
            many.submit(&all, Data::Elsewhere).unwrap().unwrap();
        }
        one.submit(&all, Data::Elsewhere).unwrap().unwrap();
        let (mut done, mut modest) = (0, 0);
        view.until(&mut other, "its zeros are written", || {
            modest += one.poll(|cqe| assert_eq!(cqe.status.get(), 0)).unwrap();
            done += many.poll(|cqe| assert_eq!(cqe.status.get(), 0)).unwrap();
            modest == 1
        });
        view.until(&mut host, "all are written", || {
            done += many.poll(|cqe| assert_eq!(cqe.status.get(), 0)).unwrap();
            done == ORDERS
        });
    });
}

// Goal: N18. One queue of several fails; the others go on, and the host connects it again.
#[test]
fn n18_a_queue_that_fails_is_connected_again() {
    with_target(&Setup::default(), |view| {
        let mut host = view.host(1);
        let options = Options { queues: 2, ..Options::default() };
        let mut controller = Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), options).unwrap();
        let mut first = controller.io_queue(&mut host, 1, 16).unwrap();
        let mut second = controller.io_queue(&mut host, 2, 16).unwrap();
        let mr = host.pd().reg_mr(8192, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        // A key that does not exist: the target's RDMA READ fails, and with it the queue pair.
        let nowhere = Sgl::keyed(mr.iova(), 8192, mr.rkey() ^ 1, false);
        first.submit(&Io::new(1, 0, 16).write(nowhere), Data::Elsewhere).unwrap().unwrap();
        view.until(&mut host, "the queue fails", || first.poll(|_| {}).is_err() || first.is_disconnected());
        let sgl = Sgl::keyed(mr.iova(), 8192, mr.rkey(), false);
        host.call(&mut second, &Io::new(1, 0, 16).write(sgl), Data::Elsewhere).unwrap();
        drop(first);
        view.until(&mut host, "the target notices", || view.usage().connections == 2);
        let mut first = controller.io_queue(&mut host, 1, 16).unwrap();
        host.call(&mut first, &Io::new(1, 0, 16).write(sgl), Data::Elsewhere).unwrap();
    });
}

// Goal: whatever a host sends, the target goes on, and another host is served.
#[test]
fn any_capsules_harm_nobody_else() {
    let seeds = std::env::var("FUZZ_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    with_target(&Setup::default(), |view| {
        let mut good = view.host(1);
        let mut controller =
            Controller::connect(&mut good, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
        let mut queue = controller.io_queue(&mut good, 1, 16).unwrap();
        let mr =
            good.pd().reg_mr(8192, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
        for seed in 0..seeds {
            let mut random = Rng::new(seed + 1);
            let mut host = view.host(100 + seed as u32);
            let connect = Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default());
            let mut bad = connect.unwrap();
            let mut io = bad.io_queue(&mut host, 1, 64).unwrap();
            for _ in 0..1 + random.below(40) {
                let mut sqe = Io::new(1, random.below(64), 1 + random.below(40) as u32)
                    .write(any_sgl(&mut random, &mr));
                sqe.opcode = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0C, 0x7F, 0x7E][random.below(9) as usize];
                if random.below(8) == 0 {
                    let bytes: [u8; 64] = std::array::from_fn(|_| random.next() as u8);
                    sqe = zerocopy::transmute!(bytes);
                }
                let len = random.below(4097) as usize;
                let data = if random.below(3) == 0 { Data::InCapsule(&mr, 0..len) } else { Data::Elsewhere };
                let to = if random.below(6) == 0 { bad.admin() } else { &mut io };
                let sent = if random.below(30) == 0 {
                    to.send_raw(&sqe.as_bytes()[..random.below(65) as usize])
                } else {
                    to.submit(&sqe, data).map(drop)
                };
                let turned = io.poll(|_| {}).and(bad.admin().poll(|_| {}));
                host.turn();
                if sent.is_err() || turned.is_err() {
                    break;
                }
            }
            drop((io, bad));
            let sgl = Sgl::keyed(mr.iova(), 8192, mr.rkey(), false);
            good.call(&mut queue, &Io::new(1, 64, 16).read(sgl), Data::Elsewhere).unwrap();
        }
        drop((queue, controller));
        view.until_nothing_is_left(&mut good);
    });
}

/// A descriptor: of the host's memory, near it, or of no memory at all.
fn any_sgl(random: &mut Rng, mr: &Mr) -> Sgl {
    let lens = [0, 1, 16, 512, 4096, 8192, 1 << 20, 0xFF_FFFF, random.below(1 << 24)];
    let len = lens[random.below(9) as usize] as u32;
    match random.below(5) {
        0 => Sgl::in_capsule(random.below(8192), len),
        1 => Sgl::in_capsule(u64::MAX - random.below(8192), len),
        2 => Sgl::keyed(random.next(), len, random.next() as u32, random.below(2) == 0),
        3 => Sgl::keyed(mr.iova() + random.below(8192), len, mr.rkey(), false),
        _ => Sgl::keyed(mr.iova(), len.min(8192), mr.rkey(), random.below(8) == 0),
    }
}

#[test]
fn connections_are_spread_over_the_cores() {
    with_target(&Setup { cores: 2, ..Setup::default() }, |view| {
        let mut host = view.host(1);
        let options = Options { queues: 3, ..Options::default() };
        let mut controller = Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), options).unwrap();
        let mut queues: Vec<_> =
            (1..=3).map(|qid| controller.io_queue(&mut host, qid, 16).unwrap()).collect();
        let mr =
            host.pd().reg_mr(8192, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
        let sgl = Sgl::keyed(mr.iova(), 8192, mr.rkey(), false);
        for (n, queue) in queues.iter_mut().enumerate() {
            mr.fill(0..8192, n as u8 + 1).unwrap();
            host.call(queue, &Io::new(1, 16 * n as u64, 16).write(sgl), Data::Elsewhere).unwrap();
        }
        for (n, queue) in queues.iter_mut().rev().enumerate() {
            host.call(queue, &Io::new(1, 16 * n as u64, 16).read(sgl), Data::Elsewhere).unwrap();
            assert_eq!(mr.to_vec(0..8192).unwrap(), vec![n as u8 + 1; 8192]);
        }
        for counters in &view.counters {
            assert_eq!(counters.accepted.get(), 2, "four connections on two cores");
        }
        drop((queues, controller));
        view.until_nothing_is_left(&mut host);
    });
}

// Goal: a core that has nothing to do sleeps, and what it waits for wakes it: frames, its ring, threads that wait for files, other cores.
#[test]
fn cores_that_have_nothing_to_do_sleep_and_go_on_when_something_comes() {
    let file = Scratch::new("asleep");
    let sleeps = Setup { sleeps: true, ..Setup::default() };
    let without_ring = Config { io_uring: false, ..sleeps.config.clone() };
    for setup in [
        Setup { cores: 3, ..sleeps.clone() },
        Setup { file: Some(file.path()), ..sleeps.clone() },
        Setup { file: Some(file.path()), config: without_ring, cores: 2, ..sleeps },
    ] {
        with_target(&setup, |view| {
            let mut host = view.host(1);
            let mr = host.pd().reg_mr(512, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE);
            let mr = mr.unwrap();
            let sgl = Sgl::keyed(mr.iova(), 512, mr.rkey(), false);
            for round in 0..10 {
                // Its connections go to one core after the other.
                let mut controller =
                    Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
                let mut queue = controller.io_queue(&mut host, 1, 8).unwrap();
                let slept: Vec<_> = view.counters.iter().map(|counters| counters.sleeps.get()).collect();
                view.until(&mut host, "all cores sleep", || {
                    view.counters.iter().zip(&slept).all(|(counters, &slept)| counters.sleeps.get() > slept)
                });
                mr.fill(0..512, round).unwrap();
                host.call(&mut queue, &Io::new(1, 3, 1).fua().write(sgl), Data::Elsewhere).unwrap();
                host.call(&mut queue, &Io::new(1, 0, 1).verify(), Data::Elsewhere).unwrap();
                host.call(&mut queue, &Io::new(1, 3, 1).read(sgl), Data::Elsewhere).unwrap();
                assert_eq!(mr.to_vec(0..512).unwrap(), [round; 512]);
            }
        });
    }
}

// Goal: 64 hosts at a time, each with a controller and a queue: all are served, and each gives back what it had.
#[test]
fn sixty_four_hosts_at_once() {
    const HOSTS: usize = 64;
    let mut setup = Setup { cores: 2, ..Setup::default() };
    setup.config.receives = 4096;
    with_target(&setup, |view| {
        let mut hosts: Vec<_> = (0..HOSTS as u32)
            .map(|n| {
                let mut host = view.host(n);
                let mut controller =
                    Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), Options::default()).unwrap();
                let queue = controller.io_queue(&mut host, 1, 8).unwrap();
                let mr =
                    host.pd().reg_mr(512, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE);
                (host, controller, queue, mr.unwrap())
            })
            .collect();
        let connected = view.target.connected();
        let names: std::collections::HashSet<_> = connected.iter().map(|c| c.host.clone()).collect();
        assert_eq!((connected.len(), names.len()), (HOSTS, HOSTS));
        for reads in [false, true] {
            // All at a time: each has one command under way.
            for (n, (_, _, queue, mr)) in hosts.iter_mut().enumerate() {
                mr.fill(0..512, if reads { 0 } else { n as u8 + 1 }).unwrap();
                let sgl = Sgl::keyed(mr.iova(), 512, mr.rkey(), false);
                let io = Io::new(1, n as u64, 1);
                let sqe = if reads { io.read(sgl) } else { io.write(sgl) };
                queue.submit(&sqe, Data::Elsewhere).unwrap().unwrap();
            }
            let since = std::time::Instant::now();
            while hosts.iter().any(|(_, _, queue, _)| queue.under_way() > 0) {
                for (host, _, queue, _) in &mut hosts {
                    host.turn();
                    queue.poll(|cqe| assert_eq!(cqe.status.get(), 0)).unwrap();
                }
                assert!(since.elapsed() < crate::common::PATIENCE);
            }
            for (n, (_, _, _, mr)) in hosts.iter().enumerate() {
                assert_eq!(mr.to_vec(0..512).unwrap(), [n as u8 + 1; 512]);
            }
        }
        // Half of them say good-bye, the others just go.
        let mut last = view.host(1000);
        for (n, (mut host, controller, queue, mr)) in hosts.into_iter().enumerate() {
            drop((queue, mr));
            match n % 2 {
                0 => controller.shutdown(&mut host).unwrap(),
                _ => drop(controller),
            }
        }
        view.until_nothing_is_left(&mut last);
    });
}
