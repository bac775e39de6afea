//! How many bytes of a message a packet carries between two processes of a host.
//!
//! Programs take the MTU of the network for their path MTU: 1024 bytes on most Ethernets. A link carries longer frames. So each end of a
//! reliable connection over a link cuts its messages, and has the responses to its READs cut, into segments as long as the link carries,
//! and says so in each packet: by the Ethernet destination, which names no station on a link, and which the ICRC does not cover. Its peer
//! goes by the first packet that it receives. An end chooses before its first packet, and does not change that.

use crate::id::{Mac, Mtu};

/// The Ethernet destination of frames on a link; its last byte is the number of the segment. It is that of a group, so no port has it.
const LINK: [u8; 5] = [0x03, b'l', b'i', b'n', b'k'];

/// Segments of a connection; `None`: the path MTU.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Segments {
    /// Of what this end sends and of the responses to its READs, once it is chosen.
    sent: Option<Option<Mtu>>,
    /// Of what the peer sends, and of the responses to its READs.
    received: Option<Mtu>,
}

impl Segments {
    /// What this end sends and READs, where that is more than the path MTU.
    pub fn sent(self) -> Option<Mtu> {
        self.sent.flatten()
    }

    /// What the peer sends and READs, likewise.
    pub fn received(self) -> Option<Mtu> {
        self.received
    }

    /// Whether this end has chosen.
    pub fn is_chosen(self) -> bool {
        self.sent.is_some()
    }

    /// This end chooses: as much as its route carries, if that is more than the path MTU.
    pub fn choose(&mut self, carried: Option<Mtu>, path: Mtu) {
        self.sent = Some(carried.filter(|carried| *carried > path));
    }

    /// The peer begins with this, which the route has to carry: responses to its READs leave by it. Whether it does.
    pub fn adopt(&mut self, named: Mtu, carried: Option<Mtu>) -> bool {
        self.received = Some(named);
        !self.limit(carried)
    }

    /// Where a route carries less than the peer began with, the peer began with what cannot be: back to the path MTU. Whether that is so.
    pub fn limit(&mut self, carried: Option<Mtu>) -> bool {
        let before = self.received;
        self.received = before.filter(|named| carried.is_some_and(|carried| *named <= carried));
        self.received != before
    }

    /// The Ethernet destination by which this end says what it sends.
    pub fn station(self) -> Option<Mac> {
        self.sent().map(station)
    }
}

fn station(segment: Mtu) -> Mac {
    let [a, b, c, d, e] = LINK;
    Mac([a, b, c, d, e, segment as u8])
}

/// The segment that a frame names.
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
            let Mac(to) = station(mtu);
            assert_eq!(named(&[&to[..], &[0; 6]].concat()), Some(mtu));
            assert!(!Mac(to).is_unicast());
        }
        let mut segments = Segments::default();
        segments.choose(Some(Mtu::Mtu4096), Mtu::Mtu1024);
        assert_eq!(segments.station().and_then(|Mac(to)| named(&to)), Some(Mtu::Mtu4096));
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
