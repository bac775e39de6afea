//! I/O commands: what they ask of the backend, and which are refused.

use nvmf::status::Status;
use nvmf::wire::io::DsmRange;
use nvmf::wire::{Sgl, Sqe, io_opcode};
use nvmf::{BackendError, Op, Step};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::common::{KEY, MEMORY, Program, blocks, command, namespace, nqn};

const FUA: u32 = 1 << 30;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

// N07
#[test]
fn n07_a_read_goes_to_the_hosts_memory_and_its_key_is_invalidated() {
    let mut p = Program::new(64);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    p.disk.bytes = pattern(64 * 512, 1);
    let should = p.disk.bytes[3 * 512..11 * 512].to_vec();
    let response = p.send(&mut io, &blocks(io_opcode::READ, 3, 8), &[]);
    assert_eq!((response.cqe.status.get(), response.invalidate), (0, Some(KEY)));
    assert_eq!(response.cqe.as_bytes().len(), 16);
    assert_eq!(p.memory[..4096], should);
    assert_eq!(p.trace, ["read 4096 fua false"]);
    // Without the request there is no invalidation, whatever the status.
    let mut sqe = blocks(io_opcode::READ, 3, 8);
    sqe.sgl = Sgl::keyed(MEMORY, 4096, KEY, false);
    assert_eq!(p.send(&mut io, &sqe, &[]).invalidate, None);
    let sqe = blocks(io_opcode::READ, 63, 8);
    let response = p.send(&mut io, &sqe, &[]);
    assert_eq!((response.cqe.status.get(), response.invalidate), (Status::LbaOutOfRange.field(), Some(KEY)));
}

// N08
#[test]
fn n08_a_write_comes_from_the_capsule_or_the_hosts_memory() {
    let mut p = Program::new(64);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    let data = pattern(4096, 2);
    p.expect(&mut io, &blocks(io_opcode::WRITE, 8, 8), &data, Status::Success);
    assert_eq!(p.disk.bytes[8 * 512..16 * 512], data);
    assert_eq!(p.trace, ["write 4096 remote fua false"]);

    let sqe = Sqe { sgl: Sgl::in_capsule(0, 4096), ..blocks(io_opcode::WRITE, 24, 8) };
    let data = pattern(4096, 3);
    let response = p.capsule(&mut io, &[sqe.as_bytes(), &data].concat()).unwrap().unwrap();
    assert_eq!((response.cqe.status.get(), response.invalidate), (0, None));
    assert_eq!(p.disk.bytes[24 * 512..32 * 512], data);
    assert_eq!(p.trace, ["write 4096 capsule fua false"]);
    // From somewhere in the capsule.
    let sqe = Sqe { sgl: Sgl::in_capsule(1536, 512), ..blocks(io_opcode::WRITE, 40, 1) };
    let response = p.capsule(&mut io, &[sqe.as_bytes(), &data].concat()).unwrap().unwrap();
    assert_eq!(response.cqe.status.get(), 0);
    assert_eq!(p.disk.bytes[40 * 512..41 * 512], data[1536..2048]);

    let fua = Sqe { cdw12: U32::new(FUA), ..blocks(io_opcode::WRITE, 0, 1) };
    p.expect(&mut io, &fua, &data[..512], Status::Success);
    assert_eq!(p.trace, ["write 512 remote fua true"]);
    p.expect(&mut io, &command(io_opcode::FLUSH, 1), &[], Status::Success);
    assert_eq!(p.disk.flushes, 1);
}

// N09
#[test]
fn n09_descriptors_that_do_not_fit_are_refused_and_the_connection_stays() {
    let mut p = Program::new(0x8000);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    let unknown: Sgl = zerocopy::transmute!([0u8; 16]);
    for opcode in [io_opcode::READ, io_opcode::WRITE, io_opcode::COMPARE] {
        let with = |sgl: Sgl| Sqe { sgl, ..blocks(opcode, 0, 8) };
        p.expect(&mut io, &with(unknown), &[], Status::SglTypeInvalid);
        for len in [0, 1, 512, 4095, 4097, 8192, 0xFF_FFFF] {
            let sqe = with(Sgl::keyed(MEMORY, len, KEY, true));
            p.expect(&mut io, &sqe, &[], Status::SglLengthInvalid);
        }
        p.expect(&mut io, &with(Sgl::keyed(u64::MAX - 4094, 4096, KEY, true)), &[], Status::SglLengthInvalid);
        // In the capsule, which has nothing behind the command.
        let status = if opcode == io_opcode::READ { Status::InvalidField } else { Status::SglOffsetInvalid };
        for offset in [0, 1, u64::MAX, u64::MAX - 4095] {
            p.expect(&mut io, &with(Sgl::in_capsule(offset, 4096)), &[], status);
        }
        let status = if opcode == io_opcode::READ { Status::InvalidField } else { Status::SglLengthInvalid };
        p.expect(&mut io, &with(Sgl::in_capsule(0, u32::MAX)), &[], status);
    }
    // More in the capsule than announced.
    let sqe = Sqe { sgl: Sgl::in_capsule(0, 4608), ..blocks(io_opcode::WRITE, 0, 9) };
    let response = p.capsule(&mut io, &[sqe.as_bytes(), &[0; 4608]].concat()).unwrap().unwrap();
    assert_eq!(response.cqe.status.get(), Status::SglOffsetInvalid.field());
    p.expect(&mut io, &blocks(io_opcode::READ, 0, 8), &[], Status::Success);
    assert_eq!(io.poll_end(), None);
}

// N20
#[test]
fn n20_commands_that_cannot_be_served_are_refused_for_good() {
    let mut p = Program::new(4096);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    for status in
        [Status::InvalidOpcode, Status::InvalidNamespace, Status::LbaOutOfRange, Status::InvalidField]
    {
        assert!(status.do_not_retry());
    }
    for opcode in [0x04, 0x0D, 0x19, 0x80, 0xFF] {
        p.expect(&mut io, &command(opcode, 1), &[], Status::InvalidOpcode);
    }
    for opcode in [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0C] {
        for nsid in [0, 2, 1024, 1025, 0xFFFF_FFFF] {
            p.expect(&mut io, &command(opcode, nsid), &[], Status::InvalidNamespace);
        }
    }
    for opcode in [0x01, 0x02, 0x05, 0x08, 0x0C] {
        p.expect(&mut io, &blocks(opcode, 4095, 1), &[0; 512], Status::Success);
        for (slba, count) in
            [(4096, 1), (4095, 2), (u64::MAX, 1), (u64::MAX, 2), (u64::MAX >> 9, 2048), (1 << 55, 1)]
        {
            p.expect(&mut io, &blocks(opcode, slba, count), &[], Status::LbaOutOfRange);
        }
    }
    // The largest transfer is 1 MiB; commands without data are not bounded by it.
    let most = blocks(io_opcode::READ, 0, 2048);
    p.expect(&mut io, &most, &[], Status::Success);
    for opcode in [io_opcode::READ, io_opcode::WRITE, io_opcode::COMPARE] {
        p.expect(&mut io, &blocks(opcode, 0, 2049), &[], Status::InvalidField);
    }
    for opcode in [io_opcode::WRITE_ZEROES, io_opcode::VERIFY] {
        p.expect(&mut io, &blocks(opcode, 0, 4096), &[], Status::Success);
    }
    // Directives.
    let sqe = Sqe { cdw12: U32::new(1 << 20), ..blocks(io_opcode::WRITE, 0, 1) };
    p.expect(&mut io, &sqe, &[], Status::InvalidField);
}

fn dsm(ranges: &[(u64, u32)], described: u32) -> (Sqe, Vec<u8>) {
    let ranges: Vec<DsmRange> = ranges
        .iter()
        .map(|&(slba, blocks)| DsmRange {
            slba: U64::new(slba),
            blocks: U32::new(blocks),
            ..DsmRange::new_zeroed()
        })
        .collect();
    let sqe = Sqe {
        sgl: Sgl::keyed(MEMORY, described, KEY, true),
        cdw10: U32::new(ranges.len() as u32 - 1),
        cdw11: U32::new(4),
        ..command(io_opcode::DATASET_MANAGEMENT, 1)
    };
    (sqe, ranges.as_bytes().to_vec())
}

#[test]
fn deallocate_takes_all_ranges_or_none() {
    let mut p = Program::new(64);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    p.disk.bytes.fill(0xff);
    // Linux describes a page, whatever the number of ranges.
    let (sqe, data) = dsm(&[(1, 2), (9, 0), (60, 4)], 4096);
    p.expect(&mut io, &sqe, &data, Status::Success);
    assert_eq!(p.trace, ["fetch 48"]);
    let zero = |block: usize| (1..3).contains(&block) || (60..64).contains(&block);
    for block in 0..64 {
        assert_eq!(p.disk.bytes[block * 512] == 0, zero(block), "{block}");
    }
    let before = p.disk.bytes.clone();
    for bad in [(60, 5), (64, 1), (65, 0), (u64::MAX, 1), (u64::MAX, u32::MAX)] {
        let (sqe, data) = dsm(&[(4, 4), bad], 32);
        p.expect(&mut io, &sqe, &data, Status::LbaOutOfRange);
    }
    let (sqe, data) = dsm(&[(4, 4), (8, 4)], 31);
    p.expect(&mut io, &sqe, &data, Status::SglLengthInvalid);
    // A hint alone changes nothing.
    let sqe = Sqe { cdw11: U32::new(1), ..dsm(&[(4, 4)], 16).0 };
    p.expect(&mut io, &sqe, &[], Status::Success);
    assert_eq!(p.disk.bytes, before);
    // 256 ranges, in the capsule.
    let (sqe, data) = dsm(&[(5, 1); 256], 0);
    let sqe = Sqe { sgl: Sgl::in_capsule(0, 4096), ..sqe };
    let response = p.capsule(&mut io, &[sqe.as_bytes(), &data].concat()).unwrap().unwrap();
    assert_eq!((response.cqe.status.get(), p.disk.bytes[5 * 512]), (0, 0));
}

#[test]
fn a_namespace_that_goes_while_ranges_are_fetched_is_not_touched() {
    let mut p = Program::new(64);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    let (sqe, data) = dsm(&[(60, 4)], 16);
    let Ok(Step::Fetch(first, _)) = io.handle_capsule(p.now, sqe.as_bytes(), 64) else {
        panic!("it is fetched")
    };
    let Ok(Step::Fetch(second, _)) = io.handle_capsule(p.now, sqe.as_bytes(), 64) else {
        panic!("it is fetched")
    };
    let Ok(Step::Fetch(third, _)) = io.handle_capsule(p.now, sqe.as_bytes(), 64) else {
        panic!("it is fetched")
    };
    let subsystem = nqn(crate::common::SUBSYSTEM);
    p.target.resize_namespace(&subsystem, 1, 32).unwrap();
    let status = |step| match step {
        Ok(Step::Respond(response)) => response.cqe.status.get(),
        other => panic!("{other:?}"),
    };
    assert_eq!(status(io.handle_data(p.now, first, &data)), Status::LbaOutOfRange.field());
    p.target.remove_namespace(&subsystem, 1).unwrap();
    assert_eq!(status(io.handle_data(p.now, second, &data)), Status::InvalidNamespace.field());
    // Another one of that identifier, which may not be written.
    let read_only = nvmf::config::Namespace { read_only: true, ..namespace(1, 64) };
    p.target.add_namespace(&subsystem, read_only).unwrap();
    assert_eq!(status(io.handle_data(p.now, third, &data)), Status::WriteProtected.field());
}

#[test]
fn compare_and_verify_say_what_they_find() {
    let mut p = Program::new(64);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    p.disk.bytes = pattern(64 * 512, 9);
    let mut data = p.disk.bytes[512..1024].to_vec();
    p.expect(&mut io, &blocks(io_opcode::COMPARE, 1, 1), &data, Status::Success);
    data[511] ^= 1;
    p.expect(&mut io, &blocks(io_opcode::COMPARE, 1, 1), &data, Status::CompareFailure);
    p.expect(&mut io, &blocks(io_opcode::VERIFY, 0, 64), &[], Status::Success);
}

#[test]
fn what_the_backend_says_becomes_the_status() {
    let mut p = Program::new(64);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    let mut ask = |opcode, error| {
        p.disk.fails = Some(error);
        let sqe = blocks(opcode, 0, 1);
        let response = p.send(&mut io, &sqe, &[]);
        *Status::ALL.iter().find(|s| s.field() == response.cqe.status.get()).expect("a known status")
    };
    let writes = [io_opcode::WRITE, io_opcode::WRITE_ZEROES, io_opcode::FLUSH];
    for opcode in [io_opcode::READ, io_opcode::COMPARE, io_opcode::VERIFY].into_iter().chain(writes) {
        let media = if writes.contains(&opcode) { Status::WriteFault } else { Status::UnrecoveredReadError };
        for (error, status) in [
            (BackendError::Io, media),
            (BackendError::Lost, media),
            (BackendError::NoSpace, Status::CapacityExceeded),
            (BackendError::ReadOnly, Status::WriteProtected),
            (BackendError::OutOfRange, Status::LbaOutOfRange),
            (BackendError::NotReady, Status::NamespaceNotReady),
            (BackendError::Internal, Status::InternalError),
        ] {
            assert_eq!(ask(opcode, error), status, "{opcode:#x} {error}");
        }
    }
    // The host is told to retry after a failure that may pass, and not after one that will not.
    assert!(!Status::NamespaceNotReady.do_not_retry() && !Status::InternalError.do_not_retry());
    assert!(Status::CapacityExceeded.do_not_retry() && Status::WriteFault.do_not_retry());
}

#[test]
fn a_read_only_namespace_is_not_written() {
    let mut p = Program::new(64);
    let mut second = namespace(2, 64);
    second.read_only = true;
    p.target.add_namespace(&nqn(crate::common::SUBSYSTEM), second).unwrap();
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    let on_second = |sqe: Sqe| Sqe { nsid: U32::new(2), ..sqe };
    for opcode in [io_opcode::WRITE, io_opcode::WRITE_ZEROES] {
        p.expect(&mut io, &on_second(blocks(opcode, 0, 1)), &[], Status::WriteProtected);
    }
    p.expect(&mut io, &on_second(dsm(&[(0, 1)], 16).0), &[], Status::WriteProtected);
    p.expect(&mut io, &on_second(blocks(io_opcode::READ, 0, 1)), &[], Status::Success);
    p.expect(&mut io, &on_second(command(io_opcode::FLUSH, 2)), &[], Status::Success);
}

#[test]
fn write_zeroes_says_whether_storage_may_go() {
    let mut p = Program::new(64);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    for (bits, fua, deallocate) in [(0, false, false), (1 << 25, false, true), (FUA, true, false)] {
        let sqe = Sqe { cdw12: U32::new(bits | 7), ..blocks(io_opcode::WRITE_ZEROES, 2, 8) };
        match io.handle_capsule(p.now, sqe.as_bytes(), 64) {
            Ok(Step::Run(ticket, request)) => {
                let Op::WriteZeroes { offset, len, fua: f, deallocate: d } = request.op else {
                    panic!("{request:?}")
                };
                assert_eq!((offset, len, f, d), (1024, 4096, fua, deallocate));
                let _response = io.handle_done(ticket, Ok(())).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_command_without_memory_for_its_data_fails_and_may_be_tried_again() {
    let mut p = Program::new(64);
    let (_admin, cntlid) = p.admin();
    let mut io = p.io(cntlid, 1);
    let (sqe, _) = dsm(&[(0, 1)], 16);
    let Ok(Step::Fetch(ticket, _)) = io.handle_capsule(p.now, sqe.as_bytes(), 64) else {
        panic!("it is fetched")
    };
    let response = io.handle_done(ticket, Err(BackendError::Internal)).unwrap();
    assert_eq!(response.cqe.status.get(), Status::InternalError.field());
    assert_eq!(io.commands(), 0);
}
