//! The header fields that stay the same from packet to packet of a connection or address handle.

use crate::id::{Gid, Mac, Qpn};

/// The constant header fields of a flow. [`Default`] has P_Key 0xffff, hop limit 64, MigReq 1, the rest 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The source Ethernet address: our own.
    pub src_mac: Mac,
    /// Ethernet address of the next hop.
    pub dst_mac: Mac,
    /// 802.1Q tag control information: priority in bits 15:13, VLAN in 11:0. `None` sends no tag.
    pub vlan: Option<u16>,
    /// Our address.
    pub src: Gid,
    /// The peer's address, of the same family as `src`; it decides between IPv4 and IPv6.
    pub dst: Gid,
    /// TOS byte or traffic class: DSCP in bits 7:2, ECN in 1:0.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; not sent over IPv4.
    pub flow_label: u32,
    /// UDP source port, see [`udp_source_port`].
    pub src_port: u16,
    /// The peer's queue pair.
    pub dqpn: Qpn,
    /// Partition key.
    pub pkey: u16,
    /// M bit of the BTH. Hardware sends 1 when there is no path migration, soft-RoCE 0; receivers ignore it.
    pub mig_req: bool,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            src_mac: Mac::default(),
            dst_mac: Mac::default(),
            vlan: None,
            src: Gid::default(),
            dst: Gid::default(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            src_port: 0xc000,
            dqpn: Qpn::default(),
            pkey: 0xffff,
            mig_req: true,
        }
    }
}

/// UDP source port of a flow, `0xc000 ..= 0xffff`: from the flow label (20 bits), or, if that is 0, from the
/// two queue pair numbers, in such a way that both directions of a connection use the same port.
pub const fn udp_source_port(flow_label: u32, lqpn: Qpn, rqpn: Qpn) -> u16 {
    let label = match flow_label & 0xf_ffff {
        0 => {
            let mut v = lqpn.get() as u64 * rqpn.get() as u64;
            v ^= v >> 20;
            v ^= v >> 40;
            (v & 0xf_ffff) as u32
        }
        label => label,
    };
    0xc000 | (label & 0x3fff ^ label >> 14) as u16
}
