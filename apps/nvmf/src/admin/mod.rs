//! A controller: admin commands, properties, features, asynchronous events, keep alive.

mod discovery;
mod events;
mod features;
mod page;
mod properties;

use core::time::Duration;
use std::sync::Arc;

use crate::association::Association;
use crate::data::{Remote, to_host};
use crate::limits;
use crate::status::{Fault, Status};
use crate::target::{Arrival, Target};
use crate::time::Instant;
use crate::wire::fabrics::{self, PropertyCommand, fctype};
use crate::wire::identify::{self, cns};
use crate::wire::{Sqe, admin_opcode};

use events::Events;
use features::{Features, Value};
pub(crate) use page::Page;
use page::{Sources, log_range};
use properties::{Change, Properties};

/// The outcome of an admin command.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It is done, with this result.
    Done(u64),
    /// Write this page to the host; then it is done.
    Give(Page, Remote),
    /// It waits for an asynchronous event.
    Wait,
    /// The command with this identifier is to be aborted.
    Abort { qid: u16, cid: u16 },
}

/// The controller of one host.
#[derive(Debug)]
pub(crate) struct Controller {
    target: Target,
    association: Arc<Association>,
    arrival: Arrival,
    properties: Properties,
    features: Features,
    pub events: Events,
    /// When the last admin command came, or when a check last found commands on I/O queues.
    last_command: Instant,
}

impl Controller {
    pub fn new(
        now: Instant,
        target: Target,
        association: Arc<Association>,
        arrival: Arrival,
        kato_ms: u32,
    ) -> Self {
        let events = Events::new(&target, association.live.as_ref());
        let features = Features { kato_ms, events: 0 };
        Self {
            target,
            association,
            arrival,
            properties: Properties::default(),
            features,
            events,
            last_command: now,
        }
    }
    pub fn association(&self) -> &Association {
        &self.association
    }

    /// Executes a command of the admin queue, except its first Connect.
    pub fn handle(&mut self, now: Instant, sqe: &Sqe, slot: u16) -> Result<Verdict, Fault> {
        self.last_command = now;
        // Traffic before this command no longer counts for the keep alive timer.
        self.association.take_traffic();
        if sqe.opcode == fabrics::OPCODE {
            return self.fabrics(PropertyCommand::of(sqe));
        }
        if !self.properties.is_ready() {
            return Err(Status::CommandSequenceError.into());
        }
        match sqe.opcode {
            admin_opcode::IDENTIFY => self.identify(sqe),
            admin_opcode::GET_LOG_PAGE => self.get_log_page(sqe),
            admin_opcode::SET_FEATURES => {
                self.features.set(self.target.settings(), &self.association, sqe).map(Verdict::Done)
            }
            admin_opcode::GET_FEATURES => match self.features.get(&self.association, sqe)? {
                Value::Number(value) => Ok(Verdict::Done(value as u64)),
                Value::HostId => Ok(Verdict::Give(Page::HostId, to_host(&sqe.sgl, 16)?)),
            },
            admin_opcode::ASYNC_EVENT_REQUEST => {
                self.events.add(slot)?;
                Ok(Verdict::Wait)
            }
            admin_opcode::ABORT => {
                let (qid, cid) = (sqe.cdw10.get() as u16, (sqe.cdw10.get() >> 16) as u16);
                Ok(Verdict::Abort { qid, cid })
            }
            admin_opcode::KEEP_ALIVE => Ok(Verdict::Done(0)),
            _ => Err(Status::InvalidOpcode.into()),
        }
    }

    /// The next Asynchronous Event Request to answer: its slot, status and result; `None` if there is none.
    pub fn poll_event(&mut self) -> Option<(u16, Status, u64)> {
        self.events.poll(&self.target, self.features.events)
    }
    /// Fills `buf` with a page, from the start that the command asked for.
    pub fn fill(&mut self, page: Page, buf: &mut [u8]) {
        self.sources().fill(page, buf);
    }

    /// When the keep alive timeout expires if no command comes; `None` if there is no timeout.
    pub fn deadline(&self) -> Option<Instant> {
        Some(self.last_command.after(self.patience()?))
    }
    /// Whether the keep alive timeout has expired: no command came on any of the controller's queues.
    pub fn is_expired(&mut self, now: Instant) -> bool {
        let Some(patience) = self.patience() else { return false };
        if now < self.last_command.after(patience) {
            return false;
        }
        let active = self.association.take_traffic();
        if active {
            self.last_command = now;
        }
        !active
    }
    /// The keep alive timeout, rounded up to its granularity; `None` if there is none.
    fn patience(&self) -> Option<Duration> {
        let granularity_ms = limits::KEEP_ALIVE_GRANULARITY as u64 * 100;
        match self.features.kato_ms {
            0 if self.association.live.is_none() => Some(limits::DISCOVERY_PATIENCE),
            0 => None,
            ms => Some(Duration::from_millis((ms as u64).next_multiple_of(granularity_ms))),
        }
    }

    fn sources(&mut self) -> Sources<'_> {
        let Self { target, association, events, arrival, .. } = self;
        Sources { target, association, events, arrival: *arrival }
    }

    fn fabrics(&mut self, command: &PropertyCommand) -> Result<Verdict, Fault> {
        let settings = self.target.settings();
        match command.fctype {
            fctype::PROPERTY_GET => Ok(Verdict::Done(self.properties.get(settings, command)?)),
            fctype::PROPERTY_SET => {
                match self.properties.set(self.association.live.is_none(), command)? {
                    Change::Nothing => {}
                    Change::Enable => self.association.enable(),
                    Change::Reset => {
                        self.association.disable(settings.io_queues);
                        self.features.events = 0;
                        self.events.reset();
                    }
                    Change::ShutDown => {
                        self.association.disable(settings.io_queues);
                        self.events.reset();
                    }
                }
                Ok(Verdict::Done(0))
            }
            fctype::CONNECT => Err(Status::CommandSequenceError.into()),
            _ => Err(Status::InvalidOpcode.into()),
        }
    }

    fn identify(&self, sqe: &Sqe) -> Result<Verdict, Fault> {
        let nsid = sqe.nsid.get();
        let live = self.association.live.as_deref();
        let page = match (sqe.cdw10.get() as u8, live) {
            (cns::CONTROLLER, _) => Page::Controller,
            (cns::NAMESPACE, Some(_)) if (1..=limits::NAMESPACES_MAX).contains(&nsid) => {
                Page::Namespace(nsid)
            }
            (cns::NAMESPACE, Some(_)) => return Err(Status::InvalidNamespace.into()),
            (cns::ACTIVE_NAMESPACES, Some(_)) if nsid < 0xFFFF_FFFE => Page::ActiveNamespaces(nsid),
            (cns::ACTIVE_NAMESPACES, Some(_)) => return Err(Status::InvalidNamespace.into()),
            (cns::DESCRIPTORS, Some(live)) => {
                live.snapshot().table.get(nsid).ok_or(Status::InvalidNamespace)?;
                Page::Descriptors(nsid)
            }
            // Only for the NVM command set, whose identifier (CSI) is 0.
            (cns::NVM_CONTROLLER, Some(_)) if sqe.cdw11.get() >> 24 == 0 => Page::NvmController,
            _ => return Err(Status::InvalidField.into()),
        };
        Ok(Verdict::Give(page, to_host(&sqe.sgl, identify::LEN as u32)?))
    }

    fn get_log_page(&mut self, sqe: &Sqe) -> Result<Verdict, Fault> {
        let lid = sqe.cdw10.get() as u8;
        let len = self.sources().log_len(lid).ok_or(Status::InvalidLogPage)?;
        let range = log_range(sqe.cdw10.get(), sqe.cdw11.get(), sqe.cdw12.get(), sqe.cdw13.get());
        let range = range.filter(|r| r.start <= len).ok_or(Status::InvalidField)?;
        let asked = range.end - range.start;
        if asked > 4096 << page::mdts(self.target.settings(), self.association.live.is_none()) {
            return Err(Status::InvalidField.into());
        }
        // No log page exists per namespace (LPA bit 0 is clear).
        if !matches!(sqe.nsid.get(), 0 | 0xFFFF_FFFF) {
            return Err(Status::InvalidField.into());
        }
        let page = Page::Log { lid, start: range.start, retain: sqe.cdw10.get() >> 15 & 1 != 0 };
        Ok(Verdict::Give(page, to_host(&sqe.sgl, asked as u32)?))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.target.disconnect(&self.association);
    }
}
