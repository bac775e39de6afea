//! The configuration of a target as data, and mistakes in it.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use arrayvec::ArrayString;
use nvmf::Nqn;
use nvmf::config::Settings;
use serde::{Deserialize, Serialize};

use crate::store::Direct;

/// The default port number: that of NVMe over RDMA.
pub const PORT: u16 = 4420;

/// The configuration of a target.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Settings of all controllers.
    pub settings: Settings,
    /// Addresses that the target listens on.
    pub ports: Vec<SocketAddr>,
    /// Its subsystems.
    pub subsystems: Vec<OfferedSubsystem>,
}

impl Offer {
    /// One subsystem with one namespace of `bytes` bytes of memory and blocks of `block` bytes.
    pub fn of_memory(nqn: &Nqn, bytes: u64, block: u32) -> Self {
        let storage = Storage::Memory(bytes);
        let namespace =
            OfferedNamespace { nsid: 1, storage, block, uuid: None, read_only: false, span: 0..0 };
        let subsystem = OfferedSubsystem {
            nqn: nqn.clone(),
            serial: None,
            hosts: None,
            namespaces: vec![namespace],
            span: 0..0,
        };
        Self { subsystems: vec![subsystem], ..Self::default() }
    }
}

/// A subsystem.
#[derive(Clone, Debug)]
pub struct OfferedSubsystem {
    /// Its NQN.
    pub nqn: Nqn,
    /// Its serial number; `None`: computed from its name.
    pub serial: Option<ArrayString<20>>,
    /// The hosts that may use it; `None`: every host.
    pub hosts: Option<Vec<Nqn>>,
    /// Its namespaces.
    pub namespaces: Vec<OfferedNamespace>,
    /// Its place in the text of the file, in bytes.
    pub span: Range<usize>,
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferedNamespace {
    /// Its identifier.
    pub nsid: u32,
    /// The storage of its blocks.
    pub storage: Storage,
    /// Block size in bytes.
    pub block: u32,
    /// Its UUID; `None`: computed from the names of the subsystem and the file, and random for memory.
    pub uuid: Option<[u8; 16]>,
    /// Whether it is write protected.
    pub read_only: bool,
    /// Its place in the text of the file, in bytes.
    #[serde(skip)]
    pub span: Range<usize>,
}

/// The supported block sizes, in bytes.
pub const BLOCKS: [u32; 4] = [512, 1024, 2048, 4096];

impl OfferedNamespace {
    /// Checks everything that can be checked without looking at the storage.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub fn check(&self) -> Result<(), String> {
        let block = self.block;
        check_block(block)?;
        match self.storage {
            Storage::Memory(bytes) | Storage::File { size: Some(bytes), .. } => check_size(bytes, block),
            Storage::File { size: None, .. } => Ok(()),
        }
    }
}

/// Checks that a block size, in bytes, is supported.
///
/// # Errors
/// What is wrong, as a sentence.
pub fn check_block(block: u32) -> Result<(), String> {
    if BLOCKS.contains(&block) { Ok(()) } else { Err(no_block(block)) }
}

/// The error message for an unsupported block size.
pub(crate) fn no_block(given: impl std::fmt::Display) -> String {
    format!("a block has 512, 1024, 2048 or 4096 bytes, not {given}")
}

/// Checks that the size of a namespace, in bytes, is a multiple of the block size and not 0.
///
/// # Errors
/// What is wrong, as a sentence.
pub fn check_size(bytes: u64, block: u32) -> Result<(), String> {
    match bytes {
        0 => Err("a namespace has at least one block".into()),
        n if !n.is_multiple_of(block.into()) => {
            Err(format!("{n} is no multiple of a block of {block} bytes"))
        }
        _ => Ok(()),
    }
}

/// The storage of a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Storage {
    /// This many bytes of memory.
    Memory(u64),
    /// A file or a block device.
    File {
        /// Its path.
        path: PathBuf,
        /// Size in bytes: the file is created, or grown if it is smaller. `None`: it must exist, and keeps its size.
        size: Option<u64>,
        /// Whether to use direct I/O, which bypasses the page cache. `None`: for block devices, but not for files.
        direct: Option<Direct>,
    },
}

/// A mistake in a configuration: a sentence, and its place in the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The sentence.
    pub what: String,
    /// Its place in the text, in bytes; `None` if it has no particular place.
    pub span: Option<Range<usize>>,
}

impl Mistake {
    /// The message for the user: the name of the file, the line, and the sentence.
    pub fn at(&self, file: &str, text: &str) -> String {
        match &self.span {
            Some(span) => {
                let before = text.get(..span.start).unwrap_or(text);
                format!("{file}:{}: {}", 1 + before.matches('\n').count(), self.what)
            }
            None => format!("{file}: {}", self.what),
        }
    }
}
