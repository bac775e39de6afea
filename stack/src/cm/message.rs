//! The messages of connection management (IBA 12.6 and 12.11), with the positions of their fields as in the tables of the specification.

use crate::id::{Gid, Psn, Qpn};

use super::field::Field;
use super::reason::{Reason, SidrStatus};
use super::service::ServiceId;

/// Length in bytes of a message, which follows the header of the MAD (IBA 12.6).
pub const BODY_LEN: usize = 232;

/// One row for each field: byte, first bit (0 is the most significant), width in bits. Bytes count from the end of the MAD header. An array
/// ignores the last two.
macro_rules! message {
    ($(#[$meta:meta])* $name:ident $(($attribute:literal))?; $($(#[$m:meta])* $field:ident: $ty:ty = $byte:literal $bit:literal $width:expr;)*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name { $($(#[$m])* pub $field: $ty,)* }

        impl $name {
            $(/// The MAD attribute.
            pub const ATTRIBUTE: u16 = $attribute;)?

            /// Reads every field.
            pub fn read(b: &[u8]) -> Self {
                Self { $($field: Field::read(b, $byte, $bit, $width),)* }
            }
            /// Writes every field; reserved bits are left unchanged.
            pub fn write(&self, b: &mut [u8]) {
                $(Field::write(&self.$field, b, $byte, $bit, $width);)*
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::read(&[0; BODY_LEN])
            }
        }
    };
}

message! {
    /// A path in a REQ. On RoCE the GIDs are IP addresses, and LIDs have no meaning.
    ReqPath;
    /// LID of the sender: 0 for a path on one link, 0xffff through a router.
    local_lid: u16 = 0 0 16;
    /// LID of the receiver.
    remote_lid: u16 = 2 0 16;
    /// Address of the sender.
    local_gid: Gid = 4 0 128;
    /// Address of the receiver.
    remote_gid: Gid = 20 0 128;
    /// Flow label.
    flow_label: u32 = 36 0 20;
    /// Packet rate code.
    packet_rate: u8 = 39 2 6;
    /// Traffic class.
    traffic_class: u8 = 40 0 8;
    /// Time to live.
    hop_limit: u8 = 41 0 8;
    /// Service level.
    sl: u8 = 42 0 4;
    /// Whether both sides are on the same link.
    subnet_local: bool = 42 4 1;
    /// Time code of the ACK timeout.
    local_ack_timeout: u8 = 43 0 5;
}

impl Field for ReqPath {
    fn read(b: &[u8], byte: usize, _: usize, _: usize) -> Self {
        Self::read(&b[byte..])
    }
    fn write(&self, b: &mut [u8], byte: usize, _: usize, _: usize) {
        Self::write(self, &mut b[byte..])
    }
}

message! {
    /// Request for a connection (IBA 12.6.5).
    Req(0x0010);
    /// The sender's communication ID.
    local_comm_id: u32 = 0 0 32;
    /// Vendor ID of enhanced connection establishment.
    vendor_id: u32 = 5 0 24;
    /// The requested service.
    service_id: ServiceId = 8 0 64;
    /// The sender's node GUID.
    local_ca_guid: u64 = 16 0 64;
    /// Q_Key, for datagram services.
    local_qkey: u32 = 28 0 32;
    /// The sender's queue pair.
    local_qpn: Qpn = 32 0 24;
    /// READs and ATOMICs that the sender can serve at once.
    responder_resources: u8 = 35 0 8;
    /// EE context of the sender, for reliable datagrams.
    local_eecn: u32 = 36 0 24;
    /// READs and ATOMICs that the sender wants to have outstanding.
    initiator_depth: u8 = 39 0 8;
    /// EE context of the receiver, for reliable datagrams.
    remote_eecn: u32 = 40 0 24;
    /// Time code: how long the receiver may take to answer.
    remote_response_timeout: u8 = 43 0 5;
    /// Service type: 0 RC, 1 UC, 2 RD; 3: see `extended_transport`.
    transport: u8 = 43 5 2;
    /// Whether the sender's queue pair does end-to-end flow control.
    flow_control: bool = 43 7 1;
    /// First PSN of the packets that the receiver sends.
    starting_psn: Psn = 44 0 24;
    /// Time code: how long the sender may take to answer.
    local_response_timeout: u8 = 47 0 5;
    /// Transport retries of the receiver's queue pair.
    retry_count: u8 = 47 5 3;
    /// Partition key.
    pkey: u16 = 48 0 16;
    /// Path MTU, as in `enum ibv_mtu`.
    path_mtu: u8 = 50 0 4;
    /// Whether a reliable datagram channel exists.
    rdc_exists: bool = 50 4 1;
    /// RNR retries of the receiver's queue pair.
    rnr_retry_count: u8 = 50 5 3;
    /// How often the sender retransmits a message of connection management.
    max_cm_retries: u8 = 51 0 4;
    /// Whether the sender's queue pair has a shared receive queue.
    srq: bool = 51 4 1;
    /// Service type if `transport` is 3: 1 XRC.
    extended_transport: u8 = 51 5 3;
    /// The primary path.
    primary: ReqPath = 52 0 0;
    /// The alternate path; all zeros if there is none.
    alternate: ReqPath = 96 0 0;
    /// Whether messages that suggest an alternate path (SAP) are supported.
    sap_supported: bool = 139 5 1;
    /// Private data.
    private_data: [u8; 92] = 140 0 0;
}

message! {
    /// Message receipt acknowledgement: the answer will take longer (IBA 12.6.6).
    Mra(0x0011);
    /// The sender's communication ID.
    local_comm_id: u32 = 0 0 32;
    /// The receiver's communication ID.
    remote_comm_id: u32 = 4 0 32;
    /// The message that was received: 0 REQ, 1 REP, 2 LAP.
    message: u8 = 8 0 2;
    /// Time code: how much longer the answer takes.
    service_timeout: u8 = 9 0 5;
    /// Private data.
    private_data: [u8; 222] = 10 0 0;
}

message! {
    /// Rejection (IBA 12.6.7).
    Rej(0x0012);
    /// The sender's communication ID; 0 if it has none.
    local_comm_id: u32 = 0 0 32;
    /// The receiver's communication ID.
    remote_comm_id: u32 = 4 0 32;
    /// The message that is rejected: 0 REQ, 1 REP, 2 none.
    message: u8 = 8 0 2;
    /// Valid bytes of `info`, up to 72.
    info_length: u8 = 9 0 7;
    /// The reason.
    reason: Reason = 10 0 16;
    /// Additional information.
    info: [u8; 72] = 12 0 0;
    /// Private data.
    private_data: [u8; 148] = 84 0 0;
}

message! {
    /// Acceptance (IBA 12.6.8).
    Rep(0x0013);
    /// The sender's communication ID.
    local_comm_id: u32 = 0 0 32;
    /// The receiver's communication ID.
    remote_comm_id: u32 = 4 0 32;
    /// Q_Key, for datagram services.
    local_qkey: u32 = 8 0 32;
    /// The sender's queue pair.
    local_qpn: Qpn = 12 0 24;
    /// Vendor ID of enhanced connection establishment, bits 16 to 23.
    vendor_id_high: u8 = 15 0 8;
    /// EE context, or XRC queue pair.
    local_eecn: u32 = 16 0 24;
    /// Vendor ID of enhanced connection establishment, bits 8 to 15.
    vendor_id_mid: u8 = 19 0 8;
    /// First PSN of the packets that the receiver sends.
    starting_psn: Psn = 20 0 24;
    /// Vendor ID of enhanced connection establishment, bits 0 to 7.
    vendor_id_low: u8 = 23 0 8;
    /// READs and ATOMICs that the sender can serve at once.
    responder_resources: u8 = 24 0 8;
    /// READs and ATOMICs that the sender may have outstanding.
    initiator_depth: u8 = 25 0 8;
    /// ACK delay of the sender, as a time code.
    target_ack_delay: u8 = 26 0 5;
    /// Whether the alternate path is accepted: 0 accepted, 1 not supported, 2 rejected.
    failover: u8 = 26 5 2;
    /// Whether the sender's queue pair does end-to-end flow control.
    flow_control: bool = 26 7 1;
    /// RNR retries of the receiver's queue pair.
    rnr_retry_count: u8 = 27 0 3;
    /// Whether the sender's queue pair has a shared receive queue.
    srq: bool = 27 3 1;
    /// The sender's node GUID.
    local_ca_guid: u64 = 28 0 64;
    /// Private data.
    private_data: [u8; 196] = 36 0 0;
}

message! {
    /// Ready to use (IBA 12.6.9).
    Rtu(0x0014);
    /// The sender's communication ID.
    local_comm_id: u32 = 0 0 32;
    /// The receiver's communication ID.
    remote_comm_id: u32 = 4 0 32;
    /// Private data.
    private_data: [u8; 224] = 8 0 0;
}

message! {
    /// Request to disconnect (IBA 12.6.10).
    Dreq(0x0015);
    /// The sender's communication ID.
    local_comm_id: u32 = 0 0 32;
    /// The receiver's communication ID.
    remote_comm_id: u32 = 4 0 32;
    /// The receiver's queue pair.
    remote_qpn: Qpn = 8 0 24;
    /// Private data.
    private_data: [u8; 220] = 12 0 0;
}

message! {
    /// Reply to a request to disconnect (IBA 12.6.11).
    Drep(0x0016);
    /// The sender's communication ID.
    local_comm_id: u32 = 0 0 32;
    /// The receiver's communication ID.
    remote_comm_id: u32 = 4 0 32;
    /// Private data.
    private_data: [u8; 224] = 8 0 0;
}

message! {
    /// Request for the queue pair of a datagram service (IBA 12.11.1).
    SidrReq(0x0017);
    /// The sender's ID of the SIDR exchange.
    request_id: u32 = 0 0 32;
    /// Partition key.
    pkey: u16 = 4 0 16;
    /// The requested service.
    service_id: ServiceId = 8 0 64;
    /// Private data.
    private_data: [u8; 216] = 16 0 0;
}

message! {
    /// Reply to a request for the queue pair of a datagram service (IBA 12.11.2).
    SidrRep(0x0018);
    /// ID of the SIDR exchange, from the request.
    request_id: u32 = 0 0 32;
    /// Whether the service is granted, or why not.
    status: SidrStatus = 4 0 8;
    /// Valid bytes of `info`, up to 72.
    info_length: u8 = 5 0 8;
    /// Vendor ID of enhanced connection establishment, bits 8 to 23.
    vendor_id_high: u16 = 6 0 16;
    /// The service's queue pair.
    qpn: Qpn = 8 0 24;
    /// Vendor ID of enhanced connection establishment, bits 0 to 7.
    vendor_id_low: u8 = 11 0 8;
    /// The requested service.
    service_id: ServiceId = 12 0 64;
    /// The service's Q_Key.
    qkey: u32 = 20 0 32;
    /// Additional information.
    info: [u8; 72] = 24 0 0;
    /// Private data.
    private_data: [u8; 136] = 96 0 0;
}

macro_rules! message_enum {
    ($($name:ident),*) => {
        /// A message of any type.
        #[derive(Clone, PartialEq, Eq, Debug)]
        #[allow(missing_docs)]
        pub enum Message { $($name(Box<$name>),)* }

        impl Message {
            /// The attribute ID in the header of the MAD.
            pub const fn attribute(&self) -> u16 {
                match self { $(Self::$name(_) => $name::ATTRIBUTE,)* }
            }
            /// Writes every field after the MAD header.
            pub(super) fn write(&self, b: &mut [u8]) {
                match self { $(Self::$name(m) => m.write(b),)* }
            }
        }

        $(impl From<$name> for Message {
            fn from(m: $name) -> Self {
                Self::$name(Box::new(m))
            }
        })*
    };
}
message_enum!(Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep);

/// `data`, padded with zeros to `N` bytes or truncated to them.
pub(super) fn padded<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let len = data.len().min(N);
    out[..len].copy_from_slice(&data[..len]);
    out
}
