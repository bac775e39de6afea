//! Requests to a target that runs, and its answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::OfferedNamespace;

/// What a target is asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// What is there?
    List,
    /// Add a namespace. If its identifier is 0, it gets the lowest free one.
    AddNamespace {
        /// The subsystem.
        nqn: String,
        /// The namespace.
        namespace: OfferedNamespace,
    },
    /// Remove a namespace.
    RemoveNamespace {
        /// The subsystem.
        nqn: String,
        /// Its identifier.
        id: u32,
    },
    /// Give a namespace another size.
    ResizeNamespace {
        /// The subsystem.
        nqn: String,
        /// Its identifier.
        id: u32,
        /// Its bytes; where absent, as many as the file or the device has now.
        size: Option<u64>,
    },
    /// Serve again a namespace that has failed because it lost data.
    OnlineNamespace {
        /// The subsystem.
        nqn: String,
        /// Its identifier.
        id: u32,
    },
    /// Allow a host to use a subsystem.
    AllowHost {
        /// The subsystem.
        nqn: String,
        /// The host.
        host: String,
    },
    /// Deny a host a subsystem. Its controllers there end.
    DenyHost {
        /// The subsystem.
        nqn: String,
        /// The host.
        host: String,
    },
}

/// The target's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The change is made; a sentence that says which.
    Done(String),
    /// Nothing was changed; a sentence that says why.
    Refused(String),
    /// What is there.
    List(List),
}

/// What a target has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct List {
    /// The process.
    pub pid: u32,
    /// Its subsystems.
    pub subsystems: Vec<ListedSubsystem>,
    /// The controllers that hosts are connected to, discovery controllers included.
    #[serde(rename = "hosts")]
    pub controllers: Vec<ListedController>,
    /// What differs from the configuration, and is lost when the target ends; a sentence each.
    #[serde(default)]
    pub differs: Vec<String>,
}

/// A subsystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedSubsystem {
    /// Its name.
    pub nqn: String,
    /// Its serial number.
    pub serial: String,
    /// Hosts that may use it; absent: every one.
    pub hosts: Option<Vec<String>>,
    /// Its namespaces.
    pub namespaces: Vec<ListedNamespace>,
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedNamespace {
    /// Its identifier.
    pub id: u32,
    /// Its file; absent: it is in memory.
    pub file: Option<PathBuf>,
    /// Its bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block: u32,
    /// Its UUID.
    pub uuid: String,
    /// Hosts may not write.
    pub read_only: bool,
    /// Why every command fails: it has lost data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// A controller with its host; a host may have several.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedController {
    /// The name of the host.
    pub nqn: String,
    /// The controller's identifier (CNTLID).
    pub controller: u16,
    /// The subsystem; absent: it is a discovery controller.
    pub subsystem: Option<String>,
}
