//! A hand-made peer of a link between two processes of a host: it can follow the link protocol (`stack/src/port/host`) or break it, for
//! tests and fuzzing.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use stack::registry::{RegistryConfig, VERSION};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Bytes of the longest frame that it announces.
pub const MAX_FRAME: usize = 4218;

/// Message kind: HELLO, sent by the called process.
pub const HELLO: u32 = 1;
/// Message kind: offer of shared memory by the caller.
pub const OFFER: u32 = 2;
/// Message kind: the offer is accepted.
pub const UP: u32 = 3;
/// Message kind: the link is refused.
pub const REFUSED: u32 = 4;

/// Base-2 logarithm of the slots of a ring.
const LOG2: u32 = 9;
const SLOTS: u64 = 1 << LOG2;
/// Bytes of a frame buffer.
const BUFFER: u64 = (MAX_FRAME as u64).next_multiple_of(64) + 64;
/// Bytes of a ring without its buffers.
pub const RING: u64 = 128 + 16 * SLOTS;
/// Bytes of the memory of a link with one ring each way.
pub const SIZE: u64 = 2 * (RING + SLOTS * BUFFER);
/// Offset of the ring from the caller to the called process.
pub const TO_CALLED: u64 = 0;
/// Offset of the ring from the called process to the caller.
pub const TO_CALLER: u64 = RING;
/// Offset in a ring of the sender's index.
pub const HEAD: u64 = 6;
/// Offset in a ring of the receiver's index.
pub const TAIL: u64 = 64;

/// Version of the link protocol.
pub const LINK_VERSION: u32 = 3;

/// A message: the magic, then these numbers.
pub fn message(version: u32, kind: u32, numbers: &[u32]) -> Vec<u8> {
    let mut bytes = b"ROCELINK".to_vec();
    [version, kind].iter().chain(numbers).for_each(|number| bytes.extend(number.to_ne_bytes()));
    bytes.resize(128, 0);
    bytes
}

/// Its description of itself in a message: one shard, and a run that belongs to no process.
pub fn about() -> Vec<u32> {
    let mut about = vec![1, MAX_FRAME as u32, 1, 511];
    about.resize(3 + 8, 0);
    about
}

/// The numbers of an offer: its number of the link, its description of itself, and that of the memory.
pub fn offer() -> Vec<u32> {
    let memory = [1, LOG2, BUFFER as u32, SIZE as u32, (SIZE >> 32) as u32];
    [vec![7], about(), memory.to_vec()].concat()
}

/// A memfd of this size in bytes, with these seals.
///
/// # Panics
/// If the system provides none. The functions below panic likewise.
pub fn memory(size: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("roce-liar", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Valid memory for a link. The first slot of the ring to the called process has a buffer.
pub fn good_memory() -> OwnedFd {
    memory_with(SealFlags::SHRINK | SealFlags::GROW)
}

/// Same as [`good_memory`], with these seals.
pub fn memory_with(seals: SealFlags) -> OwnedFd {
    let fd = memory(SIZE, seals);
    let file = File::from(fd.try_clone().unwrap());
    file.write_all_at(&(2 * RING as u32).to_ne_bytes(), TO_CALLED + 128 + 8).unwrap();
    fd
}

/// The abstract socket address at which the process that leases `run` is called.
pub fn address(config: &RegistryConfig, run: usize) -> SocketAddrUnix {
    let uid = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("{}/{uid}/run/{run}", config.space).as_bytes()).unwrap()
}

/// A socket of the type that registry addresses use.
pub fn socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// A hand-made end of a link, and its connection to the other process.
#[derive(Debug)]
pub struct Liar {
    /// The connection.
    pub socket: OwnedFd,
    /// The memory that it offers.
    pub memory: File,
    /// Its notification page: a byte for each link and each shard, by which its peers notify it.
    pub news: OwnedFd,
    /// The notification page of the other process.
    pub their_news: File,
}

/// Bytes of a notification page.
pub const NEWS: u64 = 4096;

impl Liar {
    /// Calls the process that leases `run`, and receives its HELLO.
    ///
    /// # Panics
    /// If no HELLO arrives. The functions below panic likewise if an answer is not the expected one.
    pub fn call(config: &RegistryConfig, run: usize) -> Self {
        Self::try_call(config, run, None).expect("it is greeted")
    }

    /// Same as [`call`](Self::call), but returns `None` if no HELLO arrives. `patience` is the timeout of each receive; `None` for no
    /// timeout.
    pub fn try_call(config: &RegistryConfig, run: usize, patience: Option<Duration>) -> Option<Self> {
        let socket = socket();
        rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, patience).unwrap();
        rustix::net::connect(&socket, &address(config, run)).unwrap();
        let mut liar = Self::at(socket);
        let request = [&b"ROCEJOIN"[..], &2u32.to_ne_bytes(), &VERSION.to_ne_bytes()].concat();
        liar.send(&request, &[]);
        let (bytes, mut fds) = liar.hear();
        if bytes.get(..16) != Some(&message(LINK_VERSION, HELLO, &[])[..16]) || fds.len() != 1 {
            return None;
        }
        liar.their_news = File::from(fds.remove(0));
        Some(liar)
    }

    /// Uses an existing connection.
    pub fn at(socket: OwnedFd) -> Self {
        let page = || memory(NEWS, SealFlags::SHRINK);
        let memory = File::from(good_memory());
        Self { socket, memory, news: page(), their_news: File::from(page()) }
    }

    /// Calls a process and makes a link with it, following the protocol.
    pub fn linked(config: &RegistryConfig, run: usize) -> Self {
        let liar = Self::call(config, run);
        assert!(liar.is_accepted());
        liar
    }

    /// Sends a valid offer. Returns whether it is accepted, so that there is a link.
    pub fn is_accepted(&self) -> bool {
        self.send(&message(LINK_VERSION, OFFER, &offer()), &self.offer_fds());
        self.hear().0.get(..16) == Some(&message(LINK_VERSION, UP, &[])[..16])
    }

    /// The descriptors of an offer: the memory and the notification page.
    pub fn offer_fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.as_fd(), self.news.as_fd()]
    }

    /// Sends a message with up to 60 descriptors. Ignores errors.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(60))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let _ = rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    /// Receives the next message and its descriptors. Both are empty at the end of the connection or on an error.
    pub fn hear(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut bytes = [0; 128];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        let len = loop {
            match rustix::net::recvmsg(&self.socket, slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                // The other end was closed with unread data. Messages that it sent before that can still be received.
                Err(rustix::io::Errno::CONNRESET) => {}
                got => break got.map_or(0, |got| got.bytes),
            }
        };
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds.collect::<Vec<_>>()),
            _ => None,
        });
        let fds = fds.flatten().collect();
        (bytes[..len].to_vec(), fds)
    }

    /// Receives a refusal, and asserts that the connection ends then. Returns the reason.
    pub fn refusal(&self) -> u32 {
        let (bytes, _) = self.hear();
        assert_eq!(bytes.get(..16), Some(&message(LINK_VERSION, REFUSED, &[])[..16]));
        assert!(self.hear().0.is_empty());
        u32::from_ne_bytes(bytes[16..20].try_into().unwrap())
    }

    /// Receives wake-ups until the connection ends.
    pub fn wait_for_end(&self) {
        while !self.hear().0.is_empty() {}
    }

    /// Sends up to `count` wake-ups, limited by the room in the socket. Returns how many.
    pub fn wake(&self, count: usize) -> usize {
        rustix::net::send(&self.socket, &vec![0; count], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            .unwrap_or(0)
    }

    /// Writes a 16-bit number into the shared memory at this offset.
    pub fn write_u16(&self, at: u64, number: u16) {
        self.memory.write_all_at(&number.to_ne_bytes(), at).unwrap();
    }

    /// Sends a frame in the first slot, and notifies the other process.
    pub fn send_first(&self, frame: &[u8]) {
        self.memory.write_all_at(frame, 2 * RING).unwrap();
        self.memory.write_all_at(&(frame.len() as u32).to_ne_bytes(), TO_CALLED + 128 + 4).unwrap();
        self.write_u16(TO_CALLED + HEAD, 1);
        self.tell();
    }

    /// Notifies every shard of the other process, for every link: sets all bytes of its notification page.
    pub fn tell(&self) {
        self.their_news.write_all_at(&[1; NEWS as usize], 0).unwrap();
    }
}
