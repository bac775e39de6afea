//! A host on the link that claims the addresses of others: in broadcasts, in requests to them, and in answers to any request for
//! those addresses.
//!
//! Its IP host is ours, with the wrong addresses, so its frames are all correct ones.

use stack::id::{Gid, Mac};
use stack::net::{FRAME_MAX, Net, NetConfig};
use stack::time::Instant;

/// The liar's Ethernet address.
pub const LIAR: Mac = Mac([2, 0, 0, 0, 0, 0x66]);

/// A host that is at [`LIAR`].
#[derive(Debug)]
pub struct Liar {
    config: NetConfig,
    net: Net,
}

impl Liar {
    /// One that claims these addresses.
    pub fn new(victims: &[Gid]) -> Self {
        let prefix = |gid: &Gid| if gid.as_v4().is_some() { 24 } else { 64 };
        let addrs = victims.iter().map(|gid| (gid.to_ip(), prefix(gid))).collect();
        let config = NetConfig { addrs, ..NetConfig::new(LIAR) };
        Self { net: Net::new(&config), config }
    }

    /// Its answer to a frame that is on the link, whoever it is for.
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

    /// Its unsolicited claims: that each address is at its Ethernet address, and a request with each to a host.
    pub fn lies(&self, now: Instant, to: &Gid) -> Vec<Vec<u8>> {
        let mut claims = Vec::new();
        for &(addr, prefix) in &self.config.addrs {
            if Gid::from_ip(addr) == *to {
                continue; // a host does not get its own address from the link
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
