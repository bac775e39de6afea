//! The configuration of a target, as plain data: settings, ports, subsystems, namespaces, hosts.

use arrayvec::ArrayString;

use crate::limits;
use crate::nqn::Nqn;

/// Settings of all controllers of a target.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The maximum number of submission queue entries of an I/O queue (MQES, MAXCMD).
    pub queue_entries: u16,
    /// The maximum number of I/O queues of a controller.
    pub io_queues: u16,
    /// The maximum number of data bytes in a command capsule (from IOCCSZ); a multiple of 16, 0 for no in-capsule data.
    pub in_capsule: u32,
    /// The largest transfer is 2^n times 4 KiB (MDTS).
    pub mdts: u8,
    /// The maximum number of I/O controllers at a time. A host gets its fair share of them ([`fair`](crate::fair)). One is reserved for
    /// each listed host of a subsystem, up to half of all.
    pub controllers: u16,
    /// The maximum number of discovery controllers at a time. Any host may have one.
    pub discovery_controllers: u16,
    /// Model number of all subsystems.
    pub model: ArrayString<40>,
    /// Firmware revision of all subsystems.
    pub firmware: ArrayString<8>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue_entries: 128,
            io_queues: 64,
            in_capsule: 4096,
            mdts: 8,
            controllers: 1024,
            discovery_controllers: 256,
            model: ArrayString::from("roce-nvmf").expect("9 bytes"),
            firmware: ArrayString::from(env!("CARGO_PKG_VERSION")).unwrap_or_default(),
        }
    }
}

impl Settings {
    /// The largest transfer of a command, in bytes.
    pub const fn transfer_max(&self) -> u32 {
        4096 << self.mdts
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self { queue_entries, io_queues, in_capsule, mdts, .. } = *self;
        if !limits::QUEUE_ENTRIES.contains(&queue_entries) {
            return Err(ConfigError::QueueEntries(queue_entries));
        }
        if io_queues == 0 || io_queues == u16::MAX {
            return Err(ConfigError::IoQueues(io_queues));
        }
        if !in_capsule.is_multiple_of(16) || in_capsule > limits::IN_CAPSULE_MAX {
            return Err(ConfigError::InCapsule(in_capsule));
        }
        if !limits::MDTS.contains(&mdts) {
            return Err(ConfigError::Mdts(mdts));
        }
        Ok(())
    }
}

/// An address at which the target accepts connections. The discovery log has a record for each port and subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Its number (PORTID).
    pub id: u16,
    /// Its IP address and the port number of `rdma_cm`. An unspecified address stands for every address of the target.
    pub address: core::net::SocketAddr,
}

/// Through which ports a subsystem can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ports {
    /// Every port.
    All,
    /// The ports with these numbers.
    Listed(Vec<u16>),
}

impl Ports {
    /// Whether the subsystem can be used through `port`.
    pub fn has(&self, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Listed(list) => list.contains(&port),
        }
    }
}

/// Which hosts may use a subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// Every host.
    Any,
    /// The hosts with these names.
    Listed(Vec<Nqn>),
}

impl Hosts {
    /// Whether `host` may use the subsystem.
    pub fn allow(&self, host: &Nqn) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(list) => list.contains(host),
        }
    }
    /// The listed hosts; empty if every host is allowed.
    pub(crate) fn named(&self) -> &[Nqn] {
        match self {
            Self::Any => &[],
            Self::Listed(list) => list,
        }
    }
}

/// A subsystem: namespaces, and which hosts may use them through which ports.
#[derive(Clone, Debug)]
pub struct Subsystem {
    /// Its name.
    pub nqn: Nqn,
    /// Its serial number: 1 to 20 printable ASCII characters. Hosts refuse a subsystem whose serial number has changed.
    pub serial: ArrayString<20>,
    /// Ports through which it can be used.
    pub ports: Ports,
    /// Hosts that may use it.
    pub hosts: Hosts,
    /// Its namespaces. Namespaces can be added and removed later.
    pub namespaces: Vec<Namespace>,
}

/// The program's number for the storage of a namespace. The library gives it back in each [`Request`](crate::Request).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Backend(pub u32);

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Its identifier, 1 to [`NAMESPACES_MAX`](limits::NAMESPACES_MAX).
    pub nsid: u32,
    /// The storage of its blocks.
    pub backend: Backend,
    /// Its size in blocks.
    pub blocks: u64,
    /// The block size is 2 to this power, in bytes; 9 to 12.
    pub block_shift: u8,
    /// Its UUID. It identifies the stored data, so the two must stay together: a host drops a disk whose UUID has changed after a restart,
    /// and a host that finds a known UUID assumes that the data are the same.
    pub uuid: [u8; 16],
    /// Its NGUID. It identifies the stored data as the UUID does.
    pub nguid: [u8; 16],
    /// Whether the namespace is write protected.
    pub read_only: bool,
    /// Granularity and alignment of deallocation, in bytes. All blocks of a deallocated range read as zeros afterwards, also those that are
    /// not an aligned whole of this size and so keep their storage. `None`: the namespace cannot deallocate, and hosts are told so.
    pub deallocates: Option<u32>,
}

impl Namespace {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self { nsid, blocks, block_shift, .. } = *self;
        if nsid == 0 || nsid > limits::NAMESPACES_MAX {
            return Err(ConfigError::Nsid(nsid));
        }
        if !limits::BLOCK_SHIFTS.contains(&block_shift) {
            return Err(ConfigError::BlockShift { nsid, block_shift });
        }
        check_blocks(nsid, blocks, block_shift)?;
        if self.uuid == [0; 16] || self.nguid == [0; 16] {
            return Err(ConfigError::NoIdentity(nsid));
        }
        Ok(())
    }
}

/// Checks that a namespace has blocks, and that its size in bytes is one that a file can have.
pub(crate) fn check_blocks(nsid: u32, blocks: u64, block_shift: u8) -> Result<(), ConfigError> {
    if blocks == 0 || blocks > i64::MAX as u64 >> block_shift {
        return Err(ConfigError::Blocks { nsid, blocks });
    }
    Ok(())
}

/// Why a configuration, or a change of it, was refused. A refused change has no effect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// See the text.
    #[error("an I/O queue has {min} to {max} entries, not {0}", min = limits::QUEUE_ENTRIES.start(), max = limits::QUEUE_ENTRIES.end())]
    QueueEntries(u16),
    /// See the text.
    #[error("a controller has 1 to 65534 I/O queues, not {0}")]
    IoQueues(u16),
    /// See the text.
    #[error("in-capsule data are a multiple of 16 bytes, at most {max}, not {0}", max = limits::IN_CAPSULE_MAX)]
    InCapsule(u32),
    /// See the text.
    #[error("MDTS is {min} to {max}, not {0}", min = limits::MDTS.start(), max = limits::MDTS.end())]
    Mdts(u8),
    /// See the text.
    #[error("there is a port {0} already; give the other one another number")]
    PortExists(u16),
    /// See the text.
    #[error("there is no port {0}; add it first")]
    NoPort(u16),
    /// See the text.
    #[error("there is a subsystem {0} already; choose another name")]
    SubsystemExists(Nqn),
    /// See the text.
    #[error("there is no subsystem {0}; add it first")]
    NoSubsystem(Nqn),
    /// See the text.
    #[error("{name} is the discovery subsystem's name; choose another", name = Nqn::DISCOVERY)]
    DiscoveryName,
    /// See the text.
    #[error("a serial number is 1 to 20 printable ASCII characters, not {0:?}")]
    Serial(ArrayString<20>),
    /// See the text.
    #[error("a namespace identifier is 1 to {max}, not {0}", max = limits::NAMESPACES_MAX)]
    Nsid(u32),
    /// See the text.
    #[error("there is a namespace {0} already; choose another identifier")]
    NamespaceExists(u32),
    /// See the text.
    #[error("there is no namespace {0}; add it first")]
    NoNamespace(u32),
    /// See the text.
    #[error("namespace {nsid}: a block has 2^9 to 2^12 bytes, not 2^{block_shift}")]
    BlockShift {
        /// The namespace.
        nsid: u32,
        /// The refused exponent of the block size.
        block_shift: u8,
    },
    /// See the text.
    #[error("namespace {nsid}: {blocks} blocks: give one at least, and no more than a file can have")]
    Blocks {
        /// The namespace.
        nsid: u32,
        /// The refused size in blocks.
        blocks: u64,
    },
    /// See the text.
    #[error("namespace {0}: give it a UUID and an NGUID that are not zero, and keep them")]
    NoIdentity(u32),
    /// See the text.
    #[error("namespace {0}: another namespace has this UUID or NGUID; hosts take the two for one disk")]
    SameIdentity(u32),
    /// See the text.
    #[error("host {0} is not listed")]
    NoHost(Nqn),
}
