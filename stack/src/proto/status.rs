//! Completion statuses, opcodes, flags and asynchronous events, with the numbers of `infiniband/verbs.h`.

use core::fmt;

use crate::wire::{Kind, Tail};

/// Declares an enum whose discriminants are the numbers of the C API. Each variant has its C name and a text.
macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident: $repr:ty, $prefix:literal {
        $($(#[$vmeta:meta])* $variant:ident = $value:literal, $c_name:ident, $text:literal;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr($repr)]
        pub enum $name { $(#[doc = concat!("`", $prefix, stringify!($c_name), "`: ", $text, ".")] $(#[$vmeta])* $variant = $value,)* }

        impl $name {
            /// Every value, ascending.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The number of the C API.
            pub const fn number(self) -> $repr {
                self as $repr
            }
            /// From the number of the C API; `None` for an unknown number.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }
            /// The name in the C API.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($prefix, stringify!($c_name)),)*
                }
            }
            /// A short description.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.text())
            }
        }
    };
}

numbered! {
    /// How a work request ended (`enum ibv_wc_status`, IBA 11.6.2).
    #[doc(alias = "ibv_wc_status")]
    #[doc(alias = "ibv_wc_status_str")]
    #[derive(Default)]
    WcStatus: u8, "IBV_WC_" {
        #[default]
        Success = 0, SUCCESS, "success";
        LocLenErr = 1, LOC_LEN_ERR, "local length error";
        LocQpOpErr = 2, LOC_QP_OP_ERR, "local queue pair operation error";
        LocEecOpErr = 3, LOC_EEC_OP_ERR, "local end-to-end context operation error";
        LocProtErr = 4, LOC_PROT_ERR, "local protection error";
        WrFlushErr = 5, WR_FLUSH_ERR, "work request flushed";
        MwBindErr = 6, MW_BIND_ERR, "memory window bind error";
        BadRespErr = 7, BAD_RESP_ERR, "unexpected response from the peer";
        LocAccessErr = 8, LOC_ACCESS_ERR, "local access error";
        RemInvReqErr = 9, REM_INV_REQ_ERR, "the peer refused the request as invalid";
        RemAccessErr = 10, REM_ACCESS_ERR, "the peer refused access to its memory";
        RemOpErr = 11, REM_OP_ERR, "the peer could not carry out the operation";
        RetryExcErr = 12, RETRY_EXC_ERR, "no answer after every transport retry";
        RnrRetryExcErr = 13, RNR_RETRY_EXC_ERR, "the peer had no receive request after every retry";
        LocRddViolErr = 14, LOC_RDD_VIOL_ERR, "local reliable datagram domain violation";
        RemInvRdReqErr = 15, REM_INV_RD_REQ_ERR, "the peer refused a reliable datagram request";
        RemAbortErr = 16, REM_ABORT_ERR, "aborted by the peer";
        InvEecnErr = 17, INV_EECN_ERR, "invalid end-to-end context number";
        InvEecStateErr = 18, INV_EEC_STATE_ERR, "invalid end-to-end context state";
        FatalErr = 19, FATAL_ERR, "fatal error";
        RespTimeoutErr = 20, RESP_TIMEOUT_ERR, "response timed out";
        GeneralErr = 21, GENERAL_ERR, "general error";
        TmErr = 22, TM_ERR, "tag matching error";
        TmRndvIncomplete = 23, TM_RNDV_INCOMPLETE, "tag matching rendezvous incomplete";
    }
}

numbered! {
    /// The operation of a completed work request (`enum ibv_wc_opcode`).
    #[doc(alias = "ibv_wc_opcode")]
    #[derive(Default)]
    WcOpcode: u8, "IBV_WC_" {
        #[default]
        Send = 0, SEND, "send";
        RdmaWrite = 1, RDMA_WRITE, "RDMA write";
        RdmaRead = 2, RDMA_READ, "RDMA read";
        CompSwap = 3, COMP_SWAP, "compare and swap";
        FetchAdd = 4, FETCH_ADD, "fetch and add";
        BindMw = 5, BIND_MW, "memory window bind";
        LocalInv = 6, LOCAL_INV, "local invalidate";
        Tso = 7, TSO, "segmentation offload";
        Flush = 8, FLUSH, "flush";
        AtomicWrite = 9, ATOMIC_WRITE, "atomic write";
        /// The number is our own: the C API has no fast registration.
        RegMr = 10, REG_MR, "fast registration";
        Recv = 128, RECV, "receive";
        RecvRdmaWithImm = 129, RECV_RDMA_WITH_IMM, "receive of an RDMA write with immediate";
    }
}

impl WcOpcode {
    /// Whether the completion is of a receive request (bit 7 of the number is set).
    pub const fn is_recv(self) -> bool {
        self as u8 & 0x80 != 0
    }
}

numbered! {
    /// The operation of a send work request (`enum ibv_wr_opcode`).
    #[doc(alias = "ibv_wr_opcode")]
    WrOpcode: u8, "IBV_WR_" {
        RdmaWrite = 0, RDMA_WRITE, "RDMA write";
        RdmaWriteWithImm = 1, RDMA_WRITE_WITH_IMM, "RDMA write with immediate";
        Send = 2, SEND, "send";
        SendWithImm = 3, SEND_WITH_IMM, "send with immediate";
        RdmaRead = 4, RDMA_READ, "RDMA read";
        AtomicCmpAndSwp = 5, ATOMIC_CMP_AND_SWP, "compare and swap";
        AtomicFetchAndAdd = 6, ATOMIC_FETCH_AND_ADD, "fetch and add";
        LocalInv = 7, LOCAL_INV, "local invalidate";
        BindMw = 8, BIND_MW, "memory window bind";
        SendWithInv = 9, SEND_WITH_INV, "send with invalidate";
        Tso = 10, TSO, "segmentation offload";
        Driver1 = 11, DRIVER1, "driver specific";
        Flush = 14, FLUSH, "flush";
        AtomicWrite = 15, ATOMIC_WRITE, "atomic write";
        /// The number is our own, the first after those of the C API, which has no fast registration. The work request of the kernel is
        /// `IB_WR_REG_MR`.
        RegMr = 16, REG_MR, "fast registration";
    }
}

impl WrOpcode {
    /// The kind of its packets, and what the last packet carries; `None` if the operation sends no packets.
    pub const fn packet(self) -> Option<(Kind, Tail)> {
        self.row().0
    }
    /// The opcode of the completion; `None` for driver-specific operations.
    pub const fn wc_opcode(self) -> Option<WcOpcode> {
        self.row().1
    }
    /// The packets and the completion of each operation. How an operation is segmented, checked and answered follows from its packets (see
    /// [`Row`](crate::wire::Row)).
    #[rustfmt::skip]
    const fn row(self) -> (Option<(Kind, Tail)>, Option<WcOpcode>) {
        use {Kind as K, Tail as T, WcOpcode as W};
        match self {
            Self::Send              => (Some((K::Send,        T::None)), Some(W::Send)),
            Self::SendWithImm       => (Some((K::Send,        T::Imm)),  Some(W::Send)),
            Self::SendWithInv       => (Some((K::Send,        T::Inv)),  Some(W::Send)),
            Self::RdmaWrite         => (Some((K::Write,       T::None)), Some(W::RdmaWrite)),
            Self::RdmaWriteWithImm  => (Some((K::Write,       T::Imm)),  Some(W::RdmaWrite)),
            Self::RdmaRead          => (Some((K::ReadRequest, T::None)), Some(W::RdmaRead)),
            Self::AtomicCmpAndSwp   => (Some((K::CmpSwap,     T::None)), Some(W::CompSwap)),
            Self::AtomicFetchAndAdd => (Some((K::FetchAdd,    T::None)), Some(W::FetchAdd)),
            Self::AtomicWrite       => (Some((K::AtomicWrite, T::None)), Some(W::AtomicWrite)),
            Self::Flush             => (Some((K::Flush,       T::None)), Some(W::Flush)),
            Self::LocalInv          => (None,                            Some(W::LocalInv)),
            Self::BindMw            => (None,                            Some(W::BindMw)),
            Self::RegMr             => (None,                            Some(W::RegMr)),
            Self::Tso               => (None,                            Some(W::Tso)),
            Self::Driver1           => (None,                            None),
        }
    }
}

numbered! {
    /// An asynchronous event, which belongs to no work request (`enum ibv_event_type`, IBA 11.6.3).
    #[doc(alias = "ibv_event_type")]
    #[doc(alias = "ibv_event_type_str")]
    AsyncEvent: u8, "IBV_EVENT_" {
        CqErr = 0, CQ_ERR, "completion queue overrun";
        QpFatal = 1, QP_FATAL, "queue pair error that prevents completions";
        QpReqErr = 2, QP_REQ_ERR, "the peer sent an invalid request";
        QpAccessErr = 3, QP_ACCESS_ERR, "the peer violated access rights";
        CommEst = 4, COMM_EST, "first packet on a queue pair that is ready to receive";
        SqDrained = 5, SQ_DRAINED, "send queue drained";
        PathMig = 6, PATH_MIG, "path migrated";
        PathMigErr = 7, PATH_MIG_ERR, "path migration failed";
        DeviceFatal = 8, DEVICE_FATAL, "device unusable";
        PortActive = 9, PORT_ACTIVE, "link up";
        PortErr = 10, PORT_ERR, "link down";
        LidChange = 11, LID_CHANGE, "local identifier changed";
        PkeyChange = 12, PKEY_CHANGE, "partition key table changed";
        SmChange = 13, SM_CHANGE, "subnet manager changed";
        SrqErr = 14, SRQ_ERR, "shared receive queue unusable";
        SrqLimitReached = 15, SRQ_LIMIT_REACHED, "shared receive queue fell below its limit";
        QpLastWqeReached = 16, QP_LAST_WQE_REACHED, "queue pair took its last shared receive request";
        ClientReregister = 17, CLIENT_REREGISTER, "subnet manager asks to register again";
        GidChange = 18, GID_CHANGE, "GID table changed";
        WqFatal = 19, WQ_FATAL, "work queue error that prevents completions";
        DeviceSpeedChange = 20, DEVICE_SPEED_CHANGE, "device speed changed";
    }
}

bitflags::bitflags! {
    /// Flags of a send work request (`enum ibv_send_flags`).
    #[doc(alias = "ibv_send_flags")]
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct SendFlags: u32 {
        /// The request starts only once every earlier READ and ATOMIC of the queue pair is complete.
        const FENCE = 1;
        /// The request produces a completion when it succeeds. An error always produces one.
        const SIGNALED = 1 << 1;
        /// The last packet of a SEND or WRITE with immediate has the solicited event bit set.
        const SOLICITED = 1 << 2;
        /// The data is copied when the request is posted; local keys are not checked.
        const INLINE = 1 << 3;
        /// Checksum offload. Not supported on RoCE.
        const IP_CSUM = 1 << 4;
    }
}

bitflags::bitflags! {
    /// Flags of a work completion (`enum ibv_wc_flags`).
    #[doc(alias = "ibv_wc_flags")]
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the receive buffers of a datagram hold its network header.
        const GRH = 1;
        /// `imm_data` is valid.
        const WITH_IMM = 1 << 1;
        /// Checksum offload. Not supported on RoCE.
        const IP_CSUM_OK = 1 << 2;
        /// `invalidated_rkey` is valid.
        const WITH_INV = 1 << 3;
        /// Tag matching: request to synchronise.
        const TM_SYNC_REQ = 1 << 4;
        /// Tag matching: the tag matched.
        const TM_MATCH = 1 << 5;
        /// Tag matching: the data is valid.
        const TM_DATA_VALID = 1 << 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The numbers are an ABI: a second transcription, in the order of the header.
    #[test]
    fn statuses_have_the_numbers_of_verbs() {
        const NAMES: &str = "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR \
            MW_BIND_ERR BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR \
            RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR REM_ABORT_ERR INV_EECN_ERR INV_EEC_STATE_ERR \
            FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR TM_ERR TM_RNDV_INCOMPLETE";
        assert_eq!(NAMES.split_whitespace().count(), WcStatus::ALL.len());
        for (number, name) in NAMES.split_whitespace().enumerate() {
            let status = WcStatus::from_number(number as u32).expect(name);
            assert_eq!(status.name(), format!("IBV_WC_{name}"));
            assert_eq!(usize::from(status.number()), number);
        }
        assert_eq!(WcStatus::from_number(24), None);
    }

    #[test]
    fn events_have_the_numbers_of_verbs() {
        const NAMES: &str = "CQ_ERR QP_FATAL QP_REQ_ERR QP_ACCESS_ERR COMM_EST SQ_DRAINED PATH_MIG PATH_MIG_ERR \
            DEVICE_FATAL PORT_ACTIVE PORT_ERR LID_CHANGE PKEY_CHANGE SM_CHANGE SRQ_ERR SRQ_LIMIT_REACHED \
            QP_LAST_WQE_REACHED CLIENT_REREGISTER GID_CHANGE WQ_FATAL DEVICE_SPEED_CHANGE";
        assert_eq!(NAMES.split_whitespace().count(), AsyncEvent::ALL.len());
        for (number, name) in NAMES.split_whitespace().enumerate() {
            assert_eq!(
                AsyncEvent::from_number(number as u32).expect(name).name(),
                format!("IBV_EVENT_{name}")
            );
        }
    }

    #[test]
    fn opcodes_have_the_numbers_of_verbs() {
        let wc: Vec<_> = WcOpcode::ALL.iter().map(|o| o.number()).collect();
        assert_eq!(wc, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 128, 129]);
        let wr: Vec<_> = WrOpcode::ALL.iter().map(|o| o.number()).collect();
        assert_eq!(wr, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16]);
        assert_eq!((WrOpcode::RdmaWrite as u8, WrOpcode::Send as u8, WrOpcode::RdmaRead as u8), (0, 2, 4));
        assert_eq!((WrOpcode::SendWithInv as u8, WrOpcode::Flush as u8), (9, 14));
        for opcode in WcOpcode::ALL {
            assert_eq!(opcode.is_recv(), opcode.number() >= 128);
        }
        assert_eq!(WrOpcode::from_number(12), None);
        for opcode in WrOpcode::ALL {
            assert_eq!(WrOpcode::from_number(opcode.number().into()), Some(*opcode));
            assert!(opcode.wc_opcode().is_none_or(|wc| !wc.is_recv()));
        }
    }

    #[test]
    fn flags_have_the_bits_of_verbs() {
        let send = [SendFlags::FENCE, SendFlags::SIGNALED, SendFlags::SOLICITED, SendFlags::INLINE];
        assert_eq!(send.map(|f| f.bits()), [1, 2, 4, 8]);
        let wc = [WcFlags::GRH, WcFlags::WITH_IMM, WcFlags::IP_CSUM_OK, WcFlags::WITH_INV];
        assert_eq!(wc.map(|f| f.bits()), [1, 2, 4, 8]);
    }
}
