//! A hand-made memif client, which follows the protocol or breaks it, for tests and fuzzing.

use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use stack::port::{Port, PortOptions, PortSpec};
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const COOKIE: u32 = 0x03e3_1f20;
/// Base-2 logarithm of a ring's slots.
pub const LOG2: u8 = 10;
/// Slots of a ring.
pub const SLOTS: u16 = 1 << LOG2;
const STRIDE: u64 = 128 + 16 * SLOTS as u64;
/// Offset of the ring to the server, which differs from the offset that this stack's client uses.
pub const TO_SERVER: u64 = 1 << 16;
/// Offset of the ring to the client.
pub const TO_CLIENT: u64 = TO_SERVER + STRIDE;
const BUFFERS: u64 = TO_CLIENT + STRIDE + 4096;
/// Bytes of a buffer.
pub const BUFFER: u32 = 4288;
/// Bytes of its memory.
pub const SIZE: u64 = 16 << 20;

const INIT: u16 = 3;
const ADD_REGION: u16 = 4;
const ADD_RING: u16 = 5;
/// Type of the message that requests the connection.
pub const CONNECT: u16 = 6;
const CONNECTED: u16 = 7;
const DISCONNECT: u16 = 8;

/// A message of this type.
pub fn message(kind: u16, fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(fields.concat());
    bytes.resize(128, 0);
    bytes
}

/// The client's first message, INIT.
pub fn init() -> Vec<u8> {
    message(INIT, &[&0x200u16.to_le_bytes(), &[0; 5]])
}

/// A message that passes a region.
pub fn add_region(index: u16, size: u64) -> Vec<u8> {
    message(ADD_REGION, &[&index.to_le_bytes(), &size.to_le_bytes()])
}

/// A message that announces a ring.
pub fn add_ring(to_server: bool, region: u16, offset: u32, log2: u8) -> Vec<u8> {
    let flags = u16::from(to_server).to_le_bytes();
    message(ADD_RING, &[&flags, &[0, 0], &region.to_le_bytes(), &offset.to_le_bytes(), &[log2, 0, 0]])
}

/// A message and its descriptors.
pub type Sent<'a> = (Vec<u8>, Vec<BorrowedFd<'a>>);

/// A client that can break any rule.
#[derive(Debug)]
pub struct Peer {
    /// Its end of the control channel.
    pub socket: OwnedFd,
    /// The shared memory.
    pub memory: File,
    /// The eventfds of the ring to the server and of the ring to the client.
    pub events: [OwnedFd; 2],
}

/// Memory for a client; valid if the seals are [`SealFlags::SHRINK`].
///
/// # Panics
/// If the system provides none. The functions below panic likewise.
pub fn memory(size: u64, seals: SealFlags) -> File {
    let fd =
        rustix::fs::memfd_create("memif_hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    File::from(fd)
}

impl Peer {
    /// A client with valid memory, connected to the socket.
    pub fn new(path: &Path) -> Self {
        Self::with(path, memory(SIZE, SealFlags::SHRINK))
    }

    /// A client with this memory.
    pub fn with(path: &Path, memory: File) -> Self {
        Self::among_others(path, memory, std::thread::yield_now)
    }

    /// A client with this memory. Calls `full` while too many other clients wait to be accepted.
    pub fn among_others(path: &Path, memory: File, mut full: impl FnMut()) -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let address = SocketAddrUnix::new(path).unwrap();
        loop {
            match rustix::net::connect(&socket, &address) {
                Err(Errno::AGAIN) => full(),
                // Interrupted by a fuzzer's timer.
                Err(Errno::INTR) => {}
                connected => break connected.unwrap(),
            }
        }
        rustix::io::ioctl_fionbio(&socket, false).unwrap();
        let event = || rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let peer = Self { socket, memory, events: [event(), event()] };
        for ring in [TO_SERVER, TO_CLIENT] {
            peer.put(ring, &COOKIE.to_le_bytes());
        }
        for slot in 0..SLOTS {
            peer.describe(TO_SERVER, slot, 0, 0, BUFFER, buffer(slot));
            peer.describe(TO_CLIENT, slot, 0, 0, BUFFER, buffer(slot + SLOTS));
        }
        peer
    }

    /// Sends a message.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(60))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        // A client that was refused already cannot send. It can still read the reason.
        let _ = rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    /// The messages of a client that follows the protocol.
    pub fn script(&self) -> Vec<Sent<'_>> {
        let ring = |to_server, at: u64| add_ring(to_server, 0, at as u32, LOG2);
        vec![
            (init(), vec![]),
            (add_region(0, SIZE), vec![self.memory.as_fd()]),
            (ring(true, TO_SERVER), vec![self.events[0].as_fd()]),
            (ring(false, TO_CLIENT), vec![self.events[1].as_fd()]),
            (message(CONNECT, &[]), vec![]),
        ]
    }

    /// Sends messages.
    pub fn play(&self, script: Vec<Sent<'_>>) {
        script.iter().for_each(|(bytes, fds)| self.send(bytes, fds));
    }

    /// Waits until the port accepts or refuses this client.
    ///
    /// # Errors
    /// The port's reason for refusing.
    pub fn outcome(&self, port: &dyn Port) -> Result<(), String> {
        loop {
            port.maintain();
            let mut bytes = [0; 128];
            match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err("the socket was closed without a word".into()),
                Ok(_) => {}
                // Reset: the port did not read all messages. Its reason can still be read.
                Err(Errno::AGAIN | Errno::CONNRESET) => continue,
                Err(error) => return Err(error.to_string()),
            }
            match u16::from_le_bytes([bytes[0], bytes[1]]) {
                CONNECTED => return Ok(()),
                DISCONNECT => {
                    let text = bytes[6..102].split(|byte| *byte == 0).next().unwrap();
                    return Err(String::from_utf8(text.to_vec()).unwrap());
                }
                _ => {}
            }
        }
    }

    /// A client that follows the protocol and is connected.
    pub fn connect(path: &Path, port: &dyn Port) -> Self {
        Self::new(path).connected(port)
    }

    /// Follows the protocol and connects.
    pub fn connected(self, port: &dyn Port) -> Self {
        self.play(self.script());
        self.outcome(port).expect("a peer that keeps to the rules connects");
        self
    }

    /// Writes into its memory.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    /// Reads a 16-bit number from its memory.
    pub fn word(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        u16::from_le_bytes(bytes)
    }

    /// Writes the descriptor of a slot.
    pub fn describe(&self, ring: u64, slot: u16, flags: u16, region: u16, length: u32, offset: u32) {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&flags.to_le_bytes());
        bytes[2..4].copy_from_slice(&region.to_le_bytes());
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        bytes[8..12].copy_from_slice(&offset.to_le_bytes());
        self.put(ring + 128 + 16 * u64::from(slot % SLOTS), &bytes);
    }

    /// Sends a valid frame in this slot, and publishes the slots up to it.
    pub fn send_frame(&self, slot: u16, frame: &[u8]) {
        self.put(u64::from(buffer(slot % SLOTS)), frame);
        self.describe(TO_SERVER, slot, 0, 0, frame.len() as u32, buffer(slot % SLOTS));
        self.put(TO_SERVER + 6, &(slot.wrapping_add(1)).to_le_bytes());
    }

    /// Passes the slots before `head` to the port to send in.
    pub fn give_slots(&self, head: u16) {
        self.put(TO_CLIENT + 6, &head.to_le_bytes());
    }

    /// Sets the flag by which it says that it polls.
    pub fn polls(&self, polls: bool) {
        self.put(TO_CLIENT + 4, &u16::from(polls).to_le_bytes());
    }

    /// Number of slots in which the port has sent, modulo 2^16.
    pub fn received(&self) -> u16 {
        self.word(TO_CLIENT + 64)
    }
}

/// Offset of the buffer of a slot. The buffers of the ring to the client follow those of the ring to the server.
pub fn buffer(slot: u16) -> u32 {
    BUFFERS as u32 + u32::from(slot) * BUFFER
}

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server with `frames` buffers, its socket path, and the socket's directory. `name` must be unique in this process.
///
/// # Panics
/// If the directory or the port cannot be made.
pub fn server(name: &str, frames: usize) -> (Dir, PathBuf, Box<dyn Port>) {
    let dir = std::env::temp_dir().join(format!("roce-memif-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory for a socket");
    let path = dir.join("memif.sock");
    let spec: PortSpec = format!("memif:{},role=server", path.display()).parse().expect("a port's name");
    let port = spec.open(&PortOptions { frames, ..PortOptions::default() }).expect("the port opens");
    (Dir(dir), path, port)
}
