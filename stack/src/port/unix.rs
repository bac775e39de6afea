//! One Ethernet frame in each datagram of a unix socket: a link to another process without DPDK.
//!
//! The sockets are not connected, so either side may start first, end and start again. A frame for a peer that
//! is not there is lost, as on a cable; a peer whose socket is full pushes back.
//!
//! Any datagram can bring file descriptors (SCM_RIGHTS), and closing one can block for as long as its sender likes ([`apart`]). So each
//! datagram is peeked at first. One that brings descriptors is received by a thread of its own, which closes them.

use super::counters::{Counters, sum};
use super::error::PortError;
use super::frame::{Frame, HeapPool, RxBurst, TxBurst};
use super::info::{PortInfo, PortOptions, PortStats};
use super::peers::Peers;
use super::share::{self, Party, Share};
use super::socket_file::{self, SocketFile};
use super::spec::PortSpec;
use super::taken::Taken;
use super::traits::{Armed, Build, FlowKind, Host, Numbers, Port, PortQueue, Route, Routes, Stalled};
use crate::sync::apart::{self, Apart};
use crate::sync::process::Process;
use crate::sync::unforked::Unforked;
use crate::time::Instant;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, UCred, shutdown};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::net::{SendFlags, SocketAddrUnix, sendto};
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn open(
    spec: &PortSpec,
    local: &Path,
    peer: &Path,
    more: &[(String, String)],
    options: &PortOptions,
) -> Result<Box<dyn Port>, PortError> {
    let fail = |reason: String| PortError::Open { port: spec.to_string(), reason };
    let mut peers = Peers::default();
    for (_, user) in more.iter().filter(|(key, _)| key == "peer-uid") {
        peers.take(user).map_err(fail)?;
    }
    let lock = socket_file::lock_and_clear(local).map_err(fail)?;
    let (socket, unforked) = bind(local)
        .map_err(|error| fail(format!("the socket {} cannot be made: {error}", local.display())))?;
    drop(lock);
    let to = SocketAddrUnix::new(peer)
        .map_err(|error| fail(format!("there can be no socket {}: {error}", peer.display())))?;
    let file = SocketFile::new(local)
        .map_err(|error| fail(format!("the socket {} is gone again: {error}", local.display())))?;
    let info = PortInfo::of(spec, options);
    let no_descriptor = |error| fail(format!("no descriptor is left: {error}"));
    let (arrivals, second) = Unforked::make(|| socket.try_clone()).map_err(no_descriptor)?;
    let (unforked, arrivals) = ([unforked, second], Arc::new(arrivals.into()));
    let shared = Arc::new(Shared {
        ends: Apart::new(Ends { unforked, socket, arrivals, made_by: Process::this() }),
        taking: AtomicBool::new(false),
        held: AtomicBool::new(false),
        number: share::port_number(),
        _file: file,
        peer: peer.into(),
        to,
        peers,
        refused: AtomicU64::new(0),
        // One byte more than a frame, so that a datagram that is too long is noticed.
        pool: HeapPool::new(options.queues * options.frames, info.max_frame() + 1),
        max_frame: info.max_frame(),
        counters: (0..options.queues).map(|_| Counters::default()).collect(),
    });
    let taken = Taken::none_of(options.queues);
    Ok(Box::new(UnixPort { info, taken, shared }))
}

/// Makes a non-blocking datagram socket at a path. The kernel adds the sender's credentials to each datagram.
fn bind(path: &Path) -> io::Result<(UnixDatagram, Unforked)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let make = || Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?);
    let (socket, unforked) = Unforked::make(make)?;
    set_socket_passcred(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok((socket.into(), unforked))
}

/// Most descriptors that a message can bring (`SCM_MAX_FD` of Linux).
const DESCRIPTORS: usize = 253;

/// The socket, and a duplicate of it.
struct Ends {
    /// Dropped first.
    unforked: [Unforked; 2],
    socket: UnixDatagram,
    /// The duplicate, on which sleeping threads wait for datagrams.
    arrivals: Arc<OwnedFd>,
    made_by: Process,
}

impl Drop for Ends {
    fn drop(&mut self) {
        // A fork has let go of them.
        if !self.made_by.is_this() {
            return;
        }
        // Other processes may have the duplicate as well. All datagrams are taken here, so that no other process has to close descriptors
        // in them.
        let _ = shutdown(&self.socket, Shutdown::Read);
        while matches!(take(&self.socket), Err(Errno::INTR) | Ok(Whole { is_datagram: true, .. })) {}
        for socket in &self.unforked {
            socket.end();
        }
    }
}

struct Shared {
    ends: Apart<Ends>,
    /// Whether a thread is taking a datagram that brings descriptors. Nothing is received meanwhile.
    taking: AtomicBool,
    /// Whether such a datagram waits for a thread that its sender's share allows.
    held: AtomicBool,
    /// The number of the port in [`Party`].
    number: u64,
    /// Removed together with the port.
    _file: SocketFile,
    peer: PathBuf,
    /// The socket address of `peer`.
    to: SocketAddrUnix,
    /// The users whose datagrams are accepted.
    peers: Peers,
    /// Datagrams from or to other users.
    refused: AtomicU64,
    pool: HeapPool,
    max_frame: usize,
    counters: Vec<Counters>,
}

/// What is at the path of the peer.
#[derive(PartialEq, Eq)]
enum There {
    Nobody,
    Peer,
    /// Another user made the socket.
    Stranger,
}

impl Shared {
    fn there(&self) -> There {
        if self.peers == Peers::Any {
            // Any user is accepted; sending shows whether a process is there.
            return There::Peer;
        }
        match socket_file::makers(&self.peer) {
            Err(_) => There::Nobody,
            Ok(makers) if makers.into_iter().all(|user| self.peers.has(user)) => There::Peer,
            Ok(_) => There::Stranger,
        }
    }
}

struct UnixPort {
    info: PortInfo,
    taken: Taken,
    shared: Arc<Shared>,
}

impl Port for UnixPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        self.taken.take(index)?;
        Some(Box::new(UnixQueue { index, spare: None, shared: Arc::clone(&self.shared) }))
    }

    fn start(&self) -> Result<(), PortError> {
        Ok(())
    }

    fn mtu(&self) -> usize {
        self.info.mtu
    }

    fn link_up(&self) -> bool {
        self.shared.there() == There::Peer
            && matches!(socket_file::probe(&self.shared.peer), Ok(socket_file::Found::Alive))
    }

    fn host(&self) -> Option<&dyn Host> {
        None
    }

    fn window(&self) -> Option<usize> {
        None
    }
    fn steer(&self, _: &[(core::ops::RangeInclusive<crate::id::Qpn>, usize)]) {}
    fn numbers(&self) -> Option<&dyn Numbers> {
        None
    }

    fn maintain(&self) {}

    fn stats(&self) -> PortStats {
        PortStats { refused: self.shared.refused.load(Ordering::Relaxed), ..sum(&self.shared.counters) }
    }
}

/// A datagram that was received.
struct Received {
    bytes: usize,
    /// Credentials of the sender.
    sender: Option<UCred>,
    /// Whether it brought descriptors, for which there was no room in the control messages.
    has_descriptors: bool,
}

/// Receives a datagram, or peeks at it if `flags` say so.
fn receive(socket: &UnixDatagram, buffer: &mut [u8], flags: RecvFlags) -> rustix::io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let sender = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender),
        _ => None,
    });
    Ok(Received { bytes: got.bytes, sender, has_descriptors: got.flags.contains(ReturnFlags::CTRUNC) })
}

/// A datagram that was received together with its descriptors.
struct Whole {
    /// Whether it is a datagram: each carries credentials, but the end of a socket that was shut down carries none.
    is_datagram: bool,
    _descriptors: Vec<OwnedFd>,
}

/// Receives the next datagram with its descriptors. This may block: the kernel closes those for which this process has no room, and whoever
/// serves one decides how long that takes.
fn take(socket: &UnixDatagram) -> rustix::io::Result<Whole> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1), ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let (mut is_datagram, mut descriptors) = (false, Vec::new());
    for message in control.drain() {
        is_datagram = true;
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(Whole { is_datagram, _descriptors: descriptors })
}

impl Shared {
    /// Receives a datagram into `buffer`. Returns its length and the uid of its sender; `AGAIN` if none waits or one with descriptors is
    /// being taken.
    fn receive(self: &Arc<Self>, buffer: &mut [u8]) -> rustix::io::Result<(usize, Option<u32>)> {
        if self.taking.load(Ordering::Acquire) {
            return Err(Errno::AGAIN);
        }
        let socket = &self.ends.socket;
        let looked = receive(socket, &mut [0], RecvFlags::PEEK)?;
        if looked.has_descriptors {
            self.take_apart(looked.sender);
            return Err(Errno::AGAIN);
        }
        let got = receive(socket, buffer, RecvFlags::empty())?;
        Ok((got.bytes, got.sender.map(|sender| sender.uid.as_raw())))
    }

    /// Takes the next datagram, which brings descriptors, on another thread, if its sender's share allows one.
    #[cold]
    fn take_apart(self: &Arc<Self>, sender: Option<UCred>) {
        let uid = sender.map_or(u32::MAX, |sender| sender.uid.as_raw());
        let pid = sender.and_then(|sender| sender.pid.as_raw_pid().try_into().ok()).unwrap_or(0);
        let is_short = apart::retry();
        let share = Share::take(Party { port: self.number, uid, pid });
        self.held.store(is_short || share.is_none(), Ordering::Relaxed);
        let Some(share) = share.filter(|_| !is_short) else { return };
        self.taking.store(true, Ordering::Release);
        let shared = Arc::clone(self);
        apart::run(move || {
            let taken = take(&shared.ends.socket);
            shared.refused.fetch_add(1, Ordering::Relaxed);
            shared.counters[0].rx_dropped.add(1);
            shared.taking.store(false, Ordering::Release);
            drop((taken, share));
        });
    }
}

struct UnixQueue {
    index: usize,
    /// The buffer of the next frame, kept while polls find nothing.
    spare: Option<Frame>,
    shared: Arc<Shared>,
}

impl PortQueue for UnixQueue {
    /// All frames arrive on queue 0: two queues that share the socket would put them out of order.
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        if self.index != 0 {
            return 0;
        }
        let counters = &self.shared.counters[0];
        let before = out.len();
        // Dropped frames count as well, so that a flood of them does not keep the caller here.
        for _ in 0..out.remaining_capacity() {
            let Some(mut frame) = self.spare.take().or_else(|| self.shared.pool.alloc()) else { break };
            match self.shared.receive(frame.buffer_mut()) {
                Ok((_, user)) if !user.is_some_and(|user| self.shared.peers.has(user)) => {
                    self.shared.refused.fetch_add(1, Ordering::Relaxed);
                    counters.rx_dropped.add(1);
                    self.spare = Some(frame);
                }
                Ok((n, _)) if n <= self.shared.max_frame => {
                    frame.set_len(n);
                    counters.rx(1, n);
                    out.push(frame);
                }
                Ok(_) => {
                    counters.rx_dropped.add(1);
                    self.spare = Some(frame);
                }
                Err(_) => {
                    self.spare = Some(frame);
                    break;
                }
            }
        }
        out.len() - before
    }

    fn routes(&mut self) -> Option<&mut dyn Routes> {
        None
    }
    fn take_source_port(&mut self, hint: u16, _: FlowKind) -> u16 {
        hint
    }
    fn release_source_port(&mut self, _: u16) {}

    fn tx_burst(&mut self, _: Route, frames: &mut TxBurst) -> usize {
        let counters = &self.shared.counters[self.index];
        let there = if frames.is_empty() { There::Nobody } else { self.shared.there() };
        if there != There::Peer {
            let dropped = frames.drain(..).len();
            counters.tx_dropped.add(dropped as u64);
            if there == There::Stranger {
                self.shared.refused.fetch_add(dropped as u64, Ordering::Relaxed);
            }
            return dropped;
        }
        let mut taken = 0;
        for frame in &*frames {
            if frame.len() > self.shared.max_frame {
                counters.tx_dropped.add(1);
            } else {
                match sendto(&self.shared.ends.socket, frame.data(), SendFlags::NOSIGNAL, &self.shared.to) {
                    Ok(n) => counters.tx(1, n),
                    // NOBUFS: the kernel is short of buffers for the moment.
                    Err(Errno::WOULDBLOCK | Errno::NOBUFS) => break,
                    Err(_) => counters.tx_dropped.add(1),
                }
            }
            taken += 1;
        }
        frames.drain(..taken);
        taken
    }

    fn alloc(&mut self) -> Option<Frame> {
        self.shared.pool.alloc()
    }

    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.shared.pool.alloc_burst(out, n);
    }

    fn build_burst(&mut self, _: Route, _: usize, _: &mut dyn Build) -> Option<usize> {
        None
    }

    fn stalled(&mut self, _: Route, _: Instant) -> Stalled {
        Stalled::No
    }

    /// Each datagram makes an edge of the descriptor (EPOLLET). Those that wait already make one when the descriptor is first waited for.
    fn arm(&mut self) -> Armed {
        // Datagrams that wait after one with descriptors make no edge any more.
        if self.shared.taking.load(Ordering::Acquire) || self.shared.held.load(Ordering::Relaxed) {
            return Armed::Unable;
        }
        Armed::Event(Arc::clone(&self.shared.ends.arrivals))
    }

    fn recycle(&mut self, frames: &mut RxBurst) {
        HeapPool::recycle(frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(from: &mut dyn PortQueue, to: &mut dyn PortQueue, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut burst = TxBurst::new();
        let mut frame = from.alloc().unwrap();
        assert!(frame.fill(bytes));
        burst.push(frame);
        assert_eq!(from.tx_burst(Route::default(), &mut burst), 1);
        let mut got = RxBurst::new();
        to.rx_burst(&mut got);
        got.iter().map(|frame| frame.data().to_vec()).collect()
    }

    #[test]
    fn either_side_may_start_first_and_start_again() {
        let dir = std::env::temp_dir().join(format!("roce-unix-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let spec = |local: &str, peer: &str| -> PortSpec {
            format!("unix:{0}/{local},peer={0}/{peer}", dir.display()).parse().unwrap()
        };
        let options = PortOptions { frames: 256, ..PortOptions::default() };
        let (spec_a, spec_b) = (spec("a", "b"), spec("b", "a"));

        let a = spec_a.open(&options).unwrap();
        let mut qa = a.take_queue(0).unwrap();
        assert!(!a.link_up());
        let mut burst = TxBurst::new();
        burst.push(Frame::from_vec(vec![1, 2, 3]));
        assert_eq!(
            (qa.tx_burst(Route::default(), &mut burst), a.stats().tx_dropped),
            (1, 1),
            "nobody is there: lost, and counted"
        );

        let b = spec_b.open(&options).unwrap();
        let mut qb = b.take_queue(0).unwrap();
        assert!(a.link_up() && b.link_up());
        let whole = vec![7; a.info().max_frame()];
        assert_eq!(exchange(&mut *qa, &mut *qb, &whole), [whole]);
        assert_eq!(exchange(&mut *qb, &mut *qa, b"back"), [b"back"]);
        assert_eq!(
            spec_a.open(&options).err().map(|error| error.to_string().contains("another process")),
            Some(true)
        );

        drop((b, qb));
        assert!(!a.link_up());
        // The file of a killed process stays.
        drop(UnixDatagram::bind(dir.join("b")).unwrap());
        let b = spec_b.open(&options).unwrap();
        let mut qb = b.take_queue(0).unwrap();
        assert_eq!(exchange(&mut *qa, &mut *qb, b"again"), [b"again"]);

        // A frame longer than the MTU allows is dropped at the receiver under its counter.
        let stranger = UnixDatagram::unbound().unwrap();
        stranger.send_to(&vec![0; b.info().max_frame() + 1], dir.join("b")).unwrap();
        stranger.send_to(b"fits", dir.join("b")).unwrap();
        let mut got = RxBurst::new();
        assert_eq!((qb.rx_burst(&mut got), got[0].data()), (1, &b"fits"[..]));
        assert_eq!(b.stats().rx_dropped, 1);

        drop((a, qa, b, qb));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "the sockets are removed");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn datagrams_of_other_users_are_refused() {
        let dir = std::env::temp_dir().join(format!("roce-unix-users-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let me = rustix::process::geteuid().as_raw();
        for (peers, taken) in [(Peers::Users(vec![me]), 1), (Peers::Any, 1), (Peers::Users(vec![me + 1]), 0)]
        {
            let socket = UnixDatagram::bind(dir.join("a")).unwrap();
            set_socket_passcred(&socket, true).unwrap();
            let sender = UnixDatagram::unbound().unwrap();
            sender.send_to(b"frame", dir.join("a")).unwrap();
            let got = receive(&socket, &mut [0; 64], RecvFlags::empty()).unwrap();
            let (n, user) = (got.bytes, got.sender.map(|sender| sender.uid.as_raw()));
            assert_eq!((n, user), (5, Some(me)));
            assert_eq!(i32::from(peers.has(me)), taken);
            std::fs::remove_file(dir.join("a")).unwrap();
        }
        let spec = |users: &str| -> PortSpec {
            format!("unix:{0}/a,peer={0}/b,peer-uid={users}", dir.display()).parse().unwrap()
        };
        let error = spec("me").open(&PortOptions::default()).err().unwrap().to_string();
        assert!(error.contains("neither the number of a user nor any"), "{error}");
        drop(spec("any").open(&PortOptions::default()).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_full_socket_pushes_back() {
        let dir = std::env::temp_dir().join(format!("roce-unix-full-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let spec: PortSpec = format!("unix:{0}/a,peer={0}/b", dir.display()).parse().unwrap();
        let peer = UnixDatagram::bind(dir.join("b")).unwrap();
        let port = spec.open(&PortOptions { frames: 4096, ..PortOptions::default() }).unwrap();
        let mut queue = port.take_queue(0).unwrap();
        let mut sent = 0u32;
        let mut burst = TxBurst::new();
        loop {
            while !burst.is_full() {
                burst.push(Frame::from_vec(sent.to_be_bytes().to_vec()));
                sent += 1;
            }
            if queue.tx_burst(Route::default(), &mut burst) < burst.capacity() {
                break;
            }
        }
        let mut buffer = [0; 8];
        for next in 0..sent {
            queue.tx_burst(Route::default(), &mut burst);
            peer.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..4], next.to_be_bytes());
        }
        assert_eq!(port.stats().tx_dropped, 0);
        drop((port, queue));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
