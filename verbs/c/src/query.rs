//! Queries of the device: its limits, its port, the addresses and keys of the port, its clock.

use core::ffi::{c_char, c_int};

use verbs::{AtomicCap, Context, GidType, PortAttr, VerbsError};

use crate::abi::{
    self, _compat_ibv_port_attr, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry,
    ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex,
};
use crate::attr::put_sized;
use crate::context::device_of;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::guard::{returning_errno, returning_minus_one, uncancelled};

/// Copies a text into a field of C and terminates it with NUL.
fn put_text(text: &str, field: &mut [c_char]) {
    let room = field.len() - 1;
    for (to, from) in field.iter_mut().zip(text.bytes().take(room)) {
        *to = from as c_char;
    }
}

/// Converts a number to `int`; numbers that do not fit become the largest `int`.
fn at_most(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn device_attr(device: &Context) -> ibv_device_attr {
    let attr = device.query_device();
    // SAFETY: it consists of numbers and a text.
    let mut to: ibv_device_attr = unsafe { abi::zeroed() };
    put_text(attr.fw_ver, &mut to.fw_ver);
    to.node_guid = u64::from_ne_bytes(attr.node_guid);
    to.sys_image_guid = u64::from_ne_bytes(attr.sys_image_guid);
    to.max_mr_size = attr.max_mr_size;
    to.page_size_cap = attr.page_size_cap;
    to.vendor_id = attr.vendor_id;
    to.vendor_part_id = attr.vendor_part_id;
    to.hw_ver = attr.hw_ver;
    to.max_qp = at_most(attr.max_qp);
    to.max_qp_wr = at_most(attr.max_qp_wr as usize);
    to.device_cap_flags = attr.device_cap_flags.bits() as u32;
    to.max_sge = at_most(attr.max_sge as usize);
    to.max_sge_rd = at_most(attr.max_sge_rd as usize);
    to.max_cq = at_most(attr.max_cq);
    to.max_cqe = at_most(attr.max_cqe as usize);
    to.max_mr = at_most(attr.max_mr);
    to.max_pd = at_most(attr.max_pd);
    to.max_qp_rd_atom = attr.max_qp_rd_atom.into();
    to.max_res_rd_atom = at_most(attr.max_res_rd_atom);
    to.max_qp_init_rd_atom = attr.max_qp_init_rd_atom.into();
    to.atomic_cap = match attr.atomic_cap {
        AtomicCap::None => abi::IBV_ATOMIC_NONE,
        // What NICs report. The device guarantees more (docs/dropin.md), except on memory on demand; but UCX uses atomics only if this is
        // reported.
        AtomicCap::Hca | AtomicCap::Glob => abi::IBV_ATOMIC_HCA,
    };
    to.max_mw = at_most(attr.max_mw);
    to.max_mcast_grp = at_most(attr.max_mcast_grp);
    to.max_mcast_qp_attach = at_most(attr.max_mcast_qp_attach);
    to.max_total_mcast_qp_attach = at_most(attr.max_total_mcast_qp_attach);
    to.max_ah = at_most(attr.max_ah);
    to.max_srq = at_most(attr.max_srq);
    to.max_srq_wr = at_most(attr.max_srq_wr as usize);
    to.max_srq_sge = at_most(attr.max_srq_sge as usize);
    to.max_pkeys = attr.max_pkeys;
    to.local_ca_ack_delay = attr.local_ca_ack_delay;
    to.phys_port_cnt = attr.phys_port_cnt;
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (device, attr) = unsafe { (device_of(context)?, attr.as_mut().ok_or(EINVAL)?) };
        *attr = device_attr(&device);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let device = unsafe { device_of(context) }?;
        // SAFETY: the caller keeps the contract of the C function.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return Err(EINVAL);
        }
        if attr.is_null() || size < size_of::<ibv_device_attr>() {
            return Err(EINVAL);
        }
        let more = device.query_device();
        // SAFETY: it consists of numbers.
        let mut to: ibv_device_attr_ex = unsafe { abi::zeroed() };
        to.orig_attr = device_attr(&device);
        to.completion_timestamp_mask = more.completion_timestamp_mask;
        to.hca_core_clock = more.hca_core_clock;
        to.device_cap_flags_ex = more.device_cap_flags.bits();
        to.phys_port_cnt_ex = more.phys_port_cnt.into();
        if more.on_demand {
            put_odp_caps(&mut to);
        }
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { put_sized(&to, attr, size) };
        Ok(())
    })
}

/// Reports what memory on demand supports: all operations that only copy. Atomics on it are not atomic with respect to the CPU.
fn put_odp_caps(to: &mut ibv_device_attr_ex) {
    let messages = abi::IBV_ODP_SUPPORT_SEND | abi::IBV_ODP_SUPPORT_RECV | abi::IBV_ODP_SUPPORT_SRQ_RECV;
    let reliable = messages | abi::IBV_ODP_SUPPORT_WRITE | abi::IBV_ODP_SUPPORT_READ;
    to.odp_caps.general_caps = abi::IBV_ODP_SUPPORT.into();
    let each = &mut to.odp_caps.per_transport_caps;
    (each.rc_odp_caps, to.xrc_odp_caps) = (reliable, reliable);
    each.uc_odp_caps = abi::IBV_ODP_SUPPORT_SEND | abi::IBV_ODP_SUPPORT_RECV | abi::IBV_ODP_SUPPORT_WRITE;
    each.ud_odp_caps = messages;
}

fn port_attr(port: &PortAttr) -> ibv_port_attr {
    // SAFETY: it consists of numbers.
    let mut to: ibv_port_attr = unsafe { abi::zeroed() };
    to.state = port.state as u32;
    to.max_mtu = port.max_mtu as u32;
    to.active_mtu = port.active_mtu as u32;
    to.gid_tbl_len = at_most(port.gid_tbl_len);
    to.port_cap_flags = port.port_cap_flags.bits();
    to.max_msg_sz = port.max_msg_sz;
    to.bad_pkey_cntr = u32::try_from(port.bad_pkey_cntr).unwrap_or(u32::MAX);
    to.qkey_viol_cntr = u32::try_from(port.qkey_viol_cntr).unwrap_or(u32::MAX);
    to.pkey_tbl_len = port.pkey_tbl_len;
    to.max_vl_num = port.max_vl_num;
    to.active_width = port.active_width;
    to.active_speed = port.active_speed;
    to.phys_state = port.phys_state as u8;
    to.link_layer = port.link_layer;
    to.flags = port.flags;
    to
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let port = unsafe { device_of(context) }?.query_port(port_num)?;
        if attr.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { put_sized(&port_attr(&port), attr, size) };
        Ok(())
    })
}

/// Size in bytes of `struct ibv_port_attr` in programs that were built before it could grow.
const OLD_PORT_ATTR: usize = 48;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { query_port(context, port_num, attr.cast(), OLD_PORT_ATTR) }
}

/// Returns the speed of a port in units of 100 Mb/s.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32, to: *mut u64) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (device, to) = unsafe { (device_of(context)?, to.as_mut().ok_or(EINVAL)?) };
        let port = device.query_port(u8::try_from(port_num).map_err(|_| EINVAL)?)?;
        *to = speed(port.active_width, port.active_speed).ok_or(EOPNOTSUPP)?;
        Ok(())
    })
}

/// The speed of a port in units of 100 Mb/s, from the codes of its width and lane speed (IBA 14.2.5.6, PortInfo); `None` for unknown codes.
fn speed(width: u8, speed: u8) -> Option<u64> {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    let lane = match speed {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => return None,
    };
    Some(lanes * lane)
}

pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (device, values) = unsafe { (device_of(context)?, values.as_mut().ok_or(EINVAL)?) };
        if values.comp_mask & !abi::IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(EINVAL);
        }
        let now = device.now();
        values.raw_clock.tv_sec = (now / 1_000_000_000) as _;
        values.raw_clock.tv_nsec = (now % 1_000_000_000) as _;
        Ok(())
    })
}

/// The address at an index of the GID table; zeros if it was removed.
fn gid_at(device: &Context, port_num: u8, index: usize) -> Result<[u8; 16]> {
    match device.query_gid(port_num, index) {
        Ok(gid) => Ok(gid.0),
        Err(VerbsError::NoSuchIndex { count, .. }) if index < count && port_num == 1 => Ok([0; 16]),
        Err(error) => Err(error.into()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    returning_minus_one(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (device, gid) = unsafe { (device_of(context)?, gid.as_mut().ok_or(EINVAL)?) };
        gid.raw = gid_at(&device, port_num, usize::try_from(index).map_err(|_| EINVAL)?)?;
        Ok(0)
    })
}

fn gid_type(of: GidType) -> u32 {
    match of {
        GidType::RoceV2 => abi::IBV_GID_TYPE_ROCE_V2,
    }
}

/// The number of RoCE v2 in this private function, which numbers the two versions of RoCE 0 and 1, as the kernel does.
const SYSFS_ROCE_V2: u32 = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: u32,
    to: *mut u32,
) -> c_int {
    returning_minus_one(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (device, to) = unsafe { (device_of(context)?, to.as_mut().ok_or(EINVAL)?) };
        gid_at(&device, port_num, index as usize)?;
        *to = SYSFS_ROCE_V2;
        Ok(0)
    })
}

/// The entry of the GID table at an index.
fn entry(device: &Context, port_num: u32, index: u32) -> Result<ibv_gid_entry> {
    let port = u8::try_from(port_num).map_err(|_| EINVAL)?;
    if gid_at(device, port, index as usize)? == [0; 16] {
        return Err(Errno(libc::ENODATA));
    }
    let from = device.query_gid_ex(port, index as usize)?;
    // SAFETY: it consists of numbers.
    let mut to: ibv_gid_entry = unsafe { abi::zeroed() };
    to.gid.raw = from.gid.0;
    to.gid_index = index;
    to.port_num = port_num;
    to.gid_type = gid_type(from.gid_type);
    to.ndev_ifindex = interface_index(from.ndev);
    Ok(to)
}

/// The index of a network interface; 0 if there is none.
fn interface_index(name: &str) -> u32 {
    let Ok(name) = std::ffi::CString::new(name) else { return 0 };
    // SAFETY: a NUL-terminated string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let device = unsafe { device_of(context) }?;
        if flags != 0 {
            return Err(EOPNOTSUPP);
        }
        if to.is_null() {
            return Err(EINVAL);
        }
        let entry = entry(&device, port_num, gid_index)?;
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { put_sized(&entry, to, entry_size) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let result = uncancelled(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let device = unsafe { device_of(context) }?;
        if flags != 0 {
            return Err(EOPNOTSUPP);
        }
        if entry_size == 0 || (entries.is_null() && max_entries > 0) {
            return Err(EINVAL);
        }
        let table = device.query_gid_table();
        if table.len() > max_entries {
            return Err(EINVAL);
        }
        for (n, of) in table.iter().enumerate() {
            let entry = entry(&device, of.port_num.into(), of.gid_index as u32)?;
            // SAFETY: the caller must provide room for `max_entries` entries of that size.
            unsafe { put_sized(&entry, entries.wrapping_byte_add(n * entry_size), entry_size) };
        }
        Ok(table.len() as isize)
    });
    result.unwrap_or_else(|error| -(error.0 as isize))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    returning_minus_one(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (device, pkey) = unsafe { (device_of(context)?, pkey.as_mut().ok_or(EINVAL)?) };
        let index = usize::try_from(index).map_err(|_| EINVAL)?;
        *pkey = device.query_pkey(port_num, index)?.to_be();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
    returning_minus_one(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let device = unsafe { device_of(context) }?;
        Ok(at_most(device.get_pkey_index(port_num, u16::from_be(pkey))?))
    })
}
