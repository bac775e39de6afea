//! XRC domains that processes share, as a program uses them: opens of a domain, handles of its targets, numbers of its shared receive
//! queues.
//!
//! A device is a member of a domain once, however often the domain is opened on it. It becomes a member when it opens the domain, if the
//! domain has an owner; otherwise when it needs an owner, which is then started: for the first shared receive queue, or the first target.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, Weak};

use super::attributes::Attributes;
use super::domain::DomainFile;
use super::error::XrcError;
use super::membership::{Membership, Patience, Welcomed, join};
use super::message::{Answer, Call};
use super::refusal::Reason;
use super::shadows::Shadows;
use super::start::Owner;
use crate::device::{
    AttrMask, CqCore, Device, DeviceError, EventElement, PdCore, Psn, QpAttr, QpState, Qpn, SrqAttr, SrqCore,
    XrcSrqInit, XrcdCore, XrcdInitAttr, not_inside_turn,
};
use crate::sync::lock::lock;

/// Number of draws for the number of a shared receive queue: numbers have 24 bits.
const DRAWS: usize = 64;

/// The shared domains that a device has open.
#[derive(Debug, Default)]
pub struct SharedDomains(Mutex<HashMap<DomainFile, Weak<SharedDomain>>>);

/// A domain that is open on a device.
#[derive(Debug)]
struct SharedDomain {
    file: DomainFile,
    /// The domain's local part on this device: the shared receive queues of this process, and the shadows of targets.
    own: Arc<XrcdCore>,
    owner: Owner,
    /// Created on demand, but only once: if the owner ends, the objects that it had are gone.
    membership: Mutex<Option<Arc<Membership>>>,
    last_open: AtomicU32,
    /// Number of handles that this process has of each target.
    handles: Mutex<HashMap<Qpn, usize>>,
}

/// One open of a domain that processes share. Shared receive queues and targets created through it hold references to it.
#[derive(Debug)]
pub struct SharedXrcd {
    domain: Arc<SharedDomain>,
    open: u32,
}

/// The number of a shared receive queue, unique in the domain until this is dropped.
#[derive(Debug)]
pub struct SrqNumber {
    /// The open through which it was created, which cannot be closed before.
    _xrcd: Arc<SharedXrcd>,
    membership: Arc<Membership>,
    number: u32,
}

/// A handle of a target, released when dropped.
#[derive(Debug)]
pub struct SharedTarget {
    xrcd: Arc<SharedXrcd>,
    membership: Arc<Membership>,
    qpn: Qpn,
    first_psn: Psn,
    /// The state that this process set or queried last.
    state: Mutex<QpState>,
}

/// Whether a device is connected with the other processes of its host, so that they can share domains.
pub fn can_share(device: &Device) -> bool {
    device.port().numbers().is_some_and(|numbers| numbers.registry().is_some())
}

impl SharedDomains {
    /// Opens the domain of a file. With `create`, the domain need not exist yet; with `exclusive` too, it must not exist. A domain exists
    /// if its owner knows it: while a process has it open that has, or had, a target or a shared receive queue in it.
    ///
    /// # Errors
    /// [`XrcError::Port`]; [`DeviceError::NoSuchDomain`], [`DeviceError::DomainExists`], [`DeviceError::InsideTurn`],
    /// [`DeviceError::Forked`]; the errors of joining an owner.
    pub fn open(
        &self,
        device: &Arc<Device>,
        file: DomainFile,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<SharedXrcd>, XrcError> {
        device.check_outside_turn()?;
        let port = device.port().info().name.clone();
        if !can_share(device) {
            return Err(XrcError::Port { port });
        }
        let mut domains = lock(&self.0);
        domains.retain(|_, domain| domain.strong_count() > 0);
        let known = domains.get(&file).and_then(Weak::upgrade);
        let welcomed = if known.is_some() { None } else { join(&file, None, Patience::default())? };
        let exists = known.is_some() || welcomed.as_ref().is_some_and(|welcomed| welcomed.others > 0);
        match (exists, create) {
            (true, true) if exclusive => {
                return Err(DeviceError::DomainExists { name: file.to_string() }.into());
            }
            (false, false) => return Err(DeviceError::NoSuchDomain { name: file.to_string() }.into()),
            _ => {}
        }
        let domain = match known {
            Some(domain) => domain,
            None => {
                let own = device.open_xrcd(&XrcdInitAttr::anonymous())?;
                let domain = Arc::new(SharedDomain {
                    file,
                    own,
                    owner: Owner { file, port },
                    membership: Mutex::default(),
                    last_open: AtomicU32::new(0),
                    handles: Mutex::default(),
                });
                if let Some(welcomed) = welcomed {
                    domain.become_member(&mut lock(&domain.membership), welcomed)?;
                }
                domains.insert(file, Arc::downgrade(&domain));
                domain
            }
        };
        Ok(SharedXrcd::new(domain))
    }
}

impl SharedDomain {
    fn become_member(
        &self,
        place: &mut Option<Arc<Membership>>,
        welcomed: Welcomed,
    ) -> Result<Arc<Membership>, XrcError> {
        let membership = Membership::new(welcomed, Shadows::new(self.own.clone()), Patience::default())?;
        Ok(place.insert(Arc::new(membership)).clone())
    }

    /// The membership. Starts the owner, if there was none yet.
    fn membership(&self) -> Result<Arc<Membership>, XrcError> {
        self.own.device().check_outside_turn()?;
        let mut place = lock(&self.membership);
        if let Some(membership) = &*place {
            return if membership.lives() { Ok(membership.clone()) } else { Err(XrcError::Ended) };
        }
        let welcomed = join(&self.file, Some(&self.owner), Patience::default())?;
        // `join` starts an owner if the domain has none, so `None` is an error here.
        let welcomed = welcomed.ok_or(XrcError::Ended)?;
        self.become_member(&mut place, welcomed)
    }
}

impl SharedXrcd {
    fn new(domain: Arc<SharedDomain>) -> Arc<Self> {
        let open = domain.last_open.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { domain, open })
    }

    /// Opens the same domain again.
    pub fn again(&self) -> Arc<Self> {
        Self::new(self.domain.clone())
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        self.domain.own.device()
    }

    /// The domain's local part on this device.
    fn own(&self) -> &Arc<XrcdCore> {
        &self.domain.own
    }

    /// Creates a shared receive queue: when this returns, all targets of the domain reach it. Drop the number after the queue.
    ///
    /// # Errors
    /// Those of the device, and [`XrcError`].
    pub fn create_srq(
        self: &Arc<Self>,
        pd: &Arc<PdCore>,
        attr: &SrqAttr,
        cq: &Arc<CqCore>,
    ) -> Result<(Arc<SrqCore>, SrqNumber), XrcError> {
        loop {
            let number = self.srq_number()?;
            let xrc = XrcSrqInit { xrcd: self.own(), cq, number: Some(number.number) };
            match pd.create_srq(attr, Some(xrc)) {
                // Another shared receive queue of this process has the number: rare, because numbers have 24 bits.
                Err(DeviceError::Busy { .. }) => {}
                made => return Ok((made?, number)),
            }
        }
    }

    /// Has the owner reserve a number for a shared receive queue.
    fn srq_number(self: &Arc<Self>) -> Result<SrqNumber, XrcError> {
        let membership = self.domain.membership()?;
        for _ in 0..DRAWS {
            let number = self.device().random()? >> 8;
            if number == 0 {
                continue;
            }
            match membership.call(Call::NewSrq(number)) {
                Ok(_) => return Ok(SrqNumber { _xrcd: self.clone(), membership, number }),
                Err(XrcError::Refused(refusal)) if refusal.reason == Reason::Taken => {}
                Err(error) => return Err(error),
            }
        }
        Err(DeviceError::Exhausted { what: "number of a shared receive queue", limit: 0xff_ffff }.into())
    }

    /// Creates a target, in RESET.
    ///
    /// # Errors
    /// [`XrcError`].
    pub fn create_qp(self: &Arc<Self>) -> Result<SharedTarget, XrcError> {
        let membership = self.domain.membership()?;
        match membership.call(Call::Create)? {
            Answer::Target(qpn) => SharedTarget::new(self.clone(), membership, qpn, QpState::Reset),
            _ => Err(XrcError::Ended),
        }
    }

    /// Opens a target that this process or another one has created.
    ///
    /// # Errors
    /// [`XrcError`].
    pub fn open_qp(self: &Arc<Self>, qpn: Qpn) -> Result<SharedTarget, XrcError> {
        let membership = self.domain.membership()?;
        let attr = self.attributes_from_owner(membership.call(Call::Open(qpn))?)?;
        SharedTarget::new(self.clone(), membership, qpn, attr.qp_state)
    }

    /// Creates a receive-only target and moves it from RESET through INIT to RTR. This open is registered with it.
    ///
    /// # Errors
    /// [`XrcError`].
    pub fn create_receiver(&self, attr: &QpAttr) -> Result<Qpn, XrcError> {
        match self
            .domain
            .membership()?
            .call(Call::CreateReceiver(self.open, self.attributes_to_owner(attr, AttrMask::AV)?))?
        {
            Answer::Target(qpn) => Ok(qpn),
            _ => Err(XrcError::Ended),
        }
    }

    /// Modifies a receive-only target.
    ///
    /// # Errors
    /// [`XrcError`].
    pub fn modify_receiver(&self, qpn: Qpn, attr: &QpAttr, mask: AttrMask) -> Result<(), XrcError> {
        self.domain
            .membership()?
            .call(Call::ModifyReceiver(qpn, self.attributes_to_owner(attr, mask)?, mask))
            .map(drop)
    }

    /// The attributes of a receive-only target.
    ///
    /// # Errors
    /// [`XrcError`].
    pub fn query_receiver(&self, qpn: Qpn) -> Result<QpAttr, XrcError> {
        self.attributes_from_owner(self.domain.membership()?.call(Call::QueryReceiver(qpn))?)
    }

    /// Registers this open with a receive-only target.
    ///
    /// # Errors
    /// [`XrcError`].
    pub fn register_receiver(&self, qpn: Qpn) -> Result<(), XrcError> {
        self.domain.membership()?.call(Call::Register(self.open, qpn)).map(drop)
    }

    /// Ends the registration of this open; the end of the last registration destroys the target.
    ///
    /// # Errors
    /// [`XrcError`].
    pub fn unregister_receiver(&self, qpn: Qpn) -> Result<(), XrcError> {
        self.domain.membership()?.call(Call::Unregister(self.open, qpn)).map(drop)
    }

    /// Converts attributes for the owner.
    fn attributes_to_owner(&self, attr: &QpAttr, mask: AttrMask) -> Result<Attributes, XrcError> {
        Ok(Attributes::of(self.device(), attr, mask)?)
    }

    /// Converts attributes from the owner.
    fn attributes_from_owner(&self, answer: Answer) -> Result<QpAttr, XrcError> {
        match answer {
            Answer::Attributes(attr) => attr.on(self.device()).map_err(XrcError::Refused),
            // The owner sent an invalid answer.
            _ => Err(XrcError::Ended),
        }
    }

    /// Closes this open. With the last open on the device, the membership of this process ends.
    ///
    /// # Errors
    /// [`DeviceError::Busy`], [`DeviceError::InsideTurn`]. The open is returned with the error.
    pub fn close(xrcd: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        if let Err(error) = not_inside_turn() {
            return Err((error, xrcd));
        }
        Arc::try_unwrap(xrcd).map(drop).map_err(|xrcd| {
            let users = Arc::strong_count(&xrcd) - 1;
            (DeviceError::Busy { object: "XRC domain", users }, xrcd)
        })
    }
}

impl Drop for SrqNumber {
    fn drop(&mut self) {
        // Fails only if the owner has ended, and the number with it.
        let _ = self.membership.call(Call::RemoveSrq(self.number));
    }
}

impl SharedTarget {
    fn new(
        xrcd: Arc<SharedXrcd>,
        membership: Arc<Membership>,
        qpn: Qpn,
        state: QpState,
    ) -> Result<Self, XrcError> {
        *lock(&xrcd.domain.handles).entry(qpn).or_default() += 1;
        let first_psn = Psn::new(0);
        let mut target = Self { xrcd, membership, qpn, first_psn, state: Mutex::new(state) };
        // The drop of `target` releases the handle, if no random number is available.
        target.first_psn = Psn::new(target.device().random()?);
        Ok(target)
    }

    fn element(&self) -> EventElement {
        EventElement::Qp(self.qpn)
    }
    /// The device of this process.
    pub fn device(&self) -> &Arc<Device> {
        self.xrcd.device()
    }
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }
    /// A first PSN for it, drawn at random.
    pub fn first_psn(&self) -> Psn {
        self.first_psn
    }
    /// The state that this process set or queried last.
    pub fn state(&self) -> QpState {
        *lock(&self.state)
    }

    /// Changes attributes, and the state if the mask includes it. When the call that moves a target to RTR returns, all processes with
    /// shared receive queues in the domain can receive through the target.
    ///
    /// # Errors
    /// [`XrcError`].
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), XrcError> {
        self.device().check_outside_turn()?;
        self.membership.call(Call::Modify(self.qpn, self.xrcd.attributes_to_owner(attr, mask)?, mask))?;
        if mask.contains(AttrMask::STATE) {
            *lock(&self.state) = attr.qp_state;
        }
        Ok(())
    }

    /// Every attribute.
    ///
    /// # Errors
    /// [`XrcError`].
    pub fn query(&self) -> Result<QpAttr, XrcError> {
        self.device().check_outside_turn()?;
        let attr = self.xrcd.attributes_from_owner(self.membership.call(Call::Query(self.qpn))?)?;
        *lock(&self.state) = attr.qp_state;
        Ok(attr)
    }

    /// Releases the handle; releasing the last one, over all processes, destroys the target.
    ///
    /// # Errors
    /// [`DeviceError::Unacked`] while a fetched event of the target is not acknowledged, [`DeviceError::InsideTurn`],
    /// [`DeviceError::Forked`]. The handle is returned with the error.
    pub fn destroy(self) -> Result<(), (DeviceError, Self)> {
        if let Err(error) = self.device().check_outside_turn() {
            return Err((error, self));
        }
        match self.device().unacked_events(self.element()) {
            0 => Ok(()),
            events => Err((DeviceError::Unacked { object: "queue pair", events }, self)),
        }
    }
}

impl Drop for SharedTarget {
    fn drop(&mut self) {
        if self.device().is_forked() {
            return;
        }
        // Fails only if the owner has ended, and the target with it.
        let _ = self.membership.call(Call::Close(self.qpn));
        let mut handles = lock(&self.xrcd.domain.handles);
        if let Entry::Occupied(mut own) = handles.entry(self.qpn) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
                self.device().drop_events(self.element());
            }
        }
    }
}
