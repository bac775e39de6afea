//! XRC domains: they connect XRC shared receive queues and XRC targets (IBA A14).
//!
//! A domain lives as long as one of its opens. It holds queue pairs, which are created in `xrc_qp`, a layer above this file; so it stores
//! them as `dyn Any`, and only `xrc_qp` downcasts them.

use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};

use super::error::DeviceError;
use crate::id::Qpn;
use crate::sync::lock::lock;

/// The domain to open (`struct ibv_xrcd_init_attr`): by name, where C uses the file descriptor of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcdInitAttr<'a> {
    /// Its name in the device. Without a name a new domain is opened, which only copies of the handle share.
    pub name: Option<&'a str>,
    /// Create it if it does not exist (`O_CREAT`).
    pub create: bool,
    /// Fail if it exists (`O_EXCL`, with `create`).
    pub exclusive: bool,
}

impl<'a> XrcdInitAttr<'a> {
    /// The domain with this name, created if it does not exist.
    pub const fn named(name: &'a str) -> Self {
        Self { name: Some(name), create: true, exclusive: false }
    }
    /// A new domain without a name.
    pub const fn anonymous() -> Self {
        Self { name: None, create: true, exclusive: false }
    }
}

/// The named domains of a device.
#[derive(Debug, Default)]
pub(super) struct Domains {
    named: Mutex<HashMap<String, Weak<Domain>>>,
    /// The last number allocated to a domain or to an open of one.
    last: AtomicU32,
}

/// The state that all opens of a domain share.
#[derive(Debug)]
pub(super) struct Domain {
    pub id: u32,
    /// Receive-only queue pairs.
    pub receivers: Mutex<HashMap<Qpn, Receiver>>,
    /// Queue pairs with handles: an open finds those that another open created.
    pub targets: Mutex<HashMap<Qpn, Weak<AnyQp>>>,
}

/// A queue pair of a domain.
pub(super) type AnyQp = dyn Any + Send + Sync;

#[derive(Debug)]
pub(super) struct Receiver {
    pub qp: Arc<AnyQp>,
    /// Opens that are registered with it.
    pub registered: HashSet<u32>,
}

impl Domains {
    /// Allocates the next number for a domain or for an open of one.
    pub(super) fn number(&self) -> u32 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// # Errors
    /// [`DeviceError::NoSuchDomain`], [`DeviceError::DomainExists`].
    pub(super) fn open(&self, init: &XrcdInitAttr<'_>) -> Result<Arc<Domain>, DeviceError> {
        let fresh =
            || Arc::new(Domain { id: self.number(), receivers: Mutex::default(), targets: Mutex::default() });
        let Some(name) = init.name else {
            return if init.create {
                Ok(fresh())
            } else {
                Err(DeviceError::NoSuchDomain { name: String::new() })
            };
        };
        let mut named = lock(&self.named);
        named.retain(|_, domain| domain.strong_count() > 0);
        match named.get(name).and_then(Weak::upgrade) {
            Some(_) if init.create && init.exclusive => Err(DeviceError::DomainExists { name: name.into() }),
            Some(domain) => Ok(domain),
            None if init.create => {
                let domain = fresh();
                named.insert(name.into(), Arc::downgrade(&domain));
                Ok(domain)
            }
            None => Err(DeviceError::NoSuchDomain { name: name.into() }),
        }
    }
}
