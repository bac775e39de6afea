//! The packet sockets between members and owner. No call blocks.

use rustix::net::SocketType;
use std::io;

use super::domain::DomainFile;
use super::error::XrcError;
use super::message::MESSAGE_MAX;
use crate::registry::{Connected, Connection, Identity, Lies, Listener};

/// The result of a receive call.
#[derive(Debug)]
pub(super) enum Came {
    /// Nothing, yet.
    Nothing,
    /// A message of this many bytes.
    Message(usize),
    /// The end of the connection; or file descriptors, which no valid message carries and which are not accepted.
    End,
}

/// Space for a message, and for one byte more to detect messages that are too long.
pub(super) type Buffer = [u8; MESSAGE_MAX + 1];

/// Name of the socket of a domain's owner, for this user.
fn name(file: &DomainFile) -> String {
    file.socket_name(Identity::of_this_process().uid)
}

/// Takes the name of a domain's owner, and listens there. `None` if another process has the name.
///
/// # Errors
/// [`XrcError::System`].
pub(super) fn listen(file: &DomainFile) -> Result<Option<Listener>, XrcError> {
    let listener = Listener::bind(SocketType::SEQPACKET, &name(file));
    let listener = listener.map_err(XrcError::system("taking the name of the XRC domain's owner"))?;
    if let Some(listener) = &listener {
        listener.listen().map_err(XrcError::system("listen(2)"))?;
    }
    Ok(listener)
}

/// Connects to the owner of a domain.
///
/// # Errors
/// [`XrcError::System`].
pub(super) fn connect(file: &DomainFile) -> Result<Connected, XrcError> {
    Connection::to(SocketType::SEQPACKET, &name(file))
        .map_err(XrcError::system("connecting to the owner of the XRC domain"))
}

/// The user at the other end, if it is neither root nor this one.
///
/// # Errors
/// [`XrcError::System`].
pub(super) fn foreign_user(connection: &Connection) -> Result<Option<u32>, XrcError> {
    let uid = connection.peer().map_err(XrcError::system("asking who is at the other end of a socket"))?.uid;
    Ok((uid != 0 && uid != rustix::process::geteuid().as_raw()).then_some(uid))
}

/// Takes the next message from the socket.
pub(super) fn receive(connection: &Connection, buffer: &mut Buffer) -> Came {
    let lies = match connection.peek(buffer) {
        // The peer closed with unread data: that error is reported once, before the messages that it had sent.
        Lies::End => connection.peek(buffer),
        lies => lies,
    };
    match lies {
        Lies::Nothing => Came::Nothing,
        Lies::End | Lies::Descriptors => Came::End,
        Lies::Bytes(len) => {
            connection.take(buffer);
            Came::Message(len)
        }
    }
}

/// Sends a message. `false` if the socket currently has no room.
///
/// # Errors
/// The connection has ended.
pub(super) fn send(connection: &Connection, message: &[u8]) -> io::Result<bool> {
    connection.send(message, &[])
}
