//! XRC domains: they connect XRC shared receive queues and XRC targets (IBA A14).
//!
//! A domain lives as long as one of its opens does. A queue pair with a handle holds the open through which it was made. A
//! receive-only queue pair belongs to the domain: it has no handle, and ends with the domain.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::Device;
use super::claim::{lock, not_inside_turn};
use super::error::DeviceError;
use super::qp::{QpCore, QpInit, TargetOf};
use crate::id::{QpState, QpType, Qpn};
use crate::proto::attr::{AttrMask, QpAttr};
use crate::proto::state::required;

/// The domains of a device that have a name.
#[derive(Debug, Default)]
pub(super) struct Domains {
    named: Mutex<HashMap<String, Weak<Domain>>>,
    /// The last number given to a domain or to an open of one.
    last: AtomicU32,
}

impl Domains {
    fn number(&self) -> u32 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Shared by all opens of a domain.
#[derive(Debug)]
struct Domain {
    id: u32,
    /// Receive-only queue pairs.
    receivers: Mutex<HashMap<Qpn, Receiver>>,
    /// Queue pairs with handles: [`XrcdCore::open_qp`] finds them.
    targets: Mutex<HashMap<Qpn, Weak<QpCore>>>,
}

#[derive(Debug)]
struct Receiver {
    qp: Arc<QpCore>,
    /// Opens that have registered with it.
    registered: HashSet<u32>,
}

/// The domain to open (`struct ibv_xrcd_init_attr`): by name where C uses the file descriptor of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcdInitAttr<'a> {
    /// Its name in the device; without a name it is a new domain, which only copies of the handle share.
    pub name: Option<&'a str>,
    /// Make it if it does not exist (`O_CREAT`).
    pub create: bool,
    /// It must not exist yet (`O_EXCL`, with `create`).
    pub exclusive: bool,
}

impl<'a> XrcdInitAttr<'a> {
    /// The domain of this name, made if it does not exist.
    pub const fn named(name: &'a str) -> Self {
        Self { name: Some(name), create: true, exclusive: false }
    }
    /// A new domain without a name.
    pub const fn anonymous() -> Self {
        Self { name: None, create: true, exclusive: false }
    }
}

/// One open of an XRC domain. Shared receive queues and queue pairs made through it hold it.
#[derive(Debug)]
pub struct XrcdCore {
    device: Arc<Device>,
    domain: Arc<Domain>,
    open: u32,
}

impl XrcdCore {
    pub(super) fn open(device: &Arc<Device>, init: &XrcdInitAttr<'_>) -> Result<Arc<Self>, DeviceError> {
        let domains = &device.xrcds;
        let fresh = || {
            let id = domains.number();
            Arc::new(Domain { id, receivers: Mutex::default(), targets: Mutex::default() })
        };
        let domain = match init.name {
            None if !init.create => return Err(DeviceError::NoSuchDomain { name: String::new() }),
            None => fresh(),
            Some(name) => {
                let mut named = lock(&domains.named);
                named.retain(|_, domain| domain.strong_count() > 0);
                match named.get(name).and_then(Weak::upgrade) {
                    Some(_) if init.create && init.exclusive => {
                        return Err(DeviceError::DomainExists { name: name.into() });
                    }
                    Some(domain) => domain,
                    None if init.create => {
                        let domain = fresh();
                        named.insert(name.into(), Arc::downgrade(&domain));
                        domain
                    }
                    None => return Err(DeviceError::NoSuchDomain { name: name.into() }),
                }
            }
        };
        Ok(Arc::new(Self { device: device.clone(), domain, open: domains.number() }))
    }

    /// One more open of the same domain.
    pub fn again(&self) -> Arc<Self> {
        let open = self.device.xrcds.number();
        Arc::new(Self { device: self.device.clone(), domain: self.domain.clone(), open })
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// The domain's number in the device.
    pub fn id(&self) -> u32 {
        self.domain.id
    }

    /// Makes an XRC target, in RESET; with a number as [`QpInit::number`].
    ///
    /// # Errors
    /// As for other queue pairs.
    pub fn create_qp(
        self: &Arc<Self>,
        shard: Option<usize>,
        number: Option<Qpn>,
    ) -> Result<Arc<QpCore>, DeviceError> {
        let qp = QpCore::new(
            self.device.clone(),
            None,
            &QpInit::target(shard, number),
            Some(TargetOf::Open(self.clone())),
        )?;
        let mut targets = lock(&self.domain.targets);
        targets.retain(|_, qp| qp.strong_count() > 0);
        targets.insert(qp.qpn(), Arc::downgrade(&qp));
        Ok(qp)
    }

    /// An XRC target that another open of the domain made.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchTarget`].
    pub fn open_qp(&self, qpn: Qpn) -> Result<Arc<QpCore>, DeviceError> {
        let found = lock(&self.domain.targets).get(&qpn).and_then(Weak::upgrade);
        found.ok_or(DeviceError::NoSuchTarget { qpn: qpn.get() })
    }

    /// Makes a receive-only queue pair of the domain and takes it from RESET over INIT to RTR, with the attributes of
    /// `attr` that these two transitions require. This open is registered with it.
    ///
    /// # Errors
    /// As for creation and modification; nothing is left of it then.
    pub fn create_receiver(&self, attr: &QpAttr) -> Result<Qpn, DeviceError> {
        let target = TargetOf::Domain(self.domain.id);
        let qp = QpCore::new(self.device.clone(), None, &QpInit::target(None, None), Some(target))?;
        let init = required(QpState::Reset, QpState::Init, QpType::XrcTgt);
        qp.modify(&QpAttr { qp_state: QpState::Init, ..*attr }, init)?;
        let rtr = required(QpState::Init, QpState::Rtr, QpType::XrcTgt);
        qp.modify(&QpAttr { qp_state: QpState::Rtr, ..*attr }, rtr)?;
        let qpn = qp.qpn();
        let registered = HashSet::from([self.open]);
        lock(&self.domain.receivers).insert(qpn, Receiver { qp, registered });
        Ok(qpn)
    }

    fn receiver(&self, qpn: Qpn) -> Result<Arc<QpCore>, DeviceError> {
        let receivers = lock(&self.domain.receivers);
        let found = receivers.get(&qpn).map(|receiver| receiver.qp.clone());
        found.ok_or(DeviceError::NoSuchTarget { qpn: qpn.get() })
    }

    /// Modifies a receive-only queue pair.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchTarget`], [`DeviceError::Modify`], [`DeviceError::InsideTurn`].
    pub fn modify_receiver(&self, qpn: Qpn, attr: &QpAttr, mask: AttrMask) -> Result<(), DeviceError> {
        not_inside_turn()?;
        self.receiver(qpn)?.modify(attr, mask)
    }

    /// The attributes of a receive-only queue pair.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchTarget`], [`DeviceError::InsideTurn`].
    pub fn query_receiver(&self, qpn: Qpn) -> Result<QpAttr, DeviceError> {
        not_inside_turn()?;
        self.receiver(qpn)?.query()
    }

    /// Registers this open with a receive-only queue pair, which is not destroyed as long as an open is registered.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchTarget`].
    pub fn register_receiver(&self, qpn: Qpn) -> Result<(), DeviceError> {
        match lock(&self.domain.receivers).get_mut(&qpn) {
            Some(receiver) => {
                receiver.registered.insert(self.open);
                Ok(())
            }
            None => Err(DeviceError::NoSuchTarget { qpn: qpn.get() }),
        }
    }

    /// Unregisters this open from a receive-only queue pair. The last open to do so destroys it; closing the domain does not
    /// unregister.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchTarget`], also where this open is not registered; [`DeviceError::InsideTurn`].
    pub fn unregister_receiver(&self, qpn: Qpn) -> Result<(), DeviceError> {
        not_inside_turn()?;
        let mut receivers = lock(&self.domain.receivers);
        let unknown = DeviceError::NoSuchTarget { qpn: qpn.get() };
        let receiver = receivers.get_mut(&qpn).ok_or_else(|| unknown.clone())?;
        if !receiver.registered.remove(&self.open) {
            return Err(unknown);
        }
        let last = if receiver.registered.is_empty() { receivers.remove(&qpn) } else { None };
        drop(receivers);
        drop(last);
        Ok(())
    }

    /// Ends this open; the last one ends the domain and its receive-only queue pairs.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while shared receive queues or queue pairs that were made through it exist;
    /// [`DeviceError::InsideTurn`]. It comes back with the error.
    pub fn close(xrcd: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        if let Err(e) = not_inside_turn() {
            return Err((e, xrcd));
        }
        Arc::try_unwrap(xrcd).map(drop).map_err(|xrcd| {
            let users = Arc::strong_count(&xrcd) - 1;
            (DeviceError::Busy { object: "XRC domain", users }, xrcd)
        })
    }
}
