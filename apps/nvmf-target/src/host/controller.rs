//! The host's side of a controller: connects to it, enables and identifies it.

use std::net::SocketAddr;
use std::time::Duration;

use nvmf::Nqn;
use nvmf::wire::discovery::{Header, Record};
use nvmf::wire::fabrics::ConnectData;
use nvmf::wire::identify::{self, cns};
use nvmf::wire::{Sgl, Sqe, zero_padded};
use verbs::{Access, Mr};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::command;
use super::device::{Host, PATIENCE};
use super::error::HostError;
use super::queue::{Data, HostQueue};

/// Offsets of controller properties.
const CAP: u32 = 0x00;
const CC: u32 = 0x14;
const CSTS: u32 = 0x1C;
/// CC: queue entries of 64 and 16 bytes, NVM command set.
const CC_SIZES: u32 = 0x0046_0000;
const CC_ENABLE: u32 = 1;
const CC_SHUTDOWN: u32 = 1 << 14;
const CSTS_READY: u32 = 1;
const CSTS_SHUT_DOWN: u32 = 2 << 2;
/// Identifier of the discovery log page.
const DISCOVERY: u8 = 0x70;
/// Entries of the admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// Length in bytes of the memory region for the data of admin commands.
const PAGE: usize = 4096;

/// Options of a connection to a controller.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Keep alive timeout; zero for none.
    pub keep_alive: Duration,
    /// The number of I/O queues to ask for.
    pub queues: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self { keep_alive: Duration::from_secs(60), queues: 1 }
    }
}

/// The properties of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceInfo {
    /// Its identifier.
    pub nsid: u32,
    /// Its size in blocks.
    pub blocks: u64,
    /// Block size in bytes.
    pub block: u32,
    /// NGUID.
    pub nguid: [u8; 16],
}

/// A controller that the host is connected to.
pub struct Controller {
    admin: HostQueue,
    page: Mr,
    to: SocketAddr,
    subsystem: Nqn,
    cntlid: u16,
    options: Options,
    identity: Box<identify::Controller>,
    /// The maximum number of submission queue entries of an I/O queue.
    entries_max: u16,
    queues: u16,
    /// When the last admin command was sent.
    kept_alive: Duration,
}

impl Controller {
    /// Connects to a subsystem, and enables and identifies its controller, as Linux does.
    ///
    /// # Errors
    /// If the target does not answer, refuses, or violates the specification.
    pub fn connect(
        host: &mut Host<'_>,
        to: SocketAddr,
        subsystem: &Nqn,
        options: Options,
    ) -> Result<Self, HostError> {
        let admin = HostQueue::connect(host, to, 0, ADMIN_ENTRIES)?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mut controller = Self {
            admin,
            page: host.pd.reg_mr(PAGE, rights)?,
            to,
            subsystem: subsystem.clone(),
            cntlid: ConnectData::ANY_CONTROLLER,
            options,
            identity: Box::new(identify::Controller::new_zeroed()),
            entries_max: 0,
            queues: 0,
            kept_alive: host.now(),
        };
        controller.write_connect_data(host)?;
        let sgl = controller.page_sgl(ConnectData::LEN as u32);
        let kato_ms = u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX);
        let connect = command::connect(0, ADMIN_ENTRIES, kato_ms, sgl);
        controller.cntlid = controller.call(host, &connect)?.result.get() as u16;
        controller.enable(host)?;
        controller.identify(host, cns::CONTROLLER, 0)?;
        controller.page.read(0, controller.identity.as_mut_bytes())?;
        controller.check()?;
        if !subsystem.is_discovery() {
            let granted = controller.call(host, &command::queues(options.queues))?.result.get();
            controller.queues = (granted as u16).saturating_add(1).min(options.queues);
        }
        Ok(controller)
    }

    fn enable(&mut self, host: &mut Host<'_>) -> Result<(), HostError> {
        let cap = self.call(host, &command::property_get(CAP, true))?.result.get();
        self.entries_max = (cap as u16).saturating_add(1);
        self.call(host, &command::property_set(CC, CC_SIZES))?;
        self.call(host, &command::property_set(CC, CC_SIZES | CC_ENABLE))?;
        self.await_status(host, CSTS_READY)
    }
    fn await_status(&mut self, host: &mut Host<'_>, bits: u32) -> Result<(), HostError> {
        let since = host.now();
        while self.call(host, &command::property_get(CSTS, false))?.result.get() as u32 & bits != bits {
            if host.now().saturating_sub(since) > PATIENCE {
                return Err(HostError::NoResponse);
            }
        }
        Ok(())
    }
    /// Checks what a Linux host checks.
    fn check(&self) -> Result<(), HostError> {
        let identity = &self.identity;
        let violation =
            |wrong: bool, what| if wrong { Err(HostError::ProtocolViolation(what)) } else { Ok(()) };
        violation(identity.cntlid.get() != self.cntlid, "another controller number than Connect said")?;
        violation(identity.sgls.get() & 5 != 5, "no keyed descriptors")?;
        if self.subsystem.is_discovery() {
            return Ok(());
        }
        violation(identity.kas.get() == 0, "no keep alive")?;
        violation(identity.ioccsz.get() < 4 || identity.iorcsz.get() < 1, "capsules that are too small")?;
        violation(identity.icdoff.get() != 0, "in-capsule data at an offset")
    }

    fn call(&mut self, host: &mut Host<'_>, sqe: &Sqe) -> Result<nvmf::wire::Cqe, HostError> {
        self.kept_alive = host.now();
        host.call(&mut self.admin, sqe, Data::Elsewhere)
    }
    fn page_sgl(&self, len: u32) -> Sgl {
        Sgl::keyed(self.page.iova(), len, self.page.rkey(), false)
    }
    fn write_connect_data(&self, host: &Host<'_>) -> Result<(), HostError> {
        let data = ConnectData {
            host_id: host.id,
            cntlid: U16::new(self.cntlid),
            subsystem: zero_padded(self.subsystem.as_str()),
            host: zero_padded(host.name.as_str()),
            ..ConnectData::new_zeroed()
        };
        Ok(self.page.write(0, data.as_bytes())?)
    }
    fn identify(&mut self, host: &mut Host<'_>, cns: u8, nsid: u32) -> Result<(), HostError> {
        let sgl = self.page_sgl(PAGE as u32);
        self.call(host, &command::identify(cns, nsid, sgl)).map(drop)
    }

    /// The controller identifier.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }
    /// The Identify Controller data structure.
    pub fn identity(&self) -> &identify::Controller {
        &self.identity
    }
    /// How many I/O queues the controller granted.
    pub fn queues(&self) -> u16 {
        self.queues
    }
    /// The maximum number of in-capsule data bytes.
    pub fn in_capsule(&self) -> usize {
        (self.identity.ioccsz.get() as usize * 16).saturating_sub(Sqe::LEN)
    }
    /// The largest transfer of a command, in bytes.
    pub fn transfer_max(&self) -> usize {
        match self.identity.mdts {
            0 => usize::MAX,
            n => 4096usize.checked_shl(n.into()).unwrap_or(usize::MAX),
        }
    }
    /// The admin queue.
    pub fn admin(&mut self) -> &mut HostQueue {
        &mut self.admin
    }

    /// Reads the properties of all namespaces.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn namespaces(&mut self, host: &mut Host<'_>) -> Result<Vec<NamespaceInfo>, HostError> {
        self.identify(host, cns::ACTIVE_NAMESPACES, 0)?;
        let mut list = [U32::ZERO; PAGE / 4];
        self.page.read(0, list.as_mut_bytes())?;
        let mut namespaces = Vec::new();
        for nsid in list.into_iter().map(U32::get).take_while(|&nsid| nsid != 0) {
            self.identify(host, cns::NAMESPACE, nsid)?;
            let namespace: identify::Namespace = self.take_page()?;
            let shift = namespace.lbaf[namespace.flbas as usize & 0xF].lbads;
            let block =
                1u32.checked_shl(shift.into()).ok_or(HostError::ProtocolViolation("blocks of no size"))?;
            namespaces.push(NamespaceInfo {
                nsid,
                blocks: namespace.nsze.get(),
                block,
                nguid: namespace.nguid,
            });
        }
        Ok(namespaces)
    }

    /// Connects I/O queue `qid` with `entries` entries, or with the controller's maximum if that is smaller.
    ///
    /// # Errors
    /// If the target does not answer, or refuses.
    pub fn io_queue(&mut self, host: &mut Host<'_>, qid: u16, entries: u16) -> Result<HostQueue, HostError> {
        let entries = entries.min(self.entries_max);
        let mut queue = HostQueue::connect(host, self.to, qid, entries)?;
        self.write_connect_data(host)?;
        // As Linux does: the data of Connect are in the capsule, if it has room.
        if self.in_capsule() >= ConnectData::LEN {
            let connect = command::connect(qid, entries, 0, Sgl::in_capsule(0, ConnectData::LEN as u32));
            host.call(&mut queue, &connect, Data::InCapsule(&self.page, 0..ConnectData::LEN))?;
        } else {
            let connect = command::connect(qid, entries, 0, self.page_sgl(ConnectData::LEN as u32));
            host.call(&mut queue, &connect, Data::Elsewhere)?;
        }
        Ok(queue)
    }

    /// Sends a Keep Alive if one is due. Call this regularly.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn keep_alive(&mut self, host: &mut Host<'_>) -> Result<(), HostError> {
        let quiet = host.now().saturating_sub(self.kept_alive);
        if !self.options.keep_alive.is_zero() && quiet > self.options.keep_alive / 4 {
            self.call(host, &command::keep_alive())?;
        }
        Ok(())
    }

    /// Shuts the controller down, and ends the connection.
    ///
    /// # Errors
    /// If the connection fails before the shutdown is complete.
    pub fn shutdown(mut self, host: &mut Host<'_>) -> Result<(), HostError> {
        self.call(host, &command::property_set(CC, CC_SIZES | CC_ENABLE | CC_SHUTDOWN))?;
        self.await_status(host, CSTS_SHUT_DOWN)
    }

    /// Reads the discovery log. Call this for a discovery controller.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn discovery_log(&mut self, host: &mut Host<'_>) -> Result<Vec<Record>, HostError> {
        let sgl = self.page_sgl(Record::LEN as u32);
        // The log is read again if it changes meanwhile.
        for _ in 0..10 {
            self.call(host, &command::log_page(DISCOVERY, 0, Record::LEN as u32, sgl))?;
            let header: Header = self.take_page()?;
            let mut records = Vec::new();
            for n in 0..header.records.get() {
                let offset = (n + 1) * Record::LEN as u64;
                self.call(host, &command::log_page(DISCOVERY, offset, Record::LEN as u32, sgl))?;
                records.push(self.take_page()?);
            }
            self.call(host, &command::log_page(DISCOVERY, 0, Record::LEN as u32, sgl))?;
            if self.take_page::<Header>()?.generation == header.generation {
                return Ok(records);
            }
        }
        Err(HostError::ProtocolViolation("a discovery log that changes all the time"))
    }
    fn take_page<T: FromBytes + IntoBytes>(&self) -> Result<T, HostError> {
        let mut value = T::new_zeroed();
        self.page.read(0, value.as_mut_bytes())?;
        Ok(value)
    }
}

/// Connects to the discovery controller of a target, and reads its discovery log.
///
/// # Errors
/// If the target does not answer, or refuses.
pub fn discover(host: &mut Host<'_>, to: SocketAddr) -> Result<Vec<Record>, HostError> {
    let name = Nqn::DISCOVERY.parse().map_err(|_| HostError::ProtocolViolation("its own name"))?;
    let options = Options { keep_alive: Duration::ZERO, queues: 0 };
    let mut controller = Controller::connect(host, to, &name, options)?;
    let log = controller.discovery_log(host)?;
    controller.shutdown(host)?;
    Ok(log)
}
