//! Admin commands: Identify, log pages, features, events, discovery.

use nvmf::config::{Backend, ConfigError, Hosts, Namespace, Port, Ports, Settings, Subsystem};
use nvmf::status::Status;
use nvmf::wire::identify::{self, DescriptorHead, cns};
use nvmf::wire::log::{Effects, ErrorEntry, Smart, lid};
use nvmf::wire::{Sgl, Sqe, admin_opcode, discovery, io_opcode};
use nvmf::{End, Nqn, Queue, Step, Target};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::{
    HOST, HOST_ID, KEY, MEMORY, Program, SUBSYSTEM, blocks, command, identify, identify_controller, log_page,
    namespace, nqn, set_feature,
};

/// Checks what the Linux host demands of Identify Controller; returns why it would refuse the controller.
fn linux_refuses(page: &identify::Controller, cntlid: u16, queue_entries: u16) -> Option<&'static str> {
    let sgls = page.sgls.get();
    [
        (page.cntlid.get() == cntlid, "CNTLID is not that of Connect"),
        (page.cntrltype == 2 || page.kas.get() > 0, "KAS is 0"),
        (sgls & 1 != 0 && sgls & 4 != 0, "no SGLs, or no keyed ones"),
        (page.cntrltype == 2 || page.ioccsz.get() >= 4, "IOCCSZ is too small"),
        (page.cntrltype == 2 || page.iorcsz.get() >= 1, "IORCSZ is too small"),
        (page.icdoff.get() == 0, "ICDOFF is not 0"),
        (page.cntrltype == 2 || page.maxcmd.get() >= queue_entries, "MAXCMD would clamp the queues"),
    ]
    .into_iter()
    .find(|(holds, _)| !holds)
    .map(|(_, why)| why)
}

fn controller_page(p: &mut Program, queue: &mut Queue) -> identify::Controller {
    let bytes = p.read(queue, &identify_controller(), identify::LEN);
    identify::Controller::read_from_bytes(&bytes).expect("its length")
}

// N14
#[test]
fn n14_a_linux_host_finds_all_that_it_demands() {
    let mut p = Program::new(8);
    let (mut queue, cntlid) = p.admin();
    let page = controller_page(&mut p, &mut queue);
    assert_eq!(linux_refuses(&page, cntlid, 128), None);
    let mut discovery = p.discovery(HOST);
    let found = discovery.cntlid().expect("connected");
    assert_eq!(linux_refuses(&controller_page(&mut p, &mut discovery), found, 128), None);
    // The checker fires.
    type Plant = fn(&mut identify::Controller);
    let planted: [(Plant, &str); 7] = [
        (|page| page.kas = U16::ZERO, "KAS is 0"),
        (|page| page.sgls = U32::ZERO, "no SGLs, or no keyed ones"),
        (|page| page.ioccsz = U32::new(3), "IOCCSZ is too small"),
        (|page| page.iorcsz = U32::ZERO, "IORCSZ is too small"),
        (|page| page.icdoff = U16::new(1), "ICDOFF is not 0"),
        (|page| page.cntlid = U16::new(9), "CNTLID is not that of Connect"),
        (|page| page.maxcmd = U16::new(127), "MAXCMD would clamp the queues"),
    ];
    for (plant, why) in planted {
        let mut page = page;
        plant(&mut page);
        assert_eq!(linux_refuses(&page, cntlid, 128), Some(why));
    }
}

#[test]
fn identify_controller_announces_what_is_served() {
    let mut p = Program::new(8);
    let (mut queue, cntlid) = p.admin();
    let page = controller_page(&mut p, &mut queue);
    assert_eq!(&page.sn, b"42                  ");
    assert_eq!(&page.mn[..10], b"roce-nvmf ");
    assert_eq!((page.cntrltype, page.ver.get(), page.mdts, page.cntlid.get()), (1, 0x0001_0400, 8, cntlid));
    assert_eq!(page.cmic & 1 << 3, 0, "no ANA");
    assert_eq!(page.oncs.get(), 0x8D, "Compare, Dataset Management, Write Zeroes, Verify");
    assert_eq!((page.ioccsz.get(), page.sgls.get() >> 20 & 1), (4 + 256, 1));
    assert_eq!(page.subnqn, nvmf::wire::zero_padded::<256>(SUBSYSTEM));
    assert_eq!((page.vwc, page.oaes.get()), (5, 1 << 8));

    // Without in-capsule data none are announced, and none are taken.
    let target = Target::new(Settings { in_capsule: 0, ..Settings::default() }).unwrap();
    target.add_subsystem(crate::common::subsystem(vec![namespace(1, 8)])).unwrap();
    p.target = target;
    let (mut queue, cntlid) = p.admin();
    let page = controller_page(&mut p, &mut queue);
    assert_eq!((page.ioccsz.get(), page.sgls.get() >> 20 & 1), (4, 0));
    let mut io = p.io(cntlid, 1);
    let write = Sqe { sgl: Sgl::in_capsule(0, 512), ..blocks(io_opcode::WRITE, 0, 1) };
    p.expect(&mut io, &write, &[], Status::SglTypeInvalid);
}

#[test]
fn namespaces_are_listed_described_and_named() {
    let mut p = Program::new(8);
    let subsystem = nqn(SUBSYSTEM);
    let mut second = namespace(700, 1 << 40);
    (second.block_shift, second.read_only, second.deallocates) = (12, true, None);
    p.target.add_namespace(&subsystem, second.clone()).unwrap();
    let (mut queue, _) = p.admin();
    let mut list = |above| {
        let bytes = p.read(&mut queue, &identify(cns::ACTIVE_NAMESPACES, above), identify::LEN);
        let ids = bytes.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap()));
        ids.collect::<Vec<_>>()
    };
    assert_eq!(list(0)[..3], [1, 700, 0]);
    assert_eq!(list(1)[..2], [700, 0]);
    assert_eq!(list(700), [0; 1024]);
    for nsid in [0xFFFF_FFFE, 0xFFFF_FFFF] {
        p.expect(&mut queue, &identify(cns::ACTIVE_NAMESPACES, nsid), &[], Status::InvalidNamespace);
    }

    let bytes = p.read(&mut queue, &identify(cns::NAMESPACE, 700), identify::LEN);
    let page = identify::Namespace::ref_from_bytes(&bytes).unwrap();
    assert_eq!((page.nsze.get(), page.lbaf[0].lbads, page.nsattr, page.dlfeat), (1 << 40, 12, 1, 0));
    assert_eq!(page.nguid, second.nguid);
    let bytes = p.read(&mut queue, &identify(cns::NAMESPACE, 1), identify::LEN);
    let page = identify::Namespace::ref_from_bytes(&bytes).unwrap();
    assert_eq!((page.nsze.get(), page.lbaf[0].lbads, page.nsattr, page.dlfeat), (8, 9, 0, 9));
    // An allowed identifier without a namespace reads as zeros; an identifier out of range is an error.
    assert_eq!(p.read(&mut queue, &identify(cns::NAMESPACE, 2), identify::LEN), [0; 4096]);
    for nsid in [0, 1025, 0xFFFF_FFFF] {
        p.expect(&mut queue, &identify(cns::NAMESPACE, nsid), &[], Status::InvalidNamespace);
    }

    let bytes = p.read(&mut queue, &identify(cns::DESCRIPTORS, 700), identify::LEN);
    let mut should = vec![DescriptorHead::UUID, 16, 0, 0];
    should.extend(second.uuid);
    should.extend([DescriptorHead::NGUID, 16, 0, 0]);
    should.extend(second.nguid);
    should.resize(4096, 0);
    assert_eq!(bytes, should);
    p.expect(&mut queue, &identify(cns::DESCRIPTORS, 2), &[], Status::InvalidNamespace);
}

#[test]
fn identify_of_other_things_is_refused() {
    let mut p = Program::new(8);
    let (mut queue, _) = p.admin();
    let served =
        [cns::NAMESPACE, cns::CONTROLLER, cns::ACTIVE_NAMESPACES, cns::DESCRIPTORS, cns::NVM_CONTROLLER];
    for what in 0..=255 {
        if served.contains(&what) {
            p.read(&mut queue, &identify(what, 1), identify::LEN);
        } else {
            p.expect(&mut queue, &identify(what, 1), &[], Status::InvalidField);
        }
    }
    // 4096 bytes, neither more nor less.
    for len in [0, 4092, 4095, 4097, 0xFF_FFFF] {
        let sqe = Sqe { sgl: Sgl::keyed(MEMORY, len, KEY, true), ..identify_controller() };
        p.expect(&mut queue, &sqe, &[], Status::SglLengthInvalid);
    }
    let other_set = Sqe { cdw11: U32::new(1 << 24), ..identify(cns::NVM_CONTROLLER, 0) };
    p.expect(&mut queue, &other_set, &[], Status::InvalidField);
    let mut discovery = p.discovery(HOST);
    for what in (0..=255).filter(|&what| what != cns::CONTROLLER) {
        p.expect(&mut discovery, &identify(what, 1), &[], Status::InvalidField);
    }
}

// Goal: the effects log and what is served are one.
#[test]
fn the_effects_log_names_exactly_the_commands_that_are_served() {
    let mut p = Program::new(8);
    let (mut queue, cntlid) = p.admin();
    let bytes = p.read(&mut queue, &log_page(lid::EFFECTS, 0, 4096, false), 4096);
    let effects = Effects::ref_from_bytes(&bytes).unwrap();
    for opcode in (0..=255).filter(|&opcode| opcode != 0x7F) {
        let status = if opcode == admin_opcode::ASYNC_EVENT_REQUEST {
            None
        } else {
            Some(p.send(&mut queue, &command(opcode, 0), &[]).cqe.status.get())
        };
        let served = status != Some(Status::InvalidOpcode.field());
        assert_eq!(effects.admin[opcode as usize].get() & 1 != 0, served, "admin {opcode:#x}");
        let mut io = p.io(cntlid, 1);
        let status = p.send(&mut io, &command(opcode, 1), &[]).cqe.status.get();
        let served = status != Status::InvalidOpcode.field();
        assert_eq!(effects.io[opcode as usize].get() & 1 != 0, served, "I/O {opcode:#x}");
    }
}

#[test]
fn log_pages_can_be_read_in_pieces() {
    let mut p = Program::new(8);
    let (mut queue, _) = p.admin();
    for (lid, len) in [(lid::ERROR, 1024), (lid::SMART, 512), (lid::FIRMWARE, 512), (lid::EFFECTS, 4096)] {
        let whole = p.read(&mut queue, &log_page(lid, 0, len, false), len);
        for start in (0..=len).step_by(124) {
            let piece = p.read(&mut queue, &log_page(lid, start as u64, 256, false), 256);
            let should: Vec<u8> = (start..start + 256).map(|i| whole.get(i).copied().unwrap_or(0)).collect();
            assert_eq!(piece, should, "page {lid:#x} from {start}");
        }
        for start in [len as u64 + 4, 2, u64::MAX - 3, u64::MAX] {
            let sqe = Sqe { sgl: Sgl::keyed(MEMORY, 256, KEY, true), ..log_page(lid, start, 256, false) };
            p.expect(&mut queue, &sqe, &[], Status::InvalidField);
        }
    }
    for lid in [0, 0x06, 0x0C, 0x70, 0x80, 0xFF] {
        p.expect(&mut queue, &log_page(lid, 0, 512, false), &[], Status::InvalidLogPage);
    }
    // More than the largest transfer.
    let sqe = Sqe { cdw11: U32::new(0xFFFF), ..log_page(lid::SMART, 0, 512, false) };
    p.expect(&mut queue, &sqe, &[], Status::InvalidField);
}

#[test]
fn errors_and_work_are_in_the_logs() {
    let mut p = Program::new(8192);
    let (mut queue, cntlid) = p.admin();
    let mut io = p.io(cntlid, 3);
    for _ in 0..3 {
        p.expect(&mut io, &blocks(io_opcode::WRITE, 0, 2048), &[], Status::Success);
        p.expect(&mut io, &blocks(io_opcode::READ, 0, 8), &[], Status::Success);
    }
    p.disk.fails = Some(nvmf::BackendError::Io);
    p.expect(&mut io, &blocks(io_opcode::READ, 77, 1), &[], Status::UnrecoveredReadError);
    drop(io);
    let bytes = p.read(&mut queue, &log_page(lid::SMART, 0, 512, false), 512);
    let smart = Smart::ref_from_bytes(&bytes).unwrap();
    assert_eq!((smart.reads.get(), smart.writes.get(), smart.media_errors.get()), (3, 3, 1));
    // 3 MiB and 12 KiB, in thousands of 512 bytes, rounded up.
    assert_eq!((smart.data_written.get(), smart.data_read.get()), (7, 1));
    assert_eq!(smart.error_entries.get(), 1);
    let bytes = p.read(&mut queue, &log_page(lid::ERROR, 0, 1024, false), 1024);
    let entries = <[ErrorEntry]>::ref_from_bytes(&bytes).unwrap();
    let first = &entries[0];
    assert_eq!((first.count.get(), first.sq_id.get(), first.cid.get()), (1, 3, 0x1234));
    assert_eq!((first.nsid.get(), first.lba.get()), (1, 77));
    assert_eq!(first.status.get(), Status::UnrecoveredReadError.field());
    assert_eq!(entries[1].count.get(), 0);
}

// Goal: a host learns of lost data, which no command of its own need have shown, and that all is well again.
#[test]
fn a_namespace_that_has_lost_data_is_in_the_smart_log_and_is_told_once() {
    let mut p = Program::new(8);
    let subsystem = nqn(SUBSYSTEM);
    let (mut queue, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    p.expect(&mut queue, &set_feature(0x0B, 1 << 2), &[], Status::Success);
    request_event(&mut p, &mut queue, 31);
    let warning = |p: &mut Program, queue: &mut Queue| {
        let bytes = p.read(queue, &log_page(lid::SMART, 0, 512, false), 512);
        Smart::ref_from_bytes(&bytes).unwrap().warning
    };
    assert_eq!(warning(&mut p, &mut queue), 0);
    let lost = |p: &mut Program, io: &mut Queue, opcode, status| {
        p.disk.fails = Some(nvmf::BackendError::Lost);
        p.expect(io, &blocks(opcode, 0, 1), &[], status);
    };
    for _ in 0..2 {
        lost(&mut p, &mut io, io_opcode::FLUSH, Status::WriteFault);
        lost(&mut p, &mut io, io_opcode::READ, Status::UnrecoveredReadError);
        let told = queue.poll_response(p.now).expect("an event");
        assert_eq!((told.cqe.cid.get(), told.cqe.result.get()), (31, 0x02_0001), "SMART: reliability");
        request_event(&mut p, &mut queue, 31);
        lost(&mut p, &mut io, io_opcode::WRITE, Status::WriteFault);
        assert_eq!(queue.poll_response(p.now), None, "once");
        assert_eq!(warning(&mut p, &mut queue), Smart::RELIABILITY);
        p.target.set_online(&subsystem, 1).unwrap();
        assert_eq!(warning(&mut p, &mut queue), 0);
    }
    p.target.set_online(&subsystem, 99).unwrap_err();
    // A host that comes later is told, too, and the first one again.
    lost(&mut p, &mut io, io_opcode::FLUSH, Status::WriteFault);
    assert!(queue.poll_response(p.now).is_some());
    let (mut other, _) = p.admin();
    p.expect(&mut other, &set_feature(0x0B, 1 << 2), &[], Status::Success);
    request_event(&mut p, &mut other, 31);
    assert!(other.poll_response(p.now).is_some());
    // One that is removed takes its mark with it.
    lost(&mut p, &mut io, io_opcode::READ, Status::UnrecoveredReadError);
    p.target.remove_namespace(&subsystem, 1).unwrap();
    assert_eq!(warning(&mut p, &mut queue), 0);
}

// Goal: what a removed namespace has lost is nobody's, also where another one has its identifier by now.
#[test]
fn a_command_that_ends_after_its_namespace_was_removed_leaves_no_mark() {
    let mut p = Program::new(8);
    let subsystem = nqn(SUBSYSTEM);
    let (mut queue, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    let mut begin = |p: &Program| match io.handle_capsule(p.now, blocks(io_opcode::READ, 0, 1).as_bytes(), 64)
    {
        Ok(Step::Run(ticket, _)) => ticket,
        other => panic!("{other:?}"),
    };
    let [first, second] = [begin(&p), begin(&p)];
    let mut ends = |p: &mut Program, ticket| {
        let response = io.handle_done(ticket, Err(nvmf::BackendError::Lost)).unwrap();
        assert_eq!(response.cqe.status.get(), Status::UnrecoveredReadError.field());
        let bytes = p.read(&mut queue, &log_page(lid::SMART, 0, 512, false), 512);
        Smart::ref_from_bytes(&bytes).unwrap().warning
    };
    p.target.remove_namespace(&subsystem, 1).unwrap();
    assert_eq!(ends(&mut p, first), 0);
    let other = Namespace { backend: Backend(7), ..namespace(1, 8) };
    p.target.add_namespace(&subsystem, other).unwrap();
    assert_eq!(ends(&mut p, second), 0);
}

// N19
#[test]
fn n19_number_of_queues_is_granted_up_to_the_limit() {
    let mut p = Program::new(8);
    let (mut queue, cntlid) = p.admin();
    let mut ask = |value| p.expect(&mut queue, &set_feature(0x07, value), &[], Status::Success);
    assert_eq!(ask(0xFFFF_FFFF), 63 << 16 | 63);
    assert_eq!(ask(0x0007_0007), 7 << 16 | 7);
    assert_eq!(ask(0x0003_0007), 3 << 16 | 3, "a pair needs both");
    assert_eq!(ask(0), 0);
    let get = Sqe { opcode: admin_opcode::GET_FEATURES, ..set_feature(0x07, 0) };
    assert_eq!(p.expect(&mut queue, &get, &[], Status::Success), 0);
    let io = p.io(cntlid, 1);
    p.expect(&mut queue, &set_feature(0x07, 0x0003_0003), &[], Status::CommandSequenceError);
    let mut second = p.connection(2, 128);
    let connect = p.connect_sqe(2, 127, 0);
    let data = crate::common::connect_data(cntlid, SUBSYSTEM);
    let result = p.expect(&mut second, &connect, data.as_bytes(), Status::ConnectInvalid);
    assert_eq!(result, 42);
    drop(io);
    p.expect(&mut queue, &set_feature(0x07, 0x0003_0003), &[], Status::Success);
}

#[test]
fn features_are_what_they_are() {
    let mut p = Program::new(8);
    let (mut queue, _) = p.admin();
    let mut discovery = p.discovery(HOST);
    let get = |fid, value| Sqe { opcode: admin_opcode::GET_FEATURES, ..set_feature(fid, value) };
    for fid in 0..=255 {
        let known = matches!(fid, 0x01 | 0x02 | 0x04..=0x07 | 0x0A | 0x0B | 0x0F);
        let status = if known { Status::Success } else { Status::InvalidField };
        p.expect(&mut queue, &get(fid, 0), &[], status);
        let status = if matches!(fid, 0x0B | 0x0F) { Status::Success } else { Status::InvalidField };
        p.expect(&mut discovery, &get(fid, 0), &[], status);
        let saved = Sqe { cdw10: U32::new(1 << 31 | fid as u32), ..set_feature(0, 0) };
        let status = if known || fid == 0x81 { Status::FeatureNotSaveable } else { Status::InvalidField };
        p.expect(&mut queue, &saved, &[], status);
    }
    // The host's identifier: 16 bytes, or none.
    assert_eq!(p.read(&mut queue, &get(0x81, 1), 16), HOST_ID);
    p.expect(&mut queue, &get(0x81, 0), &[], Status::InvalidField);
    p.expect(&mut queue, &set_feature(0x81, 1), &[], Status::CommandSequenceError);
    // Only the current value can be asked for.
    let default = Sqe { cdw10: U32::new(0x10B), ..get(0, 0) };
    p.expect(&mut queue, &default, &[], Status::InvalidField);
    // The cache stays on.
    p.expect(&mut queue, &set_feature(0x06, 1), &[], Status::Success);
    p.expect(&mut queue, &set_feature(0x06, 0), &[], Status::FeatureNotChangeable);
    p.expect(&mut queue, &set_feature(0x01, 0), &[], Status::FeatureNotChangeable);
    assert_eq!(p.expect(&mut queue, &get(0x0F, 0), &[], Status::Success), 5000);
}

fn request_event(p: &mut Program, queue: &mut Queue, cid: u16) {
    let sqe = Sqe { cid: U16::new(cid), ..command(admin_opcode::ASYNC_EVENT_REQUEST, 0) };
    assert_eq!(p.capsule(queue, sqe.as_bytes()), Ok(None));
}

#[test]
fn a_change_of_namespaces_is_told_once_until_its_log_is_read() {
    let mut p = Program::new(8);
    let subsystem = nqn(SUBSYSTEM);
    let (mut queue, _) = p.admin();
    p.expect(&mut queue, &set_feature(0x0B, 1 << 9), &[], Status::InvalidField);
    p.expect(&mut queue, &set_feature(0x0B, 1 << 8 | 0xFF), &[], Status::Success);
    request_event(&mut p, &mut queue, 31);
    request_event(&mut p, &mut queue, 30);
    assert_eq!(queue.poll_response(Default::default()), None);

    p.target.add_namespace(&subsystem, namespace(5, 16)).unwrap();
    p.target.resize_namespace(&subsystem, 1, 16).unwrap();
    let event = queue.poll_response(Default::default()).expect("an event");
    assert_eq!((event.cqe.cid.get(), event.cqe.status.get()), (31, 0));
    assert_eq!(event.cqe.result.get(), 0x0004_0002, "a notice, of log page 4");
    assert_eq!(event.invalidate, None);
    p.target.remove_namespace(&subsystem, 5).unwrap();
    assert_eq!(queue.poll_response(Default::default()), None, "told until the log is read");
    let mut changed = |retain| {
        let bytes = p.read(&mut queue, &log_page(lid::CHANGED_NAMESPACES, 0, 4096, retain), 4096);
        let ids = bytes.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap()));
        ids.take_while(|&id| id != 0).collect::<Vec<_>>()
    };
    assert_eq!(changed(true), [1, 5]);
    assert_eq!(changed(false), [1, 5]);
    assert!(changed(false).is_empty());
    assert_eq!(queue.poll_response(Default::default()), None, "what was read is not told");
    p.target.resize_namespace(&subsystem, 1, 8).unwrap();
    assert_eq!(queue.poll_response(Default::default()).map(|r| r.cqe.cid.get()), Some(30));
}

#[test]
fn events_that_nobody_wants_are_not_told() {
    let mut p = Program::new(8);
    let (mut queue, _) = p.admin();
    request_event(&mut p, &mut queue, 1);
    p.target.resize_namespace(&nqn(SUBSYSTEM), 1, 16).unwrap();
    assert_eq!(queue.poll_response(Default::default()), None);
    p.expect(&mut queue, &set_feature(0x0B, 1 << 8), &[], Status::Success);
    assert_eq!(queue.poll_response(Default::default()), None);
    p.target.resize_namespace(&nqn(SUBSYSTEM), 1, 32).unwrap();
    assert!(queue.poll_response(Default::default()).is_some());
}

#[test]
fn event_requests_are_bounded_aborted_and_ended_by_a_reset() {
    let mut p = Program::new(8);
    let (mut queue, _) = p.admin();
    for cid in 0..4 {
        request_event(&mut p, &mut queue, cid);
    }
    let sqe = command(admin_opcode::ASYNC_EVENT_REQUEST, 0);
    p.expect(&mut queue, &sqe, &[], Status::EventLimitExceeded);
    let abort =
        |cid: u32, qid: u32| Sqe { cdw10: U32::new(cid << 16 | qid), ..command(admin_opcode::ABORT, 0) };
    assert_eq!(p.expect(&mut queue, &abort(9, 0), &[], Status::Success), 1, "no such command");
    assert_eq!(p.expect(&mut queue, &abort(2, 1), &[], Status::Success), 1, "another queue's");
    assert_eq!(p.expect(&mut queue, &abort(2, 0), &[], Status::Success), 0);
    assert_eq!(p.expect(&mut queue, &abort(2, 0), &[], Status::Success), 1, "only once");
    let aborted = queue.poll_response(Default::default()).expect("the aborted request ends");
    assert_eq!((aborted.cqe.cid.get(), aborted.cqe.status.get()), (2, Status::AbortRequested.field()));
    assert_eq!(queue.poll_response(Default::default()), None);
    p.expect(&mut queue, &crate::common::property_set(0x14, 0), &[], Status::Success);
    let mut ended: Vec<u16> =
        std::iter::from_fn(|| queue.poll_response(Default::default())).map(|r| r.cqe.cid.get()).collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 3]);
    assert_eq!(queue.commands(), 0);
}

/// The records of the target that has the configuration of the captured one.
pub fn discovery_records() -> Vec<discovery::Record> {
    let mut p = Program::new(0x8000);
    let mut queue = p.discovery(HOST);
    log(&mut p, &mut queue).1
}

fn log(p: &mut Program, queue: &mut Queue) -> (u64, Vec<discovery::Record>) {
    let bytes = p.read(queue, &log_page(lid::DISCOVERY, 0, 1024, true), 1024);
    let header = discovery::Header::read_from_bytes(&bytes).unwrap();
    let len = 1024 * (1 + header.records.get() as usize);
    // In pieces, as hosts do.
    let mut all = Vec::new();
    while all.len() < len {
        let piece = 1536.min(len - all.len());
        all.extend(p.read(queue, &log_page(lid::DISCOVERY, all.len() as u64, piece, true), piece));
    }
    let (first, records) = discovery::Header::ref_from_prefix(&all).unwrap();
    assert_eq!(first.generation, header.generation);
    (header.generation.get(), <[discovery::Record]>::ref_from_bytes(records).unwrap().to_vec())
}

fn shown(records: &[discovery::Record]) -> Vec<String> {
    let text =
        |field: &[u8]| String::from_utf8(field.iter().copied().take_while(|&b| b != 0).collect()).unwrap();
    let show = |r: &discovery::Record| {
        let [nqn, address, service] = [text(&r.subsystem), text(&r.address), text(&r.service)];
        format!("{} {} {address} {service} {nqn}", r.port, r.subtype)
    };
    records.iter().map(show).collect()
}

// N01
#[test]
fn n01_discovery_shows_a_host_what_it_may_use_and_tells_of_changes() {
    let mut p = Program::new(8);
    let mut queue = p.discovery(HOST);
    p.expect(&mut queue, &set_feature(0x0B, 1 << 8), &[], Status::InvalidField);
    p.expect(&mut queue, &set_feature(0x0B, 1 << 31), &[], Status::Success);
    request_event(&mut p, &mut queue, 7);
    let (generation, records) = log(&mut p, &mut queue);
    let first = [format!("1 3 10.99.0.3 4420 {}", Nqn::DISCOVERY), format!("1 2 10.99.0.3 4420 {SUBSYSTEM}")];
    assert_eq!(shown(&records), first);
    assert_eq!(log(&mut p, &mut queue).0, generation, "stable");
    assert_eq!(queue.poll_response(Default::default()), None);

    let private = Subsystem {
        nqn: nqn("nqn.2024-01.test:private"),
        ports: Ports::Listed(vec![2]),
        hosts: Hosts::Listed(vec![nqn("nqn.2024-01.test:friend")]),
        ..crate::common::subsystem(vec![])
    };
    p.target.add_subsystem(private).unwrap();
    p.target.add_port(Port { id: 2, address: "[::]:4421".parse().unwrap() }).unwrap();
    let event = queue.poll_response(Default::default()).expect("an event");
    assert_eq!((event.cqe.cid.get(), event.cqe.result.get()), (7, 0x0070_F002));
    let (later, records) = log(&mut p, &mut queue);
    assert!(later > generation);
    // The second port listens on any address: it is shown as the one that this host has reached.
    let second =
        [format!("2 3 10.99.0.3 4421 {}", Nqn::DISCOVERY), format!("2 2 10.99.0.3 4421 {SUBSYSTEM}")];
    assert_eq!(shown(&records), [first.clone(), second].concat());
    let mut friend = p.discovery("nqn.2024-01.test:friend");
    let (_, records) = log(&mut p, &mut friend);
    assert_eq!(
        shown(&records).last().map(String::as_str),
        Some("2 2 10.99.0.3 4421 nqn.2024-01.test:private")
    );
    p.target.remove_port(2).unwrap();
    assert_eq!(shown(&log(&mut p, &mut queue).1), first);
}

// N03 of blktests' kind: keep alive to a discovery controller, and nothing of an I/O controller there.
#[test]
fn a_discovery_controller_serves_no_more_than_discovery() {
    let mut p = Program::new(8);
    let mut queue = p.discovery(HOST);
    p.expect(&mut queue, &command(admin_opcode::KEEP_ALIVE, 0), &[], Status::Success);
    for lid in [lid::ERROR, lid::SMART, lid::EFFECTS, lid::CHANGED_NAMESPACES] {
        p.expect(&mut queue, &log_page(lid, 0, 512, false), &[], Status::InvalidLogPage);
    }
    p.expect(&mut queue, &set_feature(0x07, 0), &[], Status::InvalidField);
    // It has no I/O queues.
    let cntlid = queue.cntlid().unwrap();
    let mut io = p.connection(1, 32);
    let connect = p.connect_sqe(1, 31, 0);
    for (subsystem, status) in
        [(SUBSYSTEM, Status::ControllerUnknown), (Nqn::DISCOVERY, Status::ConnectInvalid)]
    {
        let data = crate::common::connect_data(cntlid, subsystem);
        p.expect(&mut io, &connect, data.as_bytes(), status);
    }
    drop(queue);
    assert_eq!(p.target.controllers(), (0, 0));
}

#[test]
fn configurations_that_cannot_be_are_refused_and_change_nothing() {
    let bad = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        Target::new(settings).map(drop)
    };
    assert_eq!(bad(|s| s.queue_entries = 1), Err(ConfigError::QueueEntries(1)));
    assert_eq!(bad(|s| s.io_queues = 0), Err(ConfigError::IoQueues(0)));
    assert_eq!(bad(|s| s.in_capsule = 4097), Err(ConfigError::InCapsule(4097)));
    assert_eq!(bad(|s| s.mdts = 12), Err(ConfigError::Mdts(12)));

    let p = Program::new(8);
    let (target, subsystem, none) = (&p.target, nqn(SUBSYSTEM), nqn("nqn.2024-01.test:none"));
    assert_eq!(target.add_namespace(&none, namespace(2, 8)), Err(ConfigError::NoSubsystem(none.clone())));
    assert_eq!(target.add_namespace(&subsystem, namespace(1, 8)), Err(ConfigError::NamespaceExists(1)));
    assert_eq!(target.add_namespace(&subsystem, namespace(1025, 8)), Err(ConfigError::Nsid(1025)));
    let change = |change: fn(&mut nvmf::config::Namespace)| {
        let mut namespace = namespace(2, 8);
        change(&mut namespace);
        target.add_namespace(&subsystem, namespace)
    };
    assert_eq!(change(|n| n.nsid = 0), Err(ConfigError::Nsid(0)));
    assert_eq!(change(|n| n.block_shift = 8), Err(ConfigError::BlockShift { nsid: 2, block_shift: 8 }));
    assert_eq!(change(|n| n.blocks = 0), Err(ConfigError::Blocks { nsid: 2, blocks: 0 }));
    let blocks = (i64::MAX as u64 >> 9) + 1;
    assert_eq!(target.resize_namespace(&subsystem, 1, blocks), Err(ConfigError::Blocks { nsid: 1, blocks }));
    assert_eq!(change(|n| n.uuid = [0; 16]), Err(ConfigError::NoIdentity(2)));
    assert_eq!(change(|n| n.nguid = namespace(1, 8).nguid), Err(ConfigError::SameIdentity(2)));
    let other = Subsystem { nqn: none.clone(), ..crate::common::subsystem(vec![namespace(1, 8)]) };
    assert_eq!(target.add_subsystem(other), Err(ConfigError::SameIdentity(1)));
    let named = |name: &str| Subsystem { nqn: nqn(name), ..crate::common::subsystem(vec![]) };
    assert_eq!(target.add_subsystem(named(Nqn::DISCOVERY)), Err(ConfigError::DiscoveryName));
    assert_eq!(target.add_subsystem(named(SUBSYSTEM)), Err(ConfigError::SubsystemExists(subsystem.clone())));
    let serial = Subsystem { serial: "\n".try_into().unwrap(), ..named("nqn.2024-01.test:s") };
    assert!(matches!(target.add_subsystem(serial), Err(ConfigError::Serial(_))));
    assert_eq!(target.remove_namespace(&subsystem, 2), Err(ConfigError::NoNamespace(2)));
    assert_eq!(target.remove_subsystem(&none), Err(ConfigError::NoSubsystem(none)));
    let port = Port { id: 1, address: "10.0.0.1:1".parse().unwrap() };
    assert_eq!(target.add_port(port), Err(ConfigError::PortExists(1)));
    assert_eq!(target.remove_port(2), Err(ConfigError::NoPort(2)));
    assert_eq!(discovery_records().len(), 2);
}

#[test]
fn a_queue_says_whose_it_is() {
    let mut p = Program::new(8);
    let (mut admin, cntlid) = p.admin();
    let io = p.io(cntlid, 4);
    assert_eq!((io.qid(), io.cntlid(), io.host()), (4, Some(cntlid), Some(nqn(HOST))));
    assert_eq!(admin.poll_end(), None);
    assert_eq!(End::TooManyCommands.to_string(), "the host sent more commands than its queue has entries");
}

#[test]
fn a_log_page_of_one_namespace_and_a_large_discovery_log_are_refused() {
    let mut p = Program::new(8);
    let (mut queue, _) = p.admin();
    let sqe = Sqe { nsid: U32::new(1), ..log_page(lid::SMART, 0, 512, false) };
    p.expect(&mut queue, &sqe, &[], Status::InvalidField);
    let mut discovery = p.discovery(HOST);
    let page = controller_page(&mut p, &mut discovery);
    assert_eq!((page.mdts, page.cntrltype), (5, 2));
    p.read(&mut discovery, &log_page(lid::DISCOVERY, 0, 128 << 10, true), 128 << 10);
    let more = log_page(lid::DISCOVERY, 0, (128 << 10) + 4, true);
    p.expect(&mut discovery, &more, &[], Status::InvalidField);
}

#[test]
fn a_namespace_that_came_back_as_it_was_is_no_change() {
    let mut p = Program::new(8);
    let (mut queue, _) = p.admin();
    p.expect(&mut queue, &set_feature(0x0B, 1 << 8), &[], Status::Success);
    request_event(&mut p, &mut queue, 1);
    p.target.resize_namespace(&nqn(SUBSYSTEM), 1, 16).unwrap();
    p.target.resize_namespace(&nqn(SUBSYSTEM), 1, 8).unwrap();
    assert_eq!(queue.poll_response(Default::default()), None);
}

#[test]
fn targets_and_queues_may_be_on_any_thread() {
    fn shared<T: Send + Sync>() {}
    fn moved<T: Send>() {}
    shared::<Target>();
    moved::<Queue>();
}

// Goal: what gives nothing back is not announced, and a host that asks all the same is not told that it was done.
#[test]
fn a_namespace_that_gives_nothing_back_says_so() {
    let mut keeps = namespace(1, 64);
    keeps.deallocates = None;
    let mut p = Program::new(64);
    p.target = crate::common::target(vec![keeps]);
    let (mut admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    let page = controller_page(&mut p, &mut admin);
    assert_eq!(page.oncs.get(), 0x89, "Compare, Write Zeroes, Verify");
    let trim = |nsid: u32| Sqe {
        nsid: U32::new(nsid),
        cdw11: U32::new(nvmf::wire::io::DSM_DEALLOCATE),
        sgl: Sgl::keyed(MEMORY, 16, KEY, true),
        ..blocks(io_opcode::DATASET_MANAGEMENT, 0, 1)
    };
    let range = nvmf::wire::io::DsmRange { attributes: 0.into(), blocks: 8.into(), slba: 0.into() };
    p.expect(&mut io, &trim(1), range.as_bytes(), Status::InvalidField);
    // One that gives back 64 KiB at a time comes.
    let mut gives = namespace(2, 1024);
    gives.deallocates = Some(64 << 10);
    p.target.add_namespace(&nqn(SUBSYSTEM), gives).unwrap();
    assert_eq!(controller_page(&mut p, &mut admin).oncs.get(), 0x8D);
    let bytes = p.read(&mut admin, &identify(cns::NAMESPACE, 2), identify::LEN);
    let page = identify::Namespace::ref_from_bytes(&bytes).unwrap();
    assert_eq!((page.nsfeat, page.dlfeat), (1 << 4, 9));
    assert_eq!((page.npdg.get(), page.npda.get(), page.npwg.get(), page.nows.get()), (127, 127, 7, 7));
    p.expect(&mut io, &trim(1), range.as_bytes(), Status::InvalidField);
    p.disk.bytes.resize(1024 * 512, 0);
    p.expect(&mut io, &trim(2), range.as_bytes(), Status::Success);
}
