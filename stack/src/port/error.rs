//! Why a port could not be opened, or could not do what was asked.

/// An error of a port. Its text says what is wrong, and what to do if that is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The text is not the specification of a port.
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
    /// The host could not join a multicast group.
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
