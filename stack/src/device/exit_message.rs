//! Messages of queue pair 1 that are prepared in advance, to be sent when the process ends.

use super::handle::Device;
use crate::cm::{GSI_QKEY, MAD_LEN, Path};
use crate::id::Qpn;
use crate::port::{Farewell, Frame};
use crate::wire::{Deth, Ext, Flow, HEADERS_MAX, Header, ICRC_LEN, Opcode, Template, UDP_PORT};

impl Device {
    /// Prepares a message from queue pair 1 to that of a peer. `None` if the port is not the host's: a packet then needs a turn of a shard.
    pub fn exit_message(&self, path: &Path, mad: &[u8; MAD_LEN]) -> Option<Box<dyn Farewell>> {
        let host = self.port().host()?;
        let template = Template::new(&Flow {
            src: path.sgid,
            dst: path.dgid,
            traffic_class: path.traffic_class,
            hop_limit: if path.hop_limit == 0 { 64 } else { path.hop_limit },
            flow_label: path.flow_label,
            src_port: UDP_PORT,
            dqpn: Qpn::GSI,
            ..Flow::default()
        });
        let header = Header {
            opcode: Opcode::UD_SEND_ONLY,
            ext: Ext::Deth(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI }),
            payload_len: MAD_LEN as u32,
            ..Header::default()
        };
        let mut packet = vec![0; HEADERS_MAX + MAD_LEN + ICRC_LEN];
        let at = template.begin(&mut packet, &header);
        packet[at..at + MAD_LEN].copy_from_slice(mad);
        let len = template.seal(&mut packet, at, MAD_LEN);
        packet.truncate(len);
        host.farewell(Frame::from_vec(packet))
    }
}
