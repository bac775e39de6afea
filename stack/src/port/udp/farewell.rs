//! A packet that is ready to be sent when the process ends.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::sys::{Message, send};
use crate::port::traits::Farewell;

/// The packet, and the socket by which it is sent.
pub(super) struct Ready {
    socket: Arc<OwnedFd>,
    message: Message,
    datagram: Vec<u8>,
}

impl Ready {
    /// A message that consists of this datagram.
    pub fn new(socket: Arc<OwnedFd>, message: Message, datagram: Vec<u8>) -> Self {
        Self { socket, message, datagram }
    }
}

impl Farewell for Ready {
    fn send(&self) {
        let parts = [IoSlice::new(&self.datagram)];
        let _ = send(self.socket.as_fd(), core::slice::from_ref(&self.message), &parts);
    }
}
