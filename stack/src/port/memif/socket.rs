//! The control socket: messages with descriptors; no call blocks.

use super::message::MESSAGE;
use super::peer_fd::PeerFd;
use crate::sync::unforked::Unforked;
use core::mem::MaybeUninit;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 8;
/// Most descriptors that are taken with a message.
const DESCRIPTORS: usize = 4;
/// Most descriptors that a message can bring (`SCM_MAX_FD` of Linux). The buffer has room for all of them, because the kernel would
/// close the rest on our thread, which may block. It still does so if this process has no descriptor left.
const DESCRIPTORS_SENT: usize = 253;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A socket on which clients are accepted.
#[derive(Debug)]
pub struct Listener {
    /// Dropped first.
    _unforked: Unforked,
    fd: Arc<OwnedFd>,
}

impl Listener {
    /// Listens at a path.
    ///
    /// # Errors
    /// Those of bind(2): `AddrInUse` where there is a file.
    pub fn new(path: &Path) -> io::Result<Self> {
        let (fd, unforked) = Unforked::make(socket)?;
        rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Self { _unforked: unforked, fd: Arc::new(fd) })
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

    /// The client that connected first, if there is one.
    ///
    /// # Errors
    /// This process has no descriptor left, or the system none and no memory: the client waits.
    pub fn accept(&self) -> io::Result<Option<Socket>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match Unforked::make(|| Ok(rustix::net::accept_with(&self.fd, flags)?)) {
            Ok((fd, unforked)) => Ok(Socket::new(fd, unforked).ok()),
            Err(error) if is_exhausted(&error) => Err(error),
            // Nobody, or a client that has left already.
            Err(_) => Ok(None),
        }
    }
}

/// Whether there are no descriptors or no memory.
fn is_exhausted(error: &io::Error) -> bool {
    let no_more = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|number| no_more.contains(&number))
}

/// A connected socket.
#[derive(Debug)]
pub struct Socket {
    /// Dropped first.
    _unforked: Unforked,
    fd: PeerFd,
    /// The user that the peer's process runs as.
    uid: u32,
}

/// The result of a receive.
#[derive(Debug)]
pub enum Came {
    /// Nothing, yet.
    Nothing,
    /// The peer is gone.
    End,
    /// A message, of any length, and its descriptors.
    Message(Vec<u8>, Vec<PeerFd>),
    /// A message with more descriptors than the protocol has, or than this process has room for.
    TooMany,
}

impl Socket {
    fn new(fd: OwnedFd, unforked: Unforked) -> io::Result<Self> {
        let uid = sockopt::socket_peercred(&fd)?.uid.as_raw();
        Ok(Self { _unforked: unforked, fd: PeerFd::new(fd, uid), uid })
    }

    /// Connects to a server.
    ///
    /// # Errors
    /// Those of connect(2): no process listens, or too many wait to be accepted.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let (fd, unforked) = Unforked::make(socket)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
        Self::new(fd, unforked)
    }

    /// The user that the peer's process runs as.
    pub fn peer_uid(&self) -> u32 {
        self.uid
    }

    /// Sends a message, with a descriptor; `false`: there is no room for it yet.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn send(&self, bytes: &[u8; MESSAGE], fd: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the next message.
    pub fn receive(&self) -> Came {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_SENT))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        // One byte more than a message, so that one that is too long shows.
        let mut bytes = vec![0; MESSAGE + 1];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut receive =
            || rustix::net::recvmsg(&self.fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        let got = match receive() {
            // The peer closed its end and left something unread. That is reported once, before what it had sent.
            Err(Errno::CONNRESET) => receive(),
            got => got,
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights.map(|fd| PeerFd::new(fd, self.uid)));
            }
        }
        match got {
            Ok(got) if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > DESCRIPTORS => Came::TooMany,
            Ok(got) if got.bytes == 0 => Came::End,
            Ok(got) => {
                bytes.truncate(got.bytes);
                Came::Message(bytes, fds)
            }
            Err(Errno::AGAIN | Errno::INTR) => Came::Nothing,
            Err(_) => Came::End,
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

    fn pair(name: &str) -> (Socket, Socket) {
        let path = std::env::temp_dir().join(format!("roce-memif-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = Listener::new(&path).unwrap();
        assert!(Socket::connect(&path).is_err(), "nobody listens yet");
        listener.listen().unwrap();
        assert!(listener.accept().unwrap().is_none());
        let client = Socket::connect(&path).unwrap();
        let server = listener.accept().unwrap().unwrap();
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
        assert_eq!(server.peer_uid(), rustix::process::geteuid().as_raw());
        assert!(matches!(server.receive(), Came::Nothing));
        let (mut read, write) = std::io::pipe().unwrap();
        assert!(client.send(&[7; MESSAGE], Some(write.as_fd())).unwrap());
        drop(write);
        assert!(client.send(&[8; MESSAGE], None).unwrap());
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
        drop(client);
        assert!(matches!(server.receive(), Came::End));
        assert!(server.send(&[9; MESSAGE], None).is_err(), "and no signal");
    }

    // Goal: the reason of a peer that closes with something unread arrives.
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
        // Goal: all descriptors that a peer sends along are closed again.
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
        // Other tests open and close theirs.
        assert!(descriptors() < before + 50, "{} descriptors are left open", descriptors() - before);
    }
}
