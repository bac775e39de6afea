//! Frames out: tells the kernel their header fields, and puts what the kernel will write itself into their ICRC.

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

/// Datagrams of one message: what every kernel takes (`UDP_MAX_SEGMENTS` was 64).
const SEGMENTS: usize = 64;
/// Bytes of one message: the longest datagram.
pub(super) const MESSAGE: usize = 65_535 - 40 - 8;

/// Most pairs of addresses in [`Sender::segments`]; then all are forgotten.
const PEERS: usize = 4096;

/// Tries of a message whose send reports errors of earlier datagrams.
const TRIES: u32 = 16;

/// How sending went.
enum Sent {
    /// So many frames are done with.
    Frames(usize),
    /// The socket takes no more now.
    Full,
}

/// The sending half of a queue.
pub(super) struct Sender {
    /// Which queue.
    index: usize,
    table: Arc<Table>,
    /// [`Host::changed`](super::host::Host::changed) when `table` and `segments` were last valid.
    seen: Option<u64>,
    /// Whether messages of several datagrams may go from an address of ours to a peer.
    segments: HashMap<(IpAddr, IpAddr), bool>,
    /// The source ports that there were.
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

    /// Sends some of the first frames, at least one; `out` says what is in the first of them. Without that, the first one cannot be
    /// sent.
    fn send(&mut self, shared: &Shared, frames: &mut [Frame], out: &[Outgoing]) -> Sent {
        let Self { index, table, segments, sources, .. } = self;
        let counters = &shared.counters[*index];
        let drop_first = || {
            counters.tx_dropped.add(1);
            Sent::Frames(1)
        };
        let Some(&Outgoing { ip: IpFields { src, .. }, port, .. }) = out.first() else { return drop_first() };
        // A packet from another port than those leaves from that on which the port receives.
        let (sockets, socket_port) = match sources.iter().find(|source| source.port == port) {
            Some(source) => (&source.sockets, port),
            None => (&shared.sockets[0], shared.port),
        };
        let Some(socket) = sockets.iter().find(|socket| socket.serves(src)) else { return drop_first() };
        let mut messages = ArrayVec::<Message, TX_BURST>::new();
        let mut at = 0;
        while let Some(first) = out.get(at).filter(|next| next.port == port && socket.serves(next.ip.src)) {
            let n = if may_segment(segments, shared, &first.ip) { run(&out[at..]) } else { 1 };
            for (i, out) in out[at..at + n].iter().enumerate() {
                // The kernel numbers the datagrams of a message from 0; a datagram alone gets 0.
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
                Err(error) => match of(&error) {
                    Trouble::Full => return Sent::Full,
                    // The error may be of an earlier datagram, perhaps to another peer: tries again while there are such errors.
                    Trouble::Other if tries < TRIES && (shared.note_errors(socket) || tries == 1) => {}
                    Trouble::Other => {
                        let lost = messages[0].parts.len();
                        if lost > 1 && cannot_segment(&error) {
                            // The kernel refuses messages to this peer: from now on one datagram at a time.
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

/// Whether messages of several datagrams may go this way.
fn may_segment(segments: &mut HashMap<(IpAddr, IpAddr), bool>, shared: &Shared, fields: &IpFields) -> bool {
    // The copies of a message to a group go several ways.
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

/// How many of the first packets can be one message: they go the same way and are equally long, but for the last, which may be
/// shorter.
fn run(out: &[Outgoing]) -> usize {
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

enum Trouble {
    Full,
    Other,
}

/// Whether the error says that the kernel takes no message of several datagrams: on this path, or of this length.
#[cold]
fn cannot_segment(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP))
}

fn of(error: &Error) -> Trouble {
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

    // Goal: a peer to which the kernel takes no message of several datagrams gets them one by one, and no other peer does.
    #[test]
    fn datagrams_go_one_by_one_where_they_must() {
        let _peers = PEERS.map(|peer| UdpSocket::bind((peer, UDP_PORT)).unwrap());
        for more in ["", ",gso=on"] {
            let spec: PortSpec = format!("udp:{OURS}{more}").parse().unwrap();
            let PortSpec::Udp { addrs, options } = &spec else { unreachable!("it is one") };
            let port = open(&spec, addrs, options, &PortOptions::default()).unwrap();
            let (shared, mut sender) = (&port.shared, Sender::new(0));
            let mut send = |peer: &str, checksums: bool| {
                // The kernel refuses such messages where they have no checksums.
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
