//! Calls of memory regions, memory windows and address handles.

use stack::device::Device;
use verbs::errno::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, EPERM};
use verbs::{
    Access, AhAttr, DeviceConfig, Drive, GRH_LEN, Gid, GlobalRoute, Mr, MwBind, MwBindInfo, MwType, QpType,
    RecvWr, Rereg, SendFlags, SendWr, Wc, ah_attr_to, inc_rkey,
};

use super::bench::{Bench, Case, Refusal, back, case, err};
use crate::common::{all_rights, options, take};
use crate::nowhere::nowhere;

/// A region of the bench's domain that is not part of the case, with 8 bytes after the last word.
fn region(b: &Bench) -> Mr {
    b.pd.reg_mr(100, all_rights() | Access::MW_BIND).unwrap()
}

#[allow(clippy::reversed_empty_ranges, reason = "what the calls are to refuse")]
const BACKWARDS: core::ops::Range<usize> = 8..4;

/// A read-only file.
fn file() -> std::fs::File {
    std::fs::File::open(env!("CARGO_MANIFEST_DIR").to_string() + "/Cargo.toml").unwrap()
}

/// Error numbers that only the system returns.
const EBADF: i32 = 9;
const EISDIR: i32 = 21;

fn bind(b: &Bench, mw: &verbs::Mw, bind_info: MwBindInfo<'_>) -> Refusal {
    let before = mw.rkey();
    let refusal = err(b.a.bind_mw(mw, &MwBind { wr_id: 1, send_flags: SendFlags::SIGNALED, bind_info }));
    assert_eq!(mw.rkey(), before);
    refusal
}

/// A region with a window bound to it, on the second device.
fn bound(b: &Bench) -> (Mr, verbs::Mw) {
    let (context, pd, cq) = (&b.other.context, &b.other.pd, &b.other.cq);
    let qp = pd.create_qp(&verbs::QpInitAttr::rc(cq, cq)).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    let mr = pd.reg_mr(64, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let mw = pd.alloc_mw(MwType::One).unwrap();
    let bind_info = MwBindInfo::new(&mr, 0..64, Access::REMOTE_READ).unwrap();
    qp.bind_mw(&mw, &MwBind { wr_id: 1, send_flags: SendFlags::SIGNALED, bind_info }).unwrap();
    assert!(take(context, cq, 1)[0].is_ok());
    (mr, mw)
}

fn ah(b: &Bench, change: impl FnOnce(&mut AhAttr, &mut GlobalRoute)) -> Refusal {
    let mut attr = ah_attr_to(b.gid(), 1);
    let mut grh = attr.grh.unwrap();
    change(&mut attr, &mut grh);
    attr.grh = attr.grh.and(Some(grh));
    err(b.pd.create_ah(&attr))
}

/// A received datagram: its completion, and its network header.
fn datagram(b: &Bench) -> (Wc, [u8; GRH_LEN]) {
    let (context, pd, cq) = (&b.other.context, &b.other.pd, &b.other.cq);
    let qp = pd.create_qp(&verbs::QpInitAttr::ud(cq, cq)).unwrap();
    qp.activate_ud(5).unwrap();
    let mr = pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    let ah = pd.create_ah(&ah_attr_to(context.query_gid(1, 1).unwrap(), 1)).unwrap();
    qp.post_recv(&[RecvWr::new(1, &[mr.sge(0..64).unwrap()])]).unwrap();
    qp.post_send(&[SendWr::send(2, &[]).to(&ah, qp.qp_num(), 5)]).unwrap();
    let wc = take(context, cq, 1)[0];
    (wc, mr.to_vec(0..GRH_LEN).unwrap().try_into().unwrap())
}

pub const CASES: &[Case] = &[
    case("Pd::reg_mr", "MemError::InvalidAccess", EINVAL, |b| {
        err(b.pd.reg_mr(64, Access::REMOTE_ATOMIC));
        err(b.pd.reg_mr(64, Access::from_bits_retain(1 << 31)));
        err(b.pd.reg_mr(64, Access::REMOTE_WRITE))
    }),
    case("Pd::reg_mr", "DeviceError::Access", EOPNOTSUPP, |b| err(b.pd.reg_mr(64, Access::FLUSH_PERSISTENT))),
    case("Pd::reg_mr", "VerbsError::NoMemory", ENOMEM, |b| {
        err(b.pd.reg_mr(usize::MAX, Access::empty()));
        err(b.pd.reg_mr(1 << 55, Access::empty()))
    }),
    // Through the device API, where a region is only a range of addresses: this many buffers would take most of this machine's
    // memory.
    case("Pd::reg_mr", "MemError::Full", ENOMEM, |_| {
        let device = Device::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
        let (pd, max) = (device.alloc_pd().unwrap(), device.attr().max_mr);
        let mut mrs: Vec<_> =
            (1..max as u64).map(|n| pd.reg_mr(nowhere(n << 12, 1), Access::empty()).unwrap()).collect();
        mrs.push(pd.alloc_mr(nowhere(0x1000, 64)).unwrap());
        let refusal = err(pd.reg_mr(nowhere(0x1000, 1), Access::empty()));
        err(pd.alloc_mr(nowhere(0x1000, 1)));
        err(pd.alloc_mw(MwType::Two));
        err(pd.alloc_null_mr());
        mrs.pop();
        let mw = pd.alloc_mw(MwType::Two).unwrap();
        assert_eq!(err(pd.alloc_mr(nowhere(0x1000, 1))), refusal);
        drop(mw);
        refusal
    }),
    case("Pd::reg_mr", "DeviceError::Range", EINVAL, |_| {
        let device = Device::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
        let (pd, size) = (device.alloc_pd().unwrap(), device.attr().max_mr_size);
        pd.reg_mr(nowhere(0, size), Access::empty()).unwrap();
        err(pd.reg_mr(nowhere(0, size + 1), Access::empty()))
    }),
    case("Pd::reg_mr", "MemError::InvalidRange", EINVAL, |_| {
        let device = Device::open(DeviceConfig::loopback().drive(Drive::Embedded)).unwrap();
        let pd = device.alloc_pd().unwrap();
        pd.reg_mr(nowhere(u64::MAX - 7, 7), Access::empty()).unwrap();
        err(pd.alloc_mr(nowhere(u64::MAX - 7, 9)));
        err(pd.reg_mr(nowhere(u64::MAX - 7, 9), Access::empty()))
    }),
    case("Pd::reg_mr_from", "MemError::InvalidAccess", EINVAL, |b| {
        err(b.pd.reg_mr_from(b"data", Access::REMOTE_WRITE))
    }),
    case("Pd::alloc_mr", "VerbsError::NoMemory", ENOMEM, |b| err(b.pd.alloc_mr(usize::MAX / 2))),
    case("Mr::update_fast_reg_key", "DeviceError::WrongKind", EINVAL, |b| err(b.mr.update_fast_reg_key(1))),
    case("Pd::reg_mr_iova", "MemError::InvalidRange", EINVAL, |b| {
        err(b.pd.reg_mr_iova(4096, u64::MAX - 4094, all_rights()))
    }),
    case("Pd::reg_mr_iova", "VerbsError::ZeroBased", EINVAL, |b| {
        err(b.pd.reg_mr_iova(4096, 4096, all_rights() | Access::ZERO_BASED))
    }),
    case("Mr::pread", "VerbsError::OutOfRegion", EINVAL, |b| {
        let (mr, file) = (region(b), file());
        err(mr.pread(&file, 0, BACKWARDS));
        err(mr.pread(&file, 0, 0..101))
    }),
    case("Mr::pread", "VerbsError::File", EINVAL, |b| err(region(b).pread(file(), 1 << 63, 0..1))),
    case("Mr::pread", "VerbsError::File", EISDIR, |b| {
        err(region(b).pread(std::fs::File::open(".").unwrap(), 0, 0..1))
    }),
    case("Mr::pwrite", "VerbsError::OutOfRegion", EINVAL, |b| {
        let (mr, file) = (region(b), file());
        err(mr.pwrite(&file, 0, BACKWARDS));
        err(mr.pwrite(&file, 0, 100..101))
    }),
    case("Mr::pwrite", "VerbsError::File", EBADF, |b| err(region(b).pwrite(file(), 0, 0..1))),
    case("Mr::pin", "VerbsError::OutOfRegion", EINVAL, |b| {
        err(region(b).pin(BACKWARDS));
        err(region(b).pin(0..101))
    }),
    case("Mr::dereg", "DeviceError::Busy", EBUSY, |b| {
        let mut mr = region(b);
        let pin = mr.pin(0..1).unwrap();
        err(mr.rereg(&Rereg { len: Some(1), ..Rereg::default() }));
        let (refusal, mr) = back(mr.dereg());
        drop(pin);
        mr.dereg().unwrap();
        refusal
    }),
    case("Mr::rereg", "DeviceError::WrongKind", EINVAL, |b| {
        let mut mr = b.pd.alloc_mr(64).unwrap();
        let refusal = err(mr.rereg(&Rereg { len: Some(128), ..Rereg::default() }));
        assert_eq!(mr.len(), 64);
        refusal
    }),
    case("Mr::rereg", "DeviceError::Foreign", EINVAL, |b| {
        let mut mr = region(b);
        let refusal = err(mr.rereg(&Rereg { pd: Some(&b.other.pd), len: Some(1), ..Rereg::default() }));
        assert_eq!((mr.len(), mr.access()), (100, all_rights() | Access::MW_BIND));
        refusal
    }),
    case("Mr::rereg", "MemError::InvalidAccess", EINVAL, |b| {
        let mut mr = region(b);
        mr.write(0, b"kept").unwrap();
        let change = Rereg { access: Some(Access::REMOTE_WRITE), len: Some(1), pd: None };
        let refusal = err(mr.rereg(&change));
        assert_eq!((mr.len(), mr.to_vec(0..4).unwrap()), (100, b"kept".to_vec()));
        refusal
    }),
    case("Mr::rereg", "DeviceError::Access", EOPNOTSUPP, |b| {
        let mut mr = region(b);
        let refusal = err(mr.rereg(&Rereg { access: Some(Access::FLUSH_PERSISTENT), ..Rereg::default() }));
        assert!(!mr.access().contains(Access::FLUSH_PERSISTENT));
        refusal
    }),
    case("Mr::rereg", "VerbsError::NoMemory", ENOMEM, |b| {
        err(region(b).rereg(&Rereg { len: Some(usize::MAX), ..Rereg::default() }))
    }),
    case("Mr::rereg", "DeviceError::Busy", EBUSY, |b| {
        let (mut mr, mw) = bound(b);
        let refusal = err(mr.rereg(&Rereg { len: Some(1), ..Rereg::default() }));
        assert_eq!(mr.len(), 64);
        drop(mw);
        mr.rereg(&Rereg { len: Some(1), ..Rereg::default() }).unwrap();
        refusal
    }),
    case("Mr::dereg", "DeviceError::Busy", EBUSY, |b| {
        let (mr, mw) = bound(b);
        let (refusal, mr) = back(mr.dereg());
        mw.dealloc().unwrap();
        mr.dereg().unwrap();
        refusal
    }),
    case("Mr::sge", "VerbsError::OutOfRegion", EINVAL, |b| {
        assert_eq!(b.mr.sge(4096..4096).unwrap().length, 0);
        err(b.mr.sge(BACKWARDS));
        err(b.mr.sge(4096..4097));
        err(b.mr.sge(usize::MAX..usize::MAX))
    }),
    case("Mr::read", "VerbsError::OutOfRegion", EINVAL, |b| {
        let mut out = *b"as it was";
        err(b.mr.read(4088, &mut out));
        err(b.mr.read(usize::MAX, &mut out));
        assert_eq!(out, *b"as it was");
        err(b.mr.read(4097, &mut []))
    }),
    case("Mr::write", "VerbsError::OutOfRegion", EINVAL, |b| {
        err(b.mr.write(usize::MAX - 3, b"wrapped"));
        err(b.mr.write(4090, b"too long"))
    }),
    case("Mr::fill", "VerbsError::OutOfRegion", EINVAL, |b| {
        err(b.mr.fill(BACKWARDS, 1));
        err(b.mr.fill(4000..4097, 1))
    }),
    case("Mr::copy_from", "VerbsError::OutOfRegion", EINVAL, |b| {
        let other = b.pd.reg_mr(16, Access::empty()).unwrap();
        err(b.mr.copy_from(0, &other, BACKWARDS));
        err(b.mr.copy_from(4081, &other, 0..16));
        err(b.mr.copy_from(usize::MAX, &other, 0..16));
        err(b.mr.copy_from(0, &other, 1..17))
    }),
    case("Mr::to_vec", "VerbsError::OutOfRegion", EINVAL, |b| {
        err(b.mr.to_vec(BACKWARDS));
        err(b.mr.to_vec(0..usize::MAX))
    }),
    case("Mr::read_u8", "VerbsError::OutOfRegion", EINVAL, |b| err(b.mr.read_u8(4096))),
    case("Mr::atomic_u64", "VerbsError::OutOfRegion", EINVAL, |b| {
        b.mr.atomic_u64(4088).unwrap();
        err(b.mr.atomic_u64(4096))
    }),
    case("Mr::atomic_u64", "VerbsError::Misaligned", EINVAL, |b| err(b.mr.atomic_u64(4))),
    case("Mr::read_u64", "VerbsError::Misaligned", EINVAL, |b| err(b.mr.read_u64(1))),
    case("Mr::read_u64", "VerbsError::OutOfRegion", EINVAL, |b| err(b.mr.read_u64(usize::MAX))),
    case("Mr::write_u64", "VerbsError::Misaligned", EINVAL, |b| err(b.mr.write_u64(4084, u64::MAX))),
    case("Mr::write_u64", "VerbsError::OutOfRegion", EINVAL, |b| err(b.mr.write_u64(4096, u64::MAX))),
    case("MwBindInfo::new", "VerbsError::OutOfRegion", EINVAL, |b| {
        err(MwBindInfo::new(&b.mr, BACKWARDS, Access::REMOTE_READ));
        err(MwBindInfo::new(&b.mr, 0..4097, Access::REMOTE_READ))
    }),
    case("Qp::bind_mw", "BindError::WindowType", EINVAL, |b| {
        let mw = b.pd.alloc_mw(MwType::Two).unwrap();
        bind(b, &mw, MwBindInfo::new(&b.mr, 0..8, Access::REMOTE_READ).unwrap())
    }),
    case("Qp::bind_mw", "BindError::NoRegion", EINVAL, |b| {
        let mw = b.pd.alloc_mw(MwType::One).unwrap();
        bind(b, &mw, MwBindInfo { addr: 1, ..MwBindInfo::unbind() });
        bind(b, &mw, MwBindInfo { length: 1, ..MwBindInfo::unbind() })
    }),
    case("Qp::bind_mw", "BindError::OtherPd", EPERM, |b| {
        let pd = b.context.alloc_pd().unwrap();
        let (mr, mw) = (pd.reg_mr(8, Access::MW_BIND).unwrap(), b.pd.alloc_mw(MwType::One).unwrap());
        bind(b, &mw, MwBindInfo::new(&mr, 0..8, Access::REMOTE_READ).unwrap());
        // A region of another device, whose domain may have the same number.
        let mr = b.other.pd.reg_mr(8, Access::MW_BIND).unwrap();
        bind(b, &mw, MwBindInfo::new(&mr, 0..8, Access::REMOTE_READ).unwrap());
        let mw = b.other.pd.alloc_mw(MwType::One).unwrap();
        bind(b, &mw, MwBindInfo::unbind());
        let mw = pd.alloc_mw(MwType::One).unwrap();
        bind(b, &mw, MwBindInfo::unbind())
    }),
    case("Qp::bind_mw", "PostErrorKind::State", EINVAL, |b| {
        let (qp, mw) = (b.qp(QpType::Rc), b.pd.alloc_mw(MwType::One).unwrap());
        let info = MwBind { wr_id: 1, send_flags: SendFlags::empty(), bind_info: MwBindInfo::unbind() };
        let before = mw.rkey();
        let refusal = err(qp.bind_mw(&mw, &info));
        assert_eq!(mw.rkey(), before, "a key that nobody bound is not given out");
        refusal
    }),
    case("SendWr::bind_mw", "BindError::WindowType", EINVAL, |b| {
        let mw = b.pd.alloc_mw(MwType::One).unwrap();
        err(SendWr::bind_mw(1, &mw, inc_rkey(mw.rkey()), &MwBindInfo::unbind()))
    }),
    case("SendWr::bind_mw", "BindError::ForeignKey", EINVAL, |b| {
        let mw = b.pd.alloc_mw(MwType::Two).unwrap();
        let info = MwBindInfo::new(&b.mr, 0..8, Access::REMOTE_READ).unwrap();
        err(SendWr::bind_mw(1, &mw, b.mr.rkey(), &info));
        err(SendWr::bind_mw(1, &mw, mw.rkey() ^ 0x8000_0000, &info))
    }),
    case("SendWr::bind_mw", "BindError::OtherPd", EPERM, |b| {
        let mw = b.other.pd.alloc_mw(MwType::Two).unwrap();
        let info = MwBindInfo::new(&b.mr, 0..8, Access::REMOTE_READ).unwrap();
        err(SendWr::bind_mw(1, &mw, inc_rkey(mw.rkey()), &info))
    }),
    case("SendWr::bind_mw", "BindError::NoRegion", EINVAL, |b| {
        let mw = b.pd.alloc_mw(MwType::Two).unwrap();
        let info = MwBindInfo { length: u64::MAX, ..MwBindInfo::unbind() };
        err(SendWr::bind_mw(1, &mw, inc_rkey(mw.rkey()), &info))
    }),
    case("SendWr::reg_mr", "DeviceError::WrongKind", EINVAL, |b| {
        err(SendWr::reg_mr(1, &b.mr, 0..8, Access::empty()))
    }),
    case("SendWr::reg_mr", "VerbsError::OutOfRegion", EINVAL, |b| {
        let mr = b.pd.alloc_mr(64).unwrap();
        err(SendWr::reg_mr(1, &mr, BACKWARDS, Access::empty()));
        err(SendWr::reg_mr(1, &mr, 0..65, Access::empty()))
    }),
    case("SendWr::reg_mr", "MemError::InvalidAccess", EINVAL, |b| {
        err(SendWr::reg_mr(1, &b.pd.alloc_mr(64).unwrap(), 0..64, Access::REMOTE_ATOMIC))
    }),
    case("SendWr::reg_mr", "DeviceError::Access", EOPNOTSUPP, |b| {
        err(SendWr::reg_mr(1, &b.pd.alloc_mr(64).unwrap(), 0..64, Access::FLUSH_PERSISTENT))
    }),
    case("Pd::create_ah", "AvError::NoGrh", EINVAL, |b| ah(b, |attr, _| attr.grh = None)),
    case("Pd::create_ah", "AvError::OutOfRange", EINVAL, |b| {
        ah(b, |attr, _| attr.sl = 8);
        ah(b, |attr, _| attr.port_num = 0);
        ah(b, |attr, _| attr.port_num = 2);
        ah(b, |_, grh| grh.sgid_index = 2);
        ah(b, |_, grh| grh.flow_label = 1 << 20)
    }),
    case("Pd::create_ah", "AvError::NoDestination", EINVAL, |b| ah(b, |_, grh| grh.dgid = Gid::default())),
    case("Pd::create_ah", "AvError::NoSuchGid", EINVAL, |b| {
        b.other.context.remove_address([192, 0, 2, 1]).unwrap();
        err(b.other.pd.create_ah(&ah_attr_to(Gid::v4([192, 0, 2, 2]), 1)))
    }),
    case("Pd::create_ah", "AvError::Family", EINVAL, |b| {
        ah(b, |_, grh| grh.sgid_index = 0);
        ah(b, |_, grh| grh.dgid = Gid::from_ip("fe80::1".parse().unwrap()))
    }),
    case("Context::init_ah_from_wc", "VerbsError::NoNetworkHeader", EINVAL, |b| {
        let (wc, grh) = datagram(b);
        b.other.context.init_ah_from_wc(&wc, &grh).unwrap();
        err(b.context.init_ah_from_wc(&Wc::default(), &grh));
        err(b.other.context.init_ah_from_wc(&wc, &[0xff; GRH_LEN]));
        // To an address that is not local.
        let mut stray = grh;
        stray[39] ^= 0xf0;
        err(b.other.context.init_ah_from_wc(&wc, &stray))
    }),
    case("Pd::create_ah_from_wc", "VerbsError::NoNetworkHeader", EINVAL, |b| {
        let (wc, grh) = datagram(b);
        b.other.pd.create_ah_from_wc(&wc, &grh).unwrap();
        err(b.other.pd.create_ah_from_wc(&wc, &[0; GRH_LEN]))
    }),
];

#[test]
fn calls_of_memory() {
    super::bench::run(CASES);
}
