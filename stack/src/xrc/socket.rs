//! The packet sockets by which members and owner talk. No call waits.

use rustix::net::SocketType;
use std::io;

use super::domain::DomainFile;
use super::error::XrcError;
use super::message::MESSAGE_MAX;
use crate::registry::{Connected, Connection, Identity, Lies, Listener};

/// What was received.
#[derive(Debug)]
pub(super) enum Came {
    /// Nothing, yet.
    Nothing,
    /// So many bytes.
    Message(usize),
    /// The end of the connection, or descriptors, which nobody sends here: they are not taken.
    End,
}

/// Room for a message, and for a byte that shows that one is too long.
pub(super) type Buffer = [u8; MESSAGE_MAX + 1];

/// The name of the socket of a domain's owner, for this user.
fn name(file: &DomainFile) -> String {
    file.socket_name(Identity::of_this_process().uid)
}

/// Takes the name of a domain's owner, and listens there; `None`: another process has it.
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

/// Takes the next message.
pub(super) fn receive(connection: &Connection, buffer: &mut Buffer) -> Came {
    let lies = match connection.peek(buffer) {
        // The other end left something unread: that is reported once, before what it had sent.
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

/// Sends a message; `false`: there is no room now.
///
/// # Errors
/// The other end is gone.
pub(super) fn send(connection: &Connection, message: &[u8]) -> io::Result<bool> {
    connection.send(message, &[])
}
