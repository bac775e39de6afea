//! What a target offers, as plain data: ports, subsystems, namespaces, hosts.

use arrayvec::ArrayString;

use crate::limits;
use crate::nqn::Nqn;

/// Settings of all controllers of a target.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Submission queue entries of an I/O queue, at most (MQES, MAXCMD).
    pub queue_entries: u16,
    /// I/O queues of a controller, at most.
    pub io_queues: u16,
    /// Bytes of data in a command capsule, at most; a multiple of 16, 0 for none (IOCCSZ).
    pub in_capsule: u32,
    /// The largest transfer is 2^n times 4 KiB (MDTS).
    pub mdts: u8,
    /// Controllers of subsystems at a time. A host has its share of them ([`fair`](crate::fair)), and there is room for one of each
    /// host that a subsystem names.
    pub controllers: u16,
    /// Discovery controllers at a time. Any stranger may have one.
    pub discovery_controllers: u16,
    /// Model that subsystems show.
    pub model: ArrayString<40>,
    /// Firmware revision that they show.
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
    /// The largest transfer, in bytes.
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

/// Where a target can be reached; a row of the discovery log for each subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Its number.
    pub id: u16,
    /// Its address, and the port number of `rdma_cm`.
    pub address: core::net::SocketAddr,
}

/// Which ports have a subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ports {
    /// Every one.
    All,
    /// These.
    Listed(Vec<u16>),
}

impl Ports {
    /// Whether `port` has it.
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
    /// Every one.
    Any,
    /// These.
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
    /// The hosts that are named.
    pub(crate) fn named(&self) -> &[Nqn] {
        match self {
            Self::Any => &[],
            Self::Listed(list) => list,
        }
    }
}

/// A subsystem: namespaces, and who may use them.
#[derive(Clone, Debug)]
pub struct Subsystem {
    /// Its name.
    pub nqn: Nqn,
    /// Its serial number. Hosts refuse a subsystem whose serial number changed.
    pub serial: ArrayString<20>,
    /// Ports that have it.
    pub ports: Ports,
    /// Hosts that may use it.
    pub hosts: Hosts,
    /// Its namespaces; more can come and go later.
    pub namespaces: Vec<Namespace>,
}

/// The program's number for the storage of a namespace. The library only passes it on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Backend(pub u32);

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Its identifier, from 1.
    pub nsid: u32,
    /// Where its blocks are.
    pub backend: Backend,
    /// Its size in blocks.
    pub blocks: u64,
    /// A block has 2^n bytes, 9 to 12.
    pub block_shift: u8,
    /// Its UUID, which belongs to the blocks: hosts drop a disk whose UUID has changed after a restart, and take other blocks
    /// with a known UUID for the disk that they know.
    pub uuid: [u8; 16],
    /// Its NGUID, which belongs to the blocks as the UUID does.
    pub nguid: [u8; 16],
    /// Hosts may not write.
    pub read_only: bool,
    /// Bytes that can be given back together, from a multiple of them on: such blocks read as zeros then, and others are made
    /// zeros. `None`: nothing can be given back, and hosts are told so.
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

/// Checks that a namespace has blocks, and that the offset of its last byte is one that a file may have.
pub(crate) fn check_blocks(nsid: u32, blocks: u64, block_shift: u8) -> Result<(), ConfigError> {
    if blocks == 0 || blocks > i64::MAX as u64 >> block_shift {
        return Err(ConfigError::Blocks { nsid, blocks });
    }
    Ok(())
}

/// Why a configuration, or a change of it, was refused. Nothing was changed.
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
        /// What was given.
        block_shift: u8,
    },
    /// See the text.
    #[error("namespace {nsid}: {blocks} blocks: give one at least, and no more than a file can have")]
    Blocks {
        /// The namespace.
        nsid: u32,
        /// What was given.
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
