//! Reading completions one by one and field by field: the functions of `struct ibv_cq_ex`.

use core::ffi::c_int;

use verbs::{CqExPoll, CqWcFlags, Wc};

use crate::abi::{ibv_cq_ex, ibv_poll_cq_attr};
use crate::cq::Cq;
use crate::errno::{EINVAL, Errno, Result};
use crate::guard::guarded;
use crate::object::Object;
use crate::wc;

/// Sets the functions in the structure of a queue. A function that reads a field which was not requested is NULL (ibv_create_cq_ex(3)).
pub(crate) fn put_calls(to: &mut ibv_cq_ex, fields: CqWcFlags) {
    to.start_poll = Some(start_poll);
    to.next_poll = Some(next_poll);
    to.end_poll = Some(end_poll);
    to.read_opcode = Some(read_opcode);
    to.read_vendor_err = Some(read_vendor_err);
    to.read_wc_flags = Some(read_wc_flags);
    let has = |field| fields.contains(field);
    to.read_byte_len = has(CqWcFlags::BYTE_LEN).then_some(read_byte_len);
    to.read_imm_data = has(CqWcFlags::IMM).then_some(read_imm_data);
    to.read_qp_num = has(CqWcFlags::QP_NUM).then_some(read_qp_num);
    to.read_src_qp = has(CqWcFlags::SRC_QP).then_some(read_src_qp);
    to.read_slid = has(CqWcFlags::SLID).then_some(read_slid);
    to.read_sl = has(CqWcFlags::SL).then_some(read_sl);
    to.read_dlid_path_bits = has(CqWcFlags::DLID_PATH_BITS).then_some(read_dlid_path_bits);
    to.read_completion_ts = has(CqWcFlags::COMPLETION_TIMESTAMP).then_some(read_completion_ts);
    to.read_completion_wallclock_ns =
        has(CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK).then_some(read_completion_wallclock_ns);
}

/// Writes two fields of the present completion into the public structure.
unsafe fn show(cq: *mut ibv_cq_ex, wc: &Wc) {
    // SAFETY: as the caller promises, the queue is alive and this thread polls it.
    unsafe {
        (*cq).wr_id = wc.wr_id;
        (*cq).status = wc.status as u32;
    }
}

/// The poll that `start_poll` began.
///
/// # Safety
/// As [`Object::of`], and this thread polls the queue.
unsafe fn polling<'a>(cq: *mut ibv_cq_ex) -> Result<&'a mut Option<CqExPoll<'static>>> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &mut *Object::<Cq>::of(cq)?.private().poll.get() })
}

/// The result of a poll for C: 0, `ENOENT` if there is no completion, or an error number.
fn no_completion(found: Result<bool>) -> c_int {
    match found {
        Ok(true) => 0,
        Ok(false) => libc::ENOENT,
        Err(Errno(number)) => number,
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    no_completion(guarded(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            if attr.as_ref().is_some_and(|attr| attr.comp_mask != 0) {
                return Err(EINVAL);
            }
            let state = Object::<Cq>::of(cq)?.private();
            // The queue does not move, and the poll ends before it: `ibv_destroy_cq` makes sure of that.
            let verbs: &'static verbs::Cq = &*core::ptr::from_ref(&state.verbs);
            let Some(started) = verbs.start_poll()? else { return Ok(false) };
            show(cq, &started.wc());
            *polling(cq)? = Some(started);
        }
        Ok(true)
    }))
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    no_completion(guarded(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            let poll = polling(cq)?.as_mut().ok_or(EINVAL)?;
            let found = poll.next_poll()?;
            if found {
                show(cq, &poll.wc());
            }
            Ok(found)
        }
    }))
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    let _ = guarded(|| {
        // SAFETY: the caller keeps the contract of the C function.
        drop(unsafe { polling(cq) }?.take());
        Ok(())
    });
}

/// Defines functions that read a field. They return 0 if there is no present completion.
macro_rules! fields {
    ($($name:ident: $type:ty = |$poll:ident| $value:expr;)*) => {
        $(
            unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
                let read = guarded(|| {
                    // SAFETY: the caller keeps the contract of the C function.
                    let $poll = unsafe { polling(cq) }?.as_ref().ok_or(EINVAL)?;
                    Ok($value)
                });
                read.unwrap_or_default()
            }
        )*
    };
}

fields! {
    read_opcode: u32 = |poll| poll.read_opcode() as u32;
    read_vendor_err: u32 = |poll| poll.read_vendor_err();
    read_byte_len: u32 = |poll| poll.read_byte_len();
    read_imm_data: u32 = |poll| wc::extra(&poll.wc());
    read_qp_num: u32 = |poll| poll.read_qp_num().get();
    read_src_qp: u32 = |poll| poll.read_src_qp().get();
    read_wc_flags: u32 = |poll| poll.read_wc_flags().bits();
    read_slid: u32 = |poll| poll.read_slid();
    read_sl: u8 = |poll| poll.read_sl();
    read_dlid_path_bits: u8 = |poll| poll.read_dlid_path_bits();
    read_completion_ts: u64 = |poll| poll.read_completion_ts();
    read_completion_wallclock_ns: u64 = |poll| poll.read_completion_wallclock_ns();
}
