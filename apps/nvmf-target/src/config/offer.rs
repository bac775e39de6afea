//! What a target offers, and what is wrong with it.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use arrayvec::ArrayString;
use nvmf::Nqn;
use nvmf::config::Settings;
use serde::{Deserialize, Serialize};

use crate::store::Direct;

/// The port of targets where none is named: NVMe over RDMA's.
pub const PORT: u16 = 4420;

/// What a target offers.
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
    /// One subsystem with a namespace of `bytes` bytes of memory.
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
    /// Its name.
    pub nqn: Nqn,
    /// Its serial number; where absent, one that follows from the name.
    pub serial: Option<ArrayString<20>>,
    /// Hosts that may use it; `None`: every one.
    pub hosts: Option<Vec<Nqn>>,
    /// Its namespaces.
    pub namespaces: Vec<OfferedNamespace>,
    /// Where in the file it is defined.
    pub span: Range<usize>,
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferedNamespace {
    /// Its identifier.
    pub nsid: u32,
    /// Where its blocks are.
    pub storage: Storage,
    /// Bytes of a block.
    pub block: u32,
    /// Its UUID; where absent, one that follows from the names of the subsystem and the file, and for memory a new one.
    pub uuid: Option<[u8; 16]>,
    /// Hosts may not write.
    pub read_only: bool,
    /// Where in the file it is defined.
    #[serde(skip)]
    pub span: Range<usize>,
}

/// Sizes that a block can have, in bytes.
pub const BLOCKS: [u32; 4] = [512, 1024, 2048, 4096];

impl OfferedNamespace {
    /// Checks all that can be checked without looking at the storage.
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

/// Checks that this is a size that a block can have, in bytes.
///
/// # Errors
/// What is wrong, as a sentence.
pub fn check_block(block: u32) -> Result<(), String> {
    if BLOCKS.contains(&block) { Ok(()) } else { Err(no_block(block)) }
}

/// The sentence that says that this is no size of a block.
pub(crate) fn no_block(given: impl std::fmt::Display) -> String {
    format!("a block has 512, 1024, 2048 or 4096 bytes, not {given}")
}

/// Checks that the size of a namespace is a whole number of blocks, and not 0.
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

/// Where blocks are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Storage {
    /// This many bytes of memory.
    Memory(u64),
    /// A file or a block device.
    File {
        /// Its name.
        path: PathBuf,
        /// Size in bytes: the file is created, or grown if it is smaller.
        size: Option<u64>,
        /// Whether to use direct I/O, past the page cache; where absent, for block devices and not for files.
        direct: Option<Direct>,
    },
}

/// A mistake in a configuration: one sentence, and its place in the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The sentence.
    pub what: String,
    /// Where in the text.
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
