//! The reasons of a REJ (IBA 12.6.7.2) and the statuses of a SIDR_REP (IBA 12.11.2.1).

use core::fmt;

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident($ty:ty), $unknown:literal: $($(#[$m:meta])* $const:ident = $code:literal, $text:literal;)*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $ty);

        impl $name {
            $($(#[$m])* #[doc = $text] pub const $const: Self = Self($code);)*

            /// What the code means.
            pub const fn text(self) -> &'static str {
                match self.0 { $($code => $text,)* _ => $unknown }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} ({})", self.text(), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

codes! {
    /// Reason of a REJ message (IBA table 108, `enum ib_cm_rej_reason`). A peer can send a number without a name.
    Reason(u16), "unknown reason":
    NO_QP = 1, "no queue pair available";
    NO_EEC = 2, "no EE context available";
    NO_RESOURCES = 3, "no resources available";
    TIMEOUT = 4, "the peer waited too long";
    UNSUPPORTED = 5, "unsupported request";
    INVALID_COMM_ID = 6, "invalid communication id";
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    INVALID_SERVICE_ID = 8, "nobody listens on this service id";
    INVALID_TRANSPORT = 9, "invalid transport service type";
    STALE_CONNECTION = 10, "stale connection";
    RDC_DOES_NOT_EXIST = 11, "the reliable datagram channel does not exist";
    INVALID_GID = 12, "primary GID rejected";
    INVALID_LID = 13, "primary LID rejected";
    INVALID_SL = 14, "primary service level invalid";
    INVALID_TRAFFIC_CLASS = 15, "primary traffic class invalid";
    INVALID_HOP_LIMIT = 16, "primary hop limit rejected";
    INVALID_PACKET_RATE = 17, "primary packet rate rejected";
    INVALID_ALT_GID = 18, "alternate GID rejected";
    INVALID_ALT_LID = 19, "alternate LID rejected";
    INVALID_ALT_SL = 20, "alternate service level invalid";
    INVALID_ALT_TRAFFIC_CLASS = 21, "alternate traffic class invalid";
    INVALID_ALT_HOP_LIMIT = 22, "alternate hop limit rejected";
    INVALID_ALT_PACKET_RATE = 23, "alternate packet rate rejected";
    PORT_CM_REDIRECT = 24, "port and connection manager redirection";
    PORT_REDIRECT = 25, "port redirection";
    INVALID_MTU = 26, "path MTU rejected";
    INSUFFICIENT_RESP_RESOURCES = 27, "insufficient responder resources";
    CONSUMER_DEFINED = 28, "rejected by the program";
    INVALID_RNR_RETRY = 29, "RNR retry count rejected";
    DUPLICATE_LOCAL_COMM_ID = 30, "duplicate local communication id";
    INVALID_CLASS_VERSION = 31, "invalid class version";
    INVALID_FLOW_LABEL = 32, "primary flow label rejected";
    INVALID_ALT_FLOW_LABEL = 33, "alternate flow label rejected";
    VENDOR_OPTION_NOT_SUPPORTED = 35, "vendor option not supported";
}

codes! {
    /// Status of a SIDR_REP message (IBA table 121, `enum ib_cm_sidr_status`). A peer can send a number without a name.
    SidrStatus(u8), "unknown status":
    SUCCESS = 0, "success";
    UNSUPPORTED = 1, "nobody serves this service id";
    REJECT = 2, "rejected by the program";
    NO_QP = 3, "no queue pair available";
    REDIRECT = 4, "redirection";
    UNSUPPORTED_VERSION = 5, "unsupported version";
}
