//! XRC domains, and the receiving half of an XRC connection.
//!
//! XRC lets one connection serve every shared receive queue of a domain at its far end. An
//! [initiator](crate::QpInitAttr::xrc_ini) sends, and names a queue with each request
//! ([`SendWr::remote_srqn`](crate::SendWr::remote_srqn)); a target only receives. Memory at the target is checked in
//! the protection domain of the named queue.
//!
//! A domain belongs to this process alone, or processes of the user share it, by a file that each of them opens it by. Then its targets
//! are in a process of their own, and calls on them ask that one.

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

/// One open of an XRC domain (`struct ibv_xrcd`).
///
/// The domain lives until its last open is closed or dropped: those by name ([`Context::open_xrcd`](Context::open_xrcd)), or by file
/// in any process ([`Context::open_xrcd_of`](Context::open_xrcd_of)), and those made from another one
/// ([`open_again`](Self::open_again)).
///
/// Two kinds of targets exist. One with a handle is created by [`create_qp`](Self::create_qp). A receive-only one is created
/// by [`alloc_xrc_rcv_qp`](Self::alloc_xrc_rcv_qp), which returns only its number: it belongs to the domain and lives as
/// long, whichever open created it. Its asynchronous events go to the log; when it fails, its senders run out of retries.
#[derive(Debug)]
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd {
    domain: Domain,
}

/// Whose domain it is.
#[derive(Debug)]
enum Domain {
    /// This process's.
    Own(Arc<XrcdCore>),
    /// The user's processes share it.
    Shared(Arc<SharedXrcd>),
}

impl Context {
    /// Opens an XRC domain. See [`Xrcd`].
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
    /// `ENOENT` where no domain of that name exists and `create` is not set (nor without a name), `EEXIST` where one exists
    /// and `exclusive` is set.
    #[doc(alias = "ibv_open_xrcd")]
    #[doc(alias = "ibv_open_xrc_domain")]
    pub fn open_xrcd(&self, init: &XrcdInitAttr<'_>) -> Result<Xrcd, VerbsError> {
        Ok(Xrcd { domain: Domain::Own(self.device().open_xrcd(init)?) })
    }

    /// Opens the XRC domain of a file, which all processes of the user share that open it by the same file, over the port `host`.
    ///
    /// A target that one of them makes passes messages on to the shared receive queues of all, whichever a message names. It outlives
    /// the process that made it, until its last handle is given up, or no process has the domain open any more. For that it is in a
    /// process of its own, `roce-xrcd`, which the first target or shared receive queue of the domain starts, and which ends by itself.
    ///
    /// Where a process needs no other one, as on a port that joins none, [`open_xrcd`](Self::open_xrcd) opens a domain by a name.
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
    /// `EOPNOTSUPP` on another port than `host` ([`can_share_xrcds`](Self::can_share_xrcds)), and where the other processes are of
    /// another release; `ENOENT` where the domain does not exist and `CREAT` is not set, `EEXIST` where it exists and `EXCL` is set: as
    /// long as no process has made anything in it, others do not know of it. `EPERM` where another user is in the way, `ETIMEDOUT`
    /// where the process `roce-xrcd` does not answer.
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

    /// Whether the device's port joins the processes of this host, so that they can share XRC domains.
    pub fn can_share_xrcds(&self) -> bool {
        can_share(self.device())
    }
}

impl Pd {
    /// Creates a shared receive queue of an XRC domain: XRC initiators name it by its number ([`Srq::srq_num`]), and its
    /// requests complete in `cq`, whichever target of the domain received the message.
    ///
    /// The protection domain is that of its buffers, and of the keys in the messages that name the queue.
    ///
    /// # Errors
    /// As [`create_srq`](Self::create_srq); `EINVAL` also for a domain or completion queue of another context; `EDEADLK`
    /// from inside a turn. In a domain that processes share, also [`VerbsError::Xrc`]: the first call may have to start the process
    /// that owns it.
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

    /// One more open of the same domain, which has to be closed as well.
    #[must_use]
    pub fn open_again(&self) -> Self {
        let domain = match &self.domain {
            Domain::Own(core) => Domain::Own(core.again()),
            Domain::Shared(shared) => Domain::Shared(shared.again()),
        };
        Self { domain }
    }

    /// Creates a target, in RESET, on `shard` or on the least loaded one. In a domain that processes share, the process that has the
    /// targets chooses the shard.
    ///
    /// # Errors
    /// `EINVAL` for a shard that does not exist, `ENOMEM` without queue pair numbers, `ENODEV` where this starts the port
    /// and its device cannot be opened, `EDEADLK` from inside a turn. In a domain that processes share, also [`VerbsError::Xrc`].
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp(&self, shard: Option<usize>) -> Result<XrcTarget, VerbsError> {
        Ok(XrcTarget {
            target: match &self.domain {
                Domain::Own(core) => Target::Own(core.create_qp(shard, None)?),
                Domain::Shared(shared) => Target::Shared(shared.create_qp()?),
            },
        })
    }

    /// Another handle of a target of this domain. The queue pair lives as long as one of its handles.
    ///
    /// # Errors
    /// `EINVAL` where the domain has no target of this number with a handle. In a domain that processes share, also
    /// [`VerbsError::Xrc`].
    #[doc(alias = "ibv_open_qp")]
    pub fn open_qp(&self, qp_num: Qpn) -> Result<XrcTarget, VerbsError> {
        Ok(XrcTarget {
            target: match &self.domain {
                Domain::Own(core) => Target::Own(core.open_qp(qp_num)?),
                Domain::Shared(shared) => Target::Shared(shared.open_qp(qp_num)?),
            },
        })
    }

    /// Creates a receive-only target on behalf of the domain and takes it from RESET over INIT to RTR. Of `attr` it uses
    /// `pkey_index`, `port_num`, `qp_access_flags`; `ah_attr`, `path_mtu`, `dest_qp_num`, `rq_psn`, `max_dest_rd_atomic`
    /// and `min_rnr_timer`. Returns its number, for the initiator.
    ///
    /// This open is registered with it ([`reg_xrc_rcv_qp`](Self::reg_xrc_rcv_qp)).
    ///
    /// # Errors
    /// As [`create_qp`](Self::create_qp) and [`Qp::modify`](crate::Qp::modify); the target does not exist then.
    #[doc(alias = "ibv_alloc_xrc_rcv_qp")]
    #[doc(alias = "ibv_create_xrc_rcv_qp")]
    pub fn alloc_xrc_rcv_qp(&self, attr: &QpAttr) -> Result<Qpn, VerbsError> {
        Ok(match &self.domain {
            Domain::Own(core) => core.create_receiver(attr)?,
            Domain::Shared(shared) => shared.create_receiver(attr)?,
        })
    }

    /// As [`alloc_xrc_rcv_qp`](Self::alloc_xrc_rcv_qp), for the initiator `peer`; the path MTU is the port's where the
    /// options name none.
    ///
    /// # Errors
    /// As there.
    pub fn accept_xrc(&self, peer: &RcEndpoint, options: &RcOptions) -> Result<Qpn, VerbsError> {
        let attr = options.rtr(self.device(), peer);
        self.alloc_xrc_rcv_qp(&QpAttr { port_num: 1, qp_access_flags: options.access.bits(), ..attr })
    }

    /// Modifies a receive-only target. In ERR it drops incoming packets, and its senders run out of retries.
    ///
    /// # Errors
    /// `EINVAL` where the domain has no receive-only target of this number; as [`Qp::modify`](crate::Qp::modify).
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
    /// `EINVAL` where the domain has no receive-only target of this number; `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_query_xrc_rcv_qp")]
    pub fn query_xrc_rcv_qp(&self, qp_num: Qpn) -> Result<QpAttr, VerbsError> {
        Ok(match &self.domain {
            Domain::Own(core) => core.query_receiver(qp_num)?,
            Domain::Shared(shared) => shared.query_receiver(qp_num)?,
        })
    }

    /// Registers this open as one that uses a receive-only target: as long as one is registered,
    /// [`unreg_xrc_rcv_qp`](Self::unreg_xrc_rcv_qp) by others does not destroy it.
    ///
    /// # Errors
    /// `EINVAL` where the domain has no receive-only target of this number.
    #[doc(alias = "ibv_reg_xrc_rcv_qp")]
    pub fn reg_xrc_rcv_qp(&self, qp_num: Qpn) -> Result<(), VerbsError> {
        match &self.domain {
            Domain::Own(core) => core.register_receiver(qp_num)?,
            Domain::Shared(shared) => shared.register_receiver(qp_num)?,
        }
        Ok(())
    }

    /// Ends a registration. Ending the last one destroys the target; otherwise the target lives until the domain ends.
    /// Closing an open does not end its registration in this sense: the target stays.
    ///
    /// # Errors
    /// `EINVAL` where the domain has no receive-only target of this number, or this open is not registered with it;
    /// `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_unreg_xrc_rcv_qp")]
    pub fn unreg_xrc_rcv_qp(&self, qp_num: Qpn) -> Result<(), VerbsError> {
        match &self.domain {
            Domain::Own(core) => core.unregister_receiver(qp_num)?,
            Domain::Shared(shared) => shared.unregister_receiver(qp_num)?,
        }
        Ok(())
    }

    /// Closes this open. Closing the last one ends the domain and its receive-only targets.
    ///
    /// # Errors
    /// `EBUSY` while shared receive queues or targets exist that were made through this open, `EDEADLK` from inside a
    /// turn; the domain comes back with the error.
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

/// A handle of an XRC target (`struct ibv_qp` of type `IBV_QPT_XRC_RECV`): a queue pair without queues. A message that it
/// receives goes to the shared receive queue that the sender names, and completes in that queue's completion queue with the
/// target's number ([`Wc::qp_num`](crate::Wc::qp_num), [`Wc::srq_num`](crate::Wc::srq_num)).
#[derive(Debug)]
#[doc(alias = "IBV_QPT_XRC_RECV")]
pub struct XrcTarget {
    target: Target,
}

/// Where the queue pair is.
#[derive(Debug)]
enum Target {
    /// In this process.
    Own(Arc<QpCore>),
    /// In the process that owns the targets of a domain that others share.
    Shared(SharedTarget),
}

impl XrcTarget {
    fn device(&self) -> &Arc<Device> {
        match &self.target {
            Target::Own(core) => core.device(),
            Target::Shared(shared) => shared.device(),
        }
    }

    /// Its number.
    pub fn qp_num(&self) -> Qpn {
        match &self.target {
            Target::Own(core) => core.qpn(),
            Target::Shared(shared) => shared.qpn(),
        }
    }
    /// The shard that owns it; `None`: it is in another process, as its domain is shared.
    pub fn shard(&self) -> Option<usize> {
        match &self.target {
            Target::Own(core) => Some(core.shard()),
            Target::Shared(_) => None,
        }
    }
    /// The state it is in, without a control call; in a domain that processes share, as this handle has set it or queried it last.
    pub fn state(&self) -> QpState {
        match &self.target {
            Target::Own(core) => core.state(),
            Target::Shared(shared) => shared.state(),
        }
    }
    /// What to send to the initiator out of band. The initiator never checks the PSN: a target sends no requests.
    ///
    /// # Errors
    /// `EINVAL` for an index that is not in the GID table.
    pub fn endpoint(&self, sgid_index: u8) -> Result<RcEndpoint, VerbsError> {
        let gid = crate::context::gid(self.device(), usize::from(sgid_index))?;
        Ok(RcEndpoint { gid, qpn: self.qp_num(), psn: self.first_psn() })
    }
    /// A first PSN, drawn at random, for the transition to RTS, whose attributes include one.
    pub fn first_psn(&self) -> Psn {
        match &self.target {
            Target::Own(core) => core.first_psn(),
            Target::Shared(shared) => shared.first_psn(),
        }
    }
    /// As [`Qp::modify`](crate::Qp::modify). In a domain that processes share, a target that is in RTR reaches the shared receive queues
    /// of all when this returns.
    ///
    /// # Errors
    /// As there; in a domain that processes share, also [`VerbsError::Xrc`].
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
        match &self.target {
            Target::Own(core) => core.modify(attr, mask)?,
            Target::Shared(shared) => shared.modify(attr, mask)?,
        }
        Ok(())
    }
    /// Every attribute as it is now.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn; in a domain that processes share, also [`VerbsError::Xrc`].
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr, VerbsError> {
        Ok(match &self.target {
            Target::Own(core) => core.query()?,
            Target::Shared(shared) => shared.query()?,
        })
    }
    /// Moves it from RESET over INIT to RTR, for the initiator `peer`. A target needs no further state.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn connect(&self, peer: &RcEndpoint, options: &RcOptions) -> Result<(), VerbsError> {
        let (attr, mask) = attr_init(options.access);
        self.modify(&attr, mask)?;
        let attr = options.rtr(self.device(), peer);
        self.modify(&attr, required(QpState::Init, QpState::Rtr, QpType::XrcTgt))
    }
    /// Gives this handle up; the last one destroys the queue pair.
    ///
    /// # Errors
    /// For the last one, `EBUSY` while an asynchronous event of the queue pair was fetched and not acknowledged; `EDEADLK` from inside
    /// a turn. In a domain that processes share, `EBUSY` for any handle. The handle comes back with the error.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Result<(), (VerbsError, Self)> {
        let destroyed = match self.target {
            Target::Own(core) => match QpCore::destroy(core) {
                // Another handle keeps the queue pair, and this one is gone.
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
