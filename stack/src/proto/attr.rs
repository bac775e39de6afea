//! Attributes of a queue pair, with the names and mask bits of `ibv_modify_qp(3)`.
//!
//! Values that a caller may set out of range are plain numbers; [`modify`](super::state::modify) checks them and names the wrong one. The
//! data path reads nothing of this.

use core::fmt;

use crate::id::{Gid, Psn, QpState};

/// The only port of a device.
pub const PORT_NUM: u8 = 1;

bitflags::bitflags! {
    /// Set of attributes that a call gives or asks for (`enum ibv_qp_attr_mask`).
    #[doc(alias = "ibv_qp_attr_mask")]
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct AttrMask: u32 {
        /// `qp_state`: the state to enter.
        const STATE = 1;
        /// `cur_qp_state`: the state in which the caller believes the queue pair to be.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `ah_attr`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num`, `alt_timeout`: refused, because RoCE has no path migration.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`: refused, because queues are not resized.
        const CAP = 1 << 19;
        /// `dest_qp_num`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`: packet pacing of raw packet queue pairs, which this stack does not have.
        const RATE_LIMIT = 1 << 25;
    }
}

/// Names joined with `|`, such as `AV | PATH_MTU`.
impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        bitflags::parser::to_writer(self, f)
    }
}

/// State of path migration (`enum ibv_mig_state`). RoCE has none: a queue pair is always `Migrated`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[repr(u8)]
pub enum PathMigState {
    /// The current path is in use, and no other one is loaded.
    #[default]
    Migrated = 0,
    /// A new alternate path is requested.
    Rearm = 1,
    /// The alternate path is ready.
    Armed = 2,
}

/// The global route of an address vector (`struct ibv_global_route`). RoCE requires one.
#[doc(alias = "ibv_global_route")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct GlobalRoute {
    /// Address of the peer.
    pub dgid: Gid,
    /// Flow label, 20 bits: the field of the IPv6 header, and the input for the UDP source port. If it is 0, the port depends on the queue
    /// pair numbers.
    pub flow_label: u32,
    /// Index of our address in the GID table.
    pub sgid_index: u8,
    /// Time to live; 0 counts as 64 on the wire.
    pub hop_limit: u8,
    /// DSCP (upper six bits) and ECN.
    pub traffic_class: u8,
}

/// An address vector (`struct ibv_ah_attr`).
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct AhAttr {
    /// The global route. `None` (`is_global` 0) is refused.
    pub grh: Option<GlobalRoute>,
    /// Local identifier of InfiniBand: ignored.
    pub dlid: u16,
    /// Service level, `0 ..= 7`: the VLAN priority.
    pub sl: u8,
    /// Path bits of InfiniBand: ignored.
    pub src_path_bits: u8,
    /// Static rate of InfiniBand: ignored.
    pub static_rate: u8,
    /// Port number, always 1.
    pub port_num: u8,
}

/// Sizes of a queue pair's queues (`struct ibv_qp_cap`).
#[doc(alias = "ibv_qp_cap")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct QpCap {
    /// Send requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receive requests that may be outstanding.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send request.
    pub max_inline_data: u32,
}

/// The attributes of a queue pair (`struct ibv_qp_attr`). The default is that of a new one: RESET, all values 0.
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct QpAttr {
    /// Modify: the state to enter. Query: the state.
    pub qp_state: QpState,
    /// Modify: the state in which the caller believes the queue pair to be. Query: the state.
    pub cur_qp_state: QpState,
    /// Path MTU, a number of `enum ibv_mtu`: 1 (256 bytes) to 5 (4096 bytes).
    pub path_mtu: u8,
    /// State of path migration.
    pub path_mig_state: PathMigState,
    /// Q_Key, for datagram queue pairs.
    pub qkey: u32,
    /// First PSN expected; the low 24 bits count.
    pub rq_psn: u32,
    /// First PSN sent; the low 24 bits count.
    pub sq_psn: u32,
    /// The peer's queue pair number, 24 bits.
    pub dest_qp_num: u32,
    /// Access rights of the peer: bits of `enum ibv_access_flags`.
    pub qp_access_flags: u32,
    /// Sizes of the queues.
    pub cap: QpCap,
    /// The path to the peer.
    pub ah_attr: AhAttr,
    /// Alternate path: refused.
    pub alt_ah_attr: AhAttr,
    /// Index in the partition key table.
    pub pkey_index: u16,
    /// Alternate path: refused.
    pub alt_pkey_index: u16,
    /// RTS to SQD: whether to raise SQ_DRAINED when the send queue is drained.
    pub en_sqd_async_notify: bool,
    /// Query, in SQD: whether requests are still outstanding.
    pub sq_draining: bool,
    /// READ and ATOMIC requests that we may have outstanding as requester.
    pub max_rd_atomic: u8,
    /// READ and ATOMIC requests that the peer may have outstanding, with us as responder.
    pub max_dest_rd_atomic: u8,
    /// Timer code of our RNR NAKs, `0 ..= 31`, see [`rnr_delay`](super::tables::rnr_delay).
    pub min_rnr_timer: u8,
    /// Port number, always 1.
    pub port_num: u8,
    /// Exponent of the local ACK timeout, `0 ..= 31`, see [`ack_timeout`](super::tables::ack_timeout).
    pub timeout: u8,
    /// Transport retries, `0 ..= 7`.
    pub retry_cnt: u8,
    /// RNR retries, `0 ..= 6`; 7 means unlimited.
    pub rnr_retry: u8,
    /// Alternate path: refused.
    pub alt_port_num: u8,
    /// Alternate path: refused.
    pub alt_timeout: u8,
    /// Packet pacing in kbit/s: refused.
    pub rate_limit: u32,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            qp_state: QpState::Reset,
            cur_qp_state: QpState::Reset,
            path_mtu: 0,
            path_mig_state: PathMigState::Migrated,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qp_num: 0,
            qp_access_flags: 0,
            cap: QpCap::default(),
            ah_attr: AhAttr::default(),
            alt_ah_attr: AhAttr::default(),
            pkey_index: 0,
            alt_pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port_num: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            alt_port_num: 0,
            alt_timeout: 0,
            rate_limit: 0,
        }
    }
}

impl QpAttr {
    /// Copies the attributes of `given` that `mask` names, with PSNs cut to 24 bits. Call it after [`modify`](super::state::modify) has
    /// accepted them. The two state fields are left to the caller.
    pub fn take(&mut self, given: &Self, mask: AttrMask) {
        let has = |bit| mask.contains(bit);
        if has(AttrMask::EN_SQD_ASYNC_NOTIFY) {
            self.en_sqd_async_notify = given.en_sqd_async_notify;
        }
        if has(AttrMask::ACCESS_FLAGS) {
            self.qp_access_flags = given.qp_access_flags;
        }
        if has(AttrMask::PKEY_INDEX) {
            self.pkey_index = given.pkey_index;
        }
        if has(AttrMask::PORT) {
            self.port_num = given.port_num;
        }
        if has(AttrMask::QKEY) {
            self.qkey = given.qkey;
        }
        if has(AttrMask::AV) {
            self.ah_attr = given.ah_attr;
        }
        if has(AttrMask::PATH_MTU) {
            self.path_mtu = given.path_mtu;
        }
        if has(AttrMask::TIMEOUT) {
            self.timeout = given.timeout;
        }
        if has(AttrMask::RETRY_CNT) {
            self.retry_cnt = given.retry_cnt;
        }
        if has(AttrMask::RNR_RETRY) {
            self.rnr_retry = given.rnr_retry;
        }
        if has(AttrMask::RQ_PSN) {
            self.rq_psn = Psn::new(given.rq_psn).get();
        }
        if has(AttrMask::MAX_QP_RD_ATOMIC) {
            self.max_rd_atomic = given.max_rd_atomic;
        }
        if has(AttrMask::MIN_RNR_TIMER) {
            self.min_rnr_timer = given.min_rnr_timer;
        }
        if has(AttrMask::SQ_PSN) {
            self.sq_psn = Psn::new(given.sq_psn).get();
        }
        if has(AttrMask::MAX_DEST_RD_ATOMIC) {
            self.max_dest_rd_atomic = given.max_dest_rd_atomic;
        }
        if has(AttrMask::PATH_MIG_STATE) {
            self.path_mig_state = given.path_mig_state;
        }
        if has(AttrMask::DEST_QPN) {
            self.dest_qp_num = given.dest_qp_num;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The bits are an ABI: a second transcription by position.
    #[test]
    fn mask_bits_are_those_of_verbs() {
        const NAMES: [&str; 21] = [
            "STATE",
            "CUR_STATE",
            "EN_SQD_ASYNC_NOTIFY",
            "ACCESS_FLAGS",
            "PKEY_INDEX",
            "PORT",
            "QKEY",
            "AV",
            "PATH_MTU",
            "TIMEOUT",
            "RETRY_CNT",
            "RNR_RETRY",
            "RQ_PSN",
            "MAX_QP_RD_ATOMIC",
            "ALT_PATH",
            "MIN_RNR_TIMER",
            "SQ_PSN",
            "MAX_DEST_RD_ATOMIC",
            "PATH_MIG_STATE",
            "CAP",
            "DEST_QPN",
        ];
        for (bit, name) in NAMES.into_iter().enumerate() {
            assert_eq!(AttrMask::from_name(name), Some(AttrMask::from_bits_retain(1 << bit)), "{name}");
        }
        assert_eq!(AttrMask::RATE_LIMIT.bits(), 1 << 25);
        assert_eq!(AttrMask::all().bits().count_ones(), 22);
        assert_eq!((AttrMask::AV | AttrMask::PATH_MTU).to_string(), "AV | PATH_MTU");
        assert_eq!(AttrMask::empty().to_string(), "none");
    }

    // Each bit moves its own attribute and no other: a wrong line in `take` shows as two equal results.
    #[test]
    fn take_moves_exactly_what_the_mask_names() {
        let given = QpAttr {
            path_mtu: 5,
            path_mig_state: PathMigState::Armed,
            qkey: 1,
            rq_psn: 0x1ff_ffff,
            sq_psn: 0x300_0002,
            dest_qp_num: 3,
            qp_access_flags: 4,
            ah_attr: AhAttr { sl: 1, ..AhAttr::default() },
            pkey_index: 6,
            en_sqd_async_notify: true,
            max_rd_atomic: 7,
            max_dest_rd_atomic: 8,
            min_rnr_timer: 9,
            port_num: 10,
            timeout: 11,
            retry_cnt: 12,
            rnr_retry: 13,
            ..QpAttr::default()
        };
        let not_taken =
            AttrMask::STATE | AttrMask::CUR_STATE | AttrMask::ALT_PATH | AttrMask::CAP | AttrMask::RATE_LIMIT;
        let mut results = Vec::new();
        for bit in AttrMask::all().iter() {
            let mut attr = QpAttr::default();
            attr.take(&given, bit);
            assert_eq!(attr == QpAttr::default(), not_taken.contains(bit), "{bit}");
            if !not_taken.contains(bit) {
                assert!(!results.contains(&attr), "{bit} moves what another bit moves");
                results.push(attr);
            }
        }
        let mut attr = QpAttr::default();
        attr.take(&given, AttrMask::all());
        assert_eq!((attr.rq_psn, attr.sq_psn), (0xff_ffff, 2), "PSNs are cut to 24 bits");
        assert_eq!(attr, QpAttr { rq_psn: 0xff_ffff, sq_psn: 2, ..given });
    }
}
