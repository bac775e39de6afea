//! Extended completion queues: their attributes, and completions read field by field.

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
    /// Entries, at least.
    pub cqe: u32,
    /// The channel for its events; `None`: it has none, and costs less.
    pub channel: Option<&'a CompChannel>,
    /// Its completion vector; below [`Context::num_comp_vectors`](crate::Context::num_comp_vectors), which is 1.
    pub comp_vector: u32,
    /// Any number of the program's; events carry it.
    pub cq_context: u64,
    /// What completions must carry.
    pub wc_flags: CqWcFlags,
    /// The parent domain that it is created in, with or without a thread domain; the queue keeps it in use.
    pub parent_domain: Option<&'a Pd>,
}

impl<'a> CqInitAttr<'a> {
    /// A queue of at least `cqe` entries, without events.
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
    /// With events, which go to `channel`.
    #[must_use]
    pub const fn channel(mut self, channel: &'a CompChannel) -> Self {
        self.channel = Some(channel);
        self
    }
    /// In this parent domain.
    #[must_use]
    pub const fn parent_domain(mut self, parent_domain: &'a Pd) -> Self {
        self.parent_domain = Some(parent_domain);
        self
    }
    /// With a number that its events carry.
    #[must_use]
    pub const fn context(mut self, cq_context: u64) -> Self {
        self.cq_context = cq_context;
        self
    }
}

impl Context {
    /// Creates a completion queue of at least `cqe` entries.
    ///
    /// It must hold every completion that can wait at once; one that overruns loses completions and moves its queue pairs to
    /// ERR (ibv_create_cq(3)). [`CqErr`](crate::AsyncEvent::CqErr) is raised when the loss happens, so it may be fetched
    /// before the completions that precede the loss: these wait in the queue, and are polled first.
    ///
    /// # Errors
    /// `EINVAL` for 0 entries or more than [`DeviceAttr::max_cqe`](crate::DeviceAttr::max_cqe), `ENOMEM` with
    /// [`DeviceAttr::max_cq`](crate::DeviceAttr::max_cq) queues.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, cqe: u32) -> Result<Cq, VerbsError> {
        self.create_cq_ex(&CqInitAttr::new(cqe))
    }

    /// Creates a completion queue, with events if [`CqInitAttr::channel`] is set.
    ///
    /// # Errors
    /// `EINVAL` for 0 entries or more than [`DeviceAttr::max_cqe`](crate::DeviceAttr::max_cqe), for a channel or parent
    /// domain of another device, for a protection domain that is no parent domain, for a `comp_vector` that does not exist;
    /// `EOPNOTSUPP` for fields that completions of RoCE do not have.
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

    /// The number of completion vectors to choose from in [`CqInitAttr::comp_vector`]: 1.
    pub fn num_comp_vectors(&self) -> u32 {
        1
    }
}

/// Completions read one by one and field by field (`ibv_start_poll(3)`), from [`Cq::start_poll`](Cq::start_poll).
///
/// It refers to one completion, which has left the queue; [`next_poll`](Self::next_poll) moves on to the next. It holds the
/// reading end of the queue: while it lives, polls of other threads wait, and those of the thread that started it are refused
/// (`EDEADLK`). Unlike a lock, it may be ended on another thread. Dropping it is `ibv_end_poll`.
#[doc(alias = "ibv_cq_ex")]
#[doc(alias = "ibv_end_poll")]
pub struct CqExPoll<'a> {
    core: &'a CqCore,
    /// Given back by `drop`.
    tap: Option<CqTap>,
    cqe: Cqe,
}

impl Cq {
    /// Starts reading completions one by one and field by field; `None`: there is none.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[doc(alias = "ibv_start_poll")]
    pub fn start_poll(&self) -> Result<Option<CqExPoll<'_>>, VerbsError> {
        CqExPoll::start(self.core())
    }
}

impl<'a> CqExPoll<'a> {
    /// At the first completion; `None`: there is none.
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

    /// Moves on to the next completion. `false`: there is none, and it still refers to the last one.
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

    /// All fields at once.
    pub fn wc(&self) -> Wc {
        Wc::from_cqe(&self.cqe)
    }
    /// The work request's tag.
    pub fn wr_id(&self) -> u64 {
        self.cqe.wr_id
    }
    /// How the work request ended. Where it did not succeed, only `wr_id`, the queue pair and the vendor error are valid.
    pub fn status(&self) -> WcStatus {
        self.wc().status
    }
    /// What kind of work request it was.
    #[doc(alias = "ibv_wc_read_opcode")]
    pub fn read_opcode(&self) -> WcOpcode {
        self.wc().opcode
    }
    /// See [`Wc::vendor_err`].
    #[doc(alias = "ibv_wc_read_vendor_err")]
    pub fn read_vendor_err(&self) -> u32 {
        self.cqe.vendor_err
    }
    /// Bytes received; for READ and atomics, bytes returned.
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
    /// The queue pair.
    #[doc(alias = "ibv_wc_read_qp_num")]
    pub fn read_qp_num(&self) -> Qpn {
        self.cqe.qpn
    }
    /// The sender's queue pair of a datagram.
    #[doc(alias = "ibv_wc_read_src_qp")]
    pub fn read_src_qp(&self) -> Qpn {
        self.cqe.src_qp
    }
    /// Which optional fields are valid.
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
    /// When the completion was generated: nanoseconds of the device's clock ([`Context::now`](crate::Context::now)).
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn read_completion_ts(&self) -> u64 {
        self.cqe.timestamp
    }
    /// When the completion was generated: nanoseconds since 1970 by the system's clock as it is set now. Reads both clocks.
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    pub fn read_completion_wallclock_ns(&self) -> u64 {
        self.core.device().wallclock_ns(self.cqe.timestamp)
    }
    /// Ends polling, as dropping does.
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
