//! The control socket: messages with descriptors. No call waits for a message.
//!
//! A peer may send descriptors of any kind, and closing one may block for as long as the peer likes. That applies to a received descriptor,
//! to descriptors that the kernel discards because too many came, and to those in the queue of a socket that is closed. So only threads
//! that serve this one peer receive from a socket and close it ([`apart`](crate::sync::apart)). Other threads have an [`Apart`] of it, and
//! can only check whether it is readable ([`Socket::has_news`]).

use super::message::MESSAGE;
use crate::ipc::is_exhausted;
use crate::ipc::rights::{self, Sent};
use crate::port::share::{Party, Share};
use crate::sync::apart::Apart;
use crate::sync::process::Process;
use crate::sync::unforked::Unforked;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Most connections that wait to be accepted.
const BACKLOG: i32 = 8;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A listening socket. Other threads may hold its descriptor to wait for clients. They must not be the ones that close descriptors which
/// clients sent: so dropping this shuts the socket down and closes the waiting connections.
#[derive(Debug)]
pub struct Listener {
    /// Dropped first.
    _unforked: Unforked,
    fd: Arc<OwnedFd>,
    made_by: Process,
}

impl Listener {
    /// Listens at a path.
    ///
    /// # Errors
    /// Those of bind(2): `AddrInUse` if the path exists.
    pub fn new(path: &Path) -> io::Result<Self> {
        let (fd, unforked) = Unforked::make(socket)?;
        rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Self { _unforked: unforked, fd: Arc::new(fd), made_by: Process::this() })
    }

    /// Readable when a client has connected.
    pub fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Lets clients connect.
    ///
    /// # Errors
    /// Those of listen(2).
    pub fn listen(&self) -> io::Result<()> {
        Ok(rustix::net::listen(&self.fd, BACKLOG)?)
    }

    /// Accepts the next client of `port`; `None` if none waits.
    ///
    /// # Errors
    /// The process has no descriptor left, or the system has no descriptor or memory left: the client waits.
    pub fn accept(&self, port: u64) -> io::Result<Option<Apart<Stranger>>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match Unforked::make(|| Ok(Apart::new(rustix::net::accept_with(&self.fd, flags)?))) {
            Ok((fd, unforked)) => Ok(Some(Apart::new(Stranger { unforked, fd: fd.into_inner(), port }))),
            Err(error) if is_exhausted(&error) => Err(error),
            // No client waits, or it has disconnected already.
            Err(_) => Ok(None),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // In a forked child the descriptor is no longer this socket.
        if self.made_by.is_this() {
            let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
            while rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC).is_ok() {}
        }
    }
}

/// A connected socket, before its peer is checked.
#[derive(Debug)]
pub struct Stranger {
    /// Dropped first.
    unforked: Unforked,
    fd: OwnedFd,
    port: u64,
}

impl Stranger {
    /// Connects `port` to a server.
    ///
    /// # Errors
    /// Those of connect(2): no process listens, or too many connections wait to be accepted.
    pub fn connect(path: &Path, port: u64) -> io::Result<Apart<Self>> {
        let (fd, unforked) = Unforked::make(socket)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Apart::new(Self { unforked, fd, port }))
    }

    /// The peer process and its user.
    ///
    /// # Errors
    /// As [`Party::of_peer`].
    pub fn party(&self) -> io::Result<Party> {
        Party::of_peer(&self.fd, self.port)
    }
}

/// A connected socket.
#[derive(Debug)]
pub struct Socket {
    /// Dropped first.
    _unforked: Unforked,
    fd: OwnedFd,
    /// Dropped last: the peer's share of threads is in use until its descriptors are closed.
    pub share: Share,
}

/// The result of a receive.
#[derive(Debug)]
pub enum Came {
    /// Nothing, yet.
    Nothing,
    /// The peer is gone.
    End,
    /// A message of any length, and its descriptors.
    Message(Vec<u8>, Vec<OwnedFd>),
    /// A message with more descriptors than the protocol permits or this process has room for.
    TooMany,
}

impl Socket {
    /// The socket of a peer to which `share` belongs.
    pub fn new(peer: Stranger, share: Share) -> Self {
        let Stranger { unforked, fd, .. } = peer;
        Self { _unforked: unforked, fd, share }
    }

    /// Sends a message, with a descriptor or without. Returns `false` if the socket has no room for it now.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn send(&self, bytes: &[u8; MESSAGE], fd: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        match rights::send(&self.fd, bytes, fd.as_slice())? {
            Sent::Yes => Ok(true),
            Sent::NoRoom => Ok(false),
            // The kernel does not signal when a retry would succeed: the handshake fails, and a later one is tried.
            Sent::TooManyUnderWay => Err(Errno::TOOMANYREFS.into()),
        }
    }

    /// Whether a receive would return something: a message or the end of file. Consumes nothing, and neither opens nor closes descriptors.
    pub fn has_news(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        !matches!(rustix::net::recv(&self.fd, &mut [0u8; 1], flags), Err(Errno::AGAIN | Errno::INTR))
    }

    /// Receives the next message. May block while the kernel closes descriptors that it discards.
    pub fn receive(&self) -> Came {
        // One byte more than a message, to detect messages that are too long.
        let mut bytes = vec![0; MESSAGE + 1];
        match rights::receive(&self.fd, &mut bytes) {
            rights::Came::Nothing => Came::Nothing,
            rights::Came::End => Came::End,
            rights::Came::Message { is_cut: true, .. } => Came::TooMany,
            rights::Came::Message { len, fds, .. } => {
                bytes.truncate(len);
                Came::Message(bytes, fds)
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::ipc::rights::DESCRIPTORS;
    use core::mem::MaybeUninit;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use std::io::IoSlice;

    /// A number that no port of another test has.
    const PORT: u64 = 1 << 32;

    fn known(stranger: Apart<Stranger>) -> Socket {
        let party = stranger.party().unwrap();
        assert_eq!(party.uid, rustix::process::geteuid().as_raw());
        assert_eq!(party.pid, std::process::id());
        Socket::new(stranger.into_inner(), Share::take(party).unwrap())
    }

    fn pair(name: &str) -> (Socket, Socket) {
        let path = std::env::temp_dir().join(format!("roce-memif-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = Listener::new(&path).unwrap();
        assert!(Stranger::connect(&path, PORT).is_err(), "nobody listens yet");
        listener.listen().unwrap();
        assert!(listener.accept(PORT).unwrap().is_none());
        let client = known(Stranger::connect(&path, PORT).unwrap());
        let server = known(listener.accept(PORT).unwrap().unwrap());
        assert_eq!(Listener::new(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        std::fs::remove_file(&path).unwrap();
        (client, server)
    }

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn messages_pass_with_their_descriptors() {
        let (client, server) = pair("messages");
        assert!(!server.has_news() && matches!(server.receive(), Came::Nothing));
        let (mut read, write) = std::io::pipe().unwrap();
        assert!(client.send(&[7; MESSAGE], Some(write.as_fd())).unwrap());
        drop(write);
        assert!(client.send(&[8; MESSAGE], None).unwrap());
        assert!(server.has_news() && server.has_news(), "looking takes nothing");
        let Came::Message(bytes, fds) = server.receive() else { panic!() };
        assert_eq!((bytes, fds.len()), (vec![7; MESSAGE], 1));
        let flags = rustix::io::fcntl_getfd(&fds[0]).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        rustix::io::write(&fds[0], b"through").unwrap();
        drop(fds);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut read, &mut text).unwrap();
        assert_eq!(text, "through");
        assert!(
            matches!(server.receive(), Came::Message(bytes, fds) if bytes == [8; MESSAGE] && fds.is_empty())
        );
        assert!(!server.has_news());
        drop(client);
        assert!(server.has_news());
        assert!(matches!(server.receive(), Came::End));
        assert!(server.send(&[9; MESSAGE], None).is_err(), "and no signal");
    }

    // Goal: if a peer sends a reason and closes its socket with unread data, the reason still arrives.
    #[test]
    fn what_was_sent_before_a_reset_is_received() {
        let (client, server) = pair("reset");
        client.send(&[1; MESSAGE], None).unwrap();
        server.send(&[2; MESSAGE], None).unwrap();
        drop(server);
        assert!(matches!(client.receive(), Came::Message(bytes, _) if bytes == [2; MESSAGE]));
        assert!(matches!(client.receive(), Came::End));
    }

    #[test]
    fn too_many_descriptors_and_wrong_lengths() {
        // Goal: all descriptors that a peer sends are closed again.
        let (client, server) = pair("many");
        let before = descriptors();
        for n in [2, DESCRIPTORS, 100] {
            let fds = vec![client.as_fd(); n];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let slice = [IoSlice::new(&[1; MESSAGE])];
            rustix::net::sendmsg(&client, &slice, &mut control, SendFlags::empty()).unwrap();
            match server.receive() {
                Came::Message(_, fds) => assert!(fds.len() == n && n <= DESCRIPTORS, "{n}"),
                came => assert!(matches!(came, Came::TooMany) && n > DESCRIPTORS, "{n}: {came:?}"),
            }
        }
        for len in [1, MESSAGE - 1, MESSAGE + 1, 5000] {
            rustix::net::send(&client, &vec![1; len], SendFlags::empty()).unwrap();
            let Came::Message(bytes, _) = server.receive() else { panic!() };
            assert_eq!(bytes.len(), len.min(MESSAGE + 1));
        }
        // Other tests open and close descriptors at the same time.
        assert!(descriptors() < before + 50, "{} descriptors are left open", descriptors() - before);
    }
}
