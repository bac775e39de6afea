//! Requests to a running target, and its answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::OfferedNamespace;

/// A request to a running target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Report subsystems, namespaces, hosts and controllers.
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
    /// Change the size of a namespace.
    ResizeNamespace {
        /// The subsystem.
        nqn: String,
        /// Its identifier.
        id: u32,
        /// The new size in bytes; absent: the present size of its file or device.
        size: Option<u64>,
    },
    /// Serve a namespace again that has failed because it lost data.
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
    /// Forbid a host to use a subsystem. Its controllers of that subsystem end.
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
    /// The change was made; a sentence that says which.
    Done(String),
    /// Nothing was changed; a sentence that says why.
    Refused(String),
    /// The answer to [`Request::List`].
    List(List),
}

/// What a target serves, and to whom.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct List {
    /// Process ID of the target.
    pub pid: u32,
    /// Its subsystems.
    pub subsystems: Vec<ListedSubsystem>,
    /// The controllers to which hosts are connected, including discovery controllers.
    #[serde(rename = "hosts")]
    pub controllers: Vec<ListedController>,
    /// Changes that are not in the configuration, and are lost when the target ends; a sentence each.
    #[serde(default)]
    pub differs: Vec<String>,
}

/// A subsystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedSubsystem {
    /// Its NQN.
    pub nqn: String,
    /// Its serial number.
    pub serial: String,
    /// NQNs of the hosts that may use it; absent: any host.
    pub hosts: Option<Vec<String>>,
    /// Its namespaces.
    pub namespaces: Vec<ListedNamespace>,
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedNamespace {
    /// Its identifier.
    pub id: u32,
    /// Its file or block device; absent: it is in memory.
    pub file: Option<PathBuf>,
    /// Its size in bytes.
    pub size: u64,
    /// Its block size in bytes.
    pub block: u32,
    /// Its UUID.
    pub uuid: String,
    /// Whether hosts may only read.
    pub read_only: bool,
    /// Why every command to it fails, after it has lost data; absent: it has not failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// A controller and the host that is connected to it. A host may have several controllers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedController {
    /// The NQN of the host.
    pub nqn: String,
    /// The controller's identifier (CNTLID).
    pub controller: u16,
    /// The NQN of its subsystem; absent: it is a discovery controller.
    pub subsystem: Option<String>,
}
