//! Why a port could not be opened, or does not do what it is asked.

/// What a port refuses: one sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The specification is not one of a port.
    #[error("port {spec:?}: {reason}")]
    Spec {
        /// The text.
        spec: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// The options do not fit the port.
    #[error("port options: {0}")]
    Options(String),
    /// The port needs DPDK, and this build has none.
    #[error("port {0:?} needs DPDK, which this build leaves out: build with the feature \"dpdk\"")]
    NoDpdk(String),
    /// DPDK's environment could not be started.
    #[error("DPDK: {0}")]
    Eal(String),
    /// The host did not join a multicast group.
    #[error("the host does not join the multicast group {group}: {reason}")]
    Group {
        /// The group.
        group: core::net::IpAddr,
        /// What failed.
        reason: String,
    },
    /// The device could not be opened.
    #[error("port {port:?}: {reason}")]
    Open {
        /// The port's specification.
        port: String,
        /// What failed, and what to do about it.
        reason: String,
    },
}
