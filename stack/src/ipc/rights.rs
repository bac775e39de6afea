//! Messages with descriptors (`SCM_RIGHTS`) over unix sockets; no call waits for a message or for room.

use core::mem::MaybeUninit;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Most descriptors of a message.
pub const DESCRIPTORS: usize = 4;

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It is on its way, all of it: no message is longer than a socket has room for.
    Yes,
    /// There is no room for it yet.
    NoRoom,
    /// The user has too many descriptors under way, that nobody has received. The socket does not say when that is over.
    TooManyUnderWay,
}

/// Sends a message.
///
/// # Errors
/// The peer is gone.
///
/// # Panics
/// When there are more than [`DESCRIPTORS`].
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<Sent> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "{} descriptors", fds.len());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
        Ok(_) => Ok(Sent::Yes),
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(Sent::NoRoom),
        Err(Errno::TOOMANYREFS) => Ok(Sent::TooManyUnderWay),
        Err(error) => Err(error.into()),
    }
}

/// What was received.
#[derive(Debug)]
pub enum Came {
    /// Nothing, yet.
    Nothing,
    /// The end: the peer is gone.
    End,
    /// So many bytes, and descriptors. `is_cut`: there were more of those than [`DESCRIPTORS`], or than this process has room for.
    Message {
        /// Bytes.
        len: usize,
        /// Descriptors, of anything.
        fds: Vec<OwnedFd>,
        /// Not all of them.
        is_cut: bool,
    },
}

/// Takes the next message. May wait for whoever serves a descriptor for which there is no room here: the kernel closes those.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> Came {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut receive =
        || rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(bytes)], &mut control, flags);
    let got = match receive() {
        // The peer closed its end and left something unread. That is reported once, before what it had sent.
        Err(Errno::CONNRESET) => receive(),
        got => got,
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    match got {
        Ok(got) if got.bytes > 0 => {
            Came::Message { len: got.bytes, fds, is_cut: got.flags.contains(ReturnFlags::CTRUNC) }
        }
        Err(Errno::AGAIN | Errno::INTR) => Came::Nothing,
        Ok(_) | Err(_) => Came::End,
    }
}
