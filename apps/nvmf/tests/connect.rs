//! Connecting, properties, keep alive, and how queues end.

use core::time::Duration;

use nvmf::config::{ConfigError, Hosts, Ports, Settings, Subsystem};
use nvmf::status::Status;
use nvmf::wire::cm::RejectReason;
use nvmf::wire::fabrics::{ConnectCommand, ConnectData, fctype};
use nvmf::wire::{Sgl, Sqe, admin_opcode, io_opcode};
use nvmf::{Arrival, Connected, End, Instant, Nqn, Queue, Step, Target};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

use crate::common::{
    HOST, KEY, MEMORY, Program, SUBSYSTEM, arrival, blocks, command, connect_data, identify_controller, nqn,
    property, property_get, property_set, request, set_feature,
};

fn accept(program: &Program, private: &[u8]) -> Result<Queue, RejectReason> {
    Queue::accept(&program.target, program.now, arrival(), private).map(|accepted| accepted.queue)
}

// N03
#[test]
fn n03_connection_requests_that_make_no_sense_are_refused_with_the_reason() {
    let program = Program::new(8);
    let change = |at: usize, value: u16| {
        let mut private = request(0, 32);
        private[at..at + 2].copy_from_slice(&value.to_le_bytes());
        accept(&program, &private).map(drop)
    };
    assert_eq!(change(0, 1), Err(RejectReason::Format));
    assert_eq!(change(6, 32), Err(RejectReason::HostSends));
    assert_eq!(change(6, 0), Err(RejectReason::HostSends));
    assert_eq!(change(6, 0xFFFF), Err(RejectReason::HostSends));
    assert_eq!(change(6, 31), Ok(()));
    assert_eq!(change(4, 0), Err(RejectReason::HostReceives));
    assert_eq!(change(2, 65), Err(RejectReason::QueueId));
    assert_eq!(accept(&program, &request(0, 32)[..31]).map(drop), Err(RejectReason::Length));
    // I/O queues may be longer, up to MQES.
    assert!(accept(&program, &request(1, 128)).is_ok());
    assert_eq!(accept(&program, &request(1, 129)).map(drop), Err(RejectReason::HostSends));
    let mut private = request(1, 128);
    private[8] = 7;
    assert_eq!(accept(&program, &private).map(drop), Err(RejectReason::ControllerId));
    let data = RejectReason::Format.data();
    assert_eq!(data.as_bytes(), [0, 0, 2, 0]);
    assert_eq!(RejectReason::HostSends.data().status.get(), 4);
}

// N04: the data of Connect on the admin queue are the host's memory, never the capsule.
#[test]
fn n04_admin_connect_data_are_fetched() {
    let mut program = Program::new(8);
    let mut queue = program.connection(0, 32);
    let sqe = program.connect_sqe(0, 31, 0);
    program.expect(&mut queue, &sqe, connect_data(0xFFFF, SUBSYSTEM).as_bytes(), Status::Success);
    assert_eq!(program.trace, ["fetch 1024"]);
    let mut queue = program.connection(0, 32);
    let sqe = Sqe { sgl: Sgl::in_capsule(0, 1024), ..sqe };
    let capsule = [sqe.as_bytes(), connect_data(0xFFFF, SUBSYSTEM).as_bytes()].concat();
    let response = program.capsule(&mut queue, &capsule).unwrap().unwrap();
    assert_eq!(response.cqe.status.get(), Status::SglTypeInvalid.field());
}

/// Connect with changed command and data: the status and the result.
fn connect(
    program: &mut Program,
    qid: u16,
    sqe: impl Fn(&mut ConnectCommand),
    data: impl Fn(&mut ConnectData),
) -> (Status, u64) {
    let mut queue = program.connection(qid, 32);
    let mut command: ConnectCommand = zerocopy::transmute!(program.connect_sqe(qid, 31, 0));
    sqe(&mut command);
    let mut with = connect_data(if qid == 0 { 0xFFFF } else { 1 }, SUBSYSTEM);
    data(&mut with);
    let response = program.send(&mut queue, &zerocopy::transmute!(command), with.as_bytes());
    assert_eq!(response.invalidate, Some(KEY));
    let status = Status::ALL.iter().find(|s| s.field() == response.cqe.status.get()).expect("a known status");
    (*status, response.cqe.result.get())
}

// N05
#[test]
fn n05_connect_says_which_parameter_is_wrong() {
    let mut p = Program::new(8);
    let (admin, cntlid) = p.admin();
    assert_eq!(cntlid, 1);
    let bad = Status::ConnectInvalid;
    let (same_sqe, same_data) = (|_: &mut ConnectCommand| {}, |_: &mut ConnectData| {});
    let subsystem = |d: &mut ConnectData| d.subsystem = nvmf::wire::zero_padded("nqn.2024-01.test:none");
    for qid in [0, 1] {
        assert_eq!(connect(&mut p, qid, same_sqe, subsystem), (bad, 0x10100));
        assert_eq!(connect(&mut p, qid, same_sqe, |d| d.subsystem = [0xff; 256]), (bad, 0x10100));
        assert_eq!(connect(&mut p, qid, same_sqe, |d| d.host = [0; 256]), (bad, 0x10200));
        let unknown = if qid == 0 { bad } else { Status::ControllerUnknown };
        assert_eq!(connect(&mut p, qid, same_sqe, |d| d.cntlid = U16::new(77)), (unknown, 0x10010));
        assert_eq!(connect(&mut p, qid, |c| c.qid = U16::new(9), same_data), (bad, 42));
        assert_eq!(connect(&mut p, qid, |c| c.sqsize = U16::ZERO, same_data), (bad, 44));
        assert_eq!(connect(&mut p, qid, |c| c.sqsize = U16::new(32), same_data), (bad, 44));
        assert_eq!(connect(&mut p, qid, |c| c.format = U16::new(1), same_data), (Status::ConnectFormat, 0));
        let short = Sgl::keyed(MEMORY, 1023, KEY, true);
        assert_eq!(connect(&mut p, qid, |c| c.sgl = short, same_data), (Status::SglLengthInvalid, 0));
        assert_eq!(connect(&mut p, qid, |c| c.flags = 0, same_data), (Status::InvalidField, 0));
    }
    // An I/O queue belongs to the host of its controller.
    let other = |d: &mut ConnectData| d.host = nvmf::wire::zero_padded("nqn.2024-01.test:other");
    assert_eq!(connect(&mut p, 1, same_sqe, other), (bad, 0x10200));
    assert_eq!(connect(&mut p, 1, same_sqe, |d| d.host_id[3] ^= 1), (bad, 0x10000));
    assert_eq!(connect(&mut p, 1, same_sqe, same_data), (Status::Success, 1));
    // The controller may end while its host connects: the host may try again, with an admin queue.
    drop(admin);
    assert_eq!(connect(&mut p, 1, same_sqe, same_data), (Status::ControllerUnknown, 0x10010));
    assert!(!Status::ControllerUnknown.do_not_retry());
}

#[test]
fn a_host_that_is_not_allowed_is_refused_and_one_that_no_longer_is_ends() {
    let mut p = Program::new(8);
    let (subsystem, host) = (nqn(SUBSYSTEM), nqn(HOST));
    p.target.set_hosts(&subsystem, Hosts::Listed(vec![])).unwrap();
    assert_eq!(connect(&mut p, 0, |_| {}, |_| {}), (Status::InvalidHost, 0));
    p.target.allow_host(&subsystem, host.clone()).unwrap();
    let (mut admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    assert_eq!((admin.poll_end(), io.poll_end()), (None, None));
    p.target.disallow_host(&subsystem, &host).unwrap();
    assert_eq!((admin.poll_end(), io.poll_end()), (Some(End::NotServed), Some(End::ControllerGone)));
    let again = p.target.disallow_host(&subsystem, &host);
    assert_eq!(again, Err(ConfigError::NoHost(host)));
    drop((admin, io));
    assert_eq!(p.target.controllers(), (0, 0));
}

#[test]
fn a_subsystem_is_found_at_its_ports_only() {
    let mut p = Program::new(8);
    let name = nqn("nqn.2024-01.test:elsewhere");
    let ports = Ports::Listed(vec![2]);
    let elsewhere = Subsystem { nqn: name.clone(), ports, ..crate::common::subsystem(vec![]) };
    p.target.add_subsystem(elsewhere).unwrap();
    let subsystem = |d: &mut ConnectData| d.subsystem = nvmf::wire::zero_padded(name.as_str());
    assert_eq!(connect(&mut p, 0, |_| {}, subsystem), (Status::ConnectInvalid, 0x10100));
    let arrival = Arrival { port: 2, ..arrival() };
    let mut queue = Queue::accept(&p.target, p.now, arrival, &request(0, 32)).unwrap().queue;
    let cntlid = p.connect(&mut queue, 0xFFFF, name.as_str(), 0);
    let connected = Connected { cntlid, host: nqn(HOST), subsystem: Some(name) };
    assert_eq!(p.target.connected(), [connected]);
}

#[test]
fn a_subsystem_that_is_removed_ends_its_controllers_only() {
    let mut p = Program::new(8);
    let (mut admin, _) = p.admin();
    let mut discovery = p.discovery(HOST);
    p.target.remove_subsystem(&nqn(SUBSYSTEM)).unwrap();
    assert_eq!(admin.poll_end(), Some(End::NotServed));
    assert_eq!(discovery.poll_end(), None);
}

// N06
#[test]
fn n06_the_first_command_must_be_connect_and_the_only_one() {
    let mut p = Program::new(8);
    for sqe in [identify_controller(), property_get(0x14, 0), blocks(io_opcode::READ, 0, 1)] {
        for qid in [0, 1] {
            let mut queue = p.connection(qid, 32);
            p.expect(&mut queue, &sqe, &[], Status::CommandSequenceError);
        }
    }
    let (mut admin, cntlid) = p.admin();
    let again = p.connect_sqe(0, 31, 0);
    let data = connect_data(0xFFFF, SUBSYSTEM);
    p.expect(&mut admin, &again, data.as_bytes(), Status::CommandSequenceError);
    let mut io = p.io(cntlid, 1);
    let again = p.connect_sqe(1, 31, 0);
    p.expect(&mut io, &again, connect_data(cntlid, SUBSYSTEM).as_bytes(), Status::CommandSequenceError);
    // The same queue a second time.
    assert_eq!(connect(&mut p, 1, |_| {}, |_| {}), (Status::CommandSequenceError, 0));
    drop(io);
    assert_eq!(connect(&mut p, 1, |_| {}, |_| {}), (Status::Success, 1));
    p.expect(&mut admin, &property_set(0x14, 0), &[], Status::Success);
    assert_eq!(connect(&mut p, 1, |_| {}, |_| {}), (Status::CommandSequenceError, 0), "not enabled");
}

// Two Connects whose data are under way together: the first to come is served.
#[test]
fn a_second_connect_under_way_is_refused() {
    let mut p = Program::new(8);
    let mut queue = p.connection(0, 32);
    let sqe = p.connect_sqe(0, 31, 0);
    let fetch = |queue: &mut Queue| match queue.handle_capsule(Instant::default(), sqe.as_bytes(), 64) {
        Ok(Step::Fetch(ticket, _)) => ticket,
        other => panic!("{other:?}"),
    };
    let (first, second) = (fetch(&mut queue), fetch(&mut queue));
    let data = connect_data(0xFFFF, SUBSYSTEM);
    for (ticket, status) in [(second, Status::Success), (first, Status::CommandSequenceError)] {
        match queue.handle_data(p.now, ticket, data.as_bytes()) {
            Ok(Step::Respond(response)) => assert_eq!(response.cqe.status.get(), status.field()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(p.target.controllers(), (1, 0));
    let sqe = identify_controller();
    p.expect(&mut queue, &sqe, &[], Status::CommandSequenceError);
}

// N10
#[test]
fn n10_a_short_capsule_ends_the_queue() {
    let mut p = Program::new(8);
    let (mut admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    for len in [0, 1, 60, 63] {
        let mut queue = p.connection(0, 32);
        assert_eq!(p.capsule(&mut queue, &[0x7f; 63][..len]), Err(End::ShortCapsule(len)));
        assert_eq!(p.capsule(&mut queue, &[0x7f; 64]), Err(End::ShortCapsule(len)), "it stays ended");
    }
    assert_eq!(p.capsule(&mut admin, &[0; 60]), Err(End::ShortCapsule(60)));
    assert_eq!(io.poll_end(), Some(End::ControllerGone), "the controller ends with its admin queue");
}

#[test]
fn more_commands_than_entries_end_the_queue() {
    let mut p = Program::new(8);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    let sqe = blocks(io_opcode::READ, 0, 1);
    let mut tickets = Vec::new();
    for _ in 0..128 {
        match io.handle_capsule(p.now, sqe.as_bytes(), 64) {
            Ok(Step::Run(ticket, _)) => tickets.push(ticket),
            other => panic!("{other:?}"),
        }
    }
    // When one command has ended, one more is taken.
    let _response = io.handle_done(tickets.remove(64), Ok(())).unwrap();
    assert!(matches!(io.handle_capsule(p.now, sqe.as_bytes(), 64), Ok(Step::Run(..))));
    assert_eq!(io.commands(), 128);
    assert_eq!(io.handle_capsule(p.now, sqe.as_bytes(), 64).err(), Some(End::TooManyCommands));
    assert_eq!(io.handle_done(tickets[0], Ok(())), Err(End::TooManyCommands));
}

#[test]
#[should_panic(expected = "give each ticket back once")]
fn a_ticket_that_is_given_back_twice_is_a_mistake_of_the_program() {
    let mut p = Program::new(8);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    let Ok(Step::Run(ticket, _)) = io.handle_capsule(p.now, blocks(io_opcode::READ, 0, 1).as_bytes(), 64)
    else {
        panic!("a Read runs")
    };
    let ticket = nvmf::Ticket::from_raw(ticket.to_raw());
    for _ in 0..2 {
        let _response = io.handle_done(ticket, Ok(()));
    }
}

// N12
#[test]
fn n12_enable_makes_ready_and_shutdown_completes() {
    let mut p = Program::new(8);
    let mut queue = p.connection(0, 32);
    let cntlid = p.connect(&mut queue, 0xFFFF, SUBSYSTEM, 0);
    let csts = property_get(0x1C, 0);
    p.expect(&mut queue, &property_set(0x14, 0x0046_0000), &[], Status::Success);
    assert_eq!(p.expect(&mut queue, &csts, &[], Status::Success), 0);
    p.expect(&mut queue, &identify_controller(), &[], Status::CommandSequenceError);
    p.expect(&mut queue, &property_set(0x14, 0x0046_0001), &[], Status::Success);
    assert_eq!(p.expect(&mut queue, &csts, &[], Status::Success), 1);
    assert_eq!(p.expect(&mut queue, &property_get(0x14, 0), &[], Status::Success), 0x0046_0001);
    let mut io = p.io(cntlid, 1);
    p.expect(&mut queue, &property_set(0x14, 0x0046_4001), &[], Status::Success);
    assert_eq!(p.expect(&mut queue, &csts, &[], Status::Success) >> 2 & 3, 2);
    assert_eq!(io.poll_end(), Some(End::ControllerGone));
    // Disabled and enabled again it serves anew.
    p.expect(&mut queue, &property_set(0x14, 0), &[], Status::Success);
    assert_eq!(p.expect(&mut queue, &csts, &[], Status::Success), 0);
    p.enable(&mut queue);
    drop(io);
    p.io(cntlid, 1);
}

#[test]
fn a_configuration_that_is_not_served_is_fatal_until_reset() {
    let mut p = Program::new(8);
    // Entries of other sizes, pages of 8 KiB, weighted round robin, another command set.
    for cc in [0x0045_0001, 0x0036_0001, 0x0046_0081, 0x0046_0801, 0x0046_0061, 1] {
        let mut queue = p.connection(0, 32);
        p.connect(&mut queue, 0xFFFF, SUBSYSTEM, 0);
        p.expect(&mut queue, &property_set(0x14, cc), &[], Status::Success);
        assert_eq!(p.expect(&mut queue, &property_get(0x1C, 0), &[], Status::Success), 2, "{cc:#x}");
        p.expect(&mut queue, &identify_controller(), &[], Status::CommandSequenceError);
        p.expect(&mut queue, &property_set(0x14, 0), &[], Status::Success);
        p.enable(&mut queue);
    }
}

// N13
#[test]
fn n13_properties_have_their_offset_and_size() {
    let mut p = Program::new(8);
    let (mut queue, _) = p.admin();
    for offset in (0..0x80).chain([0x68, 0x1000, u32::MAX]) {
        let eight = match offset {
            0x00 => Some(1),
            0x08 | 0x14 | 0x1C => Some(0),
            _ => None,
        };
        for attributes in 0..8 {
            let served = eight == Some(attributes);
            let status = if served { Status::Success } else { Status::InvalidField };
            p.expect(&mut queue, &property_get(offset, attributes), &[], status);
            if offset != 0x14 || attributes != 0 {
                let set = property(fctype::PROPERTY_SET, offset, attributes, 0);
                p.expect(&mut queue, &set, &[], Status::InvalidField);
            }
        }
    }
    let cap = p.expect(&mut queue, &property_get(0, 1), &[], Status::Success);
    assert_eq!(cap, 127 | 1 << 16 | 15 << 24 | 1 << 37);
    assert_eq!(p.expect(&mut queue, &property_get(8, 0), &[], Status::Success), 0x0001_0400);
}

// N15, N16
#[test]
fn n15_n16_a_silent_host_is_dropped_and_one_that_speaks_is_not() {
    let mut p = Program::new(8);
    let second = |n: u64| Instant::from_nanos(n * 1_000_000_000);
    let mut queue = p.connection(0, 32);
    // 4.1 s, rounded up to the granularity of one second.
    let cntlid = p.connect(&mut queue, 0xFFFF, SUBSYSTEM, 4100);
    p.enable(&mut queue);
    let mut io = p.io(cntlid, 1);
    assert_eq!(queue.poll_timeout(), Some(second(5)));
    assert_eq!(io.poll_timeout(), None);
    // Traffic on the I/O queue counts once.
    assert_eq!(queue.handle_timeout(second(5)), Ok(()));
    assert_eq!(queue.poll_timeout(), Some(second(10)));
    p.now = second(8);
    p.expect(&mut queue, &command(admin_opcode::KEEP_ALIVE, 0), &[], Status::Success);
    assert_eq!(queue.handle_timeout(second(12)), Ok(()));
    p.now = second(12);
    p.expect(&mut io, &command(io_opcode::FLUSH, 1), &[], Status::Success);
    assert_eq!(queue.handle_timeout(second(13)), Ok(()));
    assert_eq!(queue.poll_timeout(), Some(second(18)));
    // What came on the I/O queue before the last keep alive does not count after it.
    p.expect(&mut io, &command(io_opcode::FLUSH, 1), &[], Status::Success);
    p.now = second(14);
    p.expect(&mut queue, &command(admin_opcode::KEEP_ALIVE, 0), &[], Status::Success);
    assert_eq!(queue.handle_timeout(second(18)), Ok(()));
    assert_eq!(queue.handle_timeout(second(19)), Err(End::KeepAliveExpired));
    assert_eq!(
        p.capsule(&mut queue, command(admin_opcode::KEEP_ALIVE, 0).as_bytes()),
        Err(End::KeepAliveExpired)
    );
    assert_eq!(io.poll_end(), Some(End::ControllerGone));
    drop((queue, io));
    assert_eq!(p.target.controllers(), (0, 0));
}

#[test]
fn the_keep_alive_timeout_can_be_changed_and_switched_off() {
    let mut p = Program::new(8);
    let (mut queue, _) = p.admin();
    p.expect(&mut queue, &set_feature(0x0F, 60_000), &[], Status::Success);
    assert_eq!(queue.poll_timeout(), Some(Instant::default().after(Duration::from_secs(60))));
    p.expect(&mut queue, &set_feature(0x0F, 0), &[], Status::Success);
    assert_eq!(queue.poll_timeout(), None);
    assert_eq!(queue.handle_timeout(Instant::from_nanos(u64::MAX)), Ok(()));
}

#[test]
fn a_connection_that_never_connects_and_a_discovery_that_stays_are_ended() {
    let mut p = Program::new(8);
    let mut queue = p.connection(1, 32);
    let due = queue.poll_timeout().expect("a time");
    assert_eq!(queue.handle_timeout(Instant::from_nanos(due.as_nanos() - 1)), Ok(()));
    assert_eq!(queue.handle_timeout(due), Err(End::NoConnect));
    // Its host asked for no keep alive: it has two minutes.
    let mut discovery = p.discovery(HOST);
    let due = discovery.poll_timeout().expect("a time");
    assert_eq!(due, Instant::default().after(Duration::from_secs(120)));
    assert_eq!(discovery.handle_timeout(due), Err(End::KeepAliveExpired));
}

#[test]
fn controllers_are_bounded_and_discovery_takes_none_of_the_others() {
    // A host has half of them at most.
    let settings = Settings { controllers: 4, discovery_controllers: 1, ..Settings::default() };
    let target = Target::new(settings).unwrap();
    target.add_subsystem(crate::common::subsystem(vec![])).unwrap();
    let mut p = Program::new(8);
    p.target = target;
    let discovery = p.discovery(HOST);
    let busy = |p: &mut Program, subsystem: &str| {
        let mut queue = p.connection(0, 32);
        let sqe = p.connect_sqe(0, 31, 0);
        p.expect(&mut queue, &sqe, connect_data(0xFFFF, subsystem).as_bytes(), Status::ControllerBusy);
    };
    busy(&mut p, Nqn::DISCOVERY);
    let (first, _) = p.admin();
    let (second, cntlid) = p.admin();
    assert_eq!(cntlid, 3, "numbers are not used again at once");
    busy(&mut p, SUBSYSTEM);
    assert_eq!(p.target.controllers(), (2, 1));
    drop((first, discovery));
    let (_third, cntlid) = p.admin();
    assert_eq!(cntlid, 4);
    drop(second);
    p.discovery(HOST);
}

// Goal: whoever has many names at one address, or many addresses, keeps nobody out that a subsystem names, and an address keeps none
// of the others out.
#[test]
fn controllers_are_shared_by_host_and_there_is_room_for_those_that_are_named() {
    const NAMED: &str = "nqn.2024-01.test:named-host";
    let target = Target::new(Settings { controllers: 12, ..Settings::default() }).unwrap();
    target.add_subsystem(crate::common::subsystem(vec![])).unwrap();
    let theirs = nqn("nqn.2024-01.test:theirs");
    let hosts = Hosts::Listed(vec![nqn(NAMED)]);
    target
        .add_subsystem(Subsystem { nqn: theirs.clone(), hosts, ..crate::common::subsystem(vec![]) })
        .unwrap();
    let mut p = Program::new(8);
    p.target = target;
    let connect = |p: &mut Program, address: u8, host: &str, subsystem: &str| {
        let arrival = Arrival { peer: [10, 99, 1, address].into(), ..arrival() };
        let mut queue = Queue::accept(&p.target, p.now, arrival, &request(0, 32)).unwrap().queue;
        let mut data = connect_data(0xFFFF, subsystem);
        data.host = nvmf::wire::zero_padded(host);
        let sqe = p.connect_sqe(0, 31, 0);
        let status = p.send(&mut queue, &sqe, data.as_bytes()).cqe.status.get();
        assert!(status == 0 || status == Status::ControllerBusy.field(), "{status:#x}");
        (status == 0).then_some(queue)
    };
    let one: Vec<_> = (0..20).filter_map(|_| connect(&mut p, 1, HOST, SUBSYSTEM)).collect();
    assert_eq!(one.len(), 6, "half of those that are not kept");
    let name = |n: u8| format!("nqn.2024-01.test:name{n}");
    let names: Vec<_> = (0..20).filter_map(|n| connect(&mut p, 1, &name(n), SUBSYSTEM)).collect();
    assert_eq!(one.len() + names.len(), 8, "two thirds are the most that an address has");
    let others: Vec<_> = (2..20).filter_map(|n| connect(&mut p, n, &name(n), SUBSYSTEM)).collect();
    assert_eq!(others.len(), 3);
    assert!(connect(&mut p, 99, HOST, SUBSYSTEM).is_none(), "the last one is kept");
    let named = connect(&mut p, 99, NAMED, theirs.as_str()).expect("it is kept for this host");
    assert!(named.is_named() && !others[0].is_named());
    assert!(connect(&mut p, 98, NAMED, theirs.as_str()).is_none(), "there are twelve");
    drop(one);
    connect(&mut p, 99, HOST, SUBSYSTEM).expect("there is room again");
}

#[test]
fn a_thousand_hosts_come_and_go_and_leave_nothing() {
    let mut p = Program::new(8);
    for _ in 0..1000 {
        let (admin, cntlid) = p.admin();
        let io = [1, 2, 3].map(|qid| p.io(cntlid, qid));
        assert_eq!(p.target.controllers(), (1, 0));
        // In either order.
        if cntlid % 2 == 0 { drop((admin, io)) } else { drop((io, admin)) }
    }
    assert_eq!(p.target.controllers(), (0, 0));
}

#[test]
fn without_flow_control_the_head_is_not_told() {
    let mut p = Program::new(8);
    for (attributes, heads) in [(0, [1, 2, 3, 0, 1]), (ConnectCommand::NO_FLOW_CONTROL, [0xFFFF; 5])] {
        let mut queue = p.connection(0, 32);
        let mut sqe: ConnectCommand = zerocopy::transmute!(p.connect_sqe(0, 3, 0));
        sqe.attributes = attributes;
        let data = connect_data(0xFFFF, SUBSYSTEM);
        let response = p.send(&mut queue, &zerocopy::transmute!(sqe), data.as_bytes());
        let mut found = vec![response.cqe.sq_head.get()];
        for _ in 0..4 {
            found.push(p.send(&mut queue, &property_get(0, 1), &[]).cqe.sq_head.get());
        }
        assert_eq!(found, heads);
    }
}

// Goal: a host that sends as many commands as entries are free by the head that it was told never sends too many, however slow the
// first ones are.
#[test]
fn the_head_tells_of_what_was_answered() {
    let mut p = Program::new(8);
    let (_admin, cntlid) = p.admin();
    let mut queue = p.connection(1, 8);
    let sqe = p.connect_sqe(1, 7, 0);
    p.expect(&mut queue, &sqe, connect_data(cntlid, SUBSYSTEM).as_bytes(), Status::Success);
    // The tail is behind Connect, and the queue is full with one entry empty.
    let (mut tail, mut head, mut under_way) = (1u16, 1, std::collections::VecDeque::new());
    for _ in 0..100 {
        while (tail + 1) % 8 != head {
            let sqe = blocks(io_opcode::READ, 0, 1);
            let step = queue.handle_capsule(p.now, sqe.as_bytes(), 64).expect("there are not too many");
            let Step::Run(ticket, _) = step else { panic!("{step:?}") };
            under_way.push_back(ticket);
            tail = (tail + 1) % 8;
        }
        assert_eq!(under_way.len(), 7);
        // The last one is answered first.
        let ticket = under_way.pop_back().unwrap();
        head = queue.handle_done(ticket, Ok(())).unwrap().cqe.sq_head.get();
    }
}

#[test]
fn unknown_commands_of_fabrics_are_refused() {
    let mut p = Program::new(8);
    let (mut admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    // Authentication, Disconnect, what nobody has.
    for fctype in [0x05, 0x06, 0x08, 0xFF] {
        let sqe = property(fctype, 0, 0, 0);
        p.expect(&mut admin, &sqe, &[], Status::InvalidOpcode);
        p.expect(&mut io, &sqe, &[], Status::InvalidOpcode);
    }
    p.expect(&mut io, &property_get(0x14, 0), &[], Status::InvalidOpcode);
    let fused = Sqe { flags: 0x41, ..command(admin_opcode::KEEP_ALIVE, 0) };
    p.expect(&mut admin, &fused, &[], Status::InvalidField);
    let prp = Sqe { flags: 0, cdw10: U32::ZERO, ..Sqe::new_zeroed() };
    p.expect(&mut io, &prp, &[], Status::InvalidField);
}

/// A Connect that waits, if it does.
fn connects(p: &mut Program, queue: &mut Queue, data: &ConnectData) -> Option<u16> {
    let entries = if queue.qid() == 0 { 32 } else { 128 };
    let sqe = p.connect_sqe(queue.qid(), entries - 1, 0);
    p.memory[..ConnectData::LEN].copy_from_slice(data.as_bytes());
    p.capsule(queue, sqe.as_bytes()).unwrap().map(|response| response.cqe.status.get())
}
fn answered(queue: &mut Queue, now: Instant) -> Option<u16> {
    queue.poll_response(now).map(|response| response.cqe.status.get())
}
const SUCCESS: Option<u16> = Some(Status::Success.field());

// Goal: a host that comes back is answered when the storage has done with what it had sent before, and no other host waits.
#[test]
fn connect_waits_for_what_the_host_had_sent() {
    let mut p = Program::new(8);
    let (admin, cntlid) = p.admin();
    let (first, second) = (p.io(cntlid, 1), p.io(cntlid, 2));
    assert!(admin.in_flight().is_none() && p.connection(1, 8).in_flight().is_none());
    let in_flight = first.in_flight().unwrap();
    drop((admin, first, second));

    let data = connect_data(0xFFFF, SUBSYSTEM);
    let others = [
        ConnectData { host: nvmf::wire::zero_padded("nqn.2024-01.test:another"), ..data },
        ConnectData { host_id: [7; 16], ..data },
        connect_data(0xFFFF, Nqn::DISCOVERY),
    ];
    for other in &others {
        let mut queue = p.connection(0, 32);
        assert_eq!(connects(&mut p, &mut queue, other), SUCCESS);
    }
    let mut queue = p.connection(0, 32);
    let wrong = connect_data(3, SUBSYSTEM);
    assert_eq!(connects(&mut p, &mut queue, &wrong), Some(Status::ConnectInvalid.field()), "at once");
    assert_eq!(connects(&mut p, &mut queue, &data), None);
    assert_eq!((queue.poll_timeout(), queue.commands()), (None, 1));
    assert_eq!(connects(&mut p, &mut queue, &data), Some(Status::CommandSequenceError.field()));
    p.expect(&mut queue, &property_get(8, 0), &[], Status::CommandSequenceError);
    assert_eq!(answered(&mut queue, p.now), None);
    assert_eq!(p.target.controllers(), (0, 0));
    drop(in_flight);
    assert_eq!(answered(&mut queue, p.now), SUCCESS);
    assert_eq!((queue.poll_response(p.now), p.target.controllers()), (None, (1, 0)));
    assert_eq!(queue.host(), Some(nqn(HOST)));
}

// Goal: the same holds for a queue that comes again while its controller stays, and after a reset.
#[test]
fn connect_of_an_io_queue_waits_for_what_the_host_had_sent() {
    let mut p = Program::new(8);
    let (mut admin, cntlid) = p.admin();
    let (first, other) = (p.io(cntlid, 1), p.io(cntlid, 2));
    let in_flight = first.in_flight().unwrap();
    drop(first);
    let data = connect_data(cntlid, SUBSYSTEM);
    let mut again = p.connection(1, 128);
    assert_eq!(connects(&mut p, &mut again, &data), None);
    drop(in_flight);
    assert_eq!(answered(&mut again, p.now), SUCCESS);

    p.expect(&mut admin, &property_set(0x14, 0), &[], Status::Success);
    p.enable(&mut admin);
    // Whoever serves these has not noticed yet.
    let mut anew = p.connection(1, 128);
    assert_eq!(connects(&mut p, &mut anew, &data), None);
    drop(again);
    assert_eq!(answered(&mut anew, p.now), None);
    drop(other);
    assert_eq!(answered(&mut anew, p.now), SUCCESS);
}

// Goal: storage that does not answer keeps nobody waiting for ever.
#[test]
fn a_connect_that_waits_for_long_is_told_to_come_later() {
    let mut p = Program::new(8);
    let (admin, cntlid) = p.admin();
    let io = p.io(cntlid, 1);
    let in_flight = io.in_flight().unwrap();
    drop((admin, io));
    p.now = Instant::from_nanos(5);
    let data = connect_data(0xFFFF, SUBSYSTEM);
    let mut queue = p.connection(0, 32);
    assert_eq!(connects(&mut p, &mut queue, &data), None);
    let due = p.now.after(nvmf::limits::QUIESCE_PATIENCE);
    assert_eq!(answered(&mut queue, Instant::from_nanos(due.as_nanos() - 1)), None);
    assert_eq!(answered(&mut queue, due), Some(Status::ControllerBusy.field()));
    assert!(!Status::ControllerBusy.do_not_retry());
    // From then on it is a connection without Connect.
    assert_eq!(queue.poll_timeout(), Some(due.after(nvmf::limits::CONNECT_PATIENCE)));
    p.now = due;
    assert_eq!(connects(&mut p, &mut queue, &data), None);
    drop(in_flight);
    assert_eq!(answered(&mut queue, due), SUCCESS);
}
