//! A host on the link that claims the IP addresses of other hosts (ARP and neighbour discovery spoofing): it announces them, sends
//! requests from them, and answers every request for them.
//!
//! It runs the stack's own IP host, configured with these addresses, so all its frames are well-formed.

use stack::id::{Gid, Mac};
use stack::net::{FRAME_MAX, Net, NetConfig};
use stack::time::Instant;

/// Ethernet address of the spoofing host.
pub const LIAR: Mac = Mac([2, 0, 0, 0, 0, 0x66]);

/// The spoofing host; its Ethernet address is [`LIAR`].
#[derive(Debug)]
pub struct Liar {
    config: NetConfig,
    net: Net,
}

impl Liar {
    /// A host that claims the addresses `victims`.
    pub fn new(victims: &[Gid]) -> Self {
        let prefix = |gid: &Gid| if gid.as_v4().is_some() { 24 } else { 64 };
        let addrs = victims.iter().map(|gid| (gid.to_ip(), prefix(gid))).collect();
        let config = NetConfig { addrs, ..NetConfig::new(LIAR) };
        Self { net: Net::new(&config), config }
    }

    /// Its answer to a frame on the link, whatever the frame's destination; `None` if it sends none.
    pub fn answer(&mut self, now: Instant, frame: &[u8]) -> Option<Vec<u8>> {
        let mut frame = frame.to_vec();
        if frame.first()? & 1 == 0 {
            frame.get_mut(..6)?.copy_from_slice(&LIAR.0);
        }
        let mut reply = vec![0; frame.len().max(FRAME_MAX)];
        let len = self.net.handle_frame(now, &frame, &mut reply)?;
        reply.truncate(len);
        Some(reply)
    }

    /// Its unsolicited frames: for each claimed address an announcement, and an address request to the host `to`, sent from it. It does not
    /// claim the address `to` itself.
    pub fn lies(&self, now: Instant, to: &Gid) -> Vec<Vec<u8>> {
        let mut claims = Vec::new();
        for &(addr, prefix) in &self.config.addrs {
            if Gid::from_ip(addr) == *to {
                continue; // a host ignores claims to its own address
            }
            let mut net = Net::new(&NetConfig::new(LIAR));
            net.add_address(addr, prefix);
            net.resolve(now, to);
            let mut out = [0; FRAME_MAX];
            while let Some(len) = net.poll_transmit(now, &mut out) {
                claims.push(out[..len].to_vec());
            }
        }
        claims
    }
}
