//! A device's attributes as text, in the format of `ibv_devinfo -v`.

use std::fmt;

use stack::device::{DeviceAttr, GidEntry, PortAttr};

use crate::context::Context;

/// All attributes of a device and its port, from [`Context::device_info`]. `Display` formats them.
///
/// ```
/// # fn main() -> Result<(), verbs::VerbsError> {
/// let context = verbs::Context::open(verbs::DeviceConfig::loopback())?;
/// println!("{}", context.device_info());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_devinfo")]
#[non_exhaustive]
pub struct DeviceInfo<'a> {
    /// The device's name.
    pub name: &'a str,
    /// The device's attributes and limits.
    pub device: DeviceAttr,
    /// The attributes of its port.
    pub port: PortAttr,
    /// The port's addresses.
    pub gids: Vec<GidEntry<'a>>,
}

impl Context {
    /// All attributes of the device and its port. Their `Display` prints what `ibv_devinfo -v` would.
    #[doc(alias = "ibv_devinfo")]
    pub fn device_info(&self) -> DeviceInfo<'_> {
        DeviceInfo {
            name: self.device_name(),
            device: self.query_device(),
            port: self.device().port_attr(),
            gids: self.query_gid_table(),
        }
    }
}

/// Formats a GUID, as `0200:00ff:fe00:0001`.
fn guid(guid: &[u8; 8]) -> String {
    guid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect::<Vec<_>>().join(":")
}

impl fmt::Display for DeviceInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (d, p) = (&self.device, &self.port);
        let flags: Vec<_> = d.device_cap_flags.iter_names().map(|(name, _)| name).collect();
        let mut line =
            |name: &str, value: &dyn fmt::Display| writeln!(f, "\t{:<32}{value}", format!("{name}:"));
        line("hca_id", &self.name)?;
        line("transport", &"InfiniBand (0)")?;
        line("fw_ver", &d.fw_ver)?;
        line("node_guid", &guid(&d.node_guid))?;
        line("sys_image_guid", &guid(&d.sys_image_guid))?;
        line("vendor_id", &format_args!("{:#08x}", d.vendor_id))?;
        line("vendor_part_id", &d.vendor_part_id)?;
        line("hw_ver", &format_args!("{:#x}", d.hw_ver))?;
        line("device_cap_flags", &format_args!("{:#010x} {}", d.device_cap_flags.bits(), flags.join(" ")))?;
        line("phys_port_cnt", &d.phys_port_cnt)?;
        line("shards", &d.shards)?;
        line("max_mr_size", &format_args!("{:#x}", d.max_mr_size))?;
        line("page_size_cap", &format_args!("{:#x}", d.page_size_cap))?;
        line("max_qp", &d.max_qp)?;
        line("max_qp_wr", &d.max_qp_wr)?;
        line("max_sge", &d.max_sge)?;
        line("max_sge_rd", &d.max_sge_rd)?;
        line("max_inline_data", &d.max_inline_data)?;
        line("max_cq", &d.max_cq)?;
        line("max_cqe", &d.max_cqe)?;
        line("max_mr", &d.max_mr)?;
        line("max_pd", &d.max_pd)?;
        line("max_qp_rd_atom", &d.max_qp_rd_atom)?;
        line("max_res_rd_atom", &d.max_res_rd_atom)?;
        line("max_qp_init_rd_atom", &d.max_qp_init_rd_atom)?;
        line("atomic_cap", &format_args!("{:?}", d.atomic_cap))?;
        line("max_mw", &d.max_mw)?;
        line("max_mcast_grp", &d.max_mcast_grp)?;
        line("max_mcast_qp_attach", &d.max_mcast_qp_attach)?;
        line("max_total_mcast_qp_attach", &d.max_total_mcast_qp_attach)?;
        line("max_ah", &d.max_ah)?;
        line("max_srq", &d.max_srq)?;
        line("max_srq_wr", &d.max_srq_wr)?;
        line("max_srq_sge", &d.max_srq_sge)?;
        line("max_pkeys", &d.max_pkeys)?;
        line("local_ca_ack_delay", &d.local_ca_ack_delay)?;
        line("completion timestamp_mask", &format_args!("{:#018x}", d.completion_timestamp_mask))?;
        line("hca_core_clock", &format_args!("{} kHz", d.hca_core_clock))?;
        line("port", &1)?;
        line("state", &format_args!("{:?} ({})", p.state, p.state as u8))?;
        line("phys_state", &format_args!("{:?} ({})", p.phys_state, p.phys_state as u8))?;
        line("max_mtu", &p.max_mtu.bytes())?;
        line("active_mtu", &p.active_mtu.bytes())?;
        line("link_mtu", &p.link_mtu)?;
        line("mac", &p.mac)?;
        line("link_layer", &"Ethernet")?;
        line("max_msg_sz", &format_args!("{:#x}", p.max_msg_sz))?;
        line("port_cap_flags", &format_args!("{:#010x}", p.port_cap_flags.bits()))?;
        line("gid_tbl_len", &p.gid_tbl_len)?;
        line("pkey_tbl_len", &p.pkey_tbl_len)?;
        line("bad_pkey_cntr", &p.bad_pkey_cntr)?;
        line("qkey_viol_cntr", &p.qkey_viol_cntr)?;
        for entry in &self.gids {
            let name = format!("GID[{:3}]", entry.gid_index);
            let ndev = if entry.ndev.is_empty() { String::new() } else { format!(", {}", entry.ndev) };
            line(&name, &format_args!("{}, RoCE v2{ndev}", entry.gid))?;
        }
        Ok(())
    }
}
