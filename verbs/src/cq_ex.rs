//! Extended completion queues: their attributes, and reading completions field by field.

use stack::device::wqe::Cqe;
use stack::device::{CqCore, CqInit, CqTap, Qpn, WcFlags, WcOpcode, WcStatus};

use crate::comp_channel::CompChannel;
use crate::context::Context;
use crate::cq::{Cq, fill};
use crate::error::{VerbsError, unavailable};
use crate::flags::CqWcFlags;
use crate::pd::Pd;
use crate::wc::Wc;

/// Attributes of a completion queue (`struct ibv_cq_init_attr_ex`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_cq_init_attr_ex")]
pub struct CqInitAttr<'a> {
    /// The least number of entries.
    pub cqe: u32,
    /// The channel for its events. Without one the queue raises no events and is cheaper.
    pub channel: Option<&'a CompChannel>,
    /// The completion vector, below [`Context::num_comp_vectors`](crate::Context::num_comp_vectors), which is 1; so it must be 0.
    pub comp_vector: u32,
    /// An arbitrary number of the program, which events carry.
    pub cq_context: u64,
    /// The fields that completions must carry.
    pub wc_flags: CqWcFlags,
    /// The parent domain in which it is created, with or without a thread domain. The queue counts as a user of the domain.
    pub parent_domain: Option<&'a Pd>,
}

impl<'a> CqInitAttr<'a> {
    /// Attributes of a queue of at least `cqe` entries, without events.
    pub const fn new(cqe: u32) -> Self {
        Self {
            cqe,
            channel: None,
            comp_vector: 0,
            cq_context: 0,
            wc_flags: CqWcFlags::empty(),
            parent_domain: None,
        }
    }
    /// Sends the queue's events to `channel`.
    #[must_use]
    pub const fn channel(mut self, channel: &'a CompChannel) -> Self {
        self.channel = Some(channel);
        self
    }
    /// Creates the queue in this parent domain.
    #[must_use]
    pub const fn parent_domain(mut self, parent_domain: &'a Pd) -> Self {
        self.parent_domain = Some(parent_domain);
        self
    }
    /// Sets the number that the queue's events carry.
    #[must_use]
    pub const fn context(mut self, cq_context: u64) -> Self {
        self.cq_context = cq_context;
        self
    }
}

impl Context {
    /// Creates a completion queue of at least `cqe` entries.
    ///
    /// The queue must have room for all completions that can wait at the same time. If it overruns, it loses completions and moves its
    /// queue pairs to ERR (ibv_create_cq(3)). [`CqErr`](crate::AsyncEvent::CqErr) is raised at the time of the loss. The completions that
    /// precede the loss stay in the queue and can still be polled after that event.
    ///
    /// # Errors
    /// `EINVAL` for 0 entries or more than [`DeviceAttr::max_cqe`](crate::DeviceAttr::max_cqe); `ENOMEM` if
    /// [`DeviceAttr::max_cq`](crate::DeviceAttr::max_cq) queues exist.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, cqe: u32) -> Result<Cq, VerbsError> {
        self.create_cq_ex(&CqInitAttr::new(cqe))
    }

    /// Creates a completion queue, with events if [`CqInitAttr::channel`] is set.
    ///
    /// # Errors
    /// `EINVAL` for 0 entries or more than [`DeviceAttr::max_cqe`](crate::DeviceAttr::max_cqe), for a channel or parent domain of another
    /// device, for a protection domain that is not a parent domain, and for a `comp_vector` that does not exist; `EOPNOTSUPP` for fields
    /// that completions of RoCE do not have.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_cq_ex(&self, init: &CqInitAttr<'_>) -> Result<Cq, VerbsError> {
        let count = self.num_comp_vectors();
        if init.comp_vector >= count {
            let (index, count) = (init.comp_vector as usize, count as usize);
            return Err(VerbsError::NoSuchIndex { what: "completion vector", index, first: 0, count });
        }
        let missing = init.wc_flags.difference(CqWcFlags::SUPPORTED);
        if !missing.is_empty() {
            return Err(VerbsError::NoSuchField(missing));
        }
        let channel = init.channel.map(CompChannel::core);
        let parent = init.parent_domain.map(Pd::core);
        let init = CqInit { cqe: init.cqe, channel, context: init.cq_context, parent };
        Ok(Cq::new(self.device().create_cq(&init)?))
    }

    /// The number of completion vectors that [`CqInitAttr::comp_vector`] can select: 1.
    pub fn num_comp_vectors(&self) -> u32 {
        1
    }
}

/// Reads completions one by one and field by field (`ibv_start_poll(3)`). From [`Cq::start_poll`](Cq::start_poll).
///
/// It refers to one completion, which has left the queue. [`next_poll`](Self::next_poll) advances to the next one. It holds the polling end
/// of the queue: while it exists, polls of other threads wait, and polls of the thread that started it fail with `EDEADLK`. Unlike a lock,
/// it may be ended on another thread. Dropping it ends it, as `ibv_end_poll` does.
#[doc(alias = "ibv_cq_ex")]
#[doc(alias = "ibv_end_poll")]
pub struct CqExPoll<'a> {
    core: &'a CqCore,
    /// Returned to the queue by `drop`.
    tap: Option<CqTap>,
    cqe: Cqe,
}

impl Cq {
    /// Starts reading completions one by one and field by field. `None` if there is no completion.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[doc(alias = "ibv_start_poll")]
    pub fn start_poll(&self) -> Result<Option<CqExPoll<'_>>, VerbsError> {
        CqExPoll::start(self.core())
    }
}

impl<'a> CqExPoll<'a> {
    /// Starts at the first completion. `None` if there is none.
    fn start(core: &'a CqCore) -> Result<Option<Self>, VerbsError> {
        let tap = core.tap().borrow().map_err(|why| unavailable("completion queue", why))?;
        let mut poll = Self { core, tap: Some(tap), cqe: Cqe::default() };
        if poll.next_poll()? {
            return Ok(Some(poll));
        }
        drop(poll);
        core.rest();
        Ok(None)
    }

    /// Advances to the next completion. Returns `false` if there is none; `self` still refers to the last one then.
    ///
    /// # Errors
    /// As [`Cq::poll`](Cq::poll).
    #[doc(alias = "ibv_next_poll")]
    pub fn next_poll(&mut self) -> Result<bool, VerbsError> {
        let Some(tap) = &mut self.tap else { return Ok(false) };
        let cqe = &mut self.cqe;
        let is_there = fill(self.core, tap, 1, |next| *cqe = *next)? == 1;
        if is_there {
            self.core.send_unsent();
        }
        Ok(is_there)
    }

    /// All fields of the completion.
    pub fn wc(&self) -> Wc {
        Wc::from_cqe(&self.cqe)
    }
    /// The `wr_id` of the work request.
    pub fn wr_id(&self) -> u64 {
        self.cqe.wr_id
    }
    /// How the work request ended. If it failed, only `wr_id`, the queue pair number and the vendor error are valid.
    pub fn status(&self) -> WcStatus {
        self.wc().status
    }
    /// The kind of work request.
    #[doc(alias = "ibv_wc_read_opcode")]
    pub fn read_opcode(&self) -> WcOpcode {
        self.wc().opcode
    }
    /// See [`Wc::vendor_err`].
    #[doc(alias = "ibv_wc_read_vendor_err")]
    pub fn read_vendor_err(&self) -> u32 {
        self.cqe.vendor_err
    }
    /// Bytes received; for READs and atomics, bytes returned.
    #[doc(alias = "ibv_wc_read_byte_len")]
    pub fn read_byte_len(&self) -> u32 {
        self.cqe.byte_len
    }
    /// See [`Wc::imm_data`].
    #[doc(alias = "ibv_wc_read_imm_data")]
    pub fn read_imm_data(&self) -> Option<u32> {
        self.wc().imm_data()
    }
    /// See [`Wc::invalidated_rkey`].
    #[doc(alias = "ibv_wc_read_invalidated_rkey")]
    pub fn read_invalidated_rkey(&self) -> Option<u32> {
        self.wc().invalidated_rkey()
    }
    /// The number of the queue pair.
    #[doc(alias = "ibv_wc_read_qp_num")]
    pub fn read_qp_num(&self) -> Qpn {
        self.cqe.qpn
    }
    /// For a datagram, the number of the queue pair that sent it.
    #[doc(alias = "ibv_wc_read_src_qp")]
    pub fn read_src_qp(&self) -> Qpn {
        self.cqe.src_qp
    }
    /// Says which optional fields are valid.
    #[doc(alias = "ibv_wc_read_wc_flags")]
    pub fn read_wc_flags(&self) -> WcFlags {
        self.wc().wc_flags
    }
    /// The sender's LID: 0 on RoCE.
    #[doc(alias = "ibv_wc_read_slid")]
    pub fn read_slid(&self) -> u32 {
        0
    }
    /// See [`Wc::sl`].
    #[doc(alias = "ibv_wc_read_sl")]
    pub fn read_sl(&self) -> u8 {
        self.cqe.sl
    }
    /// Path bits of the destination LID: 0 on RoCE.
    #[doc(alias = "ibv_wc_read_dlid_path_bits")]
    pub fn read_dlid_path_bits(&self) -> u8 {
        0
    }
    /// When the completion was generated, in nanoseconds on the device's clock ([`Context::now`](crate::Context::now)).
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn read_completion_ts(&self) -> u64 {
        self.cqe.timestamp
    }
    /// When the completion was generated, in nanoseconds since 1970. Converted by reading the device's clock and the current system clock.
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    pub fn read_completion_wallclock_ns(&self) -> u64 {
        self.core.device().wallclock_ns(self.cqe.timestamp)
    }
    /// Ends polling; the same as dropping.
    pub fn end_poll(self) {}
}

impl Drop for CqExPoll<'_> {
    fn drop(&mut self) {
        if let Some(tap) = self.tap.take() {
            self.core.tap().give_back(tap);
        }
    }
}

impl std::fmt::Debug for CqExPoll<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqExPoll").field("at", &self.wc()).finish_non_exhaustive()
    }
}
