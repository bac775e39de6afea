//! Work requests that are built by calls and posted together: the functions of `struct ibv_qp_ex`.

use core::ffi::{c_int, c_void};
use std::io::IoSlice;

use verbs::limits::SGE_MAX;
use verbs::{FlushLevel, FlushPlacement, Qpn, SendFlags, SendOpsFlags, Sge, WrPost};

use crate::abi::{QpEx, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::attr::send_flags;
use crate::errno::{EINVAL, Result};
use crate::guard::{guarded, returning_errno};
use crate::object::Object;
use crate::qp::{Building, Handle, Qp};
use crate::{ah, mw};

/// The operations for which the structure has a function.
pub(crate) const CALLS: SendOpsFlags = SendOpsFlags::all().difference(SendOpsFlags::TSO);

/// Sets all functions in the structure of a queue pair. Calling a function whose operation was not requested at creation makes the list
/// fail.
pub(crate) fn put_calls(to: &mut QpEx) {
    *to.wr_flush() = Some(wr_flush);
    let to = &mut to.ex;
    to.wr_start = Some(wr_start);
    to.wr_complete = Some(wr_complete);
    to.wr_abort = Some(wr_abort);
    to.wr_send = Some(wr_send);
    to.wr_send_imm = Some(wr_send_imm);
    to.wr_send_inv = Some(wr_send_inv);
    to.wr_rdma_write = Some(wr_rdma_write);
    to.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    to.wr_rdma_read = Some(wr_rdma_read);
    to.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    to.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    to.wr_atomic_write = Some(wr_atomic_write);
    to.wr_local_inv = Some(wr_local_inv);
    to.wr_bind_mw = Some(wr_bind_mw);
    to.wr_set_ud_addr = Some(wr_set_ud_addr);
    to.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    to.wr_set_sge = Some(wr_set_sge);
    to.wr_set_sge_list = Some(wr_set_sge_list);
    to.wr_set_inline_data = Some(wr_set_inline_data);
    to.wr_set_inline_data_list = Some(wr_set_inline_data_list);
}

/// The place of the list that `wr_start` began.
///
/// # Safety
/// As [`Object::of`], and this thread builds the list.
#[inline]
unsafe fn place<'a>(qp: *mut ibv_qp_ex) -> Result<&'a mut Option<Building>> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &mut *Object::<Qp>::of(qp.cast())?.private().list.get() })
}

/// Continues the list, with the `wr_id` and the flags that C has set in the structure. If there is no list, or the list has failed, nothing
/// happens, and `wr_complete` returns an error.
///
/// # Safety
/// As [`place`].
#[inline]
unsafe fn build(qp: *mut ibv_qp_ex, build: impl FnOnce(&mut WrPost<'static>) -> Result<()>) {
    let _ = guarded(|| {
        // SAFETY: as the caller promises.
        unsafe {
            let Building { list, fault } = place(qp)?.as_mut().ok_or(EINVAL)?;
            list.wr_id = (*qp).wr_id;
            // The setter determines whether data is inline.
            list.wr_flags = send_flags((*qp).wr_flags).difference(SendFlags::INLINE);
            if let Err(error) = build(list) {
                fault.get_or_insert(error);
            }
        }
        Ok(())
    });
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let _ = guarded(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            let state = Object::<Qp>::of(qp.cast())?.private();
            let Handle::Qp(verbs) = &state.handle else { return Err(EINVAL) };
            // The queue pair does not move, and the list ends before it: `ibv_destroy_qp` makes sure of that.
            let verbs: &'static verbs::Qp = &*core::ptr::from_ref(&**verbs);
            let list = verbs.wr_start();
            // If this thread has not completed an earlier list, that one stays, and the new one has already failed.
            let place = &mut *state.list.get();
            if place.is_none() {
                *place = Some(Building { list, fault: None });
            }
        }
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let Building { list, fault } = unsafe { place(qp) }?.take().ok_or(EINVAL)?;
        fault.map_or(Ok(()), Err)?;
        Ok(list.complete()?)
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    let _ = guarded(|| {
        // SAFETY: the caller keeps the contract of the C function.
        drop(unsafe { place(qp) }?.take());
        Ok(())
    });
}

/// Defines functions that continue a list.
macro_rules! builders {
    ($($name:ident($($arg:ident: $type:ty),*) = |$list:ident| $call:expr;)*) => {
        $(
            unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe {
                    build(qp, |$list| {
                        $call;
                        Ok(())
                    });
                }
            }
        )*
    };
}

builders! {
    wr_send() = |list| list.send();
    wr_send_imm(imm: u32) = |list| list.send_imm(u32::from_be(imm));
    wr_send_inv(rkey: u32) = |list| list.send_inv(rkey);
    wr_rdma_write(rkey: u32, addr: u64) = |list| list.rdma_write(rkey, addr);
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = |list| list.rdma_write_imm(rkey, addr, u32::from_be(imm));
    wr_rdma_read(rkey: u32, addr: u64) = |list| list.rdma_read(rkey, addr);
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =
        |list| list.atomic_cmp_swp(rkey, addr, compare, swap);
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = |list| list.atomic_fetch_add(rkey, addr, add);
    wr_atomic_write(rkey: u32, addr: u64, data: *const c_void) = |list| {
        // 8 bytes, copied now.
        list.atomic_write(rkey, addr, data.cast::<[u8; 8]>().as_ref().ok_or(EINVAL)?);
    };
    wr_flush(rkey: u32, addr: u64, length: usize, placement: u8, level: u8) = |list| {
        let placement = FlushPlacement::from_bits(placement).ok_or(EINVAL)?;
        let level = match level {
            0 => FlushLevel::Range,
            1 => FlushLevel::Mr,
            _ => return Err(EINVAL),
        };
        list.flush(rkey, addr, u32::try_from(length).map_err(|_| EINVAL)?, placement, level);
    };
    wr_local_inv(rkey: u32) = |list| list.local_inv(rkey);
    wr_bind_mw(window: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) = |list| {
        let (window, info) = (mw::of(window)?, info.as_ref().ok_or(EINVAL)?);
        mw::with_bind(info, |info| list.bind_mw(window, rkey, info))?;
    };
    wr_set_ud_addr(to: *mut ibv_ah, qpn: u32, qkey: u32) = |list| list.set_ud_addr(ah::of(to)?, Qpn::new(qpn), qkey);
    wr_set_xrc_srqn(srqn: u32) = |list| list.set_xrc_srqn(srqn);
    wr_set_sge(lkey: u32, addr: u64, length: u32) = |list| list.set_sge(lkey, addr, length);
    wr_set_sge_list(count: usize, from: *const ibv_sge) = |list| {
        // The layouts are the same: see `wr`.
        list.set_sge_list(slice(from.cast::<Sge>(), count, SGE_MAX)?);
    };
    wr_set_inline_data(addr: *mut c_void, length: usize) = |list| {
        list.set_inline_data(slice(addr.cast::<u8>(), length, BYTES)?);
    };
    wr_set_inline_data_list(count: usize, from: *const ibv_data_buf) = |list| {
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let from = slice(from, count, PIECES)?;
        for (piece, from) in pieces.iter_mut().zip(from) {
            *piece = IoSlice::new(slice(from.addr.cast::<u8>(), from.length, BYTES)?);
        }
        list.set_inline_data_list(&pieces[..count]);
    };
}

/// The maximum number of pieces of inline data. A larger number cannot be a valid count.
const PIECES: usize = 64;
/// More bytes of inline data than any queue pair accepts. A larger number cannot be a valid length.
const BYTES: usize = 4096;

/// The array of `count` values at `from`. Refused if `count` is larger than `most`.
///
/// # Safety
/// Unless `count` is larger than `most` or `from` is NULL, there are that many values, and they do not change before the list is complete.
unsafe fn slice<'a, T>(from: *const T, count: usize, most: usize) -> Result<&'a [T]> {
    match count {
        0 => Ok(&[]),
        _ if from.is_null() || count > most => Err(EINVAL),
        // SAFETY: as the caller promises.
        _ => Ok(unsafe { core::slice::from_raw_parts(from, count) }),
    }
}
