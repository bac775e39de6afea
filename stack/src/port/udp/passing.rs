//! Passes a datagram that arrived at the wrong process of a host on to the right one, in another datagram that stays on the host. That goes
//! to the UDP port which all processes share, so that the kernel chooses the process as for datagrams from the network.
//!
//! A header precedes the original datagram: it begins like a BTH, with an opcode that no packet has and a queue pair number of the right
//! process as its destination. The birth number of the registry follows, which members alone know, and what the kernel reports about a
//! datagram and its bytes do not show.

use core::net::{IpAddr, Ipv6Addr};
use std::io::{IoSlice, Result};

use super::control::Control;
use super::packet::IpFields;
use super::socket::Socket;
use super::steering::DEST_QP;
use super::sys::{self, Message};
use crate::id::Qpn;

/// Bytes of the header of a datagram that is passed on.
pub const LEN: usize = 68;
/// An opcode that neither a packet nor a probe has.
const OPCODE: u8 = 0xfe;
/// The most times that a datagram is passed on: the program may not know yet which sockets have changed places.
pub(super) const HOPS: u8 = 3;

/// The header of a datagram that is passed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed {
    /// The birth number of the registry.
    pub birth: u128,
    /// A queue pair number of the process that it goes to.
    pub to: Qpn,
    /// How often the datagram was passed on, this time included.
    pub hops: u8,
    /// The IP fields with which it arrived at the host.
    pub ip: IpFields,
    /// The UDP port that it came from.
    pub port: u16,
}

impl Passed {
    /// The header's bytes.
    pub fn write(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        (bytes[0], bytes[1]) = (OPCODE, self.hops);
        bytes[DEST_QP..DEST_QP + 4].copy_from_slice(&self.to.get().to_be_bytes());
        bytes[12..28].copy_from_slice(&self.birth.to_be_bytes());
        (bytes[28], bytes[29]) = (self.ip.traffic_class, self.ip.hop_limit);
        bytes[30..32].copy_from_slice(&self.port.to_be_bytes());
        for (at, addr) in [(36, self.ip.src), (52, self.ip.dst)] {
            let addr = match addr {
                IpAddr::V4(addr) => addr.to_ipv6_mapped(),
                IpAddr::V6(addr) => addr,
            };
            bytes[at..at + 16].copy_from_slice(&addr.octets());
        }
        bytes
    }

    /// Reads the header of a datagram; `None` if it was not passed on.
    pub fn read(datagram: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = datagram.first_chunk()?;
        if bytes[0] != OPCODE {
            return None;
        }
        let addr = |at: usize| {
            let addr: [u8; 16] = *bytes[at..].first_chunk().expect("the length is checked");
            IpAddr::V6(Ipv6Addr::from(addr)).to_canonical()
        };
        let (src, dst) = (addr(36), addr(52));
        let ip = IpFields { src, dst, traffic_class: bytes[28], hop_limit: bytes[29] };
        Some(Self {
            birth: u128::from_be_bytes(*bytes[12..].first_chunk()?),
            to: Qpn::new(u32::from_be_bytes(*bytes[DEST_QP..].first_chunk()?)),
            hops: bytes[1],
            ip,
            port: u16::from_be_bytes([bytes[30], bytes[31]]),
        })
    }

    /// Sends a datagram with this header through a socket of this process, to the sockets that all processes have on its address and this
    /// UDP port.
    ///
    /// # Errors
    /// Those of sendmmsg(2), also if the socket has no room.
    pub(super) fn send(&self, socket: &Socket, port: u16, datagram: &[u8]) -> Result<()> {
        let front = self.write();
        let message = Message { to: socket.beside(port), control: Control::empty(), parts: 0..2 };
        sys::send(socket.fd(), &[message], &[IoSlice::new(&front), IoSlice::new(datagram)]).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_comes_out_as_it_went_in() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let ip = IpFields {
                src: src.parse().unwrap(),
                dst: dst.parse().unwrap(),
                traffic_class: 0x6a,
                hop_limit: 63,
            };
            let passed =
                Passed { birth: 0x1234 << 100 | 9, to: Qpn::new(0x12_3456), hops: 2, ip, port: 61234 };
            let bytes = [&passed.write()[..], b"the datagram"].concat();
            assert_eq!(Passed::read(&bytes), Some(passed));
            assert_eq!(Passed::read(&bytes[..LEN - 1]), None);
        }
        assert_eq!(Passed::read(&[0xff; 100]), None, "a probe");
    }
}
