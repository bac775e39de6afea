//! What a program says when it connects or accepts, and what it hears of the other side.

use stack::device::QpType;

use super::error::CmError;

/// A port space: what connections of an identifier are (`enum rdma_port_space`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "rdma_port_space")]
pub enum PortSpace {
    /// Reliable connections between RC queue pairs.
    #[doc(alias = "RDMA_PS_TCP")]
    Tcp,
    /// Datagrams between UD queue pairs, whose numbers and Q_Keys are found out by connecting.
    #[doc(alias = "RDMA_PS_UDP")]
    Udp,
    /// Any service type, RC unless the identifier is made for another one
    /// ([`create_id_of_type`](crate::Context::create_id_of_type)): UC connections are had in no other port space. Over IP
    /// addresses, as Linux has it too: ports, and the header in front of private data, are as in the others. `AF_IB`
    /// addresses with service IDs of one's own there are none.
    #[doc(alias = "RDMA_PS_IB")]
    Ib,
    /// Datagrams of IP over InfiniBand. Its Q_Key is that of the broadcast group of an IPoIB interface, which a RoCE port
    /// has not; identifiers of it are refused with [`CmError::NoIpoIb`].
    #[doc(alias = "RDMA_PS_IPOIB")]
    IpoIb,
}

impl PortSpace {
    /// Its number in a service ID, above the port.
    #[doc(alias = "RDMA_PS_TCP")]
    pub const fn number(self) -> u16 {
        match self {
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
            Self::IpoIb => 0x0002,
        }
    }
    /// The type of the queue pairs of an identifier where none is asked for.
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Tcp | Self::Ib => QpType::Rc,
            Self::Udp | Self::IpoIb => QpType::Ud,
        }
    }
    /// Checks the type of queue pairs that an identifier is made for.
    pub(super) const fn check(self, qp_type: QpType) -> Result<(), CmError> {
        match (self, qp_type) {
            (Self::IpoIb, _) => Err(CmError::NoIpoIb),
            (Self::Tcp, QpType::Rc)
            | (Self::Udp, QpType::Ud)
            | (Self::Ib, QpType::Rc | QpType::Uc | QpType::Ud) => Ok(()),
            _ => Err(CmError::QpType { space: self, given: qp_type }),
        }
    }
    /// Bytes of private data that a request of this port space carries; with [`Ib`](Self::Ib), one for a connection. One
    /// for datagrams carries what [`Udp`](Self::Udp) does.
    pub const fn connect_data_max(self) -> usize {
        match self {
            Self::Tcp | Self::Ib => 56,
            Self::Udp | Self::IpoIb => 180,
        }
    }
    /// Bytes of private data that an accepting answer carries; likewise.
    pub const fn accept_data_max(self) -> usize {
        match self {
            Self::Tcp | Self::Ib => 196,
            Self::Udp | Self::IpoIb => 136,
        }
    }
    /// Bytes of private data that a refusal carries; likewise.
    pub const fn reject_data_max(self) -> usize {
        match self {
            Self::Tcp | Self::Ib => 148,
            Self::Udp | Self::IpoIb => 136,
        }
    }
}

/// As many READ and atomic requests from the peer as the device can take.
#[doc(alias = "RDMA_MAX_RESP_RES")]
pub const MAX_RESP_RES: u8 = 0xff;
/// As many READ and atomic requests to the peer as the device can issue.
#[doc(alias = "RDMA_MAX_INIT_DEPTH")]
pub const MAX_INIT_DEPTH: u8 = 0xff;
/// The Q_Key of every datagram identifier that does not choose its own.
#[doc(alias = "RDMA_UDP_QKEY")]
pub const UDP_QKEY: u32 = 0x0123_4567;

/// Parameters of [`CmId::connect`](super::CmId::connect) and [`CmId::accept`](super::CmId::accept)
/// (`struct rdma_conn_param`). The default has no private data, the depths the device can do, and seven retries of
/// each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "rdma_conn_param")]
pub struct ConnParam<'a> {
    /// Bytes for the program at the other side: at most [`PortSpace::connect_data_max`] with `connect` and
    /// [`PortSpace::accept_data_max`] with `accept`.
    pub private_data: &'a [u8],
    /// READ and atomic requests that the peer may have outstanding towards us; [`MAX_RESP_RES`]: as many as the device
    /// can. `accept` lowers it to what the peer wants to issue.
    pub responder_resources: u8,
    /// READ and atomic requests that we want to have outstanding; [`MAX_INIT_DEPTH`]: as many as the device can.
    /// `accept` lowers it to what the peer can take.
    pub initiator_depth: u8,
    /// End-to-end flow control (credits). Told to the peer; queue pairs here always have it.
    pub flow_control: bool,
    /// Transport retries, 0 to 7; with `accept` the peer's is used.
    pub retry_count: u8,
    /// RNR retries, 0 to 6, 7 for ever: of the peer's queue pair.
    pub rnr_retry_count: u8,
    /// The queue pair has a shared receive queue. Not looked at where the identifier has the queue pair.
    pub srq: bool,
    /// The queue pair, where the identifier has none ([`CmId::create_qp`](super::CmId::create_qp)): the program then
    /// brings it up itself. Not looked at otherwise.
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
    /// The default with these bytes of private data.
    pub fn with_data(private_data: &'a [u8]) -> Self {
        Self { private_data, ..Self::default() }
    }
}

/// What an event says of the other side of a connection (`struct rdma_conn_param` in an event).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerParam {
    /// READ and atomic requests that we may answer at once: what the peer wants to issue.
    pub responder_resources: u8,
    /// READ and atomic requests that we may issue: what the peer can answer.
    pub initiator_depth: u8,
    /// The peer does end-to-end flow control.
    pub flow_control: bool,
    /// Transport retries that the peer asked for (CONNECT_REQUEST).
    pub retry_count: u8,
    /// RNR retries that the peer asked for.
    pub rnr_retry_count: u8,
    /// The peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The peer's queue pair.
    pub qp_num: u32,
}

/// What an event says of a datagram peer or group (`struct rdma_ud_param`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "rdma_ud_param")]
pub struct UdParam {
    /// Its path: to be made an address handle by [`Pd::create_ah`](crate::Pd::create_ah).
    pub ah_attr: crate::AhAttr,
    /// Its queue pair.
    pub qp_num: u32,
    /// Its Q_Key.
    pub qkey: u32,
}

/// An option of an identifier (`rdma_set_option`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[doc(alias = "rdma_set_option")]
pub enum CmOption {
    /// DSCP and ECN of the connection's packets, its messages of connection management among them.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    Tos(u8),
    /// Other identifiers that have this option too may bind to the same port; before
    /// [`bind_addr`](super::CmId::bind_addr).
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    ReuseAddr(bool),
    /// The IPv6 wildcard address means IPv6 only; before [`bind_addr`](super::CmId::bind_addr).
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    AfOnly(bool),
    /// Exponent of the queue pair's ACK timeout, 0 to 31: 4.096 us * 2^n, and none at all for 0. Before the connection is
    /// made; told to the peer. With `accept`, the peer's is used where none is set here; where that is 0, which would leave
    /// a queue pair that never notices that its peer is gone, the usual one (17, 0.54 s).
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    AckTimeout(u8),
    /// Exponent of how long either side's connection management may take to answer, 0 to 31: 4.096 us * 2^n; usually 20
    /// (4.3 s). Not in the C API.
    CmResponseTimeout(u8),
    /// How often a message of connection management is sent again, 0 to 15; usually 15. Not in the C API.
    MaxCmRetries(u8),
    /// Path MTU of the connection, at most that of the port, which is usual. Not in the C API.
    PathMtu(crate::Mtu),
}

/// The options that an identifier has ([`CmId::options`](super::CmId::options)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CmOptions {
    /// [`CmOption::Tos`].
    pub tos: u8,
    /// [`CmOption::ReuseAddr`].
    pub reuse_addr: bool,
    /// [`CmOption::AfOnly`].
    pub af_only: bool,
    /// [`CmOption::AckTimeout`], where one was set.
    pub ack_timeout: Option<u8>,
    /// [`CmOption::CmResponseTimeout`], where one was set.
    pub cm_response_timeout: Option<u8>,
    /// [`CmOption::MaxCmRetries`], where it was set.
    pub max_cm_retries: Option<u8>,
    /// [`CmOption::PathMtu`], where one was set.
    pub path_mtu: Option<crate::Mtu>,
}
