//! The loop of a domain's owner. Input: sockets, events of its device and the time; output: the decisions of the [`Owner`].
//!
//! One thread, which waits for no member: a member that does not read its messages is dropped. Each round does a bounded amount of work
//! for each member.

use core::time::Duration;
use rustix::event::{PollFd, PollFlags};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use super::domain::DomainFile;
use super::error::XrcError;
use super::members::MemberId;
use super::message::FromMember;
use super::owner::{Output, Owner};
use super::parts::Domain;
use super::socket::{self, Buffer, Came};
use crate::device::{Device, EventElement};
use crate::registry::{Connection, Listener};
use crate::sync::eventfd::wait_readable;

/// Most members; further ones wait until one has left.
const MEMBERS_MAX: usize = 1024;
/// Most messages that wait for room in the socket of a member: orders are bounded, there is at most one answer, and the rest are events.
const WAITING_MAX: usize = 1024;
/// Most messages of one member, connections, and events of the device that are handled in a round.
const ROUND: usize = 16;

/// The name of a domain's owner: the process that holds it is the owner.
#[derive(Debug)]
pub struct OwnerName(Listener);

impl OwnerName {
    /// Takes the name; from now on members can connect, and wait. `None` if the domain has an owner.
    ///
    /// # Errors
    /// [`XrcError::System`].
    pub fn take(file: &DomainFile) -> Result<Option<Self>, XrcError> {
        Ok(socket::listen(file)?.map(Self))
    }

    /// Serves members, with targets of this domain of the device, until no member has had the domain open for `linger`.
    ///
    /// # Errors
    /// [`XrcError::Device`]: the device has failed.
    pub fn serve<D: Domain>(self, device: &Arc<Device>, domain: D, linger: Duration) -> Result<(), XrcError> {
        let mut serving = Serving {
            listener: self.0,
            owner: Owner::new(Instant::now(), domain),
            clients: HashMap::new(),
            closing: Vec::new(),
        };
        while serving.owner.over_at(linger).is_none_or(|at| Instant::now() < at) {
            serving.wait(device, linger)?;
            serving.take_events(device);
            serving.accept();
            serving.receive();
            serving.owner.handle_timeout(Instant::now());
            serving.put_out();
            device.check_alive()?;
        }
        Ok(())
    }
}

struct Serving<D: Domain> {
    listener: Listener,
    owner: Owner<D>,
    clients: HashMap<MemberId, Client>,
    /// Connections with unread data, which this thread cannot close at once.
    closing: Vec<Connection>,
}

struct Client {
    connection: Connection,
    /// Messages to send when the socket has room.
    waiting: VecDeque<Vec<u8>>,
}

impl Client {
    /// Sends as many messages as the socket has room for. `false` if the connection has ended.
    fn flush(&mut self) -> bool {
        while let Some(next) = self.waiting.front() {
            match socket::send(&self.connection, next) {
                Ok(true) => drop(self.waiting.pop_front()),
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    fn wants(&self) -> PollFlags {
        if self.waiting.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }
}

/// Time before the next attempt to close a connection that cannot be closed at once.
const PAUSE: Duration = Duration::from_millis(20);

impl<D: Domain> Serving<D> {
    fn takes_more(&self) -> bool {
        self.closing.is_empty() && self.clients.len() < MEMBERS_MAX
    }

    fn wait(&mut self, device: &Device, linger: Duration) -> Result<(), XrcError> {
        let events: BorrowedFd<'_> = device.event_fd()?;
        let listener = Some(self.listener.as_fd()).filter(|_| self.takes_more());
        let fixed = [Some(events), listener].into_iter().flatten();
        let fixed = fixed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let clients = self.clients.values().map(|client| PollFd::new(&client.connection, client.wants()));
        let mut fds: Vec<PollFd<'_>> = fixed.chain(clients).collect();
        let pause = (!self.closing.is_empty()).then(|| Instant::now() + PAUSE);
        let next = [self.owner.poll_timeout(), self.owner.over_at(linger), pause].into_iter().flatten().min();
        let left = next.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        wait_readable(&mut fds, left);
        Ok(())
    }

    fn take_events(&mut self, device: &Device) {
        for _ in 0..ROUND {
            let Some(event) = device.try_event() else { return };
            device.ack_event(&event);
            if let EventElement::Qp(qpn) = event.element {
                self.owner.handle_event(Instant::now(), qpn, event.event);
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ROUND {
            if !self.takes_more() {
                return;
            }
            // Without file descriptors, new connections wait until others end.
            let Ok(connection) = self.listener.accept() else { return };
            if !matches!(socket::foreign_user(&connection), Ok(None)) {
                self.closing.extend(connection.close());
                continue;
            }
            let id = self.owner.handle_connected(Instant::now());
            self.clients.insert(id, Client { connection, waiting: VecDeque::new() });
        }
    }

    fn receive(&mut self) {
        let ids: Vec<_> = self.clients.keys().copied().collect();
        for id in ids {
            for _ in 0..ROUND {
                if !self.receive_from(id) {
                    break;
                }
                // The next message may depend on it: the end of a member removes the client.
                self.put_out();
            }
        }
    }

    /// Handles the next message of a member. Returns whether there was one.
    fn receive_from(&mut self, id: MemberId) -> bool {
        let Some(client) = self.clients.get(&id) else { return false };
        let (now, mut buffer): (_, Buffer) = (Instant::now(), [0; _]);
        match socket::receive(&client.connection, &mut buffer) {
            Came::Nothing => return false,
            Came::End => self.owner.handle_end(now, id),
            Came::Message(len) => match FromMember::parse(&buffer[..len]) {
                Some(message) => self.owner.handle_message(now, id, message),
                None => self.owner.handle_nonsense(now, id),
            },
        }
        true
    }

    /// Sends the owner's messages, and closes the connections that it ends.
    fn put_out(&mut self) {
        loop {
            while let Some(output) = self.owner.poll_output() {
                match output {
                    Output::Send(id, message) => {
                        let client = self.clients.get_mut(&id);
                        client.into_iter().for_each(|client| client.waiting.push_back(message.encode()));
                    }
                    Output::End(id) => self.close(id),
                }
            }
            let is_over = |client: &mut Client| !client.flush() || client.waiting.len() > WAITING_MAX;
            let mut over = Vec::new();
            for (id, client) in &mut self.clients {
                if !client.waiting.is_empty() && is_over(client) {
                    over.push(*id);
                }
            }
            if over.is_empty() {
                break;
            }
            over.into_iter().for_each(|id| self.owner.handle_end(Instant::now(), id));
        }
        self.closing = core::mem::take(&mut self.closing).into_iter().filter_map(Connection::close).collect();
    }

    fn close(&mut self, id: MemberId) {
        if let Some(mut client) = self.clients.remove(&id) {
            // The last messages, if the socket has room.
            client.flush();
            self.closing.extend(client.connection.close());
        }
    }
}
