//! Parameters of connections: those that a program gives, and those that it gets from the peer.

use std::time::Duration;

use stack::device::{AhAttr, Mtu, QpType};

/// A port space: the kind of an identifier's connections (`enum rdma_port_space`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "rdma_port_space")]
pub enum PortSpace {
    /// Reliable connections between RC queue pairs.
    #[doc(alias = "RDMA_PS_TCP")]
    Tcp,
    /// Datagrams between UD queue pairs; connecting returns the peer's queue pair number and Q_Key.
    #[doc(alias = "RDMA_PS_UDP")]
    Udp,
    /// Any service type, RC unless the identifier is created for another one
    /// ([`create_id_of_type`](crate::Context::create_id_of_type)): the only port space for UC connections. Over IP addresses,
    /// as Linux has it too: ports, and the header in front of private data, are as in the others. There are no `AF_IB`
    /// addresses with service IDs of the program's choice.
    #[doc(alias = "RDMA_PS_IB")]
    Ib,
    /// Datagrams of IP over InfiniBand. Its Q_Key is that of the broadcast group of an IPoIB interface, which a RoCE port
    /// does not have; identifiers of it are refused with [`CmError::NoIpoIb`](super::CmError::NoIpoIb).
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
    /// The type of an identifier's queue pairs unless another one is requested.
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Tcp | Self::Ib => QpType::Rc,
            Self::Udp | Self::IpoIb => QpType::Ud,
        }
    }
    /// Bytes of private data that a request of this port space carries. With [`Ib`](Self::Ib) that is a request for a connection;
    /// one for datagrams carries as much as with [`Udp`](Self::Udp).
    pub const fn connect_data_max(self) -> usize {
        match self {
            Self::Tcp | Self::Ib => 56,
            Self::Udp | Self::IpoIb => 180,
        }
    }
    /// Bytes of private data that an accepting reply carries; with [`Ib`](Self::Ib) as above.
    pub const fn accept_data_max(self) -> usize {
        match self {
            Self::Tcp | Self::Ib => 196,
            Self::Udp | Self::IpoIb => 136,
        }
    }
    /// Bytes of private data that a refusal carries; with [`Ib`](Self::Ib) as above.
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
/// The Q_Key of every datagram identifier.
#[doc(alias = "RDMA_UDP_QKEY")]
pub const UDP_QKEY: u32 = 0x0123_4567;

/// Parameters of [`CmId::connect`](super::CmId::connect) and [`CmId::accept`](super::CmId::accept)
/// (`struct rdma_conn_param`). The default has no private data, the depths that the device can do, and seven retries of each
/// kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "rdma_conn_param")]
pub struct ConnParam<'a> {
    /// Bytes for the program at the other side: at most [`PortSpace::connect_data_max`] with `connect` and
    /// [`PortSpace::accept_data_max`] with `accept`.
    pub private_data: &'a [u8],
    /// READ and atomic requests that the peer may have outstanding; [`MAX_RESP_RES`]: as many as the device can take.
    /// `accept` lowers it to what the peer requests. Ignored where the queue pair is not RC, as the next field.
    pub responder_resources: u8,
    /// READ and atomic requests that this side may have outstanding; [`MAX_INIT_DEPTH`]: as many as the device can issue.
    /// `accept` lowers it to what the peer can take.
    pub initiator_depth: u8,
    /// End-to-end flow control (credits), as the peer is told; queue pairs here always have it.
    pub flow_control: bool,
    /// Transport retries, 0 to 7; `accept` uses the peer's.
    pub retry_count: u8,
    /// RNR retries of the peer's queue pair, 0 to 6, 7 for ever.
    pub rnr_retry_count: u8,
    /// The queue pair has a shared receive queue. Ignored where the identifier has the queue pair.
    pub srq: bool,
    /// The number of the program's own queue pair, where the identifier has none
    /// ([`CmId::create_qp`](super::CmId::create_qp)): the program then brings it up itself. Ignored otherwise.
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

/// Parameters of the peer's side of a connection (`struct rdma_conn_param` in an event).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PeerParam {
    /// READ and atomic requests that the peer wants to have outstanding.
    pub responder_resources: u8,
    /// READ and atomic requests that the peer accepts.
    pub initiator_depth: u8,
    /// The peer says that it does end-to-end flow control.
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

/// A datagram peer or group, as an event reports it (`struct rdma_ud_param`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "rdma_ud_param")]
#[non_exhaustive]
pub struct UdParam {
    /// Its path, for an address handle ([`Pd::create_ah`](crate::Pd::create_ah)).
    pub ah_attr: AhAttr,
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
    /// DSCP and ECN of packets and connection management messages of a connection that this side requests, and of datagrams to
    /// groups. Setting it on a listener, or on a request, whose peer has chosen it, has no effect, and as on Linux is no error.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    Tos(u8),
    /// Other identifiers that have this option too may bind to the same port; before
    /// [`bind_addr`](super::CmId::bind_addr).
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    ReuseAddr(bool),
    /// The IPv6 wildcard address means IPv6 only; before [`bind_addr`](super::CmId::bind_addr).
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    AfOnly(bool),
    /// Exponent of the queue pair's ACK timeout, 0 to 31: 4.096 us * 2^n, and no timeout for 0. To be set before the
    /// connection is made; sent to the peer. `accept` uses the peer's where none is set here; if the peer's is 0, with which
    /// a queue pair never notices that its peer is gone, the default (17, 0.54 s).
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    AckTimeout(u8),
    /// Exponent of the time that either side's connection management may take to answer, 0 to 31: 4.096 us * 2^n; default 20
    /// (4.3 s). Not in the C API.
    CmResponseTimeout(u8),
    /// Number of retries of a connection management message, 0 to 15; default 15. Not in the C API.
    MaxCmRetries(u8),
    /// Path MTU of the connection, at most that of the port. By default that of the port, or less where the route to the peer or
    /// the peer's route back carries less. If one that is set here is too large for the peer, the peer refuses the connection.
    /// Not in the C API.
    PathMtu(Mtu),
    /// How often the peer of a reliable connection is asked whether it still has it; zero: never. 30 s unless set. A peer that answers
    /// nothing is asked again after a third of that, and the third time the connection ends:
    /// [`Disconnected`](super::CmEventType::Disconnected) with `-ETIMEDOUT`. So a peer is noticed that goes without a word, also where
    /// nothing is requested of it. What is asked is [`Qp::check_peer`](crate::Qp::check_peer): it needs no right and no receive. To be set
    /// before the connection is made. Not in the C API.
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
    /// [`CmOption::AckTimeout`], where one was set.
    pub ack_timeout: Option<u8>,
    /// [`CmOption::CmResponseTimeout`], where one was set.
    pub cm_response_timeout: Option<u8>,
    /// [`CmOption::MaxCmRetries`], where one was set.
    pub max_cm_retries: Option<u8>,
    /// [`CmOption::PathMtu`], where one was set.
    pub path_mtu: Option<Mtu>,
    /// [`CmOption::KeepAlive`], where one was set.
    pub keep_alive: Option<Duration>,
}
