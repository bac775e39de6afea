//! Sends frames through UDP sockets: passes their header fields to the kernel, and updates their ICRC to the fields that the kernel fills
//! in itself. Frames to one peer can share a message, which the kernel splits into datagrams (generic segmentation offload, GSO).

use core::net::IpAddr;
use std::collections::HashMap;
use std::io::{Error, IoSlice};
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::host::Table;
use super::packet::{IpFields, Outgoing};
use super::shared::Shared;
use super::sources::Source;
use super::sys::{Message, send};
use crate::config::TX_BURST;
use crate::port::frame::{Frame, TxBurst};

/// The most datagrams of a message: every kernel that has GSO takes this many (`UDP_MAX_SEGMENTS` was 64).
const SEGMENTS: usize = 64;
/// The most payload bytes of a message: those of the longest datagram.
pub(super) const MESSAGE: usize = 65_535 - 40 - 8;

/// The most entries of [`Sender::segments`]. When there are as many, all are forgotten.
const PEERS: usize = 4096;

/// The most attempts to send a message while the socket reports errors of earlier datagrams.
const TRIES: u32 = 16;

/// Result of [`Sender::send`].
enum Sent {
    /// This many of the first frames were sent or dropped.
    Frames(usize),
    /// The socket takes no more at present.
    Full,
}

/// The sending half of a queue.
pub(super) struct Sender {
    /// Index of the queue in its port.
    index: usize,
    table: Arc<Table>,
    /// [`Host::changed`](super::host::Host::changed) at the time when `table` was read and `segments` was cleared.
    seen: Option<u64>,
    /// Whether GSO may be used from an address of ours to a peer.
    segments: HashMap<(IpAddr, IpAddr), bool>,
    /// Copy of [`Shared::sources`], updated when their number changes.
    sources: Vec<Arc<Source>>,
}

impl Sender {
    pub fn new(index: usize) -> Self {
        Self { index, table: Arc::default(), seen: None, segments: HashMap::new(), sources: Vec::new() }
    }

    /// See [`PortQueue::tx_burst`](crate::port::PortQueue::tx_burst).
    pub fn burst(&mut self, shared: &Shared, frames: &mut TxBurst) -> usize {
        let changed = shared.host.changed();
        if self.seen != Some(changed) {
            (self.seen, self.table) = (Some(changed), shared.host.table());
            self.segments.clear();
        }
        if self.sources.len() != shared.sources.count() {
            self.sources = shared.sources.all();
        }
        let mut out = ArrayVec::<Outgoing, TX_BURST>::new();
        let mut taken = 0;
        while taken < frames.len() {
            if out.is_empty() {
                let fits = |frame: &&Frame| frame.len() <= shared.max_frame;
                let next = frames[taken..].iter().take(TX_BURST).take_while(fits);
                out.extend(next.map_while(|frame| Outgoing::of(frame.data())));
            }
            match self.send(shared, &mut frames[taken..], &out) {
                Sent::Frames(n) => {
                    taken += n;
                    out.drain(..n.min(out.len()));
                }
                Sent::Full => break,
            }
        }
        frames.drain(..taken);
        taken
    }

    /// Sends some of the first frames. `out` describes the first of `frames`; if it is empty, the first frame cannot be sent and is
    /// dropped.
    fn send(&mut self, shared: &Shared, frames: &mut [Frame], out: &[Outgoing]) -> Sent {
        let Self { index, table, segments, sources, .. } = self;
        let counters = &shared.counters[*index];
        let drop_first = || {
            counters.tx_dropped.add(1);
            Sent::Frames(1)
        };
        let Some(&Outgoing { ip: IpFields { src, .. }, port, .. }) = out.first() else { return drop_first() };
        // A packet with a source port that has no sockets leaves from the socket that receives, or the one that a guest has for it.
        let (sockets, socket_port) = match sources.iter().find(|source| source.port == port) {
            Some(source) => (&source.sockets, port),
            None => (&shared.sockets[0], shared.source_port),
        };
        let Some(socket) = sockets.iter().find(|socket| socket.serves(src)) else { return drop_first() };
        let mut messages = ArrayVec::<Message, TX_BURST>::new();
        let mut at = 0;
        while let Some(first) = out.get(at).filter(|next| next.port == port && socket.serves(next.ip.src)) {
            let n = if may_segment(segments, shared, &first.ip) { run_len(&out[at..]) } else { 1 };
            for (i, out) in out[at..at + n].iter().enumerate() {
                // The kernel sets the IPv4 identification of the datagrams of a message, counted from 0; a single datagram has 0.
                out.fit(&mut frames[at + i], i as u16, socket_port);
            }
            messages.push(socket.message(table, shared.port_of(first.ip.dst, table), first, at..at + n));
            at += n;
        }
        let parts: ArrayVec<IoSlice<'_>, TX_BURST> = frames
            .iter()
            .zip(&out[..at])
            .map(|(frame, out)| IoSlice::new(&frame.data()[out.payload.clone()]))
            .collect();
        let mut tries = 0;
        loop {
            tries += 1;
            match send(socket.fd(), &messages, &parts) {
                Ok(n) => {
                    let done = messages[..n].last().map_or(0, |last| last.parts.end);
                    counters.tx(done, frames[..done].iter().map(Frame::len).sum());
                    return Sent::Frames(done);
                }
                Err(error) => match classify(&error) {
                    Trouble::Full => return Sent::Full,
                    // The error may be that of an earlier datagram, perhaps to another peer: try again while there are such errors.
                    Trouble::Other if tries < TRIES && (shared.note_errors(socket) || tries == 1) => {}
                    Trouble::Other => {
                        let lost = messages[0].parts.len();
                        if lost > 1 && cannot_segment(&error) {
                            // The kernel refuses GSO to this peer: from now on send one datagram at a time.
                            segments.insert((out[0].ip.src, out[0].ip.dst), false);
                            return Sent::Frames(0);
                        }
                        counters.tx_dropped.add(lost as u64);
                        shared.note_unsent(&out[0], &error);
                        return Sent::Frames(lost);
                    }
                },
            }
        }
    }
}

/// Whether GSO may be used between these addresses.
fn may_segment(segments: &mut HashMap<(IpAddr, IpAddr), bool>, shared: &Shared, fields: &IpFields) -> bool {
    // The copies of a multicast datagram can leave by several interfaces.
    if shared.gso == Some(false) || fields.dst.is_multicast() {
        return false;
    }
    if segments.len() >= PEERS {
        segments.clear();
    }
    let segments = segments.entry((fields.src, fields.dst));
    let chosen = shared.gso == Some(true);
    *segments.or_insert_with(|| chosen || shared.host.may_segment(fields.src, fields.dst))
}

/// How many of the first packets can form one GSO message: they have the same IP fields, source port and length, except that the last
/// one may be shorter.
fn run_len(out: &[Outgoing]) -> usize {
    let first = &out[0];
    let most = SEGMENTS.min(MESSAGE / first.payload.len()).max(1);
    let mut n = 1;
    while let Some(next) = out[..out.len().min(most)].get(n) {
        if next.ip != first.ip || next.port != first.port || next.payload.len() > first.payload.len() {
            break;
        }
        n += 1;
        if next.payload.len() < first.payload.len() {
            break;
        }
    }
    n
}

/// Why the kernel did not take a message.
enum Trouble {
    /// The socket has no room, or the call was interrupted: try again later.
    Full,
    /// Any other error.
    Other,
}

/// Whether the error says that the kernel cannot use GSO on this path or for datagrams of this length.
#[cold]
fn cannot_segment(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP))
}

fn classify(error: &Error) -> Trouble {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Trouble::Full,
        _ => Trouble::Other,
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::socket::HOP_LIMIT;
    use super::super::tests::packets;
    use super::super::{open, sys};
    use super::*;
    use crate::port::{Port, PortOptions, PortSpec};
    use crate::wire::UDP_PORT;
    use std::net::UdpSocket;

    const OURS: &str = "127.47.91.20";
    const PEERS: [&str; 2] = ["127.47.91.21", "127.47.91.22"];

    // Goal: if the kernel refuses GSO to a peer, that peer gets the datagrams one by one, and other peers still get messages.
    #[test]
    fn datagrams_go_one_by_one_where_they_must() {
        let _peers = PEERS.map(|peer| UdpSocket::bind((peer, UDP_PORT)).unwrap());
        for more in ["", ",gso=on"] {
            let spec: PortSpec = format!("udp:{OURS}{more}").parse().unwrap();
            let PortSpec::Udp { addrs, options } = &spec else { unreachable!("it is one") };
            let port = open(&spec, addrs, options, &PortOptions::default()).unwrap();
            let (shared, mut sender) = (&port.shared, Sender::new(0));
            let mut send = |peer: &str, checksums: bool| {
                // The kernel refuses GSO on a socket without checksums.
                let option = (libc::SOL_SOCKET, libc::SO_NO_CHECK, i32::from(!checksums));
                sys::set(shared.sockets[0][0].fd(), option.0, option.1, option.2).unwrap();
                let frames = packets(OURS, peer, 0, &[64; 8]);
                let mut burst: TxBurst = frames.into_iter().map(Frame::from_vec).collect();
                assert_eq!(sender.burst(shared, &mut burst), 8);
                let (src, dst) = (OURS.parse().unwrap(), peer.parse().unwrap());
                let fields = IpFields { src, dst, traffic_class: 0, hop_limit: HOP_LIMIT };
                may_segment(&mut sender.segments, shared, &fields)
            };
            assert!(!send(PEERS[0], false));
            assert!(send(PEERS[1], true));
            assert!(!send(PEERS[0], true), "it is remembered");
            let stats = port.stats();
            assert_eq!((stats.tx_frames, stats.tx_dropped), (24, 0), "{stats:?}");
        }
    }
}
