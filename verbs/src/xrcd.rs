//! XRC domains, and the receiving side of an XRC connection.
//!
//! With XRC, one connection serves every shared receive queue of a domain at the remote end. An [initiator](crate::QpInitAttr::xrc_ini)
//! only sends, and names a queue in each request ([`SendWr::remote_srqn`](crate::SendWr::remote_srqn)). A target only receives. At the
//! target, memory access is checked in the protection domain of the named queue.
//!
//! A domain belongs to this process alone, or is shared by processes of the same user that open it by the same file. The targets of a
//! shared domain are in a process of their own, to which the calls on them are sent.

use std::os::fd::AsFd;
use std::sync::Arc;

use stack::device::{
    AttrMask, Device, Psn, QpAttr, QpCore, QpState, QpType, Qpn, XrcSrqInit, XrcdCore, required,
};
use stack::xrc::{DomainFile, SharedTarget, SharedXrcd, can_share};

use crate::attr::attr_init;
use crate::connect::{RcEndpoint, RcOptions};
use crate::context::Context;
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::flags::XrcdOflags;
use crate::pd::Pd;
use crate::srq::{Srq, SrqInitAttr};

pub use stack::device::XrcdInitAttr;

/// A handle of an open XRC domain (`struct ibv_xrcd`).
///
/// The domain lives until its last handle is closed or dropped. Handles come from [`Context::open_xrcd`](Context::open_xrcd) (by name),
/// from [`Context::open_xrcd_of`](Context::open_xrcd_of) (by file, in any process) and from [`open_again`](Self::open_again).
///
/// There are two kinds of targets. [`create_qp`](Self::create_qp) creates one with a handle. [`alloc_xrc_rcv_qp`](Self::alloc_xrc_rcv_qp)
/// creates a receive-only one and returns only its number. The latter belongs to the domain and lives as long as the domain, even if the
/// handle that created it is closed. Its asynchronous events are logged; when it fails, the retries of its senders run out.
#[derive(Debug)]
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd {
    domain: Domain,
}

/// Who has the domain.
#[derive(Debug)]
enum Domain {
    /// Private to this process.
    Own(Arc<XrcdCore>),
    /// Shared by processes of the user.
    Shared(Arc<SharedXrcd>),
}

impl Context {
    /// Opens an XRC domain by name, or an anonymous one.
    ///
    /// ```
    /// # use verbs::{Access, Context, DeviceConfig, QpInitAttr, QpType, RcOptions, RecvWr, SendWr, SrqInitAttr, Wc};
    /// # use verbs::XrcdInitAttr;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(DeviceConfig::loopback())?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let mr = pd.reg_mr(4096, Access::LOCAL_WRITE)?;
    /// let xrcd = context.open_xrcd(&XrcdInitAttr::anonymous())?;
    /// let srq = pd.create_xrc_srq(&SrqInitAttr::new(16, 1), &xrcd, &cq)?;
    /// let target = xrcd.create_qp(None)?;
    /// let initiator = pd.create_qp(&QpInitAttr::new(QpType::XrcIni, &cq, &cq))?;
    /// target.connect(&initiator.endpoint(1)?, &RcOptions::default())?;
    /// initiator.connect_rc(&target.endpoint(1)?, &RcOptions::default())?;
    /// // Each message names the queue that takes it.
    /// srq.post_recv(&[RecvWr::new(1, &[mr.sge(0..64)?])])?;
    /// initiator.post_send(&[SendWr::send(2, &[]).inline(b"hello").remote_srqn(srq.srq_num())])?;
    /// let mut wc = [Wc::default()];
    /// while cq.poll(&mut wc)? == 0 {}
    /// assert_eq!((wc[0].wr_id, wc[0].byte_len), (1, 5));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ENOENT` if no domain of that name exists and `create` is not set, or if there is neither a name nor `create`; `EEXIST` if it exists
    /// and `exclusive` is set.
    #[doc(alias = "ibv_open_xrcd")]
    #[doc(alias = "ibv_open_xrc_domain")]
    pub fn open_xrcd(&self, init: &XrcdInitAttr<'_>) -> Result<Xrcd, VerbsError> {
        Ok(Xrcd { domain: Domain::Own(self.device().open_xrcd(init)?) })
    }

    /// Opens the XRC domain of a file. It is shared by all processes of the user that open it by the same file on a port of kind `host`.
    ///
    /// A target that one process creates delivers messages to the shared receive queues of all processes, whichever queue a message names.
    /// The target outlives the process that created it: it lives until its last handle is dropped or no process has the domain open any
    /// more. For that purpose it is in a separate process, `roce-xrcd`. The first target or shared receive queue of the domain starts that
    /// process, which exits by itself.
    ///
    /// To use a domain within one process, or on another kind of port, open it by name with [`open_xrcd`](Self::open_xrcd).
    ///
    /// ```no_run
    /// # use verbs::{Context, DeviceConfig, SrqInitAttr, XrcdOflags, port::PortSpec};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let context = Context::open(DeviceConfig::new("host".parse::<PortSpec>()?))?;
    /// let file = std::fs::File::open("/var/tmp/jobs")?;
    /// let xrcd = context.open_xrcd_of(&file, XrcdOflags::CREAT)?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// // Whoever connects to a target of the domain, in any process, can name this queue.
    /// let srq = pd.create_xrc_srq(&SrqInitAttr::new(16, 1), &xrcd, &cq)?;
    /// println!("{}", srq.srq_num());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EOPNOTSUPP` on any port other than `host` ([`can_share_xrcds`](Self::can_share_xrcds)), and if the other processes run another
    /// release; `ENOENT` if the domain does not exist and `CREAT` is not set; `EEXIST` if it exists and `EXCL` is set. Other processes see
    /// a domain only once something has been created in it. `EPERM` if another user has taken its name; `ETIMEDOUT` if the process
    /// `roce-xrcd` does not answer.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd_of(&self, file: impl AsFd, oflags: XrcdOflags) -> Result<Xrcd, VerbsError> {
        let file = DomainFile::of(file).map_err(|error| VerbsError::File {
            call: "fstat of the file of an XRC domain",
            errno: error.raw_os_error().unwrap_or(crate::errno::EIO),
        })?;
        let (create, exclusive) = (oflags.contains(XrcdOflags::CREAT), oflags.contains(XrcdOflags::EXCL));
        let shared = self.shared_xrcds().open(self.device(), file, create, exclusive)?;
        Ok(Xrcd { domain: Domain::Shared(shared) })
    }

    /// Whether the device's port connects the processes of this host, so that they can share XRC domains.
    pub fn can_share_xrcds(&self) -> bool {
        can_share(self.device())
    }
}

impl Pd {
    /// Creates a shared receive queue of an XRC domain. XRC initiators name it by its number ([`Srq::srq_num`]). Its requests complete in
    /// `cq`, whichever target of the domain received the message.
    ///
    /// Its buffers, and the keys in messages that name the queue, are checked in this protection domain.
    ///
    /// # Errors
    /// As [`create_srq`](Self::create_srq); `EINVAL` also for a domain or completion queue of another context; `EDEADLK` from inside a
    /// turn. For a shared domain also [`VerbsError::Xrc`], because the first call may have to start the process that owns the domain.
    #[doc(alias = "ibv_create_srq_ex")]
    #[doc(alias = "ibv_create_xrc_srq")]
    pub fn create_xrc_srq(&self, init: &SrqInitAttr, xrcd: &Xrcd, cq: &Cq) -> Result<Srq, VerbsError> {
        match &xrcd.domain {
            Domain::Own(core) => {
                let xrc = XrcSrqInit { xrcd: core, cq: cq.core(), number: None };
                Ok(Srq::new(self.core().create_srq(&init.attr, Some(xrc))?))
            }
            Domain::Shared(shared) => {
                let (core, number) = shared.create_srq(self.core(), &init.attr, cq.core())?;
                Ok(Srq::of_shared_domain(core, number))
            }
        }
    }
}

impl Xrcd {
    fn device(&self) -> &Arc<Device> {
        match &self.domain {
            Domain::Own(core) => core.device(),
            Domain::Shared(shared) => shared.device(),
        }
    }

    /// Another handle of the same domain, which has to be closed or dropped as well.
    #[must_use]
    pub fn open_again(&self) -> Self {
        let domain = match &self.domain {
            Domain::Own(core) => Domain::Own(core.again()),
            Domain::Shared(shared) => Domain::Shared(shared.again()),
        };
        Self { domain }
    }

    /// Creates a target in RESET, on `shard` or, if `None`, on the least loaded one. For a shared domain, the process that has the targets
    /// chooses the shard.
    ///
    /// # Errors
    /// `EINVAL` for a shard that does not exist; `ENOMEM` if no queue pair number is left; `ENODEV` if the call starts the port and its
    /// device cannot be opened; `EDEADLK` from inside a turn. For a shared domain also [`VerbsError::Xrc`].
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp(&self, shard: Option<usize>) -> Result<XrcTarget, VerbsError> {
        Ok(XrcTarget {
            target: match &self.domain {
                Domain::Own(core) => Target::Own(core.create_qp(shard, None)?),
                Domain::Shared(shared) => Target::Shared(shared.create_qp()?),
            },
        })
    }

    /// Another handle of a target of this domain. The queue pair lives as long as any of its handles.
    ///
    /// # Errors
    /// `EINVAL` if the domain has no target of this number with a handle. For a shared domain also [`VerbsError::Xrc`].
    #[doc(alias = "ibv_open_qp")]
    pub fn open_qp(&self, qp_num: Qpn) -> Result<XrcTarget, VerbsError> {
        Ok(XrcTarget {
            target: match &self.domain {
                Domain::Own(core) => Target::Own(core.open_qp(qp_num)?),
                Domain::Shared(shared) => Target::Shared(shared.open_qp(qp_num)?),
            },
        })
    }

    /// Creates a receive-only target that belongs to the domain, and moves it from RESET through INIT to RTR. Uses these fields of `attr`:
    /// `pkey_index`, `port_num`, `qp_access_flags`, `ah_attr`, `path_mtu`, `dest_qp_num`, `rq_psn`, `max_dest_rd_atomic` and
    /// `min_rnr_timer`. Returns the target's number, for the initiator.
    ///
    /// This handle is registered as a user of the target ([`reg_xrc_rcv_qp`](Self::reg_xrc_rcv_qp)).
    ///
    /// # Errors
    /// As [`create_qp`](Self::create_qp) and [`Qp::modify`](crate::Qp::modify). No target exists after an error.
    #[doc(alias = "ibv_alloc_xrc_rcv_qp")]
    #[doc(alias = "ibv_create_xrc_rcv_qp")]
    pub fn alloc_xrc_rcv_qp(&self, attr: &QpAttr) -> Result<Qpn, VerbsError> {
        Ok(match &self.domain {
            Domain::Own(core) => core.create_receiver(attr)?,
            Domain::Shared(shared) => shared.create_receiver(attr)?,
        })
    }

    /// As [`alloc_xrc_rcv_qp`](Self::alloc_xrc_rcv_qp), for the initiator `peer`. If the options contain no path MTU, it is the port's.
    ///
    /// # Errors
    /// As [`alloc_xrc_rcv_qp`](Self::alloc_xrc_rcv_qp).
    pub fn accept_xrc(&self, peer: &RcEndpoint, options: &RcOptions) -> Result<Qpn, VerbsError> {
        let attr = options.rtr(self.device(), peer);
        self.alloc_xrc_rcv_qp(&QpAttr { port_num: 1, qp_access_flags: options.access.bits(), ..attr })
    }

    /// Modifies a receive-only target. In ERR it drops incoming packets, so the retries of its senders run out.
    ///
    /// # Errors
    /// `EINVAL` if the domain has no receive-only target of this number; those of [`Qp::modify`](crate::Qp::modify).
    #[doc(alias = "ibv_modify_xrc_rcv_qp")]
    pub fn modify_xrc_rcv_qp(&self, qp_num: Qpn, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
        match &self.domain {
            Domain::Own(core) => core.modify_receiver(qp_num, attr, mask)?,
            Domain::Shared(shared) => shared.modify_receiver(qp_num, attr, mask)?,
        }
        Ok(())
    }

    /// The attributes of a receive-only target.
    ///
    /// # Errors
    /// `EINVAL` if the domain has no receive-only target of this number; `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_query_xrc_rcv_qp")]
    pub fn query_xrc_rcv_qp(&self, qp_num: Qpn) -> Result<QpAttr, VerbsError> {
        Ok(match &self.domain {
            Domain::Own(core) => core.query_receiver(qp_num)?,
            Domain::Shared(shared) => shared.query_receiver(qp_num)?,
        })
    }

    /// Registers this handle as a user of a receive-only target. While any handle is registered,
    /// [`unreg_xrc_rcv_qp`](Self::unreg_xrc_rcv_qp) of the others does not destroy the target.
    ///
    /// # Errors
    /// `EINVAL` if the domain has no receive-only target of this number.
    #[doc(alias = "ibv_reg_xrc_rcv_qp")]
    pub fn reg_xrc_rcv_qp(&self, qp_num: Qpn) -> Result<(), VerbsError> {
        match &self.domain {
            Domain::Own(core) => core.register_receiver(qp_num)?,
            Domain::Shared(shared) => shared.register_receiver(qp_num)?,
        }
        Ok(())
    }

    /// Ends a registration. Ending the last one destroys the target; otherwise it lives until the domain ends. Closing a handle does not
    /// end its registration in this sense: the target stays.
    ///
    /// # Errors
    /// `EINVAL` if the domain has no receive-only target of this number, or this handle is not registered with it; `EDEADLK` from inside a
    /// turn.
    #[doc(alias = "ibv_unreg_xrc_rcv_qp")]
    pub fn unreg_xrc_rcv_qp(&self, qp_num: Qpn) -> Result<(), VerbsError> {
        match &self.domain {
            Domain::Own(core) => core.unregister_receiver(qp_num)?,
            Domain::Shared(shared) => shared.unregister_receiver(qp_num)?,
        }
        Ok(())
    }

    /// Closes this handle. Closing the last one ends the domain and its receive-only targets.
    ///
    /// # Errors
    /// `EBUSY` while shared receive queues or targets exist that were created with this handle; `EDEADLK` from inside a turn. The handle is
    /// returned with the error.
    #[doc(alias = "ibv_close_xrcd")]
    #[doc(alias = "ibv_close_xrc_domain")]
    pub fn close(self) -> Result<(), (VerbsError, Self)> {
        let closed = match self.domain {
            Domain::Own(core) => XrcdCore::close(core).map_err(|(e, core)| (e, Domain::Own(core))),
            Domain::Shared(shared) => {
                SharedXrcd::close(shared).map_err(|(e, shared)| (e, Domain::Shared(shared)))
            }
        };
        closed.map_err(|(e, domain)| (e.into(), Self { domain }))
    }
}

/// A handle of an XRC target (`struct ibv_qp` of type `IBV_QPT_XRC_RECV`): a queue pair without work queues. A message that it receives is
/// stored in the shared receive queue that the sender names, and completes in the completion queue of that queue with the target's number
/// ([`Wc::qp_num`](crate::Wc::qp_num), [`Wc::srq_num`](crate::Wc::srq_num)).
#[derive(Debug)]
#[doc(alias = "IBV_QPT_XRC_RECV")]
pub struct XrcTarget {
    target: Target,
}

/// Which process has the queue pair.
#[derive(Debug)]
enum Target {
    /// This process.
    Own(Arc<QpCore>),
    /// The process that owns the targets of a shared domain.
    Shared(SharedTarget),
}

impl XrcTarget {
    fn device(&self) -> &Arc<Device> {
        match &self.target {
            Target::Own(core) => core.device(),
            Target::Shared(shared) => shared.device(),
        }
    }

    /// The queue pair's number.
    pub fn qp_num(&self) -> Qpn {
        match &self.target {
            Target::Own(core) => core.qpn(),
            Target::Shared(shared) => shared.qpn(),
        }
    }
    /// The shard that owns it; `None` if it is in another process because its domain is shared.
    pub fn shard(&self) -> Option<usize> {
        match &self.target {
            Target::Own(core) => Some(core.shard()),
            Target::Shared(_) => None,
        }
    }
    /// Its state, without a control call. For a shared domain, the state that this handle set or queried last.
    pub fn state(&self) -> QpState {
        match &self.target {
            Target::Own(core) => core.state(),
            Target::Shared(shared) => shared.state(),
        }
    }
    /// What to send to the initiator out of band. The initiator never checks the PSN, because a target sends no requests.
    ///
    /// # Errors
    /// `EINVAL` if the GID table has no such index.
    pub fn endpoint(&self, sgid_index: u8) -> Result<RcEndpoint, VerbsError> {
        let gid = crate::context::gid(self.device(), usize::from(sgid_index))?;
        Ok(RcEndpoint { gid, qpn: self.qp_num(), psn: self.first_psn() })
    }
    /// A random first PSN for the transition to RTS, which requires one.
    pub fn first_psn(&self) -> Psn {
        match &self.target {
            Target::Own(core) => core.first_psn(),
            Target::Shared(shared) => shared.first_psn(),
        }
    }
    /// As [`Qp::modify`](crate::Qp::modify). For a shared domain, a target in RTR can deliver to the shared receive queues of all processes
    /// when the call returns.
    ///
    /// # Errors
    /// As [`Qp::modify`](crate::Qp::modify); for a shared domain also [`VerbsError::Xrc`].
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
        match &self.target {
            Target::Own(core) => core.modify(attr, mask)?,
            Target::Shared(shared) => shared.modify(attr, mask)?,
        }
        Ok(())
    }
    /// The current value of every attribute.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn; for a shared domain also [`VerbsError::Xrc`].
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr, VerbsError> {
        Ok(match &self.target {
            Target::Own(core) => core.query()?,
            Target::Shared(shared) => shared.query()?,
        })
    }
    /// Moves it from RESET through INIT to RTR, for the initiator `peer`. A target needs no further state.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn connect(&self, peer: &RcEndpoint, options: &RcOptions) -> Result<(), VerbsError> {
        let (attr, mask) = attr_init(options.access);
        self.modify(&attr, mask)?;
        let attr = options.rtr(self.device(), peer);
        self.modify(&attr, required(QpState::Init, QpState::Rtr, QpType::XrcTgt))
    }
    /// Drops this handle. Dropping the last one destroys the queue pair.
    ///
    /// # Errors
    /// For the last handle, `EBUSY` while an asynchronous event of the queue pair was fetched and not acknowledged; for a shared domain,
    /// for any handle. `EDEADLK` from inside a turn. The handle is returned with the error.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Result<(), (VerbsError, Self)> {
        let destroyed = match self.target {
            Target::Own(core) => match QpCore::destroy(core) {
                // Another handle keeps the queue pair alive; this one is dropped.
                Err((stack::device::DeviceError::Busy { .. }, core)) => {
                    drop(core);
                    Ok(())
                }
                destroyed => destroyed.map_err(|(e, core)| (e, Target::Own(core))),
            },
            Target::Shared(shared) => shared.destroy().map_err(|(e, shared)| (e, Target::Shared(shared))),
        };
        destroyed.map_err(|(e, target)| (e.into(), Self { target }))
    }
}
