//! A process that has links with others, made by hand, and keeps to the rules or not: for tests and fuzzing.

use rustix::event::EventfdFlags;
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

/// Bytes of its longest frame.
pub const MAX_FRAME: usize = 4218;

/// Kinds of messages: a greeting.
pub const HELLO: u32 = 1;
/// An offer of memory.
pub const OFFER: u32 = 2;
/// Consent.
pub const UP: u32 = 3;
/// A refusal.
pub const REFUSED: u32 = 4;

/// Base-2 logarithm of the slots of a ring.
const LOG2: u32 = 9;
const SLOTS: u64 = 1 << LOG2;
const BUFFER: u64 = (MAX_FRAME as u64).next_multiple_of(64) + 64;
/// Bytes of a ring without its buffers.
pub const RING: u64 = 128 + 16 * SLOTS;
/// Bytes of the memory of a link with one ring each way.
pub const SIZE: u64 = 2 * (RING + SLOTS * BUFFER);
/// Where the ring to who was called is.
pub const TO_CALLED: u64 = 0;
/// The one back.
pub const TO_CALLER: u64 = RING;
/// Where a ring has the index of who sends, and that of who receives.
pub const HEAD: u64 = 6;
/// The latter.
pub const TAIL: u64 = 64;

/// Version of links.
pub const RELEASE: u32 = 2;

/// A message: numbers behind the magic.
pub fn message(version: u32, kind: u32, numbers: &[u32]) -> Vec<u8> {
    let mut bytes = b"ROCELINK".to_vec();
    [version, kind].iter().chain(numbers).for_each(|number| bytes.extend(number.to_ne_bytes()));
    bytes.resize(128, 0);
    bytes
}

/// What it says of itself: one shard, and a run that is nobody's.
pub fn about() -> Vec<u32> {
    let mut about = vec![1, MAX_FRAME as u32, 1, 511];
    about.resize(3 + 8, 0);
    about
}

/// Its number of the link, what it says of itself, and what it offers.
pub fn offer() -> Vec<u32> {
    let memory = [1, LOG2, BUFFER as u32, SIZE as u32, (SIZE >> 32) as u32];
    [vec![7], about(), memory.to_vec()].concat()
}

/// An event.
///
/// # Panics
/// Where the system gives none; as do the functions below.
pub fn event() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

/// Memory with these seals.
pub fn memory(size: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("roce-liar", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Memory as it should be, in which the first slot of the ring to who was called has a buffer.
pub fn good_memory() -> OwnedFd {
    memory_with(SealFlags::SHRINK | SealFlags::GROW)
}

/// The same with other seals.
pub fn memory_with(seals: SealFlags) -> OwnedFd {
    let fd = memory(SIZE, seals);
    let file = File::from(fd.try_clone().unwrap());
    file.write_all_at(&(2 * RING as u32).to_ne_bytes(), TO_CALLED + 128 + 8).unwrap();
    fd
}

/// The name of a run.
pub fn address(config: &RegistryConfig, run: usize) -> SocketAddrUnix {
    let uid = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("{}/{uid}/run/{run}", config.space).as_bytes()).unwrap()
}

/// A socket as names have them.
pub fn socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// A connection to a member.
#[derive(Debug)]
pub struct Liar {
    /// Its end.
    pub socket: OwnedFd,
    /// The memory that it offers.
    pub memory: File,
    /// Its event.
    pub event: OwnedFd,
    /// Its page of news.
    pub news: OwnedFd,
    /// The event of who greeted, and its news.
    pub theirs: OwnedFd,
    /// The latter.
    pub their_news: File,
}

/// Bytes of a page of news.
pub const NEWS: u64 = 4096;

impl Liar {
    /// One that has called, and was greeted.
    ///
    /// # Panics
    /// Where it was not; as do the functions below where they are not answered as they say.
    pub fn call(config: &RegistryConfig, run: usize) -> Self {
        Self::try_call(config, run, None).expect("it is greeted")
    }

    /// As [`call`](Self::call); `None`: it was not greeted, or not in time. It waits so long for each message.
    pub fn try_call(config: &RegistryConfig, run: usize, patience: Option<Duration>) -> Option<Self> {
        let socket = socket();
        rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, patience).unwrap();
        rustix::net::connect(&socket, &address(config, run)).unwrap();
        let mut liar = Self::at(socket);
        let request = [&b"ROCEJOIN"[..], &2u32.to_ne_bytes(), &VERSION.to_ne_bytes()].concat();
        liar.send(&request, &[]);
        let (bytes, mut fds) = liar.hear();
        if bytes.get(..16) != Some(&message(RELEASE, HELLO, &[])[..16]) || fds.len() != 2 {
            return None;
        }
        liar.their_news = File::from(fds.remove(1));
        liar.theirs = fds.remove(0);
        Some(liar)
    }

    /// One that has this connection.
    pub fn at(socket: OwnedFd) -> Self {
        let page = || memory(NEWS, SealFlags::SHRINK);
        let memory = File::from(good_memory());
        Self { socket, memory, event: event(), news: page(), theirs: event(), their_news: File::from(page()) }
    }

    /// One that keeps to the rules, and has a link.
    pub fn linked(config: &RegistryConfig, run: usize) -> Self {
        let liar = Self::call(config, run);
        assert!(liar.is_accepted());
        liar
    }

    /// Makes its offer. Returns whether there is a link.
    pub fn is_accepted(&self) -> bool {
        self.send(&message(RELEASE, OFFER, &offer()), &self.all());
        self.hear().0.get(..16) == Some(&message(RELEASE, UP, &[])[..16])
    }

    /// The descriptors of an offer.
    pub fn all(&self) -> [BorrowedFd<'_>; 3] {
        [self.memory.as_fd(), self.event.as_fd(), self.news.as_fd()]
    }

    /// Sends bytes and descriptors, 60 at most.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(60))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let _ = rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    /// The next message and its descriptors; nothing at the end.
    pub fn hear(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut bytes = [0; 128];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        let len = loop {
            match rustix::net::recvmsg(&self.socket, slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                // It has closed its end, and left something unread; what it said before comes then.
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

    /// The reason of a refusal; nothing more comes then.
    pub fn refusal(&self) -> u32 {
        let (bytes, _) = self.hear();
        assert_eq!(bytes.get(..16), Some(&message(RELEASE, REFUSED, &[])[..16]));
        assert!(self.hear().0.is_empty());
        u32::from_ne_bytes(bytes[16..20].try_into().unwrap())
    }

    /// Writes a number of 16 bits into its memory.
    pub fn put(&self, at: u64, number: u16) {
        self.memory.write_all_at(&number.to_ne_bytes(), at).unwrap();
    }

    /// Sends a frame in the first slot.
    pub fn send_first(&self, frame: &[u8]) {
        self.memory.write_all_at(frame, 2 * RING).unwrap();
        self.memory.write_all_at(&(frame.len() as u32).to_ne_bytes(), TO_CALLED + 128 + 4).unwrap();
        self.put(TO_CALLED + HEAD, 1);
        self.tell();
    }

    /// Tells every shard of something on every link.
    pub fn tell(&self) {
        self.their_news.write_all_at(&[1; NEWS as usize], 0).unwrap();
    }
}
