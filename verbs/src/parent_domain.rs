//! Thread domains, and parent domains that add one to a protection domain.

use std::sync::Arc;

use stack::device::{DeviceError, TdCore};

use crate::context::Context;
use crate::error::VerbsError;
use crate::pd::Pd;

/// A thread domain (`struct ibv_td`). It declares that the objects created with it are used by one thread.
///
/// Its effect here is that all its queue pairs are on one shard, which is chosen when the first one is created, unless
/// [`QpInitAttr::shard`](crate::QpInitAttr::shard) names another. So one thread that drives this shard ([`shard`](Self::shard),
/// [`Context::reactor`]) serves them all. It removes no lock: every call may still be made from any thread. Only the split handles
/// ([`SendQueue`](crate::SendQueue), [`RecvQueue`](crate::RecvQueue), [`CqPoller`](crate::CqPoller)) work without locks, because the
/// compiler checks that one thread uses each of them.
///
/// ```
/// use verbs::{Context, CqInitAttr, DeviceConfig, ParentDomainInitAttr, QpInitAttr};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::open(DeviceConfig::loopback())?;
/// let (pd, td) = (context.alloc_pd()?, context.alloc_td());
/// let parent = context.alloc_parent_domain(&ParentDomainInitAttr { pd: &pd, td: Some(&td) })?;
/// let cq = context.create_cq_ex(&CqInitAttr::new(16).parent_domain(&parent))?;
/// let qp = parent.create_qp(&QpInitAttr::rc(&cq, &cq))?;
/// assert_eq!(Some(qp.shard()), td.shard());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_td")]
pub struct Td {
    core: Arc<TdCore>,
}

impl Td {
    /// The shard of its queue pairs; `None` before the first one.
    pub fn shard(&self) -> Option<usize> {
        self.core.shard()
    }

    /// Frees the thread domain.
    ///
    /// # Errors
    /// `EBUSY` while it is part of a parent domain. The thread domain is returned with the error.
    #[doc(alias = "ibv_dealloc_td")]
    pub fn dealloc(self) -> Result<(), (VerbsError, Self)> {
        TdCore::dealloc(self.core).map_err(|(e, core)| (e.into(), Self { core }))
    }
}

/// The parts of a parent domain (`struct ibv_parent_domain_init_attr`). There are no custom allocators, because a provider may ignore them
/// (ibv_alloc_parent_domain(3)).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_parent_domain_init_attr")]
pub struct ParentDomainInitAttr<'a> {
    /// The protection domain.
    pub pd: &'a Pd,
    /// The thread domain, if any.
    pub td: Option<&'a Td>,
}

impl Context {
    /// Allocates a thread domain.
    #[doc(alias = "ibv_alloc_td")]
    pub fn alloc_td(&self) -> Td {
        Td { core: self.device().alloc_td() }
    }

    /// Allocates a parent domain: a protection domain combined with a thread domain. It can be used wherever its protection domain can,
    /// with the same keys, regions, windows and address handles. It must be freed with [`Pd::dealloc`] before its protection domain and its
    /// thread domain, and after the objects created in it. A parent domain made from another parent domain belongs to the same protection
    /// domain as that one.
    ///
    /// # Errors
    /// `EINVAL` for objects of another context.
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn alloc_parent_domain(&self, init: &ParentDomainInitAttr<'_>) -> Result<Pd, VerbsError> {
        if !Arc::ptr_eq(init.pd.core().device(), self.device()) {
            return Err(DeviceError::Foreign { what: "protection domain" }.into());
        }
        Ok(Pd::new(init.pd.core().parent(init.td.map(|td| &td.core))?))
    }
}
