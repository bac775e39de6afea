//! Lists of work requests. They are read in place, and each request is converted to one of `verbs` when the post asks for it. Nothing is
//! allocated.

use core::cell::Cell;
use core::ffi::c_int;
use core::mem::offset_of;
use std::sync::Arc;

use verbs::limits::SGE_MAX;
use verbs::{LocalBytes, PostError, Qp, QpType, Qpn, RecvWr, SendFlags, SendWr, Sge, Srq, WrOpcode};

use crate::abi::{ibv_recv_wr, ibv_send_wr, ibv_sge, zeroed};
use crate::attr::send_flags;
use crate::errno::{self, EINVAL, Errno, Result};
use crate::guard::guarded;
use crate::{ah, mw};

// The scatter/gather elements of C have the layout of those of the stack.
const _: () = assert!(
    size_of::<ibv_sge>() == size_of::<Sge>()
        && offset_of!(ibv_sge, addr) == offset_of!(Sge, addr)
        && offset_of!(ibv_sge, length) == offset_of!(Sge, length)
        && offset_of!(ibv_sge, lkey) == offset_of!(Sge, lkey)
);

/// Not an error number of the system: a request or its elements are not aligned, as members of packed structures may be. Such requests are
/// posted from a copy ([`unaligned`]).
const UNALIGNED: Errno = Errno(-1);

/// The scatter/gather elements of a request.
///
/// # Safety
/// There are `count` elements, unless `count` is negative or above [`SGE_MAX`], and they do not change during the call.
#[inline]
unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge]> {
    // A negative number becomes a large one.
    match count as u32 {
        0 => Ok(&[]),
        count if !list.is_null() && count <= SGE_MAX as u32 => {
            if !list.is_aligned() {
                return Err(UNALIGNED);
            }
            // SAFETY: as the caller promises; the layouts are the same.
            Ok(unsafe { core::slice::from_raw_parts(list.cast(), count as usize) })
        }
        _ => Err(EINVAL),
    }
}

/// A work request of C.
trait Request: Copy {
    /// The work request of `verbs`.
    type Posted<'a>;
    /// The next request of the list; NULL if there is none.
    fn next(&self) -> *mut Self;
    /// The pointers to the next request and to the elements, and the number of elements that are read.
    fn links(&mut self) -> (&mut *mut Self, &mut *mut ibv_sge, c_int);
    /// Converts the request.
    ///
    /// # Safety
    /// The caller keeps the contract of the C function for this request.
    unsafe fn turn<'a>(&self, qp_type: QpType) -> Result<Self::Posted<'a>>;
}

/// Why a list ends early, and at which request.
type Fault<R> = Cell<Option<(Errno, *mut R)>>;

/// The rest of a list.
struct List<'l, R: Request> {
    next: *mut R,
    qp_type: QpType,
    /// Set if a request cannot be converted.
    fault: &'l Fault<R>,
}

impl<'l, R: Request> Iterator for List<'l, R> {
    type Item = R::Posted<'l>;

    // Inlined, because otherwise each request would be returned through memory.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if !self.next.is_aligned() {
            self.fault.set(Some((UNALIGNED, self.next)));
            return None;
        }
        // SAFETY: NULL or a request, by the contract of the C function.
        let request = unsafe { self.next.as_ref() }?;
        // SAFETY: the caller keeps the contract of the C function.
        match unsafe { request.turn(self.qp_type) } {
            Ok(posted) => {
                self.next = request.next();
                Some(posted)
            }
            Err(error) => {
                self.fault.set(Some((error, self.next)));
                None
            }
        }
    }
}

/// Posts a list with `post`. Returns the outcome for C, and in `bad` the first request that was not posted.
///
/// # Safety
/// The caller keeps the contract of the C function for the list and `bad`.
#[inline(always)]
unsafe fn posted<R: Request>(
    first: *mut R,
    bad: *mut *mut R,
    post: impl Fn(*mut R, &Fault<R>) -> Result<core::result::Result<(), PostError>>,
) -> c_int {
    // The outcome passes the guard as a number; as a structure it would be copied at each level.
    let outcome = guarded(|| {
        let fault = Cell::new(None);
        match (post(first, &fault), fault.get()) {
            (Ok(Ok(())), None) => Ok(0),
            // SAFETY: as the caller promises; the requests before this one were posted.
            (Ok(Ok(())), Some((UNALIGNED, at))) => Ok(unsafe { unaligned(at, bad, &post) }),
            // SAFETY: as the caller promises.
            (other, fault) => Ok(unsafe { refused(first, bad, other, fault) }),
        }
    });
    match outcome {
        Ok(number) => number,
        // SAFETY: as the caller promises.
        Err(panicked) => unsafe { refused(first, bad, Err(panicked), None) },
    }
}

/// Reports a failed post: stores the first request that was not posted in `bad`, and returns the error number.
///
/// # Safety
/// As [`posted`].
#[cold]
unsafe fn refused<R: Request>(
    first: *mut R,
    bad: *mut *mut R,
    posted: Result<core::result::Result<(), PostError>>,
    fault: Option<(Errno, *mut R)>,
) -> c_int {
    let (error, at) = match (posted, fault) {
        (Ok(Ok(())), Some(fault)) => fault,
        (Ok(Ok(())), None) => return 0,
        (Ok(Err(error)), _) => {
            // SAFETY: the list has at least that many requests, because they were posted.
            let nth = (0..error.bad_wr).fold(first, |at, _| unsafe { (*at).next() });
            (error.into(), nth)
        }
        (Err(error), _) => (error, first),
    };
    // SAFETY: NULL, or a pointer that the caller must be able to write.
    if let Some(bad) = unsafe { bad.as_mut() } {
        *bad = at;
    }
    errno::set(error);
    error.0
}

/// Posts the rest of a list, beginning with a request that is not aligned. Posts each request separately, from a copy.
///
/// # Safety
/// As [`posted`].
#[cold]
unsafe fn unaligned<R: Request>(
    first: *mut R,
    bad: *mut *mut R,
    post: &impl Fn(*mut R, &Fault<R>) -> Result<core::result::Result<(), PostError>>,
) -> c_int {
    let mut at = first;
    while !at.is_null() {
        // SAFETY: a request, with any alignment.
        let mut request = unsafe { at.read_unaligned() };
        // SAFETY: they consist of numbers.
        let mut copies: [ibv_sge; SGE_MAX] = unsafe { zeroed() };
        let (next, list, count) = request.links();
        let next = core::mem::replace(next, core::ptr::null_mut());
        // `elements` refuses any other number.
        let count = usize::try_from(count).ok().filter(|count| *count <= SGE_MAX).unwrap_or(0);
        if !list.is_null() {
            for (index, copy) in copies.iter_mut().enumerate().take(count) {
                // SAFETY: the request has that many elements.
                *copy = unsafe { list.add(index).read_unaligned() };
            }
            *list = copies.as_mut_ptr();
        }
        let fault = Cell::new(None);
        let outcome = post(&raw mut request, &fault);
        if let (Ok(Ok(())), None) = (&outcome, fault.get()) {
            at = next;
            continue;
        }
        // The fault refers to the request of C, not to its copy.
        let fault = fault.get().map(|(error, _)| (error, at));
        // SAFETY: as the caller promises.
        return unsafe { refused(at, bad, outcome, fault) };
    }
    0
}

/// Posts a list of send requests.
///
/// # Safety
/// The caller keeps the contract of the C function for the list and `bad`.
#[inline]
pub(crate) unsafe fn post_send<'q>(
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    qp: impl Fn() -> Result<&'q Arc<Qp>>,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        posted(first, bad, |next, fault| {
            let qp = qp()?;
            Ok(qp.post_send(List { next, qp_type: qp.qp_type(), fault }))
        })
    }
}

/// Posts a list of receive requests.
///
/// # Safety
/// The caller keeps the contract of the C function for the list and `bad`.
#[inline]
pub(crate) unsafe fn post_recv(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    qp: impl Fn() -> Result<&'static Arc<Qp>>,
) -> c_int {
    // A receive request does not depend on the type of the queue pair.
    // SAFETY: as the caller promises.
    unsafe {
        posted(first, bad, |next, fault| Ok(qp()?.post_recv(List { next, qp_type: QpType::Rc, fault })))
    }
}

/// Posts a list of receive requests to a shared receive queue.
///
/// # Safety
/// The caller keeps the contract of the C function for the list and `bad`.
#[inline]
pub(crate) unsafe fn post_srq_recv(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    srq: impl Fn() -> Result<&'static Srq>,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        posted(first, bad, |next, fault| Ok(srq()?.post_recv(List { next, qp_type: QpType::Rc, fault })))
    }
}

impl Request for ibv_recv_wr {
    type Posted<'a> = RecvWr<'a>;

    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
    fn links(&mut self) -> (&mut *mut Self, &mut *mut ibv_sge, c_int) {
        (&mut self.next, &mut self.sg_list, self.num_sge)
    }

    #[inline(always)]
    unsafe fn turn<'a>(&self, _: QpType) -> Result<RecvWr<'a>> {
        // SAFETY: as the caller promises.
        Ok(RecvWr::new(self.wr_id, unsafe { elements(self.sg_list, self.num_sge) }?))
    }
}

impl Request for ibv_send_wr {
    type Posted<'a> = SendWr<'a>;

    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
    fn links(&mut self) -> (&mut *mut Self, &mut *mut ibv_sge, c_int) {
        let count = if is_local(self.opcode) { 0 } else { self.num_sge };
        (&mut self.next, &mut self.sg_list, count)
    }

    #[inline(always)]
    unsafe fn turn<'a>(&self, qp_type: QpType) -> Result<SendWr<'a>> {
        let flags = send_flags(self.send_flags);
        // Operations on local keys have no data: neither their lists nor the INLINE flag are read.
        let has_data = !is_local(self.opcode);
        let inline = has_data && flags.contains(SendFlags::INLINE);
        // SAFETY: the operation and the queue pair's type determine which member of a union C has set; all members consist of numbers and
        // pointers.
        unsafe {
            let list = if has_data { elements(self.sg_list, self.num_sge)? } else { &[] };
            let mut posted = self.operation(if inline { &[] } else { list })?;
            if inline {
                // The caller must keep the bytes valid until the post returns.
                posted = posted.inline_local(LocalBytes::new(list));
            }
            if flags.contains(SendFlags::SIGNALED) {
                posted = posted.signaled();
            }
            if flags.contains(SendFlags::SOLICITED) {
                posted = posted.solicited();
            }
            if flags.contains(SendFlags::FENCE) {
                posted = posted.fenced();
            }
            match qp_type {
                QpType::Ud => {
                    let to = &self.wr.ud;
                    Ok(posted.to(ah::of(to.ah)?, Qpn::new(to.remote_qpn), to.remote_qkey))
                }
                QpType::XrcIni if has_data => Ok(posted.remote_srqn(self.qp_type.xrc.remote_srqn)),
                _ => Ok(posted),
            }
        }
    }
}

/// Whether an operation is on local keys, so that it has no data and no peer.
#[inline]
fn is_local(opcode: u32) -> bool {
    opcode == WrOpcode::LocalInv as u32 || opcode == WrOpcode::BindMw as u32
}

impl ibv_send_wr {
    /// Converts the operation, with its data.
    ///
    /// # Safety
    /// As [`Request::turn`].
    #[inline(always)]
    unsafe fn operation<'a>(&self, list: &'a [Sge]) -> Result<SendWr<'a>> {
        let wr_id = self.wr_id;
        // SAFETY: see `turn`.
        let (imm, rdma, atomic) =
            unsafe { (u32::from_be(self.__bindgen_anon_1.imm_data), &self.wr.rdma, &self.wr.atomic) };
        Ok(match WrOpcode::from_number(self.opcode).ok_or(EINVAL)? {
            WrOpcode::Send => SendWr::send(wr_id, list),
            WrOpcode::SendWithImm => SendWr::send_with_imm(wr_id, list, imm),
            WrOpcode::RdmaWrite => SendWr::write(wr_id, list, rdma.remote_addr, rdma.rkey),
            WrOpcode::RdmaWriteWithImm => {
                SendWr::write_with_imm(wr_id, list, rdma.remote_addr, rdma.rkey, imm)
            }
            WrOpcode::RdmaRead => SendWr::read(wr_id, list, rdma.remote_addr, rdma.rkey),
            WrOpcode::AtomicCmpAndSwp => SendWr::cmp_and_swp(
                wr_id,
                list,
                atomic.remote_addr,
                atomic.rkey,
                atomic.compare_add,
                atomic.swap,
            ),
            WrOpcode::AtomicFetchAndAdd => {
                SendWr::fetch_and_add(wr_id, list, atomic.remote_addr, atomic.rkey, atomic.compare_add)
            }
            WrOpcode::AtomicWrite => SendWr::atomic_write(wr_id, list, rdma.remote_addr, rdma.rkey),
            // SAFETY: see `turn`.
            WrOpcode::SendWithInv => unsafe {
                SendWr::send_with_inv(wr_id, list, self.__bindgen_anon_1.invalidate_rkey)
            },
            // SAFETY: see `turn`.
            WrOpcode::LocalInv => unsafe { SendWr::local_inv(wr_id, self.__bindgen_anon_1.invalidate_rkey) },
            // SAFETY: see `turn`.
            WrOpcode::BindMw => unsafe {
                let bind = &self.__bindgen_anon_2.bind_mw;
                let window = mw::of(bind.mw)?;
                mw::with_bind(&bind.bind_info, |info| SendWr::bind_mw(wr_id, window, bind.rkey, info))??
            },
            // FLUSH exists only as a function of `struct ibv_qp_ex`.
            _ => return Err(EINVAL),
        })
    }
}
