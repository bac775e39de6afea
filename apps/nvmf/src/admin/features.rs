//! Set Features and Get Features (NVMe base 5.27): what a host may set, and what it may only read.

use crate::association::Association;
use crate::config::Settings;
use crate::status::{Fault, Status};
use crate::wire::Sqe;

/// Identifiers.
mod fid {
    pub const ARBITRATION: u8 = 0x01;
    pub const POWER: u8 = 0x02;
    pub const TEMPERATURE: u8 = 0x04;
    pub const ERROR_RECOVERY: u8 = 0x05;
    pub const WRITE_CACHE: u8 = 0x06;
    pub const QUEUES: u8 = 0x07;
    pub const WRITE_ATOMICITY: u8 = 0x0A;
    pub const EVENTS: u8 = 0x0B;
    pub const KEEP_ALIVE: u8 = 0x0F;
    pub const HOST_ID: u8 = 0x81;
}

/// The feature values that a host can set on a controller.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Features {
    /// Keep alive timeout in milliseconds, 0 for none.
    pub kato_ms: u32,
    /// The Asynchronous Event Configuration: a bit for each event that the host has enabled.
    pub events: u32,
}

/// Event bit: namespaces have changed.
pub(crate) const EVENT_NAMESPACES: u32 = 1 << 8;
/// Event bit: the discovery log has changed.
pub(crate) const EVENT_DISCOVERY: u32 = 1 << 31;
/// Event bits: SMART warnings. A host may enable any of them, but the controller sends only one.
const EVENT_SMART: u32 = 0xFF;
/// Event bit: the SMART warning of degraded reliability, sent when a namespace has lost data.
pub(crate) const EVENT_RELIABILITY: u32 = 1 << 2;
const _: () = assert!(EVENT_SMART & EVENT_RELIABILITY != 0);

/// The optional asynchronous events that a controller supports (OAES).
pub(crate) const fn events_of(discovery: bool) -> u32 {
    if discovery { EVENT_DISCOVERY } else { EVENT_NAMESPACES }
}

/// What Get Features returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    Number(u32),
    /// The host identifier, which is returned as data.
    HostId,
}

impl Features {
    /// Executes Set Features. Returns the result field of the completion.
    pub fn set(&mut self, settings: &Settings, association: &Association, sqe: &Sqe) -> Result<u64, Fault> {
        let (fid, value) = (sqe.cdw10.get() as u8, sqe.cdw11.get());
        let discovery = association.live.is_none();
        if !is_known(fid, discovery) {
            return Err(Status::InvalidField.into());
        }
        if sqe.cdw10.get() >> 31 != 0 {
            return Err(Status::FeatureNotSaveable.into());
        }
        match fid {
            fid::EVENTS => {
                let smart = if discovery { 0 } else { EVENT_SMART };
                if value & !(events_of(discovery) | smart) != 0 {
                    return Err(Status::InvalidField.into());
                }
                self.events = value;
                Ok(value as u64)
            }
            fid::KEEP_ALIVE => {
                self.kato_ms = value;
                Ok(0)
            }
            fid::QUEUES => {
                // Each submission queue has a completion queue of its own, so the smaller number counts. Both numbers are 0's based.
                let asked = (value & 0xFFFF).min(value >> 16) as u16;
                let granted = association.grant(asked.saturating_add(1), settings.io_queues);
                let granted = granted.ok_or(Status::CommandSequenceError)?;
                Ok(pairs(granted))
            }
            // It was set by Connect.
            fid::HOST_ID => Err(Status::CommandSequenceError.into()),
            // The cache belongs to the storage and cannot be disabled.
            fid::WRITE_CACHE if value & 1 == 1 => Ok(0),
            _ => Err(Status::FeatureNotChangeable.into()),
        }
    }

    /// Executes Get Features.
    pub fn get(&self, association: &Association, sqe: &Sqe) -> Result<Value, Fault> {
        let fid = sqe.cdw10.get() as u8;
        // Only the current value exists: no default or saved values.
        let select = sqe.cdw10.get() >> 8 & 7;
        if !is_known(fid, association.live.is_none()) || select != 0 {
            return Err(Status::InvalidField.into());
        }
        Ok(match fid {
            fid::EVENTS => Value::Number(self.events),
            fid::KEEP_ALIVE => Value::Number(self.kato_ms),
            fid::QUEUES => Value::Number(pairs(association.granted()) as u32),
            fid::WRITE_CACHE => Value::Number(1),
            fid::HOST_ID if sqe.cdw11.get() & 1 == 0 => return Err(Status::InvalidField.into()),
            fid::HOST_ID => Value::HostId,
            _ => Value::Number(0),
        })
    }
}

/// The result of the Number of Queues feature: the numbers of submission and completion queues, both 0's based.
fn pairs(granted: u16) -> u64 {
    let less_one = granted.saturating_sub(1) as u64;
    less_one << 16 | less_one
}

fn is_known(fid: u8, discovery: bool) -> bool {
    match fid {
        fid::EVENTS | fid::KEEP_ALIVE => true,
        fid::ARBITRATION | fid::POWER | fid::TEMPERATURE | fid::ERROR_RECOVERY => !discovery,
        fid::WRITE_CACHE | fid::QUEUES | fid::WRITE_ATOMICITY | fid::HOST_ID => !discovery,
        _ => false,
    }
}
