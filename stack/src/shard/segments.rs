//! The payload size of packets between two processes of a host.
//!
//! Programs use the network's MTU as their path MTU: 1024 bytes on most Ethernets. A link carries longer frames. So each end of a
//! reliable connection over a link segments its messages, and the responses to its READs, into packets as long as the link carries. Each
//! packet names that size in its Ethernet destination, which addresses no station on a link, and which the ICRC does not cover. The peer
//! adopts the size of the first packet that it receives. An end chooses before its first packet, and does not change its choice.

use crate::id::{Mac, Mtu};

/// The Ethernet destination of frames on a link; its last byte is the [`Mtu`] number of the payload size. It is a group address, so no
/// port has it.
const LINK: [u8; 5] = [0x03, b'l', b'i', b'n', b'k'];

/// The payload sizes of a connection; `None` stands for the path MTU.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Segments {
    /// The size of packets that this end sends, and of responses to its READs; the outer `Option` is `None` until it is chosen.
    sent: Option<Option<Mtu>>,
    /// The size of packets that the peer sends, and of responses to its READs.
    received: Option<Mtu>,
}

impl Segments {
    /// The size for messages and READs of this end, if it is more than the path MTU.
    pub fn sent(self) -> Option<Mtu> {
        self.sent.flatten()
    }

    /// The size for messages and READs of the peer, if it is more than the path MTU.
    pub fn received(self) -> Option<Mtu> {
        self.received
    }

    /// Whether this end has chosen a size.
    pub fn is_chosen(self) -> bool {
        self.sent.is_some()
    }

    /// Chooses the size that the route carries, if that is more than the path MTU.
    pub fn choose(&mut self, carried: Option<Mtu>, path: Mtu) {
        self.sent = Some(carried.filter(|carried| *carried > path));
    }

    /// Adopts the peer's size. The route must carry it too, because the responses to the peer's READs leave by the route. Returns whether
    /// it does.
    pub fn adopt(&mut self, named: Mtu, carried: Option<Mtu>) -> bool {
        self.received = Some(named);
        !self.limit(carried)
    }

    /// Falls back to the path MTU if the route carries less than the peer's size, which is then invalid. Returns whether it fell back.
    pub fn limit(&mut self, carried: Option<Mtu>) -> bool {
        let before = self.received;
        self.received = before.filter(|named| carried.is_some_and(|carried| *named <= carried));
        self.received != before
    }

    /// The Ethernet destination that names the size of this end's packets.
    pub fn marker_mac(self) -> Option<Mac> {
        self.sent().map(marker_mac)
    }
}

fn marker_mac(segment: Mtu) -> Mac {
    let [a, b, c, d, e] = LINK;
    Mac([a, b, c, d, e, segment as u8])
}

/// The payload size that a frame names.
pub(super) fn named(frame: &[u8]) -> Option<Mtu> {
    let (link, rest) = frame.split_first_chunk()?;
    Mtu::from_enum(*rest.first()?).filter(|_| *link == LINK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_names_its_segment() {
        for mtu in Mtu::ALL {
            let Mac(to) = marker_mac(mtu);
            assert_eq!(named(&[&to[..], &[0; 6]].concat()), Some(mtu));
            assert!(!Mac(to).is_unicast());
        }
        let mut segments = Segments::default();
        segments.choose(Some(Mtu::Mtu4096), Mtu::Mtu1024);
        assert_eq!(segments.marker_mac().and_then(|Mac(to)| named(&to)), Some(Mtu::Mtu4096));
        for other in
            [&[][..], &LINK, &[3, b'l', b'i', b'n', b'k', 0], &[3, b'l', b'i', b'n', b'k', 6], &[2; 12]]
        {
            assert_eq!(named(other), None);
        }
    }

    #[test]
    fn no_segment_is_longer_than_its_route_carries() {
        let mut segments = Segments::default();
        for (carried, path, sent) in [
            (None, Mtu::Mtu1024, None),
            (Some(Mtu::Mtu1024), Mtu::Mtu1024, None),
            (Some(Mtu::Mtu512), Mtu::Mtu1024, None),
            (Some(Mtu::Mtu4096), Mtu::Mtu1024, Some(Mtu::Mtu4096)),
        ] {
            segments.choose(carried, path);
            assert_eq!((segments.is_chosen(), segments.sent()), (true, sent));
        }
        for (named, carried, adopted) in [
            (Mtu::Mtu2048, Some(Mtu::Mtu4096), true),
            (Mtu::Mtu4096, Some(Mtu::Mtu4096), true),
            (Mtu::Mtu4096, Some(Mtu::Mtu2048), false),
            (Mtu::Mtu256, None, false),
        ] {
            assert_eq!(segments.adopt(named, carried), adopted);
            assert_eq!(segments.received(), Some(named).filter(|_| adopted));
        }
    }
}
