//! Registration beyond `reg_mr`: by work requests, reregistration, and access flags that are only hints.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{self, Pair, Stop, all_rights, assert_no_completion, embedded};
use verbs::errno::{EINVAL, EOPNOTSUPP};
use verbs::{
    Access, Context, DeviceCapFlags, DeviceConfig, Drive, Mr, QpState, RecvWr, Rereg, SendWr, VerbsError,
    WcOpcode, WcStatus,
};

fn write(p: &Pair, addr: u64, key: u32) -> WcStatus {
    p.a.post_send(&[SendWr::write(99, &[], addr, key).inline(b"new data").signaled()]).unwrap();
    p.done_a(1)[0].status
}

fn register(p: &Pair, mr: &Mr, access: Access) {
    p.b.post_send(&[SendWr::reg_mr(1, mr, 0..mr.len(), access).unwrap().signaled()]).unwrap();
    assert_eq!(p.done_b(1)[0].status, WcStatus::Success);
}

#[track_caller]
fn refused<T: core::fmt::Debug>(result: Result<T, VerbsError>, errno: i32, word: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.errno(), errno, "{error}");
    assert!(error.to_string().contains(word), "{error}");
}

#[test]
fn r60_fast_registration() {
    // Cases in which the key was invalidated, or the memory never registered.
    for case in 0..4 {
        let p = Pair::new(embedded());
        let mr = p.pd.alloc_mr(4096).unwrap();
        let key = mr.update_fast_reg_key(0x5a).unwrap();
        assert_eq!((key & 0xff, mr.rkey(), mr.lkey()), (0x5a, key, key));
        let wr = SendWr::reg_mr(7, &mr, 64..128, all_rights()).unwrap().signaled();
        p.b.post_send(&[wr]).unwrap();
        let wc = p.done_b(1)[0];
        assert_eq!(
            (wc.opcode, wc.wr_id, wc.status, wc.qp_num),
            (WcOpcode::RegMr, 7, WcStatus::Success, p.b.qp_num())
        );
        let addr = mr.addr() + 64;
        assert_eq!(write(&p, addr, key), WcStatus::Success);
        assert_eq!(mr.to_vec(64..72).unwrap(), b"new data");
        let (at, with) = match case {
            0 => {
                p.b.post_send(&[SendWr::local_inv(8, key).signaled()]).unwrap();
                let wc = p.done_b(1)[0];
                assert_eq!((wc.opcode, wc.wr_id, wc.status), (WcOpcode::LocalInv, 8, WcStatus::Success));
                (addr, key)
            }
            1 => {
                // Registered again under the next key: the old one stays invalid.
                let next = mr.update_fast_reg_key(0x5b).unwrap();
                let again = SendWr::reg_mr(9, &mr, 0..4096, all_rights()).unwrap();
                p.b.post_send(&[SendWr::local_inv(8, key), again.signaled()]).unwrap();
                assert!(p.done_b(1)[0].is_ok());
                assert_eq!(write(&p, mr.addr(), next), WcStatus::Success);
                (addr, key)
            }
            2 => (addr + 57, key),
            _ => {
                p.b.post_recv(&[RecvWr::new(3, &[])]).unwrap();
                p.a.post_send(&[SendWr::send_with_inv(4, &[], key)]).unwrap();
                assert_eq!(p.done_b(1)[0].invalidated_rkey(), Some(key));
                (addr, key)
            }
        };
        assert_eq!(write(&p, at, with), WcStatus::RemAccessErr, "case {case}");
    }
}

// A registered range serves local requests, too.
#[test]
fn fast_registration_for_local_use() {
    let p = Pair::new(embedded());
    let mr = p.pd.alloc_mr(64).unwrap();
    mr.write(0, b"gathered").unwrap();
    p.a.post_send(&[
        SendWr::reg_mr(1, &mr, 0..64, Access::LOCAL_WRITE).unwrap(),
        SendWr::write(2, &[mr.sge(0..8).unwrap()], p.mr.addr(), p.mr.rkey()).signaled(),
        SendWr::read(3, &[mr.sge(8..16).unwrap()], p.mr.addr(), p.mr.rkey()).signaled(),
    ])
    .unwrap();
    assert!(p.done_a(2).iter().all(|wc| wc.is_ok()));
    assert_eq!(mr.to_vec(0..16).unwrap(), b"gatheredgathered");
}

#[test]
fn local_operations_with_bad_keys_end_the_queue_pair() {
    for case in 0..3 {
        let p = Pair::new(embedded());
        let mr = p.pd.alloc_mr(64).unwrap();
        register(&p, &mr, Access::empty());
        let wr = match case {
            0 => SendWr::local_inv(5, p.mr.rkey()), // an ordinary region
            1 => SendWr::local_inv(5, mr.rkey() ^ 1),
            _ => SendWr::reg_mr(5, &mr, 0..64, Access::empty()).unwrap(), // already registered
        };
        p.b.post_send(&[wr, SendWr::local_inv(6, mr.rkey())]).unwrap();
        let done = p.done_b(2);
        assert_eq!((done[0].wr_id, done[0].status), (5, WcStatus::LocQpOpErr), "case {case}");
        assert_eq!((done[1].wr_id, done[1].status), (6, WcStatus::WrFlushErr));
        assert_eq!(p.b.state().unwrap(), QpState::Err);
    }
}

#[test]
fn registrations_that_are_refused_at_once() {
    let p = Pair::new(embedded());
    let mr = p.pd.alloc_mr(64).unwrap();
    refused(SendWr::reg_mr(1, &p.mr, 0..64, Access::empty()), EINVAL, "fast registration");
    refused(SendWr::reg_mr(1, &mr, 0..65, Access::empty()), EINVAL, "not inside");
    #[allow(clippy::reversed_empty_ranges, reason = "what the call is to refuse")]
    let backwards = 8..4;
    refused(SendWr::reg_mr(1, &mr, backwards, Access::empty()), EINVAL, "not inside");
    refused(SendWr::reg_mr(1, &mr, 0..64, Access::REMOTE_WRITE), EINVAL, "local write");
    refused(SendWr::reg_mr(1, &mr, 0..64, Access::UNSUPPORTED), EOPNOTSUPP, "FLUSH_PERSISTENT");
    refused(p.mr.update_fast_reg_key(1), EINVAL, "fast registration");
    let mut mr = mr;
    refused(mr.rereg(&Rereg::default()), EINVAL, "ordinary memory region");
    assert_no_completion(&p.context, &p.cq_b);
}

#[test]
fn rereg_mr_changes_what_is_given() {
    let mut p = Pair::new(embedded());
    let mut mr = p.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    let key = mr.rkey();
    mr.write(0, b"kept").unwrap();
    mr.rereg(&Rereg { access: Some(all_rights()), ..Rereg::default() }).unwrap();
    assert_eq!((mr.rkey(), mr.access(), mr.len()), (key, all_rights(), 64));
    assert_eq!(mr.to_vec(0..4).unwrap(), b"kept");
    assert_eq!(write(&p, mr.addr(), key), WcStatus::Success);
    // Other memory under the same key.
    mr.rereg(&Rereg { len: Some(8192), ..Rereg::default() }).unwrap();
    assert_eq!((mr.rkey(), mr.len(), mr.to_vec(0..8).unwrap()), (key, 8192, vec![0; 8]));
    assert_eq!(write(&p, mr.addr() + 8184, key), WcStatus::Success);
    // A refused call changes nothing.
    let other = Context::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
    let foreign = other.alloc_pd().unwrap();
    let change = Rereg::default();
    refused(mr.rereg(&Rereg { pd: Some(&foreign), ..change }), EINVAL, "another device");
    refused(mr.rereg(&Rereg { access: Some(Access::REMOTE_WRITE), ..change }), EINVAL, "local write");
    refused(
        mr.rereg(&Rereg { access: Some(Access::FLUSH_PERSISTENT), ..change }),
        EOPNOTSUPP,
        "FLUSH_PERSISTENT",
    );
    let too_long = Rereg { len: Some(usize::MAX / 2), ..change };
    refused(mr.rereg(&too_long), verbs::errno::ENOMEM, "no memory");
    assert_eq!((mr.len(), mr.access()), (8192, all_rights()));
    assert_eq!(write(&p, mr.addr(), key), WcStatus::Success);
    // The region moves to another domain: queue pairs of the first can no longer use it, and the first can be freed.
    let pd = p.context.alloc_pd().unwrap();
    mr.rereg(&Rereg { pd: Some(&pd), ..change }).unwrap();
    assert_eq!(write(&p, mr.addr(), key), WcStatus::RemAccessErr);
    let (error, back) = pd.dealloc().unwrap_err();
    assert_eq!(error.errno(), verbs::errno::EBUSY);
    p.pd = back;
}

// Goal: a region's memory is changed by one thread while another drives the shard of its queue pair, between requests. Each request uses
// the memory that is registered at that time.
#[test]
fn rereg_mr_while_shards_turn() {
    let context = Context::open(DeviceConfig::loopback().drive(Drive::Dedicated { cores: vec![] })).unwrap();
    let p = Pair::new(context);
    let write = |addr, key| {
        p.a.post_send(&[SendWr::write(1, &[], addr, key).inline(b"new data").signaled()]).unwrap();
        let (start, mut wc) = (std::time::Instant::now(), [verbs::Wc::default()]);
        while p.cq_a.poll(&mut wc).unwrap() == 0 {
            assert!(start.elapsed() < common::PATIENCE);
            std::thread::yield_now();
        }
        wc[0].status
    };
    let target = std::sync::Mutex::new(p.pd.reg_mr(4096, all_rights()).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stop = Stop(&stop);
            for round in 0..50 {
                let change =
                    Rereg { len: Some(if round % 2 == 0 { 8192 } else { 4096 }), ..Rereg::default() };
                target.lock().unwrap().rereg(&change).unwrap();
                std::thread::yield_now();
            }
        });
        let mut wrote = 0;
        while !stop.load(Ordering::Acquire) || wrote == 0 {
            let mr = target.lock().unwrap();
            assert_eq!(write(mr.addr(), mr.rkey()), WcStatus::Success);
            assert_eq!(mr.to_vec(0..8).unwrap(), b"new data");
            wrote += 1;
        }
    });
}

#[test]
fn r57_zero_based_region() {
    let p = Pair::new(embedded());
    let mr = p.pd.reg_mr(64, all_rights() | Access::ZERO_BASED).unwrap();
    assert_eq!(write(&p, 0, mr.rkey()), WcStatus::Success);
    assert_eq!(mr.to_vec(0..8).unwrap(), b"new data");
    p.a.post_send(&[SendWr::write(1, &[], 64, mr.rkey()).inline(b"x").signaled()]).unwrap();
    assert_eq!(p.done_a(1)[0].status, WcStatus::RemAccessErr);
}

#[test]
fn hints_are_taken_and_features_are_announced() {
    let p = Pair::new(embedded());
    let hints = Access::RELAXED_ORDERING | Access::HUGETLB;
    let mr = p.pd.reg_mr(64, all_rights() | hints).unwrap();
    assert!(mr.access().contains(hints));
    assert_eq!(write(&p, mr.addr(), mr.rkey()), WcStatus::Success);
    let attr = p.context.query_device();
    let caps = attr.device_cap_flags;
    assert!(caps.contains(DeviceCapFlags::MEM_WINDOW | DeviceCapFlags::MEM_WINDOW_TYPE_2B));
    assert!(caps.contains(
        DeviceCapFlags::MEM_MGT_EXTENSIONS | DeviceCapFlags::ATOMIC_WRITE | DeviceCapFlags::FLUSH_GLOBAL
    ));
    assert!(!caps.contains(DeviceCapFlags::FLUSH_PERSISTENT));
    assert_eq!(attr.max_mw, attr.max_mr);
}

// Requests on either side name the bytes by the chosen address (iova) and by no other; so do windows.
#[test]
fn requests_name_a_region_by_its_iova() {
    let p = Pair::new(embedded());
    for iova in [0, 0x7000_0000_0000, u64::MAX - 4096] {
        let mr = p.pd.reg_mr_iova(4096, iova, all_rights() | Access::MW_BIND).unwrap();
        assert_eq!((mr.iova(), mr.sge(8..16).unwrap().addr), (iova, iova + 8));
        assert_eq!(write(&p, iova + 64, mr.rkey()), WcStatus::Success);
        assert_eq!(mr.to_vec(63..73).unwrap(), b"\0new data\0");
        p.a.post_send(&[SendWr::read(1, &[mr.sge(0..8).unwrap()], iova + 64, mr.rkey()).signaled()]).unwrap();
        assert_eq!(p.done_a(1)[0].status, WcStatus::Success);
        assert_eq!(mr.to_vec(0..8).unwrap(), b"new data");
    }
    let mut mr = p.pd.reg_mr_iova(4096, 1 << 40, all_rights()).unwrap();
    // A change of rights keeps the address; new memory has its own.
    mr.rereg(&Rereg { access: Some(all_rights() | Access::MW_BIND), ..Rereg::default() }).unwrap();
    assert_eq!(mr.iova(), 1 << 40);
    let info = verbs::MwBindInfo::new(&mr, 1024..2048, Access::REMOTE_WRITE).unwrap();
    assert_eq!(info.addr, (1 << 40) + 1024);
    mr.rereg(&Rereg { len: Some(64), ..Rereg::default() }).unwrap();
    assert_eq!(mr.iova(), mr.addr());
    let mr = p.pd.reg_mr_iova(64, 1 << 40, all_rights()).unwrap();
    assert_eq!(write(&p, mr.addr(), mr.rkey()), WcStatus::RemAccessErr);
}

#[test]
fn a_zero_based_region_counts_from_0() {
    let p = Pair::new(embedded());
    let mr = p.pd.reg_mr(64, all_rights() | Access::ZERO_BASED).unwrap();
    assert_eq!((mr.iova(), mr.sge(3..5).unwrap().addr), (0, 3));
    let same = p.pd.reg_mr_iova(64, 0, all_rights() | Access::ZERO_BASED).unwrap();
    assert_eq!(write(&p, 8, same.rkey()), WcStatus::Success);
    assert_eq!(same.to_vec(8..16).unwrap(), b"new data");
}

/// A new, empty file.
fn file(name: &str) -> File {
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[test]
fn a_region_is_filled_from_a_file_and_written_to_one() {
    let p = Pair::new(embedded());
    let mut disk = file("region");
    disk.write_all(b"0123456789").unwrap();
    let mr = p.pd.reg_mr(64, all_rights()).unwrap();
    assert_eq!(mr.pread(&disk, 2, 10..14).unwrap(), 4);
    assert_eq!(mr.to_vec(9..15).unwrap(), b"\x002345\0");
    assert_eq!(mr.pread(&disk, 8, 20..40).unwrap(), 2, "the file ends");
    assert_eq!(mr.pread(&disk, 10, 0..64).unwrap(), 0);
    // What a peer writes reaches the file.
    p.a.post_send(&[SendWr::write(1, &[], mr.iova(), mr.rkey()).inline(b"by a peer").signaled()]).unwrap();
    assert_eq!(p.done_a(1)[0].status, WcStatus::Success);
    assert_eq!(mr.pwrite(&disk, 10, 0..9).unwrap(), 9);
    let mut text = String::new();
    std::io::Seek::rewind(&mut disk).unwrap();
    disk.read_to_string(&mut text).unwrap();
    assert_eq!(text, "0123456789by a peer");
}

// Threads fill a region from a file, write it to a file, and hold pins, while the program tries to end the region: it ends when the last
// pin is dropped, and not before.
#[test]
fn a_region_ends_after_its_pins() {
    const ROUNDS: usize = 200;
    let p = Pair::new(embedded());
    let disk = file("pins");
    (&disk).write_all(&[7; 4096]).unwrap();
    let mr = p.pd.reg_mr(8192, all_rights()).unwrap();
    std::thread::scope(|s| {
        for half in [0..4096, 4096..8192] {
            let (mr, disk) = (&mr, &disk);
            s.spawn(move || {
                for _ in 0..ROUNDS {
                    assert_eq!(mr.pread(disk, 0, half.clone()).unwrap(), 4096);
                    assert_eq!(mr.pwrite(disk, 0, half.clone()).unwrap(), 4096);
                }
            });
        }
    });
    assert_eq!(mr.to_vec(0..8192).unwrap(), [7; 8192]);
    let pins: Vec<_> = (0..4).map(|i| mr.pin(i * 8..i * 8 + 8).unwrap()).collect();
    assert!(pins.iter().all(|pin| pin.len() == 8 && pin.as_ptr() as u64 >= mr.addr()));
    std::thread::scope(|s| {
        let (mut mr, live) = (mr, pins.len());
        assert_eq!(live, 4);
        for pin in pins {
            s.spawn(move || drop(pin));
        }
        loop {
            match mr.dereg() {
                Ok(()) => break,
                Err((e, back)) => {
                    assert!(matches!(e, VerbsError::Device(verbs::DeviceError::Busy { .. })), "{e}");
                    mr = back;
                    std::thread::yield_now();
                }
            }
        }
    });
}
