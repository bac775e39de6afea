//! Parameters of connections: those that a program gives, and those that it receives from the peer.

use std::time::Duration;

use stack::device::{AhAttr, Mtu, QpType};

/// A port space, which determines the kind of an identifier's connections (`enum rdma_port_space`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "rdma_port_space")]
pub enum PortSpace {
    /// Reliable connections between RC queue pairs.
    #[doc(alias = "RDMA_PS_TCP")]
    Tcp,
    /// Datagrams between UD queue pairs. Connecting returns the peer's queue pair number and Q_Key.
    #[doc(alias = "RDMA_PS_UDP")]
    Udp,
    /// Any service type: RC, unless the identifier is created for another one ([`create_id_of_type`](crate::Context::create_id_of_type)).
    /// The only port space for UC connections. As in Linux, it works with IP addresses: ports, and the header before the private data, are
    /// as in the other port spaces. `AF_IB` addresses, with service IDs chosen by the program, are not supported.
    #[doc(alias = "RDMA_PS_IB")]
    Ib,
    /// Datagrams of IP over InfiniBand. The Q_Key would be that of the broadcast group of an IPoIB interface, which a RoCE port does not
    /// have. Creating an identifier fails with [`CmError::NoIpoIb`](super::CmError::NoIpoIb).
    #[doc(alias = "RDMA_PS_IPOIB")]
    IpoIb,
}

impl PortSpace {
    /// The port space's number, which precedes the port in a service ID.
    #[doc(alias = "RDMA_PS_TCP")]
    pub const fn number(self) -> u16 {
        match self {
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
            Self::IpoIb => 0x0002,
        }
    }
    /// The default type of an identifier's queue pair.
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Tcp | Self::Ib => QpType::Rc,
            Self::Udp | Self::IpoIb => QpType::Ud,
        }
    }
    /// The maximum length in bytes of the private data of a request. For [`Ib`](Self::Ib) this is a connection request; a request for
    /// datagrams has the maximum of [`Udp`](Self::Udp).
    pub const fn connect_data_max(self) -> usize {
        match self {
            Self::Tcp | Self::Ib => 56,
            Self::Udp | Self::IpoIb => 180,
        }
    }
    /// The maximum length in bytes of the private data of an accepting reply; for [`Ib`](Self::Ib) see
    /// [`connect_data_max`](Self::connect_data_max).
    pub const fn accept_data_max(self) -> usize {
        match self {
            Self::Tcp | Self::Ib => 196,
            Self::Udp | Self::IpoIb => 136,
        }
    }
    /// The maximum length in bytes of the private data of a refusal; for [`Ib`](Self::Ib) see [`connect_data_max`](Self::connect_data_max).
    pub const fn reject_data_max(self) -> usize {
        match self {
            Self::Tcp | Self::Ib => 148,
            Self::Udp | Self::IpoIb => 136,
        }
    }
}

/// Stands for as many READ and atomic requests from the peer as the device can accept.
#[doc(alias = "RDMA_MAX_RESP_RES")]
pub const MAX_RESP_RES: u8 = 0xff;
/// Stands for as many READ and atomic requests to the peer as the device can issue.
#[doc(alias = "RDMA_MAX_INIT_DEPTH")]
pub const MAX_INIT_DEPTH: u8 = 0xff;
/// The Q_Key of every datagram identifier.
#[doc(alias = "RDMA_UDP_QKEY")]
pub const UDP_QKEY: u32 = 0x0123_4567;

/// Parameters of [`CmId::connect`](super::CmId::connect) and [`CmId::accept`](super::CmId::accept) (`struct rdma_conn_param`). By default
/// there is no private data, the READ and atomic depths are the device's maxima, and the retry counts are 7.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "rdma_conn_param")]
pub struct ConnParam<'a> {
    /// Private data for the program on the other side: at most [`PortSpace::connect_data_max`] bytes with `connect`, and
    /// [`PortSpace::accept_data_max`] with `accept`.
    pub private_data: &'a [u8],
    /// How many READ and atomic requests the peer may have outstanding; [`MAX_RESP_RES`] for the device's maximum. `accept` lowers it to
    /// what the peer requests. Only for RC.
    pub responder_resources: u8,
    /// How many READ and atomic requests this side may have outstanding; [`MAX_INIT_DEPTH`] for the device's maximum. `accept` lowers it to
    /// what the peer supports. Only for RC.
    pub initiator_depth: u8,
    /// What to tell the peer about end-to-end flow control (credits). Queue pairs here always have it.
    pub flow_control: bool,
    /// Transport retries, 0 to 7. `accept` uses the peer's value.
    pub retry_count: u8,
    /// RNR retries of the peer's queue pair, 0 to 6; 7 means unlimited.
    pub rnr_retry_count: u8,
    /// Whether the program's own queue pair has a shared receive queue. Ignored if the identifier has a queue pair.
    pub srq: bool,
    /// The number of the program's own queue pair, which the program brings up itself. Ignored if the identifier has a queue pair
    /// ([`CmId::create_qp`](super::CmId::create_qp)).
    pub qp_num: u32,
}

impl Default for ConnParam<'_> {
    fn default() -> Self {
        Self {
            private_data: &[],
            responder_resources: MAX_RESP_RES,
            initiator_depth: MAX_INIT_DEPTH,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qp_num: 0,
        }
    }
}

impl<'a> ConnParam<'a> {
    /// The default parameters with this private data.
    pub fn with_data(private_data: &'a [u8]) -> Self {
        Self { private_data, ..Self::default() }
    }
}

/// The peer's connection parameters (`struct rdma_conn_param` in an event).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PeerParam {
    /// How many READ and atomic requests the peer wants to have outstanding.
    pub responder_resources: u8,
    /// How many READ and atomic requests the peer accepts.
    pub initiator_depth: u8,
    /// Whether the peer says that it has end-to-end flow control.
    pub flow_control: bool,
    /// Transport retries that the peer requests (CONNECT_REQUEST only).
    pub retry_count: u8,
    /// RNR retries that the peer requests.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The number of the peer's queue pair.
    pub qp_num: u32,
}

/// A datagram peer or group in an event (`struct rdma_ud_param`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "rdma_ud_param")]
#[non_exhaustive]
pub struct UdParam {
    /// The address vector, for an address handle ([`Pd::create_ah`](crate::Pd::create_ah)).
    pub ah_attr: AhAttr,
    /// The queue pair number.
    pub qp_num: u32,
    /// The Q_Key.
    pub qkey: u32,
}

/// An option of an identifier (`rdma_set_option`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[doc(alias = "rdma_set_option")]
pub enum CmOption {
    /// DSCP and ECN of the packets and connection management messages of connections that this side requests, and of datagrams to groups.
    /// On a listener or a request it has no effect, because the peer has chosen the value; as on Linux that is not an error.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    Tos(u8),
    /// Whether other identifiers with this option may bind to the same port. To be set before [`bind_addr`](super::CmId::bind_addr).
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    ReuseAddr(bool),
    /// Whether the IPv6 wildcard address excludes IPv4. To be set before [`bind_addr`](super::CmId::bind_addr).
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    AfOnly(bool),
    /// Exponent of the queue pair's ACK timeout, 0 to 31: 4.096 us * 2^n; 0 disables the timeout. To be set before the connection is made;
    /// it is sent to the peer. If it is not set, `accept` uses the peer's, or the default (17, 0.54 s) if the peer's is 0, because without
    /// a timeout a queue pair never notices that its peer has failed.
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    AckTimeout(u8),
    /// Exponent of the time in which either side's connection management answers, 0 to 31: 4.096 us * 2^n; default 20 (4.3 s). Not in the C
    /// API.
    CmResponseTimeout(u8),
    /// Number of retries of a connection management message, 0 to 15; default 15. Not in the C API.
    MaxCmRetries(u8),
    /// Path MTU of the connection, at most that of the port. By default it is that of the port, or less if the route to the peer or the
    /// peer's route back supports less. If a value that is set here is too large for the peer, the peer refuses the connection. Not in the
    /// C API.
    PathMtu(Mtu),
    /// How often the peer of a reliable connection is asked whether it still has the connection; default 30 s, zero for never. If the peer
    /// does not answer, it is asked again after a third of that time. After the third failure the connection ends with
    /// [`Disconnected`](super::CmEventType::Disconnected) and the status `-ETIMEDOUT`. Thus a peer that has failed is detected even if no
    /// request is sent to it. The check is that of [`Qp::check_peer`](crate::Qp::check_peer), which needs no access right and no receive
    /// request. To be set before the connection is made. Not in the C API.
    KeepAlive(Duration),
}

/// The current options of an identifier ([`CmId::options`](super::CmId::options)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CmOptions {
    /// [`CmOption::Tos`].
    pub tos: u8,
    /// [`CmOption::ReuseAddr`].
    pub reuse_addr: bool,
    /// [`CmOption::AfOnly`].
    pub af_only: bool,
    /// [`CmOption::AckTimeout`], if it was set.
    pub ack_timeout: Option<u8>,
    /// [`CmOption::CmResponseTimeout`], if it was set.
    pub cm_response_timeout: Option<u8>,
    /// [`CmOption::MaxCmRetries`], if it was set.
    pub max_cm_retries: Option<u8>,
    /// [`CmOption::PathMtu`], if it was set.
    pub path_mtu: Option<Mtu>,
    /// [`CmOption::KeepAlive`], if it was set.
    pub keep_alive: Option<Duration>,
}
